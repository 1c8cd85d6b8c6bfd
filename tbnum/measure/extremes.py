"""The ends of a tensor: its smallest and largest element, and the largest magnitude that is finite."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["extremes", "largest_finite", "limit_of", "readable"]


def readable(tensor: Tensor) -> Tensor | None:
    """The elements of a tensor, strided, real and detached; None where there is nothing to read.

    Nothing: integers, no elements, no storage (meta, fake and functorch tensors), nested tensors. Of a DTensor this
    rank's part; of a sparse tensor what it stores, not coalesced; 8-bit floats as float32. No copy but for those.
    """
    tensor = getattr(tensor, "_local_tensor", tensor).detach()
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_nested or tensor.device.type == "meta":
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None  # inside vmap or grad: what is read of it would be wrapped as well
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype.itemsize == 1:
        tensor = tensor.to(torch.float32)
    return tensor if tensor.numel() else None


def extremes(values: Tensor) -> Tensor:
    """Smallest, largest, and largest finite magnitude, (3,) float32 (float64 of float64), on the device.

    The first two are NaN where any element is; the third where no element is finite. `values` are what `readable`
    gives. Three passes and a copy; no host sync.
    """
    low, high = torch.aminmax(values)
    ends = torch.stack([low, high, largest_finite(values)])
    return ends if ends.dtype is torch.float64 else ends.to(torch.float32)


def largest_finite(values: Tensor) -> Tensor:
    """The largest magnitude among the finite elements, 0-dim; NaN where there is none. Two passes, no host sync."""
    magnitudes = values.abs().nan_to_num_(nan=-1.0, posinf=-1.0)
    _, largest = torch.aminmax(magnitudes)  # amax takes four times as long on a CPU
    return largest.masked_fill(largest < 0, float("nan"))


def limit_of(dtype: torch.dtype) -> float:
    """The largest finite number of a floating-point or complex type."""
    return float(torch.finfo(dtype).max)
