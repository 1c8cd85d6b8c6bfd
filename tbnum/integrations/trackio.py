"""Trackio: `forward(monitor)` sends scalars and events to a run of yours."""

from __future__ import annotations

from typing import Any

from tbnum.integrations.forwarding import Forwarder, Scalars, event_counts
from tbnum.integrations.framework import framework
from tbnum.log.schema import Event
from tbnum.monitor import Monitor

__all__ = ["forward"]

trackio = framework("trackio", "trackio")


def forward(monitor: Monitor, run: Any = None) -> Forwarder:
    """Send the monitor's scalars (every `scalar_interval` steps) and its events to a Trackio run.

        run = trackio.init(project="gpt")
        monitor = tbnum.wrap(optimizer, scaler, model=model, logdir="runs/gpt")
        tbnum.integrations.trackio.forward(monitor, run)

    The metrics have TensorBoard's tags, `tbnum/loss` and so on, at the step of the record. An event adds to the metric
    `tbnum/events/<kind>`; warnings and errors are Trackio alerts too, with what to do about them.

    Sent from a thread of its own: training never waits, and what Trackio does not take is counted and reported once.
    In a distributed training call it on the rank that has the run; other ranks record no scalars.

    Args:
        run: what `trackio.init()` returned; without it the run that it opened last.

    Returns:
        The forwarder: `sent`, `dropped` and `refused` count, `flush()` waits, `close()` ends it before the monitor.

    Raises:
        ValueError: there is no run yet.
    """
    run = trackio.context_vars.current_run.get() if run is None else run
    if run is None:
        raise ValueError(
            "there is no Trackio run to send to: call trackio.init() first, or give forward(monitor, run)."
        )
    return Forwarder(monitor, _Run(run), "Trackio")


class _Run:
    def __init__(self, run: Any) -> None:
        self._run = run

    def send_scalars(self, scalars: Scalars) -> None:
        self._run.log(dict(scalars.values), step=scalars.step)

    def send_event(self, event: Event, count: int) -> None:
        self._run.log(event_counts(event, count), step=event.step)
        if event.severity != "info":
            level = trackio.AlertLevel.ERROR if event.severity == "error" else trackio.AlertLevel.WARN
            self._run.alert(f"tbnum: {event.kind}", f"{event.message} {event.remedy}".strip(), level, step=event.step)

    def end(self) -> None:
        pass
