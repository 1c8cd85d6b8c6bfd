"""What `explain` needs of a run, and how it looks back and ahead in it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from tbnum.explain.close_look import CloseLook
from tbnum.explain.words import as_float
from tbnum.log.inferred import Numbering
from tbnum.log.schema import Event

__all__ = [
    "SCALE_CHANGES",
    "Later",
    "LivePast",
    "Part",
    "Past",
    "Record",
    "RecordedPast",
    "also_skipped",
    "attempts",
    "complete_events",
    "first_step",
    "is_scalar_log",
    "look_ahead",
    "skips_of",
    "slack_of",
]

FROM_ZERO = Numbering()

WINDOW = 50
"""How many steps back "recent" reaches."""

SCALE_CHANGES = ("scale_growth", "scale_backoff", "scale_set", "scaler_state_lost")


class Record(Protocol):
    """The part of `tbnum.log.reader.Run` that is used. `steps`: equal lengths, in order of `step`."""

    @property
    def steps(self) -> Mapping[str, np.ndarray]: ...
    @property
    def raw_events(self) -> Sequence[Event]: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...


class Part:
    """A record from a step on. The tables of tensors stay whole: who reads them asks for the steps that he means."""

    def __init__(self, record: Record, since: int) -> None:
        begin = int(np.searchsorted(record.steps.get("step", np.empty(0)), since))
        self.steps: Mapping[str, np.ndarray] = {name: values[begin:] for name, values in record.steps.items()}
        self.raw_events: Sequence[Event] = [event for event in record.raw_events if event.step >= since]
        self.meta = record.meta
        self.tensors = getattr(record, "tensors", None)
        self.histograms = getattr(record, "histograms", None)


class Past(Protocol):
    """What the steps before a step say. The log and a live run answer alike."""

    def recent_losses(self, before: int) -> list[float]:
        """Finite losses of the unskipped ones among the `WINDOW` steps recorded before step `before`."""
        ...

    def last_finite_loss(self, before: int) -> int | None:
        """The last recorded step before `before` whose loss was finite."""
        ...

    def norm_ratio(self, step: int, optimizer: str | None) -> float:
        """How many times their usual length the finite gradients of a skipped step have. NaN where unknown."""
        ...

    def overflowed(self, step: int, optimizer: str | None) -> bool:
        """Whether the gradients of a skipped step are known to hold inf, and not NaN alone."""
        ...


class RecordedPast:
    """The past as arrays have it. Building is O(1), a question O(log steps + WINDOW)."""

    def __init__(self, steps: Mapping[str, np.ndarray], look: CloseLook | None = None) -> None:
        self._look = look
        self._step = steps.get("step", np.empty(0, np.int64))
        self._loss = steps.get("loss", np.full(len(self._step), np.nan))
        self._skipped = steps.get("skipped", np.zeros(len(self._step), bool))
        self._finite_at: np.ndarray | None = None

    def recent_losses(self, before: int) -> list[float]:
        end = int(np.searchsorted(self._step, before))
        window = slice(max(0, end - WINDOW), end)
        losses = self._loss[window]
        return losses[np.isfinite(losses) & ~self._skipped[window]].tolist()

    def last_finite_loss(self, before: int) -> int | None:
        if self._finite_at is None:
            self._finite_at = self._step[np.isfinite(self._loss)]
        end = int(np.searchsorted(self._finite_at, before))
        return int(self._finite_at[end - 1]) if end else None

    def norm_ratio(self, step: int, optimizer: str | None) -> float:
        return math.nan if self._look is None else self._look.norm_ratio(step, optimizer)

    def overflowed(self, step: int, optimizer: str | None) -> bool:
        failure = None if self._look is None else self._look.failure(step, optimizer)
        return failure is not None and bool((failure.inf > 0).any())


class LivePast:
    """The past of a run that goes on. Memory O(WINDOW), a step about a microsecond."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque(maxlen=WINDOW + 1)  # that many before the newest
        self._last_finite: deque[int] = deque(maxlen=2)  # two: the newest may be the step that is asked about

    def step(self, step: int, loss: float, skipped: bool) -> None:
        finite = math.isfinite(loss)
        self._recent.append((step, math.nan if skipped or not finite else loss))
        if finite:
            self._last_finite.append(step)

    def recent_losses(self, before: int) -> list[float]:
        losses = [loss for step, loss in self._recent if step < before][-WINDOW:]
        return [loss for loss in losses if loss == loss]

    def last_finite_loss(self, before: int) -> int | None:
        return next((step for step in reversed(self._last_finite) if step < before), None)

    def norm_ratio(self, step: int, optimizer: str | None) -> float:
        return math.nan  # the tables of tensors are written, not kept

    def overflowed(self, step: int, optimizer: str | None) -> bool:
        return False


def first_step(record: Record) -> int:
    """The step at which the record begins. Above 0: the run began elsewhere, unseen."""
    sessions = record.meta.get("sessions") or [record.meta]
    starts = [session["first_step"] for session in sessions if session.get("first_step") is not None]
    if starts:
        return int(min(starts))
    steps = record.steps.get("step")
    return int(steps[0]) if steps is not None and len(steps) else 0


def attempts(record: Record) -> int:
    """Steps that the record is about: those recorded, and in a scalar log those in between too."""
    steps = record.steps.get("step", np.empty(0, np.int64))
    if not len(steps) or not is_scalar_log(record):
        return len(steps)
    count = Numbering.of(record.meta).count
    return count(int(steps[-1])) - count(int(steps[0])) + 1


def is_scalar_log(record: Record) -> bool:
    """Whether the record was read from a TensorBoard scalar log: skips in it are inferred."""
    return "source" in record.meta


def skips_of(event: Event) -> int:
    """Steps that a skip event tells of: one, or at least so many of those that were not logged."""
    return int(event.data.get("at_least", 1))


def halvings_of(event: Event) -> int:
    """Skips of the same event if each of them halved the scale, as is likely and not known. 0: no more than known."""
    return int(event.data.get("halvings", 0))


def slack_of(event: Event) -> int:
    """Steps that an event may have come before the one that tells of it, as not every step was logged."""
    return int(event.data.get("within", 1)) - 1


def also_skipped(event: Event) -> int:
    """Steps right before a skip that were skipped with it: all that were not logged, where it takes so many."""
    return slack_of(event) if max(skips_of(event), halvings_of(event)) > slack_of(event) else 0


def complete_events(record: Record) -> list[Event]:
    """`raw_events`, and a skip for each skipped step whose own event record was lost."""
    events = list(record.raw_events)
    steps = record.steps
    names = [name.removesuffix("/skipped") for name in steps if name.endswith("/skipped")]
    lost: list[Event] = []
    for name in names or [""]:
        prefix = f"{name}/" if name else ""
        skipped = steps.get(prefix + "skipped")
        if skipped is None:
            continue
        told = {event.step for event in events if event.kind == "skip" and (not name or event.optimizer == name)}
        for row in np.flatnonzero(skipped).tolist():
            step = int(steps["step"][row])
            if step in told:
                continue
            shared = {key: steps[key] for key in ("loss", "loss_scale", "micro_batches") if key in steps}
            own = {key: steps[prefix + key] for key in ("grad_norm", "nonfinite_tensors") if prefix + key in steps}
            data = {key: float(values[row]) for key, values in {**shared, **own}.items()}
            lost.append(Event(step, float(steps["wall_time"][row]), "skip", optimizer=name or None, data=data))
    if not lost:
        return events
    # A stable sort: a skip stays before the scale change of its step.
    return sorted(lost + events, key=lambda event: event.step)


@dataclass(frozen=True)
class Later:
    """What is known of a skip or backoff with hindsight."""

    new_scale: float  # after the update of that step; NaN: unknown
    recovered_after: int | None  # steps until the scale was back where it was; None: not yet
    skips_in_row: int  # skipped steps in a row around this one
    last_skip: int  # the last of them
    lowest_scale: float  # after the last of them
    ongoing: bool  # the record ends with that row


def look_ahead(events: Sequence[Event], last_step: int, numbering: Numbering = FROM_ZERO) -> list[Later | None]:
    """For each event what came later; None for kinds without a hindsight. O(events)."""
    count = numbering.count
    later: list[Later | None] = [None] * len(events)
    higher: list[tuple[float, int]] = []  # (scale, step) of later changes, scales rising towards the front
    row_last, row_steps, row_low, next_skip, also = -1, 0, math.nan, None, 0
    rows: dict[int, list[int]] = {}  # last step of a row of skips -> its events, to be told the row's length
    scale_after: dict[int, float] = {}  # step -> scale after its update
    for at in range(len(events) - 1, -1, -1):
        event = events[at]
        if event.kind in SCALE_CHANGES:
            old, new = as_float(event.data.get("old_scale")), as_float(event.data.get("new_scale"))
            if event.kind == "scale_backoff":
                recovered = _first_at_least(higher, old)
                later[at] = Later(new, _steps_to(recovered, event.step, count), 0, -1, new, False)
            if not math.isnan(new):
                scale_after[event.step] = new
                while higher and higher[-1][0] <= new:
                    higher.pop()
                higher.append((new, event.step))
        elif event.kind == "skip":
            scale = as_float(event.data.get("loss_scale"))
            new = as_float(event.data.get("new_scale"))
            if math.isnan(new):
                new = scale_after.get(event.step, math.nan)
            # Seen backwards: the last skip of its row.
            if next_skip is None or count(event.step) < count(next_skip) - also - 1:
                row_last, row_steps, row_low = event.step, 0, new if not math.isnan(new) else scale
            if event.step != next_skip:
                row_steps += max(skips_of(event), halvings_of(event))
            next_skip, also = event.step, also_skipped(event)
            recovered = _first_at_least(higher, scale)
            after = _steps_to(recovered, event.step, count)
            later[at] = Later(new, after, row_steps, row_last, row_low, row_last >= last_step)
            rows.setdefault(row_last, []).append(at)
    for indices in rows.values():
        whole = later[indices[-1]]  # the first of its row, which was counted last
        for at in indices:
            later[at] = replace(later[at], skips_in_row=whole.skips_in_row)  # type: ignore[union-attr, type-var]
    return later


def _steps_to(later: int | None, step: int, count: Callable[[int], int]) -> int | None:
    return None if later is None else count(later) - count(step)


def _first_at_least(higher: list[tuple[float, int]], scale: float) -> int | None:
    """The first step of `higher` (nearest last, scales falling towards the end) at which the scale was >= `scale`."""
    if math.isnan(scale):
        return None
    low, high = 0, len(higher)  # scales fall with the index: the last one that is high enough is the nearest
    while low < high:
        middle = (low + high) // 2
        if higher[middle][0] >= scale:
            low = middle + 1
        else:
            high = middle
    return higher[low - 1][1] if low else None
