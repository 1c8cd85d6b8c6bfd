"""What `wrap` is given: checked before anything is hooked or written, and described for the log."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import numbers
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from tbnum.caller import warn
from tbnum.log.schema import OPTIMIZER_COLUMNS, SHARD_COLUMNS, SHARED_COLUMNS
from tbnum.observe.gradients import parameters_of
from tbnum.unwrapping import optimizer_inside, scaler_inside

__all__ = [
    "NEVER",
    "check_flush_seconds",
    "check_intervals",
    "check_loss_name",
    "check_max_tensor_bytes",
    "check_no_unknown",
    "check_optimizer_name",
    "check_verbose",
    "checked_config",
    "checked_folder",
    "checked_modules",
    "checked_optimizers",
    "checked_ranks",
    "checked_scaler",
    "described",
    "settings_of",
]

_COLUMN_NAMES = {column.name for column in SHARED_COLUMNS + OPTIMIZER_COLUMNS + SHARD_COLUMNS} | {"step_hash"}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
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
    _check_name(name, "an optimizer's name begins the names of its columns")
    if name in _COLUMN_NAMES:
        raise ValueError(
            f"an optimizer can't be called {name!r}, as that is the name of a column; call it {name + '_optimizer'!r}."
        )


def check_loss_name(name: Any) -> None:
    """Of a term of the loss, `log_loss(value, name=...)`: its column is `loss/<name>`."""
    _check_name(name, "the name of a term of the loss ends that of its column")
    if name in _COLUMN_NAMES:
        raise ValueError(
            f"a term of the loss can't be called {name!r}, as that is the name of a column; call it "
            f"{name + '_term'!r}, or leave the name out to log the whole loss."
        )


def _check_name(name: Any, why: str) -> None:
    if not isinstance(name, str):
        raise ValueError(f"{why}, and has to be a text, not {type(name).__name__}: {name!r:.80}.")
    if not name.strip() or "/" in name or not name.isprintable():
        better = re.sub(r"[^\w.-]+", "_", name).strip("_")
        hint = f"; {better!r} would do" if better else ""
        raise ValueError(f"{why}, and has to be a printable text without '/': {name!r:.80}{hint}.")


def _checked_optimizer(given: Any, what: str) -> torch.optim.Optimizer:
    inner = optimizer_inside(given, what)
    if not any(group["params"] for group in inner.param_groups):
        raise ValueError(f"{what} ({type(inner).__name__}) has no parameters; wrap it after they were added.")
    return inner


def checked_scaler(given: Any) -> torch.amp.GradScaler | Callable[[], float] | None:
    """A GradScaler, a function that gives the scale of a loop that scales by itself, or None."""
    return scaler_inside(given)


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
    return {path: each for name, module in modules.items() for path, each in _called(name, module)}


def _called(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """In place of a ModuleList or ModuleDict what it holds: one made for this call alone is gone after it."""
    if not isinstance(module, (nn.ModuleList, nn.ModuleDict)) or type(module).forward is not nn.Module.forward:
        yield name, module
        return
    for child, each in module.named_children():
        yield from _called(f"{name}.{child}" if name else child, each)


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
    kept: dict[str, Any] = _kept(config, "config")
    return kept


def _kept(value: Any, where: str) -> Any:
    """As it goes to the log. An address in it would make each run one of its own kind: it is left out."""
    if isinstance(value, Mapping):
        return {_kept_name(key, where): _kept(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_kept(inner, f"{where}[{place}]") for place, inner in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)) or hasattr(value, "tolist"):
        return value
    try:
        text = str(value)
    except Exception:  # whatever a class of the user's raises; the log says that the value could not be kept
        return value
    without = getattr(value, "__qualname__", text) if isinstance(value, FunctionType) else _ADDRESS.sub("", text)
    if without == text:
        return value
    warn(
        f"{where} is a {type(value).__name__}, of which the log keeps only the text {without!r:.80}: runs that differ "
        "in it look alike. Give numbers, texts, lists and mappings of them."
    )
    return without


def _kept_name(key: Any, where: str) -> str:
    """As JSON has it, where it has it."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, (bool, int, float)):
        return json.dumps(key)
    raise TypeError(f"{where} has a name that JSON cannot hold, {key!r:.80}; give texts as names.")


def check_no_unknown(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Of arguments that `function` does not have: the nearest that it has."""
    names = [name for name, each in inspect.signature(function).parameters.items() if each.kind is not each.VAR_KEYWORD]
    for name, value in given.items():
        near = difflib.get_close_matches(name, names, 1, 0.7)
        hint = f"did you mean {near[0]}={value!r:.80}?" if near else f"it takes {', '.join(names)}."
        raise TypeError(f"{function.__name__}() has no argument {name!r}; {hint}")


def check_max_tensor_bytes(given: Any) -> None:
    if isinstance(given, bool) or not isinstance(given, numbers.Integral) or given < 0:
        raise ValueError(
            f"max_tensor_bytes is {given!r}; it must be a whole number of bytes, at least 0. Tensors of skips "
            "and other events are kept beyond it."
        )


def check_flush_seconds(given: Any) -> None:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= MOST_FLUSH_SECONDS:
        raise ValueError(
            f"flush_seconds is {given!r}; it must be above 0 and at most {MOST_FLUSH_SECONDS}: the steps of so long "
            "are lost with a process that is killed."
        )


MOST_FLUSH_SECONDS = 3600


def check_verbose(given: Any) -> None:
    if given is not None and not isinstance(given, bool):
        raise TypeError(
            f"verbose is {given!r}; it has to be True (print warnings and errors as they come), False (print nothing), "
            "or None (one line that says where the run is recorded)."
        )


def checked_ranks(given: Any) -> int | None:
    """How many ranks record, the lowest ones; None: all."""
    if isinstance(given, str) and given in ("all", "first"):
        return None if given == "all" else 1
    if isinstance(given, bool) or not isinstance(given, numbers.Integral) or given < 1:
        raise ValueError(
            f'ranks is {given!r}; it has to be "all", "first", or a whole number of ranks that record, at least 1: the '
            "lowest ones."
        )
    return int(given)


class _Never(int):
    """An interval that is never over: no step is a multiple of it."""

    def __rmod__(self, step: int) -> int:
        return 1


NEVER = _Never(2**62)


def check_intervals(**intervals: Any) -> None:
    for name, interval in intervals.items():
        if interval is None:
            continue
        if isinstance(interval, bool) or not isinstance(interval, numbers.Integral) or interval < 1:
            raise ValueError(
                f"{name} is {interval!r}; it must be a whole number of steps, at least 1, or None for never."
            )


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


def settings_of(scaler: torch.amp.GradScaler | Callable[[], float] | None) -> dict[str, Any] | None:
    if scaler is None:
        return None
    if not isinstance(scaler, torch.amp.GradScaler):
        return {"class": getattr(scaler, "__qualname__", type(scaler).__name__), "of_the_loop": True}
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
