"""Clipping of gradients by their global norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["clip_grad_norm_"]


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients down, in place, so that their global norm is at most `max_norm`.

    The norm is of all gradients together, as if they were one vector. When it passes `max_norm`, every gradient is
    multiplied by `max_norm / (norm + 1e-6)`: the direction stays, the length is capped. Parameters without a
    gradient are left out.

    This is `torch.nn.utils.clip_grad_norm_` itself, with its signature and its results, and so a monitor sees it.

    Returns:
        The norm before clipping, 0-dim.

    Costs:
        Two passes over the gradients; no host sync unless `error_if_nonfinite`.

    Raises:
        ValueError: `max_norm` is negative or NaN, which would turn or destroy the gradient.
        RuntimeError: the norm is not finite and `error_if_nonfinite` is set.
    """
    if not float(max_norm) >= 0:
        raise ValueError(f"max_norm is {max_norm!r}; it must be a number of at least 0, the longest gradient to allow.")
    if not isinstance(parameters, Tensor):
        parameters = list(parameters)
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
