"""The monitors of this process: which of them is that of a `wrap`, and which is over, though nobody closed it.

A monitor ends with its optimizers. In a notebook they seldom end: the cell that made them runs again, and the scheduler
of the old one, an exception that was shown, or the object that trained still refers to it.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tbnum.alive import Alive
from tbnum.observe.caller import users_line, warn
from tbnum.observe.variables import Use, is_interactive, use_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from tbnum.monitor import Monitor
    from tbnum.options import Options

__all__ = ["OfThisProcess", "already_wrapped", "crash_facts", "is_over", "open_monitors", "warn_of_other_options"]

open_monitors: Alive[Monitor] = Alive()


def is_over(monitor: Monitor, call: str) -> bool:
    """Whether nothing more is recorded, of which the first such call warns."""
    if monitor in open_monitors:
        return False
    if call not in monitor._calls_after_close:
        monitor._calls_after_close.add(call)
        warn(
            f"{call} came after close(): the monitor that recorded to {str(monitor.logdir)!r} records nothing more. "
            "Call it before close() (or inside the `with` block), or tbnum.wrap() the objects again."
        )
    return True


class OfThisProcess:
    """A copy of what holds such an object holds the same one; a pickle of it holds None, and needs no tbnum."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(None), ()


@atexit.register  # before the log closes itself: finalizers were registered earlier, and run later
def _at_exit() -> None:
    for monitor in open_monitors:
        with contextlib.suppress(Exception):  # of one is no reason to lose what the others still hold
            _write_what_is_left(monitor)


def _write_what_is_left(monitor: Monitor) -> None:
    """Nobody called close(): what devices still hold, and why the interpreter ends, where that is known."""
    monitor._observer.drain(wait=True)
    error = getattr(sys, "last_value", None)  # an exception that nobody caught, since this was wrapped
    if error is not None and id(error) != monitor._earlier_error:
        monitor._observer.observe("crash", crash_facts(error))
    monitor._recorder.write_history()


def _scaler_of(monitor: Monitor) -> torch.amp.GradScaler | Callable[[], float] | None:
    """What `wrap` was given, where it is alive."""
    return monitor._scale if monitor._scaler is None else monitor._scaler()


def already_wrapped(
    optimizers: Mapping[str, torch.optim.Optimizer], scaler: Any, folder: Path, wrapped_at: str | None
) -> Monitor | None:
    """The monitor that records just these objects; None where they can be wrapped.

    One that is in the way and whose objects nobody can use any more is over, and is closed.

    Raises:
        ValueError: one that is in the way is in use.
    """
    for monitor in open_monitors:
        held = list(monitor._observer.optimizers().values())
        its_scaler = _scaler_of(monitor)
        given = {id(each) for each in (*optimizers.values(), scaler)}
        if {id(each) for each in held} == {id(each) for each in optimizers.values()} and _same(its_scaler, scaler):
            if folder != monitor.logdir:
                warn(
                    f"these objects are wrapped already and go on writing to {str(monitor.logdir)!r}; "
                    f"close() that monitor first to write to {str(folder)!r}."
                )
            return monitor
        its_objects = [each for each in (*held, its_scaler) if each is not None]
        others = [each for each in its_objects if id(each) not in given]
        is_shared = len(others) < len(its_objects)
        if not is_shared and folder != monitor.logdir:
            continue
        use = _use_of(others, monitor, wrapped_at)
        if held and (use is not None or not others):
            raise ValueError(_in_the_way(monitor, use, is_shared))
        _end(monitor, [each for each in held if id(each) not in given])
    return None


def warn_of_other_options(monitor: Monitor, asked: Options, modules: Mapping[str, nn.Module]) -> None:
    """`wrap` was called again for what the monitor records, with others perhaps."""
    names = monitor._options.where_not(asked)
    if modules and {id(module) for module in modules.values()} != {id(ref()) for ref in monitor._modules.values()}:
        names.append("model")
    if names:
        warn(
            f"these objects are wrapped already, and their monitor goes on as it was: what this call gives as "
            f"{', '.join(names)} is not taken. close() that monitor first to record them otherwise."
        )


def _use_of(objects: list[Any], monitor: Monitor, wrapped_at: str | None) -> Use | None:
    """How they can still be used. What the object of an earlier run of the same code holds is not in use.

    That run has taken steps, and the global variable that holds it is about to be given the object of this one.
    """
    use = use_of(objects) if objects else None
    if use is None or use.is_direct or not use.is_global or monitor.step == 0:
        return use
    is_run_again = is_interactive() or (wrapped_at is not None and monitor._wrapped_at == wrapped_at)
    return None if is_run_again else use


def _same(scaler: Any, other: Any) -> bool:
    """A function that gives the scale is mostly made for the call, and so another each time."""
    if scaler is None or other is None or isinstance(scaler, torch.amp.GradScaler):
        return scaler is other
    return not isinstance(other, torch.amp.GradScaler)


def _in_the_way(monitor: Monitor, use: Use | None, is_shared: bool) -> str:
    held = monitor._observer.optimizers()
    names = ", ".join(f"{name} ({type(optimizer).__name__})" for name, optimizer in held.items())
    made = f" It was made at {monitor._wrapped_at}." if monitor._wrapped_at else ""
    used = f" The variable {use.variable!r} of {use.where} still has what it records." if use is not None else ""
    folder = str(monitor.logdir)
    if is_shared:
        scaler = _scaler_of(monitor)
        return (
            f"some of these objects are recorded already, by a monitor that writes to {folder!r} (optimizers {names}; "
            f"scaler {'none' if scaler is None else type(scaler).__name__}).{made}{used} Wrap all of them in one call, "
            "or close() that monitor first."
        )
    return (
        f"another monitor of this process records {names} in {folder!r}, and two records in one folder hide each "
        f"other.{made}{used} Give this one its own folder, wrap all optimizers in one call, or close() that monitor "
        "first."
    )


def _end(monitor: Monitor, left_over: list[torch.optim.Optimizer]) -> None:
    """Close a monitor that is over; should an optimizer of it step all the same, that is not kept quiet."""
    line = users_line() or "the next wrap()"
    monitor.close()
    for optimizer in left_over:
        _warn_when_it_steps(
            optimizer,
            f"{type(optimizer).__name__} steps, and is not recorded any more: its record in {str(monitor.logdir)!r} "
            f"ended when another optimizer was wrapped in its place ({line}). Give each its own folder, or wrap both "
            "in one call.",
        )


def _warn_when_it_steps(optimizer: torch.optim.Optimizer, message: str) -> None:
    removals: list[Callable[[], None]] = []

    def once(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        while removals:
            removals.pop()()
            warn(message)

    removals.append(optimizer.register_step_pre_hook(torch.compiler.disable(once)).remove)


def crash_facts(error: BaseException) -> dict[str, Any]:
    """What is known of an exception that ended the loop."""
    facts: dict[str, Any] = {"error": _as_text(error)}
    # Anomaly mode may have been on in a block that has ended; then torch's own sentence shows it.
    if torch.is_anomaly_enabled() or "returned nan values in its" in str(error):
        facts["anomaly"] = True
    return facts


def _as_text(error: BaseException) -> str:
    return ": ".join(filter(None, (type(error).__name__, str(error))))
