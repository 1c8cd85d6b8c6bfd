"""Writes a run's record in the background.

The training thread appends tuples to a list; a daemon thread packs them into chunks and writes them. An event's
record is written by the thread that calls, before the call returns, so that a killed process leaves it. Tables of
tensors go to a second file, by the daemon thread alone.

Trouble with the disk never reaches training: what cannot be written is dropped, counted by reason, said once by a
warning, and in the log as soon as writing works again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tbnum.alive import Alive
from tbnum.log.batches import Batch
from tbnum.log.lost import Lost
from tbnum.log.record_file import trouble, way_out
from tbnum.log.row_packer import RowPacker
from tbnum.log.schema import FORMAT_VERSION, Event
from tbnum.log.session_writer import SessionWriter, newest_stamp
from tbnum.log.tensors import HistogramTable, TensorTable
from tbnum.log.tensors_writer import TensorsWriter

__all__ = ["LogWriter"]

_PENDING_BYTES = 24 << 20  # of rows not yet packed; with packed chunks, tables and calls the writer stays below 64 MB
_CALLS_AT_ONCE = 256  # waiting calls that wake the thread before its time
_PENDING_CALLS = 4096
_YOUNG = 40  # the first rows are written after this part of `flush_seconds`, the next after twice that, and so on
MAX_PENDING_IDS = 2 << 20  # 16 MB


class LogWriter:
    """Appends to a record file, `<unix-ms>.<host>.<pid>[.rank<r>].tbnum` in `folder`.

    `columns` names the values of a row in their order; `meta` is what the log says about the session. The folder and
    the file are made at once; OSError naming the folder where that fails. From then on no method raises because of
    the disk: see `dropped`.

    Rows go out every `flush_seconds` (sooner at first), every `chunk_steps` rows, and right after an event. Unwritten
    rows are bounded at 24 MB, tables at 32 MB and those of one step. Tables go to `<same name>.tensors.tbnum`, which is
    made with the first one and takes the regular ones only up to `max_tensor_bytes`. In a forked child the writer does
    nothing. Deleting the writer, or the end of the interpreter, writes what is pending, as `close` does.
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
        return self._sink.session.path

    @property
    def tensors_path(self) -> Path:
        """Where tables go; the file is there once one was written."""
        return self._sink.tensors.path

    @property
    def columns(self) -> tuple[str, ...]:
        return self._sink.packer.layout.names

    @property
    def dropped(self) -> dict[str, int]:
        """Steps, events, tables and calls that were lost so far, by reason."""
        return dict(self._sink.lost.by_reason)

    def append_step(self, row: tuple[Any, ...]) -> None:
        """Takes one step's values, in the order of `columns`. To be called by one thread. About 0.1 us, no I/O."""
        sink = self._sink
        rows = sink.rows
        if len(rows) >= sink.attention and not sink.admit(1):
            return
        rows.append(row)

    def append_steps(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Takes many steps at once, as `append_step` takes one. About 0.01 us a step, no I/O."""
        sink = self._sink
        if len(sink.rows) + len(rows) > sink.attention and not sink.admit(len(rows)):
            return
        sink.rows.extend(rows)

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

    def write_batches(self, batches: Sequence[Batch]) -> None:
        """Takes the sample ids of some steps, to be written in the background after the rows that are pending.

        Their arrays must not be changed afterwards. Where `MAX_PENDING_IDS` wait, more are lost and counted.
        """
        self._sink.write_batches(batches)

    def update_meta(self, **changes: Any) -> None:
        """Writes the session record again, with `changes`, after the pending rows, on the calling thread.

        A `first_step` after something was recorded says that the run went back (or on) to that step: a new session
        file begins, which supersedes what is not before it. Call this before events of the continued run.
        """
        self._sink.update_meta(changes)

    def submit(self, call: Callable[[], None]) -> bool:
        """Runs `call` on the background thread, in order, with the next chunk or when 256 wait. About 0.3 us.

        At most 4,096 wait: beyond that the answer is False, and the call is lost and counted.
        """
        return self._sink.submit(call)

    def call_ahead(self, call: Callable[[], None]) -> None:
        """The background thread calls this before it writes rows: it may append some. What it raises is counted."""
        self._sink.ahead = call

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
        self.attention = chunk_steps  # `append_step` looks up when so many rows are pending; 0: at once
        self.flush_seconds = flush_seconds
        self.ahead: Callable[[], None] = _nothing
        self._patience = flush_seconds / _YOUNG  # so that a process that is killed young leaves most of its steps
        self._folder = folder
        self._rank = rank
        self._asked_chunk_steps = chunk_steps
        self._batches: list[Batch] = []
        self._batch_ids = 0  # in them
        self._calls: deque[Callable[[], None]] = deque()
        # Wakes the thread: _WAKE, _STOP, or an Event to be set when all is written. Safe in signal handlers.
        self._inbox: queue.SimpleQueue[threading.Event | object] = queue.SimpleQueue()
        self._draining = threading.RLock()
        self._writing = threading.RLock()
        self._nudged = False
        self._active = True  # False when closed, or a forked child's copy
        self._thread: threading.Thread | None = None
        self.lost = Lost(lambda: self.session.path, self._look_up)
        self._reported: dict[str, int] = {}
        self._lay_out(RowPacker(columns))
        about = {"format_version": FORMAT_VERSION, "session": uuid.uuid4().hex, "start_time": time.time(), **meta}
        self.session = self._first_session(about)
        self.tensors = _tables_of(self.session, max_tensor_bytes, self.lost)

    def _first_session(self, meta: Mapping[str, Any]) -> SessionWriter:
        """Makes the folder and the file in it. OSError that names the folder."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # The clock may have been set back since an earlier session: a later one still sorts after it.
            return self._session(newest_stamp(self._folder, self._rank), meta)
        except OSError as error:
            reason = f"cannot write a log into {str(self._folder)!r} ({error.strerror}): {way_out(error)}"
            raise type(error)(error.errno, reason) from error

    def _session(self, after: int, meta: Mapping[str, Any]) -> SessionWriter:
        return SessionWriter(self._folder, self._rank, after, self.packer, meta, self.lost.count)

    # -- called by the training thread

    def start(self) -> None:
        self._thread = threading.Thread(target=_work, args=(self,), name="tbnum-log", daemon=True)
        self._thread.start()
        _sinks.add(self)

    def admit(self, rows: int) -> bool:
        """Whether so many more rows may be appended; the rare part of `append_step`."""
        if not self._active:
            return False
        self.attention = self.chunk_steps
        self.lost.say()
        pending = len(self.rows)
        if pending >= self._max_rows:
            self.lost.count("writing too slow", rows)
            return False
        if pending + rows > self.chunk_steps:
            self._nudge()
        return True

    def _look_up(self) -> None:
        """Has the next `append_step` warn."""
        self.attention = 0

    def set_columns(self, columns: Sequence[str]) -> None:
        if not self._active:
            return
        self.lost.say()
        with self._draining:
            self.drain()
            self._lay_out(RowPacker(columns))
            with self._writing:
                self.session.write_session(self.packer)

    def write_event(self, event: Event) -> None:
        if not self._active:
            return
        self.lost.say()
        try:
            with self._writing:
                self.session.write_event(event)
        except Exception as error:
            self.lost.count(f"event not writable ({type(error).__name__})")
        self._nudge()

    def update_meta(self, changes: Mapping[str, Any]) -> None:
        if not self._active:
            return
        self.lost.say()
        with self._draining:
            self.drain()
            with self._writing:
                if "first_step" in changes and (self.session.has_begun or self.tensors.has_begun):
                    self._next_session(changes)
                else:
                    self.session.write_session(**changes)

    def write_table(self, table: TensorTable | HistogramTable) -> None:
        if not self._active:
            return
        self.lost.say()
        if self.tensors.give(table):
            self._nudge()

    def write_batches(self, batches: Sequence[Batch]) -> None:
        if not self._active:
            return
        self.lost.say()
        count = sum(len(ids) for _, ids in batches)
        if self._batch_ids + count > MAX_PENDING_IDS:
            self.lost.count("writing too slow", len(batches))
            return
        self._batch_ids += count
        self._batches.extend(batches)

    def submit(self, call: Callable[[], None]) -> bool:
        if not self._active:
            return False
        waiting = len(self._calls)
        if waiting >= _CALLS_AT_ONCE:
            self._nudge()
            if waiting >= _PENDING_CALLS:
                self.lost.count("dashboards too slow")
                return False
        self._calls.append(call)
        return True

    def flush(self, timeout: float | None) -> bool:
        if not self._active:
            return True
        self.lost.say()
        if not self._works_elsewhere():
            self._drain_all()
            return True
        done = threading.Event()
        self._inbox.put(done)
        finished = done.wait(timeout)
        self.lost.say()
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
        self.lost.say()

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
        deadline = time.monotonic() + self._patience
        reasons: list[threading.Event | object] = []
        with contextlib.suppress(queue.Empty):
            reasons.append(self._inbox.get(timeout=self._patience))
            while True:
                reasons.append(self._inbox.get_nowait())
        self._patience = min(2 * self._patience, self.flush_seconds)
        if _STOP not in reasons:
            self._call(self.ahead, "steps could not be handed on")
        self._drain_all()
        for _ in range(len(self._calls)):
            self._call(self._calls.popleft(), "dashboards failed")
            if len(self.rows) >= self.chunk_steps or time.monotonic() > deadline:
                deadline = time.monotonic() + self.flush_seconds
                self._drain_all()
        with self._draining:
            self._report_dropped()
        for reason in reasons:
            if isinstance(reason, threading.Event):
                reason.set()
        return _STOP not in reasons

    def _call(self, call: Callable[[], None], failure: str) -> None:
        try:
            call()
        except Exception as error:
            self.lost.count(f"{failure} ({type(error).__name__})")

    def _drain_all(self) -> None:
        self.drain()
        with self._draining:  # a new session's tables wait for those of the one before
            self.tensors.drain()

    def drain(self) -> None:
        """Writes the pending rows. About 1 us a row."""
        with self._draining:
            self._nudged = False
            rows = self.rows
            while rows:
                batch = rows[: self.chunk_steps]
                del rows[: len(batch)]
                try:
                    self._write_rows(batch)
                except Exception as error:
                    self.lost.count(f"steps not writable ({type(error).__name__})", len(batch))
            self._write_batches()
            self._report_dropped()

    def _write_batches(self) -> None:
        """The sample ids that wait, after the rows of their steps."""
        batches, self._batches, self._batch_ids = self._batches, [], 0
        try:
            if batches:
                self.session.write_batches(batches)
        except Exception as error:
            self.lost.count(f"sample ids not writable ({type(error).__name__})", len(batches))

    def end(self) -> None:
        """Writes what is pending and that the session ended, and closes the files; once."""
        if not self.session.is_open:
            return
        self._drain_all()
        self.tensors.close()
        with self._draining, self._writing:
            self.session.end("closed")

    def _lay_out(self, packer: RowPacker) -> None:
        self.packer = packer
        self.chunk_steps = min(self._asked_chunk_steps, packer.most_rows)
        self._max_rows = max(2 * self.chunk_steps, _PENDING_BYTES // (56 + 40 * len(packer.layout.names)))

    def _write_rows(self, batch: Sequence[tuple[Any, ...]]) -> None:
        payload, lost = self.packer.pack(batch)
        if lost:
            self.lost.count("step without the columns' values", lost)
        if payload:
            with self._writing:
                self.session.write_rows(np.frombuffer(payload, self.packer.dtype))

    def _next_session(self, changes: Mapping[str, Any]) -> None:
        """The run went back: a new file, which supersedes from its first step. Both locks are held."""
        self.tensors.drain()
        before = self.session
        try:
            session = self._session(before.stamp, {**before.meta, "start_time": time.time(), **changes})
        except OSError as error:  # then the reader has to find out by the steps that fall back
            self.lost.count(trouble(error), 0)
            before.write_session(**changes)
            return
        before.end("rewound")
        left = self.tensors.bytes_left
        self.tensors.close()
        self.session = session
        self.tensors = _tables_of(session, left, self.lost)

    def _report_dropped(self) -> None:
        if self.lost.by_reason == self._reported:
            return
        with self._writing:
            dropped = dict(self.lost.by_reason)
            if self.session.write_dropped(dropped):
                self._reported = dropped

    def forget(self) -> None:
        """Makes the copy that a forked child has of this writer do nothing: the parent writes."""
        self._active = False
        self.attention = 0
        self.rows = []
        self._calls.clear()
        self._inbox = queue.SimpleQueue()
        self._draining = threading.RLock()
        self._writing = threading.RLock()
        self.lost.forget()
        self._thread = None
        self.tensors.forget()
        self.session.close()


def _tables_of(session: SessionWriter, max_bytes: int, lost: Lost) -> TensorsWriter:
    about = {key: session.meta[key] for key in ("format_version", "session")}
    return TensorsWriter(session.tensors_path, about, max_bytes, lost.count)


_WAKE = object()
_STOP = object()

_sinks: Alive[_Sink] = Alive()


def _forget_all() -> None:
    for sink in _sinks:
        sink.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _nothing() -> None:
    pass


def _work(sink: _Sink) -> None:
    """The background thread."""
    while sink.round():
        pass
    sink.end()
