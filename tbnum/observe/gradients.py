"""The parameters and gradients of an optimizer, looked at once and on the host alone."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tbnum.observe import transfer
from tbnum.observe.transfer import Number, hold

__all__ = [
    "WHOLE",
    "Gradients",
    "Marks",
    "carries_scale",
    "dtypes_behind",
    "leads_to",
    "leads_to_others",
    "local",
    "operations_behind",
    "parameters_of",
]


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All of them, group by group; not to be written to."""
    if len(optimizer.param_groups) == 1:
        own: list[Tensor] = optimizer.param_groups[0]["params"]
        return own
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def local(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Of a DTensor this rank's part: asking it for a norm would run a collective, which can hang."""
    if WHOLE.issuperset(map(type, tensors)):
        return tensors
    return [getattr(each, "_local_tensor", each) for each in tensors]


_gradient_of, _version_of = operator.attrgetter("grad"), operator.attrgetter("_version")
_PLAIN, _NONE = frozenset({Tensor}), frozenset({type(None)})
WHOLE = frozenset({Tensor, nn.Parameter})

Marks = tuple[list[int], list[int]]
"""Ids and versions of some gradients."""


class Gradients(NamedTuple):
    """The gradients of an optimizer as they were at a moment. About 0.15 microseconds a parameter to look at."""

    parameters: int  # how many the optimizer has
    places: Sequence[int]  # of those that have a gradient
    tensors: list[Tensor]  # their gradients
    versions: list[int]  # a write to a gradient raises its version

    @staticmethod
    def of(optimizer: torch.optim.Optimizer) -> Gradients:
        every: list[Any] = []
        for group in optimizer.param_groups:
            every += map(_gradient_of, group["params"])
        count, kinds = len(every), set(map(type, every))
        if kinds <= _PLAIN:  # nearly always, and then without another call
            try:
                return Gradients(count, range(count), every, list(map(_version_of, every)))
            except RuntimeError:  # some were made in inference mode
                return Gradients(count, range(count), every, _versions(every))
        if kinds == _NONE:
            return Gradients(count, (), [], [])
        places = [place for place, gradient in enumerate(every) if gradient is not None]
        there = [gradient for gradient in every if gradient is not None]
        return Gradients(count, places, there, _versions(there))

    @staticmethod
    def of_these(gradients: list[Tensor], versions: list[int]) -> Gradients:
        """Where every parameter has one."""
        return Gradients(len(gradients), range(len(gradients)), gradients, versions)

    def marks(self) -> Marks:
        """What shows later whether these are the same and unwritten, and keeps none of them alive."""
        return list(map(id, self.tensors)), self.versions

    def ids(self) -> list[int]:
        return list(map(id, self.tensors))

    def are_zero(self) -> bool:
        """Whether all elements are zero, as far as the host knows."""
        tensors = [getattr(gradient, "_local_tensor", gradient) for gradient in self.tensors]
        return all(transfer.on_host(tensor) and not bool(tensor.any()) for tensor in sorted(tensors, key=Tensor.numel))

    def samples(self, like: Sequence[float] = ()) -> tuple[float, ...]:
        """Numbers that are multiplied by what the gradients are multiplied by; none where only a device has them.

        The norms of the two smallest gradients, or where both are zero, which nothing multiplies, of the eight
        smallest: some microseconds. With `like`, of those that such numbers are of.
        """
        few = tuple(_norm(gradient) for gradient in _smallest(self.tensors) if _is_plain_on_host(gradient))
        if len(like) > _FEW or (few and not like and not any(few)):
            return tuple(_norm(gradient) for gradient in _smallest(self.tensors, _MORE) if _is_plain_on_host(gradient))
        return few

    def norms_of_some(self) -> list[Number]:
        """The norms of the two smallest gradients, wherever they are: some small kernels, no sync."""
        some = local(_smallest([gradient for gradient in self.tensors if gradient.layout is torch.strided]))
        return [hold(torch.linalg.vector_norm(gradient.detach().float())) for gradient in some]

    def again(self) -> Gradients:
        """The same gradients, as they are now."""
        return self._replace(versions=_versions(self.tensors))

    def multiplied(self) -> Gradients:
        """The same gradients, after each has been multiplied in place, once; looks at one of them alone.

        One that parameters share was multiplied more than once: it is not recognized, and so is found to be changed.
        """
        if self.tensors and self.versions[-1] >= 0 and self.tensors[-1]._version == self.versions[-1] + 1:
            return self._replace(versions=[version + 1 for version in self.versions])
        are_shared = len(set(map(id, self.tensors))) < len(self.tensors)
        return self if are_shared else self.again()  # those that lie in one buffer have one version

    def all_differ_from(self, other: Gradients) -> bool:
        """Whether each of these was written to, or was not there: there are as many, or more."""
        before = dict(zip(map(id, other.tensors), other.versions, strict=True))
        return bool(self.tensors) and all(
            before.get(id(tensor)) != version for tensor, version in zip(self.tensors, self.versions, strict=True)
        )

    def same_as(self, other: Gradients | None) -> bool:
        """Whether nobody wrote to a gradient, or put another in its place."""
        return (
            other is not None
            and len(self.tensors) == len(other.tensors)
            and all(map(operator.is_, self.tensors, other.tensors))
            and self.versions == other.versions
        )


_FEW, _MORE = 2, 8


def _smallest(tensors: list[Tensor], number: int = _FEW) -> list[Tensor]:
    return heapq.nsmallest(number, tensors, key=Tensor.numel)


def _is_plain_on_host(tensor: Tensor) -> bool:
    return transfer.on_host(tensor) and tensor.layout is torch.strided and not tensor.is_complex()


def _norm(tensor: Tensor) -> float:
    wide = torch.float32 if tensor.dtype.itemsize < 4 else None
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=wide).item())


def carries_scale(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the enabled scaler has neither unscaled these gradients since the last update nor stepped with them."""
    state = scaler._per_optimizer_states.get(id(optimizer))  # a plain look-up would make an entry
    return state is None or state["stage"].name == "READY"


def operations_behind(roots: Sequence[Any], most: int) -> Iterator[Any]:
    """The nearest `most` operations of the graph behind some tensors, breadth first; about 1 microsecond each."""
    seen: set[Any] = set()
    to_visit = [getattr(root, "grad_fn", None) for root in roots]
    while to_visit and len(seen) < most:
        node = to_visit.pop(0)
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            to_visit += [before for before, _ in node.next_functions]


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


def leads_to_others(losses: Iterable[Any], parameters: Iterable[Tensor], nodes: int = 10_000) -> bool:
    """Whether the backward of any loss gives a gradient to something besides `parameters`, as far as `nodes` back."""
    known = set(map(id, parameters))
    seen: set[Any] = set()
    to_visit = [getattr(loss, "grad_fn", None) for loss in losses]
    while to_visit and len(seen) < nodes:
        node = to_visit.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in known:
            return True
        to_visit += [before for before, _ in node.next_functions]
    return False


def _versions(gradients: list[Tensor]) -> list[int]:
    try:
        if _PLAIN.issuperset(map(type, gradients)):  # nearly always
            return list(map(_version_of, gradients))
        return [gradient._version if type(gradient) is Tensor else _version(gradient) for gradient in gradients]
    except RuntimeError:  # one that was made in inference mode has none
        return [-1 if gradient.is_inference() else gradient._version for gradient in gradients]


def _version(gradient: Tensor) -> int:
    """FSDP2 adds to the local part of a DTensor, whose own version then stays."""
    version: int = getattr(gradient, "_local_tensor", gradient)._version
    return version
