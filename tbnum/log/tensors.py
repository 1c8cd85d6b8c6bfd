"""Tables of tensors: what they are in memory, and their bytes in a session's second file, `*.tensors.tbnum`.

The payload of a table's record is

    head      step, in format 1 the first step and number of the part of the session (-1 and 0 since), number of rows,
              the checksums of its names' and of its columns' records, and the reason or source as a position in the
              schema's list
    lengths   for each column one byte that says how it is stored, and its length in bytes
    columns   one after another

so a reader decodes the columns it is asked for, and no others. A column is stored in the narrowest type that holds
its values, as one value where all are the same, byte planes apart, and deflated where that is shorter.

Precision. Whole numbers are exact. Shares (`underflow/...`, `overflow/...`) keep 8 bits of mantissa, an error of at
most 0.4 %: 0 and 1 stay exact, and nothing else becomes 0 or 1. Everything else is rounded to float32, or stays
float64 where it is out of the range of float32's normal numbers. Neither torch nor a file is needed here.
"""

from __future__ import annotations

import functools
import itertools
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tbnum.formats import BINS, INF, NAN, ZERO
from tbnum.log.schema import HISTOGRAM_SOURCES, MAX_RECORD_BYTES, TABLE_REASONS

__all__ = [
    "Head",
    "HistogramTable",
    "TensorTable",
    "column_at",
    "columns_at",
    "columns_text",
    "encode_tables",
    "head_of",
    "histogram_at",
    "names_text",
    "parse_columns",
    "parse_names",
    "stored_at",
    "text_id",
    "unpacked",
]


@dataclass(frozen=True, eq=False)
class TensorTable:
    """Statistics of P tensors at one step. The arrays must not be changed once the table was given to a writer."""

    step: int
    names: tuple[str, ...]  # (P,)
    columns: Mapping[str, np.ndarray]  # each (P,), NaN where a value is unknown; `schema.TENSOR_COLUMNS` has meanings
    optimizer: str | None = None
    reason: str = "interval"  # one of schema.TABLE_REASONS

    @property
    def nbytes(self) -> int:
        return sum(getattr(values, "nbytes", 0) for values in self.columns.values())


@dataclass(frozen=True, eq=False)
class HistogramTable:
    """Exponent histograms of P tensors at one step, by magnitude. `tbnum.formats` says what each bin counts.

    `names` is ("*",) for the whole model. The arrays must not be changed once the table was given to a writer.
    """

    step: int
    names: tuple[str, ...]  # (P,)
    source: str  # one of schema.HISTOGRAM_SOURCES
    counts: np.ndarray  # (P, BINS) whole numbers: bin 0 zeros, 1 to 255 finite, 256 inf, 257 NaN
    low: np.ndarray  # (P,) the smallest finite magnitude above zero; NaN where unknown
    high: np.ndarray  # (P,) the largest finite magnitude; NaN where unknown

    @staticmethod
    def of_nothing(step: int, source: str) -> HistogramTable:
        """Without a tensor."""
        return HistogramTable(step, (), source, np.zeros((0, BINS), np.int64), np.empty(0), np.empty(0))

    @property
    def zero(self) -> np.ndarray:
        """(P,) elements that are zero."""
        zeros: np.ndarray = self.counts[:, ZERO]
        return zeros

    @property
    def inf(self) -> np.ndarray:
        """(P,) elements that are infinite."""
        infinities: np.ndarray = self.counts[:, INF]
        return infinities

    @property
    def nan(self) -> np.ndarray:
        """(P,) elements that are NaN."""
        unknowns: np.ndarray = self.counts[:, NAN]
        return unknowns

    @property
    def nbytes(self) -> int:
        return sum(getattr(values, "nbytes", 0) for values in (self.counts, self.low, self.high))

    def row(self, name: str) -> HistogramTable:
        """The table of one tensor alone. KeyError where it is not there."""
        try:
            at = self.names.index(name)
        except ValueError:
            raise KeyError(f"no histogram of {name!r} at step {self.step}") from None
        rows = slice(at, at + 1)
        return HistogramTable(self.step, (name,), self.source, self.counts[rows], self.low[rows], self.high[rows])


# -- records


class Head(NamedTuple):
    """What stands before a table's columns."""

    step: int
    part: int  # in format 1: grew each time that the session went back to an earlier step
    rows: int
    names: int  # `text_id` of the names' record
    columns: int  # `text_id` of the columns' record
    kind: int  # position in TABLE_REASONS or HISTOGRAM_SOURCES


_HEAD = struct.Struct("<qqIIIIB")
_COLUMN = struct.Struct("<BI")


@functools.cache
def _lengths(columns: int) -> struct.Struct:
    return struct.Struct("<" + columns * "BI")


_ROOM = MAX_RECORD_BYTES - (64 << 10)  # for the payload, beside what a record adds

_HISTOGRAM_COLUMNS = ("bins", "counts", "low", "high")


@functools.lru_cache(maxsize=16)
def text_id(text: str) -> int:
    """By what tables refer to a record of names or columns."""
    return zlib.crc32(text.encode())


@functools.lru_cache(maxsize=16)
def names_text(names: tuple[str, ...]) -> str:
    return json.dumps([str(name) for name in names], separators=(",", ":"))


@functools.lru_cache(maxsize=16)
def columns_text(columns: tuple[str, ...], optimizer: str | None) -> str:
    return json.dumps({"columns": [str(name) for name in columns], "optimizer": optimizer})


def parse_names(text: str | bytes) -> tuple[str, ...]:
    return tuple(map(str, json.loads(text)))


def parse_columns(text: str | bytes) -> tuple[tuple[str, ...], str | None]:
    """The columns and the optimizer."""
    fields = json.loads(text)
    return tuple(map(str, fields["columns"])), fields.get("optimizer")


def encode_tables(table: TensorTable | HistogramTable) -> list[tuple[str, str, bytes]]:
    """The records of a table, each as the texts of its names and columns and its payload.

    One record, unless it would be longer than a record may be: then the rows are halved. ValueError where the arrays
    do not fit the names, or the reason or source is unknown. About 0.3 ms for 150 tensors and 15 columns.
    """
    rows = len(table.names)
    names = names_text(table.names)
    if isinstance(table, TensorTable):
        kind = _position(table.reason, TABLE_REASONS)
        columns = columns_text(tuple(table.columns), table.optimizer)
        values = [_checked(name, each, rows) for name, each in table.columns.items()]
        packed = _packed(values, [_is_share(name) for name in table.columns])
    else:
        kind = _position(table.source, HISTOGRAM_SOURCES)
        columns = columns_text(_HISTOGRAM_COLUMNS, None)
        packed = _packed_histograms(table)
    length = sum(len(data) for _, data in packed)
    if rows > 1 and max(len(names), length) > _ROOM:
        return [
            record
            for half in (slice(0, rows // 2), slice(rows // 2, rows))
            for record in encode_tables(_rows_of(table, half))
        ]
    head = _HEAD.pack(int(table.step), -1, 0, rows, text_id(names), text_id(columns), kind)
    lengths = [_COLUMN.pack(how, len(data)) for how, data in packed]
    return [(names, columns, b"".join([head, *lengths, *(data for _, data in packed)]))]


def head_of(payload: bytes) -> Head:
    """ValueError where the payload is shorter than a head."""
    try:
        step, _, *rest = _HEAD.unpack_from(payload)
        return Head(step, *rest)
    except struct.error as error:
        raise ValueError(f"no head of a table: {error}") from None


def column_at(payload: bytes, columns: int, at: int, count: int | None = None) -> np.ndarray:
    """The column at position `at` of a table's `columns`, in the type it is stored in; shares are float32.

    `count` is how many values it has to have: the table's rows if None. ValueError where the bytes hold no such column.
    """
    rows = head_of(payload).rows if count is None else count
    (values,) = columns_at(payload, columns, [at], rows)
    return np.repeat(values, rows) if len(values) != rows else values


def columns_at(payload: bytes, columns: int, at: Sequence[int], rows: int) -> list[np.ndarray]:
    """As `column_at` for several columns; of one whose values are all the same there is that value alone, (1,)."""
    return [unpacked(how, [data], rows)[0] for how, data in stored_at(payload, columns, at, rows)]


def stored_at(payload: bytes, columns: int, at: Sequence[int], rows: int) -> list[tuple[int, bytes]]:
    """As `columns_at`, inflated, but not unpacked: how each is stored, and its bytes. 3 us, and 2 us a column.

    ValueError where the payload holds no such columns.
    """
    try:
        stored = _lengths(columns).unpack_from(payload, _HEAD.size)
        first = _HEAD.size + columns * _COLUMN.size
        ends = list(itertools.accumulate(stored[1::2], initial=first))
        return [_inflated(stored[2 * each], payload[ends[each] : ends[each + 1]], rows) for each in at]
    except (struct.error, zlib.error, IndexError) as error:
        raise ValueError(f"not a column of a table: {error}") from None


def histogram_at(payload: bytes, names: tuple[str, ...]) -> HistogramTable:
    """The table in a payload. ValueError where it is none, or has not as many rows as there are names."""
    head = head_of(payload)
    if head.rows != len(names):
        raise ValueError(f"{head.rows} rows for {len(names)} names")
    width = len(_HISTOGRAM_COLUMNS)
    occupied = column_at(payload, width, 0, BINS).astype(bool)
    count = int(np.count_nonzero(occupied))
    counts = np.zeros((head.rows, BINS), np.int64)
    counts[:, occupied] = column_at(payload, width, 1, head.rows * count).reshape(head.rows, count)
    low, high = (column_at(payload, width, at).astype(np.float64) for at in (2, 3))
    if head.kind >= len(HISTOGRAM_SOURCES):
        raise ValueError(f"a histogram of an unknown kind, {head.kind}")
    return HistogramTable(head.step, names, HISTOGRAM_SOURCES[head.kind], counts, low, high)


def _position(value: str, known: Sequence[str]) -> int:
    try:
        return known.index(value)
    except ValueError:
        raise ValueError(f"{value!r} is none of {', '.join(known)}") from None


def _checked(name: str, values: Any, rows: int) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != (rows,):
        raise ValueError(f"column {name!r} has the shape {array.shape}, and there are {rows} names")
    return array


def _rows_of(table: TensorTable | HistogramTable, rows: slice) -> TensorTable | HistogramTable:
    names = table.names[rows]
    if isinstance(table, TensorTable):
        columns = {name: np.asarray(values)[rows] for name, values in table.columns.items()}
        return TensorTable(table.step, names, columns, table.optimizer, table.reason)
    counts, low, high = (np.asarray(values)[rows] for values in (table.counts, table.low, table.high))
    return HistogramTable(table.step, names, table.source, counts, low, high)


def _packed_histograms(table: HistogramTable) -> list[tuple[int, bytes]]:
    """Which bins hold anything, the counts of those row after row, and the edges."""
    rows = len(table.names)
    counts = np.asarray(table.counts)
    if counts.shape != (rows, BINS):
        raise ValueError(f"counts have the shape {counts.shape}, not ({rows}, {BINS})")
    occupied = counts.any(axis=0)
    edges = [_checked("low", table.low, rows), _checked("high", table.high, rows)]
    held = _packed([counts[:, occupied].reshape(-1)])
    are_unknown = rows > 0 and bool(np.isnan(edges).all())  # as of the whole model's, each time
    packed_edges = 2 * [_ALL_NAN] if are_unknown else _packed(edges)
    return [_deflated(0, np.asarray(occupied, np.uint8)), *held, *packed_edges]


# -- values

_TYPES = ("<u1", "<u2", "<u4", "<u8", "<f4", "<f8")
_SHARE = len(_TYPES)  # the upper 16 bits of a float32
_DTYPES = tuple(map(np.dtype, (*_TYPES, "<u2")))
_TYPE = 0x0F
_ONE_FOR_ALL = 0x40
_DEFLATED = 0x80

_LARGEST_EXACT = 2.0**53
_ALL_NAN = _TYPES.index("<f4") | _ONE_FOR_ALL, np.array(np.nan, "<f4").tobytes()  # as `_packed` has them
_FEW_BITS = 12  # of the length of what can be compressed with small tables
_WORTH_DEFLATING = 64  # bytes: of fewer it saves some at most, and takes as long as of thousands


def _is_share(name: str) -> bool:
    return name.split("/")[0] in ("underflow", "overflow")


def _packed(columns: Sequence[np.ndarray], shares: Sequence[bool] = ()) -> list[tuple[int, bytes]]:
    """How each column is stored, and its bytes. All are of one length, (N,)."""
    return [_deflated(how, stored) for how, stored in _narrowed(columns, shares or [False] * len(columns))]


def _deflated(how: int, stored: np.ndarray) -> tuple[int, bytes]:
    bits = stored.view(f"<u{stored.itemsize}")
    if len(bits) and (bits == bits[0]).all():
        return how | _ONE_FOR_ALL, stored[:1].tobytes()
    plain = stored.view(np.uint8).reshape(len(stored), stored.itemsize).T.tobytes()
    deflated = _compressed(plain) if len(plain) >= _WORTH_DEFLATING else plain
    return (how | _DEFLATED, deflated) if len(deflated) < len(plain) else (how, plain)


def _compressed(data: bytes) -> bytes:
    """As `zlib.compress`, but that few bytes go without the 256 kB of tables that it lays out first, in 30 to 60 us."""
    if len(data) > 1 << _FEW_BITS:
        return zlib.compress(data)
    squeeze = zlib.compressobj(wbits=_FEW_BITS, memLevel=5)
    return squeeze.compress(data) + squeeze.flush()


def _inflated(how: int, data: bytes, count: int) -> tuple[int, bytes]:
    """How they are stored then, and the bytes. ValueError where these are not the bytes of `count` values."""
    if how & _TYPE > _SHARE:
        raise ValueError(f"values of an unknown type, {how & _TYPE}")
    width = _DTYPES[how & _TYPE].itemsize
    length = width * (min(count, 1) if how & _ONE_FOR_ALL else count)
    if how & _DEFLATED:
        data = zlib.decompressobj().decompress(data, length + 1)
    if len(data) != length:
        raise ValueError(f"{len(data)} bytes for {count} values of {width} bytes")
    return how & ~_DEFLATED, data


def unpacked(how: int, data: Sequence[bytes], count: int) -> np.ndarray:
    """N columns of `count` values that are stored in the same way, (N, count); (N, 1) where all of one are the same."""
    dtype = _DTYPES[how & _TYPE]
    joined = np.frombuffer(b"".join(data), np.uint8)
    if how & _ONE_FOR_ALL or dtype.itemsize == 1:
        values = joined.view(dtype).reshape(len(data), min(count, 1) if how & _ONE_FOR_ALL else count)
    else:
        planes = joined.reshape(len(data), dtype.itemsize, count)
        values = np.ascontiguousarray(planes.transpose(0, 2, 1)).view(dtype).reshape(len(data), count)
    return (values.astype("<u4") << np.uint32(16)).view("<f4") if how & _TYPE == _SHARE else values


def _narrowed(columns: Sequence[np.ndarray], shares: Sequence[bool]) -> list[tuple[int, np.ndarray]]:
    """Of each column the position of a type in `_TYPES`, and the values in it."""
    floating = [at for at, values in enumerate(columns) if values.dtype.kind == "f"]
    found = dict(zip(floating, _narrowed_floats(columns, shares, floating), strict=True)) if floating else {}
    return [found[at] if at in found else _narrowed_whole(values) for at, values in enumerate(columns)]


def _narrowed_whole(values: np.ndarray) -> tuple[int, np.ndarray]:
    if values.dtype.kind not in "iub":
        raise ValueError(f"values of the type {values.dtype}")
    if values.dtype.kind == "i" and len(values) and values.min() < 0:
        return _TYPES.index("<f8"), values.astype("<f8")
    return _unsigned(values)


def _narrowed_floats(
    columns: Sequence[np.ndarray], shares: Sequence[bool], floating: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """All of them looked at together, for a call costs more than what it computes of a few values."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        values = np.array([columns[at] for at in floating], np.float64)  # (C, N)
        is_whole = (values >= 0) & (values <= _LARGEST_EXACT) & (np.floor(values) == values) & ~np.signbit(values)
        is_nan = np.isnan(values)
        is_share = is_nan | ((values >= 0) & (values <= 1))
        narrow, size = values.astype("<f4"), np.abs(values)
        is_held = (narrow == values) | is_nan | ((size >= 2.0**-126) & np.isfinite(narrow))
    of_all = np.array([mask.all(1) for mask in (is_whole, is_share, is_held)]).T.tolist()
    for row, (at, (all_whole, all_shares, all_held)) in enumerate(zip(floating, of_all, strict=True)):
        if all_whole:
            yield _unsigned(values[row])
        elif shares[at] and all_shares:
            yield _SHARE, _rounded_shares(values[row])
        elif all_held:
            yield _TYPES.index("<f4"), narrow[row]
        else:
            yield _TYPES.index("<f8"), values[row].astype("<f8", copy=False)


def _unsigned(values: np.ndarray) -> tuple[int, np.ndarray]:
    largest = int(values.max()) if len(values) else 0
    code = next(code for code in range(4) if largest < 1 << (8 << code))
    return code, values.astype(_TYPES[code])


@np.errstate(under="ignore")
def _rounded_shares(values: np.ndarray) -> np.ndarray:
    """Upper halves of the float32s, rounded; only 0 becomes 0, and only 1 becomes 1."""
    bits = values.astype("<f4").view("<u4")
    upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    upper[(values > 0) & (upper == 0)] = 1
    upper[(values < 1) & (upper >= 0x3F80)] = 0x3F7F
    upper[np.isnan(values)] = 0x7FC0
    return upper.astype("<u2")
