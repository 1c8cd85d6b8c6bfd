"""Columns that came with format 2: through the writer, the reader and every export."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tbnum import export
from tbnum.log.reader import Run
from tbnum.log.schema import measured, step_columns
from tbnum.log.writer import LogWriter

COLUMNS = step_columns({"a": 2, "b": 1}, terms=["kl"], own_losses=True, hashed=True)
HASHES = [2**64 - 1, 0, 2**53 + 1]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    log = LogWriter(tmp_path, columns=COLUMNS, meta={})
    for step, of_step in enumerate(HASHES):
        values = {"step": step, "loss": 1.0, "loss/kl": 0.5, "b/loss": 0.25, "step_hash": of_step, "skipped": False}
        log.append_step(tuple(values.get(name, math.nan) for name in COLUMNS))
    log.close()
    return Run(tmp_path)


def test_the_order_of_columns_is_that_of_format_1_with_new_ones_behind() -> None:
    assert COLUMNS[:-4] == step_columns({"a": 2, "b": 1})
    assert COLUMNS[-4:] == ("loss/kl", "a/loss", "b/loss", "step_hash")
    assert step_columns({"only": 1}, own_losses=True) == step_columns({"only": 1})


def test_a_hash_comes_back_to_the_last_bit(run: Run) -> None:
    assert run.steps["step_hash"].dtype == np.uint64
    assert run.steps["step_hash"].tolist() == HASHES
    assert run.steps["loss/kl"].tolist() == [0.5] * 3 and np.isnan(run.steps["a/loss"]).all()


def test_where_a_log_has_no_hash_it_is_0(tmp_path: Path) -> None:
    log = LogWriter(tmp_path, columns=("step", "loss"), meta={})
    log.append_step((0, 1.0))
    log.set_columns(("step", "loss", "step_hash"))
    log.append_steps([(1, 1.0, 7), (2, 1.0, None)])
    log.close()
    assert Run(tmp_path).steps["step_hash"].tolist() == [0, 7, 0]


def test_a_norm_of_finite_gradients_that_is_nan_is_unknown() -> None:
    """As where they were written by hand between two looks; NaN was measured only where a gradient is not finite."""
    columns = {"grad_norm": np.full(4, math.nan), "grad_norm_clipped": np.full(4, math.nan)}
    columns |= {"nonfinite_tensors": np.array([0, 1, math.nan, 2]), "skipped": np.array([False, False, False, True])}
    assert measured("grad_norm", columns).tolist() == [False, True, False, True]
    assert measured("grad_norm_clipped", columns).tolist() == [True, True, False, False]
    assert export.unknown(columns, "grad_norm").tolist() == [True, False, True, False]


def test_exports_have_the_whole_number_and_none_where_it_is_unknown(run: Run) -> None:
    csv = [line.split(",") for line in "".join(export.steps_csv(run)).splitlines()]
    assert [line[csv[0].index("step_hash")] for line in csv[1:]] == ["18446744073709551615", "", "9007199254740993"]
    assert [line[csv[0].index("skipped")] for line in csv[1:]] == ["0", "0", "0"]
    columns = json.loads("".join(export.steps_json(run)))["columns"]
    assert columns["step_hash"] == [HASHES[0], None, HASHES[2]] and columns["a/loss"] == [None] * 3
    lines = [json.loads(line) for line in export.steps_jsonl(run)]
    assert [line.get("step_hash") for line in lines] == [HASHES[0], None, HASHES[2]]
    parquet = pytest.importorskip("pyarrow.parquet")
    stream = io.BytesIO()
    export.write_steps_parquet(stream, run)
    assert parquet.read_table(stream)["step_hash"].to_pylist() == [HASHES[0], None, HASHES[2]]
