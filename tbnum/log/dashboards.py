"""Scalars and histograms for TensorBoard's own dashboards, thinned out; the record files hold everything."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from tensorboard.compat.proto import event_pb2

from tbnum.formats import INF, ZERO, upper_edge
from tbnum.log.schema import lr_columns
from tbnum.log.tensors import HistogramTable

__all__ = ["Dashboards", "SummaryWriter"]

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
    }
)


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

    A step that writes costs some 20 us a scalar, one that does not about 1 us.
    """

    def __init__(self, writer: SummaryWriter, scalar_interval: int) -> None:
        if scalar_interval < 1:
            raise ValueError(f"scalar_interval has to be at least 1, not {scalar_interval!r}")
        self.lost = 0
        self._writer = writer
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
        if self._is_closed():
            self.lost += len(scalars)
            return
        with self._until_it_fails():
            for tag, value in scalars:
                self._writer.add_scalar(tag, value, step, float(row[layout.wall_time]))

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
        for scalar in layout.shown:
            self._writer.add_scalar(scalar.tag, float(row[scalar.at]), step - 1, float(row[layout.wall_time]))
        self._writer.add_scalar("tbnum/skipped_total", float(skipped_total), step - 1, float(row[layout.wall_time]))

    def histogram(self, tag: str, row: HistogramTable, step: int, wall_time: float) -> None:
        """Writes the histogram of one tensor (a table of one row), by magnitude, and as `<tag>_log2` by its log2.

        The dashboards draw on a linear axis, where gradients are one spike; the second tag shows their exponents.
        Zeros are in the first alone. NaN and inf have no place on an axis and are in neither: the record file counts
        them. A histogram without any other element is not written. About 0.1 ms.
        """
        if len(row.names) != 1:
            raise ValueError(
                f"a histogram is of one tensor, and the table has {len(row.names)} rows: use table.row(name)"
            )
        drawn = [(name, buckets) for name, buckets in ((tag, _linear(row)), (f"{tag}_log2", _log2(row))) if buckets]
        if self._is_closed():
            self.lost += len(drawn)
            return
        with self._until_it_fails():
            self._draw(drawn, step, wall_time)

    def _draw(self, drawn: list[tuple[str, _Buckets]], step: int, wall_time: float) -> None:
        for name, (edges, counts) in drawn:
            middles = (edges[:-1] + edges[1:]) / 2
            self._writer.add_histogram_raw(
                name,
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


def _linear(row: HistogramTable) -> _Buckets | None:
    """Of |x|. None where all is NaN or inf."""
    zeros = float(row.counts[0, ZERO])
    finite = _finite(row)
    if finite is None:
        return _Buckets(np.zeros(2), np.array([zeros])) if zeros else None
    if not zeros:
        return finite
    # Zeros in a bucket of their own, down to which the smallest elements reach.
    edges = np.concatenate(([0.0], finite.edges))
    return _Buckets(edges, np.concatenate(([zeros], finite.counts)))


def _log2(row: HistogramTable) -> _Buckets | None:
    """Of log2 |x|, zeros left out. None where there is nothing else."""
    finite = _finite(row)
    return None if finite is None else _Buckets(np.log2(finite.edges), finite.counts)


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
    rates = set(lr_columns(columns))

    def evidence(name: str) -> int | None:
        owner, _, last = name.rpartition("/")
        if last == "loss":
            return index.get("micro_batches")
        if last in ("grad_norm", "grad_norm_clipped"):
            # A NaN norm needs a non-finite element.
            return index.get(f"{owner}/nonfinite_tensors" if owner else "nonfinite_tensors")
        return None

    return _Layout(
        columns=tuple(columns),
        step=index["step"],
        wall_time=index["wall_time"],
        loss_scale=index.get("loss_scale"),
        skipped=tuple(at for name, at in index.items() if name.split("/")[-1] == "skipped"),
        shown=tuple(
            _Scalar(f"tbnum/{name}", at, evidence(name))
            for name, at in index.items()
            if name.split("/")[-1] in _SHOWN or name in rates
        ),
    )


def _known(row: tuple[Any, ...], scalar: _Scalar) -> bool:
    if not math.isnan(row[scalar.at]):
        return True
    return scalar.evidence is not None and row[scalar.evidence] > 0
