"""State: checkpoints, buffers, moments, the type of the parameters."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.truth.corpus import faulty
from benchmarks.truth.loop import Account, Loop
from benchmarks.truth.models import make_task
from benchmarks.truth.verdict import Truth


class Resumed(Loop):
    """Stops at the step of the fault, and goes on in new objects from a checkpoint that has everything in it."""

    restored: tuple[str, ...] = ("model", "optimizer", "scaler", "monitor")

    def record(self, logdir: Path) -> Account:
        self.set_up()
        with self.wrap(logdir) as monitor:
            self.train(self.begin)
            checkpoint = self.checkpoint(monitor)
        torch.manual_seed(1000 + self.seed)
        self.model, _ = make_task(self.kind, self.seed)
        self.set_up()
        if "model" in self.restored:
            self.model.load_state_dict(checkpoint["model"])
        if "optimizer" in self.restored:
            self.optimizer.load_state_dict(checkpoint["optimizer"])
        if self.scaler is not None and "scaler" in self.restored:
            self.scaler.load_state_dict(checkpoint["scaler"])
        with self.wrap(logdir) as monitor:
            if "monitor" in self.restored:
                monitor.load_state_dict(checkpoint["monitor"])
            self.train(self.steps)
        self._balance()
        return self.account

    def checkpoint(self, monitor: Any) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler, "monitor": monitor}
        return {name: copy.deepcopy(part.state_dict()) for name, part in parts.items() if part is not None}


@faulty(
    Truth(("optimizer_state_lost",), near=("resume", "loss_spike", "loss_rose", "moments_reset"), late=20),
    any_difference=True,
)
class ResumedWithoutOptimizer(Resumed):
    restored = ("model", "scaler", "monitor")


# In float16 the scaler's state is lost as well.
@faulty(
    Truth(
        ("optimizer_state_lost",),
        near=("resume", "loss_spike", "loss_rose", "moments_reset", "scaler_state_lost"),
        late=20,
    ),
    any_difference=True,
)
class ResumedWithTheModelAlone(Resumed):
    restored = ("model",)


@faulty(
    Truth(("model_state_lost",), near=("loss_spike", "loss_rose", "norm_level", "resume"), late=20),
)
class ResumedWithoutModel(Resumed):
    restored = ("optimizer", "scaler", "monitor")


class ResumedHalf(Resumed):
    precisions = ("float16",)
    init_scale = 2.0**24


@faulty(Truth(("scaler_state_lost",), near=("scale_set", "scale_warmup", "skip_rate"), late=2), any_difference=True)
class ResumedWithoutScaler(ResumedHalf):
    restored = ("model", "optimizer", "monitor")


@faulty(Truth(("schedule_state_lost",), near=("lr_outlier", "resume"), late=2), any_difference=True)
class ResumedWithoutSchedule(Resumed):
    def learning_rate(self) -> float:
        if not self.since_fault:
            return super().learning_rate()
        now, self.now = self.now, self.now - self.begin
        try:
            return super().learning_rate()
        finally:
            self.now = now


@faulty(
    Truth(
        ("moments_reset", "optimizer_state_lost"),
        near=("loss_spike", "loss_rose", "grad_norm_spike", "norm_level", "weights_grow"),
        early=10,
        late=20,
    )
)
class SecondMomentZeroed(Loop):
    models = ("gpt", "lstm")

    def before_step(self) -> None:
        if self.at_fault:
            for state in self.optimizer.state.values():
                state["exp_avg_sq"].zero_()


@faulty(
    Truth(("moments_reset", "optimizer_state_lost"), near=("loss_spike", "loss_rose"), early=10, late=20),
    any_difference=True,
)
class OptimizerMadeAgain(Loop):
    """Its state is empty from there on."""

    def before_step(self) -> None:
        if self.at_fault:
            self.optimizer.state.clear()


@faulty(
    Truth(("nonfinite_buffers",), near=("forward_nonfinite", "nonfinite_loss"), wrong=("bad_batch",), early=1, late=60)
)
class BatchNormBuffersAreNan(Loop):
    """One batch has a NaN: its step is skipped, and the running statistics keep it."""

    models = ("cnn",)
    precisions = ("float16",)

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(micro)
        if self.at_fault:
            inputs[0, 0, 0, 0] = math.nan
        return inputs, targets


# A loss that is back at its first is worth a warning. That the parameters are the first again is its name.
@faulty(Truth(("loss_spike", "loss_rose", "model_state_lost"), near=("grad_norm_spike", "norm_level"), late=5))
class LayersInitializedAgain(Loop):
    def before_step(self) -> None:
        if self.at_fault:
            fresh, _ = make_task(self.kind, self.seed + 100)
            self.model.load_state_dict(fresh.state_dict())


class SmallSteps(Loop):
    """A learning rate that float32 has no trouble with."""

    models = ("gpt", "lstm")
    precisions = ("float32",)
    steps = 600
    lr = 1e-4


class SmallPlainSteps(SmallSteps):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


@faulty(
    Truth(("updates_lost", "update_ratio_low"), near=("dead_tensor",), from_start=True),
    any_difference=True,
)
class UpdatesRoundAwayInBfloat16(SmallPlainSteps):
    """Parameters in bfloat16, whose roundings are larger than most steps."""

    def prepare(self) -> None:
        self.model.bfloat16()
