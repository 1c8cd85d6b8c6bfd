"""Short runs, and faults whose size and place differ from those of the others: rules may not lean on either."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from torch import Tensor

from benchmarks.truth.corpus import faulty
from benchmarks.truth.faults.data import FOR_GOOD, Mislabeled
from benchmarks.truth.faults.gradients import _Louder
from benchmarks.truth.faults.learning_rate import CURVE
from benchmarks.truth.faults.state import Resumed
from benchmarks.truth.loop import Loop
from benchmarks.truth.verdict import Truth


class Short(Loop):
    """A third as long as the others, and broken after two thirds of it."""

    steps = 160

    def __init__(self, model: str, seed: int, precision: str) -> None:
        super().__init__(model, seed, precision)
        self.begin = self.account.begin = self.begin - 160  # 90 to 118


class ShortUnclipped(Short):
    steps = 240
    max_norm = None


@faulty(FOR_GOOD)
class LabelsWrongInAShortRun(Short, Mislabeled):
    def share(self) -> float:
        return 0.8 * self.since_fault


@faulty(Truth(("norm_level",), near=CURVE, late=60), any_difference=True)
class GradientsTimes16InAShortRun(ShortUnclipped):
    def gradients_are_there(self) -> None:
        if self.since_fault:
            for parameter in self.parameters():
                parameter.grad.mul_(16)


@faulty(
    Truth(("lr_zero", "update_ratio_low"), words="learning rate", least="info", from_start=True), any_difference=True
)
class LearningRateDecaysEachStep(Short):
    """By a factor that was meant for epochs."""

    def learning_rate(self) -> float:
        return 0.9**self.now


@faulty(Truth(("dead_tensor", "update_ratio_low", "norm_level"), early=60), any_difference=True)
class GradientFades(Loop):
    """Clipping and Adam make up for its length: only the tensors' own norms show it."""

    precisions = ("float32", "bfloat16")

    def outputs(self, inputs: Tensor) -> Tensor:
        return self.model.head(_Louder.apply(self.model.features(inputs), 1e-8 if self.since_fault else 1.0))


@faulty(
    Truth(
        ("nonfinite_loss", "forward_nonfinite"),
        wrong=("mean_over_nothing", "bad_batch", "backward_nonfinite"),
        late=0,
    )
)
class TermOfTheLossIsNan(Loop):
    """One that no parameter has a part in: the gradients are what they were."""

    def reduce(self, losses: Tensor) -> Tensor:
        return losses.mean() + (math.nan if self.at_fault else 0.0)


class ResumedAtASmallRate(Resumed):
    lr = 1e-3
    options: ClassVar[dict[str, Any]] = {"tensor_interval": 50}


@faulty(
    Truth(("model_state_lost",), near=("loss_spike", "loss_rose", "norm_level", "resume"), late=20),
)
class WeightsLeftBehindAtAResume(ResumedAtASmallRate):
    """Few tables of tensors, and weights that moved less: the layers that begin alike each time show it."""

    restored = ("optimizer", "scaler", "monitor")
