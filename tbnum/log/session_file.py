"""One session's record file, `*.tbnum`: what it says about itself, its steps and its events."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tbnum.log.batches import decode_batches, steps_of_batches
from tbnum.log.concurrent import Trajectory
from tbnum.log.event_rows import as_rows, rows_of
from tbnum.log.files import Place, open_raw, size_of
from tbnum.log.folder import last_trailer
from tbnum.log.followed import FollowedFile
from tbnum.log.growing import GrowingColumns
from tbnum.log.names import parse_name
from tbnum.log.record_file import Record, data_at, decode
from tbnum.log.schema import (
    TAG_BATCHES,
    TAG_DROPPED,
    TAG_EVENT,
    TAG_SCHEMA,
    TAG_SESSION,
    TAG_STEPS,
    UNBOUND_KINDS,
    Event,
    RowLayout,
    Trailer,
    check_session,
    trailer_schema_id,
)
from tbnum.log.superseded import cuts

__all__ = ["ExactTotals", "SessionFile", "batch_of", "dropped_of", "events_of"]

_ROWS_AT_ONCE_BYTES = 1 << 18


class _Batches(NamedTuple):
    """Where the sample ids of some steps lie in the file."""

    first_step: int
    last_step: int
    offset: int
    length: int


class _Part:
    """Steps and events that only go on. A session is one; in format 1, one that went back began another in its file."""

    def __init__(self, number: int, first_step: int | None) -> None:
        self.number = number
        self.first_step = first_step  # as the session record says it
        self.start: int | None = None  # from where it supersedes what was before it; None: it took no step so far
        self.steps = GrowingColumns()
        self.events: list[Event] = []
        self.batches: list[_Batches] = []

    def begins(self, step: int) -> None:
        """It took `step`: from now on it supersedes."""
        if self.start is None:
            self.start = step if self.first_step is None else min(step, self.first_step)

    def append(self, rows: np.ndarray) -> None:
        """Rows of rising steps. Where they go back, and no record said so, what is not before them is superseded."""
        first, last = int(rows["step"][0]), self.steps.last_step()
        self.begins(first)
        assert self.start is not None
        self.start = min(first, self.start)
        if last is not None and first <= last:
            kept = GrowingColumns()
            kept.extend(self.steps, 0, self.steps.before(first))
            self.steps = kept
            self.events = [event for event in self.events if event.step < first]
        self.steps.append(rows)


class SessionFile(FollowedFile):
    """One session as its file says it. `kept`: the columns that are kept, without an optimizer's name; None: all."""

    def __init__(self, path: Place, kept: frozenset[str] | None = None) -> None:
        self.kept = kept
        self._released = False
        super().__init__(path)

    def _clear(self) -> None:
        super()._clear()
        self.meta: dict[str, Any] = {}
        self.dropped: dict[str, int] = {}
        self._parts = [_Part(0, None)]
        self._joined: GrowingColumns | None = None
        self._dtypes: dict[int, np.dtype[Any]] = {}
        self._without_layout: dict[int, list[tuple[int, bytes]]] = {}
        self._pending: list[bytes] = []  # chunks of one layout that follow each other
        self._pending_bytes = 0
        self._pending_layout = 0

    @property
    def steps(self) -> GrowingColumns:
        """The steps that nothing in this file supersedes, those that an event alone reports among them."""
        return self._parts[-1].steps if self._joined is None else self._joined

    def _join(self) -> GrowingColumns:
        last = self._parts[-1]
        known = rows_of(last.events, -1 if (step := last.steps.last_step()) is None else step, last.steps.views())
        if len(self._parts) == 1 and not known:
            return last.steps
        joined = GrowingColumns()
        for part, cut in zip(self._parts, self._cuts(), strict=True):
            joined.extend(part.steps, 0, part.steps.before(cut))
        if known:
            joined.append(as_rows(known.values(), last.steps.views()))
        return joined

    @property
    def events(self) -> list[Event]:
        """The events that nothing in this file supersedes, in the order they were written."""
        return [
            event
            for part, cut in zip(self._parts, self._cuts(), strict=True)
            for event in part.events
            if cut is None or event.step < cut
        ]

    def batch(self, step: int) -> np.ndarray | None:
        """The ids (N,) of the samples of a step, read again from the file; None where it does not have them."""
        for part, cut in zip(reversed(self._parts), reversed(self._cuts()), strict=True):
            if cut is not None and step >= cut:
                continue
            places = [place for place in reversed(part.batches) if place.first_step <= step <= place.last_step]
            for place in places:
                ids = self._batch_at(place, step)
                if ids is not None:
                    return ids
        return None

    def _batch_at(self, place: _Batches, step: int) -> np.ndarray | None:
        try:
            with open_raw(self.path) as opened:
                (data,) = data_at(opened, [(place.offset, place.length)])
            record = None if data is None else decode(data)
            return None if record is None else dict(decode_batches(record.payload)).get(step)
        except (OSError, ValueError):  # deleted or damaged since
            return None

    @property
    def start(self) -> int | None:
        """The step from which it supersedes earlier sessions; None: it took no step so far."""
        return min((part.start for part in self._parts if part.start is not None), default=None)

    def part_cuts(self) -> dict[int, int]:
        """By number, the step from which a part of the file is superseded by later ones of it. Of format 1 alone."""
        return {part.number: cut for part, cut in zip(self._parts, self._cuts(), strict=True) if cut is not None}

    def _cuts(self) -> list[int | None]:
        return cuts([part.start for part in self._parts])

    def described(self) -> dict[str, Any]:
        """`meta`, and where it stands; what is known from the file's name where it was lost."""
        named = parse_name(self.path.name)
        return {"start_time": named.unix_ms / 1000, **self.meta, "file": self.path.name}

    @property
    def start_time(self) -> float:
        return float(self.described()["start_time"])

    def trajectory(self) -> Trajectory:
        named, (step, wall_time) = parse_name(self.path.name), self.clock()
        first_step = 0 if self.start is None else self.start
        return Trajectory(self.path.name, named.host, named.process, self.start_time, first_step, step, wall_time)

    def clock(self) -> tuple[np.ndarray, np.ndarray]:
        """The steps (S,), and when each closed; NaN where the log does not say."""
        steps = self.steps.views()
        return steps["step"], steps.get("wall_time", np.full(len(steps["step"]), math.nan))

    @property
    def is_released(self) -> bool:
        return self._released

    def release(self) -> None:
        """From now on keeps of the steps no more than the last one, by which the next ones are understood."""
        self._released = True
        for part in self._parts:
            part.steps = part.steps.last_alone()
        self._joined = self._join()

    def problems(self) -> list[str]:
        lost = [self._lost(chunks) for chunks in self._without_layout.values()]
        return [*super().problems(), *lost]

    def _lost(self, chunks: list[tuple[int, bytes]]) -> str:
        return f"{len(chunks)} chunks from {chunks[0][0]} on in {self.path.name} have lost what their columns are"

    def refresh(self) -> bool:
        if not self._tail.offset and not self._released:  # room for all at once
            self._parts[-1].steps.reserve(last_trailer(self.path).steps)
        changed = super().refresh()
        self._settle()
        if changed or self._joined is None:
            self._joined = self._join()
        return changed

    # -- records

    def _understand(self, offset: int, data: bytes, record: Record) -> None:
        if record.tag == TAG_STEPS:
            self._take_chunk(offset, record.payload, record.trailer)
        elif record.tag == TAG_EVENT:
            self._take_event(Event.from_facts(json.loads(record.payload)))
        elif record.tag == TAG_BATCHES:
            steps = steps_of_batches(record.payload)
            if len(steps):
                place = _Batches(int(steps[0]), int(steps[-1]), offset, len(data))
                self._parts[-1].batches.append(place)
        elif record.tag == TAG_SESSION:
            self._take_session(json.loads(record.payload))
        elif record.tag == TAG_SCHEMA:
            self._take_layout(json.loads(record.payload))
        elif record.tag == TAG_DROPPED:
            self.dropped = {str(reason): int(count) for reason, count in json.loads(record.payload).items()}

    def _take_session(self, meta: dict[str, Any]) -> None:
        if self._is_newer(meta):
            return
        check_session(meta)
        number, first_step = int(meta.pop("part", 0)), meta.get("first_step")
        if number != self._parts[-1].number:
            self._settle()
            self._parts.append(_Part(number, None))
        self._parts[-1].first_step = first_step if isinstance(first_step, int) else None
        self._take_layout(meta)
        self.meta = {key: value for key, value in meta.items() if key not in ("columns", "stored")}

    def _take_layout(self, schema: Mapping[str, Any]) -> None:
        if "columns" not in schema:
            return
        layout = RowLayout(tuple(map(str, schema["columns"])), tuple(map(str, schema["stored"])))
        schema_id = layout.schema_id()
        if schema_id in self._dtypes:
            return
        dtype = layout.dtype()
        if "step" not in layout.names:
            raise ValueError("its columns lack `step`")
        self._dtypes[schema_id] = dtype
        self._parts[-1].steps.provide(self._wanted(layout.names))
        for offset, payload in self._without_layout.pop(schema_id, ()):
            self._queue(offset, payload, schema_id)

    def _take_event(self, event: Event) -> None:
        if event.kind not in UNBOUND_KINDS:
            if self._parts[-1].start is None:
                self._settle()
            self._parts[-1].begins(event.step)
        self._parts[-1].events.append(event)

    def _take_chunk(self, offset: int, payload: bytes, trailer: bytes) -> None:
        try:
            schema_id = trailer_schema_id(trailer)
        except struct.error:
            raise ValueError("it has no trailer") from None
        if schema_id not in self._dtypes:
            self._without_layout.setdefault(schema_id, []).append((offset, payload))
            return
        for chunks in self._without_layout.values():  # too late for those: rows stand in order
            self._garbled.append(self._lost(chunks))
        self._without_layout.clear()
        self._queue(offset, payload, schema_id)

    # -- rows

    def _queue(self, offset: int, payload: bytes, schema_id: int) -> None:
        if not payload or len(payload) % self._dtypes[schema_id].itemsize:
            raise ValueError(f"{len(payload)} bytes are no whole rows")
        if schema_id != self._pending_layout or self._pending_bytes > _ROWS_AT_ONCE_BYTES:
            self._settle()
            self._pending_layout = schema_id
        if self._released:  # the last row alone is kept
            payload = payload[-self._dtypes[schema_id].itemsize :]
        self._pending.append(payload)
        self._pending_bytes += len(payload)

    def _settle(self) -> None:
        """Turns the pending chunks into rows."""
        if not self._pending:
            return
        rows = np.frombuffer(b"".join(self._pending), self._dtypes[self._pending_layout])
        self._pending.clear()
        self._pending_bytes = 0
        if (rows["step"] < 0).any():  # a flipped bit that went unseen, where data is not checked
            rows = rows[rows["step"] >= 0]
        steps = rows["step"]
        breaks = np.flatnonzero(steps[1:] <= steps[:-1]) + 1
        for begin, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
            if end > begin:
                self._append(rows[begin:end])

    def _append(self, rows: np.ndarray) -> None:
        """Appends rows of increasing steps."""
        part = self._parts[-1]
        part.append(rows if self.kept is None else rows[self._wanted(rows.dtype.names or ())])
        if self._released:
            part.steps = part.steps.last_alone()

    def _wanted(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self.kept is None or name.rpartition("/")[2] in self.kept]


def batch_of(files: Sequence[SessionFile], step: int) -> np.ndarray | None:
    """The ids (N,) of the samples of a step, of the session whose step it is; None where it does not have them."""
    for file, cut in zip(reversed(files), reversed(cuts([file.start for file in files])), strict=True):
        if (cut is None or step < cut) and (ids := file.batch(step)) is not None:
            return ids
    return None


def events_of(files: Sequence[SessionFile], starts: Sequence[int | None]) -> list[Event]:
    """Those that no later session supersedes, in order of step. `starts`: from where each is superseded."""
    events = [
        event
        for file, cut in zip(files, starts, strict=True)
        for event in file.events
        if cut is None or event.step < cut
    ]
    return sorted(events, key=lambda event: event.step)  # stable: within a step as they were written


def dropped_of(files: Sequence[SessionFile]) -> dict[str, int]:
    """How many records could not be written, by reason, all sessions together."""
    dropped: dict[str, int] = {}
    for file in files:
        for reason, count in file.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    return dropped


class ExactTotals:
    """Totals of a file's steps before a cut, of which its end counts more. Read once, until the file grows."""

    def __init__(self) -> None:
        self._known: dict[tuple[Place, int, int | None], Trailer] = {}

    def of(self, path: Place, cut: int | None) -> Trailer:
        try:
            with open_raw(path) as opened:
                key = (path, size_of(opened), cut)
        except OSError:
            return Trailer()
        if key not in self._known:
            file = SessionFile(path)
            file.refresh()
            self._known[key] = file.steps.totals(file.steps.before(cut))
        return self._known[key]
