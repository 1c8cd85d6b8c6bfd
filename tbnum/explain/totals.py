"""Counts over a whole run."""

from __future__ import annotations

import numpy as np

from tbnum.explain.facts import skips_of
from tbnum.explain.record import Record, attempts, is_scalar_log

__all__ = ["clipped_steps", "skipped_steps", "wasted_seconds"]


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
    lengths = np.diff(wall_time)
    usual = float(np.median(lengths[:: max(1, len(lengths) // 10_000)])) * rows_a_step
    return max(usual, 0.0) * (skipped_steps(record) or 0)


def skipped_steps(record: Record) -> int | None:
    """Steps in which an optimizer was skipped; of a scalar log at least so many, None where it cannot say."""
    skipped = record.steps.get("skipped")
    if not is_scalar_log(record):
        return 0 if skipped is None else int(np.count_nonzero(skipped))
    if skipped is None and len(record.steps.get("step", ())):
        return None
    return sum(skips_of(event) for event in record.raw_events if event.kind == "skip")
