"""Findings on learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tbnum.explain.finding import OF_THE_RUN, Finding, steps_of
from tbnum.explain.record import is_scalar_log
from tbnum.explain.thresholds import (
    CYCLE_STEPS,
    CYCLES_LEAST,
    DECAY_SHARE,
    LR_JUMP,
    LR_JUMP_STEPS,
    LR_NOTHING,
    LR_NOTHING_SHARE,
    LR_OUTLIER,
    LR_OUTLIER_STEPS,
    LR_ZERO_STEPS,
    NAMES_SHOWN,
    RESTART_STEPS,
    SCHEDULE_DRIFT_INFO,
    SCHEDULE_DRIFT_WARNING,
)
from tbnum.explain.view import RunView
from tbnum.explain.words import as_float, count_text, number_text, share_text
from tbnum.log.columns import StepColumn, columns_named

__all__ = [
    "cycles",
    "group_zero",
    "invalid",
    "jumped",
    "momentum",
    "outlier",
    "restarted",
    "schedule_drift",
    "weight_decay",
    "zero",
]


def outlier(view: RunView) -> Iterator[Finding]:
    """A learning rate many times that of the step before, and back within a few steps."""
    for column, lr in columns_named(view.steps, "lr"):
        with np.errstate(invalid="ignore"):
            jumps = np.flatnonzero((lr[1:] >= LR_OUTLIER * lr[:-1]) & (lr[:-1] > 0) & np.isfinite(lr[1:])) + 1
        rows = [row for row in jumps.tolist() if (lr[row + 1 : row + 1 + LR_OUTLIER_STEPS] <= 2 * lr[row - 1]).any()]
        if not rows or len(rows) > max(3, len(lr) // 100):
            continue  # none, or a schedule of that shape
        worst = max(rows, key=lambda row: float(lr[row] / lr[row - 1]))
        group = f" of group {column.group}" if column.group else ""
        whose = f" of {column.optimizer}" if column.optimizer else ""
        step = int(view.number[worst])
        yield Finding(
            "lr_outlier",
            "warning",
            "The learning rate was out of line for a step",
            f"The learning rate{group}{whose} was {number_text(float(lr[worst]))} at step {step:,}, "
            f"{lr[worst] / lr[worst - 1]:.3g} times that of the step before ({number_text(float(lr[worst - 1]))})"
            + (f"; {count_text(len(rows), 'such place')} in all." if len(rows) > 1 else "."),
            f"Look at what sets the learning rate at step {step:,}: a scheduler stepped with a number, two schedulers "
            "on one optimizer, a value that is written to param_groups.",
            steps_of(view.number[rows]),
        )
        return


def jumped(view: RunView) -> Iterator[Finding]:
    """A learning rate that late in a run rises at once to many times all that it had been, and stays there."""
    for column, lr in columns_named(view.steps, "lr"):
        if len(lr) <= LR_JUMP_STEPS:
            continue
        before = np.fmax.accumulate(lr)[:-1]
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero((lr[1:] >= LR_JUMP * before) & (before > 0) & np.isfinite(lr[1:])) + 1
        rows = rows[rows >= max(LR_JUMP_STEPS, len(lr) // 5)]  # a warm-up may end in a jump
        stayed = [row for row in rows.tolist() if np.nanmin(lr[row : row + LR_JUMP_STEPS]) >= lr[row] / 2]
        if not stayed:
            continue
        row = stayed[0]
        group = f" of group {column.group}" if column.group else ""
        whose = f" of {column.optimizer}" if column.optimizer else ""
        step = int(view.number[row])
        harm = any(step <= spike.step <= step + LR_JUMP_STEPS for spike in view.spikes)
        yield Finding(
            "lr_outlier",
            "warning" if harm else "info",
            "The learning rate jumped, and stays there",
            f"The learning rate{group}{whose} went from {number_text(float(lr[row - 1]))} to "
            f"{number_text(float(lr[row]))} at step {step:,}, {lr[row] / before[row - 1]:.3g} times the highest before"
            + (", and the loss rose with it." if harm else "."),
            f"Look at what sets the learning rate at step {step:,}: another scheduler, a value that is written to "
            "param_groups, a checkpoint of other settings. Fine where a warm-up ends there.",
            steps_of([step]),
        )
        return


def cycles(view: RunView) -> Iterator[Finding]:
    """A learning rate that goes up and down within a few steps, over and over."""
    for column, lr in columns_named(view.steps, "lr"):
        rate = lr[np.isfinite(lr)]
        change = np.diff(rate)
        turning = np.flatnonzero(change)
        up = change[turning] > 0
        tops, bottoms = (turning[1:][(up[:-1] != up[1:]) & (up[:-1] == rises)] for rises in (True, False))
        if min(len(tops), len(bottoms)) < CYCLES_LEAST:
            continue
        period, high, low = float(np.median(np.diff(tops))), np.median(rate[tops]), np.median(rate[bottoms])
        if period > CYCLE_STEPS or not high >= 2 * low:
            continue
        group = f" of group {column.group}" if column.group else ""
        whose = f" of {column.optimizer}" if column.optimizer else ""
        yield Finding(
            "lr_cycles",
            "info",
            "The learning rate goes up and down within a few steps",
            f"The learning rate{group}{whose} went from {number_text(float(low))} to {number_text(float(high))} and "
            f"back every {count_text(round(period), 'step')}, {count_text(len(tops), 'time')}.",
            "Fine if meant. Else look at the schedule: a T_max in epochs where step() is called for each batch, or two "
            "schedulers on one optimizer.",
            OF_THE_RUN,
        )
        return


def invalid(view: RunView) -> Iterator[Finding]:
    """A learning rate that goes uphill, or is no number that a step survives."""
    for column, lr in columns_named(view.steps, "lr"):
        for rule, rows, what in (
            ("lr_negative", np.flatnonzero(lr < 0), "negative: each step goes uphill"),
            ("lr_nonfinite", _nonfinite(view, column, lr), "not finite: no parameter survives such a step"),
        ):
            if not len(rows):
                continue
            group = f" of group {column.group}" if column.group else ""
            whose = f" of {column.optimizer}" if column.optimizer else ""
            yield Finding(
                rule,
                "error",
                "The learning rate is no step downhill",
                f"The learning rate{group}{whose} was {number_text(float(lr[rows[0]]))} in "
                f"{count_text(len(rows), 'step')}, the first at step {int(view.number[rows[0]]):,}; {what}.",
                "Look at the schedule: a decay past its end, a division by 0, a factor of the wrong sign.",
                steps_of(view.number[rows]),
            )


def _nonfinite(view: RunView, column: StepColumn, lr: np.ndarray) -> np.ndarray:
    """Rows (R,). A NaN counts where the optimizer stepped, and others of its rates are known: then it was measured.

    Not before the first rate of a further group, which may have been added to the optimizer there.
    """
    rows = np.isinf(lr)
    looked_at = view.steps.get(column.beside("nonfinite_tensors"))
    if looked_at is not None and np.isfinite(lr).any():
        skipped = view.steps.get(column.beside("skipped"), view.skipped)
        measured = ~np.isnan(looked_at) & ~skipped.astype(bool)
        if column.group:
            measured[: int(np.argmax(np.isfinite(lr)))] = False
        rows = rows | (np.isnan(lr) & measured)
    return np.flatnonzero(rows)


def zero(view: RunView) -> Iterator[Finding]:
    """Steps that were taken with a learning rate of 0, or next to it, in every group of an optimizer."""
    for optimizer, rates in _rates(view).items():
        highest = [np.nanmax(lr, initial=0.0) for lr in rates]
        still = np.logical_and.reduce([lr == 0 for lr in rates])
        idle = np.logical_and.reduce([np.abs(lr) <= LR_NOTHING * top for lr, top in zip(rates, highest, strict=True)])
        for steps, least in ((still, LR_ZERO_STEPS), (idle, max(LR_ZERO_STEPS, len(idle) // LR_NOTHING_SHARE))):
            edges = np.flatnonzero(np.diff(np.concatenate([[False], steps, [False]]).astype(np.int8))).reshape(-1, 2)
            long = [(begin, end) for begin, end in edges.tolist() if end - begin >= least]
            if steps is idle:  # a rate that warms up over orders of magnitude is meant
                long = [(begin, end) for begin, end in long if begin]
            if long:
                begin, end = long[-1]
                yield _no_rate(view, optimizer, begin, end, float(np.abs(rates[0][begin:end]).max()), max(highest))
                break


def _no_rate(view: RunView, optimizer: str | None, begin: int, end: int, rate: float, highest: float) -> Finding:
    whose = f" of {optimizer}" if optimizer else ""
    to_the_end = end == len(view.number)
    first = int(view.number[begin])
    what = "0" if rate == 0 else f"next to 0 (at most {number_text(rate)}, of {number_text(highest)} before)"
    text = f"The learning rate{whose} was {what} for {count_text(end - begin, 'step')}, the first at step {first:,}"
    warm = begin == 0 and not to_the_end
    aside = optimizer is not None and begin == 0  # one of several that does not train from the beginning on
    lowered = rate > 0 and _lowered_at_plateaus(view.steps[StepColumn(optimizer, "lr").full])
    return Finding(
        "lr_zero",
        "info" if warm or aside or lowered else "warning",
        "The learning rate is 0" if to_the_end else "The learning rate was 0 for a while",
        text + (", up to the end: nothing is learned." if to_the_end else "."),
        "A rate that is lowered where the loss stands still has come to its end: stop the run, or give the schedule a "
        "lowest rate."
        if lowered
        else "Look at the schedule's length against the number of updates: a decay that ended early, or a warm-up that "
        "never began, trains nothing.",
        steps_of([first]),
    )


def _lowered_at_plateaus(lr: np.ndarray) -> bool:
    """Whether a rate came down in some steps, at times that no schedule gives: it is lowered where the loss stands
    still."""
    lr = lr[np.isfinite(lr)]
    falls = np.flatnonzero(np.diff(lr))
    held = np.diff(falls)
    return bool(len(held) >= 2 and (np.diff(lr)[falls] < 0).all() and LR_ZERO_STEPS <= held.min() < held.max() - 1)


def group_zero(view: RunView) -> Iterator[Finding]:
    """A group whose learning rate is 0 at every step, while others of its optimizer learn."""
    for optimizer, rates in _rates(view).items():
        known = [(number, lr[np.isfinite(lr)]) for number, lr in enumerate(rates)]
        without = [number for number, lr in known if len(lr) >= LR_ZERO_STEPS and not lr.any()]
        if not without or len(without) == len(rates):
            continue
        whose = f" of {optimizer}" if optimizer else ""
        listed = ", ".join(map(str, without[:NAMES_SHOWN])) + (", ..." if len(without) > NAMES_SHOWN else "")
        yield Finding(
            "lr_zero",
            "info",
            "A group of parameters has a learning rate of 0",
            f"Of {count_text(len(rates), 'group')}{whose} {count_text(len(without), 'has', 'have')} a learning rate of "
            f"0 at every step (group {listed}): these parameters stay what they are.",
            "Fine where they are frozen on purpose. Else give the group a learning rate: a schedule multiplies that 0.",
            OF_THE_RUN,
        )


def _rates(view: RunView) -> dict[str | None, list[np.ndarray]]:
    """Of each optimizer the learning rates of its groups."""
    owners: dict[str | None, list[np.ndarray]] = {}
    for column, lr in columns_named(view.steps, "lr") if len(view.number) else ():
        owners.setdefault(column.optimizer, []).append(lr)
    return owners


def momentum(view: RunView) -> Iterator[Finding]:
    """A momentum from which no gradient ever fades, or one of Adam's that outlasts what its steps are divided by."""
    for group in _groups(view):
        value = as_float(group.settings.get("momentum"))
        first, second = _betas(group.settings.get("betas"))
        if value >= 1:
            title = "The momentum never fades"
            evidence = (
                f"momentum={number_text(value)}: every step goes on along the sum of all gradients since the first."
            )
            remedy = "Give a momentum below 1; 0.9 is usual."
        elif "Adam" in group.label and 0 < second < 1 and first**2 > math.sqrt(second):
            title = "Adam's betas look swapped"
            evidence = (
                f"betas=({number_text(first)}, {number_text(second)}): steps go along the last "
                f"{round(1 / max(1 - first, 1e-6)):,} gradients, and are divided by the size of the last "
                f"{round(1 / (1 - second)):,}, which may be far smaller."
            )
            remedy = "Give betas whose second is the larger one: (0.9, 0.999) or (0.9, 0.95) are usual."
        else:
            continue
        yield Finding(
            "momentum_invalid", "warning", title, f"{group.label} was made with {evidence}", remedy, OF_THE_RUN
        )
        return


def _betas(pair: Any) -> tuple[float, float]:
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        return math.nan, math.nan
    return as_float(pair[0]), as_float(pair[1])


def weight_decay(view: RunView) -> Iterator[Finding]:
    """Decay apart from the gradient that takes so much in each step that nothing learned lasts."""
    for group in _groups(view):
        if not group.settings.get("decoupled_weight_decay"):
            continue
        lr = view.steps.get(group.lr.full, np.empty(0))
        lr = lr[np.isfinite(lr)]
        rate, decay = float(np.median(lr)) if len(lr) else 0.0, as_float(group.settings.get("weight_decay"))
        if not rate * decay >= DECAY_SHARE:
            continue
        yield Finding(
            "weight_decay_strong",
            "warning",
            "Weight decay takes back what is learned",
            f"{group.label} has weight_decay={number_text(decay)}: at its learning rate of {number_text(rate)} each "
            f"step takes {100 * rate * decay:.2g} % of the parameters; about 0.01 % is usual.",
            "Lower the weight decay (0.01 to 0.1 is usual) or the learning rate, which multiplies it.",
            OF_THE_RUN,
        )
        return


class _Group(NamedTuple):
    """A parameter group as an optimizer was made with it."""

    label: str
    lr: StepColumn
    settings: Mapping[str, Any]


def _groups(view: RunView) -> Iterator[_Group]:
    optimizers = view.meta.get("optimizers")
    known = optimizers if isinstance(optimizers, Mapping) else {}
    for name, optimizer in known.items():
        groups = optimizer.get("groups") if isinstance(optimizer, Mapping) else None
        for number, settings in enumerate(groups or ()):
            if isinstance(settings, Mapping):
                label = f"{optimizer.get('class', 'The optimizer')} ({name}, group {number})"
                yield _Group(label, StepColumn(name if len(known) > 1 else None, "lr", number), settings)


def restarted(view: RunView) -> Iterator[Finding]:
    """A schedule that begins again one step after a resume: for that step the optimizer's state brought its rate."""
    for event in view.of("resume"):
        row = int(np.searchsorted(view.number, event.step))
        for column, lr in columns_named(view.steps, "lr"):
            first, now = lr[1 : 1 + RESTART_STEPS], lr[row + 1 : row + 1 + RESTART_STEPS]
            if column.group or row < len(first) or len(now) < RESTART_STEPS:
                continue
            with np.errstate(invalid="ignore"):
                again = (np.abs(now - first) <= 1e-6 * np.abs(first)).all()
                other = (np.abs(now - lr[row - 1]) > 0.05 * np.abs(lr[row - 1])).all()
            if not again or not other:
                continue
            whose = f" of {column.optimizer}" if column.optimizer else ""
            yield Finding(
                "schedule_state_lost",
                "warning",
                "The learning-rate schedule was not restored",
                f"The learning rate{whose} was {number_text(float(lr[row - 1]))} before the run was continued at step "
                f"{event.step:,}; from the step after it on it is what it was from step {int(view.number[1]):,} on, "
                f"beginning with {number_text(float(now[0]))}.",
                "Save scheduler.state_dict() in the checkpoint, and load it before going on.",
                steps_of([event.step]),
            )
            return


_ALL_ALONG = ("growth_probe", "bad_batch")
"""Causes of skips that, where they are harmless, come at a steady rate: a schedule is a bit shorter for them."""


def schedule_drift(view: RunView) -> Iterator[Finding]:
    """Learning rates that moved on after a step that was skipped."""
    if is_scalar_log(view.record):
        return  # a rate may be logged before or after it moved on
    for column, lr in columns_named(view.steps, "lr"):
        if column.group:
            continue  # they follow the first
        skipped = view.steps.get(column.beside("skipped"))
        if skipped is None or len(lr) < 2:
            continue
        after = np.flatnonzero(skipped[:-1])
        with np.errstate(invalid="ignore"):
            moved = np.abs(lr[after + 1] - lr[after]) > 1e-12 * np.abs(lr[after])
        drifted = after[moved]
        drift, total = len(drifted), len(lr)
        if drift < 2 or drift < SCHEDULE_DRIFT_INFO * total:
            continue
        whose = f" of {column.optimizer}" if column.optimizer else ""
        evidence = (
            f"The learning rate{whose} moved on after {drift:,} of {len(after):,} skipped steps: it is "
            f"{count_text(drift, 'step')} ({share_text(drift, total)} of the run) ahead of the updates."
        )
        remedy = (
            "Call scheduler.step() only where the optimizer stepped: compare scaler.get_scale() before and after "
            "scaler.update(), and skip the schedule where it fell."
        )
        even = {event.step for event in view.of("skip") if event.severity == "info" and event.cause in _ALL_ALONG}
        at_once = drift - len(even.intersection(view.number[drifted].tolist()))
        severity = "warning" if at_once >= SCHEDULE_DRIFT_WARNING * total else "info"
        title = "The schedule runs ahead on skipped steps"
        yield Finding("schedule_drift", severity, title, evidence, remedy, steps_of(view.number[drifted]))
        return
