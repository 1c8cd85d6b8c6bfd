"""Learning rates, weight decay and momentum."""

from __future__ import annotations

import torch

from benchmarks.truth.corpus import faulty
from benchmarks.truth.loop import Loop
from benchmarks.truth.verdict import Truth

CURVE = ("loss_spike", "loss_rose", "grad_norm_spike", "norm_level", "exploding_norm", "update_ratio_high")
NAMES_THE_RATE = "learning rate"


@faulty(Truth(("lr_outlier", "loss_spike", "loss_rose"), near=CURVE, words=NAMES_THE_RATE, late=3))
class LearningRateSpike(Loop):
    def learning_rate(self) -> float:
        return super().learning_rate() * (100 if self.at_fault else 1)


@faulty(Truth(("lr_zero",), near=("update_ratio_low",), words=NAMES_THE_RATE, early=10, late=20), any_difference=True)
class LearningRateZero(Loop):
    def learning_rate(self) -> float:
        return 0.0 if self.since_fault else super().learning_rate()


@faulty(Truth(("lr_outlier", "loss_spike", "loss_rose"), near=CURVE, words=NAMES_THE_RATE, late=40))
class LearningRateTooHighForGood(Loop):
    def learning_rate(self) -> float:
        return super().learning_rate() * (60 if self.since_fault else 1)


@faulty(
    Truth(
        ("update_ratio_high", "lr_outlier", "loss_rose", "loss_spike"),
        near=CURVE,
        words=NAMES_THE_RATE,
        from_start=True,
    )
)
class TooHighFromTheStart(Loop):
    def learning_rate(self) -> float:
        return 60 * (0.55 if self.now < 20 else super().learning_rate())


@faulty(Truth(("lr_outlier", "lr_negative", "loss_rose", "loss_spike"), near=CURVE, words=NAMES_THE_RATE, late=150))
class LearningRateNegative(Loop):
    def learning_rate(self) -> float:
        return super().learning_rate() * (-1 if self.since_fault else 1)


@faulty(
    Truth(("lr_outlier", "lr_zero", "update_ratio_low"), words=NAMES_THE_RATE, least="info", early=10),
    any_difference=True,
)
class LearningRateVanishes(Loop):
    """Milliseconds where the schedule wanted seconds."""

    def learning_rate(self) -> float:
        return super().learning_rate() * (1e-7 if self.since_fault else 1)


@faulty(Truth(("lr_outlier", "loss_rose", "loss_spike"), near=CURVE, words=NAMES_THE_RATE, late=500))
class LearningRateGrowsSlowly(Loop):
    steps = 1000

    def learning_rate(self) -> float:
        return 0.5 * 1.012 ** max(0, self.now - self.begin) if self.now >= 20 else super().learning_rate()


@faulty(Truth(("lr_zero", "update_ratio_low"), least="info", from_start=True), any_difference=True)
class GroupWithoutLearningRate(Loop):
    """The body's group was given a rate of 0."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer()
        head = {id(parameter) for parameter in self.model.head.parameters()}
        (group,) = optimizer.param_groups
        body = [parameter for parameter in group["params"] if id(parameter) not in head]
        group["params"] = list(self.model.head.parameters())
        optimizer.add_param_group({"params": body, "lr": 0.0})
        return optimizer


@faulty(Truth(("weights_vanish",), near=("loss_rose", "loss_spike"), words="weight decay", late=150))
class WeightDecayShrinksAll(Loop):
    def before_step(self) -> None:
        if self.at_fault:
            for group in self.optimizer.param_groups:
                group["weight_decay"] = 2.0 if self.kind == "cnn" else 20.0


class PlainMomentum(Loop):
    momentum = 0.9

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=self.momentum)


@faulty(
    Truth(
        ("momentum_invalid", "loss_rose", "update_ratio_high", "loss_spike"),
        near=("exploding_norm", "norm_level"),
        from_start=True,
    ),
)
class MomentumOfOne(PlainMomentum):
    """Nothing of an old gradient ever fades."""

    momentum = 1.0
