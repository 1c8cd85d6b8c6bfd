"""Clocks the functions of tbnum that go over tensors, from outside: the product has no clock in it."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Passes"]


class Passes:
    """While it is open, seconds spent in passes on the thread that opened it, the outermost each.

    A pass is a call of a function of `tbnum.measure` whose name ends in `_of`; what it needs of Python is in it.
    `clock` is the time that counts: `time.thread_time` leaves out what other processes take of the core.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self._clock = clock
        self._inside = False
        self._thread = threading.get_ident()

    def take(self) -> float:
        """Seconds since the last time one asked."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    @contextmanager
    def running(self) -> Iterator[Passes]:
        replaced = [
            (module, name, value)
            for module_name, module in list(sys.modules.items())
            if module_name.startswith("tbnum.")
            for name, value in list(vars(module).items())
            if name.endswith("_of") and getattr(value, "__module__", "").startswith("tbnum.measure.")
        ]
        for module, name, value in replaced:
            setattr(module, name, self._clocked(value))
        try:
            yield self
        finally:
            for module, name, value in replaced:
                setattr(module, name, value)

    def _clocked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            if self._inside or threading.get_ident() != self._thread:
                return call(*args, **kwargs)
            self._inside = True
            start = self._clock()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += self._clock() - start
                self._inside = False

        return clocked
