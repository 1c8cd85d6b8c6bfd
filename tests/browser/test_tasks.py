"""What people come for, in how many clicks; and every number that they read there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, expect

import tbnum
from tests.browser import training
from tests.browser.conftest import Panel, TensorBoard
from tests.browser.test_baseline import four_ranks
from tests.recorded import append, open_log, record
from tests.test_scalar_logs import write

Look = Callable[..., Panel]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logdir")
    training.demo_like(root / "demo")
    training.with_tensors(root / "tensors", steps=300)
    training.diverging(root / "diverging")
    with training.Recording(root / "bfloat16", scaler=False, length=600, config={"lr": 1e-3}) as run:
        run.advance(600)
    for seed, pace in ((1, 0.25), (1, 0.5)):
        with training.Recording(
            root / f"pair/{pace}", seed=seed, length=400, bad=[250] if pace > 0.3 else [], config={"pace": pace}
        ) as run:
            run.held_scale = math.inf
            run.advance(400)
    two_optimizers(root / "gan")
    four_ranks(root / "ranks")
    damaged(root / "damaged")
    write(root / "trainer", [(step, of_a_trainer(step)) for step in range(200)])
    record(root / "spiked", range(300), {step: of_bfloat16(step) for step in range(300)})
    live = training.Recording(root / "live", length=300)
    live.advance(300)
    assert live.writer.flush(600)
    return root


def of_bfloat16(step: int) -> dict[str, float]:
    """Without a scaler; at steps 250 and 251 loss and norm are far too large."""
    high = {"loss": 900.0, "grad_norm": 400.0} if step in (250, 251) else {}
    calm = {"loss": 2 + math.sin(step) / 50, "grad_norm": 1 + math.cos(step) / 50}
    return {"loss_scale": math.nan, "growth_tracker": math.nan, **calm, **high}


def two_optimizers(folder: Path) -> None:
    optimizers = {
        name: {"class": "Adam", "groups": [{"lr": 1e-4}], "parameters": []} for name in ("critic", "generator")
    }
    log = open_log(folder, groups={"critic": 1, "generator": 1}, optimizers=optimizers)
    rows = {
        step: {
            f"{name}/{column}": (1 + at) * math.exp(math.sin(step))
            for at, name in enumerate(optimizers)
            for column in ("grad_norm", "grad_norm_clipped", "max_norm")
        }
        for step in range(200)
    }
    append(log, range(200), rows)
    log.close()


def damaged(folder: Path) -> None:
    """A record with a byte that is another."""
    with training.Recording(folder, length=5000) as run:
        run.advance(5000)
    [record] = (file for file in folder.iterdir() if file.suffix == ".tbnum")
    content = bytearray(record.read_bytes())
    content[len(content) // 2] ^= 0xFF
    record.write_bytes(content)


def of_a_trainer(step: int) -> dict[str, float]:
    """As Transformers' Trainer names what it logs to TensorBoard."""
    return {"train/loss": 3 - step / 100, "train/grad_norm": 1 + step % 7, "train/learning_rate": 1e-4 * (step + 1)}


SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def number(text: str) -> float:
    """What the panel writes, as a number: thousands apart, powers in brackets or of ten, its own minus and dash."""
    text = re.sub(r" \(.*\)", "", text).replace("\N{MINUS SIGN}", "-").replace(",", "")
    if text in ("\N{EN DASH}", "NaN"):
        return math.nan
    if text.endswith("∞"):
        return -math.inf if text.startswith("-") else math.inf
    mantissa, _, exponent = text.partition("\N{MULTIPLICATION SIGN}10")
    return float(mantissa) * 10.0 ** int(exponent.translate(SUPERSCRIPTS) or 0)


COLUMNS = {
    "Loss": "loss",
    "Loss scale": "loss_scale",
    "Gradient norm before clipping": "grad_norm",
    "Gradient norm after clipping": "grad_norm_clipped",
    "Gradient norm threshold": "max_norm",
    "Clipping": "clip_coef",
    "Learning rate": "lr",
}


RUNS = ["demo", "tensors", "diverging", "bfloat16", "pair/0.25", "gan", "ranks", "damaged", "trainer", "live"]


@pytest.mark.parametrize("run", RUNS)
def test_every_number_in_the_table_of_values_is_the_records(shared: TensorBoard, logdir: Path, look: Look, run: str):
    panel = look(shared).open(run, tensors="values", steps="100-125", views="loss,scale,norm,clip,lr")
    rows = panel.frame.locator(".values-table tbody tr")
    expect(rows).to_have_count(26)
    heads = panel.frame.locator(".values-table thead th").all_text_contents()
    steps = tbnum.read(logdir)[run].steps
    prefix = "critic/" if run == "gan" else ""
    at_step = {int(step): row for row, step in enumerate(steps["step"])}
    compared = 0
    for at, cells in enumerate(
        panel.frame.locator(".values-table").evaluate(
            "table => [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent))"
        )
    ):
        assert number(cells[0]) == 100 + at
        for head, cell in zip(heads[1:], cells[1:], strict=True):
            if head not in COLUMNS:
                continue
            column = COLUMNS[head]
            column = prefix + column if prefix + column in steps else column
            recorded = float(steps[column][at_step[100 + at]])
            shown = number(cell)
            assert shown == pytest.approx(recorded, rel=2e-5, nan_ok=True), (run, 100 + at, head)
            compared += not math.isnan(recorded)
    assert compared >= 26 * 2


def test_the_statistics_in_view_are_those_of_the_record(shared: TensorBoard, logdir: Path, look: Look):
    panel = look(shared).open("demo", tensors="values", steps="100-200")
    table = panel.frame.locator(".statistics")
    expect(table).to_be_visible()
    heads, *rows = table.evaluate("table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent))")
    loss = tbnum.read(logdir)["demo"].steps["loss"][100:201]
    column = heads.index("Loss")
    shown = {row[0]: number(row[column]) for row in rows}
    expected = {"Mean": np.nanmean(loss), "Least": np.nanmin(loss), "Greatest": np.nanmax(loss)}
    assert shown == pytest.approx(expected, rel=2e-5)


class Actions:
    """What a person does, counted."""

    def __init__(self) -> None:
        self.count = 0

    def click(self, locator: Locator) -> None:
        locator.click()
        self.count += 1

    def choose(self, select: Locator, label: str) -> None:
        select.select_option(label=label)
        self.count += 1


@pytest.fixture
def actions() -> Actions:
    return Actions()


def test_the_first_harmful_skip_and_its_cause_take_one_action(shared: TensorBoard, look: Look, actions: Actions):
    panel = look(shared).open("demo").drawn()
    actions.click(panel.frame.locator(".lanes .mark.grave[data-kind=skip]"))
    expect(panel.frame.locator(".card .cause")).to_have_text("bad batch")
    assert actions.count == 1


def test_which_layer_overflows_most_with_counts_takes_two_actions(shared: TensorBoard, look: Look, actions: Actions):
    panel = look(shared).open("tensors").drawn()
    actions.click(panel.frame.get_by_role("button", name="Tensors", exact=True))
    actions.choose(panel.frame.get_by_label("What the colours show"), "Not finite")
    summary = panel.frame.locator("#summary-heatmap")
    expect(summary).to_contain_text("2 rows with values that are not finite, most of them in blocks.3.")
    expect(summary).to_contain_text("· 1.")
    assert actions.count == 2


def test_an_event_and_what_led_to_it_take_two_actions(shared: TensorBoard, look: Look, actions: Actions):
    panel = look(shared).open("demo").drawn()
    actions.click(panel.frame.locator(".lanes .mark.grave[data-kind=skip]"))
    actions.click(panel.frame.get_by_role("button", name="What led here"))
    expect(panel.frame.locator(".led-table tbody tr")).not_to_have_count(0)
    expect(panel.frame.locator(".dock h2")).to_have_text("What led to step 412")
    assert actions.count == 2


def test_a_spike_and_what_led_to_it_take_two_actions(shared: TensorBoard, logdir: Path, look: Look, actions: Actions):
    spike = next(event for event in tbnum.read(logdir)["spiked"].events if event.kind.endswith("_spike"))
    panel = look(shared).open("spiked")
    actions.click(panel.frame.locator(".lanes .mark[data-kind=spike]").first)
    actions.click(panel.frame.get_by_role("button", name="What led here"))
    expect(panel.frame.locator(".dock h2")).to_have_text(f"What led to step {spike.step}")
    assert actions.count == 2


def test_where_two_runs_part_and_how_their_settings_differ_take_two_actions_and_no_scrolling(
    shared: TensorBoard, look: Look, actions: Actions
):
    panel = look(shared, width=1366, height=768).open("pair/0.25").drawn()
    actions.click(panel.frame.get_by_role("option", name="pair/0.5").locator("[data-tick]"))
    actions.click(panel.frame.get_by_role("button", name="Hold the others against pair/0.25"))
    card = panel.frame.get_by_role("region", name="Difference from the baseline")
    expect(card.locator(".apart")).to_contain_text("Apart from step 250")
    expect(card.locator(".apart")).to_be_in_viewport()
    expect(card.locator(".differences tbody tr").first).to_be_in_viewport()
    expect(card.locator(".differences")).to_contain_text("pace")
    assert actions.count == 2


def test_the_table_of_runs_says_the_same_of_two_without_scrolling(shared: TensorBoard, look: Look):
    panel = look(shared, width=1366, height=768).open("pair/0.25").drawn()
    panel.frame.get_by_role("button", name="Compare").click()
    for run in ("pair/0.25", "pair/0.5"):
        panel.frame.get_by_label(f"Compare {run}").check()
    apart = panel.frame.locator(".runs-differences .apart")
    expect(apart).to_contain_text("Apart from step 250")
    expect(apart).to_be_in_viewport()
    expect(panel.frame.locator(".differences")).to_contain_text("pace")
    expect(panel.frame.locator(".differences tbody tr").first).to_be_in_viewport()


def test_clipping_in_the_last_tenth_stands_in_the_head(shared: TensorBoard, logdir: Path, look: Look):
    panel = look(shared).open("bfloat16")
    coefficient = tbnum.read(logdir)["bfloat16"].steps["clip_coef"]
    late = coefficient[-60:]
    expected = f"({100 * np.mean(late[np.isfinite(late)] < 1):.0f} % of the last 60 steps)"
    expect(panel.frame.locator(".facts-line")).to_contain_text(expected)


def test_what_is_in_view_is_saved_in_two_actions(shared: TensorBoard, look: Look, actions: Actions):
    panel = look(shared).open("demo", steps="100-120").drawn()
    actions.click(panel.frame.locator("summary", has_text="Save"))
    with panel.page.expect_download() as download:
        actions.click(panel.frame.get_by_role("link", name="Steps in view (CSV)"))
    lines = download.value.path().read_text(encoding="utf-8").splitlines()
    first = lines[0].split(",").index("step")
    assert [int(line.split(",")[first]) for line in lines[1:]] == list(range(100, 121))
    assert actions.count == 2


def test_a_held_baseline_turns_values_into_differences(shared: TensorBoard, look: Look):
    panel = look(shared).open("pair/0.25").drawn()
    panel.frame.get_by_role("option", name="pair/0.5").locator("[data-tick]").click()
    panel.frame.get_by_role("button", name="Hold the others against pair/0.25").click()
    key = panel.frame.locator("[data-chart=loss] .key")
    expect(key).to_contain_text("difference from pair/0.25")
    expect(panel.frame.locator("[data-chart=norm] .key")).not_to_contain_text("threshold")
    panel.frame.get_by_label("How runs are held against each other").select_option(label="Ratio to pair/0.25")
    expect(key).to_contain_text("ratio to pair/0.25")
    panel.wait_until(lambda: "against=ratio" in panel.address(), "it in the address")
    panel.frame.get_by_role("button", name="Let go of pair/0.25 as the baseline").click()
    expect(key).not_to_contain_text("ratio")


@pytest.mark.tensorboard_page
def test_back_leads_to_the_run_before(shared: TensorBoard, look: Look):
    panel = look(shared).open("demo").drawn()
    panel.frame.get_by_role("option", name="tensors").click()
    expect(panel.frame.locator("h1")).to_have_text("tensors")
    panel.wait_until(lambda: "run=tensors" in panel.address(), "the other run in the address")
    panel.page.go_back()
    expect(panel.frame.locator("h1")).to_have_text("demo")


@pytest.mark.tensorboard_page
def test_panes_fold_away_and_stay_so(shared: TensorBoard, look: Look):
    panel = look(shared).open("demo").drawn()
    before = panel.frame.locator("[data-chart=loss]").bounding_box()
    panel.frame.get_by_role("button", name="Fold the runs away").click()
    panel.frame.get_by_role("button", name="Fold the events away").click()
    after = panel.frame.locator("[data-chart=loss]").bounding_box()
    assert before and after and after["width"] > before["width"] + 500
    panel.page.reload()
    panel.drawn()
    expect(panel.frame.locator(".events")).to_be_hidden()
    panel.frame.get_by_role("button", name="Events", exact=True).click()
    panel.frame.get_by_role("button", name="Runs", exact=True).click()
    expect(panel.frame.locator(".events")).to_be_visible()
    expect(panel.frame.locator(".runs")).to_be_visible()


def test_the_keys_are_listed_and_a_step_is_taken_as_people_write_it(shared: TensorBoard, look: Look):
    panel = look(shared).open("demo").drawn()
    panel.frame.locator(".facts-line").click()
    panel.page.keyboard.press("?")
    expect(panel.frame.get_by_role("dialog", name="Keys")).to_be_visible()
    panel.page.keyboard.press("Escape")
    expect(panel.frame.get_by_role("dialog", name="Keys")).to_be_hidden()
    field = panel.frame.get_by_label("Go to step (G)")
    field.fill("1.5x")
    field.press("Enter")
    assert field.evaluate("field => field.validationMessage")
    field.fill("300")
    field.press("Enter")
    panel.wait_until(lambda: "p.tbnum.pin=300" in panel.address(), "the held step")
    panel.frame.locator(".facts-line").click()
    panel.page.keyboard.press("Escape")
    panel.wait_until(lambda: "p.tbnum.pin" not in panel.address(), "no held step")


def test_the_list_of_runs_shows_how_each_does_and_is_put_in_that_order(shared: TensorBoard, look: Look):
    panel = look(shared).open("bfloat16")
    bars = panel.frame.locator(".runs .health")
    expect(bars.nth(9)).to_be_visible()  # of the rows in sight
    panel.frame.get_by_label("Order of the runs").select_option(label="Most skips first")
    expect(panel.frame.locator(".runs [role=option]").first).to_contain_text("demo")


def test_a_baseline_and_a_step_that_are_not_there_leave_the_rest_at_work(shared: TensorBoard, look: Look):
    place = {"over": "tensors", "base": "gone", "against": "ratio", "tensors": "led", "led": "0"}
    panel = look(shared, trouble=True).open("demo", **place).drawn()
    card = panel.frame.get_by_role("region", name="Difference from the baseline")
    expect(card.locator(".apart")).to_have_text(
        "This run is not there: it may have been moved or deleted. Nothing is held against it."
    )
    expect(panel.frame.locator(".dock-message")).to_contain_text("no step before")
    expect(panel.frame.locator("[data-chart=loss] .key")).not_to_contain_text("ratio")
