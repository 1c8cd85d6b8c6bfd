"""A training loop as users write it, into whose parts a test plants a fault; its models differ in kind and precision.

Steps take about a millisecond. `Loop` trains within `with`; `run_of` reads what it left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tbnum

__all__ = ["MODELS", "Loop", "run_of"]

CLASSES, WIDTH, SIZE = 5, 12, 16
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class Recurrent(nn.Module):
    """A gated cell written out, over 6 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, WIDTH)
        self.gate, self.state = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed((x[:, :6].abs() * 4).long().clamp(max=9))
        hidden = torch.zeros_like(tokens[:, 0])
        for at in range(tokens.shape[1]):
            both = torch.cat([tokens[:, at], hidden], 1)
            gate = torch.sigmoid(self.gate(both))
            hidden = gate * hidden + (1 - gate) * torch.tanh(self.state(both))
        return self.head(hidden)


class Attending(nn.Module):
    """Torch's own encoder layer over 4 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Linear(WIDTH // 4, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.token(x.unflatten(1, (4, -1)))).mean(1))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * WIDTH, CLASSES),
    )  # fmt: skip


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, CLASSES)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "recurrent": Recurrent,
    "attending": Attending,
    "convolutional": convolutional,
    "perceptron": perceptron,
}


class Loop:
    """Trains one of `MODELS` on batches that are the same for a seed; float16 comes with a GradScaler."""

    def __init__(
        self,
        logdir: Path,
        model: str | nn.Module = "perceptron",
        precision: str = "float32",
        *,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        scale: float = 2.0**12,
        growth_interval: int = 2000,
        max_norm: float | None = None,
        seed: int = 0,
        verbose: bool = False,
        **options: Any,
    ) -> None:
        torch.manual_seed(seed)
        self.model = MODELS[model]() if isinstance(model, str) else model
        self.precision, self.max_norm, self.seed = precision, max_norm, seed
        make = optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=2e-3))
        self.optimizer = make(list(self.model.parameters()))
        self.scaler = None
        if precision == "float16":
            self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
        self.pattern = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(99))
        self.logdir = logdir
        self.monitor = tbnum.wrap(
            self.optimizer, self.scaler, model=self.model, logdir=logdir, verbose=verbose, **options
        )
        self.losses: list[float] = []

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *error: Any) -> None:
        self.monitor.__exit__(*error)

    @property
    def now(self) -> int:
        return self.monitor.step

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        targets = torch.randint(CLASSES, (SIZE,), generator=generator)
        return self.pattern[targets] + 1.5 * torch.randn(SIZE, WIDTH, generator=generator), targets

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision not in TYPES:
            return contextlib.nullcontext()
        return torch.autocast("cpu", TYPES[self.precision])

    def outputs(self, x: Tensor) -> Tensor:
        with self.autocast():
            return self.model(x)

    def loss(self, index: int) -> Tensor:
        x, targets = self.batch(index)
        return F.cross_entropy(self.outputs(x).float(), targets)

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        self.monitor.log_loss(loss.detach()) if self.scaler is None else None

    def update(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def step(self, change: Callable[[Tensor], Tensor] = lambda loss: loss) -> None:
        """One update; `change` makes another loss of it."""
        loss = change(self.loss(self.now))
        self.losses.append(loss.item())
        self.optimizer.zero_grad()
        self.backward(loss)
        self.update()

    def steps(self, count: int, change: Callable[[Tensor], Tensor] = lambda loss: loss) -> None:
        for _ in range(count):
            self.step(change)


def run_of(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run
