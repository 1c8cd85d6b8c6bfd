"""Whether the panel grows while it follows a run that goes on: memory, elements and listeners, minute by minute.

    python -m benchmarks.panel_live               # ten minutes
    python -m benchmarks.panel_live --minutes 2

The run has 20,000 steps when it is opened, and ten more each second. What is held is counted after a collection, from
the second minute on: before that the page still makes what it keeps.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.log import Rows, in_batches, open_log
from benchmarks.panel import Browser, until_ready
from benchmarks.report import Report, Row, parser
from tests import panel_files

STEPS = 20_000
STEPS_A_SECOND = 10
MOST_GROWTH_MB = 1.0  # of the page, over all minutes
MOST_GROWTH = 50  # elements, listeners


def held(session: Any) -> dict[str, float]:
    """What the page holds after a collection."""
    session.send("HeapProfiler.collectGarbage")
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return {"MB": found["JSHeapUsedSize"] / 1e6, "nodes": found["Nodes"], "listeners": found["JSEventListeners"]}


def main(arguments: Sequence[str] | None = None) -> Report:
    options = parser(__doc__)
    options.add_argument("--minutes", type=int, default=10, help="(default %(default)s)")
    args = options.parse_args(arguments)
    try:
        from playwright.sync_api import sync_playwright

        from tests.browser.conftest import TensorBoard
    except ImportError:
        sys.exit("the panel's benchmark needs playwright and pytest: pip install tbnum[test]")
    panel_files.build()
    report = Report("panel_live", settings={"minutes": args.minutes})
    report.begin()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        log, rows, step = open_log(Path(name) / "live"), Rows(), STEPS
        for batch in in_batches(STEPS):
            for row in rows.of(batch):
                log.append_step(row)
        assert log.flush()
        server = TensorBoard(Path(name))
        seen: list[dict[str, float]] = []
        try:
            until_ready(server.url)
            page, frame, _ = Browser(driver).open(server.url, "live")
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            for minute in range(1, args.minutes + 1):
                until = time.monotonic() + 60
                while time.monotonic() < until:
                    for row in rows.of(range(step, step + STEPS_A_SECOND)):
                        log.append_step(row)
                    step += STEPS_A_SECOND
                    log.flush()
                    page.wait_for_timeout(1000)
                seen.append(held(session))
                print(minute, {key: round(value, 2) for key, value in seen[-1].items()}, flush=True)
            shown = int(frame.locator(".plot").first.get_attribute("aria-valuemax") or 0)
        finally:
            server.stop()
            log.close()
    first, last = seen[min(1, len(seen) - 1)], seen[-1]
    report.add(
        f"a run that goes on for {args.minutes} minutes, {STEPS_A_SECOND} steps a second",
        [
            Row("steps that are not shown at the end", step - 1 - shown, "", 5 * STEPS_A_SECOND),
            Row("the page's memory grows by", last["MB"] - first["MB"], "MB", MOST_GROWTH_MB),
            Row("its elements by", last["nodes"] - first["nodes"], "", MOST_GROWTH),
            Row("its listeners by", last["listeners"] - first["listeners"], "", MOST_GROWTH),
        ],
    )
    report.finish(args.json)
    return report


if __name__ == "__main__":
    main()
