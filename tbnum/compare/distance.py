"""How far two columns are apart, and how that grows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tbnum.compare.align import Aligned, known_rows

__all__ = ["THRESHOLDS", "Distance", "differing", "distance", "relative_distance"]

THRESHOLDS = (1e-6, 1e-3, 1e-1)


@dataclass(frozen=True)
class Distance:
    """Of one column. Relative distances are |a - b| / max(|a|, |b|); None where there is none."""

    column: str
    compared: int  # rows at which both know it
    first_step: int | None  # the first at which it differs by more than was asked for
    passes: dict[float, int | None]  # the first step at which the relative distance passes each threshold
    last_tenth: float | None  # the mean relative distance over the last tenth of the rows
    a: float | None  # the means over the last tenth
    b: float | None


class _Pair(NamedTuple):
    """A column of both runs, at the rows that belong together, (N,)."""

    first: np.ndarray
    second: np.ndarray
    known: np.ndarray | None  # (N,) bool, where both know it; None: everywhere
    apart: np.ndarray  # (K,) the rows at which both know it and the values are not the same


def differing(first: np.ndarray, second: np.ndarray, rtol: float, atol: float) -> np.ndarray:
    """(N,) bool: where two values differ by more than atol + rtol * |second|. Two NaNs do not; NaN and a number do."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(first - second) > atol + rtol * np.abs(second)
    nan = np.isnan(first) | np.isnan(second)
    infinite = np.isinf(first) | np.isinf(second)
    odd = np.where(nan, np.isnan(first) != np.isnan(second), first != second)
    return np.where(nan | infinite, odd, apart)


def distance(
    a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], rows: Aligned, name: str, rtol: float, atol: float
) -> Distance:
    """Some 1 ms a million rows, and 20 ms a million that differ."""
    pair = _pair(a, b, rows, name)
    count = len(pair.first) if pair.known is None else int(np.count_nonzero(pair.known))
    first, second, step = pair.first[pair.apart], pair.second[pair.apart], rows.step[pair.apart]
    beyond = step if rtol == atol == 0.0 else step[differing(first, second, rtol, atol)]
    relative = _relative(first, second)
    late = _last_tenth(pair, count)
    return Distance(
        name,
        count,
        int(beyond[0]) if len(beyond) else None,
        {threshold: _first(step, relative > threshold) for threshold in THRESHOLDS},
        float(relative[np.searchsorted(pair.apart, late[0]) :].sum()) / len(late) if len(late) else None,
        float(pair.first[late].mean()) if len(late) else None,
        float(pair.second[late].mean()) if len(late) else None,
    )


def relative_distance(
    a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], rows: Aligned, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """The steps (N,) at which both know a column, and |a - b| / max(|a|, |b|) there, (N,)."""
    pair = _pair(a, b, rows, name)
    relative = np.zeros(len(rows.step))
    relative[pair.apart] = _relative(pair.first[pair.apart], pair.second[pair.apart])
    return (rows.step, relative) if pair.known is None else (rows.step[pair.known], relative[pair.known])


def _pair(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], rows: Aligned, name: str) -> _Pair:
    first, second = (
        steps[name][at].astype(np.float64, copy=False) for steps, at in zip((a, b), rows.rows, strict=True)
    )
    apart = np.flatnonzero(first != second)  # and where one of them is NaN
    nan = np.isnan(first[apart]), np.isnan(second[apart])
    if not (nan[0].any() or nan[1].any()):
        return _Pair(first, second, None, apart)
    known = known_rows(a, name, rows.rows[0]) & known_rows(b, name, rows.rows[1])
    return _Pair(first, second, known, apart[known[apart] & ~(nan[0] & nan[1])])


def _last_tenth(pair: _Pair, count: int) -> np.ndarray:
    """The last tenth of the rows at which both know the column."""
    late = max(1, count // 10) if count else 0
    if pair.known is None:
        return np.arange(count - late, count)
    return np.flatnonzero(pair.known)[count - late :]


def _relative(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Of values that differ."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        relative = np.abs(first - second) / np.maximum(np.abs(first), np.abs(second))
    relative[~np.isfinite(relative)] = math.inf
    return relative


def _first(step: np.ndarray, there: np.ndarray) -> int | None:
    at = int(there.argmax()) if len(there) else 0
    return int(step[at]) if len(there) and there[at] else None
