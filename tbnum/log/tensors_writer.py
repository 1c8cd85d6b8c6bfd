"""Writes a session's second file, `*.tensors.tbnum`, in the background of a `LogWriter`."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tbnum.log.record_file import FILE_DELETED, RecordAppender, encode, file_version, frame, trouble
from tbnum.log.schema import (
    REPEAT_EVERY_BYTES,
    TAG_HISTOGRAMS,
    TAG_NAMES,
    TAG_SESSION,
    TAG_TABLE_COLUMNS,
    TAG_TENSORS,
)
from tbnum.log.tensors import HistogramTable, TensorTable, encode_tables, text_id

__all__ = ["TensorsWriter"]

_PENDING_BYTES = 32 << 20
_BYTES_AT_ONCE = 4 << 20  # that wake the thread before its time
_TABLE_BYTES = 2048  # of a table itself, beside its arrays

LIMIT_REACHED = "max_tensor_bytes reached"


class Count(Protocol):
    """Counts what is lost, and may have the training thread warn of it."""

    def __call__(self, reason: str, lost: int = 1, warning: str | None = None) -> None: ...


class _Waiting(NamedTuple):
    table: TensorTable | HistogramTable
    bytes: int

    @property
    def regular(self) -> bool:
        return isinstance(self.table, HistogramTable) or self.table.reason == "interval"


class TensorsWriter:
    """Tables that wait, and the file they go to, which is made for the first of them.

    `give` is called by the training thread; everything else by the background thread, or after its end. Waiting
    tables are bounded at 32 MB, but those of one step are taken together, however large. From `max_bytes` on the file
    takes no more tables of the interval; those around warnings and errors still are written.
    """

    def __init__(self, path: Path, session: Mapping[str, Any], max_bytes: int, count: Count) -> None:
        self.path = path
        self._session = dict(session)
        self._max_bytes = max_bytes
        self._count = count
        self._waiting: deque[_Waiting] = deque()
        self._given_bytes = 0  # each is changed by one thread alone
        self._taken_bytes = 0
        self._newest_step: int | None = None  # of which a table was taken
        self._full = False
        self._file: RecordAppender | None = None
        self._known: set[int] = set()  # names and columns that were written since `_repeat_at` was set
        self._repeat_at = 0
        self._tables = 0  # in the file

    @property
    def has_begun(self) -> bool:
        """Whether it was given a table."""
        return self._given_bytes > 0

    @property
    def bytes_left(self) -> int:
        """How much of `max_bytes` there is still to take."""
        return max(0, self._max_bytes - (0 if self._file is None else self._file.size))

    def give(self, table: TensorTable | HistogramTable) -> bool:
        """Takes a table. True where it should be written at once. About 2 us."""
        entry = _Waiting(table, table.nbytes + _TABLE_BYTES)
        if self._full and entry.regular:
            self._count(LIMIT_REACHED, warning=self._limit_warning())
            return False
        waiting = self._given_bytes - self._taken_bytes
        # A large model has more than that at one step, on whose tables the bound is not: its parameters are larger yet.
        if waiting and waiting + entry.bytes > _PENDING_BYTES and table.step != self._newest_step:
            self._count("writing tensors too slow")
            return True
        self._newest_step = table.step
        self._given_bytes += entry.bytes
        self._waiting.append(entry)
        return not entry.regular or waiting + entry.bytes > _BYTES_AT_ONCE

    def drain(self) -> None:
        """Writes the tables that wait. Some 0.5 ms for one of 150 tensors, most of it without the interpreter lock."""
        file: RecordAppender | None = None
        while self._waiting:
            entry = self._waiting.popleft()
            try:
                file = file or self._opened()  # looked at once for all that wait
                self._write(file, entry)
            except OSError as error:
                file = None
                self._known.clear()  # they may be among what was lost
                self._count(trouble(error))
            except Exception as error:
                self._count(f"tensors not writable ({type(error).__name__})")
            finally:
                self._taken_bytes += entry.bytes

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def forget(self) -> None:
        """Makes a forked child's copy do nothing."""
        self._waiting = deque()
        self.close()

    def _write(self, file: RecordAppender, entry: _Waiting) -> None:
        """OSError where the disk does not take it."""
        tag = TAG_HISTOGRAMS if isinstance(entry.table, HistogramTable) else TAG_TENSORS
        step = max(int(entry.table.step), 0)
        for names, columns, payload in encode_tables(entry.table):
            if file.size >= self._repeat_at:
                self._known.clear()
            reported = []
            if not self._known:
                reported.append(self._record(TAG_SESSION, json.dumps(self._session), step))
            texts = {text_id(names): (TAG_NAMES, names), text_id(columns): (TAG_TABLE_COLUMNS, columns)}
            fresh = texts.keys() - self._known
            reported += [self._record(*texts[each], step) for each in sorted(fresh)]
            records = b"".join([*reported, self._record(tag, payload, step)])
            if entry.regular and file.size + len(records) > self._max_bytes:
                self._full = True
                self._count(LIMIT_REACHED, warning=self._limit_warning())
                return
            file.append(records)
            if not self._known:
                # Names of many tensors are long: they take at most a twentieth of the file.
                self._repeat_at = file.size + max(REPEAT_EVERY_BYTES, 20 * sum(map(len, reported)))
            self._known |= fresh
            self._tables += 1

    def _opened(self) -> RecordAppender:
        if self._file is None:
            file = RecordAppender(self.path)
            renewed = True
        else:
            file = self._file
            renewed = file.renew()
            if renewed:
                self._count(FILE_DELETED, self._tables)
        if renewed:
            self._known.clear()
            self._repeat_at = self._tables = 0
            self._full = False
            if file.size == 0:
                try:
                    file.append(frame(file_version(time.time())))
                except OSError:
                    file.close()
                    self._file = None
                    raise
        self._file = file
        return file

    def _record(self, tag: str, payload: bytes | str, step: int) -> bytes:
        return frame(encode(tag, payload, trailer=b"", step=step, wall_time=time.time()))

    def _limit_warning(self) -> str:
        return (
            f"{self.path} has reached max_tensor_bytes={self._max_bytes}: it takes no more statistics and histograms "
            "of the interval, but those around warnings and failures, and the steps go on in their own file. Raise "
            "max_tensor_bytes or tensor_interval to have more. This is said once."
        )
