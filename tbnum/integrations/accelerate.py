"""Accelerate: `wrap(accelerator, optimizer, model)`, for a loop of one's own around an `Accelerator`."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

import tbnum
from tbnum.arguments import checked_optimizers
from tbnum.integrations.framework import framework
from tbnum.integrations.recording import harmless, same_folder
from tbnum.monitor import Monitor

__all__ = ["check_supported", "wrap"]

framework("accelerate", "accelerate")

STATE_FILE = "tbnum.json"  # in a checkpoint's folder

_UNSEEN = {
    "DEEPSPEED": "DeepSpeed's engine scales, clips and steps by itself; its own TensorBoard log can be read",
    "MEGATRON_LM": "Megatron-LM's engine scales, clips and steps by itself; its own TensorBoard log can be read",
    "XLA": "on XLA devices each measured value would break up the compiled step",
}


def wrap(
    accelerator: Any,
    optimizer: Any,
    model: nn.Module | Mapping[str, nn.Module] | None = None,
    *,
    logdir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Monitor:
    """`tbnum.wrap` for what `accelerator.prepare` gave; the loop stays as it is.

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        monitor = tbnum.integrations.accelerate.wrap(accelerator, optimizer, model, logdir="runs/gpt")

    The scaler is the accelerator's. `accelerator.save_state` and `load_state` keep the monitor's state in a file of its
    own beside theirs, so that a resumed training continues in the same record, and a checkpoint without one loads as
    well. Every process is to call it, with the same folder.

    Args:
        accelerator: the `Accelerator`.
        optimizer: a prepared optimizer, or a mapping of names to several.
        model: the prepared model, or a mapping. It gives the tensors their names.
        logdir: folder of the run. Where one process trains it may be left out: then it is that of the accelerator's
            TensorBoard tracker, through its writer.
        options: those of `tbnum.wrap`.

    Raises:
        TypeError: `accelerator` is none.
        ValueError: DeepSpeed, Megatron-LM or XLA; no `logdir`, and no tracker or several processes; a monitor that
            records another optimizer of this accelerator.
        Exception: what `tbnum.wrap` raises.
    """
    if not hasattr(accelerator, "distributed_type"):
        raise TypeError(
            f"accelerator is {type(accelerator).__name__} ({accelerator!r:.80}), not an accelerate.Accelerator; "
            "the call is wrap(accelerator, optimizer, model, logdir=...)."
        )
    check_supported(accelerator.distributed_type)
    _check_alone(accelerator, optimizer)
    where = {"writer": options.pop("writer"), "logdir": logdir} if "writer" in options else _where(accelerator, logdir)
    monitor = tbnum.wrap(optimizer, accelerator.scaler, model=model, **where, **options)
    monitor._recorder.accumulation = lambda: accelerator.gradient_accumulation_steps
    _keep_in_checkpoints(monitor, accelerator)
    return monitor


def check_supported(distributed_type: Any) -> None:
    """Raises ValueError for an engine that takes the step out of every hook's sight."""
    name = getattr(distributed_type, "value", distributed_type)
    if name in _UNSEEN:
        raise ValueError(
            f"tbnum sees nothing of a training with Accelerate's distributed type {name} ({_UNSEEN[name]}). "
            "One process, DDP and FSDP are recorded."
        )


_monitors: weakref.WeakKeyDictionary[Any, weakref.ref[Monitor]] = weakref.WeakKeyDictionary()  # by accelerator


def _monitor_of(accelerator: Any) -> Monitor | None:
    ref = _monitors.get(accelerator)
    return None if ref is None else ref()


def _check_alone(accelerator: Any, optimizer: Any) -> None:
    """One monitor for an accelerator, whose checkpoints hold the state of one."""
    monitor = _monitor_of(accelerator)
    if monitor is not None and not any(map(monitor._observer.follows, checked_optimizers(optimizer).values())):
        raise ValueError(
            f"a monitor that writes to {str(monitor.logdir)!r} records another optimizer of this accelerator, whose "
            "checkpoints hold the state of one: wrap all of them in one call, wrap(accelerator, {'generator': ..., "
            "'critic': ...}, ...), or close() that monitor first."
        )


def _where(accelerator: Any, logdir: str | os.PathLike[str] | None) -> dict[str, Any]:
    """The folder, or on the main process the tracker's writer where that is its folder: one event writer in each."""
    tracker = next((each for each in accelerator.trackers if getattr(each, "name", None) == "tensorboard"), None)
    if logdir is None and accelerator.num_processes > 1:
        raise ValueError(
            "several processes train, and the main one alone has a tracker whose folder could be used: give all of "
            "them the same logdir='runs/name' (the tracker's, if you like: its writer is used then)."
        )
    if logdir is None and tracker is None:
        raise ValueError(
            "no folder to write to: give logdir='runs/name', or call wrap() after accelerator.init_trackers() with "
            "log_with='tensorboard'."
        )
    if tracker is not None and (logdir is None or same_folder(logdir, tracker.writer.log_dir)):
        return {"writer": tracker.writer}
    return {"logdir": logdir}


def _keep_in_checkpoints(monitor: Monitor, accelerator: Any) -> None:
    """A file of its own: an object registered for checkpointing would keep older checkpoints from being loaded."""
    if _monitor_of(accelerator) is monitor:
        return  # wrapped twice, which is one wrapping
    ref = weakref.ref(monitor)

    @harmless
    def save(models: Any, weights: Any, output_dir: str) -> None:
        living = ref()
        if living is not None and accelerator.is_main_process:
            Path(output_dir, STATE_FILE).write_text(json.dumps(living.state_dict()))

    @harmless
    def load(models: Any, input_dir: str) -> None:
        living, path = ref(), Path(input_dir, STATE_FILE)
        if living is not None and path.exists():
            living.load_state_dict(json.loads(path.read_text()))

    def closed() -> None:
        if _monitors.get(accelerator) is ref:
            del _monitors[accelerator]

    _monitors[accelerator] = ref
    monitor.call_when_closed(closed)
    monitor.call_when_closed(accelerator.register_save_state_pre_hook(save).remove)
    monitor.call_when_closed(accelerator.register_load_state_pre_hook(load).remove)
