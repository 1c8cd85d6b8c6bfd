"""Reports, events and findings as text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tbnum.command.output import STYLES, print_line, print_table, print_wrapped
from tbnum.explain import CAUSES, Finding
from tbnum.explain.summary import group_events, worth_reading
from tbnum.explain.words import clock_text, number_text, scale_text, terminal_text
from tbnum.log.schema import Event
from tbnum.report import Report

__all__ = ["print_event", "print_finding", "print_report", "print_runs"]

EVENTS_SHOWN = 20


def print_runs(reports: Sequence[Report]) -> None:
    """A line for each run."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold")
    for heading in ("steps", "skips", "spikes", "findings", "last loss", "scale"):
        table.add_column(heading, justify="right", no_wrap=True)
    for report in reports:
        table.add_row(*_cells(report))
    print_table(table)


def _cells(report: Report) -> list[Text]:
    summary = report.summary
    skips = summary["skipped"]["steps"] if summary["steps"] else 0
    spikes = sum(event.kind.endswith("_spike") for event in report.events)
    loss, scale = summary.get("loss"), summary.get("loss_scale")
    gravest = min((finding.severity for finding in report.findings), key=_gravity, default="info")
    words = [
        report.title,
        f"{summary['steps']:,}",
        "unknown" if skips is None else f"{skips:,}",
        f"{spikes:,}",
        f"{len(report.findings)} {gravest}" if report.findings else "none",
        number_text(loss["last"]) if loss else "-",
        scale_text(scale["last"]) if scale and not math.isnan(scale["last"]) else "-",
    ]
    cells = [Text(terminal_text(word)) for word in words]
    cells[4].stylize(STYLES[gravest])
    return cells


def _gravity(severity: str) -> int:
    return ("error", "warning", "info").index(severity)


def print_report(report: Report, logdir: str) -> None:
    print_line((f"{report.title}  ({report.state()})", STYLES["head"]))
    for label, text in report.numbers():
        print_wrapped(text, f"  {label:<10}  ")
    _print_causes(report.summary)
    _print_events(report, logdir)
    if report.findings:
        print("\n  Findings")
        for finding in report.findings:
            print_finding(finding, "    ")
    for problem in report.run.problems:
        print_wrapped(problem, "  problem     ")


def _print_causes(summary: Mapping[str, Any]) -> None:
    causes = summary["skipped"]["causes"]
    if not causes:
        return
    print(f"\n  {'Skips by cause':<20}  {'skips':>7}  {'first':>9}  {'last':>9}")
    for cause, row in causes.items():
        print(f"    {cause:<20}{row['skips']:>7,}  {row['first_step']:>9}  {row['last_step']:>9}  {CAUSES[cause]}")


def _print_events(report: Report, logdir: str) -> None:
    groups = group_events(worth_reading(report.events))
    if not groups:
        return
    print("\n  Events worth reading")
    for group in groups[:EVENTS_SHOWN]:
        print_event(group.first, "    ")
        if group.more:
            print(f"      {group.more}")
    if len(groups) > EVENTS_SHOWN:
        export = shlex.join(["tbnum", "export", logdir, "--run", report.name, "--events"])
        print(f"    … and {len(groups) - EVENTS_SHOWN:,} more: {export}")


def print_event(event: Event, indent: str) -> None:
    label = f"{event.kind}, {event.cause}" if event.cause else event.kind
    clock = clock_text(event.wall_time)
    print_line(f"{indent}step {event.step}  {clock}  ", (event.severity, STYLES[event.severity]), f"  {label}")
    print_wrapped(event.message, indent + "  ")
    if event.severity != "info":
        print_wrapped(event.remedy, indent + "  ")


def print_finding(finding: Finding, indent: str) -> None:
    print_line(indent, (finding.severity, STYLES[finding.severity]), f"  {finding.title}")
    print_wrapped(finding.evidence, indent + "  ")
    print_wrapped(finding.remedy, indent + "  ")
