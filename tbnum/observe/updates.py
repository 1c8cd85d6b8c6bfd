"""What happens at an optimizer: its step, with a closure or without, and gradients that are thrown away."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tbnum.observe.attempt import Attempt
from tbnum.observe.caller import users_line
from tbnum.observe.clips import may_be_sums
from tbnum.observe.gradients import Gradients, parameters_of
from tbnum.observe.loop import Loop
from tbnum.observe.losses import Losses
from tbnum.observe.meter import any_nonfinite, learning_rates, measured
from tbnum.observe.rescaling import Rescaling, rescaling, unscaled_by_hand
from tbnum.observe.track import Signal, Track
from tbnum.observe.transfer import Number, capturing, hold
from tbnum.observe.watcher import Part, harmless
from tbnum.observe.withheld import Unspoilt

__all__ = ["Updates"]


class Updates(Part):
    """What happens at a step, and where gradients go without one."""

    def __init__(self, loop: Loop, losses: Losses) -> None:
        super().__init__(loop)
        self._loop = loop
        self._losses = losses

    @harmless
    def step_begins(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """Inside `optimizer.step()`. With a closure the gradients it will use come after this."""
        loop = self._loop
        track = loop.track_of(optimizer)
        if track is None or capturing():
            return
        if track.is_stepping:  # the step before ended in an exception
            track.forget()
        loop.enters()
        if self._losses.is_running:
            self._losses.step_begins_inside(track, optimizer)
        track.is_stepping, track.may_evaluate = True, has_closure
        is_new = track.open is None
        attempt = track.open or loop.opened(track, Signal.GRADIENT)
        attempt.lr = learning_rates(optimizer)
        loop.meter.keep_parameters(attempt, optimizer)
        lost = track.moments.lost(optimizer)
        if lost:
            loop.report_once("moments_reset", {"names": lost, "where": users_line()}, track)
        if has_closure:
            return
        gradients = Gradients.of(optimizer)
        if is_new and gradients.tensors and gradients.marks() == track.used:
            track.leftovers.found("step_without_backward", gradients)
        self._uses(track, attempt, optimizer, gradients)
        track.gets = gradients
        if attempt.has_nonfinite_loss or attempt.before.known_nonfinite:
            attempt.parameters_nonfinite = any_nonfinite(parameters_of(optimizer))  # before this step spoils them
            track.unspoilt = Unspoilt.of(attempt, optimizer)

    @harmless
    def step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        loop = self._loop
        track = loop.track_of(optimizer)
        if track is None or not track.is_stepping or capturing():
            return
        attempt = track.open
        if attempt is None:
            track.forget()
            return
        gradients = Gradients.of(optimizer) if track.gets is None else track.gets.again()
        track.gets = None
        used = gradients.marks()
        if track.may_evaluate:  # all of its evaluations were the first: the optimizer leaves gradients as they are
            self._uses(track, attempt, optimizer, gradients)
        else:
            attempt.after_is_lost = attempt.used != used and attempt.used[0] == used[0]
        track.is_stepping = track.may_evaluate = False
        unspoilt, track.unspoilt = track.unspoilt, None
        # In a scaler's step a fused kernel skips by itself: that is the scaler's skip.
        if unspoilt is not None and track.in_step_of is None and unspoilt.is_left():
            attempt.why_given_up = "looked"  # by the optimizer, which did nothing
        if attempt.snapshot:
            loop.meter.measure_update(attempt, optimizer)
        if attempt.rows is not None or attempt.change is not None:
            loop.meter.sum_what_is_left(track, attempt, optimizer)
        track.used = used
        mistake = track.leftovers.stepped(gradients)
        if mistake is not None:
            loop.report_once(mistake, {"where": users_line()}, track)
        track.moments.stepped(optimizer)
        if not track.beginning.is_over:
            for kind, data in track.beginning.stepped(attempt, parameters_of(optimizer)):
                loop.report_once(kind, data, track)
        if track.in_step_of is not None:
            attempt.scaler = track.in_step_of
            loop.signal(track, Signal.STEP_UNDER_SCALER)
        else:
            loop.signal(track, Signal.STEP)

    @harmless
    def gradients_go(self, optimizer: torch.optim.Optimizer) -> None:
        """They are about to be thrown away."""
        track = self._loop.track_of(optimizer)
        if track is not None:
            self._gone(track, optimizer)

    @harmless
    def gradients_went(self, parameters: set[int]) -> None:
        """Those of a module's parameters were thrown away: of optimizers that have no others they are gone."""
        for track in self._loop.tracks.values():
            optimizer = track.optimizer
            if optimizer is None or track.open is None:
                continue
            held = [id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
            if parameters.issuperset(held):
                self._gone(track, optimizer)

    def _gone(self, track: Track, optimizer: torch.optim.Optimizer) -> None:
        if track.is_stepping:
            attempt = track.open
            if track.may_evaluate and attempt is not None and attempt.backwards:
                # A closure begins its second evaluation: the first is what the step is about.
                self._uses(track, attempt, optimizer, Gradients.of(optimizer))
                attempt.used = ([], [])  # those of later evaluations are others
                track.may_evaluate = False
            return
        if track.open is not None and not capturing():
            self._loop.signal(track, Signal.GONE)

    def _uses(self, track: Track, attempt: Attempt, optimizer: torch.optim.Optimizer, gradients: Gradients) -> None:
        """These are what the optimizer gets, or in a closure has got."""
        loop, inside = self._loop, track.in_step_of
        divisor: Number = 1.0
        grad_scale = getattr(optimizer, "grad_scale", None) if inside is not None else None
        if isinstance(grad_scale, Tensor):  # a fused optimizer that will unscale in its kernel
            divisor = attempt.loss_scale = hold(grad_scale)
        elif inside is None and attempt.scaler is not None:
            loop.report_once("step_bypassed_scaler", {"where": users_line()}, track)
            if attempt.unscaled_after is None and attempt.scaler._scale is not None:
                attempt.loss_scale = hold(attempt.scaler._scale)
                self._measure_bypassed(track, attempt, optimizer, gradients)
                return
        if track.ended and attempt.backwards and gradients.ids() != attempt.arrived[0]:
            attempt.loss_is_known = False  # sums that were kept elsewhere, of backwards whose gradients went
        if (
            not attempt.is_measured
            or _was_clipped_too_early(attempt, gradients)
            or _are_others(track, attempt, gradients)
        ):
            self._measure(track, attempt, optimizer, gradients, divisor)
        elif loop.meter.must_look_again(track, attempt, gradients):
            attempt.after, attempt.places_after = measured(gradients.tensors, divisor), gradients.places
            track.unseen_writes.verify(attempt)
        attempt.used = gradients.marks()
        loop.sees_gradients(track, optimizer, attempt)

    def _measure_bypassed(
        self, track: Track, attempt: Attempt, optimizer: torch.optim.Optimizer, gradients: Gradients
    ) -> None:
        """The scaler did not unscale: the optimizer gets gradients with their scale, unless the loop divided by it."""
        meter = self._loop.meter
        if (
            attempt.clipped
            and not _was_clipped_too_early(attempt, gradients)
            and not _are_others(track, attempt, gradients)
        ):
            attempt.uncertain = True
            attempt.after, attempt.places_after = measured(gradients.tensors, 1.0), gradients.places
        elif unscaled_by_hand(attempt, gradients, attempt.loss_scale):
            track.rescales = True
            meter.measure(track, attempt, optimizer, gradients, 1.0)
        else:
            meter.measure(track, attempt, optimizer, gradients, attempt.loss_scale)
            attempt.after = replace(attempt.before, divisor=1.0)

    def _measure(
        self, track: Track, attempt: Attempt, optimizer: torch.optim.Optimizer, gradients: Gradients, divisor: Number
    ) -> None:
        loop = self._loop
        what = rescaling(attempt, gradients)
        ids, versions = gradients.marks()
        is_written = ids == attempt.arrived[0] and versions != attempt.arrived[1]
        if what is Rescaling.NONE and attempt.backwards and is_written:
            if attempt.samples or track.rewrites or not gradients.samples():  # the latter: on a device
                track.rewrites = True
            else:
                what = Rescaling.CLIP  # for the first time, and nothing shows that it was none: by hand, at a spike
        if what is not Rescaling.NONE:
            track.rescales = True
            track.beginning.rescaled()
        loop.meter.measure(track, attempt, optimizer, gradients, divisor)
        if what is Rescaling.SCALE:
            attempt.loss_is_known = False
            loop.report_once("own_scale", {"where": users_line()}, track)
        elif what is Rescaling.CLIP:
            attempt.after, attempt.before_is_lost = attempt.before, True


def _are_others(track: Track, attempt: Attempt, gradients: Gradients) -> bool:
    """Than those that were clipped: others were put in their place, and the clip is none of theirs.

    Where some are the same, others of them went: those of a layer that is not to be updated yet, say.
    """
    if not attempt.clipped or attempt.unscaled_after is not None or attempt.seen is None:
        return False
    return gradients.ids() != attempt.seen.ids() and may_be_sums(track, attempt, gradients)


def _was_clipped_too_early(attempt: Attempt, gradients: Gradients) -> bool:
    """A backward came after the clip, which was one of the last step's gradients, say."""
    return (
        attempt.unscaled_after is None
        and attempt.clipped
        and len(attempt.backwards) > attempt.clipped_after
        and not gradients.same_as(attempt.seen)
    )
