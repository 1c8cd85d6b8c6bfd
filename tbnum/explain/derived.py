"""Columns that no log stores, as they follow from stored ones step by step.

Not in the panel, for what is reduced to buckets first cannot be divided exactly afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tbnum.log.columns import StepColumn

__all__ = ["column_of", "derived", "derived_names"]

SOURCES: Mapping[str, tuple[str, ...]] = {
    "update_ratio": ("update_norm", "param_norm"),
    "clipped": ("clip_coef", "skipped"),
    "updates": ("skipped",),
}
"""What each follows from, of the same optimizer.

update_ratio  the norm of the parameters' change in the step over the parameters' norm
clipped       1 where clipping made the gradients smaller, else 0; unknown where the step was skipped. Its mean is the
              share of clipped steps
updates       steps so far, this one included, that changed the parameters: those that were not skipped
"""


def _named(columns: Mapping[str, np.ndarray]) -> dict[str, tuple[StepColumn, str]]:
    """What there may be derived columns of, by their full names: a stored column of the same optimizer, and which."""
    stored = map(StepColumn.parse, columns)
    used = {source for sources in SOURCES.values() for source in sources}
    return {column.beside(name): (column, name) for column in stored if column.name in used for name in SOURCES}


def derived_names(columns: Mapping[str, np.ndarray]) -> list[str]:
    """The derived columns that there are beside `columns`, each optimizer's after its name as the stored ones."""
    named = _named(columns)
    there = [full for full, (column, _) in named.items() if column.beside("skipped") in columns]
    return [full for full in there if full not in columns and _sources(full, columns)[1]]


def _sources(full: str, columns: Mapping[str, np.ndarray]) -> tuple[str, list[np.ndarray]]:
    """Which derived column it is, and what it follows from; nothing where not all of that is there."""
    column, name = _named(columns).get(full, (None, ""))
    names = [] if column is None else [column.beside(source) for source in SOURCES[name]]
    return name, [columns[each] for each in names] if all(each in columns for each in names) else []


def derived(name: str, columns: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """(S,) float64, NaN where unknown. None where it is no derived column, or lacks what it follows from.

    A few ms for a million steps.
    """
    base, found = _sources(name, columns)
    if not found:
        return None
    if base == "updates":
        return np.cumsum(~found[0].astype(bool)).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        if base == "update_ratio":
            return np.asarray(found[0] / found[1])
        return np.where(np.isnan(found[0]) | found[1].astype(bool), np.nan, found[0] < 1)


def column_of(name: str, columns: Mapping[str, np.ndarray], kept: dict[str, np.ndarray]) -> np.ndarray | None:
    """(S,) a stored column, or a derived one, which is put into `kept` for the next question. None: there is none."""
    if name in columns:
        return columns[name]
    values = kept.get(name)
    if values is None:
        values = derived(name, columns)
        if values is not None:
            kept[name] = values
    return values
