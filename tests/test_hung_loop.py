"""A loop that hangs, or takes long over a step, shows the steps that it has made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import tbnum
from tests import warm
from tests.test_runs import wait_until

LOOP = """
import sys, torch, tbnum
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tbnum.wrap(optimizer, model=model, logdir=sys.argv[1], verbose=False)
for _ in range(10):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("ten steps", flush=True)
sys.stdin.read()
"""


def test_a_loop_that_hangs_shows_its_last_steps(tmp_path: Path) -> None:
    command = [*warm.python(), "-c", LOOP, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ten steps\n"
            wait_until(lambda: _steps(tmp_path / "run") == list(range(10)))
        finally:
            process.kill()


def _steps(folder: Path) -> list[int]:
    (run,) = tbnum.read(folder).values()
    return [] if "step" not in run.steps else run.steps["step"].tolist()
