"""Sees `scale`, `unscale_`, `step` and `update` of a live GradScaler.

The class of the scaler is swapped for a subclass that tells the observer and then does what the scaler does. The
object stays the same object; `__class__` and pickles tell of the original class, and nothing is put on the instance.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tbnum.observe.steps import StepObserver
from tbnum.observe.transfer import Number, hold

__all__ = ["observe_scaler"]

_CLASS = object.__dict__["__class__"]  # sets the real class, past the property that hides ours

_observers: dict[int, StepObserver] = {}  # by id of the scaler; an entry goes with its scaler or its monitor
_subclasses: weakref.WeakValueDictionary[type, type] = weakref.WeakValueDictionary()


def observe_scaler(scaler: torch.amp.GradScaler, observer: StepObserver) -> Callable[[], None]:
    """Tell `observer` of every call on `scaler`, until the function that is returned is called."""
    base = type(scaler)
    key = id(scaler)
    _observers[key] = observer
    _CLASS.__set__(scaler, _observed(base))
    gone = weakref.finalize(scaler, _observers.pop, key, None)
    gone.atexit = False
    ref = weakref.ref(scaler)

    def release() -> None:
        gone.detach()
        _observers.pop(key, None)
        alive = ref()
        if alive is not None:
            _CLASS.__set__(alive, base)

    return release


def _observed(base: type) -> type:
    subclass = _subclasses.get(base)
    if subclass is None:
        looks_like = {"__module__": base.__module__, "__doc__": base.__doc__, "__class__": property(lambda self: base)}
        subclass = type(base.__name__, (_Observed, base), {**looks_like, "_observed_base": base})
        _subclasses[base] = subclass
    return subclass


class _Observed:
    """Comes before the scaler's own class; every method does what the scaler does and tells of it."""

    _observed_base: type

    def __reduce_ex__(self, protocol: Any) -> Any:
        ours = type(self)
        _CLASS.__set__(self, self._observed_base)
        try:
            return self.__reduce_ex__(protocol)
        finally:
            _CLASS.__set__(self, ours)

    def scale(self, outputs: Any) -> Any:
        observer = _observers.get(id(self))
        scale = super().scale  # type: ignore[misc]
        if observer is None or torch.compiler.is_compiling():
            return scale(outputs)
        if isinstance(outputs, (Tensor, list, tuple)):
            scaled = scale(outputs)
            _follow_all(outputs, scaled, observer)
            return scaled
        if not isinstance(outputs, Iterable):
            return scale(outputs)  # the scaler's own error
        # A generator is for the scaler to draw from: note what passes, one by one, as it is drawn.
        passed: list[Any] = []

        def note(each: Any) -> Any:
            passed.append(each)
            return each

        def follow(each: Any) -> Any:
            _follow_all(passed.pop(), each, observer)
            return each

        scaled = scale(map(note, outputs))
        return map(follow, scaled) if isinstance(scaled, map) else scaled

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        observer = _observers.get(id(self))
        try:
            super().unscale_(optimizer)  # type: ignore[misc]
        except ValueError:
            if observer is not None:
                observer.unscale_refused(optimizer)
            raise
        if observer is not None:
            observer.unscaled(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        observer = _observers.get(id(self))
        if observer is None:
            return super().step(optimizer, *args, **kwargs)  # type: ignore[misc]
        observer.scaler_step_begins(optimizer)
        failed = True
        try:
            result = super().step(optimizer, *args, **kwargs)  # type: ignore[misc]
            failed = False
            return result
        finally:
            observer.scaler_step_ended(optimizer, failed)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        observer = _observers.get(id(self))
        before = None if observer is None else observer.update_begins(new_scale)
        super().update(new_scale)  # type: ignore[misc]
        if observer is not None and before is not None:
            observer.update_ended(before)


def _follow_all(outputs: Any, scaled: Any, observer: StepObserver) -> None:
    if isinstance(outputs, Tensor):
        if isinstance(scaled, Tensor):
            _follow(outputs, scaled, observer)
    elif isinstance(outputs, (list, tuple)):
        for output, its_scaled in zip(outputs, scaled, strict=True):
            _follow_all(output, its_scaled, observer)


def _follow(output: Tensor, scaled: Tensor, observer: StepObserver) -> None:
    """Note the loss when its backward runs. The hook keeps the value alone: no graph, no observer alive."""
    observer.loss_scaled(output)
    if not scaled.requires_grad or output.is_complex():
        return
    loss = _value(output)
    ref = weakref.ref(observer)

    def backward_begins(gradient: Tensor) -> None:
        observer = ref()
        if observer is None:
            return
        if any(torch.is_autocast_enabled(device) for device in {"cpu", gradient.device.type}):
            observer.backward_under_autocast()
        if not torch.is_grad_enabled():  # with create_graph it is a part of a loss to come: a gradient penalty, say
            observer.backward_ran(loss, torch._C._current_graph_task_id())

    scaled.register_hook(backward_begins)


def _value(output: Tensor) -> Number:
    output = output.detach()
    if output.numel() != 1:
        output = output.sum(dtype=torch.float32 if output.dtype.itemsize < 4 else None)
    return hold(output)
