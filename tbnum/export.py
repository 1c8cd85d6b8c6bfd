"""A run's steps and events as CSV, JSON, JSON lines and Parquet. Loads no torch.

Unknown and measured NaN stay apart: unknown is empty, null or missing; a NaN that was measured is `nan` or "NaN".
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from tbnum.explain.summary import step_count
from tbnum.log.reader import Run
from tbnum.log.schema import Event

__all__ = [
    "JSON_VERSION",
    "as_records",
    "write_events_csv",
    "write_events_json",
    "write_events_jsonl",
    "write_json",
    "write_steps_csv",
    "write_steps_json",
    "write_steps_jsonl",
    "write_steps_parquet",
]

JSON_VERSION = 1
"""Of the JSON that report, check and export write; raised when a key changes its meaning or goes."""


def _measured_nan(run: Run, name: str) -> np.ndarray:
    """Where a NaN of a column is a measured one: (S,) bool. Everywhere else it means unknown."""
    *prefix, column = name.split("/")
    nan = np.isnan(run.steps[name])
    if column == "loss" and "micro_batches" in run.steps:
        return nan & (run.steps["micro_batches"] >= 1)
    count = "/".join([*prefix, "nonfinite_tensors"])
    if column in ("grad_norm", "grad_norm_clipped") and count in run.steps:
        return nan & ~np.isnan(run.steps[count])
    return np.zeros_like(nan)


ROWS_AT_ONCE = 20_000  # as text in memory at once


def write_steps_csv(stream: IO[str], run: Run) -> None:
    """A row a step. Unknown is empty, a measured NaN is `nan`."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(run.steps)
    nan = {name: _measured_nan(run, name) for name, values in run.steps.items() if values.dtype.kind == "f"}
    for start in range(0, step_count(run), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        columns = []
        for name, values in run.steps.items():
            part = values[rows]
            if part.dtype.kind == "f":
                known = ~np.isnan(part) | nan[name][rows]
                columns.append(
                    [value if told else "" for value, told in zip(part.tolist(), known.tolist(), strict=True)]
                )
            else:
                columns.append(part.astype(np.int64).tolist())
        writer.writerows(zip(*columns, strict=True))


EVENT_FIELDS = tuple(field.name for field in dataclasses.fields(Event))


def write_events_csv(stream: IO[str], run: Run) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(EVENT_FIELDS)
    for event in run.events:
        record = {name: getattr(event, name) for name in EVENT_FIELDS}
        record["data"] = json.dumps(plain(event.data), ensure_ascii=False)
        writer.writerow(record.values())


def write_steps_json(stream: IO[str], run: Run) -> None:
    """Column by column. Unknown is null, a measured NaN the string "NaN"."""
    head = json.dumps(plain({"version": JSON_VERSION, "run": run.name, "meta": run.meta}), ensure_ascii=False)
    stream.write(head[:-1] + ', "columns": {')
    for index, (name, values) in enumerate(run.steps.items()):
        listed: list[Any] = values.tolist()
        if values.dtype.kind == "f":
            for row in np.flatnonzero(~np.isfinite(values)).tolist():
                listed[row] = plain(listed[row])
            for row in np.flatnonzero(np.isnan(values) & ~_measured_nan(run, name)).tolist():
                listed[row] = None
        stream.write(f"{', ' if index else ''}{json.dumps(name)}: {json.dumps(listed, allow_nan=False)}")
    stream.write("}}\n")


def write_events_json(stream: IO[str], run: Run) -> None:
    write_json(stream, {"version": JSON_VERSION, "run": run.name, "events": as_records(run.events)})


def as_records(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [{name: getattr(event, name) for name in EVENT_FIELDS} for event in events]


def write_json(stream: IO[str], value: Any) -> None:
    """Strict JSON: non-finite numbers as the strings "NaN", "Infinity", "-Infinity"."""
    stream.write(json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def write_events_jsonl(stream: IO[str], run: Run) -> None:
    for record in as_records(run.events):
        write_json(stream, record)


def write_steps_jsonl(stream: IO[str], run: Run) -> None:
    """A line a step. What is unknown at a step is left out; a measured NaN is the string "NaN"."""
    columns = run.steps
    nan = {name: _measured_nan(run, name) for name, values in columns.items() if values.dtype.kind == "f"}
    for start in range(0, step_count(run), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        listed = {name: values[rows].tolist() for name, values in columns.items()}
        known = {name: (~np.isnan(columns[name][rows]) | measured[rows]).tolist() for name, measured in nan.items()}
        for at in range(len(listed["step"])):
            row = {name: plain(values[at]) for name, values in listed.items() if name not in known or known[name][at]}
            stream.write(json.dumps(row) + "\n")


def write_steps_parquet(stream: IO[bytes], run: Run) -> None:
    """Unknown is null, a measured NaN is NaN. ImportError where pyarrow is not installed."""
    import pyarrow
    from pyarrow import parquet

    columns = {}
    for name, values in run.steps.items():
        unknown = np.isnan(values) & ~_measured_nan(run, name) if values.dtype.kind == "f" else None
        columns[name] = pyarrow.array(values, mask=unknown)
    parquet.write_table(pyarrow.table(columns), stream)
