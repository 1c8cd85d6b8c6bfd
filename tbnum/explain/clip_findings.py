"""Findings on gradient clipping."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tbnum.explain.finding import OF_THE_RUN, Finding, steps_of
from tbnum.explain.thresholds import (
    CLIP_STEPS,
    CLIPPED_ALWAYS,
    CLIPPED_NEVER,
    SPIKES_WARNING,
)
from tbnum.explain.totals import clipped_steps
from tbnum.explain.view import RunView
from tbnum.explain.words import count_text, number_text, share_text
from tbnum.log.columns import columns_named

__all__ = ["clipping", "no_clipping", "wrong_threshold", "zeroed"]


def wrong_threshold(view: RunView) -> Iterator[Finding]:
    """A threshold that leaves nothing of a gradient, or reverses it."""
    for column, thresholds in columns_named(view.steps, "max_norm"):
        rows = np.flatnonzero(thresholds <= 0)  # not of NaN
        if not len(rows):
            continue
        whose = f" of {column.optimizer}" if column.optimizer else ""
        worst = float(thresholds[rows].min())
        what = "reverses every gradient: each step goes uphill" if worst < 0 else "sets every gradient to 0"
        yield Finding(
            "max_norm_invalid",
            "error",
            "The clipping threshold is negative" if worst < 0 else "The clipping threshold is 0",
            f"max_norm{whose} was {number_text(worst)} in {count_text(len(rows), 'step')}, the first at step "
            f"{int(view.number[rows[0]])}: a threshold that is not above 0 {what}.",
            "Give clip_grad_norm_ a positive max_norm; to switch clipping off, leave the call out or give inf.",
            steps_of(view.number[rows]),
        )


def zeroed(view: RunView) -> Iterator[Finding]:
    """Gradients of which nothing was left, by other means than torch's clips."""
    if any(event.kind == "clip_value_invalid" for event in view.events):
        return
    for column, clipped in columns_named(view.steps, "grad_norm_clipped"):
        norms = view.steps.get(column.beside("grad_norm"), np.empty(0))
        thresholds = view.steps.get(column.beside("max_norm"), np.full(len(clipped), np.nan))
        if len(norms) != len(clipped):
            continue
        whose = f" of {column.optimizer}" if column.optimizer else ""
        rows = np.flatnonzero(np.isfinite(norms) & (norms > 0) & (clipped == 0) & np.isnan(thresholds) & ~view.skipped)
        if len(rows) >= 2:
            yield Finding(
                "gradients_zeroed",
                "error",
                "The gradients were set to 0",
                f"In {count_text(len(rows), 'step')}, the first at step {int(view.number[rows[0]])}, the gradients"
                f"{whose} had a norm (of {number_text(float(norms[rows[0]]))} there), and the optimizer got 0.",
                "Look at what the loop does with gradients between backward() and step(): a mask, a clip by hand.",
                steps_of(view.number[rows]),
            )


def clipping(view: RunView) -> Iterator[Finding]:
    for column, _ in columns_named(view.steps, "clip_coef"):
        clipped, known = clipped_steps(view.record, column.beside(""))
        thresholds = view.steps.get(column.beside("max_norm"), np.empty(0))
        thresholds = thresholds[np.isfinite(thresholds)]
        if known < CLIP_STEPS or not len(thresholds) or thresholds.min() <= 0:
            continue
        whose = f" of {column.optimizer}" if column.optimizer else ""
        max_norm = number_text(float(thresholds[-1]))
        evidence = f"{clipped:,} of {known:,} steps{whose} ({share_text(clipped, known)}) at max_norm {max_norm}"
        norms = view.steps.get(column.beside("grad_norm"), np.empty(0))
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


def no_clipping(view: RunView) -> Iterator[Finding]:
    """Only where there is something that clipping is for."""
    thresholds = [values for _, values in columns_named(view.steps, "max_norm")]
    bad = [event.step for event in view.events if event.cause == "bad_batch"]
    spikes = [spike.step for spike in view.spikes]
    if not thresholds or any(np.isfinite(values).any() for values in thresholds):
        return
    if len(bad) + len(spikes) < SPIKES_WARNING:
        return
    norms = next((values[np.isfinite(values)] for _, values in columns_named(view.steps, "grad_norm")), np.empty(0))
    usual = f" The median gradient norm is {number_text(float(np.median(norms)))}." if len(norms) else ""
    yield Finding(
        "no_clipping",
        "info",
        "No clipping was seen",
        f"{count_text(len(spikes), 'loss spike')} and {count_text(len(bad), 'bad batch', 'bad batches')}, "
        f"and no gradient was clipped by torch's functions.{usual}",
        "Clip at a few times the median norm (a clip written by hand is not seen, and may be there already).",
        steps_of([*spikes, *bad]),
    )
