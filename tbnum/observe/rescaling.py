"""By what the loop multiplied its gradients by hand, inferred from samples that were taken after the last backward."""

from __future__ import annotations

import enum
import math

from tbnum.observe.attempt import Attempt
from tbnum.observe.gradients import Gradients

__all__ = ["Rescaling", "rescaling"]

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
    pairs = list(zip(attempt.samples, gradients.samples(), strict=False))
    quotients = [before / now for before, now in pairs if 0 < now < before < math.inf]
    if not quotients or len(quotients) < len([before for before in attempt.samples if before]):
        return Rescaling.NONE
    quotient = quotients[0]
    if any(abs(other - quotient) > _EXACT * quotient for other in quotients):
        return Rescaling.NONE  # not alike: averaged with those of others, or noise
    if quotient >= LEAST_SCALE and math.frexp(quotient)[0] == 0.5 and quotient != len(attempt.backwards):
        return Rescaling.SCALE
    if quotient > 1.5 and abs(quotient - round(quotient)) <= _EXACT * quotient:
        return Rescaling.DIVISION
    return Rescaling.CLIP
