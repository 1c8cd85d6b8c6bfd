"""The demo as a person starts it: in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import tbnum
from tests import warm

DEMO = Path(__file__).parents[1] / "demo"
SOME_TEXT = Path(json.__file__).parent  # a folder of the standard library, which any machine has


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(DEMO / "pretrain.py"), "--data", str(SOME_TEXT), *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}  # so small a model gains nothing from a second


def pretrain(*arguments: object) -> str:
    """In a process that has torch loaded already; Ctrl-C and the ranks have a Python and a torchrun of their own."""
    program = [*warm.python(), *command(*arguments)[1:]]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def checkpoint(logdir: Path) -> dict:
    return torch.load(logdir / "checkpoint.pt", weights_only=True)


def data_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_data", DEMO / "data.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def assert_same(one: object, other: object, where: str = "") -> None:
    """Bitwise, through all nesting."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for place, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{where}/{place}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of 20 steps in one go."""
    logdir = tmp_path_factory.mktemp("straight")
    return logdir, pretrain("--logdir", logdir, "--steps", 20, "--bad-batch-at", 12)


def test_a_run_records_every_step_and_says_what_it_skipped(straight: tuple[Path, str]) -> None:
    logdir, screen = straight
    run = tbnum.read(logdir)["."]
    assert run.steps["step"].tolist() == list(range(20))
    skipped = int(run.steps["skipped"].sum())
    assert skipped >= 3, "the first loss scale is far too high"
    assert f"{skipped} of all 20 were skipped" in screen
    assert run.meta["config"]["seed"] == 1337


def test_the_first_skips_are_a_scale_that_comes_down(straight: tuple[Path, str]) -> None:
    run = tbnum.read(straight[0])["."]
    skips = [event for event in run.events if event.kind == "skip"]
    assert [skip.cause for skip in skips[:3]] == ["scale_warmup"] * 3
    assert run.steps["loss_scale"][0] == 2.0**24
    assert np.all(np.diff(run.steps["loss_scale"][: len(skips)]) < 0)


def test_the_bad_batch_is_labelled_as_injected_in_the_log_and_on_the_screen(straight: tuple[Path, str]) -> None:
    logdir, screen = straight
    (note,) = [event for event in tbnum.read(logdir)["."].events if event.kind == "annotation"]
    assert note.step == 12
    assert note.data["injected"] is True
    assert "injected by the demo" in screen


def test_the_validation_loss_stands_beside_the_entropy_of_the_bytes(straight: tuple[Path, str]) -> None:
    _, screen = straight
    for words in ("to beat:", "validation loss:", "by byte frequency alone:", "bits a byte", "tensorboard --logdir"):
        assert words in screen


def test_a_resumed_run_is_bitwise_the_run_in_one_go(straight: tuple[Path, str], tmp_path: Path) -> None:
    logdir, _ = straight
    screen = pretrain("--logdir", tmp_path, "--steps", 20, "--bad-batch-at", 12, "--stop-at", 11)
    assert "stopped before step 11" in screen and "--resume" in screen
    pretrain("--logdir", tmp_path, "--resume")

    one, other = checkpoint(logdir), checkpoint(tmp_path)
    assert one["monitor"].pop("session") != other["monitor"].pop("session")
    assert_same(one, other)

    run, resumed = tbnum.read(logdir)["."], tbnum.read(tmp_path)["."]
    for name in ("step", "loss", "grad_norm", "loss_scale", "skipped"):
        np.testing.assert_array_equal(run.steps[name], resumed.steps[name], err_msg=name)
    assert [event.step for event in resumed.events if event.kind == "resume"] == [11]


def test_ctrl_c_ends_the_step_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--logdir", tmp_path, "--steps", 100000),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if line.startswith("step 0:"):  # the first skip: training has begun
                process.send_signal(signal.SIGINT)
                break
        rest = process.stdout.read()
    assert process.returncode == 0, rest
    assert "to go on:" in rest
    assert checkpoint(tmp_path)["step"] == len(tbnum.read(tmp_path)["."].steps["step"]) >= 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_a_scaler_the_loss_is_recorded_and_nothing_is_skipped(dtype: str, tmp_path: Path) -> None:
    pretrain("--logdir", tmp_path, "--steps", 6, "--dtype", dtype, "--bad-batch-at", 0)
    run = tbnum.read(tmp_path)["."]
    assert np.isfinite(run.steps["loss"]).all() and len(run.steps["loss"]) == 6
    assert not run.steps["skipped"].any()
    assert np.isnan(run.steps["loss_scale"]).all()
    assert not [event for event in run.events if event.kind == "annotation"]


def test_resume_without_a_checkpoint_says_what_is_missing(tmp_path: Path) -> None:
    program = [*warm.python(), *command("--logdir", tmp_path, "--resume")[1:]]
    done = subprocess.run(program, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 2
    assert "checkpoint.pt" in done.stderr and "without --resume" in done.stderr


def test_files_are_held_out_whole_and_the_same_ones_each_time(tmp_path: Path) -> None:
    data = data_module()
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(f"<{number}> " * 50)
    (tmp_path / "copy.txt").write_text("<7> " * 50)
    text = data.load_text(tmp_path)
    train, validation = (bytes(part.numpy()).decode() for part in (text.train, text.validation))
    held_out = {number for number in range(30) if f"<{number}>" in validation}
    assert 3 <= len(held_out) <= 6
    assert not [number for number in held_out if f"<{number}>" in train]
    assert text.files == 30, "a copy would carry held-out text into training"
    again = data.load_text(tmp_path)
    assert torch.equal(text.train, again.train) and torch.equal(text.validation, again.validation)


def test_the_end_of_a_single_file_is_held_out(tmp_path: Path) -> None:
    data = data_module()
    file = tmp_path / "one.txt"
    file.write_bytes(b"a" * 900 + b"b" * 100)
    text = data.load_text(file)
    assert bytes(text.train.numpy()) == b"a" * 900
    assert bytes(text.validation.numpy()) == b"b" * 100


def test_byte_entropy_is_that_of_the_held_out_bytes() -> None:
    data = data_module()
    four = torch.tensor([0, 1, 2, 3] * 25, dtype=torch.uint8)
    assert data.Text(four[:0], four, 1, Path()).byte_entropy() == pytest.approx(np.log(4))


def test_a_place_without_text_is_reported(tmp_path: Path) -> None:
    data = data_module()
    with pytest.raises(FileNotFoundError, match="missing"):
        data.load_text(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\0\1")
    with pytest.raises(ValueError, match="no text in"):
        data.load_text(tmp_path)


def test_two_ranks_go_on_from_their_checkpoint_as_one_run_and_the_bad_batch_is_one_rank_s(tmp_path: Path) -> None:
    def train(torchrun: list[str], *arguments: object) -> str:
        options = ["--strategy", "fsdp", "--logdir", str(tmp_path), *map(str, arguments)]
        program = [*torchrun, *command()[1:], *options]
        done = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    begun = train(warm.torchrun(2), "--steps", 12, "--bad-batch-at", 10, "--stop-at", 6)
    assert "fsdp on 2 ranks" in begun
    train([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], "--resume")
    run = tbnum.read(tmp_path)["."]
    assert run.steps["step"].tolist() == list(range(12)) and run.problems == []
    taken = ~run.steps["skipped"]
    assert taken.any() and np.isfinite(run.steps["grad_norm"][taken]).all()
    assert [event.step for event in run.events if event.kind == "resume"] == [6]
    numbers, losses = run.ranks.column("loss")
    assert numbers == (0, 1) and losses[1, 10] > losses[0, 10] + 0.3  # zero bytes, on the last rank
    alone = [*warm.python(), *command("--strategy", "ddp")[1:]]
    refused = subprocess.run(alone, env=environment(), capture_output=True, text=True, timeout=1200)
    assert refused.returncode == 2 and "torchrun" in refused.stderr
