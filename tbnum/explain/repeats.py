"""Whether a run repeats one that diverged: the same seed and settings fail again. Loads no torch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tbnum.explain import explain_run
from tbnum.explain.record import Record

__all__ = ["FINGERPRINTED", "divergence", "fingerprint", "seed_of", "setting"]

FINGERPRINTED = ("seed", "optimizers", "scaler", "config")
"""What of a session's meta makes two runs the same: the seed, the settings with the shapes of what they train, and
the user's own `config`."""


def fingerprint(meta: Mapping[str, Any]) -> str:
    """Equal for runs that would do the same."""
    settings = {key: meta.get(key) for key in FINGERPRINTED}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def seed_of(meta: Mapping[str, Any]) -> Any:
    """The seed, as the session or else its `config` reported it; None where neither did."""
    config = meta.get("config")
    seed = meta.get("seed")
    return config.get("seed") if seed is None and isinstance(config, Mapping) else seed


def setting(meta: Mapping[str, Any]) -> str:
    """Equal for runs that differ in nothing but the seed."""
    config = meta.get("config")
    if isinstance(config, Mapping):
        config = {key: value for key, value in config.items() if key != "seed" and not str(key).endswith("_seed")}
    return fingerprint({**meta, "seed": None, "config": config})


def divergence(run: Record) -> tuple[int, str] | None:
    """The step at which a run was lost, and in words how; None for one that was not.

    Lost is a run whose loss scale collapsed, whose parameters are not finite, which stepped on a gradient that was
    not finite, or which ended in an exception while its loss was not finite.
    """
    for event in explain_run(run):
        if event.kind == "scale_collapse":
            return event.step, "its loss scale collapsed"
        if event.kind == "skip" and event.cause == "nonfinite_parameters":
            return event.step, "its parameters were not finite"
        if event.kind == "nonfinite_step":
            return event.step, "it stepped on a gradient that was not finite"
        if event.kind == "crash" and not _last_loss_was_finite(run):
            return event.step, f"it ended in an exception while its loss was not finite ({event.data.get('error')})"
    return None


def _last_loss_was_finite(run: Record) -> bool:
    loss = run.steps.get("loss", np.empty(0))
    seen = run.steps.get("micro_batches", np.empty(0)) >= 1
    return not len(loss) or not seen[-1] or math.isfinite(loss[-1])
