"""The panel on runs that never used tbnum: what is inferred says so, what is unknown is not called none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.conftest import Panel, TensorBoard
from tests.test_scalar_logs import loss, megatron, write

Serve = Callable[..., TensorBoard]
Look = Callable[..., Panel]


def test_scalar_logs_say_what_is_inferred_and_what_is_unknown(tmp_path: Path, serve: Serve, look: Look):
    megatron(tmp_path / "megatron")
    write(tmp_path / "plain", [(step, {"train/loss": loss(step + 1)}) for step in range(100)])
    server = serve(tmp_path)
    panel = look(server).open("megatron", event="151.skip").drawn()
    expect(panel.frame.locator(".heading")).to_contain_text("inferred from TensorBoard scalars")
    expect(panel.frame.locator(".heading")).to_contain_text("at least 3 skips: 2 bad batch, 1 growth probe")
    card = panel.frame.locator(".card")
    expect(card).to_contain_text("Inferred from the loss scale: The step was skipped")
    expect(card).to_contain_text("growth probe")
    panel.frame.get_by_text("plain", exact=True).click()
    expect(panel.frame.locator(".heading")).to_contain_text("skips unknown")
    expect(panel.frame.get_by_text("Nothing is known of skips")).to_contain_text("--tbnum_map loss_scale=TAG")
    hint = "no loss scale found: name its tag with tensorboard --tbnum_map loss_scale=TAG"
    expect(panel.frame.locator("#summary-scale")).to_contain_text(hint)
