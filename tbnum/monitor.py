"""`wrap` and `Monitor`: the one place that composes observing, the log and the dashboards."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from tbnum.arguments import (
    NEVER,
    check_loss_name,
    check_no_unknown,
    check_verbose,
    checked_folder,
    checked_modules,
    checked_optimizers,
    checked_scaler,
)
from tbnum.explain import explain_run
from tbnum.lifecycle import (
    OfThisProcess,
    already_wrapped,
    crash_facts,
    is_over,
    open_monitors,
    warn_of_other_options,
)
from tbnum.log.schema import Event
from tbnum.measure.clip import check_max_norm, clip_grad_norm_
from tbnum.monitor_state import checked_state, state_of
from tbnum.observe.backward import observe_backward
from tbnum.observe.caller import users_place, warn
from tbnum.observe.clipping import observe_clipping
from tbnum.observe.grad_scaler import observe_scalers
from tbnum.observe.gradients import Gradients, carries_scale, parameters_of
from tbnum.observe.loader import BatchIds
from tbnum.observe.meter import checksums_left
from tbnum.observe.optimizer import observe_optimizer
from tbnum.observe.ranks import rank_and_world_size
from tbnum.observe.replay import Origin, replay
from tbnum.observe.shards import Layouts
from tbnum.observe.steps import StepObserver
from tbnum.observe.transfer import Number, hold
from tbnum.observe.zero_grad import observe_zero_grad
from tbnum.options import Options, checked_options
from tbnum.recorder import Recorder
from tbnum.resuming import go_on
from tbnum.run import Run
from tbnum.terminal import announce, print_live
from tbnum.watching import Watching

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["Monitor", "wrap"]

VERIFY_INTERVAL = 10  # steps between second passes over clipped gradients, where no scalar is written either


def wrap(
    optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
    scaler: Any = None,
    *,
    logdir: str | os.PathLike[str] | None = None,
    writer: SummaryWriter | None = None,
    model: nn.Module | Mapping[str, nn.Module] | None = None,
    tensor_interval: int | None = 50,
    histogram_interval: int | None = 1000,
    checksums: bool = True,
    activations: bool | Sequence[str] = False,
    scalar_interval: int | None = 10,
    tensorboard_tensors: bool = False,
    max_tensor_bytes: int = 256_000_000,
    flush_seconds: float = 2.0,
    ranks: str | int = "all",
    data: Any = None,
    data_ids: str = "events",
    config: Mapping[str, Any] | None = None,
    verbose: bool | None = None,
    **unknown: NoReturn,
) -> Monitor:
    """Record every step of a training loop; the loop stays as it is.

        monitor = tbnum.wrap(optimizer, scaler, model=model, logdir="runs/gpt")

    Optimizer and scaler are hooked in place and stay the same objects; training with tbnum is bitwise the training
    without it. Wrapping the same objects again gives the same monitor.

    Args:
        optimizer: a torch Optimizer, or a mapping of names to several. A wrapper around one is unwrapped.
        scaler: the GradScaler that scales their losses, any subclass, enabled or not, or an object around one; or, in
            a loop that scales by itself, a function that gives what the loss is multiplied by now; or None.
        logdir: folder of the run. tbnum opens the run's `SummaryWriter` there, as `monitor.writer`.
        writer: a `SummaryWriter` of yours instead; tbnum writes its scalars through it and its record beside it.
        model: gives the tensors their names. Without it they are `group0.param3`.
        tensor_interval: steps between measurements that need more than the gradients (`param_norm`, `update_norm`).
        histogram_interval: steps between histograms of each tensor; that of all of them comes with `tensor_interval`.
            None turns an interval off.
        checksums: False to take none. They are taken with `tensor_interval`, and where a gradient is not finite, of the
            bits of gradients, parameters and the optimizer's moments: `tbnum diff` finds where two runs part by them.
        activations: True to measure the outputs of every module, and the gradients with respect to them, with
            `tensor_interval`; or names of modules, with `*` and `?` as in file names. Needs `model`.
        scalar_interval: steps between scalars for TensorBoard's own dashboards; None writes nothing there. The record
            holds every step.
        tensorboard_tensors: True to draw the histograms of single tensors in those dashboards too, under
            `tbnum_tensors/`: a card for each.
        max_tensor_bytes: how much the statistics and histograms of single tensors may take on disk. Those of skips and
            other events come in addition.
        flush_seconds: how often steps are written; more for many ranks on one file system. A skip is written at once.
        ranks: which of several processes record: "all", "first", or how many, the lowest ones. Every rank calls `wrap`
            all the same. The others write a file only for what the recording ranks cannot know: a pipeline's loss, a
            failure that began with them. What then is unknown, as norms of which they have a part, is said.
        data: the DataLoader of a map-style data set that the loop reads. Then the record has which samples each step
            was made of (`run.batch(step)`), where the loop lets that be known.
        data_ids: "events" keeps the ids of steps with up to 64 samples, of larger ones those around events and of the
            last steps, and a hash of every step's; "all" keeps them all.
        config: settings of yours to keep with the run, as JSON can hold them.
        verbose: True to print warnings and errors to standard error as they come; False to print nothing, not even
            the line that says where the run is recorded. Rank 0 alone prints.

    Costs:
        One pass over the gradients a step, none where torch's clipping takes their norms first (without a scaler,
        float32 or float64), and every `tensor_interval` steps a copy of the parameters and two passes over them. No
        host-device sync. Files are written by a thread in the background.

    Raises:
        TypeError: an object that is no optimizer, scaler, writer or module.
        ValueError: both or neither of `logdir` and `writer`; an optimizer without parameters, or one of an engine
            (DeepSpeed's) that steps by itself; a model that shares no parameter with the optimizer; a URL; an interval
            below 1; a name that is a column's or has a "/" in it.
        OSError: the folder cannot be written to.
    """
    if unknown:
        check_no_unknown(wrap, unknown)
    optimizers = checked_optimizers(optimizer)
    its_scaler = checked_scaler(scaler)
    modules = checked_modules(model, optimizers)
    options = checked_options(
        has_model=bool(modules),
        tensor_interval=tensor_interval,
        histogram_interval=histogram_interval,
        checksums=checksums,
        activations=activations,
        scalar_interval=scalar_interval,
        tensorboard_tensors=tensorboard_tensors,
        max_tensor_bytes=max_tensor_bytes,
        flush_seconds=flush_seconds,
        ranks=ranks,
        data=data,
        data_ids=data_ids,
        config=config,
    )
    check_verbose(verbose)
    folder = checked_folder(logdir, writer)
    known = already_wrapped(optimizers, its_scaler, folder, users_place())
    if known is not None:
        warn_of_other_options(known, options, modules)
        return known
    monitor = Monitor(optimizers, its_scaler, folder=folder, writer=writer, modules=modules, options=options)
    given = optimizer if isinstance(optimizer, Mapping) else {"optimizer": optimizer}
    monitor._around = {name for name in optimizers if given[name] is not optimizers[name]}
    if verbose is not False and not rank_and_world_size()[0]:
        announce(monitor.logdir)
        if verbose:
            monitor.on_event(print_live)
    monitor._recorder.look_for_a_repeat()
    return monitor


class Monitor(OfThisProcess):
    """What `tbnum.wrap` returns. A context manager; recording ends with `close()`, or with the optimizer.

    It need not be kept: the hooks go on without it.
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | Callable[[], float] | None,
        *,
        folder: Path,
        writer: SummaryWriter | None,
        modules: Mapping[str, nn.Module],
        options: Options,
    ) -> None:
        self._modules = {name: weakref.ref(module) for name, module in modules.items()}
        self._options = options  # as they were given
        options = options.on(rank_and_world_size()[0])
        self._watching = Watching(optimizers, scaler, modules, options.activations, options.tensor_interval)
        self._recorder = Recorder(optimizers, scaler, folder, writer, modules, options)
        self._recorder.watch(self._watching.sentinels, self._watching.at_intervals)
        takes_checksums = options.checksums and options.tensor_interval is not NEVER
        self._checksum_interval = options.tensor_interval if takes_checksums else None
        self._scale = None if isinstance(scaler, torch.amp.GradScaler) else scaler  # of the loop's own
        scaler = scaler if isinstance(scaler, torch.amp.GradScaler) else None
        self._batch_ids = BatchIds(options.loader, list(modules.values()))
        layouts = Layouts(list(modules.values()), self._recorder.on_layout)
        self._observer = _observer_for(self, optimizers, scaler, self._scale, options, layouts, self._batch_ids)
        self._recorder.call_ahead(functools.partial(_drain_quiet, weakref.ref(self)))
        self._watching.watch_buffers(modules, self._observer, self._recorder)
        self._state: dict[str, Any] | None = None  # of a checkpoint, until the next step
        self._scaler = None if scaler is None else weakref.ref(scaler)
        self._when_written: list[Callable[[], None]] = []
        try:
            self._releases = [*_hooked(optimizers, self._observer, owner=self), self._batch_ids.release]
        except BaseException:
            self._batch_ids.release()
            self._recorder.close()
            raise
        self._earlier_error = id(getattr(sys, "last_value", None))  # of an interactive session, say
        self._wrapped_at = users_place()
        self._calls_after_close: set[str] = set()
        self._has_summed = False  # a loss of several elements
        self._around: Collection[str] = ()  # names of optimizers for which a wrapper was given
        open_monitors.add(self)

    def __repr__(self) -> str:
        state = "recording" if self in open_monitors else "closed"
        counts = f"next step {self.step}, {self._recorder.skipped_steps} skipped"
        return f"<tbnum.Monitor of {str(self.logdir)!r}: {state}, {counts}>"

    def _repr_html_(self) -> str:
        """The run so far, as `tbnum.read` shows it."""
        self.flush()
        return Run(self.logdir, explain=explain_run)._repr_html_()

    @property
    def writer(self) -> SummaryWriter | None:
        """The run's `SummaryWriter`, for values of your own. None in a process of rank 1 and up: one writes for all."""
        return self._recorder.drawings.writer

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

    def log_loss(self, loss: Tensor | float, name: str | None = None) -> None:
        """Report the loss of this attempt, in place of what backward began with; or with `name` a part of it.

        Some loops have another number to show: a loss without its penalty, before it was divided by the
        accumulation or multiplied by the number of tokens, or the mean over ranks. It counts for the attempt that is
        open, or else for the next; with `name` it is the column `loss/<name>` of the step. To be called before
        `optimizer.step()`. Called several times in an attempt (accumulation), the losses of a name add up. A loss that
        is not a single number is summed. No host sync.

        Raises:
            TypeError: `loss` is neither a tensor nor a number.
            ValueError: `name` cannot be the name of a column.
        """
        if is_over(self, "log_loss()"):
            return
        if name is not None:
            check_loss_name(name)
        value = _loss_value(loss)
        if isinstance(loss, Tensor) and loss.numel() != 1 and not self._has_summed:
            self._has_summed = True
            warn(
                f"log_loss() got a tensor of shape {tuple(loss.shape)}, whose elements are summed. Give loss.mean() or "
                "loss.sum(), whichever the curve is to show."
            )
        self._observer.loss_logged(value, name)

    def log_batch(self, ids: Any) -> None:
        """Report which samples this attempt is made of, in place of what is seen of the loader.

        `ids`: whole numbers, a sequence, array or CPU tensor of them; the place of each sample in the data set, say.
        They count for the attempt that is open, or else for the next. Called several times in an attempt
        (accumulation), they add up. `run.batch(step)` gives them.

        Raises:
            TypeError: `ids` are no whole numbers of 64 bits.
        """
        if not is_over(self, "log_batch()"):
            self._batch_ids.log(ids)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip the gradients of all wrapped parameters together; see `tbnum.clip_grad_norm_`.

        With an enabled scaler, gradients that still carry the loss scale are unscaled first.

        Returns:
            The norm before clipping, 0-dim, unscaled.

        Costs:
            Two passes over the gradients, and `unscale_` where it was not called; no host sync.

        Raises:
            TypeError: `max_norm` is no number.
            ValueError: `max_norm` is negative or NaN.
            RuntimeError: at the first step, where `wrap` was given an object around the optimizer and the gradients
                carry the scale: the scaler may step the one or the other.
        """
        check_max_norm(max_norm)  # before anything is unscaled
        if self._observer.scaler is not None:
            _unscale(self._observer.scaler, self._observer, self._around)
        optimizers = self._observer.optimizers().values()
        return clip_grad_norm_([each for optimizer in optimizers for each in parameters_of(optimizer)], max_norm)

    def replay(self, closure: Callable[..., Any], batch: Any = None) -> Origin:
        """Run a forward and backward again with every module watched, and find where the first NaN or inf came from.

            origin = monitor.replay(lambda: scaler.scale(loss_fn(model(x), y)).backward())
            origin = monitor.replay(lambda xy: scaler.scale(loss_fn(model(xy[0]), xy[1])).backward(), (x, y))

        It runs with the scale and the random state of the step that is open, or else of the last one, so that a step
        that was just skipped fails again; nothing of it is recorded. Afterwards parameters, gradients, buffers, random
        state, scaler and optimizer are bit by bit what they were, also where the closure raises.

        Args:
            closure: runs forward and backward, and takes no optimizer step. With `batch`, it is called with a copy.
            batch: tensors whose first dimension is the samples, alone or nested. Then the samples at fault are found;
                where all is finite, `origin.shares` ranks them by their share of the loss and of the gradient norm.

        Costs:
            A copy of parameters and buffers, one more set of gradients, and at least two slow runs of the closure;
            some 100 to rank the samples of a large batch.

        Raises:
            TypeError: `closure` is no function.
            ValueError: no `model` was given to `wrap`; a batch without tensors.
            RuntimeError: several processes train together, or an optimizer steps inside of backward; or the closure
                ran no backward, or stepped an optimizer.
            Exception: whatever the closure raises.
        """
        modules = {name: module for name, ref in self._modules.items() if (module := ref()) is not None}
        return replay(
            closure,
            batch,
            models=modules,
            optimizers=self._observer.optimizers().values(),
            scaler=self._observer.scaler,
            at=self._watching.start_of_step(is_open=self._observer.has_gradients),
            muted=lambda: _muted(self._observer, self._watching),
        )

    def annotate(self, text: str, **data: Any) -> None:
        """A note at the current step, shown in the panel. `data` is kept with it, as JSON can hold it."""
        if is_over(self, "annotate()"):
            return
        self._observer.observe("annotation", {**data, "text": str(text)})

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Call `callback(event)` for each event as it becomes known, explained by what is known then.

        It runs on the training thread. An exception in it is reported once and does not reach the loop, but for
        KeyboardInterrupt and SystemExit. On a device a step may be known a little after it closed.

        Raises:
            TypeError: `callback` cannot be called.
        """
        if not callable(callback):
            raise TypeError(f"on_event() takes a function of one event, not {callback!r}.")
        if not is_over(self, "on_event()"):
            self._recorder.callbacks.add(callback)

    def on_scalars(self, callback: Callable[[int, dict[str, float], float], None]) -> None:
        """Call `callback(step, values, wall_time)` with what TensorBoard's own dashboards get, every `scalar_interval`.

        `values` by tag, `tbnum/loss` and so on. It runs on the log's thread, never on the one that trains. An exception
        in it is counted as `dashboards failed` and does not reach the loop. Without scalars (`scalar_interval=None`, or
        another rank than 0) it is never called.

        Raises:
            TypeError: `callback` cannot be called.
        """
        if not callable(callback):
            raise TypeError(f"on_scalars() takes a function of a step, values and a time, not {callback!r}.")
        if not is_over(self, "on_scalars()"):
            self._recorder.drawings.listen(callback)

    def flush(self) -> None:
        """Everything up to here is on disk when this returns. Waits for the device and for the disk."""
        try:
            self._observer.drain(wait=True)
            self._recorder.write_activations(wait=True)
        except Exception as error:  # a step that cannot be handed on is lost alone
            self._observer.trouble(error)
        self._recorder.flush()

    def __del__(self) -> None:
        """The optimizer is gone, and nobody called close(): hand on what was noted and not written yet."""
        with contextlib.suppress(Exception):
            self._observer.drain(wait=True)

    def close(self) -> None:
        """Take every hook off, write what is left and close the files. A second call does nothing."""
        if self not in open_monitors:
            return
        open_monitors.discard(self)
        for release in self._releases:
            release()
        parts: tuple[Callable[[], object], ...] = (
            self._watching.finish,
            self._observer.finish,
            functools.partial(_write_last_checksums, self._observer, self._recorder, self._checksum_interval),
            functools.partial(self._recorder.write_activations, wait=True),
            self._watching.stop,
            self._recorder.close,
        )
        for part in parts:
            try:
                part()
            except Exception as error:  # one that fails costs itself: the files are closed, and the program goes on
                self._observer.trouble(error)
        for callback in self._when_written:
            callback()

    def call_when_closed(self, release: Callable[[], None]) -> None:
        """`close()` calls `release` as well: for hooks that an integration adds. It may be called twice."""
        self._releases.append(release)

    def call_when_written(self, callback: Callable[[], None]) -> None:
        """`close()` calls `callback` at its end, when all is written."""
        self._when_written.append(callback)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs so that a resumed run goes on in the same record: a few numbers and a text.

        Waits for the device. `torch.save` and `torch.load(weights_only=True)` take it.
        """
        self._observer.drain(wait=True)
        return state_of(self._observer, self._recorder)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the checkpoint with this state was written: steps recorded after it are superseded.

        To be called before the first step of the session, in any order with the other parts of the checkpoint.

        Raises:
            ValueError: not a state of a monitor, one of a newer tbnum, or one with a value that cannot be.
        """
        checked = checked_state(state)
        if is_over(self, "load_state_dict()"):
            return
        self._observer.next_step = checked["step"]
        self._state = checked
        self._recorder.resumed(checked["step"], checked.get("skipped_steps", 0))
        self._observer.expect_first_step(functools.partial(_first_step, weakref.ref(self)))

    def __enter__(self) -> Monitor:
        is_over(self, "`with monitor`")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, (Exception, KeyboardInterrupt)):
                self._observer.observe("crash", crash_facts(error))
        finally:
            self.close()


def _observer_for(
    monitor: Monitor,
    optimizers: Mapping[str, torch.optim.Optimizer],
    scaler: torch.amp.GradScaler | None,
    own_scale: Callable[[], float] | None,
    options: Options,
    layouts: Layouts,
    batch_ids: BatchIds,
) -> StepObserver:
    """Hands what it sees to the monitor's recorder; holds the monitor weakly."""
    recorder, ref = monitor._recorder, weakref.ref(monitor)
    return StepObserver(
        optimizers,
        scaler,
        own_scale,
        on_steps=recorder.on_steps,
        on_drained=recorder.on_drained,
        on_observation=recorder.on_observation,
        on_first_step=functools.partial(_first_step, ref),
        on_close=functools.partial(_closed, ref),
        on_unused=functools.partial(_unused, ref),
        on_found=recorder.found_scaler,
        on_depth=recorder.on_depth,
        verify_interval=options.scalar_interval or VERIFY_INTERVAL,
        tensor_interval=options.tensor_interval,
        histogram_interval=options.histogram_interval,
        checksums=options.checksums,
        layouts=layouts,
        batch_ids=batch_ids,
    )


def _hooked(
    optimizers: Mapping[str, torch.optim.Optimizer], observer: StepObserver, owner: Monitor
) -> list[Callable[[], None]]:
    """What takes the hooks off again, which are all there, or none."""
    releases: list[Callable[[], None]] = []
    try:
        for optimizer in optimizers.values():
            releases.append(observe_optimizer(optimizer, observer, owner=owner))
        releases.append(observe_clipping(observer))
        releases.append(observe_backward(observer))
        releases.append(observe_zero_grad(observer, optimizers.values()))
        releases.append(observe_scalers(observer))
    except BaseException:
        for release in releases:
            release()
        raise
    return releases


def _write_last_checksums(observer: StepObserver, recorder: Recorder, interval: int | None) -> None:
    """Of what the last step left, so that two runs can be compared up to their end. Waits for the device."""
    last = observer.next_step - 1
    if interval is None or last < 0 or last % interval == 0:
        return
    with contextlib.suppress(Exception):  # of parameters that have lost their storage, say
        for name, optimizer in observer.optimizers().items():
            recorder.write_checksums(last, name, checksums_left(optimizer))


@contextlib.contextmanager
def _muted(observer: StepObserver, watching: Watching) -> Iterator[None]:
    with observer.muted(), watching.muted():
        yield


def _closed(ref: weakref.ref[Monitor], next_step: int) -> None:
    monitor = ref()
    if monitor is not None:
        try:
            monitor._watching.step_closes(next_step, monitor._observer)
        except Exception as error:  # of a device without memory, say: the step is recorded all the same
            monitor._observer.trouble(error)


def _drain_quiet(ref: weakref.ref[Monitor]) -> None:
    monitor = ref()
    if monitor is not None:
        monitor._observer.drain_quiet(monitor._recorder.on_quiet_step)


def _unused(ref: weakref.ref[Monitor], optimizer: str, backwards: int) -> None:
    monitor = ref()
    if monitor is not None:
        monitor._watching.report_unused(optimizer, backwards, monitor._observer)


def _first_step(ref: weakref.ref[Monitor]) -> None:
    monitor = ref()
    if monitor is not None:
        state, monitor._state = monitor._state, None
        try:
            go_on(monitor._observer, monitor._recorder, state)
        except Exception as error:  # of a record before this one that cannot be read, say
            monitor._observer.trouble(error)


def _loss_value(loss: Any) -> Number:
    """A loss that the user gives. No host sync."""
    if isinstance(loss, Tensor) and not (loss.is_complex() or loss.is_meta):
        loss = loss.detach()
        return hold(loss if loss.numel() == 1 else loss.double().sum())
    if isinstance(loss, (int, float, np.number)) or (isinstance(loss, np.ndarray) and loss.size == 1):
        return float(loss)
    raise TypeError(
        f"log_loss() takes a real tensor that has a value or a number, not {type(loss).__name__}: {loss!r}."
    )


def _unscale(scaler: torch.amp.GradScaler, observer: StepObserver, around: Collection[str]) -> None:
    """The gradients that still carry the loss scale. `around`: optimizers for which `wrap` was given a wrapper.

    The scaler keeps what is unscaled by the object that it is given: unscaled under another, it would be so twice.
    """
    for name, optimizer in observer.optimizers().items():
        known = observer.known_to_scaler(name)
        given = optimizer if known is None else known
        if not (carries_scale(scaler, given) and Gradients.of(optimizer).tensors):
            continue
        if known is None and name in around:
            raise RuntimeError(
                f"wrap() was given an object around {type(optimizer).__name__}, and the scaler has stepped neither: "
                "call scaler.unscale_() with the object that scaler.step() gets, then monitor.clip_grad_norm_()."
            )
        scaler.unscale_(given)
