"""Rules on levels, rates and tensors just inside and just outside of each of their limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tbnum.explain import clip_findings as clip_rules
from tbnum.explain import curve_findings as curve_rules
from tbnum.explain import level_findings as levels
from tbnum.explain import lr_findings as rates
from tbnum.explain import replicas as replicas_of
from tbnum.explain import scale_findings as scale_rules
from tbnum.explain import tensor_findings as tensors_of
from tbnum.explain.finding import Finding
from tbnum.explain.led_here import Quantity, what_led_here
from tbnum.explain.rows import Rows, sampled_rows, scale_of
from tbnum.explain.spikes import SpikeFacts
from tbnum.log.schema import Event

INF, NAN = math.inf, math.nan


class View:
    """What rules see of a run, given and not worked out."""

    def __init__(self, count: int = 400, *, events: Sequence[Event] = (), meta: Any = None, **steps: Any) -> None:
        self.steps = {name: np.asarray(values) for name, values in steps.items()}
        self.number = self.steps.setdefault("step", np.arange(count))
        self.skipped = self.steps.get("skipped", np.zeros(len(self.number), bool))
        self.events = list(events)
        self.spikes: list[Any] = []
        self.meta = meta or {}
        self.record = self
        self.early: dict[str | None, Rows] = {}
        self.middle: dict[str | None, Rows] = {}
        self.late: dict[str | None, Rows] = {}

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


Rule = Callable[[Any], Iterator[Finding]]


def only(rule: Rule, view: View) -> Finding | None:
    found = list(rule(view))
    assert len(found) < 2
    return found[0] if found else None


def severity(rule: Rule, view: View) -> str:
    found = only(rule, view)
    return "" if found is None else found.severity


def note(step: int) -> Event:
    return Event(step, 0.0, "annotation", data={"text": "other data"})


# -- gradient norms ----------------------------------------------------------------------------------------------------


def new_level_by_definition(norms: Sequence[float]) -> tuple[int, float, float] | None:
    count = len(norms)
    size = max(min(32, count // 16), count // 2000 // 32 * 32)
    if size < 8:
        return None
    every = max(1, size // 32)
    blocks = count // size
    middle = [median(norms[at * size : (at + 1) * size : every]) for at in range(blocks)]
    candidates = [at for at in range(blocks - 2) if not 1 / 4 < middle[at + 2] / middle[at] < 4]
    for block in candidates[:8]:
        before, after, rest = middle[block], middle[block + 2], middle[block + 2 :]
        held = middle[max(0, block - 5) : block + 1]
        rises = after > before
        if not all(level > before * 2 if rises else level < before / 2 for level in rest):
            continue
        if (max(held) / min(held)) ** 3 > max(after / before, before / after):
            continue
        if any(after / 2 < level < after * 2 for level in middle[: block + 1]):
            continue
        if block < (2 if rises else min(8, blocks // 4)) or len(rest) < 3:
            continue
        place = edge_by_definition(norms, (block + 1) * size - size // 2, 2 * size, before, after)
        if place is not None:
            return place, before, after
    return None


def edge_by_definition(norms: Sequence[float], begin: int, length: int, before: float, after: float) -> int | None:
    """After the value up to which most are of the old level, and after which most are of the new one."""
    middle = math.sqrt(before * after)
    least, balance, place = INF, 0.0, begin
    for at, value in enumerate(norms[begin : begin + length]):
        balance += (value > middle) == (after > before)
        if balance - 0.5 * at < least:
            least, place = balance - 0.5 * at, begin + at + 1
    around = norms[max(0, place - 8) : place], norms[place : place + 8]
    if min(map(len, around)) < 8:
        return None
    first, second = map(median, around)
    return place if max(first / second, second / first) >= 4 / 1.5 else None


def norm_series(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    count = int(random.choice([100, 127, 128, 144, 250, 600, 1100]))
    norms = np.full(count, 1.0) if seed % 3 == 0 else 2.0 ** random.integers(-1, 2, count)
    if seed % 3 == 1:
        norms *= np.exp(0.2 * random.standard_normal(count))
    for _ in range(int(random.integers(1, 3))):
        begin = int(random.integers(0, count))
        factor = float(random.choice([0.1, 0.24, 0.25, 3.9, 4.0, 8.0, 16.0]))
        width = count if random.random() < 0.7 else int(random.integers(10, 200))
        norms[begin : begin + width] *= factor
    return norms


def test_a_new_level_of_norms_is_what_the_definition_says_block_by_block() -> None:
    found = 0
    for seed in range(400):
        norms = norm_series(seed)
        expected = new_level_by_definition(norms.tolist())
        assert levels._new_level(norms) == (None if expected is None else pytest.approx(expected)), seed
        found += expected is not None
    assert found > 80


@pytest.mark.parametrize("count", [64_000, 128_100])
def test_of_a_long_run_every_so_many_norms_show_a_new_level(count: int) -> None:
    norms = np.exp(0.3 * np.random.default_rng(count).standard_normal(count))
    norms[count // 2 + 77 :] *= 8
    assert levels._new_level(norms) == pytest.approx(new_level_by_definition(norms.tolist()))


def jump(at: int = 200, factor: float = 8.0, count: int = 400) -> np.ndarray:
    return np.where(np.arange(count) < at, 1.0, factor)


@pytest.mark.parametrize(
    ("apart", "expected"), [(0, "info"), (32, "info"), (-32, "info"), (33, "warning"), (-33, "warning")]
)
def test_a_note_within_32_steps_explains_another_size_of_the_gradients(apart: int, expected: str) -> None:
    assert severity(levels.norm_level, View(grad_norm=jump(), events=[note(200 + apart)])) == expected


def test_another_size_of_the_gradients_is_an_information_where_other_tensors_have_a_gradient() -> None:
    def found(before: Sequence[float], after: Sequence[float], factor: float = 8.0) -> Finding:
        view = View(grad_norm=jump(factor=factor))
        view.tensors = Tables({190: [(("a", "b"), before)], 210: [(("a", "b"), after)]})  # type: ignore[attr-defined]
        got = only(levels.norm_level, view)
        assert got is not None
        return got

    frozen = found([1.0, NAN], [1.0, 8.0])
    assert frozen.severity == "info" and "other tensors have a gradient than before" in frozen.evidence
    assert "frozen" in frozen.remedy and "micro-batches" not in frozen.remedy
    assert found([1.0, 0.0], [2.8, 8.0]).severity == "info" and found([1.0, 0.0], [2.9, 8.0]).severity == "warning"
    assert found([1.0, 8.0], [1.0, 0.0], 1 / 8).severity == "info"
    assert found([1.0, 8.0], [0.35, 0.0], 1 / 8).severity == "warning"
    assert found([1.0, 1.0], [8.0, 8.0]).severity == "warning"  # the same tensors
    assert found([1.0, 0.0], [0.0, 8.0]).severity == "warning"  # none of before
    assert severity(levels.norm_level, View(grad_norm=jump())) == "warning"


def test_gradients_of_another_size_after_a_jump_of_the_loss_come_from_it() -> None:
    for at, grave, expected in (
        (198, True, "info"),
        (168, True, "info"),
        (199, True, "warning"),  # at once, as where the loss is multiplied
        (167, True, "warning"),
        (198, False, "warning"),
    ):
        view = View(grad_norm=jump())
        view.spikes = [SpikeFacts(at, at, 9.0, 1.0, None, grave, grave, False, False)]
        assert severity(levels.norm_level, view) == expected
    view.spikes = [SpikeFacts(190, 190, 9.0, 1.0, None, True, True, False, False)]
    found = only(levels.norm_level, view)
    assert found is not None and "the loss had jumped at step 190" in found.evidence and "micro" not in found.remedy


def test_gradients_of_another_size_after_one_that_was_far_longer_come_from_it() -> None:
    for at, length, expected in (
        (199, 32.1, "info"),
        (199, 32.0, "warning"),
        (192, 99.0, "info"),
        (191, 99.0, "warning"),
    ):
        norms = jump()
        norms[at] = length
        found = only(levels.norm_level, View(grad_norm=norms))
        assert found is not None and found.severity == expected
        assert ("a gradient was far longer at step" in found.evidence) == (expected == "info")
    norms = jump(factor=1 / 8)
    norms[199] = 10.1
    assert severity(levels.norm_level, View(grad_norm=norms)) == "info"
    norms[199] = 9.9
    assert severity(levels.norm_level, View(grad_norm=norms)) == "warning"


def test_micro_batches_whose_gradients_are_thrown_away_are_not_added_up() -> None:
    count = np.where(np.arange(400) < 200, 8.0, 1.0)
    for at, there in ((None, True), (200, False), (232, False), (199, True), (233, True)):
        events = [] if at is None else [Event(at, 0.0, "gradients_discarded")]
        view = View(loss=count / 8, micro_batches=count, events=events)
        assert (only(levels.losses_added_up, view) is not None) == there


def test_norms_of_skipped_steps_and_those_that_are_zero_or_not_finite_are_no_level() -> None:
    norms = jump().repeat(2)
    skipped = np.arange(800) % 2 == 1
    norms[skipped] = 77.0
    found = only(levels.norm_level, View(800, grad_norm=norms, skipped=skipped))
    assert found is not None and found.steps == (399, 400)
    assert "was 1 up to step 399 and is 8 since, 8 times as large" in found.evidence
    for unknown in (0.0, NAN, INF):
        norms[skipped] = unknown
        found = only(levels.norm_level, View(800, grad_norm=norms))
        assert found is not None and found.steps == (399, 400)


@pytest.mark.parametrize(
    ("begin", "value", "moved"),
    [(200, 1.51, True), (200, 1.5, False), (208, 2.0, True), (209, 2.0, False), (192, 2.0, False), (193, 2.0, True)],
)
def test_another_size_of_the_gradients_where_the_learning_rate_moved_is_its_doing(
    begin: int, value: float, moved: bool
) -> None:
    for one, other in ((1.0, value), (value, 1.0)):
        lr = np.where(np.arange(400) < begin, one, other)
        assert (only(levels.norm_level, View(grad_norm=jump(), lr=lr)) is None) == moved
    assert levels._lr_moved(View(8, lr=[1, 1, 1, 1, 1, 1, 1, 2.0]), "lr", 6)  # type: ignore[arg-type]
    assert levels._lr_moved(View(8, lr=[2.0, 1, 1, 1, 1, 1, 1, 1]), "lr", 5)  # type: ignore[arg-type]
    assert not levels._lr_moved(View(8), "lr", 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("enlarged", "coefficient", "found"), [(96, 1.6, True), (95, 1.6, False), (96, 1.5, False)])
def test_what_an_optimizer_gets_is_judged_where_the_loop_made_it_longer(
    enlarged: int, coefficient: float, found: bool
) -> None:
    coefficients = np.ones(400)
    coefficients[-enlarged:] = coefficient
    got = only(levels.norm_level, View(grad_norm=np.ones(400), grad_norm_clipped=jump(), clip_coef=coefficients))
    assert (got is not None) == found
    assert got is None or "norm that the optimizer got was 1" in got.evidence


@pytest.mark.parametrize(
    ("few", "many", "ratio", "grew", "shrank"),
    [
        (1, 2, 2.0, True, True),
        (2, 3, 1.5, False, False),
        (1, 4, 2.99, False, False),
        (1, 4, 3.0, True, False),
        (1, 4, 3.01, True, True),
        (1, 4, 5.32, True, True),
        (1, 4, 5.33, False, True),
        (1, 4, 5.34, False, False),
    ],
)
def test_losses_are_added_up_where_they_grow_nearly_as_their_number(
    few: int, many: int, ratio: float, grew: bool, shrank: bool
) -> None:
    after = np.arange(100) >= 50
    view = View(100, loss=np.where(after, ratio, 1.0), micro_batches=np.where(after, many, few))
    found = only(levels.losses_added_up, view)
    assert (found is not None) == grew
    if found is not None:
        assert found.steps == (50,) and f"from {few} to {many}, and the sum of their losses from 1 to" in found.evidence
    shrinks = View(100, loss=np.where(after, 1.0, ratio), micro_batches=np.where(after, few, many))
    assert (only(levels.losses_added_up, shrinks) is not None) == shrank


@pytest.mark.parametrize(("before", "after", "found"), [(32, 32, True), (31, 40, False), (40, 31, False)])
def test_losses_are_added_up_where_32_steps_on_both_sides_show_it(before: int, after: int, found: bool) -> None:
    late = np.arange(before + after) >= before
    view = View(before + after, loss=np.where(late, 4.0, 1.0), micro_batches=np.where(late, 4.0, 1.0))
    assert (only(levels.losses_added_up, view) is not None) == found


def test_losses_below_zero_or_without_a_count_say_nothing_of_how_they_add_up() -> None:
    late = np.arange(100) >= 50
    counts = np.where(late, 4.0, 1.0)
    for loss in (-counts, counts - 1):
        assert only(levels.losses_added_up, View(100, loss=loss, micro_batches=counts)) is None
    skipped = np.arange(100) % 2 == 1
    loss = np.where(skipped, 99.0, counts)
    assert only(levels.losses_added_up, View(100, loss=loss, micro_batches=counts, skipped=skipped)) is None  # too few
    assert only(levels.losses_added_up, View(100, loss=counts)) is None
    none = np.where(skipped, 0.0, counts).repeat(2)
    found = only(levels.losses_added_up, View(200, loss=counts.repeat(2), micro_batches=none))
    assert found is not None and found.steps == (100,)


# -- the loss ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "low", "now", "back_up"),
    [
        (1.0, 0.2, 1.0, True),
        (1.0, 0.2, 1.04, True),
        (1.0, 0.2, 1.06, False),
        (1.0, 0.2, 0.31, True),
        (1.0, 0.2, 0.3, False),
        (1.0, 0.0, 1.0, False),
    ],
)
def test_a_rate_that_went_back_up_to_what_the_run_had_borne_explains_a_higher_loss(
    before: float, low: float, now: float, back_up: bool
) -> None:
    lr = np.full(400, low)
    lr[:50], lr[300:] = before, now
    assert levels._lr_went_back_up(View(lr=lr), 200, 399) == back_up  # type: ignore[arg-type]
    assert not levels._lr_went_back_up(View(**{"lr/1": lr}), 200, 399)  # type: ignore[arg-type]
    unknown = np.where(np.arange(400) <= 200, NAN, lr)
    assert not levels._lr_went_back_up(View(lr=unknown), 200, 399)  # type: ignore[arg-type]


def test_a_rate_that_rose_by_more_than_a_half_is_named_beside_a_higher_loss() -> None:
    lr = np.full(400, 0.1)
    lr[250] = 0.16
    assert "from 0.1 to 0.16 (step 250)" in levels._lr_text(View(lr=lr), 200, 399)  # type: ignore[arg-type]
    assert levels._lr_text(View(lr=lr), 200, 249) == "" != levels._lr_text(View(lr=lr), 200, 250)  # type: ignore[arg-type]
    lr[250] = 0.15
    assert levels._lr_text(View(lr=lr), 200, 399) == ""  # type: ignore[arg-type]
    assert levels._lr_text(View(lr=lr - 0.1), 200, 399) == ""  # type: ignore[arg-type]
    assert levels._lr_text(View(**{"lr/1": 9 * lr**2}), 200, 399) == ""  # type: ignore[arg-type]


def steps_up(begin: int = 250, by: float = 1.0, low: float = 2.0) -> np.ndarray:
    loss = np.where(np.arange(400) < begin, low, low + by)
    return loss + 0.01 * np.where(np.arange(400) % 2 == 0, 1, -1)


def test_a_loss_that_rises_and_stays_up_is_reported_with_both_levels_and_steps() -> None:
    found = only(levels.loss_rose, View(loss=steps_up()))
    assert found is not None and found.severity == "warning"
    assert "median of 50 losses rose from 2" in found.evidence and "10 %" in found.evidence
    begin, at = found.steps
    assert begin < 250 < at <= 275
    for step, expected in ((begin, "info"), (begin - 1, "warning"), (at, "info"), (at + 1, "warning")):
        assert severity(levels.loss_rose, View(loss=steps_up(), events=[note(step)])) == expected
    assert only(levels.loss_rose, View(loss=steps_up(by=0.19))) is None
    assert only(levels.loss_rose, View(loss=steps_up(by=0.23))) is not None


def test_a_level_below_zero_is_a_surrogate_where_it_scatters_by_a_fifth_of_itself() -> None:
    alternating = np.where(np.arange(400) % 2 == 0, 1.0, -1.0)
    for scatter, expected in ((0.105, "warning"), (0.113, "info")):  # robust: 2 x (scatter + 0.01) / 1.349
        loss = steps_up(by=1.0, low=-1.0) + scatter * alternating
        assert severity(levels.loss_rose, View(loss=loss)) == expected
        assert severity(levels.loss_rose, View(loss=loss + 2.5)) == "warning"


def test_losses_of_several_optimizers_that_differ_are_against_each_other() -> None:
    loss = steps_up()
    assert severity(levels.loss_rose, View(**{"loss": loss, "a/loss": loss, "b/loss": loss})) == "warning"
    assert severity(levels.loss_rose, View(**{"loss": loss, "a/loss": loss, "b/loss": 1 + loss})) == "info"
    assert severity(levels.loss_rose, View(**{"loss": loss, "a/loss": loss})) == "warning"


# -- parameters --------------------------------------------------------------------------------------------------------


def every(count: int, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Measured at the first step, and then each 10th."""
    column = np.full(400, NAN)
    column[: 10 * count : 10] = values
    return column


def test_parameters_have_vanished_at_a_hundredth_of_their_largest_norm() -> None:
    for count, last, found in ((8, 0.01, True), (8, 0.0101, False), (7, 0.01, False)):
        norms = np.array([5.0, *[10.0] * (count - 4), *[10 * last] * 3])
        got = only(levels.weights_vanish, View(param_norm=every(count, norms)))
        assert (got is not None) == found
        if got is not None:
            assert got.steps == (10, 70) and "8 measurements" in got.evidence and "from 10 at step 10" in got.evidence
    norms = np.array([10.0] * 8 + [0.1, 10.0, 0.1])  # the median of the last three
    assert only(levels.weights_vanish, View(param_norm=every(11, norms))) is not None
    norms[-1] = 10.0
    assert only(levels.weights_vanish, View(param_norm=every(11, norms))) is None


def test_parameters_that_ran_away_at_the_end_have_not_vanished() -> None:
    norms = np.array([10.0] * 9 + [1e17])
    assert only(levels.weights_vanish, View(param_norm=every(10, norms))) is None
    norms = np.array([*[10.0] * 7, 1e3, 1e9, 1e17])
    assert only(levels.weights_vanish, View(param_norm=every(10, norms))) is None
    norms = np.array([10.0, *[0.1] * 9])
    found = only(levels.weights_vanish, View(param_norm=every(10, norms)))
    assert found is not None and found.steps == (0, 90)


def test_parameters_grow_without_end_at_eight_times_their_second_quarter_and_half_above_their_third() -> None:
    def growing(*quarters: float, count: int = 16) -> Finding | None:
        return only(levels.weights_grow, View(param_norm=every(count, np.repeat(quarters, count // 4)[:count])))

    found = growing(1.0, 1.0, 3.0, 8.0)
    assert found is not None and found.steps == (40, 150) and "rose from 1 (the run's second quarter" in found.evidence
    assert growing(9.0, 1.0, 3.0, 7.99) is None and growing(1.0, 1.0, 5.34, 8.0) is None
    assert growing(1.0, 1.0, 5.33, 8.0) is not None and growing(1.0, 0.0, 1.0, 8.0) is None
    short = np.repeat([1.0, 1.0, 3.0, 8.0], 4)[:15]
    assert only(levels.weights_grow, View(param_norm=every(15, short))) is None


@pytest.mark.parametrize(
    ("share", "grew", "found"),
    [
        (0.1, 3.01, True),
        (0.2, 2.99, False),
        (0.099, 3.0, False),
        (0.1, 2.99, False),
        (0.051, 6.1, True),
        (0.0499, 9.0, False),
        (0.06, 4.9, False),
    ],
)
def test_first_steps_rewrite_parameters_that_they_make_three_times_as_large(
    share: float, grew: float, found: bool
) -> None:
    start = math.sqrt(1 - share**2)
    norms = np.array([1.0, *[grew * start] * 7])
    moved = np.array([share * start, *[1e-6] * 7])
    got = only(levels.first_updates, View(param_norm=every(8, norms), update_norm=every(8, moved)))
    assert (got is not None) == found
    if got is not None:
        assert got.steps == (0, 10) and got.rule == "update_ratio_high"


def test_first_steps_that_brought_the_loss_down_at_once_are_an_information() -> None:
    norms, moved = np.array([1.0, *[4.0] * 7]), np.array([0.9, *[0.01] * 7])
    columns = {"param_norm": every(8, norms), "update_norm": every(8, moved)}

    def found(*loss: float, **more: Any) -> str:
        values = np.concatenate([loss, np.full(400 - len(loss), loss[-1])])
        return severity(levels.first_updates, View(loss=values, **columns, **more))

    assert found(1.0, 0.9, 0.5) == "info" and found(1.0, 1.5, 0.5) == "info"
    assert found(1.0, *[1.51] * 30, 0.5) == "warning" and found(1.0, *[1.5] * 30, 0.5) == "info"  # it rose first
    assert found(1.0, 1.51, 0.5) == "info"  # one loss is chance
    assert found(1.0, 0.9, 0.51) == "warning"  # it did not come down by half
    of_many = {"optimizers": {"main": {"class": "LBFGS"}}}
    assert found(1.0, *[9.0] * 30, 0.9, meta=of_many) == ""
    assert found(1.0, *[9.0] * 30, 0.9, meta={"optimizers": {"main": {"class": "Adam"}}}) == "warning"


def test_parameters_that_start_at_zero_have_no_size_that_a_step_could_rewrite() -> None:
    for start, found in ((0.0501, True), (0.0499, False)):  # of what the first step makes of them
        moved = math.sqrt(1 - start**2)
        norms, steps = np.array([1.0, *[4.0] * 7]), np.array([moved, *[0.01] * 7])
        got = only(levels.first_updates, View(param_norm=every(8, norms), update_norm=every(8, steps)))
        assert (got is not None) == found
    late = np.roll(every(8, norms), 1)  # not measured from the first step on
    assert only(levels.first_updates, View(param_norm=late, update_norm=late / 2)) is None
    three = View(param_norm=every(3, [1.0, 4.0, 4.0]), update_norm=every(3, [0.9, 0.1, 0.1]))
    assert only(levels.first_updates, three) is None
    assert only(levels.first_updates, View(param_norm=every(4, [1.0, 4.0, 4.0, 4.0]), update_norm=every(4, [0.9] * 4)))
    for first in (np.full(400, NAN), np.ones(400), every(8, [1.0, *[1.5] * 7])):  # of another optimizer
        other = {"a/param_norm": first, "a/update_norm": np.where(np.isfinite(first), 1e-3, NAN)}
        two = {"b/param_norm": every(4, [1.0, 4.0, 4.0, 4.0]), "b/update_norm": every(4, [0.9] * 4)}
        got = only(levels.first_updates, View(**other, **two))
        assert got is not None and "the parameters of b by" in got.evidence
    later = np.array([1.0, 1.0, *[9.0] * 6])  # only in the first quarter
    assert only(levels.first_updates, View(param_norm=every(8, later), update_norm=every(8, [0.5] * 8))) is None


# -- learning rates ----------------------------------------------------------------------------------------------------


def flat(value: float = 1.0, count: int = 400, **at: float) -> np.ndarray:
    lr = np.full(count, value)
    for place, given in at.items():
        lr[int(place[1:])] = given
    return lr


def test_a_rate_is_out_of_line_at_five_times_the_one_before_if_it_comes_back_to_twice_it() -> None:
    assert only(rates.outlier, View(lr=flat(_100=5.0))) is not None
    assert only(rates.outlier, View(lr=flat(_100=4.99))) is None
    for back, found in ((2.0, True), (2.01, False)):
        lr = flat(_100=9.0)
        lr[101:] = back
        assert (only(rates.outlier, View(lr=lr)) is not None) == found
    for steps, found in ((8, True), (9, False)):  # at the rate that is out of line
        lr = flat()
        lr[100 : 100 + steps] = 9.0
        assert (only(rates.outlier, View(lr=lr)) is not None) == found
    assert only(rates.outlier, View(lr=flat(0.0, _100=5.0))) is None
    assert only(rates.outlier, View(lr=flat(_100=INF))) is None
    assert only(rates.outlier, View(lr=flat(_399=9.0))) is None  # not back


def test_rates_that_jump_in_many_places_are_a_schedule() -> None:
    for count, places, found in ((399, 3, True), (399, 4, False), (500, 5, True), (500, 6, False)):
        lr = flat(count=count)
        lr[50 : 50 + 50 * places : 50] = 9.0
        got = only(rates.outlier, View(count, lr=lr))
        assert (got is not None) == found
        assert got is None or (got.steps[:3] == (50, 100, 150) and f"; {places} such places in all." in got.evidence)
    lr = flat(_100=9.0, _200=20.0)
    got = only(rates.outlier, View(lr=lr))
    assert got is not None and "was 20 at step 200, 20 times that of the step before (1)" in got.evidence
    got = only(rates.outlier, View(**{"lr/1": flat(_100=9.0)}))
    assert got is not None and "The learning rate of group 1 was 9" in got.evidence and "in all" not in got.evidence


@pytest.mark.parametrize(
    ("place", "factor", "kept", "found"),
    [
        (80, 10.0, 320, True),
        (79, 10.0, 321, False),  # in the first fifth
        (80, 9.99, 320, False),
        (200, 10.0, 31, False),
        (200, 10.0, 32, True),
    ],
)
def test_a_rate_jumps_at_ten_times_all_before_if_it_stays_for_32_steps(
    place: int, factor: float, kept: int, found: bool
) -> None:
    lr = flat()
    lr[place : place + kept] = factor
    got = only(rates.jumped, View(lr=lr))
    assert (got is not None) == found
    if got is None:
        return
    assert got.severity == "info" and got.steps == (place,)
    for at, expected in ((0, "warning"), (32, "warning"), (33, "info"), (-1, "info")):
        view = View(lr=lr)
        view.spikes = [Event(place + at, 0.0, "loss_spike")]
        assert severity(rates.jumped, view) == expected


def test_a_rate_has_jumped_and_stays_where_it_keeps_half_of_its_height() -> None:
    for height, found in ((5.0, True), (4.99, False)):
        lr = flat()
        lr[200:] = 10.0
        lr[210] = height
        assert (only(rates.jumped, View(lr=lr)) is not None) == found
    short = flat(count=33)
    short[32:] = 10.0
    assert only(rates.jumped, View(33, lr=short)) is not None
    assert only(rates.jumped, View(32, lr=short[1:])) is None
    assert only(rates.jumped, View(lr=np.where(np.arange(400) < 200, 0.0, 1.0))) is None


def test_a_rate_below_zero_is_an_error_and_zero_is_none() -> None:
    (found,) = rates.invalid(View(lr=flat(_7=-1e-9, _9=-1.0)))
    assert (found.rule, found.severity, found.steps) == (
        "lr_negative",
        "error",
        (7, 9),
    ) and "in 2 steps" in found.evidence
    assert list(rates.invalid(View(lr=flat(_7=0.0)))) == []
    (found,) = rates.invalid(View(lr=flat(_7=INF)))
    assert (found.rule, found.steps) == ("lr_nonfinite", (7,))


# -- tensors -----------------------------------------------------------------------------------------------------------

NAMES = ("one.weight", "one.bias", "two.weight", "two.bias")
COLUMNS = ("grad_norm", "absmax", "param_norm", "update_norm", "overflow/float16")


def rows_of(begin: int = 300, count: int = 4, scale: float = NAN, **columns: Any) -> Rows:
    """Ten steps apart; of each column, unless it is given, the usual."""
    usual = {"grad_norm": 1.0, "absmax": 1.0, "param_norm": 10.0, "update_norm": 0.01, "overflow/float16": 0.0}
    given = {name: np.broadcast_to(columns.get(name, usual[name]), (count, 4)).astype(float) for name in COLUMNS}
    return Rows(None, begin + 10 * np.arange(count), np.full(count, scale), NAMES, given)


def with_rows(late: Rows, middle: Rows | None = None, early: Rows | None = None, **more: Any) -> View:
    view = View(**more)
    view.late = {None: late}
    view.middle = {} if middle is None else {None: middle}
    view.early = {} if early is None else {None: early}
    return view


ONE = np.array([1.0, 1.0, 0.0, 1.0])


def test_a_tensor_is_dead_at_a_gradient_of_zero_in_all_of_four_rows() -> None:
    found = only(tensors_of.dead, with_rows(rows_of(grad_norm=ONE)))
    assert found is not None and "1 of 4 tensors (two.weight)" in found.evidence
    assert "at all 4 steps looked at, from 300 to 330." in found.evidence and found.severity == "warning"
    assert only(tensors_of.dead, with_rows(rows_of(grad_norm=ONE, count=3))) is None
    norms = np.tile(ONE, (4, 1))
    norms[2, 2] = 1e-30
    assert only(tensors_of.dead, with_rows(rows_of(grad_norm=norms))) is None
    norms[2, 2] = NAN  # unknown: only three rows say so
    assert only(tensors_of.dead, with_rows(rows_of(grad_norm=norms))) is None
    five = np.tile(ONE, (5, 1))
    five[2, 2] = NAN
    assert only(tensors_of.dead, with_rows(rows_of(grad_norm=five, count=5))) is not None
    five[1] = 0.0  # a step at which no tensor had a gradient speaks of none
    assert only(tensors_of.dead, with_rows(rows_of(grad_norm=five, count=5))) is None


def test_whether_a_dead_tensor_had_a_gradient_before_is_said_where_it_is_known() -> None:
    found = only(tensors_of.dead, with_rows(rows_of(grad_norm=ONE), rows_of(100)))
    assert found is not None and "; two.weight had one before." in found.evidence
    found = only(tensors_of.dead, with_rows(rows_of(grad_norm=ONE), rows_of(100, grad_norm=ONE)))
    assert found is not None and "; nor had they one before." in found.evidence and found.severity == "warning"
    bias = np.array([1.0, 0.0, 1.0, 0.0])
    view = with_rows(rows_of(grad_norm=bias), rows_of(100, grad_norm=bias))
    assert severity(tensors_of.dead, view) == "info"  # the loss does not depend on biases alone
    assert severity(tensors_of.dead, with_rows(rows_of(grad_norm=bias))) == "warning"
    assert severity(tensors_of.dead, with_rows(rows_of(grad_norm=bias), rows_of(100))) == "warning"
    shapes = {"parameters": {"one.bias": (4, 4), "two.bias": (4,)}}
    view = with_rows(rows_of(grad_norm=bias), rows_of(100, grad_norm=bias), meta=shapes)
    assert severity(tensors_of.dead, view) == "warning"


def test_a_tensor_that_moves_by_more_than_its_decay_is_trained_between_the_rows() -> None:
    def trained(norms: Sequence[float], moved: Sequence[float], **more: Any) -> bool:
        given = {"param_norm": np.array(norms)[:, None], "update_norm": np.array(moved)[:, None]}
        return only(tensors_of.dead, with_rows(rows_of(grad_norm=ONE, **given), **more)) is None

    assert not trained([1, 1, 1, 1], [0, 0, 0, 0])
    assert trained([1, 1, 1, 1.00002], [0, 0, 0, 0]) and not trained([1, 1, 1, 1.000009], [0, 0, 0, 0])
    assert not trained([2, 1, 1, 1], [0, 0, 0, 0])  # the last three rows count
    assert not trained([1, 1, 0.9, 0.81], [0.005] * 4) and trained([1, 1, 0.88, 0.77], [0.005] * 4)
    assert not trained([NAN, NAN, NAN, 1.5], [0, 0, 0, 0])
    assert trained([1, 1.5, 1.5, 1.5], [0, 0, 0, NAN])  # of those that measured both


def test_with_adam_a_step_beyond_the_decay_shows_that_a_tensor_is_trained() -> None:
    def trained(share: float, **group: Any) -> bool:
        groups = [{"weight_decay": 0.1, "decoupled_weight_decay": True, **group}]
        meta = {"optimizers": {"optimizer": {"groups": groups}}}
        rows = rows_of(grad_norm=ONE, param_norm=1.0, update_norm=share)
        return only(tensors_of.dead, with_rows(rows, meta=meta, lr=np.full(400, 0.01))) is None

    assert not trained(0.0019) and trained(0.0021)  # decay takes 0.001 a step
    assert not trained(0.0021, decoupled_weight_decay=False)  # part of the gradient, then: nothing is known of it
    assert trained(0.0021, weight_decay=0, decoupled_weight_decay=False) and not trained(0.0021, weight_decay=0.2)


def test_a_gradient_has_faded_at_a_hundred_thousandth_of_what_it_was() -> None:
    for share, found in ((1e-5, True), (1.01e-5, False), (0.0, False)):
        late = rows_of(grad_norm=[1.0, 1.0, share, 1.0])
        got = only(tensors_of.faded, with_rows(late, rows_of(100)))
        assert (got is not None) == found
        assert got is None or "1 tensor (two.weight): the gradient norm of two.weight is 1e-05 times" in got.evidence
        assert (only(tensors_of.faded, with_rows(late, early=rows_of(0))) is not None) == found
        more = with_rows(late, rows_of(100, grad_norm=0.1), rows_of(0))  # the larger of both
        assert (only(tensors_of.faded, more) is not None) == found
        assert only(tensors_of.faded, with_rows(late)) is None
    all_less = rows_of(grad_norm=np.array([0.1, 0.1, 1e-5, 0.1]))
    assert only(tensors_of.faded, with_rows(all_less, rows_of(100))) is None
    all_more = rows_of(grad_norm=np.array([9.0, 9.0, 1.01e-5, 9.0]))
    assert only(tensors_of.faded, with_rows(all_more, rows_of(100))) is None


def test_a_gradient_runs_away_at_a_hundred_times_that_of_the_middle() -> None:
    for times, found in ((100.0, True), (99.9, False)):
        late = rows_of(grad_norm=[1.0, 1.0, times, 1.0])
        got = only(tensors_of.exploding, with_rows(late, rows_of(100)))
        assert (got is not None) == found
        assert got is None or "1 tensor (two.weight): the gradient norm of two.weight is 1e+02 times" in got.evidence
    late = rows_of(grad_norm=[150.0, 1.0, 300.0, 1.0])
    got = only(tensors_of.exploding, with_rows(late, rows_of(100)))
    assert (
        got is not None
        and "2 tensors (one.weight, two.weight): the gradient norm of two.weight is 3e+02" in got.evidence
    )
    assert only(tensors_of.exploding, with_rows(late, rows_of(100, count=3))) is None
    assert only(tensors_of.exploding, with_rows(late)) is None
    assert only(tensors_of.exploding, with_rows(late, rows_of(100, grad_norm=0.0))) is None


def test_a_tensor_has_vanished_at_a_hundredth_of_the_beginning() -> None:
    for share, found in ((0.01, True), (0.0101, False)):
        late = rows_of(param_norm=[10.0, 10.0, 10 * share, 10.0])
        got = only(tensors_of.vanishing, with_rows(late, early=rows_of(0)))
        assert (got is not None) == found
        assert got is None or "the norm of two.weight is 0.01 times" in got.evidence
    assert only(tensors_of.vanishing, with_rows(late)) is None
    for shape, grave in (([], False), ([1], False), ([1, 1], False), ([2], True)):
        view = with_rows(
            rows_of(param_norm=[10.0, 10.0, 0.0, 10.0]), early=rows_of(0), meta={"parameters": {NAMES[2]: shape}}
        )
        assert severity(tensors_of.vanishing, view) == ("warning" if grave else "info")


def test_steps_are_large_from_three_tenths_of_a_matrix_on_and_tiny_down_to_a_millionth() -> None:
    def rules(*updates: float, **more: Any) -> set[str]:
        return {found.rule for found in tensors_of.updates(with_rows(rows_of(update_norm=updates, **more)))}

    assert rules(0.01, 0.01, 3.0, 0.01) == {"update_ratio_high"} and rules(0.01, 0.01, 2.99, 0.01) == set()
    assert rules(0.01, 3.0, 0.01, 3.0) == set()  # biases start at zero
    assert rules(0.01, 0.01, 9.99e-6, 0.01) == {"update_ratio_low"} and rules(0.01, 0.01, 1.01e-5, 0.01) == set()
    assert rules(3.0, 0.01, 9e-6, 0.01) == {"update_ratio_high", "update_ratio_low"}
    assert rules(0.01, 9e-6, 0.01, 0.01) == {"update_ratio_low"}
    rounding = [1.0, 1e-5, 1.0, 1.0]  # the bias before a normalization
    assert rules(0.01, 9e-6, 0.01, 0.01, grad_norm=rounding) == set()
    rounding[1] = 1.1e-5
    assert rules(0.01, 9e-6, 0.01, 0.01, grad_norm=rounding) == {"update_ratio_low"}
    assert rules(0.01, 0.01, 9e-6, 0.01, grad_norm=[1.0, 1.0, 1e-5, 1.0]) == {"update_ratio_low"}
    reached = np.ones((4, 4))
    reached[0, 2] = 0.0  # an expert that no token chose, at one of four rows
    assert rules(0.01, 0.01, 9e-6, 0.01, grad_norm=reached) == set()
    assert rules(0.01, 0.01, 3.0, 0.01, grad_norm=reached) == {"update_ratio_high"}


def test_steps_that_are_tiny_since_the_gradient_shrank_need_no_higher_rate() -> None:
    late = rows_of(update_norm=[0.01, 0.01, 9e-6, 0.01])
    for before, there in ((1e-3, False), (9.9e-4, True)):
        early = rows_of(0, update_norm=[0.01, 0.01, before, 0.01])
        assert bool(list(tensors_of.updates(with_rows(late, early=early)))) == there
        assert bool(list(tensors_of.updates(with_rows(late, early)))) == there


def test_a_group_whose_rate_is_zero_is_not_told_to_have_tiny_steps() -> None:
    rows = rows_of(update_norm=[0.01, 0.01, 0.0, 0.01])
    rates_of = {"lr": np.full(400, 0.1), "lr/1": np.zeros(400)}
    assert not list(tensors_of.updates(with_rows(rows, **rates_of)))
    assert list(tensors_of.updates(with_rows(rows, lr=rates_of["lr"])))
    assert list(tensors_of.updates(with_rows(rows_of(update_norm=[0.01, 0.01, 1e-9, 0.01]), **rates_of)))


def test_of_steps_that_are_tiny_by_a_clip_the_clip_is_named() -> None:
    rows = rows_of(update_norm=[0.01, 0.01, 9e-6, 0.01])
    for left, named in ((0.1, True), (0.11, False)):
        found = only(tensors_of.updates, with_rows(rows, clip_coef=np.full(400, left)))
        assert found is not None and ("raise max_norm" in found.remedy) == named


def test_steps_at_less_than_a_tenth_of_the_highest_rate_do_not_count() -> None:
    rows = rows_of(update_norm=[0.01, 0.01, 9e-6, 0.01])
    for rate, found in ((0.1, True), (0.099, False)):
        lr = np.ones(400)
        lr[330:] = rate  # from the last of four rows on
        assert bool(list(tensors_of.updates(with_rows(rows, lr=lr)))) == found
    assert list(tensors_of.updates(with_rows(rows, lr=np.full(400, NAN))))


def test_headroom_runs_out_where_gradients_grow_sixteenfold_and_the_scale_comes_down_by_four() -> None:
    def headroom(grew: float, fell: float, late: float = 256.0, count: int = 4) -> Finding | None:
        middle = rows_of(100, count=count, scale=late * fell)
        return only(tensors_of.headroom, with_rows(rows_of(absmax=grew, scale=late), middle))

    found = headroom(16.0, 4.0)
    assert found is not None and "grew 16-fold and the scale fell from 2^10 to 256" in found.evidence
    assert "it is 1 about 800 steps from now" in found.evidence  # 2 doublings in 200 steps
    assert headroom(15.9, 4.0) is None and headroom(16.0, 3.9) is None and headroom(16.0, 4.0, count=3) is None
    below = headroom(16.0, 4.0, late=0.5)
    assert below is not None and "about 0 steps from now" in below.evidence
    assert only(tensors_of.headroom, with_rows(rows_of(absmax=0.0, scale=1.0), rows_of(100, scale=4.0))) is None
    for largest, scale in ((math.inf, 4.0), (1.0, math.inf)):  # most of them overflowed
        middle = rows_of(100, absmax=largest, scale=scale)
        for late in (16.0, math.inf):
            assert only(tensors_of.headroom, with_rows(rows_of(absmax=late, scale=1.0), middle)) is None


def test_gradients_are_not_float16_where_half_of_the_tensors_leave_its_range_in_half_of_the_rows() -> None:
    def found(over: np.ndarray, scale: float = 2.0) -> bool:
        return only(tensors_of.not_float16, with_rows(rows_of(scale=scale, **{"overflow/float16": over}))) is not None

    half = np.zeros((4, 4))
    half[:2, :2] = 0.01  # two of four tensors, in two of four rows
    assert found(half) and not found(half, scale=1.0) and not found(half, scale=NAN)
    for missing in ((0, 0), (1, 1)):
        less = half.copy()
        less[missing] = 0.0
        assert not found(less)
    unknown = half.copy()
    unknown[:, 2:] = NAN
    unknown[0, 1] = 0.0
    assert found(unknown)  # of two that are known one


@pytest.mark.parametrize(
    ("cause", "severity", "scale", "found"),
    [
        ("growth_probe", "info", 2.0**18, False),
        ("bad_batch", "info", 2.0**18, False),
        ("bad_batch", "warning", 2.0**18, True),  # what a batch holds may overflow any type
        ("growth_probe", "info", 2.0**120, True),  # at which bfloat16 overflows
    ],
)
def test_gradients_that_overflowed_at_a_usual_scale_are_float16_whatever_the_loop_wrote_to_them(
    cause: str, severity: str, scale: float, found: bool
) -> None:
    skip = Event(250, 0.0, "skip", severity, None, cause, data={"loss_scale": scale})
    view = with_rows(rows_of(scale=2.0, **{"overflow/float16": 1.0}), events=[skip])
    assert (only(tensors_of.not_float16, view) is not None) == found


@pytest.mark.parametrize(("dtype", "ulp"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_updates_are_lost_below_half_a_unit_in_the_last_place(dtype: str, ulp: float) -> None:
    def found(rate: float = 0.49, moved: float = 0.49, adam: str = "AdamW", **more: Any) -> Finding | None:
        size = 3.0  # of each element
        lr = rate * size * ulp
        optimizers = {"optimizer": {"class": adam, "dtypes": more.pop("dtypes", {dtype: 4})}}
        meta = {"optimizers": optimizers, "parameters": more.pop("shapes", {name: (4, 25) for name in NAMES})}
        rows = rows_of(param_norm=size * 10, update_norm=[lr * 10, lr * 10, moved * lr * 10, lr * 10], **more)
        return only(tensors_of.updates_lost, with_rows(rows, meta=meta, lr=np.full(400, lr)))

    got = found()
    assert got is not None and f"1 tensor (two.weight) are {dtype}" in got.evidence
    assert f"moves by {ulp:.2g} of itself" in got.evidence
    assert found(rate=0.51) is None and found(moved=0.51) is None and found(adam="SGD") is None
    assert found(rate=0.5) is None and found(moved=0.5) is None
    assert found(dtypes={"float32": 4}) is None and found(dtypes={dtype: 2, "float32": 2}) is None
    assert found(dtypes={}) is None and found(grad_norm=0.0) is None
    assert found(shapes={}, moved=0.0) is None and found(moved=0.0) is not None  # of how many numbers is not known


def test_names_beyond_three_are_counted() -> None:
    assert (
        tensors_of._listed(["a", "b", "c"]) == "a, b, c"
        and tensors_of._listed(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    )


# -- clipping ----------------------------------------------------------------------------------------------------------


def clips(clipped: int, known: int, threshold: float = 1.0, **more: Any) -> View:
    coefficient = np.where(np.arange(known) < clipped, 0.5, 1.0)
    return View(known, clip_coef=coefficient, max_norm=np.full(known, threshold), **more)


@pytest.mark.parametrize(
    ("clipped", "known", "rule"),
    [
        (95, 100, "clipped_always"),
        (94, 100, ""),
        (94, 99, ""),  # too few steps
        (99, 99, ""),
        (0, 100, "clipped_never"),
        (1, 100, ""),
        (1, 10_000, "clipped_never"),
        (2, 10_000, ""),
    ],
)
def test_clipping_is_always_from_95_percent_and_never_up_to_a_ten_thousandth(
    clipped: int, known: int, rule: str
) -> None:
    found = only(clip_rules.clipping, clips(clipped, known))
    assert ("" if found is None else found.rule) == rule
    if found is not None:
        assert f"{clipped:,} of {known:,} steps" in found.evidence and "at max_norm 1." in found.evidence
        norms = np.where(np.arange(known) % 2 == 0, 3.0, 5.0)
        with_norms = only(clip_rules.clipping, clips(clipped, known, grad_norm=norms))
        assert with_norms is not None and "; median norm before clipping 4." in with_norms.evidence
    for threshold in (0.0, -1.0, NAN):
        assert only(clip_rules.clipping, clips(clipped, known, threshold)) is None


def test_a_threshold_that_is_not_above_zero_is_an_error_with_the_worst_and_where_it_began() -> None:
    thresholds = np.full(400, 1.0)
    thresholds[[20, 30]] = 0.0
    found = only(clip_rules.wrong_threshold, View(max_norm=thresholds))
    assert found is not None and found.steps == (20, 30) and "is 0" in found.title
    assert "was 0 in 2 steps, the first at step 20" in found.evidence
    thresholds[40], thresholds[50] = -2.0, NAN
    found = only(clip_rules.wrong_threshold, View(max_norm=thresholds))
    assert (
        found is not None and found.steps == (20, 30, 40) and "negative" in found.title and "was -2" in found.evidence
    )
    assert only(clip_rules.wrong_threshold, View(max_norm=np.ones(400))) is None


def test_gradients_that_two_steps_set_to_zero_are_an_error() -> None:
    norms, clipped = np.full(400, 3.0), np.full(400, 1.5)
    clipped[0] = 0.0
    assert only(clip_rules.zeroed, View(grad_norm=norms, grad_norm_clipped=clipped)) is None
    clipped[1] = 0.0
    found = only(clip_rules.zeroed, View(grad_norm=norms, grad_norm_clipped=clipped))
    assert found is not None and (found.severity, found.steps) == ("error", (0, 1))
    assert "In 2 steps, the first at step 0, the gradients had a norm (of 3 there)" in found.evidence
    known = View(grad_norm=norms, grad_norm_clipped=clipped, max_norm=np.ones(400))
    assert only(clip_rules.zeroed, known) is None  # that of a clip by norm is another rule's
    assert only(clip_rules.zeroed, View(grad_norm=0 * norms, grad_norm_clipped=clipped)) is None
    skipped = View(grad_norm=norms, grad_norm_clipped=clipped, skipped=np.arange(400) == 1)
    assert only(clip_rules.zeroed, skipped) is None
    known_already = View(grad_norm=norms, grad_norm_clipped=clipped, events=[Event(0, 0.0, "clip_value_invalid")])
    assert only(clip_rules.zeroed, known_already) is None


def test_no_clipping_is_worth_a_word_from_three_spikes_or_bad_batches_on() -> None:
    def found(spikes: int, bad: int, threshold: float = NAN, **more: Any) -> Finding | None:
        events = [Event(10 + at, 0.0, "skip", cause="bad_batch") for at in range(bad)]
        view = View(events=events, max_norm=np.full(400, threshold), **more)
        view.spikes = [Event(100 + at, 0.0, "loss_spike") for at in range(spikes)]
        return only(clip_rules.no_clipping, view)

    got = found(2, 1)
    assert got is not None and got.steps == (10, 100, 101) and "2 loss spikes and 1 bad batch" in got.evidence
    assert found(2, 0) is None and found(0, 2) is None and found(0, 3) is not None and found(2, 1, 1.0) is None
    got = found(2, 1, grad_norm=np.where(np.arange(400) == 3, INF, 2.0))
    assert got is not None and "The median gradient norm is 2." in got.evidence
    view = View()
    view.spikes = [Event(at, 0.0, "loss_spike") for at in range(9)]
    assert only(clip_rules.no_clipping, view) is None  # a record that has no column of it


# -- the loss scale ----------------------------------------------------------------------------------------------------


def test_a_scale_from_two_to_the_48_on_is_far_beyond_what_float16_needs() -> None:
    scale = np.full(400, 2.0**16)
    assert only(scale_rules.scale_extreme, View(loss_scale=scale)) is None
    scale[[100, 101]] = 2.0**48, 2.0**50
    found = only(scale_rules.scale_extreme, View(loss_scale=scale))
    assert found is not None and found.steps == (100, 101) and found.severity == "warning"
    assert (
        "2 steps had a scale of 2^48 or more, the first at step 100, the highest 2^50; none of them" in found.evidence
    )
    found = only(scale_rules.scale_extreme, View(loss_scale=scale, skipped=np.arange(400) == 101))
    assert found is not None and "1 of them was skipped" in found.evidence
    scale[100:102] = 2.0**47.9
    assert only(scale_rules.scale_extreme, View(loss_scale=scale)) is None


def test_a_scale_that_grows_far_while_every_gradient_is_0_is_no_reason_to_worry() -> None:
    scale = np.full(400, 2.0**16)
    scale[100:110] = 2.0**50
    norms = np.where((scale == 2.0**50) & (np.arange(400) > 101), 0.0, 1.0)
    taken_with_some = View(loss_scale=scale, grad_norm=norms)
    assert severity(scale_rules.scale_extreme, taken_with_some) == "warning"
    skipped = (np.arange(400) >= 100) & (np.arange(400) < 102)
    found = only(scale_rules.scale_extreme, View(loss_scale=scale, grad_norm=norms, skipped=skipped))
    assert found is not None and found.severity == "info"
    assert "2 of them were skipped, and the others had no gradient but 0" in found.evidence
    skipped = scale == 2.0**50
    assert severity(scale_rules.scale_extreme, View(loss_scale=scale, grad_norm=norms, skipped=skipped)) == "warning"


def test_a_scale_that_no_gradient_survives_is_an_error_where_it_stays() -> None:
    for value in (INF, -1.0):
        scale = np.full(400, 8.0)
        scale[7] = value
        found = only(scale_rules.scale_extreme, View(loss_scale=scale))
        assert found is not None and (found.severity, found.steps) == ("warning", (7,))
        scale[399] = value
        found = only(scale_rules.scale_extreme, View(loss_scale=scale))
        assert found is not None and (found.severity, found.steps) == ("error", (7, 399))
        assert "in 2 steps, the first at step 7" in found.evidence
    assert only(scale_rules.scale_extreme, View(loss_scale=np.where(np.arange(400) == 3, 0.0, 8.0))) is None


def falling(*levels: tuple[float, int], falls: int = 3, **more: Any) -> Finding | None:
    scale = np.concatenate([np.full(count, level) for level, count in levels])
    events = [Event(200 + at, 0.0, "scale_backoff") for at in range(falls)] + list(more.pop("events", ()))
    return only(scale_rules.scale_falls, View(len(scale), events=events, loss_scale=scale, **more))


def test_a_scale_keeps_falling_that_came_down_sixteenfold_over_three_skips_from_one_that_had_held() -> None:
    found = falling((64.0, 32), (4.0, 32))
    assert found is not None and found.steps == (0, 200, 201, 202)
    assert "It was 64 for 32 steps from step 0 on, and is 4 now, after 3 more overflows" in found.evidence
    assert falling((64.0, 32), (4.01, 32)) is None and falling((64.0, 32), (4.0, 31)) is None
    assert falling((64.0, 31), (4.0, 40)) is None and falling((64.0, 32), (4.0, 32), falls=2) is None
    higher = falling((64.0, 32), (128.0, 31), (4.0, 40))
    assert higher is not None and "It was 64 for 32 steps" in higher.evidence
    later = falling((64.0, 40), (128.0, 32), (8.0, 40))
    assert later is not None and "It was 128 for 32 steps from step 40 on" in later.evidence
    assert falling((64.0, 32), (4.0, 32), events=[Event(50, 0.0, "scale_set")]) is None
    assert falling((64.0, 32), (4.0, 32), events=[Event(0, 0.0, "scale_set")]) is not None
    assert falling((64.0, 32), (4.0, 32), events=[Event(50, 0.0, "scaler_state_lost")]) is None
    assert falling((64.0, 32), (4.0, 32), events=[Event(50, 0.0, "scale_collapse")]) is None
    assert falling((64.0, 32), (4.0, 33), skipped=np.arange(65) == 40) is not None
    assert falling((64.0, 32), (4.0, 32), skipped=np.arange(64) == 40) is None
    again = [Event(200, 0.0, "scale_backoff"), Event(201, 0.0, "scale_backoff")]  # at the same steps
    assert falling((64.0, 32), (4.0, 32), falls=2, events=again) is None


def test_steps_at_a_scale_below_one_are_counted_where_they_were_taken() -> None:
    scale = np.full(400, 1.0)
    assert only(scale_rules.scale_floor, View(loss_scale=scale)) is None
    scale[[5, 6, 7]], scale[8] = [0.5, 0.25, 0.0], -1.0
    found = only(scale_rules.scale_floor, View(loss_scale=scale, skipped=np.arange(400) == 6))
    assert found is not None and found.steps == (5, 7) and "2 steps were taken" in found.evidence
    assert "the first at step 5, the lowest at 0" in found.evidence


@pytest.mark.parametrize(
    ("eps", "dtypes", "found"),
    [
        (0.0, {"float32": 1}, True),
        (1e-8, {"float16": 1}, True),
        (1e-8, {"float32": 1}, False),
        (1e-7, {"float16": 1}, False),
        (1e-8, None, False),
        (None, {"float16": 1}, False),
    ],
)
def test_an_eps_is_nothing_at_zero_and_where_float16_rounds_it_to_zero(eps: Any, dtypes: Any, found: bool) -> None:
    meta = {"optimizers": {"optimizer": {"class": "AdamW", "dtypes": dtypes, "groups": [{"eps": 1e-3}, {"eps": eps}]}}}
    got = only(scale_rules.eps_vanishes, View(meta=meta))
    assert (got is not None) == found
    assert got is None or "AdamW (optimizer, group 1) has eps=" in got.evidence


# -- spikes as findings ------------------------------------------------------------------------------------------------


def spike(step: int, **more: Any) -> SpikeFacts:
    given: dict[str, Any] = {"back_after": 3, "lasting": False, "grave": False, "schedule": False, "recurs": False}
    return SpikeFacts(step, step, 9.0, 1.0, **{**given, **more})


@pytest.mark.parametrize(
    ("places", "steps", "more", "frequent"),
    [
        ((100, 250, 300), 3000, {}, True),
        ((100, 250, 300), 3001, {}, False),  # fewer than one in a thousand
        ((100, 250), 400, {}, False),
        ((100, 200, 300), 400, {}, False),  # a rhythm
        ((100, 200, 289, 400), 500, {}, True),
        ((100, 200, 290, 400), 500, {}, False),  # by a tenth
        ((100, 250, 300), 400, {"back_after": 2}, False),
        ((100, 250, 300), 400, {"back_after": None}, True),
        ((100, 250, 300), 400, {"schedule": True}, False),
        ((100, 250, 300), 400, {"recurs": True}, False),
        ((100, 102, 105), 400, {}, False),
        ((100, 102, 106), 400, {}, False),
        ((100, 102, 107), 400, {}, True),
    ],
)
def test_spikes_are_frequent_from_three_on_and_one_in_a_thousand_without_a_rhythm(
    places: Sequence[int], steps: int, more: Any, frequent: bool
) -> None:
    assert curve_rules._frequent([spike(place, **more) for place in places], steps) == frequent


@pytest.mark.parametrize(
    ("name", "value", "deviations", "words"),
    [
        ("lr", 1.51, 4.0, "the learning rate rose from 1 to 1.51 at step 7"),
        ("lr", 1.5, 4.0, None),
        ("lr", 1.51, 3.99, None),
        ("grad_norm", 3.01, 4.0, "the gradient norm rose to 3 times the usual at step 7"),
        ("grad_norm", 3.0, 4.0, None),
        ("update_ratio", 3.01, 4.0, "the updates rose to 3 times their usual length at step 7"),
        ("update_ratio", 3.0, 4.0, None),
        ("tensor_grad_norm", 10.1, 4.0, "the gradient of a.weight rose to 10 times the usual at step 7"),
        ("tensor_grad_norm", 10.0, 4.0, None),
        ("clip_coef", 99.0, 99.0, None),
        ("grad_norm", 0.01, 99.0, None),
    ],
)
def test_what_rose_before_a_spike_is_named_from_its_own_limit_on(
    name: str, value: float, deviations: float, words: str | None
) -> None:
    found = curve_rules._in_words(Quantity(name, None, "a.weight", 1.0, value, 7, deviations, (), ()))
    assert (None if found is None else found[0]) == words


def led_by_definition(values: np.ndarray, begin: int, end: int) -> tuple[float, float, int, float] | None:
    """Usual, the value furthest from it, its place, and how far that is."""
    places = [at for at in range(begin, end) if math.isfinite(values[at])]
    if len(places) < 8:
        return None
    inside = [float(values[at]) for at in places]
    before = [float(value) for value in values[max(0, begin - 64) : begin] if math.isfinite(value)]
    if len(before) < 8:
        before = inside[: len(inside) // 2]
    logs = min(inside) > 0 and min(before) > 0
    compared, usually = ([math.log(v) for v in each] if logs else each for each in (inside, before))
    middle = median(usually)
    low, high = np.quantile(usually, [0.1, 0.9])
    width = max(1.4826 * median(abs(value - middle) for value in usually), (high - low) / 2.56)
    width = max(width, 0.05 if logs else 0.05 * abs(middle), 1e-30)
    away = [abs(value - middle) / width for value in compared]
    at = away.index(max(away))
    return math.exp(middle) if logs else middle, inside[at], places[at], away[at]


def test_what_led_to_a_step_is_how_far_each_quantity_was_from_its_usual_in_the_32_steps_before() -> None:
    random = np.random.default_rng(0)
    for case in range(60):
        count = int(random.integers(9, 140))
        values = random.standard_normal(count) + (4 if case % 3 else 0)
        if case % 4 == 1:
            values = np.round(values)
        values[random.random(count) < random.choice([0.0, 0.3, 0.8])] = NAN
        step = int(random.integers(1, count + 1))
        begin = max(0, step - 32)
        expected = led_by_definition(values, begin, step)
        led = what_led_here(View(count, grad_norm=values), step)  # type: ignore[arg-type]
        assert (led.step, led.first_step) == (step, begin)
        if expected is None:
            assert led.quantities == () and "grad_norm" in led.not_recorded
            continue
        (found,) = led.quantities
        assert (found.usual, found.value, found.at_step, found.deviations) == pytest.approx(expected, rel=1e-9)
        places = [at for at in range(begin, step) if math.isfinite(values[at])]
        assert found.steps == tuple(places) and found.values == tuple(values[places].tolist())


def exploded(norm: float, at: int = 195, step: int = 200, **more: Any) -> Finding | None:
    norms = np.where(np.arange(400) % 2 == 0, 0.9, 1.1)
    norms[at] = norm
    view = View(grad_norm=norms, events=[Event(step, 0.0, "nonfinite_step")], **more)
    return only(curve_rules.exploding_norms, view)


def test_a_norm_that_exploded_before_something_worse_is_named() -> None:
    found = exploded(11.0)
    assert (
        found is not None and "was 11 at step 195" in found.evidence and "5 steps later, at step 200" in found.evidence
    )
    assert set(found.steps) == {195, 200}
    assert exploded(9.0) is None and exploded(99.0, at=201) is None and exploded(99.0, at=150) is None


# -- replicas ----------------------------------------------------------------------------------------------------------


def test_ranks_leave_each_other_at_the_first_step_whose_known_checksums_differ() -> None:
    names = ("a", "b")

    def series(*rows: tuple[int, int], steps: Sequence[int] = (0, 10, 20), names: Any = names) -> Any:
        return np.array(steps), names, np.array(rows, np.uint64)

    one = series((5, 6), (7, 8), (9, 1))
    left = replicas_of._left
    assert left(one, one) is None and left(one, series((5, 6), (7, 8), (9, 1))) is None
    assert left(one, series((5, 6), (7, 8), (9, 2))) == (10, 20, ("b",))
    assert left(one, series((5, 6), (1, 2), (9, 2))) == (0, 10, ("a", "b"))
    assert left(one, series((4, 6), (7, 8), (9, 1))) == (-1, 0, ("a",))
    assert left(one, series((5, 6), (0, 8), (9, 1))) is None  # unknown
    assert left(one, series((5, 6), (7, 8), (9, 1), names=("a", "c"))) is None
    assert left(one, series((7, 9), (9, 1), steps=(10, 20))) == (-1, 10, ("b",))
    assert left(one, series((1, 1), (1, 1), (1, 1), steps=(1, 11, 21))) is None  # at no step both


# -- rates of zero, momenta, schedules ---------------------------------------------------------------------------------


def stopped(begin: int, end: int, value: float = 0.0, count: int = 400) -> np.ndarray:
    lr = np.full(count, 1e-3)
    lr[begin:end] = value
    return lr


def test_a_rate_of_zero_for_sixteen_steps_is_reported_with_how_long_and_where() -> None:
    assert only(rates.zero, View(lr=stopped(100, 115))) is None
    found = only(rates.zero, View(lr=stopped(100, 116)))
    assert found is not None and (found.severity, found.steps, found.title) == (
        *("warning", (100,)),
        "The learning rate was 0 for a while",
    )
    assert "The learning rate was 0 for 16 steps, the first at step 100." in found.evidence
    found = only(rates.zero, View(lr=stopped(380, 400)))
    assert found is not None and found.title == "The learning rate is 0"
    assert "for 20 steps, the first at step 380, up to the end: nothing is learned." in found.evidence
    assert severity(rates.zero, View(lr=stopped(0, 20))) == "info"  # a warm-up
    assert severity(rates.zero, View(lr=np.zeros(400))) == "warning"
    assert severity(rates.zero, View(**{"a/lr": stopped(0, 20), "b/lr": stopped(0, 0)})) == "info"
    assert severity(rates.zero, View(**{"a/lr": np.zeros(400), "b/lr": stopped(0, 0)})) == "info"
    assert severity(rates.zero, View(**{"a/lr": stopped(20, 40), "b/lr": stopped(0, 0)})) == "warning"
    assert only(rates.zero, View(**{"lr": stopped(100, 130), "lr/1": stopped(115, 145)})) is None  # 15 in common
    assert only(rates.zero, View(**{"lr": stopped(100, 131), "lr/1": stopped(115, 145)})) is not None
    last = only(rates.zero, View(lr=np.minimum(stopped(50, 70), stopped(100, 120))))
    assert last is not None and last.steps == (100,)


def test_a_rate_next_to_nothing_is_reported_for_a_tenth_of_the_run() -> None:
    for value, found in ((1e-8, True), (1.01e-8, False)):  # a hundred thousandth of the highest
        assert (only(rates.zero, View(lr=stopped(300, 340, value))) is not None) == found
    assert only(rates.zero, View(lr=stopped(300, 339, 1e-8))) is None
    assert only(rates.zero, View(lr=stopped(0, 40, 1e-8))) is None  # it warms up over orders of magnitude
    assert only(rates.zero, View(lr=stopped(1, 41, 1e-8))) is not None
    got = only(rates.zero, View(lr=stopped(300, 340, 1e-8)))
    assert got is not None and "was next to 0 (at most 1e-08, of 0.001 before) for 40 steps" in got.evidence
    short = only(rates.zero, View(100, lr=stopped(50, 66, 1e-8, 100)))
    assert short is not None and only(rates.zero, View(100, lr=stopped(50, 65, 1e-8, 100))) is None


def test_a_group_whose_rate_is_zero_throughout_while_others_learn_is_named() -> None:
    some, none = np.full(400, 1e-3), np.zeros(400)
    found = only(rates.group_zero, View(**{"lr": some, "lr/1": none}))
    assert found is not None and "Of 2 groups 1 has a learning rate of 0 at every step (group 1)" in found.evidence
    assert only(rates.group_zero, View(**{"lr": none, "lr/1": none})) is None is only(rates.group_zero, View(lr=none))
    groups = {f"lr/{at}": none for at in range(1, 6)}
    found = only(rates.group_zero, View(lr=some, **groups))
    assert found is not None and "5 have a learning rate of 0 at every step (group 1, 2, 3, ...)" in found.evidence
    late = np.where(np.arange(400) < 384, NAN, 0.0)
    assert only(rates.group_zero, View(**{"lr": some, "lr/1": late})) is not None
    late[384] = NAN  # fifteen values
    assert only(rates.group_zero, View(**{"lr": some, "lr/1": late})) is None


@pytest.mark.parametrize(("value", "found"), [(1.0, True), (0.999, False), (1.5, True), (None, False)])
def test_a_momentum_of_one_never_fades(value: Any, found: bool) -> None:
    meta = {"optimizers": {"optimizer": {"class": "SGD", "groups": [{"momentum": 0.9}, {"momentum": value}]}}}
    got = only(rates.momentum, View(meta=meta))
    assert (got is not None) == found
    assert got is None or f"SGD (optimizer, group 1) was made with momentum={value:.4g}" in got.evidence
    assert only(rates.momentum, View(meta={"optimizers": {"optimizer": 3}})) is None


@pytest.mark.parametrize(
    ("skips", "count", "expected"),
    [(2, 100, "info"), (1, 20, ""), (2, 101, ""), (5, 100, "warning"), (4, 100, "info"), (2, 40, "warning")],
)
def test_a_schedule_runs_ahead_where_it_moves_on_after_skipped_steps(skips: int, count: int, expected: str) -> None:
    lr = 1e-3 * (1 - np.arange(count) / 1000)
    skipped = np.zeros(count, bool)
    skipped[3 : 3 + 2 * skips : 2] = True
    found = only(rates.schedule_drift, View(count, lr=lr, skipped=skipped))
    assert ("" if found is None else found.severity) == expected
    if found is not None:
        assert found.steps == tuple(range(3, 3 + 2 * skips, 2))
        assert f"moved on after {skips} of {skips} skipped steps: it is {skips} steps" in found.evidence
        waits = lr[np.arange(count) - np.cumsum(np.concatenate([[0], skipped[:-1]]))]
        assert only(rates.schedule_drift, View(count, lr=waits, skipped=skipped)) is None
        assert only(rates.schedule_drift, View(count, lr=lr, skipped=skipped, meta={"source": "x"})) is None
        assert only(rates.schedule_drift, View(count, **{"lr/1": lr, "skipped": skipped})) is None
        ends = np.roll(skipped, count - 3 - 2 * skips + 1)  # the last of them is the last step
        found = only(rates.schedule_drift, View(count, lr=lr, skipped=ends))
        assert found is None or f"after {skips - 1} of {skips - 1} skipped" in found.evidence


@pytest.mark.parametrize(
    ("cause", "event_severity", "expected"),
    [
        ("growth_probe", "info", "info"),
        ("bad_batch", "info", "info"),
        ("bad_batch", "warning", "warning"),
        ("scale_warmup", "info", "warning"),
    ],
)
def test_a_schedule_that_probes_of_the_scale_shorten_evenly_is_an_information(
    cause: str, event_severity: str, expected: str
) -> None:
    lr, skipped = 1e-3 * (1 - np.arange(100) / 1000), np.arange(100) % 10 == 3
    events = [
        Event(step, 0.0, "skip", event_severity, cause=cause, message="", remedy="", data={})
        for step in np.flatnonzero(skipped).tolist()
    ]
    assert severity(rates.schedule_drift, View(100, lr=lr, skipped=skipped, events=events)) == expected
    assert severity(rates.schedule_drift, View(100, lr=lr, skipped=skipped, events=events[:5])) == "warning"


# -- parameters without a gradient -------------------------------------------------------------------------------------


def test_a_tensor_never_gets_a_gradient_where_eight_rows_have_none_of_it() -> None:
    without = [1.0, 1.0, NAN, 1.0]

    def found(count: int = 4, early: Any = without, meta: Any = None, **more: Any) -> Finding | None:
        late, first = rows_of(grad_norm=without, count=count, **more), rows_of(0, count=4, grad_norm=early, **more)
        return only(tensors_of.no_gradient, with_rows(late, early=first, meta=meta))

    got = found()
    assert got is not None and got.severity == "info" and "1 of 4 tensors (two.weight)" in got.evidence
    assert "had no gradient at any of 8 steps looked at, up to 330." in got.evidence
    frozen = found(meta={"frozen": []})
    assert frozen is not None and frozen.severity == "warning" and "though they require one." in frozen.evidence
    assert found(meta={"frozen": ["two.weight"]}) is None
    with_three = only(tensors_of.no_gradient, with_rows(rows_of(grad_norm=without, count=7)))
    assert (
        with_three is None and only(tensors_of.no_gradient, with_rows(rows_of(grad_norm=without, count=8))) is not None
    )
    moving = np.tile([10.0], (4, 4))
    moving[3, 2] = 10.1
    assert found(param_norm=moving) is None  # it is trained in between
    assert found(early=[1.0, 1.0, 1.0, 1.0]) is not None  # of those that stopped, another word
    assert found(early=[1.0, 1.0, 1.0, 1.0]).title == "Some parameters get no gradient any more"  # type: ignore[union-attr]


def test_a_bias_without_a_gradient_beside_a_weight_that_has_one_is_an_information() -> None:
    def found(*missing: int) -> str:
        norms = [NAN if at in missing else 1.0 for at in range(4)]
        rows, first = rows_of(grad_norm=norms), rows_of(0, grad_norm=norms)
        return severity(tensors_of.no_gradient, with_rows(rows, early=first, meta={"frozen": []}))

    assert found(1) == "info" and found(3) == "info" and found(1, 3) == "info"
    assert found(0) == "warning" and found(0, 1) == "warning" and found(1, 2) == "warning"


def test_tensors_that_get_no_gradient_any_more_are_a_warning_from_half_of_them_on() -> None:
    def found(*missing: int, had: float = 1.0, count: int = 4, meta: Any = None) -> Finding | None:
        norms = np.ones(4)
        norms[list(missing)] = NAN
        middle = np.ones((4, 4))
        middle[: round(4 * (1 - had))] = 0.0
        late = rows_of(grad_norm=norms, count=count)
        return only(tensors_of.no_gradient, with_rows(late, rows_of(100, grad_norm=middle), meta=meta))

    frozen = {"frozen": ["one.bias", "two.weight"]}
    meant = found(1, 2, meta=frozen)
    assert meant is not None and meant.severity == "info" and "they require none any more" in meant.evidence
    more = found(1, 2, 3, meta=frozen)
    assert more is not None and more.severity == "info" and "require none" not in more.evidence
    one, two = found(2), found(1, 2)
    assert one is not None and one.severity == "info" and two is not None and two.severity == "warning"
    assert (
        "1 of 4 tensors (two.weight) had a gradient earlier in the run, and none from step 300 to 330." in one.evidence
    )
    assert found(2, had=0.75) is not None and found(2, had=0.5) is None and found(2, count=3) is None


# -- rows of tables ----------------------------------------------------------------------------------------------------


class Tables:
    """By step, the tables of a record: names, and the norms of their gradients."""

    def __init__(self, tables: dict[int, Sequence[tuple[tuple[str, ...], Sequence[float]]]], **more: Any) -> None:
        self.tables, self.more = tables, more

    def steps_of(self, *reasons: str) -> np.ndarray:
        return np.array(sorted(self.tables))

    def at(self, step: int, columns: Sequence[str]) -> list[Any]:
        return [
            SimpleNamespace(
                **{"optimizer": None, "reason": "interval", "names": names, **self.more},
                columns={"grad_norm": np.array(norms)},
            )
            for names, norms in self.tables[step]
        ]


def sampled(tables: Any, count: int = 16, steps: int = 101, **more: Any) -> list[Rows]:
    record = View(steps, loss_scale=np.arange(float(steps)))
    record.tensors = tables  # type: ignore[attr-defined]
    return sampled_rows(record, ("grad_norm",), count, **more)  # type: ignore[arg-type]


def test_tables_of_other_tensors_stand_in_one_array_each_value_at_its_name() -> None:
    tables = {10: [(("a", "b"), [1.0, 2.0])], 20: [(("b",), [3.0])], 30: [(("c", "a"), [4.0, 5.0])]}
    (rows,) = sampled(Tables(tables))
    assert rows.names == ("a", "b", "c") and rows.steps.tolist() == [10, 20, 30] and rows.scale.tolist() == [10, 20, 30]
    np.testing.assert_array_equal(rows.columns["grad_norm"], [[1.0, 2.0, NAN], [NAN, 3.0, NAN], [5.0, NAN, 4.0]])
    assert sampled(Tables(tables, reason="flight")) == []


def test_rows_are_taken_evenly_from_a_share_of_the_run_or_the_least_at_its_ends() -> None:
    every = Tables({step: [(("a",), [1.0])] for step in range(0, 101, 5)})

    def steps(count: int = 16, **more: Any) -> list[int]:
        found = sampled(every, count, **more)
        return found[0].steps.tolist() if found else []

    assert steps(5) == [0, 25, 50, 75, 100] and steps(100) == list(range(0, 101, 5)) and steps(1) == [0]
    assert steps(share=(0.75, 1.0)) == [75, 80, 85, 90, 95, 100] and steps(share=(0.0, 0.1)) == [0, 5, 10]
    assert steps(share=(0.25, 0.5)) == [25, 30, 35, 40, 45, 50]
    assert steps(share=(0.95, 1.0), least=4) == [80, 85, 90, 95, 100]  # one more than the least
    assert steps(share=(0.0, 0.05), least=4) == [0, 5, 10, 15, 20] and steps(share=(0.4, 0.45), least=4) == [40, 45]
    assert steps(share=(0.95, 1.0), least=2) == [90, 95, 100] and steps(share=(0.95, 1.0), least=1) == [95, 100]
    assert steps(share=(0.95, 1.0), least=10) == list(range(50, 101, 5))
    assert steps(share=(0.95, 1.0), least=11) == [95, 100]  # the run has not twice as many
    assert sampled(Tables({}), share=(0.0, 1.0)) == [] and sampled(None) == []


def test_the_scale_of_a_step_that_the_record_lacks_is_unknown() -> None:
    record = View(5, step=np.array([1, 2, 4, 5, 8]), loss_scale=np.arange(5.0))
    np.testing.assert_array_equal(scale_of(record, np.array([1, 3, 4, 8, 9])), [0.0, NAN, 2.0, 4.0, NAN])  # type: ignore[arg-type]
    assert np.isnan(scale_of(View(5), np.array([1]))).all()  # type: ignore[arg-type]
