"""What is handed on: a step, all of its values on the host, and an observation that is no step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tbnum.observe.attempt import UNKNOWN

__all__ = ["Observation", "OptimizerRecord", "Shares", "StepRecord"]


@dataclass
class Shares:
    """This rank's shares of an optimizer's norms: their squares add up over the ranks."""

    grad_norm: float = UNKNOWN
    grad_norm_clipped: float = UNKNOWN  # where it was measured
    param_norm: float = UNKNOWN
    update_norm: float = UNKNOWN


@dataclass
class OptimizerRecord:
    """What one optimizer did in one step. Unknown is NaN.

    Arrays have a row for each of the optimizer's parameters, in its order, those without a gradient included.
    """

    grad_norm: float = UNKNOWN
    grad_norm_clipped: float = UNKNOWN
    clip_coef: float = UNKNOWN
    max_norm: float = UNKNOWN
    loss: float = UNKNOWN  # of the backwards that reached its gradients
    skipped: bool = False
    dropped: str | None = None  # given up by the loop: its "loss" was not finite, or the gradients were "looked" at
    nonfinite_tensors: float = UNKNOWN
    nonfinite_after: float = 0.0  # gradients that were not finite when the optimizer got them, where that was looked at
    nonfinite_rows: list[int] = field(default_factory=list)  # of the parameters whose gradient was not finite
    loss_follows_scale: bool = False  # a part of the loss was made of gradients that carried the scale
    tensors: int = 0  # gradients that there were
    parameters_nonfinite: bool | None = None  # looked at on a skip that the host knows of, else None
    lr: list[float] = field(default_factory=list)  # of each parameter group
    param_norm: float = UNKNOWN
    update_norm: float = UNKNOWN
    shares: Shares | None = None  # in place of the norms of the whole, where tensors are sharded
    grad_norms: np.ndarray | None = None  # (P,) float32, unscaled, before clipping
    norms_taken: int = 0  # `measure.step_hash`'s BY_PASS or BY_CLIP; 0: they were not
    columns: dict[str, np.ndarray] = field(default_factory=dict)  # (P,) each; at an interval, or of a step that failed
    histograms: dict[str, np.ndarray] = field(
        default_factory=dict
    )  # (BINS,) int64, of all gradients, parameters, updates
    tensor_histograms: dict[str, np.ndarray] = field(default_factory=dict)  # (P, BINS) int64, likewise


@dataclass
class StepRecord:
    """One step, all of its values on the host. `optimizers` holds those that took part."""

    step: int
    wall_time: float
    loss: float = UNKNOWN
    micro_batches: float = UNKNOWN
    loss_scale: float = UNKNOWN
    growth_tracker: float = UNKNOWN
    new_scale: float | None = None
    losses: list[float] = field(default_factory=list)  # of each micro-batch, whose sum `loss` is
    named_losses: dict[str, float] = field(default_factory=dict)
    optimizers: dict[str, OptimizerRecord] = field(default_factory=dict)
    sample_ids: np.ndarray | None = None  # (N,) int64, where they are known
    is_quiet: bool = False  # the host knew at once that there is nothing to report

    @property
    def skipped(self) -> bool:
        return any(record.skipped for record in self.optimizers.values())


@dataclass(frozen=True)
class Observation:
    """A thing seen in the loop that is no step: the kind of event that it makes, and its facts."""

    kind: str
    step: int
    wall_time: float
    data: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str | None = None
