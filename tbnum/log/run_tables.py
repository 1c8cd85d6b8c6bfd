"""The second files of a run's sessions, `*.tensors.tbnum`, opened when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tbnum.log.files import Place
from tbnum.log.schema import RECORD_SUFFIX, TENSORS_SUFFIX
from tbnum.log.session_file import SessionFile
from tbnum.log.superseded import cuts
from tbnum.log.tensors_file import Session, TensorsFile

__all__ = ["RunTables"]


class RunTables:
    """Those that were asked for, by the record file of their session."""

    def __init__(self) -> None:
        self._files: dict[Place, TensorsFile] = {}

    def refresh(self) -> bool:
        """Notes what was appended to them. True where anything was."""
        return any([file.refresh() for file in self._files.values()])

    def problems(self, sessions: Iterable[SessionFile]) -> list[str]:
        files = [self._files[session.path] for session in sessions if session.path in self._files]
        return [problem for file in files for problem in file.problems()]

    def sessions(self, sessions: Sequence[SessionFile]) -> list[Session]:
        """The tables of a run's sessions, oldest first, and what of them is superseded."""
        return [of_ranks[0] for of_ranks in self.sessions_of_ranks([(file, {0: file}) for file in sessions])]

    def sessions_of_ranks(
        self, sessions: Sequence[tuple[SessionFile, Mapping[int, SessionFile]]]
    ) -> list[dict[int, Session]]:
        """Likewise of every rank; of a session the lowest rank's file, which sets the cut, and all ranks' files."""
        found = []
        for (_, by_rank), cut in zip(sessions, cuts([file.start for file, _ in sessions]), strict=True):
            found.append({rank: Session(self._file_of(file), cut, file.part_cuts()) for rank, file in by_rank.items()})
        return found

    def by_rank(self, sessions: Sequence[tuple[SessionFile, Mapping[int, SessionFile]]]) -> dict[int, list[Session]]:
        """As `sessions_of_ranks`, by rank: its sessions, oldest first."""
        found: dict[int, list[Session]] = {}
        for of_ranks in self.sessions_of_ranks(sessions):
            for rank, session in of_ranks.items():
                found.setdefault(rank, []).append(session)
        return found

    def _file_of(self, session: SessionFile) -> TensorsFile:
        if session.path not in self._files:
            name = session.path.name.removesuffix(RECORD_SUFFIX) + TENSORS_SUFFIX
            self._files[session.path] = TensorsFile(session.path.with_name(name))
            self._files[session.path].refresh()
        return self._files[session.path]
