"""Rows of steps that are known by an event alone.

An event is on disk before its call returns, the row of its step within a batch: of a process that was killed in
between, the event holds what is known of the step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from tbnum.log.schema import Event, column

__all__ = ["STEP_KINDS", "as_rows", "rows_of"]

STEP_KINDS = frozenset({"skip", "nonfinite_step", "norm_overflow"})
"""Kinds of events that show that an attempt was made at their step, and what came of it."""

_OF_STEP = ("loss", "micro_batches", "loss_scale")
_OF_OPTIMIZER = ("grad_norm", "nonfinite_tensors")


def rows_of(events: Iterable[Event], after: int, names: Collection[str]) -> dict[int, dict[str, Any]]:
    """By step and column, what `events` say about the steps beyond `after`; `names` are the columns that there are."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.kind not in STEP_KINDS or event.step <= after:
            continue
        row = found.setdefault(event.step, {"step": event.step, "wall_time": event.wall_time, "skipped": False})
        prefix = f"{event.optimizer}/" if f"{event.optimizer}/skipped" in names else ""
        of_columns = {name: name for name in _OF_STEP} | {prefix + name: name for name in _OF_OPTIMIZER}
        row |= {full: event.data[name] for full, name in of_columns.items() if _is_number(event.data.get(name))}
        row[prefix + "skipped"] = event.kind == "skip"
        row["skipped"] = row["skipped"] or event.kind == "skip"
    return dict(sorted(found.items()))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_rows(rows: Iterable[dict[str, Any]], names: Iterable[str]) -> np.ndarray:
    """(N,) of the columns `names`; what a row does not have is unknown."""
    columns = [column(name) for name in names]
    dtype = np.dtype([(each.name, each.presented) for each in columns])
    return np.array([tuple(row.get(each.name, each.unknown) for each in columns) for row in rows], dtype)
