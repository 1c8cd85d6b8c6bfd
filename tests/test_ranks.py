"""What several processes record is the run that they trained together; gloo on the CPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict

import tbnum
from tbnum.cli import main as command
from tbnum.explain import explain_run, findings
from tbnum.explain.ranks import guilty_words
from tbnum.log import run_ranks
from tbnum.log.ranks import match_sessions, plan_of, ranks_text
from tbnum.log.reader import Run
from tbnum.log.schema import Event, step_columns
from tbnum.log.session_file import SessionFile
from tbnum.log.writer import LogWriter
from tests import ranks, warm
from tests.recorded import META, START, append, record, row, skip
from tests.routes import Panel

NORMS = ("grad_norm", "grad_norm_clipped", "param_norm", "update_norm", "clip_coef")
OF_FOUR = (
    "ddp fsdp2 fsdp2_scaled hsdp fsdp1 fsdp1_unscaled fsdp1_original fsdp1_hybrid fsdp1_whole fsdp1_unnamed few "
    "two_dimensions by_hand partial stages spoiled_ddp spoiled_fsdp2 unreduced uneven own_folders counted"
)


def launch(folder: Path, processes: int, scenarios: str) -> dict[str, Run]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*warm.torchrun(processes), "-m", "tests.ranks", str(folder), *scenarios.split()],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0 or scenarios.endswith("killed"), done.stderr
    return tbnum.read(folder)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return launch(tmp_path_factory.mktemp("four"), 4, OF_FOUR)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return launch(tmp_path_factory.mktemp("two"), 2, "ddp fsdp2 fsdp2_accumulated killed")


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return ranks.one_process(ranks.Net())


SPREADS = ["ddp", "fsdp2", "fsdp2_scaled", "hsdp"]
SPREADS += ["fsdp1", "fsdp1_unscaled", "fsdp1_original", "fsdp1_hybrid", "fsdp1_whole"]


# -- the norms are those of one process ------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", SPREADS)
def test_norms_on_four_ranks_are_those_of_one_process(spread: str, four: dict[str, Run], alone: dict[str, Any]) -> None:
    run = four[spread]
    for name in NORMS:
        np.testing.assert_allclose(run.steps[name], alone["columns"][name], rtol=1e-5, err_msg=name)
    np.testing.assert_array_equal(run.steps["max_norm"], ranks.MAX_NORM)
    assert run.steps["nonfinite_tensors"].tolist() == [0] * ranks.STEPS
    assert not any(name.endswith("_shard") for name in run.steps)
    assert run.problems == [] and run.events == []


@pytest.mark.parametrize("spread", ["ddp", "fsdp2", "fsdp2_accumulated"])
def test_norms_on_two_ranks_are_those_of_one_process(spread: str, two: dict[str, Run], alone: dict[str, Any]) -> None:
    for name in NORMS:
        np.testing.assert_allclose(two[spread].steps[name], alone["columns"][name], rtol=1e-5, err_msg=name)


def test_micro_batches_that_fsdp2_does_not_reduce_are_in_the_loss(two: dict[str, Run]) -> None:
    run = two["fsdp2_accumulated"]
    np.testing.assert_array_equal(run.ranks.column("micro_batches")[1], 2.0)
    (_, losses), (_, expected) = run.ranks.column("loss"), two["fsdp2"].ranks.column("loss")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)  # the mean of half batches is that of the whole


@pytest.mark.parametrize("spread", ["ddp", "fsdp2", "fsdp2_scaled", "hsdp", "fsdp1_original"])
def test_each_tensor_s_gradient_norm_is_that_of_one_process(
    spread: str, four: dict[str, Run], alone: dict[str, Any]
) -> None:
    steps, names, values = four[spread].tensors["grad_norm"]
    assert steps.tolist() == list(range(ranks.STEPS))
    assert sorted(names) == sorted(alone["tensors"])
    for at, name in enumerate(names):
        np.testing.assert_allclose(values[:, at], alone["tensors"][name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("spread", ["ddp", "fsdp2", "hsdp", "fsdp1_original"])
def test_histograms_and_counts_hold_every_element_once(spread: str, four: dict[str, Run]) -> None:
    table = four[spread].histograms["gradient"].at(0)
    counts = dict(zip(table.names, table.counts.sum(1).tolist(), strict=True))
    elements = {name: parameter.numel() for name, parameter in ranks.Net().named_parameters()}
    assert counts == {**elements, "*": sum(elements.values())}


def test_norms_and_counts_of_two_dimensional_shards_are_those_of_one_process(four: dict[str, Run]) -> None:
    run, alone = four["two_dimensions"], ranks.one_process(ranks.Pair())
    for name in NORMS:
        np.testing.assert_allclose(run.steps[name], alone["columns"][name], rtol=1e-5, err_msg=name)
    for at, name in enumerate(run.tensors["grad_norm"].names):
        np.testing.assert_allclose(run.tensors["grad_norm"].values[:, at], alone["tensors"][name], rtol=1e-5)
    elements = sum(parameter.numel() for parameter in ranks.Pair().parameters())
    for source in ("gradient", "parameter", "update"):
        _, counts = run.histograms[source].read()
        assert (counts.sum(1) == elements).all(), source  # the bias that two ranks have is counted once


def test_tensors_on_several_meshes_and_a_whole_one_beside_them_count_once(four: dict[str, Run]) -> None:
    run = four["by_hand"]
    parameters = {name: value.double() for name, value in ranks.full_tensors(0).items()}
    _, names, norms = run.tensors["grad_norm"]
    for step in range(3):
        gradients = {name: value.double() for name, value in ranks.full_tensors(1 + step).items()}
        parameters = {name: value - 0.1 * gradients[name] for name, value in parameters.items()}
        assert run.steps["grad_norm"][step] == pytest.approx(norm_of(gradients), rel=1e-6)
        assert run.steps["param_norm"][step] == pytest.approx(norm_of(parameters), rel=1e-6)
        assert run.steps["update_norm"][step] == pytest.approx(0.1 * norm_of(gradients), rel=1e-5)
        for at, name in enumerate(names):
            assert norms[step, at] == pytest.approx(gradients[name].norm().item(), rel=1e-6), name


def norm_of(tensors: Mapping[str, torch.Tensor]) -> float:
    return math.sqrt(sum(value.square().sum().item() for value in tensors.values()))


def test_plain_pipeline_stages_add_up_and_their_replicas_do_not(four: dict[str, Run]) -> None:
    models = []
    for stage in range(2):
        torch.manual_seed(stage)
        models.append(torch.nn.Linear(4, 3).double())
    expected = []
    optimizers = [ranks.sgd(model) for model in models]
    for x in ranks.batches(3, size=4, width=4, seed=5):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            ranks.loss_of(model(x.double())).backward()
        expected.append(norm_of({str(at): p.grad for at, p in enumerate(p for m in models for p in m.parameters())}))
        for optimizer in optimizers:
            optimizer.step()
    np.testing.assert_allclose(four["stages"].steps["grad_norm"], expected, rtol=1e-5)
    assert set(four["stages"].tensors.names) == {
        f"stage{stage}.{name}" for stage in (0, 1) for name in ("weight", "bias")
    }


def test_a_rank_without_a_part_of_a_flat_parameter_counts_as_nothing(four: dict[str, Run]) -> None:
    run = four["few"]
    model = torch.nn.Linear(3, 1, bias=False)
    assert run.events == [] and run.problems == []
    for name in ("grad_norm", "param_norm", "update_norm"):
        assert np.isfinite(run.steps[name]).all(), name
    np.testing.assert_allclose(run.tensors["param_norm"].values[:, 0], run.steps["param_norm"], rtol=1e-6)
    assert run.histograms["parameter"].at(0).counts.sum() == 2 * model.weight.numel()  # the tensor, and the whole


def test_flat_parameters_of_a_model_that_was_not_given_are_unknown_and_say_so(four: dict[str, Run]) -> None:
    run = four["fsdp1_unnamed"]
    assert np.isnan(run.steps["grad_norm"]).all() and np.isnan(run.steps["param_norm"]).all()
    assert "pass model= to tbnum.wrap()" in run.problems[0]


def test_a_part_whose_table_is_lost_is_no_zero(four: dict[str, Run], tmp_path: Path) -> None:
    for path in four["fsdp2"].folder.glob("*.tbnum"):
        if not path.name.endswith("rank2.tensors.tbnum"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    run = Run(tmp_path)
    _, names, values = run.tensors["grad_norm"]
    elements = {name: len(ranks.Net().get_parameter(name).chunk(4)) for name in names}
    for at, name in enumerate(names):
        assert np.isnan(values[:, at]).all() == (elements[name] > 2), name
    assert np.isfinite(run.steps["grad_norm"]).all()


def test_a_gradient_that_is_not_reduced_yet_leaves_the_norm_unknown_and_says_why(four: dict[str, Run]) -> None:
    run = four["partial"]
    assert np.isnan(run.steps["grad_norm"]).all() and np.isnan(run.steps["nonfinite_tensors"]).all()
    np.testing.assert_allclose(run.steps["param_norm"], four["by_hand"].steps["param_norm"])
    (problem,) = run.problems
    assert "gradient rows" in problem and "Partial" in problem
    others = [name for name in ranks.SHAPES if name != "rows"]
    for column in ("grad_norm", "absmax", "param_norm"):
        (_, names, values), (_, _, expected) = run.tensors[column], four["by_hand"].tensors[column]
        known = [names.index(name) for name in others]
        np.testing.assert_allclose(values[:, known], expected[:, known], rtol=1e-6, err_msg=column)
        assert np.isnan(values[:, names.index("rows")]).all() == (column != "param_norm")
    assert run.histograms["gradient"].at(0).names == tuple(others)  # and not that of all together
    assert run.histograms["parameter"].at(0).names == four["by_hand"].histograms["parameter"].at(0).names


def test_no_collective_is_added(four: dict[str, Run]) -> None:
    for rank in range(4):
        counts = json.loads((four["ddp"].folder.parent / "counted" / f"counts{rank}.json").read_text())
        assert counts["without"]["gloo:all_reduce"] > 0 and counts["without"]["taken"] > 0
        assert counts["with"] == counts["without"]


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", ["spoiled_ddp", "spoiled_fsdp2"])
def test_a_skip_names_the_rank_and_its_micro_batch(spread: str, four: dict[str, Run]) -> None:
    run = four[spread]
    assert run.steps["skipped"].tolist() == [False, False, False, True, False, True, False]
    numbers, skipped = run.ranks.column("skipped")
    assert numbers == (0, 1, 2, 3) and (skipped == run.steps["skipped"]).all()
    overflow, infinite = [event for event in run.events if event.kind == "skip"]
    assert overflow.cause == "bad_batch" and overflow.data["ranks"]["guilty"] == [1]
    assert "micro-batch 2 of 2" in overflow.message and "the loss of rank 1" in overflow.message
    assert infinite.cause == "forward_nonfinite" and infinite.data["ranks"]["guilty"] == [2]
    assert "micro-batch 1 of 2" in infinite.message and "on rank 2 alone" in infinite.message
    assert math.isfinite(run.steps["loss"][5])  # rank 0's own
    assert "nonfinite_loss" in {finding.rule for finding in findings(run)}


def test_ranks_that_skip_each_by_itself_disagree_and_come_apart(four: dict[str, Run]) -> None:
    run = four["unreduced"]
    (event,) = [event for event in run.events if event.kind == "ranks_disagree"]
    assert event.step == 2 and event.severity == "error"
    assert "skipped on rank 1 and not on ranks 0, 2 and 3" in event.message and event.remedy
    assert {"ranks_disagree", "replicas_differ"} <= {finding.rule for finding in findings(run)}


def test_stages_of_a_pipeline_with_equal_names_are_not_taken_for_replicas_that_came_apart(tmp_path: Path) -> None:
    for folder, known in (("stages", {0: 0.5, 10: 0.6}), ("replicas", {0: 0.0, 10: 0.1})):
        for rank in range(2):
            norms = {step: {"param_norm": 5.0 + rank * apart} for step, apart in known.items()}
            log = LogWriter(tmp_path / folder, columns=step_columns({"optimizer": 1}), meta=META, rank=rank)
            append(log, range(20), norms)
            log.close()
    found = {
        name: next(finding for finding in findings(run) if finding.rule == "replicas_differ")
        for name, run in tbnum.read(tmp_path).items()
    }
    assert "hold different ones" in found["stages"].title
    assert "Since step 0, the first where it is known" in found["stages"].evidence
    assert "those of rank 0 alone" in found["stages"].evidence and '"stage1"' in found["stages"].remedy
    assert "come apart" in found["replicas"].title and "From step 10 on" in found["replicas"].evidence


def test_uneven_inputs_are_no_fault(four: dict[str, Run]) -> None:
    run = four["uneven"]
    assert len(run.steps["step"]) == ranks.STEPS and run.events == [] and run.problems == []
    assert np.isfinite(run.steps["grad_norm"]).all()
    assert len(run.ranks.sessions[0].by_rank[3].steps["step"]) == ranks.STEPS - 2


def test_a_rank_that_is_killed_leaves_the_other_s_record_whole_and_is_reported(
    two: dict[str, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = two["killed"]
    assert run.steps["step"].tolist() == list(range(5))
    assert np.isfinite(run.steps["grad_norm"]).all()
    lost, crash = run.events
    assert (lost.kind, lost.data["rank"], lost.step) == ("rank_lost", 1, 3)
    assert (crash.kind, crash.step) == ("crash", 5)
    assert findings(run)[0].rule == "rank_lost"
    command(["report", str(run.folder)])
    assert "Rank 1 was lost: its record ends at step 3" in " ".join(capsys.readouterr().out.split())


def test_ranks_that_write_to_folders_of_their_own_are_warned(four: dict[str, Run]) -> None:
    folder = four["ddp"].folder.parent / "own_folders"
    assert json.loads((folder / "warnings0.json").read_text()) == []
    for rank in (1, 2, 3):
        (reported,) = json.loads((folder / f"warnings{rank}.json").read_text())
        assert (
            f"rank {rank} of 4" in reported
            and str(folder / f"mine{rank}") in reported
            and str(folder / "mine0") in reported
        )
    run = four["own_folders/mine2"]
    (missing,) = [finding for finding in findings(run) if finding.rule == "ranks_missing"]
    assert "ranks 0, 1 and 3" in missing.evidence


# -- records in any state --------------------------------------------------------------------------------------------


def layout(*owners: int, owned: str, elements: tuple[int, ...]) -> dict[str, Any]:
    parts = {"ranks": list(owners), "owned": owned}
    whole = [4] * len(owned)
    reported = {"names": 1, "gradients": parts, "parameters": parts, "elements": list(elements), "of_whole": whole}
    return {"optimizer": {**reported, "placements": []}}


def rank_log(folder: Path, rank: int, *, world_size: int = 2, **meta: Any) -> LogWriter:
    columns = step_columns({"optimizer": 1}, {"optimizer"})
    halves = layout(*range(world_size), owned="1", elements=(4 // world_size,))
    reported = {
        "optimizers": {"optimizer": {"parameters": 1, "shapes": "x"}},
        "parameters": {"w": [4]},
        "layouts": halves,
    }
    return LogWriter(
        folder, columns=columns, rank=rank, meta={"world_size": world_size, "rank": rank, **reported, **meta}
    )


def write(log: LogWriter, steps: range, value: Callable[[int], float], **values: Any) -> None:
    for step in steps:
        shares = {"grad_norm": math.nan, "grad_norm_shard": value(step), "grad_norm_clipped_shard": value(step)}
        log.append_step(row(log.columns, step, **shares, **values))
    assert log.flush()


def test_ranks_are_put_together_by_step_while_they_write(tmp_path: Path) -> None:
    first, second = rank_log(tmp_path, 0), rank_log(tmp_path, 1)
    write(first, range(5), lambda step: 3.0 + step)
    run = Run(tmp_path)
    assert np.isnan(run.steps["grad_norm"]).all()  # the other rank has not written yet
    assert np.isnan(run.steps["nonfinite_tensors"]).all()
    write(second, range(3), lambda step: 4.0)
    assert run.refresh()
    expected = np.hypot(3.0 + np.arange(3), 4.0)
    np.testing.assert_allclose(run.steps["grad_norm"], [*expected, math.nan, math.nan])
    write(second, range(3, 5), lambda step: 4.0)
    assert run.refresh() and not run.refresh()
    np.testing.assert_allclose(run.steps["grad_norm"], np.hypot(3.0 + np.arange(5), 4.0))
    assert run.problems == []
    write(first, range(5, 9), lambda step: 1.0)
    second.close()
    assert run.refresh()
    np.testing.assert_allclose(run.steps["grad_norm"][5:], [math.nan] * 4)
    (problem,) = run.problems
    assert "rank 1 ends at step 4" in problem
    first.close()


def test_sessions_are_put_together_each_with_its_own(tmp_path: Path) -> None:
    for rank, share in ((0, 3.0), (1, 4.0)):
        log = rank_log(tmp_path, rank, start_time=START + rank)
        write(log, range(6), lambda step: share)  # noqa: B023
        log.close()
    log = rank_log(tmp_path, 0, start_time=START + 100)  # continued at step 4; rank 1 left no record of it
    write(log, range(4, 8), lambda step: 6.0)
    log.close()
    np.testing.assert_allclose(Run(tmp_path).steps["grad_norm"], [5.0] * 4 + [math.nan] * 4)
    log = rank_log(tmp_path, 1, start_time=START + 101)
    write(log, range(4, 8), lambda step: 8.0)
    log.close()
    np.testing.assert_allclose(Run(tmp_path).steps["grad_norm"], [5.0] * 4 + [10.0] * 4)
    np.testing.assert_allclose(Run(tmp_path, session=0).steps["grad_norm"], [5.0] * 6)


def test_a_rank_without_a_record_leaves_the_norms_unknown_and_is_named(tmp_path: Path) -> None:
    log = rank_log(tmp_path, 0)
    write(log, range(3), lambda step: 3.0)
    log.close()
    run = Run(tmp_path)
    assert np.isnan(run.steps["grad_norm"]).all() and (run.steps["loss"] == [0, 1, 2]).all()
    assert "rank 1 wrote no record" in run.problems[0]
    assert [finding.rule for finding in findings(run) if "rank" in finding.rule] == ["ranks_missing"]


def test_a_clip_by_the_whole_norm_follows_from_it(tmp_path: Path) -> None:
    logs = [rank_log(tmp_path, rank) for rank in (0, 1)]
    for log, share in zip(logs, (3.0, 4.0), strict=True):
        for step, skipped in ((0, False), (1, True)):
            reported = {"grad_norm": math.nan, "grad_norm_shard": share, "max_norm": 2.5, "skipped": skipped}
            log.append_step(row(log.columns, step, **reported))
        log.close()
    steps = Run(tmp_path).steps
    np.testing.assert_allclose(steps["clip_coef"], [0.5, math.nan], rtol=1e-6)
    np.testing.assert_allclose(steps["grad_norm_clipped"], [2.5, math.nan], rtol=1e-6)
    np.testing.assert_allclose(steps["grad_norm"], [5.0, 5.0])


def test_a_run_of_one_process_looks_for_no_ranks(tmp_path: Path) -> None:
    run = Run(record(tmp_path, events=[skip(3)]))
    assert run.ranks is None and run.meta["ranks"] == {}
    assert "ranks" not in run.raw_events[0].data


def test_the_crash_of_another_rank_is_reported(tmp_path: Path) -> None:
    first, second = rank_log(tmp_path, 0), rank_log(tmp_path, 1)
    for log in (first, second):
        write(log, range(3), lambda step: 1.0)
    second.write_event(Event(3, START, "crash", data={"error": "ValueError: no such token"}))
    second.close()
    first.close()
    (event,) = tbnum.read(tmp_path)["."].events
    assert event.message.startswith("Rank 1: The training loop ended") and "no such token" in event.message


def test_the_panel_gets_the_spread_over_the_ranks_and_whose_batch_it_was(four: dict[str, Run]) -> None:
    panel = Panel(four["spoiled_ddp"].folder)
    names = ["loss", "loss/rank_min", "loss/rank_max"]
    assert set(names[1:]) <= set(panel.json("run", run=".")["derived"])
    _, arrays = panel.binary("series", run=".", columns=",".join(names))
    _, losses = four["spoiled_ddp"].ranks.column("loss")
    np.testing.assert_allclose(arrays["loss/rank_min"], losses.min(0), rtol=1e-6)
    np.testing.assert_allclose(arrays["loss/rank_max"], losses.max(0), rtol=1e-6)
    assert arrays["loss/rank_max"][5] == math.inf
    reported = [
        event["data"]["ranks"]["guilty"] for event in panel.json("events", run=".")["events"] if event["kind"] == "skip"
    ]
    assert reported == [[1], [2]]


def test_a_run_of_one_process_has_no_spread(tmp_path: Path) -> None:
    panel = Panel(record(tmp_path))
    assert not any("rank" in name for name in panel.json("run", run=".")["derived"])
    assert "no column 'loss/rank_max'" in panel.refused(404, "series", run=".", columns="loss/rank_max")


def test_the_step_by_which_a_checkpoint_s_loader_makes_state_is_no_step(tmp_path: Path) -> None:
    model = ranks.Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with tbnum.wrap(optimizer, logdir=tmp_path) as monitor:
        get_state_dict(model, optimizer)
        assert optimizer.state and monitor.step == 0
        ranks.loss_of(model(torch.ones(1, ranks.WIDTH))).backward()
        optimizer.step(closure=None)
        assert monitor.step == 1
    assert tbnum.read(tmp_path)["."].events == []


# -- whose shares count ----------------------------------------------------------------------------------------------


def meta_of(names: str, **layouts: Any) -> dict[str, Any]:
    described = {"parameters": len(names), "shapes": names}
    return {"optimizers": {"optimizer": described}, "parameters": {name: [4] for name in names}, **layouts}


def test_of_replicas_the_lowest_counts_and_other_tensors_add() -> None:
    assert plan_of("optimizer", {0: meta_of("ab"), 1: meta_of("ab")}).gradients == [(0,)]
    assert plan_of("optimizer", {0: meta_of("ab"), 1: meta_of("c"), 2: meta_of("c")}).gradients == [(0,), (1,)]


def test_tensors_that_cannot_be_distinguished_are_no_sum() -> None:
    plan = plan_of("optimizer", {0: meta_of("ab"), 1: meta_of("bc")})
    assert plan.problem == "ranks 0 and 1 hold different tensors that are both called 'b'"


def test_copies_of_shards_do_not_count() -> None:
    owner = layout(0, 1, owned="1", elements=(2,))
    copy = layout(0, 1, owned="0", elements=(2,))
    metas = {rank: meta_of("w", layouts=owner if rank < 2 else copy) for rank in range(4)}
    assert plan_of("optimizer", metas).gradients == [(0, 1)]
    assert plan_of("optimizer", {2: metas[2], 3: metas[3]}).problem is not None


def test_parts_that_are_not_the_whole_are_no_sum() -> None:
    half = layout(0, 1, owned="1", elements=(1,))
    problem = plan_of("optimizer", {rank: meta_of("w", layouts=half) for rank in range(2)}).problem
    assert problem is not None and "2 elements together, and the whole has 4" in problem


def test_sessions_of_ranks_are_matched_by_when_they_began() -> None:
    assert match_sessions([0.0, 100.0], [1.0, 99.0]) == [0, 1]
    assert match_sessions([0.0, 100.0], [98.0]) == [None, 0]
    assert match_sessions([0.0, 100.0], []) == [None, None]


def test_ranks_in_words() -> None:
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([0, 1, 4]) == "ranks 0, 1 and 4"
    assert ranks_text(range(1, 8)) == "ranks 1 to 7"


# -- in words --------------------------------------------------------------------------------------------------------


def reported(numbers: list[int], losses: list[float], guilty: list[int], how: str) -> str:
    data = {"numbers": numbers, "losses": losses, "guilty": guilty, "how": how}
    return guilty_words({"loss": losses[numbers.index(guilty[0])], "ranks": data})


def test_whose_fault_it_was_says_no_more_than_is_known() -> None:
    assert reported([0, 1], [1.0, math.nan], [1], "loss") == "; on rank 1 alone, the loss of the other rank was finite"
    assert reported([0, 1, 2], [1.0, math.inf, 2.0], [1], "loss").endswith(
        "the losses of the other 2 ranks were finite"
    )
    assert reported([0, 1, 2], [1.0, math.inf, math.nan], [1], "loss") == "; on rank 1"  # what rank 2 had is unknown
    assert reported([0, 1], [math.inf, math.nan], [0, 1], "loss") == "; so it was on every rank"
    assert reported([0, 1, 2], [1.0, 9.0, 3.0], [1], "outlier") == "; it is the loss of rank 1, against 2 on the others"
    assert reported([0, 1, 2], [1.0, 1.0, 1.0], [2], "part") == "; what is not finite lies in the part of rank 2"
    assert guilty_words({"ranks": {"numbers": [0, 1], "losses": [1.0, 1.0], "guilty": [], "how": None}}) == ""


# -- more ranks than fit into memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", [name for name in OF_FOUR.split() if name not in ("own_folders", "counted")])
def test_ranks_that_do_not_fit_into_memory_tell_the_same(
    scenario: str, four: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Run(four[scenario].folder)
    expected = [kept.steps, explain_run(kept), findings(kept), kept.problems]
    monkeypatch.setattr(run_ranks, "RANKS_BYTES", 0)
    again = Run(four[scenario].folder)
    for name, values in expected[0].items():
        np.testing.assert_array_equal(again.steps[name], values, err_msg=name)
    assert repr([again.steps, explain_run(again), findings(again), again.problems]) == repr(expected)
    for name in ("loss", "micro_batches"):
        np.testing.assert_array_equal(again.ranks.column(name)[1], kept.ranks.column(name)[1])
        for ours, theirs in zip(again.ranks.spread(name), kept.ranks.spread(name), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_files_of_ranks_that_do_not_fit_are_read_once_a_question_and_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_ranks, "RANKS_BYTES", 0)
    logs = []
    for rank in range(4):
        meta = {**META, "world_size": 4, "start_time": START}
        logs.append(LogWriter(tmp_path, columns=step_columns({"optimizer": 1}), meta=meta, rank=rank))
        append(logs[-1], range(100), {50: {"loss": math.nan if rank == 2 else 1.0, "skipped": True}})
        for step in range(40, 60):
            logs[-1].write_event(skip(step, loss=math.nan if rank == 2 else 1.0))
    run = Run(tmp_path)
    assert run.ranks is not None
    opened: list[str] = []
    refresh = SessionFile.refresh
    monkeypatch.setattr(SessionFile, "refresh", lambda file: opened.append(file.path.name) or refresh(file))
    (skipped,) = [event for event in explain_run(run) if event.step == 50 and event.kind == "skip"]
    assert skipped.data["ranks"]["guilty"] == [2] and "on rank 2 alone" in skipped.message
    findings(run, explain_run(run))
    assert sorted(opened) == sorted(log.path.name for log in logs[1:])  # 20 skips, one pass
    for log in logs:
        append(log, range(100, 120))
    opened.clear()
    assert run.refresh() and len(opened) == 4
    assert [record.last_step for record in run.ranks.sessions[0].by_rank.values()] == [119] * 4
    np.testing.assert_array_equal(run.ranks.spread("loss")[1], run.steps["loss"])
    for log in logs:
        log.close()
