"""The second file of a session: tables of tensors and histograms, from the call that takes them to `run.tensors`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tbnum.formats import BINS, INF, NAN, ZERO
from tbnum.log import tensors as tensors_module
from tbnum.log.reader import Run
from tbnum.log.record_file import RecordTail, decode, encode, frame
from tbnum.log.schema import (
    HISTOGRAM_SOURCES,
    REPEAT_EVERY_BYTES,
    TABLE_REASONS,
    TAG_HISTOGRAMS,
    TAG_NAMES,
    TAG_SESSION,
    TAG_TABLE_COLUMNS,
    TAG_TENSORS,
    step_columns,
)
from tbnum.log.tensors import HistogramTable, TensorTable
from tbnum.log.writer import LogWriter
from tests.recorded import append, row, skip

COLUMNS = step_columns({"optimizer": 1})
NAMES = ("first.weight", "first.bias", "second.weight")

FUZZ = 2000 if os.environ.get("TBNUM_FUZZ") else 100


def open_log(folder: Path, first_step: int = 0, **options: Any) -> LogWriter:
    return LogWriter(folder, columns=COLUMNS, meta={"first_step": first_step}, flush_seconds=1e6, **options)


def table(step: int, names: tuple[str, ...] = NAMES, reason: str = "interval", salt: int = 0) -> TensorTable:
    """Values that float32 holds, the same for the same step and salt."""
    chance = np.random.default_rng([step, salt])
    norms = chance.lognormal(-5, 2, len(names)).astype(np.float32)
    columns = {"grad_norm": norms.astype(np.float64)}
    if reason == "interval":
        columns["zero"] = chance.integers(0, 1000, len(names))
        columns["underflow/float16"] = np.round(chance.random(len(names)) * 64) / 64
    return TensorTable(step, names, columns, None, reason)


def histograms(step: int, names: tuple[str, ...] = NAMES, source: str = "gradient", salt: int = 0) -> HistogramTable:
    chance = np.random.default_rng([step, salt, HISTOGRAM_SOURCES.index(source)])
    counts = np.zeros((len(names), BINS), np.int64)
    counts[:, 100:120] = chance.integers(0, 100_000, (len(names), 20))
    counts[:, [ZERO, INF, NAN]] = chance.integers(0, 3, (len(names), 3))
    unknown = np.full(len(names), math.nan)
    return HistogramTable(step, names, source, counts, unknown, chance.random(len(names)).astype(np.float32))


def write(
    folder: Path, *tables: TensorTable | HistogramTable, first_step: int = 0, steps: range = range(0)
) -> LogWriter:
    log = open_log(folder, first_step)
    append(log, steps)
    give(log, *tables)
    log.close()
    assert log.dropped == {}
    return log


def give(log: LogWriter, *tables: TensorTable | HistogramTable) -> None:
    for each in tables:
        if isinstance(each, TensorTable):
            log.write_tensors(each)
        else:
            log.write_histogram(each)


def assert_series(run: Run, column: str, expected: list[TensorTable]) -> None:
    """`run.tensors[column]` is what `expected` holds, tables of increasing steps."""
    steps, names, values = series = run.tensors[column]
    assert steps.tolist() == [each.step for each in expected]
    assert series.reasons.tolist() == [each.reason for each in expected]
    wanted = np.full((len(expected), len(names)), math.nan)
    place = {name: at for at, name in enumerate(names)}
    for at, each in enumerate(expected):
        wanted[at, [place[name] for name in each.names]] = each.columns[column]
    np.testing.assert_array_equal(values, wanted)
    assert values.dtype == np.float64 and steps.dtype == np.int64


def assert_same(found: HistogramTable, expected: HistogramTable) -> None:
    assert (found.step, found.names, found.source) == (expected.step, expected.names, expected.source)
    for field in ("counts", "low", "high"):
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field), field)


def tags(path: Path) -> list[str]:
    found = [decode(each.data) for each in RecordTail(path).read()]
    return [each.tag for each in found if each is not None]


# -- values


def test_tables_are_read_as_they_were_written(tmp_path: Path) -> None:
    given = [table(step) for step in range(0, 1000, 50)]
    write(tmp_path, *given)
    run = Run(tmp_path)
    for column in ("grad_norm", "zero", "underflow/float16"):
        assert_series(run, column, given)
    assert list(run.tensors) == ["grad_norm", "zero", "underflow/float16"]
    assert run.tensor_names == NAMES
    assert run.problems == []


VALUES = [
    [0.0, -0.0, math.nan, math.inf, -math.inf],
    [1e-45, 1e-40, 1e-300, 1e300, 3.4e38],
    [0.1, 1 / 3, math.pi, -1e-10, 1e10],
    [0, 1, 255, 256, 65535],
    [0, 2**24 + 1, 2**32 - 1, 2**32, 2**53],
    [math.nan] * 5,
    [7.0] * 5,
    [-1, -5, 3, 0, 2**40],
]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        *((each, dtype) for each in VALUES for dtype in (np.float64, np.float32)),
        *((each, np.int64) for each in VALUES if np.isfinite(each).all() and max(each) < 2**60),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_values_keep_float32s_precision_and_whole_numbers_all_of_it(
    tmp_path: Path, values: list[float], dtype: type
) -> None:
    given = np.array(values).astype(dtype)
    write(tmp_path, TensorTable(0, tuple("abcde"), {"grad_norm": given}))
    found = Run(tmp_path).tensors["grad_norm"].values[0]
    wanted = given.astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-24, atol=0)
    exact = (np.floor(wanted) == wanted).all() or dtype is np.float32
    if exact:
        np.testing.assert_array_equal(found, wanted)


def test_shares_keep_a_relative_error_below_four_thousandths_and_their_ends(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    shares = np.concatenate(
        [[0.0, 1.0, math.nan, 1e-30, 5e-324, 1 - 1e-9, 1 - 2**-53, 0.5], 10 ** -(chance.random(1000) * 12)]
    )
    names = tuple(map(str, range(len(shares))))
    write(tmp_path, TensorTable(0, names, {"underflow/float16": shares, "overflow/float16": 1 - shares}))
    run = Run(tmp_path)
    for column, given in (("underflow/float16", shares), ("overflow/float16", 1 - shares)):
        found = run.tensors[column].values[0]
        for end in (0.0, 1.0):
            np.testing.assert_array_equal(found == end, given == end)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(given))
        large = given > 1e-38
        assert (abs(found[large] / given[large] - 1) <= 0.004).all()


def test_tables_are_packed_where_numpy_raises_what_rounding_does() -> None:
    values = np.array([5e-324, 1e-300, math.nan, 1.0])
    columns = {"underflow/float16": values, "grad_norm": values.astype(np.float32), "absmax": 1e300 * values}
    names = tuple(map(str, range(len(values))))
    expected = tensors_module.encode_tables(TensorTable(0, names, columns))
    with np.errstate(all="raise"):
        assert tensors_module.encode_tables(TensorTable(0, names, columns)) == expected


def test_histograms_are_read_as_they_were_written(tmp_path: Path) -> None:
    given = [histograms(step, source=source) for step in (0, 1000) for source in HISTOGRAM_SOURCES]
    write(tmp_path, *given)
    run = Run(tmp_path)
    assert list(run.histograms) == list(HISTOGRAM_SOURCES)
    for each in given:
        series = run.histograms[each.source]
        assert series.steps.tolist() == [0, 1000] and series.names == NAMES
        found = series.at(each.step)
        assert_same(found, each)
        assert found.zero.tolist() == each.counts[:, 0].tolist()
        assert found.inf.tolist() == each.counts[:, 256].tolist()
        assert found.nan.tolist() == each.counts[:, 257].tolist()
        assert_same(found.row("first.bias"), dataclasses.replace(found, **rows(found, 1)))
    assert run.problems == []


def rows(found: HistogramTable, at: int) -> dict[str, Any]:
    part = slice(at, at + 1)
    return {"names": found.names[part], **{key: getattr(found, key)[part] for key in ("counts", "low", "high")}}


@pytest.mark.parametrize("fill", [0, 1, 2**40])
def test_histograms_of_nothing_and_of_very_much_are_exact(tmp_path: Path, fill: int) -> None:
    counts = np.full((2, BINS), fill, np.int64)
    counts[1] = 0
    given = HistogramTable(3, ("a", "b"), "update", counts, np.full(2, 1e-300), np.full(2, 1e300))
    write(tmp_path, given)
    assert_same(Run(tmp_path).histograms["update"].at(3), given)


def test_the_whole_model_and_single_tensors_of_a_step_come_together(tmp_path: Path) -> None:
    whole = [histograms(step, ("*",)) for step in (0, 50, 100)]
    single = [histograms(step) for step in (0, 100)]
    write(tmp_path, whole[0], single[0], whole[1], whole[2], single[1])
    series = Run(tmp_path).histograms["gradient"]
    assert series.steps.tolist() == [0, 50, 100]
    assert series.steps_of().tolist() == [0, 50, 100] and series.steps_of("first.bias").tolist() == [0, 100]
    assert series.at(100).names == ("*", *NAMES)
    assert_same(series.at(50), whole[1])
    assert_same(series.at(0).row("*"), whole[0])
    assert_same(series.at(0).row("first.bias"), dataclasses.replace(single[0], **rows(single[0], 1)))
    steps, counts = series.read("second.weight")
    assert steps.tolist() == [0, 100]
    np.testing.assert_array_equal(counts, [each.counts[2] for each in single])
    steps, counts = series.read(first_step=1, last_step=50)
    assert steps.tolist() == [50] and counts.tolist() == [whole[1].counts[0].tolist()]
    with pytest.raises(KeyError, match="at step 7"):
        series.at(7)
    with pytest.raises(KeyError, match="no tensor 'nope'"):
        series.read("nope")


# -- putting tables together


def test_interval_history_and_failure_come_together_each_step_once_and_the_latest_wins(tmp_path: Path) -> None:
    regular = [table(step) for step in (0, 50, 100)]
    recent = [table(step, reason="flight", salt=1) for step in range(90, 111)]
    failure = table(110, reason="failure", salt=2)
    write(tmp_path, *regular, *recent, failure)
    run = Run(tmp_path)
    assert_series(run, "grad_norm", [*regular[:2], *recent[:-1], failure])
    assert_series(run, "zero", regular)


def test_names_are_united_and_unknown_where_a_tensor_was_not_there(tmp_path: Path) -> None:
    given = [table(0), table(1, (*NAMES, "lora.weight")), table(2, NAMES[:1])]
    write(tmp_path, *given)
    run = Run(tmp_path)
    assert run.tensors["grad_norm"].names == (*NAMES, "lora.weight")
    assert_series(run, "grad_norm", given)
    _, names, values = run.tensors.read("grad_norm", names=["lora.weight", "first.weight"])
    assert names == ("lora.weight", "first.weight") and values.shape == (3, 2)
    np.testing.assert_array_equal(values[:, 1], [each.columns["grad_norm"][0] for each in given])
    np.testing.assert_array_equal(np.isnan(values[:, 0]), [True, False, True])


def test_several_optimizers_share_a_step(tmp_path: Path) -> None:
    generator = dataclasses.replace(table(0, ("g",)), optimizer="generator")
    critic = dataclasses.replace(table(0, ("c",), salt=1), optimizer="critic")
    write(tmp_path, generator, critic)
    steps, names, values = Run(tmp_path).tensors["grad_norm"]
    assert (steps.tolist(), names) == ([0], ("g", "c"))
    assert values.tolist() == [[generator.columns["grad_norm"][0], critic.columns["grad_norm"][0]]]


def test_columns_of_different_tables_have_their_own_tensors(tmp_path: Path) -> None:
    modules = TensorTable(0, ("block", "head"), {"activation/absmax": np.array([1.5, 2.5])})
    write(tmp_path, table(0), modules)
    run = Run(tmp_path)
    assert run.tensors["activation/absmax"].names == ("block", "head")
    assert run.tensors["grad_norm"].names == NAMES
    assert run.tensor_names == (*NAMES, "block", "head")


def test_a_range_of_steps_reads_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [table(step) for step in range(100)]
    write(tmp_path, *given)
    tensors = Run(tmp_path).tensors
    decoded: list[int] = []
    stored_at = tensors_module.stored_at

    def watched(payload: bytes, columns: int, at: list[int], rows: int) -> list[tuple[int, bytes]]:
        decoded.append(tensors_module.head_of(payload).step)
        return stored_at(payload, columns, at, rows)

    monkeypatch.setattr("tbnum.log.tensors_reader.stored_at", watched)
    assert tensors.read("grad_norm", 10, 12).steps.tolist() == [10, 11, 12]
    assert tensors.read("grad_norm", 98).steps.tolist() == [98, 99]
    assert tensors.read("grad_norm", last_step=0).steps.tolist() == [0]
    assert tensors.read("grad_norm", 500).values.shape == (0, 3)
    assert decoded == [10, 11, 12, 98, 99, 0]


def test_what_is_not_there_is_a_key_error_that_says_what_is(tmp_path: Path) -> None:
    write(tmp_path, table(0), histograms(0))
    run = Run(tmp_path)
    with pytest.raises(KeyError, match="no tensor has a 'loss'; columns are grad_norm, zero"):
        run.tensors["loss"]
    with pytest.raises(KeyError, match="no tensor 'nope' has a 'grad_norm'"):
        run.tensors.read("grad_norm", names=["nope"])
    with pytest.raises(KeyError, match="those of gradient"):
        run.histograms["parameter"]
    assert "loss" not in run.tensors and "grad_norm" in run.tensors and len(run.tensors) == 3


def test_a_run_without_tables_has_none(tmp_path: Path) -> None:
    log = write(tmp_path, steps=range(3))
    run = Run(tmp_path)
    assert list(run.tensors) == [] and list(run.histograms) == [] and run.tensor_names == ()
    assert run.problems == []
    assert not log.tensors_path.exists()


# -- superseded steps


def test_a_later_session_supersedes_from_its_first_step_on(tmp_path: Path) -> None:
    first = [table(step) for step in range(0, 200, 10)]
    second = [table(step, salt=1) for step in range(120, 300, 10)]
    write(tmp_path, *first, *(histograms(step) for step in (0, 100, 150)), steps=range(200))
    write(tmp_path, *second, histograms(200), first_step=115, steps=range(115, 300))
    run = Run(tmp_path)
    assert_series(run, "grad_norm", [*first[:12], *second])
    assert run.histograms["gradient"].steps.tolist() == [0, 100, 200]
    assert_series(Run(tmp_path, session=0), "grad_norm", first)
    assert_series(Run(tmp_path, session=1), "grad_norm", second)


def test_a_later_session_that_only_took_steps_supersedes_too(tmp_path: Path) -> None:
    first = [table(step) for step in range(0, 200, 10)]
    write(tmp_path, *first, steps=range(200))
    write(tmp_path, first_step=100, steps=range(100, 105))
    assert_series(Run(tmp_path), "grad_norm", first[:10])


def test_a_session_that_goes_back_supersedes_its_own_tables(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    before = [table(step) for step in range(0, 200, 10)]
    append(log, range(200))
    give(log, *before)
    log.update_meta(first_step=75)
    run = Run(tmp_path)
    log.flush()
    assert_series(run, "grad_norm", before)  # nothing was taken again so far
    append(log, range(75, 80))
    assert run.refresh()
    assert_series(run, "grad_norm", before[:8])
    after = [table(step, salt=1) for step in range(80, 120, 10)]
    give(log, *after)
    log.flush()
    assert run.refresh()
    assert_series(run, "grad_norm", [*before[:8], *after])
    log.close()


def test_of_a_step_that_has_a_table_twice_the_later_one_counts(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    give(log, table(0), table(10), table(20))
    log.update_meta(first_step=5)
    give(log, table(10, salt=1))  # it went back, and was killed before it took a step
    log.close()
    assert_series(Run(tmp_path), "grad_norm", [table(0), table(10, salt=1), table(20)])


# -- the file


def test_the_file_is_made_with_the_first_table_and_read_when_asked_for(tmp_path: Path) -> None:
    log = open_log(tmp_path, rank=0)
    append(log, range(3))
    assert not log.tensors_path.exists()
    assert log.tensors_path.name == log.path.name[: -len(".tbnum")] + ".tensors.tbnum"
    give(log, table(0))
    log.close()
    log.tensors_path.write_bytes(b"\xff" * 1000 + log.tensors_path.read_bytes())
    run = Run(tmp_path)
    assert len(run.steps["step"]) == 3 and run.totals.steps == 3 and run.problems == []
    assert_series(run, "grad_norm", [table(0)])
    assert run.problems == [f"1000 damaged bytes at 0 in {log.tensors_path.name}"]


def test_tables_are_followed_while_they_are_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    run = Run(tmp_path)
    assert list(run.tensors) == []
    given: list[TensorTable] = []
    for step in range(0, 200, 50):
        given.append(table(step))
        before = run.tensors
        give(log, given[-1])
        log.flush()
        version = run.version
        assert run.refresh() and run.version > version
        assert_series(run, "grad_norm", given)
        assert len(before["grad_norm"].steps if before else ()) == len(given) - 1  # a snapshot stays
        assert run.refresh() is False
    log.close()


def test_a_history_or_failure_goes_out_at_once(tmp_path: Path) -> None:
    with_thread = LogWriter(tmp_path, columns=COLUMNS, meta={"first_step": 0}, flush_seconds=1e6)
    give(with_thread, table(0))
    give(with_thread, table(1, reason="failure"))
    run = Run(tmp_path)
    deadline = time.monotonic() + 1200
    while not (run.refresh() and list(run.tensors) and len(run.tensors["grad_norm"].steps) == 2):
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)
    with_thread.close()


def test_names_and_columns_are_written_once_a_megabyte(tmp_path: Path) -> None:
    names = tuple(f"layers.{layer}.attention.weight" for layer in range(500))
    write(tmp_path, *(table(step, names) for step in range(0, 1500)))
    (path,) = tmp_path.glob("*.tensors.tbnum")
    megabytes = path.stat().st_size // REPEAT_EVERY_BYTES
    found = tags(path)
    assert found.count(TAG_TENSORS) == 1500 and megabytes >= 3
    for tag in (TAG_NAMES, TAG_TABLE_COLUMNS, TAG_SESSION):
        assert megabytes <= found.count(tag) <= megabytes + 1


def test_ten_thousand_tensors_take_one_record_and_their_names_a_twentieth_of_the_file(tmp_path: Path) -> None:
    names = tuple(f"model.layers.{number}.some.deeply.nested.module.weight" for number in range(10_000))
    given = [table(step, names) for step in range(10)]
    counts = histograms(9, names)
    write(tmp_path, *given, counts)
    (path,) = tmp_path.glob("*.tensors.tbnum")
    assert tags(path).count(TAG_NAMES) == 1 and tags(path).count(TAG_TENSORS) == 10
    run = Run(tmp_path)
    assert_series(run, "grad_norm", given)
    assert_same(run.histograms["gradient"].at(9), counts)


def test_a_table_too_long_for_a_record_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors_module, "_ROOM", 2000)
    names = tuple(f"layer{number}" for number in range(1000))
    write(tmp_path, table(0, names), histograms(0, names))
    (path,) = tmp_path.glob("*.tensors.tbnum")
    assert tags(path).count(TAG_TENSORS) >= 4 and tags(path).count(TAG_HISTOGRAMS) >= 8
    run = Run(tmp_path)
    assert_series(run, "grad_norm", [table(0, names)])
    assert_same(run.histograms["gradient"].at(0), histograms(0, names))


def test_neither_writing_nor_reading_loads_torch(tmp_path: Path) -> None:
    code = "import sys, tbnum.log.writer, tbnum.log.reader; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


# -- budgets


def test_the_training_thread_takes_a_few_microseconds_a_table(tmp_path: Path) -> None:
    names = tuple(map(str, range(150)))
    log = open_log(tmp_path)
    given = TensorTable(0, names, {f"column{at}": np.zeros(150) for at in range(16)})
    best = math.inf
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(50):
            log.write_tensors(given)
        best = min(best, (time.perf_counter() - begin) / 50)
        log.flush()
    log.close()
    assert best < 20e-6


class RealTensors:
    """150 tensors of a transformer whose statistics drift and jitter as they do in training."""

    def __init__(self) -> None:
        self.chance = np.random.default_rng(0)
        self.names = tuple(f"transformer.layers.{at // 12}.module{at % 12}.weight" for at in range(150))
        self.elements = np.where(np.arange(150) % 3 == 0, 512, self.chance.choice([36_000, 65_536, 262_144], 150))
        self.size = np.exp2(self.chance.uniform(-20, -8, 150)) / np.sqrt(self.elements)  # of an element

    def table(self, step: int) -> TensorTable:
        chance, elements = self.chance, self.elements
        self.size = self.size * np.exp(chance.normal(0, 0.01, 150))
        norms = self.size * np.sqrt(elements) * np.exp(chance.normal(0, 0.3, 150))
        columns: dict[str, np.ndarray] = {
            "grad_norm": norms,
            "absmax": self.size * chance.uniform(3, 6, 150),
            "param_norm": np.sqrt(elements) * chance.uniform(0.01, 0.05, 150),
            "update_norm": np.sqrt(elements) * chance.uniform(0.9e-4, 1.1e-4, 150),
            "nan": np.zeros(150),
            "inf": np.zeros(150),
            "zero": np.where(chance.random(150) < 0.1, chance.integers(0, elements), 0),
            "loss_scale": np.full(150, 65536.0),
        }
        for name, usual in (("float16", 1e-3), ("bfloat16", 0.0), ("float8_e4m3fn", 0.9), ("float8_e5m2", 0.1)):
            share = np.clip(usual * chance.lognormal(0, 0.5, 150), 0, 1)
            columns[f"underflow/{name}"] = chance.binomial(elements, share) / elements
            columns[f"overflow/{name}"] = np.where(
                chance.random(150) < 0.02, chance.binomial(elements, 1e-4) / elements, 0.0
            )
        return TensorTable(step, self.names, {name: values.astype(np.float32) for name, values in columns.items()})

    def recent(self, step: int) -> TensorTable:
        norms = (self.size * np.sqrt(self.elements) * np.exp(self.chance.normal(0, 0.3, 150))).astype(np.float32)
        return TensorTable(step, self.names, {"grad_norm": norms}, None, "flight")

    def histograms(self, step: int, source: str, whole: bool) -> HistogramTable:
        exponents = np.arange(BINS) - 127.5
        spread = np.exp(-(((exponents - np.log2(self.size)[:, None]) / 3) ** 2))
        spread[:, [ZERO, INF, NAN]] = 0
        counts = self.chance.poisson(spread / spread.sum(1, keepdims=True) * self.elements[:, None])
        if whole:
            counts = counts.sum(0, keepdims=True)
        high = (self.size * self.chance.uniform(3, 6, 150)).astype(np.float32)[: len(counts)]
        return HistogramTable(
            step, ("*",) if whole else self.names, source, counts, np.full(len(counts), math.nan), high
        )


def test_a_million_steps_of_150_tensors_take_less_than_150_megabytes(tmp_path: Path) -> None:
    """At the defaults: statistics and the model's histograms each 50 steps, those of each tensor each 1,000, and 500
    histories of 32 steps. A fiftieth of it is written."""
    real, sources = RealTensors(), HISTOGRAM_SOURCES[:3]
    log = open_log(tmp_path)
    for step in range(0, 20_000, 50):
        log.write_tensors(real.table(step))
        for source in sources:
            log.write_histogram(real.histograms(step, source, whole=True))
            if step % 1000 == 0:
                log.write_histogram(real.histograms(step, source, whole=False))
        if step % 2000 == 0:
            give(log, *(real.recent(step + after) for after in range(32)))
        log.flush()
    log.close()
    assert log.dropped == {}
    assert log.tensors_path.stat().st_size * 50 < 150e6
    run = Run(tmp_path)
    assert len(run.tensors["absmax"].steps) == 400 and len(run.tensors["grad_norm"].steps) == 10 * 31 + 400
    assert len(run.histograms["update"].steps) == 400


@contextlib.contextmanager
def hung(log: LogWriter) -> Iterator[None]:
    """The log's thread does nothing meanwhile."""
    gate, entered = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        gate.wait()

    log.submit(block)
    log.write_event(skip(0))
    assert entered.wait(1200)
    try:
        yield
    finally:
        gate.set()


def test_waiting_tables_are_bounded_whatever_hangs(tmp_path: Path) -> None:
    names = tuple(map(str, range(1000)))
    values = row(COLUMNS, 0)
    log = open_log(tmp_path)
    with hung(log):
        tracemalloc.start()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for step in range(2000):
                    log.write_tensors(TensorTable(step, names, {"grad_norm": np.ones(1000), "absmax": np.ones(1000)}))
                    for _ in range(4):
                        log.append_step(tuple(values))
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()
    assert log.flush(600)
    log.close()
    assert len(caught) == 1
    lost = log.dropped["writing tensors too slow"]
    assert lost + len(Run(tmp_path).tensors["absmax"].steps) == 2000 and 0 < lost < 1500


def test_the_tables_of_one_step_are_taken_together_however_large(tmp_path: Path) -> None:
    names = tuple(map(str, range(10_000)))
    sources = ("gradient", "parameter", "update", "activation")
    log, unknown = open_log(tmp_path), np.full(len(names), np.nan)
    with hung(log):
        for step in (0, 1):
            for source in sources:
                counts = np.ones((len(names), BINS), np.int32)  # 10 MB
                log.write_histogram(HistogramTable(step, names, source, counts, unknown, unknown))
    log.close()
    assert log.dropped == {"writing tensors too slow": 4}  # all of step 1, none of step 0
    run = Run(tmp_path)
    assert {source: list(run.histograms[source].steps) for source in run.histograms} == {each: [0] for each in sources}


def test_past_max_tensor_bytes_only_histories_and_failures_are_written(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_tensor_bytes=20_000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(0, 2000, 2):
            give(log, table(step), histograms(step))
            if step % 100 == 0:
                give(log, table(step + 1, reason="flight"), table(step + 1, reason="failure"))
            if step % 50 == 0:
                log.flush()
        log.append_step(row(COLUMNS, 0))
        log.close()
    assert [each.category for each in caught] == [RuntimeWarning]
    assert "max_tensor_bytes=20000" in str(caught[0].message) and str(log.tensors_path) in str(caught[0].message)
    assert caught[0].filename == __file__
    run = Run(tmp_path)
    reasons = run.tensors["grad_norm"].reasons.tolist()
    regular = reasons.count("interval")
    assert 0 < regular < 200 and reasons.count("failure") == 20
    assert log.dropped == {"max_tensor_bytes reached": 2000 - regular - len(run.histograms["gradient"].steps)}
    assert run.meta["dropped"] == log.dropped
    assert log.tensors_path.stat().st_size < 20_000 + 40 * 300


def test_a_negative_max_tensor_bytes_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_tensor_bytes"):
        open_log(tmp_path, max_tensor_bytes=-1)


# -- faults


@pytest.mark.parametrize(
    "wrong",
    [
        TensorTable(1, NAMES, {"grad_norm": np.zeros(2)}),
        TensorTable(1, NAMES, {"grad_norm": np.array(["a", "b", "c"])}),
        TensorTable(1, NAMES, {"grad_norm": np.zeros(3)}, None, "whim"),
        TensorTable(1, NAMES, {"grad_norm": [1.0, "much", None]}),  # type: ignore[dict-item]
        HistogramTable(1, NAMES, "gradient", np.zeros((3, 7)), np.zeros(3), np.zeros(3)),
        HistogramTable(1, NAMES, "weather", np.zeros((3, BINS)), np.zeros(3), np.zeros(3)),
        HistogramTable(1, NAMES, "update", np.zeros((3, BINS)), np.zeros(1), np.zeros(3)),
    ],
)
@pytest.mark.filterwarnings("ignore:tbnum cannot write:RuntimeWarning")
def test_a_table_that_is_none_is_counted_and_the_next_ones_are_written(
    tmp_path: Path, wrong: TensorTable | HistogramTable
) -> None:
    log = open_log(tmp_path)
    give(log, table(0), wrong, table(2))
    log.close()
    (reason,) = log.dropped
    assert reason.startswith("tensors not writable") and log.dropped[reason] == 1
    assert_series(Run(tmp_path), "grad_norm", [table(0), table(2)])


def test_a_full_disk_costs_the_tables_that_do_not_fit_and_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    give(log, table(0))
    log.flush()
    whole = log.tensors_path.stat().st_size
    write_all = os.write
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        monkeypatch.setattr(os, "write", lambda descriptor, data: write_all(descriptor, data[:50]))
        give(log, table(1), table(2))
        log.flush()
        monkeypatch.undo()
        assert log.tensors_path.stat().st_size == whole
        give(log, table(3))
        log.close()
    assert len(caught) == 1 and "disk full" in str(caught[0].message)
    assert log.dropped["disk full"] >= 2
    run = Run(tmp_path)
    assert_series(run, "grad_norm", [table(0), table(3)])
    assert run.problems == [] and run.meta["dropped"] == log.dropped


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be deleted")
def test_a_deleted_file_is_begun_again_where_its_folder_is_there(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    give(log, table(0), table(1))
    log.flush()
    log.tensors_path.unlink()
    give(log, table(2))
    with pytest.warns(RuntimeWarning, match="file deleted"):
        log.flush()
    log.close()
    assert log.dropped == {"file deleted": 2}
    assert_series(Run(tmp_path), "grad_norm", [table(2)])


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be deleted")
@pytest.mark.filterwarnings("ignore:tbnum cannot write:RuntimeWarning")
def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    log = open_log(folder)
    log.path.unlink()
    folder.rmdir()
    give(log, table(0), histograms(0))
    log.close()
    assert log.dropped["file deleted"] >= 2 and not folder.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_no_tables(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    give(log, table(0))
    log.flush()
    give(log, table(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(20)
            give(log, table(2), histograms(2))
            log.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    give(log, table(3))
    log.close()
    run = Run(tmp_path)
    assert_series(run, "grad_norm", [table(0), table(1), table(3)])
    assert list(run.histograms) == []


def test_after_close_no_table_is_taken(tmp_path: Path) -> None:
    log = write(tmp_path, table(0))
    size = log.tensors_path.stat().st_size
    give(log, table(1), histograms(1))
    log.close()
    assert log.tensors_path.stat().st_size == size and log.dropped == {}


def test_the_end_of_the_interpreter_writes_waiting_tables(tmp_path: Path) -> None:
    code = """
import sys
import numpy as np
from tbnum.log.schema import step_columns
from tbnum.log.tensors import TensorTable
from tbnum.log.writer import LogWriter
log = LogWriter(sys.argv[1], columns=step_columns({"optimizer": 1}), meta={"first_step": 0}, flush_seconds=1e6)
log.write_tensors(TensorTable(0, ("a",), {"grad_norm": np.ones(1)}))
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert Run(tmp_path).tensors["grad_norm"].values.tolist() == [[1.0]]


def test_a_newer_format_is_refused_in_words(tmp_path: Path) -> None:
    log = write(tmp_path, table(0), steps=range(1))
    newer = frame(encode(TAG_SESSION, '{"format_version": 99}', trailer=b"", step=0, wall_time=0.0))
    log.tensors_path.write_bytes(newer + log.tensors_path.read_bytes())
    run = Run(tmp_path)
    assert list(run.tensors) == [] and len(run.steps["step"]) == 1
    assert "format 99" in run.problems[0] and "newer tbnum" in run.problems[0]


def test_a_lost_record_of_names_costs_only_the_tables_before_the_next(tmp_path: Path) -> None:
    names = tuple(f"layers.{layer}.attention.weight" for layer in range(500))
    given = [table(step, names) for step in range(800)]
    log = write(tmp_path, *given)
    found = [(each.offset, decode(each.data)) for each in RecordTail(log.tensors_path).read()]
    firsts = [offset for offset, record in found if record is not None and record.tag == TAG_NAMES]
    data = bytearray(log.tensors_path.read_bytes())
    data[firsts[0] + 40] ^= 1
    log.tensors_path.write_bytes(data)
    run = Run(tmp_path)
    assert_series(run, "grad_norm", given)  # the same names come again later, and serve the earlier tables too
    for first in firsts[1:]:
        data[first + 40] ^= 1
    log.tensors_path.write_bytes(data)
    run = Run(tmp_path)
    assert list(run.tensors) == []
    assert any("800 tables" in each and "lost the names" in each for each in run.problems)


def test_a_damaged_file_loses_only_the_damaged_tables_and_never_crashes(tmp_path: Path) -> None:
    chance = random.Random(0)
    given = [table(step) for step in range(40)]
    counts = [histograms(step) for step in range(40)]
    log = write(tmp_path, *(each for pair in zip(given, counts, strict=True) for each in pair), steps=range(1))
    data = log.tensors_path.read_bytes()
    begin = [each.offset for each in RecordTail(log.tensors_path).read()][7]  # names are there once, and stay
    for _ in range(FUZZ):
        damaged = bytearray(data)
        where = [chance.randrange(begin, len(data)) for _ in range(chance.randrange(1, 4))]
        kind = chance.randrange(3)
        if kind == 0:
            for at in where:
                damaged[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del damaged[where[0] :]
        else:
            damaged[where[0] : where[0]] = chance.randbytes(chance.randrange(1, 100))
        log.tensors_path.write_bytes(damaged)
        run = Run(tmp_path)
        kept = set(run.tensors["grad_norm"].steps.tolist())
        assert_series(run, "grad_norm", [each for each in given if each.step in kept])
        series = run.histograms["gradient"]
        for step in series.steps.tolist():
            assert_same(series.at(step), counts[step])
        if kind != 1:
            assert 80 - len(kept) - len(series.steps) <= len(where)


def test_a_file_that_vanishes_while_it_is_read_costs_its_tables(tmp_path: Path) -> None:
    log = write(tmp_path, table(0), histograms(0), steps=range(1))
    run = Run(tmp_path)
    tensors, series = run.tensors, run.histograms["gradient"]
    log.tensors_path.unlink()
    assert tensors["grad_norm"].values.shape == (0, 3)
    assert series.at(0).names == ()
    assert "cannot be read" in run.problems[0]


def test_every_reason_has_a_place_in_the_schema() -> None:
    assert TABLE_REASONS == ("interval", "flight", "failure")  # files hold the positions
    assert HISTOGRAM_SOURCES == ("gradient", "parameter", "update", "activation", "activation_gradient")


def test_one_step_is_read_alone_by_optimizer_and_reason(tmp_path: Path) -> None:
    failed = dataclasses.replace(table(60, reason="interval"), optimizer="critic", reason="failure")
    other = dataclasses.replace(table(60, ("generator.weight",), salt=1), optimizer="generator")
    write(tmp_path, table(50), failed, other, table(61, reason="flight"))
    tensors = Run(tmp_path).tensors
    assert tensors.steps_of("interval").tolist() == [50, 60]
    assert tensors.steps_of("failure", "flight").tolist() == [60, 61]
    critic, generator = tensors.at(60)
    assert (critic.optimizer, critic.reason, critic.names) == ("critic", "failure", NAMES)
    assert (generator.optimizer, generator.reason) == ("generator", "interval")
    for name, values in failed.columns.items():
        np.testing.assert_array_equal(critic.columns[name], values, name)
    assert list(tensors.at(60, ["zero", "of a newer tbnum"])[0].columns) == ["zero"]
    assert tensors.at(55) == []


def test_columns_read_together_are_as_read_one_by_one(tmp_path: Path) -> None:
    written = [table(step) for step in range(8)] + [table(8, NAMES[:2]), table(9, reason="flight")]
    write(tmp_path, *written)
    tensors = Run(tmp_path).tensors
    steps, names, values = tensors.read_together(["zero"], 2, 9, beside=("grad_norm", "nowhere"), dtype=np.float32)
    assert steps.tolist() == list(range(2, 9)) and names == NAMES  # the recent history has no zeros
    for column in ("zero", "grad_norm"):
        assert values[column].dtype == np.float32
        np.testing.assert_array_equal(values[column], tensors.read(column, 2, 8).values.astype(np.float32))
    assert np.isnan(values["nowhere"]).all()
    assert tensors.steps_with(["zero"]).tolist() == list(range(9))
    with pytest.raises(KeyError, match="no tensor has a 'nowhere'"):
        tensors.read_together(["nowhere"])


def test_a_snapshot_tells_from_which_step_on_it_differs_from_an_earlier_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    give(log, *(table(step) for step in range(5)))
    assert log.flush(600)
    run = Run(tmp_path)
    first = run.tensors
    assert first.changed_from(first) is None
    give(log, table(5), table(6))
    assert log.flush(600)
    run.refresh()
    second = run.tensors
    assert second.changed_from(first) == 5
    log.close()
    write(tmp_path, table(3, salt=1), first_step=3, steps=range(3, 5))
    run.refresh()
    assert run.tensors.changed_from(second) == 3 and run.tensors.changed_from(run.tensors) is None


def test_a_step_that_is_listed_is_answered_whatever_its_record_holds(tmp_path: Path) -> None:
    log = write(tmp_path, histograms(0), histograms(1))
    frames = [found for found in RecordTail(log.tensors_path).read()]
    (first, _) = [found for found in frames if (record := decode(found.data)) and record.tag == TAG_HISTOGRAMS]
    chance = random.Random(3)
    unread = 0
    for _ in range(FUZZ):
        data = bytearray(first.data)
        for _ in range(chance.randrange(1, 4)):  # and its checksum right all the same
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        records = [bytes(data) if found is first else found.data for found in frames]
        log.tensors_path.write_bytes(b"".join(map(frame, records)))
        for series in Run(tmp_path).histograms.values():
            for step in series.steps.tolist():
                unread += series.at(step).names == ()
    assert unread > 0


def test_checksums_come_back_to_the_last_bit_and_are_no_statistic(tmp_path: Path) -> None:
    chance = np.random.default_rng(5)
    sums = chance.integers(1, 2**64, (3, 3), np.uint64, endpoint=False)
    tables = []
    for at, step in enumerate((0, 50, 100)):
        columns = {"grad_norm": np.ones(3), "checksum/parameter": sums[at]}
        tables.append(TensorTable(step, NAMES, columns if at else {"grad_norm": np.ones(3)}))
    write(tmp_path, *tables, steps=range(101))
    run = Run(tmp_path)
    assert list(run.checksums) == ["parameter"]
    steps, names, values = run.checksums["parameter"]
    assert (steps.tolist(), names) == ([50, 100], NAMES)
    assert values.dtype == np.uint64 and values.tolist() == sums[1:].tolist()
    assert list(run.tensors) == ["grad_norm"] and run.problems == []
    assert all(list(found.columns) == ["grad_norm"] for found in run.tensors.at(50))
