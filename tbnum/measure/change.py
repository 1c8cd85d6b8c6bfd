"""How much tensors change from one moment to another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["changes_of", "copies_of"]


def copies_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What the tensors hold now, to be held against what they hold later. One pass, and the memory of all of them."""
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def changes_of(copies: list[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """What the tensors held minus what they hold: their change, but for the sign. One pass; written over `copies`.

    A difference of two numbers of the same type is exact where they are within a factor of two of each other, as a
    parameter and its update nearly always are.
    """
    torch._foreach_sub_(copies, list(tensors))
    return copies
