"""Which rows of two runs belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tbnum.log.columns import StepColumn
from tbnum.log.schema import measured

__all__ = ["Aligned", "aligned", "shared", "shared_names", "values_of"]

_NO_NUMBERS = ("step", "wall_time", "step_hash", "batch_hash")


class Aligned(NamedTuple):
    """N pairs of rows."""

    step: np.ndarray  # (N,) by which they are reported: the first run's
    rows: tuple[np.ndarray, np.ndarray]  # (N,) each, of the first run and of the second
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
    first, second = first[common >= 0], second[common >= 0]
    step = a.get("step", np.empty(0, np.int64))[first]
    if until is not None:
        within = step <= until
        step, first, second = step[within], first[within], second[within]
    both = tuple(name for name in a if name in b and StepColumn.parse(name).name not in _NO_NUMBERS)
    return Aligned(step, (first, second), both if columns is None else columns)


def shared(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The steps (N,) that are in both, rising, and where, (N,) each."""
    steps, first, second = np.intersect1d(a, b, return_indices=True)
    return steps, first, second


def shared_names(a: Sequence[str], b: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The names (N,) that are in both, in the order of `a`, and where, (N,) each."""
    place = {name: at for at, name in enumerate(b)}
    first = [at for at, name in enumerate(a) if name in place]
    names = tuple(a[at] for at in first)
    return names, np.array(first, np.int64), np.array([place[name] for name in names], np.int64)


def _keys(steps: Mapping[str, np.ndarray], by: str) -> np.ndarray:
    """(S,) int64; what has no part in the comparison is below 0, another number each time."""
    step = steps.get("step", np.empty(0, np.int64))
    if by == "step":
        return step
    made = ~steps["skipped"].astype(bool) if "skipped" in steps else np.ones(len(step), bool)
    return np.where(made, np.cumsum(made), -1 - np.arange(len(step)))


def values_of(steps: Mapping[str, np.ndarray], name: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A column at some rows as float64, (N,), and whether it is known there: a NaN that was measured is."""
    values = steps[name].astype(np.float64)
    known = ~np.isnan(values)
    where = measured(name, steps)
    return values[rows], (known if where is None else known | where)[rows]
