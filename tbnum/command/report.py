"""`tbnum report`: what happened in each run, as text, JSON or one HTML page."""

from __future__ import annotations

import argparse
import sys

from tbnum import report_page
from tbnum.command.inputs import UNUSABLE, UnusableInput, add_since, begin_of, of_each, runs_of
from tbnum.command.output import opened
from tbnum.command.printing import print_report, print_runs
from tbnum.explain.summary import worth_reading
from tbnum.export import JSON_VERSION, write_json
from tbnum.report import Report

__all__ = ["configure", "run"]


def configure(command: argparse.ArgumentParser) -> None:
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="write JSON: all events, and the numbers of the table")
    form.add_argument("--html", metavar="FILE", help="write one HTML file with charts that needs nothing else")
    add_since(command)


def run(arguments: argparse.Namespace) -> int:
    runs = runs_of(arguments)
    reports, all_read = of_each(runs, lambda name, run: Report.of(name, run, begin_of(run, arguments.since)))
    logdir = " ".join(arguments.logdir)
    if arguments.json:
        summaries = [report.as_json() for report in reports]
        write_json(sys.stdout, {"version": JSON_VERSION, "logdir": logdir, "runs": summaries})
    elif arguments.html is not None:
        written = report_page.page(reports, logdir)
        try:
            with opened(arguments.html, binary=False) as stream:
                stream.write(written)
        except OSError as error:
            raise UnusableInput(f"cannot write {arguments.html!r}: {error.strerror or error}") from None
    else:
        _print(reports, logdir)
    return 0 if all_read else UNUSABLE


def _print(reports: list[Report], logdir: str) -> None:
    """Of several runs a table, and then in full those with something to read about."""
    if len(reports) == 1:
        print_report(reports[0], logdir)
        return
    print_runs(reports)
    silent = 0
    for report in reports:
        if _says_something(report):
            print()
            print_report(report, logdir)
        else:
            silent += 1
    if silent:
        print(f"\n{silent:,} of the {len(reports):,} runs have no more to report; --run NAME shows one in full")


def _says_something(report: Report) -> bool:
    grave = any(finding.severity != "info" for finding in report.findings)
    return bool(grave or worth_reading(report.events) or report.run.problems)
