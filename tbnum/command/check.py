"""`tbnum check`: for CI, a verdict on each run as an exit code."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tbnum.command.inputs import (
    UNUSABLE,
    NoStepSince,
    Since,
    UnusableInput,
    add_since,
    begin_of,
    of_each,
    rate,
    runs_of,
)
from tbnum.command.output import STYLES, print_line
from tbnum.command.printing import print_finding
from tbnum.explain import Finding
from tbnum.explain.finding import OF_THE_RUN, steps_of
from tbnum.explain.record import Record, attempts, is_scalar_log
from tbnum.explain.summary import step_count
from tbnum.explain.totals import skipped_steps
from tbnum.explain.words import clock_text, count_text, share_text
from tbnum.export import JSON_VERSION, write_json
from tbnum.log.reader import Run
from tbnum.log.schema import SEVERITIES
from tbnum.report import Report, run_title

__all__ = ["FOUND", "configure", "run"]

FOUND = 1


def configure(command: argparse.ArgumentParser) -> None:
    command.add_argument("--max-skip-rate", type=rate, metavar="R", help="highest share of skipped steps, 0 to 1")
    command.add_argument(
        "--fail-on", choices=SEVERITIES, help="fail on findings of this severity and graver (default: error)"
    )
    command.add_argument("--max-severity", choices=SEVERITIES, help="the same by the gravest finding allowed")
    add_since(command)
    command.add_argument("--json", action="store_true", help="write JSON")


def run(arguments: argparse.Namespace) -> int:
    grave = _grave(arguments.fail_on, arguments.max_severity)
    results, all_read = of_each(runs_of(arguments), lambda name, run: _judge(name, run, arguments, grave))
    passed = all_read and all(result.passed for result in results)
    if arguments.json:
        runs = [result.as_json() for result in results]
        write_json(sys.stdout, {"version": JSON_VERSION, "passed": passed, "runs": runs})
    else:
        with _whole_even_if_unread():
            _print(results)
    return 0 if passed else FOUND if all_read else UNUSABLE


@dataclasses.dataclass(frozen=True)
class _Result:
    run: str
    title: str
    steps: int
    attempts: int
    skipped_steps: int | None  # None: unknown
    inferred: bool
    findings: Sequence[Finding]
    events_alone: int  # as grave, in a run without a finding

    @staticmethod
    def of(
        name: str, run: Run, found: Sequence[Finding], record: Record | None = None, events_alone: int = 0
    ) -> _Result:
        """Of the part `record` of a run; None: all of it."""
        part = run if record is None else record
        return _Result(
            run=name,
            title=run_title(name, run),
            steps=step_count(part),
            attempts=attempts(part),
            skipped_steps=skipped_steps(part),
            inferred=is_scalar_log(part),
            findings=found,
            events_alone=events_alone,
        )

    @property
    def passed(self) -> bool:
        return not self.findings

    def as_json(self) -> Mapping[str, Any]:
        return {
            "run": self.run,
            "passed": self.passed,
            "steps": self.steps,
            "attempts": self.attempts,
            "skipped_steps": self.skipped_steps,
            "inferred": self.inferred,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }


def _judge(name: str, run: Run, arguments: argparse.Namespace, grave: int) -> _Result:
    try:
        begin = begin_of(run, arguments.since) if step_count(run) else None
    except NoStepSince:
        if arguments.since.wall_time is None or run.totals.ended is not None or is_scalar_log(run):
            raise
        return _Result.of(name, run, [_stopped(run, arguments.since)])
    report = Report.of(name, run, begin)
    total, skipped = step_count(report.record), skipped_steps(report.record)
    found = [finding for finding in report.findings if _fails(finding, grave)]
    allowed = arguments.max_skip_rate
    if allowed is not None and total:
        if skipped is None:
            found.append(_SKIPS_UNKNOWN)
        elif skipped / attempts(report.record) > allowed:
            found.append(_skip_rate_finding(report, skipped, allowed))
    alone = 0 if found else sum(SEVERITIES.index(event.severity) >= max(grave, 1) for event in report.events)
    return _Result.of(name, run, found, record=report.record, events_alone=alone)


def _fails(finding: Finding, grave: int) -> bool:
    """A run without steps has nothing to pass with, whatever is allowed."""
    return finding.rule == "no_steps" or SEVERITIES.index(finding.severity) >= grave


def _grave(fail_on: str | None, max_severity: str | None) -> int:
    """The lowest place among the severities of a finding that fails the check."""
    if fail_on is None and max_severity is None:
        fail_on = "error"
    from_fail_on = None if fail_on is None else SEVERITIES.index(fail_on)
    from_max = None if max_severity is None else SEVERITIES.index(max_severity) + 1
    if from_fail_on is not None and from_max is not None and from_fail_on != from_max:
        raise UnusableInput(
            f"--fail-on {fail_on} and --max-severity {max_severity} contradict each other: give one of them"
        )
    return from_fail_on if from_fail_on is not None else from_max or 0


_SKIPS_UNKNOWN = Finding(
    "max_skip_rate",
    "error",
    "The share of skipped steps is unknown",
    "The run was read from a TensorBoard scalar log, which has no loss scale.",
    "Log the loss scale, or give its tag with --map loss_scale=TAG; or check without --max-skip-rate.",
    OF_THE_RUN,
)


def _stopped(run: Run, since: Since) -> Finding:
    """Of a run that has not ended and makes no steps: nothing else would say so."""
    last, clock = run.totals.last_step, clock_text(run.totals.last_wall_time, "%Y-%m-%d %H:%M:%S")
    return Finding(
        "no_step_since",
        "error",
        f"No step since {since.text}",
        f"The run has not ended, and its last step, {last}, was at {clock}: it hangs, or was killed.",
        "Look at its process. If the run is over, leave it out with --run NAME of another, or move its folder.",
        OF_THE_RUN,
    )


def _skip_rate_finding(report: Report, skipped: int, allowed: float) -> Finding:
    total = attempts(report.record)
    evidence = f"{skipped:,} of {total:,} steps ({share_text(skipped, total)}), allowed are {100 * allowed:g} %."
    steps = steps_of(event.step for event in report.events if event.kind == "skip")
    remedy = "Read tbnum report for the causes."
    return Finding("max_skip_rate", "error", "Too many steps were skipped", evidence, remedy, steps)


def _print(results: Sequence[_Result]) -> None:
    for result in results:
        share = "skips unknown"
        if result.skipped_steps is not None:
            share = f"{result.skipped_steps:,} skipped, {share_text(result.skipped_steps, result.attempts)}"
        if result.inferred:
            share += ", inferred from TensorBoard scalars"
        verdict = ("ok    ", "green") if result.passed else ("FAILED", STYLES["error"])
        print_line(verdict, f"  {result.title}  ({count_text(result.steps, 'step')}, {share})")
        for finding in result.findings:
            print_finding(finding, "        ")
        if result.events_alone:
            alone = count_text(result.events_alone, "skip")
            print(f"        {alone} to read about in tbnum report; too few to be a finding")
    sys.stdout.flush()


@contextmanager
def _whole_even_if_unread() -> Iterator[None]:
    """A closed pipe must not turn the verdict into a success."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
