"""Gradients that are gone without a step: did the loop give an attempt up, or were they never meant for an update?

Adversarial inputs, the first half of a sharpness-aware step, a probe of the Hessian and a generator's backward through
a discriminator all leave gradients that nobody steps with. A loop that drops a bad batch leaves the same. What
distinguishes them is what is known of the loss, whether somebody looked at the gradients, and how often it happens.
"""

from __future__ import annotations

import math
import operator

import torch

from tbnum.observe.attempt import Attempt
from tbnum.observe.gradients import parameters_of
from tbnum.observe.records import OptimizerRecord, StepRecord
from tbnum.observe.track import REMEMBERED, Track

__all__ = ["decided_by_values", "some_versions", "was_given_up"]

RARE = REMEMBERED // 4  # endings after a look among the last attempts, from which on they are a habit of the loop
_version_of = operator.attrgetter("_version")
_LOOKED_AT = 4  # parameters whose versions show whether an optimizer's parameters were written to


def was_given_up(track: Track, attempt: Attempt) -> bool | None:
    """Why, in `attempt.why_given_up`, where it was. None: a device alone knows. Call it once for each ending."""
    if (
        not attempt.backwards
        and attempt.seen is not None
        and attempt.seen.marks()[0] == track.used[0] == track.last_seen
    ):
        return False  # what a backward made and the last step has left, which the loop wrote to since
    looked = attempt.looked_at is not None
    used_elsewhere = bool(attempt.backwards) and all(loss.used_by - {track.name} for loss in attempt.backwards)
    is_first_half = looked and attempt.looked_at != some_versions(track.optimizer)
    is_habit = track.endings.count(True) >= RARE - 1
    track.endings.append(looked and not used_elsewhere and not is_first_half)
    if used_elsewhere or is_first_half:
        return False
    if attempt.has_own_scale and attempt.before.known_nonfinite:
        attempt.why_given_up = "looked"
        return True
    if not looked and track.sides < track.usual_sides:
        return False  # its place in the loop is that of the adversarial inputs, or probes, that come before each step
    if attempt.has_nonfinite_loss:
        attempt.why_given_up = "loss"
        return True
    is_new = track.never_stepped and not attempt.before.known_nonfinite  # a clip of each sample, say, before a step
    if looked and not is_habit and not is_new:
        attempt.why_given_up = "looked"
        return True
    undecided = any(loss.is_known and loss.is_finite is None for loss in attempt.losses)
    undecided |= attempt.has_own_scale and any(isinstance(count, torch.Tensor) for count in attempt.before.nonfinite)
    return None if undecided else False


def decided_by_values(attempt: Attempt, record: StepRecord, optimizer: OptimizerRecord) -> bool:
    """What `was_given_up` left to the values, now that they have landed."""
    if record.losses and not math.isfinite(record.loss):
        optimizer.dropped = "loss"
    elif attempt.has_own_scale and optimizer.nonfinite_tensors > 0:
        optimizer.dropped = "looked"
    return optimizer.dropped is not None


def some_versions(optimizer: torch.optim.Optimizer | None) -> tuple[int, ...]:
    """Of a few parameters, from first to last: whoever writes to an optimizer's parameters writes to all of them."""
    if optimizer is None:
        return ()
    parameters = parameters_of(optimizer)
    some = parameters[:: max(1, len(parameters) // _LOOKED_AT)]
    try:
        return tuple(map(_version_of, some))
    except RuntimeError:  # those that were made in inference mode have none
        return tuple(parameter._version for parameter in some if not parameter.is_inference())
