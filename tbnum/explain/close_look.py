"""What the tables of tensors say of a step that failed: which tensors, what they held, how long the others were."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

__all__ = ["CloseLook", "Failure", "Gradients"]

MAX_LOOKS = 1000
"""Steps that are looked at closely in one reading of a run: 0.5 ms each. Of more, nobody reads them all."""

USUAL_ROWS = 8
"""Rows before a step from which a gradient's usual length is the median."""


class Failure(NamedTuple):
    """One optimizer's gradients at a step, of the tensors that have one: (P,) each, unscaled, before clipping."""

    names: tuple[str, ...]
    nan: np.ndarray
    inf: np.ndarray
    absmax: np.ndarray  # of the finite elements
    grad_norm: np.ndarray

    @property
    def nonfinite(self) -> np.ndarray:
        """(P,) bool"""
        bad: np.ndarray = (self.nan > 0) | (self.inf > 0)
        return bad


class Gradients(NamedTuple):
    """All of an optimizer's gradients at a step that failed, in three numbers. Unknown is NaN."""

    nan: float  # elements
    inf: float
    largest_finite: float  # magnitude, unscaled; NaN where no element was finite


class CloseLook:
    """Looks into a run's tables, which are opened with the first question. A record without tables answers nothing.

    A question reads one table, and for the usual lengths `USUAL_ROWS` more.
    """

    def __init__(self, record: Any) -> None:
        self._record = record
        self._tensors: Any = None
        self._opened = False
        self._before = np.empty(0, np.int64)
        self._left = MAX_LOOKS
        self._known: dict[tuple[int, str | None], Failure | None] = {}
        self._usual: dict[tuple[int, str | None], np.ndarray] = {}

    def failure(self, step: int, optimizer: str | None) -> Failure | None:
        """The gradients of a step that failed. None where it has no such table, or too many were asked for."""
        key = (step, optimizer)
        if key not in self._known:
            self._known[key] = self._read(step, optimizer) if self._left > 0 else None
            self._left -= 1
        return self._known[key]

    def gradients(self, step: int, optimizer: str | None) -> Gradients | None:
        """Of a step that failed; None as in `failure`."""
        failure = self.failure(step, optimizer)
        if failure is None:
            return None
        finite = failure.absmax[np.isfinite(failure.absmax) & (failure.absmax > 0)]
        largest = float(finite.max()) if len(finite) else math.nan
        return Gradients(float(failure.nan.sum()), float(failure.inf.sum()), largest)

    def usual_norms(self, step: int, optimizer: str | None) -> np.ndarray:
        """(P,) the median norm of each of `failure`'s gradients in the last rows before it; NaN where there is none."""
        key = (step, optimizer)
        if key not in self._usual:
            failure = self.failure(step, optimizer)
            self._usual[key] = np.empty(0) if failure is None else self._median_before(step, optimizer, failure.names)
        return self._usual[key]

    def norm_ratio(self, step: int, optimizer: str | None) -> float:
        """How many times their usual length the finite gradients have, all of them together; NaN where unknown."""
        failure = self.failure(step, optimizer)
        if failure is None:
            return math.nan
        usual = self.usual_norms(step, optimizer)
        known = ~failure.nonfinite & (usual > 0)
        if not known.any():
            return math.nan
        return float(np.linalg.norm(failure.grad_norm[known]) / np.linalg.norm(usual[known]))

    def _median_before(self, step: int, optimizer: str | None, names: tuple[str, ...]) -> np.ndarray:
        rows = [norms for at in self._rows_before(step).tolist() for norms in self._norms(at, optimizer, names)]
        norms = np.array(rows).reshape(-1, len(names))
        if not len(norms):
            return np.full(len(names), math.nan)
        finite = np.isfinite(norms)
        if finite.all():
            return np.asarray(np.median(norms, axis=0))
        known = finite.any(0)
        median = np.full(len(names), math.nan)
        median[known] = np.nanmedian(np.where(finite, norms, math.nan)[:, known], axis=0)
        return median

    def _norms(self, step: int, optimizer: str | None, names: tuple[str, ...]) -> list[np.ndarray]:
        """A row of gradient norms for each table of a step, in the order of `names`."""
        found = []
        for table in self._tensors.at(step, ("grad_norm",)):
            norms = table.columns.get("grad_norm")
            if norms is None or not _is_of(table, optimizer):
                continue
            if table.names != names:
                of = dict(zip(table.names, norms.tolist(), strict=True))
                norms = np.array([of.get(name, math.nan) for name in names])
            found.append(norms)
        return found

    def _rows_before(self, step: int) -> np.ndarray:
        self._open()
        end = int(np.searchsorted(self._before, step))
        return self._before[max(0, end - USUAL_ROWS) : end]

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        tensors = getattr(self._record, "tensors", None)
        if tensors is not None:
            self._tensors = tensors
            self._before = tensors.steps_of("interval", "flight")

    def _read(self, step: int, optimizer: str | None) -> Failure | None:
        self._open()
        if self._tensors is None:
            return None
        wanted = ("nan", "inf", "absmax", "grad_norm")
        for table in reversed(self._tensors.at(step, wanted)):
            if _is_of(table, optimizer) and all(name in table.columns for name in wanted):
                has = ~np.isnan(table.columns["nan"])  # the others have no gradient
                names = tuple(name for name, one in zip(table.names, has.tolist(), strict=True) if one)
                return Failure(names, *(table.columns[name][has] for name in wanted)) if names else None
        return None


def _is_of(table: Any, optimizer: str | None) -> bool:
    """One optimizer alone has no name."""
    return table.optimizer is None or optimizer is None or table.optimizer == optimizer
