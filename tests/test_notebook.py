"""What a notebook shows of a run, an event, a finding and a monitor; what it plots; and a page that is really run."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tbnum
from tbnum.explain import findings
from tests.pages import DOCS, blocks
from tests.recorded import record
from tests.test_docs import overflowing_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tbnum.Run:
    folder = tmp_path_factory.mktemp("notebook") / "a <b>run"
    overflowing_run(folder)
    (found,) = tbnum.read(folder.parent).values()
    return found


class Page(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(thing: Any) -> Page:
    page = Page(thing._repr_html_())
    assert page.names[:2] == ["div", "style"] and page.names.count("style") == 1
    assert "script" not in page.names
    return page


def test_a_run_shows_its_numbers_charts_findings_and_events(run: tbnum.Run) -> None:
    page = shown(run)
    assert page.names.count("svg") == 3
    assert "a <b>run" in page.text and "120  (0 to 119)" in page.text
    assert "Findings" in page.text and "Skips by cause" in page.text and "gradients overflowed" in page.text


def test_style_reaches_nothing_outside_of_what_is_shown(run: tbnum.Run) -> None:
    style = run._repr_html_().partition("<style>")[2].partition("</style>")[0].strip()
    depth, ends = 0, []
    for place, character in enumerate(style):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0 and character == "}":
            ends.append(place)
    assert style.startswith(".tbnum{") and ends == [len(style) - 1]  # one rule, in which all others are nested


def test_events_and_findings_show_what_happened_and_what_to_do(run: tbnum.Run) -> None:
    (event,) = [event for event in run.events if event.severity == "warning"]
    assert "step 60" in shown(event).text and event.message in shown(event).text and event.remedy in shown(event).text
    finding = tbnum.Finding("any", "warning", "A <title>", "evidence", "remedy", ())
    assert "A <title>" in shown(finding).text and "evidence" in shown(finding).text


def test_a_difference_shows_what_differs_and_from_which_step(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        record(tmp_path / f"{name} <b>", range(20), {step: {"loss": 3.0 + seed} for step in range(5, 20)})
    runs = tbnum.read(tmp_path)
    same = shown(tbnum.diff(runs["one <b>"], runs["two <b>"]))
    apart = shown(tbnum.diff(runs["one <b>"], runs["three <b>"]))
    assert "two <b>" in same.text and "info" in same.text
    assert "warning" in apart.text and "step 5" in apart.text and "loss" in apart.text


def test_a_report_is_text_and_shows_itself_with_charts(run: tbnum.Run, capsys: pytest.CaptureFixture[str]) -> None:
    report = run.report()
    assert isinstance(report, str) and repr(report) == str(report)
    assert report.splitlines()[0].startswith("a <b>run  (ended") and "Events worth reading" in report
    assert "svg" in shown(report).names
    assert "60  (60 to 119)" in run.report(since=60)
    assert capsys.readouterr().out == ""


def test_a_monitor_says_where_it_is_and_shows_the_run_so_far(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    monitor = tbnum.wrap(optimizer, logdir=tmp_path)
    for _ in range(5):
        parameter.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert repr(monitor) == f"<tbnum.Monitor of {str(tmp_path)!r}: recording, next step 5, 0 skipped>"
    assert "5  (0 to 4)" in shown(monitor).text and "running" in shown(monitor).text
    monitor.close()
    assert "closed" in repr(monitor) and "ended" in shown(monitor).text


def test_what_is_printed_of_arrays_is_short(run: tbnum.Run) -> None:
    things = (run.steps, run.tensors, run.tensors["grad_norm"], run.histograms, run.histograms["gradient"])
    for thing in things:
        assert len(repr(thing)) < 900 and "array(" not in repr(thing), repr(thing)
    assert repr(run.steps).startswith(f"<{len(run.steps)} columns of 120 steps: step, wall_time, loss")


def test_a_plot_has_an_axis_for_each_column_and_marks_the_skips(run: tbnum.Run) -> None:
    pytest.importorskip("matplotlib", reason="pip install tbnum[plot]")
    figure = run.plot()
    assert [axis.get_ylabel() for axis in figure.axes] == ["loss", "loss_scale", "grad_norm"]
    curve, *marks = figure.axes[0].lines
    np.testing.assert_array_equal(curve.get_ydata(), run.steps["loss"])
    assert [mark.get_xdata()[0] for mark in marks] == run.steps["step"][run.steps["skipped"]].tolist()
    (axis,) = run.plot(["lr"]).axes
    assert axis.get_ylabel() == "lr"
    with pytest.raises(KeyError, match="no column 'nothing'; there is 'step'"):
        run.plot(["nothing"])


def test_a_data_frame_has_the_columns_by_step(run: tbnum.Run) -> None:
    pandas = pytest.importorskip("pandas")
    frame = run.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and frame.index.name == "step" and len(frame) == 120
    np.testing.assert_array_equal(frame["loss"], run.steps["loss"])
    assert str(frame.dtypes["skipped"]) == "bool"


@pytest.mark.parametrize(
    ("module", "call", "advice"), [("matplotlib", "plot", "tbnum[plot]"), ("pandas", "to_pandas", "pip")]
)
def test_without_the_package_the_error_says_what_to_install(
    module: str, call: str, advice: str, run: tbnum.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=advice.replace("[", r"\[")):
        getattr(run, call)()


def test_a_scalar_log_shows_itself_too(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(20):
            writer.add_scalar("train/loss", 2.0 - step / 20, step)
    (run,) = tbnum.read(tmp_path).values()
    assert isinstance(run, tbnum.Run) and "TensorBoard scalars" in shown(run).text
    assert run.findings == findings(run)


def test_reading_and_showing_load_no_torch_and_no_matplotlib(run: tbnum.Run) -> None:
    program = (
        "import sys, tbnum\n"
        f"(run,) = tbnum.read({str(run.folder)!r}).values()\n"
        "run._repr_html_(), run.findings, run.report(), tbnum.Event, tbnum.Finding\n"
        "assert not {'torch', 'matplotlib', 'pandas'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_page_on_notebooks_is_run_by_nbconvert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="pip install tbnum[test]")
    nbconvert = pytest.importorskip("nbconvert", reason="pip install tbnum[test]")
    pytest.importorskip("ipykernel", reason="pip install tbnum[test]")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    overflowing_run(tmp_path / "gpt")
    page = blocks(DOCS / "notebook.md")
    cells = [nbformat.v4.new_code_cell(block.text) for block in page if block.language == "python"]
    cells.append(nbformat.v4.new_code_cell("run"))
    notebook = nbformat.v4.new_notebook(cells=cells)
    executor = nbconvert.preprocessors.ExecutePreprocessor(timeout=1200, kernel_name="python3")
    executor.preprocess(notebook, {"metadata": {"path": str(tmp_path.parent)}})
    (last,) = notebook.cells[-1].outputs
    assert "<svg" in last.data["text/html"] and last.data["text/plain"].startswith("Run('gpt'")
    html, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    assert "Skips by cause" in html and "<svg" in html
