from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tbnum.explain import CAUSES, SPIKES, LiveExplainer, explain_run, findings
from tbnum.explain.causes import CAUSE
from tbnum.explain.kinds import KINDS
from tbnum.explain.words import duration_text, scale_text, share_text
from tbnum.log.schema import EVENT_KINDS, Event

NAN, INF = float("nan"), float("inf")
NAMES = ("step", "wall_time", "loss", "micro_batches", "loss_scale", "grad_norm", "skipped", "nonfinite_tensors")


@dataclass
class FakeRun:
    steps: dict[str, np.ndarray]
    raw_events: list[Event] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass
class Loop:
    """A training loop with torch's GradScaler policy, writing what the monitor would write."""

    scale: float = 65536.0
    growth_interval: int = 2000
    first_step: int = 0
    events: list[Event] = field(default_factory=list)
    rows: list[tuple] = field(default_factory=list)
    tracker: int = 0

    @property
    def next(self) -> int:
        return self.first_step + len(self.rows)

    def event(self, kind: str, step: int | None = None, **data: Any) -> None:
        step = self.next if step is None else step
        self.events.append(Event(step, 1e9 + step, kind, data=data))

    def step(self, overflow: bool = False, loss: float = 2.5, norm: float = 1.0, **data: Any) -> None:
        step = self.next
        norm = INF if overflow else norm
        bad = 3.0 if overflow else 0.0
        before = self.scale
        kind = None
        if overflow:
            self.scale, self.tracker, kind = self.scale / 2, 0, "scale_backoff"
        else:
            self.tracker += 1
            if self.tracker == self.growth_interval:
                self.scale, self.tracker, kind = self.scale * 2, 0, "scale_growth"
        if overflow:
            facts = {"loss": loss, "loss_scale": before, "new_scale": self.scale, "grad_norm": norm}
            facts |= {"nonfinite_tensors": 3, "tensors": 12, "micro_batches": 1}
            self.event("skip", **(facts | data))
        if kind is not None:
            self.event(kind, old_scale=before, new_scale=self.scale)
        self.rows.append((step, 1e9 + step, loss, 1.0, before, norm, overflow, bad))

    def steps(self, count: int, **kwargs: Any) -> None:
        for _ in range(count):
            self.step(**kwargs)

    def run(self) -> FakeRun:
        columns = {name: np.array(values) for name, values in zip(NAMES, zip(*self.rows, strict=True), strict=True)}
        columns["skipped"] = columns["skipped"].astype(bool)
        meta = {"scaler": {"growth_interval": self.growth_interval}, "first_step": self.first_step}
        return FakeRun(columns, list(self.events), meta)


def skips(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.kind == "skip"]


def causes(loop: Loop) -> list[str | None]:
    return [event.cause for event in skips(explain_run(loop.run()))]


def test_skips_before_the_first_unskipped_step_are_warm_up():
    loop = Loop(scale=2.0**20)
    loop.steps(6, overflow=True)
    loop.steps(20)
    events = skips(explain_run(loop.run()))
    assert [event.cause for event in events] == ["scale_warmup"] * 6
    assert {event.severity for event in events} == {"info"}
    assert events[0].remedy == "Nothing to do: the scale settled at 2^14 after 6 skips."


def test_a_skip_among_the_first_steps_does_not_send_anybody_to_the_data():
    loop = Loop(scale=2.0**20)
    loop.steps(4, overflow=True)
    loop.step()
    loop.step(overflow=True)
    loop.steps(9)
    loop.step(overflow=True)
    *_, early, later = skips(explain_run(loop.run()))
    assert (early.cause, later.cause) == ("bad_batch", "bad_batch")
    assert early.remedy.startswith("Nothing to do if it stays among the first steps")
    assert (early.severity, later.severity) == ("info", "warning")
    assert later.remedy.startswith("Look at the batch of step 15")


def test_a_skip_soon_after_a_growth_is_a_probe_and_later_a_bad_batch():
    for held, cause in ((0, "growth_probe"), (9, "growth_probe"), (10, "bad_batch")):
        loop = Loop(growth_interval=50)
        loop.steps(50 + held)
        loop.step(overflow=True)
        assert causes(loop) == [cause], held


def test_with_a_short_growth_interval_every_overflow_of_the_doubled_scale_is_a_probe():
    loop = Loop(growth_interval=5)
    for _ in range(200):
        loop.step(overflow=loop.scale > 65536)
    run = loop.run()
    events = skips(explain_run(run))
    assert len(events) == 33
    assert {event.cause for event in events} == {"growth_probe"}
    (finding,) = [found for found in findings(run) if found.rule == "skip_rate"]
    assert finding.severity == "info"
    assert "33 steps of 200 (16.5 %): 33 growth_probe" in finding.evidence
    assert "growth_interval" in finding.remedy


def test_the_cause_is_counted_from_the_log_when_the_growth_tracker_restarts():
    """After a skip at a scale that had held, the next overflow is no probe although the tracker is small."""
    loop = Loop(growth_interval=20)
    loop.steps(20)
    loop.step(overflow=True)  # the probe
    loop.step()
    loop.step(overflow=True)  # at the scale that had held
    assert causes(loop) == ["growth_probe", "bad_batch"]


def test_a_loss_far_above_its_recent_ones_overrules_a_probe():
    loop = Loop(growth_interval=50)
    for index in range(52):
        loop.step(loss=2.5 + 0.1 * (index % 3))
    loop.step(overflow=True, loss=9.0)
    (skip,) = skips(explain_run(loop.run()))
    assert skip.cause == "bad_batch"
    assert "loss 9 against a recent median of 2.6" in skip.message


def test_a_bad_batch_tells_its_numbers_and_when_the_scale_was_back():
    loop = Loop(growth_interval=50)
    loop.steps(30)
    loop.step(overflow=True, loss=4.0, nonfinite_names=["head.weight", "head.bias", "emb"])
    loop.steps(60)
    (skip,) = skips(explain_run(loop.run()))
    assert (skip.cause, skip.severity) == ("bad_batch", "warning")
    assert skip.message == (
        "The step was skipped: 3 of 12 gradients overflowed (head.weight, head.bias, ...) at a scale of 2^16 that had "
        "held for 30 steps; loss 4 against a recent median of 2.5; scale 2^16 -> 2^15, back after 50 steps."
    )
    assert "step 30" in skip.remedy


def test_an_injected_batch_is_a_bad_batch_and_says_that_it_was_injected():
    loop = Loop(growth_interval=20)
    loop.steps(22)
    loop.event("annotation", text="inputs x 1e4", injected=True)
    loop.step(overflow=True)
    (skip,) = skips(explain_run(loop.run()))
    assert skip.cause == "bad_batch"
    assert "injected on purpose: inputs x 1e4" in skip.message
    assert skip.remedy.startswith("Nothing to do")


@pytest.mark.parametrize("loss", [NAN, INF])
def test_a_nonfinite_loss_is_the_cause_when_it_was_measured(loss: float):
    loop = Loop()
    loop.steps(20)
    loop.step(overflow=True, loss=loss)
    (skip,) = skips(explain_run(loop.run()))
    assert (skip.cause, skip.severity) == ("forward_nonfinite", "warning")


def test_an_unknown_loss_is_not_a_nonfinite_loss():
    loop = Loop()
    loop.steps(20)
    loop.step(overflow=True, loss=NAN, micro_batches=0)
    assert causes(loop) == ["bad_batch"]


def test_nonfinite_parameters_come_before_the_loss_that_they_spoil():
    loop = Loop()
    loop.steps(20)
    loop.step(overflow=True, loss=NAN, params_nonfinite=True)
    assert causes(loop) == ["nonfinite_parameters"]


def test_after_steps_with_nonfinite_gradients_the_parameters_are_to_blame_until_a_loss_is_finite():
    def nonfinite_step(loop: Loop, loss: float) -> None:
        loop.event("nonfinite_step", loss=loss, grad_norm=NAN, nonfinite_tensors=6, tensors=6, micro_batches=1)
        loop.step(loss=loss)

    loop = Loop()
    loop.steps(20)
    for _ in range(5):
        nonfinite_step(loop, NAN)
    loop.steps(3)  # restored by the user
    nonfinite_step(loop, 2.5)
    nonfinite_step(loop, NAN)
    loop.event("resume", step=30, from_step=30)
    nonfinite_step(loop, NAN)
    run = loop.run()
    events = [event for event in explain_run(run) if event.kind == "nonfinite_step"]
    assert [event.cause for event in events] == [
        "forward_nonfinite",
        *["nonfinite_parameters"] * 4,
        None,  # the loss was finite
        "nonfinite_parameters",
        "forward_nonfinite",
    ]
    assert "non-finite since step 20" in events[1].message and "before step 20" in events[4].remedy
    found = [finding for finding in findings(run) if "reached the parameters" in finding.title]
    assert len(found) == 1 and "8 steps of this kind, the first at step 20" in found[0].evidence
    live = LiveExplainer(run.meta)
    reported = []
    for row in loop.rows:
        live.steps(NAMES, [row])
        reported += [live.event(event).cause for event in loop.events if event.step == row[0]]
    assert [cause for cause in reported if cause] == [event.cause for event in events if event.cause]


def test_the_recent_median_is_the_same_live_and_read():
    loop = Loop()
    for index in range(80):
        loop.step(loss=float((index * 7919) % 101))
    loop.step(overflow=True)
    run = loop.run()
    live = LiveExplainer(run.meta)
    for row in loop.rows:
        live.steps(NAMES, [row])
    (read,) = skips(explain_run(run))
    reported = live.event(loop.events[0])
    assert reported.data["evidence"]["recent_loss"] == read.data["evidence"]["recent_loss"]


def test_every_error_among_the_events_is_a_finding_that_is_an_error():
    """So that a run passes `tbnum check` only if its report shows no error."""
    assert {name for name, cause in CAUSE.items() if cause.severity == "error"} == {"nonfinite_parameters"}
    loop = Loop()
    loop.steps(20)
    loop.step(overflow=True, params_nonfinite=True)
    assert "error" in {finding.severity for finding in findings(loop.run())}


def test_after_a_nonfinite_step_the_parameters_are_to_blame_until_a_loss_is_finite():
    loop = Loop()
    loop.steps(20)
    loop.event("nonfinite_step", loss=2.5, grad_norm=INF, nonfinite_tensors=1)
    loop.step()
    loop.step(overflow=True, loss=NAN)
    (skip,) = skips(explain_run(loop.run()))
    assert skip.cause == "nonfinite_parameters"
    assert "since step 20" in skip.message and "before step 20" in skip.remedy
    loop.steps(20)  # finite again, whatever healed it
    loop.step(overflow=True)
    assert causes(loop)[-1] == "bad_batch"


@pytest.mark.parametrize("kind", ["scale_set", "scaler_state_lost"])
def test_a_scale_that_was_set_or_lost_warms_up_again(kind: str):
    loop = Loop()
    loop.steps(50)
    loop.event(kind, step=49, old_scale=65536.0, new_scale=2.0**24)
    loop.scale = 2.0**24
    loop.steps(3, overflow=True)
    loop.step()
    loop.step(overflow=True)
    assert causes(loop) == ["scale_warmup"] * 3 + ["bad_batch"]


def test_a_record_that_begins_late_cannot_tell_the_first_skips():
    loop = Loop(first_step=500)
    loop.step(overflow=True)
    loop.steps(10)
    loop.step(overflow=True)
    assert causes(loop) == ["unknown", "bad_batch"]


@pytest.mark.parametrize(("held", "cause"), [(9, "unknown"), (10, "backward_nonfinite")])
def test_nan_of_a_record_that_begins_late_is_backward_s_once_the_scale_has_held(held: int, cause: str):
    loop = Loop(first_step=500)
    loop.steps(held)
    loop.step(overflow=True, nan=400.0, inf=0.0, largest_finite=100.0 / loop.scale, nonfinite_tensors=8)
    assert causes(loop) == [cause]


def test_a_resumed_record_goes_on_with_what_was_known():
    loop = Loop(growth_interval=100)
    loop.steps(60)
    loop.event("resume", step=60, from_step=60)
    loop.steps(3)
    loop.step(overflow=True)
    run = loop.run()
    run.meta = {"first_step": 60, "sessions": [{"first_step": 0}, {"first_step": 60}]}
    assert [event.cause for event in skips(explain_run(run))] == ["bad_batch"]


def test_two_optimizers_on_one_scaler_count_a_step_once():
    events = []
    for step in range(3):
        for name in ("generator", "critic"):
            data = {"loss": 1.0, "micro_batches": 2, "loss_scale": 2.0 ** (20 - step)}
            events.append(Event(step, 0.0, "skip", optimizer=name, data=data))
        scales = {"old_scale": 2.0 ** (20 - step), "new_scale": 2.0 ** (19 - step)}
        events.append(Event(step, 0.0, "scale_backoff", data=scales))
    events.append(Event(5, 0.0, "skip", optimizer="critic", data={"loss": 1.0, "loss_scale": 2.0**17}))
    explained = skips(explain_run(FakeRun({}, events, {"first_step": 0})))
    assert [event.cause for event in explained] == ["scale_warmup"] * 6 + ["bad_batch"]
    assert "The step of critic was skipped" in explained[-1].message
    assert "settled at 2^17 after 3 skips" in explained[0].remedy


def test_a_skip_whose_event_was_lost_is_reported_from_the_columns():
    loop = Loop()
    loop.steps(20)
    loop.step(overflow=True)
    loop.steps(20)
    run = loop.run()
    run.raw_events = [event for event in run.raw_events if event.kind != "skip"]
    events = explain_run(run)
    assert [(event.kind, event.step, event.cause) for event in events] == [
        ("skip", 20, "bad_batch"),
        ("scale_backoff", 20, None),
    ]
    assert "2^16 -> 2^15" in events[0].message


def test_events_stand_alone_when_the_steps_never_reached_the_disk():
    loop = Loop(growth_interval=50)
    loop.steps(55)
    loop.step(overflow=True)
    run = FakeRun({}, loop.events, loop.run().meta)
    (skip,) = skips(explain_run(run))
    assert skip.cause == "growth_probe"
    assert "after 5 steps" in skip.message and "had held for 50 steps" in skip.message


def test_always_nan_loss_collapses_the_scale_once_and_shows_the_true_scale():
    loop = Loop()
    loop.steps(49, overflow=True, loss=NAN)
    events = explain_run(loop.run())
    (collapse,) = [event for event in events if event.kind == "scale_collapse"]
    assert (collapse.step, collapse.severity, collapse.cause) == (9, "error", "forward_nonfinite")
    assert "from 2^16 to 1.16e-10 (2^-33) over 49 skipped steps in a row" in collapse.message
    assert {event.cause for event in skips(events)} == {"forward_nonfinite"}
    assert events.index(collapse) == 1 + [e.step for e in events].index(9)


def test_each_stretch_of_skips_collapses_on_its_own():
    loop = Loop()
    for _ in range(2):
        loop.steps(12, overflow=True, loss=NAN)
        loop.steps(3)
    collapses = [event.step for event in explain_run(loop.run()) if event.kind == "scale_collapse"]
    assert collapses == [9, 24]


def test_a_long_warm_up_is_no_collapse():
    loop = Loop(scale=2.0**40)
    loop.steps(25, overflow=True)
    loop.steps(5)
    assert "scale_collapse" not in {event.kind for event in explain_run(loop.run())}


def test_gradients_that_overflow_at_every_scale_collapse_and_are_no_warm_up_any_more():
    loop = Loop()
    loop.steps(60, overflow=True)
    events = explain_run(loop.run())
    (collapse,) = [event for event in events if event.kind == "scale_collapse"]
    assert collapse.step == 16 and collapse.cause == "unknown"
    assert [event.cause for event in skips(events)] == ["scale_warmup"] * 17 + ["unknown"] * 43


def test_skips_at_a_scale_that_does_not_fall_are_no_collapse():
    events = [
        Event(step, 0.0, "skip", data={"loss": NAN, "micro_batches": 1, "loss_scale": 128.0, "new_scale": 128.0})
        for step in range(30)
    ]
    assert "scale_collapse" not in {event.kind for event in explain_run(FakeRun({}, events))}


def corpus() -> dict[str, Loop]:
    """Loops with every cause in them."""
    random = np.random.default_rng(0)
    loops = {}
    for seed in range(6):
        loop = Loop(scale=2.0 ** int(random.integers(8, 30)), growth_interval=int(random.choice([5, 30, 200])))
        for _ in range(600):
            overflow = loop.scale > 2.0**17 or random.random() < 0.02
            nan = overflow and random.random() < 0.1
            loop.step(overflow=overflow, loss=NAN if nan else float(2 + random.random() + 9 * (random.random() < 0.02)))
            if random.random() < 0.002:
                loop.event("nonfinite_step", step=loop.next - 1, nonfinite_tensors=1)
        if seed % 2:
            loop.event("nonfinite_step", step=loop.next - 1, nonfinite_tensors=1)
        loop.steps(15, overflow=True, loss=NAN)
        loops[f"random {seed}"] = loop
    return loops


@pytest.mark.parametrize("rows_first", [True, False])
@pytest.mark.parametrize("name", corpus())
def test_live_and_read_agree_on_everything_but_hindsight(name: str, rows_first: bool):
    loop = corpus()[name]
    run = loop.run()
    live = LiveExplainer(run.meta)
    reported: list[Event] = []
    by_step: dict[int, list[Event]] = {}
    for event in loop.events:
        by_step.setdefault(event.step, []).append(event)
    for row in loop.rows:
        if rows_first:
            live.steps(NAMES, [row])
        for event in by_step.get(row[0], []):
            reported += [live.event(event), *live.derived()]
        if not rows_first:
            live.steps(NAMES, [row])
    read = explain_run(run)
    assert len(read) > 40
    opinion: Callable[[Event], tuple] = lambda event: (event.step, event.kind, event.severity, event.cause)  # noqa: E731
    assert [opinion(event) for event in reported] == [opinion(event) for event in read if event.kind not in SPIKES]
    assert all(event.message and event.data is not None for event in reported)


def test_live_a_resumed_run_does_not_pretend_to_know_what_came_before():
    live = LiveExplainer({"first_step": 0})
    live.event(Event(500, 0.0, "resume", data={"from_step": 500}))
    facts = {"loss": 2.0, "micro_batches": 1, "loss_scale": 65536.0}
    assert live.event(Event(503, 0.0, "skip", data=facts)).cause == "unknown"
    assert live.event(Event(520, 0.0, "skip", data=facts)).cause == "bad_batch"


def test_the_corpus_holds_every_cause_that_needs_no_late_start():
    seen = {cause for loop in corpus().values() for cause in causes(loop)}
    assert seen == set(CAUSES) - {"unknown", "backward_nonfinite", "dropped_by_loop"}  # those have tests of their own


def test_every_kind_of_event_has_a_severity_and_a_message_even_without_data():
    assert set(KINDS) == set(EVENT_KINDS) - {"skip"}
    for kind in set(EVENT_KINDS) - {"scale_collapse"}:
        (event,) = explain_run(FakeRun({}, [Event(3, 0.0, kind)]))
        assert event.message or kind == "annotation"
        severity = KINDS[kind].severity if kind in KINDS else "warning"
        assert event.severity == severity or not isinstance(severity, str)
    (event,) = explain_run(FakeRun({}, [Event(3, 0.0, "of_a_newer_tbnum")]))
    assert event.message.startswith("of_a_newer_tbnum")


def test_misuse_names_the_place_and_the_fix():
    where = "train.py:41"
    data = {"where": where, "max_norm": 1.0, "loss_scale": 65536.0}
    (event,) = explain_run(FakeRun({}, [Event(3, 0.0, "clip_before_unscale", data=data)]))
    assert where in event.message and "2^16" in event.message
    assert "unscale_" in event.remedy


def test_findings_of_a_quiet_run_are_none():
    loop = Loop()
    loop.steps(500)
    assert findings(loop.run()) == []


def test_findings_are_ordered_by_gravity():
    loop = Loop()
    loop.steps(30)
    for _ in range(5):
        loop.step(overflow=True)
        loop.steps(20)
    loop.event("update_missing", where="train.py:7")
    loop.steps(15, overflow=True, loss=NAN)
    found = findings(loop.run())
    assert [finding.severity for finding in found] == sorted(
        (finding.severity for finding in found), key=["error", "warning", "info"].index
    )
    assert {"scale_collapse", "nonfinite_loss", "skip_rate", "update_missing"} == {finding.rule for finding in found}
    assert all(finding.title and finding.evidence and finding.remedy for finding in found)
    (loss,) = [finding for finding in found if finding.rule == "nonfinite_loss"]
    assert loss.severity == "error" and "not once finite since step 135" in loss.evidence


def test_a_loss_that_was_nonfinite_and_recovered_is_a_warning():
    loop = Loop()
    loop.steps(30)
    loop.step(overflow=True, loss=NAN)
    loop.steps(30)
    (loss,) = [finding for finding in findings(loop.run()) if finding.rule == "nonfinite_loss"]
    (skip,) = skips(explain_run(loop.run()))
    assert loss.severity == skip.severity == "warning"
    assert "monitor.replay(closure)" in loss.remedy and "monitor.replay(closure)" in skip.remedy


@pytest.mark.parametrize(("coefficient", "rule"), [(0.5, "clipped_always"), (1.0, "clipped_never")])
def test_a_clip_that_always_or_never_acts_is_a_finding(coefficient: float, rule: str):
    loop = Loop()
    loop.steps(200)
    run = loop.run()
    run.steps |= {"clip_coef": np.full(200, coefficient), "max_norm": np.full(200, 1.0)}
    (finding,) = findings(run)
    assert (finding.rule, finding.severity) == (rule, "info")


def test_unseen_clipping_makes_no_finding():
    loop = Loop()
    loop.steps(200)
    run = loop.run()
    run.steps |= {"clip_coef": np.full(200, NAN), "max_norm": np.full(200, NAN)}
    assert findings(run) == []


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        (65536.0, "2^16"),
        (1.0, "1"),
        (2.0**32, "2^32"),
        (2.0**-10, "2^-10"),
        (2.0**-33, "1.16e-10 (2^-33)"),
        (2.0**-149, "1.4e-45 (2^-149)"),
        (98304.0, "98304"),
        (0.3, "0.3"),
        (0.0, "0 (underflowed)"),
        (NAN, "NaN"),
        (INF, "inf"),
    ],
)
def test_scales_read_well(scale: float, text: str):
    assert scale_text(scale) == text


def test_a_duration_has_a_tenth_of_a_second_where_that_counts():
    times = {0: "0 s", 0.014: "0.01 s", 0.24: "0.2 s", 3: "3 s", 9.94: "9.9 s", 9.96: "10 s", 75: "1 min 15 s"}
    assert {seconds: duration_text(seconds) for seconds in times} == times
    assert duration_text(NAN) == duration_text(-1) == "?"


def test_a_share_is_never_rounded_to_none_or_all():
    assert share_text(1, 1_000_000) == "<0.01 %"
    assert share_text(999_999, 1_000_000) == ">99.99 %"
    assert (share_text(0, 5), share_text(5, 5), share_text(0, 0)) == ("0 %", "100 %", "0 %")
    assert (share_text(1, 3), share_text(14, 1200)) == ("33.3 %", "1.2 %")


def test_of_thousands_of_events_in_a_long_run_every_one_is_explained():
    count = 1_000_000
    random = np.random.default_rng(0)
    loss, skipped = 2 + random.random(count), np.zeros(count, bool)
    skipped[::400] = True
    scale = np.full(count, 65536.0)
    steps = {"step": np.arange(count), "wall_time": np.arange(count) * 1.0, "loss": loss, "skipped": skipped}
    steps |= {"loss_scale": scale, "micro_batches": np.ones(count), "nonfinite_tensors": skipped * 3.0}
    steps |= {"clip_coef": np.where(loss > 2.5, 0.5, 1.0), "max_norm": np.ones(count), "grad_norm": loss}
    events = []
    for step in range(0, count, 400):
        data = {"loss": 2.5, "loss_scale": 65536.0, "nonfinite_tensors": 3, "tensors": 150, "micro_batches": 1}
        events.append(Event(step, float(step), "skip", data=data))
        scales = {"old_scale": 65536.0, "new_scale": 32768.0}
        events.append(Event(step, float(step), "scale_backoff", data=scales))
    run = FakeRun(steps, events, {"first_step": 0})
    explained = explain_run(run)
    findings(run, explained)
    assert len(explained) == 5000 and all(event.message for event in explained)


def test_explain_loads_no_torch():
    code = "import sys, tbnum.explain; assert 'torch' not in sys.modules and 'tensorboard' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1200)


# -- heavy tails, and what may be either -------------------------------------------------------------------------------


def tailed(last: float, tails: bool) -> Event:
    """Losses around 1 at a scale that holds, and then a skip; with tails, one in twenty of them is far higher."""
    random = np.random.default_rng(0)
    loop = Loop(growth_interval=40)
    for step in range(400):
        high = 1 / np.sqrt(random.random()) if tails else 1 + 0.1 * random.standard_normal()
        loop.step(loss=float(high), overflow=step == 44)
    loop.steps(45)
    loop.step(loss=last, overflow=True)  # five steps after a growth
    loop.steps(20)
    return skips(explain_run(loop.run()))[-1]


def test_a_loss_as_high_as_others_of_the_run_does_not_clear_a_probe_of_suspicion():
    assert tailed(9.0, tails=True).cause == "growth_probe"
    assert tailed(9.0, tails=False).cause == "bad_batch"
    assert tailed(1e5, tails=True).cause == "bad_batch"


@pytest.mark.parametrize(
    ("loss", "largest", "grown", "cause", "severity"),
    [
        (2.9, 30_000.0, False, "unknown", "info"),  # the highest loss: an overflow behind a normalization is like this
        (2.0, 30_000.0, False, "backward_nonfinite", "warning"),
        (2.0, 30_000.0, True, "unknown", "info"),  # the scale has just grown
        (20.0, 50_000.0, False, "bad_batch", "warning"),
        (2.9, 100.0, False, "backward_nonfinite", "warning"),  # far from an overflow
        (2.0, 100.0, True, "backward_nonfinite", "warning"),
    ],
)
def test_nan_near_an_overflow_may_be_either(loss: float, largest: float, grown: bool, cause: str, severity: str):
    random = np.random.default_rng(0)
    loop = Loop(growth_interval=58 if grown else 2000)
    for _ in range(60):
        loop.step(loss=float(1.5 + random.random()))
    facts = {"nan": 400.0, "inf": 0.0, "largest_finite": largest / loop.scale, "nonfinite_tensors": 8}
    loop.step(loss=loss, overflow=True, **facts)
    loop.steps(20)
    (skip,) = skips(explain_run(loop.run()))
    assert (skip.cause, skip.severity) == (cause, severity)
    assert ("monitor.replay" in skip.remedy) == (skip.cause != "bad_batch" or severity == "warning")
    if cause == "unknown":
        assert "it overflowed, or backward made NaN" in skip.message


def test_where_most_steps_are_skipped_it_is_a_warning_whatever_each_was_for():
    loop = Loop()
    for _ in range(40):  # a scale that the loop sets again after each step
        loop.step(overflow=True)
        loop.event("scale_set", step=loop.next - 1, old_scale=loop.scale, new_scale=65536.0)
        loop.scale = 65536.0
    events = explain_run(loop.run())
    assert {event.cause for event in skips(events)} == {"scale_warmup"}
    found = {finding.rule: finding for finding in findings(loop.run(), events)}
    assert found["skip_rate"].severity == "warning" and found["skip_rate"].title == "Most steps were skipped"


@pytest.mark.parametrize(("following", "severity"), [((1.0, 1.0), "warning"), ((1.0, 26.0), "info")])
def test_an_early_skip_is_not_blamed_on_a_batch_whose_loss_others_have_too(following: tuple[float, ...], severity: str):
    """Tasks that take turns: a single loss before it is no measure."""
    loop = Loop(scale=2.0**16)
    loop.step(overflow=True)
    loop.step(loss=1.0)
    loop.step(loss=27.0, overflow=True)
    for at in range(40):
        loop.step(loss=following[at % 2])
    assert skips(explain_run(loop.run()))[-1].severity == severity


def epochs(at: int, loss: float, every: int = 29, *, known: bool = True, higher: float = 2.0) -> Loop:
    """A short last batch in each epoch has a longer gradient and a higher loss; `at` overflows at a scale just held."""
    loop, random = Loop(scale=2.0**16, growth_interval=250), np.random.default_rng(0)
    for step in range(600):
        short = step % every == every - 1
        times = float(random.lognormal(0, 0.05)) * (higher if short else 1.0)
        overflow = {"overflow": True, "nan": 0.0, "inf": 4.0, "largest_finite": 0.4} if step == at else {}
        loop.step(loss=loss if step == at else times, **overflow)
        if known and step != at:
            loop.rows[-1] = (*loop.rows[-1][:5], 3.0 * times if short else times, *loop.rows[-1][6:])
    return loop


def test_a_batch_at_the_end_of_each_epoch_is_held_against_its_like():
    """Its gradients are the longest anyhow."""
    at = 29 * 10 - 1
    for loop, severity in (
        (epochs(at, 5.0), "info"),
        (epochs(at - 1, 5.0), "warning"),
        (epochs(at, 40.0), "warning"),
        (epochs(at, 5.0, known=False, higher=1.0), "warning"),
        (epochs(at, 5.0, known=False), "info"),  # their losses alone are higher, as where most of them overflow
    ):
        (skip,) = skips(explain_run(loop.run()))
        assert (skip.cause, skip.severity) == ("bad_batch", severity)


def test_where_no_gradient_is_finite_a_scale_that_is_the_highest_so_far_is_suspect_for_long():
    for at, severity in ((290, "info"), (600, "warning")):  # at 2**17, and back at 2**16
        loop = Loop(scale=2.0**16, growth_interval=250)
        loop.steps(251)
        loop.steps(at - 251)
        if at == 600:
            loop.scale = 2.0**15
            loop.event("scale_set", old_scale=2.0**18, new_scale=2.0**15)
            loop.steps(60)
        loop.step(overflow=True, nan=9.0, inf=4.0, largest_finite=0.0)
        loop.steps(40)
        assert skips(explain_run(loop.run()))[-1].severity == severity
