"""Every norm against float64, over the types, layouts and values that gradients come in."""

from __future__ import annotations

import math

import pytest
import torch

from tbnum.measure.norms import combine, norms_of


def float64_norm(tensor: torch.Tensor) -> float:
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    dense = torch.view_as_real(dense) if dense.is_complex() else dense
    return dense.double().square().sum().sqrt().item()


def by_place(tensors: list[torch.Tensor]) -> list[float]:
    found = [math.nan] * len(tensors)
    for each in norms_of(tensors):
        for at, norm in zip(each.index, each.norms.tolist(), strict=True):
            found[at] = norm
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_a_norm_equals_the_float64_norm_for_every_type(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    tensors = [
        torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
        for shape in [(3,), (64, 65), (), (2, 3, 4, 5)]
    ]
    assert by_place(tensors) == pytest.approx([float64_norm(each) for each in tensors], rel=2e-6)


def test_types_may_be_mixed_and_every_norm_keeps_its_place() -> None:
    torch.manual_seed(2)
    tensors = [
        torch.randn(n).to(dtype)
        for n, dtype in [
            (5, torch.float32),
            (7, torch.bfloat16),
            (11, torch.float64),
            (13, torch.float32),
            (17, torch.float16),
        ]
    ]
    assert by_place(tensors) == pytest.approx([float64_norm(each) for each in tensors], rel=2e-6)


@pytest.mark.parametrize("shape", [(1_000_001,), (1500, 2000), (3, 1_000_003)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_of_millions_is_summed_without_the_drift_of_one_long_sum(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    tensor = torch.randn(shape).to(dtype)
    assert by_place([torch.ones(2), tensor])[1] == pytest.approx(float64_norm(tensor), rel=5e-6)


def test_a_large_tensor_that_is_not_contiguous_has_the_same_norm() -> None:
    tensor = torch.randn(1500, 2000)
    assert by_place([tensor.t()])[0] == pytest.approx(float64_norm(tensor), rel=2e-6)


def test_entries_of_a_sparse_gradient_at_the_same_index_add_up() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1, 2]]), torch.ones(3, 1), (4, 1))
    assert by_place([sparse])[0] == pytest.approx(math.sqrt(5))


@pytest.mark.parametrize(
    ("values", "norm"),
    [
        ([3.0, math.nan], math.nan),
        ([3.0, math.inf], math.inf),
        ([-math.inf], math.inf),
        ([0.0, 0.0], 0.0),
        ([], 0.0),
        ([1e20] * 4, math.inf),
        ([1e-30, 1e-30], 0.0),
    ],
)
def test_special_values_give_what_float32_gives(values: list[float], norm: float) -> None:
    assert by_place([torch.tensor(values)])[0] == pytest.approx(norm, nan_ok=True, abs=1e-20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("size", [1e-25, 1e-40, 1e25])
def test_in_float64_no_square_vanishes_or_overflows(dtype: torch.dtype, size: float) -> None:
    tensor = (torch.randn(50, dtype=torch.float64) * size).to(dtype)
    (found,) = norms_of([tensor], torch.float64)
    assert found.norms.item() == pytest.approx(float64_norm(tensor), rel=1e-12)


def test_the_total_is_the_norm_of_all_and_nonfinite_counts_tensors() -> None:
    tensors = [torch.tensor([3.0]), torch.tensor([4.0]), torch.tensor([math.nan]), torch.tensor([math.inf])]
    (all_of_them,) = norms_of(tensors)
    assert all_of_them.nonfinite().item() == 2
    (finite,) = norms_of(tensors[:2])
    assert finite.total().item() == pytest.approx(5.0)


def test_nothing_to_measure_gives_no_norm() -> None:
    assert norms_of([]) == []
    assert math.isnan(combine([]))


def test_parts_combine_to_the_whole_and_a_nan_is_never_hidden_by_an_inf() -> None:
    assert combine([3.0, 4.0]) == pytest.approx(5.0)
    assert math.isnan(combine([math.inf, math.nan]))
    assert combine([math.inf, 1.0]) == math.inf
