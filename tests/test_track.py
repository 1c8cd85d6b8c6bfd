"""The table of states: every cell of it does what it says, and the documentation shows it as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tbnum.observe.attempt import Attempt, Outcome
from tbnum.observe.track import CLOSES_WAITING, TABLE, Move, Phase, Signal, Track, moves

DOCUMENT = Path(__file__).parent.parent / "docs" / "architecture.md"


class Watched:
    """A track in a phase, and what came out of it."""

    def __init__(self, phase: Phase, waiting: bool) -> None:
        self.optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
        self.finished: list[Attempt] = []
        self.ended: list[Attempt] = []
        self.track = Track(
            "optimizer",
            self.optimizer,
            lambda track, attempt: self.finished.append(attempt),
            lambda track, attempt: self.ended.append(attempt),
        )
        if waiting:
            self.track.signal(Signal.GRADIENT)
            self.track.signal(Signal.STEP_UNDER_SCALER)
        if phase is not Phase.NONE:
            self.track.signal(Signal.GRADIENT)
        if phase is Phase.LOOKED:
            self.track.signal(Signal.LOOK)
        self.open, self.waiting = self.track.open, self.track.waiting


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("phase", Phase)
def test_every_cell_of_the_table_moves_the_attempts_as_it_says(phase: Phase, waiting: bool, signal: Signal) -> None:
    watched = Watched(phase, waiting)
    track, expected = watched.track, moves(phase, waiting, signal)
    about = track.signal(signal)

    closes_waiting = Move.FINISH_WAITING in expected
    assert (watched.waiting in watched.finished) == (waiting and closes_waiting)
    assert (about is not None) == (
        track.open is not None or bool({Move.FINISH, Move.WAIT, Move.HOLD} & set(expected)) or Move.END in expected
    )
    if Move.OPEN in expected:
        assert about is not None and about is not watched.open
    if Move.FINISH in expected:
        assert watched.finished[-1] is about and about.outcome is Outcome.STEPPED and track.phase is Phase.NONE
    if Move.WAIT in expected or Move.HOLD in expected:
        assert track.waiting is about and about is not None
        assert about.outcome is (Outcome.HELD if Move.HOLD in expected else Outcome.STEPPED)
    if Move.END in expected:
        assert watched.ended == [watched.open] and track.open is None
    if Move.MARK in expected:
        assert track.phase is Phase.LOOKED
    if not expected:
        assert (track.open, track.waiting, track.phase) == (watched.open, watched.waiting, phase)


def test_no_signal_is_missing_from_the_table() -> None:
    assert set(TABLE) == set(Phase)
    assert all(set(row) == set(Signal) for row in TABLE.values())


def test_the_documentation_shows_the_table_as_it_is() -> None:
    assert drawn() in DOCUMENT.read_text(encoding="utf-8"), (
        f"docs/architecture.md lacks the table as it is now:\n{drawn()}"
    )


def drawn() -> str:
    lines = [f"| open attempt | {' | '.join(signal.value for signal in Signal)} |", "|---" * (len(Signal) + 1) + "|"]
    for phase, row in TABLE.items():
        cells = [", ".join(move.value for move in row[signal]) or "-" for signal in Signal]
        lines.append(f"| {phase.value} | {' | '.join(cells)} |")
    waiting = [Move.FINISH_WAITING.value + " first" if signal in CLOSES_WAITING else "as above" for signal in Signal]
    for place, signal in enumerate(Signal):
        if signal in (Signal.UPDATE, Signal.UPDATE_OF_UNSCALED):
            waiting[place] = Move.FINISH_WAITING.value
    return "\n".join([*lines, f"| any, and one waits | {' | '.join(waiting)} |"])
