"""Runs that never used tbnum, read from the scalars that they left for TensorBoard.

A `ScalarRun` has the interface of a `Run`. Its columns are what the run's tags could be mapped to, step by step as
logged; what the log cannot say is no column, or NaN. Skips and changes of the loss scale are inferred
(`tbnum.log.inferred`), and say so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tbnum.log.event_file import EventFile
from tbnum.log.files import Place, RemotePath
from tbnum.log.named import Columns
from tbnum.log.reader import Explain, Find, Run, Totals
from tbnum.log.scalar_ends import Peek, event_files, wanted
from tbnum.log.scalar_table import Table, read_table
from tbnum.log.schema import Event
from tbnum.log.tags import checked_mapping
from tbnum.log.tensors_reader import Histograms, Tensors

__all__ = ["SOURCE", "Peek", "ScalarRun", "missing_tag", "scalar_runs"]

SOURCE = "tensorboard"
"""`meta["source"]` of a run that was read from a scalar log."""

TAGS_LISTED = 30


def scalar_runs(
    folders: Mapping[str, Place],
    *,
    session: int | None = None,
    explain: Explain | None = None,
    find: Find | None = None,
    tags: Mapping[str, str] | None = None,
    run_type: type[ScalarRun] | None = None,
) -> dict[str, ScalarRun]:
    """The runs among folders with event files, by name: those whose loss or loss scale is recognised, or mapped.

    ValueError where `tags` has an unknown column, or a tag that none of the folders has.
    """
    mapping = checked_mapping(tags)
    peeks = {name: Peek(folder, mapping) for name, folder in folders.items()}
    seen = {name: peek.look() for name, peek in peeks.items()}
    there = frozenset().union(*(scalars.tags for scalars in seen.values()))
    if not there.issuperset(mapping.values()):  # perhaps between the ends: only a whole file shows it
        there = frozenset().union(*(_all_tags(peek) for peek in peeks.values()))
    for column, tag in mapping.items():
        if tag not in there:
            raise ValueError(missing_tag(column, tag, there))
    kind = run_type or ScalarRun
    return {
        name: kind(folders[name], name=name, session=session, explain=explain, find=find, peek=peeks[name])
        for name, scalars in seen.items()
        if scalars.recognised
    }


def _all_tags(peek: Peek) -> set[str]:
    run = ScalarRun(peek.folder, peek=peek)
    run.refresh()
    return run.scalar_tags


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
        find: Find | None = None,
        mapping: Mapping[str, str] | None = None,
        peek: Peek | None = None,
    ) -> None:
        super().__init__(folder, name=name, session=session, explain=explain, find=find)
        self._peek = peek or Peek(self.folder, mapping)
        self._mapping = self._peek.mapping
        self._event_files: list[EventFile] = []
        self._table = Table({}, [], {})

    def __repr__(self) -> str:
        return f"ScalarRun({self.name!r}, folder={str(self.folder)!r})"

    @property
    def steps(self) -> dict[str, np.ndarray]:
        """The columns that tags could be mapped to. Otherwise as `Run.steps`.

        `skipped` and `updates` (steps so far that were not skipped, unlogged ones too) only where the log shows it.
        Where a NaN was logged, `loss_logged` and `grad_norm_logged` distinguish it from a step that has none.
        """
        with self._loading():
            return Columns(self._table.columns)

    @property
    def raw_events(self) -> list[Event]:
        """What the scalars let one infer, in order of step."""
        with self._loading():
            return list(self._table.events)

    @property
    def meta(self) -> dict[str, Any]:
        """What follows from the tags, and is no setting that was recorded:

        - "source": "tensorboard"; "system": whose tags these are, None where nobody's in particular;
        - "tags": the tag of each column, several joined by " + " where it is their sum; "other_tags": the scalars that
          are no column;
        - "every": of how many steps one is logged; "numbering": the number of the first step, and how far apart two
          are; "x": what the log counts, "steps", "samples", "epochs" or "environment steps";
        - "sessions": the event files, oldest first.
        """
        with self._loading():
            return {"source": SOURCE, **self._table.meta, "dropped": {}, "ranks": {}}

    @property
    def scalar_tags(self) -> set[str]:
        """The tags of all scalars in the files that were read."""
        return {tag for file in self._event_files for tag in file.tags}

    @property
    def tensors(self) -> Tensors:
        """None: scalars say nothing about single tensors."""
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
        """As counted, once the run was read; before, what the ends of its files show: no counts and no best loss."""
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
            changed = self._find_files()
            for file in self._event_files:
                changed = file.refresh() or changed
            if changed or first_time:
                self._table = read_table(self._chosen_files(), self._mapping)
                self._version += 1
                self._derived.clear()
            return bool(self._event_files) if first_time else changed

    # -- inside

    def _find_files(self) -> bool:
        known = {file.path: file for file in self._event_files}
        paths = event_files(self.folder)
        self._event_files = [known.get(path) or EventFile(path, wanted(self._mapping)) for path in paths]
        return set(known) != set(paths)

    def _chosen_files(self) -> list[EventFile]:
        files = self._event_files
        if self._session is None:
            return files
        return [files[self._session]] if -len(files) <= self._session < len(files) else []

    def _counted(self) -> Totals:
        steps, count = self._table.columns, len(self._table.columns.get("step", ()))
        if not count:
            return Totals(sessions=len(self._event_files))
        losses, scales = (steps.get(name, np.empty(0)) for name in ("loss", "loss_scale"))
        losses, scales = losses[np.isfinite(losses)], scales[np.isfinite(scales)]
        skips = sum(int(event.data.get("at_least", 1)) for event in self._table.events if event.kind == "skip")
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
