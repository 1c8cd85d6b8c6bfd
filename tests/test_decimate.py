from __future__ import annotations

import time
import warnings
from fractions import Fraction

import numpy as np
import pytest

from tensorboard_plugin_tbnum import decimate
from tensorboard_plugin_tbnum.coarse import Coarse


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def brute_force(steps, values, buckets, measured):
    """The same reduction, one bucket and one value at a time."""
    rows = []
    for start, stop in zip(buckets.edges[:-1], buckets.edges[1:], strict=True):
        part = [float(value) for value in values[start:stop]]
        finite = [value for value in part if np.isfinite(value)]
        known = measured[start:stop] if measured is not None else [False] * len(part)
        rows.append(
            (
                min(finite, default=np.nan),
                max(finite, default=np.nan),
                finite[-1] if finite else np.nan,
                sum(bool(np.isnan(value) and was) for value, was in zip(part, known, strict=True)),
                sum(bool(np.isinf(value)) for value in part),
                sum(not np.isnan(value) for value in part),
            )
        )
    return np.array(rows, dtype=np.float64).reshape(-1, 6)


def as_table(reduced: decimate.Reduced) -> np.ndarray:
    names = ("min", "max", "last", "nan", "inf", "known")
    return np.stack([getattr(reduced, name).astype(np.float64) for name in names], axis=1)


def random_column(random: np.random.Generator, size: int, kind: int) -> np.ndarray:
    values = random.normal(size=size)
    if kind == 1:  # a few non-finite ones
        values[random.random(size) < 0.05] = np.nan
        values[random.random(size) < 0.05] = np.inf
        values[random.random(size) < 0.02] = -np.inf
    elif kind == 2:  # mostly unknown, as norms at every 50th step
        values[random.random(size) < 0.98] = np.nan
    elif kind == 3:
        values[:] = random.choice([np.nan, np.inf, -np.inf])
    elif kind == 4:
        return random.random(size) < 0.1
    return values


@pytest.mark.parametrize("kind", range(5))
def test_every_bucket_is_exactly_what_brute_force_finds(kind):
    random = np.random.default_rng(kind)
    for _ in range(60):
        size = int(random.integers(1, 400))
        gaps = random.integers(1, random.choice([2, 3, 60]), size=size)
        steps = int(random.integers(0, 1000)) + np.cumsum(gaps)
        values = random_column(random, size, kind)
        measured = random.random(size) < 0.5
        lo, hi = sorted(int(at) for at in random.integers(0, size + 1, size=2))
        buckets = decimate.make_buckets(steps, lo, hi, int(random.integers(1, 50)))
        for mask in (None, measured):
            found = decimate.reduce(values, buckets, mask)
            np.testing.assert_array_equal(as_table(found), brute_force(steps, values, buckets, mask))


@pytest.mark.parametrize("kind", range(5))
def test_a_view_of_many_steps_is_reduced_from_small_buckets_as_from_the_column_itself(kind):
    random = np.random.default_rng(kind)
    for _ in range(20):
        size = int(random.integers(2000, 9000))
        steps = int(random.integers(0, 1000)) + np.cumsum(random.integers(1, random.choice([2, 90]), size=size))
        values = random_column(random, size, kind)
        columns = {"step": steps, "loss": values, "micro_batches": np.where(random.random(size) < 0.5, 1, np.nan)}
        measured, coarse = decimate.measured("loss", columns), Coarse()
        for _ in range(5):
            lo, hi = sorted(int(at) for at in random.integers(0, size + 1, size=2))
            buckets = decimate.make_buckets(steps, lo, hi, int(random.integers(1, 20)))
            found = coarse.reduce("loss", values, columns, buckets)
            expected = decimate.reduce(values, buckets, measured)
            np.testing.assert_array_equal(as_table(found), as_table(expected))
            np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("nonfinite", [False, True])
def test_means_are_of_the_finite_values_and_no_sum_overflows(nonfinite):
    values = np.random.default_rng(3).normal(size=1000)
    values[300:340] = 1.5e308
    if nonfinite:
        values[::7], values[1::7], values[600:640] = np.nan, np.inf, np.nan
    buckets = decimate.make_buckets(np.arange(1000), 0, 1000, 40)
    expected = []
    for start, stop in zip(buckets.edges[:-1], buckets.edges[1:], strict=True):
        finite = [Fraction(float(value)) for value in values[start:stop] if np.isfinite(value)]
        expected.append(float(sum(finite) / len(finite)) if finite else np.nan)
    np.testing.assert_allclose(decimate.reduce(values, buckets).mean, expected, rtol=1e-9)
    assert np.isnan(expected).any() == nonfinite


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("steps", [(0, 5, 2**63 - 1, 2**63 - 1), (-(2**63), -1, 7, 2**63 - 1), (-3, -2, -1, 0)])
def test_steps_at_the_ends_of_what_an_integer_holds_are_each_in_a_bucket(steps, limit):
    buckets = decimate.make_buckets(np.array(steps), 0, 4, limit)
    assert (buckets.edges[0], buckets.edges[-1]) == (0, 4) and (np.diff(buckets.edges) > 0).all()
    assert len(buckets) <= limit or (len(buckets) == 2 and steps[0] < 0)  # no bucket reaches over 0


def test_buckets_are_whole_aligned_complete_and_within_the_limit():
    random = np.random.default_rng(7)
    for _ in range(300):
        steps = np.cumsum(random.integers(1, random.choice([2, 5, 100]), size=int(random.integers(1, 500))))
        lo, hi = sorted(int(at) for at in random.integers(0, len(steps) + 1, size=2))
        limit = int(random.integers(1, 60))
        buckets = decimate.make_buckets(steps, lo, hi, limit)
        assert len(buckets) <= limit
        if hi - lo <= limit:
            assert buckets.size == 1 and list(buckets.first) == list(buckets.last) == list(range(lo, hi))
            continue
        assert buckets.size > 1 and buckets.size & (buckets.size - 1) == 0
        assert (np.diff(buckets.edges) > 0).all()
        assert buckets.edges[0] <= lo and buckets.edges[-1] >= hi
        keys = steps // buckets.size
        assert (keys[buckets.first] == keys[buckets.last]).all()  # one multiple in each bucket ...
        assert (np.diff(keys[buckets.first]) > 0).all()  # ... and one bucket for each multiple
        before, after = buckets.edges[0] - 1, buckets.edges[-1]
        assert before < 0 or keys[before] != keys[before + 1]
        assert after >= len(steps) or keys[after] != keys[after - 1]


def test_buckets_stand_still_while_a_run_grows():
    steps = np.arange(100_000)
    values = np.random.default_rng(0).normal(size=len(steps))
    short = decimate.make_buckets(steps[:90_000], 0, 90_000, 1000)
    long = decimate.make_buckets(steps, 0, 100_000, 1000)
    assert short.size == long.size
    same = len(short) - 1  # the last bucket may have been incomplete
    np.testing.assert_array_equal(short.edges[: same + 1], long.edges[: same + 1])
    np.testing.assert_array_equal(
        decimate.reduce(values[:90_000], short).max[:same], decimate.reduce(values, long).max[:same]
    )


def test_moving_a_view_never_changes_the_size_of_its_buckets():
    steps = np.arange(20_000)
    for width in (999, 1000, 1001, 2000, 4096, 5000):
        assert len({decimate.make_buckets(steps, at, at + width, 1000).size for at in range(0, 3000, 7)}) == 1


def test_one_spike_in_a_million_steps_is_kept():
    values = np.zeros(1_000_000)
    values[123_456] = 7.0
    buckets = decimate.make_buckets(np.arange(len(values)), 0, len(values), 500)
    found = decimate.reduce(values, buckets)
    assert found.max.max() == 7.0 and np.count_nonzero(found.max) == 1
    assert found.known.sum() == len(values)


def test_an_interval_is_inclusive_open_at_none_and_empty_outside():
    steps = np.array([3, 5, 8, 13])
    assert decimate.interval(steps, None, None) == (0, 4)
    assert decimate.interval(steps, 5, 8) == (1, 3)
    assert decimate.interval(steps, 4, 12) == (1, 3)
    assert decimate.interval(steps, 14, None) == (4, 4)
    assert decimate.interval(steps, None, 2) == (0, 0)
    assert decimate.interval(steps, 9, 4) == (3, 3)
    assert decimate.interval(np.array([], dtype=np.int64), 0, 10) == (0, 0)


def test_no_steps_make_no_buckets():
    none = np.array([], dtype=np.int64)
    buckets = decimate.make_buckets(none, 0, 0, 10)
    assert len(buckets) == 0
    assert as_table(decimate.reduce(np.array([]), buckets)).shape == (0, 6)


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="limit=0"):
        decimate.make_buckets(np.arange(3), 0, 3, 0)


def test_a_nan_is_measured_only_where_the_log_says_so():
    nan = np.nan
    columns = {
        "loss": np.array([nan, nan, np.inf, 1.0]),
        "micro_batches": np.array([1.0, nan, nan, 4.0]),
        "grad_norm": np.array([nan, nan, 1.0, np.inf]),
        "nonfinite_tensors": np.array([2.0, nan, 0.0, 1.0]),
        "gen/grad_norm": np.array([nan, nan, nan, nan]),
        "gen/nonfinite_tensors": np.array([nan, 1.0, nan, nan]),
        "max_norm": np.array([nan, 1.0, nan, np.inf]),
    }

    def found(name):
        return decimate.nonfinite(columns[name], 0, 4, decimate.measured(name, columns)).tolist()

    assert found("loss") == [0, 2]
    assert found("grad_norm") == [0, 3]
    assert found("gen/grad_norm") == [1]
    assert found("max_norm") == [3]
    assert decimate.measured("max_norm", columns) is None
    assert decimate.nonfinite(columns["loss"], 1, 3, decimate.measured("loss", columns)).tolist() == [2]


def test_rounding_to_float32_never_makes_a_finite_number_infinite():
    largest = np.finfo(np.float32).max
    values = np.array([1e300, -1e300, np.inf, -np.inf, np.nan, 0.1, 1e-60])
    np.testing.assert_array_equal(
        decimate.as_float32(values), np.array([largest, -largest, np.inf, -np.inf, np.nan, 0.1, 0.0], np.float32)
    )


def test_ten_columns_of_a_million_steps_take_well_under_a_tenth_of_a_second():
    random = np.random.default_rng(0)
    steps = np.arange(1_000_000)
    columns = [random.normal(size=len(steps)) for _ in range(10)]
    for column in columns[:3]:
        column[random.integers(0, len(steps), 500)] = np.inf
    columns[9][np.arange(len(steps)) % 50 != 0] = np.nan

    def once() -> float:
        started = time.thread_time()  # of this thread alone: other people's load is not our business
        buckets = decimate.make_buckets(steps, 0, len(steps), 2048)
        for column in columns:
            decimate.reduce(column, buckets, steps >= 0)
        return time.thread_time() - started

    assert min(once() for _ in range(5)) < 0.1
