"""The benchmarks run: what they measure is not asserted here, for that is a matter of the machine."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import compare, log, many_ranks, overhead, same_or_apart, small
from benchmarks.clock import Clock
from benchmarks.contenders import DEFAULTS, EVERYTHING, Tbnum, Watch
from benchmarks.passes import Passes
from benchmarks.report import Report, Row, median, quantile, spread, table
from tests import warm


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two that wait for each other take seconds where something else runs beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def written(path: Path) -> dict[str, list[dict[str, Any]]]:
    found = json.loads(path.read_text())
    assert found["machine"]["cores"] >= 1
    sections: dict[str, list[dict[str, Any]]] = found["sections"]
    assert all(isinstance(row["value"], (int, float)) for rows in sections.values() for row in rows), sections
    return sections


def test_overhead_times_tbnum_and_its_peers_in_one_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "BLOCK", 8)
    monkeypatch.setattr(overhead, "BLOCK_SECONDS", 0.01)
    monkeypatch.setattr(overhead, "small", lambda report, rounds: None)
    monkeypatch.setattr(overhead.WandbWatch, "installed", staticmethod(lambda: False))  # it takes seconds to start
    overhead.main(["--sizes", "0.1M", "--rounds", "1", "--tensors", "10,20", "--quick", "--json", str(tmp_path / "o")])
    (loop, rows), (_, growth) = written(tmp_path / "o").items()
    assert loop.startswith("0.1M: 0.12 M parameters")
    measured = {row["what"]: row for row in rows}
    assert measured["tbnum, defaults"]["target"] == 1.05
    assert measured["tbnum, defaults: passes over tensors, a step"]["value"] > 0
    assert measured["tbnum, defaults: else, a step"]["value"] > 0
    assert {"tbnum, everything on", "add_histogram of each gradient, each step"} <= measured.keys()
    background = next(row for row in growth if row["what"].startswith("log's thread"))
    assert background["value"] > 0


def test_a_loop_with_a_scaler_is_timed_too(tmp_path: Path) -> None:
    training = overhead.Training(overhead.SIZES["0.1M"], with_scaler=True)
    figures, bare = overhead.measure(training, [Tbnum()], rounds=1, seconds=0, folder=tmp_path)
    (spent,) = figures["tbnum, defaults"].inside
    assert 0 < spent.passes < spent.inside < min(bare) * 10


def test_short_steps_are_timed_beside_the_bare_loop_and_scalars_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "hold_still", lambda: None)  # a collection before each of many blocks of four steps
    monkeypatch.setattr(small, "SWEPT", 100)
    monkeypatch.setattr(small, "DEFAULTS", {**DEFAULTS, "histogram_interval": 20, "tensor_interval": 5})
    monkeypatch.setattr(small, "TENSORS", (2,))
    for targets in small.MOST_PYTHON_US.values():
        monkeypatch.setitem(targets, 2, 1.0)
    monkeypatch.setitem(small.MOST_BACKWARD_US, 2, 1.0)
    report = Report("small")
    small.small(report, rounds=1, steps=4)
    mlp, python = report.sections.values()
    measured = {row.what: row for row in mlp}
    for loop, most in small.MOST.items():
        assert measured[f"{loop}: tbnum"].target == most
        assert measured[f"{loop}: add_scalar of loss and norm"].value
    assert [row.what for row in python if row.target is None] == [] and len(python) == 5


def test_passes_are_clocked_on_the_thread_that_asked_and_only_while_it_does() -> None:
    from tbnum.measure import norms

    before = norms.norms_of
    passes = Passes()
    with passes.running():
        norms.norms_of([torch.ones(3)])
        assert passes.take() > 0 and passes.take() == 0
        with ThreadPoolExecutor(1) as pool:
            pool.submit(norms.norms_of, [torch.ones(3)]).result()
        assert passes.take() == 0
    assert norms.norms_of is before


def test_log_writes_reads_and_watches_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "CHUNKS", (1000, 10))
    monkeypatch.setattr(log, "HUNG_STEPS", 2000)
    arguments = ["--quick", "--steps", "3000", "--runs", "3", "--loop-steps", "200", "--json", str(tmp_path / "l")]
    log.main(arguments)
    sections = written(tmp_path / "l")
    assert len(sections) == 5
    assert sections["3,000 steps of 15 columns, one optimizer"][0]["target"] == 200


@pytest.mark.browser
def test_panel_is_opened_zoomed_and_hovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("playwright.sync_api")
    from tests.browser.conftest import BARE, BROWSERS, TensorBoard

    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("no browser")
    from benchmarks import panel, panel_overlaid

    monkeypatch.setattr(TensorBoard, "python", warm.python())
    monkeypatch.setattr(panel_overlaid, "RUNS", 3)
    monkeypatch.setattr(panel, "WARM", 1)

    class BarePages(panel.Browser):
        """In TensorBoard's own page each of seven loads takes seconds; the tests of the panel have some of them."""

        def _page(self, url: str) -> Any:
            page = super()._page(url)
            page.route(url, lambda route: route.fulfill(content_type="text/html", body=BARE))
            return page

    monkeypatch.setattr(panel, "Browser", BarePages)
    turns = panel._turns()[::7]  # one of each kind
    monkeypatch.setattr(panel, "_turns", lambda: turns)
    options = ["--quick", "--steps", "20000", "--events", "100", "--runs", "3", "--json", str(tmp_path / "p")]
    with ThreadPoolExecutor(1) as pool:  # Playwright wants a thread where no test of the panel has begun it already
        pool.submit(panel.main, options).result()
    assert len(written(tmp_path / "p")) == 5


# -- the figures themselves


@pytest.mark.parametrize("intervals", [DEFAULTS, EVERYTHING])
def test_each_kind_of_step_weighs_as_often_as_it_comes(intervals: dict[str, int]) -> None:
    shares = Tbnum("any", intervals).shares()
    assert math.isclose(sum(shares.values()), 1)
    for place, interval in enumerate(intervals.values()):
        assert math.isclose(sum(share for kind, share in shares.items() if kind[place]), 1 / interval)
    assert next(iter(shares)) == max(shares, key=lambda kind: shares[kind])
    assert Watch().shares() == {(): 1.0}


def test_the_defaults_of_the_benchmark_are_those_of_wrap(tmp_path: Path) -> None:
    training = overhead.ManyTensors(2)
    watch = Tbnum()
    watch.attach(training, tmp_path)
    meter = watch._monitor._observer._loop.meter  # type: ignore[union-attr]
    held = (meter._verify_interval, meter._tensor_interval, meter._histogram_interval)
    training.step(watch)
    watch.detach()
    assert held == tuple(DEFAULTS.values())


def test_a_clock_leaves_tbnum_as_it_was() -> None:
    from tbnum.measure import norms
    from tbnum.observe import losses, meter

    before = (meter.norms_of, norms.norms_of, dict(vars(losses.Losses)))
    with Clock().running():
        assert meter.norms_of is not before[0]
    assert (meter.norms_of, norms.norms_of, dict(vars(losses.Losses))) == before


def test_a_target_is_the_most_or_the_least() -> None:
    assert Row("", 1.0, target=1.0).met and Row("", 1.0, target=1.0, at_least=True).met
    assert Row("", 1.1, target=1.0).met is False
    assert Row("", 0.9, target=1.0, at_least=True).met is False
    assert Row("", 1.0).met is None and Row("", None, target=1.0).met is None


def test_a_table_is_aligned_and_says_what_was_missed() -> None:
    lines = table([Row("short", 1.021, "x", 1.02, note="5 rounds"), Row("a longer name", 1234.5, "us")]).splitlines()
    assert lines[1].split() == ["short", "1.021", "x", "<=", "1.020", "x", "MISSED", "5", "rounds"]
    assert lines[2].split() == ["a", "longer", "name", "1,234", "us"]
    assert lines[1].index("1.021 x") + 7 == lines[2].index("1,234 us") + 8


def test_a_report_names_what_was_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("some")
    report.add("part", [Row("fast", 2.0, "ms", 1.0), Row("small", 1.0, "MB", 1.0), Row("unknown", math.nan, "MB")])
    report.finish(tmp_path / "deep" / "some.json")
    printed = capsys.readouterr().out
    assert "1 of 2 targets met" in printed and "missed: fast: 2 ms, target <= 1 ms" in printed
    rows = json.loads((tmp_path / "deep" / "some.json").read_text())["sections"]["part"]
    assert [row["met"] for row in rows] == [False, True, None]
    assert rows[2]["value"] is None


def test_medians_and_quantiles() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0 and math.isnan(median([]))
    assert quantile(range(1, 101), 0.99) == 99 and quantile([5.0], 0.01) == 5.0  # type: ignore[arg-type]
    assert spread([1.0, 2.0]) is None and spread([1.0, 2.0, 3.0, 4.0]) == 1.0


def test_runs_of_many_ranks_and_many_runs_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("duckdb")
    monkeypatch.setattr(many_ranks, "STEPS", 600)
    many_ranks.main(["--ranks", "10", "--runs", "12", "--json", str(tmp_path / "o")])
    of_ranks, of_starting, of_runs = written(tmp_path / "o").values()
    assert of_ranks[0]["what"] == "files" and of_ranks[0]["value"] == 20
    assert of_starting and of_starting[0]["value"] >= 0
    (question,) = [row for row in of_runs if "spike" in row["what"]]
    assert question["note"] == "2 runs"


def test_two_long_runs_are_compared_against_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "STEPS", 30_000)
    monkeypatch.setattr(compare, "TABLES", 1000)
    compare.main(["--quick", "--json", str(tmp_path / "c")])
    of_steps, of_tables, witnesses = written(tmp_path / "c").values()
    assert (of_steps[0]["target"], of_tables[0]["target"]) == (1.0, 2.0) and len(witnesses) == 3


def test_faults_of_a_gpt_are_found_at_their_step_and_in_their_stage(tmp_path: Path) -> None:
    same, ulp, dropout, eps, rate = same_or_apart.faults(tmp_path, 20, 1)
    assert same.value is None and "bits same until 19, apart at None" in same.note
    assert [row.value for row in (ulp, dropout, eps, rate)] == [12, 8, 6, 6]
    assert f"same until 11, apart at 12; stage backward, in {same_or_apart.FAULTY};" in ulp.note
    assert "same until 7, apart at 8; stage forward" in dropout.note
    assert all("same until 5, apart at 6; stage optimizer" in row.note for row in (eps, rate))


def test_with_the_defaults_a_fault_of_a_gpt_is_bracketed_and_no_stage_is_claimed(tmp_path: Path) -> None:
    _, _, *rows = same_or_apart.faults(tmp_path, 60, 50)  # checksums of steps 0, 50, and the last
    assert rows[0].value == 24
    assert all("same until 0, apart at 50; stage None" in row.note for row in rows)
