"""What the rules of a run look at: the record, its explained events, and what several rules ask, worked out once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tbnum.explain.record import Record
from tbnum.explain.rows import Rows, sampled_rows
from tbnum.explain.spikes import SpikeFacts
from tbnum.explain.thresholds import TENSOR_ROWS, TENSOR_ROWS_LEAST
from tbnum.log.schema import Event, measured

__all__ = ["RunView", "nonfinite_losses"]

COLUMNS = ("grad_norm", "absmax", "param_norm", "update_norm", "overflow/float16")


class RunView:
    """Each property is worked out when a rule first asks for it."""

    def __init__(self, record: Record, events: Sequence[Event]) -> None:
        self.record = record
        self.events = events
        self.steps: Mapping[str, np.ndarray] = record.steps
        self.number = record.steps.get("step", np.empty(0, np.int64))  # (S,)
        self.meta: Mapping[str, Any] = record.meta
        self.ranks: Any = getattr(record, "ranks", None)

    @cached_property
    def by_kind(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.kind, []).append(event)
        return found

    def of(self, kind: str) -> list[Event]:
        return self.by_kind.get(kind, [])

    @cached_property
    def skipped(self) -> np.ndarray:
        """(S,) bool; False where it is unknown."""
        skipped: np.ndarray = self.steps.get("skipped", np.zeros(len(self.number), bool))
        return skipped

    @cached_property
    def spikes(self) -> list[SpikeFacts]:
        """Of the loss."""
        return [SpikeFacts.of(event) for event in self.of("loss_spike")]

    @cached_property
    def nonfinite_losses(self) -> np.ndarray:
        """Rows (R,) whose loss was measured and is NaN or inf."""
        return nonfinite_losses(self.record)

    @cached_property
    def early(self) -> dict[str | None, Rows]:
        return self._rows(0.0, 0.25)

    @cached_property
    def middle(self) -> dict[str | None, Rows]:
        return self._rows(0.25, 0.75)

    @cached_property
    def late(self) -> dict[str | None, Rows]:
        """Rows of the tables of tensors in the last quarter of the run, at least the last few of it, by optimizer."""
        return self._rows(0.75, 1.0)

    def _rows(self, begin: float, end: float) -> dict[str | None, Rows]:
        rows = sampled_rows(self.record, COLUMNS, TENSOR_ROWS, share=(begin, end), least=TENSOR_ROWS_LEAST)
        return {each.optimizer: each for each in rows}


def nonfinite_losses(record: Record) -> np.ndarray:
    """Rows (R,) whose loss was measured and is NaN or inf."""
    steps = record.steps
    loss = steps.get("loss")
    if loss is None:
        return np.empty(0, np.int64)
    known = measured("loss", steps)
    nonfinite = np.isinf(loss)
    return np.flatnonzero(nonfinite if known is None else nonfinite | (np.isnan(loss) & known))
