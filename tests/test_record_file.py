"""Frames: that TensorFlow's tools read them, and that damage costs only the damaged record."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

from tbnum.log import record_file
from tbnum.log.record_file import FRAME_BYTES, Damage, RecordTail, decode, encode, file_version, frame, masked_crc

TRAILER = b"trailer"


def record(text: str) -> bytes:
    return encode("tbnum/event", text, trailer=TRAILER, step=3, wall_time=1.5)


def texts(tail: RecordTail) -> list[str]:
    found = [decode(each.data) for each in tail.read()]
    return [each.payload.decode() for each in found if each is not None]


def written(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "1.host.2.tbnum"


def test_the_checksum_is_the_one_of_the_tfrecord_format() -> None:
    crc = 0xE3069283  # CRC-32C of "123456789", RFC 3720
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def test_the_record_reader_of_tensorboard_reads_every_record(file: Path) -> None:
    written(file, frame(file_version(1.0)), *[frame(record(str(number))) for number in range(20)])
    reader = PyRecordReader_New(str(file))
    found = []
    for _ in range(21):
        reader.GetNext()
        found.append(event_pb2.Event.FromString(reader.record()))
    assert found[0].file_version == "brain.Event:2"
    assert [each.summary.value[0].tensor.string_val[0] for each in found[1:]] == [b"%d" % n for n in range(20)]


def test_the_event_file_loader_of_tensorboard_gives_tag_step_and_plugin(file: Path) -> None:
    chunk = encode("tbnum/steps", b"\x00\x01\x02", trailer=TRAILER, step=7, wall_time=2.5)
    written(file, frame(file_version(1.0)), frame(record("a")), frame(chunk))
    version, event, steps = event_file_loader.EventFileLoader(str(file)).Load()
    assert version.file_version == "brain.Event:2"
    assert (event.step, event.wall_time, event.summary.value[0].tag) == (3, 1.5, "tbnum/event")
    value = steps.summary.value[0]
    assert (steps.step, steps.wall_time, value.tag) == (7, 2.5, "tbnum/steps")
    assert value.tensor.tensor_content == b"\x00\x01\x02"
    assert value.metadata.plugin_data.plugin_name == "tbnum"
    assert value.metadata.plugin_data.content == TRAILER


def test_what_is_encoded_is_decoded() -> None:
    assert decode(record("grüße")) == ("tbnum/event", "grüße".encode(), TRAILER)
    assert decode(encode("tbnum/steps", b"", trailer=b"", step=0, wall_time=0.0)) == ("tbnum/steps", b"", b"")
    assert decode(file_version(1.0)) is None


def test_data_that_is_no_event_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not an Event"):
        decode(b"\xff\xff\xff\xff")


def test_the_trailer_is_the_end_of_the_record() -> None:
    assert record("a" * 1000).endswith(TRAILER)


def test_a_second_read_gives_only_what_was_appended(file: Path) -> None:
    written(file, frame(record("a")))
    tail = RecordTail(file)
    assert texts(tail) == ["a"]
    assert texts(tail) == []
    with file.open("ab") as appended:
        appended.write(frame(record("b")))
    assert texts(tail) == ["b"]
    assert (tail.damage, tail.unfinished) == ([], 0)


def test_a_read_left_half_way_goes_on_after_the_last_record_given(file: Path) -> None:
    written(file, *[frame(record(text)) for text in "abc"])
    tail = RecordTail(file)
    next(tail.read())
    assert texts(tail) == ["b", "c"]


def test_a_file_cut_anywhere_gives_the_whole_records_and_the_rest_once_it_is_there(file: Path) -> None:
    whole = b"".join(frame(record(text)) for text in "abc")
    ends = [len(whole) // 3 * number for number in (1, 2, 3)]
    for cut in range(len(whole)):
        written(file, whole[:cut])
        tail = RecordTail(file)
        complete = sum(end <= cut for end in ends)
        assert texts(tail) == list("abc")[:complete]
        assert tail.unfinished == cut - complete * len(whole) // 3
        assert tail.damage == []
        with file.open("ab") as appended:
            appended.write(whole[cut:])
        assert texts(tail) == list("abc")[complete:]
        assert (tail.damage, tail.unfinished) == ([], 0)


@pytest.mark.parametrize("block", [1, 40, 8 << 20])
def test_a_bit_flipped_anywhere_costs_the_record_that_holds_it_and_no_other(
    file: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(record_file, "BLOCK_BYTES", block)
    monkeypatch.setattr(record_file, "_SCAN_BYTES", min(block + 12, 1 << 18))
    frames = [frame(record(text)) for text in "abcd"]
    size = len(frames[0])
    for at in range(4 * size):
        damaged = bytearray(b"".join(frames))
        damaged[at] ^= 1 << at % 8
        written(file, damaged)
        tail = RecordTail(file)
        hit = at // size
        assert texts(tail) == [text for number, text in enumerate("abcd") if number != hit]
        if hit < 3:
            assert tail.damage == [Damage(hit * size, size)]
        else:
            assert (tail.damage, tail.unfinished) == ([], size)  # nothing follows: it may yet be completed


@pytest.mark.parametrize("block", [1, 100, 8 << 20])
def test_records_after_a_torn_one_are_found_inside_the_length_that_it_claims(
    file: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(record_file, "BLOCK_BYTES", block)
    torn = frame(record("x" * 100_000))[:500]
    written(file, frame(record("a")), torn, frame(record("b")), frame(record("c")))
    tail = RecordTail(file)
    assert texts(tail) == ["a", "b", "c"]
    assert tail.damage == [Damage(len(frame(record("a"))), 500)]


def test_a_torn_record_becomes_damage_when_a_whole_one_follows_later(file: Path) -> None:
    torn = frame(record("x" * 100_000))[:500]
    written(file, torn)
    tail = RecordTail(file)
    assert texts(tail) == []
    assert (tail.damage, tail.unfinished) == ([], 500)
    with file.open("ab") as appended:
        appended.write(frame(record("b")))
    assert texts(tail) == ["b"]
    assert (tail.damage, tail.unfinished) == ([Damage(0, 500)], 0)


def test_a_zero_filled_stretch_is_skipped(file: Path) -> None:
    with file.open("wb") as sparse:
        sparse.write(frame(record("a")))
        sparse.seek(64 << 20, 1)
        sparse.write(frame(record("b")))
    tail = RecordTail(file)
    assert texts(tail) == ["a", "b"]
    assert tail.damage == [Damage(len(frame(record("a"))), 64 << 20)]


def test_damage_that_looks_like_headers_everywhere_is_skipped(file: Path) -> None:
    fake = struct.pack("<QI", 40, 0) * 5000
    written(file, fake, frame(record("a")))
    tail = RecordTail(file)
    assert texts(tail) == ["a"]
    assert tail.damage == [Damage(0, len(fake))]


def test_a_length_is_trusted_up_to_16_megabytes_and_only_with_its_checksum(file: Path) -> None:
    for length, crc in (((16 << 20) + 1, None), (0, None), (50, 1)):
        header = struct.pack("<Q", length)
        header += struct.pack("<I", masked_crc(header) if crc is None else crc)
        written(file, header, b"x" * 100, frame(record("a")))
        tail = RecordTail(file)
        assert texts(tail) == ["a"]
        assert tail.damage == [Damage(0, 112)]


def test_the_longest_record_is_read(file: Path) -> None:
    data = bytes(16 << 20)
    written(file, frame(b"a"), frame(data), frame(b"b"))
    assert [len(found.data) for found in RecordTail(file).read()] == [1, 16 << 20, 1]


def test_reading_a_long_file_holds_a_block_at_a_time(file: Path) -> None:
    with file.open("wb") as long:
        for _ in range(64):
            long.write(frame(bytes(1 << 20)))
    tracemalloc.start()
    try:
        assert sum(len(found.data) for found in RecordTail(file).read()) == 64 << 20
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_became_shorter_is_read_from_its_beginning(file: Path) -> None:
    written(file, frame(record("a")), frame(record("b")))
    tail = RecordTail(file)
    assert texts(tail) == ["a", "b"]
    written(file, frame(record("c")))
    assert texts(tail) == ["c"]
    assert tail.restarts == 1


def test_a_missing_file_is_an_os_error(file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(RecordTail(file).read())


def test_without_a_fast_checksum_headers_alone_are_checked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "CHECKS_DATA", False)
    frames = [frame(record(text)) for text in "abcd"]
    damaged = bytearray(b"".join(frames))
    damaged[len(frames[0])] ^= 1  # the header of b
    written(file, damaged, frame(record("x" * 9000))[:200], frame(record("e")), frame(record("f"))[:-1])
    tail = RecordTail(file)
    assert texts(tail) == ["a", "c", "d", "e"]
    assert tail.damage == [Damage(len(frames[0]), len(frames[1])), Damage(4 * len(frames[0]), 200)]
    assert tail.unfinished == len(frame(record("f"))) - 1


def test_a_frame_adds_sixteen_bytes() -> None:
    assert len(frame(b"abc")) == 3 + FRAME_BYTES


@pytest.mark.parametrize("read_bytes", [1, 200, 1 << 20])
def test_frames_are_read_again_many_at_once_and_none_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(record_file, "READ_BYTES", read_bytes)
    monkeypatch.setattr(record_file, "_GAP_BYTES", 100)
    contents = [bytes([number]) * (number % 90 + 1) for number in range(250)]
    path = tmp_path / "a.tbnum"
    path.write_bytes(b"".join(record_file.frame(content) for content in contents))
    frames = [(found.offset, len(found.data)) for found in RecordTail(path).read()]
    for step in (1, 3, 40):
        with open(path, "rb", buffering=0) as file:
            assert list(record_file.data_at(file, frames[::step])) == contents[::step]
    damaged = bytearray(path.read_bytes())
    damaged[frames[7][0] + 20] ^= 1  # its data
    damaged[frames[9][0]] ^= 1  # its length
    path.write_bytes(damaged[: frames[200][0] + 15])
    with open(path, "rb", buffering=0) as file:
        found = list(record_file.data_at(file, frames))
    lost = {7, 9, *range(200, 250)} if record_file.CHECKS_DATA else {9, *range(200, 250)}
    assert [at for at, data in enumerate(found) if data is None] == sorted(lost)
    assert all(data == contents[at] for at, data in enumerate(found) if at not in lost | {7})
    assert list(record_file.data_at(None, [])) == []
