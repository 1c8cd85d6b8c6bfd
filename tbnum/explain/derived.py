"""Columns that no log stores, as they follow from stored ones step by step.

Not in the panel, for what is reduced to buckets first cannot be divided exactly afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

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


def derived_names(columns: Mapping[str, np.ndarray]) -> list[str]:
    """The derived columns that there are beside `columns`, each optimizer's after its name as the stored ones."""
    prefixes = dict.fromkeys(name.rpartition("/")[0] for name in columns if name.rpartition("/")[2] == "skipped")
    names = (f"{prefix}/{name}" if prefix else name for prefix in prefixes for name in SOURCES)
    return [name for name in names if name not in columns and _sources(name, columns)]


def _sources(name: str, columns: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What a derived column follows from; nothing where not all of it is there."""
    prefix, slash, base = name.rpartition("/")
    names = [prefix + slash + source for source in SOURCES.get(base, ())]
    return [columns[each] for each in names] if all(each in columns for each in names) else []


def derived(name: str, columns: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """(S,) float64, NaN where unknown. None where it is no derived column, or lacks what it follows from.

    A few ms for a million steps.
    """
    base = name.rpartition("/")[2]
    found = _sources(name, columns)
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
