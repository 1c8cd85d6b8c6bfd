"""The panel without a mouse, without sight, without motion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import training
from tests.browser.conftest import Panel, TensorBoard

Look = Callable[..., Panel]

DOCKS = ["heatmap", "histogram", "findings", "values", "runs"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> TensorBoard:
    root = tmp_path_factory.mktemp("logdir")
    training.with_tensors(root / "tensors")
    server = TensorBoard(root)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core."""
    package = pytest.importorskip("axe_playwright_python", reason="pip install --no-deps axe-playwright-python")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("dock", DOCKS)
def test_axe_finds_no_violation(shared: TensorBoard, look: Look, axe: str, dock: str, dark: bool):
    few = "240-260"  # steps: each row of the table of values is looked at
    panel = look(shared).open("tensors", event="250.skip", tensors=dock, steps=few).drawn()
    expect(panel.frame.locator(".dock")).to_be_visible()
    expect(panel.frame.locator(".card-values dl")).to_be_visible()
    panel.frame.locator("summary", has_text="Views").click()
    if dark:
        panel.page.evaluate("document.body.classList.add('dark-mode')")
        expect(panel.frame.locator("html.dark")).to_have_count(1)
    frame = next(frame for frame in panel.page.frames if frame != panel.page.main_frame)
    frame.evaluate("Promise.all(document.getAnimations().map(({ finished }) => finished))")
    frame.evaluate(axe)
    violations = frame.evaluate("axe.run(document, {iframes: false}).then(({violations}) => violations)")
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in violations] == []


def test_every_chart_can_be_focused_and_says_what_it_shows(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", views="loss,scale,norm,clip,lr,ratio")
    charts = panel.frame.locator(".plot[role=slider]")
    expect(charts).to_have_count(6)
    for at in range(6):
        chart = charts.nth(at)
        chart.focus()
        chart.press("End")
        expect(chart).to_have_attribute("aria-valuenow", "399")
        summary = panel.frame.locator("#" + (chart.get_attribute("aria-describedby") or ""))
        expect(summary).to_contain_text("steps 0 to 399: from")


def test_the_charts_are_a_table_too(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors", steps="245-255").drawn()
    panel.frame.locator("summary", has_text="Views").click()
    panel.frame.get_by_role("button", name="Values as a table").click()
    rows = panel.frame.locator(".values-table tbody tr")
    expect(rows).to_have_count(11)
    expect(rows.nth(5)).to_contain_text("250")
    expect(rows.nth(5)).to_contain_text("∞")
    heads = panel.frame.locator(".values-table thead th").all_text_contents()
    assert heads == [
        "Step", "Loss", "Loss scale", "Gradient norm before clipping", "Gradient norm after clipping",
        "Gradient norm threshold",
    ]  # fmt: skip


def test_from_the_tab_to_a_skips_cause_by_keys_alone(shared: TensorBoard, look: Look):
    panel = look(shared).open("tensors").drawn()
    panel.frame.get_by_label("Filter events").focus()
    panel.page.keyboard.type("skip")
    panel.page.keyboard.press("Tab")
    panel.page.keyboard.press("ArrowDown")
    panel.page.keyboard.press("Enter")
    expect(panel.frame.locator(".card .cause")).to_have_text("bad batch")
    expect(panel.frame.locator("main > [role=status]")).to_contain_text("The step")


def test_nothing_moves_for_those_who_asked_for_less_motion(shared: TensorBoard, look: Look):
    panel = look(shared)
    panel.page.emulate_media(reduced_motion="reduce")
    panel.open("tensors").drawn()
    moving = panel.frame.locator("html").evaluate("root => document.getAnimations().length")
    assert moving == 0


UNNAMED = """() => {
  const focusable = "a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex='-1'])";
  const name = (one) => one.ariaLabel || one.title || one.textContent.trim() || [...(one.labels ?? [])].map((label) =>
    label.textContent).join("") || one.placeholder;
  const seen = (one) => one.checkVisibility({ visibilityProperty: true });
  return [...document.querySelectorAll(focusable)].filter((one) => seen(one) && !name(one)).map((one) => one.outerHTML);
}"""

WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("how", ["forced colours", "right to left", "200 %", "400 px", "reduced motion"])
def test_in_every_way_of_looking_all_is_named_and_nothing_is_cut_off(
    shared: TensorBoard, look: Look, axe: str, how: str
):
    width, height = {"200 %": (720, 450), "400 px": (400, 800)}.get(how, (1440, 900))
    panel = look(shared, width=width, height=height)
    if how == "forced colours":
        panel.page.emulate_media(forced_colors="active")
    if how == "reduced motion":
        panel.page.emulate_media(reduced_motion="reduce")
    panel.open("tensors", event="250.skip").drawn()
    expect(panel.frame.locator(".card-values dl")).to_be_visible()
    frame = next(frame for frame in panel.page.frames if frame != panel.page.main_frame)
    if how == "right to left":
        frame.evaluate("document.documentElement.dir = 'rtl'")
    first = panel.frame.locator(".plot .u-over").first
    expect(first).to_be_visible()
    assert frame.evaluate(WIDER) <= 0
    assert frame.evaluate(UNNAMED) == []
    panel.frame.locator(".plot[role=slider]").first.focus()
    panel.page.keyboard.press("End")
    expect(panel.frame.locator(".plot[role=slider]").first).to_have_attribute("aria-valuenow", "399")
    frame.evaluate(axe)
    violations = frame.evaluate("axe.run(document, {iframes: false}).then(({violations}) => violations)")
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in violations] == []
