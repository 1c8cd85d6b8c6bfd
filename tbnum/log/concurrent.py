"""Two processes that recorded into one folder at the same time, as against a run that was stopped and continued.

Sessions follow each other: one that begins supersedes what is before it. Where they did not, the record of a folder
is neither training's. Their clocks show it, and where these may differ, so do the steps that one continued from the
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Trajectory", "concurrent_writers"]

SAME_HOST_SECONDS, OTHER_HOST_SECONDS = 30.0, 600.0
"""So long two sessions have to have trained at once: a clock may have been set, and those of two hosts differ."""


class Trajectory(NamedTuple):
    """When a session took which steps, superseded ones too."""

    file: str
    host: str
    process: int
    start_time: float
    first_step: int  # from which it supersedes
    step: np.ndarray  # (S,) int64
    wall_time: np.ndarray  # (S,) seconds since the epoch


def concurrent_writers(trajectories: Sequence[Trajectory]) -> list[Mapping[str, Any]]:
    """Pairs of sessions that took steps at the same time, in the order they began.

    "sessions": their numbers, "files", "hosts" and "processes" of both, "since" and "until" when (of the second's
    clock), "first_step": from which the second is read in place of the first.
    """
    found: list[Mapping[str, Any]] = []
    for number, second in enumerate(trajectories):
        for before, first in enumerate(trajectories[:number]):
            together = _together(first, second)
            if together is not None:
                both = (first, second)
                found.append(
                    {
                        "sessions": [before, number],
                        "files": [each.file for each in both],
                        "hosts": [each.host for each in both],
                        "processes": [each.process for each in both],
                        "since": together[0],
                        "until": together[1],
                        "first_step": second.first_step,
                    }
                )
    return found


def _together(first: Trajectory, second: Trajectory) -> tuple[float, float] | None:
    """From when to when both took steps; None where one followed the other, as far as can be known."""
    if not len(first.step) or not len(second.step):
        return None
    since, until = float(second.wall_time[0]), min(float(first.wall_time[-1]), float(second.wall_time[-1]))
    least = SAME_HOST_SECONDS if first.host == second.host else OTHER_HOST_SECONDS
    if not until - since >= least:
        return None
    after = first.step[first.wall_time > second.start_time]
    if (after < second.first_step).any():
        return None  # the second goes on from them: it was the clock that was set, or is another host's
    if not all(np.count_nonzero((each.wall_time >= since) & (each.wall_time <= until)) > 1 for each in (first, second)):
        return None
    return since, until
