"""What happens at a GradScaler: unscaling, a step that it makes or withholds, and its update."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tbnum.observe import transfer
from tbnum.observe.attempt import UNKNOWN, Attempt, Update
from tbnum.observe.caller import users_line
from tbnum.observe.gradients import Gradients, carries_scale, parameters_of
from tbnum.observe.loop import Loop
from tbnum.observe.meter import any_nonfinite, learning_rates
from tbnum.observe.track import Signal, Track
from tbnum.observe.transfer import Number, capturing, hold
from tbnum.observe.watcher import Part, harmless

__all__ = ["Scalers"]


class _Step(NamedTuple):
    scaler: torch.amp.GradScaler
    optimizer: torch.optim.Optimizer
    track: Track
    waiting: Attempt | None  # when it began


class Scalers(Part):
    """Any enabled scaler that unscales, steps or scales for an optimizer of the loop takes part in it."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._loop = loop
        self._steps: list[_Step] = []  # scaler.step() that are under way
        # After the last update of each; by its id, which another may get later.
        self._last_scales: dict[int, tuple[weakref.ref[torch.amp.GradScaler], float]] = {}

    def _track(self, scaler: torch.amp.GradScaler, optimizer: Any) -> Track | None:
        track = self._loop.track_of(optimizer)
        if track is None or not scaler.is_enabled() or capturing():
            return None
        if scaler is not self._loop.scaler:
            self._loop.found(scaler)
        if track.known_as is None or track.known_as() is not optimizer:
            with contextlib.suppress(TypeError):  # a class with slots may have no place for a weak reference
                track.known_as = weakref.ref(optimizer)
        return track

    def goes_on(self, optimizer: torch.optim.Optimizer, track: Track) -> None:
        """A step of the loop's scaler is under way that the usual way saw begin."""
        if self._loop.scaler is not None:
            self._steps.append(_Step(self._loop.scaler, optimizer, track, None))

    def is_as_left(self, scaler: torch.amp.GradScaler, scale: float) -> bool:
        """Whether `scale` is what its last update has left, on the host."""
        return scale == self._last_scale(scaler)

    def _last_scale(self, scaler: torch.amp.GradScaler) -> float | None:
        ref, scale = self._last_scales.get(id(scaler), (None, None))
        return scale if ref is not None and ref() is scaler else None

    @harmless
    def unscaled(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """`scaler.unscale_(optimizer)` has run: the gradients carry no scale now."""
        track = self._track(scaler, optimizer)
        if track is None:
            return
        loop, gradients = self._loop, Gradients.of(optimizer)
        if track.waiting is not None:  # torch refuses to unscale before `update()`: that was interrupted
            loop.signal(track, Signal.UPDATE)
        attempt = loop.looks(track, optimizer)
        if attempt.scaler is None and attempt.backwards:
            loop.report_once("loss_not_scaled", {"where": users_line()}, track)
        attempt.scaler = scaler
        attempt.unscaled_after = len(attempt.backwards)
        attempt.unscaled_by_loop = track.in_step_of is None
        attempt.loss_scale = _held_scale(scaler)
        if attempt.clipped:  # before unscale_: `before` was measured then, under the scale
            attempt.uncertain = True
            attempt.seen = gradients
        elif track.clips_after_unscale and not _is_infinite(scaler, optimizer):
            attempt.waits_for_clip = attempt.seen = gradients
        else:
            loop.meter.measure(track, attempt, optimizer, gradients, 1.0)
            attempt.samples = gradients.samples() if attempt.unscaled_by_loop else ()

    @harmless
    def unscale_refused(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """`scaler.unscale_(optimizer)` has raised."""
        track = self._track(scaler, optimizer)
        gradients = [] if track is None else Gradients.of(optimizer).tensors
        half = sum(gradient.dtype == torch.float16 for gradient in gradients)
        if half:
            data = {"where": users_line(), "float16": half, "tensors": len(gradients)}
            self._loop.report_once("float16_gradients", data, track)

    @harmless
    def step_begins(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        track = self._track(scaler, optimizer)
        if track is None:
            return
        loop = self._loop
        if track.waiting is not None:
            if carries_scale(scaler, optimizer):  # an update that was not seen, or interrupted
                loop.signal(track, Signal.UPDATE)
                loop.assembly.close(None)
            else:
                loop.report_once("update_missing", {"where": users_line()}, track)
        attempt = track.open
        if attempt is not None:
            gradients = Gradients.of(optimizer)
            if attempt.waits_for_clip is not None and gradients.same_as(attempt.waits_for_clip):
                loop.meter.measure(track, attempt, optimizer, gradients, 1.0)
            if attempt.is_mixture:
                loop.report_once("unscale_in_accumulation", {"where": users_line()}, track)
        track.in_step_of = scaler
        self._steps.append(_Step(scaler, optimizer, track, track.waiting))

    @harmless
    def step_ended(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, failed: bool) -> None:
        if not self._steps or self._steps[-1].optimizer is not optimizer:
            return
        _, _, track, waited_before = self._steps.pop()
        track.in_step_of = None
        if failed:
            if track.open is not None:
                if not Gradients.of(optimizer).tensors:
                    self._loop.report_no_gradients(track, optimizer)
                track.forget()
            return
        loop = self._loop
        own = track.optimizer or optimizer
        state = scaler._per_optimizer_states.get(id(optimizer))
        found_inf = [] if state is None else [hold(found) for found in state["found_inf_per_device"].values()]
        is_withheld = track.waiting is waited_before  # the step hooks did not fire: the scaler asked the host
        may_be_infinite = any(isinstance(found, Tensor) or found for found in found_inf)
        if is_withheld and own is not optimizer and not may_be_infinite:
            return  # an object around it has stepped, and did not step the optimizer inside
        attempt = loop.signal(track, Signal.WITHHELD) if is_withheld else track.waiting
        if attempt is None:
            return
        attempt.scaler = scaler
        attempt.found_inf = found_inf or attempt.found_inf
        skipped = is_withheld
        if is_withheld:
            attempt.lr = learning_rates(own)
            self._leaves(track, own)
        else:  # a fused kernel may have skipped inside; known here only where found_inf lives on the host
            skipped = any(found_inf for found_inf in attempt.found_inf if isinstance(found_inf, float))
        if not skipped:
            return
        if attempt.rows is None and not attempt.clipped:
            # On a device the norms did not show it to the host. A clip would have turned inf into NaN by now.
            gradients = Gradients.of(own)
            if not attempt.is_measured:
                loop.meter.measure(track, attempt, own, gradients, 1.0)
            if attempt.rows is None:
                loop.meter.look_closely(attempt, gradients, attempt.before.divisor)
        attempt.parameters_nonfinite = any_nonfinite(parameters_of(own))
        loop.meter.sum_what_is_left(track, attempt, own)

    def _leaves(self, track: Track, optimizer: torch.optim.Optimizer) -> None:
        """Gradients that the optimizer did not get are done with all the same: the next attempt is not to find them."""
        gradients = Gradients.of(optimizer)
        track.used = gradients.marks()
        mistake = track.leftovers.stepped(gradients)
        if mistake is not None:
            self._loop.report_once(mistake, {"where": users_line()}, track)

    @harmless
    def update_begins(self, scaler: torch.amp.GradScaler, new_scale: float | Tensor | None) -> Update | None:
        """Before `scaler.update(new_scale)`. What it returns is to be given to `update_ended`."""
        if self._steps and self._steps[-1].scaler is scaler:  # whose step updates by itself
            self.step_ended(scaler, self._steps[-1].optimizer, failed=False)
        if not scaler.is_enabled() or scaler._scale is None or scaler._growth_tracker is None or capturing():
            return None
        loop = self._loop
        if scaler is not loop.scaler and not any(_is_of(track, scaler) for track in loop.tracks.values()):
            return None
        update = Update(
            old_scale=hold(scaler._scale), growth_tracker=hold(scaler._growth_tracker), was_set=new_scale is not None
        )
        last = self._last_scale(scaler)
        if last is not None and isinstance(update.old_scale, float) and update.old_scale != last:
            loop.report("scale_set", {"old_scale": last, "new_scale": update.old_scale})
        return update

    @harmless
    def update_ended(self, scaler: torch.amp.GradScaler, update: Update) -> None:
        if scaler._scale is None:
            return
        update.new_scale = hold(scaler._scale)
        if isinstance(update.new_scale, float):
            self._last_scales[id(scaler)] = weakref.ref(scaler), update.new_scale
        self._loop.updated(scaler, update)


def _is_of(track: Track, scaler: torch.amp.GradScaler) -> bool:
    return any(attempt is not None and attempt.scaler is scaler for attempt in (track.open, track.waiting))


def _is_infinite(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the host knows that `unscale_` met inf or NaN: these are looked at before anybody clips them."""
    state = scaler._per_optimizer_states.get(id(optimizer))
    found = () if state is None else state["found_inf_per_device"].values()
    return any(transfer.on_host(found_inf) and bool(found_inf.item()) for found_inf in found)


def _held_scale(scaler: torch.amp.GradScaler) -> Number:
    return UNKNOWN if scaler._scale is None else hold(scaler._scale)
