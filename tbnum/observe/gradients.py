"""The parameters and gradients of an optimizer, looked at once and on the host alone."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

__all__ = ["Before", "Gradients", "carries_scale", "dtypes_behind", "leads_to", "local", "parameters_of"]


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All of them, group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Of a DTensor this rank's part: asking it for a norm would run a collective, which can hang."""
    return [getattr(each, "_local_tensor", each) for each in tensors]


@dataclass(frozen=True)
class Gradients:
    """The gradients of an optimizer as they were at a moment. About 0.15 microseconds a parameter to look at."""

    parameters: int  # how many the optimizer has
    places: Sequence[int]  # of those that have a gradient
    tensors: list[Tensor]  # their gradients
    versions: list[int]  # a write to a gradient raises its version

    @staticmethod
    def of(optimizer: torch.optim.Optimizer) -> Gradients:
        every = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        there = [gradient for gradient in every if gradient is not None]
        places: Sequence[int] = range(len(every))
        if len(there) < len(every):
            places = [place for place, gradient in enumerate(every) if gradient is not None]
        return Gradients(len(every), places, there, _versions(there))

    def again(self) -> Gradients:
        """The same gradients, as they are now."""
        return replace(self, versions=_versions(self.tensors))

    def multiplied(self) -> Gradients:
        """The same gradients, after each has been multiplied in place, once; looks at one of them alone.

        One that parameters share was multiplied more than once: it is not told, and so is found to be changed.
        """
        if self.tensors and self.versions[-1] >= 0 and self.tensors[-1]._version == self.versions[-1] + 1:
            return replace(self, versions=[version + 1 for version in self.versions])
        are_shared = len(set(map(id, self.tensors))) < len(self.tensors)
        return self if are_shared else self.again()  # those that lie in one buffer have one version

    def same_as(self, other: Gradients | None) -> bool:
        """Whether nobody wrote to a gradient, or put another in its place."""
        return (
            other is not None
            and len(self.tensors) == len(other.tensors)
            and all(map(operator.is_, self.tensors, other.tensors))
            and self.versions == other.versions
        )


@dataclass(frozen=True)
class Before:
    """The gradients of some optimizers before a backward, to tell whether it adds to them."""

    parameters: list[Tensor]
    gradients: list[Tensor | None]
    versions: list[int]  # of those that there are

    @staticmethod
    def of(optimizers: Iterable[torch.optim.Optimizer], most: int | None = None) -> Before:
        """With `most`, of about so many of the parameters, from first to last: a look at one takes a microsecond."""
        groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
        apart = 1 if most is None else max(1, sum(map(len, groups)) // most)
        parameters: list[Tensor] = []
        passed = 0
        for group in groups:
            parameters += group[-passed % apart :: apart]
            passed += len(group)
        gradients = [parameter.grad for parameter in parameters]
        return Before(parameters, gradients, _versions([each for each in gradients if each is not None]))

    def have_changed(self) -> bool:
        """Mostly told by the first: gradients were None, and are there now."""
        if any(parameter.grad is not before for parameter, before in zip(self.parameters, self.gradients, strict=True)):
            return True
        return self.versions != _versions([each for each in self.gradients if each is not None])


def carries_scale(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the enabled scaler has neither unscaled these gradients since the last update nor stepped with them."""
    state = scaler._per_optimizer_states.get(id(optimizer))  # a plain look-up would make an entry
    return state is None or state["stage"].name == "READY"


def dtypes_behind(loss: Tensor, nodes: int = 1000) -> set[torch.dtype]:
    """The types in which a loss was computed, as far as `nodes` operations back; about 1 microsecond each."""
    found: set[torch.dtype] = set()
    seen: set[Any] = set()
    to_visit = [loss.grad_fn]
    while to_visit and len(seen) < nodes:
        node = to_visit.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.update(metadata.dtype for metadata in getattr(node, "_input_metadata", ()))  # torch has it since 2.3
        to_visit += [before for before, _ in node.next_functions]
    return found


def leads_to(losses: Iterable[Any], parameters: Iterable[Tensor]) -> bool:
    """Whether the backward of any loss gives a parameter a gradient. Mostly it is a few operations to the first.

    About 1 microsecond for each operation behind the losses where it does not. Nothing of the parameters is read.
    """
    wanted = set(map(id, parameters))
    seen: set[Any] = set()
    to_visit = [getattr(loss, "grad_fn", None) for loss in losses]
    while to_visit:
        node = to_visit.pop()
        if node is None or node in seen:
            continue
        if id(getattr(node, "variable", None)) in wanted:
            return True
        seen.add(node)
        to_visit += [before for before, _ in node.next_functions]
    return False


def _versions(gradients: list[Tensor]) -> list[int]:
    try:
        return [gradient._version for gradient in gradients]
    except RuntimeError:  # one that was made in inference mode has none
        return [-1 if gradient.is_inference() else gradient._version for gradient in gradients]
