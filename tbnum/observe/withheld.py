"""Optimizers whose `step` returns without an update where a gradient is not finite."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tbnum.observe.attempt import Attempt
from tbnum.observe.gradients import parameters_of

__all__ = ["Unspoilt"]


class Unspoilt(NamedTuple):
    """A parameter whose gradient is not finite, and its value before the step: no update leaves it as it is."""

    parameter: Tensor
    value: Tensor

    @staticmethod
    def of(attempt: Attempt, optimizer: torch.optim.Optimizer) -> Unspoilt | None:
        """The smallest one; None where only a device knows which there are."""
        parameters = [parameters_of(optimizer)[place] for place in attempt.places]
        bad: list[Tensor] = []
        for norms in attempt.before.norms:
            if norms.norms.is_cpu:
                places = zip(norms.index, norms.norms.tolist(), strict=True)
                bad += [parameters[place] for place, norm in places if not math.isfinite(norm)]
        if not bad:
            return None
        smallest = min(bad, key=Tensor.numel)
        return Unspoilt(smallest, smallest.detach().clone())

    def is_left(self) -> bool:
        return torch.equal(self.parameter, self.value)
