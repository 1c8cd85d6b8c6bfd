"""Sees the losses of a loop without a scaler, when their backward runs.

`Tensor.backward` looks `torch.autograd.backward` up at each call. While a monitor lives there is one in its place that
calls it, and notes the loss where the gradients of a watched optimizer changed by it: other losses, of a model that is
not watched or whose gradients `torch.autograd.grad` takes, are none of this loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tbnum.observe.seam import Place, Seam
from tbnum.observe.steps import StepObserver

__all__ = ["observe_backward"]


def observe_backward(observer: StepObserver) -> Callable[[], None]:
    """Tell `observer` of every backward in its thread, until the function that is returned is called."""
    return _seam.observe(observer)


def _places() -> list[Place]:
    return [Place(torch.autograd, "backward", _seen)]


_seam = Seam(_places)


def _seen(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        given = (grad_tensors, retain_graph, create_graph, *args)
        losses = [tensors] if isinstance(tensors, Tensor) else tensors
        if (
            torch.compiler.is_compiling()
            or grad_tensors is not None  # what comes with a gradient is no loss: a part of a graph, as in a pipeline
            or create_graph  # part of a loss to come: a gradient penalty, say
            or not isinstance(losses, (list, tuple))
            or torch._C._current_graph_task_id() != -1  # inside of another: a checkpoint that runs forward again
        ):
            return original(tensors, *given, **kwargs)
        marks = [(observer, observer.backward_begins(losses)) for observer in _seam.observers()]
        original(tensors, *given, **kwargs)
        for observer, mark in marks:
            if mark is not None:
                observer.backward_ended(mark, losses)

    return backward
