"""What would flush to zero or overflow, in which format and at which loss scale, from histograms read from a log.

Reads exponent histograms as `tbnum.formats` lays them out. Pure numpy, and needs no torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tbnum.formats import INF, ZERO, Format, first_bin_overflowing, last_bin_flushed

__all__ = ["Bounds", "overflow", "underflow"]


class Bounds(NamedTuple):
    """Between what a share lies, 0 to 1; equal where the histogram says it exactly. NaN for no elements."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]


def underflow(counts: ArrayLike, format: Format, scale: float = 1.0) -> Bounds:
    """Share of elements, (...), that are not zero but would be in `format`, after they are multiplied by `scale`.

    `counts` is (..., BINS). Exact for a power of two as scale (but for bfloat16, whose threshold is among the float32
    subnormals); else uncertain by the one bin that the threshold cuts.
    """
    surely, possibly = last_bin_flushed(format, scale)
    return _shares(np.asarray(counts), slice(ZERO + 1, surely + 1), slice(ZERO + 1, possibly + 1))


def overflow(counts: ArrayLike, format: Format, scale: float = 1.0) -> Bounds:
    """Share of elements, (...), that are finite but would not be in `format`, after they are multiplied by `scale`.

    `counts` is (..., BINS). Uncertain by the one bin in which the format's range ends: 32768 to 65536 for float16.
    """
    surely, possibly = first_bin_overflowing(format, scale)
    return _shares(np.asarray(counts), slice(surely, INF), slice(possibly, INF))


def _shares(counts: NDArray[np.int64], surely: slice, possibly: slice) -> Bounds:
    elements = counts.sum(-1)
    with np.errstate(invalid="ignore"):  # 0 of 0 elements
        low, high = (np.asarray(counts[..., part].sum(-1) / elements) for part in (surely, possibly))
    return Bounds(low, high)
