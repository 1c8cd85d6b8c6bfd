"""Writes a session's record files in the background.

The training thread appends a tuple to a list; a daemon thread packs the tuples into chunks and writes them. An
event's record is written by the thread that calls, before the call returns, so that a killed process leaves it.
Tables of tensors go to a second file, by the daemon thread alone.

Trouble with the disk never reaches training: what cannot be written is dropped, counted by reason, told of once by
a warning, and in the log as soon as writing works again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import re
import struct
import threading
import time
import uuid
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tbnum.alive import Alive
from tbnum.log.names import host_name
from tbnum.log.record_file import FILE_DELETED, RecordAppender, encode, file_version, frame, trouble
from tbnum.log.schema import (
    ENDED_CLOSED,
    ENDED_CRASH,
    FORMAT_VERSION,
    MAX_EVENT_BYTES,
    MAX_RECORD_BYTES,
    RECORD_SUFFIX,
    REPEAT_EVERY_BYTES,
    REWOUND,
    TAG_DROPPED,
    TAG_EVENT,
    TAG_SCHEMA,
    TAG_SESSION,
    TAG_STEPS,
    TENSORS_SUFFIX,
    UNBOUND_KINDS,
    Event,
    RowLayout,
    Trailer,
)
from tbnum.log.tensors import HistogramTable, TensorTable
from tbnum.log.tensors_writer import TensorsWriter

__all__ = ["LogWriter"]

_PENDING_BYTES = 24 << 20  # of rows not yet packed; with packed chunks, tables and calls the writer stays below 64 MB
_CALLS_AT_ONCE = 256  # waiting calls that wake the thread before its time
_PENDING_CALLS = 4096


class LogWriter:
    """Appends to one record file, `<unix-ms>.<host>.<pid>[.rank<r>].tbnum` in `folder`.

    `columns` names the values of a row in their order; `meta` is what the log tells of the session. The folder and
    the file are made at once; OSError naming the folder where that fails. From then on no method raises because of
    the disk: see `dropped`.

    Rows go out every `flush_seconds`, every `chunk_steps` rows, and right after an event. Unwritten rows are bounded
    at 24 MB, tables at 32 MB. Tables go to `<same name>.tensors.tbnum`, which is made with the first one and takes the
    regular ones only up to `max_tensor_bytes`. In a forked child the writer does nothing. Deleting the writer, or the
    end of the interpreter, writes what is pending, as `close` does.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        columns: Sequence[str],
        meta: Mapping[str, Any],
        rank: int | None = None,
        flush_seconds: float = 2.0,
        chunk_steps: int = 1000,
        max_tensor_bytes: int = 256_000_000,
    ) -> None:
        if flush_seconds <= 0:
            raise ValueError(f"flush_seconds has to be above 0, not {flush_seconds!r}")
        if chunk_steps < 1:
            raise ValueError(f"chunk_steps has to be at least 1, not {chunk_steps!r}")
        if max_tensor_bytes < 0:
            raise ValueError(f"max_tensor_bytes has to be at least 0, not {max_tensor_bytes!r}")
        folder = Path(os.path.abspath(folder))
        self._sink = _Sink(folder, columns, meta, rank, flush_seconds, chunk_steps, max_tensor_bytes)
        self._sink.start()
        self._finish = weakref.finalize(self, _Sink.finish, self._sink, 10.0)

    @property
    def path(self) -> Path:
        return self._sink.path

    @property
    def tensors_path(self) -> Path:
        """Where tables go; the file is there once one was written."""
        return self._sink.tensors.path

    @property
    def columns(self) -> tuple[str, ...]:
        return self._sink.layout.names

    @property
    def dropped(self) -> dict[str, int]:
        """Steps, events, tables and calls that were lost so far, by reason."""
        return dict(self._sink.dropped)

    def append_step(self, row: tuple[Any, ...]) -> None:
        """Takes one step's values, in the order of `columns`. To be called by one thread. About 0.1 us, no I/O."""
        sink = self._sink
        rows = sink.rows
        if len(rows) >= sink.attention and not sink.admit():
            return
        rows.append(row)

    def set_columns(self, columns: Sequence[str]) -> None:
        """Later rows have these columns. Writes pending rows and the new schema on the calling thread."""
        self._sink.set_columns(columns)

    def write_event(self, event: Event) -> None:
        """Writes the facts of `event` before it returns: one write of at most 4 kB on the calling thread, about 30 us.

        Long texts and lists in `event.data` are shortened to fit. Pending rows follow at once in the background.
        """
        self._sink.write_event(event)

    def write_tensors(self, table: TensorTable) -> None:
        """Takes a table, to be written in the background; one that is not of the interval at once. About 2 us, no I/O.

        Its arrays must not be changed afterwards.
        """
        self._sink.write_table(table)

    def write_histogram(self, table: HistogramTable) -> None:
        """Takes a table of histograms, as `write_tensors` takes one of statistics."""
        self._sink.write_table(table)

    def update_meta(self, **changes: Any) -> None:
        """Writes the session record again, with `changes`, after the pending rows, on the calling thread.

        A new `first_step` after rows were appended tells that the session went back (or on) to that step: rows and
        events so far that are not before it are superseded. Call this before events of the continued session.
        """
        self._sink.update_meta(changes)

    def submit(self, call: Callable[[], None]) -> bool:
        """Runs `call` on the background thread, in order, with the next chunk or when 256 wait. About 0.3 us.

        At most 4,096 wait: beyond that the answer is False, and the call is lost and counted.
        """
        return self._sink.submit(call)

    def flush(self, timeout: float | None = 10.0) -> bool:
        """Waits until what was given so far is written and called. False where that was not done in time."""
        return self._sink.flush(timeout)

    def close(self, timeout: float | None = 10.0) -> None:
        """Writes what is pending and that the session ended, and ends the thread. The second call does nothing."""
        self._sink.finish(timeout)
        self._finish.detach()  # not before: an interrupt while waiting leaves the rest to the end of the interpreter


class _Sink:
    """What the writer and its thread share. It knows nothing of the `LogWriter`, so that one can be collected.

    Two locks: `_draining` orders the records of rows and of the session, `_writing` is held for one write. An event
    takes the second alone, so it waits for one write at the most.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[str],
        meta: Mapping[str, Any],
        rank: int | None,
        flush_seconds: float,
        chunk_steps: int,
        max_tensor_bytes: int,
    ) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.dropped: dict[str, int] = {}
        self.meta: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "session": uuid.uuid4().hex,
            "start_time": time.time(),
            **meta,
        }
        self.flush_seconds = flush_seconds
        self._asked_chunk_steps = chunk_steps
        self._lay_out(columns)
        self.attention = self.chunk_steps  # `append_step` looks up when so many rows are pending; 0: at once

        self._calls: deque[Callable[[], None]] = deque()
        # Wakes the thread: _WAKE, _STOP, or an Event to be set when all is written. Safe in signal handlers.
        self._inbox: queue.SimpleQueue[threading.Event | object] = queue.SimpleQueue()
        self._draining = threading.RLock()
        self._writing = threading.RLock()
        self._counting = threading.RLock()
        self._nudged = False
        self._active = True  # False when closed, or a forked child's copy
        self._thread: threading.Thread | None = None

        self._warnings: list[str] = []  # to be said by the training thread
        self._warned: set[str] = set()
        self._reported: dict[str, int] = {}
        self._part = 0
        self._part_used = False  # something was recorded in it
        self._totals = Trailer()
        self._session_text: str | None = None

        self._repeat_at = 0
        self._file: RecordAppender | None = None
        self._open(folder, rank)
        self.tensors = TensorsWriter(
            self.path.with_name(self.path.name.removesuffix(RECORD_SUFFIX) + TENSORS_SUFFIX),
            {"format_version": self.meta["format_version"], "session": self.meta["session"]},
            max_tensor_bytes,
            self._count,
        )

    # -- called by the training thread

    def start(self) -> None:
        self._thread = threading.Thread(target=_work, args=(self,), name="tbnum-log", daemon=True)
        self._thread.start()
        _sinks.add(self)

    def admit(self) -> bool:
        """Whether the next row may be appended; the rare part of `append_step`."""
        if not self._active:
            return False
        self.attention = self.chunk_steps
        self._warn()
        pending = len(self.rows)
        if pending >= self._max_rows:
            self._count("writing too slow")
            return False
        if pending >= self.chunk_steps:
            self._nudge()
        return True

    def set_columns(self, columns: Sequence[str]) -> None:
        if not self._active:
            return
        self._warn()
        with self._draining:
            self.drain()
            self._lay_out(columns)
            with self._writing:
                if self._ready():
                    self._append(self._session_frames())

    def write_event(self, event: Event) -> None:
        if not self._active:
            return
        self._warn()
        try:
            with self._writing:
                if self._ready(lost=1):
                    self._begin(event)
                    self._append(_event_frame(event, self._totals), lost=1)
        except Exception as error:
            self._count(f"event not writable ({type(error).__name__})")
        self._nudge()

    def update_meta(self, changes: Mapping[str, Any]) -> None:
        if not self._active:
            return
        self._warn()
        with self._draining:
            self.drain()
            with self._writing:
                if "first_step" in changes and self._part_used:
                    self._part += 1
                    self._part_used = False
                self.meta.update(changes)
                self._session_text = None
                if self._ready():
                    self._append(self._session_frames())

    def write_table(self, table: TensorTable | HistogramTable) -> None:
        if not self._active:
            return
        self._warn()
        self._part_used = True
        first_step = self.meta.get("first_step")
        if self.tensors.give(table, self._part, first_step if isinstance(first_step, int) else -1):
            self._nudge()

    def submit(self, call: Callable[[], None]) -> bool:
        if not self._active:
            return False
        waiting = len(self._calls)
        if waiting >= _CALLS_AT_ONCE:
            self._nudge()
            if waiting >= _PENDING_CALLS:
                self._count("dashboards too slow")
                return False
        self._calls.append(call)
        return True

    def flush(self, timeout: float | None) -> bool:
        if not self._active:
            return True
        self._warn()
        if not self._works_elsewhere():
            self.drain()
            self.tensors.drain()
            return True
        done = threading.Event()
        self._inbox.put(done)
        finished = done.wait(timeout)
        self._warn()
        return finished

    def finish(self, timeout: float | None) -> None:
        if self._active:
            self._active = False
            self.attention = 0
            self._inbox.put(_STOP)
        if self._works_elsewhere():
            assert self._thread is not None
            self._thread.join(timeout)
        else:
            self.end()
        self._warn()

    def _works_elsewhere(self) -> bool:
        """Whether there is a thread to wait for."""
        return self._thread is not None and self._thread is not threading.current_thread() and self._thread.is_alive()

    def _nudge(self) -> None:
        """Has the thread write now."""
        if not self._nudged:
            self._nudged = True
            self._inbox.put(_WAKE)

    # -- called by the background thread, too

    def round(self) -> bool:
        """Waits for a reason to write, at most `flush_seconds`, and writes. False at the end."""
        deadline = time.monotonic() + self.flush_seconds
        reasons: list[threading.Event | object] = []
        with contextlib.suppress(queue.Empty):
            reasons.append(self._inbox.get(timeout=self.flush_seconds))
            while True:
                reasons.append(self._inbox.get_nowait())
        self.drain()
        self.tensors.drain()
        for _ in range(len(self._calls)):
            call = self._calls.popleft()
            try:
                call()
            except Exception as error:
                self._count(f"dashboards failed ({type(error).__name__})")
            if len(self.rows) >= self.chunk_steps or time.monotonic() > deadline:
                deadline = time.monotonic() + self.flush_seconds
                self.drain()
                self.tensors.drain()
        with self._draining:
            self._report_dropped()
        for reason in reasons:
            if isinstance(reason, threading.Event):
                reason.set()
        return _STOP not in reasons

    def drain(self) -> None:
        """Writes the pending rows. About 1 us a row."""
        with self._draining:
            self._nudged = False
            rows = self.rows
            while rows:
                batch = rows[: self.chunk_steps]
                del rows[: len(batch)]
                try:
                    self._write_chunk(batch)
                except Exception as error:
                    self._count(f"steps not writable ({type(error).__name__})", len(batch))
            self._report_dropped()

    def end(self) -> None:
        """Writes what is pending and that the session ended, and closes the files; once."""
        if self._file is None:
            return
        self.tensors.drain()
        self.tensors.close()
        self.drain()
        with self._draining, self._writing:
            crashed = bool(self._totals.flags & ENDED_CRASH)
            if not crashed:
                self._totals = self._totals._replace(flags=self._totals.flags | ENDED_CLOSED)
            self.meta.update(end_time=time.time(), ended="crash" if crashed else "closed", closed=True)
            self._session_text = None
            if self._ready():
                self._append(self._session_frames())
            if self._file is not None:
                self._file.close()
            self._file = None

    # -- records

    def _lay_out(self, columns: Sequence[str]) -> None:
        self.layout = RowLayout.of(columns)
        self._dtype = self.layout.dtype()
        self._pack = struct.Struct(self.layout.struct_format()).pack
        self._schema_id = self.layout.schema_id()
        self.chunk_steps = max(1, min(self._asked_chunk_steps, (MAX_RECORD_BYTES - 4096) // self._dtype.itemsize))
        self._max_rows = max(2 * self.chunk_steps, _PENDING_BYTES // (56 + 40 * len(self.layout.names)))
        self._session_text = None

    def _write_chunk(self, batch: list[tuple[Any, ...]]) -> None:
        try:
            payload = b"".join([self._pack(*row) for row in batch])
        except (struct.error, TypeError, ValueError, OverflowError):
            payload = self._pack_with_care(batch)
            if not payload:
                return
        values = np.frombuffer(payload, self._dtype)
        with self._writing:
            if not self._ready(lost=len(values)):
                return
            totals = self._totals_after(values)
            trailer = totals._replace(schema_id=self._schema_id, rows=len(values)).pack()
            chunk = encode(
                TAG_STEPS, payload, trailer=trailer, step=max(totals.last_step, 0), wall_time=totals.last_wall_time
            )
            record = frame(chunk)
            if self._file is not None and self._file.size >= self._repeat_at:
                record = self._session_frames() + record
            if self._append(record, lost=len(values)):
                self._totals = totals
                self._part_used = True

    def _pack_with_care(self, batch: list[tuple[Any, ...]]) -> bytes:
        """Rows with a value that does not fit its column: what can be kept is kept, value by value."""
        packed = []
        for row in batch:
            try:
                packed.append(
                    self._pack(*[_fitted(value, kind) for value, kind in zip(row, self.layout.stored, strict=True)])
                )
            except (struct.error, TypeError, ValueError, OverflowError):
                self._count("step without the columns' values")
        return b"".join(packed)

    def _totals_after(self, values: np.ndarray) -> Trailer:
        """The running totals with the rows `values` added. Some 30 us, whatever the number of rows."""
        totals = self._totals
        names = self.layout.names

        def present(name: str) -> np.ndarray:
            column = values[name] if name in names else np.empty(0)
            known: np.ndarray = column[~np.isnan(column)]
            return known

        changes: dict[str, Any] = {"steps": totals.steps + len(values)}
        if "step" in names:
            steps = values["step"]
            changes["last_step"] = int(steps[-1])
            if totals.first_step < 0:
                changes["first_step"] = int(steps[0])
            changes["start"] = self._started(int(steps[0]))
            if steps[0] <= totals.last_step or (steps[1:] <= steps[:-1]).any():
                changes["flags"] = totals.flags | REWOUND
        if "skipped" in names:
            changes["skipped_steps"] = totals.skipped_steps + int(np.count_nonzero(values["skipped"]))
        scales = present("loss_scale")
        if len(scales):
            changes["last_loss_scale"] = float(scales[-1])
        losses = present("loss")
        losses = losses[np.isfinite(losses)]
        if len(losses):
            lowest = float(losses.min())
            changes["best_loss"] = lowest if math.isnan(totals.best_loss) else min(lowest, totals.best_loss)
        times = present("wall_time")
        if len(times):
            changes["last_wall_time"] = float(times[-1])
            if math.isnan(totals.first_wall_time):
                changes["first_wall_time"] = float(times[0])
        return totals._replace(**changes)

    def _begin(self, event: Event) -> None:
        """Notes what `event` says about the session as a whole."""
        totals = self._totals
        if event.kind == "crash":
            self._totals = totals._replace(flags=totals.flags | ENDED_CRASH)
        elif event.kind not in UNBOUND_KINDS:
            self._totals = totals._replace(start=self._started(event.step))

    def _started(self, step: int) -> int:
        """From which step this session supersedes earlier ones, now that `step` was seen in it."""
        first = self.meta.get("first_step")
        candidates = [step]
        if isinstance(first, int):
            candidates.append(first)
        if self._totals.start >= 0:
            candidates.append(self._totals.start)
        return min(candidates)

    def _session_frames(self) -> bytes:
        """Session and schema. Each tells the columns, so that one lost record costs no chunk."""
        if self._session_text is None:
            self._session_text = _session_text(
                {**self.meta, "part": self._part, "columns": self.layout.names, "stored": self.layout.stored}
            )
        schema = {"session": self.meta["session"], "columns": self.layout.names, "stored": self.layout.stored}
        trailer = self._totals.pack()
        wall_time = time.time()
        step = max(self._totals.last_step, 0)
        session = encode(TAG_SESSION, self._session_text, trailer=trailer, step=step, wall_time=wall_time)
        frames = frame(session) + frame(
            encode(TAG_SCHEMA, json.dumps(schema), trailer=trailer, step=step, wall_time=wall_time)
        )
        size = self._file.size if self._file is not None else 0
        self._repeat_at = size + max(REPEAT_EVERY_BYTES, 20 * len(frames))
        return frames

    def _report_dropped(self) -> None:
        if self.dropped == self._reported:
            return
        with self._writing:
            if not self._ready():
                return
            dropped = dict(self.dropped)
            record = encode(
                TAG_DROPPED, json.dumps(dropped), trailer=self._totals.pack(), step=0, wall_time=time.time()
            )
            if self._append(frame(record)):
                self._reported = dropped

    # -- the file

    def _open(self, folder: Path, rank: int | None) -> None:
        """Makes folder and file, and writes how they begin. OSError names the folder."""
        suffix = RECORD_SUFFIX if rank is None else f".rank{rank}{RECORD_SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # The clock may have been set back since an earlier session: a later one still sorts after it.
            taken = [int(name.split(".")[0]) for name in os.listdir(folder) if re.match(r"\d+\..*\.tbnum$", name)]
            stamp = max([time.time_ns() // 1_000_000, *(time_ms + 1 for time_ms in taken)])
            while True:
                self.path = folder / f"{stamp}.{host_name()}.{os.getpid()}{suffix}"
                try:
                    file = RecordAppender(self.path, new=True)
                    break
                except FileExistsError:
                    stamp += 1
            try:
                file.append(frame(file_version(time.time())) + self._session_frames())
            except OSError:
                file.close()
                os.unlink(self.path)
                raise
            self._file = file
        except OSError as error:
            reason = f"cannot write a log into {str(folder)!r} ({error.strerror}): choose a folder that is writable"
            raise type(error)(error.errno, reason) from error

    def _ready(self, lost: int = 0) -> bool:
        """Whether there is a file to append to; where there is none, `lost` records are counted. 1 us.

        A file that was deleted is begun again if its folder is there. `_writing` is held.
        """
        if self._file is None:
            return False
        try:
            if not self._file.renew():
                return True
        except OSError as error:
            self._count(trouble(error), lost)
            return False
        self._count(FILE_DELETED, self._totals.steps)
        self._totals = Trailer(flags=self._totals.flags)
        return self._append(frame(file_version(time.time())) + self._session_frames(), lost)

    def _append(self, records: bytes, lost: int = 0) -> bool:
        """Appends whole records by one write. Where that fails, `lost` of them are counted. `_writing` is held."""
        assert self._file is not None
        try:
            self._file.append(records)
            return True
        except OSError as error:
            self._repeat_at = 0  # a lost session or schema record comes again with the next chunk
            self._count(trouble(error), lost)
            return False

    # -- what is lost

    def _count(self, reason: str, lost: int = 1, warning: str | None = None) -> None:
        """Counts what is lost, and has the training thread warn of it; of trouble without a `warning` only once."""
        if lost:
            with self._counting:
                self.dropped[reason] = self.dropped.get(reason, 0) + lost
        kind = "trouble" if warning is None else reason
        if kind in self._warned:
            return
        self._warned.add(kind)
        self._warnings.append(
            warning
            or f"tbnum cannot write all of {self.path} ({reason}). Training goes on; what is lost is "
            "counted in the log, `run.meta['dropped']`. This is said once."
        )
        self.attention = 0  # the next `append_step` warns

    def _warn(self) -> None:
        while self._warnings:
            with contextlib.suppress(RuntimeWarning):  # under `-W error`, too, training goes on
                warnings.warn(self._warnings.pop(0), RuntimeWarning, stacklevel=4)

    def forget(self) -> None:
        """Makes the copy that a forked child has of this writer do nothing: the parent writes."""
        self._active = False
        self.attention = 0
        self.rows = []
        self._calls.clear()
        self._inbox = queue.SimpleQueue()
        self._draining = threading.RLock()
        self._writing = threading.RLock()
        self._counting = threading.RLock()
        self._thread = None
        self.tensors.forget()
        if self._file is not None:
            self._file.close()
            self._file = None


_WAKE = object()
_STOP = object()

_sinks: Alive[_Sink] = Alive()


def _forget_all() -> None:
    for sink in _sinks:
        sink.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _work(sink: _Sink) -> None:
    """The background thread."""
    while sink.round():
        pass
    sink.end()


def _fitted(value: Any, kind: str) -> Any:
    if kind == "<i8":
        return int(value)
    if kind == "|b1":
        return False if value is None else bool(value)
    number = math.nan if value is None else float(value)
    if kind == "<f4" and math.isfinite(number) and abs(number) > 3.4028234663852886e38:
        return math.copysign(math.inf, number)
    return number


def _session_text(meta: dict[str, Any]) -> str:
    """`meta` as JSON that fits a record; entries that do not fit are left out, and named."""
    plain = _plain(meta)
    text = json.dumps(plain)
    while len(text) > MAX_RECORD_BYTES - 4096:
        longest = max(plain, key=lambda key: len(json.dumps(plain[key])))
        del plain[longest]
        plain.setdefault("left_out", []).append(longest)
        text = json.dumps(plain)
    return text


def _event_frame(event: Event, totals: Trailer) -> bytes:
    """The record of `event`, of at most MAX_EVENT_BYTES."""
    trailer = totals.pack()
    for longest in (None, 400, 100, 25, 6, 0):
        facts = _plain(event.facts(), longest)
        if longest is not None:
            facts["data"] = {**facts.get("data", {}), "shortened": True} if longest else {"shortened": True}
        record = frame(
            encode(
                TAG_EVENT,
                json.dumps(facts),
                trailer=trailer,
                step=max(int(event.step), 0),
                wall_time=float(event.wall_time),
            )
        )
        if len(record) <= MAX_EVENT_BYTES:
            return record
    raise ValueError("the event does not fit a record")


def _plain(value: Any, longest: int | None = None, depth: int = 0) -> Any:
    """`value` in JSON's types. With `longest`, texts have at most so many characters, lists a tenth of that."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if longest is None or len(value) <= longest else value[:longest] + "..."
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if depth < 16:
        if isinstance(value, Mapping):
            items = list(value.items())
            if longest is not None and depth > 0:
                items = items[: max(longest, 8)]
            return {_plain(str(key), longest): _plain(entry, longest, depth + 1) for key, entry in items}
        if isinstance(value, (list, tuple, set, frozenset)):
            entries = list(value)
            if longest is not None:
                entries = entries[: longest // 10 + 1]
            return [_plain(entry, longest, depth + 1) for entry in entries]
        if hasattr(value, "tolist"):  # numpy's arrays and numbers, and tensors
            return _plain(value.tolist(), longest, depth + 1)
    return _plain(str(value), longest, depth)
