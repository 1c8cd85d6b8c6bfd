"""Loops around an Accelerator, recorded by one line, beside a plain loop that does the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

import tbnum
from tests import warm
from tests.loops import Half, batches, train

accelerate = pytest.importorskip("accelerate")

from accelerate.state import AcceleratorState  # noqa: E402

from tbnum.integrations.accelerate import STATE_FILE, wrap  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, ACCUMULATE, MAX_NORM = 12, 2, 0.5
GOOD = batches(STEPS * ACCUMULATE)
DATA = batches(STEPS * ACCUMULATE, bad=[9])  # overflows, and only a scaler lives with that


class Loop:
    """What a program around an Accelerator has. On a CPU Accelerate makes no scaler by itself."""

    def __init__(self, with_scaler: bool = True, **settings: Any) -> None:
        precision = "fp16" if with_scaler else "no"
        self.accelerator = accelerate.Accelerator(
            cpu=True, mixed_precision=precision, gradient_accumulation_steps=ACCUMULATE, **settings
        )
        if with_scaler:
            self.accelerator.scaler = new_scaler()
            self.accelerator.native_amp = True  # else it does not unscale before it clips
        torch.manual_seed(0)
        model = Half()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.was_skipped: list[bool] = []

    def wrap(self, *arguments: Any, **options: Any) -> tbnum.Monitor:
        return wrap(self.accelerator, self.optimizer, self.model, *arguments, **options)

    def train(self, data: Sequence[Tensor] = DATA) -> Loop:
        for batch in data:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(batch).square().mean())
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), MAX_NORM)
                self.optimizer.step()
                if self.accelerator.sync_gradients:
                    self.was_skipped.append(self.optimizer.step_was_skipped)
                self.optimizer.zero_grad()
        return self


def new_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)


def run_of(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run


def plain_loop(logdir: Path, with_scaler: bool = True, data: Sequence[Tensor] = DATA) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = Half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = new_scaler() if with_scaler else None
    with tbnum.wrap(optimizer, scaler, model=model, logdir=logdir) as monitor:
        log_loss = None if with_scaler else monitor.log_loss
        train(model, optimizer, scaler, data, max_norm=MAX_NORM, accumulate=ACCUMULATE, log_loss=log_loss)
    return model, run_of(logdir)


def assert_same_parameters(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_last_short_window_of_an_epoch_shows_the_mean_of_its_losses(tmp_path: Path) -> None:
    """`accelerator.backward` divides each loss by the accumulation, whatever is left of the epoch."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=7)
    torch.manual_seed(0)
    model, optimizer, loader = accelerator.prepare(
        module := Half(), torch.optim.SGD(module.parameters(), lr=1e-3), DataLoader(list(GOOD[:12]), batch_size=None)
    )
    seen: list[float] = []
    with wrap(accelerator, optimizer, model, logdir=tmp_path / "run"):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                seen.append(loss.item())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    run = run_of(tmp_path / "run")
    assert run.steps["micro_batches"].tolist() == [7, 5]
    np.testing.assert_allclose(run.steps["loss"], [np.mean(seen[:7]), np.mean(seen[7:])], rtol=1e-6)


@pytest.mark.parametrize(("with_scaler", "data"), [(True, DATA), (False, GOOD)], ids=["scaler", "no scaler"])
def test_a_training_is_recorded_as_the_plain_loop_is_and_is_bitwise_the_one_without(
    with_scaler: bool, data: Sequence[Tensor], tmp_path: Path
) -> None:
    loop = Loop(with_scaler)
    with loop.wrap(logdir=tmp_path / "with"):
        loop.train(data)
    assert_same_parameters(loop.model, Loop(with_scaler).train(data).model)
    model, plain = plain_loop(tmp_path / "plain", with_scaler, data)
    assert_same_parameters(loop.model, model)
    run = run_of(tmp_path / "with")
    assert list(run.steps) == list(plain.steps)
    for name, values in plain.steps.items():
        if name != "wall_time":
            np.testing.assert_array_equal(run.steps[name], values, err_msg=name)
    assert [(each.step, each.kind, each.cause) for each in run.events] == [
        (each.step, each.kind, each.cause) for each in plain.events
    ]
    assert run.steps["skipped"].tolist() == loop.was_skipped and any(loop.was_skipped) == with_scaler
    assert set(run.meta["parameters"]) == {"first", "second", "bias"}


def test_with_its_tensorboard_tracker_there_is_one_event_file_and_both_write_to_it(tmp_path: Path) -> None:
    for logdir in (None, tmp_path / "second"):
        loop = Loop(log_with="tensorboard", project_dir=tmp_path)
        loop.accelerator.init_trackers("first" if logdir is None else "second")
        with loop.wrap(logdir=logdir, scalar_interval=1):
            loop.train()
            loop.accelerator.log({"theirs": 1.0}, step=3)
        loop.accelerator.end_training()
        folder = tmp_path / "first" if logdir is None else logdir
        assert len(list(folder.glob("*tfevents*"))) == 1
        events = EventAccumulator(str(folder)).Reload()
        assert len(events.Scalars("tbnum/grad_norm")) == STEPS and len(events.Scalars("theirs")) == 1
        AcceleratorState._reset_state(True)


def test_a_resumed_training_is_one_record_and_the_whole_one(tmp_path: Path) -> None:
    half = STEPS // 2 * ACCUMULATE
    first = Loop()
    with first.wrap(logdir=tmp_path / "run"):
        first.train(DATA[:half])
        first.accelerator.save_state(tmp_path / "checkpoint")
        first.train(DATA[half:])  # and was lost
    second = Loop()
    with second.wrap(logdir=tmp_path / "run"):
        second.accelerator.load_state(tmp_path / "checkpoint")
        second.train(DATA[half:])
    run, (model, plain) = run_of(tmp_path / "run"), plain_loop(tmp_path / "plain")
    assert_same_parameters(second.model, model)
    for name in ("step", "loss", "grad_norm", "grad_norm_clipped", "loss_scale", "skipped"):
        np.testing.assert_array_equal(run.steps[name], plain.steps[name], err_msg=name)
    kinds = [each.kind for each in run.events]
    assert kinds.count("resume") == 1 and "scaler_state_lost" not in kinds


def test_a_scaler_whose_state_did_not_come_back_is_named(tmp_path: Path) -> None:
    first = Loop()
    with first.wrap(logdir=tmp_path / "run"):
        first.train()
        first.accelerator.save_state(tmp_path / "checkpoint")
    second = Loop()
    second.accelerator.scaler, scaler = None, second.accelerator.scaler
    with wrap(second.accelerator, second.optimizer, second.model, logdir=tmp_path / "other"):
        second.accelerator.load_state(tmp_path / "checkpoint")  # which leaves out the scaler, having none
    second.accelerator.scaler = scaler
    with second.wrap(logdir=tmp_path / "run") as monitor:
        monitor.load_state_dict(json.loads((tmp_path / "checkpoint" / STATE_FILE).read_text()))
        second.train()
    kinds = [each.kind for each in run_of(tmp_path / "run").events]
    assert kinds.count("scaler_state_lost") == 1
    assert run_of(tmp_path / "run").steps["step"].tolist() == list(range(2 * STEPS))


def test_a_checkpoint_from_before_tbnum_loads_and_adams_counter_tells_the_step(tmp_path: Path) -> None:
    loop = Loop()
    with loop.wrap(logdir=tmp_path / "run"):
        loop.train(DATA[:20])
    assert not loop.was_skipped[-1]  # else its counter would be the same before and after
    loop.accelerator.save_state(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint" / STATE_FILE).exists()
    again = Loop()
    with again.wrap(logdir=tmp_path / "run"):
        again.accelerator.load_state(tmp_path / "checkpoint")
        again.train(DATA[:4])
    assert run_of(tmp_path / "run").steps["step"].tolist() == list(range(12))


def test_after_close_nothing_of_tbnum_is_left_on_the_accelerator(tmp_path: Path) -> None:
    loop = Loop(with_scaler=False)
    with loop.wrap(logdir=tmp_path):
        assert loop.accelerator._save_model_state_pre_hook
    assert not loop.accelerator._save_model_state_pre_hook and not loop.accelerator._load_model_state_pre_hook


# -- bad input -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_recorded_is_an_error_before_anything_is_hooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(with_scaler=False)
    with pytest.raises(ValueError, match=r"give logdir=.*init_trackers"):
        loop.wrap()
    with pytest.raises(TypeError, match=r"accelerator is NoneType.*wrap\(accelerator, optimizer, model"):
        wrap(None, loop.optimizer, loop.model, logdir=tmp_path)
    with pytest.raises(TypeError, match="tensor_intervall"):
        loop.wrap(logdir=tmp_path, tensor_intervall=5)
    with SummaryWriter(str(tmp_path / "writer")) as writer, pytest.raises(ValueError, match=r"exactly one of logdir="):
        loop.wrap(logdir=tmp_path, writer=writer)
    shutil.rmtree(tmp_path / "writer")
    monkeypatch.setattr(accelerate.Accelerator, "distributed_type", accelerate.DistributedType.DEEPSPEED)
    with pytest.raises(ValueError, match=r"DEEPSPEED.*DDP and FSDP are recorded"):
        loop.wrap(logdir=tmp_path)
    assert not list(tmp_path.iterdir()) and not loop.optimizer.optimizer._optimizer_step_pre_hooks


def test_a_second_monitor_of_an_accelerator_is_refused_as_its_losses_could_not_be_distinguished(tmp_path: Path) -> None:
    loop = Loop(with_scaler=False)
    model = Half()
    model, critic = loop.accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with loop.wrap(logdir=tmp_path / "first"):
        with pytest.raises(ValueError, match=r"first.*another optimizer.*wrap all of them in one call.*close\(\)"):
            wrap(loop.accelerator, critic, model, logdir=tmp_path / "second")
        loop.train(GOOD[:4])
    assert np.isfinite(run_of(tmp_path / "first").steps["loss"]).all() and not (tmp_path / "second").exists()
    with wrap(loop.accelerator, critic, model, logdir=tmp_path / "second"):
        pass


def test_trouble_in_a_hook_is_a_warning_and_the_training_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(with_scaler=False)
    with loop.wrap(logdir=tmp_path):
        loop.train(GOOD[:4])
        monkeypatch.setattr(tbnum.Monitor, "state_dict", lambda self: 1 / 0)
        with pytest.warns(RuntimeWarning, match="save failed, and training continues"):
            loop.accelerator.save_state(tmp_path / "checkpoint")
    assert_same_parameters(loop.model, Loop(with_scaler=False).train(GOOD[:4]).model)


# -- ranks -----------------------------------------------------------------------------------------------------------

RANKS = """
import sys
from tests.test_integrations_accelerate import DATA, Loop
loop = Loop(log_with="tensorboard", project_dir=sys.argv[1])
loop.accelerator.init_trackers("run")
try:
    loop.wrap()
except ValueError as error:
    assert "several processes" in str(error)
with loop.wrap(logdir=sys.argv[1] + "/run") as monitor:
    assert (monitor.writer is not None) == loop.accelerator.is_main_process
    loop.train(DATA[loop.accelerator.process_index :: 2])
    loop.accelerator.save_state(sys.argv[1] + "/checkpoint")
loop.accelerator.end_training()
"""


def test_ranks_share_one_folder_and_one_event_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    done = subprocess.run(
        [*warm.torchrun(2, "accelerate"), "train.py", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list((tmp_path / "run").glob("*tfevents*"))) == 1
    ranks = {path.name.split(".")[-2] for path in (tmp_path / "run").glob("*.tbnum")} - {"tensors"}
    assert ranks == {"rank0", "rank1"}
    run = run_of(tmp_path / "run")
    assert len(run.steps["step"]) == STEPS // 2 and run.steps["skipped"].any()
    assert set(run.meta["parameters"]) == {"first", "second", "bias"}
    assert json.loads((tmp_path / "checkpoint" / STATE_FILE).read_text())["step"] == STEPS // 2
