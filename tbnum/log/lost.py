"""What a writer could not write: counted by reason, and said once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tbnum.caller import warn

__all__ = ["Lost"]


class Lost:
    """`count` is for any thread; `say` is the training thread's, since a warning is to point at its line."""

    def __init__(self, path: Callable[[], Path], attention: Callable[[], None]) -> None:
        """`path` gives the file in question; `attention` has the training thread call `say` soon."""
        self.by_reason: dict[str, int] = {}
        self._path = path
        self._attention = attention
        self._counting = threading.RLock()
        self._warnings: list[str] = []
        self._warned: set[str] = set()

    def count(self, reason: str, lost: int = 1, warning: str | None = None) -> None:
        """Of trouble without a `warning` of its own the first is said."""
        if lost:
            with self._counting:
                self.by_reason[reason] = self.by_reason.get(reason, 0) + lost
        kind = "trouble" if warning is None else reason
        if kind in self._warned:
            return
        self._warned.add(kind)
        self._warnings.append(
            warning
            or f"tbnum cannot write all of {self._path()} ({reason}). Training goes on; what is lost is "
            "counted in the log, `run.meta['dropped']`. This is said once."
        )
        self._attention()

    def say(self) -> None:
        """Warns of what was counted since. Costs a look where there is nothing."""
        while self._warnings:
            warn(self._warnings.pop(0))

    def forget(self) -> None:
        """In a forked child: another thread may have held the lock when it was made."""
        self._counting = threading.RLock()
