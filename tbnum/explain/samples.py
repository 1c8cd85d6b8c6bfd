"""The samples of the steps whose batch is to be looked at, where the record has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tbnum.explain.words import as_float
from tbnum.log.schema import Event

__all__ = ["with_samples"]

KINDS = frozenset(("skip", "nonfinite_step", "loss_spike", "grad_norm_spike"))

NOT_OF_THE_BATCH = frozenset(("scale_warmup", "growth_probe", "nonfinite_parameters"))
"""Causes that have nothing to do with the samples of the step."""

NAMED = 8
"""Samples in a message; the event's data has more."""

KEPT = 64

LOOKED_UP = 50
"""Events whose samples are read from the record: 0.2 ms each."""


def with_samples(events: Sequence[Event], batch: Callable[[int], np.ndarray | None] | None) -> list[Event]:
    """The events, those of `KINDS` with the ids of their samples in message and data. `batch`: as `Run.batch`."""
    looked_up = 0
    found: list[Event] = []
    for event in events:
        if event.kind in KINDS and event.cause not in NOT_OF_THE_BATCH:
            samples = event.data.get("samples")
            if not isinstance(samples, list) and batch is not None and looked_up < LOOKED_UP:
                looked_up += 1
                samples = _samples(batch, event)
            if samples:
                event = _named(event, samples)
        found.append(event)
    return found


def _samples(batch: Callable[[int], np.ndarray | None], event: Event) -> list[int]:
    peak = as_float(event.data.get("peak_step"))
    ids = batch(int(peak) if 0 <= peak < 2**53 else event.step)
    return [] if ids is None else ids[:KEPT].tolist()


def _named(event: Event, samples: Sequence[Any]) -> Event:
    more = len(samples) - NAMED
    listed = ", ".join(map(str, samples[:NAMED]))
    if more > 0:
        listed += f" and {'at least ' if len(samples) >= KEPT else ''}{more} more"
    which = "The sample of the step was" if len(samples) == 1 else "The samples of the step were"
    if "peak_step" in event.data:
        which = which.replace("the step", f"step {event.data['peak_step']:,}")
    return replace(event, message=f"{event.message} {which} {listed}.", data={**event.data, "samples": list(samples)})
