"""What those who watch a training have in common: they do it no harm, and look away from what is no part of it."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

import torch

from tbnum.observe.caller import warn
from tbnum.observe.untraced import untraced

__all__ = ["Part", "Watcher", "harmless", "of_a_signal"]

_tracer: Callable[[], object] = torch._C._dynamo.eval_frame.get_eval_frame_callback  # None where nothing is compiled
_P = ParamSpec("_P")
_R = TypeVar("_R")
_W = TypeVar("_W", bound="Watcher | Part")


class Watcher:
    """Trouble of its own is reported once, as `could not ...`; in a context of `muted` its hooks do nothing."""

    def __init__(self, could_not: str) -> None:
        self._could_not = could_not
        self._is_muted = False
        self.troubles = 0

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """What runs in this context is not the training."""
        before, self._is_muted = self._is_muted, True
        try:
            yield
        finally:
            self._is_muted = before

    @property
    def watcher(self) -> Watcher:
        return self

    def trouble(self, error: Exception) -> None:
        self.troubles += 1
        if self.troubles == 1:
            warn(
                f"tbnum could not {self._could_not} ({type(error).__name__}: {error}). "
                "Training is not affected; the record lacks what it could not see."
            )


class Part:
    """A part of what a watcher does, with its methods that hooks call."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher


def harmless(method: Callable[Concatenate[_W, _P], _R]) -> Callable[Concatenate[_W, _P], _R | None]:
    """A method that hooks call, in the loop and in the model: no exception of its own reaches them."""

    disabled = torch.compiler.disable(method)

    @untraced
    @functools.wraps(method)
    def called(self: _W, /, *args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        watcher = self.watcher
        if watcher._is_muted:
            return None
        try:
            if _tracer() is None:
                return method(self, *args, **kwargs)
            return disabled(self, *args, **kwargs)  # under torch.compile: it would trace what the method calls
        except Exception as error:
            if of_a_signal(error):
                raise
            watcher.trouble(error)
            return None

    return called


def of_a_signal(error: Exception) -> bool:
    """Whether a handler of a signal raised it, which came while a hook was running: it is meant for the loop."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code not in handlers:
        traceback = traceback.tb_next
    return traceback is not None
