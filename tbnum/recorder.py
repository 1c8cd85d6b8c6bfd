"""Turns what was observed into rows, events and tables, and hands them to the log, the dashboards and callbacks."""

from __future__ import annotations

import math
import os
import platform
import threading
import time
import uuid
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from tbnum._version import __version__
from tbnum.accumulation import with_mean_loss
from tbnum.arguments import described, settings_of
from tbnum.callbacks import Callbacks
from tbnum.caller import warn
from tbnum.drawings import Drawings, close_writer, opened_writer
from tbnum.explain import LiveExplainer
from tbnum.explain.live import NEXT
from tbnum.explain.repeats import fingerprint
from tbnum.kept_ids import KeptIds
from tbnum.log.part_log import PartLog
from tbnum.log.reader import Run, writing_now
from tbnum.log.schema import FORMAT_VERSION, Event
from tbnum.log.tensors import TensorTable
from tbnum.log.writer import LogWriter
from tbnum.observe.landing import Note
from tbnum.observe.records import Observation, OptimizerRecord, StepRecord
from tbnum.observe.shards import Layout, Parts
from tbnum.options import Options
from tbnum.parameter_names import ParameterNames
from tbnum.rank_records import RankRecords
from tbnum.repeats import Repeats
from tbnum.step_rows import Row, StepRows
from tbnum.tensor_tables import RECENT, TensorTables

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from tbnum.observe.interval_watch import IntervalWatches
from tbnum.observe.sentinels import Sentinels

__all__ = ["Recorder"]

MAX_SAMPLES_NAMED = 64  # of a step, in its event
MAX_LOSSES_TOLD = 64  # micro-batches of a step whose losses go into its event
STEPS_A_LOOK = 64  # between two looks for spikes


class Recorder:
    """Turns steps and observations into rows and events, and hands them to the log, the dashboards and callbacks."""

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | Callable[[], float] | None,
        folder: Path,
        writer: SummaryWriter | None,
        modules: Mapping[str, nn.Module],
        options: Options,
    ) -> None:
        self.ranks = RankRecords(folder, options.ranks)
        rank = self.ranks.rank
        self.names = ParameterNames(optimizers, modules)
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
            "depth_from": "model",
            "frozen": self.names.frozen(),
            "scaler": settings_of(scaler),
            "seed": torch.initial_seed(),
            "config": dict(options.config),
            "versions": {"tbnum": __version__, "torch": torch.__version__, "python": platform.python_version()},
            **self.ranks.meta(),
        }
        meta["fingerprint"] = fingerprint(meta)
        self._repeats = Repeats(folder, self.session, meta["fingerprint"])
        self._explainer = LiveExplainer(meta)
        other = None if rank else writing_now(folder, rank)  # a listing of the folder, by one rank of perhaps thousands
        self._log = self.ranks.open_log(self._rows.columns, meta, options.max_tensor_bytes, options.flush_seconds)
        if other is not None:
            _warn_of_another(other, folder)
        own_writer = opened_writer(folder) if writer is None and not rank else None
        self.drawings = Drawings(
            self._log,
            writer if own_writer is None else own_writer,
            options.scalar_interval,
            own=own_writer is not None,
            of_tensors=options.tensorboard_tensors,
        )
        # The end of the optimizer is the end of the recording, also where nobody called close().
        self._finish = weakref.finalize(self, _finish, self._log, own_writer, os.getpid())
        self._ids = KeptIds(self._log, keep_all=options.keep_all_ids)
        self._is_first_row = True
        self._lock = threading.RLock()  # rows may come from the thread of the log
        self._spoiled: set[str] = set()  # optimizers whose parameters were found non-finite, as was recorded
        self._sentinels: Sentinels | None = None
        self._activations: IntervalWatches | None = None
        self._tables = TensorTables(self._log, self.names, self.drawings, len(optimizers), RECENT + STEPS_A_LOOK + NEXT)

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
            self._tables.step(record)

    def on_steps(self, steps: Sequence[StepRecord | Note]) -> None:
        """In their order: one, or several of which there is nothing to report."""
        with self._lock:
            notes = [step for step in steps if isinstance(step, Note) and self._rows.takes(step)]
            if len(notes) == len(steps) and self._takes_notes:
                self._take_notes(notes)
                return
            shown = [self._shown(step.land()[0] if isinstance(step, Note) else step) for step in steps]
            if not self._repeats.is_open and all(record.is_quiet for record in shown):
                self._take_quiet(shown)
            else:
                for record in shown:
                    self._take_step(record)

    @property
    def _takes_notes(self) -> bool:
        return not (self._is_first_row or self._repeats.is_open) and self.accumulation is None

    def _take_notes(self, notes: Sequence[Note]) -> None:
        """As `_take_quiet`, without a record of each."""
        rows = list[Row]()
        for note in notes:
            norms = note.packed()
            rows.append(self._rows.of_note(note, norms))
            self._tables.remember(note.step, note.optimizer, norms)
        self._hand_on(self._rows.columns, rows)
        self._ids.unknown(len(notes))
        self._look_around(notes)

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
        self.drawings.steps(columns, rows, self.skipped_steps)
        self._explainer.steps(columns, rows)

    def _take_quiet(self, records: Sequence[StepRecord]) -> None:
        self._write_rows(records)
        for record in records:
            self._tables.step(record)
        self._look_around(records)

    def _look_around(self, steps: Sequence[StepRecord | Note]) -> None:
        """At what else is known by now, after steps of which there is nothing to report."""
        self.write_activations()
        if any(step.step % STEPS_A_LOOK == 0 for step in steps):
            self._report_spikes()

    def on_drained(self) -> None:
        """No more steps come for now: the dashboards get those that have come, together."""
        with self._lock:
            self.drawings.send()

    def _take_step(self, record: StepRecord) -> None:
        if self._repeats.is_open:
            self._say_repeat(record)
        self._write_rows([record])
        self.write_activations()
        self._tables.step(record)
        observed = {} if self._sentinels is None else {each.step: each for each in self._sentinels.reports()}
        for name, one in record.optimizers.items():
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
        settings = settings_of(scaler)
        self._log.update_meta(scaler=settings)
        self._explainer.scaler_found(settings)

    def _report_spikes(self) -> None:
        """Spikes that the newest steps show; they are worked out again whenever the log is read, and not written."""
        spikes = self._explainer.drained()
        if spikes:
            self.write_history(spikes[0].step - RECENT)
        for event in spikes:
            self.callbacks.call(event)

    def _event(self, event: Event) -> Event:
        """Write and report the event; returns it explained."""
        self._log.write_event(event)
        explained = self._explainer.event(event)
        events = [explained, *self._explainer.derived()]
        if any(each.severity != "info" for each in events):
            self.write_history()
        if self._sentinels is not None and any(each.cause in _UNEXPLAINED for each in events):
            self._sentinels.arm_after_skip(event.step + 1)
        for each in events:  # last: what a callback raises may end it
            self.callbacks.call(each)
        return explained

    # -- tensor by tensor ----------------------------------------------------------------------------------------

    def write_checksums(self, step: int, name: str, checksums: Mapping[str, torch.Tensor]) -> None:
        """At the end, what the last step left, (P,) int64 each. Nothing where this session took no step."""
        if not self._is_first_row:
            self._tables.checksums(step, name, {what: sums.cpu().numpy() for what, sums in checksums.items()})

    def write_activations(self, wait: bool = False) -> None:
        if self._activations is not None:
            for each in self._activations.landed(wait):
                self._log.write_tensors(TensorTable(each.step, each.names, each.columns))

    def write_history(self, first_step: int | None = None) -> None:
        """What is remembered of recent steps, from one on: their samples and the norms of their tensors."""
        self._ids.event(first_step)
        self._tables.write_recent(first_step)

    def on_layout(self, name: str, layout: Layout) -> None:
        """The tensors of an optimizer turned out to be sharded: record how, for who puts them together."""
        with self._lock:
            self._take_layout(name, layout)

    def on_depth(self, order: Sequence[tuple[str, int]] | None, is_one_loss: bool) -> None:
        """The first backward shows in which order the forward used the parameters, or does not; or of which alone."""
        if order is None:
            self._log.update_meta(depth_from="model" if is_one_loss else "several losses")
        else:
            self._log.update_meta(depth=self.names.used(order), depth_from="forward")

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
        """Look for a run beside this one that had the same seed and settings, and was lost. The lowest rank does."""
        if not self.ranks.rank:
            self._repeats.look_beside()

    def look_for_a_repeat_of(self, past: Run) -> None:
        """Likewise of the last session before this one in the same folder, which this one repeats."""
        if not self.ranks.rank:
            self._repeats.look_within(past)

    def _say_repeat(self, record: StepRecord) -> None:
        data = self._repeats.first_step(one.max_norm for one in record.optimizers.values())
        if data is not None:
            warn(self._event(Event(record.step, record.wall_time, "repeat_of_diverged_run", data=data)).message)

    def redraw(self, past: Run, step: int) -> None:
        """The dashboards forget what this session does again."""
        self.drawings.redraw(past, step, self.skipped_steps)

    def flush(self) -> None:
        self._log.flush()
        self.drawings.flush()

    def close(self) -> None:
        self.write_history()
        self._finish()


_UNEXPLAINED = ("bad_batch", "forward_nonfinite", "unknown")  # causes of a skip whose module is worth a look


def _warn_of_another(process: int, folder: Path) -> None:
    """Two trainings in one folder are read as one: a run that was stopped and resumed."""
    warn(
        f"process {process} is recording with tbnum into {str(folder)!r} just now. The record will show this training "
        "in place of that one from its first step on: give each its own folder."
    )


def _finish(log: LogWriter | PartLog, own_writer: SummaryWriter | None, pid: int) -> None:
    log.close()
    if own_writer is not None:
        close_writer(own_writer, pid)


def _kind_of_step(one: OptimizerRecord) -> str | None:
    if one.skipped:
        return "skip"
    if one.nonfinite_tensors > 0 or one.nonfinite_after > 0:
        return "nonfinite_step"
    norms = one if one.shares is None else one.shares
    return "norm_overflow" if math.isinf(norms.grad_norm) or math.isinf(norms.grad_norm_clipped) else None


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
    if kind == "norm_overflow" and not math.isinf(one.grad_norm):
        data["grad_norm_clipped"] = one.grad_norm_clipped
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


def _recorded(parts: Parts, names: Sequence[str]) -> dict[str, Any]:
    """`owned` has a character for each parameter: 1 where this rank's part counts."""
    owned = "".join("01"[each] for each in parts.owned)
    recorded: dict[str, Any] = {"ranks": list(parts.ranks), "owned": owned}
    if parts.unknown is not None:
        place, why = parts.unknown
        recorded["unknown"] = {"tensor": names[place] if place < len(names) else str(place), "why": why}
    return recorded
