"""What a scalar log lets one infer: where steps were skipped and why the loss scale changed.

A log may have every step or every k-th, and the scale as it was after the step's update or as the step used it. Events
stand at the logged step at which they show. `data["inferred"]` says that they are inferred, and the rest how:

- `how`: "loss_scale" (it fell), "grad_norm" (it was not finite), "no_grad_norm" (a system that logs none for a
  skipped step), "counter" (the log counts skips itself);
- `at_least`: skips that it takes, where that is more than one; a growth in between would hide one more. A scale that
  fell far between two logged steps fell once, if the scaler's backoff is that small: more skips are counted only where
  the backoff is known, of the system or from a step that was logged right after another;
- `halvings`: how often it fell if each skip halved it, where that is more than `at_least`;
- `within`: how many steps the event may have happened in, its own included; absent where it is that one.

A drop or a rise by no power of the scaler's factor is no verdict of the scaler: it is a `scale_set`. A scale of 0
(float32 ends at 2**-149) never rises again, and each step that uses it is skipped: no gradient can be divided by it. A
scale of 1 throughout is that of a scaler that is switched off, and counts as none.

What a norm that is not finite means, depends on whether the run has a loss scaler, and on what was logged afterwards:

| scaler | finite values follow | only values that are not finite | nothing yet |
|---|---|---|---|
| its scale is logged | `skip` | `skip` | `skip` |
| may be there unseen | `skip` | `nonfinite_step` | `nonfinite_norm` |
| none | `norm_overflow`, of a NaN `nonfinite_norm` | `nonfinite_step` | `nonfinite_norm` |
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tbnum.log.numbering import Numbering
from tbnum.log.scale_changes import Change, Scales, scale_changes
from tbnum.log.schema import LOGGED, Event

__all__ = ["Habits", "Inferred", "Scaler", "infer"]


class Scaler(enum.Enum):
    """What is known of a system's loss scaler."""

    LOGGED = "wherever it has one, the log has its scale"
    UNSEEN = "it may have one that the log does not show"
    NONE = "it has none"


@dataclass(frozen=True)
class Habits:
    """How a system logs, as far as it matters to what its scalars mean."""

    scaler: Scaler = Scaler.UNSEEN
    scale_after: bool | None = None
    """The scale is logged as it was after the step's update; False: as the step used it, so that what it fell for is
    the step before; None: as the norms say, which are not finite where a step was skipped, else as after the update."""
    backoff: float | None = None
    """What its scaler multiplies the scale by at a skip; None: the user's choice."""
    skip_lacks_norm: bool = False
    """Whether a skipped step logs no gradient norm."""
    loss_is_filtered: bool = False
    """Whether a loss that is not finite is replaced before it is logged: then finite losses say nothing."""
    window: int = 1
    """Losses and norms are means over so many steps, the last one included."""


class Inferred(NamedTuple):
    events: list[Event]
    skipped: np.ndarray | None  # (S,) bool, true where at least one of the steps up to it was; None: unknown


def infer(
    columns: Mapping[str, np.ndarray],
    numbering: Numbering,
    habits: Habits,
    *,
    logged: Mapping[str, np.ndarray],
    restarts: Mapping[int, str] = MappingProxyType({}),
) -> Inferred:
    """Events of a run from its `columns`, each (S,), with `step` rising.

    `logged` says for each column where the log has a value, NaN among them. `restarts`: steps at which the run was
    resumed, and what says so: "log", a new event file, or "steps", which went back in one.
    """
    if not len(columns["step"]):
        return Inferred([], None)
    log = _Log(columns, numbering, logged, habits)
    changes = log.scale_changes()
    evidence = [change for change in changes if change.kind == "skip"]
    evidence += [*log.counted(), *log.nonfinite_norms(), *log.lacking_norms()]
    events = [
        Event(step, log.wall_time(step), "resume", data={"from_step": step, "how": how, "inferred": True})
        for step, how in sorted(restarts.items())
    ]
    verdicts = _one_a_row(evidence)
    by_row: dict[int, list[Event]] = {row: [log.event(verdict)] for row, verdict in verdicts.items()}
    for change in changes:
        kind = "scale_backoff" if change.kind == "skip" else change.kind
        if not math.isnan(change.new):
            by_row.setdefault(change.row, []).append(log.event(change._replace(kind=kind)))
    events += [event for _, of_row in sorted(by_row.items()) for event in of_row]
    events.sort(key=lambda event: event.step)
    skipped = None
    if log.shows_skips:
        skipped = np.zeros(len(columns["step"]), bool)
        skipped[[row for row, verdict in verdicts.items() if verdict.kind == "skip"]] = True
    return Inferred(events, skipped)


def _one_a_row(evidence: Iterable[Change]) -> dict[int, Change]:
    """What happened at each row, of all that points to it: changes of the scale first."""
    verdicts: dict[int, Change] = {}
    for found in evidence:
        known = verdicts.get(found.row)
        if known is None:
            verdicts[found.row] = found
        elif found.how == known.how == "loss_scale":
            verdicts[found.row] = known.and_then(found)
        else:  # the scale fell as well, and where it takes one skip, this is it
            at_least = max(known.at_least, found.at_least)
            is_this_one = at_least == 1 and known.halvings <= 1
            verdicts[found.row] = known._replace(at_least=at_least, within=1 if is_this_one else known.within)
    return verdicts


class _Log:
    """The columns, and what each of them alone says."""

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        numbering: Numbering,
        logged: Mapping[str, np.ndarray],
        habits: Habits,
    ) -> None:
        self._columns = columns
        self._logged = logged
        self._numbering = numbering
        self._habits = habits
        self._step = columns["step"]
        norm = columns.get("grad_norm")
        self._nonfinite_norm = np.zeros(len(self._step), bool)  # (S,)
        if norm is not None and "grad_norm" in logged:
            self._nonfinite_norm = ~np.isfinite(norm) & logged["grad_norm"]
        self._scales = Scales.of(self._step, columns.get("loss_scale"), norm, self._nonfinite_norm)
        self._scaler = habits.scaler
        if len(self._scales.rows) == 0 and habits.scaler is Scaler.LOGGED:
            self._scaler = Scaler.NONE

    @property
    def _has_scale(self) -> bool:
        return len(self._scales.rows) > 0

    @property
    def shows_skips(self) -> bool:
        """Whether the log says which steps were skipped. Else a column of them would claim that there were none."""
        return self._has_scale or "skipped" in self._logged

    def wall_time(self, step: int) -> float:
        row = int(np.searchsorted(self._step, step))
        return float(self._columns["wall_time"][min(row, len(self._step) - 1)])

    def scale_changes(self) -> list[Change]:
        after = self._habits.scale_after
        if after is None:
            after = self._scales.stand_after()
        return scale_changes(self._scales, self._numbering, after=after, backoff=self._habits.backoff)

    def counted(self) -> list[Change]:
        """Skips that the log itself has: a flag at each step, or a running total."""
        values = self._columns.get("skipped")
        if values is None or "skipped" not in self._logged:
            return []
        rows = np.flatnonzero(np.isfinite(values))
        values = values[rows]
        if len(values) and values.max() > 1:
            values = np.diff(values, prepend=0.0)
        skipped = np.flatnonzero(values > 0)
        return [Change(int(rows[at]), "skip", "counter", max(1, int(values[at])), 1) for at in skipped.tolist()]

    def lacking_norms(self) -> list[Change]:
        """Steps that have a scale and no norm, where all others have one. The last may still be being written."""
        there = self._logged.get("grad_norm")
        if not self._habits.skip_lacks_norm or there is None or not self._has_scale:
            return []
        rows = self._scales.rows[:-1]
        absent = rows[~there[rows]]
        if 2 * len(absent) > len(rows):
            return []  # not logged at each step
        return [Change(row, "skip", "no_grad_norm", 1, 1) for row in absent.tolist()]

    def nonfinite_norms(self) -> list[Change]:
        """By the table above. Of the means that one step spoiled, the first stands for it."""
        found: list[Change] = []
        spoiled_until = -math.inf
        for row in np.flatnonzero(self._nonfinite_norm).tolist():
            count = self._numbering.count(int(self._step[row]))
            if count >= spoiled_until:
                spoiled_until = count + self._habits.window
                found.append(Change(row, self._meaning(row), "grad_norm", 1, self._habits.window))
        return found

    def _meaning(self, row: int) -> str:
        """Of a norm that is not finite."""
        if self._has_scale:
            return "skip"
        last_finite, lost_from = self._outcome
        if row >= lost_from:
            return "nonfinite_step"
        if row >= last_finite:
            return "nonfinite_norm"
        if self._scaler is Scaler.UNSEEN:
            return "skip"
        return "norm_overflow" if math.isinf(self._columns["grad_norm"][row]) else "nonfinite_norm"

    @functools.cached_property
    def _outcome(self) -> tuple[int, float]:
        """The last row with a value that only finite parameters could give (-1: none), and the first one with a norm
        that is not finite after which there are only values that are not, or inf.
        """
        there, finite = np.zeros(len(self._step), bool), np.zeros(len(self._step), bool)
        for name in ("grad_norm",) if self._habits.loss_is_filtered else ("loss", "grad_norm"):
            if name in self._logged:
                there |= self._logged[name]
                finite |= np.isfinite(self._columns[name]) & self._logged[name]
        last_finite = int(np.flatnonzero(finite)[-1]) if finite.any() else -1
        last = int(np.flatnonzero(there)[-1]) if there.any() else -1
        spoiled = np.flatnonzero(self._nonfinite_norm)
        spoiled = spoiled[(spoiled >= last_finite) & (spoiled < last)]
        return last_finite, float(spoiled[0]) if len(spoiled) else math.inf

    def event(self, change: Change) -> Event:
        data: dict[str, Any] = {"inferred": True, "how": change.how}
        if change.within > 1:
            data["within"] = change.within
        if change.kind in ("scale_growth", "scale_backoff", "scale_set"):
            data |= {"old_scale": change.old, "new_scale": change.new}
        else:
            self._describe(change, data)
        return Event(int(self._step[change.row]), float(self._columns["wall_time"][change.row]), change.kind, data=data)

    def _describe(self, change: Change, data: dict[str, Any]) -> None:
        """Adds what is known of a step that went wrong."""
        if change.at_least > 1:
            data["at_least"] = change.at_least
        if change.halvings > change.at_least:
            data["halvings"] = change.halvings
        if self._has_scale:
            data["loss_scale"] = change.old if not math.isnan(change.old) else self._scale_at(change.row)
        if not math.isnan(change.new):
            data["new_scale"] = change.new
        lost = max(change.at_least, change.halvings)
        known = ("loss", "grad_norm") if change.within == 1 or lost >= change.within else ()
        for name in known or (("grad_norm",) if change.how == "grad_norm" else ()):
            there = self._logged.get(name)  # else the row's values are of another step
            if there is not None and there[change.row]:
                data[name] = float(self._columns[name][change.row])
                if name == "loss" and math.isnan(data[name]):
                    data[name + LOGGED] = True

    def _scale_at(self, row: int) -> float:
        """The scale that the step used, where it did not change: the last logged one."""
        at = int(np.searchsorted(self._scales.rows, row, side="right")) - 1
        return float(self._scales.values[at]) if at >= 0 else math.nan
