"""How a log numbers its steps."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Numbering", "checked_step"]


def checked_step(step: Any) -> int:
    """The number of a step, as a user gives it. TypeError for anything else than a whole number."""
    if isinstance(step, bool) or not isinstance(step, numbers.Integral):
        raise TypeError(f"step is {step!r:.80}; it has to be the number of a step, a whole number.")
    return int(step)


class Numbering(NamedTuple):
    """The number of the first step, and how far apart two are (on an axis of samples: a batch)."""

    first: int = 0
    unit: int = 1

    def count(self, step: int) -> int:
        """How many steps come before the one with this number."""
        return round((step - self.first) / self.unit) if self.unit > 1 else step - self.first

    @staticmethod
    def of(meta: Mapping[str, Any]) -> Numbering:
        """A run's, from its meta. What `wrap` records counts from 0."""
        given = meta.get("numbering") or {}
        return Numbering(int(given.get("first", 0)), int(given.get("unit", 1)))
