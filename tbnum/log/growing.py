"""Columns of steps in memory, which grow as a file does."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from tbnum.log.schema import Trailer, column

__all__ = ["GrowingColumns"]


class GrowingColumns:
    """Appending is amortised, and views that were given out keep their content."""

    def __init__(self) -> None:
        self.count = 0
        self._capacity = 0
        self._columns: dict[str, np.ndarray] = {}
        self.provide(("step",))

    def views(self) -> dict[str, np.ndarray]:
        """Read-only columns, each (S,)."""
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
                    values[at : at + len(block)] = block[name] if name in names else column(name).unknown
        self.count += len(rows)

    def extend(self, other: GrowingColumns, begin: int, end: int) -> None:
        """Appends rows [begin, end) of `other`."""
        self.provide(other._columns, end - begin)
        to = slice(self.count, self.count + end - begin)
        for name, values in self._columns.items():
            source = other._columns.get(name)
            values[to] = column(name).unknown if source is None else source[begin:end]
        self.count = to.stop

    def last_alone(self) -> GrowingColumns:
        """The last row, in memory of its own."""
        alone = GrowingColumns()
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
        room[len(values[: self.count]) : self.count] = column(name).unknown
        return room
