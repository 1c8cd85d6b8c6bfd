"""Training goes on whatever happens to the disk, the folder or the process, with one warning at most."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tbnum
from tests import warm
from tests.loops import OPTIMIZERS, Half, batches, train


class Loop:
    def __init__(self, logdir: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = Half()
        self.optimizer = OPTIMIZERS["AdamW"](self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=20)
        self.monitor = tbnum.wrap(self.optimizer, self.scaler, model=self.model, logdir=logdir, **options)

    def train(self, steps: int, **options: Any) -> None:
        train(self.model, self.optimizer, self.scaler, batches(steps, bad=[steps // 2]), **options)

    def weights(self) -> bytes:
        return b"".join(parameter.detach().numpy().tobytes() for parameter in self.model.parameters())


@contextlib.contextmanager
def warnings_of_tbnum() -> Iterator[list[str]]:
    reported: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield reported
    reported += [str(each.message) for each in caught if "tbnum" in str(each.message)]


def undisturbed(tmp_path: Path, steps: int) -> bytes:
    loop = Loop(tmp_path / "undisturbed")
    loop.train(steps)
    loop.monitor.close()
    return loop.weights()


def run_of(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run


def test_a_run_folder_deleted_in_mid_run_costs_the_record_and_nothing_else(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    with warnings_of_tbnum() as reported:
        loop.train(
            40, after_step=lambda step: shutil.rmtree(tmp_path / "run", ignore_errors=True) if step == 10 else None
        )
        loop.monitor.flush()
        loop.monitor.close()
    assert loop.weights() == undisturbed(tmp_path, 40)
    assert len(reported) <= 1


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on the size of files")
def test_a_disk_that_fills_up_costs_what_no_longer_fits_and_the_log_says_how_much(tmp_path: Path) -> None:
    script = f"""
import resource, signal, warnings
from pathlib import Path
from tests.test_faults import Loop, warnings_of_tbnum
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
loop = Loop(Path({str(tmp_path / "run")!r}), scalar_interval=1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
with warnings_of_tbnum() as reported:
    for _ in range(10):
        loop.train(100)
        loop.monitor.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    loop.train(100)
    loop.monitor.close()
assert len(reported) == 1, reported
print(loop.weights().hex()[:64])
"""
    done = subprocess.run([*warm.python(), "-c", script], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    run = run_of(tmp_path / "run")
    assert sum(run.meta["dropped"].values()) > 0
    assert 0 < len(run.steps["step"]) < 1100 and run.steps["step"][-1] == 1099


def test_two_processes_in_one_folder_do_not_harm_each_other(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tests.test_faults import Loop
loop = Loop(Path({str(tmp_path / "run")!r}))
loop.train(30)
loop.monitor.close()
"""
    processes = [subprocess.Popen([*warm.python(), "-c", script], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=1200)
        assert process.returncode == 0, errors
    run = run_of(tmp_path / "run")
    assert run.steps["step"].tolist() == list(range(30)) and len(run.meta["sessions"]) == 2


def test_whoever_begins_in_a_folder_that_another_process_is_writing_to_is_reported(tmp_path: Path) -> None:
    script = f"""
import os, sys
from pathlib import Path
from tests.test_faults import Loop
loop = Loop(Path({str(tmp_path / "run")!r}))
print("begun", os.getpid(), flush=True)
sys.stdin.readline()
loop.monitor.close()
print("closed", flush=True)
sys.stdin.readline()
"""
    with subprocess.Popen(
        [*warm.python(), "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        begun, pid = other.stdout.readline().split()
        assert begun == "begun"
        with warnings_of_tbnum() as reported:
            Loop(tmp_path / "run").monitor.close()
        assert len(reported) == 1 and f"process {pid}" in reported[0] and "its own folder" in reported[0]
        print(file=other.stdin, flush=True)
        assert other.stdout.readline() == "closed\n"
        with warnings_of_tbnum() as reported:
            Loop(tmp_path / "run").monitor.close()
        assert reported == []
        print(file=other.stdin, flush=True)


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_data_loader_workers_neither_record_nor_hang(how: str, tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(40, 8)), batch_size=4, num_workers=2, multiprocessing_context=how
    )
    with warnings_of_tbnum() as reported:
        for (x,) in data:
            train(loop.model, loop.optimizer, loop.scaler, [x])
        loop.monitor.close()
    assert reported == []
    assert run_of(tmp_path / "run").steps["step"].tolist() == list(range(10))


def test_a_fork_after_wrapping_leaves_the_record_to_the_parent(tmp_path: Path) -> None:
    script = f"""
import os, sys
import torch
torch.set_num_threads(1)  # OpenMP itself does not outlive a fork
from pathlib import Path
from tests.test_faults import Loop
loop = Loop(Path({str(tmp_path / "run")!r}))
loop.train(10)
child = os.fork()
loop.train(10)
if child == 0:
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
loop.monitor.close()
"""
    done = subprocess.run([*warm.python(), "-c", script], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    run = run_of(tmp_path / "run")
    assert run.steps["step"].tolist() == list(range(20)) and len(run.meta["sessions"]) == 1


def test_an_exception_inside_the_loop_that_is_caught_costs_the_step_it_broke(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    for at, x in enumerate(batches(9)):
        try:
            loop.scaler.scale(loop.model(x).square().mean()).backward()
            if at == 4:
                raise KeyError("mine")
            loop.scaler.step(loop.optimizer)
            loop.scaler.update()
        except KeyError:
            pass
        loop.optimizer.zero_grad()
    loop.monitor.close()
    assert run_of(tmp_path).steps["step"].tolist() == list(range(8))


KILLS = 200 if os.environ.get("TBNUM_FUZZ") else 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_moment_loses_no_event_and_leaves_no_gap_among_the_rows_that_were_written(tmp_path: Path) -> None:
    # One process loads torch, and each training is a fork of it: 0.2 seconds instead of 3.
    script = """
import os, sys
import torch
torch.set_num_threads(1)
from pathlib import Path
import tbnum.monitor, torch.utils.tensorboard  # else each child loads them
from tests.test_faults import Loop
def say(*words):  # in one write: a print may be several (PYTHONUNBUFFERED), with a kill between them
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
for folder in sys.stdin:
    child = os.fork()
    if child == 0:
        loop = Loop(Path(folder.strip()))
        loop.monitor.on_event(lambda event: say("event", event.kind, event.step))
        say("pid", os.getpid())
        while True:
            loop.train(50)
    os.waitpid(child, 0)
    say("ended")
"""
    with subprocess.Popen(
        [*warm.python(), "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for at in range(KILLS):
            folder = tmp_path / str(at)
            print(folder, file=process.stdin, flush=True)
            what, pid = process.stdout.readline().split()
            assert what == "pid"
            reported: list[tuple[str, int]] = []
            alive = True
            while (line := process.stdout.readline()) != "ended\n":
                _, kind, step = line.split()
                reported.append((kind, int(step)))
                if alive and len(reported) > at * 5 % 12:
                    os.kill(int(pid), signal.SIGKILL)
                    alive = False
            run = run_of(folder)
            assert set(reported) <= {(event.kind, event.step) for event in run.events}
            steps, skips = run.steps["step"], {event.step for event in run.events if event.kind == "skip"}
            # Behind the rows that were written come skips alone, known from their events.
            written = next((at for at, step in enumerate(steps.tolist()) if step != at), len(steps))
            assert set(steps[written:].tolist()) <= skips and not run.problems
        process.stdin.close()
