"""Statistics of tensors over steps: kept decoded within a budget, and reduced to the cells of a heat map.

A table of S samples by P tensors that fits the budget stays in memory, and while a run goes on only its new samples are
read. One that does not fit is read in stretches for each question, so that memory stays bounded whatever the log holds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tbnum.log.tensor_columns import DERIVED, combine, derive, group_by_module
from tbnum.log.tensors_reader import Tensors
from tensorboard_plugin_tbnum.decimate import Buckets, as_float32

__all__ = ["BUDGET_BYTES", "CellCache", "Cells", "Grid", "is_minimum", "reduce_cells"]

BUDGET_BYTES = 96 << 20
"""Decoded tables of one run that stay in memory."""
STRETCH_CELLS = 4 << 20
"""Values of one column that are decoded at once: 16 MB."""

_COUNTS = ("nan", "inf")  # columns that say that a gradient was not finite


@dataclass(frozen=True)
class Cells:
    """One column of P tensors, or modules, at S steps."""

    steps: np.ndarray
    """(S,) int64, strictly increasing"""
    names: tuple[str, ...]
    """(P,)"""
    values: np.ndarray
    """(S, P) float32; NaN where unknown, or measured to be NaN"""
    nonfinite: np.ndarray
    """(S, P) bool: where an infinity or a NaN was measured"""

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.nonfinite.nbytes + self.steps.nbytes

    def between(self, first: int | None, last: int | None) -> Cells:
        """Those from step `first` to step `last`, inclusive. None is open. Views of the same memory."""
        lo = 0 if first is None else int(np.searchsorted(self.steps, first, side="left"))
        hi = len(self.steps) if last is None else int(np.searchsorted(self.steps, last, side="right"))
        return Cells(self.steps[lo:hi], self.names, self.values[lo:hi], self.nonfinite[lo:hi])


@dataclass(frozen=True)
class Grid:
    """Cells of P rows by B buckets."""

    extreme: np.ndarray
    """(P, B) float32: greatest (least) finite value, NaN if there is none"""
    nonfinite: np.ndarray
    """(P, B) uint32: samples that are not finite"""


@dataclass
class _Kept:
    tensors: Tensors
    cells: Cells


class CellCache:
    """What was decoded of one run's tensors. May be used by several threads; one decodes, the others wait."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int | None], _Kept] = {}  # the one asked for last comes last

    @property
    def nbytes(self) -> int:
        return sum(kept.cells.nbytes for kept in list(self._kept.values()))

    def names(self, tensors: Tensors, column: str, depth: int | None = None) -> tuple[str, ...]:
        """The rows of a column: tensors, or modules that many levels below the model. KeyError for no such column."""
        sources = _sources(tensors, column)
        every = tensors.names_with(sources)
        return every if depth is None else tuple(group_by_module(every, depth=depth))

    def steps(self, tensors: Tensors, column: str) -> np.ndarray:
        """(S,) the steps at which a column has samples. Reads nothing."""
        return tensors.steps_with(_sources(tensors, column))

    def stretches(
        self,
        tensors: Tensors,
        column: str,
        first: int | None = None,
        last: int | None = None,
        *,
        depth: int | None = None,
    ) -> Iterator[Cells]:
        """A column in stretches of steps, rising: one from memory if it fits the budget, else many, each read again.

        KeyError for no such column; ValueError where a share in a module cannot be weighed.
        """
        if self._bytes(tensors, column, depth) > self._budget_bytes // 2:
            for found in _read(tensors, [column], depth, first, last):
                yield found[column]
            return
        with self._lock:
            kept = self._kept.pop((column, depth), None)
            cells = kept.cells if kept and kept.tensors is tensors else self._fresh(tensors, column, depth, kept)
            self._keep(tensors, column, depth, cells)
        yield cells.between(first, last)

    def load(self, tensors: Tensors, columns: Sequence[str], depth: int | None = None) -> None:
        """Reads columns that are not in memory in one pass, as far as they fit, before each is asked for.

        Raises as `stretches`.
        """
        with self._lock:
            wanted, size = [], 0
            for column in columns:
                size += self._bytes(tensors, column, depth)
                if (column, depth) not in self._kept and size <= self._budget_bytes // 2:
                    wanted.append(column)
            if len(wanted) < 2:
                return
            parts = list(_read(tensors, wanted, depth, None, None))
            for column in wanted:
                self._keep(tensors, column, depth, _joined([part[column] for part in parts]))

    def _bytes(self, tensors: Tensors, column: str, depth: int | None) -> int:
        """What a column takes in memory."""
        return len(self.steps(tensors, column)) * (8 + 5 * len(self.names(tensors, column, depth)))

    def _keep(self, tensors: Tensors, column: str, depth: int | None, cells: Cells) -> None:
        self._kept[column, depth] = _Kept(tensors, cells)
        while self.nbytes > self._budget_bytes and len(self._kept) > 1:
            del self._kept[next(iter(self._kept))]

    def _fresh(self, tensors: Tensors, column: str, depth: int | None, kept: _Kept | None) -> Cells:
        """The column, of which only what changed since `kept` is read."""
        since = None
        old: list[Cells] = []
        whole = self._kept.get((column, None))
        if depth is not None and column != "update_ratio" and whole is not None and whole.tensors is tensors:
            return _grouped(tensors, column, depth, whole.cells)
        if kept is not None:
            since = tensors.changed_from(kept.tensors)
            if since is None:
                return kept.cells
            old = [kept.cells.between(None, since - 1)]
        parts = [*old, *(found[column] for found in _read(tensors, [column], depth, since, None))]
        parts = [part for part in parts if len(part.steps)] or parts[:1]
        if any(part.names != parts[0].names for part in parts):  # as a group was added since
            parts = [found[column] for found in _read(tensors, [column], depth, None, None)]
        return _joined(parts)


def _joined(parts: Sequence[Cells]) -> Cells:
    if len(parts) == 1:
        return parts[0]
    return Cells(
        np.concatenate([part.steps for part in parts]),
        parts[0].names,
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.nonfinite for part in parts]),
    )


def is_minimum(column: str) -> bool:
    """Whether the least value of a column is its worst."""
    return column.split("/")[0] in ("headroom", "float8_scale")


def reduce_cells(
    stretches: Iterator[Cells], steps: np.ndarray, buckets: Buckets, names: Sequence[str], column: str
) -> Grid:
    """The extreme and the count of non-finite samples of each cell: `names` (P,) by `buckets` (B,) of `steps` (S,).

    About 10 ms for 3 million samples.
    """
    starts = steps[buckets.first]
    low = is_minimum(column)
    fold = np.fmin if low else np.fmax
    extreme = np.full((len(buckets), len(names)), np.nan, np.float32)
    nonfinite = np.zeros((len(buckets), len(names)), np.uint32)
    for cells in stretches:
        if not len(cells.steps) or not len(buckets):
            continue
        at = np.searchsorted(starts, cells.steps, side="right") - 1  # (S,) the bucket of each sample
        edges = np.flatnonzero(np.diff(at, prepend=-1))
        rows = at[edges]
        values, faults = cells.values, cells.nonfinite
        if tuple(names) != cells.names:
            place = {name: index for index, name in enumerate(cells.names)}
            chosen = np.array([place[name] for name in names], np.int64)
            values, faults = values[:, chosen], faults[:, chosen]
        infinite = np.isinf(values)
        if infinite.any():
            values = np.where(infinite, np.float32(np.nan), values)
        extreme[rows] = fold(extreme[rows], fold.reduceat(values, edges, axis=0))
        if faults.any():
            nonfinite[rows] += np.add.reduceat(faults, edges, axis=0, dtype=np.uint32)
    return Grid(np.ascontiguousarray(extreme.T), np.ascontiguousarray(nonfinite.T))


def _sources(tensors: Tensors, column: str) -> tuple[str, ...]:
    """The stored columns that a column is, or follows from."""
    if column not in tensors:
        raise KeyError(column)
    return DERIVED.get(column, (column,))


def _of_gradient(column: str) -> bool:
    return column.split("/")[0] in ("grad_norm", "absmax", "headroom", "underflow", "overflow", "zero")


def _read(
    tensors: Tensors, columns: Sequence[str], depth: int | None, first: int | None, last: int | None
) -> Iterator[dict[str, Cells]]:
    """Columns from the files in one pass, in stretches of at most STRETCH_CELLS values."""
    sources = list(dict.fromkeys(source for column in columns for source in _sources(tensors, column)))
    beside = _COUNTS if any(map(_of_gradient, columns)) else ()
    every = tensors.steps_with(sources)
    lo = 0 if first is None else int(np.searchsorted(every, first, side="left"))
    hi = len(every) if last is None else int(np.searchsorted(every, last, side="right"))
    at_once = max(1, STRETCH_CELLS // max(1, len(tensors.names_with(sources)) * len(columns)))
    for start in range(lo, hi, at_once) if hi > lo else [lo]:
        chosen = every[start : min(start + at_once, hi)]
        between = (int(chosen[0]), int(chosen[-1])) if len(chosen) else (0, -1)
        steps, names, found = tensors.read_together(sources, *between, beside=beside, dtype=np.float32)
        yield {column: _cells(tensors, column, depth, steps, names, found) for column in columns}


def _cells(
    tensors: Tensors,
    column: str,
    depth: int | None,
    steps: np.ndarray,
    names: tuple[str, ...],
    found: dict[str, np.ndarray],
) -> Cells:
    """One of the columns that were read together: at the steps and of the tensors that have it."""
    sources = _sources(tensors, column)
    counts = _COUNTS if _of_gradient(column) else ()
    having = np.isin(steps, tensors.steps_with(sources), assume_unique=True)
    if not having.all():
        steps, found = steps[having], {name: found[name][having] for name in (*sources, *counts)}
    own = tensors.names_with(sources)
    if own != names:
        place = {name: index for index, name in enumerate(names)}
        chosen = np.array([place[name] for name in own], np.int64)
        names, found = own, {name: found[name][:, chosen] for name in (*sources, *counts)}
    with np.errstate(invalid="ignore"):
        faults = np.zeros((len(steps), len(names)), bool)
        for count in counts:
            faults |= found[count] > 0
        parts = [found[source] for source in sources]
        if depth is not None and column == "update_ratio":  # of the modules' norms
            groups = group_by_module(names, depth=depth)
            parts = [
                _combined(tensors, source, part, names, groups) for source, part in zip(sources, parts, strict=True)
            ]
            names, faults = tuple(groups), _any(faults, groups)
        values = as_float32(derive(column, *parts) if column in DERIVED else parts[0])
        faults |= np.isneginf(values) if is_minimum(column) else np.isinf(values)
    cells = Cells(steps, names, values, faults)
    return cells if depth is None or column == "update_ratio" else _grouped(tensors, column, depth, cells)


def _grouped(tensors: Tensors, column: str, depth: int, cells: Cells) -> Cells:
    """Tensors as modules. Not for `update_ratio`, which is that of the modules' norms."""
    groups = group_by_module(cells.names, depth=depth)
    values = as_float32(_combined(tensors, column, cells.values, cells.names, groups))
    faults = _any(cells.nonfinite, groups) | (np.isneginf(values) if is_minimum(column) else np.isinf(values))
    return Cells(cells.steps, tuple(groups), values, faults)


def _any(faults: np.ndarray, groups: dict[str, list[int]]) -> np.ndarray:
    """(S, G) bool: where any of a group's is set in `faults` (S, P)."""
    found = [faults[:, places].any(axis=1) for places in groups.values()]
    return np.stack(found, axis=1) if found else faults


def _combined(
    tensors: Tensors, column: str, values: np.ndarray, names: Sequence[str], groups: dict[str, list[int]]
) -> np.ndarray:
    weights = tensors.weights(column, names)
    return combine(column, values.astype(np.float64), list(groups.values()), weights)
