"""Runs as a partitioned data set of Parquet files, that DuckDB, Polars and Spark read as one table. Needs pyarrow.

    DIR/steps/run=lr-0.1/rank=0/part-0.parquet        a row a step
    DIR/events/...                                    a row an event, explained
    DIR/findings/...                                  a row a finding
    DIR/tensors/...                                   a row a tensor at each step that it was measured at
    DIR/runs/...                                      a row a run

Unknown is null; a NaN that was measured is NaN.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from tbnum._version import __version__
from tbnum.explain import findings
from tbnum.explain.totals import skipped_steps
from tbnum.export import JSON_VERSION, json_line, unknown
from tbnum.log.reader import Run
from tbnum.log.schema import BATCH_HASH, OPTIMIZER_COLUMNS, SHARED_COLUMNS, STEP_HASH, Event

__all__ = ["TABLES", "add_run", "is_new"]

TABLES = ("runs", "steps", "events", "findings", "tensors")
_PART = "part-0.parquet"
_STATE = b"tbnum"
_COLUMNS = {column.name: column.stored for column in (*SHARED_COLUMNS, *OPTIMIZER_COLUMNS, BATCH_HASH, STEP_HASH)}
"""Every run's part has these columns of steps, so that those of different runs are one table."""
_OF_TENSORS = ("grad_norm", "absmax", "param_norm", "update_norm", "nan", "inf", "zero")
_ROWS_AT_ONCE = 1 << 18  # of tensors in memory


def is_new(folder: str | os.PathLike[str], name: str, run: Run) -> bool:
    """Whether the data set does not have the run as it is now. A listing of its folder; nothing of it is read."""
    return _state_of(_place(Path(folder), "runs", name, 0)) != _state(run)


def add_run(folder: str | os.PathLike[str], name: str, run: Run) -> None:
    """Writes what a run has into its part of the data set, in place of what was there.

    Its steps take about 100 bytes each. A part is written beside its place and then moved there, so who reads the data
    set meanwhile finds the old part or the new one.

    Raises:
        ImportError: pyarrow is not installed.
        OSError: the folder cannot be written to.
    """
    folder, state = Path(folder), _state(run)
    ranks = run.ranks
    lowest = min(ranks.present, default=0) if ranks is not None else 0
    parts: dict[str, dict[int, Any]] = {table: {} for table in TABLES}
    parts["steps"][lowest] = _steps(run.steps)
    for rank in ranks.present if ranks is not None else ():
        if rank != lowest:
            assert ranks is not None
            parts["steps"][rank] = _steps(ranks.columns_of(rank))
    by_rank: dict[int, list[Event]] = {}
    for event in run.events:
        by_rank.setdefault(int(event.data.get("rank", lowest)), []).append(event)
    parts["events"] = {rank: _events(of_rank) for rank, of_rank in by_rank.items()}
    found = findings(run, run.events)
    if found:
        parts["findings"][lowest] = _findings(found)
    for table in ("steps", "events", "findings"):
        _replace(folder, table, name, parts[table])
    _replace_tensors(folder, name, lowest, run)
    _replace(folder, "runs", name, {0: _run(run, state)})


# -- tables


def _steps(steps: Mapping[str, np.ndarray]) -> Any:
    import pyarrow

    count = len(steps.get("step", ()))
    columns = {}
    for column in dict.fromkeys([*_COLUMNS, *steps]):
        values = steps.get(column)
        kind = pyarrow.from_numpy_dtype(np.dtype(_COLUMNS[column] if column in _COLUMNS else steps[column].dtype))
        kind = pyarrow.float64() if pyarrow.types.is_floating(kind) else kind
        if values is None:
            columns[column] = pyarrow.nulls(count, kind)
        else:
            columns[column] = pyarrow.array(values, mask=unknown(steps, column)).cast(kind)
    return pyarrow.table(columns)


def _events(events: Sequence[Event]) -> Any:
    import pyarrow

    schema = [("step", pyarrow.int64()), ("wall_time", pyarrow.float64())]
    schema += [
        (name, pyarrow.string())
        for name in ("kind", "severity", "optimizer", "cause", "message", "remedy", "data")  # data: JSON
    ]
    return pyarrow.Table.from_pylist(
        [
            {
                **{name: getattr(event, name) for name, _ in schema},
                "wall_time": float(event.wall_time),
                "data": json_line(event.data).rstrip(),
            }
            for event in events
        ],
        pyarrow.schema(schema),
    )


def _findings(found: Sequence[Any]) -> Any:
    import pyarrow

    text, step = pyarrow.string(), pyarrow.int64()
    names = ("rule", "severity", "title", "evidence", "remedy")
    schema = pyarrow.schema([(name, text) for name in names] + [("first_step", step), ("steps", pyarrow.list_(step))])
    return pyarrow.Table.from_pylist(
        [
            {
                **{name: getattr(finding, name) for name in names},
                "first_step": finding.steps[0] if finding.steps else None,
                "steps": list(finding.steps),
            }
            for finding in found
        ],
        schema,
    )


def _tensors(run: Run) -> Iterator[Any]:
    """In pieces: the steps, tensor after tensor."""
    import pyarrow

    tensors = getattr(run, "tensors", None)
    columns = [column for column in _OF_TENSORS if tensors is not None and column in tensors]
    if tensors is None or not columns:
        return
    every = tensors.steps_with(columns)
    step, count = 0, max(1, _ROWS_AT_ONCE // max(1, len(tensors.names_with(columns))))
    for step in range(0, len(every), count):
        some = every[step : step + count]
        steps, names, values = tensors.read_together(columns, int(some[0]), int(some[-1]))
        table = {
            "step": pyarrow.array(np.repeat(steps, len(names))),
            "tensor": pyarrow.array(np.tile(np.array(names, object), len(steps)), pyarrow.string()),
        }
        for column in _OF_TENSORS:
            flat = values[column].reshape(-1) if column in values else np.full(len(steps) * len(names), np.nan)
            table[column] = pyarrow.array(flat, pyarrow.float64(), mask=np.isnan(flat))
        yield pyarrow.table(table)


def _run(run: Run, state: str) -> Any:
    import pyarrow

    meta, totals = run.meta, run.steps
    step = totals.get("step", np.empty(0, np.int64))
    loss = totals.get("loss", np.empty(0))
    finite = loss[np.isfinite(loss)]
    row = {
        "steps": len(step),
        "skipped_steps": skipped_steps(run),
        "first_step": int(step[0]) if len(step) else None,
        "last_step": int(step[-1]) if len(step) else None,
        "best_loss": float(finite.min()) if len(finite) else None,
        "seed": str(meta["seed"]) if meta.get("seed") is not None else None,
        "ended": meta.get("ended"),
        "world_size": meta.get("world_size", 1),
        "config": json_line(meta.get("config") or {}).rstrip(),
        "versions": json_line(meta.get("versions") or {}).rstrip(),
    }
    whole = ("steps", "skipped_steps", "first_step", "last_step", "world_size")
    schema = pyarrow.schema(
        [
            (key, pyarrow.int64() if key in whole else pyarrow.float64() if key == "best_loss" else pyarrow.string())
            for key in row
        ],
        metadata={_STATE: state.encode()},
    )
    return pyarrow.Table.from_pylist([row], schema)


# -- files


def _place(folder: Path, table: str, name: str, rank: int) -> Path:
    """As Hive has it: what a folder's name cannot hold is percent-encoded."""
    return folder / table / f"run={quote(name, safe=' ')}" / f"rank={rank}" / _PART


def _replace(folder: Path, table: str, name: str, by_rank: Mapping[int, Any]) -> None:
    from pyarrow import parquet

    for rank, part in by_rank.items():
        place = _place(folder, table, name, rank)
        with _Beside(place) as beside:
            parquet.write_table(part, beside, compression="zstd")
    _forget_others(folder, table, name, by_rank)


def _replace_tensors(folder: Path, name: str, rank: int, run: Run) -> None:
    from pyarrow import parquet

    pieces = _tensors(run)
    first = next(pieces, None)
    if first is not None:
        place = _place(folder, "tensors", name, rank)
        with _Beside(place) as beside, parquet.ParquetWriter(beside, first.schema, compression="zstd") as writer:
            writer.write_table(first)
            for piece in pieces:
                writer.write_table(piece)
    _forget_others(folder, "tensors", name, [rank] if first is not None else [])


def _forget_others(folder: Path, table: str, name: str, ranks: Sequence[int] | Mapping[int, Any]) -> None:
    """Parts of ranks that the run does not have any more."""
    of_run = _place(folder, table, name, 0).parent.parent
    for part in list(of_run.glob("rank=*")) if of_run.is_dir() else []:
        if part.name not in {f"rank={rank}" for rank in ranks}:
            shutil.rmtree(part)
    if of_run.is_dir() and not any(of_run.iterdir()):
        of_run.rmdir()


class _Beside:
    """A file to write that takes its place when it is whole. Readers leave out names that begin with a dot."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._beside = place.with_name(f".{place.name}.{os.getpid()}")

    def __enter__(self) -> Path:
        self._place.parent.mkdir(parents=True, exist_ok=True)
        return self._beside

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            os.replace(self._beside, self._place)
        else:
            self._beside.unlink(missing_ok=True)


def _state(run: Run) -> str:
    """Changes whenever a file of the run does, and with tbnum's version, whose rules explain it."""
    files: list[tuple[str, int]] = []
    if isinstance(run.folder, Path):
        with os.scandir(run.folder) as entries:
            files = sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file())
    else:  # behind a URL
        files = [("steps", len(run.steps.get("step", ()))), ("events", len(run.raw_events))]
    return hashlib.sha256(json.dumps([__version__, JSON_VERSION, files]).encode()).hexdigest()


def _state_of(place: Path) -> str | None:
    """Of the part that is there."""
    from pyarrow import parquet

    try:
        metadata = parquet.read_schema(place).metadata or {}
    except (OSError, ValueError):  # none, or a damaged one
        return None
    state = metadata.get(_STATE)
    return None if state is None else bytes(state).decode(errors="replace")
