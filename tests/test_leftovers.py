"""Mistakes around zero_grad() and step() that only the gradients show, and loops that look like them and are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tbnum

Loop = Callable[[int, nn.Module, torch.optim.Optimizer], None]


def backward(model: nn.Module, size: int = 4) -> Tensor:
    loss = model(torch.randn(size, 3)).square().mean()
    loss.backward()
    return loss


def correct(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


def set_to_zero(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)
    backward(model)
    optimizer.step()


def set_to_zero_by_hand(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()
    backward(model)
    optimizer.step()


def accumulated(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    for _ in range(4):
        backward(model)
    optimizer.step()


def decayed_on_purpose(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)
    backward(model)
    optimizer.step()


def written_by_hand(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.data.normal_()
    optimizer.step()


def forgotten(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    backward(model)
    optimizer.step()


def forgotten_later(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step < 15:
        optimizer.zero_grad()
    backward(model)
    optimizer.step()


def twice(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    correct(step, model, optimizer)
    optimizer.step()


def events_of(folder: Path, loop: Loop, steps: int = 30, **settings: Any) -> set[str]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, **settings)
    with tbnum.wrap(optimizer, model=model, logdir=folder):
        for step in range(steps):
            loop(step, model, optimizer)
    (run,) = tbnum.read(folder).values()
    kinds = {"gradients_not_zeroed", "step_without_backward"}
    assert {finding.rule for finding in run.findings} & kinds == {event.kind for event in run.events} & kinds
    return {event.kind for event in run.events} & kinds


@pytest.mark.parametrize(
    "loop", [correct, set_to_zero, set_to_zero_by_hand, accumulated, decayed_on_purpose, written_by_hand]
)
def test_a_loop_that_means_what_it_does_is_reported_nothing(loop: Loop, tmp_path: Path):
    assert events_of(tmp_path, loop) == set()


@pytest.mark.parametrize("loop", [forgotten, forgotten_later])
def test_a_forgotten_zero_grad_is_reported(loop: Loop, tmp_path: Path):
    assert events_of(tmp_path, loop) == {"gradients_not_zeroed"}


def test_a_step_that_comes_twice_is_reported(tmp_path: Path):
    assert events_of(tmp_path, twice) == {"step_without_backward"}


def test_under_a_scaler_a_forgotten_zero_grad_is_reported(tmp_path: Path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path):
        for _ in range(30):
            scaler.scale(model(torch.randn(4, 3)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    (run,) = tbnum.read(tmp_path).values()
    assert "gradients_not_zeroed" in {event.kind for event in run.events}


def test_batch_norm_that_a_skipped_batch_spoiled_is_reported(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path):
        for step in range(30):
            optimizer.zero_grad()
            x = torch.randn(8, 3) * (float("nan") if step == 12 else 1.0)
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    (run,) = tbnum.read(tmp_path).values()
    (event,) = [event for event in run.events if event.kind == "nonfinite_buffers"]
    assert 12 <= event.step <= 14 and event.severity == "error"
    assert "1.running_mean" in event.message and "reset_running_stats" in event.remedy


def test_an_optimizer_that_made_the_nan_is_named_between_two_measurements_too(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=10) as monitor:
        for step in range(30):
            optimizer.zero_grad()
            monitor.log_loss(backward(model))
            if step == 13:
                optimizer.state[model.weight]["exp_avg"][0, 0] = float("nan")
            optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    update = next(event for event in run.events if event.kind == "nonfinite_update")
    assert (update.data["after_step"], update.data["by_step"]) == (10, 13)
    causes = {event.cause for event in run.events if event.kind == "nonfinite_step"}
    assert causes == {"nonfinite_parameters"}


def sharpness_aware(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    x = torch.randn(4, 3)
    model(x).square().mean().backward()
    with torch.no_grad():
        moves = [0.05 * parameter.grad for parameter in model.parameters()]
        for parameter, move in zip(model.parameters(), moves, strict=True):
            parameter.add_(move)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    with torch.no_grad():
        for parameter, move in zip(model.parameters(), moves, strict=True):
            parameter.sub_(move)
    optimizer.step()


def adversarial(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x = torch.randn(4, 3)
    for _ in range(3):
        x = x.detach().requires_grad_()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        x = x + 0.1 * x.grad.sign()
    optimizer.zero_grad()
    model(x.detach()).square().mean().backward()
    optimizer.step()


def gradients_of_each_task(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Each taken by its own backward, and put together by hand."""
    taken = []
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        taken.append([parameter.grad.clone() for parameter in model.parameters()])
    for parameter, *gradients in zip(model.parameters(), *taken, strict=True):
        parameter.grad = sum(gradients)
    optimizer.step()


def discarded(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        backward(model)
    optimizer.step()


@pytest.mark.parametrize(
    ("loop", "there"),
    [
        (discarded, True),
        (accumulated, False),
        (correct, False),
        (sharpness_aware, False),
        (adversarial, False),
        (gradients_of_each_task, False),
    ],
)
def test_gradients_that_are_thrown_away_before_each_step_are_an_information_where_nothing_else_needs_them(
    loop: Loop, there: bool, tmp_path: Path
):
    events_of(tmp_path, loop)
    (run,) = tbnum.read(tmp_path).values()
    found = {finding.rule: finding.severity for finding in run.findings}
    assert found.get("gradients_discarded") == ("info" if there else None)


def test_a_discriminator_that_a_generator_trains_through_throws_nothing_away(tmp_path: Path):
    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
    optimizers = {
        "g": torch.optim.SGD(generator.parameters(), lr=1e-3),
        "c": torch.optim.SGD(critic.parameters(), lr=1e-3),
    }
    with tbnum.wrap(optimizers, model={"g": generator, "c": critic}, logdir=tmp_path):
        for _ in range(30):
            optimizers["c"].zero_grad()
            (critic(torch.randn(4, 3)).mean() - critic(generator(torch.randn(4, 2)).detach()).mean()).backward()
            optimizers["c"].step()
            optimizers["g"].zero_grad()
            critic(generator(torch.randn(4, 2))).mean().backward()
            optimizers["g"].step()
    (run,) = tbnum.read(tmp_path).values()
    assert not {"gradients_discarded", "gradients_not_zeroed"} & {event.kind for event in run.events}
