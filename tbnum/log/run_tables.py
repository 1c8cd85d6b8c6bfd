"""The second files of a run's sessions, `*.tensors.tbnum`, opened when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tbnum.formats import CHECKSUM
from tbnum.log.files import Place
from tbnum.log.schema import RECORD_SUFFIX, TENSORS_SUFFIX
from tbnum.log.session_file import SessionFile
from tbnum.log.superseded import cuts
from tbnum.log.tensors_file import SameBytes, Session, TensorsFile
from tbnum.log.tensors_reader import Tensors, TensorSeries

__all__ = ["RunTables", "parameters_of_ranks"]


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

    def of_ranks(
        self, sessions: Sequence[tuple[SessionFile, Mapping[int, SessionFile]]]
    ) -> Iterator[tuple[int, list[Session] | None]]:
        """As `sessions_of_ranks`, rank after rank: its sessions, oldest first.

        None where the tables are, byte by byte, those of the first rank. No file but the first rank's stays open here.
        """
        starts = cuts([file.start for file, _ in sessions])
        first: list[SameBytes] = []
        for rank in sorted({rank for _, by_rank in sessions for rank in by_rank}):
            files = [(by_rank.get(rank), cut) for (_, by_rank), cut in zip(sessions, starts, strict=True)]
            if first and all(
                file is not None and same.are_in(_tables_of(file)) for same, (file, _) in zip(first, files, strict=True)
            ):
                yield rank, None
                continue
            known = [(file, self._opened(file, keep=not first), cut) for file, cut in files if file is not None]
            if not first and len(known) == len(sessions):
                first = [SameBytes(opened) for _, opened, _ in known]
            yield rank, [Session(opened, cut, file.part_cuts()) for file, opened, cut in known]

    def _opened(self, session: SessionFile, *, keep: bool) -> TensorsFile:
        if keep or session.path in self._files:
            return self._file_of(session)
        file = TensorsFile(_tables_of(session))
        file.refresh()
        return file

    def _file_of(self, session: SessionFile) -> TensorsFile:
        if session.path not in self._files:
            self._files[session.path] = TensorsFile(_tables_of(session))
            self._files[session.path].refresh()
        return self._files[session.path]


def _tables_of(session: SessionFile) -> Place:
    return session.path.with_name(session.path.name.removesuffix(RECORD_SUFFIX) + TENSORS_SUFFIX)


def parameters_of_ranks(
    tables: RunTables, sessions: Sequence[tuple[SessionFile, Mapping[int, SessionFile]]]
) -> Iterator[tuple[int, TensorSeries]]:
    """Of each rank that has some, the checksums of its parameters; the same object where they are the first rank's."""
    of_first: list[TensorSeries | None] = []
    for rank, of_rank in tables.of_ranks(sessions):
        series = of_first[0] if of_rank is None else _parameters_in(Tensors(of_rank, {}))
        of_first = of_first or [series]
        if series is not None:
            yield rank, series


def _parameters_in(tables: Tensors) -> TensorSeries | None:
    return tables.read(CHECKSUM + "parameter") if "parameter" in tables.checksums else None
