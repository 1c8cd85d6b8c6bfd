"""What the log costs: bytes, the training thread's part of writing, reading, and memory.

python -m benchmarks.log            # three minutes
python -m benchmarks.log --quick    # half a minute
"""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import random
import shutil
import tempfile
import threading
import time
import tracemalloc
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tbnum
from benchmarks.report import Report, Row, median, parser, quantile, resident_mb, spread
from tbnum.log.reader import Run
from tbnum.log.schema import HISTOGRAM_SOURCES, Event, step_columns
from tbnum.log.tensors import TensorTable
from tbnum.log.writer import LogWriter

COLUMNS = step_columns({"optimizer": 1})
CHUNKS = (1000, 100, 20, 10)
HUNG_STEPS = 100_000
BATCH = 1000  # rows between two looks at the clock

MOST_BYTES_A_STEP = 200
MOST_READING_SECONDS = 1.0
MOST_TABLE_SECONDS = 0.2
MOST_TENSORS_MB = 150
MOST_GROWTH_MB = 1.0
MOST_BUFFER_MB = 64


class Rows:
    """Made-up steps that look as those of training do. A million take a second to make, outside of what is timed."""

    def __init__(self) -> None:
        chance = random.Random(0)
        self._tails = [self._tail(chance) for _ in range(997)]

    @staticmethod
    def _tail(chance: random.Random) -> tuple[Any, ...]:
        norm = chance.lognormvariate(0, 0.5)
        known = {
            "loss": chance.gauss(2, 0.1),
            "micro_batches": 1.0,
            "loss_scale": 65536.0,
            "growth_tracker": float(chance.randrange(2000)),
            "grad_norm": norm,
            "grad_norm_clipped": min(norm, 1.0),
            "clip_coef": min(1.0, 1 / norm),
            "max_norm": 1.0,
            "skipped": chance.random() < 0.005,
            "nonfinite_tensors": 0.0,
            "lr": 3e-4,
        }
        return tuple(known.get(name, math.nan) for name in COLUMNS[2:])

    def of(self, steps: range) -> list[tuple[Any, ...]]:
        tails = self._tails
        return [(step, 1.75e9 + step * 0.25, *tails[step % len(tails)]) for step in steps]


def open_log(folder: Path, **options: Any) -> LogWriter:
    meta = {"first_step": 0, "optimizers": {"optimizer": {"class": "AdamW", "groups": 1, "parameters": 150}}}
    return LogWriter(folder, columns=COLUMNS, meta=meta, **options)


def in_batches(steps: int) -> Iterator[range]:
    for first in range(0, steps, BATCH):
        yield range(first, min(first + BATCH, steps))


def steps_and_chunks(report: Report, steps: int, folder: Path) -> None:
    """Steps written as fast as they can be, and read again, in chunks of some sizes."""
    rows_of = Rows()
    rows = []
    appends: list[float] = []  # seconds a row
    for chunk in CHUNKS:
        log = open_log(folder / str(chunk), chunk_steps=chunk)
        working = 0.0
        for batch in in_batches(steps):
            given = rows_of.of(batch)
            start = time.perf_counter()
            for row in given:
                log.append_step(row)
            appended = time.perf_counter()
            assert log.flush()
            working += time.perf_counter() - start
            if chunk == CHUNKS[0]:
                appends.append((appended - start) / len(given))
        log.close()
        assert not log.dropped, log.dropped
        size = log.path.stat().st_size / steps
        rows.append(Row(f"{chunk:,} steps a chunk: bytes a step", size, "B", MOST_BYTES_A_STEP))
        rows.append(Row(f"{chunk:,} steps a chunk: written in a second", steps / working / 1e3, "k steps"))
        seconds = []
        for _ in range(3):
            gc.collect()
            start = time.perf_counter()
            assert len(Run(folder / str(chunk)).steps["loss"]) == steps
            seconds.append(time.perf_counter() - start)
        # The target is of a million steps: of fewer, as quick a look has them, it says nothing.
        most = MOST_READING_SECONDS if steps >= 1_000_000 else None
        rows.append(Row(f"{chunk:,} steps a chunk: read", median(seconds), "s", most, spread=spread(seconds)))
    tenth = max(1, len(appends) // 10)
    first, last = median(appends[:tenth]), median(appends[-tenth:])
    note = f"first tenth of the steps {first * 1e6:.2f}, last {last * 1e6:.2f}"
    rows.append(Row("append_step on the training thread", median(appends) * 1e6, "us", note=note))
    report.add(f"{steps:,} steps of {len(COLUMNS)} columns, one optimizer", rows)


def events(report: Report, count: int, folder: Path) -> None:
    log = open_log(folder)
    seconds = []
    before = log.path.stat().st_size
    for step in range(count):
        data = {
            "loss": 2.0, "loss_scale": 65536.0, "new_scale": 32768.0, "grad_norm": math.inf, "nonfinite_tensors": 3,
            "tensors": 150, "micro_batches": 1,
            "nonfinite_names": ["blocks.3.attn.qkv.weight", "blocks.3.mlp.up.weight"],
        }  # fmt: skip
        event = Event(step, 1.75e9 + step, "skip", optimizer="optimizer", data=data)
        start = time.perf_counter()
        log.write_event(event)
        seconds.append((time.perf_counter() - start) * 1e6)
    size = (log.path.stat().st_size - before) / count
    log.close()
    rows = [
        Row("write_event on the training thread, median", median(seconds), "us"),
        Row("write_event on the training thread, 99 of 100 within", quantile(seconds, 0.99), "us"),
        Row("bytes an event", size, "B"),
    ]
    report.add(f"{count:,} skips, each on disk when the call returns", rows)


def table_of_runs(report: Report, runs: int, folder: Path) -> None:
    template = folder / "run0000"
    log = open_log(template)
    for row in Rows().of(range(5000)):
        log.append_step(row)
    log.close()
    for number in range(1, runs):
        shutil.copytree(template, folder / f"run{number:04}")
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        found = {name: run.totals for name, run in tbnum.read(folder).items()}
        seconds.append(time.perf_counter() - start)
        assert len(found) == runs and all(totals.steps == 5000 for totals in found.values())
    most = MOST_TABLE_SECONDS if runs >= 500 else None
    what = "tbnum.read() and the totals of each run"
    report.add(f"table of {runs} runs", [Row(what, median(seconds), "s", most, spread=spread(seconds))])


def tensors_file(report: Report, steps: int, folder: Path) -> None:
    """Statistics and the model's histograms each 50 steps, of each tensor each 1,000, the last 32 steps each 2,000."""
    from tests.test_tensors_file import RealTensors

    real, sources = RealTensors(), HISTOGRAM_SOURCES[:3]
    log = open_log(folder)
    calls: list[float] = []
    writing = 0.0
    for step in range(0, steps, 50):
        given: list[Any] = [real.table(step)]
        given += [real.histograms(step, source, whole=True) for source in sources]
        if step % 1000 == 0:
            given += [real.histograms(step, source, whole=False) for source in sources]
        if step % 2000 == 0:
            given += [real.recent(step + later) for later in range(32)]
        start = time.perf_counter()
        for each in given:
            log.write_tensors(each) if isinstance(each, TensorTable) else log.write_histogram(each)
        calls.append((time.perf_counter() - start) / len(given))
        assert log.flush()
        writing += time.perf_counter() - start
    log.close()
    assert not log.dropped, log.dropped
    size = log.tensors_path.stat().st_size
    start = time.perf_counter()
    series = Run(folder).tensors["grad_norm"]
    reading = time.perf_counter() - start
    rows = [
        Row("bytes of a million steps", size * 1e6 / steps / 1e6, "MB", MOST_TENSORS_MB, note=f"from {steps:,} steps"),
        Row("giving a table, on the training thread", median(calls) * 1e6, "us"),
        Row("writing, in the background, a step", writing / steps * 1e6, "us"),
        Row(f"reading one column of {len(series.steps):,} tables", reading, "s"),
    ]
    report.add("tensors file: 150 tensors, defaults", rows)


# -- memory: each in a fresh process, whose free memory does not hide what grows ---------------------------------------


def grown_over_steps(steps: int, folder: str) -> dict[str, float]:
    """MB by which a process grows over the last nine tenths of `steps` of a small wrapped loop."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", growth_interval=500)
    batch = torch.randn(8, 16)

    def train(count: int) -> None:
        for _ in range(count):
            # Every 1,000 steps one overflows: events and their recent history are a part of a run.
            spoiled = math.inf if monitor.step % 1000 == 999 else 1.0
            loss = model(batch).square().mean() * spoiled
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        monitor.flush()
        gc.collect()

    with tbnum.wrap(optimizer, scaler, model=model, logdir=folder) as monitor:
        train(steps // 10)
        resident = resident_mb()
        train(steps - steps // 10)
        grown = resident_mb() - resident
        tracemalloc.start()
        train(max(min(2000, steps), steps // 50))
        traced = tracemalloc.get_traced_memory()[0]
        train(steps // 10)
        traced = tracemalloc.get_traced_memory()[0] - traced
        tracemalloc.stop()
    return {"resident": grown, "traced": traced / 1e6}


def grown_while_the_disk_hangs(steps: int, folder: str) -> dict[str, float]:
    """MB by which a process grows that goes on giving steps and tables to a writer whose thread hangs."""
    log = open_log(Path(folder))
    gate, entered = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        gate.wait()

    log.submit(hang)
    log.write_event(Event(0, 0.0, "annotation"))
    assert entered.wait(30)
    chance = random.Random(0)
    names = tuple(map(str, range(1000)))
    before = resident_mb()
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for step in range(steps):
            log.append_step((step, *[chance.random() for _ in COLUMNS[1:]]))
            if step % 50 == 0:
                log.write_tensors(TensorTable(step, names, {"grad_norm": np.ones(1000), "absmax": np.ones(1000)}))
    grown = resident_mb() - before
    gate.set()
    log.close()
    return {"resident": grown, "dropped": float(sum(log.dropped.values()))}


def memory(report: Report, steps: int, folder: Path) -> None:
    fresh = multiprocessing.get_context("spawn")
    with fresh.Pool(1) as pool:
        loop = pool.apply(grown_over_steps, (steps, str(folder / "loop")))
    with fresh.Pool(1) as pool:
        hung = pool.apply(grown_while_the_disk_hangs, (HUNG_STEPS, str(folder / "hung")))
    most = MOST_GROWTH_MB if steps >= 100_000 else None
    rows = [
        Row("resident memory, over the last nine tenths", loop["resident"], "MB", most),
        Row(f"Python's own allocations, over {steps // 10:,} steps", loop["traced"], "MB"),
        Row(
            "resident memory, while the disk hangs",
            hung["resident"],
            "MB",
            MOST_BUFFER_MB,
            note=f"{HUNG_STEPS:,} steps given, {hung['dropped']:,.0f} steps and tables dropped",
        ),
    ]
    report.add(f"growth over {steps:,} steps of a small loop with a GradScaler", rows)


def main(arguments: Sequence[str] | None = None) -> Report:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, help="in a long log (default 1,000,000; quick 100,000)")
    options.add_argument("--runs", type=int, default=500, help="in a table of runs (default %(default)s)")
    options.add_argument("--loop-steps", type=int, help="of the loop whose memory is watched (default 100,000)")
    args = options.parse_args(arguments)
    steps = args.steps or (100_000 if args.quick else 1_000_000)
    loop_steps = args.loop_steps or (5_000 if args.quick else 100_000)
    report = Report("log", settings={"steps": steps, "runs": args.runs, "loop_steps": loop_steps})
    report.begin()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps_and_chunks(report, steps, folder / "steps")
        events(report, steps // 200, folder / "events")
        table_of_runs(report, args.runs, folder / "table")
        tensors_file(report, max(2000, min(50_000, steps // 20)), folder / "tensors")
        memory(report, loop_steps, folder / "memory")
    report.finish(args.json)
    return report


if __name__ == "__main__":
    main()
