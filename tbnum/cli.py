"""The command `tbnum`: report, check, export and tail, from the log alone. Loads no torch.

Exit codes: 0 done (check: nothing found), 1 check found something, 2 unusable input.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import os
import shlex
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from tbnum.explain import CAUSES, Finding, explain_run, findings
from tbnum.explain.summary import group_events, skipped_steps, step_count, summarize, worth_reading
from tbnum.explain.words import count_text, number_text, scale_text, share_text
from tbnum.log.reader import Run, read
from tbnum.log.schema import SEVERITIES, Event

__all__ = ["main"]

JSON_VERSION = 1
"""Of the JSON that report, check and export write; raised when a key changes its meaning or goes."""

FOUND, UNUSABLE = 1, 2
WIDTH = 100
EVENTS_SHOWN = 20
COLOURS = {"error": "31", "warning": "33"}


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tbnum",
        description="What the numerics of your training runs did, from the logs that tbnum.wrap() wrote.",
        epilog="Exit codes: 0 done (check: nothing found), 1 check found something, 2 unusable input.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("logdir", metavar="LOGDIR", help="a folder with runs in it, or in folders below it")
        sub.add_argument("--run", metavar="NAME", help="one run: its folder below LOGDIR, '.' for LOGDIR itself")
        sub.set_defaults(command=command)
        return sub

    report = add("report", _report, "Print what happened in each run: skips by cause, loss scale, clipping, findings.")
    report.add_argument("--json", action="store_true", help="write JSON: all events, and the numbers of the table")

    check = add("check", _check, "For CI: exit 1 if a run has findings graver than allowed or skips too much.")
    check.add_argument("--max-skip-rate", type=_rate, metavar="R", help="highest share of skipped steps, 0 to 1")
    check.add_argument(
        "--max-severity", choices=SEVERITIES, default="warning", help="gravest finding allowed (default: %(default)s)"
    )
    check.add_argument("--json", action="store_true", help="write JSON")

    export = add("export", _export, "Write a run's steps, or its events, at full resolution.")
    export.add_argument("--format", choices=("csv", "json", "npz"), default="csv", help="(default: %(default)s)")
    export.add_argument("--events", action="store_true", help="the events with cause and message, not the steps")
    export.add_argument("-o", "--output", default="-", metavar="FILE", help="'-' for standard output (default)")

    tail = add("tail", _tail, "Follow a run: new events as they happen, and how far it is. Ctrl-C ends it.")
    tail.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two looks")
    return parser


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 <= rate <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return rate


def _seconds(text: str) -> float:
    seconds = float(text)
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
            runs = read(logdir, explain=explain_run)
    except OSError as error:
        reason = f"cannot read {logdir!r}: {error.strerror}" if error.strerror else str(error)
        raise UnusableInput(f"{reason}; give the logdir of tbnum.wrap(), or a folder above it") from None
    for warning in caught:
        print(f"tbnum: {warning.message}", file=sys.stderr)
    if not runs:
        raise UnusableInput(f"no runs in {logdir!r}: give the logdir of tbnum.wrap(), or a folder above it")
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


# --- report ---


def _report(arguments: argparse.Namespace) -> int:
    runs = _runs(arguments)
    if arguments.json:
        summaries = [_run_as_json(name, _usable(run)) for name, run in runs.items()]
        _write_json(sys.stdout, {"version": JSON_VERSION, "logdir": arguments.logdir, "runs": summaries})
        return 0
    for index, (name, run) in enumerate(runs.items()):
        if index:
            print()
        _print_report(arguments.logdir, name, _usable(run))
    return 0


def _run_as_json(name: str, run: Run) -> dict[str, Any]:
    events = run.events
    summary = summarize(run, events, findings(run, events))
    problems = {"problems": run.problems}
    return {"run": name, "ended": run.totals.ended, **summary, **problems, "events": _as_records(events)}


def _print_report(logdir: str, name: str, run: Run) -> None:
    events = run.events
    found = findings(run, events)
    summary = summarize(run, events, found)
    _print_heading(name, run, summary)
    _print_numbers(summary)
    _print_causes(summary)
    _print_events(events, logdir, name)
    if found:
        print("\n  Findings")
        for finding in found:
            _print_finding(finding, "    ")
    for problem in run.problems:
        _print_wrapped(problem, "  unreadable  ")


def _print_heading(name: str, run: Run, summary: Mapping[str, Any]) -> None:
    state = {"closed": "ended", "crash": "crashed"}.get(run.totals.ended or "", "running, or killed")
    parts = [state]
    if summary["steps"]:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(summary["first_wall_time"]))
        parts += [f"began {began}", f"took {_duration(summary['last_wall_time'] - summary['first_wall_time'])}"]
    if summary["sessions"] > 1:
        parts.append(count_text(summary["sessions"], "session"))
    title = os.path.basename(os.path.abspath(run.folder)) if name == "." else name
    print(f"{title}  ({', '.join(parts)})")


def _print_numbers(summary: Mapping[str, Any]) -> None:
    if not summary["steps"]:
        print("  steps       none recorded yet")
        return
    skipped = summary["skipped"]
    rows = [
        ("steps", f"{summary['steps']:,}  ({summary['first_step']} to {summary['last_step']})"),
        ("skipped", f"{skipped['steps']:,}  ({share_text(skipped['steps'], summary['steps'])})"),
    ]
    if loss := summary["loss"]:
        text = f"first {number_text(loss['first'])}   last {number_text(loss['last'])}"
        if loss["best"] is not None:
            text += f"   best {number_text(loss['best'])} at step {loss['best_step']}"
        if loss["nonfinite_steps"]:
            text += f"   non-finite in {count_text(loss['nonfinite_steps'], 'step')}"
        rows.append(("loss", text))
    if scale := summary["loss_scale"]:
        text = f"start {scale_text(scale['first'])}   last {scale_text(scale['last'])}"
        if scale["lowest"] < min(scale["first"], scale["last"]):
            text += f"   lowest {scale_text(scale['lowest'])}"
        if scale["held"] is not None:
            text += f"   longest held {scale_text(scale['held'])} ({count_text(scale['held_steps'], 'step')})"
        rows.append(("loss scale", text))
    for clip in summary["clipping"]:
        text = f"max_norm {number_text(clip['max_norm'])}   " if clip["max_norm"] is not None else ""
        text += f"{share_text(clip['clipped'], clip['known'])} of the steps clipped"
        rows.append(("clipping", f"{clip['optimizer']}: {text}" if clip["optimizer"] else text))
    for label, text in rows:
        _print_wrapped(text, f"  {label:<10}  ")


def _print_causes(summary: Mapping[str, Any]) -> None:
    causes = summary["skipped"]["causes"]
    if not causes:
        return
    print(f"\n  {'Skips by cause':<20}  {'skips':>7}  {'first':>9}  {'last':>9}")
    for cause, row in causes.items():
        print(f"    {cause:<20}{row['skips']:>7,}  {row['first_step']:>9}  {row['last_step']:>9}  {CAUSES[cause]}")


def _print_events(events: Sequence[Event], logdir: str, name: str) -> None:
    groups = group_events(worth_reading(events))
    if not groups:
        return
    print("\n  Events worth reading")
    for group in groups[:EVENTS_SHOWN]:
        _print_event(group.first, "    ")
        if group.count > 1:
            print(f"      and {group.count - 1:,} more like it, to step {group.last_step}")
    if len(groups) > EVENTS_SHOWN:
        export = shlex.join(["tbnum", "export", logdir, "--run", name, "--events"])
        print(f"    … and {len(groups) - EVENTS_SHOWN:,} more: {export}")


def _print_event(event: Event, indent: str) -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(event.wall_time))
    label = f"{event.kind}, {event.cause}" if event.cause else event.kind
    print(f"{indent}step {event.step}  {clock}  {_coloured(event.severity)}  {label}")
    _print_wrapped(event.message, indent + "  ")
    if event.severity != "info":
        _print_wrapped(event.remedy, indent + "  ")


def _print_finding(finding: Finding, indent: str) -> None:
    print(f"{indent}{_coloured(finding.severity)}  {finding.title}")
    _print_wrapped(finding.evidence, indent + "  ")
    _print_wrapped(finding.remedy, indent + "  ")


def _print_wrapped(text: str, first: str) -> None:
    """Prints `text` behind `first`, further lines below its beginning."""
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    further = " " * len(first)
    if text:
        print(textwrap.fill(text, width, initial_indent=first, subsequent_indent=further, break_on_hyphens=False))


def _coloured(severity: str) -> str:
    if severity in COLOURS and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return f"\x1b[{COLOURS[severity]}m{severity}\x1b[0m"
    return severity


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


# --- check ---


def _check(arguments: argparse.Namespace) -> int:
    allowed = SEVERITIES.index(arguments.max_severity)
    results: list[dict[str, Any]] = []
    for name, run in _runs(arguments).items():
        total, skipped = step_count(_usable(run)), skipped_steps(run)
        found = [f for f in findings(run, run.events) if SEVERITIES.index(f.severity) > allowed]
        if total == 0:
            found.append(Finding("no_steps", "error", "No steps were recorded", "The log holds no step.", _NO_STEPS))
        if arguments.max_skip_rate is not None and total and skipped / total > arguments.max_skip_rate:
            found.append(_skip_rate_finding(skipped, total, arguments.max_skip_rate))
        results.append({"run": name, "passed": not found, "steps": total, "skipped_steps": skipped, "findings": found})
    passed = all(result["passed"] for result in results)
    if arguments.json:
        for result in results:
            result["findings"] = [dataclasses.asdict(finding) for finding in result["findings"]]
        _write_json(sys.stdout, {"version": JSON_VERSION, "passed": passed, "runs": results})
    else:
        with _whole_even_if_unread():
            _print_check(results)
    return 0 if passed else FOUND


_NO_STEPS = "Check that the training loop steps the wrapped optimizer, and that the run got that far."


def _skip_rate_finding(skipped: int, total: int, allowed: float) -> Finding:
    evidence = f"{skipped:,} of {total:,} steps ({share_text(skipped, total)}), allowed are {100 * allowed:g} %."
    return Finding(
        "max_skip_rate", "error", "Too many steps were skipped", evidence, "Read tbnum report for the causes."
    )


def _print_check(results: Sequence[Mapping[str, Any]]) -> None:
    for result in results:
        total, skipped = result["steps"], result["skipped_steps"]
        verdict = "ok    " if result["passed"] else "FAILED"
        print(f"{verdict}  {result['run']}  ({total:,} steps, {skipped:,} skipped, {share_text(skipped, total)})")
        for finding in result["findings"]:
            _print_finding(finding, "        ")
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
    if arguments.format == "npz":
        if arguments.events:
            raise UnusableInput("npz holds numbers only: export --events as csv or json")
        if arguments.output == "-" and sys.stdout.isatty():
            raise UnusableInput("npz is binary: give a file with -o FILE")
    run = _usable(_one_run(arguments))
    with _output(arguments.output, binary=arguments.format == "npz") as stream:
        if arguments.format == "npz":
            np.savez_compressed(stream, **run.steps)  # type: ignore[arg-type]
        elif arguments.format == "json":
            (_write_events_json if arguments.events else _write_steps_json)(stream, run)
        else:
            (_write_events_csv if arguments.events else _write_steps_csv)(stream, run)
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


def _measured_nan(run: Run, name: str) -> np.ndarray:
    """Where a NaN of a column is a measured one: (S,) bool. Everywhere else it means unknown."""
    *prefix, column = name.split("/")
    nan = np.isnan(run.steps[name])
    if column == "loss" and "micro_batches" in run.steps:
        return nan & (run.steps["micro_batches"] >= 1)
    count = "/".join([*prefix, "nonfinite_tensors"])
    if column in ("grad_norm", "grad_norm_clipped") and count in run.steps:
        return nan & ~np.isnan(run.steps[count])
    return np.zeros_like(nan)


CSV_ROWS = 20_000  # as text in memory at once


def _write_steps_csv(stream: IO[str], run: Run) -> None:
    """A row a step. Unknown is empty, a measured NaN is `nan`."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(run.steps)
    nan = {name: _measured_nan(run, name) for name, values in run.steps.items() if values.dtype.kind == "f"}
    for start in range(0, step_count(run), CSV_ROWS):
        rows = slice(start, start + CSV_ROWS)
        columns = []
        for name, values in run.steps.items():
            part = values[rows]
            if part.dtype.kind == "f":
                known = ~np.isnan(part) | nan[name][rows]
                columns.append(
                    [value if told else "" for value, told in zip(part.tolist(), known.tolist(), strict=True)]
                )
            else:
                columns.append(part.astype(np.int64).tolist())
        writer.writerows(zip(*columns, strict=True))


EVENT_FIELDS = tuple(field.name for field in dataclasses.fields(Event))


def _write_events_csv(stream: IO[str], run: Run) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(EVENT_FIELDS)
    for event in run.events:
        record = {name: getattr(event, name) for name in EVENT_FIELDS}
        record["data"] = json.dumps(_plain(event.data), ensure_ascii=False)
        writer.writerow(record.values())


def _write_steps_json(stream: IO[str], run: Run) -> None:
    """Column by column. Unknown is null, a measured NaN the string "NaN"."""
    head = json.dumps(_plain({"version": JSON_VERSION, "run": run.name, "meta": run.meta}), ensure_ascii=False)
    stream.write(head[:-1] + ', "columns": {')
    for index, (name, values) in enumerate(run.steps.items()):
        listed: list[Any] = values.tolist()
        if values.dtype.kind == "f":
            for row in np.flatnonzero(~np.isfinite(values)).tolist():
                listed[row] = _plain(listed[row])
            for row in np.flatnonzero(np.isnan(values) & ~_measured_nan(run, name)).tolist():
                listed[row] = None
        stream.write(f"{', ' if index else ''}{json.dumps(name)}: {json.dumps(listed, allow_nan=False)}")
    stream.write("}}\n")


def _write_events_json(stream: IO[str], run: Run) -> None:
    _write_json(stream, {"version": JSON_VERSION, "run": run.name, "events": _as_records(run.events)})


def _as_records(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [{name: getattr(event, name) for name in EVENT_FIELDS} for event in events]


def _write_json(stream: IO[str], value: Any) -> None:
    """Strict JSON: non-finite numbers as the strings "NaN", "Infinity", "-Infinity"."""
    stream.write(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


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
            _print_event(event, "")
        told = {_identity(event) for event in events}
        while True:
            progress.show(run)
            if run.totals.ended is not None:
                progress.end()
                print(f"the run has {'ended' if run.totals.ended == 'closed' else 'crashed'}")
                return 0
            time.sleep(arguments.interval)
            if run.refresh():
                for event in run.events:
                    if _identity(event) not in told:
                        told.add(_identity(event))
                        progress.end()
                        _print_event(event, "")
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
        text = f"step {totals.last_step}  skipped {totals.skipped_steps:,} of {totals.steps:,}"
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
