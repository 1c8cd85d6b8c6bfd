"""How gradients fit the narrow formats: shares that flush to zero or overflow, from exponent histograms, and headroom.

`tbnum.formats` has the ranges; `tbnum.explain.precision` does the same for what was read from a log, without torch.
`tbnum.measure.statistics` counts the shares by comparison instead, exactly, for one scale.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tbnum.formats import FORMATS, ZERO, first_bin_overflowing, last_bin_flushed
from tbnum.formats import INF as _FINITE_END

__all__ = ["Bounds", "headroom", "overflow", "underflow"]


class Bounds(NamedTuple):
    """Between what a share lies: `low` and `high`, each (..., F), F the formats in the order of `FORMATS`."""

    low: Tensor
    high: Tensor


def underflow(counts: Tensor, scale: float = 1.0) -> Bounds:
    """Share of elements, (..., F), that are not zero but would be in each format, after they are multiplied by `scale`.

    `counts` (..., BINS) are exponent histograms. For a power of two as scale the bounds are equal and the share is
    exact; else they differ by the one bin that the threshold cuts. bfloat16 is the exception at scales above 2**-8:
    its threshold lies among the float32 subnormals, which are one bin. The share of no elements is NaN.

    Costs a few kernels, whatever the tensor's size; no host sync.
    """
    bounds = [last_bin_flushed(each, scale) for each in FORMATS.values()]
    low, high = ([counts[..., ZERO + 1 : end[at] + 1].sum(-1) for end in bounds] for at in (0, 1))
    return _shares(counts, low, high)


def overflow(counts: Tensor, scale: float = 1.0) -> Bounds:
    """Share of elements, (..., F), that are finite but would not be in each format, after multiplying by `scale`.

    `counts` (..., BINS) are exponent histograms. Every format's range ends inside a bin (float16's at 65520 in the
    bin from 32768 to 65536): `low` leaves that bin out, `high` has it in. The share of no elements is NaN.

    Costs a few kernels, whatever the tensor's size; no host sync.
    """
    bounds = [first_bin_overflowing(each, scale) for each in FORMATS.values()]
    low, high = ([counts[..., start[at] : _FINITE_END].sum(-1) for start in bounds] for at in (0, 1))
    return _shares(counts, low, high)


def headroom(absmax: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """How often the largest element, times `scale`, can double before it passes each format's maximum, (..., F).

    log2(maximum / (absmax * scale)): negative where it is beyond, inf where all is zero, NaN where `absmax` (...) is.
    No host sync.
    """
    maxima = torch.stack([torch.full_like(absmax, each.maximum) for each in FORMATS.values()], -1).log2_()
    scale = scale.to(absmax.device, non_blocking=True) if isinstance(scale, Tensor) else torch.full_like(absmax, scale)
    return maxima - (absmax.log2() + scale.log2()).unsqueeze(-1)


def _shares(counts: Tensor, low: list[Tensor], high: list[Tensor]) -> Bounds:
    elements = counts.sum(-1, keepdim=True)
    return Bounds(torch.stack(low, -1) / elements, torch.stack(high, -1) / elements)
