"""By what the loop multiplied its gradients by hand, inferred from samples that were taken after the last backward."""

from __future__ import annotations

import enum
import math

from tbnum.observe.attempt import Attempt
from tbnum.observe.gradients import Gradients
from tbnum.observe.transfer import Number

__all__ = ["Rescaling", "rescaling", "unscaled_by_hand"]

LEAST_SCALE = 128.0  # powers of two from here on are a loss scale; smaller ones may count ranks or micro-batches
_EXACT = 1e-4  # how far a quotient of two float32 norms may be from the number that it stands for


class Rescaling(enum.Enum):
    NONE = "none that is known of"
    DIVISION = "by a whole number, of tokens, ranks or micro-batches"
    SCALE = "by a power of two that the loss was multiplied by"
    CLIP = "by a factor that may be a clip's"


def rescaling(attempt: Attempt, gradients: Gradients) -> Rescaling:
    """What was done in place to all of `gradients` alike since the last backward of the attempt, as samples show it.

    A write by `.data` leaves no other trace. Gradients that others were put in place of are what they are.
    """
    if not attempt.samples or attempt.unscaled_after is not None or gradients.ids() != attempt.arrived[0]:
        return Rescaling.NONE
    quotient = _divided_by(attempt, gradients)
    if quotient is None:
        return Rescaling.NONE
    if quotient >= LEAST_SCALE and math.frexp(quotient)[0] == 0.5 and quotient != len(attempt.backwards):
        return Rescaling.SCALE
    if quotient > 1.5 and abs(quotient - round(quotient)) <= _EXACT * quotient:
        return Rescaling.DIVISION
    return Rescaling.CLIP


def unscaled_by_hand(attempt: Attempt, gradients: Gradients, scale: Number) -> bool:
    """Whether the loop divided the gradients by the scale of its scaler itself, as samples show it."""
    if not isinstance(scale, float) or scale == 1.0 or gradients.ids() != attempt.arrived[0]:
        return False
    quotient = _divided_by(attempt, gradients)
    return quotient is not None and abs(quotient - scale) <= _EXACT * scale


def _divided_by(attempt: Attempt, gradients: Gradients) -> float | None:
    """All samples alike; None where there are none, or they differ: averaged with those of others, or noise."""
    pairs = list(zip(attempt.samples, gradients.samples(attempt.samples), strict=False))
    quotients = [before / now for before, now in pairs if 0 < now < before < math.inf]
    if not quotients or len(quotients) < len([before for before in attempt.samples if before]):
        return None
    quotient = quotients[0]
    return None if any(abs(other - quotient) > _EXACT * quotient for other in quotients) else quotient
