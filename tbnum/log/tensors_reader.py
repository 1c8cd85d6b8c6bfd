"""Statistics and histograms of tensors over a run's sessions, decoded when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tbnum.formats import BINS, CHECKSUM
from tbnum.log.gathered import Gathered, Matching, matching
from tbnum.log.numbering import checked_step
from tbnum.log.schema import HISTOGRAM_SOURCES, TABLE_REASONS, WHOLE_MODEL
from tbnum.log.tensor_columns import DERIVED, combine, derive, group_by_module
from tbnum.log.tensors import Head, HistogramTable, column_at, histogram_at, stored_at
from tbnum.log.tensors_file import Session, TablePlace, TensorsFile, kept

__all__ = ["HistogramSeries", "Histograms", "StepTable", "TensorSeries", "Tensors"]


class _Series(NamedTuple):
    steps: np.ndarray  # (S,) int64, strictly increasing
    names: tuple[str, ...]  # (P,)
    values: np.ndarray  # (S, P) float64, NaN where unknown


class TensorSeries(_Series):
    """One column over the steps it was written at: `steps, names, values = series`."""

    reasons: np.ndarray  # (S,) text: why the step was written, one of `schema.TABLE_REASONS`

    @staticmethod
    def of(steps: np.ndarray, names: tuple[str, ...], values: np.ndarray, reasons: np.ndarray) -> TensorSeries:
        series = TensorSeries(steps, names, values)
        series.reasons = reasons
        return series

    def __repr__(self) -> str:
        return f"TensorSeries(steps={len(self.steps)}, names={len(self.names)})"


class StepTable(NamedTuple):
    """One table: what was written of an optimizer's tensors at a step."""

    optimizer: str | None  # None where there is one alone
    reason: str  # one of `schema.TABLE_REASONS`
    names: tuple[str, ...]  # (P,)
    columns: dict[str, np.ndarray]  # each (P,) float64, NaN where unknown


class _Kept(NamedTuple):
    file: TensorsFile
    places: list[TablePlace]


def _union(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Every name once, in order of first appearance."""
    return tuple(dict.fromkeys(name for each in names for name in each))


def _between(places: Iterable[TablePlace], first_step: int | None, last_step: int | None) -> list[TablePlace]:
    first = -math.inf if first_step is None else first_step
    last = math.inf if last_step is None else last_step
    return [place for place in places if first <= place.head.step <= last]


class Tensors(Mapping[str, TensorSeries]):
    """Statistics of tensors by column: `tensors["grad_norm"]`.

    A column is read from the files each time that it is asked for: some 15 us a table, and 8 bytes a value stay in
    memory. A snapshot of the run as it was when `Run.tensors` was called. May be used by several threads.
    """

    def __init__(self, sessions: Sequence[Session], elements: Mapping[str, int]) -> None:
        self._elements = elements
        self._kept = [_Kept(each.file, kept(each, each.file.tables)) for each in sessions]
        layouts = [(file, file.columns[key]) for file, places in self._kept for key in _keys(places, "columns")]
        stored = _union(columns for _, columns in layouts)
        derived = [name for name, sources in DERIVED.items() if all(source in stored for source in sources)]
        self._columns = (*(name for name in stored if not name.startswith(CHECKSUM)), *derived)
        self._stored = frozenset(stored)
        self._at: dict[int, list[tuple[TensorsFile, TablePlace]]] | None = None
        self._names_with: dict[frozenset[str], tuple[str, ...]] = {}
        self._steps_with: dict[frozenset[str], np.ndarray] = {}

    def __repr__(self) -> str:
        return f"Tensors({list(self._columns)})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, column: object) -> bool:
        return column in self._columns

    def __getitem__(self, column: str) -> TensorSeries:
        return self.read(column)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors, whatever their columns."""
        return _union(file.names[key] for file, places in self._kept for key in _keys(places, "names"))

    def names_of(self, optimizer: str | None) -> tuple[str, ...]:
        """Names of one optimizer's tensors, in its order; None where there is one optimizer alone."""
        return _union(
            file.names[names]
            for file, places in self._kept
            for names, columns in dict.fromkeys((place.head.names, place.head.columns) for place in places)
            if file.optimizers.get(columns) == optimizer and "grad_norm" in file.columns[columns]
        )

    def steps_of(self, *reasons: str) -> np.ndarray:
        """(S,) the steps that have a table written for one of `reasons`, rising. Reads nothing."""
        kinds = [TABLE_REASONS.index(reason) for reason in reasons]
        steps = [place.head.step for _, places in self._kept for place in places if place.head.kind in kinds]
        return np.unique(np.array(steps, np.int64))

    def at(self, step: int, columns: Sequence[str] | None = None) -> list[StepTable]:
        """The tables of one step with all their columns, or those of `columns` that they have; [] where there is none.

        In the order they were written. Some 15 us a table and 5 us a column.
        """
        if self._at is None:
            at: dict[int, list[tuple[TensorsFile, TablePlace]]] = {}
            for file, places in self._kept:
                for place in places:
                    at.setdefault(place.head.step, []).append((file, place))
            self._at = at
        found = []
        for file, place in self._at.get(checked_step(step), ()):
            layout = file.columns[place.head.columns]
            for _, payload in file.payloads([place]):
                try:
                    values = {
                        name: column_at(payload, len(layout), index).astype(np.float64)
                        for index, name in enumerate(layout)
                        if (columns is None or name in columns) and not name.startswith(CHECKSUM)
                    }
                except ValueError:
                    file.not_understood(place)
                    continue
                kind = place.head.kind
                reason = TABLE_REASONS[kind] if kind < len(TABLE_REASONS) else "unknown"
                optimizer = file.optimizers.get(place.head.columns)
                found.append(StepTable(optimizer, reason, file.names[place.head.names], values))
        return found

    def read(
        self,
        column: str,
        first_step: int | None = None,
        last_step: int | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> TensorSeries:
        """A column from `first_step` to `last_step`, both inclusive, of all tensors or of `names`, in their order.

        Tables of the interval, of the recent history and of failures together, each step once: of a value that was
        written twice the later one. KeyError where no table has the column, or none with it has one of `names`.
        """
        self._check(column)
        if column in DERIVED:
            return self._derive(column, first_step, last_step, names)
        steps, asked, values, reasons = self._together((column,), (), first_step, last_step, names, np.float64)
        return TensorSeries.of(steps, asked, values[column], reasons)

    def read_together(
        self,
        columns: Sequence[str],
        first_step: int | None = None,
        last_step: int | None = None,
        *,
        beside: Sequence[str] = (),
        dtype: type[np.floating[Any]] = np.float64,
    ) -> tuple[np.ndarray, tuple[str, ...], dict[str, np.ndarray]]:
        """Several stored columns of all tensors in one pass: steps (S,), names (P,), and values (S, P) by column.

        Of the tables that have one of `columns`; what they have of `beside` comes along. NaN where a table has not.
        Some 20 us a table of 300 tensors, and 5 us a column more.
        """
        for column in columns:
            self._check(column)
        steps, names, values, _ = self._together(columns, beside, first_step, last_step, None, dtype)
        return steps, names, values

    def all_together(
        self, columns: Sequence[str], beside: Sequence[str], first_step: int | None, last_step: int | None
    ) -> tuple[np.ndarray, tuple[str, ...], dict[str, np.ndarray], np.ndarray]:
        """As `read_together`, columns that no table has included, and the reasons (S,)."""
        return self._together(columns, beside, first_step, last_step, None, np.float64)

    def changed_from(self, earlier: Tensors) -> int | None:
        """The first step whose tables are not as in an earlier snapshot of the run; None where all are."""
        changed: list[int] = []
        ours, theirs = ({str(file.path): places for file, places in each._kept} for each in (self, earlier))
        for path in dict.fromkeys([*theirs, *ours]):
            now, before = ours.get(path, []), theirs.get(path, [])
            if now[: len(before)] == before:
                changed += [place.head.step for place in now[len(before) :]]
            else:
                changed += [place.head.step for place in set(now) ^ set(before)]
        return min(changed, default=None)

    def names_with(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Names of the tensors that have one of the stored `columns`. Reads nothing."""
        wanted = frozenset(columns)
        if wanted in self._names_with:
            return self._names_with[wanted]
        self._names_with[wanted] = found = _union(
            file.names[names]
            for file, places in self._kept
            for names, layout in dict.fromkeys((place.head.names, place.head.columns) for place in places)
            if not wanted.isdisjoint(file.columns[layout])
        )
        return found

    @property
    def checksums(self) -> tuple[str, ...]:
        """What there are checksums of: "gradient", "parameter", and moments of the optimizer by their names."""
        return tuple(sorted(name.removeprefix(CHECKSUM) for name in self._stored if name.startswith(CHECKSUM)))

    def weights(self, column: str, names: Sequence[str]) -> np.ndarray:
        """(P,) elements of each tensor, by which a group's shares are weighed. ValueError where the log has none."""
        elements = np.array([self._elements.get(name, 0) for name in names])
        if column.split("/")[0] in ("underflow", "overflow") and not elements.all():
            unknown = names[int(np.argmin(elements))]
            raise ValueError(f"the log does not have the size of {unknown!r}, by which a share in a group is weighed.")
        return elements

    def steps_with(self, columns: Iterable[str]) -> np.ndarray:
        """(S,) the steps, rising, that have a table with one of the stored `columns`. Reads nothing."""
        wanted = frozenset(columns)
        if wanted not in self._steps_with:
            steps: list[int] = []
            for file, places in self._kept:
                having = {key for key, layout in file.columns.items() if not wanted.isdisjoint(layout)}
                steps += [place.head.step for place in places if place.head.columns in having]
            found = np.unique(np.array(steps, np.int64))
            found.setflags(write=False)
            self._steps_with[wanted] = found
        return self._steps_with[wanted]

    def _check(self, column: str) -> None:
        if column not in self._columns and column not in self._stored:
            raise KeyError(f"no tensor has a {column!r}; columns are {', '.join(self._columns) or 'none'}")

    def _together(
        self,
        columns: Sequence[str],
        beside: Sequence[str],
        first_step: int | None,
        last_step: int | None,
        names: Sequence[str] | None,
        dtype: type[np.floating[Any]],
    ) -> tuple[np.ndarray, tuple[str, ...], dict[str, np.ndarray], np.ndarray]:
        """Steps (S,), names (P,), values (S, P) by column, reasons (S,)."""
        wanted = tuple(dict.fromkeys([*columns, *beside]))
        having = []
        for file, places in self._kept:
            layouts = {key: file.columns[key] for key in _keys(places, "columns")}
            at = {
                key: ([name for name in wanted if name in layout], [layout.index(n) for n in wanted if n in layout])
                for key, layout in layouts.items()
                if not set(columns).isdisjoint(layout)
            }
            having.append((file, [place for place in places if place.head.columns in at], at))
        every = _union(file.names[key] for file, places, _ in having for key in _keys(places, "names"))
        asked = every if names is None else tuple(dict.fromkeys(names))
        missing = set(asked).difference(every)
        if missing:
            raise KeyError(f"no tensor {min(missing)!r} has a {columns[0]!r}")
        column_of = {name: at for at, name in enumerate(asked)}

        chosen = [(file, _between(places, first_step, last_step), at) for file, places, at in having]
        steps = np.unique(np.array([place.head.step for _, places, _ in chosen for place in places], np.int64))
        gathered = Gathered(wanted, (len(steps), len(asked)), dtype)
        reasons = np.full(len(steps), -1, np.int8)
        row_of = {step: row for row, step in enumerate(steps.tolist())}
        for file, places, at in chosen:
            matches: dict[int, Matching] = {}  # by names
            for place, payload in file.payloads(places):
                head = place.head
                if head.names not in matches:
                    matches[head.names] = matching(file.names[head.names], column_of)
                if matches[head.names].is_empty:
                    continue
                wanted_here, indices = at[head.columns]
                try:
                    stored = stored_at(payload, len(file.columns[head.columns]), indices, head.rows)
                except ValueError:
                    file.not_understood(place)
                    continue
                row = row_of[head.step]
                gathered.add(row, wanted_here, stored, head.rows, matches[head.names])
                reasons[row] = min(head.kind, len(TABLE_REASONS))
        values = gathered.values()
        found = reasons >= 0
        if not found.all():
            steps, reasons = steps[found], reasons[found]
            values = {name: array[found] for name, array in values.items()}
        return steps, asked, values, np.array([*TABLE_REASONS, "unknown"])[reasons]

    def grouped(
        self,
        column: str,
        *,
        depth: int | None = None,
        prefixes: Iterable[str] | None = None,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> TensorSeries:
        """A column by module: each named value is of all tensors in that module, as if they were one.

        With `depth`, modules that many levels below the model; with `prefixes`, modules by name. Shares are weighed
        by the tensors' sizes, which the log has of models of up to a thousand tensors.

        Raises:
            KeyError: no tensor has the column.
            ValueError: not exactly one of `depth` and `prefixes`; a prefix that no tensor has; a share of tensors
                whose sizes the log does not have.
        """
        if column == "update_ratio":
            sources = [
                self.grouped(source, depth=depth, prefixes=prefixes, first_step=first_step, last_step=last_step)
                for source in DERIVED[column]
            ]
            return _derived(column, *sources)
        series = self.read(column, first_step, last_step)
        groups = group_by_module(series.names, depth=depth, prefixes=prefixes)
        values = combine(column, series.values, list(groups.values()), self.weights(column, series.names))
        return TensorSeries.of(series.steps, tuple(groups), values, series.reasons)

    def _derive(
        self, column: str, first_step: int | None, last_step: int | None, names: Sequence[str] | None
    ) -> TensorSeries:
        return _derived(column, *(self.read(source, first_step, last_step, names=names) for source in DERIVED[column]))


def _derived(column: str, first: TensorSeries, second: TensorSeries) -> TensorSeries:
    """At the steps and of the tensors that both have."""
    steps, at_first, at_second = np.intersect1d(first.steps, second.steps, return_indices=True)
    in_first, in_second = ({name: at for at, name in enumerate(series.names)} for series in (first, second))
    names = tuple(name for name in first.names if name in in_second)
    one, other = (np.array([places[name] for name in names], np.int64) for places in (in_first, in_second))
    values = derive(column, first.values[np.ix_(at_first, one)], second.values[np.ix_(at_second, other)])
    return TensorSeries.of(steps, names, values, first.reasons[at_first])


def _keys(places: Iterable[TablePlace], of: str) -> list[int]:
    """What the tables refer to, each once, in order of first appearance."""
    at = Head._fields.index(of)
    return list(dict.fromkeys(place.head[at] for place in places))


class HistogramSeries:
    """The histograms of one source, decoded step by step.

    `steps` (S,) are all steps with a histogram, `names` all tensors with one, "*" for the whole model among them. Not
    every step has one of every name: see `steps_of`.
    """

    def __init__(self, source: str, kept: Sequence[_Kept]) -> None:
        self.source = source
        self._kept = kept
        self._at: dict[int, list[tuple[TensorsFile, TablePlace]]] = {}
        for file, places in kept:
            for place in places:
                self._at.setdefault(place.head.step, []).append((file, place))
        self.names = _union(file.names[key] for file, places in kept for key in _keys(places, "names"))
        self.steps = np.array(sorted(self._at), np.int64)

    def __repr__(self) -> str:
        return f"HistogramSeries({self.source!r}, steps={len(self.steps)}, names={len(self.names)})"

    @property
    def kept(self) -> Sequence[_Kept]:
        return self._kept

    def at(self, step: int) -> HistogramTable:
        """The histograms at a step, of the tensors that have one there. 1 ms for 150.

        KeyError where `steps` has no such step. A record that turns out not to be readable has no tensor.
        """
        places = self._at.get(checked_step(step))
        if places is None:
            raise KeyError(f"no histograms of the {self.source} at step {step}")
        tables = []
        for file, place in places:
            for _, payload in file.payloads([place]):
                try:
                    tables.append(histogram_at(payload, file.names[place.head.names]))
                except ValueError:
                    file.not_understood(place)
        if not tables:
            return HistogramTable.of_nothing(int(step), self.source)
        return tables[0] if len(tables) == 1 else _joined(tables)

    def steps_of(self, name: str = WHOLE_MODEL) -> np.ndarray:
        """(S,) the steps at which a tensor has a histogram."""
        steps = [place.head.step for file, places in self._kept for place in _having(file, places, name)]
        return np.unique(np.array(steps, np.int64))

    def read(
        self, name: str = WHOLE_MODEL, first_step: int | None = None, last_step: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Steps (S,) and counts (S, BINS) of one tensor, from `first_step` to `last_step`, both inclusive.

        Some 60 us and 2 kB a step of the whole model; a step of single tensors has to be decoded with all of them.
        """
        if name not in self.names:
            raise KeyError(f"no tensor {name!r} has histograms of the {self.source}")
        counts: dict[int, np.ndarray] = {}
        for file, places in self._kept:
            chosen = _between(_having(file, places, name), first_step, last_step)
            for place, payload in file.payloads(chosen):
                names = file.names[place.head.names]
                try:
                    counts[place.head.step] = histogram_at(payload, names).counts[names.index(name)].copy()
                except ValueError:
                    file.not_understood(place)
        steps = sorted(counts)
        return np.array(steps, np.int64), np.array([counts[step] for step in steps], np.int64).reshape(-1, BINS)


def _having(file: TensorsFile, places: Iterable[TablePlace], name: str) -> list[TablePlace]:
    keys = {key for key, names in file.names.items() if name in names}
    return [place for place in places if place.head.names in keys]


def _joined(tables: Sequence[HistogramTable]) -> HistogramTable:
    """One table of all rows; of a name that comes twice the last row."""
    names = tuple(name for table in tables for name in table.names)
    last = {name: at for at, name in enumerate(names)}
    rows = np.array(sorted(last.values()))
    counts, low, high = (
        np.concatenate([getattr(table, field) for table in tables])[rows] for field in ("counts", "low", "high")
    )
    return HistogramTable(tables[0].step, tuple(names[at] for at in rows), tables[0].source, counts, low, high)


class Histograms(Mapping[str, HistogramSeries]):
    """Histograms by their source: `histograms["gradient"]`. A snapshot, as `Tensors`."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        by_source: dict[str, list[_Kept]] = {}
        for session in sessions:
            places = kept(session, session.file.histograms)
            for kind, source in enumerate(HISTOGRAM_SOURCES):
                chosen = [place for place in places if place.head.kind == kind]
                if chosen:
                    by_source.setdefault(source, []).append(_Kept(session.file, chosen))
        self._series = {
            source: HistogramSeries(source, by_source[source]) for source in HISTOGRAM_SOURCES if source in by_source
        }

    def __repr__(self) -> str:
        return f"Histograms({list(self._series)})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._series)

    def __len__(self) -> int:
        return len(self._series)

    def __getitem__(self, source: str) -> HistogramSeries:
        if source not in self._series:
            raise KeyError(f"no histograms of {source!r}; there are those of {', '.join(self._series) or 'nothing'}")
        return self._series[source]
