"""Where the gradients of one optimizer are on their way to an update, and what may happen to them next.

A track has two slots. `open` is the attempt whose gradients are being gathered; `waiting` is one that has stepped, or
was held back by its scaler, and that `scaler.update()` will close. `TABLE` says what each signal does in each phase.
"""

from __future__ import annotations

import enum
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tbnum.observe.attempt import Attempt, Loss, Outcome
from tbnum.observe.beginning import Beginning
from tbnum.observe.gradients import Gradients, Marks
from tbnum.observe.leftovers import Leftovers
from tbnum.observe.moments import Moments
from tbnum.observe.unseen_writes import UnseenWrites

__all__ = ["TABLE", "Move", "Phase", "Signal", "Track", "moves"]


class Phase(enum.Enum):
    """Of the open attempt."""

    NONE = "none"
    OPEN = "open"  # a gradient has arrived
    LOOKED = "looked"  # somebody clipped or unscaled the gradients

    __hash__ = object.__hash__  # the enum's own is written in Python, and asked for at every signal


class Signal(enum.Enum):
    """What a hook saw."""

    GRADIENT = "gradient arrives"
    LOOK = "looked at"
    STEP = "step"
    STEP_UNDER_SCALER = "step under a scaler"
    WITHHELD = "scaler withholds"
    GONE = "gone"
    UPDATE = "update"
    UPDATE_OF_UNSCALED = "update, after unscale_ and no step"

    __hash__ = object.__hash__


class Move(enum.Enum):
    """What a track does with its attempts."""

    OPEN = "a new attempt"
    MARK = "marked as looked at"
    FINISH = "row"
    WAIT = "waits for update"
    HOLD = "waits for update, held back"
    END = "given up, or on the side"
    FINISH_WAITING = "old row"


_Moves = tuple[Move, ...]

TABLE: Mapping[Phase, Mapping[Signal, _Moves]] = {
    Phase.NONE: {
        Signal.GRADIENT: (Move.OPEN,),
        Signal.LOOK: (Move.OPEN, Move.MARK),  # gradients that were set by hand
        Signal.STEP: (Move.OPEN, Move.FINISH),  # likewise
        Signal.STEP_UNDER_SCALER: (Move.OPEN, Move.WAIT),
        Signal.WITHHELD: (Move.OPEN, Move.HOLD),
        Signal.GONE: (),
        Signal.UPDATE: (),
        Signal.UPDATE_OF_UNSCALED: (),
    },
    Phase.OPEN: {
        Signal.GRADIENT: (),
        Signal.LOOK: (Move.MARK,),
        Signal.STEP: (Move.FINISH,),
        Signal.STEP_UNDER_SCALER: (Move.WAIT,),
        Signal.WITHHELD: (Move.HOLD,),
        Signal.GONE: (Move.END,),
        Signal.UPDATE: (),
        Signal.UPDATE_OF_UNSCALED: (Move.END,),
    },
    Phase.LOOKED: {
        Signal.GRADIENT: (),
        Signal.LOOK: (),
        Signal.STEP: (Move.FINISH,),
        Signal.STEP_UNDER_SCALER: (Move.WAIT,),
        Signal.WITHHELD: (Move.HOLD,),
        Signal.GONE: (Move.END,),
        Signal.UPDATE: (),
        Signal.UPDATE_OF_UNSCALED: (Move.END,),
    },
}
"""What a signal does while nothing waits."""

CLOSES_WAITING = frozenset({Signal.STEP, Signal.STEP_UNDER_SCALER, Signal.WITHHELD})
"""The loop has gone on without `update()`: the attempt that waits is over before the next one moves."""


def moves(phase: Phase, waiting: bool, signal: Signal) -> _Moves:
    """What a track does at a signal."""
    if not waiting:
        return TABLE[phase][signal]
    if signal in (Signal.UPDATE, Signal.UPDATE_OF_UNSCALED):
        return (Move.FINISH_WAITING,)  # gradients that came since are the next attempt's
    return (Move.FINISH_WAITING, *TABLE[phase][signal]) if signal in CLOSES_WAITING else TABLE[phase][signal]


_MOVES = {
    (phase, waiting, signal): moves(phase, waiting, signal)
    for phase in Phase
    for waiting in (False, True)
    for signal in Signal
}


REMEMBERED = 16  # endings of attempts
OFTEN = 16  # attempts in which a loop shows what it does with its gradients


class Track:
    """One optimizer, which is held weakly, and its attempts.

    `on_finished(track, attempt)` is called with an attempt that makes a row, `on_ended(track, attempt)` with one that
    ended without a step; the attempt is out of its slot by then.
    """

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        on_finished: Callable[[Track, Attempt], None],
        on_ended: Callable[[Track, Attempt], None],
    ) -> None:
        self.name = name
        self._optimizer = weakref.ref(optimizer)
        self._on_finished, self._on_ended = on_finished, on_ended
        self.phase = Phase.NONE
        self.open: Attempt | None = None
        self.waiting: Attempt | None = None
        self.is_stepping = False  # inside optimizer.step()
        self.may_evaluate = False  # a closure is being evaluated for the first time
        self.in_step_of: torch.amp.GradScaler | None = None  # inside its scaler.step()
        self.known_as: weakref.ref[Any] | None = None  # what its scaler was last given: it, or an object around it
        self.unspoilt: Any = None  # an `Unspoilt`, in a step whose gradients are not all finite
        self.gets: Gradients | None = None  # the gradients that a step which is under way began with
        self.used: Marks = ([], [])  # of the gradients that it last stepped with
        self.leftovers = Leftovers()
        self.moments = Moments()
        self.beginning = Beginning()
        self.last_seen: list[int] = []  # ids of the gradients after the last backward that reached them
        self.attempts = 0
        self.rescales = False  # the loop multiplies its gradients by hand
        self.rewrites = False  # it does something else to them before it steps
        self.clips_after_unscale = False
        self.takes_norms = False  # before it steps, to decide whether to
        self.unseen_writes = UnseenWrites()
        self.sides = 0  # attempts on the side since the last that counted
        self.last_sides = sys.maxsize  # likewise, before the last step; none before the first
        self.usual_sides = 0  # before each of the last two
        self.ended = 0  # attempts without a step since the last step, whatever they were
        self.discarded: list[tuple[Loss, str]] = []  # whose gradients went since the last step, and from where
        self.discarding = 0  # steps in a row before which some were
        self.unused_backwards = 0
        self.never_stepped = True
        self.endings: deque[bool] = deque(maxlen=REMEMBERED)  # of the last attempts: given up by the loop after a look

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return self._optimizer()

    def signal(self, signal: Signal) -> Attempt | None:
        """Do what the table says; gives the attempt that the signal is about, where there is one."""
        about = self.open
        for move in _MOVES[self.phase, self.waiting is not None, signal]:
            about = self._move(move) or about
        return about

    def is_sampled(self) -> bool:
        """Whether to look for a rescaling by hand: at first always, then now and then, once one was seen always."""
        return self.rescales or self.attempts < OFTEN or not self.attempts % OFTEN

    def forget(self) -> None:
        """What is open ended in an exception."""
        self.open, self.phase = None, Phase.NONE
        self.is_stepping = self.may_evaluate = False
        self.gets = self.unspoilt = None

    def _move(self, move: Move) -> Attempt | None:
        attempt = self.open
        if move is Move.OPEN:
            self.open, self.phase = Attempt(), Phase.OPEN
            self.attempts += 1
            return self.open
        if move is Move.FINISH_WAITING:
            waiting, self.waiting = self.waiting, None
            if waiting is not None:
                self._on_finished(self, waiting)
            return None
        assert attempt is not None
        if move is Move.MARK:
            self.phase = Phase.LOOKED
            return attempt
        self.open, self.phase = None, Phase.NONE
        if move is Move.END:
            self._on_ended(self, attempt)
            return attempt
        stepped = Outcome.STEPPED if attempt.why_given_up is None else Outcome.GIVEN_UP
        attempt.outcome = Outcome.HELD if move is Move.HOLD else stepped
        if move is Move.FINISH:
            self._on_finished(self, attempt)
        else:
            self.waiting = attempt
        return attempt
