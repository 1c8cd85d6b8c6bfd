"""Each mistake in a mixed-precision loop is seen while it is made; the loop of the documentation raises no alarm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tbnum
from tests import warm
from tests.loops import OPTIMIZERS, Half, batches, float64_norm


class Loop:
    """The parts of a loop, with a scale that holds."""

    def __init__(self, model: nn.Module | None = None) -> None:
        torch.manual_seed(0)
        self.model = model or Half()
        self.optimizer = OPTIMIZERS["SGD"](self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def loss(self, x: Tensor) -> Tensor:
        return self.model(x).square().mean()

    def backward(self, x: Tensor) -> None:
        self.scaler.scale(self.loss(x)).backward()

    def update(self, clip: bool = False) -> None:
        if clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def events_of(loop: Loop, steps: Callable[[Loop], Any], logdir: Path) -> list[tbnum.log.schema.Event]:  # type: ignore[name-defined]
    with tbnum.wrap(loop.optimizer, loop.scaler, model=loop.model, logdir=logdir):
        steps(loop)
    (run,) = tbnum.read(logdir).values()
    return run.events


# -- the recipes of PyTorch's documentation ----------------------------------------------------------------------


def basic(loop: Loop) -> None:
    for x in batches(4):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loop.model(x).float().square().mean()
        loop.scaler.scale(loss).backward()
        loop.update()


def clipping(loop: Loop) -> None:
    for x in batches(4):
        loop.backward(x)
        loop.update(clip=True)


def accumulation(loop: Loop) -> None:
    for at, x in enumerate(batches(8)):
        loop.scaler.scale(loop.loss(x) / 4).backward()
        if at % 4 == 3:
            loop.update(clip=True)


def gradient_penalty(loop: Loop) -> None:
    for x in batches(3):
        loss = loop.loss(x)
        scaled = torch.autograd.grad(loop.scaler.scale(loss), list(loop.model.parameters()), create_graph=True)
        inverse = 1.0 / loop.scaler.get_scale()
        norm = torch.stack([(each * inverse).square().sum() for each in scaled]).sum().sqrt()
        loop.scaler.scale(loss + norm).backward()
        loop.update(clip=True)


def several_losses(loop: Loop) -> None:
    for x in batches(3):
        first, second = loop.loss(x), loop.loss(2 * x)
        loop.scaler.scale(first).backward(retain_graph=True)
        loop.scaler.scale(second).backward()
        loop.update(clip=True)


@pytest.mark.parametrize("recipe", [basic, clipping, accumulation, gradient_penalty, several_losses])
def test_a_recipe_of_the_documentation_raises_no_alarm(recipe: Callable[[Loop], None], tmp_path: Path) -> None:
    assert events_of(Loop(), recipe, tmp_path) == []


def test_two_optimizers_unscaled_one_after_the_other_raise_no_alarm(tmp_path: Path) -> None:
    models = Half(), Half()
    optimizers = {name: OPTIMIZERS["SGD"](model.parameters()) for name, model in zip("ab", models, strict=True)}
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with tbnum.wrap(optimizers, scaler, logdir=tmp_path):
        for x in batches(3):
            for model, optimizer in zip(models, optimizers.values(), strict=True):
                scaler.scale(model(x).square().mean()).backward()
                scaler.unscale_(optimizer)  # the second backward comes after the first unscale_
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            for optimizer in optimizers.values():
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
    (run,) = tbnum.read(tmp_path).values()
    assert run.events == []


def test_the_recipe_of_distributed_training_raises_no_alarm_and_skips_on_all_ranks(tmp_path: Path) -> None:
    script = f"""
import torch, torch.distributed as dist, tbnum
from torch.nn.parallel import DistributedDataParallel
from tests.loops import OPTIMIZERS, Half, batches
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Half())
optimizer = OPTIMIZERS["SGD"](model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
with tbnum.wrap(optimizer, scaler, model=model, logdir={str(tmp_path / "run")!r}):
    for x in batches(6, seed=dist.get_rank(), bad=[4] if dist.get_rank() == 1 else []):
        scaler.scale(model(x).square().mean()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
dist.destroy_process_group()
"""
    (tmp_path / "train.py").write_text(script)
    command = [*warm.torchrun(2), "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["skipped"].tolist() == [False] * 4 + [True, False]
    assert [event.kind for event in run.events] == ["skip", "scale_backoff"]
    assert len(list((tmp_path / "run").glob("*tfevents*"))) == 1  # one writer for all ranks
    assert len(list((tmp_path / "run").glob("*.rank1.tbnum"))) == 1


# -- and each mistake ----------------------------------------------------------------------------------------------


def clip_before_unscale(loop: Loop) -> None:
    for x in batches(3):
        loop.backward(x)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
        loop.update()


def backward_under_autocast(loop: Loop) -> None:
    for x in batches(3):
        with torch.autocast("cpu", dtype=torch.float16):
            loop.backward(x)
        loop.update()


def update_missing(loop: Loop) -> None:
    for x in batches(2):
        loop.backward(x)
        loop.scaler.step(loop.optimizer)  # at the second time torch raises


def step_bypassed_scaler(loop: Loop) -> None:
    for x in batches(2):  # the third would be a step with NaN
        loop.backward(x)
        loop.optimizer.step()


def loss_low_precision(loop: Loop) -> None:
    for x in batches(3):
        loop.scaler.scale(loop.loss(x).half()).backward()
        loop.update()


def unscale_in_accumulation(loop: Loop) -> None:
    for _ in range(2):
        first, second = batches(2)
        loop.backward(first)
        loop.scaler.unscale_(loop.optimizer)
        loop.backward(second)
        loop.update()


def unscale_in_accumulation_before_a_clip(loop: Loop) -> None:
    for _ in range(2):
        first, second = batches(2)
        loop.backward(first)
        loop.scaler.unscale_(loop.optimizer)
        loop.backward(second)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
        loop.update()


def loss_not_scaled(loop: Loop) -> None:
    clipping(loop)
    for x in batches(2):
        loop.loss(x).backward()
        loop.update(clip=True)


def bfloat16_with_scaler(loop: Loop) -> None:
    model = nn.Linear(8, 1)
    loop.optimizer.add_param_group({"params": list(model.parameters())})
    for x in batches(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(x)
        loop.scaler.scale(output.float().square().mean()).backward()
        loop.update()


def no_gradients(loop: Loop) -> None:
    loop.scaler.scale(torch.ones(1, requires_grad=True).sum()).backward()
    loop.scaler.step(loop.optimizer)


MISTAKES = [
    clip_before_unscale,
    backward_under_autocast,
    update_missing,
    step_bypassed_scaler,
    loss_low_precision,
    unscale_in_accumulation,
    unscale_in_accumulation_before_a_clip,
    loss_not_scaled,
    bfloat16_with_scaler,
    no_gradients,
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_event_that_names_its_place_and_the_remedy(
    mistake: Callable[[Loop], None], tmp_path: Path
) -> None:
    def steps(loop: Loop) -> None:
        try:
            mistake(loop)
        except (RuntimeError, AssertionError):
            assert mistake in (update_missing, no_gradients)  # torch's own error, unchanged

    (event,) = events_of(Loop(), steps, tmp_path)
    assert event.kind == mistake.__name__.removesuffix("_before_a_clip")
    assert event.severity in ("warning", "error") and event.message and event.remedy
    if mistake is not no_gradients:
        assert event.data["where"].startswith("test_misuse.py:")


def test_float16_parameters_are_named_beside_the_error_of_torch(tmp_path: Path) -> None:
    def steps(loop: Loop) -> None:
        loop.scaler.scale(loop.model(torch.ones(1, 2).half()).float().sum()).backward()
        with pytest.raises(ValueError, match="FP16"):
            loop.scaler.unscale_(loop.optimizer)

    (event,) = events_of(Loop(nn.Linear(2, 1).half()), steps, tmp_path)
    assert event.kind == "float16_gradients" and event.data["float16"] == 2


@pytest.mark.parametrize("too_late", [True, False], ids=["after the step", "before backward"])
@pytest.mark.parametrize("enabled", [True, False], ids=["scaler", "no scaler"])
def test_a_clip_of_gradients_that_a_later_backward_replaces_is_none_of_the_step(
    enabled: bool, too_late: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Half()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=enabled)
    norms = []
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path):
        for x in batches(4):
            loss = model(x).square().mean()
            if not too_late:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            norms.append(float64_norm(model.parameters()) / scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
            if too_late:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    (run,) = tbnum.read(tmp_path).values()
    np.testing.assert_allclose(run.steps["grad_norm"], norms, rtol=1e-5)
    np.testing.assert_allclose(run.steps["grad_norm_clipped"], norms, rtol=1e-5)
    assert np.isnan(run.steps["max_norm"]).all() and np.isnan(run.steps["clip_coef"]).all()
    assert {event.kind for event in run.events} == {
        "clip_after_step",
        *(() if enabled else ("float16_without_scaler",)),
    }


def test_a_clip_between_the_backwards_of_an_accumulation_is_not_taken_for_unscaling(tmp_path: Path) -> None:
    def steps(loop: Loop) -> None:
        for x in batches(3):
            loop.backward(x)
            nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
            loop.backward(x)
            loop.update()

    events = events_of(Loop(), steps, tmp_path)
    assert [event.kind for event in events] == ["clip_before_unscale", "losses_not_divided"]


@pytest.mark.parametrize("overflow", [None, 21, 22])
@pytest.mark.parametrize("unscales", [False, True])
def test_gradients_that_are_never_zeroed_are_reported_where_an_overflow_stays_in_them(
    overflow: int | None, unscales: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, expected = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), list[float]()
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path, verbose=False):
        for step in range(30):
            loss = model(torch.randn(3, 4)).square().mean() * (1e37 if step == overflow else 1.0)
            expected.append(loss.item())
            scaler.scale(loss).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            if step < 20:
                optimizer.zero_grad()
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["loss"].tolist() == pytest.approx(expected)
    assert sum(event.kind == "skip" for event in run.events) == (0 if overflow is None else 30 - overflow)
    assert [event.step for event in run.events if event.kind == "gradients_not_zeroed"] == [24]


def test_a_skip_before_gradients_are_zeroed_at_the_start_of_a_step_is_no_mistake(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path, verbose=False):
        for step in range(40):
            optimizer.zero_grad()
            loss = model(torch.randn(3, 4)).square().mean() * (1e37 if step % 4 == 3 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    (run,) = tbnum.read(tmp_path).values()
    kinds = {event.kind for event in run.events}
    assert "skip" in kinds and not kinds & {"gradients_not_zeroed", "step_without_backward", "clip_after_step"}
