"""Sees the steps of an optimizer through torch's own public step hooks."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from tbnum.observe.caller import steps_on_the_stack
from tbnum.observe.steps import StepObserver
from tbnum.observe.untraced import untraced

__all__ = ["observe_optimizer"]


def observe_optimizer(optimizer: torch.optim.Optimizer, observer: StepObserver, owner: object) -> Callable[[], None]:
    """Report every step to `observer`, until the function that is returned is called.

    The hooks keep `owner`, the monitor, alive as long as the optimizer, also where the user did not keep it.
    """
    if not hasattr(type(optimizer).step, "hooked"):  # its class calls no `super().__init__()`, where torch does this,
        optimizer._patch_step_function()  # as it does later, in the first `zero_grad()`
    hooks = _Hooks(observer, owner)
    handles = [optimizer.register_step_pre_hook(hooks.before), optimizer.register_step_post_hook(hooks.after)]
    ref = weakref.ref(optimizer)

    def release() -> None:
        if ref() is not None:
            for handle in handles:
                handle.remove()

    return release


class _Hooks:
    """torch.compile of a step would trace them, and break its graph on them: they are left out of it."""

    def __init__(self, observer: StepObserver, owner: object) -> None:
        self._observer = observer
        self._owner = owner
        self._depth = 0
        self._is_no_step = False

    @untraced
    def before(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A step that calls its base class's step fires the hooks twice: only the outermost counts. A depth alone
        # would not do, since a step that raised has left without its post hook.
        self._depth = self._depth + 1 if self._depth and steps_on_the_stack(optimizer) > 1 else 1
        if self._depth > 1:
            return
        self._is_no_step = "closure" in kwargs and kwargs["closure"] is None and _makes_state()
        if self._is_no_step:
            return
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is not None or not self._observer.usual.step_begins(optimizer):
            self._observer.updates.step_begins(optimizer, callable(closure))

    @untraced
    def after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth -= 1
        if self._depth == 0 and not self._is_no_step and not self._observer.usual.step_ended():
            self._observer.updates.step_ended(optimizer)
            self._observer.usual.finished()


def _makes_state() -> bool:
    """Whether a checkpoint is about to be loaded: `torch.distributed.checkpoint` has the optimizer make its state by a
    step with gradients and learning rates of zero."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_init_optim_state":
            return True
        frame = frame.f_back
    return False
