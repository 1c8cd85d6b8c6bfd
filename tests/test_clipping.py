"""The norms that a record needs are those that torch takes for its clip: they are taken once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tbnum


class Loop:
    """Gradients fall from the sky, so that any of them can be had."""

    def __init__(self, folder: Path, gradients: list[Tensor], *, optimizers: int = 1) -> None:
        self.gradients = gradients
        self.parameters = [nn.Parameter(torch.zeros_like(each)) for each in gradients]
        share = len(gradients) // optimizers
        self.optimizers = {
            f"o{at}": torch.optim.SGD(self.parameters[at * share : (at + 1) * share], lr=0.0)
            for at in range(optimizers)
        }
        self.monitor = tbnum.wrap(self.optimizers, logdir=folder, tensor_interval=1_000, scalar_interval=1_000)
        self.step(lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0))  # 0, at which intervals are due

    def step(self, clip: Callable[[list[Tensor]], object]) -> None:
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient.clone()
        clip(self.parameters)
        for optimizer in self.optimizers.values():
            optimizer.step()

    def last(self, column: str) -> float:
        self.monitor.flush()
        (run,) = tbnum.read(self.monitor.logdir).values()
        return float(run.steps[column][-1])


def float64_norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(each.abs().double().square().sum().item() for each in tensors))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each call of torch's norms went over."""
    seen: list[int] = []
    foreach_norm = torch._foreach_norm

    def counted(tensors, *args, **kwargs):
        seen.append(len(tensors))
        return foreach_norm(tensors, *args, **kwargs)

    monkeypatch.setattr(torch, "_foreach_norm", counted)
    return seen


calls_of_the_wrapper = 0


def some(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype) for shape in ((3,), (40, 50), (), (7,))]


def test_a_clip_by_torch_costs_no_pass_beside_its_own(tmp_path: Path, passes: list[int]) -> None:
    loop = Loop(tmp_path, some())
    passes.clear()
    loop.step(lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5))
    assert passes == [4]
    norm = float64_norm(loop.gradients)
    assert loop.last("grad_norm") == pytest.approx(norm, rel=1e-6)
    assert loop.last("grad_norm_clipped") == pytest.approx(norm * 0.5 / (norm + 1e-6), rel=1e-6)


def one_by_one(parameters: list[Tensor]) -> None:
    nn.utils.clip_grad_norm_(parameters, 0.5, foreach=False)


def by_largest(parameters: list[Tensor]) -> None:
    nn.utils.clip_grad_norm_(parameters, 0.5, norm_type=math.inf)


def in_two_steps(parameters: list[Tensor]) -> None:
    total = nn.utils.get_total_norm([each.grad for each in parameters])
    nn.utils.clip_grads_with_norm_(parameters, 0.5, total)


def some_of_them(parameters: list[Tensor]) -> None:
    nn.utils.clip_grad_norm_(parameters[1:], 0.5)


CASES: dict[str, tuple[list[Tensor], Callable[[list[Tensor]], object]]] = {
    "without foreach": (some(), one_by_one),
    "another norm": (some(), by_largest),
    "norm and clip apart": (some(), in_two_steps),
    "some of the parameters": (some(), some_of_them),
    "float16, whose norms torch rounds to float16": (some(torch.float16), one_by_one),
    "bfloat16": (some(torch.bfloat16), lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5)),
    "two types": ([*some(), *some(torch.float64)], lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5)),
    "complex": ([torch.randn(5, 5, dtype=torch.complex64)], lambda each: nn.utils.clip_grad_norm_(each, 0.5)),
    "a tensor that torch sums too coarsely": (
        [torch.randn(3_000_000), torch.ones(2)],
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_norm_is_right_however_torch_came_by_its_own(case: str, tmp_path: Path) -> None:
    gradients, clip = CASES[case]
    loop = Loop(tmp_path, gradients)
    loop.step(clip)
    assert loop.last("grad_norm") == pytest.approx(float64_norm(gradients), rel=2e-6)


def test_one_clip_over_two_optimizers_gives_each_its_norm(tmp_path: Path) -> None:
    loop = Loop(tmp_path, some(), optimizers=2)
    loop.step(lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5))
    loop.monitor.close()
    assert loop.last("o0/grad_norm") == pytest.approx(float64_norm(loop.gradients[:2]), rel=1e-6)
    assert loop.last("o1/grad_norm") == pytest.approx(float64_norm(loop.gradients[2:]), rel=1e-6)


def test_a_norm_that_torch_refuses_is_measured_of_gradients_that_are_as_they_were(tmp_path: Path) -> None:
    loop = Loop(tmp_path, some())
    loop.gradients[1][3, 4] = math.inf

    def clip(parameters: list[Tensor]) -> None:
        with pytest.raises(RuntimeError, match="non-finite"):
            nn.utils.clip_grad_norm_(parameters, 0.5, error_if_nonfinite=True)

    loop.step(clip)
    assert loop.last("grad_norm") == math.inf and loop.last("nonfinite_tensors") == 1


def test_a_look_at_the_norm_hides_nothing_that_was_written_before_it(tmp_path: Path) -> None:
    loop = Loop(tmp_path, some())

    def clip(parameters: list[Tensor]) -> None:
        nn.utils.clip_grad_norm_(parameters, 0.5)
        parameters[1].grad.mul_(3)
        nn.utils.clip_grad_norm_(parameters, math.inf)

    loop.step(clip)
    assert loop.last("grad_norm_clipped") == pytest.approx(float64_norm([each.grad for each in loop.parameters]))


def test_a_gradient_that_two_parameters_share_is_clipped_twice_and_measured_after_it(tmp_path: Path) -> None:
    loop = Loop(tmp_path, [torch.ones(5), torch.ones(5), torch.ones(5)])

    def clip(parameters: list[Tensor]) -> None:
        parameters[2].grad = parameters[1].grad
        nn.utils.clip_grad_norm_(parameters, 0.5)

    loop.step(clip)
    coefficient = 0.5 / (math.sqrt(15) + 1e-6)
    assert loop.last("grad_norm_clipped") == pytest.approx(
        math.sqrt(5 * coefficient**2 + 10 * coefficient**4), rel=1e-6
    )


def test_what_another_put_in_the_place_of_torch_s_norm_runs_as_it_would_without_tbnum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    in_clip_grad = torch.nn.utils.clip_grad

    def wrapper_of(function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def wrapper(*args: object, **kwargs: object) -> object:
            global calls_of_the_wrapper
            calls_of_the_wrapper += 1
            return function(*args, **kwargs)

        return wrapper

    (cell,) = (
        each
        for each in in_clip_grad._get_total_norm.__closure__ or ()
        if getattr(each.cell_contents, "__name__", None) == "_get_total_norm"
    )
    monkeypatch.setattr(cell, "cell_contents", wrapper_of(cell.cell_contents))
    loop = Loop(tmp_path, some())
    assert calls_of_the_wrapper == 1
    asked = in_clip_grad._has_foreach_support
    monkeypatch.setattr(in_clip_grad, "_has_foreach_support", lambda *args: calls.append("asked") or asked(*args))
    loop.step(lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5))
    assert calls_of_the_wrapper == 2 and len(calls) == 2  # for the norm and for the clip
    assert loop.last("grad_norm") == pytest.approx(float64_norm(loop.gradients), rel=1e-6)


def test_gradients_that_overflowed_are_looked_at_before_the_clip_spoils_the_others(tmp_path: Path) -> None:
    loop = Loop(tmp_path, some())
    loop.gradients[1][3, 4] = math.inf
    loop.step(lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5))  # the coefficient is 0, and inf * 0 is NaN
    loop.monitor.flush()
    (run,) = tbnum.read(loop.monitor.logdir).values()
    steps, _, infinite = run.tensors["inf"]
    assert steps[-1] == 1 and infinite[-1].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("factor", [0.0, 8.0])
def test_the_norm_before_the_clip_is_of_the_gradients_as_the_loop_left_them_for_it(
    factor: float, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Divided by a number of tokens between `unscale_` and the clip, say, as in a loop without a scaler."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    norms, clipped = [], []
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path, tensor_interval=5):
        for _ in range(12):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(3, 2)).square().mean()).backward()
            scaler.unscale_(optimizer)
            for parameter in list(model.parameters())[:2]:
                parameter.grad.mul_(factor)
            norms.append(float64_norm([each.grad for each in model.parameters()]))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            clipped.append(float64_norm([each.grad for each in model.parameters()]))
            scaler.step(optimizer)
            scaler.update()
    (run,) = tbnum.read(tmp_path).values()
    assert run.steps["step"].tolist() == list(range(12))
    np.testing.assert_allclose(run.steps["grad_norm"], norms, rtol=1e-5)
    np.testing.assert_allclose(run.steps["grad_norm_clipped"], clipped, rtol=1e-4)
    assert not [warning for warning in recwarn if "tbnum" in str(warning.message)]
