"""What is written to gradients where nobody may look: on a device, whose values the host does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tbnum
from tests.launches import the_cpu_as_a_device
from tests.published.tape import data, float64_norm, mlp, scaler_for_cpu

MSE = nn.functional.mse_loss


@pytest.fixture(autouse=True)
def _as_on_a_device() -> Iterator[None]:
    with the_cpu_as_a_device():
        yield


def recorded(folder: Path, train: Callable[[Any, torch.optim.Optimizer], Any]) -> tuple[dict[str, np.ndarray], Any]:
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with tbnum.wrap(optimizer, model=model, logdir=folder):
        truth = train(model, optimizer)
    (run,) = tbnum.read(folder).values()
    return run.steps, truth


def test_gradients_written_to_between_two_backwards_leave_the_loss_unknown(tmp_path: Path) -> None:
    """They may have been zeroed by hand, as after a backward for adversarial inputs: the sum would be false."""

    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        for x, y in data(6):
            MSE(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad.zero_()
            MSE(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    steps, _ = recorded(tmp_path, train)
    assert len(steps["step"]) == 6 and np.isnan(steps["loss"]).all()


def test_a_clip_after_each_micro_batch_is_no_unknown_write(tmp_path: Path) -> None:
    def train(model: Any, optimizer: torch.optim.Optimizer) -> list[float]:
        sums = []
        for x, y in data(6):
            losses = [MSE(model(part), y[:8]) / 2 for part in x.chunk(2)]
            for loss in losses:
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()
            sums.append(sum(loss.item() for loss in losses))
        return sums

    steps, sums = recorded(tmp_path, train)
    assert steps["loss"] == pytest.approx(sums)


def test_sums_that_were_kept_in_buffers_leave_the_loss_unknown(tmp_path: Path) -> None:
    def train(model: Any, optimizer: torch.optim.Optimizer) -> None:
        for x, y in data(6):
            sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
            for part in x.chunk(2):
                MSE(model(part), y[:8]).backward()
                for total, parameter in zip(sums, model.parameters(), strict=True):
                    total += parameter.grad
                    parameter.grad = None
            for total, parameter in zip(sums, model.parameters(), strict=True):
                parameter.grad = total
            optimizer.step()
            optimizer.zero_grad()

    steps, _ = recorded(tmp_path, train)
    assert len(steps["step"]) == 6 and np.isnan(steps["loss"]).all()


@pytest.mark.parametrize("scaled", [False, True], ids=["after a clip", "after unscale_"])
def test_a_write_by_data_is_found_where_the_norm_is_verified_and_then_looked_for(tmp_path: Path, scaled: bool) -> None:
    scaler = scaler_for_cpu() if scaled else None

    def train(model: Any, optimizer: torch.optim.Optimizer) -> list[float]:
        got = []
        for x, y in data(24):
            loss = MSE(model(x), y)
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is None:
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            else:
                scaler.unscale_(optimizer)
            model[0].weight.grad.data[1:] = 0.0
            got.append(float64_norm(model))
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
        return got

    steps, got = recorded(tmp_path, train)
    assert steps["grad_norm_clipped"] == pytest.approx(got, rel=1e-5)
