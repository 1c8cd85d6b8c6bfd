"""What the lowest rank's record lacks and another's has is in the run all the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tbnum
from tbnum.log.reader import Run
from tbnum.log.schema import step_columns
from tbnum.log.writer import LogWriter
from tests.recorded import META, START, append, skip


def rank_log(folder: Path, rank: int, *, world_size: int = 2, tensors: str = "same", **meta: Any) -> LogWriter:
    reported = {"optimizers": {"optimizer": {"parameters": 1, "shapes": tensors}}, "parameters": {tensors: [4]}}
    meta = {**META, "start_time": START, "world_size": world_size, "rank": rank, **reported, **meta}
    return LogWriter(folder, columns=step_columns({"optimizer": 1}), rank=rank, meta=meta)


def unknown_loss(steps: range) -> dict[int, dict[str, float]]:
    return {step: {"loss": math.nan, "micro_batches": 4.0} for step in steps}


def test_a_pipelines_loss_is_that_of_the_lowest_rank_that_has_one(tmp_path: Path) -> None:
    steps = range(20)
    for rank in range(4):
        log = rank_log(tmp_path, rank, world_size=4, tensors=f"stage{rank}")
        values = {step: {"loss": 10.0 * rank + step, "micro_batches": 8.0} for step in steps}
        append(log, steps, values if rank >= 2 else unknown_loss(steps))
        log.close()
    run = tbnum.read(tmp_path)["."]
    assert run.steps["loss"].tolist() == [20.0 + step for step in steps]
    assert run.steps["micro_batches"].tolist() == [8.0] * 20
    assert run.steps["lr"].tolist() == [1e-3] * 20
    assert not run.steps["loss"].flags.writeable


def test_a_pipelines_loss_is_there_while_it_trains(tmp_path: Path) -> None:
    logs = [rank_log(tmp_path, rank, tensors=f"stage{rank}") for rank in range(2)]
    run = Run(tmp_path)
    append(logs[0], range(5), unknown_loss(range(5)))
    assert run.refresh() and np.isnan(run.steps["loss"]).all()
    append(logs[1], range(4))
    append(logs[0], range(5, 6), unknown_loss(range(5, 6)))
    assert run.refresh()
    np.testing.assert_array_equal(run.steps["loss"], [0, 1, 2, 3, math.nan, math.nan])
    append(logs[1], range(4, 6))
    assert run.refresh()
    assert run.steps["loss"].tolist() == [0, 1, 2, 3, 4, 5]
    for log in logs:
        log.close()


def test_a_loss_of_replicas_is_never_taken_from_another_rank(tmp_path: Path) -> None:
    for rank in range(2):
        log = rank_log(tmp_path, rank)
        append(log, range(5), {} if rank else {step: {"loss": math.nan} for step in range(5)})
        log.close()
    assert np.isnan(Run(tmp_path).steps["loss"]).all()


def test_the_last_steps_of_uneven_ranks_are_in_the_run_and_said(tmp_path: Path) -> None:
    for rank, count in enumerate((20, 26, 23)):
        log = rank_log(tmp_path, rank, world_size=3)
        append(log, range(count), {step: {"loss": 100.0 * rank + step} for step in range(count)})
        log.close()
    run = tbnum.read(tmp_path)["."]
    assert run.steps["step"].tolist() == list(range(26))
    assert run.steps["loss"].tolist() == [*range(20), *range(120, 126)]
    assert run.ranks is not None
    present, losses = run.ranks.column("loss")
    assert present == (0, 1, 2)
    assert losses[2].tolist()[:23] == list(range(200, 223)) and np.isnan(losses[2][23:]).all()
    (finding,) = [each for each in run.findings if each.rule == "ranks_uneven"]
    assert "rank 0 ended after step 19, rank 1 after step 25" in finding.evidence and finding.steps == (20,)
    assert finding.severity == "info"


def test_ranks_that_took_as_many_steps_are_not_said_to_differ(tmp_path: Path) -> None:
    for rank in range(2):
        log = rank_log(tmp_path, rank)
        append(log, range(5))
        log.close()
    run = tbnum.read(tmp_path)["."]
    assert len(run.steps["step"]) == 5 and not [each for each in run.findings if each.rule == "ranks_uneven"]


def test_a_rank_whose_steps_never_reached_the_disk_was_lost_where_the_others_stopped(tmp_path: Path) -> None:
    survivor, killed = rank_log(tmp_path, 0), rank_log(tmp_path, 1)
    append(survivor, range(17))
    survivor.close()
    run = tbnum.read(tmp_path)["."]
    (lost,) = [event for event in run.events if event.kind == "rank_lost"]
    assert (lost.step, lost.data["rank"], lost.data["last_step"]) == (16, 1, -1)
    killed._sink.forget()


def test_a_rank_that_was_killed_at_a_skip_was_lost_there(tmp_path: Path) -> None:
    survivor, killed = rank_log(tmp_path, 0), rank_log(tmp_path, 1)
    killed.write_event(skip(17))
    append(survivor, range(18))
    survivor.close()
    run = tbnum.read(tmp_path)["."]
    (lost,) = [event for event in run.events if event.kind == "rank_lost"]
    assert (lost.step, lost.data["last_step"]) == (17, 17)
    killed._sink.forget()


def test_a_run_whose_folder_vanished_since_says_so(tmp_path: Path) -> None:
    log = rank_log(tmp_path / "gone", 0)
    append(log, range(3))
    log.close()
    run = tbnum.read(tmp_path)["gone"]
    for path in (tmp_path / "gone").iterdir():
        path.unlink()
    (tmp_path / "gone").rmdir()
    for question in ("steps", "events", "raw_events", "meta", "findings", "tensors", "ranks", "problems"):
        with pytest.raises(FileNotFoundError, match=r"the folder of run 'gone' is not there.*tbnum.read"):
            getattr(run, question)


def test_a_run_whose_folder_vanished_while_it_was_followed_says_so(tmp_path: Path) -> None:
    log = rank_log(tmp_path / "gone", 0)
    append(log, range(3))
    log.close()
    run = tbnum.read(tmp_path)["gone"]
    assert len(run.steps["loss"]) == 3
    log.path.unlink()
    (tmp_path / "gone").rmdir()
    run.refresh()
    with pytest.raises(KeyError, match=r"no column 'nope'.*gone cannot be searched: No such file or directory"):
        run.steps["nope"]
