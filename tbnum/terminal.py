"""What a training prints: a line when recording begins, and with `verbose=True` warnings and errors as they come."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path

from tbnum.explain.words import terminal_text
from tbnum.log.schema import Event

__all__ = ["announce", "print_live"]


def announce(folder: Path) -> None:
    """Say where a run is recorded, and how to look at it."""
    shown = _shown(folder)
    above = folder.parent if folder.parent.name else folder
    _write(
        f"tbnum: recording to {shown}; look with `tensorboard --logdir {_shown(above)}` (tab Numerics), "
        f"or `tbnum report {shown}`"
    )


def print_live(event: Event) -> None:
    """Print an event that is worth a look, with its remedy; nothing for an "info"."""
    if event.severity == "info":
        return
    label = f"{event.kind}, {event.cause}" if event.cause else event.kind
    _write(f"tbnum: step {event.step}: {event.severity}: {label}: {event.message} {event.remedy}".rstrip())


def _shown(folder: Path) -> str:
    """A path as it is typed from the working directory."""
    with contextlib.suppress(ValueError, OSError):  # OSError: the working directory is gone
        folder = folder.relative_to(Path.cwd())
    return shlex.quote(terminal_text(str(folder)))


def _write(line: str) -> None:
    """To standard error, so that what a program prints stays its own. A closed terminal ends no training."""
    if sys.stderr is None:
        return
    tqdm = sys.modules.get("tqdm")
    with contextlib.suppress(OSError, ValueError):
        if tqdm is not None and hasattr(tqdm, "tqdm"):
            tqdm.tqdm.write(terminal_text(line), file=sys.stderr)  # above the progress bars that are there
        else:
            print(terminal_text(line), file=sys.stderr, flush=True)
