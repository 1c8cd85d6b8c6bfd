"""Checksums of tensors' bits, computed where the tensors are: (P,) int64, without a sync.

A tensor's bytes are taken as 64-bit words. Each word is folded, multiplied by an odd weight of its place, and the
products are summed modulo 2**64. Folding and weighing are one-to-one, so a tensor that differs in one word has another
checksum, always. Of several changed words, of swapped, shifted or negated elements, none was missed in the tests; by
chance one in 2**64 is. The number of elements is part of it, so a tensor of zeros has no checksum of 0, which means
that there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

__all__ = ["checksums"]

_BLOCK = 1 << 16  # words at once: the intermediate results stay in the cache
_FOLD = 29
_LOGICAL = (1 << (64 - _FOLD)) - 1  # torch shifts in the sign
_OF_COUNT = 0x1E3779B97F4A7C15
_WORD = 8  # bytes


def checksums(tensors: Sequence[Tensor | None]) -> Tensor:
    """(P,) int64 on the device of the first tensor; 0 where there is none, or one without a layout of plain elements.

    Of a DTensor this rank's part. Some 25 us of Python a tensor, and 2.5 ms a million float32 elements on one thread.
    """
    plain = [_plain(tensor) for tensor in tensors]
    device = next((tensor.device for tensor in plain if tensor is not None), torch.device("cpu"))
    found = [
        torch.zeros((), dtype=torch.int64, device=device)
        if tensor is None
        else _checksum(tensor).to(device, non_blocking=True)
        for tensor in plain
    ]
    return torch.stack(found) if found else torch.zeros(0, dtype=torch.int64, device=device)


def _plain(tensor: Tensor | None) -> Tensor | None:
    """What of it is on this device as plain elements."""
    if tensor is None:
        return None
    tensor = getattr(tensor, "_local_tensor", tensor).detach()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return None
    return tensor


@torch.no_grad()
def _checksum(tensor: Tensor) -> Tensor:
    """() int64."""
    count = tensor.numel()
    raw = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.resolve_neg()
    flat = raw.contiguous().reshape(-1)
    words, tail = _words(flat)
    weights = _weights(tensor.device)
    total = torch.full((), _signed(count * _OF_COUNT), dtype=torch.int64, device=tensor.device)
    for number, block in enumerate(words.split(_BLOCK) if len(words) else ()):
        folded = (block >> _FOLD).bitwise_and_(_LOGICAL).bitwise_xor_(block)
        total += folded.mul_(weights[: len(block)]).sum() * _block_weight(number)
    if tail is not None:
        total += tail * _block_weight(-1)
    return total


def _words(flat: Tensor) -> tuple[Tensor, Tensor | None]:
    """A tensor's bytes as 64-bit words (W,), and the rest that fills none as one, (); None where nothing is left."""
    each = _WORD // flat.element_size()
    whole = flat.numel() // each * each
    head, rest = flat[:whole], flat[whole:]
    if each > 1 and flat.storage_offset() % each:
        head = head.clone()
    words = head.view(torch.int64)
    if not rest.numel():
        return words, None
    padded = torch.zeros(_WORD, dtype=torch.uint8, device=flat.device)
    padded[: rest.numel() * rest.element_size()] = rest.view(torch.uint8)
    return words, padded.view(torch.int64)[0]


@cache
def _weights(device: torch.device) -> Tensor:
    """(_BLOCK,) odd weights of the words in a block. Copied to a device once."""
    odd = _mixed(np.arange(_BLOCK, dtype=np.uint64)) | np.uint64(1)
    weights = torch.from_numpy(odd.view(np.int64))
    # From pinned memory a copy makes nobody wait.
    return weights.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else weights.to(device)


@cache
def _block_weight(number: int) -> int:
    """The odd weight of a block; of number -1 that of what fills no word."""
    return _signed(int(_mixed(np.array([_BLOCK + 1 + number], np.uint64))[0]) | 1)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer: neighbours become numbers that have nothing to do with each other."""
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _signed(number: int) -> int:
    """Modulo 2**64, as int64 has it."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >= 1 << 63 else number
