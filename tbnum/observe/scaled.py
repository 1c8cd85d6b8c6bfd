"""Which losses a GradScaler has scaled: found again when a backward begins with them, or with what was made of them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tbnum.alive import Alive
from tbnum.observe.gradients import operations_behind
from tbnum.observe.transfer import Number, hold

__all__ = ["Scaled", "remember", "scaled_by", "scaled_by_last"]

_KEY = "tbnum_scaled"  # in the metadata of the operation that scaled: it lives as long as the graph, and holds nothing
_LOOKED_AT = 64  # operations between a backward's root and the scaled loss


class Scaled(NamedTuple):
    """A loss and what it was multiplied by."""

    loss: Number | None  # None where the root is made of it, or it is no single number: then the root's counts
    scale: Number
    dtype: torch.dtype
    scaler: torch.amp.GradScaler


class _Entry(NamedTuple):
    loss: Number | None
    scale: Number
    dtype: torch.dtype
    scaler: weakref.ref[torch.amp.GradScaler]


_scalers: Alive[torch.amp.GradScaler] = Alive()  # that have scaled a loss


def remember(scaler: torch.amp.GradScaler, loss: Tensor, output: Tensor) -> None:
    """`scaler.scale(loss)` gave `output`. The loss is copied: one small kernel on a device, no sync."""
    node = output.grad_fn
    if node is None or output is loss or loss.is_complex():
        return  # a disabled scaler gives back what it got
    value = hold(loss) if loss.numel() == 1 else None
    scale = hold(scaler._scale) if scaler._scale is not None else float(scaler._init_scale)
    metadata: Any = node.metadata  # a dict, whatever its annotation says
    metadata[_KEY] = _Entry(value, scale, loss.dtype, weakref.ref(scaler))
    if scaler not in _scalers:
        _scalers.add(scaler)


def scaled_by(roots: Sequence[Any]) -> Scaled | None:
    """The scaler behind a backward, if any. Costs nothing where no scaler is in use."""
    if not _scalers:
        return None
    for place, node in enumerate(operations_behind(roots, _LOOKED_AT)):
        entry = node.metadata.get(_KEY)
        if entry is not None:
            return _known(entry, is_root=place < len(roots))
    return None


def scaled_by_last(root: Tensor) -> Scaled | None:
    """`scaled_by`, where it is the root's own operation that scaled, as nearly always; else None."""
    node = root.grad_fn if _scalers else None
    entry: _Entry | None = None if node is None else node.metadata.get(_KEY)  # type: ignore[attr-defined]
    return None if entry is None else _known(entry, is_root=True)


def _known(entry: _Entry, *, is_root: bool) -> Scaled | None:
    scaler = entry.scaler()
    return None if scaler is None else Scaled(entry.loss if is_root else None, entry.scale, entry.dtype, scaler)
