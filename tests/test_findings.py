"""Findings of whole runs: each is there where it should be, and silent in the healthy twin."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tbnum
from tbnum.explain import Finding, findings
from tbnum.explain import thresholds as limits
from tbnum.explain.finding import STEPS_TOLD, steps_of
from tbnum.explain.kinds import KINDS
from tbnum.explain.tensor_findings import underflowing
from tbnum.explain.view import RunView
from tbnum.log.schema import Event
from tbnum.log.tensors import HistogramTable, TensorTable
from tests.corpus import Known, Loop
from tests.loops import Half, batches
from tests.recorded import open_log, row
from tests.test_explain import FakeRun

NAN = math.nan


def by_rule(found: Sequence[Finding]) -> dict[str, Finding]:
    """The findings by their names; each of them gives the steps that it names, for whoever wants to look there."""
    for finding in found:
        assert list(finding.steps) == sorted(set(finding.steps)) and len(finding.steps) <= STEPS_TOLD
        itself = finding.evidence.partition("Before it:")[0]
        named = {int(text.replace(",", "")) for text in re.findall(r"\bat step (\d[\d,]*)", itself)}
        assert named <= set(finding.steps) or len(finding.steps) == STEPS_TOLD, finding
    return {finding.rule: finding for finding in found}


def test_the_steps_of_a_finding_are_the_first_hundred_in_order_each_once():
    assert steps_of([7, 3, 7]) == (3, 7) and steps_of([]) == ()
    assert steps_of(np.arange(1000)) == tuple(range(100))


def test_a_rule_cannot_forget_the_steps():
    with pytest.raises(TypeError, match="steps"):
        Finding("rule", "info", "Title", "Evidence.", "Remedy.")


# -- from columns ------------------------------------------------------------------------------------------------------


def columns(count: int = 600, **given: Any) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    steps: dict[str, np.ndarray] = {
        "step": np.arange(count),
        "wall_time": np.arange(count) / 10,
        "loss": 2 + 0.1 * random.standard_normal(count) + 3 * np.exp(-np.arange(count) / 50),
        "micro_batches": np.ones(count),
        "grad_norm": np.exp(0.3 * random.standard_normal(count)),
        "clip_coef": np.where(np.arange(count) % 3, 1.0, 0.5),
        "max_norm": np.ones(count),
        "skipped": np.zeros(count, bool),
        "lr": np.full(count, 1e-3),
        "nonfinite_tensors": np.zeros(count),
    }
    return steps | given


def reported(steps: dict[str, np.ndarray], events: Sequence[Event] = (), **meta: Any) -> dict[str, Finding]:
    run = FakeRun(steps, list(events), {"first_step": 0, **meta})
    return by_rule(findings(run))


def test_a_noisy_falling_loss_is_healthy():
    assert reported(columns()) == {}
    assert reported(columns(count=20)) == {}


@pytest.mark.parametrize("noise", ["normal", "laplace"])
def test_noise_alone_makes_no_spike(noise: str):
    random = np.random.default_rng(1)
    drawn = getattr(random, noise)(size=100_000)
    assert "loss_spike" not in reported(columns(100_000, loss=3 + 0.1 * drawn))


def test_a_spike_that_comes_back_is_an_information():
    steps = columns()
    steps["loss"][400:403] = [9, 8, 5]
    spike = reported(steps)["loss_spike"]
    assert spike.severity == "info"
    assert "1 spike, the first at step 400; the worst at step 400: loss 9 against a usual 2" in spike.evidence
    assert "back after 3 steps" in spike.evidence and "Before it: nothing in the record" in spike.evidence


def test_spikes_are_reported_with_what_came_before():
    steps = columns()
    steps["loss"][400:] += 4
    steps["lr"][390:] *= 3
    steps["grad_norm"][395:400] = 40.0
    note = Event(398, 0.0, "annotation", data={"text": "new data"})
    found = reported(steps, [note])
    spike = found["loss_spike"]
    assert (spike.severity, spike.title) == ("warning", "The loss jumped and did not come back")
    for text in ("rose from 0.001 to 0.003", "times the usual at step 395", "'new data'"):
        assert text in spike.evidence
    assert "warm-up" in spike.remedy and "Clip" in spike.remedy
    exploded = found["exploding_norm"]
    assert "was 40 at step 395" in exploded.evidence
    assert "5 steps later, at step 400: the loss spike" in exploded.evidence


def test_a_norm_that_explodes_without_harm_is_what_clipping_is_for():
    steps = columns()
    steps["grad_norm"][300] = 50.0
    assert reported(steps) == {}


def test_a_spoiled_batch_that_was_skipped_is_no_spike():
    steps = columns()
    steps["loss"][400], steps["skipped"][400] = 11.0, True
    assert "loss_spike" not in reported(steps)


def test_several_spikes_are_a_warning_and_missing_clipping_is_named():
    steps = columns(max_norm=np.full(600, NAN), clip_coef=np.full(600, NAN))
    for at in (200, 270, 420):
        steps["loss"][at : at + 4] = 9
    found = reported(steps)
    assert found["loss_spike"].severity == "warning"
    assert "no gradient was clipped" in found["no_clipping"].evidence


def test_a_schedule_that_moves_on_skipped_steps_is_counted():
    steps = columns(lr=1e-3 * (1 - np.arange(600) / 1000))
    steps["skipped"][10:50] = True
    drift = reported(steps)["schedule_drift"]
    assert drift.severity == "warning" and "after 40 of 40 skipped steps" in drift.evidence
    held = columns(lr=np.repeat(1e-3 * (1 - np.arange(300) / 1000), 2))
    held["skipped"][10:50:2] = True  # the rate moves after the step that repeats it
    assert "schedule_drift" not in reported(held)


def test_a_scheduler_stepped_on_skipped_steps_is_seen_in_a_real_loop_and_the_corrected_one_is_silent(tmp_path: Path):
    for wrong in (True, False):
        folder = tmp_path / str(wrong)
        with Loop(folder, Known(), init_scale=2.0**16, growth_interval=4, lr=1e-6) as loop:
            scheduler = torch.optim.lr_scheduler.LinearLR(loop.opt, 1.0, 0.1, total_iters=100)
            for _ in range(60):
                taken = loop.step(lambda: loop.model((0.6, 0.1, 0.1)))
                if wrong or taken:
                    scheduler.step()
        (run,) = tbnum.read(folder).values()
        assert ("schedule_drift" in by_rule(findings(run))) == wrong


def test_dropped_records_and_wasted_time_are_reported():
    steps = columns(skipped=np.arange(600) % 20 == 10)
    found = reported(steps, dropped={"disk full": 3, "queue full": 1})
    assert "4 records could not be written: 3 for disk full, 1 for queue full" in found["records_dropped"].evidence
    assert "; 3 s of computing." in found["skip_rate"].evidence


def test_bfloat16_with_a_scaler_is_seen_in_the_loss(tmp_path: Path):
    event = Event(3, 0.0, "loss_low_precision", data={"dtype": "bfloat16", "where": "train.py:3"})
    found = reported(columns(), [event])
    assert "bfloat16" in found["scaler_without_float16"].remedy


@pytest.mark.parametrize("kind", [kind for kind, row in KINDS.items() if row.severity in ("warning", "error")])
def test_every_event_that_is_a_warning_or_an_error_is_a_finding_as_grave(kind: str):
    """Else `tbnum check` would let the run pass."""
    data = {"skips": 12} if kind == "scale_collapse" else {}
    event = Event(3, 0.0, kind, KINDS[kind].severity, message="It happened.", data=data)
    finding = by_rule(findings(FakeRun(columns(), [event], {"first_step": 0}), [event]))[kind]
    assert finding.severity == KINDS[kind].severity
    assert finding.title and "It happened" in finding.evidence


# -- from tables of tensors, of real runs ------------------------------------------------------------------------------


def tensors(
    folder: Path, gradients: Callable[[int], Sequence[float]], steps: int = 200, **settings: Any
) -> dict[str, Finding]:
    """Findings of a run whose gradients are known at each step."""
    options = {"tensor_interval": 5, "histogram_interval": 50}
    with Loop(folder, Known(), **{"lr": 1e-6, "options": options, **settings}) as loop:
        for step in range(steps):
            loop.step(lambda step=step: loop.model(gradients(step)), planted="any")
    (run,) = tbnum.read(folder).values()
    return by_rule(findings(run))


def test_steady_gradients_have_no_finding(tmp_path: Path):
    model = Half()
    with Loop(tmp_path, model, lr=1e-3, options={"tensor_interval": 5, "histogram_interval": 50}) as loop:
        for x in batches(200):
            loop.step(lambda x=x: model(x).square().mean())
    (run,) = tbnum.read(tmp_path).values()
    assert findings(run) == []


def test_a_tensor_whose_gradient_is_zero_is_dead(tmp_path: Path):
    dead = tensors(tmp_path, lambda step: (0.1, 0.0 if step > 80 else 0.1, 0.1))["dead_tensor"]
    assert "1 of 3 tensors (layers.1)" in dead.evidence and "layers.1 had one before" in dead.evidence


def test_a_tensor_that_runs_away_is_named(tmp_path: Path):
    found = tensors(tmp_path, lambda step: (0.1, 0.01 * 1.07**step, 0.1), init_scale=1.0)
    assert "layers.1" in found["exploding_tensor"].evidence
    assert "exploding_tensor" not in tensors(tmp_path / "b", lambda step: (0.1, 0.01 * 1.02**step, 0.1))


def test_steps_far_too_large_or_too_small_for_the_parameters_are_seen(tmp_path: Path):
    for lr, rule in ((30.0, "update_ratio_high"), (1e-8, "update_ratio_low"), (1e-2, None)):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 8)
        folder = tmp_path / str(lr)
        with Loop(folder, model, "AdamW", lr=lr, options={"tensor_interval": 5}) as loop:
            for _ in range(200):
                x = torch.randn(4, 8)
                loop.step(lambda x=x, model=model: (model(x) - x).square().mean(), planted="any")
        (run,) = tbnum.read(folder).values()
        assert {each for each in by_rule(findings(run)) if each.startswith("update")} == ({rule} if rule else set())


def test_the_table_of_the_close_which_has_no_gradients_is_none_of_those_that_a_verdict_needs(tmp_path: Path):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=5):
        for _ in range(75):  # 15 tables, and the one of the close
            optimizer.zero_grad()
            (model(torch.randn(4, 8)) - 1).square().mean().backward()
            optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    assert "update_ratio_low" in by_rule(findings(run))


def test_tiny_steps_of_gains_alone_are_an_information(tmp_path: Path):
    """At a learning rate for fine-tuning the matrices move by a hundred times as large a share."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.RMSNorm(8))
    with torch.no_grad():
        model[0].weight.mul_(0.05)
        model[0].bias.mul_(0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-7)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=5):
        for _ in range(100):
            optimizer.zero_grad()
            (model(torch.randn(16, 8)) - 1).square().mean().backward()
            optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    assert by_rule(findings(run))["update_ratio_low"].severity == "info"


def test_a_gradient_that_underflows_is_reported_with_the_scale_that_cures_it(tmp_path: Path):
    finding = tensors(tmp_path, lambda step: (1e-7, 1e-7, 1e-7), init_scale=1.0)["gradient_underflow"]
    assert "At a scale of 1, 1e+02 %" in finding.evidence or "100 %" in finding.evidence
    assert "A scale of 4 cures it, and the largest gradient still fits up to 2^38" in finding.remedy
    (run,) = tbnum.read(tmp_path).values()
    steps: Any = {**run.steps, "skipped": run.steps["step"] == 0}
    first_skipped: Any = SimpleNamespace(steps=steps, histograms=run.histograms, meta=run.meta, tensors=run.tensors)
    assert [found.rule for found in underflowing(RunView(first_skipped, []))] == ["gradient_underflow"]
    cured = tensors(tmp_path / "cured", lambda step: (1e-7, 1e-7, 1e-7), init_scale=4.0)
    assert "gradient_underflow" not in cured


def test_where_no_scale_holds_both_ends_no_cure_is_promised(tmp_path: Path):
    finding = tensors(tmp_path, lambda step: (3e4, 1e-7, 1e-7), init_scale=1.0)["gradient_underflow"]
    assert finding.remedy.startswith("No scale holds both ends: the largest gradient fits up to 1 only")


def test_gradients_that_grow_and_push_the_scale_down_are_seen_before_it_is_used_up(tmp_path: Path):
    found = tensors(tmp_path, lambda step: (2.0 ** (step / 25), 0.1, 0.1), 300, init_scale=2.0**14, growth_interval=20)
    running_out = found["headroom_running_out"]
    assert "the scale fell from" in running_out.evidence and "steps from now" in running_out.evidence


def test_a_scale_below_one_is_reported(tmp_path: Path):
    found = tensors(tmp_path, lambda step: (1e6, 0.1, 0.1), 60, init_scale=16.0)
    assert "were taken at a scale below 1" in found["scale_below_one"].evidence


def test_a_scaler_over_float32_gradients_is_reported(tmp_path: Path):
    model = torch.nn.Linear(8, 8)
    with Loop(tmp_path, model, init_scale=2.0**40, options={"tensor_interval": 5}) as loop:
        for x in batches(200):
            loop.step(lambda x=x: model(x).square().mean())
    (run,) = tbnum.read(tmp_path).values()
    assert "2 of 2 tensors" in by_rule(findings(run))["scaler_without_float16"].evidence


# -- size --------------------------------------------------------------------------------------------------------------


def test_findings_read_few_tables_of_a_long_run(tmp_path: Path):
    """A hundred thousand steps, 150 tensors every 50 steps."""
    names = tuple(f"blocks.{at}.weight" for at in range(150))
    random = np.random.default_rng(0)
    log = open_log(tmp_path)
    norms = random.lognormal(-5, 1, 150).astype(np.float32)
    counts = np.zeros((1, 258), np.int64)
    counts[:, 100:120] = 1000
    for step in range(100_000):
        log.append_step(row(log.columns, step, loss=2 + random.random(), loss_scale=1024.0))
        if step % 50 == 0:
            log.write_tensors(TensorTable(step, names, {"grad_norm": norms, "absmax": norms, "nan": 0 * norms}))
            log.write_histogram(
                HistogramTable(step, ("*",), "gradient", counts, np.full(1, NAN), np.full(1, NAN)),
            )
            if step % 5000 == 0:
                log.flush()
    log.close()
    (run,) = tbnum.read(tmp_path).values()
    events = run.events
    assert findings(run, events) == []


def test_every_threshold_has_its_reason():
    """In the source, in the string below it."""
    source = Path(limits.__file__).read_text()
    names = [name for name in vars(limits) if name.isupper()]
    assert len(names) > 25
    for block in source.split("\n\n")[2:]:
        if any(block.startswith(name) for name in names):
            assert '"""' in block, block
