"""The routes of tensors and histograms, against the tables that were written."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tbnum.formats import BINS, INF, NAN, ZERO
from tbnum.log.tensors import HistogramTable, TensorTable
from tensorboard_plugin_tbnum import cells, runs, tables
from tests.recorded import append, open_log, record, row
from tests.routes import Panel

NAMES = ("wte.weight", "h.0.attn.weight", "h.0.mlp.weight", "h.1.attn.weight", "h.1.mlp.weight", "scale")
SHAPES = {name: [4, index + 1] for index, name in enumerate(NAMES)}
STEPS = range(0, 1000, 10)
SCALE = 1024.0


def values(step: int, name: str) -> float:
    return float(np.float32((NAMES.index(name) + 1) * (1 + (step // 10 * 7) % 13)))


def norms(step: int) -> np.ndarray:
    """One NaN that was measured, one infinity, and a tensor that has no gradient before step 500."""
    found = np.array([values(step, name) for name in NAMES])
    if step == 330:
        found[1] = math.nan
    if step == 340:
        found[2] = math.inf
    if step < 500:
        found[5] = math.nan
    return found


def table(step: int) -> TensorTable:
    grads, none = norms(step), np.zeros(len(NAMES))
    nan, inf = none.copy(), none.copy()
    if step == 330:
        nan[1] = 3
    if step == 340:
        inf[2] = 1
    columns = {
        "grad_norm": grads,
        "absmax": np.where(np.isfinite(grads), grads / 2, 1.0),
        "param_norm": np.full(len(NAMES), 8.0),
        "update_norm": np.array([values(step, name) for name in NAMES]) / 64,
        "nan": nan,
        "inf": inf,
        "underflow/float16": np.linspace(0, 0.5, len(NAMES)),
        "loss_scale": np.full(len(NAMES), SCALE),
    }
    return TensorTable(step, NAMES, columns)


def histogram(step: int, names: tuple[str, ...] = ("*",)) -> HistogramTable:
    counts = np.zeros((len(names), BINS), np.int64)
    counts[:, 100:110] = step + 1
    counts[:, [ZERO, INF, NAN]] = [5, 2, 3]
    return HistogramTable(step, names, "gradient", counts, np.full(len(names), 1e-9), np.full(len(names), math.nan))


@pytest.fixture(autouse=True)
def no_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """One scan at the start in place of a thread, and every request looks at the files."""
    monkeypatch.setattr(runs.RunTable, "start", runs.RunTable.scan)
    monkeypatch.setattr(runs, "FRESH_SECONDS", -1.0)


@pytest.fixture
def panel(tmp_path: Path) -> Panel:
    log = open_log(tmp_path / "gpt", parameters=SHAPES)
    for step in STEPS:
        log.append_step(row(log.columns, step, loss_scale=SCALE))
        log.write_tensors(table(step))
        if step % 100 == 0:
            log.write_histogram(histogram(step))
            log.write_histogram(histogram(step, NAMES[:2]))
    log.close()
    record(tmp_path / "plain")
    return Panel(tmp_path)


def heatmap(panel: Panel, **query: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The answer, with its cells as (rows, buckets)."""
    header, arrays = panel.binary("heatmap", run="gpt", **query)
    shape = len(header["rows"]), len(arrays["step"])
    for name in (header["reduce"], "nonfinite"):
        arrays[name] = arrays[name].reshape(shape)
    return header, arrays


def test_tensors_tells_what_there_is(panel: Panel) -> None:
    answer = panel.json("tensors", run="gpt")
    assert answer["names"] == list(NAMES) and answer["steps"] == len(STEPS)
    assert answer["columns"][:2] == ["grad_norm", "absmax"]
    assert {"update_ratio", "headroom/float16"} <= set(answer["columns"])
    assert answer["groups"] == {"1": ["wte", "h", ""], "2": ["wte", "h.0", "h.1", ""]}
    assert answer["sources"] == ["gradient"] and answer["optimizers"] == ["optimizer"]
    assert answer["histograms"] == {"gradient": ["*", *NAMES[:2]]}


def test_tensors_of_a_run_without_any_are_empty(panel: Panel) -> None:
    answer = panel.json("tensors", run="plain")
    assert answer.pop("version") and answer.pop("optimizers") == ["optimizer"]
    assert not any(answer.values())
    assert "none at all" in panel.refused(404, "heatmap", run="plain", column="grad_norm")
    assert "none at all" in panel.refused(404, "histogram", run="plain")


def test_the_cells_of_a_stretch_begin_and_end_with_whole_buckets(panel: Panel) -> None:
    header, arrays = heatmap(panel, column="grad_norm", buckets=6, from_=310, to=600)
    size = header["bucket_steps"]
    assert size > 1 and (header["from"], header["to"]) == (310 // size * size, 600 // size * size + size - 1)
    assert arrays["step"][0] >= 310 // size * size > 0 and arrays["step_last"][-1] <= header["to"]


def test_a_cell_has_the_greatest_finite_value_and_counts_what_is_not(panel: Panel) -> None:
    header, arrays = heatmap(panel, column="grad_norm", buckets=20)
    assert header["rows"] == list(NAMES) and header["rows_total"] == 6 and header["reduce"] == "max"
    assert header["bucket_steps"] == 64 and (header["first_step"], header["last_step"]) == (0, 990)
    assert header["steps"] == 100 and header["from"] == 0 and header["to"] == 1023
    for at, (first, last) in enumerate(zip(arrays["step"], arrays["step_last"], strict=True)):
        inside = [step for step in STEPS if first <= step <= last]
        assert inside and len({step // 64 for step in inside}) == 1
        written = np.array([norms(step) for step in inside])
        finite = np.where(np.isfinite(written), written, -math.inf).max(0)
        np.testing.assert_array_equal(arrays["max"][:, at], np.where(np.isinf(finite), math.nan, finite))
    (nan_at, inf_at) = 330 // 64, 340 // 64
    expected = np.zeros_like(arrays["nonfinite"])
    expected[1, nan_at] += 1
    expected[2, inf_at] += 1
    np.testing.assert_array_equal(arrays["nonfinite"], expected)  # the tensor without a gradient is no fault


def test_samples_that_fit_come_one_by_one(panel: Panel) -> None:
    header, arrays = heatmap(panel, column="update_ratio", from_=100, to=200)
    assert header["bucket_steps"] == 1 and arrays["step"].tolist() == list(range(100, 201, 10))
    np.testing.assert_array_equal(arrays["step"], arrays["step_last"])
    expected = [[values(step, name) / 64 / 8 for step in range(100, 201, 10)] for name in NAMES]
    np.testing.assert_allclose(arrays["max"], expected, rtol=1e-6)


def test_of_headroom_the_least_is_the_worst(panel: Panel) -> None:
    header, arrays = heatmap(panel, column="headroom/float16", buckets=20, name="wte.weight")
    assert header["reduce"] == "min" and "max" not in arrays
    first = [step for step in STEPS if step < 64]
    expected = min(math.log2(65504 / (norms(step)[0] / 2 * SCALE)) for step in first)
    assert arrays["min"][0, 0] == pytest.approx(expected, rel=1e-6)
    assert not arrays["nonfinite"].any()


def test_modules_are_as_if_their_tensors_were_one(panel: Panel) -> None:
    header, arrays = heatmap(panel, column="grad_norm", depth=2, from_=100, to=100)
    assert header["rows"] == ["wte", "h.0", "h.1", ""]
    of = dict(zip(NAMES, norms(100), strict=True))
    for name, found in zip(header["rows"], arrays["max"][:, 0], strict=True):
        members = [of[each] for each in NAMES if ".".join(each.split(".")[:-1][:2]) == name]
        known = [value for value in members if not math.isnan(value)]
        expected = math.sqrt(sum(value**2 for value in known)) if known else math.nan
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    _, arrays = heatmap(panel, column="grad_norm", depth=1, from_=330, to=340)
    np.testing.assert_array_equal(arrays["nonfinite"], [[0, 0], [1, 1], [0, 0]])
    _, arrays = heatmap(panel, column="update_ratio", depth=1, from_=100, to=100)
    sizes = [values(100, name) / 64 for name in NAMES[1:5]]
    assert arrays["max"][1, 0] == pytest.approx(math.hypot(*sizes) / math.hypot(8, 8, 8, 8))


@pytest.mark.parametrize("column", ["grad_norm", "underflow/float16", "headroom/float16", "update_ratio"])
def test_modules_are_the_same_whether_their_tensors_are_in_memory_or_not(panel: Panel, column: str) -> None:
    expected = heatmap(panel, column=column, depth=2)
    panel.plugin._runs._entries["gpt"].cells = cells.CellCache()
    heatmap(panel, column=column)
    found = heatmap(panel, column=column, depth=2)
    assert found[0] == expected[0]
    for name, array in expected[1].items():
        np.testing.assert_array_equal(found[1][name], array)


def test_shares_of_modules_are_weighed_and_404_where_sizes_are_unknown(panel: Panel, tmp_path: Path) -> None:
    _, arrays = heatmap(panel, column="underflow/float16", depth=2, from_=100, to=100)
    assert arrays["max"][1, 0] == pytest.approx((0.1 * 2 + 0.2 * 3) / 5, rel=0.01)
    log = open_log(tmp_path / "sizeless")
    log.write_tensors(table(0))
    log.close()
    panel.plugin._runs.scan()
    query = {"run": "sizeless", "column": "underflow/float16", "depth": 1}
    assert "does not have the size" in panel.refused(404, "heatmap", **query)
    assert "does not have the size" in panel.refused(
        404, "tensor", run="sizeless", name="h", depth=1, columns=query["column"]
    )


def test_of_too_many_rows_the_worst_stay_in_their_own_order(panel: Panel) -> None:
    header, arrays = heatmap(panel, column="grad_norm", rows=3)
    assert header["rows"] == ["h.0.attn.weight", "h.0.mlp.weight", "scale"] and header["rows_total"] == 6
    assert arrays["max"].shape == (3, 100)
    header, _ = heatmap(panel, column="headroom/float16", rows=1, from_=500)
    assert header["rows"] == ["scale"]
    header, _ = heatmap(panel, column="grad_norm", names="scale,h.1.mlp.weight", name="wte.weight")
    assert header["rows"] == ["wte.weight", "h.1.mlp.weight", "scale"]


def test_an_interval_outside_the_run_has_no_buckets(panel: Panel) -> None:
    header, arrays = heatmap(panel, column="grad_norm", from_=5000, to=6000)
    assert arrays["max"].shape == (6, 0) and header["from"] == 5000 and header["rows"] == list(NAMES)
    header, arrays = heatmap(panel, column="grad_norm", from_=5000, to=6000, rows=2)
    assert arrays["max"].shape == (2, 0)


@pytest.mark.parametrize("budget", [1, 96 << 20])
def test_what_does_not_fit_into_memory_is_answered_alike(
    panel: Panel, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    _, expected = heatmap(panel, column="grad_norm", buckets=20)
    _, line = panel.binary("tensor", run="gpt", name=NAMES[2], columns="grad_norm")
    panel.plugin._runs._entries["gpt"].cells = cells.CellCache(budget)
    monkeypatch.setattr(cells, "STRETCH_CELLS", 40)
    _, found = heatmap(panel, column="grad_norm", buckets=20)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    np.testing.assert_array_equal(
        panel.binary("tensor", run="gpt", name=NAMES[2], columns="grad_norm")[1]["grad_norm"], line["grad_norm"]
    )
    assert (panel.plugin._runs._entries["gpt"].cells.nbytes > 0) == (budget > 1)


def test_columns_loaded_together_are_as_those_read_one_by_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "mixed", parameters=SHAPES)
    for step in STEPS:
        log.write_tensors(table(step))
        recent = {"grad_norm": norms(step + 1)[:3]}
        log.write_tensors(TensorTable(step + 1, NAMES[:3], recent, reason="flight"))
        log.write_tensors(TensorTable(step + 2, ("extra",), {"activation_norm": np.array([float(step)])}))
    log.close()
    of = runs.RunTable([runs.Root(str(tmp_path))])
    of.scan()
    tensors = of.snapshot("mixed", tensors=True).tensors
    assert tensors is not None
    columns = ["grad_norm", "update_ratio", "headroom/float16", "activation_norm", "underflow/float16"]
    for depth in (None, 1):
        alone, together = cells.CellCache(), cells.CellCache()
        together.load(tensors, columns[:4] if depth else columns, depth)
        assert len(together._kept) == (4 if depth else 5)
        for column in columns[: len(together._kept)]:
            (expected,) = alone.stretches(tensors, column, depth=depth)
            (found,) = together.stretches(tensors, column, depth=depth)
            assert found.names == expected.names
            for field in ("steps", "values", "nonfinite"):
                np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))
    (norm,) = cells.CellCache().stretches(tensors, "activation_norm")
    assert norm.names == ("extra",) and norm.steps.tolist() == [step + 2 for step in STEPS]


def test_a_budget_keeps_the_columns_asked_for_last(panel: Panel) -> None:
    snapshot = panel.plugin._runs.snapshot("gpt", tensors=True)
    one = len(STEPS) * len(NAMES) * 5 + len(STEPS) * 8
    cache = cells.CellCache(2 * one)
    for column in ("grad_norm", "absmax", "grad_norm", "param_norm"):
        list(cache.stretches(snapshot.tensors, column))
    assert [column for column, _ in cache._kept] == ["grad_norm", "param_norm"] and cache.nbytes == 2 * one


def test_a_live_run_shows_new_samples_and_reads_only_them(
    panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "live", parameters=SHAPES)
    for step in range(0, 100, 10):
        log.write_tensors(table(step))
    append(log, range(100))
    panel.plugin._runs.scan()
    before = panel.get("heatmap", run="live", column="grad_norm")
    read: list[int] = []
    columns_at = cells.Tensors.read_together

    def watched(self: Any, columns: Any, first: int, last: int, **options: Any) -> Any:
        read.append(first)
        return columns_at(self, columns, first, last, **options)

    monkeypatch.setattr(cells.Tensors, "read_together", watched)
    log.write_tensors(table(100))
    append(log, range(100, 110))
    after = panel.get("heatmap", {"If-None-Match": before.headers["ETag"]}, run="live", column="grad_norm")
    assert after.status_code == 200 and read == [100]
    header, arrays = panel.binary("heatmap", run="live", column="grad_norm")
    assert header["last_step"] == 100 and read == [100]
    np.testing.assert_array_equal(arrays["max"].reshape(6, -1)[:5, -1], norms(100)[:5])
    log.close()
    # A later session takes steps again: what it supersedes is gone.
    later = open_log(tmp_path / "live", parameters=SHAPES, first_step=50)
    later.write_tensors(table(50))
    append(later, range(50, 60))
    header, arrays = panel.binary("heatmap", run="live", column="grad_norm")
    assert header["last_step"] == 50 and arrays["step"].tolist() == [0, 10, 20, 30, 40, 50]
    later.close()


def test_many_threads_read_a_growing_run_without_a_torn_view(panel: Panel, tmp_path: Path) -> None:
    log = open_log(tmp_path / "live", parameters=SHAPES)
    log.write_tensors(table(0))
    append(log, range(1))
    panel.plugin._runs.scan()
    failures: list[BaseException] = []
    done = threading.Event()

    def read(depth: int | None) -> None:
        while not done.is_set():
            try:
                snapshot = panel.plugin._runs.snapshot("live", tensors=True)
                header, arrays = tables.heatmap_impl(snapshot, "grad_norm", None, None, 4096, [], depth, 512)
                assert arrays["step"].tolist() == list(range(0, 10 * header["steps"], 10))
                if depth is None:
                    np.testing.assert_array_equal(arrays["max"][0], [norms(int(step))[0] for step in arrays["step"]])
            except BaseException as error:
                failures.append(error)
                return

    readers = [threading.Thread(target=read, args=(depth,)) for depth in (None, None, 1)]
    for reader in readers:
        reader.start()
    for step in range(10, 1500, 10):
        log.write_tensors(table(step))
        if step % 50 == 0:
            append(log, range(step - 49, step + 1))
    done.set()
    for reader in readers:
        reader.join(1200)
    assert not failures
    log.close()


def test_a_snapshot_outlives_the_file_that_it_was_taken_of(panel: Panel, tmp_path: Path) -> None:
    before = panel.plugin._runs.snapshot("gpt", tensors=True)
    (file,) = (tmp_path / "gpt").glob("*.tensors.tbnum")
    log = open_log(tmp_path / "other")
    log.write_tensors(TensorTable(0, ("x",), {"absmax": np.array([1.0])}))
    log.close()
    (other,) = (tmp_path / "other").glob("*.tensors.tbnum")
    file.write_bytes(other.read_bytes())
    after = panel.plugin._runs.snapshot("gpt", tensors=True)
    assert after.tensors is not None and after.tensors.names == ("x",)
    header, arrays = tables.heatmap_impl(before, "grad_norm", None, None, 512, [], None, 512)
    assert header["rows"] == list(NAMES) and np.isnan(arrays["max"]).all()
    header, arrays = tables.heatmap_impl(after, "absmax", None, None, 512, [], None, 512)
    assert arrays["max"].tolist() == [[1.0]]


def test_a_tensor_has_its_columns_at_full_resolution(panel: Panel, tmp_path: Path) -> None:
    header, arrays = panel.binary(
        "tensor", run="gpt", name=NAMES[1], columns="grad_norm,update_ratio", from_=300, to=350
    )
    assert arrays["step"].tolist() == [300, 310, 320, 330, 340, 350] and header["name"] == NAMES[1]
    assert list(arrays) == ["step", "grad_norm", "update_ratio"]
    assert all(array.dtype == np.float64 for array in arrays.values())
    np.testing.assert_array_equal(arrays["grad_norm"], [norms(step)[1] for step in range(300, 351, 10)])
    np.testing.assert_allclose(
        arrays["update_ratio"], [values(step, NAMES[1]) / 512 for step in range(300, 351, 10)], rtol=1e-6
    )
    _, arrays = panel.binary("tensor", run="gpt", name="h", columns="absmax", depth=1)
    assert arrays["absmax"][10] == max(values(100, name) / 2 for name in NAMES[1:5])
    # Columns of different tables stand at the steps of all of them.
    log = open_log(tmp_path / "two")
    log.write_tensors(TensorTable(0, ("a",), {"grad_norm": np.array([1.0])}))
    log.write_tensors(TensorTable(5, ("a", "b"), {"param_norm": np.array([2.0, 3.0])}))
    log.close()
    panel.plugin._runs.scan()
    _, arrays = panel.binary("tensor", run="two", name="a", columns="grad_norm,param_norm")
    np.testing.assert_array_equal(arrays["grad_norm"], [1, math.nan])
    np.testing.assert_array_equal(arrays["param_norm"], [math.nan, 2])
    _, arrays = panel.binary("tensor", run="two", name="b", columns="grad_norm,param_norm")
    np.testing.assert_array_equal(arrays["param_norm"], [3])


def test_a_histogram_is_the_nearest_at_or_before(panel: Panel) -> None:
    answer = panel.json("histogram", run="gpt", step=450)
    assert answer["step"] == 400 and answer["source"] == "gradient" and answer["name"] == "*"
    assert answer["counts"] == [[bin, 401] for bin in range(100, 110)]
    assert (answer["zero"], answer["inf"], answer["nan"]) == (5, 2, 3)
    assert answer["low"] == pytest.approx(1e-9) and answer["high"] is None and answer["loss_scale"] == SCALE
    assert answer["steps_available"] == [0, 900, 10]
    assert answer["edges"] == {"first_bin": 1, "last_bin": 255, "upper_exponent": -127}
    float16 = next(each for each in answer["formats"] if each["name"] == "float16")
    assert float16["max"] == 65504 and float16["flushes_to"] == 2.0**-25 and float16["overflows_from"] == 65520
    assert panel.json("histogram", run="gpt")["step"] == 900
    assert panel.json("histogram", run="gpt", step=-7)["step"] == 0
    assert panel.json("histogram", run="gpt", name=NAMES[1], step=100)["step"] == 100


def test_the_whole_model_of_several_optimizers_is_the_first_ones(panel: Panel, tmp_path: Path) -> None:
    log = open_log(tmp_path / "gan", groups={"gen": 1, "dis": 1})
    for name in ("gen/*", "dis/*"):
        log.write_histogram(histogram(0, (name,)))
    log.close()
    panel.plugin._runs.scan()
    assert panel.json("histogram", run="gan")["name"] == "gen/*"
    assert panel.json("histogram", run="gan", name="dis/*")["loss_scale"] is None


def test_a_ridge_has_shares_by_the_bins_number(panel: Panel) -> None:
    header, arrays = panel.binary("ridge", run="gpt", rows=4, to=850)
    assert arrays["step"].tolist() == [0, 200, 500, 800] or arrays["step"].tolist() == [0, 300, 500, 800]
    counts = arrays["counts"].reshape(4, header["bins"])
    assert header["bins"] == 256 and header["rows_total"] == 9
    for step, shares in zip(arrays["step"], counts, strict=True):
        total = 10 * (step + 1) + 10
        assert shares[ZERO] == pytest.approx(5 / total) and shares[105] == pytest.approx((step + 1) / total)
        assert shares.sum() == pytest.approx(1 - 5 / total)
    _, arrays = panel.binary("ridge", run="gpt", from_=901)
    assert len(arrays["step"]) == len(arrays["counts"]) == 0
    _, arrays = panel.binary("ridge", run="gpt", name=NAMES[0], rows=1)
    assert arrays["step"].tolist() == [0]


@pytest.mark.parametrize(
    ("route", "query", "code", "word"),
    [
        ("heatmap", {}, 400, "column is missing"),
        ("heatmap", {"column": "nope"}, 404, "'nope'"),
        ("heatmap", {"column": "grad_norm", "depth": 0}, 400, "depth=0"),
        ("heatmap", {"column": "grad_norm", "depth": "x"}, 400, "depth='x'"),
        ("heatmap", {"column": "grad_norm", "depth": 1, "name": "scale"}, 400, "cannot be combined"),
        ("heatmap", {"column": "grad_norm", "name": "nope"}, 404, "'nope'"),
        ("heatmap", {"column": "grad_norm", "buckets": 5000}, 400, "buckets=5000"),
        ("heatmap", {"column": "grad_norm", "rows": 0}, 400, "rows=0"),
        ("heatmap", {"column": "grad_norm", "rows": 4096, "buckets": 4096}, 400, "cells"),
        ("heatmap", {"column": "grad_norm", "from_": 5, "to": 4}, 400, "from=5"),
        ("tensor", {}, 400, "name is missing"),
        ("tensor", {"name": "scale"}, 400, "columns is missing"),
        ("tensor", {"name": "nope", "columns": "grad_norm"}, 404, "'nope'"),
        ("tensor", {"name": "scale", "columns": "grad_norm,nope"}, 404, "'nope'"),
        ("tensor", {"name": "scale", "columns": "grad_norm", "depth": 1}, 404, "'scale'"),
        ("histogram", {"source": "nope"}, 404, "'nope'"),
        ("histogram", {"name": "nope"}, 404, "'nope'"),
        ("histogram", {"step": "1.5"}, 400, "step='1.5'"),
        ("ridge", {"source": "update"}, 404, "there are gradient"),
        ("ridge", {"rows": 10_000}, 400, "rows=10000"),
    ],
)
def test_bad_questions_are_answered_with_the_reason(
    panel: Panel, route: str, query: dict[str, Any], code: int, word: str
) -> None:
    assert word in panel.refused(code, route, run="gpt", **query)


def test_a_file_of_tables_that_is_damaged_shows_what_is_sound(panel: Panel, tmp_path: Path) -> None:
    (file,) = (tmp_path / "gpt").glob("*.tensors.tbnum")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    header, _ = heatmap(panel, column="grad_norm")
    assert 90 <= header["steps"] < 100
    assert any("damaged" in problem for problem in panel.json("run", run="gpt")["problems"])


def test_worst_rows_have_non_finite_samples_first() -> None:
    grid = cells.Grid(np.array([[9], [1], [np.nan], [5]], np.float32), np.array([[0], [0], [2], [0]], np.uint32))
    assert tables._worst(grid, 2, low=False) == [0, 2]
    assert tables._worst(grid, 2, low=True) == [1, 2]
    assert tables._worst(grid, 3, low=False) == [0, 2, 3]


def test_three_hundred_tensors_at_two_thousand_steps_are_answered_quickly(tmp_path: Path) -> None:
    names = tuple(f"h.{index}.weight" for index in range(300))
    chance = np.random.default_rng(0)
    log = open_log(tmp_path / "large")
    for step in range(2_000):
        norms = chance.lognormal(-5, 1, len(names)).astype(np.float32)
        none = np.zeros(len(names))
        log.write_tensors(TensorTable(step, names, {"grad_norm": norms, "nan": none, "inf": none}))
        if step % 200 == 0:
            assert log.flush(600)
    log.close()
    table = runs.RunTable([runs.Root(str(tmp_path))])
    table.scan()

    def once() -> float:
        started = time.thread_time()  # of this thread alone: other people's load is not our business
        snapshot = table.snapshot("large", tensors=True)
        tables.heatmap_impl(snapshot, "grad_norm", None, None, 512, [], None, 512)
        return time.thread_time() - started

    assert once() < 0.25  # a fifth of 10,000 samples, for which there is half a second
    assert min(once() for _ in range(3)) < 0.05
