"""Charts of a run as SVG: its loss with the marks of what happened, the loss scale, gradient norms. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tbnum.explain.record import Record
from tbnum.explain.view import nonfinite_losses
from tbnum.explain.words import number_text, scale_text
from tbnum.log.columns import columns_named
from tbnum.log.schema import Event
from tbnum.markup import escaped
from tbnum.report import Report

__all__ = ["chart", "charts"]

WIDTH, LEFT, RIGHT = 960, 64, 12  # of a chart, in its own units
BUCKETS = 720
VALUE_TICKS, STEP_TICKS = 5, 6  # about so many
LANE = 12  # height of a lane of marks

LANES = (
    ("error", "errors: the parameters are not finite, the scale collapsed"),
    ("warning", "warnings: bad batches, a loss that is not finite, misuse"),
    ("info", "skips that belong to a dynamic loss scale"),
)


class _Axis(NamedTuple):
    """From values to places: `log` takes the logarithm first."""

    low: float
    high: float
    top: float
    bottom: float
    log: bool = False

    def place(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log2(values) if self.log else values
        share = (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)
        placed: np.ndarray = self.bottom - share * (self.bottom - self.top)
        return placed


def charts(report: Report) -> str:
    record = report.record
    if len(record.steps.get("step", ())) < 2:
        return ""
    drawn = [_loss(record, report.events)]
    scale = record.steps.get("loss_scale")
    if scale is not None and np.isfinite(scale).any():
        drawn.append(_chart(record, [("loss_scale", "scale")], "loss scale", 110, log=True, held=True))
    norms = [column.full for column, _ in columns_named(record.steps, "grad_norm")]
    norms = [name for name in norms if np.isfinite(record.steps[name]).any()][:4]
    if norms:
        drawn.append(
            _chart(record, [(name, f"norm n{at}") for at, name in enumerate(norms)], "gradient norm", 110, True)
        )
    return "".join(chart for chart in drawn if chart)


class _OneColumn(NamedTuple):
    """A record of one column."""

    steps: Mapping[str, np.ndarray]
    raw_events: Sequence[Event] = ()
    meta: Mapping[str, Any] = {}


def chart(step: np.ndarray, values: np.ndarray, title: str, height: int, *, log: bool = False) -> str:
    """One curve over its steps (S,), as SVG."""
    return _chart(_OneColumn({"step": step, title: values}), [(title, "loss")], title, height, log=log)


def _loss(record: Record, events: Sequence[Event]) -> str:
    """The curve with its marks over it, a lane for each severity; what a mark is stands in its tooltip."""
    if "loss" not in record.steps:
        return ""
    marked = [event for event in events if event.kind in ("skip", "nonfinite_step", "scale_collapse", "crash")]
    marked += [e for e in events if e.severity != "info" and e not in marked] if len(events) < 5000 else []
    rows = nonfinite_losses(record)
    steps = record.steps["step"]
    lanes: list[tuple[str, str, list[tuple[int, str]]]] = []
    for severity, words in LANES:
        marks = [
            (event.step, f"step {event.step:,}: {event.cause or event.kind}. {event.message}")
            for event in marked
            if event.severity == severity
        ]
        if marks:
            lanes.append((severity, words, marks))
    if len(rows):
        marks = [(int(steps[row]), f"step {int(steps[row]):,}: the loss was not finite") for row in rows.tolist()]
        lanes.append(("nonfinite", "steps whose loss was NaN or inf", marks))
    return _chart(record, [("loss", "loss")], "loss", 220, lanes=lanes)


def _chart(
    record: Record,
    columns: Sequence[tuple[str, str]],
    title: str,
    height: int,
    log: bool = False,
    held: bool = False,
    lanes: Sequence[tuple[str, str, list[tuple[int, str]]]] = (),
) -> str:
    steps = record.steps["step"]
    top, bottom = 10 + (LANE + 2) * len(lanes), height - 18
    first, last = int(steps[0]), int(steps[-1])
    reduced = [(_buckets(steps, record.steps[name], first, last), kind, name) for name, kind in columns]
    edges = np.concatenate([np.concatenate([each.low, each.high]) for each, _, _ in reduced])
    edges = edges[np.isfinite(edges) & (edges > 0 if log else True)]
    if not len(edges):
        return ""
    low, high = float(edges.min()), float(edges.max())
    if log:
        low, high = math.floor(math.log2(low)), math.ceil(math.log2(high))
    if high <= low:
        low, high = low - (abs(low) or 1) * 0.5, high + (abs(high) or 1) * 0.5
    axis = _Axis(low, high, top, bottom, log)

    def across(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / (last - first)

    parts = [_grid(axis, first, last, across, height)]
    for each, kind, name in reduced:
        line = _path(each, axis, across, held)
        parts.append(f'<path class="{kind}" d="{line}"><title>{escaped(name)}</title></path>')
    for lane, (kind, words, marks) in enumerate(lanes):
        parts.append(_marks(kind, marks, across, 4 + LANE * lane, bottom))
        legend = f"<title>{escaped(words)}</title>"
        parts.append(f'<text class="label {kind}" x="{LEFT - 6}" y="{11 + LANE * lane}">{kind}{legend}</text>')
    return (
        f'<figure><figcaption>{escaped(title)}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escaped(title)}, steps {first:,} to {last:,}">{"".join(parts)}</svg></figure>'
    )


class _Reduced(NamedTuple):
    """Of each bucket that holds a finite value."""

    step: np.ndarray  # the first
    low: np.ndarray
    high: np.ndarray
    last: np.ndarray
    joined: np.ndarray  # bool: nothing is missing between it and the one before


def _buckets(steps: np.ndarray, values: np.ndarray, first: int, last: int) -> _Reduced:
    rows = np.flatnonzero(np.isfinite(values))
    if not len(rows):
        empty = np.empty(0)
        return _Reduced(empty, empty, empty, empty, empty.astype(bool))
    bucket = (steps.astype(np.float64) - first) * BUCKETS // max(last - first + 1, 1)  # int64 may not hold it
    bucket = np.minimum(bucket, BUCKETS - 1).astype(np.int64)
    of = bucket[rows]
    starts = np.flatnonzero(np.diff(of, prepend=-1))
    ends = np.append(starts[1:], len(rows)) - 1
    finite = values[rows]
    gap = np.ones(len(starts), bool)
    between = bucket[rows[starts[1:]] - 1]  # of the row before: where it is a finite row's, nothing is missing
    gap[1:] = between != of[ends[:-1]]
    return _Reduced(
        steps[rows[starts]],
        np.minimum.reduceat(finite, starts),
        np.maximum.reduceat(finite, starts),
        finite[ends],
        ~gap,
    )


def _path(reduced: _Reduced, axis: _Axis, across: Callable[[float], float], held: bool) -> str:
    """A line through the last values, with a stroke from the lowest to the highest of each bucket.

    `held`: a value lasts until the next one, with no slope between them.
    """
    places = (axis.place(each).tolist() for each in (reduced.low, reduced.high, reduced.last))
    drawn = []
    for step, low, high, end, joined in zip(reduced.step.tolist(), *places, reduced.joined.tolist(), strict=True):
        x = f"{across(step):.1f}"
        place = (f"H{x}V{low:.1f}" if held else f"L{x} {low:.1f}") if joined else f"M{x} {low:.1f}"
        drawn.append(f"{place}V{high:.1f}V{end:.1f}")
    return "".join(drawn)


def _grid(axis: _Axis, first: int, last: int, across: Callable[[float], float], height: int) -> str:
    parts = []
    for value, words in _powers_of_two(axis) if axis.log else _round_values(axis.low, axis.high):
        y = float(axis.place(np.array([value]))[0])
        parts.append(f'<path class=grid d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class=label x="{LEFT - 6}" y="{y + 4:.1f}">{escaped(words)}</text>')
    size = max(1, int(_round_size((last - first) / STEP_TICKS)))
    for step in range(-(-first // size) * size, last + 1, size):
        x = across(step)
        anchor = "start" if x < LEFT + 20 else "end" if x > WIDTH - RIGHT - 20 else "middle"
        parts.append(f'<text class=step x="{x:.1f}" y="{height - 4}" text-anchor="{anchor}">{step:,}</text>')
    return "".join(parts)


def _powers_of_two(axis: _Axis) -> list[tuple[float, str]]:
    low, high = math.ceil(axis.low), math.floor(axis.high)
    stride = max(1, math.ceil((high - low) / VALUE_TICKS))
    return [(2.0**power, scale_text(2.0**power)) for power in range(low, high + 1, stride)]


def _round_values(low: float, high: float) -> list[tuple[float, str]]:
    rough = (high - low) / VALUE_TICKS
    if not 0 < rough < math.inf:  # the largest and the smallest numbers that there are
        return [(value, number_text(value)) for value in (low, high)]
    size = _round_size(rough)
    decimals = max(0, -math.floor(math.log10(size) + 1e-9))
    values = [number * size for number in range(math.ceil(low / size), math.floor(high / size) + 1)]
    plain = decimals <= 6 and max(map(abs, values), default=0.0) < 1e6
    return [(value, f"{value:.{decimals}f}" if plain else number_text(value)) for value in values]


def _round_size(rough: float) -> float:
    """The next of 1, 2, 5, 10, ... times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _marks(kind: str, marks: Iterable[tuple[int, str]], across: Callable[[float], float], y: int, bottom: float) -> str:
    """One mark a place; where several meet, the tooltip has the first and their number."""
    at: dict[int, list[str]] = {}
    for step, words in marks:
        at.setdefault(round(across(step)), []).append(words)
    parts = []
    for x, here in sorted(at.items()):
        text = here[0] + (f" (and {len(here) - 1:,} more here)" if len(here) > 1 else "")
        parts.append(
            f'<g class="mark {kind}"><path d="M{x} {y + 5}V{bottom:.0f}"/><circle cx="{x}" cy="{y + 3}" r="4"/>'
            f"<title>{escaped(text)}</title></g>"
        )
    return "".join(parts)
