"""Small real training loops for the tests: they really overflow, on any CPU, within milliseconds.

The matmuls of `Half` run in float16, so that a scaled gradient beyond 65504 becomes inf there, as under autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p, **k: torch.optim.SGD(p, lr=1e-2, momentum=0.9, **k),
    "Adam": lambda p, **k: torch.optim.Adam(p, lr=1e-3, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, lr=1e-3, **k),
    "Adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=1e-2, **k),
    "Adadelta": lambda p, **k: torch.optim.Adadelta(p, **k),
    "Adafactor": lambda p, **k: torch.optim.Adafactor(p, **k),
    "Adamax": lambda p, **k: torch.optim.Adamax(p, **k),
    "ASGD": lambda p, **k: torch.optim.ASGD(p, **k),
    "NAdam": lambda p, **k: torch.optim.NAdam(p, **k),
    "RAdam": lambda p, **k: torch.optim.RAdam(p, **k),
    "RMSprop": lambda p, **k: torch.optim.RMSprop(p, lr=1e-3, **k),
    "Rprop": lambda p, **k: torch.optim.Rprop(p, lr=1e-3, **k),
}
if hasattr(torch.optim, "Muon"):
    OPTIMIZERS["Muon"] = lambda p, **k: torch.optim.Muon([each for each in p if each.ndim == 2], **k)
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


class Half(nn.Module):
    """A small network whose products are taken in float16."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.second = nn.Parameter(torch.randn(width, 1) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(x.half() @ self.first.half())
        return (hidden @ self.second.half()).float() + self.bias


def batches(steps: int, *, seed: int = 1, size: int = 16, width: int = 8, bad: Sequence[int] = ()) -> list[Tensor]:
    """`steps` batches (size, width); those in `bad` are far too large for their scaled gradient to fit float16."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(size, width, generator=generator) for _ in range(steps)]
    for at in bad:
        made[at] = made[at] * 3e4
    return made


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
    data: Sequence[Tensor],
    *,
    max_norm: float | None = None,
    unscale: bool = False,
    accumulate: int = 1,
    log_loss: Callable[[Tensor], None] | None = None,
    after_step: Callable[[int], Any] = lambda step: None,
) -> list[float]:
    """One update for each `accumulate` batches; returns the loss of each step."""
    losses = []
    for step in range(len(data) // accumulate):
        total = 0.0
        for micro in range(accumulate):
            loss = model(data[step * accumulate + micro]).square().mean() / accumulate
            total += loss.item()
            if log_loss is not None:
                log_loss(loss)
            (loss if scaler is None else scaler.scale(loss)).backward()
        losses.append(total)
        if scaler is not None and (unscale or max_norm is not None):
            scaler.unscale_(optimizer)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        after_step(step)
    return losses


def float64_norm(parameters: Any) -> float:
    """Global 2-norm of the gradients, taken in float64, independently of tbnum."""
    total = 0.0
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
            gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
            total += gradient.double().square().sum().item()
    return total**0.5
