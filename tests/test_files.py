"""Logs behind URLs: fsspec's file systems in this process, and a real TensorBoard on one of them."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

import tbnum
from tbnum import cli
from tbnum.log.files import RemotePath, is_url, open_raw, place, size_of
from tbnum.log.logdir import find_runs
from tensorboard_plugin_tbnum import runs as table
from tensorboard_plugin_tbnum.runs import roots
from tests.recorded import append, open_log, record, skip, tables_of
from tests.routes import Panel, strict_json
from tests.test_plugin import tensorboard

NAMES = ("a.weight", "b.weight")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    record(tmp_path / "gpt", range(50), events=[skip(20)], tables=tables_of(range(0, 50, 10), NAMES))
    record(tmp_path / "deep" / "er", range(10))
    return tmp_path


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.rm("/", recursive=True)


def put(filesystem: fsspec.AbstractFileSystem, folder: Path, under: str) -> None:
    """Copies files as they are now."""
    for file in folder.rglob("*"):
        if file.is_file():
            filesystem.pipe_file(f"{under}/{file.relative_to(folder).as_posix()}", file.read_bytes())


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_log_behind_a_url_is_the_log(recorded, memory, scheme):
    if scheme == "memory":
        put(memory, recorded, "/bucket/runs")
    url = f"file://{recorded}" if scheme == "file" else "memory://bucket/runs"
    here, there = tbnum.read(recorded), tbnum.read(url)
    assert list(there) == list(here) == ["deep/er", "gpt"]
    for name, run in here.items():
        assert same(run.steps, there[name].steps)
        assert run.events == there[name].events
        assert run.totals == there[name].totals and run.meta == there[name].meta
        assert there[name].problems == []
    assert there["gpt"].tensors["grad_norm"].names == NAMES
    np.testing.assert_array_equal(there["gpt"].tensors["grad_norm"].values, here["gpt"].tensors["grad_norm"].values)
    assert (
        there["gpt"].histograms["gradient"].at(40).counts.sum()
        == here["gpt"].histograms["gradient"].at(40).counts.sum()
    )


def test_a_log_that_grows_behind_a_url_is_followed(tmp_path, memory):
    log = open_log(tmp_path / "run")
    append(log, range(10))
    put(memory, tmp_path, "/runs")
    (run,) = tbnum.read("memory://runs").values()
    assert len(run.steps["step"]) == 10
    assert not run.refresh()
    append(log, range(10, 25))
    log.close()
    put(memory, tmp_path, "/runs")
    assert run.refresh() and len(run.steps["step"]) == 25
    assert run.totals.ended == "closed"


def test_a_scalar_log_behind_a_url_is_read_too(tmp_path, memory):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "meg")) as log:
        for step in range(1, 40):
            log.add_scalar("loss-scale", 1024.0 if step < 20 else 512.0, step)
    put(memory, tmp_path, "/runs")
    (run,) = tbnum.read("memory://runs").values()
    assert [event.step for event in run.events if event.kind == "skip"] == [20]


def test_only_what_is_new_is_fetched(tmp_path, memory, monkeypatch):
    log = open_log(tmp_path)
    append(log, range(2_000))
    put(memory, tmp_path, "/run")
    (run,) = tbnum.read("memory://run").values()
    assert len(run.steps["step"]) == 2_000
    fetched: list[int] = []
    cat_file = type(memory).cat_file

    def counting(self, path, start=None, end=None, **options):
        fetched.append(end - start)
        return cat_file(self, path, start, end, **options)

    monkeypatch.setattr(type(memory), "cat_file", counting)
    assert not run.refresh() and fetched == []
    append(log, range(2_000, 2_010))
    log.close()
    put(memory, tmp_path, "/run")
    assert run.refresh() and sum(fetched) < 16_384


@pytest.mark.parametrize(
    ("url", "reported"),
    [
        ("memory://nowhere", "there is no folder 'memory://nowhere' to read runs from"),
        ("nothing-such://bucket/runs", "fsspec has no file system for such URLs"),
        ("reference://runs", "cannot read 'reference://runs' (TypeError: "),
    ],
)
def test_a_url_without_runs_is_reported_with_the_way_out(memory, capsys, url, reported):
    with pytest.raises(OSError, match=re.escape(reported)):
        tbnum.read(url)
    assert cli.main(["report", url]) == 2
    error = capsys.readouterr().err
    assert reported in error and error.count("\n") == 1


def test_a_file_is_no_folder_of_runs(recorded):
    file = next((recorded / "gpt").iterdir())
    with pytest.raises(NotADirectoryError, match="this is a file, and no folder"):
        tbnum.read(f"file://{file}")


def test_an_archive_behind_a_chained_url_is_read(recorded):
    archive = shutil.make_archive(str(recorded / "runs"), "zip", recorded / "deep")
    (run,) = tbnum.read(f"zip://::{archive}").values()
    assert (run.name, len(run.steps["step"]), run.problems) == ("er", 10, [])
    (run,) = tbnum.read(f"zip://er/::{archive}").values()
    assert len(run.steps["step"]) == 10


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Not to standard error."""


def test_a_web_server_that_knows_no_ranges_is_read_right(recorded):
    pytest.importorskip("aiohttp")
    serving = functools.partial(Handler, directory=str(recorded))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serving) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            run = tbnum.read(f"http://127.0.0.1:{server.server_port}")["gpt"]
            here = tbnum.read(recorded)["gpt"]
            assert same(run.steps, here.steps) and run.problems == []
            for one, other in zip(run.tensors["grad_norm"], here.tensors["grad_norm"], strict=True):
                np.testing.assert_array_equal(one, other)
        finally:
            server.shutdown()


def test_a_file_system_whose_package_is_missing_says_what_to_install(monkeypatch):
    def missing(url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(OSError, match="cannot read 's3://bucket/runs': Install s3fs to access S3"):
        find_runs("s3://bucket/runs")


def test_without_fsspec_a_url_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(OSError, match=r"pip install 'tbnum\[remote\]'"):
        find_runs("s3://bucket/runs")


def test_what_a_file_systems_library_raises_is_an_oserror_that_names_the_url(memory, monkeypatch):
    memory.pipe_file("/run/x", b"12345")

    def broken(self, *arguments, **options):
        raise RuntimeError("throttled")

    with open_raw(RemotePath("memory://run/x")) as file:
        assert size_of(file) == 5
        file.seek(1)
        assert file.read(100) == b"2345" and file.read(1) == b""
        monkeypatch.setattr(type(memory), "cat_file", broken)
        file.seek(0)
        with pytest.raises(OSError, match=r"'memory://run/x' \(RuntimeError: throttled\)"):
            file.read(1)


def test_a_url_is_reported_from_a_path():
    assert is_url("s3://bucket") and is_url("file:///tmp") and not is_url("C:\\runs") and not is_url("/a://b")
    assert isinstance(place("gs://a/b/"), RemotePath) and isinstance(place("runs"), Path)
    here = RemotePath("gs://a/b/")
    assert (str(here), here.name, str(here / "c"), str((here / "c").with_name("d"))) == (
        *("gs://a/b", "b"),
        *("gs://a/b/c", "gs://a/b/d"),
    )
    chained = RemotePath("zip://runs/::s3://b/x.zip") / "gpt"
    assert (str(chained), chained.name) == ("zip://runs/gpt::s3://b/x.zip", "gpt")
    assert str(RemotePath("zip://::x.zip") / "gpt") == "zip://gpt::x.zip"
    assert [root.folder for root in roots(None, "x:s3://a/b,memory://c,/d")] == ["s3://a/b", "memory://c", "/d"]
    assert [root.prefix for root in roots(None, "x:s3://a/b,memory://c,/d")] == ["x", "", ""]


# The panel.


def test_the_panel_reads_urls(recorded, memory, monkeypatch):
    monkeypatch.setattr(table.RunTable, "start", table.RunTable.scan)
    put(memory, recorded, "/bucket")
    panel = Panel("memory://bucket")  # type: ignore[arg-type]
    answer = panel.json("runs")
    assert [row["run"] for row in answer["runs"]] == ["deep/er", "gpt"] and answer["errors"] == []
    assert answer["runs"][1]["steps"] == 50 and answer["runs"][1]["optimizers"] == ["optimizer"]
    assert [event["step"] for event in panel.json("events", run="gpt")["events"]] == [20]
    header, _ = panel.binary("heatmap", run="gpt", column="grad_norm")
    assert header["rows"] == list(NAMES)


def test_what_a_listing_says_has_not_changed_is_not_asked_for_again(recorded, memory, monkeypatch):
    monkeypatch.setattr(table.RunTable, "start", table.RunTable.scan)
    put(memory, recorded, "/bucket")
    panel = Panel("memory://bucket")  # type: ignore[arg-type]
    panel.json("runs")
    asked: list[str] = []
    cat_file = type(memory).cat_file
    monkeypatch.setattr(
        type(memory), "cat_file", lambda *given, **named: asked.append(given[1]) or cat_file(*given, **named)
    )
    panel.plugin._runs.scan()
    assert asked == []
    log = open_log(recorded / "deep" / "er", first_step=10)
    append(log, range(10, 20))
    log.close()
    put(memory, recorded, "/bucket")
    panel.plugin._runs.scan()
    assert {row["run"]: row["steps"] for row in panel.json("runs")["runs"]} == {"deep/er": 20, "gpt": 50}
    assert asked and all(path.startswith("/bucket/deep/er/") for path in asked)


def test_a_real_tensorboard_shows_runs_behind_a_url(recorded):
    with tensorboard(f"file://{recorded}") as address:  # type: ignore[arg-type]
        deadline = time.monotonic() + 1200
        while True:
            with urllib.request.urlopen(f"{address}/data/plugin/tbnum/runs", timeout=1200) as response:
                answer = strict_json(response.read())
            if answer["state"] == "ready" or time.monotonic() > deadline:
                break
        assert [row["run"] for row in answer["runs"]] == ["deep/er", "gpt"]
        with urllib.request.urlopen(f"{address}/data/plugin/tbnum/events?run=gpt", timeout=1200) as response:
            assert [event["kind"] for event in strict_json(response.read())["events"]] == ["skip"]
