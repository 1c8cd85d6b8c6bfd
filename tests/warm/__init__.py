"""Python processes that begin with torch loaded, for tests that need one of their own: 0.1 s instead of 4.

    subprocess.run([*warm.python(), "-c", "import torch; ..."], ...)
    subprocess.run([*warm.torchrun(4), "-m", "tests.ranks", ...], ...)

A server loads torch and tbnum once, and forks for each program: a process of its own with its own standard streams,
folder, variables, exit code and end. Tests of imports, of launchers and of the interpreter start a real one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

__all__ = ["python", "torchrun"]

_ROOT = Path(__file__).parents[2]


def python() -> list[str]:
    """Begins a command, as `[sys.executable]` does; `-c CODE`, `-m MODULE` or a script follow."""
    return _command(0)


def torchrun(processes: int, *modules: str) -> list[str]:
    """As `torchrun --standalone --nproc-per-node`; `modules` are loaded once, before the ranks are forked."""
    return _command(processes, *modules)


def _command(processes: int, *modules: str) -> list[str]:
    client = str(Path(__file__).with_name("client.py"))
    return [sys.executable, "-I", "-S", client, _server(), str(processes), " ".join(modules)]


@cache
def _server() -> str:
    """The socket of this process's server, which ends with it."""
    folder = tempfile.mkdtemp(prefix="tbnum-warm-")
    address = os.path.join(folder, "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.warm.server", address],
        cwd=_ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None and server.stdout is not None
    atexit.register(_end, server, folder)
    if server.stdout.readline() != b"ready\n":
        raise RuntimeError(f"tests.warm.server ended with {server.wait()}")
    return address


def _end(server: subprocess.Popen[bytes], folder: str) -> None:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.close()
    server.wait()
    server.stdout.close()
    shutil.rmtree(folder)
