"""A flight recorder for the numerics of PyTorch training, shown in TensorBoard.

monitor = tbnum.wrap(optimizer, scaler, model=model, logdir="runs/gpt")   # the training loop stays as it is
runs = tbnum.read("runs")                                                 # every step of every run, as arrays
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tbnum._version import __version__

if TYPE_CHECKING:
    from tbnum.compare import Difference, diff
    from tbnum.explain.finding import Finding
    from tbnum.log.schema import Event
    from tbnum.measure.clip import clip_grad_norm_
    from tbnum.monitor import Monitor, wrap
    from tbnum.observe.replay import Origin
    from tbnum.run import Run

__all__ = [
    "Difference",
    "Event",
    "Finding",
    "Monitor",
    "Origin",
    "Run",
    "__version__",
    "clip_grad_norm_",
    "diff",
    "read",
    "wrap",
]

# Imported when first asked for, so that a program that uses none of it loads none of it.
_LAZY = {
    "Run": "tbnum.run",
    "Event": "tbnum.log.schema",
    "Finding": "tbnum.explain.finding",
    "Difference": "tbnum.compare",
    "diff": "tbnum.compare",
    # These need torch: reading a log and the command need none.
    "wrap": "tbnum.monitor",
    "Monitor": "tbnum.monitor",
    "Origin": "tbnum.observe.replay",
    "clip_grad_norm_": "tbnum.measure.clip",
}


def read(
    logdir: str | os.PathLike[str], *, session: int | None = None, tags: Mapping[str, str] | None = None
) -> dict[str, Run]:
    """The runs below `logdir`, by their name relative to it ('.' for `logdir` itself). Needs no torch.

    Lists folders and opens no record: what a run holds is read when it is first used. With `session`, a run is what
    that one session of it recorded (0 the first), also where a later session superseded it.

    Runs that never used tbnum are there too, if they left TensorBoard scalars of a loss or a loss scale: their skips
    are inferred, and `run.meta["source"]` is "tensorboard". `tags` gives the scalar of a column that is not
    recognised: `{"loss_scale": "amp/scale"}`.

    `logdir` may be a URL that fsspec takes, `s3://...`.

    Raises:
        TypeError: `logdir` is no path, `session` no whole number, or `tags` no mapping.
        FileNotFoundError: there is no such folder.
        OSError: the URL cannot be reached, or its file system's package is not installed.
        ValueError: `logdir` is empty; no run has the session; `tags` has a column or a tag that there is not.
    """
    from tbnum.explain import explain_run, findings
    from tbnum.log.logdir import read as read_runs
    from tbnum.run import Run, ScalarRun

    return read_runs(  # type: ignore[return-value]
        logdir,
        session=session,
        explain=explain_run,
        find=findings,
        tags=tags,
        run_type=Run,
        scalar_run_type=ScalarRun,
    )


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
