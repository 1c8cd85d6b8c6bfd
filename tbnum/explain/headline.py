"""What matters of a run, in a line: what the panel says in its head, and the report below a run's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tbnum.explain.facts import skips_of
from tbnum.explain.record import Record, attempts, is_scalar_log
from tbnum.explain.view import nonfinite_losses
from tbnum.explain.words import count_text
from tbnum.log.columns import columns_named
from tbnum.log.schema import Event

__all__ = ["headline"]

LEAST_STEPS = 40
"""Of a run whose last tenth is named."""


def headline(record: Record, events: Sequence[Event]) -> list[str]:
    """Skips and their causes, spikes, clipping and the last tenth of it, losses that were not finite.

    What there is nothing to say of is left out. Some ms a million steps.
    """
    nonfinite = len(nonfinite_losses(record))
    facts = [
        _skips(record, events),
        _spikes(events),
        *_clipping(record),
        count_text(nonfinite, "non-finite loss", "non-finite losses") if nonfinite else "",
    ]
    return [fact for fact in facts if fact]


def _skips(record: Record, events: Sequence[Event]) -> str:
    """ "7 skips (0.01 %): 5 scale warmup, 2 bad batch". A step that several optimizers skipped is one."""
    first: dict[int, Event] = {}
    for event in events:
        if event.kind == "skip":
            first.setdefault(event.step, event)
    scale = record.steps.get("loss_scale", np.empty(0))
    if not first:
        if not np.isfinite(scale).any() and not is_scalar_log(record):
            return ""  # without a scaler there is nothing to skip by
        return "no skips" if "skipped" in record.steps else "skips unknown"
    causes: Counter[str] = Counter()
    for event in first.values():
        causes[(event.cause or "unknown").replace("_", " ")] += skips_of(event)
    parts = ", ".join(f"{count:,} {cause}" for cause, count in causes.most_common())
    if is_scalar_log(record):
        return f"at least {count_text(causes.total(), 'skip')}: {parts}"
    return f"{count_text(len(first), 'skip')} ({_share_text(len(first), attempts(record))}): {parts}"


def _spikes(events: Sequence[Event]) -> str:
    """ "1 spike (step 605)", "3 spikes (first at step 605)"."""
    steps = sorted({event.step for event in events if event.kind.endswith("_spike")})
    if not steps:
        return ""
    return f"{count_text(len(steps), 'spike')} ({'first at ' if len(steps) > 1 else ''}step {steps[0]:,})"


def _clipping(record: Record) -> list[str]:
    """ "60 % clipped (12 % of the last 120 steps)", for each optimizer whose clipping was seen."""
    found = []
    number = record.steps.get("step", np.empty(0, np.int64))
    late = int(0.9 * len(number))
    for column, coefficient in columns_named(record.steps, "clip_coef"):
        skipped = record.steps.get(column.beside("skipped"), np.zeros(len(number), bool)).astype(bool)
        known = np.isfinite(coefficient) & ~skipped
        clipped = known & (coefficient < 1)
        if not known.any():
            continue
        text = f"{_share_text(int(clipped.sum()), int(known.sum()))} clipped"
        if len(number) >= LEAST_STEPS and known[late:].any():
            share = _share_text(int(clipped[late:].sum()), int(known[late:].sum()))
            text += f" ({share} of the last {int(number[-1] - number[late]) + 1:,} steps)"
        found.append(f"{column.optimizer}: {text}" if column.optimizer else text)
    return found


def _share_text(part: int, whole: int) -> str:
    """A share in two digits, never rounded to none nor to all: 2.3 %, < 0.01 %."""
    percent = 100 * part / max(1, whole)
    if 0 < percent < 0.01:
        return "< 0.01 %"
    rounded = float(f"{percent:.2g}")
    return "> 99 %" if rounded >= 100 and part < whole else f"{rounded:g} %"
