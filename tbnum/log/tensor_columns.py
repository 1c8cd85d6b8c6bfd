"""Columns of tensors that follow from stored ones, and columns of groups of tensors. Pure, on numpy arrays."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tbnum.formats import FORMATS

__all__ = ["DERIVED", "combine", "derive", "group_by_module"]

DERIVED: Mapping[str, tuple[str, str]] = {
    "update_ratio": ("update_norm", "param_norm"),
    **{f"headroom/{name}": ("absmax", "loss_scale") for name in FORMATS},
}
"""What each follows from. `update_ratio`: the change's norm over the parameter's. `headroom/<format>`: how often the
largest gradient, times the loss scale, can double before it passes the format's maximum."""


def derive(column: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A derived column from the two that it follows from, element by element; NaN where either is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if column == "update_ratio":
            return np.asarray(first / second)
        maximum = FORMATS[column.split("/")[1]].maximum
        return np.asarray(np.log2(maximum) - np.log2(first) - np.log2(second))


def group_by_module(
    names: Sequence[str], *, depth: int | None = None, prefixes: Iterable[str] | None = None
) -> dict[str, list[int]]:
    """Places of the parameters called `names`, by the module that they belong to; groups in order of appearance.

    With `depth`, a group is a module that many levels below the model: at 2, `encoder.3.attention.weight` is in
    `encoder.3`. A module that is not that deep is its own group, and the model's own parameters are in `""`.
    With `prefixes`, a group is a module by its full name and all below it; the longest that fits counts, and what
    fits none is left out.

    Raises:
        ValueError: not exactly one of `depth` and `prefixes`, a depth below 1, a prefix that no parameter has.
    """
    if (depth is None) == (prefixes is None):
        raise ValueError("group_by_module takes either depth= or prefixes=.")
    groups: dict[str, list[int]] = {}
    if depth is not None:
        if isinstance(depth, bool) or not isinstance(depth, numbers.Integral) or depth < 1:
            raise ValueError(
                f"depth is {depth!r}; it must be a whole number of at least 1, which is the model's direct children."
            )
        for place, name in enumerate(names):
            groups.setdefault(".".join(name.split(".")[:-1][:depth]), []).append(place)
        return groups
    assert prefixes is not None
    if isinstance(prefixes, str):
        raise ValueError(f"prefixes is {prefixes!r}; give a list of names of modules, as [{prefixes!r}].")
    wanted = set(prefixes)
    for place, name in enumerate(names):
        parts = name.split(".")
        above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        longest = next((module for module in above if module in wanted), None)
        if longest is not None:
            groups.setdefault(longest, []).append(place)
    unused = sorted(wanted - set(groups))
    if unused:
        tops = sorted({name.split(".")[0] for name in names})
        raise ValueError(f"no parameter lies below {unused[0]!r}. The names begin with: {', '.join(tops[:10])}.")
    return groups


def combine(column: str, values: np.ndarray, groups: Sequence[Sequence[int]], elements: np.ndarray) -> np.ndarray:
    """Values (S, P) of tensors as values (S, G) of groups of them, as if the tensors of a group were one.

    Norms add up by their squares, counts add up, of `absmax` the largest counts and of headroom the smallest, shares
    are weighed by `elements` (P,). What is unknown of a tensor is left out; where all is, the group's is unknown.
    """
    kind = column.split("/")[0]
    combined = np.full((len(values), len(groups)), np.nan)
    for at, places in enumerate(groups):
        members = values[:, places]
        known = ~np.isnan(members)
        some = known.any(axis=1)
        if kind.endswith("norm"):
            total = np.sqrt(np.square(np.where(known, members, 0)).sum(axis=1))
        elif kind in ("absmax", "activation_absmax", "loss_scale", "float8_amax"):
            total = np.where(known, members, -np.inf).max(axis=1)
        elif kind in ("headroom", "float8_scale"):
            total = np.where(known, members, np.inf).min(axis=1)
        elif kind in ("underflow", "overflow", "activation_zero_share", "float8_saturated", "float8_flushed"):
            weights = np.where(known, elements[places], 0)
            with np.errstate(invalid="ignore"):
                total = (np.where(known, members, 0) * weights).sum(axis=1) / weights.sum(axis=1)
        else:
            total = np.where(known, members, 0).sum(axis=1)
        combined[:, at] = np.where(some, total, np.nan)
    return combined
