"""Faults that no single step shows: levels of the loss, of norms and of weights; learning rates; tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tbnum
from tbnum.explain import findings
from tbnum.log.schema import Event
from tests.test_explain import FakeRun
from tests.test_findings import columns, reported

COUNT = 4000
STEP = np.arange(COUNT)
NAN = math.nan


def falling(seed: int = 0, noise: float = 0.1) -> np.ndarray:
    return 2 + 2 / np.sqrt(1 + STEP / 50) + noise * np.random.default_rng(seed).standard_normal(COUNT)


def since(step: int, over: float = 1.0) -> np.ndarray:
    """From 0 to 1 over so many steps."""
    return np.clip((STEP - step) / over, 0, 1)


SHAPES: dict[str, np.ndarray] = {
    "doubles over 200 steps": falling() * (1 + since(3000, 200)),
    "doubles over 400 steps": falling() * (1 + since(2800, 400)),
    "doubles over 800 steps": falling() * (1 + since(2500, 800)),
    "doubles over 1600 steps": falling() * (1 + since(2000, 1600)),
    "rises by 8 sigma, below 25 %": falling(noise=0.05) + 0.4 * since(2000),
    "rises at once by a half": falling() * (1 + 0.5 * since(3500)),
    "rises and comes half way back": falling() * (1 + since(2500, 100) - 0.5 * since(2700, 300)),
    "rises to the end": falling() * (1 + 3 * since(1500, 2500)),
    "rises below zero": falling() - 6 + 1.5 * since(2500, 200),
    "rises in noise as large as itself": falling(noise=0.5) * (1 + since(2500, 500)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_loss_that_rises_and_stays_up_is_a_warning(shape: str):
    found = reported(columns(COUNT, loss=SHAPES[shape]))
    assert found["loss_rose"].severity == "warning"
    assert len(found["loss_rose"].steps) == 2


HEALTHY: dict[str, np.ndarray] = {
    "falls": falling(),
    "has come to rest": 2 + 0.1 * np.random.default_rng(1).standard_normal(COUNT),
    "rises for a while and comes back": falling() * (1 + since(2000, 100) - since(2500, 300)),
    "goes up and down by itself": falling() * (1 + 0.3 * np.sin(STEP / 150)),
    "is two sets of data by turns": falling() * np.where(np.random.default_rng(2).random(COUNT) < 0.5, 1.0, 2.0),
    "is nearly zero": 1e-6 + 2 * np.exp(-STEP / 200) + 1e-7 * np.random.default_rng(3).standard_normal(COUNT),
}


@pytest.mark.parametrize("shape", HEALTHY)
def test_a_loss_that_does_not_stay_up_is_none(shape: str):
    found = reported(columns(COUNT, loss=HEALTHY[shape]))
    assert found.get("loss_rose") is None or found["loss_rose"].severity == "info"


def test_a_rise_that_was_noted_by_the_user_is_an_information():
    note = Event(2500, 0.0, "annotation", data={"text": "harder data"})
    found = reported(columns(COUNT, loss=falling() * (1 + 0.5 * since(2500))), [note])
    assert found["loss_rose"].severity == "info"


def test_a_learning_rate_that_went_back_up_as_before_explains_a_loss_that_is_higher():
    lr = 1e-3 * (0.505 + 0.495 * np.cos(math.pi * (STEP % 1500) / 1500))
    loss = 2 + 1500 * lr + 0.05 * np.random.default_rng(0).standard_normal(COUNT)
    short = {name: values[:3500] for name, values in columns(COUNT, loss=loss, lr=lr).items()}
    assert "loss_rose" not in reported(short)


def test_more_micro_batches_in_the_sum_are_no_rise():
    counts = np.where(STEP < 2500, 1.0, 4.0)
    assert "loss_rose" not in reported(columns(COUNT, loss=falling() * counts, micro_batches=counts))


@pytest.mark.parametrize("length", [160, 300, 900])
def test_of_a_short_run_the_levels_are_of_fewer_losses(length: int):
    step, begin = np.arange(length), int(0.6 * length)
    noise = 0.1 * np.random.default_rng(length).standard_normal(length)
    falls = 1 + 2 * np.exp(-10 * step / length) + noise
    columns_of = {name: values[:length] for name, values in columns(COUNT).items()}
    rises = falls + 0.5 * np.clip((step - begin) / (0.1 * length), 0, 1)
    assert reported({**columns_of, "loss": rises})["loss_rose"].severity == "warning"
    assert "loss_rose" not in reported({**columns_of, "loss": falls})


@pytest.mark.parametrize("factor", [1 / 16, 8.0])
def test_of_a_short_run_norms_of_another_size_are_seen_too(factor: float):
    norm = norms()[:300] * np.where(STEP[:300] < 170, 1.0, factor)
    steps = {name: values[:300] for name, values in columns(COUNT).items()}
    assert abs(reported({**steps, "grad_norm": norm})["norm_level"].steps[-1] - 170) <= 3


# -- norms and weights -------------------------------------------------------------------------------------------------


def norms(seed: int = 0) -> np.ndarray:
    return np.exp(0.3 * np.random.default_rng(seed).standard_normal(COUNT))


def test_gradients_of_another_size_for_good_are_seen_with_the_step():
    found = reported(columns(COUNT, grad_norm=norms() * np.where(STEP < 2345, 1.0, 8.0)))
    assert found["norm_level"].severity == "warning"
    assert abs(found["norm_level"].steps[-1] - 2345) <= 3


@pytest.mark.parametrize(
    "factor",
    [
        np.ones(COUNT),
        np.exp(STEP / COUNT * 4),  # a drift
        np.where((STEP > 2000) & (STEP < 2300), 8.0, 1.0),  # for a while
        np.where(STEP < 150, 20.0, 1.0),  # the beginning
    ],
)
def test_norms_that_drift_or_come_back_are_no_new_level(factor: np.ndarray):
    assert "norm_level" not in reported(columns(COUNT, grad_norm=norms() * factor))


def test_norms_that_change_with_the_learning_rate_are_its_doing():
    lr = np.where(STEP < 2000, 1e-2, 1e-3)
    assert "norm_level" not in reported(columns(COUNT, grad_norm=norms() * np.where(STEP < 2000, 8.0, 1.0), lr=lr))


def test_weights_that_vanish_are_reported():
    every = np.where(STEP % 50 == 0, 10 * np.exp(-STEP / 500), NAN)
    found = reported(columns(COUNT, param_norm=every))
    assert found["weights_vanish"].severity == "warning"
    steady = np.where(STEP % 50 == 0, 10 * np.exp(-STEP / 4000), NAN)
    assert "weights_vanish" not in reported(columns(COUNT, param_norm=steady))


# -- learning rates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lr", "there"),
    [
        (np.where(STEP < 2000, 1e-3, 0.0), True),
        (np.where((STEP > 2000) & (STEP < 2100), 0.0, 1e-3), True),
        (1e-3 * (1 - STEP / (COUNT - 1)), False),  # 0 at its last step
        (np.where(STEP < 3, 0.0, 1e-3), False),
    ],
)
def test_a_learning_rate_of_0_is_a_warning_where_it_lasts(lr: np.ndarray, there: bool):
    assert ("lr_zero" in reported(columns(COUNT, lr=lr))) == there


@pytest.mark.parametrize(
    "lr",
    [
        1e-3 * (0.505 + 0.495 * np.cos(math.pi * (STEP % 500) / 500)),  # warm restarts
        np.where(STEP < 200, 1e-6 + 1e-3 * STEP / 200, 1e-3),  # a warm-up
        1e-3 * np.where(STEP % 4 == 0, 10.0, 1.0),  # a schedule of that shape
    ],
)
def test_schedules_have_no_outlier(lr: np.ndarray):
    assert "lr_outlier" not in reported(columns(COUNT, lr=lr))


@pytest.mark.parametrize(
    ("lr", "severity"),
    [
        (np.where(STEP < 2000, 1e-3, 0.1), "warning"),
        (np.where(STEP < 200, 1e-6, 1e-3), None),  # a warm-up that ends in a jump
        (1e-3 * (0.505 + 0.495 * np.cos(math.pi * (STEP % 2000) / 2000)), None),  # warm restarts
    ],
)
def test_a_learning_rate_that_jumps_for_good_is_reported_and_graver_where_the_loss_rose(
    lr: np.ndarray, severity: str | None
):
    loss = np.where((STEP >= 2003) & (STEP < 2020), 9.0, falling())
    found = reported(columns(COUNT, loss=loss, lr=lr))
    assert (found["lr_outlier"].severity if "lr_outlier" in found else None) == severity
    if severity:
        assert reported(columns(COUNT, loss=falling(), lr=lr))["lr_outlier"].severity == "info"


# -- tensors, of real runs ---------------------------------------------------------------------------------------------


def trained(
    folder: Path, model: torch.nn.Module, loss_of: Callable[[int], torch.Tensor], steps: int = 200, **settings: Any
) -> dict[str, str]:
    """Findings by rule, with their severity."""
    made = getattr(torch.optim, settings.pop("optimizer", "AdamW"))
    optimizer = made(model.parameters(), **{"lr": 1e-3, **settings})
    with tbnum.wrap(optimizer, model=model, logdir=folder, tensor_interval=5) as monitor:
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(step)
            loss.backward()
            monitor.log_loss(loss)
            optimizer.step()
    (run,) = tbnum.read(folder).values()
    return {finding.rule: finding.severity for finding in run.findings}


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)


def test_parameters_that_no_gradient_reaches_are_named(tmp_path: Path):
    model = Branches()
    found = trained(tmp_path, model, lambda step: (model.first(torch.randn(8, 4)) - 1).square().mean())
    assert found["no_gradient"] == "warning"


def test_parameters_that_require_no_gradient_are_meant(tmp_path: Path):
    model = Branches()
    model.second.requires_grad_(False)
    found = trained(tmp_path, model, lambda step: (model.first(torch.randn(8, 4)) - 1).square().mean())
    assert "no_gradient" not in found


def test_parameters_that_were_frozen_on_the_way_are_meant(tmp_path: Path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))

    def loss_of(step: int) -> torch.Tensor:
        if step == 100:
            model[:2].requires_grad_(False)
        return (model(torch.randn(8, 4)) - 1).square().mean()

    assert trained(tmp_path / "frozen", model, loss_of)["no_gradient"] == "info"
    torch.manual_seed(0)
    cut = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))

    def cut_off(step: int) -> torch.Tensor:
        inner = cut[:2](torch.randn(8, 4))
        return (cut[2](inner.detach() if step >= 100 else inner) - 1).square().mean()

    assert trained(tmp_path / "cut", cut, cut_off)["no_gradient"] == "warning"


def test_experts_that_get_tokens_now_and_then_do_not_move_too_little(tmp_path: Path):
    torch.manual_seed(0)
    model = Branches()

    def loss_of(step: int) -> torch.Tensor:
        expert = model.second if step % 10 == 0 else model.first
        return (expert(torch.randn(8, 4)) - torch.randn(8, 4)).square().mean()

    assert "update_ratio_low" not in trained(tmp_path, model, loss_of)


def test_a_hinge_loss_that_reached_0_leaves_no_tensor_dead(tmp_path: Path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    x = torch.randn(16, 4)
    y = torch.sign(x[:, :1])
    assert "dead_tensor" not in trained(tmp_path, model, lambda step: torch.relu(0.1 - y * model(x)).mean(), lr=0.05)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "SGD", "lr": 0.1}, {"optimizer": "AdamW", "weight_decay": 0.1}])
def test_a_branch_that_is_trained_only_between_the_tables_is_not_dead(settings: dict[str, Any], tmp_path: Path):
    """Tables are of every fifth step: there its gradient is zero, but not at others."""
    torch.manual_seed(0)
    model = Branches()

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(8, 4)
        return (model.first(x) - 1).square().mean() + (step % 5 == 2) * (model.second(x) - x[:, :1]).square().mean()

    assert "dead_tensor" not in trained(tmp_path, model, loss_of, **settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "SGD", "lr": 0.1, "weight_decay": 0.01}, {"optimizer": "Adam", "weight_decay": 0.01}],
)
def test_a_branch_that_weight_decay_alone_moves_is_dead(settings: dict[str, Any], tmp_path: Path):
    torch.manual_seed(0)
    model = Branches()

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(8, 4)
        return (model.first(x) - 1).square().mean() + 0 * model.second(x).mean()

    assert trained(tmp_path, model, loss_of, **settings)["dead_tensor"] == "warning"


def test_a_tensor_that_weight_decay_takes_away_is_reported(tmp_path: Path):
    model = Branches()

    def loss_of(step: int) -> torch.Tensor:
        return model.first(torch.randn(8, 4)).square().mean() + 1e-9 * model.second(torch.randn(8, 4)).mean()

    found = trained(tmp_path, model, loss_of, 400, lr=1e-9, weight_decay=4e7)
    assert {"tensors_vanish", "weights_vanish"} & set(found)


def test_findings_of_all_these_runs_left_nothing_out():
    for shape in SHAPES.values():
        assert "findings_left_out" not in {finding.rule for finding in findings(FakeRun(columns(COUNT, loss=shape)))}


def test_a_session_whose_model_was_loaded_and_whose_optimizer_was_not_goes_on_and_says_what_it_lost(tmp_path: Path):
    def session(model: torch.nn.Module, steps: int) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=5) as monitor:
            for _ in range(steps):
                optimizer.zero_grad()
                loss = (model(torch.randn(32, 8)) - 3).square().mean()
                loss.backward()
                monitor.log_loss(loss)
                optimizer.step()

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    session(model, 200)
    session(model, 50)
    (run,) = tbnum.read(tmp_path).values()
    assert len(run.steps["step"]) == 250
    lost = next(event for event in run.events if event.kind == "optimizer_state_lost")
    assert (lost.step, lost.severity) == (200, "warning")
    session(torch.nn.Linear(8, 8), 30)  # a new model is a new beginning
    (run,) = tbnum.read(tmp_path).values()
    assert len(run.steps["step"]) == 30


@pytest.mark.parametrize(("then", "severity"), [("SGD", "info"), ("Adam", "warning")])
def test_a_state_that_another_class_of_optimizer_cannot_have_is_no_lost_one(then: str, severity: str, tmp_path: Path):
    torch.manual_seed(0)
    model, state = torch.nn.Linear(8, 8), None
    for name, steps in (("Adam", 30), (then, 10)):
        settings = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, **settings)
        with tbnum.wrap(optimizer, model=model, logdir=tmp_path) as monitor:
            if state is not None:
                monitor.load_state_dict(state)
            for _ in range(steps):
                optimizer.zero_grad()
                (model(torch.randn(32, 8)) - 3).square().mean().backward()
                optimizer.step()
            state = monitor.state_dict()
    (run,) = tbnum.read(tmp_path).values()
    (lost,) = [event for event in run.events if event.kind == "optimizer_state_lost"]
    assert (lost.step, lost.severity) == (30, severity)
    assert ("Adam -> SGD" in lost.message) == (then == "SGD")


@pytest.mark.parametrize(("value", "rule"), [(-1e-3, "lr_negative"), (math.inf, "lr_nonfinite")])
def test_a_learning_rate_that_is_no_step_downhill_is_an_error(value: float, rule: str):
    lr = np.full(COUNT, 1e-3)
    lr[1234:1240] = value
    found = reported(columns(COUNT, lr=lr))
    assert found[rule].severity == "error" and found[rule].steps[0] == 1234


def test_weights_that_grow_without_end_are_reported():
    grows = np.where(STEP % 50 == 0, np.exp(STEP / 800), NAN)
    assert reported(columns(COUNT, param_norm=grows))["weights_grow"].severity == "warning"
    settles = np.where(STEP % 50 == 0, 1 + 20 * (1 - np.exp(-STEP / 500)), NAN)
    assert "weights_grow" not in reported(columns(COUNT, param_norm=settles))


@pytest.mark.parametrize(("dtype", "there"), [(torch.bfloat16, True), (torch.float32, False)])
def test_updates_that_a_16_bit_parameter_rounds_away_are_reported(dtype: torch.dtype, there: bool, tmp_path: Path):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64, bias=False).to(dtype)
    torch.nn.init.normal_(model.weight)
    x = torch.randn(32, 64, dtype=dtype)
    found = trained(tmp_path, model, lambda step: (model(x) - 1).square().mean(), lr=1e-4)
    assert ("updates_lost" in found) == there


def test_a_sum_of_losses_that_grows_with_its_terms_says_that_they_are_not_divided():
    counts = np.where(STEP < 2500, 1.0, 4.0)
    assert reported(columns(COUNT, loss=falling() * counts, micro_batches=counts))["losses_added_up"].steps == (2500,)
    assert "losses_added_up" not in reported(columns(COUNT, loss=falling(), micro_batches=counts))


@pytest.mark.parametrize(
    ("lr", "there"),
    [
        (1e-3 * np.where(STEP < 2000, 1.0, 1e-7), True),  # milliseconds for seconds
        (1e-3 * 0.99**STEP, True),
        (1e-3 * (0.5 + 0.5 * np.cos(math.pi * STEP / COUNT)), False),
        (1e-3 * np.minimum(1, np.exp((STEP - 1000) / 50)), False),  # a warm-up
    ],
)
def test_a_learning_rate_next_to_0_is_one_of_0(lr: np.ndarray, there: bool):
    found = reported(columns(COUNT, lr=lr)).get("lr_zero")
    assert (found is not None and "next to 0" in found.evidence) == there


def test_a_group_whose_learning_rate_is_0_while_others_learn_is_an_information():
    found = reported({**columns(COUNT), "lr/1": np.zeros(COUNT)})["lr_zero"]
    assert found.severity == "info" and "group 1" in found.evidence


def test_a_learning_rate_of_nan_was_measured_where_the_optimizer_stepped():
    lr = np.full(COUNT, 1e-3)
    lr[1234] = NAN
    assert reported(columns(COUNT, lr=lr))["lr_nonfinite"].steps == (1234,)
    absent = np.zeros(COUNT)
    absent[1234] = NAN  # it took no part in that step
    assert "lr_nonfinite" not in reported(columns(COUNT, lr=lr, nonfinite_tensors=absent))


def test_a_group_that_was_added_later_had_no_learning_rate_before():
    lr = np.full(COUNT, 1e-4)
    lr[:1000] = NAN
    steps = {**columns(COUNT), "lr/1": lr}
    assert "lr_nonfinite" not in reported(steps)
    steps["lr/1"][2000] = NAN
    assert reported(steps)["lr_nonfinite"].steps == (2000,)


def test_a_norm_after_none_at_all_is_many_times_nothing_and_no_explosion():
    norm = np.zeros(COUNT)
    norm[2990:] = 1.0
    loss = falling()
    loss[3000:] += 40
    assert {"findings_left_out", "exploding_norm"}.isdisjoint(reported(columns(COUNT, grad_norm=norm, loss=loss)))


def test_a_bias_before_a_normalization_moves_by_rounding_alone_and_is_meant_to(tmp_path: Path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=5):
        for _ in range(200):
            x = torch.randn(64, 8)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
            optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    assert "update_ratio_low" not in {finding.rule for finding in run.findings}


def test_a_session_whose_model_was_not_loaded_says_so(tmp_path: Path):
    def session(model: torch.nn.Module, state: dict[str, Any] | None, steps: int) -> dict[str, Any]:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        if state is not None:
            optimizer.load_state_dict(state["optimizer"])
        with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=5) as monitor:
            if state is not None:
                monitor.load_state_dict(state["monitor"])
            for _ in range(steps):
                optimizer.zero_grad()
                (model(torch.randn(32, 8)) - 3).square().mean().backward()
                optimizer.step()
            return {"optimizer": optimizer.state_dict(), "monitor": monitor.state_dict()}

    def kinds() -> set[str]:
        (run,) = tbnum.read(tmp_path).values()
        return {event.kind for event in run.events}

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    state = session(model, None, 200)
    state = session(model, state, 20)
    assert "resume" in kinds() and "model_state_lost" not in kinds()
    session(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)), state, 20)
    assert "model_state_lost" in kinds()


def test_a_gradient_that_vanished_while_others_did_not_is_reported(tmp_path: Path):
    torch.manual_seed(0)
    body, head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
    model = torch.nn.Sequential(body, head)

    def loss_at(step: int, over: int) -> torch.Tensor:
        features = body(torch.randn(16, 8))
        kept = features if step < over else features.detach() + 1e-9 * (features - features.detach())
        return (head(kept) - 1).square().mean()

    for over, there in ((60, True), (1000, False)):
        found = trained(tmp_path / str(over), model, lambda step, over=over: loss_at(step, over), lr=1e-3)
        assert ("dead_tensor" in found) == there


# -- short runs, and what the optimizer gets ---------------------------------------------------------------------------


def short(loss: np.ndarray, **more: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[: len(loss)] for name, values in columns(COUNT, **more).items() if name != "loss"} | {
        "loss": loss
    }


def test_a_run_of_few_windows_shows_a_rise_that_is_all_there_is_to_its_levels():
    step = np.arange(1200)
    noise = 0.3 * np.random.default_rng(0).standard_normal(1200)
    rising = 0.7 + 1.4 * np.exp(-step / 60) + 1.4 * np.clip((step - 250) / 900, 0, 1) + noise
    assert reported(short(rising))["loss_rose"].severity == "warning"
    assert "loss_rose" not in reported(short(0.7 + 1.4 * np.exp(-step / 60) + noise))


@pytest.mark.parametrize("count", [400, 480, 700, 1000, 1500])
@pytest.mark.parametrize("seed", range(10))
def test_a_short_run_that_wanders_by_its_noise_has_not_risen(seed: int, count: int):
    generator = np.random.default_rng(seed)
    loss = 1 + np.exp(-np.arange(count) / 80) + 0.3 * generator.standard_normal(count)
    assert "loss_rose" not in reported(short(loss))


def test_gradients_that_the_loop_multiplies_for_good_before_the_step_are_seen():
    usual = norms()
    got = usual * np.where(STEP < 2345, 1.0, 8.0)
    coefficient = got / usual
    found = reported(columns(COUNT, grad_norm=usual, grad_norm_clipped=got, clip_coef=coefficient))
    assert found["norm_level"].severity == "warning" and abs(found["norm_level"].steps[-1] - 2345) <= 3
    assert "that the optimizer got" in found["norm_level"].evidence
    clipped = np.minimum(usual, 1.0)  # by a clip, which begins at a step
    steps = columns(COUNT, grad_norm=usual, grad_norm_clipped=np.where(STEP < 2345, usual, 0.1 * clipped))
    steps["clip_coef"] = steps["grad_norm_clipped"] / usual
    assert "norm_level" not in reported(steps)


def test_gradients_that_the_loop_divides_for_good_before_the_step_are_seen_and_a_clip_by_hand_is_none_of_them():
    usual = norms()
    factor = np.where(STEP < 2345, 1.0, 2.0**-17)
    unseen = {"max_norm": np.full(COUNT, NAN)}
    steps = columns(COUNT, grad_norm=usual, grad_norm_clipped=usual * factor, clip_coef=factor)
    found = reported(steps | unseen)
    assert found["norm_level"].severity == "warning" and abs(found["norm_level"].steps[-1] - 2345) <= 3
    assert "that the optimizer got" in found["norm_level"].evidence
    assert "norm_level" not in reported(steps | {"max_norm": np.where(STEP < 2345, 100.0, 0.01)})
    by_hand = np.where(STEP < 2345, usual, np.minimum(usual, 0.01))
    assert "norm_level" not in reported(
        columns(COUNT, grad_norm=usual, grad_norm_clipped=by_hand, clip_coef=by_hand / usual) | unseen
    )


def test_a_burst_that_only_the_optimizer_got_is_what_came_before_the_spike():
    usual = norms()
    got = usual * np.where(STEP == 2999, 1000.0, 1.0)
    loss = falling() + 40 * (STEP >= 3000)
    found = reported(columns(COUNT, grad_norm=usual, grad_norm_clipped=got, clip_coef=got / usual, loss=loss))
    assert found["exploding_norm"].steps[0] == 2999


@pytest.mark.parametrize(
    ("first", "peak", "there"),
    [
        ((34.0, 22.0), 196.0, True),
        ((26.0, 0.05), 37.0, False),
        ((26.0, 0.5), 196.0, False),  # grows, step by small step
        ((34.0, 22.0), 40.0, False),
        ((5.0, 5.0), 50.0, False),  # began at zero
    ],
)
def test_first_steps_that_rewrite_the_parameters_are_a_learning_rate_too_high(
    first: tuple[float, float], peak: float, there: bool
):
    at = STEP % 50 == 0
    norm, change = np.full(COUNT, NAN), np.full(COUNT, NAN)
    norm[at], change[at] = np.linspace(first[0], peak, at.sum()), 0.01
    norm[STEP == 200] = peak
    norm[0], change[0] = first
    found = reported(columns(COUNT, param_norm=norm, update_norm=change))
    assert ("update_ratio_high" in found) == there


@pytest.mark.parametrize(("momentum", "there"), [(1.0, True), (1.5, True), (0.99, False), (None, False)])
def test_a_momentum_that_never_fades_is_reported_from_the_settings_alone(momentum: float | None, there: bool):
    run = FakeRun(columns(COUNT))
    run.meta["optimizers"] = {"optimizer": {"class": "SGD", "groups": [{"lr": 0.1, "momentum": momentum}]}}
    assert ("momentum_invalid" in {finding.rule for finding in findings(run)}) == there


@pytest.mark.parametrize(
    ("optimizer", "betas", "there"),
    [
        ("AdamW", (0.999, 0.9), True),
        ("Adam", [0.99, 0.9], True),
        ("AdamW", (0.9, 0.999), False),
        ("AdamW", (0.95, 0.9), False),  # unusual, and bounded
        ("AdamW", (0.0, 0.0), False),
        ("AdamW", (0.9, None), False),
        ("AdamW", "unknown", False),
        ("Lion", (0.99, 0.9), False),  # whose second is of another kind
    ],
)
def test_betas_of_adam_that_are_swapped_are_reported_from_the_settings_alone(optimizer: str, betas: Any, there: bool):
    run = FakeRun(columns(COUNT))
    run.meta["optimizers"] = {"optimizer": {"class": optimizer, "groups": [{"lr": 0.1, "betas": betas}]}}
    found = {finding.rule: finding for finding in findings(run)}
    assert ("momentum_invalid" in found) == there and "findings_left_out" not in found
    if there:
        assert "swapped" in found["momentum_invalid"].title
        assert "and are divided by the size of the last 10, which" in found["momentum_invalid"].evidence


# -- losses whose height says nothing ----------------------------------------------------------------------------------


def test_a_policys_gain_that_shrinks_is_no_alarm_and_a_likelihood_below_zero_is_one():
    random = np.random.default_rng(0)
    gain = -0.3 * np.minimum(STEP / 500, 1) + 0.15 * since(1500, 1000) + 0.1 * random.standard_normal(COUNT)
    assert reported(columns(COUNT, loss=gain))["loss_rose"].severity == "info"
    likelihood = -3 * np.minimum(STEP / 500, 1) + 1.5 * since(1500, 1000) + 0.1 * random.standard_normal(COUNT)
    assert reported(columns(COUNT, loss=likelihood))["loss_rose"].severity == "warning"


def test_losses_of_networks_that_work_against_each_other_may_rise():
    loss = SHAPES["doubles over 400 steps"]
    steps = columns(COUNT, loss=loss)
    steps |= {"generator/loss": loss - 1, "critic/loss": np.ones(COUNT)}
    assert reported(steps)["loss_rose"].severity == "info"
    steps |= {"generator/loss": loss, "critic/loss": loss}  # one loss, and two optimizers for parts of one model
    assert reported(steps)["loss_rose"].severity == "warning"


def test_a_bias_that_the_loss_does_not_depend_on_is_no_alarm(tmp_path: Path):
    torch.manual_seed(0)
    critic = torch.nn.Linear(4, 1)

    def loss_of(step: int) -> torch.Tensor:
        return (critic(torch.randn(8, 4)).mean() - critic(torch.randn(8, 4) + 1).mean()) + critic.weight.square().sum()

    assert trained(tmp_path, critic, loss_of)["dead_tensor"] == "info"


# -- found by a fresh sample of loops ----------------------------------------------------------------------------------


def settings(group: dict[str, Any], lr: np.ndarray) -> set[str]:
    run = FakeRun(columns(COUNT, lr=lr))
    run.meta["optimizers"] = {"optimizer": {"class": "AdamW", "groups": [group]}}
    return {finding.rule for finding in findings(run)}


@pytest.mark.parametrize(("decay", "decoupled", "there"), [(10, True, True), (0.1, True, False), (10, False, False)])
def test_weight_decay_that_takes_back_what_is_learned_is_a_warning(decay: float, decoupled: bool, there: bool):
    group = {"weight_decay": decay, "decoupled_weight_decay": decoupled}
    assert ("weight_decay_strong" in settings(group, np.full(COUNT, 5e-3))) == there


@pytest.mark.parametrize(
    ("lr", "there"),
    [
        (0.5 + 0.5 * np.cos(STEP * math.pi / 10), True),  # T_max in epochs, and a step for each batch
        (np.where(STEP % 2, 1e-3, 1e-5), True),
        (0.5 + 0.5 * np.cos(STEP * math.pi / 200), False),
        (1 + 0.1 * np.cos(STEP), False),
        (np.linspace(1, 0, COUNT), False),
    ],
)
def test_a_learning_rate_that_comes_back_within_a_few_steps_is_reported(lr: np.ndarray, there: bool):
    found = reported(columns(COUNT, lr=lr))
    assert ("lr_cycles" in found) == there and (not there or found["lr_cycles"].severity == "info")


def test_a_schedule_that_begins_again_a_step_after_a_resume_was_not_restored():
    lr = 1e-3 * np.minimum(1, (STEP + 1) / 100)
    lr[2001:] = lr[1 : COUNT - 2000]
    resume = Event(2000, 0.0, "resume", data={"from_step": 2000})
    found = reported(columns(COUNT, lr=lr), [resume])
    assert (found["schedule_state_lost"].severity, found["schedule_state_lost"].steps) == ("warning", (2000,))
    assert "was 0.001 before the run was continued at step 2,000" in found["schedule_state_lost"].evidence
    assert "from step 1 on, beginning with 2e-05" in found["schedule_state_lost"].evidence
    for rate in (np.full(COUNT, 1e-3), 1e-3 * np.minimum(1, (STEP + 1) / 100)):
        assert "schedule_state_lost" not in reported(columns(COUNT, lr=rate), [resume])


def test_a_schedule_that_went_on_a_step_after_a_resume_was_restored():
    lr = 1e-3 * np.minimum(1, (STEP + 1) / 100)
    lr[2000] = lr[0]
    lost = Event(2000, 0.0, "schedule_state_lost", data={"group": 0, "old_lr": 1e-3, "new_lr": 1e-5})
    found = reported(columns(COUNT, lr=lr), [lost])["schedule_state_lost"]
    assert found.severity == "info" and "for a step, and went on" in found.evidence
    lr[2000:] = lr[: COUNT - 2000]
    found = reported(columns(COUNT, lr=lr), [lost])["schedule_state_lost"]
    assert found.severity == "warning" and "scheduler.state_dict()" in found.remedy


def test_a_rate_that_was_lowered_where_the_loss_stood_still_is_no_schedule_that_ended_early():
    def severity_of(*falls: int) -> str:
        lr = np.full(COUNT, 1e-2)
        for fall in falls:
            lr[fall:] *= 0.01
        return reported(columns(COUNT, lr=lr))["lr_zero"].severity

    assert severity_of(500, 900, 1800) == "info" and severity_of(500, 900, 1300) == "warning"
    assert severity_of(500, 510, 1800) == "warning"


@pytest.mark.parametrize(
    ("zero_from", "loss", "there"),
    [(0, 2.0, True), (2000, 2.0, True), (3960, 2.0, True), (3980, 2.0, False), (2000, 0.0, False)],
)
def test_gradients_that_are_all_zero_are_reported_where_the_loss_is_not(zero_from: int, loss: float, there: bool):
    norm = np.where(zero_from <= STEP, 0.0, 1.0)
    found = reported(columns(COUNT, loss=np.full(COUNT, loss), grad_norm=norm))
    assert ("gradients_zero" in found) == there
    assert not there or found["gradients_zero"].steps == (zero_from,)
    norm[-1], norm[-2] = np.nan, 1.0
    again = reported(columns(COUNT, loss=np.full(COUNT, loss), grad_norm=norm, skipped=STEP == COUNT - 2))
    assert ("gradients_zero" in again) == there, "one that is unknown, and one that was thrown away, show nothing"


def test_a_norm_that_falls_with_the_loss_is_an_information():
    norm, chance = np.where(STEP < 2500, 1.0, 0.05), np.random.default_rng(0)
    for loss, severity in ((np.where(STEP < 2500, 0.5, 0.01), "info"), (np.full(COUNT, 0.5), "warning")):
        found = reported(columns(COUNT, loss=loss + 1e-3 * chance.random(COUNT), grad_norm=norm))
        assert found["norm_level"].severity == severity


def test_single_batches_next_to_each_other_are_not_far_beyond_the_usual_and_a_stretch_is():
    """As of a batch of one, once it is learned: rare samples, whose loss is a hundred times the usual."""
    loss = 0.02 * np.random.default_rng(0).lognormal(0, 1, COUNT)
    loss[3000:3003], loss[3005] = 0.4, 11.0
    assert reported(columns(COUNT, loss=loss))["loss_spike"].severity == "info"
    loss[3000:3006] = 11.0
    assert reported(columns(COUNT, loss=loss))["loss_spike"].severity == "warning"


@pytest.mark.parametrize(("end", "there"), [(20.0, False), (1800.0, True)])
def test_first_steps_that_made_the_loss_fall_by_far_rewrote_nothing(end: float, there: bool):
    at = STEP % 50 == 0
    norm, change = np.full(COUNT, NAN), np.full(COUNT, NAN)
    norm[at], change[at] = np.linspace(30.0, 190.0, at.sum()), 0.01
    norm[STEP == 200], norm[0], change[0] = 196.0, 34.0, 22.0
    loss = np.interp(STEP, [0, 200, COUNT], [2000.0, 1900.0, end])
    found = reported(columns(COUNT, param_norm=norm, update_norm=change, loss=loss))
    assert ("update_ratio_high" in found) == there


@pytest.mark.parametrize(
    ("name", "end", "step"), [("loss", (900.0, 4e5), 58), ("grad_norm", (1.0, 900.0), 59), ("loss", (9.0, 90.0), None)]
)
def test_before_the_inputs_are_blamed_what_had_run_away_is_named(name: str, end: tuple[float, float], step: int | None):
    steps = {each: np.full(61, 1.0) for each in ("loss", "grad_norm", "micro_batches")}
    steps[name][58:60] = end
    steps["loss"][60] = NAN
    steps["grad_norm"][60] = NAN
    steps["nonfinite_tensors"] = np.where(np.arange(61) == 60, 3.0, 0.0)
    found = reported({**columns(61), **steps})["nonfinite_loss"]
    assert ("had left its usual" in found.remedy) == (step is not None) and "Check the inputs" in found.remedy
    assert step is None or f"had left its usual by step {step}" in found.remedy


def test_norms_that_explode_early_in_a_run_are_held_against_those_that_there_are():
    steps = columns(70)
    steps["grad_norm"][:] = 1.0
    steps["grad_norm"][40] = 500.0
    taken = Event(41, 0.0, "nonfinite_step", data={"nonfinite_tensors": 3, "tensors": 3, "loss": 2.0})
    found = reported(steps, [taken])["exploding_norm"]
    assert found.steps == (40, 41) and "1 step later, at step 41" in found.evidence


@pytest.mark.parametrize(("zero_from", "there"), [(2900, True), (3500, False)])
def test_one_of_several_optimizers_may_wait_for_its_turn_for_a_quarter_of_a_run(zero_from: int, there: bool):
    norms = {"first/grad_norm": np.where(zero_from <= STEP, 0.0, 1.0), "second/grad_norm": np.ones(COUNT)}
    steps = columns(COUNT, loss=np.full(COUNT, 2.0), **norms)
    del steps["grad_norm"]
    assert ("gradients_zero" in reported(steps)) == there


@pytest.mark.parametrize(
    ("first", "last", "title"),
    [
        (2.0, -3.0, "The loss fell below zero"),
        (2.0, -0.01, None),  # around zero, as a policy's
        (-2.0, -3.0, None),  # a log-density
        (-2.0, -30.0, "The loss is far below zero"),
        (-30.0, -2.0, None),
        (2.0, 0.5, None),
    ],
)
def test_a_loss_that_went_below_zero_is_an_information(first: float, last: float, title: str | None):
    loss = np.linspace(first, last, COUNT) + 0.1 * np.random.default_rng(0).standard_normal(COUNT)
    found = reported(columns(COUNT, loss=loss)).get("loss_below_zero")
    assert (found and (found.title, found.severity)) == (title and (title, "info"))
    if first > 0 > last and found is not None:
        assert "was 1." in found.evidence and "the last one that was not below zero was that of step" in found.evidence
        assert "a cross-entropy" in found.remedy.lower() and "targets out of range" in found.remedy


def test_of_a_loss_in_a_short_run_or_of_skipped_steps_nothing_is_said_about_zero():
    assert "loss_below_zero" not in reported(columns(100, loss=np.linspace(2, -3, 100)))
    loss = np.full(COUNT, 2.0)
    loss[-COUNT // 4 :] = -9.0
    skipped = loss < 0
    assert "loss_below_zero" not in reported(columns(COUNT, loss=loss, skipped=skipped))


@pytest.mark.parametrize(
    ("early", "end", "severity"), [(8.0, 1.0, "info"), (8.0, 9.0, "warning"), (90.0, 1.0, "warning")]
)
def test_parameters_that_grew_as_the_loss_fell_did_no_harm_however_single_losses_scatter(
    early: float, end: float, severity: str
):
    """Batches of one, of a linear model that starts at nothing: each loss is as high as any."""
    at = STEP % 50 == 0
    norm, change = np.full(COUNT, NAN), np.full(COUNT, NAN)
    norm[at], change[at] = 4.2, 0.01
    norm[0], change[0] = 0.6, 0.45
    level = np.interp(STEP, [0, 8, 300, COUNT], [8.0, early, end, end])
    loss = level * np.random.default_rng(2).lognormal(0, 0.8 if early == 8.0 else 0.2, COUNT)
    assert reported(columns(COUNT, loss=loss, param_norm=norm, update_norm=change))["update_ratio_high"].severity == (
        severity
    )


@pytest.mark.parametrize(
    ("loss", "norm", "severity"), [(100.0, 30.0, "info"), (30.0, 30.0, "warning"), (1.0, 30.0, "warning")]
)
def test_another_objective_has_another_size_of_gradients(loss: float, norm: float, severity: str):
    """A loss that is not divided any more is no other objective: its gradients change as it does."""
    random, now = np.random.default_rng(0), STEP >= 2000
    steps = columns(COUNT, loss=0.02 * random.lognormal(0, 0.05, COUNT) * np.where(now, loss, 1.0))
    steps["grad_norm"] = 0.02 * random.lognormal(0, 0.2, COUNT) * np.where(now, norm, 1.0)
    found = reported(steps)["norm_level"]
    assert found.severity == severity
    assert ("the loss jumped there as well" in found.evidence) == (severity == "info")


def test_gradients_of_another_size_that_make_the_loss_jump_are_no_other_objective():
    """The step with the first of them has its usual loss yet."""
    random = np.random.default_rng(0)
    steps = columns(COUNT, loss=random.lognormal(0, 0.05, COUNT) * np.where(STEP > 2000, 3.0, 1.0))
    steps["grad_norm"] = random.lognormal(0, 0.2, COUNT) * np.where(STEP >= 2000, 8.0, 1.0)
    assert reported(steps)["norm_level"].severity == "warning"
