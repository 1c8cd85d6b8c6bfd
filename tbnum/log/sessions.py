"""The sessions of one rank: its record files in a run's folder, and what of each counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tbnum.log.concurrent import concurrent_writers
from tbnum.log.files import Place
from tbnum.log.folder import order, pick
from tbnum.log.growing import GrowingColumns
from tbnum.log.joined import JoinedSteps
from tbnum.log.schema import Event
from tbnum.log.session_file import SessionFile, batch_of, dropped_of, events_of
from tbnum.log.superseded import cuts

__all__ = ["Sessions", "Taken"]


class Taken(NamedTuple):
    """How many rows of a session's file count."""

    file: SessionFile
    rows: int


class Sessions:
    """`taken` are the chosen files, oldest first, and what later ones leave of each; `steps` and `events` theirs."""

    def __init__(self, session: int | None = None) -> None:
        """`session`: the one that is chosen, by its number; None: all."""
        self.files: list[SessionFile] = []  # oldest first
        self.taken: list[Taken] = []
        self.events: list[Event] = []
        self._session = session
        self._joined = JoinedSteps()

    @property
    def chosen(self) -> list[SessionFile]:
        return pick(self.files, self._session)

    @property
    def steps(self) -> GrowingColumns:
        return self._joined.steps

    @property
    def world_size(self) -> int:
        """As the newest chosen session recorded it."""
        size = self.chosen[-1].meta.get("world_size") if self.chosen else None
        return size if isinstance(size, int) else 1

    def found(self, paths: Sequence[Place]) -> bool:
        """Takes what the folder holds now. True where that is news."""
        known = {file.path: file for file in self.files}
        self.files = [known.get(path) or SessionFile(path) for path in paths]
        return known.keys() != set(paths)

    def read(self) -> bool:
        """Reads what was appended to the files. True at any change."""
        changed = any([file.refresh() for file in self.files])
        self.files.sort(key=lambda file: order(file.path, file.start))
        return changed

    def join(self, tail: GrowingColumns | None = None) -> None:
        """Puts the chosen files together: of each, what no later one supersedes.

        `tail`: steps that another rank took after the last one of the newest; they count as its own.
        """
        starts = cuts([file.start for file in self.chosen])
        self.taken = [Taken(file, file.steps.before(cut)) for file, cut in zip(self.chosen, starts, strict=True)]
        self.events = events_of(self.chosen, starts)
        counted = {taken.file.path: taken.rows for taken in self.taken}
        parts = [(file.steps, counted.get(file.path, 0)) for file in self.files]
        if tail is not None:
            parts.append((tail, tail.count))
            self.taken[-1] = self.taken[-1]._replace(rows=self.taken[-1].rows + tail.count)
        self._joined.take(parts)

    def described(self) -> dict[str, Any]:
        """What the newest chosen session recorded of itself, and what all of them did, as `Run.meta` has it."""
        chosen = self.chosen
        return {
            **(chosen[-1].described() if chosen else {}),
            "sessions": [file.described() for file in self.files],
            "dropped": dropped_of(chosen),
        }

    def concurrent(self) -> list[Mapping[str, Any]]:
        """Sessions that recorded at the same time."""
        return concurrent_writers([file.trajectory() for file in self.chosen])

    def batch(self, step: int) -> np.ndarray | None:
        """The ids (N,) of the samples of a step that counts; None where it does not have them."""
        rows = self.steps.views()["step"]
        row = int(np.searchsorted(rows, step))
        return batch_of(self.chosen, step) if row < len(rows) and rows[row] == step else None
