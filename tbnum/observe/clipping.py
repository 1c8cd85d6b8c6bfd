"""Sees torch's own gradient clipping while a monitor lives.

`torch.nn.utils` wraps its clipping functions in `_no_grad_wrapper`, a closure over the function proper. Swapping what
that closure cell holds reaches every caller, also one that bound the name long ago (`from torch.nn.utils import
clip_grad_norm_`), Lightning and Accelerate; replacing the module's attribute would not. FSDP1 has one of its own, a
method. A clip written by hand stays unseen; that gradients changed is noticed all the same where they were measured
before.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad as torch_clip_grad

from tbnum.measure.norms import Taken
from tbnum.observe.patch_point import PatchPoint, Place
from tbnum.observe.steps import StepObserver

__all__ = ["observe_clipping"]

_BY_NORM, _BY_GIVEN_NORM, _BY_VALUE = "clip_grad_norm_", "_clip_grads_with_norm_", "clip_grad_value_"
_TOTAL_NORM = "_get_total_norm"


class _Clip:
    """A clip that is under way in a thread: what it calls on its way is a part of it."""

    def __init__(
        self, parameters: list[Tensor], max_norm: float | None, *, is_2_norm: bool, value: float | None = None
    ) -> None:
        self.parameters = parameters
        self.max_norm = max_norm  # None of a clip by value
        self.value = value
        self.is_2_norm = is_2_norm
        self.groups: list[list[Tensor]] = []  # gradients of one device and type each, whose norms were taken
        self.taken: Taken | None = None
        self.touched: list[tuple[StepObserver, Any]] | None = None  # None until it has begun

    def begins(self) -> None:
        """The gradients are about to be multiplied."""
        if self.touched is None:
            self.touched = []
            for observer in _patch_point.observers():
                if observer.usual.clip_begins(self.parameters, self.max_norm, self.taken):
                    self.touched.append((observer, None))
                elif not observer.usual.is_no_part(self.parameters):
                    names = observer.clips.begins(self.parameters, self.max_norm, self.taken, self.value) or {}
                    self.touched.append((observer, names))

    def run(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        _thread.clip = self
        try:
            return original(*args, **kwargs)
        except BaseException:
            self.begins()  # a norm that is not finite can be refused (`error_if_nonfinite`): see what was to be clipped
            raise
        finally:
            _thread.clip = None

    def ended(self, total_norm: Any) -> None:
        known = total_norm if isinstance(total_norm, Tensor) else None
        for observer, names in self.touched or ():
            if names is None:
                if observer.usual.clip_ended(known):
                    continue
                names = observer.usual.clipped
            observer.clips.ended(names, self.max_norm, known, is_2_norm=self.is_2_norm)


class _Thread(threading.local):
    clip: _Clip | None = None


_thread = _Thread()


def observe_clipping(observer: StepObserver) -> Callable[[], None]:
    """Report every clip that touches its optimizers to `observer`, until the function that is returned is called."""
    return _patch_point.observe(observer)


def _places() -> Iterator[Place]:
    for name in (_BY_NORM, _BY_GIVEN_NORM, _BY_VALUE, _TOTAL_NORM):
        stand_in = _noting_norms if name == _TOTAL_NORM else functools.partial(_seen, name=name)
        for cell in getattr(getattr(torch_clip_grad, name, None), "__closure__", None) or ():
            if getattr(cell.cell_contents, "__name__", None) == name:
                yield Place(cell, "cell_contents", stand_in)
    fsdp1 = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")  # who has such a model has it
    if fsdp1 is not None:
        yield Place(fsdp1.FullyShardedDataParallel, "clip_grad_norm_", _seen_of_fsdp1)


_patch_point: PatchPoint[StepObserver] = PatchPoint(_places)


def _seen(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    names = tuple(inspect.signature(original).parameters)  # `bind` would take as long as a clip of some tensors
    # torch before 2.6 does all in one function: there a clip has begun before it takes a norm.
    called = getattr(getattr(original, "__code__", None), "co_names", ())
    takes_norms_first = {_TOTAL_NORM, _BY_GIVEN_NORM} <= set(called)

    @functools.wraps(original)
    def clip(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        if _thread.clip is not None:  # a clip by norm calls the clip by a given norm: only the outermost counts
            _thread.clip.begins()
            return original(*args, **kwargs)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        given = arguments.get("parameters")
        try:
            limit = float(arguments["clip_value" if name == _BY_VALUE else "max_norm"])
        except (KeyError, TypeError, ValueError):
            return original(*args, **kwargs)  # torch's own error
        if not isinstance(given, Iterable):
            return original(*args, **kwargs)
        parameters = _as_list(given)  # the user's: what it raises is his
        if not parameters:
            return _without_parameters(original, args, kwargs)
        if args:
            args = (parameters, *args[1:])
        else:
            kwargs["parameters"] = parameters
        if name == _BY_VALUE:
            clip = _Clip(parameters, None, is_2_norm=False, value=limit)
        else:
            clip = _Clip(parameters, limit, is_2_norm=name == _BY_NORM and arguments.get("norm_type", 2.0) == 2)
        if not takes_norms_first:
            clip.begins()
        result = clip.run(original, *args, **kwargs)
        clip.ended(arguments["total_norm"] if name == _BY_GIVEN_NORM else result)
        return result

    return clip


def _seen_of_fsdp1(original: Callable[..., Any]) -> Callable[..., Any]:
    """FSDP1's own, a method of the model; the norm that it goes by is that of all ranks' parts."""

    @functools.wraps(original)
    def clip_grad_norm_(model: Any, max_norm: Any, norm_type: Any = 2.0, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _thread.clip is not None:
            return original(model, max_norm, norm_type, *args, **kwargs)
        clip = _Clip(list(model.parameters()), float(max_norm), is_2_norm=norm_type == 2)
        clip.begins()
        result = clip.run(original, model, max_norm, norm_type, *args, **kwargs)
        clip.ended(result)
        return result

    return clip_grad_norm_


def _noting_norms(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch's `_get_total_norm`, and what it takes on its way to a 2-norm is noted in the clip that asks for it.

    The norm of each gradient, before clipping, is just what a record needs: a pass over all of them is saved. The code
    that runs is torch's own. Where it takes the norms in another way than is known here, nothing is noted.
    """
    if getattr(original, "__globals__", None) is not vars(torch_clip_grad):  # somebody else's, in torch's place
        return original
    noting = _NotingTotalNorm(original)

    @functools.wraps(original)
    def total_norm(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        if _thread.clip is None:
            if args and isinstance(args[0], (list, tuple)):
                for observer in _patch_point.observers():
                    observer.clips.norm_taken(args[0])
            return original(*args, **kwargs)
        if not _thread.clip.is_2_norm:
            return original(*args, **kwargs)
        return noting.function()(*args, **kwargs)

    return total_norm


class _NotingTotalNorm:
    """Makes `original` again, with a `torch` that notes. Others may put theirs in place of what it calls at any time:
    then it is made once more.
    """

    def __init__(self, original: Any) -> None:
        self._original = original
        self._calls = [name for name in original.__code__.co_names if name in original.__globals__]
        self._made_of: list[Any] = []
        self._function: Callable[..., Any] = original

    def function(self) -> Callable[..., Any]:
        original = self._original
        scope = original.__globals__
        made_of = [*map(scope.get, self._calls), original.__code__, len(scope)]
        if made_of != self._made_of:
            names = {**scope, "torch": _TorchNotingNorms()}
            made = types.FunctionType(original.__code__, names, None, original.__defaults__, original.__closure__)
            made.__kwdefaults__ = original.__kwdefaults__
            self._function, self._made_of = made, made_of  # in this order, for others clip in other threads
        return self._function


class _TorchNotingNorms:
    """Stands for the module `torch` in `_get_total_norm`, while a clip is under way."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def _foreach_norm(self, tensors: list[Tensor], *args: Any, **kwargs: Any) -> Any:
        """Called once for each device and type."""
        if _thread.clip is not None:
            _thread.clip.groups.append(tensors)
        return torch._foreach_norm(tensors, *args, **kwargs)

    def stack(self, norms: list[Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Called once, with the norms of all tensors."""
        stacked = torch.stack(norms, *args, **kwargs)
        if _thread.clip is not None and len(_thread.clip.groups) == 1:
            _thread.clip.taken = Taken(_thread.clip.groups[0], stacked)
        return stacked


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
