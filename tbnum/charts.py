"""Charts of a run as SVG, as the panel first shows them: its views in their order, the marks of events over them.

What is drawn how stands in `look.json`. Loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tbnum import look
from tbnum.chart_marks import LANE, Laned, lane_marks, lanes_of, skip_bands
from tbnum.explain.derived import derived
from tbnum.explain.record import Record, is_scalar_log
from tbnum.explain.words import count_text, number_text
from tbnum.look import Line, View
from tbnum.markup import escaped
from tbnum.report import Report

__all__ = ["chart", "charts"]

WIDTH, LEFT, RIGHT = 960, 76, 12  # of a chart, in its own units
BUCKETS = 720
VALUE_TICKS, STEP_TICKS = 5, 6  # about so many
MOST_OPTIMIZERS = 4
LEAST_VALUES, FLATTENED = 40, 8  # from so many on, and by so much, points are outliers
SMOOTHING = 0.6  # as the panel begins
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


class _Axis(NamedTuple):
    """From values to places. `base`: of the logarithm that is taken first, 0: none."""

    low: float
    high: float
    top: float
    bottom: float
    base: int = 0

    def place(self, values: np.ndarray) -> np.ndarray:
        if self.base:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.log(values) / math.log(self.base)
        share = (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)
        placed: np.ndarray = self.bottom - share * (self.bottom - self.top)
        return placed


class _Frame(NamedTuple):
    """The steps from the left of a chart to its right, what stands above it, and what was skipped."""

    first: int
    last: int
    lanes: Sequence[Laned] = ()
    skips: np.ndarray = np.empty(0)

    def across(self, step: float) -> float:
        """An event may be on disk before its step, or after the last one: it stands at the edge."""
        share = (min(max(step, self.first), self.last) - self.first) / (self.last - self.first)
        return LEFT + (WIDTH - LEFT - RIGHT) * share


def charts(report: Report) -> str:
    """Those of the panel's first views that the run has values for; of several optimizers, one a chart."""
    record = report.record
    steps = record.steps.get("step", np.empty(0))
    if len(steps) < 2:
        return ""
    frame = _Frame(int(steps[0]), int(steps[-1]), lanes_of(record, report.events), _skips(report))
    names = list((record.meta.get("optimizers") or {}).keys())
    optimizers = names[:MOST_OPTIMIZERS] if len(names) > 1 else [""]
    drawn: list[str] = []
    for view in look.shown_views(_knows(record)):
        for optimizer in optimizers if view.of_optimizer else [""]:
            found = [(line, _column(record, optimizer, line.column)) for line in view.lines]
            lines = [(line, values) for line, values in found if values is not None]
            own = frame if not drawn else frame._replace(lanes=())  # the lanes stand above all charts
            title = f"{view.title} ({optimizer})" if optimizer else view.title
            drawn.append(_chart(steps, lines, view, title, own))
            drawn = [text for text in drawn if text]
    return "".join(drawn)


def chart(step: np.ndarray, values: np.ndarray, title: str, height: int, *, log: bool = False) -> str:
    """One curve over its steps (S,), as SVG."""
    view = View("", title, "log10" if log else "linear", height, False, False, (), None, ())
    return _chart(step, [(Line("", title, "--loss"), values)], view, title, _Frame(int(step[0]), int(step[-1])))


def _knows(record: Record) -> Callable[[str], bool]:
    """Whether any optimizer has a value of a column. A scalar log without a scale is one without a scaler, or a tag."""
    known = {name.rpartition("/")[2] for name, values in record.steps.items() if _any_finite(values)}
    return lambda name: name in known or (name == "loss_scale" and is_scalar_log(record))


def _any_finite(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).any())


def _column(record: Record, optimizer: str, name: str) -> np.ndarray | None:
    """Of an optimizer, or what all have; stored or derived. None where there is no finite value."""
    full = f"{optimizer}/{name}" if optimizer else name
    values = record.steps.get(full)
    values = derived(full, record.steps) if values is None else values
    return values if values is not None and _any_finite(values) else None


def _skips(report: Report) -> np.ndarray:
    return np.array(sorted({event.step for event in report.events if event.kind == "skip"}), np.float64)


def _chart(steps: np.ndarray, lines: Sequence[tuple[Line, np.ndarray]], view: View, title: str, frame: _Frame) -> str:
    base = {"log2": 2, "log10": 10}.get(view.scale, 0)
    reduced = [(line, _buckets(steps, values, frame)) for line, values in lines]
    edges = np.concatenate([np.concatenate([each.low, each.high]) for _, each in reduced] or [np.empty(0)])
    edges = edges[np.isfinite(edges) & (edges > 0 if base else True)]
    if not len(edges):
        return ""
    height, top = view.height + LANE * len(frame.lanes), 8 + LANE * len(frame.lanes)
    inside = None if base else _without_outliers(reduced)
    axis = _axis(edges if inside is None else np.array(inside), base, top, height - 18)
    parts = [_grid(axis, frame, height), skip_bands(frame.skips, frame.across, axis.top, axis.bottom)]
    for line, each in reduced:
        parts += _drawn(line, each, axis, frame.across)
    parts += [lane_marks(laned, frame.across, LANE * row + 11) for row, laned in enumerate(frame.lanes)]
    return (
        f"<figure><figcaption><b>{escaped(title)}</b>{_key(reduced, axis, inside is not None)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escaped(title)}, steps {frame.first:,} to {frame.last:,}">{"".join(parts)}</svg></figure>'
    )


def _axis(edges: np.ndarray, base: int, top: float, bottom: float) -> _Axis:
    low, high = float(edges.min()), float(edges.max())
    if base == 2:
        low, high = math.floor(math.log2(low)), math.ceil(math.log2(high))
    elif base:
        low, high = math.log10(low), math.log10(high)
        pad = max(0.08, 0.08 * (high - low))
        low, high = low - pad, high + pad
    if high <= low:
        room = 1.0 if base else (abs(low) or 1) * 0.5
        low, high = low - room, high + room
    return _Axis(low, high, top, bottom, base)


def _without_outliers(reduced: Sequence[tuple[Line, _Reduced]]) -> tuple[float, float] | None:
    """The range without the points that would flatten the rest; None where there are none.

    As the panel has it: nearly all of the values have less than an eighth of the height. What a curve begins with is
    no outlier.
    """
    values = np.concatenate([each.last for _, each in reduced])
    if len(values) < LEAST_VALUES:
        return None
    low, high = np.quantile(values, (0.05, 0.95), method="nearest")
    inner, whole = high - low, values.max() - values.min()
    if not inner > 0 or whole < FLATTENED * inner:
        return None
    start, end = max(values.min(), low - inner / 2), min(values.max(), high + inner / 2)
    for value in reduced[0][1].last.tolist():
        if start <= value <= end:
            break
        start, end = min(start, value), max(end, value)
    return None if whole < FLATTENED * (end - start) / 2 else (float(start), float(end))


def _key(reduced: Sequence[tuple[Line, _Reduced]], axis: _Axis, cut: bool) -> str:
    """Which line is which, where there are several, and what the axis leaves out."""
    items = [
        f'<span class=key style="--line:var({line.color})">{escaped(line.label)}</span>'
        for line, _ in reduced
        if len(reduced) > 1
    ]
    if any(line.smooth for line, _ in reduced):
        items.append(f"<span class=key-text>smoothed {SMOOTHING:.2f}, raw behind it</span>")
    if cut:
        beyond = sum(int(np.count_nonzero((each.high > axis.high) | (each.low < axis.low))) for _, each in reduced)
        items.append(f"<span class=key-text>{count_text(beyond, 'outlier')} left out</span>")
    return "".join(items)


class _Reduced(NamedTuple):
    """Of each bucket that holds a finite value."""

    step: np.ndarray  # the first
    low: np.ndarray
    high: np.ndarray
    last: np.ndarray
    joined: np.ndarray  # bool: nothing is missing between it and the one before


def _buckets(steps: np.ndarray, values: np.ndarray, frame: _Frame) -> _Reduced:
    rows = np.flatnonzero(np.isfinite(values))
    if not len(rows):
        empty = np.empty(0)
        return _Reduced(empty, empty, empty, empty, empty.astype(bool))
    first, last = frame.first, frame.last
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


def _drawn(line: Line, reduced: _Reduced, axis: _Axis, across: Callable[[float], float]) -> list[str]:
    """A line, behind it the strokes from the lowest to the highest of each bucket, or what it was smoothed from."""
    style = f' style="--line:var({line.color})"'
    dash = f' stroke-dasharray="{" ".join(map(str, line.dash))}"' if line.dash else ""
    values = _smoothed(reduced.last) if line.smooth else reduced.last
    path = _path(reduced, values, axis, across, held=line.stepped, through=line.sparse)
    title = f"<title>{escaped(line.label)}</title>"
    parts = [f'<path class="line"{style}{dash} d="{path}">{title}</path>']
    if line.smooth:
        raw = _path(reduced, reduced.last, axis, across)
        parts.insert(0, f'<path class="raw"{style} d="{raw}"/>')
    ranged = reduced.high > reduced.low
    if ranged.any() and not line.only:
        spread = zip(
            reduced.step[ranged], axis.place(reduced.low[ranged]), axis.place(reduced.high[ranged]), strict=True
        )
        strokes = "".join(f"M{across(step):.1f} {low:.1f}V{high:.1f}" for step, low, high in spread)
        parts.insert(0, f'<path class="range"{style} d="{strokes}"/>')
    return parts


def _smoothed(values: np.ndarray) -> np.ndarray:
    """TensorBoard's exponential moving average, without its bias towards 0."""
    result, average, weight = np.empty(len(values)), 0.0, 1.0
    for at, value in enumerate(values.tolist()):
        average = average * SMOOTHING + (1 - SMOOTHING) * value
        weight *= SMOOTHING
        result[at] = average / (1 - weight)
    return result


def _path(
    reduced: _Reduced,
    values: np.ndarray,
    axis: _Axis,
    across: Callable[[float], float],
    held: bool = False,
    through: bool = False,
) -> str:
    """A line. `held`: a value lasts until the next one, with no slope between them; `through`: over what is missing.

    Where it leaves the axis it goes up to the edge, and not along it.
    """
    drawn: list[str] = []
    beyond = np.zeros(len(values), bool) if axis.base else (values < axis.low) | (values > axis.high)
    points = zip(
        reduced.step.tolist(), axis.place(values).tolist(), reduced.joined.tolist(), beyond.tolist(), strict=True
    )
    was_beyond = False
    for step, y, joined, is_beyond in points:
        x = f"{across(step):.1f}"
        if (joined or through) and drawn and not (is_beyond and was_beyond):
            drawn.append(f"H{x}V{y:.1f}" if held else f"L{x} {y:.1f}")
        else:
            drawn.append(f"M{x} {y:.1f}" + ("" if is_beyond else "h.5"))
        was_beyond = is_beyond
    return "".join(drawn)


def _grid(axis: _Axis, frame: _Frame, height: int) -> str:
    parts = []
    for value, text in _ticks(axis):
        y = float(axis.place(np.array([value]))[0])
        parts.append(f'<path class=grid d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class=label x="{LEFT - 6}" y="{y + 4:.1f}">{escaped(text)}</text>')
    first, last = frame.first, frame.last
    size = max(1, int(_round_size((last - first) / STEP_TICKS)))
    for step in range(-(-first // size) * size, last + 1, size):
        x = frame.across(step)
        anchor = "start" if x < LEFT + 20 else "end" if x > WIDTH - RIGHT - 20 else "middle"
        parts.append(f'<text class=step x="{x:.1f}" y="{height - 4}" text-anchor="{anchor}">{step:,}</text>')
    return "".join(parts)


def _ticks(axis: _Axis) -> list[tuple[float, str]]:
    low, high = math.ceil(axis.low), math.floor(axis.high)
    count = max(2, min(VALUE_TICKS, int((axis.bottom - axis.top) / 20)))
    if not axis.base or (axis.base == 10 and high - low < 1):
        ends = (axis.base**axis.low, axis.base**axis.high) if axis.base else (axis.low, axis.high)
        return _round_values(ends[0], ends[1], count)
    stride = max(1, math.ceil((high - low) / count))
    return [(float(axis.base) ** power, _power_text(axis.base, power)) for power in range(low, high + 1, stride)]


def _short_text(value: float) -> str:
    """As in the panel: a mantissa, a cross, and a power of ten."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{float(mantissa):g}\N{MULTIPLICATION SIGN}10{str(int(exponent)).translate(SUPERSCRIPTS)}" if value else "0"


def _power_text(base: int, power: int) -> str:
    plain = base == 10 and -3 <= power <= 4
    return f"{10.0**power:,.{max(0, -power)}f}" if plain else f"{base}{str(power).translate(SUPERSCRIPTS)}"


def _round_values(low: float, high: float, count: int = VALUE_TICKS) -> list[tuple[float, str]]:
    rough = (high - low) / count
    if not 0 < rough < math.inf:  # the largest and the smallest numbers that there are
        return [(value, number_text(value)) for value in (low, high)]
    size = _round_size(rough)
    decimals = max(0, -math.floor(math.log10(size) + 1e-9))
    values = [number * size for number in range(math.ceil(low / size), math.floor(high / size) + 1)]
    plain = decimals <= 6 and max(map(abs, values), default=0.0) < 1e6
    return [(value, f"{value:.{decimals}f}" if plain else _short_text(value)) for value in values]


def _round_size(rough: float) -> float:
    """The next of 1, 2, 5, 10, ... times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
