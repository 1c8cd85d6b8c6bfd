"""NaN in real loops: whether backward, the optimizer or the forward made it, since when, and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tbnum
from tests.planted_loops import WIDTH, Loop, run_of

pytestmark = pytest.mark.usefixtures("one_thread")

NAN, INF = math.nan, math.inf


def rules(run: Any) -> dict[str, Any]:
    return {finding.rule: finding for finding in run.findings}


def failed(run: Any) -> list[Any]:
    return [event for event in run.events if event.kind in ("skip", "nonfinite_step")]


# -- made inside backward, in what follows the model -------------------------------------------------------------------


def where(outputs: Tensor) -> Tensor:
    kept = outputs.abs() * (torch.arange(len(outputs)) > 0).unsqueeze(1)
    return torch.where(kept > 0, kept.log(), torch.zeros_like(kept)).mean()


def square_root(outputs: Tensor) -> Tensor:
    return (outputs - outputs.detach()).square().sum(1).sqrt().mean()


def deviation_of_equals(outputs: Tensor) -> Tensor:
    return (0 * outputs).var(1).sqrt().mean()


def masked_row(outputs: Tensor) -> Tensor:
    mask = torch.where(torch.arange(len(outputs)) == 3, -INF, 0.0).unsqueeze(1)
    weights = (outputs @ outputs.T + mask).softmax(-1)
    return (torch.where(weights.isnan(), torch.zeros_like(weights), weights) @ outputs).mean()


def entropy(outputs: Tensor) -> Tensor:
    shares = outputs.softmax(-1) * (torch.arange(outputs.shape[1]) > 0)
    return -torch.nan_to_num(shares * shares.log()).sum(-1).mean()


def gradient_penalty(outputs: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad((0 * outputs).square().sum(), outputs, create_graph=True)
    return (gradient.square().sum().sqrt() - 1).square()


def power(outputs: Tensor) -> Tensor:
    return (0 * outputs).pow(0.5).mean()


@pytest.mark.parametrize(
    ("made_by", "operation", "model", "precision", "scale", "step"),
    [
        (where, "LogBackward0", "recurrent", "float32", 1.0, 37),
        (where, "LogBackward0", "convolutional", "float16", 2.0**12, 33),
        (square_root, "SqrtBackward0", "attending", "float16", 2.0**16, 41),
        (deviation_of_equals, "SqrtBackward0", "perceptron", "bfloat16", 1.0, 25),
        (masked_row, "SoftmaxBackward0", "perceptron", "float16", 2.0**6, 52),
        (masked_row, "SoftmaxBackward0", "attending", "float32", 1.0, 30),
        (entropy, "MulBackward0", "recurrent", "bfloat16", 1.0, 44),
        (gradient_penalty, "SqrtBackward0", "convolutional", "float16", 2.0**10, 29),
        (power, "PowBackward0", "attending", "float16", 2.0**14, 36),
    ],
)
def test_nan_that_backward_makes_is_named_with_its_step_and_replay_names_the_operation(
    made_by: Callable[[Tensor], Tensor],
    operation: str,
    model: str,
    precision: str,
    scale: float,
    step: int,
    tmp_path: Path,
):
    with Loop(tmp_path, model, precision, scale=scale, max_norm=1.0 if step % 2 else None) as loop:
        loop.steps(step)
        x, targets = loop.batch(step)

        def closure() -> None:
            outputs = loop.outputs(x).float()
            loop.backward(F.cross_entropy(outputs, targets) + 0.01 * made_by(outputs))

        loop.optimizer.zero_grad()
        closure()
        origin = loop.monitor.replay(closure)
        loop.update()
        loop.steps(12 if loop.scaler else 0)
    assert (origin.phase, origin.operation) == ("backward", operation)
    (event,) = failed(run_of(tmp_path))
    assert (event.step, event.cause) == (step, "backward_nonfinite")
    assert "monitor.replay(closure)" in event.remedy and "Look at the batch" not in event.remedy


# -- made inside backward, inside the model ----------------------------------------------------------------------------


class Inside(nn.Module):
    """The identity, whose backward makes NaN where `on`: of all elements, or of one alone."""

    def __init__(self, one_alone: bool) -> None:
        super().__init__()
        self.on, self.one_alone = False, one_alone

    def forward(self, x: Tensor) -> Tensor:
        if not self.on:
            return x
        zero = 0 * x.float()
        if self.one_alone:
            mask = torch.zeros_like(zero)
            mask.view(-1)[3] = 1
            return x + ((mask * zero).square().sum(1, keepdim=True).sqrt() * mask).to(x.dtype)
        return x + zero.square().sqrt().to(x.dtype)


MADE_IN_BACKWARD = ("backward_nonfinite", "warning")


@pytest.mark.parametrize(
    ("scale", "growth_interval", "step", "expected"),
    [
        (2.0**14, 20, 45, ("unknown", "info")),  # the scale had just grown, near the end of float16: it may be either
        (2.0**14, 20, 55, MADE_IN_BACKWARD),  # it stands where the largest gradients nearly fill float16
        (2.0**4, 7, 52, MADE_IN_BACKWARD),
        (2.0**10, 2000, 3, MADE_IN_BACKWARD),  # nothing has held for long yet
        (2.0**10, 2000, 60, MADE_IN_BACKWARD),
    ],
)
@pytest.mark.parametrize("layer", [1, 4], ids=["of the first layer", "of the second"])
@pytest.mark.parametrize("one_alone", [False, True])
def test_nan_made_inside_the_model_is_no_probes_and_no_batchs_doing_whatever_the_scale_did_before(
    scale: float,
    growth_interval: int,
    step: int,
    expected: tuple[str, str],
    layer: int,
    one_alone: bool,
    tmp_path: Path,
):
    inside = Inside(one_alone)
    layers: list[nn.Module] = [nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5)]
    model = nn.Sequential(*layers[:layer], inside, *layers[layer:])
    settings: dict[str, Any] = {"scale": scale, "growth_interval": growth_interval, "seed": 1}
    with Loop(tmp_path, model, "float16", optimizer=lambda p: torch.optim.SGD(p, lr=1e-2), **settings) as loop:
        loop.steps(step)
        inside.on = True
        loop.step()
        inside.on = False
        loop.steps(12)
    (event,) = [event for event in failed(run_of(tmp_path)) if event.step == step]
    assert (event.cause, event.severity) == expected
    assert "monitor.replay(closure)" in event.remedy


def test_real_overflows_are_not_taken_for_it(tmp_path: Path):
    """First scales far too high, probes of a scale that grows all the time, batches that count more than others."""
    for name, (scale, growth_interval) in enumerate([(2.0**30, 2000), (2.0**14, 4)]):
        for model in ("attending", "recurrent"):
            settings: dict[str, Any] = {"scale": scale, "growth_interval": growth_interval}
            with Loop(tmp_path / f"{model}{name}", model, "float16", **settings) as loop:
                for step in range(50):
                    weight = 2.0 ** (step % 5) if step % 10 == 9 else 1.0
                    loop.step(lambda loss, weight=weight: loss * weight)
    causes = {event.cause for run in tbnum.read(tmp_path).values() for event in failed(run)}
    assert causes == {"scale_warmup", "growth_probe", "bad_batch"}


# -- made by an update -------------------------------------------------------------------------------------------------


def small(dtype: torch.dtype) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 5)).to(dtype)


def spoil_moment(loop: Loop) -> None:
    loop.optimizer.state[next(loop.model.parameters())]["exp_avg"].view(-1)[1] = NAN


def spoil_learning_rate(loop: Loop) -> None:
    for group in loop.optimizer.param_groups:
        group["lr"] = INF


def spoil_weight_decay(loop: Loop) -> None:
    for group in loop.optimizer.param_groups:
        group["weight_decay"] = NAN


@pytest.mark.parametrize(
    ("spoil", "model", "precision", "step", "interval"),
    [
        (spoil_moment, "convolutional", "bfloat16", 33, 10),
        (spoil_moment, "recurrent", "float16", 26, 50),
        (spoil_learning_rate, "perceptron", "float32", 25, 10),
        (spoil_weight_decay, "attending", "float16", 42, 20),
    ],
)
def test_an_update_that_makes_the_nan_is_named_with_a_checkpoint_that_is_whole(
    spoil: Callable[[Loop], None], model: str, precision: str, step: int, interval: int, tmp_path: Path
):
    with Loop(tmp_path, model, precision, scale=2.0**8, tensor_interval=interval) as loop:
        loop.steps(step)
        spoil(loop)
        loop.steps(12)
    run = run_of(tmp_path)
    (update,) = [event for event in run.events if event.kind == "nonfinite_update"]
    assert (update.step, update.severity) == (step, "error")
    whole = update.data["after_step"] + 1  # measured with the interval
    assert step - interval <= whole <= step
    assert f"checkpoint from before step {whole}" in update.remedy
    assert {event.cause for event in failed(run)} == {"nonfinite_parameters"}
    assert all(f"before step {whole}" in event.remedy for event in failed(run))
    found = rules(run)
    assert found["nonfinite_update"].severity == "error" and f"before step {whole}" in found["nonfinite_loss"].remedy
    assert "Check the inputs" not in found["nonfinite_loss"].remedy


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        (lambda p: torch.optim.NAdam(p, lr=1e-3, eps=1e-8), torch.float16),
        (lambda p: torch.optim.Adam(p, lr=1e-3, eps=1e-9), torch.float16),
        (lambda p: torch.optim.RMSprop(p, lr=1e-3, eps=0.0), torch.float32),
    ],
)
def test_an_eps_that_is_nothing_in_the_parameters_type_is_reported_with_what_it_did(
    optimizer: Any, dtype: torch.dtype, tmp_path: Path
):
    model = small(dtype)
    with torch.no_grad():
        model[0].bias.fill_(-100.0 if dtype == torch.float32 else 0.0)  # units that are never active: gradients of 0
    with Loop(tmp_path, model, optimizer=optimizer) as loop:
        loop.outputs = lambda x: model(x.to(dtype))  # type: ignore[method-assign]
        loop.steps(20)
    run = run_of(tmp_path)
    found = rules(run)
    assert found["eps_vanishes"].severity == "warning" and found["nonfinite_update"].severity == "error"
    assert "forward_nonfinite" not in {event.cause for event in run.events}
    assert "mean_over_nothing" not in found


def test_an_update_whose_nan_reaches_the_loss_and_no_gradient_is_no_mean_over_nothing(tmp_path: Path):
    """A parameter that enters the loss as 0 * p: the loss is NaN from there on, and every gradient is finite."""
    model = small(torch.float32)
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    with Loop(tmp_path, model, optimizer=lambda p: torch.optim.Adam(p, lr=1e-3, eps=0.0)) as loop:
        loop.steps(30)
        loop.steps(15, lambda loss: loss + 0 * model.unused.sum())
    run = run_of(tmp_path)
    found = rules(run)
    (update,) = [event for event in run.events if event.kind == "nonfinite_update"]
    assert update.step == 30 and "mean_over_nothing" not in found
    assert found["nonfinite_loss"].remedy == update.remedy


# -- a loss that hides it ----------------------------------------------------------------------------------------------


def hidden_by_where(loop: Loop) -> Callable[[int], Tensor]:
    def loss(index: int) -> Tensor:
        x, targets = loop.batch(index)
        each = F.cross_entropy(loop.outputs(x).float(), targets, reduction="none")
        return torch.where(each.isfinite(), each, torch.zeros_like(each)).mean()

    return loss


def hidden_by_nan_to_num(loop: Loop) -> Callable[[int], Tensor]:
    own = loop.loss
    return lambda index: torch.nan_to_num(own(index), nan=1.0)


@pytest.mark.parametrize(
    ("hide", "model", "precision", "step"),
    [
        (hidden_by_where, "recurrent", "float32", 3),
        (hidden_by_where, "recurrent", "float16", 33),
        (hidden_by_nan_to_num, "perceptron", "bfloat16", 9),
        (hidden_by_nan_to_num, "attending", "float32", 21),
    ],
)
def test_parameters_that_a_finite_loss_hides_have_one_beginning_and_one_remedy(
    hide: Any, model: str, precision: str, step: int, tmp_path: Path
):
    with Loop(tmp_path, model, precision, scale=2.0**8, tensor_interval=5) as loop:
        loop.loss = hide(loop)  # type: ignore[method-assign]
        loop.steps(step)
        with torch.no_grad():
            next(loop.model.parameters())[0] = NAN
        loop.steps(40)
    run = run_of(tmp_path)
    assert {event.cause for event in failed(run)} == {"nonfinite_parameters"}
    (update,) = [event for event in run.events if event.kind == "nonfinite_update"]
    assert update.step == step - 1
    assert len({event.remedy for event in failed(run)}) == 1
    whole = update.data["after_step"] + 1
    assert step - 6 <= whole <= step and f"before step {whole}" in failed(run)[0].remedy
