"""Spikes are events like any other, worked out from the columns; what led to one is asked of the record."""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tbnum
from benchmarks.truth import noise
from tbnum.explain import SPIKES, LiveExplainer, explain_run, findings, what_led_here
from tbnum.log.schema import Event
from tests.recorded import record
from tests.test_explain import FakeRun
from tests.test_findings import columns, reported

NAN = math.nan


def spikes(steps: dict[str, np.ndarray]) -> list[Event]:
    return [event for event in explain_run(FakeRun(steps)) if event.kind in SPIKES]


def test_a_spike_is_an_event_with_its_peak_and_when_it_was_back():
    steps = columns()
    steps["loss"][400:404] = [5, 9, 8, 4]
    (spike,) = spikes(steps)
    assert (spike.kind, spike.step, spike.severity) == ("loss_spike", 400, "info")
    assert (spike.data["peak_step"], spike.data["peak"], spike.data["back_after"]) == (401, 9.0, 4)
    assert "rose to 9 at step 401" in spike.message and "back after 4 steps" in spike.message


def test_a_spike_of_the_norm_is_one_too_and_of_several_optimizers_each_has_its_own():
    steps = columns()
    steps["generator/grad_norm"] = steps.pop("grad_norm")
    steps["critic/grad_norm"] = np.ones(600)
    steps["critic/grad_norm"][300] = 50.0
    (spike,) = spikes(steps)
    assert (spike.kind, spike.optimizer, spike.step) == ("grad_norm_spike", "critic", 300)


def test_a_loss_that_stays_up_is_a_warning_and_a_finding_as_grave():
    steps = columns()
    steps["loss"][400:] += 4
    (spike,) = spikes(steps)
    assert spike.severity == "warning" and spike.data["lasting"]
    assert reported(steps)["loss_spike"].severity == "warning"


def test_a_level_that_jumps_is_a_spike_however_its_losses_scatter():
    """No single loss of it lies as far from the usual as a spike does."""
    steps = columns()
    steps["loss"] = np.random.default_rng(0).lognormal(-3, 0.7, 600)
    assert not spikes(steps)
    steps["loss"][405:] *= 4
    (spike,) = spikes(steps)
    assert abs(spike.step - 405) <= 3 and spike.data["lasting"] and spike.severity == "warning"


def test_a_jump_is_seen_in_a_run_whose_loss_falls_steeply_which_is_no_noise():
    """A layer is made again: the loss is as high as at the start, and falls as it did there."""
    for seed in range(20):
        step = np.arange(480)
        falling = 1 / (1 + np.exp((np.where(step < 253, step, step - 253) - 95) / 30))
        steps = columns(480)
        scatter = 0.02 + 0.2 * (1 - falling)
        steps["loss"] = 0.7 + 1.38 * falling + scatter * np.random.default_rng(seed).standard_normal(480)
        found = [spike for spike in spikes(steps) if spike.kind == "loss_spike"]
        assert [abs(spike.step - 253) <= 4 for spike in found] == [True], seed


def test_a_loss_that_wanders_has_no_levels_though_it_happens_to_be_quiet_for_a_window():
    steps = columns(10_000)
    for seed in range(40):
        random = np.random.default_rng([zlib.crc32(b"autocorrelated"), seed])
        steps["loss"] = noise.KINDS["autocorrelated"](random, np.arange(10_000))
        assert not [spike for spike in spikes(steps) if spike.kind == "loss_spike"], seed


def test_the_worst_step_of_a_spike_is_its_peak():
    steps = columns()
    steps["loss"][400:404] = [5, 7, 9, 4]
    finding = {each.rule: each for each in findings(FakeRun(steps))}["loss_spike"]
    assert "the worst at step 402: loss 9" in finding.evidence and {400, 402} <= set(finding.steps)


@pytest.mark.parametrize("kind", ["student t", "lognormal", "mixture", "short last batch", "warm restarts"])
def test_noise_with_heavy_tails_is_no_alarm(kind: str):
    for seed in range(20):
        random = np.random.default_rng(seed)
        step = np.arange(10_000)
        lr = np.full(10_000, 1e-3)
        falling = 2 + 2 / np.sqrt(1 + step / 100)
        if kind == "student t":
            loss = falling + 0.1 * random.standard_t(2, 10_000)
        elif kind == "lognormal":
            loss = falling * random.lognormal(0, 0.8, 10_000)
        elif kind == "mixture":
            loss = falling * np.where(random.random(10_000) < 0.02, 3.0, 1.0) + 0.05 * random.standard_normal(10_000)
        elif kind == "short last batch":
            loss = falling + 0.1 * random.standard_normal(10_000) * np.where(step % 250 == 249, 20.0, 1.0)
        else:
            lr = 1e-3 * (0.505 + 0.495 * np.cos(math.pi * (step % 1000) / 1000))
            loss = 2 + 800 * lr + 0.05 * random.standard_normal(10_000)
        run = FakeRun(columns(10_000, loss=loss, lr=lr))
        alarms = [finding for finding in findings(run) if finding.severity != "info"]
        assert alarms == [], (kind, seed)


def test_spikes_that_take_a_while_are_a_warning_by_their_rate_and_not_by_their_number():
    def rough(count: int) -> dict[str, np.ndarray]:
        steps = columns(count)
        for at in (200, 270, 420):
            steps["loss"][at : at + 6] = 9
        return steps

    assert reported(rough(600))["loss_spike"].severity == "warning"
    assert reported(rough(20_000))["loss_spike"].severity == "info"


def test_spikes_at_regular_distances_are_the_rhythm_of_the_data():
    steps = columns(3000)
    for at in range(500, 3000, 250):
        steps["loss"][at : at + 4] = 9
    assert reported(steps)["loss_spike"].severity == "info"


def test_scalar_logs_and_old_logs_have_them_as_nothing_of_them_is_stored(tmp_path: Path):
    record(tmp_path, range(300), {200: {"loss": 900.0}, **{step: {"loss": 2.0} for step in range(300) if step != 200}})
    (run,) = tbnum.read(tmp_path).values()
    assert [event.step for event in run.events if event.kind == "loss_spike"] == [200]
    assert not run.raw_events


def test_live_the_same_function_finds_them_as_the_steps_come():
    steps = columns(1000)
    for at in (150, 400, 401, 977):
        steps["loss"][at] = 9
    names = tuple(steps)
    live, found = LiveExplainer({"first_step": 0}), []
    for row in range(1000):
        live.steps(names, [tuple(steps[name][row] for name in names)])
        if row % 64 == 63:
            found += live.drained()
    found += live.drained()
    assert [(event.kind, event.step) for event in found] == [(event.kind, event.step) for event in spikes(steps)]
    assert all(event.message for event in found)


def test_on_event_hears_of_a_spike_and_the_recent_history_is_written_around_it(tmp_path: Path):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    heard: list[Event] = []
    torch.manual_seed(0)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=1000) as monitor:
        monitor.on_event(heard.append)
        for step in range(200):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 4) * (100 if step == 150 else 1)).square().mean()
            loss.backward()
            monitor.log_loss(loss)
            optimizer.step()
    assert ("loss_spike", 150) in [(event.kind, event.step) for event in heard]
    (run,) = tbnum.read(tmp_path).values()
    assert 149 in run.tensors.steps_of("flight").tolist()


# -- what led here -----------------------------------------------------------------------------------------------------


def test_what_led_here_ranks_by_how_far_a_quantity_left_its_usual():
    steps = columns()
    steps["lr"][395] = 0.1
    steps["grad_norm"][396:400] = 12.0
    steps["loss"][400:404] = 9
    led = what_led_here(FakeRun(steps), 400)
    assert (led.step, led.first_step) == (400, 368)
    assert [quantity.name for quantity in led.quantities[:2]] == ["lr", "grad_norm"]
    lr = led.quantities[0]
    assert (lr.at_step, lr.value, lr.usual) == (395, 0.1, pytest.approx(1e-3)) and len(lr.steps) == len(lr.values) == 32
    json.dumps(dataclasses.asdict(led))


def test_what_has_too_few_values_is_named_as_not_recorded_and_not_ranked():
    steps = columns(clip_coef=np.full(600, NAN))
    steps["param_norm"] = np.where(np.arange(600) % 50 == 0, 3.0, NAN)
    steps["update_norm"] = 0.001 * steps["param_norm"]
    led = what_led_here(FakeRun(steps), 400)
    assert {"clip_coef", "update_ratio", "tensor_grad_norm"} <= set(led.not_recorded)
    assert {quantity.name for quantity in led.quantities} == {"loss", "grad_norm", "lr"}


def test_what_led_here_has_the_five_tensors_that_left_their_usual_furthest(tmp_path: Path):
    from tbnum.log.tensors import TensorTable

    names = tuple(f"blocks.{at}.weight" for at in range(9))
    tables = []
    for step in range(68, 101):
        norms = np.ones(9)
        norms[4] = 30.0 if step == 97 else 1.0
        norms[5] = 90.0 if step == 100 else 1.0  # what is to be led to is none of what led there
        tables.append(TensorTable(step, names, {"grad_norm": norms}, None, "flight"))
    record(tmp_path, range(120), tables=tables)
    (run,) = tbnum.read(tmp_path).values()
    tensors = [quantity for quantity in what_led_here(run, 100).quantities if quantity.tensor]
    assert len(tensors) == 5
    assert (tensors[0].tensor, tensors[0].at_step, tensors[0].value) == ("blocks.4.weight", 97, 30.0)


@pytest.mark.parametrize("steps", [{}, columns(10)])
def test_before_the_first_step_nothing_can_have_led(steps: dict[str, Any]):
    with pytest.raises(ValueError, match="step is 0"):
        what_led_here(FakeRun(steps), 0)


def test_a_learning_rate_that_was_out_of_line_for_a_step_is_what_is_reported():
    steps = columns()
    steps["lr"][395] = 0.1
    steps["loss"][396:402] = 9
    found = reported(steps)
    assert "rose from 0.001 to 0.1 at step 395" in found["loss_spike"].evidence
    assert found["lr_outlier"].severity == "warning" and found["lr_outlier"].steps == (395,)


@pytest.mark.parametrize(("length", "severity"), [(2, "info"), (6, "info"), (12, "warning")])
def test_a_loss_that_takes_many_steps_to_come_back_was_no_single_batch(length: int, severity: str):
    loss = 1 + 0.05 * np.random.default_rng(0).standard_normal(1000)
    loss[500 : 500 + length] += 3
    (event,) = [event for event in spikes(columns(1000, loss=loss)) if event.kind == "loss_spike"]
    assert event.data["grave"] == (severity == "warning")


def blocks(lengths: dict[int, int], height: float = 3.0) -> dict[str, np.ndarray]:
    loss = 1 + 0.05 * np.random.default_rng(0).standard_normal(2000)
    for begin, length in lengths.items():
        loss[begin : begin + length] += height
    return columns(2000, loss=loss)


def test_blocks_of_other_data_that_recur_are_no_alarm():
    """Parameters that were damaged do not heal in a step: what ends as abruptly as it begins is in the data."""
    steps = blocks({300: 20, 510: 45, 820: 60, 1100: 25, 1630: 90})
    assert {event.severity for event in spikes(steps)} == {"info"}
    finding = {each.rule: each for each in findings(FakeRun(steps))}["loss_spike"]
    assert finding.severity == "info" and "batches of another kind" in finding.evidence
    assert "sets of data" in finding.remedy


def test_one_block_may_be_spoiled_data_and_is_a_warning():
    (spike,) = spikes(blocks({900: 40}))
    assert (spike.severity, spike.data["back_after"], spike.data["lasting"]) == ("warning", 40, False)


def test_rises_that_heal_slowly_are_no_blocks_however_many():
    loss = 1 + 0.05 * np.random.default_rng(0).standard_normal(2000)
    for begin in (300, 520, 810, 1330):
        loss[begin : begin + 120] += 3 * np.exp(-np.arange(120) / 25)
    assert "warning" in {event.severity for event in spikes(columns(2000, loss=loss))}


def test_epochs_that_run_from_long_to_short_are_the_order_of_the_data():
    step = np.arange(2000)
    loss = 0.3 + 2.0 * (1 - step % 400 / 400) ** 4 + 0.02 * np.random.default_rng(0).standard_normal(2000)
    assert {event.severity for event in spikes(columns(2000, loss=loss))} == {"info"}


def test_a_loss_that_is_higher_for_a_while_is_not_said_to_have_stayed_high():
    (spike,) = spikes(blocks({900: 150}))
    assert spike.data["back_after"] == 150 and "back after 150 steps" in spike.message
    assert not spike.data["lasting"]


def test_a_jump_that_a_note_announces_is_no_alarm():
    steps = columns()
    steps["loss"][400:] += 4
    note = Event(399, 0.0, "annotation", data={"text": "second term of the loss from here on"})
    run = FakeRun(steps, [note])
    (spike,) = [event for event in explain_run(run) if event.kind == "loss_spike"]
    assert spike.severity == "info"
    assert {each.rule: each.severity for each in findings(run)}["loss_spike"] == "info"


def test_where_most_losses_are_0_a_few_others_are_no_spikes():
    random = np.random.default_rng(0)
    loss = np.where(random.random(2000) < 0.2, random.random(2000), 0.0)  # a hinge that most batches are beyond
    assert not spikes(columns(2000, loss=loss))
    loss[1500:1503] = 40.0
    assert [event.step for event in spikes(columns(2000, loss=loss))] == [1500]


@pytest.mark.parametrize(("steps", "batch"), [(8, True), (9, False)])
def test_a_loss_that_was_high_for_many_steps_is_no_single_batchs_doing(steps: int, batch: bool):
    run = columns()
    run["loss"][400 : 400 + steps] = 9.0 - np.arange(steps) / 10
    remedy = reported(run)["loss_spike"].remedy
    assert remedy.startswith("Look at the batch of step 400" if batch else "If the data or the objective changed")


@pytest.mark.parametrize(("growth", "named"), [(1.005, True), (1.003, False)])
def test_a_learning_rate_that_rose_slowly_before_a_spike_is_named(growth: float, named: bool):
    run = columns()
    run["lr"] = 1e-3 * growth ** np.arange(len(run["step"]))
    run["loss"][400:] = 9.0
    found = reported(run)["loss_spike"]
    assert ("the learning rate rose from" in found.evidence) == named
    assert ("learning rate" in found.remedy) == named


def test_losses_against_each_other_have_a_spike_where_it_is_one_of_theirs():
    random = np.random.default_rng(0)
    gain = 1 + 0.05 * random.standard_normal(2000)
    rest = np.where(np.arange(2000) >= 1500, 0.02, 0.0) + 1e-3 * random.standard_normal(2000)

    def found(loss: np.ndarray, *parts: np.ndarray) -> list[Event]:
        each = {f"{name}/loss": part for name, part in zip("ab", parts, strict=False)}
        return spikes(columns(2000, loss=loss, **each))

    assert found(rest) and not found(rest, gain, rest - gain)
    gain[1500:1540] += 1.0
    assert found(rest + np.where(gain > 1.5, 1.0, 0.0), gain, rest - 1)


@pytest.mark.parametrize("count", [300, 500, 1000, 4000])
def test_a_jump_by_many_deviations_is_seen_however_small_a_share_of_the_loss_it_is(count: int):
    """By 8 deviations and 24 %, in a loss that still falls: its level may never leave the lowest one."""
    found = 0
    for seed in range(10):
        random = np.random.default_rng(seed)
        step = np.arange(count)
        loss = 1 + 3 * np.exp(-step / (count / 12))
        begin = int(count * random.uniform(0.4, 0.65))
        loss = np.where(step >= begin, 1.24, 1.0) * loss + 0.03 * random.standard_normal(count)
        rules = reported(columns(count, loss=loss))
        found += any(rules[rule].severity == "warning" for rule in ("loss_spike", "loss_rose") if rule in rules)
    assert found >= 9


@pytest.mark.parametrize("over", [200, 400, 800, 1600])
def test_a_loss_that_doubles_is_seen_over_however_many_steps(over: int):
    for seed in range(6):
        random = np.random.default_rng(seed)
        count = int(over * random.uniform(2.5, 4)) + 100
        step = np.arange(count)
        usual = random.choice([0.05, 0.5, 3.0])
        loss = usual * (1 + 4 * np.exp(-step / (count / 15)) + np.clip((step - count // 3) / over, 0, 1))
        loss += usual * random.choice([0.02, 0.1, 0.25]) * random.standard_normal(count)
        assert reported(columns(count, loss=loss))["loss_rose"].severity == "warning", seed


def test_tasks_that_take_turns_have_no_spikes_though_one_of_them_is_seen_less():
    """Skips at first, of the task with the longer gradients: the window that is usual holds more of the other."""
    random = np.random.default_rng(0)
    number = np.arange(800)
    steps = columns(800)
    steps["loss"] = np.where(number % 2, 2.2, 8 + 16 * np.exp(-number / 80)) * random.lognormal(0, 0.05, 800)
    steps["grad_norm"] = np.where(number % 2, 0.5, 20.0) * random.lognormal(0, 0.2, 800)
    steps["skipped"][[0, 2, 4, 6]] = True
    assert not spikes(steps)
    steps["loss"][500:503] = 90.0
    assert [event.step for event in spikes(steps)] == [500]


def test_a_sum_of_losses_against_each_other_that_stays_high_is_an_information_unless_it_is_far_off():
    random = np.random.default_rng(0)
    critic, generator = (0.05 * random.standard_normal(2000) for _ in range(2))
    for height, severity in ((1.0, "info"), (40.0, "warning")):
        rise = np.where(np.arange(2000) >= 1500, height, 0.0)
        parts = {"a/loss": 0.3 + critic + rise, "b/loss": generator}
        (spike,) = spikes(columns(2000, loss=sum(parts.values()), **parts))
        assert spike.severity == severity and spike.data["lasting"]
    # The loss of all, that two optimizers share, is no such sum.
    whole = 0.3 + critic + np.where(np.arange(2000) >= 1500, 1.0, 0.0)
    (spike,) = spikes(columns(2000, loss=whole, **{"a/loss": whole, "b/loss": whole}))
    assert spike.severity == "warning"


def test_a_policys_gain_near_zero_that_stays_higher_is_an_information():
    gain = 0.3 * np.random.default_rng(0).standard_normal(2000)
    for level, severity in ((-0.5, "info"), (-50.0, "warning")):
        (spike,) = spikes(columns(2000, loss=level + gain + np.where(np.arange(2000) >= 1500, 16.0, 0.0)))
        assert spike.severity == severity or spike.data["lasting"], level


def test_a_gain_that_grows_for_long_is_not_far_off_for_where_it_ends():
    """An actor's loss beside its critic's: how much it is worth to it, which training is to raise."""
    critic = 0.05 + 0.005 * np.random.default_rng(0).standard_normal(2000)
    actor = np.where(np.arange(2000) >= 500, 0.2 + np.maximum(np.arange(2000) - 600, 0) / 100, 0.0)
    found = spikes(columns(2000, loss=actor + critic, **{"a/loss": actor, "b/loss": critic}))
    assert found and {spike.severity for spike in found} == {"info"} and found[0].data["lasting"]
