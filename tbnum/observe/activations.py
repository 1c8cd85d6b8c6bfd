"""Measures what modules put out, and the gradients with respect to it, at chosen steps."""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tbnum.measure.extremes import readable
from tbnum.observe.interval_watch import IntervalWatch
from tbnum.observe.module_calls import Call, tensors_in
from tbnum.observe.watcher import harmless

__all__ = ["ActivationWatch"]


class ActivationWatch(IntervalWatch):
    """Measures outputs of modules, and gradients with respect to them, at every `interval`-th step.

    Several calls in a step, and several tensors in one output, count together. A module that is called again by
    checkpointing counts once; one in evaluation mode without gradients (a teacher, a validation) does not. Gradients
    are measured as they flow, multiplied by the loss scale.

    Columns: `activation_absmax` (the largest magnitude; inf or NaN where an element is), `activation_norm` (2-norm) and
    `activation_zero_share`; NaN where the module was not called, or its output took no gradient.

    Costs, at those steps alone, three passes over each output and gradient, and one packed copy a step; no host sync.

    Args:
        patterns: True for every module, or names of modules, with `*` and `?` as in file names.

    Raises:
        ValueError: a pattern that no module's name fits, an interval below 1.
    """

    def __init__(self, models: Mapping[str, nn.Module], patterns: bool | Sequence[str], interval: int) -> None:
        super().__init__(models, interval)
        self._chosen = _chosen([name for name, _ in self._modules()], patterns)
        self.names = tuple(_label(name, what) for name in self._chosen for what in ("output", "gradient"))
        self._place = {name: at for at, name in enumerate(self.names)}

    def _watched(self) -> list[tuple[str, nn.Module]]:
        chosen = set(self._chosen)
        return [(name, module) for name, module in self._modules() if name in chosen]

    def _columns(self, seen: Sequence[tuple[int, int]], rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        values = _combined(len(self.names), seen, rows)
        return {f"activation_{name}": column for name, column in values.items()}

    def _called(self, call: Call, inputs: Any) -> None:
        pass

    @harmless
    def _returned(self, call: Call, outputs: Any) -> None:
        for tensor in tensors_in(outputs):
            if call.counts:
                self._measure(_label(call.module, "output"), tensor)
            self._on_gradient(tensor, functools.partial(self._measure, _label(call.module, "gradient")))

    @harmless
    def _measure(self, name: str, tensor: Tensor) -> None:
        values = readable(tensor)
        if values is None:
            return
        wide = torch.float64 if values.dtype is torch.float64 else torch.float32
        low, high = torch.aminmax(values)
        norm = torch.linalg.vector_norm(values, dtype=wide)
        nonzero = torch.count_nonzero(values)  # NaN counts
        measured = torch.stack([each.to(wide) for each in (torch.maximum(low.neg(), high), norm, nonzero)])
        self._keep(self._place[name], tensor.numel() * (2 if tensor.is_complex() else 1), measured)


def _label(module: str, what: str) -> str:
    return f"{module}/{what}" if module else what  # the model itself has no name


def _chosen(names: Sequence[str], patterns: bool | Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(names))
    if patterns is True:
        return names
    is_list = isinstance(patterns, Sequence) and not isinstance(patterns, (str, bytes))
    if isinstance(patterns, bool) or not is_list or not all(isinstance(each, str) for each in patterns):
        raise ValueError(f"activations is {patterns!r}; it takes True, or a list of module names and patterns.")
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            some = ", ".join(repr(name) for name in names[:8] if name)
            rest = f"the names begin with {some}" if some else "the model has none inside; activations=True measures it"
            raise ValueError(f"no module's name fits {pattern!r}; {rest}.")
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def _combined(places: int, seen: Sequence[tuple[int, int]], rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    absmax, squares, nonzero, elements = (np.zeros(places) for _ in range(4))
    for (at, count), (its_absmax, its_norm, its_nonzero) in zip(seen, rows, strict=True):
        absmax[at] = np.maximum(absmax[at], its_absmax)  # NaN stays
        squares[at] += float(its_norm) ** 2
        nonzero[at] += its_nonzero
        elements[at] += count
    elements[elements == 0] = math.nan  # unseen
    known = 0 * elements
    return {"absmax": absmax + known, "norm": np.sqrt(squares) + known, "zero_share": 1 - nonzero / elements}
