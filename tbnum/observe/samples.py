"""Which samples of a batch do it, found by halving."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Samples"]

_MOST_RUNS = 64  # beside four for each halving: what a batch takes in which a few dozen samples do it


class Samples:
    """The samples of a batch: rows of the tensors in it, alone or nested in tuples, lists, dicts and dataclasses.

    The size of the batch is that of the first tensor; a tensor with another first dimension is no data of samples
    and stays as it is.

    Raises:
        ValueError: the batch holds no tensor with a dimension.
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        sizes: list[int] = []
        _mapped(batch, lambda tensor: sizes.append(tensor.size(0)) if tensor.ndim else None)
        if not sizes or not sizes[0]:
            raise ValueError(
                f"batch is {type(batch).__name__} and holds no tensor whose first dimension could be the samples; give "
                "the tensors that the closure is to be called with."
            )
        self.size = sizes[0]

    def copy(self) -> Any:
        """The batch, for a closure to do with as it likes."""
        return _mapped(self._batch, _copy)

    def rows(self, rows: Sequence[int]) -> Any:
        """The batch made of these of its rows."""

        def chosen(tensor: Tensor) -> Tensor:
            if tensor.ndim == 0 or tensor.size(0) != self.size:
                return _copy(tensor)
            picked = tensor.detach().index_select(0, torch.tensor(rows, device=tensor.device))
            return picked.requires_grad_(tensor.requires_grad)

        return _mapped(self._batch, chosen)

    def find(self, fails: Callable[[Any], bool]) -> tuple[int, ...]:
        """The samples with which a batch fails whatever the others are; the whole batch does.

        A sample keeps its row, and so its random numbers, and the batch its size, so that a mean over it weighs as it
        did: samples that do no harm stand in for those that are left out, and while none is known, those in question.

        Calls `fails` about twice for each halving and sample found. Empty where no sample does it alone.
        """
        found: list[int] = []
        harmless: list[int] = []
        left = _MOST_RUNS + 4 * math.ceil(math.log2(self.size))

        def alone(group: list[int]) -> bool:
            nonlocal left
            left -= 1
            others = harmless or group
            rows = [others[row % len(others)] for row in range(self.size)]
            for row in group:
                rows[row] = row
            return fails(self.rows(rows))

        groups = [list(range(self.size))]
        while groups and left > 1:
            group = groups.pop()
            if len(group) == 1:
                found += group
                continue
            halves = group[: len(group) // 2], group[len(group) // 2 :]
            failing = [half for half in halves if alone(half)]
            if len(failing) == 1:
                harmless += next(half for half in halves if half is not failing[0])
            groups += reversed(failing)
        return tuple(sorted(found))


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same structure with its tensors changed; what is neither structure nor tensor stays what it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        parts = [_mapped(each, change) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Mapping):
        changed: Any = copy.copy(value)  # whatever kind of mapping it is
        for key, each in value.items():
            changed[key] = _mapped(each, change)
        return changed
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(
            value, **{field.name: _mapped(getattr(value, field.name), change) for field in fields}
        )
    return value
