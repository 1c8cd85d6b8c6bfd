"""What is known of runs at a moment: a row of their table, and a snapshot of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tbnum.explain.finding import Finding
from tbnum.log.checksums import Checksums
from tbnum.log.ranks import Ranks
from tbnum.log.reader import Run, Totals
from tbnum.log.schema import Event
from tbnum.log.tensors_reader import Histograms, Tensors
from tensorboard_plugin_tbnum.cells import CellCache
from tensorboard_plugin_tbnum.coarse import Coarse

__all__ = ["Explained", "Listing", "Recorded", "Row", "Snapshot"]


@dataclass(frozen=True)
class Row:
    """A run in the table of runs. What is not known yet is None."""

    run: str
    totals: Totals | None = None
    optimizers: tuple[str, ...] | None = None
    """From the head of its files; None until they were looked at."""
    problems: int | None = None
    """None until the run was asked for: only its records say."""
    findings: Mapping[str, int] | None = None
    """How many of each severity. None until its findings were asked for."""
    seed: Any = None
    """As its first session recorded it; None where it did not."""
    setting: str | None = None
    """Equal for runs that differ in nothing but the seed; None until the head of its files was looked at."""
    source: str = "tbnum"
    """"tensorboard" where the run was read from a scalar log: what it says of skips is inferred."""
    steps_read: int | None = None
    """How many of its steps were read so far, while they are read for the first time; None at all other times."""


@dataclass(frozen=True)
class Listing:
    """The table of runs as last looked at, in order of name."""

    ready: bool
    """Whether every folder was looked through at least once."""
    logdir: str
    rows: Sequence[Row]
    errors: Mapping[str, str]
    """Reasons why something could not be read, by run or folder."""


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment. Nothing in it changes when the run goes on."""

    run: str
    version: str
    """Changes whenever the run does."""
    steps: Mapping[str, np.ndarray]
    """Columns by name, each (S,). `step` and `wall_time` are always there."""
    meta: Mapping[str, Any]
    problems: Sequence[str]
    events: Sequence[Event]
    """Explained. Empty unless asked for."""
    findings: Sequence[Finding] = ()
    """Empty unless asked for."""
    events_version: str = ""
    """Changes whenever events or findings do; they may be those of a moment before `version`."""
    tensors: Tensors | None = None
    """None unless asked for."""
    histograms: Histograms | None = None
    """As `tensors`."""
    cells: CellCache = field(default_factory=CellCache)
    """What is kept in memory of `tensors`."""
    ranks: Ranks | None = None
    """What its ranks recorded, where there are several. None unless asked for."""
    checksums: Checksums = field(default_factory=Checksums)
    """Of the bits of tensors, by what they are of. Empty unless asked for."""
    derived: dict[str, np.ndarray] = field(default_factory=dict)
    """Columns that were worked out from `steps`, for the next question."""
    coarse: Coarse = field(default_factory=Coarse)
    """Columns in small buckets, for the next view of many steps."""

    @property
    def name(self) -> str:
        return self.run

    @property
    def raw_events(self) -> Sequence[Event]:
        """As rules read a record."""
        return self.events


@dataclass(frozen=True)
class Recorded:
    """What rules explain: a run at one moment. Its tables of tensors are opened when a rule asks for them."""

    name: str
    steps: Mapping[str, np.ndarray]
    raw_events: Sequence[Event]
    meta: Mapping[str, Any]
    _run: Run

    @property
    def tensors(self) -> Tensors:
        return self._run.tensors

    @property
    def histograms(self) -> Histograms:
        return self._run.histograms

    @property
    def ranks(self) -> Ranks | None:
        return self._run.ranks


@dataclass(frozen=True)
class Explained:
    """What the rules said of a run."""

    version: str
    record: Recorded
    events: Sequence[Event]
    problems: Sequence[str]
    until: float
    """So long it may stand though the run went on."""
    findings: Sequence[Finding] | None = None
    """None until asked for."""
