"""Findings on levels: a loss that rises and stays up, gradient norms of another size for good, vanishing weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tbnum.explain.finding import OF_THE_RUN, Finding, steps_of
from tbnum.explain.record import optimizer_settings
from tbnum.explain.rows import norms_around
from tbnum.explain.spikes import is_near_zero, losses_of_their_own
from tbnum.explain.thresholds import (
    ADDED_WITHIN,
    BASELINE,
    BEFORE,
    GREW_AT_ONCE,
    LEARNED,
    LEVEL_STEPS,
    LEVEL_TIMES,
    LR_ROSE,
    NORM_EXPLODED,
    REWRITTEN,
    ROSE_LEAST,
    ROSE_NOISE,
    ROSE_SHARE,
    ROSE_WINDOW,
    ROSE_WINDOWS,
    SLOW_BACK,
    STARTED_SMALL,
    VANISHED,
    WEIGHTS_GREW,
    ZERO_SHARE,
    ZERO_STEPS,
)
from tbnum.explain.view import RunView
from tbnum.explain.words import count_text, number_text
from tbnum.log.columns import StepColumn, columns_named

__all__ = [
    "first_updates",
    "gradients_zero",
    "loss_below_zero",
    "loss_rose",
    "losses_added_up",
    "norm_level",
    "weights_grow",
    "weights_vanish",
]

BLOCK, BLOCKS, BLOCK_LEAST = 32, 16, 8
"""Norms, of which a level is the median; of a short run as few as let so many blocks fit, and at least the last."""
EARLY, EARLY_SHARE = 8, 4
"""Blocks at the beginning of a run, where norms may fall by any factor; of a short one a quarter of its blocks."""
STEADY = 3
"""A jump is this many times (on a log scale) what the blocks before it differ by."""
ENLARGED = 1.5
"""Times that what the optimizer gets is longer than what backward made, above which the loop multiplied it."""
BELOW_TIMES = 10.0
"""Times as far below zero as at first that a loss went, that began there."""
TOGETHER = 1.5
"""Within which factor a loss and its gradients change together."""
BENDS = 16
"""Bends of a curve of medians that show how levels wander: of fewer, most may be the trend's."""
BEND_LEAST = 8
"""Losses that such a median is of, at the least."""
BLOCKS_OF_LOSSES = 4
"""Levels of the loss, at the least, that show whether it rose while the parameters grew."""
BY_CHANCE = 3.0
"""Robust deviations of single losses that the first one may lie from its level."""
WINDOWS = 2000
"""Of a long run: then they lie further apart."""


class _Levels(NamedTuple):
    """Rolling medians of the loss, (W,) each; half of each window overlaps with the next."""

    size: int  # of a window
    median: np.ndarray
    lowest: np.ndarray  # the lowest level so far that held for two windows
    lowest_at: np.ndarray  # the window at which it did
    risen: np.ndarray  # bool: three quarters of the window lie above the lowest, its median by the share and the noise
    rows: np.ndarray  # of the record: the middle of each window
    scatter: np.ndarray  # of the losses in each window: a robust standard deviation


def loss_rose(view: RunView) -> Iterator[Finding]:
    """A loss whose rolling median stays above its lowest, by more than its noise and a tenth, to the end."""
    levels = _levels(view)
    if levels is None or not levels.risen[-3:].all():
        return
    since = len(levels.risen) - int(np.argmin(levels.risen[::-1])) if not levels.risen.all() else 0
    lowest_at, end = int(levels.lowest_at[-1]), len(levels.risen) - 1
    first, last, newest = (int(levels.rows[window]) for window in (lowest_at, since, end))
    low, now = float(levels.lowest[-1]), float(levels.median[end])
    restarted = _lr_went_back_up(view, first, newest)
    habit = _habit(levels.risen[:since])
    changed = _accumulation_changed(view, first, last)
    if restarted or changed:
        return
    begin, at = int(view.number[first]), int(view.number[last])
    noted = any(event.kind == "annotation" and begin <= event.step <= at for event in view.events)
    rate = _lr_text(view, first, last)
    yield Finding(
        "loss_rose",
        "info" if habit or noted or _is_surrogate(view, levels, lowest_at) else "warning",
        "The loss rose and stays up",
        f"The median of {levels.size} losses rose from {number_text(low)} (at step {begin:,}) to {number_text(now)}; "
        f"it has been above its lowest, by more than its noise and {100 * ROSE_SHARE:.0f} %, since about step {at:,}."
        + rate,
        f"Go back to a checkpoint from before step {at:,}, and lower the learning rate, or look at what changed in the "
        "data from there on. Nothing to do where the objective or the data changed on purpose.",
        steps_of([begin, at]),
    )


def _is_surrogate(view: RunView, levels: _Levels, lowest_at: int) -> bool:
    """Whether the loss may be one whose height says nothing: a policy's gain, or those of networks against each other.

    The first is below zero, and not far from it; the others are of several optimizers, each with a loss of its own.
    """
    near_zero = is_near_zero(float(levels.median[lowest_at]), float(levels.scatter[lowest_at]))
    return near_zero or len(losses_of_their_own(view.record)) > 1


def loss_below_zero(view: RunView) -> Iterator[Finding]:
    """A loss that began above zero and went below it, or went on from there to many times its size."""
    loss = view.steps.get("loss", np.empty(0))
    rows = np.flatnonzero(np.isfinite(loss) & ~view.skipped)
    size = min(ROSE_WINDOW, len(rows) // ROSE_WINDOWS)
    if size < ROSE_LEAST:
        return
    before, now = loss[rows[:size]], loss[rows[-size:]]
    first, last = float(np.median(before)), float(np.median(now))
    began_above = np.quantile(before, 0.25) > 0
    if not (np.quantile(now, 0.75) < 0 and (began_above or last < BELOW_TIMES * first < 0)):
        return
    above = view.number[rows[loss[rows] >= 0]]
    since = f"; the last one that was not below zero was that of step {int(above[-1]):,}" if len(above) else ""
    yield Finding(
        "loss_below_zero",
        "info",
        "The loss is far below zero" if not began_above else "The loss fell below zero",
        f"The median of {size} losses was {number_text(first)} at first and is {number_text(last)} at the end{since}.",
        "Fine for a log-density, a policy's gain or a sum with terms of either sign. A cross-entropy, a squared or an "
        "absolute error is never below zero: look at the sign of the loss, and for targets out of range (as pixels up "
        "to 255 under a binary cross-entropy), which it can follow without end.",
        OF_THE_RUN,
    )


def _levels(view: RunView) -> _Levels | None:
    loss = view.steps.get("loss")
    if loss is None:
        return None
    taken = np.isfinite(loss) & ~view.skipped
    rows = np.flatnonzero(taken)
    values = loss if len(rows) == len(loss) else loss[rows]
    size = min(ROSE_WINDOW, len(values) // ROSE_WINDOWS)
    if size < ROSE_LEAST:
        return None
    stride = max(size // 2, len(values) // WINDOWS)
    offset = (len(values) - size) % stride  # so that the last window ends with the record
    windows = np.lib.stride_tricks.sliding_window_view(values[offset:], size)[::stride]
    ordered = np.sort(windows, axis=1)
    median = ordered[:, size // 2]
    held = np.maximum(median[:-2], median[2:])  # what two windows without a value in common stayed below
    held = np.maximum(held, median[1:-1])
    lowest = np.full(len(median), np.inf)
    lowest[2:] = np.minimum.accumulate(held)
    lowest_at = np.zeros(len(median), np.int64)
    new = np.concatenate([[True], held[1:] < lowest[2:-1]])
    lowest_at[2:] = np.maximum.accumulate(np.where(new, np.arange(len(held)), 0))
    noise = _noise_of_levels(values, ordered)
    span = float(median[:2].max() - lowest[-1])
    least = np.maximum(np.maximum(ROSE_SHARE * np.abs(lowest), ROSE_NOISE * noise), 0.01 * max(span, 0.0))
    with np.errstate(invalid="ignore"):
        risen = median - lowest > least
    risen &= ordered[:, size // 4] > lowest
    middles = rows[offset + size // 2 :: stride][: len(median)]
    scatter = (ordered[:, -(size // 4)] - ordered[:, size // 4]) / 1.349
    return _Levels(size, median, lowest, lowest_at, risen, middles, scatter)


def _noise_of_levels(values: np.ndarray, ordered: np.ndarray) -> float:
    """By how much levels of one window each differ by themselves, without a trend; robust.

    Taken from medians of as many values as leave enough of them in the run: a loss that wanders shows it there, and
    a short run's trend is no noise. At least by what the values in a window scatter.
    """
    size = ordered.shape[1]
    half, quarter = size // 2, size // 4
    scatter = float(np.median(ordered[:, -quarter] - ordered[:, quarter])) / 1.349  # the middle half's width
    least = math.sqrt(2) * 1.2533 * scatter / math.sqrt(2 * half)
    length = max(BEND_LEAST, min(size, len(values) // (BENDS + 2)))
    count = len(values) // length
    apart = max(1, count // WINDOWS)  # of a long run some of them
    blocks = values[len(values) - count * length :].reshape(count, length)[: count // apart * apart : apart]
    bends = np.diff(np.median(blocks, axis=1), 2)
    if len(bends) < BEND_LEAST:
        return least
    wander = 1.4826 * float(np.median(np.abs(bends))) / math.sqrt(3)
    return max(least, wander * math.sqrt(length / size))


def _habit(risen: np.ndarray) -> bool:
    """Whether the loss rose as long, and came back, twice before: it goes up and down by itself."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], risen, [False]]).astype(np.int8)))
    lengths = edges[1::2] - edges[::2]
    return bool(np.count_nonzero(lengths >= 3) >= 2)


def _lr_went_back_up(view: RunView, first: int, last: int) -> bool:
    """Whether the learning rate is above that of the lowest loss, and no higher than the run had borne before it."""
    for column, lr in columns_named(view.steps, "lr"):
        before, then, now = lr[: first + 1], lr[first], lr[last]
        if column.group or not np.isfinite(before).any():
            continue
        if now > LR_ROSE * then > 0 and now <= 1.05 * np.nanmax(before):
            return True
    return False


def _accumulation_changed(view: RunView, first: int, last: int) -> bool:
    """Whether the sum is over more micro-batches than it was."""
    counts = view.steps.get("micro_batches")
    return counts is not None and bool(counts[last] > 1.5 * counts[first] > 0)


def _lr_text(view: RunView, first: int, last: int) -> str:
    for column, lr in columns_named(view.steps, "lr"):
        window = lr[first : last + 1]
        if not column.group and np.isfinite(window).any() and lr[first] > 0:
            peak = first + int(np.nanargmax(window))
            if lr[peak] > LR_ROSE * lr[first]:
                step = int(view.number[peak])
                return (
                    f" The learning rate rose from {number_text(lr[first])} to {number_text(lr[peak])} (step {step:,})."
                )
    return ""


def norm_level(view: RunView) -> Iterator[Finding]:
    """Gradient norms that from one step to the next are others, for good, by a factor that no batch makes."""
    for column, norms in (*columns_named(view.steps, "grad_norm"), *_written_to(view)):
        skipped = view.steps.get(column.beside("skipped"), view.skipped)
        rows = np.flatnonzero(np.isfinite(norms) & ~skipped.astype(bool) & (norms > 0))
        place = _new_level(norms[rows])
        if place is None:
            continue
        at = place[0]  # a block may hold some of both
        before, after = (float(np.median(norms[part])) for part in (rows[max(0, at - BLOCK) : at], rows[at:][:BLOCK]))
        row = int(rows[at])
        step = int(view.number[row])
        if _lr_moved(view, column.beside("lr"), row):
            continue
        whose = f" of {column.optimizer}" if column.optimizer else ""
        whose += "" if column.name == "grad_norm" else " that the optimizer got"
        noted = any(event.kind == "annotation" and abs(event.step - step) <= BEFORE for event in view.events)
        eased = after < before and _loss_fell(view, row)
        blow = _blow(view, rows, norms, at, max(NORM_EXPLODED * before, LEVEL_TIMES * after))
        others = _others_take_part(view, column.optimizer, step, after / before)
        more = ""
        remedy = (
            f"Look at what changed at step {step:,}: the number of micro-batches a step (divide each loss by it), the "
            "reduction of the loss, a new term of it, the batch size, a checkpoint. Adam hides a constant factor; "
            "clipping and weight decay do not."
        )
        if others:
            more = "; other tensors have a gradient than before, and of those of both it did not change with it"
            remedy = (
                "Fine where parameters were frozen or unfrozen on purpose. Else look at what parts them from the loss."
            )
        elif _is_another_loss(view, row, after / before):
            more = "; the loss jumped there as well"
            remedy = "Fine where the objective or the data changed on purpose. Else look at what changed in them."
        elif blow is not None:
            more = f"; {blow[1]} at step {blow[0]:,}"
            remedy = f"Look at step {blow[0]:,} and those before it: the parameters are others since."
        yield Finding(
            "norm_level",
            "info" if noted or eased or more else "warning",
            "The gradients have another size from one step on",
            f"The gradient norm{whose} was {number_text(before)} up to step {step - 1:,} and is {number_text(after)} "
            f"since, {after / before:.2g} times as large{more}.",
            remedy,
            steps_of([step - 1, step]),
        )


def _blow(view: RunView, rows: np.ndarray, norms: np.ndarray, at: int, high: float) -> tuple[int, str] | None:
    """Where and what may have made the parameters others, up to the norm `at` one of the `rows`: a jump of the loss,
    or a gradient that was far longer than those before and after it."""
    step, recent = int(view.number[rows[at]]), rows[max(0, at - BLOCK_LEAST) : at + 1]
    spikes = [spike.step for spike in view.spikes if spike.grave and step - BEFORE <= spike.step < step - 1]
    if spikes:
        return spikes[0], "the loss had jumped"
    longest = int(recent[int(np.argmax(norms[recent]))])
    return (int(view.number[longest]), "a gradient was far longer") if norms[longest] > high else None


def _is_another_loss(view: RunView, row: int, times: float) -> bool:
    """Whether the loss jumped with the norm, and stayed high for a while, by another factor than the norm.

    In the very step: what gradients do to a loss shows in the next. And a loss that is not divided any more takes its
    gradients along.
    """
    step = int(view.number[row])
    if not any(abs(spike.step - step) <= 2 and (spike.back_after or BASELINE) > SLOW_BACK for spike in view.spikes):
        return False
    loss = view.steps.get("loss", np.full(len(view.number), np.nan))
    parts = [part[np.isfinite(part)] for part in (loss[max(0, row - BLOCK) : row], loss[row : row + BLOCK_LEAST])]
    if not all(map(len, parts)):
        return False
    low, high = (float(np.median(part)) for part in parts)
    return bool(loss[row] > (low + high) / 2 and not (low > 0 and times / TOGETHER <= high / low <= times * TOGETHER))


def _others_take_part(view: RunView, optimizer: str | None, step: int, times: float) -> bool:
    """Whether some tensors gained or lost their gradient at a step, and the others' norm did not change with it."""
    before, after = norms_around(view.record, optimizer, step)
    if before.keys() == after.keys():
        return False
    both = before.keys() & after.keys()
    first, second = (math.hypot(*(norms[name] for name in both)) for norms in (before, after))
    return bool(both) and (second / first < math.sqrt(times) if times > 1 else second / first > math.sqrt(times))


def gradients_zero(view: RunView) -> Iterator[Finding]:
    """Gradients that are all exactly 0 up to the end. Where the loss is 0 as well, there is nothing left to learn."""
    loss = view.steps.get("loss", np.full(len(view.number), np.nan))
    for column, norms in columns_named(view.steps, "grad_norm"):
        rows = np.flatnonzero(np.isfinite(norms) & ~view.skipped)
        others = np.flatnonzero(norms[rows] != 0)
        zero = rows[int(others[-1]) + 1 if len(others) else 0 :]
        losses = np.abs(loss[zero][np.isfinite(loss[zero])])
        share = ZERO_SHARE if column.optimizer is not None else 0.0  # one of several may wait for its turn
        if len(zero) < max(ZERO_STEPS, share * len(rows)) or (len(losses) and not np.median(losses) > 0):
            continue
        whose = f" of {column.optimizer}" if column.optimizer else ""
        step = int(view.number[zero[0]])
        yield Finding(
            "gradients_zero",
            "warning",
            "Every gradient is 0",
            f"The gradients{whose} were all exactly 0 in {count_text(len(zero), 'step')}, from step {step:,} to the end"
            + (f", at a median loss of {number_text(float(np.median(losses)))}." if len(losses) else "."),
            "Look for a zero_grad() between backward() and step(), a loss that these parameters do not reach, or one "
            "that is too small for its type.",
            steps_of([step]),
        )
        return


def _written_to(view: RunView) -> Iterator[tuple[StepColumn, np.ndarray]]:
    """Norms of what optimizers got, where that was longer than before, which no clip makes it, or divided."""
    for column, norms in columns_named(view.steps, "grad_norm_clipped"):
        coefficient = view.steps.get(column.beside("clip_coef"))
        if coefficient is None:
            continue
        if np.count_nonzero(coefficient > ENLARGED) >= LEVEL_STEPS or _divided(view, column, norms, coefficient):
            yield column, norms


def _divided(view: RunView, column: StepColumn, norms: np.ndarray, coefficient: np.ndarray) -> bool:
    """Whether norms were made shorter, by no clip that was seen, and by none written by hand: a clip leaves norms that
    are its threshold, by a factor that is another in each step."""
    rows = np.flatnonzero((coefficient > 0) & (coefficient < 1 / LEVEL_TIMES) & (norms > 0))
    threshold = view.steps.get(column.beside("max_norm"), np.empty(0))
    if len(rows) < LEVEL_STEPS or np.isfinite(threshold).any():
        return False
    by_factor, by_norm = (float(np.median(np.abs(np.diff(np.log(values[rows]))))) for values in (coefficient, norms))
    return by_factor < by_norm / 4


def _loss_fell(view: RunView, row: int) -> bool:
    """Whether the loss came down with the norm, as where dropout ends: less is left to learn."""
    loss = view.steps.get("loss", np.empty(0))
    before, after = loss[max(0, row - BLOCK) : row], loss[row : row + BLOCK]
    before, after = before[np.isfinite(before)], after[np.isfinite(after)]
    return bool(len(before) and len(after) and 0 <= np.median(after) <= np.median(before) / 2)


def _new_level(norms: np.ndarray) -> tuple[int, float, float] | None:
    """Where a series jumps to another level and stays there; the levels before and after. O(values)."""
    size = max(min(BLOCK, len(norms) // BLOCKS), len(norms) // WINDOWS // BLOCK * BLOCK)
    if size < BLOCK_LEAST:
        return None
    blocks = len(norms) // size
    medians = np.median(norms[: blocks * size].reshape(blocks, size)[:, :: max(1, size // BLOCK)], axis=1)
    ratio = medians[2:] / medians[:-2]
    for block in np.flatnonzero((ratio >= LEVEL_TIMES) | (ratio <= 1 / LEVEL_TIMES)).tolist()[:8]:
        before, after = float(medians[block]), float(medians[block + 2])
        held = medians[max(0, block - 5) : block + 1]
        rest = medians[block + 2 :]
        rises = after > before
        stays = (rest > before * LEVEL_TIMES / 2).all() if rises else (rest < before / LEVEL_TIMES * 2).all()
        jump = max(after / before, before / after)
        steady = (held.max() / held.min()) ** STEADY <= jump
        known = medians[: block + 1]  # a size that it had before is none that is new
        seen = ((known > after / 2) & (known < after * 2)).any()
        early = block < (2 if rises else min(EARLY, blocks // EARLY_SHARE))
        if seen or early or len(rest) < LEVEL_STEPS // BLOCK or not stays or not steady:
            continue
        begin = (block + 1) * size - size // 2
        place = _edge(norms, begin, begin + 2 * size, before, after)
        if place is not None:
            return place, before, after
    return None


def _edge(norms: np.ndarray, begin: int, end: int, before: float, after: float) -> int | None:
    """The first value of the new level, where the step is a sharp one: eight values before and after it show it."""
    middle = float(np.sqrt(before * after))
    high = norms[begin:end] > middle
    beyond = high if after > before else ~high
    count = np.cumsum(beyond)
    place = begin + int(np.argmin(count - np.arange(len(beyond)) * 0.5)) + 1
    around = norms[max(0, place - 8) : place], norms[place : place + 8]
    if any(len(each) < 8 for each in around):
        return None
    first, second = (float(np.median(each)) for each in around)
    times = max(second / first, first / second)
    return place if times >= LEVEL_TIMES / 1.5 else None


def _lr_moved(view: RunView, name: str, row: int) -> bool:
    lr = view.steps.get(name)
    if lr is None:
        return False
    before, after = lr[max(0, row - 8)], lr[min(len(lr) - 1, row + 8)]
    return bool(max(before, after) > LR_ROSE * min(before, after))


def losses_added_up(view: RunView) -> Iterator[Finding]:
    """A sum of losses that grew with the number of micro-batches: neither it nor the gradients are divided by it."""
    counts, loss = view.steps.get("micro_batches"), view.steps.get("loss")
    if counts is None or loss is None:
        return
    rows = np.flatnonzero(np.isfinite(loss) & ~view.skipped & (counts >= 1))
    values, number = loss[rows], counts[rows]
    for at in (np.flatnonzero(np.diff(number) != 0) + 1).tolist()[:EXAMINED]:
        before, after = slice(max(0, at - BLOCK), at), slice(at, at + BLOCK)
        few, many = float(np.median(number[before])), float(np.median(number[after]))
        if min(at, len(rows) - at) < BLOCK or max(few, many) < 2 * min(few, many):
            continue
        low, high = float(np.median(values[before])), float(np.median(values[after]))
        grew = high / low if low > 0 else 0.0
        if not ADDED_WITHIN[0] <= grew / (many / few) <= ADDED_WITHIN[1]:
            continue
        step = int(view.number[rows[at]])
        if any(step <= event.step <= step + BLOCK for event in view.of("gradients_discarded")):
            continue  # all but the last do not count since
        yield Finding(
            "losses_added_up",
            "warning",
            "The losses of the micro-batches are added up, not averaged",
            f"At step {step:,} the micro-batches of a step went from {few:.0f} to {many:.0f}, and the sum of their "
            f"losses from {number_text(low)} to {number_text(high)}, {grew:.2g} times: so did the gradients.",
            "Divide each loss by the number of micro-batches before its backward.",
            steps_of([step]),
        )
        return


EXAMINED = 100  # changes of the number of micro-batches that are looked at


def weights_vanish(view: RunView) -> Iterator[Finding]:
    """But for the first, levels are medians of three: a single one that ran away is no size that the parameters had."""
    for column, norms in columns_named(view.steps, "param_norm"):
        rows = np.flatnonzero(np.isfinite(norms))
        if len(rows) < 8:
            continue
        middle = np.median(np.lib.stride_tricks.sliding_window_view(norms[rows], 3), axis=1)
        levels = np.concatenate([norms[rows[:1]], middle])  # each at its middle
        peak, now = int(np.argmax(levels)), float(levels[-1])
        if not now <= VANISHED * levels[peak]:
            continue
        whose = f" of {column.optimizer}" if column.optimizer else ""
        first, last = int(view.number[rows[peak]]), int(view.number[rows[-1]])
        yield Finding(
            "weights_vanish",
            "warning",
            "The parameters shrink to nothing",
            f"The norm of the parameters{whose} fell from {number_text(float(levels[peak]))} at step {first:,} to "
            f"{number_text(now)} at step {last:,} ({count_text(len(rows), 'measurement')}).",
            "Lower the weight decay, or the learning rate that multiplies it: what it takes away, the gradients do not "
            "give back.",
            steps_of([first, last]) or OF_THE_RUN,
        )


def first_updates(view: RunView) -> Iterator[Finding]:
    """A first step that rewrote the parameters, which then grew many times: the learning rate was too high for them."""
    for column, norms in columns_named(view.steps, "param_norm"):
        moved = view.steps.get(column.beside("update_norm"))
        rows = np.flatnonzero(np.isfinite(norms))
        if moved is None or len(rows) < 4 or rows[0] > 0:
            continue
        beginning = rows[: max(2, len(rows) // 4)]
        peak = beginning[int(np.argmax(norms[beginning]))]
        # A step in high dimensions is nearly at right angles to the parameters.
        starts = np.sqrt(np.maximum(norms[beginning] ** 2 - moved[beginning] ** 2, 0.0))
        start = float(starts[0])
        share = float(np.nanmax(moved[beginning] / np.maximum(starts, STARTED_SMALL * norms[beginning])))
        if start < STARTED_SMALL * norms[0]:  # at zero, or nearly: they have no size of their own yet
            continue
        grew = norms[peak] / start
        if not share >= REWRITTEN / 2 or not grew >= GREW_AT_ONCE or share * grew < REWRITTEN * GREW_AT_ONCE:
            continue
        if share < 1 and _learned(view):  # a step as long as the parameters leaves nothing of them
            continue
        if optimizer_settings(view.meta, column.optimizer).get("class") == "LBFGS":  # a step of it is many
            continue
        whose = f" of {column.optimizer}" if column.optimizer else ""
        step = int(view.number[peak])
        yield Finding(
            "update_ratio_high",
            "info" if _fell_at_once(view, peak) else "warning",
            "The first steps rewrote the parameters",
            f"A step changed the parameters{whose} by up to {share:.2g} of their norm, which grew from "
            f"{number_text(start)} to {number_text(float(norms[peak]))} by step {step:,}: what they were initialized "
            "with is gone.",
            "Lower the learning rate, or warm it up: a first step of Adam changes each element by the learning rate.",
            steps_of([int(view.number[0]), step]),
        )


def _learned(view: RunView) -> bool:
    """Whether the loss came down by far from its first: then parameters that grew are what was learned."""
    loss = view.steps.get("loss", np.empty(0))
    loss = loss[np.isfinite(loss)]
    return len(loss) >= 2 * BLOCK_LEAST and bool(0 <= np.median(loss[-BLOCK_LEAST:]) <= LEARNED * loss[0])


def _fell_at_once(view: RunView, row: int) -> bool:
    """Whether the loss fell by half, and was not above its first while the parameters grew: no harm was done.

    Not single losses, but levels: those of small batches, or with heavy tails, scatter by more.
    """
    loss = view.steps.get("loss", np.empty(0))
    meanwhile, last = loss[: row + 1], loss[np.isfinite(loss)][-BLOCK:]
    meanwhile = meanwhile[np.isfinite(meanwhile)]
    size = min(BLOCK, len(meanwhile) // BLOCKS_OF_LOSSES)
    if size < 2 or not meanwhile[0] > 0:
        return False
    blocks = meanwhile[: len(meanwhile) // size * size].reshape(-1, size)
    levels = np.median(blocks, axis=1)
    scatter = 1.4826 * np.median(np.abs(blocks - levels[:, None]), axis=1)
    rose = (levels > ENLARGED * meanwhile[0]) & (levels - meanwhile[0] > BY_CHANCE * scatter)
    return bool(np.median(last) <= max(levels[0], meanwhile[0]) / 2 and not rose.any())


def weights_grow(view: RunView) -> Iterator[Finding]:
    """Parameters that still grow late in a run, by a factor that no training asks for."""
    for column, norms in columns_named(view.steps, "param_norm"):
        rows = np.flatnonzero(np.isfinite(norms))
        if len(rows) < 16:
            continue
        quarters = np.array_split(norms[rows], 4)
        levels = [float(np.median(quarter)) for quarter in quarters]
        if not levels[3] >= WEIGHTS_GREW * levels[1] > 0 or not levels[3] > 1.5 * levels[2]:
            continue
        whose = f" of {column.optimizer}" if column.optimizer else ""
        middle, last = int(view.number[rows[len(rows) // 4]]), int(view.number[rows[-1]])
        yield Finding(
            "weights_grow",
            "warning",
            "The parameters grow without end",
            f"The norm of the parameters{whose} rose from {number_text(levels[1])} (the run's second quarter, from "
            f"step {middle:,} on) to {number_text(levels[3])} in its last, up to step {last:,}.",
            "Lower the learning rate, or decay the weights: a norm that grows by factors is not learning.",
            steps_of([middle, last]),
        )
