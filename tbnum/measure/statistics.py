"""Statistics of each of many tensors: the largest element, NaN, inf and zero counts, what each narrow format loses.

All are counts of magnitudes at or beyond some threshold, and those are integer comparisons of bits: exact for every
element, NaN and subnormals among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tbnum.formats import FORMATS
from tbnum.measure.chunks import INF_BITS, Batch, batches_of, count_keys, on_device

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
_NOT_ZERO = 1  # columns of `_at_least`; column 0 is of all elements
_KEPT = {each.name: 2 + at for at, each in enumerate(_BY_FLUSH)}
_OVER = {each.name: 2 + len(FORMATS) + at for at, each in enumerate(_BY_OVERFLOW)}
_NOT_FINITE = 2 + 2 * len(FORMATS)
_IS_NAN = _NOT_FINITE + 1


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics of some tensors on one device.

    `values` is (P, K) float32 (float64 where a tensor was), its columns `STATISTICS`. `index` (P,) are the tensors'
    places in the list that was measured, `elements` (P,) how many each has; a complex element counts as two.
    """

    index: Sequence[int]
    elements: Sequence[int]
    values: Tensor


@torch.no_grad()
def statistics_of(tensors: Sequence[Tensor], scale: float | Tensor = 1.0) -> list[TensorStatistics]:
    """The `STATISTICS` of each tensor; one entry per device.

    `scale` is what elements are multiplied by before they are held against the formats: the loss scale, for gradients
    that were unscaled by it. A number, or a 0-dim tensor that may stay on its device; NaN, for unknown, makes the
    shares NaN. Thresholds are exact at a power of two, else to one rounding in float32. Everything else does not
    depend on it.

    Any mix of shapes, strides, layouts and floating or complex types; a sparse tensor is coalesced and has the row of
    its dense copy. Counts above 2**24 are rounded as float32 rounds; what is not zero stays so.

    Costs one pass over the elements and no host sync, but for coalescing. On one CPU core 3 ns an element of float32,
    10 ns in small tensors, which share their kernels, and 4 microseconds a tensor. Memory: a few times a piece, 0.26 M
    elements on a CPU and 4 M elsewhere.
    """
    found = []
    for device, batches in batches_of(tensors).items():
        if isinstance(scale, Tensor):
            scale = scale.to(device, non_blocking=True).reshape(())
        thresholds = {dtype: _thresholds(scale, dtype, device) for dtype in {batch.dtype for batch in batches}}
        rows = [_rows(batch, thresholds[batch.dtype]) for batch in batches]
        widest = torch.float64 if torch.float64 in thresholds else torch.float32
        values = torch.cat([each.to(widest) for each in rows])
        values[:, _FIRST_SHARE:] += scale * 0  # NaN if the scale is, or is infinite
        index = [place for batch in batches for place in batch.places]
        elements = [count for batch in batches for count in batch.elements]
        found.append(TensorStatistics(index, elements, values))
    return found


def _thresholds(scale: float | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """As bits, rising, (T,): not zero; kept by each format, and beyond it, times `scale`; not finite; NaN."""
    edges = [each.flushes_to for each in _BY_FLUSH] + [each.overflows_from for each in _BY_OVERFLOW]
    bits = (on_device(edges, dtype, device) / scale).view(torch.int64 if dtype is torch.float64 else torch.int32)
    bits[: len(_BY_FLUSH)] += 1  # the threshold itself is still flushed
    infinity = INF_BITS[bits.dtype]
    fixed = [torch.full_like(bits[:1], each) for each in (1, infinity, infinity + 1)]
    return torch.cat([fixed[0], bits.clamp_(1, infinity), *fixed[1:]])


def _rows(batch: Batch, thresholds: Tensor) -> Tensor:
    """The statistics of a batch, (P, K), of the type of its magnitudes."""
    count = len(batch.places)
    at_least: Tensor | None = None
    largest: Tensor | None = None
    for bits, row_of in batch.magnitudes():
        more, larger = _at_least(bits, row_of, count, thresholds), _largest_finite(bits, row_of, count)
        at_least = more if at_least is None else at_least.add_(more)
        largest = larger if largest is None else torch.maximum(largest, larger)
    assert at_least is not None and largest is not None, "a batch has a piece, if an empty one"
    if batch.unstored:
        at_least[:, 0] += batch.unstored
        largest.clamp_(min=0)
    reach = at_least.unbind(1)
    counts = [reach[_IS_NAN], reach[_NOT_FINITE] - reach[_IS_NAN], reach[0] - reach[_NOT_ZERO]]
    lost = [reach[_NOT_ZERO] - reach[_KEPT[name]] for name in FORMATS]
    lost += [reach[_OVER[name]] - reach[_NOT_FINITE] for name in FORMATS]
    shares = torch.stack(lost, 1).to(batch.dtype) / at_least[:, :1].to(batch.dtype)
    absmax = largest.view(batch.dtype).unsqueeze(1)
    return torch.cat([absmax, torch.stack(counts, 1).to(batch.dtype), shares], 1)


def _at_least(bits: Tensor, row_of: Tensor | None, rows: int, thresholds: Tensor) -> Tensor:
    """How many magnitudes of each row there are, and how many reach each threshold, (rows, 1 + T) int64."""
    reached = torch.empty_like(bits)  # 0 or 1; as a bool the comparison would take four times as long
    if row_of is None:
        counts = [torch.ge(bits, each, out=reached).sum(dtype=torch.int32) for each in thresholds.unbind()]
        return torch.stack([torch.full_like(counts[0], bits.numel()), *counts]).to(torch.int64).unsqueeze(0)
    rank = torch.zeros_like(bits)  # how many thresholds an element reaches: all up to that one, for they rise
    for each in thresholds.unbind():
        rank.add_(torch.ge(bits, each, out=reached))
    of_rank = count_keys(rank, row_of, rows, 1 + len(thresholds))
    return of_rank.flip(1).cumsum(1).flip(1)


def _largest_finite(bits: Tensor, row_of: Tensor | None, rows: int) -> Tensor:
    """The largest finite magnitude of each row as bits, (rows,); -1, which reads as NaN, where there is none."""
    finite = torch.ge(bits, INF_BITS[bits.dtype], out=torch.empty_like(bits)).neg_().bitwise_or_(bits)
    largest = torch.full((rows,), -1, dtype=bits.dtype, device=bits.device)
    if row_of is not None:
        return largest.scatter_reduce_(0, row_of, finite, "amax")
    return finite.amax().unsqueeze(0) if finite.numel() else largest
