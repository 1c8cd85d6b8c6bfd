"""Every cause is reported right for small runs that were really trained; see `tests.corpus`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tbnum
import tbnum.cli
from tbnum.explain import CAUSES, findings, next_overflow
from tests import corpus
from tests.corpus import CASES, Known, Loop


def run_of(folder: Path) -> Any:
    (run,) = tbnum.read(folder).values()
    return run


def trained(name: str, folder: Path) -> Any:
    corpus.train(name, folder)
    return run_of(folder)


def skips(run: Any) -> list[Any]:
    return [event for event in run.events if event.kind == "skip"]


@pytest.mark.parametrize("name", CASES)
def test_every_skip_has_the_cause_that_was_planted(name: str, tmp_path: Path) -> None:
    truth = corpus.train(name, tmp_path)
    assert corpus.reported(tmp_path) == truth


def test_the_corpus_holds_every_cause(tmp_path: Path) -> None:
    assert len(CASES) >= 20
    few = ("scale_set_by_hand", "growth_at_every_step", "record_that_begins_in_the_middle", "inf_loss")
    few += ("backward_that_gives_nan_at_any_scale",)
    seen = {cause for name in (*few, "parameters_become_nan") for *_, cause in corpus.train(name, tmp_path / name)}
    assert seen == set(CAUSES) - {"dropped_by_loop"}  # no scaler skips it


def test_a_healthy_run_has_no_finding(tmp_path: Path) -> None:
    assert findings(trained("healthy", tmp_path)) == []


def test_the_report_of_a_short_growth_interval_says_benign_and_gives_the_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("growth_interval_of_5_as_apex_users_have_it", tmp_path)
    assert tbnum.cli.main(["report", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "skipped 20 (16.7 %)" in out
    assert "info Skips are benign 20 steps of 120 (16.7 %): 20 growth_probe (the scaler tried" in out
    assert "a longer growth_interval" in out and "warning" not in out


def test_a_loss_that_is_always_nan_is_a_collapse_whose_scale_is_reported_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("nan_loss_from_the_start_for_200_steps", tmp_path)
    (collapse,) = [event for event in run.events if event.kind == "scale_collapse"]
    assert (collapse.severity, collapse.cause) == ("error", "forward_nonfinite")
    tbnum.cli.main(["report", str(tmp_path)])
    out = capsys.readouterr().out
    assert "2^16" in out and "0 (underflowed)" in out and "0.000" not in out
    assert tbnum.cli.main(["check", str(tmp_path)]) == 1


def test_without_a_scaler_the_step_on_a_nonfinite_gradient_is_reported_with_its_tensors(tmp_path: Path) -> None:
    run = trained("without_a_scaler_a_bad_batch_is_no_skip", tmp_path)
    first = next(event for event in run.events if event.kind == "nonfinite_step")
    assert first.step == 3 and first.severity == "error"
    assert {each["name"] for each in first.data["evidence"]["nonfinite"]} == {"first", "second", "bias"}
    causes = [event.cause for event in run.events if event.kind == "nonfinite_step"]
    assert causes == ["forward_nonfinite", "nonfinite_parameters", "nonfinite_parameters"]


# -- evidence ----------------------------------------------------------------------------------------------------------


def test_a_bad_batch_carries_the_tensors_their_counts_and_how_it_went_on(tmp_path: Path) -> None:
    with Loop(tmp_path, Known(), init_scale=2.0**12, growth_interval=20) as loop:
        for step in range(40):
            loop.step(lambda step=step: loop.model((200.0, 0.5, 0.5) if step == 15 else (0.1, 0.1, 0.1)), planted="x")
    (skip,) = skips(run_of(tmp_path))
    evidence = skip.data["evidence"]
    assert skip.cause == "bad_batch"
    assert evidence["nonfinite"] == [{"name": "layers.0", "nan": 0, "inf": 4}]
    assert (evidence["nan"], evidence["inf"], evidence["held_steps"]) == (0, 4, 15)
    assert evidence["largest_finite_scaled"] == pytest.approx(0.5 * 2**12, rel=1e-3)
    assert evidence["norm_ratio"] == pytest.approx(5, rel=1e-3)
    assert [each["name"] for each in evidence["finite_neighbours"]] == ["layers.1", "layers.2"]
    assert evidence["finite_neighbours"][0]["usual"] == pytest.approx(0.2, rel=1e-3)  # four elements of 0.1
    assert evidence["recovered_after"] == 20 and "back after 20 steps" in skip.message
    assert "The finite gradients had 5 times their usual length." in skip.message
    assert "loss 0 against" in skip.message or "loss -" in skip.message


@pytest.mark.parametrize(
    ("gradients", "times"),
    [
        ((1.05, 0.1, 0.1), "2"),  # hardly more than the scale has room for, and the others twice as long
        ((1.05, 0.3, 0.3), "6"),  # the finite gradients are longer, yet the loss is as any other
        ((1.05, 0.6, 0.6), "12"),  # no batch of that loss has them so long
    ],
)
def test_a_skip_at_the_edge_of_the_scale_sends_nobody_to_the_data(
    gradients: tuple[float, ...], times: str, tmp_path: Path
) -> None:
    edge = times != "12"
    with Loop(tmp_path, Known(), init_scale=2.0**16, options={"tensor_interval": 5}) as loop:
        for step in range(50):
            loop.step(lambda step=step: loop.model(gradients if step == 30 else (0.9, 0.05, 0.05)), planted="bad_batch")
    (skip,) = skips(run_of(tmp_path))
    assert (skip.step, skip.cause) == (30, "bad_batch")
    assert skip.severity == ("info" if edge else "warning")
    assert ("nothing points to a bad batch" in skip.message) == edge
    assert (f"{times} times their usual length, as good batches may." in skip.message) == edge
    remedy = "Nothing to do: the scale was at its edge" if edge else "Look at the batch of step 30"
    assert skip.remedy.startswith(remedy)


@pytest.mark.parametrize(("others", "edge"), [(0.1, True), (0.2, False)])
def test_a_scale_that_overflowed_by_itself_before_explains_a_batch_of_any_loss_whose_gradients_are_hardly_longer(
    others: float, edge: bool, tmp_path: Path
) -> None:
    options = {"tensor_interval": 5}
    with Loop(tmp_path, Known(), init_scale=2.0**16, growth_interval=25, lr=1e-6, options=options) as loop:
        for step in range(70):
            gradients = {15: (1.05, 0.1, 0.1), 60: (1.05, others, others)}.get(step, (0.9, 0.05, 0.05))
            loss = 9.0 if step == 60 else 2.5 + 0.01 * (step % 7)
            loop.step(lambda gradients=gradients, loss=loss: loop.model(gradients) + loss, planted="bad_batch")
    first, second = skips(run_of(tmp_path))
    assert (first.step, first.severity) == (15, "info")
    assert (second.step, second.cause, second.severity) == (60, "bad_batch", "info" if edge else "warning")


@pytest.mark.parametrize(("others", "high", "edge"), [(0.19, 9.0, True), (0.21, 9.0, False), (0.19, 27.0, False)])
def test_the_highest_scale_so_far_explains_a_batch_that_half_of_it_may_have_borne_unless_its_loss_is_far_off(
    others: float, high: float, edge: bool, tmp_path: Path
) -> None:
    options = {"tensor_interval": 5}
    with Loop(tmp_path, Known(), init_scale=2.0**15, growth_interval=40, lr=1e-6, options=options) as loop:
        for step in range(70):
            gradients = (1.05, others, others) if step == 60 else (0.9, 0.05, 0.05)
            loss = high if step == 60 else 2.5 + 0.01 * (step % 7)
            loop.step(lambda gradients=gradients, loss=loss: loop.model(gradients) + loss, planted="bad_batch")
    (skip,) = skips(run_of(tmp_path))
    assert (skip.step, skip.cause, skip.severity) == (60, "bad_batch", "info" if edge else "warning")


@pytest.mark.parametrize(("last", "period"), [(140, 20), (141, None)])
def test_skips_at_the_same_place_of_each_epoch_are_its_short_last_batch_s(
    last: int, period: int | None, tmp_path: Path
) -> None:
    bad = (40, 60, 100, last)
    options = {"tensor_interval": 5}
    with Loop(tmp_path, Known(), init_scale=2.0**16, growth_interval=12, lr=1e-6, options=options) as loop:
        for step in range(150):
            gradients = (1.05, 0.3, 0.3) if step in bad else (0.55, 0.05, 0.05)
            loss = 9.0 if step in bad else 2.5 + 0.01 * (step % 7)
            if loop.scaler.get_scale() > 2.0**16:
                loop.scaler.update(2.0**16)
            loop.step(lambda gradients=gradients, loss=loss: loop.model(gradients) + loss, planted="bad_batch")
    found = [skip for skip in skips(run_of(tmp_path)) if skip.cause == "bad_batch"]
    assert [skip.step for skip in found] == list(bad)
    for skip in found:
        assert skip.severity == ("info" if period else "warning")
        assert (f"Such skips come at multiples of {period} steps." in skip.message) == (period is not None)
        assert ("drop_last=True" in skip.remedy) == (period is not None)


def test_the_length_of_the_finite_gradients_is_that_of_all_of_them_together(tmp_path: Path) -> None:
    """Most tensors of a network of experts, or behind a ReLU, have a long gradient in some batches alone."""
    small = 1e-4
    with Loop(tmp_path, Known(5), init_scale=2.0**15, options={"tensor_interval": 5}) as loop:
        for step in range(50):
            gradients = (2.2, 0.5, *[20 * small] * 3) if step == 30 else (0.9, 0.4, *[small] * 3)
            loop.step(lambda gradients=gradients: loop.model(gradients), planted="bad_batch")
    (skip,) = skips(run_of(tmp_path))
    assert skip.data["evidence"]["norm_ratio"] == pytest.approx(1.25, rel=1e-2)
    assert skip.severity == "info"


def test_many_skips_at_the_edge_are_a_finding_and_a_probe_before_them_is_reported(tmp_path: Path) -> None:
    with Loop(tmp_path, Known(), init_scale=2.0**16, growth_interval=25, options={"tensor_interval": 5}) as loop:
        for step in range(210):
            first = 1.05 if step % 40 == 0 and step else 0.9
            loop.step(lambda first=first: loop.model((first, 0.1, 0.1)), planted="any")
    run = run_of(tmp_path)
    probe, *edge = skips(run)
    assert (probe.step, probe.cause) == (25, "growth_probe")
    assert [(skip.step, skip.cause, skip.severity) for skip in edge] == [
        (step, "bad_batch", "info") for step in (40, 80, 120, 160, 200)
    ]
    evidence = edge[0].data["evidence"]
    assert (evidence["held_before_probe"], evidence["held_steps"], evidence["failed_probe"]) == (25, 14, 2.0**17)
    assert "held_before_growth" not in evidence  # there was a growth, but not to this scale
    assert "a scale of 2^16 that had held for 25 steps, and for 14 more since a probe of 2^17 failed" in edge[0].message
    assert edge[1].data["evidence"]["held_before_growth"] == 25 and "held_before_probe" not in edge[1].data["evidence"]
    (rate,) = [finding for finding in findings(run) if finding.rule == "skip_rate"]
    assert rate.severity == "info" and rate.remedy.startswith("The scale is at its edge: ")  # the price of each growth


class Chain(torch.nn.Module):
    """Three linear layers, in whose middle a gradient can be made to overflow on its way back."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.middle, self.outlet = (torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, swell: bool) -> torch.Tensor:
        hidden = self.middle(torch.tanh(self.inlet(x)))
        if swell:
            hidden.register_hook(lambda gradient: (gradient * 1e6).half().float())
        return self.outlet(hidden).square().mean()


def test_an_overflow_on_the_way_back_is_reported_to_begin_between_the_modules_around_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Chain()
    with Loop(tmp_path, model, lr=1e-4) as loop:
        for step in range(30):
            x = torch.randn(8, 4)
            loop.step(lambda x=x, step=step: model(x, step == 20), planted="bad_batch")
    (skip,) = skips(run_of(tmp_path))
    began = skip.data["evidence"]["began"]
    assert (began["how"], began["modules"], began["propagators"]) == ("spread", ["outlet", "middle"], 2)
    assert [each["name"] for each in skip.data["evidence"]["nonfinite"]][-1].startswith("inlet")
    assert skip.message.endswith(
        "Everything up to middle is non-finite, nothing from outlet on: that began in the backward of "
        "outlet, of middle, or of what lies between them."
    )


# -- what is to come ---------------------------------------------------------------------------------------------------


def gradients_of(gradient: float, steps: int, folder: Path, **settings: Any) -> tuple[Any, list[int]]:
    """A run whose gradient stays as it is, read after `steps`; and the skips of the steps that followed."""
    options = {"tensor_interval": 5}
    with Loop(folder, Known(), options=options, **settings) as loop:
        for _ in range(steps):
            loop.step(lambda: loop.model((gradient, gradient / 3, gradient / 9)))
        loop.monitor.flush()
        run = run_of(folder)
        prediction = next_overflow(run, run.events)
        before = len(loop.truth)
        for _ in range(400):
            loop.step(lambda: loop.model((gradient, gradient / 3, gradient / 9)))
        return prediction, [step for step, *_ in loop.truth[before:]]


@pytest.mark.parametrize(
    ("gradient", "scale", "steps", "growths"),
    [
        (0.6, 2.0**16, 33, 1),  # the next doubling is too much
        (0.6, 2.0**12, 33, 4),  # known from the headroom alone: nothing has overflowed yet
        (0.1, 2.0**24, 70, 1),  # warm-up has shown the height
        (0.6, 2.0**16, 47, 1),  # it was probed before
    ],
)
def test_the_next_overflow_comes_at_the_step_that_was_predicted(
    gradient: float, scale: float, steps: int, growths: int, tmp_path: Path
) -> None:
    prediction, skipped = gradients_of(gradient, steps, tmp_path, init_scale=scale, growth_interval=20)
    assert prediction is not None and skipped
    assert (prediction.step, prediction.growths) == (skipped[0], growths)
    assert f"{skipped[0]:,}" in prediction.message and "benign" in prediction.message


def test_nothing_is_predicted_where_the_scale_would_take_ages(tmp_path: Path) -> None:
    prediction, _ = gradients_of(1e-6, 20, tmp_path, init_scale=2.0**10, growth_interval=2000)
    assert prediction is None


def test_a_live_run_is_reported_what_is_ahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Loop(tmp_path, Known(), init_scale=2.0**16, growth_interval=50, options={"tensor_interval": 5}) as loop:
        for _ in range(30):
            loop.step(lambda: loop.model((0.6, 0.1, 0.1)))
        loop.monitor.flush()
        tbnum.cli.main(["report", str(tmp_path)])
        assert "ahead" in (out := capsys.readouterr().out) and "Expect a skip at step 50" in out
        tbnum.cli.main(["report", str(tmp_path), "--json"])
        (reported,) = json.loads(capsys.readouterr().out)["runs"]
        assert reported["next_overflow"]["step"] == 50
