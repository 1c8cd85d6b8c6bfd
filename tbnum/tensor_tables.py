"""What a step says of each tensor, on its way to the log: the tables of an interval or a failure, and recent norms."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Mapping

import numpy as np

from tbnum.drawings import Drawings
from tbnum.formats import CHECKSUM
from tbnum.log.part_log import PartLog
from tbnum.log.tensors import HistogramTable, TensorTable
from tbnum.log.writer import LogWriter
from tbnum.observe.records import OptimizerRecord, StepRecord
from tbnum.parameter_names import ParameterNames

__all__ = ["RECENT", "TensorTables"]

RECENT = 32
"""Steps before an event whose norms of each tensor are written with it."""


class TensorTables:
    """`remembered`: steps whose norms stay in memory, since an event may be found so much later."""

    def __init__(
        self, log: LogWriter | PartLog, names: ParameterNames, drawings: Drawings, optimizers: int, remembered: int
    ) -> None:
        self._log, self._names, self._drawings = log, names, drawings
        self._has_several = optimizers > 1
        self._frozen = names.frozen()
        self._recent: deque[tuple[int, str, np.ndarray | array[float]]] = deque(maxlen=remembered * optimizers)

    def step(self, record: StepRecord) -> None:
        """Writes the tables of a step that was measured tensor by tensor; of any other, remembers the norms."""
        for name, one in record.optimizers.items():
            if one.grad_norms is None:
                continue
            if one.columns:
                self._write(record, name, one, one.grad_norms)
            else:
                self.remember(record.step, name, one.grad_norms)

    def remember(self, step: int, name: str, grad_norms: np.ndarray | array[float]) -> None:
        """The norms (P,) of one optimizer's gradients, in a step of which there is no table."""
        self._recent.append((step, name, grad_norms))

    def checksums(self, step: int, name: str, checksums: Mapping[str, np.ndarray]) -> None:
        """(P,) int64 each, of what the step has left."""
        columns = {CHECKSUM + what: sums.view(np.uint64) for what, sums in checksums.items()}
        self._log.write_tensors(TensorTable(step, self._names.names_of(name), columns, self._label(name)))

    def write_recent(self, first_step: int | None = None) -> None:
        """The recent steps that were not written yet, each once: the last `RECENT`, or those from a step on."""
        newest = self._recent[-1][0] if self._recent else -1
        first = newest - RECENT + 1 if first_step is None else first_step
        names: dict[str, tuple[str, ...]] = {}
        earlier = [entry for entry in self._recent if entry[0] < first]
        for step, name, grad_norms in self._recent:
            if step < first:
                continue
            if name not in names:
                names[name] = self._names.names_of(name)
            if len(names[name]) == len(grad_norms):  # else a group was added since
                table = TensorTable(
                    step, names[name], {"grad_norm": np.asarray(grad_norms)}, self._label(name), "flight"
                )
                self._log.write_tensors(table)
        self._recent.clear()
        self._recent.extend(earlier)

    def _write(self, record: StepRecord, name: str, one: OptimizerRecord, grad_norms: np.ndarray) -> None:
        label, names = self._label(name), self._names.names_of(name)
        self._note_frozen()
        scale = 1.0 if math.isnan(record.loss_scale) else record.loss_scale
        columns = {"grad_norm": grad_norms, **one.columns, "loss_scale": np.full(len(names), scale)}
        reason = "failure" if one.skipped or one.nonfinite_rows else "interval"
        self._log.write_tensors(TensorTable(record.step, names, columns, label, reason))
        absmax = {"gradient": one.columns.get("absmax")}
        for source, counts in one.tensor_histograms.items():
            table = _histogram_table(record.step, names, source, counts, absmax.get(source))
            self._log.write_histogram(table)
            self._drawings.histograms_of_tensors(table, record.wall_time, label)
        for source, counts in one.histograms.items():
            everything = f"{label}/*" if label else "*"
            table = _histogram_table(record.step, (everything,), source, counts[None], None)
            self._log.write_histogram(table)
            self._drawings.histogram_of_all(table, record.wall_time, label)

    def _note_frozen(self) -> None:
        """A loop may freeze parameters on its way, which then have no gradient on purpose."""
        frozen = self._names.frozen()
        if frozen != self._frozen:
            self._frozen = frozen
            self._log.update_meta(frozen=frozen)

    def _label(self, optimizer: str) -> str | None:
        return optimizer if self._has_several else None


def _histogram_table(
    step: int, names: tuple[str, ...], source: str, counts: np.ndarray, absmax: np.ndarray | None
) -> HistogramTable:
    unknown = np.full(len(names), math.nan)
    if counts.max() < 2**31:
        counts = counts.astype(np.int32)  # half the memory while it waits to be written
    return HistogramTable(step, names, source, counts, unknown, unknown if absmax is None else absmax)
