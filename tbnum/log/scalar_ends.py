"""What the ends of a run's event files say: enough to list the run, without reading it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tbnum.log.event_file import EventFile, is_event_file
from tbnum.log.files import Place, list_names, open_raw, size_of
from tbnum.log.record_file import RecordTail
from tbnum.log.tags import System, is_candidate, recognise

__all__ = ["Peek", "event_files", "wanted"]

HEAD_BYTES = 4 << 20  # in which the tags of a loss or a loss scale have to appear for a run to be listed
TAIL_BYTES = 1 << 16


class Scalars(NamedTuple):
    """What the ends of a run's event files say."""

    system: System
    mapping: dict[str, tuple[str, ...]]  # tags by column
    tags: frozenset[str]  # every scalar tag that was seen
    first: tuple[int, float] | None  # step and time
    last: tuple[int, float] | None
    last_loss_scale: float
    files: int

    @property
    def recognised(self) -> bool:
        """Whether there is anything that tbnum has something to say about."""
        return "loss" in self.mapping or "loss_scale" in self.mapping


class Peek:
    """Looks at the ends of a run's event files, and again only at what grew."""

    def __init__(self, folder: Place, mapping: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.mapping = dict(mapping or {})
        self._wanted = wanted(mapping)
        self._ends: dict[Place, _Ends] = {}
        self._scalars: Scalars | None = None

    def look(self) -> Scalars:
        """Some 0.2 ms a file that was seen before, and 5 ms one that grew; up to 0.3 s the first time.

        Of each file the end is read, and the head until its tags repeat: 4 MB at most.
        """
        paths = event_files(self.folder)
        changed = self._scalars is None or set(paths) != set(self._ends)
        self._ends = {path: self._ends.get(path) or _Ends() for path in paths}
        for path, ends in self._ends.items():
            changed = ends.read(path, self._wanted, self.recognised) or changed
        if changed:
            self._scalars = self._put_together()
        assert self._scalars is not None
        return self._scalars

    @property
    def recognised(self) -> bool:
        """As last looked."""
        return self._scalars is not None and self._scalars.recognised

    def _put_together(self) -> Scalars:
        tags = frozenset().union(*(ends.tags for ends in self._ends.values()))
        system, found = recognise(tags, self.mapping)
        known = {tag for of_column in found.values() for tag in of_column}
        points = [point for ends in self._ends.values() for point in (*ends.first, *ends.last) if point.tag in known]
        scales = [point for point in points if (point.tag,) == found.get("loss_scale")]
        first, last = min(points, default=None), max(points, default=None)
        return Scalars(
            system,
            found,
            tags,
            (first.step, first.wall_time) if first else None,
            (last.step, last.wall_time) if last else None,
            max(scales).value if scales else math.nan,
            len(self._ends),
        )


class _Point(NamedTuple):
    step: int
    wall_time: float
    tag: str
    value: float


class _Ends:
    """The first and the last points of one event file."""

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self.first: list[_Point] = []
        self.last: list[_Point] = []
        self._size = -1

    def read(self, path: Place, wanted: Callable[[str], bool], recognised: bool) -> bool:
        """True where the file is another than last time. What cannot be read is left for when the run is opened."""
        try:
            with open_raw(path) as file:
                size = size_of(file)
            if size == self._size:
                return False
            if self._size < HEAD_BYTES and not (recognised and self.first):
                self._read_head(path, wanted)
            tail = EventFile(path, wanted)
            for frame in RecordTail(path, max(0, size - TAIL_BYTES)).read():
                tail.take(frame.data)
        except OSError:
            return False
        self._size = size
        self.last = _points(tail, -1)
        self.tags |= tail.tags
        return True

    def _read_head(self, path: Place, wanted: Callable[[str], bool]) -> None:
        head = EventFile(path, wanted)
        count = repeats = 0
        for frame in RecordTail(path).read():
            head.take(frame.data)
            repeats = repeats + 1 if len(head.tags) == count else 0
            count = len(head.tags)
            # Several rounds through the tags of a step brought no new one: there are no more to wait for.
            if frame.offset > HEAD_BYTES or (head.points and repeats > 4 * count + 16):
                break
        self.tags = head.tags
        self.first = _points(head, 0)


def _points(file: EventFile, at: int) -> list[_Point]:
    """The first or the last point of each tag."""
    return [
        _Point(points.steps[at], points.wall_times[at], tag, points.values[at])
        for tag, points in file.points.items()
        if len(points.steps)
    ]


def wanted(mapping: Mapping[str, str] | None) -> Callable[[str], bool]:
    """Which tags have points that are worth keeping."""
    mapped = set((mapping or {}).values())
    return lambda tag: tag in mapped or is_candidate(tag)


def event_files(folder: Place) -> list[Place]:
    """Oldest first, by the time in their names."""
    try:
        names = [name for name in list_names(folder) if is_event_file(name)]
    except OSError:
        return []
    return [folder / name for name in sorted(names, key=_age)]


def _age(name: str) -> tuple[int, str]:
    found = re.search(r"tfevents\.(\d+)", name)
    return int(found[1]) if found else 0, name
