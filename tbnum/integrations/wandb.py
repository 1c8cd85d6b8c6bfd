"""Weights & Biases: `forward(monitor)` sends scalars and events to a run of yours."""

from __future__ import annotations

import time
from typing import Any

from tbnum.integrations.forwarding import Forwarder, Scalars, event_counts
from tbnum.integrations.framework import framework
from tbnum.log.schema import Event
from tbnum.monitor import Monitor

__all__ = ["forward"]

wandb = framework("wandb", "wandb")

STEP = "tbnum/step"
ALONE_SECONDS = 600.0
"""So long the loop may take to its first row: an epoch, perhaps, after which it logs with `step=0`."""
MOST_WAITING = 10_000  # rows


def forward(monitor: Monitor, run: Any = None, *, alerts: bool = False) -> Forwarder:
    """Send the monitor's scalars (every `scalar_interval` steps) and its events to a W&B run.

        run = wandb.init(project="gpt")
        monitor = tbnum.wrap(optimizer, scaler, model=model, logdir="runs/gpt")
        tbnum.integrations.wandb.forward(monitor)

    The tags are those of TensorBoard, `tbnum/loss` and so on, drawn over `tbnum/step`. An event adds to the curve
    `tbnum/events/<kind>` and shows its message as `tbnum/event`.

    W&B numbers its rows, and refuses one with a lower `step=`. So where the loop logs to the run too, these values
    become part of its rows, the latest in each, and its numbers are what they would be without tbnum. Where it does
    not, each set of values is a row of its own; that nobody else logs is known once the monitor is closed, or after
    `ALONE_SECONDS` without another's row, and the rows wait until then.

    Sent from a thread of its own: training never waits, and what W&B does not take is counted and reported once. In a
    distributed training call it on the rank that has the run; other ranks record no scalars.

    Args:
        run: the run; without it `wandb.run`.
        alerts: send warnings and errors as W&B alerts too (at most one a minute of each kind).

    Returns:
        The forwarder: `sent`, `dropped` and `refused` count, `flush()` waits, `close()` ends it before the monitor.

    Raises:
        ValueError: there is no run yet.
    """
    run = wandb.run if run is None else run
    if run is None:
        raise ValueError("there is no W&B run to send to: call wandb.init() first, or give forward(monitor, run).")
    run.define_metric(STEP, hidden=True)
    run.define_metric("tbnum/*", step_metric=STEP)
    return Forwarder(monitor, _Run(run, alerts), "W&B")


class _Run:
    def __init__(self, run: Any, alerts: bool) -> None:
        self._run = run
        self._alerts = alerts
        self._waiting: list[dict[str, Any]] = []
        self._own_step: int | None = self._step()  # the run's, as far as rows from here moved it; None once others log
        self._since = time.monotonic()

    def send_scalars(self, scalars: Scalars) -> None:
        self._send({STEP: scalars.step, **scalars.values})

    def send_event(self, event: Event, count: int) -> None:
        self._send({STEP: event.step, "tbnum/event": event.message, **event_counts(event, count)})
        if self._alerts and event.severity != "info":
            level = wandb.AlertLevel.ERROR if event.severity == "error" else wandb.AlertLevel.WARN
            self._run.alert(f"tbnum: {event.kind}", event.message, level=level, wait_duration=60)

    def end(self) -> None:
        self._write(alone=not self._is_shared())

    def _send(self, row: dict[str, Any]) -> None:
        self._waiting.append(row)
        if self._is_shared():
            self._write(alone=False)
        elif time.monotonic() - self._since >= ALONE_SECONDS or len(self._waiting) > MOST_WAITING:
            self._write(alone=True)

    def _is_shared(self) -> bool:
        """Whether the loop has logged to the run as well."""
        return self._own_step is None or self._step() != self._own_step

    def _write(self, *, alone: bool) -> None:
        rows, self._waiting = self._waiting, []
        for row in rows:
            self._run.log(row, commit=alone)
        self._own_step = self._step() if alone else None

    def _step(self) -> int:
        """The run's own, of its next row. W&B knows none where several processes write one run: then 0, as if alone."""
        return 0 if self._run.settings.mode == "shared" else int(self._run.step)
