"""The log of a rank that does not record (`wrap(..., ranks=)`): it makes a file only for what no other rank can know.

That is the loss, where the recording ranks have none (a pipeline's is on its last rank), and a failure that began here:
a loss that is not finite, a part of the gradients that is not, an exception.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tbnum.caller import warn
from tbnum.log.batches import Batch
from tbnum.log.columns import StepColumn
from tbnum.log.schema import Event
from tbnum.log.tensors import HistogramTable, TensorTable
from tbnum.log.writer import LogWriter

__all__ = ["FAILURES", "LOSS", "PartLog"]

FAILURES, LOSS = "failures", "loss"
"""What a session of such a rank has, as `records` in its meta says it. One of a recording rank has no such key."""

MAX_EVENTS = 100  # of a run that fails at every step the first are enough
MAX_ROWS = 20_000  # that wait until it is known whether they are needed
_COLUMNS = frozenset({"step", "wall_time", "loss", "micro_batches", "loss_scale", "skipped"})
_ANSWERS = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # seconds between two looks for an answer
_PATIENCE_AT_END = 2.0


class PartLog:
    """Takes what a `LogWriter` takes. No method raises because of the disk."""

    def __init__(
        self,
        folder: Path,
        *,
        columns: Sequence[str],
        meta: Mapping[str, Any],
        rank: int | None,
        flush_seconds: float,
        loss_is_needed: Callable[[], bool | None] | None = None,
    ) -> None:
        """`loss_is_needed`: asked by a thread until it knows; None where this rank's never is."""
        self.columns = tuple(columns)
        self.dropped: dict[str, int] = {}
        self._folder, self._rank, self._flush_seconds = folder, rank, flush_seconds
        self._meta = dict(meta)
        self._log: LogWriter | None = None
        self._failed = self._closed = False
        self._events = 0
        self._lock = threading.RLock()
        self._rows: list[dict[str, Any]] = []
        self._ask = loss_is_needed
        self._takes_losses = False
        self._done = threading.Event()
        self._pid = os.getpid()  # in a forked child this does nothing
        self._thread: threading.Thread | None = None

    # -- what a LogWriter has

    def append_step(self, row: tuple[Any, ...]) -> None:
        """0.1 us, and 1 us where the loss may be needed."""
        if self._ask is None and not self._takes_losses:
            return
        values = {name: value for name, value in zip(self.columns, row, strict=True) if _is_kept(name)}
        with self._lock:
            if self._log is not None and self._takes_losses:
                self._log.append_step(tuple(values.values()))
            elif self._ask is not None and len(self._rows) < MAX_ROWS:
                self._rows.append(values)
                if self._thread is None and not math.isnan(values.get("loss", math.nan)):
                    self._thread = threading.Thread(target=self._wait_for_answer, name="tbnum-ranks", daemon=True)
                    self._thread.start()

    def append_steps(self, rows: Sequence[tuple[Any, ...]]) -> None:
        for row in rows:
            self.append_step(row)

    def set_columns(self, columns: Sequence[str]) -> None:
        with self._lock:
            self.columns = tuple(columns)
            if self._log is not None:
                self._log.set_columns(self._kept_columns())

    def write_event(self, event: Event) -> None:
        """Writes it where it is about what the recording ranks cannot know."""
        with self._lock:
            if self._closed or os.getpid() != self._pid or not _began_here(event, bool(self._meta.get("layouts"))):
                return
            self._events += 1
            if self._events > MAX_EVENTS and event.kind != "crash":
                return
            log = self._opened(FAILURES)
            if log is not None:
                log.write_event(event)

    def update_meta(self, **changes: Any) -> None:
        with self._lock:
            self._meta.update(changes)
            if self._log is not None:
                self._log.update_meta(**changes)

    def write_tensors(self, table: TensorTable) -> None: ...

    def write_histogram(self, table: HistogramTable) -> None: ...

    def write_batches(self, batches: Sequence[Batch]) -> None: ...

    def submit(self, call: Callable[[], None]) -> bool:
        return False

    def call_ahead(self, call: Callable[[], None]) -> None: ...

    def flush(self, timeout: float | None = 10.0) -> bool:
        with self._lock:
            return self._log is None or self._log.flush(timeout)

    def close(self, timeout: float | None = 10.0) -> None:
        """Where it is not known yet whether the loss is needed, waits for that, 2 s at the most."""
        if self._closed or os.getpid() != self._pid:
            return
        if self._thread is not None:
            for _ in range(int(_PATIENCE_AT_END / 0.05)):
                if self._ask is None or self._answered():
                    break
                self._done.wait(0.05)
        self._done.set()
        with self._lock:
            self._closed = True
            if self._log is not None:
                self._log.close(timeout)

    # -- inside

    def _kept_columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if _is_kept(name))

    def _opened(self, records: str) -> LogWriter | None:
        """The file, made with the first thing to write; None where that cannot be."""
        if self._log is None and not self._failed:
            meta = {**self._meta, "records": records}
            try:
                self._log = LogWriter(
                    self._folder,
                    columns=self._kept_columns(),
                    meta=meta,
                    rank=self._rank,
                    flush_seconds=self._flush_seconds,
                )
            except OSError as error:
                self._failed = True
                warn(f"rank {self._rank} could not write what it alone knows: {error}")
        return self._log

    def _wait_for_answer(self) -> None:
        for seconds in _ANSWERS:
            if self._done.wait(seconds) or self._answered():
                return
        self._ask = None
        self._rows.clear()

    def _answered(self) -> bool:
        """Whether it is known that the loss is needed, or that it is not; then the rows go out, or are forgotten."""
        with self._lock:
            if self._ask is None:
                return True
            needed = None
            with contextlib.suppress(Exception):
                needed = self._ask()
            if needed is None or self._closed:
                return False
            self._ask = None
            log = self._opened(LOSS) if needed else None
            if log is not None:
                self._takes_losses = True
                self._meta["records"] = LOSS
                log.update_meta(records=LOSS)
                log.append_steps(
                    [tuple(row.get(name, math.nan) for name in self._kept_columns()) for row in self._rows]
                )
            self._rows.clear()
            return True


def _is_kept(name: str) -> bool:
    column = StepColumn.parse(name)
    return column.name in _COLUMNS


def _began_here(event: Event, is_sharded: bool) -> bool:
    if event.kind == "crash":
        return True
    if event.kind not in ("skip", "nonfinite_step", "norm_overflow"):
        return False
    loss, measured = _number(event.data.get("loss")), _number(event.data.get("micro_batches"))
    if math.isinf(loss) or (math.isnan(loss) and measured >= 1):
        return True
    return is_sharded and _number(event.data.get("nonfinite_tensors")) > 0


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
