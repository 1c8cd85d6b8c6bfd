"""Small questions about the parameters and gradients of an optimizer, none of which makes the host wait."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Seen", "gradients_of", "local", "look_at", "parameters_of"]


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All of them, group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Those that there are."""
    return [gradient for gradient in [parameter.grad for parameter in parameters] if gradient is not None]


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Of a DTensor this rank's part: asking it for a norm would run a collective, which can hang."""
    return [getattr(each, "_local_tensor", each) for each in tensors]


@dataclass(frozen=True)
class Seen:
    """Gradients as they were when last looked at: a write to one raises its version, a new one is another object."""

    gradients: list[Tensor]
    versions: list[int]

    def unchanged_in(self, optimizer: torch.optim.Optimizer) -> bool:
        """About 0.1 microseconds a tensor, on the host alone."""
        gradients = gradients_of(parameters_of(optimizer))
        return (
            len(gradients) == len(self.gradients)
            and all(map(operator.is_, gradients, self.gradients))
            and _versions(gradients) == self.versions
        )


def look_at(optimizer: torch.optim.Optimizer) -> Seen:
    gradients = gradients_of(parameters_of(optimizer))
    return Seen(gradients, _versions(gradients))


def _versions(gradients: list[Tensor]) -> list[int]:
    return [gradient._version for gradient in gradients]
