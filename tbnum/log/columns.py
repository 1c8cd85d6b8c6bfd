"""The name of a column of a step as a value: whose it is, what it holds, of which group or term of the loss."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tbnum.log.schema import OPTIMIZER_COLUMNS, SHARD_COLUMNS, SHARED_COLUMNS, STEP_HASH

__all__ = ["StepColumn", "columns_named"]

_KNOWN = frozenset(column.name for column in (*SHARED_COLUMNS, *OPTIMIZER_COLUMNS, *SHARD_COLUMNS, STEP_HASH))


class StepColumn(NamedTuple):
    """`generator/lr/1` is `StepColumn("generator", "lr", 1)`, `loss/kl` is `StepColumn(None, "loss", term="kl")`.

    `optimizer` is None for what a step has once, and where there is one optimizer alone.
    """

    optimizer: str | None
    name: str
    group: int = 0  # the parameter group, of `lr`
    term: str | None = None  # a named part of `loss`

    @staticmethod
    def parse(full: str) -> StepColumn:
        """A name that no version of tbnum gave is a column of that name and nobody's. O(1), remembered."""
        return _parsed(full)

    @property
    def full(self) -> str:
        """The name under which `Run.steps` has it."""
        tail = self.term if self.term is not None else str(self.group) if self.group else None
        return "/".join(part for part in (self.optimizer, self.name, tail) if part is not None)

    def beside(self, name: str) -> str:
        """The full name of another column of the same optimizer."""
        return name if self.optimizer is None else f"{self.optimizer}/{name}"


@lru_cache(maxsize=4096)
def _parsed(full: str) -> StepColumn:
    parts = full.split("/")
    for at, name in enumerate(parts):
        if name not in _KNOWN:
            continue
        optimizer, rest = "/".join(parts[:at]) or None, parts[at + 1 :]
        if not rest:
            return StepColumn(optimizer, name)
        if name == "lr" and len(rest) == 1 and rest[0].isdigit():
            return StepColumn(optimizer, name, int(rest[0]))
        if name == "loss" and _parsed("/".join(rest)).name not in _KNOWN:  # else an optimizer that is called loss
            return StepColumn(optimizer, name, term="/".join(rest))
    return StepColumn(None, full)


def columns_named(steps: Mapping[str, np.ndarray], name: str) -> list[tuple[StepColumn, np.ndarray]]:
    """The columns of that name, one an optimizer (of `lr` one a group), in the order of `steps`."""
    columns = ((StepColumn.parse(full), values) for full, values in steps.items())
    return [(column, values) for column, values in columns if column.name == name and column.term is None]
