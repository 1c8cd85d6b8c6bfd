"""Where a NaN came from: backward, an update, parameters that were spoiled before. Measured outranks inferred."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tbnum.explain.close_look import Gradients
from tbnum.explain.facts import Facts, Known
from tbnum.explain.parameters import ParameterNorms, SpoiledUpdate
from tbnum.explain.past import Past, Runaway
from tbnum.explain.record import Record
from tbnum.explain.thresholds import BACKWARD_LARGEST, BACKWARD_LARGEST_OF_ALL, BACKWARD_LARGEST_OF_SOME
from tbnum.explain.words import as_float
from tbnum.log.columns import columns_named
from tbnum.log.schema import Event

__all__ = [
    "Since",
    "SpoiledParameters",
    "made_in_backward",
    "no_overflow",
    "nothing_is_spared",
    "spoiled_updates",
    "update_event",
    "with_runaway",
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


def no_overflow(facts: Facts, gradients: Gradients | None) -> bool:
    """Whether NaN in gradients, and no inf, is what no overflow leaves, at a scale that other steps had passed.

    An overflow begins in some elements, which it leaves inf, and hands on inf and NaN from there. Where all of it
    became NaN on the way to the first parameter, so did every gradient. So NaN alone, in two tensors or more, is none
    where a gradient was spared whose elements are not at the end of float16. In one alone it may be: an input that
    overflowed to inf, times the slope 0 of a saturated activation.
    """
    if gradients is None or not gradients.nan > 0 or gradients.inf > 0 or not facts.nonfinite_tensors > 1:
        return False
    if facts.nonfinite_tensors == facts.tensors and not math.isnan(gradients.largest_finite):
        return gradients.largest_finite * facts.loss_scale <= BACKWARD_LARGEST_OF_ALL
    if facts.nonfinite_tensors == facts.tensors:
        return False
    return gradients.largest_finite * facts.loss_scale <= BACKWARD_LARGEST_OF_SOME


def nothing_is_spared(facts: Facts, gradients: Gradients | None) -> bool:
    """Whether not one element of any gradient is finite, and NaN is among them: it was there from the loss on."""
    return (
        gradients is not None
        and facts.nonfinite_tensors == facts.tensors > 1
        and gradients.nan > 0
        and math.isnan(gradients.largest_finite)
    )


class Since(NamedTuple):
    """Since when the parameters are not finite."""

    step: int
    after: int = -1  # `by_update`: they were finite after this step; -1: unknown
    by_update: bool = False  # by an update whose gradients were finite, not by non-finite gradients
    runaway: Runaway | None = None  # among those updates: finite gradients that were too long


class SpoiledParameters:
    """Whether the parameters are non-finite, over the events of a run in order of step. O(1) an event.

    `updates`: those that made them so while every gradient was finite, as measured (see `spoiled_updates`).
    """

    def __init__(self, past: Past, updates: list[SpoiledUpdate], first_step: int) -> None:
        self._past = past
        self._updates = list(updates)
        self._first_step = first_step
        self._since: Since | None = None
        self._measured = (-1, -1)  # steps at whose beginning they were found non-finite: the last one, one before it
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
        elif event.facts.params_nonfinite and event.step > self._measured[0]:
            self._measured = (event.step, self._measured[0])
        if event.facts.params_nonfinite and self.since(event.step) is None and event.step > self._first_step:
            after = self._past.parameters_finite_after(event.step)
            self._since = self._by_update(after, event.step - 1)
            self.found.append(SpoiledUpdate(after, event.step - 1))

    def _by_update(self, after: int, by: int) -> Since:
        return Since(by, after, by_update=True, runaway=self._past.runaway(after, by))

    def since(self, step: int) -> Since | None:
        """As of the beginning of `step`."""
        while self._updates and self._updates[0].by < step:
            after, by = self._updates.pop(0)
            if self._since is None:
                self._since = self._by_update(after, by)
        since = self._since
        if since is not None and since.step < step:
            written_after = since.after == since.step  # and not by the update of that step
            still = self._past.parameters_nonfinite(since.step + written_after, step)
            if still is None and self._measured[0] == step and self._measured[1] == step - 1 > since.step:
                still = True  # measured outranks inferred
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


def update_event(record: Record, update: SpoiledUpdate, past: Past) -> Event:
    number = record.steps.get("step", np.empty(0, np.int64))
    row = int(np.searchsorted(number, update.by))
    there = row < len(number)
    wall_time = float(record.steps["wall_time"][row]) if there and "wall_time" in record.steps else float("nan")
    data = {"after_step": update.after, "by_step": update.by}
    return with_runaway(Event(update.by, wall_time, "nonfinite_update", data=data), past)


def with_runaway(event: Event, past: Past) -> Event:
    """Of an update that made parameters non-finite, the gradients that had grown too long for it, if any."""
    after, by = as_float(event.data.get("after_step")), as_float(event.data.get("by_step"))
    found = past.runaway(-1 if math.isnan(after) else int(after), event.step if math.isnan(by) else int(by))
    if found is None:
        return event
    return replace(event, data={**event.data, "runaway_step": found.step, "runaway_norm": found.norm})
