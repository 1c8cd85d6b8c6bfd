"""Clipping of gradients by their global norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["check_max_norm", "clip_grad_norm_"]


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
        TypeError: `max_norm` is no number, or `parameters` no tensors.
        ValueError: `max_norm` is negative or NaN, which would turn or destroy the gradient.
        RuntimeError: the norm is not finite and `error_if_nonfinite` is set.
    """
    check_max_norm(max_norm)
    if not isinstance(parameters, Tensor):
        if not isinstance(parameters, Iterable):
            raise TypeError(f"parameters is {parameters!r:.80}; give the tensors to clip, as model.parameters().")
        parameters = list(parameters)
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def check_max_norm(max_norm: float) -> None:
    try:
        is_norm = float(max_norm) >= 0
    except (TypeError, ValueError):
        raise TypeError(
            f"max_norm is {max_norm!r:.80}; it must be a number, the longest gradient to allow, and comes after the "
            "parameters: clip_grad_norm_(model.parameters(), 1.0)."
        ) from None
    if not is_norm:
        raise ValueError(f"max_norm is {max_norm!r}; it must be a number of at least 0, the longest gradient to allow.")
