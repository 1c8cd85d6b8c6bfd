"""Aids to reading: a held step, jumping, the table of findings and events, files and figures."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import training
from tests.browser.conftest import Panel, TensorBoard

Look = Callable[..., Panel]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> TensorBoard:
    root = tmp_path_factory.mktemp("logdir")
    training.demo_like(root / "gpt" / "demo")
    training.sparse_skips(root / "long")
    server = TensorBoard(root)
    yield server
    server.stop()


@pytest.mark.tensorboard_page
def test_a_step_that_is_held_is_what_others_are_compared_with(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    plot = panel.frame.locator("[data-chart=loss] .u-over")
    plot.click(position={"x": 120, "y": 150})  # no mark there
    panel.wait_until(lambda: "p.tbnum.pin=" in panel.address(), "the held step in the address")
    held = int(re.search(r"pin=(\d+)", panel.address()).group(1))  # type: ignore[union-attr]
    card = panel.frame.locator(".cursor-card")
    plot.hover(position={"x": 360, "y": 60})
    expect(card).to_contain_text(f"Differences are from step {held}")
    expect(card).to_contain_text(re.compile("Loss\\d[.]\\d+ [(]\N{MINUS SIGN}\\d"))
    panel.page.reload()
    panel.drawn()
    plot.hover(position={"x": 300, "y": 60})
    expect(card).to_contain_text(f"Differences are from step {held}")
    panel.frame.locator("[data-chart=loss] .plot").press("Escape")
    panel.frame.locator("[data-chart=loss] .plot").press("Escape")
    panel.wait_until(lambda: "p.tbnum.pin" not in panel.address(), "no held step")


def test_a_step_is_held_by_key(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo", steps="400-430").drawn()
    chart = panel.frame.locator("[data-chart=scale] .plot")
    chart.focus()
    chart.press("Home")
    chart.press("Enter")
    panel.wait_until(lambda: "p.tbnum.pin=400" in panel.address(), "the held step in the address")
    for _ in range(13):
        chart.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuetext", re.compile(r"Step 413.*Loss scale [\d,]+ \(.*\) \(÷ 2\)"))
    chart.press("f")  # of a run that has ended there is nothing to follow
    chart.press("Enter")
    panel.wait_until(lambda: "p.tbnum.pin=413" in panel.address(), "the other step held")
    assert "p.tbnum.steps=400-430" in panel.address()


@pytest.mark.tensorboard_page
def test_an_address_that_is_followed_in_an_open_tab_leads_to_all_that_it_names(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    panel.open("long", views="norm,loss,-scale", tensors="values", steps="100-140")
    expect(panel.frame.locator("h1")).to_have_text("long")
    ids = panel.frame.locator(".chart")
    expect(ids).to_have_count(2)
    assert ids.evaluate_all("all => all.map(one => one.dataset.chart)") == ["norm", "loss"]
    expect(panel.frame.locator(".values-table tbody tr")).to_have_count(41)
    expect(panel.frame.get_by_label("Run whose values are listed")).to_be_hidden()  # there is one
    panel.open("long", tensors="findings", pin="120")
    expect(panel.frame.locator(".findings")).to_be_visible()
    expect(panel.frame.locator(".values-table")).to_have_count(0)
    panel.frame.locator("[data-chart=loss] .u-over").hover(position={"x": 300, "y": 60})
    expect(panel.frame.locator(".cursor-card")).to_contain_text("Differences are from step 120")
    panel.open("long")
    expect(panel.frame.locator(".dock-root")).to_be_hidden()


def test_a_held_step_is_copied_as_text(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    panel.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    copy = panel.frame.get_by_role("button", name="Copy step")
    expect(copy).to_be_hidden()
    panel.frame.get_by_label("Go to step").fill("412")
    panel.frame.get_by_label("Go to step").press("Enter")
    copy.click()
    expect(panel.frame.get_by_role("button", name="Copied")).to_be_visible()
    text = panel.page.evaluate("navigator.clipboard.readText()")
    assert text.startswith("tbnum: step 412 of gpt/demo\nSkip (bad batch): ")
    assert re.search(r"grad_norm +Infinity\n", text) and re.search(r"loss +\d", text)
    assert "p.tbnum.pin=412" in text


def test_a_touch_pad_zooms_by_a_pinch_and_moves_sideways(shared: TensorBoard, look: Look):
    panel = look(shared).open("long").drawn()
    plot = panel.frame.locator("[data-chart=norm] .u-over")
    chart = panel.frame.locator("[data-chart=loss] .plot")
    view = lambda: [int(chart.get_attribute(f"aria-value{end}") or 0) for end in ("min", "max")]  # noqa: E731
    whole = view()
    plot.hover(position={"x": 200, "y": 30})
    panel.page.keyboard.down("Control")  # as browsers report a pinch
    panel.page.mouse.wheel(0, -60)
    panel.page.keyboard.up("Control")
    panel.wait_until(lambda: view() != whole, "a zoom")
    near = view()
    assert whole[0] < near[0] and near[1] < whole[1]
    panel.page.mouse.wheel(120, 0)
    panel.wait_until(lambda: view() != near, "a move")
    moved = view()
    assert moved[0] > near[0] and moved[1] - moved[0] == near[1] - near[0]
    panel.page.mouse.wheel(0, 200)  # plain scrolling is the page's own
    two_frames = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    panel.frame.locator("body").evaluate(two_frames)
    assert view() == moved


def test_a_zoom_asks_for_its_detail_at_once_and_a_small_move_for_nothing(shared: TensorBoard, look: Look):
    panel = look(shared)
    asked: list[str] = []
    panel.page.on("request", lambda request: asked.append(request.url) if "&from=" in request.url else None)
    panel.open("long").drawn()
    panel.frame.locator("[data-chart=norm] .u-over").hover(position={"x": 300, "y": 30})
    panel.page.keyboard.down("Control")
    panel.page.mouse.wheel(0, -60)
    panel.page.keyboard.up("Control")
    legend = panel.frame.locator("[data-chart=loss] .key")
    expect(legend).to_contain_text("min to max of 32 steps")
    assert len(asked) == 1
    chart = panel.frame.locator("[data-chart=loss] .plot")
    before = chart.get_attribute("aria-valuemin")
    panel.page.mouse.wheel(20, 0)
    expect(chart).not_to_have_attribute("aria-valuemin", before or "")
    expect(legend).to_contain_text("min to max of 32 steps")
    assert len(asked) == 1, "what is on either side had come along"


def test_a_step_is_jumped_to_by_its_number(shared: TensorBoard, look: Look):
    panel = look(shared).open("long").drawn()
    panel.page.locator("iframe").focus()
    panel.frame.locator("[data-chart=loss] .plot").press("g")
    field = panel.frame.get_by_label("Go to step")
    expect(field).to_be_focused()
    field.fill("31,415")
    field.press("Enter")
    panel.wait_until(lambda: "p.tbnum.steps=31355-31475" in panel.address(), "the steps around it")
    expect(panel.frame.locator(".cursor-card strong")).to_have_text("Step 31,415")


def test_findings_and_events_are_sorted_filtered_and_lead_to_their_step(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    panel.frame.get_by_role("button", name="Findings", exact=True).click()
    table = panel.frame.locator(".data-table")
    rows = table.locator("tbody tr")
    expect(rows.first).to_be_visible()
    table.get_by_role("button", name="Step").click()
    expect(table.locator("th[data-column=step]")).to_have_attribute("aria-sort", "ascending")
    steps = [int(text) for text in table.locator("td.number button").all_text_contents()]
    assert steps == sorted(steps) and len(steps) >= 54
    panel.frame.get_by_label("Filter findings and events").fill("bad batch skip warning")
    expect(rows).to_have_count(1)
    rows.first.get_by_role("button").click()
    expect(panel.frame.locator(".card")).to_contain_text("Step 412")
    panel.frame.get_by_role("button", name="Close the findings").click()
    expect(table).to_be_hidden()


def test_events_that_are_alike_are_one_row_that_opens_by_mouse_and_by_key(shared: TensorBoard, look: Look):
    panel = look(shared).open("long", tensors="findings").drawn()
    table = panel.frame.locator(".data-table")
    openers = table.locator("button.opener")
    expect(openers).to_have_text([re.compile(r"^and 6 more like it, to step [\d,]+$"), re.compile("nothing to act on")])
    rows = table.locator("tbody tr")
    folded = rows.count()
    openers.first.focus()
    openers.first.press("Enter")
    expect(rows).to_have_count(folded + 6)
    expect(openers.first).to_be_focused()
    expect(openers.first).to_have_attribute("aria-expanded", "true")
    openers.first.click()
    expect(rows).to_have_count(folded)
    panel.frame.get_by_label("Filter findings and events").fill("skip bad batch")
    expect(table.locator("tbody tr.severity-warning")).to_have_count(7)
    expect(openers).to_have_count(0)


def test_every_one_of_many_alike_is_reached_by_key(serve: Callable[..., TensorBoard], look: Look, tmp_path: Path):
    training.sparse_skips(tmp_path / "skips", 1300, range(20, 1220))
    panel = look(serve(tmp_path)).open("skips", tensors="findings").drawn()
    table = panel.frame.locator(".data-table")
    table.get_by_role("button", name="and 1,").press("Enter")
    for _ in range(2):
        table.get_by_role("button", name=re.compile("^Show the")).press("Enter")
    expect(table.get_by_role("button", name=re.compile("^Show the"))).to_have_count(0)
    warnings = table.locator("tbody tr.severity-warning td.number button").all_text_contents()
    assert {int(text.replace(",", "")) for text in warnings} >= set(range(37, 1220))


@pytest.mark.tensorboard_page
def test_events_and_steps_are_saved_as_files_and_charts_as_a_picture(shared: TensorBoard, look: Look, tmp_path: Path):
    panel = look(shared).open("gpt/demo", tensors="findings").drawn()
    for name, rows in (("events CSV", 54), ("steps CSV", 600)):
        with panel.page.expect_download() as saved:
            panel.frame.get_by_role("link", name=name).click()
        saved.value.save_as(tmp_path / name)
        with open(tmp_path / name, newline="") as file:
            assert len(list(csv.DictReader(file))) == rows
    with panel.page.expect_download() as saved:
        panel.frame.get_by_role("button", name="Figure (PNG)").click()
    assert saved.value.suggested_filename == "gpt-demo.png"
    saved.value.save_as(tmp_path / "figure.png")
    picture = (tmp_path / "figure.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 20_000
    width = int.from_bytes(picture[16:20], "big")
    assert width == 2 * panel.frame.locator(".charts").evaluate("charts => charts.clientWidth")


def test_runs_stand_beside_each_other_and_their_settings_are_compared(shared: TensorBoard, look: Look):
    panel = look(shared).open("gpt/demo").drawn()
    panel.frame.locator("summary", has_text="Views").click()
    panel.frame.get_by_role("button", name="Runs as a table").click()
    row = panel.frame.locator(".data-table tbody tr", has_text="long")
    expect(row).to_contain_text("50,000")
    expect(row).to_contain_text("7 (0.014 %)")
    panel.frame.get_by_label("Compare long").check()
    panel.frame.get_by_label("Compare gpt/demo").check()
    expect(panel.frame.locator(".differences")).to_contain_text("scaler.init_scale6553616777216")
    row.get_by_role("button", name="long").click()
    expect(panel.frame.locator("h1")).to_have_text("long")
