"""A real TensorBoard in a process of its own, and a real Chromium that looks at it."""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="pip install tbnum[test]")

from playwright.sync_api import Browser, ConsoleMessage, FrameLocator, Page, expect, sync_playwright  # noqa: E402

from tests import warm  # noqa: E402

WAIT_MS = 120_000  # until a test gives up, however busy the machine is; nothing waits for so long where it works
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REMEDY = (
    "No browser for the panel's tests. Install one (apt-get install chromium-headless-shell, or python -m playwright "
    "install chromium), or name one in TBNUM_CHROMIUM."
)

expect.set_options(timeout=WAIT_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


def _chromium(own: str) -> str | None:
    """The browser to use: the one that is named, one that the machine has, or Playwright's own.

    The headless shell is the same Chromium without windows and menus: a page takes it a third of the time.
    """
    named = os.environ.get("TBNUM_CHROMIUM")
    candidates = [named] if named else [*BROWSERS, own]
    return next((found for found in map(shutil.which, candidates) if found), None)


@pytest.fixture(scope="session", autouse=True)
def _built(frontend: Path) -> None:
    """The panel that is looked at is the one that is written now."""
    TensorBoard.python = warm.python()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        executable = _chromium(driver.chromium.executable_path)
        if executable is None:
            if os.environ.get("CI"):
                pytest.fail(REMEDY)
            pytest.skip(REMEDY)
        chromium = driver.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


class TensorBoard:
    """`tensorboard --logdir` in a subprocess."""

    python: ClassVar[Sequence[str]] = (sys.executable,)
    """Which starts it; the tests have one that has loaded TensorBoard already, which takes two seconds."""

    def __init__(self, logdir: Path, *arguments: str, port: int = 0) -> None:
        command = [*self.python, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1"]
        self.process = subprocess.Popen(
            [*command, "--port", str(port), *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.log: list[str] = []
        self._urls: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        url = self._urls.get(timeout=1200)
        if url is None:
            raise RuntimeError("TensorBoard ended before it served:\n" + "".join(self.log))
        self.url = url
        self.port = int(re.search(r":(\d+)/", url).group(1))  # type: ignore[union-attr]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+/\S*", line):
                self._urls.put(found.group())
        self._urls.put(None)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=1200)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def serve() -> Iterator[Callable[..., TensorBoard]]:
    started: list[TensorBoard] = []

    def start(logdir: Path, *arguments: str, port: int = 0) -> TensorBoard:
        started.append(TensorBoard(logdir, *arguments, port=port))
        return started[-1]

    yield start
    for server in started:
        server.stop()


# TensorBoard's page takes a second of two cores to load, and the panel needs of it a frame, an address and a class.
BARE = """<!doctype html>
<style>body { margin: 0 } iframe { border: 0; width: 100vw; height: calc(100vh - 64px); margin-top: 64px }</style>
<iframe src="data/plugin_entry.html?name=tbnum"></iframe>
"""


class Panel:
    """The Numerics tab in a page: `frame` finds things in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    @property
    def frame(self) -> FrameLocator:
        return self.page.frame_locator("iframe")

    def open(self, run: str | None = None, **place: str) -> Panel:
        if run is not None:
            place = {"run": run, **place}
        parts = [f"p.tbnum.{name}={quote(value, safe='')}" for name, value in place.items()]
        self.page.goto(self.url + "#" + "&".join(["tbnum", *parts]))
        return self

    def drawn(self) -> Panel:
        """Waits until the three charts are there."""
        expect(self.frame.locator(".plot .u-over")).to_have_count(3)
        return self

    def marks(self, kind: str) -> list[tuple[int, int]]:
        """(first step, count) of each mark of a kind in its lane, from left to right."""
        found = self.frame.locator(f".lanes .mark[data-kind={kind}]").evaluate_all(
            "marks => marks.map(mark => [Number(mark.dataset.step), Number(mark.dataset.count)])"
        )
        return [(step, count) for step, count in found]

    def address(self) -> str:
        return self.page.evaluate("location.hash")

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """For what no locator can express."""
        until = time.monotonic() + WAIT_MS / 1000
        while not holds():
            assert time.monotonic() < until, f"did not come about: {what}"
            self.page.wait_for_timeout(50)


@pytest.fixture
def look(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Panel]]:
    """Opens pages, and at the end holds that the panel's own code raised and logged nothing.

    The page around the panel is a bare one, but where a test is marked `tensorboard_page`. What is served is the same.
    """
    bare = request.node.get_closest_marker("tensorboard_page") is None
    troubles: list[str] = []
    pages: list[Page] = []

    def open_page(server: TensorBoard, *, width: int = 1440, height: int = 900, trouble: bool = False) -> Panel:
        """`trouble`: the test makes requests fail, which the browser itself logs."""
        page = browser.new_context(viewport={"width": width, "height": height}).new_page()
        page.set_default_timeout(WAIT_MS)
        if not trouble:
            page.on("pageerror", lambda error: troubles.append(str(error)))
            page.on("console", lambda said: troubles.append(said.text) if is_ours(said) else None)
        if bare:
            page.route(server.url, lambda route: route.fulfill(content_type="text/html", body=BARE))
        pages.append(page)
        return Panel(page, server.url)

    def is_ours(said: ConsoleMessage) -> bool:
        return said.type == "error" and "tbnum" in str(said.location)

    yield open_page
    for page in pages:
        page.context.close()
    assert troubles == []


@pytest.fixture(scope="module")
def shared(logdir: Path) -> Iterator[TensorBoard]:
    """One for all tests of a module, which says in `logdir` what there is to see."""
    server = TensorBoard(logdir)
    yield server
    server.stop()
