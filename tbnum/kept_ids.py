"""Which sample ids go to the log: all of small steps; of large ones those around events, and of the last steps."""

from __future__ import annotations

from collections import deque

import numpy as np

from tbnum.log.batches import Batch, batch_hash
from tbnum.log.part_log import PartLog
from tbnum.log.writer import LogWriter

__all__ = ["KeptIds"]

IDS_A_STEP = 64
"""Up to so many ids a step, all are kept: 64 of 16 bits take as much as the step's other columns."""

STEPS_AROUND = 32
"""Steps before an event, and last ones of a run, whose ids are kept however many they are: as of gradient norms."""

STEPS_AFTER = 4

STEPS_REMEMBERED = 128
"""Steps whose ids stay in memory: a spike is found up to 64 steps after it came."""


class KeptIds:
    """Takes the ids of each step, in order. 5 us a step; nothing is written on the calling thread."""

    def __init__(self, log: LogWriter | PartLog, *, keep_all: bool) -> None:
        self._log = log
        self._keep_all = keep_all
        self._recent: deque[Batch] = deque(maxlen=STEPS_REMEMBERED)  # large ones that may still be of interest
        self._after = 0  # large steps that follow an event, to come

    def step(self, step: int, ids: np.ndarray | None) -> int:
        """The hash of the ids (N,) of a step, for its row; 0 where they are unknown."""
        follows_an_event, self._after = self._after > 0, max(0, self._after - 1)
        if ids is None:
            return 0
        if self._keep_all or follows_an_event or len(ids) <= IDS_A_STEP:
            self._log.write_batches([(step, ids)])
        else:
            self._recent.append((step, ids))
        return batch_hash(ids)

    def unknown(self, steps: int) -> None:
        """So many steps passed whose ids are unknown."""
        self._after = max(0, self._after - steps)

    def event(self, first_step: int | None = None) -> None:
        """Something happened: the ids of the last `STEPS_AROUND` steps, or those from a step on, are kept; and of those
        that follow.
        """
        self.keep_recent(first_step)
        self._after = STEPS_AFTER

    def went_back(self) -> None:
        """The run goes on from an earlier step, or in another file: what is recent is superseded."""
        self._recent.clear()
        self._after = 0

    def keep_recent(self, first_step: int | None = None) -> None:
        """Hands the ids of the last steps to the log: at the end of a run, too."""
        if not self._recent:
            return
        first = self._recent[-1][0] - STEPS_AROUND + 1 if first_step is None else first_step
        self._log.write_batches([batch for batch in self._recent if batch[0] >= first])
        earlier = [batch for batch in self._recent if batch[0] < first]
        self._recent.clear()
        self._recent.extend(earlier)
