"""What the trackers share: a monitor's scalars and events, sent from a thread of their own."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from tbnum.log.schema import Event
from tbnum.monitor import Monitor
from tbnum.observe.caller import warn

__all__ = ["CLOSE_SECONDS", "QUEUE_SIZE", "Forwarder", "Scalars", "Tracker", "event_counts"]

QUEUE_SIZE = 10_000
"""Sets of scalars and events that wait for the tracker, 1 to 2 kB each."""

CLOSE_SECONDS = 10.0
"""How long `close()` and the end of the process wait for a tracker that is slow."""


class Scalars(NamedTuple):
    """The values of one step, by tag: `tbnum/loss` and so on."""

    step: int
    values: Mapping[str, float]
    wall_time: float  # seconds since the epoch


class Tracker(Protocol):
    """Where the values go. All calls come from the forwarder's thread."""

    def send_scalars(self, scalars: Scalars) -> None: ...

    def send_event(self, event: Event, count: int) -> None:
        """`count`: events of this kind so far."""

    def end(self) -> None:
        """All is sent. The run itself is the user's, and stays open."""


class Forwarder:
    """Sends what a monitor records to a tracker, and never makes training wait for it.

    The monitor puts values into a bounded queue; a thread takes them out. What does not fit, and what the tracker
    refuses, is counted and reported once. The record on disk has all of it.
    """

    def __init__(self, monitor: Monitor, tracker: Tracker, name: str) -> None:
        self.sent = 0
        self.dropped = 0  # as the queue was full
        self.refused = 0  # by the tracker
        self._name = name
        self._tracker = tracker
        self._kinds: Counter[str] = Counter()
        self._queue: queue.Queue[Scalars | Event | _Mark] = queue.Queue(QUEUE_SIZE)
        self._has_warned = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"tbnum to {name}", daemon=True)
        self._thread.start()
        monitor.on_scalars(lambda step, values, wall_time: self._put(Scalars(step, values, wall_time)))
        monitor.on_event(self._put)
        monitor.call_when_written(self.close)
        _register(self, monitor)

    def flush(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Waits until all that was put into the queue is sent; False where that took longer than `timeout` seconds."""
        mark = _Mark()
        deadline = time.monotonic() + timeout
        try:
            self._queue.put(mark, timeout=timeout)
        except queue.Full:
            return False
        return mark.reached.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Sends what is left, for at most `CLOSE_SECONDS`, and ends. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        mark = _Mark(last=True)
        with contextlib.suppress(queue.Full):
            self._queue.put(mark, timeout=CLOSE_SECONDS)
            if mark.reached.wait(CLOSE_SECONDS):
                self._thread.join(CLOSE_SECONDS)
                return
        self._warn(f"{self._queue.qsize():,} values were not sent within {CLOSE_SECONDS:g} s")

    def end_soon(self) -> None:
        """Where the monitor is gone without a `close()`: the thread ends after what is in the queue. Does not wait."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(_Mark(last=True))

    def _put(self, item: Scalars | Event) -> None:
        """From the training thread and the log's. Never waits."""
        if self._closed:
            return
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.dropped += 1
            self._warn(f"it is slower than the training, and {QUEUE_SIZE:,} values wait already")

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, _Mark):
                if item.last:
                    self._attempt(self._tracker.end)
                item.reached.set()
                if item.last:
                    return
            elif isinstance(item, Event):
                self._kinds[item.kind] += 1
                event, count = item, self._kinds[item.kind]
                self._send(lambda: self._tracker.send_event(event, count))  # noqa: B023 - called at once
            else:
                scalars = item
                self._send(lambda: self._tracker.send_scalars(scalars))  # noqa: B023 - called at once

    def _send(self, call: Callable[[], None]) -> None:
        if self._attempt(call):
            self.sent += 1
        else:
            self.refused += 1

    def _attempt(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:
            self._warn(f"{type(error).__name__}: {error}")
            return False
        return True

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(f"tbnum could not send everything to {self._name} ({why}). Training continues, and the record has it.")


class _Mark:
    """A place in the queue, and whether all before it was sent."""

    def __init__(self, last: bool = False) -> None:
        self.last = last
        self.reached = threading.Event()


def event_counts(event: Event, count: int) -> dict[str, float]:
    """An event as a number, which every tracker can draw: how many of its kind there were."""
    return {f"tbnum/events/{event.kind}": float(count)}


def _register(forwarder: Forwarder, monitor: Monitor) -> None:
    """Where nobody closes the monitor: at the end of the process, before the tracker's own end, which began earlier."""
    living = weakref.ref(forwarder)
    recording = weakref.ref(monitor)

    def at_exit() -> None:
        forwarder, monitor = living(), recording()
        if monitor is not None:
            monitor.flush()
        if forwarder is not None:
            forwarder.flush()

    atexit.register(at_exit)
    monitor.call_when_written(lambda: atexit.unregister(at_exit))
    weakref.finalize(monitor, forwarder.end_soon).atexit = False
