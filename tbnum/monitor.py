"""`wrap` and `Monitor`: the one place that composes observing, the log and the dashboards."""

from __future__ import annotations

import atexit
import functools
import hashlib
import math
import os
import platform
import sys
import time
import uuid
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from tbnum._version import __version__
from tbnum.explain import LiveExplainer
from tbnum.explain.repeats import divergence, fingerprint
from tbnum.explain.resume import OptimizerNow, lost_state, starting_step
from tbnum.log.dashboards import Dashboards
from tbnum.log.reader import Run, session_metas
from tbnum.log.schema import FORMAT_VERSION, Event, step_columns
from tbnum.log.tensors import HistogramTable, TensorTable
from tbnum.log.writer import LogWriter
from tbnum.measure.clip import clip_grad_norm_
from tbnum.observe.caller import users_stacklevel
from tbnum.observe.clipping import observe_clipping
from tbnum.observe.grad_scaler import observe_scaler
from tbnum.observe.gradients import parameters_of
from tbnum.observe.optimizer import observe_optimizer
from tbnum.observe.ranks import rank_and_world_size
from tbnum.observe.records import OptimizerRecord, Sighting, StepRecord
from tbnum.observe.steps import StepObserver
from tbnum.observe.transfer import hold

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["Monitor", "wrap"]

_STATE_VERSION = 1
MAX_NAMES_IN_META = 1000
MAX_DRAWN_TENSORS = 512  # of a larger model the dashboards get the whole alone; the record has every tensor
FLIGHT_STEPS = 32  # whose per-tensor norms stay in memory, to be written around an event

_monitors: weakref.WeakSet[Monitor] = weakref.WeakSet()  # those that are open


@atexit.register  # before the log closes itself: finalizers were registered earlier, and run later
def _at_exit() -> None:
    for monitor in list(_monitors):
        monitor._at_exit()


def wrap(
    optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
    scaler: torch.amp.GradScaler | None = None,
    *,
    logdir: str | os.PathLike[str] | None = None,
    writer: SummaryWriter | None = None,
    model: nn.Module | Mapping[str, nn.Module] | None = None,
    tensor_interval: int = 50,
    histogram_interval: int = 1000,
    scalar_interval: int = 10,
    config: Mapping[str, Any] | None = None,
) -> Monitor:
    """Record every step of a training loop; the loop stays as it is.

        monitor = tbnum.wrap(optimizer, scaler, model=model, logdir="runs/gpt")

    Optimizer and scaler are hooked in place and stay the same objects; training with tbnum is bitwise the training
    without it. Wrapping the same objects again gives the same monitor.

    Args:
        optimizer: a torch Optimizer, or a mapping of names to several. A wrapper around one is unwrapped.
        scaler: the GradScaler that scales their losses, any subclass, enabled or not; or None.
        logdir: folder of the run. tbnum opens the run's `SummaryWriter` there, as `monitor.writer`.
        writer: a `SummaryWriter` of yours instead; tbnum writes its scalars through it and its record beside it.
        model: gives the tensors their names. Without it they are `group0.param3`.
        tensor_interval: steps between measurements that need more than the gradients (`param_norm`, `update_norm`).
        scalar_interval: steps between scalars for TensorBoard's own dashboards. The record holds every step.
        config: settings of yours to keep with the run, as JSON can hold them.

    Costs:
        One pass over the gradients a step, and every `tensor_interval` steps a copy of the parameters and two
        passes over them. No host-device sync. Files are written by a thread in the background.

    Raises:
        TypeError: an object that is no optimizer, scaler, writer or module.
        ValueError: both or neither of `logdir` and `writer`; an optimizer without parameters; a model that
            shares no parameter with the optimizer; a URL; an interval below 1.
        OSError: the folder cannot be written to.
    """
    optimizers = _optimizers(optimizer)
    _check_scaler(scaler)
    modules = _modules(model, optimizers)
    intervals = {
        "tensor_interval": tensor_interval,
        "histogram_interval": histogram_interval,
        "scalar_interval": scalar_interval,
    }
    for name, interval in intervals.items():
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ValueError(f"{name} is {interval!r}; it must be a whole number of steps, at least 1.")
    folder = _folder(logdir, writer)
    known = _already_wrapped(optimizers, scaler, folder)
    if known is not None:
        return known
    monitor = Monitor(
        optimizers,
        scaler,
        folder=folder,
        writer=writer,
        modules=modules,
        tensor_interval=tensor_interval,
        histogram_interval=histogram_interval,
        scalar_interval=scalar_interval,
        config=dict(config or {}),
    )
    monitor._recorder.look_for_a_repeat()
    return monitor


class Monitor:
    """What `tbnum.wrap` returns. A context manager; recording ends with `close()`, or with the optimizer.

    It need not be kept: the hooks go on without it.
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
        *,
        folder: Path,
        writer: SummaryWriter | None,
        modules: Mapping[str, nn.Module],
        tensor_interval: int,
        histogram_interval: int,
        scalar_interval: int,
        config: Mapping[str, Any],
    ) -> None:
        self._recorder = _Recorder(optimizers, scaler, folder, writer, modules, scalar_interval, config)
        self._observer = StepObserver(
            optimizers,
            scaler,
            on_step=self._recorder.on_step,
            on_sighting=self._recorder.on_sighting,
            on_first_step=functools.partial(_first_step, weakref.ref(self)),
            verify_interval=scalar_interval,
            tensor_interval=tensor_interval,
            histogram_interval=histogram_interval,
        )
        self._state: dict[str, Any] | None = None  # of a checkpoint, until the next step
        self._scaler = None if scaler is None else weakref.ref(scaler)
        self._releases: list[Callable[[], None]] = []
        try:
            for each in optimizers.values():
                self._releases.append(observe_optimizer(each, self._observer, owner=self))
            self._releases.append(observe_clipping(self._observer))
            if scaler is not None:
                self._releases.append(observe_scaler(scaler, self._observer))
        except BaseException:
            self._release()
            self._recorder.close()
            raise
        _monitors.add(self)

    @property
    def writer(self) -> SummaryWriter | None:
        """The run's `SummaryWriter`, for values of your own. None in a process of rank 1 and up: one writes for all."""
        return self._recorder.summary_writer

    @property
    def logdir(self) -> Path:
        """The folder of the run."""
        return self._recorder.folder

    @property
    def step(self) -> int:
        """Number of the next step."""
        return self._observer.next_step

    @property
    def skipped_steps(self) -> int:
        """Skips known so far. On a device a step may be known a little after it closed."""
        self._observer.drain()
        return self._recorder.skipped_steps

    def log_loss(self, loss: Tensor | float) -> None:
        """Tell the loss of this step, where there is no enabled scaler to see it.

        Called several times in a step (accumulation), the losses add up, as those of `scaler.scale` do. A loss
        that is not a single number is summed. No host sync.

        Raises:
            TypeError: `loss` is neither a tensor nor a number.
        """
        if isinstance(loss, Tensor) and not loss.is_complex():
            loss = loss.detach()
            self._observer.loss_logged(hold(loss if loss.numel() == 1 else loss.double().sum()))
        elif isinstance(loss, (int, float)):
            self._observer.loss_logged(float(loss))
        else:
            raise TypeError(f"log_loss() takes a real tensor or a number, not {type(loss).__name__}: {loss!r}.")

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip the gradients of all wrapped parameters together; see `tbnum.clip_grad_norm_`.

        With an enabled scaler, gradients that still carry the loss scale are unscaled first.
        """
        if not float(max_norm) >= 0:
            clip_grad_norm_([], max_norm)  # its error, before anything is unscaled
        scaler = self._observer.scaler
        optimizers = self._observer.optimizers().values()
        if scaler is not None:
            for optimizer in optimizers:
                if _carries_the_scale(scaler, optimizer):
                    scaler.unscale_(optimizer)
        parameters = [each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]]
        return clip_grad_norm_(parameters, max_norm)

    def annotate(self, text: str, **data: Any) -> None:
        """A note at the current step, shown in the panel. `data` is kept with it, as JSON can hold it."""
        self._observer.sight("annotation", {**data, "text": str(text)})

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Call `callback(event)` for each event as it becomes known, explained by what is known then.

        It runs on the training thread. An exception in it is reported once and does not reach the loop.
        """
        if not callable(callback):
            raise TypeError(f"on_event() takes a function of one event, not {callback!r}.")
        self._recorder.callbacks.append(callback)

    def flush(self) -> None:
        """Everything up to here is on disk when this returns. Waits for the device and for the disk."""
        self._observer.drain(wait=True)
        self._recorder.flush()

    def close(self) -> None:
        """Take every hook off, write what is left and close the files. A second call does nothing."""
        if self not in _monitors:
            return
        _monitors.discard(self)
        self._release()
        self._observer.finish()
        self._recorder.close()

    def _at_exit(self) -> None:
        """Nobody called close(): write what devices still hold, and why the interpreter ends where it tells."""
        self._observer.drain(wait=True)
        error = getattr(sys, "last_value", None)  # of an exception that nobody caught
        if error is not None:
            self._observer.sight("crash", {"error": _told(error)})
        self._recorder.write_flight()

    def _first_step(self) -> None:
        """Before the first step of a session: whether it continues a run, where, and what its checkpoint lost."""
        past = self._recorder.past()
        if past is None:
            return
        state, self._state = self._state, None
        several = len(self._observer.optimizers()) > 1
        optimizers = [_now(each, name if several else None) for name, each in self._observer.optimizers().items()]
        if state is None:
            step, how = starting_step(past, optimizers)
            if how == "fresh":
                return
            self._observer.next_step = step
            self._recorder.resumed(step, int(np.count_nonzero(past.steps["skipped"][past.steps["step"] < step])))
        else:
            step, how = state["step"], "monitor state"
        scaler = self._observer.scaler
        scale = None if scaler is None else scaler.get_scale()  # waits for the device, once in a continued session
        previous = None if state is None else state.get("session")
        self._observer.sight("resume", {"from_step": step, "how": how, "previous_session": previous})
        expected = None if state is None else state.get("loss_scale")
        for kind, optimizer, data in lost_state(past, step, optimizers, scale, expected):
            self._observer.sight(kind, data, optimizer)
        self._recorder.redraw(past, step)

    def _release(self) -> None:
        for release in self._releases:
            release()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs so that a resumed run goes on in the same record."""
        self._observer.drain(wait=True)
        scaler = None if self._scaler is None else self._scaler()
        return {
            "version": _STATE_VERSION,
            "step": self.step,
            "skipped_steps": self._recorder.skipped_steps,
            "session": self._recorder.session,
            "loss_scale": scaler.get_scale() if scaler is not None and scaler.is_enabled() else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the checkpoint with this state was written: steps recorded after it are superseded.

        Raises:
            ValueError: not a state of a monitor, or one of a newer tbnum.
        """
        version = state.get("version") if isinstance(state, Mapping) else None
        if version != _STATE_VERSION or not isinstance(state.get("step"), int):
            raise ValueError(
                f"this is no state of a tbnum monitor that tbnum {__version__} can read (version {version!r}, "
                f"expected {_STATE_VERSION}): pass what monitor.state_dict() gave, or leave it out to start at step 0."
            )
        self._observer.next_step = state["step"]
        self._state = dict(state)
        self._recorder.resumed(state["step"], int(state.get("skipped_steps", 0)))
        self._observer.expect_first_step(functools.partial(_first_step, weakref.ref(self)))

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (Exception, KeyboardInterrupt)):
            self._observer.sight("crash", {"error": _told(error)})
        self.close()


def _first_step(ref: weakref.ref[Monitor]) -> None:
    monitor = ref()
    if monitor is not None:
        monitor._first_step()


class _Recorder:
    """Turns steps and sightings into rows and events, and hands them to the log, the dashboards and callbacks."""

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
        folder: Path,
        writer: SummaryWriter | None,
        modules: Mapping[str, nn.Module],
        scalar_interval: int,
        config: Mapping[str, Any],
    ) -> None:
        rank, world_size = rank_and_world_size()
        self.names = _Names(optimizers, modules)
        self.callbacks: list[Callable[[Event], None]] = []
        self.skipped_steps = 0
        self.session = uuid.uuid4().hex
        self.folder = folder
        self._groups = {name: len(each.param_groups) for name, each in optimizers.items()}
        meta = {
            "format_version": FORMAT_VERSION,
            "session": self.session,
            "start_time": time.time(),
            "first_step": 0,
            "optimizers": {name: _described(each) for name, each in optimizers.items()},
            "parameters": self.names.with_shapes(),
            "scaler": _settings(scaler),
            "seed": torch.initial_seed(),
            "config": dict(config),
            "versions": {"tbnum": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "rank": rank,
            "world_size": world_size,
        }
        meta["fingerprint"] = fingerprint(meta)
        self._fingerprint = meta["fingerprint"]
        self._explainer = LiveExplainer(meta)
        self._log = LogWriter(folder, columns=step_columns(self._groups), meta=meta, rank=rank)
        own_writer = _opened_writer(folder) if writer is None and not rank else None
        self.summary_writer = own_writer if writer is None else writer
        self._own_writer = own_writer
        self._dashboards = None if self.summary_writer is None else Dashboards(self.summary_writer, scalar_interval)
        # The end of the optimizer is the end of the recording, also where nobody called close().
        weakref.finalize(self, _finish, self._log, own_writer)
        self._callback_failed = False
        self._flight: deque[tuple[int, str, np.ndarray]] = deque(maxlen=FLIGHT_STEPS * len(optimizers))

    # -- from the observer ---------------------------------------------------------------------------------------

    def on_step(self, record: StepRecord) -> None:
        columns, row = self._row(record)
        self.skipped_steps += record.skipped
        self._log.append_step(row)
        skipped_total, dashboards = self.skipped_steps, self._dashboards
        if dashboards is not None:
            self._log.submit(lambda: dashboards.step(columns, row, skipped_total))
        self._explainer.step(columns, row)
        for name, one in record.optimizers.items():
            self._write_tensors(record.step, record.wall_time, name, one)
            kind = _kind_of_step(one)
            if kind is not None:
                data = _facts_of_step(kind, record, one)
                if one.nonfinite_rows:
                    data["nonfinite_names"] = self.names.names_of(name, one.nonfinite_rows[:8])
                self._event(Event(record.step, record.wall_time, kind, optimizer=self._label(name), data=data))

    def on_sighting(self, sighting: Sighting) -> None:
        self._event(
            Event(
                sighting.step, sighting.wall_time, sighting.kind, optimizer=sighting.optimizer, data=dict(sighting.data)
            )
        )

    def _event(self, event: Event) -> None:
        self._log.write_event(event)
        for explained in [self._explainer.event(event), *self._explainer.derived()]:
            for callback in self.callbacks:
                self._call(callback, explained)
            if explained.severity != "info":
                self.write_flight()

    # -- tensor by tensor ----------------------------------------------------------------------------------------

    def _write_tensors(self, step: int, wall_time: float, name: str, one: OptimizerRecord) -> None:
        if one.grad_norms is None:
            return
        label = self._label(name)
        if not one.columns:
            self._flight.append((step, name, one.grad_norms))
            return
        names = self.names.names_of(name)
        columns = {"grad_norm": one.grad_norms, **one.columns}
        reason = "failure" if one.skipped or one.nonfinite_rows else "interval"
        self._log.write_tensors(TensorTable(step, names, columns, label, reason))
        absmax = {"gradient": one.columns.get("absmax")}
        for source, counts in one.tensor_histograms.items():
            table = _histogram_table(step, names, source, counts, absmax.get(source))
            self._log.write_histogram(table)
            if len(names) <= MAX_DRAWN_TENSORS:
                self._draw(table, wall_time, [f"tbnum/{source}/{each}" for each in names])
        for source, counts in one.histograms.items():
            everything = f"{label}/*" if label else "*"
            table = _histogram_table(step, (everything,), source, counts[None], None)
            self._log.write_histogram(table)
            self._draw(table, wall_time, [f"tbnum/{label}/{source}" if label else f"tbnum/{source}"])

    def _draw(self, table: HistogramTable, wall_time: float, tags: list[str]) -> None:
        """In TensorBoard's own histogram dashboards; about 0.1 ms a tag, on the thread of the log."""
        dashboards = self._dashboards
        if dashboards is not None:
            self._log.submit(lambda: _draw_each(dashboards, table, wall_time, tags))

    def write_flight(self) -> None:
        """The steps of late that were not written yet, each once."""
        names: dict[str, tuple[str, ...]] = {}
        for step, name, grad_norms in self._flight:
            if name not in names:
                names[name] = self.names.names_of(name)
            if len(names[name]) == len(grad_norms):  # else a group was added since
                table = TensorTable(step, names[name], {"grad_norm": grad_norms}, self._label(name), "flight")
                self._log.write_tensors(table)
        self._flight.clear()

    def _call(self, callback: Callable[[Event], None], event: Event) -> None:
        try:
            callback(event)
        except Exception as error:
            if not self._callback_failed:
                self._callback_failed = True
                warnings.warn(
                    f"a callback given to monitor.on_event() raised {type(error).__name__}: {error}; "
                    "training goes on, and so do the callbacks.",
                    RuntimeWarning,
                    stacklevel=users_stacklevel(),
                )

    def _row(self, record: StepRecord) -> tuple[tuple[str, ...], tuple[float | bool, ...]]:
        groups = {
            name: max(count, len(record.optimizers[name].lr) if name in record.optimizers else 0)
            for name, count in self._groups.items()
        }
        if groups != self._groups:  # a parameter group was added
            self._groups = groups
            self._log.set_columns(step_columns(groups))
        values: list[float | bool] = [
            record.step,
            record.wall_time,
            record.loss,
            record.micro_batches,
            record.loss_scale,
            record.growth_tracker,
        ]
        if len(groups) > 1:
            values.append(record.skipped)
        for name, count in groups.items():
            one = record.optimizers.get(name, _ABSENT)
            lr = one.lr + [math.nan] * (count - len(one.lr))
            values += [one.grad_norm, one.grad_norm_clipped, one.clip_coef, one.max_norm, one.skipped]
            values += [one.nonfinite_tensors, *lr, one.param_norm, one.update_norm]
        return self._log.columns, tuple(values)

    def _label(self, optimizer: str) -> str | None:
        return optimizer if len(self._groups) > 1 else None

    # -- from the monitor ----------------------------------------------------------------------------------------

    def resumed(self, step: int, skipped_steps: int) -> None:
        self.skipped_steps = skipped_steps
        self._log.update_meta(first_step=step)

    def look_for_a_repeat(self) -> None:
        """Say so where a run beside this one had the same seed and settings, and was lost.

        Costs a look at the head of the files in each folder beside this one (0.1 ms a file; not below them, for a
        parent folder may hold anything); a run that is alike is read.
        """
        try:
            folders = [entry.path for entry in os.scandir(self.folder.absolute().parent) if entry.is_dir()]
            for folder in sorted(folders):
                if os.path.samefile(folder, self.folder):
                    continue
                if any(meta.get("fingerprint") == self._fingerprint for meta in session_metas(folder)):
                    lost = divergence(Run(folder))
                    if lost is not None:
                        self._say_repeat(os.path.basename(folder), *lost)
                        return
        except Exception:  # somebody else's log, in whatever state, is no reason for this run not to start
            return

    def _say_repeat(self, run: str, step: int, why: str) -> None:
        event = Event(0, time.time(), "repeat_of_diverged_run", data={"run": run, "at_step": step, "why": why})
        self._event(event)
        warnings.warn(self._explainer.event(event).message, RuntimeWarning, stacklevel=users_stacklevel())

    def past(self) -> Run | None:
        """What earlier sessions recorded in this folder; None where there were none."""
        run = Run(self.folder)
        return run if len(run.meta.get("sessions", [])) > 1 and run.steps else None

    def redraw(self, past: Run, step: int) -> None:
        """TensorBoard's own dashboards forget what this session does again, where the event file is ours alone."""
        dashboards, before = self._dashboards, past.steps["step"] < step
        if dashboards is None or self._own_writer is None or not before.any():
            return
        known = {name: values[before] for name, values in past.steps.items()}
        columns = tuple(name for name, values in known.items() if not np.isnan(values).all())
        row = tuple(known[name][-1] for name in columns)
        skipped_total = self.skipped_steps
        self._log.submit(lambda: dashboards.resume(step, columns, row, skipped_total))

    def flush(self) -> None:
        self._log.flush()
        if self._own_writer is not None:
            self._own_writer.flush()

    def close(self) -> None:
        self.write_flight()
        _finish(self._log, self._own_writer)


def _now(optimizer: torch.optim.Optimizer, name: str | None) -> OptimizerNow:
    counts = [state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
    return OptimizerNow(
        name=name,
        has_state=len(optimizer.state) > 0,
        updates=int(max(float(count) for count in counts)) if counts else None,
        stateless=type(optimizer) is torch.optim.SGD and not any(group["momentum"] for group in optimizer.param_groups),
        lr=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
    )


def _told(error: BaseException) -> str:
    return ": ".join(filter(None, (type(error).__name__, str(error))))


_ABSENT = OptimizerRecord()


def _draw_each(dashboards: Dashboards, table: HistogramTable, wall_time: float, tags: list[str]) -> None:
    for name, tag in zip(table.names, tags, strict=True):
        dashboards.histogram(tag, table.row(name), table.step, wall_time)


def _histogram_table(
    step: int, names: tuple[str, ...], source: str, counts: np.ndarray, absmax: np.ndarray | None
) -> HistogramTable:
    unknown = np.full(len(names), math.nan)
    if counts.max() < 2**31:
        counts = counts.astype(np.int32)  # half the memory while it waits to be written
    return HistogramTable(step, names, source, counts, unknown, unknown if absmax is None else absmax)


def _finish(log: LogWriter, own_writer: SummaryWriter | None) -> None:
    log.close()
    if own_writer is not None:
        own_writer.close()


def _kind_of_step(one: OptimizerRecord) -> str | None:
    if one.skipped:
        return "skip"
    if one.nonfinite_tensors > 0 or one.nonfinite_after > 0:
        return "nonfinite_step"
    return "norm_overflow" if math.isinf(one.grad_norm) else None


def _facts_of_step(kind: str, record: StepRecord, one: OptimizerRecord) -> dict[str, Any]:
    data: dict[str, Any] = {
        "loss": record.loss,
        "loss_scale": record.loss_scale,
        "grad_norm": one.grad_norm,
        "nonfinite_tensors": one.nonfinite_tensors,
        "tensors": one.tensors,
        "micro_batches": record.micro_batches,
    }
    if kind == "skip":
        data["new_scale"] = record.new_scale
    if kind == "nonfinite_step":
        data["nonfinite_tensors"] = max(one.nonfinite_tensors, one.nonfinite_after)
    if one.parameters_nonfinite is not None:
        data["params_nonfinite"] = one.parameters_nonfinite
    return data


class _Names:
    """Names of parameters: the model's where there is one, else their place in the optimizer."""

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer], modules: Mapping[str, nn.Module]) -> None:
        self._modules = {name: weakref.ref(module) for name, module in modules.items()}
        self._optimizers = {name: weakref.ref(optimizer) for name, optimizer in optimizers.items()}

    def with_shapes(self) -> dict[str, list[int]] | None:
        """Names and shapes; None where there are too many for the head of the log. The tensors' file has the names."""
        shapes: dict[str, list[int]] = {}
        for name, ref in self._optimizers.items():
            optimizer = ref()
            parameters = [] if optimizer is None else parameters_of(optimizer)
            if len(parameters) > MAX_NAMES_IN_META:
                return None
            shapes |= dict(zip(self.names_of(name), (list(each.shape) for each in parameters), strict=True))
        return shapes

    def names_of(self, optimizer: str, rows: Iterable[int] | None = None) -> tuple[str, ...]:
        """The names of an optimizer's parameters, in its order; with `rows` only of those.

        Looked up anew each time, for parameters may be added or replaced: for events and intervals, not every step.
        """
        alive = self._optimizers[optimizer]()
        if alive is None:
            return ()
        known: dict[int, str] = {}
        for prefix, ref in self._modules.items():
            module = ref()
            for name, parameter in () if module is None else module.named_parameters():
                known.setdefault(id(parameter), f"{prefix}.{name}" if prefix else name)
        label = f"{optimizer}." if len(self._optimizers) > 1 else ""
        names = [
            known.get(id(parameter)) or f"{label}group{number}.param{place}"
            for number, group in enumerate(alive.param_groups)
            for place, parameter in enumerate(group["params"])
        ]
        return tuple(names if rows is None else [names[row] for row in rows])


# -- what wrap() was given ---------------------------------------------------------------------------------------------


def _optimizers(given: Any) -> dict[str, torch.optim.Optimizer]:
    if not isinstance(given, Mapping):
        return {"optimizer": _checked_optimizer(given, "optimizer")}
    if not given:
        raise ValueError("optimizer is an empty mapping; give at least one optimizer.")
    for name in given:
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"an optimizer's name must be a text without '/', since it begins column names: {name!r}.")
    found = {name: _checked_optimizer(each, f"optimizer[{name!r}]") for name, each in given.items()}
    if len({id(each) for each in found.values()}) < len(found):
        raise ValueError(f"the same optimizer was given under several names: {', '.join(found)}.")
    return found


def _checked_optimizer(given: Any, what: str) -> torch.optim.Optimizer:
    seen: list[Any] = []
    inner = given
    while not isinstance(inner, torch.optim.Optimizer):
        seen.append(inner)
        inner = getattr(inner, "optimizer", None) or getattr(inner, "_optimizer", None)
        if inner is None or any(inner is each for each in seen):
            raise TypeError(
                f"{what} is {type(given).__name__} ({given!r:.80}), which is no torch.optim.Optimizer and wraps none; "
                "pass the optimizer whose step() the loop calls."
            )
    if not any(group["params"] for group in inner.param_groups):
        raise ValueError(f"{what} ({type(inner).__name__}) has no parameters; wrap it after they were added.")
    return inner


def _check_scaler(scaler: Any) -> None:
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        hint = " Loggers go to writer=, folders to logdir=." if isinstance(scaler, (str, os.PathLike)) else ""
        raise TypeError(
            f"scaler is {type(scaler).__name__} ({scaler!r:.80}), not a torch.amp.GradScaler; "
            f"pass the scaler of the loop, or None where there is none.{hint}"
        )


def _modules(model: Any, optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, nn.Module]:
    if model is None:
        return {}
    modules = dict(model) if isinstance(model, Mapping) else {"": model}
    for name, module in modules.items():
        if not isinstance(module, nn.Module):
            what = f"model[{name!r}]" if name else "model"
            raise TypeError(f"{what} is {type(module).__name__} ({module!r:.80}), not a torch.nn.Module.")
    groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    trained = {id(each) for group in groups for each in group["params"]}
    if not any(id(parameter) in trained for module in modules.values() for parameter in module.parameters()):
        kinds = ", ".join(type(module).__name__ for module in modules.values())
        raise ValueError(
            f"model ({kinds}) shares no parameter with the optimizer, so it cannot name its tensors; pass the model "
            "that the optimizer was built from (and build the optimizer after the model was moved or converted)."
        )
    return modules


def _folder(logdir: Any, writer: Any) -> Path:
    if (logdir is None) == (writer is None):
        both = "both" if logdir is not None else "neither"
        raise ValueError(
            f"wrap() takes exactly one of logdir= and writer=, and got {both} (logdir={logdir!r}, writer={writer!r}): "
            "logdir='runs/name' lets tbnum open the run's SummaryWriter, writer= uses yours."
        )
    if writer is not None:
        if not callable(getattr(writer, "add_scalar", None)) or not hasattr(writer, "file_writer"):
            raise TypeError(
                f"writer is {type(writer).__name__} ({writer!r:.80}), not a torch.utils.tensorboard.SummaryWriter; "
                "for a folder use logdir=."
            )
        logdir = writer.log_dir
    if not isinstance(logdir, (str, os.PathLike)):
        raise TypeError(f"logdir is {type(logdir).__name__} ({logdir!r:.80}), not a path.")
    path = os.fspath(logdir)
    if isinstance(path, bytes) or not path:
        raise ValueError(f"logdir is {path!r}; give the path of a folder as text.")
    if "://" in path:
        raise ValueError(f"logdir is {path!r}: tbnum writes to local folders only; write locally and copy or mount it.")
    return Path(path).expanduser()


def _already_wrapped(
    optimizers: Mapping[str, torch.optim.Optimizer], scaler: torch.amp.GradScaler | None, folder: Path
) -> Monitor | None:
    for monitor in list(_monitors):
        held = monitor._observer.optimizers()
        its_scaler = None if monitor._scaler is None else monitor._scaler()
        shared = {id(each) for each in held.values()} & {id(each) for each in optimizers.values()}
        if not shared and (scaler is None or its_scaler is not scaler):
            continue
        same = {id(each) for each in held.values()} == {id(each) for each in optimizers.values()}
        if not same or its_scaler is not scaler:
            raise ValueError(
                f"some of these objects are recorded already, by a monitor that writes to {str(monitor.logdir)!r} "
                f"(optimizers {', '.join(held)}; scaler {type(its_scaler).__name__}). Wrap all of them in one call, "
                "or close() that monitor first."
            )
        if folder.absolute() != monitor.logdir.absolute():
            warnings.warn(
                f"these objects are wrapped already and go on writing to {str(monitor.logdir)!r}; "
                f"close() that monitor first to write to {str(folder)!r}.",
                RuntimeWarning,
                stacklevel=users_stacklevel(),
            )
        return monitor
    return None


def _opened_writer(folder: Path) -> SummaryWriter:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


def _carries_the_scale(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    state = scaler._per_optimizer_states.get(id(optimizer))
    return (state is None or state["stage"].name == "READY") and any(
        each.grad is not None for group in optimizer.param_groups for each in group["params"]
    )


def _described(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parameters = parameters_of(optimizer)
    shapes = str([tuple(each.shape) for each in parameters])
    settings = [
        {key: _plain(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]
    return {
        "class": type(optimizer).__name__,
        "groups": settings,
        "parameters": len(parameters),
        "shapes": hashlib.sha256(shapes.encode()).hexdigest()[:16],
    }


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and value.device.type == "cpu" else str(value.dtype)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _settings(scaler: torch.amp.GradScaler | None) -> dict[str, Any] | None:
    if scaler is None:
        return None
    if not scaler.is_enabled():
        return {"class": scaler.__class__.__name__, "enabled": False}
    return {
        "class": scaler.__class__.__name__,
        "enabled": True,
        "device": str(scaler._device),
        "init_scale": float(scaler._init_scale),
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
    }
