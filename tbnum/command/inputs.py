"""What the command is given: folders, runs in them, and the part of a run that is asked for."""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tbnum.command.output import console
from tbnum.explain import explain_run
from tbnum.explain.summary import step_count
from tbnum.explain.words import terminal_text
from tbnum.log.logdir import ADVICE, read
from tbnum.log.reader import Run
from tbnum.log.tags import checked_mapping
from tbnum.report import run_title

__all__ = [
    "UNUSABLE",
    "NoStepSince",
    "Since",
    "UnusableInput",
    "add_since",
    "begin_of",
    "listed",
    "of_each",
    "one_by_one",
    "one_run",
    "positive_seconds",
    "rate",
    "runs_in",
    "runs_of",
    "shown_logdir",
    "usable",
]


UNUSABLE = 2
"""The exit code where what was given, or a part of it, cannot be worked with."""


class UnusableInput(Exception):
    """What the user gave cannot be worked with. The message says what, and what to do."""


class NoStepSince(UnusableInput):
    """The run ended before the part of it that was asked for."""


Looked = TypeVar("Looked")


# -- folders and runs --------------------------------------------------------------------------------------------------


def runs_of(arguments: argparse.Namespace) -> dict[str, Run]:
    """The runs asked for; at least one. With several folders a run's name begins with its folder."""
    runs: dict[str, Run] = {}
    for logdir in arguments.logdir:
        found = _read(logdir, arguments.map)
        several = len(arguments.logdir) > 1
        runs |= {_name_of(logdir, name) if several else name: run for name, run in found.items()}
    where = shown_logdir(arguments)
    if not runs:
        raise UnusableInput(
            f"no runs in {where}: {ADVICE}; or one with TensorBoard "
            "scalars of a loss or a loss scale, whose tags --map takes where they are not recognised"
        )
    if arguments.run is None:
        return runs
    if arguments.run not in runs:
        raise UnusableInput(f"no run {arguments.run!r} in {where}; there is {listed(runs)}")
    return {arguments.run: runs[arguments.run]}


def runs_in(logdir: str, mapping: Sequence[str] | None, name: str | None) -> dict[str, Run]:
    """The runs of one folder, by their path; with `name` that one alone. At least one."""
    runs = _read(logdir, mapping)
    if name is not None and name not in runs:
        raise UnusableInput(f"no run {name!r} in {logdir!r}; there is {listed(runs) or 'none'}")
    runs = runs if name is None else {name: runs[name]}
    if not runs:
        raise UnusableInput(f"no runs in {logdir!r}: {ADVICE}")
    return {_name_of(logdir, each): run for each, run in runs.items()}


def _read(logdir: str, mapping: Sequence[str] | None) -> dict[str, Run]:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            runs = read(logdir, explain=explain_run, tags=checked_mapping(mapping))
    except ValueError as error:
        raise UnusableInput(str(error)) from None
    except OSError as error:
        reason = f"cannot read {logdir!r}: {error.strerror}" if error.strerror else str(error)
        raise UnusableInput(reason if ADVICE in reason else f"{reason}; {ADVICE}") from None
    for warning in caught:
        print(f"tbnum: {warning.message}", file=sys.stderr)
    return runs


def _name_of(logdir: str, name: str) -> str:
    folder = logdir.rstrip("/") or logdir
    return folder if name == "." else f"{folder}/{name}"


def shown_logdir(arguments: argparse.Namespace) -> str:
    return ", ".join(repr(logdir) for logdir in arguments.logdir)


def one_run(arguments: argparse.Namespace) -> Run:
    runs = runs_of(arguments)
    if len(runs) > 1:
        raise UnusableInput(
            f"{len(runs)} runs in {shown_logdir(arguments)}: choose one with --run; there is {listed(runs)}"
        )
    (run,) = runs.values()
    return run


def listed(runs: Mapping[str, Run]) -> str:
    names = [repr(name) for name in runs]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def usable(run: Run) -> Run:
    """`run`, if anything of it could be read."""
    try:
        nothing = not step_count(run) and not run.raw_events
        problems = run.problems
    except (OSError, ValueError) as error:
        raise UnusableInput(f"cannot read the run {_title(run)!r}: {error}") from None
    if nothing and problems:
        raise UnusableInput(f"nothing of the run {_title(run)!r} can be read: {problems[0]}")
    return run


def _title(run: Run) -> str:
    return run_title(run.name, run)


def of_each(runs: Mapping[str, Run], look: Callable[[str, Run], Looked]) -> tuple[list[Looked], bool]:
    """What `look` makes of each run, and whether all of them could be read.

    Of several, one that cannot be read, or has no step since the time that was asked for, hides no other: standard
    error names it. UnusableInput where none is left.
    """
    found: list[Looked] = []
    unread: list[UnusableInput] = []
    before: list[UnusableInput] = []
    for name, run in one_by_one(runs, check=False):
        try:
            found.append(look(name, usable(run)))
        except NoStepSince as error:
            before.append(error)
        except UnusableInput as error:
            unread.append(error)
    if not found:
        raise unread[0] if unread else UnusableInput(f"{before[0]}: give an earlier --since")
    if before:
        print(f"tbnum: {before[0]}{_and_others(len(before))}; left out", file=sys.stderr)
    for reason in unread:
        print(f"tbnum: {reason}", file=sys.stderr)
    return found, not unread


def _and_others(count: int) -> str:
    return f", nor have {count - 1:,} others" if count > 2 else ", nor has another" if count == 2 else ""


def one_by_one(runs: Mapping[str, Run], *, check: bool = True) -> Iterator[tuple[str, Run]]:
    """The runs in turn, with a progress bar on a terminal where there is more than one; with `check` usable ones."""
    errors = console(stderr=True)
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    hidden = not errors.is_terminal or len(runs) == 1
    with Progress(*columns, console=errors, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=len(runs))
        for name in list(runs):
            run = runs[name]
            progress.update(task, description=terminal_text(name))
            yield name, usable(run) if check else run
            progress.advance(task)


# -- the part of a run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Since:
    """Where the part of a run begins that is asked for: at a step, or at a time."""

    text: str
    step: int | None = None
    wall_time: float | None = None


def add_since(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--since",
        type=_since,
        metavar="WHEN",
        help="only what happened from a step on (1200), in the last while (90m, 12h, 3d), or since a time "
        "(2026-01-31T12:00)",
    )


def _since(text: str) -> Since:
    if text.isdigit():
        return Since(text, step=int(text))
    span = re.fullmatch(r"(\d+(?:\.\d*)?)([smhd])", text)
    if span:
        seconds = float(span[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[span[2]]
        return Since(text, wall_time=time.time() - seconds)
    try:
        return Since(text, wall_time=datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no step (1200), no span of time (90m, 12h, 3d), and no time (2026-01-31T12:00)"
        ) from None


def begin_of(run: Run, since: Since | None) -> int | None:
    """The step that `since` means in a run; None where it means all of it."""
    if since is None:
        return None
    steps = run.steps
    if since.step is not None:
        begin = since.step
    else:
        rows = np.flatnonzero(steps.get("wall_time", np.empty(0)) >= (since.wall_time or 0.0))  # clocks are set back
        begin = int(steps["step"][rows[0]]) if len(rows) else -1
    if not step_count(run) or not 0 <= begin <= int(steps["step"][-1]):
        raise NoStepSince(f"the run {_title(run)!r} has no step since {since.text}")
    return begin


# -- numbers -----------------------------------------------------------------------------------------------------------


def rate(text: str) -> float:
    given = _number(text)
    if not 0 <= given <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return given


def positive_seconds(text: str) -> float:
    seconds = _number(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return seconds


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
