"""Findings from the columns of steps: spikes of the loss and what came before them, norms that explode, schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tbnum.explain.finding import Finding, steps_of
from tbnum.explain.record import Record, is_scalar_log
from tbnum.explain.thresholds import (
    BACK_DEVIATIONS,
    BACK_SHARE,
    BASELINE,
    BEFORE,
    LR_ROSE,
    NORM_EXPLODED,
    NORM_ROSE,
    SCHEDULE_DRIFT_INFO,
    SCHEDULE_DRIFT_WARNING,
    SPIKE_ALONE_DEVIATIONS,
    SPIKE_DEVIATIONS,
    SPIKE_SHARE,
    SPIKE_STEPS,
    SPIKES_WARNING,
)
from tbnum.explain.words import count_text, number_text, share_text
from tbnum.log.columns import columns_named
from tbnum.log.schema import Event

__all__ = ["curve_findings"]

STRIDE = BASELINE // 2  # between two windows: a median is taken once for so many steps


def curve_findings(record: Record, events: Sequence[Event]) -> Iterator[Finding]:
    """A few passes over the columns: some 0.3 s for a million steps."""
    spikes = _spikes(record)
    yield from _loss_spikes(record, events, spikes)
    yield from _exploding_norms(record, events, spikes)
    yield from _no_clipping(record, events, spikes)
    yield from _schedule_drift(record)


class _Usual(NamedTuple):
    """What was usual before each of some values."""

    median: np.ndarray
    deviation: np.ndarray  # robust: 1.4826 x the median distance from the median


def _usual(values: np.ndarray) -> _Usual:
    """Over windows of `BASELINE` values that end up to `STRIDE` before each; NaN for those that have none."""
    median, deviation = (np.full(len(values), np.nan) for _ in range(2))
    if len(values) > BASELINE:
        windows = np.lib.stride_tricks.sliding_window_view(values, BASELINE)[::STRIDE]
        middle = np.median(windows, axis=1)
        spread = 1.4826 * np.median(np.abs(windows - middle[:, None]), axis=1)
        window = (np.arange(BASELINE, len(values)) - BASELINE) // STRIDE
        median[BASELINE:], deviation[BASELINE:] = middle[window], spread[window]
    return _Usual(median, deviation)


class _Spike(NamedTuple):
    row: int  # of the first step of it
    loss: float  # the highest
    usual: float
    back_after: int | None  # steps; None: not, or the record ends too soon to tell
    lasting: bool  # it was still high `BASELINE` steps later


def _spikes(record: Record) -> list[_Spike]:
    """Steps that were taken, with a finite loss far above the usual. Skipped steps are told by their skip."""
    loss = record.steps.get("loss")
    if loss is None:
        return []
    rows = np.flatnonzero(np.isfinite(loss) & ~record.steps.get("skipped", np.zeros(len(loss), bool)))
    values = loss[rows]
    median, deviation = _usual(values)
    above, least = values - median, SPIKE_SHARE * np.abs(median)
    high = above > np.maximum(SPIKE_DEVIATIONS * deviation, least)
    count = np.concatenate([[0], np.cumsum(high)])
    near = count[np.minimum(np.arange(len(values)) + 8, len(values))] - count[:-1]  # of this step and the next 7
    high &= (above > np.maximum(SPIKE_ALONE_DEVIATIONS * deviation, least)) | (near >= SPIKE_STEPS)
    spikes: list[_Spike] = []
    ends = -1
    for at in np.flatnonzero(high).tolist():
        if at <= ends:  # of the spike before
            worst = max(spikes[-1].loss, float(values[at]))
            spikes[-1] = spikes[-1]._replace(loss=worst)
            ends = max(ends, at + STRIDE)
            continue
        usual = float(median[at])
        border = usual + max(BACK_DEVIATIONS * float(deviation[at]), BACK_SHARE * abs(usual))
        back = np.flatnonzero(values[at + 1 : at + 1 + BASELINE] <= border)
        after = values[at + 1 : at + 1 + BASELINE]
        lasting = len(after) >= BASELINE // 2 and float(np.median(after)) > border
        back_after = int(rows[at + 1 + back[0]] - rows[at]) if len(back) and not lasting else None
        spikes.append(_Spike(int(rows[at]), float(values[at]), usual, back_after, lasting))
        ends = at + STRIDE
    return spikes


def _loss_spikes(record: Record, events: Sequence[Event], spikes: Sequence[_Spike]) -> Iterator[Finding]:
    if not spikes:
        return
    step = record.steps["step"]
    worst = max(spikes, key=lambda spike: (spike.lasting, spike.loss - spike.usual))
    at = int(step[worst.row])
    evidence = (
        f"{count_text(len(spikes), 'spike')}, the first at step {int(step[spikes[0].row]):,}; the worst at step "
        f"{at:,}: loss {number_text(worst.loss)} against a usual {number_text(worst.usual)}"
    )
    if worst.lasting:
        evidence += f", and it stayed high for the next {BASELINE} steps"
    elif worst.back_after is not None:
        evidence += f", back after {count_text(worst.back_after, 'step')}"
    before, remedy = _what_preceded(record, events, worst.row)
    evidence += f". Before it: {before}."
    grave = any(spike.lasting for spike in spikes) or len(spikes) >= SPIKES_WARNING
    title = "The loss jumped and did not come back" if worst.lasting else "The loss had spikes"
    steps = steps_of(int(step[spike.row]) for spike in spikes)
    yield Finding("loss_spike", "warning" if grave else "info", title, evidence, remedy, steps)


def _what_preceded(record: Record, events: Sequence[Event], row: int) -> tuple[str, str]:
    """What the record has of the steps before a spike, and what to do about it."""
    steps = record.steps
    step, begin = int(steps["step"][row]), max(0, row - BEFORE)
    told: list[str] = []
    remedies: list[str] = []
    for _, lr in columns_named(steps, "lr")[:1]:
        if row and lr[row] > LR_ROSE * lr[begin] > 0:
            told.append(f"the learning rate rose from {number_text(lr[begin])} to {number_text(lr[row])}")
            remedies.append("Lengthen the warm-up or lower the peak of the learning rate.")
    risen = _norm_before(record, row)
    if risen is not None:
        told.append(f"the gradient norm rose to {risen[1]:.2g} times the usual at step {risen[0]:,}")
        remedies.append("Clip the gradients at a few times their usual norm.")
    near = [event for event in events if step - BEFORE <= event.step <= step]
    skips = [event for event in near if event.kind == "skip"]
    if skips:
        causes = ", ".join(sorted({event.cause or "unknown" for event in skips}))
        told.append(f"{count_text(len(skips), 'skip')} ({causes})")
    for kind, words in (
        ("resume", "the run was continued from a checkpoint"),
        ("nonfinite_step", "a step was taken on a non-finite gradient"),
        ("scale_set", "the loss scale was set by hand"),
    ):
        if any(event.kind == kind for event in near):
            told.append(words)
    notes = [str(event.data.get("text", "")) for event in near if event.kind == "annotation"]
    told += [f"a note, {text!r}" for text in notes[:1]]
    if not told:
        return "nothing in the record", f"Look at the batch of step {step:,} (labels, lengths, outliers)."
    return "; ".join(told), " ".join(remedies) or f"Look at the batch of step {step:,} in that light."


def _norm_before(record: Record, row: int) -> tuple[int, float] | None:
    """The first of the steps before `row` at which a gradient norm was `NORM_ROSE` times the usual, and how high."""
    for _, norms in _norm_columns(record):
        window = norms[max(0, row - BEFORE - BASELINE) : row]
        usual = window[: -min(BEFORE, len(window) // 2) or None]
        usual = usual[np.isfinite(usual)]
        if not len(usual):
            continue
        late = window[-BEFORE:]
        high = np.flatnonzero(np.isfinite(late) & (late > NORM_ROSE * np.median(usual)))
        if len(high):
            first = row - len(late) + int(high[0])
            return int(record.steps["step"][first]), float(np.max(late[high]) / np.median(usual))
    return None


def _norm_columns(record: Record) -> Iterator[tuple[str, np.ndarray]]:
    for column, values in columns_named(record.steps, "grad_norm"):
        yield column.beside(""), values


def _exploding_norms(record: Record, events: Sequence[Event], spikes: Sequence[_Spike]) -> Iterator[Finding]:
    """Norms far beyond the usual on the way to something worse. By themselves they are what clipping is for."""
    steps = record.steps
    number = steps.get("step", np.empty(0, np.int64))
    worse = [(int(number[spike.row]), "the loss spike") for spike in spikes]
    worse += [(e.step, "the scale collapsed") for e in events if e.kind == "scale_collapse"]
    worse += [(e.step, "the loss was not finite") for e in events if e.cause == "forward_nonfinite"][:1]
    worse += [(e.step, "a non-finite gradient reached the parameters") for e in events if e.kind == "nonfinite_step"]
    if not worse:
        return
    for prefix, norms in _norm_columns(record):
        skipped = steps.get(prefix + "skipped", np.zeros(len(norms), bool))
        rows = np.flatnonzero(np.isfinite(norms) & ~skipped)
        values = norms[rows]
        median, _ = _usual(values)
        with np.errstate(invalid="ignore"):
            exploded = number[rows[values > NORM_EXPLODED * median]]
        found = [
            (step, what, exploded[(exploded < step) & (exploded >= step - BEFORE)]) for step, what in sorted(worse)
        ]
        found = [(step, what, before) for step, what, before in found if len(before)]
        if not found:
            continue
        step, what, before = found[0]
        at = int(np.searchsorted(number, before[0]))
        usual = float(median[int(np.searchsorted(rows, at))])
        whose = f" of {prefix[:-1]}" if prefix else ""
        evidence = (
            f"The gradient norm{whose} was {number_text(float(norms[at]))} at step {int(before[0]):,}, "
            f"{norms[at] / usual:.2g} times the usual {number_text(usual)}; "
            f"{count_text(int(step - before[0]), 'step')} later, at step {step:,}: {what}."
        )
        remedy = f"Clip the gradients at a few times {number_text(usual)}, or lower the learning rate there."
        at_steps = steps_of(np.concatenate([np.append(before, step) for step, _, before in found]))
        yield Finding("exploding_norm", "warning", "Gradient norms exploded before it", evidence, remedy, at_steps)


def _no_clipping(record: Record, events: Sequence[Event], spikes: Sequence[_Spike]) -> Iterator[Finding]:
    """Only where there is something that clipping is for."""
    thresholds = [values for _, values in columns_named(record.steps, "max_norm")]
    bad = [event.step for event in events if event.cause == "bad_batch"]
    if not thresholds or any(np.isfinite(values).any() for values in thresholds):
        return
    if len(bad) + len(spikes) < SPIKES_WARNING:
        return
    norms = next((values[np.isfinite(values)] for _, values in _norm_columns(record)), np.empty(0))
    usual = f" The median gradient norm is {number_text(float(np.median(norms)))}." if len(norms) else ""
    yield Finding(
        "no_clipping",
        "info",
        "No clipping was seen",
        f"{count_text(len(spikes), 'loss spike')} and {count_text(len(bad), 'bad batch', 'bad batches')}, "
        f"and no gradient was clipped by torch's functions.{usual}",
        "Clip at a few times the median norm (a clip written by hand is not seen, and may be there already).",
        steps_of([*(int(record.steps["step"][spike.row]) for spike in spikes), *bad]),
    )


def _schedule_drift(record: Record) -> Iterator[Finding]:
    """Learning rates that moved on after a step that was skipped."""
    if is_scalar_log(record):
        return  # a rate may be logged before or after it moved on
    steps = record.steps
    for column, lr in columns_named(steps, "lr"):
        if column.group:
            continue  # they follow the first
        skipped = steps.get(column.beside("skipped"))
        if skipped is None or len(lr) < 2:
            continue
        with np.errstate(invalid="ignore"):
            moved = np.abs(np.diff(lr)) > 1e-12 * np.abs(lr[:-1])
        drifted = np.flatnonzero(moved & skipped[:-1])
        drift = len(drifted)
        total = len(lr)
        if drift < 2 or drift < SCHEDULE_DRIFT_INFO * total:
            continue
        whose = f" of {column.optimizer}" if column.optimizer else ""
        evidence = (
            f"The learning rate{whose} moved on after {drift:,} of {int(np.count_nonzero(skipped[:-1])):,} skipped "
            f"steps: it is {count_text(drift, 'step')} ({share_text(drift, total)} of the run) ahead of the updates."
        )
        remedy = (
            "Call scheduler.step() only where the optimizer stepped: compare scaler.get_scale() before and after "
            "scaler.update(), and skip the schedule where it fell."
        )
        severity = "warning" if drift >= SCHEDULE_DRIFT_WARNING * total else "info"
        title = "The schedule runs ahead on skipped steps"
        yield Finding("schedule_drift", severity, title, evidence, remedy, steps_of(steps["step"][drifted]))
        return
