"""MLflow: `forward(monitor)` sends scalars and events to a run of yours."""

from __future__ import annotations

import json
import time
from typing import Any

from tbnum.integrations.forwarding import Forwarder, Scalars, event_counts
from tbnum.integrations.framework import framework
from tbnum.log.schema import Event
from tbnum.monitor import Monitor

__all__ = ["EVENTS_FILE", "forward"]

mlflow = framework("mlflow", "mlflow")

EVENTS_FILE = "tbnum/events.jsonl"
EVENTS_SECONDS = 30.0  # between two writes of that file, which is written whole


def forward(monitor: Monitor, run: Any = None, *, client: Any = None) -> Forwarder:
    """Send the monitor's scalars (every `scalar_interval` steps) and its events to an MLflow run.

        with mlflow.start_run():
            monitor = tbnum.wrap(optimizer, scaler, model=model, logdir="runs/gpt")
            tbnum.integrations.mlflow.forward(monitor)

    The metrics have TensorBoard's tags, `tbnum/loss` and so on, at the step of the record. An event adds to the metric
    `tbnum/events/<kind>`; all of them, with their causes and remedies, are the artifact `tbnum/events.jsonl`.

    Sent from a thread of its own: training never waits, and what MLflow does not take is counted and reported once. In
    a distributed training call it on the rank that has the run; other ranks record no scalars.

    Args:
        run: an MLflow `Run`, or a run's id; without it the active run.
        client: an `MlflowClient`; without it one for the tracking URI that is set now.

    Returns:
        The forwarder: `sent`, `dropped` and `refused` count, `flush()` waits, `close()` ends it before the monitor.

    Raises:
        ValueError: there is no run.
    """
    run = mlflow.active_run() if run is None else run
    if run is None:
        raise ValueError(
            "there is no active MLflow run to send to: call mlflow.start_run() first, or give forward(monitor, run)."
        )
    run_id = run if isinstance(run, str) else run.info.run_id
    return Forwarder(monitor, _Run(mlflow.MlflowClient() if client is None else client, run_id), "MLflow")


class _Run:
    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._events: list[str] = []
        self._written = 0  # events that are in the artifact
        self._written_at = -EVENTS_SECONDS

    def send_scalars(self, scalars: Scalars) -> None:
        self._log(scalars.values, scalars.step, scalars.wall_time)
        if len(self._events) > self._written and time.monotonic() - self._written_at >= EVENTS_SECONDS:
            self._write_events()

    def send_event(self, event: Event, count: int) -> None:
        facts = {
            name: getattr(event, name)
            for name in ("step", "wall_time", "kind", "severity", "optimizer", "cause", "message", "remedy")
        }
        self._events.append(json.dumps(facts))
        self._log(event_counts(event, count), event.step, event.wall_time)

    def end(self) -> None:
        if len(self._events) > self._written:
            self._write_events()

    def _log(self, values: Any, step: int, wall_time: float) -> None:
        milliseconds = int(1000 * wall_time)
        metrics = [mlflow.entities.Metric(tag, value, milliseconds, step) for tag, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def _write_events(self) -> None:
        self._written_at = time.monotonic()
        self._client.log_text(self._run_id, "\n".join(self._events) + "\n", EVENTS_FILE)
        self._written = len(self._events)
