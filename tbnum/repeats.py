"""A run that was lost, and that this one may repeat: it has the same seed and settings."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tbnum.explain.repeats import divergence
from tbnum.log.columns import columns_named
from tbnum.log.reader import Run, session_metas

__all__ = ["Repeats"]


class _Lost(NamedTuple):
    run: str
    step: int  # at which it was lost
    why: str
    thresholds: set[float]  # at which its first step clipped
    same_folder: bool = False


class Repeats:
    """Of the session `session`, whose settings and seed have `fingerprint`, in `folder`."""

    def __init__(self, folder: Path, session: str, fingerprint: str) -> None:
        self._folder, self._session, self._fingerprint = folder, session, fingerprint
        self._lost: _Lost | None = None

    @property
    def is_open(self) -> bool:
        """Whether one was found, and the first step is to show whether it is repeated."""
        return self._lost is not None

    def look_beside(self) -> None:
        """Look for such a run in the folders beside this one, not below them: a parent folder may hold anything.

        Costs a look at the head of the files in each (0.1 ms a file); a run that is alike is read.
        """
        try:
            folders = [entry.path for entry in os.scandir(self._folder.absolute().parent) if entry.is_dir()]
            for folder in sorted(folders):
                if os.path.samefile(folder, self._folder):
                    continue
                if any(meta.get("fingerprint") == self._fingerprint for meta in session_metas(folder)):
                    run = Run(folder, combine_ranks=False)
                    lost = divergence(run)
                    if lost is not None:
                        self._lost = _Lost(os.path.basename(folder), *lost, _thresholds(run))
                        return
        except Exception:  # somebody else's log, in whatever state, is no reason for this run not to start
            return

    def look_within(self, past: Run) -> None:
        """Likewise at the last session before this one in the same folder."""
        try:
            earlier = [each for each in past.meta["sessions"] if each.get("session") != self._session]
            if not earlier or earlier[-1].get("fingerprint") != self._fingerprint:
                return
            lost = divergence(past)
            if lost is not None:
                self._lost = _Lost(self._folder.name, *lost, _thresholds(past), same_folder=True)
        except Exception:  # as above
            return

    def first_step(self, max_norms: Iterable[float]) -> dict[str, Any] | None:
        """What the event says, now that a step has shown its thresholds of clipping: by others it is another run."""
        lost, self._lost = self._lost, None
        if lost is None or {max_norm for max_norm in max_norms if not math.isnan(max_norm)} != lost.thresholds:
            return None
        return {"run": lost.run, "at_step": lost.step, "why": lost.why, "same_folder": lost.same_folder}


def _thresholds(run: Run) -> set[float]:
    first = [values[0] for _, values in columns_named(run.steps, "max_norm") if len(values)]
    return {float(value) for value in first if not math.isnan(value)}
