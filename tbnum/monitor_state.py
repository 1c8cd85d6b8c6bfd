"""What a checkpoint keeps of a monitor: made by `Monitor.state_dict`, checked before a run goes on from it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tbnum._version import __version__

if TYPE_CHECKING:
    from tbnum.observe.steps import StepObserver
    from tbnum.recorder import Recorder

__all__ = ["STATE_VERSION", "checked_state", "state_at", "state_of"]

STATE_VERSION = 1
_MOST_STEPS = 2**62  # step numbers are written as 64-bit integers, and go on from there


def checked_state(state: Any) -> dict[str, Any]:
    """A copy of the state, with plain numbers. Without `skipped_steps` where it has none (`state_at`).

    Raises:
        ValueError: it is none, or one of a newer tbnum, or a value in it cannot be.
    """
    version = state.get("version") if isinstance(state, Mapping) else None
    if not isinstance(state, Mapping) or version != STATE_VERSION or "step" not in state:
        what = "" if isinstance(state, Mapping) else f"; it is {type(state).__name__}"
        raise ValueError(
            f"this is no state of a tbnum monitor that tbnum {__version__} can read (version {version!r}, "
            f"expected {STATE_VERSION}{what}): pass what monitor.state_dict() gave, or leave it out to start at step 0."
        )
    checked = {**state, "step": _count(state, "step")}
    if "skipped_steps" in state:
        checked["skipped_steps"] = _count(state, "skipped_steps")
    scale, session = state.get("loss_scale"), state.get("session")
    if scale is not None and not (isinstance(scale, numbers.Real) and 0 < float(scale) < math.inf):
        raise _no_state("loss_scale", scale, "a positive number, or None without a scaler")
    if session is not None and not isinstance(session, str):
        raise _no_state("session", session, "a text")
    return checked


def state_of(observer: StepObserver, recorder: Recorder) -> dict[str, Any]:
    """What a checkpoint needs. Reads the scale, which waits for the device."""
    scaler = observer.scaler
    return {
        "version": STATE_VERSION,
        "step": observer.next_step,
        "skipped_steps": recorder.skipped_steps,
        "session": recorder.session,
        "loss_scale": scaler.get_scale() if scaler is not None else None,
    }


def state_at(step: int, how: str) -> dict[str, Any]:
    """For `load_state_dict`, where a checkpoint has no state of a monitor, and `how` knows at which step it was."""
    return {"version": STATE_VERSION, "step": step, "how": how}


def _count(state: Mapping[str, Any], name: str) -> int:
    count = state[name]
    if isinstance(count, bool) or not isinstance(count, numbers.Integral) or not 0 <= int(count) < _MOST_STEPS:
        raise _no_state(name, count, "a whole number from 0 to below 2**62")
    return int(count)


def _no_state(name: str, value: Any, expected: str) -> ValueError:
    return ValueError(
        f"this is no state of a tbnum monitor: its {name} is {value!r:.80}, which has to be {expected}. Pass what "
        "monitor.state_dict() gave, or leave it out: then the run goes on where optimizer and record say, or at step 0."
    )
