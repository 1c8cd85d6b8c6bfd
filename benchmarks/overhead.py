"""What watching a training loop costs: tbnum beside the bare loop and beside what else people use.

    python -m benchmarks.overhead                 # eleven minutes on two cores
    python -m benchmarks.overhead --quick         # two
    python -m benchmarks.overhead --only small    # the short step alone (see `small.py`): a minute

One process trains one GPT in float32, with clipping; what watches it is attached and taken off in blocks, each between
two blocks of the bare loop. A figure is a median over rounds of the ratio to those two. Steps at which an interval is
due cost more than others: each kind of step is timed by itself, and weighed as often as it comes in a long run.

Besides, the time spent in tbnum on the training thread is clocked from outside (see `clock.py`), in the same steps.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.clock import Clock, Spent
from benchmarks.contenders import (
    EVERYTHING,
    MAX_NORM,
    AddHistogram,
    AddScalar,
    ItemNorms,
    Kind,
    Tbnum,
    WandbWatch,
    Watch,
    hold_still,
)
from benchmarks.report import Report, Row, median, parser, reset_peak, resident_mb, spread
from benchmarks.sample_ids import sample_ids
from benchmarks.small import small
from demo.model import GPT, GPTConfig

BATCH, BLOCK = 8, 128  # sequences, tokens of each: 1,024 tokens a step
SIZES = {  # layers, heads, channels
    "0.1M": GPTConfig(n_layer=2, n_head=4, n_embd=64),
    "5M": GPTConfig(n_layer=12, n_head=4, n_embd=184),
    "30M": GPTConfig(n_layer=12, n_head=8, n_embd=456),
}
MOST = {"0.1M": 1.05, "5M": 1.02, "30M": 1.01}  # times the bare loop, at the defaults
MOST_EVERYTHING = 1.06
MOST_INSIDE_PERCENT = {"5M": 1.0, "30M": 1.0}
MOST_PYTHON_US = 300.0
BUDGET_SHARES = {"0.1M": 0.1, "5M": 0.35, "30M": 0.55}
BLOCK_SECONDS = 0.5
UNSTEADY = 0.03  # of a step of the bare loop, half the distance of the quartiles


class Training:
    """A loop on random tokens. With a `GradScaler` it stays in float32, whose products are fast on a CPU."""

    def __init__(self, config: GPTConfig, with_scaler: bool) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = GPT(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if with_scaler else None
        self._batches = [torch.randint(config.vocab_size, (2, BATCH, BLOCK)) for _ in range(4)]
        self._next = 0

    def step(self, watch: Watch) -> None:
        tokens, targets = self._batches[self._next % len(self._batches)]
        self._next += 1
        loss = self.model(tokens, targets)
        watch.lost(loss)
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
        total_norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        watch.clipped(total_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        watch.stepped(loss, total_norm)
        self.optimizer.zero_grad()


@dataclass
class Block:
    """Some steps, one after the other, with one watch attached."""

    seconds: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))
    spent: dict[Kind, list[Spent]] = field(default_factory=lambda: defaultdict(list))
    peak_mb: float = 0.0

    def step_seconds(self, shares: dict[Kind, float]) -> float:
        """Of a step in the mean of a long run."""
        return sum(share * median(self.seconds[kind]) for kind, share in shares.items())

    def inside(self, shares: dict[Kind, float]) -> Spent:
        return _mean(self.spent, shares)


def _mean(spent: dict[Kind, list[Spent]], shares: dict[Kind, float]) -> Spent:
    parts = [
        sum(share * median([each[at] for each in spent[kind]]) for kind, share in shares.items()) for at in range(3)
    ]
    return Spent(*parts)


def time_block(training: Training, watch: Watch, steps: int, folder: Path, clock: Clock) -> Block:
    """`steps` of the kind of which most steps are, half as many of each other kind. As many more before the clock runs:
    the first steps of a run, from which tbnum learns what the loop does, are no measure of a long one.
    """
    block = Block()
    watch.attach(training, folder)
    try:
        hold_still()
        reset_peak()
        kinds = list(watch.shares())
        plan = [kinds[0]] * steps + [kind for kind in kinds[1:] for _ in range(max(1, steps // 2))]
        for number, kind in enumerate([kinds[0]] * steps + plan, 1 - steps):
            watch.next_is(kind)
            clock.take()
            start = time.perf_counter()
            training.step(watch)
            seconds = time.perf_counter() - start
            if number > 0:
                block.seconds[kind].append(seconds)
                block.spent[kind].append(clock.take())
        block.peak_mb = resident_mb(peak=True)
    finally:
        watch.detach()
    return block


@dataclass
class Figures:
    """Of one watch, over the rounds."""

    ratios: list[float] = field(default_factory=list)
    inside: list[Spent] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    extra_mb: list[float] = field(default_factory=list)


def measure(
    training: Training, watches: Sequence[Watch], *, rounds: int | None, seconds: float, folder: Path
) -> tuple[dict[str, Figures], list[float]]:
    """Figures by the name of the watch, and seconds of the bare loop's steps."""
    clock, bare = Clock(), Watch()
    figures = {watch.name: Figures() for watch in watches}
    bare_seconds: list[float] = []
    order = random.Random(0)
    number = 0

    def block_of(watch: Watch, steps: int) -> Block:
        nonlocal number
        number += 1
        return time_block(training, watch, steps, folder / str(number), clock)

    with clock.running():
        for _ in range(2):
            training.step(bare)  # torch's own first steps
        started = time.perf_counter()
        training.step(bare)
        steps = max(2, min(20, round(BLOCK_SECONDS / (time.perf_counter() - started))))
        done = 0
        while done < rounds if rounds else done < 3 or time.perf_counter() - started < seconds:
            before = block_of(bare, steps)
            # For peers, which are there for orientation, three rounds are enough.
            present = [watch for watch in watches if done < 3 or isinstance(watch, Tbnum)]
            for watch in order.sample(present, len(present)):
                block = block_of(watch, steps)
                after = block_of(bare, steps)
                beside = before.seconds[()] + after.seconds[()]
                shares, found = watch.shares(), figures[watch.name]
                found.step_seconds.append(block.step_seconds(shares))
                found.ratios.append(found.step_seconds[-1] / median(beside))
                found.inside.append(block.inside(shares))
                found.extra_mb.append(block.peak_mb - max(before.peak_mb, after.peak_mb))
                bare_seconds += after.seconds[()]
                before = after
            done += 1
    for watch in watches:
        watch.close()
    return figures, bare_seconds


def rows_of(size: str, training: Training, figures: dict[str, Figures], bare_seconds: list[float]) -> list[Row]:
    bare_ms = [seconds * 1e3 for seconds in bare_seconds]
    unsteadiness = spread(bare_ms)
    note = f"{len(bare_ms)} steps"
    if unsteadiness is not None and unsteadiness > UNSTEADY * median(bare_ms):
        note += "; UNSTEADY: something else runs on this machine, and the ratios say little"
    rows = [Row("bare loop, a step", median(bare_ms), "ms", spread=unsteadiness, note=note)]
    default, everything = "tbnum, defaults", "tbnum, everything on"
    targets = {default: MOST.get(size), everything: MOST_EVERYTHING}
    every = ", ".join(f"{name.removesuffix('_interval')} {steps}" for name, steps in EVERYTHING.items())
    notes = {default: f"{len(next(iter(figures.values())).ratios)} rounds", everything: f"intervals: {every}"}
    for name, found in figures.items():
        note = notes.get(name, "")
        rows.append(Row(name, median(found.ratios), "x", targets.get(name), spread=spread(found.ratios), note=note))
    for name in (default, everything):
        found = figures[name]
        shares = [spent.inside / step * 100 for spent, step in zip(found.inside, found.step_seconds, strict=True)]
        python = [spent.python * 1e6 for spent in found.inside]
        passes = [spent.passes * 1e6 for spent in found.inside]
        most = MOST_INSIDE_PERCENT.get(size) if name == default else None
        rows.append(Row(f"{name}: in tbnum, share of the step", median(shares), "%", most, spread=spread(shares)))
        rows.append(Row(f"{name}: passes over tensors, a step", median(passes), "us", spread=spread(passes)))
        count = sum(1 for _ in training.model.parameters())
        most = MOST_PYTHON_US if name == default and count <= 150 else None
        note = f"{count} tensors"
        rows.append(Row(f"{name}: else, a step", median(python), "us", most, spread=spread(python), note=note))
        rows.append(Row(f"{name}: peak memory above the bare loop", median(found.extra_mb), "MB"))
    return rows


def overhead(report: Report, size: str, *, with_scaler: bool, rounds: int | None, seconds: float) -> None:
    """One section of the report."""
    training = Training(SIZES[size], with_scaler)
    watches: list[Watch] = [Tbnum(), Tbnum("tbnum, everything on", EVERYTHING)]
    if not with_scaler:
        watches += [AddScalar(), AddHistogram(), ItemNorms()]
        if WandbWatch.installed():
            watches.append(WandbWatch())
        else:
            print("\nwandb is not installed, and so is left out (pip install wandb, or the extra tbnum[bench])")
    with tempfile.TemporaryDirectory() as folder:
        figures, bare_seconds = measure(training, watches, rounds=rounds, seconds=seconds, folder=Path(folder))
    parameters = sum(each.numel() for each in training.model.parameters())
    scaled = ", GradScaler" if with_scaler else ""
    name = f"{size}: {parameters / 1e6:.2f} M parameters, {BATCH * BLOCK:,} tokens a step, float32, clipping{scaled}"
    report.add(name, rows_of(size, training, figures, bare_seconds))


# -- how it grows ------------------------------------------------------------------------------------------------------


class ManyTensors:
    """A loop without a model: gradients fall from the sky, small ones, so that what is left is the cost of a tensor."""

    def __init__(self, count: int) -> None:
        self.model = nn.ParameterList([nn.Parameter(torch.randn(64)) for _ in range(count)])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, foreach=True)
        self.scaler = None
        self._gradients = [torch.randn(64) for _ in range(count)]
        self._loss = torch.ones(())

    def step(self, watch: Watch) -> None:
        watch.lost(self._loss)
        gradients: list[Tensor] = list(torch._foreach_mul(self._gradients, 1.0))
        for parameter, gradient in zip(self.model, gradients, strict=True):
            parameter.grad = gradient
        watch.clipped(nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM))
        self.optimizer.step()
        self.optimizer.zero_grad()


def growth(report: Report, counts: Sequence[int], *, steps: int, long: int) -> None:
    """How the time on the training thread grows with tensors, and what the log's thread takes meanwhile."""
    rows = []
    python: dict[int, float] = {}
    with Clock().running() as clock, tempfile.TemporaryDirectory() as folder:
        for count in counts:
            watch, training = Tbnum(), ManyTensors(count)
            block = time_block(training, watch, steps, Path(folder) / str(count), clock)  # type: ignore[arg-type]
            spent = block.inside(watch.shares())
            python[count] = spent.python
            rows.append(Row(f"{count:,} tensors: passes, a step", spent.passes * 1e6, "us"))
            rows.append(Row(f"{count:,} tensors: else, a step", spent.python * 1e6, "us"))
        few, many = min(counts), max(counts)
        per_tensor = python[many] / many / (python[few] / few)
        what = f"cost of a tensor, of {many:,} against {few:,}"
        rows.append(Row(what, per_tensor, "x", 1.0, note="at most 1: linear"))
        watch, training = Tbnum(), ManyTensors(few)
        watch.attach(training, Path(folder) / "long")
        for _ in range(long):
            training.step(watch)
        watch.flush()
        spent = clock.take()
        watch.detach()
        note = f"{few} tensors, {long:,} steps on end"
        rows.append(Row("log's thread in the background, a step", spent.background / long * 1e6, "us", note=note))
    rows += sample_ids(long)
    report.add("growth with the number of tensors of 64 elements, defaults", rows)


def main(arguments: Sequence[str] | None = None) -> Report:
    options = parser(__doc__)
    options.add_argument("--sizes", default=",".join(SIZES), help="comma-separated, of %(default)s")
    options.add_argument("--rounds", type=int, help="so many, however long it takes")
    options.add_argument("--seconds", type=float, default=540, help="for all sizes together (default %(default)s)")
    options.add_argument("--tensors", default="150,1000,10000", help="numbers of tensors (default %(default)s)")
    options.add_argument("--no-scaler", action="store_true", help="leave out the loop with a GradScaler")
    options.add_argument("--only", choices=["small"], help="leave out all but the 2 x 64 MLP and the Python of a step")
    args = options.parse_args(arguments)
    sizes = args.sizes.split(",")
    unknown = set(sizes) - set(SIZES)
    if unknown:
        options.error(f"unknown sizes {', '.join(sorted(unknown))}; there are {', '.join(SIZES)}")
    if args.quick and args.rounds is None:
        args.seconds = min(args.seconds, 45.0)
        sizes = [size for size in sizes if size != "30M"] if args.sizes == ",".join(SIZES) else sizes
    report = Report("overhead", settings={**vars(args), "json": None, "threads": torch.get_num_threads()})
    report.begin()
    small(report, rounds=args.rounds or (3 if args.quick else 6))
    if args.only == "small":
        report.finish(args.json)
        return report
    loops = [(size, False) for size in sizes]
    if "5M" in sizes and not args.no_scaler:
        loops.insert(sizes.index("5M") + 1, ("5M", True))
    weights = {(size, scaled): BUDGET_SHARES[size] * (0.4 if scaled else 1.0) for size, scaled in loops}
    for size, scaled in loops:
        seconds = args.seconds * weights[size, scaled] / sum(weights.values())
        overhead(report, size, with_scaler=scaled, rounds=args.rounds, seconds=seconds)
    counts = [int(count) for count in args.tensors.split(",")]
    growth(report, counts, steps=4 if args.quick else 8, long=300 if args.quick else 3000)
    report.finish(args.json)
    return report


if __name__ == "__main__":
    main()
