"""What the tables of tensors say of a step that failed: which tensors, what they held, how long the others were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["CloseLook", "Failure"]

MAX_LOOKS = 1000
"""Steps that are looked at closely in one reading of a run: 0.1 ms each. Of more, nobody reads them all."""

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

    def failure(self, step: int, optimizer: str | None) -> Failure | None:
        """The gradients of a step that failed. None where it has no such table, or too many were asked for."""
        key = (step, optimizer)
        if key not in self._known:
            self._known[key] = self._read(step, optimizer) if self._left > 0 else None
            self._left -= 1
        return self._known[key]

    def usual_norms(self, step: int, optimizer: str | None, names: Sequence[str]) -> np.ndarray:
        """(P,) the median norm of each gradient in the last rows before a step; NaN where there is none."""
        rows = self._rows_before(step)
        if not len(rows):
            return np.full(len(names), math.nan)
        norms = np.full((len(rows), len(names)), math.nan)
        place = {name: at for at, name in enumerate(names)}
        for row, at in enumerate(rows.tolist()):
            for table in self._tensors.at(at, ("grad_norm",)):
                if table.optimizer == optimizer and "grad_norm" in table.columns:
                    for name, norm in zip(table.names, table.columns["grad_norm"].tolist(), strict=True):
                        if name in place and math.isfinite(norm):
                            norms[row, place[name]] = norm
        known = np.isfinite(norms).any(0)
        usual = np.full(len(names), math.nan)
        usual[known] = np.nanmedian(norms[:, known], axis=0)
        return usual

    def norm_ratio(self, step: int, optimizer: str | None) -> float:
        """How many times their usual length the finite gradients have, the median of them; NaN where unknown."""
        failure = self.failure(step, optimizer)
        if failure is None or failure.nonfinite.all():
            return math.nan
        finite = ~failure.nonfinite
        names = [name for name, one in zip(failure.names, finite.tolist(), strict=True) if one]
        usual = self.usual_norms(step, optimizer, names)
        known = usual > 0
        return float(np.median(failure.grad_norm[finite][known] / usual[known])) if known.any() else math.nan

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
            if table.optimizer == optimizer and all(name in table.columns for name in wanted):
                has = ~np.isnan(table.columns["nan"])  # the others have no gradient
                names = tuple(name for name, one in zip(table.names, has.tolist(), strict=True) if one)
                return Failure(names, *(table.columns[name][has] for name in wanted)) if names else None
        return None
