"""Findings on the loss scale, and on numbers that float16 does not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tbnum.explain.causes import CAUSES, SET_BELOW_ONE
from tbnum.explain.finding import OF_THE_RUN, Finding, steps_of
from tbnum.explain.record import without_gradient
from tbnum.explain.rules import HOPELESS
from tbnum.explain.thresholds import EXTREME_SCALE, SCALE_FALLEN, SCALE_FLOOR, SCALE_HELD
from tbnum.explain.view import RunView
from tbnum.explain.words import as_float, count_text, number_text, scale_text

__all__ = ["eps_vanishes", "scale_extreme", "scale_falls", "scale_floor"]

FALLS = 3  # skips at different steps that brought a scale down, from which on it keeps falling


def scale_extreme(view: RunView) -> Iterator[Finding]:
    """A scale that no gradient survives, or that none needs."""
    scale = view.steps.get("loss_scale")
    if scale is None:
        return
    with np.errstate(invalid="ignore"):
        impossible = np.flatnonzero((scale < 0) | np.isinf(scale))
        extreme = np.flatnonzero((scale >= EXTREME_SCALE) & np.isfinite(scale))
    if len(impossible):
        step = int(view.number[impossible[0]])
        to_the_end = int(impossible[-1]) == len(scale) - 1
        yield Finding(
            "scale_extreme",
            "error" if to_the_end else "warning",
            "The loss scale is not a number that gradients survive",
            f"The loss scale was {number_text(float(scale[impossible[0]]))} in {count_text(len(impossible), 'step')}, "
            f"the first at step {step:,}: no such step can be taken.",
            "Set it to a scale that gradients survive, scaler.update(2.0**16), and look for what set it: an infinite "
            "scale never comes down by itself.",
            steps_of(view.number[impossible]),
        )
    elif len(extreme):
        step = int(view.number[extreme[0]])
        highest = float(scale[extreme].max())
        lost = int(np.count_nonzero(view.skipped[extreme]))
        what = f"{count_text(lost, 'of them was', 'of them were')} skipped" if lost else "none of them was skipped"
        taken = extreme[~view.skipped[extreme]]
        idle = len(taken) > 0 and bool(without_gradient(view.steps)[taken].all())  # nothing can overflow
        what += ", and the others had no gradient but 0" if idle else ""
        yield Finding(
            "scale_extreme",
            "info" if idle else "warning",
            "The loss scale is far beyond what float16 needs",
            f"{count_text(len(extreme), 'step')} had a scale of {scale_text(EXTREME_SCALE)} or more, the first at step "
            f"{step:,}, the highest {scale_text(highest)}; {what}.",
            "Begin with GradScaler(init_scale=2.0**16). Where such a scale holds, the gradients are zero or were not "
            "computed in float16, and no loss scale is needed.",
            steps_of(view.number[extreme]),
        )


def scale_falls(view: RunView) -> Iterator[Finding]:
    """A scale that skip by skip came far below one that had held, and stays there."""
    scale = view.steps.get("loss_scale")
    if scale is None or not np.isfinite(scale).any() or view.of("scale_collapse"):
        return
    known = np.flatnonzero(np.isfinite(scale) & ~view.skipped & ~without_gradient(view.steps))
    if len(known) < 2 * SCALE_HELD:
        return
    starts = np.flatnonzero(np.diff(scale[known], prepend=np.nan) != 0)
    lengths = np.diff(np.append(starts, len(known)))
    levels = scale[known[starts]]
    held = lengths >= SCALE_HELD
    if not held.any():
        return
    best = int(np.flatnonzero(held)[np.argmax(levels[held])])
    now = float(levels[-1])
    since = int(view.number[known[starts[best]]])
    falls = sorted({event.step for event in view.of("scale_backoff") if event.step > since})
    by_hand = any(event.step > since for event in view.of("scale_set") + view.of("scaler_state_lost"))
    if now * SCALE_FALLEN > levels[best] or len(falls) < FALLS or by_hand:
        return
    no_overflow = _brought_down_by_nan(view, since, falls[-1])
    yield Finding(
        "scale_falls",
        "warning",
        "The loss scale keeps falling",
        f"It was {scale_text(float(levels[best]))} for {count_text(int(lengths[best]), 'step')} from step {since:,} "
        f"on, and is {scale_text(now)} now, after "
        + (f"{no_overflow}." if no_overflow else f"{count_text(len(falls), 'more overflow')}: the gradients grow."),
        NO_SCALE_HELPS
        if no_overflow
        else "Lower the learning rate or clip harder before the scale is used up; look at what grows (attention "
        "logits, the norm of an activation). bfloat16 has no such limit.",
        steps_of([since, *falls]),
    )


NO_SCALE_HELPS = "Look at these skips first: what they found is no overflow, and the scale comes down for nothing."


def _brought_down_by_nan(view: RunView, first: int, last: int) -> str:
    """Of the skips between two steps how many, and why, where most are none that a lower scale helps; else ""."""
    skips = [event for event in view.of("skip") if first < event.step <= last]
    causes = Counter(event.cause for event in skips if event.cause in HOPELESS)
    if 2 * causes.total() <= len(skips):
        return ""
    ((cause, _),) = causes.most_common(1)
    return (
        f"{count_text(len(skips), 'skip')}, {causes.total():,} of them for what no scale helps ({CAUSES[str(cause)]})"
    )


def scale_floor(view: RunView) -> Iterator[Finding]:
    """Steps that were taken at a scale below 1."""
    scale = view.steps.get("loss_scale")
    if scale is None or not len(view.number):
        return
    with np.errstate(invalid="ignore"):
        below = (scale < SCALE_FLOOR) & (scale >= 0) & ~view.skipped
    rows = np.flatnonzero(below)
    if not len(rows):
        return
    low, first = float(scale[rows].min()), int(view.number[rows[0]])
    lowered = [event for event in view.of("scale_set") if event.step <= first]
    title, remedy = "The loss scale is used up", NO_SCALE_HELPS
    if lowered and as_float(lowered[-1].data.get("new_scale")) < SCALE_FLOOR:
        title, remedy = "The loss scale was set below 1", SET_BELOW_ONE
        why = f"it was set by hand at step {lowered[-1].step:,}"
    elif no_overflow := _brought_down_by_nan(view, -1, first):
        why = f"it came down over {no_overflow}"
    else:
        why = "the largest gradients do not fit float16 at their true size"
        remedy = "Lower the learning rate or the loss (a mean in place of a sum), clip harder, or use bfloat16."
    yield Finding(
        "scale_below_one",
        "warning",
        title,
        f"{count_text(len(rows), 'step')} were taken at a scale below 1, the first at step {first:,}, the lowest at "
        f"{scale_text(low)}: {why}.",
        remedy,
        steps_of(view.number[rows]),
    )


def eps_vanishes(view: RunView) -> Iterator[Finding]:
    """An optimizer that divides by a root plus an eps that is 0 in the parameters' own type."""
    optimizers = view.meta.get("optimizers")
    for name, optimizer in optimizers.items() if isinstance(optimizers, Mapping) else ():
        for number, group in enumerate(optimizer.get("groups") or ()):
            eps = as_float(group.get("eps")) if isinstance(group, Mapping) else float("nan")
            why = _vanishing(eps, optimizer)
            if not why:
                continue
            yield Finding(
                "eps_vanishes",
                "warning",
                "The optimizer's eps is 0",
                f"{optimizer.get('class', 'The optimizer')} ({name}, group {number}) has eps={number_text(eps)}, "
                f"{why}: a parameter whose gradient is 0 is then divided 0 by 0, and becomes NaN.",
                "Give an eps that the type holds (1e-4 for float16), or keep the parameters in float32.",
                OF_THE_RUN,
            )
            return


def _vanishing(eps: float, optimizer: Mapping[str, Any]) -> str:
    if eps == 0:
        return "which is nothing"
    dtypes = optimizer.get("dtypes")
    in_float16 = isinstance(dtypes, Mapping) and "float16" in dtypes
    return "which is 0 in float16, the type of its parameters" if in_float16 and np.float16(eps) == 0 else ""
