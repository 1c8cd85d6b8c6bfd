"""Two long runs compared by `tbnum.diff`: seconds from unread logs to the answer, and what witnesses cost a step.

python -m benchmarks.compare            # a million steps, and 10,000 steps of 300 tensors; a minute
python -m benchmarks.compare --quick    # a tenth of each
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

import tbnum
from benchmarks.report import Report, Row, median, parser, spread
from tbnum.formats import CHECKSUM
from tbnum.log.schema import step_columns
from tbnum.log.tensors import TensorTable
from tbnum.log.writer import LogWriter
from tbnum.measure.checksums import checksums
from tbnum.measure.step_hash import BY_PASS, step_hash

STEPS = 1_000_000
TABLES, TENSORS = 10_000, 300
AT_ONCE = 1000
COLUMNS = step_columns({"optimizer": 1}, hashed=True)
MOST_STEPS_SECONDS, MOST_TABLES_SECONDS, MOST_HASH_US = 1.0, 2.0, 5.0


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser(__doc__).parse_args(arguments)
    steps, tables, rounds = (STEPS // 10, TABLES // 10, 3) if given.quick else (STEPS, TABLES, 5)
    report = Report("compare", {"steps": steps, "tables": tables})
    report.begin()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        report.add(f"{steps:,} steps of two runs", list(_of_steps(Path(folder), steps, rounds)))
    with tempfile.TemporaryDirectory() as folder:
        report.add(f"{tables:,} steps x {TENSORS} tensors x two runs", list(_of_tables(Path(folder), tables, rounds)))
    report.add("the witnesses", list(_witnesses(rounds)))
    report.finish(given.json)


def _of_steps(folder: Path, steps: int, rounds: int) -> Iterator[Row]:
    """Loss and norms differ in every step from half way on: runs that are the same cost less."""
    for name in ("a", "b"):
        make_run(folder / name, steps, apart=name == "b")
    yield _compared("read and compared, no step in the cache of a run", folder, rounds, MOST_STEPS_SECONDS, steps // 2)


def _of_tables(folder: Path, steps: int, rounds: int) -> Iterator[Row]:
    for name in ("a", "b"):
        make_run(folder / name, steps, apart=name == "b", tensors=TENSORS)
    yield _compared("read and compared, a table each step", folder, rounds, MOST_TABLES_SECONDS, steps // 2)


def _compared(what: str, folder: Path, rounds: int, most: float, apart_at: int) -> Row:
    took, cpu = [], []
    for _ in range(rounds):
        runs = tbnum.read(folder)
        begun, spent = time.perf_counter(), time.process_time()
        found = tbnum.diff(runs["a"], runs["b"])
        took.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - spent)
        assert found.first_step == apart_at, found.first_step
    return Row(what, median(took), "s", most, spread=spread(took), note=f"{median(cpu):.2f} s of CPU")


def _witnesses(rounds: int) -> Iterator[Row]:
    for tensors in (28, 1000):
        norms = np.random.default_rng(0).random(tensors, np.float32)
        seconds = _each(lambda norms=norms: step_hash([2.5], [norms], BY_PASS), 2000, rounds)
        yield Row(f"a step's hash, {tensors:,} tensors", seconds * 1e6, "us", MOST_HASH_US if tensors == 28 else None)
    shapes = [(512, 512)] * 18 + [(512,)] * 132  # 4.8 M elements in 150 tensors
    tensors = [torch.randn(shape) for shape in shapes]
    millions = sum(tensor.numel() for tensor in tensors) / 1e6
    seconds = _each(lambda: checksums(tensors), 5, rounds)
    yield Row("checksums of a million elements, one thread", seconds / millions * 1e3, "ms")


def _each(call: Callable[[], object], times: int, rounds: int) -> float:
    """Seconds of one call: the median of some rounds."""
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(times):
            call()
        took.append((time.perf_counter() - begun) / times)
    return median(took)


def make_run(folder: Path, steps: int, *, apart: bool, tensors: int = 0) -> None:
    """A run as training leaves it. `apart`: from half way on loss, norms and checksums are other ones, by a little."""
    noise = np.random.default_rng(0)
    step = np.arange(steps)
    by = np.where((step >= steps // 2) & apart, 1 + 1e-9, 1.0)
    values = {
        "step": step,
        "wall_time": 1_700_000_000 + step * 0.1,
        "loss": (4 * np.exp(-step / 3e5) + 1 + noise.normal(0, 0.02, steps)) * by,
        "micro_batches": np.ones(steps),
        "grad_norm": np.exp(noise.normal(0, 0.1, steps)) * by,
        "grad_norm_clipped": np.full(steps, 0.5) * by,
        "max_norm": np.full(steps, 0.5),
        "nonfinite_tensors": np.zeros(steps),
        "skipped": np.zeros(steps, bool),
        "lr": np.full(steps, 1e-3),
        "step_hash": noise.integers(1, 1 << 62, steps).astype(np.uint64) * np.uint64(4) + np.uint64(BY_PASS),
    }
    unknown = np.full(steps, np.nan)
    names = tuple(f"blocks.{block // 12}.part{block % 12}" for block in range(tensors))
    about = {"class": "AdamW", "parameters": len(names), "shapes": "x"}
    log = LogWriter(folder, columns=COLUMNS, meta={"optimizers": {"optimizer": about}, "seed": 0, "first_step": 0})
    for begin in range(0, steps, AT_ONCE):
        rows = [values.get(name, unknown)[begin : begin + AT_ONCE].tolist() for name in COLUMNS]
        log.append_steps(list(zip(*rows, strict=True)))
        for at in range(begin, min(begin + AT_ONCE, steps)) if tensors else ():
            log.write_tensors(TensorTable(at, names, _statistics(noise, tensors, apart and at >= steps // 2)))
            if at % 250 == 0:
                log.flush(timeout=None)
        log.flush(timeout=None)
    log.close(timeout=None)


def _statistics(noise: np.random.Generator, tensors: int, apart: bool) -> dict[str, np.ndarray]:
    found = {name: noise.random(tensors) for name in ("grad_norm", "param_norm")}
    for what in ("gradient", "parameter", "exp_avg"):
        found[CHECKSUM + what] = noise.integers(1, 1 << 62, tensors).astype(np.uint64) + np.uint64(apart)
    return found


if __name__ == "__main__":
    main()
