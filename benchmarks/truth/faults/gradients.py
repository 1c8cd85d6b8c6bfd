"""Gradients that do not arrive, arrive twice, or arrive at another size; clipping."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from benchmarks.truth.corpus import faulty
from benchmarks.truth.faults.learning_rate import CURVE, THROWN, PlainMomentum
from benchmarks.truth.faults.nonfinite import SPOILED
from benchmarks.truth.loop import Loop
from benchmarks.truth.verdict import Truth

NEVER = Truth(("no_gradient",), near=("dead_tensor", "update_ratio_low"), least="info", from_start=True)
KEPT_IN_FLOAT16 = ("unscale_in_accumulation", "scale_collapse", "skip_rate")
"""True of gradients that are kept under a scaler: they are unscaled already, and hold on to one overflow for good."""

# -- none


@faulty(NEVER, any_difference=True)
class DetachedBranch(Loop):
    def outputs(self, inputs: Tensor) -> Tensor:
        return self.model.head(self.model.features(inputs).detach())


@faulty(NEVER, any_difference=True)
class CheckpointOverFrozenInputs(Loop):
    """As LoRA on a frozen embedding: no input of the checkpoint needs a gradient, so nothing in it gets one."""

    def outputs(self, inputs: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.model.head(checkpoint(self.model.features, inputs, use_reentrant=True))


@faulty(Truth(("untrained_parameters",), from_start=True), any_difference=True)
class LayerLeftOutOfTheOptimizer(Loop):
    """The optimizer was made before the head was."""

    def parameters(self) -> list[torch.nn.Parameter]:
        head = {id(parameter) for parameter in self.model.head.parameters()}
        return [parameter for parameter in self.model.parameters() if id(parameter) not in head]


@faulty(
    Truth(("no_gradient", "dead_tensor"), near=("loss_rose", "norm_level", "update_ratio_low"), least="info", early=20),
    any_difference=True,
)
class FrozenByAccident(Loop):
    """An evaluation switches the body's gradients off, and not on again."""

    def before_step(self) -> None:
        if self.at_fault:
            head = {id(parameter) for parameter in self.model.head.parameters()}
            for parameter in self.model.parameters():
                parameter.requires_grad_(id(parameter) in head)


@faulty(
    Truth(("dead_tensor", "no_gradient"), near=("norm_level", "update_ratio_low"), least="info", early=50),
    any_difference=True,
)
class GradientsAreZeroed(Loop):
    def gradients_are_there(self) -> None:
        if self.since_fault:
            for parameter in self.parameters()[:-2]:
                parameter.grad.zero_()


@faulty(Truth(("no_gradients",), near=("no_gradient", "gradients_zero"), late=5), any_difference=True)
class LossOfAnotherModel(Loop):
    precisions = ("float32", "bfloat16")

    def backward(self, loss: Tensor) -> None:
        if self.since_fault:
            loss = (loss.detach() * torch.ones((), requires_grad=True)).mean()
        super().backward(loss)


@faulty(Truth(("dead_tensor",), near=("no_gradient", "loss_rose", "loss_spike", "norm_level"), early=50))
class DyingRelu(Loop):
    models = ("gpt", "cnn")

    def before_step(self) -> None:
        if self.at_fault:
            layer = self.model.fc if self.kind == "cnn" else self.model.blocks[0].up
            with torch.no_grad():
                layer.bias.fill_(-100)


# -- too many


@faulty(
    Truth(("gradients_not_zeroed",), near=("norm_level", "loss_rose", "loss_spike", *KEPT_IN_FLOAT16), late=20),
    any_difference=True,
)
class ZeroGradForgotten(Loop):
    def zero_grad(self) -> None:
        if not self.since_fault:
            super().zero_grad()


NEVER_ZEROED = Truth(
    ("gradients_not_zeroed",),
    near=("norm_level", "loss_rose", "loss_spike", *KEPT_IN_FLOAT16),
    from_start=True,
    late=20,
)


@faulty(NEVER_ZEROED, any_difference=True)
class ZeroGradNever(PlainMomentum):
    def zero_grad(self) -> None:
        pass


@faulty(NEVER_ZEROED, any_difference=True)
class ZeroGradOfAnotherModel(Loop):
    def zero_grad(self) -> None:
        torch.nn.Linear(2, 2).zero_grad()


@faulty(Truth(("step_without_backward",), from_start=True, late=20), any_difference=True)
class StepsTwice(Loop):
    precisions = ("float32", "bfloat16")

    def update(self) -> None:
        super().update()
        self.optimizer.step()


class Accumulating(Loop):
    accumulate = 4
    steps = 320


@faulty(Truth(("gradients_discarded",), least="info", from_start=True, late=20), any_difference=True)
class ZeroGradInTheAccumulation(Accumulating):
    """Adversarial training and a gradient a task look just like it, and are meant."""

    def micro_batch(self, micro: int) -> None:
        self.zero_grad()
        super().micro_batch(micro)


@faulty(
    Truth(
        ("losses_added_up", "losses_not_divided"),
        near=("clipped_always",),  # the norm has no other level: it was so from the start
        least="info",
        from_start=True,
    ),
    any_difference=True,
)
class AccumulationNotDivided(Accumulating):
    def micro_batch(self, micro: int) -> None:
        loss = self.forward(*self.batch(micro))
        self.losses.append(loss.item())
        self.backward(loss)


class Unclipped(PlainMomentum):
    max_norm = None


@faulty(
    Truth(("losses_added_up", "norm_level"), near=CURVE, late=150),
    any_difference=True,
)
class AccumulationBegins(Unclipped):
    """Four batches a step from there on, and no division by four."""

    def before_step(self) -> None:
        if self.at_fault:
            self.__dict__["accumulate"] = 4

    def micro_batch(self, micro: int) -> None:
        loss = self.forward(*self.batch(micro))
        self.losses.append(loss.item())
        self.backward(loss)


# -- of another size


@faulty(Truth(("norm_level",), near=CURVE, late=150), any_difference=True)
class GradientsTimes8ForGood(Unclipped):
    def gradients_are_there(self) -> None:
        if self.since_fault:
            for parameter in self.parameters():
                parameter.grad.mul_(8)


@faulty(Truth(("loss_rose", "loss_spike"), near=CURVE, late=150))
class SignOfTheGradientFlips(Loop):
    def gradients_are_there(self) -> None:
        if self.since_fault:
            for parameter in self.parameters():
                parameter.grad.neg_()


@faulty(
    Truth(
        ("grad_norm_spike", "exploding_norm", "loss_spike", "loss_rose"),
        near=(*THROWN, *SPOILED, "weights_grow", "update_ratio_low"),  # parameters are a thousand times as large
        words="gradient norm|clip",
        late=10,
    )
)
class GradientBurst(Unclipped):
    """Five steps whose gradients are 1,000 times too long, and no clipping."""

    def gradients_are_there(self) -> None:
        if 0 <= self.now - self.begin < 5:
            for parameter in self.parameters():
                parameter.grad.mul_(1000)


class _Louder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return features.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


@faulty(
    Truth(("update_ratio_low", "dead_tensor", "norm_level", "gradient_underflow"), near=("loss_rose",), early=50),
    any_difference=True,
)
class GradientVanishes(Unclipped):
    def outputs(self, inputs: Tensor) -> Tensor:
        return self.model.head(_Louder.apply(self.model.features(inputs), 1e-9 if self.since_fault else 1.0))


@faulty(
    Truth(
        ("norm_overflow",),
        near=(*THROWN, *SPOILED, "nonfinite_update", "weights_grow", "update_ratio_low"),
        late=0,
    )
)
class NormOverflows(Unclipped):
    precisions = ("float32",)

    def gradients_are_there(self) -> None:
        if self.at_fault:
            for parameter in self.parameters():
                parameter.grad.mul_(1e25)


@faulty(
    Truth(
        ("loss_rose", "loss_spike", "exploding_norm", "exploding_tensor"),
        near=CURVE,
        late=250,
    ),
)
class AttentionLogitsGrow(Loop):
    models = ("gpt",)

    def before_step(self) -> None:
        if self.since_fault:
            self.model.blocks[0].attention.temperature *= 1.08


# Beside such an embedding the rest of the model is nothing, and in float16 it is infinite.
@faulty(
    Truth(
        ("loss_rose", "loss_spike", "weights_grow"),
        near=(*THROWN, "exploding_tensor", "nonfinite_loss", "forward_nonfinite", "scale_collapse", "skip_rate"),
        late=250,
    )
)
class EmbeddingBlowsUp(Loop):
    models = ("gpt", "lstm")

    def before_step(self) -> None:
        if self.since_fault:
            with torch.no_grad():
                self.model.token.weight.mul_(1.1).clamp_(-1e6, 1e6)


@faulty(
    Truth(
        ("loss_rose", "loss_spike", "exploding_norm", "grad_norm_spike", "norm_level", "weights_grow"),
        near=(*CURVE, "update_ratio_low"),
        late=100,
    )
)
class RecurrenceExplodes(Unclipped):
    models = ("lstm",)

    def before_step(self) -> None:
        if self.since_fault:
            with torch.no_grad():
                self.model.recurrent.weight.mul_(1.1).clamp_(-1e4, 1e4)


# -- clipping


@faulty(Truth(("clipped_always",), near=("update_ratio_low",), least="info", from_start=True), any_difference=True)
class ClipTooTight(PlainMomentum):
    max_norm = 1e-5


@faulty(Truth(("max_norm_invalid",), near=CURVE, wrong=("clipped_always",), from_start=True))
class ClipIsNegative(Loop):
    max_norm = -1.0


@faulty(
    Truth(
        ("max_norm_invalid",),
        near=("update_ratio_low", "gradients_zeroed"),
        wrong=("clipped_always",),
        from_start=True,
    ),
    any_difference=True,
)
class ClipIsZero(Loop):
    max_norm = 0.0


@faulty(Truth(("clip_before_unscale",), near=("clipped_always",), from_start=True, late=2), any_difference=True)
class ClipBeforeUnscale(Loop):
    precisions = ("float16",)

    def unscale(self) -> None:
        pass
