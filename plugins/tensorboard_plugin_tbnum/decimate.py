"""Reduces columns over steps to buckets, without losing an extreme or a non-finite value.

Pure numpy: no files, no requests. Everywhere S is the number of steps of a run and B that of buckets.

Buckets hold the steps from one multiple of a power of two to just before the next, so they do not depend on where a
view starts or how far a run has come: a chart that is drawn again with every poll does not flicker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tbnum.log.schema import lr_columns, measured

__all__ = [
    "Buckets",
    "Reduced",
    "as_float32",
    "bucket_power",
    "buckets_of",
    "interval",
    "make_buckets",
    "measured",
    "nonfinite",
    "reduce",
    "wide_columns",
]

_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Buckets:
    """Consecutive, non-empty groups of the entries of a step column."""

    size: int
    """Step numbers that a bucket spans, a power of two; 1 where every step stands for itself."""
    edges: np.ndarray
    """(B + 1,) int64: bucket b holds the entries `edges[b]` to `edges[b + 1] - 1`. Never empty; B may be 0."""

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def first(self) -> np.ndarray:
        """(B,) the first entry of each bucket."""
        return self.edges[:-1]

    @property
    def last(self) -> np.ndarray:
        """(B,) the last entry of each bucket."""
        return self.edges[1:] - 1


@dataclass(frozen=True)
class Reduced:
    """One column in buckets, each array (B,)."""

    min: np.ndarray
    """float64: least finite value, NaN if there is none"""
    max: np.ndarray
    """float64: greatest finite value, NaN if there is none"""
    mean: np.ndarray
    """float64: mean of the finite values, NaN if there is none"""
    last: np.ndarray
    """float64: last finite value, NaN if there is none"""
    nan: np.ndarray
    """uint32: NaNs that were measured"""
    inf: np.ndarray
    """uint32: infinities of both signs"""
    known: np.ndarray
    """uint32: values that are not NaN"""


def interval(steps: np.ndarray, first: int | None, last: int | None) -> tuple[int, int]:
    """Entries `lo` to `hi - 1` of `steps` ((S,), ascending) are those from step `first` to step `last`, inclusive.

    None is open. `lo == hi` where there is none.
    """
    lo = 0 if first is None else int(np.searchsorted(steps, first, side="left"))
    hi = len(steps) if last is None else int(np.searchsorted(steps, last, side="right"))
    return lo, max(lo, hi)


def make_buckets(steps: np.ndarray, lo: int, hi: int, limit: int) -> Buckets:
    """At most `limit` (>= 1) buckets for the entries `lo` to `hi - 1` of `steps` ((S,) int64, ascending).

    Each entry is its own bucket where they fit. Otherwise the buckets at both ends are whole, so they reach beyond
    `lo` and `hi`. Costs O(B log S).
    """
    if limit < 1:
        raise ValueError(f"limit={limit} must be at least 1")
    if hi - lo <= limit:
        return Buckets(1, np.arange(lo, hi + 1, dtype=np.int64))
    return buckets_of(steps, lo, hi, bucket_power(int(steps[lo]), int(steps[hi - 1]), limit))


def buckets_of(steps: np.ndarray, lo: int, hi: int, power: int) -> Buckets:
    """Buckets that span 2 ** `power` steps, whole at both ends. `lo` < `hi`."""
    first, last = int(steps[lo]), int(steps[hi - 1])
    starts = np.arange(first >> power, (last >> power) + 1, dtype=np.int64) << power
    within = ((last >> power) << power) + (1 << power) - 1  # the last one's last step: what follows may be no int64
    edges = np.append(np.searchsorted(steps, starts), np.searchsorted(steps, within, side="right"))
    filled = edges[1:] > edges[:-1]
    return Buckets(1 << power, np.append(edges[:-1][filled], edges[-1]).astype(np.int64, copy=False))


def bucket_power(first: int, last: int, limit: int) -> int:
    """Of two, the size of buckets of which at most `limit` (>= 1) hold `first` to `last`, wherever they start.

    No bucket reaches over 0, so that steps on both sides of it take two.
    """
    power = 0
    if limit == 1:
        least = 2 if first < 0 <= last else 1
        while (last >> power) - (first >> power) >= least:
            power += 1
        return power
    # As many as an interval of this width may touch, wherever it starts: so moving a view never changes its buckets.
    while -((first - last) >> power) + 1 > limit and power < 63:  # two of that size hold every int64
        power += 1
    return power


def reduce(values: np.ndarray, buckets: Buckets, measured: np.ndarray | None = None) -> Reduced:
    """Reduces one column to `buckets`, exactly.

    `values` is (S,) of any real dtype. `measured` is (S,) bool: where a NaN was measured; None: nowhere, each NaN is an
    unknown value. About 2 ms for a million finite float64, 8 ms with non-finite ones among them.
    """
    start, stop = (int(buckets.edges[0]), int(buckets.edges[-1]))
    values = values[start:stop].astype(np.float64, copy=False)
    edges = buckets.edges - start
    finite = np.isfinite(values)
    if len(buckets) and finite.all():
        none = np.zeros(len(buckets), np.uint32)
        return Reduced(
            min=np.minimum.reduceat(values, edges[:-1]),
            max=np.maximum.reduceat(values, edges[:-1]),
            mean=_means(values, edges[:-1], np.diff(edges)),
            last=values[edges[1:] - 1],
            nan=none,
            inf=none,
            known=np.diff(edges).astype(np.uint32),
        )

    # Work on the finite values alone: then no sentinel can be mistaken for a value, and the counts come along.
    at = np.flatnonzero(finite)
    picked = values[at]
    cuts = np.searchsorted(at, edges)
    filled = cuts[1:] > cuts[:-1]
    low, high, mean, last = (np.full(len(buckets), np.nan) for _ in range(4))
    if filled.any():
        starts = cuts[:-1][filled]
        low[filled] = np.minimum.reduceat(picked, starts)
        high[filled] = np.maximum.reduceat(picked, starts)
        mean[filled] = _means(picked, starts, np.diff(cuts)[filled])
        last[filled] = picked[cuts[1:][filled] - 1]
    inf = _count(np.isinf(values), edges)
    if measured is None:
        nan = np.zeros(len(buckets), np.uint32)
    else:
        nan = _count(np.isnan(values) & measured[start:stop], edges)
    return Reduced(low, high, mean, last, nan, inf, known=np.diff(cuts).astype(np.uint32) + inf)


def _means(values: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(B,) means of finite `values`, of which `counts` (B,) >= 1 belong together from each of `starts` (B,) on."""
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.asarray(np.add.reduceat(values, starts) / counts)
        if not np.isfinite(means).all():  # the sum was out of range; what is small does not matter beside it
            means = np.where(np.isfinite(means), means, np.add.reduceat(values * 2.0**-60, starts) / counts * 2.0**60)
    return means


def _count(mask: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """(B,) uint32: how many of `mask` are set in each bucket."""
    return np.diff(np.searchsorted(np.flatnonzero(mask), edges)).astype(np.uint32)


def nonfinite(values: np.ndarray, lo: int, hi: int, measured: np.ndarray | None = None) -> np.ndarray:
    """Indices from `lo` to `hi - 1` at which `values` was measured to be NaN or infinite. Arguments as in `reduce`."""
    part = values[lo:hi]
    found = np.isinf(part)
    if measured is not None:
        found |= np.isnan(part) & measured[lo:hi]
    return np.flatnonzero(found) + lo


def wide_columns(names: Iterable[str]) -> set[str]:
    """Those of which float32 would lose what people read: scales, learning rates, counts, times."""
    names = list(names)
    wide = {"step", "wall_time", "loss_scale", *lr_columns(names)}
    return wide | {name for name in names if name.rpartition("/")[2] == "updates"}


def as_float32(values: np.ndarray) -> np.ndarray:
    """`values` rounded to float32; a finite value beyond its range becomes the largest one, never an infinity."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = values.astype(np.float32)
    overflowed = np.isinf(rounded) & np.isfinite(values)
    if overflowed.any():
        rounded[overflowed] = np.copysign(_FLOAT32_MAX, values[overflowed])
    return rounded
