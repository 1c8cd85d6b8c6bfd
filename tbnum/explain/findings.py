"""What is worth acting on in a whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tbnum.explain.causes import EDGE_REMEDY, forward_remedy
from tbnum.explain.curve_findings import curve_findings
from tbnum.explain.facts import skips_of
from tbnum.explain.finding import OF_THE_RUN, Finding, steps_of
from tbnum.explain.kinds import KINDS
from tbnum.explain.ranks import rank_findings
from tbnum.explain.record import Record, attempts, is_scalar_log
from tbnum.explain.rules import BENIGN
from tbnum.explain.tensor_findings import tensor_findings
from tbnum.explain.thresholds import (
    CLIP_STEPS,
    CLIPPED_ALWAYS,
    CLIPPED_NEVER,
    SKIP_RATE_LEAST,
    SKIP_RATE_WARNING,
)
from tbnum.explain.words import clock_text, count_text, duration_text, number_text, share_text
from tbnum.log.columns import columns_named
from tbnum.log.schema import SEVERITIES, Event, measured

__all__ = ["Finding", "clipped_steps", "find", "nonfinite_losses", "skipped_steps", "wasted_seconds"]


def find(record: Record, events: Sequence[Event]) -> list[Finding]:
    """Findings of a run with its explained events, gravest first.

    O(events), a few passes over the columns, and some 50 of the tables of tensors.
    """
    by_kind: dict[str, list[Event]] = {}
    for event in events:
        by_kind.setdefault(event.kind, []).append(event)
    found = [
        *_lost_ranks(by_kind),
        *_crash(by_kind),
        *_collapse(by_kind),
        *_nonfinite_parameters(by_kind),
        *_nonfinite_loss(record, events),
        *_skips(record, by_kind.get("skip", [])),
        *_told_once(by_kind),
        *_clipping(record),
        *curve_findings(record, events),
        *rank_findings(getattr(record, "ranks", None)),
        *_rivals(record),
        *_dropped(record),
    ]
    told = {finding.rule for finding in found}
    found += [finding for finding in tensor_findings(record) if finding.rule not in told]
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))


def nonfinite_losses(record: Record) -> np.ndarray:
    """Rows (R,) whose loss was measured and is NaN or inf."""
    steps = record.steps
    loss = steps.get("loss")
    if loss is None:
        return np.empty(0, np.int64)
    known = measured("loss", steps)
    nonfinite = np.isinf(loss)
    return np.flatnonzero(nonfinite if known is None else nonfinite | (np.isnan(loss) & known))


def clipped_steps(record: Record, prefix: str = "") -> tuple[int, int]:
    """How many steps were clipped, and of how many it is known. A skipped step counts as neither."""
    steps = record.steps
    coefficient = steps.get(prefix + "clip_coef")
    if coefficient is None:
        return 0, 0
    skipped = steps.get(prefix + "skipped", np.zeros(len(coefficient), bool))
    known = np.isfinite(coefficient) & ~skipped
    return int(np.count_nonzero(known & (coefficient < 1))), int(np.count_nonzero(known))


def wasted_seconds(record: Record) -> float:
    """What the skipped steps took, at the usual length of a step. 0 where unknown."""
    wall_time, skipped = record.steps.get("wall_time", np.empty(0)), record.steps.get("skipped")
    if skipped is None or len(wall_time) < 2:
        return 0.0
    rows_a_step = (len(wall_time) - 1) / max(1, attempts(record) - 1)  # below 1 where not every step was logged
    usual = float(np.median(np.diff(wall_time))) * rows_a_step
    return max(usual, 0.0) * (skipped_steps(record) or 0)


def skipped_steps(record: Record) -> int | None:
    """Steps in which an optimizer was skipped; of a scalar log at least so many, None where it cannot tell."""
    skipped = record.steps.get("skipped")
    if not is_scalar_log(record):
        return 0 if skipped is None else int(np.count_nonzero(skipped))
    if skipped is None and len(record.steps.get("step", ())):
        return None
    return sum(skips_of(event) for event in record.raw_events if event.kind == "skip")


def _steps(events: Sequence[Event]) -> tuple[int, ...]:
    return steps_of(event.step for event in events)


def _lost_ranks(by_kind: dict[str, list[Event]]) -> Iterator[Finding]:
    lost = by_kind.get("rank_lost", [])
    if lost:
        more = f" ({len(lost) - 1} more like it)" if len(lost) > 1 else ""
        steps = _steps(lost)
        yield Finding("rank_lost", "error", "A rank was lost", lost[0].message + more, lost[0].remedy, steps)


def _crash(by_kind: dict[str, list[Event]]) -> Iterator[Finding]:
    for event in by_kind.get("crash", [])[-1:]:
        evidence = f"Step {event.step}: {event.message}"
        yield Finding("crash", "error", "The training loop crashed", evidence, event.remedy, _steps([event]))


def _collapse(by_kind: dict[str, list[Event]]) -> Iterator[Finding]:
    collapses = by_kind.get("scale_collapse", [])
    if collapses:
        worst = max(collapses, key=lambda event: event.data["skips"])
        times = f" ({count_text(len(collapses), 'time')} in this run)" if len(collapses) > 1 else ""
        steps = _steps(collapses)
        yield Finding("scale_collapse", "error", "The loss scale collapsed", worst.message + times, worst.remedy, steps)


def _nonfinite_parameters(by_kind: dict[str, list[Event]]) -> Iterator[Finding]:
    steps = by_kind.get("nonfinite_step", [])
    if steps:
        first = steps[0]
        evidence = f"{count_text(len(steps), 'step')} of this kind, the first at step {first.step}: {first.message}"
        title = "Non-finite gradients reached the parameters"
        yield Finding("nonfinite_step", "error", title, evidence, first.remedy, _steps(steps))
    skips = [event for event in by_kind.get("skip", []) if event.cause == "nonfinite_parameters"]
    if skips:
        evidence = f"{count_text(len(skips), 'step')} skipped for it, the first at step {skips[0].step}."
        title = "The parameters are not finite"
        yield Finding("nonfinite_parameters", "error", title, evidence, skips[0].remedy, _steps(skips))


def _nonfinite_loss(record: Record, events: Sequence[Event]) -> Iterator[Finding]:
    rows = nonfinite_losses(record)
    told = [event.step for event in events if event.cause == "forward_nonfinite"]  # on another rank than this record's
    if told and "step" in record.steps:
        rows = np.union1d(rows, np.flatnonzero(np.isin(record.steps["step"], told)))
    if not len(rows):
        return
    steps, total = record.steps["step"], len(record.steps["step"])
    evidence = f"{count_text(len(rows), 'step')} of {total:,}, the first at step {steps[rows[0]]}"
    remedy = forward_remedy(int(steps[rows[0]]))
    if rows[-1] == total - 1:
        row = int(np.flatnonzero(np.diff(rows) > 1)[-1]) + 1 if np.any(np.diff(rows) > 1) else 0
        evidence += f"; not once finite since step {steps[rows[row]]}."
        title = "The loss is not finite at the end"
        yield Finding("nonfinite_loss", "error", title, evidence, remedy, steps_of(steps[rows]))
    else:
        evidence += "; finite again at the end."
        title = "The loss was not finite in between"
        yield Finding("nonfinite_loss", "warning", title, evidence, remedy, steps_of(steps[rows]))


def _skips(record: Record, skips: Sequence[Event]) -> Iterator[Finding]:
    if not skips:
        return
    total = max(attempts(record), 1)
    steps: dict[int, int] = {event.step: skips_of(event) for event in skips}
    wasted = sum(steps.values())
    least = "at least " if is_scalar_log(record) else ""
    causes = Counter(event.cause for event in skips)
    listed = ", ".join(f"{count:,} {cause}" for cause, count in causes.most_common())
    evidence = f"{least}{count_text(wasted, 'step')} of {total:,} ({share_text(wasted, total)}): {listed}"
    seconds = wasted_seconds(record)
    evidence += f"; {duration_text(seconds)} of computing." if seconds >= 1 else "."
    overflows = sum(steps[step] for step in {event.step for event in skips if event.cause in ("bad_batch", "unknown")})
    grave = [event for event in skips if event.severity != "info"]
    if overflows >= SKIP_RATE_LEAST and overflows / total > SKIP_RATE_WARNING:
        remedy = (
            "Look at the batches that overflowed, clip the gradients harder, or lower the learning rate; "
            if grave
            else "The scale is at its edge: let it grow less often (a longer growth_interval), or clip harder; "
        ) + "bfloat16 needs no loss scale where the device has it."
        yield Finding("skip_rate", "warning", "Many steps were lost to overflows", evidence, remedy, _steps(skips))
    elif set(causes) <= set(BENIGN):
        remedy = "Nothing to do: this is how a dynamic loss scale finds its height."
        if causes["growth_probe"] > SKIP_RATE_WARNING * total:
            remedy = "Benign; a longer growth_interval of the GradScaler wastes fewer steps on probes."
        yield Finding("skip_rate", "info", "Skips are benign", evidence, remedy, _steps(skips))
    else:
        remedy = EDGE_REMEDY
        if grave:
            remedy = f"Read the first that is not benign: {grave[0].cause} at step {grave[0].step}."
        yield Finding("skip_rate", "info", "Steps were skipped", evidence, remedy, _steps(skips))


_BFLOAT16_WITH_SCALER = (
    "A GradScaler, and gradients that are not float16",
    "A loss in bfloat16 was given to scaler.scale().",
    "Drop the GradScaler, or disable it: bfloat16 has the range of float32, and needs no loss scale.",
)


def _told_once(by_kind: dict[str, list[Event]]) -> Iterator[Finding]:
    for kind, row in KINDS.items():
        events = by_kind.get(kind)
        if events and row.title:
            first = events[0]
            times = f"{count_text(len(events), 'time')}, first at step {first.step}"
            in_bfloat16 = any(event.data.get("dtype") == "bfloat16" for event in events)
            if kind == "loss_low_precision" and in_bfloat16 and "bfloat16_with_scaler" not in by_kind:
                yield Finding("scaler_without_float16", "warning", *_BFLOAT16_WITH_SCALER, steps=_steps(events))
            yield Finding(kind, row.severity, row.title, f"{first.message} ({times})", first.remedy, _steps(events))


def _rivals(record: Record) -> Iterator[Finding]:
    pairs = record.meta.get("rivals") or []
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


def _dropped(record: Record) -> Iterator[Finding]:
    dropped = record.meta.get("dropped") or {}
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


def _clipping(record: Record) -> Iterator[Finding]:
    for column, _ in columns_named(record.steps, "clip_coef"):
        prefix = column.beside("")
        clipped, known = clipped_steps(record, prefix)
        thresholds = record.steps.get(prefix + "max_norm", np.empty(0))
        thresholds = thresholds[np.isfinite(thresholds)]
        if known < CLIP_STEPS or not len(thresholds):
            continue
        whose = f" of {prefix[:-1]}" if prefix else ""
        max_norm = number_text(float(thresholds[-1]))
        evidence = f"{clipped:,} of {known:,} steps{whose} ({share_text(clipped, known)}) at max_norm {max_norm}"
        norms = record.steps.get(prefix + "grad_norm", np.empty(0))
        norms = norms[np.isfinite(norms)]
        if len(norms):
            evidence += f"; median norm before clipping {number_text(float(np.median(norms)))}"
        evidence += "."
        if clipped >= CLIPPED_ALWAYS * known:
            remedy = "Fine if meant: max_norm acts as a learning rate. To clip outliers only, raise it."
            yield Finding("clipped_always", "info", "Nearly every step is clipped", evidence, remedy, OF_THE_RUN)
        elif clipped <= CLIPPED_NEVER * known:
            remedy = "Fine if meant; to guard against spikes, set max_norm to a few times the median norm."
            yield Finding("clipped_never", "info", "Clipping never acts", evidence, remedy, OF_THE_RUN)
