"""What the changes of a logged loss scale mean: a skip, a growth, or a scale that was set."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from tbnum.log.numbering import Numbering

__all__ = ["Change", "Scales", "scale_changes"]

SMALLEST_POWER = -149
"""Of two, in float32: a backoff to less is 0."""


class Change(NamedTuple):
    """Something that happened at or before a row of the log."""

    row: int
    kind: str
    how: str
    at_least: int  # skips that it takes
    within: int  # steps that it may have happened in, that of the row included
    old: float = math.nan
    new: float = math.nan
    halvings: int = 0  # how often the scale would have fallen by 2

    def and_then(self, other: Change) -> Change:
        """Both, where the second came right after the first."""
        at_least, within = self.at_least + other.at_least, max(self.within, other.within)
        halvings = self.halvings + other.halvings
        return self._replace(at_least=at_least, within=within, new=other.new, halvings=halvings)


class Scales(NamedTuple):
    """The rows that have a scale which somebody divided by."""

    rows: np.ndarray  # (N,) int64, rising
    steps: np.ndarray  # (N,) int64
    values: np.ndarray  # (N,) float64, finite and >= 0
    nonfinite_norms: np.ndarray  # (N,) bool

    @staticmethod
    def of(step: np.ndarray, scale: np.ndarray | None, norm: np.ndarray | None, nonfinite_norm: np.ndarray) -> Scales:
        """Those of a log. None where the scale is 1 throughout, as of a scaler that is switched off."""
        rows = np.empty(0, np.int64)
        if scale is not None:
            rows = np.flatnonzero(np.isfinite(scale) & (scale >= 0))
            if norm is not None and (np.isfinite(norm[rows]) & (scale[rows] == 0)).any():
                rows = rows[scale[rows] > 0]  # nothing finite was divided by a 0: it means no scale
            if (scale[rows] == 1).all():
                rows = rows[:0]
        values = np.empty(0) if scale is None else scale[rows]
        return Scales(rows, step[rows], values, nonfinite_norm[rows])

    def gap(self, at: int, numbering: Numbering) -> int:
        """Steps from the scale before to this one."""
        before, here = self.steps[at - 1 : at + 1].tolist()
        return max(1, numbering.count(here) - numbering.count(before))

    def stand_after(self) -> bool:
        """Whether the scale fell where a norm was not finite, and not, or less often, in the row after that."""
        fell = np.flatnonzero(np.diff(self.values) < 0)
        here, before = self.nonfinite_norms[fell + 1], self.nonfinite_norms[fell]
        return bool(np.count_nonzero(here & ~before) >= np.count_nonzero(before & ~here))


def scale_changes(scales: Scales, numbering: Numbering, *, after: bool, backoff: float | None) -> list[Change]:
    """Changes between one logged scale and the next.

    `after`: the scales stand as they were after their step's update; else as the step used them. `backoff`: what the
    scaler multiplies its scale by at a skip, None where that is the user's choice.
    """
    if len(scales.values) < 2:
        return []
    changed = np.flatnonzero((np.diff(scales.values) != 0) | (scales.values[1:] == 0)) + 1
    if not len(changed):
        return []
    gaps = [scales.gap(at, numbering) for at in changed.tolist()]
    with np.errstate(divide="ignore", invalid="ignore"):
        # inf where it became 0, NaN where it stayed so
        ratios = (scales.values[changed - 1] / scales.values[changed]).tolist()
    factors = _Factors.of(list(zip(ratios, gaps, strict=True)), backoff)
    return [
        _change(scales, at, gap, ratio, factors, after)
        for at, gap, ratio in zip(changed.tolist(), gaps, ratios, strict=True)
    ]


class _Factors(NamedTuple):
    """What a scaler divides its scale by at a skip, and multiplies it by when it grows."""

    backoff: float
    growth: float
    known_backoff: float | None  # of the system, or seen from one step to the next

    @staticmethod
    def of(ratios: list[tuple[float, int]], backoff: float | None) -> _Factors:
        fell = [(ratio, gap) for ratio, gap in ratios if 1 < ratio < math.inf]
        one_step = [(ratio, gap) for ratio, gap in fell if gap == 1]
        of_system = None if backoff is None else 1 / backoff
        return _Factors(
            backoff=_factor(fell),
            growth=_factor([(1 / ratio, gap) for ratio, gap in ratios if 0 < ratio < 1]),
            known_backoff=_factor(one_step) if one_step else of_system,
        )


def _change(scales: Scales, at: int, gap: int, ratio: float, factors: _Factors, after: bool) -> Change:
    old, new = scales.values[at - 1 : at + 1].tolist()
    row, before = int(scales.rows[at]), int(scales.rows[at - 1])
    if old == new == 0:
        return Change(row, "skip", "loss_scale", gap, gap, old)
    if new == 0 and not after:  # used by this step already
        return Change(row, "skip", "loss_scale", 1, 1, new)
    kind, times, halvings = _meaning(ratio, gap, old, new, factors)
    if not after:  # the row before used the old scale and this one the new: it may be that row's doing
        skipped_before = bool(scales.nonfinite_norms[at - 1])
        if gap == 1 or (kind == "skip" and times == 1 and skipped_before):
            row, gap = before, 1
        else:
            gap += 1
            if kind == "skip" and skipped_before:
                times -= 1  # its own norm says so already
    return Change(row, kind, "loss_scale", times, gap, old, new, halvings)


def _meaning(ratio: float, gap: int, old: float, new: float, factors: _Factors) -> tuple[str, int, int]:
    """The kind of a change, how many skips it takes, and how many if each halved the scale."""
    times = None
    if ratio:
        times = _power(ratio, factors.backoff) if ratio > 1 else _power(1 / ratio, factors.growth)
    if new == 0 and math.log2(old) - gap * math.log2(factors.backoff) < SMALLEST_POWER:
        times = gap  # it fell, and the rest were lost to the 0
    if times is None or times > gap:
        return "scale_set", 0, 0
    if ratio < 1:
        return "scale_growth", times, 0
    known = _power(ratio, factors.known_backoff) if factors.known_backoff else None
    return "skip", (known if known is not None and known <= gap else 1), times


def _factor(ratios: list[tuple[float, int]]) -> float:
    """What the scaler multiplies or divides by: 2, unless another factor explains more of the ratios."""
    usual = Counter(round(ratio, 6) for ratio, _ in ratios).most_common(8)
    candidates = [2.0, *(ratio for ratio, _ in usual if 1.001 < ratio < math.inf)]
    return max(candidates, key=lambda factor: sum(_fits(ratio, factor, gap) for ratio, gap in ratios))


def _fits(ratio: float, factor: float, gap: int) -> bool:
    times = _power(ratio, factor)
    return times is not None and times <= gap


def _power(ratio: float, factor: float) -> int | None:
    """How often `factor` goes into `ratio`; None where it does not."""
    if not math.isfinite(ratio):
        return None
    times = math.log(ratio) / math.log(factor)
    whole = round(times)
    return whole if whole >= 1 and abs(times - whole) < 1e-3 else None
