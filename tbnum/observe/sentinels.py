"""Finds the first tensor of a step that is not finite, going forward and going backward, module by module."""

from __future__ import annotations

import functools
import math
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tbnum.measure.extremes import extremes, limit_of, readable
from tbnum.observe.module_calls import Call, tensors_in
from tbnum.observe.module_watch import ModuleWatch
from tbnum.observe.transfer import Transfer
from tbnum.observe.watcher import harmless

__all__ = ["SentinelReport", "Sentinels"]

_REST_STEPS = 100  # between two armings after skips

Place = Literal["input", "output", "parameter"]


@dataclass(frozen=True)
class _Watched:
    """A tensor that a sentinel has seen; `ends` are `extremes` of it, once they have landed."""

    call: Call
    place: Place
    backward: bool
    tensor: tuple[int, int] | None  # the same for gradients of the same tensor
    shape: tuple[int, ...]
    dtype: torch.dtype
    may_mask: bool  # takes no gradient: -inf in it is a mask


@dataclass(frozen=True)
class SentinelReport:
    """What the sentinels found in one step: the first tensor that was not finite, going forward and going backward.

    Each is None, or plain data: `module` (None: outside of every module), `phase`, `what` ("output", "input",
    "gradient"), and of that tensor `largest` (its largest finite magnitude, None where there is none), `limit` (the
    largest number of its format), `dtype` and `shape`.
    """

    step: int
    forward: dict[str, Any] | None
    backward: dict[str, Any] | None

    def finding(self, loss: float) -> dict[str, Any] | None:
        """The one that explains a step with this loss.

        Where the loss is finite, a module's -inf did no harm: masked logits are such. A NaN is an unknown loss as well.
        """
        return self.backward if math.isfinite(loss) else self.forward or self.backward


class Sentinels(ModuleWatch):
    """Checks the outputs of every module, and the gradients that flow through them, for NaN and inf.

    `arm(step)` or `arm_after_skip(step)` put them up for some steps, `step_begins(step)` is to be called between any
    two steps, and `reports` gives what has landed on the host.

    Costs, while armed, three passes over each output and each gradient of one, and one packed copy a step; no host
    sync. Nothing while not armed. Results are bitwise those without.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        super().__init__(models)
        self._step: int | None = None
        self._left = 0
        self._rests_until: int | None = None
        self._seen: list[_Watched] = []
        self._ends: list[Tensor] = []
        self._last: tuple[weakref.ref[Tensor], int, Tensor] | None = None
        self._landing: deque[tuple[int, list[_Watched], Transfer]] = deque()

    @property
    def is_awake(self) -> bool:
        """Whether the next step matters."""
        return self._step is not None

    @property
    def armed(self) -> bool:
        return self._left > 0

    def arm(self, step: int, steps: int = 3) -> None:
        """Watch `steps` steps, of which `step` is the first; it has not begun."""
        if steps < 1:
            raise ValueError(f"steps is {steps!r}; sentinels are armed for at least 1 step.")
        self._left = steps
        if self._step is None:
            self._step = step
            modules = self._modules()
            self._hooks.attach(modules)
            for name, module in modules:
                call = Call(name, None, -1, True)
                for parameter in module.parameters(recurse=False):
                    see = functools.partial(self._see, call, "parameter", True, None, False)
                    self._on_gradient(parameter, see)

    def arm_after_skip(self, step: int) -> None:
        """Watch the next 3 steps, unless that was done in the last 100: a run that only skips is not slowed down."""
        if not self.armed and (self._rests_until is None or step >= self._rests_until):
            self._rests_until = step + _REST_STEPS
            self.arm(step)

    def disarm(self) -> None:
        """Take every hook off; what was seen of a step that has not closed is dropped."""
        self._detach()
        self._left, self._step, self._last = 0, None, None
        self._seen, self._ends = [], []

    def step_begins(self, step: int) -> None:
        """The step before has closed, and its values are on their way to the host when this returns."""
        if self._step is None:
            return
        if self._seen:
            self._landing.append((self._step, self._seen, Transfer(self._ends)))
        left = self._left - (step != self._step)
        self.disarm()
        if left > 0:
            self.arm(step, left)

    def reports(self, wait: bool = False) -> list[SentinelReport]:
        """Of the armed steps whose values have landed since the last call, in order. With `wait`, of all."""
        reports = []
        while self._landing and (wait or self._landing[0][2].ready()):
            step, seen, transfer = self._landing.popleft()
            bad = [
                (watched, float(low_high_largest[2]))
                for watched, low_high_largest in zip(seen, transfer.arrays(), strict=True)
                if _is_bad(low_high_largest, watched.may_mask)
            ]
            reports.append(SentinelReport(step, _first_forward(bad), _first_backward(seen, bad)))
        return reports

    @harmless
    def _called(self, call: Call, inputs: Any) -> None:
        self._watch(call, "input", inputs)

    @harmless
    def _returned(self, call: Call, outputs: Any) -> None:
        self._watch(call, "output", outputs)

    def _watch(self, call: Call, place: Place, values: Any) -> None:
        for tensor in tensors_in(values):
            takes_gradient = tensor.requires_grad
            if call.counts:
                self._see(call, place, False, None, not takes_gradient, tensor)
            if takes_gradient:
                node = tensor.grad_fn  # its number and the output's identify a tensor; a leaf has none
                source = (-id(tensor), 0) if node is None else (node._sequence_nr(), tensor.output_nr)
                self._on_gradient(tensor, functools.partial(self._see, call, place, True, source, False))

    @harmless
    def _see(
        self,
        call: Call,
        place: Place,
        backward: bool,
        source: tuple[int, int] | None,
        may_mask: bool,
        tensor: Tensor,
    ) -> None:
        ends = self._measured(tensor)
        if ends is not None:
            self._ends.append(ends)
            self._seen.append(_Watched(call, place, backward, source, tuple(tensor.shape), tensor.dtype, may_mask))

    def _measured(self, tensor: Tensor) -> Tensor | None:
        # A container returns what its last module returned, and hands on what it was given: measure that once.
        if tensor.is_inference():
            version = -1
        else:
            version = tensor._version
            if self._last is not None and self._last[0]() is tensor and self._last[1] == version:
                return self._last[2]
        values = readable(tensor)
        if values is None:
            return None
        ends = extremes(values)
        self._last = (weakref.ref(tensor), version, ends)
        return ends


def _is_bad(ends: np.ndarray, may_mask: bool) -> bool:
    low, high = float(ends[0]), float(ends[1])
    if math.isfinite(low) and math.isfinite(high):
        return False
    return not (may_mask and low == -math.inf and high < math.inf)


def _first_forward(bad: Sequence[tuple[_Watched, float]]) -> dict[str, Any] | None:
    for watched, largest in bad:
        if not watched.backward:
            # An input that no module put out was made by the code of the module that calls this one.
            maker = watched.call if watched.place == "output" else watched.call.parent
            return _finding(maker, "forward", "output" if maker is watched.call else "input", watched, largest)
    return None


def _first_backward(seen: Sequence[_Watched], bad: Sequence[tuple[_Watched, float]]) -> dict[str, Any] | None:
    """The first module that was handed finite gradients and handed on others."""
    gradients = [(watched, largest) for watched, largest in bad if watched.backward]
    if not gradients:
        return None
    handed_bad = {id(watched.call) for watched, _ in gradients if watched.place == "output"}
    handed_bad_names = {watched.call.module for watched, _ in gradients if watched.place == "output"}
    made = [
        (watched, largest)
        for watched, largest in gradients
        if (watched.place == "input" and id(watched.call) not in handed_bad)
        or (watched.place == "parameter" and watched.call.module not in handed_bad_names)
    ]
    if not made:
        watched, largest = gradients[0]
        return _finding(watched.call, "backward", "gradient", watched, largest)
    first, _ = made[0]
    same_tensor = [each for each in made if each[0] is first or (first.tensor and each[0].tensor == first.tensor)]
    watched, largest = max(same_tensor, key=lambda each: _depth(each[0].call))
    return _finding(watched.call, "backward", "gradient", watched, largest)


def _depth(call: Call) -> int:
    return 0 if call.parent is None else 1 + _depth(call.parent)


def _finding(call: Call | None, phase: str, what: str, watched: _Watched, largest: float) -> dict[str, Any]:
    return {
        "module": None if call is None else call.module,
        "phase": phase,
        "what": what,
        "largest": None if math.isnan(largest) else largest,
        "limit": limit_of(watched.dtype),
        "dtype": str(watched.dtype).removeprefix("torch."),
        "shape": list(watched.shape),
    }
