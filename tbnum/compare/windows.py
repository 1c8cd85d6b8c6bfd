"""Stretches of steps whose tables of tensors are compared at a time, so that memory does not grow with the runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tbnum.compare.align import shared

__all__ = ["windows"]

VALUES = 4 << 20
"""That are in memory at once, of both runs."""


def windows(a: np.ndarray, b: np.ndarray, until: int | None, width: int) -> Iterator[tuple[int, int]]:
    """The first and last step of each, of the steps that both runs have; `width` values a step.

    Each begins with the last step of the one before it, so that a step is seen beside the one that precedes it.
    """
    steps, _, _ = shared(a, b)
    if until is not None:
        steps = steps[steps <= until]
    rows = max(2, VALUES // max(1, width))
    for begin in range(0, max(1, len(steps) - 1), rows - 1) if len(steps) else ():
        yield int(steps[begin]), int(steps[min(begin + rows, len(steps)) - 1])
