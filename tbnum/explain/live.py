"""Spikes of a run that goes on: the same function as when its log is read, over the newest steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tbnum.explain.spikes import NEXT, SPIKES, spike_events
from tbnum.explain.thresholds import BASELINE
from tbnum.log.columns import StepColumn
from tbnum.log.schema import Event

__all__ = ["LiveSpikes"]

KEPT = 6 * BASELINE  # rows: what is usual before a spike, and the spike itself
USED = frozenset({"step", "wall_time", "skipped", "lr", *SPIKES.values()})


class LiveSpikes:
    """Memory O(KEPT). A step is an append; `new` takes some 0.2 ms, and is meant for every 64 steps or so."""

    def __init__(self) -> None:
        self._columns: Sequence[str] = ()
        self._rows: deque[Sequence[Any]] = deque(maxlen=KEPT)
        self._decided = -1  # steps up to this one were judged

    def step(self, columns: Sequence[str], row: Sequence[Any]) -> None:
        if columns is not self._columns:
            self._columns = columns
            self._rows.clear()
        self._rows.append(row)

    def new(self) -> list[Event]:
        """Spikes that began since the last call. One is known `NEXT` steps after it began."""
        if len(self._rows) < BASELINE + NEXT:
            return []
        record = _Rows(self._columns, self._rows)
        until = int(record.steps["step"][-NEXT])
        found = [event for event in spike_events(record) if self._decided < event.step <= until]
        self._decided = until
        return found


class _Rows:
    """Rows as a record has them."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Any]] | deque[Sequence[Any]]) -> None:
        places = [at for at, name in enumerate(columns) if StepColumn.parse(name).name in USED]
        values = np.array([[math.nan if row[at] is None else row[at] for at in places] for row in rows], np.float64)
        self.steps: dict[str, np.ndarray] = {columns[at]: values[:, place] for place, at in enumerate(places)}
        for name in self.steps:
            if StepColumn.parse(name).name == "skipped":
                self.steps[name] = self.steps[name] > 0
        self.steps["step"] = self.steps["step"].astype(np.int64)
        self.raw_events: Sequence[Event] = ()
        self.meta: Mapping[str, Any] = {}
