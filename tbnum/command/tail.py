"""`tbnum tail`: follows a run, with new events as they happen."""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import Any

from rich.status import Status
from rich.text import Text

from tbnum.command.inputs import positive_seconds, runs_of, usable
from tbnum.command.output import console, print_line
from tbnum.command.printing import print_event
from tbnum.explain.summary import worth_reading
from tbnum.explain.words import number_text, scale_text, terminal_text
from tbnum.log.reader import Run
from tbnum.log.schema import Event

__all__ = ["configure", "run"]

PROGRESS_SECONDS = 10.0  # between two lines where the output is no terminal


def configure(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--interval", type=positive_seconds, default=1.0, metavar="S", help="seconds between two looks"
    )
    command.add_argument("--wait", action="store_true", help="wait for a run that has not begun yet")


def run(arguments: argparse.Namespace) -> int:
    """Prints the last events, then follows until the run is closed or Ctrl-C."""
    progress = _Progress()
    try:
        is_new = arguments.wait and _waited_for_a_run(arguments, progress)
        runs = runs_of(arguments)
        name = max(runs, key=lambda name: _or(runs[name].totals.last_wall_time, 0.0))
        if len(runs) > 1:
            print_line(f"following {name!r}, the newest of {len(runs)} runs; --run chooses another")
        _follow(usable(runs[name]), arguments.interval, progress, is_new)
    except KeyboardInterrupt:
        pass
    finally:
        progress.end()
    return 0


def _waited_for_a_run(arguments: argparse.Namespace, progress: _Progress) -> bool:
    """Until one of the folders holds a record; a folder that is not there yet may still come. False: one was there."""
    waited = False
    while not any(_has_a_run(logdir, arguments.run) for logdir in arguments.logdir):
        waited = True
        progress.show(f"waiting for a run in {' '.join(arguments.logdir)}")
        time.sleep(arguments.interval)
    return waited


def _has_a_run(logdir: str, name: str | None) -> bool:
    from tbnum.log.logdir import read

    if "://" not in logdir and not os.path.isdir(logdir):
        return False
    runs = read(logdir)
    return bool(runs) if name is None else name in runs


def _follow(run: Run, interval: float, progress: _Progress, is_new: bool) -> None:
    """Of a run that `is_new`, every event: none was there when the command began."""
    events = run.events
    for event in events if is_new else worth_reading(events)[-3:]:
        print_event(event, "")
    printed = {_identity(event) for event in events}
    while True:
        ended = run.totals.ended  # before the look for events: what was written before the end is printed
        if run.refresh():
            for event in run.events:
                if _identity(event) not in printed:
                    printed.add(_identity(event))
                    print_event(event, "")
        progress.show(_now(run))
        if ended is not None:
            progress.end()
            print(f"the run has {'ended' if ended == 'closed' else 'crashed'}")
            return
        time.sleep(interval)


def _identity(event: Event) -> tuple[Any, ...]:
    return event.wall_time, event.step, event.kind, event.optimizer


def _or(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value


def _now(run: Run) -> str:
    totals, losses = run.totals, run.steps.get("loss")
    skipped = "unknown" if totals.skipped_steps is None else f"{totals.skipped_steps:,} of {totals.steps:,}"
    if totals.last_step is None:
        return "no step yet"
    text = f"step {totals.last_step}  skipped {skipped}"
    if losses is not None and len(losses) and not math.isnan(losses[-1]):
        text += f"  loss {number_text(float(losses[-1]))}"
    if not math.isnan(totals.last_loss_scale):
        text += f"  scale {scale_text(totals.last_loss_scale)}"
    return text


class _Progress:
    """How far the run is: below the events on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        out = console()
        self._live = Status("", console=out) if out.is_terminal else None
        self._shown = ""
        self._next = 0.0

    def show(self, text: str) -> None:
        if self._live is not None:
            self._live.update(Text(terminal_text(text)))  # a str would be read as markup
            self._live.start()
            return
        if text == self._shown or time.monotonic() < self._next:
            return
        print(text, flush=True)
        self._shown, self._next = text, time.monotonic() + PROGRESS_SECONDS

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
