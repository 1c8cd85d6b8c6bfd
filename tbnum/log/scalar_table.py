"""The points of a run's event files as a table: one row a logged step, and what follows from the rows. Pure."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tbnum.log.event_file import EventFile
from tbnum.log.inferred import infer
from tbnum.log.numbering import Numbering
from tbnum.log.schema import LOGGED, Event
from tbnum.log.superseded import cuts
from tbnum.log.tags import System, recognise

__all__ = ["Table", "read_table"]

SAMPLED_AXES = ("samples", "environment steps")  # each step of the training is several of them


class Table(NamedTuple):
    """A run as its scalars show it."""

    columns: dict[str, np.ndarray]  # each (S,), read-only
    events: list[Event]  # in order of step
    meta: dict[str, Any]


def read_table(files: Sequence[EventFile], mapping: Mapping[str, str]) -> Table:
    """What the event files hold, oldest first. `mapping`: the user's tag by column."""
    tags = {tag for file in files for tag in file.tags}
    system, found = recognise(tags, mapping)
    series = {column: _sum([_joined(files, tag) for tag in tags]) for column, tags in found.items()}
    if system.loss_before:
        _move_losses(series)
    columns, logged = _rows(series)
    every, numbering = _spacing(system, series)
    known = {tag for of_column in found.values() for tag in of_column}
    inferred = infer(columns, numbering, system.habits, logged=logged, restarts=_restarts(files, known))
    columns.pop("skipped", None)
    if inferred.skipped is not None:
        columns["skipped"] = inferred.skipped
        columns["updates"] = _updates(columns["step"], inferred.events, numbering)
    for column in ("loss", "grad_norm"):
        if column in columns and (np.isnan(columns[column]) & logged[column]).any():
            columns[column + LOGGED] = logged[column]
    for values in columns.values():
        values.flags.writeable = False
    meta: dict[str, Any] = {
        "system": system.name or None,
        "tags": {column: " + ".join(of_column) for column, of_column in found.items()},
        "other_tags": sorted(tags - known),
        "every": every,
        "x": system.axis,
        "numbering": numbering._asdict(),
        "sessions": _sessions(files, columns["step"], every, numbering),
    }
    interval = _growth_interval(inferred.events, numbering) if every == 1 else None
    if interval is not None:
        meta["scaler"] = {"growth_interval": interval, "inferred": True}
    return Table(columns, inferred.events, meta)


class _Series(NamedTuple):
    """What one tag has."""

    steps: np.ndarray  # (N,) int64, strictly rising
    values: np.ndarray  # (N,) float64
    wall_times: np.ndarray  # (N,) float64


def _joined(files: Sequence[EventFile], tag: str) -> _Series:
    """The points of a tag: of each file, what no later one supersedes.

    A file supersedes an older one from its own first point of the tag on, and from where it says that it restarts.
    """
    points = [file.points.get(tag) for file in files]
    begins = [
        (None if of_tag is None else of_tag.start, file.restart) for of_tag, file in zip(points, files, strict=True)
    ]
    starts = [min((start for start in both if start is not None), default=None) for both in begins]
    parts = [
        of_tag.before(math.inf if cut is None else cut)
        for of_tag, cut in zip(points, cuts(starts), strict=True)
        if of_tag is not None
    ]
    empty = (np.empty(0, np.int64), np.empty(0), np.empty(0))
    return _Series(*(np.concatenate(arrays) for arrays in zip(*(parts or [empty]), strict=True)))


def _sum(parts: Sequence[_Series]) -> _Series:
    """Of a column that is logged in parts: their sum, where all of them have a value."""
    if len(parts) == 1:
        return parts[0]
    steps = functools.reduce(np.intersect1d, (part.steps for part in parts))
    rows = [np.searchsorted(part.steps, steps) for part in parts]
    values = np.sum([part.values[row] for part, row in zip(parts, rows, strict=True)], axis=0)
    wall_times = np.max([part.wall_times[row] for part, row in zip(parts, rows, strict=True)], axis=0)
    return _Series(steps, values, wall_times)


def _restarts(files: Sequence[EventFile], tags: set[str]) -> dict[int, str]:
    """The steps at which the run was resumed: by a file with tags that older ones have, or within one."""
    seen: set[str] = set()
    found: dict[int, str] = {}
    for file in files:
        points = {tag: of_tag for tag, of_tag in file.points.items() if tag in tags and of_tag.start is not None}
        again = [of_tag.start for tag, of_tag in points.items() if tag in seen and of_tag.start is not None]
        if again:
            found = _with_restart(found, min(again), "log")
        for steps in itertools.zip_longest(*(of_tag.went_back for of_tag in points.values()), fillvalue=math.inf):
            found = _with_restart(found, int(min(steps)), "steps")
        seen |= set(points)
    return found


def _with_restart(restarts: Mapping[int, str], step: int, how: str) -> dict[int, str]:
    """With one more, which supersedes those that came after its step."""
    return {at: why for at, why in restarts.items() if at < step} | {step: how}


def _move_losses(series: dict[str, _Series]) -> None:
    """DeepSpeed's engine logs a step's loss at the samples before it, and all else at the samples after it."""
    others = [series[name].steps for name in ("lr", "loss_scale") if name in series and len(series[name].steps)]
    loss = series.get("loss")
    if loss is None or not others or not len(loss.steps) or loss.steps[0] >= min(steps[0] for steps in others):
        return  # its pipeline engine logs both after the step
    after = np.unique(np.concatenate(others))
    at = np.searchsorted(after, loss.steps, side="right")
    there = at < len(after)  # else the step is not over
    moved = after[at[there]]
    last = np.append(moved[1:] != moved[:-1], True) if len(moved) else np.empty(0, bool)
    series["loss"] = _Series(moved[last], loss.values[there][last], loss.wall_times[there][last])


def _rows(series: Mapping[str, _Series]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Columns over all steps at which anything was logged; and where each has a value, NaN among them."""
    all_steps = [of_column.steps for of_column in series.values()]
    step = np.unique(np.concatenate(all_steps)) if all_steps else np.empty(0, np.int64)
    wall_time = np.full(len(step), -np.inf)
    columns: dict[str, np.ndarray] = {"step": step, "wall_time": wall_time}
    logged: dict[str, np.ndarray] = {}
    for name, of_column in series.items():
        row = np.searchsorted(step, of_column.steps)
        columns[name] = np.full(len(step), np.nan)
        columns[name][row] = of_column.values
        logged[name] = np.zeros(len(step), bool)
        logged[name][row] = True
        wall_time[row] = np.maximum(wall_time[row], of_column.wall_times)
    wall_time[~np.isfinite(wall_time)] = np.nan
    return columns, logged


def _spacing(system: System, series: Mapping[str, _Series]) -> tuple[int, Numbering]:
    """Of how many steps one is logged, and how steps are numbered."""
    steps = next(
        (series[name].steps for name in ("loss_scale", "loss", "lr") if name in series and len(series[name].steps)),
        np.empty(0, np.int64),
    )
    if not len(steps):
        return 1, Numbering()
    first = int(steps[0])
    usual = int(np.median(np.diff(steps))) if len(steps) > 1 else 1
    if system.axis in SAMPLED_AXES:  # of every step
        return 1, Numbering(usual if first else 0, usual)
    if first == 0 or (usual > 1 and first % usual == usual - 1):
        return usual, Numbering(0)
    return usual, Numbering(1)


def _sessions(files: Sequence[EventFile], step: np.ndarray, every: int, numbering: Numbering) -> list[dict[str, Any]]:
    """The event files, oldest first; of the first one where the run began."""
    sessions: list[dict[str, Any]] = [{"file": file.path.name} for file in files]
    if len(step) and sessions:
        first = int(step[0])
        begins = numbering.count(first) < every
        sessions[0]["first_step"] = numbering.first if begins else first
    return sessions


def _updates(step: np.ndarray, events: Sequence[Event], numbering: Numbering) -> np.ndarray:
    """(S,) steps so far that changed the parameters, those between two logged ones too: all but the skips."""
    skips = np.zeros(len(step))
    for event in events:
        if event.kind == "skip":
            skips[np.searchsorted(step, event.step)] += int(event.data.get("at_least", 1))
    stepped = (step - numbering.first) // numbering.unit + 1 - np.cumsum(skips)
    return np.maximum.accumulate(np.maximum(stepped, 0)) if len(step) else stepped


def _growth_interval(events: Sequence[Event], numbering: Numbering) -> int | None:
    """Steps from one change of the scale to the growth after it, where two growths agree."""
    changes = [event for event in events if event.kind in ("scale_growth", "scale_backoff", "scale_set")]
    distances = Counter(
        numbering.count(after.step) - numbering.count(before.step)
        for before, after in itertools.pairwise(changes)
        if after.kind == "scale_growth"
    )
    if not distances:
        return None
    distance, times = distances.most_common(1)[0]
    return distance if times >= 2 else None
