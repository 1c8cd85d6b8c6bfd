"""The loops that people learn training by work with one line more, and the log has their norms before and after."""

from __future__ import annotations

import copy
import gc
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tbnum
from demo.model import GPT, GPTConfig
from tests.loops import float64_norm

pytestmark = pytest.mark.usefixtures("one_thread")


def run_of(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run


def recorded(logdir: Path) -> Any:
    """The loop kept no monitor: it ends with its optimizer, and what is left goes to the disk then."""
    gc.collect()
    return run_of(logdir)


def assert_norms(run: Any, before: list[float], after: list[float]) -> None:
    np.testing.assert_allclose(run.steps["grad_norm"], before, rtol=1e-6)
    np.testing.assert_allclose(run.steps["grad_norm_clipped"], after, rtol=1e-5)


# -- a GPT from scratch: no scaler, warm-up and cosine by hand, clipping once the warm-up is over ----------------------

STEPS, WARM_UP, PEAK_LR, END_LR = 20, 5, 3e-3, 3e-5


def gpt_loop(logdir: Path | None) -> tuple[nn.Module, list[float], list[float], list[float]]:
    torch.manual_seed(123)
    model = GPT(GPTConfig(vocab_size=32, block_size=16, n_layer=2, n_head=2, n_embd=16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, weight_decay=0.1)
    if logdir is not None:
        tbnum.wrap(optimizer, model=model, logdir=logdir)  # the one line

    rates, before, after = [], [], []
    for step in range(STEPS):
        tokens = torch.randint(32, (4, 17))
        if step < WARM_UP:
            lr = PEAK_LR * (step + 1) / WARM_UP
        else:
            progress = (step - WARM_UP) / (STEPS - WARM_UP)
            lr = END_LR + (PEAK_LR - END_LR) * 0.5 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = lr
        rates.append(lr)

        optimizer.zero_grad()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        before.append(float64_norm(model.parameters()))
        if step >= WARM_UP:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        after.append(float64_norm(model.parameters()))
        optimizer.step()
    return model, rates, before, after


def test_a_gpt_from_scratch(tmp_path: Path) -> None:
    model, rates, before, after = gpt_loop(tmp_path)
    run = recorded(tmp_path)
    without, *_ = gpt_loop(None)
    for ours, theirs in zip(model.parameters(), without.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert_norms(run, before, after)
    assert max(before) > 1.0 and max(after[WARM_UP:]) < 1.0 + 1e-6
    np.testing.assert_array_equal(run.steps["lr"], rates)
    assert np.isnan(run.steps["max_norm"][:WARM_UP]).all() and (run.steps["max_norm"][WARM_UP:] == 1.0).all()
    assert np.isnan(run.steps["clip_coef"][:WARM_UP]).all() and (run.steps["clip_coef"][WARM_UP:] <= 1.0).all()
    assert not run.steps["skipped"].any() and run.events == []


# -- PyTorch's recipe for mixed precision, on the CPU ------------------------------------------------------------------


def amp_recipe(logdir: Path | None) -> tuple[nn.Module, list[float], list[float], list[float]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    data = [torch.randn(8, 16) for _ in range(12)]
    targets = [torch.randn(8, 8) for _ in range(12)]
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    if logdir is not None:
        tbnum.wrap(optimizer, scaler, model=net, logdir=logdir)  # the one line

    losses, before, after = [], [], []
    for input, target in zip(data, targets, strict=True):
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            output = net(input)
            assert output.dtype is torch.float16
            loss = loss_fn(output, target)
            assert loss.dtype is torch.float32
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        before.append(float64_norm(net.parameters()))
        nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1)
        after.append(float64_norm(net.parameters()))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return net, losses, before, after


def test_the_recipe_for_mixed_precision(tmp_path: Path) -> None:
    net, losses, before, after = amp_recipe(tmp_path)
    run = recorded(tmp_path)
    without, *_ = amp_recipe(None)
    for ours, theirs in zip(net.parameters(), without.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    taken = ~run.steps["skipped"]
    assert taken.any() and not taken.all()
    np.testing.assert_allclose(run.steps["loss"], losses, rtol=1e-6)
    np.testing.assert_allclose(run.steps["grad_norm"][taken], np.array(before)[taken], rtol=1e-6)
    np.testing.assert_allclose(run.steps["grad_norm_clipped"][taken], np.array(after)[taken], rtol=1e-5)
    assert not np.isfinite(run.steps["grad_norm"][~taken]).any()
    skips = [each for each in run.events if each.kind == "skip"]
    assert [each.step for each in skips] == np.flatnonzero(~taken).tolist()
    assert {each.cause for each in skips} == {"scale_warmup"}


# -- the contract of gradient clipping ---------------------------------------------------------------------------------


def parameters_with_one_frozen() -> list[nn.Parameter]:
    torch.manual_seed(42)
    parameters = [nn.Parameter(torch.randn(5, 5)) for _ in range(6)]
    parameters[-1].requires_grad_(False)
    return parameters


def backward(parameters: list[nn.Parameter], weights: Tensor) -> None:
    (torch.stack(list(parameters)) * weights).exp().sum().backward()


@pytest.mark.parametrize("max_norm", [1e-2, 1e4])
@pytest.mark.parametrize("clip", ["torch's", "tbnum's", "the monitor's"])
def test_the_contract_of_clipping(clip: str, max_norm: float, tmp_path: Path) -> None:
    ours, theirs = parameters_with_one_frozen(), parameters_with_one_frozen()
    optimizer = torch.optim.AdamW(ours)
    monitor = tbnum.wrap(optimizer, logdir=tmp_path)  # the one line
    before, after = [], []
    for step in range(3):
        weights = torch.randn(6, 5, 5, generator=torch.Generator().manual_seed(step))
        for parameter, other in zip(ours, theirs, strict=True):
            other.data.copy_(parameter.data)
            parameter.grad = other.grad = None
        backward(ours, weights)
        backward(theirs, weights)
        before.append(float64_norm(ours))
        if clip == "torch's":
            total_norm = nn.utils.clip_grad_norm_(ours, max_norm)
        elif clip == "tbnum's":
            total_norm = tbnum.clip_grad_norm_(ours, max_norm)
        else:
            total_norm = monitor.clip_grad_norm_(max_norm)
        assert total_norm.item() == pytest.approx(nn.utils.clip_grad_norm_(theirs, max_norm).item(), rel=1e-6)
        assert ours[-1].grad is None
        for parameter, other in zip(ours[:-1], theirs[:-1], strict=True):
            assert parameter.grad is not None and other.grad is not None
            torch.testing.assert_close(parameter.grad, other.grad, rtol=0, atol=1e-6)
        after.append(float64_norm(ours))
        frozen = copy.deepcopy(ours[-1])
        optimizer.step()
        assert torch.equal(frozen, ours[-1])
    monitor.close()
    run = run_of(tmp_path)
    assert_norms(run, before, after)
    assert (run.steps["max_norm"] == max_norm).all()
    assert ((run.steps["clip_coef"] == 1.0) == (max_norm > 1)).all()
