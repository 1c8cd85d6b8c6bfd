"""`tbnum diff A B`: whether two runs are the same, and from where on, and in which stage, they are not."""

from __future__ import annotations

import argparse
import math
import sys

from tbnum.command.check import FOUND
from tbnum.command.inputs import UnusableInput, runs_in, usable
from tbnum.command.output import opened, print_line, print_wrapped
from tbnum.compare import Difference, diff
from tbnum.compare.difference import BY, compared, rows_of
from tbnum.compare.page import page
from tbnum.compare.words import lines, next_step, sentence
from tbnum.export import JSON_VERSION, write_json
from tbnum.log.reader import Run

__all__ = ["configure", "run"]


def configure(command: argparse.ArgumentParser) -> None:
    command.add_argument("--rtol", type=_tolerance, default=0.0, metavar="R", help="relative tolerance (default: 0)")
    command.add_argument("--atol", type=_tolerance, default=0.0, metavar="R", help="absolute tolerance (default: 0)")
    command.add_argument("--columns", metavar="NAMES", help="compare these columns alone, as in loss,grad_norm")
    command.add_argument("--until", type=int, metavar="STEP", help="the last step to compare")
    command.add_argument("--by", choices=BY, default="step", help="what belongs together (default: equal steps)")
    command.add_argument(
        "--noise", metavar="DIR", nargs="+", default=[], help="runs of one setting and different seeds, for the noise"
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="write JSON")
    form.add_argument("--html", metavar="FILE", help="write one HTML file with charts that needs nothing else")


def run(arguments: argparse.Namespace) -> int:
    if len(arguments.logdir) != 2:
        raise UnusableInput(f"diff compares two folders, and {len(arguments.logdir)} were given: tbnum diff A B")
    a, b = (_group(folder, arguments) for folder in arguments.logdir)
    noise = [run for folder in arguments.noise for run in _group(folder, arguments)]
    columns = None if arguments.columns is None else [name.strip() for name in arguments.columns.split(",")]
    try:
        found = diff(
            a,
            b,
            arguments.rtol,
            arguments.atol,
            columns=columns,
            until=arguments.until,
            by=arguments.by,
            noise=noise,
        )
    except (ValueError, OSError) as error:
        raise UnusableInput(str(error)) from None
    if arguments.json:
        said = {"sentence": sentence(found), "next": next_step(found)}
        write_json(sys.stdout, {"version": JSON_VERSION, **found.as_json(), **said})
    elif arguments.html is not None:
        one, other = compared(a, b)
        rows = rows_of(one, other, columns, arguments.until, arguments.by)
        _write_page(page(found, one, other, rows), arguments.html)
    else:
        _print(found)
    return 0 if found.same else FOUND


def _write_page(text: str, name: str) -> None:
    try:
        with opened(name, binary=False) as stream:
            stream.write(text)
    except OSError as error:
        raise UnusableInput(f"cannot write {name!r}: {error.strerror or error}") from None


def _group(folder: str, arguments: argparse.Namespace) -> list[Run]:
    """The runs of a folder: one, or some that differ by their seed."""
    runs = runs_in(folder, arguments.map, arguments.run)
    for name, run in runs.items():
        run.name = name
    return [usable(run) for run in runs.values()]


def _print(found: Difference) -> None:
    for heading, text in lines(found):
        if text:
            print_wrapped(text, f"{heading:<14}" if heading or not _is_closing(text, found) else "")
        else:
            print_line("")


def _is_closing(text: str, found: Difference) -> bool:
    return text in (sentence(found), next_step(found))


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0 or math.isinf(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no tolerance: it has to be a number of 0 or more")
    return value
