"""Statistics of each of many tensors: the largest element, NaN, inf and zero counts, what each narrow format loses.

All are counts of magnitudes at or beyond some threshold, and those are integer comparisons of bits: exact for every
element, NaN and subnormals among them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tbnum.formats import FORMATS, ZERO
from tbnum.measure.chunks import INF_BITS, Batch, Piece, batches_of, count_keys, on_device
from tbnum.measure.histogram import TensorHistograms, bins_in, bins_of
from tbnum.measure.on_host import Magnitudes

__all__ = ["STATISTICS", "TensorStatistics", "statistics_of"]

STATISTICS: tuple[str, ...] = (
    "absmax",
    "nan",
    "inf",
    "zero",
    *(f"underflow/{name}" for name in FORMATS),
    *(f"overflow/{name}" for name in FORMATS),
)
"""The columns. `absmax`: the largest finite magnitude, NaN where no element is finite. `nan`, `inf`, `zero`: numbers of
elements. `underflow/<format>`: share of all elements that are not zero but would be in the format, times the scale.
`overflow/<format>`: share of all elements that are finite but would not be in it. Shares of no elements are NaN."""

_FIRST_SHARE = STATISTICS.index("underflow/float16")

# Thresholds are kept in rising order at every scale: what the formats flush, what they cannot hold, beyond finite.
_BY_FLUSH = sorted(FORMATS.values(), key=lambda each: each.flushes_to)
_BY_OVERFLOW = sorted(FORMATS.values(), key=lambda each: each.overflows_from)
_NOT_ZERO = 0  # columns of `_reach`
_KEPT = {each.name: 1 + at for at, each in enumerate(_BY_FLUSH)}
_OVER = {each.name: 1 + len(FORMATS) + at for at, each in enumerate(_BY_OVERFLOW)}
_NOT_FINITE = 1 + 2 * len(FORMATS)
_IS_NAN = _NOT_FINITE + 1


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics and exponent histograms of some tensors on one device.

    `values` is (P, K) float32 (float64 where a tensor was), its columns `STATISTICS`. `index` (P,) are the tensors'
    places in the list that was measured, `elements` (P,) how many each has; a complex element counts as two.
    `histogram` is (BINS,) int64, of all tensors together, `histograms` of each, where that was asked for.
    """

    index: Sequence[int]
    elements: Sequence[int]
    values: Tensor
    histogram: Tensor
    histograms: TensorHistograms | None


@torch.no_grad()
def statistics_of(
    tensors: Sequence[Tensor], scale: float | Tensor = 1.0, *, histograms: bool = False
) -> list[TensorStatistics]:
    """The `STATISTICS` of each tensor, and their histogram (with `histograms`, that of each); one entry per device.

    `scale` is what elements are multiplied by before they are held against the formats: the loss scale, for gradients
    that were unscaled by it. A number, or a 0-dim tensor that may stay on its device; NaN, for unknown, makes the
    shares NaN. Thresholds are exact at a power of two, else to one rounding in float32. Everything else does not
    depend on it.

    Any mix of shapes, strides, layouts and floating or complex types; a sparse tensor is coalesced and has the row of
    its dense copy. Counts above 2**24 are rounded as float32 rounds; what is not zero stays so.

    Costs one pass over the elements and no host sync, but for coalescing. On one CPU core 2 ns an element of float32
    where the scale is a power of two (the histogram gives nearly all then) and 4 ns where it is not. Memory: 4 kB a
    tensor, and a few times a piece, 0.26 M elements on a CPU and 4 M elsewhere.
    """
    on_host = _of_small(tensors, scale, histograms) if isinstance(scale, float) else None
    if on_host is not None:
        return [on_host]
    found = []
    for device, batches in batches_of(tensors).items():
        if isinstance(scale, Tensor):
            scale = scale.to(device, non_blocking=True).reshape(())
        batches.sort(key=lambda batch: batch.dtype is torch.float64)
        parts = [
            _measured(list(members), _Thresholds.at(scale, dtype, device))
            for dtype, members in itertools.groupby(batches, key=lambda batch: batch.dtype)
        ]
        values = torch.cat([part.to(parts[-1][0].dtype) for part, _ in parts])
        values[:, _FIRST_SHARE:] += scale * 0  # NaN if the scale is, or is infinite
        counts = torch.cat([part for _, part in parts])
        index = [place for batch in batches for place in batch.places]
        elements = [count for batch in batches for count in batch.elements]
        each = TensorHistograms(index, counts) if histograms else None
        found.append(TensorStatistics(index, elements, values, counts.sum(0), each))
    return found


def _of_small(tensors: Sequence[Tensor], scale: float, histograms: bool) -> TensorStatistics | None:
    """None where they are not small, not finite, or some would have to be compared with a threshold one by one."""
    small = Magnitudes.of(tensors) if math.isfinite(scale) else None
    if small is None:
        return None
    counts, (cut, first, last) = small.histograms(), _bins_of_shares(scale)
    if counts[:, cut].any():
        return None
    values = np.zeros((len(tensors), len(STATISTICS)), np.float32)  # no NaN, and no inf
    values[:, 0], values[:, STATISTICS.index("zero")] = small.largest(), counts[:, ZERO]
    up_to = counts.cumsum(1)
    np.subtract(up_to[:, last], up_to[:, first], out=values[:, _FIRST_SHARE:], casting="unsafe")
    values[:, _FIRST_SHARE:] /= np.array(small.lengths, np.float32)[:, None]
    each = TensorHistograms(range(len(tensors)), torch.from_numpy(counts)) if histograms else None
    whole = torch.from_numpy(counts.sum(0))
    return TensorStatistics(range(len(tensors)), small.lengths, torch.from_numpy(values), whole, each)


@functools.lru_cache(maxsize=16)
def _bins_of_shares(scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bins that a threshold cuts; and for each share the bin before those of its elements, and the last of them."""
    thresholds = _Thresholds.at(scale, torch.float32, torch.device("cpu"))
    kept, over = ([thresholds.bins[places[name]] for name in FORMATS] for places in (_KEPT, _OVER))
    first = [ZERO + 1] * len(FORMATS) + over
    last = kept + [thresholds.bins[_NOT_FINITE]] * len(FORMATS)
    return np.array([thresholds.bins[at] for at in thresholds.cut], int), np.array(first) - 1, np.array(last) - 1


@dataclass(frozen=True)
class _Thresholds:
    """As bits, rising, (T,): not zero; kept by each format, and beyond it, times the scale; not finite; NaN."""

    bits: Tensor
    bins: list[int]  # where each falls; empty where only a device knows
    cut: list[int]  # those, of `bits`, that fall between the edges of their bin

    @staticmethod
    def at(scale: float | Tensor, dtype: torch.dtype, device: torch.device) -> _Thresholds:
        is_known = isinstance(scale, float) and device.type == "cpu"
        return (_remembered_thresholds if is_known else _thresholds)(scale, dtype, device)


def _thresholds(scale: float | Tensor, dtype: torch.dtype, device: torch.device) -> _Thresholds:
    edges = [each.flushes_to for each in _BY_FLUSH] + [each.overflows_from for each in _BY_OVERFLOW]
    bits = (on_device(edges, dtype, device) / scale).view(torch.int64 if dtype is torch.float64 else torch.int32)
    bits[: len(_BY_FLUSH)] += 1  # the threshold itself is still flushed
    infinity = INF_BITS[bits.dtype]
    fixed = [torch.full_like(bits[:1], each) for each in (1, infinity, infinity + 1)]
    bits = torch.cat([fixed[0], bits.clamp_(1, infinity), *fixed[1:]])
    if device.type != "cpu":
        return _Thresholds(bits, [], [])
    bins, below = (bins_of(Piece.of_bits(each)).tolist() for each in (bits, bits - 1))
    return _Thresholds(bits, bins, [at for at, bin in enumerate(bins) if bin == below[at]])


_remembered_thresholds = functools.lru_cache(maxsize=16)(_thresholds)


def _measured(batches: list[Batch], thresholds: _Thresholds) -> tuple[Tensor, Tensor]:
    """The statistics of batches of one type, (P, K), of the type of their magnitudes; and histograms, (P, BINS)."""
    counted, found = [], []
    for batch in batches:
        counts: Tensor | None = None
        largest: Tensor | None = None
        for piece in batch.pieces():
            more, larger = bins_in(piece), _largest_finite(piece)
            counts = more if counts is None else counts.add_(more)
            largest = larger if largest is None else torch.maximum(largest, larger)
        assert counts is not None and largest is not None, "a batch has a piece, if an empty one"
        if batch.unstored:
            counts[:, ZERO] += batch.unstored
            largest.clamp_(min=0)
        counted.append(counts)
        found.append(largest)
    counts = torch.cat(counted)
    dtype = batches[0].dtype
    reach = _reach(batches, counts, thresholds)
    elements = counts.sum(1, keepdim=True)
    of = reach.unbind(1)
    numbers = [of[_IS_NAN], of[_NOT_FINITE] - of[_IS_NAN], elements[:, 0] - of[_NOT_ZERO]]
    lost = [of[_NOT_ZERO] - of[_KEPT[name]] for name in FORMATS]
    lost += [of[_OVER[name]] - of[_NOT_FINITE] for name in FORMATS]
    shares = torch.stack(lost, 1).to(dtype) / elements.to(dtype)
    absmax = torch.cat(found).view(dtype).unsqueeze(1)
    return torch.cat([absmax, torch.stack(numbers, 1).to(dtype), shares], 1), counts


def _reach(batches: list[Batch], counts: Tensor, thresholds: _Thresholds) -> Tensor:
    """How many magnitudes of each tensor reach each threshold, (P, T) int64."""
    if not thresholds.bins:
        return torch.cat([_compared(batch, thresholds.bits) for batch in batches])
    # The host knows where the thresholds fall: an element is looked at again only where they cut a bin that has some.
    reach = counts.sum(1, keepdim=True) - counts.cumsum(1)[:, [bin - 1 for bin in thresholds.bins]]
    is_cut = counts[:, [thresholds.bins[at] for at in thresholds.cut]] > 0
    row = 0
    for batch in batches if bool(is_cut.any()) else []:
        rows = slice(row, row + len(batch.places))
        row = rows.stop
        cut = [at for at, has_some in zip(thresholds.cut, is_cut[rows].any(0).tolist(), strict=True) if has_some]
        if cut:
            reach[rows, cut] = _compared(batch, thresholds.bits[cut])
    return reach


def _compared(batch: Batch, thresholds: Tensor) -> Tensor:
    """How many magnitudes of each tensor of the batch reach each threshold, (P, T) int64: one more pass over them."""
    counts = []
    for piece in batch.pieces():
        bits = piece.bits
        reached = piece.scratch.of("compared", bits)  # 0 or 1; as a bool it would take four times as long
        if piece.row_of is None:
            of_one = [torch.ge(bits, each, out=reached).sum(dtype=torch.int32) for each in thresholds.unbind()]
            counts.append(torch.stack(of_one).unsqueeze(0))
        else:
            rank = torch.zeros_like(bits)  # how many thresholds an element reaches: all up to that one, for they rise
            for each in thresholds.unbind():
                rank.add_(torch.ge(bits, each, out=reached))
            of_rank = count_keys(rank, piece.row_of, piece.rows, 1 + len(thresholds))
            counts.append(of_rank.flip(1).cumsum(1).flip(1)[:, 1:])
    return torch.stack(counts).sum(0, dtype=torch.int64)


def _largest_finite(piece: Piece) -> Tensor:
    """The largest finite magnitude of each row as bits, (rows,); -1, which reads as NaN, where there is none."""
    bits = piece.bits
    if piece.rows == 1 and piece.is_finite and piece.largest is not None:
        return torch.full((1,), piece.largest, dtype=bits.dtype, device=bits.device)
    if not piece.is_finite:
        beyond = torch.ge(bits, INF_BITS[bits.dtype], out=piece.scratch.of("compared", bits))
        bits = beyond.neg_().bitwise_or_(bits)
    largest = torch.full((piece.rows,), -1, dtype=bits.dtype, device=bits.device)
    if piece.row_of is None:
        return bits.amax().unsqueeze(0) if bits.numel() else largest
    if not bits.is_cpu:
        return largest.scatter_reduce_(0, piece.row_of, bits, "amax")
    # Much faster on a CPU than scattering. An empty row has no place in the list of where rows begin.
    elements = np.array(piece.elements)
    begins = np.cumsum(elements) - elements
    if bits.numel():
        largest.numpy()[elements > 0] = np.maximum.reduceat(bits.numpy(), begins[elements > 0])
    return largest
