"""What a scalar log lets one infer: where steps were skipped and why the loss scale changed, from its course.

Nobody wrote down that a step was skipped; that the scale fell by the scaler's backoff between two logged steps says
so. What is inferred says in `data["inferred"]` that it is, and how:

- `how`: "loss_scale" (it fell), "grad_norm" (it was not finite), "no_grad_norm" (a system that logs none for a
  skipped step), "counter" (the log counts skips itself);
- `at_least`: skips that it takes, where that is more than one; a growth in between would hide one more. A scale that
  fell far between two logged steps fell once, if the scaler's backoff is that small: more skips are counted only where
  the backoff is known, of the system or from a step that was logged right after another;
- `halvings`: how often it fell if each skip halved it, where that is more than `at_least`;
- `within`: how many steps the event may have happened in, its own included; absent where it is that one.

A drop or a rise by no power of the scaler's factor is no verdict of the scaler: it is a `scale_set`. A scale of 0
(float32 ends at 2**-149) never rises again, and each step that uses it is skipped: no gradient can be divided by it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tbnum.log.schema import LOGGED, Event

__all__ = ["Inferred", "Numbering", "infer"]

SMALLEST_POWER = -149
"""Of two, in float32: a backoff to less is 0."""


class Numbering(NamedTuple):
    """How a log numbers its steps: the first one, and how far apart two are (an axis of samples: a batch)."""

    first: int = 0
    unit: int = 1

    def count(self, step: int) -> int:
        """How many steps come before the one with this number."""
        return round((step - self.first) / self.unit) if self.unit > 1 else step - self.first

    @staticmethod
    def of(meta: Mapping[str, Any]) -> Numbering:
        """A run's, from its meta. What `wrap` records counts from 0."""
        given = meta.get("numbering") or {}
        return Numbering(int(given.get("first", 0)), int(given.get("unit", 1)))


class Inferred(NamedTuple):
    events: list[Event]
    skipped: np.ndarray | None  # (S,) bool, true where at least one of the steps up to it was; None: cannot be told


def infer(
    columns: Mapping[str, np.ndarray],
    numbering: Numbering,
    *,
    logged: Mapping[str, np.ndarray],
    scale_after: bool | None = True,
    skip_lacks_norm: bool = False,
    backoff: float | None = None,
    restarts: Mapping[int, str] = MappingProxyType({}),
) -> Inferred:
    """Events of a run from its `columns`, each (S,), with `step` rising.

    `logged` tells for each column where the log has a value, NaN among them. `scale_after`: the scale stands as it was
    after the step's update; False: as the step used it, so that what it fell for is the step before; None: as the norms
    tell, which are not finite where a step was skipped, and as after the update where there are none. `backoff`:
    what the scaler multiplies its scale by at a skip; None: unknown. `restarts`: steps with which the run was taken up
    anew, and what tells: "log", a new event file, or "steps", which went back in one.
    """
    step = columns["step"]
    if not len(step):
        return Inferred([], None)
    course = _Course(columns, numbering, logged, scale_after, backoff)
    found: dict[int, list[_Change]] = {}
    for change in course.changes():
        found.setdefault(change.row, []).append(change)
    skips: dict[int, _Change] = {}
    for row, changes in found.items():
        for each in changes:
            if each.kind == "skip":
                skips[row] = skips[row].and_then(each) if row in skips else each
    for row, how, count in [*course.counted(), *course.nonfinite_norms(), *course.lacking(skip_lacks_norm)]:
        fell = skips.get(row)
        if fell is None:
            skips[row] = _Change(row, "skip", how, count, 1, math.nan, math.nan)
        else:  # the scale fell as well, and where it takes one skip, this is it
            at_least = max(fell.at_least, count)
            is_this_one = at_least == 1 and fell.halvings <= 1
            skips[row] = fell._replace(at_least=at_least, within=1 if is_this_one else fell.within)
    told = course.can_tell()
    events: list[Event] = [
        Event(at, course.wall_time(at), "resume", data={"from_step": at, "how": how, "inferred": True})
        for at, how in sorted(restarts.items())
    ]
    for row in sorted(found.keys() | skips.keys()):
        skip = skips.get(row)
        if skip is not None:
            kind = "skip"
            if skip.how == "grad_norm" and not course.has_scale and course.lost_after(row):
                kind = "nonfinite_step"
            events.append(course.event(row, kind, skip))
        for change in found.get(row, ()):
            if change.kind != "skip":
                events.append(course.event(row, change.kind, change))
            elif not math.isnan(change.new):
                events.append(course.event(row, "scale_backoff", change))
    events.sort(key=lambda event: event.step)
    skipped = None
    if told:
        skipped = np.zeros(len(step), bool)
        skipped[list(skips)] = True
    return Inferred(events, skipped)


class _Change(NamedTuple):
    row: int
    kind: str
    how: str
    at_least: int
    within: int
    old: float
    new: float
    halvings: int = 0  # how often it would have fallen by 2

    def and_then(self, other: _Change) -> _Change:
        """Both, where the second came right after the first."""
        at_least, within = self.at_least + other.at_least, max(self.within, other.within)
        halvings = self.halvings + other.halvings
        return self._replace(at_least=at_least, within=within, new=other.new, halvings=halvings)


class _Course:
    """The columns, and what each of them alone says."""

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        numbering: Numbering,
        logged: Mapping[str, np.ndarray],
        scale_after: bool | None,
        backoff: float | None,
    ) -> None:
        self._columns = columns
        self._logged = logged
        self._numbering = numbering
        self._step = columns["step"]
        scale = columns.get("loss_scale", np.empty(0))
        self._divisor = None if backoff is None else 1 / backoff
        norm, there = columns.get("grad_norm"), logged.get("grad_norm")
        nowhere = np.zeros(len(self._step), bool)
        self._rows = np.flatnonzero(np.isfinite(scale) & (scale >= 0)) if len(scale) else np.empty(0, np.int64)
        if norm is not None and (np.isfinite(norm[self._rows]) & (scale[self._rows] == 0)).any():
            self._rows = self._rows[scale[self._rows] > 0]  # nothing finite was divided by a 0: it means no scale
        self._scale = scale[self._rows]
        self.has_scale = len(self._rows) > 0
        self._nonfinite_norm = nowhere if norm is None or there is None else ~np.isfinite(norm) & there  # (S,)
        self._after = self._stands_after() if scale_after is None else scale_after

    def _stands_after(self) -> bool:
        """Whether the scale fell where a norm was not finite, and not, or less often, in the row after that."""
        fell = np.flatnonzero(np.diff(self._scale) < 0)
        here, before = self._nonfinite_norm[self._rows[fell + 1]], self._nonfinite_norm[self._rows[fell]]
        return bool(np.count_nonzero(here & ~before) >= np.count_nonzero(before & ~here))

    def wall_time(self, step: int) -> float:
        at = int(np.searchsorted(self._step, step))
        return float(self._columns["wall_time"][min(at, len(self._step) - 1)])

    def can_tell(self) -> bool:
        """Whether the log says which steps were skipped. Else a column of them would claim that there were none."""
        return self.has_scale or "skipped" in self._logged

    def changes(self) -> list[_Change]:
        """Of the scale, between one logged step and the next."""
        if len(self._scale) < 2:
            return []
        at = np.flatnonzero((np.diff(self._scale) != 0) | (self._scale[1:] == 0)) + 1
        if not len(at):
            return []
        gaps = [self._gap(each) for each in at.tolist()]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = (self._scale[at - 1] / self._scale[at]).tolist()  # inf where it became 0, NaN where it stayed so
        fell = [(ratio, gap) for ratio, gap in zip(ratios, gaps, strict=True) if 1 < ratio < math.inf]
        backoff = _factor(fell)
        growth = _factor([(1 / ratio, gap) for ratio, gap in zip(ratios, gaps, strict=True) if 0 < ratio < 1])
        steps_seen = [(ratio, gap) for ratio, gap in fell if gap == 1]
        divisor = _factor(steps_seen) if steps_seen else self._divisor
        changes = []
        for each, gap, ratio in zip(at.tolist(), gaps, ratios, strict=True):
            old, new = float(self._scale[each - 1]), float(self._scale[each])
            row = int(self._rows[each])
            if old == new == 0:
                changes.append(_Change(row, "skip", "loss_scale", gap, gap, old, math.nan))
                continue
            if new == 0 and not self._after:  # used by this step already
                changes.append(_Change(row, "skip", "loss_scale", 1, 1, new, math.nan))
            halvings = 0
            times = (_power(ratio, backoff) if ratio > 1 else _power(1 / ratio, growth)) if ratio else None
            if new == 0 and math.log2(old) - gap * math.log2(backoff) < SMALLEST_POWER:
                times = gap  # it fell, and the rest were lost to the 0
            if times is None or times > gap:
                kind, times = "scale_set", 0
            elif ratio < 1:
                kind = "scale_growth"
            else:
                kind = "skip"
                known = _power(ratio, divisor) if divisor else None
                times, halvings = known if known is not None and known <= gap else 1, times
            if not self._after:  # the row before used the old scale and this one the new: it may be that row's doing
                before = int(self._rows[each - 1])
                if gap == 1 or (kind == "skip" and times == 1 and self._nonfinite_norm[before]):
                    row, gap = before, 1
                else:
                    gap += 1
                    if kind == "skip" and self._nonfinite_norm[before]:
                        times -= 1  # told by its norm
            changes.append(_Change(row, kind, "loss_scale", times, gap, old, new, halvings))
        return changes

    def _gap(self, at: int) -> int:
        """Steps from the logged scale before to this one."""
        step = self._step[self._rows[at - 1 : at + 1]]
        return max(1, self._numbering.count(int(step[1])) - self._numbering.count(int(step[0])))

    def counted(self) -> list[tuple[int, str, int]]:
        """Skips that the log itself has: a flag at each step, or a running total."""
        values = self._columns.get("skipped")
        if values is None or "skipped" not in self._logged:
            return []
        rows = np.flatnonzero(np.isfinite(values))
        values = values[rows]
        if len(values) and values.max() > 1:
            values = np.diff(values, prepend=0.0)
        return [(int(rows[at]), "counter", int(values[at])) for at in np.flatnonzero(values > 0).tolist()]

    def nonfinite_norms(self) -> list[tuple[int, str, int]]:
        return [(row, "grad_norm", 1) for row in np.flatnonzero(self._nonfinite_norm).tolist()]

    def lacking(self, skip_lacks_norm: bool) -> list[tuple[int, str, int]]:
        """Steps that have a scale and no norm, where all others have one. The last may still be being written."""
        there = self._logged.get("grad_norm")
        if not skip_lacks_norm or there is None or not self.has_scale:
            return []
        rows = self._rows[:-1]
        absent = rows[~there[rows]]
        if 2 * len(absent) > len(rows):
            return []  # not logged at each step
        return [(row, "no_grad_norm", 1) for row in absent.tolist()]

    def lost_after(self, row: int) -> bool:
        """Whether losses follow and none is finite: an update that was skipped leaves no trace in them."""
        loss, there = self._columns.get("loss"), self._logged.get("loss")
        if loss is None or there is None:
            return False
        later = loss[row + 1 :][there[row + 1 :]]
        return len(later) > 0 and not np.isfinite(later).any()

    def event(self, row: int, kind: str, change: _Change) -> Event:
        data: dict[str, Any] = {"inferred": True, "how": change.how}
        if change.within > 1:
            data["within"] = change.within
        if kind in ("skip", "nonfinite_step"):
            if change.at_least > 1:
                data["at_least"] = change.at_least
            if change.halvings > change.at_least:
                data["halvings"] = change.halvings
            if self.has_scale:
                data["loss_scale"] = change.old if not math.isnan(change.old) else self._scale_at(row)
            if not math.isnan(change.new):
                data["new_scale"] = change.new
            lost = max(change.at_least, change.halvings)
            if change.within == 1 or lost >= change.within:  # else the row's values are of another step
                for name in ("loss", "grad_norm"):
                    there = self._logged.get(name)
                    if there is not None and there[row]:
                        data[name] = float(self._columns[name][row])
                        if name == "loss" and math.isnan(data[name]):
                            data[name + LOGGED] = True
        else:
            data |= {"old_scale": change.old, "new_scale": change.new}
        step = int(self._step[row])
        return Event(step, float(self._columns["wall_time"][row]), kind, data=data)

    def _scale_at(self, row: int) -> float:
        """The scale that the step used, where it did not change: the last logged one."""
        at = int(np.searchsorted(self._rows, row, side="right")) - 1
        return float(self._scale[at]) if at >= 0 else math.nan


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
