"""What Accelerate and Transformers record of a sharded training is the run of one process; gloo."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess

import numpy as np
import pytest

import tbnum
from tbnum.log.reader import Run
from tests import ranks, warm

pytestmark = pytest.mark.skipif(  # not imported here, which takes seconds: the processes do it
    not (importlib.util.find_spec("accelerate") and importlib.util.find_spec("transformers")),
    reason="needs Accelerate and Transformers",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("sharded")
    done = subprocess.run(
        [*warm.torchrun(2, "accelerate", "transformers"), "-m", "tests.sharded_frameworks", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return tbnum.read(folder)


@pytest.mark.parametrize("kind", ["accelerate_fsdp2", "accelerate_fsdp1", "transformers_fsdp2", "transformers_fsdp1"])
def test_a_sharded_training_is_recorded_as_that_of_one_process(kind: str, runs: dict[str, Run]) -> None:
    run, alone = runs[kind], ranks.one_process(ranks.Net())
    for name, expected in alone["columns"].items():
        np.testing.assert_allclose(run.steps[name], expected, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(run.steps["max_norm"], ranks.MAX_NORM)
    np.testing.assert_array_equal(run.steps["micro_batches"], 2.0)
    _, losses = run.ranks.column("loss")
    _, expected = runs["accelerate_fsdp1"].ranks.column("loss")
    np.testing.assert_allclose(np.mean(losses, axis=0), np.mean(expected, axis=0), rtol=1e-5)  # not the same rows
    _, names, values = run.tensors["grad_norm"]
    assert sorted(names) == sorted(alone["tensors"])
    for at, name in enumerate(names):
        np.testing.assert_allclose(values[:, at], alone["tensors"][name], rtol=1e-5, err_msg=name)
    assert run.problems == [] and run.events == []


def test_a_checkpoint_of_a_sharded_training_has_the_monitor_s_state(runs: dict[str, Run]) -> None:
    state = json.loads((runs["accelerate_fsdp2"].folder / "checkpoint" / "tbnum.json").read_text())
    assert state["step"] == ranks.STEPS
