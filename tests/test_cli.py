from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tbnum.charts
import tbnum.cli
from tbnum.log.schema import Event, step_columns
from tbnum.log.writer import LogWriter
from tests.recorded import append, open_log

NAN, INF = math.nan, math.inf
COLUMNS = step_columns({"adam": 1})
META = {"first_step": 0, "scaler": {"growth_interval": 200}, "optimizers": {"adam": {"class": "Adam"}}}
START = 1.7e9


class Recorder:
    """Writes a log as the monitor would: torch's scaler policy, one overflow where it is asked for."""

    def __init__(self, folder: Path, **meta: Any) -> None:
        self.log = LogWriter(folder, columns=COLUMNS, meta={**META, **meta})
        self.scale = 65536.0
        self.next = 0

    def step(self, loss: float = 2.5, overflow: bool = False) -> None:
        step, wall_time, scale = self.next, START + self.next, self.scale
        norm = INF if overflow else 2.0
        if overflow:
            self.scale /= 2
            facts = {"loss": loss, "loss_scale": scale, "new_scale": self.scale, "grad_norm": norm}
            facts |= {"nonfinite_tensors": 3, "tensors": 12, "micro_batches": 1}
            self.log.write_event(Event(step, wall_time, "skip", data=facts))
            change = {"old_scale": scale, "new_scale": self.scale}
            self.log.write_event(Event(step, wall_time, "scale_backoff", data=change))
        values = dict.fromkeys(COLUMNS, NAN) | {"step": step, "wall_time": wall_time, "loss": loss, "micro_batches": 1}
        values |= {"loss_scale": scale, "grad_norm": norm, "skipped": overflow, "nonfinite_tensors": 3 * overflow}
        values |= {"clip_coef": NAN if overflow else 0.5, "max_norm": 1.0, "lr": 1e-3}
        self.log.append_step(tuple(values[name] for name in COLUMNS))
        self.next += 1

    def note(self, text: str) -> None:
        self.log.write_event(Event(self.next, START + self.next, "annotation", data={"text": text}))


def record(folder: Path, steps: int = 120, overflow_at: int | None = 60, nan_from: int | None = None) -> None:
    recorder = Recorder(folder)
    for step in range(steps):
        nan = nan_from is not None and step >= nan_from
        recorder.step(NAN if nan else 2.5 - 0.01 * step, overflow=nan or step == overflow_at)
    recorder.log.close()


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # else words are wrapped as wide as the terminal of who runs the tests


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    record(tmp_path / "good")
    record(tmp_path / "sub" / "bad", nan_from=80)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = tbnum.cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tbnum.cli", *map(str, arguments)]


def test_report_tells_each_run_in_numbers_causes_events_and_findings(logdir: Path, capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "report", logdir)
    assert (code, err) == (0, "")
    good, bad = out.split("\nsub/bad  (")
    for text in (
        "good  (ended, began ",
        "steps       120  (0 to 119)",
        "skipped     1  (0.83 %)",
        "loss        first 2.5   last 1.31   best 1.31 at step 119",
        "loss scale  start 2^16   last 2^15   longest held 2^16 (60 steps)",
        "clipping    max_norm 1   100 % of the steps clipped",
        "bad_batch                 1         60         60  a scale that had held overflowed",
        "step 60",
        "3 of 12 gradients overflowed",
        "info  Nearly every step is clipped",
    ):
        assert text in good
    for text in (
        "last NaN",
        "non-finite in 40 steps",
        "forward_nonfinite        40",
        "error  The loss scale collapsed",
    ):
        assert text in bad
    assert "and 39 more like it, to step 119" in bad
    assert max(map(len, out.splitlines())) <= 100
    assert "\x1b" not in out


def test_report_caps_the_events_and_names_the_command_for_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recorder = Recorder(tmp_path / "a run")
    for step in range(30):
        recorder.note(f"note {step}")
        recorder.step()
    recorder.log.close()
    _, out, _ = run(capsys, "report", tmp_path)
    assert "note 19" in out and "note 20" not in out
    assert f"and 10 more: tbnum export {tmp_path} --run 'a run' --events" in out


def test_report_as_json_is_strict_versioned_and_holds_every_event(logdir: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "report", logdir, "--json")
    report = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (code, report["version"]) == (0, 1)
    good, bad = report["runs"]
    assert (good["run"], bad["run"]) == ("good", "sub/bad")
    assert good["skipped"] == {
        "steps": 1,
        "rate": 1 / 120,
        "inferred": False,
        "causes": {"bad_batch": {"skips": 1, "first_step": 60, "last_step": 60}},
    }
    assert bad["loss"]["last"] == "NaN"
    assert [event["kind"] for event in good["events"]] == ["skip", "scale_backoff"]
    assert len(bad["events"]) == 2 * 41 + 1
    assert bad["findings"][0]["rule"] == "scale_collapse"
    assert good["ended"] == "closed" and good["problems"] == []


def test_report_tells_that_the_scaler_was_disabled(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recorder = Recorder(tmp_path, scaler={"class": "GradScaler", "enabled": False})
    recorder.scale = NAN
    recorder.step()
    recorder.log.close()
    _, out, _ = run(capsys, "report", tmp_path)
    assert "loss scale  none: the GradScaler was disabled" in out


def test_report_of_one_run(logdir: Path, capsys: pytest.CaptureFixture[str]):
    _, out, _ = run(capsys, "report", logdir, "--run", "sub/bad")
    assert out.startswith("sub/bad  (") and "good" not in out


def test_report_of_a_run_without_a_step_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recorder = Recorder(tmp_path)
    recorder.log.flush()
    code, out, _ = run(capsys, "report", tmp_path)
    assert code == 0
    assert f"{tmp_path.name}  (running, or killed)" in out and "none recorded yet" in out
    recorder.log.close()


def test_a_run_that_was_killed_after_a_skip_and_before_any_row_has_that_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = LogWriter(tmp_path / "killed", columns=step_columns({"optimizer": 1}), meta={"first_step": 0})
    data = {"loss": math.nan, "loss_scale": 1024.0, "grad_norm": math.nan, "nonfinite_tensors": 2, "tensors": 2}
    log.write_event(Event(0, 1.7e9, "skip", data=data))
    _, out, _ = run(capsys, "check", tmp_path, "--max-skip-rate", "1")
    assert "(1 step, 1 skipped, 100 %)" in out and "no steps recorded" not in out
    code, out, _ = run(capsys, "report", tmp_path)
    assert code == 0 and "1 step" in out and "none recorded yet" not in out
    log.close()


def test_check_holds_or_fails_by_severity(logdir: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "check", logdir, "--run", "good")
    assert code == 0 and out == "ok      good  (120 steps, 1 skipped, 0.83 %)\n"
    code, out, _ = run(capsys, "check", logdir)
    assert code == 1
    assert "FAILED  sub/bad" in out and "error  The loss scale collapsed" in out
    assert run(capsys, "check", logdir, "--max-severity", "error")[0] == 0
    assert run(capsys, "check", logdir, "--run", "good", "--max-severity", "info")[0] == 0


def test_check_holds_or_fails_by_skip_rate(logdir: Path, capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "check", logdir, "--run", "good", "--max-skip-rate", "0.01")[0] == 0
    code, out, _ = run(capsys, "check", logdir, "--run", "good", "--max-skip-rate", "0.005", "--json")
    result = json.loads(out)
    assert (code, result["passed"]) == (1, False)
    assert result["runs"][0]["findings"][0]["rule"] == "max_skip_rate"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--fail-on", "error"], 0),
        (["--fail-on", "warning"], 0),  # a single bad batch is an event, and no finding
        (["--fail-on", "info"], 1),
        (["--max-severity", "info"], 0),
        (["--fail-on", "warning", "--max-severity", "info"], 0),  # the same, said twice
    ],
)
def test_check_fails_on_a_severity(logdir: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int):
    assert run(capsys, "check", logdir, "--run", "good", *options)[0] == code


def test_check_tells_of_warnings_that_alone_are_no_finding(logdir: Path, capsys: pytest.CaptureFixture[str]):
    _, out, _ = run(capsys, "check", logdir, "--run", "good", "--fail-on", "warning")
    assert out.splitlines()[1:] == ["        1 skip to read about in tbnum report; too few to be a finding"]


def test_a_loss_that_is_not_finite_at_the_end_fails_by_default_and_in_between_as_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name, spoiled in (("between", (50, 51)), ("end", (50, 119))):
        recorder = Recorder(tmp_path / name)
        for step in range(120):
            recorder.step(NAN if step in spoiled else 2.5 - 0.01 * step, overflow=step in spoiled)
        recorder.log.close()
    codes = {
        (name, *options): run(capsys, "check", tmp_path / name, *options)[0]
        for name in ("between", "end")
        for options in ((), ("--fail-on", "warning"))
    }
    assert list(codes.values()) == [0, 1, 1, 1]
    _, out, _ = run(capsys, "report", tmp_path / "between")
    assert "error" not in out and "warning  skip, forward_nonfinite" in out


def test_since_leaves_out_what_was_before_and_judges_with_it(logdir: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "report", logdir, "--run", "good", "--since", "50", "--json")
    (part,) = json.loads(out)["runs"]
    assert (code, part["steps"], part["first_step"], part["skipped"]["steps"]) == (0, 70, 50, 1)
    assert part["events"][0]["cause"] == "bad_batch" and "held for 60 steps" in part["events"][0]["message"]
    _, out, _ = run(capsys, "check", logdir, "--run", "good", "--since", "61", "--max-skip-rate", "0")
    assert out == "ok      good  (59 steps, 0 skipped, 0 %)\n"
    assert run(capsys, "check", logdir, "--since", "60", "--max-skip-rate", "0")[0] == 1
    when = datetime.fromtimestamp(START + 100).isoformat()
    _, out, _ = run(capsys, "report", logdir, "--run", "good", "--since", when)
    assert "steps       20  (100 to 119)" in out


def test_one_run_that_cannot_be_read_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record(tmp_path / "good")
    garbage(tmp_path / "broken")
    record(tmp_path / "worse", nan_from=100)
    code, out, err = run(capsys, "report", tmp_path)
    assert code == 2 and "good  (ended" in out and "worse  (ended" in out
    assert err == "".join(f"tbnum: nothing of the run 'broken' can be read: {err.partition('read: ')[2]}") != ""
    code, out, err = run(capsys, "check", tmp_path)
    assert code == 2 and "ok      good" in out and "FAILED  worse" in out and "'broken'" in err
    code, out, _ = run(capsys, "check", tmp_path, "--json")
    reported = json.loads(out)
    assert code == 2 and reported["passed"] is False and [row["run"] for row in reported["runs"]] == ["good", "worse"]


def test_since_leaves_out_runs_that_ended_before_and_fails_those_that_hang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """As for a monitor of a folder in which runs end, hour by hour."""
    for name, steps, close in (("short", 50, True), ("shorter", 40, True), ("long", 200, True), ("hung", 60, False)):
        recorder = Recorder(tmp_path / name)
        for step in range(steps):
            recorder.step(2.5 - 0.01 * step)
        recorder.log.close() if close else recorder.log.flush()
    when = datetime.fromtimestamp(START + 150).isoformat()
    code, out, err = run(capsys, "check", tmp_path, "--since", when)
    assert code == 1 and "ok      long  (50 steps" in out and "short" not in out
    assert f"FAILED  hung  (60 steps, 0 skipped, 0 %)\n        error  No step since {when}\n" in out
    assert err == f"tbnum: the run 'short' has no step since {when}, nor has another; left out\n"
    code, out, err = run(capsys, "report", tmp_path, "--since", "100")
    assert code == 0 and out.startswith("long  (ended") and "nor have 2 others; left out" in err
    code, out, err = run(capsys, "check", tmp_path, "--since", "500")
    assert (code, out) == (2, "") and err.endswith("has no step since 500: give an earlier --since\n")


def test_since_a_time_holds_where_the_clock_was_set_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = open_log(tmp_path / "run")
    append(log, range(60), {step: {"wall_time": START + step - 40 * (step >= 50)} for step in range(60)})
    log.close()
    when = datetime.fromtimestamp(START + 45).isoformat()
    _, out, _ = run(capsys, "report", tmp_path, "--since", when)
    assert "steps       15  (45 to 59)" in out


def test_report_as_html_is_one_file_without_script_whose_names_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    logdir = tmp_path / "<script>alert(1)</script> & more"
    recorder = Recorder(logdir)
    recorder.note('<img src=x onerror="alert(2)">')
    for step in range(200):
        recorder.step(NAN if step in (90, 91) else 2.5 - 0.01 * step, overflow=step in (60, 90, 91))
    recorder.log.close()
    file = tmp_path / "report.html"
    assert run(capsys, "report", logdir, "--html", file) == (0, "", "")
    page = file.read_text(encoding="utf-8")
    elements = Elements(page)
    assert elements.unclosed == []
    assert elements.names >= {"html", "svg", "path", "g", "title", "table"}
    assert not elements.names & {"script", "img", "link", "iframe", "object", "foreignobject"}
    assert not [name for name in elements.attributes if name.startswith("on") or name in ("src", "xlink:href")]
    assert "http" not in page.replace("http-equiv", "")
    for text in ("alert(1)", "alert(2)", "forward nonfinite", "step 60: skip (bad batch)", "the loss was not finite"):
        assert text in elements.text
    assert "NaN" not in "".join(elements.paths) and "inf" not in "".join(elements.paths)
    assert len(page) < 200_000


def test_the_page_has_round_numbers_on_its_axes_and_a_loss_scale_in_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    recorder = Recorder(tmp_path / "run")
    for step in range(198):
        recorder.step(0.9747 + 0.0031 * step, overflow=step in (60, 120))
    recorder.log.close()
    assert run(capsys, "report", tmp_path, "--html", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    loss, scale = page.split("<figure>")[1:3]
    assert re.findall(r"<text class=step [^>]*>([^<]*)", loss) == ["0", "50", "100", "150"]
    assert re.findall(r"<text class=label [^>]*>([^<]*)", loss) == ["1.0", "1.2", "1.4"]
    assert re.findall(r"<text class=label [^>]*>([^<]*)", scale) == [
        "2\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT FOUR}",
        "2\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT FIVE}",
        "2\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT SIX}",
    ]
    (path,) = re.findall(r'<path class="line" style="--line:var.--scale." d="([^"]*)"', scale)
    assert "L" not in path and path.count("M") == 1  # across and up or down, nothing aslant


def test_round_numbers_are_found_for_any_range():
    for low, high in ((0.0, 1.0), (-3.2, 7.9), (1e-30, 3e-30), (2.50001, 2.50003), (-1e308, 1e308), (0.0, 5e-324)):
        ticks = tbnum.charts._round_values(low, high)
        assert 2 <= len(ticks) <= 7 and len({words for _, words in ticks}) == len(ticks), (low, high, ticks)
        assert all(low - 1e-12 * abs(low) <= value <= high + 1e-12 * abs(high) for value, _ in ticks)


class Elements(HTMLParser):
    """What a page is made of."""

    VOID = frozenset({"meta", "br", "hr", "img", "link"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.paths: list[str] = []
        self.text = ""
        self.unclosed: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.paths += [value or "" for name, value in attrs if name == "d"]
        if tag not in self.VOID:
            self.unclosed.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed and self.unclosed.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_report_of_many_steps_as_html_stays_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record(tmp_path / "run", steps=30_000)
    file = tmp_path / "report.html"
    assert run(capsys, "report", tmp_path, "--html", file)[0] == 0
    assert file.stat().st_size < 150_000


def test_check_fails_a_run_without_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Recorder(tmp_path).log.close()
    code, out, _ = run(capsys, "check", tmp_path)
    assert code == 1 and "No steps were recorded" in out


def test_check_counts_one_step_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record(tmp_path / "run", steps=1)
    assert run(capsys, "check", tmp_path)[1] == "ok      run  (1 step, 0 skipped, 0 %)\n"


def test_export_csv_has_every_step_and_tells_unknown_from_nan(logdir: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "export", logdir, "--run", "sub/bad")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and len(rows) == 120
    assert rows[0].keys() == set(COLUMNS)
    assert rows[10] == {
        **dict.fromkeys(COLUMNS, ""),
        **{"step": "10", "wall_time": "1700000010.0", "loss": "2.4", "micro_batches": "1.0", "loss_scale": "65536.0"},
        **{"grad_norm": "2.0", "clip_coef": "0.5", "max_norm": "1.0", "skipped": "0", "nonfinite_tensors": "0.0"},
        **{"lr": "0.001", "grad_norm_clipped": "nan"},
    }
    assert (rows[100]["loss"], rows[100]["grad_norm"], rows[100]["clip_coef"]) == ("nan", "inf", "")


def test_export_json_tells_unknown_from_nan(logdir: Path, capsys: pytest.CaptureFixture[str]):
    _, out, _ = run(capsys, "export", logdir, "--run", "sub/bad", "--format", "json")
    exported = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    columns = exported["columns"]
    assert exported["version"] == 1 and exported["run"] == "sub/bad"
    assert columns["step"] == list(range(120))
    assert columns["loss"][79:81] == [pytest.approx(1.71), "NaN"]
    assert columns["grad_norm"][100] == "Infinity"
    assert columns["growth_tracker"][0] is None
    assert exported["meta"]["scaler"]["growth_interval"] == 200


def test_export_npz_is_bit_for_bit_what_read_gives(logdir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    file = tmp_path / "steps.npz"
    assert run(capsys, "export", logdir, "--run", "good", "--format", "npz", "-o", file)[0] == 0
    steps = tbnum.cli.read(logdir)["good"].steps
    with np.load(file) as exported:
        assert set(exported) == set(steps)
        for name, values in steps.items():
            np.testing.assert_array_equal(exported[name], values, strict=True)


def test_export_json_lines_has_a_line_a_step(logdir: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "export", logdir, "--run", "sub/bad", "--format", "jsonl")
    lines = [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in out.splitlines()]
    assert code == 0 and [line["step"] for line in lines] == list(range(120))
    assert lines[10]["loss"] == 2.4 and "growth_tracker" not in lines[10]
    assert (lines[100]["loss"], lines[100]["grad_norm"], lines[100]["skipped"]) == ("NaN", "Infinity", True)
    _, out, _ = run(capsys, "export", logdir, "--run", "good", "--format", "jsonl", "--events")
    assert [json.loads(line)["kind"] for line in out.splitlines()] == ["skip", "scale_backoff"]


def test_export_parquet_tells_unknown_from_nan_or_says_what_it_needs(
    logdir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    file = tmp_path / "steps.parquet"
    code, _, err = run(capsys, "export", logdir, "--run", "sub/bad", "--format", "parquet", "-o", file)
    try:
        from pyarrow import parquet
    except ImportError:
        assert (code, err) == (2, "tbnum: parquet needs pyarrow: pip install pyarrow\n") and not file.exists()
        return
    table = parquet.read_table(file)
    assert table.column_names == list(COLUMNS) and table.num_rows == 120
    assert table["growth_tracker"][0].as_py() is None and math.isnan(table["loss"][100].as_py())


@pytest.mark.parametrize("form", ["csv", "json"])
def test_export_events_has_causes_and_data(logdir: Path, capsys: pytest.CaptureFixture[str], form: str):
    _, out, _ = run(capsys, "export", logdir, "--run", "good", "--events", "--format", form)
    if form == "json":
        skip = json.loads(out)["events"][0]
    else:
        skip = next(csv.DictReader(io.StringIO(out)))
        skip["data"] = json.loads(skip["data"])
    assert (skip["kind"], skip["cause"], skip["severity"]) == ("skip", "bad_batch", "warning")
    assert skip["data"]["loss_scale"] == 65536.0 and skip["data"]["grad_norm"] == "Infinity"


def garbage(folder: Path) -> Path:
    folder.mkdir()
    (folder / "1700000000000.host.1.tbnum").write_bytes(b"no log at all" * 1000)
    return folder


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report", "{}/missing"], ["missing", "no folder"]),
        (["report", "{}/file"], ["file"]),
        (["report", "{}/empty"], ["no runs in", "logdir of tbnum.wrap()"]),
        (["report", "{}/garbage"], ["nothing of the run 'garbage' can be read"]),
        (["report", "{}/runs", "--run", "none"], ["no run 'none'", "there is 'a', 'b'"]),
        (["check", "{}/empty"], ["no runs in"]),
        (["check", "{}/garbage"], ["nothing of the run"]),
        (["export", "{}/runs"], ["2 runs in", "--run", "'a', 'b'"]),
        (["export", "{}/runs", "--run", "a", "-o", "{}/no/such/file"], ["cannot write", "No such file"]),
        (["export", "{}/runs", "--run", "a", "--format", "npz", "--events"], ["csv, json or jsonl"]),
        (["tail", "{}/missing"], ["missing"]),
        (["report", "{}/newer"], ["format 99", "install a newer tbnum"]),
        (["check", "{}/runs", "--fail-on", "error", "--max-severity", "info"], ["contradict each other"]),
        (["check", "{}/runs", "--since", "5"], ["no step since 5", "earlier"]),
        (["report", "{}/runs", "--since", "1h"], ["no step since 1h"]),
        (["report", "{}/runs", "--html", "{}/no/such/file"], ["cannot write"]),
    ],
)
def test_unusable_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: list[str]
):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    garbage(tmp_path / "garbage")
    LogWriter(tmp_path / "newer", columns=COLUMNS, meta={**META, "format_version": 99}).close()
    for name in "ab":
        record(tmp_path / "runs" / name, steps=5)
    code, out, err = run(capsys, *[text.format(tmp_path) for text in arguments])
    assert (code, out) == (2, "")
    assert err.startswith("tbnum: ") and err.count("\n") == 1
    assert all(text in err for text in says), err


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", ".", "--max-skip-rate", "1.5"],
        ["check", ".", "--max-skip-rate", "nan"],
        ["check", ".", "--max-severity", "fatal"],
        ["check", ".", "--max-skip-rate", "many"],
        ["check", ".", "--fail-on", "fatal"],
        ["check", ".", "--since", "yesterday"],
        ["report", ".", "--json", "--html", "page.html"],
        ["tail", ".", "--interval", "0"],
        ["export", ".", "--format", "xml"],
        ["report"],
        ["nonsense"],
    ],
)
def test_arguments_that_make_no_sense_are_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        tbnum.cli.main(arguments)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("tbnum") and err.count("\n") == 1 and "--help" in err


def test_the_version_is_reported(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match=r"^0$"):
        tbnum.cli.main(["--version"])
    assert capsys.readouterr().out == f"tbnum {tbnum.__version__}\n"


def test_no_command_loads_torch_or_tensorboards_server(logdir: Path):
    commands = [["report"], ["check"], ["export", "--run", "good"], ["tail", "--run", "good"]]
    code = (
        "import sys, tbnum.cli\n"
        f"for name, *rest in {commands!r}:\n"
        f"    tbnum.cli.main([name, {str(logdir)!r}, *rest])\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'tensorflow', 'matplotlib'}, loaded\n"
        "assert 'tensorboard.program' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=1200)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    "arguments", [["report"], ["export", "--run", "."], ["export", "--run", ".", "--format", "npz"]]
)
def test_a_closed_pipe_is_silent(tmp_path: Path, arguments: list[str]):
    record(tmp_path, steps=3000)
    process = subprocess.Popen(
        command(arguments[0], tmp_path, *arguments[1:]), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(1200) == 0
    process.stderr.close()


def test_a_closed_pipe_does_not_hide_a_failed_check(tmp_path: Path):
    record(tmp_path, nan_from=80)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command("check", tmp_path), stdout=writer, stderr=subprocess.PIPE, timeout=1200)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("command", ["report", "check", "tail"])
def test_no_name_and_no_note_steers_the_terminal(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recorder = Recorder(tmp_path / "a\x1b[31mb\nc\x9b2J")
    recorder.step()
    recorder.note("so \x1b[2J far,\nso good")
    recorder.log.close()
    tbnum.cli.main([command, str(tmp_path)])
    shown = capsys.readouterr()
    assert not set(shown.out + shown.err) & {"\x1b", "\x9b"}
    if command != "tail":
        assert "a\\x1b[31mb c\\x9b2J" in shown.out
    if command != "check":
        assert "so \\x1b[2J far, so good" in shown.out


def test_names_that_the_terminal_cannot_print_are_no_error(tmp_path: Path):
    record(tmp_path / "lauf-ü-≥", steps=5)
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command("report", tmp_path), capture_output=True, env=environment, timeout=1200)
    assert done.returncode == 0 and b"lauf-?-?" in done.stdout


def test_tail_follows_a_live_run_until_it_is_closed(tmp_path: Path):
    recorder = Recorder(tmp_path)
    for _ in range(20):
        recorder.step()
    recorder.log.flush()
    process = subprocess.Popen(
        command("tail", tmp_path, "--interval", "0.02"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "step 19  skipped 0 of 20  loss 2.5  scale 2^16\n"
        recorder.step(loss=9.0, overflow=True)
        assert "warning  skip, bad_batch" in process.stdout.readline()
        recorder.log.close()
        rest = process.stdout.read()  # not communicate(), which forgets what readline() has buffered
        _, err = process.communicate(timeout=1200)
    finally:
        process.kill()
    assert rest.endswith("the run has ended\n") and "3 of 12 gradients overflowed" in rest
    assert (process.returncode, err) == (0, "")


def test_tail_tells_a_collapse_that_no_event_of_the_log_is(tmp_path: Path):
    recorder = Recorder(tmp_path)
    recorder.step()
    recorder.log.flush()
    process = subprocess.Popen(command("tail", tmp_path, "--interval", "0.02"), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("step 0")
        for _ in range(12):
            recorder.step(loss=NAN, overflow=True)
        recorder.log.close()
        out = process.stdout.read()
        process.communicate(timeout=1200)
    finally:
        process.kill()
    assert out.count("scale_collapse") == 1 and "fell from 2^16 to" in out


def test_tail_ends_with_ctrl_c(tmp_path: Path):
    recorder = Recorder(tmp_path)
    recorder.step()
    recorder.log.flush()
    process = subprocess.Popen(
        command("tail", tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background have it ignored
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("step 0")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=1200)
    finally:
        process.kill()
        recorder.log.close()
    assert (process.returncode, out, err) == (0, "", "")
