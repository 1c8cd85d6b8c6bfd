"""What led to a step: which quantities left their usual in the steps before it, furthest first.

A function of a run and a step, never stored: a later tbnum answers better from the same record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tbnum.explain.record import Record
from tbnum.explain.thresholds import BASELINE, BEFORE, WINDOW_LEAST
from tbnum.log.columns import StepColumn, columns_named
from tbnum.log.numbering import checked_step

__all__ = ["LedHere", "Quantity", "longest_norms", "what_led_here"]

TENSORS = 5  # of those that have tables, the ones that left their usual furthest
COLUMNS = ("loss", "grad_norm", "lr", "clip_coef")
FLOOR = 0.05
"""The least deviation that values are held against: relative where they are positive, a share of the median elsewhere.
A column that hardly varies, as a learning rate, would leave its usual with each rounding."""


@dataclass(frozen=True)
class Quantity:
    """What one quantity did in the steps before."""

    name: str  # "loss", "grad_norm", "lr", "clip_coef", "update_ratio", "tensor_grad_norm"
    optimizer: str | None  # None where there is one alone, and for the loss
    tensor: str | None  # of "tensor_grad_norm"
    usual: float  # the median of the values before these steps; of the first half of them where there were too few
    value: float  # the one furthest from the usual
    at_step: int  # where it was
    deviations: float  # how far that is, in the quantity's own robust deviations
    steps: tuple[int, ...]
    values: tuple[float, ...]  # finite; what is unknown is left out


@dataclass(frozen=True)
class LedHere:
    step: int
    first_step: int  # of the steps before it that were looked at
    quantities: tuple[Quantity, ...]  # furthest from their usual first
    not_recorded: tuple[str, ...]  # quantities with fewer than `WINDOW_LEAST` values in these steps: not ranked


def what_led_here(run: Record, step: int) -> LedHere:
    """Looks at the `BEFORE` steps before `step`, and at `BASELINE` values before those for what was usual.

    O(columns) and at most `BEFORE` tables of tensors, whatever the length of the run: some 5 ms.

    Raises:
        TypeError: `step` is no whole number.
        ValueError: the run has no step before `step`.
    """
    step = checked_step(step)
    number = run.steps.get("step", np.empty(0, np.int64))
    end = int(np.searchsorted(number, step))
    if not end:
        raise ValueError(f"step is {step}; the record has no step before it" + _range_text(number))
    begin = max(0, end - BEFORE)
    found: list[Quantity] = []
    missing: list[str] = []
    for name, optimizer, values in _series(run):
        quantity = _judged(name, optimizer, None, number, values, begin, end)
        if quantity is None:
            missing.append(f"{optimizer}/{name}" if optimizer else name)
        else:
            found.append(quantity)
    tensors = _tensors(run, int(number[begin]), step)
    if not tensors:
        missing.append("tensor_grad_norm")
    found += tensors
    found.sort(key=lambda quantity: -quantity.deviations)
    return LedHere(step, int(number[begin]), tuple(found), tuple(missing))


def longest_norms(steps: Mapping[str, np.ndarray], column: StepColumn, norms: np.ndarray) -> np.ndarray:
    """Of the gradients before the clip, or as the optimizer got them: a loop may multiply them in between."""
    clipped = steps.get(column.beside("grad_norm_clipped"))
    return norms if clipped is None else np.fmax(norms, clipped)


def _range_text(number: np.ndarray) -> str:
    return f": it holds steps {int(number[0])} to {int(number[-1])}." if len(number) else ": it holds none."


def _series(run: Record) -> Iterator[tuple[str, str | None, np.ndarray]]:
    for name in COLUMNS:
        for column, values in columns_named(run.steps, name):
            if name == "grad_norm":
                values = longest_norms(run.steps, column, values)
            if not column.group and not (name == "loss" and column.optimizer):
                yield name, column.optimizer, values
    for column, updates in columns_named(run.steps, "update_norm"):
        norms = run.steps.get(column.beside("param_norm"))
        if norms is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                yield "update_ratio", column.optimizer, updates / norms


def _judged(
    name: str,
    optimizer: str | None,
    tensor: str | None,
    number: np.ndarray,
    values: np.ndarray,
    begin: int,
    end: int,
) -> Quantity | None:
    """None where the window [begin, end) holds too few values."""
    window = values[begin:end]
    finite = np.flatnonzero(np.isfinite(window))
    if len(finite) < WINDOW_LEAST:
        return None
    inside = window[finite]
    before = values[max(0, begin - BASELINE) : begin]
    before = before[np.isfinite(before)]
    if len(before) < WINDOW_LEAST:
        before = inside[: max(len(inside) // 2, 1)]
    with np.errstate(divide="ignore"):
        logs = bool((inside > 0).all() and (before > 0).all())
        compared, usually = (np.log(inside), np.log(before)) if logs else (inside, before)
    median = float(np.median(usually))
    low, high = np.quantile(usually, (0.1, 0.9))  # of values of two kinds, as clipped or not, both are usual
    spread = max(1.4826 * float(np.median(np.abs(usually - median))), float(high - low) / 2.56)
    floor = FLOOR if logs else FLOOR * abs(median)
    away = np.abs(compared - median) / max(spread, floor, 1e-30)
    at = int(np.argmax(away))
    steps = number[begin:end][finite]
    usual = math.exp(median) if logs else median
    return Quantity(
        name,
        optimizer,
        tensor,
        usual,
        float(inside[at]),
        int(steps[at]),
        float(away[at]),
        tuple(steps.tolist()),
        tuple(inside.tolist()),
    )


def _tensors(run: Record, first: int, step: int) -> list[Quantity]:
    """The tensors whose gradient norm left its usual furthest, from the tables of the steps before."""
    tensors: Any = getattr(run, "tensors", None)
    if tensors is None:
        return []
    known = tensors.steps_of("interval", "flight")
    chosen = known[(known >= first) & (known < step)]
    series: dict[tuple[str | None, str], dict[int, float]] = {}
    for at in chosen.tolist():
        for table in tensors.at(at, ("grad_norm",)):
            norms = table.columns.get("grad_norm")
            for name, norm in zip(table.names, () if norms is None else norms.tolist(), strict=False):
                series.setdefault((table.optimizer, name), {})[at] = norm
    found = []
    for (optimizer, name), norms in series.items():
        number, values = np.array(list(norms), np.int64), np.array(list(norms.values()))
        quantity = _judged("tensor_grad_norm", optimizer, name, number, values, 0, len(number))
        if quantity is not None:
            found.append(quantity)
    return sorted(found, key=lambda quantity: -quantity.deviations)[:TENSORS]
