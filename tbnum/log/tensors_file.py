"""A session's second file, `*.tensors.tbnum`: which tables it has, where they lie, and which of them count.

Opening a file notes where each table lies, and of what step and columns it is; values are read from the file again
for each question, table after table. So memory holds what is asked for, not what is there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tbnum.log.files import Place, open_raw, size_of
from tbnum.log.followed import FollowedFile
from tbnum.log.record_file import FRAME_HEAD_BYTES, Record, data_at
from tbnum.log.schema import TAG_HISTOGRAMS, TAG_NAMES, TAG_SESSION, TAG_TABLE_COLUMNS, TAG_TENSORS
from tbnum.log.tensors import Head, head_of, parse_columns, parse_names, text_id

__all__ = ["SameBytes", "Session", "TablePlace", "TensorsFile", "kept"]


class TablePlace(NamedTuple):
    """Where a table lies."""

    offset: int  # of its frame
    bytes: int  # of the frame's data
    payload: int  # where in that data the payload begins
    payload_bytes: int
    head: Head


def _place(offset: int, data: bytes, payload: bytes) -> TablePlace:
    """ValueError where the payload has no head."""
    head = head_of(payload)
    at = data.index(payload[:32])  # looking for all of it takes longer than decoding it
    if not data.startswith(payload, at):
        at = data.index(payload)
    return TablePlace(offset, len(data), at, len(payload), head)


class TensorsFile(FollowedFile):
    """One session's second file: what tables it has, and where. There need not be one. Noting one takes some 8 us."""

    def __init__(self, path: Place) -> None:
        # By checksums of what they say, so they stay true whatever becomes of the file; older snapshots refer to them.
        self.names: dict[int, tuple[str, ...]] = {}
        self.columns: dict[int, tuple[str, ...]] = {}
        self.optimizers: dict[int, str | None] = {}  # by the same ids as `columns`
        super().__init__(path)

    def _clear(self) -> None:
        super()._clear()
        self.tables: list[TablePlace] = []  # in the order they were written
        self.histograms: list[TablePlace] = []
        self._unreadable: set[int] = set()

    def _opening_failed(self, error: OSError) -> str | None:
        # The file is made with the first table, so it may well not be there.
        return None if isinstance(error, FileNotFoundError) else super()._opening_failed(error)

    def problems(self) -> list[str]:
        name = self.path.name
        problems = super().problems()
        lost = [place for place in self.tables + self.histograms if not self.is_known(place)]
        if lost:
            problems.append(
                f"{len(lost)} tables from {lost[0].offset} on in {name} have lost the names of their tensors or columns"
            )
        return problems + [f"the record at {offset} in {name} is not understood" for offset in sorted(self._unreadable)]

    def is_known(self, place: TablePlace) -> bool:
        """Whether the names that a table refers to are there, and as many as it has rows."""
        names = self.names.get(place.head.names)
        return names is not None and len(names) == place.head.rows and place.head.columns in self.columns

    def payloads(self, places: Iterable[TablePlace]) -> Iterator[tuple[TablePlace, bytes]]:
        """The tables' bytes, read from the file. One that cannot be read any more is left out. Some 5 us each."""
        places = list(places)
        try:
            with open_raw(self.path) as file:
                frames = [(place.offset, place.bytes) for place in places]
                for place, data in zip(places, data_at(file, frames), strict=True):
                    if data is None:
                        self._unreadable.add(place.offset)
                    else:
                        yield place, data[place.payload : place.payload + place.payload_bytes]
        except OSError as error:
            self._error = super()._opening_failed(error)

    def not_understood(self, place: TablePlace) -> None:
        self._unreadable.add(place.offset)

    def _understand(self, offset: int, data: bytes, record: Record) -> None:
        if record.tag == TAG_TENSORS:
            self.tables.append(_place(offset, data, record.payload))
        elif record.tag == TAG_HISTOGRAMS:
            self.histograms.append(_place(offset, data, record.payload))
        elif record.tag == TAG_NAMES:
            text = record.payload.decode()
            self.names.setdefault(text_id(text), parse_names(text))
        elif record.tag == TAG_TABLE_COLUMNS:
            text = record.payload.decode()
            columns, optimizer = parse_columns(text)
            self.columns.setdefault(text_id(text), columns)
            self.optimizers.setdefault(text_id(text), optimizer)
        elif record.tag == TAG_SESSION:
            self._is_newer(json.loads(record.payload))


class SameBytes:
    """Whether other files have, byte by byte, the tables of one, as those of replicas do. 0.1 ms a file.

    A table's bytes hold its step, the checksums of its names and columns, and its values, so equal bytes are equal
    tables. Where bytes differ the tables may still be the same.
    """

    def __init__(self, reference: TensorsFile) -> None:
        tables = reference.tables
        begins = [place.offset + FRAME_HEAD_BYTES + place.payload for place in tables]
        data = _bytes_of(reference.path)
        self._size = None if data is None else len(data)
        self._spans = [
            (begin, (data or b"")[begin : begin + place.payload_bytes])
            for begin, place in zip(begins, tables, strict=True)
        ]

    def are_in(self, path: Place) -> bool:
        if self._size is None or not self._spans:
            return False
        data = _bytes_of(path)
        return (
            data is not None and len(data) == self._size and all(data.startswith(part, at) for at, part in self._spans)
        )


def _bytes_of(path: Place) -> bytes | None:
    """None where it cannot be read."""
    try:
        with open_raw(path) as file:
            return file.read(size_of(file))
    except OSError:
        return None


class Session(NamedTuple):
    """A session's tables, and what of them is superseded."""

    file: TensorsFile
    cut: int | None  # the step from which a later session supersedes them
    part_cuts: Mapping[int, int]  # of format 1: the step from which a part of the session is superseded by later ones


def kept(session: Session, places: Sequence[TablePlace]) -> list[TablePlace]:
    """Those of `places` that nothing supersedes, and whose names are known."""
    end = math.inf if session.cut is None else session.cut
    known = session.file.is_known
    return [
        place
        for place in places
        if place.head.step < min(end, session.part_cuts.get(place.head.part, math.inf)) and known(place)
    ]
