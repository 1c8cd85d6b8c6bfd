"""Spikes of a run that goes on: the same function as when its log is read, over the newest steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tbnum.explain.spikes import LEVEL_VALUES, NEXT, SPIKES, STRIDE, spike_events
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
        self._places: list[int] = []  # of the columns that are used
        self._values = np.empty((0, 0))  # (places, steps), of those that were looked at before
        self._fresh: list[Sequence[Any]] = []  # rows since
        self._decided = -1  # steps up to this one were judged by themselves; a level shows some steps later
        self._known: list[Event] = []

    def steps(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        if columns is not self._columns:
            self._columns = columns
            self._places = [at for at, name in enumerate(columns) if StepColumn.parse(name).name in USED]
            self._values = np.empty((len(self._places), 0))
            self._fresh.clear()
        self._fresh += rows
        if len(self._fresh) >= KEPT:  # nobody asks
            self._take_in()

    def new(self) -> list[Event]:
        """Spikes that became known since the last call: `NEXT` steps after one began, a level some more later."""
        self._take_in()
        if self._values.shape[1] < BASELINE + NEXT:
            return []
        record = _Rows([self._columns[at] for at in self._places], self._values)
        until = int(record.steps["step"][-NEXT])
        since = self._decided - 2 * LEVEL_VALUES
        found = [event for event in spike_events(record) if since < event.step <= until and not self._knows(event)]
        self._known = [event for event in (*self._known, *found) if event.step > until - 4 * STRIDE]
        self._decided = until
        return found

    def _knows(self, event: Event) -> bool:
        return any(
            event.kind == known.kind and event.optimizer == known.optimizer and event.step <= known.step + 2 * STRIDE
            for known in self._known
        )

    def _take_in(self) -> None:
        if self._fresh:
            fresh = np.array([[row[at] for row in self._fresh] for at in self._places], np.float64)  # None is NaN
            self._values = np.concatenate((self._values, fresh), axis=1)[:, -KEPT:]
            self._fresh.clear()


class _Rows:
    """Rows as a record has them."""

    def __init__(self, columns: Sequence[str], values: np.ndarray) -> None:
        self.steps: dict[str, np.ndarray] = dict(zip(columns, values, strict=True))
        for name in self.steps:
            if StepColumn.parse(name).name == "skipped":
                self.steps[name] = self.steps[name] > 0
        self.steps["step"] = self.steps["step"].astype(np.int64)
        self.raw_events: Sequence[Event] = ()
        self.meta: Mapping[str, Any] = {}
