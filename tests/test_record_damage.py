"""Record files with every kind of damage, against a search for whole records byte by byte."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from tbnum.log import record_file
from tbnum.log.record_file import (
    Damage,
    Frame,
    RecordAppender,
    RecordTail,
    data_at,
    decode,
    encode,
    file_version,
    first_record,
    frame,
    trouble,
    way_out,
)


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32)


def whole_at(content: bytes, at: int) -> bytes | None:
    """The data of the whole record that begins there."""
    length = content[at : at + 8]
    if len(length) < 8 or content[at + 8 : at + 12] != masked(length):
        return None
    size = int.from_bytes(length, "little")
    data, crc = content[at + 12 : at + 12 + size], content[at + 12 + size : at + 16 + size]
    return data if 0 < size == len(data) and crc == masked(data) else None


def by_search(content: bytes) -> tuple[list[Frame], list[Damage], int]:
    """Whole records, what lies between them, and the bytes after the last."""
    found, damage, at, begin = [], [], 0, 0
    while at < len(content):
        data = whole_at(content, at)
        if data is None:
            at += 1
            continue
        if at > begin:
            damage.append(Damage(begin, at - begin))
        found.append(Frame(at, data))
        at = begin = at + 16 + len(data)
    return found, damage, len(content) - begin


def damaged(random: np.random.Generator) -> bytes:
    parts: list[bytes] = []
    for _ in range(int(random.integers(1, 9))):
        data = random.bytes(int(random.choice([1, 2, 7, 30, 90, 300])))
        record = bytearray(frame(data))
        kind = random.integers(0, 8)
        if kind == 0:  # a bit of the header, of the data or of its checksum
            record[int(random.choice([0, 9, 12, len(record) - 1]))] ^= 1 << int(random.integers(0, 8))
        elif kind == 1:
            record = record[: int(random.integers(0, len(record)))]
        elif kind == 2:
            record = bytearray(int(random.integers(1, 60)))
        elif kind == 3:  # a header whose record swallows the next ones
            length = struct.pack("<Q", int(random.choice([5, 100, 1000, 1 << 24])))
            record = bytearray(length + masked(length)) + record
        elif kind == 4:
            record = bytearray(random.bytes(int(random.integers(1, 40)))) + record
        parts.append(bytes(record))
    return b"".join(parts)


@pytest.fixture(params=[8 << 20, 64, 40])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Windows of a file so small that records lie across them."""
    monkeypatch.setattr(record_file, "BLOCK_BYTES", request.param)
    monkeypatch.setattr(record_file, "_SCAN_BYTES", min(request.param, 1 << 18))
    return int(request.param)


def test_what_is_whole_in_a_damaged_file_is_found_and_the_rest_is_damage(tmp_path: Path, blocks: int) -> None:
    random = np.random.default_rng(blocks)
    for number in range(60):
        path = tmp_path / f"{number}.tbnum"
        path.write_bytes(content := damaged(random))
        tail = RecordTail(path)
        found, damage, rest = by_search(content)
        assert list(tail.read()) == found, number
        assert (tail.damage, tail.unfinished, tail.restarts) == (damage, rest, 0), number
        assert tail.offset == len(content) - rest and tail.state == (tail.offset, rest, len(damage), 0)
        assert list(tail.read()) == []
        words = [f"{each.bytes} damaged bytes at {each.offset} in {path.name}" for each in damage]
        words += [f"the last record of {path.name} is not whole: {rest} bytes at {tail.offset}"] if rest else []
        assert tail.problems() == words


def test_a_file_that_grows_is_followed_to_the_same_records_however_it_comes(tmp_path: Path, blocks: int) -> None:
    random = np.random.default_rng(blocks + 1)
    for number in range(40):
        path = tmp_path / f"{number}.tbnum"
        path.write_bytes(b"")
        content = damaged(random) + frame(b"the last")
        cuts = sorted({*random.integers(0, len(content), 4).tolist(), len(content)})
        tail, found, written = RecordTail(path), [], 0
        for cut in cuts:
            with open(path, "ab") as file:
                file.write(content[written:cut])
            written = cut
            found += list(tail.read())
        expected, damage, rest = by_search(content)
        assert found == expected and (tail.damage, tail.unfinished) == (damage, rest), number


def test_reading_may_be_left_after_any_record_and_goes_on_after_it(tmp_path: Path, blocks: int) -> None:
    path = tmp_path / "log.tbnum"
    content = frame(b"one") + b"\x00junk" + frame(b"two") + frame(b"three") + b"\x07"
    path.write_bytes(content)
    tail, found = RecordTail(path), []
    for _ in range(3):
        found.append(next(iter(tail.read())))
    assert found == by_search(content)[0] and list(tail.read()) == [] and tail.unfinished == 1


def test_a_file_that_became_shorter_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "log.tbnum"
    path.write_bytes(frame(b"one") + b"junk" + frame(b"two"))
    tail = RecordTail(path)
    calls: list[object] = []
    tail.follow(lambda found: calls.append(found.data), lambda: calls.append("restart"))
    path.write_bytes(frame(b"three"))
    tail.follow(lambda found: calls.append(found.data), lambda: calls.append("restart"))
    assert calls == [b"one", b"two", "restart", b"three"] and (tail.damage, tail.restarts) == ([], 1)


def test_a_tail_may_begin_inside_a_record(tmp_path: Path) -> None:
    path = tmp_path / "log.tbnum"
    path.write_bytes(frame(b"one" * 9) + frame(b"two"))
    for start in range(1, 44):
        tail = RecordTail(path, start)
        assert [found.data for found in tail.read()] == [b"two"] and tail.offset == 62
        assert tail.damage == ([Damage(start, 43 - start)] if start < 43 else [])


def test_a_record_of_the_most_bytes_is_read_and_a_longer_one_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "MAX_RECORD_BYTES", 100)
    path = tmp_path / "log.tbnum"
    path.write_bytes(frame(b"x" * 101) + frame(b"y" * 100))
    tail = RecordTail(path)
    blocks = record_file._Blocks(io.BytesIO(path.read_bytes()), path.stat().st_size)  # type: ignore[arg-type]
    assert blocks.length_at(0) is None and blocks.length_at(117) == 100
    assert b"y" * 100 in [found.data for found in tail.read()]


def test_without_a_fast_checksum_data_counts_as_whole_where_a_header_or_the_end_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "CHECKS_DATA", False)
    path = tmp_path / "log.tbnum"
    flipped = bytearray(frame(b"two"))
    flipped[13] ^= 1
    path.write_bytes(frame(b"one") + bytes(flipped) + frame(b"three"))
    assert [found.data for found in RecordTail(path).read()] == [b"one", bytes(flipped[12:15]), b"three"]
    for rest, is_seen in ((11, True), (12, False), (40, False)):  # as many bytes as a header has are none
        path.write_bytes(frame(b"one") + bytes(flipped) + b"\xff" * rest)
        found = [found.data for found in RecordTail(path).read()]
        assert found == ([b"one", bytes(flipped[12:15])] if is_seen else [b"one"])


@pytest.mark.parametrize(("gap", "most"), [(1 << 14, 1 << 20), (0, 1 << 20), (20, 64), (1000, 40)])
def test_frames_are_read_again_by_their_places_whichever_lie_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: int, most: int
) -> None:
    monkeypatch.setattr(record_file, "_GAP_BYTES", gap)
    monkeypatch.setattr(record_file, "READ_BYTES", most)
    path = tmp_path / "log.tbnum"
    texts = [bytes([65 + at]) * (1 + at * at % 23) for at in range(20)]
    path.write_bytes(b"".join(map(frame, texts)))
    frames = [(found.offset, len(found.data)) for found in RecordTail(path).read()]
    content = path.read_bytes()
    random = np.random.default_rng(0)
    with open(path, "rb") as file:
        for _ in range(20):
            chosen = np.flatnonzero(random.random(20) < 0.6).tolist()
            assert list(data_at(file, [frames[at] for at in chosen])) == [texts[at] for at in chosen]
        assert list(data_at(file, frames[::-1])) == texts[::-1] and list(data_at(file, [])) == []
        wrong = [(frames[0][0], 2), frames[1], (frames[2][0], frames[2][1] + 1), (len(content), 3), frames[3]]
        assert list(data_at(file, wrong)) == [None, texts[1], None, None, texts[3]]
    flipped = bytearray(content)
    flipped[frames[4][0] + 12] ^= 1
    path.write_bytes(flipped[:-1])
    with open(path, "rb") as file:
        again = list(data_at(file, frames))
    assert again == [*texts[:4], None, *texts[5:19], None]


def test_blocks_are_read_side_by_side_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
            self.reads += 1
            return super().read(size)

    def reads(places: list[int]) -> int:
        file = Counted(content)
        assert None not in list(data_at(file, [(18 * at, 2) for at in places]))  # type: ignore[arg-type]
        return file.reads

    content = b"".join(frame(bytes([at, at])) for at in range(10))
    assert reads(list(range(10))) == 1 and reads([0, 9]) == 1
    monkeypatch.setattr(record_file, "_GAP_BYTES", 18)
    assert reads([0, 2, 4]) == 1 and reads([0, 3]) == 2
    monkeypatch.setattr(record_file, "READ_BYTES", 36)
    assert reads([0, 1]) == 1 and reads([0, 1, 2]) == 2 and reads([0, 2]) == 2


def test_a_read_that_gives_less_than_there_is_goes_on() -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
            return super().read(min(size or 0, 3))

    assert record_file._read_at(Slow(b"0123456789"), 7, 2) == b"2345678"  # type: ignore[arg-type]
    assert record_file._read_at(Slow(b"0123456789"), 7, 8) == b"89"  # type: ignore[arg-type]
    assert record_file._read_at(Slow(b"0123456789"), 7, 10) == b""  # type: ignore[arg-type]


def test_the_first_record_of_a_tag_is_looked_for_within_so_many_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log.tbnum"
    head = frame(file_version(1.0))
    meta = frame(encode("tbnum/meta", '{"a": 1}', trailer=b"t", step=3, wall_time=2.0))
    steps = frame(encode("tbnum/steps", b"\x01\x02", trailer=b"", step=4, wall_time=3.0))
    path.write_bytes(head + steps + meta)
    found = first_record(path, "tbnum/meta")
    assert found is not None and found == ("tbnum/meta", b'{"a": 1}', b"t")
    length = path.stat().st_size
    assert first_record(path, "tbnum/meta", length) is not None and first_record(path, "tbnum/meta", length - 1) is None
    steps_found = first_record(path, "tbnum/steps", len(head + steps))
    assert steps_found is not None and steps_found.payload == b"\x01\x02"
    assert first_record(path, "tbnum/other") is None and first_record(tmp_path / "none", "tbnum/meta") is None
    path.write_bytes(head + steps[:-1] + b"\x00" + meta)  # what follows damage does not begin the file
    assert first_record(path, "tbnum/meta") is None
    path.write_bytes(head + frame(b"\xff\xff\xff") + meta)  # whole, and no Event
    assert first_record(path, "tbnum/meta") is None
    assert decode(file_version(1.0)) is None
    with pytest.raises(ValueError, match="not an Event proto"):
        decode(b"\xff\xff\xff")


def test_an_appender_that_could_not_write_all_leaves_whole_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.tbnum"
    appender = RecordAppender(path, new=True)
    appender.append(frame(b"one"))
    assert appender.size == 19 and not appender.renew()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    with pytest.raises(OSError, match="No space left"):
        appender.append(frame(b"two"))
    monkeypatch.undo()
    assert path.read_bytes() == frame(b"one") and appender.size == 19
    path.unlink()
    assert appender.renew() and appender.size == 0
    appender.append(frame(b"three"))
    assert path.read_bytes() == frame(b"three") and appender.size == 21
    appender.close()
    appender.close()
    with pytest.raises(FileExistsError):
        RecordAppender(path, new=True)
    again = RecordAppender(path)
    assert again.size == 21
    again.close()


def test_what_is_wrong_with_a_disk_is_said_in_words() -> None:
    assert trouble(OSError(28, "x")) == "disk full" and trouble(OSError(30, "x")) == "read-only file system"
    assert trouble(OSError(9999, "strange")) == "strange" and trouble(OSError("bare")) == "bare"
    assert way_out(OSError(28, "x")).startswith("the disk is full") and "descriptor" in way_out(OSError(24, "x"))
    assert way_out(OSError(9999, "x")) == way_out(OSError("bare")) == "choose a folder that is writable"
