"""Checksums of tensors: the same for the same bits, others for any others, wherever and however they lie."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tbnum.measure.checksums import checksums
from tests import warm

SIZES = (1, 2, 3, 7, 8, 9, 1000, 65_536, 131_072 + 5, 300_001)
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.complex64)


def of(tensor: Tensor) -> int:
    return int(checksums([tensor])[0])


def made(size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (numbers * 50).to(dtype)


def flip(tensor: Tensor, at: int, bit: int = 0) -> Tensor:
    """One bit of one element changed."""
    bits = tensor.clone().view(torch.uint8)
    bits[at * tensor.element_size() + bit // 8] ^= 1 << bit % 8
    return bits.view(tensor.dtype)


def swap(tensor: Tensor, one: int, other: int) -> Tensor:
    swapped = tensor.clone()
    swapped[[one, other]] = swapped[[other, one]]
    return swapped


def negate(tensor: Tensor, at: int) -> Tensor:
    negated = tensor.clone()
    negated[at] = -negated[at]
    return negated


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_every_single_changed_bit_is_seen(size: int, dtype: torch.dtype) -> None:
    tensor = made(size, dtype)
    base, bits = of(tensor), 8 * tensor.element_size()
    assert base == of(tensor.clone()) != 0
    places = range(size) if size < 10 else (0, 1, size // 2, size - 2, size - 1)
    changed = {of(flip(tensor, at, bit)) for at in places for bit in range(bits)}
    assert len(changed) == len(places) * bits and base not in changed


@pytest.mark.parametrize("values", ["random", "few", "powers", "equal_halves"])
def test_swaps_signs_and_pairs_that_cancel_in_plain_sums_are_seen(values: str) -> None:
    make: dict[str, Callable[[], Tensor]] = {
        "random": lambda: made(200_000),
        "few": lambda: made(200_000).sign() + 2,
        "powers": lambda: 2.0 ** torch.arange(200_000).remainder(16),
        "equal_halves": lambda: made(100_000).repeat(2),
    }
    tensor = make[values]()
    base = of(tensor)
    places = torch.randint(0, len(tensor), (300, 2), generator=torch.Generator().manual_seed(1)).tolist()
    for one, other in places:
        if tensor[one] != tensor[other]:
            assert of(swap(tensor, one, other)) != base
        assert of(negate(tensor, one)) != base
        if one != other:
            assert of(flip(flip(tensor, one, 3), other, 3)) != base
    assert of(tensor.flip(0)) != base and of(tensor.roll(1)) != base and of(-tensor) != base
    assert of(~tensor.view(torch.int64)) != of(tensor.view(torch.int64)), "all bits changed"


def test_sizes_of_zeros_are_distinguished_and_none_is_0() -> None:
    found = checksums([torch.zeros(size) for size in range(1, 200)])
    assert len(set(found.tolist())) == 199 and 0 not in found.tolist()
    assert of(torch.zeros(4)) != of(-torch.zeros(4))


def test_a_tensor_that_is_not_there_is_0_and_the_others_stay_as_they_are() -> None:
    one, other = made(10), made(11)
    sparse = torch.eye(3).to_sparse()
    assert checksums([one, None, sparse, other]).tolist() == [of(one), 0, 0, of(other)]
    assert checksums([]).tolist() == [] and checksums([None]).dtype == torch.int64


def test_how_a_tensor_lies_in_memory_does_not_matter() -> None:
    tensor = made(1001)
    base = of(tensor)
    room = torch.zeros(1009)
    for offset in range(1, 8):
        room[offset : offset + 1001] = tensor
        assert of(room[offset : offset + 1001]) == base
    matrix = made(1000).reshape(25, 40)
    assert of(matrix.t().contiguous().t()) == of(matrix)
    assert of(torch.nn.Parameter(matrix)) == of(matrix)
    assert of(made(64, torch.complex64).conj().conj()) == of(made(64, torch.complex64))


def test_nothing_is_written_and_no_graph_is_made() -> None:
    tensor = made(100).requires_grad_()
    before = tensor.detach().clone()
    found = checksums([tensor])
    assert not found.requires_grad and torch.equal(tensor, before) and tensor._version == 0


def test_other_processes_have_the_same() -> None:
    code = (
        "import torch; from tbnum.measure.checksums import checksums;"
        "print(int(checksums([torch.arange(100_001, dtype=torch.float32)])[0]))"
    )
    done = subprocess.run([*warm.python(), "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == of(torch.arange(100_001, dtype=torch.float32))


def test_each_of_many_tensors_has_the_checksum_that_it_has_alone() -> None:
    sizes = (3, 0, 40_000, 7, 1, 16_384, 16_385, 8)
    tensors = [made(size, dtype, seed) for seed, size in enumerate(sizes) for dtype in TYPES]
    assert checksums(tensors).tolist() == [of(tensor) for tensor in tensors]
    assert checksums(tensors[::-1]).tolist() == checksums(tensors).tolist()[::-1]
