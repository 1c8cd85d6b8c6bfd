"""What came after an event: hindsight, in one pass from the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tbnum.explain.facts import Known
from tbnum.explain.record import SCALE_CHANGES
from tbnum.log.numbering import Numbering

__all__ = ["Later", "look_ahead"]

FROM_ZERO = Numbering()


@dataclass(frozen=True)
class Later:
    """What is known of a skip or backoff with hindsight."""

    new_scale: float  # after the update of that step; NaN: unknown
    recovered_after: int | None  # steps until the scale was back where it was; None: not yet
    skips_in_row: int  # skipped steps in a row around this one
    last_skip: int  # the last of them
    lowest_scale: float  # after the last of them
    ongoing: bool  # the record ends with that row
    losses_nonfinite: int = 0  # of those skips, how many from the first on had a loss that was not finite
    nan_at_this_scale: bool = False  # skips with NaN alone came more than once, all at this scale and none below it


def look_ahead(events: Sequence[Known], last_step: int, numbering: Numbering = FROM_ZERO) -> list[Later | None]:
    """For each event what came later; None for kinds without a hindsight. O(events)."""
    count = numbering.count
    later: list[Later | None] = [None] * len(events)
    higher: list[tuple[float, int]] = []  # (scale, step) of later changes, scales rising towards the front
    row_last, row_steps, row_low, row_losses, next_skip, also = -1, 0, math.nan, 0, None, 0
    rows: dict[int, list[int]] = {}  # last step of a row of skips -> its events, to be given the row's length
    scale_after: dict[int, float] = {}  # step -> scale after its update
    for at in range(len(events) - 1, -1, -1):
        event = events[at]
        if event.kind in SCALE_CHANGES:
            old, new = event.facts.old_scale, event.facts.new_scale
            if event.kind == "scale_backoff":
                recovered = _first_at_least(higher, old)
                later[at] = Later(new, _steps_to(recovered, event.step, count), 0, -1, new, False)
            if not math.isnan(new):
                scale_after[event.step] = new
                while higher and higher[-1][0] <= new:
                    higher.pop()
                higher.append((new, event.step))
        elif event.kind == "skip":
            scale, new = event.facts.loss_scale, event.facts.new_scale
            if math.isnan(new):
                new = scale_after.get(event.step, math.nan)
            # Seen backwards: the last skip of its row.
            if next_skip is None or count(event.step) < count(next_skip) - also - 1:
                row_last, row_steps, row_losses, row_low = event.step, 0, 0, new if not math.isnan(new) else scale
            row_losses = row_losses + 1 if event.facts.loss_nonfinite else 0
            if event.step != next_skip:
                row_steps += max(event.facts.at_least, event.facts.halvings)
            next_skip, also = event.step, event.facts.also_skipped
            recovered = _first_at_least(higher, scale)
            after = _steps_to(recovered, event.step, count)
            later[at] = Later(new, after, row_steps, row_last, row_low, row_last >= last_step, row_losses)
            rows.setdefault(row_last, []).append(at)
    for indices in rows.values():
        first = later[indices[-1]]  # of its row; it was counted last
        assert first is not None
        for at in indices:
            own = later[at]
            assert own is not None
            later[at] = replace(own, skips_in_row=first.skips_in_row, losses_nonfinite=first.losses_nonfinite)
    return _with_nan_at_one_scale(events, later)


def _with_nan_at_one_scale(events: Sequence[Known], later: list[Later | None]) -> list[Later | None]:
    """Marks skips that stand alone, and left NaN and no inf, where all of them came at the same scale."""
    found = {
        at: own
        for at, own in enumerate(later)
        if own is not None
        and events[at].kind == "skip"
        and events[at].facts.nan > 0
        and events[at].facts.inf == 0
        and not events[at].facts.loss_nonfinite
    }
    alone = all(own.skips_in_row == 1 for own in found.values())
    if len(found) > 1 and alone and len({events[at].facts.loss_scale for at in found}) == 1:
        for at, own in found.items():
            later[at] = replace(own, nan_at_this_scale=True)
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
