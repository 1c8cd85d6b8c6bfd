"""Looks at tensors for NaN and inf, and at operations for the first that makes one. Every tensor is waited for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tbnum.measure.extremes import extremes, readable
from tbnum.observe.module_calls import tensors_in

__all__ = ["Nonfinite", "Operations", "look_at"]


@dataclass(frozen=True)
class Nonfinite:
    """What there is to say about a tensor that is not finite."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    largest: float | None  # finite magnitude; None where no element is finite
    kind: Literal["NaN", "inf", "-inf"]


class Operations(TorchDispatchMode):
    """Watches operations for the first that makes something non-finite of finite tensors and numbers."""

    supports_higher_order_operators = True

    def __init__(self, in_node: str | None = None, counts: Callable[[], bool] | None = None) -> None:
        super().__init__()
        self._in_node = in_node  # of the autograd graph, where only operations of its backward count
        self._counts = counts  # only operations count at which it is true, and of those the last
        self.found: tuple[str, Nonfinite] | None = None

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._in_node is not None:
            node = torch._C._current_autograd_node()
            if node is None or node.name() != self._in_node:
                return function(*args, **kwargs)
        if self._counts is not None:
            if not self._counts():
                return function(*args, **kwargs)
            before, self.found = self.found, None
            try:
                return self._watched(function, args, kwargs)
            finally:
                self.found = self.found or before
        return self._watched(function, args, kwargs)

    def _watched(self, function: Any, args: Any, kwargs: Any) -> Any:
        changes_its_input = function._schema.is_mutable if isinstance(function, torch._ops.OpOverload) else True
        finite = None if self.found or not changes_its_input else _all_finite((args, kwargs))
        result = function(*args, **kwargs)
        if self.found is None and "empty" not in str(function):  # memory that nothing was written to yet
            bad = next((seen for each in tensors_in(result) if isinstance(seen := look_at(each), Nonfinite)), None)
            if bad is not None and (_all_finite((args, kwargs)) if finite is None else finite):
                name = function._schema.name if isinstance(function, torch._ops.OpOverload) else str(function)
                self.found = (name.removeprefix("aten::"), bad)
        return result


def _all_finite(values: Any) -> bool:
    """Of tensors and numbers: a fill with -inf is meant to give -inf."""
    if isinstance(values, float):
        return math.isfinite(values)
    if isinstance(values, Tensor):
        return not isinstance(look_at(values), Nonfinite)
    if isinstance(values, Mapping):
        values = list(values.values())
    return all(map(_all_finite, values)) if isinstance(values, (tuple, list)) else True


def look_at(tensor: Tensor) -> float | Nonfinite | None:
    """The largest magnitude, or what there is to say where it is not finite; None where there is nothing to read."""
    with torch.no_grad():
        values = readable(tensor)
        if values is None:
            return None
        low, high, largest = extremes(values).tolist()
    if math.isfinite(low) and math.isfinite(high):
        return float(largest)
    kind: Literal["NaN", "inf", "-inf"] = "NaN" if math.isnan(high) else "inf" if high == math.inf else "-inf"
    return Nonfinite(tuple(tensor.shape), tensor.dtype, None if math.isnan(largest) else float(largest), kind)
