"""What is judged of a step, or of a run held against others: what led to it, where two part, where one leaves a band.

As `impl`: plain functions, no request, no response.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tbnum.compare import diff
from tbnum.compare.noise import judged
from tbnum.compare.settings import settings_apart
from tbnum.compare.words import next_step, sentence
from tbnum.explain import what_led_here
from tbnum.explain.derived import column_of
from tbnum.log.ranks import Ranks
from tensorboard_plugin_tbnum.rank_columns import MOST_RANKS
from tensorboard_plugin_tbnum.snapshots import Snapshot
from tensorboard_plugin_tbnum.tables import NotFound

__all__ = ["apart_impl", "band_impl", "led_impl"]

OF_A_RANK = ("loss", "grad_norm")
"""Columns of which each rank may have its own."""
KEPT_IDS = 64
WINDOWS = 32
"""Stretches of the steps in common whose means are held against each other: single steps differ by their batch."""
LEAST_STEPS = 4  # in a window
LASTING = 2  # windows that a run has to stay outside for: one in twenty is outside by chance


@dataclass(frozen=True)
class _OfRank:
    """A rank's own values, as what led to a step is read from."""

    steps: Mapping[str, np.ndarray]


def led_impl(snapshot: Snapshot, step: int, samples: Sequence[int] | None) -> dict[str, Any]:
    """What left its usual in the steps before `step`, of the run and of each rank; `samples`: the step's, if known."""
    try:
        found = what_led_here(snapshot, step)
    except ValueError as error:
        raise NotFound(str(error)) from error
    quantities = [{**_row(one), "rank": None} for one in found.quantities] + _of_ranks(snapshot.ranks, step)
    return {
        "step": found.step,
        "first_step": found.first_step,
        "quantities": sorted(quantities, key=lambda row: -row["deviations"]),
        "not_recorded": list(found.not_recorded),
        "samples": None if samples is None else list(samples[:KEPT_IDS]),
        "samples_total": None if samples is None else len(samples),
    }


def _row(quantity: Any) -> dict[str, Any]:
    return {**dataclasses.asdict(quantity), "steps": list(quantity.steps), "values": list(quantity.values)}


def _of_ranks(ranks: Ranks | None, step: int) -> list[dict[str, Any]]:
    """Of each rank, what the ranks have each for itself: where all of them have the same it is the run's."""
    if ranks is None or not 2 <= len(ranks.present) <= MOST_RANKS:
        return []
    rows: list[dict[str, Any]] = []
    for name in OF_A_RANK:
        if name not in ranks.steps:
            continue
        present, values = ranks.column(name)
        if np.array_equal(np.fmin.reduce(values), np.fmax.reduce(values), equal_nan=True):
            continue
        for rank, own in zip(present, values, strict=True):
            found = what_led_here(_OfRank({"step": ranks.steps["step"], name: own}), step)  # type: ignore[arg-type]
            rows += [{**_row(one), "rank": rank} for one in found.quantities]
    return rows


def apart_impl(one: Snapshot, other: Snapshot) -> dict[str, Any]:
    """At which step two runs part, in what both recorded, bit for bit: as `tbnum.diff` has it.

    Costs some 0.2 s for a million steps, and 30 us for each table of tensors that both have.
    """
    settings = [[setting.name, _text(setting.a), _text(setting.b)] for setting in settings_apart(one.meta, other.meta)]
    try:
        found = diff(one, other)
    except ValueError as error:  # no step in common
        return {"steps": 0, "first_step": None, "sentence": str(error), "next": "", "settings": settings}
    return {
        "steps": found.steps,
        "first_step": found.first_step,
        "sentence": sentence(found),
        "next": next_step(found) or "",
        "settings": settings,
    }


def _text(value: Any) -> str:
    return "\N{EN DASH}" if value is None else str(value)


def band_impl(run: Snapshot, seeds: Sequence[Snapshot], columns: Sequence[str]) -> dict[str, Any]:
    """From which step a run is outside of what seeds of one setting do, and stays so, by column.

    The steps that all have in common are cut into windows. A window is outside where the run's mean in it differs from
    the seeds' by more than their spread explains: Student's t, as `tbnum.diff` judges the last tenth.
    Some 10 ms for a million steps, a run and a column.
    """
    others = [seed for seed in seeds if seed.run != run.run]
    edges = _windows([run, *others]) if len(others) > 1 else np.empty(0)
    found = {}
    for name in columns:
        means = [_means(snapshot, name, edges) for snapshot in (run, *others)]
        known = [each for each in means if each is not None]
        if len(known) == len(means) and len(edges):
            found[name] = {"leaves": _leaves(name, known[0], known[1:], edges)}
    return {"run": run.run, "seeds": [seed.run for seed in others], "columns": found}


def _windows(snapshots: Sequence[Snapshot]) -> np.ndarray:
    """(W + 1,) steps at which windows begin, and where the last one ends; (0,): too little in common."""
    steps = [snapshot.steps["step"] for snapshot in snapshots]
    if not all(len(each) for each in steps):
        return np.empty(0)
    first, end = max(int(each[0]) for each in steps), min(int(each[-1]) for each in steps) + 1
    count = min(WINDOWS, (end - first) // LEAST_STEPS)
    return np.linspace(first, end, count + 1).round() if count > LASTING else np.empty(0)


def _means(snapshot: Snapshot, name: str, edges: np.ndarray) -> np.ndarray | None:
    """(W,) of the finite values in each window, NaN where there is none. None: the run has no such column."""
    values = column_of(name, snapshot.steps, snapshot.derived)
    if values is None:
        return None
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    at = np.searchsorted(snapshot.steps["step"], edges)
    with np.errstate(invalid="ignore"):
        means: np.ndarray = np.diff(sums[at]) / np.diff(counts[at])
    return means


def _leaves(name: str, own: np.ndarray, seeds: Sequence[np.ndarray], edges: np.ndarray) -> int | None:
    """The step from which on all windows are outside."""
    begin = len(own)
    while begin > 0:
        of_seeds = [float(means[begin - 1]) for means in seeds if np.isfinite(means[begin - 1])]
        mean = float(own[begin - 1])
        if not np.isfinite(mean) or len(of_seeds) < 2 or not judged(name, of_seeds, [mean]).beyond:
            break
        begin -= 1
    return int(edges[begin]) if len(own) - begin >= LASTING else None
