"""Steps at which the loss or a gradient norm left what was usual: computed at each read, never stored."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tbnum.explain.record import Record
from tbnum.explain.thresholds import (
    BACK_DEVIATIONS,
    BACK_SHARE,
    BASELINE,
    BEFORE,
    FAR_DEVIATIONS,
    FAR_TIMES,
    LR_ROSE,
    NORM_EXPLODED,
    NORM_ROSE,
    ONE_STEP,
    SLOW_BACK,
    SPIKE_ALONE_DEVIATIONS,
    SPIKE_DEVIATIONS,
    SPIKE_SHARE,
    SPIKE_STEPS,
)
from tbnum.explain.words import as_float
from tbnum.log.columns import StepColumn, columns_named
from tbnum.log.schema import Event

__all__ = [
    "LIMITS",
    "NEXT",
    "SPIKES",
    "Spike",
    "SpikeFacts",
    "data_of",
    "find_spikes",
    "is_near_zero",
    "losses_of_their_own",
    "spike_events",
    "spikes_in",
]

SPIKES = {"loss_spike": "loss", "grad_norm_spike": "grad_norm"}
"""Kinds of event, and the column that each is about."""

STRIDE = BASELINE // 2  # between two windows: a median is taken once for so many values
NEXT = 8
"""Values, its own included, that decide whether a value is a spike: `SPIKE_STEPS` of them have to be high."""

COMMON, COMMON_TIMES = 8, 2.0
"""Of the `BASELINE` values before one so many are high themselves, where tasks take turns, say. A level has to be above
them, and a single value so many times as far above the usual."""

RARE_WINDOWS, RARE_DEVIATIONS = 16, 4.0
"""Windows whose highest value counts as so many deviations where most values are the same: twice, or four times, as
high as any of them is a spike."""

LATER = 1024
"""Values within which is looked for the end of what is high."""

BLOCKS_LEAST = 3
"""Blocks of values that begin and end abruptly, or spikes at a steady distance, from which on they are the data's own
order: parameters that were damaged do not heal in a step."""

SHARP = 0.5
"""Share of its height that a block still has in its last values."""

PERIOD_STEPS, PERIOD_SHARE = 2, 0.02
"""By how much the distance of two spikes may differ from a multiple of the period, in steps and as a share of it."""

LEVEL_VALUES = 16
"""Values whose median is high together, however they scatter."""

WANDER_BLOCKS = 256
"""Blocks of which it is worked out how a loss wanders."""

SURROGATE = 0.2
"""Scatter of single losses, as a share of a level below zero, above which that level is near zero."""

LATELY = 8
"""Windows before one whose deviation counts for levels as well: noise that is low in one of them alone is not low."""

SMALL_RISE, SMALL_DEVIATIONS = 0.1, 5.0
"""Share of the usual that such a median has to rise by, where it rises by so many robust deviations of
single values: medians of noise differ by a third of one."""

LEVELS_LEAST = 6
"""Of such medians, from which on they show how the loss wanders by itself."""

LEVEL_ERRORS = SPIKE_DEVIATIONS * 1.2533 * math.sqrt(1 / LEVEL_VALUES + 1 / BASELINE)
"""Robust deviations of single values: by as many standard errors as `SPIKE_DEVIATIONS` says do two medians differ."""

BACK_ERRORS = BACK_DEVIATIONS * 1.2533 * math.sqrt(1 / NEXT + 1 / BASELINE)
"""Likewise, down to which the median of the next few values is that of before."""


class Spike(NamedTuple):
    column: StepColumn
    row: int  # of the record, at which it began
    peak_row: int
    peak: float
    usual: float
    back_after: int | None  # steps until it was back; None: not, or the record ends too soon
    lasting: bool  # it was still high `BASELINE` values later
    far: bool  # far beyond anything usual, and not for a single step
    schedule: bool  # the learning rate had just gone back up to where it had been: a warm restart
    block: bool  # high for a while, and back from one step to the next
    level: float  # the median of its values
    recurs: bool = False  # one of many blocks, or of a steady rhythm: the order of the data
    noted: bool = False  # somebody noted right before it what changed
    says_little: bool = False  # the loss is one whose height says little (see `losses_of_their_own` and `is_near_zero`)

    @property
    def grave(self) -> bool:
        slow = self.back_after is not None and self.back_after > SLOW_BACK and self.column.name == "loss"
        high = self.far or ((self.lasting or slow) and not self.says_little)
        return high and not (self.schedule or self.recurs or self.noted)


class SpikeFacts(NamedTuple):
    """What the event of a spike says."""

    step: int
    peak_step: int
    peak: float
    usual: float
    back_after: int | None
    lasting: bool
    grave: bool
    schedule: bool
    recurs: bool

    @staticmethod
    def of(event: Event) -> SpikeFacts:
        data = event.data
        peak_step, back_after = as_float(data.get("peak_step")), as_float(data.get("back_after"))
        return SpikeFacts(
            event.step,
            event.step if math.isnan(peak_step) else int(peak_step),
            as_float(data.get("peak")),
            as_float(data.get("usual")),
            None if math.isnan(back_after) else int(back_after),
            bool(data.get("lasting")),
            bool(data.get("grave")),
            bool(data.get("schedule")),
            bool(data.get("recurs")),
        )


@dataclass(frozen=True)
class Limits:
    """How far above the usual a value is a spike: robust deviations (of one of several, of one alone), and a share."""

    deviations: float
    alone: float
    share: float  # of the usual
    small: float  # likewise, of a median of `LEVEL_VALUES` that is `SMALL_DEVIATIONS` above it


LIMITS = {
    "loss": Limits(SPIKE_DEVIATIONS, SPIKE_ALONE_DEVIATIONS, SPIKE_SHARE, SMALL_RISE),
    "grad_norm": Limits(SPIKE_ALONE_DEVIATIONS, SPIKE_ALONE_DEVIATIONS, NORM_EXPLODED - 1, NORM_EXPLODED - 1),
}


class Found(NamedTuple):
    """A spike among finite values."""

    begin: int
    peak: int
    usual: float  # the median of `BASELINE` values that end up to `STRIDE` before it
    deviation: float  # robust: 1.4826 x the median distance from the median, without a fall
    level: bool = False  # not single values, but their median is high


def find_spikes(values: np.ndarray, limits: Limits) -> list[Found]:
    """Of finite values in order. What is high within `STRIDE` values of a high one belongs to the same spike.

    O(values): one median for each `STRIDE` of them, and more only around values that are a share above it.
    """
    if len(values) <= BASELINE:
        return []
    halves = values[: len(values) // STRIDE * STRIDE].reshape(-1, STRIDE)
    windows = np.concatenate((halves[:-1], halves[1:]), axis=1)  # (W, BASELINE), one for each `STRIDE` values
    following = np.full(-(-(len(values) - BASELINE) // STRIDE) * STRIDE, -np.inf)
    following[: len(values) - BASELINE] = values[BASELINE:]
    blocks = following.reshape(-1, STRIDE)  # (W, STRIDE) the values that are held against each window
    middle = _medians(windows[: len(blocks)])
    single = blocks.max(1) - middle > limits.share * np.abs(middle)
    some = np.flatnonzero(single | _mostly(blocks, middle + limits.small * np.abs(middle)))
    if not len(some):
        return []
    usual = middle[some, None]
    deviation, lately = (each[:, None] for each in _deviations(windows, middle, some))
    if not deviation.all():
        deviation = np.where(deviation > 0, deviation, _rare(windows, middle)[some, None])
        lately = np.maximum(deviation, lately)
    above, common = blocks[some] - usual, _common(windows[some]) - usual
    least, small = (np.maximum(share * np.abs(usual), common) for share in (limits.share, limits.small))
    stayed = _stayed(above, lately, least, small, functools.partial(_wander, windows, blocks, middle))
    least = np.maximum(least, COMMON_TIMES * common)
    high = above > np.maximum(limits.deviations * deviation, least)
    window, place = np.nonzero(high | stayed)
    at = BASELINE + some[window] * STRIDE + place  # rising
    highest = at[high[window, place]]
    near = np.searchsorted(highest, at + NEXT) - np.searchsorted(highest, at)  # of it and the next, so many are high
    kept = (above > np.maximum(limits.alone * deviation, least))[window, place]
    level = stayed[window, place]
    kept |= high[window, place] & (near >= SPIKE_STEPS) | level
    found: list[Found] = []
    last = -STRIDE - 1
    for position, index, of_level in zip(at[kept].tolist(), window[kept].tolist(), level[kept].tolist(), strict=True):
        if found and position <= last + STRIDE:
            peak = max(found[-1].peak, position, key=values.__getitem__)
            found[-1] = found[-1]._replace(peak=peak, level=found[-1].level or of_level)
        else:
            found.append(Found(position, position, float(usual[index, 0]), float(deviation[index, 0]), of_level))
        last = position
    return found


def _common(windows: np.ndarray) -> np.ndarray:
    """(W, 1) what `COMMON` of the values in a window reach."""
    return np.asarray(np.sort(_without_fall(windows), axis=1)[:, -COMMON, None])


def _rare(windows: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """(W,) instead of a deviation of 0, as where most losses are exactly 0: by the highest of the values before."""
    highest = windows[: len(middle)].max(1) - middle
    recent = np.concatenate([np.zeros(RARE_WINDOWS - 1), highest])
    return np.lib.stride_tricks.sliding_window_view(recent, RARE_WINDOWS).max(1) / RARE_DEVIATIONS


def _without_fall(windows: np.ndarray) -> np.ndarray:
    """(W, BASELINE): of a loss that falls steeply, what is left without the line of its fall. That is no noise."""
    half = windows.shape[1] // 2
    fall = np.minimum(_medians(windows[:, half:]) - _medians(windows[:, :half]), 0.0) / half
    return np.asarray(windows - fall[:, None] * (np.arange(windows.shape[1]) - half + 0.5))


def _deviations(windows: np.ndarray, middle: np.ndarray, some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(S,) of some windows their robust deviation; and the same, or the median of theirs and those of the last few."""
    last = np.arange(LATELY + 1)
    near = np.unique(np.maximum(some[:, None] - last, 0))
    known = np.full(near[-1] + LATELY + 1, np.nan)
    known[near + LATELY] = 1.4826 * _medians(np.abs(_without_fall(windows[near]) - middle[near, None]))
    own = known[some + LATELY]
    return own, np.maximum(own, np.nanmedian(known[some[:, None] + last], axis=1))


def _wander(windows: np.ndarray, blocks: np.ndarray, middle: np.ndarray) -> float:
    """By how many deviations of single values the medians of halves of a block change by themselves.

    By their rises from one block to the next, and by how much they lie apart from those around them, whichever is
    less: a fall has no rises, and a slope no bends. Of some blocks, evenly over the run. NaN where these are too few.
    """
    inner = len(blocks) - 2
    some = np.unique(np.linspace(1, inner, min(WANDER_BLOCKS, max(inner, 0))).astype(int))
    if 2 * len(some) < LEVELS_LEAST:
        return math.nan
    before, now, after = (_half_medians(blocks[some + shift]) for shift in (-1, 0, 1))
    lately = _deviations(windows, middle, some)[1][:, None]
    unit = np.where(lately > 0, lately, np.nan)
    rises, bends = (((now - before) / unit).ravel(), ((now - (before + after) / 2) / unit).ravel())
    rises, bends = rises[np.isfinite(rises)], bends[np.isfinite(bends)]
    if min(len(rises), len(bends)) < LEVELS_LEAST:
        return math.nan
    bent = 1.4826 * float(np.median(np.abs(bends - np.median(bends))))
    return min(bent, max(1.4826 * float(np.quantile(rises, 0.75)), 0.0))


def _mostly(blocks: np.ndarray, over: np.ndarray) -> np.ndarray:
    """(W,) bool: whether the median of a half of a block (W, STRIDE) is above a value (W,). Without sorting."""
    high = (blocks > over[:, None]).reshape(len(blocks), -1, LEVEL_VALUES)
    return np.asarray((np.count_nonzero(high, axis=2) > LEVEL_VALUES // 2).any(1))


def _half_medians(above: np.ndarray) -> np.ndarray:
    """(W, 2) of (W, STRIDE)."""
    halves = above.reshape(len(above), -1, LEVEL_VALUES)
    return np.asarray(np.sort(halves, axis=2)[:, :, LEVEL_VALUES // 2 - 1])


def _stayed(
    above: np.ndarray, deviation: np.ndarray, least: np.ndarray, small: np.ndarray, wander: Callable[[], float]
) -> np.ndarray:
    """(W, STRIDE) bool: values of those halves of a block whose median is higher than noise makes medians.

    A rise that is a small share of the usual has to be many deviations of a single value, and not of a median.
    Noise is what medians of so many values do in the whole run: losses that wander by themselves show it there. The
    values are those that lie higher by as much themselves: the first of them is where it began, or next to it.
    """
    halves, level = above.reshape(len(above), -1, LEVEL_VALUES), _half_medians(above)

    def limit(wanders: float) -> np.ndarray:
        high = np.maximum(max(LEVEL_ERRORS, SPIKE_DEVIATIONS * wanders) * deviation, least)
        return np.minimum(high, np.maximum(max(SMALL_DEVIATIONS, SPIKE_DEVIATIONS * wanders) * deviation, small))

    if not (level > limit(0.0)).any():  # nearly always, and then it does not matter how much losses wander
        return np.zeros(above.shape, bool)
    wanders = wander()
    if math.isnan(wanders):
        return np.zeros(above.shape, bool)
    over = limit(wanders)
    return np.asarray(((level > over)[:, :, None] & (halves > over[:, :, None])).reshape(above.shape))


def _medians(windows: np.ndarray) -> np.ndarray:
    """(W,) over finite values (W, BASELINE). Sorting short rows is ten times as fast as to partition them."""
    half = windows.shape[1] // 2
    ordered = np.sort(windows, axis=1)
    return np.asarray((ordered[:, half - 1] + ordered[:, half]) / 2)


def spikes_in(record: Record, name: str) -> list[Spike]:
    """Steps that were taken, with a finite value far above the usual. Skipped steps are reported by their skip."""
    found: list[Spike] = []
    for column, values in columns_named(record.steps, name):
        if column.name == "loss" and column.optimizer is not None:
            continue  # the sum has it
        skipped = record.steps.get(column.beside("skipped"), record.steps.get("skipped"))
        taken = np.isfinite(values) if skipped is None else np.isfinite(values) & ~skipped.astype(bool)
        rows = np.flatnonzero(taken)
        finite = values if len(rows) == len(values) else values[rows]
        places = find_spikes(finite, LIMITS[name])
        parts = losses_of_their_own(record) if places and name == "loss" else []
        if len(parts) > 1:
            places = _beyond_parts(parts, rows, finite, places)
        described = [_described(record, column, rows, finite, each, len(parts) > 1) for each in places]
        found += _with_recurrence(described)
    return found


def is_near_zero(level: float, scatter: float) -> bool:
    """Whether a level of the loss lies below 0, and no further than single losses scatter: a policy's gain."""
    return level < 0 and scatter > SURROGATE * -level


def losses_of_their_own(record: Record) -> list[np.ndarray]:
    """Losses that several optimizers have of their own: of networks against each other, the sum says little."""
    losses = [values for column, values in columns_named(record.steps, "loss") if column.optimizer is not None]
    return losses if any(not np.array_equal(losses[0], each, equal_nan=True) for each in losses[1:]) else losses[:1]


def _beyond_parts(parts: list[np.ndarray], rows: np.ndarray, loss: np.ndarray, found: list[Found]) -> list[Found]:
    """Without those that are small against what the sum is of: losses of several optimizers against each other cancel.

    `rows` (N,): where the values of `loss` stand in the record.
    """
    with np.errstate(invalid="ignore"):
        whole = np.nansum(np.abs(np.stack(parts)), axis=0)[rows]
    return [
        each
        for each in found
        if loss[each.peak] - each.usual
        > SPIKE_SHARE * float(np.median(whole[max(0, each.begin - BASELINE) : each.begin]))
    ]


def _with_recurrence(spikes: list[Spike]) -> list[Spike]:
    """Of one column. A block that the record ends in is one of them where it is no higher than they are."""
    blocks = [spike.level for spike in spikes if spike.block]
    if _at_a_period([spike.row for spike in spikes if spike.back_after is None or spike.back_after > ONE_STEP]):
        return [spike._replace(recurs=True) for spike in spikes]
    if len(blocks) < BLOCKS_LEAST:
        return spikes
    highest = max(blocks)
    return [
        spike._replace(recurs=spike.block or (spike.back_after is None and spike.level <= highest)) for spike in spikes
    ]


def _at_a_period(rows: Sequence[int]) -> bool:
    """Whether the distances between rows are all multiples of the smallest one."""
    apart = np.diff(rows)
    if len(apart) < BLOCKS_LEAST - 1 or apart.min() <= SLOW_BACK:
        return False
    off = np.abs(apart - np.round(apart / apart.min()) * apart.min())
    return bool((off <= max(PERIOD_STEPS, PERIOD_SHARE * apart.min())).all())


def _described(
    record: Record, column: StepColumn, rows: np.ndarray, values: np.ndarray, found: Found, says_little: bool
) -> Spike:
    """`rows` (N,): where the `values` stand in the record."""
    at, normal, deviation = found.begin, found.usual, found.deviation
    says_little |= column.name == "loss" and is_near_zero(normal, deviation)
    border = normal + max(BACK_DEVIATIONS * deviation, BACK_SHARE * abs(normal))
    usual = normal + max(BACK_ERRORS * deviation, BACK_SHARE * abs(normal)) if found.level else border
    after = values[at + 1 : at + 1 + BASELINE]
    low = np.flatnonzero(after <= border).tolist()
    back = next((place for place in low if not found.level or np.median(after[place : place + NEXT]) <= usual), None)
    lasting = len(after) >= BASELINE // 2 and float(np.median(after)) > usual
    level, block, far = float(values[found.peak]), False, False
    if lasting or back is None or back >= ONE_STEP:
        end = _end(after, usual)
        end = _end(values[at + 1 : at + 1 + LATER], usual) if end is None else end
        high = values[at : at + 1 + (LATER if end is None else end)]
        level = float(np.median(high))
        if lasting:
            back, lasting = end, end is None
        sharp = float(np.median(high[-NEXT:])) - normal >= SHARP * (level - normal)
        block = end is not None and end >= SLOW_BACK and sharp
        jump = high[:BASELINE] if says_little else high  # a gain may go on to grow, as it is meant to
        beyond = float(np.sort(jump)[-min(len(jump), ONE_STEP + 1)]) - normal  # one and the next may be single batches
        far = beyond > max(FAR_DEVIATIONS * deviation, FAR_TIMES * abs(normal))
    back_after = int(rows[at + 1 + back] - rows[at]) if back is not None and not lasting else None
    peak = float(values[found.peak])
    row, peak_row = int(rows[at]), int(rows[found.peak])
    far = far and column.name == "loss" and (back_after is None or back_after > ONE_STEP)
    restarted = _restarted(record, row)
    facts = (column, row, peak_row, peak, normal, back_after, lasting, far, restarted, block, level)
    return Spike(*facts, says_little=says_little)


def _end(after: np.ndarray, usual: float) -> int | None:
    """Where values are back for good: the first of `NEXT` whose median is at most `usual`. None: not among them."""
    if len(after) < NEXT:
        return None
    ordered = np.sort(np.lib.stride_tricks.sliding_window_view(after, NEXT), axis=1)
    places = np.flatnonzero((ordered[:, NEXT // 2 - 1] + ordered[:, NEXT // 2]) / 2 <= usual)
    if not len(places):
        return None
    low = np.flatnonzero(after[places[0] : places[0] + NEXT] <= usual)
    return int(places[0] + low[0])


def _restarted(record: Record, row: int) -> bool:
    """Whether the learning rate had just gone up again, to no more than what the run had trained with before."""
    for column, lr in columns_named(record.steps, "lr"):
        begin = max(0, row - BEFORE)
        before = lr[begin : row + 1]
        known = before[np.isfinite(before)]
        if column.group or len(known) < 2 or not begin:
            continue
        with np.errstate(invalid="ignore"):
            if known[-1] > LR_ROSE * known.min() > 0 and known.max() <= 1.05 * np.nanmax(lr[:begin]):
                return True
    return False


def _something_rose(record: Record, row: int) -> bool:
    """Whether a learning rate, or a norm before the step, had left what it was: a note does not explain that."""
    begin = max(0, row - BEFORE)
    for name, end, times in (("lr", row + 1, LR_ROSE), ("grad_norm", row, NORM_ROSE)):
        for _, values in columns_named(record.steps, name):
            before, near = values[:begin], values[begin:end]
            before, near = before[np.isfinite(before)], near[np.isfinite(near)]
            usual = np.median(before[-BASELINE:]) if len(before) else np.nan
            if len(near) and len(before) and near.max() > times * usual > 0 and near.max() > 1.05 * before.max():
                return True
    return False


def spike_events(record: Record) -> list[Event]:
    """Not yet explained, in order of step."""
    number = record.steps.get("step", np.empty(0, np.int64))
    clock = record.steps.get("wall_time", np.full(len(number), np.nan))
    notes = [event.step for event in record.raw_events if event.kind == "annotation"]
    events = []
    for kind, name in SPIKES.items():
        for spike in spikes_in(record, name):
            step, wall_time = int(number[spike.row]), float(clock[spike.row])
            noted = any(step - BEFORE <= note <= step + 1 for note in notes)
            spike = spike._replace(noted=noted and not _something_rose(record, spike.row))
            events.append(Event(step, wall_time, kind, optimizer=spike.column.optimizer, data=data_of(spike, number)))
    return sorted(events, key=lambda event: event.step)


def data_of(spike: Spike, number: Sequence[int] | np.ndarray) -> dict[str, object]:
    """What the event of a spike holds."""
    return {
        "peak_step": int(number[spike.peak_row]),
        "peak": spike.peak,
        "usual": spike.usual,
        "back_after": spike.back_after,
        "lasting": spike.lasting,
        "grave": spike.grave,
        "schedule": spike.schedule,
        "recurs": spike.recurs,
    }
