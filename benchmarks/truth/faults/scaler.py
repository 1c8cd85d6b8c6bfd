"""What goes wrong around autocast and the GradScaler."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from benchmarks.truth.corpus import faulty
from benchmarks.truth.faults.gradients import Accumulating, _Louder
from benchmarks.truth.faults.nonfinite import SPOILED
from benchmarks.truth.loop import PRECISIONS, Loop
from benchmarks.truth.models import cross_entropy
from benchmarks.truth.verdict import Truth


class Half(Loop):
    precisions = ("float16",)


class SteadyScale(Half):
    growth_interval = 2000


class UnscaledByItsStep(Half):
    max_norm = None

    def unscale(self) -> None:
        pass


@faulty(Truth(("step_bypassed_scaler",), near=(*SPOILED, "scale_collapse"), late=2), any_difference=True)
class StepPastTheScaler(Half):
    def update(self) -> None:
        if not self.since_fault:
            super().update()
            return
        self.optimizer.step()
        self.scaler.update()


@faulty(Truth(("update_missing",), near=("crash",), late=2), any_difference=True)
class UpdateIsMissing(UnscaledByItsStep):
    def update(self) -> None:
        if self.since_fault:
            self.scaler.step(self.optimizer)
        else:
            super().update()


@faulty(
    Truth(("loss_not_scaled",), near=("norm_level", "gradient_underflow", "dead_tensor"), late=2),
    any_difference=True,
)
class LossIsNotScaled(Half):
    def backward(self, loss: Tensor) -> None:
        if self.since_fault:
            loss.backward()
        else:
            super().backward(loss)


@faulty(Truth(("unscale_in_accumulation",), from_start=True, late=2), any_difference=True)
class UnscaleInTheAccumulation(Accumulating):
    precisions = ("float16",)

    def micro_batch(self, micro: int) -> None:
        super().micro_batch(micro)
        if micro == 1:
            self.scaler.unscale_(self.optimizer)

    def unscale(self) -> None:
        pass


@faulty(Truth(("backward_under_autocast",), from_start=True, late=2), any_difference=True)
class BackwardUnderAutocast(Loop):
    precisions = ("float16", "bfloat16")

    def backward(self, loss: Tensor) -> None:
        with self.autocast():
            super().backward(loss)


@faulty(
    # Its scaler, where it has one, is for float16, as it should be.
    Truth(("loss_low_precision",), from_start=True, late=2),
    any_difference=True,
)
class LossInLowPrecision(Loop):
    precisions = ("float16", "bfloat16")

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            outputs = self.outputs(inputs).to(PRECISIONS[self.precision])
            right = torch.nn.functional.one_hot(targets, outputs.shape[-1])
            return -((outputs - outputs.exp().sum(-1, keepdim=True).log()) * right).sum(-1).mean()


@faulty(Truth(("float16_gradients",), near=("crash", "no_steps"), from_start=True, late=2))
class ParametersInFloat16(Half):
    models = ("gpt", "lstm")

    def prepare(self) -> None:
        self.model.half()


@faulty(
    Truth(("bfloat16_with_scaler", "scaler_without_float16"), near=("scale_extreme", "skip_rate"), from_start=True),
    any_difference=True,
)
class ScalerWithBfloat16(Loop):
    precisions = ("bfloat16",)

    def make_scaler(self) -> torch.amp.GradScaler | None:
        return torch.amp.GradScaler("cpu", init_scale=self.init_scale, growth_interval=4)


@faulty(
    Truth(
        ("float16_without_scaler", "gradient_underflow"),
        near=("dead_tensor", "update_ratio_low"),
        least="info",
        from_start=True,
    ),
    any_difference=True,
)
class Float16WithoutScaler(Half):
    def make_scaler(self) -> torch.amp.GradScaler | None:
        return None


@faulty(
    Truth(("scale_extreme",), near=("scale_collapse", "scale_set", "skip_rate"), wrong=("bad_batch",), late=2),
    any_difference=True,
)
class ScaleIsInfinite(Half):
    def before_step(self) -> None:
        if self.at_fault:
            self.scaler.update(math.inf)


# The scale comes down to one that holds, and does not collapse.
@faulty(Truth(("scale_extreme",), near=("scale_set", "scale_warmup", "skip_rate"), wrong=("bad_batch",), late=2))
class ScaleIsHuge(Half):
    def before_step(self) -> None:
        if self.at_fault:
            self.scaler.update(2.0**112)


@faulty(
    Truth(
        ("scale_below_one", "gradient_underflow"),
        near=("scale_set", "dead_tensor", "gradients_zero"),
        early=10,
        late=20,
    ),
    any_difference=True,
)
class ScaleIsTiny(SteadyScale):
    def before_step(self) -> None:
        if self.at_fault:
            self.scaler.update(2.0**-24)


@faulty(Truth(("skip_rate", "growth_probe"), least="info", from_start=True))
class GrowthAtEveryStep(Half):
    growth_interval = 1


@faulty(
    Truth(
        ("headroom_running_out", "scale_below_one", "scale_falls", "exploding_tensor", "norm_level"),
        near=("skip_rate", "bad_batch"),
        early=50,
    )
)
class ScaleFallsForGrowingGradients(SteadyScale):
    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            outputs = self.outputs(inputs)
        factor = 1.06 ** max(0, self.now - self.begin)
        return self.reduce(cross_entropy(_Louder.apply(outputs.half(), factor), targets))


@faulty(
    Truth(
        ("bad_batch",),
        near=("skip_rate", "unknown"),
        wrong=("growth_probe", "forward_nonfinite", "backward_nonfinite"),  # the gradients are inf before they are NaN
        late=0,
    )
)
class SampleWeightOverflowsFloat16(SteadyScale):
    """A batch whose finite loss is a million times the usual, at a scale that had held."""

    def reduce(self, losses: Tensor) -> Tensor:
        return losses.mean() * (1e6 if self.at_fault else 1.0)
