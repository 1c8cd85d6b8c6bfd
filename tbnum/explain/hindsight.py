"""What a verdict becomes once it is known what came later. A live run does without."""

from __future__ import annotations

import math
from dataclasses import replace

from tbnum.explain.ahead import Later
from tbnum.explain.facts import Known
from tbnum.explain.rules import COLLAPSE_SKIPS, Skip
from tbnum.explain.words import as_float

__all__ = ["skip_in_hindsight", "with_hindsight"]


def with_hindsight(event: Known, last_step: int) -> Known:
    """A warning of a place that the run has left behind says so."""
    if event.kind != "repeat_of_diverged_run" or not as_float(event.data.get("at_step")) < last_step:
        return event
    return event._replace(event=replace(event.event, data={**event.data, "passed": True}))


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
    fell = later.lowest_scale < event.facts.loss_scale and not math.isnan(later.lowest_scale)
    leading = later.losses_nonfinite > 1 and skip.in_row <= later.losses_nonfinite
    if skip.cause == "forward_nonfinite" and skip.new_scale and leading and not later.ongoing and fell:
        return replace(skip, cause="scale_warmup", loss_follows_scale=True)
    return skip
