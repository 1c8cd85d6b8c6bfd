"""A difference as one HTML file that needs nothing else: no script, no network; the charts are SVG."""

from __future__ import annotations

import numpy as np

from tbnum.charts import chart
from tbnum.compare.align import Aligned
from tbnum.compare.difference import Compared, Difference
from tbnum.compare.distance import relative_distance
from tbnum.compare.words import lines, next_step, sentence
from tbnum.markup import card, escaped, style
from tbnum.report_page import PAGE_STYLE

__all__ = ["page"]

DRAWN = ("loss", "grad_norm")


def page(found: Difference, a: Compared, b: Compared, rows: Aligned) -> str:
    """Some 50 kB, however long the runs were. `a` and `b` are the two that were compared step by step, in `rows`."""
    title = f"{escaped(found.a)} and {escaped(found.b)}"
    said = {sentence(found), next_step(found)}
    numbers = "".join(
        f"<tr><th>{escaped(heading)}</th><td>{escaped(text)}</td></tr>"
        for heading, text in lines(found)
        if text and text not in said
    )
    summary = card("info" if found.same else "warning", "", sentence(found), next_step(found) or "")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>tbnum: {title}</title><style>{style()}{PAGE_STYLE}</style></head><body class=tbnum><main>"
        f"<h1>{title}</h1>{summary}<table class=numbers>{numbers}</table>{_charts(a, b, rows)}"
        "</main></body></html>\n"
    )


def _charts(a: Compared, b: Compared, rows: Aligned) -> str:
    """The relative distance of each column of `DRAWN` that both have, where it is not 0."""
    drawn = []
    for name in DRAWN:
        if name not in a.steps or name not in b.steps:
            continue
        step, relative = relative_distance(a.steps, b.steps, rows, name)
        if len(step) > 1 and (relative > 0).any():
            values = np.where(relative > 0, relative, np.nan)
            drawn.append(chart(step, values, f"relative distance of the {name}", 140, log=True))
    return "".join(drawn)
