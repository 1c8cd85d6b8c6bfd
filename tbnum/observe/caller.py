"""Where a hook was reached from: in the user's code, and in which steps of torch's."""

from __future__ import annotations

import sys
from types import FrameType

import torch

from tbnum.caller import users_line, users_place, warn

__all__ = ["steps_on_the_stack", "users_line", "users_place", "warn"]

_TORCH_OPTIMIZER = torch.optim.Optimizer.profile_hook_step.__code__.co_filename


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
