"""The panel in a page of another origin and another size, as `%tensorboard` in a notebook embeds it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.parse import quote, unquote

import pytest
from playwright.sync_api import expect

from tests.browser import training
from tests.browser.conftest import Panel, TensorBoard

pytestmark = pytest.mark.tensorboard_page

Look = Callable[..., Panel]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> TensorBoard:
    root = tmp_path_factory.mktemp("logdir")
    training.demo_like(root / "gpt" / "demo")
    server = TensorBoard(root)
    yield server
    server.stop()


class Cell(BaseHTTPRequestHandler):
    """A page with a frame that shows the address in its query."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        address = unquote(self.path.partition("?")[2])
        self.wfile.write(f'<!doctype html>Out[1]:<br><iframe width="820" height="600" src="{address}">'.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The notebook's."""
    with HTTPServer(("127.0.0.1", 0), Cell) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_notebook_on_the_same_machine_shows_the_tab_in_its_frame(shared: TensorBoard, port: int, look: Look):
    panel = look(shared)
    panel.page.goto(f"http://127.0.0.1:{port}/?{quote(shared.url + '#tbnum')}")
    frame = panel.page.frame_locator("iframe").frame_locator("iframe")
    expect(frame.locator(".plot .u-over")).to_have_count(3)
    expect(frame.locator("h1")).to_have_text("gpt/demo")
    frame.locator("[data-chart=loss] .plot").press("+")
    expect(frame.get_by_role("button", name="Reset zoom")).to_be_enabled()
    frame.locator("summary", has_text="Views").click()
    frame.get_by_label("Learning rate", exact=True).check()
    expect(frame.locator(".plot .u-over")).to_have_count(4)
    wide, room = frame.locator("html").evaluate("root => [root.scrollWidth, innerWidth]")
    assert wide <= room < 821, "nothing sticks out of the frame"


def test_the_panel_works_where_neither_the_page_around_it_nor_storage_can_be_reached(
    shared: TensorBoard, port: int, look: Look
):
    panel = look(shared)
    panel.page.emulate_media(color_scheme="dark")
    panel.page.add_init_script("Object.defineProperty(window, 'localStorage', {get() { throw new Error('denied'); }})")
    # localhost, for a browser another site than TensorBoard's 127.0.0.1
    panel.page.goto(f"http://localhost:{port}/?{quote(shared.url + 'data/plugin_entry.html?name=tbnum')}")
    frame = panel.page.frame_locator("iframe")
    expect(frame.locator(".plot .u-over")).to_have_count(3)
    expect(frame.locator("html")).to_have_class(re.compile("dark"))
    frame.get_by_label("Smoothing").fill("0.9")  # remembered where that is allowed
    frame.locator(".event-row[data-kind=skip]").first.click()
    expect(frame.locator(".card")).to_be_visible()
    frame.locator("[data-chart=loss] .plot").press("n")
    expect(frame.locator(".card-place")).to_contain_text("2 /")
