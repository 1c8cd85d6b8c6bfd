"""The steps of a run's sessions as one table."""

from __future__ import annotations

from collections.abc import Sequence

from tbnum.log.growing import GrowingColumns

__all__ = ["JoinedSteps"]


class JoinedSteps:
    """`steps` are the sessions' rows that count, one session after the other.

    One session that counts as a whole is not copied, and where only the last one has grown, its new rows are.
    """

    def __init__(self) -> None:
        self.steps = GrowingColumns()
        self._copied: list[tuple[GrowingColumns, int]] = []

    def take(self, sessions: Sequence[tuple[GrowingColumns, int]]) -> None:
        """Each session's steps, oldest first, and how many of its first rows count."""
        parts = [(steps, rows) for steps, rows in sessions if rows]
        if len(parts) == 1 and parts[0][1] == parts[0][0].count:
            self.steps = parts[0][0]
            self._copied = []
            return
        if self._has_only_grown(parts):
            self.steps.extend(parts[-1][0], self._copied[-1][1], parts[-1][1])
        else:
            self.steps = GrowingColumns()
            for steps, _ in sessions:
                self.steps.provide(steps.views())
            self.steps.reserve(sum(rows for _, rows in parts))
            for steps, rows in parts:
                self.steps.extend(steps, 0, rows)
        self._copied = parts

    def _has_only_grown(self, parts: Sequence[tuple[GrowingColumns, int]]) -> bool:
        copied = self._copied
        if not copied or len(parts) != len(copied):
            return False
        if not all(steps is before for (steps, _), (before, _) in zip(parts, copied, strict=True)):
            return False
        counts, before = [rows for _, rows in parts], [rows for _, rows in copied]
        return counts[:-1] == before[:-1] and counts[-1] >= before[-1]
