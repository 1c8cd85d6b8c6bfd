"""What all who observe one loop share: its tracks, the step that is assembled, what is measured, what is reported."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tbnum.observe.assembly import Assembly
from tbnum.observe.attempt import Attempt, Loss, Outcome, Update
from tbnum.observe.caller import steps_on_the_stack, users_line
from tbnum.observe.depth import Used
from tbnum.observe.given_up import some_versions, was_given_up
from tbnum.observe.gradients import leads_to, parameters_of
from tbnum.observe.meter import Meter
from tbnum.observe.records import Observation
from tbnum.observe.track import Signal, Track
from tbnum.observe.watcher import Watcher

__all__ = ["Loop"]

STRANGERS = 8  # backwards in another thread after which it is taken to be another loop's
MANY_DISCARDING = 8  # steps in a row, before each of which gradients were thrown away
MANY_UNUSED = 50  # backwards that no step used, after which that is reported


class Loop(Watcher):
    """The loop of some optimizers, which are held weakly, and of the scaler that is given or found, or none.

    `own_scale` gives the scale that the loop multiplies its losses by, where it has one of its own.
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
        own_scale: Callable[[], Any] | None,
        assembly: Assembly,
        meter: Meter,
    ) -> None:
        super().__init__("follow a step and goes on without it")
        self.tracks = {
            name: Track(name, optimizer, _finished(weakref.ref(self)), _ended(weakref.ref(self)))
            for name, optimizer in optimizers.items()
        }
        self._track_of = {id(optimizer): self.tracks[name] for name, optimizer in optimizers.items()}
        self._scaler = None if scaler is None else weakref.ref(scaler)
        self.own_scale = own_scale
        self.assembly = assembly
        self.meter = meter
        self.on_first_step: Callable[[], None] | None = None  # at the first gradient; then it is forgotten
        self.on_observation: Callable[[Observation], None] = _nobody
        self.on_unused: Callable[[str, int], None] = _nobody  # optimizer, backwards
        self.on_found: Callable[[torch.amp.GradScaler], None] = _nobody
        self.on_depth: Callable[[list[Used] | None, bool], None] = _nobody
        self.logged: list[Loss] = []  # reported before the attempt that they are of has begun
        self._thread = threading.get_ident()  # in which the loop runs
        self._strangers: Counter[int] = Counter()  # backwards of others, by thread
        self._reported: set[tuple[str, str | None]] = set()
        self._reported_unused: set[str] = set()
        self._without_gradients: set[str] = set()
        self._is_updating = False

    # -- who takes part ------------------------------------------------------------------------------------------

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The one that was given or found, while it lives and is enabled."""
        scaler = None if self._scaler is None else self._scaler()
        return scaler if scaler is not None and scaler.is_enabled() else None

    def found(self, scaler: torch.amp.GradScaler) -> None:
        """It takes part in the loop."""
        if self._scaler is None or self._scaler() is None:
            self._scaler = weakref.ref(scaler)
            self.on_found(scaler)
            self.report("scaler_found", {"scaler": type(scaler).__name__, "where": users_line()})

    def track_of(self, optimizer: Any) -> Track | None:
        """Of one of the loop's own, or of an object around it, which a scaler may be given: it shows its groups."""
        track = self._track_of.get(id(optimizer))
        if track is not None and track._optimizer() is optimizer:
            return track
        groups = getattr(optimizer, "param_groups", None)
        for track in self.tracks.values():
            inner = track.optimizer
            if inner is not None and groups is inner.param_groups:
                return track
        return None

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Those that are still alive."""
        alive = {name: track.optimizer for name, track in self.tracks.items()}
        return {name: optimizer for name, optimizer in alive.items() if optimizer is not None}

    def parameters(self) -> list[Tensor]:
        return [parameter for optimizer in self.optimizers().values() for parameter in parameters_of(optimizer)]

    # -- whose turn it is ----------------------------------------------------------------------------------------

    @property
    def runs_here(self) -> bool:
        """Whether it was last seen in this thread."""
        return threading.get_ident() == self._thread

    @property
    def is_here(self) -> bool:
        """Whether it is known to run in this thread."""
        return self.runs_here and self._thread not in self._strangers

    def enters(self) -> None:
        """One of the optimizers steps in this thread: the loop runs here."""
        self._thread = threading.get_ident()
        if self._strangers:
            self._strangers.pop(self._thread, None)

    def is_elsewhere(self, losses: Iterable[Any]) -> bool:
        """Loops may run side by side, each in a thread of its own. The loss shows that this one goes on in another."""
        thread = threading.get_ident()
        if thread != self._thread and self._strangers[thread] < STRANGERS:
            if leads_to(losses, self.parameters()):
                self._thread = thread
            else:
                self._strangers[thread] += 1
        return thread != self._thread

    def is_inside_a_step(self) -> bool:
        """An optimizer runs a backward of its own, say. Forgets a step that ended in an exception."""
        inside = False
        for track in self.tracks.values():
            if not track.is_stepping:
                continue
            optimizer = track.optimizer
            if optimizer is not None and steps_on_the_stack(optimizer):
                inside |= not track.may_evaluate
            else:
                track.forget()
        return inside

    # -- attempts ------------------------------------------------------------------------------------------------

    def opens(self, attempt: Attempt) -> None:
        """An attempt has its first gradient: losses that were reported ahead of it are its own."""
        if self.on_first_step is not None:
            on_first_step, self.on_first_step = self.on_first_step, None
            on_first_step()
        if self.logged:
            attempt.logged, self.logged = self.logged, []

    def signal(self, track: Track, signal: Signal) -> Attempt | None:
        was_open = track.open
        attempt = track.signal(signal)
        if attempt is not None and attempt is not was_open and attempt is track.open:
            self.opens(attempt)
        return attempt

    def opened(self, track: Track, signal: Signal) -> Attempt:
        """The attempt that is open after a signal that leaves one open."""
        was_open = track.open
        attempt = track.signal(signal)
        assert attempt is not None
        if attempt is not was_open:
            self.opens(attempt)
        return attempt

    def looks(self, track: Track, optimizer: torch.optim.Optimizer) -> Attempt:
        """Somebody has asked for the gradients, to clip or to unscale them."""
        attempt = self.opened(track, Signal.LOOK)
        attempt.looked_at = some_versions(optimizer)
        return attempt

    def finishes(self, track: Track, attempt: Attempt) -> None:
        track.endings.append(False)
        if track.discarded or track.discarding:
            self._counts_discarded(track, attempt)
        track.usual_sides, track.last_sides = min(track.sides, track.last_sides), track.sides
        track.sides = track.ended = 0
        track.unused_backwards, track.never_stepped = 0, False
        track.takes_norms = attempt.norm_taken
        for loss in attempt.backwards:
            loss.used_by.add(track.name)
        self._joins(track, attempt)

    def _counts_discarded(self, track: Track, attempt: Attempt) -> None:
        """Backwards whose gradients went unused before each of some steps in a row are reported once.

        Where the micro-batches of an accumulation are discarded, one line calls all of their backwards.
        """
        if not track.discarded:
            track.discarding = 0
            return
        places = {attempt.where, ""}
        discarded = [loss for loss, where in track.discarded if not loss.used_by - {track.name} and where in places]
        track.discarded = []
        # Of gradients that were put together by hand, those that went were a part.
        are_its_own = attempt.seen is not None and attempt.seen.ids() == attempt.arrived[0] and attempt.loss_is_known
        is_one_of_them = are_its_own and bool(attempt.backwards)
        track.discarding = track.discarding + 1 if discarded and is_one_of_them else 0
        if track.discarding == MANY_DISCARDING:
            data = {"backwards": len(discarded), "where": users_line()}
            self.report_once("gradients_discarded", data, track)

    def _joins(self, track: Track, attempt: Attempt) -> None:
        self.assembly.add(track.name, attempt)
        if not self._is_updating:
            self.assembly.close_if_complete(self.tracks.values())

    def ends(self, track: Track, attempt: Attempt) -> None:
        """Without a step."""
        track.leftovers.went()
        track.ended += 1
        verdict = was_given_up(track, attempt)
        if verdict is False:
            attempt.outcome = Outcome.ON_THE_SIDE
            if all(other.open is None and other.waiting is None for other in self.tracks.values()):
                self.assembly.sets_aside()
            track.sides += 1
            is_moved = bool(attempt.versions) and attempt.versions != some_versions(track.optimizer)
            if not (is_moved or attempt.leads_elsewhere):  # a point beside the parameters, or adversarial inputs
                track.discarded += [(loss, attempt.where) for loss in attempt.backwards]
            if attempt.before.known_nonfinite:
                self.report_once("nonfinite_discarded", {"where": users_line()}, track)
            return
        attempt.outcome = Outcome.GIVEN_UP
        track.sides = 0
        if verdict:
            self._joins(track, attempt)
        else:
            self.assembly.consider(track.name, attempt)

    def updated(self, scaler: torch.amp.GradScaler, update: Update) -> None:
        """`scaler.update()` has run."""
        self._is_updating = True  # the step that closes takes the update with it
        for track in self.tracks.values():
            if track.waiting is not None and track.waiting.scaler in (scaler, None):
                self.signal(track, Signal.UPDATE)
            elif track.open is not None and track.open.unscaled_after is not None and track.open.scaler is scaler:
                self.signal(track, Signal.UPDATE_OF_UNSCALED)
        self._is_updating = False
        self.assembly.close_by(update)

    def report_unused(self, track: Track) -> None:
        """Once. Gradients that only add up may still be stepped with."""
        is_thrown_away = track.sides > 1 and track.name not in self._reported_unused
        if is_thrown_away and (track.never_stepped or track.unused_backwards >= MANY_UNUSED):
            self._reported_unused.add(track.name)
            self.on_unused(track.name, track.unused_backwards)

    def finish(self) -> None:
        """Close what has stepped, and hand on everything."""
        for track in self.tracks.values():
            if track.waiting is not None:
                track.signal(Signal.UPDATE)
            track.forget()
        self.assembly.close(None)
        for track in self.tracks.values():
            self.report_unused(track)
        self.assembly.drain(wait=True)

    # -- reports -------------------------------------------------------------------------------------------------

    def report(self, kind: str, data: Mapping[str, Any], optimizer: str | None = None) -> None:
        with self.assembly.lock:
            self.assembly.drain()
            self.on_observation(Observation(kind, self.assembly.next_step, time.time(), data, optimizer))

    def report_once(self, kind: str, data: Mapping[str, Any], track: Track | None = None) -> None:
        """A mistake in the loop is made at every step: one event for each place in the user's code."""
        key = (kind, data.get("where"))
        if key not in self._reported:
            self._reported.add(key)
            self.report(kind, data, self.label(track))

    def sees_gradients(self, track: Track, optimizer: torch.optim.Optimizer, attempt: Attempt) -> None:
        """Whether a step has any is reported once, until it has."""
        # Of flat parameters those that have a gradient may all lie on other ranks.
        if attempt.places or (attempt.layout is not None and attempt.layout.has_flat_parameters):
            self._without_gradients.discard(track.name)
        else:
            self.report_no_gradients(track, optimizer)

    def report_no_gradients(self, track: Track, optimizer: torch.optim.Optimizer) -> None:
        if track.name not in self._without_gradients:
            self._without_gradients.add(track.name)
            self.report("no_gradients", {"parameters": len(parameters_of(optimizer))}, self.label(track))

    def label(self, track: Track | None) -> str | None:
        return track.name if track is not None and len(self.tracks) > 1 else None


def _nobody(*_: Any) -> None:
    pass


def _finished(ref: weakref.ref[Loop]) -> Callable[[Track, Attempt], None]:
    def finished(track: Track, attempt: Attempt) -> None:
        loop = ref()
        if loop is not None:
            loop.finishes(track, attempt)

    return finished


def _ended(ref: weakref.ref[Loop]) -> Callable[[Track, Attempt], None]:
    def ended(track: Track, attempt: Attempt) -> None:
        loop = ref()
        if loop is not None:
            loop.ends(track, attempt)

    return ended
