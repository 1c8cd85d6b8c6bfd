"""A report as HTML that needs nothing else: no script, no network; the charts are SVG. Loads no torch.

Everything that comes from a log (names, notes, messages) is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from tbnum.charts import charts
from tbnum.explain import CAUSES, Finding
from tbnum.explain.summary import group_events, worth_reading
from tbnum.look import words
from tbnum.markup import card, escaped, event_card, style
from tbnum.report import Report

__all__ = ["head_of", "page", "section"]

EVENTS_SHOWN = 100

PAGE_STYLE = (
    "body{margin:0}main{max-width:1000px;margin:0 auto;padding:1.5rem}"
    "h1{font-size:1.5rem;overflow-wrap:anywhere}"
    "h2{margin-top:2.5rem;border-top:1px solid var(--border);padding-top:1rem;overflow-wrap:anywhere}"
)


def page(reports: Sequence[Report], logdir: str) -> str:
    """The whole file. Some 100 kB a run, however long the run was."""
    made = time.strftime("%Y-%m-%d %H:%M")
    links = "".join(
        f'<li><a href="#run-{number}">{escaped(report.title)}</a></li>' for number, report in enumerate(reports, 1)
    )
    contents = f"<nav><ul>{links}</ul></nav>" if len(reports) > 1 else ""
    runs = "".join(
        f'<section id="run-{number}"><h2>{escaped(report.title)}</h2>{section(report)}</section>'
        for number, report in enumerate(reports, 1)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>tbnum: {escaped(logdir)}</title><style>{style()}{PAGE_STYLE}</style></head><body class=tbnum><main>"
        f"<h1>Numerics of {escaped(logdir)}</h1><p class=quiet>tbnum report, {made}</p>{contents}{runs}"
        "</main></body></html>\n"
    )


def section(report: Report) -> str:
    """All of a run."""
    findings = _findings(report.findings)
    return f"{head_of(report)}{charts(report)}{findings}{_causes(report)}{_events(report)}{_problems(report)}"


def head_of(report: Report) -> str:
    """How a run stands, and its numbers."""
    numbers = "".join(f"<tr><th>{escaped(label)}</th><td>{escaped(text)}</td></tr>" for label, text in report.numbers())
    facts = "  ·  ".join(report.headline())
    return (
        f"<p class=quiet>{escaped(report.state())}</p><p class=headline>{escaped(facts)}</p>"
        f"<table class=numbers>{numbers}</table>"
    )


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<h3>Findings</h3><p>None.</p>"
    rows = (
        card(finding.severity, f"<b>{escaped(finding.title)}</b>", finding.evidence, finding.remedy, element="li")
        for finding in findings
    )
    return f"<h3>Findings</h3>{_list(rows)}"


def _causes(report: Report) -> str:
    causes = report.summary["skipped"]["causes"]
    if not causes:
        return ""
    rows = "".join(
        f"<tr><th>{escaped(words(cause))}</th><td>{row['skips']:,}</td><td>{row['first_step']:,}</td>"
        f"<td>{row['last_step']:,}</td><td class=words>{escaped(CAUSES.get(cause, ''))}</td></tr>"
        for cause, row in causes.items()
    )
    head = "<tr><th>cause</th><td>skips</td><td>first step</td><td>last step</td><td class=words>meaning</td></tr>"
    return f"<h3>Skips by cause</h3><table class=causes>{head}{rows}</table>"


def _events(report: Report) -> str:
    groups = group_events(worth_reading(report.events))
    if not groups:
        return ""
    rows = (event_card(group.first, group.more or "", element="li") for group in groups[:EVENTS_SHOWN])
    left = len(groups) - EVENTS_SHOWN
    rest = f"<p class=quiet>… and {left:,} more: tbnum export --events</p>" if left > 0 else ""
    return f"<h3>Events worth reading</h3>{_list(rows)}{rest}"


def _problems(report: Report) -> str:
    return "".join(f"<p class=quiet>problem: {escaped(problem)}</p>" for problem in report.run.problems)


def _list(rows: Iterable[str]) -> str:
    return f"<ul class=cards>{''.join(rows)}</ul>"
