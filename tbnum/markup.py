"""HTML of small things, as a notebook and the report page show them. All text is escaped. Imports nothing of tbnum."""

from __future__ import annotations

import html
from typing import Protocol

__all__ = ["STYLE", "card", "chip", "escaped", "event_card", "shown"]


def escaped(text: object) -> str:
    return html.escape(str(text))


def chip(severity: str) -> str:
    return f'<span class="chip {severity}">{severity}</span>'


def card(severity: str, head: str, message: str, remedy: str = "", *, element: str = "div") -> str:
    """One event or finding: what, how grave, in a sentence, and what to do. `head` is HTML."""
    advice = f"<p class=remedy>{escaped(remedy)}</p>" if remedy else ""
    return f'<{element} class="card {severity}">{head} {chip(severity)}<p>{escaped(message)}</p>{advice}</{element}>'


class _Event(Protocol):
    @property
    def step(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def cause(self) -> str | None: ...
    @property
    def message(self) -> str: ...
    @property
    def remedy(self) -> str: ...


def event_card(event: _Event, more: str = "", *, element: str = "div") -> str:
    """`more`: of the events that are like this one."""
    label = f"{event.kind}, {event.cause}" if event.cause else event.kind
    message = f"{event.message} {more}" if more else event.message
    remedy = event.remedy if event.severity != "info" else ""
    head = f"<b>step {event.step:,}</b> {escaped(label)}"
    return card(event.severity, head, message, remedy, element=element)


def shown(content: str) -> str:
    """With its style, which reaches nothing else on the page: what `_repr_html_` gives."""
    return f"<div class=tbnum><style>{STYLE}</style>{content}</div>"


_RULES = """
color-scheme:light dark;--ink:#222;--quiet:#666;--paper:#fff;--line:#ddd;--loss:#1f6feb;--scale:#7a3ff2;
--error:#c8102e;--warning:#b25e00;--info:#5a7d2a;--nonfinite:#c8102e;
font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
@media (prefers-color-scheme:dark){--ink:#e6e6e6;--quiet:#a0a0a0;--paper:#1b1b1f;--line:#3a3a40;--loss:#6cb0ff;
--scale:#b794ff;--error:#ff6b7d;--warning:#ffb04d;--info:#a8cf6b;--nonfinite:#ff6b7d}
h3{margin:1.5rem 0 .5rem}.quiet{color:var(--quiet);margin:.2rem 0}figure{margin:1rem 0}
figcaption,.label,.step{font-size:12px;color:var(--quiet);fill:var(--quiet)}.label{text-anchor:end}
svg{width:100%;height:auto;display:block}path{fill:none}.grid{stroke:var(--line)}
.loss{stroke:var(--loss);stroke-width:1.2}.scale{stroke:var(--scale);stroke-width:1.2}
.norm{stroke-width:1.2;stroke:#1a936f}.n1{stroke:#d1495b}.n2{stroke:#8d6a9f}.n3{stroke:#9a8c2c}
.mark path{stroke-opacity:.25}.mark.error{stroke:var(--error);fill:var(--error)}
.mark.warning{stroke:var(--warning);fill:var(--warning)}.mark.info{stroke:var(--info);fill:var(--info)}
.mark.nonfinite{stroke:var(--nonfinite);fill:var(--paper)}text.error{fill:var(--error)}
text.warning{fill:var(--warning)}text.info{fill:var(--info)}text.nonfinite{fill:var(--nonfinite)}
table{border-collapse:collapse}th{text-align:left;font-weight:600;padding:.15rem 1rem .15rem 0;vertical-align:top}
td{padding:.15rem 1rem .15rem 0;white-space:pre-wrap;text-align:left}.causes td{text-align:right}
.causes .words{text-align:left}.cards{list-style:none;padding:0}
.card{border-left:4px solid var(--info);padding:.1rem .8rem;margin:.6rem 0}
.card.warning{border-color:var(--warning)}.card.error{border-color:var(--error)}
.card p{margin:.2rem 0;overflow-wrap:anywhere}.remedy{color:var(--quiet)}
.chip{font-size:12px;color:var(--info)}.chip.warning{color:var(--warning)}.chip.error{color:var(--error)}
"""

STYLE = f".tbnum{{{_RULES}}}"
"""All rules are nested in `.tbnum`: a notebook's own tables and headings stay as they are."""
