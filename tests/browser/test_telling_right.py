"""What the panel shows is what was recorded, and what a link brings stays the link's."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

import tbnum
from tbnum.log.schema import step_columns
from tbnum.log.writer import LogWriter
from tests.browser import training
from tests.browser.conftest import Panel, TensorBoard
from tests.browser.test_runs_overlay import with_others

Look = Callable[..., Panel]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logdir")
    training.demo_like(root / "demo")
    training.with_tensors(root / "tensors", steps=120)
    with training.Recording(root / "bfloat16", scaler=False, length=600) as run:
        run.advance(600)
    with training.Recording(root / "paused", pauses={200: 86_400.0}, length=400, seconds_per_step=1.0) as run:
        run.advance(400)
    with training.Recording(root / "sampled", bad=[300], length=600) as run:
        run.held_scale = math.inf
        while run.step < 600:
            if run.step % 50 == 0 or 269 <= run.step <= 300:  # as recent history is kept around what failed
                run.tensors(training.tensor_names(1))
            run.advance()
    with training.Recording(root / "outlier", length=600) as run:
        run.advance(300)
        run.floor = 5e5  # of one step
        run.advance()
        run.floor = 1.55
        run.advance(299)
    return root


def test_samples_of_a_tensor_are_joined_though_history_around_a_skip_is_denser(shared: TensorBoard, look: Look):
    panel = look(shared).open("sampled", tensor="wte.weight", views="loss")
    expect(panel.frame.locator("[data-chart=tensor] .u-over")).to_be_visible()
    ink = """(canvas, shares) => shares.map(share => {
        const { offsetLeft: left, clientWidth: width } = canvas.parentElement.querySelector(".u-over");
        const { data } = canvas.getContext("2d").getImageData(left + width * share, 0, 1, canvas.height);
        let coloured = false; // the grid is grey
        for (let at = 0; at < data.length; at += 4) {
            const [red, green, blue, alpha] = data.slice(at, at + 4);
            coloured ||= alpha > 100 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60;
        }
        return coloured;
    })"""
    between = [(step + 25) / 599 for step in range(0, 550, 50)]
    canvas = panel.frame.locator("[data-chart=tensor] canvas")
    panel.wait_until(lambda: all(canvas.evaluate(ink, between)), "a line between samples")


def test_the_first_views_are_those_that_the_run_has_something_for(shared: TensorBoard, look: Look):
    panel = look(shared).open("bfloat16")
    titles = panel.frame.locator(".chart h2")
    expect(titles).to_have_text(["Loss", "Gradient norm", "Clipping", "Update ratio"])
    facts = panel.frame.locator(".facts-line")
    expect(facts).to_contain_text("% clipped")
    expect(facts).not_to_contain_text("skip")
    panel.frame.get_by_role("option", name="demo").click()
    expect(titles).to_have_text(["Loss", "Loss scale", "Gradient norm"])
    panel.frame.get_by_role("button", name="Hide Loss scale").click()
    panel.frame.get_by_role("option", name="bfloat16").click()
    expect(titles).to_have_text(["Loss", "Gradient norm"])


def test_a_link_brings_smoothing_filters_and_views_and_leaves_the_readers_own_alone(shared: TensorBoard, look: Look):
    sender = look(shared).open("demo").drawn()
    sender.frame.locator(".smoothing input").fill("0.9")
    sender.frame.locator(".chip[data-lane='scale_growth']").click()
    sender.frame.get_by_role("searchbox", name="Filter events").fill("batch")
    sender.frame.get_by_role("button", name="Hide Loss", exact=True).click()
    sender.wait_until(
        lambda: all(part in sender.address() for part in ("smoothing=0.9", "off=", "find=batch", "-loss")),
        "all of it in the address",
    )

    reader = look(shared).open("demo").drawn()
    reader.frame.get_by_role("button", name="Logarithmic axis of Loss", exact=True).click()
    reader.wait_until(lambda: "loss.log" in reader.address(), "an own view")
    reader.page.goto(f"{reader.url}{sender.address()}")
    reader.page.reload()
    expect(reader.frame.locator(".smoothing output")).to_have_text("0.90")
    expect(reader.frame.locator(".chip[data-lane='scale_growth']")).to_have_attribute("aria-pressed", "false")
    expect(reader.frame.get_by_role("searchbox", name="Filter events")).to_have_value("batch")
    expect(reader.frame.locator(".chart h2")).to_have_text(["Loss scale", "Gradient norm"])

    reader.page.goto("about:blank")
    reader.open("demo").drawn()
    expect(reader.frame.locator(".smoothing output")).to_have_text("0.60")
    loss = reader.frame.get_by_role("button", name="Logarithmic axis of Loss", exact=True)
    expect(loss).to_have_attribute("aria-pressed", "true")


def test_a_gradient_norm_in_the_table_of_the_heat_map_is_headed_so(shared: TensorBoard, logdir: Path, look: Look):
    panel = look(shared).open("tensors", tensors="heatmap")
    panel.frame.get_by_label("What the colours show").select_option(label="Not finite")
    panel.frame.get_by_role("button", name="Table", exact=True).click()
    heads = panel.frame.locator(".heat-table th[scope=col]")
    expect(heads.filter(has_not_text="in view")).to_have_text(["Tensor", "Gradient norm", "Not finite"])
    expect(heads.filter(has_text="in view")).not_to_have_count(0)
    trends = [head.removesuffix(" in view") for head in heads.filter(has_text="in view").all_text_contents()]
    assert trends[0] == "Gradient norm" and "Not finite" not in trends and len(trends) == len(set(trends))
    name, line = panel.frame.locator(".heat-table tbody tr").first.evaluate(
        "row => [row.cells[0].textContent, row.cells[3].querySelector('.visually-hidden').textContent]"
    )
    _, names, values = tbnum.read(logdir)["tensors"].tensors["grad_norm"]
    norms = values[:, list(names).index(name)]
    finite = norms[np.isfinite(norms) & (norms > 0)]
    shown = [float(text.replace(",", "")) for text in line.split(" to ")]
    assert shown == pytest.approx([finite[0], finite[-1]], rel=6e-3)


def test_nothing_that_can_be_tabbed_to_is_hidden_from_screen_readers(shared: TensorBoard, look: Look):
    panel = look(shared).open("demo").drawn()
    expect(panel.frame.locator(".on-curve .mark").first).to_be_visible()
    stops: set[str] = set()
    panel.frame.locator(".runs-head").click()
    for _ in range(80):
        panel.page.keyboard.press("Tab")
        frame = next(frame for frame in panel.page.frames if frame != panel.page.main_frame)
        found = frame.evaluate(
            "document.activeElement.closest('[aria-hidden=true]') ? document.activeElement.outerHTML.slice(0, 80) : ''"
        )
        stops |= {found} - {""}
    assert not stops


def test_one_histogram_over_time_says_how_to_have_more(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", tensors="histogram", steps="40-48")
    expect(panel.frame.locator(".histogram-title").nth(1)).to_contain_text("histogram_interval")


def test_a_point_that_flattens_the_rest_is_left_out_and_said_until_it_is_asked_for(shared: TensorBoard, look: Look):
    panel = look(shared).open("outlier", smoothing="0").drawn()
    reach = panel.frame.locator("[data-chart=loss] .reach")
    expect(reach).to_have_text("1 outlier left out")
    reach.click()
    expect(reach).to_have_text("with outliers")
    panel.wait_until(lambda: "loss!" in panel.address(), "the choice in the address")
    plot = panel.frame.locator("[data-chart=loss] .y-axis").bounding_box()
    assert plot is not None
    panel.page.mouse.move(plot["x"] + 40, plot["y"] + 60)
    panel.page.mouse.down()
    panel.page.mouse.move(plot["x"] + 40, plot["y"] + 110)
    panel.page.mouse.up()
    expect(reach).to_have_text("reset y")
    reach.click()
    expect(reach).to_have_text("with outliers")


def test_a_pause_is_left_out_of_the_time_axis_and_marked(shared: TensorBoard, look: Look):
    panel = look(shared).open("paused", x="time").drawn()
    plot = panel.frame.locator("[data-chart=loss] .u-over")
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] * 0.25, "y": 40})
    expect(panel.frame.locator(".cursor-card strong")).to_have_text("Step 100")


def test_what_needs_a_hand_is_reported_from_protection_at_work(shared: TensorBoard, look: Look):
    panel = look(shared).open("demo").drawn()
    rows = panel.frame.locator(".event-row")
    expect(rows.first).to_be_visible()
    search = panel.frame.get_by_role("searchbox", name="Filter events")
    search.fill("warning")
    count = panel.frame.locator(".event-row.severity-warning").count()
    assert panel.frame.locator(".event-row").count() == count > 0
    search.fill("")
    panel.frame.locator(".chip[data-lane='severity/info']").click()
    expect(panel.frame.locator(".event-row.severity-info")).to_have_count(0)
    expect(panel.frame.locator(".lanes .mark.quiet")).to_have_count(0)


def test_a_run_that_lacks_what_a_chart_shows_is_named_there(tmp_path: Path, serve, look: Look):
    with training.Recording(tmp_path / "a", length=200) as run:
        run.advance(200)
    columns = step_columns({"generator": 1, "discriminator": 1})
    writer = LogWriter(tmp_path / "gan", columns=columns, meta={"format_version": 1, "session": "gan", "seed": 0})
    for step in range(200):
        known = {"step": step, "wall_time": training.START + step, "loss": 2.0, "skipped": False}
        writer.append_step(tuple(known.get(name, False if name.endswith("skipped") else math.nan) for name in columns))
    writer.close()
    panel = with_others(look(serve(tmp_path)), "a", ["gan"])
    lacking = panel.frame.locator("[data-chart=norm] .key .lacking")
    expect(lacking).to_have_text("no gradient norm in 2 gan")
    expect(panel.frame.locator("[data-chart=loss] .key .lacking")).to_have_count(0)


def test_the_mean_of_seeds_says_how_many_are_left(tmp_path: Path, serve, look: Look):
    config = {"config": {"lr": 1}}
    for seed, steps in ((1, 400), (2, 400), (3, 150)):
        with training.Recording(tmp_path / f"seed{seed}", seed=seed, length=400, **config) as run:
            run.advance(steps)
    with training.Recording(tmp_path / "current", seed=9, length=400, config={"lr": 2}) as run:
        run.advance(400)
    panel = with_others(look(serve(tmp_path)), "current", ["seed1", "seed2", "seed3"], seeds="grouped")
    plot = panel.frame.locator("[data-chart=loss] .u-over")
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] * 0.2, "y": 40})
    group = panel.frame.locator(".cursor-runs tr", has_text="3 seeds")
    expect(group).not_to_contain_text("of 3")
    plot.hover(position={"x": box["width"] * 0.8, "y": 40})
    expect(group).to_contain_text("(2 of 3)")


def test_an_outlier_of_a_run_beside_it_flattens_nothing_either(shared: TensorBoard, look: Look):
    panel = with_others(look(shared), "demo", ["outlier"], smoothing="0").drawn()
    reach = panel.frame.locator("[data-chart=loss] .reach")
    expect(reach).to_have_text("1 outlier left out")
    reach.click()
    expect(reach).to_have_text("with outliers")


STROKES = """
    window.strokes = [];
    for (const name of ["moveTo", "lineTo", "strokeText"]) {
        const draw = CanvasRenderingContext2D.prototype[name];
        CanvasRenderingContext2D.prototype[name] = function (...drawn) {
            const where = this.canvas.closest("[data-chart]")?.dataset.chart ?? this.canvas.className;
            const [text, x, y] = name === "strokeText" ? drawn : ["", ...drawn];
            strokes.push([where, name, x, y, text, this.strokeStyle]);
            draw.apply(this, drawn);
        };
    }
"""


def strokes(panel: Panel, where: str) -> list[tuple[str, float, float, str, str]]:
    """What was drawn on a canvas so far: what, where, the text, the colour of lines."""
    frame = next(frame for frame in panel.page.frames if frame != panel.page.main_frame)
    return [tuple(each) for at, *each in frame.evaluate("strokes") if at == where]


def test_no_line_of_the_histograms_over_time_leads_down_a_slope_that_was_not_counted(shared: TensorBoard, look: Look):
    panel = look(shared)
    panel.page.add_init_script(STROKES)
    panel.open("tensors", tensors="histogram").drawn()
    expect(panel.frame.locator(".histogram-title").nth(1)).to_contain_text("dashed: float16")
    drawn = strokes(panel, "ridge")
    pairs = [(one, two) for one, two in pairwise(drawn) if two[0] == "lineTo"]
    assert len(pairs) > 100
    assert all(one[1] == two[1] or one[2] == two[2] for one, two in pairs), "upright or level"


def test_a_number_that_stands_away_from_its_lines_end_is_led_to_from_there(tmp_path: Path, serve, look: Look):
    for seed in range(5):
        with training.Recording(tmp_path / f"run{seed}", seed=seed, length=200) as run:
            run.advance(200)
    panel = look(serve(tmp_path))
    panel.page.add_init_script(STROKES)
    with_others(panel, "run0", [f"run{seed}" for seed in range(1, 5)], smoothing="0.9")
    panel.wait_until(lambda: any(each[3] == "5" for each in strokes(panel, "loss")), "the last number")
    drawn = strokes(panel, "loss")
    latest = {text: at for at, (_, _, _, text, _) in enumerate(drawn) if text in ("2", "3", "4", "5")}
    points: dict[str, list[tuple[float, float]]] = {}
    for what, x, y, _, colour in drawn[: min(latest.values())]:
        if what == "lineTo" and x < drawn[latest["2"]][1] - 10:  # a lead goes further
            points.setdefault(colour, []).append((x, y))
    ends = [line[-1] for line in points.values() if len(line) > 100]  # but for the grid's
    assert len(latest) == len(ends) == 4
    led = 0
    for number, (x, y) in zip(sorted(latest), ends, strict=True):  # both in the order of the legend
        _, at, beside, *_ = drawn[latest[number]]
        if abs(beside - y) > 3:
            led += 1
            lead = drawn[latest[number] - 2 : latest[number]]
            assert [each[1:3] for each in lead] == [(x + 1, y), (at - 2, beside)], number
    assert led >= 2
