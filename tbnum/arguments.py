"""What `wrap` is given: checked before anything is hooked or written, and told to the log."""

from __future__ import annotations

import hashlib
import json
import numbers
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tbnum.observe.gradients import parameters_of

__all__ = [
    "check_intervals",
    "check_optimizer_name",
    "check_scaler",
    "checked_config",
    "checked_folder",
    "checked_modules",
    "checked_optimizers",
    "described",
    "settings_of",
]

_URL = re.compile(r"[A-Za-z][\w+.-]+:/|.*://")  # a Path of one has a single slash; one letter is a drive's


def checked_optimizers(given: Any) -> dict[str, torch.optim.Optimizer]:
    if not isinstance(given, Mapping):
        return {"optimizer": _checked_optimizer(given, "optimizer")}
    if not given:
        raise ValueError("optimizer is an empty mapping; give at least one optimizer.")
    for name in given:
        check_optimizer_name(name)
    found = {name: _checked_optimizer(each, f"optimizer[{name!r}]") for name, each in given.items()}
    if len({id(each) for each in found.values()}) < len(found):
        raise ValueError(f"the same optimizer was given under several names: {', '.join(found)}.")
    return found


def check_optimizer_name(name: Any) -> None:
    if not isinstance(name, str) or not name or "/" in name:
        raise ValueError(f"an optimizer's name must be a text without '/', since it begins column names: {name!r}.")


def _checked_optimizer(given: Any, what: str) -> torch.optim.Optimizer:
    seen: list[Any] = []
    inner = given
    while not _has_step_hooks(inner):
        seen.append(inner)
        inner = getattr(inner, "optimizer", None) or getattr(inner, "_optimizer", None)
        if inner is None or any(inner is each for each in seen):
            hint = "pass the optimizer whose step() the loop calls."
            if isinstance(given, (list, tuple)):
                hint = "several optimizers go into a mapping, {'name': optimizer, ...}."
            raise TypeError(
                f"{what} is {type(given).__name__} ({' '.join(repr(given).split()):.80}), which is no "
                f"torch.optim.Optimizer and wraps none; {hint}"
            )
    if not any(group["params"] for group in inner.param_groups):
        raise ValueError(f"{what} ({type(inner).__name__}) has no parameters; wrap it after they were added.")
    return inner


def _has_step_hooks(given: Any) -> bool:
    """A wrapper may be an Optimizer by class (Accelerate's is) whose own step nobody hooks."""
    return isinstance(given, torch.optim.Optimizer) and hasattr(given, "_optimizer_step_pre_hooks")


def check_scaler(scaler: Any) -> None:
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        hint = " Loggers go to writer=, folders to logdir=." if isinstance(scaler, (str, os.PathLike)) else ""
        raise TypeError(
            f"scaler is {type(scaler).__name__} ({scaler!r:.80}), not a torch.amp.GradScaler; "
            f"pass the scaler of the loop, or None where there is none.{hint}"
        )


def checked_modules(model: Any, optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, nn.Module]:
    if model is None:
        return {}
    modules = dict(model) if isinstance(model, Mapping) else {"": model}
    if not modules:
        raise ValueError("model is an empty mapping; give at least one model, or leave it out.")
    for name, module in modules.items():
        if not isinstance(name, str):
            raise TypeError(f"a model's name must be a text, since it begins the names of its tensors: {name!r}.")
        if not isinstance(module, nn.Module):
            what = f"model[{name!r}]" if name else "model"
            several = isinstance(module, (list, tuple))
            hint = "; several models go into a mapping, {'name': model, ...}" if several else ""
            raise TypeError(f"{what} is {type(module).__name__} ({module!r:.80}), not a torch.nn.Module{hint}.")
    trained = {id(each) for optimizer in optimizers.values() for each in parameters_of(optimizer)}
    if not any(id(parameter) in trained for module in modules.values() for parameter in module.parameters()):
        kinds = ", ".join(type(module).__name__ for module in modules.values())
        raise ValueError(
            f"model ({kinds}) shares no parameter with the optimizer, so it cannot name its tensors; pass the model "
            "that the optimizer was built from (and build the optimizer after the model was moved or converted)."
        )
    return modules


def checked_config(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        hint = "; for argparse's give vars(args)" if hasattr(config, "__dict__") else ""
        raise TypeError(f"config is {type(config).__name__} ({config!r:.80}), not a mapping of names to values{hint}.")
    try:
        json.dumps(dict(config), default=lambda other: None, skipkeys=True)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"config holds itself somewhere ({error}); give values that JSON can hold.") from error
    return dict(config)


def check_intervals(**intervals: Any) -> None:
    for name, interval in intervals.items():
        if isinstance(interval, bool) or not isinstance(interval, numbers.Integral) or interval < 1:
            raise ValueError(f"{name} is {interval!r}; it must be a whole number of steps, at least 1.")


def checked_folder(logdir: Any, writer: Any) -> Path:
    if (logdir is None) == (writer is None):
        both = "both" if logdir is not None else "neither"
        raise ValueError(
            f"wrap() takes exactly one of logdir= and writer=, and got {both} (logdir={logdir!r}, writer={writer!r}): "
            "logdir='runs/name' lets tbnum open the run's SummaryWriter, writer= uses yours."
        )
    if writer is not None:
        if not callable(getattr(writer, "add_scalar", None)) or not hasattr(writer, "file_writer"):
            raise TypeError(
                f"writer is {type(writer).__name__} ({writer!r:.80}), not a torch.utils.tensorboard.SummaryWriter; "
                "for a folder use logdir=."
            )
        logdir = writer.log_dir
    if not isinstance(logdir, (str, os.PathLike)):
        raise TypeError(f"logdir is {type(logdir).__name__} ({logdir!r:.80}), not a path.")
    path = os.fspath(logdir)
    if isinstance(path, bytes) or not path or "\0" in path:
        raise ValueError(f"logdir is {path!r}; give the path of a folder as text.")
    if _URL.match(path):
        raise ValueError(f"logdir is {path!r}: tbnum writes to local folders only; write locally and copy or mount it.")
    return Path(path).expanduser().absolute()  # the program may change its working directory


def described(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parameters = parameters_of(optimizer)
    shapes = str([tuple(each.shape) for each in parameters])
    settings = [
        {key: _plain(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]
    return {
        "class": type(optimizer).__name__,
        "groups": settings,
        "parameters": len(parameters),
        "dtypes": dict(Counter(str(each.dtype).removeprefix("torch.") for each in parameters)),
        "shapes": hashlib.sha256(shapes.encode()).hexdigest()[:16],
    }


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and value.device.type == "cpu" else str(value.dtype)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def settings_of(scaler: torch.amp.GradScaler | None) -> dict[str, Any] | None:
    if scaler is None:
        return None
    if not scaler.is_enabled():
        return {"class": scaler.__class__.__name__, "enabled": False}
    return {
        "class": scaler.__class__.__name__,
        "enabled": True,
        "device": str(scaler._device),
        "init_scale": float(scaler._init_scale),
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
    }
