"""A run of the table: what was read of it, and what is kept."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tbnum.log.files import Place
from tbnum.log.reader import Run, Totals
from tbnum.log.scalar_log import Peek, ScalarRun
from tensorboard_plugin_tbnum.cells import CellCache
from tensorboard_plugin_tbnum.coarse import Coarse
from tensorboard_plugin_tbnum.snapshots import Explained, Row

__all__ = ["Entry", "newest", "optimizers_of"]


class Entry:
    """A run of the table."""

    def __init__(self, name: str, folder: Place, peek: Peek | None) -> None:
        self.name = name
        self.folder = folder
        self.peek = peek  # None: the run has record files
        self.closed = self.run()  # for its totals, which load nothing; used by the scan alone
        self.totals: Totals | None = None
        self.counted: Totals | None = None  # of a scalar log, when it was last read
        self.lock = threading.Lock()  # of what follows
        self.opened: Run | None = None
        self.optimizers: tuple[str, ...] | None = None
        self.problems: int | None = None
        self.findings: Mapping[str, int] | None = None
        self.seed: Any = None
        self.setting: str | None = None
        self.explaining = threading.Lock()  # of the next one; whoever holds it may wait for `lock`, never the other way
        self.explained: Explained | None = None
        self.derived: dict[str, np.ndarray] = {}
        self.coarse = Coarse()
        self.derived_of = ""  # which version of the run both are of
        self.cells = CellCache()
        self.serial = ""
        self.checked = float("-inf")
        self.reading = False  # for the first time
        self.used = float("-inf")
        self.bytes = 0

    def run(self) -> Run:
        """The run as at first, nothing of it read."""
        if self.peek is not None:
            return ScalarRun(self.folder, name=self.name, peek=self.peek)
        return Run(self.folder, name=self.name)

    def row(self) -> Row:
        source = "tbnum" if self.peek is None else "tensorboard"
        opened = self.opened  # may be let go of meanwhile
        read = opened.steps_read if opened is not None and self.reading else None
        return Row(
            self.name, self.totals, self.optimizers, self.problems, self.findings, self.seed, self.setting, source, read
        )


def newest(counted: Totals | None, ends: Totals) -> Totals:
    """A scalar log is counted when it is read; its ends say how far it has come since then."""
    if counted is None:
        return ends
    if ends.last_step is None:
        return counted
    return replace(counted, last_step=ends.last_step, last_wall_time=ends.last_wall_time)


def optimizers_of(metas: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of the optimizers that the newest session recorded."""
    optimizers = metas[-1].get("optimizers") if metas else None
    return tuple(map(str, optimizers)) if isinstance(optimizers, (Mapping, list)) else ()
