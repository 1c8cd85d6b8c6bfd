"""Spikes, and levels of the loss, against their definition worked out value by value, without an array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import pytest

from tbnum.explain import level_findings as levels
from tbnum.explain import spikes as spikes_of
from tbnum.explain.live import LiveSpikes
from tbnum.explain.spikes import LIMITS, Found, Limits, find_spikes, spikes_in
from tests.test_explain import FakeRun

INF, NAN = math.inf, math.nan


def deviation_of(values: Sequence[float], usual: float) -> float:
    """1.4826 times the median distance, once the line between the medians of the halves is taken off if it falls."""
    half = len(values) // 2
    fall = min(median(values[half:]) - median(values[:half]), 0.0) / half
    return 1.4826 * median(abs(value - fall * (at - half + 0.5) - usual) for at, value in enumerate(values))


def common_of(values: Sequence[float]) -> float:
    """The eighth highest, once the line of a fall is taken off."""
    half = len(values) // 2
    fall = min(median(values[half:]) - median(values[:half]), 0.0) / half
    return sorted(value - fall * (at - half + 0.5) for at, value in enumerate(values))[-8]


def lower_median(values: Sequence[float]) -> float:
    return sorted(values)[7]  # of 16


def lately(deviation: Sequence[float], window: int) -> float:
    """The deviation of a window, or the median of it and those of the last eight."""
    return max(deviation[window], median(deviation[max(0, window - 8) : window + 1]))


def wander_of(usual: Sequence[float], steady: Sequence[float], blocks: Sequence[Sequence[float]]) -> float:
    rises, bends = [], []
    for at in range(1, len(blocks) - 1):
        for half in (slice(0, 16), slice(16, 32)):
            before, now, after = (lower_median(blocks[at + shift][half]) for shift in (-1, 0, 1))
            if steady[at] > 0:
                rises.append((now - before) / steady[at])
                bends.append((now - (before + after) / 2) / steady[at])
    rises, bends = ([each for each in values if math.isfinite(each)] for values in (rises, bends))
    if min(len(rises), len(bends)) < 6:
        return NAN
    bent = 1.4826 * median(abs(bend - median(bends)) for bend in bends)
    return min(bent, max(1.4826 * float(np.quantile(rises, 0.75)), 0.0))


def by_definition(values: Sequence[float], limits: Limits) -> list[Found]:
    count = len(values)
    usual, deviation, highest, common, blocks = [], [], [], [], []
    for begin in range(0, count - 64, 32):
        window = values[begin : begin + 64]
        usual.append(median(window))
        deviation.append(deviation_of(window, usual[-1]))
        highest.append(max(window) - usual[-1])
        common.append(common_of(window) - usual[-1])
        block = list(values[begin + 64 : begin + 96])
        blocks.append(block + [-INF] * (32 - len(block)))
    wander = wander_of(usual, [lately(deviation, window) for window in range(len(usual))], blocks)
    steady = [lately(deviation, window) for window in range(len(usual))]
    for window, width in enumerate(deviation):
        if width == 0:  # most values are the same: the highest of the last 16 windows are four deviations
            deviation[window] = max([0.0, *highest[max(0, window - 15) : window + 1]]) / 4
    steady = [max(each) for each in zip(steady, deviation, strict=True)]
    high, stayed, alone = [False] * count, [False] * count, [False] * count
    for window, (block, middle, width) in enumerate(zip(blocks, usual, deviation, strict=True)):
        least, small = (max(share * abs(middle), common[window]) for share in (limits.share, limits.small))
        for at, value in enumerate(block):
            place, above = 64 + 32 * window + at, value - middle
            if place >= count:
                break
            half = at // 16 * 16
            level = lower_median(block[half : half + 16]) - middle
            errors = 8.0 * 1.2533 * math.sqrt(1 / 16 + 1 / 64)
            limit = max(max(errors, 8.0 * wander) * steady[window], least)
            limit = min(limit, max(max(5.0, 8.0 * wander) * steady[window], small))
            stayed[place] = not math.isnan(wander) and level > limit and above > limit
            highest_usual = max(least, 2 * common[window])
            high[place] = above > max(limits.deviations * width, highest_usual)
            alone[place] = above > max(limits.alone * width, highest_usual)
    found: list[Found] = []
    last = -INF
    for place in range(count):
        if not (alone[place] or stayed[place] or (high[place] and sum(high[place : place + 8]) >= 3)):
            continue
        if place <= last + 32:
            peak = found[-1].peak if values[found[-1].peak] >= values[place] else place
            found[-1] = found[-1]._replace(peak=peak, level=found[-1].level or stayed[place])
        else:
            window = (place - 64) // 32
            found.append(Found(place, place, usual[window], deviation[window], stayed[place]))
        last = place
    return found


def series(kind: str, seed: int) -> np.ndarray:
    random = np.random.default_rng([seed, len(kind)])
    count = int(random.integers(60, 700))
    values = 2 + 0.1 * random.standard_normal(count)
    if kind == "whole numbers":  # values that are exactly at a limit
        values = random.poisson(4, count).astype(float)
    elif kind == "whole numbers that hardly vary":
        values = 8.0 + random.integers(-1, 2, count) * (random.random(count) < 0.6)
    elif kind == "mostly the same":
        values = np.where(random.random(count) < 0.2, random.integers(0, 9, count), 0).astype(float)
    elif kind == "falls":
        values += 6 * np.exp(-np.arange(count) / 60)
    elif kind == "wanders":
        values += 0.02 * np.cumsum(random.standard_normal(count))
    elif kind == "below zero":
        values -= 4
    scale = float(random.choice([0.3, 0.5, 1.0, 2.0, 8.0]))
    for _ in range(int(random.integers(0, 6))):  # single values, rows of them, and levels
        begin, length = int(random.integers(0, count)), int(random.choice([1, 1, 2, 3, 6, 9, 20, 40, 90]))
        rise = scale * random.integers(1, 12)
        values[begin : begin + length] += np.where(random.random(len(values[begin : begin + length])) < 0.8, rise, 0)
    return values


KINDS = (
    *("noise", "whole numbers", "whole numbers that hardly vary", "mostly the same", "falls", "wanders"),
    "below zero",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LIMITS)
def test_what_is_a_spike_is_what_the_definition_says_value_by_value(kind: str, name: str) -> None:
    for seed in range(14):
        values = series(kind, seed)
        expected = by_definition(values.tolist(), LIMITS[name])
        found = find_spikes(values, LIMITS[name])
        assert [(each.begin, each.peak, each.level) for each in found] == [
            (each.begin, each.peak, each.level) for each in expected
        ], (kind, seed)
        for each, other in zip(found, expected, strict=True):
            assert (each.usual, each.deviation) == pytest.approx((other.usual, other.deviation), rel=1e-9, abs=1e-12)


def test_sixty_five_values_have_one_that_is_held_against_the_others_and_sixty_four_none() -> None:
    values = np.array([1.0, 1.1] * 32 + [9.0])
    assert [each.begin for each in find_spikes(values, LIMITS["loss"])] == [64]
    assert find_spikes(values[1:], LIMITS["loss"]) == []


def end_by_definition(after: Sequence[float], usual: float) -> int | None:
    for at in range(len(after) - 7):
        if median(after[at : at + 8]) <= usual:
            return at + next(place for place, value in enumerate(after[at : at + 8]) if value <= usual)
    return None


def test_a_spike_ends_with_the_first_usual_value_of_the_first_eight_whose_median_is_usual() -> None:
    random = np.random.default_rng(3)
    for count in [*range(6, 12), *[40] * 60]:
        after = random.integers(0, 5, count).astype(float)
        for usual in (1.0, 2.0, 2.5):
            assert spikes_of._end(after, usual) == end_by_definition(after.tolist(), usual), (after, usual)


def test_spikes_are_at_a_period_where_every_distance_is_nearly_a_multiple_of_the_smallest() -> None:
    def at_a_period(*rows: int) -> bool:
        return spikes_of._at_a_period(rows)

    assert at_a_period(0, 20, 40) and at_a_period(5, 25, 85, 105)
    assert not at_a_period(0, 20) and not at_a_period(7) and not at_a_period()
    assert at_a_period(0, 9, 18) and not at_a_period(0, 8, 16)  # what comes so soon is a slow spike's own
    assert at_a_period(0, 20, 42) and not at_a_period(0, 20, 43)  # by two steps
    assert at_a_period(0, 20, 78) and not at_a_period(0, 20, 77)
    assert at_a_period(0, 200, 404) and not at_a_period(0, 200, 405)  # or by 2 %


def run_with(loss: Any, **columns: Any) -> FakeRun:
    count = len(loss)
    known = {"step": np.arange(count), "loss": np.asarray(loss, float), "skipped": np.zeros(count, bool)}
    return FakeRun({**known, **columns})


def flat(count: int = 400) -> np.ndarray:
    """Usual: 1; robust deviation: 0.1 x 1.4826."""
    return np.where(np.arange(count) % 2 == 0, 0.9, 1.1)


USUAL, DEVIATION = 1.0, 0.14826


def test_a_loss_is_back_at_three_deviations_above_the_usual() -> None:
    border = USUAL + 3 * DEVIATION
    for beside, back in ((-1e-6, 1), (1e-6, 3)):
        loss = flat()
        loss[200], loss[201], loss[202] = 9.0, border + beside, 5.0
        (spike,) = spikes_in(run_with(loss), "loss")
        assert (spike.row, spike.peak_row, spike.peak, spike.back_after) == (200, 200, 9.0, back)
        assert spike.usual == pytest.approx(1.0) and not spike.lasting and not spike.schedule and not spike.block


def test_a_loss_that_hardly_varies_is_back_at_a_tenth_above_the_usual() -> None:
    for beside, back in ((-1e-6, 1), (1e-6, 2)):
        loss = np.where(np.arange(400) % 2 == 0, 0.999, 1.001)
        loss[200], loss[201] = 9.0, 1.1 + beside
        assert [spike.back_after for spike in spikes_in(run_with(loss), "loss")] == [back]


def test_steps_are_counted_between_recorded_ones_and_skipped_ones_count_too() -> None:
    loss = flat()
    loss[200] = 9.0
    skipped = np.zeros(400, bool)
    skipped[201:204] = True
    loss[201:203], loss[203] = NAN, 50.0
    (spike,) = spikes_in(run_with(loss, skipped=skipped), "loss")
    assert (spike.row, spike.back_after) == (200, 4)


@pytest.mark.parametrize("high", [31, 32, 33, 60, 190])
def test_a_spike_that_lasts_for_long_is_back_where_the_record_shows_that_it_is(high: int) -> None:
    loss = flat()
    loss[200 : 201 + high] = 9.0
    (spike,) = spikes_in(run_with(loss), "loss")
    assert (spike.level, spike.lasting, spike.back_after, spike.block) == (9.0, False, high + 1, True)
    loss = flat()
    loss[200:] = 9.0
    (spike,) = spikes_in(run_with(loss), "loss")
    assert (spike.level, spike.lasting, spike.back_after, spike.block) == (9.0, True, None, False) and spike.grave


def test_a_record_that_ends_within_thirty_two_values_does_not_show_whether_a_spike_lasts() -> None:
    for after, lasting in ((31, False), (32, True)):
        loss = flat(201 + after)
        loss[200:] = 9.0
        (spike,) = spikes_in(run_with(loss), "loss")
        assert (spike.lasting, spike.back_after) == (lasting, None)


@pytest.mark.parametrize(
    ("high", "value", "far"),
    [(1, 500.0, False), (2, 500.0, False), (3, 500.0, True), (3, 10.9, False), (3, 11.1, True)],
)
def test_a_loss_is_far_beyond_the_usual_ten_times_above_it_for_more_than_two_steps(
    high: int, value: float, far: bool
) -> None:
    loss = flat()  # 64 deviations are 9.49, ten times the usual is more
    loss[200 : 200 + high] = value
    (spike,) = spikes_in(run_with(loss), "loss")
    assert (spike.back_after, spike.far, spike.grave) == (high, far, far)
    scattered = np.where(np.arange(400) % 2 == 0, 0.8, 1.2)  # 64 deviations are 18.98
    scattered[200 : 200 + high] = value + 8.98
    (spike,) = spikes_in(run_with(scattered), "loss")
    assert spike.far == far
    (norm,) = spikes_in(run_with(flat(), grad_norm=loss + 99 * (loss > 2)), "grad_norm")
    assert not norm.far


def test_what_is_grave_is_what_lasts_or_is_far_or_slow_and_has_no_other_reason() -> None:
    (spike,) = spikes_in(run_with(np.where(np.arange(400) == 200, 9.0, flat())), "loss")
    assert not spike.grave
    assert spike._replace(lasting=True).grave and spike._replace(far=True).grave
    assert spike._replace(back_after=9).grave and not spike._replace(back_after=8).grave
    for reason in ("schedule", "recurs", "noted"):
        assert not spike._replace(lasting=True, far=True, back_after=9, **{reason: True}).grave
    norm = spike._replace(column=spike.column._replace(name="grad_norm"))
    assert not norm._replace(back_after=9).grave and norm._replace(lasting=True).grave


@pytest.mark.parametrize(
    ("before", "low", "now", "is_restart"),
    [
        (1.0, 0.1, 1.0, True),
        (1.0, 0.1, 1.04, True),
        (1.0, 0.1, 1.06, False),  # higher than all before: no restart
        (1.0, 0.1, 0.151, True),
        (1.0, 0.1, 0.149, False),  # it grew by less than a half
        (1.0, 0.0, 1.0, False),
        (0.5, 0.1, 1.0, False),
    ],
)
def test_a_learning_rate_that_went_back_up_to_what_it_had_been_is_a_restart(
    before: float, low: float, now: float, is_restart: bool
) -> None:
    lr = np.full(400, low)
    lr[:150], lr[195:] = before, now
    loss = np.where(np.arange(400) == 200, 9.0, flat())
    (spike,) = spikes_in(run_with(loss, lr=lr), "loss")
    assert spike.schedule == is_restart
    (spike,) = spikes_in(run_with(loss, **{"lr": np.ones(400), "lr/1": lr}), "loss")
    assert not spike.schedule  # a further group's rate alone


@pytest.mark.parametrize(("begin", "is_restart"), [(168, False), (169, True), (200, True), (201, False)])
def test_a_restart_is_looked_for_in_the_32_steps_before_a_spike_and_in_its_own(begin: int, is_restart: bool) -> None:
    lr = np.full(400, 0.1)
    lr[:100], lr[begin:] = 1.0, 1.0
    loss = np.where(np.arange(400) == 200, 9.0, flat())
    (spike,) = spikes_in(run_with(loss, lr=lr), "loss")
    assert spike.schedule == is_restart


@pytest.mark.parametrize(
    ("column", "place", "value", "rose"),
    [
        ("lr", 200, 1.51, True),
        ("lr", 200, 1.5, False),
        ("lr", 201, 9.0, False),
        ("lr", 168, 1.51, True),
        ("lr", 167, 9.0, False),
        ("grad_norm", 199, 3.01, True),
        ("grad_norm", 199, 3.0, False),
        ("grad_norm", 200, 9.0, False),
        ("grad_norm", 168, 3.01, True),
        ("grad_norm", 199, INF, False),
    ],
)
def test_a_rate_or_a_norm_that_rose_before_a_step_is_what_a_note_does_not_explain(
    column: str, place: int, value: float, rose: bool
) -> None:
    values = np.ones(400)
    values[place] = value
    assert spikes_of._something_rose(run_with(flat(), **{column: values}), 200) == rose
    higher = values.copy()
    higher[50] = value / 1.04  # it had nearly been there before
    assert not spikes_of._something_rose(run_with(flat(), **{column: higher}), 200)


# -- levels ------------------------------------------------------------------------------------------------------------


def levels_by_definition(loss: Sequence[float]) -> dict[str, list[Any]] | None:
    """The medians of windows that overlap by half, the lowest that held for two of them, and which lie above it."""
    count = len(loss)
    size = min(128, count // 8)
    if size < 16:
        return None
    stride = max(size // 2, count // 2000)
    begins = list(range((count - size) % stride, count - size + 1, stride))
    ordered = [sorted(loss[begin : begin + size]) for begin in begins]
    middle = [window[size // 2] for window in ordered]
    lowest, lowest_at = [INF, INF], [0, 0]
    for window in range(2, len(middle)):
        held = max(middle[window - 2 : window + 1])
        new = held < lowest[-1]
        lowest.append(min(held, lowest[-1]))
        lowest_at.append(window - 2 if new else lowest_at[-1])
    noise = noise_by_definition(loss, ordered)
    span = max(max(middle[:2]) - lowest[-1], 0.0)
    risen = [
        here - low > max(0.1 * abs(low), 4 * noise, 0.01 * span) and window[size // 4] > low
        for here, low, window in zip(middle, lowest, ordered, strict=True)
    ]
    return {
        "median": middle,
        "lowest": lowest,
        "lowest_at": lowest_at,
        "risen": risen,
        "rows": [begin + size // 2 for begin in begins],
        "scatter": [(window[-(size // 4)] - window[size // 4]) / 1.349 for window in ordered],
    }


def noise_by_definition(loss: Sequence[float], ordered: Sequence[Sequence[float]]) -> float:
    size, count = len(ordered[0]), len(loss)
    quarter = size // 4
    scatter = median([window[-quarter] - window[quarter] for window in ordered]) / 1.349
    least = math.sqrt(2) * 1.2533 * scatter / math.sqrt(2 * (size // 2))
    length = max(8, min(size, count // 18))
    blocks = count // length
    apart = max(1, blocks // 2000)
    begins = [count - blocks * length + block * length for block in range(0, blocks // apart * apart, apart)]
    curve = [median(loss[begin : begin + length]) for begin in begins]
    bends = [abs(curve[at] - 2 * curve[at + 1] + curve[at + 2]) for at in range(len(curve) - 2)]
    if len(bends) < 8:
        return least
    return max(least, 1.4826 * median(bends) / math.sqrt(3) * math.sqrt(length / size))


class View:
    """Of the steps alone, as rules on levels see a run."""

    def __init__(self, **steps: Any) -> None:
        count = len(next(iter(steps.values())))
        self.steps = {name: np.asarray(values) for name, values in steps.items()}
        self.skipped = self.steps.get("skipped", np.zeros(count, bool))
        self.number = np.arange(count)
        self.events: list[Any] = []
        self.spikes: list[Any] = []
        self.meta: dict[str, Any] = {}


@pytest.mark.parametrize("count", [127, 128, 150, 300, 777, 1500, 4001, 520_000])
def test_levels_of_a_loss_are_what_the_definition_says_window_by_window(count: int) -> None:
    for seed in range(4 if count < 5000 else 1):
        random = np.random.default_rng([count, seed])
        loss = np.round(random.poisson(20, count) + 30 * np.exp(-np.arange(count) / 50) - 10 * (seed == 3), 1)
        loss += np.where(np.arange(count) > 0.7 * count, 8.0 * (seed == 1), 0) + np.cumsum(
            random.integers(-1, 2, count) * (seed == 2)
        )
        expected = levels_by_definition(loss.tolist())
        found = levels._levels(View(loss=loss))  # type: ignore[arg-type]
        if expected is None:
            assert found is None
            continue
        assert found is not None and found.size == min(128, count // 8)
        for name, values in expected.items():
            assert getattr(found, name).tolist() == pytest.approx(values, rel=1e-9), name


def test_levels_are_of_the_steps_that_were_taken_and_had_a_finite_loss() -> None:
    loss = np.random.default_rng(0).poisson(9, 400).astype(float)
    skipped = np.arange(400) % 10 == 3
    loss[::10] = NAN
    found = levels._levels(View(loss=loss, skipped=skipped))  # type: ignore[arg-type]
    taken = np.flatnonzero(np.isfinite(loss) & ~skipped)
    expected = levels_by_definition(loss[taken].tolist())
    assert found is not None and expected is not None
    assert found.median.tolist() == expected["median"] and found.rows.tolist() == taken[expected["rows"]].tolist()
    assert levels._levels(View(step=np.arange(400))) is None  # type: ignore[arg-type]


# -- of a run that goes on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 7, 64])
def test_live_each_spike_is_found_once_however_often_one_asks(every: int) -> None:
    for second, found_too in ((325, True), (324, False)):  # within 64 steps it may be the level that the first began
        loss = flat(600)
        for begin, length in ((150, 1), (152, 1), (260, 3), (second, 1), (420, 30), (520, 1)):
            loss[begin : begin + length] = 9.0
        columns = ("step", "wall_time", "loss", "skipped", "other")
        live, found = LiveSpikes(), []
        for step in range(600):
            live.steps(columns, [(step, float(step), loss[step], False, None)])
            if step % every == 0:
                found += [(event.step, event.kind) for event in live.new()]
        places = [150, 260, second, 420, 520]
        assert [spike.row for spike in spikes_in(run_with(loss), "loss")] == places
        if not found_too:
            places.remove(second)
        assert found == [(step, "loss_spike") for step in places]


def test_live_a_spike_is_known_as_soon_as_eight_values_show_it_and_nothing_is_kept_of_old_ones() -> None:
    loss = flat(3000)
    loss[[100, 2900]] = 9.0
    live, known = LiveSpikes(), {}
    for step in range(3000):
        live.steps(("step", "loss"), [(step, loss[step])])
        for event in live.new() if step < 200 else ():
            known[event.step] = step
    assert known == {100: 107}
    assert [event.step for event in live.new()] == [2900] and live.new() == []
    assert live._values.shape[1] == 6 * 64 and [event.step for event in live._known] == [2900]


@pytest.mark.parametrize("seed", range(5))
def test_a_half_of_a_block_is_mostly_above_what_more_than_half_of_it_is_above(seed: int) -> None:
    blocks = np.random.default_rng(seed).integers(0, 4, (200, 32)).astype(float)
    over = np.full(200, 1.0)
    halves = ((block[:16], block[16:]) for block in blocks)
    expected = [any(sum(value > 1 for value in half) > 8 for half in both) for both in halves]
    assert spikes_of._mostly(blocks, over).tolist() == expected and len(set(expected)) == 2


def test_a_single_value_is_a_spike_beyond_so_many_deviations_and_not_at_them() -> None:
    loss = np.where(np.arange(160) % 2, 1.0, -1.0)  # around 0, of which no share is above it
    border = LIMITS["loss"].alone * 1.4826
    for value, found in ((border, []), (np.nextafter(border, INF), [100])):
        loss[100] = value
        assert [spike.begin for spike in find_spikes(loss, LIMITS["loss"])] == found
