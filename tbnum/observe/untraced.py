"""Keeps torch.compile away from a function of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch._dynamo.decorators import skip

__all__ = ["tracer", "untraced"]

tracer = torch._C._dynamo.eval_frame.get_eval_frame_callback
"""What traces the frames of this thread, to compile them; None where nothing is compiled."""

_F = TypeVar("_F", bound=Callable[..., object])


def untraced(function: _F) -> _F:
    """torch.compile leaves out the function itself, and compiles what it calls as ever. Marks it in place.

    What `torch.compiler.disable(recursive=False)` does, without the wrapper that it puts around a function: a
    microsecond at each of the ten hooks of a step.
    """
    skip(function)
    return function
