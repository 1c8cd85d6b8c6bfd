"""Rows of the tables of tensors at intervals: what a verdict on tensors is drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tbnum.explain.record import Record

__all__ = ["Rows", "norms_around", "sampled_rows", "scale_of"]


class Rows(NamedTuple):
    """Some columns at some steps, for one optimizer's tensors. Unknown is NaN."""

    optimizer: str | None
    steps: np.ndarray  # (R,) int64, rising
    scale: np.ndarray  # (R,) loss scale; NaN where there was none
    names: tuple[str, ...]  # (P,)
    columns: dict[str, np.ndarray]  # each (R, P)


def sampled_rows(
    record: Record, columns: Sequence[str], count: int, *, share: tuple[float, float] = (0.0, 1.0), least: int = 0
) -> list[Rows]:
    """At most `count` of the rows at intervals, evenly over a share of the run; one `Rows` an optimizer.

    Where a share that begins or ends with the run has no more than `least` rows, and the run twice as many, it is one
    more of the first or of the last: the very last may be that of the close, without gradients. Rows of skipped steps
    are not among them. Reads `count` tables, whatever the length of the run. [] without tables.
    """
    tensors: Any = getattr(record, "tensors", None)
    number = record.steps.get("step")
    if tensors is None or number is None or not len(number):
        return []
    first, last = int(number[0]), int(number[-1])
    low, high = first + share[0] * (last - first), first + share[1] * (last - first)
    every = tensors.steps_of("interval")
    steps = every[(every >= low) & (every <= high)]
    if 0 < least <= len(every) // 2 and len(steps) <= least and (share[0] == 0 or share[1] == 1):
        steps = every[: least + 1] if share[0] == 0 else every[-least - 1 :]
    if not len(steps):
        return []
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(count, len(steps))).round().astype(int))]
    scale = scale_of(record, steps)
    tables: dict[str | None, list[tuple[int, float, Any]]] = {}
    for step, factor in zip(steps.tolist(), scale.tolist(), strict=True):
        for table in tensors.at(step, columns):
            if table.reason == "interval":
                tables.setdefault(table.optimizer, []).append((step, factor, table))
    return [_rows(optimizer, each, columns) for optimizer, each in tables.items()]


def norms_around(record: Record, optimizer: str | None, step: int) -> tuple[dict[str, float], dict[str, float]]:
    """Of the tables next before a step and from it on: the tensors whose gradient was not zero, and its norm.

    Empty without tables. Reads two.
    """
    tensors: Any = getattr(record, "tensors", None)
    every = np.empty(0, np.int64) if tensors is None else tensors.steps_of("interval")
    at = int(np.searchsorted(every, step))
    if not 0 < at < len(every):
        return {}, {}
    found: list[dict[str, float]] = [{}, {}]
    for norms, place in zip(found, (at - 1, at), strict=True):
        for table in tensors.at(int(every[place]), ("grad_norm",)):
            if table.reason == "interval" and table.optimizer == optimizer and "grad_norm" in table.columns:
                values = table.columns["grad_norm"].tolist()
                norms |= {name: norm for name, norm in zip(table.names, values, strict=True) if norm > 0}
    return found[0], found[1]


def scale_of(record: Record, steps: np.ndarray) -> np.ndarray:
    """(R,) the loss scale at steps that the record has; NaN elsewhere."""
    number, scale = record.steps["step"], record.steps.get("loss_scale")
    found = np.full(len(steps), math.nan)
    if scale is not None:
        rows = np.minimum(np.searchsorted(number, steps), len(number) - 1)
        there = number[rows] == steps
        found[there] = scale[rows[there]]
    return found


def _rows(optimizer: str | None, tables: Sequence[tuple[int, float, Any]], columns: Sequence[str]) -> Rows:
    names = tuple(dict.fromkeys(name for _, _, table in tables for name in table.names))
    place = {name: at for at, name in enumerate(names)}
    values = {column: np.full((len(tables), len(names)), math.nan) for column in columns}
    for row, (_, _, table) in enumerate(tables):
        at = slice(None) if table.names == names else [place[name] for name in table.names]
        for column in columns:
            if column in table.columns:
                values[column][row, at] = table.columns[column]
    steps = np.array([step for step, _, _ in tables], np.int64)
    return Rows(optimizer, steps, np.array([scale for _, scale, _ in tables]), names, values)
