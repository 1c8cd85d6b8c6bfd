"""Runs held against a baseline, ranks against each other, and the pictures that are taken away."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

import tbnum
from tbnum.log.schema import step_columns
from tbnum.log.writer import LogWriter
from tests.browser import training
from tests.browser.conftest import Panel, TensorBoard
from tests.browser.test_runs_overlay import with_others
from tests.recorded import META, append, record

Look = Callable[..., Panel]
SVG = "{http://www.w3.org/2000/svg}"
WIDE = [f"sweep/wide-seed{seed}" for seed in range(3)]
NARROW = "sweep/narrow-seed0"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logdir")
    for name, seeds, floor in (("wide", 3, 1.55), ("narrow", 1, 1.9)):
        for seed in range(seeds):
            folder = root / f"sweep/{name}-seed{seed}"
            with training.Recording(
                folder, seed=seed, length=400, floor=floor, bad=[200], config={"width": name}
            ) as run:
                run.held_scale = math.inf
                run.advance(400)
    training.with_tensors(root / "tensors/one", steps=120)
    training.with_tensors(root / "tensors/two", steps=120)
    four_ranks(root / "ranks")
    return root


def four_ranks(folder: Path) -> None:
    """The loss of rank 2 is large from step 140 to 149; the samples of the steps around are recorded."""
    noise = np.random.default_rng(1).normal(size=(4, 200)) * 0.03
    for rank in range(4):
        log = LogWriter(folder, columns=step_columns({"optimizer": 1}), meta={**META, "world_size": 4}, rank=rank)
        high = [3.0 if rank == 2 and 140 <= step < 150 else 0.0 for step in range(200)]
        append(log, range(200), {step: {"loss": 2.0 + noise[rank, step] + high[step]} for step in range(200)})
        if rank == 0:
            log.write_batches([(step, np.arange(4) + 10 * step) for step in range(130, 160)])
        log.close()


def test_differing_settings_stand_beside_the_baseline_and_are_those_of_the_package(
    shared: TensorBoard, logdir: Path, look: Look
):
    panel = with_others(look(shared, width=1366, height=768), NARROW, [WIDE[0]], base=WIDE[0], against="difference")
    card = panel.frame.get_by_role("region", name="Difference from the baseline")
    expect(card).to_be_in_viewport()
    rows = card.locator(".differences tbody tr")
    expect(rows.first).to_be_in_viewport()
    runs = tbnum.read(logdir)
    expected = tbnum.diff(runs[WIDE[0]], runs[NARROW])
    shown = rows.evaluate_all("rows => rows.map(row => [...row.cells].map(cell => cell.textContent))")
    assert shown == [[name, str(a), str(b)] for name, a, b in expected.settings]
    expect(card.locator(".apart")).to_contain_text(f"Apart from step {expected.first_step} on")
    card.get_by_role("button", name="Let go of the baseline").click()
    expect(card).to_be_hidden()


def test_a_run_that_leaves_the_band_of_seeds_is_marked_and_one_of_the_seeds_is_not(shared: TensorBoard, look: Look):
    panel = with_others(look(shared), NARROW, WIDE, base=WIDE[0], against="difference", seeds="grouped")
    card = panel.frame.get_by_role("region", name="Difference from the baseline")
    expect(card.get_by_role("heading")).to_contain_text("3 seeds")
    expect(card.locator(".apart")).to_contain_text("leaves the band of 3 seeds: loss")
    expect(card.locator(".differences")).to_contain_text("width")
    expect(card.locator(".differences tbody th")).to_have_text(["config.width"])
    expect(panel.frame.locator("[data-chart=loss] .key")).to_contain_text("difference from sweep/wide")


def test_a_baseline_that_is_gone_is_said_in_its_place_and_the_rest_works(shared: TensorBoard, look: Look):
    panel = with_others(
        look(shared, trouble=True), NARROW, [WIDE[0], "<b>gone</b>"], base="<b>gone</b>", against="ratio"
    )
    expect(panel.frame.locator("[data-chart=loss] .u-over")).to_be_visible()
    expect(panel.frame.locator(".overlay-more")).to_contain_text("1 run not shown")
    card = panel.frame.get_by_role("region", name="Difference from the baseline")
    expect(card.locator("h2")).to_have_text("Held against <b>gone</b>")
    expect(card.locator(".apart")).to_contain_text("This run is not there")


def test_the_heat_map_shows_the_ratio_to_the_baseline(shared: TensorBoard, look: Look):
    panel = with_others(
        look(shared), "tensors/one", ["tensors/two"], base="tensors/two", against="ratio", tensors="heatmap"
    )
    heat = panel.frame.locator(".heat-scroller")
    expect(heat).to_have_attribute(
        "aria-label", "Gradient norm, ratio to tensors/two of tensors by steps; arrow keys move, Enter opens"
    )
    panel.frame.get_by_role("button", name="Table", exact=True).click()
    cells = panel.frame.locator(".heat-table tbody td:nth-of-type(1)")
    expect(cells.first).to_have_text("1")
    panel.frame.get_by_label("How runs are held against each other").select_option(label="Values")
    expect(panel.frame.locator(".heat-table thead")).not_to_contain_text("ratio to")
    expect(cells.first).not_to_have_text("1")


def test_the_table_of_the_heat_map_shows_how_each_statistic_went(shared: TensorBoard, logdir: Path, look: Look):
    panel = look(shared).open("tensors/one", tensors="heatmap")
    panel.frame.get_by_role("button", name="Table", exact=True).click()
    first = panel.frame.locator(".heat-table tbody tr").first
    expect(first.locator(".sparkline")).not_to_have_count(0)
    name = first.locator("th").text_content()
    _, names, norms = tbnum.read(logdir)["tensors/one"].tensors["grad_norm"]
    own = norms[:, names.index(name)]
    ends = [float(text) for text in (first.locator(".trend").first.get_attribute("title") or "").split(" to ")]
    assert ends == pytest.approx([own[0], own[-1]], rel=5e-3)


def test_each_rank_has_a_line_by_choice_and_the_one_that_stands_out_is_named(shared: TensorBoard, look: Look):
    panel = look(shared).open("ranks").drawn()
    panel.frame.get_by_role("button", name="Loss of each rank").click()
    key = panel.frame.locator("[data-chart=loss] .key")
    expect(key).to_contain_text("4 ranks; rank 2 stands out at step 14")
    panel.wait_until(lambda: "loss%5E" in panel.address() or "loss^" in panel.address(), "the choice in the address")
    panel.frame.get_by_role("button", name="Loss of each rank").click()
    expect(key).not_to_contain_text("stands out")


def test_what_led_here_names_the_rank_and_the_samples_of_the_step(shared: TensorBoard, look: Look):
    panel = look(shared).open("ranks", tensors="led", led="146")
    expect(panel.frame.locator(".led-table tbody th").first).to_have_text("loss (rank 2)")
    expect(panel.frame.locator(".dock")).to_contain_text("Step 146 was made of 4 samples: 1460, 1461, 1462, 1463.")


@pytest.mark.tensorboard_page
def test_a_figure_is_lines_with_every_lane_or_a_picture_of_twice_the_size(
    shared: TensorBoard, look: Look, tmp_path: Path
):
    panel = with_others(look(shared), NARROW, [WIDE[0], WIDE[1]])

    def saved(form: str) -> Path:
        panel.frame.locator("summary", has_text="Save").click()
        with panel.page.expect_download() as download:
            panel.frame.get_by_role("button", name=f"Figure ({form})").click()
        download.value.save_as(tmp_path / f"figure.{form.lower()}")
        return tmp_path / f"figure.{form.lower()}"

    root = ElementTree.parse(saved("SVG")).getroot()
    texts = [node.text or "" for node in root.iter(f"{SVG}text")]
    lanes = panel.frame.locator(".lanes .lane-label").all_text_contents()
    assert lanes and set(lanes) <= set(texts)
    titles = panel.frame.locator(".chart:visible h2").all_text_contents()
    assert set(titles) <= set(texts)
    assert sum(bool(re.match(r"[23] \S", text)) for text in texts) == 2, "a lane for each other run"
    lines = [node for node in root.iter(f"{SVG}path") if (node.get("d") or "").count("L") > 300]
    assert len(lines) >= 3, "the loss of each run"
    with Image.open(saved("PNG")) as picture:
        assert picture.size == tuple(2 * round(float(root.get(side) or 0)) for side in ("width", "height"))
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 20, "something is drawn"
    assert json.dumps(texts).count("undefined") == 0


def test_a_baseline_without_a_step_in_common_is_said_in_a_sentence_and_the_rest_works(
    tmp_path: Path, serve: Callable[..., TensorBoard], look: Look
):
    record(tmp_path / "early", range(100), {})
    record(tmp_path / "late", range(5000, 5100), {})
    panel = with_others(look(serve(tmp_path)), "early", ["late"], base="late", against="difference")
    card = panel.frame.get_by_role("region", name="Difference from the baseline")
    expect(card.locator(".apart")).to_contain_text("The runs have no step in common")
    expect(panel.frame.locator("#summary-norm")).to_contain_text("steps 0 to 5,099")
    panel.frame.get_by_label("How runs are held against each other").select_option(label="Values")
    expect(panel.frame.locator("[data-chart=loss] .key")).not_to_contain_text("difference")
