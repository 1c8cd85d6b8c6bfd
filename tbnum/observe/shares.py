"""Which samples of a batch make most of its loss and of its gradient, by leaving them out in turns.

A sample is left out by another one in its row, so that the batch keeps its size and every row its random numbers. Where
the loss is a sum or a mean over the samples, what is missing then is exact; where samples act on each other (batch
normalization, contrastive losses) it is what the batch would have been without it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["MeasuredRun", "SampleShare", "rank_samples"]

MOST_RUNS = 64  # beside four for each halving of the batch


@dataclass(frozen=True)
class SampleShare:
    """What one sample makes of its batch. All shares of a batch add up to 1; one that pulls against it is negative."""

    sample: int
    """Its row in the batch."""

    loss: float
    """Of the loss; NaN where that is 0 or was not seen."""

    grad_norm: float
    """Of the length of the gradient: how far the sample's own gradient goes along the batch's, whose parts add up."""

    @property
    def largest(self) -> float:
        known = [share for share in (self.loss, self.grad_norm) if share == share]
        return max(known, default=-math.inf)


class _Sum(NamedTuple):
    """Of loss and gradient, over some samples."""

    loss: float
    grad_norm: float

    def plus(self, other: _Sum, times: float = 1.0) -> _Sum:
        return _Sum(self.loss + times * other.loss, self.grad_norm + times * other.grad_norm)


def rank_samples(size: int, measure: Callable[[Sequence[int]], tuple[float, float]]) -> tuple[SampleShare, ...]:
    """The samples by their share, largest first; of a large batch those alone whose share may be among the largest.

    `measure`: loss, and gradient along that of the whole batch, of a batch made of these rows of it; as shares of the
    whole batch's. It is called `MOST_RUNS` times and some; up to that many samples, each has a share of its own.
    """
    whole = list(range(size))
    if size == 1:
        return (SampleShare(0, 1.0, 1.0),)

    def above(group: Sequence[int], stand_in: int) -> _Sum:
        """The sum of a group's shares above so many times that of the sample that stands in for it."""
        chosen = set(group)
        loss, grad_norm = measure([stand_in if row in chosen else row for row in whole])
        return _Sum(1 - loss, 1 - grad_norm)

    first, second = whole[: size // 2], whole[size // 2 :]
    one, other = first[0], second[-1]  # each stands in for the half that it is not of
    of_first, of_second, apart = above(first, other), above(second, one), above([one], other)
    total = _Sum(1.0, 1.0).plus(of_first, -1).plus(of_second, -1).plus(apart, -len(second))
    own = _Sum(total.loss / size, total.grad_norm / size)  # the share of `other`
    left = MOST_RUNS + 4 * math.ceil(math.log2(size)) - 3
    found: list[SampleShare] = []
    heap: list[tuple[float, list[int], _Sum]] = []

    def put(group: list[int], shares: _Sum) -> None:
        if len(group) == 1:
            found.append(SampleShare(group[0], *shares))
        else:
            known = [share for share in shares if share == share]
            heapq.heappush(heap, (-max(known, default=0.0), group, shares))

    put(first, of_first.plus(own, len(first)))
    put(second, of_second.plus(own.plus(apart), len(second)))
    while heap and left > 0:
        left -= 1
        _, group, shares = heapq.heappop(heap)
        part, rest = group[: len(group) // 2], group[len(group) // 2 :]
        of_part = above(part, other).plus(own, len(part))  # `other` is the last of any group that it is in
        put(part, of_part)
        put(rest, shares.plus(of_part, -1))
    return tuple(sorted(found, key=lambda share: (-share.largest, share.sample)))


class MeasuredRun:
    """The sum of what backwards begin with, and their gradients, before anybody clips or unscales them."""

    def __init__(self, parameters: Iterable[Tensor], along: Sequence[Tensor | None] | None = None) -> None:
        self._parameters = list(parameters)
        self._along = along
        self.loss = 0.0
        self.gradients: list[Tensor | None] = []  # of the parameters, where there is nothing to hold them against
        self.product = 0.0  # else with those

    @contextmanager
    def watching(self) -> Iterator[None]:
        engine = torch.autograd._engine_run_backward

        def run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            result = engine(outputs, *args, **kwargs)
            if kwargs.get("accumulate_grad") and torch._C._current_graph_task_id() == -1:
                self._ran(outputs, args[0] if args else None)
            return result

        torch.autograd._engine_run_backward = run_backward  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.autograd._engine_run_backward = engine

    @torch.no_grad()
    def _ran(self, outputs: Sequence[Any], factors: Any) -> None:
        factors = factors if isinstance(factors, (tuple, list)) else [None] * len(outputs)
        for output, factor in zip(outputs, factors, strict=True):
            if isinstance(output, Tensor):
                value = output.double()
                self.loss += float((value if factor is None else value * factor).sum())
        gradients = [parameter.grad for parameter in self._parameters]
        if self._along is None:
            self.gradients = [None if gradient is None else _dense(gradient).clone() for gradient in gradients]
            self.product = _product(self.gradients, self.gradients)
        else:
            self.product = _product(gradients, self._along)


def _dense(gradient: Tensor) -> Tensor:
    return gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()


def _product(first: Iterable[Tensor | None], second: Iterable[Tensor | None]) -> float:
    pairs = [(one, other) for one, other in zip(first, second, strict=True) if one is not None and other is not None]
    return sum(float((_dense(one).double() * other.double()).sum()) for one, other in pairs)
