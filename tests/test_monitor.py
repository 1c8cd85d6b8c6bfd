"""What a training loop's record says, read back from disk, for the ways in which people train."""

from __future__ import annotations

import argparse
import copy
import gc
import io
import math
import pickle
import signal
import subprocess
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tbnum
from tests import warm
from tests.loops import FUSED, OPTIMIZERS, Half, batches, float64_norm, train
from tests.published.wrappers import Delegating


@pytest.fixture(autouse=True)
def _one_warning_is_a_failure() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*tbnum.*")
        yield


def scaler_for(scale: float = 2.0**24, interval: int = 2000) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)


def steps_of(logdir: Path) -> dict[str, np.ndarray]:
    (run,) = tbnum.read(logdir).values()
    return run.steps


def kinds_of(logdir: Path) -> list[str]:
    (run,) = tbnum.read(logdir).values()
    return [event.kind for event in run.events]


# -- bits ------------------------------------------------------------------------------------------------------------


def everything(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(
        [model.state_dict(), optimizer.state_dict(), scaler and scaler.state_dict(), torch.get_rng_state()], buffer
    )
    return buffer.getvalue()


VARIANTS = [(name, {}) for name in OPTIMIZERS] + [(name, {"fused": True}) for name in FUSED]
VARIANTS += [("AdamW", {"foreach": True}), ("AdamW", {"foreach": False}), ("SGD", {"maximize": True})]


def test_every_optimizer_of_torch_is_trained_with() -> None:
    classes = {name for name, value in vars(torch.optim).items() if isinstance(value, type)}
    assert classes - {"Optimizer"} == {*OPTIMIZERS, "LBFGS", "SparseAdam"}  # these two have a test of their own below


@pytest.mark.parametrize("scaling", ["given", "forgotten", "none"])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_training_with_tbnum_is_bitwise_the_training_without(
    name: str, options: dict[str, Any], scaling: str, tmp_path: Path
) -> None:
    def run(logdir: Path | None) -> bytes:
        torch.manual_seed(3)
        model = Half()
        # Fused SGD leaves its momentum uninitialized when its first step is skipped, so two runs without tbnum differ.
        scale = 2.0**10 if (name, options) == ("SGD", {"fused": True}) else 2.0**22
        optimizer, scaler = OPTIMIZERS[name](model.parameters(), **options), scaler_for(scale, 8)
        given = scaler if scaling == "given" else None
        used = None if scaling == "none" else scaler
        monitor = tbnum.wrap(optimizer, given, model=model, logdir=logdir, tensor_interval=3) if logdir else None
        train(model, optimizer, used, batches(30, bad=[] if used is None else [12]), max_norm=0.5)
        torch.rand(1)
        if monitor is not None:
            monitor.close()
        return everything(model, optimizer, scaler)

    assert run(tmp_path) == run(None)
    steps = steps_of(tmp_path)
    if scaling == "none":
        assert len(steps["step"]) == 30 and not steps["skipped"].any()
    elif scaling == "given":  # that the forgotten scaler's record is the same, tests/published shows
        assert len(steps["step"]) == 30
        assert 0 < steps["skipped"].sum() < 30


@pytest.mark.parametrize("clips", [False, True])
def test_lbfgs_with_its_closure_is_bitwise_the_same_and_one_step_a_call(clips: bool, tmp_path: Path) -> None:
    def run(logdir: Path | None) -> tuple[bytes, list[tuple[float, float]]]:
        torch.manual_seed(3)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
        monitor = tbnum.wrap(optimizer, model=model, logdir=logdir) if logdir else None
        x, norms, losses = torch.randn(16, 4), [], []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            norms.append(float64_norm(model.parameters()))
            losses.append(loss.item())
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            return loss

        firsts = []
        for _ in range(4):
            at = len(norms)
            optimizer.step(closure)
            firsts.append((norms[at], losses[at]))
        if monitor is not None:
            monitor.close()
        return everything(model, optimizer, None), firsts

    (bits, firsts), (plain, _) = run(tmp_path), run(None)
    assert bits == plain
    steps = steps_of(tmp_path)
    assert len(steps["step"]) == 4
    norms, losses = zip(*firsts, strict=True)
    assert steps["grad_norm"] == pytest.approx(norms, rel=1e-5)
    assert steps["loss"].tolist() == list(losses)


def test_sparse_adam_is_bitwise_the_same_and_its_norm_adds_up_what_shares_an_index(tmp_path: Path) -> None:
    def run(logdir: Path | None) -> tuple[bytes, list[float]]:
        torch.manual_seed(3)
        model = nn.Embedding(6, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters())
        monitor = tbnum.wrap(optimizer, model=model, logdir=logdir) if logdir else None
        norms = []
        for _ in range(5):
            model(torch.tensor([1, 1, 2])).square().sum().backward()
            norms.append(float64_norm(model.parameters()))
            optimizer.step()
            optimizer.zero_grad()
        if monitor is not None:
            monitor.close()
        return everything(model, optimizer, None), norms

    (bits, norms), (plain, _) = run(tmp_path), run(None)
    assert bits == plain
    assert steps_of(tmp_path)["grad_norm"] == pytest.approx(norms, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_without_a_scaler_gradients_of_every_type_are_measured(dtype: torch.dtype, tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.ones(3).to(dtype))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        (parameter * torch.tensor([1.0, 2.0, 2.0]).to(dtype)).sum().abs().backward()
        optimizer.step()
    steps = steps_of(tmp_path)
    assert steps["grad_norm"][0] == pytest.approx(3.0, rel=1e-5)
    assert steps["loss"][0] == pytest.approx(5.0) and math.isnan(steps["loss_scale"][0])


# -- numbers ---------------------------------------------------------------------------------------------------------


def gradient_of(values: list[float], scaler: torch.amp.GradScaler | None, parameter: nn.Parameter) -> None:
    loss = (parameter * torch.tensor(values)).sum()
    (loss if scaler is None else scaler.scale(loss)).backward()


@pytest.mark.parametrize("how", ["unscaled by the user", "left to step", "fused"])
def test_a_gradient_of_norm_5_under_scale_1024_is_logged_as_5(how: str, tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=how == "fused")
    scaler = scaler_for(1024.0)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        gradient_of([3.0, 4.0], scaler, parameter)
        if how == "unscaled by the user":
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    steps = steps_of(tmp_path)
    assert steps["grad_norm"][0] == pytest.approx(5.0)
    assert steps["grad_norm_clipped"][0] == pytest.approx(5.0)
    assert steps["loss_scale"][0] == 1024.0
    assert math.isnan(steps["clip_coef"][0]) and math.isnan(steps["max_norm"][0])
    assert not steps["skipped"][0] and steps["nonfinite_tensors"][0] == 0 and steps["lr"][0] == 0.1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("clip", ["torch", "tbnum", "monitor"])
def test_norm_10_clipped_at_1_is_logged_as_10_then_1(clip: str, scaled: bool, fused: bool, tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=fused)
    scaler = scaler_for(1024.0) if scaled else None
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path, scalar_interval=2) as monitor:
        for _ in range(2):  # the first is verified by a second pass, the second follows from the coefficient
            gradient_of([6.0, 8.0], scaler, parameter)
            if scaler is not None and clip != "monitor":
                scaler.unscale_(optimizer)
            match clip:
                case "torch":
                    norm = nn.utils.clip_grad_norm_([parameter], 1.0)
                case "tbnum":
                    norm = tbnum.clip_grad_norm_([parameter], 1.0)
                case _:
                    norm = monitor.clip_grad_norm_(1.0)
            assert norm.item() == pytest.approx(10.0)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
    steps = steps_of(tmp_path)
    assert steps["grad_norm"] == pytest.approx([10.0, 10.0])
    assert steps["grad_norm_clipped"] == pytest.approx([1.0, 1.0], abs=1e-5)
    assert steps["clip_coef"] == pytest.approx([0.1, 0.1], abs=1e-6)
    assert steps["max_norm"].tolist() == [1.0, 1.0]


def test_a_clip_that_was_not_needed_has_the_coefficient_1_and_an_infinite_threshold_is_no_clip(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        for max_norm in (100.0, math.inf):
            gradient_of([6.0, 8.0], None, parameter)
            nn.utils.clip_grad_norm_([parameter], max_norm)
            optimizer.step()
            optimizer.zero_grad()
    steps = steps_of(tmp_path)
    assert steps["clip_coef"].tolist() == pytest.approx([1.0, math.nan], nan_ok=True)
    assert steps["max_norm"].tolist() == pytest.approx([100.0, math.nan], nan_ok=True)
    assert steps["grad_norm_clipped"] == pytest.approx([10.0, 10.0])


def test_clipping_by_value_and_by_parts_is_measured_as_what_the_optimizer_got(tmp_path: Path) -> None:
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([a, b], lr=0.1)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        for step in range(2):
            a.grad, b.grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
            if step == 0:
                nn.utils.clip_grad_value_([a, b], 3.5)
            else:
                nn.utils.clip_grad_norm_([a], 1.0)  # of two parameters one
            optimizer.step()
    steps = steps_of(tmp_path)
    expected = [math.hypot(3.0, 3.5, 3.5), math.hypot(1.0, 12.0)]
    assert steps["grad_norm"] == pytest.approx([13.0, 13.0])
    assert steps["grad_norm_clipped"] == pytest.approx(expected, rel=1e-5)
    assert steps["clip_coef"] == pytest.approx([each / 13.0 for each in expected], rel=1e-5)


def test_a_clip_that_lists_tied_parameters_twice_is_measured_as_what_the_optimizer_got(tmp_path: Path) -> None:
    encoder, decoder = nn.Linear(8, 8), nn.Linear(8, 8)
    decoder.weight = encoder.weight
    optimizer = torch.optim.SGD([encoder.weight, encoder.bias, decoder.bias], lr=0.1)
    after = []
    with tbnum.wrap(optimizer, logdir=tmp_path):
        for x in batches(4):
            optimizer.zero_grad()
            decoder(encoder(x)).square().mean().backward()
            nn.utils.clip_grad_norm_([*encoder.parameters(), *decoder.parameters()], 0.1)
            after.append(float64_norm([encoder.weight, encoder.bias, decoder.bias]))
            optimizer.step()
    np.testing.assert_allclose(steps_of(tmp_path)["grad_norm_clipped"], after, rtol=1e-6)


def test_a_clip_written_by_hand_after_unscale_is_noticed(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer, scaler = torch.optim.SGD([parameter], lr=0.1), scaler_for(1024.0)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        gradient_of([6.0, 8.0], scaler, parameter)
        scaler.unscale_(optimizer)
        parameter.grad.mul_(0.5)
        scaler.step(optimizer)
        scaler.update()
    steps = steps_of(tmp_path)
    assert steps["grad_norm"][0] == pytest.approx(10.0)
    assert steps["grad_norm_clipped"][0] == pytest.approx(5.0)
    assert math.isnan(steps["max_norm"][0])


def test_a_clip_of_gradients_that_carry_the_scale_is_an_event_and_the_norm_is_still_the_true_one(
    tmp_path: Path,
) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer, scaler = torch.optim.SGD([parameter], lr=0.1), scaler_for(1024.0)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        for _ in range(2):
            gradient_of([6.0, 8.0], scaler, parameter)
            nn.utils.clip_grad_norm_([parameter], 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["grad_norm"] == pytest.approx([10.0, 10.0])
    assert run.steps["grad_norm_clipped"] == pytest.approx([1.0 / 1024] * 2, rel=1e-4)
    (event,) = run.events  # once for a place, not at each step
    assert event.kind == "clip_before_unscale" and event.data["where"].startswith("test_monitor.py:")
    assert event.data["loss_scale"] == 1024.0


@pytest.mark.parametrize(
    ("unscales", "value", "is_one"), [(False, 5.0, True), (True, 5.0, False), (False, 5120.0, False)]
)
def test_a_clip_by_value_of_gradients_that_carry_the_scale_is_an_event(
    unscales: bool, value: float, is_one: bool, tmp_path: Path
) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer, scaler = torch.optim.SGD([parameter], lr=0.1), scaler_for(1024.0)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        for _ in range(2):
            gradient_of([6.0, 8.0], scaler, parameter)
            if unscales:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_([parameter], value)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    (run,) = tbnum.read(tmp_path).values()
    left = value if unscales else value / 1024
    assert run.steps["grad_norm"] == pytest.approx([10.0, 10.0])
    assert run.steps["grad_norm_clipped"] == pytest.approx([math.hypot(left, left)] * 2, rel=1e-4)
    assert [event.kind for event in run.events] == ["clip_before_unscale"] * is_one
    for event in run.events:
        assert event.data["clip_value"] == 5.0 and event.data["loss_scale"] == 1024.0
        assert "clipped to 5 at test_monitor.py:" in event.message and "2^10 times too tight" in event.message


@pytest.mark.parametrize(
    ("after", "max_norm", "is_one"), [(True, 1.0, True), (True, math.inf, False), (False, 1.0, False)]
)
def test_a_clip_after_the_step_is_an_event_and_a_question_for_the_norm_is_none(
    after: bool, max_norm: float, is_one: bool, tmp_path: Path
) -> None:
    parameter, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        for _ in range(30):
            gradient_of([6.0, 8.0], None, parameter)
            if not after:
                nn.utils.clip_grad_norm_([parameter], max_norm)
            optimizer.step()
            if after:
                nn.utils.clip_grad_norm_([parameter], max_norm)
            nn.utils.clip_grad_norm_([parameter, other], max_norm)  # for another optimizer too, that steps later
            optimizer.zero_grad()
    (run,) = tbnum.read(tmp_path).values()
    left = 10.0 if after else 1.0
    assert run.steps["grad_norm_clipped"] == pytest.approx([left] * 30, rel=1e-4)
    assert [(event.kind, event.severity) for event in run.events] == [("clip_after_step", "warning")] * is_one
    for event in run.events:
        assert event.message.startswith("Gradients were clipped at test_monitor.py:") and event.data["max_norm"] == 1.0


@pytest.mark.parametrize("fused", [False, True])
def test_every_column_equals_a_float64_computation_over_a_run_with_skips(fused: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Half()
    optimizer, scaler = OPTIMIZERS["AdamW"](model.parameters(), fused=fused), scaler_for(2.0**22, 10)
    data = batches(40, bad=[25])
    expected: dict[str, list[float]] = {
        name: [] for name in ("grad_norm", "loss", "loss_scale", "growth_tracker", "skipped", "nonfinite")
    }
    updates = []
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path, tensor_interval=1):
        for x in data:
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            gradients = [each.grad for each in model.parameters()]
            expected["grad_norm"].append(float64_norm(model.parameters()))
            expected["nonfinite"].append(sum(not bool(torch.isfinite(each).all()) for each in gradients))
            expected["loss"].append(loss.item())
            expected["loss_scale"].append(scaler.get_scale())
            expected["growth_tracker"].append(scaler._get_growth_tracker())
            before = [each.detach().double().clone() for each in model.parameters()]
            scaler.step(optimizer)
            change = [(a.detach().double() - b) for a, b in zip(model.parameters(), before, strict=True)]
            expected["skipped"].append(expected["nonfinite"][-1] > 0)
            updates.append(math.sqrt(sum(each.square().sum().item() for each in change)))
            scaler.update()
            optimizer.zero_grad()
    steps = steps_of(tmp_path)
    assert steps["skipped"].tolist() == expected["skipped"] and any(expected["skipped"])
    taken = ~steps["skipped"]
    for name in ("loss", "loss_scale", "growth_tracker"):
        assert steps[name].tolist() == pytest.approx(expected[name], rel=1e-7)
    assert steps["nonfinite_tensors"].tolist() == expected["nonfinite"]
    assert steps["grad_norm"].tolist() == pytest.approx(expected["grad_norm"], rel=1e-6, nan_ok=True)
    assert steps["update_norm"][taken] == pytest.approx(np.array(updates)[taken], rel=1e-4)
    assert np.isnan(steps["grad_norm_clipped"][~taken]).all()
    assert steps["micro_batches"].tolist() == [1.0] * 40


@pytest.mark.parametrize("unscale", [False, True])
def test_fused_and_unfused_see_the_same_skips_scales_and_norms(unscale: bool, tmp_path: Path) -> None:
    found = {}
    for fused in (False, True):
        torch.manual_seed(0)
        model = Half()
        optimizer, scaler = (
            OPTIMIZERS["AdamW"](model.parameters(), fused=fused, weight_decay=0.0),
            scaler_for(2.0**22, 6),
        )
        with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path / str(fused)):
            train(model, optimizer, scaler, batches(40, bad=[20]), unscale=unscale)
        found[fused] = steps_of(tmp_path / str(fused))
    assert found[True]["skipped"].tolist() == found[False]["skipped"].tolist()
    assert found[True]["loss_scale"].tolist() == found[False]["loss_scale"].tolist()
    assert found[True]["grad_norm"].tolist() == pytest.approx(found[False]["grad_norm"].tolist(), rel=1e-4, nan_ok=True)
    assert found[True]["nonfinite_tensors"].tolist() == found[False]["nonfinite_tensors"].tolist()


@pytest.mark.parametrize("size", [1e-18, 1e-25, 1e-40])
def test_gradients_whose_squares_vanish_in_float32_have_their_norm_and_torch_clips_them_as_ever(
    size: float, tmp_path: Path
) -> None:
    parameters = [nn.Parameter(torch.zeros(100, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    twins = [nn.Parameter(torch.zeros(100, dtype=each.dtype)) for each in parameters]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    for each, twin in zip(parameters, twins, strict=True):
        each.grad = (torch.randn(100) * size).to(each.dtype)
        twin.grad = each.grad.clone()
    expected = math.sqrt(sum(each.grad.double().square().sum().item() for each in parameters))
    with tbnum.wrap(optimizer, logdir=tmp_path, tensor_interval=1):
        assert torch.equal(tbnum.clip_grad_norm_(parameters, 1e-26), nn.utils.clip_grad_norm_(twins, 1e-26))
        assert all(torch.equal(each.grad, twin.grad) for each, twin in zip(parameters, twins, strict=True))
        optimizer.step()
    run = tbnum.read(tmp_path)["."]
    assert run.steps["grad_norm"][0] == pytest.approx(expected, rel=1e-6)
    assert np.hypot.reduce(run.tensors["grad_norm"].values[0]) == pytest.approx(expected, rel=1e-6)


# -- steps -----------------------------------------------------------------------------------------------------------


def test_gradients_are_unscaled_once_where_the_scaler_is_given_an_object_around_the_optimizer(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = Delegating(OPTIMIZERS["SGD"](model.parameters())), scaler_for(128.0)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path) as monitor:
        for step, x in enumerate(batches(3)):
            scaler.scale(model(x).mean()).backward()
            norm = float64_norm(model.parameters()) / scaler.get_scale()
            if step == 0:  # nobody knows yet what the scaler will be given
                with pytest.raises(
                    RuntimeError, match=r"scaler.unscale_\(\) with the object that scaler.step\(\) gets"
                ):
                    monitor.clip_grad_norm_(1e9)
                scaler.unscale_(optimizer)
            assert monitor.clip_grad_norm_(1e9).item() == pytest.approx(norm)
            scaler.step(optimizer)
            scaler.update()
            assert float64_norm(model.parameters()) == pytest.approx(norm)
            optimizer.zero_grad()
    assert len(tbnum.read(tmp_path)["."].steps["step"]) == 3


@pytest.mark.parametrize("given", [None, "much", 0.0, -2.0, math.nan, torch.ones(2)])
def test_a_scale_of_the_loop_that_is_none_is_reported_and_leaves_its_numbers_unknown(
    given: Any, tmp_path: Path
) -> None:
    model = Half()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    with (
        pytest.warns(RuntimeWarning, match="the function given as scaler= gave .*multiplied by now"),
        tbnum.wrap(optimizer, lambda: given, logdir=tmp_path),
    ):
        for x in batches(2):
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    steps = tbnum.read(tmp_path)["."].steps
    assert len(steps["step"]) == 2
    assert all(np.isnan(steps[column]).all() for column in ("loss", "loss_scale", "grad_norm"))


def test_an_inf_in_one_of_four_micro_batches_is_one_step_and_one_skip(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(2.0**10)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path):
        losses = train(model, optimizer, scaler, batches(12, bad=[5]), accumulate=4)
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["micro_batches"].tolist() == [4.0] * 3
    assert run.steps["skipped"].tolist() == [False, True, False]
    assert run.steps["loss"] == pytest.approx(losses, rel=1e-6)  # divided by the accumulation: the mean
    assert [(event.kind, event.step) for event in run.events] == [("skip", 1), ("scale_backoff", 1)]
    assert "micro-batch 2 of 4" in run.events[0].message


def test_growth_without_overflow_is_never_a_skip(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(2.0, 2)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path) as monitor:
        train(model, optimizer, scaler, batches(9))
        assert monitor.step == 9 and monitor.skipped_steps == 0
    (run,) = tbnum.read(tmp_path).values()
    assert not run.steps["skipped"].any()
    assert [(event.kind, event.step) for event in run.events] == [("scale_growth", step) for step in (1, 3, 5, 7)]
    assert run.events[0].data == {"old_scale": 2.0, "new_scale": 4.0}


def test_of_two_optimizers_on_one_scaler_only_the_one_that_overflowed_is_skipped(tmp_path: Path) -> None:
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizers = {"first": torch.optim.SGD([a], lr=0.1), "second": torch.optim.Adam([b], lr=0.2)}
    scaler = scaler_for(1024.0)
    with tbnum.wrap(optimizers, scaler, logdir=tmp_path):
        for step in range(3):
            scaler.scale(a.sum() * 3).backward()
            scaler.scale(b.sum() * (math.inf if step == 1 else 2)).backward()
            for each in optimizers.values():
                scaler.step(each)
            scaler.update()
            for each in optimizers.values():
                each.zero_grad()
    (run,) = tbnum.read(tmp_path).values()
    steps = run.steps
    assert steps["first/skipped"].tolist() == [False] * 3
    assert steps["second/skipped"].tolist() == steps["skipped"].tolist() == [False, True, False]
    assert steps["loss_scale"].tolist() == [1024.0, 1024.0, 512.0]
    assert steps["first/grad_norm"] == pytest.approx([3 * 2**0.5] * 3)
    assert steps["micro_batches"].tolist() == [2.0] * 3
    assert steps["first/lr"].tolist() == [0.1] * 3 and steps["second/lr"].tolist() == [0.2] * 3
    assert [(e.kind, e.step, e.optimizer) for e in run.events] == [("skip", 1, "second"), ("scale_backoff", 1, None)]


def test_without_a_scaler_a_step_closes_when_all_have_stepped_or_one_steps_again(tmp_path: Path) -> None:
    a, b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizers = {"often": torch.optim.SGD([a], lr=0.1), "seldom": torch.optim.SGD([b], lr=0.1)}
    with tbnum.wrap(optimizers, logdir=tmp_path):
        for step in range(6):
            (a.sum() + b.sum()).backward()
            optimizers["often"].step()
            if step % 3 == 2:
                optimizers["seldom"].step()
            for each in optimizers.values():
                each.zero_grad()
    steps = steps_of(tmp_path)
    assert len(steps["step"]) == 6
    assert np.isnan(steps["seldom/grad_norm"]).tolist() == [True, True, False] * 2
    assert not np.isnan(steps["often/grad_norm"]).any()


def test_a_scale_set_by_the_user_is_scale_set_wherever_update_is_called(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(1024.0)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        train(model, optimizer, scaler, batches(2))
        scaler.update(128.0)
        train(model, optimizer, scaler, batches(1))
        scaler.scale(model(batches(1)[0]).mean()).backward()
        scaler.step(optimizer)
        scaler.update(64.0)
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["loss_scale"].tolist() == [1024.0, 1024.0, 128.0, 128.0]
    assert [(event.kind, event.step) for event in run.events] == [("scale_set", 1), ("scale_set", 3)]
    assert run.events[0].data == {"old_scale": 1024.0, "new_scale": 128.0}


def test_an_update_without_a_step_is_an_attempt_that_the_loop_gave_up(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(1024.0)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        train(model, optimizer, scaler, batches(1))
        scaler.scale(model(batches(1)[0]).mean() * math.inf).backward()
        scaler.unscale_(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses = train(model, optimizer, scaler, batches(1, seed=5))
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["skipped"].tolist() == [False, True, False]
    assert [event.kind for event in run.events] == ["skip", "scale_backoff"]
    assert run.events[0].data["dropped"] == "loss" and abs(run.steps["loss"][1]) == math.inf
    assert run.steps["loss"][2] == pytest.approx(losses[0])


def test_a_step_past_the_scaler_is_an_event_and_a_step_with_gradients_that_carry_the_scale(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(1024.0)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path) as monitor:
        scaler.scale(model(batches(1)[0]).mean()).backward()
        optimizer.step()
        assert monitor.step == 1
    assert kinds_of(tmp_path) == ["step_bypassed_scaler"]
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["loss_scale"][0] == 1024.0
    assert run.steps["grad_norm_clipped"][0] == pytest.approx(1024.0 * run.steps["grad_norm"][0], rel=1e-6)


def test_nan_written_after_unscale_is_a_nonfinite_step_and_not_a_skip(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(1024.0)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path):
        scaler.scale(model(batches(1)[0]).mean()).backward()
        scaler.unscale_(optimizer)
        model.first.grad[0, 0] = math.nan
        scaler.step(optimizer)
        scaler.update()
    (run,) = tbnum.read(tmp_path).values()
    assert not run.steps["skipped"][0] and math.isnan(run.steps["grad_norm_clipped"][0])
    assert math.isfinite(run.steps["grad_norm"][0])
    (event,) = run.events
    assert event.kind == "nonfinite_step" and event.data["nonfinite_names"] == ["first"]


def test_finite_gradients_that_the_loop_itself_made_too_long_are_said_to_be_the_cause(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=10, verbose=False):
        for step in range(60):
            model(torch.randn(8, 4)).square().mean().backward()
            if step == 45:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad.mul_(1e25)
            optimizer.step()
            optimizer.zero_grad()
    run = tbnum.read(tmp_path)["."]
    overflow = next(event for event in run.events if event.kind == "norm_overflow")
    assert overflow.step == 45 and "Every gradient that the optimizer got is finite" in overflow.message
    (update,) = [event for event in run.events if event.kind == "nonfinite_update"]
    assert "the gradients had run away, to a norm of inf at step 45" in update.message


def test_finite_gradients_whose_norm_overflows_are_no_skip(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1e-30)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        parameter.grad = torch.tensor([1e20, 1e20])
        optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["grad_norm"][0] == math.inf and run.steps["nonfinite_tensors"][0] == 0
    assert [event.kind for event in run.events] == ["norm_overflow"]


def test_a_disabled_scaler_is_as_none_and_its_losses_are_seen(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), torch.amp.GradScaler("cpu", enabled=False)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        losses = train(model, optimizer, scaler, batches(3), max_norm=0.1)
    steps = steps_of(tmp_path)
    assert steps["loss"] == pytest.approx(losses)
    assert np.isnan(steps["loss_scale"]).all() and (steps["grad_norm_clipped"] <= 0.1 + 1e-6).all()


def test_logged_losses_add_up_over_the_micro_batches(tmp_path: Path) -> None:
    model = Half()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    with tbnum.wrap(optimizer, logdir=tmp_path) as monitor:
        losses = train(model, optimizer, None, batches(8), accumulate=4, log_loss=monitor.log_loss)
    steps = steps_of(tmp_path)
    assert steps["loss"] == pytest.approx(losses, rel=1e-6)
    assert steps["micro_batches"].tolist() == [4.0, 4.0]


def test_the_recipes_of_several_losses_and_of_a_gradient_penalty_show_the_loss_that_is_meant(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(128.0)
    x = batches(1)[0]
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        first, second = model(x).square().mean(), model(2 * x).square().mean()
        scaler.scale(first).backward(retain_graph=True)
        scaler.scale(second).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        both = [model(x).square().mean(), model(3 * x).square().mean()]
        torch.autograd.backward(scaler.scale(both))  # one backward of two losses
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        gradients = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
        penalty = torch.stack([(each / scaler.get_scale()).square().sum() for each in gradients]).sum()
        penalized = loss + penalty
        scaler.scale(penalized).backward()
        scaler.step(optimizer)
        scaler.update()
    steps = steps_of(tmp_path)
    expected = [float(first + second), float(sum(both)), float(penalized)]
    assert steps["loss"] == pytest.approx(expected, rel=1e-6)
    assert steps["micro_batches"].tolist() == [2.0, 1.0, 1.0]


def test_scale_takes_lists_and_generators_as_before(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(128.0)
    drawn = []

    def losses() -> Any:
        for x in batches(2):
            drawn.append(1)
            yield model(x).mean()

    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        scaled = scaler.scale(losses())
        assert type(scaled) is map and not drawn
        total = 0.0
        for each in scaled:
            total += float(each) / 128.0
            each.backward()
        scaler.step(optimizer)
        scaler.update()
        assert isinstance(scaler.scale([model(batches(1)[0]).mean()]), list)
        assert isinstance(scaler.scale((model(batches(1)[0]).mean(),)), tuple)
        with pytest.raises(ValueError):
            scaler.scale(3.0)  # type: ignore[arg-type]
    steps = steps_of(tmp_path)
    assert steps["loss"][0] == pytest.approx(total) and steps["micro_batches"][0] == 2


def test_parameters_frozen_without_gradient_and_groups_added_later_are_followed(tmp_path: Path) -> None:
    a, b, unused = (nn.Parameter(torch.ones(1)) for _ in range(3))
    frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer = torch.optim.SGD([a, frozen, unused], lr=0.1)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        (3 * a).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.add_param_group({"params": [b], "lr": 0.5})
        (3 * a + 4 * b).sum().backward()
        optimizer.step()
    steps = steps_of(tmp_path)
    assert steps["grad_norm"] == pytest.approx([3.0, 5.0])
    assert steps["lr"].tolist() == [0.1, 0.1]
    assert steps["lr/1"].tolist() == pytest.approx([math.nan, 0.5], nan_ok=True)


def test_a_step_without_any_gradient_is_an_event(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        optimizer.step()
        optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    assert np.isnan(run.steps["grad_norm"]).all()
    assert [event.kind for event in run.events] == ["no_gradients"]


def test_errors_of_torch_pass_unchanged_and_recording_goes_on(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(128.0)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        scaler.scale(model(batches(1)[0]).mean()).backward()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        train(model, optimizer, scaler, batches(2))
        scaler.scale(torch.ones(1, requires_grad=True).sum()).backward()
        with pytest.raises(AssertionError, match="No inf checks"):
            scaler.step(optimizer)
        with pytest.raises(AssertionError, match="No inf checks"):
            scaler.update()
    assert len(steps_of(tmp_path)["step"]) == 3
    assert kinds_of(tmp_path) == ["update_missing", "no_gradients"]


def test_a_subclass_whose_step_calls_its_base_is_one_step_also_after_it_raised(tmp_path: Path) -> None:
    class Twice(torch.optim.SGD):
        fail = False

        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            if self.fail:
                raise KeyError("the user's own")
            return result

    parameter = nn.Parameter(torch.ones(1))
    optimizer = Twice([parameter], lr=0.1)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        for step in range(4):
            optimizer.fail = step == 1
            parameter.grad = torch.ones(1)
            try:
                optimizer.step()
            except KeyError:
                assert step == 1
    assert len(steps_of(tmp_path)["step"]) == 3


# -- the objects -----------------------------------------------------------------------------------------------------


def test_the_objects_stay_what_they_are_and_carry_nothing_of_tbnum(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["Adam"](model.parameters()), scaler_for(128.0)
    plain = pickle.dumps(scaler), pickle.dumps(optimizer)
    keys = set(vars(scaler)), set(vars(optimizer))
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path):
        assert isinstance(scaler, torch.amp.GradScaler) and scaler.__class__ is torch.amp.GradScaler
        assert (pickle.dumps(scaler), pickle.dumps(optimizer)) == plain
        assert (set(vars(scaler)), set(vars(optimizer))) == keys
        twins = copy.deepcopy(scaler), copy.deepcopy(optimizer), pickle.loads(pickle.dumps(scaler))
        assert type(twins[0]) is type(twins[2]) is torch.amp.GradScaler
        assert not twins[1]._optimizer_step_pre_hooks
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        buffer = io.BytesIO()
        torch.save({"scaler": scaler.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
        assert b"tbnum" not in buffer.getvalue()
    assert type(scaler) is torch.amp.GradScaler
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_wrapping_three_times_is_one_monitor_and_one_record_a_step(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(128.0)
    monitors = {id(tbnum.wrap(optimizer, scaler, logdir=tmp_path)) for _ in range(3)}
    train(model, optimizer, scaler, batches(4))
    monitor = tbnum.wrap(optimizer, scaler, logdir=tmp_path)
    assert monitors == {id(monitor)}
    monitor.close()
    monitor.close()
    assert len(steps_of(tmp_path)["step"]) == 4


def test_wrapping_some_of_the_objects_of_another_monitor_is_refused(tmp_path: Path) -> None:
    model = Half()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    with tbnum.wrap(optimizer, logdir=tmp_path):
        with pytest.raises(ValueError, match="close"):
            tbnum.wrap(optimizer, scaler_for(), logdir=tmp_path)
        with pytest.warns(RuntimeWarning, match="wrapped already"):
            tbnum.wrap(optimizer, logdir=tmp_path / "other")


def test_deleting_the_objects_frees_them_without_the_garbage_collector(tmp_path: Path) -> None:
    def one() -> list[Any]:
        model = Half()
        optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(2.0**24)
        monitor = tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path)
        train(model, optimizer, scaler, batches(6), max_norm=1.0)
        return [weakref.ref(each) for each in (monitor, optimizer, scaler, model, monitor._observer, monitor._recorder)]

    gc.collect()
    gc.disable()
    try:
        one()  # torch's own first step leaks a reference
        assert [ref() for ref in one()] == [None] * 6
    finally:
        gc.enable()


def test_recording_goes_on_where_the_monitor_was_not_kept(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(128.0)
    tbnum.wrap(optimizer, scaler, logdir=tmp_path)
    gc.collect()
    train(model, optimizer, scaler, batches(3))
    del optimizer, scaler, model
    gc.collect()
    assert len(steps_of(tmp_path)["step"]) == 3


def test_an_optimizer_inside_a_wrapper_is_found(tmp_path: Path) -> None:
    class Accelerated:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    parameter = nn.Parameter(torch.ones(1))
    inner = torch.optim.SGD([parameter], lr=0.1)
    with tbnum.wrap(Accelerated(Accelerated(inner)), logdir=tmp_path):  # type: ignore[arg-type]
        parameter.grad = torch.ones(1)
        inner.step()
    assert len(steps_of(tmp_path)["step"]) == 1


def test_warnings_of_torch_are_neither_added_to_nor_hidden(tmp_path: Path) -> None:
    def run(logdir: Path | None) -> list[tuple[str, str, int]]:
        model = Half()
        optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(2.0**24)
        monitor = tbnum.wrap(optimizer, scaler, logdir=logdir) if logdir else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            nn.utils.clip_grad_norm_((p for p in []), 1.0)  # type: ignore[var-annotated]
            nn.utils.clip_grad_norm_([], 1.0)
            scheduler.step()
            train(model, optimizer, scaler, batches(3), after_step=lambda step: scheduler.step())
        if monitor is not None:
            monitor.close()
        return [(str(each.message), each.filename, each.lineno) for each in caught]

    with_tbnum, without = run(tmp_path), run(None)
    assert with_tbnum == without and without


# -- torch.compile ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["model", "step", "both"])
def test_compiling_breaks_no_more_graphs_and_gives_the_same_bits_and_columns(what: str, tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    def run(logdir: Path | None, compiled: bool) -> tuple[bytes, tuple[int, int, int]]:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = Half()
        optimizer, scaler = OPTIMIZERS["AdamW"](model.parameters()), scaler_for(2.0**22, 6)
        monitor = tbnum.wrap(optimizer, scaler, model=model, logdir=logdir) if logdir else None
        forward = torch.compile(model, backend="eager") if compiled and what in ("model", "both") else model
        if compiled and what in ("step", "both"):
            optimizer.step = torch.compile(optimizer.step, backend="eager")  # type: ignore[method-assign]
        train(forward, optimizer, scaler, batches(12), max_norm=0.5)
        if monitor is not None:
            monitor.close()
        breaks = sum(counters["graph_break"].values())
        return everything(model, optimizer, scaler), (
            breaks,
            counters["stats"]["unique_graphs"],
            len(counters["recompiles"]),
        )

    bits, counts = run(tmp_path / "compiled", True)
    plain_bits, plain_counts = run(None, True)
    run(tmp_path / "eager", False)
    assert bits == plain_bits
    assert all(ours <= theirs for ours, theirs in zip(counts, plain_counts, strict=True))
    ours, eager = steps_of(tmp_path / "compiled"), steps_of(tmp_path / "eager")
    for name in ours:
        if name not in ("wall_time", "step_hash"):  # compiled, the bits of a loss or norm may be others
            np.testing.assert_allclose(ours[name], eager[name], rtol=1e-5, err_msg=name)


# -- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_with_the_value_and_the_way_out_before_anything_is_hooked(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(128.0)
    empty = torch.optim.SGD([{"params": []}], lr=0.1)
    occupied = tmp_path / "file"
    occupied.write_text("")
    good: dict[str, Any] = {"logdir": tmp_path / "run"}
    circular: dict[str, Any] = {}
    circular["itself"] = circular
    cases: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
        (optimizer, scaler, {}, ValueError, "exactly one of logdir= and writer="),
        (optimizer, scaler, {**good, "writer": object()}, ValueError, "exactly one"),
        (optimizer, scaler, {"writer": object()}, TypeError, "SummaryWriter"),
        (model, scaler, good, TypeError, "Half"),
        (None, scaler, good, TypeError, "NoneType"),
        (optimizer, "runs/gpt", good, TypeError, "runs/gpt"),
        (optimizer, model, good, TypeError, "GradScaler"),
        ([optimizer], scaler, good, TypeError, "mapping, {'name': optimizer"),
        (empty, scaler, good, ValueError, "no parameters"),
        ({}, scaler, good, ValueError, "empty mapping"),
        ({"a/b": optimizer}, scaler, good, ValueError, "a/b"),
        ({"a": optimizer, "b": optimizer}, scaler, good, ValueError, "several names"),
        (optimizer, scaler, {**good, "model": Half()}, ValueError, "shares no parameter"),
        (optimizer, scaler, {**good, "model": "gpt"}, TypeError, "gpt"),
        (optimizer, scaler, {**good, "model": [model]}, TypeError, "mapping, {'name': model"),
        (optimizer, scaler, {**good, "model": {0: model}}, TypeError, "a model's name must be a text.*: 0"),
        (optimizer, scaler, {**good, "model": {}}, ValueError, "empty mapping"),
        (optimizer, scaler, {**good, "model": model, "activations": [3]}, ValueError, r"activations is \[3\]"),
        (optimizer, scaler, {**good, "model": model, "activations": b"x"}, ValueError, "activations is b'x'"),
        (optimizer, scaler, {**good, "tensor_interval": 0}, ValueError, "tensor_interval is 0"),
        (optimizer, scaler, {**good, "scalar_interval": 2.5}, ValueError, "scalar_interval is 2.5"),
        (optimizer, scaler, {**good, "config": "lr=1"}, TypeError, "config is str"),
        (optimizer, scaler, {**good, "config": argparse.Namespace(lr=1)}, TypeError, "vars"),
        (optimizer, scaler, {**good, "config": circular}, ValueError, "config holds itself"),
        (
            optimizer,
            scaler,
            {**good, "config": {"a": {("b", 1): 2}}},
            TypeError,
            r"config\['a'\] has a name .*\('b', 1\)",
        ),
        (optimizer, scaler, {"logdir": "s3://bucket/run"}, ValueError, "s3://bucket/run"),
        (optimizer, scaler, {"logdir": Path("gs://bucket/run")}, ValueError, "gs:/bucket/run"),
        (optimizer, scaler, {"logdir": "a\0b"}, ValueError, r"a\\x00b"),
        (optimizer, scaler, {"logdir": 3}, TypeError, "3"),
        (optimizer, scaler, {"logdir": occupied / "run"}, OSError, "file"),
    ]
    for given, its_scaler, keywords, error, text in cases:
        with pytest.raises(error, match=text):
            tbnum.wrap(given, its_scaler, **keywords)
        assert type(scaler) is torch.amp.GradScaler, text
        assert not optimizer._optimizer_step_pre_hooks, text
    assert not (tmp_path / "run").exists()


def test_an_interval_may_be_a_whole_number_of_numpys(tmp_path: Path) -> None:
    with tbnum.wrap(OPTIMIZERS["SGD"](Half().parameters()), logdir=tmp_path, tensor_interval=np.int64(2)):  # type: ignore[arg-type]
        pass


def test_log_loss_refuses_what_is_no_loss(tmp_path: Path) -> None:
    with (
        tbnum.wrap(OPTIMIZERS["SGD"](Half().parameters()), logdir=tmp_path) as monitor,
        pytest.raises(TypeError, match="str"),
    ):
        monitor.log_loss("0.5")  # type: ignore[arg-type]
    with (
        tbnum.wrap(OPTIMIZERS["SGD"](Half().parameters()), logdir=tmp_path / "meta") as monitor,
        pytest.raises(TypeError, match=r"has a value.*meta"),
    ):
        monitor.log_loss(torch.ones((), device="meta"))


# -- the log ---------------------------------------------------------------------------------------------------------


def test_with_a_writer_of_the_user_the_scalars_go_through_it_and_the_record_beside_it(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(2.0**24)
    with tbnum.wrap(optimizer, scaler, writer=writer, scalar_interval=1) as monitor:
        assert monitor.writer is writer
        losses = train(model, optimizer, scaler, batches(12))
        writer.add_scalar("mine", 1.0, 0)
    writer.close()
    assert len(list(tmp_path.glob("*tfevents*"))) == 1
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [each.value for each in events.Scalars("tbnum/loss")] == pytest.approx(losses, rel=1e-6)
    assert events.Scalars("tbnum/skipped_total")[-1].value == steps_of(tmp_path)["skipped"].sum() > 0
    assert events.Scalars("mine")


def test_a_skip_is_in_the_log_when_the_process_is_killed_right_after_it(tmp_path: Path) -> None:
    script = f"""
import os, signal, torch, tbnum
from tests.loops import Half, batches, train
model = Half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
tbnum.wrap(optimizer, scaler, model=model, logdir={str(tmp_path)!r})
def die(step):
    if step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
train(model, optimizer, scaler, batches(8, bad=[3]), after_step=die)
"""
    done = subprocess.run([*warm.python(), "-c", script], capture_output=True, text=True, timeout=1200)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (run,) = tbnum.read(tmp_path).values()
    assert ("skip", 3) in [(event.kind, event.step) for event in run.events]


def test_events_reach_callbacks_explained_and_one_that_raises_does_not_reach_the_loop(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(2.0**24)
    seen = []
    monitor = tbnum.wrap(optimizer, scaler, logdir=tmp_path)
    monitor.on_event(seen.append)

    def broken(event: Any) -> None:
        raise ValueError("mine")

    monitor.on_event(broken)
    with pytest.warns(RuntimeWarning, match="mine"):
        train(model, optimizer, scaler, batches(12))
    monitor.annotate("a note", injected=True)
    monitor.close()
    assert [event.kind for event in seen] == kinds_of(tmp_path)
    assert seen[0].cause == "scale_warmup" and seen[0].message and seen[0].remedy
    assert seen[-1].kind == "annotation" and seen[-1].data["text"] == "a note"


def test_importing_the_reading_side_loads_no_torch() -> None:
    script = "import sys, tbnum, tbnum.log.reader, tbnum.explain, tbnum.cli; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
