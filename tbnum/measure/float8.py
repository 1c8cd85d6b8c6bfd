"""What a cast to float8 with a scale loses of a tensor. Pure: tensors in, a small device tensor out."""

from __future__ import annotations

import torch
from torch import Tensor

from tbnum.formats import FORMATS, Format
from tbnum.measure.statistics import STATISTICS, statistics_of

__all__ = ["FLOAT8", "amax_of", "cast_losses"]

FLOAT8 = {getattr(torch, name): FORMATS[name] for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)}
"""The formats, by their types."""


def amax_of(tensor: Tensor) -> Tensor:
    """() the largest magnitude, of which a scale is made; inf or NaN where an element is. One pass, no host sync."""
    if tensor.numel() == 0:
        return tensor.new_zeros(())
    low, high = torch.aminmax(tensor.detach())
    return torch.maximum(low.neg(), high)


def cast_losses(tensor: Tensor, scale: Tensor, format: Format) -> Tensor:
    """(2,) float32 shares of the elements that a cast of `tensor * scale` to the format saturates, and flushes to zero.

    `scale` is one number. A saturated element is larger than the format's maximum, infinities among them; a flushed
    one was not zero before. At a scale of 0, which an infinite element makes, everything flushes. NaN where the tensor
    has no elements, or the scale is not a number.

    One pass over the elements, in pieces; no host sync.
    """
    (measured,) = statistics_of([tensor.detach()], scale.detach().to(torch.float32).reshape(()))
    row = dict(zip(STATISTICS, measured.values[0].unbind(), strict=True))
    elements = max(tensor.numel(), 1)
    saturated = row[f"overflow/{format.name}"] + row["inf"] / elements
    flushed = row[f"underflow/{format.name}"]
    return torch.stack([saturated, flushed]).to(torch.float32)
