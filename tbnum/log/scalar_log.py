"""Runs that never used tbnum, read from the scalars that they left for TensorBoard.

A `ScalarRun` has the face of a `Run`. Its columns are what the run's tags could be mapped to, step by step as logged;
what the log cannot tell is no column, or NaN. Skips and changes of the loss scale are inferred (`tbnum.log.inferred`),
and say so.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tbnum.log.event_file import EventFile, is_event_file
from tbnum.log.files import Place, RemotePath, list_names, open_raw, size_of
from tbnum.log.inferred import Numbering, infer
from tbnum.log.named import Columns
from tbnum.log.reader import Explain, Run, Totals
from tbnum.log.record_file import RecordTail
from tbnum.log.schema import LOGGED, Event
from tbnum.log.tags import System, checked_mapping, is_candidate, recognise
from tbnum.log.tensors_reader import Histograms, Tensors

__all__ = ["SOURCE", "Peek", "ScalarRun", "missing_tag", "scalar_runs"]

SOURCE = "tensorboard"
"""`meta["source"]` of a run that was read from a scalar log."""

HEAD_BYTES = 4 << 20  # in which the tags of a loss or a loss scale have to appear for a run to be listed
TAIL_BYTES = 1 << 16
TAGS_LISTED = 30


class Scalars(NamedTuple):
    """What the ends of a run's event files tell."""

    system: System
    mapping: dict[str, str]  # tag by column
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
        self._wanted = _wanted(mapping)
        self._ends: dict[Place, _Ends] = {}
        self._scalars: Scalars | None = None

    def look(self) -> Scalars:
        """Some 0.2 ms a file that was seen before, and 5 ms one that grew; up to 0.3 s the first time.

        Of each file the end is read, and the head until its tags repeat: 4 MB at most.
        """
        paths = _event_files(self.folder)
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
        known = set(found.values())
        points = [point for ends in self._ends.values() for point in (*ends.first, *ends.last) if point.tag in known]
        scales = [point for point in points if point.tag == found.get("loss_scale")]
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
            # Some rounds through the tags of a step that brought none anew: no more are to be waited for.
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


def _wanted(mapping: Mapping[str, str] | None) -> Callable[[str], bool]:
    mapped = set((mapping or {}).values())
    return lambda tag: tag in mapped or is_candidate(tag)


def _event_files(folder: Place) -> list[Place]:
    """Oldest first, by the time in their names."""
    try:
        names = [name for name in list_names(folder) if is_event_file(name)]
    except OSError:
        return []
    return [folder / name for name in sorted(names, key=_age)]


def _age(name: str) -> tuple[int, str]:
    found = re.search(r"tfevents\.(\d+)", name)
    return int(found[1]) if found else 0, name


def scalar_runs(
    folders: Mapping[str, Place],
    *,
    session: int | None = None,
    explain: Explain | None = None,
    tags: Mapping[str, str] | None = None,
) -> dict[str, ScalarRun]:
    """The runs among folders with event files, by name: those whose loss or loss scale is recognised, or mapped.

    ValueError where `tags` has an unknown column, or a tag that none of the folders has.
    """
    mapping = checked_mapping(tags)
    peeks = {name: Peek(folder, mapping) for name, folder in folders.items()}
    seen = {name: peek.look() for name, peek in peeks.items()}
    there = frozenset().union(*(scalars.tags for scalars in seen.values()))
    if not there.issuperset(mapping.values()):  # perhaps in between: only all of the files tell
        there = frozenset().union(*(_all_tags(peek) for peek in peeks.values()))
    for column, tag in mapping.items():
        if tag not in there:
            raise ValueError(missing_tag(column, tag, there))
    return {
        name: ScalarRun(folders[name], name=name, session=session, explain=explain, peek=peeks[name])
        for name, scalars in seen.items()
        if scalars.recognised
    }


def _all_tags(peek: Peek) -> set[str]:
    meta = ScalarRun(peek.folder, peek=peek).meta
    return {*meta["tags"].values(), *meta["other_tags"]}


def missing_tag(column: str, tag: str, there: Iterable[str]) -> str:
    """What is wrong with a mapping to a tag that is not there."""
    tags = sorted(there)
    listed = ", ".join(map(repr, tags[:TAGS_LISTED])) + (
        f" and {len(tags) - TAGS_LISTED} more" if len(tags) > TAGS_LISTED else ""
    )
    return f"no scalar log has a scalar {tag!r} to take {column!r} from; there is {listed or 'no scalar at all'}"


class ScalarRun(Run):
    """A folder's event files, read when first used: 2.5 us a scalar, of which 32 bytes stay in memory."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | RemotePath,
        *,
        name: str = ".",
        session: int | None = None,
        explain: Explain | None = None,
        mapping: Mapping[str, str] | None = None,
        peek: Peek | None = None,
    ) -> None:
        super().__init__(folder, name=name, session=session, explain=explain)
        self._peek = peek or Peek(self.folder, mapping)
        self._mapping = self._peek.mapping
        self._event_files: list[EventFile] = []
        self._columns: dict[str, np.ndarray] = {}
        self._facts: list[Event] = []
        self._meta: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"ScalarRun({self.name!r}, folder={str(self.folder)!r})"

    @property
    def steps(self) -> dict[str, np.ndarray]:
        """The columns that tags could be mapped to. Otherwise as `Run.steps`.

        `skipped` and `updates` (steps so far that were not skipped, unlogged ones too) only where the log can tell.
        Where a NaN was logged, `loss_logged` and `grad_norm_logged` tell it from a step that has none.
        """
        with self._loading():
            return Columns(self._columns)

    @property
    def raw_events(self) -> list[Event]:
        """What the scalars let one infer, in order of step."""
        with self._loading():
            return list(self._facts)

    @property
    def meta(self) -> dict[str, Any]:
        """What follows from the tags, and is no setting that anybody told:

        - "source": "tensorboard"; "system": whose tags these are, None where nobody's in particular;
        - "tags": the tag of each column; "other_tags": the scalars that are no column;
        - "every": of how many steps one is logged; "numbering": the number of the first step, and how far apart two
          are ("x": "samples" where the log counts samples);
        - "sessions": the event files, oldest first.
        """
        with self._loading():
            return dict(self._meta)

    @property
    def tensors(self) -> Tensors:
        """None: scalars tell nothing of single tensors."""
        return Tensors([], {})

    @property
    def histograms(self) -> Histograms:
        return Histograms([])

    @property
    def problems(self) -> list[str]:
        with self._loading():
            return [*self._trouble, *(problem for file in self._event_files for problem in file.problems())]

    @property
    def totals(self) -> Totals:
        """As counted, once the run was read; before, what the ends of its files tell: no counts and no best loss."""
        with self._lock:
            if not self._loaded:
                ends = self._peek.look()
                return Totals(
                    steps=None,
                    skipped_steps=None,
                    first_step=ends.first[0] if ends.first else None,
                    last_step=ends.last[0] if ends.last else None,
                    last_loss_scale=ends.last_loss_scale,
                    first_wall_time=ends.first[1] if ends.first else math.nan,
                    last_wall_time=ends.last[1] if ends.last else math.nan,
                    sessions=ends.files,
                )
            return self._counted()

    def refresh(self) -> bool:
        """Reads what was appended since the last time, and new files. True where anything changed."""
        with self._lock:
            first_time = not self._loaded
            self._loaded = True
            changed = self._find_event_files()
            for file in self._event_files:
                changed = file.refresh() or changed
            if changed or first_time:
                self._put_together()
                self._version += 1
                self._explained = None
            return bool(self._event_files) if first_time else changed

    # -- inside

    def _find_event_files(self) -> bool:
        known = {file.path: file for file in self._event_files}
        paths = _event_files(self.folder)
        self._event_files = [known.get(path) or EventFile(path, _wanted(self._mapping)) for path in paths]
        return set(known) != set(paths)

    def _put_together(self) -> None:
        files = self._event_files
        if self._session is not None:
            files = [files[self._session]] if -len(files) <= self._session < len(files) else []
        tags = {tag for file in files for tag in file.tags}
        system, mapping = recognise(tags, self._mapping)
        points = {column: _joined(files, tag) for column, tag in mapping.items()}
        if system.loss_before:
            _move_losses(points)
        columns, logged = _table(points)
        every, numbering = _spacing(system, points)
        facts = infer(
            columns,
            numbering,
            logged=logged,
            scale_after=system.scale_after,
            skip_lacks_norm=system.skip_lacks_norm,
            backoff=system.backoff,
            restarts=_restarts(files, set(mapping.values())),
        )
        columns.pop("skipped", None)
        if facts.skipped is not None:
            columns["skipped"] = facts.skipped
            columns["updates"] = _updates(columns["step"], facts.events, numbering)
        for column in ("loss", "grad_norm"):
            if column in columns and (np.isnan(columns[column]) & logged[column]).any():
                columns[column + LOGGED] = logged[column]
        for values in columns.values():
            values.flags.writeable = False
        self._columns, self._facts = columns, facts.events
        self._meta = {
            "source": SOURCE,
            "system": system.name or None,
            "tags": mapping,
            "other_tags": sorted(tags - set(mapping.values())),
            "every": every,
            "x": "samples" if system.in_samples else "steps",
            "numbering": numbering._asdict(),
            "sessions": [{"file": file.path.name} for file in files],
            "dropped": {},
            "ranks": {},
        }
        self._tell_start(every, numbering)
        interval = _growth_interval(facts.events, numbering) if every == 1 else None
        if interval is not None:
            self._meta["scaler"] = {"growth_interval": interval, "inferred": True}

    def _tell_start(self, every: int, numbering: Numbering) -> None:
        step = self._columns["step"]
        if len(step) and self._meta["sessions"]:
            first = int(step[0])
            begins = numbering.count(first) < every
            self._meta["sessions"][0]["first_step"] = numbering.first if begins else first

    def _counted(self) -> Totals:
        steps, count = self._columns, len(self._columns.get("step", ()))
        if not count:
            return Totals(sessions=len(self._event_files))
        losses, scales = (steps.get(name, np.empty(0)) for name in ("loss", "loss_scale"))
        losses, scales = losses[np.isfinite(losses)], scales[np.isfinite(scales)]
        skips = sum(int(event.data.get("at_least", 1)) for event in self._facts if event.kind == "skip")
        return Totals(
            steps=count,
            skipped_steps=skips if "skipped" in steps else None,
            first_step=int(steps["step"][0]),
            last_step=int(steps["step"][-1]),
            last_loss_scale=float(scales[-1]) if len(scales) else math.nan,
            best_loss=float(losses.min()) if len(losses) else math.nan,
            first_wall_time=float(steps["wall_time"][0]),
            last_wall_time=float(steps["wall_time"][-1]),
            sessions=len(self._event_files),
        )


class _Joined(NamedTuple):
    steps: np.ndarray  # (N,) int64, strictly rising
    values: np.ndarray  # (N,) float64
    wall_times: np.ndarray  # (N,) float64


def _joined(files: Sequence[EventFile], tag: str) -> _Joined:
    """The points of a tag: of each file, what no later one supersedes.

    A file supersedes an older one from its own first point of the tag on, and from where it says that it restarts.
    """
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    end = math.inf
    for file in reversed(files):
        points = file.points.get(tag)
        if points is not None:
            parts.append(points.before(end))
            end = min(end, points.start if points.start is not None else math.inf)
        end = min(end, file.restart if file.restart is not None else math.inf)
    parts.reverse()
    empty = (np.empty(0, np.int64), np.empty(0), np.empty(0))
    return _Joined(*(np.concatenate(arrays) for arrays in zip(*(parts or [empty]), strict=True)))


def _restarts(files: Sequence[EventFile], tags: set[str]) -> dict[int, str]:
    """The steps with which the run was taken up anew: by a file with tags that older ones have, or within one."""
    seen: set[str] = set()
    found: dict[int, str] = {}
    for file in files:
        points = {tag: each for tag, each in file.points.items() if tag in tags and each.start is not None}
        again = [each.start for tag, each in points.items() if tag in seen and each.start is not None]
        if again:
            found = _anew(found, min(again), "log")
        for steps in itertools.zip_longest(*(each.went_back for each in points.values()), fillvalue=math.inf):
            found = _anew(found, int(min(steps)), "steps")
        seen |= set(points)
    return found


def _anew(restarts: Mapping[int, str], step: int, how: str) -> dict[int, str]:
    """With one more, which supersedes those that came after its step."""
    return {at: why for at, why in restarts.items() if at < step} | {step: how}


def _move_losses(points: dict[str, _Joined]) -> None:
    """DeepSpeed's engine logs a step's loss at the samples before it, and all else at the samples after it."""
    others = [points[name].steps for name in ("lr", "loss_scale") if name in points and len(points[name].steps)]
    loss = points.get("loss")
    if loss is None or not others or not len(loss.steps) or loss.steps[0] >= min(each[0] for each in others):
        return  # its pipeline engine logs both after the step
    after = np.unique(np.concatenate(others))
    at = np.searchsorted(after, loss.steps, side="right")
    there = at < len(after)  # else the step is not over
    moved = after[at[there]]
    last = np.append(moved[1:] != moved[:-1], True) if len(moved) else np.empty(0, bool)
    points["loss"] = _Joined(moved[last], loss.values[there][last], loss.wall_times[there][last])


def _table(points: Mapping[str, _Joined]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Columns over all steps at which anything was logged; and where each has a value, NaN among them."""
    every = [each.steps for each in points.values()]
    step = np.unique(np.concatenate(every)) if every else np.empty(0, np.int64)
    wall_time = np.full(len(step), -np.inf)
    columns: dict[str, np.ndarray] = {"step": step, "wall_time": wall_time}
    logged: dict[str, np.ndarray] = {}
    for name, each in points.items():
        at = np.searchsorted(step, each.steps)
        columns[name] = np.full(len(step), np.nan)
        columns[name][at] = each.values
        logged[name] = np.zeros(len(step), bool)
        logged[name][at] = True
        wall_time[at] = np.maximum(wall_time[at], each.wall_times)
    wall_time[~np.isfinite(wall_time)] = np.nan
    return columns, logged


def _spacing(system: System, points: Mapping[str, _Joined]) -> tuple[int, Numbering]:
    """Of how many steps one is logged, and how steps are numbered."""
    steps = next(
        (points[name].steps for name in ("loss_scale", "loss", "lr") if name in points and len(points[name].steps)),
        np.empty(0, np.int64),
    )
    if not len(steps):
        return 1, Numbering()
    first = int(steps[0])
    usual = int(np.median(np.diff(steps))) if len(steps) > 1 else 1
    if system.in_samples:  # of every step
        return 1, Numbering(usual if first else 0, usual)
    if first == 0 or (usual > 1 and first % usual == usual - 1):
        return usual, Numbering(0)
    return usual, Numbering(1)


def _updates(step: np.ndarray, events: Sequence[Event], numbering: Numbering) -> np.ndarray:
    """(S,) steps so far that changed the parameters, those between two logged ones too: all but the skips."""
    skips = np.zeros(len(step))
    for event in events:
        if event.kind == "skip":
            skips[np.searchsorted(step, event.step)] += int(event.data.get("at_least", 1))
    taken = (step - numbering.first) // numbering.unit + 1 - np.cumsum(skips)
    return np.maximum.accumulate(np.maximum(taken, 0)) if len(step) else taken


def _growth_interval(events: Sequence[Event], numbering: Numbering) -> int | None:
    """Steps from one change of the scale to the growth after it, where two growths agree."""
    changes = [event for event in events if event.kind in ("scale_growth", "scale_backoff", "scale_set")]
    distances = Counter(
        numbering.count(after.step) - numbering.count(before.step)
        for before, after in itertools.pairwise(changes)
        if after.kind == "scale_growth"
    )
    if not distances:
        return None
    distance, times = distances.most_common(1)[0]
    return distance if times >= 2 else None
