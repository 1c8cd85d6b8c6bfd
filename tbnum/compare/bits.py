"""Up to where two runs are the same bits, and in which stage of a step they came apart: from checksums alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tbnum.compare.align import shared, shared_names
from tbnum.compare.windows import windows
from tbnum.log.checksums import Checksums
from tbnum.log.ranks import ChecksumSeries

__all__ = ["Bits", "Depth", "compare_bits"]

GRADIENT, PARAMETER = "gradient", "parameter"


class Bits(NamedTuple):
    """`stage`: "optimizer", "backward" or "forward"; None where the checksums of that very step do not show it."""

    same_until: int | None = None  # the last checksummed step up to which all are the same
    apart_at: int | None = None  # the first checksummed step at which one differs
    kinds: tuple[str, ...] = ()  # of which then: "gradient", "parameter", moments by their name
    tensors: tuple[str, ...] = ()  # that differ in the first of these
    stage: str | None = None
    begun_in: str | None = None  # of "backward": the deepest tensor that differs


class Depth(NamedTuple):
    """`names` of tensors as the forward uses them; others (tied weights) are no evidence of depth, and come first.

    `source` is how that is known: from the "forward" itself; else the order of the "model", or without one (no names)
    of the "optimizer"; or there are "several losses", each of other tensors, so that no order holds.
    """

    names: Sequence[str] = ()
    source: str = "optimizer"

    @staticmethod
    def of(meta: Mapping[str, Any]) -> Depth:
        """As a run recorded it."""
        names, source = meta.get("depth"), str(meta.get("depth_from", "model"))
        known = [str(name) for name in names] if isinstance(names, list) else []
        return Depth(known, source if known or source == "several losses" else "optimizer")


def compare_bits(a: Checksums, b: Checksums, *, until: int | None = None, depth: Depth) -> Bits:
    """From the checksums of two runs, up to the step `until`. Reads no further than where they are apart."""
    bits = Bits()
    of_both = [what for what in a if what in b]
    for first, last in windows(a.steps, b.steps, until, 2 * len(of_both) * a.tensors if of_both else 0):
        series_a, series_b = (of.between(first, last) for of in (a, b))
        found = _in_window({what: _common(series_a[what], series_b[what], depth.names) for what in of_both}, depth)
        bits = found._replace(same_until=bits.same_until if found.same_until is None else found.same_until)
        if bits.apart_at is not None:
            break
    return bits


def _in_window(common: Mapping[str, _Common], depth: Depth) -> Bits:
    common = {what: found for what, found in common.items() if found.known.any()}
    if not common:
        return Bits()
    apart = {what: np.flatnonzero(found.differ.any(axis=1)) for what, found in common.items()}
    apart_at = min((int(common[what].steps[rows[0]]) for what, rows in apart.items() if len(rows)), default=None)
    checked = np.unique(np.concatenate([found.steps[found.known.any(axis=1)] for found in common.values()]))
    same = checked if apart_at is None else checked[checked < apart_at]
    same_until = int(same[-1]) if len(same) else None
    if apart_at is None:
        return Bits(same_until)
    at = {what: found.at(apart_at) for what, found in common.items()}
    kinds = tuple(sorted((what for what, names in at.items() if names), key=_order))
    return _with_stage(Bits(same_until, apart_at, kinds, at[kinds[0]]), common, depth)


def _order(what: str) -> tuple[bool, bool, str]:
    return what != GRADIENT, what != PARAMETER, what


class _Common(NamedTuple):
    """Checksums of one kind at the steps and of the tensors that both runs have."""

    steps: np.ndarray  # (S,)
    names: tuple[str, ...]  # (P,)
    known: np.ndarray  # (S, P) bool
    differ: np.ndarray  # (S, P) bool, where both are known

    def at(self, step: int) -> tuple[str, ...]:
        """The tensors that differ at a step."""
        row = int(np.searchsorted(self.steps, step))
        if row == len(self.steps) or self.steps[row] != step:
            return ()
        return tuple(self.names[place] for place in np.flatnonzero(self.differ[row]).tolist())

    def known_at(self, step: int) -> tuple[str, ...]:
        """The tensors of which both runs have a checksum at a step."""
        row = int(np.searchsorted(self.steps, step))
        if row == len(self.steps) or self.steps[row] != step:
            return ()
        return tuple(self.names[place] for place in np.flatnonzero(self.known[row]).tolist())

    def all_known_at(self, step: int) -> bool:
        """Whether every tensor's is known there."""
        return bool(self.names) and len(self.known_at(step)) == len(self.names)


def _common(a: ChecksumSeries, b: ChecksumSeries, depth: Sequence[str]) -> _Common:
    (steps_a, names_a, values_a), (steps_b, names_b, values_b) = a, b
    steps, at_a, at_b = shared(steps_a, steps_b)
    names, of_a, of_b = shared_names(names_a, names_b)
    first, second = values_a[at_a][:, of_a], values_b[at_b][:, of_b]
    if depth:
        place = {name: at for at, name in enumerate(depth)}
        order = sorted(range(len(names)), key=lambda at: place.get(names[at], -1))  # stable
        names, first, second = tuple(names[at] for at in order), first[:, order], second[:, order]
    known = (first != 0) & (second != 0)
    return _Common(steps, names, known, known & (first != second))


def _with_stage(bits: Bits, common: Mapping[str, _Common], depth: Depth) -> Bits:
    """The stage, where the checksums of the step itself and of the one before it show it."""
    step = bits.apart_at
    assert step is not None
    parameters, gradients = common.get(PARAMETER), common.get(GRADIENT)
    if parameters is None or gradients is None or bits.same_until != step - 1 or not parameters.all_known_at(step - 1):
        return bits  # whether the parameters were the same before it is not known
    with_gradient, apart = gradients.known_at(step), gradients.at(step)
    if not with_gradient:
        return bits
    if not apart:
        return bits._replace(stage="optimizer")
    if depth.source == "several losses":
        return bits
    if with_gradient[-1] in apart:
        return bits._replace(stage="forward")
    return bits._replace(stage="backward", begun_in=apart[-1])
