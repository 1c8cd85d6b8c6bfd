"""What speaks for a verdict, as plain values in an event's `data["evidence"]`, and the sentence that it adds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tbnum.explain.ahead import Later
from tbnum.explain.began import Began, began, forward_order
from tbnum.explain.close_look import CloseLook, Failure
from tbnum.explain.facts import Facts
from tbnum.explain.rules import BENIGN, Skip
from tbnum.log.schema import Event

__all__ = ["with_evidence"]

TENSORS_LISTED = 8  # of those that were not finite; `data["nonfinite_tensors"]` has how many there were
NEIGHBOURS = 2
LOOKS_IN_A_ROW = 3
"""Of skips in a row, the first ones are looked at closely: the others repeat them."""

BACKWARD_CAUSES = ("scale_warmup", "growth_probe", "bad_batch", "backward_nonfinite", "unknown")
"""Where the loss was finite, so that the overflow began somewhere in the backward pass."""


def with_evidence(event: Event, facts: Facts, skip: Skip | None, later: Later | None, look: CloseLook | None) -> Event:
    """An explained skip or non-finite step with its evidence. `look` is None while the run goes on.

    Keys of the evidence, each where it is known:

    - `held_steps`: unskipped steps at the scale; `held_before_growth`: where it had just grown, at the one before;
    - `held_before_probe`, `failed_probe`: where it had been raised in vain, steps at it before that; the higher one;
    - `recent_loss`: median; `skips_in_row`; `recovered_after`: steps until the scale was back;
    - `nonfinite_since`: the step whose update made the parameters non-finite;
    - `scale_that_held`: the highest that had, where this one is far below it;
    - `injected`: the note that labels the batch as spoiled on purpose;
    - `nonfinite`: tensors in backward order, each with its counts of `nan` and `inf`; `nan`, `inf`: of all of them;
    - `largest_finite`: magnitude in any gradient; `largest_finite_scaled`: times the loss scale;
    - `finite_neighbours`: the gradients computed just before, with their usual norm;
    - `norm_ratio`: how many times their usual length the finite gradients had;
    - `began`: a `Began`, where it was looked for.
    """
    evidence = {} if skip is None else _of_history(skip, later)
    message = event.message
    close = skip is None or skip.in_row <= LOOKS_IN_A_ROW
    failure = look.failure(event.step, event.optimizer) if look is not None and close else None
    if failure is not None and look is not None and failure.nonfinite.any():
        evidence |= _of_tensors(facts, failure)
        if skip is not None and skip.cause in BACKWARD_CAUSES:
            ratio = look.norm_ratio(event.step, event.optimizer)
            origin = began(failure.names, failure.nonfinite.tolist())
            if not math.isnan(ratio):
                evidence["norm_ratio"] = ratio
            if origin is not None:
                evidence["began"] = _as_values(origin)
                evidence["finite_neighbours"] = _neighbours(event, failure, look)
                if origin.text and (origin.how != "alone" or skip.cause not in BENIGN):
                    message += f" {origin.text}"
            if skip.cause == "bad_batch" and ratio >= 2:
                message += f" The finite gradients had {ratio:.2g} times their usual length"
                message += ", as good batches may." if skip.at_edge else "."
    if not evidence:
        return event
    return replace(event, message=message, data={**event.data, "evidence": evidence})


def _of_history(skip: Skip, later: Later | None) -> dict[str, Any]:
    evidence: dict[str, Any] = {"held_steps": skip.held, "skips_in_row": skip.in_row}
    if skip.injected is not None:
        evidence["injected"] = skip.injected
    if skip.held_before_growth > 0:
        evidence["held_before_growth"] = skip.held_before_growth
    if skip.held_before_probe > 0:
        evidence |= {"held_before_probe": skip.held_before_probe, "failed_probe": skip.failed_probe}
    if not math.isnan(skip.recent_loss):
        evidence["recent_loss"] = skip.recent_loss
    if skip.since is not None:
        evidence["nonfinite_since"] = skip.since.step
    if not math.isnan(skip.fallen):
        evidence["scale_that_held"] = skip.fallen
    if later is not None:
        evidence["skips_in_row"] = later.skips_in_row
        evidence["recovered_after"] = later.recovered_after
    return evidence


def _of_tensors(facts: Facts, failure: Failure) -> dict[str, Any]:
    order = forward_order(failure.names)
    rows = np.array([at for at in reversed(order) if failure.nonfinite[at]])  # in backward order: where it began first
    listed = [
        {"name": failure.names[at], "nan": int(failure.nan[at]), "inf": int(failure.inf[at])}
        for at in rows[:TENSORS_LISTED].tolist()
    ]
    evidence: dict[str, Any] = {
        "nonfinite": listed,
        "nan": int(failure.nan[rows].sum()),
        "inf": int(failure.inf[rows].sum()),
    }
    if np.isfinite(failure.absmax).any():
        largest = float(np.nanmax(failure.absmax))
        evidence["largest_finite"] = largest
        if not math.isnan(facts.loss_scale):
            evidence["largest_finite_scaled"] = largest * facts.loss_scale
    return evidence


def _neighbours(event: Event, failure: Failure, look: CloseLook) -> list[dict[str, Any]]:
    """The finite gradients next after the last that is not, in the optimizer's order: those computed before it."""
    bad = failure.nonfinite
    after = np.flatnonzero(~bad)
    after = after[after > np.flatnonzero(bad)[-1]][:NEIGHBOURS]
    usual = look.usual_norms(event.step, event.optimizer)[after].tolist()
    return [
        {
            "name": failure.names[at],
            "grad_norm": float(failure.grad_norm[at]),
            "usual": None if math.isnan(norm) else norm,
        }
        for at, norm in zip(after.tolist(), usual, strict=True)
    ]


def _as_values(origin: Began) -> dict[str, Any]:
    return {
        "how": origin.how,
        "modules": list(origin.modules),
        "producers": list(origin.producers[:TENSORS_LISTED]),
        "propagators": origin.propagators,
    }
