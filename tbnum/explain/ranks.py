"""What only all ranks together show: whose batch a skip came from, ranks that disagree, ranks that are gone.

The reduction of gradients spreads an inf to every rank, so each rank's own record says no more than that it skipped.
Its own loss is what a rank has for itself; where gradients are sharded, so is its part of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tbnum.explain.finding import OF_THE_RUN, Finding
from tbnum.explain.replicas import replica_findings
from tbnum.explain.thresholds import OUTLYING_LOSS, RANK_LOST_SECONDS
from tbnum.explain.words import as_float, number_text, scale_text
from tbnum.log.columns import StepColumn, columns_named
from tbnum.log.ranks import Ranks, ranks_text
from tbnum.log.schema import Event

__all__ = ["disagreement_words", "events_of_all_ranks", "guilty_words", "rank_findings"]

DISAGREEMENTS_TOLD = 10
RANKS_TOLD = 64

_OF_ANY_RANK = ("crash", "nonfinite_step", "norm_overflow", "no_gradients")
"""Kinds that are reported of other ranks too, where the lowest rank has none at that step."""


def events_of_all_ranks(events: Sequence[Event], ranks: Ranks | None) -> list[Event]:
    """The lowest rank's events, with what the other ranks have to add, in order of step.

    Skips get `data["ranks"]`: `numbers` and `losses` of all ranks, and whose fault it was: `guilty`, and `how` that
    shows ("loss": not finite; "outlier": far above the others; "part": the rank's part of the gradients is not finite).
    Their `loss`, `losses` and `micro_batches` are then those of the first guilty rank.
    """
    if ranks is None or len(ranks.present) < 2:
        return list(events)
    failures = [
        {
            rank: {_key(event): event.data for event in record.events if event.kind in _FAILURES}
            for rank, record in session.by_rank.items()
        }
        for session in ranks.sessions
    ]
    events = [*events, *_of_other_ranks(events, ranks)]
    _look(ranks, [event for event in events if event.kind in _FAILURES])
    found = [_with_ranks(event, ranks, failures) if event.kind in _FAILURES else event for event in events]
    found += _disagreements(ranks)
    found += _lost(ranks)
    return sorted(found, key=lambda event: event.step)  # stable: within a step the lowest rank's come first


def rank_findings(ranks: Ranks | None) -> Iterator[Finding]:
    """What is worth acting on beyond single events."""
    if ranks is None:
        return
    missing = ranks.missing
    if missing and ranks.sessions and ranks.sessions[-1].recording is not None:
        yield from _not_recording(ranks, missing)
    elif missing and ranks.sessions:
        known = not any(plan.problem for plan in ranks.plans()[-1].values())
        yield Finding(
            "ranks_missing",
            "info" if known else "warning",
            "Ranks are missing from the record",
            f"{len(missing)} of {ranks.world_size} ranks wrote no record into this folder: {ranks_text(missing)}. "
            + (
                "Whose batch a skip came from is not known."
                if known
                else "Norms of which they have a part are unknown."
            ),
            ("Fine where rank 0 alone was meant to be wrapped. Else call" if known else "Call")
            + " tbnum.wrap on every rank, with the same logdir on a file system that all of them reach.",
            OF_THE_RUN,
        )
    yield from _uneven(ranks)
    yield from replica_findings(ranks)


def _not_recording(ranks: Ranks, missing: Sequence[int]) -> Iterator[Finding]:
    """Ranks that were not to record: what is not known without them."""
    session = ranks.sessions[-1]
    loss = ranks.steps.get("loss", np.empty(0))[session.first_row : session.end_row]
    unknown = ["which of them a skip came from, unless its loss or its part of the gradients showed it"]
    if len(loss) and np.isnan(loss).all():
        unknown.append("the loss, which none of the recording ranks has")
    has_problem = any(plan.problem for plan in ranks.plans()[-1].values())
    if has_problem:
        unknown.append("norms of which they have a part")
    yield Finding(
        "ranks_not_recorded",
        "info",
        "Some ranks do not record",
        f"Of {ranks.world_size} ranks the first {session.recording} record, as wrap(..., ranks=) asked for. Not known "
        f"without {ranks_text(missing)}: {'; '.join(unknown)}.",
        'wrap(..., ranks="all") records every rank, in two files each.',
        OF_THE_RUN,
    )


def _uneven(ranks: Ranks) -> Iterator[Finding]:
    """Ranks that ended, each by itself, after different numbers of steps: with uneven data under `join`, say."""
    every = ranks.sessions[-1].by_rank if ranks.sessions else {}
    records = {rank: record for rank, record in every.items() if record.is_whole}
    lasts = {rank: record.last_step for rank, record in records.items() if record.ended == "closed"}
    if len(lasts) < len(records) or len(set(lasts.values())) < 2:
        return
    most, least = max(lasts.values()), min(lasts.values())
    longest = [rank for rank, last in lasts.items() if last == most]
    shortest = [rank for rank, last in lasts.items() if last == least]
    rest = ""
    if lasts[ranks.present[0]] < most:
        rest = f" From step {lasts[ranks.present[0]] + 1} on the columns are those of rank {longest[0]}."
    yield Finding(
        "ranks_uneven",
        "info",
        "Ranks took different numbers of steps",
        f"{ranks_text(shortest)} ended after step {least}, {ranks_text(longest)} after step {most}.{rest}",
        "Fine where ranks have different amounts of data, as under join(). Else give every rank as many batches: "
        "DistributedSampler(drop_last=True).",
        (least + 1,),
    )


# -- skips -----------------------------------------------------------------------------------------------------------


_Key = tuple[str, int, str | None]
_FAILURES = ("skip", "nonfinite_step", "norm_overflow")


def _key(event: Event) -> _Key:
    return event.kind, event.step, event.optimizer


def _look(ranks: Ranks, failed: Sequence[Event]) -> None:
    """What the rules below ask of all ranks, in one pass over them."""
    prefixes = {f"{event.optimizer}/" if event.optimizer else "" for event in failed}
    rows = _rows_of(ranks, [event.step for event in failed])
    spreads = ["loss", *_verdicts(ranks), *(column.full for column, _ in columns_named(ranks.steps, "param_norm"))]
    names = ["loss", "micro_batches", *(prefix + "nonfinite_tensors" for prefix in sorted(prefixes))]
    ranks.look(spreads=spreads, names=names, rows=rows[rows >= 0].tolist())


def _rows_of(ranks: Ranks, steps: Sequence[int]) -> np.ndarray:
    """The rows (K,) of steps; -1 for those that the run does not have."""
    step, wanted = ranks.steps.get("step", np.empty(0, np.int64)), np.array(steps, np.int64)
    if not len(step):
        return np.full(len(wanted), -1)
    rows = np.minimum(np.searchsorted(step, wanted), len(step) - 1)
    return np.where(step[rows] == wanted, rows, -1)


def _verdicts(ranks: Ranks) -> list[str]:
    """Columns in which ranks agree, or one of them goes its own way."""
    return [name for name in ranks.steps if StepColumn.parse(name).name in ("skipped", "loss_scale")]


def _with_ranks(
    event: Event, ranks: Ranks, failures: Sequence[Mapping[int, Mapping[_Key, Mapping[str, Any]]]]
) -> Event:
    """`failures`: by session and rank what its own events of these kinds said."""
    step = ranks.steps.get("step", np.empty(0))
    row = int(np.searchsorted(step, event.step))
    if row == len(step) or step[row] != event.step:
        return event
    number = ranks.session_of(row)
    prefix = f"{event.optimizer}/" if event.optimizer else ""
    own = {rank: failed.get(_key(event), {}) for rank, failed in failures[number].items()}
    losses, measured = ranks.at("loss", row), ranks.at("micro_batches", row)
    nonfinite = ranks.at(prefix + "nonfinite_tensors", row)
    numbers = list(losses)
    plans = ranks.plans()[number]
    is_spread = any(plan.sharded for name, plan in plans.items() if event.optimizer in (None, name))

    guilty = [
        rank for rank in numbers if math.isinf(losses[rank]) or (losses[rank] != losses[rank] and measured[rank] >= 1)
    ]
    how = "loss"
    if not guilty:
        guilty, how = _outlier(losses), "outlier"
    if not guilty and is_spread:
        guilty, how = [rank for rank in numbers if nonfinite[rank] > 0], "part"
    data: dict[str, Any] = dict(event.data)
    if is_spread:
        data |= _of_parts(own, nonfinite)
        data["grad_norm"] = ranks.combined_at(prefix + "grad_norm", row)
    data["ranks"] = {
        "numbers": numbers[:RANKS_TOLD],
        "losses": [losses[rank] for rank in numbers[:RANKS_TOLD]],
        "guilty": guilty[:RANKS_TOLD],
        "how": how if guilty else None,
    }
    if guilty and how != "part":
        data["loss"] = losses[guilty[0]]
        data["losses"] = list(own[guilty[0]].get("losses") or [])
        data["micro_batches"] = measured[guilty[0]]
    return replace(event, data=data)


def _of_parts(own: Mapping[int, Mapping[str, Any]], nonfinite: Mapping[int, float]) -> dict[str, Any]:
    """The gradients that were not finite, as the rank recorded them that found most."""
    worst = max(nonfinite, key=lambda rank: -1.0 if math.isnan(nonfinite[rank]) else nonfinite[rank])
    facts = own.get(worst) or {}
    return {key: facts[key] for key in ("nonfinite_tensors", "nonfinite_names", "tensors") if key in facts}


def _outlier(losses: Mapping[int, float]) -> list[int]:
    """The rank whose loss lies far above those of the others."""
    known = {rank: loss for rank, loss in losses.items() if math.isfinite(loss)}
    if len(known) < 2:
        return []
    worst = max(known, key=known.__getitem__)
    usual = statistics.median(loss for rank, loss in known.items() if rank != worst)
    return [worst] if usual > 0 and known[worst] > OUTLYING_LOSS * usual else []


def guilty_words(data: Mapping[str, Any]) -> str:
    """`; on rank 1 alone, the losses of the other 3 ranks were finite`; empty where nothing is known."""
    facts = data.get("ranks")
    guilty = list(facts.get("guilty") or []) if isinstance(facts, Mapping) else []
    if not isinstance(facts, Mapping) or not guilty:
        return ""
    who, count = ranks_text(guilty), len(facts.get("numbers") or [])
    if facts.get("how") == "part":
        return "" if len(guilty) == count else f"; what is not finite lies in the part of {who}"
    losses = zip(facts["numbers"], facts["losses"], strict=False)
    others = [as_float(loss) for rank, loss in losses if rank not in guilty]
    if not others:
        return "; so it was on every rank"
    if facts.get("how") == "outlier":
        usual = statistics.median(loss for loss in others if math.isfinite(loss))
        return f"; it is the loss of {who}, against {number_text(usual)} on the others"
    finite = sum(map(math.isfinite, others))
    if finite < len(others):
        return f"; on {who}"
    rest = "loss of the other rank was" if finite == 1 else f"losses of the other {finite} ranks were"
    return f"; on {who} alone, the {rest} finite"


# -- other events ----------------------------------------------------------------------------------------------------


def _of_other_ranks(events: Sequence[Event], ranks: Ranks) -> Iterator[Event]:
    seen = set(map(_key, events))
    for number, session in enumerate(ranks.sessions):
        cut = _end_of(ranks, number)
        for rank, record in list(session.by_rank.items())[1:]:
            for event in record.events:
                key = _key(event)
                if event.kind not in _OF_ANY_RANK or event.step >= cut or (key in seen and event.kind != "crash"):
                    continue
                seen.add(key)
                yield replace(event, data={**event.data, "rank": rank})


def _end_of(ranks: Ranks, number: int) -> float:
    """The step from which later sessions supersede this one."""
    first_rows = [each.first_row for each in ranks.sessions[number + 1 :] if each.end_row > each.first_row]
    return float(ranks.steps["step"][first_rows[0]]) if first_rows else math.inf


def _disagreements(ranks: Ranks) -> Iterator[Event]:
    """Stretches of steps at which ranks skipped, and others did not, or scaled by other scales."""
    names = _verdicts(ranks)
    step = ranks.steps.get("step", np.empty(0, np.int64))
    differ = np.zeros(len(step), bool)
    for name in names:
        least, greatest = ranks.spread(name)
        differ |= greatest > least
    edges = np.flatnonzero(np.diff(np.concatenate([[False], differ, [False]]).astype(np.int8)))
    edges = edges.reshape(-1, 2)[:DISAGREEMENTS_TOLD]
    ranks.look(names=names, rows=edges[:, 0].tolist())
    for begin, end in edges.tolist():
        values = {name: ranks.at(name, begin) for name in names}
        differing = [name for name in names if ranks.spread(name)[1][begin] > ranks.spread(name)[0][begin]]
        data = {
            "last_step": int(step[end - 1]),
            "numbers": list(values[names[0]])[:RANKS_TOLD],
            "differ": {name: list(values[name].values())[:RANKS_TOLD] for name in differing},
        }
        yield Event(int(step[begin]), float(ranks.steps["wall_time"][begin]), "ranks_disagree", data=data)


def _lost(ranks: Ranks) -> Iterator[Event]:
    """Ranks whose record stops without an end, while others went on or were ended."""
    for number, session in enumerate(ranks.sessions):
        lasts = {rank: (record.last_step, record.last_wall_time) for rank, record in session.by_rank.items()}
        cut = _end_of(ranks, number)
        for rank, record in session.by_rank.items():
            others = [other for other in session.by_rank if other != rank]
            step, wall_time = lasts[rank]
            if (
                not record.is_whole
                or record.ended is not None
                or any(event.kind == "crash" for event in record.events)
                or not others
            ):
                continue
            newest = max(lasts[other][1] for other in others)
            ended = any(session.by_rank[other].ended is not None for other in others)
            if not (ended or newest > wall_time + RANK_LOST_SECONDS):
                continue
            last_of_others = max(lasts[other][0] for other in others)
            at = step if step >= 0 else max(last_of_others, 0)  # it was with the others, as far as is known
            if at < cut:
                data = {"rank": rank, "last_step": step, "last_step_of_others": last_of_others}
                yield Event(at, wall_time if math.isfinite(wall_time) else newest, "rank_lost", data=data)


def disagreement_words(data: Mapping[str, Any]) -> str:
    """`skipped on rank 1 and not on rank 0; loss scale 1024 on rank 0, 512 on rank 1`."""
    numbers = list(data.get("numbers") or [])
    parts = []
    for name, values in (data.get("differ") or {}).items():
        by_value: dict[float, list[int]] = {}
        for rank, value in zip(numbers, map(as_float, values), strict=False):
            if not math.isnan(value):
                by_value.setdefault(value, []).append(rank)
        column = StepColumn.parse(name)
        if column.name == "skipped":
            whose = f"{column.optimizer} " if column.optimizer else ""
            parts.append(
                f"{whose}skipped on {ranks_text(by_value.get(1.0, []))} and not on {ranks_text(by_value.get(0.0, []))}"
            )
        else:
            listed = ", ".join(f"{scale_text(value)} on {ranks_text(some)}" for value, some in by_value.items())
            parts.append(f"loss scale {listed}")
    return "; ".join(parts)
