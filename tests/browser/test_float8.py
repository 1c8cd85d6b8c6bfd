"""The heat map of what torchao's modules cast to float8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Panel, TensorBoard
from tests.test_float8 import train

Serve = Callable[..., TensorBoard]
Look = Callable[..., Panel]


def test_the_heat_map_offers_what_casts_to_float8_lose(tmp_path: Path, serve: Serve, look: Look) -> None:
    pytest.importorskip("torchao.float8", reason="needs torchao")
    train(tmp_path / "run", spike_at=20)
    panel = look(serve(tmp_path)).open("run", tensors="heatmap", column="float8_flushed")
    chosen = panel.frame.get_by_label("What the colours show")
    expect(chosen).to_have_value("float8_flushed")
    expect(chosen.locator("option")).to_contain_text(
        ["Largest cast to float8", "Flushed in float8", "Saturated in float8"]
    )
    expect(panel.frame.locator(".heat-scroller")).to_have_attribute(
        "aria-label", "Flushed in float8 of tensors by steps; arrow keys move, Enter opens"
    )
