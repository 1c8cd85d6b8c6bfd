"""Columns of a run in small buckets, from which views of many steps are reduced: each column is gone through once.

Pure numpy, as `decimate`. F is the number of fine buckets, B that of the wanted ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensorboard_plugin_tbnum.decimate import Buckets, Reduced, buckets_of, measured, reduce

__all__ = ["Coarse"]

POWER = 6  # a fine bucket spans 64 steps


class Coarse:
    """Of one version of a run. What is asked for first costs a pass over the column, every further view F."""

    def __init__(self) -> None:
        self._buckets: Buckets | None = None
        self._columns: dict[str, Reduced] = {}

    @property
    def nbytes(self) -> int:
        return sum(sum(part.nbytes for part in vars(column).values()) for column in list(self._columns.values()))

    def reduce(self, name: str, values: np.ndarray, steps: Mapping[str, np.ndarray], wanted: Buckets) -> Reduced:
        """As `decimate.reduce`, of column `name` of `steps`, or derived from it; means are exact to the last digits."""
        if wanted.size < 2 << POWER or not len(wanted):
            begin, end = int(wanted.edges[0]), int(wanted.edges[-1])
            part = {other: column[begin:end] for other, column in steps.items()}
            return reduce(values[begin:end], Buckets(wanted.size, wanted.edges - begin), measured(name, part))
        buckets = self._buckets
        if buckets is None:
            buckets = self._buckets = buckets_of(steps["step"], 0, len(values), POWER)
        fine = self._columns.get(name)
        if fine is None:
            fine = self._columns[name] = reduce(values, buckets, measured(name, steps))
        return _joined(fine, np.searchsorted(buckets.edges, wanted.edges))


def _joined(fine: Reduced, edges: np.ndarray) -> Reduced:
    """`edges` (B + 1,) into the fine buckets (F,)."""
    begin, end, starts = int(edges[0]), int(edges[-1]), edges[:-1] - edges[0]
    part = {name: values[begin:end] for name, values in vars(fine).items()}
    finite = (part["known"] - part["inf"]).astype(np.float64)
    whole = np.repeat(np.add.reduceat(finite, starts), np.diff(edges))
    shares = np.divide(finite, whole, out=np.zeros(len(finite)), where=finite > 0)
    mean = np.add.reduceat(np.where(finite > 0, part["mean"], 0.0) * shares, starts)
    at = np.maximum.reduceat(np.where(finite > 0, np.arange(len(finite)), -1), starts)  # the last with a finite value
    none = at < starts
    return Reduced(
        min=np.fmin.reduceat(part["min"], starts),
        max=np.fmax.reduceat(part["max"], starts),
        mean=np.where(none, np.nan, mean),
        last=np.where(none, np.nan, part["last"][at]),
        nan=np.add.reduceat(part["nan"], starts, dtype=np.uint32),
        inf=np.add.reduceat(part["inf"], starts, dtype=np.uint32),
        known=np.add.reduceat(part["known"], starts, dtype=np.uint32),
    )
