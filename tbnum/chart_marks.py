"""The marks of events over a chart: a lane for each kind, as in the panel. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tbnum import look
from tbnum.explain.record import Record
from tbnum.explain.view import nonfinite_losses
from tbnum.log.schema import Event
from tbnum.look import Lane
from tbnum.markup import escaped

__all__ = ["LANE", "Laned", "lane_marks", "lanes_of", "skip_bands"]

LANE = 18  # height of one
GAP = 15  # between the middles of two marks that do not crowd
CROWDED = 0.07  # of the width that bands of skipped steps may cover

Across = Callable[[float], float]


class Mark(NamedTuple):
    step: int
    quiet: bool  # nothing needs a hand
    text: str


class Laned(NamedTuple):
    lane: Lane
    marks: Sequence[Mark]  # in order of step, one a step


def lanes_of(record: Record, events: Sequence[Event]) -> list[Laned]:
    """The lanes that a run has marks for."""
    found: dict[str, dict[int, Mark]] = {lane.id: {} for lane in look.lanes()}
    for event in events:
        title = look.words(event.kind) + (f" ({look.words(event.cause)})" if event.cause else "")
        mark = Mark(event.step, event.severity == "info", f"step {event.step:,}: {title}. {event.message}")
        marks = found[look.lane_of(event.kind)]
        if event.step not in marks or (marks[event.step].quiet and not mark.quiet):
            marks[event.step] = mark
    for row in nonfinite_losses(record).tolist():
        step = int(record.steps["step"][row])
        found["nonfinite_loss"][step] = Mark(step, False, f"step {step:,}: the loss was not finite")
    return [Laned(lane, sorted(found[lane.id].values())) for lane in look.lanes() if found[lane.id]]


def lane_marks(laned: Laned, across: Across, y: int) -> str:
    """A lane: its name, a line, and its marks; those that crowd are one with their number."""
    lane = laned.lane
    parts = [f'<text class=lane-label x="4" y="{y + 4}">{escaped(lane.label)}</text>']
    for x, marks in _clusters(laned.marks, across):
        kind = "quiet" if all(mark.quiet for mark in marks) else "grave"
        more = f" (and {len(marks) - 1:,} more here)" if len(marks) > 1 else ""
        drawn = f'<path class="{"open" if look.is_open(lane) else "full"}" d="{look.shape(lane)}"/>'
        if len(marks) > 1:
            width = _pill_width(len(marks))
            drawn = (
                f'<rect x="{-width / 2}" y="-8" width="{width}" height="16" rx="8"/>'
                f'<text text-anchor=middle y="4">{len(marks):,}</text>'
            )
        title = f"<title>{escaped(marks[0].text + more)}</title>"
        parts.append(f'<g class="mark {kind}" transform="translate({x:.1f} {y})">{drawn}{title}</g>')
    return f'<g class="lane" style="--mark:var(--lane-{lane.id})">{"".join(parts)}</g>'


def _pill_width(count: int) -> int:
    return 12 + 7 * len(str(count)) + (3 if count >= 1000 else 0)


def _clusters(marks: Sequence[Mark], across: Across) -> list[tuple[float, list[Mark]]]:
    """Marks that would overlap as one, so far apart that their numbers fit."""
    distance = float(GAP)
    while True:
        clusters = list(_joined(marks, across, distance))
        widest = max((_pill_width(len(of)) + 2 for _, of in clusters if len(of) > 1), default=0)
        if widest <= distance or len(clusters) <= 1:
            return clusters
        distance = widest


def _joined(marks: Sequence[Mark], across: Across, distance: float) -> Iterator[tuple[float, list[Mark]]]:
    at = 0
    while at < len(marks):
        start, end = across(marks[at].step), at + 1
        while end < len(marks) and across(marks[end].step) < start + distance:
            end += 1
        middle = (start + across(marks[end - 1].step)) / 2
        room = across(marks[end].step) - distance if end < len(marks) else middle
        yield max(start, min(middle, room)), list(marks[at:end])
        at = end


def skip_bands(skips: np.ndarray, across: Across, top: float, bottom: float) -> str:
    """Grey bands at skipped steps (K,), or ticks at the lower edge where bands would flood the chart."""
    if not len(skips):
        return ""
    places = sorted({round(across(step), 1) for step in skips.tolist()})
    width = min(14.0, max(1.5, across(skips[0] + 1) - across(skips[0])))
    crowded = len(places) > 20 and len(places) * width > CROWDED * (across(skips[-1]) - across(skips[0]))
    kind, from_y = ("ticks", bottom - 6) if crowded else ("bands", top)
    strokes = "".join(f"M{x} {from_y:.0f}V{bottom:.0f}" for x in places)
    return f'<path class="{kind}" stroke-width="{width:.1f}" d="{strokes}"/>'
