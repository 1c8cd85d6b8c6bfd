"""Rows of steps as the bytes of a chunk."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from tbnum.log.schema import MAX_RECORD_BYTES, RowLayout

__all__ = ["RowPacker"]


class RowPacker:
    """Packs tuples of the values of `columns`, in their order. About 1 us a row."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.layout = RowLayout.of(columns)
        self.dtype = self.layout.dtype()
        self.schema_id = self.layout.schema_id()
        self.most_rows = max(1, (MAX_RECORD_BYTES - 4096) // self.dtype.itemsize)  # that fit a record
        self._pack = struct.Struct(self.layout.struct_format()).pack

    def pack(self, rows: Sequence[tuple[Any, ...]]) -> tuple[bytes, int]:
        """Their bytes, and how many rows were lost since they lack values for the columns.

        Of a value that does not fit its column what can be kept is kept.
        """
        try:
            return b"".join([self._pack(*row) for row in rows]), 0
        except (struct.error, TypeError, ValueError, OverflowError):
            packed = [self._packed_with_care(row) for row in rows]
            return b"".join(packed), packed.count(b"")

    def _packed_with_care(self, row: tuple[Any, ...]) -> bytes:
        try:
            return self._pack(*[_fitted(value, kind) for value, kind in zip(row, self.layout.stored, strict=True)])
        except (struct.error, TypeError, ValueError, OverflowError):
            return b""


def _fitted(value: Any, kind: str) -> Any:
    if kind == "<i8":
        return int(value)
    if kind == "<u8":
        return int(value or 0) & 0xFFFFFFFFFFFFFFFF
    if kind == "|b1":
        return False if value is None else bool(value)
    number = math.nan if value is None else float(value)
    if kind == "<f4" and math.isfinite(number) and abs(number) > 3.4028234663852886e38:
        return math.copysign(math.inf, number)
    return number
