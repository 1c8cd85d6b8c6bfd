"""The table of colours, marks and views that the panel and the HTML report both read."""

from __future__ import annotations

import re
from pathlib import Path

from tbnum import look
from tbnum.log.schema import EVENT_KINDS


def test_every_kind_of_event_has_a_lane_and_none_has_two():
    named = [kind for lane in look.lanes() for kind in lane.kinds]
    assert len(named) == len(set(named))
    assert set(named) - {"nonfinite_loss"} <= set(EVENT_KINDS)
    assert {look.lane_of(kind) for kind in (*EVENT_KINDS, "of a newer tbnum")} <= {lane.id for lane in look.lanes()}
    assert look.lane_of("of a newer tbnum") == "finding"


def test_both_themes_have_the_same_colours_and_every_one_that_lanes_and_lines_name():
    themes = look.colours()
    assert themes["light"].keys() == themes["dark"].keys()
    lines = {line.color.removeprefix("--") for view in look._views() for line in view.lines}
    assert lines | {f"lane-{lane.id}" for lane in look.lanes()} <= themes["light"].keys()
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for names in themes.values() for colour in names.values())


def test_colours_of_marks_and_lines_stand_out_from_the_ground_and_text_is_readable():
    lines = {line.color.removeprefix("--") for view in look._views() for line in view.lines}
    for names in look.colours().values():
        for name in lines | {lane for lane in names if lane.startswith("lane-")}:
            assert contrast(names[name], names["bg"]) >= 3, name
        for name in ("text", "text-2"):
            assert contrast(names[name], names["bg"]) >= 4.5, name


def contrast(one: str, other: str) -> float:
    """As WCAG defines it."""

    def luminance(colour: str) -> float:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_the_views_that_are_shown_first_follow_what_the_run_knows():
    def shown(*known: str) -> list[str]:
        return [view.id for view in look.shown_views(lambda name: name in known)]

    assert shown("loss", "loss_scale", "clip_coef", "grad_norm") == ["loss", "scale", "norm"]
    assert shown("loss", "clip_coef", "grad_norm", "update_norm", "param_norm") == ["loss", "norm", "clip", "ratio"]
    assert shown("loss") == ["loss", "norm"]


def test_the_style_sheet_names_no_colour_that_the_table_lacks():
    sheet = (Path(look.__file__).parents[1] / "plugins/tensorboard_plugin_tbnum/frontend/style.css").read_text("utf-8")
    used = set(re.findall(r"var\(--([\w-]+)", sheet))
    own = set(re.findall(r"--([\w-]+):", sheet))
    given = {"color", "mark", "share"}  # by the code, to single elements
    assert used - own - given <= look.colours()["light"].keys()
