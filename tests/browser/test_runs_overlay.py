"""Several runs in the same charts: colours, alignment, seeds, the table of runs, what the address holds."""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser import training
from tests.browser.conftest import Panel, TensorBoard
from tests.browser.test_access import axe  # noqa: F401

Look = Callable[..., Panel]

FIRST, SECOND, THIRD = (f"gpt/lr1e-3/seed{seed}" for seed in training.SEEDS)
OTHERS = [f"gpt/lr3e-3/seed{seed}" for seed in training.SEEDS]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logdir")
    training.sweep(root)
    return root


def with_others(panel: Panel, run: str, others: list[str], **place: str) -> Panel:
    """Opens a run with others in the charts, as an address leads to them, and waits until they are drawn."""
    parts = [*place.items(), ("run", run), *(("over", name) for name in others)]
    panel.page.goto(
        panel.url + "#tbnum&" + "&".join(f"p.tbnum.{name}={quote(value, safe='')}" for name, value in parts)
    )
    expect(panel.frame.locator(".overlay-run").first).to_be_visible()
    panel.wait_until(lambda: ends(panel) > 0, "the others' lines")
    return panel


def ends(panel: Panel) -> int:
    """How many of the others' last losses the summary for screen readers has."""
    said = panel.frame.locator("#summary-loss").text_content() or ""
    return said.partition("Beside it, at the end: ")[2].count(",") + 1 if "Beside it" in said else 0


def legend(panel: Panel) -> dict[str, str]:
    """Colours by name in the legend, the current run first."""
    found = panel.frame.locator(".overlay-run").evaluate_all(
        "items => items.map(item => [item.querySelector('.overlay-name').textContent,"
        " item.querySelector('line').getAttribute('stroke')])"
    )
    return dict(found)


def painted(panel: Panel, chart: str, color: str, part: Sequence[float] = (0.0, 1.0)) -> int:
    """Pixels of about a colour on a chart's plot, from and to a share of its width."""
    return panel.frame.locator(f"[data-chart={chart}] canvas").evaluate(
        """(canvas, [color, from, to]) => {
            const { offsetLeft: left, clientWidth: width } = canvas.parentElement.querySelector(".u-over");
            const context = canvas.getContext("2d");
            const { data } = context.getImageData(left + width * from, 0, width * (to - from), canvas.height);
            const wanted = [1, 3, 5].map(at => parseInt(color.slice(at, at + 2), 16));
            let count = 0;
            for (let at = 0; at < data.length; at += 4) {
                count += wanted.every((value, part) => Math.abs(data[at + part] - value) < 24) && data[at + 3] > 200;
            }
            return count;
        }""",
        [color, *part],
    )


def fetched(server: TensorBoard, route: str, **query: object) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.url}data/plugin/tbnum/{route}?{urlencode(query)}") as answer:
        return json.load(answer)


def addressed(panel: Panel) -> list[str]:
    """The runs beside the current one that the address names."""
    return [run.replace("%2F", "/") for run in re.findall(r"p\.tbnum\.over=([^&]+)", panel.address())]


def as_hex(color: str) -> str:
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", color)[:3])


@pytest.mark.parametrize("fast", ["true", "false"])
@pytest.mark.tensorboard_page
def test_runs_have_the_colours_that_tensorboard_gives_them(logdir, serve, look: Look, fast):
    panel = look(serve(logdir, f"--load_fast={fast}"))
    panel.page.goto(panel.url + "#timeseries")
    swatches = panel.page.locator(".run-color-swatch")
    expect(swatches).to_have_count(8)
    theirs = dict(
        swatches.evaluate_all(
            "all => all.map(one => [one.closest('tb-data-table-content-row').innerText.trim(),"
            " getComputedStyle(one).backgroundColor])"
        )
    )
    with_others(panel, FIRST, [SECOND, OTHERS[0], "gpt/slow", "elsewhere"])
    known = [FIRST, SECOND, OTHERS[0], "gpt/slow"]
    panel.wait_until(lambda: legend(panel)[SECOND] == as_hex(theirs[SECOND]), "TensorBoard's colours")
    ours = legend(panel)
    assert {run: ours[run] for run in known} == {run: as_hex(theirs[run]) for run in known}
    assert ours["elsewhere"] not in {as_hex(color) for color in theirs.values()}, "TensorBoard does not know this one"
    panel.wait_until(lambda: ends(panel) == 4, "four lines")
    for color in (ours[SECOND], ours[OTHERS[0]], ours["elsewhere"]):
        assert painted(panel, "loss", color) > 100 and painted(panel, "norm", color) > 100


@pytest.mark.tensorboard_page
def test_a_run_is_put_beside_the_current_one_by_key_or_box_and_its_module_comes_only_then(shared, look: Look):
    panel = look(shared)
    asked: list[str] = []
    panel.page.on("request", lambda request: asked.append(request.url))
    panel.open(FIRST).drawn()
    assert not any("overlay" in url for url in asked)
    runs = panel.frame.get_by_role("listbox", name="Runs")
    runs.focus()
    expect(runs.locator(".row.active")).to_have_css("outline-style", "solid")
    expect(runs).to_have_css("outline-style", "none")  # rows would lie over a ring around the list
    runs.press("ArrowDown")
    runs.press("o")
    panel.wait_until(lambda: addressed(panel) == [SECOND], "the run in the address")
    panel.wait_until(lambda: ends(panel) == 1, "its line")
    expect(panel.frame.locator("p[role=status]").first).to_contain_text(f"{SECOND} is now in the charts")
    expect(panel.frame.locator("#summary-loss")).to_contain_text(re.compile(rf"Beside it, at the end: {SECOND} \d"))
    assert any("static/overlay" in url for url in asked)
    runs.press("o")
    panel.wait_until(lambda: addressed(panel) == [], "the run out of the address")
    expect(panel.frame.locator(".overlay-bar")).to_be_hidden()
    tick = runs.get_by_role("option").filter(has_text=THIRD).locator(".run-tick")
    assert 0.3 < float(tick.evaluate("tick => getComputedStyle(tick).opacity")) < 1, "to be seen without a pointer"
    tick.click()
    panel.wait_until(lambda: addressed(panel) == [THIRD], "the ticked run in the address")
    expect(panel.frame.locator("h1")).to_have_text(FIRST)


def test_the_card_at_the_cursor_has_each_runs_value_in_the_view_that_it_is_over(shared, look: Look):
    panel = with_others(look(shared), FIRST, [SECOND, "gpt/long"])
    panel.wait_until(lambda: ends(panel) == 2, "both lines")
    card = panel.frame.locator(".cursor-runs")
    over = panel.frame.locator("[data-chart=loss] .u-over")
    width = over.evaluate("over => over.clientWidth")
    over.hover(position={"x": width / 20, "y": 100})  # step 60, before any bad batch
    expect(card.locator("caption")).to_have_text("Loss")
    expect(card.locator("tbody tr")).to_have_count(3)
    values = [float(text) for text in card.locator("td.number").all_text_contents()]
    assert all(1 < value < 8 for value in values) and len(set(values)) == 3
    panel.frame.locator("[data-chart=scale] .u-over").hover(position={"x": 60, "y": 20})
    expect(card.locator("caption")).to_have_text("Loss scale")
    expect(card.locator("td.number").nth(1)).to_have_text("65,536 (2\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT SIX})")
    over.hover(position={"x": width - 20, "y": 100})  # beyond the end of all but the long one, which widened the axis
    expect(card.locator("td.number")).to_have_text(["\N{EN DASH}", "\N{EN DASH}", re.compile(r"^1\.\d+$")])


def test_runs_are_aligned_by_steps_by_time_and_by_updates(shared, look: Look):
    panel = with_others(look(shared), FIRST, [OTHERS[2], "gpt/slow"])
    axis = panel.frame.get_by_role("group", name="Horizontal axis")
    with panel.page.expect_response(lambda answer: "overlay?" in answer.url and "x=time" in answer.url):
        axis.get_by_role("button", name="Time").click()
    # The slow run takes four times as long: the axis reaches to its end.
    plot = panel.frame.locator("[data-chart=loss] .plot")
    panel.wait_until(lambda: int(plot.get_attribute("aria-valuemax") or 0) > 2300, "the end of the slow run")
    with panel.page.expect_response(lambda answer: "overlay?" in answer.url and "x=updates" in answer.url):
        axis.get_by_role("button", name="Updates").click()
    panel.wait_until(lambda: "p.tbnum.x=updates" in panel.address(), "the alignment in the address")
    panel.frame.locator("[data-chart=loss] .u-over").hover(position={"x": 300, "y": 100})
    expect(panel.frame.locator(".cursor-runs tbody tr")).to_have_count(3)
    # 600 steps of which 5 were skipped: the slow run, which skipped none, is 5 updates longer.
    panel.wait_until(lambda: 604 <= int(plot.get_attribute("aria-valuemax") or 0) <= 606, "the end of the slow run")
    panel.page.reload()
    expect(axis.get_by_role("button", name="Updates")).to_have_attribute("aria-pressed", "true")


def test_seeds_of_one_setting_become_their_mean_with_its_range(shared, look: Look):
    panel = with_others(look(shared), FIRST, [SECOND, THIRD, *OTHERS])
    panel.wait_until(lambda: ends(panel) == 5, "five lines")
    colors = legend(panel)
    group = panel.frame.get_by_role("button", name="Group seeds")
    group.click()
    panel.wait_until(lambda: list(legend(panel)) == ["lr1e-3/seed1", "lr1e-3 · 3 seeds", "lr3e-3 · 3 seeds"], "groups")
    panel.wait_until(lambda: ends(panel) == 2, "two lines")
    assert painted(panel, "loss", colors["lr3e-3/seed2"]) == 0
    assert painted(panel, "loss", colors["lr3e-3/seed1"]) > 100
    panel.frame.locator("[data-chart=loss] .u-over").hover(position={"x": 500, "y": 60})
    mean = float(panel.frame.locator(".cursor-runs td.number").nth(2).text_content() or "nan")
    assert 1.7 < mean < 3.5
    panel.wait_until(lambda: "p.tbnum.seeds=grouped" in panel.address(), "the grouping in the address")
    panel.page.reload()
    panel.wait_until(lambda: ends(panel) == 2, "two lines again")
    group.click()
    panel.wait_until(lambda: ends(panel) == 5, "single runs")


@pytest.mark.tensorboard_page
def test_a_run_beside_the_current_one_grows_as_it_is_written(tmp_path, serve, look: Look):
    with training.Recording(tmp_path / "old", length=50) as old:
        old.advance(50)
    with training.Recording(tmp_path / "growing", seed=1, length=100, start=time.time()) as growing:
        growing.advance(60)
        assert growing.writer.flush(600)
        panel = with_others(look(serve(tmp_path)), "old", ["growing"])
        plot = panel.frame.locator("[data-chart=loss] .plot")
        expect(plot).to_have_attribute("aria-valuemax", "59")
        growing.advance(30)
        assert growing.writer.flush(600)
        expect(plot).to_have_attribute("aria-valuemax", "89")


def test_headroom_and_update_ratio_of_other_runs_are_drawn_and_reported(tmp_path, serve, look: Look):
    for name in ("one", "two"):
        training.with_tensors(tmp_path / name)
    panel = look(serve(tmp_path))
    panel.open("one", over="two", views="headroom,ratio,-loss,-scale,-norm")
    values = panel.frame.locator(".cursor-runs td.number")

    def drawn(chart: str) -> bool:
        colors = legend(panel)
        return len(colors) == 2 and all(painted(panel, chart, color) for color in colors.values())

    for chart in ("headroom", "ratio"):  # the cursor shows what is drawn when it moves, not what comes later
        panel.wait_until(lambda chart=chart: drawn(chart), f"both lines of {chart}")
    for chart, number in (("headroom", "^\N{MINUS SIGN}?[0-9]+[.][0-9]+$"), ("ratio", r"^0[.]00\d+$")):
        panel.frame.locator(f"[data-chart={chart}] .u-over").hover(position={"x": 203, "y": 20})
        expect(panel.frame.locator(".cursor-runs caption")).to_have_text(
            chart.capitalize().replace("Ratio", "Update ratio")
        )
        expect(values).to_have_text([re.compile(number)] * 2)
    panel.frame.locator("summary", has_text="Views").click()
    panel.frame.get_by_role("button", name="Values as a table").click()
    choice = panel.frame.get_by_label("Run whose values are listed")
    for run in (0, 1):
        choice.select_option(index=run)
        expect(panel.frame.locator(".values-table thead th")).to_have_text(["Step", "Headroom", "Update ratio"])
        row = panel.frame.locator(".values-table tbody tr").first.locator("td")
        expect(row).to_have_text([re.compile("^\N{MINUS SIGN}?[0-9]+[.][0-9]+$"), re.compile(r"^0[.]00\d+$")])


def test_no_line_of_any_run_leads_over_steps_that_a_damaged_log_lacks(tmp_path, serve, look: Look):
    for seed, name in enumerate(("one", "two", "three")):
        with training.Recording(tmp_path / name, length=400, seed=seed, config={"seed": seed}) as run:
            names = training.tensor_names(1)
            for step in (*range(100), *range(300, 400)):
                run.step = step
                if step % 10 == 0:
                    run.tensors(names)
                run.advance()
    panel = look(serve(tmp_path))

    def inked(chart: str, *part: float) -> bool:
        return any(painted(panel, chart, color, part) for color in legend(panel).values())

    for place in ({}, {"x": "time"}, {"seeds": "grouped"}):
        with_others(panel, "one", ["two", "three"], views="loss,scale,ratio,headroom,-norm", **place)
        for chart in ("loss", "scale", "ratio", "headroom"):
            panel.wait_until(lambda chart=chart: inked(chart, 0, 0.25), f"the lines of {chart}")
            assert not inked(chart, 0.3, 0.7), (chart, place)


def test_what_is_not_finite_is_reported_of_each_run_and_numbers_stand_clear_of_the_lines(tmp_path, serve, look: Look):
    for name in ("one", "two"):
        with training.Recording(tmp_path / name, nan_loss=[*range(40, 60)], bad=[70], length=100) as run:
            run.advance(100)
    panel = with_others(look(serve(tmp_path)), "one", ["two"], tensors="values")
    for run in (0, 1):
        panel.frame.get_by_label("Run whose values are listed").select_option(index=run)
        rows = panel.frame.locator(".values-table tbody tr")
        expect(rows.nth(50).locator("td").first).to_have_text("NaN")
        expect(rows.nth(70)).to_contain_text("\N{INFINITY}")
    panel.frame.get_by_role("button", name="Close the values").click()
    values = panel.frame.locator(".cursor-runs td.number")
    chart = panel.frame.locator("[data-chart=loss] .plot")
    over = panel.frame.locator("[data-chart=loss] .u-over")
    width, left = over.evaluate("over => [over.clientWidth, over.offsetLeft]")
    over.hover(position={"x": width * 50 / 99, "y": 60})
    expect(chart).to_have_attribute("aria-valuenow", "50")
    expect(values).to_have_text(["NaN", "NaN"])
    panel.frame.locator("[data-chart=norm] .u-over").hover(position={"x": width * 70 / 99, "y": 30})
    expect(values).to_have_text(["\N{INFINITY}", "\N{INFINITY}"])
    panel.page.mouse.move(5, 300)
    ink = panel.frame.locator("[data-chart=norm] canvas").evaluate(
        """(canvas, [from, gap, to]) => {
            const dark = (at, width) => {
                const {data} = canvas.getContext("2d").getImageData(at, 0, width, canvas.height - 50);
                let found = 0;
                for (let at = 0; at < data.length; at += 4) found += data[at + 3] > 200 && data[at] < 90;
                return found;
            };
            return [dark(from + 3, gap - 4), dark(from + gap, to - gap)];
        }""",
        [left + width, 11, 30],
    )
    assert ink[0] == 0 and ink[1] > 8, "the number is beside the plot, whole, with room for a mark at the line's end"


def test_the_table_of_values_lists_each_run_that_is_drawn(shared, look: Look):
    panel = with_others(look(shared), FIRST, [SECOND, OTHERS[0]], steps="245-255", tensors="values")
    panel.wait_until(lambda: ends(panel) == 2, "both lines")
    choice = panel.frame.get_by_label("Run whose values are listed")
    expect(choice.locator("option")).to_have_text(
        ["1 lr1e-3/seed1", "2 lr1e-3/seed2", "3 lr3e-3/seed1"], use_inner_text=True
    )
    rows = panel.frame.locator(".values-table tbody tr")
    for number, run in enumerate([FIRST, SECOND, OTHERS[0]]):
        choice.select_option(index=number)
        step = fetched(shared, "step", run=run, step=250)["values"]
        row = rows.filter(has=panel.page.get_by_role("rowheader", name="250", exact=True))
        expect(row.locator("td").first).to_have_text(re.compile(rf"^{step['loss']:.4f}"[:6]))
        expect(row.locator("td").nth(1)).to_contain_text(f"{step['loss_scale']:,.0f}")
        expect(rows).to_have_count(11)

    panel.frame.get_by_role("button", name="Group seeds").click()
    expect(choice.locator("option").nth(1)).to_contain_text("2 seeds")
    choice.select_option(index=1)
    means = [fetched(shared, "step", run=run, step=250)["values"]["loss"] for run in (FIRST, SECOND)]
    cell = rows.filter(has=panel.page.get_by_role("rowheader", name="250", exact=True)).locator("td").first
    expect(cell).to_contain_text(f"{np.mean(means):.4f}"[:5])
    expect(cell).to_have_text(re.compile(rf"\({min(means):.4f}"[:6] + r".* to " + f"{max(means):.4f}"[:5]))
    panel.frame.get_by_role("button", name="Time", exact=True).click()
    expect(panel.frame.locator(".values-table thead th").first).to_have_text("Time since the first step")


@pytest.mark.tensorboard_page
def test_the_skips_of_the_others_have_lanes_in_their_colours(shared, look: Look):
    panel = with_others(look(shared), "gpt/slow", [SECOND, THIRD, "elsewhere"])
    panel.wait_until(lambda: ends(panel) == 3, "three lines")
    skips = panel.frame.get_by_role("img", name="Skipped steps of the other runs in view")
    expect(skips).to_have_attribute("aria-label", re.compile(f"{SECOND} 10, {THIRD} 15$"))
    chart = panel.frame.locator("[data-chart=loss] .plot")
    chart.focus()
    for _ in range(2):
        chart.press("+")
    expect(skips).to_have_attribute("aria-label", re.compile(f"{SECOND} 0, {THIRD} 15$"))


@pytest.mark.tensorboard_page
def test_runs_in_the_table_are_sorted_ticked_and_their_findings_counted(shared, look: Look):
    panel = look(shared).open(FIRST, tensors="runs").drawn()
    table = panel.frame.locator(".runs-table")
    names = table.locator("tbody .link")
    expect(names).to_have_count(9)
    head = table.get_by_role("button", name="Skipped")
    head.click()
    expect(table.locator("th[data-column=skipped]")).to_have_attribute("aria-sort", "descending")
    assert {*names.all_text_contents()[:2]} == {THIRD, OTHERS[2]}
    expect(table.locator("tbody tr", has_text=THIRD)).to_contain_text("15 (3 %)")
    expect(table.locator("tbody tr", has_text="gpt/slow")).to_contain_text(re.compile("none|warning"))
    expect(table.locator("tbody tr", has_text=THIRD)).to_contain_text(re.compile("[1-9] (error|warning)"))
    panel.frame.get_by_label(f"Show {SECOND}").check()
    panel.wait_until(lambda: ends(panel) == 1, "its line")
    expect(panel.frame.get_by_label(f"Show {FIRST}")).to_be_disabled()
    # The current run changes places with one that is in the charts.
    names.filter(has_text=SECOND).click()
    panel.wait_until(lambda: addressed(panel) == [FIRST], "both in the charts still")
    expect(panel.frame.locator(".overlay-run.current")).to_contain_text("seed2")


@pytest.mark.tensorboard_page
def test_tensorboards_own_filter_is_followed_until_it_is_left_aside(shared, look: Look):
    panel = look(shared)
    panel.page.goto(
        f"{panel.url}?runFilter=seed%5B12%5D#tbnum&p.tbnum.run={FIRST}&p.tbnum.over={SECOND}&p.tbnum.over={THIRD}"
    )
    rows = panel.frame.locator(".runs .row")
    expect(rows).to_have_count(4)
    expect(panel.frame.locator(".run-filter")).to_contain_text("TensorBoard's filter hides 5 runs")
    panel.wait_until(lambda: list(legend(panel)) == ["seed1", "seed2"], "what the filter lets through")
    panel.frame.get_by_role("button", name="Show all").click()
    expect(rows).to_have_count(9)
    panel.wait_until(lambda: list(legend(panel)) == ["seed1", "seed2", "seed3"], "all three")
    boxes = base64.b64encode(json.dumps({SECOND: False}).encode()).decode()
    panel.page.goto(f"{panel.url}#tbnum&runSelectionState={boxes}&p.tbnum.run={FIRST}&p.tbnum.over={SECOND}")
    panel.page.reload()
    expect(panel.frame.locator(".overlay-more")).to_contain_text("1 run not shown")


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_violation_with_several_runs(shared, look: Look, axe: str, dark: bool):  # noqa: F811
    panel = look(shared)
    panel.url += "?darkMode=true" if dark else ""
    with_others(panel, FIRST, [SECOND, OTHERS[0], "elsewhere"], tensors="runs")
    expect(panel.frame.locator(".runs-table tbody tr")).to_have_count(9)
    panel.frame.locator("[data-chart=norm] .plot").focus()
    panel.frame.locator("[data-chart=norm] .plot").press("ArrowRight")
    frame = panel.page.frames[1]
    frame.evaluate(axe)
    violations = frame.evaluate("axe.run(document, {iframes: false}).then(({violations}) => violations)")
    assert [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in violations] == []


def test_five_hundred_runs_are_listed_sorted_and_twenty_of_them_overlaid(tmp_path, serve, look: Look):
    for number in range(500):
        with training.Recording(tmp_path / f"run{number:03}", seed=number, length=20, floor=number % 20) as run:
            run.advance(20)
    panel = look(serve(tmp_path))
    counted: list[str] = []
    panel.page.on("request", lambda request: counted.append(request.url) if "health?" in request.url else None)
    with_others(panel, "run000", [f"run{number:03}" for number in range(1, 20)], tensors="runs")
    panel.wait_until(lambda: ends(panel) == 19, "nineteen lines beside the current one")
    rows = panel.frame.locator(".runs-table tbody tr")
    expect(rows).to_have_count(500)
    panel.frame.locator(".runs-table").get_by_role("button", name="Best loss").click()
    expect(rows.first.locator(".link")).to_have_text(re.compile("^run(000|[0-9]*[02468]0)$"))
    expect(rows.first).to_contain_text(re.compile("none|warning|error"))
    assert 1 <= len(counted) < 100, "only of runs in sight"
