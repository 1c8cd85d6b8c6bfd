"""The loss of a step whose framework divides each loss by the micro-batches of a whole window.

The last window of an epoch may be shorter. Its gradients are as the framework made them; its loss is to be the mean
over the micro-batches that it had, as in every other step.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tbnum.observe.records import StepRecord

__all__ = ["with_mean_loss"]


def with_mean_loss(record: StepRecord, window: int) -> StepRecord:
    """The record with the mean over its micro-batches, each of whose losses was divided by `window`.

    As it is where the window was whole, and where its loss is not the sum of those that went backward: the user's own.
    """
    count = record.micro_batches
    if not 0 < count < window or len(record.losses) != count or not math.isclose(sum(record.losses), record.loss):
        return record
    factor = window / count
    return replace(record, loss=record.loss * factor, losses=[loss * factor for loss in record.losses])
