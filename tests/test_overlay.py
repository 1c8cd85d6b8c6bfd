from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tbnum.explain.repeats import setting
from tbnum.log.tensors import TensorTable
from tensorboard_plugin_tbnum import runs
from tensorboard_plugin_tbnum.overlay import ALIGNMENTS, Member, aligned, together
from tensorboard_plugin_tbnum.pauses import pauses
from tests.recorded import META, START, record
from tests.routes import Panel

NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def no_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """One scan at the start in place of a thread, which would outlive its test."""
    monkeypatch.setattr(runs.RunTable, "start", runs.RunTable.scan)
    monkeypatch.setattr(runs, "FRESH_SECONDS", -1.0)


def lines(*names: list[str]) -> list[str]:
    return [json.dumps(each) for each in names]


# What is computed.


def test_the_mean_and_the_range_of_runs_are_those_of_all_their_values():
    rng = np.random.default_rng(0)
    lengths, limit = (1000, 777, 1300), 20
    xs = [np.arange(length) for length in lengths]
    values = [rng.normal(size=length) for length in lengths]
    values[0][5], values[1][700], values[2][64:128] = INF, NAN, NAN
    size, bounds = aligned(xs, None, None, limit)
    assert size == 128 and bounds.tolist() == list(range(0, 1409, 128))
    got = together([Member(x, each, None) for x, each in zip(xs, values, strict=True)], bounds)
    for b, (start, stop) in enumerate(itertools.pairwise(bounds)):
        inside = [each[start:stop] for each in values if len(each) > start]
        finite = [each[np.isfinite(each)] for each in inside]
        everything = np.concatenate(finite)
        assert got.min[b] == everything.min() and got.max[b] == everything.max()
        assert got.mean[b] == pytest.approx(everything.mean())
        means = [each.mean() for each in finite if len(each)]
        assert got.low[b] == pytest.approx(min(means)) and got.high[b] == pytest.approx(max(means))
    assert (got.nan + got.inf).tolist() == [1, *[0] * 10]
    assert got.last[0] == values[0][127] and np.isnan(got.last[-1])  # of the first run, which had ended


def test_few_values_of_x_are_buckets_of_their_own_and_those_in_between_are_left_out():
    size, bounds = aligned([np.array([3, 10**9]), np.array([3, 7, 7, 7])], None, None, 4)
    assert (size, bounds.tolist()) == (1, [3, 7, 10**9, 10**9 + 1])
    size, bounds = aligned([np.array([0, 1, 2, 3, 1000])], None, None, 3)
    assert size == 512 and bounds.tolist() == [0, 512, 1024]
    assert aligned([np.empty(0, np.int64)], None, None, 3)[1].tolist() == [0]


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_there_are_never_more_buckets_than_asked_for_and_no_step_is_in_none(limit):
    rng = np.random.default_rng(limit)
    xs = [np.sort(rng.integers(0, 5_000, 300)) for _ in range(3)]
    _, bounds = aligned(xs, 100, 4_000, limit)
    assert 1 <= len(bounds) - 1 <= limit
    counts = sum(np.histogram(x[(x >= 100) & (x <= 4_000)], bounds)[0] for x in xs)
    assert counts.sum() == sum(((x >= 100) & (x <= 4_000)).sum() for x in xs) and (counts > 0).all()


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
@pytest.mark.parametrize("ends", [(0, 2**63 - 1), (-(2**63), 2**63 - 1), (-1, 0), (2**62, 2**62 + 1)])
def test_steps_at_the_ends_of_what_an_integer_holds_have_their_buckets(ends, limit):
    x = ALIGNMENTS["step"]({"step": np.array(ends)})
    _, bounds = aligned([x], None, None, limit)
    got = together([Member(x, np.array([1.0, 2.0]), None)], bounds)
    assert np.nansum([got.min, got.max], axis=1).tolist() in ([3, 3], [1, 2]) and (np.diff(bounds) > 0).all()
    assert len(ALIGNMENTS["updates"]({"step": x, "updates": np.array([0.0, 2.0**63])})) == 2


def test_updates_leave_skips_out_and_time_never_runs_back():
    columns = {
        "step": np.arange(5),
        "wall_time": START + np.array([0.0, 1.5, 0.5, NAN, 4.0]),
        "skipped": np.array([True, False, False, True, False]),
    }
    assert ALIGNMENTS["updates"](columns).tolist() == [0, 1, 2, 2, 3]
    assert ALIGNMENTS["time"](columns).tolist() == [0, 1500, 1500, 1500, 4000]
    assert ALIGNMENTS["time"]({"wall_time": np.empty(0)}).tolist() == []


def test_runs_that_differ_in_the_seed_alone_have_one_setting():
    first = {**META, "seed": 1, "config": {"lr": 0.1, "seed": 1, "data_seed": 4}}
    assert setting(first) == setting({**META, "seed": 2, "config": {"lr": 0.1, "seed": 2, "data_seed": 5}})
    assert setting(first) == setting({**META, "config": {"lr": 0.1}})
    assert setting(first) != setting({**META, "config": {"lr": 0.2}})
    assert setting(first) != setting({**META, "scaler": None, "config": {"lr": 0.1}})


# The routes.


@pytest.fixture
def panel(tmp_path: Path) -> Panel:
    skips = {step: {"skipped": True, "grad_norm": INF, "nonfinite_tensors": 1.0} for step in (10, 11, 50)}
    for seed in (1, 2, 3):
        values = {step: {"loss": float(step + 10 * seed)} for step in range(100)}
        scales = np.full(2, 65536.0)
        tables = [
            TensorTable(
                step, ("a.weight", "b.bias"), {"absmax": np.array([0.1, 1e-4 * (step + 1)]), "loss_scale": scales}
            )
            for step in range(0, 100, 10)
        ]
        record(tmp_path / f"seed{seed}", range(100), values, tables=tables, seed=seed, config={"lr": 0.1})
    record(tmp_path / "skipping", range(80), skips, config={"lr": 0.2})
    return Panel(tmp_path)


def test_a_line_of_one_run_has_its_values(panel):
    header, arrays = panel.binary("overlay", line=lines(["seed1"]), columns="loss,skipped,nothing")
    (line,) = header["lines"]
    assert line == {"runs": ["seed1"], "missing": [], "first": 0, "last": 99, "ends": [99], "size": 1} | {
        "from": 0,
        "to": 99,
    }
    assert header["x"] == "step"
    assert arrays["0/x"].tolist() == list(range(100))
    assert arrays["0/loss/mean"].tolist() == arrays["0/loss/last"].tolist() == [step + 10.0 for step in range(100)]
    assert set(arrays) == {f"0/{name}" for name in ("x", *(f"{column}/{kind}" for column in ("loss", "skipped")
                           for kind in ("mean", "last", "nan", "inf")))}  # fmt: skip


def test_a_line_tells_measured_nans_from_infinities_and_from_what_is_unknown(tmp_path):
    steps = {3: {"loss": NAN}, 5: {"loss": NAN, "micro_batches": 0.0}, 7: {"grad_norm": INF, "nonfinite_tensors": 1.0}}
    record(tmp_path / "run", range(10), steps)
    _, arrays = Panel(tmp_path).binary("overlay", line=lines(["run"]), columns="loss,grad_norm")
    assert np.flatnonzero(np.isnan(arrays["0/loss/last"])).tolist() == [3, 5]
    assert np.flatnonzero(arrays["0/loss/nan"]).tolist() == [3] and not arrays["0/loss/inf"].any()
    assert np.flatnonzero(arrays["0/grad_norm/inf"]).tolist() == [7] and not arrays["0/grad_norm/nan"].any()


def test_runs_of_one_line_are_their_mean_with_its_range(panel):
    header, arrays = panel.binary("overlay", line=lines(["seed1", "seed2", "seed3"]), columns="loss", buckets=10)
    assert header["lines"][0]["size"] == 16
    assert arrays["0/loss/min"].tolist() == [10 + 16 * b for b in range(7)]
    assert arrays["0/loss/max"].tolist() == [30 + min(99, 16 * b + 15) for b in range(7)]
    assert arrays["0/loss/mean"][0] == 20 + 7.5
    assert (arrays["0/loss/low"][0], arrays["0/loss/high"][0]) == (17.5, 37.5)
    assert "0/loss/last" not in arrays


def test_lines_are_aligned_by_updates_and_by_time(panel):
    header, arrays = panel.binary("overlay", line=lines(["skipping"], ["seed1"]), columns="loss", x="updates")
    assert [line["last"] for line in header["lines"]] == [77, 100]
    assert arrays["0/x"][:12].tolist() == list(range(1, 13))
    assert arrays["0/loss/last"][9] == 11.0  # two skips after the tenth update: the last of the three steps
    header, arrays = panel.binary("overlay", line=lines(["seed1"]), columns="loss", x="time", from_=1000, to=2000)
    assert arrays["0/x"].tolist() == [100 * step for step in range(10, 21)] and header["lines"][0]["last"] == 9900


def test_headroom_is_the_least_of_all_tensors(panel):
    _, arrays = panel.binary("overlay", line=lines(["seed1"]), columns="headroom/float16")
    _, cells = panel.binary("heatmap", run="seed1", column="headroom/float16")
    least = cells["min"].reshape(-1, 10).min(0)
    known = ~np.isnan(arrays["0/headroom/float16/mean"])
    assert np.flatnonzero(known).tolist() == list(range(0, 100, 10))
    np.testing.assert_allclose(arrays["0/headroom/float16/mean"][known], least, rtol=1e-6)


def test_a_run_that_is_gone_is_named_and_takes_no_other_with_it(panel):
    header, arrays = panel.binary("overlay", line=lines(["gone", "seed1"], ["lost"]), columns="loss")
    assert [line["missing"] for line in header["lines"]] == [["gone"], ["lost"]]
    assert len(arrays["0/x"]) == 100 and len(arrays["1/x"]) == 0


def test_overlaid_runs_that_have_not_changed_are_not_sent_again(panel, tmp_path):
    query = {"line": lines(["seed1"], ["seed2"]), "columns": "loss"}
    tag = panel.get("overlay", **query).headers["ETag"]
    assert panel.get("overlay", {"If-None-Match": tag}, **query).status_code == 304
    record(tmp_path / "seed2", range(100, 120))
    assert panel.get("overlay", {"If-None-Match": tag}, **query).status_code == 200


@pytest.mark.parametrize(
    "query, said",
    [
        ({}, "0 runs"),
        ({"line": "seed1"}, "line='seed1' is not a JSON list"),
        ({"line": "[1]"}, "is not a JSON list"),
        ({"line": "[]"}, "is not a JSON list"),
        ({"line": "[" * 100_000}, "is not a JSON list"),
        ({"line": [json.dumps([str(number) for number in range(257)])]}, "257 runs"),
        ({"line": '["seed1"]', "x": "epoch"}, "x='epoch' is not among step, time, updates"),
        ({"line": '["seed1"]', "from_": 5, "to": 4}, "from=5"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_its_value(panel, query, said):
    assert said in panel.refused(400, "overlay", columns="loss", **query)


def test_runs_tell_their_seed_and_whether_their_settings_are_the_same(panel):
    rows = {row["run"]: row for row in panel.json("runs")["runs"]}
    assert [rows[f"seed{seed}"]["seed"] for seed in (1, 2, 3)] == [1, 2, 3] and rows["skipping"]["seed"] is None
    assert len({rows[f"seed{seed}"]["setting"] for seed in (1, 2, 3)}) == 1
    assert rows["skipping"]["setting"] not in (None, rows["seed1"]["setting"])


def test_findings_are_counted_by_severity_once_they_were_asked_for(panel):
    found = panel.json("findings", run="skipping")["findings"]
    (row,) = [row for row in panel.json("runs")["runs"] if row["run"] == "skipping"]
    assert sum(row["findings"].values()) == len(found)
    assert row["findings"].get("warning", 0) == sum(each["severity"] == "warning" for each in found)


def test_a_pause_is_where_nothing_closed_for_long_and_time_goes_on_without_it() -> None:
    wall = np.concatenate([np.arange(100.0), 86_400.0 + np.arange(100.0)])
    before, seconds = pauses(wall)
    assert before.tolist() == [99] and seconds.tolist() == [86_301.0 - 1.0]
    milliseconds = ALIGNMENTS["time"]({"wall_time": wall})
    assert (np.diff(milliseconds) == 1000).all()
    assert not len(pauses(np.arange(50) * 3600.0)[0]), "steps that take an hour each are no pauses"
    assert not len(pauses(np.full(3, np.nan))[0]) and not len(pauses(np.empty(0))[0])
