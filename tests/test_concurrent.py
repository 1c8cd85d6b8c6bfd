"""Two trainings that record into one folder at once are reported as that, and a run that goes on never is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import tbnum
from tbnum.cli import main
from tbnum.explain import Finding, findings
from tests.recorded import START, append, open_log


def session(folder: Path, steps: range, begins: float, *, seconds: float = 1.0, host: str = "") -> Path:
    """A session that was killed: `steps` of so many seconds each, by its clock; `begins` is seconds since START."""
    log = open_log(folder, first_step=steps.start, start_time=START + begins)
    at = {step: {"wall_time": START + begins + seconds * (number + 1)} for number, step in enumerate(steps)}
    append(log, steps, at)
    log.close()
    if not host:
        return log.path
    rest = log.path.name.split(".", 2)[2]
    return log.path.rename(log.path.with_name(f"{int(START * 1000 + begins * 1000)}.{host}.{rest}"))


def run_of(folder: Path) -> Any:
    (run,) = tbnum.read(folder).values()
    return run


def reported(folder: Path) -> list[Finding]:
    return [finding for finding in findings(run_of(folder)) if finding.rule == "rival_sessions"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (range(300), range(200)),  # both from the start
        (range(300), range(400)),
        (range(100, 300), range(100, 300)),  # the same checkpoint
    ],
)
def test_two_trainings_at_once_are_named_with_the_way_out(tmp_path: Path, first: range, second: range) -> None:
    files = [session(tmp_path, first, 0), session(tmp_path, second, 60)]
    (finding,) = reported(tmp_path)
    assert finding.severity == "warning" and finding.steps == (second.start,)
    assert all(file.name in finding.evidence for file in files)
    assert f"From step {second.start} on, this run shows the second" in finding.evidence
    assert "clocks" not in finding.evidence
    assert "session=0" in finding.remedy and "session=1" in finding.remedy and "logdir of its own" in finding.remedy
    for number, steps in enumerate((first, second)):
        (alone,) = tbnum.read(tmp_path, session=number).values()
        assert alone.steps["step"].tolist() == list(steps) and alone.meta["concurrent_writers"] == []


def test_they_are_reported_while_they_go_on(tmp_path: Path) -> None:
    logs = [open_log(tmp_path, start_time=START), open_log(tmp_path, start_time=START + 1)]
    for log in logs:
        append(log, range(10))
    run = run_of(tmp_path)
    assert run.meta["concurrent_writers"] == []  # not for long enough to distinguish it from clocks
    for log in logs:
        append(log, range(10, 400))  # 40 s
    run.refresh()
    (pair,) = run.meta["concurrent_writers"]
    assert pair["sessions"] == [0, 1] and pair["files"] == [log.path.name for log in logs] and pair["first_step"] == 0
    for log in logs:
        log.close()


def test_hosts_whose_clocks_may_differ_have_to_train_at_once_for_longer(tmp_path: Path) -> None:
    session(tmp_path / "short", range(300), 0, host="a")
    session(tmp_path / "short", range(300), 10, host="b")
    assert reported(tmp_path / "short") == []
    session(tmp_path / "long", range(300), 0, seconds=10, host="a")
    session(tmp_path / "long", range(300), 10, seconds=10, host="b")
    (finding,) = reported(tmp_path / "long")
    assert "or the clocks of these hosts are that far apart" in finding.evidence and "on a)" in finding.evidence


RESUMES: dict[str, Iterable[tuple[range, float, str]]] = {
    "closed": [(range(300), 0, ""), (range(300, 600), 301, "")],
    "killed, from an older checkpoint": [(range(300), 0, ""), (range(200, 500), 305, "")],
    "over and over": [(range(300), 0, ""), (range(200, 500), 305, ""), (range(400, 700), 900, "")],
    "from the start": [(range(300), 0, ""), (range(300), 301, "")],
    "a clock that was set back by less than the pause": [(range(300), 0, ""), (range(200, 500), 300, "")],
    "a clock that was set back by a step or two": [(range(300), 0, ""), (range(200, 500), 297, "")],
    "another host, whose clock is five minutes behind": [(range(900), 0, "a"), (range(700, 1600), 620, "b")],
    "another host, whose clock is an hour behind": [(range(9000), 0, "a"), (range(8990, 16000), 5500, "b")],
    "another host, whose clock is ahead": [(range(900), 0, "a"), (range(700, 1600), 9000, "b")],
}


@pytest.mark.parametrize("how", RESUMES)
def test_a_run_that_goes_on_is_not_two_trainings(tmp_path: Path, how: str) -> None:
    for steps, begins, host in RESUMES[how]:
        session(tmp_path, steps, begins, host=host)
    assert reported(tmp_path) == [] and len(run_of(tmp_path).meta["sessions"]) == len(list(RESUMES[how]))


def test_the_report_and_the_check_tell_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session(tmp_path, range(300), 0)
    session(tmp_path, range(200), 60)
    assert main(["report", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Two trainings recorded into this folder at the same time" in out and "session=1" in out
    assert main(["check", str(tmp_path), "--fail-on", "warning"]) == 1
