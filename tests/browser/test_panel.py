"""What a person sees and does in the Numerics tab, in real TensorBoard and a real browser."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Request, Route, expect

from tensorboard_plugin_tbnum import plugin
from tests import panel_files
from tests.browser import training
from tests.browser.conftest import Panel, TensorBoard

Serve = Callable[..., TensorBoard]
Look = Callable[..., Panel]

BUDGET_BYTES = 300_000
BUDGET_MODULES = 8


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logdir")
    training.demo_like(root / "gpt" / "demo", start=training.START + 5e6)  # the one written to last
    training.sparse_skips(root / "long")
    training.diverging(root / "diverging")
    return root


def events_of(server: TensorBoard, run: str) -> list[dict]:
    with urllib.request.urlopen(f"{server.url}data/plugin/tbnum/events?run={run}") as answer:
        return json.load(answer)["events"]


def step_of(panel: Panel) -> int:
    """The step that the card at the cursor shows."""
    return int((panel.frame.locator(".cursor-card strong").text_content() or "").removeprefix("Step ").replace(",", ""))


def inked_colours(panel: Panel, chart: str) -> int:
    """How many colours a chart's canvas shows; a blank one has one or two."""
    return panel.frame.locator(f"[data-chart={chart}] canvas").evaluate(
        """canvas => {
            const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )


@pytest.mark.tensorboard_page
def test_the_run_written_to_last_is_drawn_with_its_curve_its_strips_and_its_marks(shared: TensorBoard, look: Look):
    panel = look(shared).open().drawn()
    expect(panel.frame.locator("h1")).to_have_text("gpt/demo")
    expect(panel.frame.locator(".status")).to_have_text("ended")
    for chart in ("loss", "scale", "norm"):
        panel.wait_until(lambda chart=chart: inked_colours(panel, chart) > 20, f"ink on the chart {chart}")
    lefts = panel.frame.locator(".plot .u-over").evaluate_all(
        "plots => plots.map(plot => [plot.getBoundingClientRect().left, plot.clientWidth])"
    )
    assert lefts[0] == lefts[1] == lefts[2], "the charts share their x axis"
    events = events_of(shared, "gpt/demo")
    for kind in ("skip", "scale_backoff", "scale_growth", "annotation"):
        lane = "note" if kind == "annotation" else kind
        assert sum(count for _, count in panel.marks(lane)) == sum(event["kind"] == kind for event in events) > 0
    expect(panel.frame.locator(".facts-line")).to_contain_text("1 bad batch")


def test_seven_skips_among_fifty_thousand_steps_are_seven_marks(shared: TensorBoard, look: Look):
    panel = look(shared).open("long").drawn()
    expect(panel.frame.locator(".lanes .mark[data-kind=skip]")).to_have_count(7)
    skips = [event["step"] for event in events_of(shared, "long") if event["kind"] == "skip"]
    assert panel.marks("skip") == [(step, 1) for step in skips]
    expect(panel.frame.locator(".on-curve .lane-skip")).to_have_count(7)


def test_marks_stay_on_the_curve_when_the_room_changes(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    mark = panel.frame.locator(".on-curve .lane-skip").last
    expect(mark).to_be_visible()

    def share_of_height() -> float:
        return mark.evaluate(
            """mark => {
                const plot = mark.closest(".u-over").getBoundingClientRect();
                const at = mark.querySelector(".hit").getBoundingClientRect();
                return (at.top + at.height / 2 - plot.top) / plot.height;
            }"""
        )

    before, height = share_of_height(), panel.frame.locator(".u-over").first.evaluate("plot => plot.clientHeight")
    panel.page.set_viewport_size({"width": 1440, "height": 700})
    panel.wait_until(
        lambda: panel.frame.locator(".u-over").first.evaluate("plot => plot.clientHeight") < height, "less room"
    )
    panel.wait_until(lambda: abs(share_of_height() - before) < 0.01, "marks where the curve is")


def test_marks_that_crowd_are_counted_and_a_click_takes_them_apart(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    cluster = panel.frame.locator(".lanes .mark[data-kind=skip][data-count='7']")
    expect(cluster).to_have_text("7")
    cluster.click()
    expect(panel.frame.locator(".lanes .mark[data-kind=skip]")).to_have_count(7)
    assert panel.marks("skip") == [(step, 1) for step in range(7)]
    panel.frame.get_by_role("button", name="Reset zoom").click()
    expect(cluster).to_have_count(1)


@pytest.mark.tensorboard_page
def test_a_click_on_an_event_zooms_to_it_marks_it_and_opens_its_card(shared: TensorBoard, look: Look):
    panel = look(shared).open("long").drawn()
    panel.frame.locator(".event-row[data-kind=skip][data-step='17863']").click()
    expect(panel.frame.locator(".lanes .mark.selected")).to_have_attribute("data-step", "17863")
    panel.wait_until(lambda: "p.tbnum.steps=17803-17923" in panel.address(), "the zoom in the address")
    card = panel.frame.locator(".card")
    expect(card.locator(".cause")).to_have_text("bad batch")
    expect(card).to_contain_text("Step 17,863")
    expect(card).to_contain_text("16,384 (2¹⁴) → 8,192 (2¹³)")
    change = card.locator("dd", has_text="→").first
    lines = change.evaluate("change => change.clientHeight / parseFloat(getComputedStyle(change).lineHeight)")
    assert lines < 1.5, "on one line"
    expect(panel.frame.locator(".event-row[data-kind=skip] .event-change").first).to_contain_text("2¹⁶ → 2¹⁵")
    expect(panel.frame.locator(".event-row[data-kind=scale_backoff]")).to_have_count(0)  # it is in its skip's row
    expect(card).to_contain_text("What to do")
    expect(card.locator(".card-values")).to_contain_text("Learning rate")
    expect(panel.frame.locator("[data-chart=loss] .key")).not_to_contain_text("min to max")

    panel.page.keyboard.press("n")
    expect(card).to_contain_text("Step 25,009")
    panel.page.keyboard.press("Escape")
    expect(card).to_be_hidden()


@pytest.mark.tensorboard_page
def test_the_card_of_a_skip_has_its_evidence_and_can_be_copied_as_link_and_as_text(
    tmp_path: Path, serve: Serve, look: Look
):
    training.with_tensors(tmp_path / "tensors")
    panel = look(serve(tmp_path)).open("tensors").drawn()
    panel.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.frame.locator(".event-row[data-kind=skip]").click()
    card = panel.frame.locator(".card")
    expect(card).to_contain_text("Scale back after100 steps")
    faults = card.get_by_role("table", name="Not finite, 2 of 31, in order of the backward pass")
    expect(faults.get_by_role("row").nth(1)).to_have_text("blocks.3.mlp.up.weight125")
    expect(card.get_by_role("table", name="Finite, computed just before")).to_contain_text("blocks.3.mlp.down.weight")
    expect(card.locator(".card-values")).to_contain_text("Learning rate")
    card.get_by_role("button", name="Copy link").click()
    expect(card.get_by_role("button", name="Copied")).to_be_visible()
    link = panel.page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(panel.url) and "p.tbnum.event=250.skip" in link
    card.get_by_role("button", name="Copy as text").click()
    panel.wait_until(lambda: "skip at step 250" in panel.page.evaluate("navigator.clipboard.readText()"), "the text")
    text = panel.page.evaluate("navigator.clipboard.readText()")
    for part in (
        "bad batch",
        "What to do: ",
        "blocks.3.mlp.up.weight  NaN 12  inf 5",
        "grad_norm          Infinity",
        link,
    ):
        assert part in text


def test_a_click_on_a_mark_selects_it_where_it_is(shared: TensorBoard, look: Look):
    panel = look(shared).open("long").drawn()
    panel.frame.locator(".on-curve .lane-skip").nth(2).click()
    expect(panel.frame.locator(".card")).to_contain_text("Step 17,863")
    expect(panel.frame.locator(".row.chosen.event-row")).to_have_attribute("data-step", "17863")
    expect(panel.frame.locator(".lanes .mark.selected")).to_have_attribute("data-step", "17863")
    expect(panel.frame.locator(".on-curve .mark.selected")).to_have_count(1)
    panel.wait_until(lambda: "p.tbnum.event=17863.skip" in panel.address(), "the event in the address")
    assert "p.tbnum.steps" not in panel.address()


def test_the_cursor_shows_the_exact_values_of_its_step_also_where_the_curve_is_reduced(shared: TensorBoard, look: Look):
    panel = look(shared).open("long").drawn()
    plot = panel.frame.locator("[data-chart=loss] .u-over")
    expect(panel.frame.locator("[data-chart=loss] .key")).to_contain_text("min to max of 64 steps")
    plot.hover(position={"x": 200, "y": 60})
    card = panel.frame.locator(".cursor-card")
    expect(card).to_contain_text("Learning rate0.0003")
    step = step_of(panel)
    with urllib.request.urlopen(f"{shared.url}data/plugin/tbnum/step?run=long&step={step}") as answer:
        loss = json.load(answer)["values"]["loss"]
    expect(card).to_contain_text(f"Loss{loss:.6g}")
    panel.page.mouse.move(5, 300)
    expect(card).to_be_hidden()


def test_dragging_zooms_all_charts_and_a_double_click_shows_everything_again(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    box = panel.frame.locator("[data-chart=norm] .u-over").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    panel.page.mouse.move(box["x"] + box["width"] * 0.25, y)
    panel.page.mouse.down()
    panel.page.mouse.move(box["x"] + box["width"] * 0.5, y, steps=4)
    panel.page.mouse.up()
    panel.wait_until(lambda: "p.tbnum.steps" in panel.address(), "a zoom in the address")
    start, end = map(int, re.search(r"steps=(\d+)-(\d+)", panel.address()).groups())  # type: ignore[union-attr]
    assert 145 <= start <= 155
    assert 295 <= end <= 305
    for chart in ("loss", "scale", "norm"):
        expect(panel.frame.locator(f"[data-chart={chart}] .plot")).to_have_attribute("aria-valuemin", str(start))
    panel.frame.locator("[data-chart=loss] .u-over").dblclick(position={"x": 300, "y": 90})
    panel.wait_until(lambda: "p.tbnum.steps" not in panel.address(), "no zoom in the address")


def test_keys_move_the_cursor_step_by_step_and_say_its_values(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo", steps="400-430").drawn()
    chart = panel.frame.locator("[data-chart=scale] .plot")
    chart.focus()
    chart.press("Home")
    for _ in range(12):
        chart.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuenow", "412")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(r"Step 412, Loss 4\.6.*Gradient norm ∞.*Skipped yes"))
    chart.press("+")
    panel.wait_until(lambda: "steps=400-430" not in panel.address(), "a closer zoom")


def test_keys_go_through_the_events_of_the_filtered_list_also_when_none_is_open(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo", steps="380-430").drawn()
    chart, card = panel.frame.locator("[data-chart=loss] .plot"), panel.frame.locator(".card")
    events = [event for event in events_of(shared, "gpt/demo") if 380 <= event["step"] <= 430]
    assert events[0]["step"] < events[-1]["step"]
    chart.press("n")  # into the view, which no cursor is in
    expect(card).to_contain_text(f"Step {events[0]['step']}")
    chart.press("Escape")
    chart.press("p")
    expect(card).to_contain_text(f"Step {events[-1]['step']}")
    chart.press("Escape")
    panel.frame.get_by_label("Filter events").fill("skip")
    skips = [event["step"] for event in events_of(shared, "gpt/demo") if event["kind"] == "skip"]
    chart.press("Home")
    chart.press("n")
    following = next(step for step in skips if step > 380)
    expect(card).to_contain_text(f"Step {following}")
    chart.press("n")
    expect(card).to_contain_text(f"Step {skips[skips.index(following) + 1]}")
    panel.frame.get_by_label("Filter events").fill("bad batch skip")
    expect(card.locator(".card-place")).to_have_text(re.compile("/ 1$"))
    chart.press("p")
    expect(card).to_contain_text("Step 412")
    expect(card.locator(".card-place")).to_have_text("1 / 1")


def test_escape_closes_the_menu_of_views_from_within(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    summary = panel.frame.locator("summary", has_text="Views")
    summary.click()
    box = panel.frame.get_by_label("Clipping", exact=True)
    box.focus()
    box.press("Escape")
    expect(box).to_be_hidden()
    expect(summary).to_be_focused()


def test_the_legend_filters_marks_and_list(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    chip = panel.frame.locator(".chip[data-lane=scale_growth]")
    expect(panel.frame.locator(".events h2")).to_have_text("Events (34)")
    growths = int(chip.locator(".chip-count").text_content() or "")
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "false")
    expect(panel.frame.locator(".lanes .lane-scale_growth")).to_have_count(0)
    expect(panel.frame.locator(".events h2")).to_have_text(f"Events ({34 - growths} of 34)")
    expect(panel.frame.locator(".event-row[data-kind=scale_growth]")).to_have_count(0)
    panel.frame.get_by_label("Filter events").fill("bad batch")
    expect(panel.frame.locator(".event-row[data-kind=skip]")).to_have_count(1)


def test_the_legend_filters_by_cause(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    legend = panel.frame.get_by_role("group", name="Kinds of marks")
    skips = [event for event in events_of(shared, "gpt/demo") if event["kind"] == "skip"]
    probes = [event for event in skips if event["cause"] == "growth_probe"]
    assert 0 < len(probes) < len(skips)
    legend.get_by_role("button", name=f"growth probe {len(probes)}").click()
    panel.wait_until(lambda: sum(count for _, count in panel.marks("skip")) == len(skips) - len(probes), "fewer marks")
    expect(panel.frame.locator(".events-head h2")).to_contain_text(" of ")
    expect(panel.frame.locator(".cause-growth_probe")).to_have_count(0)
    expect(panel.frame.locator(".facts-line")).to_contain_text(
        f"{len(skips)} skips"
    )  # what is hidden happened all the same
    legend.get_by_role("button", name="Skips").click()
    expect(legend.get_by_role("button", name="growth probe")).to_be_disabled()


def test_every_non_finite_loss_has_its_mark_and_a_stretch_of_them_one_row(shared: TensorBoard, look: Look):
    panel = look(shared).open("diverging").drawn()
    panel.wait_until(lambda: bool(panel.marks("nonfinite_loss")), "marks of non-finite losses")
    assert sum(count for _, count in panel.marks("nonfinite_loss")) == 101
    expect(panel.frame.locator(".event-row")).to_have_count(2)
    expect(panel.frame.locator(".event-row").nth(1)).to_contain_text("100 steps in a row")


def test_a_norm_of_nan_is_marked_by_the_cross_that_its_legend_shows(shared: TensorBoard, look: Look):
    panel = look(shared).open("diverging", steps="110-130").drawn()
    expect(panel.frame.locator("[data-chart=norm] .nonfinite-key")).to_be_visible()
    arms = panel.frame.locator("[data-chart=norm]").evaluate(
        """chart => {
            const canvas = chart.querySelector("canvas"), over = chart.querySelector(".u-over");
            const [at, origin] = [over.getBoundingClientRect(), canvas.getBoundingClientRect()];
            const middle = [at.left - origin.left + at.width / 2, at.top - origin.top + 5];
            const context = canvas.getContext("2d");
            return [[-4, -4], [0, -4], [-4, 0], [0, 0]].map(([x, y]) => {
                const {data} = context.getImageData(Math.round(middle[0] + x), Math.round(middle[1] + y), 4, 4);
                let ink = 0;
                for (let at = 0; at < data.length; at += 4)
                    ink += data[at + 3] > 128 && data[at] > 100 && data[at + 1] < 128;
                return ink;
            });
        }"""
    )
    assert min(arms) >= 3 and max(arms) <= 2 * min(arms), "four arms of one length"


def test_counts_of_marks_stand_clear_of_the_names_of_their_lanes(tmp_path: Path, serve: Serve, look: Look):
    with training.Recording(tmp_path / "run", bad=range(300), length=12_000) as run:
        run.advance(12_000)
    panel = look(serve(tmp_path)).open("run").drawn()
    panel.wait_until(lambda: any(count >= 100 for _, count in panel.marks("scale_backoff")), "a count of three digits")
    gaps = panel.frame.locator(".lane").evaluate_all(
        "lanes => lanes.map(lane => [lane.querySelector('.mark'), lane.querySelector('.lane-label')]"
        ".map(part => part.getBoundingClientRect())).map(([mark, name]) => mark.left - name.right)"
    )
    assert len(gaps) >= 2 and min(gaps) >= 3


def test_at_a_skip_what_the_optimizer_got_is_unknown_and_a_measured_nan_is_one(
    tmp_path: Path, serve: Serve, look: Look
):
    with training.Recording(tmp_path / "run", bad=[50], nan_loss=[60], length=100) as run:
        run.advance(100)
    panel = look(serve(tmp_path)).open("run", tensors="values").drawn()
    over = panel.frame.locator("[data-chart=loss] .u-over")
    width = over.evaluate("over => over.clientWidth")
    card = panel.frame.locator(".cursor-card")
    row = panel.frame.locator(".values-table tbody tr")
    over.hover(position={"x": width * 50 / 99, "y": 60})
    expect(card).to_contain_text("Gradient norm\N{INFINITY}… clipped\N{EN DASH}Threshold")
    expect(row.nth(50).locator("td").nth(2)).to_have_text("\N{INFINITY}")
    expect(row.nth(50).locator("td").nth(3)).to_have_text("\N{EN DASH}")
    over.hover(position={"x": width * 60 / 99, "y": 60})
    expect(card).to_contain_text("LossNaN")
    expect(card).to_contain_text("Gradient normNaN")
    expect(row.nth(60).locator("td").first).to_have_text("NaN")
    expect(row.nth(60).locator("td").nth(2)).to_have_text("NaN")


def let_go(panel: Panel, questions: str, held: list[Route]) -> None:
    """All of them: beside what a test asked for, the panel may have asked for what is new."""
    panel.page.unroute(questions)
    while held:
        held.pop().continue_()


def test_an_empty_view_says_that_it_loads_or_how_to_fill_it(tmp_path: Path, serve: Serve, look: Look):
    with training.Recording(tmp_path / "plain", no_loss=True, length=50) as run:
        run.advance(50)
    training.with_tensors(tmp_path / "tensors", steps=100)
    server = serve(tmp_path)
    panel = look(server).open("plain").drawn()
    summary = panel.frame.locator("#summary-loss")
    expect(summary).to_contain_text("no loss recorded: log it with monitor.log_loss(loss)")
    held: list[Route] = []
    panel.page.route("**/tbnum/heatmap?*", lambda route: held.append(route))
    panel.frame.get_by_role("option").filter(has_text="tensors").click()
    expect(panel.frame.locator("h1")).to_have_text("tensors")
    panel.frame.locator("summary", has_text="Views").click()
    panel.frame.get_by_label("Headroom", exact=True).check()
    headroom = panel.frame.locator("#summary-headroom")
    expect(headroom).to_contain_text("loading …")
    panel.wait_until(lambda: bool(held), "the question for the headroom")
    let_go(panel, "**/tbnum/heatmap?*", held)
    expect(headroom).to_contain_text("lowest")
    panel.page.route("**/tbnum/series?*", lambda route: held.append(route))
    panel.frame.get_by_label("Learning rate", exact=True).check()
    rate = panel.frame.locator("#summary-lr")
    expect(rate).to_contain_text("loading …")
    panel.wait_until(lambda: bool(held), "the question for the learning rate")
    let_go(panel, "**/tbnum/series?*", held)
    expect(rate).to_contain_text("lowest")


def test_an_event_beyond_the_last_step_has_its_mark(tmp_path: Path, serve: Serve, look: Look):
    with training.Recording(tmp_path / "crashed", length=50) as run:
        run.advance(50)
        run.event("crash", {"error": "RuntimeError: out of memory"})
    panel = look(serve(tmp_path)).open("crashed").drawn()
    mark = panel.frame.locator(".lanes .mark[data-kind=finding]")
    expect(mark).to_have_attribute("data-step", "50")
    mark.click()
    expect(panel.frame.locator(".card")).to_contain_text("out of memory")


@pytest.mark.tensorboard_page
def test_the_x_axis_shows_time_and_keeps_marks_on_their_steps(shared: TensorBoard, look: Look):
    panel = look(shared).open("long").drawn()
    panel.frame.get_by_role("button", name="Time", exact=True).click()
    panel.wait_until(lambda: "p.tbnum.x=time" in panel.address(), "the axis in the address")
    expect(panel.frame.locator(".lanes .mark[data-kind=skip]")).to_have_count(7)
    plot = panel.frame.locator("[data-chart=loss] .u-over")
    plot.hover(position={"x": 150, "y": 60})
    # A step takes a quarter of a second.
    step = step_of(panel)
    clock = (panel.frame.locator(".cursor-card header span").text_content() or "").partition(" · ")[0]
    seconds = sum(int(part) * 60**power for power, part in enumerate(reversed(clock.split(":"))))
    assert abs(step * 0.25 - seconds) <= 1


@pytest.mark.tensorboard_page
def test_run_zoom_and_event_in_the_address_survive_a_reload(shared: TensorBoard, look: Look):
    panel = look(shared).open().drawn()
    panel.frame.get_by_role("option").filter(has_text="long").click()
    expect(panel.frame.locator("h1")).to_have_text("long")
    panel.frame.locator(".event-row[data-kind=skip][data-step='3571']").click()
    panel.wait_until(lambda: "p.tbnum.event=3571.skip" in panel.address(), "the event in the address")
    panel.page.reload()
    panel.drawn()
    expect(panel.frame.locator("h1")).to_have_text("long")
    expect(panel.frame.locator(".card")).to_contain_text("Step 3,571")
    expect(panel.frame.locator(".lanes .mark.selected")).to_have_attribute("data-step", "3571")
    panel.wait_until(lambda: "p.tbnum.steps=3511-3631" in panel.address(), "the zoom in the address")


@pytest.mark.tensorboard_page
def test_dark_mode_follows_tensorboards_own(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    body = panel.frame.locator("body")
    expect(body).to_have_css("background-color", "rgb(255, 255, 255)")
    panel.page.evaluate("document.body.classList.add('dark-mode')")
    expect(body).to_have_css("background-color", "rgb(48, 48, 48)")
    curve = """canvas => {
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        for (let at = 0; at < data.length; at += 4)
            if (data[at] === 0x8a && data[at + 1] === 0xb4 && data[at + 2] === 0xf8) return true;
        return false;
    }"""
    canvas = panel.frame.locator("[data-chart=loss] canvas")
    panel.wait_until(lambda: canvas.evaluate(curve), "a curve in the dark theme's colour")
    panel.page.evaluate("document.body.classList.remove('dark-mode')")
    expect(body).to_have_css("background-color", "rgb(255, 255, 255)")


@pytest.mark.tensorboard_page
def test_a_narrow_window_keeps_everything_within_reach(shared: TensorBoard, look: Look):
    panel = look(shared, width=480, height=860).open("gpt/demo").drawn()
    overflow = panel.frame.locator("html").evaluate("root => root.scrollWidth - root.clientWidth")
    assert overflow <= 0, "nothing sticks out sideways"
    panel.frame.get_by_role("button", name="Runs").click()
    panel.frame.get_by_role("option").filter(has_text="long").click()
    expect(panel.frame.locator("h1")).to_have_text("long")
    panel.frame.locator(".lanes .mark[data-kind=skip]").first.click()
    expect(panel.frame.locator(".card")).to_be_in_viewport()


@pytest.mark.parametrize("width", [900, 1360])
def test_the_bar_above_the_charts_wraps_before_it_covers_or_cuts_anything(
    tmp_path: Path, serve: Serve, look: Look, width: int
):
    name = "gpt/lr1e-3/seed1"
    with training.Recording(tmp_path / name, length=50, start=time.time() - 12) as run:
        run.advance(50)
        assert run.writer.flush(600)
        panel = look(serve(tmp_path), width=width).open(name, pin="20").drawn()
        expect(panel.frame.get_by_role("button", name="Follow")).to_be_visible()
        expect(panel.frame.get_by_role("button", name="Copy step")).to_be_visible()
        title = panel.frame.locator("h1")
        assert title.evaluate("title => title.scrollWidth <= title.clientWidth"), "the run's name is whole"
        panel.frame.locator("summary", has_text="Views").click()
        boxes = [
            panel.frame.locator(part).bounding_box()
            for part in ("h1", ".status", ".smoothing", ".tools", ".view-list", ".side")
        ]
        assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= width + 1 for box in boxes)
        status, smoothing = boxes[1:3]
        assert status and smoothing
        below = smoothing["y"] >= status["y"] + status["height"]
        assert below or smoothing["x"] >= status["x"] + status["width"], "nothing is printed over the status"


@pytest.mark.tensorboard_page
def test_the_tab_stays_within_its_budget_and_asks_no_one_else(frontend: Path, shared: TensorBoard, look: Look):
    assert panel_files.loaded_bytes(frontend) <= BUDGET_BYTES, "with all that is opened later"
    panel = look(shared)
    asked: list[str] = []
    panel.page.on("request", lambda request: asked.append(request.url))
    panel.open("gpt/demo").drawn()
    modules = {url for url in asked if "/data/plugin/tbnum/static/" in url and url.endswith(".js")}
    assert 0 < len(modules) <= BUDGET_MODULES, modules
    ours = [url for url in asked if url.startswith(("http:", "https:"))]
    assert all(url.startswith(shared.url) for url in ours), "no third-party request"


def test_a_name_with_markup_is_shown_as_text(tmp_path: Path, serve: Serve, look: Look):
    name = "<img src=x onerror=document.title='broken'>"
    with training.Recording(tmp_path / name, bad=[5], length=50) as run:
        run.advance(50)
        run.event("annotation", {"text": "<script>document.title='broken'</script><b>note</b>"})
    panel = look(serve(tmp_path)).open().drawn()
    expect(panel.frame.locator("h1")).to_have_text(name)
    expect(panel.frame.locator(".run-text")).to_have_text(name)
    panel.frame.locator(".event-row[data-kind=annotation]").click()
    expect(panel.frame.locator(".card")).to_contain_text("<script>")
    assert panel.frame.locator("img, script:not([type=module]), b").count() == 0
    assert panel.frame.locator("html").evaluate("() => document.title") == "Numerics"


@pytest.mark.tensorboard_page
def test_without_a_run_the_panel_says_where_it_looked_and_how_to_record_and_then_draws_the_first(
    tmp_path: Path, serve: Serve, look: Look
):
    panel = look(serve(tmp_path)).open()
    notice = panel.frame.locator(".notice")
    expect(notice).to_contain_text(str(tmp_path))
    expect(notice).to_contain_text("tbnum.wrap(optimizer, scaler, model=model")
    with training.Recording(tmp_path / "first", length=50) as run:
        run.advance(50)
    panel.drawn()
    expect(panel.frame.locator("h1")).to_have_text("first")
    expect(panel.frame.locator(".events .nothing")).to_be_visible()


@pytest.mark.tensorboard_page
def test_a_live_run_is_followed_without_a_reload(tmp_path: Path, serve: Serve, look: Look):
    with training.Recording(tmp_path / "live", bad=[150], length=300, start=time.time() - 26) as run:
        run.advance(100)
        run.writer.flush()
        panel = look(serve(tmp_path)).open("live").drawn()
        panel.frame.locator("html").evaluate("root => { root.dataset.same = 'yes'; }")
        chart = panel.frame.locator("[data-chart=loss] .plot")
        expect(chart).to_have_attribute("aria-valuemax", "99")
        expect(panel.frame.locator(".status")).to_have_text("training")
        expect(panel.frame.locator(".lanes .mark")).to_have_count(0)

        run.advance(100)
        run.writer.flush()
        expect(chart).to_have_attribute("aria-valuemax", "199")
        expect(panel.frame.locator(".lanes .mark[data-kind=skip]")).to_have_attribute("data-step", "150")

        # A view that a person chose stays; Follow moves it along.
        panel.frame.locator(".event-row[data-kind=skip]").click()
        expect(chart).to_have_attribute("aria-valuemin", "79")
        run.advance(100)
        run.writer.flush()
        expect(panel.frame.locator(".facts-line")).to_contain_text("300 steps")
        expect(chart).to_have_attribute("aria-valuemin", "79")
        panel.frame.get_by_role("button", name="Follow").click()
        expect(chart).to_have_attribute("aria-valuemax", "299")
        run.advance(50)
        run.writer.flush()
        expect(chart).to_have_attribute("aria-valuemax", "349")

        def seconds_until_shown(last: int) -> float:
            run.advance(1)
            run.writer.flush()
            written = time.monotonic()
            expect(chart).to_have_attribute("aria-valuemax", str(last))
            return time.monotonic() - written

        # On a busy machine not each time.
        assert any(seconds_until_shown(last) < 4 for last in range(350, 380)), "new steps appear within four seconds"
        expect(panel.frame.locator("html")).to_have_attribute("data-same", "yes")
    expect(panel.frame.locator(".status")).to_have_text("ended")


def test_a_tab_that_opens_hidden_draws_when_it_is_shown(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    panel.page.evaluate(
        """() => {
            const frame = document.querySelector("iframe");
            frame.style.display = "none";
            frame.contentWindow.isThePageBefore = true;
            frame.contentWindow.location.reload();
        }"""
    )
    is_new = "!document.querySelector('iframe').contentWindow.isThePageBefore"
    panel.wait_until(lambda: panel.page.evaluate(is_new), "the page that was loaded again")
    panel.wait_until(lambda: panel.frame.locator(".app").count() == 1, "the panel in its hidden frame")
    assert panel.frame.locator(".u-over").count() == 0
    panel.page.evaluate("document.querySelector('iframe').style.display = ''")
    panel.drawn()
    panel.wait_until(lambda: inked_colours(panel, "loss") > 20, "ink")


@pytest.mark.tensorboard_page
def test_when_tensorboard_goes_away_the_panel_says_so_keeps_what_it_has_and_recovers(
    tmp_path: Path, serve: Serve, look: Look
):
    with training.Recording(tmp_path / "live", length=300, start=time.time() - 25) as run:
        run.advance(100)
        run.writer.flush()
        server = serve(tmp_path)
        panel = look(server, trouble=True).open("live").drawn()
        server.stop()
        alert = panel.frame.locator(".alert")
        expect(alert).to_contain_text("TensorBoard does not answer")
        expect(panel.frame.locator(".status")).to_have_text("not connected")
        expect(panel.frame.locator(".plot .u-over")).to_have_count(3)
        run.advance(20)
        run.writer.flush()
        serve(tmp_path, port=server.port)
        expect(alert).to_be_hidden()
        expect(panel.frame.locator("[data-chart=loss] .plot")).to_have_attribute("aria-valuemax", "119")


def test_the_status_tells_a_run_that_is_silent_and_one_that_crashed(tmp_path: Path, serve: Serve, look: Look):
    with training.Recording(tmp_path / "crashed", length=50) as run:
        run.advance(50)
        run.event("crash", {"error": "RuntimeError: out of memory"})
    silent = training.Recording(tmp_path / "silent", length=50, start=time.time() - 2.5 * 3600)
    silent.advance(50)
    silent.writer.flush()
    panel = look(serve(tmp_path)).open("silent").drawn()
    expect(panel.frame.locator(".status")).to_have_text("silent for 2 h")
    panel.frame.get_by_role("option").filter(has_text="crashed").click()
    expect(panel.frame.locator(".status")).to_have_text("crashed")
    expect(panel.frame.get_by_role("button", name="Follow")).to_be_hidden()
    silent.close()


def test_a_run_whose_folder_is_deleted_is_said_to_be_gone_and_others_stay(tmp_path: Path, serve: Serve, look: Look):
    training.demo_like(tmp_path / "stays")
    training.demo_like(tmp_path / "goes")
    panel = look(serve(tmp_path), trouble=True).open("goes").drawn()
    shutil.rmtree(tmp_path / "goes")
    panel.frame.locator("html").evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    expect(panel.frame.locator(".notice")).to_contain_text("goes")
    panel.frame.get_by_role("option").filter(has_text="stays").click()
    panel.drawn()
    expect(panel.frame.locator("h1")).to_have_text("stays")


def test_the_curves_do_not_wait_for_the_events(shared: TensorBoard, look: Look):
    panel = look(shared)
    held: list[Route] = []
    panel.page.route("**/tbnum/events?*", lambda route: held.append(route))
    panel.open("long").drawn()
    panel.wait_until(lambda: inked_colours(panel, "loss") > 20, "ink")
    expect(panel.frame.locator(".events .nothing")).to_have_text("Being worked out …")
    assert "skip" not in (panel.frame.locator(".facts-line").text_content() or ""), "not known is not none"
    panel.wait_until(lambda: bool(held), "the question for the events")
    let_go(panel, "**/tbnum/events?*", held)
    expect(panel.frame.locator(".lanes .mark[data-kind=skip]")).to_have_count(7)
    expect(panel.frame.locator(".facts-line")).to_contain_text("7 skips")


def test_a_long_record_tells_how_far_it_is_read(shared: TensorBoard, look: Look):
    panel = look(shared)
    held: list[Route] = []

    with urllib.request.urlopen(f"{shared.url}data/plugin/tbnum/runs") as answer:
        table = json.load(answer)
    for row in table["runs"]:
        row["steps_read"] = 20_000
    panel.page.route("**/tbnum/run?*", lambda route: held.append(route))
    panel.page.route("**/tbnum/runs", lambda route: route.fulfill(json=table))
    panel.open("long")
    expect(panel.frame.locator(".notice")).to_have_text("Reading long: 20,000 of 50,000 steps")
    let_go(panel, "**/tbnum/run?*", held)
    panel.drawn()


def test_a_damaged_record_tells_how_many_of_its_steps_could_be_read(tmp_path: Path, serve: Serve, look: Look):
    with training.Recording(tmp_path / "run", length=5000) as run:
        run.advance(5000)
    [record] = (file for file in (tmp_path / "run").iterdir() if file.suffix == ".tbnum")
    damaged = bytearray(record.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    record.write_bytes(damaged)
    panel = look(serve(tmp_path)).open("run").drawn()
    expect(panel.frame.locator(".facts-line")).to_contain_text(re.compile(r"^\d,?\d+ of 5,000 steps could be read"))
    expect(panel.frame.get_by_role("option")).to_contain_text("5k steps")
    expect(panel.frame.locator(".problems summary")).to_contain_text("could not be read; what is sound is shown")


def test_a_front_end_that_was_not_built_says_how_to_build_it(shared: TensorBoard, look: Look):
    panel = look(shared)
    entry = plugin.NOT_BUILT.replace("REASON", '"missing: index.js. Run `make frontend`"')
    panel.page.route("**/static/index.js", lambda route: route.fulfill(content_type="text/javascript", body=entry))
    expect(panel.open().frame.get_by_role("alert")).to_contain_text("Run `make frontend`")


@pytest.mark.tensorboard_page
def test_a_path_prefix_is_no_hindrance(logdir: Path, serve: Serve, look: Look):
    panel = look(serve(logdir, "--path_prefix=/of/my/own")).open("long").drawn()
    assert "/of/my/own/" in panel.url
    expect(panel.frame.locator(".lanes .mark[data-kind=skip]")).to_have_count(7)


def test_a_run_that_is_not_there_is_named(shared: TensorBoard, look: Look):
    panel = look(shared, trouble=True).open("no/such run")
    expect(panel.frame.locator(".notice")).to_contain_text("no run of the name no/such run")
    panel.frame.get_by_role("option").filter(has_text="long").click()
    panel.drawn()


def test_an_unchanged_run_is_asked_for_ever_more_rarely(shared: TensorBoard, look: Look):
    panel = look(shared)
    panel.page.clock.install()
    asked: list[str] = []
    under_way: set[Request] = set()
    panel.page.on("request", lambda request: asked.append(request.url) if "/tbnum/runs" in request.url else None)
    panel.page.on("request", lambda request: under_way.add(request))
    for over in ("requestfinished", "requestfailed"):
        panel.page.on(over, lambda request: under_way.discard(request))
    panel.open("long").drawn()
    started = len(asked)
    for _ in range(120):  # two minutes of the page's clock
        panel.page.clock.run_for(1000)
        panel.wait_until(lambda: not under_way, "the answers")
    assert 4 <= len(asked) - started <= 20


def shown_charts(panel: Panel) -> list[str]:
    return panel.frame.locator(".charts > .chart").evaluate_all("charts => charts.map(chart => chart.dataset.chart)")


@pytest.mark.tensorboard_page
def test_views_are_shown_moved_sized_and_put_on_another_axis_and_stay_so(tmp_path: Path, serve: Serve, look: Look):
    training.with_tensors(tmp_path / "tensors")
    panel = look(serve(tmp_path)).open("tensors").drawn()
    assert shown_charts(panel) == ["loss", "scale", "norm"]
    panel.frame.locator("summary", has_text="Views").click()
    for view in ("Learning rate", "Update ratio", "Clipping"):
        panel.frame.get_by_label(view, exact=True).check()
    panel.frame.get_by_label("Loss scale", exact=True).uncheck()
    panel.page.keyboard.press("Escape")
    assert shown_charts(panel) == ["loss", "norm", "clip", "lr", "ratio"]
    for chart in ("lr", "ratio", "clip"):
        panel.wait_until(lambda chart=chart: inked_colours(panel, chart) > 8, f"ink on the chart {chart}")
    expect(panel.frame.locator("[data-chart=clip] .key")).to_contain_text("clipped in 33 % of 399 updates")
    expect(panel.frame.locator("#summary-ratio")).to_contain_text("lowest 0")

    panel.frame.get_by_role("button", name="Move Update ratio up").click()
    panel.frame.get_by_role("button", name="Move Update ratio up").click()
    assert shown_charts(panel) == ["loss", "norm", "ratio", "clip", "lr"]
    grip = panel.frame.get_by_role("separator", name="Height of Gradient norm")
    before = int(grip.get_attribute("aria-valuenow") or 0)
    grip.press("ArrowDown")
    expect(grip).to_have_attribute("aria-valuenow", str(before + 16))
    box = grip.bounding_box()
    assert box is not None
    panel.page.mouse.move(box["x"] + 300, box["y"] + 3)
    panel.page.mouse.down()
    panel.page.mouse.move(box["x"] + 300, box["y"] + 43, steps=3)
    panel.page.mouse.up()
    expect(grip).to_have_attribute("aria-valuenow", str(before + 56))
    panel.frame.get_by_role("button", name="Logarithmic axis of Loss").click()
    panel.wait_until(lambda: "loss.log" in panel.address(), "the views in the address")

    address = panel.address()
    panel.page.reload()
    expect(panel.frame.locator(".plot .u-over")).to_have_count(5)
    assert shown_charts(panel) == ["loss", "norm", "ratio", "clip", "lr"]
    expect(panel.frame.get_by_role("button", name="Logarithmic axis of Loss")).to_have_attribute("aria-pressed", "true")
    expect(grip).to_have_attribute("aria-valuenow", str(before + 56))
    assert panel.address() == address
    panel.open("tensors")  # without views: the browser remembers them
    panel.page.reload()
    expect(panel.frame.locator(".plot .u-over")).to_have_count(5)
    panel.frame.locator("summary", has_text="Views").click()
    panel.frame.get_by_role("button", name="As at first").click()
    panel.drawn()
    assert shown_charts(panel) == ["loss", "scale", "norm"]


def test_marks_are_there_without_the_loss(shared: TensorBoard, look: Look):
    panel = look(shared).open("long", views="-loss,scale")
    expect(panel.frame.locator(".plot .u-over")).to_have_count(2)
    expect(panel.frame.locator(".lanes .mark[data-kind=skip]")).to_have_count(7)
    expect(panel.frame.locator(".on-curve .lane-skip")).to_have_count(0)
