"""A replay of a finite step ranks the samples of its batch by their share of the loss and of the gradient norm."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tbnum
from tbnum.observe.replay import SampleShare, replay
from tbnum.observe.shares import rank_samples

pytestmark = pytest.mark.usefixtures("one_thread")


def shares_by_hand(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) each, from a backward of each sample, in float64."""
    model = copy.deepcopy(model).double()
    losses, gradients = [], []
    for sample in range(len(x)):
        model.zero_grad()
        loss = F.cross_entropy(model(x[sample : sample + 1].double()), y[sample : sample + 1])
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    each, mean = torch.stack(gradients), torch.stack(gradients).mean(0)
    return torch.tensor(losses) / sum(losses), each @ mean / (mean @ mean) / len(x)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(size: int, bad: int, factor: float = 15.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    x, y = torch.randn(size, 8, generator=generator), torch.randint(4, (size,), generator=generator)
    x[bad] *= factor
    return x, y


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("size", "bad"), [(1, 0), (2, 1), (3, 0), (7, 6), (32, 0), (33, 16), (64, 63)])
def test_the_shares_are_those_of_a_backward_for_each_sample(size: int, bad: int, reduction: str) -> None:
    model, (x, y) = net(), batch(size, bad)
    origin = replay(
        lambda given: F.cross_entropy(model(given[0]), given[1], reduction=reduction).backward(),
        (x, y),
        models={"": model},
    )
    assert origin.phase == "none" and origin.samples is None and origin.shares is not None
    loss, grad_norm = shares_by_hand(model, x, y)
    assert sorted(share.sample for share in origin.shares) == list(range(size))
    for share in origin.shares:
        assert share.loss == pytest.approx(loss[share.sample].item(), abs=1e-5)
        assert share.grad_norm == pytest.approx(grad_norm[share.sample].item(), abs=1e-5)
    assert origin.shares[0].sample == int(torch.maximum(loss, grad_norm).argmax())
    if size > 3:
        assert origin.shares[0].sample == bad and f"sample {bad} of the {size} makes" in origin.message


def test_of_a_large_batch_the_heaviest_are_found_in_a_hundred_runs() -> None:
    model, (x, y) = net(), batch(3000, 1234, factor=100.0)
    runs = 0

    def closure(given: Any) -> None:
        nonlocal runs
        runs += 1
        assert len(given[0]) == 3000
        F.cross_entropy(model(given[0]), given[1]).backward()

    origin = replay(closure, (x, y), models={"": model})
    assert origin.shares is not None and origin.shares[0].sample == 1234
    assert origin.shares[0].grad_norm > 0.3 and runs <= 64 + 4 * 12 + 2


def test_where_no_sample_stands_out_it_says_so() -> None:
    model, (x, y) = net(), batch(16, 0, factor=1.0)
    origin = replay(lambda xy: F.cross_entropy(model(xy[0]), xy[1]).backward(), (x, y), models={"": model})
    assert "no sample of the 16 stands out" in origin.message and "an equal share would be 6.2 %" in origin.message


def test_batch_normalization_and_dropout_hide_nobody() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    x, y = torch.randn(24, 8), torch.randn(24, 1)
    y[11] = 40.0
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    origin = replay(lambda xy: F.mse_loss(model(xy[0]), xy[1]).backward(), (x, y), models={"": model})
    assert origin.shares is not None and origin.shares[0].sample == 11 and origin.shares[0].loss > 0.8
    assert sum(share.loss for share in origin.shares) == pytest.approx(1, abs=0.2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random) and all(p.grad is None for p in model.parameters())


def test_a_closure_may_unscale_clip_accumulate_and_take_a_gradient_on_the_side(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    x, y = batch(20, 7)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path, verbose=False) as monitor:

        def closure(given: tuple[Tensor, Tensor]) -> None:
            for half in (slice(0, 10), slice(10, 20)):
                inputs = given[0][half].clone().requires_grad_()
                with torch.autocast("cpu", torch.float16):
                    outputs = model(inputs)
                torch.autograd.grad(outputs.float().sum(), inputs, retain_graph=True)
                scaler.scale(F.cross_entropy(outputs.float(), given[1][half]) / 2).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

        origin = monitor.replay(closure, (x, y))
        for _ in range(3):
            closure((x, y))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    loss, grad_norm = shares_by_hand(net(), x, y)
    assert origin.shares is not None and origin.shares[0].sample == 7
    for share in origin.shares:
        assert share.loss == pytest.approx(loss[share.sample].item(), abs=0.01)
        assert share.grad_norm == pytest.approx(grad_norm[share.sample].item(), abs=0.02)
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["step"].tolist() == [0, 1, 2]


def test_a_step_that_was_not_finite_has_no_shares_and_neither_has_one_without_a_batch() -> None:
    model, (x, y) = net(), batch(8, 3)
    x[2] = math.inf
    origin = replay(lambda xy: F.cross_entropy(model(xy[0]), xy[1]).backward(), (x, y), models={"": model})
    assert origin.shares is None and origin.samples == (2,)
    x[2] = 0
    assert replay(lambda: F.cross_entropy(model(x), y).backward(), models={"": model}).shares is None


def test_a_loss_of_0_leaves_the_gradients_to_rank() -> None:
    model, (x, _) = net(), batch(8, 5)

    def closure(given: Tensor) -> None:
        outputs = model(given)
        (outputs - outputs.detach()).mul(given.norm(dim=1, keepdim=True)).mean().backward()

    origin = replay(closure, x, models={"": model})
    assert origin.shares is not None and all(math.isnan(share.loss) for share in origin.shares)
    assert origin.shares[0].sample == 5 and "an unknown part of the loss" in origin.message


@pytest.mark.parametrize("size", [2, 5, 64, 65, 1000, 4097])
def test_ranking_measures_no_more_often_than_it_promises_and_adds_up(size: int) -> None:
    weights = [1.0] * size
    weights[size // 3] = float(size)
    calls = 0

    def measure(rows: Sequence[int]) -> tuple[float, float]:
        nonlocal calls
        calls += 1
        share = sum(weights[row] for row in rows) / sum(weights)
        return share, share

    ranked = rank_samples(size, measure)
    assert ranked[0].sample == size // 3 and ranked[0].loss == pytest.approx(size / sum(weights))
    assert calls <= 64 + 4 * math.ceil(math.log2(size))
    assert size > 64 or sum(share.loss for share in ranked) == pytest.approx(1)
    assert isinstance(ranked[0], SampleShare)
