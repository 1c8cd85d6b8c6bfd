"""What is watched beside the steps: modules, the parameters that no optimizer has, and what each step began with."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tbnum.explain.facts import Known
from tbnum.explain.kinds import explained_event
from tbnum.log.schema import Event
from tbnum.observe.activations import ActivationWatch
from tbnum.observe.buffers import BufferWatch
from tbnum.observe.caller import warn
from tbnum.observe.coverage import Coverage
from tbnum.observe.float8 import Float8Watch, has_float8
from tbnum.observe.gradients import parameters_of
from tbnum.observe.interval_watch import IntervalWatch, IntervalWatches
from tbnum.observe.ranks import rank_and_world_size
from tbnum.observe.rewind import Moment, StepStarts
from tbnum.observe.sentinels import Sentinels
from tbnum.observe.steps import StepObserver
from tbnum.observe.unused import likely_reason
from tbnum.recorder import Recorder

__all__ = ["Watching"]

MOST_NAMES = 8  # of parameters, in an event


class Watching:
    """Goes on from step to step with the observer of the steps. Holds models and optimizers weakly."""

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | Callable[[], float] | None,
        modules: Mapping[str, nn.Module],
        activations: bool | Sequence[str],
        interval: int,
    ) -> None:
        self.sentinels = Sentinels(modules) if modules else None
        self.at_intervals = _at_intervals(modules, activations, interval)
        if self.at_intervals is not None:
            self.at_intervals.step_begins(0)
        devices = {parameter.device for each in optimizers.values() for parameter in parameters_of(each)}
        self._buffers: BufferWatch | None = None
        self._watches: list[Sentinels | IntervalWatches | BufferWatch] = [
            each for each in (self.sentinels, self.at_intervals) if each is not None
        ]
        self._starts = StepStarts(scaler if isinstance(scaler, torch.amp.GradScaler) else None, devices)
        self._interval = interval
        self._coverage = Coverage(modules, optimizers.values())
        self._uncovered: dict[str, Any] | None = None  # not in the record yet: only a step knows where a session begins
        self._next_step = 0
        self._look_at_coverage(0)

    def watch_buffers(self, modules: Mapping[str, nn.Module], observer: StepObserver, recorder: Recorder) -> None:
        """Have `observer` report buffers that become non-finite."""
        if modules:
            report = functools.partial(observer.observe, "nonfinite_buffers")
            self._buffers = BufferWatch(modules, self._interval, lambda: recorder.skipped_steps, report)
            self._watches.append(self._buffers)

    def step_closes(self, next_step: int, observer: StepObserver) -> None:
        """The step before `next_step` is about to close."""
        self._next_step = next_step
        at_interval = next_step % self._interval == 0
        if at_interval:
            self._look_at_coverage(next_step - 1)
        if self._uncovered is not None:
            observer.observe("untrained_parameters", self._uncovered)
            self._uncovered = None
        self._starts.step_begins(observer.scaler)
        for watch in self._watches:
            if watch.is_awake or at_interval:
                watch.step_begins(next_step)

    def report_unused(self, name: str, backwards: int, observer: StepObserver) -> None:
        """So many backwards wrote to the gradients of an optimizer that never steps."""
        optimizer = observer.optimizers().get(name)
        reason = None if optimizer is None else likely_reason(optimizer)
        label = name if observer.has_several else None
        observer.observe("never_stepped", {"backwards": backwards, "reason": reason}, label)
        warn(
            f"{backwards} backwards wrote to gradients of {type(optimizer).__name__} that were thrown away: it does "
            f"not step, and nothing is recorded. {reason}"
        )

    def start_of_step(self, *, is_open: bool) -> Moment | None:
        """What the open step began with, or else the last one."""
        return self._starts.open if is_open or self._starts.last is None else self._starts.last

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """What runs in this context is not the training."""
        with contextlib.ExitStack() as stack:
            for watch in self._watches:
                stack.enter_context(watch.muted())
            yield

    def finish(self) -> None:
        """A last look, while events can still be written."""
        if self._buffers is not None:
            self._buffers.reached(self._next_step)
            self._buffers.finish()

    def stop(self) -> None:
        """Take every hook off modules."""
        if self.sentinels is not None:
            self.sentinels.disarm()
        if self.at_intervals is not None:
            self.at_intervals.stop()

    def _look_at_coverage(self, step: int) -> None:
        found = self._coverage.look()
        if found is None or rank_and_world_size()[0]:
            return
        self._uncovered = {
            "names": list(found.names[:MOST_NAMES]),
            "parameters": len(found.names),
            "elements": found.elements,
            "replaced": list(found.replaced[:MOST_NAMES]),
        }
        event = Event(step, time.time(), "untrained_parameters", data=self._uncovered)
        explained = explained_event(Known.of(event), None)
        warn(f"{explained.message} {explained.remedy}")


def _at_intervals(
    modules: Mapping[str, nn.Module], activations: bool | Sequence[str], interval: int
) -> IntervalWatches | None:
    watches: list[IntervalWatch] = [ActivationWatch(modules, activations, interval)] if activations else []
    if has_float8(modules):
        watches.append(Float8Watch(modules, interval))
    return IntervalWatches(watches) if watches else None
