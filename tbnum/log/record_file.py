"""Framed records: how they are made, appended, followed and found again after damage.

A record file is a TFRecord file of TensorFlow `Event` protos, so TensorFlow's and TensorBoard's own readers
open it. A frame is

    length   uint64, little-endian
    uint32   masked CRC-32C of the length's eight bytes
    data     `length` bytes, one serialised Event
    uint32   masked CRC-32C of the data

The first Event of a file names its version. Every other one carries one summary value: its tag says what it
is (`tbnum.log.schema.TAG_*`), its tensor holds the payload, and its plugin data the `Trailer`.

This module knows frames and protos. What the payloads mean is the writer's and the reader's business.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
from tensorboard.compat.proto import event_pb2, types_pb2

from tbnum.log.files import Place, RawFile, RemotePath, open_raw, open_regular, place, size_of
from tbnum.log.schema import MAX_RECORD_BYTES, PLUGIN_NAME

__all__ = [
    "Damage",
    "Frame",
    "Record",
    "RecordAppender",
    "RecordTail",
    "data_at",
    "decode",
    "encode",
    "file_version",
    "frame",
    "masked_crc",
    "trouble",
    "way_out",
]

FRAME_BYTES = 16  # what a frame adds to its data
BLOCK_BYTES = 8 << 20
READ_BYTES = 1 << 20
_GAP_BYTES = 1 << 14  # what is skipped is read along if it is shorter
_SCAN_BYTES = 1 << 18  # stays in the cache

_HEADER = struct.Struct("<QI")
FRAME_HEAD_BYTES = _HEADER.size
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_OWN_TAGS = f"{PLUGIN_NAME}/"
_crc = google_crc32c.value

CHECKS_DATA = google_crc32c.implementation == "c"
"""Whether data is checked on reading. Where google-crc32c has only its Python fallback (ten thousand times
slower), the data is checked only where no valid header follows, and a flipped bit inside it may stay unseen."""


class Frame(NamedTuple):
    """One whole record, as it lies in the file."""

    offset: int
    data: bytes


class Damage(NamedTuple):
    """A stretch of a file that holds no whole record."""

    offset: int
    bytes: int


class Record(NamedTuple):
    """What one `Event` proto holds. `payload` is JSON text or a chunk's bytes; which, says the tag."""

    tag: str
    payload: bytes
    trailer: bytes


def masked_crc(data: bytes) -> int:
    """TFRecord's masked CRC-32C of `data`, which has to be `bytes`. About 80 ps a byte."""
    crc: int = _crc(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """`data` as one record, ready to be appended. Copies it once."""
    length = _LENGTH.pack(len(data))
    return b"".join((length, _CRC.pack(masked_crc(length)), data, _CRC.pack(masked_crc(data))))


def file_version(wall_time: float) -> bytes:
    """The data of a file's first record, by which TensorFlow's tools know what follows."""
    data: bytes = event_pb2.Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString()
    return data


def encode(tag: str, payload: bytes | str, *, trailer: bytes, step: int, wall_time: float) -> bytes:
    """One serialised Event. A text becomes a DT_STRING tensor, bytes a DT_UINT8 one. About 5 us and a copy."""
    event = event_pb2.Event(wall_time=wall_time, step=step)
    value = event.summary.value.add()
    value.tag = tag
    tensor = value.tensor
    if isinstance(payload, str):
        tensor.dtype = types_pb2.DT_STRING
        tensor.string_val.append(payload.encode())
    else:
        tensor.dtype = types_pb2.DT_UINT8
        tensor.tensor_shape.dim.add().size = len(payload)
        tensor.tensor_content = payload
    value.metadata.plugin_data.plugin_name = PLUGIN_NAME
    value.metadata.plugin_data.content = trailer  # last in the record, so that the end of a file gives it cheaply
    data: bytes = event.SerializeToString()
    return data


def decode(data: bytes) -> Record | None:
    """The record in a serialised Event; None for what is not tbnum's (the file version). About 3 us.

    Raises ValueError where `data` is no Event.
    """
    try:
        event = event_pb2.Event.FromString(data)
    except Exception as error:  # DecodeError, whose class depends on protobuf's implementation
        raise ValueError(f"not an Event proto: {error}") from None
    values = event.summary.value
    if len(values) != 1:
        return None
    value = values[0]
    tag = value.tag
    if not tag.startswith(_OWN_TAGS):
        return None
    tensor = value.tensor
    return Record(tag, tensor.tensor_content or b"".join(tensor.string_val), value.metadata.plugin_data.content)


class RecordAppender:
    """A record file that is open for appending. OSError where it cannot be opened.

    `size` is how much was appended; it may lag behind the file after an interrupt.
    """

    def __init__(self, path: Path, *, new: bool = False) -> None:
        self.path = path
        self._descriptor: int | None = open_regular(path, _APPEND | (os.O_EXCL if new else 0))
        self.size = os.fstat(self._descriptor).st_size

    def append(self, records: bytes) -> None:
        """Appends whole records by one write. OSError where not all went in: then none did."""
        assert self._descriptor is not None
        written = os.write(self._descriptor, records)
        if written < len(records):
            # Back to the last whole record. The file is asked, for `size` may lag behind.
            os.ftruncate(self._descriptor, max(0, os.fstat(self._descriptor).st_size - written))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += written

    def renew(self) -> bool:
        """Begins the file again where it was deleted. True then; OSError where its folder is gone. 1 us."""
        assert self._descriptor is not None
        if os.fstat(self._descriptor).st_nlink > 0:
            return False
        fresh = open_regular(self.path, _APPEND)
        os.close(self._descriptor)
        self._descriptor = fresh
        self.size = os.fstat(fresh).st_size
        return True

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)

FILE_DELETED = "file deleted"

_TROUBLES = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk quota exceeded",
    errno.EROFS: "read-only file system",
    errno.EFBIG: "file too large",
    errno.ENOENT: FILE_DELETED,
}


def trouble(error: OSError) -> str:
    """In a few words, why a record could not be written."""
    return _TROUBLES.get(error.errno or 0) or error.strerror or str(error)


_WAYS_OUT = {
    errno.EMFILE: "no file descriptor is free; raise the limit (`ulimit -n`), close files, or give DataLoaders fewer "
    "workers or torch.multiprocessing.set_sharing_strategy('file_system')",
    errno.ENFILE: "no file descriptor is free on this machine; end what holds many files, or have its limit raised",
    errno.ENOSPC: "the disk is full; free some of it, or choose a folder on another",
    errno.EDQUOT: "the disk quota is used up; free some of it, or choose a folder on another file system",
    errno.EROFS: "the file system is read-only; choose a folder on another",
    errno.ENAMETOOLONG: "the path is too long for the file system; choose a shorter one",
    errno.ENOTDIR: "a part of the path is a file; choose another",
    errno.EEXIST: "a part of the path is a file; choose another",
}


def way_out(error: OSError) -> str:
    """What to do where a log cannot be begun."""
    return _WAYS_OUT.get(error.errno or 0, "choose a folder that is writable")


def data_at(file: RawFile, frames: Sequence[tuple[int, int]]) -> Iterator[bytes | None]:
    """Reads frames again, each given by its offset and the length of its data as `RecordTail` gave them; rising.

    None for one that is no longer there, or not whole. Those that lie side by side are read at once: about 4 us each,
    if they are a few kB long, and at most READ_BYTES in memory.
    """
    at = 0
    while at < len(frames):
        begin = end = frames[at][0]
        stop = at
        while stop < len(frames):
            offset, length = frames[stop]
            after = offset + FRAME_BYTES + length
            if stop > at and (offset < end or offset - end > _GAP_BYTES or after - begin > READ_BYTES):
                break
            end, stop = after, stop + 1
        block = _read_at(file, end - begin, begin)
        for offset, length in frames[at:stop]:
            start = offset - begin + _HEADER.size
            data = block[start : start + length]
            whole = len(block) >= start + length + _CRC.size and _LENGTH.unpack_from(block, offset - begin)[0] == length
            if whole and CHECKS_DATA:
                whole = masked_crc(data) == _CRC.unpack_from(block, start + length)[0]
            yield data if whole else None
        at = stop


def first_record(path: str | os.PathLike[str] | RemotePath, tag: str, within: int = 1 << 20) -> Record | None:
    """The first record with `tag` among the undamaged ones that begin a file, not looking beyond `within` bytes.

    Reads those bytes alone. None where there is none, or the file cannot be read.
    """
    try:
        with open_raw(place(path)) as file:
            size = min(size_of(file), within)
            for whole in _Blocks(file, size).undamaged(0):
                record = decode(whole.data)
                if record is not None and record.tag == tag:
                    return record
    except (OSError, ValueError):  # what is damaged has no such record
        pass
    return None


class RecordTail:
    """Follows one record file: each `read` gives the whole records that were appended since the last.

    Memory is bounded by one block (8 MB) and the longest record (16 MB), however long the file is.

    `offset` is where the first byte lies that belongs to no whole record yet; `damage` lists the stretches before
    it that hold none; `unfinished` counts the bytes from `offset` to the end of the file as last seen. A torn last
    record is unfinished until it is completed, or until a whole record follows, which makes it damage.
    """

    def __init__(self, path: str | os.PathLike[str] | RemotePath, start: int = 0) -> None:
        """`start`: where to begin, also in the middle of a record."""
        self.path: Place = place(path)
        self.offset = start
        self.damage: list[Damage] = []
        self.unfinished = 0
        self.restarts = 0  # times that the file became shorter than what was read of it, and was begun again
        self._scan_from = start  # no valid header starts in [offset, _scan_from)
        self._seen_size = -1

    @property
    def state(self) -> tuple[int, int, int, int]:
        """Differs from an earlier one where anything was read, or damage came or went, in between."""
        return self.offset, self.unfinished, len(self.damage), self.restarts

    def problems(self) -> list[str]:
        """In words, what of the file holds no record."""
        name = self.path.name
        problems = [f"{damage.bytes} damaged bytes at {damage.offset} in {name}" for damage in self.damage]
        if self.unfinished:
            problems.append(f"the last record of {name} is not whole: {self.unfinished} bytes at {self.offset}")
        return problems

    def read(self) -> Iterator[Frame]:
        """Records appended since last time, in order. A look at the file's size where there are none.

        The iteration may be left at any point; the next one goes on after the last record given.
        Raises OSError where the file cannot be read.
        """
        with open_raw(self.path) as file:
            size = size_of(file)
            if size < self.offset:
                self.offset = self._scan_from = 0
                self.damage.clear()
                self.restarts += 1
            elif size == self._seen_size:
                return
            self._seen_size = -1  # until this round is through
            blocks = _Blocks(file, size)
            yield from self._whole_records(blocks)
            self.unfinished = size - self.offset
            self._seen_size = size

    def follow(self, take: Callable[[Frame], None], restart: Callable[[], None]) -> None:
        """Gives `take` each record that `read` gives, and calls `restart` before those of a file that began again."""
        restarts = self.restarts
        for found in self.read():
            if self.restarts != restarts:
                restarts = self.restarts
                restart()
            take(found)

    def _whole_records(self, blocks: _Blocks) -> Iterator[Frame]:
        while True:
            if self._scan_from == self.offset:  # the usual case first, and fast
                for whole in blocks.undamaged(self.offset):
                    self.offset = self._scan_from = whole.offset + len(whole.data) + FRAME_BYTES
                    yield whole
            found = self._next(blocks)
            if found is None:
                return
            if found.offset > self.offset:
                self.damage.append(Damage(self.offset, found.offset - self.offset))
            self.offset = self._scan_from = found.offset + len(found.data) + FRAME_BYTES
            yield found

    def _next(self, blocks: _Blocks) -> Frame | None:
        """The first whole record at or after `_scan_from`."""
        at = self._scan_from
        first_unfinished: int | None = None
        while True:
            length = blocks.length_at(at)
            if length is None:
                next_at = _scan(blocks, at)
                if next_at is None:
                    # Not even a header further on. The last bytes may be the beginning of one.
                    at = max(at, blocks.size - _HEADER.size + 1)
                    self._scan_from = at if first_unfinished is None else first_unfinished
                    return None
                at = next_at
                continue
            data = blocks.data_at(at, length)
            if data is not None:
                return Frame(at, data)
            if at + FRAME_BYTES + length > blocks.size and first_unfinished is None:
                first_unfinished = at  # being written, or torn: whatever is whole inside it wins
            at += 1


class _Blocks:
    """Windows of a file, read in blocks. A look-up outside the window moves it."""

    def __init__(self, file: RawFile, size: int) -> None:
        self._file = file
        self.size = size
        self.start = 0
        self.bytes = b""

    def undamaged(self, at: int) -> Iterator[Frame]:
        """Whole records from `at` on, as far as they follow each other and lie in one window. About 1 us each."""
        if not CHECKS_DATA or self.window(at, _HEADER.size) is None:
            return
        window, start = self.bytes, self.start
        place = at - start
        unpack_header, unpack_crc, last_place = _HEADER.unpack_from, _CRC.unpack_from, len(window) - _HEADER.size
        while place <= last_place:
            length, length_crc = unpack_header(window, place)
            begin = place + 12
            end = begin + length
            if end + 4 > len(window) or masked_crc(window[place : place + 8]) != length_crc:
                return
            data = window[begin:end]
            if not length or masked_crc(data) != unpack_crc(window, end)[0]:
                return
            yield Frame(start + place, data)
            place = end + 4

    def window(self, at: int, length: int) -> int | None:
        """Makes [at, at + length) part of the window; gives its place there, None past the end of the file."""
        place = at - self.start
        if place >= 0 and place + length <= len(self.bytes):
            return place
        if at + length > self.size:
            return None
        wanted = min(max(length, BLOCK_BYTES), self.size - at)
        self.bytes = _read_at(self._file, wanted, at)
        self.start = at
        return 0 if length <= len(self.bytes) else None

    def length_at(self, at: int) -> int | None:
        """The length that a valid header at `at` gives; None where there is no valid header."""
        place = self.window(at, _HEADER.size)
        if place is None:
            return None
        window = self.bytes
        length, crc = _HEADER.unpack_from(window, place)
        if not 0 < length <= MAX_RECORD_BYTES or masked_crc(window[place : place + 8]) != crc:
            return None
        return int(length)

    def data_at(self, at: int, length: int) -> bytes | None:
        """The data of the record whose valid header is at `at`; None where it is not whole."""
        place = self.window(at, length + FRAME_BYTES)
        if place is None:
            return None
        end = place + _HEADER.size + length
        data = self.bytes[place + _HEADER.size : end]
        crc: int = _CRC.unpack_from(self.bytes, end)[0]
        if not CHECKS_DATA:
            after = at + FRAME_BYTES + length
            if self.size - after < _HEADER.size or self.length_at(after) is not None:
                return data
        return data if masked_crc(data) == crc else None


def _read_at(file: RawFile, length: int, at: int) -> bytes:
    file.seek(at)
    data = file.read(length)
    while data and len(data) < length:  # a read may give less than there is
        more = file.read(length - len(data))
        if not more:
            break
        data += more
    return data or b""


def _scan(blocks: _Blocks, at: int) -> int | None:
    """Where the next valid header after `at` starts. About 1 ns a byte, and 1 us where a length could stand."""
    at += 1
    while True:
        place = blocks.window(at, _HEADER.size)
        if place is None:
            return None
        window = np.frombuffer(blocks.bytes, np.uint8)[place : place + _SCAN_BYTES]
        starts = len(window) - _HEADER.size + 1
        # The length of a record is at most 2**24: its upper bytes are zero, and it is itself not zero.
        low = window[0:starts] | window[1 : starts + 1] | window[2 : starts + 2] | window[3 : starts + 3]
        plausible = (low != 0) & (window[3 : starts + 3] <= 1)
        for byte in (4, 5, 6, 7):
            plausible &= window[byte : starts + byte] == 0
        for candidate in np.flatnonzero(plausible):
            header = at + int(candidate)
            if blocks.length_at(header) is not None:
                return header
        at += starts
