"""What a published loop is, and the tape on which it notes what it did.

A loop runs twice from the same seed: bare, and with tbnum. Both times it notes its attempts on a tape: its own loss,
the norms that it takes by hand in float64 from `.grad`, its own count of skips. What tbnum recorded is compared with
the tape; whatever the loop kept (parameters, optimizer state) must be bitwise the same both times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tbnum

__all__ = [
    "LOOPS",
    "UNKNOWN",
    "Loop",
    "OrUnknown",
    "Tape",
    "data",
    "float64_norm",
    "mlp",
    "published",
    "scaler_for_cpu",
]

UNKNOWN = math.nan
"""The loop has no such number: the record must say NaN."""


class OrUnknown:
    """The record must have one of these numbers, or NaN: never another."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def __repr__(self) -> str:
        return " or ".join(map(str, [*self.values, "unknown"]))


Value = float | bool | OrUnknown


@dataclass(frozen=True)
class Loop:
    """A loop and what is to be heard of it, beside a `skip` for each attempt that the tape says was skipped."""

    name: str
    run: Callable[[Tape], None]
    events: Mapping[str, int | None] = field(default_factory=dict)  # kind: how many; None: at least one
    warns: tuple[str, ...] = ()  # patterns, one for each warning of tbnum's
    may_warn: str | None = None  # a pattern of one more that may be there
    may: tuple[str, ...] = ()  # kinds of events that may be there
    raises: tuple[type[Exception], str] | None = None  # what `wrap` refuses with, and a pattern of the way out
    cause: str | None = None  # of every skip
    slow: bool = False


LOOPS: dict[str, Loop] = {}


def published(**expected: Any) -> Callable[[Callable[[Tape], None]], Callable[[Tape], None]]:
    """Puts a loop on the list, under its family's and its own name."""

    def listed(run: Callable[[Tape], None]) -> Callable[[Tape], None]:
        name = f"{run.__module__.rpartition('.')[2]}.{run.__name__}"
        assert name not in LOOPS
        LOOPS[name] = Loop(name, run, **expected)
        return run

    return listed


class Tape:
    """What one run of a loop did, by its own account."""

    def __init__(self, logdir: Path | None) -> None:
        self.rows: dict[str, list[dict[str, Value]]] = {}  # by run
        self.sequences: dict[str, dict[str, list[float]]] = {}  # by run and column
        self.kept: list[Any] = []
        self._logdir = logdir
        self._monitors: list[tbnum.Monitor] = []

    def wrap(self, optimizer: Any, scaler: Any = None, *, run: str = ".", **options: Any) -> tbnum.Monitor | None:
        """The one line that a user adds. None in the bare run."""
        self.rows.setdefault(run, [])
        if self._logdir is None:
            return None
        monitor = tbnum.wrap(optimizer, scaler, logdir=self._logdir / run, **options)
        self._monitors.append(monitor)
        return monitor

    def attempt(
        self,
        loss: float | Tensor | OrUnknown,
        grad_norm: float | OrUnknown,
        grad_norm_clipped: float | OrUnknown | None = None,
        *,
        skipped: bool = False,
        micro_batches: float | OrUnknown = 1,
        loss_scale: float | OrUnknown = UNKNOWN,
        run: str = ".",
        optional: bool = False,
    ) -> None:
        """One attempt of a loop with one optimizer. What the optimizer got is the norm where nothing was clipped.

        An `optional` one need not be in the record: there tbnum may say that it does not know.
        """
        if isinstance(loss, OrUnknown) and not isinstance(micro_batches, OrUnknown):
            micro_batches = OrUnknown(micro_batches)  # a loss that is not known has no number of backwards beside it
        if grad_norm_clipped is None:
            grad_norm_clipped = UNKNOWN if skipped else grad_norm
        self.step(
            run=run,
            loss=loss.item() if isinstance(loss, Tensor) else loss,
            grad_norm=grad_norm,
            grad_norm_clipped=grad_norm_clipped,
            skipped=skipped,
            micro_batches=micro_batches,
            loss_scale=loss_scale,
            **({"optional": True} if optional else {}),
        )

    def step(self, columns: Mapping[str, Value] | None = None, *, run: str = ".", **more: Value) -> None:
        """One row of the record, with the columns that the loop knows of."""
        self.rows.setdefault(run, []).append({**(columns or {}), **more})

    def of(self, optimizer: str, *, run: str = ".", **values: float | Tensor) -> None:
        """One attempt of one of several optimizers, whichever row it is in: the known values of its columns, in order.

        `loss` is compared with the sum over all rows too, in the plain column.
        """
        columns = self.sequences.setdefault(run, {})
        self.rows.setdefault(run, [])
        for column, value in values.items():
            number = float(value)
            if math.isfinite(number):
                columns.setdefault(f"{optimizer}/{column}", []).append(number)

    def keep(self, *objects: Any) -> None:
        """What training made, to be compared bit by bit at the end: modules, optimizers, tensors, numbers."""
        self.kept += objects

    def keep_in_order(self, place: int, *objects: Any) -> None:
        """The same for loops in threads, whichever ends first."""
        self.kept = sorted([*self.kept, (place, objects)], key=lambda entry: entry[0])

    def close(self) -> None:
        for monitor in self._monitors:
            monitor.close()


# -- what the loops are made of --------------------------------------------------------------------------------------


def mlp(inputs: int = 8, outputs: int = 4, hidden: int = 16) -> nn.Sequential:
    """Two hidden layers of 16."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


def data(batches: int = 24, *, size: int = 16, inputs: int = 8, outputs: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(size, inputs, generator=generator), torch.randn(size, outputs, generator=generator))
        for _ in range(batches)
    ]


def scaler_for_cpu(init_scale: float = 2.0**10, growth_interval: int = 8) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)


def float64_norm(parameters: nn.Module | Iterable[Tensor], scale: float = 1.0) -> float:
    """The global 2-norm of the gradients as they are in `.grad` now, divided by the scale."""
    total = 0.0
    for parameter in parameters.parameters() if isinstance(parameters, nn.Module) else parameters:
        if parameter.grad is not None:
            total += parameter.grad.detach().double().div(scale).square().sum().item()
    return math.sqrt(total) if not math.isnan(total) else total
