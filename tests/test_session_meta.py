"""What the recorder reports a session comes back from the log key by key, however large the model is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import tbnum
from tbnum.log.folder import session_metas
from tbnum.log.json_text import plain
from tbnum.log.reader import Run
from tests.recorded import record


def train(folder: Path, tensors: int) -> Mapping[str, Any]:
    """Two steps of a model of so many tensors; what was given to the log to write, as JSON has it."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1)) for _ in range(tensors)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = tbnum.wrap(optimizer, model=model, logdir=folder, tensor_interval=10)
    for _ in range(2):
        sum(parameter.sum() for parameter in list(model)[:3]).backward()
        optimizer.step()
        optimizer.zero_grad()
    given = dict(monitor._recorder._log._sink.session.meta)
    monitor.close()
    return json.loads(json.dumps(plain(given)))


@pytest.mark.parametrize("tensors", [3, 1000, 1001, 20_000])
def test_every_key_of_a_session_comes_back(tensors: int, tmp_path: Path) -> None:
    given = train(tmp_path, tensors)
    assert {"config", "seed", "optimizers", "world_size", "fingerprint", "versions", "parameters"} <= given.keys()
    run = Run(tmp_path)
    assert run.problems == []
    for key, value in given.items():
        assert run.meta[key] == value, key
    assert run.meta["ended"] == "closed" and run.totals.ended == "closed"
    assert run.meta["sessions"][0]["fingerprint"] == given["fingerprint"]
    assert [meta["session"] for meta in session_metas(tmp_path)] == [given["session"]]
    assert len(run.steps["step"]) == 2


@pytest.mark.parametrize("value", [None, {}, {"a": [1]}])
def test_the_shapes_of_parameters_may_be_untold(value: Any, tmp_path: Path) -> None:
    record(tmp_path, parameters=value, seed=7)
    run = Run(tmp_path)
    assert run.problems == [] and run.meta["seed"] == 7 and run.meta["parameters"] == value
    assert run.tensor_names == ()
