"""Learning rates, weight decay and momentum."""

from __future__ import annotations

import torch

from benchmarks.truth.corpus import faulty
from benchmarks.truth.loop import Loop
from benchmarks.truth.verdict import Truth

CURVE = ("loss_spike", "loss_rose", "grad_norm_spike", "norm_level", "exploding_norm", "update_ratio_high")
THROWN = (*CURVE, "dead_tensor")
"""What follows where steps are far too long for good: units that are never active again."""

NAMES_THE_RATE = r"learning rate( of [^:;.]*)? (is|was|rose|went|jumped)|Steps are (large|tiny)|steps rewrote"
"""That it may be lowered stands in the remedy of any rise of the loss, whatever it comes from."""


@faulty(Truth(("lr_outlier", "loss_spike", "loss_rose"), near=CURVE, words=NAMES_THE_RATE, late=3))
class LearningRateSpike(Loop):
    def learning_rate(self) -> float:
        return super().learning_rate() * (100 if self.at_fault else 1)


@faulty(Truth(("lr_zero",), near=("update_ratio_low",), words=NAMES_THE_RATE, early=10, late=20), any_difference=True)
class LearningRateZero(Loop):
    def learning_rate(self) -> float:
        return 0.0 if self.since_fault else super().learning_rate()


@faulty(
    Truth(("lr_outlier", "loss_spike", "loss_rose", "update_ratio_high"), near=THROWN, words=NAMES_THE_RATE, late=40)
)
class LearningRateTooHighForGood(Loop):
    def learning_rate(self) -> float:
        return super().learning_rate() * (60 if self.since_fault else 1)


@faulty(
    Truth(
        ("update_ratio_high", "lr_outlier", "loss_rose", "loss_spike"),
        near=THROWN,
        words=NAMES_THE_RATE,
        from_start=True,
    )
)
class TooHighFromTheStart(Loop):
    def learning_rate(self) -> float:
        return 60 * (0.55 if self.now < 20 else super().learning_rate())


# That the loss rose, and the rate may be lowered, does not say that each step goes uphill.
@faulty(Truth(("lr_outlier", "lr_negative"), near=CURVE, words=NAMES_THE_RATE, late=150))
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


class LongAtOneRate(Loop):
    steps = 1000

    def learning_rate(self) -> float:
        return super().learning_rate() if self.now < 20 else 0.5


@faulty(
    Truth(
        ("lr_outlier", "loss_rose", "loss_spike", "update_ratio_high"),
        near=(*THROWN, "weights_grow", "scale_falls", "headroom_running_out", "skip_rate"),
        words=NAMES_THE_RATE,
        late=500,
    )
)
class LearningRateGrowsSlowly(LongAtOneRate):
    def learning_rate(self) -> float:
        return super().learning_rate() * 1.012 ** max(0, self.now - self.begin)


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


# Parameters are measured every 20 steps, so they may be largest at a step before the fault. That single tensors vanish
# is its name as well; where they do, their gradients change or end.
@faulty(
    Truth(
        ("weights_vanish", "tensors_vanish", "weight_decay_strong"),
        near=("loss_rose", "loss_spike", "norm_level", "dead_tensor"),
        words="weight decay",
        early=20,
        late=150,
    )
)
class WeightDecayShrinksAll(Loop):
    def before_step(self) -> None:
        if self.at_fault:
            for group in self.optimizer.param_groups:
                group["weight_decay"] = 2.0 if self.kind == "cnn" else 20.0


class PlainMomentum(Loop):
    momentum = 0.9

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=self.momentum)


# A loss that rose, and steps that are long, do not name the momentum.
@faulty(Truth(("momentum_invalid",), near=THROWN, from_start=True))
class MomentumOfOne(PlainMomentum):
    """Nothing of an old gradient ever fades."""

    momentum = 1.0
