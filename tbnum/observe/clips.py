"""What a clip covers, by what it multiplies, and whether the gradients still carried the loss scale."""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tbnum.measure.norms import Taken
from tbnum.observe.attempt import UNKNOWN, Attempt
from tbnum.observe.caller import users_line
from tbnum.observe.gradients import Gradients, parameters_of
from tbnum.observe.loop import Loop
from tbnum.observe.meter import measured
from tbnum.observe.rescaling import Rescaling, rescaling, unscaled_by_hand
from tbnum.observe.track import Track
from tbnum.observe.transfer import Number, capturing, hold
from tbnum.observe.watcher import Part, harmless

__all__ = ["Clips", "Cover", "coefficient_of", "may_be_sums"]


class Cover(enum.Enum):
    """What a clip covers of an optimizer's gradients."""

    SOME = enum.auto()
    ALL = enum.auto()
    ALL_AND_NO_OTHERS = enum.auto()  # looked for only where tensors are sharded


class Clips(Part):
    """What happens at a clip."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._loop = loop

    @harmless
    def begins(
        self,
        parameters: Sequence[Tensor],
        max_norm: float | None,
        taken: Taken | None = None,
        value: float | None = None,
    ) -> dict[str, Cover]:
        """Before gradients are clipped, by norm or (`max_norm` None) by `value`. `taken` are their norms as they are.

        Returns the names of the optimizers that the clip touches, and what of their gradients it covers; to be given
        to `ended`.
        """
        if capturing():
            return {}
        clipped: set[int] = set()
        touched: dict[str, Cover] = {}
        limit = {"max_norm": max_norm} if value is None else {"clip_value": value}
        for name, track in self._loop.tracks.items():
            optimizer = track.optimizer
            if optimizer is None or (track.is_stepping and not track.may_evaluate):
                continue
            its_own = parameters_of(optimizer)
            is_all = len(parameters) == len(its_own) and all(map(operator.is_, parameters, its_own))
            if not is_all:  # which is rare, and takes longer to look at
                clipped = clipped or set(map(id, parameters))
                # Only then look at gradients: those of another loop may be written by another thread just now.
                if clipped.isdisjoint(map(id, its_own)):
                    continue
            gradients = Gradients.of(optimizer)
            if max_norm == math.inf:  # no clip: a way to ask for the norm, which multiplies by one
                is_whole = is_all or all(id(its_own[place]) in clipped for place in gradients.places)
                touched |= self._asks(track, optimizer, gradients, is_whole, taken)
                continue
            if track.open is None and (not gradients.tensors or gradients.marks() == track.used):
                if is_all and gradients.tensors:
                    self._loop.report_once("clip_after_step", {"where": users_line(), **limit}, track)
                continue  # left over from the last step, which they made
            # Tied parameters that are listed twice are clipped twice, by a coefficient that is not theirs.
            is_once = is_all or len(clipped) == len(parameters)
            whole = is_all or (is_once and all(id(its_own[place]) in clipped for place in gradients.places))
            touched[name] = Cover.ALL if whole else Cover.SOME
            attempt = self._before(track, optimizer, gradients, limit, taken)
            if value is not None and value <= 0:
                self._loop.report_once("clip_value_invalid", {"where": users_line(), "clip_value": value}, track)
            if whole and attempt.layout is not None and clipped.issubset(map(id, its_own)):
                touched[name] = Cover.ALL_AND_NO_OTHERS
        return touched

    @harmless
    def norm_taken(self, gradients: Sequence[Tensor]) -> None:
        """Somebody took the norm of these with torch's function for it, to decide what to do."""
        ids = set(map(id, gradients))
        for track in self._loop.tracks.values():
            optimizer = track.optimizer
            if optimizer is not None and track.open is not None and not track.is_stepping:
                there = Gradients.of(optimizer)
                if there.tensors and ids.issuperset(map(id, there.tensors)):
                    self._norm_taken(track, track.open, optimizer, there)

    def _norm_taken(
        self,
        track: Track,
        attempt: Attempt,
        optimizer: torch.optim.Optimizer,
        gradients: Gradients,
        taken: Taken | None = None,
    ) -> None:
        is_new = not gradients.same_as(attempt.seen) and not (attempt.clipped or attempt.has_own_scale)
        if attempt.waits_for_clip is not None and taken is not None:
            self._measure_waiting(track, attempt, optimizer, gradients, taken)
        elif is_new and attempt.unscaled_after is None:
            divisor = 1.0 if attempt.scaler is None else _held_scale(attempt.scaler)
            self._loop.meter.measure(track, attempt, optimizer, gradients, divisor, taken)
        attempt.norm_taken = True
        # Of a finite one a probe may want the norm, and no step: it is a look where the loop takes it before each step.
        if attempt.before.known_nonfinite or track.takes_norms:
            self._loop.looks(track, optimizer)

    def _asks(
        self, track: Track, optimizer: torch.optim.Optimizer, gradients: Gradients, is_whole: bool, taken: Taken | None
    ) -> dict[str, Cover]:
        """Somebody wants to know the norm."""
        attempt = track.open
        if attempt is None:
            return {}
        if is_whole and gradients.tensors:
            self._norm_taken(track, attempt, optimizer, gradients, taken)
        return {track.name: Cover.SOME} if gradients.same_as(attempt.seen) else {}

    def _before(
        self,
        track: Track,
        optimizer: torch.optim.Optimizer,
        gradients: Gradients,
        limit: Mapping[str, float | None],
        taken: Taken | None,
    ) -> Attempt:
        attempt = self._loop.looks(track, optimizer)
        track.clips_after_unscale = attempt.unscaled_after is not None
        if attempt.waits_for_clip is not None:
            self._measure_waiting(track, attempt, optimizer, gradients, taken)
        elif not gradients.same_as(attempt.seen):
            self._measure(track, attempt, optimizer, gradients, limit, taken)
        elif taken is not None and attempt.unscaled_after is not None and not attempt.clipped:
            # The norms are those of the pass at `unscale_`, but for their last bits: whichever way a loop goes, it has
            # the same hash at its first step as at all others.
            attempt.before = measured(gradients.tensors, attempt.before.divisor, taken)
        attempt.clipped = True
        attempt.clipped_after = len(attempt.backwards)
        return attempt

    def _measure_waiting(
        self,
        track: Track,
        attempt: Attempt,
        optimizer: torch.optim.Optimizer,
        gradients: Gradients,
        taken: Taken | None,
    ) -> None:
        meter = self._loop.meter
        if attempt.is_mixture:  # of gradients with the scale and without: their norm is none of either
            meter.lose(attempt, gradients)
            attempt.uncertain = True
            track.clips_after_unscale = False
        else:  # as they are now, whatever the loop did to them since `unscale_`: before the clip
            if not gradients.same_as(attempt.waits_for_clip):
                track.beginning.rescaled()
            meter.measure(track, attempt, optimizer, gradients, 1.0, taken)

    def _measure(
        self,
        track: Track,
        attempt: Attempt,
        optimizer: torch.optim.Optimizer,
        gradients: Gradients,
        limit: Mapping[str, float | None],
        taken: Taken | None,
    ) -> None:
        loop = self._loop
        is_unscaled = attempt.unscaled_after is not None
        if is_unscaled and (attempt.is_mixture or attempt.clipped):
            attempt.uncertain = True
            return
        is_after_clip = attempt.clipped and attempt.clipped_after == len(attempt.backwards)
        if is_after_clip and not may_be_sums(track, attempt, gradients):
            if torch._C._current_graph_task_id() != -1:  # a hook of a backward clips what has arrived of its gradients
                loop.meter.lose(attempt, gradients)
            attempt.uncertain = True
            return
        divisor: Number = 1.0
        if attempt.scaler is not None and not is_unscaled:
            divisor = attempt.loss_scale = _held_scale(attempt.scaler)
            if unscaled_by_hand(attempt, gradients, divisor):
                track.rescales, divisor = True, 1.0
            elif _is_meant_for_unscaled(limit, divisor):
                where = {"where": users_line(), **limit, "loss_scale": _on_host(divisor)}
                loop.report_once("clip_before_unscale", where, track)
        elif attempt.has_own_scale and not attempt.is_measured:
            divisor = attempt.loss_scale
        else:
            what = rescaling(attempt, gradients)
            if what is not Rescaling.NONE:
                track.beginning.rescaled()
            if what is Rescaling.SCALE:
                attempt.loss_is_known = False
                loop.report_once("own_scale", {"where": users_line()}, track)
        loop.meter.measure(track, attempt, optimizer, gradients, divisor, taken)

    @harmless
    def ended(
        self, touched: Mapping[str, Cover], max_norm: float | None, total_norm: Tensor | None, *, is_2_norm: bool
    ) -> None:
        """After the clip. `total_norm` is the norm that the clip went by; `is_2_norm` only where that is sure."""
        for name, cover in touched.items():
            attempt = self._loop.tracks[name].open
            if attempt is None:
                continue
            if max_norm == math.inf:
                attempt.seen = None if attempt.seen is None else attempt.seen.again()
                continue
            if max_norm is not None:
                divisor = attempt.before.divisor
                # In the units of unscaled gradients.
                attempt.max_norms.add(max_norm / divisor if isinstance(divisor, float) and divisor else max_norm)
            _note_coefficient(attempt, cover, max_norm, total_norm, is_2_norm)
            if attempt.seen is not None:
                is_known = cover is not Cover.SOME and max_norm is not None
                attempt.seen = attempt.seen.multiplied() if is_known else attempt.seen.again()


def _note_coefficient(
    attempt: Attempt, cover: Cover, max_norm: float | None, total_norm: Tensor | None, is_2_norm: bool
) -> None:
    if cover is Cover.SOME or max_norm is None or total_norm is None:
        attempt.uncertain = True
    elif hasattr(total_norm, "_local_tensor"):
        # Its value may take a collective. It is the norm before the clip, which the reader of the log has.
        exact = is_2_norm and cover is Cover.ALL_AND_NO_OTHERS
        if exact and not (attempt.coefficients or attempt.clip_is_derived):
            attempt.clip_is_derived = True
        else:
            attempt.uncertain = True
    elif attempt.clip_is_derived:
        attempt.uncertain = True
    else:
        attempt.coefficients.append(coefficient_of(max_norm, hold(total_norm)))


def may_be_sums(track: Track, attempt: Attempt, gradients: Gradients) -> bool:
    """Whether other gradients than those that were clipped are something else than these, masked or made smoother.

    Where attempts before ended without a step, they may be sums of what was clipped in each.
    """
    is_new = attempt.seen is None or set(gradients.ids()).isdisjoint(attempt.seen.ids())
    return is_new and (track.ended > 0 or not attempt.backwards)


def coefficient_of(max_norm: float, total_norm: Number) -> Number:
    """torch's rule: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html"""
    coefficient = max_norm / (total_norm + 1e-6)
    if isinstance(coefficient, Tensor):
        return coefficient.clamp(max=1.0)
    return coefficient if coefficient < 1.0 or math.isnan(coefficient) else 1.0


def _is_meant_for_unscaled(limit: Mapping[str, float | None], scale: Number) -> bool:
    """Whether a threshold, of a norm or of values, for gradients that carry a scale leaves the scale out.

    People write thresholds of few digits. `max_norm=1.0` at 2^16 clips at 0.0000152587890625, which nobody wrote;
    `0.5 * scaler.get_scale()` is 32,768 and clips at 0.5. Of a scale that only a device knows, few digits must do.
    """
    (threshold,) = limit.values()
    if threshold is None:
        return False
    if not isinstance(scale, float):
        return _digits(threshold) <= 3
    return scale not in (0.0, 1.0) and _digits(threshold) < _digits(threshold / scale)


def _held_scale(scaler: torch.amp.GradScaler) -> Number:
    return 1.0 if scaler._scale is None else hold(scaler._scale)


def _digits(number: float) -> int:
    """Significant decimal digits that determine the number."""
    return next((digits for digits in range(1, 17) if float(f"{number:.{digits}g}") == number), 17)


def _on_host(number: Number) -> float:
    """The value where the host has it already, else NaN: asking a device would make the host wait."""
    return number if isinstance(number, float) else UNKNOWN
