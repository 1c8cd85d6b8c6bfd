"""A place in torch where a function of ours stands in for torch's own, as long as somebody observes through it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from tbnum.observe.steps import StepObserver

__all__ = ["Seam"]


class Seam:
    """Swaps in with the first observer, and out with the last, which may be freed without a word."""

    def __init__(self, swap_in: Callable[[], None], swap_out: Callable[[], None]) -> None:
        self._swap_in = swap_in
        self._swap_out = swap_out
        self._is_in = False
        self._observers: weakref.WeakSet[StepObserver] = weakref.WeakSet()
        self._lock = threading.RLock()  # a collection inside of it may free a monitor, whose finalizer comes here

    def observers(self) -> list[StepObserver]:
        return list(self._observers)

    def observe(self, observer: StepObserver) -> Callable[[], None]:
        """`observer` is among the `observers` until the function that is returned is called."""
        with self._lock:
            if not self._is_in:
                self._swap_in()
                self._is_in = True
            self._observers.add(observer)
        gone = weakref.finalize(observer, self._leave_if_unused)
        gone.atexit = False

        def release() -> None:
            gone.detach()
            self._observers.discard(observer)
            self._leave_if_unused()

        return release

    def _leave_if_unused(self) -> None:
        with self._lock:
            if self._is_in and not self.observers():  # their number would count one that is just being freed
                self._swap_out()
                self._is_in = False
