"""The callbacks of `monitor.on_event`: called on the training thread, and in nobody's way."""

from __future__ import annotations

from collections.abc import Callable

from tbnum.caller import warn
from tbnum.log.schema import Event

__all__ = ["Callbacks"]


class Callbacks:
    """Calls each with every event. What one raises is reported once, and neither the others nor the loop meet it.

    KeyboardInterrupt and SystemExit are the user's, and reach the loop once the other callbacks have been called.
    """

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Event], None]] = []
        self._failed: set[int] = set()  # by id of those that are in the list
        self._calling = False

    def add(self, callback: Callable[[Event], None]) -> None:
        self._callbacks.append(callback)

    def call(self, event: Event) -> None:
        """An event that a callback makes (it annotates, say) is in the log, and no callback hears of it."""
        if self._calling:
            return
        self._calling = True
        ended_by: BaseException | None = None
        try:
            for callback in list(self._callbacks):
                try:
                    callback(event)
                except Exception as error:
                    self._report(callback, error)
                except BaseException as error:
                    ended_by = error
        finally:
            self._calling = False
        if ended_by is not None:
            raise ended_by

    def _report(self, callback: Callable[[Event], None], error: Exception) -> None:
        if id(callback) not in self._failed:
            self._failed.add(id(callback))
            name = getattr(callback, "__qualname__", type(callback).__name__)
            warn(
                f"a callback given to monitor.on_event(), {name}, raised {type(error).__name__}: {error}; training "
                "goes on, and the callback is called with further events. This is said once."
            )
