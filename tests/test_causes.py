"""Where a NaN came from, and scales that no gradient survives: each cause with its siblings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tbnum
import tbnum.cli
from tbnum.explain import LiveExplainer, explain_run, findings, next_overflow
from tbnum.explain.batch import Batch
from tbnum.explain.facts import Known
from tbnum.explain.past import LivePast
from tbnum.log.schema import Event
from tests.corpus import Loop as Trained
from tests.loops import Half, batches
from tests.test_explain import FakeRun, Loop, causes, skips

NAN, INF = math.nan, math.inf
IN_TWO = ["blocks.0.fc.weight", "blocks.1.fc.weight"]


def nan_only(**more: Any) -> dict[str, Any]:
    """Facts of gradients that hold NaN and no inf, far from an overflow."""
    return {"nan": 40, "inf": 0, "largest_finite": 144 / 65536, "nonfinite_names": IN_TWO, **more}


def rules(run: Any) -> dict[str, Any]:
    return {finding.rule: finding for finding in findings(run)}


# -- made inside backward ----------------------------------------------------------------------------------------------


def test_nan_without_an_overflow_at_a_scale_that_had_held_was_made_inside_backward():
    loop = Loop()
    loop.steps(40)
    loop.step(overflow=True, **nan_only())
    (skip,) = skips(explain_run(loop.run()))
    assert (skip.cause, skip.severity) == ("backward_nonfinite", "warning")
    assert "inside backward" in skip.message and "replay" in skip.remedy


ALL = {"nonfinite_tensors": 6, "tensors": 6}


@pytest.mark.parametrize(
    "facts",
    [
        nan_only(inf=22, largest_finite=NAN, **ALL),  # 1 / 0 in backward: not one element is finite
        nan_only(largest_finite=11545 / 65536, **ALL),
    ],
)
def test_where_no_gradient_is_spared_it_was_made_inside_backward_nearer_to_the_limit_too(facts: dict[str, Any]):
    loop = Loop()
    for index in range(40):
        loop.step(loss=2.5 + 0.01 * (index % 7))
    loop.step(**{"overflow": True, **facts})
    assert causes(loop) == ["backward_nonfinite"]


@pytest.mark.parametrize(
    "facts",
    [
        nan_only(inf=37, largest_finite=60000 / 65536, **ALL),
        nan_only(largest_finite=60000 / 65536, **ALL),
        nan_only(nan=0, inf=9, largest_finite=NAN, **ALL),
        nan_only(inf=3),  # an inf is an overflow
        nan_only(largest_finite=60000 / 65536),  # others were near the end of float16
        nan_only(loss=40.0),  # the batch stands out
    ],
)
def test_what_may_be_an_overflow_is_still_a_bad_batch(facts: dict[str, Any]):
    loop = Loop()
    for index in range(40):
        loop.step(loss=2.5 + 0.01 * (index % 7))
    loop.step(**{"overflow": True, **facts})
    assert causes(loop) == ["bad_batch"]


@pytest.mark.parametrize("largest", [144 / 65536, 30000 / 65536])
@pytest.mark.parametrize("in_row", [1, 4])
def test_nan_in_one_tensor_alone_is_an_operation_s_or_that_of_a_product_that_overflowed(in_row: int, largest: float):
    loop = Loop()
    for index in range(40):
        loop.step(loss=2.5 + 0.01 * (index % 7))
    facts = nan_only(nonfinite_names=["first"], nonfinite_tensors=1, largest_finite=largest)
    loop.steps(in_row, overflow=True, **facts)
    loop.steps(20)
    found = skips(explain_run(loop.run()))
    assert [skip.cause for skip in found] == ["unknown", "unknown", "backward_nonfinite", "backward_nonfinite"][:in_row]
    assert found[0].severity == ("info" if in_row == 1 else "warning")
    assert "it overflowed, or backward made NaN" in found[0].message and "replay" in found[0].remedy


@pytest.mark.parametrize(("high", "severity"), [(1, "warning"), (8, "warning"), (40, "info")])
def test_a_batch_that_was_skipped_is_not_to_blame_where_the_losses_that_follow_are_as_high(high: int, severity: str):
    loop = Loop()
    for index in range(100):
        loss = 9.0 if 40 <= index < 40 + high else 2.5 + 0.01 * (index % 7)
        loop.step(overflow=index == 40, loss=loss)
    (skip,) = skips(explain_run(loop.run()))
    assert (skip.cause, skip.severity) == ("bad_batch", severity)
    assert ("the losses that follow are as high" in skip.message) == (severity == "info")
    assert skip.remedy.startswith("Look at what changed at step 40" if severity == "info" else "Look at the batch")


@pytest.mark.parametrize(
    ("steps", "largest", "causes_"),
    [
        ((40,), 10_000, ["backward_nonfinite"]),
        ((40, 75), 10_000, ["unknown", "unknown"]),  # both at 2^16
        ((40, 60), 10_000, ["backward_nonfinite", "backward_nonfinite"]),  # at 2^15, too
        ((40, 41, 90), 10_000, ["backward_nonfinite"] * 3),
        ((40, 75), 1_000, ["backward_nonfinite", "backward_nonfinite"]),  # far from an overflow
    ],
)
def test_nan_that_comes_again_at_the_same_scale_and_never_below_it_may_be_an_overflow(
    steps: tuple[int, ...], largest: float, causes_: list[str]
):
    """Behind saturated gates inf meets 0 in all that comes before them."""
    loop = Loop(growth_interval=30)
    loop.tracker = -25  # so that the scale does not grow before the first
    for index in range(100):
        bad = nan_only(largest_finite=largest / loop.scale) if index in steps else {}
        if loop.scale > 2.0**16:
            loop.scale = 2.0**16
        loop.step(overflow=index in steps, loss=2.5 + 0.01 * (3 * index % 7), **bad)
    found = skips(explain_run(loop.run()))
    assert [skip.cause for skip in found] == causes_
    assert all(skip.severity == ("info" if skip.cause == "unknown" else "warning") for skip in found)


def test_of_heavy_tails_the_first_overflow_is_no_bad_batch_though_no_scale_had_held():
    random = np.random.default_rng(0)
    loop = Loop(scale=2.0**15)
    loop.steps(5)
    loop.step(loss=20.0, overflow=True, **nan_only(inf=22, largest_finite=NAN, **ALL))
    for index in range(300):
        loop.step(loss=20.0 if index % 60 == 30 else 2.5 + 0.5 * random.random())
    (skip,) = skips(explain_run(loop.run()))
    assert (skip.cause, skip.severity) == ("bad_batch", "info")


@pytest.mark.parametrize(
    ("probed", "largest", "cause"),
    [(True, 10_000.0, "unknown"), (True, 4_000.0, "backward_nonfinite"), (False, 10_000.0, "backward_nonfinite")],
)
def test_nan_that_began_inside_a_model_may_be_an_overflow_where_a_higher_scale_had_failed(
    probed: bool, largest: float, cause: str
):
    """As in a recurrence, whose saturated gates make NaN of what overflowed on its way back."""
    loop = Loop(growth_interval=40 if probed else 1000)
    for index in range(60):
        loop.step(overflow=loop.scale > 2.0**16, loss=2.5 + 0.01 * (3 * index % 7))
    loop.step(overflow=True, loss=2.5, **nan_only(largest_finite=largest / loop.scale))
    loop.steps(40)
    assert skips(explain_run(loop.run()))[-1].cause == cause


@pytest.mark.parametrize("largest", [144 / 65536, NAN])
def test_nan_in_every_tensor_right_after_a_growth_may_be_an_overflow(largest: float):
    """The gradient of a gradient that overflows: inf meets inf before the first of them."""
    loop = Loop(growth_interval=20)
    for index in range(22):
        loop.step(loss=2.5 + 0.01 * (index % 7))
    loop.step(overflow=True, **nan_only(largest_finite=largest, **ALL))
    loop.steps(30)
    (skip,) = skips(explain_run(loop.run()))
    assert (skip.cause, skip.severity) == ("unknown", "info")
    assert "it overflowed, or backward made NaN" in skip.message
    for _ in range(4):  # at the scale below, which had held, there is no doubt
        loop.step(overflow=True, **nan_only(largest_finite=largest, **ALL))
    assert causes(loop)[-1] == "backward_nonfinite"


@pytest.mark.parametrize(("before", "severity"), [(20, "info"), (255, "info"), (257, "warning")])
def test_where_no_gradient_is_finite_a_scale_that_overflowed_by_itself_before_is_suspect_enough(
    before: int, severity: str
):
    """Or one that is the highest so far: unless it had held for long, nothing else is known to have been wrong."""
    loop = Loop(growth_interval=300)
    facts = {"nan": 3, "inf": 22, "largest_finite": NAN}
    for index in range(before + 360):
        overflow = index in (before, before + 341)  # 40 steps after the scale grew again
        loop.step(overflow=overflow, loss=2.5 + 0.01 * (index % 7), **(facts if overflow else {}))
    first, second = skips(explain_run(loop.run()))
    assert (first.cause, first.severity) == (second.cause, second.severity) == ("bad_batch", severity)


def test_nan_at_a_scale_that_had_not_held_is_no_verdict_on_backward():
    loop = Loop(scale=2.0**24)
    loop.steps(4, overflow=True, **nan_only())
    loop.steps(30)
    assert causes(loop) == ["scale_warmup"] * 4


def test_nan_from_the_first_step_on_was_made_inside_backward_once_no_scale_helped():
    loop = Loop()
    loop.steps(40, overflow=True, **nan_only(largest_finite=1e-6))
    events = explain_run(loop.run())
    assert {event.cause for event in skips(events)} == {"backward_nonfinite"}
    (collapse,) = [event for event in events if event.kind == "scale_collapse"]
    assert collapse.cause == "backward_nonfinite" and "replay" in collapse.remedy
    assert "a zero_grad() that is missing" in collapse.remedy, "kept gradients look the same"


def test_without_a_scaler_the_step_says_that_backward_made_it():
    loop = Loop()
    loop.steps(30)
    facts = {"loss": 2.5, "micro_batches": 1, "loss_scale": NAN, "nonfinite_tensors": 4, "tensors": 6}
    loop.event("nonfinite_step", **facts, **nan_only())
    loop.step()
    (event,) = [event for event in explain_run(loop.run()) if event.kind == "nonfinite_step"]
    assert event.cause == "backward_nonfinite" and "replay" in event.remedy


# -- made by an update -------------------------------------------------------------------------------------------------


def test_an_optimizer_whose_eps_is_nothing_is_named_and_not_the_forward_pass(tmp_path: Path):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=0.0)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=1) as monitor:
        for step in range(12):
            optimizer.zero_grad()
            loss = model(torch.randn(2, 4)).square().mean()
            loss.backward()
            if step == 5:
                for parameter in model.parameters():
                    parameter.grad.zero_()
                    optimizer.state[parameter]["exp_avg_sq"].zero_()
                    optimizer.state[parameter]["exp_avg"].zero_()
            monitor.log_loss(loss)
            optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    update = next(event for event in run.events if event.kind == "nonfinite_update")
    assert (update.step, update.severity) == (5, "error")
    assert "checkpoint from before step 5" in update.remedy and "eps" in update.remedy
    later = [event for event in run.events if event.kind == "nonfinite_step"]
    assert later and {event.cause for event in later} == {"nonfinite_parameters"}
    assert all("before step 5" in event.remedy for event in later)
    found = {finding.rule: finding for finding in run.findings}
    assert "eps_vanishes" in found and found["nonfinite_update"].severity == "error"


def test_of_a_run_that_ran_away_the_optimizer_is_not_to_blame():
    loop = Loop()
    loop.steps(40)
    loop.event("nonfinite_step", loss=NAN, micro_batches=1, nonfinite_tensors=6, tensors=6, params_nonfinite=True)
    loop.step()
    run = loop.run()
    run.steps["param_norm"] = np.where(np.arange(41) == 20, 3.0, NAN)
    run.steps["nonfinite_tensors"] = np.zeros(41)
    run.steps["grad_norm"] = np.where(np.arange(41) >= 37, 10.0 ** np.arange(-18, 23), 1.0)
    events = explain_run(run)
    (update,) = [event for event in events if event.kind == "nonfinite_update"]
    assert (update.data["runaway_step"], update.step) == (37, 39)
    assert "between step 21 and step 39: the gradients had run away, to a norm of 1e+19 at step 37" in update.message
    assert "no gradient is to blame" not in update.message
    assert "learning rate" in update.remedy and "eps" not in update.remedy
    (step,) = [event for event in events if event.kind == "nonfinite_step"]
    assert "had run away" in step.message and "eps" not in step.remedy
    run.steps["grad_norm"] = np.full(41, 2.0**62)
    update = next(event for event in explain_run(run) if event.kind == "nonfinite_update")
    assert "no gradient is to blame" in update.message and "eps" in update.remedy


def test_while_a_run_goes_on_it_is_known_that_it_ran_away():
    columns = ("step", "loss", "grad_norm", "skipped")
    explainer = LiveExplainer()
    explainer.steps(columns, [(step, 1.0, 1e20 if step >= 5 else 1.0, False) for step in range(8)])
    event = explainer.event(Event(8, 0.0, "nonfinite_update", data={"by_step": 7, "params_nonfinite": True}))
    assert "to a norm of 1e+20 at step 5" in event.message and "eps" not in event.remedy
    explainer = LiveExplainer()
    explainer.steps(columns, [(step, 1.0, 1.0, False) for step in range(8)])
    event = explainer.event(Event(8, 0.0, "nonfinite_update", data={"by_step": 7, "params_nonfinite": True}))
    assert "no gradient is to blame" in event.message


def test_between_two_measurements_the_interval_is_named():
    loop = Loop()
    loop.steps(40)
    loop.step(overflow=True, loss=NAN, params_nonfinite=True)
    run = loop.run()
    run.steps["param_norm"] = np.where(np.arange(41) == 20, 3.0, NAN)
    run.steps["nonfinite_tensors"] = np.zeros(41)
    (update,) = [event for event in explain_run(run) if event.kind == "nonfinite_update"]
    assert (update.data["after_step"], update.data["by_step"]) == (20, 39)
    assert "between step 21 and step 39" in update.message
    (skip,) = skips(explain_run(run))
    assert skip.cause == "nonfinite_parameters" and "before step 21" in skip.remedy


def test_a_measured_norm_of_the_parameters_outranks_a_loss_that_hides_nan():
    loop = Loop()
    for step in range(60):
        if step in (3, 5, 7):
            facts = {"loss": 2.5, "micro_batches": 1, "nonfinite_tensors": 6, "tensors": 6, "grad_norm": NAN}
            loop.event("nonfinite_step", **facts)
        loop.step()
    run = loop.run()
    run.steps["param_norm"] = np.full(60, NAN)
    run.steps["param_norm"][0], run.steps["param_norm"][50] = 3.0, INF
    events = [event for event in explain_run(run) if event.kind == "nonfinite_step"]
    assert [event.cause for event in events] == [None, "nonfinite_parameters", "nonfinite_parameters"]
    assert all("step 3" in event.remedy for event in events)


def test_float16_parameters_with_an_eps_that_vanishes_are_reported_before_anything_happens():
    for dtype, eps, there in (("float16", 1e-8, True), ("float16", 1e-4, False), ("float32", 1e-8, False)):
        run = FakeRun({}, [], {"optimizers": {"a": {"class": "Adam", "groups": [{"eps": eps}], "dtypes": {dtype: 3}}}})
        assert ("eps_vanishes" in rules(run)) == there, (dtype, eps)


# -- nothing to average ------------------------------------------------------------------------------------------------


def test_a_loss_of_nan_with_gradients_of_0_is_a_mean_over_nothing(tmp_path: Path):
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path) as monitor:
        for step in range(20):
            optimizer.zero_grad()
            target = torch.full((2,), -100 if step == 7 else 1)
            loss = torch.nn.functional.cross_entropy(model(torch.randn(2, 4)), target)
            loss.backward()
            monitor.log_loss(loss)
            optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    found = {finding.rule: finding for finding in run.findings}
    assert found["mean_over_nothing"].steps == (7,) and "nonfinite_loss" not in found
    assert "ignored or masked" in found["mean_over_nothing"].remedy


@pytest.mark.parametrize("spoil", ["targets", "constant"])
def test_of_a_nan_in_one_of_several_micro_batches_it_is_not_said_for_certain_what_it_was(spoil: str, tmp_path: Path):
    """A mean over no target and a constant of NaN leave the same record: the other micro-batches have gradients."""
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path) as monitor:
        for step in range(20):
            optimizer.zero_grad()
            for micro in range(3):
                bad = (step, micro) == (7, 1)
                target = torch.full((2,), -100 if bad and spoil == "targets" else 1)
                loss = torch.nn.functional.cross_entropy(model(torch.randn(2, 4)), target)
                loss = loss + (float("nan") if bad and spoil == "constant" else 0.0)
                loss.backward()
                monitor.log_loss(loss)
            optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    found = {finding.rule: finding for finding in run.findings}
    assert (found["nonfinite_loss"].severity, found["nonfinite_loss"].steps) == ("warning", (7,))
    assert "no parameter has a part in, or for a micro-batch" in found["nonfinite_loss"].remedy
    assert (found["mean_over_nothing"].severity, found["mean_over_nothing"].steps) == ("info", (7,))
    assert found["mean_over_nothing"].title.startswith("Perhaps")


# -- scales ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [INF, 2.0**127, 2.0**112, -1.0])
def test_a_scale_that_no_gradient_survives_is_reported_and_ends_no_report(scale: float, tmp_path: Path):
    with Trained(tmp_path / "bad", Half(), init_scale=2.0**10) as loop:
        for step, x in enumerate(batches(20)):
            if step == 12:
                loop.scaler.update(scale)
            loop.step(lambda x=x: loop.model(x).square().mean(), planted="any")
    with Trained(tmp_path / "good", Half(), init_scale=2.0**10) as loop:
        for x in batches(20):
            loop.step(lambda x=x: loop.model(x).square().mean())
    runs = tbnum.read(tmp_path)
    found = {finding.rule: finding for finding in runs["bad"].findings}
    assert found["scale_extreme"].severity in ("warning", "error")
    assert "findings_left_out" not in found
    assert "Nothing to do" not in {skip.remedy for skip in skips(runs["bad"].events)}
    assert next_overflow(runs["bad"], runs["bad"].events) is None or scale < INF
    assert tbnum.cli.main(["report", str(tmp_path)]) == 0
    assert tbnum.cli.main(["check", "--fail-on", "warning", str(tmp_path)]) == 1


def test_a_scale_far_below_one_that_had_held_is_never_nothing_to_do():
    loop = Loop(growth_interval=10_000)
    loop.steps(100)
    for _ in range(6):
        loop.step(overflow=True)
        loop.steps(40)
    run = loop.run()
    reported = skips(explain_run(run))
    assert "far below 2^16" in reported[-1].remedy and "Nothing to do" not in reported[-1].remedy
    assert rules(run)["scale_falls"].severity == "warning"


@pytest.mark.parametrize("loss", [NAN, 2.5])
def test_a_scale_that_losses_of_nan_brought_down_does_not_say_that_gradients_grow(loss: float):
    loop = Loop(scale=1024.0, growth_interval=10_000)
    loop.steps(100)
    for _ in range(12):
        loop.step(overflow=True, loss=loss)
        loop.steps(40)
    found = rules(loop.run())
    grown = [
        text in found[rule].evidence for rule, text in (("scale_falls", "grow"), ("scale_below_one", "do not fit"))
    ]
    assert grown == ([False, False] if math.isnan(loss) else [True, True])
    of_nan = ["12 skips, 12 of them" in found[rule].evidence for rule in ("scale_falls", "scale_below_one")]
    assert of_nan == [math.isnan(loss), False]
    assert ("no overflow" in found["scale_below_one"].remedy) == math.isnan(loss)


def test_a_loss_that_is_finite_once_the_scale_has_come_down_followed_the_scale():
    """torch's own recipe for a gradient penalty: autograd.grad of the scaled loss overflows."""
    loop = Loop()
    loop.steps(3, overflow=True, loss=NAN)
    loop.steps(2, overflow=True)
    loop.steps(40)
    reported = skips(explain_run(loop.run()))
    assert [skip.cause for skip in reported] == ["scale_warmup"] * 5
    assert "autograd.grad" in reported[0].message


def test_a_scale_that_grew_while_every_gradient_was_0_has_not_held():
    loop = Loop(scale=2.0**16, growth_interval=40)
    loop.steps(60)
    loop.steps(400, loss=0.0, norm=0.0)
    while loop.scale > 2.0**17:
        loop.step(overflow=True, loss=0.7)
    loop.steps(200, loss=0.7)
    loop.step(overflow=True, loss=5.0)
    run = loop.run()
    *descent, bad = skips(explain_run(run))
    assert {skip.cause for skip in descent} == {"scale_warmup"} and {skip.severity for skip in descent} == {"info"}
    assert "had grown while every gradient was 0" in descent[0].message
    assert bad.cause == "bad_batch" and "had held before" not in bad.message
    assert not rules(run).keys() & {"scale_falls", "scale_collapse"}


def test_losses_of_exactly_0_are_no_measure_of_one_that_is_not():
    """A hinge that mostly pulls at nothing: its scale grew over steps that could not overflow."""
    loop = Loop(scale=2.0**16, growth_interval=30)
    for step in range(301):
        pulls = step % 30 == 5
        loop.step(loss=1e-5 * pulls, norm=0.1 * pulls)
    loop.steps(8, loss=0.0, norm=0.0)
    loop.steps(4, loss=1e-5)
    loop.steps(8, loss=0.0, norm=0.0)
    loop.step(overflow=True, loss=8e-6)
    (skip,) = skips(explain_run(loop.run()))
    assert (skip.cause, skip.severity) == ("growth_probe", "info")
    assert "after 4 steps" in skip.message


def test_a_scale_set_below_one_is_a_warning_that_blames_no_gradient():
    loop = Loop()
    loop.steps(100)
    loop.event("scale_set", step=99, old_scale=loop.scale, new_scale=2.0**-20)
    loop.scale = 2.0**-20
    loop.steps(60, norm=0.0)
    run = loop.run()
    (event,) = [event for event in explain_run(run) if event.kind == "scale_set"]
    assert event.severity == "warning" and "below 1" in event.remedy
    found = rules(run)["scale_below_one"]
    assert "set by hand at step 99" in found.evidence and "do not fit" not in found.evidence
    loop = Loop(scale=2.0)
    loop.event("scale_set", step=0, old_scale=4.0, new_scale=2.0)
    loop.steps(60)
    loop.step(overflow=True)
    loop.step(overflow=True)
    loop.steps(60)
    run = loop.run()
    assert "do not fit" in rules(run)["scale_below_one"].evidence
    assert [event.severity for event in explain_run(run) if event.kind == "scale_set"] == ["info"]


@pytest.mark.parametrize(
    ("below", "stands_out"), [(0, True), (4, True), (5, False), (25, False), (45, False), (46, True)]
)
def test_long_gradients_of_a_loss_on_both_sides_of_0_do_not_stand_out(below: int, stands_out: bool):
    """A policy's gradients are as long as what was won or lost."""

    past = PastOf([-0.5] * below + [0.5] * (50 - below), norm_ratio=12.0)
    assert batch(past, loss=0.1).norms_stand_out() == stands_out


@pytest.mark.parametrize(("ratio", "stands_out"), [(9.0, False), (20.9, False), (21.1, True)])
def test_gradients_that_are_longer_as_the_loss_is_higher_do_not_stand_out_where_such_losses_recur(
    ratio: float, stands_out: bool
):
    losses, tail = [1.0] * 50, np.concatenate([np.ones(500), [7.1, 8.3]])
    assert batch(PastOf(losses, ratio, tail), loss=7.0).norms_stand_out() == stands_out
    assert batch(PastOf(losses, ratio, np.ones(500)), loss=7.0).norms_stand_out()


class PastOf(LivePast):
    def __init__(self, losses: list[float], norm_ratio: float, heights: np.ndarray | None = None) -> None:
        super().__init__()
        self.losses, self.ratio = losses, norm_ratio
        self.of_loss = np.ones(500) if heights is None else heights

    def recent_losses(self, before: int) -> list[float]:
        return self.losses

    def norm_ratio(self, step: int, optimizer: str | None) -> float:
        return self.ratio

    def heights(self, name: str, step: int, optimizer: str | None, *, after: bool) -> np.ndarray:
        return self.of_loss if name == "loss" else np.ones(500)


def batch(past: PastOf, loss: float) -> Batch:
    facts = {"loss": loss, "loss_scale": 65536.0, "largest_finite": 0.9, "nan": 0, "inf": 3}
    return Batch(Known.of(Event(100, 0.0, "skip", data=facts)), past)


# -- other loops -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("threshold", "text"), [(-1.0, "reverses every gradient"), (0.0, "sets every gradient to 0")])
def test_a_threshold_that_is_not_above_0_is_an_error(threshold: float, text: str):
    loop = Loop()
    loop.steps(200)
    run = loop.run()
    run.steps |= {"clip_coef": np.full(200, threshold), "max_norm": np.full(200, threshold)}
    found = rules(run)
    assert found["max_norm_invalid"].severity == "error" and text in found["max_norm_invalid"].evidence
    assert not {"clipped_always", "clipped_never"} & set(found)


def test_a_norm_that_overflowed_says_what_clipping_did_only_where_there_was_a_clip():
    for clipped in (True, False):
        event = Event(3, 0.0, "norm_overflow", data={"grad_norm": INF, **({"clipped": True} if clipped else {})})
        (reported,) = explain_run(FakeRun({}, [event]))
        assert ("clipping" in reported.message) == clipped


def test_a_repeat_of_a_diverged_run_may_fail_alike_until_it_is_past_that_place():
    for steps, severity, words in ((30, "warning", "may fail alike"), (80, "info", "past that place")):
        loop = Loop()
        loop.event("repeat_of_diverged_run", run="a", at_step=50, why="it diverged")
        loop.steps(steps)
        run = loop.run()
        (event,) = [event for event in explain_run(run) if event.kind == "repeat_of_diverged_run"]
        assert (event.severity, words in event.message) == (severity, True)
        assert rules(run)["repeat_of_diverged_run"].severity == severity


def test_a_crash_of_anomaly_mode_says_what_anomaly_mode_does(tmp_path: Path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with pytest.raises(RuntimeError), tbnum.wrap(optimizer, logdir=tmp_path), torch.autograd.detect_anomaly():
        (model(torch.zeros(1, 2)) * 0).sqrt().sum().backward()
    (run,) = tbnum.read(tmp_path).values()
    crash = next(event for event in run.events if event.kind == "crash")
    assert "Anomaly mode" in crash.remedy and "Read the steps before it" not in crash.remedy


def test_scalars_with_a_scale_that_never_moves_tell_of_no_dynamic_scaler():
    steps = {
        "step": np.arange(60),
        "wall_time": np.arange(60.0),
        "loss": np.full(60, 2.0),
        "loss_scale": np.ones(60),
        "grad_norm": np.where(np.arange(60) % 2, NAN, 1.0),
    }
    data = {"inferred": True, "how": "grad_norm", "loss_scale": 1.0, "grad_norm": NAN, "loss": 2.0}
    events = [Event(step, 0.0, "skip", data=data) for step in range(1, 60, 2)]
    reported = explain_run(FakeRun(steps, events, {"source": "tensorboard", "system": "", "every": 1}))
    assert {event.cause for event in skips(reported)} == {"unknown"}
    assert "did not come down" in skips(reported)[0].message


# -- damaged records ---------------------------------------------------------------------------------------------------


def test_an_event_that_cannot_be_explained_costs_itself_alone():
    loop = Loop()
    loop.steps(30)
    loop.event("resume", from_step="a text")
    loop.step(overflow=True, losses="a text", nonfinite_names=7, at_least="many", tensors=INF)
    run = loop.run()
    reported = {event.kind: event for event in explain_run(run)}
    assert "could not be explained" in reported["resume"].message
    assert reported["skip"].cause == "bad_batch"


def test_a_rule_that_cannot_digest_a_record_costs_its_findings_and_the_report_says_which(tmp_path: Path):
    loop = Loop()
    loop.steps(200)
    loop.event("update_missing", where="train.py:7")
    run = loop.run()
    run.meta["concurrent_writers"] = [{"damaged": True}]
    run.meta["optimizers"] = {"a": "a text"}
    found = rules(run)
    assert "update_missing" in found
    assert "rival_sessions" in found["findings_left_out"].evidence
    assert "eps_vanishes" in found["findings_left_out"].evidence


def test_a_run_has_its_findings_gravest_first(tmp_path: Path):
    with Trained(tmp_path, Half(), init_scale=2.0**10) as loop:
        for x in batches(12):
            loop.step(lambda x=x: loop.model(x).square().mean() * NAN, planted="any")
    (run,) = tbnum.read(tmp_path).values()
    assert isinstance(run, tbnum.Run) and isinstance(run.events[0], tbnum.Event)
    assert run.findings and all(isinstance(finding, tbnum.Finding) for finding in run.findings)
    severities = [finding.severity for finding in run.findings]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert run.findings == run.findings


def test_columns_that_no_rule_can_digest_cost_what_is_made_of_them():
    loop = Loop()
    loop.steps(100)
    loop.step(overflow=True)
    run = loop.run()
    run.steps["loss"] = np.array(["a text"] * 101, object)
    events = explain_run(run)
    assert "skip" in {event.kind for event in events}
    (left_out,) = [event for event in events if event.kind == "left_out"]
    assert "spikes" in left_out.message and left_out.severity == "warning"
    assert {"left_out", "skip_rate"} <= set(rules(run))


def test_parameters_so_large_that_their_norm_overflows_are_not_said_to_be_no_numbers():
    """What follows from them is finite, and nothing else came in."""
    for last, there in ((59, False), (51, True)):  # the last step with a finite loss
        loop = Loop()
        loop.steps(52)
        loop.steps(8, loss=1e23 if last == 59 else INF)
        run = loop.run()
        run.steps["param_norm"] = np.full(60, NAN)
        run.steps["param_norm"][0], run.steps["param_norm"][51] = 3.0, INF
        assert any(event.kind == "nonfinite_update" for event in explain_run(run)) == there
