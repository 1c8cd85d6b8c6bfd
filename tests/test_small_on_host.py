"""Small tensors on the host: numpy's way gives the bits that the general way gives, and is taken where it may be."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tbnum.measure import on_host
from tbnum.measure.checksums import checksums
from tbnum.measure.histogram import histograms_of, total_histograms_of
from tbnum.measure.on_host import Magnitudes, Small
from tbnum.measure.statistics import statistics_of

SCALES = (1.0, 65536.0, 2.0**-10, 3.0, 0.1, math.nan, math.inf)
ODD: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.t(),
    "expanded": lambda tensor: tensor.expand(3, *tensor.shape),
    "a part": lambda tensor: tensor[1:, ::2],
    "zeros": torch.zeros_like,
    "subnormal": lambda tensor: tensor * 1e-40,
    "beyond float16": lambda tensor: tensor * 1e6,
    "one element": lambda tensor: tensor[0, 0],
}


def some(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 20, (6, 2), generator=generator).tolist()
    powers = torch.randint(-30, 6, (6,), generator=generator).tolist()
    return [torch.randn(size, generator=generator) * 10.0**power for size, power in zip(sizes, powers, strict=True)]


def in_general(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_host, "_MOST", -1)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("odd", ODD)
def test_statistics_are_those_of_the_general_way(monkeypatch: pytest.MonkeyPatch, odd: str, scale: float) -> None:
    tensors = [*some(0), *map(ODD[odd], some(1))]
    (found,) = statistics_of(tensors, scale, histograms=True)
    in_general(monkeypatch)
    (expected,) = statistics_of(tensors, scale, histograms=True)
    assert [*found.index] == [*expected.index] and [*found.elements] == [*expected.elements]
    assert found.values.dtype == expected.values.dtype
    torch.testing.assert_close(found.values, expected.values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.histogram, expected.histogram)
    assert found.histograms is not None and expected.histograms is not None
    assert torch.equal(found.histograms.counts, expected.histograms.counts)


@pytest.mark.parametrize("odd", ODD)
def test_histograms_are_those_of_the_general_way(monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    tensors = [*some(2), *map(ODD[odd], some(3))]
    assert Magnitudes.of(tensors) is not None
    (each,), whole = histograms_of(tensors), total_histograms_of(tensors)
    in_general(monkeypatch)
    (general,), general_whole = histograms_of(tensors), total_histograms_of(tensors)
    assert torch.equal(each.counts, general.counts) and [*each.index] == [*general.index]
    assert whole.keys() == general_whole.keys()
    assert torch.equal(whole[torch.device("cpu")], general_whole[torch.device("cpu")])


@pytest.mark.parametrize("odd", ODD)
def test_checksums_are_those_of_the_general_way(monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    tensors = [None, *some(4), None, *map(ODD[odd], some(5)), torch.randn(200, 100)]
    found = [checksums(tensors[:-1]), checksums(tensors)]  # the last is none of the small ones of checksums
    in_general(monkeypatch)
    assert torch.equal(found[0], checksums(tensors[:-1])) and torch.equal(found[1], checksums(tensors))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_statistics_of_what_is_not_finite_are_counted_in_the_general_way(bad: float) -> None:
    tensors = some(6)
    tensors[2][0, 0] = bad
    assert Magnitudes.of(tensors) is None
    (found,) = statistics_of(tensors)
    counted = found.values[:, 1:3].sum(0)  # NaN and inf
    assert counted.tolist() == ([1.0, 0.0] if math.isnan(bad) else [0.0, 1.0])


@pytest.mark.parametrize(
    "other",
    [
        torch.randn(3, dtype=torch.float64),
        torch.randn(3, dtype=torch.bfloat16),
        torch.randn(3, dtype=torch.complex64),
        torch.eye(3).to_sparse(),
        torch.empty(0),
        torch.randn(3, requires_grad=True),
        torch.nn.Parameter(torch.randn(3), requires_grad=False),
        torch.randn(3, dtype=torch.complex64).conj().imag,  # negated lazily
        torch.empty(3, device="meta"),
        torch.zeros(1).expand(on_host._MOST),
    ],
    ids=[
        "float64",
        "bfloat16",
        "complex",
        "sparse",
        "empty",
        "with a graph",
        "a parameter",
        "negated",
        "meta",
        "large",
    ],
)
def test_of_others_it_says_that_it_is_none_of_its_own(other: Tensor) -> None:
    assert Small.of(some(7)) is not None
    assert Small.of([*some(7), other]) is None
    assert Small.of([]) is None


def test_it_copies_and_writes_to_nothing() -> None:
    tensors = some(8)
    before = [tensor.clone() for tensor in tensors]
    statistics_of(tensors, histograms=True), histograms_of(tensors), checksums(tensors)
    assert all(map(torch.equal, tensors, before)) and [tensor._version for tensor in tensors] == [0] * len(tensors)
    small = Small.of(tensors[:1])
    assert small is not None
    small.elements[:] = 0
    assert torch.equal(tensors[0], before[0])
