"""The corpus of `benchmarks.truth` judges as it should, and a part of it: all of it takes an hour."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tbnum
from benchmarks.truth import harness, noise
from benchmarks.truth.corpus import FAULTS, HEALTHY, TRUTHS, Case, cases_of, is_held_out
from benchmarks.truth.loop import Loop
from benchmarks.truth.verdict import Statement, Truth, had_an_effect, judge, refuted_by, rose, wilson

TRUTH = Truth(("lr_outlier",), near=("loss_spike",), wrong=("bad_batch",), words="learning rate", late=3)


def said(name: str, severity: str = "warning", *steps: int, text: str = "the learning rate rose") -> Statement:
    return Statement(name, severity, steps, text)


@pytest.mark.parametrize(
    ("statements", "outcome"),
    [
        ([], "silent"),
        ([said("lr_outlier", "warning", 100)], "right"),
        ([said("lr_outlier", "info", 100)], "right, info"),
        ([said("lr_outlier", "warning", 104)], "near"),  # too late
        ([said("lr_outlier", "warning", 100, text="look at the batch")], "near"),
        ([said("loss_spike", "warning", 101)], "near"),
        ([said("lr_outlier", "warning", 50)], "silent"),  # over before the fault
        ([said("lr_outlier", "warning", 100), said("bad_batch", "warning", 101)], "wrong"),
        ([said("lr_outlier", "warning", 100), said("bad_batch", "info", 101)], "right"),
        ([said("dead_tensor")], "wrong"),
        ([said("dead_tensor", "info")], "silent"),
        ([said("usual")], "silent"),  # the loop without the fault has it too
        ([said("usual_information")], "wrong"),  # but not as gravely
        ([said("loss_spike", "info", 101)], "near"),
        ([said("loss_spike", "info", 101), said("dead_tensor")], "wrong"),  # who reads it goes by what is grave
        ([said("loss_spike", "warning", 101), said("dead_tensor")], "near"),
        ([said("lr_outlier", "info", 100), said("dead_tensor")], "wrong"),
        ([said("lr_outlier", "warning", 100), said("dead_tensor")], "right"),
        ([said("unknown", "warning", 100)], "silent"),  # that the record cannot say blames nothing
        ([said("loss_rose", "warning", 100)], "silent"),  # true, and no more
        ([said("lr_outlier", "warning", 100), said("crash", "error", 120)], "wrong"),  # which it did not
        ([said("crash", "error", 50)], "silent"),
    ],
)
def test_a_verdict_weighs_name_step_severity_and_words(statements: list[Statement], outcome: str) -> None:
    usual = [said("usual"), said("usual_information", "info")]
    assert judge(TRUTH, statements, 100, usual, blameless=["loss_rose"], refuted=["crash"]) == outcome


def account(**values: Any) -> Any:
    known = {
        "losses": [1.0] * 200,
        "skips": [],
        "validation": 1.0,
        "finite": True,
        "weights": 1,
        "ended": "",
        "begin": 50,
    }
    return SimpleNamespace(**{**known, **values})


@pytest.mark.parametrize(
    "changes",
    [
        {"finite": False},
        {"ended": "RuntimeError"},
        {"skips": [51]},
        {"validation": 1.2},
        {"losses": [1.0] * 100 + [2.0] + [1.0] * 99},
        {"losses": [1.0] * 100 + [float("nan")] + [1.0] * 99},
        {"losses": [1.0] * 80},
    ],
)
def test_a_fault_without_an_effect_is_none(changes: dict[str, Any]) -> None:
    assert not had_an_effect(account(), account(), any_difference=True)
    assert had_an_effect(account(**changes), account(), any_difference=False) == (changes != {"losses": [1.0] * 80})
    assert had_an_effect(account(weights=2), account(), any_difference=True)
    assert not had_an_effect(account(weights=2), account(), any_difference=False)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, {"crash", "nonfinite_parameters", "nonfinite_update", "forward_nonfinite", "nonfinite_loss"}),
        ({"finite": False}, {"crash", "forward_nonfinite", "nonfinite_loss"}),
        ({"losses": [1.0, math.nan]}, {"crash", "nonfinite_parameters", "nonfinite_update"}),
        ({"ended": "RuntimeError", "finite": False, "losses": [math.inf]}, set()),
    ],
)
def test_what_the_loop_itself_saw_refutes_a_statement(changes: dict[str, Any], names: set[str]) -> None:
    assert refuted_by(account(**changes)) - {"mean_over_nothing"} == names


def test_what_a_fault_may_be_called_is_something_that_is_said() -> None:
    source = "".join(file.read_text() for file in Path(tbnum.__file__).parent.rglob("*.py"))
    accepted = {name for truth in TRUTHS.values() for name in truth.right + truth.near + truth.wrong}
    assert not [name for name in sorted(accepted) if f'"{name}"' not in source]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_loop_without_its_fault_is_as_long_and_measured_as_often(kind: str) -> None:
    loop, twin = FAULTS[kind], Case(FAULTS[kind], "gpt", 0, "float32").twin().loop
    assert issubclass(twin, Loop) and (loop.steps, loop.options) == (twin.steps, twin.options)


@pytest.mark.parametrize("kinds", [FAULTS, HEALTHY], ids=["faults", "healthy"])
def test_no_batch_of_the_corpus_is_empty(kinds: dict[str, Any]) -> None:
    """Its loss would be NaN, or the loop would end: a fault of the benchmark's own."""
    for case in cases_of(kinds, (0,)):
        loop = case.loop(case.model, case.seed, case.precision)
        for now in range(loop.begin, loop.begin + 200, 25):
            loop.now = now
            inputs, targets = loop.batch(0)
            assert len(inputs) and len(targets), case.name


def test_bounds_are_those_of_wilson() -> None:
    assert wilson(0, 10) == pytest.approx((0, 0.2775), abs=1e-3)
    assert wilson(9, 10) == pytest.approx((0.5958, 0.9821), abs=1e-3)
    assert wilson(0, 0) == (0, 1)


@pytest.mark.parametrize("noise", ["standard_normal", "standard_cauchy", "standard_exponential"])
def test_that_a_loss_truly_rose_is_judged_by_the_loops_own_count_of_it(noise: str) -> None:
    losses = 5 + getattr(np.random.default_rng(0), noise)(480) * 0.3
    assert not rose(losses.tolist()) and not rose((losses - np.arange(480) / 50).tolist())
    assert rose((losses + (np.arange(480) > 300)).tolist()) and not rose(losses[:60].tolist())


@pytest.mark.parametrize(
    ("names", "loss_rose", "outcome"),
    [
        ([], True, "quiet"),
        (["loss_spike", "loss_rose"], True, "alarm, loss rose"),
        (["loss_rose"], False, "false alarm"),
        (["loss_rose", "dead_tensor"], True, "false alarm"),
    ],
)
def test_an_alarm_that_the_loss_rose_is_excused_where_it_did(names: list[str], loss_rose: bool, outcome: str) -> None:
    statements = [said(name) for name in names] + [said("skip_rate", "info")]
    assert harness._of_healthy("a", "a", statements, loss_rose).outcome == outcome


def test_the_corpus_is_as_large_as_it_says_and_a_third_of_it_is_held_out() -> None:
    assert len(FAULTS) >= 60 and len(HEALTHY) >= 40 and len(noise.KINDS) == 14 and noise.RUNS == 20
    assert set(FAULTS) == set(TRUTHS)
    for kinds in (FAULTS, HEALTHY):
        assert 0.2 < sum(map(is_held_out, kinds)) / len(kinds) < 0.45
    assert {case.precision for case in cases_of(FAULTS)} == {"float32", "bfloat16", "float16"}
    assert len({case.name for case in cases_of(FAULTS)}) == len(list(cases_of(FAULTS)))


def test_nothing_is_shown_of_what_is_held_out() -> None:
    shown = harness.Result("a/gpt", "a", False, "silent", ["said of a"])
    hidden = harness.Result("b/gpt", "b", True, "silent", ["said of b"])
    assert "said of a" in harness.failing([shown, hidden])
    assert "b" not in harness.failing([hidden]) and "1 of 1" in harness.report([shown, hidden], [], [])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("truth")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("kind", "model", "precision"),
    [
        ("log_of_zero", "gpt", "float16"),  # in float16 a CNN takes five times as long on a CPU
        ("clip_before_unscale", "gpt", "float16"),
        ("batch_with_wrong_labels", "cnn", "float32"),
    ],
)
def test_a_planted_fault_is_named(kind: str, model: str, precision: str, cache: Path) -> None:
    assert not is_held_out(kind)
    result = harness.look_at_fault(Case(FAULTS[kind], model, 0, precision), cache, False)
    assert result.outcome == "right", "\n".join(result.said)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_healthy_loop_raises_no_alarm(precision: str, cache: Path) -> None:
    result = harness.look_at_healthy(Case(HEALTHY["constant_rate"], "lstm", 0, precision), cache, False)
    assert result.outcome == "quiet", "\n".join(result.said)


def test_the_worst_run_of_a_kind_is_one_with_a_wrong_cause_and_then_one_with_none() -> None:
    outcomes = {"a": ("right", "wrong", "silent"), "b": ("silent", "near"), "c": ("right", "right, info")}
    runs = [harness.Result("", kind, False, outcome, []) for kind, each in outcomes.items() for outcome in each]
    worst = {result.kind: result.outcome for result in harness.by_kind(runs)}
    assert worst == {"a": "wrong", "b": "silent", "c": "right, info"}


@pytest.mark.parametrize("kind", ["laplace", "autocorrelated"])
def test_noise_raises_no_alarm(kind: str) -> None:
    assert not is_held_out(kind)
    result = harness.look_at_noise(kind, 0)
    assert result.outcome == "quiet", "\n".join(result.said)


def test_records_are_kept_until_the_loop_changes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(HEALTHY["constant_rate"], "cnn", 0, "float32")
    harness.recorded(case, cache)
    monkeypatch.setattr(HEALTHY["constant_rate"], "record", lambda *_: pytest.fail("trained again"))
    folder, account = harness.recorded(case, cache)
    assert folder.is_dir() and len(account.losses) == HEALTHY["constant_rate"].steps
