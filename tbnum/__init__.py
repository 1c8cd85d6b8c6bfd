"""A flight recorder for the numerics of PyTorch training, shown in TensorBoard.

    monitor = tbnum.wrap(optimizer, scaler, model=model, logdir="runs/gpt")   # the training loop stays as it is
    runs = tbnum.read("runs")                                                 # every step of every run, as arrays
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from tbnum._version import __version__

if TYPE_CHECKING:
    from tbnum.log.reader import Run
    from tbnum.measure.clip import clip_grad_norm_
    from tbnum.monitor import Monitor, wrap
    from tbnum.observe.replay import Origin

__all__ = ["Monitor", "Origin", "__version__", "clip_grad_norm_", "read", "wrap"]

# These need torch. They are imported when first asked for, so that reading a log and the command need none.
_NEEDS_TORCH = {
    "wrap": "tbnum.monitor",
    "Monitor": "tbnum.monitor",
    "Origin": "tbnum.observe.replay",
    "clip_grad_norm_": "tbnum.measure.clip",
}


def read(logdir: str | os.PathLike[str], *, session: int | None = None) -> dict[str, Run]:
    """The runs below `logdir`, by their name relative to it ('.' for `logdir` itself). Needs no torch.

    Lists folders and opens no record: what a run holds is read when it is first used. With `session`, a run is what
    that one session of it recorded (0 the first), also where a later session superseded it.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    from tbnum.explain import explain_run
    from tbnum.log import reader

    return reader.read(logdir, session=session, explain=explain_run)


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_NEEDS_TORCH[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
