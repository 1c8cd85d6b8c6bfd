"""Scalars for TensorBoard's own dashboards, thinned out; the record file holds every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tbnum.log.schema import lr_columns

__all__ = ["Dashboards", "ScalarWriter"]

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


class ScalarWriter(Protocol):
    """As torch's and tensorboardX's `SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, walltime: float) -> Any: ...


class Dashboards:
    """Writes `tbnum/<column>` scalars through the `SummaryWriter` of the run, on the log's background thread.

    Every `scalar_interval` steps, and always at the first step, at a skipped one, and at one whose loss scale differs
    from that of the step before. Unknown values are left out; a loss or norm that was measured and is NaN or infinite
    is written. A writer that was closed stays closed: `lost` counts what it did not take.

    A step that writes costs some 20 us a scalar, one that does not about 1 us.
    """

    def __init__(self, writer: ScalarWriter, scalar_interval: int) -> None:
        if scalar_interval < 1:
            raise ValueError(f"scalar_interval has to be at least 1, not {scalar_interval!r}")
        self.lost = 0
        self._writer = writer
        self._interval = scalar_interval
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
        if getattr(self._writer, "file_writer", self) is None:  # closed; add_scalar would open a second event file
            self.lost += len(scalars)
            return
        for tag, value in scalars:
            self._writer.add_scalar(tag, value, step, float(row[layout.wall_time]))


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
