"""An optimizer's state that is lost or set to zero between two steps is named; what loops may do with it is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tbnum

OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "AdamW, foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, momentum=0.9),
}


def events_of(
    folder: Path, between: Callable[[torch.optim.Optimizer], None], make: str = "AdamW", frozen: bool = False
) -> list[tbnum.Event]:
    """With `between` called before step 8 of 16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(8, 3), nn.Linear(3, 2))
    model[0].weight.requires_grad_(not frozen)
    optimizer = OPTIMIZERS[make](model.parameters())
    with tbnum.wrap(optimizer, model=model, logdir=folder):
        for step in range(16):
            optimizer.zero_grad()
            model(torch.randint(8, (4,))).square().mean().backward()
            if step == 8:
                between(optimizer)
            optimizer.step()
    (run,) = tbnum.read(folder).values()
    return [event for event in run.events if event.kind == "moments_reset"]


def cleared(optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()


def zeroed(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        name = next(name for name in ("exp_avg_sq", "momentum_buffer", "sum") if name in state)
        state[name].zero_()


def replaced_by_zeros(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        for name, value in state.items():
            if name != "step":
                state[name] = torch.zeros_like(value)


def loaded_without_state(optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})


@pytest.mark.parametrize(("share", "severity"), [(0.1, "info"), (0.9, "warning")])
def test_moments_that_are_reset_where_the_learning_rate_warms_up_again_are_meant(
    share: float, severity: str, tmp_path: Path
) -> None:
    def restart(optimizer: torch.optim.Optimizer) -> None:
        optimizer.state.clear()
        optimizer.param_groups[0]["lr"] *= share

    (event,) = events_of(tmp_path, restart)
    assert (event.step, event.severity) == (8, severity)
    assert ("and its learning rate went down." in event.message) == (severity == "info")
    assert ("meant for later" in event.message) == (severity == "warning")


@pytest.mark.parametrize("frozen", [False, True], ids=["", "its first parameter has no state"])
@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("loss", [cleared, zeroed, replaced_by_zeros, loaded_without_state])
def test_a_state_that_is_lost_while_training_is_named_at_its_step(
    loss: Callable[[torch.optim.Optimizer], None], make: str, frozen: bool, tmp_path: Path
) -> None:
    (event,) = events_of(tmp_path, loss, make, frozen)
    assert event.step == 8 and event.severity == "warning"
    assert event.data["where"].startswith("test_moments.py:")


def loaded_again(optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def decayed(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        for value in state.values():
            value.mul_(0.5)


def moved_and_back(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        for name, value in state.items():
            state[name] = value.clone()


def group_added(optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def first_parameter_given_up(optimizer: torch.optim.Optimizer) -> None:
    parameter = optimizer.param_groups[0]["params"].pop(0)
    del optimizer.state[parameter]


def nothing(optimizer: torch.optim.Optimizer) -> None:
    pass


@pytest.mark.parametrize("make", ["AdamW", "momentum"])
@pytest.mark.parametrize(
    "change", [nothing, loaded_again, decayed, moved_and_back, group_added, first_parameter_given_up]
)
def test_a_state_that_is_changed_is_not_lost(
    change: Callable[[torch.optim.Optimizer], None], make: str, tmp_path: Path
) -> None:
    assert events_of(tmp_path, change, make) == []
