"""A run's steps and events as CSV, JSON, JSON lines and Parquet. Loads no torch.

Unknown and measured NaN stay apart: unknown is empty, null or missing; a NaN that was measured is `nan` or "NaN".
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Protocol

import numpy as np

from tbnum.log.schema import Event, measured

__all__ = [
    "JSON_VERSION",
    "as_records",
    "events_csv",
    "events_json",
    "events_jsonl",
    "steps_csv",
    "steps_json",
    "steps_jsonl",
    "unknown",
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


def unknown(steps: Mapping[str, np.ndarray], name: str) -> np.ndarray | None:
    """Where a column's value is not known: (S,) bool. None: nowhere."""
    values = steps[name]
    if values.dtype.kind == "u":
        return np.asarray(values == 0)
    if values.dtype.kind != "f":
        return None
    nan = np.isnan(values)
    known = measured(name, steps)
    return nan if known is None else nan & ~known


ROWS_AT_ONCE = 20_000  # as text in memory at once


class Exported(Protocol):
    """The part of a `Run` that is exported."""

    @property
    def name(self) -> str: ...
    @property
    def steps(self) -> Mapping[str, np.ndarray]: ...
    @property
    def events(self) -> Sequence[Event]: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...


def _count(steps: Mapping[str, np.ndarray]) -> int:
    return len(steps.get("step", ()))  # a log that holds no step yet has no columns either


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def steps_csv(run: Exported) -> Iterator[str]:
    """A row a step, in pieces of ROWS_AT_ONCE rows. Unknown is empty, a measured NaN is `nan`."""
    steps = run.steps
    yield _csv([steps])
    absent_of = {name: unknown(steps, name) for name in steps}
    for start in range(0, _count(steps), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        columns = []
        for name, values in steps.items():
            part = values[rows]
            listed: list[Any] = (part.astype(np.int64) if part.dtype.kind == "b" else part).tolist()
            absent = absent_of[name]
            for row in () if absent is None else np.flatnonzero(absent[rows]).tolist():
                listed[row] = ""
            columns.append(listed)
        yield _csv(zip(*columns, strict=True))


def write_steps_csv(stream: IO[str], run: Exported) -> None:
    stream.writelines(steps_csv(run))


EVENT_FIELDS = tuple(field.name for field in dataclasses.fields(Event))


def events_csv(run: Exported) -> Iterator[str]:
    yield _csv([EVENT_FIELDS])
    for event in run.events:
        record = {name: getattr(event, name) for name in EVENT_FIELDS}
        record["data"] = json.dumps(plain(event.data), ensure_ascii=False)
        yield _csv([record.values()])


def write_events_csv(stream: IO[str], run: Exported) -> None:
    stream.writelines(events_csv(run))


def steps_json(run: Exported) -> Iterator[str]:
    """Column by column. Unknown is null, a measured NaN the string "NaN"."""
    steps = run.steps
    head = json.dumps(plain({"version": JSON_VERSION, "run": run.name, "meta": run.meta}), ensure_ascii=False)
    yield head[:-1] + ', "columns": {'
    for index, (name, values) in enumerate(steps.items()):
        absent_at = unknown(steps, name)
        yield f"{', ' if index else ''}{json.dumps(name)}: ["
        for start in range(0, len(values), ROWS_AT_ONCE):
            part = values[start : start + ROWS_AT_ONCE]
            listed: list[Any] = part.tolist()
            if absent_at is not None:
                absent = absent_at[start : start + ROWS_AT_ONCE]
                for row in np.flatnonzero(absent | ~np.isfinite(part)).tolist():
                    listed[row] = None if absent[row] else plain(listed[row])
            yield (", " if start else "") + json.dumps(listed, allow_nan=False)[1:-1]
        yield "]"
    yield "}}\n"


def write_steps_json(stream: IO[str], run: Exported) -> None:
    stream.writelines(steps_json(run))


def events_json(run: Exported) -> Iterator[str]:
    yield json_line({"version": JSON_VERSION, "run": run.name, "events": as_records(run.events)})


def write_events_json(stream: IO[str], run: Exported) -> None:
    stream.writelines(events_json(run))


def as_records(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [{name: getattr(event, name) for name in EVENT_FIELDS} for event in events]


def write_json(stream: IO[str], value: Any) -> None:
    """Strict JSON: non-finite numbers as the strings "NaN", "Infinity", "-Infinity"."""
    stream.write(json_line(value))


def json_line(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def events_jsonl(run: Exported) -> Iterator[str]:
    yield from map(json_line, as_records(run.events))


def write_events_jsonl(stream: IO[str], run: Exported) -> None:
    stream.writelines(events_jsonl(run))


def steps_jsonl(run: Exported) -> Iterator[str]:
    """A line a step. What is unknown at a step is left out; a measured NaN is the string "NaN"."""
    columns = run.steps
    absent = {name: where for name in columns if (where := unknown(columns, name)) is not None}
    for start in range(0, _count(columns), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        listed = {name: values[rows].tolist() for name, values in columns.items()}
        left_out = {name: where[rows].tolist() for name, where in absent.items()}
        for at in range(len(listed["step"])):
            known = (name for name in listed if name not in left_out or not left_out[name][at])
            row = {name: plain(listed[name][at]) for name in known}
            yield json.dumps(row) + "\n"


def write_steps_jsonl(stream: IO[str], run: Exported) -> None:
    stream.writelines(steps_jsonl(run))


def write_steps_parquet(stream: IO[bytes], run: Exported) -> None:
    """Unknown is null, a measured NaN is NaN. ImportError where pyarrow is not installed."""
    import pyarrow
    from pyarrow import parquet

    columns = {name: pyarrow.array(values, mask=unknown(run.steps, name)) for name, values in run.steps.items()}
    parquet.write_table(pyarrow.table(columns), stream)
