"""Runs a forward and backward again, watched module by module, to find where the first NaN or inf came from.

A replay is for a person with a question, not for every step. Afterwards everything is as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from tbnum.measure.extremes import limit_of
from tbnum.observe.names import named_modules, named_parameters
from tbnum.observe.origin import Cause, WatchedRun, as_written
from tbnum.observe.origin_text import dtype_name, message
from tbnum.observe.ranks import rank_and_world_size
from tbnum.observe.rewind import Kept, Moment, parameters_of_all
from tbnum.observe.samples import Samples
from tbnum.observe.shares import MeasuredRun, SampleShare, rank_samples
from tbnum.observe.transfer import capturing

__all__ = ["Origin", "SampleShare", "replay"]


@dataclass(frozen=True)
class Origin:
    """Where the first NaN or inf of a forward and backward came from. As text, it is its `message`."""

    module: str | None
    """Name as in `model.named_modules()`, `""` for the model itself; None where it was outside of every module."""

    phase: Literal["forward", "backward", "none"]
    """"none": everything was finite in the replay."""

    what: Literal["output", "input", "loss", "gradient"] | None
    """What the first non-finite tensor is, to the module."""

    shape: tuple[int, ...] | None
    """Of the first non-finite tensor; so are `dtype`, `largest` and `limit`."""

    dtype: str | None

    largest: float | None
    """Its largest finite magnitude; None where no element is finite."""

    limit: float | None
    """The largest number of its format: 65504 for float16."""

    inputs_finite: bool | None
    """True: the module made it out of finite inputs (or gradients). False: it was handed on."""

    operation: str | None
    """The operation that put it out, as PyTorch calls it, where that is known."""

    samples: tuple[int, ...] | None
    """Which samples of the batch do it, each alone; () where none does alone; None where no batch was given."""

    message: str
    """All of it in one sentence."""

    shares: tuple[SampleShare, ...] | None = None
    """Where all was finite and a batch was given: its samples by their share of the loss and of the gradient norm,
    largest first; of a large batch those alone that may be among the largest. `run.batch(step)` has their ids."""

    def __str__(self) -> str:
        return self.message


def replay(
    closure: Callable[..., Any],
    batch: Any = None,
    *,
    models: Mapping[str, nn.Module],
    optimizers: Iterable[torch.optim.Optimizer] = (),
    scaler: torch.amp.GradScaler | None = None,
    at: Moment | None = None,
    muted: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Origin:
    """Run forward and backward again with every module watched, and find where the first NaN or inf came from.

        origin = replay(lambda: scaler.scale(loss_fn(model(x))).backward(), models={"": model}, ...)
        origin = replay(lambda xy: scaler.scale(loss_fn(model(xy[0]), xy[1])).backward(), (x, y), ...)

    Compiled modules run as they were written, uncompiled; what a compiler's fused kernels round otherwise is not
    seen. Parameters, gradients, buffers, attributes of modules that were set, random state (PyTorch's own on every
    device, Python's, numpy's), scaler, optimizer and its settings are afterwards what they were, bit by bit, and
    gradients the same objects, also where the closure raises.

    Args:
        closure: runs forward and backward, and takes no optimizer step. With `batch`, it is called with a copy of it.
        batch: what the closure is to be given: tensors whose first dimension is the samples, alone or in tuples,
            lists, dicts and dataclasses. Then the samples that do it are found by halving, each time in a batch of the
            same size, where samples that do no harm stand in for the others. Where all is finite, they are ranked by
            their share of the loss and of the gradient norm.
        at: random state and scale to run with; those of now without it.
        muted: a context in which those who watch the training look away.

    Costs:
        A copy of parameters and buffers (in the host's memory), one more set of gradients, two runs of the closure
        that wait for every tensor; with `batch`, about 2 more for each halving and sample that does it, bounded. To
        rank the samples of a finite batch, a run for each, or some 100 of a large one, and two sets of gradients.

    Raises:
        TypeError: `closure` is no function.
        ValueError: no model; a batch without tensors.
        RuntimeError: it could not keep its promise, and ran nothing: several processes train together, an optimizer
            steps inside of backward, a parameter is not initialized. Or the closure ran no backward, or stepped an
            optimizer; everything is as it was then, too.
        Exception: whatever the closure raises.
    """
    optimizers = list(optimizers)
    _check(closure, models, optimizers)
    samples = None if batch is None else Samples(batch)
    runs = _Runs(closure, samples, models, optimizers, Kept(models, optimizers, scaler), at, muted)
    try:
        return runs.origin()
    finally:
        runs.kept.rewind()


@dataclass(frozen=True)
class _Runs:
    """Runs the closure as often as it takes, each time from the same state."""

    closure: Callable[..., Any]
    samples: Samples | None
    models: Mapping[str, nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    kept: Kept
    at: Moment | None
    muted: Callable[[], contextlib.AbstractContextManager[Any]]

    def origin(self) -> Origin:
        first, cause = self._run()
        if not first.backwards:
            raise RuntimeError(
                "the closure ran no backward, so there is nothing to replay: it has to run forward and backward, as "
                "in monitor.replay(lambda: scaler.scale(loss_fn(model(x))).backward())."
            )
        if cause.what in ("output", "gradient", "loss") and cause.inputs_finite:
            closer, _ = self._run(look_into=cause)
            if closer.operation is not None:  # a float16 overflow that leaves the module as float32, say
                cause = dataclasses.replace(cause, operation=closer.operation[0], tensor=closer.operation[1])
        shares = None
        if cause.phase == "none" and self.samples is not None:
            shares = rank_samples(self.samples.size, self._measure())
        return _origin(cause, first, self.models, self.samples, self._culprits(cause), shares)

    def _run(self, given: Any = None, look_into: Cause | None = None) -> tuple[WatchedRun, Cause]:
        self.kept.rewind()
        self.kept.begin(self.at)
        watched = WatchedRun(self.models, self.kept.hide_gradient, look_into)
        with self.muted(), _no_step(self.optimizers), watched.watching():
            if self.samples is None:
                self.closure()
            else:
                self.closure(self.samples.copy() if given is None else given)
        return watched, watched.cause()

    def _measure(self) -> Callable[[Sequence[int]], tuple[float, float]]:
        """Loss and gradient of a batch of some rows, as shares of those of the whole batch."""
        samples = self.samples
        assert samples is not None
        parameters = [parameter for _, parameter in parameters_of_all(self.models, self.optimizers)]
        whole = MeasuredRun(parameters)
        self._run_measured(whole, samples.copy())

        def measure(rows: Sequence[int]) -> tuple[float, float]:
            part = MeasuredRun(parameters, along=whole.gradients)
            self._run_measured(part, samples.rows(rows))
            return (
                part.loss / whole.loss if whole.loss else math.nan,
                part.product / whole.product if whole.product else math.nan,
            )

        return measure

    def _run_measured(self, run: MeasuredRun, given: Any) -> None:
        self.kept.rewind()
        self.kept.begin(self.at)
        with self.muted(), _no_step(self.optimizers), run.watching(), as_written():
            self.closure(given)

    def _culprits(self, cause: Cause) -> tuple[int, ...] | None:
        """The samples that do it, each alone."""
        if self.samples is None or cause.phase == "none":
            return None

        def fails(given: Any) -> bool:
            _, again = self._run(given)
            return (again.phase, again.module) == (cause.phase, cause.module)

        return self.samples.find(fails)


def _origin(
    cause: Cause,
    run: WatchedRun,
    models: Mapping[str, nn.Module],
    samples: Samples | None,
    culprits: tuple[int, ...] | None,
    shares: tuple[SampleShare, ...] | None,
) -> Origin:
    tensor = cause.tensor
    return Origin(
        module=cause.module,
        phase=cause.phase,
        what=cause.what,
        shape=None if tensor is None else tensor.shape,
        dtype=None if tensor is None else dtype_name(tensor.dtype),
        largest=None if tensor is None else tensor.largest,
        limit=None if tensor is None else limit_of(tensor.dtype),
        inputs_finite=cause.inputs_finite,
        operation=cause.operation,
        samples=culprits,
        message=message(
            cause,
            run,
            _bad_parameters(models, cause.module),
            None if samples is None else samples.size,
            culprits,
            shares or (),
        ),
        shares=shares,
    )


def _bad_parameters(models: Mapping[str, nn.Module], module: str | None) -> list[str]:
    """Of the module itself, and where it has none but in other modules, of those."""
    if module is None:
        return []
    found = next((each for name, each in named_modules(models, inside_compiled=True) if name == module), None)
    if found is None:
        return []
    named: list[tuple[str, torch.Tensor]] = [*found.named_parameters(recurse=False)] or [*named_parameters("", found)]
    return [name for name, parameter in named if not bool(torch.isfinite(parameter.detach()).all())]


def _check(
    closure: Any,
    models: Mapping[str, nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
) -> None:
    if not callable(closure):
        raise TypeError(
            f"replay() takes a function that runs forward and backward, not {closure!r:.80}: "
            "monitor.replay(lambda: scaler.scale(loss_fn(model(x))).backward())."
        )
    if not models:
        raise ValueError("replay() watches the modules of a model, and has none: give it to tbnum.wrap(..., model=).")
    rank, world_size = rank_and_world_size()
    if world_size > 1:
        raise RuntimeError(
            f"replay() runs in one process, and this is rank {rank} of {world_size}: the others would not take part "
            "in its collectives. Load the checkpoint and the batch in a single process and replay there."
        )
    if capturing():
        raise RuntimeError("replay() can't run while a CUDA graph is captured; call it outside.")
    for name, parameter in parameters_of_all(models, optimizers):
        if nn.parameter.is_lazy(parameter):
            raise RuntimeError(f"{name} is not initialized yet; run the model once before replay().")
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise RuntimeError(
                f"{name} has a hook that runs when its gradient is there, as optimizers have that step inside of "
                "backward: a replay would take that step. Remove the hooks for the replay, or step after backward."
            )
    compiled = any(
        type(module).__module__.startswith("torch._dynamo") or module._compiled_call_impl is not None
        for model in models.values()
        for module in model.modules()
    )
    if compiled and not hasattr(torch.compiler, "set_stance"):
        raise RuntimeError("a compiled model runs uncompiled from torch 2.6 on; replay with the model before compile.")


@contextlib.contextmanager
def _no_step(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    def refuse(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        raise RuntimeError(
            f"the closure given to replay() calls {type(optimizer).__name__}.step(): it is to run forward and "
            "backward, and nothing after. Nothing was changed."
        )

    handles = [optimizer.register_step_pre_hook(refuse) for optimizer in optimizers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
