"""Which rows of two runs belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from tbnum.log.columns import StepColumn
from tbnum.log.schema import measured

__all__ = ["NO_NUMBERS", "Aligned", "Rows", "aligned", "known_rows", "shared", "shared_names"]

NO_NUMBERS = ("step", "wall_time", "step_hash", "batch_hash")


Rows: TypeAlias = "slice | np.ndarray"
"""N rows of a table; a slice where they follow each other, which copies nothing."""


class Aligned(NamedTuple):
    """N pairs of rows."""

    step: np.ndarray  # (N,) by which they are reported: the first run's
    rows: tuple[Rows, Rows]  # of the first run and of the second
    columns: tuple[str, ...]  # that both have, numbers all


def aligned(
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    *,
    by: str = "step",
    columns: tuple[str, ...] | None = None,
    until: int | None = None,
    samples: tuple[np.ndarray, np.ndarray] | None = None,
) -> Aligned:
    """Rows with the same step, or, `by` "updates", after the same number of updates; up to the step `until`.

    `by` "samples" goes by `samples`, how many each of the two has seen after each step, (S,).
    """
    keys = [_keys(steps, by) for steps in (a, b)] if samples is None else list(samples)
    common, first, second = shared(*keys)
    if by == "updates" and len(common) and common[0] < 0:
        made = np.flatnonzero(common >= 0)
        first, second = _picked(first, made), _picked(second, made)
    step = a.get("step", np.empty(0, np.int64))[first]
    if until is not None:
        within = slice(0, int(np.searchsorted(step, until, side="right")))
        step, first, second = step[within], _picked(first, within), _picked(second, within)
    both = tuple(name for name in a if name in b and StepColumn.parse(name).name not in NO_NUMBERS)
    return Aligned(step, (first, second), both if columns is None else columns)


def shared(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, Rows, Rows]:
    """The steps (N,) that are in both, rising, and in which rows. 3 ms a million where they follow each other."""
    if len(a) and len(b) and (a[1:] > a[:-1]).all() and (b[1:] > b[:-1]).all():
        first, last = max(a[0], b[0]), min(a[-1], b[-1])
        in_a, in_b = (slice(*np.searchsorted(of, (first, last + 1)).tolist()) for of in (a, b))
        if np.array_equal(a[in_a], b[in_b]):
            return a[in_a], in_a, in_b
    return np.intersect1d(a, b, return_indices=True)


def shared_names(a: Sequence[str], b: Sequence[str]) -> tuple[tuple[str, ...], Rows, Rows]:
    """The names (N,) that are in both, in the order of `a`, and where."""
    if tuple(a) == tuple(b):
        return tuple(a), slice(0, len(a)), slice(0, len(b))
    place = {name: at for at, name in enumerate(b)}
    first = [at for at, name in enumerate(a) if name in place]
    names = tuple(a[at] for at in first)
    return names, np.array(first, np.int64), np.array([place[name] for name in names], np.int64)


def _picked(rows: Rows, which: Rows) -> Rows:
    """Of some rows those `which`."""
    if isinstance(rows, slice) and isinstance(which, slice):
        return slice(rows.start + which.start, min(rows.stop, rows.start + which.stop))
    return (np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows)[which]


def _keys(steps: Mapping[str, np.ndarray], by: str) -> np.ndarray:
    """(S,) int64; what has no part in the comparison is below 0, another number each time."""
    step = steps.get("step", np.empty(0, np.int64))
    if by == "step":
        return step
    made = ~steps["skipped"].astype(bool) if "skipped" in steps else np.ones(len(step), bool)
    return np.where(made, np.cumsum(made), -1 - np.arange(len(step)))


def known_rows(steps: Mapping[str, np.ndarray], name: str, rows: Rows) -> np.ndarray:
    """(N,) bool: whether a column is known at some rows; a NaN that was measured is."""
    known = ~np.isnan(steps[name][rows].astype(np.float64, copy=False))
    where = measured(name, steps)
    return known if where is None else known | where[rows]
