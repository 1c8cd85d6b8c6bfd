"""Where a hook was reached from: in the user's code, and in which steps of torch's."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from types import FrameType

import torch

__all__ = ["steps_on_the_stack", "users_line", "users_place", "warn"]

_TORCH, _TBNUM = os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__))
_NOT_THE_USERS = (_TORCH + os.sep, _TBNUM + os.sep, "<frozen")
_TORCH_OPTIMIZER = torch.optim.Optimizer.profile_hook_step.__code__.co_filename
_FRAMEWORKS = ("lightning", "pytorch_lightning", "lightning_fabric", "transformers", "accelerate")  # packages


def users_line() -> str | None:
    """`file.py:12` of the nearest frame that is none of torch's, tbnum's or a framework's; None where there is none.

    About 0.2 microseconds a frame: for events, not for every step.
    """
    frame, _ = _users_frame()
    return None if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def users_place() -> str | None:
    """`/path/file.py:12` of that frame."""
    frame, _ = _users_frame()
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def steps_on_the_stack(optimizer: torch.optim.Optimizer) -> int:
    """How many calls of this optimizer's `step` are running in this thread; about 0.1 microseconds a frame."""
    count = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == _TORCH_OPTIMIZER:
            args = frame.f_locals.get("args") or (None,)
            count += args[0] is optimizer
        frame = frame.f_back
    return count


def warn(message: str) -> None:
    """A RuntimeWarning at the user's line. Where warnings are errors it is kept back: tbnum ends no training."""
    _, level = _users_frame()
    with contextlib.suppress(RuntimeWarning):
        warnings.warn(message, RuntimeWarning, stacklevel=level + 1)


def _users_frame() -> tuple[FrameType | None, int]:
    """The frame, and how many frames above the one that called into this module it stands."""
    frame: FrameType | None = sys._getframe(2)
    level = 1
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if not frame.f_code.co_filename.startswith(_NOT_THE_USERS) and package not in _FRAMEWORKS:
            return frame, level
        frame = frame.f_back
        level += 1
    return None, 2
