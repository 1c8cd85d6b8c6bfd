"""`wrap(..., ranks=)`: which ranks record, what the others pass on all the same, and what then is unknown."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tbnum
from benchmarks.many_ranks import start_rank
from tests import warm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("some")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*warm.torchrun(3), "-m", "tests.some_ranks", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return folder


def files(folder: Path) -> dict[int, int]:
    """By rank, how many files it wrote."""
    names = (re.fullmatch(r".*\.rank(\d+)(\.tensors)?\.tbnum", path.name) for path in folder.iterdir())
    return dict(Counter(int(name[1]) for name in names if name is not None))


def run_in(folder: Path) -> tbnum.Run:
    return tbnum.read(folder)["."]


def rules(run: tbnum.Run) -> list[str]:
    return [finding.rule for finding in run.findings]


def test_the_ranks_that_were_asked_for_record_and_no_other_has_a_file(folder: Path) -> None:
    assert files(folder / "ddp") == {0: 2}
    assert files(folder / "ddp_two") == {0: 2, 1: 2}
    assert files(folder / "ddp_all") == {0: 2, 1: 2, 2: 2}


def test_replicas_are_recorded_as_whole_by_any_of_them(folder: Path) -> None:
    every = run_in(folder / "ddp_all")
    for name in ("ddp", "ddp_two"):
        run = run_in(folder / name)
        assert tbnum.diff(every, run).same and len(run.steps["step"]) == 6
        assert run.problems == [] and run.events == []
        assert np.isfinite(run.steps["grad_norm"]).all() and np.isfinite(run.steps["param_norm"]).all()


def test_what_is_unknown_without_the_others_is_said(folder: Path) -> None:
    assert rules(run_in(folder / "ddp_all")) == []
    run = run_in(folder / "ddp")
    assert run.ranks is not None and run.ranks.missing == (1, 2) and run.meta["recording_ranks"] == 1
    (finding,) = run.findings
    assert finding.rule == "ranks_not_recorded" and finding.severity == "info"
    assert "the first 1 record" in finding.evidence and "ranks 1 and 2" in finding.evidence
    run = run_in(folder / "fsdp2")
    assert files(folder / "fsdp2") == {0: 2}
    assert np.isnan(run.steps["grad_norm"]).all() and np.isfinite(run.steps["loss"]).all()
    (problem, *_) = run.problems
    assert "ranks 1 and 2 wrote no record" in problem
    assert "norms of which they have a part" in run.findings[-1].evidence


def test_a_loss_that_was_not_finite_on_a_rank_that_does_not_record_is_that_ranks(folder: Path) -> None:
    for name in ("spoiled_ddp", "spoiled_fsdp2"):
        run = run_in(folder / name)
        (skip,) = [event for event in run.events if event.kind == "skip" and event.step == 5]
        assert skip.cause == "forward_nonfinite" and skip.data["ranks"]["guilty"] == [2], name
        assert files(folder / name).keys() >= {0, 2}
        assert not {"rank_lost", "ranks_uneven", "ranks_missing"} & set(rules(run))


def test_the_part_of_a_sharded_gradient_that_was_not_finite_is_reported_by_its_rank(folder: Path) -> None:
    run = run_in(folder / "spoiled_fsdp2")
    (skip,) = [event for event in run.events if event.kind == "skip" and event.step == 3]
    assert skip.data["nonfinite_tensors"] > 0


def test_a_pipelines_loss_is_passed_on_by_the_last_rank(folder: Path) -> None:
    run = run_in(folder / "pipeline")
    losses = json.loads((folder / "pipeline" / "losses.json").read_text())
    np.testing.assert_allclose(run.steps["loss"], losses, rtol=1e-6)
    assert files(folder / "pipeline") == {0: 2, 2: 1}
    assert np.isnan(run.steps["grad_norm"]).all(), "of one stage alone"
    assert any("rank 2 did not record" in problem for problem in run.problems)
    assert "rank_lost" not in rules(run)


def test_a_crash_of_any_rank_is_in_the_run(folder: Path) -> None:
    (crash,) = [event for event in run_in(folder / "crash").events if event.kind == "crash"]
    assert crash.data["rank"] == 2 and "of rank 2" in crash.data["error"]
    assert files(folder / "crash")[2] == 1 and 1 not in files(folder / "crash")


def test_the_lowest_rank_alone_lists_the_folder(folder: Path) -> None:
    listed = [json.loads((folder / "listings" / f"listed{rank}.json").read_text()) for rank in range(3)]
    assert listed[0] > 0 and listed[1:] == [0, 0]


def test_eight_of_many_ranks_write_sixteen_files_and_no_other_lists_a_folder(tmp_path: Path) -> None:
    """Ranks start one after the other, each in the environment of its process, and start again in the same folder."""
    ranks = 12
    for session in range(2):
        listed = [start_rank(tmp_path / "run", rank, ranks, recording=8)[1] for rank in range(ranks)]
        assert listed[0] > 0 and listed[1:] == [0] * (ranks - 1)
        names = [path.name for path in (tmp_path / "run").iterdir() if path.name.endswith(".tbnum")]
        assert len(names) == 16 * (session + 1)
    run = run_in(tmp_path / "run")
    assert len(run.steps["step"]) == 2 and run.meta["recording_ranks"] == 8 and run.meta["world_size"] == ranks
    assert run.ranks is not None and run.ranks.present == tuple(range(8))


@pytest.mark.parametrize("given", [0, -1, True, False, 1.5, "some", None, [0], "1"])
def test_what_it_cannot_be_is_named_before_anything_is_written(given: Any, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r'ranks is .*"all", "first"'):
        tbnum.wrap(optimizer, model=model, logdir=tmp_path / "run", ranks=given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", ["all", "first", 1, 8, np.int64(2)])
def test_one_process_alone_always_records(given: Any, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, ranks=given, verbose=False):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    run = run_in(tmp_path)
    assert len(run.steps["step"]) == 1 and run.findings == [] and "recording_ranks" not in run.meta
    assert not (tmp_path / "tbnum-sessions.txt").exists()
