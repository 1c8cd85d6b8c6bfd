"""Modules as the monitor watches them: replay, sentinels after a skip, activations by choice."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tbnum
from tests.loops import OPTIMIZERS, batches


class Layers(nn.Module):
    """Two float16 products, of which the second overflows where its input is large."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Product(8)
        self.second = Product(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))).float()


class Product(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.half() @ self.weight.half()


class Loop:
    def __init__(self, logdir: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = Layers()
        self.optimizer = OPTIMIZERS["SGD"](self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.monitor = tbnum.wrap(self.optimizer, self.scaler, model=self.model, logdir=logdir, **options)

    def backward(self, x: torch.Tensor) -> None:
        self.scaler.scale(self.model(x).square().mean()).backward()

    def step(self, x: torch.Tensor) -> None:
        self.backward(x)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def run_of(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run


def test_a_replay_names_module_and_sample_and_leaves_no_trace_in_the_record(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    good = batches(5)
    bad = good[0].clone()
    bad[5] = 6e4
    for x in good:
        loop.step(x)
    loop.step(bad)  # skipped: the scale has backed off by now, and the replay runs with the one that failed
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    origin = loop.monitor.replay(loop.backward, bad)
    assert isinstance(origin, tbnum.Origin)
    assert origin.module in ("first", "second") and origin.phase == "forward"
    assert origin.samples == (5,) and "sample" in str(origin)
    assert all(map(torch.equal, before, loop.model.parameters()))
    assert loop.scaler.get_scale() == 512.0
    loop.step(good[0])
    loop.monitor.close()
    run = run_of(tmp_path)
    assert run.steps["skipped"].tolist() == [False] * 5 + [True, False]
    assert run.steps["micro_batches"].tolist() == [1.0] * 7


def test_after_an_unexplained_skip_the_sentinels_name_the_module_of_the_next_one(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    for x in batches(12):
        loop.step(x)
    for x in batches(2, bad=[0, 1]):
        loop.step(x)
    assert loop.model.first._forward_hooks  # armed for the steps that follow
    for x in batches(4):
        loop.step(x)
    assert not loop.model.first._forward_hooks
    loop.monitor.close()
    skips = [event for event in run_of(tmp_path).events if event.kind == "skip"]
    assert "sentinel" not in skips[0].data
    assert skips[1].data["sentinel"]["module"] in ("first", "second")


def test_activations_are_measured_at_intervals_by_name(tmp_path: Path) -> None:
    loop = Loop(tmp_path, activations=["first"], tensor_interval=2)
    seen = []
    loop.model.first.register_forward_hook(lambda module, given, output: seen.append(output.float().abs().max().item()))
    for x in batches(5):
        loop.step(x)
    loop.monitor.close()
    assert not [hook for module in loop.model.modules() for hook in module._forward_hooks.values()][1:]
    steps, names, values = run_of(tmp_path).tensors["activation_absmax"]
    assert steps.tolist() == [0, 2, 4] and set(names) >= {"first/output", "first/gradient"}
    np.testing.assert_allclose(values[:, names.index("first/output")], [seen[0], seen[2], seen[4]], rtol=1e-3)


def test_activations_without_a_model_or_of_an_unknown_module_are_refused(tmp_path: Path) -> None:
    model = Layers()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    with pytest.raises(ValueError, match="needs model="):
        tbnum.wrap(optimizer, logdir=tmp_path / "run", activations=True)
    with pytest.raises(ValueError, match="third"):
        tbnum.wrap(optimizer, logdir=tmp_path / "run", model=model, activations=["third"])
    assert not (tmp_path / "run").exists() and not optimizer._optimizer_step_pre_hooks


def test_without_a_model_a_replay_is_refused(tmp_path: Path) -> None:
    model = Layers()
    monitor = tbnum.wrap(OPTIMIZERS["SGD"](model.parameters()), logdir=tmp_path)
    with monitor, pytest.raises(ValueError, match="model"):
        monitor.replay(lambda: None)


@pytest.mark.parametrize("container", [lambda *parts: nn.ModuleList(parts), lambda *parts: nn.Sequential(*parts)])
def test_models_put_together_for_the_call_alone_name_their_parameters_for_good(
    tmp_path: Path, container: Callable[..., nn.Module]
) -> None:
    """Nobody but that call has held the container."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = {name: torch.optim.SGD(each.parameters(), 0.1) for name, each in (("a", first), ("b", second))}
    monitor = tbnum.wrap(optimizers, model=container(first, second), logdir=tmp_path, tensor_interval=2)
    gc.collect()
    for _ in range(4):
        second(first(torch.ones(2, 4))).sum().backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
    monitor.close()
    steps, names, _ = run_of(tmp_path).tensors["grad_norm"]
    assert len(steps) and names == ("0.weight", "0.bias", "1.weight", "1.bias")


def test_a_module_list_stands_for_what_it_holds_which_lives_on_without_it(tmp_path: Path) -> None:
    first, second = Layers(), nn.Linear(8, 1)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    both = nn.ModuleDict({"body": first, "heads": nn.ModuleList([second])})
    options = {"activations": ["body.first", "heads.*"], "tensor_interval": 1}
    monitor = tbnum.wrap(optimizer, model=both, logdir=tmp_path, **options)
    del both
    gc.collect()
    second(first(torch.ones(2, 8))).sum().backward()
    optimizer.step()
    monitor.close()
    _, names, _ = run_of(tmp_path).tensors["activation_absmax"]
    assert set(names) >= {"body.first/output", "heads.0/output"}
