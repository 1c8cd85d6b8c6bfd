"""What the lowest rank's record lacks and another rank's has: a pipeline's loss, the last steps of uneven ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tbnum.log.columns import StepColumn
from tbnum.log.files import Place
from tbnum.log.folder import first_meta, last_trailer
from tbnum.log.growing import GrowingColumns
from tbnum.log.names import parse_name
from tbnum.log.ranks import aligned, match_sessions, same_tensors
from tbnum.log.session_file import SessionFile
from tbnum.log.sessions import Sessions

__all__ = ["RankGaps"]

_OF_LOSS = frozenset({"step", "loss", "micro_batches"})


class RankGaps:
    """Reads of the other ranks' files the heads and ends, some 0.2 ms a file, and of few all that is in them."""

    def __init__(self, folder: Place, own: Sessions) -> None:
        """`own`: the lowest rank's sessions."""
        self._folder = folder
        self._own = own
        self._read: dict[tuple[str, bool], SessionFile] = {}
        self._metas: dict[str, dict[str, Any]] = {}  # as the head of each file has it

    def refresh(self) -> bool:
        """Reads what was appended to the files that were needed. True where anything was."""
        return any([file.refresh() for file in self._read.values()])

    def losses(self, others: Mapping[int, Sequence[str]], steps: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Columns of the loss in place of those in `steps`, at the steps of sessions whose lowest rank has none.

        It is the lowest rank's that has one, where the ranks hold different tensors: replicas each have their own.
        """
        found: dict[str, np.ndarray] = {}
        step, loss = steps.get("step"), steps.get("loss")
        if step is None or loss is None or not len(step) or not others or not np.isnan(loss).any():
            return found
        end = 0
        for taken, names in zip(self._own.taken, self._matching(self._own.chosen, others), strict=True):
            rows = slice(end, end + taken.rows)
            end = rows.stop
            if not taken.rows or not np.isnan(loss[rows]).all():
                continue
            holder = next((name for name in names if self._holds_the_loss(taken.file, name)), None)
            if holder is None:
                continue
            columns = self._file(holder, of_loss=True).steps.views()
            for name in [name for name in columns if StepColumn.parse(name).name in ("loss", "micro_batches")]:
                if name not in found:
                    before = steps.get(name)
                    found[name] = np.full(len(step), math.nan) if before is None else before.copy()
                found[name][rows] = aligned(columns, name, step[rows])
        for values in found.values():
            values.setflags(write=False)
        return found

    def tail(self, others: Mapping[int, Sequence[str]]) -> GrowingColumns | None:
        """The steps after the last one of the lowest rank's newest session, where it ended and another went on.

        They are those of the rank that took most, the lowest of such.
        """
        if not self._own.chosen or not others:
            return None
        last = self._own.chosen[-1]
        ended, after = last.meta.get("ended"), last.steps.last_step()
        if ended != "closed" or after is None:
            return None
        (names,) = self._matching([last], others)
        ends = {name: last_trailer(self._folder / name).last_step for name in names}
        longest = max(ends, key=ends.__getitem__, default=None)  # of equal ones the first
        if longest is None or ends[longest] <= after:
            return None
        steps = self._file(longest, of_loss=False).steps
        tail = GrowingColumns()
        tail.extend(steps, steps.before(after + 1), steps.count)
        return tail

    def _holds_the_loss(self, file: SessionFile, name: str) -> bool:
        if math.isnan(last_trailer(self._folder / name).best_loss):
            return False
        meta = self._meta(name)
        return bool(meta) and not same_tensors(file.meta, meta)

    def _meta(self, name: str) -> dict[str, Any]:
        if name not in self._metas:
            meta = first_meta(self._folder / name)
            if meta is None:
                return {}
            self._metas[name] = meta
        return self._metas[name]

    def _matching(self, own: Sequence[SessionFile], others: Mapping[int, Sequence[str]]) -> list[list[str]]:
        """For each session of the lowest rank, the files that the other ranks wrote of it, in order of rank."""
        starts = [file.start_time for file in own]
        found: list[list[str]] = [[] for _ in own]
        for _, names in sorted(others.items()):
            theirs = [float(self._meta(name).get("start_time", parse_name(name).unix_ms / 1000)) for name in names]
            for at, match in enumerate(match_sessions(starts, theirs)):
                if match is not None:
                    found[at].append(names[match])
        return found

    def _file(self, name: str, *, of_loss: bool) -> SessionFile:
        file = self._read.setdefault((name, of_loss), SessionFile(self._folder / name, _OF_LOSS if of_loss else None))
        file.refresh()
        return file
