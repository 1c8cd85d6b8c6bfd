"""Real loops whose fault is easily taken for another: the cause, its step and the remedy that each is to have."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tbnum
import tbnum.cli
from tests.planted_loops import WIDTH, Loop, run_of

pytestmark = pytest.mark.usefixtures("one_thread")

NAN, INF = math.nan, math.inf


def rules(run: Any) -> dict[str, Any]:
    return {finding.rule: finding for finding in run.findings}


def of_kind(run: Any, kind: str) -> list[Any]:
    return [event for event in run.events if event.kind == kind]


def sgd(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


# -- a scale that no gradient survives ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "model", "step"),
    [(INF, "attending", 30), (2.0**127, "convolutional", 14), (2.0**112, "recurrent", 41), (2.0**60, "perceptron", 9)],
)
def test_a_scale_beyond_all_gradients_is_named_and_ends_neither_report_nor_check(
    scale: float, model: str, step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with Loop(tmp_path / "bad", model, "float16", scale=2.0**10) as loop:
        loop.steps(step)
        loop.scaler.update(scale)
        loop.steps(12)
    with Loop(tmp_path / "good", "perceptron", "float16", scale=2.0**10) as loop:
        loop.steps(20)
    found = rules(tbnum.read(tmp_path)["bad"])
    assert found["scale_extreme"].severity in ("warning", "error") and step in found["scale_extreme"].steps
    assert "2.0**16" in found["scale_extreme"].remedy
    assert all(event.severity != "info" for event in of_kind(tbnum.read(tmp_path)["bad"], "skip")[:8])
    assert tbnum.cli.main(["report", str(tmp_path)]) == 0
    assert "scale" in capsys.readouterr().out
    assert tbnum.cli.main(["check", "--fail-on", "warning", str(tmp_path)]) == 1
    assert tbnum.cli.main(["check", "--fail-on", "warning", str(tmp_path / "good")]) == 0


# -- buffers -----------------------------------------------------------------------------------------------------------


class Averaging(nn.Module):
    """Keeps an average of its inputs in a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 5)
        self.register_buffer("average", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.layer(x)


def instance_norm() -> nn.Module:
    norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
    return nn.Sequential(nn.Unflatten(1, (3, 4)), norm, nn.Flatten(), nn.Linear(12, 5))


@pytest.mark.parametrize(
    ("model", "step", "value", "buffer"),
    [
        ("convolutional", 23, NAN, "2.running_mean"),
        (instance_norm(), 37, INF, "1.running_mean"),
        (Averaging(), 12, NAN, "average"),
    ],
)
def test_buffers_that_one_skipped_batch_spoiled_are_an_error_with_the_step_of_that_batch(
    model: Any, step: int, value: float, buffer: str, tmp_path: Path
):
    with Loop(tmp_path, copy.deepcopy(model), "float16", scale=2.0**8) as loop:
        own = loop.batch
        loop.batch = lambda at: (own(at)[0] * (value if at == step else 1), own(at)[1])  # type: ignore[method-assign]
        loop.steps(step + 20)
    run = run_of(tmp_path)
    (event,) = of_kind(run, "nonfinite_buffers")
    assert (event.step, event.severity) == (step, "error")
    assert buffer in event.message and f"in step {step}, whose loss was not finite" in event.message
    assert f"from before step {step}," in event.remedy and "reset_running_stats()" in event.remedy
    assert run.findings[0].rule == "nonfinite_buffers" and run.findings[0].severity == "error"


def test_of_a_loop_that_leaves_such_a_batch_out_itself_the_interval_is_named(tmp_path: Path):
    with Loop(tmp_path, "convolutional", tensor_interval=10) as loop:
        for step in range(50):
            x, targets = loop.batch(step)
            loss = F.cross_entropy(loop.outputs(x * (NAN if step == 33 else 1)), targets)
            loop.optimizer.zero_grad()
            if torch.isfinite(loss):
                loss.backward()
                loop.update()
    (event,) = of_kind(run_of(tmp_path), "nonfinite_buffers")
    assert "between step 30 and step 39" in event.message and "from before step 30" in event.remedy


# -- clipping ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threshold", "model", "precision", "step", "words"),
    [
        (-0.5, "attending", "float16", 0, "reverses every gradient"),
        (-1e-3, "perceptron", "float32", 30, "reverses every gradient"),
        (0.0, "recurrent", "bfloat16", 0, "sets every gradient to 0"),
        (0.0, "convolutional", "float16", 45, "sets every gradient to 0"),
    ],
)
def test_a_threshold_that_is_not_above_0_is_an_error_from_its_first_step(
    threshold: float, model: str, precision: str, step: int, words: str, tmp_path: Path
):
    with Loop(tmp_path, model, precision, max_norm=1.0) as loop:
        loop.steps(step)
        loop.max_norm = threshold
        loop.steps(40)
    found = rules(run_of(tmp_path))
    assert found["max_norm_invalid"].severity == "error" and found["max_norm_invalid"].steps[0] == step
    assert words in found["max_norm_invalid"].evidence and "positive max_norm" in found["max_norm_invalid"].remedy
    assert not {"clipped_always", "clipped_never", "update_ratio_low"} & set(found)


@pytest.mark.parametrize(
    ("factor", "model", "precision", "max_norm", "step"),
    [
        (1e22, "perceptron", "float32", None, 40),
        (1e24, "recurrent", "bfloat16", 1.0, 23),
        (3e20, "attending", "float32", 0.1, 8),
    ],
)
def test_a_norm_that_overflows_says_what_clipping_did_only_in_a_run_with_clipping(
    factor: float, model: str, precision: str, max_norm: float | None, step: int, tmp_path: Path
):
    with Loop(tmp_path, model, precision, max_norm=max_norm, optimizer=sgd(1e-25)) as loop:
        loop.steps(step)
        loop.step(lambda loss: loss * factor)
        loop.steps(10)
    run = run_of(tmp_path)
    (event,) = of_kind(run, "norm_overflow")
    assert (event.step, event.severity) == (step, "warning") and not of_kind(run, "nonfinite_step")
    assert ("clipping" in event.message) == (max_norm is not None)


# -- the loss scale ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "rate", "scale"), [("perceptron", 1.12, 2.0**16), ("convolutional", 1.15, 2.0**18)])
def test_a_scale_that_falls_as_gradients_grow_is_never_nothing_to_do(
    model: str, rate: float, scale: float, tmp_path: Path
):
    with Loop(tmp_path, model, "float16", scale=scale, optimizer=sgd(1e-4)) as loop:
        for step in range(140):
            factor = min(rate ** max(0, step - 50), 2000.0)
            loop.step(lambda loss, factor=factor: loss * factor)
    run = run_of(tmp_path)
    assert (
        rules(run)["scale_falls"].severity == "warning"
        and "Lower the learning rate" in rules(run)["scale_falls"].remedy
    )
    held = run.steps["loss_scale"][40]
    low = [event for event in of_kind(run, "skip") if event.data["loss_scale"] <= held / 16]
    assert len(low) >= 2 and all("Nothing to do" not in event.remedy for event in low)
    assert all(f"far below 2^{int(math.log2(held))}" in event.remedy for event in low)


def gradient_penalty(loop: Loop, weight: float) -> None:
    """As in PyTorch's own recipe: gradients of the scaled loss, unscaled by hand, and a second backward."""
    x, targets = loop.batch(loop.now)
    loop.optimizer.zero_grad()
    with loop.autocast():
        loss = F.cross_entropy(loop.model(x), targets) * weight
    gradients = torch.autograd.grad(loop.scaler.scale(loss), list(loop.model.parameters()), create_graph=True)
    inverse = 1.0 / loop.scaler.get_scale()
    with loop.autocast():
        penalty = sum((gradient * inverse).square().sum() for gradient in gradients).sqrt()
        loss = (loss + penalty) / weight
    loop.scaler.scale(loss).backward()
    loop.update()


@pytest.mark.parametrize(
    ("model", "scale", "growth_interval", "weight"),
    [("perceptron", 2.0**16, 2000, 16.0), ("convolutional", 2.0**24, 2000, 4.0), ("perceptron", 2.0**10, 6, 64.0)],
)
def test_a_loss_that_the_scale_itself_makes_infinite_is_the_scales_doing_when_it_begins_and_when_it_grows(
    model: str, scale: float, growth_interval: int, weight: float, tmp_path: Path
):
    with Loop(tmp_path, model, "float16", scale=scale, growth_interval=growth_interval) as loop:
        for _ in range(40):
            gradient_penalty(loop, weight)
    run = run_of(tmp_path)
    infinite = [event for event in of_kind(run, "skip") if not math.isfinite(event.data["loss"])]
    assert infinite and infinite[0].cause == ("scale_warmup" if growth_interval == 2000 else "growth_probe")
    benign = [event for event in infinite if event.cause in ("scale_warmup", "growth_probe")]
    assert all(event.severity == "info" and "Check the inputs" not in event.remedy for event in benign)
    assert not any("no loss scale helps" in event.message for event in infinite)
    assert ("nonfinite_loss" in rules(run)) == (len(benign) < len(infinite))


def test_a_gradient_penalty_whose_loss_is_nan_at_every_scale_is_the_forwards(tmp_path: Path):
    with Loop(tmp_path, "perceptron", "float16", scale=2.0**10) as loop:
        for step in range(30):
            gradient_penalty(loop, NAN if step == 20 else 1.0)
    (skip,) = of_kind(run_of(tmp_path), "skip")
    assert (skip.step, skip.cause) == (20, "forward_nonfinite")


# -- anomaly mode, replay ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "precision", "step", "spoil"),
    [
        ("recurrent", "float32", 21, lambda loss: loss + (loss * 0).sqrt()),
        ("attending", "float16", 12, lambda loss: loss * 1e6),
        ("perceptron", "bfloat16", 0, lambda loss: loss * NAN),
    ],
)
def test_a_crash_of_anomaly_mode_says_so_and_its_step(
    model: str, precision: str, step: int, spoil: Any, tmp_path: Path
):
    anomaly = torch.autograd.detect_anomaly(check_nan=True)
    with pytest.raises(RuntimeError, match="nan"), anomaly, Loop(tmp_path, model, precision, scale=2.0**10) as loop:
        loop.steps(step)
        loop.step(spoil)
    (crash,) = of_kind(run_of(tmp_path), "crash")
    assert crash.step == step and "Anomaly mode raises" in crash.remedy and "Read the steps before" not in crash.remedy


@pytest.mark.parametrize(
    ("model", "precision", "step"), [("convolutional", "float32", 15), ("recurrent", "bfloat16", 7)]
)
def test_a_replay_after_a_step_that_spoiled_the_parameters_says_what_it_needs_and_works_with_that(
    model: str, precision: str, step: int, tmp_path: Path
):
    origins: list[Any] = []
    with Loop(tmp_path, model, precision) as loop:
        loop.steps(step)
        x, targets = loop.batch(step)
        checkpoint = copy.deepcopy(loop.model.state_dict())

        def closure() -> None:
            outputs = loop.outputs(x).float()
            loop.backward(F.cross_entropy(outputs, targets) + (0 * outputs).square().sum(1).sqrt().mean())

        def replay_it(event: Any) -> None:
            if event.kind == "nonfinite_step":
                origins.append(loop.monitor.replay(closure))
                loop.model.load_state_dict(checkpoint)
                origins.append(loop.monitor.replay(closure))

        loop.monitor.on_event(replay_it)
        loop.optimizer.zero_grad()
        closure()
        loop.update()
        loop.monitor.flush()
    spoiled, clean = origins
    assert "not finite" in spoiled.message and "load a checkpoint" in spoiled.message
    assert (clean.phase, clean.operation) == ("backward", "SqrtBackward0")
    (event,) = of_kind(run_of(tmp_path), "nonfinite_step")
    assert event.cause == "backward_nonfinite" and "with that checkpoint loaded" in event.remedy


# -- runs that repeat another ------------------------------------------------------------------------------------------


def train_and_diverge(folder: Path, steps: int, at: int | None, seed: int) -> None:
    with contextlib.suppress(FloatingPointError), Loop(folder, "perceptron", seed=seed, config={"seed": seed}) as loop:
        for step in range(steps):
            loop.step(lambda loss, step=step: loss * (NAN if step == at else 1.0))


@pytest.mark.parametrize("in_one_folder", [False, True])
def test_a_fixed_program_with_the_seed_of_a_diverged_run_may_fail_alike_until_it_is_past_that_place(
    in_one_folder: bool, tmp_path: Path
):
    first, second = ("run", "run") if in_one_folder else ("first", "second")
    train_and_diverge(tmp_path / first, 40, at=25, seed=3)
    with pytest.warns(RuntimeWarning, match="may fail alike"):
        train_and_diverge(tmp_path / second, 20, at=None, seed=3)
    run = tbnum.read(tmp_path)[second]
    (event,) = of_kind(run, "repeat_of_diverged_run")
    assert event.severity == "warning" and event.data["at_step"] == 25 and "may fail alike" in event.message
    assert tbnum.cli.main(["check", "--fail-on", "warning", str(tmp_path / second)]) == 1
    third = second if in_one_folder else "third"
    if in_one_folder:
        train_and_diverge(tmp_path / third, 40, at=25, seed=3)
    with pytest.warns(RuntimeWarning, match="may fail alike"):
        train_and_diverge(tmp_path / third, 40, at=None, seed=3)
    run = tbnum.read(tmp_path)[third]
    (event,) = of_kind(run, "repeat_of_diverged_run")
    assert event.severity == "info" and "past that place" in event.message and "will fail" not in event.message
    assert tbnum.cli.main(["check", "--fail-on", "warning", str(tmp_path / third)]) == 0


def test_another_seed_or_setting_repeats_nothing(tmp_path: Path):
    train_and_diverge(tmp_path / "first", 40, at=25, seed=3)
    train_and_diverge(tmp_path / "second", 10, at=None, seed=4)
    assert not of_kind(tbnum.read(tmp_path)["second"], "repeat_of_diverged_run")


# -- scalars that another program wrote --------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "every", "value"), [(1.0, 2, NAN), (1.0, 7, INF), (None, 3, NAN)])
def test_scalars_with_a_norm_of_nan_and_no_scale_that_comes_down_tell_of_no_bad_batch(
    scale: float | None, every: int, value: float, tmp_path: Path
):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(80):
            writer.add_scalar("train/loss", 2.0 + 0.01 * (step % 5), step)
            writer.add_scalar("train/grad_norm", value if step % every == 1 else 1.0, step)
            if scale is not None:
                writer.add_scalar("train/loss_scale", scale, step)
    run = run_of(tmp_path)
    assert "bad_batch" not in {event.cause for event in run.events}
    assert not any("clip the gradients harder" in finding.remedy for finding in run.findings)
    assert np.isnan(run.steps["grad_norm"]).any() or np.isinf(run.steps["grad_norm"]).any()


# -- clipping by value -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "was given 0, which sets every gradient to 0."),
        (-1.0, "was given -1, which sets every gradient whatever its sign: each element becomes -1."),
        (-1e-6, "each element becomes -1e-06."),  # which shortens them
        (0.1, None),
        (1e-6, None),
    ],
)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_clip_by_value_that_leaves_nothing_or_reverses_is_reported(
    value: float, words: str | None, scaled: bool, tmp_path: Path
):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=16.0)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path):
        for step in range(60):
            optimizer.zero_grad()
            x = torch.randn(16, 8)
            scaler.scale((model(x) - x[:, :4]).square().mean()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_value_(model.parameters(), value if step >= 20 else 0.1)
            scaler.step(optimizer)
            scaler.update()
    (run,) = tbnum.read(tmp_path).values()
    found = {finding.rule: finding for finding in run.findings}
    events = [event for event in run.events if event.kind == "clip_value_invalid"]
    if words is None:
        assert not events and "clip_value_invalid" not in found
        return
    (event,) = events
    assert event.step == 20 and words in event.message and "test_wrong_turns.py:" in event.message
    assert found["clip_value_invalid"].severity == "error" and found["clip_value_invalid"].steps == (20,)
    assert "gradients_zeroed" not in found, "one cause has one finding"


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_gradients_that_the_loop_sets_to_0_are_reported(factor: float, tmp_path: Path):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path):
        for step in range(20):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 10.0)
            if step >= 10:
                for parameter in model.parameters():
                    parameter.grad.mul_(factor)
            optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    found = [finding for finding in run.findings if finding.rule == "gradients_zeroed"]
    assert [finding.steps[0] for finding in found] == ([10] if factor == 0 else [])
