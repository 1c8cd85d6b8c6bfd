"""Findings from what casts to float8 lose: at spikes that make a scale small, and always."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tbnum.explain.finding import Finding, steps_of
from tbnum.explain.rows import Rows, sampled_rows
from tbnum.explain.thresholds import (
    FLOAT8_FLUSHED,
    FLOAT8_ROWS,
    FLOAT8_ROWS_LEAST,
    FLOAT8_SATURATED,
    FLOAT8_SPIKE,
    FLOAT8_SPIKE_FLUSHED,
    NAMES_SHOWN,
)
from tbnum.explain.view import RunView
from tbnum.explain.words import count_text, number_text

__all__ = ["COLUMNS", "flushed", "saturated", "spikes"]

COLUMNS = ("float8_amax", "float8_scale", "float8_saturated", "float8_flushed")


def spikes(view: RunView) -> Iterator[Finding]:
    """One large element makes the scale of its whole tensor small, and the others round to zero."""
    found: list[tuple[int, str, float, float, float]] = []  # step, tensor, amax, usual amax, flushed
    for rows in _rows(view):
        amax, lost = rows.columns["float8_amax"], rows.columns["float8_flushed"]
        for place, name in enumerate(rows.names):
            known = np.isfinite(amax[:, place])
            if known.sum() < FLOAT8_ROWS_LEAST:
                continue
            usual, usually_lost = np.median(amax[known, place]), np.nanmedian(lost[:, place])
            large = (amax[:, place] >= FLOAT8_SPIKE * usual) | np.isinf(amax[:, place])
            hurts = lost[:, place] >= max(FLOAT8_SPIKE_FLUSHED, 10 * usually_lost)
            found += [
                (int(rows.steps[row]), name, float(amax[row, place]), float(usual), float(lost[row, place]))
                for row in np.flatnonzero(large & hurts).tolist()
            ]
    if not found:
        return
    step, name, amax_there, usual, share = min(found)
    tensors = list(dict.fromkeys(tensor for _, tensor, *_ in found))
    yield Finding(
        "float8_spike",
        "warning",
        "A spike made the float8 scale of a tensor small",
        f"{name} reached {number_text(amax_there)} at step {step:,}, usually {number_text(usual)}: at the scale that "
        f"follows {100 * share:.2g} % of its elements became zero. In all {count_text(len(tensors), 'tensor')} "
        f"({_listed(tensors)}).",
        "Look at the batch of that step, clip or normalise what goes into the module, scale row by row, or leave the "
        "module in bfloat16 (module_filter_fn).",
        steps_of(at for at, *_ in found),
    )


def flushed(view: RunView) -> Iterator[Finding]:
    yield from _always(
        view,
        "float8_flushed",
        FLOAT8_FLUSHED,
        "Part of a tensor always becomes zero in float8",
        "Scale row by row, or leave these modules in bfloat16 (module_filter_fn): one scale does not fit their range.",
    )


def saturated(view: RunView) -> Iterator[Finding]:
    yield from _always(
        view,
        "float8_saturated",
        FLOAT8_SATURATED,
        "Part of a tensor is beyond what float8 holds",
        "Its scale is too high: scale by the tensor's own largest magnitude, or keep a longer history of it.",
    )


def _always(view: RunView, column: str, least: float, title: str, remedy: str) -> Iterator[Finding]:
    """Tensors that lose so much at half of the steps that were looked at."""
    losing: dict[str, float] = {}
    steps: list[int] = []
    for rows in _rows(view):
        values = rows.columns[column]
        known = (~np.isnan(values)).sum(0) >= FLOAT8_ROWS_LEAST
        for place in np.flatnonzero(known).tolist():
            share = float(np.nanmedian(values[:, place]))
            if share >= least:
                losing[rows.names[place]] = share
                steps = rows.steps.tolist()
    if losing:
        worst = max(losing, key=losing.__getitem__)
        evidence = (
            f"{count_text(len(losing), 'tensor')} ({_listed(sorted(losing, key=losing.__getitem__, reverse=True))}); "
            f"of {worst} {100 * losing[worst]:.2g} % of the elements at the median step."
        )
        yield Finding(column, "warning", title, evidence, remedy, steps_of(steps))


def _rows(view: RunView) -> list[Rows]:
    tensors = getattr(view.record, "tensors", None)
    if tensors is None or COLUMNS[0] not in tensors:
        return []
    return [
        rows for rows in sampled_rows(view.record, COLUMNS, FLOAT8_ROWS) if np.isfinite(rows.columns[COLUMNS[0]]).any()
    ]


def _listed(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
