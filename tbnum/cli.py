"""The command `tbnum`: report, check, diff, export and tail, from the log alone. Loads no torch.

Exit codes: 0 done (check: nothing found; diff: the same), 1 check or diff found something, 2 unusable input.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NoReturn

from tbnum._version import __version__
from tbnum.command import check, diff, export, report, tail
from tbnum.command.inputs import UNUSABLE, UnusableInput
from tbnum.log.logdir import read

__all__ = ["main", "read"]


COMMANDS: dict[str, tuple[ModuleType, str]] = {
    "report": (report, "Print what happened in each run: skips by cause, loss scale, clipping, findings."),
    "check": (check, "For CI: exit 1 if a run has findings graver than allowed or skips too much."),
    "diff": (diff, "Compare two runs: the same (exit 0) or from which step on, and in which stage, not (exit 1)."),
    "export": (export, "Write a run's steps, or its events, at full resolution."),
    "tail": (tail, "Follow a run: new events as they happen, and how far it is. Ctrl-C ends it."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # run names and notes may hold what the terminal's encoding has not
    if arguments.command is None:
        parser.print_help()
        return 0
    try:
        run: Callable[[argparse.Namespace], int] = arguments.command
        code = run(arguments)
        sys.stdout.flush()
        return code
    except UnusableInput as error:
        print(f"tbnum: {error}", file=sys.stderr)
        return UNUSABLE
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(UNUSABLE, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tbnum",
        description="What the numerics of your training runs did, from the logs that tbnum.wrap() wrote, or from the "
        "TensorBoard scalars of runs that never used it.",
        epilog="Exit codes: 0 done (check: nothing found; diff: the same), 1 check or diff found something, "
        "2 unusable input.",
    )
    parser.add_argument("--version", action="version", version=f"tbnum {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "logdir", metavar="LOGDIR", nargs="+", help="folders with runs in them, or in folders below them"
        )
        command.add_argument(
            "--map",
            metavar="COLUMN=TAG",
            action="append",
            help="of runs that never used tbnum: the TensorBoard scalar that is a column, as in loss_scale=amp/scale; "
            "repeatable",
        )
        command.add_argument("--run", metavar="NAME", help="one run: its folder below LOGDIR, '.' for LOGDIR itself")
        module.configure(command)
        command.set_defaults(command=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
