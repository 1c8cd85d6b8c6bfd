"""Reads what the writer wrote: a `Run` gives the steps and events of a folder.

A run is a folder. Each process that wrote into it left one record file, its session. A session that starts at step s
supersedes the steps and events from s on of the sessions before it, as a run that is continued from a checkpoint
takes those steps again. The same holds within a session that goes back to a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tbnum.log.files import Place, RemotePath, list_names, open_raw, place, size_of
from tbnum.log.named import Columns
from tbnum.log.names import host_name, is_record_file, parse_name
from tbnum.log.ranks import COMBINED, SHARD, WATCHED, RankRecord, Ranks, RanksSession, match_sessions, same_tensors
from tbnum.log.record_file import RecordTail, decode, first_record
from tbnum.log.rivals import Course, rivals
from tbnum.log.schema import (
    ENDED_CLOSED,
    ENDED_CRASH,
    FORMAT_VERSION,
    MAX_RECORD_BYTES,
    RECORD_SUFFIX,
    REWOUND,
    TAG_DROPPED,
    TAG_EVENT,
    TAG_SCHEMA,
    TAG_SESSION,
    TAG_STEPS,
    TENSORS_SUFFIX,
    TRAILER_BYTES,
    TRAILER_MAGIC,
    UNBOUND_KINDS,
    Event,
    RowLayout,
    Trailer,
    check_session,
    column,
    trailer_schema_id,
)
from tbnum.log.tensors_ranks import RankHistograms, RankTensors
from tbnum.log.tensors_reader import Histograms, Session, Tensors, TensorsFile

__all__ = ["Explain", "Run", "Totals", "session_metas", "writing_now"]


_HEAD_BYTES = 1 << 18  # in which a file's first session record lies

RANKS_BYTES = 64 << 20
"""Columns of all other ranks together that stay in memory. Of those beyond, the files are read anew when asked for."""


@dataclass(frozen=True)
class Totals:
    """A run in a line, as its writers counted. Unknown is NaN, or None where it is a whole number."""

    steps: int | None = 0
    skipped_steps: int | None = 0
    first_step: int | None = None
    last_step: int | None = None
    last_loss_scale: float = math.nan
    best_loss: float = math.nan  # the lowest finite one
    first_wall_time: float = math.nan
    last_wall_time: float = math.nan
    sessions: int = 0
    ended: str | None = None  # of the newest session: None while it runs (or when it was killed), "closed", "crash"


def session_metas(folder: str | os.PathLike[str] | RemotePath) -> list[dict[str, Any]]:
    """How each session of a run's lowest rank began, oldest first. From the head of each file: about 0.1 ms a file."""
    metas = map(_first_meta, _list_files(place(folder))[0])
    return [meta for meta in metas if meta is not None]


def _first_meta(path: Place) -> dict[str, Any] | None:
    """What a session told of itself when it began; None where it has not yet, or lost it."""
    record = first_record(path, TAG_SESSION, within=_HEAD_BYTES)
    if record is None:
        return None
    try:
        meta: dict[str, Any] = json.loads(record.payload)
        check_session(meta)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    return meta


class Run:
    """One folder's record files, read when first used.

    Methods and properties may be used by several threads. Arrays that were given out stay as they are when the run
    grows: `refresh` makes new ones (mostly longer views of the same memory). A million steps take about 0.2 s and
    130 MB at 15 columns.

    Of several processes, `steps` and `events` are the lowest rank's. Norms of tensors that are spread over ranks are
    put together from the records of all, which takes as long again for each, and memory for `RANKS_BYTES` of them at a
    time; `combine_ranks=False` leaves them unknown.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | RemotePath,
        *,
        name: str = ".",
        session: int | None = None,
        explain: Explain | None = None,
        combine_ranks: bool = True,
    ) -> None:
        self.name = name
        self._combine_ranks = combine_ranks
        self.folder = place(folder)
        self._session = session
        self._explain = explain
        self._lock = threading.RLock()
        self._loaded = False
        self._version = 0
        self._files: list[_SessionFile] = []  # of the lowest rank, oldest first
        self._other_ranks: dict[int, list[str]] = {}
        self._ranks_files: dict[int, list[_SessionFile]] = {}  # of the others, once they were asked for
        self._kept_of_ranks: frozenset[str] | None = None  # the columns of theirs that are in memory
        self._ranks: Ranks | None = None
        self._spread: bool | None = None
        self._views: dict[str, np.ndarray] | None = None
        self._rivals: list[Mapping[str, Any]] | None = None
        self._told: dict[str, dict[str, Any]] = {}  # by file of another rank: what its head says
        self._trouble: list[str] = []  # with the folder as a whole
        self._steps = _Steps()
        self._taken: list[_Taken] = []  # what of each file is in `_steps`
        self._takes: list[_Taken] = []  # likewise, of every chosen file
        self._events: list[Event] = []
        self._explained: list[Event] | None = None
        self._tensors_files: dict[Place, TensorsFile] = {}  # those that were asked for
        self._tensors: Tensors | None = None
        self._histograms: Histograms | None = None
        self._exact: dict[tuple[Place, int, int | None], Trailer] = {}

    def __repr__(self) -> str:
        return f"Run({self.name!r}, folder={str(self.folder)!r})"

    @property
    def steps(self) -> dict[str, np.ndarray]:
        """Columns by name, one entry a step, equal lengths, `step` strictly increasing, read-only. Unknown is NaN.

        The KeyError of a column that there is not lists those that there are.
        """
        with self._loading():
            if self._views is None:
                self._views = {name: values for name, values in self._steps.views().items() if not is_share(name)}
                if self._is_spread():
                    self._views.update(self._all_ranks().combined())
            return Columns(self._views)

    @property
    def ranks(self) -> Ranks | None:
        """What each of several processes recorded; None where there is one. The first use reads all of their files."""
        with self._loading():
            return self._all_ranks() if self._other_ranks or self._world_size() > 1 else None

    @property
    def raw_events(self) -> list[Event]:
        """The facts of every event, in order of step; none are sampled out."""
        with self._loading():
            return list(self._events)

    @property
    def events(self) -> list[Event]:
        """The events, explained where the run was read with an explainer. Explained once for each change of the run."""
        with self._loading():
            if self._explained is None:
                self._explained = list(self._explain(self)) if self._explain is not None else list(self._events)
            return list(self._explained)

    @property
    def tensors(self) -> Tensors:
        """Statistics of tensors by column, superseded steps left out: `steps, names, values = tensors["grad_norm"]`.

        The first use looks through the sessions' `*.tensors.tbnum` (some 8 us a table), which nothing else opens;
        values are read when a column is asked for.
        """
        with self._loading():
            if self._tensors is None:
                shapes = self.meta.get("parameters") or {}
                elements = (
                    {name: math.prod(shape) for name, shape in shapes.items()} if isinstance(shapes, dict) else {}
                )
                if self._is_spread():
                    self._tensors = RankTensors(self._all_ranks(), self._tables_of_ranks(), elements)
                else:
                    self._tensors = Tensors(self._tables(), elements)
            return self._tensors

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors that have statistics, in order of first appearance."""
        return self.tensors.names

    @property
    def histograms(self) -> Histograms:
        """Exponent histograms by their source: `histograms["gradient"].at(step)`. As `tensors`, read when asked for."""
        with self._loading():
            if self._histograms is None:
                if self._is_spread():
                    self._histograms = RankHistograms(self._all_ranks(), self._tables_of_ranks())
                else:
                    self._histograms = Histograms(self._tables())
            return self._histograms

    @property
    def meta(self) -> dict[str, Any]:
        """What the newest session (or the chosen one) told of itself, and besides

        - "sessions": what each session told, oldest first, with its "file";
        - "dropped": how many records could not be written, by reason, all sessions together;
        - "rivals": sessions that recorded at the same time, as `tbnum.log.rivals` tells them;
        - "ranks": file names of the other ranks, by rank; `steps` are the lowest rank's, with what `ranks` combined.
        """
        with self._loading():
            sessions = [file.described() for file in self._files]
            chosen = self._chosen()
            dropped: dict[str, int] = {}
            for file in chosen:
                for reason, count in file.dropped.items():
                    dropped[reason] = dropped.get(reason, 0) + count
            newest = chosen[-1].described() if chosen else {}
            if self._rivals is None:
                self._rivals = rivals([file.course() for file in chosen])
            return {
                **newest,
                "sessions": sessions,
                "dropped": dropped,
                "rivals": self._rivals,
                "ranks": dict(self._other_ranks),
            }

    @property
    def problems(self) -> list[str]:
        """What could not be read, in words; of tables of tensors, once they were asked for."""
        with self._loading():
            files = self._chosen()
            if self._is_spread():
                files = [*files, *(file for files in self._ranks_files.values() for file in files)]
            problems = self._trouble + [problem for file in files for problem in file.problems()]
            if self._is_spread():
                problems += self._all_ranks().problems()
            tables = [self._tensors_files[file.path] for file in files if file.path in self._tensors_files]
            return problems + [problem for file in tables for problem in file.problems()]

    @property
    def version(self) -> int:
        """Grows with each change that `refresh` saw."""
        return self._version

    @property
    def totals(self) -> Totals:
        """What a table of runs shows. From the last bytes of each file: about 60 us a file, and nothing is loaded.

        Only a session that is partly superseded has to be read for it, once.
        """
        with self._lock:
            files, _, _ = _list_files(self.folder)
            if self._session is not None:
                files = _pick(files, self._session)
            trailers = {path: _last_trailer(path) for path in files}
            files.sort(key=lambda path: _order(path, trailers[path].start))
            return self._sum(files, [trailers[path] for path in files])

    def refresh(self) -> bool:
        """Reads what was appended since the last time, and new files. True where anything changed.

        Costs a listing of the folder and a look at each file where nothing did. Else it takes time for what is new,
        not for what was there, unless steps got superseded.
        """
        with self._lock:
            first_time = not self._loaded
            self._loaded = True
            changed = self._find_files()
            for file in self._files:
                changed = file.refresh() or changed
            if self._ranks_files:
                changed = self._read_ranks() or changed
            for table in self._tensors_files.values():
                changed = table.refresh() or changed
            self._files.sort(key=lambda file: _order(file.path, file.start))
            if changed:
                self._combine()
                self._version += 1
                self._explained = None
                self._tensors = self._histograms = None
                self._ranks = self._views = self._spread = self._rivals = None
            return bool(self._files) if first_time else changed

    @property
    def steps_read(self) -> int:
        """How many steps were read so far. Waits for nobody, so it tells how far a `refresh` in another thread is."""
        return sum(file.steps.count for file in self._files)

    @property
    def bytes_of_ranks(self) -> int:
        """What the columns of the other ranks take in memory now: `RANKS_BYTES` and those of one rank at most."""
        with self._lock:
            return sum(file.steps.nbytes for files in self._ranks_files.values() for file in files)

    # -- inside

    def _loading(self) -> threading.RLock:
        with self._lock:
            if not self._loaded:
                self.refresh()
        return self._lock

    def _chosen(self) -> list[_SessionFile]:
        return self._files if self._session is None else _pick(self._files, self._session)

    def _find_files(self) -> bool:
        known = {file.path: file for file in self._files}
        before = (set(known), self._other_ranks, self._trouble)
        paths, self._other_ranks, self._trouble = _list_files(self.folder)
        self._files = [known.get(path) or _SessionFile(path) for path in paths]
        return before != (set(paths), self._other_ranks, self._trouble)

    # -- several ranks

    def _world_size(self) -> int:
        size = self._chosen()[-1].meta.get("world_size") if self._chosen() else None
        return size if isinstance(size, int) else 1

    def _is_spread(self) -> bool:
        """Whether other ranks have a part of what this run's columns tell. From the heads of their files, once each."""
        if self._spread is None:
            self._spread = self._find_spread()
        return self._spread

    def _find_spread(self) -> bool:
        chosen = self._chosen()
        if not self._combine_ranks or not chosen or (not self._other_ranks and self._world_size() == 1):
            return False
        if any(file.meta.get("layouts") for file in chosen):
            return True
        own = [file.meta for file in chosen]
        for name in (name for names in self._other_ranks.values() for name in names):
            if name not in self._told:
                meta = _first_meta(self.folder / name)
                if meta is None:
                    continue
                self._told[name] = meta
            if not any(same_tensors(meta, self._told[name]) for meta in own):
                return True
        return False

    def _read_ranks(self) -> bool:
        """Reads what the other ranks appended. True where anything changed."""
        changed = False
        kept = COMBINED if self._is_spread() else WATCHED
        if kept is not self._kept_of_ranks:
            self._ranks_files, self._kept_of_ranks = {}, kept
        budget = RANKS_BYTES
        for rank, names in self._other_ranks.items():
            known = {file.path.name: file for file in self._ranks_files.get(rank, ())}
            changed = changed or known.keys() != set(names)
            files = [known.get(name) or _SessionFile(self.folder / name, kept) for name in names]
            for file in files:
                if budget <= 0:
                    file.release()
                changed = file.refresh() or changed
                budget -= file.steps.nbytes
                if budget <= 0:
                    file.release()
            self._ranks_files[rank] = sorted(files, key=lambda file: _order(file.path, file.start))
        return changed

    def _all_ranks(self) -> Ranks:
        if self._ranks is None:
            if self._ranks_files.keys() != self._other_ranks.keys():
                self._read_ranks()
            steps = {name: values for name, values in self._steps.views().items() if not is_share(name)}
            self._ranks = Ranks(steps, self._sessions_of_ranks(), self._world_size())
        return self._ranks

    def _sessions_of_ranks(self) -> list[RanksSession]:
        matches = self._matches()
        anew = _ReadAnew()
        sessions = []
        first_row = 0
        for taken in self._takes:
            by_rank = {rank: file.as_rank_record(anew) for rank, file in matches[taken.file.path].items()}
            sessions.append(RanksSession(first_row, first_row + taken.rows, by_rank))
            first_row += taken.rows
        return sessions

    def _matches(self) -> dict[Place, dict[int, _SessionFile]]:
        """By each chosen session of the lowest rank: every rank's file of that session."""
        own = self._files
        starts = [file.start_time for file in own]
        matches: dict[Place, dict[int, _SessionFile]] = {
            file.path: {parse_name(file.path.name).rank: file} for file in own
        }
        for rank, files in sorted(self._ranks_files.items()):
            for mine, at in zip(own, match_sessions(starts, [file.start_time for file in files]), strict=True):
                if at is not None:
                    matches[mine.path][rank] = files[at]
        return {file.path: matches[file.path] for file in self._chosen()}

    def _tables_of_ranks(self) -> list[dict[int, Session]]:
        """As `_tables`, of every rank, for each of `Ranks.sessions`."""
        matches = self._matches()
        cuts = {session.file.path: session.cut for session in self._tables()}
        return [
            {
                rank: Session(
                    self._tensors_file(file),
                    cuts[self._tensors_file(taken.file).path],
                    dict(file.part_starts),
                )
                for rank, file in matches[taken.file.path].items()
            }
            for taken in self._takes
        ]

    def _tensors_file(self, file: _SessionFile) -> TensorsFile:
        if file.path not in self._tensors_files:
            name = file.path.name.removesuffix(RECORD_SUFFIX) + TENSORS_SUFFIX
            self._tensors_files[file.path] = TensorsFile(file.path.with_name(name))
            self._tensors_files[file.path].refresh()
        return self._tensors_files[file.path]

    def _tables(self) -> list[Session]:
        """The chosen sessions' tables of tensors, oldest first, and what of them is superseded."""
        sessions: list[Session] = []
        cut: int | None = None
        for file in reversed(self._chosen()):
            sessions.append(Session(self._tensors_file(file), cut, dict(file.part_starts)))
            if file.start is not None:
                cut = file.start if cut is None else min(cut, file.start)
        return sessions[::-1]

    def _combine(self) -> None:
        """Puts the sessions together: of each, what no later one supersedes."""
        files = self._chosen()
        takes: list[_Taken] = []
        events: list[Event] = []
        cut: int | None = None
        for file in reversed(files):
            takes.append(_Taken(file, file.generation, file.steps.before(cut)))
            events[:0] = [event for event in file.events if cut is None or event.step < cut]
            if file.start is not None:
                cut = file.start if cut is None else min(cut, file.start)
        takes.reverse()
        self._takes = takes
        self._events = sorted(events, key=lambda event: event.step)  # stable: within a step as they were written
        takes = [taken for taken in takes if taken.rows]
        if len(takes) == 1 and takes[0].rows == takes[0].file.steps.count:
            self._steps = takes[0].file.steps
            self._taken = []
            return
        grown = (
            bool(takes)
            and takes[:-1] == self._taken[:-1]
            and len(self._taken) == len(takes)
            and takes[-1][:2] == self._taken[-1][:2]
            and takes[-1].rows >= self._taken[-1].rows
        )
        if grown:
            self._steps.extend(takes[-1].file.steps, self._taken[-1].rows, takes[-1].rows)
        else:
            self._steps = _Steps()
            for file in self._files:
                self._steps.provide(file.steps.views())
            self._steps.reserve(sum(taken.rows for taken in takes))
            for taken in takes:
                self._steps.extend(taken.file.steps, 0, taken.rows)
        self._taken = takes

    def _sum(self, files: list[Place], trailers: list[Trailer]) -> Totals:
        cut: int | None = None
        parts: list[Trailer] = []
        for path, trailer in zip(reversed(files), reversed(trailers), strict=True):
            if trailer.flags & REWOUND or (cut is not None and trailer.last_step >= cut):
                parts.append(self._exact_totals(path, cut))
            else:
                parts.append(trailer)
            if trailer.start >= 0:
                cut = trailer.start if cut is None else min(cut, trailer.start)
        parts.reverse()
        parts = [part for part in parts if part.steps]
        if not parts:
            return Totals(sessions=len(files), ended=_ended(trailers))
        best = [part.best_loss for part in parts if not math.isnan(part.best_loss)]
        scales = [part.last_loss_scale for part in parts if not math.isnan(part.last_loss_scale)]
        return Totals(
            steps=sum(part.steps for part in parts),
            skipped_steps=sum(part.skipped_steps for part in parts),
            first_step=parts[0].first_step,
            last_step=parts[-1].last_step,
            last_loss_scale=scales[-1] if scales else math.nan,
            best_loss=min(best, default=math.nan),
            first_wall_time=parts[0].first_wall_time,
            last_wall_time=parts[-1].last_wall_time,
            sessions=len(files),
            ended=_ended(trailers),
        )

    def _exact_totals(self, path: Place, cut: int | None) -> Trailer:
        try:
            with open_raw(path) as opened:
                key = (path, size_of(opened), cut)
        except OSError:
            return Trailer()
        if key not in self._exact:
            file = _SessionFile(path)
            file.refresh()
            self._exact[key] = file.steps.totals(file.steps.before(cut))
        return self._exact[key]


Explain = Callable[[Run], list[Event]]
"""Gives a run's events their severity, cause, message and remedy. May use `run.raw_events`, `steps` and `meta`."""


class _Taken(NamedTuple):
    file: _SessionFile
    generation: int
    rows: int


class _Steps:
    """Columns that grow: appending is amortised, and views given out keep their content."""

    def __init__(self) -> None:
        self.count = 0
        self._capacity = 0
        self._columns: dict[str, np.ndarray] = {}
        self.provide(("step",))

    def views(self) -> dict[str, np.ndarray]:
        views = {name: values[: self.count] for name, values in self._columns.items()}
        for view in views.values():
            view.flags.writeable = False
        return views

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self._columns.values())

    def last_step(self) -> int | None:
        return int(self._columns["step"][self.count - 1]) if self.count else None

    def before(self, cut: int | None) -> int:
        """How many rows have a step below `cut`; all where it is None."""
        if cut is None or not self.count:
            return self.count
        return int(np.searchsorted(self._columns["step"][: self.count], cut))

    def reserve(self, count: int) -> None:
        if count <= self._capacity:
            return
        self._capacity = count
        for name, values in self._columns.items():
            self._columns[name] = self._room(name, values)

    def append(self, rows: np.ndarray) -> None:
        """Appends packed rows. In blocks, for the rows of a block stay in the cache over its columns."""
        names = rows.dtype.names or ()
        self.provide(names, len(rows))
        for begin in range(0, len(rows), 4096):
            block = rows[begin : begin + 4096]
            at = self.count + begin
            with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
                for name, values in self._columns.items():
                    values[at : at + len(block)] = block[name] if name in names else _unknown(values.dtype)
        self.count += len(rows)

    def extend(self, other: _Steps, begin: int, end: int) -> None:
        """Appends rows [begin, end) of `other`."""
        self.provide(other._columns, end - begin)
        to = slice(self.count, self.count + end - begin)
        for name, values in self._columns.items():
            source = other._columns.get(name)
            values[to] = _unknown(values.dtype) if source is None else source[begin:end]
        self.count = to.stop

    def truncate(self, count: int) -> None:
        """Forgets rows from `count` on. Views that were given out may show them: those keep the memory."""
        self.count = count
        self._capacity = count
        self._columns = {name: values[:count].copy() for name, values in self._columns.items()}

    def last_alone(self) -> _Steps:
        """The last row, in memory of its own."""
        alone = _Steps()
        alone.extend(self, max(0, self.count - 1), self.count)
        return alone

    def totals(self, count: int) -> Trailer:
        """The totals of the first `count` rows."""
        if not count:
            return Trailer()
        columns = {name: values[:count] for name, values in self._columns.items()}

        def known(name: str) -> np.ndarray:
            values = columns.get(name, np.empty(0))
            present: np.ndarray = values[~np.isnan(values)]
            return present

        losses = known("loss")
        losses = losses[np.isfinite(losses)]
        scales, times = known("loss_scale"), known("wall_time")
        return Trailer(
            first_step=int(columns["step"][0]),
            last_step=int(columns["step"][-1]),
            steps=count,
            skipped_steps=int(np.count_nonzero(columns.get("skipped", np.empty(0, bool)))),
            last_loss_scale=float(scales[-1]) if len(scales) else math.nan,
            best_loss=float(losses.min()) if len(losses) else math.nan,
            first_wall_time=float(times[0]) if len(times) else math.nan,
            last_wall_time=float(times[-1]) if len(times) else math.nan,
        )

    def provide(self, names: Iterable[str], more: int = 0) -> None:
        """Has the columns `names`, and room for `more` rows."""
        if self.count + more > self._capacity:
            self.reserve(max(self.count + more, self._capacity * 3 // 2, 1024))
        for name in names:
            if name not in self._columns:
                self._columns[name] = self._room(name, np.empty(0, column(name).presented))

    def _room(self, name: str, values: np.ndarray) -> np.ndarray:
        """A new array for a column, with the values so far, the rest of them unknown."""
        room = np.empty(self._capacity, values.dtype)
        room[: len(values[: self.count])] = values[: self.count]
        room[len(values[: self.count]) : self.count] = _unknown(values.dtype)
        return room


def _unknown(dtype: np.dtype[Any]) -> float | bool | int:
    return math.nan if dtype.kind == "f" else False if dtype.kind == "b" else 0


class _SessionFile:
    """One session as its file tells it. `kept`: the columns that are kept, without an optimizer's name; None: all."""

    def __init__(self, path: Place, kept: frozenset[str] | None = None) -> None:
        self.path = path
        self.generation = 0  # changes when rows were taken back
        self._kept = kept
        self._released = False
        self._tail = RecordTail(path)
        self._clear()

    def _clear(self) -> None:
        self.steps = _Steps()
        self.events: list[Event] = []
        self.meta: dict[str, Any] = {}
        self.dropped: dict[str, int] = {}
        self.start: int | None = None  # the step from which it supersedes earlier sessions; None: nothing happened yet
        self.part_starts: dict[int, int] = {}  # the step from which each part of it supersedes earlier ones
        self._dtypes: dict[int, np.dtype[Any]] = {}
        self._without_layout: dict[int, list[tuple[int, bytes]]] = {}
        self._pending: list[bytes] = []  # chunks of one layout that follow each other
        self._pending_bytes = 0
        self._pending_layout = 0
        self._part = 0
        self._part_first_step: int | None = None
        self._part_began = False
        self._part_events = 0  # events before this index belong to earlier parts
        self._garbled: list[str] = []
        self._error: str | None = None
        self._newer: str | None = None

    def described(self) -> dict[str, Any]:
        """`meta`, and where it stands; what is known from the file's name where it was lost."""
        named = parse_name(self.path.name)
        return {"start_time": named.unix_ms / 1000, **self.meta, "file": self.path.name}

    @property
    def start_time(self) -> float:
        return float(self.described()["start_time"])

    def course(self) -> Course:
        named, (step, wall_time) = parse_name(self.path.name), self._clock()
        first_step = 0 if self.start is None else self.start
        return Course(self.path.name, named.host, named.process, self.start_time, first_step, step, wall_time)

    def _clock(self) -> tuple[np.ndarray, np.ndarray]:
        """The steps (S,), and when each closed; NaN where the log does not tell."""
        steps = self.steps.views()
        return steps["step"], steps.get("wall_time", np.full(self.steps.count, np.nan))

    def as_rank_record(self, anew: _ReadAnew) -> RankRecord:
        ended, (step, wall_time) = self.meta.get("ended"), self._clock()
        return RankRecord(
            self.meta,
            _ColumnsAnew(anew, self.path, self._kept) if self._released else self.steps.views(),
            self.events,
            ended if isinstance(ended, str) else None,
            int(step[-1]) if len(step) else -1,
            float(wall_time[-1]) if len(step) else -math.inf,
        )

    def release(self) -> None:
        """From now on keeps of the steps no more than the last one, by which the next ones are understood."""
        self._released = True
        self.steps = self.steps.last_alone()

    def problems(self) -> list[str]:
        problems = [*self._tail.problems(), *self._garbled]
        for chunks in self._without_layout.values():
            problems.append(self._lost(chunks))
        return problems + [problem for problem in (self._error, self._newer) if problem]

    def _lost(self, chunks: list[tuple[int, bytes]]) -> str:
        return f"{len(chunks)} chunks from {chunks[0][0]} on in {self.path.name} have lost what their columns are"

    def _begin_again(self) -> None:
        self._clear()
        self.generation += 1

    def refresh(self) -> bool:
        """Reads what was appended. True where anything was, or where a problem came or went."""
        before = (self._tail.state, self._error)
        if not self._tail.offset and not self._released:  # room for all at once
            self.steps.reserve(_last_trailer(self.path).steps)
        self._error = None
        try:
            self._tail.follow(lambda found: self._take(found.offset, found.data), self._begin_again)
        except OSError as error:
            self._error = f"{self.path.name} cannot be read: {error.strerror or error}"
        self._settle()
        return before != (self._tail.state, self._error)

    def _take(self, offset: int, data: bytes) -> None:
        if self._newer:
            return
        try:
            record = decode(data)
            if record is None:
                return
            if record.tag == TAG_STEPS:
                self._take_chunk(offset, record.payload, record.trailer)
            elif record.tag == TAG_EVENT:
                self._take_event(Event.from_facts(json.loads(record.payload)))
            elif record.tag == TAG_SESSION:
                self._take_session(json.loads(record.payload))
            elif record.tag == TAG_SCHEMA:
                self._take_layout(json.loads(record.payload))
            elif record.tag == TAG_DROPPED:
                self.dropped = {str(reason): int(count) for reason, count in json.loads(record.payload).items()}
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            # Whole by its checksums (or these were not looked at), and yet not what a writer of this version writes.
            self._garbled.append(f"the record at {offset} in {self.path.name} is not understood: {error}")

    def _take_session(self, meta: dict[str, Any]) -> None:
        version = int(meta.get("format_version", FORMAT_VERSION))
        if version > FORMAT_VERSION:
            self._newer = (
                f"{self.path.name} has format {version}, and this tbnum reads up to {FORMAT_VERSION}: "
                "install a newer tbnum to read it"
            )
            return
        check_session(meta)
        part, first_step = int(meta.pop("part", 0)), meta.get("first_step")
        if part != self._part:
            self._settle()
            self._part = part
            self._part_began = False
            self._part_events = len(self.events)
        self._part_first_step = first_step if isinstance(first_step, int) else None
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
        self.steps.provide(self._wanted(layout.names))
        for offset, payload in self._without_layout.pop(schema_id, ()):
            self._queue(offset, payload, schema_id)

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

    def _queue(self, offset: int, payload: bytes, schema_id: int) -> None:
        if not payload or len(payload) % self._dtypes[schema_id].itemsize:
            raise ValueError(f"{len(payload)} bytes are no whole rows")
        if schema_id != self._pending_layout or self._pending_bytes > 1 << 18:
            self._settle()
            self._pending_layout = schema_id
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
        first = int(rows["step"][0])
        self._begin_part(first)
        self.start = first if self.start is None else min(first, self.start)
        last = self.steps.last_step()
        if last is not None and first <= last:  # back without a session record that says so: it was lost
            self._part_events = len(self.events)
            self._supersede(first)
        self.steps.append(rows if self._kept is None else rows[self._wanted(rows.dtype.names or ())])
        if self._released:
            self.steps = self.steps.last_alone()

    def _wanted(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._kept is None or name.rpartition("/")[2] in self._kept]

    def _take_event(self, event: Event) -> None:
        if event.kind not in UNBOUND_KINDS:
            if not self._part_began:
                self._settle()
            self._begin_part(event.step)
        self.events.append(event)

    def _begin_part(self, step: int) -> None:
        """The session (or what it took up anew) has taken `step`: from here on it supersedes."""
        if self._part_began:
            return
        self._part_began = True
        if self._part_first_step is not None:
            step = min(step, self._part_first_step)
        self._supersede(step)
        self.part_starts[self._part] = step
        self.start = step if self.start is None else min(step, self.start)

    def _supersede(self, step: int) -> None:
        kept = self.steps.before(step)
        if kept < self.steps.count:
            self.steps.truncate(kept)
            self.generation += 1
        earlier = self.events[: self._part_events]
        if any(event.step >= step for event in earlier):
            earlier = [event for event in earlier if event.step < step]
            self.events[: self._part_events] = earlier
            self._part_events = len(earlier)


class _ReadAnew:
    """Reads columns of files that were released; those of the last file stay, as who asks goes file by file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: Place | None = None
        self._columns: dict[str, np.ndarray] = {}

    def columns(self, path: Place, kept: frozenset[str] | None) -> dict[str, np.ndarray]:
        with self._lock:
            if path != self._path:
                self._columns = {}  # before the next ones take their place
                file = _SessionFile(path, kept)
                file.refresh()
                self._path, self._columns = path, file.steps.views()
            return self._columns


class _ColumnsAnew(Mapping[str, np.ndarray]):
    """A file's columns, read when asked for."""

    def __init__(self, anew: _ReadAnew, path: Place, kept: frozenset[str] | None) -> None:
        self._anew, self._path, self._kept = anew, path, kept

    def _columns(self) -> dict[str, np.ndarray]:
        return self._anew.columns(self._path, self._kept)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns())

    def __len__(self) -> int:
        return len(self._columns())


def writing_now(folder: str | os.PathLike[str], rank: int | None, within_seconds: float = 60.0) -> int | None:
    """The id of another process of this machine that writes the same rank's record into `folder`; None without one.

    Told from files of late that were not closed, and whose process lives. A look at the folder, and at the end of such
    files. Not on Windows, where a process cannot be asked.
    """
    if os.name != "posix":
        return None
    host = host_name()
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            named = parse_name(entry.name)
            if named.host != host or named.rank != (rank or 0) or named.process == os.getpid():
                continue
            is_late = entry.stat().st_mtime > time.time() - within_seconds
            if is_late and _ended([_last_trailer(place(entry.path))]) is None and _lives(named.process):
                return named.process
    return None


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)  # no signal: only whether there could be one
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def is_share(name: str) -> bool:
    """Whether a column is a rank's share of another."""
    return name.endswith(SHARD)


def _order(path: Place, start: int | None) -> tuple[int, int, str]:
    """Sessions follow each other by the time in their name; were two begun at once, by their first step."""
    return parse_name(path.name).unix_ms, -1 if start is None else start, path.name


def _list_files(folder: Place) -> tuple[list[Place], dict[int, list[str]], list[str]]:
    """Record files of the lowest rank, oldest first; names of the other ranks' files; what hinders."""
    try:
        names = sorted(parse_name(name) for name in list_names(folder) if is_record_file(name))
    except OSError as error:
        return [], {}, [f"{folder} cannot be searched: {error.strerror or error}"]
    lowest = min((name.rank for name in names), default=0)
    others: dict[int, list[str]] = {}
    for name in names:
        if name.rank != lowest:
            others.setdefault(name.rank, []).append(name.name)
    return [folder / name.name for name in names if name.rank == lowest], others, []


def _pick(files: list[Any], session: int) -> list[Any]:
    return [files[session]] if -len(files) <= session < len(files) else []


def _ended(trailers: list[Trailer]) -> str | None:
    flags = trailers[-1].flags if trailers else 0
    return "crash" if flags & ENDED_CRASH else "closed" if flags & ENDED_CLOSED else None


def _last_trailer(path: Place) -> Trailer:
    """The running totals at the end of a file; empty ones where there are none to be found."""
    try:
        with open_raw(path) as file:
            size = size_of(file)
            for window in (512, 1 << 18, MAX_RECORD_BYTES + (1 << 16)):
                begin = max(0, size - window)
                file.seek(begin)
                trailer = _trailer_in(file.read(size - begin) or b"")
                if trailer is not None and 0 <= trailer.steps <= size:  # a step has more than a byte
                    return trailer
                if begin == 0:
                    break
    except OSError:
        pass
    return Trailer()


def _trailer_in(data: bytes) -> Trailer | None:
    """The last trailer in `data` whose record may be whole: its checksum follows."""
    at = len(data) - TRAILER_BYTES - 4
    while at >= 0:
        at = data.rfind(TRAILER_MAGIC, 0, at + len(TRAILER_MAGIC))
        if at < 0:
            break
        try:
            return Trailer.unpack(data[at : at + TRAILER_BYTES])
        except ValueError:
            at -= 1
    return None
