"""Checksums against their definition in whole numbers: logs of one version are compared with those of another."""

from __future__ import annotations

import pytest
import torch

from tbnum.measure.checksums import checksums

ALL = 2**64 - 1


def mixed(number: int) -> int:
    """splitmix64."""
    number = (number + 1) * 0x9E3779B97F4A7C15 & ALL
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & ALL
    number = (number ^ number >> 27) * 0x94D049BB133111EB & ALL
    return number ^ number >> 31


def by_definition(tensor: torch.Tensor) -> int:
    data = bytes(tensor.contiguous().view(torch.uint8).tolist()) if tensor.numel() else b""
    total = tensor.numel() * 0x1E3779B97F4A7C15
    whole = len(data) // 8 * 8
    is_small = len(data) <= 1 << 16
    padded = data + bytes(-len(data) % 8)
    words = [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded) if is_small else whole, 8)]
    for at, word in enumerate(words):
        block, place = divmod(at, 1 << 16)
        weight = mixed(place) | 1
        total += (word ^ word >> 29) * weight * (1 if is_small else mixed((1 << 16) + 1 + block) | 1)
    if not is_small and len(data) > whole:
        total += int.from_bytes(data[whole:], "little") * (mixed(1 << 16) | 1)
    total &= ALL
    return total - 2**64 if total >= 2**63 else total


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_the_checksum_is_that_of_the_definition_for_every_length_and_type(dtype: torch.dtype) -> None:
    width = torch.empty(0, dtype=dtype).element_size()
    sizes = [0, 1, 2, 3, 5, 8, 9, 17, 1000, (1 << 16) // width - 1, (1 << 16) // width, (1 << 16) // width + 1]
    sizes += [((1 << 19) + 8) // width + 1]  # more than a block of words, and a rest
    made = torch.Generator().manual_seed(0)
    tensors = [torch.randint(-128, 127, (size * width,), generator=made).to(torch.int8).view(dtype) for size in sizes]
    expected = [by_definition(tensor) for tensor in tensors]
    assert checksums(tensors).tolist() == expected
    assert [int(checksums([tensor])[0]) for tensor in tensors] == expected
    assert checksums([None, *tensors[:3], None]).tolist() == [0, *expected[:3], 0]
