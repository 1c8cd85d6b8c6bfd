"""The narrow number formats of training, and the bins by exponent in which elements are counted.

The one home of these constants: what measures on the device and what reads the log both import it. It loads
neither torch nor numpy.

Bins. An exponent histogram has `BINS` counts a tensor. Count `ZERO` is of zeros, `INF` of infinities, `NAN` of NaN,
each exact. Count i between them, 1 to 255, is of the finite elements with

    2**(i - 128) < |x| <= 2**(i - 127)

and bin 1 takes in all that is smaller, bin 255 all that is larger (a float64 can be either). The upper edge belongs to
the bin, for a format rounds half of its smallest number, a power of two, to zero: so what a power of two as loss
scale flushes is a number of whole bins, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = [
    "BINS",
    "CHECKSUM",
    "FORMATS",
    "INF",
    "NAN",
    "ZERO",
    "Format",
    "first_bin_overflowing",
    "last_bin_flushed",
    "upper_edge",
]

ZERO = 0
INF = 256
NAN = 257
BINS = 258

CHECKSUM = "checksum/"
"""What the names of columns of checksums begin with, which are whole numbers and no statistics."""

_LAST_FINITE = 255


@dataclass(frozen=True)
class Format:
    """A floating-point format, by the magnitudes at which it gives up. Rounding is to nearest, ties to even.

    What a value too large becomes depends on who casts: inf, or NaN in float8_e4m3fn, which has no inf; a cast that
    saturates, as to float8_e4m3fn in newer versions of torch, gives `maximum`. All of these are an overflow here.
    """

    name: str  # as torch spells it
    maximum: float  # the largest finite value
    smallest_normal: float  # below it precision fades bit by bit
    smallest_subnormal: float
    overflows_from: float  # the smallest float32 that would round beyond `maximum`

    @property
    def flushes_to(self) -> float:
        """The largest magnitude that rounds to zero: half of the smallest subnormal, a tie that goes to even."""
        return self.smallest_subnormal / 2


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        each.name: each
        for each in (
            Format("float16", 65504.0, 2.0**-14, 2.0**-24, 65520.0),
            Format("bfloat16", (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133, (2 - 2.0**-8) * 2.0**127),
            Format("float8_e4m3fn", 448.0, 2.0**-6, 2.0**-9, 464 + 2.0**-15),  # 464, a tie, goes to 448
            Format("float8_e5m2", 57344.0, 2.0**-14, 2.0**-16, 61440.0),
        )
    }
)


def upper_edge(bin: int) -> float:
    """The largest magnitude that bin 1 to 255 counts (2**128, just out of reach of a float32, for the last)."""
    if not ZERO < bin <= _LAST_FINITE:
        raise ValueError(f"bin {bin} is none of 1 to {_LAST_FINITE}, which count finite elements that are not zero.")
    return 2.0 ** (bin - 127)


def last_bin_flushed(format: Format, scale: float = 1.0) -> tuple[int, int]:
    """Up to which bin elements times `scale` flush to zero: (surely all of it, possibly some of it).

    Equal, and so exact, where `scale` is a power of two and the threshold is not below 2**-126. Else the second is
    the one bin that the threshold cuts. For bfloat16 at a scale above 2**-8 that is bin 1, the float32 subnormals.
    """
    threshold = format.flushes_to / _checked(scale)
    mantissa, exponent = math.frexp(threshold)  # threshold = mantissa * 2**exponent, mantissa from 0.5 up to 1
    surely = _finite_bin(exponent - 1 + 127)
    exact = mantissa == 0.5 and exponent - 1 + 127 >= 1
    return surely, surely if exact else _finite_bin(surely + 1)


def first_bin_overflowing(format: Format, scale: float = 1.0) -> tuple[int, int]:
    """From which bin on finite elements times `scale` overflow: (surely all of it, possibly some of it).

    The second is the bin that the threshold cuts: every format overflows a little below a power of two. 256 is none.
    """
    mantissa, exponent = math.frexp(format.overflows_from / _checked(scale))
    surely = min(max((exponent - 1 if mantissa == 0.5 else exponent) + 128, 1), INF)
    return surely, max(surely - 1, 1)


def _finite_bin(number: int) -> int:
    return min(max(number, 0), _LAST_FINITE)


def _checked(scale: float) -> float:
    if not 0 < scale < math.inf:
        raise ValueError(f"scale is {scale!r}; a loss scale is a finite number above 0 (1 for unscaled).")
    return scale
