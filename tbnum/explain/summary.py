"""A run in one mapping of plain values: what `tbnum report` prints and `--json` writes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tbnum.explain.causes import CAUSES
from tbnum.explain.facts import skips_of
from tbnum.explain.finding import Finding
from tbnum.explain.record import Record, attempts, is_scalar_log
from tbnum.explain.totals import clipped_steps, skipped_steps
from tbnum.explain.view import nonfinite_losses
from tbnum.log.columns import columns_named
from tbnum.log.schema import Event

__all__ = ["EventGroup", "group_events", "skipped_steps", "step_count", "summarize", "worth_reading"]


def summarize(record: Record, events: Sequence[Event], found: Sequence[Finding]) -> dict[str, Any]:
    """The numbers and findings of a run. Unknown is None. O(events), and a few passes over the columns."""
    steps, meta = record.steps, record.meta
    number, wall_time = steps.get("step", np.empty(0, np.int64)), steps.get("wall_time", np.empty(0))
    count = len(number)
    return {
        "steps": count,
        "first_step": int(number[0]) if count else None,
        "last_step": int(number[-1]) if count else None,
        "first_wall_time": float(wall_time[0]) if count else None,
        "last_wall_time": float(wall_time[-1]) if count else None,
        "sessions": len(meta.get("sessions") or [meta]),
        "skipped": _skipped(record, events),
        "loss": _loss(record),
        "loss_scale": _loss_scale(record),
        "clipping": _clipping(record),
        "findings": [dataclasses.asdict(finding) for finding in found],
    }


def step_count(record: Record) -> int:
    """Steps recorded. A log that holds none yet has no columns either."""
    return len(record.steps.get("step", ()))


def worth_reading(events: Iterable[Event]) -> list[Event]:
    """Warnings, errors, and what the user or a resume says; not the daily life of a loss scale."""
    return [e for e in events if e.severity != "info" or e.kind in ("annotation", "resume", "scale_set")]


@dataclasses.dataclass(frozen=True)
class EventGroup:
    """Events of one kind and cause that follow each other: 190 skips with a NaN loss read as one.

    The collapse that such skips lead to does not part them.
    """

    first: Event
    last_step: int
    count: int

    @property
    def more(self) -> str:
        """Of those after the first, in words; empty where it is alone."""
        return f"and {self.count - 1:,} more like it, to step {self.last_step:,}" if self.count > 1 else ""


def group_events(events: Iterable[Event]) -> list[EventGroup]:
    groups: list[EventGroup] = []
    for event in events:
        at = len(groups) - 1
        if at > 0 and groups[at].first.kind == "scale_collapse":
            at -= 1
        if at >= 0 and _sort(groups[at].first) == _sort(event) and event.kind != "annotation":
            groups[at] = EventGroup(groups[at].first, event.step, groups[at].count + 1)
        else:
            groups.append(EventGroup(event, event.step, 1))
    return groups


def _sort(event: Event) -> tuple[str, str | None, str | None, bool]:
    evidence = event.data.get("evidence")
    injected = isinstance(evidence, Mapping) and "injected" in evidence
    return event.kind, event.cause, event.optimizer, injected


def _skipped(record: Record, events: Sequence[Event]) -> dict[str, Any]:
    """Skipped steps, and by cause the skips (one an optimizer). Of a scalar log at least so many; None: unknown."""
    steps, total = skipped_steps(record), attempts(record)
    causes: dict[str, dict[str, int]] = {}
    for event in events:
        if event.kind == "skip":
            at = causes.setdefault(event.cause or "unknown", {"skips": 0, "first_step": event.step})
            at["skips"] += skips_of(event)
            at["last_step"] = event.step
    order = list(CAUSES)
    causes = dict(sorted(causes.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    rate = None if steps is None else steps / total if total else 0.0
    return {"steps": steps, "rate": rate, "inferred": is_scalar_log(record), "causes": causes}


def _loss(record: Record) -> dict[str, Any] | None:
    loss = record.steps.get("loss")
    if loss is None:
        return None
    nonfinite, finite = nonfinite_losses(record), np.flatnonzero(np.isfinite(loss))
    if not len(nonfinite) and not len(finite):
        return None
    ends = [rows[at] for rows in (nonfinite, finite) if len(rows) for at in (0, -1)]  # the others are unknown
    best = finite[np.argmin(loss[finite])] if len(finite) else None
    return {
        "first": float(loss[min(ends)]),
        "last": float(loss[max(ends)]),
        "best": float(loss[best]) if best is not None else None,
        "best_step": int(record.steps["step"][best]) if best is not None else None,
        "nonfinite_steps": len(nonfinite),
    }


def _loss_scale(record: Record) -> dict[str, Any] | None:
    scale = record.steps.get("loss_scale", np.empty(0))
    known = np.isfinite(scale)
    if not known.any():
        return None
    skipped = record.steps.get("skipped", np.zeros(len(scale), bool))
    scale, taken = scale[known], ~skipped[known]
    starts = np.flatnonzero(np.diff(scale, prepend=np.nan) != 0)  # rows at which the scale is another one
    steps_at: Counter[float] = Counter()
    for level, count in zip(
        scale[starts].tolist(), np.add.reduceat(taken, starts, dtype=np.int64).tolist(), strict=True
    ):
        steps_at[level] += count * int(record.meta.get("every", 1))  # a scalar log may have every k-th step
    held, held_steps = max(steps_at.items(), key=lambda item: item[1])
    return {
        "first": float(scale[0]),
        "last": float(scale[-1]),
        "lowest": float(scale.min()),
        "highest": float(scale.max()),
        "held": held if held_steps else None,
        "held_steps": held_steps,
    }


def _clipping(record: Record) -> list[dict[str, Any]]:
    """For each optimizer whose clipping was seen."""
    seen = []
    for column, _ in columns_named(record.steps, "clip_coef"):
        prefix = column.beside("")
        clipped, known = clipped_steps(record, prefix)
        thresholds = record.steps.get(prefix + "max_norm", np.empty(0))
        thresholds = thresholds[np.isfinite(thresholds)]
        if known:
            max_norm = float(thresholds[-1]) if len(thresholds) else None
            seen.append({"optimizer": prefix[:-1] or None, "max_norm": max_norm, "clipped": clipped, "known": known})
    return seen
