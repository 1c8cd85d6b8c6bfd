"""Sees `scale`, `unscale_`, `step` and `update` of every GradScaler, whether it was given to tbnum or not.

The methods are wrapped on the classes, torch's and all that are derived from it, so that a live scaler stays as it is,
and so do its pickles. Who defines such a class while a monitor lives has its methods wrapped as well.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from tbnum.observe.patch_point import PatchPoint, Place
from tbnum.observe.scaled import remember
from tbnum.observe.steps import StepObserver
from tbnum.observe.untraced import tracer, untraced

__all__ = ["observe_scalers"]

_BASE = torch.amp.GradScaler


def observe_scalers(observer: StepObserver) -> Callable[[], None]:
    """Report every call on a scaler to `observer`, until the function that is returned is called."""
    return _patch_point.observe(observer)


class _SubclassHook(Place):
    """`__init_subclass__` is most often inherited, and is to be gone afterwards."""

    def read(self) -> Any:
        return vars(self.holder).get(self.attribute)

    def write(self, function: Any) -> None:
        if function is None:
            delattr(self.holder, self.attribute)
        else:
            setattr(self.holder, self.attribute, function)


def _places() -> Iterator[Place]:
    for kind in _classes(_BASE):
        yield from _places_of(kind)
    yield _SubclassHook(_BASE, "__init_subclass__", _seen_subclass)


def _classes(kind: type) -> Iterator[type]:
    yield kind
    derived: list[type] = type.__subclasses__(kind)
    for other in derived:
        yield from _classes(other)


def _places_of(kind: type) -> list[Place]:
    return [Place(kind, name, stand_in) for name, stand_in in _STAND_INS.items() if name in vars(kind)]


def _seen_subclass(original: Any) -> Any:
    def init_subclass(kind: type, **arguments: Any) -> None:
        if original is None:
            super(_BASE, kind).__init_subclass__(**arguments)  # type: ignore[misc]  # a class method's own `super()`
        else:
            original.__get__(None, kind)(**arguments)
        _patch_point.swap_in(_places_of(kind))

    return classmethod(init_subclass)


_patch_point: PatchPoint[StepObserver] = PatchPoint(_places)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.inside: set[tuple[int, str]] = set()  # a subclass calls the method of its base: the outermost counts


_thread = _Thread()


def _outermost(name: str, stand_in: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Of a method of that name: `stand_in(original, scaler, ...)` is called in its place, once for each call."""

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        @untraced  # torch.compile leaves the methods of torch's own scaler uncompiled, and so it is to be with these
        @functools.wraps(original)
        def method(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            key = (id(scaler), name)
            if key in _thread.inside or not getattr(scaler, "_enabled", False):
                return original(scaler, *args, **kwargs)
            _thread.inside.add(key)
            try:
                return stand_in(original, scaler, *args, **kwargs)
            finally:
                _thread.inside.discard(key)

        return method

    return wrapped


def _scale(original: Callable[..., Any], scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(outputs, (Tensor, list, tuple)) or not isinstance(outputs, Iterable):
        scaled = original(scaler, outputs, *args, **kwargs)
        _remember_all(scaler, outputs, scaled)
        return scaled
    # A generator is for the scaler to draw from: note what passes, one by one, as it is drawn.
    passed: list[Any] = []

    def note(output: Any) -> Any:
        passed.append(output)
        return output

    def follow(output: Any) -> Any:
        _remember_all(scaler, passed.pop(), output)
        return output

    scaled = original(scaler, map(note, outputs), *args, **kwargs)
    return map(follow, scaled) if isinstance(scaled, map) else scaled


def _unscale_(original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    observers = _patch_point.observers()
    try:
        result = original(scaler, optimizer, *args, **kwargs)
    except ValueError:
        for observer in observers:
            observer.scalers.unscale_refused(scaler, optimizer)
        raise
    for observer in observers:
        if not observer.usual.unscaled(scaler, optimizer) and not observer.usual.is_others(optimizer):
            observer.scalers.unscaled(scaler, optimizer)
    return result


def _step(original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    observers = _patch_point.observers()
    for observer in observers:
        if not observer.usual.scaler_step_begins(scaler, optimizer) and not observer.usual.is_others(optimizer):
            observer.scalers.step_begins(scaler, optimizer)
    failed = True
    try:
        result = original(scaler, optimizer, *args, **kwargs)
        failed = False
        return result
    finally:
        for observer in observers:
            if failed or not observer.usual.scaler_step_ended(scaler, optimizer):
                observer.scalers.step_ended(scaler, optimizer, failed)


def _update(original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
    new_scale = args[0] if args else kwargs.get("new_scale")
    begun: list[tuple[StepObserver, Any]] = []
    for observer in _patch_point.observers():
        usual = observer.usual
        if usual.update_begins(scaler, new_scale):
            begun.append((observer, usual))
        elif not usual.is_others_scaler(scaler):
            begun.append((observer, observer.scalers.update_begins(scaler, new_scale)))
    result = original(scaler, *args, **kwargs)
    for observer, update in begun:
        if update is observer.usual:
            update = observer.usual.update_ended(scaler)
        if update is not None:
            observer.scalers.update_ended(scaler, update)
            observer.usual.finished()
    return result


_STAND_INS = {
    "scale": _outermost("scale", _scale),
    "unscale_": _outermost("unscale_", _unscale_),
    "step": _outermost("step", _step),
    "update": _outermost("update", _update),
}


def _remember_all(scaler: Any, outputs: Any, scaled: Any) -> None:
    """A loss that cannot be read (inside of vmap, or where shapes alone are computed) is none to remember."""
    with contextlib.suppress(Exception):
        (_remember if tracer() is None else _remember_uncompiled)(scaler, outputs, scaled)


def _remember(scaler: Any, outputs: Any, scaled: Any) -> None:
    if isinstance(outputs, Tensor):
        if isinstance(scaled, Tensor):
            remember(scaler, outputs, scaled)
    elif isinstance(outputs, (list, tuple)):
        for output, its_scaled in zip(outputs, scaled, strict=True):
            _remember(scaler, output, its_scaled)


_remember_uncompiled = torch.compiler.disable(_remember)
