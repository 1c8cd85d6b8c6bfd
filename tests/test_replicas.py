"""Ranks of one model: their bits are compared, and a pipeline's loss is found on the rank that has it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tbnum
from tbnum.log.schema import step_columns
from tbnum.log.tensors import TensorTable
from tbnum.log.writer import LogWriter
from tests.recorded import META, START, append
from tests.test_ranks import launch


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tbnum.Run]:
    return launch(tmp_path_factory.mktemp("replicas"), 2, "flipped healthy pipeline")


def found(run: tbnum.Run) -> list[tbnum.Finding]:
    return [finding for finding in run.findings if finding.rule == "replicas_differ"]


def test_a_bit_that_flips_on_one_rank_is_named_by_rank_tensor_and_interval(two: dict[str, tbnum.Run]) -> None:
    (finding,) = found(two["flipped"])
    assert finding.severity == "error" and finding.steps == (80,)
    assert "rank 1" in finding.evidence and "at step 60" in finding.evidence and "at step 80" in finding.evidence
    assert "second.weight" in finding.evidence


def test_a_bit_that_flips_on_a_replica_of_a_shard_is_named(tmp_path: Path) -> None:
    runs = launch(tmp_path, 4, "flipped_hsdp hsdp")
    (finding,) = found(runs["flipped_hsdp"])
    assert finding.severity == "error" and finding.steps == (8,)
    assert "of rank 3 were the same bits as those of rank 1 at step 6" in finding.evidence
    assert "second.weight" in finding.evidence
    assert found(runs["hsdp"]) == []


def test_replicas_that_stay_one_model_raise_nothing(two: dict[str, tbnum.Run]) -> None:
    run = two["healthy"]
    assert found(run) == []
    assert run.ranks is not None
    (rank_0, first), (rank_1, second) = run.ranks.checksums()
    assert (rank_0, rank_1) == (0, 1) and first[0].tolist() == [
        *range(0, len(run.steps["step"]), 50),
        len(run.steps["step"]) - 1,
    ]
    np.testing.assert_array_equal(first[2], second[2])


def test_a_pipelines_loss_on_two_processes_is_in_the_run(two: dict[str, tbnum.Run]) -> None:
    run = two["pipeline"]
    losses = json.loads((Path(str(run.folder)) / "losses.json").read_text())
    np.testing.assert_allclose(run.steps["loss"], losses, rtol=1e-6)


def replicas(folder: Path, apart: dict[int, int], ranks: int = 4) -> tbnum.Run:
    """Checksums every 10 of 40 steps. `apart`: by rank, the step from which its second tensor is another."""
    for rank in range(ranks):
        reported = {"optimizers": {"optimizer": {"parameters": 1, "shapes": "x"}}, "parameters": {"a": [1], "b": [1]}}
        meta = {**META, "start_time": START, "world_size": ranks, "rank": rank, **reported}
        log = LogWriter(folder, columns=step_columns({"optimizer": 1}), rank=rank, meta=meta)
        append(log, range(40))
        for step in range(0, 40, 10):
            sums = np.array([step + 1, 1000 + step + (rank + 1) * (step >= apart.get(rank, 99))], np.uint64)
            log.write_tensors(TensorTable(step, ("a", "b"), {"checksum/parameter": sums}))
        log.close()
    return tbnum.read(folder)["."]


def test_of_several_ranks_the_ones_that_left_are_named(tmp_path: Path) -> None:
    (finding,) = found(replicas(tmp_path / "one", {2: 15}))
    assert "of rank 2 were the same bits as those of ranks 0, 1 and 3 at step 10" in finding.evidence
    assert "not at step 20: b" in finding.evidence and finding.steps == (20,)
    (finding,) = found(replicas(tmp_path / "lowest", {0: 15}))
    assert "of rank 0 were the same bits as those of ranks 1, 2 and 3" in finding.evidence
    assert found(replicas(tmp_path / "none", {})) == []


def test_ranks_that_were_never_the_same_are_not_said_to_have_come_apart(tmp_path: Path) -> None:
    assert found(replicas(tmp_path, {1: 0, 2: 0, 3: 0})) == []


@pytest.mark.parametrize("guilty", [None, 5, 30])
def test_of_many_ranks_with_shards_the_one_whose_part_left_its_replicas_is_named(
    guilty: int | None, tmp_path: Path
) -> None:
    """Eight replicas of four shards: rank 4 r + s has part s of two tensors, and the same bits as others with it."""
    shards, replicas_of_each = 4, 8
    for rank in range(shards * replicas_of_each):
        replica, shard = divmod(rank, shards)
        parts = {"owned": "11" if replica == 0 else "00", "ranks": list(range(shards))}
        placed = {"mesh": "2d", "placements": ["Replicate()", "Shard(dim=0)"], "coordinate": [replica, shard]}
        layout = {"names": 1, "gradients": parts, "parameters": parts, "elements": [2, 2], "of_whole": [8, 8]}
        layouts = {"optimizer": {**layout, "placements": [placed]}}
        described = {"optimizers": {"optimizer": {"parameters": 2, "shapes": "x"}}, "parameters": {"a": [8], "b": [8]}}
        begun = {"start_time": START, "world_size": shards * replicas_of_each, "rank": rank}
        columns = step_columns({"optimizer": 1}, sharded=["optimizer"])
        log = LogWriter(tmp_path, columns=columns, rank=rank, meta={**META, **begun, **described, "layouts": layouts})
        append(log, range(40))
        for step in range(0, 40, 10):
            flipped = rank == guilty and step >= 20
            sums = np.array([100 * shard + step + 1, 9000 + 100 * shard + step + flipped], np.uint64)
            log.write_tensors(TensorTable(step, ("a", "b"), {"checksum/parameter": sums}))
        log.close()
    findings = found(tbnum.read(tmp_path)["."])
    if guilty is None:
        assert findings == []
        return
    (finding,) = findings
    assert f"of rank {guilty} were the same bits" in finding.evidence and "at step 10" in finding.evidence
    assert "not at step 20: b" in finding.evidence and finding.steps == (20,)
    others = [guilty % shards + shards * replica for replica in range(replicas_of_each)]
    assert all(str(rank) in finding.evidence for rank in others)
