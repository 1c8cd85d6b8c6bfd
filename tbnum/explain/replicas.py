"""Ranks that hold the same parameters are one model: whether they still are, by the bit or by their norms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tbnum.explain.finding import Finding
from tbnum.explain.thresholds import REPLICAS_APART
from tbnum.log.columns import columns_named
from tbnum.log.ranks import ChecksumSeries, RankRecord, Ranks, ranks_text

__all__ = ["replica_findings"]


def replica_findings(ranks: Ranks) -> Iterator[Finding]:
    yield from _bits_apart(ranks) or _apart(ranks)


def _are_replicas(ranks: Ranks) -> bool:
    if len(ranks.present) < 2 or not ranks.sessions:
        return False
    return all(plan.is_of_one_rank for plan in ranks.plans()[-1].values())


def _replicas(ranks: Ranks) -> dict[int, Any]:
    """By rank, a key that ranks have in common which hold the same parameters: all under DDP, replicas of HSDP."""
    if _are_replicas(ranks):
        return dict.fromkeys(ranks.present, ())
    records = ranks.sessions[-1].by_rank if ranks.sessions else {}
    keys = {rank: _part_of(record) for rank, record in records.items() if record.is_whole}
    return {rank: key for rank, key in keys.items() if key is not None}


def _part_of(record: RankRecord) -> Any:
    """Which part of the parameters a rank holds: the meshes, and where it lies on them but for replication.

    None where that is not known, as where a layout of FSDP1 has no mesh.
    """
    parts: list[Any] = []
    for optimizer, layout in sorted((record.meta.get("layouts") or {}).items()):
        placed = layout.get("placements")
        if not placed:
            return None
        parts.append((optimizer, str(layout.get("names")), str(layout.get("elements"))))
        for each in placed:
            kinds, coordinate = list(each.get("placements") or ()), each.get("coordinate")
            if coordinate is None or len(coordinate) != len(kinds):
                return None
            place = [at for at, kind in zip(coordinate, kinds, strict=True) if not str(kind).startswith("R")]
            parts.append((str(each.get("mesh")), str(kinds), str(place)))
    return tuple(parts) or None


class _Left(NamedTuple):
    """A rank whose checksums left those of the others."""

    same_until: int  # -1: they never were the same
    begun: int
    tensors: tuple[str, ...]


class _Group:
    """Ranks that hold the same parameters."""

    def __init__(self, lowest: int, reference: ChecksumSeries) -> None:
        self.lowest, self.reference = lowest, reference
        self.same: list[int] = []
        self.apart: dict[int, _Left] = {}

    def take(self, rank: int, series: ChecksumSeries) -> None:
        left = _left(self.reference, series)
        if left is None:
            self.same.append(rank)
        elif left.same_until >= 0:
            self.apart[rank] = left

    def begun(self) -> int:
        return min(left.begun for left in self.apart.values())

    def finding(self) -> Finding:
        first = [rank for rank, left in self.apart.items() if left.begun == self.begun()]
        is_lowest = len(first) > 1 and not self.same and len(first) == len(self.apart)  # all others agree
        named, others = ([self.lowest], first) if is_lowest else (first, [self.lowest, *self.same])
        same_until, begun, tensors = self.apart[first[0]]
        more = f" and {len(tensors) - 3:,} more" if len(tensors) > 3 else ""
        return Finding(
            "replicas_differ",
            "error",
            "Replicas are not the same bits any more",
            f"The parameters of {ranks_text(named)} were the same bits as those of {ranks_text(others)} at step "
            f"{same_until}, and are not at step {begun}: {', '.join(tensors[:3])}{more}.",
            "Where ranks train one model, go on from a checkpoint of before that step, and have the memory of "
            f"{ranks_text(named)} tested: a flipped bit looks like this. So does a rank that updates by itself: reduce "
            "every gradient, and leave no_sync() before the last backward of a step. tensor_interval=1 finds the step.",
            (begun,),
        )


def _bits_apart(ranks: Ranks) -> list[Finding]:
    """A rank whose parameters' checksums left those of its replicas, and where it began: of the first group that did.

    Of ranks that never had equal ones nothing is said here. Reads each rank's tables once, one after the other.
    """
    keys = _replicas(ranks)
    if len(set(keys.values())) == len(keys):
        return []
    groups: dict[Any, _Group] = {}
    for rank, series in ranks.checksums():
        key = keys.get(rank, rank)
        if key in groups:
            groups[key].take(rank, series)
        else:
            groups[key] = _Group(rank, series)
    apart = [group for group in groups.values() if group.apart]
    return [min(apart, key=_Group.begun).finding()] if apart else []


def _left(reference: ChecksumSeries, series: ChecksumSeries) -> _Left | None:
    """The last step at which two ranks' checksums are the same (-1: none), the first at which not, and of what."""
    if series is reference:
        return None
    steps, at, others = np.intersect1d(reference[0], series[0], return_indices=True)
    if reference[1] != series[1] or not len(steps):
        return None
    first, second = reference[2][at], series[2][others]
    differ = (first != second) & (first != 0) & (second != 0)
    rows = np.flatnonzero(differ.any(axis=1))
    if not len(rows):
        return None
    row = int(rows[0])
    names = tuple(reference[1][place] for place in np.flatnonzero(differ[row]).tolist())
    return _Left(int(steps[row - 1]) if row else -1, int(steps[row]), names)


def _apart(ranks: Ranks) -> Iterator[Finding]:
    """Of replicas without checksums: their parameters' norms show when they are not one model any more."""
    if not _are_replicas(ranks):
        return
    for name in [column.full for column, _ in columns_named(ranks.steps, "param_norm")]:
        lowest, highest = ranks.spread(name)
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(highest - lowest > REPLICAS_APART * np.abs(highest))
        if not len(rows):
            continue
        row = int(rows[0])
        values = {rank: value for rank, value in ranks.at(name, row).items() if not math.isnan(value)}
        low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
        step = int(ranks.steps["step"][row])
        evidence = f"{name} is {values[low]:.8g} on rank {low} and {values[high]:.8g} on rank {high}"
        equal = (
            "begin them equal and reduce every gradient: wrap the model in DistributedDataParallel, and leave "
            "no_sync() before the last backward of a step."
        )
        if row > np.flatnonzero(~np.isnan(lowest))[0]:
            title, evidence = "The ranks' parameters have come apart", f"From step {step} on: {evidence}."
            remedy = f"Fine where ranks are meant to train by themselves. Else {equal}"
        else:  # never seen equal: perhaps they were never meant to be
            title = "Ranks whose parameters have the same names hold different ones"
            evidence = (
                f"Since step {step}, the first where it is known: {evidence}. Norms of the run are those of rank "
                f"{ranks.present[0]} alone."
            )
            remedy = (
                "Stages of a pipeline, or other parts of one model: give each its own name, as in "
                'wrap(..., model={"stage1": module}), and their norms add up. Replicas: ' + equal
            )
        yield Finding("replicas_differ", "warning", title, evidence, remedy, (step,))
