"""Tensors of any number, size, type and layout, as the bits of their magnitudes, in pieces of bounded size.

With the sign bit off, the bits of floating-point numbers read as integers are in order of magnitude: zero is 0, then
the subnormals, the normal numbers, infinity, and NaN above all. So integer comparisons distinguish everything, exactly,
also where the device flushes subnormals.

Small tensors of one type are laid end to end and measured together, for a kernel costs the same for one element as
for ten thousand.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["INF_BITS", "Batch", "Piece", "batches_of", "count_keys", "kind_of", "on_device", "stored"]

INF_BITS = {torch.int32: 0x7F80_0000, torch.int64: 0x7FF0_0000_0000_0000}
"""Infinity as bits. What is below is finite, what is above is NaN."""

kind_of = operator.attrgetter("dtype", "layout", "is_cpu", "requires_grad")
"""What decides whether a tensor can be measured as it is."""

# Elements in a piece: on a CPU what its caches hold, elsewhere what outweighs the launch of a kernel.
_PIECE_CPU = 1 << 18
_PIECE_DEVICE = 1 << 22
_SMALL = 8  # tensors below an eighth of a piece share one
_MOST_ROWS = 1024  # tensors in a shared piece: what is counted of each is a row of hundreds of numbers
_LANES = 128


class Scratch:
    """Memory that one piece after another uses: on a CPU, fresh memory costs more than what is computed in it."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype], Tensor] = {}

    def of(self, purpose: str, like: Tensor) -> Tensor:
        """(n,), as `like`; holds whatever was in it. The next call for this purpose gives the same memory."""
        held = self._held.get((purpose, like.dtype))
        if held is None or held.numel() < like.numel():
            held = self._held[purpose, like.dtype] = torch.empty_like(like)
        return held[: like.numel()]


@dataclass(frozen=True)
class Piece:
    """Some elements of one tensor, or all of several."""

    bits: Tensor  # (n,) of the magnitudes, int32, int64 of float64; they hold until the next piece is asked for
    elements: list[int]  # of each tensor, one after the other
    row_of: Tensor | None  # (n,) int64, the tensor of each element; None where there is one
    scratch: Scratch
    largest: int | None  # of `bits`; None where only a device knows, or there is no element

    @property
    def rows(self) -> int:
        """Tensors."""
        return len(self.elements)

    @property
    def is_finite(self) -> bool:
        """Whether the host knows that all elements are."""
        return self.largest is not None and self.largest < INF_BITS[self.bits.dtype]

    @staticmethod
    def of(flat: Tensor, elements: list[int], row_of: Tensor | None, scratch: Scratch) -> Piece:
        if flat.dtype is torch.float64:
            bits, magnitude = flat.view(torch.int64), 0x7FFF_FFFF_FFFF_FFFF
        else:  # narrower types are exact in float32
            bits, magnitude = flat.to(torch.float32).view(torch.int32), 0x7FFF_FFFF
        bits = torch.bitwise_and(bits, magnitude, out=scratch.of("bits", bits))
        return Piece(bits, elements, row_of, scratch, _largest(bits))

    @staticmethod
    def of_bits(bits: Tensor) -> Piece:
        return Piece(bits, [bits.numel()], None, Scratch(), _largest(bits))


@dataclass(frozen=True)
class Batch:
    """One tensor in pieces, or small tensors of one type together in a single piece."""

    places: list[int]  # of the tensors in the list that was given
    elements: list[int]  # of each; a complex element counts as two
    unstored: int  # zeros of a sparse tensor that it does not hold; such a tensor is alone in its batch
    tensors: list[Tensor]
    device: torch.device
    scratch: Scratch  # shared by all batches of a device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type whose bits `pieces` have: float32, or float64 where the tensors have it."""
        return torch.float64 if self.tensors[0].dtype is torch.float64 else torch.float32

    def pieces(self, *, as_one: bool = False) -> Iterator[Piece]:
        """With `as_one` all elements are as those of a single tensor."""
        if len(self.tensors) == 1:
            for flat in _pieces(self.tensors[0], _piece_size(self.device)):
                yield Piece.of(flat, [flat.numel()], None, self.scratch)
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in self.tensors])
        if as_one:
            yield Piece.of(flat, [flat.numel()], None, self.scratch)
        else:
            lengths = on_device(self.elements, torch.int64, self.device)
            row_of = torch.repeat_interleave(lengths, output_size=flat.numel())
            yield Piece.of(flat, self.elements, row_of, self.scratch)


def batches_of(tensors: Sequence[Tensor]) -> dict[torch.device, list[Batch]]:
    """All of `tensors`, by device. Looks at no element; a sparse tensor is coalesced, the one thing that may sync."""
    by_device: dict[torch.device, list[Batch]] = {}
    small: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    scratch: dict[torch.device, Scratch] = {}
    for place, given in enumerate(tensors):
        tensor = _real(given)
        device = tensor.device
        if device not in scratch:
            scratch[device] = Scratch()
        if given.layout is torch.strided and tensor.numel() * _SMALL <= _piece_size(device):
            small.setdefault((device, tensor.dtype), []).append((place, tensor))
        else:
            elements = given.numel() * (2 if given.is_complex() else 1)
            batch = Batch([place], [elements], elements - tensor.numel(), [tensor], device, scratch[device])
            by_device.setdefault(device, []).append(batch)
    for (device, _), members in small.items():
        by_device.setdefault(device, []).extend(_shared(members, device, scratch[device]))
    return by_device


def count_keys(keys: Tensor, rows: Tensor | None, row_count: int, key_count: int) -> Tensor:
    """How often each key comes up in each row, (row_count, key_count) int64. `keys` (n,) are in range(key_count).

    Bounded memory: 8 bytes a count, on a CPU 4 more an element, elsewhere 12. No host sync.
    """
    if keys.device.type == "cpu":
        if rows is not None:
            keys = keys + rows.to(keys.dtype) * key_count
        return torch.bincount(keys, minlength=row_count * key_count).view(row_count, key_count)
    return _count_by_scatter(keys, rows, row_count, key_count)  # bincount syncs


def _count_by_scatter(keys: Tensor, rows: Tensor | None, row_count: int, key_count: int) -> Tensor:
    lanes = rows is None
    if rows is None:
        # Equal keys add to one counter, one after the other. A row each for neighbours lets them add side by side.
        rows, row_count = torch.arange(keys.numel(), device=keys.device) % _LANES, _LANES
    flat = rows * key_count + keys
    counts = torch.zeros(row_count * key_count, dtype=torch.int32, device=keys.device)
    counts.scatter_add_(0, flat, torch.ones_like(keys, dtype=torch.int32))
    counts = counts.view(row_count, key_count).to(torch.int64)
    return counts.sum(0, keepdim=True) if lanes else counts


def on_device(numbers: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers of the host as a tensor (n,), without a host sync."""
    pinned = device.type == "cuda"
    return torch.tensor(numbers, dtype=dtype, device="cpu", pin_memory=pinned).to(device, non_blocking=True)


def stored(tensor: Tensor) -> Tensor:
    """What a tensor of any layout holds, strided. Entries of a sparse one at the same index add up first."""
    if tensor.layout is torch.strided:
        return tensor
    return tensor.coalesce()._values() if tensor.layout is torch.sparse_coo else tensor.values()


def _largest(bits: Tensor) -> int | None:
    return int(bits.amax()) if bits.is_cpu and bits.numel() else None


def _real(tensor: Tensor) -> Tensor:
    """What a tensor holds, strided and real."""
    tensor = stored(tensor)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg()


def _shared(members: list[tuple[int, Tensor]], device: torch.device, scratch: Scratch) -> Iterator[Batch]:
    places: list[int] = []
    elements: list[int] = []
    tensors: list[Tensor] = []
    room = _piece_size(device)
    for place, tensor in members:
        size = tensor.numel()
        if size > room or len(places) == _MOST_ROWS:
            yield Batch(places, elements, 0, tensors, device, scratch)
            places, elements, tensors, room = [], [], [], _piece_size(device)
        places.append(place)
        elements.append(size)
        tensors.append(tensor)
        room -= size
    yield Batch(places, elements, 0, tensors, device, scratch)


def _piece_size(device: torch.device) -> int:
    return _PIECE_CPU if device.type == "cpu" else _PIECE_DEVICE


def _pieces(tensor: Tensor, most: int) -> Iterator[Tensor]:
    """The elements in any order, 1-D, at most `most` at a time. Copies no more than a piece, whatever the strides."""
    tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))  # as it lies in memory
    if tensor.is_contiguous():
        yield from tensor.view(-1).split(most)
    elif tensor.numel() <= most:
        yield tensor.reshape(-1)
    else:
        longest = max(range(tensor.dim()), key=tensor.size)
        for half in tensor.chunk(2, longest):
            yield from _pieces(half, most)
