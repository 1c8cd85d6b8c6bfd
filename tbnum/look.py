"""How a run looks: colours, marks and views with their names, as `look.json` has them.

The panel is built with the same table, so that a report looks like what was seen. Loads nothing of tbnum.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Lane", "Line", "View", "colours", "is_open", "lane_of", "lanes", "shape", "shown_views", "words"]


@dataclass(frozen=True)
class Lane:
    """Marks of events of some kinds."""

    id: str
    label: str
    name: str
    plural: str
    kinds: tuple[str, ...]
    shape: str


@dataclass(frozen=True)
class Line:
    """One column of a view. `color` is a CSS variable."""

    column: str
    label: str
    color: str
    dash: tuple[int, ...] = ()
    smooth: bool = False
    stepped: bool = False
    sparse: bool = False
    average: bool = False
    only: str = ""


@dataclass(frozen=True)
class View:
    """A chart. `known`: the columns that a run must know for it to be shown; `without`: one that it must not."""

    id: str
    title: str
    scale: str
    height: int
    of_optimizer: bool
    optional: bool
    known: tuple[str, ...]
    without: str | None
    lines: tuple[Line, ...]


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name("look.json").read_text(encoding="utf-8"))
    return table


def colours() -> dict[str, dict[str, str]]:
    """By theme, "light" or "dark", and name."""
    found: dict[str, dict[str, str]] = _table()["colours"]
    return found | {
        theme: names | {f"lane-{lane['id']}": names[lane["colour"]] for lane in _table()["lanes"]}
        for theme, names in found.items()
    }


@cache
def lanes() -> tuple[Lane, ...]:
    """From top to bottom."""
    names = ("id", "label", "name", "plural", "shape")
    return tuple(Lane(kinds=tuple(row["kinds"]), **{name: row[name] for name in names}) for row in _table()["lanes"])


def lane_of(kind: str) -> str:
    """The id of the lane that shows events of a kind; a kind of a newer tbnum is a finding."""
    return next((lane.id for lane in lanes() if kind in lane.kinds), "finding")


def shape(lane: Lane) -> str:
    """Its outline as an SVG path around (0, 0), about 12 by 12."""
    outline: str = _table()["shapes"][lane.shape]
    return outline


def is_open(lane: Lane) -> bool:
    """Whether its shape is drawn by lines alone."""
    return lane.shape in _table()["open_shapes"]


@cache
def _views() -> tuple[View, ...]:
    return tuple(_view(row) for row in _table()["views"])


def _view(row: dict[str, Any]) -> View:
    when = row.get("when", {})
    fields = Line.__dataclass_fields__
    lines = [{name: value for name, value in line.items() if name in fields} for line in row["lines"]]
    return View(
        id=row["id"],
        title=row["title"],
        scale=row["scale"],
        height=round(70 * row["weight"]),
        of_optimizer=row.get("ofOptimizer", False),
        optional=row.get("optional", False),
        known=tuple(when.get("known", ())),
        without=when.get("without"),
        lines=tuple(Line(**{**line, "dash": tuple(line.get("dash", ()))}) for line in lines),
    )


def shown_views(knows: Callable[[str], bool]) -> Sequence[View]:
    """Those that are shown at first, in order. `knows`: whether a run has any value of a column."""
    return [
        view
        for view in _views()
        if (
            all(map(knows, view.known)) and not (view.without is not None and knows(view.without))
            if view.known
            else not view.optional
        )
    ]


def words(name: str) -> str:
    """`bad_batch` is "bad batch"."""
    return "non-finite loss" if name == "nonfinite_loss" else name.replace("_", " ")
