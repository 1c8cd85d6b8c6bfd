"""Scalars and events that are sent on to trackers: to the real packages, off line, and to trackers that misbehave."""

from __future__ import annotations

import gc
import json
import math
import os
import struct
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tbnum
from tbnum.integrations import forwarding
from tbnum.integrations.forwarding import Forwarder, Scalars
from tbnum.log.schema import Event
from tbnum.monitor import Monitor
from tests import warm
from tests.loops import Half, batches, train

STEPS, BAD = 40, 23


def train_forwarded(
    logdir: Path,
    forward: Callable[[Monitor], Any],
    after_step: Callable[[int], Any] = lambda step: None,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """A training with a scaler, one bad batch and a note; what `forward` gave, and the parameters afterwards."""
    torch.manual_seed(0)
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=logdir, scalar_interval=10, **options) as monitor:
        forwarder = forward(monitor)
        monitor.annotate("begins")
        train(model, optimizer, scaler, batches(STEPS, bad=[BAD]), after_step=after_step)
    return forwarder, model.state_dict()


def skip_of(logdir: Path) -> Event:
    (run,) = tbnum.read(logdir).values()
    (skip,) = [event for event in run.events if event.kind == "skip"]
    return skip


# The real packages.


@pytest.fixture
def wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    wandb = pytest.importorskip("wandb", reason="needs wandb")
    for name, value in {"WANDB_SILENT": "true", "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(name, value)
    run = wandb.init(project="tests", dir=tmp_path, mode="offline")
    yield run
    run.finish()


def framed(data: bytes) -> Iterator[bytes]:
    """The records of a file of LevelDB's log format, after W&B's 7 bytes: blocks of 32 kB, of chunks with a head."""
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        size, kind = struct.unpack_from("<HB", data, at + 4)
        if left < 7 or kind == 0:
            at += left
            continue
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole one, or the last part
            yield record
            record = b""


def wandb_history(run: Any) -> list[dict[str, Any]]:
    """The rows of an offline run, which ends here, from its file."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    run.finish()
    wandb.teardown()  # waits until W&B's own process has written everything
    (path,) = Path(run.dir).parent.glob("run-*.wandb")
    rows = []
    for data in framed(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def test_wandb_gets_the_scalars_of_every_interval_and_the_events(tmp_path: Path, wandb_run: Any) -> None:
    from tbnum.integrations.wandb import forward

    forwarder, _ = train_forwarded(tmp_path / "run", forward)
    rows = wandb_history(wandb_run)
    losses = {row["tbnum/step"]: row["tbnum/loss"] for row in rows if "tbnum/loss" in row}
    assert set(range(0, STEPS, 10)) <= set(losses) and BAD in losses
    (run,) = tbnum.read(tmp_path / "run").values()
    assert losses[10] == pytest.approx(run.steps["loss"][10])
    assert [row["tbnum/step"] for row in rows if "tbnum/events/skip" in row] == [BAD]
    assert any("was skipped" in row.get("tbnum/event", "") for row in rows)
    assert forwarder.refused == forwarder.dropped == 0 and forwarder.sent == len(rows)


@pytest.mark.parametrize("numbered", [True, False], ids=["with step=", "without"])
@pytest.mark.parametrize("every", [1, 15])
def test_rows_that_a_loop_logs_to_wandb_itself_are_those_without_tbnum(
    tmp_path: Path, wandb_run: Any, every: int, numbered: bool
) -> None:
    from tbnum.integrations.wandb import forward

    mine = range(0, STEPS, every)
    monitor: Any = None
    tracker: Any = None

    def forward_first(given: Monitor) -> Any:
        nonlocal monitor, tracker
        monitor, tracker = given, forward(given)
        return tracker

    def log(step: int) -> None:
        monitor.flush()
        tracker.flush()  # whatever there is to send has come before this row
        if step in mine:
            wandb_run.log({"mine": step}, step=step // every if numbered else None)

    train_forwarded(tmp_path / "run", forward_first, after_step=log)
    rows = wandb_history(wandb_run)
    own = [row for row in rows if "mine" in row]
    assert [row["mine"] for row in own] == list(mine) and [row["_step"] for row in own] == list(range(len(mine)))
    assert max(row.get("tbnum/step", -1) for row in rows) == STEPS - 10 and tracker.refused == 0
    if every == 1:
        losses = {row["tbnum/step"]: row["tbnum/loss"] for row in rows if "tbnum/loss" in row}
        assert set(range(10, STEPS, 10)) <= set(losses) and BAD in losses


def test_wandb_rows_wait_no_longer_than_it_takes_to_know_that_nothing_else_logs(
    tmp_path: Path, wandb_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tbnum.integrations import wandb as integration

    monkeypatch.setattr(integration, "ALONE_SECONDS", 0.0)
    monitor: Any = None
    tracker: Any = None
    steps = []

    def forward_first(given: Monitor) -> Any:
        nonlocal monitor, tracker
        monitor, tracker = given, integration.forward(given)
        return tracker

    def look(step: int) -> None:
        monitor.flush()
        tracker.flush()
        steps.append(wandb_run.step)

    train_forwarded(tmp_path / "run", forward_first, after_step=look)
    assert steps[-1] > steps[5] > 0


def test_wandb_without_a_run_is_an_error_that_says_what_to_call(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    from tbnum.integrations.wandb import forward

    with pytest.raises(ValueError, match=r"call wandb.init\(\) first"):
        train_forwarded(tmp_path / "run", forward)


@pytest.fixture
def mlflow_run(tmp_path: Path) -> Iterator[Any]:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    pytest.importorskip("sqlalchemy", reason="MLflow's store in a file needs SQLAlchemy")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = mlflow.create_experiment("tests", artifact_location=(tmp_path / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment) as run:
        yield run
    mlflow.set_tracking_uri(before)


def test_mlflow_gets_the_scalars_of_every_interval_and_the_events(tmp_path: Path, mlflow_run: Any) -> None:
    import mlflow

    from tbnum.integrations.mlflow import EVENTS_FILE, forward

    forwarder, _ = train_forwarded(tmp_path / "run", forward)
    client = mlflow.MlflowClient()
    losses = {each.step: each.value for each in client.get_metric_history(mlflow_run.info.run_id, "tbnum/loss")}
    assert set(range(0, STEPS, 10)) <= set(losses) and not math.isfinite(losses[BAD])
    (skip,) = client.get_metric_history(mlflow_run.info.run_id, "tbnum/events/skip")
    assert (skip.step, skip.value) == (BAD, 1.0)
    lines = (tmp_path / "artifacts" / mlflow_run.info.run_id / "artifacts" / EVENTS_FILE).read_text().splitlines()
    sent = {event["kind"]: event for event in map(json.loads, lines)}
    assert sent["skip"]["cause"] == skip_of(tmp_path / "run").cause and sent["skip"]["remedy"]
    assert forwarder.refused == forwarder.dropped == 0


def test_mlflow_without_a_run_is_an_error_that_says_what_to_call(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs mlflow")
    from tbnum.integrations.mlflow import forward

    with pytest.raises(ValueError, match=r"call mlflow.start_run\(\) first"):
        train_forwarded(tmp_path / "run", forward)


TRACKIO_SCRIPT = """
import json, sys
from pathlib import Path
import trackio
from tbnum.integrations.trackio import forward
from tests.test_forwarding import train_forwarded

folder = Path(sys.argv[1])
try:
    train_forwarded(folder / "none", forward)
except ValueError as error:
    complaint = str(error)
run = trackio.init(project="tests", name="run", embed=False)
monitor = forwarder = None

def forward_first(given):
    global monitor, forwarder
    monitor, forwarder = given, forward(given)

def log(step):
    monitor.flush()
    forwarder.flush()
    if step % 15 == 0:
        trackio.log({"mine": step})

train_forwarded(folder / "run", forward_first, after_step=log)
trackio.finish()
rows = trackio.SQLiteStorage.get_logs("tests", "run")
alerts = trackio.SQLiteStorage.get_alerts("tests")
sent = {"rows": rows, "alerts": alerts, "refused": forwarder.refused, "complaint": complaint}
(folder / "sent.json").write_text(json.dumps(sent, default=str))
"""


def test_trackio_gets_the_scalars_of_every_interval_and_the_events(tmp_path: Path) -> None:
    """In a process of its own: the package takes its folder from the environment when it is imported."""
    pytest.importorskip("trackio", reason="needs trackio")
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    script = [*warm.python(), "-c", TRACKIO_SCRIPT, str(tmp_path)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    sent = json.loads((tmp_path / "sent.json").read_text())
    assert [(row["step"], row["mine"]) for row in sent["rows"] if "mine" in row] == [(0, 0), (1, 15), (2, 30)]
    losses = {row["step"]: row["tbnum/loss"] for row in sent["rows"] if "tbnum/loss" in row}
    assert {*range(0, STEPS, 10), BAD} <= set(losses)
    assert [row["step"] for row in sent["rows"] if "tbnum/events/skip" in row] == [BAD]
    (alert,) = [alert for alert in sent["alerts"] if alert["title"] == "tbnum: skip"]
    assert skip_of(tmp_path / "run").remedy in alert["text"]
    assert sent["refused"] == 0 and "call trackio.init() first" in sent["complaint"]


# Trackers that misbehave.


class Recorded:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.scalars: list[Scalars] = []
        self.events: list[tuple[Event, int]] = []
        self.threads: set[int] = set()
        self.ended = 0

    def send_scalars(self, scalars: Scalars) -> None:
        self.threads.add(threading.get_ident())
        self.scalars.append(scalars)

    def send_event(self, event: Event, count: int) -> None:
        self.events.append((event, count))

    def end(self) -> None:
        self.ended += 1


class Failing(Recorded):
    def send_scalars(self, scalars: Scalars) -> None:
        raise ConnectionError("the server is gone")


class Stuck(Recorded):
    """Waits until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def send_scalars(self, scalars: Scalars) -> None:
        self.begun.set()
        self.go_on.wait()
        super().send_scalars(scalars)


def test_all_is_sent_in_order_from_a_thread_of_its_own_and_ended_once(tmp_path: Path) -> None:
    tracker = Recorded()
    forwarder, _ = train_forwarded(tmp_path, lambda monitor: Forwarder(monitor, tracker, "a tracker"))
    steps = [scalars.step for scalars in tracker.scalars]
    assert steps == sorted(steps) and {0, 10, 20, 30, BAD} <= set(steps)
    assert tracker.threads and threading.get_ident() not in tracker.threads
    assert [(event.kind, count) for event, count in tracker.events if event.kind in ("annotation", "skip")] == [
        ("annotation", 1),
        ("skip", 1),
    ]
    assert tracker.ended == 1 and forwarder.sent == len(tracker.scalars) + len(tracker.events)
    forwarder.close()
    assert tracker.ended == 1


def test_a_training_that_is_forwarded_is_bitwise_the_one_that_is_not(tmp_path: Path) -> None:
    _, forwarded = train_forwarded(tmp_path / "with", lambda monitor: Forwarder(monitor, Recorded(), "a tracker"))
    _, bare = train_forwarded(tmp_path / "without", lambda monitor: None)
    assert all(torch.equal(forwarded[name], bare[name]) for name in bare)


def test_a_tracker_that_raises_is_counted_and_warned_of_once_and_the_rest_is_sent(tmp_path: Path) -> None:
    tracker = Failing()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forwarder, _ = train_forwarded(tmp_path, lambda monitor: Forwarder(monitor, tracker, "a tracker"))
    (warning,) = [str(each.message) for each in caught if "could not send" in str(each.message)]
    assert "a tracker (ConnectionError: the server is gone)" in warning and "Training continues" in warning
    assert forwarder.refused >= 4 and tracker.events and forwarder.sent == len(tracker.events)
    assert len(tbnum.read(tmp_path)["."].steps["step"]) == STEPS


def test_a_tracker_that_hangs_holds_up_no_step_and_what_does_not_fit_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "QUEUE_SIZE", 3)
    monkeypatch.setattr(forwarding, "CLOSE_SECONDS", 0.05)
    tracker = Stuck()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forwarder, _ = train_forwarded(tmp_path, lambda monitor: Forwarder(monitor, tracker, "a tracker"))
    assert tracker.begun.is_set() and not tracker.scalars  # nothing got through, and the training is over
    assert forwarder.dropped > 0
    assert len([each for each in caught if "could not send everything to a tracker" in str(each.message)]) == 1
    tracker.go_on.set()


def test_flush_waits_for_all_that_was_put(tmp_path: Path) -> None:
    tracker = Recorded()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, scalar_interval=1) as monitor:
        forwarder = Forwarder(monitor, tracker, "a tracker")
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        monitor.flush()
        assert forwarder.flush() and [scalars.step for scalars in tracker.scalars] == [0, 1, 2, 3, 4]


def test_a_forwarder_may_end_before_its_monitor(tmp_path: Path) -> None:
    tracker = Recorded()

    def forward(monitor: Monitor) -> Forwarder:
        forwarder = Forwarder(monitor, tracker, "a tracker")
        forwarder.close()
        return forwarder

    train_forwarded(tmp_path, forward)
    assert not tracker.scalars and tracker.ended == 1


@pytest.mark.parametrize("callback", [None, 3, "print"])
def test_on_scalars_takes_nothing_but_a_function(tmp_path: Path, callback: Any) -> None:
    model = nn.Linear(2, 1)
    with (
        tbnum.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model=model, logdir=tmp_path) as monitor,
        pytest.raises(TypeError, match=r"on_scalars\(\) takes a function"),
    ):
        monitor.on_scalars(callback)


def test_the_thread_ends_with_a_monitor_that_nobody_closed(tmp_path: Path) -> None:
    tracker = Recorded()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = tbnum.wrap(optimizer, model=model, logdir=tmp_path, scalar_interval=1)
    thread = Forwarder(monitor, tracker, "a tracker")._thread
    assert thread.is_alive()
    del monitor, optimizer
    gc.collect()
    thread.join(1200)
    assert not thread.is_alive() and tracker.ended == 1
