"""The runs below a logdir: finds them in the background, tails their files, keeps what was read within a budget.

One thread looks through the folders and reads the end of each record file, for the table of runs. The steps and events
of a run are read by the request that asks for them, under a lock of that run alone, so a large or a broken run never
holds up the others.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tbnum.explain.repeats import seed_of, setting
from tbnum.log.checksums import Checksums
from tbnum.log.files import Place, RemotePath, is_url
from tbnum.log.logdir import find_runs
from tbnum.log.reader import Run, session_metas
from tbnum.log.scalar_log import Peek, missing_tag
from tensorboard_plugin_tbnum.cells import CellCache
from tensorboard_plugin_tbnum.coarse import Coarse
from tensorboard_plugin_tbnum.entries import Entry, newest, optimizers_of
from tensorboard_plugin_tbnum.explaining import Explain, Explainer, Find
from tensorboard_plugin_tbnum.snapshots import Listing, Recorded, Row, Snapshot

__all__ = ["Listing", "Root", "Row", "RunTable", "Snapshot", "UnknownRun", "roots"]

logger = logging.getLogger("tensorboard")

FRESH_SECONDS = 1.0
"""What was looked at longer ago than this is looked at again before it answers."""
ASKED_SECONDS = 10.0
"""So long after the last question the folders are looked through again and again, as somebody may be watching."""
IDLE_SECONDS = 30.0
"""How often the folders are looked through when nobody asks."""
FIRST_SCAN_SECONDS = 5.0
"""So long a question about a run that is not known yet waits for the first scan."""
BUDGET_BYTES = 400 << 20
"""Steps and events kept in memory, all runs together."""
EVENT_BYTES = 2_000
"""What an event takes in memory, with its explanation. Roughly."""

POINT_BYTES = 24
"""What a point of a scalar log takes besides the columns, as more may come that supersedes it."""


class UnknownRun(LookupError):
    """There is no run of that name."""


@dataclass(frozen=True)
class Root:
    """A folder to look for runs in, and what their names begin with."""

    folder: str
    prefix: str = ""


def roots(logdir: str | None, logdir_spec: str | None = None) -> list[Root]:
    """The folders that TensorBoard's `--logdir` and `--logdir_spec` name, as TensorBoard reads them.

    `logdir_spec` is `NAME:FOLDER` or `FOLDER`, several with commas between them.
    """
    if logdir:
        return [Root(_expanded(logdir))]
    found = []
    for part in filter(None, (logdir_spec or "").split(",")):
        name, colon, folder = part.partition(":")
        if colon and name and not (is_url(part) or part.startswith("/") or os.path.splitdrive(part)[0]):
            found.append(Root(_expanded(folder), name))
        else:
            found.append(Root(_expanded(part)))
    return found


def _expanded(folder: str) -> str:
    return folder if is_url(folder) else os.path.abspath(os.path.expanduser(folder))


class RunTable:
    """The runs below some folders.

    Call `start` once; it returns at once. All methods may be called from any thread. Names are only ever looked up
    among the runs that were found, so no name can lead outside the folders.
    """

    def __init__(
        self,
        where: Sequence[Root],
        *,
        explain: Explain | None = None,
        find: Find | None = None,
        tags: Mapping[str, str] | None = None,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        self.logdir = ", ".join(root.folder for root in where)
        self._roots = tuple(where)
        self._explainer = Explainer(explain, find)
        self._tags = dict(tags or {})  # by column, of runs that never used tbnum
        self._sizes: dict[str, Sequence[tuple[str, int]]] = {}  # of files behind URLs, as last listed
        self._peeks: dict[Place, Peek] = {}  # of their folders, and of those without anything to show
        self._budget_bytes = budget_bytes
        # Versions of this process differ from those of one before, whose answers a browser may still hold.
        self._salt = secrets.token_hex(4)
        self._serials = itertools.count()
        self._lock = threading.Lock()  # of the attributes below; never held while a file is read
        self._entries: dict[str, Entry] = {}
        self._errors: dict[str, str] = {}
        self._ready = threading.Event()
        self._wanted = threading.Event()
        self._asked = float("-inf")
        self._thread: threading.Thread | None = None

    @property
    def active(self) -> bool:
        """Whether there is any run, as far as is known. From memory; the background looks whether that still holds."""
        self._wanted.set()
        return bool(self._entries)

    def start(self) -> None:
        """Starts looking for runs in the background, for as long as the process lives."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="tbnum-runs", daemon=True)
            self._thread.start()

    def listing(self) -> Listing:
        """The table of runs as it is known. Reads no file; asks the background to look again."""
        self._want()
        with self._lock:
            rows = [self._entries[name].row() for name in sorted(self._entries)]
            return Listing(self._ready.is_set(), self.logdir, rows, dict(self._errors))

    def snapshot(
        self,
        name: str,
        *,
        events: bool = False,
        findings: bool = False,
        tensors: bool = False,
        ranks: bool = False,
        checksums: bool = False,
    ) -> Snapshot:
        """The run as it is on disk, or was at most a second ago; with its events and more if asked for.

        Waits only for who else reads the same run (and, before the first scan is through, a little for that). Events
        and findings are worked out beside, so that who asks for steps does not wait for them.
        UnknownRun where there is none of that name.
        """
        entry = self._find(name)
        with entry.lock:
            run = self._opened(entry)
            tables, histograms = (run.tensors, run.histograms) if tensors else (None, None)
            of_bits = run.checksums if checksums else Checksums()
            of_ranks = run.ranks if ranks else None
            meta, problems = run.meta, list(run.problems)
            if not meta["sessions"]:
                self._forget(entry)
                raise UnknownRun(f"the record files of run {name!r} are gone")
            steps = run.steps
            count = len(steps.get("step", ()))
            steps = {"step": np.empty(0, np.int64), "wall_time": np.full(count, np.nan), **steps}
            raw_events = run.raw_events
            version = f"{entry.serial}.{run.version}"
            entry.optimizers, entry.problems = optimizers_of([meta]), len(problems)
            entry.bytes = sum(values.nbytes for values in steps.values()) + EVENT_BYTES * len(raw_events)
            entry.bytes += run.bytes_of_ranks
            if entry.derived_of != version:
                entry.derived, entry.coarse, entry.derived_of = {}, Coarse(), version
            entry.bytes += entry.cells.nbytes + entry.coarse.nbytes
            entry.bytes += sum(values.nbytes for values in list(entry.derived.values()))
            derived, coarse = entry.derived, entry.coarse
            if entry.peek is not None:
                entry.counted = run.totals
                entry.bytes += POINT_BYTES * sum(values.size for values in steps.values())
            entry.used = time.monotonic()
        explained = None
        if events or findings:
            record = Recorded(name, steps, raw_events, meta, run)
            explained = self._explainer.explained(entry, record, version, findings)
            entry.problems = len(problems) + len(explained.problems)
        self._evict(keep=entry)
        return Snapshot(
            name,
            version,
            steps,
            meta,
            [*problems, *explained.problems] if explained else problems,
            explained.events if explained else (),
            (explained.findings or ()) if explained else (),
            explained.version if explained else "",
            tables,
            histograms,
            entry.cells,
            of_ranks,
            of_bits,
            derived,
            coarse,
        )

    def quickly(self) -> AbstractContextManager[None]:
        """Marks a question that is answered in a moment: what takes long to work out does not begin meanwhile."""
        return self._explainer.quickly()

    def batch(self, name: str, step: int) -> list[int] | None:
        """The ids of a step's samples, where the record has them. Reads one record."""
        entry = self._find(name)
        with entry.lock:
            run = self._opened(entry)
            ids = run.batch(step) if isinstance(run, Run) else None
        return None if ids is None else ids.tolist()

    def sessions(self, name: str) -> Sequence[Mapping[str, Any]]:
        """What each session of a run recorded when it began, oldest first. Reads no step: 0.1 ms a session."""
        entry = self._find(name)
        if entry.peek is not None:
            meta = self.snapshot(name).meta
            return [{key: meta[key] for key in ("source", "system", "tags", "every", "x", "scaler") if key in meta}]
        return session_metas(entry.folder) or list(self.snapshot(name).meta["sessions"])

    def scan(self) -> None:
        """Looks through the folders once. Some 150 us a run."""
        found: dict[str, Place] = {}
        errors: dict[str, str] = {}
        scalar_logs: dict[str, Place] = {}
        sizes: dict[str, Sequence[tuple[str, int]]] = {}
        for root in self._roots:
            _search(root, found, scalar_logs, sizes, errors)
        unchanged = {name for name, listed in sizes.items() if self._sizes.get(name) == listed}
        known = {folder: self._peeks.get(folder) or Peek(folder, self._tags) for folder in scalar_logs.values()}
        self._peeks = known

        def recognised() -> dict[str, Peek]:
            return {name: known[folder] for name, folder in scalar_logs.items() if known[folder].recognised}

        self._list(found, recognised(), errors)
        listed = time.monotonic()
        for name, folder in scalar_logs.items():
            if name in unchanged:
                continue
            if time.monotonic() - listed > FRESH_SECONDS:  # many of them: those that were looked at are shown
                self._list(found, recognised(), errors)
                listed = time.monotonic()
            try:
                known[folder].look()
            except Exception as error:
                logger.debug("tbnum: %s", folder, exc_info=True)
                errors[str(folder)] = f"could not be read ({type(error).__name__}: {error})"
        entries = self._list(found, recognised(), errors)
        if self._tags:
            there = frozenset().union(*(peek.look().tags for peek in known.values()))
            missing = [missing_tag(column, tag, there) for column, tag in self._tags.items() if tag not in there]
            errors |= {"--tbnum_map": "; ".join(missing)} if missing else {}
        for entry in entries:
            if entry.name in unchanged and entry.totals is not None and entry.counted is None:
                continue
            try:
                entry.totals = newest(entry.counted, entry.closed.totals)
                if entry.peek is None and entry.setting is None and (metas := session_metas(entry.folder)):
                    entry.optimizers = optimizers_of(metas) or None
                    entry.seed, entry.setting = seed_of(metas[0]), setting(metas[0])
            except Exception as error:
                logger.debug("tbnum: run %r", entry.name, exc_info=True)
                errors[entry.name] = f"could not be read ({type(error).__name__}: {error})"
        with self._lock:
            self._errors = errors
        self._sizes = sizes
        self._ready.set()

    def _list(
        self, found: Mapping[str, Place], scalar_logs: Mapping[str, Peek], errors: Mapping[str, str]
    ) -> list[Entry]:
        """Takes the runs that were found into the table, those with record files and those with a scalar log alone."""
        folders = {**{name: peek.folder for name, peek in scalar_logs.items()}, **found}
        with self._lock:
            kept = {
                name: entry
                for name, entry in self._entries.items()
                # A name that leads elsewhere now is another run, and so is one with record files of its own.
                if folders.get(name) == entry.folder and (entry.peek is None) == (name in found)
            }
            self._entries = {
                name: kept.get(name) or Entry(name, folder, None if name in found else scalar_logs[name])
                for name, folder in folders.items()
            }
            self._errors = {**self._errors, **errors}
            return list(self._entries.values())

    def _watch(self) -> None:
        complained = False
        while True:
            started = time.monotonic()
            try:
                self.scan()
            except Exception:
                # The thread has to live on: the next time may well succeed.
                if not complained:
                    logger.exception("tbnum: looking for runs in %s failed; trying again", self.logdir)
                complained = True
                self._ready.set()
            # On a slow disk the pauses get longer, so that scanning takes a fifth of the time at most.
            time.sleep(max(FRESH_SECONDS, 4 * (time.monotonic() - started)))
            if time.monotonic() - self._asked > ASKED_SECONDS:
                self._wanted.wait(IDLE_SECONDS)
            self._wanted.clear()

    def _want(self) -> None:
        self._asked = time.monotonic()
        self._wanted.set()

    def _find(self, name: str) -> Entry:
        self._want()
        entry = self._entries.get(name)
        if entry is None and self._thread is not None and not self._ready.is_set():
            self._ready.wait(FIRST_SCAN_SECONDS)
            entry = self._entries.get(name)
        if entry is None:
            raise UnknownRun(f"there is no run {name!r} below {self.logdir}; the route `runs` lists those there are")
        return entry

    def _opened(self, entry: Entry) -> Run:
        """The run with its steps, fresh. Called under the entry's lock."""
        if entry.opened is None:
            entry.serial = f"{self._salt}-{next(self._serials)}"
            entry.opened = entry.run()
            entry.checked = float("-inf")
        if time.monotonic() - entry.checked > FRESH_SECONDS:
            entry.reading = entry.checked == float("-inf")
            try:
                entry.opened.refresh()
            finally:
                entry.reading = False
            entry.checked = time.monotonic()
        return entry.opened

    def _forget(self, entry: Entry) -> None:
        with self._lock:
            if self._entries.get(entry.name) is entry:
                del self._entries[entry.name]

    def _evict(self, keep: Entry) -> None:
        """Lets go of runs that were not asked for lately until the rest fits. `keep` stays however large it is."""
        with self._lock:
            entries = [entry for entry in self._entries.values() if entry.bytes]
        entries.sort(key=lambda entry: entry.used)
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            if total <= self._budget_bytes:
                return
            # One that is being read right now is in use; waiting for it would hold up this request.
            if entry is keep or entry.opened is None or not entry.lock.acquire(blocking=False):
                continue
            try:
                total -= entry.bytes
                entry.opened, entry.explained, entry.bytes = None, None, 0
                entry.cells, entry.derived, entry.coarse = CellCache(), {}, Coarse()
            finally:
                entry.lock.release()


def _search(
    root: Root,
    found: dict[str, Place],
    scalar_logs: dict[str, Place],
    sizes: dict[str, Sequence[tuple[str, int]]],
    errors: dict[str, str],
) -> None:
    """Adds the folders below `root` by name: with record files to `found`, with event files to `scalar_logs`.

    Of a URL `sizes` gets what its listing says of their files: what has not changed need not be asked for again.
    """
    try:
        below_root = find_runs(root.folder)
    except OSError as error:
        errors[root.prefix or root.folder] = str(error)
        return
    for folder, reason in below_root.unreadable:
        below = str(folder) if isinstance(folder, RemotePath) else os.path.relpath(folder, root.folder)
        errors[_run_name(root, below.replace(os.sep, "/"))] = reason
    for below, listed in below_root.sizes.items():
        sizes[_run_name(root, below)] = listed
    for folders, into in ((below_root.runs, found), (below_root.scalar_logs, scalar_logs)):
        for below, folder in folders.items():
            name = _run_name(root, below)
            if into.setdefault(name, folder) != folder:
                errors[name] = f"{str(folder)!r} has the name of {str(into[name])!r} and is left out"


def _run_name(root: Root, below: str) -> str:
    name = f"{root.prefix}/{below}" if root.prefix else below
    # A name that is no Unicode could not be asked for. It is only ever looked up, so it need not lead back to a folder.
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
