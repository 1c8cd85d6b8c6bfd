"""Findings from the events of a run, and from what became of its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tbnum.explain.causes import CAUSES, EDGE_REMEDY, forward_remedy
from tbnum.explain.facts import skips_of
from tbnum.explain.finding import OF_THE_RUN, Finding, steps_of
from tbnum.explain.kinds import KINDS
from tbnum.explain.record import attempts, is_scalar_log
from tbnum.explain.rules import BENIGN
from tbnum.explain.thresholds import (
    BASELINE,
    RAN_AWAY,
    RAN_AWAY_STEPS,
    SKIP_RATE_LEAST,
    SKIP_RATE_WARNING,
    SKIPPED_MOST,
    SKIPPED_STEPS,
)
from tbnum.explain.totals import wasted_seconds
from tbnum.explain.view import RunView
from tbnum.explain.words import as_float, clock_text, count_text, duration_text, share_text
from tbnum.log.columns import columns_named
from tbnum.log.schema import SEVERITIES, Event

__all__ = [
    "collapse",
    "concurrent_writers",
    "counted",
    "crash",
    "dropped",
    "lost_ranks",
    "mean_over_nothing",
    "no_steps",
    "nonfinite_loss",
    "nonfinite_parameters",
    "nonfinite_steps",
    "skips",
]


def _steps(events: Sequence[Event]) -> tuple[int, ...]:
    return steps_of(event.step for event in events)


def lost_ranks(view: RunView) -> Iterator[Finding]:
    lost = view.of("rank_lost")
    if lost:
        more = f" ({len(lost) - 1} more like it)" if len(lost) > 1 else ""
        steps = _steps(lost)
        yield Finding("rank_lost", "error", "A rank was lost", lost[0].message + more, lost[0].remedy, steps)


def crash(view: RunView) -> Iterator[Finding]:
    for event in view.of("crash")[-1:]:
        evidence = f"Step {event.step}: {event.message}"
        yield Finding("crash", "error", "The training loop crashed", evidence, event.remedy, _steps([event]))


def collapse(view: RunView) -> Iterator[Finding]:
    collapses = view.of("scale_collapse")
    if collapses:
        worst = max(collapses, key=lambda event: as_float(event.data.get("skips")))
        times = f" ({count_text(len(collapses), 'time')} in this run)" if len(collapses) > 1 else ""
        steps = _steps(collapses)
        yield Finding("scale_collapse", "error", "The loss scale collapsed", worst.message + times, worst.remedy, steps)


def nonfinite_steps(view: RunView) -> Iterator[Finding]:
    steps = view.of("nonfinite_step")
    if steps:
        first = steps[0]
        evidence = f"{count_text(len(steps), 'step')} of this kind, the first at step {first.step}: {first.message}"
        title = "Non-finite gradients reached the parameters"
        yield Finding("nonfinite_step", "error", title, evidence, first.remedy, _steps(steps))


def nonfinite_parameters(view: RunView) -> Iterator[Finding]:
    skips = [event for event in view.of("skip") if event.cause == "nonfinite_parameters"]
    if skips:
        evidence = f"{count_text(len(skips), 'step')} skipped for it, the first at step {skips[0].step}."
        title = "The parameters are not finite"
        yield Finding("nonfinite_parameters", "error", title, evidence, skips[0].remedy, _steps(skips))


def nonfinite_loss(view: RunView) -> Iterator[Finding]:
    """But for losses over nothing, which have a rule of their own, and those that follow a scale that came down."""
    rows = np.setdiff1d(view.nonfinite_losses, _over_nothing(view))
    of_scale = [event.step for event in view.of("skip") if event.cause in BENIGN]  # a lower scale made it finite
    rows = rows[~np.isin(view.number[rows], of_scale)]
    reported = [event.step for event in view.events if event.cause == "forward_nonfinite"]  # maybe on another rank
    if reported and len(view.number):
        rows = np.union1d(rows, np.flatnonzero(np.isin(view.number, reported)))
    if not len(rows):
        return
    steps, total = view.number, len(view.number)
    evidence = f"{count_text(len(rows), 'step')} of {total:,}, the first at step {steps[rows[0]]}"
    remedy = forward_remedy(int(steps[rows[0]]))
    reached = _reached_nothing(view)
    if np.isin(rows, reached).all():
        evidence += ", while every gradient was finite"
        remedy = "Look for a NaN in a term of the loss that no parameter has a part in"
        if np.isin(rows, _of_several(view, reached)).any():
            remedy += ", or for a micro-batch in which every target is ignored or masked"
        remedy += "; training was not spoiled."
    first = next((e for e in view.events if e.step >= steps[rows[0]] and e.kind in ("skip", "nonfinite_step")), None)
    spoiled = next((e for e in view.of("nonfinite_update") if e.step <= steps[rows[0]]), None)
    if spoiled is not None:
        remedy = spoiled.remedy  # the loss is only where it shows
    elif first is not None and first.cause == "nonfinite_parameters":
        remedy = first.remedy
    else:
        remedy = _ran_away(view, int(steps[rows[0]])) + remedy
    if rows[-1] == total - 1:
        row = int(np.flatnonzero(np.diff(rows) > 1)[-1]) + 1 if np.any(np.diff(rows) > 1) else 0
        evidence += f"; not once finite since step {steps[rows[row]]}."
        title = "The loss is not finite at the end"
        yield Finding("nonfinite_loss", "error", title, evidence, remedy, steps_of(steps[rows]))
    else:
        evidence += "; finite again at the end."
        title = "The loss was not finite in between"
        yield Finding("nonfinite_loss", "warning", title, evidence, remedy, steps_of(steps[rows]))


def _ran_away(view: RunView, step: int) -> str:
    """What comes before all else where the loss, or a gradient, had left its usual before the loss was not finite."""
    left = [spike.step for spike in view.spikes if spike.grave and spike.step < step and spike.back_after is None]
    at = left[-1] if left else _high_before(view, "loss", step)
    what = "loss"
    if at is None:
        at, what = _high_before(view, "grad_norm", step), "gradient norm"
    if at is None:
        return ""
    return (
        f"The {what} had left its usual by step {at:,}: lower the learning rate or clip the gradients from before that "
        "step, or look at its batch. Else: "
    )


def _high_before(view: RunView, name: str, step: int) -> int | None:
    """The first of the last few steps before a step whose value was far above those before, in a run of any length."""
    for _, values in columns_named(view.steps, name):
        rows = np.flatnonzero(np.isfinite(values) & ~view.skipped & (view.number < step))[-BASELINE - RAN_AWAY_STEPS :]
        before = rows[: max(1, len(rows) - RAN_AWAY_STEPS)]
        usual = float(np.median(values[before])) if len(before) else 0.0
        high = rows[len(before) :]
        high = high[values[high] > RAN_AWAY * usual] if usual > 0 else high[:0]
        if len(high):
            return int(view.number[high[0]])
    return None


def _reached_nothing(view: RunView) -> np.ndarray:
    """Rows (R,) whose loss was NaN while every gradient was finite: it reached no parameter as NaN."""
    rows = view.nonfinite_losses
    counts = columns_named(view.steps, "nonfinite_tensors")
    if not len(rows) or not counts:
        return np.empty(0, np.int64)
    finite = np.isnan(view.steps["loss"][rows]) & ~view.skipped[rows]
    for _, values in counts:
        finite &= ~(values[rows] > 0)
    finite &= np.logical_or.reduce([values[rows] == 0 for _, values in counts])
    spoiled = [event.step for event in view.of("nonfinite_update")]  # a gradient of 0 hides what they made of the loss
    if spoiled:
        finite &= view.number[rows] <= min(spoiled)
    return rows[finite]


def _over_nothing(view: RunView) -> np.ndarray:
    """Of those the rows (R,) whose backward left nothing."""
    rows = _reached_nothing(view)
    norms = [values[rows] for _, values in columns_named(view.steps, "grad_norm")]
    return rows[np.nansum(norms, axis=0) == 0] if norms else rows


def _of_several(view: RunView, rows: np.ndarray) -> np.ndarray:
    """Of rows those with several micro-batches: the others have a gradient, whatever the one with the NaN has."""
    counts = view.steps.get("micro_batches", np.ones(len(view.number)))
    return rows[counts[rows] > 1]


def no_steps(view: RunView) -> Iterator[Finding]:
    """Of a run that goes on it is no fault: its first step may take long."""
    if len(view.number):
        return
    ended = getattr(getattr(view.record, "totals", None), "ended", None)
    yield Finding(
        "no_steps",
        "info" if ended is None else "error",
        "No steps were recorded",
        "The log holds no step." if ended is not None else "The log holds no step so far.",
        "Check that the training loop steps the wrapped optimizer, and that the run got that far.",
        OF_THE_RUN,
    )


def mean_over_nothing(view: RunView) -> Iterator[Finding]:
    """Certain where the gradient is 0; of several micro-batches that of the others hides it, so there it may be."""
    rows = _over_nothing(view)
    certain = len(rows) > 0
    if not certain:
        rows = _of_several(view, _reached_nothing(view))
    if not len(rows):
        return
    steps = view.number[rows]
    evidence = f"{count_text(len(rows), 'step')} of {len(view.number):,}, the first at step {int(steps[0])}"
    evidence += ": the loss was NaN, "
    evidence += "and every gradient 0." if certain else "every gradient finite, and there were several micro-batches."
    yield Finding(
        "mean_over_nothing",
        "warning" if certain else "info",
        "A mean over nothing: the loss is NaN, the gradients are not"
        if certain
        else "Perhaps a mean over nothing in one of the micro-batches",
        evidence,
        f"Look at the targets of step {int(steps[0])}: where all of them are ignored or masked, a mean divides 0 by 0. "
        "Sum, and divide by max(count, 1), or leave such batches out; training itself was not spoiled."
        + _OR_REPLACED
        * certain,
        steps_of(steps),
    )


_OR_REPLACED = (
    " Where the loop itself replaces NaN in its gradients by 0 (torch.nan_to_num), look at the inputs and the forward "
    "pass of that step."
)


def skips(view: RunView) -> Iterator[Finding]:
    record, skips = view.record, view.of("skip")
    if not skips:
        return
    total = max(attempts(record), 1)
    steps: dict[int, int] = {event.step: skips_of(event) for event in skips}
    wasted = sum(steps.values())
    least = "at least " if is_scalar_log(record) else ""
    causes = Counter(event.cause or "unknown" for event in skips)
    listed = ", ".join(f"{count:,} {cause} ({CAUSES[cause]})" for cause, count in causes.most_common())
    evidence = f"{least}{count_text(wasted, 'step')} of {total:,} ({share_text(wasted, total)}): {listed}"
    seconds = wasted_seconds(record)
    evidence += f"; {duration_text(seconds)} of computing." if seconds >= 1 else "."
    counted = ("bad_batch", "backward_nonfinite", "unknown")
    grave = [event for event in skips if event.severity != "info"]
    # One at the edge of the scale is the price of the growth before it, as a probe is: not counted here.
    overflows = sum(steps[step] for step in {event.step for event in grave if event.cause in counted})
    if overflows >= SKIP_RATE_LEAST and overflows / total > SKIP_RATE_WARNING:
        remedy = (
            "Look at the batches that overflowed, clip the gradients harder, or lower the learning rate; bfloat16 "
            "needs no loss scale where the device has it."
        )
        if causes["backward_nonfinite"] > overflows / 2:
            remedy = next(event.remedy for event in skips if event.cause == "backward_nonfinite")
        title = "Many steps were lost to overflows"
        if causes["unknown"] > overflows / 2:  # what the record does not show is no overflow's doing
            title, remedy = "Many steps were skipped", next(e.remedy for e in skips if e.cause == "unknown")
        yield Finding("skip_rate", "warning", title, evidence, remedy, _steps(skips))
    elif total >= SKIPPED_STEPS and wasted > SKIPPED_MOST * total:
        remedy = f"Look at the loss scale, and at what sets it: {skips[0].remedy}"
        yield Finding("skip_rate", "warning", "Most steps were skipped", evidence, remedy, _steps(skips))
    elif set(causes) <= set(BENIGN) and not grave:
        remedy = "Nothing to do: this is how a dynamic loss scale finds its height."
        if causes["growth_probe"] > SKIP_RATE_WARNING * total:
            remedy = "Benign; a longer growth_interval of the GradScaler wastes fewer steps on probes."
        yield Finding("skip_rate", "info", "Skips are benign", evidence, remedy, _steps(skips))
    else:
        remedy = EDGE_REMEDY
        if not grave and wasted > SKIP_RATE_WARNING * total:
            remedy = "The scale is at its edge: let it grow less often (a longer growth_interval), or clip harder."
        elif grave:
            remedy = f"Read the first that is not benign: {grave[0].cause} at step {grave[0].step}."
        elif "bad_batch" not in causes:
            remedy = "Nothing to do: no skip of this run is more than an information."
        yield Finding("skip_rate", "info", "Steps were skipped", evidence, remedy, _steps(skips))


_BFLOAT16_WITH_SCALER = (
    "A GradScaler, and gradients that are not float16",
    "A loss in bfloat16 was given to scaler.scale().",
    "Drop the GradScaler, or disable it: bfloat16 has the range of float32, and needs no loss scale.",
)


def counted(view: RunView) -> Iterator[Finding]:
    """Events of a kind that has a title, reported once with how often it happened. As grave as the gravest of them."""
    for kind, row in KINDS.items():
        events = view.of(kind)
        if not events or not row.title:
            continue
        first = max(events, key=lambda event: SEVERITIES.index(event.severity))
        times = f"{count_text(len(events), 'time')}, first at step {events[0].step}"
        in_bfloat16 = any(event.data.get("dtype") == "bfloat16" and event.data.get("scaled", True) for event in events)
        if kind == "loss_low_precision" and in_bfloat16 and not view.of("bfloat16_with_scaler"):
            yield Finding("scaler_without_float16", "warning", *_BFLOAT16_WITH_SCALER, steps=_steps(events))
        yield Finding(kind, first.severity, row.title, f"{first.message} ({times})", first.remedy, _steps(events))


def concurrent_writers(view: RunView) -> Iterator[Finding]:
    pairs = view.meta.get("concurrent_writers") or []
    if not pairs:
        return
    pair = pairs[0]
    who = [
        f"{file} (process {process} on {host})"
        for file, process, host in zip(pair["files"], pair["processes"], pair["hosts"], strict=True)
    ]
    same_host = len(set(pair["hosts"])) == 1
    more = f" {count_text(len(pairs) - 1, 'more pair')} did so too." if len(pairs) > 1 else ""
    yield Finding(
        "rival_sessions",
        "warning",
        "Two trainings recorded into this folder at the same time",
        f"{who[0]} and {who[1]} both took steps from {clock_text(pair['since'])} on, for "
        f"{duration_text(pair['until'] - pair['since'])}"
        + ("" if same_host else " (or the clocks of these hosts are that far apart)")
        + f". From step {pair['first_step']:,} on, this run shows the second in place of the first.{more}",
        "Give each training a logdir of its own. tbnum.read(logdir, session={}) and session={} show each of the two by "
        "itself; moving a process's files (its .tbnum and .tensors.tbnum) into another folder parts them for "
        "good.".format(*pair["sessions"]),
        (pair["first_step"],),
    )


def dropped(view: RunView) -> Iterator[Finding]:
    dropped = view.meta.get("dropped") or {}
    count = sum(dropped.values())
    if count:
        reasons = ", ".join(f"{each:,} for {reason}" for reason, each in dropped.items())
        yield Finding(
            "records_dropped",
            "warning",
            "The record has gaps",
            f"{count_text(count, 'record')} could not be written: {reasons}.",
            "Look at the disk that the log is on (space, speed, permissions); training itself was not affected.",
            OF_THE_RUN,
        )
