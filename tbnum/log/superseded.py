"""Which steps of earlier sessions count no more, once later ones took them again."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["cuts"]


def cuts(starts: Sequence[int | None]) -> list[int | None]:
    """For each of a run's sessions, oldest first, the step from which later ones supersede it; None: none does.

    A session that starts at step s takes the steps from s on again, so it supersedes them in all sessions before it:
    the cut is the least start of the later ones. None is the start of a session that took no step: it supersedes
    nothing.
    """
    found: list[int | None] = []
    cut: int | None = None
    for start in reversed(starts):
        found.append(cut)
        if start is not None:
            cut = start if cut is None else min(cut, start)
    return found[::-1]
