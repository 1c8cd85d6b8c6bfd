"""Runs as a data set of Parquet files: what an engine reads as one table, written as runs are added."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tbnum
from tbnum.cli import main
from tbnum.log.schema import step_columns
from tbnum.log.tensors import TensorTable
from tbnum.log.writer import LogWriter
from tests.recorded import META, START, append, record, skip

pyarrow = pytest.importorskip("pyarrow")
duckdb = pytest.importorskip("duckdb")


def export(capsys: pytest.CaptureFixture[str], logdir: Path, data: Path, *more: str) -> tuple[int, str, str]:
    code = main(["export", str(logdir), "--format", "parquet", "--dataset", str(data), *more])
    out, err = capsys.readouterr()
    return code, out, err


def asked(data: Path, question: str) -> list[tuple[Any, ...]]:
    """`question` has the names of tables in braces."""
    tables = {
        table: f"read_parquet('{data}/{table}/*/*/*.parquet', hive_partitioning = true, union_by_name = true)"
        for table in ("runs", "steps", "events", "findings", "tensors")
    }
    return duckdb.connect().execute(question.format(**tables)).fetchall()


def files(data: Path) -> dict[str, int]:
    return {str(path.relative_to(data)): path.stat().st_mtime_ns for path in data.rglob("*") if path.is_file()}


def test_unknown_is_null_and_a_measured_nan_is_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {3: {"loss": math.nan}, 4: {"loss": math.nan, "micro_batches": math.nan}, 5: {"loss": math.inf}}
    record(tmp_path / "logs" / "a", range(8), values, events=[skip(3)], config={"lr": 0.5}, seed=7)
    assert export(capsys, tmp_path / "logs", tmp_path / "data")[0] == 0
    losses = asked(tmp_path / "data", "SELECT step, loss FROM {steps} ORDER BY step")
    assert math.isnan(losses[3][1]) and losses[4][1] is None and losses[5][1] == math.inf and len(losses) == 8
    expected = tbnum.read(tmp_path / "logs")["a"]
    for column in ("grad_norm", "lr", "skipped", "wall_time"):
        rows = asked(tmp_path / "data", f"SELECT {column} FROM {{steps}} ORDER BY step")
        np.testing.assert_array_equal([row[0] for row in rows], expected.steps[column])
    ((run, rank, config, seed, steps),) = asked(tmp_path / "data", "SELECT run, rank, config, seed, steps FROM {runs}")
    assert (run, rank, json.loads(config), seed, steps) == ("a", 0, {"lr": 0.5}, "7", 8)
    ((kind, cause, data),) = asked(tmp_path / "data", "SELECT kind, cause, data FROM {events} WHERE kind = 'skip'")
    (event,) = [each for each in expected.events if each.kind == "skip"]
    assert (kind, cause) == ("skip", event.cause) and json.loads(data).keys() == event.data.keys()
    rules = asked(tmp_path / "data", "SELECT rule FROM {findings}")
    assert [rule for (rule,) in rules] == [finding.rule for finding in expected.findings]


def test_runs_of_different_columns_are_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "logs" / "one", range(5))
    log = LogWriter(tmp_path / "logs" / "two", columns=step_columns({"g": 1, "d": 2}), meta=META)
    append(log, range(7))
    log.close()
    LogWriter(tmp_path / "logs" / "none", columns=("step", "loss"), meta=META).close()
    assert export(capsys, tmp_path / "logs", tmp_path / "data")[0] == 0
    counts = asked(tmp_path / "data", "SELECT run, count(*), count(grad_norm) FROM {steps} GROUP BY run ORDER BY run")
    assert counts == [("one", 5, 5), ("two", 7, 0)]
    assert asked(tmp_path / "data", "SELECT run FROM {runs} ORDER BY run") == [("none",), ("one",), ("two",)]


@pytest.mark.parametrize("name", ["sub/run", "lr=0.1", "50%", "a b", "ümläut", "'quoted'"])
def test_a_run_keeps_its_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "logs" / name, range(3))
    record(tmp_path / "logs" / "other", range(3))
    assert export(capsys, tmp_path / "logs", tmp_path / "data")[0] == 0
    assert sorted(asked(tmp_path / "data", "SELECT DISTINCT run FROM {steps}")) == sorted([(name,), ("other",)])


def test_a_run_that_did_not_change_is_not_written_again_and_one_that_did_replaces_its_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, data = tmp_path / "logs", tmp_path / "data"
    record(logs / "a", range(5), events=[skip(2)])
    record(logs / "b", range(5))
    assert export(capsys, logs, data)[1].startswith("wrote 2 of 2 runs")
    before = files(data)
    assert export(capsys, logs, data)[1].startswith("wrote 0 of 2 runs")
    assert files(data) == before
    record(logs / "a", range(3, 9), first_step=3)  # resumed at step 3
    record(logs / "c", range(2))
    assert export(capsys, logs, data)[1].startswith("wrote 2 of 3 runs")
    counts = asked(data, "SELECT run, count(*), max(step) FROM {steps} GROUP BY run ORDER BY run")
    assert counts == [("a", 9, 8), ("b", 5, 4), ("c", 2, 1)]
    after = files(data)
    assert {path for path in before if after[path] == before[path]} == {path for path in before if "run=b" in path}
    assert not [path for path in after if "/." in path], "nothing half written is left"


def test_each_rank_has_its_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        meta = {**META, "start_time": START, "world_size": 3, "rank": rank}
        log = LogWriter(tmp_path / "logs" / "run", columns=step_columns({"optimizer": 1}), rank=rank, meta=meta)
        append(log, range(4), {2: {"loss": 100.0 + rank}})
        log.write_tensors(TensorTable(2, ("w", "b"), {"grad_norm": np.array([1.0, math.nan])}))
        log.close()
    assert export(capsys, tmp_path / "logs", tmp_path / "data")[0] == 0
    found = asked(tmp_path / "data", "SELECT rank, loss FROM {steps} WHERE step = 2 ORDER BY rank")
    assert found == [(0, 100.0), (1, 101.0), (2, 102.0)]
    found = asked(tmp_path / "data", "SELECT run, rank, step, tensor, grad_norm FROM {tensors} ORDER BY tensor")
    assert found == [("run", 0, 2, "b", None), ("run", 0, 2, "w", 1.0)]


def test_what_cannot_be_is_named_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "logs" / "a", range(5))
    data = tmp_path / "data"
    for more in (["--format", "csv"], ["--events"], ["-o", "x"], ["--reference", "x"], ["--run", "b"]):
        code, out, err = export(capsys, tmp_path / "logs", data, *more)
        assert (code, out) == (2, "") and err.startswith("tbnum: ") and err.count("\n") == 1, more
    code, _, err = export(capsys, tmp_path / "none", data)
    assert code == 2 and not data.exists()
    (tmp_path / "file").write_text("")
    code, _, err = export(capsys, tmp_path / "logs", tmp_path / "file")
    assert code == 2 and "cannot write" in err


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_a_run_that_is_the_folder_itself_is_called_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "gpt", range(3))
    assert export(capsys, tmp_path / "gpt", tmp_path / "data")[0] == 0
    assert asked(tmp_path / "data", "SELECT DISTINCT run FROM {steps}") == [("gpt",)]
