"""Clocks the time that a training loop spends in tbnum, from outside: the product has no clock in it."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

import tbnum.monitor
from benchmarks.passes import Passes
from tbnum.log import writer
from tbnum.observe import grad_scaler
from tbnum.observe.clips import Clips
from tbnum.observe.losses import Losses
from tbnum.observe.scalers import Scalers
from tbnum.observe.updates import Updates
from tbnum.observe.usual import Noted, Usual

__all__ = ["Clock", "Spent"]

_HOOKS = [
    (torch.optim.Optimizer, ("register_step_pre_hook", "register_step_post_hook")),
    (torch.nn.Module, ("register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook")),
    (torch.Tensor, ("register_hook",)),
]
_PARTS = (Losses, Clips, Scalers, Updates, Noted, Usual)  # of the observer, with the methods that hooks call


class Spent(NamedTuple):
    """Seconds since the last time one asked."""

    inside: float  # in tbnum, on the training thread
    passes: float  # of these, in functions that go over tensors
    background: float  # processor time of the log's own thread

    @property
    def python(self) -> float:
        return self.inside - self.passes


class Clock:
    """While it is open, calls of tbnum from the training thread are clocked, the outermost each.

    Clocked are the hooks that tbnum registers with torch, what clipping and the scaler report to the observer, and
    `log_loss`. Not clocked is what surrounds these in a clip, a backward and a method of the scaler: some
    microseconds a step. What a pass is, `Passes` says. The clock has to be opened before `tbnum.wrap`.
    """

    def __init__(self) -> None:
        self._inside = self._background = 0.0
        self._in_tbnum = False
        self._passes = Passes()
        self._replaced: list[tuple[Any, str, Any]] = []
        self._thread = threading.get_ident()

    def take(self) -> Spent:
        spent = Spent(self._inside, self._passes.take(), self._background)
        self._inside = self._background = 0.0
        return spent

    @contextmanager
    def running(self) -> Iterator[Clock]:
        try:
            self._install()
            with self._passes.running():
                yield self
        finally:
            for owner, name, original in reversed(self._replaced):
                setattr(owner, name, original)
            self._replaced.clear()

    def _install(self) -> None:
        for owner, names in _HOOKS:
            for name in names:
                self._replace(owner, name, self._registering(getattr(owner, name)))
        for part in _PARTS:
            for name, method in list(vars(part).items()):
                if callable(method) and not name.startswith("_"):
                    self._replace(part, name, self._entry(method))
        self._replace(tbnum.monitor.Monitor, "log_loss", self._entry(tbnum.monitor.Monitor.log_loss))
        self._replace(grad_scaler, "_remember_all", self._entry(grad_scaler._remember_all))
        self._replace(writer._Sink, "round", self._background_round(writer._Sink.round))

    def _replace(self, owner: Any, name: str, by: Any) -> None:
        self._replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, by)

    def _entry(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            if self._in_tbnum or threading.get_ident() != self._thread:
                return call(*args, **kwargs)
            self._in_tbnum = True
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._inside += time.perf_counter() - start
                self._in_tbnum = False

        return clocked

    def _registering(self, register: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(register)
        def registered(owner: Any, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if str(getattr(hook, "__module__", "")).startswith("tbnum."):
                hook = self._entry(hook)
            return register(owner, hook, *args, **kwargs)

        return registered

    def _background_round(self, call: Callable[..., bool]) -> Callable[..., bool]:
        @functools.wraps(call)
        def clocked(*args: Any) -> bool:
            start = time.thread_time()
            try:
                return call(*args)
            finally:
                self._background += time.thread_time() - start

        return clocked
