"""Gradients that a step has used, and that the loop uses again: `zero_grad()` was forgotten, or a step came twice.

The same tensors with the same versions raise the suspicion; a write through `.data` leaves both as they are. So the
first time only makes it look closer: from then on the norms of the two smallest gradients are taken after each step,
and held against what is found at the next attempt. Loops without such gradients pay nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

import numpy as np

from tbnum.observe.gradients import Gradients
from tbnum.observe.transfer import Number, Transfer, tensors_in

__all__ = ["Leftovers"]

SURE = 3  # times that values were found unchanged, after which it is no accident


class _Look(NamedTuple):
    kind: str
    used: list[Number]
    found: list[Number]
    transfer: Transfer


class Leftovers:
    """Of one optimizer."""

    def __init__(self) -> None:
        self.is_suspected = False
        self._used: list[Number] = []  # norms of some gradients after the last step
        self._candidate: _Look | None = None
        self._looks: deque[_Look] = deque()
        self._sure: Counter[str] = Counter()

    def stepped(self, gradients: Gradients) -> str | None:
        """The optimizer has used these. The kind of mistake that this makes sure, once."""
        if not self.is_suspected:
            return None
        mistake = self._were_used()
        self._used = gradients.norms_of_some()
        return mistake

    def found(self, kind: str, gradients: Gradients) -> None:
        """The gradients of the last step are there, unwritten as far as their versions say. They may go yet."""
        self.is_suspected = True
        self._candidate = None
        if self._used and self._sure[kind] < SURE:
            found = gradients.norms_of_some()
            self._candidate = _Look(kind, self._used, found, Transfer(tensors_in([*self._used, *found])))

    def went(self) -> None:
        """They were thrown away before a step could use them: another model's backward had passed through."""
        self._candidate = None

    def _were_used(self) -> str | None:
        candidate, self._candidate = self._candidate, None
        if candidate is None:
            return None
        self._looks.append(candidate)
        return candidate.kind if self._read(candidate.kind) else None

    def _read(self, kind: str) -> bool:
        """Reads the looks whose values have arrived. Whether one of them made `kind` sure."""
        before = self._sure[kind]
        while self._looks and self._looks[0].transfer.ready():
            look = self._looks.popleft()
            used, found = look.transfer.numbers(look.used), look.transfer.numbers(look.found)
            # NaN that an overflow has left is as it was, too.
            self._sure[look.kind] += np.array_equal(used, found, equal_nan=True) and any(value != 0 for value in used)
        return before < SURE <= self._sure[kind]
