"""Joins attempts of several optimizers into steps, numbers them, and hands them on when their values have landed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tbnum.observe.attempt import Attempt, Named, Update
from tbnum.observe.given_up import decided_by_values
from tbnum.observe.landing import Note, Pending
from tbnum.observe.loader import BatchIds
from tbnum.observe.records import Observation, StepRecord
from tbnum.observe.track import Track
from tbnum.observe.transfer import Number

__all__ = ["Assembly"]

ROWS_AT_ONCE = 64  # steps that are handed on together where none of them is urgent
SECONDS_AT_MOST = 2.0  # that a step waits for others
MAX_UNDER_WAY = 256  # steps whose device values may be under way; a device is never that far behind its host


class Assembly:
    """A step holds one attempt of each optimizer that took part; it closes when all have one, or one has its next.

    What the host knows to be worth a look at once (a skip, NaN, statistics of an interval) is handed on at once, with
    all before it, and so is what a device still holds, as soon as it has landed. Quiet steps are handed on together.
    """

    def __init__(
        self,
        on_steps: Callable[[Sequence[StepRecord | Note]], None],
        on_drained: Callable[[], None],
        on_observation: Callable[[Observation], None],
        on_close: Callable[[int], None],
    ) -> None:
        self._on_steps, self._on_drained = on_steps, on_drained
        self._on_observation, self._on_close = on_observation, on_close
        self.next_step = 0
        self.batch_ids = BatchIds()
        self.lock = threading.RLock()  # steps may be handed on by the thread of the log too
        self._finished: dict[str, Attempt] = {}
        self._named: Named = {}
        self._pending: deque[Pending | Note] = deque()
        self._quiet: list[StepRecord | Note] = []  # taken, and not handed on yet
        self._handed_on_at = time.monotonic()

    def add(self, name: str, attempt: Attempt) -> None:
        """To the step that is open; one that has an attempt of this optimizer is over."""
        if name in self._finished:
            self.close(None)
        self._finished[name] = attempt

    def close_if_complete(self, tracks: Iterable[Track]) -> None:
        """Where each optimizer that is alive has an attempt in it."""
        for track in tracks:
            if track.name not in self._finished and track._optimizer() is not None:
                return
        self.close(None)

    @property
    def is_clear(self) -> bool:
        """Whether nothing of the next step is known yet, and the number of each before it is."""
        undecided = [isinstance(pending, Pending) and pending.is_undecided for pending in self._pending]
        return not (self._finished or self._named or any(undecided))

    def name_loss(self, name: str, loss: Number) -> None:
        self._named.setdefault(name, []).append(loss)

    def close(self, update: Update | None) -> None:
        """Close the step that is open, where there is one."""
        if not self._finished:
            return
        self._on_close(self.next_step + 1)  # first, so that what it sends to the host is there before the step is
        finished, self._finished = self._finished, {}
        named, self._named = self._named, {}
        sample_ids = self.batch_ids.close()
        self._settle(Pending(self.next_step, time.time(), update, finished, named, sample_ids=sample_ids))
        self.next_step += 1

    def close_by(self, update: Update) -> None:
        """`scaler.update()` has run."""
        if self._finished:
            self.close(update)
        else:
            self._settle(Pending(max(self.next_step - 1, 0), time.time(), update))

    def consider(self, name: str, attempt: Attempt) -> None:
        """A device alone knows whether the attempt was given up, or was on the side: a step if it was the former."""
        sample_ids = self.batch_ids.close()
        attempts = {name: attempt}
        self._settle(Pending(self.next_step, time.time(), None, attempts, sample_ids=sample_ids, is_undecided=True))

    def sets_aside(self) -> None:
        """An attempt was no step: the samples that it used are those of none, unless it was a part of one."""
        if not self._finished:
            self.batch_ids.aside()

    def note(self, note: Note) -> None:
        """A step that went the usual way has closed."""
        self._on_close(note.step + 1)
        self._settle(note)
        self.next_step = note.step + 1

    def _settle(self, pending: Pending | Note) -> None:
        self._pending.append(pending)
        if (
            (isinstance(pending, Pending) and not pending.is_quiet and pending.is_urgent)
            or len(self._pending) >= ROWS_AT_ONCE
            or time.monotonic() - self._handed_on_at > SECONDS_AT_MOST
        ):
            self.drain()

    def drain(self, wait: bool = False) -> None:
        """Hand on the steps whose values have reached the host, in order. With `wait`, all."""
        with self.lock:
            self._handed_on_at = time.monotonic()
            try:
                while self._pending and (wait or len(self._pending) > MAX_UNDER_WAY or self._pending[0].ready()):
                    self._take(self._pending.popleft())
            finally:
                try:
                    self._hand_on_quiet()
                finally:
                    self._on_drained()

    def drain_quiet(self, on_step: Callable[[StepRecord], None]) -> None:
        """In another thread, where the loop has not come by for a while: hand on what is there and makes no event.

        What a device may still hold is left alone: to ask it from here would end the capture of a CUDA graph.
        """
        if not self._pending or time.monotonic() - self._handed_on_at < SECONDS_AT_MOST:
            return
        if not self.lock.acquire(blocking=False):
            return
        try:
            while self._pending and self._pending[0].is_quietly_there():
                record, _ = self._pending.popleft().land()
                if record is not None:
                    on_step(record)
        finally:
            self._on_drained()
            self.lock.release()

    def _hand_on_quiet(self) -> None:
        steps, self._quiet = self._quiet, []
        if steps:
            self._on_steps(steps)

    def _take(self, pending: Pending | Note) -> None:
        """One that is quiet waits for others; any other is handed on by itself, after those."""
        if isinstance(pending, Note):
            self._quiet.append(pending)
            return
        record, scales = pending.land()
        if record is not None and record.is_quiet:
            self._quiet.append(record)
            return
        self._hand_on_quiet()
        if record is not None and pending.is_undecided:
            (name,) = pending.attempts
            if not decided_by_values(pending.attempts[name], record, record.optimizers[name]):
                return
            self.next_step += 1
            for later in self._pending:
                if isinstance(later, Pending):  # none was noted meanwhile: see `is_clear`
                    later.step += 1
        if record is not None:
            self._on_steps([record])
        if scales is None:
            return
        old, new = scales
        if new == old:  # a scale that is to stay may be set at each update
            return
        kind = "scale_growth" if new > old else "scale_backoff"
        if pending.scale_was_set:
            kind = "scale_set"
        self._on_observation(Observation(kind, pending.step, pending.wall_time, {"old_scale": old, "new_scale": new}))
