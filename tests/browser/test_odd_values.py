"""Runs with values and steps that few runs have: the axes and the words that stand for what cannot be drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tbnum.log.schema import Event
from tests.browser.conftest import Panel, TensorBoard
from tests.recorded import open_log, record

Look = Callable[..., Panel]

KEEP_TEXTS = """
    window.drawnTexts = [];
    const fillText = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        window.drawnTexts.push(text);
        return fillText.call(this, text, ...rest);
    };
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> TensorBoard:
    root = tmp_path_factory.mktemp("logdir")
    record(root / "diverged", range(12), {step: {"loss": 10.0 ** (3 * step)} for step in range(12)})
    record(root / "far", range(10**15, 10**15 + 50), first_step=10**15)
    record(root / "zeros", range(20), {step: {"grad_norm": 0.0} for step in range(20)})
    nan = {step: {"grad_norm": math.nan, "nonfinite_tensors": 2.0} for step in range(20)}
    record(root / "nan", range(20), nan)
    open_log(root / "nothing").close()
    for number in range(30):
        record(root / f"other{number:02}")
    note = Event(5, 0.0, "annotation", data={"text": "word" * 100})
    record(root / "zz-noted", range(20), events=[note])
    server = TensorBoard(root)
    yield server
    server.stop()


def texts(panel: Panel) -> list[str]:
    """What was drawn on canvases, the labels of axes among it."""
    return [text for frame in panel.page.frames[1:] for text in frame.evaluate("window.drawnTexts")]


def test_axes_have_labels_however_large_values_and_steps_are(shared: TensorBoard, look: Look):
    panel = look(shared)
    panel.page.add_init_script(KEEP_TEXTS)
    panel.open("diverged").drawn()
    panel.wait_until(lambda: any(text.endswith("10³²") for text in texts(panel)), "labels of the loss")
    panel.open("far").drawn()
    panel.wait_until(lambda: "1,000,000,000,000,020" in texts(panel), "labels of the steps")


def test_what_cannot_be_drawn_is_called_what_it_is(shared: TensorBoard, look: Look):
    panel = look(shared).open("zeros").drawn()
    summary = panel.frame.locator("[data-chart=norm] .visually-hidden")
    expect(summary).to_contain_text("from 0 to 0, lowest 0, highest 0")
    expect(panel.frame.locator("[data-chart=norm]")).to_contain_text("linear between")
    panel.open("nan").drawn()
    expect(summary).to_contain_text("no finite gradient norm")
    panel.open("nothing")
    expect(panel.frame.locator(".notice")).to_have_text(re.compile("This run ended without a step"))


def test_the_chosen_run_is_in_sight_in_a_long_list(shared: TensorBoard, look: Look):
    panel = look(shared).open("zz-noted").drawn()
    expect(panel.frame.locator(".runs .row.chosen")).to_be_in_viewport()


def test_a_long_word_stays_within_the_card(shared: TensorBoard, look: Look):
    panel = look(shared).open("zz-noted", event="5.annotation").drawn()
    message = panel.frame.locator(".card-message")
    expect(message).to_contain_text("wordword")
    assert message.evaluate("text => text.scrollWidth <= text.clientWidth")
