"""Every statistic against float64 and torch's own casts, over the types, layouts and values that gradients come in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tbnum.formats import FORMATS
from tbnum.measure import chunks
from tbnum.measure.histogram import histograms_of
from tbnum.measure.statistics import STATISTICS, statistics_of
from tests.tensors import DTYPES, as_float64, cast, many_kinds, of_edges, sparse_kinds, spread


def by_casting(values: NDArray[np.float64], scale: float) -> dict[str, float]:
    finite = np.isfinite(values)
    largest = np.abs(values[finite]).max() if finite.any() else math.nan
    nan, inf, zero = np.isnan(values), np.isinf(values), values == 0
    found = {"absmax": largest, "nan": nan.sum(), "inf": inf.sum(), "zero": zero.sum()}
    for name in FORMATS:
        narrow = cast(values * scale, name)
        underflow, overflow = finite & ~zero & (narrow == 0), finite & ~np.isfinite(narrow)
        found[f"underflow/{name}"] = underflow.sum() / values.size if values.size else math.nan
        found[f"overflow/{name}"] = overflow.sum() / values.size if values.size else math.nan
    return found


def by_place(tensors: list[Tensor], scale: float | Tensor = 1.0) -> list[dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for each in statistics_of(tensors, scale):
        assert each.values.shape == (len(each.index), len(STATISTICS))
        for place, row in zip(each.index, each.values.tolist(), strict=True):
            found[place] = dict(zip(STATISTICS, row, strict=True))
    return [found[place] for place in range(len(tensors))]


def assert_equal(found: dict[str, float], expected: dict[str, float], what: object = "") -> None:
    for name in STATISTICS:
        assert found[name] == pytest.approx(expected[name], rel=1e-6, nan_ok=True), (name, what)


@pytest.mark.parametrize("size", ["usual pieces", "small pieces"])
@pytest.mark.parametrize("scale", [1.0, 65536.0, 2.0**-9])
def test_every_statistic_equals_the_one_by_float64_and_casting(
    size: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if size == "small pieces":  # so that small tensors are cut up, and few share a piece
        monkeypatch.setattr(chunks, "_PIECE_CPU", 64)
        monkeypatch.setattr(chunks, "_MOST_ROWS", 3)
    tensors = many_kinds()
    for tensor, found in zip(tensors, by_place(tensors, scale), strict=True):
        assert_equal(found, by_casting(as_float64(tensor), scale), tensor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_type_alone_and_large_has_the_same_statistics(dtype: torch.dtype) -> None:
    for tensor in (of_edges(dtype), spread(300_001, dtype, 5, -60, 30)):
        (found,) = by_place([tensor], 1024.0)
        assert_equal(found, by_casting(as_float64(tensor), 1024.0))


def test_at_any_other_scale_only_elements_next_to_a_threshold_may_count_otherwise() -> None:
    tensor = spread(100_000, torch.float32, 6, -60, 60)
    for scale in (1000.3, 3e-5, 0.75):
        assert_equal(by_place([tensor], scale)[0], by_casting(as_float64(tensor), scale), scale)


def test_the_scale_may_stay_on_its_device() -> None:
    tensors = [spread(100, torch.float32, 7, -40, 0), spread(100, torch.float64, 7, -40, 0)]
    for scale in (torch.tensor(65536.0), torch.tensor([65536.0]), torch.tensor(65536.0, dtype=torch.float64)):
        for found, expected in zip(by_place(tensors, scale), by_place(tensors, 65536.0), strict=True):
            assert found == expected


@pytest.mark.parametrize("scale", [math.nan, torch.tensor(math.nan), math.inf])
def test_an_unknown_scale_makes_the_shares_unknown_and_nothing_else(scale: float | Tensor) -> None:
    tensor = of_edges(torch.float32)
    (found,), expected = by_place([tensor], scale), by_casting(as_float64(tensor), 1.0)
    for name in STATISTICS:
        share = "/" in name
        assert math.isnan(found[name]) if share else found[name] == pytest.approx(expected[name])


def test_elements_of_1e20_are_finite_though_their_squares_are_not() -> None:
    (found,) = by_place([torch.full((1000,), 1e20)])
    assert found["absmax"] == pytest.approx(1e20) and found["inf"] == found["nan"] == 0
    assert found["overflow/float16"] == 1 and found["overflow/bfloat16"] == 0


def test_a_float64_keeps_its_largest_element_where_float32_has_none() -> None:
    tensors = [torch.tensor([1e300, math.inf], dtype=torch.float64), torch.tensor([1e38, math.nan])]
    (statistics,) = statistics_of(tensors)
    assert statistics.values.dtype is torch.float64
    assert sorted(statistics.values[:, 0].tolist()) == [np.float32(1e38), 1e300]


def test_a_sparse_tensor_has_the_row_of_its_dense_copy() -> None:
    tensors = sparse_kinds()
    dense = by_place([each.to_dense() for each in tensors], 8.0)
    for found, expected in zip(by_place(tensors, 8.0), dense, strict=True):
        assert_equal(found, expected)


def test_one_lost_element_among_many_is_not_rounded_away() -> None:
    tensor = torch.ones(20_000_000)
    tensor[123] = 1e-30
    (found,) = by_place([tensor])
    assert found["underflow/float16"] == pytest.approx(1 / 20_000_000)


def test_elements_are_reported_for_every_tensor() -> None:
    tensors = many_kinds()
    (statistics,) = statistics_of(tensors)
    assert sorted(statistics.index) == list(range(len(tensors)))
    assert list(statistics.elements) == [as_float64(tensors[place]).size for place in statistics.index]


def test_no_tensors_have_no_statistics() -> None:
    assert statistics_of([]) == []


@pytest.mark.parametrize("scale", [1.0, 1000.0, torch.tensor(2.0**10)])
def test_the_histograms_of_the_same_pass_are_those_of_a_pass_of_their_own(scale: float | Tensor) -> None:
    tensors = many_kinds()
    (statistics,) = statistics_of(tensors, scale, histograms=True)
    (expected,) = histograms_of(tensors)
    assert statistics.histograms is not None
    for place in range(len(tensors)):
        found = statistics.histograms.counts[statistics.histograms.index.index(place)]
        assert torch.equal(found, expected.counts[expected.index.index(place)]), tensors[place]
    assert torch.equal(statistics.histogram, expected.counts.sum(0))
    (without,) = statistics_of(tensors, scale)
    assert without.histograms is None and torch.equal(without.histogram, statistics.histogram)


def test_elements_at_a_threshold_that_cuts_a_bin_are_distinguished() -> None:
    # 65520 rounds to inf in float16 and 65519 does not; both lie between 2**15 and 2**16.
    (row,) = by_place([torch.tensor([65519.0, 65520.0, 1.0, 0.0])])
    assert (row["overflow/float16"], row["underflow/float16"]) == (0.25, 0.0)
    (row,) = by_place([torch.tensor([6.0, 7.0, 1.0, 0.0])], scale=10_000.0)
    assert row["overflow/float16"] == 0.25
