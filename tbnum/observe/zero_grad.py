"""Sees gradients being thrown away by `zero_grad`, of an optimizer or a module.

Gradients that a loop sets to None itself are missed when the next backward begins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from tbnum.observe.patch_point import PatchPoint, Place
from tbnum.observe.steps import StepObserver

__all__ = ["observe_zero_grad"]

_NAME = "zero_grad"
_classes: set[type] = {torch.optim.Optimizer}  # those of optimizers whose own method this is


def observe_zero_grad(observer: StepObserver, optimizers: Iterable[torch.optim.Optimizer]) -> Callable[[], None]:
    """Report every `zero_grad` to `observer`, until the function that is returned is called."""
    _classes.update(kind for optimizer in optimizers for kind in type(optimizer).__mro__ if _NAME in vars(kind))
    return _patch_point.observe(observer)


def _places() -> Iterator[Place]:
    for kind in list(_classes):  # another thread may be wrapping an optimizer of another class
        yield Place(kind, _NAME, _seen_of_optimizer)
    yield Place(nn.Module, _NAME, _seen_of_module)


_patch_point: PatchPoint[StepObserver] = PatchPoint(_places)


def _seen_of_optimizer(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            for observer in _patch_point.observers():
                if not observer.usual.gradients_go(optimizer):
                    observer.updates.gradients_go(optimizer)
        return original(optimizer, *args, **kwargs)

    return zero_grad


def _seen_of_module(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def zero_grad(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            open_ones = [observer for observer in _patch_point.observers() if observer.has_gradients]
            parameters = set(map(id, module.parameters())) if open_ones else set()
            for observer in open_ones:
                observer.gradients_went(parameters)
        return original(module, *args, **kwargs)

    return zero_grad
