"""The optimizer and the scaler inside of what `wrap` is given: whose `step` and `update` really run.

Frameworks put objects around them that look like them, by class or by delegation. Hooks belong on what is inside.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["optimizer_inside", "scaler_inside"]

_OPTIMIZER_ATTRIBUTES = ("optimizer", "_optimizer", "optim", "_optim", "base_optimizer", "inner_optimizer")
_SCALER_ATTRIBUTES = ("_scaler", "scaler", "grad_scaler", "_grad_scaler")
_ENGINES = {  # by package: its name in messages, and those of its modules whose optimizers are plain ones
    "deepspeed": ("DeepSpeed", ("deepspeed.ops.",)),
    "megatron": ("Megatron-LM", ()),
    "colossalai": ("ColossalAI", ("colossalai.nn.",)),
}


def optimizer_inside(given: Any, what: str) -> torch.optim.Optimizer:
    """The torch optimizer whose own step hooks fire when the loop calls `given.step()`.

    Raises:
        TypeError: there is none, or several.
        ValueError: an engine's optimizer, which scales, clips and steps out of the sight of hooks.
    """
    around: list[Any] = []
    inner = given
    while True:
        _refuse_engines(inner, what)
        candidates = [each for each in _inside(inner) if not any(each is outer for outer in (inner, *around))]
        if _fires_hooks(inner) and not any(_hooks_of(each) is _hooks_of(inner) for each in candidates):
            assert isinstance(inner, torch.optim.Optimizer)
            return inner
        around.append(inner)
        for each in _attributes(inner):
            if hasattr(
                each, "param_groups"
            ):  # one that `candidates` lacks, where the wrapper shows what is inside of it
                _refuse_engines(each, what)
        if not candidates:
            raise TypeError(_no_optimizer(given, what))
        inner = candidates[0]


def _inside(outer: Any) -> list[Any]:
    """What `outer` may be around: by the names that wrappers use, else the one optimizer that it holds."""
    named = [getattr(outer, name, None) for name in _OPTIMIZER_ATTRIBUTES]
    found = [each for each in named if each is not None and not isinstance(each, (str, int, float, bool, type))]
    held = [each for each in _attributes(outer) if isinstance(each, torch.optim.Optimizer)]
    if not found and len({id(each) for each in held}) == 1:
        return held[:1]
    return found


def _attributes(given: Any) -> list[Any]:
    return list(getattr(given, "__dict__", {}).values())


def _fires_hooks(given: Any) -> bool:
    """Its own: one that delegates shows those of the optimizer inside."""
    return isinstance(given, torch.optim.Optimizer) and _hooks_of(given) is not None


def _hooks_of(given: Any) -> Any:
    return getattr(given, "__dict__", {}).get("_optimizer_step_pre_hooks")


def _refuse_engines(given: Any, what: str) -> None:
    for module in (cls.__module__ or "" for cls in type(given).__mro__):
        name, plain = _ENGINES.get(module.partition(".")[0], ("", ()))
        if name and not module.startswith(plain):
            raise ValueError(
                f"{what} is {type(given).__name__} ({module}): {name}'s engine scales, clips and steps by itself, so "
                f"nothing that is true could be recorded of it. Its own TensorBoard log can be read, by tbnum.read() "
                "and by the panel; with DDP or FSDP in its place tbnum records every step."
            )


def _no_optimizer(given: Any, what: str) -> str:
    several = [each for each in _attributes(given) if isinstance(each, torch.optim.Optimizer)]
    hint = "pass the optimizer whose step() the loop calls."
    if isinstance(given, (list, tuple)) or len(several) > 1:
        hint = "several optimizers go into a mapping, {'name': optimizer, ...}."
    return (
        f"{what} is {_shown(given)}, which is no torch.optim.Optimizer and wraps "
        f"{'several' if len(several) > 1 else 'none'}; {hint}"
    )


def _shown(given: Any) -> str:
    return f"{type(given).__name__} ({' '.join(repr(given).split()):.80})"


def scaler_inside(given: Any) -> torch.amp.GradScaler | Callable[[], float] | None:
    """The GradScaler that `given` is or holds (timm's and MAE's do), or a function that gives the loop's own scale.

    Raises:
        TypeError: neither; a class; a function that takes arguments.
    """
    if given is None:
        return None
    around: list[Any] = []
    inner = given
    while inner is not None and not isinstance(inner, torch.amp.GradScaler) and len(around) < 8:
        around.append(inner)
        inner = next(_scalers_inside(inner), None)
    if inner is not None:
        return inner
    if _is_a_function(given):
        return given
    raise TypeError(_no_scaler(given))


def _scalers_inside(outer: Any) -> Iterator[Any]:
    if isinstance(outer, (type, str, nn.Module)):
        return
    for name in _SCALER_ATTRIBUTES:
        each = getattr(outer, name, None)
        if each is not None and each is not outer:
            yield each


def _is_a_function(given: Any) -> bool:
    """That can be called without arguments, to give a number."""
    if not callable(given) or isinstance(given, (type, nn.Module, torch.optim.Optimizer)):
        return False
    try:
        inspect.signature(given).bind()
    except TypeError:
        return False
    except ValueError:  # a built-in function without a signature
        return True
    return True


def _no_scaler(given: Any) -> str:
    if isinstance(given, type):
        hint = f"pass the {given.__name__} that the loop uses, not its class."
    elif isinstance(given, torch.optim.Optimizer):
        hint = "several optimizers go into a mapping, {'name': optimizer, ...}, as the first argument."
    elif isinstance(given, nn.Module):
        hint = "pass the scaler of the loop, or None where there is none. The model goes to model=."
    elif isinstance(given, (str, os.PathLike)) or hasattr(given, "add_scalar"):
        hint = "pass the scaler of the loop, or None where there is none. Loggers go to writer=, folders to logdir=."
    elif isinstance(given, (int, float, torch.Tensor)) or hasattr(given, "loss_scale") or hasattr(given, "cur_scale"):
        hint = "of a scale of your own give a function that returns what the loss is multiplied by now, lambda: scale."
    elif callable(given):
        hint = "a function is to take no arguments, and to return what the loss is multiplied by now."
    else:
        hint = "pass the scaler of the loop, or None where there is none."
    return f"scaler is {_shown(given)}, not a torch.amp.GradScaler, and holds none; {hint}"
