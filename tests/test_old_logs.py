"""Logs of format 1 read as tbnum 0.1.0 read them: parts of a session supersede each other as sessions do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tbnum.log.reader import Run
from tests.format1 import COLUMNS, OldLog, row


def losses(run: Run) -> list[float]:
    return run.steps["loss"].tolist()


def norms(run: Run) -> list[tuple[int, list[float]]]:
    steps, _, values = run.tensors["grad_norm"]
    return list(zip(steps.tolist(), values.tolist(), strict=True))


def test_one_session_is_read_column_by_column(tmp_path: Path) -> None:
    log = OldLog(tmp_path)
    log.rows(range(5), skips=[3])
    log.event(3)
    log.table(0)
    log.close()
    run = Run(tmp_path)
    wanted = [row(step, 0, step == 3) for step in range(5)]
    assert tuple(run.steps) == COLUMNS
    for at, name in enumerate(COLUMNS):
        np.testing.assert_array_equal(run.steps[name], np.array([values[at] for values in wanted]), name)
    assert [(event.step, event.kind) for event in run.raw_events] == [(3, "skip")]
    assert norms(run) == [(0, [0.0, 1.0])]
    assert run.meta["ended"] == "closed" and run.meta["format_version"] == 1
    assert (run.totals.steps, run.totals.skipped_steps, run.totals.ended, run.totals.sessions) == (5, 1, "closed", 1)
    assert run.problems == []


def test_a_part_supersedes_the_parts_before_it_from_its_first_step(tmp_path: Path) -> None:
    log = OldLog(tmp_path)
    log.rows(range(10), skips=[2, 7])
    for step in (2, 7, 9):
        log.event(step)
    for step in (0, 5, 9):
        log.table(step)
    log.back_to(6)
    log.rows(range(6, 9), salt=1, skips=[8])
    log.event(8, salt=1)
    log.table(8, salt=1)
    log.back_to(7)
    log.rows([7], salt=2)
    log.close()
    run = Run(tmp_path)
    assert losses(run) == [0, 1, 2, 3, 4, 5, 6 + 1 / 8, 7 + 2 / 8]
    assert [(event.step, event.data) for event in run.raw_events] == [(2, {})]
    assert norms(run) == [(0, [0.0, 1.0]), (5, [5.0, 6.0])]
    assert len(run.meta["sessions"]) == 1
    assert (run.totals.steps, run.totals.skipped_steps, run.totals.last_step) == (8, 1, 7)
    assert run.totals.best_loss == 0.0


def test_a_part_that_took_no_step_supersedes_nothing(tmp_path: Path) -> None:
    log = OldLog(tmp_path)
    log.rows(range(10))
    log.table(9)
    log.back_to(4)
    log.event(4, kind="resume")
    run = Run(tmp_path)
    assert losses(run) == list(range(10))
    assert norms(run) == [(9, [9.0, 10.0])]
    log.rows([4], salt=1)
    assert run.refresh()
    assert losses(run) == [0, 1, 2, 3, 4 + 1 / 8]
    assert [event.kind for event in run.raw_events] == ["resume"]
    assert list(run.tensors) == []
    assert run.totals.steps == 5


def test_an_event_of_a_part_supersedes_from_the_step_that_the_part_began_at(tmp_path: Path) -> None:
    log = OldLog(tmp_path)
    log.rows(range(10))
    log.back_to(4)
    log.event(6, kind="clip_before_unscale")
    run = Run(tmp_path)
    assert losses(run) == [0, 1, 2, 3]
    assert [(event.step, event.kind) for event in run.raw_events] == [(6, "clip_before_unscale")]


def test_steps_that_go_back_without_a_part_supersede_too(tmp_path: Path) -> None:
    log = OldLog(tmp_path)
    log.rows(range(10))
    log.event(9)
    log.rows(range(3, 5), salt=1)
    log.close()
    run = Run(tmp_path)
    assert losses(run) == [0, 1, 2, 3 + 1 / 8, 4 + 1 / 8]
    assert run.raw_events == []
    assert run.totals.steps == 5


def test_a_later_session_supersedes_every_part_of_an_earlier_one(tmp_path: Path) -> None:
    first = OldLog(tmp_path)
    first.rows(range(10))
    for step in (1, 4, 9):
        first.table(step)
    first.back_to(5)
    first.rows(range(5, 8), salt=1)
    first.table(6, salt=1)
    second = OldLog(tmp_path, number=1, first_step=6)
    second.rows(range(6, 8), salt=2)
    second.table(7, salt=2)
    run = Run(tmp_path)
    assert losses(run) == [0, 1, 2, 3, 4, 5 + 1 / 8, 6 + 2 / 8, 7 + 2 / 8]
    assert norms(run) == [(1, [1.0, 2.0]), (4, [4.0, 5.0]), (7, [7.25, 8.25])]
    assert (run.totals.steps, run.totals.sessions) == (8, 2)
    assert losses(Run(tmp_path, session=0)) == [0, 1, 2, 3, 4, 5 + 1 / 8, 6 + 1 / 8, 7 + 1 / 8]
    assert norms(Run(tmp_path, session=0)) == [(1, [1.0, 2.0]), (4, [4.0, 5.0]), (6, [6.125, 7.125])]


def test_a_part_is_read_as_it_grows(tmp_path: Path) -> None:
    log = OldLog(tmp_path)
    run = Run(tmp_path)
    log.rows(range(4))
    assert run.refresh() and losses(run) == [0, 1, 2, 3]
    before = run.steps["loss"]
    log.back_to(2)
    assert run.refresh() and losses(run) == [0, 1, 2, 3]
    log.rows([2], salt=1)
    assert run.refresh() and losses(run) == [0, 1, 2 + 1 / 8]
    log.rows([3, 4], salt=1)
    assert run.refresh() and losses(run) == [0, 1, 2 + 1 / 8, 3 + 1 / 8, 4 + 1 / 8]
    assert before.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("rank", [1, 3])
def test_parts_of_another_rank_are_read_beside_those_of_the_lowest(tmp_path: Path, rank: int) -> None:
    for each, salt in ((0, 0), (rank, 4)):
        log = OldLog(tmp_path, rank=each)
        log.rows(range(6), salt=salt)
        log.back_to(4)
        log.rows(range(4, 7), salt=salt + 1)
        log.close()
    ranks = Run(tmp_path).ranks
    assert ranks is not None
    present, values = ranks.column("loss")
    assert present == (0, rank)
    assert values.tolist() == [
        [0, 1, 2, 3, 4 + 1 / 8, 5 + 1 / 8, 6 + 1 / 8],
        [0.5, 1.5, 2.5, 3.5, 4.625, 5.625, 6.625],
    ]
