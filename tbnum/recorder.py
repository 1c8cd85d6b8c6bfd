"""Turns what was observed into rows, events and tables, and hands them to the log, the dashboards and callbacks."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import threading
import time
import uuid
import weakref
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from tbnum._version import __version__
from tbnum.accumulation import with_mean_loss
from tbnum.arguments import described, settings_of
from tbnum.callbacks import Callbacks
from tbnum.caller import warn
from tbnum.explain import LiveExplainer
from tbnum.explain.live import NEXT
from tbnum.explain.repeats import divergence, fingerprint
from tbnum.formats import CHECKSUM
from tbnum.kept_ids import KeptIds
from tbnum.log.columns import columns_named
from tbnum.log.dashboards import Dashboards, Listener, histogram_tag
from tbnum.log.part_log import PartLog
from tbnum.log.reader import Run, session_metas, writing_now
from tbnum.log.record_file import way_out
from tbnum.log.schema import FORMAT_VERSION, Event
from tbnum.log.tensors import HistogramTable, TensorTable
from tbnum.log.writer import LogWriter
from tbnum.observe.gradients import parameters_of
from tbnum.observe.names import named_parameters
from tbnum.observe.records import Observation, OptimizerRecord, StepRecord
from tbnum.observe.shards import Layout, Parts
from tbnum.rank_records import RankRecords
from tbnum.step_rows import Row, StepRows

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from tbnum.observe.interval_watch import IntervalWatches
from tbnum.observe.sentinels import Sentinels

__all__ = ["Recorder"]

_Drawn = tuple[tuple[str, ...], list[Row], int]
"""Columns, the values of some steps, and how many steps were skipped until the end of each of them."""

MAX_NAMES_IN_META = 1000
MAX_SAMPLES_NAMED = 64  # of a step, in its event
MAX_LOSSES_TOLD = 64  # micro-batches of a step whose losses go into its event
STEPS_A_LOOK = 64  # between two looks for spikes
FLIGHT_STEPS = 32  # whose per-tensor norms stay in memory, to be written around an event


class Recorder:
    """Turns steps and observations into rows and events, and hands them to the log, the dashboards and callbacks."""

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | Callable[[], float] | None,
        folder: Path,
        writer: SummaryWriter | None,
        modules: Mapping[str, nn.Module],
        scalar_interval: int | None,
        config: Mapping[str, Any],
        max_tensor_bytes: int,
        flush_seconds: float,
        recording_ranks: int | None,
        tensorboard_tensors: bool,
        keep_all_ids: bool,
    ) -> None:
        self.ranks = RankRecords(folder, recording_ranks)
        rank = self.ranks.rank
        self.names = _Names(optimizers, modules)
        self.callbacks = Callbacks()
        self.skipped_steps = 0
        self.accumulation: Callable[[], int] | None = None  # by what the framework divides each micro-batch's loss
        self.session = uuid.uuid4().hex
        self.folder = folder
        self._rows = StepRows({name: len(each.param_groups) for name, each in optimizers.items()})
        self._layouts: dict[str, dict[str, Any]] = {}  # of optimizers whose tensors are sharded
        meta = {
            "format_version": FORMAT_VERSION,
            "session": self.session,
            "start_time": time.time(),
            "first_step": 0,
            "optimizers": {name: described(each) for name, each in optimizers.items()},
            "parameters": self.names.with_shapes(),
            "depth": self.names.in_depth(),
            "frozen": self.names.frozen(),
            "scaler": settings_of(scaler),
            "seed": torch.initial_seed(),
            "config": dict(config),
            "versions": {"tbnum": __version__, "torch": torch.__version__, "python": platform.python_version()},
            **self.ranks.meta(),
        }
        meta["fingerprint"] = fingerprint(meta)
        self._fingerprint = meta["fingerprint"]
        self._explainer = LiveExplainer(meta)
        other = None if rank else writing_now(folder, rank)  # a listing of the folder, by one rank of perhaps thousands
        self._log = self.ranks.open_log(self._rows.columns, meta, max_tensor_bytes, flush_seconds)
        if other is not None:  # two trainings in one folder are read as one: a run that was stopped and resumed
            warn(
                f"process {other} is recording with tbnum into {str(folder)!r} just now. The record will show this "
                "training in place of that one from its first step on: give each its own folder."
            )
        own_writer = _opened(folder) if writer is None and not rank else None
        self.summary_writer = own_writer if writer is None else writer
        self._own_writer = own_writer
        self._dashboards: Dashboards | None = None
        self._to_draw: list[_Drawn] = []
        if self.summary_writer is not None and scalar_interval is not None:
            self._dashboards = Dashboards(self.summary_writer, scalar_interval, own=own_writer is not None)
        self._draws_tensors = tensorboard_tensors
        # The end of the optimizer is the end of the recording, also where nobody called close().
        weakref.finalize(self, _finish, self._log, own_writer, os.getpid())
        self._pid = os.getpid()
        self._ids = KeptIds(self._log, keep_all=keep_all_ids)
        self._is_first_row = True
        self._lock = threading.RLock()  # rows may come from the thread of the log
        self._repeats: _Lost | None = None
        self._spoiled: set[str] = set()  # optimizers whose parameters were found non-finite, as was recorded
        self._sentinels: Sentinels | None = None
        self._activations: IntervalWatches | None = None
        self._flight: deque[tuple[int, str, np.ndarray]] = deque(
            maxlen=(FLIGHT_STEPS + STEPS_A_LOOK + NEXT) * len(optimizers)
        )

    def watch(self, sentinels: Sentinels | None, activations: IntervalWatches | None) -> None:
        """Take what these see of modules into events and tables."""
        self._sentinels, self._activations = sentinels, activations

    # -- from the observer ---------------------------------------------------------------------------------------

    def call_ahead(self, call: Callable[[], None]) -> None:
        """The thread of the log calls this before it writes."""
        self._log.call_ahead(call)

    def on_quiet_step(self, record: StepRecord) -> None:
        """In the thread of the log, while the loop is busy elsewhere: a step of which there is nothing to report."""
        with self._lock:
            record = self._shown(record)
            self._write_rows([record])
            for name, one in record.optimizers.items():
                self._write_tensors(record, name, one)

    def on_steps(self, records: Sequence[StepRecord]) -> None:
        """In their order: one, or several of which there is nothing to report."""
        with self._lock:
            shown = [self._shown(record) for record in records]
            if self._repeats is None and all(record.is_quiet for record in shown):
                self._take_quiet(shown)
            else:
                for record in shown:
                    self._take_step(record)

    def _shown(self, record: StepRecord) -> StepRecord:
        return record if self.accumulation is None else with_mean_loss(record, self.accumulation())

    def _write_rows(self, records: Sequence[StepRecord]) -> None:
        """Of one step, or of several that were not skipped."""
        columns, rows = self._rows.columns, list[Row]()
        for record in records:
            row = self._rows.row(record, self._ids.step(record.step, record.sample_ids))
            if self._rows.columns is not columns:
                self._hand_on(columns, rows)
                columns, rows = self._rows.columns, []
                self._log.set_columns(columns)
            if self._is_first_row:
                self._is_first_row = False
                self.ranks.first_row(record, self._log)
            if record.skipped:
                self.skipped_steps += 1
            rows.append(row)
        self._hand_on(columns, rows)

    def _hand_on(self, columns: tuple[str, ...], rows: list[Row]) -> None:
        self._log.append_steps(rows)
        self._to_draw.append((columns, rows, self.skipped_steps))
        self._explainer.steps(columns, rows)

    def _take_quiet(self, records: Sequence[StepRecord]) -> None:
        self._write_rows(records)
        self.write_activations()
        for record in records:
            for name, one in record.optimizers.items():
                if one.grad_norms is not None:
                    self._flight.append((record.step, name, one.grad_norms))
        if any(record.step % STEPS_A_LOOK == 0 for record in records):
            self._report_spikes()

    def on_drained(self) -> None:
        """No more steps come for now: the dashboards get those that have come, together."""
        with self._lock:
            steps, self._to_draw = self._to_draw, []
        if steps and self._dashboards is not None:
            self._log.submit(functools.partial(_draw_steps, self._dashboards, steps))

    def _take_step(self, record: StepRecord) -> None:
        if self._repeats is not None:
            self._say_repeat(record)
        self._write_rows([record])
        self.write_activations()
        observed = {} if self._sentinels is None else {each.step: each for each in self._sentinels.reports()}
        for name, one in record.optimizers.items():
            self._write_tensors(record, name, one)
            kind = _kind_of_step(one)
            if kind is not None:
                data = _facts_of_step(kind, record, one)
                if record.sample_ids is not None:
                    data["samples"] = record.sample_ids[:MAX_SAMPLES_NAMED].tolist()
                if one.nonfinite_rows:
                    data["nonfinite_names"] = self.names.names_of(name, one.nonfinite_rows[:8])
                finding = observed[record.step].finding(record.loss) if record.step in observed else None
                if finding is not None:
                    data["sentinel"] = finding
                self._event(Event(record.step, record.wall_time, kind, optimizer=self._label(name), data=data))
            self._take_parameters(record, name, one, kind)
        if record.step % STEPS_A_LOOK == 0:
            self._report_spikes()

    def _take_parameters(self, record: StepRecord, name: str, one: OptimizerRecord, kind: str | None) -> None:
        """As they were looked at before the update, because the loss was not finite. The event of a failed step says so
        itself; where every gradient was finite, nothing else does.
        """
        if one.parameters_nonfinite is None:
            return
        if one.parameters_nonfinite and kind is None and name not in self._spoiled:
            data = {"by_step": record.step - 1, "params_nonfinite": True}
            label = self._label(name)
            self._event(Event(record.step, record.wall_time, "nonfinite_update", optimizer=label, data=data))
        (self._spoiled.add if one.parameters_nonfinite else self._spoiled.discard)(name)

    def on_observation(self, observation: Observation) -> None:
        facts = (observation.step, observation.wall_time, observation.kind)
        with self._lock:
            self._event(Event(*facts, optimizer=observation.optimizer, data=dict(observation.data)))

    def found_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """A scaler that nobody gave takes part in the loop."""
        self._log.update_meta(scaler=settings_of(scaler))

    def _report_spikes(self) -> None:
        """Spikes that the newest steps show; they are worked out again whenever the log is read, and not written."""
        spikes = self._explainer.drained()
        if spikes:
            self.write_flight(spikes[0].step - FLIGHT_STEPS)
        for event in spikes:
            self.callbacks.call(event)

    def _event(self, event: Event) -> Event:
        """Write and report the event; returns it explained."""
        self._log.write_event(event)
        explained = self._explainer.event(event)
        events = [explained, *self._explainer.derived()]
        if any(each.severity != "info" for each in events):
            self.write_flight()
        if self._sentinels is not None and any(each.cause in _UNEXPLAINED for each in events):
            self._sentinels.arm_after_skip(event.step + 1)
        for each in events:  # last: what a callback raises may end it
            self.callbacks.call(each)
        return explained

    # -- tensor by tensor ----------------------------------------------------------------------------------------

    def _write_tensors(self, record: StepRecord, name: str, one: OptimizerRecord) -> None:
        step, wall_time = record.step, record.wall_time
        if one.grad_norms is None:
            return
        label = self._label(name)
        if not one.columns:
            self._flight.append((step, name, one.grad_norms))
            return
        names = self.names.names_of(name)
        scale = 1.0 if math.isnan(record.loss_scale) else record.loss_scale
        columns = {"grad_norm": one.grad_norms, **one.columns, "loss_scale": np.full(len(names), scale)}
        reason = "failure" if one.skipped or one.nonfinite_rows else "interval"
        self._log.write_tensors(TensorTable(step, names, columns, label, reason))
        absmax = {"gradient": one.columns.get("absmax")}
        for source, counts in one.tensor_histograms.items():
            table = _histogram_table(step, names, source, counts, absmax.get(source))
            self._log.write_histogram(table)
            if self._draws_tensors:
                self._draw(table, wall_time, [histogram_tag(source, label, tensor) for tensor in names])
        for source, counts in one.histograms.items():
            everything = f"{label}/*" if label else "*"
            table = _histogram_table(step, (everything,), source, counts[None], None)
            self._log.write_histogram(table)
            self._draw(table, wall_time, [histogram_tag(source, label)])

    def write_checksums(self, step: int, name: str, checksums: Mapping[str, torch.Tensor]) -> None:
        """At the end, what the last step left, (P,) int64 each. Nothing where this session took no step."""
        if not self._is_first_row:
            columns = {CHECKSUM + what: sums.cpu().numpy().view(np.uint64) for what, sums in checksums.items()}
            self._log.write_tensors(TensorTable(step, self.names.names_of(name), columns, self._label(name)))

    def _draw(self, table: HistogramTable, wall_time: float, tags: list[str]) -> None:
        """In TensorBoard's own histogram dashboards; about 0.1 ms a tag, on the thread of the log."""
        dashboards = self._dashboards
        if dashboards is not None:
            self._log.submit(lambda: _draw_each(dashboards, table, wall_time, tags))

    def write_activations(self, wait: bool = False) -> None:
        if self._activations is None:
            return
        for each in self._activations.landed(wait):
            self._log.write_tensors(TensorTable(each.step, each.names, each.columns))

    def write_flight(self, first_step: int | None = None) -> None:
        """The recent steps that were not written yet, each once: the last `FLIGHT_STEPS`, or those from a step on."""
        self._ids.event(first_step)
        newest = self._flight[-1][0] if self._flight else -1
        first = newest - FLIGHT_STEPS + 1 if first_step is None else first_step
        names: dict[str, tuple[str, ...]] = {}
        earlier = [entry for entry in self._flight if entry[0] < first]
        for step, name, grad_norms in self._flight:
            if step < first:
                continue
            if name not in names:
                names[name] = self.names.names_of(name)
            if len(names[name]) == len(grad_norms):  # else a group was added since
                table = TensorTable(step, names[name], {"grad_norm": grad_norms}, self._label(name), "flight")
                self._log.write_tensors(table)
        self._flight.clear()
        self._flight.extend(earlier)

    def on_layout(self, name: str, layout: Layout) -> None:
        """The tensors of an optimizer turned out to be sharded: record how, for who puts them together."""
        with self._lock:
            self._take_layout(name, layout)

    def _take_layout(self, name: str, layout: Layout) -> None:
        names = self.names.names_of(name)
        self._layouts[name] = {
            "names": zlib.crc32("\n".join(names).encode()),
            "gradients": _recorded(layout.gradients, names),
            "parameters": _recorded(layout.parameters, names),
            "elements": list(layout.elements),
            "of_whole": list(layout.of_whole),
            "placements": layout.placements,
        }
        self._log.update_meta(layouts=self._layouts)
        self._rows.shard(name)
        self._log.set_columns(self._rows.columns)

    def _label(self, optimizer: str) -> str | None:
        return optimizer if self._rows.has_several else None

    # -- from the monitor ----------------------------------------------------------------------------------------

    def resumed(self, step: int, skipped_steps: int) -> None:
        self.skipped_steps = skipped_steps
        self._ids.went_back()
        self._log.update_meta(first_step=step)
        self.ranks.note(self._log)

    def look_for_a_repeat(self) -> None:
        """Look for a run beside this one that had the same seed and settings, and was lost.

        The first step says so, unless it clips at another threshold: that is seen there alone.

        Costs a look at the head of the files in each folder beside this one (0.1 ms a file; not below them, for a
        parent folder may hold anything); a run that is alike is read. The lowest rank looks for all.
        """
        if self.ranks.rank:
            return
        try:
            folders = [entry.path for entry in os.scandir(self.folder.absolute().parent) if entry.is_dir()]
            for folder in sorted(folders):
                if os.path.samefile(folder, self.folder):
                    continue
                if any(meta.get("fingerprint") == self._fingerprint for meta in session_metas(folder)):
                    run = Run(folder, combine_ranks=False)
                    lost = divergence(run)
                    if lost is not None:
                        self._repeats = _Lost(os.path.basename(folder), *lost, _thresholds(run))
                        return
        except Exception:  # somebody else's log, in whatever state, is no reason for this run not to start
            return

    def look_for_a_repeat_of(self, past: Run) -> None:
        """Likewise of the last session before this one in the same folder, which this one repeats."""
        try:
            earlier = [each for each in past.meta["sessions"] if each.get("session") != self.session]
            if self.ranks.rank or not earlier or earlier[-1].get("fingerprint") != self._fingerprint:
                return
            lost = divergence(past)
            if lost is not None:
                self._repeats = _Lost(self.folder.name, *lost, _thresholds(past), same_folder=True)
        except Exception:  # as above
            return

    def _say_repeat(self, record: StepRecord) -> None:
        lost, self._repeats = self._repeats, None
        thresholds = {one.max_norm for one in record.optimizers.values() if not math.isnan(one.max_norm)}
        if lost is None or thresholds != lost.thresholds:
            return
        data = {"run": lost.run, "at_step": lost.step, "why": lost.why, "same_folder": lost.same_folder}
        event = Event(record.step, record.wall_time, "repeat_of_diverged_run", data=data)
        warn(self._event(event).message)

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
        if self._own_writer is not None and os.getpid() == self._pid:
            _whatever_happens(self._own_writer.flush)

    def on_scalars(self, listener: Listener) -> None:
        if self._dashboards is not None:
            self._dashboards.listeners.append(listener)

    def close(self) -> None:
        self.write_flight()
        _finish(self._log, self._own_writer, self._pid)


class _Lost(NamedTuple):
    """A run with this one's seed and settings."""

    run: str
    step: int  # at which it was lost
    why: str
    thresholds: set[float]  # at which its first step clipped
    same_folder: bool = False


def _thresholds(run: Run) -> set[float]:
    first = [values[0] for _, values in columns_named(run.steps, "max_norm") if len(values)]
    return {float(value) for value in first if not math.isnan(value)}


_UNEXPLAINED = ("bad_batch", "forward_nonfinite", "unknown")  # causes of a skip whose module is worth a look


def _draw_steps(dashboards: Dashboards, steps: Sequence[_Drawn]) -> None:
    for columns, rows, skipped_total in steps:
        for row in rows:
            dashboards.step(columns, row, skipped_total)


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


def _whatever_happens(call: Callable[[], None]) -> None:
    """TensorBoard's writer raises, here, what its thread met on the disk; the log has reported the disk already."""
    with contextlib.suppress(Exception):
        call()


def _finish(log: LogWriter | PartLog, own_writer: SummaryWriter | None, pid: int) -> None:
    log.close()
    # In a forked child the writer's thread does not exist, and closing it would wait for that thread.
    if own_writer is not None and os.getpid() == pid:
        _whatever_happens(own_writer.close)


def _kind_of_step(one: OptimizerRecord) -> str | None:
    if one.skipped:
        return "skip"
    if one.nonfinite_tensors > 0 or one.nonfinite_after > 0:
        return "nonfinite_step"
    norm = one.grad_norm if one.shares is None else one.shares.grad_norm
    return "norm_overflow" if math.isinf(norm) else None


def _facts_of_step(kind: str, record: StepRecord, one: OptimizerRecord) -> dict[str, Any]:
    data: dict[str, Any] = {
        "loss": record.loss,
        "loss_scale": record.loss_scale,
        "grad_norm": one.grad_norm,
        "nonfinite_tensors": one.nonfinite_tensors,
        "tensors": one.tensors,
        "micro_batches": record.micro_batches,
    }
    data |= _gradients_in_all(one)
    if len(record.losses) > 1:
        data["losses"] = record.losses[:MAX_LOSSES_TOLD]
    if kind == "skip":
        data["new_scale"] = record.new_scale
    if kind == "nonfinite_step":
        data["nonfinite_tensors"] = max(one.nonfinite_tensors, one.nonfinite_after)
    if one.dropped is not None:
        data["dropped"] = one.dropped
    if one.loss_follows_scale:
        data["loss_follows_scale"] = True
    if one.parameters_nonfinite is not None:
        data["params_nonfinite"] = one.parameters_nonfinite
    return data


def _gradients_in_all(one: OptimizerRecord) -> dict[str, Any]:
    """Of the full pass over the gradients of a step that failed; {} where there was none."""
    facts: dict[str, Any] = {} if math.isnan(one.max_norm) else {"clipped": True}
    if all(name in one.columns for name in ("nan", "inf", "absmax")):
        largest = one.columns["absmax"]
        largest = largest[np.isfinite(largest) & (largest > 0)]
        facts |= {name: float(np.nansum(one.columns[name])) for name in ("nan", "inf")}
        facts["largest_finite"] = float(largest.max()) if len(largest) else math.nan
    return facts


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

    def in_depth(self) -> list[str]:
        """Names in the order of the model's modules, mostly that of its forward, whatever the order of the optimizer.

        Without those of tied weights, which are used at several depths. Empty without a model, and of very many.
        """
        found: list[str] = []
        for prefix, ref in self._modules.items():
            module = ref()
            if module is None:
                continue
            uses = Counter(id(each) for _, each in module.named_parameters(remove_duplicate=False))
            found += [name for name, each in named_parameters(prefix, module) if uses[id(each)] == 1]
        return found if len(found) <= MAX_NAMES_IN_META else []

    def frozen(self) -> list[str]:
        """Names of the parameters that require no gradient now; of many the first."""
        found: list[str] = []
        for name, ref in self._optimizers.items():
            optimizer = ref()
            parameters = [] if optimizer is None else parameters_of(optimizer)
            still = [place for place, parameter in enumerate(parameters) if not parameter.requires_grad]
            found += self.names_of(name, still) if still else ()
        return found[:MAX_NAMES_IN_META]

    def names_of(self, optimizer: str, rows: Iterable[int] | None = None) -> tuple[str, ...]:
        """The names of an optimizer's parameters, in its order; with `rows` only of those.

        Looked up each time, for parameters may be added or replaced: for events and intervals, not every step.
        """
        alive = self._optimizers[optimizer]()
        if alive is None:
            return ()
        known: dict[int, str] = {}
        for prefix, ref in self._modules.items():
            module = ref()
            for name, parameter in () if module is None else named_parameters(prefix, module):
                known.setdefault(id(parameter), name)
        label = f"{optimizer}." if len(self._optimizers) > 1 else ""
        names = [
            known.get(id(parameter)) or f"{label}group{number}.param{place}"
            for number, group in enumerate(alive.param_groups)
            for place, parameter in enumerate(group["params"])
        ]
        return tuple(names if rows is None else [names[row] for row in rows])


def _recorded(parts: Parts, names: Sequence[str]) -> dict[str, Any]:
    """`owned` has a character for each parameter: 1 where this rank's part counts."""
    owned = "".join("01"[each] for each in parts.owned)
    recorded: dict[str, Any] = {"ranks": list(parts.ranks), "owned": owned}
    if parts.unknown is not None:
        place, why = parts.unknown
        recorded["unknown"] = {"tensor": names[place] if place < len(names) else str(place), "why": why}
    return recorded


def _opened(folder: Path) -> SummaryWriter:
    from torch.utils.tensorboard import SummaryWriter

    try:
        return SummaryWriter(str(folder))
    except OSError as error:
        reason = f"cannot write TensorBoard's events into {str(folder)!r} ({error.strerror}): {way_out(error)}"
        raise type(error)(error.errno, reason) from error
