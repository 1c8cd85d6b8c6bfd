"""A run of many ranks, and many runs: what `report`, the panel's first drawing and a question to all of them take.

python -m benchmarks.many_ranks                       # 1,024 ranks and 1,000 runs of 10,000 steps; some four minutes
python -m benchmarks.many_ranks --ranks 64 --runs 50
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import tbnum
from benchmarks.report import Report, Row, median, parser, spread
from tbnum.log.folder import list_files
from tbnum.log.schema import Event, step_columns
from tbnum.log.tensors import TensorTable
from tbnum.log.writer import LogWriter

STEPS = 10_000
TENSORS = tuple(f"blocks.{block}.{part}" for block in range(4) for part in ("attn", "mlp", "norm"))
COLUMNS = step_columns({"optimizer": 1})
START = 1_700_000_000.0

MOST_REPORT_SECONDS, MOST_REPORT_MB, MOST_DRAWING_SECONDS, MOST_QUESTION_SECONDS = 8.0, 500.0, 1.0, 2.0
QUESTION = """
    SELECT DISTINCT skip.run
    FROM read_parquet('{data}/events/*/*/*.parquet', hive_partitioning = true) AS skip
    JOIN read_parquet('{data}/events/*/*/*.parquet', hive_partitioning = true) AS spike
    ON spike.run = skip.run AND spike.step - skip.step BETWEEN 1 AND 100
    WHERE skip.kind = 'skip' AND spike.kind IN ('loss_spike', 'grad_norm_spike')
"""


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument("--ranks", type=int, default=1024)
    options.add_argument("--runs", type=int, default=1000)
    given = options.parse_args(arguments)
    report = Report("many_ranks", {"ranks": given.ranks, "runs": given.runs, "steps": STEPS})
    report.begin()
    with tempfile.TemporaryDirectory() as folder:
        report.add(f"one run of {given.ranks:,} ranks x {STEPS:,} steps", list(_of_ranks(Path(folder), given.ranks)))
    with tempfile.TemporaryDirectory() as folder:
        report.add(f"{given.ranks:,} ranks that start, ranks=8", list(_starting(Path(folder) / "run", given.ranks)))
    with tempfile.TemporaryDirectory() as folder:
        report.add(f"{given.runs:,} runs of {STEPS:,} steps", list(_of_runs(Path(folder), given.runs)))
    report.finish(given.json)


def _of_ranks(folder: Path, ranks: int) -> Iterator[Row]:
    make_ranks(folder / "run", ranks)
    size = sum(path.stat().st_size for path in (folder / "run").iterdir())
    yield Row("files", len(list((folder / "run").iterdir())))
    yield Row("on disk", size / 1e6, "MB")
    seconds, peak = _command("report", str(folder))
    yield Row("report", seconds, "s", MOST_REPORT_SECONDS)
    yield Row("its memory", peak, "MB", MOST_REPORT_MB)
    yield Row("the panel's first drawing", _drawing(folder, "run"), "s", MOST_DRAWING_SECONDS)
    begun = time.perf_counter()
    list_files(folder / "run")
    yield Row("a listing, by the lowest rank alone", time.perf_counter() - begun, "s")


def _starting(folder: Path, ranks: int) -> Iterator[Row]:
    """Each rank really wraps, steps and closes, one after the other, in an environment as torchrun makes it."""
    listed: list[int] = []
    took: list[float] = []
    for rank in range(ranks):
        seconds, entries = start_rank(folder, rank, ranks, recording=8)
        took.append(seconds)
        listed.append(entries)
    of_ranks = [path for path in folder.iterdir() if path.name.endswith(".tbnum")]
    yield Row("record files", len(of_ranks), target=16)
    yield Row("files in all", len(list(folder.iterdir())), note="with the list of sessions and TensorBoard's file")
    yield Row("entries that rank 0 listed", listed[0])
    yield Row("entries that any other rank listed", max(listed[1:], default=0), target=0)
    last = took[len(took) // 2 :]
    yield Row(
        "wrap, two steps and close, of the later half of the ranks", median(last) * 1e3, "ms", spread=spread(last)
    )


def start_rank(folder: Path, rank: int, ranks: int, *, recording: int) -> tuple[float, int]:
    """Seconds of one rank's wrap, two steps and close, and how many entries of folders it listed."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    environment = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    with mock.patch.dict(os.environ, environment), counted_entries(folder) as listed:
        begun = time.perf_counter()
        with tbnum.wrap(optimizer, model=model, logdir=folder, ranks=recording, tensor_interval=1, verbose=False):
            for _ in range(2):
                model(torch.ones(3, 4)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return time.perf_counter() - begun, sum(listed)


@contextlib.contextmanager
def counted_entries(below: Path) -> Iterator[list[int]]:
    """How many entries each listing of `below`, or of a folder in it, has while this context lasts.

    As it goes to the file system, on whatever thread. What else lists folders in this process does not count.
    """
    listed: list[int] = []
    scandir, listdir = os.scandir, os.listdir

    def counts(folder: Any) -> bool:
        return isinstance(folder, (str, os.PathLike)) and Path(folder).absolute().is_relative_to(below.absolute())

    def scanned(folder: Any = ".") -> Any:
        if counts(folder):
            listed.append(len(listdir(folder)))
        return scandir(folder)

    def names(folder: Any = ".") -> Any:
        found = listdir(folder)
        if counts(folder):
            listed.append(len(found))
        return found

    with mock.patch("os.scandir", scanned), mock.patch("os.listdir", names):
        yield listed


def _of_runs(folder: Path, runs: int) -> Iterator[Row]:
    import duckdb

    for number in range(runs):
        make_run(folder / "logs" / f"run{number:04}", seed=number)
    export = ("export", str(folder / "logs"), "--format", "parquet", "--dataset", str(folder / "data"))
    seconds, peak = _command(*export)
    yield Row("written as a data set", seconds, "s")
    yield Row("its memory", peak, "MB")
    seconds, _ = _command(*export)
    yield Row("again, where nothing is new", seconds, "s")
    begun = time.perf_counter()
    found = duckdb.connect().execute(QUESTION.format(data=folder / "data")).fetchall()
    seconds = time.perf_counter() - begun
    note = f"{len(found)} runs"
    yield Row("which had a spike within 100 steps after a skip", seconds, "s", MOST_QUESTION_SECONDS, note=note)
    begun = time.perf_counter()
    steps = f"{folder}/data/steps/*/*/*.parquet"
    source = f"read_parquet('{steps}', hive_partitioning = true)"
    query = f"SELECT run, avg(loss) FROM {source} WHERE step >= {0.9 * STEPS} GROUP BY run"
    duckdb.connect().execute(query).fetchall()
    yield Row("the mean loss of each, over the last tenth", time.perf_counter() - begun, "s")


# -- runs as training leaves them


def rows(seed: int, skips: tuple[int, ...] = (), spikes: tuple[int, ...] = ()) -> list[tuple[Any, ...]]:
    noise = np.random.default_rng(seed)
    step = np.arange(STEPS)
    values = {
        "step": step,
        "wall_time": START + step * 0.1,
        "loss": 4 * np.exp(-step / 3000) + 1 + noise.normal(0, 0.02, STEPS),
        "micro_batches": np.ones(STEPS),
        "loss_scale": np.full(STEPS, 65536.0),
        "growth_tracker": step % 2000,
        "grad_norm": np.exp(noise.normal(0, 0.1, STEPS)),
        "nonfinite_tensors": np.isin(step, skips).astype(float),
        "skipped": np.isin(step, skips),
        "lr": np.full(STEPS, 1e-3),
    }
    values["loss"][list(spikes)] *= 6
    values["grad_norm"][list(spikes)] *= 50
    values["grad_norm"][list(skips)] = np.inf
    unknown = np.full(STEPS, np.nan)
    columns = [values.get(name, unknown).tolist() for name in COLUMNS]
    return list(zip(*columns, strict=True))


def make_run(folder: Path, *, seed: int = 0, rank: int | None = None, **meta: Any) -> Path:
    """A record of 10,000 steps, 0.1 s to make. Every third has a skip half way; every sixth a spike after it."""
    middle = STEPS // 2
    skips = (middle,) if seed % 3 == 0 else ()
    spikes = (middle + 40, middle + 41) if seed % 6 == 0 else ()
    about = {"optimizers": {"optimizer": {"class": "AdamW", "parameters": 12, "shapes": "x"}}, "seed": seed}
    shapes = {name: [16] for name in TENSORS}
    log = LogWriter(folder, columns=COLUMNS, rank=rank, meta={**about, "parameters": shapes, "first_step": 0, **meta})
    log.append_steps(rows(seed, skips, spikes))
    for step in skips:
        data = {"loss": 1.5, "loss_scale": 65536.0, "grad_norm": float("inf"), "nonfinite_tensors": 1, "tensors": 12}
        log.write_event(Event(step, START + step * 0.1, "skip", data=data))
    for step in range(0, STEPS, 50):
        norms = np.ones(len(TENSORS)) * (1 + step)
        sums = np.arange(len(TENSORS), dtype=np.uint64) + np.uint64(step + 1)
        log.write_tensors(TensorTable(step, TENSORS, {"grad_norm": norms, "checksum/parameter": sums}))
    log.close(timeout=None)
    return log.path


def make_ranks(folder: Path, ranks: int) -> None:
    """Replicas: of eight that are written, copies under the names of all."""
    made = {}
    for rank in range(min(8, ranks)):
        begun = {"world_size": ranks, "start_time": START}
        made[rank] = make_run(folder, seed=6 + 6 * rank, rank=rank, **begun)
    for rank in range(8, ranks):
        path = made[rank % 8]
        for suffix in (".tbnum", ".tensors.tbnum"):
            name = path.name.removesuffix(".tbnum") + suffix
            shutil.copyfile(path.with_name(name), path.with_name(name.replace(f".rank{rank % 8}.", f".rank{rank}.")))


# -- what is measured


def _command(*arguments: str) -> tuple[float, float]:
    """Seconds and megabytes of a run of the command, the start of Python among them."""
    program = (
        "import resource, sys; from tbnum.cli import main\n"
        "code = main(sys.argv[1:]); sys.stdout.flush()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"
    )
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=os.environ)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(done.stderr)
    return seconds, int(done.stderr.split()[-1]) / 1024


def _drawing(folder: Path, run: str) -> float:
    """Seconds of the routes that the panel asks for before it draws a curve."""
    from tests.routes import Panel

    begun = time.perf_counter()
    panel = Panel(folder)
    while panel.json("runs")["state"] != "ready":
        time.sleep(0.005)
    panel.binary("series", run=run, columns="loss,grad_norm")
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
