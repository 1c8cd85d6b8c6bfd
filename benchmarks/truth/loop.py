"""A training loop as users write it, in parts. A fault overrides one of them; without it, it is its own twin."""

from __future__ import annotations

import json
import math
import zlib
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import tbnum
from benchmarks.truth.models import cross_entropy, make_task

__all__ = ["PRECISIONS", "Account", "Loop"]

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
VALIDATION = 1_000_000  # index of the first batch that is not trained on


@dataclass
class Account:
    """What a loop saw of itself, without tbnum."""

    losses: list[float] = field(default_factory=list)  # one a step
    skips: list[int] = field(default_factory=list)  # steps
    validation: float = math.nan  # loss at the end, in evaluation mode
    finite: bool = True  # parameters and buffers at the end
    weights: int = 0  # checksum at the end
    ended: str = ""  # the exception that ended it
    begin: int = -1  # step of the fault

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(path: Path) -> Account:
        return Account(**json.loads(path.read_text()))


class Loop:
    """Trains one of the models at one precision; float16 comes with a GradScaler."""

    models: ClassVar[tuple[str, ...]] = ("gpt", "cnn", "lstm")
    precisions: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")
    steps: ClassVar[int] = 480
    accumulate: ClassVar[int] = 1
    max_norm: ClassVar[float | None] = 1.0
    lr: ClassVar[float] = 3e-3
    momentum: ClassVar[float] = 0.9
    init_scale: ClassVar[float] = 2.0**14
    growth_interval: ClassVar[int] = 60
    options: ClassVar[dict[str, Any]] = {}  # of wrap

    def __init__(self, model: str, seed: int, precision: str) -> None:
        torch.manual_seed(seed)
        self.kind, self.seed, self.precision = model, seed, precision
        self.model, self.task = make_task(model, seed)
        self.now = 0  # step
        self.begin = 250 + zlib.crc32(f"{type(self).__name__} {model} {seed}".encode()) % 29  # step of the fault
        self.account = Account(begin=self.begin)
        self.losses: list[float] = []  # of the micro-batches of this step

    # -- set-up

    def prepare(self) -> None:
        """Before the optimizer is made."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        if self.kind == "cnn":
            return torch.optim.SGD(
                self.parameters(), lr=10 * self.lr, momentum=self.momentum, weight_decay=1e-4, foreach=True
            )
        lr = self.lr if self.kind == "gpt" else 3 * self.lr
        return torch.optim.AdamW(self.parameters(), lr=lr, betas=(self.momentum, 0.99), weight_decay=0.01, foreach=True)

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def make_scaler(self) -> torch.amp.GradScaler | None:
        if self.precision != "float16":
            return None
        return torch.amp.GradScaler("cpu", init_scale=self.init_scale, growth_interval=self.growth_interval)

    def wrap(self, logdir: Path) -> tbnum.Monitor:
        options = {"tensor_interval": 20, "scalar_interval": 100, **self.options}
        return tbnum.wrap(self.optimizer, self.scaler, model=self.model, logdir=logdir, **options)

    # -- the parts of a step

    def learning_rate(self) -> float:
        """As a share of `lr`: a warm-up, and then half a cosine down to a tenth."""
        if self.now < 20:
            return (self.now + 1) / 20
        return 0.55 + 0.45 * math.cos(math.pi * (self.now - 20) / (self.steps - 20))

    def set_learning_rate(self) -> None:
        share = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = share * group["initial_lr"]

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        return self.task.batch(self.now * self.accumulate + micro)

    def autocast(self) -> Any:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast("cpu", PRECISIONS[self.precision])

    def outputs(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)

    def reduce(self, losses: Tensor) -> Tensor:
        """(N,) of each prediction -> the loss."""
        return losses.mean()

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            outputs = self.outputs(inputs)
        return self.reduce(cross_entropy(outputs, targets))

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def micro_batch(self, micro: int) -> None:
        loss = self.forward(*self.batch(micro))
        self.losses.append(loss.item())
        self.backward(loss / self.accumulate)

    def gradients_are_there(self) -> None:
        """After the last backward, unscaled."""

    def unscale(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)

    def clip(self) -> None:
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters(), self.max_norm)

    def update(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
            return
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() < before:
            self.account.skips.append(self.now)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def before_step(self) -> None:
        pass

    def after_step(self) -> None:
        pass

    # -- all of them

    def step(self) -> None:
        self.before_step()
        self.set_learning_rate()
        self.losses.clear()
        self.zero_grad()
        for micro in range(self.accumulate):
            self.micro_batch(micro)
        self.unscale()
        self.gradients_are_there()
        self.clip()
        self.update()
        self.account.losses.append(sum(self.losses) / max(1, len(self.losses)))
        self.after_step()

    def train(self, until: int) -> None:
        while self.now < until:
            self.step()
            self.now += 1

    def set_up(self) -> None:
        self.optimizer = self.make_optimizer()
        for group in self.optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.scaler = self.make_scaler()

    def record(self, logdir: Path) -> Account:
        """Trains and records. An exception of the loop is part of what there is to see, and goes into the account."""
        self.prepare()
        self.set_up()
        monitor = self.wrap(logdir)
        try:
            self.train(self.steps)
        except (RuntimeError, ValueError) as error:
            self.account.ended = f"{type(error).__name__}: {error}"
        monitor.close()
        self._balance()
        return self.account

    def _balance(self) -> None:
        state = [value.detach() for value in self.model.state_dict().values() if value.is_floating_point()]
        self.account.finite = all(bool(value.isfinite().all()) for value in state)
        self.account.weights = 0
        for value in state:
            self.account.weights = zlib.crc32(value.float().numpy().tobytes(), self.account.weights)
        self.model.eval()
        with torch.no_grad():
            validation = [
                cross_entropy(self.model(inputs).float(), targets).mean().item()
                for inputs, targets in (
                    self.cast(*self.task.batch(VALIDATION + number, size=64)) for number in range(8)
                )
            ]
        self.account.validation = sum(validation) / len(validation)

    def cast(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """A batch in the type of the parameters."""
        kind = next(self.model.parameters()).dtype
        return (inputs.to(kind) if inputs.is_floating_point() else inputs), targets

    # -- for faults

    @property
    def at_fault(self) -> bool:
        """Whether this is the step of the fault."""
        return self.now == self.begin

    @property
    def since_fault(self) -> bool:
        return self.now >= self.begin
