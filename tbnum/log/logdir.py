"""The runs under a log directory: `read()` gives them, `find_runs()` says where they lie."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tbnum.caller import warn
from tbnum.log.event_file import is_event_file
from tbnum.log.files import Place, RemotePath, is_regular, place
from tbnum.log.named import Runs
from tbnum.log.names import is_record_file
from tbnum.log.reader import Explain, Find, Run
from tbnum.log.scalar_log import ScalarRun, scalar_runs

__all__ = ["ADVICE", "Found", "Unreadable", "find_runs", "read"]

ADVICE = "give the logdir of tbnum.wrap(), or a folder above it"


class Unreadable(NamedTuple):
    """A folder that could not be searched."""

    folder: Place
    reason: str


class Found(NamedTuple):
    """What lies under a logdir, each by run name, sorted."""

    runs: dict[str, Place]  # folders that hold record files
    unreadable: list[Unreadable]
    scalar_logs: dict[str, Place]  # folders that hold TensorBoard's event files and no record file
    sizes: Mapping[str, Sequence[tuple[str, int]]] = MappingProxyType({})  # of the files in each, behind a URL


def read(
    logdir: str | os.PathLike[str],
    *,
    session: int | None = None,
    explain: Explain | None = None,
    find: Find | None = None,
    tags: Mapping[str, str] | None = None,
    run_type: type[Run] = Run,
    scalar_run_type: type[ScalarRun] = ScalarRun,
) -> dict[str, Run]:
    """The runs under `logdir`, by name: the folder relative to `logdir`, with '/'; '.' for `logdir` itself.

    Walks the folders (some 80 us each) and opens no record; a run reads its files when it is first used. Of folders
    with TensorBoard's event files alone the heads are read: those whose loss or loss scale is recognised are runs too
    (`tbnum.log.scalar_log`). `session` picks one session of each run, by its number from 0 (or from the end, below
    0), in place of the run as it stands. `explain` gives `Run.events` their causes, `find` makes `Run.findings`. `tags`
    maps columns of scalar logs to tags. The runs are of the types given.

    FileNotFoundError or NotADirectoryError where `logdir` is no folder, another OSError where a URL cannot be reached.
    TypeError where `logdir` is no path or `tags` no mapping. ValueError where `logdir` is empty, or where `tags` has an
    unknown column, or a tag that no scalar log has. Folders that cannot be searched are left out, with a
    RuntimeWarning; `find_runs` gives them.
    """
    found = find_runs(logdir)
    for folder, reason in found.unreadable:
        warn(f"tbnum.read: left out {str(folder)!r}: {reason}")
    runs = {
        name: run_type(folder, name=name, session=session, explain=explain, find=find)
        for name, folder in found.runs.items()
    }
    scalar_logs = scalar_runs(
        found.scalar_logs, session=session, explain=explain, find=find, tags=tags, run_type=scalar_run_type
    )
    every = Runs(sorted({**runs, **scalar_logs}.items()))
    if session is not None:
        _check_session(every, session)
    return every


def _check_session(runs: Mapping[str, Run], session: int) -> None:
    """ValueError where none of the runs has it. Those that do not have it are empty."""
    if isinstance(session, bool) or not isinstance(session, int):
        raise TypeError(f"session is {type(session).__name__} ({session!r:.80}), not a whole number; 0 is the first.")
    counts = {name: len(run.meta.get("sessions", ())) for name, run in runs.items()}
    lacking = [name for name, count in counts.items() if not -count <= session < count]
    if not lacking:
        return
    some = ", ".join(f"{name!r} has {counts[name]}" for name in lacking[:5])
    if len(lacking) == len(runs):
        raise ValueError(f"no run has a session {session}: {some}. The first is 0, the last is -1.")
    warn(f"tbnum.read: of {len(runs)} runs {len(lacking)} have no session {session} and are empty ({some}).")


def find_runs(logdir: str | os.PathLike[str] | RemotePath) -> Found:
    """Folders under `logdir` with record files or event files, and the folders that cannot be searched. Opens no file.

    Links to folders are followed, as TensorBoard does, but never into a folder that holds the link. Of a URL one
    listing of all that is below it is asked for.
    """
    if not isinstance(logdir, (str, os.PathLike, RemotePath)):
        raise TypeError(f"logdir is {type(logdir).__name__} ({logdir!r:.80}), not a path; {ADVICE}")
    if logdir == "":  # an empty variable of a script, and not the folder that it happens to run in
        raise ValueError(f"logdir is ''; {ADVICE}")
    top = place(logdir)
    if isinstance(top, RemotePath):
        return _find_remote(top)
    try:
        found = top.stat()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no folder {str(top)!r} to read runs from; {ADVICE}") from None
    if not top.is_dir():
        raise NotADirectoryError(f"{str(top)!r} is a file; runs are read from the folder that holds it")
    runs: dict[str, Place] = {}
    scalar_logs: dict[str, Place] = {}
    unreadable: list[Unreadable] = []
    waiting = [(top, "", frozenset([(found.st_dev, found.st_ino)]))]
    while waiting:
        folder, name, above = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                listing = list(entries)
        except OSError as error:
            unreadable.append(Unreadable(folder, error.strerror or str(error)))
            continue
        for entry in listing:
            try:
                if not entry.is_dir():
                    if is_record_file(entry.name) and is_regular(entry):
                        runs[name or "."] = folder
                    elif is_event_file(entry.name) and is_regular(entry):
                        scalar_logs[name or "."] = folder
                    continue
                status = entry.stat()
            except OSError as error:
                unreadable.append(Unreadable(folder / entry.name, error.strerror or str(error)))
                continue
            inode = (status.st_dev, status.st_ino)
            if inode in above:
                continue
            below = f"{name}/{entry.name}" if name else entry.name
            waiting.append((folder / entry.name, below, above | {inode}))
    return _found(runs, unreadable, scalar_logs)


def _find_remote(top: RemotePath) -> Found:
    runs: dict[str, Place] = {}
    scalar_logs: dict[str, Place] = {}
    found = top.files_below()
    for below, files in found.items():
        for name, _ in files:
            if is_record_file(name):
                runs[below or "."] = top / below if below else top
            elif is_event_file(name):
                scalar_logs[below or "."] = top / below if below else top
    sizes = {below or ".": sorted(files) for below, files in found.items()}
    return _found(runs, [], scalar_logs)._replace(sizes=sizes)


def _found(runs: dict[str, Place], unreadable: list[Unreadable], scalar_logs: dict[str, Place]) -> Found:
    scalar_logs = {name: folder for name, folder in scalar_logs.items() if name not in runs}
    return Found(dict(sorted(runs.items())), sorted(unreadable), dict(sorted(scalar_logs.items())))
