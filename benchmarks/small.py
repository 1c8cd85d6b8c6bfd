"""What tbnum costs where a step is short: a 2 x 64 MLP as in reinforcement learning, and its Python a step.

    python -m benchmarks.overhead --only small     # a minute on one core
    python -m benchmarks.small                     # the same

Everything is measured from outside, as a difference or a ratio to the bare loop beside it: nothing here knows how tbnum
works inside, but that its passes over tensors are the functions of `tbnum.measure` whose names end in `_of`.

A block is 200 steps in their natural order, each between two blocks of the bare loop: short blocks, and many, for what
else runs on a machine changes within a second. Steps at which histograms are due are rarer than that: one is timed by
itself, and weighed. Wall time is what a user waits; the training thread's processor time leaves out what other
processes take of the core, and also what the thread waits for: compare both before believing either.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.contenders import DEFAULTS, MAX_NORM, AddLossAndNorm, Tbnum, Watch, hold_still
from benchmarks.passes import Passes
from benchmarks.report import Report, Row, median, parser, spread

__all__ = ["main", "small"]

FEATURES, HIDDEN, ACTIONS, BATCH = 16, 64, 4, 64
MOST = {"plain": 1.25, "with clip": 1.20, "with scaler": 1.25, "with scaler and clip": 1.20}  # times the bare loop
MOST_PYTHON_US = {"tight": {10: 100.0, 150: 150.0}, "real": {10: 300.0, 150: 300.0}}
MOST_BACKWARD_US = {10: 60.0, 150: 160.0}
TENSORS = (10, 150)
STEPS, WARM_UP = 200, 10
SWEPT = 2_000_000  # floats: more than a core's own caches hold


class SmallTraining:
    """A policy's training loop on random data: 2 hidden layers of 64, Adam, float32."""

    def __init__(self, *, clip: bool, with_scaler: bool) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, ACTIONS)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if with_scaler else None
        self._clip = clip
        self._inputs, self._targets = torch.randn(BATCH, FEATURES), torch.randn(BATCH, ACTIONS)

    def step(self, watch: Watch) -> None:
        loss = nn.functional.mse_loss(self.model(self._inputs), self._targets)
        total_norm = None
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler.scale(loss).backward()
        if self._clip:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            total_norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        watch.stepped(loss, total_norm)
        self.optimizer.zero_grad()


class TensorTraining:
    """A loop whose time is tbnum's: so many tensors of 64 elements, a loss as cheap as one can be, and a clip.

    `pause` is called where the passes of a real step would be.
    """

    def __init__(self, count: int, *, with_scaler: bool = False, backwards: int = 1) -> None:
        torch.manual_seed(0)
        self.model = nn.ParameterList([nn.Parameter(torch.randn(64)) for _ in range(count)])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, foreach=True)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if with_scaler else None
        self._weights = torch.randn(64 * count)
        self._backwards = backwards
        self.pause: Callable[[], None] = _nothing

    def step(self, watch: Watch) -> None:
        for _ in range(self._backwards):
            loss = torch.cat(list(self.model)).dot(self._weights)
            loss = loss if self.scaler is None else self.scaler.scale(loss)
            self.pause()
            loss.backward()
        self.pause()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        total_norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.pause()
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        watch.stepped(loss, total_norm)
        self.optimizer.zero_grad()


def _nothing() -> None: ...


@dataclass
class Steps:
    """Seconds of each step of a block, but for the pauses."""

    wall: list[float] = field(default_factory=list)
    thread: list[float] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)  # of `thread`, in passes over tensors

    @property
    def wall_mean(self) -> float:
        return sum(self.wall) / len(self.wall)

    @property
    def thread_mean(self) -> float:
        return sum(self.thread) / len(self.thread)

    @property
    def passes_mean(self) -> float:
        return sum(self.passes) / len(self.passes)


class Cold:
    """What a real step does to the caches and to Python's memory between two calls of tbnum."""

    def __init__(self) -> None:
        self.wall = self.thread = 0.0
        self._floats = torch.zeros(SWEPT)
        self._layer = nn.Linear(256, 256)
        self._batch = torch.randn(64, 256)

    def __call__(self) -> None:
        wall, thread = time.perf_counter(), time.thread_time()
        self._floats.add_(1.0)
        with torch.no_grad():
            self._layer(self._batch)
        sorted([str(number) for number in range(2000)])
        self.wall += time.perf_counter() - wall
        self.thread += time.thread_time() - thread

    def take(self) -> tuple[float, float]:
        taken = self.wall, self.thread
        self.wall = self.thread = 0.0
        return taken


class Bench:
    """Times blocks, each in a folder of its own."""

    def __init__(self, folder: Path, passes: Passes) -> None:
        self._folder, self._passes = folder, passes
        self._blocks = 0

    def block(self, training: Any, watch: Watch, steps: int, cold: Cold | None = None) -> Steps:
        """Attaches, warms up, times `steps` steps, takes off."""
        found = Steps()
        self._blocks += 1
        watch.attach(training, self._folder / str(self._blocks) / "run")
        try:
            hold_still()
            for number in range(-WARM_UP, steps):
                self._passes.take()
                wall, thread = time.perf_counter(), time.thread_time()
                training.step(watch)
                thread, wall = time.thread_time() - thread, time.perf_counter() - wall
                paused = (0.0, 0.0) if cold is None else cold.take()
                if number >= 0:
                    found.wall.append(wall - paused[0])
                    found.thread.append(thread - paused[1])
                    found.passes.append(self._passes.take())
        finally:
            watch.detach()
        return found

    def histogram_steps(self, training: Any) -> float:
        """What a step at which histograms are due takes above others, seconds of the training thread."""
        interval = DEFAULTS["histogram_interval"]
        thread = self.block(training, Tbnum("tbnum"), interval - WARM_UP + 1).thread
        tensor_steps = [
            seconds for step, seconds in enumerate(thread, WARM_UP) if step % DEFAULTS["tensor_interval"] == 0
        ]
        return max(0.0, thread[-1] - median(tensor_steps))


def short_step(report: Report, bench: Bench, *, rounds: int, steps: int) -> None:
    """The 2 x 64 MLP: ratios to the bare loop beside it."""
    rows = []
    for name, clip, with_scaler in (
        ("plain", False, False),
        ("with clip", True, False),
        ("with scaler", False, True),
        ("with scaler and clip", True, True),
    ):
        training = SmallTraining(clip=clip, with_scaler=with_scaler)
        watches = [Tbnum("tbnum"), AddLossAndNorm()]
        wall: dict[str, list[float]] = {watch.name: [] for watch in watches}
        thread: dict[str, list[float]] = {watch.name: [] for watch in watches}
        bare_us = []
        rare = bench.histogram_steps(training) / DEFAULTS["histogram_interval"]
        for _ in range(rounds):
            before = bench.block(training, Watch(), steps)
            for watch in watches:
                seldom = rare if isinstance(watch, Tbnum) else 0.0
                found = bench.block(training, watch, steps)
                after = bench.block(training, Watch(), steps)
                wall[watch.name].append((found.wall_mean + seldom) * 2 / (before.wall_mean + after.wall_mean))
                thread[watch.name].append((found.thread_mean + seldom) * 2 / (before.thread_mean + after.thread_mean))
                bare_us.append(after.wall_mean * 1e6)
                before = after
        rows.append(Row(f"{name}: bare, a step", median(bare_us), "us", spread=spread(bare_us)))
        for watch in watches:
            ratios, busy = wall[watch.name], thread[watch.name]
            target = MOST[name] if isinstance(watch, Tbnum) else None
            note = f"of these {rare * 1e6:.1f} us a step for histograms" if isinstance(watch, Tbnum) else ""
            rows.append(Row(f"{name}: {watch.name}", median(ratios), "x", target, spread=spread(ratios), note=note))
            what = f"{name}: {watch.name}, processor time"
            rows.append(Row(what, median(busy), "x", target, spread=spread(busy), note="of the training thread"))
    report.add(f"2 x {HIDDEN} MLP, batch of {BATCH}, Adam, one thread, {rounds} rounds of {steps:,} steps", rows)


@dataclass
class Extra:
    """What tbnum adds, microseconds a step of its thread's processor time, one entry a round."""

    mean: list[float] = field(default_factory=list)  # beside the passes
    ordinary: list[float] = field(default_factory=list)  # the same at most steps, at which no interval is due
    passes: list[float] = field(default_factory=list)


def extra(bench: Bench, training: Any, *, rounds: int, steps: int, cold: Cold | None) -> Extra:
    """What tbnum adds to a step of `training`. Steps with histograms are left out."""
    training.pause = _nothing if cold is None else cold
    found = Extra()
    before = bench.block(training, Watch(), steps, cold)
    for _ in range(rounds):
        block = bench.block(training, Tbnum("tbnum"), steps, cold)
        after = bench.block(training, Watch(), steps, cold)
        bare = (before.thread_mean + after.thread_mean) / 2
        found.mean.append((block.thread_mean - block.passes_mean - bare) * 1e6)
        ordinary = median([thread - passes for thread, passes in zip(block.thread, block.passes, strict=True)])
        found.ordinary.append((ordinary - median(before.thread + after.thread)) * 1e6)
        found.passes.append(block.passes_mean * 1e6)
        before = after
    return found


def python_beside_passes(report: Report, bench: Bench, *, rounds: int, steps: int) -> None:
    """Python of tbnum a step, and of each further backward."""
    rows = []
    for count in TENSORS:
        once: dict[bool, Extra] = {}
        for with_scaler in (False, True):
            for where, cold in (("tight", None), ("real", Cold())):
                training = TensorTraining(count, with_scaler=with_scaler)
                found = extra(bench, training, rounds=rounds, steps=steps if cold is None else steps // 2, cold=cold)
                if cold is None:
                    once[with_scaler] = found
                loop = "in a tight loop" if cold is None else "between real steps"
                name = f"{count} tensors, {loop}{', scaler' if with_scaler else ''}"
                note = f"at most steps {median(found.ordinary):,.0f} us; passes {median(found.passes):,.0f} us"
                most = MOST_PYTHON_US[where][count]
                rows.append(Row(name, median(found.mean), "us", most, spread=spread(found.mean), note=note))
        found = extra(bench, TensorTraining(count, backwards=5), rounds=rounds, steps=steps // 2, cold=None)
        further = (median(found.ordinary) - median(once[False].ordinary)) / 4
        rows.append(Row(f"{count} tensors, each further backward", further, "us", MOST_BACKWARD_US[count]))
    report.add("Python beside the passes over tensors, a step with a clip, processor time of the training thread", rows)


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def small(report: Report, *, rounds: int = 6, steps: int = STEPS) -> None:
    """Both sections."""
    passes = Passes(time.thread_time)
    with one_thread(), tempfile.TemporaryDirectory() as folder, passes.running():
        bench = Bench(Path(folder), passes)
        short_step(report, bench, rounds=rounds, steps=steps)
        python_beside_passes(report, bench, rounds=max(1, rounds // 2), steps=max(2, steps // 2))


def main(arguments: Sequence[str] | None = None) -> Report:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=6, help="blocks of tbnum a loop (default %(default)s)")
    args = options.parse_args(arguments)
    report = Report("small", settings={"rounds": args.rounds, "quick": args.quick})
    report.begin()
    small(report, rounds=3 if args.quick else args.rounds)
    report.finish(args.json)
    return report


if __name__ == "__main__":
    main()
