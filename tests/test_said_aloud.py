"""Faults that leave every number finite: each is reported in real loops, with its step where it has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.planted_loops import WIDTH, Loop, Recurrent, run_of

pytestmark = pytest.mark.usefixtures("one_thread")

Make = Callable[[Any], torch.optim.Optimizer]


def sgd(lr: float, **settings: Any) -> Make:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **settings)


def adam(lr: float = 1e-3, **settings: Any) -> Make:
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr, **settings)


def finding(folder: Path, rule: str) -> Any:
    found = {each.rule: each for each in run_of(folder).findings}
    assert rule in found, sorted(found)
    return found[rule]


@pytest.mark.parametrize(
    ("model", "optimizer", "steps"),
    [("convolutional", sgd(0.1, weight_decay=0.5), 160), ("perceptron", adam(0.02, weight_decay=20.0), 120)],
)
def test_parameters_that_weight_decay_takes_away(model: str, optimizer: Make, steps: int, tmp_path: Path):
    with Loop(tmp_path, model, optimizer=optimizer, tensor_interval=10) as loop:
        loop.steps(steps, lambda loss: loss * 1e-3)
    vanish = finding(tmp_path, "weights_vanish")
    assert vanish.severity == "warning" and "weight decay" in vanish.remedy


class Detached(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.embed((x[:, :6].abs() * 4).long().clamp(max=9)).mean(1)
        return self.head(torch.tanh(self.state(torch.cat([hidden, hidden], 1))))


class LowRank(nn.Module):
    """LoRA over a frozen embedding, checkpointed: no input of the checkpoint needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, 16).requires_grad_(False)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(lambda h: h + self.up(self.down(h)), self.embed(x), use_reentrant=True))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("model", "precision", "names"),
    [(Detached, "float32", ("embed.weight",)), (LowRank, "bfloat16", ("down.weight", "up.weight"))],
)
def test_parameters_that_never_get_a_gradient(model: Any, precision: str, names: tuple[str, ...], tmp_path: Path):
    with Loop(tmp_path, model(), precision, tensor_interval=5) as loop:
        loop.steps(80)
    never = finding(tmp_path, "no_gradient")
    assert all(name in never.evidence for name in names) and "head" not in never.evidence
    assert "checkpointing" in never.remedy


@pytest.mark.parametrize(
    ("model", "precision", "first"),
    [("convolutional", "float32", 0), ("attending", "float16", 20), ("perceptron", "bfloat16", 9)],
)
def test_a_zero_grad_that_is_forgotten(model: str, precision: str, first: int, tmp_path: Path):
    with Loop(tmp_path, model, precision, scale=2.0**6, optimizer=sgd(1e-5)) as loop:
        loop.steps(first)
        loop.optimizer.zero_grad = lambda *_, **__: None  # type: ignore[method-assign]
        loop.steps(15)
    (event,) = [event for event in run_of(tmp_path).events if event.kind == "gradients_not_zeroed"]
    assert first <= event.step <= first + 8 and event.severity == "warning"
    assert finding(tmp_path, "gradients_not_zeroed").severity == "warning"


@pytest.mark.parametrize(("model", "precision", "parts"), [("perceptron", "float32", 4), ("recurrent", "float16", 2)])
def test_a_zero_grad_inside_the_accumulation(model: str, precision: str, parts: int, tmp_path: Path):
    with Loop(tmp_path, model, precision, scale=2.0**6) as loop:
        for step in range(25):
            for part in range(parts):
                loop.optimizer.zero_grad()
                loop.backward(loop.loss(parts * step + part) / parts)
            loop.update()
    discarded = finding(tmp_path, "gradients_discarded")
    assert "thrown away" in discarded.evidence and "only where the optimizer steps" in discarded.remedy


@pytest.mark.parametrize(
    ("model", "precision", "first"), [("convolutional", "float32", 0), ("perceptron", "float16", 18)]
)
def test_a_step_that_is_taken_twice(model: str, precision: str, first: int, tmp_path: Path):
    with Loop(tmp_path, model, precision, scale=2.0**6) as loop:
        loop.steps(first)
        for _ in range(15):
            loop.step()
            loop.optimizer.step()
    twice = finding(tmp_path, "step_without_backward")
    assert twice.severity == "warning" and first <= twice.steps[0] <= first + 8


@pytest.mark.parametrize(("model", "optimizer", "first"), [("recurrent", adam(), 40), ("attending", sgd(0.01), 15)])
def test_a_learning_rate_of_0_from_a_step_on(model: str, optimizer: Make, first: int, tmp_path: Path):
    with Loop(tmp_path, model, optimizer=optimizer) as loop:
        loop.steps(first)
        for group in loop.optimizer.param_groups:
            group["lr"] = 0.0
        loop.steps(60)
    zero = finding(tmp_path, "lr_zero")
    assert zero.severity == "warning" and zero.steps[0] == first and "nothing is learned" in zero.evidence


@pytest.mark.parametrize(
    ("model", "optimizer", "state", "step"),
    [
        ("perceptron", adam(), "exp_avg_sq", 40),
        ("convolutional", sgd(0.01, momentum=0.9), "momentum_buffer", 25),
        ("recurrent", lambda p: torch.optim.RMSprop(p, lr=1e-3), "square_avg", 33),
    ],
)
def test_a_moment_that_is_zeroed(model: str, optimizer: Make, state: str, step: int, tmp_path: Path):
    with Loop(tmp_path, model, optimizer=optimizer) as loop:
        loop.steps(step)
        for each in loop.optimizer.state.values():
            each[state].zero_()
        loop.steps(15)
    reset = finding(tmp_path, "moments_reset")
    assert reset.severity == "warning" and reset.steps == (step,) and state in reset.evidence


@pytest.mark.parametrize(
    ("model", "factor", "optimizer"), [("recurrent", 8.0, sgd(0.01)), ("perceptron", 12.0, adam())]
)
def test_gradients_that_are_several_times_too_large_for_good(
    model: str, factor: float, optimizer: Make, tmp_path: Path
):
    with Loop(tmp_path, model, optimizer=optimizer) as loop:
        update = loop.update

        def louder() -> None:
            if loop.now >= 300:
                for parameter in loop.model.parameters():
                    parameter.grad.mul_(factor)
            update()

        loop.update = louder  # type: ignore[method-assign]
        loop.steps(460)
    level = finding(tmp_path, "norm_level")
    assert level.severity == "warning" and abs(level.steps[-1] - 300) <= 2
    assert "number of micro-batches" in level.remedy


@pytest.mark.parametrize(("model", "precision", "parts"), [("perceptron", "float32", 8), ("attending", "float16", 3)])
def test_an_accumulation_that_is_not_divided(model: str, precision: str, parts: int, tmp_path: Path):
    with Loop(tmp_path, model, precision, scale=2.0**6, max_norm=0.5) as loop:
        for step in range(30):
            loop.optimizer.zero_grad()
            for part in range(parts):
                loop.backward(loop.loss(parts * step + part))
            loop.update()
    added = finding(tmp_path, "losses_not_divided")
    assert f"Each of the {parts} backwards" in added.evidence and "Divide" in added.remedy.replace("divide", "Divide")


@pytest.mark.parametrize(
    ("model", "optimizer", "steps"), [("convolutional", adam(3e-3), 150), ("attending", adam(3e-3), 200)]
)
def test_a_resumed_run_whose_model_alone_was_loaded_and_no_state_of_the_monitor(
    model: str, optimizer: Make, steps: int, tmp_path: Path
):
    with Loop(tmp_path, model, optimizer=optimizer, tensor_interval=20) as loop:
        loop.steps(steps)
        checkpoint_of_the_model = {name: value.clone() for name, value in loop.model.state_dict().items()}
    again = Loop.__new__(Loop)
    torch.manual_seed(7)
    again.__init__(tmp_path, model, optimizer=optimizer, tensor_interval=20)  # type: ignore[misc]
    again.model.load_state_dict(checkpoint_of_the_model)
    with again:
        for index in range(40):
            loss = again.loss(steps + index)
            again.optimizer.zero_grad()
            again.backward(loss)
            again.update()
    run = run_of(tmp_path)
    lost = {event.kind: event for event in run.events if event.kind.endswith("state_lost")}
    assert "optimizer_state_lost" in lost, {event.kind for event in run.events}
    assert lost["optimizer_state_lost"].step == steps
    assert finding(tmp_path, "optimizer_state_lost").severity == "warning"


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize(("model", "growth_interval"), [("attending", 4), ("perceptron", 5), ("convolutional", 4)])
def test_the_skips_of_a_sound_run_blame_no_batch(model: str, growth_interval: int, seed: int, tmp_path: Path):
    """A scale that grows until it fails, again and again, and overflows once more right after such a failure."""
    with Loop(tmp_path, model, "float16", scale=2.0**14, growth_interval=growth_interval, seed=seed) as loop:
        loop.steps(60)
    run = run_of(tmp_path)
    skips = [event for event in run.events if event.kind == "skip"]
    assert skips and {event.severity for event in skips} == {"info"}
    assert not any("Look at the batch" in event.remedy for event in skips)
