"""Whatever stands beside a log under a name like its own is neither waited for nor read."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import tbnum
from tbnum.log.files import open_raw
from tbnum.log.reader import Run
from tbnum.log.record_file import RecordAppender
from tests.recorded import record

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes have names on POSIX alone")

NAMES = (
    "x.tbnum",
    "9999999999999.host.1.tbnum",
    "9999999999999.host.1.rank1.tbnum",
    "9999999999999.host.1.tensors.tbnum",
    "events.out.tfevents.1.host",
)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{short}/s")  # the address of a socket has a hundred characters at most
        os.rename(f"{short}/s", path)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path.name)


KINDS: tuple[Callable[[Path], None], ...] = (pipe, unix_socket, folder, device, circle)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def crowded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A log directory with a run, in whose folder, and beside it, other things have the names of logs."""
    record(tmp_path / "run")
    (tmp_path / "other").mkdir()
    for place in (tmp_path / "run", tmp_path / "other", tmp_path):
        for name in NAMES:
            request.param(place / name)
    yield tmp_path


COMMANDS = """
import sys, tbnum.cli
for command in ("report", "check", "export"):
    assert tbnum.cli.main([command, sys.argv[1], *(("--run", "run") if command == "export" else ())]) == 0, command
    print("--", flush=True)
"""


def test_a_run_is_read_as_if_it_were_alone(crowded: Path) -> None:
    runs = tbnum.read(crowded)
    assert list(runs) == ["run"]
    run = runs["run"]
    assert len(run.steps["step"]) == 10 and run.problems == [] and len(run.meta["sessions"]) == 1
    assert run.meta["ranks"] == {} and run.ranks is None
    assert list(run.tensors) == [] and run.refresh() is False


def test_a_training_records_beside_them(crowded: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for place in ("run", "other", "new"):
        with tbnum.wrap(optimizer, model=model, logdir=crowded / place):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(Run(crowded / "new").steps["step"]) == 1


def test_every_command_answers(crowded: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, str(crowded)], capture_output=True, text=True, timeout=1200
    )  # of its own: it can be ended where one of them waits
    assert done.returncode == 0, done.stderr
    report, check, export, _ = done.stdout.split("--\n")
    assert "10" in report and "ok" in check and len(export.splitlines()) == 11


@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.__name__)
def test_what_takes_a_files_place_while_it_is_read_or_written_is_an_error(
    kind: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "1.host.1.tbnum"
    appender = RecordAppender(path, new=True)
    path.unlink()
    kind(path)
    with pytest.raises(OSError), open_raw(path):
        pass
    with pytest.raises(OSError):
        appender.renew()
    appender.close()
