"""What a training loop can be watched by: nothing, tbnum, and what people use where they do not have it."""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

import tbnum

__all__ = [
    "DEFAULTS",
    "EVERYTHING",
    "MAX_NORM",
    "AddHistogram",
    "AddLossAndNorm",
    "AddScalar",
    "ItemNorms",
    "Kind",
    "Tbnum",
    "WandbWatch",
    "Watch",
    "hold_still",
]

MAX_NORM = 1.0
DEFAULTS = {"scalar_interval": 10, "tensor_interval": 50, "histogram_interval": 1000}
EVERYTHING = {"scalar_interval": 1, "tensor_interval": 10, "histogram_interval": 100}

Kind = tuple[bool, ...]
"""Which of a watch's intervals are due at a step. Steps of one kind cost the same."""


class Watch:
    """Watches nothing: the bare loop. Others attach to the same model and optimizer, and leave them as they were."""

    name = "bare loop"

    def attach(self, training: Any, folder: Path) -> None: ...
    def detach(self) -> None: ...
    def close(self) -> None: ...

    # -- called by the loop

    def lost(self, loss: Tensor) -> None: ...
    def clipped(self, total_norm: Tensor) -> None: ...
    def stepped(self, loss: Tensor, total_norm: Tensor) -> None: ...

    # -- steps do not all cost the same

    def shares(self) -> dict[Kind, float]:
        """Which kinds of steps there are in a long run, and how many of all steps each makes up."""
        return {(): 1.0}

    def next_is(self, kind: Kind) -> None:
        """The next step will be one of this kind: what lies between is left out."""


class Tbnum(Watch):
    def __init__(self, name: str = "tbnum, defaults", intervals: Mapping[str, int] = DEFAULTS) -> None:
        self.name = name
        self._intervals = dict(intervals)
        self._monitor: tbnum.Monitor | None = None

    def attach(self, training: Any, folder: Path) -> None:
        # The defaults are left to tbnum: were they changed, it should be seen in the figures.
        given: dict[str, Any] = {} if self._intervals == DEFAULTS else self._intervals
        self._monitor = tbnum.wrap(
            training.optimizer, training.scaler, model=training.model, logdir=folder, verbose=False, **given
        )

    def detach(self) -> None:
        assert self._monitor is not None
        steps, dropped = self._monitor.step, self._monitor._recorder._log.dropped
        self._monitor.close()
        assert steps and not dropped, f"tbnum did not record what it was timed at: {steps} steps, {dropped}"
        self._monitor = None

    def flush(self) -> None:
        assert self._monitor is not None
        self._monitor.flush()

    def shares(self) -> dict[Kind, float]:
        cycle = math.lcm(*self._intervals.values())
        counted = Counter(self._kind(step) for step in range(cycle))
        return {kind: count / cycle for kind, count in counted.most_common()}

    def next_is(self, kind: Kind) -> None:
        assert self._monitor is not None
        observer = self._monitor._observer
        while self._kind(observer.next_step) != kind:
            observer.next_step += 1

    def _kind(self, step: int) -> Kind:
        return tuple(step % interval == 0 for interval in self._intervals.values())


class AddScalar(Watch):
    """The global values alone, each step: what one writes by hand."""

    name = "SummaryWriter.add_scalar, same values each step"

    def attach(self, training: Any, folder: Path) -> None:
        self._training = training
        self._writer = SummaryWriter(str(folder))
        self._step = 0

    def detach(self) -> None:
        self._writer.close()

    def stepped(self, loss: Tensor, total_norm: Tensor) -> None:
        norm = total_norm.item()
        coefficient = min(1.0, MAX_NORM / (norm + 1e-6))
        values = {
            "loss": loss.item(),
            "grad_norm": norm,
            "grad_norm_clipped": norm * coefficient,
            "clip_coef": coefficient,
            "lr": self._training.optimizer.param_groups[0]["lr"],
        }
        if self._training.scaler is not None:
            values["loss_scale"] = self._training.scaler.get_scale()
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, self._step)
        self._step += 1


class AddLossAndNorm(Watch):
    """Two values a step by hand, where the loop has no norm also the pass that takes it."""

    name = "add_scalar of loss and norm"

    def attach(self, training: Any, folder: Path) -> None:
        self._parameters = list(training.model.parameters())
        self._writer = SummaryWriter(str(folder))
        self._step = 0

    def detach(self) -> None:
        self._writer.close()

    def stepped(self, loss: Tensor, total_norm: Tensor | None) -> None:
        if total_norm is None:
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            total_norm = nn.utils.get_total_norm(gradients)
        self._writer.add_scalar("loss", loss.item(), self._step)
        self._writer.add_scalar("grad_norm", total_norm.item(), self._step)
        self._step += 1


class AddHistogram(Watch):
    name = "add_histogram of each gradient, each step"

    def attach(self, training: Any, folder: Path) -> None:
        self._named = list(training.model.named_parameters())
        self._writer = SummaryWriter(str(folder))
        self._step = 0

    def detach(self) -> None:
        self._writer.close()

    def stepped(self, loss: Tensor, total_norm: Tensor) -> None:
        for name, parameter in self._named:
            assert parameter.grad is not None
            self._writer.add_histogram(name, parameter.grad, self._step)
        self._step += 1


class ItemNorms(Watch):
    """Gradient, parameter and update norms of each parameter by `.item()`, in a dict: what many callbacks do."""

    name = "norms of each parameter by .item(), each step"

    def attach(self, training: Any, folder: Path) -> None:
        self._named = list(training.model.named_parameters())
        self.norms: dict[str, float] = {}

    def clipped(self, total_norm: Tensor) -> None:
        self._before = {name: parameter.detach().clone() for name, parameter in self._named}
        for name, parameter in self._named:
            assert parameter.grad is not None
            self.norms[f"{name}.grad"] = parameter.grad.norm().item()

    def stepped(self, loss: Tensor, total_norm: Tensor) -> None:
        for name, parameter in self._named:
            self.norms[f"{name}.param"] = parameter.detach().norm().item()
            self.norms[f"{name}.update"] = (parameter.detach() - self._before[name]).norm().item()


class WandbWatch(Watch):
    """Offline: nothing leaves the machine. `watch(log="gradients")`, wandb's default."""

    name = "wandb.watch(log_freq=1), offline"

    @staticmethod
    def installed() -> bool:
        return importlib.util.find_spec("wandb") is not None

    def __init__(self) -> None:
        self._run: Any = None

    def attach(self, training: Any, folder: Path) -> None:
        import wandb

        if self._run is None:  # starting one takes seconds
            folder.mkdir(parents=True, exist_ok=True)
            # Of the machine's load it would take samples all the time, also while others are timed.
            settings = wandb.Settings(mode="offline", silent=True, console="off", x_disable_stats=True)
            self._run = wandb.init(dir=str(folder), project="benchmark", settings=settings)
        self._model = training.model
        self._run.watch(self._model, log_freq=1)

    def detach(self) -> None:
        self._run.unwatch(self._model)
        time.sleep(0.3)  # what its process still has to do

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None

    def stepped(self, loss: Tensor, total_norm: Tensor) -> None:
        self._run.log({"loss": loss.item(), "grad_norm": total_norm.item()})


# Before wandb is imported: no account, no network, no reports of errors.
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")


def hold_still() -> None:
    """Before a block: what earlier ones left to collect is not this one's."""
    gc.collect()
