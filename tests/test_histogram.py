"""Exponent histograms against frexp in float64, over the types, layouts and values that gradients come in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tbnum.formats import BINS, INF, NAN, ZERO, upper_edge
from tbnum.measure import chunks
from tbnum.measure.histogram import histogram_of, histograms_of, total_histograms_of
from tbnum.measure.statistics import statistics_of
from tests.tensors import DTYPES, as_float64, many_kinds, of_edges, sparse_kinds, spread


def by_frexp(tensor: Tensor) -> NDArray[np.int64]:
    values = np.abs(as_float64(tensor))
    finite = values[np.isfinite(values) & (values > 0)]
    mantissa, exponent = np.frexp(finite)
    bins = np.clip(np.where(mantissa == 0.5, exponent - 1, exponent) + 127, 1, 255)
    counts = np.bincount(bins, minlength=BINS)
    counts[ZERO], counts[INF], counts[NAN] = (values == 0).sum(), np.isinf(values).sum(), np.isnan(values).sum()
    return counts


def by_place(tensors: list[Tensor]) -> list[NDArray[np.int64]]:
    found: dict[int, NDArray[np.int64]] = {}
    for each in histograms_of(tensors):
        found.update(zip(each.index, each.counts.numpy(), strict=True))
    return [found[place] for place in range(len(tensors))]


@pytest.fixture(params=["usual pieces", "small pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "small pieces":  # so that small tensors are cut up, and few share a piece
        monkeypatch.setattr(chunks, "_PIECE_CPU", 64)
        monkeypatch.setattr(chunks, "_MOST_ROWS", 3)
    yield


@pytest.mark.usefixtures("pieces")
def test_every_histogram_equals_the_one_counted_in_float64() -> None:
    tensors = many_kinds()
    for tensor, counts in zip(tensors, by_place(tensors), strict=True):
        np.testing.assert_array_equal(counts, by_frexp(tensor), err_msg=repr(tensor))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_tensor_alone_has_the_same_histogram(dtype: torch.dtype) -> None:
    for tensor in (spread(5000, dtype), of_edges(dtype), spread(300_001, dtype)):
        np.testing.assert_array_equal(histogram_of(tensor).numpy(), by_frexp(tensor))


def test_counts_add_up_to_the_elements() -> None:
    for tensor, counts in zip(many_kinds(), by_place(many_kinds()), strict=True):
        assert counts.sum() == as_float64(tensor).size


@pytest.mark.usefixtures("pieces")
def test_the_histogram_of_all_is_the_sum_of_those_of_each() -> None:
    tensors = many_kinds()
    (total,) = total_histograms_of(tensors).values()
    np.testing.assert_array_equal(total.numpy(), np.sum(by_place(tensors), axis=0))
    assert total_histograms_of([]) == {}


def test_zero_inf_and_nan_are_counted_apart_from_their_neighbours() -> None:
    smallest, largest = 2.0**-149, torch.finfo(torch.float32).max
    few_bits = torch.tensor([0x7F800001, -0x7FFFFF], dtype=torch.int32).view(torch.float32)  # NaN with one bit set
    counts = histogram_of(torch.cat([few_bits, torch.tensor([0.0, -0.0, smallest, largest, math.inf, -math.inf])]))
    assert counts.nonzero().reshape(-1).tolist() == [ZERO, 1, 255, INF, NAN]
    assert counts[[ZERO, 1, 255, INF, NAN]].tolist() == [2, 1, 1, 2, 2]


def test_a_power_of_two_is_the_upper_edge_of_its_bin() -> None:
    for exponent in (-126, -25, 0, 15, 127):
        (bin,) = histogram_of(torch.tensor([2.0**exponent])).nonzero().reshape(-1).tolist()
        assert upper_edge(bin) == 2.0**exponent


def test_a_float64_beyond_float32_is_neither_inf_nor_zero() -> None:
    counts = histogram_of(torch.tensor([1e300, -1e39, 1e-300, 5e-324], dtype=torch.float64))
    assert counts[255] == 2 and counts[1] == 2 and counts.sum() == 4


def test_a_sparse_tensor_has_the_histogram_of_its_dense_copy() -> None:
    for tensor in sparse_kinds():
        np.testing.assert_array_equal(histogram_of(tensor).numpy(), histogram_of(tensor.to_dense()).numpy())


def test_counting_by_scatter_equals_counting_on_the_cpu() -> None:
    keys = torch.randint(0, BINS, (5000,), dtype=torch.int32)
    rows = torch.randint(0, 7, (5000,))
    for row_of, count in ((None, 1), (rows, 7)):
        by_scatter = chunks._count_by_scatter(keys, row_of, count, BINS)
        assert torch.equal(by_scatter, chunks.count_keys(keys, row_of, count, BINS))


def test_no_tensors_have_no_histograms() -> None:
    assert histograms_of([]) == []


class Ops(TorchDispatchMode):
    """What is asked of the device: calls that are not views, and the largest result in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.calls += 1
            if isinstance(result, Tensor):
                self.largest = max(self.largest, result.numel() * result.element_size())
        return result


def measure(tensors: list[Tensor]) -> None:
    histograms_of(tensors)
    total_histograms_of(tensors)
    statistics_of(tensors, 65536.0)


def test_ten_thousand_small_tensors_share_their_kernels() -> None:
    with Ops() as ops:
        measure([torch.ones(3, 2)] * 10_000)
    assert ops.calls < 1000


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_memory_is_that_of_a_few_pieces_whatever_the_size_and_strides(dtype: torch.dtype) -> None:
    tensors = [torch.ones(1500, 2000, dtype=dtype).t(), torch.ones(2000, 3000, dtype=dtype)[:, ::2]]
    with Ops() as ops:
        measure([*tensors, *[torch.ones(30_000, dtype=dtype)] * 50])
    assert ops.largest <= chunks._PIECE_CPU * 8


def test_nothing_is_read_back_from_a_device() -> None:
    # A meta tensor has no elements: any look at one from the host raises.
    tensors = [torch.empty(shape, device="meta") for shape in [(3,), (), (0,), (3000, 4000), (5, 6)]]
    tensors.append(torch.empty(100, dtype=torch.float64, device="meta"))
    (histograms,) = histograms_of(tensors)
    assert histograms.counts.shape == (6, BINS)
    assert [each.shape for each in total_histograms_of(tensors).values()] == [(BINS,)]
    for scale in (65536.0, torch.empty((), device="meta")):
        (statistics,) = statistics_of(tensors, scale)
        assert statistics.values.device.type == "meta"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_counts_and_never_waits_for_the_host() -> None:
    tensors = [each for each in many_kinds() if each.layout is torch.strided] + [spread(9_000_000, torch.float32)]
    there = [each.detach().cuda() for each in tensors]
    scale = torch.tensor(65536.0, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        (histograms,), (statistics,) = histograms_of(there), statistics_of(there, scale)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    (expected_histograms,), (expected_statistics,) = histograms_of(tensors), statistics_of(tensors, 65536.0)
    for found, counts in zip(histograms.index, histograms.counts.cpu(), strict=True):
        assert torch.equal(counts, expected_histograms.counts[expected_histograms.index.index(found)])
    for found, values in zip(statistics.index, statistics.values.cpu(), strict=True):
        expected = expected_statistics.values[expected_statistics.index.index(found)]
        torch.testing.assert_close(values, expected, equal_nan=True)


def test_tensors_are_left_as_they_were() -> None:
    tensors = many_kinds()
    before = [each.detach().clone() for each in tensors]
    measure(tensors)
    for tensor, copy in zip(tensors, before, strict=True):
        assert as_float64(tensor).tobytes() == as_float64(copy).tobytes()


def test_deterministic_algorithms_and_another_default_device_do_not_matter() -> None:
    tensors = many_kinds()
    expected = results(tensors)
    torch.use_deterministic_algorithms(True)
    torch.set_default_device("meta")
    try:
        found = results(tensors)
    finally:
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.nan_to_num(-1.0), other.nan_to_num(-1.0)) and one.device == other.device


def results(tensors: list[Tensor]) -> list[Tensor]:
    """All that is measured of them."""
    of_each = [found.counts for found in histograms_of(tensors)]
    return [*of_each, *total_histograms_of(tensors).values(), *(found.values for found in statistics_of(tensors, 2.0))]


def test_subnormals_are_reported_from_zero_where_the_processor_flushes_them() -> None:
    tensor = torch.tensor([1e-45, 0.0, 1e-40])
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        counts = histogram_of(tensor)
        (statistics,) = statistics_of([tensor])
    finally:
        torch.set_flush_denormal(False)
    assert counts[:2].tolist() == [1, 2]
    assert statistics.values[0, 3] == 1
