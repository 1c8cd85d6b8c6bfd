"""A few scalars and histograms for TensorBoard's own dashboards; the record files hold everything.

Under `tbnum/` are at most `MOST_TAGS` tags an optimizer: the scalars that a person looks at, and the histograms of the
whole model. Histograms of single tensors, where they were asked for, have the prefix `tbnum_tensors/`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2

from tbnum.formats import INF, ZERO, upper_edge
from tbnum.log.columns import StepColumn
from tbnum.log.tensors import HistogramTable

__all__ = ["MOST_TAGS", "Dashboards", "Listener", "SummaryWriter", "histogram_tag"]

MOST_TAGS = 16
"""Under `tbnum/`, of one optimizer. TensorBoard draws a card for each tag, all in one group."""

_SHOWN = frozenset(
    {
        "loss",
        "loss_scale",
        "grad_norm",
        "grad_norm_clipped",
        "clip_coef",
        "nonfinite_tensors",
        "param_norm",
        "update_norm",
        "lr",
    }
)
"""Columns, of their first parameter group and without their terms."""


def histogram_tag(source: str, optimizer: str | None, tensor: str | None = None) -> str:
    """Of one tensor, or of the whole model; `optimizer` where there are several."""
    if tensor is not None:
        return f"tbnum_tensors/{source}/{tensor}"
    return f"tbnum/{optimizer}/{source}" if optimizer else f"tbnum/{source}"


Listener = Callable[[int, dict[str, float], float], None]
"""Gets a step, its scalars by tag, and the time in seconds since the epoch."""


class SummaryWriter(Protocol):
    """As torch's and tensorboardX's."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, walltime: float) -> Any: ...

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: int,
        sum: float,
        sum_squares: float,
        bucket_limits: Sequence[float],
        bucket_counts: Sequence[float],
        global_step: int,
        walltime: float,
    ) -> Any: ...


class Dashboards:
    """Writes `tbnum/<column>` scalars through the `SummaryWriter` of the run, on the log's background thread.

    Every `scalar_interval` steps, and always at the first step, at a skipped one, and at one whose loss scale differs
    from that of the step before. Unknown values are left out; a loss or norm that was measured and is NaN or infinite
    is written. A writer that was closed stays closed: `lost` counts what it did not take.

    `own`: tbnum opened the writer. Then the scalars of a step go into one event, which takes half the bytes. A user's
    writer gets them by `add_scalar`, which a subclass of its may override.

    A step that writes costs some 20 us a scalar, of an own writer 100 us in all; one that does not about 1 us.
    """

    def __init__(self, writer: SummaryWriter, scalar_interval: int, *, own: bool = False) -> None:
        if scalar_interval < 1:
            raise ValueError(f"scalar_interval has to be at least 1, not {scalar_interval!r}")
        self.lost = 0
        self.listeners: list[Listener] = []
        self._writer = writer
        self._own = own
        self._interval = scalar_interval
        self._has_failed = False
        self._layout: _Layout | None = None
        self._last_scale: float | None = None  # None before the first step

    def step(self, columns: tuple[str, ...], row: tuple[Any, ...], skipped_total: int) -> None:
        """Takes one step's values, in the order of `columns`, and how many steps were skipped until its end."""
        layout = self._layout
        if layout is None or layout.columns != columns:
            layout = self._layout = _lay_out(columns)
        step = int(row[layout.step])
        scale = math.nan if layout.loss_scale is None else float(row[layout.loss_scale])
        last_scale, self._last_scale = self._last_scale, scale
        due = (
            step % self._interval == 0
            or last_scale is None
            or (scale != last_scale and not (math.isnan(scale) and math.isnan(last_scale)))
            or any(row[index] for index in layout.skipped)
        )
        if not due:
            return
        scalars = [(scalar.tag, float(row[scalar.at])) for scalar in layout.shown if _known(row, scalar)]
        scalars.append(("tbnum/skipped_total", float(skipped_total)))
        for listener in self.listeners:
            listener(step, dict(scalars), float(row[layout.wall_time]))
        if self._is_closed():
            self.lost += len(scalars)
            return
        with self._until_it_fails():
            self._write(scalars, step, float(row[layout.wall_time]))

    def _write(self, scalars: Sequence[tuple[str, float]], step: int, wall_time: float) -> None:
        if self._own:
            values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars]
            file_writer: Any = getattr(self._writer, "file_writer")  # noqa: B009 - no part of the protocol
            file_writer.add_summary(summary_pb2.Summary(value=values), step, wall_time)
            return
        for tag, value in scalars:
            self._writer.add_scalar(tag, value, step, wall_time)

    def resume(self, step: int, columns: tuple[str, ...], row: tuple[Any, ...], skipped_total: int) -> None:
        """The run goes on at `step`: makes both of TensorBoard's loaders forget its scalars from there on.

        `row` is the step before, with values in the columns that had any. TensorBoard's Python loader forgets what
        comes at or after a restart of the session; its data server drops a tag's later points when the tag gets a
        smaller step, hence the row again. Only for a writer whose tags all count these steps.
        """
        file_writer = getattr(self._writer, "file_writer", None)
        if file_writer is None:
            return
        for _ in range(2):  # the first that a file has begins its session, the second restarts it
            restart = event_pb2.Event(session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
            file_writer.add_event(restart, step)
        layout = _lay_out(columns)
        scalars = [(scalar.tag, float(row[scalar.at])) for scalar in layout.shown]
        scalars.append(("tbnum/skipped_total", float(skipped_total)))
        self._write(scalars, step - 1, float(row[layout.wall_time]))

    def histogram(self, tag: str, row: HistogramTable, step: int, wall_time: float) -> None:
        """Writes the histogram of log2 |x| of one tensor (a table of one row), as `<tag>_log2`.

        The dashboards draw on a linear axis, where gradients would be one spike. Zeros, NaN and inf have no place on
        this one: the record file counts them. Where there is nothing else, nothing is written. About 0.1 ms.
        """
        if len(row.names) != 1:
            raise ValueError(
                f"a histogram is of one tensor, and the table has {len(row.names)} rows: use table.row(name)"
            )
        buckets = _finite(row)
        if buckets is None:
            return
        if self._is_closed():
            self.lost += 1
            return
        with self._until_it_fails():
            self._draw(f"{tag}_log2", np.log2(buckets.edges), buckets.counts, step, wall_time)

    def _draw(self, tag: str, edges: np.ndarray, counts: np.ndarray, step: int, wall_time: float) -> None:
        middles = (edges[:-1] + edges[1:]) / 2
        self._writer.add_histogram_raw(
            tag,
            min=float(edges[0]),
            max=float(edges[-1]),
            num=int(counts.sum()),
            sum=float(counts @ middles),
            sum_squares=float(counts @ middles**2),
            bucket_limits=edges[1:].tolist(),
            bucket_counts=counts.tolist(),
            global_step=step,
            walltime=wall_time,
        )

    def _is_closed(self) -> bool:
        """A writer that was closed would open a second event file when it is used again."""
        return self._has_failed or getattr(self._writer, "file_writer", self) is None

    @contextlib.contextmanager
    def _until_it_fails(self) -> Iterator[None]:
        """A writer whose thread met trouble on the disk raises the same exception for ever, longer each time."""
        try:
            yield
        except OSError as error:
            self._has_failed = True
            raise OSError(error.errno, error.strerror) from None


class _Buckets(NamedTuple):
    """Contiguous buckets, the outer ones not empty, so that no loader draws one of them backwards."""

    edges: np.ndarray  # (B + 1,) float64; the outer ones are the smallest and the largest element
    counts: np.ndarray  # (B,) float64


def _finite(row: HistogramTable) -> _Buckets | None:
    """Of the magnitudes that are neither zero nor inf nor NaN. None where there are none."""
    counts = np.asarray(row.counts[0, ZERO + 1 : INF], np.float64)
    occupied = np.flatnonzero(counts)
    if not len(occupied):
        return None
    first, last = int(occupied[0]) + ZERO + 1, int(occupied[-1]) + ZERO + 1
    edges = np.array([_lower_edge(first), *(upper_edge(each) for each in range(first, last + 1))])
    edges[-1] = min(edges[-1], _LARGEST)
    # What stands beside the counts may be unknown, or be rounded beyond its bin.
    low, high = float(row.low[0]), float(row.high[0])
    if edges[0] <= low <= edges[1]:
        edges[0] = low
    if edges[-2] <= high <= edges[-1]:
        edges[-1] = high
    return _Buckets(edges, counts[occupied[0] : occupied[-1] + 1])


_LARGEST = float(np.finfo(np.float32).max)  # TensorBoard holds edges in float32


def _lower_edge(number: int) -> float:
    """Bin 1 takes in all that is small: the smallest float32 begins it."""
    return upper_edge(number) / 2 if number > ZERO + 1 else 2.0**-149


class _Scalar(NamedTuple):
    tag: str
    at: int
    evidence: int | None  # column that is above zero where a NaN is the measured value, not an unknown one


class _Layout(NamedTuple):
    columns: tuple[str, ...]
    step: int
    wall_time: int
    loss_scale: int | None
    skipped: tuple[int, ...]
    shown: tuple[_Scalar, ...]


def _lay_out(columns: Sequence[str]) -> _Layout:
    index = {name: at for at, name in enumerate(columns)}
    parsed = {name: StepColumn.parse(name) for name in columns}

    def evidence(column: StepColumn) -> int | None:
        if column.name == "loss":
            return index.get("micro_batches")
        if column.name in ("grad_norm", "grad_norm_clipped"):
            return index.get(column.beside("nonfinite_tensors"))  # a NaN norm needs a non-finite element
        return None

    return _Layout(
        columns=tuple(columns),
        step=index["step"],
        wall_time=index["wall_time"],
        loss_scale=index.get("loss_scale"),
        skipped=tuple(at for name, at in index.items() if parsed[name].name == "skipped"),
        shown=tuple(
            _Scalar(f"tbnum/{name}", at, evidence(parsed[name]))
            for name, at in index.items()
            if parsed[name].name in _SHOWN and not parsed[name].group and parsed[name].term is None
        ),
    )


def _known(row: tuple[Any, ...], scalar: _Scalar) -> bool:
    if not math.isnan(row[scalar.at]):
        return True
    return scalar.evidence is not None and row[scalar.evidence] > 0
