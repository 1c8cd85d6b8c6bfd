"""Trackio: `forward(monitor)` sends scalars and events to a run of yours."""

from __future__ import annotations

from collections.abc import Mapping
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

    The metrics have TensorBoard's tags, `tbnum/loss` and so on, at the step of the record; a `log` of your own without
    a step counts on from your last. An event adds to the metric `tbnum/events/<kind>`; warnings and errors are Trackio
    alerts too, with what to do about them.

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


class _OwnSteps:
    """The run, but that a `log` through this one does not move the step of the run's next `log` without a step."""

    def __init__(self, run: Any) -> None:
        self.__dict__.update(_run=run, _next_step=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self._run, name, value)


class _Run:
    def __init__(self, run: Any) -> None:
        self._run = run
        self._beside = _OwnSteps(run)

    def send_scalars(self, scalars: Scalars) -> None:
        self._log(scalars.values, scalars.step)

    def send_event(self, event: Event, count: int) -> None:
        self._log(event_counts(event, count), event.step)
        if event.severity != "info":
            level = trackio.AlertLevel.ERROR if event.severity == "error" else trackio.AlertLevel.WARN
            self._run.alert(f"tbnum: {event.kind}", f"{event.message} {event.remedy}".strip(), level, step=event.step)

    def end(self) -> None:
        pass

    def _log(self, values: Mapping[str, float], step: int) -> None:
        type(self._run).log(self._beside, dict(values), step=step)
