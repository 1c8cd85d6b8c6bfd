"""Everything that a training gives to the writer comes back from the reader, key by key."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tbnum
from tbnum.log.json_text import plain
from tbnum.log.record_file import RecordTail, decode
from tbnum.log.schema import Event, column
from tbnum.log.tensors import HistogramTable, TensorTable
from tbnum.log.writer import LogWriter

STEPS = 24


class Given:
    """What was given to the writer."""

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()
        self.rows: list[dict[str, Any]] = []
        self.events: list[Event] = []
        self.tables: list[TensorTable] = []
        self.histograms: list[HistogramTable] = []
        self.batches: list[Any] = []
        self.meta: dict[str, Any] = {}


@pytest.fixture(scope="module")
def given() -> Iterator[Given]:
    """Listens at the writer's entries, which do what they always do."""
    found, patch = Given(), pytest.MonkeyPatch()

    def listen(name: str, take: Any) -> None:
        entry = getattr(LogWriter, name)

        def listening(self: LogWriter, *arguments: Any, **options: Any) -> Any:
            take(self, *arguments, **options)
            return entry(self, *arguments, **options)

        patch.setattr(LogWriter, name, listening)

    def rows(log: LogWriter, taken: Any) -> None:
        found.rows += [dict(zip(log.columns, row, strict=True)) for row in taken]

    listen("append_step", lambda log, row: rows(log, [row]))
    listen("append_steps", rows)
    listen("write_event", lambda log, event: found.events.append(event))
    listen("write_tensors", lambda log, table: found.tables.append(table))
    listen("write_histogram", lambda log, table: found.histograms.append(table))
    listen("write_batches", lambda log, batches: found.batches.extend(batches))
    listen("update_meta", lambda log, **changes: found.meta.update(changes))
    yield found
    patch.undo()


@pytest.fixture(scope="module")
def run(given: Given, tmp_path_factory: pytest.TempPathFactory) -> tbnum.Run:
    """Two optimizers, a scaler, skips, notes, sample ids, activations, histograms of single tensors."""
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizers = {
        "first": torch.optim.AdamW(model[0].parameters(), lr=1e-3),
        "second": torch.optim.SGD([{"params": [model[2].weight]}, {"params": [model[2].bias], "lr": 0.1}], lr=0.2),
    }
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
    options: dict[str, Any] = {
        "tensor_interval": 4,
        "histogram_interval": 8,
        "activations": True,
        "config": {"a": [1, None]},
    }
    with tbnum.wrap(optimizers, scaler, model=model, logdir=folder, verbose=False, **options) as monitor:
        for step in range(STEPS):
            x = torch.randn(5, 6)
            if step in (9, 17):
                x[0, 0] = math.inf
            monitor.log_batch(range(5 * step, 5 * step + 5))
            loss = model(x).square().mean()
            monitor.log_loss(loss.detach() / 2, name="half")
            scaler.scale(loss).backward()
            for optimizer in optimizers.values():
                scaler.step(optimizer)
            scaler.update()
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            if step == 12:
                monitor.annotate("half way")
    return tbnum.read(folder)["."]


def test_each_cell_of_each_step_comes_back(given: Given, run: tbnum.Run) -> None:
    steps = run.steps
    assert [row["step"] for row in given.rows] == steps["step"].tolist() == list(range(STEPS))
    assert set(given.rows[-1]) == set(steps), "no column more and none less"
    for at, row in enumerate(given.rows):
        for name, value in row.items():
            stored = np.array([math.nan if value is None else value]).astype(column(name).stored)
            found = steps[name][at : at + 1].astype(stored.dtype)
            np.testing.assert_array_equal(found, stored, err_msg=f"{name} at {row['step']}")


def test_each_fact_of_each_event_comes_back(given: Given, run: tbnum.Run) -> None:
    assert {"skip", "scale_growth", "scale_backoff", "annotation"} <= {event.kind for event in given.events}

    def key(facts: dict[str, Any]) -> str:
        return json.dumps(plain(facts), sort_keys=True)

    expected = sorted(key(event.facts()) for event in given.events)
    assert sorted(key(event.facts()) for event in run.raw_events) == expected


def test_each_value_of_each_table_comes_back(given: Given, run: tbnum.Run) -> None:
    columns = {name for table in given.tables for name in table.columns}
    assert columns >= {"grad_norm", "param_norm", "checksum/gradient", "checksum/parameter"}
    latest: dict[tuple[str, int, str], float] = {}
    for table in given.tables:
        for name, values in table.columns.items():
            latest |= {(name, table.step, tensor): value for tensor, value in zip(table.names, values, strict=True)}
    for name in columns:
        is_sum = name.startswith("checksum/")
        series = run.checksums[name.removeprefix("checksum/")] if is_sum else run.tensors[name]
        rows = {step: at for at, step in enumerate(series[0].tolist())}
        places = {tensor: at for at, tensor in enumerate(series[1])}
        for (_, step, tensor), value in ((key, value) for key, value in latest.items() if key[0] == name):
            found = series[2][rows[step], places[tensor]]
            if is_sum:
                assert int(found) == int(value), (name, step, tensor)
            else:
                tolerance = 4e-3 if name.split("/")[0] in ("underflow", "overflow") else 1e-7
                np.testing.assert_allclose(found, value, rtol=tolerance, err_msg=f"{name} of {tensor} at {step}")


def test_each_bin_of_each_histogram_comes_back(given: Given, run: tbnum.Run) -> None:
    assert {"gradient", "parameter", "update"} <= {table.source for table in given.histograms}
    for table in given.histograms:
        read = run.histograms[table.source].at(table.step)
        for name in table.names:
            one, other = read.row(name), table.row(name)
            np.testing.assert_array_equal(one.counts, np.asarray(other.counts))
            np.testing.assert_allclose([one.low, one.high], [other.low, other.high], rtol=1e-6)


def test_the_samples_of_each_kept_step_come_back(given: Given, run: tbnum.Run) -> None:
    assert given.batches
    for batch in given.batches:
        step, ids = batch
        assert run.batch(step).tolist() == list(ids) == list(range(5 * step, 5 * step + 5))  # type: ignore[union-attr]


def test_each_key_of_the_session_comes_back(given: Given, run: tbnum.Run) -> None:
    assert {"depth", "depth_from"} <= given.meta.keys()
    for key, value in given.meta.items():
        assert run.meta[key] == json.loads(json.dumps(plain(value))), key


def test_there_is_no_record_in_the_files_that_no_test_here_has_asked_for(run: tbnum.Run) -> None:
    tags = {
        record.tag
        for path in Path(str(run.folder)).iterdir()
        if path.name.endswith(".tbnum")
        for record in (decode(frame.data) for frame in RecordTail(path).read())
        if record is not None
    }
    known = {"session", "schema", "steps", "event", "batches", "names", "table_columns", "tensors", "histograms"}
    assert tags | {"tbnum/schema"} == {f"tbnum/{name}" for name in known}  # which a short file has in its session
    assert run.problems == [] and run.meta["dropped"] == {}
