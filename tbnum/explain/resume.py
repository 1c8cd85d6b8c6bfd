"""Where a continued run goes on, and what its checkpoint lost, from the record of what came before. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tbnum.explain.record import Record, optimizer_settings
from tbnum.explain.rows import sampled_rows
from tbnum.log.columns import StepColumn

__all__ = ["OptimizerNow", "lost_state", "starting_step"]

MOVED = 0.05
"""Share by which the norm of trained parameters has to have moved to distinguish them from new ones, which differ among
each other by a percent; and share of that way within which a norm is one that was measured."""


TABLES = 16
"""Of the tensors of a record, the first among them."""

TENSOR_MOVED, NEARER, MOVED_LEAST, MOVED_SHARE = 0.01, 4.0, 2, 0.75
"""A tensor whose norm moved by this share of the first one counts. At least so many, and this share of them, have to be
so many times nearer to what training made of them: of a tensor that is drawn again chance does that once in ten."""


@dataclass(frozen=True)
class OptimizerNow:
    """An optimizer as a session finds it before its first step."""

    name: str | None  # None where there is one optimizer alone: its columns stand plain
    has_state: bool  # momenta or the like: it has stepped before
    updates: int | None  # how often it has stepped, by its own counter; None where it keeps none
    stateless: bool  # plain SGD: there is nothing that a checkpoint could have kept
    lr: Sequence[float]  # of each group
    tensor_norms: Sequence[float] = ()  # of its parameters, in order; () where they are sharded
    class_name: str = ""

    @property
    def param_norm(self) -> float:
        """Of all of them; NaN where it was not measured."""
        return math.hypot(*self.tensor_norms) if self.tensor_norms else math.nan


def starting_step(past: Record, optimizers: Sequence[OptimizerNow]) -> tuple[int, str]:
    """The step at which a session goes on whose checkpoint held no monitor state, and how that is known.

    "fresh": the optimizers have not stepped, so this is a new beginning. "counted": by the optimizer's own counter of
    updates, held against the steps of the record that were not skipped. "unknown": it has stepped, but the record
    cannot say how often; then the session goes on after the last step that was recorded. "weights": likewise, for the
    optimizers have not stepped, but the norm of their parameters is that of parameters that the record saw trained.
    """
    recorded = past.steps.get("step", np.empty(0, np.int64))
    after_the_last = int(recorded[-1]) + 1 if len(recorded) else 0
    if not any(each.has_state for each in optimizers):
        trained = all(_is_trained(past, each) for each in optimizers)
        return (after_the_last, "weights") if trained else (0, "fresh")
    for each in optimizers:
        if each.updates is None:
            continue
        taken = _updates_before(past, each)
        if taken is not None and each.updates <= taken[-1]:
            return int(np.searchsorted(taken, each.updates)), "counted"
    return after_the_last, "unknown"


def _is_trained(past: Record, optimizer: OptimizerNow) -> bool:
    """Whether the parameters have the norms that the record measured in training, and not those of its beginning.

    Parameters that are drawn again have nearly the norm of those that were drawn before: of all together it differs by
    a percent. Tensor by tensor less movement is enough, for some (zeros, ones) begin with the same norm each time.
    """
    tables = _norms_of_tensors(past, optimizer)
    if tables is not None and len(tables) > 1:
        return _is_near(tables[0], tables[len(tables) // 2 :], np.array(optimizer.tensor_norms))
    norms = past.steps.get(StepColumn(optimizer.name, "param_norm").full, np.empty(0))
    norms = norms[np.isfinite(norms)]
    if len(norms) < 2 or not optimizer.param_norm > 0:
        return False
    moved = abs(float(norms[-1] - norms[0]))
    if moved < MOVED * float(norms[0]):
        return False  # too little to judge by
    late = norms[len(norms) // 2 :]
    nearest = float(np.abs(late - optimizer.param_norm).min())
    return nearest < MOVED * moved and abs(optimizer.param_norm - float(norms[0])) > moved / 2


def _weights_are_new(past: Record, step: int, optimizer: OptimizerNow) -> bool:
    """Whether the parameters are those of the beginning, and not the ones that the record had before `step`."""
    tables = _norms_of_tensors(past, optimizer, step)
    if tables is None or len(tables) < 2:
        return False
    first, last, now = tables[0], tables[-1], np.array(optimizer.tensor_norms)
    moved = np.abs(last - first) > MOVED * first
    nearer = np.abs(now - first) < np.abs(now - last)
    return bool(np.count_nonzero(moved) >= MOVED_LEAST and np.mean(nearer[moved]) > 0.5)


def _norms_of_tensors(past: Record, optimizer: OptimizerNow, before: int | None = None) -> np.ndarray | None:
    """(R, P) of the first table of the record and some up to its last, or to the last before a step.

    None where there are none of these tensors.
    """
    rows = [each for each in sampled_rows(past, ("param_norm",), TABLES) if each.optimizer == optimizer.name]
    if not rows or len(rows[0].names) != len(optimizer.tensor_norms):
        return None
    norms = rows[0].columns["param_norm"]
    known = np.isfinite(norms).all(1)
    return norms[known if before is None else known & (rows[0].steps < before)]


def _is_near(first: np.ndarray, late: np.ndarray, now: np.ndarray) -> bool:
    """Whether at one of the `late` rows (R, P) most tensors that had moved are nearer to it than to the first one."""
    for row in late:
        moved = np.abs(row - first) > TENSOR_MOVED * first
        nearer = np.abs(now - row) < np.abs(now - first) / NEARER
        if np.count_nonzero(moved) >= MOVED_LEAST and np.mean(nearer[moved]) >= MOVED_SHARE:
            return True
    return False


def lost_state(
    past: Record,
    step: int,
    optimizers: Sequence[OptimizerNow],
    loss_scale: float | None,
    expected_scale: float | None = None,
) -> list[tuple[str, str | None, dict[str, Any]]]:
    """What did not come back in a session that goes on at `step`: kind of event, optimizer and data of each.

    `loss_scale` is the scaler's now (None without an enabled one), `expected_scale` the one in the monitor's state,
    where there was one; else the record says what it was.
    """
    lost: list[tuple[str, str | None, dict[str, Any]]] = []
    expected = _scale_before(past, step) if expected_scale is None else expected_scale
    if loss_scale is not None and not math.isnan(expected) and loss_scale != expected:
        # A scale that is neither the one that was nor a new scaler's was set by the user.
        kind = "scaler_state_lost" if loss_scale == _initial_scale(past) else "scale_set"
        lost.append((kind, None, {"old_scale": expected, "new_scale": loss_scale}))
    for each in optimizers:
        lost += [(kind, each.name, data) for kind, data in _lost_of(past, step, each)]
    return lost


def _lost_of(past: Record, step: int, optimizer: OptimizerNow) -> list[tuple[str, dict[str, Any]]]:
    lost: list[tuple[str, dict[str, Any]]] = []
    taken = _updates_before(past, optimizer)
    expected = None if taken is None or step >= len(taken) else int(taken[step])
    updates = optimizer.updates if optimizer.has_state or optimizer.stateless else 0
    if expected and updates is not None and updates != expected:
        data: dict[str, Any] = {"expected_updates": expected, "updates": updates}
        class_before = _class_before(past, optimizer.name)
        if class_before and optimizer.class_name and class_before != optimizer.class_name:
            data |= {"old_class": class_before, "new_class": optimizer.class_name}
        lost.append(("optimizer_state_lost", data))
    if _weights_are_new(past, step, optimizer):
        lost.append(("model_state_lost", {}))
    for group, lr in enumerate(optimizer.lr):
        column = "/".join(filter(None, (optimizer.name, "lr", str(group) if group else None)))
        first, before = _lr_at(past, column, 0), _lr_at(past, column, step)
        if _close(lr, first) and not math.isnan(before) and not _close(lr, before, within=0.05):
            lost.append(("schedule_state_lost", {"group": group, "old_lr": before, "new_lr": lr}))
            break
    return lost


def _class_before(past: Record, name: str | None) -> str:
    """Of the optimizer in the session before, the last but one of the record; "" where it does not say."""
    sessions = past.meta.get("sessions") or []
    return str(optimizer_settings(sessions[-2], name).get("class") or "") if len(sessions) > 1 else ""


def _updates_before(past: Record, optimizer: OptimizerNow) -> np.ndarray | None:
    """How many updates were made before step 0, 1, ... and after the last; None where steps are missing."""
    steps = past.steps.get("step", np.empty(0, np.int64))
    prefix = "" if optimizer.name is None else f"{optimizer.name}/"
    skipped = past.steps.get(f"{prefix}skipped")
    if skipped is None or not np.array_equal(steps, np.arange(len(steps))):
        return None
    made = ~skipped
    norms = past.steps.get(f"{prefix}grad_norm")
    if optimizer.name is not None and norms is not None:
        made = made & ~np.isnan(norms)  # one of several optimizers may have sat a step out
    return np.concatenate([[0], np.cumsum(made)])


def _scale_before(past: Record, step: int) -> float:
    """The loss scale with which step `step` began, NaN where the record does not say."""
    at = _value_at(past, "loss_scale", step)
    if not math.isnan(at):
        return at
    changed = [event for event in past.raw_events if event.step == step - 1 and "new_scale" in event.data]
    for event in reversed(changed):
        if event.kind.startswith("scale_") and event.data["new_scale"] is not None:
            return float(event.data["new_scale"])
    return _value_at(past, "loss_scale", step - 1)


def _initial_scale(past: Record) -> float:
    """What the first session's scaler began with."""
    first = next(iter(past.meta.get("sessions") or [past.meta]))
    return float((first.get("scaler") or {}).get("init_scale", math.nan))


def _lr_at(past: Record, column: str, step: int) -> float:
    at = _value_at(past, column, step)
    return _value_at(past, column, step - 1) if math.isnan(at) else at


def _value_at(past: Record, column: str, step: int) -> float:
    steps = past.steps.get("step", np.empty(0, np.int64))
    values: Mapping[str, np.ndarray] = past.steps
    at = int(np.searchsorted(steps, step))
    if column not in values or at >= len(steps) or steps[at] != step:
        return math.nan
    return float(values[column][at])


def _close(a: float, b: float, within: float = 1e-6) -> bool:
    return abs(a - b) <= within * max(abs(a), abs(b))
