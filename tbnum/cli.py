"""The command `tbnum`: report, check, export and tail, from the log alone. Loads no torch.

Exit codes: 0 done (check: nothing found), 1 check found something, 2 unusable input.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Any, NoReturn

import numpy as np

from tbnum import export, report_page
from tbnum._version import __version__
from tbnum.explain import Finding, explain_run
from tbnum.explain.finding import OF_THE_RUN, steps_of
from tbnum.explain.findings import skipped_steps
from tbnum.explain.record import attempts, is_scalar_log
from tbnum.explain.summary import step_count, worth_reading
from tbnum.explain.words import count_text, number_text, scale_text, share_text, terminal_text
from tbnum.export import JSON_VERSION, write_json
from tbnum.log.logdir import read
from tbnum.log.reader import Run
from tbnum.log.schema import SEVERITIES, Event
from tbnum.log.tags import checked_mapping
from tbnum.report import Report, print_event, print_finding, print_report

__all__ = ["main"]

FOUND, UNUSABLE = 1, 2


class UnusableInput(Exception):
    """What the user gave cannot be worked with. The message says what, and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    arguments = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # run names and notes may hold what the terminal's encoding has not
    try:
        code: int = arguments.command(arguments)
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
        epilog="Exit codes: 0 done (check: nothing found), 1 check found something, 2 unusable input.",
    )
    parser.add_argument("--version", action="version", version=f"tbnum {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("logdir", metavar="LOGDIR", help="a folder with runs in it, or in folders below it")
        sub.add_argument(
            "--map",
            metavar="COLUMN=TAG",
            action="append",
            help="of runs that never used tbnum: the TensorBoard scalar that is a column, as in loss_scale=amp/scale; "
            "repeatable",
        )
        sub.add_argument("--run", metavar="NAME", help="one run: its folder below LOGDIR, '.' for LOGDIR itself")
        sub.set_defaults(command=command)
        return sub

    report = add("report", _report, "Print what happened in each run: skips by cause, loss scale, clipping, findings.")
    form = report.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="write JSON: all events, and the numbers of the table")
    form.add_argument("--html", metavar="FILE", help="write one HTML file with charts that needs nothing else")
    _add_since(report)

    check = add("check", _check, "For CI: exit 1 if a run has findings graver than allowed or skips too much.")
    check.add_argument("--max-skip-rate", type=_rate, metavar="R", help="highest share of skipped steps, 0 to 1")
    check.add_argument(
        "--fail-on", choices=SEVERITIES, help="fail on findings of this severity and graver (default: error)"
    )
    check.add_argument("--max-severity", choices=SEVERITIES, help="the same by the gravest finding allowed")
    _add_since(check)
    check.add_argument("--json", action="store_true", help="write JSON")

    out = add("export", _export, "Write a run's steps, or its events, at full resolution.")
    out.add_argument("--format", choices=FORMATS, default="csv", help="(default: %(default)s)")
    out.add_argument("--events", action="store_true", help="the events with cause and message, not the steps")
    out.add_argument("-o", "--output", default="-", metavar="FILE", help="'-' for standard output (default)")

    tail = add("tail", _tail, "Follow a run: new events as they happen, and how far it is. Ctrl-C ends it.")
    tail.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two looks")
    return parser


FORMATS = ("csv", "json", "jsonl", "npz", "parquet")
BINARY = ("npz", "parquet")


def _add_since(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--since",
        type=_since,
        metavar="WHEN",
        help="only what happened from a step on (1200), of late (90m, 12h, 3d), or since a time (2026-01-31T12:00)",
    )


@dataclasses.dataclass(frozen=True)
class Since:
    """Where the part of a run begins that is asked for: at a step, or at a time."""

    text: str
    step: int | None = None
    wall_time: float | None = None


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


def _rate(text: str) -> float:
    rate = _number(text)
    if not 0 <= rate <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return rate


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def _seconds(text: str) -> float:
    seconds = _number(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return seconds


# --- input ---


def _runs(arguments: argparse.Namespace) -> dict[str, Run]:
    """The runs asked for; at least one, and each can be used."""
    logdir = arguments.logdir
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            runs = read(logdir, explain=explain_run, tags=checked_mapping(arguments.map))
    except ValueError as error:
        raise UnusableInput(str(error)) from None
    except OSError as error:
        reason = f"cannot read {logdir!r}: {error.strerror}" if error.strerror else str(error)
        raise UnusableInput(f"{reason}; give the logdir of tbnum.wrap(), or a folder above it") from None
    for warning in caught:
        print(f"tbnum: {warning.message}", file=sys.stderr)
    if not runs:
        raise UnusableInput(
            f"no runs in {logdir!r}: give the logdir of tbnum.wrap(), or a folder above it; or one with TensorBoard "
            "scalars of a loss or a loss scale, whose tags --map takes where they are not recognised"
        )
    if arguments.run is None:
        return runs
    if arguments.run not in runs:
        raise UnusableInput(f"no run {arguments.run!r} in {logdir!r}; there is {_listed(runs)}")
    return {arguments.run: runs[arguments.run]}


def _one_run(arguments: argparse.Namespace) -> Run:
    runs = _runs(arguments)
    if len(runs) > 1:
        raise UnusableInput(
            f"{len(runs)} runs in {arguments.logdir!r}: choose one with --run; there is {_listed(runs)}"
        )
    (run,) = runs.values()
    return run


def _listed(runs: Mapping[str, Run]) -> str:
    names = [repr(name) for name in runs]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _usable(run: Run) -> Run:
    """`run`, if anything of it could be read."""
    try:
        nothing = not step_count(run) and not run.raw_events
        problems = run.problems
    except (OSError, ValueError) as error:
        raise UnusableInput(f"cannot read the run {run.name!r}: {error}") from None
    if nothing and problems:
        raise UnusableInput(f"nothing of the run {run.name!r} can be read: {problems[0]}")
    return run


def _begin(run: Run, since: Since | None) -> int | None:
    """The step that `since` means in a run; None where it means all of it."""
    if since is None:
        return None
    steps = run.steps
    if since.step is not None:
        begin = since.step
    else:
        row = int(np.searchsorted(steps.get("wall_time", np.empty(0)), since.wall_time or 0.0))
        begin = int(steps["step"][row]) if row < step_count(run) else -1
    if not step_count(run) or not 0 <= begin <= int(steps["step"][-1]):
        raise UnusableInput(f"the run {run.name!r} has no step since {since.text}: give an earlier --since")
    return begin


def _each(runs: Mapping[str, Run]) -> Iterator[tuple[str, Run]]:
    """The runs one after the other; which one it is, where somebody looks and there is more than one."""
    shown = sys.stderr.isatty() and len(runs) > 1
    for number, (name, run) in enumerate(runs.items(), 1):
        if shown:
            now = f"reading {number} of {len(runs)}: {terminal_text(name)}"
            print(f"\r\x1b[K{now}", end="", file=sys.stderr, flush=True)
        _usable(run)
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        yield name, run


# --- report ---


def _report(arguments: argparse.Namespace) -> int:
    runs = _runs(arguments)
    reports = (Report.of(name, run, _begin(run, arguments.since)) for name, run in _each(runs))
    if arguments.json:
        summaries = [report.as_json() for report in reports]
        write_json(sys.stdout, {"version": JSON_VERSION, "logdir": arguments.logdir, "runs": summaries})
    elif arguments.html is not None:
        written = report_page.page(list(reports), arguments.logdir)
        with _output(arguments.html, binary=False) as stream:
            stream.write(written)
    else:
        for index, report in enumerate(reports):
            if index:
                print()
            print_report(report, arguments.logdir)
    return 0


# --- check ---


def _check(arguments: argparse.Namespace) -> int:
    grave = _grave(arguments.fail_on, arguments.max_severity)
    results: list[dict[str, Any]] = []
    alone: dict[str, int] = {}  # events as grave, in runs without a finding
    for name, run in _each(_runs(arguments)):
        report = Report.of(name, run, _begin(run, arguments.since) if step_count(run) else None)
        total, skipped = step_count(report.record), skipped_steps(report.record)
        found = [finding for finding in report.findings if SEVERITIES.index(finding.severity) >= grave]
        if total == 0:
            found.append(_NO_STEPS)
        if arguments.max_skip_rate is not None and total:
            if skipped is None:
                found.append(_SKIPS_UNKNOWN)
            elif skipped / attempts(report.record) > arguments.max_skip_rate:
                found.append(_skip_rate_finding(report, skipped, arguments.max_skip_rate))
        results.append(
            {
                "run": name,
                "passed": not found,
                "steps": total,
                "attempts": attempts(report.record),
                "skipped_steps": skipped,
                "inferred": is_scalar_log(report.record),
                "findings": found,
            }
        )
        alone[name] = 0 if found else sum(SEVERITIES.index(event.severity) >= max(grave, 1) for event in report.events)
    passed = all(result["passed"] for result in results)
    if arguments.json:
        for result in results:
            result["findings"] = [dataclasses.asdict(finding) for finding in result["findings"]]
        write_json(sys.stdout, {"version": JSON_VERSION, "passed": passed, "runs": results})
    else:
        with _whole_even_if_unread():
            _print_check(results, alone)
    return 0 if passed else FOUND


def _grave(fail_on: str | None, max_severity: str | None) -> int:
    """The place among the severities from which on a finding fails the check."""
    if fail_on is None and max_severity is None:
        fail_on = "error"
    from_fail_on = None if fail_on is None else SEVERITIES.index(fail_on)
    from_max = None if max_severity is None else SEVERITIES.index(max_severity) + 1
    if from_fail_on is not None and from_max is not None and from_fail_on != from_max:
        raise UnusableInput(
            f"--fail-on {fail_on} and --max-severity {max_severity} contradict each other: give one of them"
        )
    return from_fail_on if from_fail_on is not None else from_max or 0


_NO_STEPS = Finding(
    "no_steps",
    "error",
    "No steps were recorded",
    "The log holds no step.",
    "Check that the training loop steps the wrapped optimizer, and that the run got that far.",
    OF_THE_RUN,
)


_SKIPS_UNKNOWN = Finding(
    "max_skip_rate",
    "error",
    "The share of skipped steps is unknown",
    "The run was read from a TensorBoard scalar log, which has no loss scale.",
    "Log the loss scale, or give its tag with --map loss_scale=TAG; or check without --max-skip-rate.",
    OF_THE_RUN,
)


def _skip_rate_finding(report: Report, skipped: int, allowed: float) -> Finding:
    total = attempts(report.record)
    evidence = f"{skipped:,} of {total:,} steps ({share_text(skipped, total)}), allowed are {100 * allowed:g} %."
    steps = steps_of(event.step for event in report.events if event.kind == "skip")
    remedy = "Read tbnum report for the causes."
    return Finding("max_skip_rate", "error", "Too many steps were skipped", evidence, remedy, steps)


def _print_check(results: Sequence[Mapping[str, Any]], alone: Mapping[str, int]) -> None:
    for result in results:
        total, skipped = result["steps"], result["skipped_steps"]
        verdict = "ok    " if result["passed"] else "FAILED"
        share = "skips unknown"
        if skipped is not None:
            share = f"{skipped:,} skipped, {share_text(skipped, result['attempts'])}"
        if result["inferred"]:
            share += ", inferred from TensorBoard scalars"
        print(f"{verdict}  {terminal_text(result['run'])}  ({count_text(total, 'step')}, {share})")
        for finding in result["findings"]:
            print_finding(finding, "        ")
        if count := alone[result["run"]]:
            print(f"        {count_text(count, 'skip')} to read about in tbnum report; too few to be a finding")
    sys.stdout.flush()


@contextmanager
def _whole_even_if_unread() -> Iterator[None]:
    """A closed pipe must not turn the verdict into a success."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- export ---


def _export(arguments: argparse.Namespace) -> int:
    form, binary = arguments.format, arguments.format in BINARY
    if binary and arguments.events:
        raise UnusableInput(f"{form} is for columns of numbers: export --events as csv, json or jsonl")
    if binary and arguments.output == "-" and sys.stdout.isatty():
        raise UnusableInput(f"{form} is binary: give a file with -o FILE")
    if form == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UnusableInput("parquet needs pyarrow: pip install pyarrow")
    run = _usable(_one_run(arguments))
    with _output(arguments.output, binary=binary) as stream:
        if form == "npz":
            np.savez_compressed(stream, **run.steps)  # type: ignore[arg-type]
        elif form == "parquet":
            export.write_steps_parquet(stream, run)
        else:
            steps, events = {
                "csv": (export.write_steps_csv, export.write_events_csv),
                "json": (export.write_steps_json, export.write_events_json),
                "jsonl": (export.write_steps_jsonl, export.write_events_jsonl),
            }[form]
            (events if arguments.events else steps)(stream, run)
    return 0


@contextmanager
def _output(name: str, *, binary: bool) -> Iterator[IO[Any]]:
    if name == "-":
        yield sys.stdout.buffer if binary else sys.stdout
        return
    try:
        with open(name, "wb") if binary else open(name, "w", encoding="utf-8", newline="") as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UnusableInput(f"cannot write {name!r}: {error.strerror or error}") from None


# --- tail ---

PROGRESS_SECONDS = 10.0  # between two lines where the output is no terminal


def _tail(arguments: argparse.Namespace) -> int:
    """Prints the last events, then follows until the run is closed or Ctrl-C."""
    runs = _runs(arguments)
    name = max(runs, key=lambda name: _or(runs[name].totals.last_wall_time, 0.0))
    run = _usable(runs[name])
    if len(runs) > 1:
        print(f"following {name!r}, the newest of {len(runs)} runs; --run chooses another")
    progress = _Progress()
    try:
        events = run.events
        for event in worth_reading(events)[-3:]:
            print_event(event, "")
        told = {_identity(event) for event in events}
        while True:
            ended = run.totals.ended  # before the look for events: what was written before the end is told
            if run.refresh():
                for event in run.events:
                    if _identity(event) not in told:
                        told.add(_identity(event))
                        progress.end()
                        print_event(event, "")
            progress.show(run)
            if ended is not None:
                progress.end()
                print(f"the run has {'ended' if ended == 'closed' else 'crashed'}")
                return 0
            time.sleep(arguments.interval)
    except KeyboardInterrupt:
        progress.end()
        return 0


def _identity(event: Event) -> tuple[Any, ...]:
    return event.wall_time, event.step, event.kind, event.optimizer


def _or(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value


class _Progress:
    """One line that is written over in a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._shown = ""
        self._next = 0.0

    def show(self, run: Run) -> None:
        totals, losses = run.totals, run.steps.get("loss")
        skipped = "unknown" if totals.skipped_steps is None else f"{totals.skipped_steps:,} of {totals.steps:,}"
        text = f"step {totals.last_step}  skipped {skipped}"
        if losses is not None and len(losses) and not math.isnan(losses[-1]):
            text += f"  loss {number_text(float(losses[-1]))}"
        if not math.isnan(totals.last_loss_scale):
            text += f"  scale {scale_text(totals.last_loss_scale)}"
        if text == self._shown or (not self._terminal and time.monotonic() < self._next):
            return
        print(f"\r\x1b[K{text}" if self._terminal else text, end="" if self._terminal else "\n", flush=True)
        self._shown, self._next = text, time.monotonic() + PROGRESS_SECONDS

    def end(self) -> None:
        """Events go below the line."""
        if self._terminal and self._shown:
            print(flush=True)
        self._shown = ""


if __name__ == "__main__":
    sys.exit(main())
