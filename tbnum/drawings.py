"""What goes to TensorBoard's own dashboards: on the thread of the log, so that training does not wait for it."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tensorboard.summary.writer.record_writer import RecordWriter

from tbnum.log.dashboards import Dashboards, Listener, histogram_tag
from tbnum.log.part_log import PartLog
from tbnum.log.reader import Run
from tbnum.log.record_file import frame, way_out
from tbnum.log.tensors import HistogramTable
from tbnum.log.writer import LogWriter
from tbnum.step_rows import Row

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["Drawings", "close_writer", "opened_writer"]

_WAITING = 64
"""Events that may wait for TensorBoard's thread, which then takes many of them at once."""

_AT_ONCE = 1 << 20  # bytes that go into the file together: a user's images may be large, and the disk slow

_Drawn = tuple[tuple[str, ...], list[Row], int]
"""Columns, the values of some steps, and how many steps were skipped until the end of each of them."""


class Drawings:
    """Through `writer`; `own`: it is ours, and nobody else's. Without an interval, or a writer, nothing is drawn."""

    def __init__(
        self,
        log: LogWriter | PartLog,
        writer: SummaryWriter | None,
        scalar_interval: int | None,
        *,
        own: bool,
        of_tensors: bool,
    ) -> None:
        self.writer = writer
        self._log, self._own, self._of_tensors = log, own, of_tensors
        self._pid = os.getpid()
        self._steps: list[_Drawn] = []
        self._dashboards: Dashboards | None = None
        if writer is not None and scalar_interval is not None:
            self._dashboards = Dashboards(writer, scalar_interval, own=own)

    def steps(self, columns: tuple[str, ...], rows: list[Row], skipped_total: int) -> None:
        """To be drawn with the next `send`."""
        self._steps.append((columns, rows, skipped_total))

    def send(self) -> None:
        """Hands the steps that have come to the thread, together."""
        steps, self._steps = self._steps, []
        if steps and self._dashboards is not None:
            self._log.submit(functools.partial(_draw_steps, self._dashboards, steps))

    def histogram_of_all(self, table: HistogramTable, wall_time: float, label: str | None) -> None:
        """Of all tensors together; about 0.1 ms on the thread."""
        self._draw(table, wall_time, [histogram_tag(table.source, label)])

    def histograms_of_tensors(self, table: HistogramTable, wall_time: float, label: str | None) -> None:
        """Of each, where that was asked for."""
        if self._of_tensors:
            self._draw(table, wall_time, [histogram_tag(table.source, label, tensor) for tensor in table.names])

    def _draw(self, table: HistogramTable, wall_time: float, tags: list[str]) -> None:
        if self._dashboards is not None:
            self._log.submit(functools.partial(_draw_each, self._dashboards, table, wall_time, tags))

    def redraw(self, past: Run, step: int, skipped_total: int) -> None:
        """The dashboards forget what a session does again from `step` on, where the event file is ours alone."""
        dashboards, before = self._dashboards, past.steps["step"] < step
        if dashboards is None or not self._own or not before.any():
            return
        known = {name: values[before] for name, values in past.steps.items()}
        columns = tuple(name for name, values in known.items() if not np.isnan(values).all())
        row = tuple(known[name][-1] for name in columns)
        self._log.submit(lambda: dashboards.resume(step, columns, row, skipped_total))

    def listen(self, listener: Listener) -> None:
        if self._dashboards is not None:
            self._dashboards.listeners.append(listener)

    def flush(self) -> None:
        if self._own and self.writer is not None and os.getpid() == self._pid:
            _whatever_happens(self.writer.flush)


def opened_writer(folder: Path) -> SummaryWriter:
    """OSError that names the folder, where it cannot be written to."""
    from torch.utils.tensorboard import SummaryWriter

    try:
        return _cheaper(SummaryWriter(str(folder), max_queue=_WAITING))
    except OSError as error:
        reason = f"cannot write TensorBoard's events into {str(folder)!r} ({error.strerror}): {way_out(error)}"
        raise type(error)(error.errno, reason) from error


def _cheaper(writer: SummaryWriter) -> SummaryWriter:
    """The same, with `_Records`, where TensorBoard's writer is built as is known here."""
    with contextlib.suppress(AttributeError):
        own: Any = writer
        queued = own.file_writer.event_writer._async_writer
        if type(queued._writer) is RecordWriter:
            _Records(queued._writer, queued._byte_queue.empty)
    return writer


class _Records:
    """Stands in for the methods of TensorBoard's `RecordWriter`, which takes the interpreter from training for longer.

    That sums up the bytes of each record in Python, 0.3 us each, and opens the file for it. Here the records that wait
    go into it together. What is in the file is the same.
    """

    def __init__(self, records: Any, none_waits: Callable[[], bool]) -> None:
        self._write, self._flush, self._none_waits = records._writer.write, records.flush, none_waits
        self._framed: list[bytes] = []
        self._bytes = 0
        records.write, records.flush = self.write, self.flush

    def write(self, data: bytes) -> None:
        self._framed.append(frame(data))
        self._bytes += len(data)
        if self._none_waits() or self._bytes >= _AT_ONCE:
            self._write_out()

    def flush(self) -> None:
        self._write_out()
        self._flush()

    def _write_out(self) -> None:
        framed, self._framed, self._bytes = self._framed, [], 0
        if framed:
            self._write(b"".join(framed))


def close_writer(writer: SummaryWriter, pid: int) -> None:
    """Of the process `pid`: in a forked child the writer's thread does not exist, and closing it would wait for it."""
    if os.getpid() == pid:
        _whatever_happens(writer.close)


def _whatever_happens(call: Callable[[], None]) -> None:
    """TensorBoard's writer raises, here, what its thread met on the disk; the log has reported the disk already."""
    with contextlib.suppress(Exception):
        call()


def _draw_steps(dashboards: Dashboards, steps: Sequence[_Drawn]) -> None:
    for columns, rows, skipped_total in steps:
        for row in rows:
            dashboards.step(columns, row, skipped_total)


def _draw_each(dashboards: Dashboards, table: HistogramTable, wall_time: float, tags: list[str]) -> None:
    for name, tag in zip(table.names, tags, strict=True):
        dashboards.histogram(tag, table.row(name), table.step, wall_time)
