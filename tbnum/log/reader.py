"""Reads what the writer wrote: a `Run` gives the steps and events of a folder.

A run is a folder. Each process that wrote into it left one record file, its session, or several, where it went back
to a checkpoint. `tbnum.log.superseded` decides what of a session counts once later ones took its steps again.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tbnum.log.checksums import Checksums
from tbnum.log.concurrent import concurrent_writers
from tbnum.log.files import RemotePath, place
from tbnum.log.folder import Totals, last_trailer, list_files, order, pick, session_metas, sum_totals, writing_now
from tbnum.log.joined import JoinedSteps
from tbnum.log.named import Columns
from tbnum.log.rank_gaps import RankGaps
from tbnum.log.ranks import SHARD, Ranks
from tbnum.log.run_ranks import RANKS_BYTES, OtherRanks, Taken
from tbnum.log.run_tables import RunTables, parameters_of_ranks
from tbnum.log.schema import Event
from tbnum.log.session_file import ExactTotals, SessionFile, batch_of, dropped_of, events_of
from tbnum.log.superseded import cuts
from tbnum.log.tensors_file import Session
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
        self._files: list[SessionFile] = []  # of the lowest rank, oldest first
        self._joined = JoinedSteps()
        self._taken: list[Taken] = []  # how much of each chosen file counts
        self._others = OtherRanks(self.folder, combine=combine_ranks)
        self._gaps = RankGaps(self.folder)
        self._tables = RunTables()
        self._events: list[Event] = []
        self._exact = ExactTotals()
        self._forget()

    def _forget(self) -> None:
        """What follows from the files is worked out again when it is asked for."""
        self._views: dict[str, np.ndarray] | None = None
        self._concurrent: list[Mapping[str, Any]] | None = None
        self._ranks: Ranks | None = None
        self._explained: list[Event] | None = None
        self._findings: list[Any] | None = None
        self._tensors: Tensors | None = None
        self._histograms: Histograms | None = None
        self._others.forget()

    def __repr__(self) -> str:
        return f"Run({self.name!r}, folder={str(self.folder)!r})"

    @property
    def steps(self) -> dict[str, np.ndarray]:
        """Columns by name, one entry a step, equal lengths, `step` strictly increasing, read-only. Unknown is NaN.

        The KeyError of a column that there is not lists those that there are.
        """
        with self._loading():
            if self._views is None:
                self._views = self._own_columns()
                self._views |= self._gaps.losses(self._taken, self._others.names, self._views)
                if self._is_spread():
                    self._views.update(self._all_ranks().combined())
            columns = Columns(self._views)
            if not self._joined.steps.count:
                columns.why_empty = f". {self._trouble[0] if self._trouble else f'{self.folder} holds no step so far'}."
            return columns

    @property
    def ranks(self) -> Ranks | None:
        """What each of several processes recorded; None where there is one. The first use reads all of their files."""
        with self._loading():
            return self._all_ranks() if self._others.names or self._world_size() > 1 else None

    @property
    def raw_events(self) -> list[Event]:
        """The facts of every event, in order of step; none are sampled out."""
        with self._loading():
            return list(self._events)

    @property
    def events(self) -> list[Event]:
        """The events, explained where the run was read with an explainer. Explained once for each change of the run."""
        with self._loading():
            if self._explained is None:
                self._explained = list(self._explain(self)) if self._explain is not None else list(self._events)
            return list(self._explained)

    @property
    def findings(self) -> list[Any]:
        """What is worth acting on, gravest first: `tbnum.Finding`s. Empty where the run was read without rules.

        Worked out once for each change of the run; half a second for a million steps.
        """
        with self._loading():
            if self._findings is None:
                self._findings = list(self._find(self, self.events)) if self._find is not None else []
            return list(self._findings)

    @property
    def tensors(self) -> Tensors:
        """Statistics of tensors by column, superseded steps left out: `steps, names, values = tensors["grad_norm"]`.

        The first use looks through the sessions' `*.tensors.tbnum` (some 8 us a table), which nothing else opens;
        values are read when a column is asked for.
        """
        with self._loading():
            if self._tensors is None:
                elements = _elements(self.meta.get("parameters"))
                if self._is_spread():
                    ranks = self._all_ranks()
                    self._tensors = RankTensors(ranks, self._tables_of_ranks(), elements)
                else:
                    self._tensors = Tensors(self._tables.sessions(self._chosen()), elements)
            return self._tensors

    @property
    def checksums(self) -> Checksums:
        """Checksums of the bits of tensors: `steps, names, values = run.checksums["parameter"]`, (S, P) uint64.

        0 where unknown. Of "gradient" (before clipping), "parameter" (after the update) and the optimizer's moments, as
        its state calls them; where tensors are sharded, of the lowest rank's parts.
        """
        with self._loading():
            return Checksums(Tensors(self._tables.sessions(self._chosen()), {}))

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors that have statistics, in order of first appearance."""
        return self.tensors.names

    @property
    def histograms(self) -> Histograms:
        """Exponent histograms by their source: `histograms["gradient"].at(step)`. As `tensors`, read when asked for."""
        with self._loading():
            if self._histograms is None:
                if self._is_spread():
                    ranks = self._all_ranks()
                    self._histograms = RankHistograms(ranks, self._tables_of_ranks())
                else:
                    self._histograms = Histograms(self._tables.sessions(self._chosen()))
            return self._histograms

    def batch(self, step: int) -> np.ndarray | None:
        """The ids (N,) int64 of the samples that a step was made of, in the order in which they were used.

        None where they are not known: nobody followed or logged them, or they were not kept. Reads one record, 0.2 ms.
        """
        with self._loading():
            rows = self._joined.steps.views().get("step", np.empty(0, np.int64))
            row = int(np.searchsorted(rows, step))
            is_there = row < len(rows) and rows[row] == step
            return batch_of(self._chosen(), step) if is_there else None

    @property
    def meta(self) -> dict[str, Any]:
        """What the newest session (or the chosen one) recorded of itself, and besides

        - "sessions": what each session recorded, oldest first, with its "file";
        - "dropped": how many records could not be written, by reason, all sessions together;
        - "concurrent_writers": sessions that recorded at the same time (`tbnum.log.concurrent`);
        - "ranks": file names of the other ranks, by rank; `steps` are the lowest rank's, with what `ranks` combined.
        """
        with self._loading():
            chosen = self._chosen()
            if self._concurrent is None:
                self._concurrent = concurrent_writers([file.trajectory() for file in chosen])
            return {
                **(chosen[-1].described() if chosen else {}),
                "sessions": [file.described() for file in self._files],
                "dropped": dropped_of(chosen),
                "concurrent_writers": self._concurrent,
                "ranks": dict(self._others.names),
            }

    @property
    def problems(self) -> list[str]:
        """What could not be read, in words; of tables of tensors, once they were asked for."""
        with self._loading():
            files = self._chosen()
            if self._is_spread():
                files = [*files, *(file for files in self._others.files.values() for file in files)]
            problems = self._trouble + [problem for file in files for problem in file.problems()]
            if self._is_spread():
                problems += self._all_ranks().problems()
            return problems + self._tables.problems(files)

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
            for file in self._files:
                changed = file.refresh() or changed
            if self._others.files:
                changed = self._others.read(self._is_spread(), RANKS_BYTES) or changed
            changed = self._gaps.refresh() or changed
            changed = self._tables.refresh() or changed
            self._files.sort(key=lambda file: order(file.path, file.start))
            if changed:
                self._combine()
                self._version += 1
                self._forget()
            return bool(self._files) if first_time else changed

    @property
    def steps_read(self) -> int:
        """How many steps were read so far. Waits for nobody, so it shows how far a `refresh` in another thread is."""
        return sum(file.steps.count for file in self._files)

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

    def _chosen(self) -> list[SessionFile]:
        return pick(self._files, self._session)

    def _find_files(self) -> bool:
        known = {file.path: file for file in self._files}
        paths, others, trouble = list_files(self.folder, self._only)
        changed = known.keys() != set(paths) or trouble != self._trouble
        self._files = [known.get(path) or SessionFile(path) for path in paths]
        self._trouble = trouble
        return self._others.found(others) or changed

    def _combine(self) -> None:
        """Puts the sessions together: of each, what no later one supersedes."""
        files = self._chosen()
        starts = cuts([file.start for file in files])
        self._taken = [Taken(file, file.steps.before(cut)) for file, cut in zip(files, starts, strict=True)]
        counted = {taken.file.path: taken.rows for taken in self._taken}
        parts = [(file.steps, counted.get(file.path, 0)) for file in self._files]
        tail = self._gaps.tail(files[-1], self._others.names) if files else None
        if tail is not None:
            parts.append((tail, tail.count))
            self._taken[-1] = self._taken[-1]._replace(rows=self._taken[-1].rows + tail.count)
        self._joined.take(parts)
        self._events = events_of(files, starts)

    def _own_columns(self) -> dict[str, np.ndarray]:
        """As the lowest rank has them."""
        return {name: values for name, values in self._joined.steps.views().items() if not name.endswith(SHARD)}

    # -- several ranks

    def _world_size(self) -> int:
        size = self._chosen()[-1].meta.get("world_size") if self._chosen() else None
        return size if isinstance(size, int) else 1

    def _is_spread(self) -> bool:
        return self._others.is_spread(self._chosen(), self._world_size())

    def _all_ranks(self) -> Ranks:
        if self._ranks is None:
            if self._others.files.keys() != self._others.names.keys():
                self._others.read(self._is_spread(), RANKS_BYTES)
            self._ranks = self._others.beside(self._own_columns(), self._files, self._taken, self._world_size())
            self._ranks.checksums = self._checksums_of_ranks
        return self._ranks

    def _checksums_of_ranks(self) -> Iterator[tuple[int, TensorSeries]]:
        with self._lock:
            matches = self._others.matches(self._files)
            own = [(file, matches[file.path]) for file in self._chosen()]
        return parameters_of_ranks(self._tables, own)

    def _tables_of_ranks(self) -> list[dict[int, Session]]:
        matches = self._others.matches(self._files)
        return self._tables.sessions_of_ranks([(file, matches[file.path]) for file in self._chosen()])


Find = Callable[[Run, Sequence[Event]], Sequence[Any]]
"""Gives what is worth acting on in a run with its explained events."""

Explain = Callable[[Run], list[Event]]
"""Gives a run's events their severity, cause, message and remedy. May use `run.raw_events`, `steps` and `meta`."""


def _elements(shapes: object) -> dict[str, int]:
    """How many elements each tensor has, where the log has their shapes."""
    return {name: math.prod(shape) for name, shape in shapes.items()} if isinstance(shapes, dict) else {}
