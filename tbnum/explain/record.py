"""What `explain` needs of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tbnum.explain.words import as_float
from tbnum.log.columns import columns_named
from tbnum.log.numbering import Numbering
from tbnum.log.schema import Event

__all__ = [
    "SCALE_CHANGES",
    "Part",
    "Record",
    "attempts",
    "complete_events",
    "first_step",
    "is_scalar_log",
    "optimizer_settings",
    "scaler_settings",
    "without_gradient",
]

SCALE_CHANGES = ("scale_growth", "scale_backoff", "scale_set", "scaler_state_lost")


def scaler_settings(meta: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among a scaler's settings that can be what they are said to be; {} without a scaler."""
    scaler = meta.get("scaler")
    settings = {name: as_float(value) for name, value in scaler.items()} if isinstance(scaler, Mapping) else {}
    return {name: value for name, value in settings.items() if abs(value) < 2**53}


def optimizer_settings(meta: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    """What an optimizer was made with, by its name, or (None) the only one; {} where the record does not say."""
    optimizers = meta.get("optimizers")
    known = optimizers if isinstance(optimizers, Mapping) else {}
    settings = known.get(next(iter(known), "") if name is None else name)
    return settings if isinstance(settings, Mapping) else {}


def without_gradient(steps: Mapping[str, np.ndarray]) -> np.ndarray:
    """(S,) bool: steps whose gradients are known to be all 0, as of a loss that reached 0."""
    norms = [values == 0 for _, values in columns_named(steps, "grad_norm")]
    return np.logical_and.reduce(norms) if norms else np.zeros(len(steps.get("step", ())), bool)


class Record(Protocol):
    """The part of `tbnum.log.reader.Run` that is used. `steps`: equal lengths, in order of `step`."""

    @property
    def steps(self) -> Mapping[str, np.ndarray]: ...
    @property
    def raw_events(self) -> Sequence[Event]: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...


class Part:
    """A record from a step on. The tables of tensors stay whole: who reads them asks for the steps that he means."""

    def __init__(self, record: Record, since: int) -> None:
        begin = int(np.searchsorted(record.steps.get("step", np.empty(0)), since))
        self.steps: Mapping[str, np.ndarray] = {name: values[begin:] for name, values in record.steps.items()}
        self.raw_events: Sequence[Event] = [event for event in record.raw_events if event.step >= since]
        self.meta = record.meta
        self.tensors = getattr(record, "tensors", None)
        self.histograms = getattr(record, "histograms", None)


def first_step(record: Record) -> int:
    """The step at which the record begins. Above 0: the run began elsewhere, unseen."""
    sessions = record.meta.get("sessions") or [record.meta]
    starts = [session["first_step"] for session in sessions if session.get("first_step") is not None]
    if starts:
        return int(min(starts))
    steps = record.steps.get("step")
    return int(steps[0]) if steps is not None and len(steps) else 0


def attempts(record: Record) -> int:
    """Steps that the record is about: those recorded, and in a scalar log those in between too."""
    steps = record.steps.get("step", np.empty(0, np.int64))
    if not len(steps) or not is_scalar_log(record):
        return len(steps)
    count = Numbering.of(record.meta).count
    return count(int(steps[-1])) - count(int(steps[0])) + 1


def is_scalar_log(record: Record) -> bool:
    """Whether the record was read from a TensorBoard scalar log: skips in it are inferred."""
    return "source" in record.meta


def complete_events(record: Record) -> list[Event]:
    """`raw_events`, and a skip for each skipped step whose own event record was lost."""
    events = list(record.raw_events)
    steps = record.steps
    flags = columns_named(steps, "skipped")
    if len(flags) > 1:  # the plain one is then true where any of the others is
        flags = [(column, skipped) for column, skipped in flags if column.optimizer is not None]
    lost: list[Event] = []
    for column, skipped in flags:
        name = column.optimizer
        reported = {event.step for event in events if event.kind == "skip" and name in (None, event.optimizer)}
        for row in np.flatnonzero(skipped).tolist():
            step = int(steps["step"][row])
            if step in reported:
                continue
            shared = {key: key for key in ("loss", "loss_scale", "micro_batches")}
            own = {key: column.beside(key) for key in ("grad_norm", "nonfinite_tensors")}
            data = {key: float(steps[full][row]) for key, full in (shared | own).items() if full in steps}
            lost.append(Event(step, float(steps["wall_time"][row]), "skip", optimizer=name, data=data))
    if not lost:
        return events
    # A stable sort: a skip stays before the scale change of its step.
    return sorted(lost + events, key=lambda event: event.step)
