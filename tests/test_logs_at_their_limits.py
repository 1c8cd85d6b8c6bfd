"""What logs say and hold just inside and just outside of each limit: types of columns, changes of a scale, the past."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import pytest

from tbnum.explain import resume
from tbnum.explain.ahead import look_ahead
from tbnum.explain.began import began, forward_order, module_of
from tbnum.explain.facts import Known
from tbnum.explain.outliers import is_of_the_tail, loss_is_usual, loss_is_within, loss_stands_out
from tbnum.explain.past import LivePast, RecordedPast
from tbnum.explain.predict import next_overflow
from tbnum.explain.resume import OptimizerNow, lost_state, starting_step
from tbnum.formats import BINS
from tbnum.log import tensors as tensors_of
from tbnum.log.inferred import Habits, Scaler, infer
from tbnum.log.numbering import Numbering
from tbnum.log.scale_changes import Change, Scales, scale_changes
from tbnum.log.schema import Event
from tbnum.log.tensors import HistogramTable, TensorTable, column_at, encode_tables, head_of, histogram_at, stored_at
from tests.test_explain import FakeRun

INF, NAN = math.inf, math.nan


# -- values of tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("largest", "stored"),
    [
        (0, "<u1"),
        (255, "<u1"),
        (256, "<u2"),
        (65535, "<u2"),
        (65536, "<u4"),
        (2**32 - 1, "<u4"),
        (2**32, "<u8"),
        (2**53, "<u8"),
        (2**54, "<f4"),
    ],
)
def test_whole_numbers_take_as_many_bytes_as_the_largest_needs(largest: int, stored: str) -> None:
    for values in (np.array([0.0, largest]), np.array([0, largest])):
        code, narrow = tensors_of._narrowed([values], [False])[0]
        if values.dtype.kind == "i" and largest > 2**53:
            assert narrow.dtype == "<u8"
            continue
        assert narrow.dtype == np.dtype(stored) == np.dtype(tensors_of._TYPES[code]) and narrow.tolist() == [0, largest]
    for values in (np.array([-1.0, min(largest, 2**24)]), np.array([-1, min(largest, 2**24)])):
        assert tensors_of._narrowed([values], [False])[0][1].tolist() == values.tolist()
        assert tensors_of._narrowed([values], [False])[0][1].dtype.kind == "f"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (0.1, "<f4"),
        (-0.0, "<f4"),
        (2.0**-126, "<f4"),
        (2.0**-127, "<f4"),  # a number that float32 has
        (2.0**-126 * 0.9, "<f8"),  # and one that it rounds
        (1e39, "<f8"),
        (-1e39, "<f8"),
        (NAN, "<f4"),
        (INF, "<f4"),
    ],
)
def test_numbers_stay_float64_where_float32_would_lose_more_than_digits(value: float, stored: str) -> None:
    code, narrow = tensors_of._narrowed([np.array([0.5, value])], [False])[0]
    assert narrow.dtype == np.dtype(stored) == np.dtype(tensors_of._TYPES[code])
    assert narrow.tolist() == pytest.approx([0.5, value], rel=2**-24, nan_ok=True)


def test_shares_keep_two_bytes_and_only_zero_and_one_become_zero_and_one() -> None:
    values = np.array([0.0, 1e-45, 1e-41, 0.25, 1 / 3, 0.998, 0.9999, 1.0, NAN])
    code, narrow = tensors_of._narrowed([values], [True])[0]
    assert code == len(tensors_of._TYPES) and narrow.dtype == "<u2"
    back = tensors_of.unpacked(code, [narrow.view(np.uint8).reshape(-1, 2).T.tobytes()], len(values))[0]
    assert back[[0, 3, 7]].tolist() == [0.0, 0.25, 1.0] and math.isnan(back[8])
    assert all(0 < share < 1 for share in back[[1, 2, 4, 5, 6]].tolist())
    assert back[[4, 5]].tolist() == pytest.approx([1 / 3, 0.998], rel=0.004)
    for beyond in (-0.1, 1.1):  # no share
        assert tensors_of._narrowed([np.array([0.5, beyond])], [True])[0][0] != code
    assert [tensors_of._is_share(name) for name in ("underflow/float16", "overflow/e4m3", "zero", "flow/under")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_table_comes_back_as_it_was_whatever_is_in_it() -> None:
    random = np.random.default_rng(0)
    for rows in (0, 1, 2, 7, 300):
        names = tuple(f"n{at}" for at in range(rows))
        columns = {
            "same": np.full(rows, 0.1, np.float32),
            "noise": random.random(rows).astype(np.float32),
            "counts": random.integers(0, 70_000, rows).astype(float),
            "few": random.integers(0, 2, rows).astype(float),
            "negative": -random.integers(1, 9, rows),
            "flags": random.random(rows) < 0.5,
            "unknown": np.full(rows, NAN),
        }
        ((names_text, columns_text, payload),) = encode_tables(TensorTable(-7, names, columns, "a", "flight"))
        head = head_of(payload)
        assert (head.step, head.part, head.rows) == (-7, 0, rows) and tensors_of.parse_names(names_text) == names
        assert tensors_of.parse_columns(columns_text) == (tuple(columns), "a")
        for at, (name, values) in enumerate(columns.items()):
            np.testing.assert_array_equal(column_at(payload, len(columns), at), values.astype(float), err_msg=name)
        with pytest.raises(ValueError):
            column_at(payload, len(columns), len(columns))
        with pytest.raises(ValueError, match="no head of a table"):
            head_of(payload[:3])
        if rows:
            with pytest.raises(ValueError):
                column_at(payload[:-1], len(columns), len(columns) - 1)


def test_what_is_all_the_same_is_stored_once_and_what_compresses_is_compressed() -> None:
    same = stored_at(one_column(np.full(100, 0.3, np.float32)), 1, [0], 100)[0]
    assert (same[0] & 0x40, len(same[1])) == (0x40, 4)
    assert len(one_column(np.arange(1000.0))) < 1000 < len(one_column(np.random.default_rng(0).random(1000)))
    with pytest.raises(ValueError, match="values of an unknown type, 7"):
        tensors_of._inflated(7, b"", 0)
    with pytest.raises(ValueError, match="3 bytes for 2 values of 2 bytes"):
        tensors_of._inflated(1, b"abc", 2)
    with pytest.raises(ValueError, match="2 bytes for 1 values of 1 bytes"):  # inflated no further than it needs to be
        tensors_of._inflated(0x80, zlib.compress(b"abcdef"), 1)


def one_column(values: np.ndarray) -> bytes:
    names = tuple(map(str, range(len(values))))
    return encode_tables(TensorTable(0, names, {"grad_norm": values}))[0][2]


def test_a_histogram_comes_back_with_its_empty_bins() -> None:
    counts = np.zeros((2, BINS), np.int64)
    counts[0, [0, 5, 257]] = [3, 2**40, 1]
    counts[1, [5, 256]] = [7, 9]
    table = HistogramTable(4, ("a", "b"), "gradient", counts, np.array([0.5, NAN]), np.array([1.5, 2.5]))
    ((_, _, payload),) = encode_tables(table)
    back = histogram_at(payload, ("a", "b"))
    assert back.counts.tolist() == counts.tolist() and back.step == 4 and back.source == "gradient"
    assert (back.zero.tolist(), back.inf.tolist(), back.nan.tolist()) == ([3, 0], [0, 9], [1, 0])
    assert back.low.tolist() == pytest.approx([0.5, NAN], nan_ok=True) and back.high.tolist() == [1.5, 2.5]
    row = back.row("b")
    assert (row.names, row.counts.tolist(), row.high.tolist()) == (("b",), counts[1:].tolist(), [2.5])
    with pytest.raises(KeyError, match="'c' at step 4"):
        back.row("c")
    with pytest.raises(ValueError, match="2 rows for 1 names"):
        histogram_at(payload, ("a",))
    with pytest.raises(ValueError, match="is none of"):
        encode_tables(TensorTable(0, (), {}, None, "whim"))
    with pytest.raises(ValueError, match=r"the shape \(2,\), and there are 1 names"):
        encode_tables(TensorTable(0, ("a",), {"grad_norm": np.ones(2)}))


# -- a logged loss scale -----------------------------------------------------------------------------------------------


def changes(
    *scales: float, steps: Sequence[int] | None = None, after: bool = True, backoff: float | None = 0.5, bad: Any = ()
) -> list[Change]:
    step = np.arange(len(scales)) if steps is None else np.array(steps)
    norms = np.zeros(len(scales), bool)
    norms[list(bad)] = True
    found = Scales.of(step, np.array(scales, float), None, norms)
    return scale_changes(found, Numbering(), after=after, backoff=backoff)


def short(found: Sequence[Change]) -> list[tuple[Any, ...]]:
    return [(each.row, each.kind, each.at_least, each.within, each.halvings) for each in found]


def test_counts_may_be_of_any_type() -> None:
    edges = np.array([0.5, 1.5])
    for kind in (np.float64, np.float32, np.int32, np.uint8):
        counts = np.zeros((2, BINS), kind)
        counts[1, 5] = 7
        ((_, _, payload),) = encode_tables(HistogramTable(4, ("a", "b"), "gradient", counts, edges, edges))
        assert histogram_at(payload, ("a", "b")).counts.tolist() == counts.tolist()


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_edges_that_are_all_unknown_are_stored_as_any_other_column(rows: int) -> None:
    unknown, names = np.full(rows, NAN), tuple("abc"[:rows])
    counts = np.ones((rows, BINS), np.int64)
    ((_, _, payload),) = encode_tables(HistogramTable(4, names, "gradient", counts, unknown, unknown))
    if rows:
        assert tensors_of._packed([unknown, unknown]) == 2 * [tensors_of._ALL_NAN]
    found = histogram_at(payload, names)
    assert np.isnan(found.low).all() and np.isnan(found.high).all() and found.low.shape == found.high.shape == (rows,)


@pytest.mark.parametrize("length", [64, 4096, 4097, 100_000])
def test_bytes_are_compressed_as_well_however_many_there_are(length: int) -> None:
    data = bytes(at % 7 for at in range(length))
    compressed = tensors_of._compressed(data)
    assert zlib.decompress(compressed) == data
    assert len(compressed) <= len(zlib.compress(data)) + 8


def test_what_a_change_of_the_scale_means_follows_from_its_ratio_and_the_steps_it_had() -> None:
    assert short(changes(4, 2)) == [(1, "skip", 1, 1, 1)] and short(changes(4, 8)) == [(1, "scale_growth", 1, 1, 0)]
    halves = (64, 32, 16, 8)
    assert short(changes(*halves, 2))[3:] == [(4, "scale_set", 0, 1, 0)]  # twice in one step
    assert short(changes(*halves, 5))[3:] == [(4, "scale_set", 0, 1, 0)]
    assert short(changes(*halves, 4.002))[3:] == [(4, "skip", 1, 1, 1)]  # nearly a half is one
    assert short(changes(*halves, 4.004))[3:] == [(4, "scale_set", 0, 1, 0)]
    assert short(changes(4, 1, 1)) == [(1, "skip", 1, 1, 1)]  # a scaler that divides by 4
    assert short(changes(4, 1, 1, steps=[0, 2, 3])) == [(1, "skip", 2, 2, 2)]
    assert changes(4, 4) == [] == changes(4)
    assert short(changes(4, 16, steps=[0, 2])) == [(1, "scale_growth", 2, 2, 0)]
    assert short(changes(16, 2, steps=[0, 5], backoff=None)) == [(1, "skip", 1, 5, 3)]  # how often is not known
    assert short(changes(16, 2, steps=[0, 5], backoff=0.5)) == [(1, "skip", 3, 5, 3)]
    assert short(changes(27, 9, 3, backoff=1 / 3)) == [(1, "skip", 1, 1, 1), (2, "skip", 1, 1, 1)]
    assert changes(1, 1, 1) == [] and short(changes(1, 2)) == [(1, "scale_growth", 1, 1, 0)]


def test_a_scale_of_zero_is_a_skip_at_each_step_that_used_it() -> None:
    assert short(changes(0, 0, 0)) == [(1, "skip", 1, 1, 0), (2, "skip", 1, 1, 0)]
    assert short(changes(2.0**-149, 0)) == [(1, "skip", 1, 1, 1)]
    assert short(changes(2.0**-147, 0, steps=[0, 3])) == [(1, "skip", 1, 3, 3)]
    assert short(changes(2.0**-147, 0, steps=[0, 2])) == [(1, "scale_set", 0, 2, 0)]
    assert short(changes(2.0**-147, 0, after=False)) == [(1, "skip", 1, 1, 0)]


def test_where_the_scale_stands_as_the_step_used_it_the_step_before_was_skipped() -> None:
    assert short(changes(4, 2, 2, after=False)) == [(0, "skip", 1, 1, 1)]
    assert short(changes(4, 4, 2, after=False, steps=[0, 1, 3])) == [(2, "skip", 1, 3, 1)]
    assert short(changes(4, 4, 2, after=False, steps=[0, 1, 3], bad=[1])) == [(1, "skip", 1, 1, 1)]
    assert short(changes(4, 1, after=False, steps=[0, 3], bad=[0])) == [(1, "skip", 1, 4, 2)]
    assert short(changes(4, 1, after=False, steps=[0, 3])) == [(1, "skip", 2, 4, 2)]


def test_scales_stand_after_the_update_unless_norms_speak_for_the_row_before() -> None:
    def after(values: Sequence[float], bad: Sequence[int]) -> bool:
        norms = np.zeros(len(values), bool)
        norms[list(bad)] = True
        return Scales.of(np.arange(len(values)), np.array(values, float), None, norms).stand_after()

    assert after([4, 2, 2], [1]) and not after([4, 4, 2], [1]) and after([4, 2], [])
    assert after([8, 4, 2, 2], [1]) and after([8, 4, 4, 2], [1, 2]) and after([4, 8, 8], [0])


def test_scales_that_nothing_was_divided_by_are_left_out() -> None:
    step, none = np.arange(4), np.zeros(4, bool)
    norm = np.array([1.0, 1.0, NAN, 1.0])
    assert Scales.of(step, np.array([0.0, 4, 4, 2]), norm, none).rows.tolist() == [1, 2, 3]
    assert Scales.of(step, np.array([4.0, 4, 0, 2]), norm, none).rows.tolist() == [0, 1, 2, 3]
    assert Scales.of(step, np.array([NAN, INF, -1, 2]), norm, none).rows.tolist() == [3]
    assert Scales.of(step, np.ones(4), norm, none).rows.tolist() == []
    assert Scales.of(step, None, norm, none).values.tolist() == []


def inferred(habits: Habits | None = None, **columns: Any) -> list[tuple[Any, ...]]:
    values = {name: np.array(column, float) for name, column in columns.items()}
    count = len(next(iter(values.values())))
    step = np.arange(count)
    logged = {name: ~np.isnan(column) | (name == "grad_norm") for name, column in values.items()}
    every = {"step": step, "wall_time": step + 0.5, **values}
    found = infer(every, Numbering(), habits or Habits(), logged=logged)
    return [(event.step, event.kind, event.data["how"]) for event in found.events]


def test_what_a_norm_that_is_not_finite_means_follows_from_the_scaler_and_what_came_after() -> None:
    unseen, none, logged = Habits(Scaler.UNSEEN), Habits(Scaler.NONE), Habits(Scaler.LOGGED)
    for norm in (NAN, INF):
        goes_on, lost, ends = [1, norm, 1, 1], [1, norm, norm, norm], [1, 1, 1, norm]
        assert inferred(unseen, grad_norm=goes_on) == [(1, "skip", "grad_norm")]
        kind = "norm_overflow" if norm == INF else "nonfinite_norm"
        assert inferred(none, grad_norm=goes_on) == inferred(logged, grad_norm=goes_on) == [(1, kind, "grad_norm")]
        for habits in (unseen, none):
            assert [kind for _, kind, _ in inferred(habits, grad_norm=lost)] == ["nonfinite_step"] * 3
            assert inferred(habits, grad_norm=ends) == [(3, "nonfinite_norm", "grad_norm")]
            finite_loss = inferred(habits, grad_norm=lost, loss=[1, 1, 1, 1])
            assert "nonfinite_step" not in [kind for _, kind, _ in finite_loss]
        assert inferred(logged, grad_norm=lost, loss_scale=[8, 8, 8, 8])[0] == (1, "skip", "grad_norm")
    filtered = Habits(Scaler.UNSEEN, loss_is_filtered=True)
    assert inferred(filtered, grad_norm=[1, NAN, NAN], loss=[1, 1, 1])[0][1] == "nonfinite_step"
    assert inferred(unseen, grad_norm=[1, NAN, NAN], loss=[1, 1, 1])[0][1] == "skip"
    window = Habits(Scaler.UNSEEN, window=3)
    bad = [1, NAN, NAN, NAN, NAN, 1, 1]
    assert inferred(window, grad_norm=bad) == [(1, "skip", "grad_norm"), (4, "skip", "grad_norm")]


def test_skips_that_a_log_counts_are_those_it_counts() -> None:
    assert inferred(skipped=[0, 1, 0, 1]) == [(1, "skip", "counter"), (3, "skip", "counter")]
    assert inferred(skipped=[0, 1, 1, 3]) == [(1, "skip", "counter"), (3, "skip", "counter")]  # a running total
    lacks = Habits(Scaler.LOGGED, skip_lacks_norm=True)
    step = np.arange(5)
    columns = {"step": step, "wall_time": step + 0.0, "loss_scale": np.full(5, 8.0), "grad_norm": np.ones(5)}
    for there, expected in (([1, 0, 1, 1, 0], [1]), ([1, 0, 0, 1, 1], [1, 2]), ([0, 0, 0, 1, 1], [])):
        logged = {"loss_scale": np.ones(5, bool), "grad_norm": np.array(there, bool)}
        found = infer(columns, Numbering(), lacks, logged=logged).events
        assert [event.step for event in found] == expected


def test_a_step_is_counted_from_the_first_one_and_a_unit_may_be_many_samples() -> None:
    assert (Numbering(1).count(1), Numbering(1).count(5)) == (0, 4)
    assert [Numbering(8, 8).count(at) for at in (8, 16, 19, 21)] == [0, 1, 1, 2]
    assert Numbering.of({}) == (0, 1) and Numbering.of({"numbering": {"first": 2, "unit": 3}}) == (2, 3)


# -- what came before, and after ---------------------------------------------------------------------------------------


def test_recent_losses_are_the_finite_ones_that_were_taken_among_fifty_steps() -> None:
    count = 700
    loss = np.arange(count) + 0.5
    loss[[600, 640]] = NAN, INF
    skipped = np.zeros(count, bool)
    skipped[620] = True
    past, live = RecordedPast({"step": np.arange(count), "loss": loss, "skipped": skipped}), LivePast()
    for step in range(count):
        live.step(step, float(loss[step]), bool(skipped[step]))
    expected = [value for at, value in enumerate(loss.tolist()) if 600 <= at < 650 and at not in (600, 620, 640)]
    assert past.recent_losses(650) == live.recent_losses(650) == expected
    assert past.recent_losses(0) == [] and past.recent_losses(3) == [0.5, 1.5, 2.5]
    for before, last in ((641, 639), (640, 639), (639, 638), (621, 620)):
        assert past.last_finite_loss(before) == last
    assert past.last_finite_loss(0) is None and live.last_finite_loss(699) == 698 and live.last_finite_loss(700) == 699
    assert past.value("loss", 7, None) == past.value("loss", 7, "a") == 7.5
    assert math.isnan(past.value("loss", 700, None)) and math.isnan(past.value("lr", 7, None))


def heights_by_definition(values: Sequence[float]) -> list[float]:
    finite = [value for value in values if math.isfinite(value)]
    finite = finite[len(finite) % 50 :]
    found = []
    for begin in range(0, len(finite), 50):
        block = finite[begin : begin + 50]
        found += [value / median(block) for value in block] if median(block) > 0 else []
    return found


def test_heights_are_of_512_steps_before_and_as_many_after_but_for_the_first_fifty() -> None:
    random = np.random.default_rng(0)
    loss = random.exponential(size=1600)
    loss[::37] = NAN
    loss[700:800] *= -1
    skipped = random.random(1600) < 0.1
    past = RecordedPast({"step": np.arange(1600), "loss": loss, "skipped": skipped})
    for step in (40, 51, 200, 562, 563, 900, 1590):
        for after, end in ((False, step), (True, step + 512)):
            rows = [at for at in range(max(50, step - 512), min(end, 1600)) if not skipped[at]]
            expected = heights_by_definition(loss[rows].tolist())
            assert past.heights("loss", step, None, after=after).tolist() == pytest.approx(expected)
    assert past.heights("grad_norm", 900, None, after=True).tolist() == []


def test_a_loss_stands_out_beyond_eight_deviations_and_a_tenth_and_is_usual_within_them() -> None:
    recent = [0.9, 1.1] * 10  # median 1, deviation 0.14826
    border = 1 + 8 * 0.14826
    assert loss_stands_out(border + 1e-6, recent) and not loss_stands_out(border - 1e-6, recent)
    assert loss_is_usual(border - 1e-6, recent, 8) and not loss_is_usual(border + 1e-6, recent, 8)
    assert loss_is_usual(1 + 3 * 0.14826 - 1e-6, recent, 3) and not loss_is_usual(1 + 3 * 0.14826 + 1e-6, recent, 3)
    same = [-4.0] * 10
    assert loss_stands_out(-3.59, same) and not loss_stands_out(-3.61, same)
    assert loss_is_usual(-3.61, same, 8) and not loss_is_usual(-3.59, same, 8)
    assert not loss_stands_out(99.0, same[1:]) and not loss_is_usual(-4.0, same[1:], 8)
    for value in (NAN, INF):
        assert not loss_stands_out(value, recent) and not loss_is_usual(value, recent, 8)
    assert loss_is_within(8.0, [1.0, -4.0]) and not loss_is_within(8.1, [1.0, -4.0]) and not loss_is_within(1.0, [])


def test_a_height_belongs_to_the_data_where_two_others_were_as_high_or_their_tail_lets_one_expect() -> None:
    def heights(*high: float, count: int = 100) -> np.ndarray:
        return np.array([*high, *[1.0] * (count - len(high))])

    assert is_of_the_tail(3.0, heights(3.0, 3.0)) and not is_of_the_tail(3.0, heights(3.0))
    assert not is_of_the_tail(3.0, heights(3.0, 3.0, count=99)) and not is_of_the_tail(1.0, heights(3.0, 3.0))
    assert not is_of_the_tail(INF, heights(INF, INF))
    tail = np.array([*[0.5] * 90, *(2 + 0.1 * np.arange(10))])
    logs = [math.log((2 + 0.1 * at) / 2) for at in range(1, 10)]
    border = 2 * (10 / 0.1) ** (sum(logs) / 9)  # 10 x (2 / height)^(1 / spread) = 0.1
    assert is_of_the_tail(border * 0.999, tail) and not is_of_the_tail(border * 1.001, tail)
    assert not is_of_the_tail(1.2, np.array([*[0.5] * 90, *np.linspace(0.9, 1.1, 10)]))


def test_what_came_after_a_skip_is_what_a_search_through_all_later_events_says() -> None:
    random = np.random.default_rng(1)
    for _ in range(60):
        scale, events, skips = 16.0, [], []
        for step in range(40):
            kind = random.random()
            if kind < 0.25:
                loss = float(random.choice([1.0, NAN]))
                data = {"loss": loss, "micro_batches": 1, "loss_scale": scale, "new_scale": scale / 2}
                events.append(Known.of(Event(step, 0.0, "skip", data=data)))
                events.append(
                    Known.of(Event(step, 0.0, "scale_backoff", data={"old_scale": scale, "new_scale": scale / 2}))
                )
                skips.append((step, scale, loss))
                scale /= 2
            elif kind < 0.5:
                events.append(
                    Known.of(Event(step, 0.0, "scale_growth", data={"old_scale": scale, "new_scale": scale * 2}))
                )
                scale *= 2
        changes = [(event.step, event.facts.new_scale) for event in events if event.kind != "skip"]
        later = look_ahead(events, 39)
        steps = [step for step, _, _ in skips]
        for event, after in zip(events, later, strict=True):
            if event.kind == "scale_growth":
                assert after is None
                continue
            assert after is not None
            used = event.facts.loss_scale if event.kind == "skip" else event.facts.old_scale
            back = next((at for at, new in changes if at > event.step and new >= used), None)
            assert after.recovered_after == (None if back is None else back - event.step)
            if event.kind == "scale_backoff":
                continue
            begin = end = event.step
            while begin - 1 in steps:
                begin -= 1
            while end + 1 in steps:
                end += 1
            row = [each for each in skips if begin <= each[0] <= end]
            nonfinite = next((at for at, each in enumerate(row) if not math.isnan(each[2])), len(row))
            assert (after.skips_in_row, after.last_skip, after.lowest_scale) == (len(row), end, row[-1][1] / 2)
            assert after.ongoing == (end == 39) and after.losses_nonfinite == nonfinite


# -- resuming ----------------------------------------------------------------------------------------------------------


def past_run(count: int = 10, sessions: Any = None, events: Sequence[Event] = (), **columns: Any) -> FakeRun:
    steps: dict[str, np.ndarray] = {"step": np.arange(count), "skipped": np.zeros(count, bool)}
    steps |= {name: np.asarray(values) for name, values in columns.items()}
    return FakeRun(steps, list(events), {"sessions": sessions} if sessions else {})


def now(updates: int | None = 5, has_state: bool = True, **more: Any) -> OptimizerNow:
    return OptimizerNow(
        **{"name": None, "stateless": False, "lr": (), **more, "updates": updates, "has_state": has_state}
    )


def test_a_session_goes_on_where_the_optimizer_has_made_as_many_updates() -> None:
    skipped = np.arange(10) == 3
    past = past_run(skipped=skipped)
    assert [starting_step(past, [now(made)]) for made in (0, 3, 4, 9, 10)] == [
        (0, "counted"),
        (3, "counted"),
        (5, "counted"),
        (10, "counted"),
        (10, "unknown"),
    ]
    assert starting_step(past, [now(None)]) == (10, "unknown")
    assert starting_step(past, [now(None), now(4)]) == (5, "counted")
    assert starting_step(past, [now(None, has_state=False)]) == (0, "fresh")
    assert starting_step(past_run(step=np.arange(1, 11)), [now(4)]) == (11, "unknown")  # the first steps are missing
    assert starting_step(past_run(0), [now(0)]) == (0, "counted")
    norms = np.array([1.0, NAN, *[1.0] * 8])
    several = past_run(**{"a/skipped": np.zeros(10, bool), "a/grad_norm": norms})
    assert starting_step(several, [now(1, name="a")]) == (1, "counted")
    assert starting_step(several, [now(2, name="a")]) == (3, "counted")


@pytest.mark.parametrize(
    ("first", "last", "here", "trained"),
    [
        (10.0, 10.5, 10.5, True),  # moved by 5 %
        (10.0, 10.49, 10.49, False),
        (10.0, 20.0, 20.49, True),  # within 5 % of the way
        (10.0, 20.0, 20.51, False),
        (10.0, 20.0, 10.0, False),
        (10.0, 20.0, 0.0, False),
        (20.0, 10.0, 10.4, True),
    ],
)
def test_parameters_are_trained_ones_where_their_norm_is_one_that_training_reached(
    first: float, last: float, here: float, trained: bool
) -> None:
    norms = np.full(10, NAN)
    norms[[0, 9]] = first, last
    fresh = now(None, has_state=False, tensor_norms=(here,))
    assert starting_step(past_run(param_norm=norms), [fresh]) == ((10, "weights") if trained else (0, "fresh"))
    assert starting_step(past_run(param_norm=norms), [fresh, now(None, has_state=False)]) == (0, "fresh")


def test_norms_of_the_first_half_are_no_sign_of_training() -> None:
    def trained(*norms: float, here: float) -> bool:
        fresh = now(None, has_state=False, tensor_norms=(here,))
        return starting_step(past_run(len(norms), param_norm=np.array(norms)), [fresh])[1] == "weights"

    assert trained(10, 12, 18, 20, here=18) and not trained(10, 14, 18, 20, here=14)
    assert trained(10, 15.2, 15.2, 20, here=15.2) and not trained(10, 14.9, 14.9, 20, here=14.9)  # beyond half the way
    assert not trained(10, here=10)


def test_what_a_checkpoint_lost_is_named_with_what_was_and_what_is() -> None:
    scales = np.full(10, 256.0)
    past = past_run(loss_scale=scales, sessions=[{"scaler": {"init_scale": 65536.0}}])
    assert lost_state(past, 5, [], 256.0) == [] == lost_state(past, 5, [], None)
    assert lost_state(past, 5, [], 65536.0) == [("scaler_state_lost", None, {"old_scale": 256.0, "new_scale": 65536.0})]
    assert lost_state(past, 5, [], 128.0)[0][0] == "scale_set"
    assert lost_state(past, 5, [], 256.0, 512.0) == [("scale_set", None, {"old_scale": 512.0, "new_scale": 256.0})]
    assert lost_state(past, 10, [], 128.0)[0][2]["old_scale"] == 256.0  # that of the last step
    changed = Event(9, 0.0, "scale_growth", data={"old_scale": 256.0, "new_scale": 512.0})
    grown = past_run(loss_scale=scales, events=[changed])
    assert lost_state(grown, 10, [], 512.0) == [] and lost_state(grown, 11, [], 512.0) == []
    assert lost_state(grown, 9, [], 512.0)[0][2]["old_scale"] == 256.0
    names = [kind for kind, _, _ in lost_state(past, 5, [now(0, has_state=False)], None)]
    assert names == ["optimizer_state_lost"] and lost_state(past, 5, [now(5)], None) == []
    assert lost_state(past, 5, [now(4)], None)[0][2] == {"expected_updates": 5, "updates": 4}
    assert lost_state(past, 5, [now(None, has_state=False, stateless=True)], None) == []
    assert lost_state(past, 0, [now(0, has_state=False)], None) == [] == lost_state(past, 11, [now(3)], None)


def test_a_schedule_began_again_where_the_rate_is_the_first_one_and_was_another() -> None:
    lr = np.array([1.0, 0.9, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8])
    past = past_run(**{"lr": lr, "lr/1": lr / 2})
    (lost,) = lost_state(past, 5, [now(None, lr=(1.0,))], None)
    assert lost == ("schedule_state_lost", None, {"group": 0, "old_lr": 0.8, "new_lr": 1.0})
    (lost,) = lost_state(past, 5, [now(None, lr=(0.8, 0.5))], None)
    assert lost[2] == {"group": 1, "old_lr": 0.4, "new_lr": 0.5}
    assert lost_state(past, 5, [now(None, lr=(0.8,))], None) == []  # as it was
    assert lost_state(past, 5, [now(None, lr=(0.3,))], None) == []  # set by hand
    assert (
        lost_state(past, 10, [now(None, lr=(1.0,))], None) != [] == lost_state(past, 11, [now(None, lr=(1.0,))], None)
    )
    near = past_run(lr=np.where(np.arange(10) == 0, 1.0, 0.951))
    assert lost_state(near, 5, [now(None, lr=(1.0,))], None) == []
    far = past_run(lr=np.where(np.arange(10) == 0, 1.0, 0.949))
    assert lost_state(far, 5, [now(None, lr=(1.0,))], None) != []


def test_two_numbers_are_close_by_a_share_of_the_larger() -> None:
    assert resume._close(1.0, 1.0 + 1e-6) and not resume._close(1.0, 1.0 + 3e-6) and resume._close(0.0, 0.0)
    assert resume._close(100.0, 95.0, within=0.05) and not resume._close(100.0, 94.9, within=0.05)
    assert resume._close(-1.0, -1.0) and not resume._close(-1.0, 1.0)


def test_tensors_are_near_what_training_made_of_them_where_three_quarters_are_four_times_nearer() -> None:
    first = np.array([1.0, 1.0, 1.0, 1.0, 1.0])
    late = np.array([[2.0, 2.0, 2.0, 2.0, 1.0099]])  # the last has not moved

    def near(*values: float) -> bool:
        return resume._is_near(first, late, np.array(values))

    assert near(2, 2, 2, 1, 9) and not near(2, 2, 1, 1, 9)
    assert near(1.81, 1.81, 1.81, 1, 1) and not near(1.79, 1.79, 1.79, 1, 1)
    assert not resume._is_near(first, np.array([[2.0, 1, 1, 1, 1]]), np.array([2.0, 1, 1, 1, 1]))  # one alone
    assert resume._is_near(first, np.array([[9.0] * 5, *late]), np.array([2.0, 2, 2, 2, 1]))


# -- the next overflow -------------------------------------------------------------------------------------------------


def ahead(tracker: float = 0.0, scale: float = 256.0, probed: float | None = 512.0, **meta: Any) -> Any:
    count = 10
    steps = {
        "step": np.arange(count),
        "skipped": np.zeros(count, bool),
        "loss_scale": np.full(count, scale),
        "growth_tracker": np.full(count, tracker),
    }
    scaler = {"growth_interval": 100, "growth_factor": 2.0, **meta}
    skip = Event(3, 0.0, "skip", cause="growth_probe", data={"loss_scale": probed})
    return next_overflow(FakeRun(steps, meta={"scaler": scaler}), [] if probed is None else [skip])


def test_the_next_overflow_comes_in_the_step_after_the_growth_to_what_overflowed() -> None:
    found = ahead()
    assert (found.step, found.scale, found.growths, found.probed) == (9 + 99 + 1, 512.0, 1, 512.0)
    assert "at the next growth the scale will be 512, and at 512 gradients overflowed before" in found.message
    assert ahead(tracker=98.0).step == 9 + 1 + 1 and ahead(tracker=10.0).step == 9 + 89 + 1
    further = ahead(probed=2048.0)
    assert (further.step, further.scale, further.growths) == (9 + 99 + 200 + 1, 2048.0, 3)
    assert "after 3 growths" in further.message
    assert ahead(probed=600.0).growths == 2 and ahead(probed=256.0).growths == 1
    assert ahead(probed=256.0 * 2**20).growths == 20 and ahead(probed=256.0 * 2**21) is None
    assert ahead(growth_factor=4.0, probed=4096.0).growths == 2
    assert ahead(probed=None) is None and ahead(growth_interval=0) is None and ahead(growth_factor=1.0) is None
    assert ahead(growth_interval=1).step == 9 + 0 + 1 and ahead(scale=0.0) is None and ahead(scale=INF) is None
    assert ahead(tracker=NAN) is None


# -- where an overflow began -------------------------------------------------------------------------------------------


def pattern(bad: str, names: Sequence[str]) -> tuple[Any, ...] | None:
    found = began(names, [mark == "x" for mark in bad])
    return None if found is None else (found.how, found.modules, found.producers, found.propagators)


LAYERS = ("a.weight", "a.bias", "b.weight", "b.bias", "c.weight", "c.bias")


def test_where_an_overflow_began_follows_from_which_gradients_are_not_finite() -> None:
    assert pattern("......", LAYERS) is None
    assert pattern("xxxx..", LAYERS) == ("spread", ("c", "b"), ("b.weight", "b.bias"), 2)
    assert pattern("xxx...", LAYERS) == ("spread", ("b",), ("b.weight",), 2)
    assert pattern("xxxxxx", LAYERS) == ("everything", ("c",), ("c.weight", "c.bias"), 4)
    assert pattern("x", ("a.weight",)) == ("everything", ("a",), ("a.weight",), 0)
    assert pattern("xx....", LAYERS) == ("spread", ("b", "a"), ("a.weight", "a.bias"), 0)
    assert pattern("x.....", LAYERS) == ("alone", ("a",), ("a.weight",), 0)
    assert pattern("..x...", LAYERS) == ("alone", ("b",), ("b.weight",), 0)
    assert pattern("..x.x.", LAYERS) == ("alone", ("b", "c"), ("b.weight", "c.weight"), 0)
    assert pattern("xxx.x.", LAYERS) == ("scattered", (), ("a.weight", "a.bias", "b.weight", "c.weight"), 0)
    assert pattern("xx.x..", LAYERS) == ("within", ("b",), ("b.bias",), 2)
    assert pattern("x..x..", LAYERS)[0] == "alone"  # type: ignore[index]
    blocks = tuple(f"net.{at}.{name}" for at in range(3) for name in ("fc1.weight", "fc2.weight"))
    assert pattern("xx.x..", blocks) == ("within", ("net.1",), ("net.1.fc2.weight",), 2)
    assert pattern("xxx.x.", blocks)[0] == "scattered"  # type: ignore[index]


def test_the_words_on_where_an_overflow_began_name_the_modules_on_both_sides() -> None:
    def text(bad: str) -> str:
        found = began(LAYERS, [mark == "x" for mark in bad])
        assert found is not None
        return found.text

    assert "Everything up to b is non-finite, nothing from c on" in text("xxxx..")
    assert text("xxx...").startswith("Everything before b is non-finite, nothing after it")
    assert text("xxxxxx").startswith("No gradient is finite") and text("xxx.x.") == ""
    assert text("..x...").startswith("It became non-finite by itself") and text("..x.x.").startswith("Each of them")
    assert "within b (b.bias)" in text("xx.x..")


def test_tensors_whose_groups_part_matrices_and_vectors_are_put_in_forward_order() -> None:
    names = ("emb.weight", "h.0.w", "h.1.w", "head.w", "emb.bias", "h.0.b", "h.1.b", "norm.b", "head.b")
    order = [names[at] for at in forward_order(names)]
    assert order == ["emb.weight", "emb.bias", "h.0.w", "h.0.b", "h.1.w", "h.1.b", "norm.b", "head.w", "head.b"]
    assert forward_order(("b", "a", "c")) == (0, 1, 2) and forward_order(()) == ()
    assert [module_of(name) for name in ("a.b.weight", "alone", "group0.param3", "x.group1.param2")] == [
        "a.b",
        "alone",
        "group0.param3",
        "x.group1.param2",
    ]


# -- what an inferred event holds --------------------------------------------------------------------------------------


def test_an_inferred_skip_has_the_loss_and_norm_of_its_row_where_it_is_that_step() -> None:
    def skip_of(steps: Sequence[int], scales: Sequence[float], norms: Sequence[float], **more: Any) -> dict[str, Any]:
        step = np.array(steps)
        columns = {"step": step, "wall_time": step + 0.5, "loss_scale": np.array(scales), "grad_norm": np.array(norms)}
        columns["loss"] = np.array(more.pop("loss", [2.0] * len(steps)))
        logged = {name: np.ones(len(steps), bool) for name in columns}
        habits = Habits(Scaler.LOGGED, **{"scale_after": True, "backoff": 0.5, **more})
        found = infer(columns, Numbering(), habits, logged=logged).events
        return next(dict(event.data) for event in found if event.kind == "skip")

    alone = skip_of([0, 1, 2], [8.0, 4.0, 4.0], [1.0, 3.0, 1.0])
    assert alone == {
        **{"inferred": True, "how": "loss_scale", "loss_scale": 8.0, "new_scale": 4.0},
        **{"loss": 2.0, "grad_norm": 3.0},
    }
    within = skip_of([0, 3, 6], [8.0, 4.0, 4.0], [1.0, 3.0, 1.0])  # perhaps of another step than the row's
    assert within == {"inferred": True, "how": "loss_scale", "within": 3, "loss_scale": 8.0, "new_scale": 4.0}
    every = skip_of([0, 3, 6], [8.0, 1.0, 1.0], [1.0, 3.0, 1.0])  # all of them
    assert every["at_least"] == 3 == every["within"] and (every["loss"], every["grad_norm"]) == (2.0, 3.0)
    halved = skip_of([0, 3, 6], [8.0, 1.0, 1.0], [1.0, 3.0, 1.0], backoff=None)
    assert (halved["halvings"], halved.get("at_least"), halved["loss"]) == (3, None, 2.0)
    norm = skip_of([0, 1, 2], [8.0, 8.0, 8.0], [1.0, INF, 1.0], window=3)  # a mean that one step spoiled
    assert (norm["how"], norm["within"], norm["grad_norm"]) == ("grad_norm", 3, INF) and "loss" not in norm
    assert norm["loss_scale"] == 8.0 and "new_scale" not in norm
    nan = skip_of([0, 1, 2], [8.0, 4.0, 4.0], [1.0, 3.0, 1.0], loss=[2.0, NAN, 2.0])
    assert math.isnan(nan["loss"]) and nan["loss_logged"] is True


def test_the_next_losses_are_the_finite_ones_that_were_taken_among_sixteen_steps_that_are_all_known() -> None:
    loss = np.arange(40.0)
    loss[12] = NAN
    skipped = np.zeros(40, bool)
    skipped[14] = True
    past = RecordedPast({"step": np.arange(100, 140), "loss": loss, "skipped": skipped})
    assert past.next_losses(109) == [10.0, 11.0, 13.0, *range(15, 26)]
    assert len(past.next_losses(123)) == 16 and past.next_losses(124) == []
