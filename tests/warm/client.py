"""Stands for a program that the server forks: hands on what it was given, signals too, and ends as it ends."""

import json
import os
import select
import signal
import socket
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    address, processes, modules, *arguments = sys.argv[1:]
    asked = {"processes": int(processes), "modules": modules.split(), "arguments": arguments}
    asked |= {"folder": os.getcwd(), "variables": dict(os.environ)}
    # A handler in Python would not run while a read waits that began just after the signal: a pipe wakes that.
    received, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: None)  # where it is ignored, the program ignores it by itself
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"."], [0, 1, 2])
        answers = connection.makefile("rw")
        print(json.dumps(asked), file=answers, flush=True)
        pid = int(answers.readline())
        while connection not in select.select([connection, received], [], [])[0]:
            for number in os.read(received, 64):
                os.kill(pid, number)
        status = int(answers.readline())
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
