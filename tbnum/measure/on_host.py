"""Small tensors on the host, by numpy: where little is computed, each call of torch costs more than what it computes.

What measures tensors asks here first. The numbers are the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from tbnum.formats import BINS
from tbnum.measure.chunks import kind_of

__all__ = ["Magnitudes", "Small", "begins"]

_MOST = 1 << 17  # elements of all of them together: beyond, fresh memory and one thread cost more than calls

_PLAIN = {(torch.float32, torch.strided, True, False)}
_TYPES = {Tensor}


@dataclass(frozen=True)
class Small:
    """Those of one tensor after those of another, each in the order of its indices."""

    elements: np.ndarray  # (n,) float32
    lengths: tuple[int, ...]  # of each tensor, none of them 0

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> Small | None:
        """A copy of them; None where some are elsewhere, of another type or layout, empty, or all together large."""
        if set(map(type, tensors)) != _TYPES or set(map(kind_of, tensors)) != _PLAIN:
            return None
        lengths = tuple(map(Tensor.numel, tensors))
        if sum(lengths) > _MOST or not all(lengths):
            return None
        try:
            return Small(np.concatenate([tensor.numpy().ravel() for tensor in tensors]), lengths)
        except RuntimeError:  # negated lazily, say
            return None


@dataclass(frozen=True)
class Magnitudes:
    """All of them finite."""

    bits: np.ndarray  # (n,) int32, without the sign
    lengths: tuple[int, ...]

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> Magnitudes | None:
        """None where `Small` has none, or an element is not finite."""
        small = Small.of(tensors)
        if small is None:
            return None
        bits = small.elements.view(np.int32) & 0x7FFF_FFFF
        return Magnitudes(bits, small.lengths) if bits.max() < 0x7F80_0000 else None

    def largest(self) -> np.ndarray:
        """(P,) float32."""
        return np.maximum.reduceat(self.bits, begins(self.lengths)).view(np.float32)

    def histograms(self) -> np.ndarray:
        """(P, BINS) int64."""
        keys = self._bins() + _rows(self.lengths)
        return np.bincount(keys, minlength=BINS * len(self.lengths)).reshape(-1, BINS)

    def histogram(self) -> np.ndarray:
        """(BINS,) int64, of all of them."""
        return np.bincount(self._bins(), minlength=BINS)

    def _bins(self) -> np.ndarray:
        """The upper edge of a bin stays, all beyond it goes to the next."""
        return (self.bits + 0x7F_FFFF) >> 23


@lru_cache(maxsize=16)
def begins(lengths: tuple[int, ...]) -> np.ndarray:
    """(P,), of runs of so many that lie one after another."""
    return np.cumsum((0, *lengths[:-1]))


@lru_cache(maxsize=16)
def _rows(lengths: tuple[int, ...]) -> np.ndarray:
    """(n,) int32: where the counts of each element's tensor begin."""
    return np.repeat(np.arange(len(lengths), dtype=np.int32) * BINS, lengths)
