"""Batches and labels."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.truth.corpus import faulty
from benchmarks.truth.loop import Loop
from benchmarks.truth.verdict import Truth

ONE_STEP = Truth(
    ("loss_spike", "grad_norm_spike", "bad_batch"), near=("exploding_norm",), least="info", early=1, late=2
)
RISE = ("grad_norm_spike", "norm_level", "bad_batch")
"""What comes with a rise of the loss. In float16 longer gradients overflow at a scale that had held, there and then."""

FOR_GOOD = Truth(("loss_rose", "loss_spike"), near=RISE, late=150)


class Mislabeled(Loop):
    """Labels at random in the steps and with the share that a fault gives."""

    def share(self) -> float:
        return 0.0

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(micro)
        generator = torch.Generator().manual_seed(self.now)
        wrong = torch.rand(targets.shape, generator=generator) < self.share()
        others = torch.randint(int(targets.max()) + 1, targets.shape, generator=generator)
        return inputs, torch.where(wrong, others, targets)


@faulty(ONE_STEP)
class BatchWithWrongLabels(Mislabeled):
    def share(self) -> float:
        return float(self.at_fault)


# Twenty steps in a row are worth a warning.
@faulty(Truth(("loss_spike", "loss_rose"), near=RISE, late=20))
class LabelNoiseBurst(Mislabeled):
    def share(self) -> float:
        return float(0 <= self.now - self.begin < 20)


@faulty(FOR_GOOD)
class LabelsShuffledForGood(Mislabeled):
    def share(self) -> float:
        return float(self.since_fault)


class Long(Mislabeled):
    steps = 1000


@faulty(FOR_GOOD)
class SomeLabelsWrongForGood(Long):
    """A lasting rise that no single step shows."""

    def share(self) -> float:
        return 0.15 * self.since_fault


@faulty(Truth(("loss_rose",), near=("loss_spike", *RISE), late=700))
class LabelNoiseGrowsSlowly(Long):
    def share(self) -> float:
        return min(0.7, max(0, self.now - self.begin) / 1000)


@faulty(ONE_STEP)
class BatchOfZeros(Loop):
    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(micro)
        return (torch.zeros_like(inputs), targets) if self.at_fault else (inputs, targets)


@faulty(FOR_GOOD)
class TokensShifted(Loop):
    """Another tokenizer's ids from there on."""

    models = ("gpt", "lstm")

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(micro)
        return ((inputs + 5) % 24, targets) if self.since_fault else (inputs, targets)


@faulty(FOR_GOOD)
class ImagesTransposed(Loop):
    models = ("cnn",)

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(micro)
        return (inputs.transpose(2, 3), targets) if self.since_fault else (inputs, targets)


@faulty(Truth(("loss_spike", "loss_rose"), near=RISE, least="info", late=100))
class DataInOrder(Loop):
    """A sampler that no longer shuffles: the first labels for 25 steps, then the next, and no batch is empty."""

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        if not self.since_fault:
            return super().batch(micro)
        inputs, targets = self.task.batch(self.now, size=400)
        place = (self.now - self.begin) // 25 % 8
        first = targets if targets.ndim == 1 else targets[:, 0]
        chosen = first.argsort(stable=True)[50 * place :][:16]
        return inputs[chosen], targets[chosen]


@faulty(ONE_STEP)
class WeightOfASampleIsHuge(Loop):
    precisions = ("float32", "bfloat16")

    def reduce(self, losses: Tensor) -> Tensor:
        weights = torch.ones_like(losses)
        weights[0] = 1e4 if self.at_fault else 1.0
        return (losses * weights).mean()
