"""NaN and inf: from the forward, from inside the backward, from the optimizer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.truth.corpus import faulty
from benchmarks.truth.loop import Loop
from benchmarks.truth.verdict import Truth

SPOILED = ("nonfinite_step", "nonfinite_parameters", "nonfinite_loss", "forward_nonfinite")
"""What follows where a step without a scaler is taken on NaN, or made one: it is so to the end."""

FORWARD = Truth(
    ("forward_nonfinite", "nonfinite_loss"), near=SPOILED, wrong=("bad_batch", "backward_nonfinite"), late=0
)
BACKWARD = Truth(
    ("backward_nonfinite",),
    near=("nonfinite_step", "nonfinite_parameters", "nonfinite_loss"),
    wrong=("bad_batch", "forward_nonfinite"),
    words="replay",
    late=0,
)
UPDATE = Truth(
    ("nonfinite_update",),
    near=("nonfinite_parameters", "nonfinite_step", "nonfinite_loss", "scale_collapse"),
    wrong=("forward_nonfinite", "bad_batch", "backward_nonfinite"),
    early=10,
    late=1,
)

# -- the forward


@faulty(FORWARD)
class LogOfZero(Loop):
    def reduce(self, losses: Tensor) -> Tensor:
        probability = torch.exp(-losses)
        if self.at_fault:
            probability = probability * (torch.arange(len(losses)) > 0)
        return -torch.log(probability).mean()


@faulty(FORWARD)
class ExponentialOverflows(Loop):
    def reduce(self, losses: Tensor) -> Tensor:
        return torch.log(torch.exp(losses + 100 * self.at_fault).mean())


@faulty(FORWARD)
class DivisionByZero(Loop):
    """A weighted mean whose weights are all zero."""

    def reduce(self, losses: Tensor) -> Tensor:
        weights = torch.full_like(losses, float(not self.at_fault))
        return (losses * weights).sum() / weights.sum()


@faulty(FORWARD)
class WeightOfASampleIsNan(Loop):
    def reduce(self, losses: Tensor) -> Tensor:
        weights = torch.ones_like(losses)
        weights[0] = math.nan if self.at_fault else 1
        return (losses * weights).mean()


@faulty(FORWARD)
class SoftmaxOfAMaskedRow(Loop):
    def reduce(self, losses: Tensor) -> Tensor:
        scores = losses.detach().masked_fill(torch.tensor(self.at_fault), -math.inf)
        return (scores.softmax(0) * losses).sum()


@faulty(FORWARD)
class SquareRootOfANegative(Loop):
    def reduce(self, losses: Tensor) -> Tensor:
        return torch.sqrt(losses.mean() - 100 * self.at_fault).square()


@faulty(FORWARD)
class ActivationBeyondFloat16(Loop):
    precisions = ("float16",)

    def outputs(self, inputs: Tensor) -> Tensor:
        outputs = super().outputs(inputs)
        return (outputs.half() * 1e5) / 1e5 if self.at_fault else outputs


@faulty(
    Truth(
        ("forward_nonfinite", "nonfinite_loss", "nonfinite_buffers"),
        near=SPOILED,
        wrong=("bad_batch", "backward_nonfinite"),
        late=0,
    )
)
class InputIsInfinite(Loop):
    models = ("cnn",)
    precisions = ("float32", "bfloat16")

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(micro)
        if self.at_fault:
            inputs[0, 0, 0, 0] = math.inf
        return inputs, targets


@faulty(
    Truth(
        ("mean_over_nothing",),
        near=("forward_nonfinite", "nonfinite_loss"),
        wrong=("bad_batch", "backward_nonfinite"),
        late=0,
    )
)
class MeanOverNothing(Loop):
    """Every label of the batch is one to be ignored."""

    def reduce(self, losses: Tensor) -> Tensor:
        kept = torch.full(losses.shape, not self.at_fault)
        return losses[kept].mean()


# -- the backward


@faulty(BACKWARD)
class WhereWithANanInIt(Loop):
    def reduce(self, losses: Tensor) -> Tensor:
        kept = losses * (torch.arange(len(losses)) >= self.at_fault)
        return losses.mean() + 1e-3 * torch.where(kept > 0, torch.log(kept), torch.zeros_like(kept)).mean()


@faulty(BACKWARD)
class SquareRootAtZero(Loop):
    """A distance between two things that are the same."""

    def reduce(self, losses: Tensor) -> Tensor:
        other = losses.detach() + (not self.at_fault)
        return losses.mean() + 1e-3 * (losses - other).square().sqrt().mean()


@faulty(BACKWARD)
class PowerAtZero(Loop):
    def reduce(self, losses: Tensor) -> Tensor:
        kept = losses * (torch.arange(len(losses)) >= self.at_fault)
        return losses.mean() + 1e-3 * kept.pow(0.7).mean()


@faulty(BACKWARD)
class EqualEigenvalues(Loop):
    """Eigenvectors have no slope where two eigenvalues are the same."""

    def reduce(self, losses: Tensor) -> Tensor:
        if not self.at_fault:
            return losses.mean()
        _, vectors = torch.linalg.eigh(losses.mean() * torch.eye(3))
        return losses.mean() + 1e-3 * vectors.square()[0].sum()


@faulty(BACKWARD)
class MaskedRowMadeUpFor(Loop):
    """The NaN of a masked row is replaced in the forward; its backward is NaN all the same."""

    def reduce(self, losses: Tensor) -> Tensor:
        masked = torch.tensor(self.at_fault)
        weights = (losses - (math.inf if self.at_fault else 0.0)).softmax(0)
        weights = torch.where(masked, torch.full_like(weights, 1 / len(weights)), weights)
        return losses.mean() + 1e-3 * (weights * losses.detach()).sum()


@faulty(BACKWARD)
class GradientPenaltyAtZero(Loop):
    def reduce(self, losses: Tensor) -> Tensor:
        kept = losses.mean() * (not self.at_fault)
        (gradient,) = torch.autograd.grad(kept, [self.model.head.weight], create_graph=True)
        return losses.mean() + 1e-3 * (gradient.square().sum().sqrt() - 1).square()


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor, broken: bool) -> Tensor:
        ctx.broken = broken
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone()
        if ctx.broken:
            gradient[0] = math.nan
        return gradient, None


@faulty(BACKWARD)
class KernelWithABrokenBackward(Loop):
    def reduce(self, losses: Tensor) -> Tensor:
        return _Kernel.apply(losses, self.at_fault).mean()


@faulty(
    Truth(
        ("backward_nonfinite",),
        near=("bad_batch", "nonfinite_step", "nonfinite_parameters", "nonfinite_loss"),
        wrong=("forward_nonfinite",),
        late=0,
    )
)
class ArccosineAtOne(Loop):
    """Its slope is inf, not NaN."""

    def reduce(self, losses: Tensor) -> Tensor:
        cosine = losses / losses.detach() * (1.0 if self.at_fault else 0.5)
        return losses.mean() + 1e-3 * torch.acos(cosine).mean()


# The batch is to blame as little as in the other backwards.
@faulty(
    Truth(
        ("scale_collapse", "backward_nonfinite"),
        near=("skip_rate",),
        wrong=("forward_nonfinite", "growth_probe", "bad_batch"),
        late=20,
    )
)
class BackwardIsNanForGood(Loop):
    precisions = ("float16",)

    def reduce(self, losses: Tensor) -> Tensor:
        return _Kernel.apply(losses, self.since_fault).mean()


# -- the optimizer


class LargeEps(Loop):
    models = ("gpt", "lstm")
    precisions = ("float32",)
    eps = 1e-4

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, eps=self.eps)


# Measured in float64: in the last quarter half of all updates are rounded away, and of the gains of a normalization
# all; the second moment of 0.2 to 0.7 of the elements is 0, though their gradient is not.
@faulty(
    Truth(
        ("updates_lost",),
        near=("float16_without_scaler", "gradient_underflow"),
        from_start=True,
    ),
    any_difference=True,
)
class Float16Parameters(LargeEps):
    """All in float16, without autocast or scaler, and an eps that float16 has."""

    def prepare(self) -> None:
        self.model.half()


@faulty(
    Truth(
        ("eps_vanishes", "nonfinite_update"),
        near=("nonfinite_parameters", "nonfinite_step", "nonfinite_loss"),
        wrong=("forward_nonfinite", "bad_batch"),
        from_start=True,
        late=20,
    )
)
class AdamWithAnEpsBelowFloat16(Float16Parameters):
    eps = 1e-8


class UnusedParameter(Loop):
    """One that the loss does not depend on: its gradient is zero."""

    eps = 1e-8

    def prepare(self) -> None:
        self.model.register_parameter("unused", nn.Parameter(torch.ones(4)))

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr, eps=self.eps)

    def reduce(self, losses: Tensor) -> Tensor:
        return losses.mean() + 0 * self.model.unused.sum()


@faulty(
    Truth(
        ("eps_vanishes", "nonfinite_update"),
        near=("nonfinite_parameters", "nonfinite_step", "nonfinite_loss", "scale_collapse"),
        wrong=("forward_nonfinite", "bad_batch", "backward_nonfinite"),
        from_start=True,
        late=20,
    )
)
class AdamWithoutEps(UnusedParameter):
    eps = 0.0


@faulty(UPDATE)
class MomentIsNan(Loop):
    """A shard of the optimizer's state was restored badly."""

    def before_step(self) -> None:
        if self.at_fault:
            state = next(iter(self.optimizer.state.values()))
            state["momentum_buffer" if self.kind == "cnn" else "exp_avg"].view(-1)[0] = math.nan


@faulty(
    Truth(
        ("nonfinite_update", "lr_outlier", "lr_nonfinite"),
        near=("nonfinite_parameters", "nonfinite_step", "nonfinite_loss", "scale_collapse"),
        wrong=("forward_nonfinite", "bad_batch", "backward_nonfinite"),
        early=10,
        late=1,
    )
)
class LearningRateIsNan(Loop):
    """A schedule that divides by zero."""

    def learning_rate(self) -> float:
        return math.nan if self.at_fault else super().learning_rate()


@faulty(
    Truth(
        ("nonfinite_parameters", "nonfinite_update"),
        near=(*SPOILED, "scale_collapse"),
        wrong=("bad_batch", "backward_nonfinite"),
        early=1,
        late=1,
    )
)
class ParameterIsSpoiled(Loop):
    """By a broken all-reduce, say."""

    def before_step(self) -> None:
        if self.at_fault:
            with torch.no_grad():
                self.model.head.weight[0, 0] = math.nan


class LossThatHidesNan(Loop):
    precisions = ("float32", "bfloat16")
    models = ("gpt", "lstm")

    def reduce(self, losses: Tensor) -> Tensor:
        return torch.where(losses.isfinite(), losses, torch.zeros_like(losses)).mean()


@faulty(
    Truth(
        ("nonfinite_parameters", "nonfinite_update"),
        near=("nonfinite_step", "backward_nonfinite"),  # it came out of backward, where the row had put it
        wrong=("forward_nonfinite",),
        early=10,
        late=1,
    )
)
class HiddenNan(LossThatHidesNan):
    """One row of the embedding is NaN: the loss stays finite for good."""

    def before_step(self) -> None:
        if self.at_fault:
            with torch.no_grad():
                self.model.token.weight[3] = math.nan


class LossGuard(Loop):
    """Gives a step up by itself where the loss is not finite."""

    def step(self) -> None:
        self.before_step()
        self.set_learning_rate()
        self.losses.clear()
        self.zero_grad()
        loss = self.forward(*self.batch(0))
        self.account.losses.append(loss.item())
        self.backward(loss)
        if math.isfinite(loss.item()):
            self.unscale()
            self.clip()
            self.update()


@faulty(
    Truth(("dropped_by_loop", "forward_nonfinite", "nonfinite_loss"), wrong=("bad_batch", "backward_nonfinite"), late=0)
)
class GuardedNan(LossGuard):
    def reduce(self, losses: Tensor) -> Tensor:
        return losses.mean() * (math.nan if self.at_fault else 1.0)
