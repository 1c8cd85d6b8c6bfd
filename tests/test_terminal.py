"""What `wrap` prints: where it records, and what is worth a look while training runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tqdm import tqdm

import tbnum
from tests import warm
from tests.loops import OPTIMIZERS, Half, batches, train


def trained(logdir: Path, **options: object) -> tbnum.Monitor:
    torch.manual_seed(0)
    model = Half()
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=logdir, **options) as monitor:  # type: ignore[arg-type]
        train(model, optimizer, scaler, batches(40, bad=[30]))
    return monitor


def test_one_line_says_where_the_run_is_and_how_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    trained(tmp_path / "my run")
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == ""
    assert "recording to 'runs/my run'" in line
    assert "`tensorboard --logdir runs`" in line and "`tbnum report 'runs/my run'`" in line


def test_wrapping_again_says_nothing_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    optimizer = OPTIMIZERS["AdamW"](Half().parameters())
    with tbnum.wrap(optimizer, logdir=tmp_path):
        capsys.readouterr()
        tbnum.wrap(optimizer, logdir=tmp_path, verbose=True)
        assert capsys.readouterr().err == ""


def test_verbose_false_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path, verbose=False)
    assert capsys.readouterr() == ("", "")


def test_verbose_true_prints_warnings_with_their_remedy_and_no_infos(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, verbose=True)
    first, *more = capsys.readouterr().err.splitlines()
    (run,) = tbnum.read(tmp_path).values()
    grave = [event for event in run.events if event.severity != "info"]
    assert "recording to" in first and len(more) == len(grave) == 1 < len(run.events)
    assert more[0].startswith("tbnum: step 30: warning: skip, bad_batch: ")
    assert "gradients overflowed" in more[0] and "Look at the batch of step 30" in more[0]


def test_a_line_stands_above_a_progress_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tqdm(total=3, file=sys.stderr) as bar:
        bar.update()
        trained(tmp_path)
    assert any(line.split("\r")[-1].startswith("tbnum: recording") for line in capsys.readouterr().err.splitlines())


@pytest.mark.parametrize("stderr", ["None", "open(os.devnull)"])
def test_training_goes_on_without_a_terminal(stderr: str, tmp_path: Path) -> None:
    """`pythonw` has no standard error; one that is not open for writing raises."""
    program = (
        "import os, sys, torch, tbnum\n"
        "parameter = torch.nn.Parameter(torch.ones(1))\n"
        "optimizer = torch.optim.SGD([parameter], lr=0.1)\n"
        f"sys.stderr = {stderr}\n"
        f"with tbnum.wrap(optimizer, logdir={str(tmp_path)!r}, verbose=True):\n"
        "    parameter.sum().backward(); optimizer.step()\n"
        "print('done')\n"
    )
    done = subprocess.run([*warm.python(), "-c", program], capture_output=True, text=True, timeout=1200)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_rank_zero_alone_prints(tmp_path: Path) -> None:
    program = (
        "import torch, tbnum\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "parameter = torch.nn.Parameter(torch.ones(1))\n"
        f"tbnum.wrap(torch.optim.SGD([parameter], lr=0.1), logdir={str(tmp_path)!r}).close()\n"
        "dist.destroy_process_group()\n"
    )
    script = tmp_path.parent / "train.py"
    script.write_text(program, encoding="utf-8")
    command = [*warm.torchrun(2), str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1200, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tbnum: recording to") == 1
