"""Where in the user's code a hook was reached from."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from types import FrameType

import torch

__all__ = ["users_line", "warn"]

_TORCH, _TBNUM = os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__))
_NOT_THE_USERS = (_TORCH + os.sep, _TBNUM + os.sep, "<frozen")
_FRAMEWORKS = ("lightning", "pytorch_lightning", "lightning_fabric", "transformers", "accelerate")  # packages


def users_line() -> str | None:
    """`file.py:12` of the nearest frame that is none of torch's, tbnum's or a framework's; None where there is none.

    About 0.2 microseconds a frame: for events, not for every step.
    """
    frame, _ = _users_frame()
    return None if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


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
