"""A program that a warm Python runs is a process of its own, and ends as it would have ended."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests import warm


def run(code: str, *arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*warm.python(), "-c", code, *arguments], capture_output=True, text=True, timeout=1200, **options
    )


def test_it_has_torch_its_own_arguments_streams_and_exit_handlers() -> None:
    code = "import atexit, os, sys; before = 'torch' in sys.modules; atexit.register(print, 'ended')\n"
    done = run(code + "print(before, sys.argv, input(), os.getpid())", "one", input="two")
    first, last = done.stdout.splitlines()
    pid = int(first.split()[-1])
    assert first == f"True ['-c', 'one'] two {pid}" and pid != os.getpid()
    assert (last, done.returncode, done.stderr) == ("ended", 0, "")


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise KeyError('mine')", 1, "KeyError: 'mine'"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
    ],
)
def test_it_ends_as_the_program_does(code: str, status: int, error: str) -> None:
    done = run(code)
    assert done.returncode == status and error in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_the_program(number: signal.Signals) -> None:
    # A shell's background jobs ignore Ctrl-C, and what they start does so too; Python's own handler may miss a read.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
    code += "print('begun', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [*warm.python(), "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        assert process.wait(1200) == -number
        assert process.stdout.read() == b""  # the program itself held it open


def test_ranks_meet_and_one_that_fails_fails_them_all() -> None:
    code = "import os, sys, torch.distributed as dist; dist.init_process_group('gloo'); rank = dist.get_rank()\n"
    command = [*warm.torchrun(2), "-c"]
    done = subprocess.run(
        [*command, code + "os.write(1, b'%d %d;' % (rank, dist.get_world_size()))"], capture_output=True, text=True
    )
    assert sorted(done.stdout.split(";")) == ["", "0 2", "1 2"] and done.returncode == 0
    done = subprocess.run([*command, code + "sys.exit(rank)"], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 1
