"""Places in torch where a function of ours stands in for torch's own, as long as somebody observes through it.

Others may put theirs there as well, before us, after us, and take them away in any order. What is not ours is left as
it is: where another's function calls ours, ours stays beneath it, and does nothing but call torch's, until it comes to
light again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tbnum.alive import Alive

__all__ = ["PatchPoint", "Place"]

_Function = Callable[..., Any]
_Observer = TypeVar("_Observer")


@dataclass(frozen=True, eq=False)
class Place:
    """The attribute in which torch holds a function. `stand_in(function)` makes ours, which calls that one."""

    holder: Any
    attribute: str
    stand_in: Callable[[Any], _Function]

    def read(self) -> _Function:
        function: _Function = getattr(self.holder, self.attribute)
        return function

    def write(self, function: _Function) -> None:
        setattr(self.holder, self.attribute, function)


class PatchPoint(Generic[_Observer]):
    """Swaps in with the first observer, and out with the last, which may be freed without a word.

    Ours may be there twice, with another's between: the inner is called by the outer then, and is not to count.
    """

    def __init__(self, places: Callable[[], Iterable[Place]]) -> None:
        self._places = places
        self._swapped: list[tuple[Place, _Function, _Function]] = []  # what is ours, and what it calls
        self._observers: Alive[_Observer] = Alive()
        self.observers = self._observers.members  # those of this moment
        self._lock = threading.RLock()  # a collection inside of it may free a monitor, whose finalizer comes here

    def observe(self, observer: _Observer) -> Callable[[], None]:
        """`observer` is among the `observers` until the function that is returned is called."""
        with self._lock:
            self.swap_in(self._places())
            self._observers.add(observer)
        gone = weakref.finalize(observer, self._leave_if_unused)
        gone.atexit = False

        def release() -> None:
            gone.detach()
            self._observers.discard(observer)
            self._leave_if_unused()

        return release

    def swap_in(self, places: Iterable[Place]) -> None:
        """Where ours is not on top: another may have wrapped it, or, having come before us, put back torch's."""
        for place in places:
            there = place.read()
            if not any(there is ours for _, ours, _ in self._swapped):
                ours = place.stand_in(there)
                place.write(ours)
                self._swapped.append((place, ours, there))

    def _leave_if_unused(self) -> None:
        with self._lock:
            if self.observers():  # their number would count one that is just being freed
                return
            for layer in reversed(list(self._swapped)):
                place, ours, before = layer
                if place.read() is ours:
                    place.write(before)
                    self._swapped.remove(layer)
