"""Weights & Biases: `forward(monitor)` sends scalars and events to a run of yours."""

from __future__ import annotations

from typing import Any

from tbnum.integrations.forwarding import Forwarder, Scalars, event_counts
from tbnum.integrations.framework import framework
from tbnum.log.schema import Event
from tbnum.monitor import Monitor

__all__ = ["forward"]

wandb = framework("wandb", "wandb")

STEP = "tbnum/step"


def forward(monitor: Monitor, run: Any = None, *, alerts: bool = False) -> Forwarder:
    """Send the monitor's scalars (every `scalar_interval` steps) and its events to a W&B run.

        run = wandb.init(project="gpt")
        monitor = tbnum.wrap(optimizer, scaler, model=model, logdir="runs/gpt")
        tbnum.integrations.wandb.forward(monitor)

    The tags are those of TensorBoard, `tbnum/loss` and so on, drawn over `tbnum/step`. An event adds to the curve
    `tbnum/events/<kind>` and shows its message as `tbnum/event`. Each set of values is a row of its own, which counts
    in W&B's own step. A loop that gives `step=` to `run.log` itself, and less often than these rows come, would have
    its rows refused: give such a loop's forward() a second run, `wandb.init(..., reinit="create_new")`.

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

    def send_scalars(self, scalars: Scalars) -> None:
        self._run.log({STEP: scalars.step, **scalars.values})

    def send_event(self, event: Event, count: int) -> None:
        self._run.log({STEP: event.step, "tbnum/event": event.message, **event_counts(event, count)})
        if self._alerts and event.severity != "info":
            level = wandb.AlertLevel.ERROR if event.severity == "error" else wandb.AlertLevel.WARN
            self._run.alert(f"tbnum: {event.kind}", event.message, level=level, wait_duration=60)

    def end(self) -> None:
        pass
