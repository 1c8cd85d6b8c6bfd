"""Lines of several runs on one x axis: each run alone, or runs of one setting as their mean with its range.

Everywhere S is the number of steps of a run, and B that of buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tbnum.explain.derived import column_of
from tensorboard_plugin_tbnum.cells import is_minimum
from tensorboard_plugin_tbnum.decimate import (
    Buckets,
    as_float32,
    bucket_power,
    interval,
    measured,
    reduce,
    wide_columns,
)
from tensorboard_plugin_tbnum.pauses import pauses
from tensorboard_plugin_tbnum.runs import Snapshot, UnknownRun

__all__ = ["ALIGNMENTS", "Member", "Together", "aligned", "overlay_impl", "together"]

FARTHEST = 2**61
"""As far from 0 as x goes: where the bucket after it begins is an int64 too. Beyond 2**53 its float64 rounds anyway."""


@dataclass(frozen=True)
class Member:
    """One column of one run of a line."""

    x: np.ndarray
    """(S,) int64, ascending"""
    values: np.ndarray
    """(S,)"""
    measured: np.ndarray | None
    """(S,) bool, as in `decimate.reduce`"""


@dataclass(frozen=True)
class Together:
    """One column of some runs in buckets of x, each array (B,). NaN where no run has a finite value."""

    min: np.ndarray
    max: np.ndarray
    mean: np.ndarray
    """of all finite values of all runs"""
    low: np.ndarray
    """least of the means of the single runs"""
    high: np.ndarray
    last: np.ndarray
    """of the first run, its last finite value"""
    nan: np.ndarray
    """uint32: measured NaNs of all runs"""
    inf: np.ndarray
    """uint32: infinities of all runs"""


def _steps(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.clip(columns["step"].astype(np.int64, copy=False), -FARTHEST, FARTHEST)


def _milliseconds(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Since the first step, pauses left out. A clock that is unknown or was set back stands still."""
    wall = columns["wall_time"]
    if not len(wall):
        return np.empty(0, np.int64)
    start = wall[np.argmax(np.isfinite(wall))]
    since = np.where(np.isfinite(wall), (wall - start) * 1000.0, 0.0)
    for before, seconds in zip(*pauses(wall), strict=True):
        since[before + 1 :] -= seconds * 1000.0
    return np.maximum.accumulate(np.clip(since, 0.0, 2.0**52).round()).astype(np.int64)


def _updates(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """So far, the step's own included. A skipped step has the number of the one before it."""
    updates = column_of("updates", columns, {})  # a scalar log has its own: every k-th step may be there alone
    return np.arange(1, len(columns["step"]) + 1) if updates is None else np.minimum(updates, FARTHEST).astype(np.int64)


ALIGNMENTS: Mapping[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]] = {
    "step": _steps,
    "time": _milliseconds,
    "updates": _updates,
}
"""What x is, from the columns of a run: (S,) int64, ascending. Some ms for a million steps."""


def aligned(xs: Sequence[np.ndarray], first: int | None, last: int | None, limit: int) -> tuple[int, np.ndarray]:
    """Buckets that several runs share: their size, and (B + 1,) int64 where each begins and the last one ends.

    `xs` are (S,) int64, ascending; `first` and `last` inclusive, None is open. A run may have nothing in a bucket; at
    least one has something in each. At most `limit` buckets, which hold one value of x each if so many suffice.
    """
    parts = [x[slice(*interval(x, first, last))] for x in xs]
    parts = [part for part in parts if len(part)]
    if not parts:
        return 1, np.zeros(1, np.int64)
    if sum(map(len, parts)) <= limit * len(parts):
        every = np.unique(np.concatenate(parts))
        if len(every) <= limit:
            return 1, np.append(every, every[-1] + 1)
    low, high = min(int(part[0]) for part in parts), max(int(part[-1]) for part in parts)
    power = bucket_power(low, high, limit)
    bounds = np.arange(low >> power, (high >> power) + 2, dtype=np.int64) << power
    filled = np.zeros(len(bounds) - 1, bool)
    for x in xs:
        filled |= np.diff(np.searchsorted(x, bounds)) > 0
    return 1 << power, np.append(bounds[:-1][filled], bounds[-1])


def together(members: Sequence[Member], bounds: np.ndarray) -> Together:
    """One column of each run, reduced from all of its values, then put together. `bounds` as `aligned` gives them."""
    shape = (len(members), len(bounds) - 1)
    low, high, mean = (np.full(shape, np.nan) for _ in range(3))
    finite, nan, inf = np.zeros(shape), np.zeros(shape, np.uint32), np.zeros(shape, np.uint32)
    last = np.full(shape[1], np.nan)
    for row, one in enumerate(members):
        edges = np.searchsorted(one.x, bounds)
        filled = edges[1:] > edges[:-1]
        if not filled.any():
            continue
        found = reduce(one.values, Buckets(1, np.append(edges[:-1][filled], edges[-1])), one.measured)
        low[row, filled], high[row, filled], mean[row, filled] = found.min, found.max, found.mean
        finite[row, filled] = found.known - found.inf
        nan[row, filled], inf[row, filled] = found.nan, found.inf
        if row == 0:
            last[filled] = found.last
    weights = finite / np.maximum(finite.sum(0), 1.0)
    pooled = (np.where(finite > 0, mean, 0.0) * weights).sum(0)
    return Together(
        min=np.fmin.reduce(low),
        max=np.fmax.reduce(high),
        mean=np.where(finite.any(0), pooled, np.nan),
        low=np.fmin.reduce(mean),
        high=np.fmax.reduce(mean),
        last=last,
        nan=nan.sum(0, dtype=np.uint32),
        inf=inf.sum(0, dtype=np.uint32),
    )


def overlay_impl(
    lines: Sequence[Sequence[str]],
    snapshot: Callable[[str], Snapshot],
    columns: Sequence[str],
    alignment: str,
    first: int | None,
    last: int | None,
    buckets: int,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The runs of each line on the x axis `alignment`, and `columns` of them. One line's runs are in memory at a time.

    A run that is gone is named and left out. Costs about 10 ms a column of a million steps.
    """
    wide = wide_columns(columns)
    described, arrays = [], {}
    for at, names in enumerate(lines):
        found, missing = [], []
        for name in names:
            try:
                found.append(snapshot(name))
            except (UnknownRun, OSError):
                missing.append(name)
        xs = [ALIGNMENTS[alignment](each.steps) for each in found]
        size, bounds = aligned(xs, first, last, buckets)
        some = [x for x in xs if len(x)]
        described.append(
            {
                "runs": [each.run for each in found],
                "missing": missing,
                "first": min((int(x[0]) for x in some), default=None),
                "last": max((int(x[-1]) for x in some), default=None),
                "ends": [int(x[-1]) for x in some],
                "size": size,
                "from": int(bounds[0]),
                "to": int(bounds[-1]) - 1,
            }
        )
        arrays[f"{at}/x"] = bounds[:-1].astype(np.float64)
        for name in columns:
            members = [one for each, x in zip(found, xs, strict=True) if (one := _member(each, name, x)) is not None]
            if not members:
                continue
            reduced = together(members, bounds)
            on_wire = (lambda values: values) if name in wide else as_float32
            kinds = ["mean"] if size == 1 and len(members) == 1 else ["min", "max", "mean"]
            kinds += ["low", "high"] if len(members) > 1 and size > 1 else []
            kinds += ["last"] if len(members) == 1 else []
            for kind in kinds:
                arrays[f"{at}/{name}/{kind}"] = on_wire(getattr(reduced, kind))
            arrays[f"{at}/{name}/nan"], arrays[f"{at}/{name}/inf"] = reduced.nan, reduced.inf
    return {"x": alignment, "lines": described}, arrays


def _member(snapshot: Snapshot, name: str, x: np.ndarray) -> Member | None:
    """Column `name` of a run, of tensors the worst of all of them at each sample; None where it has none."""
    values = column_of(name, snapshot.steps, snapshot.derived)
    if values is not None:
        return Member(x, values, measured(name, snapshot.steps))
    if snapshot.tensors is None or name not in snapshot.tensors:
        return None
    steps, worst = [], []
    for cells in snapshot.cells.stretches(snapshot.tensors, name):
        steps.append(cells.steps)
        worst.append((np.fmin if is_minimum(name) else np.fmax).reduce(cells.values, axis=1))
    at = np.searchsorted(snapshot.steps["step"], np.concatenate(steps)) if steps else np.empty(0, np.int64)
    if not len(at) or not len(x):
        return None
    return Member(x[np.minimum(at, len(x) - 1)], np.concatenate(worst), None)
