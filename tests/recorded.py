"""Record files for tests, written by the writer itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tbnum.formats import BINS
from tbnum.log.schema import Event, step_columns
from tbnum.log.tensors import HistogramTable, TensorTable
from tbnum.log.writer import LogWriter

START = 1_700_000_000.0

META: dict[str, Any] = {
    "first_step": 0,
    "optimizers": {"optimizer": {"class": "AdamW", "groups": [{"lr": 0.001}], "parameters": []}},
    "scaler": {"growth_interval": 2000, "growth_factor": 2.0, "backoff_factor": 0.5},
}


def open_log(folder: Path, *, groups: Mapping[str, int] | None = None, **meta: Any) -> LogWriter:
    columns = step_columns(groups or {"optimizer": 1})
    return LogWriter(folder, columns=columns, meta={**META, **meta})


def row(columns: Sequence[str], step: int, **values: Any) -> tuple[Any, ...]:
    """A step a tenth of a second long whose loss is its number; what is not given otherwise is unknown."""
    known: dict[str, Any] = {
        "step": step,
        "wall_time": START + step / 10,
        "loss": float(step),
        "micro_batches": 1.0,
        "loss_scale": 65536.0,
        "grad_norm": 1.0,
        "nonfinite_tensors": 0.0,
        "skipped": False,
        "lr": 1e-3,
        **values,
    }
    return tuple(known.get(name, False if name.endswith("skipped") else math.nan) for name in columns)


def append(log: LogWriter, steps: range, values: Mapping[int, Mapping[str, Any]] | None = None) -> None:
    """Appends `steps` to the log; `values` has what differs from `row`, by step. On disk when it returns."""
    for step in steps:
        log.append_step(row(log.columns, step, **(values or {}).get(step, {})))
        if step % 2_000 == 0:  # no training makes steps faster than a thread can write them; a loop like this may
            assert log.flush(600)
    assert log.flush(600)


def record(
    folder: Path,
    steps: range = range(10),
    values: Mapping[int, Mapping[str, Any]] | None = None,
    *,
    events: Sequence[Event] = (),
    tables: Sequence[TensorTable | HistogramTable] = (),
    **meta: Any,
) -> Path:
    """Writes a whole run into `folder`, which it returns."""
    log = open_log(folder, **meta)
    for event in events:
        log.write_event(event)
    for table in tables:
        if isinstance(table, TensorTable):
            log.write_tensors(table)
        else:
            log.write_histogram(table)
    append(log, steps, values)
    log.close()
    return folder


def tables_of(steps: Iterable[int], names: tuple[str, ...]) -> list[TensorTable | HistogramTable]:
    """Gradient norms that rise with the step and the tensor, and a histogram of the whole model."""
    made: list[TensorTable | HistogramTable] = []
    for step in steps:
        made.append(TensorTable(step, names, {"grad_norm": step + np.arange(1.0, len(names) + 1)}))
        counts = np.zeros((1, BINS), np.int64)
        counts[0, 100:110] = step + 1
        made.append(HistogramTable(step, ("*",), "gradient", counts, np.array([math.nan]), np.array([math.nan])))
    return made


def skip(step: int, **data: Any) -> Event:
    facts = {"loss": 2.0, "loss_scale": 65536.0, "new_scale": 32768.0, "grad_norm": math.inf, "nonfinite_tensors": 3}
    return Event(step, START + step / 10, "skip", optimizer="optimizer", data={**facts, "tensors": 8, **data})


def column(steps: range, name: str, values: Mapping[int, Mapping[str, Any]] | None = None) -> np.ndarray:
    """What `append` wrote into a column."""
    return np.array([row([name], step, **(values or {}).get(step, {}))[0] for step in steps])
