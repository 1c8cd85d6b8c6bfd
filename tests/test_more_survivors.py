"""Faults of one line of a later sample that every other test let pass, as in `test_survivors`."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

import tbnum
from tbnum.explain import _Attempts, explain_run, findings
from tbnum.explain.curve_findings import _frequent, _what_preceded
from tbnum.explain.kinds import _buffers_since, _buffers_whole
from tbnum.explain.level_findings import _levels, _loss_fell, _lr_text, _noise_of_levels
from tbnum.explain.parameters import ParameterNorms
from tbnum.explain.past import LivePast, runaway
from tbnum.explain.predict import next_overflow
from tbnum.explain.ranks import _uneven
from tbnum.explain.repeats import _last_loss_was_finite
from tbnum.explain.spikes import (
    BACK_DEVIATIONS,
    BACK_ERRORS,
    LIMITS,
    NEXT,
    STRIDE,
    SpikeFacts,
    find_spikes,
    spike_events,
)
from tbnum.explain.thresholds import BASELINE
from tbnum.explain.totals import wasted_seconds
from tbnum.explain.view import RunView
from tbnum.formats import BINS
from tbnum.log import scalar_ends
from tbnum.log.concurrent import Trajectory, _together
from tbnum.log.event_file import EventFile, Points
from tbnum.log.files import _RemoteFile
from tbnum.log.json_text import session_text
from tbnum.log.part_log import _began_here
from tbnum.log.record_file import RecordTail
from tbnum.log.scalar_ends import _Ends, wanted
from tbnum.log.scalar_log import TAGS_LISTED, missing_tag
from tbnum.log.scalar_table import _spacing
from tbnum.log.scale_changes import _Factors
from tbnum.log.schema import MAX_RECORD_BYTES, MOST_RANKS, Event, check_session
from tbnum.log.tensors import TensorTable, _rounded_shares, encode_tables
from tbnum.log.tensors_ranks import _RankSeries
from tbnum.log.tensors_writer import TensorsWriter
from tbnum.log.writer import LogWriter
from tbnum.measure.change import changes_of
from tbnum.observe.gradients import operations_behind
from tbnum.observe.landing import Pending, _share
from tbnum.observe.loader import _same, checked_ids
from tbnum.observe.nonfinite import Operations
from tbnum.observe.origin import WatchedRun
from tbnum.observe.records import OptimizerRecord, StepRecord
from tbnum.observe.sentinels import Sentinels
from tbnum.observe.shards import Parts
from tbnum.observe.track import Track
from tbnum.observe.variables import _is_scheduler, _parts
from tensorboard_plugin_tbnum import impl, runs
from tensorboard_plugin_tbnum.judging import _leaves, _means
from tests import test_loader as loading
from tests.recorded import record
from tests.recorded import skip as recorded_skip
from tests.routes import Panel
from tests.test_explain import FakeRun, Loop, skips

# -- explain -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scatter", [1e-3, 1.0, 100.0])
def test_levels_differ_by_no_less_than_what_scatters_in_a_window_lets_two_medians_differ(scatter: float) -> None:
    values = scatter * np.random.default_rng(0).standard_normal(1000)
    windows = np.sort(values.reshape(10, 100), axis=1)
    medians = np.median(scatter * np.random.default_rng(1).standard_normal((2000, 2, 100)), axis=2)
    differs = float(np.std(medians[:, 0] - medians[:, 1]))
    assert 0.8 * differs < _noise_of_levels(values[:30], windows) < 1.2 * differs  # too few for what wanders


@pytest.mark.parametrize(("errors", "deviations", "values"), [(BACK_ERRORS, BACK_DEVIATIONS, NEXT)])
def test_medians_of_a_few_values_and_of_those_before_differ_by_as_many_standard_errors_as_is_said(
    errors: float, deviations: float, values: int
) -> None:
    random = np.random.default_rng(0)
    few, before = (np.median(random.standard_normal((4000, count)), axis=1) for count in (values, BASELINE))
    assert errors / deviations == pytest.approx(float(np.std(few - before)), rel=0.1)


def test_what_to_do_about_parameters_that_are_not_finite_is_what_their_first_skip_says() -> None:
    events = [
        Event(step, 0.0, "skip", severity="error", cause="nonfinite_parameters", remedy=f"Go back before step {step}.")
        for step in (3, 8)
    ]
    steps = {"step": np.arange(10), "skipped": np.isin(np.arange(10), (3, 8)), "loss": np.full(10, math.nan)}
    (found,) = [each for each in findings(FakeRun(steps), events) if each.rule == "nonfinite_parameters"]
    assert (found.remedy, found.steps) == ("Go back before step 3.", (3, 8))


@pytest.mark.parametrize("grown", [False, True])
def test_how_long_the_scale_below_had_held_is_evidence_of_a_probe_and_of_nothing_else(grown: bool) -> None:
    loop = Loop(growth_interval=50 if grown else 2000)
    loop.steps(50)
    loop.step(overflow=True)
    (skip,) = skips(explain_run(loop.run()))
    assert skip.cause == ("growth_probe" if grown else "bad_batch")
    assert skip.data["evidence"].get("held_before_growth") == (50 if grown else None)


@pytest.mark.parametrize("scale", [0.5, 2.0**-10])
def test_the_next_overflow_of_a_scale_below_one_is_foreseen_too(scale: float) -> None:
    steps = {"step": np.arange(301), "growth_tracker": np.full(301, 7.0), "loss_scale": np.full(301, scale)}
    record: Any = SimpleNamespace(meta={"scaler": {"growth_interval": 20, "growth_factor": 2.0}}, steps=steps)
    found = next_overflow(record, [Event(290, 0.0, "skip", cause="growth_probe", data={"loss_scale": 4 * scale})])
    assert found is not None and (found.step, found.growths, found.scale) == (333, 2, 4 * scale)


@pytest.mark.parametrize("blocks", [2, 40])
def test_whether_a_level_is_high_is_said_of_a_run_that_shows_what_its_levels_do_by_themselves(blocks: int) -> None:
    values = 2 + 0.1 * np.random.default_rng(3).standard_normal(BASELINE + blocks * STRIDE)
    values[-STRIDE:] += 0.6  # no single value of them is far outside
    assert [found.level for found in find_spikes(values, LIMITS["loss"])] == ([True] if blocks == 40 else [])


@pytest.mark.parametrize(("relative", "found"), [(1e-14, []), (1e-6, ["schedule_drift"])])
def test_a_learning_rate_that_only_rounding_moves_is_no_schedule_that_moves_on(
    relative: float, found: list[str]
) -> None:
    number = np.arange(100)
    lr = 1e-3 * (1 + relative * (number % 7))
    run = FakeRun({"step": number, "lr": lr, "skipped": number % 3 == 0, "loss": np.ones(100)})
    events = [Event(step, 0.0, "skip", cause="growth_probe") for step in number[::3].tolist()]
    assert [each.rule for each in findings(run, events) if each.rule == "schedule_drift"] == found


@pytest.mark.parametrize(("within", "cause"), [(1, "growth_probe"), (2, "unknown"), (10, "unknown")])
def test_a_growth_of_which_a_log_says_only_roughly_when_leaves_open_whether_the_scale_had_held(
    within: int, cause: str
) -> None:
    loop = Loop()
    loop.steps(100)
    loop.event("scale_growth", old_scale=loop.scale, new_scale=2 * loop.scale, inferred=True, within=within)
    loop.scale *= 2
    loop.steps(10)  # nine of them at the new scale, or as many more as the growth came earlier
    loop.step(overflow=True)
    (skip,) = skips(explain_run(loop.run()))
    assert skip.cause == cause


def test_the_step_at_which_a_learning_rate_was_highest_is_counted_from_that_of_the_lowest_loss() -> None:
    lr = np.full(100, 1e-3)
    lr[40:60] = 5e-3
    lr[47] = 6e-3
    view = RunView(FakeRun({"step": np.arange(100), "lr": lr}), [])
    assert _lr_text(view, 30, 90) == " The learning rate rose from 0.001 to 0.006 (step 47)."


@pytest.mark.parametrize(("steps", "is_habit"), [(3000, True), (3001, False)])
def test_spikes_are_a_habit_from_one_in_a_thousand_steps_on(steps: int, is_habit: bool) -> None:
    spikes = [SpikeFacts.of(Event(step, 0.0, "loss_spike", data={"back_after": 5})) for step in (100, 500, 2000)]
    assert _frequent(spikes, steps) == is_habit


def test_before_the_first_measurement_no_step_is_known_after_which_parameters_were_finite() -> None:
    measured = ParameterNorms(
        FakeRun({"step": np.arange(10), "param_norm": np.where(np.arange(10) == 4, 1.0, math.nan)})
    )
    assert [measured.last_finite(before) for before in (0, 4, 5, 9)] == [-1, -1, 4, 4]


def test_parameters_measured_as_nan_right_after_a_finite_measurement_are_spoiled_there() -> None:
    step = np.arange(150)
    run = FakeRun({"step": step, "param_norm": np.where(step == 0, 1.0, math.nan)})
    tables = {at: [SimpleNamespace(reason="interval", columns={"param_norm": norms})] for at, norms in (
        (0, np.ones(2)), (50, np.array([1.0, math.nan])), (100, np.array([1.0, math.nan])))}  # fmt: skip
    run.tensors = SimpleNamespace(steps_of=lambda _: np.array(list(tables)), at=lambda at, _: tables[at])  # type: ignore[attr-defined]
    measured = ParameterNorms(run)
    assert (measured.steps.tolist(), measured.finite.tolist()) == ([0, 50, 100], [True, False, False])


@pytest.mark.parametrize(("asked", "value"), [(6, math.nan), (7, 0.5), (8, math.nan)])
def test_of_a_run_that_goes_on_values_of_the_newest_step_alone_are_kept(asked: int, value: float) -> None:
    past = LivePast()
    for step in (6, 7):
        past.step(step, 1.0, False, ("step", "grad_norm"), (step, 0.5))
    assert past.value("grad_norm", asked, None) == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("norms", "at"),
    [((1.0, 1.0, 0.0), 6), ((math.inf, 1.0, 3.0), 6), ((math.nan, math.inf, 0.0), 5), ((2.0**63, 1.0, 0.0), 5)],
)
def test_gradients_have_run_away_in_a_run_that_goes_on_where_its_record_says_so(
    norms: tuple[float, ...], at: int
) -> None:
    columns = ("step", "b/grad_norm", "b/grad_norm_clipped", "b/nonfinite_tensors")
    rows = [(5, *norms), (6, 2.0**64, 1.0, math.nan)]
    recorded, live = runaway(dict(zip(columns, np.array(rows).T, strict=True)), -1, 6), LivePast()
    for row in rows:
        live.step(row[0], 1.0, False, columns, row)
    assert live.runaway(-1, 6) == recorded and recorded is not None and recorded.step == at


def test_what_is_left_out_of_a_record_without_steps_stands_at_step_0() -> None:
    attempts = _Attempts(FakeRun({}))
    assert attempts("the moon", lambda: 1 // 0, 7) == 7
    (left_out,) = attempts.left_out
    assert (left_out.step, left_out.kind, left_out.data["what"]) == (0, "left_out", "the moon")


def test_a_skipped_step_costs_as_long_as_a_step_takes() -> None:
    steps = {"step": np.arange(11), "wall_time": 2.0 * np.arange(11), "skipped": np.arange(11) == 3}
    assert wasted_seconds(FakeRun(steps)) == 2.0


@pytest.mark.parametrize(("within", "found"), [(8, 1), (9, 0)])
def test_a_learning_rate_that_comes_back_within_eight_steps_was_out_of_line(within: int, found: int) -> None:
    lr = np.full(200, 1e-3)
    lr[100 : 100 + within] = 1e-1
    run = FakeRun({"step": np.arange(200), "lr": lr, "loss": np.ones(200)})
    titles = [each.title for each in findings(run, [])]
    assert titles.count("The learning rate was out of line for a step") == found


def test_a_learning_rate_of_zero_is_not_negative() -> None:
    lr = np.where(np.arange(100) == 50, 0.0, 1e-3)
    run = FakeRun({"step": np.arange(100), "lr": lr, "loss": np.ones(100)})
    assert "lr_negative" not in [each.rule for each in findings(run, [])]


@pytest.mark.parametrize(("after", "words"), [(3, " in step 4"), (4, " in step 5"), (7, " in step 8")])
def test_buffers_that_the_next_step_spoiled_were_spoiled_in_it(after: int, words: str) -> None:
    event = Event(after + 1, 0.0, "nonfinite_buffers", data={"after_step": after, "by_step": after + 1})
    assert _buffers_since(SimpleNamespace(event=event)) == words  # type: ignore[arg-type]


def test_buffers_are_whole_in_a_checkpoint_from_before_the_step_that_spoiled_them() -> None:
    for data, words in (({"failed_step": 0}, 0), ({"failed_step": 3, "after_step": 1}, 3), ({"after_step": 0}, 1)):
        seen: Any = SimpleNamespace(event=Event(5, 0.0, "nonfinite_buffers", data=data))
        assert _buffers_whole(seen) == f" from before step {words}"


@pytest.mark.parametrize(("skip", "words"), [(368, "1 skip (bad_batch)"), (367, "nothing in the record")])
def test_a_skip_led_to_a_spike_where_it_was_at_most_32_steps_before(skip: int, words: str) -> None:
    events = [Event(skip, 0.0, "skip", cause="bad_batch")]
    view = RunView(FakeRun({"step": np.arange(500), "loss": np.ones(500)}), events)
    spike: Any = SimpleNamespace(step=400, lasting=False, back_after=1)
    assert _what_preceded(view, spike)[0] == words


@pytest.mark.parametrize(("note", "is_noted"), [(267, False), (268, True), (301, True), (302, False)])
def test_a_note_is_about_a_spike_at_most_32_steps_after_it_or_one_before(
    note: int, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tbnum.explain.spikes.data_of", lambda spike, number: {"noted": spike.noted})
    loss = 1 + 0.01 * np.random.default_rng(0).standard_normal(500)
    loss[300] = 9.0
    steps = {"step": np.arange(500), "wall_time": np.arange(500.0), "loss": loss}
    (spike,) = spike_events(FakeRun(steps, [Event(note, 0.0, "annotation", data={"text": "another data set"})]))
    assert (spike.step, spike.data["noted"]) == (300, is_noted)


def test_two_ranks_of_which_one_took_a_step_more_are_uneven() -> None:
    def ranks(*lasts: int, present: tuple[int, ...] = (0, 1)) -> Any:
        by_rank = {
            rank: SimpleNamespace(is_whole=True, last_step=last, ended="closed") for rank, last in enumerate(lasts)
        }
        return SimpleNamespace(sessions=[SimpleNamespace(by_rank=by_rank)], present=present)

    (finding,) = _uneven(ranks(9, 10))
    assert "rank 0 ended after step 9, rank 1 after step 10. From step 10 on the columns are" in finding.evidence
    assert not list(_uneven(ranks(10, 10)))


@pytest.mark.parametrize("count", [500, 503, 1001])
def test_the_last_stretch_of_losses_whose_level_is_taken_ends_with_the_record(count: int) -> None:
    loss = 2 + np.random.default_rng(count).standard_normal(count)
    levels = _levels(RunView(FakeRun({"step": np.arange(count), "loss": loss}), []))
    assert levels is not None
    assert levels.median[-1] == np.sort(loss[-levels.size :])[levels.size // 2]


@pytest.mark.parametrize(("begin", "severity"), [(0, "info"), (60, "warning")])
def test_a_learning_rate_that_begins_at_zero_may_be_a_warm_up(begin: int, severity: str) -> None:
    lr = np.full(200, 1e-3)
    lr[begin : begin + 30] = 0
    found = findings(FakeRun({"step": np.arange(200), "lr": lr, "loss": np.ones(200)}), [])
    assert [each.severity for each in found if each.rule == "lr_zero"] == [severity]


def test_a_loss_that_the_last_step_did_not_have_says_nothing_of_how_a_run_ended() -> None:
    counts = np.ones(5)
    loss = np.array([1.0, 1.0, 1.0, 1.0, math.nan])
    assert not _last_loss_was_finite(FakeRun({"step": np.arange(5), "loss": loss, "micro_batches": counts}))
    counts[-1] = 0
    assert _last_loss_was_finite(FakeRun({"step": np.arange(5), "loss": loss, "micro_batches": counts}))


@pytest.mark.parametrize(("low", "fell"), [(32, True), (10, False)])
def test_the_loss_came_down_where_the_block_after_is_half_of_the_one_before(low: int, fell: bool) -> None:
    loss = np.full(200, 2.0)
    loss[100 : 100 + low] = 1.0
    assert _loss_fell(RunView(FakeRun({"step": np.arange(200), "loss": loss}), []), 100) == fell


# -- observe -----------------------------------------------------------------------------------------------------------


def test_after_a_pass_that_was_given_up_with_a_batch_unused_the_models_input_shows_which_is_used() -> None:
    loader = DataLoader(loading.data, batch_size=4, shuffle=True)
    loop = loading.Loop(loader, with_model=True)
    given_up = iter(loader)
    loop.step(next(given_up))
    next(given_up)
    for batch in loader:
        loop.step(batch)
    assert loop.is_exact()


def test_a_loop_that_read_one_batch_ahead_and_showed_it_does_not_read_several_at_once() -> None:
    loader = DataLoader(loading.data, batch_size=10, shuffle=True)
    loop = loading.Loop(loader, with_model=True)
    for _ in range(12):
        for batch in loading.ahead(loader):
            loop.step(batch)
    assert loop.is_exact() and not loop.ids._hooks, "nothing is left to be shown"


def test_a_part_of_a_batch_is_not_the_batch_though_it_lies_at_the_same_place() -> None:
    batch = torch.arange(8.0).reshape(4, 2)
    assert _same(batch, batch) and _same(batch, batch.clone()) and not _same(batch, batch[:2])


def test_only_operations_of_the_backward_that_is_asked_about_are_looked_at() -> None:
    first, second = torch.zeros(2, requires_grad=True), torch.zeros(3, requires_grad=True)
    roots, logarithms = first.sqrt().sum(), second.log().sum()
    with Operations(in_node="LogBackward0") as seen:
        torch.ones(4) / torch.zeros(4)  # in no backward
        roots.backward()
        assert seen.found is None
        logarithms.backward()
    assert seen.found is not None and seen.found[1].shape == (3,)


def test_a_gradient_is_of_the_module_that_has_the_parameter_itself() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 1)))
    watched = WatchedRun({"": model})
    assert watched._module_of(model[1][0].weight) == "1.0" and watched._module_of(model[0].bias) == "0"
    assert watched._module_of(nn.Parameter(torch.ones(1))) is None


def test_a_rank_answers_for_the_norm_of_all_of_its_parts_and_for_none_of_a_number_it_does_not_know() -> None:
    parts = Parts(owned=(True, False, True), ranks=(0, 1))
    assert _share(np.array([3.0, 7.0, 4.0]), parts, (0, 1, 2)) == 5.0
    assert math.isnan(_share(np.array([3.0, 7.0]), parts, (0, 1)))
    assert math.isnan(_share(np.array([3.0, 7.0, 4.0, 1.0]), parts, (0, 1, 2, 3)))


@pytest.mark.parametrize(("name", "is_one"), [("WarmupScheduler", True), ("Trainer", False)])
def test_an_object_that_is_called_a_scheduler_is_one_wherever_it_comes_from(name: str, is_one: bool) -> None:
    assert _is_scheduler(type(name, (), {})()) == is_one


def test_a_scale_is_set_at_the_step_of_the_last_update_and_before_the_first_at_step_0(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path, verbose=False):
        scaler.scale(torch.ones(()))
        scaler.update(512.0)
        for number in range(4):
            scaler.scale(model(torch.ones(1, 3)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if number == 1:
                scaler.update(256.0)
    found = [(event.step, event.kind, event.data["new_scale"]) for event in tbnum.read(tmp_path)["."].events]
    assert found == [(0, "scale_set", 512.0), (1, "scale_set", 256.0)]


def test_a_learning_rate_in_a_tensor_that_is_changed_in_place_is_that_of_its_step(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1.0))
    used = []
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=50, verbose=False):
        for _ in range(60):
            model(torch.ones(1, 3)).square().sum().backward()
            used.append(optimizer.param_groups[0]["lr"].item())
            optimizer.step()
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"].mul_(0.5)
    assert tbnum.read(tmp_path)["."].steps["lr"].tolist() == used


def test_norms_of_tensors_are_divided_by_a_scale_of_ones_own_that_is_two(tmp_path: Path) -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbnum.wrap(optimizer, lambda: 2.0, model=model, logdir=tmp_path, tensor_interval=1, verbose=False):
        for _ in range(3):
            (model(torch.ones(1, 3)).sum() * 2.0).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= 2.0
            optimizer.step()
            optimizer.zero_grad()
    run = tbnum.read(tmp_path)["."]
    np.testing.assert_allclose(run.tensors["grad_norm"][2], math.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(run.steps["grad_norm"], math.sqrt(3), rtol=1e-6)


def test_a_finite_norm_that_is_infinite_when_it_is_added_up_is_worth_an_event() -> None:
    def makes_events(**more: float) -> bool:
        pending, one = Pending(0, 0.0, None, {}), OptimizerRecord(grad_norm=1.0)
        for name, value in more.items():
            setattr(one, name, value)
        pending._landed = StepRecord(0, 0.0, optimizers={"optimizer": one}), None
        return not pending.is_quietly_there()

    assert makes_events(grad_norm=math.inf) and makes_events(skipped=True) and not makes_events()


def test_variables_of_a_generator_are_its_parts_until_it_has_ended() -> None:
    def generator() -> Any:
        kept = "kept"
        yield kept

    running = generator()
    next(running)
    assert _parts(running) == ["kept"]
    assert list(running) == [] == _parts(running)


def test_one_attempt_in_sixteen_is_looked_at_for_a_rescaling_by_hand() -> None:
    optimizer = torch.optim.SGD([torch.ones(1)], lr=1.0)
    track = Track("optimizer", optimizer, lambda *_: None, lambda *_: None)
    sampled = []
    for track.attempts in range(65):
        sampled.append(track.is_sampled())
    assert [at for at, is_sampled in enumerate(sampled) if is_sampled] == [*range(16), 16, 32, 48, 64]


def test_the_change_of_parameters_has_no_graph() -> None:
    parameters = [nn.Parameter(torch.ones(3))]
    (change,) = changes_of([torch.full((3,), 5.0)], parameters)
    assert not change.requires_grad and change.tolist() == [4.0] * 3


def test_a_tensor_that_was_written_to_in_place_is_measured_again() -> None:
    sentinels, tensor = Sentinels({"": nn.Linear(2, 2)}), torch.ones(3)
    first = sentinels._measured(tensor)
    assert first is not None and sentinels._measured(tensor) is first
    tensor.mul_(5.0)
    again = sentinels._measured(tensor)
    assert again is not None and again.tolist() != first.tolist()


def test_operations_behind_a_loss_are_those_nearest_to_it_first() -> None:
    near = torch.ones(2, requires_grad=True)
    far = near.exp().exp().exp()
    names = [type(node).__name__ for node in operations_behind([(far * near.sin()).sum()], 6)]
    assert names[:4] == ["SumBackward0", "MulBackward0", "ExpBackward0", "SinBackward0"]
    assert len(names) == 6 and names[4] == "ExpBackward0"


def test_gradients_dropped_after_a_look_in_a_quarter_of_the_attempts_are_a_habit(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, verbose=False):
        for number in range(40):
            model(torch.ones(1, 3)).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if number < 20 or number % 4:
                optimizer.step()
            optimizer.zero_grad()
    assert tbnum.read(tmp_path)["."].steps["skipped"].sum() == 3  # of five


def test_a_backward_within_autocast_is_reported_where_a_loop_with_a_scaler_begins_it_late(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path, verbose=False):
        for number in range(40):
            with torch.autocast("cpu", torch.bfloat16, enabled=number >= 30):
                loss = model(torch.ones(1, 3)).float().square().sum()
                if number >= 30:
                    scaler.scale(loss).backward()
            if number < 30:
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    events = tbnum.read(tmp_path)["."].events
    assert [event.step for event in events if event.kind == "backward_under_autocast"] == [30]


@pytest.mark.parametrize("count", [49, 50])
def test_the_fiftieth_backward_in_a_row_that_no_step_used_is_the_first_to_be_reported(
    count: int, tmp_path: Path
) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tbnum.wrap(optimizer, model=model, logdir=tmp_path, verbose=False):
            for number in range(5 + count):
                model(torch.ones(1, 3)).square().sum().backward()
                if number < 5:
                    optimizer.step()
                optimizer.zero_grad()
    said = [str(warning.message) for warning in caught if "50 backward" in str(warning.message)]
    assert len(said) == (count == 50)


# -- log ---------------------------------------------------------------------------------------------------------------


def test_of_a_long_scalar_log_a_few_rounds_through_its_tags_and_its_end_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(6000):
            writer.add_scalar("loss", 1.0, step)
    (path,) = tmp_path.iterdir()
    taken: list[int] = []

    class Counting(scalar_ends.EventFile):
        def take(self, data: Any) -> None:
            taken.append(len(data))
            super().take(data)

    monkeypatch.setattr(scalar_ends, "EventFile", Counting)
    ends = _Ends()
    assert ends.read(path, wanted(None), recognised=True)
    (first,), (last,) = ends.first, ends.last
    assert (first.step, last.step) == (0, 5999)
    of_the_end = len(list(RecordTail(path, path.stat().st_size - scalar_ends.TAIL_BYTES).read()))
    assert 10 < len(taken) - of_the_end < 40


def test_scalars_of_a_tag_that_is_known_are_read_without_parsing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(100):
            writer.add_scalar("loss", float(step), step)
    parsed: list[bytes] = []
    parse = EventFile._parse
    monkeypatch.setattr(EventFile, "_parse", lambda self, data: parsed.append(data) or parse(self, data))
    (path,) = tmp_path.iterdir()
    file = EventFile(path, lambda tag: True)
    for frame in RecordTail(path).read():
        file.take(frame.data)
    assert list(file.points["loss"].values) == list(range(100)) and len(parsed) < 5


@pytest.mark.parametrize(("first", "numbered_from"), [(9, 0), (10, 1), (0, 0)])
def test_a_log_of_every_tenth_step_counts_from_0_where_the_last_of_ten_is_the_ninth(
    first: int, numbered_from: int
) -> None:
    series = {"loss": SimpleNamespace(steps=np.arange(first, first + 100, 10))}
    every, numbering = _spacing(SimpleNamespace(axis=None), series)  # type: ignore[arg-type]
    assert (every, numbering.first) == (10, numbered_from)


def test_a_table_longer_than_a_record_is_written_in_parts() -> None:
    names, bytes_each = tuple(map(str, range(50_000))), 2  # they are packed
    values = np.random.default_rng(0).random(len(names)) + 1.5
    columns = {f"column{number}": values for number in range(MAX_RECORD_BYTES // (bytes_each * len(names)) + 1)}
    records = encode_tables(TensorTable(3, names, columns))
    assert len(records) > 1 and max(len(payload) for _, _, payload in records) < MAX_RECORD_BYTES


def test_a_share_is_rounded_to_the_nearest_and_halfway_to_the_even_one() -> None:
    upper = np.array([0x3E80, 0x3E81, 0x3F00, 0x3F01], np.uint32)
    for lower, up in ((0x7FFF, [0, 0, 0, 0]), (0x8000, [0, 1, 0, 1]), (0x8001, [1, 1, 1, 1])):
        values = ((upper << np.uint32(16)) | np.uint32(lower)).view(np.float32).astype(np.float64)
        np.testing.assert_array_equal(_rounded_shares(values), upper + np.array(up, np.uint32))


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
def test_a_scale_that_grows_by_another_factor_than_two_grows(factor: float) -> None:
    factors = _Factors.of([(1 / factor, 1)] * 5 + [(2.0, 1)], None)
    assert factors.growth == pytest.approx(factor, rel=1e-5) and factors.backoff == 2.0


@pytest.mark.parametrize(
    ("tensors", "here"), [({"nonfinite_tensors": 2}, True), ({"nonfinite_tensors": 0}, False), ({}, False)]
)
def test_of_sharded_gradients_a_failure_began_on_a_rank_that_knows_one_of_its_own(tensors: Any, here: bool) -> None:
    skip = Event(3, 0.0, "skip", data={"loss": 1.0, **tensors})
    assert _began_here(skip, is_sharded=True) == here and not _began_here(skip, is_sharded=False)


@pytest.mark.parametrize(
    ("loss", "micro_batches", "here"),
    [(math.inf, 1, True), (-math.inf, 1, True), (math.nan, 1, True), (math.nan, 0, False), (2.0, 1, False)],
)
def test_a_failure_began_on_a_rank_whose_own_loss_was_not_finite(loss: float, micro_batches: int, here: bool) -> None:
    skip = Event(3, 0.0, "skip", data={"loss": loss, "micro_batches": micro_batches, "nonfinite_tensors": 0})
    assert _began_here(skip, is_sharded=False) == here


@pytest.mark.parametrize("ranks", [0, -1, MOST_RANKS + 1, 1 << 40])
def test_a_number_of_ranks_that_cannot_be_is_refused(ranks: int) -> None:
    check_session({"world_size": MOST_RANKS})
    with pytest.raises(ValueError, match=f"its world_size is {ranks}"):
        check_session({"world_size": ranks})


def test_of_many_tags_those_that_are_not_listed_are_counted() -> None:
    tags = [f"tag{number:02}" for number in range(TAGS_LISTED + 7)]
    assert missing_tag("loss", "objective", tags).endswith(f"'{tags[TAGS_LISTED - 1]}' and 7 more")
    assert missing_tag("loss", "objective", tags[:TAGS_LISTED]).endswith(f"'{tags[TAGS_LISTED - 1]}'")


def test_of_two_sessions_that_took_steps_together_each_has_two_between_the_begin_and_the_end() -> None:
    def trajectory(*times: float) -> Trajectory:
        numbers = np.arange(len(times)) + (0 if times[0] == 0 else 50)
        return Trajectory("file", "host", 1, times[0], int(numbers[0]), numbers, np.array(times))

    first = trajectory(*range(0, 1000, 10))
    assert _together(first, trajectory(500, 510, 1010)) == (500, 990)
    assert _together(first, trajectory(500, 1010, 1020)) is None  # a step and then none until the first had ended


@pytest.mark.parametrize(("beyond", "is_kept"), [(0, True), (1, False)])
def test_what_a_session_says_of_itself_leaves_room_for_the_rest_of_its_record(beyond: int, is_kept: bool) -> None:
    rest = len(json.dumps({"config": ""}))
    meta = {"config": "x" * (MAX_RECORD_BYTES - 4096 - rest + beyond)}
    assert ("config" in json.loads(session_text(meta))) == is_kept


@pytest.mark.parametrize("chunk_steps", [1000, 300_000])
def test_two_chunks_of_steps_at_least_may_wait_for_the_disk(chunk_steps: int, tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, columns=("loss",), meta={}, chunk_steps=chunk_steps)
    assert writer._sink._max_rows >= 2 * writer._sink.chunk_steps
    writer.close()


def test_what_is_known_of_a_remote_folder_is_asked_anew_where_a_file_in_it_is_opened() -> None:
    asked: list[str] = []
    filesystem = SimpleNamespace(invalidate_cache=asked.append, info=lambda path: {"size": len(path)})
    path: Any = SimpleNamespace(url="s3://bucket/run/file", filesystem=lambda: (filesystem, "bucket/run/file"))
    assert (_RemoteFile(path).size, asked) == (15, ["bucket/run"])


@pytest.mark.parametrize(
    ("first", "last", "read"), [(None, None, [5, 10, 15]), (10, None, [10, 15]), (None, 10, [5, 10]), (6, 14, [10])]
)
def test_histograms_of_all_ranks_are_read_within_the_steps_that_are_asked_for(
    first: int | None, last: int | None, read: list[int]
) -> None:
    class OfThree(_RankSeries):
        def __init__(self) -> None:
            self.source, self.names = "gradient", ("*",)

        def steps_of(self, name: str) -> np.ndarray:
            return np.array([5, 10, 15])

        def at(self, step: int) -> Any:
            return SimpleNamespace(row=lambda _: SimpleNamespace(counts=np.full((1, BINS), step)))

    steps, counts = OfThree().read(first_step=first, last_step=last)
    assert steps.tolist() == counts[:, 0].tolist() == read


def test_tables_wake_the_thread_that_writes_them_beyond_four_megabytes(tmp_path: Path) -> None:
    writer = TensorsWriter(tmp_path / "tensors", {}, 1 << 30, lambda *_, **__: None)
    norms = np.zeros(1 << 17, np.float32)  # half a megabyte
    names = tuple(map(str, range(len(norms))))
    woken = [writer.give(TensorTable(step, names, {"grad_norm": norms}, None, "interval")) for step in range(10)]
    assert woken.index(True) == (4 << 20) // (norms.nbytes + 2048)


def test_a_step_of_a_tag_that_is_written_again_did_not_go_back() -> None:
    points = Points()
    for step in (1000, 1001, 1001, 1001, 500):
        points.append(step, 0.0, 0.0)
    assert (points.steps.tolist(), points.went_back) == ([500], [500])


@pytest.mark.parametrize(("length", "shown"), [(80, 80), (81, 80)])
def test_what_is_no_id_is_shown_in_eighty_characters(length: int, shown: int) -> None:
    with pytest.raises(TypeError) as error:
        checked_ids("x" * (length - 2))
    (text,) = re.findall(r"not ('x+(?:'|\.\.\.))\. ", str(error.value))
    assert len(text) == shown and text.endswith("'" if length == shown else "...")


# -- plugin ------------------------------------------------------------------------------------------------------------


def test_a_run_that_is_outside_of_the_seeds_in_its_last_stretch_alone_has_not_left_them() -> None:
    seeds = [np.array([1.0, 1.0, 1.0, 1.0]) + each for each in (-0.01, 0.0, 0.01)]
    edges = np.array([0.0, 10.0, 20.0, 30.0, 40.0])
    assert _leaves("loss", np.array([1.0, 1.0, 1.0, 5.0]), seeds, edges) is None
    assert _leaves("loss", np.array([1.0, 1.0, 5.0, 5.0]), seeds, edges) == 20


def test_means_of_a_stretch_are_of_its_finite_values() -> None:
    loss = np.array([1.0, math.nan, 3.0, math.inf, math.nan, 5.0])
    snapshot = SimpleNamespace(steps={"step": np.arange(6), "loss": loss}, derived=None)
    assert _means(snapshot, "loss", np.array([0.0, 3.0, 6.0])).tolist() == [2.0, 5.0]  # type: ignore[arg-type,union-attr]


def test_who_has_the_events_already_is_sent_none_and_none_is_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "run", range(10), events=[recorded_skip(3)])
    monkeypatch.setattr(runs.RunTable, "start", runs.RunTable.scan)
    panel = Panel(tmp_path)
    first = panel.json("events", run="run")
    assert len(first["events"]) == 1
    monkeypatch.setattr(impl, "_event_rows", lambda *_: pytest.fail("events were written out"))
    again = panel.json("events", run="run", since=first["version"])
    assert (again["version"], again["events"], again["unchanged"]) == (first["version"], [], 1)
