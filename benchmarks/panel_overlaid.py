"""What many runs in the same charts cost: the first drawing, each turn of the wheel, each move of the smoothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.log import Rows, in_batches, open_log
from benchmarks.report import Report, Row, median, spread

RUNS = 20
MOST_FIRST_SECONDS = 1.0
MOST_FRAME_MS = 50.0
MOST_SCRIPT_MS = 8.0
WAIT_MS = 300_000

# ms since render() until the summary for screen readers has the last loss of every run: they are drawn then
DRAWN = """() => {
  const said = document.querySelector("#summary-loss")?.textContent ?? "";
  return said.includes("Beside it") && performance.now() - probe.render;
}"""

# The smoothing is moved: ms of script until everything that hangs on it has been drawn, and until a frame shows it.
SMOOTH = """async (weight) => {
  const slider = document.querySelector(".smoothing input");
  const start = performance.now();
  slider.value = String(weight);
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  await Promise.resolve();
  await Promise.resolve();
  const script = performance.now() - start;
  await new Promise(requestAnimationFrame);
  return { script, frame: performance.now() - start };
}"""


def smoothed(frame: Any) -> tuple[list[float], list[float]]:
    """Milliseconds of script, and until a frame, of each of 20 moves."""
    moves = [frame.evaluate(SMOOTH, round(0.02 + 0.045 * at, 3)) for at in range(20)]
    return [move["script"] for move in moves], [move["frame"] for move in moves]


def write_runs(folder: Path, steps: int) -> list[str]:
    names = [f"seed{seed:02}" for seed in range(RUNS)]
    for name in names:
        log, rows = open_log(folder / name), Rows()
        for batch in in_batches(steps):
            for row in rows.of(batch):
                log.append_step(row)
            assert log.flush()
        log.close(timeout=None)
    return names


def overlaid(
    report: Report, browser: Any, folder: Path, steps: int, turn: str, turns: list[dict[str, Any]], warm: int
) -> None:
    """`turn` and `turns`: a turn of the wheel as the page makes it, and its arguments. `warm`: see `panel.WARM`."""
    from tests.browser.conftest import TensorBoard

    first, *others = write_runs(folder, steps)
    server = TensorBoard(folder)
    drawn: list[float] = []
    try:
        for _ in range(1 + warm):  # cold, then warm
            over = "".join(f"&p.tbnum.over={name}" for name in others)
            page, frame, _ = browser.open(server.url, first + over)
            drawn.append(frame.wait_for_function(DRAWN, timeout=WAIT_MS).json_value() / 1e3)
            if len(drawn) == 1 + warm:
                turned = [frame.evaluate(turn, each) for each in turns]
                _, frames = smoothed(frame)
            page.context.close()
        page, frame, _ = browser.open(server.url, first)
        script, _ = smoothed(frame)
        page.context.close()
    finally:
        server.stop()
    wheel = [each["first"] for each in turned if each["first"] is not None]
    long = steps >= 100_000
    rows = [
        Row("render() to all lines drawn, server cold", drawn[0], "s"),
        Row("render() to all lines drawn, server warm", median(drawn[1:]), "s", MOST_FIRST_SECONDS if long else None),
        Row("wheel to a redrawn frame", median(wheel), "ms", MOST_FRAME_MS, spread=spread(wheel)),
        Row("smoothing to a redrawn frame", median(frames), "ms", MOST_FRAME_MS, spread=spread(frames)),
        Row(
            "one run alone: script of an update of the store",
            median(script),
            "ms",
            MOST_SCRIPT_MS,
            spread=spread(script),
        ),
    ]
    report.add(f"{RUNS} runs of {steps:,} steps in the same charts", rows)
