"""What the pages in docs/ show works, and what they refer to is there."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import tbnum
from tests.loops import OPTIMIZERS, Half, batches, train
from tests.pages import DOCS, ROOT, blocks, difference, run_page

PAGES = sorted(DOCS.glob("*.md"))
RUN = [page for page in PAGES if any(block.language in ("python", "console") for block in blocks(page))]
LOOPS = frozenset(
    ("plain", "accumulation", "several-optimizers", "lightning", "transformers", "accelerate", "fabric", "ignite")
)
NEEDS = {"trackers": ("mlflow", "sqlalchemy", "wandb"), "ignite": ("ignite",), "float8": ("torchao",)}
NEEDS["many-ranks"] = ("pyarrow", "duckdb")
PUBLIC = [
    *(f"tbnum.{name}" for name in tbnum.__all__ if name != "__version__"),
    *(f"tbnum.Monitor.{name}" for name in vars(tbnum.Monitor) if not name.startswith("_")),
    *(f"tbnum.Run.{name}" for name in ("steps", "events", "findings", "tensors", "histograms", "meta")),
]


def overflowing_run(logdir: Path, *, growth_interval: int = 500) -> None:
    """A run in float16 whose scale comes down over the first steps, with a batch at step 60 that overflows."""
    torch.manual_seed(0)
    model = Half()
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=growth_interval)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=logdir, tensor_interval=20):
        train(model, optimizer, scaler, batches(120, bad=[60]), max_norm=1.0)


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_what_the_page_shows_works(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("MPLBACKEND", "agg")
    for package in NEEDS.get(page.stem, ()):
        pytest.importorskip(package, reason=f"the page needs {package}")
    monkeypatch.setenv("WANDB_SILENT", "true")
    if page.stem == "trackers":
        import wandb

        wandb.teardown()  # else it writes where a test before this one used it first: in the checkout
    if page.stem in ("notebook", "ci"):
        overflowing_run(tmp_path / "gpt")
    run_page(page, capsys)
    if page.stem in LOOPS:
        mistakes = [
            event.message
            for run in tbnum.read("runs").values()
            for event in run.events
            if event.kind != "skip" and event.severity != "info"
        ]
        assert mistakes == []  # nobody is to copy one


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_page_is_in_the_navigation_and_in_the_list_of_pages() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    names = [page.name for page in PAGES]
    assert [name for name in names if name not in navigation] == []
    assert [name for name in names if name != "index.md" and f"({name})" not in index] == []


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="pip install tbnum[docs]")
    for name in ("docs", "tbnum", "mkdocs.yml"):  # it writes beside its settings
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    assert done.returncode == 0 and "griffe" not in done.stdout, done.stdout
    api = (tmp_path / "site/api.html").read_text(encoding="utf-8")
    undocumented = [name for name in PUBLIC if f'id="{name}"' not in api]
    assert undocumented == []


def test_the_figures_are_drawn_from_any_run_with_a_probe_and_a_bad_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="pip install tbnum[docs]")
    overflowing_run(tmp_path / "gpt", growth_interval=20)
    spec = importlib.util.spec_from_file_location("figures", DOCS / "figures.py")
    assert spec is not None and spec.loader is not None
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    monkeypatch.setattr(sys, "argv", ["figures.py", str(tmp_path), "--to", str(tmp_path / "drawn")])
    figures.main()
    for drawn in sorted((tmp_path / "drawn").glob("*.svg"), key=lambda path: path.name):
        committed = DOCS / "figures" / drawn.name
        assert ElementTree.parse(drawn).getroot().tag == ElementTree.parse(committed).getroot().tag
        assert committed.stat().st_size < 60_000
    names = {path.stem for path in (tmp_path / "drawn").iterdir()}
    assert names == {path.stem for path in (DOCS / "figures").iterdir()} == set(figures.FIGURES)


def test_output_is_compared_but_for_numbers_and_what_is_left_out() -> None:
    printed = "gpt  (took 1.2 s)\n  steps  40\n  loss scale  2^16\n"
    assert difference("gpt  (took 3 s)\n...\n  loss scale  2^18\n", printed) is None
    assert difference("gpt  (took ...)\n  steps  7", printed) is None
    assert difference("  loss scale  2^16\n  steps  40\n", printed) is not None
    assert difference("  skipped  40\n", printed) is not None
