"""Accelerate: `wrap(accelerator, optimizer, model)`, for a loop of one's own around an `Accelerator`."""

from __future__ import annotations

import functools
import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tbnum
from tbnum.integrations.framework import framework
from tbnum.integrations.recording import harmless, same_folder
from tbnum.monitor import Monitor

__all__ = ["check_supported", "observe_backward", "wrap"]

_accelerate = framework("accelerate", "accelerate")

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

    The scaler is the accelerator's; without one the loss is seen in `accelerator.backward`. `accelerator.save_state`
    and `load_state` keep the monitor's state in a file of its own beside theirs, so that a resumed training goes on in
    the same record, and a checkpoint without one loads as well. Every process is to call it, with the same folder.

    Args:
        accelerator: the `Accelerator`.
        optimizer: a prepared optimizer, or a mapping of names to several.
        model: the prepared model, or a mapping. It gives the tensors their names.
        logdir: folder of the run. Where one process trains it may be left out: then it is that of the accelerator's
            TensorBoard tracker, through its writer.
        options: those of `tbnum.wrap`.

    Raises:
        ValueError: DeepSpeed, Megatron-LM or XLA; no `logdir`, and no tracker or several processes; a monitor that
            records another optimizer of this accelerator.
        Exception: what `tbnum.wrap` raises.
    """
    check_supported(accelerator.distributed_type)
    _check_alone(accelerator, optimizer)
    if isinstance(model, Mapping):
        model = {name: _inner_model(each) for name, each in model.items()}
    elif model is not None:
        model = _inner_model(model)
    where = {"writer": options.pop("writer"), "logdir": logdir} if "writer" in options else _where(accelerator, logdir)
    monitor = tbnum.wrap(optimizer, accelerator.scaler, model=model, **where, **options)
    observe_backward(monitor, optimizer)
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


def _check_alone(accelerator: Any, optimizer: Any) -> None:
    """One monitor for an accelerator, whose losses and checkpoints do not tell for which of its optimizers they are."""
    ours = {id(_inner_optimizer(each)) for each in _each(optimizer)}
    for other in accelerator._optimizers:
        key = id(_inner_optimizer(other))
        monitor = _living(key)
        if monitor is not None and key not in ours:
            raise ValueError(
                f"a monitor that writes to {str(monitor.logdir)!r} records another optimizer of this accelerator, and "
                "a loss that the accelerator runs backward does not tell whose it is: wrap all of them in one call, "
                "wrap(accelerator, {'generator': ..., 'critic': ...}, ...), or close() that monitor first."
            )


def _inner_model(model: nn.Module) -> nn.Module:
    """Without what puts a prefix before the names. (Accelerate's own way changes a compiled model.)"""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


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

    monitor.call_when_closed(accelerator.register_save_state_pre_hook(save).remove)
    monitor.call_when_closed(accelerator.register_load_state_pre_hook(load).remove)


# -- losses without a scaler -----------------------------------------------------------------------------------------

_monitors: dict[int, weakref.ref[Monitor]] = {}  # by id of an optimizer
_original: Callable[..., Any] | None = None
_lock = threading.RLock()


def observe_backward(monitor: Monitor, optimizer: Any) -> None:
    """Tell `monitor` of the losses that an accelerator without a scaler runs backward, until it is closed.

    `Accelerator.backward` is replaced for as long: the accelerator itself is not always at hand (a callback of
    Transformers' is not given it), and this way it stays the object that it is.
    """
    global _original
    keys = [id(_inner_optimizer(each)) for each in _each(optimizer)]
    ref = weakref.ref(monitor)
    with _lock:
        _monitors.update(dict.fromkeys(keys, ref))
        if _original is None:
            _original = _accelerate.Accelerator.backward
            _accelerate.Accelerator.backward = _seen(_original)

    def release() -> None:
        global _original
        with _lock:
            for key in keys:
                if _monitors.get(key) is ref:  # else the id is that of a later optimizer, which has its own monitor
                    del _monitors[key]
            if not _monitors and _original is not None:
                _accelerate.Accelerator.backward = _original
                _original = None

    monitor.call_when_closed(release)


def _seen(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(self: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        if self.scaler is None:  # else the scaler tells
            _tell(self, loss)
        return original(self, loss, *args, **kwargs)

    return backward


@harmless
def _tell(accelerator: Any, loss: Any) -> None:
    for monitor in {_living(id(_inner_optimizer(each))) for each in accelerator._optimizers}:
        if monitor is not None and isinstance(loss, torch.Tensor):
            monitor.log_loss(loss.detach() / accelerator.gradient_accumulation_steps)


def _living(key: int) -> Monitor | None:
    ref = _monitors.get(key)
    return None if ref is None else ref()


def _each(optimizer: Any) -> list[Any]:
    return list(optimizer.values()) if isinstance(optimizer, Mapping) else [optimizer]


def _inner_optimizer(optimizer: Any) -> Any:
    while isinstance(optimizer, _accelerate.optimizer.AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer
