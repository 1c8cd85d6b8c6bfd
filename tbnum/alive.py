"""Objects that are alive, to be walked at any moment, by any thread, while others come and go."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

__all__ = ["Alive"]

_T = TypeVar("_T")


class Alive(Generic[_T]):
    """A set that holds its members weakly, in the order in which they were added; two are the same by identity.

    A walk goes over those that there were when it began: a `weakref.WeakSet` raises "Set changed size during iteration"
    where another thread adds to it. There is no lock, which a fork could leave locked in the child for ever.
    """

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[Any]] = {}  # each operation on it that is used here is atomic

    def add(self, member: _T) -> None:
        key, refs = id(member), self._refs

        def gone(ref: weakref.ref[Any]) -> None:
            if refs.get(key) is ref:
                refs.pop(key, None)

        refs[key] = weakref.ref(member, gone)

    def discard(self, member: _T) -> None:
        self._refs.pop(id(member), None)

    def __contains__(self, member: object) -> bool:
        ref = self._refs.get(id(member))
        return ref is not None and ref() is member

    def __bool__(self) -> bool:
        return bool(self._refs)

    def __iter__(self) -> Iterator[_T]:
        return iter(self.members())

    def members(self) -> list[_T]:
        """Those of this moment."""
        members: list[_T] = []
        for ref in list(self._refs.values()):  # which no other thread can come into
            member = ref()
            if member is not None:
                members.append(member)
        return members
