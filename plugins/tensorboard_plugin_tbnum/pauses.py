"""Pauses of a run: long stretches without a step, as between two sessions. A time axis leaves them out."""

from __future__ import annotations

import numpy as np

__all__ = ["pauses"]

LEAST_SECONDS = 600.0
LEAST_STEPS = 20
"""Of the run's usual steps: what takes as long is no pause where each step does."""


def pauses(wall: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where nothing closed for long: (K,) indices of the steps before, and (K,) seconds beyond a usual step's.

    `wall` is (S,) float64, NaN where unknown. Some ms for a million steps.
    """
    known = np.flatnonzero(np.isfinite(wall))
    apart = np.diff(wall[known])
    if not len(apart):
        return np.empty(0, np.int64), np.empty(0)
    usual = max(float(np.median(apart)), 0.0)
    long = apart > max(LEAST_SECONDS, LEAST_STEPS * usual)
    return known[:-1][long], apart[long] - usual
