"""Checksums of tensors' bits, computed where the tensors are: (P,) int64, without a sync.

A tensor's bytes are taken as 64-bit words. Each word is folded, multiplied by an odd weight of its place, and the
products are summed modulo 2**64. Folding and weighing are one-to-one, so a tensor that differs in one word has another
checksum, always. Of several changed words, of swapped, shifted or negated elements, none was missed in the tests; by
chance one in 2**64 is. The number of elements is part of it, so a tensor of zeros has no checksum of 0, which means
that there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

from tbnum.measure.on_host import Small, begins

__all__ = ["checksums"]

_BLOCK = 1 << 16  # words at once: the intermediate results stay in the cache
_SMALL_BYTES = 1 << 16  # of a tensor that is taken together with others
_FOLD = 29
_LOGICAL = (1 << (64 - _FOLD)) - 1  # torch shifts in the sign
_OF_COUNT = 0x1E3779B97F4A7C15
_WORD = 8  # bytes


def checksums(tensors: Sequence[Tensor | None]) -> Tensor:
    """(P,) int64 on the device of the first tensor; 0 where there is none, or one without a layout of plain elements.

    Of a DTensor this rank's part. Small tensors are taken together: some 2 us of Python each, 60 us a larger one, and
    2.5 ms a million float32 elements on one thread.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    small = Small.of(present)
    if small is not None and 4 * max(small.lengths) <= _SMALL_BYTES:
        on_host = np.zeros(len(tensors), np.int64)
        on_host[[place for place, tensor in enumerate(tensors) if tensor is not None]] = _of_host(small)
        return torch.from_numpy(on_host)
    numbers = [_as_integers(tensor) for tensor in tensors]
    device = next((each.device for each in numbers if each is not None), torch.device("cpu"))
    together: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    apart: list[int] = []
    for place, each in enumerate(numbers):
        if each is not None and each.numel() * each.element_size() <= _SMALL_BYTES:
            together.setdefault((each.device, each.dtype), []).append(place)
        elif each is not None:
            apart.append(place)
    places = [place for members in together.values() for place in members] + apart
    sums = [_of_small([numbers[place] for place in members]) for members in together.values()]  # type: ignore[misc]
    sums += [_of_large(numbers[place]).reshape(1) for place in apart]  # type: ignore[arg-type]
    rest = [place for place, each in enumerate(numbers) if each is None]
    sums.append(torch.zeros(len(rest), dtype=torch.int64, device=device))
    joined = torch.cat([each.to(device, non_blocking=True) for each in sums])
    order = (*places, *rest)
    return joined if order == tuple(range(len(order))) else joined[_inverse(order, device)]


def _as_integers(tensor: Tensor | None) -> Tensor | None:
    """What of it is on this device, as whole numbers of its elements' width, flat."""
    if tensor is None:
        return None
    tensor = getattr(tensor, "_local_tensor", tensor).detach()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return None
    raw = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.resolve_neg()
    return raw.contiguous().reshape(-1).view(_INTEGERS[raw.element_size()])


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _of_small(numbers: Sequence[Tensor]) -> Tensor:
    """(P,) of tensors of one type on one device, in one go: their words lie one after the other."""
    device, each = numbers[0].device, _WORD // numbers[0].element_size()
    counts = tuple(number.numel() for number in numbers)
    zeros = torch.zeros(each, dtype=numbers[0].dtype, device=device)
    padded = [part for number, count in zip(numbers, counts, strict=True) for part in (number, zeros[: -count % each])]
    words = torch.cat(padded).view(torch.int64)
    weights, ends, of_counts = _plan(counts, each, device)
    sums = torch.nn.functional.pad(_folded(words).mul_(weights).cumsum(0), (1, 0))
    return sums[ends[1:]] - sums[ends[:-1]] + of_counts


def _of_host(small: Small) -> np.ndarray:
    """(P,) int64."""
    filled, weights, first, of_counts = _host_plan(small.lengths)
    halves = np.zeros(2 * len(weights), np.float32)
    halves[filled] = small.elements
    words = halves.view(np.uint64)
    words ^= words >> np.uint64(_FOLD)
    words *= weights
    return (np.add.reduceat(words, first) + of_counts).view(np.int64)


@lru_cache(maxsize=16)
def _host_plan(lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of float32 tensors of so many elements: where each element lies, (n,), in words of two, of which each tensor has
    its own; the words' weights (W,), where each tensor's begin (P,), and what its number of elements adds (P,)."""
    words = tuple(-(-length // 2) for length in lengths)
    filled = np.concatenate([2 * at + np.arange(length) for at, length in zip(begins(words), lengths, strict=True)])
    weights = np.concatenate([_odd_weights()[:count] for count in words])
    return filled, weights, begins(words), np.array(lengths, np.uint64) * np.uint64(_OF_COUNT)


@lru_cache(maxsize=64)
def _plan(counts: tuple[int, ...], each: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Of tensors with so many elements, so many of which make a word: the weights of their words one after the other,
    where each ends (P + 1,), and what its number of elements adds (P,)."""
    words = [-(-count // each) for count in counts]
    weights = np.concatenate([_odd_weights()[:count] for count in words]) if words else np.empty(0, np.uint64)
    ends = np.cumsum([0, *words])
    of_counts = np.array([_signed(count * _OF_COUNT) for count in counts], np.int64)
    return _sent(weights.view(np.int64), device), _sent(ends, device), _sent(of_counts, device)


@lru_cache(maxsize=64)
def _inverse(order: tuple[int, ...], device: torch.device) -> Tensor:
    return _sent(np.argsort(order), device)


@torch.no_grad()
def _of_large(numbers: Tensor) -> Tensor:
    """() int64, block after block."""
    words, tail = _words(numbers)
    weights = _weights(numbers.device)
    total = torch.full((), _signed(numbers.numel() * _OF_COUNT), dtype=torch.int64, device=numbers.device)
    for number, block in enumerate(words.split(_BLOCK)):
        total += _folded(block).mul_(weights[: len(block)]).sum() * _block_weight(number)
    if tail is not None:
        total += tail * _block_weight(-1)
    return total


def _folded(words: Tensor) -> Tensor:
    """Each word's upper bits beside its lower ones, so that what a weight does to either is seen. One-to-one."""
    return (words >> _FOLD).bitwise_and_(_LOGICAL).bitwise_xor_(words)


def _words(numbers: Tensor) -> tuple[Tensor, Tensor | None]:
    """The bytes as 64-bit words (W,), and the rest that fills none as one, (); None where nothing is left."""
    each = _WORD // numbers.element_size()
    whole = numbers.numel() // each * each
    head, rest = numbers[:whole], numbers[whole:]
    if each > 1 and numbers.storage_offset() % each:
        head = head.clone()
    words = head.view(torch.int64)
    if not rest.numel():
        return words, None
    padded = torch.zeros(each, dtype=numbers.dtype, device=numbers.device)
    padded[: rest.numel()] = rest
    return words, padded.view(torch.int64)[0]


@cache
def _odd_weights() -> np.ndarray:
    """(_BLOCK,) uint64, of the words in a block."""
    return _mixed(np.arange(_BLOCK, dtype=np.uint64)) | np.uint64(1)


@cache
def _weights(device: torch.device) -> Tensor:
    return _sent(_odd_weights().view(np.int64), device)


def _sent(values: np.ndarray, device: torch.device) -> Tensor:
    """On the device; from pinned memory a copy makes nobody wait."""
    tensor = torch.from_numpy(values.copy())
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


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
