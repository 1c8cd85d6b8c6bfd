"""Columns of many tables as arrays: a row a step, a column a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tbnum.formats import CHECKSUM
from tbnum.log.tensors import unpacked

__all__ = ["Gathered", "Matching", "matching"]

_AT_ONCE = 256  # tables that are decoded in one go

_Rows: TypeAlias = "np.ndarray | slice"


class Matching(NamedTuple):
    """Which of a table's tensors are wanted, and where each goes; slices, which are quicker, where they can be."""

    source: _Rows
    target: _Rows

    @property
    def is_empty(self) -> bool:
        return isinstance(self.source, np.ndarray) and not len(self.source)


def matching(names: Sequence[str], target: Mapping[str, int]) -> Matching:
    """Of a table of `names` those in `target`, which has the place of each."""
    pairs = [(at, target[name]) for at, name in enumerate(names) if name in target]
    both = np.array(pairs, np.int64).reshape(-1, 2)
    source, where = both[:, 0], both[:, 1]
    if len(where) and len(where) == len(names) and (np.diff(where) == 1).all():
        return Matching(slice(None), slice(int(where[0]), int(where[-1]) + 1))
    return Matching(source, where)


class Gathered:
    """(S, P) values by column, filled table by table, and decoded many at once. NaN, of checksums 0, where unknown."""

    def __init__(self, columns: Sequence[str], shape: tuple[int, int], dtype: type[np.floating[Any]]) -> None:
        self._values: dict[str, np.ndarray] = {
            name: np.zeros(shape, np.uint64) if name.startswith(CHECKSUM) else np.full(shape, np.nan, dtype)
            for name in columns
        }
        self._waiting: dict[tuple[tuple[int, ...], int, int], _Waiting] = {}
        self._rows: set[int] = set()  # that wait

    def add(
        self, row: int, columns: Sequence[str], stored: Sequence[tuple[int, bytes]], count: int, which: Matching
    ) -> None:
        """A table's columns as they are stored, of `count` tensors; like tables give the same `columns` and `which`."""
        if row in self._rows or len(self._rows) >= _AT_ONCE:  # of one step the later table counts
            self._settle()
        self._rows.add(row)
        hows, data = zip(*stored, strict=True)
        key = hows, id(columns), id(which)
        if key not in self._waiting:
            self._waiting[key] = _Waiting(columns, which, count, [], [])
        waiting = self._waiting[key]
        waiting.rows.append(row)
        waiting.data.append(data)

    def values(self) -> dict[str, np.ndarray]:
        self._settle()
        return self._values

    def _settle(self) -> None:
        for (hows, *_), (columns, which, values, rows, data) in self._waiting.items():
            to = np.array(rows) if isinstance(which.target, slice) else np.array(rows)[:, np.newaxis]
            for name, how, of_column in zip(columns, hows, zip(*data, strict=True), strict=True):
                found = unpacked(how, of_column, values)
                self._values[name][to, which.target] = found if found.shape[1] == 1 else found[:, which.source]
        self._waiting.clear()
        self._rows.clear()


class _Waiting(NamedTuple):
    """Tables whose columns are stored in the same way."""

    columns: Sequence[str]
    which: Matching
    values: int  # in a column
    rows: list[int]
    data: list[tuple[bytes, ...]]  # by table, of each column
