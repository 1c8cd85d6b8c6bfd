"""Stands for a program that the server forks: hands on what it was given, signals too, and ends as it ends."""

import json
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    address, processes, modules, *arguments = sys.argv[1:]
    asked = {"processes": int(processes), "modules": modules.split(), "arguments": arguments}
    asked |= {"folder": os.getcwd(), "variables": dict(os.environ)}
    pid = 0
    early: list[int] = []

    def hand_on(number: int, frame: object) -> None:
        if pid:
            os.kill(pid, number)
        else:
            early.append(number)

    for number in SIGNALS:
        signal.signal(number, hand_on)  # where it is ignored, the program ignores it by itself
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"."], [0, 1, 2])
        answers = connection.makefile("rw")
        print(json.dumps(asked), file=answers, flush=True)
        pid = int(answers.readline())
        for number in early:
            os.kill(pid, number)
        status = int(answers.readline())
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
