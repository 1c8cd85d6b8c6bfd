"""The steps that most steps are: noted in a few looks, and understood many at a time.

A call of Python costs a small step more than its own time: what it touches pushes the step's own code out of the
caches. The long way, by which any loop is followed, takes a hundred calls a step. So each hook comes here first. Where
a loop has one optimizer, and goes on as in a textbook, with whole tensors on the host, finite numbers and nothing due,
its looks are kept as they are in one object, and a step that has ended is one entry in a list. At anything else `leave`
gives what has been noted over to the long way, from which the next step comes back. The record is the same, bit for
bit, whichever way a step went.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tbnum.measure.norms import Taken, TensorNorms, host_norms_of, needs_care
from tbnum.observe.attempt import UNKNOWN, Attempt, Loss, Measurement, Outcome, Update
from tbnum.observe.clips import Cover, coefficient_of
from tbnum.observe.given_up import some_versions
from tbnum.observe.gradients import Gradients, Marks, parameters_of
from tbnum.observe.landing import Note
from tbnum.observe.meter import VANISHING
from tbnum.observe.scaled import scaled_by, scaled_by_last
from tbnum.observe.track import OFTEN, Phase, Track
from tbnum.observe.untraced import tracer, untraced
from tbnum.observe.watcher import of_a_signal

if TYPE_CHECKING:
    from tbnum.observe.loop import Loop
    from tbnum.observe.losses import Losses
    from tbnum.observe.scalers import Scalers

__all__ = ["Usual"]

_PLAIN, _NOTHING, _RATES, _WIDE = {Tensor}, {type(None)}, {float}, {torch.float32, torch.float64}
_gradient_of, _version_of, _next = operator.attrgetter("grad"), operator.attrgetter("_version"), (1).__add__

_EMPTY: list[Any] = []
_made = tuple.__new__  # a step's note, without a call in Python

IDLE, BACKWARD, OPEN, STEPPING, WAITING = range(5)
"""Between two steps; in a backward; after one; in the optimizer's step; after it, until the scaler's update."""

VAIN = 3  # after which a loop is taken to be another than the textbook's, and asked now and then


class Noted:
    """What is noted of the open attempt, and the way back to the long way.

    One object: a step finds all of it in a few lines of the cache.
    """

    __slots__ = (
        "_arrived", "_assembly", "_attempts", "_batch_ids", "_clips_after", "_coefficient", "_due", "_found_inf",
        "_grad_norm", "_gradients", "_ids", "_is_lost", "_is_on", "_left", "_looked_at", "_loop", "_losses",
        "_losses_part", "_max_norm", "_moments", "_name", "_norm_left", "_norms", "_norms_type", "_optimizer",
        "_parameters", "_rates", "_running", "_samples", "_scale", "_scaler", "_scalers_part", "_seen", "_step",
        "_steps_by_scaler", "_thread", "_tracker", "_unscaled_after", "_unseen", "_used", "_vain", "_verify", "stage",
    )  # fmt: skip

    def __init__(self, loop: Loop, losses: Losses, scalers: Scalers) -> None:
        (track, *_) = loop.tracks.values()
        self._loop, self._losses_part, self._scalers_part = loop, losses, scalers
        self._name, self._optimizer, self._moments = track.name, track._optimizer, track.moments
        self._unseen = track.unseen_writes
        self._scaler: Any = None  # a weak reference, where there is one
        self._is_on = self._clips_after = False
        self._vain = 0  # times in a row that no step could be noted
        self.stage = IDLE
        self._step = self._due = self._attempts = self._thread = self._parameters = 0
        self._assembly = loop.assembly
        self._verify, self._batch_ids = loop.meter.verify_interval, loop.assembly.batch_ids
        self._used: Marks = ([], [])  # of the gradients of the last step, after it
        self._ids: list[int] = []  # of those of the attempt
        self._arrived: list[int] = []  # their versions after the last backward
        self._tracker = 0.0
        self._running: tuple[Any, Any] = ((), ())  # roots and gradients of the backward that is under way
        self._clear()

    def _clear(self) -> None:
        """No attempt is open. Lists are replaced, and only `_losses` is added to."""
        self._losses: list[float] = []
        self._gradients: list[Tensor] = _EMPTY  # from the first look at them on
        self._seen: list[int] = _EMPTY  # their versions at the last look
        self._norms: list[float] = _EMPTY  # of those, once they were taken
        self._norms_type = torch.float32
        self._grad_norm = UNKNOWN
        self._max_norm: float | None = None  # of its clip
        self._coefficient: float | None = None
        self._left: list[float] = _EMPTY  # norms of what it has left, where that is verified
        self._norm_left = UNKNOWN  # of all of it
        self._looked_at: tuple[int, ...] | None = None
        self._rates: list[float] = _EMPTY
        self._samples: tuple[float, ...] = ()  # of the gradients after the first backward, now and then
        self._unscaled_after: int | None = None
        self._scale = UNKNOWN
        self._steps_by_scaler = False  # inside scaler.step()
        self._found_inf: list[float] = []
        self._is_lost = False  # somebody wrote to the gradients in the step

    @property
    def is_on(self) -> bool:
        return self._is_on

    @property
    def has_gradients(self) -> bool:
        """Whether an attempt is open."""
        return bool(self._losses) and self.stage != WAITING

    def finished(self) -> None:
        """The long way may have closed a step: may the next go this way?"""
        loop = self._loop
        if len(loop.tracks) > 1 or self._is_on:
            return
        (track,) = loop.tracks.values()
        if self._vain >= VAIN and track.attempts % OFTEN:
            return
        self._is_on = (
            loop.own_scale is None
            and loop.is_here
            and not self._losses_part.is_running
            and self._losses_part.is_settled
            and track.beginning.is_over
            and track.attempts >= OFTEN
            and track.open is track.waiting is None
            and not (track.rescales or track.unseen_writes.were_found or track.takes_norms)
            and not (track.discarded or track.discarding or track.sides)
            and not track.leftovers.is_suspected
            and loop.meter.layouts.are_whole(track.name)
            and _are_plain(loop.parameters())
            and loop.assembly.is_clear
            and not loop.logged
            and loop.on_first_step is None
        )
        if self._is_on:
            self._scaler = None if loop.scaler is None else loop._scaler
            self._thread, self._clips_after = get_ident(), track.clips_after_unscale
            self._step, self._due = loop.assembly.next_step, loop.meter.next_due()
            self._attempts, self._used = track.attempts, track.used
            self._parameters = len(loop.parameters())
            self._vain += 1

    def leave(self, *, anywhere: bool = False) -> None:
        """Give what was noted over to the long way, as it would be there.

        Not in a thread that the loop does not run in, unless it is `anywhere`: what another loop does there is for the
        long way to see that it is none of this one's, and this one may be in the middle of a hook.
        """
        if not self._is_on or not (anywhere or self._loop.runs_here):
            return
        self._is_on = False
        stage, self.stage = self.stage, IDLE
        (track,) = self._loop.tracks.values()
        if track.attempts < self._attempts:
            track.endings.extend([False] * (self._attempts - track.attempts))
            track.unused_backwards = track.usual_sides = track.last_sides = 0
        track.attempts, track.used, track.last_seen = self._attempts, self._used, self._ids or self._used[0]
        track.clips_after_unscale = self._clips_after
        optimizer = self._optimizer()
        if optimizer is None:
            return
        before = Gradients(len(parameters_of(optimizer)), (), [], [])
        if self._losses:
            attempt = self._attempt(track)
            before = Gradients.of_these(self._gradients, self._arrived)
            if self._steps_by_scaler:
                track.in_step_of = attempt.scaler
                self._scalers_part.goes_on(optimizer, track)
            if stage in (STEPPING, WAITING):
                attempt.used = self._ids, self._seen
            if stage == STEPPING:
                track.is_stepping, track.gets = True, attempt.seen
            if stage == WAITING:
                track.waiting, attempt.outcome = attempt, Outcome.STEPPED
            else:
                track.open, track.phase = attempt, Phase.OPEN if self._looked_at is None else Phase.LOOKED
        if stage == BACKWARD:
            self._losses_part.goes_on(*self._running, [(track, before)])
        self._running = (), ()
        self._clear()

    def _measures(self, gradients: list[Tensor]) -> bool:
        measured = _measured(gradients)
        if measured is not None:
            self._norms, self._norms_type, self._grad_norm = measured
        return measured is not None

    def _verifies(self, gradients: list[Tensor]) -> bool:
        """Whether what a clip has left is what it should be."""
        assert self._coefficient is not None
        measured = _measured(gradients)
        if measured is None or not self._unseen.are_alike(self._grad_norm * self._coefficient, measured[2]):
            return False
        self._left, _, self._norm_left = measured
        return True

    def _were_written(self, gradients: list[Tensor]) -> bool:
        """Since the last backward, through `.data`, which leaves no mark."""
        return self._harmless(Gradients.of_these(gradients, []).samples, self._samples) != self._samples

    def _found(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> list[float]:
        state = scaler._per_optimizer_states.get(id(optimizer))
        return [] if state is None else [_read(found) for found in state["found_inf_per_device"].values()]

    def _harmless(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What may fail of itself, as where a disk is full: no exception of it reaches the loop."""
        try:
            return call(*arguments)
        except Exception as error:
            if of_a_signal(error):
                raise
            self._loop.trouble(error)
            return None

    def _attempt(self, track: Track) -> Attempt:
        attempt = Attempt()
        track.attempts += 1
        track.unused_backwards = len(self._losses)
        attempt.backwards = [Loss(loss) for loss in self._losses]
        attempt.arrived = self._ids, self._arrived
        attempt.scaler = None if self._scaler is None else self._scaler()
        attempt.unscaled_after, attempt.loss_scale = self._unscaled_after, self._scale
        attempt.looked_at, attempt.lr, attempt.samples = self._looked_at, list(self._rates), self._samples
        attempt.found_inf, attempt.after_is_lost = self._found_inf, self._is_lost
        if self._seen:
            attempt.seen = Gradients.of_these(self._gradients, self._seen)
        if self._norms:
            count, norms = len(self._norms), _on_host(self._norms, self._norms_type)
            by_clip = self._max_norm is not None
            attempt.before = Measurement([norms], [self._grad_norm], [0.0], 1.0, by_clip, is_usual=True)
            attempt.is_measured, attempt.parameters, attempt.places = True, count, range(count)
        elif self._unscaled_after is not None:
            attempt.waits_for_clip = attempt.seen
        if self._max_norm is not None:
            attempt.clipped, attempt.clipped_after = True, len(self._losses)
        if self._max_norm is not None and self._coefficient is not None:
            attempt.max_norms, attempt.coefficients = {self._max_norm}, [self._coefficient]
        if self._left:
            left = _on_host(self._left, self._norms_type)
            attempt.after = Measurement([left], [self._norm_left], [0.0], 1.0, is_usual=True)
            attempt.places_after = range(count)
        return attempt


def _fails(error: Exception) -> bool:
    """False: what watches over all that torch does, a mode of the user's, say, has refused. The long way reports it."""
    if of_a_signal(error):
        raise error
    return False


def _are_plain(parameters: list[Tensor]) -> bool:
    try:
        return not any(map(needs_care, parameters))
    except Exception as error:
        return _fails(error)


def _read(number: Tensor) -> float:
    """NaN where that fails."""
    try:
        return float(number.item())
    except Exception as error:
        _fails(error)
        return UNKNOWN


def _measured(gradients: list[Tensor]) -> tuple[list[float], torch.dtype, float] | None:
    """Norms, their type, and the norm of all; None where they are not usual ones."""
    try:
        measured = host_norms_of(gradients)
    except Exception as error:  # one is sparse, say
        _fails(error)
        return None
    if measured is None:
        return None
    total = math.hypot(*measured[0])
    return (*measured, total) if VANISHING <= total < math.inf else None


def _on_host(norms: list[float], dtype: torch.dtype) -> TensorNorms:
    """Whatever the device that the user has made the default."""
    return TensorNorms(range(len(norms)), torch.tensor(norms, dtype=dtype, device="cpu"), in_order=True)


class Usual(Noted):
    """Of one loop. A hook's method says whether it did all that is to be done; else the long way is to be asked."""

    __slots__ = ()

    def is_elsewhere(self, roots: Sequence[Any]) -> bool:
        """A backward is another loop's, in another thread: nothing of this one may be touched there."""
        return self._is_on and get_ident() != self._thread and self._loop.is_elsewhere(roots)

    @untraced
    def backward_begins(self, roots: Sequence[Any], gradients: Sequence[Any]) -> bool:
        stage, optimizer = self.stage, self._optimizer()
        if not self._is_on or get_ident() != self._thread or optimizer is None or tracer() is not None:
            return False
        if len(roots) != 1 or len(gradients) != 1 or (self._scaler is not None and torch.is_autocast_enabled("cpu")):
            return False
        there: list[Any] = []
        for group in optimizer.param_groups:
            there += map(_gradient_of, group["params"])
        if stage == IDLE:
            if set(map(type, there)) != _NOTHING:
                return False
        elif stage == OPEN and self._looked_at is None and not self._samples:
            if list(map(id, there)) != self._ids or list(map(_version_of, there)) != self._arrived:
                return False
            self._gradients = there
        else:
            return False
        self._running = roots, gradients
        self.stage = BACKWARD
        return True

    @untraced
    def backward_ended(self) -> bool:
        optimizer = self._optimizer()
        if self.stage != BACKWARD or optimizer is None:  # something else came in between
            return False
        (root,), (by,) = self._running
        there: list[Any] = []
        for group in optimizer.param_groups:
            there += map(_gradient_of, group["params"])
        ids = list(map(id, there))
        are_plain = ids == self._ids if self._losses else set(map(type, there)) == _PLAIN
        if not are_plain or type(root) is not Tensor or type(by) is not Tensor:
            return False
        if len(there) != self._parameters:  # a group was added
            return False
        if not (root.is_cpu and by.is_cpu and root.is_floating_point() and root.numel() == by.numel() == 1):
            return False
        if self._scaler is None:
            if scaled_by((root,)) is not None:
                return False
            loss = _read(root)
        else:
            scaled = scaled_by_last(root)
            if scaled is None or scaled.scaler is not self._scaler() or not isinstance(scaled.loss, float):
                return False
            if not self._losses_part.is_checked(scaled):
                return False
            loss = scaled.loss
        factor = _read(by)
        loss = loss if factor == 1.0 else loss * factor
        if not math.isfinite(loss):
            return False
        try:
            versions = list(map(_version_of, there))
        except RuntimeError as error:  # some were made in inference mode
            return _fails(error)
        if self._losses and versions == self._arrived:
            return False
        self._ids, self._arrived, self._gradients, self._running = ids, versions, [], ((), ())
        if not (self._losses or (self._attempts + 1) % OFTEN):
            self._samples = self._harmless(Gradients.of_these(there, versions).samples) or ()
        self._losses.append(loss)
        self.stage = OPEN
        if self._batch_ids.is_used:
            self._harmless(self._batch_ids.backward)
        return True

    def gradients_go(self, optimizer: torch.optim.Optimizer) -> bool:
        """`zero_grad`, of this optimizer or another."""
        return self._is_on and (self.stage == IDLE or optimizer is not self._optimizer())

    # -- the gradients are looked at

    @untraced
    def clip_begins(self, parameters: Sequence[Tensor], max_norm: float | None, taken: Taken | None) -> bool:
        optimizer = self._optimizer()
        if self.stage != OPEN or self._step >= self._due or get_ident() != self._thread or optimizer is None:
            return False
        if taken is None or max_norm is None or not 0.0 < max_norm < math.inf or tracer() is not None:
            return False
        own = parameters_of(optimizer)
        if len(parameters) != len(own) or not all(map(operator.is_, parameters, own)):
            return False
        there, norms = taken.tensors, taken.norms  # of the parameters, a moment ago
        if self._max_norm is not None or list(map(id, there)) != self._ids:
            return False
        if type(norms) is not Tensor or not norms.is_cpu or norms.dtype not in _WIDE:
            return False
        if self._samples and self._unscaled_after is None and self._were_written(there):
            return False
        try:
            values = norms.tolist()
        except Exception as error:
            return _fails(error)
        if len(values) != len(there):
            return False
        total = math.hypot(*values)
        if not VANISHING <= total < math.inf or (self._scaler is not None and self._unscaled_after is None):
            return False
        self._looked_at = some_versions(optimizer)
        self._gradients, self._seen = there, list(map(_version_of, there))
        self._norms, self._norms_type, self._grad_norm, self._max_norm = values, norms.dtype, total, max_norm
        self._clips_after = self._unscaled_after is not None
        return True

    @untraced
    def clip_ended(self, total_norm: Tensor | None) -> bool:
        if self.stage != OPEN or self._max_norm is None or type(total_norm) is not Tensor or not total_norm.is_cpu:
            return False
        if self._gradients[-1]._version == self._seen[-1] + 1:
            self._seen = list(map(_next, self._seen))
        elif len(set(self._ids)) == len(self._ids):  # they lie in one buffer, and have one version
            self._seen = list(map(_version_of, self._gradients))
        else:  # shared by parameters, it was multiplied more than once
            return False
        coefficient = float(coefficient_of(self._max_norm, _read(total_norm)))
        if math.isnan(coefficient):
            return False
        self._coefficient = coefficient
        return True

    def is_no_part(self, parameters: Sequence[Tensor]) -> bool:
        """Whether a clip, in another thread perhaps, is of other gradients than this loop's; else leaves for it."""
        optimizer = self._optimizer()
        if not self._is_on or optimizer is None:
            return False
        if set(map(id, parameters)).isdisjoint(map(id, parameters_of(optimizer))):
            return True
        self.leave(anywhere=True)
        return False

    @property
    def clipped(self) -> dict[str, Cover]:
        """For the long way: what a clip touches that began here."""
        return {self._name: Cover.ALL}

    @untraced
    def unscaled(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
        if self.stage != OPEN or self._step >= self._due or get_ident() != self._thread or tracer() is not None:
            return False
        if (
            self._looked_at is not None
            or self._scaler is None
            or scaler is not self._scaler()
            or optimizer is not self._optimizer()
        ):
            return False
        if scaler._scale is None or not scaler._scale.is_cpu or self._found(scaler, optimizer) != [0.0]:
            return False
        there = list(map(_gradient_of, parameters_of(optimizer)))
        if list(map(id, there)) != self._ids:
            return False
        if not (self._clips_after or self._steps_by_scaler):  # it may be clipped by hand, unseen, before the step
            return False
        self._looked_at = some_versions(optimizer)
        self._gradients, self._seen = there, list(map(_version_of, there))
        self._unscaled_after, self._scale = len(self._losses), _read(scaler._scale)
        return True

    def is_others(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is none of this loop, and may run in another thread; else leaves for it."""
        return self._is_on and not self._leaves_for(self._loop.track_of(optimizer) is not None)

    def is_others_scaler(self, scaler: torch.amp.GradScaler) -> bool:
        return self._is_on and not self._leaves_for(scaler is self._loop.scaler)

    def _leaves_for(self, is_its_own: bool) -> bool:
        if is_its_own:
            self.leave(anywhere=True)
        return is_its_own

    # -- the step

    @untraced
    def step_begins(self, optimizer: torch.optim.Optimizer) -> bool:
        """No closure was given to it."""
        if self.stage != OPEN or self._step >= self._due or get_ident() != self._thread or tracer() is not None:
            return False
        if optimizer is not self._optimizer() or self._steps_by_scaler is not (self._scaler is not None):
            return False
        there: list[Any] = []
        rates: list[Any] = []
        for group in optimizer.param_groups:
            there += map(_gradient_of, group["params"])
            rates.append(group.get("lr"))
        if list(map(id, there)) != self._ids or set(map(type, rates)) != _RATES:
            return False
        versions = list(map(_version_of, there))
        if versions != (self._seen or self._arrived):
            return False
        if self._max_norm is not None and self._coefficient is None:
            return False
        if self._scaler is not None and getattr(optimizer, "grad_scale", None) is not None:
            return False
        if self._samples and self._scaler is None and self._max_norm is None and self._were_written(there):
            return False
        if not self._moments.are_as_left(optimizer) or not (self._norms or self._measures(there)):
            return False
        if self._max_norm is not None and self._step % self._verify == 0 and not self._verifies(there):
            return False
        self._gradients, self._seen, self._rates = there, versions, rates
        self.stage = STEPPING
        return True

    @untraced
    def step_ended(self) -> bool:
        if self.stage != STEPPING:
            return False
        versions = list(map(_version_of, self._gradients))
        self._moments.stepped_as_before()
        self._used, self._is_lost = (self._ids, versions), versions != self._seen
        if self._scaler is None:
            self._closes(UNKNOWN, None)
        else:
            self.stage = WAITING
        return True

    def _closes(self, tracker: float, new_scale: float | None) -> None:
        ids = self._batch_ids
        note = _made(
            Note,
            (
                self._name,
                self._step,
                time.time(),
                self._losses,
                self._norms,
                self._norms_type,
                self._grad_norm,
                self._rates,
                self._is_lost,
                self._max_norm,
                self._coefficient,
                self._norm_left if self._left else None,
                self._scale,
                tracker,
                new_scale,
                self._harmless(ids.close) if ids.is_used else None,
            ),
        )
        self.stage = IDLE
        self._vain = 0
        self._attempts += 1
        self._step += 1
        self._clear()
        self._harmless(self._assembly.note, note)

    # -- the scaler

    @untraced
    def scaler_step_begins(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
        if self.stage != OPEN or self._scaler is None or scaler is not self._scaler() or get_ident() != self._thread:
            return False
        if optimizer is not self._optimizer():
            return False
        self._steps_by_scaler = True
        return True

    @untraced
    def scaler_step_ended(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
        if self.stage != WAITING or not self._steps_by_scaler or optimizer is not self._optimizer():
            return False  # a step that was withheld, for one
        self._found_inf = self._found(scaler, optimizer)
        if any(self._found_inf):
            return False
        self._steps_by_scaler = False
        return True

    @untraced
    def update_begins(self, scaler: torch.amp.GradScaler, new_scale: float | Tensor | None) -> bool:
        if self.stage != WAITING or self._steps_by_scaler or new_scale is not None or scaler is not self._scaler():
            return False
        if not self._scalers_part.is_as_left(scaler, self._scale) or scaler._growth_tracker is None:
            return False
        if scaler._scale is None or not scaler._scale.is_cpu or _read(scaler._scale) != self._scale:
            return False
        self._tracker = _read(scaler._growth_tracker)
        return not math.isnan(self._tracker)

    @untraced
    def update_ended(self, scaler: torch.amp.GradScaler) -> Update | None:
        """None where all is done, else what the long way is to go on with."""
        new_scale = _read(scaler._scale) if scaler._scale is not None else UNKNOWN
        if self.stage != WAITING or new_scale != self._scale:
            return Update(self._scale, self._tracker, was_set=False)
        self._closes(self._tracker, new_scale)
        return None
