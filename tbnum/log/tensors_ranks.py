"""Statistics and histograms of tensors that are sharded: each rank's tables, put together when asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tbnum.formats import BINS
from tbnum.log.over_ranks import PARAMETERS, Over, how
from tbnum.log.ranks import Plan, RankRecord, Ranks
from tbnum.log.schema import HISTOGRAM_SOURCES, TABLE_REASONS, WHOLE_MODEL
from tbnum.log.tensors import HistogramTable
from tbnum.log.tensors_file import Session
from tbnum.log.tensors_reader import Histograms, HistogramSeries, StepTable, Tensors

__all__ = ["RankHistograms", "RankTensors"]


class _Part(NamedTuple):
    """One rank's values of a column, and what of it counts."""

    values: np.ndarray  # (S, P)
    counts: np.ndarray  # (P,) bool
    elements: np.ndarray  # (P,) on this rank


class _Owned:
    """Which of a session's tensors count on which rank, by name. `tables`: of each rank; one may have none."""

    def __init__(
        self, by_rank: Mapping[int, RankRecord], plans: Mapping[str, Plan], tables: Mapping[int, Tensors]
    ) -> None:
        self._layouts = {rank: record.meta.get("layouts") or {} for rank, record in by_rank.items()}
        self._plans = plans
        self._tables = tables
        self._known: dict[tuple[int, str], dict[str, tuple[bool, int]]] = {}

    def of(self, rank: int, column: str) -> dict[str, tuple[bool, int]]:
        """By name of a tensor: whether this rank's part of `column` counts, and how many elements it has here."""
        kind = how(column).of
        if (rank, kind) not in self._known:
            found: dict[str, tuple[bool, int]] = {}
            self._known[rank, kind] = found
            for optimizer, plan in self._plans.items():
                ranks = plan.parameters if kind == PARAMETERS else plan.gradients
                counts = any(rank in each for each in ranks)
                names, layout = self._names(rank, optimizer), self._layouts[rank].get(optimizer)
                if layout is None:
                    found |= {name: (counts, 1) for name in names}
                elif len(names) == len(layout[kind]["owned"]):
                    owned, elements = layout[kind]["owned"], layout["elements"]
                    found |= {name: (counts and owned[at] == "1", int(elements[at])) for at, name in enumerate(names)}
        return self._known[rank, kind]

    def knows_all(self, column: str) -> bool:
        """Whether what is counted is every tensor."""
        if how(column).of == PARAMETERS:
            return all(plan.parameters_problem is None for plan in self._plans.values())
        return all(plan.problem is None for plan in self._plans.values())

    def _names(self, rank: int, optimizer: str) -> tuple[str, ...]:
        """As its tables have them, or those of a rank with the same tensors: a part without a table is no zero."""
        layout = self._layouts[rank].get(optimizer)
        for other in (rank, *self._tables):
            its_layout = self._layouts[other].get(optimizer)
            if other == rank or (layout and its_layout and layout["names"] == its_layout["names"]):
                names = self._tables[other].names_of(optimizer if len(self._plans) > 1 else None)
                if names:
                    return names
        return ()


class RankTensors(Tensors):
    """`Tensors` of a run whose ranks have a part of each. A value is unknown where a rank's part of it is.

    Statistics of other tensors (activations) come from the lowest rank. Costs what each rank's tables cost, together.
    """

    def __init__(self, ranks: Ranks, sessions: Sequence[Mapping[int, Session]], elements: Mapping[str, int]) -> None:
        super().__init__([session for by_rank in sessions for session in by_rank.values()], elements)
        self._sessions: list[tuple[_Owned, dict[int, Tensors]]] = []
        for each, plans, by_rank in zip(ranks.sessions, ranks.plans(), sessions, strict=True):
            tables = {rank: Tensors([session], elements) for rank, session in by_rank.items()}
            self._sessions.append((_Owned(each.by_rank, plans, tables), tables))

    def _together(
        self,
        columns: Sequence[str],
        beside: Sequence[str],
        first_step: int | None,
        last_step: int | None,
        names: Sequence[str] | None,
        dtype: type[np.floating[Any]],
    ) -> tuple[np.ndarray, tuple[str, ...], dict[str, np.ndarray], np.ndarray]:
        wanted = tuple(dict.fromkeys([*columns, *beside]))
        every = self.names_with(columns)
        asked = every if names is None else tuple(dict.fromkeys(names))
        missing = set(asked).difference(every)
        if missing:
            raise KeyError(f"no tensor {min(missing)!r} has a {columns[0]!r}")
        steps: list[np.ndarray] = []
        reasons: list[np.ndarray] = []
        values: dict[str, list[np.ndarray]] = {name: [] for name in wanted}
        for owned, by_rank in self._sessions:
            read = {rank: each.all_together(columns, beside, first_step, last_step) for rank, each in by_rank.items()}
            here = np.unique(np.concatenate([found[0] for found in read.values()] or [np.empty(0, np.int64)]))
            for name in wanted:
                parts = [_part(here, asked, found, name, owned.of(rank, name)) for rank, found in read.items()]
                values[name].append(_combined(name, parts, len(here), len(asked)).astype(dtype))
            steps.append(here)
            reasons.append(_reasons(here, list(read.values())))
        order = np.argsort(np.concatenate(steps), kind="stable")
        joined = np.concatenate(steps)[order]
        last = np.append(joined[1:] != joined[:-1], True)[: len(joined)]  # of a step in two sessions the later one's
        kept = order[last]
        return (
            joined[last],
            asked,
            {name: np.concatenate(each)[kept] for name, each in values.items()},
            np.concatenate(reasons)[kept],
        )

    def at(self, step: int, columns: Sequence[str] | None = None) -> list[StepTable]:
        found: list[StepTable] = []
        for owned, by_rank in self._sessions:
            tables: dict[tuple[str | None, tuple[str, ...]], dict[int, list[StepTable]]] = {}
            for rank, each in by_rank.items():
                for table in each.at(step, columns):
                    of_ranks = tables.setdefault((table.optimizer, table.names), {})
                    of_ranks.setdefault(rank, []).append(table)
            for (optimizer, names), of_ranks in tables.items():
                combined = {}
                for column in dict.fromkeys(c for some in of_ranks.values() for table in some for c in table.columns):
                    parts = []
                    for rank in by_rank:
                        having = [table.columns[column] for table in of_ranks.get(rank, ()) if column in table.columns]
                        values = having[-1] if having else np.full(len(names), np.nan)
                        parts.append(_Part(values[None], *_counted(names, owned.of(rank, column))))
                    combined[column] = _combined(column, parts, 1, len(names))[0]
                reason = max((t.reason for some in of_ranks.values() for t in some), key=_gravity)
                found.append(StepTable(optimizer, reason, names, combined))
        return found


def _gravity(reason: str) -> int:
    return TABLE_REASONS.index(reason) if reason in TABLE_REASONS else -1


_Read = tuple[np.ndarray, tuple[str, ...], dict[str, np.ndarray], np.ndarray]


def _part(
    steps: np.ndarray, names: Sequence[str], read: _Read, column: str, owned: Mapping[str, tuple[bool, int]]
) -> _Part:
    """A rank's column at all of `steps` and of all of `names`."""
    own_steps, own_names, values, _ = read
    rows = np.searchsorted(steps, own_steps)
    at = {name: place for place, name in enumerate(own_names)}
    here = np.array([place for place, name in enumerate(names) if name in at], np.int64)
    spread = np.full((len(steps), len(names)), np.nan)
    spread[np.ix_(rows, here)] = values[column][:, [at[names[place]] for place in here.tolist()]]
    return _Part(spread, *_counted(names, owned))


def _counted(names: Sequence[str], owned: Mapping[str, tuple[bool, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = [owned.get(name, (False, 0)) for name in names]
    return np.array([counts for counts, _ in pairs], bool), np.array([elements for _, elements in pairs], np.int64)


def _combined(column: str, parts: Sequence[_Part], rows: int, width: int) -> np.ndarray:
    """(S, P) of the whole tensors. NaN where a part that counts is unknown."""
    total = np.zeros((rows, width))
    weight = np.zeros((rows, width))
    unknown = np.zeros((rows, width), bool)
    counted = np.zeros(width, bool)
    first = np.full((rows, width), np.nan)
    over = how(column).over
    for part in parts:
        first = np.where(np.isnan(first), part.values, first)
        if not part.counts.any():
            continue
        counted |= part.counts
        known = part.counts & ~np.isnan(part.values)
        if over is Over.NORM:
            total = np.hypot(total, np.where(known, part.values, 0))
        elif over is Over.GREATEST:
            total = np.where(known, np.fmax(total, part.values), total)
        elif over is Over.SHARE:
            total += np.where(known, part.values, 0) * part.elements
            weight += np.where(known, 1, 0) * part.elements
        else:
            total += np.where(known, part.values, 0)
        # An empty part has no largest element and no share.
        unknown |= part.counts & np.isnan(part.values) & (part.elements > 0)
    if over is Over.SHARE:
        with np.errstate(invalid="ignore", divide="ignore"):
            total = total / weight
    if column in ("nan", "inf"):
        unknown &= total == 0  # of a failure only the ranks that saw it have a table: there are at least so many
    combined = np.where(unknown, np.nan, total)
    if over is Over.FIRST:
        return first
    return np.where(counted, combined, np.nan)


def _reasons(steps: np.ndarray, read: Sequence[_Read]) -> np.ndarray:
    """(S,) the gravest for which a rank wrote a step."""
    gravest = np.full(len(steps), -1)
    for own_steps, _, _, reasons in read:
        rows = np.searchsorted(steps, own_steps)
        gravest[rows] = np.maximum(gravest[rows], [_gravity(reason) for reason in reasons.tolist()])
    return np.array([*TABLE_REASONS, "unknown"])[gravest]


class RankHistograms(Histograms):
    """Histograms of tensors that are sharded: counts add up. Non-parameter statistics come from the lowest rank."""

    def __init__(self, ranks: Ranks, sessions: Sequence[Mapping[int, Session]]) -> None:
        super().__init__([])
        by_session: list[tuple[_Owned, dict[int, Histograms]]] = []
        for each, plans, by_rank in zip(ranks.sessions, ranks.plans(), sessions, strict=True):
            owned = _Owned(each.by_rank, plans, {rank: Tensors([session], {}) for rank, session in by_rank.items()})
            by_session.append((owned, {rank: Histograms([session]) for rank, session in by_rank.items()}))
        for source in HISTOGRAM_SOURCES:
            found = [
                (owned, {rank: each.get(source) for rank, each in by_rank.items()}) for owned, by_rank in by_session
            ]
            if any(series is not None for _, by_rank in found for series in by_rank.values()):
                self._series[source] = _RankSeries(source, found)


class _RankSeries(HistogramSeries):
    def __init__(self, source: str, sessions: Sequence[tuple[_Owned, Mapping[int, HistogramSeries | None]]]) -> None:
        every = [series for _, by_rank in sessions for series in by_rank.values() if series is not None]
        super().__init__(source, [kept for series in every for kept in series.kept])
        self._sessions = sessions

    def at(self, step: int) -> HistogramTable:
        column = "param_norm" if self.source in ("parameter", "update") else "grad_norm"
        for owned, by_rank in reversed(self._sessions):
            tables = {
                rank: series.at(step)
                for rank, series in by_rank.items()
                if series is not None and (series.steps == step).any()
            }
            if tables:
                counted = {rank: owned.of(rank, column) for rank in by_rank}
                return _added(tables, counted, with_whole_model=owned.knows_all(column))
        raise KeyError(f"no histograms of the {self.source} at step {step}")

    def read(
        self, name: str = WHOLE_MODEL, first_step: int | None = None, last_step: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        if name not in self.names:
            raise KeyError(f"no tensor {name!r} has histograms of the {self.source}")
        steps: list[int] = []
        counts: list[np.ndarray] = []
        for step in self.steps_of(name).tolist():
            if (first_step is None or step >= first_step) and (last_step is None or step <= last_step):
                with contextlib.suppress(KeyError):  # a rank's part is missing
                    counts.append(self.at(step).row(name).counts[0])
                    steps.append(step)
        return np.array(steps, np.int64), np.array(counts, np.int64).reshape(-1, BINS)


def _added(
    tables: Mapping[int, HistogramTable],
    owned: Mapping[int, Mapping[str, tuple[bool, int]]],
    *,
    with_whole_model: bool,
) -> HistogramTable:
    """One table of all ranks' counts. A tensor of which a rank's part is missing is left out."""
    parameters = {name for each in owned.values() for name in each}
    lowest = min(owned)

    def counts(rank: int, name: str) -> bool:
        if name.split("/")[-1] == WHOLE_MODEL:  # what does not count is not in it
            return with_whole_model and any(counts for counts, elements in owned[rank].values() if elements)
        if name not in parameters:
            return rank == lowest
        counts, elements = owned[rank].get(name, (False, 0))
        return counts and elements > 0

    rows: dict[str, list[HistogramTable]] = {}
    for name in dict.fromkeys(name for table in tables.values() for name in table.names):
        of_ranks = [rank for rank in owned if counts(rank, name)]
        if all(name in _names(tables, rank) for rank in of_ranks):
            rows[name] = [tables[rank].row(name) for rank in of_ranks]
    rows = {name: parts for name, parts in rows.items() if parts}
    template = next(iter(tables.values()))
    if not rows:
        return HistogramTable.of_nothing(template.step, template.source)
    return HistogramTable(
        template.step,
        tuple(rows),
        template.source,
        np.array([np.sum([part.counts[0] for part in parts], axis=0) for parts in rows.values()]),
        np.array([np.fmin.reduce([part.low[0] for part in parts]) for parts in rows.values()]),
        np.array([np.fmax.reduce([part.high[0] for part in parts]) for parts in rows.values()]),
    )


def _names(tables: Mapping[int, HistogramTable], rank: int) -> tuple[str, ...]:
    return tables[rank].names if rank in tables else ()
