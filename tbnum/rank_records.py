"""The records of a run's ranks, as each rank sees them: its own log, those of the lower ones, and earlier sessions.

No rank but the lowest lists the folder, which may hold thousands of files: the others read a list of its sessions.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tbnum.caller import warn
from tbnum.log.folder import list_files
from tbnum.log.part_log import PartLog
from tbnum.log.reader import Run
from tbnum.log.session_list import note_session, noted_sessions
from tbnum.log.writer import LogWriter
from tbnum.observe.ranks import Notice, rank_and_world_size
from tbnum.observe.records import StepRecord

__all__ = ["RankRecords"]

_NEEDED, _KNOWN = "needed", "known"  # the loss of another rank than the lowest


class RankRecords:
    """Of one rank. `recording`: how many ranks record, the lowest ones; None: all."""

    def __init__(self, folder: Path, recording: int | None) -> None:
        self.rank, self.world_size = rank_and_world_size()
        self._folder = folder
        self._start_time = time.time()
        self._recording = recording if recording is not None and recording < self.world_size else None
        # Of the lowest rank's loss, for the last one: a pipeline's is there.
        self._about_loss = None if self._recording is None else Notice(f"loss of {folder}")
        self._noted = ""

    def meta(self) -> dict[str, Any]:
        """For the head of the record."""
        partial = {} if self._recording is None else {"recording_ranks": self._recording}
        return {"rank": self.rank, "world_size": self.world_size, **partial}

    def open_log(
        self, columns: Sequence[str], meta: Mapping[str, Any], max_tensor_bytes: int, flush_seconds: float
    ) -> LogWriter | PartLog:
        """Of a rank that does not record, a log that makes no file unless it has to. OSError as `LogWriter`."""
        if self._recording is None or (self.rank or 0) < self._recording:
            log = LogWriter(
                self._folder,
                columns=columns,
                meta=meta,
                rank=self.rank,
                max_tensor_bytes=max_tensor_bytes,
                flush_seconds=flush_seconds,
            )
            self.note(log)
            return log
        is_last = self.rank == self.world_size - 1
        return PartLog(
            self._folder,
            columns=columns,
            meta=meta,
            rank=self.rank,
            flush_seconds=flush_seconds,
            loss_is_needed=self._loss_is_needed if is_last else None,
        )

    def note(self, log: LogWriter | PartLog) -> None:
        """The lowest of several ranks keeps the list of its sessions. Called whenever a session may have begun."""
        if self.rank != 0 or not isinstance(log, LogWriter) or log.path.name == self._noted:
            return
        self._noted = log.path.name
        with contextlib.suppress(OSError):
            earlier = [path.name for path in list_files(self._folder).lowest if path.name != self._noted]
            note_session(self._folder, self._noted, earlier)

    def first_row(self, record: StepRecord, log: LogWriter | PartLog) -> None:
        """The lowest rank's first row shows whether it has a loss; the last rank wants to know."""
        about, self._about_loss = self._about_loss, None if self.rank == 0 else self._about_loss
        if about is not None and self.rank == 0:
            is_unknown = math.isnan(record.loss) and math.isnan(record.micro_batches)
            log.submit(lambda: about.leave(_NEEDED if is_unknown else _KNOWN))

    def _loss_is_needed(self) -> bool | None:
        word = None if self._about_loss is None else self._about_loss.read()
        return None if word is None else word == _NEEDED

    def past(self) -> Run | None:
        """What earlier sessions recorded in this folder; None where there were none."""
        names = noted_sessions(self._folder) if self.rank else None
        if names is not None and len(names) < 2:
            return None
        run = Run(self._folder, combine_ranks=False, files=names)
        return run if len(run.meta.get("sessions", [])) > 1 and run.steps else None

    def look_for_lower_ranks(self) -> None:
        """Warn where ranks write to different folders: each would be a run of its own, and nobody would know why.

        By its first step a rank has reduced gradients with the others, so their records are there. Costs one look for
        the list of sessions; where there is none, a listing of the folder, and of each beside it.
        """
        if not self.rank or noted_sessions(self._folder) is not None:
            return
        try:
            if any(rank < self.rank for rank in _ranks_in(self._folder)):
                return
            beside = [entry.path for entry in os.scandir(self._folder.parent) if entry.is_dir()]
            others = [folder for folder in sorted(beside) if 0 in _ranks_in(folder, since=self._start_time - 600)]
        except OSError:
            return
        seen = f" Rank 0 may be the one that writes to {others[-1]!r}." if others else ""
        warn(
            f"rank {self.rank} of {self.world_size} records into {str(self._folder)!r}, where no lower rank does: "
            "this makes it a run of its own, and norms of sharded tensors stay unknown. Give every "
            f"rank the same logdir, on a file system that all of them reach.{seen}"
        )


def _ranks_in(folder: str | os.PathLike[str], since: float = 0) -> set[int]:
    """The ranks that have a record in a folder, of a session that began after `since`."""
    found = (re.fullmatch(r"(\d+)\..*\.rank(\d+)\.tbnum", name) for name in os.listdir(folder))
    return {int(name[2]) for name in found if name is not None and int(name[1]) / 1000 >= since}
