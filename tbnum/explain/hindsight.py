"""What a verdict becomes once it is known what came later. A live run does without."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tbnum.explain.ahead import Later
from tbnum.explain.facts import Known
from tbnum.explain.rules import COLLAPSE_SKIPS, Skip
from tbnum.explain.thresholds import NORM_EXPLODED
from tbnum.explain.words import as_float
from tbnum.log.columns import StepColumn
from tbnum.log.schema import Event

__all__ = ["skip_in_hindsight", "with_failed_steps", "with_hindsight", "with_rhythm"]

RHYTHM_SKIPS, RHYTHM_STEPS = 4, 16
"""Skips, from which on a common divisor of their distances, of so many steps, is no chance (0.2 %): an epoch's."""


def with_hindsight(event: Known, last_step: int, steps: Mapping[str, np.ndarray]) -> Known:
    """A warning of a place that the run has left behind says so, one of a schedule that went on a step later, and one
    of moments that were reset where the learning rate warms up again.
    """
    if event.kind == "schedule_state_lost" and _went_on(event, steps):
        return event._replace(event=replace(event.event, data={**event.data, "went_on": True}))
    if event.kind == "moments_reset" and _rate_fell(event, steps):
        return event._replace(event=replace(event.event, data={**event.data, "lr_lowered": True}))
    if event.kind != "repeat_of_diverged_run" or not as_float(event.data.get("at_step")) < last_step:
        return event
    return event._replace(event=replace(event.event, data={**event.data, "passed": True}))


def _went_on(event: Known, steps: Mapping[str, np.ndarray]) -> bool:
    """Whether the learning rate was that of before the resume from the next step on: the schedule had been restored,
    and not the optimizer's state, which has the rate of the first step.
    """
    group = as_float(event.data.get("group"))
    lr = steps.get(StepColumn(event.optimizer, "lr", int(group) if group > 0 else 0).full, np.empty(0))
    old, new = (as_float(event.data.get(key)) for key in ("old_lr", "new_lr"))
    row = int(np.searchsorted(steps.get("step", np.empty(0, np.int64)), event.step)) + 1
    return row < len(lr) and abs(float(lr[row]) - old) < abs(new - old) / 8


def _rate_fell(event: Known, steps: Mapping[str, np.ndarray]) -> bool:
    """Whether the learning rate of a step is half of that before it, or less: it warms up again."""
    lr = steps.get(StepColumn(event.optimizer, "lr").full, steps.get("lr", np.empty(0)))
    row = int(np.searchsorted(steps.get("step", np.empty(0, np.int64)), event.step))
    return 0 < row < len(lr) and bool(lr[row] <= lr[row - 1] / 2)


def with_failed_steps(events: Sequence[Known]) -> list[Known]:
    """Buffers were spoiled in the first step whose loss was not finite since they were last seen finite, if any was."""
    failed: list[int] = []
    found = []
    for event in events:
        if event.facts.loss_nonfinite:
            failed.append(event.step)
        elif event.kind == "nonfinite_buffers":
            after = as_float(event.data.get("after_step"))
            step = next((step for step in failed if not step <= after), None)
            if step is not None:
                data = {**event.data, "failed_step": step}
                event = event._replace(event=replace(event.event, step=step, data=data))
        found.append(event)
    return found


def with_rhythm(events: Sequence[Event]) -> list[Event]:
    """Bad batches that all stand at the same place of an epoch are seldom bad: its last batch has few samples.

    Where gradients were far longer than any good batch's, or nothing is known of them, or the scale keeps falling, they
    stay a warning.
    """
    steps = [event.step for event in events if _blames_a_batch(event)]
    period = math.gcd(*np.diff(steps).tolist())
    if len(steps) < RHYTHM_SKIPS or period < RHYTHM_STEPS:
        return list(events)
    graver = [_blames_a_batch(event) and event.severity != "info" for event in events]
    return [_in_rhythm(event, period) if grave else event for event, grave in zip(events, graver, strict=True)]


def _blames_a_batch(event: Event) -> bool:
    return event.kind == "skip" and event.cause == "bad_batch"


def _in_rhythm(event: Event, period: int) -> Event:
    evidence = event.data.get("evidence")
    evidence = evidence if isinstance(evidence, Mapping) else {}
    if not as_float(evidence.get("norm_ratio")) < NORM_EXPLODED or "scale_that_held" in evidence:
        return event
    return replace(
        event,
        severity="info",
        message=f"{event.message} Such skips come at multiples of {period} steps.",
        remedy=f"Nothing to do if each epoch ends there with a batch of few samples (drop_last=True leaves it out). "
        f"Else look at the data at this place of each epoch, as the batch of step {event.step} (labels, outliers).",
    )


def skip_in_hindsight(skip: Skip, event: Known, later: Later | None) -> Skip:
    """The verdict on a skip, where the end of its row says more than its beginning did."""
    if later is None:
        return skip
    if (
        skip.cause == "scale_warmup"
        and skip.nan_only
        and later.skips_in_row >= COLLAPSE_SKIPS
        and later.lowest_scale < 1
    ):
        return replace(skip, cause="backward_nonfinite")  # no scale passed, and none was to blame
    if skip.cause == "backward_nonfinite" and later.nan_at_this_scale and not skip.nan_only:
        # Steps between them passed at a lower scale, as overflows do.
        return replace(skip, cause="unknown", either=True)
    fell = later.lowest_scale < event.facts.loss_scale and not math.isnan(later.lowest_scale)
    in_row = later.losses_nonfinite > 1 or later.skips_in_row > later.losses_nonfinite
    leading = in_row and skip.in_row <= later.losses_nonfinite
    if (
        skip.loss_follows_scale
        and later.losses_nonfinite >= COLLAPSE_SKIPS
        and later.skips_in_row == later.losses_nonfinite
    ):
        return replace(skip, cause="forward_nonfinite", loss_follows_scale=False)  # at no scale was it finite
    if skip.cause == "forward_nonfinite" and skip.new_scale and leading and not later.ongoing and fell:
        return replace(skip, cause="scale_warmup", loss_follows_scale=True)
    return skip
