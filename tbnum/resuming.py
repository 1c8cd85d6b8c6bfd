"""Where a session goes on: from the step of its checkpoint, or the one that its optimizers and the record show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tbnum.explain.resume import OptimizerNow, lost_state, starting_step
from tbnum.measure.norms import norms_of
from tbnum.observe.gradients import parameters_of
from tbnum.observe.steps import StepObserver
from tbnum.recorder import Recorder

__all__ = ["go_on"]


def go_on(observer: StepObserver, recorder: Recorder, state: Mapping[str, Any] | None) -> None:
    """Before the first step of a session: whether it continues a run, where, and what its checkpoint lost.

    `state` is what the checkpoint has of the monitor. Where a record goes before, waits for the device twice.
    """
    recorder.ranks.look_for_lower_ranks()
    past = recorder.ranks.past()
    if past is None:
        return
    owners = observer.optimizers()
    optimizers = [_now(each, name if len(owners) > 1 else None) for name, each in owners.items()]
    if state is None:
        step, how = starting_step(past, optimizers)
        if how == "fresh":
            recorder.look_for_a_repeat_of(past)
            return
        observer.next_step = step
        recorder.resumed(step, _skipped_before(past.steps, step))
    else:
        step, how = state["step"], state.get("how", "monitor state")
        if "skipped_steps" not in state:
            recorder.resumed(step, _skipped_before(past.steps, step))
    scaler = observer.scaler
    scale = None if scaler is None else scaler.get_scale()
    previous, expected = (None, None) if state is None else (state.get("session"), state.get("loss_scale"))
    observer.observe("resume", {"from_step": step, "how": how, "previous_session": previous})
    for kind, optimizer, data in lost_state(past, step, optimizers, scale, expected):
        observer.observe(kind, data, optimizer)
    recorder.redraw(past, step)


def _skipped_before(steps: Mapping[str, np.ndarray], step: int) -> int:
    return int(np.count_nonzero(steps["skipped"][steps["step"] < step]))


def _now(optimizer: torch.optim.Optimizer, name: str | None) -> OptimizerNow:
    counts = [state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
    if counts and all(isinstance(count, Tensor) for count in counts):  # one wait for a device, not one for each
        by_device: dict[torch.device, list[Tensor]] = {}
        for count in counts:
            by_device.setdefault(count.device, []).append(count.detach().reshape(()))
        counts = [torch.stack(some).max().item() for some in by_device.values()]
    return OptimizerNow(
        name=name,
        has_state=len(optimizer.state) > 0,
        updates=int(max(float(count) for count in counts)) if counts else None,
        stateless=type(optimizer) is torch.optim.SGD and not any(group["momentum"] for group in optimizer.param_groups),
        lr=[math.nan if group.get("lr") is None else float(group["lr"]) for group in optimizer.param_groups],
        tensor_norms=_tensor_norms(optimizer),
        class_name=type(optimizer).__name__,
    )


def _tensor_norms(optimizer: torch.optim.Optimizer) -> list[float]:
    """In order. One pass over the parameters, and a wait for the device. [] where a tensor is sharded."""
    parameters = [parameter.detach() for parameter in parameters_of(optimizer)]
    if any(hasattr(parameter, "placements") for parameter in parameters):
        return []
    found = [math.nan] * len(parameters)
    for norms in norms_of(parameters):
        for index, norm in zip(norms.index, norms.norms.tolist(), strict=True):
            found[index] = norm
    return found
