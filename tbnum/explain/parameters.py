"""When the parameters were measured to be finite, and when not.

A NaN in the column `param_norm` is an unknown value or a measured one; the table of tensors that is written with the
measurement says which. In a healthy run every measurement is a finite number, and no table is opened.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tbnum.explain.record import Record
from tbnum.log.columns import columns_named

__all__ = ["ParameterNorms", "SpoiledUpdate"]

FOLLOWING = 8
"""Steps after an infinite norm of the parameters, of which one with a finite loss shows that they were finite."""

MAX_TABLES = 32
"""Tables that are opened to recognize a measured NaN: those at which a stretch of them begins."""


class SpoiledUpdate(NamedTuple):
    """The parameters became non-finite in an update after step `after` (-1: of the record's beginning), up to `by`."""

    after: int
    by: int


class ParameterNorms:
    """The measurements of `param_norm`, each after the update of its step. Built with one pass over the columns."""

    def __init__(self, record: Record) -> None:
        number = record.steps.get("step", np.empty(0, np.int64))
        norms = [values for _, values in columns_named(record.steps, "param_norm")]
        self.steps, self.finite = _measured(record, number, norms)

    def still_nonfinite(self, since: int, step: int) -> bool | None:
        """See `Past.parameters_nonfinite`. A later measurement speaks for the time before it too."""
        inside = (self.steps >= since) & (self.steps < step)
        if inside.any():
            return not self.finite[inside].any()
        later = np.flatnonzero(self.steps >= step)
        return True if len(later) and not self.finite[later[0]] else None

    def last_finite(self, before: int) -> int:
        """The last step before `before` after which they were measured finite; -1 for none."""
        found = np.flatnonzero(self.finite & (self.steps < before))
        return int(self.steps[found[-1]]) if len(found) else -1

    def spoiled(self) -> list[SpoiledUpdate]:
        """Where a measurement was not finite, and the one before it was."""
        at = np.flatnonzero(~self.finite & np.concatenate([[True], self.finite[:-1]]) if len(self.finite) else [])
        return [SpoiledUpdate(int(self.steps[row - 1]) if row else -1, int(self.steps[row])) for row in at.tolist()]


def _measured(record: Record, number: np.ndarray, norms: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Steps (M,) of the measurements in order, and whether all parameters were finite."""
    if not norms or not len(number):
        return np.empty(0, np.int64), np.empty(0, bool)
    infinite = np.logical_or.reduce([np.isinf(values) for values in norms])
    if infinite.any():
        infinite &= ~_are_only_large(record, number)
    known = np.logical_or.reduce([~np.isnan(values) for values in norms])
    steps, finite = number[known], ~infinite[known]
    spoiled = _measured_nan(record, number[~known] if not known.all() else np.empty(0, np.int64))
    if not len(spoiled):
        return steps, finite
    steps, finite = np.concatenate([steps, spoiled]), np.concatenate([finite, np.zeros(len(spoiled), bool)])
    order = np.argsort(steps, kind="stable")
    return steps[order], finite[order]


def _are_only_large(record: Record, number: np.ndarray) -> np.ndarray:
    """(S,) bool: steps after which the loss is finite, and before which no step was taken whose gradients were not.

    The squares of finite elements overflow beyond 1e19, and then so does their norm.
    """
    loss = record.steps.get("loss", np.full(len(number), np.nan))
    known = np.concatenate([np.isfinite(loss), np.zeros(FOLLOWING, bool)])
    finite = np.lib.stride_tricks.sliding_window_view(known, FOLLOWING)[1:].any(1)
    spoiled = min((event.step for event in record.raw_events if event.kind == "nonfinite_step"), default=math.inf)
    return np.asarray(finite & (number < spoiled))


def _measured_nan(record: Record, unknown: np.ndarray) -> np.ndarray:
    """Of the rising steps whose norm is NaN, those whose table of tensors shows that a parameter was measured so."""
    nothing = np.empty(0, np.int64)
    tensors: Any = getattr(record, "tensors", None)
    if tensors is None or not len(unknown) or getattr(record, "ranks", None) is not None:
        return nothing  # of sharded tensors a norm may be unknown for want of a rank
    at_interval = tensors.steps_of("interval")
    candidates = at_interval[unknown[np.searchsorted(unknown[:-1], at_interval)] == at_interval]
    if not len(candidates):
        return nothing
    place = np.searchsorted(at_interval, candidates)
    begins = np.concatenate([[True], np.diff(place) > 1])  # of stretches of measurements without a finite one
    spoiled = []
    for begin in np.flatnonzero(begins).tolist()[:MAX_TABLES]:
        end = next((at for at in range(begin + 1, len(candidates)) if begins[at]), len(candidates))
        if _holds_nan(tensors, int(candidates[begin])):
            spoiled.append(candidates[begin:end])
    return np.concatenate(spoiled) if spoiled else nothing


def _holds_nan(tensors: Any, step: int) -> bool:
    for table in tensors.at(step, ("param_norm",)):
        norms = table.columns.get("param_norm")
        if table.reason == "interval" and norms is not None and np.isnan(norms).any():
            return True
    return False
