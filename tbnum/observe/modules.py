"""Sees what modules put out, and the gradients with respect to it, for as many steps as it is asked to.

Forward hooks see the outputs, tensor hooks on the outputs their gradients: full backward hooks of modules would raise
where an output is changed in place. Everything that is measured stays on the device, in tensors of three numbers, and
comes to the host in one packed copy a step. The hooks are there while they are needed and gone afterwards.

What torch.compile made of a module runs no hooks, and hooks put on it would compile it anew: inside of it nothing is
seen.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tbnum.measure.extremes import extremes, readable
from tbnum.observe.names import named_modules
from tbnum.observe.transfer import Transfer, capturing
from tbnum.observe.watcher import Watcher, harmless

__all__ = [
    "ActivationWatch",
    "Activations",
    "Call",
    "ModuleHooks",
    "SentinelReport",
    "Sentinels",
    "limit_of",
    "tensors_in",
]

_REST_STEPS = 100  # between two armings after skips


# -- tensors -----------------------------------------------------------------------------------------------------------


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in what a module was given or returned: itself, or nested in sequences, mappings, dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))


def limit_of(dtype: torch.dtype) -> float:
    """The largest finite number of a floating-point or complex type."""
    return float(torch.finfo(dtype).max)


# -- calls of modules --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Call:
    """One call of a module."""

    module: str
    parent: Call | None  # the call that it was made in
    graph_task: int  # of the backward that it was made in, by checkpointing, say; else -1
    trains: bool  # in training mode, or with gradients: no teacher, no validation

    @property
    def counts(self) -> bool:
        """Whether its outputs are those of a training step, and for the first time."""
        return self.trains and self.graph_task == -1


class ModuleHooks:
    """Tells of the calls of some modules, from `attach` to `detach`.

    `before(call, tensors)` with what the module is given and `after(call, tensors)` with what it returned, once the
    hooks that were there first have run. Copies and pickles of a module that are made meanwhile hold hooks that do
    nothing.
    """

    def __init__(
        self, before: Callable[[Call, list[Tensor]], None], after: Callable[[Call, list[Tensor]], None]
    ) -> None:
        self._before = before
        self._after = after
        self._handles: list[Any] = []
        self._running = threading.local()

    def attach(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        self._running = threading.local()
        for name, module in modules:
            before, after = _Hook(self._called, name), _Hook(self._returned, name)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _stack(self) -> list[Call]:
        stack = getattr(self._running, "stack", None)  # a thread each: checkpoints are recomputed in a device's thread
        if stack is None:
            stack = self._running.stack = []
        return stack

    def _called(self, module: nn.Module, name: str, args: Any, kwargs: Any) -> None:
        graph_task = torch._C._current_graph_task_id()
        stack = self._stack()
        while stack and stack[-1].graph_task not in (-1, graph_task):
            stack.pop()  # a recomputation stops in the middle once it has what the backward needs
        call = Call(name, stack[-1] if stack else None, graph_task, module.training or torch.is_grad_enabled())
        stack.append(call)
        self._before(call, list(tensors_in((args, kwargs))))

    def _returned(self, module: nn.Module, name: str, args: Any, output: Any) -> None:
        stack = self._stack()
        if not any(call.module == name for call in stack):
            return
        call = stack.pop()
        while call.module != name:
            call = stack.pop()  # an exception that the model caught has left it
        self._after(call, list(tensors_in(output)))


class _Hook:
    """A hook of tbnum's. What is copied or pickled with its module is not it, but a function that does nothing."""

    def __init__(self, tell: Callable[..., None], name: str) -> None:
        self._tell = tell
        self._name = name

    def __call__(self, module: nn.Module, *call: Any) -> None:
        if not torch.compiler.is_compiling() and not capturing():
            self._tell(module, self._name, *call)

    def __reduce__(self) -> Any:
        return _inert, ()

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return _nothing


def _nothing(*call: Any) -> None:
    return None


def _inert() -> Callable[..., None]:
    return _nothing


# -- what both watches do ----------------------------------------------------------------------------------------------


class _Watch(Watcher):
    """Hooks on the modules of models, and on tensors, for the length of a step. Holds the models weakly."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        super().__init__("watch a module")
        self._models = {name: weakref.ref(model) for name, model in models.items()}
        self._hooks = ModuleHooks(self._called, self._returned)
        self._tensor_hooks: list[Any] = []

    def _modules(self) -> list[tuple[str, nn.Module]]:
        alive = {name: model for name, ref in self._models.items() if (model := ref()) is not None}
        return named_modules(alive, inside_compiled=False)

    def _detach(self) -> None:
        self._hooks.detach()
        for handle in self._tensor_hooks:
            handle.remove()  # a module may return a parameter, which outlives the step
        self._tensor_hooks = []

    def _called(self, call: Call, inputs: list[Tensor]) -> None:
        raise NotImplementedError

    def _returned(self, call: Call, outputs: list[Tensor]) -> None:
        raise NotImplementedError

    def _on_gradient(self, tensor: Tensor, tell: Callable[[Tensor], None]) -> None:
        """`tell(gradient)` with respect to `tensor` in the backward, unless that is a part of a loss to come."""
        if not tensor.requires_grad:
            return

        def backward(gradient: Tensor) -> None:
            if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
                tell(gradient)

        self._tensor_hooks.append(tensor.register_hook(backward))


# -- sentinels ---------------------------------------------------------------------------------------------------------

Place = Literal["input", "output", "parameter"]


@dataclass(frozen=True)
class _Sighted:
    """A tensor that a sentinel has seen; `ends` are `extremes` of it, once they have landed."""

    call: Call
    place: Place
    backward: bool
    tensor: tuple[int, int] | None  # tells which gradients are of the same tensor
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


class Sentinels(_Watch):
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
        self._seen: list[_Sighted] = []
        self._ends: list[Tensor] = []
        self._last: tuple[weakref.ref[Tensor], int, Tensor] | None = None
        self._landing: deque[tuple[int, list[_Sighted], Transfer]] = deque()

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
                    tell = functools.partial(self._see, call, "parameter", True, None, False)
                    self._on_gradient(parameter, tell)

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
                (sighted, float(low_high_largest[2]))
                for sighted, low_high_largest in zip(seen, transfer.arrays(), strict=True)
                if _is_bad(low_high_largest, sighted.may_mask)
            ]
            reports.append(SentinelReport(step, _first_forward(bad), _first_backward(seen, bad)))
        return reports

    @harmless
    def _called(self, call: Call, inputs: list[Tensor]) -> None:
        self._watch(call, "input", inputs)

    @harmless
    def _returned(self, call: Call, outputs: list[Tensor]) -> None:
        self._watch(call, "output", outputs)

    def _watch(self, call: Call, place: Place, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            takes_gradient = tensor.requires_grad
            if call.counts:
                self._see(call, place, False, None, not takes_gradient, tensor)
            if takes_gradient:
                node = tensor.grad_fn  # its number and the output's tell a tensor apart; a leaf has none
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
            self._seen.append(_Sighted(call, place, backward, source, tuple(tensor.shape), tensor.dtype, may_mask))

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


def _first_forward(bad: Sequence[tuple[_Sighted, float]]) -> dict[str, Any] | None:
    for sighted, largest in bad:
        if not sighted.backward:
            # An input that no module put out was made by the code of the module that calls this one.
            maker = sighted.call if sighted.place == "output" else sighted.call.parent
            return _finding(maker, "forward", "output" if maker is sighted.call else "input", sighted, largest)
    return None


def _first_backward(seen: Sequence[_Sighted], bad: Sequence[tuple[_Sighted, float]]) -> dict[str, Any] | None:
    """The first module that was handed finite gradients and handed on others."""
    gradients = [(sighted, largest) for sighted, largest in bad if sighted.backward]
    if not gradients:
        return None
    handed_bad = {id(sighted.call) for sighted, _ in gradients if sighted.place == "output"}
    handed_bad_names = {sighted.call.module for sighted, _ in gradients if sighted.place == "output"}
    made = [
        (sighted, largest)
        for sighted, largest in gradients
        if (sighted.place == "input" and id(sighted.call) not in handed_bad)
        or (sighted.place == "parameter" and sighted.call.module not in handed_bad_names)
    ]
    if not made:
        sighted, largest = gradients[0]
        return _finding(sighted.call, "backward", "gradient", sighted, largest)
    first, _ = made[0]
    same_tensor = [each for each in made if each[0] is first or (first.tensor and each[0].tensor == first.tensor)]
    sighted, largest = max(same_tensor, key=lambda each: _depth(each[0].call))
    return _finding(sighted.call, "backward", "gradient", sighted, largest)


def _depth(call: Call) -> int:
    return 0 if call.parent is None else 1 + _depth(call.parent)


def _finding(call: Call | None, phase: str, what: str, sighted: _Sighted, largest: float) -> dict[str, Any]:
    return {
        "module": None if call is None else call.module,
        "phase": phase,
        "what": what,
        "largest": None if math.isnan(largest) else largest,
        "limit": limit_of(sighted.dtype),
        "dtype": str(sighted.dtype).removeprefix("torch."),
        "shape": list(sighted.shape),
    }


# -- activations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Activations:
    """What modules put out in one step, and the gradients with respect to it.

    `names` are those of `ActivationWatch.names`. `values` has `absmax` (the largest magnitude; inf or NaN where an
    element is), `norm` (2-norm) and `zero_share`, each (N,) float64; NaN where the module was not called, or its
    output took no gradient. Gradients are as they flow, multiplied by the loss scale.
    """

    step: int
    names: tuple[str, ...]
    values: dict[str, np.ndarray]


class ActivationWatch(_Watch):
    """Measures outputs of modules, and gradients with respect to them, at every `interval`-th step.

    Several calls in a step, and several tensors in one output, count together. A module that is called again by
    checkpointing counts once; one in evaluation mode without gradients (a teacher, a validation) does not.

    Costs, at those steps alone, three passes over each output and gradient, and one packed copy a step; no host sync.

    Args:
        patterns: True for every module, or names of modules, with `*` and `?` as in file names.

    Raises:
        ValueError: a pattern that no module's name fits, an interval below 1.
    """

    def __init__(self, models: Mapping[str, nn.Module], patterns: bool | Sequence[str], interval: int) -> None:
        super().__init__(models)
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ValueError(f"interval is {interval!r}; it must be a whole number of steps, at least 1.")
        self._interval = interval
        self._chosen = _chosen([name for name, _ in self._modules()], patterns)
        self.names = tuple(_label(name, what) for name in self._chosen for what in ("output", "gradient"))
        self._place = {name: at for at, name in enumerate(self.names)}
        self._step: int | None = None
        self._seen: list[tuple[int, int]] = []  # place in `names`, number of elements
        self._measured: list[Tensor] = []
        self._landing: deque[tuple[int, list[tuple[int, int]], Transfer]] = deque()

    def step_begins(self, step: int) -> None:
        """The step before has closed; `step` is watched if it is its turn. To be called between any two steps."""
        if self._step is not None:
            if self._seen:
                self._landing.append((self._step, self._seen, Transfer(self._measured)))
            self.stop()
        if step % self._interval == 0:
            self._step = step
            chosen = set(self._chosen)
            self._hooks.attach([(name, module) for name, module in self._modules() if name in chosen])

    def stop(self) -> None:
        """Take every hook off; what was seen of a step that has not closed is dropped."""
        self._detach()
        self._step = None
        self._seen, self._measured = [], []

    def landed(self, wait: bool = False) -> list[Activations]:
        """Of the steps whose values have landed since the last call, in order. With `wait`, of all."""
        found = []
        while self._landing and (wait or self._landing[0][2].ready()):
            step, seen, transfer = self._landing.popleft()
            found.append(Activations(step, self.names, _combined(len(self.names), seen, transfer.arrays())))
        return found

    def _called(self, call: Call, inputs: list[Tensor]) -> None:
        pass

    @harmless
    def _returned(self, call: Call, outputs: list[Tensor]) -> None:
        for tensor in outputs:
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
        self._measured.append(torch.stack([each.to(wide) for each in (torch.maximum(low.neg(), high), norm, nonzero)]))
        self._seen.append((self._place[name], tensor.numel() * (2 if tensor.is_complex() else 1)))


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
            some = ", ".join(repr(name) for name in names[:8] if name)  # the model itself has none
            raise ValueError(f"no module's name fits {pattern!r}; the names begin with {some}.")
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
