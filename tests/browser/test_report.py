"""What is sent looks like what was seen: the HTML report beside the panel."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tbnum.cli import main
from tests.browser import training
from tests.browser.conftest import Panel, TensorBoard
from tests.browser.test_tasks import of_a_trainer, of_bfloat16, two_optimizers
from tests.recorded import record
from tests.test_scalar_logs import write

RUNS = ("demo", "spiked", "gan", "diverging", "trainer")


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logdir")
    training.demo_like(root / "demo")
    record(root / "spiked", range(300), {step: of_bfloat16(step) for step in range(300)})
    two_optimizers(root / "gan")
    training.diverging(root / "diverging")
    write(root / "trainer", [(step, of_a_trainer(step)) for step in range(200)])
    return root


def words(found: Locator) -> list[str]:
    return [text.strip() for text in found.all_text_contents()]


@pytest.mark.parametrize("run", RUNS)
def test_views_lanes_marks_and_the_head_are_the_same_in_both(
    shared: TensorBoard, logdir: Path, look: Callable[..., Panel], tmp_path: Path, run: str
):
    panel = look(shared).open(run)
    facts = panel.frame.locator(".facts-line")
    expect(panel.frame.locator(".events .nothing:visible, .event-row").first).to_be_visible()
    expect(panel.frame.locator(".plot .u-over").first).to_be_visible()
    assert main(["report", str(logdir), "--run", run, "--html", str(tmp_path / "page.html")]) == 0
    page = panel.page.context.new_page()
    page.goto((tmp_path / "page.html").as_uri())

    head = words(page.locator(".headline"))[0].split("·")
    said = facts.text_content() or ""
    assert all(fact.strip() in said for fact in head), (head, said)

    titles = [re.sub(r" \(.*\)", "", title) for title in words(page.locator("figcaption b"))]
    drawn = panel.frame.locator(".chart:has(.plot)").evaluate_all(
        "charts => charts.filter(chart => !chart.hidden).map(chart => chart.querySelector('h2').textContent)"
    )
    assert list(dict.fromkeys(titles)) == [title for title in drawn if title in titles]
    assert {"Loss", "Gradient norm"} <= set(titles)

    assert words(page.locator(".lane-label")) == words(panel.frame.locator(".lane-label"))
    for mark in ("--loss", "--norm", "--skip", "--backoff", "--text"):
        read = f"getComputedStyle(document.querySelector('.tbnum, .app')).getPropertyValue('{mark}').trim()"
        assert page.evaluate(read) == panel.frame.locator("body").evaluate(f"() => {read}")
    outlines = "paths => [...new Set(paths.map(path => path.getAttribute('d')))].sort()"
    sent = page.locator(".mark path").evaluate_all(outlines)
    seen = panel.frame.locator(".lanes .glyph").evaluate_all(outlines)
    assert set(sent) & set(seen) or not (sent and seen)
    grave = page.locator(".mark.grave").count() > 0
    assert grave == (panel.frame.locator(".lanes .mark.grave").count() > 0)
