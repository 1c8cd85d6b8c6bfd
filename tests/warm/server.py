"""Loads modules once, and forks for each program that a client asks for. Ends when its standard input does."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
from collections.abc import Iterable
from typing import Any

Asked = dict[str, Any]


def load(modules: Iterable[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    import torch

    torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])  # loads the rest


def serve(address: str) -> Asked:
    """Returns in the forks alone, with what each is to run."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        os.write(1, b"ready\n")
        while True:
            ready, _, _ = select.select([listener, 0], [], [])
            if listener not in ready:
                os._exit(0)
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
            _reap()
    return _keep(connection)


def _reap() -> None:
    """Waits for the keepers that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _keep(connection: socket.socket) -> Asked:
    """Forks the program, waits for its end and reports it; ends it where its client is gone."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    answers = connection.makefile("rw")
    asked: Asked = json.loads(answers.readline())
    ended, alive = os.pipe()  # the program alone holds `alive`
    pid = os.fork()
    if pid == 0:
        os.close(ended)
        os.set_inheritable(alive, False)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        answers.close()
        connection.close()
        return asked
    os.close(alive)
    for stream in (0, 1, 2, *streams):
        os.close(stream)
    print(pid, file=answers, flush=True)
    ready, _, _ = select.select([connection, ended], [], [])
    if ended not in ready:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        print(status, file=answers, flush=True)
    os._exit(0)


def program(asked: Asked) -> None:
    """Runs in this process what `python` would run of these arguments."""
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["variables"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    first, *rest = asked["arguments"]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if first == "-c":
        sys.argv, sys.path[:0] = ["-c", *rest[1:]], ["", *paths]
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif first == "-m":
        sys.argv, sys.path[:0] = ["-m", *rest[1:]], [os.getcwd(), *paths]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = [first, *rest], [os.path.dirname(os.path.abspath(first)), *paths]
        with open(first, encoding="utf-8") as file:
            code = compile(file.read(), first, "exec")
        vars(main)["__file__"] = first
        exec(code, vars(main))


def ranks(asked: Asked) -> None:
    """Returns in each of the ranks; the process that forked them ends with them."""
    import torch.distributed as dist

    for module in asked["modules"]:
        importlib.import_module(module)
    number, size = os.pipe(), asked["processes"]
    children = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.close(number[1])
            port = os.read(number[0], 5).decode()
            os.close(number[0])
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            variables |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
            asked["variables"] |= {name: str(value) for name, value in variables.items()}
            return
        children.append(pid)
    os.close(number[0])
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # after the forks: it has a thread
    os.write(number[1], f"{store.port:5}".encode() * size)
    failed = 0
    while children:
        pid, status = os.waitpid(-1, 0)
        children.remove(pid)
        if status and not failed:
            failed = status
            for each in children:
                os.kill(each, signal.SIGTERM)  # as torchrun does
    os._exit(min(1, failed))


if __name__ == "__main__":
    sys.path[0] = sys.argv[2]  # in place of this folder
    load(sys.argv[3:])
    gc.collect()
    gc.freeze()  # a fork that ends would visit all that is there, and copy the memory it stands in
    asked = serve(sys.argv[1])
    if asked["processes"]:
        ranks(asked)
    program(asked)
