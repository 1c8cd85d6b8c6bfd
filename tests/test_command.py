"""The command as it is typed: help, several folders, a table of runs, waiting for a run, and a terminal's colours."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tbnum
from tbnum.command import tail
from tests.test_cli import Recorder, command, logdir, record, run, wide_terminal  # noqa: F401 - fixtures among them


def in_a_terminal(*arguments: object, columns: int = 100) -> str:
    """What the command prints where standard output and standard error are a terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command(*arguments), stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    printed = b""
    try:
        while chunk := os.read(leader, 65536):
            printed += chunk
    except OSError:  # Linux's end of a terminal
        pass
    os.close(leader)
    assert process.wait(1200) == 0
    return printed.decode().replace("\r\n", "\n")


def test_without_arguments_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert out.startswith("usage: tbnum") and "report" in out and "tail" in out


def test_python_dash_m_is_the_command(tmp_path: Path) -> None:
    record(tmp_path, steps=3)
    done = subprocess.run([sys.executable, "-m", "tbnum", "check", tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("ok      runs")


def test_several_runs_begin_with_a_table_and_then_those_worth_reading(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(30):
        record(tmp_path / f"run{number:02}", steps=80, overflow_at=None)
    record(tmp_path / "spoiled", nan_from=80)
    code, out, _ = run(capsys, "report", tmp_path)
    head, *rows = out.splitlines()
    assert code == 0
    assert head.split() == ["run", "steps", "skips", "spikes", "findings", "last", "loss", "scale"]
    assert rows[0].split()[:4] == ["run00", "80", "0", "0"] and rows[0].split()[-2:] == ["1.71", "2^16"]
    assert rows[30].split()[:4] == ["spoiled", "120", "41", "0"] and "error" in rows[30]
    full = [line for line in rows[31:] if re.match(r"\S+  \(ended", line)]
    assert [line.split()[0] for line in full] == ["spoiled"]
    assert len(rows) < 80 and rows[-1].startswith("30 of the 31 runs have no more to report")


def test_several_folders_are_one_list_of_runs(
    logdir: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path_factory.mktemp("other")
    record(other, steps=7)
    code, out, _ = run(capsys, "check", logdir, other)
    assert code == 1
    assert f"{logdir}/good" in out and f"{logdir}/sub/bad" in out and f"ok      {other}  (7 steps" in out
    code, out, _ = run(capsys, "export", logdir, other, "--run", other)
    assert code == 0 and len(out.splitlines()) == 8
    code, _, err = run(capsys, "report", logdir, other / "missing")
    assert code == 2 and "missing" in err


def test_tail_waits_for_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    logdir = tmp_path / "later"  # noqa: F811
    process = subprocess.Popen(
        command("tail", logdir, "--wait", "--interval", "0.02"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == f"waiting for a run in {logdir}\n"
        recorder = Recorder(logdir)
        recorder.step()
        recorder.step(overflow=True)
        recorder.log.close()
        rest, err = process.communicate(timeout=1200)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    assert "skip, bad_batch" in rest and rest.endswith("the run has ended\n")


def test_tail_shows_all_of_a_run_that_it_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logdir = tmp_path / "later"  # noqa: F811

    def begin_and_end(seconds: float) -> None:
        """While the command waits, between two looks."""
        if not logdir.exists():
            recorder = Recorder(logdir)
            recorder.step()
            recorder.step(overflow=True)
            recorder.log.close()

    monkeypatch.setattr(tail.time, "sleep", begin_and_end)
    code, out, _ = run(capsys, "tail", logdir, "--wait")
    assert code == 0 and "skip, bad_batch" in out and out.endswith("the run has ended\n")
    code, out, _ = run(capsys, "tail", logdir, "--wait")
    assert code == 0 and out.endswith("the run has ended\n")
    assert "skip, bad_batch" not in out, "of a run that was there before, what is worth reading"


def test_a_terminal_has_colours_and_a_pipe_has_none(logdir: Path) -> None:  # noqa: F811
    shown = in_a_terminal("report", logdir)
    assert "\x1b[31merror\x1b[0m" in shown and "\x1b[33mwarning\x1b[0m" in shown
    plain = subprocess.run(command("report", logdir), capture_output=True, text=True).stdout
    assert "\x1b" not in plain
    without = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown)
    assert "The loss scale collapsed" in without and "The loss scale collapsed" in plain


def test_lines_are_as_wide_as_the_terminal(logdir: Path) -> None:  # noqa: F811
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", in_a_terminal("report", logdir, "--run", "good", columns=60))
    wrapped = [line for line in shown.splitlines() if line.startswith("      ")]
    assert wrapped and max(map(len, wrapped)) <= 60


def test_tail_in_a_terminal_shows_markup_in_a_name_as_it_is(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a [bold]run")
    recorder.note("so [red]far")
    recorder.step()
    recorder.log.close()
    shown = in_a_terminal("tail", tmp_path)
    assert "so [red]far" in shown and "step 0  skipped 0 of 1" in shown and "the run has ended" in shown
    assert "a [bold]run" in in_a_terminal("report", tmp_path)


def test_the_version_is_the_packages() -> None:
    done = subprocess.run([sys.executable, "-m", "tbnum", "--version"], capture_output=True, text=True)
    assert done.stdout == f"tbnum {tbnum.__version__}\n"
