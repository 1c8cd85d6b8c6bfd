"""When the loss scale will next overflow, if the gradients stay as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tbnum.explain.record import SCALE_CHANGES, Record, scaler_settings
from tbnum.explain.rows import sampled_rows
from tbnum.explain.rules import BENIGN
from tbnum.explain.words import as_float, count_text, number_text, scale_text
from tbnum.formats import FORMATS
from tbnum.log.schema import Event

__all__ = ["NextOverflow", "next_overflow"]

FLOAT16 = FORMATS["float16"]

ROWS = 8
"""Recent ones, whose largest gradient counts. A probe has ten steps to overflow in: about as many batches."""

SHARE = 0.25  # of the run, from its end, that "recent" is

FAR = 20
"""Growths ahead. Beyond, the gradients will have changed: 2**20 is more than a run's gradients vary by."""


@dataclass(frozen=True)
class NextOverflow:
    """A prediction: the scale grows `growths` times, and the step after the last of them overflows."""

    step: int  # the first at the scale that will be too high; no skip in between supposed
    scale: float  # at that step
    growths: int  # until then
    headroom: float  # doublings that the largest recent gradient has at the scale of now; NaN: unknown
    probed: float  # the lowest scale that overflowed in the last probe or warm-up; NaN: none did
    message: str


def next_overflow(record: Record, events: Sequence[Event]) -> NextOverflow | None:
    """From the scaler's settings, scale and growth tracker at the end of the record, and `events` (explained).

    What overflowed when the scale was tried the last time decides, else the headroom of the largest recent gradient.
    None where there is no scaler, where neither is known, or where it would take more than `FAR` growths.
    """
    scaler, steps = scaler_settings(record.meta), record.steps
    interval, factor = scaler.get("growth_interval", math.nan), scaler.get("growth_factor", math.nan)
    tracker = steps.get("growth_tracker")
    if not interval >= 1 or not factor > 1 or tracker is None or not len(tracker):
        return None
    last = int(steps["step"][-1])
    changes = [event for event in events if event.kind in SCALE_CHANGES and event.step == last]
    scale = as_float(changes[-1].data.get("new_scale")) if changes else float(steps["loss_scale"][-1])
    counted = 0.0 if changes or bool(steps.get("skipped", np.zeros(1, bool))[-1]) else float(tracker[-1]) + 1
    if not abs(counted) < 2**53 or not 0 < scale < math.inf or not math.isfinite(interval * factor):
        return None
    probed = next(
        (as_float(e.data.get("loss_scale")) for e in reversed(events) if e.kind == "skip" and e.cause in BENIGN),
        math.nan,
    )
    if not probed < math.inf:
        probed = math.nan
    headroom = _headroom(record, events, scale)
    ways = [math.ceil(math.log(probed / scale, factor) - 1e-9)] if probed > 0 else []
    if not math.isnan(headroom):
        ways.append(math.floor(headroom / math.log2(factor)) + 1)
    growths = max(1, min(ways, default=FAR + 1))
    if growths > FAR:
        return None
    first_growth = last + int(interval - counted)
    step = first_growth + (growths - 1) * int(interval) + 1
    high = scale * factor**growths
    if probed > 0 and high >= probed * (1 - 1e-9):
        because = f"at {scale_text(probed)} gradients overflowed before"
    else:
        largest = FLOAT16.maximum / (2**headroom * scale)
        because = f"the largest recent gradient, {number_text(largest)}, times that is beyond float16"
    ahead = f"after {count_text(growths, 'growth')}" if growths > 1 else "at the next growth"
    message = (
        f"Expect a skip at step {step:,}: {ahead} the scale will be {scale_text(high)}, and {because}. "
        "It is benign, and comes later if a step is skipped before."
    )
    return NextOverflow(step, high, growths, headroom, probed, message)


def _headroom(record: Record, events: Sequence[Event], scale: float) -> float:
    """Doublings between the largest recent gradient, times `scale`, and the end of float16.

    Of the tensors that are known to be made in float16: those that overflowed. Where none is, of all but those whose
    finite gradient would not have fitted: they were made in float32.
    """
    overflowed = {
        each["name"]
        for event in [e for e in events if e.kind == "skip" and e.cause in BENIGN][-5:]
        for each in event.data.get("evidence", {}).get("nonfinite", ())
    }
    largest: list[float] = []
    for rows in sampled_rows(record, ("absmax",), ROWS, share=(1 - SHARE, 1)):
        absmax = rows.columns["absmax"]
        with np.errstate(invalid="ignore"):
            in_float32 = (absmax * rows.scale[:, None] > FLOAT16.maximum).any(0)
        prone = np.array([name in overflowed for name in rows.names]) & ~in_float32
        chosen = absmax[:, prone if prone.any() else ~in_float32]
        if np.isfinite(chosen).any():
            largest.append(float(np.nanmax(chosen)))
    top = max(largest, default=0.0)
    return math.log2(FLOAT16.maximum / (top * scale)) if top > 0 else math.nan
