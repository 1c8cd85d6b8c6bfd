"""How a column is put together where each rank has a part of the tensors: the one table for steps and for tensors."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["GRADIENTS", "NORMS", "PARAMETERS", "PARAMETER_NORMS", "TABLE", "How", "Over", "how"]

GRADIENTS, PARAMETERS = "gradients", "parameters"


class Over(enum.Enum):
    NORM = "the root of the sum of the squares"
    GREATEST = "the greatest"
    COUNT = "the sum"
    SHARE = "the mean, weighed by the elements on each rank"
    SAME = "what all have in common; unknown where they differ"
    FIRST = "that of the lowest rank that has one"


class How(NamedTuple):
    over: Over
    of: str = GRADIENTS  # whose layout shows which parts count


TABLE: Mapping[str, How] = {
    "grad_norm": How(Over.NORM),
    "grad_norm_clipped": How(Over.NORM),
    "param_norm": How(Over.NORM, PARAMETERS),
    "update_norm": How(Over.NORM, PARAMETERS),
    "clip_coef": How(Over.SAME),
    "max_norm": How(Over.SAME),
    "nonfinite_tensors": How(Over.GREATEST),  # of ranks with parts of the same tensors: there are at least so many
    "absmax": How(Over.GREATEST),
    "nan": How(Over.COUNT),
    "inf": How(Over.COUNT),
    "zero": How(Over.COUNT),
    "underflow": How(Over.SHARE),
    "overflow": How(Over.SHARE),
    "loss": How(Over.FIRST),
    "micro_batches": How(Over.FIRST),
    "loss_scale": How(Over.FIRST),
    "activation_norm": How(Over.FIRST),
    "activation_absmax": How(Over.FIRST),
    "activation_zero_share": How(Over.FIRST),
}

NORMS = frozenset(name for name, (over, _) in TABLE.items() if over is Over.NORM)
PARAMETER_NORMS = tuple(name for name, (over, of) in TABLE.items() if over is Over.NORM and of == PARAMETERS)


def how(column: str) -> How:
    """Of a column that no version of tbnum gave: a count."""
    base = column.split("/")[0]
    return TABLE.get(base) or How(Over.FIRST if base.startswith("activation") else Over.COUNT)
