"""In which order a forward used the parameters, as the graph behind its loss shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tbnum.observe.gradients import parameters_of

__all__ = ["Used", "order_of_use"]

MOST = 200_000  # operations that are looked at

Used = tuple[str, int]
"""A parameter, by its optimizer and its place there."""

_PASSING = ("T", "ToCopy", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Alias", "Expand", "Clone")
_PASSES = frozenset(f"{name}Backward0" for name in _PASSING)  # the parameter in another shape or type, not a use of it


def order_of_use(roots: Iterable[Any], optimizers: Mapping[str, torch.optim.Optimizer]) -> list[Used] | None:
    """The parameters in the order in which the forward first used them, after a backward from `roots`.

    Left out are those used at several places, as tied weights are. None where the graph does not show the order: of
    parameters inside a reentrant checkpoint, a compiled model or another's shards, and of losses that do not reach
    every optimizer. About 2 microseconds for each operation behind the loss; no value is read.
    """
    places = {
        id(parameter): (name, place)
        for name, optimizer in optimizers.items()
        for place, parameter in enumerate(parameters_of(optimizer))
        if parameter.requires_grad
    }
    consumers, leaves = _graph_behind(roots)
    uses: dict[Used, set[Any]] = {}
    for leaf in leaves:
        place = places.get(id(leaf.variable))
        if place is not None:
            uses[place] = _users(leaf, consumers)
    hidden = [
        place
        for name, optimizer in optimizers.items()
        for place, parameter in enumerate(parameters_of(optimizer))
        if parameter.grad is not None and (name, place) not in uses
    ]
    if hidden or {name for name, _ in uses} != optimizers.keys():
        return None
    numbers = {place: next(iter(users))._sequence_nr() for place, users in uses.items() if len(users) == 1}
    if len(set(numbers.values())) < 2:
        return None
    return sorted(numbers, key=lambda place: (numbers[place], place[1]))


def _graph_behind(roots: Iterable[Any]) -> tuple[dict[Any, list[Any]], list[Any]]:
    """For each operation those that took what it gave, and the leaves."""
    consumers: dict[Any, list[Any]] = {}
    leaves: list[Any] = []
    to_visit = [root.grad_fn for root in roots if isinstance(root, Tensor) and root.grad_fn is not None]
    seen = set(to_visit)
    while to_visit and len(seen) < MOST:
        node = to_visit.pop()
        if hasattr(node, "variable"):
            leaves.append(node)
        for before, _ in node.next_functions:
            if before is None:
                continue
            consumers.setdefault(before, []).append(node)
            if before not in seen:
                seen.add(before)
                to_visit.append(before)
    return consumers, leaves if not to_visit else []


def _users(leaf: Any, consumers: Mapping[Any, Sequence[Any]]) -> set[Any]:
    """The operations that computed with a parameter."""
    found: set[Any] = set()
    to_visit = list(consumers.get(leaf, ()))
    while to_visit:
        node = to_visit.pop()
        if type(node).__name__ in _PASSES and node in consumers:
            to_visit += consumers[node]
        else:
            found.add(node)
    return found
