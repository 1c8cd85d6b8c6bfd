"""Reads what the writer wrote: a `Run` gives the steps and events of a folder.

A run is a folder. Each process that wrote into it left one record file, its session, or several, where it went back
to a checkpoint. `tbnum.log.superseded` decides what of a session counts once later ones took its steps again.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tbnum.log.checksums import Checksums
from tbnum.log.files import RemotePath, place
from tbnum.log.folder import Totals, last_trailer, list_files, order, pick, session_metas, sum_totals, writing_now
from tbnum.log.named import Columns
from tbnum.log.numbering import checked_step
from tbnum.log.rank_gaps import RankGaps
from tbnum.log.ranks import SHARD, Ranks
from tbnum.log.run_ranks import OtherRanks
from tbnum.log.run_tables import RunTables, parameters_of_ranks
from tbnum.log.schema import Event
from tbnum.log.session_file import ExactTotals
from tbnum.log.sessions import Sessions
from tbnum.log.tensors_ranks import RankHistograms, RankTensors
from tbnum.log.tensors_reader import Histograms, Tensors, TensorSeries

__all__ = ["Explain", "Find", "Run", "Totals", "session_metas", "writing_now"]


class Run:
    """One folder's record files, read when first used.

    Methods and properties may be used by several threads. Arrays that were given out stay as they are when the run
    grows: `refresh` makes new ones (mostly longer views of the same memory). A million steps take about 0.2 s and
    130 MB at 15 columns.

    Of several processes, `steps` and `events` are the lowest rank's; a loss that it does not have, as in a pipeline, is
    that of the lowest rank that has one, and steps that it ended before are those of the rank that took most. Norms of
    sharded tensors are put together from the records of all, which takes as long again for each, and memory for
    `RANKS_BYTES` of them at a time; `combine_ranks=False` leaves them unknown.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | RemotePath,
        *,
        name: str = ".",
        session: int | None = None,
        explain: Explain | None = None,
        find: Find | None = None,
        combine_ranks: bool = True,
        files: Sequence[str] | None = None,
    ) -> None:
        """`files`: the names of the record files, where they are known; else the folder is listed."""
        self.name = name
        self.folder = place(folder)
        self._only = files
        self._session = session
        self._explain = explain
        self._find = find
        self._lock = threading.RLock()
        self._loaded = False
        self._version = 0
        self._trouble: list[str] = []  # with the folder as a whole
        self._sessions = Sessions(session)  # of the lowest rank
        self._others = OtherRanks(self.folder, self._sessions, combine=combine_ranks)
        self._gaps = RankGaps(self.folder, self._sessions)
        self._tables = RunTables()
        self._exact = ExactTotals()
        self._derived: dict[str, Any] = {}  # what follows from the files, until they change

    def __repr__(self) -> str:
        return f"Run({self.name!r}, folder={str(self.folder)!r})"

    @property
    def steps(self) -> dict[str, np.ndarray]:
        """Columns by name, one entry a step, equal lengths, `step` strictly increasing, read-only. Unknown is NaN.

        The KeyError of a column that there is not lists those that there are.
        """
        with self._loading():
            columns = Columns(self._once("steps", self._all_columns))
            if not self._sessions.steps.count:
                columns.why_empty = f". {self._trouble[0] if self._trouble else f'{self.folder} holds no step so far'}."
            return columns

    @property
    def ranks(self) -> Ranks | None:
        """What each of several processes recorded; None where there is one. The first use reads all of their files."""
        with self._loading():
            return self._all_ranks() if self._others.are_there else None

    @property
    def raw_events(self) -> list[Event]:
        """The facts of every event, in order of step; none are sampled out."""
        with self._loading():
            return list(self._sessions.events)

    @property
    def events(self) -> list[Event]:
        """The events, explained where the run was read with an explainer. Explained once for each change of the run."""
        with self._loading():
            explain = self._explain
            return list(self.raw_events if explain is None else self._once("events", lambda: list(explain(self))))

    @property
    def findings(self) -> list[Any]:
        """What is worth acting on, gravest first: `tbnum.Finding`s. Empty where the run was read without rules.

        Worked out once for each change of the run; half a second for a million steps.
        """
        with self._loading():
            find = self._find
            return list([] if find is None else self._once("findings", lambda: list(find(self, self.events))))

    @property
    def tensors(self) -> Tensors:
        """Statistics of tensors by column, superseded steps left out: `steps, names, values = tensors["grad_norm"]`.

        The first use looks through the sessions' `*.tensors.tbnum` (some 8 us a table), which nothing else opens;
        values are read when a column is asked for.
        """
        with self._loading():
            found: Tensors = self._once("tensors", self._all_tensors)
            return found

    @property
    def checksums(self) -> Checksums:
        """Checksums of the bits of tensors: `steps, names, values = run.checksums["parameter"]`, (S, P) uint64.

        0 where unknown. Of "gradient" (before clipping), "parameter" (after the update) and the optimizer's moments, as
        its state calls them; where tensors are sharded, of the lowest rank's parts.
        """
        with self._loading():
            return Checksums(Tensors(self._tables.sessions(self._sessions.chosen), {}))

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors that have statistics, in order of first appearance."""
        return self.tensors.names

    @property
    def histograms(self) -> Histograms:
        """Exponent histograms by their source: `histograms["gradient"].at(step)`. As `tensors`, read when asked for."""
        with self._loading():
            found: Histograms = self._once("histograms", self._all_histograms)
            return found

    def batch(self, step: int) -> np.ndarray | None:
        """The ids (N,) int64 of the samples that a step was made of, in the order in which they were used.

        None where they are not known: nobody followed or logged them, or they were not kept. Reads one record, 0.2 ms.

        Raises:
            TypeError: `step` is no whole number.
        """
        with self._loading():
            return self._sessions.batch(checked_step(step))

    @property
    def meta(self) -> dict[str, Any]:
        """What the newest session (or the chosen one) recorded of itself, and besides

        - "sessions": what each session recorded, oldest first, with its "file";
        - "dropped": how many records could not be written, by reason, all sessions together;
        - "concurrent_writers": sessions that recorded at the same time (`tbnum.log.concurrent`);
        - "ranks": file names of the other ranks, by rank; `steps` are the lowest rank's, with what `ranks` combined.
        """
        with self._loading():
            concurrent = self._once("concurrent_writers", self._sessions.concurrent)
            return {**self._sessions.described(), "concurrent_writers": concurrent, "ranks": dict(self._others.names)}

    @property
    def problems(self) -> list[str]:
        """What could not be read, in words; of tables of tensors, once they were asked for."""
        with self._loading():
            files, of_ranks = self._sessions.chosen, []
            if self._others.is_spread:
                files = [*files, *(file for files in self._others.files.values() for file in files)]
                of_ranks = self._all_ranks().problems()
            of_files = [problem for file in files for problem in file.problems()]
            return [*self._trouble, *of_files, *of_ranks, *self._tables.problems(files)]

    @property
    def version(self) -> int:
        """Grows with each change that `refresh` saw."""
        return self._version

    @property
    def totals(self) -> Totals:
        """What a table of runs shows. From the last bytes of each file: about 60 us a file, and nothing is loaded.

        Only a session that is partly superseded has to be read for it, once.
        """
        with self._lock:
            ends = {
                path: last_trailer(path) for path in pick(list_files(self.folder, self._only).lowest, self._session)
            }
            in_order = sorted(ends, key=lambda path: order(path, ends[path].start))
            return sum_totals({path: ends[path] for path in in_order}, self._exact.of)

    def refresh(self) -> bool:
        """Reads what was appended since the last time, and new files. True where anything changed.

        Costs a listing of the folder and a look at each file where nothing did. Else it takes time for what is new,
        not for what was there, unless steps got superseded.
        """
        with self._lock:
            first_time = not self._loaded
            self._loaded = True
            changed = self._find_files()
            changed = self._sessions.read() or changed
            if self._others.files:
                changed = self._others.read() or changed
            changed = self._gaps.refresh() or changed
            changed = self._tables.refresh() or changed
            if changed:
                self._sessions.join(self._gaps.tail(self._others.names))
                self._version += 1
                self._derived.clear()
                self._others.forget()
            return bool(self._sessions.files) if first_time else changed

    @property
    def steps_read(self) -> int:
        """How many steps were read so far. Waits for nobody, so it shows how far a `refresh` in another thread is."""
        return sum(file.steps.count for file in self._sessions.files)

    @property
    def bytes_of_ranks(self) -> int:
        """What the columns of the other ranks take in memory now: `RANKS_BYTES` and those of one rank at most."""
        with self._lock:
            return self._others.nbytes

    # -- inside

    def _loading(self) -> threading.RLock:
        with self._lock:
            if not self._loaded:
                self.refresh()
                if self._trouble and isinstance(self.folder, Path) and not self.folder.exists():
                    self._loaded = False
                    raise FileNotFoundError(
                        f"the folder of run {self.name!r} is not there: {self._trouble[0]}. "
                        "tbnum.read() lists the runs that there are now."
                    )
        return self._lock

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, worked out once for each change of the run."""
        if name not in self._derived:
            self._derived[name] = make()
        return self._derived[name]

    def _find_files(self) -> bool:
        paths, others, trouble = list_files(self.folder, self._only)
        changed = trouble != self._trouble
        self._trouble = trouble
        changed = self._sessions.found(paths) or changed
        return self._others.found(others) or changed

    def _own_columns(self) -> dict[str, np.ndarray]:
        """As the lowest rank has them."""
        return {name: values for name, values in self._sessions.steps.views().items() if not name.endswith(SHARD)}

    def _all_columns(self) -> dict[str, np.ndarray]:
        columns = self._own_columns()
        columns |= self._gaps.losses(self._others.names, columns)
        return columns | self._all_ranks().combined() if self._others.is_spread else columns

    def _all_ranks(self) -> Ranks:
        ranks: Ranks = self._once("ranks", lambda: self._others.beside(self._own_columns()))
        ranks.checksums = self._checksums_of_ranks
        return ranks

    def _checksums_of_ranks(self) -> Iterator[tuple[int, TensorSeries]]:
        with self._lock:
            sessions = self._others.sessions()
        return parameters_of_ranks(self._tables, sessions)

    def _all_tensors(self) -> Tensors:
        elements = _elements(self.meta.get("parameters"))
        if not self._others.is_spread:
            return Tensors(self._tables.sessions(self._sessions.chosen), elements)
        ranks = self._all_ranks()
        return RankTensors(ranks, self._tables.sessions_of_ranks(self._others.sessions()), elements)

    def _all_histograms(self) -> Histograms:
        if not self._others.is_spread:
            return Histograms(self._tables.sessions(self._sessions.chosen))
        return RankHistograms(self._all_ranks(), self._tables.sessions_of_ranks(self._others.sessions()))


Find = Callable[[Run, Sequence[Event]], Sequence[Any]]
"""Gives what is worth acting on in a run with its explained events."""

Explain = Callable[[Run], list[Event]]
"""Gives a run's events their severity, cause, message and remedy. May use `run.raw_events`, `steps` and `meta`."""


def _elements(shapes: object) -> dict[str, int]:
    """How many elements each tensor has, where the log has their shapes."""
    return {name: math.prod(shape) for name, shape in shapes.items()} if isinstance(shapes, dict) else {}
