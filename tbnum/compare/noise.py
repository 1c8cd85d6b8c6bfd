"""Whether two runs differ by more than seeds do: Student's t over the means of their last tenths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Verdict", "judged", "two_sided"]

LEVEL = 0.05
"""Below this probability a difference is more than noise."""


@dataclass(frozen=True)
class Verdict:
    """Of one column: `beyond` the noise, within it, or None: nothing says."""

    column: str
    difference: float  # of the means, the second minus the first
    noise: float | None  # the standard error of such a difference between runs that differ by their seed alone
    seeds: int  # degrees of freedom and one
    probability: float | None  # of a difference as large by chance
    beyond: bool | None
    how: str  # "pairs", "groups", "seeds" or "unknown"


def judged(
    column: str, a: Sequence[float], b: Sequence[float], seeds: Sequence[float] = (), *, paired: bool = False
) -> Verdict:
    """From the means of the runs of `a` and of `b`, one or several, and of further runs of one setting, `seeds`.

    `paired`: `a` and `b` have the same seeds in the same order. Fewer than two runs of one setting give no verdict: the
    spread within a run is not that of seeds.
    """
    first, second = np.asarray(a, float), np.asarray(b, float)
    difference = float(second.mean() - first.mean())
    if paired and len(first) > 1:
        return _verdict(
            column, difference, float((second - first).std(ddof=1)) / math.sqrt(len(first)), len(first), "pairs"
        )
    groups = [np.asarray(group, float) for group in (first, second, seeds) if len(group) > 1]
    if not groups:
        return Verdict(column, difference, None, 0, None, None, "unknown")
    free = sum(len(group) - 1 for group in groups)
    spread = math.sqrt(sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / free)
    error = spread * math.sqrt(1 / len(first) + 1 / len(second))
    return _verdict(column, difference, error, free + 1, "seeds" if len(seeds) > 1 else "groups")


def _verdict(column: str, difference: float, error: float, seeds: int, how: str) -> Verdict:
    if not math.isfinite(difference) or not math.isfinite(error):
        return Verdict(column, difference, None, seeds, None, None, "unknown")
    probability = two_sided(abs(difference) / error, seeds - 1) if error > 0 else float(difference == 0)
    return Verdict(column, difference, error, seeds, probability, probability < LEVEL, how)


def two_sided(t: float, free: int) -> float:
    """The probability of a value of Student's t beyond +-`t`, with `free` degrees of freedom."""
    x = free / (free + t * t)
    return _incomplete_beta(free / 2, 0.5, x)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularized, by its continued fraction, evaluated by Lentz's method."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1.0 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + numerator * d), 1 + numerator / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * fraction
