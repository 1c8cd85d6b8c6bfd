"""Puts together what the ranks of a run recorded, each for itself.

Every rank has its own record, of the same steps. Where tensors are replicated (DDP), all ranks know the same norms,
and the lowest rank's record is the run's. Where they are sharded (FSDP, tensor parallel, pipeline stages), a rank
recorded the norm of its shard: squared, these add up. Which ranks make the whole follows from what each rank
recorded of itself (`layouts` in its meta): of ranks with the same tensors one set counts, ranks with other
tensors add to it. What cannot be put together is NaN, and `problems` says why.

Pure: no file is read here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tbnum.log.columns import StepColumn
from tbnum.log.over_ranks import NORMS, PARAMETER_NORMS
from tbnum.log.schema import SHARD_COLUMNS, Event

__all__ = [
    "Plan",
    "RankRecord",
    "Ranks",
    "RanksSession",
    "aligned",
    "match_sessions",
    "plan_of",
    "ranks_text",
    "same_tensors",
]

SHARD = "_shard"

WATCHED = frozenset(
    {"step", "wall_time", "loss", "micro_batches", "loss_scale", "skipped", "nonfinite_tensors", "param_norm"}
)
"""Columns of the other ranks that are kept in memory where all ranks know the same norms."""
COMBINED = WATCHED | NORMS | {"clip_coef", "max_norm"} | {column.name for column in SHARD_COLUMNS}
"""And where the norms have to be put together."""


@dataclass(frozen=True)
class RankRecord:
    """One rank's record of one session."""

    meta: Mapping[str, Any]
    steps: Mapping[str, np.ndarray]  # columns, `step` strictly increasing; may read the rank's file each time
    events: Sequence[Event]
    ended: str | None  # None: it goes on, or was killed
    last_step: int  # -1: it took none
    last_wall_time: float  # when that one closed; -inf without one, NaN where unknown

    @property
    def is_whole(self) -> bool:
        """Whether it is of a rank that records; else it holds what that rank alone could know (`log.part_log`)."""
        return "records" not in self.meta


ChecksumSeries: TypeAlias = tuple[np.ndarray, tuple[str, ...], np.ndarray]
"""Steps (S,), names (P,) and values (S, P) uint64, 0 where unknown."""


class RanksSession(NamedTuple):
    """A session of the run: the rows of the run's steps that it made, and each rank's record of it."""

    first_row: int
    end_row: int
    by_rank: Mapping[int, RankRecord]  # the lowest rank first

    @property
    def recording(self) -> int | None:
        """How many ranks were to record, the lowest ones; None: all."""
        records = list(self.by_rank.values())
        recording = records[0].meta.get("recording_ranks") if records else None
        return recording if isinstance(recording, int) else None


class Plan(NamedTuple):
    """Which ranks' shares make an optimizer's norms. Each entry of `gradients` and `parameters` is the ranks that
    together hold one set of tensors; different entries hold different tensors. With a problem they are those of
    the tensors alone whose parts are known."""

    gradients: Sequence[tuple[int, ...]] = ()
    parameters: Sequence[tuple[int, ...]] = ()
    problem: str | None = None  # why the norms of gradients cannot be put together
    parameters_problem: str | None = None
    sharded: frozenset[int] = frozenset()  # the ranks whose record has shares

    @property
    def is_of_one_rank(self) -> bool:
        """Whether one rank alone knows all."""
        return not self.sharded and len(self.gradients) <= 1


def match_sessions(own: Sequence[float], others: Sequence[float]) -> list[int | None]:
    """For each session that began at `own` the one of another rank's, which began at `others`; None without one.

    Ranks begin a session together, and restart together: the nearest start in time is its. Each is taken once; both
    rise.
    """
    pairs = sorted((abs(mine - other), i, j) for i, mine in enumerate(own) for j, other in enumerate(others))
    found: list[int | None] = [None] * len(own)
    taken: set[int] = set()
    for distance, i, j in pairs:
        # A session that is nearer to another of the own ones belongs there, even where that one has a nearer still.
        if found[i] is None and j not in taken and distance <= min(abs(mine - others[j]) for mine in own):
            found[i] = j
            taken.add(j)
    return found


# -- which shares make the whole -------------------------------------------------------------------------------------


def same_tensors(meta: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two ranks hold whole tensors, and the same: then each knows the norms by itself."""
    if meta.get("layouts") or other.get("layouts"):
        return False
    names = set(meta.get("optimizers") or {}) | set(other.get("optimizers") or {})
    return all(_tensors_of(meta, name) == _tensors_of(other, name) for name in names)


def _tensors_of(meta: Mapping[str, Any], optimizer: str) -> tuple[Any, ...] | None:
    """What distinguishes one set of tensors from another; it can be hashed, whatever a log says."""
    layout = (meta.get("layouts") or {}).get(optimizer)
    if layout is not None:
        return "names", str(layout.get("names"))
    described = (meta.get("optimizers") or {}).get(optimizer)
    if not isinstance(described, Mapping):
        return None
    parameters = meta.get("parameters")
    names = tuple(parameters) if isinstance(parameters, Mapping) else None
    return str(described.get("parameters")), str(described.get("shapes")), names


def plan_of(
    optimizer: str, metas: Mapping[int, Mapping[str, Any]], others: Mapping[int, Mapping[str, Any]] | None = None
) -> Plan:
    """From what each rank recorded of itself. Unrecorded ranks are not known to exist, unless another names them.

    `others`: ranks that do not record norms. Where they hold other tensors, those of the whole are unknown.
    """
    layouts = {rank: (meta.get("layouts") or {}).get(optimizer) for rank, meta in metas.items()}
    sharded = frozenset(rank for rank, layout in layouts.items() if layout is not None)
    known = {_tensors_of(meta, optimizer) for meta in metas.values()}
    apart = [rank for rank, meta in (others or {}).items() if _tensors_of(meta, optimizer) not in known]
    if apart:
        why = f"{ranks_text(apart)} did not record, and hold{_s(apart)} other tensors (wrap(..., ranks=))"
        return Plan([], [], why, why, sharded)
    gradients, problem = _sets(optimizer, metas, layouts, "gradients")
    parameters, parameters_problem = _sets(optimizer, metas, layouts, "parameters")
    return Plan(gradients, parameters, problem, parameters_problem, sharded)


def _sets(
    optimizer: str, metas: Mapping[int, Mapping[str, Any]], layouts: Mapping[int, Any], of: str
) -> tuple[list[tuple[int, ...]], str | None]:
    unknown = next((layout[of]["unknown"] for layout in layouts.values() if layout and "unknown" in layout[of]), None)
    chosen, problem = _known_sets(optimizer, metas, layouts, of)
    if unknown is not None:
        what = "gradient" if of == "gradients" else "parameter"
        problem = f"of the {what} {unknown['tensor']}: {unknown['why']}"
    return chosen, problem


def _known_sets(
    optimizer: str, metas: Mapping[int, Mapping[str, Any]], layouts: Mapping[int, Any], of: str
) -> tuple[list[tuple[int, ...]], str | None]:
    sets: dict[Any, list[tuple[int, ...]]] = {}  # by their tensors: the groups of ranks that hold them
    for rank, meta in metas.items():
        layout = layouts[rank]
        held_by: tuple[int, ...] = (rank,)
        if layout is not None:
            parts = layout[of]
            if "1" not in parts["owned"]:
                sets.setdefault(_tensors_of(meta, optimizer), [])
                continue  # its parts are copies of another rank's
            held_by = tuple(parts["ranks"])
        groups = sets.setdefault(_tensors_of(meta, optimizer), [])
        if held_by not in groups:
            groups.append(held_by)
    chosen = []
    for groups in sets.values():
        if not groups:
            return [], "the ranks whose parts count wrote no record in this folder"
        whole = [ranks for ranks in groups if all(rank in metas for rank in ranks)]
        chosen.append(whole[0] if whole else groups[0])
        missing = [rank for rank in chosen[-1] if rank not in metas]
        if missing:
            return [], f"{ranks_text(missing)} wrote no record in this folder, and hold{_s(missing)} a part of them"
        incomplete = _incomplete([layouts[rank] for rank in chosen[-1] if layouts[rank] is not None], of)
        if incomplete:
            return [], incomplete
    ambiguous = _not_disjoint(chosen, metas)
    return ([], ambiguous) if ambiguous else (chosen, None)


def _incomplete(layouts: Sequence[Mapping[str, Any]], of: str) -> str | None:
    """Why the parts of one set of tensors are not the whole: every element has to be on one rank that counts.

    Unless none of a tensor does, and a rank said that there are such whose parts are not known.
    """
    if not layouts or len({len(layout["of_whole"]) for layout in layouts}) > 1:
        return None
    of_whole = np.array(layouts[0]["of_whole"], np.int64)
    counted = np.zeros(len(of_whole), np.int64)
    for layout in layouts:
        owned = np.frombuffer(layout[of]["owned"].encode(), np.uint8) == ord("1")
        counted += np.where(owned, layout["elements"], 0)
    may_be_unknown = any("unknown" in layout[of] for layout in layouts)
    wrong = np.flatnonzero((counted != of_whole) & (of_whole > 0) & ((counted > 0) | (not may_be_unknown)))
    if not len(wrong):
        return None
    at = int(wrong[0])
    return f"the parts of parameter {at} have {counted[at]} elements together, and the whole has {of_whole[at]}"


def _not_disjoint(chosen: Sequence[tuple[int, ...]], metas: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Why sets of tensors are not known to be different ones."""
    seen: dict[str, int] = {}
    for ranks in chosen if len(chosen) > 1 else ():
        parameters = metas[ranks[0]].get("parameters")
        if not isinstance(parameters, Mapping):
            return "ranks hold different tensors, and the log does not have the names that would distinguish them"
        for name in parameters:
            if name in seen:
                return f"ranks {seen[name]} and {ranks[0]} hold different tensors that are both called {name!r}"
            seen[name] = ranks[0]
    return None


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 1, 2 and 5`, `ranks 1 to 7`."""
    ranks = list(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 3 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:8]))} and {len(ranks) - 8} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _s(ranks: Sequence[int]) -> str:
    return "s" if len(ranks) == 1 else ""


# -- the run as all ranks have it ------------------------------------------------------------------------------------


@dataclass
class Ranks:
    """A run as its ranks recorded it. `steps` are the run's, those of its lowest rank.

    There may be more ranks than fit into memory: then each pass over their columns reads their files again, one after
    the other (0.3 s a million steps and rank). So whatever needs several columns or rows asks for them in one `look`.
    """

    steps: Mapping[str, np.ndarray]
    sessions: Sequence[RanksSession]
    world_size: int = 1
    checksums: Callable[[], Iterable[tuple[int, ChecksumSeries]]] = tuple
    """Of each rank that has some, the checksums of its parameters: one pass over its tables, so rank after rank."""
    _plans: list[dict[str, Plan]] = field(default_factory=list)
    _spreads: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    _rows: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # (K,) rows, (R, K) values
    _combined: dict[str, np.ndarray] | None = None

    @property
    def present(self) -> tuple[int, ...]:
        """Those that have a record, the lowest first."""
        return tuple(sorted({rank for session in self.sessions for rank in session.by_rank}))

    @property
    def missing(self) -> tuple[int, ...]:
        """Those of the newest session that have no record in the folder."""
        records = self.sessions[-1].by_rank if self.sessions else {}
        known = {rank for rank, record in records.items() if record.is_whole}
        return tuple(rank for rank in range(self.world_size) if rank not in known)

    def column(self, name: str) -> tuple[tuple[int, ...], np.ndarray]:
        """The ranks (R,) and their values (R, S) at the run's steps, float64; NaN where a rank has none.

        Some 5 ms and 8 MB a million steps and rank.
        """
        return self.present, np.array([self._of(rank, name) for rank in self.present])

    def columns_of(self, rank: int) -> dict[str, np.ndarray]:
        """What is in memory of one rank's record, at the run's steps (S,): the columns that ranks are compared by."""
        names = dict.fromkeys(
            name
            for session in self.sessions
            if (record := session.by_rank.get(rank)) is not None
            for name in record.steps
            if name != "step"
        )
        flags = {name for name in names if StepColumn.parse(name).name == "skipped"}
        values = {name: self._of(rank, name) for name in names}
        there = ~np.isnan(np.vstack(list(values.values()))).all(axis=0) if values else np.zeros(self._count, bool)
        found = {"step": self.steps["step"][there]} if "step" in self.steps else {}
        return found | {name: of[there] == 1 if name in flags else of[there] for name, of in values.items()}

    def spread(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The least and the greatest value (S,) of all ranks at each step; NaN where none has one. Worked out once."""
        self.look(spreads=(name,))
        return self._spreads[name]

    def at(self, name: str, row: int) -> dict[int, float]:
        """Each rank's value in one row of the run's steps; NaN where it has none. O(ranks) after a `look`."""
        rows, values = self._rows.get(name, (np.empty(0, np.int64), np.empty((0, 0))))
        at = int(np.searchsorted(rows, row))
        if at == len(rows) or rows[at] != row:
            self.look(names=(name,), rows=(row,))
            rows, values = self._rows[name]
            at = int(np.searchsorted(rows, row))
        by_rank = self.sessions[self.session_of(row)].by_rank
        return {rank: float(values[place, at]) for place, rank in enumerate(self.present) if rank in by_rank}

    def look(self, *, spreads: Iterable[str] = (), names: Iterable[str] = (), rows: Iterable[int] = ()) -> None:
        """One pass over the ranks for all of this: what `spread` gives of columns, and `at` of columns and rows."""
        spreads = [name for name in dict.fromkeys(spreads) if name not in self._spreads]
        asked = np.unique(np.array(list(rows), np.int64))
        known = {name: self._rows[name][0] if name in self._rows else np.empty(0, np.int64) for name in names}
        known = {name: there for name, there in known.items() if not np.isin(asked, there).all()}
        asked = np.unique(np.concatenate([asked, *known.values()])) if known else asked[:0]
        picked = {name: np.full((len(self.present), len(asked)), np.nan) for name in known}
        ends = {name: (np.full(self._count, np.nan), np.full(self._count, np.nan)) for name in spreads}
        for place, rank in enumerate(self.present if spreads or picked else ()):
            for name in dict.fromkeys([*spreads, *picked]):
                values = self._of(rank, name)
                if name in ends:
                    np.fmin(ends[name][0], values, out=ends[name][0])
                    np.fmax(ends[name][1], values, out=ends[name][1])
                if name in picked:
                    picked[name][place] = values[asked]
        self._spreads |= ends
        self._rows |= {name: (asked, values) for name, values in picked.items()}

    def session_of(self, row: int) -> int:
        """The session, by its number, that made a row of the run's steps."""
        return next(at for at, each in enumerate(self.sessions) if each.first_row <= row < each.end_row)

    def _of(self, rank: int, name: str) -> np.ndarray:
        values = np.full(self._count, np.nan)
        for session in self.sessions:
            record = session.by_rank.get(rank)
            if record is not None:
                rows = slice(session.first_row, session.end_row)
                values[rows] = aligned(record.steps, name, self.steps["step"][rows])
        return values

    @property
    def _count(self) -> int:
        return len(self.steps.get("step", ()))

    def plans(self) -> list[dict[str, Plan]]:
        """Of each session, by optimizer."""
        if not self._plans:
            for session in self.sessions:
                metas = {rank: record.meta for rank, record in session.by_rank.items() if record.is_whole}
                others = {rank: record.meta for rank, record in session.by_rank.items() if not record.is_whole}
                names = next(iter(metas.values())).get("optimizers") or {} if metas else {}
                self._plans.append({name: plan_of(name, metas, others) for name in names})
        return self._plans

    def combined_at(self, name: str, row: int) -> float:
        """The value that all ranks together have."""
        combined = self.combined()
        values = combined[name] if name in combined else self.steps.get(name)
        return math.nan if values is None else float(values[row])

    def combined(self) -> dict[str, np.ndarray]:
        """Columns (S,) that no rank has by itself, in place of those in `steps`. 50 ms a million steps and rank."""
        if self._combined is not None:
            return self._combined
        found: dict[str, np.ndarray] = {}
        for session, plans in zip(self.sessions, self.plans(), strict=True):
            rows = slice(session.first_row, session.end_row)
            step = self.steps["step"][rows]
            for optimizer, plan in plans.items():
                if plan.is_of_one_rank and plan.problem is None:
                    continue
                prefix = f"{optimizer}/" if len(plans) > 1 else ""
                get = _Getter(session.by_rank, step, prefix)
                for name, values in _combined(plan, get, len(step)).items():
                    if prefix + name not in found:
                        own = self.steps.get(prefix + name)
                        found[prefix + name] = np.full(self._count, np.nan) if own is None else own.copy()
                    found[prefix + name][rows] = values
        for values in found.values():
            values.setflags(write=False)
        self._combined = found
        return found

    def problems(self) -> list[str]:
        """Why norms are unknown, each reason once."""
        problems: list[str] = []
        for session, plans in zip(self.sessions, self.plans(), strict=True):
            for optimizer, plan in plans.items():
                whose = f" of {optimizer}" if len(plans) > 1 else ""
                if plan.problem is not None:
                    problems.append(f"the norms of the gradients{whose} cannot be put together: {plan.problem}")
                if plan.parameters_problem not in (None, plan.problem):
                    why = plan.parameters_problem
                    problems.append(f"the norms of the parameters{whose} cannot be put together: {why}")
                if not plan.is_of_one_rank and plan.problem is None and session.end_row > session.first_row:
                    last_step = int(self.steps["step"][session.end_row - 1])
                    problems += self._ends(session, plan, last_step, whose)
        return list(dict.fromkeys(problems))

    def _ends(self, session: RanksSession, plan: Plan, last_step: int, whose: str) -> Iterator[str]:
        for rank in sorted({rank for ranks in plan.gradients for rank in ranks}):
            record = session.by_rank[rank]
            if record.last_step < 0:
                yield f"rank {rank} recorded no step: the norms{whose} are unknown"
            elif record.last_step < last_step and record.ended is not None:
                yield (
                    f"the record of rank {rank} ends at step {record.last_step}: from there on the norms{whose}, of "
                    "which it has a part, are unknown"
                )


class _Getter:
    """Columns of the ranks of a session, at the run's steps."""

    def __init__(self, by_rank: Mapping[int, RankRecord], step: np.ndarray, prefix: str) -> None:
        self._by_rank = by_rank
        self._step = step
        self._prefix = prefix

    def __call__(self, rank: int, name: str) -> np.ndarray:
        return aligned(self._by_rank[rank].steps, self._prefix + name, self._step)


def aligned(columns: Mapping[str, np.ndarray], name: str, step: np.ndarray) -> np.ndarray:
    """A rank's column at steps (S,), NaN where it has none."""
    values, own = columns.get(name), columns.get("step", np.empty(0, np.int64))
    found = np.full(len(step), np.nan)
    if values is None or not len(own) or not len(step):
        return found
    count = min(len(own), len(step))
    if own[0] == step[0] and own[count - 1] == step[count - 1] and np.array_equal(own[:count], step[:count]):
        found[:count] = values[:count]  # as ranks that step together have it
        return found
    at = np.minimum(np.searchsorted(own, step), len(own) - 1)
    there = own[at] == step
    found[there] = values[at[there]]
    return found


def _combined(plan: Plan, get: Callable[[int, str], np.ndarray], count: int) -> dict[str, np.ndarray]:
    """The columns of one optimizer over the steps of one session. Rank after rank, whose columns are asked for once."""
    gradients = [_Gradients(ranks, count) for ranks in plan.gradients] if plan.problem is None else []
    parameters = [_Parameters(ranks, count) for ranks in plan.parameters] if plan.parameters_problem is None else []
    sets: list[_Gradients | _Parameters] = [*gradients, *parameters]
    for rank in dict.fromkeys(rank for one in sets for rank in one.ranks):
        shares = SHARD if rank in plan.sharded else ""
        for one in sets:
            if rank in one.ranks:
                one.add(rank, get, shares)

    unknown = np.full(count, np.nan)
    found = {name: unknown for name in ("grad_norm", "grad_norm_clipped", "nonfinite_tensors", "max_norm", "clip_coef")}
    if gradients:
        columns = [one.columns() for one in gradients]
        for name in ("grad_norm", "grad_norm_clipped"):
            found[name] = _joined([each[name] for each in columns])
        found["nonfinite_tensors"] = np.sum([each["nonfinite_tensors"] for each in columns], axis=0)
        found["max_norm"] = _same([each["max_norm"] for each in columns])
        clips = [each["clip_coef"] for each in columns]
        one_clip = _same(clips)
        any_clip = np.any([~np.isnan(clip) for clip in clips], axis=0)
        ratio = _ratio(found["grad_norm_clipped"], found["grad_norm"])
        found["clip_coef"] = np.where(np.isnan(one_clip) & any_clip, ratio, one_clip)
    # A NaN norm beside a known count is a measured one.
    found["nonfinite_tensors"] = np.where(
        np.isnan(found["grad_norm"]) & ~(found["nonfinite_tensors"] > 0), np.nan, found["nonfinite_tensors"]
    )
    for name in PARAMETER_NORMS:
        found[name] = _joined([one.norms[name].whole() for one in parameters]) if parameters else unknown
    return found


class _Joined:
    """(S,) the norm of a whole from those of its parts, one after the other; NaN where one is."""

    def __init__(self, count: int) -> None:
        self._norm = np.zeros(count)
        self._unknown = np.zeros(count, bool)

    def add(self, part: np.ndarray) -> None:
        self._unknown |= np.isnan(part)
        np.hypot(self._norm, part, out=self._norm)

    def whole(self) -> np.ndarray:
        return np.where(self._unknown, np.nan, self._norm)


class _Same:
    """(S,) the value that all have; NaN where they differ or one has none."""

    def __init__(self) -> None:
        self.value: np.ndarray | None = None

    def add(self, values: np.ndarray) -> None:
        self.value = values if self.value is None else np.where(self.value == values, self.value, np.nan)


class _Gradients:
    """Norms and clipping of one set of tensors, of which `ranks` have each a part."""

    def __init__(self, ranks: Sequence[int], count: int) -> None:
        self.ranks = ranks
        self._norm, self._clipped = _Joined(count), _Joined(count)
        self._clip, self._max_norm = _Same(), _Same()
        self._was_clipped = np.zeros(count, bool)
        self._skipped = np.zeros(count, bool)
        self._nonfinite = np.zeros(count)  # each rank counts those whose part it holds is not finite: at least so many
        self._untold = np.zeros(count, bool)

    def add(self, rank: int, get: Callable[[int, str], np.ndarray], shares: str) -> None:
        self._norm.add(get(rank, "grad_norm" + shares))
        self._clipped.add(get(rank, "grad_norm_clipped" + shares))
        clip = get(rank, "clip_coef")
        self._clip.add(clip)
        self._was_clipped |= ~np.isnan(clip)
        self._max_norm.add(get(rank, "max_norm"))
        if rank == self.ranks[0]:
            self._skipped = get(rank, "skipped") != 0
        nonfinite = get(rank, "nonfinite_tensors")
        self._untold |= np.isnan(nonfinite)
        np.fmax(self._nonfinite, nonfinite, out=self._nonfinite)

    def columns(self) -> dict[str, np.ndarray]:
        norm, clipped = self._norm.whole(), self._clipped.whole()
        clip, max_norm = self._clip.value, self._max_norm.value
        assert clip is not None and max_norm is not None  # a set has a rank
        # A clip by torch of sharded gradients goes by their whole norm, which no rank's record has: it is here.
        derived = np.where(self._skipped, np.nan, np.minimum(1.0, max_norm / (norm + 1e-6)))
        ratio = _ratio(clipped, norm)
        with np.errstate(invalid="ignore"):
            clipped = np.where(np.isnan(clipped), norm * derived, clipped)
            as_derived = np.isnan(ratio) | (np.abs(ratio - derived) < 1e-4 * derived)
        was_clipped = ~np.isnan(derived) | self._was_clipped
        measured = np.where(as_derived & ~np.isnan(derived), derived, ratio)
        return {
            "grad_norm": norm,
            "grad_norm_clipped": clipped,
            "nonfinite_tensors": np.where((self._nonfinite == 0) & self._untold, np.nan, self._nonfinite),
            "max_norm": max_norm,
            "clip_coef": np.where(np.isnan(clip), np.where(was_clipped, measured, np.nan), clip),
        }


class _Parameters:
    """Norms of one set of parameters, of which `ranks` have each a part."""

    def __init__(self, ranks: Sequence[int], count: int) -> None:
        self.ranks = ranks
        self.norms = {name: _Joined(count) for name in PARAMETER_NORMS}

    def add(self, rank: int, get: Callable[[int, str], np.ndarray], shares: str) -> None:
        for name, norm in self.norms.items():
            norm.add(get(rank, name + shares))


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """(S,) norms of the whole from those of its parts; NaN where one is."""
    joined = _Joined(len(parts[0]))
    for part in parts:
        joined.add(part)
    return joined.whole()


def _same(columns: Iterable[np.ndarray]) -> np.ndarray:
    """(S,) the value that all have; NaN where they differ or one has none."""
    same = _Same()
    for values in columns:
        same.add(values)
    assert same.value is not None
    return same.value


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, np.nan)
