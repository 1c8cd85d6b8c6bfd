"""Where a NaN came from: backward, an update, parameters that were spoiled before. Measured outranks inferred."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tbnum.explain.began import module_of
from tbnum.explain.close_look import Gradients
from tbnum.explain.facts import Facts, Known
from tbnum.explain.parameters import ParameterNorms, SpoiledUpdate
from tbnum.explain.past import Past
from tbnum.explain.record import Record
from tbnum.explain.thresholds import BACKWARD_LARGEST, BACKWARD_LARGEST_OF_ALL
from tbnum.log.columns import columns_named
from tbnum.log.schema import Event

__all__ = [
    "Since",
    "SpoiledParameters",
    "made_in_backward",
    "nothing_is_spared",
    "spoiled_updates",
    "spread",
    "update_event",
]


def made_in_backward(gradients: Gradients | None, scale: float, inf_counts: bool) -> bool:
    """Whether what is not finite in gradients cannot be an overflow: the largest finite one, times `scale`, is small.

    A gradient that overflows leaves others near the end of float16, and is inf before it is NaN. `inf_counts`: an inf
    does not speak for an overflow, as where gradients carry no scale (1 / 0). Where no gradient is finite, the NaN was
    there from the loss on, whose own gradient has the size of the scale that had held.
    """
    if gradients is None or not gradients.nan + gradients.inf > 0 or (gradients.inf > 0 and not inf_counts):
        return False
    return not gradients.largest_finite * scale > BACKWARD_LARGEST


def spread(facts: Facts) -> bool:
    """Whether NaN is in the gradients of two modules or more, or in all there are.

    The sum of a product in float16 that overflows may be NaN without an inf, in one tensor. In two, and no inf in
    either, it was handed on.
    """
    modules = set(map(module_of, facts.nonfinite_names))
    return len(modules) > 1 or facts.nonfinite_tensors == facts.tensors > 1


def nothing_is_spared(facts: Facts, gradients: Gradients | None) -> bool:
    """Whether every gradient is NaN as no overflow leaves them: not one finite element, or no inf among them.

    An overflow begins in some elements, and hands on inf and NaN from there; others stay what they were.
    """
    if gradients is None or not facts.nonfinite_tensors == facts.tensors > 1 or not gradients.nan > 0:
        return False
    if math.isnan(gradients.largest_finite):
        return True
    return gradients.inf == 0 and gradients.largest_finite * facts.loss_scale <= BACKWARD_LARGEST_OF_ALL


class Since(NamedTuple):
    """Since when the parameters are not finite."""

    step: int
    after: int = -1  # `by_update`: they were finite after this step; -1: unknown
    by_update: bool = False  # by an update whose gradients were finite, not by non-finite gradients


class SpoiledParameters:
    """Whether the parameters are non-finite, over the events of a run in order of step. O(1) an event.

    `updates`: those that made them so while every gradient was finite, as measured (see `spoiled_updates`).
    """

    def __init__(self, past: Past, updates: list[SpoiledUpdate], first_step: int) -> None:
        self._past = past
        self._updates = list(updates)
        self._first_step = first_step
        self._since: Since | None = None
        self.found: list[SpoiledUpdate] = []  # that were inferred from an event's own look at the parameters

    def took_nonfinite(self, step: int) -> None:
        """An update was made of non-finite gradients."""
        if self.since(step) is None:
            self._since = Since(step)

    def restored(self) -> None:
        self._since = None

    def measured(self, event: Known) -> None:
        """An event says how the parameters were before the update of its step."""
        if event.facts.params_nonfinite is False:
            self._since = None
        elif event.facts.params_nonfinite and self.since(event.step) is None and event.step > self._first_step:
            after = self._past.parameters_finite_after(event.step)
            self._since = Since(event.step - 1, after, by_update=True)
            self.found.append(SpoiledUpdate(after, event.step - 1))

    def since(self, step: int) -> Since | None:
        """As of the beginning of `step`."""
        while self._updates and self._updates[0].by < step:
            after, by = self._updates.pop(0)
            if self._since is None:
                self._since = Since(by, after, by_update=True)
        since = self._since
        if since is not None and since.step < step:
            still = self._past.parameters_nonfinite(since.step, step)
            if still is None:  # not measured: a finite loss that came out of them speaks for them
                finite = self._past.last_finite_loss(step)
                still = finite is None or finite <= since.step
            if not still:
                self._since = None
        return self._since


def spoiled_updates(record: Record, norms: ParameterNorms, events: list[Known]) -> list[SpoiledUpdate]:
    """Updates after which the parameters were measured non-finite, though all gradients since the last measurement
    were finite. O(1) where every measurement was finite.
    """
    candidates = norms.spoiled()
    if not candidates:
        return []
    number = record.steps["step"]
    skipped = record.steps.get("skipped", np.zeros(len(number), bool))
    counts = columns_named(record.steps, "nonfinite_tensors")
    taken = np.array([event.step for event in events if event.kind == "nonfinite_step"], np.int64)
    resumed = np.array([event.step for event in events if event.kind == "resume"], np.int64)
    found = []
    for after, by in candidates:
        rows = (number > after) & (number <= by) & ~skipped
        finite = all((np.nan_to_num(values[rows]) == 0).all() for _, values in counts)
        known = any((values[rows] == 0).any() for _, values in counts)
        others = np.concatenate([taken, resumed])
        if finite and known and not ((others > after) & (others <= by)).any():
            found.append(SpoiledUpdate(after, by))
    return found


def update_event(record: Record, update: SpoiledUpdate) -> Event:
    number = record.steps.get("step", np.empty(0, np.int64))
    row = int(np.searchsorted(number, update.by))
    there = row < len(number)
    wall_time = float(record.steps["wall_time"][row]) if there and "wall_time" in record.steps else float("nan")
    return Event(update.by, wall_time, "nonfinite_update", data={"after_step": update.after, "by_step": update.by})
