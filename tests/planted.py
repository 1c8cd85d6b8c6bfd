"""Small models with a fault planted in one of their modules, for the tests of what finds it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class HalfLinear(nn.Module):
    """A product in float16."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (x.half() @ self.weight.half()).float()


class Log(nn.Module):
    """log of what a ReLU left: -inf where it left 0. The mean over the features makes it NaN or inf."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(torch.relu(x))


class LogWhere(nn.Module):
    """Finite in the forward; its backward is 0 * inf = NaN."""

    def forward(self, x: Tensor) -> Tensor:
        positive = (x > 0) * x
        return torch.where(positive > 0, torch.log(positive), torch.zeros_like(x))


class _Louder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (gradient.half() * ctx.factor).to(gradient.dtype), None


class Louder(nn.Module):
    """The identity, whose backward multiplies by `factor` in float16."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return _Louder.apply(x, self.factor)


class Block(nn.Module):
    """Residual, with normalization, dropout and one planted module in the middle; returns a dict, to be nested."""

    def __init__(self, width: int, planted: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.inner = planted or nn.Linear(width, width)
        self.drop = nn.Dropout(0.3)
        self.out = HalfLinear(width)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"hidden": (x + self.out(self.drop(self.inner(self.norm(x)))), None)}


class Net(nn.Module):
    def __init__(self, width: int = 8, blocks: int = 4, planted: nn.Module | None = None, at: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, planted if number == at else None) for number in range(blocks))
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)["hidden"][0]
        return self.head(x)
