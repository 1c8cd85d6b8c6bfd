"""The batch of a step that failed, beside those of the steps around it: its loss, and the gradients that it left."""

from __future__ import annotations

import functools
import math
import statistics

import numpy as np

from tbnum.explain.close_look import Gradients
from tbnum.explain.facts import Known
from tbnum.explain.outliers import is_of_the_tail, loss_is_usual, loss_is_within, loss_stands_out
from tbnum.explain.past import Past
from tbnum.explain.thresholds import (
    BACKWARD_LARGEST_OF_ALL,
    BACKWARD_LARGEST_OF_SOME,
    EITHER_SHARE,
    LOSS_AS_ANY,
    NORM_ROSE,
    OUTLYING_LOSS,
    OVERFLOWING_NORMS,
    SPOILED_NORMS,
    SPOILED_NORMS_ALONE,
)

__all__ = ["Batch"]

GOES_ON = 8
"""Losses after a skip, of which at least half have to stand out for it to be more than one batch."""

AT_ITS_PLACE = 4.0
"""Times the longest of the gradients, or the highest of the losses, at the same place of other epochs: of those that
overflowed themselves, nobody knows how long they were."""

GAIN_SHARE = 0.1
"""Share of the recent losses on either side of 0, from which on their sign is chance."""


class Batch:
    """Works out what it is asked for, each once: the past may have to read tables for it."""

    def __init__(self, event: Known, past: Past) -> None:
        self._event, self._past = event, past
        self.loss, self.scale = event.facts.loss, event.facts.loss_scale

    @functools.cached_property
    def recent(self) -> list[float]:
        """Losses of the steps before."""
        return self._past.recent_losses(self._event.step)

    @functools.cached_property
    def gradients(self) -> Gradients | None:
        facts = self._event.facts
        if not math.isnan(facts.nan):
            return Gradients(facts.nan, facts.inf, facts.largest_finite)
        return self._past.gradients(self._event.step, self._event.optimizer)

    @functools.cached_property
    def norm_ratio(self) -> float:
        """How many times their usual length the finite gradients have; NaN where unknown."""
        return self._past.norm_ratio(self._event.step, self._event.optimizer)

    @property
    def is_everywhere(self) -> bool:
        """Whether no tensor's gradient is finite."""
        return self._event.facts.nonfinite_tensors == self._event.facts.tensors

    @property
    def nearly_overflowed(self) -> bool:
        """Whether the largest finite gradient did, as the scaler had it."""
        return self.gradients is not None and self.gradients.largest_finite * self.scale > BACKWARD_LARGEST_OF_ALL

    @property
    def loss_is_good(self) -> bool:
        return (
            math.isfinite(self.loss)
            and not loss_stands_out(self.loss, self.recent)
            and loss_is_within(self.loss, self.recent)
        )

    @property
    def loss_is_alone(self) -> bool:
        """Whether no loss of a step before it, or right after it, is at least a third of it. False without any."""
        others = [*self.recent, *self._past.next_losses(self._event.step)]
        return bool(others) and not any(OUTLYING_LOSS * abs(loss) >= self.loss for loss in others)

    @property
    def loss_is_high(self) -> bool:
        recent = self.recent
        return len(recent) >= 10 and sum(self.loss > loss for loss in recent) >= EITHER_SHARE * len(recent)

    def loss_recurs(self, *, after: bool = False) -> bool:
        """Whether steps that did not overflow had losses as high for their time: heavy tails make such batches."""
        heights = self._past.heights("loss", self._event.step, None, after=after)
        return is_of_the_tail(self.times_usual, heights) or self._is_at_its_place(self.times_usual, 1)

    @property
    def times_usual(self) -> float:
        """The loss as a multiple of the recent ones; NaN where these are not above 0."""
        usual = statistics.median(self.recent) if self.recent else 0.0
        return self.loss / usual if usual > 0 else math.nan

    @functools.cached_property
    def _others_at_its_place(self) -> tuple[np.ndarray, np.ndarray]:
        return self._past.heights_at_its_place(self._event.step, self._event.optimizer)

    def _is_at_its_place(self, height: float, which: int) -> bool:
        """Whether it is one of the batches, at the end of each epoch say, whose gradients are the longest anyhow, and
        its norm (0) or its loss (1) is not far above theirs."""
        others = self._others_at_its_place[which]
        return len(others) > 0 and height <= AT_ITS_PLACE * max(1.0, float(others.max()))

    @property
    def loss_goes_on(self) -> bool:
        """Whether losses stay as high: a batch that was skipped changed nothing, and others are not to blame for it."""
        following = self._past.next_losses(self._event.step)
        if len(following) < GOES_ON or not loss_stands_out(self.loss, self.recent):
            return False
        return loss_stands_out(statistics.median(following), self.recent)

    def norms_stand_out(self, *, after: bool = False) -> bool:
        """Whether the finite gradients are far longer than usual, and no others that were taken were as long.

        Further where the loss is as any other, and the largest finite gradient nearly overflowed as well: samples that
        happen to pull in one direction have long gradients, too. Of a loss on both sides of 0 that is no evidence, nor
        where they are longer by hardly more than the loss is higher, and such losses recur.
        """
        if self._is_gain:
            return False
        if self.norm_ratio <= NORM_ROSE * self.times_usual and self.loss_recurs(after=after):
            return False
        alone = self.nearly_overflowed and loss_is_usual(self.loss, self.recent, LOSS_AS_ANY)
        if not self.norm_ratio >= (SPOILED_NORMS_ALONE if alone else SPOILED_NORMS):
            return False
        heights = self._past.heights("grad_norm", self._event.step, self._event.optimizer, after=after)
        return not (is_of_the_tail(self.norm_ratio, heights) or self._is_at_its_place(self.norm_ratio, 0))

    @property
    def _is_gain(self) -> bool:
        """Whether losses lie on both sides of 0, as a policy's gain: gradients are as long as what was won or lost."""
        below = sum(loss < 0 for loss in self.recent)
        return GAIN_SHARE * len(self.recent) <= below <= (1 - GAIN_SHARE) * len(self.recent) and below > 0

    @property
    def is_nan_alone(self) -> bool:
        """Whether a loss as any other left NaN and no inf, say in one tensor, and others far from the end of float16
        and as long as usual: an operation's backward did so, or the product of an activation that overflowed.
        """
        gradients = self.gradients
        if gradients is None or not gradients.nan > 0 or gradients.inf > 0:
            return False
        end = BACKWARD_LARGEST_OF_ALL if self.is_everywhere else BACKWARD_LARGEST_OF_SOME
        near = gradients.largest_finite * self.scale > end
        longer = self.norm_ratio >= OVERFLOWING_NORMS
        return not near and not longer and self.loss_is_good and not self.loss_is_high
