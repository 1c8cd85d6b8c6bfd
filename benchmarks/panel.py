"""What the panel costs: a real TensorBoard, a real Chromium, a run of a million steps, and a folder of 500 runs.

    python -m benchmarks.panel            # two minutes
    python -m benchmarks.panel --quick    # half a minute

The browser renders in software here, so drawing is slower than on a desk.
"""

from __future__ import annotations

import functools
import json
import math
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.log import COLUMNS, Rows, in_batches, open_log
from benchmarks.panel_overlaid import overlaid
from benchmarks.report import Report, Row, median, parser, quantile, resident_mb, spread
from tbnum.log.schema import Event
from tbnum.log.tensors import TensorTable
from tests import panel_files

MOST_COLD_SECONDS = 0.7
MOST_WARM_SECONDS = 0.3
MOST_REFINED_MS = 50.0
LEAST_HOVER_FPS = 59.0  # 60 as a display counts them: 59.94
MOST_SERVER_MB = 250.0
MOST_IS_ACTIVE_MS = 5.0
MOST_STATIC_KB = 300.0
MOST_MODULES = 8.0
MOST_HEAT_MAP_SECONDS = 0.5
WAIT_MS = 300_000  # of a busy machine
WARM = 2  # how often a page is opened once the server is warm, after the one time that it is cold

TENSORS = 300

# In each frame, before its own scripts: notes when render() was called (it sets the document's language first) and
# when a canvas was cleared, which is how a chart begins to draw.
PROBE = """(() => {
  const probe = (window.probe = { render: null, drawn: null, draws: [], cells: null });
  performance.setResourceTimingBufferSize(10000);
  new MutationObserver((_, observer) => {
    probe.render = performance.now();
    observer.disconnect();
  }).observe(document, { attributes: true, subtree: true, attributeFilter: ["lang"] });
  const clear = CanvasRenderingContext2D.prototype.clearRect;
  CanvasRenderingContext2D.prototype.clearRect = function (...area) {
    if (!probe.draws.length) requestAnimationFrame(() => { probe.drawn = performance.now(); });
    probe.draws.push(performance.now());
    return clear.apply(this, area);
  };
  const put = CanvasRenderingContext2D.prototype.putImageData;
  CanvasRenderingContext2D.prototype.putImageData = function (...image) {
    if (this.canvas.closest(".heat-inner")) requestAnimationFrame(() => { probe.cells ??= performance.now(); });
    return put.apply(this, image);
  };
})()"""

# A wheel turn over the first chart: ms until it was drawn again, and until it was so with the server's answer; null
# where what had been loaded was fine enough, so that nothing was asked for.
TURN = """async (turn) => {
  const over = document.querySelector(".plot .u-over");
  const { left, top, width, height } = over.getBoundingClientRect();
  const at = { clientX: left + width * turn.at, clientY: top + height / 2 };
  const frame = () => new Promise(requestAnimationFrame);
  const start = performance.now();
  over.dispatchEvent(new WheelEvent("wheel", { ...turn, ...at, bubbles: true, cancelable: true }));
  const drawn = (since) => probe.draws.some((moment) => moment >= since);
  const answered = () => performance.getEntriesByType("resource").find(
    (entry) => entry.name.includes("series?") && entry.startTime >= start && entry.responseEnd > 0);
  let first = null, refined = null;
  while (refined === null && performance.now() - start < 2000) {
    await frame();
    if (first === null && drawn(start)) first = performance.now() - start;
    const answer = answered();
    if (!answer && performance.now() - start > 400) break;
    if (answer && drawn(answer.responseEnd)) refined = performance.now() - start;
  }
  return { first, refined };
}"""

# A click on the button that opens the heat map: seconds until it was drawn.
OPEN_HEAT_MAP = """async () => {
  const start = performance.now();
  [...document.querySelectorAll("button")].find(({ textContent }) => textContent === "Tensors").click();
  while (probe.cells === null) await new Promise(requestAnimationFrame);
  return (probe.cells - start) / 1e3;
}"""

# The pointer moves a little in each frame: ms from frame to frame, and of these in the panel's own code.
HOVER = """async (frames) => {
  const over = document.querySelector(".plot .u-over");
  const { left, top, width, height } = over.getBoundingClientRect();
  const moments = [], handling = [];
  for (let number = 0; number < frames; number++) {
    moments.push(await new Promise(requestAnimationFrame));
    const start = performance.now();
    const at = { clientX: left + width * (0.1 + (0.8 * number) / frames), clientY: top + height / 2, bubbles: true };
    over.dispatchEvent(new PointerEvent("pointermove", at));
    over.dispatchEvent(new MouseEvent("mousemove", at));
    handling.push(performance.now() - start);
  }
  return { between: moments.slice(1).map((moment, index) => moment - moments[index]), handling };
}"""

OPENED = """() => ({
  render: performance.timeOrigin + probe.render,
  drawn: performance.timeOrigin + probe.drawn,
  modules: performance.getEntriesByType("resource").filter(
    (entry) => entry.name.split("?")[0].endsWith(".js") && entry.startTime < probe.drawn).length,
  kilobytes: performance.getEntriesByType("resource").filter(
    (entry) => entry.name.includes("/static/") && entry.startTime < probe.drawn)
    .reduce((sum, entry) => sum + entry.decodedBodySize, 0) / 1e3,
  foreign: performance.getEntriesByType("resource").filter((entry) => !entry.name.startsWith(location.origin)).length,
})"""


def write_long_run(folder: Path, steps: int, events: int) -> None:
    log = open_log(folder)
    rows, every, scale = Rows(), max(1, steps // (events // 2)), 65536.0
    for batch in in_batches(steps):
        for row in rows.of(batch):
            log.append_step(row)
        for step in batch:
            if step % every == every // 2:
                wall_time = 1.75e9 + step * 0.25
                facts = {
                    "loss": 2.0, "loss_scale": scale, "new_scale": scale / 2, "grad_norm": math.inf,
                    "nonfinite_tensors": 3, "tensors": 150, "micro_batches": 1,
                    "nonfinite_names": ["blocks.3.attn.qkv.weight"],
                }  # fmt: skip
                log.write_event(Event(step, wall_time, "skip", optimizer="optimizer", data=facts))
                change = {"old_scale": scale, "new_scale": scale / 2}
                log.write_event(Event(step, wall_time, "scale_backoff", data=change))
        assert log.flush()
    log.close()
    assert not log.dropped, log.dropped


def server_mb(pid: int) -> float:
    """TensorBoard and its data server."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    others = children.read_text().split() if children.exists() else []
    return resident_mb(pid) + sum(resident_mb(each) for each in others)


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        body: bytes = answer.read()
        return body


def get(url: str) -> Any:
    return json.loads(fetch(url))


def until_ready(url: str) -> dict[str, Any]:
    """The table of runs, once the server has looked through the folder."""
    while True:
        table: dict[str, Any] = get(url + "data/plugin/tbnum/runs")
        if table["state"] == "ready":
            return table
        time.sleep(0.02)


class Browser:
    """One Chromium; each page is as a first visit."""

    def __init__(self, driver: Any) -> None:
        from tests.browser.conftest import CHROMIUM_FLAGS, REMEDY, _chromium

        executable = _chromium(driver.chromium.executable_path)
        if executable is None:
            raise SystemExit(REMEDY)
        self._browser = driver.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)

    def open(self, url: str, run: str) -> tuple[Any, Any, dict[str, float]]:
        """The page, the panel's frame in it, and when what was there, in ms since the page was asked for."""
        page = self._page(url)
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(PROBE)
        page.goto(f"{url}#tbnum&p.tbnum.run={run}")
        page.frame_locator("iframe").locator(".plot .u-over").first.wait_for(timeout=WAIT_MS)
        frame = next(each for each in page.frames if "plugin_entry" in each.url)
        frame.wait_for_function("() => probe.drawn !== null", timeout=WAIT_MS)
        found = frame.evaluate(OPENED)
        began = page.evaluate("() => performance.timeOrigin")
        return page, frame, {**found, "render": found["render"] - began, "drawn": found["drawn"] - began}

    def _page(self, url: str) -> Any:
        return self._browser.new_context(viewport={"width": 1440, "height": 900}).new_page()


def long_run(
    report: Report, browser: Browser, folder: Path, *, static: Path, steps: int, events: int, colds: int
) -> None:
    from tests.browser.conftest import TensorBoard

    write_long_run(folder / "long", steps, events)
    cold: list[float] = []
    warm: list[float] = []
    before: list[float] = []
    opened: dict[str, float] = {}
    for _ in range(colds):
        server = TensorBoard(folder)
        try:
            until_ready(server.url)
            idle = server_mb(server.process.pid)
            for target in (cold, *[warm] * WARM):
                page, frame, opened = browser.open(server.url, "long")
                target.append((opened["drawn"] - opened["render"]) / 1e3)
                before.append(opened["render"] / 1e3)
                if len(warm) == WARM * colds:
                    turned = [frame.evaluate(TURN, turn) for turn in _turns()]
                    hovered = frame.evaluate(HOVER, 120)
                page.context.close()
            grown = server_mb(server.process.pid) - idle
            events_route = _seconds(functools.partial(fetch, server.url + "data/plugin/tbnum/events?run=long"), 3)
        finally:
            server.stop()
    long = steps >= 1_000_000
    frames = [1e3 / each for each in hovered["between"]]
    first = [each["first"] for each in turned if each["first"] is not None]
    refined = [each["refined"] for each in turned if each["refined"] is not None]
    most = (MOST_COLD_SECONDS, MOST_WARM_SECONDS) if long else (None, None)
    rows = [
        Row("TensorBoard's own, until it calls render()", median(before), "s", spread=spread(before)),
        Row("render() to drawn charts, server cold", median(cold), "s", most[0], spread=spread(cold)),
        Row("render() to drawn charts, server warm", median(warm), "s", most[1], spread=spread(warm)),
        Row("zoom or pan to a redrawn frame", median(first), "ms", spread=spread(first)),
        Row("zoom or pan to the refined frame", median(refined), "ms", MOST_REFINED_MS, spread=spread(refined)),
        Row("hover, frames a second, median", round(median(frames), 1), "", LEAST_HOVER_FPS, at_least=True),
        Row("hover, frames a second, slowest of 20", quantile(frames, 0.05), ""),
        Row("hover, the panel's own code in a frame", median(hovered["handling"]), "ms"),
        Row("the events alone, warm, a request", median(events_route) * 1e3, "ms"),
        Row("TensorBoard's processes grow by", grown, "MB", MOST_SERVER_MB),
    ]
    report.add(f"run of {steps:,} steps, {len(COLUMNS)} columns, {events:,} events", rows)
    rows = [
        Row("JavaScript and CSS before the first drawing", opened["kilobytes"], "kB", MOST_STATIC_KB),
        Row("all of it, with what is opened later", panel_files.loaded_bytes(static) / 1e3, "kB", MOST_STATIC_KB),
        Row("modules before the first drawing", opened["modules"], "", MOST_MODULES),
        Row("requests to third parties", opened["foreign"], "", 0),
    ]
    report.add("what the tab loads", rows)


def _turns() -> list[dict[str, Any]]:
    """Zooms in and out and moves sideways, as the wheel does them, between the whole run and a hundredth of it."""
    nearer: dict[str, Any] = {"ctrlKey": True, "deltaY": -60, "at": 0.4}
    return [*[nearer] * 8, *[{"deltaX": 80, "at": 0.5}] * 6, *[{**nearer, "deltaY": 60}] * 6]


def many_runs(report: Report, folder: Path, runs: int) -> None:
    from tests.browser.conftest import TensorBoard

    log = open_log(folder / "run0000")
    for row in Rows().of(range(2000)):
        log.append_step(row)
    log.close()
    for number in range(1, runs):
        shutil.copytree(folder / "run0000", folder / f"run{number:04}")
    active = _is_active_ms(folder)
    server = TensorBoard(folder)
    try:
        start = time.perf_counter()
        assert len(until_ready(server.url)["runs"]) == runs
        listed = time.perf_counter() - start
        again = _seconds(lambda: get(server.url + "data/plugin/tbnum/runs"), 20)
        listing = _seconds(lambda: get(server.url + "data/plugins_listing"), 20)
    finally:
        server.stop()
    rows = [
        Row("all of them listed, from the first request on", listed, "s"),
        Row("the list again", median(again) * 1e3, "ms"),
        Row("is_active while the scan runs, slowest", max(active), "ms", MOST_IS_ACTIVE_MS),
        Row("data/plugins_listing, all plugins, a request", median(listing) * 1e3, "ms"),
    ]
    report.add(f"folder of {runs} runs", rows)


def write_tensors(folder: Path, samples: int) -> None:
    """Statistics of TENSORS tensors at every hundredth step."""
    chance = np.random.default_rng(0)
    names = tuple(f"blocks.{index // 12}.part{index % 12}.weight" for index in range(TENSORS))
    none = np.zeros(TENSORS)
    log, rows = open_log(folder), Rows()
    for number, row in enumerate(rows.of(range(samples))):
        log.append_step(row)
        norms = chance.lognormal(-5, 1, TENSORS).astype(np.float32)
        columns = {"grad_norm": norms, "absmax": norms / 8, "update_norm": norms / 64, "param_norm": 1 + norms}
        log.write_tensors(TensorTable(number, names, {**columns, "nan": none, "inf": none}))
        if number % 200 == 0:
            assert log.flush()
    log.close()
    assert not log.dropped, log.dropped


def heat_map(report: Report, browser: Browser, folder: Path, samples: int) -> None:
    from tests.browser.conftest import TensorBoard

    write_tensors(folder / "tensors", samples)
    seen: list[float] = []
    server = TensorBoard(folder)
    try:
        until_ready(server.url)
        for _ in range(1 + WARM):  # cold, then warm
            page, frame, _ = browser.open(server.url, "tensors")
            frame.get_by_role("button", name="Tensors").wait_for(timeout=WAIT_MS)
            seen.append(frame.evaluate(OPEN_HEAT_MAP))
            page.context.close()
    finally:
        server.stop()
    server = TensorBoard(folder)
    try:
        until_ready(server.url)
        route = server.url + "data/plugin/tbnum/"
        fetch(route + "run?run=tensors")
        idle = server_mb(server.process.pid)
        (listed,) = _seconds(functools.partial(fetch, route + "tensors?run=tensors"), 1)
        whole = functools.partial(fetch, route + "heatmap?run=tensors&column=grad_norm")
        (cold,) = _seconds(whole, 1)
        warm = _seconds(whole, 10)
        zoomed = _seconds(lambda: fetch(route + f"heatmap?run=tensors&column=grad_norm&to={samples // 10}"), 10)
        modules = _seconds(lambda: fetch(route + "heatmap?run=tensors&column=update_ratio&depth=2"), 1)
        grown = server_mb(server.process.pid) - idle
    finally:
        server.stop()
    most = MOST_HEAT_MAP_SECONDS if samples >= 10_000 else None
    rows = [
        Row("of it the server's part, cold", listed + cold, "s"),
        Row("of it the server's part, warm", median(warm) * 1e3, "ms"),
        Row("a tenth of its steps, the server's part", median(zoomed) * 1e3, "ms"),
        Row("by module and of two columns, cold, the server's part", modules[0], "s"),
        Row("TensorBoard's processes grow by", grown, "MB", MOST_SERVER_MB),
    ]
    rows[:0] = [
        Row("from the click to the drawn heat map, server cold", seen[0], "s", most),
        Row("from the click to the drawn heat map, server warm", median(seen[1:]), "s", most),
    ]
    report.add(f"heat map of {TENSORS} tensors by {samples:,} samples", rows)


def _is_active_ms(folder: Path) -> list[float]:
    """In this process, from the making of the plugin on."""
    from tensorboard.plugins.base_plugin import TBContext

    from tensorboard_plugin_tbnum.loader import TbnumLoader

    plugin = TbnumLoader().load(TBContext(logdir=str(folder), flags=None))
    until = time.perf_counter() + 1.0
    assert plugin is not None
    seconds: list[float] = []
    while time.perf_counter() < until:
        seconds += _seconds(plugin.is_active, 1)
        time.sleep(0.005)
    return [each * 1e3 for each in seconds]


def _seconds(call: Callable[[], Any], times: int) -> list[float]:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def main(arguments: Sequence[str] | None = None) -> Report:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, help="of the long run (default 1,000,000; quick 100,000)")
    options.add_argument("--events", type=int, default=5000, help="of the long run (default %(default)s)")
    options.add_argument("--runs", type=int, default=500, help="in the folder of many (default %(default)s)")
    args = options.parse_args(arguments)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("the panel's benchmark needs playwright and pytest: pip install tbnum[test]")
    try:
        static = panel_files.build()
    except RuntimeError as error:
        sys.exit(str(error))
    steps = args.steps or (100_000 if args.quick else 1_000_000)
    report = Report("panel", settings={"steps": steps, "events": args.events, "runs": args.runs})
    report.begin()
    with tempfile.TemporaryDirectory() as name:
        with sync_playwright() as driver:
            browser = Browser(driver)
            colds = 1 if args.quick else 5
            long_run(report, browser, Path(name) / "one", static=static, steps=steps, events=args.events, colds=colds)
            heat_map(report, browser, Path(name) / "tensors", min(10_000, steps // 100))
            overlaid(report, browser, Path(name) / "overlaid", min(100_000, steps // 10), TURN, _turns(), WARM)
        many_runs(report, Path(name) / "many", args.runs)
    report.finish(args.json)
    return report


if __name__ == "__main__":
    main()
