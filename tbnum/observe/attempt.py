"""An attempt to update: what is known of it from its first gradient until its outcome, still partly on a device."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

from tbnum.measure.histogram import TensorHistograms, histograms_of, total_histograms_of
from tbnum.measure.norms import TensorNorms
from tbnum.measure.statistics import TensorStatistics
from tbnum.observe.gradients import Gradients, Marks
from tbnum.observe.shards import Layout
from tbnum.observe.transfer import Number, tensors_in
from tbnum.observe.unseen_writes import UnseenWrites

__all__ = [
    "NOTHING",
    "UNKNOWN",
    "Attempt",
    "Change",
    "Histograms",
    "Loss",
    "Measurement",
    "Named",
    "Outcome",
    "Rows",
    "Update",
]

UNKNOWN = math.nan


class Outcome(enum.Enum):
    """What became of an attempt."""

    STEPPED = "stepped"
    HELD = "held"  # skipped by a scaler
    GIVEN_UP = "given_up"  # the loop threw the gradients away
    ON_THE_SIDE = "on_the_side"  # the gradients were never meant for an update


@dataclass(eq=False, slots=True)
class Loss:
    """A loss that a backward began with, or that the user reported. `value` still carries `divisor`."""

    value: Number
    divisor: Number = 1.0
    is_known: bool = True  # False: backward did not begin with a number that is a loss
    used_by: set[str] = field(default_factory=set)  # optimizers that stepped with its gradients

    def tensors(self) -> list[Tensor]:
        return tensors_in((self.value, self.divisor))

    @property
    def is_finite(self) -> bool | None:
        """None where only a device knows, or nobody does."""
        if not self.is_known or isinstance(self.value, Tensor):
            return None
        return math.isfinite(self.value)


@dataclass(slots=True)
class Measurement:
    """One pass over some gradients; lists have one entry a device."""

    norms: list[TensorNorms]
    totals: list[Number]  # still multiplied by `divisor`, as all of it
    nonfinite: list[Number]  # gradients that hold NaN or inf
    divisor: Number = 1.0
    by_clip: bool = False  # the norms are those that torch's clip computed
    is_usual: bool = False  # on one device, the host, and finite, neither vanishing nor infinite

    def tensors(self) -> list[Tensor]:
        norms = [each.norms for each in self.norms]
        return norms + tensors_in([*self.totals, *self.nonfinite, self.divisor])

    @property
    def known_nonfinite(self) -> bool:
        """Whether the host knows that a gradient holds NaN or inf."""
        return not self.is_usual and any([isinstance(count, float) and count > 0 for count in self.nonfinite])


@dataclass(frozen=True)
class Histograms:
    """Of some tensors together, one entry a device, and where that was due of each."""

    whole: list[Tensor]  # (BINS,) int64
    each: list[TensorHistograms] | None

    @staticmethod
    def beside(statistics: list[TensorStatistics]) -> Histograms:
        """What was counted in the same pass as statistics."""
        each = [one.histograms for one in statistics if one.histograms is not None]
        return Histograms([one.histogram for one in statistics], each or None)

    @staticmethod
    def of(tensors: Sequence[Tensor], each_of_them: bool) -> Histograms:
        """One pass over the elements."""
        if not each_of_them:
            return Histograms(list(total_histograms_of(tensors).values()), None)
        each = histograms_of(tensors)
        return Histograms([histograms.counts.sum(0) for histograms in each], each)

    def without(self, tensors: Sequence[Tensor]) -> Histograms:
        """Of all but some of the tensors together; of each as before. One pass over those."""
        left_out = total_histograms_of(tensors)
        whole = [counts - left_out[counts.device] if counts.device in left_out else counts for counts in self.whole]
        return replace(self, whole=whole)

    def tensors(self) -> list[Tensor]:
        return self.whole + [histograms.counts for histograms in self.each or ()]


@dataclass(frozen=True)
class Rows:
    """Statistics of each of some tensors; `divisor` is what the tensors still carried."""

    statistics: list[TensorStatistics]
    histograms: Histograms
    divisor: Number
    checksums: Tensor | None = None  # one a tensor, int64

    def tensors(self) -> list[Tensor]:
        values = [each.values for each in self.statistics]
        values += [] if self.checksums is None else [self.checksums]
        return values + self.histograms.tensors() + tensors_in([self.divisor])


@dataclass(frozen=True)
class Change:
    """Norms and histograms of the parameters and of their change in a step."""

    norms: dict[str, list[TensorNorms]]
    histograms: dict[str, Histograms]

    def tensors(self) -> list[Tensor]:
        norms = [each.norms for norms in self.norms.values() for each in norms]
        return norms + [tensor for histograms in self.histograms.values() for tensor in histograms.tensors()]


NOTHING = Measurement([], [], [])


class Attempt:
    """One optimizer's attempt to update. Values are `Number`s until they have landed.

    What an attempt of a plain loop leaves as it is stands in the class: there are many attempts.
    """

    outcome: Outcome | None = None
    why_given_up: str | None = None  # "loss" or "looked"
    loss_follows_scale = False  # a part of it was made of gradients of a scaled loss
    loss_is_known = True  # False: the loss that backward saw carries a factor that nobody gave
    arrived: Marks = ([], [])  # of the gradients after the last backward
    versions: tuple[int, ...] = ()  # of some parameters then, where that matters
    where = ""  # the user's line that the last backward was called from, where that matters
    leads_elsewhere = False  # the backward went for something besides the optimizers' parameters too
    samples: tuple[float, ...] = ()  # of the gradients then, which show by what they were multiplied since

    scaler: torch.amp.GradScaler | None = None  # whose scale the gradients carried
    has_own_scale = False  # the loop's own, that it gave to `wrap` as a callable
    loss_scale: Number = UNKNOWN  # what the gradients were divided by
    unscaled_after: int | None = None  # backwards, when `unscale_` had run
    unscaled_by_loop = False  # which called it, and may have written to the gradients since
    waits_for_clip: Gradients | None = None  # unscaled, and to be measured by the clip that follows

    is_measured = False
    places: Sequence[int] = ()  # of the parameters that have a gradient, among all of the optimizer's
    parameters = 0  # how many the optimizer has
    before: Measurement = NOTHING  # of the gradients before clipping
    before_is_lost = False  # somebody had rescaled them by hand
    rows: Rows | None = None  # likewise, tensor by tensor
    after: Measurement | None = None  # of what the optimizer got, where it was measured
    places_after: Sequence[int] | None = None  # of the parameters that had a gradient then
    unseen_writes: UnseenWrites | None = None  # to compare `after` with, once it has landed
    used: Marks = ([], [])  # of what the optimizer was to get
    after_is_lost = False  # somebody wrote to it after tbnum's look: a hook of the user's, say
    change: Change | None = None
    left: Mapping[str, Tensor] = MappingProxyType({})  # (P,) int64 each: checksums of what the step left
    seen: Gradients | None = None  # the gradients when they were last looked at
    looked_at: tuple[int, ...] | None = None  # versions of some parameters when somebody looked at gradients
    norm_taken = False  # by torch's function for it, and not to clip

    clipped = False  # a clip was seen
    clipped_after = 0  # backwards, when it was
    uncertain = False  # gradients changed in a way that `coefficients` does not show
    clip_is_derived = False  # a clip went by the norm of all ranks' parts, which no rank has
    layout: Layout | None = None  # where tensors are sharded: norms are of this rank's part alone

    found_inf: Sequence[Number] = ()
    parameters_nonfinite: Number | None = None
    lr: Sequence[Number] = ()
    snapshot: list[Tensor] | None = None  # the parameters as they were

    def __init__(self) -> None:
        self.backwards: list[Loss] = []
        self.logged: list[Loss] = []  # what the user reported in place of those
        self.coefficients: list[Number] = []  # of clips that covered every gradient
        self.max_norms: set[float] = set()

    @property
    def losses(self) -> list[Loss]:
        return self.logged or self.backwards

    @property
    def is_mixture(self) -> bool:
        """Whether a backward has added gradients that carry the scale to gradients that had been unscaled."""
        return self.unscaled_after is not None and len(self.backwards) > self.unscaled_after

    @property
    def has_nonfinite_loss(self) -> bool:
        """Whether the host knows of one."""
        for loss in self.logged or self.backwards:
            if loss.is_known and not (isinstance(loss.value, Tensor) or math.isfinite(loss.value)):
                return True
        return False

    @property
    def is_quiet(self) -> bool:
        """Whether the host has all of its values, and none is worth a look. So are most: it calls nothing."""
        if not (self.before.is_usual and self.outcome is Outcome.STEPPED and type(self.loss_scale) is float):
            return False
        if not (self.rows is self.change is self.after is self.parameters_nonfinite is self.layout is None):
            return False
        if self.uncertain or self.before_is_lost or self.after_is_lost:
            return False
        for loss in (*self.backwards, *self.logged):
            if type(loss.value) is not float or type(loss.divisor) is not float:
                return False
        for found_inf in self.found_inf:
            if type(found_inf) is not float or found_inf:
                return False
        for number in (*self.lr, *self.coefficients):
            if type(number) is not float:
                return False
        return type(self.before.divisor) is float

    @property
    def is_worth_a_look(self) -> bool:
        """Whether the host knows of something that is not to wait for other steps."""
        return (
            self.outcome is not Outcome.STEPPED
            or self.rows is not None
            or self.change is not None
            or self.before.known_nonfinite
            or (self.after is not None and self.after.known_nonfinite)
            or any([total for total in self.before.totals if isinstance(total, float) and total == math.inf])
            or any([found_inf for found_inf in self.found_inf if isinstance(found_inf, float)])
        )

    def tensors(self) -> list[Tensor]:
        """All that may be on a device, for a `Transfer`."""
        found: list[Tensor] = []
        for part in (self.before, self.after, self.rows, self.change, *self.backwards, *self.logged):
            if part is not None:
                found += part.tensors()
        found += self.left.values()
        nonfinite = () if self.parameters_nonfinite is None else (self.parameters_nonfinite,)
        return found + tensors_in([*self.coefficients, *self.found_inf, *self.lr, *nonfinite, self.loss_scale])

    def let_go(self) -> None:
        """Keep no gradient alive that is not ours."""
        self.seen = self.waits_for_clip = None
        self.scaler = None


@dataclass
class Update:
    """One call of `scaler.update()`."""

    old_scale: Number
    growth_tracker: Number
    was_set: bool
    new_scale: Number = UNKNOWN

    @property
    def is_quiet(self) -> bool:
        """Whether the host knows that the scale has stayed."""
        known = type(self.growth_tracker) is type(self.old_scale) is type(self.new_scale) is float
        return known and not self.was_set and bool(self.old_scale == self.new_scale)

    def tensors(self) -> list[Tensor]:
        return tensors_in([self.old_scale, self.growth_tracker, self.new_scale])


Named = dict[str, list[Number]]
"""Losses that were reported under a name, in the open step."""
