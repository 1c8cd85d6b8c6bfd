"""The README's code does what the README says, and the page on the record explains everything in it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch

import tbnum
from tests.pages import DOCS, ROOT, blocks, difference, run_page

RECORD = (DOCS / "record.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_readme_shows_and_the_notebook_reads_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    torch.manual_seed(0)
    run_page(ROOT / "README.md", capsys)
    printed = " ".join(capsys.readouterr().err.split())
    (shown,) = [block.text for block in blocks(ROOT / "README.md") if block.text.startswith("tbnum: recording")]
    assert difference(" ".join(shown.split()), printed) is None, printed
    run = tbnum.read("runs")["gpt"]
    assert run.steps["step"].tolist() == list(range(100))
    assert (run.steps["max_norm"] == 1.0).all()


def test_what_the_readme_imports_for_a_framework_is_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"`from (tbnum\.integrations\.(\w+)) import (\w+)` \| `([^`]+)`", readme)
    assert [framework for _, framework, _, _ in lines] == ["lightning", "transformers", "accelerate"]
    for module, framework, name, line in lines:
        pytest.importorskip(framework)
        assert callable(getattr(importlib.import_module(module), name)) and f"{name}(" in line


def test_every_column_of_a_run_is_explained() -> None:
    from tbnum.log.schema import step_columns

    assert [name for name in step_columns({"optimizer": 2}) if f"`{name}`" not in RECORD] == []


def test_every_cause_and_kind_of_event_is_explained() -> None:
    from tbnum.explain import CAUSES
    from tbnum.log.schema import EVENT_KINDS

    assert [name for name in (*CAUSES, *EVENT_KINDS) if f"`{name}`" not in RECORD] == []
