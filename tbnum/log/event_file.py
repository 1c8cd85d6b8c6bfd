"""The scalars of one TensorBoard event file, as whoever trained wrote them. Nothing is sampled out.

Event files have the framing of our own record files, so `RecordTail` follows them: what is appended is read, what is
damaged costs itself alone.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from tensorboard.compat.proto import event_pb2

from tbnum.log.files import Place
from tbnum.log.followed import FollowedFile
from tbnum.log.record_file import Frame

__all__ = ["EventFile", "Points", "is_event_file"]


def is_event_file(name: str) -> bool:
    """As TensorBoard decides it."""
    return "tfevents" in name


class Points:
    """What one tag has: steps, strictly rising, with their values and times. 24 bytes a point."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.values = array("d")
        self.wall_times = array("d")
        self.went_back: list[int] = []  # the steps that were below the one before them
        self.start: int | None = None  # the lowest step that was ever written: from here it supersedes older files

    def append(self, step: int, value: float, wall_time: float) -> None:
        """A step that is not beyond the last one supersedes what was there from it on: the run went back."""
        if self.steps and step <= self.steps[-1]:
            if step < self.steps[-1]:
                self.went_back.append(step)
            self.cut(step)
        if self.start is None or step < self.start:
            self.start = step
        self.steps.append(step)
        self.values.append(value)
        self.wall_times.append(wall_time)

    def cut(self, step: int) -> None:
        at = bisect_left(self.steps, step)
        del self.steps[at:], self.values[at:], self.wall_times[at:]

    def before(self, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, values and times of the points before `step`."""
        count = bisect_left(self.steps, step)
        return (
            np.array(self.steps[:count], np.int64),
            np.array(self.values[:count], np.float64),
            np.array(self.wall_times[:count], np.float64),
        )


class EventFile(FollowedFile):
    """One event file: the points of the tags that are `wanted`, and the names of all its scalar tags.

    About 2.5 us a scalar, 1.5 us one that is not wanted: 100,000 steps with five tags take 1.2 s when first read.
    """

    def __init__(self, path: Place, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted
        super().__init__(path)

    def _clear(self) -> None:
        super()._clear()
        self.points: dict[str, Points] = {}
        self.tags: set[str] = set()
        self.restart: int | None = None  # the lowest step that a SessionLog.START named: older files end there
        self._no_scalars: set[str] = set()
        self._plain: dict[bytes, Points | None] = {}  # of tags with simple values: None for those that are not wanted
        self._no_events = 0  # records that are none

    def _take(self, found: Frame) -> None:
        self.take(found.data)

    def take(self, data: bytes) -> None:
        """One record."""
        found = _SIMPLE.match(data)
        if found is not None:
            begin = found.end()
            end = begin + data[begin - 1]
            if end + 5 == len(data) and data[end] == _SIMPLE_VALUE:
                tag = data[begin:end]
                if tag in self._plain:
                    points = self._plain[tag]
                    if points is not None:
                        wall_time, value = _DOUBLE.unpack_from(data, 1)[0], _FLOAT.unpack_from(data, end + 1)[0]
                        points.append(_varint(found[1]), value, wall_time)
                    return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        try:
            event = event_pb2.Event.FromString(data)
        except Exception:  # DecodeError, whose class depends on protobuf's implementation
            self._no_events += 1
            return
        what = event.WhichOneof("what")
        if what == "summary":
            for value in event.summary.value:
                self._take_value(event, value)
        elif what == "session_log" and event.session_log.status == event.session_log.START:
            step = event.step
            self.restart = step if self.restart is None else min(step, self.restart)
            for points in self.points.values():
                points.cut(step)

    def _take_value(self, event: event_pb2.Event, value: event_pb2.Event) -> None:
        tag = value.tag
        points = self.points.get(tag)
        if points is None:
            if tag in self._no_scalars:
                return
            if tag not in self.tags:
                if not _is_scalar(value):
                    self._no_scalars.add(tag)
                    return
                self.tags.add(tag)
            if not self._wanted(tag):
                if value.HasField("simple_value"):
                    self._plain[tag.encode()] = None
                return
            points = self.points[tag] = Points()
            if value.HasField("simple_value"):
                self._plain[tag.encode()] = points
        number = value.simple_value if value.HasField("simple_value") else _number(value)
        if number is not None:
            points.append(event.step, number, event.wall_time)

    def problems(self) -> list[str]:
        """What could not be read, in words. A last record that is not whole is none: writers flush when they like."""
        name = self.path.name
        problems = [f"{damage.bytes} damaged bytes at {damage.offset} in {name}" for damage in self._tail.damage]
        if self._no_events:
            problems.append(f"{self._no_events} records in {name} are no events")
        return problems + ([self._error] if self._error else [])


# A scalar as SummaryWriter writes it, up to its tag: wall_time, step (left out where it is 0), a summary of one value.
_SIMPLE = re.compile(
    rb"\x09.{8}(?:\x10([\x80-\xff]{0,8}[\x00-\x7f]))?\x2a[\x00-\x7f]\x0a[\x00-\x7f]\x0a[\x00-\x7f]", re.DOTALL
)
_SIMPLE_VALUE = 0x15  # the key of the field, a float, which then ends the record
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")


def _varint(data: bytes | None) -> int:
    value = 0
    for at, byte in enumerate(data or b""):
        value |= (byte & 0x7F) << (7 * at)
    return value


def _is_scalar(value: event_pb2.Event) -> bool:
    if value.HasField("simple_value"):
        return True
    plugin = value.metadata.plugin_data.plugin_name
    return value.HasField("tensor") and plugin in ("", "scalars") and _number(value) is not None


def _number(value: event_pb2.Event) -> float | None:
    """The number in a tensor (as TensorFlow 2 writes a scalar); None where it holds something else."""
    if not value.HasField("tensor"):
        return None
    from tensorboard.util import tensor_util

    try:
        array = tensor_util.make_ndarray(value.tensor)
        return float(array.item()) if array.size == 1 and array.dtype.kind in "fiub" else None
    except (TypeError, ValueError):
        return None
