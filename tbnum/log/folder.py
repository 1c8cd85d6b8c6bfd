"""What the names, heads and ends of a run's record files say, without reading what is in between."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tbnum.log.files import Place, RemotePath, list_names, open_raw, place, size_of
from tbnum.log.names import host_name, is_record_file, parse_name
from tbnum.log.record_file import first_record
from tbnum.log.schema import (
    ENDED_CLOSED,
    ENDED_CRASH,
    MAX_RECORD_BYTES,
    REWOUND,
    TAG_SESSION,
    TRAILER_BYTES,
    TRAILER_MAGIC,
    Trailer,
    check_session,
)
from tbnum.log.superseded import cuts

__all__ = [
    "Listing",
    "Totals",
    "first_meta",
    "last_trailer",
    "list_files",
    "order",
    "pick",
    "session_metas",
    "sum_totals",
    "writing_now",
]

_HEAD_BYTES = 1 << 18  # in which a file's first session record lies


@dataclass(frozen=True)
class Totals:
    """A run in a line, as its writers counted. Unknown is NaN, or None where it is a whole number."""

    steps: int | None = 0
    skipped_steps: int | None = 0
    first_step: int | None = None
    last_step: int | None = None
    last_loss_scale: float = math.nan
    best_loss: float = math.nan  # the lowest finite one
    first_wall_time: float = math.nan
    last_wall_time: float = math.nan
    sessions: int = 0
    ended: str | None = None  # of the newest session: None while it runs (or when it was killed), "closed", "crash"


class Listing(NamedTuple):
    """The record files of a run's folder."""

    lowest: list[Place]  # of the lowest rank, oldest first
    others: dict[int, list[str]]  # names of the other ranks' files
    trouble: list[str]  # why the folder cannot be searched


def list_files(folder: Place, only: Sequence[str] | None = None) -> Listing:
    """Those in the folder, or of them `only` these, without a listing."""
    try:
        found = list_names(folder) if only is None else only
        names = sorted(parse_name(name) for name in found if is_record_file(name))
    except OSError as error:
        return Listing([], {}, [f"{folder} cannot be searched: {error.strerror or error}"])
    lowest = min((name.rank for name in names), default=0)
    others: dict[int, list[str]] = {}
    for name in names:
        if name.rank != lowest:
            others.setdefault(name.rank, []).append(name.name)
    return Listing([folder / name.name for name in names if name.rank == lowest], others, [])


def order(path: Place, start: int | None) -> tuple[int, int, str]:
    """Sessions follow each other by the time in their name; were two begun at once, by their first step."""
    return parse_name(path.name).unix_ms, -1 if start is None else start, path.name


T = TypeVar("T")


def pick(files: list[T], session: int | None) -> list[T]:
    """The chosen session, by its number from 0 (or from the end, below 0); all where none was chosen."""
    if session is None:
        return files
    return [files[session]] if -len(files) <= session < len(files) else []


# -- heads


def session_metas(folder: str | os.PathLike[str] | RemotePath) -> list[dict[str, Any]]:
    """How each session of a run's lowest rank began, oldest first. From the head of each file: about 0.1 ms a file."""
    metas = map(first_meta, list_files(place(folder)).lowest)
    return [meta for meta in metas if meta is not None]


def first_meta(path: Place) -> dict[str, Any] | None:
    """What a session said about itself when it began; None where it has not yet, or lost it."""
    record = first_record(path, TAG_SESSION, within=_HEAD_BYTES)
    if record is None:
        return None
    try:
        meta: dict[str, Any] = json.loads(record.payload)
        check_session(meta)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    return meta


# -- ends


def last_trailer(path: Place) -> Trailer:
    """The running totals at the end of a file; empty ones where there are none to be found."""
    try:
        with open_raw(path) as file:
            size = size_of(file)
            for window in (512, 1 << 18, MAX_RECORD_BYTES + (1 << 16)):
                begin = max(0, size - window)
                file.seek(begin)
                trailer = _trailer_in(file.read(size - begin) or b"")
                if trailer is not None and 0 <= trailer.steps <= size:  # a step has more than a byte
                    return trailer
                if begin == 0:
                    break
    except OSError:
        pass
    return Trailer()


def _trailer_in(data: bytes) -> Trailer | None:
    """The last trailer in `data` whose record may be whole: its checksum follows."""
    at = len(data) - TRAILER_BYTES - 4
    while at >= 0:
        at = data.rfind(TRAILER_MAGIC, 0, at + len(TRAILER_MAGIC))
        if at < 0:
            break
        try:
            return Trailer.unpack(data[at : at + TRAILER_BYTES])
        except ValueError:
            at -= 1
    return None


def sum_totals(ends: Mapping[Place, Trailer], exact: Callable[[Place, int | None], Trailer]) -> Totals:
    """The totals of a run from the ends of its files, oldest first.

    `exact` gives those of one file's steps before a cut, where its end counts steps that are superseded.
    """
    parts: list[Trailer] = []
    starts = [trailer.start if trailer.start >= 0 else None for trailer in ends.values()]
    for (path, trailer), cut in zip(ends.items(), cuts(starts), strict=True):
        counts_superseded = trailer.flags & REWOUND or (cut is not None and trailer.last_step >= cut)
        parts.append(exact(path, cut) if counts_superseded else trailer)
    ended = _ended(list(ends.values()))
    parts = [part for part in parts if part.steps]
    if not parts:
        return Totals(sessions=len(ends), ended=ended)
    best = [part.best_loss for part in parts if not math.isnan(part.best_loss)]
    scales = [part.last_loss_scale for part in parts if not math.isnan(part.last_loss_scale)]
    return Totals(
        steps=sum(part.steps for part in parts),
        skipped_steps=sum(part.skipped_steps for part in parts),
        first_step=parts[0].first_step,
        last_step=parts[-1].last_step,
        last_loss_scale=scales[-1] if scales else math.nan,
        best_loss=min(best, default=math.nan),
        first_wall_time=parts[0].first_wall_time,
        last_wall_time=parts[-1].last_wall_time,
        sessions=len(ends),
        ended=ended,
    )


def _ended(trailers: Sequence[Trailer]) -> str | None:
    flags = trailers[-1].flags if trailers else 0
    return "crash" if flags & ENDED_CRASH else "closed" if flags & ENDED_CLOSED else None


# -- who writes


def writing_now(folder: str | os.PathLike[str], rank: int | None, within_seconds: float = 60.0) -> int | None:
    """The id of another process of this machine that writes the same rank's record into `folder`; None without one.

    Known by recent files that were not closed, and whose process lives. A look at the folder, and at the end of such
    files. Not on Windows, where a process cannot be asked.
    """
    if os.name != "posix":
        return None
    host = host_name()
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            named = parse_name(entry.name)
            if named.host != host or named.rank != (rank or 0) or named.process == os.getpid():
                continue
            is_recent = entry.stat().st_mtime > time.time() - within_seconds
            if is_recent and _ended([last_trailer(place(entry.path))]) is None and _lives(named.process):
                return named.process
    return None


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)  # no signal: only whether there could be one
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
