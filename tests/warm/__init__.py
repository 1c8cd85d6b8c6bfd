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

_HERE = Path(__file__).parent
_LOADED = (
    "pytest",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.profiler",
    "torch.utils.tensorboard",
    "tensorboard.main",
    "tensorboard.plugins.pr_curve.pr_curves_plugin",
)
_OURS = ("tbnum.monitor", "tests.loops")


def python(with_tbnum: bool = True) -> list[str]:
    """Begins a command, as `[sys.executable]` does; `-c CODE`, `-m MODULE` or a script follow."""
    return _command(0, with_tbnum=with_tbnum)


def torchrun(processes: int, *modules: str) -> list[str]:
    """As `torchrun --standalone --nproc-per-node`; `modules` are loaded once, before the ranks are forked."""
    return _command(processes, *modules)


def _command(processes: int, *modules: str, with_tbnum: bool = True) -> list[str]:
    client, server = str(_HERE / "client.py"), _server(with_tbnum)
    return [sys.executable, "-I", "-S", client, server, str(processes), " ".join(modules)]


@cache
def _server(with_tbnum: bool) -> str:
    """The socket of this process's server, which ends with it."""
    folder = tempfile.mkdtemp(prefix="tbnum-warm-")
    address = os.path.join(folder, "socket")
    server = subprocess.Popen(
        [
            sys.executable,
            str(_HERE / "server.py"),
            address,
            str(_HERE.parents[1]),
            *_LOADED,
            *(_OURS if with_tbnum else ()),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None and server.stdout is not None
    atexit.register(_end, server, folder)
    if server.stdout.readline() != b"ready\n":
        raise RuntimeError(f"tests/warm/server.py ended with {server.wait()}")
    return address


def _end(server: subprocess.Popen[bytes], folder: str) -> None:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.close()
    server.wait()
    server.stdout.close()
    shutil.rmtree(folder)
