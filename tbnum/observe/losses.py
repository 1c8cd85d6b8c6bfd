"""Whose backward it was, and what it began with.

A loss counts by its effect: it is of the attempts of those optimizers whose gradients its backward has written to. So
a backward for the input's gradient that `autograd.grad` takes is nobody's, one with `create_graph` is somebody's, and
one that passes through another model's parameters belongs to that model's attempt as well, until its gradients go.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tbnum.observe import transfer
from tbnum.observe.attempt import UNKNOWN, Loss
from tbnum.observe.caches import Caches
from tbnum.observe.caller import users_line
from tbnum.observe.depth import order_of_use
from tbnum.observe.given_up import some_versions
from tbnum.observe.gradients import Gradients, Marks, dtypes_behind, leads_to_others, parameters_of
from tbnum.observe.loop import MANY_UNUSED, Loop
from tbnum.observe.scaled import Scaled, scaled_by
from tbnum.observe.shards import are_flattened
from tbnum.observe.track import Signal, Track
from tbnum.observe.transfer import Number, capturing, hold
from tbnum.observe.watcher import Part, harmless, of_a_signal

__all__ = ["Losses", "Running"]


_NARROW = (torch.float16, torch.bfloat16)


class Running:
    """A call of the engine that is under way. The loss is read when it is first known to be somebody's."""

    def __init__(
        self, roots: Sequence[Any], gradients: Sequence[Any], loop: Loop, before: list[tuple[Track, Gradients]]
    ) -> None:
        self.roots, self.gradients, self.before = roots, gradients, before
        self._loop = loop
        self._loss: Loss | None = None
        self.scaled: Scaled | None = None
        self.is_surrogate = False  # the root is made of gradients that an earlier backward left

    def loss(self) -> Loss:
        if self._loss is None:
            self.scaled = scaled_by(self.roots)
            if self.is_surrogate:
                self._loss = Loss(UNKNOWN, is_known=False)
            else:
                self._loss = _loss_of(self.roots, self.gradients, self.scaled)
            own_scale = self._loop.own_scale
            if own_scale is not None and self.scaled is None:
                self._loss.divisor = _scale_now(own_scale, self._loop)
        return self._loss


class Losses(Part):
    """What happens at a backward."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._loop = loop
        self._running: Running | None = None
        self._checked_scalers: dict[int, weakref.ref[torch.amp.GradScaler]] = {}  # by id, which others may get later
        self._caches = Caches()
        self._follows_scale = False  # the next loss may be made of gradients of a scaled one
        self._has_depth = False

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to find out about the next loss but its value."""
        return self._has_depth and not (self._follows_scale or self._caches.has_leaves)

    def is_checked(self, scaled: Scaled) -> bool:
        """Whether nothing is to be said of its scaler, or of its type."""
        return scaled.dtype not in _NARROW and self._has_checked(scaled.scaler)

    def _has_checked(self, scaler: torch.amp.GradScaler) -> bool:
        ref = self._checked_scalers.get(id(scaler))
        return ref is not None and ref() is scaler

    def goes_on(self, roots: Sequence[Any], gradients: Sequence[Any], before: list[tuple[Track, Gradients]]) -> None:
        """A backward is under way that the usual way saw begin."""
        self._running = Running(roots, gradients, self._loop, before)

    @property
    def running(self) -> Running | None:
        """The backward that has begun and not ended."""
        return self._running

    @property
    def is_running(self) -> bool:
        """Whether a backward has begun and not ended."""
        return self._running is not None

    @harmless
    def loss_logged(self, loss: Number, name: str | None) -> None:
        """The user reported a loss. Where that happens in a step, only what the user reported counts."""
        loop = self._loop
        if loop.is_inside_a_step():
            return
        if name is not None:
            loop.assembly.name_loss(name, loss)
            return
        reported = Loss(loss)
        attempts = [track.open for track in loop.tracks.values() if track.open is not None]
        for attempt in attempts:
            attempt.logged.append(reported)
        if not attempts:
            loop.logged.append(reported)

    @harmless
    def graph_of_gradients(self, roots: Sequence[Any]) -> None:
        """`autograd.grad(..., create_graph=True)`: what is made of these gradients may become a part of the loss."""
        if not capturing() and scaled_by(roots) is not None:
            self._follows_scale = True

    @harmless
    def backward_begins(self, roots: Sequence[Any], gradients: Sequence[Any]) -> Running | None:
        """Before the engine runs. None where it does not matter, else to be given to `backward_ended`."""
        loop = self._loop
        if capturing() or loop.is_elsewhere(roots) or loop.is_inside_a_step():
            return None
        before: list[tuple[Track, Gradients]] = []
        for track in loop.tracks.values():
            optimizer = track._optimizer()
            if optimizer is not None:
                before.append((track, Gradients.of(optimizer)))
        running = Running(roots, gradients, loop, before)
        running.is_surrogate = self._caches.has_leaves and self._caches.are_behind(roots)
        for track, there in running.before:
            if track.open is None and not there.tensors:
                continue
            marks = there.marks()
            if track.open is not None and _are_gone(track, there, marks):
                self._gone(track)
            elif _are_others(track, marks) or _may_be_zeros(track, there, marks):
                track.open.loss_is_known = False  # type: ignore[union-attr]  # there is one
            if track.open is None and there.tensors:
                if marks == track.used:
                    track.leftovers.found("gradients_not_zeroed", there)
                elif _were_set_by_hand(track, there, marks):
                    loop.opened(track, Signal.GRADIENT).loss_is_known = False  # nobody knows of what they are
        self._running = running
        has_scaler = loop._scaler is not None and loop.scaler is not None
        if has_scaler and any(map(torch.is_autocast_enabled, _devices(roots))):
            loop.report_once("backward_under_autocast", {"where": users_line()})
        return running

    def step_begins_inside(self, track: Track, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer steps while a backward runs, from a hook on its gradients: they are that backward's."""
        running = self._running
        if running is None or torch._C._current_graph_task_id() == -1:
            return
        before = next((there for other, there in running.before if other is track), None)
        now = Gradients.of(optimizer)
        if before is not None and now.tensors and not now.same_as(before):
            self._arrives(track, running, now)

    @harmless
    def backward_ended(self, running: Running, failed: bool) -> None:
        self._running = None
        if failed and running._loss is None:
            running._loss = Loss(UNKNOWN, is_known=False)
        reached = 0
        for track, before in running.before:
            optimizer = track._optimizer()
            if optimizer is None:
                continue
            now = Gradients.of(optimizer)
            if now.tensors and not now.same_as(before):
                reached += 1
                self._arrives(track, running, now)
            elif track.open is None:
                track.leftovers.went()  # as far as this backward goes: it did not reach them
        loop = self._loop
        if reached:
            self._follows_scale = False
            loop.assembly.batch_ids.backward()
            if not self._has_depth:
                self._has_depth = True
                loop.on_depth(order_of_use(running.roots, loop.optimizers()), reached == len(running.before))
            return
        self._caches.note(running.roots)
        if loop.meter.layouts.unreduced_have_changed():
            for track, optimizer in _alive(loop):
                self._arrives(track, running, Gradients.of(optimizer))

    def _arrives(self, track: Track, running: Running, now: Gradients) -> None:
        loop = self._loop
        loss = running.loss()
        attempt = track.open or loop.opened(track, Signal.GRADIENT)
        attempt.backwards.append(loss)
        if not attempt.clipped and attempt.unscaled_after is None:
            attempt.is_measured = False  # somebody had asked for the norm in between
        attempt.loss_follows_scale |= self._follows_scale
        attempt.arrived = now.marks()
        if track.discarding:
            attempt.versions = some_versions(track.optimizer)
            attempt.leads_elsewhere = leads_to_others(running.roots, loop.parameters())
            attempt.where = users_line() or ""
        track.last_seen = attempt.arrived[0]
        track.unused_backwards += 1
        if track.unused_backwards >= MANY_UNUSED:
            loop.report_unused(track)
        scaled = running.scaled
        if not track.beginning.is_over:
            reached_all = now.all_differ_from(next(there for other, there in running.before if other is track))
            track.beginning.arrives(attempt, running.roots, is_scaled=scaled is not None, reached_all=reached_all)
        if scaled is not None:
            attempt.scaler = scaled.scaler
            attempt.samples = now.samples() if track.is_sampled() else ()
            self._check(scaled, running.roots)
        elif loop.own_scale is not None:
            attempt.has_own_scale, attempt.loss_scale = True, loss.divisor
            loop.meter.measure(track, attempt, _sure(track.optimizer), now, loss.divisor)
        else:
            attempt.samples = now.samples() if track.is_sampled() else ()

    def _gone(self, track: Track) -> None:
        if track.may_evaluate:  # between two evaluations of a closure: the first is what the step is about
            track.may_evaluate = False
            return
        self._loop.signal(track, Signal.GONE)

    def _check(self, scaled: Scaled, roots: Sequence[Any]) -> None:
        """Once a scaler."""
        scaler, loop = scaled.scaler, self._loop
        if scaled.dtype in _NARROW:
            dtype = str(scaled.dtype).removeprefix("torch.")
            loop.report_once("loss_low_precision", {"dtype": dtype, "where": users_line()})
        if self._has_checked(scaler):
            return
        self._checked_scalers[id(scaler)] = weakref.ref(scaler)
        if scaler is not loop.scaler:
            loop.found(scaler)
        dtypes = set().union(*(dtypes_behind(root) for root in roots if isinstance(root, Tensor)))
        if torch.bfloat16 in dtypes and torch.float16 not in dtypes:
            loop.report_once("bfloat16_with_scaler", {"where": users_line()})


def _alive(loop: Loop) -> list[tuple[Track, torch.optim.Optimizer]]:
    pairs = [(track, track.optimizer) for track in loop.tracks.values()]
    return [(track, optimizer) for track, optimizer in pairs if optimizer is not None]


def _sure(optimizer: torch.optim.Optimizer | None) -> torch.optim.Optimizer:
    assert optimizer is not None
    return optimizer


def _are_gone(track: Track, there: Gradients, marks: Marks) -> bool:
    """Whether the gradients of the open attempt were thrown away, before this backward adds to what is there."""
    attempt = track.open
    if attempt is None or not attempt.arrived[0]:
        return False
    if not there.tensors:
        return True
    if marks != attempt.arrived:
        return there.are_zero()
    # By a write through `.data`, which leaves no mark.
    zeroed = any(attempt.samples) and not any(there.samples(attempt.samples))
    track.rescales |= zeroed
    return zeroed


def _are_others(track: Track, marks: Marks) -> bool:
    """Whether others were put in the place of the gradients that the last backward left."""
    attempt, optimizer = track.open, track.optimizer
    if attempt is None or not attempt.backwards or optimizer is None or attempt.arrived[0] == marks[0]:
        return False
    return not are_flattened(parameters_of(optimizer))


def _may_be_zeros(track: Track, there: Gradients, marks: Marks) -> bool:
    """Whether somebody wrote to gradients of a device, which may have thrown them away: nobody looks at the values."""
    attempt = track.open
    if attempt is None or not attempt.backwards or marks == attempt.arrived or there.same_as(attempt.seen):
        return False
    return not all(transfer.on_host(gradient) for gradient in there.tensors)


def _were_set_by_hand(track: Track, there: Gradients, marks: Marks) -> bool:
    """Whether gradients that are not as the last step left them are such that no backward has made, and not zeros.

    On a device nobody looks at the values: written to since they were last seen, they count as zeros.
    """
    samples = there.samples()
    return any(samples) if samples else marks[0] not in (track.used[0], track.last_seen)


def _loss_of(roots: Sequence[Any], gradients: Sequence[Any], scaled: Scaled | None) -> Loss:
    """What the engine starts from: each root times the gradient that it is given."""
    if scaled is not None and scaled.loss is not None and len(roots) == 1:
        if not isinstance(gradients[0], Tensor):
            return Loss(scaled.loss)
        if gradients[0].numel() == 1 and roots[0].numel() == 1:
            return Loss(scaled.loss * hold(gradients[0]))
    values: list[Number] = []
    for root, gradient in zip(roots, gradients, strict=True):
        if not isinstance(root, Tensor) or root.numel() != 1 or root.is_complex():
            return Loss(UNKNOWN, is_known=False)
        value = hold(root)
        by = hold(gradient) if isinstance(gradient, Tensor) else 1.0
        values.append(value if type(by) is float and by == 1.0 else value * by)
    if not values:
        return Loss(UNKNOWN, is_known=False)
    return Loss(sum(values[1:], values[0]), 1.0 if scaled is None else scaled.scale)


def _scale_now(own_scale: Any, loop: Loop) -> Number:
    """Unknown where the user's function fails, or gives what no loss can be multiplied by: reported once."""
    try:
        given = own_scale()
    except Exception as error:
        if of_a_signal(error):
            raise
        loop.trouble(RuntimeError(f"the function given as scaler= failed: {error!r}"))
        return UNKNOWN
    try:
        scale = hold(given) if isinstance(given, Tensor) and given.numel() == 1 else float(given)
    except (TypeError, ValueError, RuntimeError):
        scale = UNKNOWN
    if isinstance(scale, float) and not 0.0 < scale < math.inf:
        hint = "it has to give the number that the loss is multiplied by now"
        loop.trouble(ValueError(f"the function given as scaler= gave {given!r:.80}; {hint}"))
        return UNKNOWN
    return scale


def _devices(roots: Sequence[Any]) -> set[str]:
    """With an autocast of their own."""
    types = {root.device.type for root in roots if isinstance(root, Tensor)}
    return {"cpu", *filter(torch.amp.is_autocast_available, types)}
