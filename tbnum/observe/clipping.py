"""Sees torch's own gradient clipping while a monitor lives.

`torch.nn.utils` wraps its clipping functions in `_no_grad_wrapper`, a closure over the function proper. Swapping what
that closure cell holds reaches every caller, also one that bound the name long ago (`from torch.nn.utils import
clip_grad_norm_`), Lightning and Accelerate; replacing the module's attribute would not. A clip written by hand and
FSDP1's own stay unseen here; that gradients changed is noticed all the same where they were measured before.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad as torch_clip_grad

from tbnum.observe.seam import Place, Seam
from tbnum.observe.steps import StepObserver

__all__ = ["observe_clipping"]

_BY_NORM, _BY_GIVEN_NORM, _BY_VALUE = "clip_grad_norm_", "_clip_grads_with_norm_", "clip_grad_value_"

_inside = threading.local()  # a clip by norm calls the clip by a given norm: only the outermost counts


def observe_clipping(observer: StepObserver) -> Callable[[], None]:
    """Tell `observer` of every clip that touches its optimizers, until the function that is returned is called."""
    return _seam.observe(observer)


def _places() -> Iterator[Place]:
    for name in (_BY_NORM, _BY_GIVEN_NORM, _BY_VALUE):
        for cell in getattr(getattr(torch_clip_grad, name, None), "__closure__", None) or ():
            if getattr(cell.cell_contents, "__name__", None) == name:
                yield Place(cell, "cell_contents", functools.partial(_seen, name=name))


_seam = Seam(_places)


def _seen(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def clip(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or getattr(_inside, "clip", False):
            return original(*args, **kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
            max_norm = None if name == _BY_VALUE else float(bound.arguments["max_norm"])
            parameters = _as_list(bound.arguments["parameters"])
        except Exception:
            return original(*args, **kwargs)  # torch's own error
        if not parameters:
            return _without_parameters(original, args, kwargs)
        bound.arguments["parameters"] = parameters
        touched = [(observer, observer.clip_begins(parameters, max_norm) or {}) for observer in _seam.observers()]
        _inside.clip = True
        try:
            result = original(*bound.args, **bound.kwargs)
        finally:
            _inside.clip = False
        total_norm = bound.arguments["total_norm"] if name == _BY_GIVEN_NORM else result
        is_2_norm = name == _BY_NORM and bound.arguments.get("norm_type", 2.0) == 2
        for observer, names in touched:
            known = total_norm if isinstance(total_norm, Tensor) else None
            observer.clip_ended(names, max_norm, known, is_2_norm=is_2_norm)
        return result

    return clip


def _as_list(parameters: Any) -> list[Tensor]:
    if isinstance(parameters, Tensor):
        return [parameters]
    if isinstance(parameters, types.GeneratorType) and parameters.gi_frame is None:
        return []
    return list(parameters)


def _without_parameters(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch warns of an empty generator, at the line of its caller's caller: one frame further up from here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = original(*args, **kwargs)
    for warning in caught:
        warnings.warn(warning.message, warning.category, stacklevel=4)
    return result
