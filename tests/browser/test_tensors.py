"""The heat map of tensors and their histograms, below the charts."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.browser import training
from tests.browser.conftest import Panel, TensorBoard

Look = Callable[..., Panel]

BROKEN = "blocks.3.attn.qkv.weight"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> TensorBoard:
    root = tmp_path_factory.mktemp("logdir")
    training.with_tensors(root / "tensors", blocks=8)
    training.sparse_skips(root / "bare", 2000)
    server = TensorBoard(root)
    yield server
    server.stop()


def heat_map(panel: Panel) -> Locator:
    """The heat map, drawn."""
    scroller = panel.frame.locator(".heat-scroller")
    panel.wait_until(lambda: scroller.count() == 1 and hatched(scroller) > 0, "a heat map with what was not finite")
    return scroller


def hatched(scroller: Locator) -> int:
    """Pixels of the hatch that marks what is not finite, in light mode."""
    return scroller.locator("canvas").evaluate(
        """canvas => {
            const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let found = 0;
            for (let at = 0; at < data.length; at += 4)
                if (data[at] === 163 && data[at + 1] === 18 && data[at + 2] === 122) found++;
            return found;
        }"""
    )


def test_tensors_are_a_click_away_and_cost_nothing_before(shared: TensorBoard, look: Look):
    panel = look(shared)
    asked: list[str] = []
    panel.page.on("request", lambda request: asked.append(request.url))
    panel.open("tensors").drawn()
    button = panel.frame.get_by_role("button", name="Tensors", exact=True)
    expect(button).to_be_visible()
    assert not any(re.search("(dock|heatmap|histogram)[.]js", url) for url in asked)
    button.click()
    scroller = heat_map(panel)
    panel.wait_until(lambda: "p.tbnum.tensors=heatmap" in panel.address(), "the heat map in the address")
    expect(panel.frame.locator("#summary-heatmap")).to_have_text(
        "Gradient norm, 50 rows, steps 0 to 399; 2 rows with values that are not finite."
    )
    plot = panel.frame.locator("[data-chart=loss] .u-over").bounding_box()
    box = scroller.bounding_box()
    assert plot is not None and box is not None
    panel.page.mouse.move(plot["x"] + plot["width"] / 2, box["y"] + 20)
    cursor = panel.frame.locator(".heat-cursor").bounding_box()
    line = panel.frame.locator("[data-chart=loss] .u-cursor-x").bounding_box()
    assert cursor is not None and line is not None
    assert abs(cursor["x"] - line["x"]) <= 2, "one cursor through charts and heat map"
    expect(panel.frame.locator(".heat-tip")).to_contain_text("gradient norm")
    button.click()
    expect(scroller).to_be_hidden()


def test_a_run_without_tensors_has_no_button_for_them(shared: TensorBoard, look: Look):
    panel = look(shared).open("bare", tensors="heatmap").drawn()
    panel.wait_until(lambda: "p.tbnum.tensors" not in panel.address(), "no heat map in the address")
    expect(panel.frame.get_by_role("button", name="Tensors", exact=True)).to_be_hidden()
    expect(panel.frame.locator(".heat-scroller")).to_have_count(0)


def test_a_drag_over_the_heat_map_zooms_the_charts(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", tensors="heatmap").drawn()
    scroller = heat_map(panel)
    plot, box = panel.frame.locator("[data-chart=loss] .u-over").bounding_box(), scroller.bounding_box()
    assert plot is not None and box is not None
    panel.page.mouse.move(plot["x"] + plot["width"] * 0.25, box["y"] + 30)
    panel.page.mouse.down()
    panel.page.mouse.move(plot["x"] + plot["width"] * 0.5, box["y"] + 40, steps=4)
    panel.page.mouse.up()
    panel.wait_until(lambda: "p.tbnum.steps" in panel.address(), "a zoom")
    start, end = map(int, re.search(r"steps=(\d+)-(\d+)", panel.address()).groups())  # type: ignore[union-attr]
    assert 95 <= start <= 105 and 195 <= end <= 205
    expect(panel.frame.locator("#summary-heatmap")).to_contain_text(f"steps {start} to {end}; all values finite")
    legend = panel.frame.locator(".heat-legend")
    expect(legend).to_contain_text(re.compile("up to the next sample.*not finite, at its steps.*no value"))


def test_a_held_step_stands_in_the_heat_map_as_in_the_charts(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", tensors="heatmap", pin="200").drawn()
    heat_map(panel)
    line = panel.frame.locator(".heat-pinned")
    expect(line).to_be_visible()
    scroller = panel.frame.locator(".heat-scroller").bounding_box()
    plot = panel.frame.locator("[data-chart=loss] .u-over").bounding_box()
    at = line.bounding_box()
    assert scroller and plot and at
    assert at["x"] == pytest.approx(plot["x"] + plot["width"] * 200 / 399, abs=2)
    assert scroller["x"] < at["x"] < scroller["x"] + scroller["width"]
    panel.frame.locator("[data-chart=loss] .plot").press("Escape")
    expect(line).to_be_hidden()


def test_modules_group_tensors_and_open_and_the_worst_come_first(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", tensors="heatmap").drawn()
    scroller, summary = heat_map(panel), panel.frame.locator("#summary-heatmap")
    panel.frame.get_by_label("Depth of modules").fill("2")
    expect(summary).to_contain_text("10 rows, 8 of them modules")
    panel.frame.get_by_role("button", name="Worst first").click()
    scroller.focus()
    scroller.press("Home")
    said = panel.frame.locator(".heat [role=status]")
    expect(said).to_contain_text("blocks.3: Step 0")
    scroller.press("Enter")
    expect(summary).to_contain_text("16 rows")
    scroller.press("ArrowDown")
    expect(said).to_contain_text(re.compile("^(attn.qkv|mlp.up).weight: "))


def test_a_cell_opens_its_tensors_lines_and_histogram(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", tensors="heatmap").drawn()
    scroller = heat_map(panel)
    scroller.focus()
    scroller.press("Home")
    for _ in range(2):
        scroller.press("ArrowDown")
    scroller.press("ArrowRight")
    scroller.press("Enter")
    expect(panel.frame.locator("[data-chart=tensor] h2")).to_have_text("blocks.0.attn.qkv.weight")
    expect(panel.frame.locator("[data-chart=tensor] .key")).to_have_text("gradient normupdate normparameter norm")
    title = panel.frame.locator(".histogram-title").first
    expect(title).to_have_text("Step 10: gradient of blocks.0.attn.qkv.weight, by magnitude")
    panel.wait_until(lambda: "p.tbnum.tensor=blocks.0.attn.qkv.weight" in panel.address(), "the tensor in the address")
    panel.page.reload()
    expect(panel.frame.locator("[data-chart=tensor] h2")).to_have_text("blocks.0.attn.qkv.weight")
    panel.frame.get_by_role("button", name="Close the tensor", exact=True).click()
    panel.drawn()


def test_the_cells_of_a_step_are_a_table_too(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", tensors="heatmap", steps="245-255").drawn()
    heat_map(panel)
    panel.frame.get_by_role("button", name="Table").click()
    chart = panel.frame.locator("[data-chart=loss] .plot")
    chart.focus()
    chart.press("Home")
    for _ in range(5):
        chart.press("ArrowRight")
    row = panel.frame.locator(".heat-table tr", has_text=BROKEN)
    expect(row).to_contain_text("1 sample")


def test_the_histogram_tells_what_formats_lose_at_this_scale_and_at_another(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", tensors="histogram").drawn()
    chart = panel.frame.locator("[data-chart=loss] .plot")
    chart.focus()
    chart.press("Home")
    expect(panel.frame.locator(".histogram-title").first).to_have_text(
        "Step 0: gradient of the whole model, by magnitude"
    )
    row = panel.frame.locator("tr[data-format=float16] td")
    expect(row).to_have_count(2)  # at this scale alone, until another one is chosen
    slider = panel.frame.get_by_label("Another loss scale")
    slider.fill("0")
    url = f"{shared.url}data/plugin/tbnum/histogram?run=tensors&step=0"
    with urllib.request.urlopen(url) as answer:
        histogram = json.load(answer)
    total = sum(count for _, count in histogram["counts"]) + histogram["zero"]
    limit = 2.0**-25  # what float16 rounds to zero, times a scale of one
    flushed = sum(count for bin, count in histogram["counts"] if 2.0 ** (bin - 127) <= limit)
    share = float((row.nth(2).text_content() or "").removesuffix(" %"))
    assert share == pytest.approx(100 * flushed / total, rel=0.01) and share > 0.4
    expect(row.nth(0)).to_have_text(re.compile(r"^(0|0\.\d+|< 0\.0001) %$"))
    expect(panel.frame.locator("#summary-histogram")).to_contain_text("float8 e4m3")
    assert panel.frame.locator(".histogram .range").count() == 8


@pytest.mark.parametrize("height", [900, 1000])
def test_an_address_leads_to_the_whole_histogram_with_its_axis_and_every_format(
    shared: TensorBoard, look: Look, height: int
):
    panel = look(shared, height=height).open("tensors", tensors="histogram").drawn()
    box, labels = panel.frame.locator(".histogram-box"), panel.frame.locator(".histogram .format-label")
    expect(labels).to_have_count(4)
    bottom = box.evaluate("box => box.getBoundingClientRect().bottom")
    for part in (labels, panel.frame.locator(".histogram .range-full"), panel.frame.locator(".histogram .tick")):
        ends = part.evaluate_all("parts => parts.map(part => part.getBoundingClientRect().bottom)")
        assert ends and max(ends) <= bottom, "cut off"


def test_the_ridge_leads_to_its_steps(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", tensors="histogram").drawn()
    ridge = panel.frame.locator(".ridge")
    title = panel.frame.locator(".histogram-title").first
    expect(title).to_contain_text("Step 390")
    ridge.focus()
    ridge.press("ArrowUp")
    expect(title).to_contain_text("Step 380")


def test_a_tensor_at_fault_is_a_link_to_it(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", event="250.skip").drawn()
    panel.frame.locator(".card").get_by_role("button", name=BROKEN).click()
    expect(panel.frame.locator("[data-chart=tensor] h2")).to_have_text(BROKEN)
    expect(panel.frame.locator(".histogram-title").first).to_contain_text(f"Step 250: gradient of {BROKEN}")
    expect(panel.frame.locator(".histogram-more")).to_contain_text("∞ 5, NaN 12")


def test_the_least_headroom_of_all_tensors_is_a_view(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", views="loss,scale,-norm,headroom").drawn()
    expect(panel.frame.locator("#summary-headroom")).to_contain_text(re.compile("lowest .* highest"))
