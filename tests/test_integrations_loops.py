"""Frameworks that leave the loop to the user, each beside a loop that does the same without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tbnum
from tests.loops import Half, batches

DATA = batches(12)


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def bare(logdir: Path, *, accumulate: int = 1, max_norm: float | None = None) -> tuple[nn.Module, Any]:
    model, optimizer = fresh()
    with tbnum.wrap(optimizer, model=model, logdir=logdir):
        for number, batch in enumerate(DATA, 1):
            (model(batch).square().mean() / accumulate).backward()
            if number % accumulate == 0:
                if max_norm is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()
    return model, run_of(logdir)


def run_of(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run


def assert_same(model: nn.Module, run: Any, other: nn.Module, other_run: Any) -> None:
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for name, values in other_run.steps.items():
        if name != "wall_time":
            np.testing.assert_array_equal(run.steps[name], values, err_msg=name)
    assert run.meta["parameters"] == other_run.meta["parameters"]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_loop_of_fabrics_is_recorded_as_the_bare_one(accumulate: int, tmp_path: Path) -> None:
    fabric_module = pytest.importorskip("lightning.fabric", reason="needs lightning")
    model, optimizer = fresh()
    fabric = fabric_module.Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(model, optimizer)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path / "fabric"):
        for number, batch in enumerate(DATA, 1):
            with fabric.no_backward_sync(model, enabled=number % accumulate != 0):
                fabric.backward(model(batch).square().mean() / accumulate)
            if number % accumulate == 0:
                fabric.clip_gradients(model, optimizer, max_norm=0.5)
                optimizer.step()
                optimizer.zero_grad()
    assert_same(model, run_of(tmp_path / "fabric"), *bare(tmp_path / "bare", accumulate=accumulate, max_norm=0.5))


def test_fabrics_scaler_skips_and_its_checkpoint_holds_the_monitor(tmp_path: Path) -> None:
    fabric_module = pytest.importorskip("lightning.fabric", reason="needs lightning")
    from lightning.fabric.plugins import MixedPrecision

    def train(start: int, data: list[Tensor], load: bool) -> Any:
        torch.manual_seed(0)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
        fabric = fabric_module.Fabric(
            accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)]
        )
        net = Half()
        model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9))
        with tbnum.wrap(optimizer, fabric.strategy.precision.scaler, model=model, logdir=tmp_path / "run") as monitor:
            state = {"model": model, "optimizer": optimizer, "tbnum": monitor}
            if load:
                fabric.load(tmp_path / "state.ckpt", state)
            for batch in data:
                fabric.backward(model(batch).square().mean())
                fabric.clip_gradients(model, optimizer, max_norm=0.5, error_if_nonfinite=False)
                optimizer.step()
                optimizer.zero_grad()
            fabric.save(tmp_path / "state.ckpt", state)
        return scaler

    scaler = train(0, DATA[:8], load=False)
    run = run_of(tmp_path / "run")
    assert run.steps["skipped"][0] and not run.steps["skipped"][-1]
    assert run.steps["loss_scale"][-1] == scaler.get_scale()
    train(8, DATA[8:], load=True)
    run = run_of(tmp_path / "run")
    assert run.steps["step"].tolist() == list(range(len(DATA)))
    assert "resume" in [event.kind for event in run.events]


def test_an_engine_of_ignites_is_recorded_as_the_bare_loop(tmp_path: Path) -> None:
    engine = pytest.importorskip("ignite.engine", reason="needs pytorch-ignite")
    model, optimizer = fresh()

    def square(output: Tensor, target: Tensor) -> Tensor:
        return output.square().mean()

    trainer = engine.create_supervised_trainer(model, optimizer, square, gradient_accumulation_steps=3)
    monitor = tbnum.wrap(optimizer, model=model, logdir=tmp_path / "ignite")
    trainer.add_event_handler(engine.Events.COMPLETED, monitor.close)
    trainer.run([(batch, torch.zeros(())) for batch in DATA])
    assert_same(model, run_of(tmp_path / "ignite"), *bare(tmp_path / "bare", accumulate=3))


def test_ignites_engine_with_a_scaler_skips_and_its_checkpoint_holds_the_monitor(tmp_path: Path) -> None:
    engine = pytest.importorskip("ignite.engine", reason="needs pytorch-ignite")
    from ignite.handlers import Checkpoint, DiskSaver

    torch.manual_seed(0)
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)

    def step(engine: Any, batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    trainer = engine.Engine(step)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path / "run") as monitor:
        saver = DiskSaver(str(tmp_path / "checkpoints"), create_dir=True)
        checkpoint = Checkpoint({"model": model, "tbnum": monitor}, saver, filename_pattern="last.pt")
        trainer.add_event_handler(engine.Events.COMPLETED, checkpoint)
        trainer.run(DATA)
    run = run_of(tmp_path / "run")
    assert run.steps["skipped"][0] and run.steps["loss_scale"][-1] == scaler.get_scale()
    saved = torch.load(tmp_path / "checkpoints/last.pt", weights_only=True)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path / "run") as monitor:
        Checkpoint.load_objects({"tbnum": monitor}, saved)
        assert monitor.step == len(DATA)
