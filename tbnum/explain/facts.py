"""What the record says of an event, as typed values, made once where an event enters: behind it nobody parses data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tbnum.explain.words import as_float
from tbnum.log.schema import LOGGED, Event

__all__ = ["Facts", "Known", "skips_of"]


@dataclass(frozen=True)
class Facts:
    """Facts of a failed step or of a change of the scale. Unknown is NaN or None, and so is what cannot be read."""

    loss: float
    loss_measured: bool  # a NaN in `loss` is what it was, and not unknown
    loss_follows_scale: bool  # a part of it was made of gradients that carried the scale
    losses: tuple[float, ...]  # of each micro-batch, where there were several
    micro_batches: float
    loss_scale: float  # which the step used
    old_scale: float
    new_scale: float  # after the update of the step
    grad_norm: float
    tensors: float  # gradients that there were
    nonfinite_tensors: float  # of them, those that held NaN or inf
    nonfinite_names: tuple[str, ...]
    nan: float  # elements of all gradients that were NaN
    inf: float
    largest_finite: float  # magnitude in any gradient, unscaled
    params_nonfinite: bool | None  # as looked at before the update
    dropped: bool  # the loop gave the attempt up by itself
    where: str  # place in the user's code; "" where unknown
    inferred: bool  # from scalars; no tbnum was there
    how: str  # it was inferred, or a resume was recognised
    at_least: int  # skipped steps that the event stands for
    halvings: int  # skips if each of them halved the scale, as is likely and not known. 0: no more than known
    within: int  # steps in which it may have happened, its own included

    @staticmethod
    def of(data: Mapping[str, Any]) -> Facts:
        loss, micro_batches = as_float(data.get("loss")), as_float(data.get("micro_batches"))
        params_nonfinite = data.get("params_nonfinite")
        return Facts(
            loss=loss,
            loss_measured=micro_batches >= 1 or bool(data.get("loss" + LOGGED)),
            loss_follows_scale=bool(data.get("loss_follows_scale")),
            losses=tuple(map(as_float, _list(data.get("losses")))),
            micro_batches=micro_batches,
            loss_scale=as_float(data.get("loss_scale")),
            old_scale=as_float(data.get("old_scale")),
            new_scale=as_float(data.get("new_scale")),
            grad_norm=as_float(data.get("grad_norm")),
            tensors=as_float(data.get("tensors")),
            nonfinite_tensors=as_float(data.get("nonfinite_tensors")),
            nonfinite_names=tuple(map(str, _list(data.get("nonfinite_names")))),
            nan=as_float(data.get("nan")),
            inf=as_float(data.get("inf")),
            largest_finite=as_float(data.get("largest_finite")),
            params_nonfinite=params_nonfinite if isinstance(params_nonfinite, bool) else None,
            dropped=bool(data.get("dropped")),
            where=str(data.get("where") or ""),
            inferred=bool(data.get("inferred")),
            how=str(data.get("how") or ""),
            at_least=_count(data.get("at_least"), 1),
            halvings=_count(data.get("halvings"), 0),
            within=_count(data.get("within"), 1),
        )

    @property
    def loss_nonfinite(self) -> bool:
        """Whether the loss was measured and is not finite. A NaN without a backward pass is only unknown."""
        return self.loss_measured if math.isnan(self.loss) else math.isinf(self.loss)

    @property
    def slack(self) -> int:
        """Steps that the event may have come before the one that reports it, as not every step was logged."""
        return self.within - 1

    @property
    def also_skipped(self) -> int:
        """Steps right before a skip that were skipped with it: all that were not logged, where it takes so many."""
        return self.slack if max(self.at_least, self.halvings) > self.slack else 0


class Known(NamedTuple):
    """An event and its facts."""

    event: Event
    facts: Facts

    @staticmethod
    def of(event: Event) -> Known:
        return Known(event, Facts.of(event.data))

    @property
    def kind(self) -> str:
        return self.event.kind

    @property
    def step(self) -> int:
        return self.event.step

    @property
    def optimizer(self) -> str | None:
        return self.event.optimizer

    @property
    def data(self) -> Mapping[str, Any]:
        """Of kinds whose facts no other kind has."""
        return self.event.data


def skips_of(event: Event) -> int:
    """Steps that a skip event stands for: one, or at least so many of those that were not logged."""
    return _count(event.data.get("at_least"), 1)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _count(value: Any, unknown: int) -> int:
    number = as_float(value)
    return int(number) if 0 <= number < 2**53 else unknown
