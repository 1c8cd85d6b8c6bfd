"""HTML of small things, as a notebook and the report page show them, in the panel's colours. All text is escaped."""

from __future__ import annotations

import html
from functools import cache
from typing import Protocol

from tbnum import look

__all__ = ["card", "chip", "escaped", "event_card", "shown", "style"]


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
    title = look.words(event.kind) + (f", {look.words(event.cause)}" if event.cause else "")
    message = f"{event.message} {more}" if more else event.message
    remedy = event.remedy if event.severity != "info" else ""
    head = f"<b>step {event.step:,}</b> {escaped(title)}"
    return card(event.severity, head, message, remedy, element=element)


def shown(content: str) -> str:
    """With its style, which reaches nothing else on the page: what `_repr_html_` gives."""
    return f"<div class=tbnum><style>{style()}</style>{content}</div>"


_RULES = """
color-scheme:light dark;%LIGHT%
font:15px/1.5 Roboto,system-ui,sans-serif;color:var(--text);background:var(--bg);
@media (prefers-color-scheme:dark){%DARK%}
h3{margin:1.5rem 0 .5rem}.quiet{color:var(--text-2);margin:.2rem 0}figure{margin:.8rem 0}
figcaption{font-size:13px}.label,.step,.lane-label,.key,.key-text{font-size:12px;color:var(--text-2);fill:var(--text-2)}
.key,.key-text{margin-left:1rem}
.key::before{content:"";display:inline-block;width:16px;margin-right:6px;vertical-align:3px;
border-top:2px solid var(--line)}
.label{text-anchor:end}.lane-label{font-size:11px}
svg{width:100%;height:auto;display:block}path{fill:none}.grid{stroke:var(--grid)}
.line,.raw,.range{stroke:var(--line);stroke-width:1.5;stroke-linejoin:round}.raw,.range{stroke-opacity:.28}
.bands{stroke:var(--skip-band)}.ticks{stroke:var(--skip-tick)}
.mark path,.mark rect{stroke:var(--mark)}.mark .open{stroke-width:2.4;stroke-linecap:round}
.mark text{font-size:11px;font-weight:600;fill:var(--mark)}.mark rect{fill:var(--bg)}
.grave .full,.grave rect{fill:var(--mark)}.grave text{fill:var(--bg)}
.mark.quiet{--mark:var(--text-2)}.mark.quiet path{stroke-width:1.3}
table{border-collapse:collapse}th{text-align:left;font-weight:600;padding:.15rem 1rem .15rem 0;vertical-align:top}
td{padding:.15rem 1rem .15rem 0;white-space:pre-wrap;text-align:left}.causes td{text-align:right}
.causes .words{text-align:left}.cards{list-style:none;padding:0}
.card{border-left:3px solid var(--accent);padding:.1rem .8rem;margin:.6rem 0}
.card.warning{border-color:var(--backoff)}.card.error{border-color:var(--skip)}
.card p{margin:.2rem 0;overflow-wrap:anywhere}.remedy{color:var(--text-2)}
.chip{font-size:12px;padding:0 7px;border:1px solid var(--border-strong);border-radius:9px}
.chip.warning{background:var(--backoff);border-color:var(--backoff);color:var(--bg)}
.chip.error{background:var(--skip);border-color:var(--skip);color:var(--bg)}
"""


@cache
def style() -> str:
    """All rules are nested in `.tbnum`: a notebook's own tables and headings stay as they are."""
    rules = _RULES
    for theme, names in look.colours().items():
        rules = rules.replace(f"%{theme.upper()}%", "".join(f"--{name}:{value};" for name, value in names.items()))
    return f".tbnum{{{rules}}}"
