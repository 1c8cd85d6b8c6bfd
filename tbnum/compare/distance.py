"""How far two columns are apart, and how that grows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tbnum.compare.align import Aligned, values_of

__all__ = ["THRESHOLDS", "Distance", "differing", "distance", "last_tenth", "relative_distance"]

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
    """Some 10 ms a million rows."""
    (first, known), (second, also) = (values_of(steps, name, at) for steps, at in zip((a, b), rows.rows, strict=True))
    both = known & also
    first, second, step = first[both], second[both], rows.step[both]
    apart = np.flatnonzero(differing(first, second, rtol, atol))
    relative = _relative(first, second)
    passes: dict[float, int | None] = {}
    for threshold in THRESHOLDS:
        beyond = np.flatnonzero(relative > threshold)
        passes[threshold] = int(step[beyond[0]]) if len(beyond) else None
    tenth = last_tenth(len(step))
    return Distance(
        name,
        len(step),
        int(step[apart[0]]) if len(apart) else None,
        passes,
        _mean(relative[tenth]),
        _mean(first[tenth]),
        _mean(second[tenth]),
    )


def relative_distance(
    a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], rows: Aligned, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """The steps (N,) at which both know a column, and |a - b| / max(|a|, |b|) there, (N,)."""
    (first, known), (second, also) = (values_of(steps, name, at) for steps, at in zip((a, b), rows.rows, strict=True))
    both = known & also
    return rows.step[both], _relative(first[both], second[both])


def last_tenth(count: int) -> slice:
    return slice(count - max(1, count // 10) if count else 0, count)


def _relative(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        relative = np.abs(first - second) / np.maximum(np.abs(first), np.abs(second))
    return np.where(differing(first, second, 0.0, 0.0), np.where(np.isfinite(relative), relative, math.inf), 0.0)


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
