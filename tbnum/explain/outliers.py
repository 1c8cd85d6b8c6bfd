"""Whether a loss stands out from its recent ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from tbnum.explain.thresholds import RECURS, RECURS_EXPECTED, TAIL_LEAST, TAIL_VALUES

__all__ = ["is_of_the_tail", "loss_is_usual", "loss_is_within", "loss_stands_out", "period_of"]

PERIOD_LEAST = 8
"""Steps of a period, of a data set say, in which the last batch is a short one."""

BY_CHANCE = 8
"""Times as many of the highest values have to stand at one place of it as would by chance, and half of them."""


def loss_is_usual(loss: float, recent: Sequence[float], deviations: float) -> bool:
    """Whether a loss is known to be as its recent ones are: at most so many robust deviations over their median.

    The batch that overflows is the one whose gradient is longest, and so is its loss: among good ones, too, it is high.
    """
    recent = _some(recent)
    if len(recent) < 10 or not math.isfinite(loss):
        return False
    median, deviation = _spread(recent)
    return loss - median <= max(deviations * deviation, 0.1 * abs(median))


def loss_stands_out(loss: float, recent: Sequence[float]) -> bool:
    """Whether a loss lies far above its recent ones: 8 robust standard deviations over their median, and a tenth.

    Far, because it overrules a rule: a scale that has just grown is a better suspect than a batch that is a bit worse.
    """
    recent = _some(recent)
    if len(recent) < 10 or not math.isfinite(loss):
        return False
    median, deviation = _spread(recent)
    return loss - median > max(8 * deviation, 0.1 * abs(median))


def loss_is_within(loss: float, recent: Sequence[float]) -> bool:
    """Whether a loss is known to be at most twice its largest recent one, however few those are."""
    return any(loss <= 2 * abs(each) for each in recent)


def is_of_the_tail(height: float, heights: np.ndarray) -> bool:
    """Whether a value so many times the usual belongs to the data: others were as high, or nearly.

    What the tail of the others lets expect is Hill's estimate, from the highest of them.
    """
    if not height > 1 or not math.isfinite(height) or len(heights) < TAIL_LEAST:
        return False
    if np.count_nonzero(heights >= height) >= RECURS:
        return True
    highest = np.sort(heights)[-TAIL_VALUES:]
    spread = float(np.log(highest[1:] / highest[0]).mean()) if highest[0] > 1 else 0.0
    return spread > 0 and TAIL_VALUES * (highest[0] / height) ** (1 / spread) >= RECURS_EXPECTED


def _some(losses: Sequence[float]) -> Sequence[float]:
    """Without those of exactly 0, of a hinge that nothing pulls at: they are no measure of others."""
    return [loss for loss in losses if loss != 0]


def period_of(place: int, places: np.ndarray, heights: np.ndarray) -> int:
    """By which most of the highest of values (at rising `places`) lie apart, from `place` as well; 0: by none.

    A short last batch of each epoch has gradients that are longer, for fewer samples agree less, and no other has.
    """
    if len(places) < TAIL_LEAST:
        return 0
    highest = np.sort(places[np.argpartition(heights, -TAIL_VALUES)[-TAIL_VALUES:]])
    periods = np.unique(np.abs(highest[:, None] - highest))
    periods = periods[periods >= PERIOD_LEAST]
    alike = np.count_nonzero((highest - place) % periods[:, None] == 0, axis=1)
    enough = alike >= np.maximum(TAIL_VALUES / 2, BY_CHANCE * TAIL_VALUES / periods)
    return int(periods[int(np.argmax(np.where(enough, alike, 0)))]) if enough.any() else 0


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """Median and robust standard deviation."""
    median = statistics.median(values)
    return median, 1.4826 * statistics.median(abs(value - median) for value in values)
