"""Sees `scale`, `unscale_`, `step` and `update` of a live GradScaler.

The class of the scaler is swapped for a subclass that tells the observer and then does what the scaler does. The
object stays the same object; `__class__` and pickles tell of the original class, and nothing is put on the instance.
A class that another sets meanwhile is followed as well, and is there afterwards; methods of ours that another has kept
do then what the scaler's own do.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tbnum.observe.steps import StepObserver

__all__ = ["observe_scaler"]

_CLASS = object.__dict__["__class__"]  # sets the real class, past the property that hides ours

_observers: dict[int, weakref.ref[StepObserver]] = {}  # by id of the scaler
_subclasses: weakref.WeakValueDictionary[type, type] = weakref.WeakValueDictionary()


def observe_scaler(scaler: torch.amp.GradScaler, observer: StepObserver) -> Callable[[], None]:
    """Tell `observer` of every call on `scaler`, until the function that is returned is called, or it is freed."""
    key = id(scaler)
    _observers[key] = weakref.ref(observer)
    _set_class(scaler, type(scaler))
    ends: list[weakref.finalize[..., Any]] = [
        weakref.finalize(scaler, _forget, key, None),
        weakref.finalize(observer, _forget, key, weakref.ref(scaler)),
    ]
    for end in ends:
        end.atexit = False

    def release() -> None:
        for end in ends:
            end()

    return release


def _forget(key: int, ref: weakref.ref[torch.amp.GradScaler] | None) -> None:
    _observers.pop(key, None)
    scaler = None if ref is None else ref()
    if scaler is not None:
        _CLASS.__set__(scaler, _told_class(scaler))


def _told_class(scaler: Any) -> type:
    """The class that the scaler has without us."""
    there = type(scaler)
    base: type = vars(there).get("_observed_base", there)  # its own: another may have derived a class from ours
    return base


def _set_class(scaler: Any, told: type) -> None:
    _CLASS.__set__(scaler, told if issubclass(told, _Observed) else _observed(told))


def _its_own(scaler: Any, method: str) -> Any:
    if issubclass(type(scaler), _Observed):
        return getattr(super(_Observed, scaler), method)
    return getattr(type(scaler), method).__get__(scaler)  # observed no more, and somebody has kept our method


@torch.compiler.disable  # where a whole step is compiled, this is no part of it
def _tell(scaler: Any, what: str, *args: Any) -> Any:
    """Call a method of the scaler's observer, where it has one."""
    ref = _observers.get(id(scaler))
    observer = None if ref is None else ref()
    return None if observer is None else getattr(observer, what)(*args)


def _observed(base: type) -> type:
    subclass = _subclasses.get(base)
    if subclass is None:
        looks_like = {
            "__module__": base.__module__,
            "__doc__": base.__doc__,
            "__class__": property(_told_class, _set_class),
        }
        # torch.compile leaves the methods of torch's own scaler uncompiled, and so it is to be with these; what they
        # call (an optimizer's step) it compiles all the same.
        methods = {name: torch.compiler.disable(getattr(_Observed, name), recursive=False) for name in _OBSERVED}
        subclass = type(base.__name__, (_Observed, base), {**looks_like, **methods, "_observed_base": base})
        _subclasses[base] = subclass
    return subclass


class _Observed:
    """Comes before the scaler's own class; every method does what the scaler does and tells of it.

    Arguments are passed on as they come: a subclass may take others than torch's scaler does.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        """What a scaler's class asks of its subclasses is not asked of this one."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the scaler's own, of the scaler's own class."""
        ours, base = type(self), _told_class(self)
        reduced = super().__reduce_ex__(protocol)
        if not isinstance(reduced, tuple):
            return reduced
        make, arguments, *rest = reduced
        return base if make is ours else make, tuple(base if each is ours else each for each in arguments), *rest

    def scale(self, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        scale = _its_own(self, "scale")
        if isinstance(outputs, (Tensor, list, tuple)) or not isinstance(outputs, Iterable):
            scaled = scale(outputs, *args, **kwargs)
            _follow_all(self, outputs, scaled)
            return scaled
        # A generator is for the scaler to draw from: note what passes, one by one, as it is drawn.
        passed: list[Any] = []

        def note(each: Any) -> Any:
            passed.append(each)
            return each

        def follow(each: Any) -> Any:
            _follow_all(self, passed.pop(), each)
            return each

        scaled = scale(map(note, outputs), *args, **kwargs)
        return map(follow, scaled) if isinstance(scaled, map) else scaled

    def unscale_(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        try:
            result = _its_own(self, "unscale_")(optimizer, *args, **kwargs)
        except ValueError:
            _tell(self, "unscale_refused", optimizer)
            raise
        _tell(self, "unscaled", optimizer)
        return result

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        _tell(self, "scaler_step_begins", optimizer)
        failed = True
        try:
            result = _its_own(self, "step")(optimizer, *args, **kwargs)
            failed = False
            return result
        finally:
            _tell(self, "scaler_step_ended", optimizer, failed)

    def update(self, *args: Any, **kwargs: Any) -> Any:
        before = _tell(self, "update_begins", args[0] if args else kwargs.get("new_scale"))
        result = _its_own(self, "update")(*args, **kwargs)
        if before is not None:
            _tell(self, "update_ended", before)
        return result


_OBSERVED = ("scale", "unscale_", "step", "update")


@torch.compiler.disable
def _follow_all(scaler: Any, outputs: Any, scaled: Any) -> None:
    if isinstance(outputs, Tensor):
        if isinstance(scaled, Tensor):
            _tell(scaler, "loss_scaled", outputs, scaled)
    elif isinstance(outputs, (list, tuple)):
        for output, its_scaled in zip(outputs, scaled, strict=True):
            _follow_all(scaler, output, its_scaled)
