"""Writes one session's record file: `<unix-ms>.<host>.<pid>[.rank<r>].tbnum`."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tbnum.log.batches import Batch, encode_batches
from tbnum.log.event_rows import STEP_KINDS, as_rows, rows_of
from tbnum.log.json_text import event_text, session_text
from tbnum.log.names import host_name
from tbnum.log.record_file import FILE_DELETED, RecordAppender, encode, file_version, frame, trouble
from tbnum.log.row_packer import RowPacker
from tbnum.log.schema import (
    ENDED_CLOSED,
    ENDED_CRASH,
    MAX_EVENT_BYTES,
    RECORD_SUFFIX,
    REPEAT_EVERY_BYTES,
    REWOUND,
    TAG_BATCHES,
    TAG_DROPPED,
    TAG_EVENT,
    TAG_SCHEMA,
    TAG_SESSION,
    TAG_STEPS,
    TENSORS_SUFFIX,
    UNBOUND_KINDS,
    Event,
    Trailer,
)
from tbnum.log.session_list import noted_sessions

__all__ = ["SessionWriter", "newest_stamp"]

MAX_BATCH_IDS = 100_000  # in one record, some; a record stays far below MAX_RECORD_BYTES

_EVENT_LENGTHS = (None, 400, 100, 25, 6, 0)  # to which an event's texts are shortened, until it fits


def newest_stamp(folder: Path, rank: int | None = None) -> int:
    """The newest time in the names of a folder's sessions, in ms; 0 where it has none.

    The lowest rank lists the folder; the others go by the list of its sessions.
    """
    names = (noted_sessions(folder) or []) if rank else os.listdir(folder)
    found = [int(name.split(".")[0]) for name in names if re.match(r"\d+\..*\.tbnum$", name)]
    return max(found, default=0)


class SessionWriter:
    """One session's record file, and what its records are about.

    Only the constructor raises because of the disk; from then on what could not be written is counted by `count`.
    One thread at a time may call: which, is the caller's business.
    """

    def __init__(
        self,
        folder: Path,
        rank: int | None,
        after: int,
        packer: RowPacker,
        meta: Mapping[str, Any],
        count: Callable[[str, int], None],
    ) -> None:
        """Makes the file, named by a time later than `after`, in ms, and writes how it begins. OSError otherwise."""
        self.meta = dict(meta)
        self.packer = packer
        self.stamp = max(time.time_ns() // 1_000_000, after + 1)
        self._count = count
        self._totals = Trailer()  # of the rows in the file
        self._early: list[Event] = []  # which report steps beyond those
        self._session_text: str | None = None
        self._repeat_at = 0
        self._file: RecordAppender | None = None
        suffix = RECORD_SUFFIX if rank is None else f".rank{rank}{RECORD_SUFFIX}"
        while self._file is None:
            self.path = folder / f"{self.stamp}.{host_name()}.{os.getpid()}{suffix}"
            try:
                self._file = RecordAppender(self.path, new=True)
            except FileExistsError:
                self.stamp += 1
        try:
            self._file.append(frame(file_version(time.time())) + self._session_frames())
        except OSError:
            self._file.close()
            os.unlink(self.path)
            raise

    @property
    def tensors_path(self) -> Path:
        return self.path.with_name(self.path.name.removesuffix(RECORD_SUFFIX) + TENSORS_SUFFIX)

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def has_begun(self) -> bool:
        """Whether it has a step or an event that supersedes earlier sessions."""
        return self._totals.start >= 0

    def write_session(self, packer: RowPacker | None = None, **changes: Any) -> None:
        """Writes what the session says about itself again, with `changes`; later rows are packed by `packer`."""
        self.packer = packer or self.packer
        self.meta.update(changes)
        self._session_text = None
        if self._ready():
            self._append(self._session_frames())

    def write_rows(self, rows: np.ndarray) -> None:
        """Writes packed rows as one chunk."""
        if not self._ready(lost=len(rows)):
            return
        before, payload = (self._totals, self._early), rows.tobytes()
        self._totals = totals = _after(self._totals, rows, self._started)
        self._early = [event for event in self._early if event.step > totals.last_step]
        trailer = self._trailer()._replace(schema_id=self.packer.schema_id, rows=len(rows)).pack()
        step, wall_time = max(totals.last_step, 0), totals.last_wall_time
        record = frame(encode(TAG_STEPS, payload, trailer=trailer, step=step, wall_time=wall_time))
        if self._file is not None and self._file.size >= self._repeat_at:
            record = self._session_frames() + record
        if not self._append(record, lost=len(rows)):
            self._totals, self._early = before

    def write_batches(self, batches: Sequence[Batch]) -> None:
        """Writes the sample ids of some steps, whose rows are written already, as one record or several."""
        batches = sorted(batches, key=lambda batch: batch[0])
        while batches:
            longest = max(1, MAX_BATCH_IDS // max(1, *(len(ids) for _, ids in batches)))
            part, batches = batches[:longest], batches[longest:]
            if self._ready(lost=len(part)):
                step, trailer = part[0][0], self._totals.pack()
                record = encode(TAG_BATCHES, encode_batches(part), trailer=trailer, step=step, wall_time=time.time())
                self._append(frame(record), lost=len(part))

    def write_event(self, event: Event) -> None:
        """Writes the facts of `event` by one write of at most MAX_EVENT_BYTES."""
        if not self._ready(lost=1):
            return
        totals = self._totals
        if event.kind == "crash":
            self._totals = totals._replace(flags=totals.flags | ENDED_CRASH)
        elif event.kind not in UNBOUND_KINDS:
            self._totals = totals._replace(start=self._started(event.step))
        if event.kind in STEP_KINDS:
            self._early.append(event)
        trailer, step, wall_time = self._trailer().pack(), max(int(event.step), 0), float(event.wall_time)
        for longest in _EVENT_LENGTHS:
            text = event_text(event, longest)
            record = frame(encode(TAG_EVENT, text, trailer=trailer, step=step, wall_time=wall_time))
            if len(record) <= MAX_EVENT_BYTES:
                self._append(record, lost=1)
                return
        raise ValueError("the event does not fit a record")

    def write_dropped(self, by_reason: Mapping[str, int]) -> bool:
        """Whether it is on disk that so many records are not."""
        if not self._ready():
            return False
        trailer, text = self._trailer().pack(), json.dumps(by_reason)
        return self._append(frame(encode(TAG_DROPPED, text, trailer=trailer, step=0, wall_time=time.time())))

    def end(self, how: str) -> None:
        """Writes that the session ended, and closes the file. `how`: "closed", unless a crash was recorded."""
        if self._totals.flags & ENDED_CRASH:
            how = "crash"
        else:
            self._totals = self._totals._replace(flags=self._totals.flags | ENDED_CLOSED)
        self.write_session(end_time=time.time(), ended=how, closed=True)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    # -- records

    def _trailer(self) -> Trailer:
        """The running totals as a reader has them: with the steps that an event alone reports."""
        rows = rows_of(self._early, self._totals.last_step, self.packer.layout.names) if self._early else {}
        return _after(self._totals, as_rows(rows.values(), _IN_TOTALS), self._started) if rows else self._totals

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
        """Session and schema. Each names the columns, so that one lost record costs no chunk."""
        layout = {"columns": self.packer.layout.names, "stored": self.packer.layout.stored}
        if self._session_text is None:
            self._session_text = session_text({**self.meta, **layout})
        schema = json.dumps({"session": self.meta.get("session"), **layout})
        trailer, step, wall_time = self._trailer().pack(), max(self._totals.last_step, 0), time.time()
        frames = b"".join(
            frame(encode(tag, text, trailer=trailer, step=step, wall_time=wall_time))
            for tag, text in ((TAG_SESSION, self._session_text), (TAG_SCHEMA, schema))
        )
        size = self._file.size if self._file is not None else 0
        self._repeat_at = size + max(REPEAT_EVERY_BYTES, 20 * len(frames))
        return frames

    # -- the file

    def _ready(self, lost: int = 0) -> bool:
        """Whether there is a file to append to; where there is none, `lost` records are counted. 1 us.

        A file that was deleted is begun again if its folder is there.
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
        """Appends whole records by one write. Where that fails, `lost` of them are counted."""
        assert self._file is not None
        try:
            self._file.append(records)
            return True
        except OSError as error:
            self._repeat_at = 0  # a lost session or schema record comes again with the next chunk
            self._count(trouble(error), lost)
            return False


_IN_TOTALS = ("step", "wall_time", "loss", "loss_scale", "skipped")


def _after(totals: Trailer, rows: np.ndarray, started: Callable[[int], int]) -> Trailer:
    """The running totals with `rows` added. Some 30 us, whatever the number of rows."""
    names = rows.dtype.names or ()

    def present(name: str) -> np.ndarray:
        column = rows[name] if name in names else np.empty(0)
        known: np.ndarray = column[~np.isnan(column)]
        return known

    changes: dict[str, Any] = {"steps": totals.steps + len(rows)}
    if "step" in names:
        steps = rows["step"]
        changes["last_step"] = int(steps[-1])
        if totals.first_step < 0:
            changes["first_step"] = int(steps[0])
        changes["start"] = started(int(steps[0]))
        if steps[0] <= totals.last_step or (steps[1:] <= steps[:-1]).any():
            changes["flags"] = totals.flags | REWOUND
    if "skipped" in names:
        changes["skipped_steps"] = totals.skipped_steps + int(np.count_nonzero(rows["skipped"]))
    scales = present("loss_scale")
    if len(scales):
        changes["last_loss_scale"] = float(scales[-1])
    losses = present("loss")
    losses = losses[np.isfinite(losses)]
    if len(losses):
        changes["best_loss"] = float(np.fmin(losses.min(), totals.best_loss))
    times = present("wall_time")
    if len(times):
        changes["last_wall_time"] = float(times[-1])
        if math.isnan(totals.first_wall_time):
            changes["first_wall_time"] = float(times[0])
    return totals._replace(**changes)
