"""Draws the figures of the primer from the record of a demo's run.

    make demo NAME=figures SERVE=0
    python docs/figures.py runs/figures            # writes docs/figures/*.svg

Every figure is of what the run measured. Needs matplotlib (`pip install -e '.[docs]'`).
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

import tbnum
from tbnum.formats import BINS, FORMATS, INF, ZERO, last_bin_flushed
from tbnum.log.reader import Run
from tbnum.log.schema import Event

FOLDER = Path(__file__).parent / "figures"
FLOAT16 = FORMATS["float16"]
INK, PALE, BLUE, RED, ORANGE, GREEN = "#1f2328", "#d8dee4", "#0969da", "#cf222e", "#bc4c00", "#1a7f37"
CAUSE_COLOURS = {"scale_warmup": ORANGE, "growth_probe": GREEN, "bad_batch": RED}
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tbnum",  # the same run gives the same bytes
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "figure.facecolor": "white",  # opaque: readable on a dark page, too
    "legend.frameon": False,
}


def scale_over_a_run(run: Run) -> Figure:
    """The loss, and below it the scale with each skip and its cause."""
    steps = run.steps
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    upper.plot(steps["step"], steps["loss"], color=BLUE, linewidth=0.8)
    upper.set_ylabel("loss")
    lower.step(steps["step"], np.log2(steps["loss_scale"]), where="post", color=INK, linewidth=1)
    lower.set_ylabel("loss scale")
    lower.set_xlabel("step")
    _powers_of_two(lower.yaxis, every=2)
    for cause, colour in CAUSE_COLOURS.items():
        at = np.array([event.step for event in _skips(run, cause)], int)
        rows = np.searchsorted(steps["step"], at)
        for axes, values in ((upper, steps["loss"]), (lower, np.log2(steps["loss_scale"]))):
            axes.plot(at, values[rows], "o", markersize=4.5, color=colour, label=f"{cause} ({len(at)})", zorder=3)
    upper.legend(title="skipped steps", title_fontsize=9, alignment="left")
    return figure


def float16_range(run: Run) -> Figure:
    """The gradient's elements by magnitude, and the part of the axis that float16 covers with and without a scale."""
    step, counts, scale = _late_histogram(run)
    elements = counts[ZERO + 1 : INF]
    centres = np.arange(ZERO + 1, INF) - 127.5  # bin i holds 2**(i - 128) < |x| <= 2**(i - 127)
    some = elements > 0
    figure = Figure(figsize=(7.6, 3.3), layout="constrained")
    axes = figure.subplots()
    axes.bar(centres[some], elements[some] / elements.sum(), width=0.9, color=BLUE)
    axes.set_xlim(-46, 18)
    top = float((elements / elements.sum()).max())
    axes.set_ylim(0, 1.5 * top)
    lost = counts[ZERO + 1 : last_bin_flushed(FLOAT16)[0] + 1].sum() / elements.sum()
    at_scale = f"at the scale $2^{{{math.log2(scale):.0f}}}$"
    for height, factor, colour, text in (
        (1.38, 1.0, RED, f"float16 without a scale: {100 * lost:.0f} % of the elements round to 0"),
        (1.16, scale, GREEN, f"float16 {at_scale}"),
    ):
        low, normal, high = (
            math.log2(value / factor)
            for value in (FLOAT16.smallest_subnormal, FLOAT16.smallest_normal, FLOAT16.maximum)
        )
        y = height * top
        axes.plot([low, normal], [y, y], color=colour, linewidth=3, alpha=0.4, solid_capstyle="butt")
        axes.plot([normal, high], [y, y], color=colour, linewidth=3, solid_capstyle="butt")
        axes.text(low, y + 0.03 * top, text, color=colour, va="bottom")
    axes.text(17.5, 0.95 * top, "faint: subnormal, bit by bit less precise", ha="right", fontsize=8)
    axes.set_xlabel(f"magnitude of a gradient element, unscaled (step {step})")
    axes.set_ylabel("share of the elements")
    _powers_of_two(axes.xaxis, every=8)
    axes.yaxis.set_major_locator(MultipleLocator(0.05))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f} %"))
    return figure


def clipping(run: Run) -> Figure:
    """The norm before and after, and the threshold."""
    steps = run.steps
    first = int(steps["step"][-1]) - 150
    rows = steps["step"] >= first
    figure = Figure(figsize=(7.6, 3.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps["step"][rows], steps["grad_norm"][rows], color=BLUE, linewidth=1, label="grad_norm")
    axes.plot(
        steps["step"][rows], steps["grad_norm_clipped"][rows], color=ORANGE, linewidth=1.4, label="grad_norm_clipped"
    )
    axes.axhline(_max_norm(run), color=INK, linewidth=0.8, linestyle="--", label="max_norm")
    axes.set_xlabel("step")
    axes.set_ylabel("norm of the gradients")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", ncols=3, bbox_to_anchor=(1, 1.16))
    return figure


def scaled_norm(run: Run) -> Figure:
    """The norm that a clip before `unscale_` sees, beside the true one."""
    steps = run.steps
    norm = np.where(steps["skipped"], np.nan, steps["grad_norm"])
    figure = Figure(figsize=(7.6, 3.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        steps["step"],
        np.log2(norm * steps["loss_scale"]),
        color=RED,
        linewidth=0.8,
        label="before unscale_",
    )
    axes.plot(steps["step"], np.log2(norm), color=BLUE, linewidth=0.8, label="after unscale_")
    axes.axhline(math.log2(_max_norm(run)), color=INK, linewidth=0.8, linestyle="--", label="max_norm")
    axes.set_xlabel("step")
    axes.set_ylabel("norm of the gradients")
    _powers_of_two(axes.yaxis, every=4)
    axes.legend(loc="center right")
    return figure


def probe_or_batch(run: Run) -> Figure:
    """A skip right after a growth, and one at a scale that had held: the same event to a GradScaler."""
    steps = run.steps
    probe = _skips(run, "growth_probe")[-1]
    batch = max(_skips(run, "bad_batch"), key=lambda event: float(event.data["loss"]))
    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    panels = figure.subplots(2, 2, sharey="row", sharex="col")
    for column, event, title in ((0, probe, "growth_probe"), (1, batch, "bad_batch")):
        upper, lower = panels[:, column]
        rows = np.abs(steps["step"] - event.step) <= 30
        x, at = steps["step"][rows], np.searchsorted(steps["step"], event.step)
        upper.plot(x, steps["loss"][rows], color=BLUE, linewidth=1)
        upper.plot(event.step, steps["loss"][at], "o", markersize=5, color=CAUSE_COLOURS[title])
        upper.set_title(f"{title}, step {event.step}")
        lower.step(x, np.log2(steps["loss_scale"][rows]), where="post", color=INK, linewidth=1.2)
        lower.plot(
            event.step, np.log2(steps["loss_scale"][at]), "o", markersize=5, color=CAUSE_COLOURS[title], zorder=3
        )
        lower.set_xlabel("step")
        _powers_of_two(lower.yaxis, every=2)
    panels[0, 0].set_ylabel("loss")
    panels[1, 0].set_ylabel("loss scale")
    return figure


FIGURES: dict[str, Callable[[Run], Figure]] = {
    "loss-scale": scale_over_a_run,
    "float16-range": float16_range,
    "clipping": clipping,
    "scaled-norm": scaled_norm,
    "probe-or-batch": probe_or_batch,
}


def _skips(run: Run, cause: str) -> Sequence[Event]:
    return [event for event in run.events if event.kind == "skip" and event.cause == cause]


def _max_norm(run: Run) -> float:
    return float(np.nanmax(run.steps["max_norm"]))


def _late_histogram(run: Run) -> tuple[int, np.ndarray, float]:
    """A step of the second half that was not skipped, its counts (BINS,) of the whole model, and its scale."""
    steps, (at, counts) = run.steps, run.histograms["gradient"].read()
    taken = steps["step"][~steps["skipped"]]
    (good,) = np.nonzero(np.isin(at, taken) & (at >= taken[-1] // 2))
    step = int(at[good[0]])
    assert counts.shape[1] == BINS
    return step, counts[good[0]], float(steps["loss_scale"][np.searchsorted(steps["step"], step)])


def _powers_of_two(axis: Axis, every: int) -> None:
    axis.set_major_locator(MultipleLocator(every))
    axis.set_major_formatter(FuncFormatter(lambda power, _: f"2^{power:.0f}"))


def _shortened(svg: str) -> str:
    """A tenth of a point is less than anyone sees: half of the file are digits beyond it."""
    return re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), svg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logdir", type=Path, help="the folder of a run of the demo")
    parser.add_argument("--to", type=Path, default=FOLDER, metavar="FOLDER", help="(default: docs/figures)")
    arguments = parser.parse_args()
    (run,) = tbnum.read(arguments.logdir).values()
    arguments.to.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        path = arguments.to / f"{name}.svg"
        with mpl.rc_context(STYLE):
            draw(run).savefig(path, metadata={"Date": None})
        path.write_text(_shortened(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{path}  {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
