"""What the callbacks share: a training of a framework's is a recording, and no trouble of ours reaches its trainer."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from tbnum.alive import Alive
from tbnum.arguments import checked_folder
from tbnum.monitor import Monitor, wrap
from tbnum.monitor_state import state_at
from tbnum.observe.caller import warn
from tbnum.options import checked_options

__all__ = ["Recording", "harmless", "same_folder"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_FOUND = ("optimizer", "scaler", "logdir", "writer", "model", "data")  # arguments of wrap that come from the framework
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(wrap).parameters.items()
    if name not in _FOUND and parameter.kind is parameter.KEYWORD_ONLY
}
OPTIONS = tuple(DEFAULTS)


def harmless(method: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """A hook that a framework calls: what goes wrong in it is a warning, given once, and training goes on."""
    reported: set[str] = set()

    @functools.wraps(method)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
            if trouble not in reported:
                reported.add(trouble)
                warn(f"tbnum's {method.__name__} failed, and training continues ({trouble}).")
            return None

    return called


class Recording:
    """The monitor of one training after the other, from when a trainer begins until it ends.

    Raises, when it is made:
        TypeError: an option that `tbnum.wrap` does not have.
        ValueError: a value that `tbnum.wrap` refuses.
    """

    def __init__(self, logdir: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> None:
        unknown = [name for name in options if name not in OPTIONS]
        if unknown:
            raise TypeError(
                f"{', '.join(unknown)}: no option of NumericsCallback, which takes logdir, {', '.join(OPTIONS)}."
            )
        if logdir is not None:
            checked_folder(logdir, None)
        self.logdir = logdir
        self.options = {name: value for name, value in options.items() if name != "data_ids" or value is not None}
        of_wrap = {name: self.options.get(name, DEFAULTS[name]) for name in OPTIONS if name != "verbose"}
        checked = checked_options(has_model=True, data=None, **of_wrap)
        if self.options.get("config") is not None:
            self.options["config"] = checked.config  # what had to be said of it is said
        self.monitor: Monitor | None = None
        self._state: dict[str, Any] | None = None

    def begin(
        self,
        optimizer: Any,
        scaler: torch.amp.GradScaler | None,
        model: nn.Module,
        *,
        folder: str | os.PathLike[str] | None,
        writer: Any = None,
        resumed: bool,
        step: int | None,
        accumulation: Callable[[], int] | None = None,
        loader: Any = None,
    ) -> None:
        """Record a training: in `logdir`, else through `writer`, the framework's own, else in `folder`.

        `resumed`: it continues where the state that was restored last, or the last training, left off; without such a
        state (of a checkpoint from before tbnum) at `step`, the framework's own count of updates, None where it is not
        that of one optimizer. `accumulation`: by what the framework divides the loss of each micro-batch. `loader`: the
        one that is trained on, which is followed where `data_ids` was given. Gives a warning, and no recording, where
        that cannot be.
        """
        self.end()
        state, self._state = self._state, None
        logdir = folder if self.logdir is None else self.logdir
        if writer is not None and (self.logdir is None or same_folder(self.logdir, writer.log_dir)):
            where = {"writer": writer}  # a second event writer in its folder would make TensorBoard lose one of the two
            logdir = writer.log_dir
        elif logdir is not None:
            where = {"logdir": logdir}
        else:
            warn(
                "tbnum records nothing of this training: the trainer has no logger with a folder to write beside. "
                "Give one: NumericsCallback(logdir='runs/name')."
            )
            return
        for other in list(_open):  # its trainer was interrupted, and does not call its callbacks
            if other.monitor is not None and same_folder(other.monitor.logdir, logdir):
                other.end()
        if "data_ids" in self.options:
            where["data"] = loader
        try:
            self.monitor = wrap(optimizer, scaler, model=model, **where, **self.options)
        except Exception as error:
            warn(f"tbnum records nothing of this training: {error}")
            return
        _open.add(self)
        self.monitor._recorder.accumulation = accumulation
        if state is None and step is not None:
            state = state_at(step, "framework")
        if resumed and state is not None:
            try:
                self.monitor.load_state_dict(state)
            except ValueError as error:
                warn(f"tbnum continues without the monitor's state in the checkpoint: {error}")

    def end(self, error: BaseException | None = None) -> None:
        """Close the monitor; `error` is what ended the training. Its state stays."""
        monitor = self.monitor
        if monitor is not None:
            self._state = self.state()
            self.monitor = None
            _open.discard(self)
            monitor.__exit__(None if error is None else type(error), error, None)

    def state(self) -> dict[str, Any] | None:
        """For a checkpoint: plain values. None before the first training. Waits for the device."""
        return self._state if self.monitor is None else self.monitor.state_dict()

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """What `state()` gave for the checkpoint that the next training resumes from; None where it gave nothing."""
        self._state = None if state is None else dict(state)

    def __getstate__(self) -> dict[str, Any]:
        """A copy, of a trainer that is copied or sent to another process, is not the one that records."""
        return {**self.__dict__, "monitor": None}


_open: Alive[Recording] = Alive()
"""Those that have a monitor, in this process."""


def same_folder(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    return os.path.realpath(os.path.expanduser(one)) == os.path.realpath(os.path.expanduser(other))
