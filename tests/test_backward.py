"""Without a scaler the loss of a step is the one whose backward changed the optimizer's gradients."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

import tbnum


class Loop:
    def __init__(self, logdir: Path, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        self.logdir = logdir
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        self.monitor = tbnum.wrap(self.optimizer, model=self.model, logdir=logdir)

    def loss(self) -> Tensor:
        return self.model(torch.randn(8, 4)).square().mean()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def recorded(self) -> tuple[list[float], list[float]]:
        """Losses and micro-batches."""
        self.monitor.close()
        (run,) = tbnum.read(self.logdir).values()
        return run.steps["loss"].tolist(), run.steps["micro_batches"].tolist()


def test_a_loop_with_one_more_line_has_its_loss(tmp_path: Path) -> None:
    loop, expected = Loop(tmp_path), []
    for _ in range(5):
        loss = loop.loss()
        loss.backward()
        expected.append(loss.item())
        loop.update()
    assert loop.recorded() == (expected, [1.0] * 5)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_losses_of_an_accumulation_add_up(set_to_none: bool, tmp_path: Path) -> None:
    loop, expected = Loop(tmp_path), []
    for _ in range(3):
        losses = [loop.loss() / 4 for _ in range(4)]
        for loss in losses:
            loss.backward()
        expected.append(sum(loss.item() for loss in losses))
        loop.optimizer.step()
        loop.optimizer.zero_grad(set_to_none=set_to_none)
    losses, micro_batches = loop.recorded()
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert micro_batches == [4.0] * 3


def test_two_losses_of_one_backward_are_one_micro_batch(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    one, other = loop.loss(), loop.loss()
    torch.autograd.backward([one, other])
    loop.update()
    (loss,), micro_batches = loop.recorded()
    assert loss == pytest.approx(one.item() + other.item()) and micro_batches == [1.0]


def another_model(loop: Loop) -> None:
    nn.Linear(4, 1)(torch.ones(2, 4)).sum().backward()


def gradients_that_are_asked_for(loop: Loop) -> None:
    torch.autograd.grad(loop.loss(), list(loop.model.parameters()))


def part_of_a_loss_to_come(loop: Loop) -> None:
    (loop.loss() * 100).backward(create_graph=True)
    loop.optimizer.zero_grad()


def a_replay(loop: Loop) -> None:
    loop.monitor.replay(lambda: (loop.loss() * 100).backward())


def a_backward_that_fails(loop: Loop) -> None:
    loss = loop.loss().detach()
    with pytest.raises(RuntimeError, match="does not require grad"):
        loss.backward()


@pytest.mark.parametrize(
    "beside",
    [
        another_model,
        gradients_that_are_asked_for,
        part_of_a_loss_to_come,
        a_replay,
        a_backward_that_fails,
    ],
)
def test_what_is_no_loss_of_this_optimizer_does_not_count(beside: Callable[[Loop], None], tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    beside(loop)
    loss = loop.loss()
    loss.backward()
    beside(loop) if beside is another_model else None
    loop.update()
    assert loop.recorded()[0] == [loss.item()]


def test_a_backward_of_a_stage_of_a_pipeline_leaves_the_loss_unknown(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.model(torch.ones(8, 4)).backward(torch.ones(8, 1))
    loop.loss().backward()
    loop.update()
    losses, micro_batches = loop.recorded()
    assert math.isnan(losses[0]) and math.isnan(micro_batches[0])


def test_where_each_backward_reaches_few_parameters_no_loss_is_missed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    experts = nn.ModuleList([nn.Linear(2, 1, bias=False) for _ in range(100)])
    optimizer, expected = torch.optim.SGD(experts.parameters(), lr=0.1), []
    with tbnum.wrap(optimizer, model=experts, logdir=tmp_path):
        for at in range(50):
            losses = [experts[each](torch.ones(2)).sum() for each in (at, at + 50)]
            for loss in losses:
                loss.backward()
            expected.append(sum(loss.item() for loss in losses))
            optimizer.step()
            optimizer.zero_grad()
    (run,) = tbnum.read(tmp_path).values()
    np.testing.assert_allclose(run.steps["loss"], expected, rtol=1e-6)
    assert set(run.steps["micro_batches"]) == {2.0}


def test_where_a_hook_takes_each_gradient_at_once_the_loss_is_unknown_and_never_a_part_of_it(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    sums = {parameter: torch.zeros_like(parameter) for parameter in loop.model.parameters()}

    def take(parameter: Tensor) -> None:
        sums[parameter] += parameter.grad
        parameter.grad = None

    for parameter in sums:
        parameter.register_post_accumulate_grad_hook(take)
    for _ in range(3):
        for _ in range(4):
            loop.loss().backward()
        for parameter, total in sums.items():
            parameter.grad = total.clone()
        loop.update()
    assert np.isnan(loop.recorded()[0]).all()


def test_what_the_loop_tells_counts_in_place_of_what_is_seen(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    (loop.loss() + 100).backward()
    loop.monitor.log_loss(1.5)
    loop.update()
    assert loop.recorded()[0] == [1.5]


def test_of_a_closure_that_is_called_again_the_first_loss_counts(tmp_path: Path) -> None:
    loop, seen = Loop(tmp_path, torch.optim.LBFGS), []

    def closure() -> Tensor:
        loop.optimizer.zero_grad()
        loss = loop.loss()
        loss.backward()
        seen.append(loss.item())
        return loss

    loop.optimizer.step(closure)
    assert len(seen) > 1
    assert loop.recorded() == (seen[:1], [1.0])


def test_a_step_that_ended_in_an_exception_leaves_its_loss_to_no_other(tmp_path: Path) -> None:
    class Fails(torch.optim.SGD):
        fails = False

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise ValueError("a step that fails")
            return super().step(closure)

    loop, expected = Loop(tmp_path, Fails), []
    for fails in (False, True, True, False, False):
        loss = loop.loss()
        loss.backward()
        loop.optimizer.fails = fails
        if fails:
            with pytest.raises(ValueError, match="fails"):
                loop.update()
            loop.optimizer.zero_grad()
        else:
            loop.update()
            expected.append(loss.item())
    assert loop.recorded() == (expected, [1.0] * 3)


def test_a_checkpoint_that_runs_forward_again_inside_of_backward_is_part_of_it(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    inputs = torch.randn(8, 4, requires_grad=True)
    loss = torch.utils.checkpoint.checkpoint(loop.model, inputs, use_reentrant=True).square().mean()
    loss.backward()
    loop.update()
    assert loop.recorded() == ([loss.item()], [1.0])


def test_a_disabled_scaler_does_not_make_a_loss_count_twice(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", enabled=False)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path):
        loss = model(torch.ones(8, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["loss"].tolist() == [loss.item()] and run.steps["micro_batches"].tolist() == [1.0]


@pytest.mark.parametrize(
    "divided",
    [lambda scaled: scaled / 4, lambda scaled: scaled.div_(4), lambda scaled: scaled.mul_(0.5).mul_(0.5)],
    ids=["a new tensor", "in place", "in place, twice"],
)
def test_a_scaled_loss_that_the_loop_divides_counts_divided(
    divided: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, expected = nn.Linear(4, 1), list[float]()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=256.0)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path):
        for _ in range(24):  # at last on the usual way
            expected.append(0.0)
            for _ in range(4):
                loss = model(torch.randn(8, 4)).square().mean()
                divided(scaler.scale(loss)).backward()
                expected[-1] += loss.item() / 4
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["loss"].tolist() == pytest.approx(expected, rel=1e-6)


def test_loops_side_by_side_have_their_own_losses(tmp_path: Path) -> None:
    loops = [Loop(tmp_path / name) for name in "ab"]
    expected: list[list[float]] = [[], []]
    at_once = threading.Barrier(2)

    def train(at: int) -> None:
        for _ in range(20):
            at_once.wait(1200)
            loss = loops[at].loss() + at
            loss.backward()
            expected[at].append(loss.item())
            loops[at].update()

    threads = [threading.Thread(target=train, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(1200)
    for loop, losses in zip(loops, expected, strict=True):
        assert loop.recorded()[0] == losses


def test_a_backward_in_another_thread_while_a_step_runs_takes_nothing_from_the_step(tmp_path: Path) -> None:
    loop, expected = Loop(tmp_path), []

    def beside(*_: object) -> None:
        thread = threading.Thread(target=another_model, args=(loop,))
        thread.start()
        thread.join(1200)

    loop.optimizer.register_step_pre_hook(beside)
    for _ in range(3):
        loss = loop.loss()
        loss.backward()
        expected.append(loss.item())
        loop.update()
    assert loop.recorded() == (expected, [1.0] * 3)


def test_a_loop_may_go_on_in_another_thread_and_its_backward_run_in_one_of_its_own(tmp_path: Path) -> None:
    loop, expected = Loop(tmp_path), []

    def backward() -> None:
        loss = loop.loss()
        loss.backward()
        expected.append(loss.item())

    def step() -> None:
        another_model(loop)
        backward()
        loop.update()

    for target in (step, step, backward, step):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join(1200)
        loop.update() if target is backward else None
    assert loop.recorded() == (expected, [1.0] * 4)


def test_a_compiled_model_has_its_loss(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    compiled = torch.compile(loop.model, backend="eager")
    expected = []
    for _ in range(3):
        loss = compiled(torch.randn(8, 4)).square().mean()
        loss.backward()
        expected.append(loss.item())
        loop.update()
    assert loop.recorded()[0] == expected


def test_when_the_last_monitor_is_closed_torch_is_as_it_was(tmp_path: Path) -> None:
    before = torch.autograd._engine_run_backward
    loops = [Loop(tmp_path / name) for name in "ab"]
    assert torch.autograd._engine_run_backward is not before
    loops[0].monitor.close()
    assert torch.autograd._engine_run_backward is not before
    loops[1].monitor.close()
    assert torch.autograd._engine_run_backward is before
