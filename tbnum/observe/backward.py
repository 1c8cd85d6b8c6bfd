"""Sees every backward, at the one place from which torch enters its autograd engine.

`Tensor.backward` and `torch.autograd.backward` look that place up at each call, also where somebody bound them to a
name of his own long ago. `torch.autograd.grad` comes by as well, and is left alone: it writes to no gradient. Where it
builds a graph on a scaled loss, as a gradient penalty does, the loss to come follows the scale.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from tbnum.observe.patch_point import PatchPoint, Place
from tbnum.observe.steps import StepObserver
from tbnum.observe.untraced import untraced

__all__ = ["observe_backward"]


def observe_backward(observer: StepObserver) -> Callable[[], None]:
    """Report every backward in its thread to `observer`, until the function that is returned is called."""
    return _patch_point.observe(observer)


def _places() -> list[Place]:
    return [Place(torch.autograd, "_engine_run_backward", _seen)]


_patch_point: PatchPoint[StepObserver] = PatchPoint(_places)


class _Thread(threading.local):
    is_inside = False  # ours may stand twice, with another's between


_thread = _Thread()


def _seen(original: Callable[..., Any]) -> Callable[..., Any]:
    @untraced  # where a whole step is compiled, its backward is not: it runs here
    @functools.wraps(original)
    def engine_run_backward(roots: Any, gradients: Any = (), *args: Any, **kwargs: Any) -> Any:
        is_inside = _thread.is_inside or torch._C._current_graph_task_id() != -1  # a checkpoint runs forward again
        if is_inside or not kwargs.get("accumulate_grad"):  # the latter: `autograd.grad`
            if not is_inside and len(args) > 1 and args[1] is True:
                for observer in _patch_point.observers():
                    observer.losses.graph_of_gradients(roots)
            return original(roots, gradients, *args, **kwargs)
        makes_graph = len(args) > 1 and args[1] is True  # of the gradients, whose norms would be a part of it
        begun: list[tuple[StepObserver, Any]] = []
        for observer in _patch_point.observers():
            usual = observer.usual
            if not makes_graph and usual.backward_begins(roots, gradients):
                begun.append((observer, usual))
            elif not usual.is_elsewhere(roots):
                begun.append((observer, observer.losses.backward_begins(roots, gradients)))
        failed = _thread.is_inside = True
        try:
            result = original(roots, gradients, *args, **kwargs)
            failed = False
        finally:
            _thread.is_inside = False
            for observer, running in begun:
                if running is observer.usual:
                    if not failed and observer.usual.backward_ended():
                        continue
                    running = observer.losses.running  # it went over to the long way
                if running is not None:
                    observer.losses.backward_ended(running, failed)
        return result

    return engine_run_backward
