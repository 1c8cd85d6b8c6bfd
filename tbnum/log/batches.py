"""Which samples steps were made of, as records keep it: ids in the smallest whole width that holds them.

uint32          steps in the record, S
uint8           bytes an id: 1, 2, 4 or 8
int64 (S,)      the steps, rising
uint32 (S,)     how many ids each has
int (N,)        all ids, signed, little-endian
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

__all__ = ["Batch", "batch_hash", "decode_batches", "encode_batches", "steps_of_batches"]

Batch = tuple[int, np.ndarray]
"""A step, and the ids (N,) int64 of its samples in the order in which they were used."""

_HEAD = struct.Struct("<IB")
_WIDTHS = (np.dtype("<i1"), np.dtype("<i2"), np.dtype("<i4"), np.dtype("<i8"))


def encode_batches(batches: Sequence[Batch]) -> bytes:
    """`batches` in order of their steps. About 10 us, and 1 ns an id."""
    steps = np.array([step for step, _ in batches], "<i8")
    counts = np.array([len(ids) for _, ids in batches], "<u4")
    ids = np.concatenate([ids for _, ids in batches]) if batches else np.empty(0, np.int64)
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    width = next(width for width in _WIDTHS if np.iinfo(width).min <= low and high <= np.iinfo(width).max)
    head = _HEAD.pack(len(steps), width.itemsize)
    return b"".join((head, steps.tobytes(), counts.tobytes(), ids.astype(width).tobytes()))


def steps_of_batches(payload: bytes) -> np.ndarray:
    """(S,) int64: the steps of a record. ValueError where it is none."""
    count, _ = _head(payload)
    return np.frombuffer(payload, "<i8", count, _HEAD.size)


def decode_batches(payload: bytes) -> list[Batch]:
    """What `encode_batches` was given. ValueError where it is none of its making."""
    count, width = _head(payload)
    steps = steps_of_batches(payload)
    counts = np.frombuffer(payload, "<u4", count, _HEAD.size + 8 * count)
    begin = _HEAD.size + 12 * count
    if len(payload) != begin + width.itemsize * int(counts.sum(dtype=np.int64)):
        raise ValueError(f"{len(payload)} bytes do not hold the ids that they announce")
    ids = np.frombuffer(payload, width, offset=begin).astype(np.int64)
    parts = np.split(ids, np.cumsum(counts, dtype=np.int64)[:-1]) if count else []
    return list(zip(steps.tolist(), parts, strict=True))


def _head(payload: bytes) -> tuple[int, np.dtype[np.signedinteger]]:
    if len(payload) < _HEAD.size:
        raise ValueError(f"{len(payload)} bytes are no record of sample ids")
    count, size = _HEAD.unpack_from(payload)
    width = next((width for width in _WIDTHS if width.itemsize == size), None)
    if width is None or len(payload) < _HEAD.size + 12 * count:
        raise ValueError(f"no record of sample ids: {count} steps at {size} bytes an id in {len(payload)} bytes")
    return count, width


def batch_hash(ids: np.ndarray) -> int:
    """64 bits that differ between lists of ids, and between their orders; never 0, which is "unknown". About 2 us."""
    digest = hashlib.blake2b(ids.astype("<i8", copy=False).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
