"""Tensor by tensor: statistics at intervals, and the flight recorder around what went wrong."""

from __future__ import annotations

import math
import signal
import subprocess
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import tbnum
from tbnum.formats import BINS, FORMATS
from tests import warm
from tests.loops import OPTIMIZERS, Half, batches, train


def scaler_for(scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def run_of(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run


@pytest.mark.parametrize("fused", [False, True])
def test_statistics_at_intervals_equal_a_float64_computation(fused: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Half()
    optimizer, scaler = OPTIMIZERS["AdamW"](model.parameters(), fused=fused), scaler_for(2.0**8)
    expected: dict[str, dict[int, list[float]]] = {
        name: {} for name in ("grad_norm", "absmax", "param_norm", "update_norm")
    }
    flushed: dict[int, list[float]] = {}
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path, tensor_interval=3):
        for step, x in enumerate(batches(8)):
            scaler.scale(model(x).square().mean()).backward()
            scaled = [each.grad.double().clone() for each in model.parameters()]
            unscaled = [each / 2.0**8 for each in scaled]
            expected["grad_norm"][step] = [each.norm().item() for each in unscaled]
            expected["absmax"][step] = [each.abs().max().item() for each in unscaled]
            flushed[step] = [((each != 0) & (each.half() == 0)).double().mean().item() for each in scaled]
            if not fused:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # what is measured is what was before
            before = [each.detach().double().clone() for each in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            after = [each.detach().double() for each in model.parameters()]
            expected["param_norm"][step] = [each.norm().item() for each in after]
            expected["update_norm"][step] = [(a - b).norm().item() for a, b in zip(after, before, strict=True)]
    run = run_of(tmp_path)
    assert run.tensor_names == ("first", "second", "bias")
    for column, by_step in expected.items():
        steps, _, values = run.tensors[column]
        at_intervals = [step for step in steps.tolist() if step % 3 == 0]
        assert at_intervals == [0, 3, 6]
        for step in at_intervals:
            row = values[steps.tolist().index(step)]
            np.testing.assert_allclose(row, by_step[step], rtol=1e-4, err_msg=f"{column} at {step}")
    steps, _, values = run.tensors["underflow/float16"]
    np.testing.assert_allclose(values, [flushed[step] for step in steps.tolist()], rtol=2e-3)
    assert set(run.tensors) >= {"zero", "nan", "inf", *(f"overflow/{name}" for name in FORMATS)}
    whole = run.steps["param_norm"][3], run.steps["update_norm"][3]
    assert whole[0] == pytest.approx(math.hypot(*expected["param_norm"][3]), rel=1e-5)
    assert whole[1] == pytest.approx(math.hypot(*expected["update_norm"][3]), rel=1e-4)
    assert math.isnan(run.steps["param_norm"][4])


def test_histograms_count_every_element_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Half()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    intervals = {"tensor_interval": 2, "histogram_interval": 4}
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensorboard_tensors=True, **intervals):
        train(model, optimizer, None, batches(6))
    run = run_of(tmp_path)
    elements = {name: parameter.numel() for name, parameter in model.named_parameters()}
    drawn = EventAccumulator(str(tmp_path), {"histograms": 0}).Reload()
    assert [each.step for each in drawn.Histograms("tbnum/gradient_log2")] == [0, 2, 4]
    assert [each.step for each in drawn.Histograms("tbnum_tensors/parameter/first_log2")] == [0, 4]
    for source in ("gradient", "parameter", "update"):
        series = run.histograms[source]
        whole = series.at(2)
        assert whole.names == ("*",) and whole.counts.shape == (1, BINS)
        assert whole.counts.sum() == sum(elements.values())
        each = series.at(4)
        for name, count in elements.items():
            assert each.row(name).counts.sum() == count


def test_a_skip_writes_the_steps_before_it_once_each_and_a_close_look_at_the_one_that_failed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(2.0**10)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path, tensor_interval=1000) as monitor:
        train(model, optimizer, scaler, batches(80, bad=[60, 64]), max_norm=1.0)
        monitor.flush()
        run = run_of(tmp_path)
        steps, _, values = run.tensors["grad_norm"]
        reasons = run.tensors["grad_norm"].reasons.tolist()
        # 32 steps in memory; the ones that are written anyway, at an interval or as a failure, are not among them
        assert steps.tolist() == [0, *range(28, 65)]
        assert [step for step, reason in zip(steps.tolist(), reasons, strict=True) if reason == "failure"] == [60, 64]
        assert len(set(steps.tolist())) == len(steps)
        assert not np.isfinite(values[steps.tolist().index(60)]).all()
        nan, inf = (
            dict(zip(run.tensors[each].steps.tolist(), run.tensors[each].values, strict=True))
            for each in ("nan", "inf")
        )
        assert nan[60].sum() + inf[60].sum() > 0
        assert np.isfinite(run.tensors["absmax"].values[-1]).any()  # the largest that was finite
    assert run_of(tmp_path).tensors["grad_norm"].steps.tolist()[-1] == 79  # the last steps, at the end


def test_a_step_that_is_not_measured_leaves_no_gradient_alive(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        parameter.grad = torch.ones(3)
        gone = weakref.ref(parameter.grad)
        nn.utils.clip_grad_norm_([parameter], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert gone() is None


@pytest.mark.parametrize(
    ("end", "reported"),
    [
        ("raise ValueError('mine')", "ValueError: mine"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("pass", None),
    ],
)
@pytest.mark.parametrize("how", ["left open", "with"])
def test_an_uncaught_exception_is_a_crash_and_what_was_in_memory_is_written(
    how: str, end: str, reported: str | None, tmp_path: Path
) -> None:
    opening = (
        "with tbnum.wrap(optimizer, scaler, model=model, logdir=logdir):"
        if how == "with"
        else ("tbnum.wrap(optimizer, scaler, model=model, logdir=logdir)\nif True:")
    )
    script = f"""
import torch, tbnum
from tests.loops import OPTIMIZERS, Half, batches, train
model, logdir = Half(), {str(tmp_path)!r}
optimizer = OPTIMIZERS["SGD"](model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
{opening}
    train(model, optimizer, scaler, batches(20))
    {end}
"""
    done = subprocess.run([*warm.python(), "-c", script], capture_output=True, text=True, timeout=1200)
    assert (done.returncode == 0) == (reported is None) or done.returncode == -signal.SIGINT, done.stderr
    run = run_of(tmp_path)
    assert run.steps["step"].tolist() == list(range(20))
    assert run.tensors["grad_norm"].steps.tolist() == list(range(20))
    assert [event.data["error"] for event in run.events] == ([reported] if reported else [])
