"""The other ranks of a run: their files, read when they are asked for, and put beside the lowest rank's."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tbnum.log.files import Place
from tbnum.log.folder import first_meta, order
from tbnum.log.names import parse_name
from tbnum.log.ranks import COMBINED, WATCHED, RankRecord, Ranks, RanksSession, match_sessions, same_tensors
from tbnum.log.session_file import SessionFile
from tbnum.log.sessions import Sessions

__all__ = ["RANKS_BYTES", "OtherRanks"]

RANKS_BYTES = 64 << 20
"""Columns of all other ranks together that stay in memory. Of those beyond, the files are read again when asked for."""


class OtherRanks:
    """The files of all ranks but the lowest, by rank. Opened when first asked for."""

    def __init__(self, folder: Place, own: Sessions, *, combine: bool) -> None:
        """`own`: the lowest rank's sessions. With `combine` False the run's columns are the lowest rank's alone."""
        self.names: dict[int, list[str]] = {}
        self.files: dict[int, list[SessionFile]] = {}  # of each, oldest first
        self._folder = folder
        self._own = own
        self._combine = combine
        self._kept: frozenset[str] | None = None  # the columns of theirs that are in memory
        self._metas: dict[str, dict[str, Any]] = {}  # by file, as its head has it
        self._is_spread: bool | None = None

    def found(self, names: dict[int, list[str]]) -> bool:
        """Takes what the folder holds now. True where that is news."""
        news = names != self.names
        self.names = names
        return news

    def forget(self) -> None:
        """The run has changed."""
        self._is_spread = None

    @property
    def nbytes(self) -> int:
        return sum(file.steps.nbytes for files in self.files.values() for file in files)

    @property
    def are_there(self) -> bool:
        """Whether there is one, or was to be."""
        return bool(self.names) or self._own.world_size > 1

    @property
    def is_spread(self) -> bool:
        """Whether they have a part of what the run's columns hold. From the heads of their files, once each."""
        if self._is_spread is None:
            self._is_spread = self._find_spread()
        return self._is_spread

    def _find_spread(self) -> bool:
        own = self._own.chosen
        if not self._combine or not own or not self.are_there:
            return False
        if any(file.meta.get("layouts") for file in own):
            return True
        for name in (name for names in self.names.values() for name in names):
            if name not in self._metas:
                meta = first_meta(self._folder / name)
                if meta is None:
                    continue
                self._metas[name] = meta
            if not any(same_tensors(file.meta, self._metas[name]) for file in own):
                return True
        return False

    def read(self) -> bool:
        """Reads what they appended, and keeps at most `RANKS_BYTES` of columns, and one rank's. True at any change."""
        changed = False
        budget = RANKS_BYTES
        kept = COMBINED if self.is_spread else WATCHED
        if kept is not self._kept:
            self.files, self._kept = {}, kept
        for rank, names in self.names.items():
            known = {file.path.name: file for file in self.files.get(rank, ())}
            changed = changed or known.keys() != set(names)
            files = [known.get(name) or SessionFile(self._folder / name, kept) for name in names]
            for file in files:
                if budget <= 0:
                    file.release()
                changed = file.refresh() or changed
                budget -= file.steps.nbytes
                if budget <= 0:
                    file.release()
            self.files[rank] = sorted(files, key=lambda file: order(file.path, file.start))
        return changed

    def sessions(self) -> list[tuple[SessionFile, dict[int, SessionFile]]]:
        """Each chosen session of the lowest rank, and every rank's file of it. Reads the files where nobody did."""
        matches = self._matches()
        return [(file, matches[file.path]) for file in self._own.chosen]

    def _matches(self) -> dict[Place, dict[int, SessionFile]]:
        if self.files.keys() != self.names.keys():
            self.read()
        own = self._own.files
        starts = [file.start_time for file in own]
        found: dict[Place, dict[int, SessionFile]] = {
            file.path: {parse_name(file.path.name).rank: file} for file in own
        }
        for rank, files in sorted(self.files.items()):
            for mine, at in zip(own, match_sessions(starts, [file.start_time for file in files]), strict=True):
                if at is not None:
                    found[mine.path][rank] = files[at]
        return found

    def beside(self, steps: Mapping[str, np.ndarray]) -> Ranks:
        """The run as all ranks have it; `steps` are its columns."""
        matches = self._matches()
        read_again = _ReadAgain()
        sessions = []
        first_row = 0
        for taken in self._own.taken:
            by_rank = {rank: _record_of(file, read_again) for rank, file in matches[taken.file.path].items()}
            sessions.append(RanksSession(first_row, first_row + taken.rows, by_rank))
            first_row += taken.rows
        return Ranks(steps, sessions, self._own.world_size)


def _record_of(file: SessionFile, read_again: _ReadAgain) -> RankRecord:
    ended, (step, wall_time) = file.meta.get("ended"), file.clock()
    return RankRecord(
        file.meta,
        _ColumnsAgain(lambda: read_again.columns(file)) if file.is_released else file.steps.views(),
        file.events,
        ended if isinstance(ended, str) else None,
        int(step[-1]) if len(step) else -1,
        float(wall_time[-1]) if len(step) else -math.inf,
    )


class _ReadAgain:
    """Reads columns of files that were released; those of the last file stay, as who asks goes file by file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: Place | None = None
        self._columns: dict[str, np.ndarray] = {}

    def columns(self, released: SessionFile) -> dict[str, np.ndarray]:
        with self._lock:
            if released.path != self._path:
                self._columns = {}  # before the next ones take their place
                file = SessionFile(released.path, released.kept)
                file.refresh()
                self._path, self._columns = released.path, file.steps.views()
            return self._columns


class _ColumnsAgain(Mapping[str, np.ndarray]):
    """A file's columns, read when asked for."""

    def __init__(self, columns: Callable[[], Mapping[str, np.ndarray]]) -> None:
        self._columns = columns

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns())

    def __len__(self) -> int:
        return len(self._columns())
