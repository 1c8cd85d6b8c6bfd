"""Columns of `series` that follow from the records of several ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tbnum.log.ranks import Ranks

__all__ = ["MOST_RANKS", "is_of_ranks", "of_ranks", "rank_names"]

RANKS = ("rank_min", "rank_max")
"""Columns of a run of several ranks: the least and the greatest of what the ranks have in a column. A NaN of one
rank is left out; it is an event's matter. Beside them `rank_N`: what rank N has."""

MOST_RANKS = 64
"""So many are shown one by one; of more there is the spread."""


def is_of_ranks(name: str) -> bool:
    return re.fullmatch(r"rank_(min|max|\d+)", name.rpartition("/")[2]) is not None


def rank_names(columns: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> list[str]:
    """The spread of the loss, and that of each rank, where other ranks have a record."""
    others = meta.get("ranks")
    if "loss" not in columns or not others:
        return []
    ranks = sorted({int(meta.get("rank", 0)), *map(int, others)})
    return [f"loss/{name}" for name in (*RANKS, *(f"rank_{rank}" for rank in ranks if len(ranks) <= MOST_RANKS))]


def of_ranks(name: str, ranks: Ranks | None, kept: dict[str, np.ndarray]) -> np.ndarray | None:
    """(S,) the least or the greatest over the ranks, or one of them; None where no rank has the column.

    Some 10 ms a million steps. Single ranks are all read at once, and put into `kept` for the next question.
    """
    column, _, kind = name.rpartition("/")
    if ranks is None or column not in ranks.steps:
        return None
    if kind in RANKS:
        return ranks.spread(column)[RANKS.index(kind)]
    if name not in kept and len(ranks.present) <= MOST_RANKS:
        present, values = ranks.column(column)
        kept.update({f"{column}/rank_{rank}": own for rank, own in zip(present, values, strict=True)})
    return kept.get(name)
