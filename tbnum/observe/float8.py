"""Watches the casts to float8 of torchao's linear modules: their scales, and what the casts lose."""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tbnum.formats import Format
from tbnum.measure.extremes import readable
from tbnum.measure.float8 import FLOAT8, amax_of, cast_losses
from tbnum.observe.interval_watch import IntervalWatch
from tbnum.observe.module_calls import Call, tensors_in
from tbnum.observe.watcher import harmless

__all__ = ["COLUMNS", "Float8Watch", "has_float8"]

COLUMNS = ("float8_amax", "float8_scale", "float8_saturated", "float8_flushed")
ROLES = ("input", "weight", "grad_output")


def has_float8(models: Mapping[str, nn.Module]) -> bool:
    """Whether a model has modules of torchao's that cast to float8 in training. Imports nothing."""
    kind = _linear()
    return kind is not None and any(isinstance(module, kind) for model in models.values() for module in model.modules())


class Float8Watch(IntervalWatch):
    """Measures what torchao's `Float8Linear` modules cast to float8, at every `interval`-th step.

    Of each module its input, its weight and the gradient with respect to its output, as `<module>/input`,
    `<module>/weight` and `<module>/grad_output`. The columns:

    - `float8_amax`: the largest magnitude, of which the scale is made; inf or NaN where an element is;
    - `float8_scale`: what the tensor is multiplied by before the cast, by torchao's own rule;
    - `float8_saturated`: share of elements beyond the format's maximum then; `float8_flushed`: share of elements that
      become zero and were not.

    Where the scale is made row by row, the scale and the shares are unknown; where a module is called several times
    in a step, the largest of each counts, of the scale the smallest. A tensor that arrives in float8 was cast
    elsewhere and is left out.

    Costs, at those steps alone, three passes over each of these tensors and one packed copy a step; no host sync.
    """

    def __init__(self, models: Mapping[str, nn.Module], interval: int) -> None:
        super().__init__(models, interval)
        self._casts: dict[str, _Module] = {}
        self.names = tuple(_label(name, role) for name, _ in self._watched() for role in ROLES)
        self._place = {name: place for place, name in enumerate(self.names)}

    def _watched(self) -> list[tuple[str, nn.Module]]:
        kind = _linear()
        found = [] if kind is None else [(name, each) for name, each in self._modules() if isinstance(each, kind)]
        self._casts = {name: _Module.of(module) for name, module in found}
        return found

    def _columns(self, seen: Sequence[tuple[int, int]], rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        columns = {name: np.full(len(self.names), math.nan) for name in COLUMNS}
        by_place: dict[int, list[np.ndarray]] = {}
        for (place, _), row in zip(seen, rows, strict=True):
            by_place.setdefault(place, []).append(row)
        pick = {"float8_amax": np.maximum, "float8_scale": np.fmin}  # a NaN in a tensor stays
        for place, of_tensor in by_place.items():
            for name, values in zip(COLUMNS, np.stack(of_tensor, axis=1).astype(np.float64), strict=True):
                columns[name][place] = pick.get(name, np.fmax).reduce(values)
        return columns

    @harmless
    def _called(self, call: Call, inputs: Any) -> None:
        module = self._casts.get(call.module)
        if module is None or not call.counts:
            return
        given = next(tensors_in(inputs), None)
        if given is not None:
            given = given.detach()
            if torch.is_autocast_enabled():  # as torchao asks, and casts: of CUDA's autocast, wherever it runs
                given = given.to(torch.get_autocast_dtype("cuda"))
            self._measure(call.module, "input", given, module.input)
        alive: Any = module.module()
        if alive is not None:
            self._measure(call.module, "weight", alive.weight, module.weight)

    @harmless
    def _returned(self, call: Call, outputs: Any) -> None:
        module = self._casts.get(call.module)
        if module is None or not call.trains:
            return
        for output in tensors_in(outputs):
            measure = functools.partial(self._measure_gradient, call.module, module.grad_output)
            self._on_gradient(output, measure)

    @harmless
    def _measure_gradient(self, name: str, cast: _Cast | None, gradient: Tensor) -> None:
        self._measure(name, "grad_output", gradient, cast)

    def _measure(self, name: str, role: str, tensor: Tensor, cast: _Cast | None) -> None:
        if cast is None or tensor.dtype.itemsize == 1 or hasattr(tensor, "_local_tensor"):
            return  # of a part of a tensor the scale is not known here
        values = readable(tensor)
        if values is None:
            return
        amax = amax_of(values)
        if cast.tensorwise:
            scale = cast.scale(amax)
            losses = cast_losses(values, scale, cast.format)
        else:
            scale, losses = amax.new_full((), math.nan), amax.new_full((2,), math.nan)
        row = torch.cat([torch.stack([amax.to(torch.float32), scale.to(torch.float32)]), losses.to(torch.float32)])
        self._keep(self._place[_label(name, role)], tensor.numel(), row)


class _Cast(NamedTuple):
    """How torchao casts one of the tensors of a module."""

    format: Format
    dtype: torch.dtype
    tensorwise: bool
    power_of_2: bool

    def scale(self, amax: Tensor) -> Tensor:
        """By torchao's own function."""
        result: Tensor = sys.modules["torchao.float8.float8_utils"].amax_to_scale(
            amax, self.dtype, round_scales_to_power_of_2=self.power_of_2
        )
        return result

    @staticmethod
    def of(config: Any, power_of_2: bool) -> _Cast | None:
        """None where nothing is cast."""
        if getattr(config.scaling_type, "value", None) != "dynamic" or config.target_dtype not in FLOAT8:
            return None
        tensorwise = getattr(config.scaling_granularity, "value", None) == "tensorwise"
        return _Cast(FLOAT8[config.target_dtype], config.target_dtype, tensorwise, power_of_2)


class _Module(NamedTuple):
    module: weakref.ref[nn.Module]
    input: _Cast | None
    weight: _Cast | None
    grad_output: _Cast | None

    @staticmethod
    def of(module: nn.Module) -> _Module:
        config: Any = module.config
        power_of_2 = bool(getattr(config, "round_scales_to_power_of_2", False))
        casts = (config.cast_config_input, config.cast_config_weight, config.cast_config_grad_output)
        return _Module(weakref.ref(module), *(_Cast.of(cast, power_of_2) for cast in casts))


def _linear() -> type[nn.Module] | None:
    """torchao's class, where the program has imported it."""
    module = sys.modules.get("torchao.float8.float8_linear")
    return getattr(module, "Float8Linear", None)


def _label(module: str, role: str) -> str:
    return f"{module}/{role}" if module else role
