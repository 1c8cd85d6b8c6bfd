"""What the steps before a step say. The log and a live run answer alike, as far as each of them can."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tbnum.explain.close_look import CloseLook, Gradients
from tbnum.explain.outliers import period_of
from tbnum.explain.parameters import ParameterNorms
from tbnum.explain.record import without_gradient
from tbnum.explain.words import as_float
from tbnum.log.columns import StepColumn, columns_named

__all__ = ["LivePast", "Past", "RecordedPast", "Runaway", "runaway"]

WINDOW = 50
"""How many steps back "recent" reaches."""

NEXT = 16
"""Steps after one that show whether it was the only one of its kind."""

HISTORY = 512
"""How many steps away is looked for what is rare, and usual all the same."""

RUNAWAY = 2.0**63
"""A gradient norm whose square float32 does not hold: what an optimizer makes of it need not be finite."""

NORMS = ("grad_norm", "grad_norm_clipped")
"""Of the gradients, and of what the optimizer got: who writes to them after a look may have made them longer."""


class Runaway(NamedTuple):
    """A step whose gradients were finite, and beyond `RUNAWAY`."""

    step: int
    norm: float


def runaway(steps: Mapping[str, np.ndarray], after: int, by: int) -> Runaway | None:
    """The first one after step `after`, up to `by`."""
    number = steps.get("step", np.empty(0, np.int64))
    found: Runaway | None = None
    for column, norms in [each for name in NORMS for each in columns_named(steps, name)]:
        beyond = (number > after) & (number <= by) & (norms >= RUNAWAY)
        nonfinite = steps.get(column.beside("nonfinite_tensors"))
        if nonfinite is not None:
            beyond &= ~(nonfinite > 0)
        rows = np.flatnonzero(beyond)
        if len(rows) and (found is None or number[rows[0]] < found.step):
            found = Runaway(int(number[rows[0]]), float(norms[rows[0]]))
    return found


class Past(Protocol):
    """Answers of the record. Costs are those of `RecordedPast`: O(log steps + WINDOW) each."""

    def recent_losses(self, before: int) -> list[float]:
        """Finite losses of the unskipped ones among the `WINDOW` steps recorded before step `before`."""
        ...

    def next_losses(self, after: int) -> list[float]:
        """Finite losses of the unskipped ones of the `NEXT` steps recorded after step `after`, once all are there."""
        ...

    def heights(self, name: str, step: int, optimizer: str | None, *, after: bool) -> np.ndarray:
        """How many times the usual around them the values of a column were, in up to `HISTORY` taken steps before.

        `after`: and of those that follow, as far as they are known. What is rare, and usual all the same, may show
        itself later.
        """
        ...

    def heights_at_its_place(self, step: int, optimizer: str | None) -> tuple[np.ndarray, np.ndarray]:
        """Of the norm and the loss, in steps around it that stand where this one does in a period, as an epoch is.

        Empty where the highest norms have none.
        """
        ...

    def last_finite_loss(self, before: int) -> int | None:
        """The last recorded step before `before` whose loss was finite."""
        ...

    def without_gradient(self, after: int, before: int) -> int:
        """Of the steps taken after `after` and before `before` those whose gradients are known to be all 0."""
        ...

    def value(self, name: str, step: int, optimizer: str | None) -> float:
        """A column at a step; NaN where it is unknown."""
        ...

    def norm_ratio(self, step: int, optimizer: str | None) -> float:
        """How many times their usual length the finite gradients of a skipped step have. NaN where unknown."""
        ...

    def gradients(self, step: int, optimizer: str | None) -> Gradients | None:
        """What the gradients of a step that failed held; None where the record has no table of them."""
        ...

    def parameters_finite_after(self, before: int) -> int:
        """The last step before `before` after which the parameters were measured finite; -1 where none was."""
        ...

    def parameters_nonfinite(self, since: int, step: int) -> bool | None:
        """Whether the parameters, non-finite since step `since`, were still so at the beginning of `step`, as measured.

        None where nothing was measured that could say.
        """
        ...

    def runaway(self, after: int, by: int) -> Runaway | None:
        """See `runaway`."""
        ...


def _heights(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of finite values, and these as multiples of the median of `WINDOW` neighbours, where it is above 0."""
    known = np.flatnonzero(np.isfinite(values))
    places = known[len(known) % WINDOW :].reshape(-1, WINDOW)
    ordered = np.sort(values[places], axis=1)  # ten times as fast as to partition rows this short
    usual = (ordered[:, WINDOW // 2 - 1] + ordered[:, WINDOW // 2]) / 2
    places, usual = places[usual > 0], usual[usual > 0, None]
    return places.ravel(), np.asarray((values[places] / usual).ravel())


class RecordedPast:
    """The past as arrays have it. Building is O(1)."""

    def __init__(
        self,
        steps: Mapping[str, np.ndarray],
        look: CloseLook | None = None,
        parameters: ParameterNorms | None = None,
    ) -> None:
        self._look = look
        self._parameters = parameters
        self._steps = steps
        self._step = steps.get("step", np.empty(0, np.int64))
        self._loss = steps.get("loss", np.full(len(self._step), np.nan))
        self._skipped = steps.get("skipped", np.zeros(len(self._step), bool))

    def recent_losses(self, before: int) -> list[float]:
        end = int(np.searchsorted(self._step, before))
        window = slice(max(0, end - WINDOW), end)
        losses = self._loss[window]
        return losses[np.isfinite(losses) & ~self._skipped[window]].tolist()

    def next_losses(self, after: int) -> list[float]:
        begin = int(np.searchsorted(self._step, after, side="right"))
        window = slice(begin, begin + NEXT)
        losses = self._loss[window]
        return losses[np.isfinite(losses) & ~self._skipped[window]].tolist() if len(losses) == NEXT else []

    def heights(self, name: str, step: int, optimizer: str | None, *, after: bool) -> np.ndarray:
        values = self._steps.get(StepColumn(optimizer, name).full, self._steps.get(name))
        if values is None:
            return np.empty(0)
        end = int(np.searchsorted(self._step, step))
        window = slice(max(WINDOW, end - HISTORY), end + HISTORY if after else end)
        return _heights(values[window][~self._skipped[window]])[1]

    def heights_at_its_place(self, step: int, optimizer: str | None) -> tuple[np.ndarray, np.ndarray]:
        row = int(np.searchsorted(self._step, step))
        begin = max(WINDOW, row - HISTORY)
        window, place = slice(begin, row + HISTORY), row - begin
        values = self._steps.get(StepColumn(optimizer, "grad_norm").full, self._steps.get("grad_norm", self._loss))
        (places, norms), (others, losses) = _heights(values[window]), _heights(self._loss[window])
        period = period_of(place, places, norms) or period_of(place, others, losses)
        if not period:
            return np.empty(0), np.empty(0)
        places, others = places - place, others - place
        return norms[(places % period == 0) & (places != 0)], losses[(others % period == 0) & (others != 0)]

    def last_finite_loss(self, before: int) -> int | None:
        end = int(np.searchsorted(self._finite_at, before))
        return int(self._finite_at[end - 1]) if end else None

    @functools.cached_property
    def _finite_at(self) -> np.ndarray:
        return self._step[np.isfinite(self._loss)]

    def without_gradient(self, after: int, before: int) -> int:
        begin, end = np.searchsorted(self._without_gradient, [after + 1, before])
        return int(end - begin)

    @functools.cached_property
    def _without_gradient(self) -> np.ndarray:
        """Their numbers, rising."""
        return self._step[without_gradient(self._steps) & ~self._skipped]

    def value(self, name: str, step: int, optimizer: str | None) -> float:
        values = self._steps.get(StepColumn(optimizer, name).full, self._steps.get(name))
        row = int(np.searchsorted(self._step, step))
        return float(values[row]) if values is not None and row < len(values) and self._step[row] == step else math.nan

    def norm_ratio(self, step: int, optimizer: str | None) -> float:
        return math.nan if self._look is None else self._look.norm_ratio(step, optimizer)

    def gradients(self, step: int, optimizer: str | None) -> Gradients | None:
        return None if self._look is None else self._look.gradients(step, optimizer)

    def parameters_finite_after(self, before: int) -> int:
        return -1 if self._parameters is None else self._parameters.last_finite(before)

    def parameters_nonfinite(self, since: int, step: int) -> bool | None:
        return None if self._parameters is None else self._parameters.still_nonfinite(since, step)

    def runaway(self, after: int, by: int) -> Runaway | None:
        return runaway(self._steps, after, by)


def _places_of_norms(columns: Sequence[str]) -> list[tuple[int, int | None]]:
    """In the order of `runaway`."""
    places = {name: at for at, name in enumerate(columns)}
    parsed = [StepColumn.parse(name) for name in columns]
    return [
        (places[column.full], places.get(column.beside("nonfinite_tensors")))
        for name in NORMS
        for column in parsed
        if column.name == name
    ]


class LivePast:
    """The past of a run that goes on. Memory O(HISTORY), a step about a microsecond."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int, float]] = deque(maxlen=HISTORY + 1)  # row, step and loss; one is the newest
        self._rows = 0
        self._last_finite: deque[int] = deque(maxlen=2)  # two: the newest may be the step that is asked about
        self._columns: Sequence[str] = ()
        self._row: Sequence[Any] = ()
        self._newest = -1
        self._norms: list[tuple[int, int | None]] = []  # places of gradient norms, and of how many were not finite
        self._runaway: Runaway | None = None

    def step(self, step: int, loss: float, skipped: bool, columns: Sequence[str] = (), row: Sequence[Any] = ()) -> None:
        finite = math.isfinite(loss)
        self._recent.append((self._rows, step, math.nan if skipped or not finite else loss))
        self._rows += 1
        if finite:
            self._last_finite.append(step)
        if columns is not self._columns:
            self._norms = _places_of_norms(columns)
        self._newest, self._columns, self._row = step, columns, row
        if self._runaway is None:
            for at, bad in self._norms:
                if as_float(row[at]) >= RUNAWAY and (bad is None or not row[bad] > 0):
                    self._runaway = Runaway(step, as_float(row[at]))
                    break

    def recent_losses(self, before: int) -> list[float]:
        losses = [loss for _, step, loss in self._recent if step < before][-WINDOW:]
        return [loss for loss in losses if loss == loss]

    def next_losses(self, after: int) -> list[float]:
        return []  # not known yet

    def heights(self, name: str, step: int, optimizer: str | None, *, after: bool) -> np.ndarray:
        if name != "loss":
            return np.empty(0)  # not kept
        losses = [loss for row, at, loss in self._recent if at < step and row >= WINDOW]
        return _heights(np.array(losses[-HISTORY:]))[1]

    def heights_at_its_place(self, step: int, optimizer: str | None) -> tuple[np.ndarray, np.ndarray]:
        return np.empty(0), np.empty(0)  # norms are not kept

    def last_finite_loss(self, before: int) -> int | None:
        return next((step for step in reversed(self._last_finite) if step < before), None)

    def without_gradient(self, after: int, before: int) -> int:
        return 0  # norms are not kept

    def value(self, name: str, step: int, optimizer: str | None) -> float:
        if step != self._newest:
            return math.nan
        full = StepColumn(optimizer, name).full
        return as_float(self._row[self._columns.index(full)]) if full in self._columns else math.nan

    def norm_ratio(self, step: int, optimizer: str | None) -> float:
        return math.nan  # the tables of tensors are written, not kept

    def gradients(self, step: int, optimizer: str | None) -> Gradients | None:
        return None

    def parameters_finite_after(self, before: int) -> int:
        return -1

    def parameters_nonfinite(self, since: int, step: int) -> bool | None:
        return None

    def runaway(self, after: int, by: int) -> Runaway | None:
        return self._runaway if self._runaway is not None and after < self._runaway.step <= by else None
