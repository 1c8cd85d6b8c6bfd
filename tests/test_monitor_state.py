"""What a checkpoint keeps of a monitor is taken back as it was given, and nothing else is taken."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tbnum
from tbnum.monitor_state import STATE_VERSION, checked_state, state_at

GOOD: dict[str, Any] = {
    "version": STATE_VERSION,
    "step": 7,
    "skipped_steps": 2,
    "session": "a1b2",
    "loss_scale": 65536.0,
}


def test_a_state_is_taken_as_it_is_also_with_another_library_s_numbers() -> None:
    assert checked_state(GOOD) == GOOD
    assert checked_state(state_at(3, "framework")) == state_at(3, "framework")
    checked = checked_state({**GOOD, "step": np.int64(7), "loss_scale": None, "session": None})
    assert type(checked["step"]) is int and checked["step"] == 7
    assert checked_state({**GOOD, "step": 2**62 - 1})["step"] == 2**62 - 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"step": 2**62}, "its step is 4611686018427387904.*below 2\\*\\*62"),
        ({"step": 2**63}, "its step is"),
        ({"step": -1}, "its step is -1"),
        ({"step": 2.0}, "its step is 2.0"),
        ({"step": float("nan")}, "its step is nan"),
        ({"step": True}, "its step is True"),
        ({"step": "7"}, "its step is '7'"),
        ({"step": None}, "its step is None"),
        ({"skipped_steps": -3}, "its skipped_steps is -3"),
        ({"skipped_steps": "many"}, "its skipped_steps is 'many'"),
        ({"loss_scale": float("inf")}, "its loss_scale is inf"),
        ({"loss_scale": 0}, "its loss_scale is 0"),
        ({"loss_scale": "large"}, "its loss_scale is 'large'"),
        ({"session": 5}, "its session is 5"),
        ({"version": 99}, "version 99, expected"),
        ({"version": None}, "version None, expected"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_the_way_out(change: dict[str, Any], named: str) -> None:
    with pytest.raises(
        ValueError, match=f"no state of a tbnum monitor.*{named}.*monitor.state_dict\\(\\) gave.*step 0"
    ):
        checked_state({**GOOD, **change})


@pytest.mark.parametrize("state", [None, {}, [], "state", {"step": 3}, {"version": STATE_VERSION}, GOOD.items()])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="no state of a tbnum monitor"):
        checked_state(state)


def test_a_state_that_is_refused_changes_nothing_and_one_that_went_through_a_file_is_taken(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    with tbnum.wrap(optimizer, model=model, logdir=tmp_path) as monitor:
        for _ in range(3):
            step()
        file = io.BytesIO()
        torch.save(monitor.state_dict(), file)
        with pytest.raises(ValueError):
            monitor.load_state_dict({**monitor.state_dict(), "step": 2**63})
        assert monitor.step == 3
        step()
    file.seek(0)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path) as monitor:
        monitor.load_state_dict(torch.load(file, weights_only=True))
        assert monitor.step == 3
        step()
    run = tbnum.read(tmp_path)["."]
    assert run.steps["step"].tolist() == [0, 1, 2, 3]
    assert run.meta["sessions"][-1]["first_step"] == 3
