"""Exponent histograms: how many elements lie between which powers of two, and how many are zero, inf or NaN.

The exponent of a float32 is bits 23 to 30 of it, so an integer shift and one count give the histogram. Every element
is counted once, none is dropped: the counts of a tensor add up to its elements. `tbnum.formats` says what each of
the `BINS` counts is of.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tbnum.formats import BINS, INF, ZERO
from tbnum.measure.chunks import INF_BITS, Batch, Piece, batches_of, count_keys
from tbnum.measure.on_host import Magnitudes

__all__ = ["TensorHistograms", "bins_in", "bins_of", "histogram_of", "histograms_of", "total_histograms_of"]


@dataclass(frozen=True)
class TensorHistograms:
    """Exponent histograms of some tensors on one device.

    `counts` is (P, BINS) int64, `index` (P,) their places in the list that was measured. The histogram of a group is
    the sum of its rows.
    """

    index: Sequence[int]
    counts: Tensor


def histogram_of(tensor: Tensor) -> Tensor:
    """Exponent histogram of one tensor, (BINS,) int64, on its device. See `histograms_of`."""
    [histograms] = histograms_of([tensor])
    return histograms.counts[0]


@torch.no_grad()
def histograms_of(tensors: Sequence[Tensor]) -> list[TensorHistograms]:
    """Exponent histogram of each tensor; one entry per device.

    Any mix of shapes, strides, layouts and floating or complex types. A complex element counts as two, its real and
    its imaginary part. A sparse tensor is coalesced (entries at the same index add up) and has the histogram of its
    dense copy: what it does not store is zero. A float64 beyond the range of float32 is in the last finite bin or in
    the first, never inf and never zero.

    Costs one pass over the elements and no host sync, but for coalescing. On one CPU core 2 ns an element of float32,
    3 ns in small tensors, which share their kernels, and 6 microseconds a tensor. Memory: a few times a piece, 0.26 M
    elements on a CPU and 4 M elsewhere, and 2 kB a tensor for the counts.
    """
    small = Magnitudes.of(tensors)
    if small is not None:
        return [TensorHistograms(range(len(tensors)), torch.from_numpy(small.histograms()))]
    found = []
    for batches in batches_of(tensors).values():
        index = [place for batch in batches for place in batch.places]
        found.append(TensorHistograms(index, torch.cat([_count(batch) for batch in batches])))
    return found


@torch.no_grad()
def total_histograms_of(tensors: Sequence[Tensor]) -> dict[torch.device, Tensor]:
    """Exponent histogram of all tensors of each device together, (BINS,) int64.

    What summing the rows of `histograms_of` gives, without the memory that the rows take.
    """
    small = Magnitudes.of(tensors)
    if small is not None:
        return {tensors[0].device: torch.from_numpy(small.histogram())}
    return {device: _sum(map(_count_together, batches)) for device, batches in batches_of(tensors).items()}


def bins_in(piece: Piece) -> Tensor:
    """Exponent histogram of each row of a piece, (rows, BINS) int64."""
    return count_keys(bins_of(piece), piece.row_of, piece.rows, BINS)


def bins_of(piece: Piece) -> Tensor:
    """The bin of each magnitude, (n,) of the type of its bits; they hold until the next piece is asked for."""
    bits, bins = piece.bits, piece.scratch.of("bins", piece.bits)
    if bits.dtype is torch.int32 and piece.is_finite:
        # Nearly every piece on a CPU: the upper edge of a bin stays, all beyond it goes to the next.
        return torch.add(bits, 0x7F_FFFF, out=bins).bitwise_right_shift_(23)
    infinity = INF_BITS[bits.dtype]
    # 0 or 1; as a bool it would take four times as long
    beyond = torch.ge(bits, infinity, out=piece.scratch.of("compared", bits))
    torch.sub(bits, 1, out=bins)
    if bits.dtype is torch.int32:
        # One less puts a power of two, the upper edge of its bin, below the edge. Zero becomes -1, and after the shift
        # bin 0; infinity comes to 255 and NaN to 256, and both move on by one.
        return bins.bitwise_right_shift_(23).add_(1).add_(beyond)
    bins.bitwise_right_shift_(52).sub_(1023 - 127 - 1).clamp_(1, INF - 1)
    return bins.mul_(bits > 0).add_(beyond).add_(bits > infinity)


def _count(batch: Batch) -> Tensor:
    """(P, BINS), of each tensor of the batch."""
    counts = _sum(map(bins_in, batch.pieces()))
    if batch.unstored:
        counts[:, ZERO] += batch.unstored
    return counts


def _count_together(batch: Batch) -> Tensor:
    """(BINS,), of the tensors of the batch as one."""
    counts = _sum(map(bins_in, batch.pieces(as_one=True)))[0]
    if batch.unstored:
        counts[ZERO] += batch.unstored
    return counts


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return functools.reduce(Tensor.add_, parts)
