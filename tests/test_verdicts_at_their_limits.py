"""Verdicts on skips, their words, and what else hangs on a single number, on both sides of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tbnum.explain import causes as causes_of
from tbnum.explain import event_findings as event_rules
from tbnum.explain import explain_run
from tbnum.explain.ahead import Later
from tbnum.explain.causes import explained_collapse, explained_skip, spoiled_since
from tbnum.explain.close_look import Gradients
from tbnum.explain.evidence import _of_history
from tbnum.explain.facts import Facts, Known, skips_of
from tbnum.explain.nonfinite import (
    Since,
    SpoiledParameters,
    SpoiledUpdate,
    made_in_backward,
    no_overflow,
    nothing_is_spared,
    spoiled_updates,
    update_event,
)
from tbnum.explain.past import RecordedPast, Runaway
from tbnum.explain.phrases import as_inferred, tensors
from tbnum.explain.ranks import disagreement_words, guilty_words
from tbnum.explain.rules import Collapse, Skip
from tbnum.explain.summary import group_events, worth_reading
from tbnum.explain.totals import wasted_seconds
from tbnum.explain.view import RunView
from tbnum.explain.words import as_float, count_text, duration_text, number_text, scale_text, share_text
from tbnum.log.ranks import ranks_text
from tbnum.log.schema import Event, Trailer, check_session, lr_columns, measured
from tests.test_explain import FakeRun, Loop, causes, skips

INF, NAN = math.inf, math.nan


# -- numbers in words --------------------------------------------------------------------------------------------------


def test_numbers_read_as_a_person_writes_them() -> None:
    scales = {0: "0 (underflowed)", 1: "1", 512: "512", 1024: "2^10", 0.5: "2^-1", 2.0**-10: "2^-10", 3.0: "3"}
    scales |= {
        2.0**-11: "0.000488 (2^-11)",
        0.3: "0.3",
        INF: "inf",
        -2.0: "-2",
        1000.5: "1000.5",
        2.0**-33: "1.16e-10 (2^-33)",
    }
    assert {scale: scale_text(scale) for scale in scales} == scales
    shares = {(0, 5): "0 %", (5, 5): "100 %", (1, 2): "50.0 %", (1, 101): "0.99 %", (1, 100): "1.0 %", (0, 0): "0 %"}
    shares |= {(1, 10_001): "<0.01 %", (1, 10_000): "0.01 %", (9_999, 10_000): "99.99 %", (99_999, 100_000): ">99.99 %"}
    shares |= {(999, 1000): "99.9 %", (9_991, 10_000): "99.91 %"}
    assert {each: share_text(*each) for each in shares} == shares
    times = {0.0: "0 s", 0.05: "0.05 s", 0.1: "0.1 s", 0.094: "0.09 s", 9.94: "9.9 s", 9.95: "10 s", 59.4: "59 s"}
    times |= {
        60.0: "1 min 0 s",
        185.0: "3 min 5 s",
        3600.0: "1 h 0 min",
        7800.0: "2 h 10 min",
        -1.0: "?",
        INF: "?",
        NAN: "?",
    }
    assert [duration_text(seconds) for seconds in times] == list(times.values())
    assert (count_text(1, "step"), count_text(0, "step"), count_text(2000, "batch", "batches")) == (
        "1 step",
        "0 steps",
        "2,000 batches",
    )
    assert (number_text(2.53149), number_text(1.2e-7), number_text(NAN), number_text(-INF)) == (
        "2.531",
        "1.2e-07",
        "NaN",
        "-inf",
    )
    assert [as_float(value) for value in (3, "4.5", 0)] == [3, 4.5, 0]
    assert all(math.isnan(as_float(value)) for value in (None, True, "x", [1]))


def test_of_ranks_a_range_is_listed_from_four_on_and_of_others_eight() -> None:
    listed = {(3,): "rank 3", (0, 1): "ranks 0 and 1", (0, 1, 2): "ranks 0, 1 and 2", (1, 2, 3, 4): "ranks 1 to 4"}
    listed |= {(1, 2, 3, 5): "ranks 1, 2, 3 and 5", tuple(range(0, 16, 2)): "ranks 0, 2, 4, 6, 8, 10, 12 and 14"}
    listed |= {tuple(range(0, 18, 2)): "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 1 more"}
    assert {ranks: ranks_text(ranks) for ranks in listed} == listed


def facts(**data: Any) -> Facts:
    return Facts.of(data)


def test_how_many_gradients_failed_is_said_as_far_as_it_is_known() -> None:
    def text(bad: Any, total: Any = None, *names: str) -> str:
        return tensors(facts(nonfinite_tensors=bad, tensors=total, nonfinite_names=list(names)), "overflowed")

    assert text(None) == text(0) == text(INF, 3) == "gradients overflowed"
    assert text(1, 1) == "the only gradient overflowed" and text(2, 2) == "all 2 gradients overflowed"
    assert text(2, 3) == "2 of 3 gradients overflowed" and text(1) == "1 gradient overflowed"
    assert text(3, 2) == "3 gradients overflowed" == text(3, INF)
    assert text(2, 3, "a", "b") == "2 of 3 gradients overflowed (a, b)"
    assert text(3, 3, "a", "b", "c") == "all 3 gradients overflowed (a, b, ...)"
    assert text(2, 3, "a") == "2 of 3 gradients overflowed (a, ...)"
    assert as_inferred(facts(inferred=True, how="counter"), "x") == "By the log's own count of skips: x"
    assert as_inferred(facts(inferred=True, how="?"), "x") == "Inferred: x" and as_inferred(facts(), "x") == "x"


def test_facts_that_cannot_be_read_are_unknown() -> None:
    none = facts(loss="x", at_least=-1, within=2.0**53, params_nonfinite=1, losses=3, nonfinite_names=None)
    assert math.isnan(none.loss) and (none.at_least, none.within, none.halvings) == (1, 1, 0)
    assert none.params_nonfinite is None and none.losses == () == none.nonfinite_names
    assert facts(at_least=0).at_least == 0 and facts(within=2.0**52).within == 2**52
    assert facts(loss=NAN, micro_batches=1).loss_nonfinite and not facts(loss=NAN, micro_batches=0.5).loss_nonfinite
    assert facts(loss=INF).loss_nonfinite and not facts(loss=NAN).loss_nonfinite and not facts(loss=1.0).loss_nonfinite
    assert facts(loss=NAN, loss_logged=True).loss_nonfinite
    assert [
        facts(within=within, at_least=least).also_skipped for within, least in ((1, 1), (3, 2), (3, 3), (2, 2))
    ] == [
        0,
        0,
        2,
        1,
    ]
    assert facts(within=3, halvings=3).also_skipped == 2
    assert skips_of(Event(0, 0.0, "skip", data={"at_least": 3})) == 3 and skips_of(Event(0, 0.0, "skip")) == 1


# -- skips in words ----------------------------------------------------------------------------------------------------


def verdict(cause: str, **more: Any) -> Skip:
    given: dict[str, Any] = {
        **{"held": 0, "about": False, "held_before_growth": -1, "held_before_probe": -1, "failed_probe": NAN},
        **{"early": False, "in_row": 1, "recent_loss": NAN, "loss_is_alone": False, "since": None},
        **{"growth_interval": 2000, "injected": None, "at_edge": False, "collapsed": False, "nan_only": False},
        **{"new_scale": False, "loss_follows_scale": False, "after_zeros": False, "either": False, "goes_on": False},
        **{"fallen": NAN, **more},
    }
    return Skip(cause=cause, **given)


def later(**more: Any) -> Later:
    given = {"new_scale": 512.0, "recovered_after": None, "skips_in_row": 1, "last_skip": 7, "lowest_scale": 512.0}
    return Later(**{**given, "ongoing": False, **more})


def said(skip: Skip, after: Later | None = None, **data: Any) -> Event:
    known = {"loss": 2.5, "micro_batches": 1, "loss_scale": 1024.0, "new_scale": 512.0}
    event = Event(7, 0.0, "skip", data={**known, "nonfinite_tensors": 2, "tensors": 3, **data})
    return explained_skip(Known.of(event), skip, after)


def test_a_scale_that_had_not_held_before_it_was_raised_is_no_evidence() -> None:
    for name in ("held_before_probe", "held_before_growth"):
        shown = [_of_history(verdict("bad_batch", **{name: held}), None).get(name) for held in (-1, 0, 1)]
        assert shown == [None, None, 1]


def test_a_probe_says_how_long_the_scales_had_held_and_when_the_next_one_comes() -> None:
    event = said(verdict("growth_probe"))
    assert event.severity == "info" and event.message == (
        "The step was skipped: the scaler had just tried the higher scale 2^10, at which 2 of 3 gradients overflowed; "
        "scale 2^10 -> 512."
    )
    assert event.remedy.endswith("a higher scale every 2,000 steps without overflow.")
    event = said(verdict("growth_probe", held=1, held_before_growth=2), later(recovered_after=3))
    assert (
        "overflowed after 1 step; the scale below had held for 2 steps; scale 2^10 -> 512, back after 3 steps."
        in event.message
    )
    assert said(verdict("growth_probe", growth_interval=1)).remedy.endswith("every step without overflow.")
    assert said(verdict("growth_probe", growth_interval=0)).remedy.endswith("from time to time.")
    assert said(verdict("growth_probe", growth_interval=2)).remedy.endswith("every 2 steps without overflow.")
    assert "far below 2^20" in said(verdict("growth_probe", fallen=2.0**20)).remedy
    assert said(verdict("growth_probe"), later(new_scale=1024.0)).message.endswith("2 of 3 gradients overflowed.")


def test_a_bad_batch_says_what_speaks_for_it() -> None:
    event = said(verdict("bad_batch", held=40, recent_loss=1.25))
    assert event.severity == "warning"
    assert "scale of 2^10 that had held for 40 steps; loss 2.5 against a recent median of 1.25; scale" in event.message
    assert "about 40 steps" in said(verdict("bad_batch", held=40, about=True)).message
    assert "held for 1 step only, early on" in said(verdict("bad_batch", held=1, early=True)).message
    assert "too (skip 2 in a row)" in said(verdict("bad_batch", in_row=2)).message
    assert "in a row" not in said(verdict("bad_batch")).message
    probed = {"held_before_probe": 9, "failed_probe": 2048.0}
    assert "held for 9 steps before a probe of 2^11 failed" in said(verdict("bad_batch", **probed)).message
    assert "for 9 steps, and for 7 more since a probe of 2^11" in said(verdict("bad_batch", held=7, **probed)).message
    assert "loss" not in said(verdict("bad_batch", held=4), loss=NAN).message
    assert "NaN without an inf" in said(verdict("bad_batch"), nan=1, inf=0).remedy
    assert "NaN without an inf" not in said(verdict("bad_batch"), nan=1, inf=1).remedy
    assert "NaN without an inf" not in said(verdict("bad_batch"), nan=0, inf=0).remedy
    assert "a scale of 2^20 had held before" in said(verdict("bad_batch", fallen=2.0**20)).message
    assert (
        said(verdict("bad_batch", injected="on purpose")).remedy == "Nothing to do: this batch was spoiled on purpose."
    )


def test_a_skip_is_harmless_at_the_edge_of_the_scale_and_while_it_finds_its_height() -> None:
    edge = verdict("bad_batch", at_edge=True, in_row=2)
    assert said(edge).severity == "info" and said(edge, later(skips_in_row=2)).severity == "info"
    assert said(edge, later(skips_in_row=3)).severity == "warning"
    early = {"early": True}
    assert said(verdict("bad_batch", **early)).severity == "info"
    assert said(verdict("bad_batch")).severity == "warning"
    assert said(verdict("bad_batch", loss_is_alone=True, **early)).severity == "warning"
    assert said(verdict("bad_batch", injected="x", **early)).severity == "warning"
    either = verdict("unknown", either=True)
    assert said(either).severity == said(either, later()).severity == "info"
    assert said(either, later(skips_in_row=2)).severity == "warning"
    for scale, severity in ((2.0**48, "warning"), (2.0**47, "info")):
        assert said(verdict("scale_warmup"), loss_scale=scale).severity == severity
    dropped = verdict("dropped_by_loop")
    assert [
        said(dropped, **data).severity for data in ({}, {"nonfinite_tensors": 0}, {"nonfinite_tensors": 0, "loss": NAN})
    ] == [
        "warning",
        "info",
        "warning",
    ]


def test_a_warm_up_says_where_the_scale_settled() -> None:
    assert "Nothing to do unless it goes on" in said(verdict("scale_warmup")).remedy
    settled = said(verdict("scale_warmup", in_row=2), later(skips_in_row=3, lowest_scale=128.0))
    assert (
        settled.remedy == "Nothing to do: the scale settled at 128 after 3 skips."
        and "(skip 2 in a row)" in settled.message
    )
    assert "unless it goes on" in said(verdict("scale_warmup"), later(ongoing=True)).remedy
    assert "unless it goes on" in said(verdict("scale_warmup"), later(lowest_scale=NAN)).remedy
    assert "in a row" not in said(verdict("scale_warmup"), later()).message


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([1.0], ""),
        ([1.0, 2.0, NAN, 3.0], "micro-batch 3 of 4 was NaN"),
        ([INF, 2.0, NAN, 3.0], "micro-batch 1 of 4 was inf, and 1 more were not finite"),
        ([1.0, 1.0, 3.01, 1.0], "micro-batch 3 of 4 was 3.01"),
        ([1.0, 1.0, 3.0, 1.0], ""),
        ([1.0, 2.0, 7.0, 3.0], "micro-batch 3 of 4 was 7" if 7.0 > 3 * 2.0 else ""),
        ([-1.0, -1.0, 0.1, -1.0], "micro-batch 3 of 4 was 0.1"),
        ([1.0, 9.0], "micro-batch 2 of 4 was 9"),
    ],
)
def test_of_several_micro_batches_the_one_that_stands_out_is_named(losses: list[float], words: str) -> None:
    found = causes_of._which_micro_batch(facts(losses=losses, micro_batches=4))
    assert found == (f"; the loss of {words}" if words else "")


def test_of_steps_that_were_not_all_logged_it_is_said_how_many_were_skipped_at_least() -> None:
    def text(**data: Any) -> str:
        return causes_of._skipped(Known.of(Event(1000, 0.0, "skip", data=data)))

    assert text() == "The step was skipped" and text(within=3, at_least=3) == "All 3 steps up to 1,000 were skipped"
    assert text(within=3) == "At least 1 of the 3 steps up to 1,000 was skipped"
    assert text(within=5, at_least=2, halvings=4) == (
        "At least 2 of the 5 steps up to 1,000 were skipped (4 if each skip halved the scale)"
    )


def test_since_when_parameters_are_not_finite_is_said_as_far_as_it_was_measured() -> None:
    def update_text(after: int, by: int) -> str:
        return causes_of.update_text(Since(by, after, by_update=True))

    def update_remedy(after: int, by: int) -> str:
        return causes_of.update_remedy(Since(by, after, by_update=True))

    assert update_text(6, 7) == "the update of step 7, whose gradients were finite"
    assert update_text(7, 7) == "a write to them after the update of step 7, which left them finite"
    assert update_text(3, 7) == "an update between step 4 and step 7, whose gradients were finite"
    assert update_text(-1, 7) == "an update between step 0 and step 7, whose gradients were finite"
    assert update_remedy(0, 3).startswith("Restore a checkpoint from before step 1:")
    assert update_remedy(-1, 3).startswith("Restore the newest") and "since step 3" in update_remedy(-1, 3)
    assert update_remedy(-1, 0).startswith("Begin again")
    assert spoiled_since(Since(5))[1].startswith("Restore a checkpoint from before step 5")
    assert "the update of step 5" in spoiled_since(Since(5, 4, by_update=True))[0]


def test_a_collapse_says_how_far_the_scale_fell_and_why() -> None:
    event = Event(20, 1.5, "skip")
    found = explained_collapse(event, Collapse("forward_nonfinite", 11, 10, 1024.0, 1.0), None)
    assert (found.step, found.kind, found.severity, found.cause) == (20, "scale_collapse", "error", "forward_nonfinite")
    assert "fell from 2^10 to 1 over 10 skipped steps in a row (from step 11): the loss was not finite" in found.message
    assert found.data == {"from_step": 11, "skips": 10, "old_scale": 1024.0, "new_scale": 1.0}
    hindsight = later(skips_in_row=30, lowest_scale=2.0**-20)
    found = explained_collapse(event, Collapse("unknown", 11, 10, 1024.0, 1.0), hindsight)
    assert "over 30 skipped steps" in found.message and found.data["new_scale"] == 2.0**-20
    found = explained_collapse(event, Collapse("unknown", 11, 10, 1024.0, 1.0), later(lowest_scale=NAN))
    assert found.data["new_scale"] == 1.0
    zero = explained_collapse(event, Collapse("unknown", 11, 10, 0.0, 0.0), None)
    assert "no gradient can be divided by it" in zero.message and zero.remedy.startswith("Stop the run: a scale of 0")


# -- where a NaN came from ---------------------------------------------------------------------------------------------


def test_nan_is_no_overflows_where_the_largest_finite_gradient_was_far_from_the_end_of_float16() -> None:
    end = 65504.0
    assert made_in_backward(Gradients(1, 0, end / 16), 1.0, False)
    assert made_in_backward(Gradients(1, 0, NAN), 1.0, False)
    assert not made_in_backward(Gradients(1, 0, end / 16 * 1.001), 1.0, False)
    assert not made_in_backward(Gradients(1, 0, end / 32 * 1.001), 2.0, False)
    assert not made_in_backward(Gradients(1, 1, 1.0), 1.0, False) and made_in_backward(Gradients(1, 1, 1.0), 1.0, True)
    assert made_in_backward(Gradients(0, 1, 1.0), 1.0, True) and not made_in_backward(Gradients(0, 0, 1.0), 1.0, True)
    assert not made_in_backward(None, 1.0, True)


def test_nan_in_two_tensors_and_no_inf_is_none_where_a_spared_gradient_is_not_at_the_end() -> None:
    def found(bad: float, total: float, largest: float, nan: float = 1, inf: float = 0, scale: float = 1.0) -> bool:
        known = facts(nonfinite_tensors=bad, tensors=total, loss_scale=scale)
        return no_overflow(known, Gradients(nan, inf, largest))

    assert found(2, 3, 65504 / 1.5) and not found(2, 3, 65504 / 1.49) and not found(1, 3, 1.0)
    assert found(2, 3, 65504 / 3, scale=2.0) and not found(2, 3, 65504 / 2.9, scale=2.0)
    assert found(3, 3, 65504 / 4) and not found(3, 3, 65504 / 3.9) and not found(3, 3, NAN) and not found(2, 3, NAN)
    assert not found(2, 3, 1.0, inf=1) and not found(2, 3, 1.0, nan=0) and not no_overflow(facts(), None)


def test_nothing_is_spared_where_no_element_of_any_of_several_gradients_is_finite() -> None:
    def spared(bad: float, total: float, largest: float = NAN, nan: float = 1) -> bool:
        return nothing_is_spared(facts(nonfinite_tensors=bad, tensors=total), Gradients(nan, 5, largest))

    assert spared(2, 2) and not spared(1, 1) and not spared(2, 3) and not spared(2, 2, 1.0) and not spared(2, 2, nan=0)
    assert not nothing_is_spared(facts(nonfinite_tensors=2, tensors=2), None)


class Past:
    """Nothing was measured; the last finite loss is given."""

    def __init__(self, finite_loss: int | None = None, nonfinite: bool | None = None, finite_after: int = -1) -> None:
        self.finite_loss, self.nonfinite, self.finite_after = finite_loss, nonfinite, finite_after
        self.asked: list[tuple[int, int]] = []

    def last_finite_loss(self, before: int) -> int | None:
        return self.finite_loss

    def parameters_finite_after(self, before: int) -> int:
        return self.finite_after

    def parameters_nonfinite(self, since: int, step: int) -> bool | None:
        self.asked.append((since, step))
        return self.nonfinite

    def runaway(self, after: int, by: int) -> Runaway | None:
        return None


def parameters(past: Past, *updates: SpoiledUpdate, first_step: int = 0) -> SpoiledParameters:
    return SpoiledParameters(past, list(updates), first_step)  # type: ignore[arg-type]


def test_parameters_stay_spoiled_until_a_finite_loss_comes_out_of_them() -> None:
    for finite_loss, spoiled in ((None, True), (5, True), (6, False)):
        found = parameters(Past(finite_loss))
        assert found.since(9) is None
        found.took_nonfinite(5)
        assert found.since(5) == Since(5) and (found.since(7) == Since(5)) == spoiled
    measured_so = parameters(past := Past(6, nonfinite=True))
    measured_so.took_nonfinite(5)
    assert measured_so.since(7) == Since(5) and past.asked == [(5, 7)]
    measured_so.took_nonfinite(6)
    assert measured_so.since(7) == Since(5)  # the first one counts
    measured_so.restored()
    assert measured_so.since(8) is None
    finite = parameters(Past(None, nonfinite=False))
    finite.took_nonfinite(5)
    assert finite.since(7) is None and finite.since(5) is None


def test_an_update_that_spoiled_parameters_counts_from_the_step_after_it() -> None:
    found = parameters(past := Past(), SpoiledUpdate(3, 5))
    assert found.since(5) is None and found.since(6) == Since(5, 3, by_update=True) and past.asked == [(5, 6)]
    written = parameters(past := Past(), SpoiledUpdate(5, 5))  # after the update of that step
    assert written.since(6) == Since(5, 5, by_update=True) and past.asked == [(6, 6)]


def seen(step: int, nonfinite: bool | None) -> Known:
    return Known.of(Event(step, 0.0, "skip", data={"params_nonfinite": nonfinite}))


def test_an_event_that_found_parameters_spoiled_names_the_update_before_it() -> None:
    found = parameters(Past(finite_after=2))
    found.measured(seen(7, True))
    assert found.found == [SpoiledUpdate(2, 6)] and found.since(7) == Since(6, 2, by_update=True)
    found.measured(seen(8, False))
    assert found.since(8) is None
    first = parameters(Past(), first_step=7)
    first.measured(seen(7, True))
    assert first.found == [] and first.since(7) is None
    again = parameters(Past(finite_loss=8))  # a finite loss, but measured at two steps in a row
    again.took_nonfinite(5)
    again.measured(seen(7, True))
    again.measured(seen(8, True))
    assert again.since(8) is not None


# -- rules over events -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("held", "cause"), [(0, "growth_probe"), (9, "growth_probe"), (10, "bad_batch")])
def test_a_scale_that_grew_has_held_after_ten_steps(held: int, cause: str) -> None:
    loop = Loop(growth_interval=50)
    loop.steps(50 + held)
    loop.step(overflow=True)
    assert causes(loop) == [cause]


@pytest.mark.parametrize(("held", "cause"), [(3, "growth_probe"), (4, "bad_batch")])
def test_or_after_an_interval_that_is_shorter(held: int, cause: str) -> None:
    loop = Loop(growth_interval=4)
    loop.steps(4)
    loop.tracker = -50  # so that it does not grow again
    loop.steps(held)
    loop.step(overflow=True)
    assert causes(loop) == [cause]


@pytest.mark.parametrize(("count", "collapsed"), [(9, False), (10, True)])
@pytest.mark.parametrize("loss", [NAN, INF])
def test_ten_skips_in_a_row_of_a_loss_that_is_not_finite_are_a_collapse(
    count: int, collapsed: bool, loss: float
) -> None:
    loop = Loop()
    loop.steps(20)
    loop.steps(count, overflow=True, loss=loss)
    events = explain_run(loop.run())
    found = [event for event in events if event.kind == "scale_collapse"]
    assert [event.step for event in found] == ([29] if collapsed else [])
    assert found == [] or found[0].data == {"from_step": 20, "skips": 10, "old_scale": 65536.0, "new_scale": 64.0}


def test_a_scale_that_fell_below_one_has_collapsed_whatever_the_loss() -> None:
    for scale, collapsed in ((2.0**10, False), (2.0**9, True)):
        loop = Loop(scale=scale)
        loop.steps(20)
        loop.steps(10, overflow=True)
        kinds = [event.kind for event in explain_run(loop.run())]
        assert ("scale_collapse" in kinds) == collapsed


@pytest.mark.parametrize(("ratio", "held", "fell"), [(8, 32, False), (16, 32, True), (32, 32, True), (16, 31, False)])
def test_a_scale_sixteen_times_below_one_that_held_for_32_steps_has_fallen(ratio: int, held: int, fell: bool) -> None:
    loop = Loop()
    loop.steps(held)
    loop.event("scale_set", loop.next - 1, old_scale=loop.scale, new_scale=loop.scale / ratio)
    loop.scale /= ratio
    loop.steps(40)
    loop.step(overflow=True, nan=0, inf=4, largest_finite=1.0)
    loop.step()
    (skip,) = skips(explain_run(loop.run()))
    assert skip.cause == "bad_batch"
    assert skip.data["evidence"].get("scale_that_held") == (65536.0 if fell else None)


# -- findings from events ----------------------------------------------------------------------------------------------


def skipping(count: int, total: int = 400, cause: str = "bad_batch", severity: str = "warning", **meta: Any) -> Any:
    events = [Event(2 * at, 0.0, "skip", severity, cause=cause, remedy=f"of {cause}") for at in range(count)]
    skipped = np.isin(np.arange(total), [event.step for event in events])
    steps = {"step": np.arange(total), "skipped": skipped, "wall_time": np.arange(total) / 2}
    (found,) = event_rules.skips(RunView(FakeRun(steps, meta=meta), events))
    return found


def test_many_steps_are_lost_from_three_on_and_beyond_one_in_a_hundred() -> None:
    assert skipping(5).severity == "warning" and skipping(5).title == "Many steps were lost to overflows"
    assert skipping(4).severity == "info" and "the first that is not benign: bad_batch at step 0" in skipping(4).remedy
    assert skipping(2, 100).severity == "info" and skipping(3, 100).severity == "warning"
    assert skipping(3, 300).severity == "info" and skipping(3, 299).severity == "warning"
    assert "3 steps of 100 (3.0 %): 3 bad_batch" in skipping(3, 100).evidence
    assert "; 1.5 s of computing." in skipping(3, 100).evidence and skipping(1, 100).evidence.endswith(").")
    assert skipping(5, cause="forward_nonfinite").severity == "info"
    assert skipping(5, cause="backward_nonfinite").remedy == "of backward_nonfinite"
    assert skipping(5, cause="unknown").title == "Many steps were skipped"
    edge = skipping(5, severity="info")
    assert edge.severity == "info" and edge.remedy.startswith("The scale is at its edge: let it grow less often")
    assert skipping(4, severity="info").remedy.startswith("Nothing to do: the scale was at its edge")
    probes = skipping(5, cause="growth_probe", severity="info")
    assert probes.title == "Skips are benign" and probes.remedy.startswith("Benign; a longer growth_interval")
    assert skipping(4, cause="growth_probe", severity="info").remedy.startswith("Nothing to do: this is how")
    assert "no skip of this run" in skipping(4, cause="dropped_by_loop", severity="info").remedy


def test_what_skips_cost_is_the_usual_length_of_a_step_each() -> None:
    steps = {
        "step": np.arange(5),
        "skipped": np.array([0, 1, 0, 0, 1], bool),
        "wall_time": np.array([0.0, 2, 4, 6, 99]),
    }
    assert wasted_seconds(FakeRun(steps)) == 4.0
    assert wasted_seconds(FakeRun({**steps, "wall_time": -steps["wall_time"]})) == 0.0
    assert wasted_seconds(FakeRun({name: values[:1] for name, values in steps.items()})) == 0.0
    assert wasted_seconds(FakeRun({"step": np.arange(5), "wall_time": np.arange(5.0)})) == 0.0


def losing(nonfinite: Sequence[int], norms: float = 1.0, bad: float = 2.0, micro: float = 1.0) -> FakeRun:
    loss, count, norm = np.full(20, 2.0), np.zeros(20), np.ones(20)
    loss[list(nonfinite)], count[list(nonfinite)], norm[list(nonfinite)] = NAN, bad, norms
    steps = {"step": np.arange(20), "loss": loss, "micro_batches": np.full(20, micro), "skipped": np.zeros(20, bool)}
    return FakeRun({**steps, "grad_norm": norm, "nonfinite_tensors": count})


def test_a_loss_that_is_not_finite_at_the_end_is_an_error_with_since_when() -> None:
    (found,) = event_rules.nonfinite_loss(RunView(losing([3, 17, 18, 19]), []))
    assert (found.severity, found.steps) == ("error", (3, 17, 18, 19))
    assert "4 steps of 20, the first at step 3; not once finite since step 17." in found.evidence
    (found,) = event_rules.nonfinite_loss(RunView(losing([18, 19]), []))
    assert "not once finite since step 18" in found.evidence
    (found,) = event_rules.nonfinite_loss(RunView(losing([3, 18]), []))
    assert found.severity == "warning" and "finite again at the end" in found.evidence
    assert list(event_rules.nonfinite_loss(RunView(losing([]), []))) == []
    assert list(event_rules.nonfinite_loss(RunView(losing([3], micro=0.0), []))) == []  # not measured


def test_a_mean_over_nothing_is_certain_where_the_gradient_is_zero() -> None:
    (found,) = event_rules.mean_over_nothing(RunView(losing([3], norms=0.0, bad=0.0), []))
    assert (found.severity, found.steps) == ("warning", (3,)) and "every gradient 0" in found.evidence
    assert list(event_rules.nonfinite_loss(RunView(losing([3], norms=0.0, bad=0.0), []))) == []
    (found,) = event_rules.mean_over_nothing(RunView(losing([3], bad=0.0, micro=2.0), []))
    assert (found.severity, found.steps) == ("info", (3,))
    assert list(event_rules.mean_over_nothing(RunView(losing([3], bad=0.0, micro=1.0), []))) == []
    assert list(event_rules.mean_over_nothing(RunView(losing([3], bad=1.0, micro=2.0), []))) == []
    (found,) = event_rules.nonfinite_loss(RunView(losing([3], bad=0.0, micro=2.0), []))
    assert "while every gradient was finite" in found.evidence and "micro-batch" in found.remedy
    spoiled = [Event(2, 0.0, "nonfinite_update", remedy="of the update")]
    assert list(event_rules.mean_over_nothing(RunView(losing([3], norms=0.0, bad=0.0), spoiled))) == []
    (found,) = event_rules.nonfinite_loss(RunView(losing([3]), spoiled))
    assert found.remedy == "of the update"


def test_events_of_one_kind_and_cause_that_follow_each_other_are_a_group() -> None:
    def event(step: int, kind: str = "skip", **more: Any) -> Event:
        return Event(step, 0.0, kind, **more)

    groups = group_events([event(1), event(2), event(3, cause="x"), event(4, cause="x"), event(5)])
    assert [(group.first.step, group.last_step, group.count) for group in groups] == [(1, 2, 2), (3, 4, 2), (5, 5, 1)]
    assert groups[0].more == "and 1 more like it, to step 2" and groups[2].more == ""
    groups = group_events([event(1), event(2, "scale_collapse"), event(3), event(4)])
    assert [(group.first.kind, group.count) for group in groups] == [("skip", 3), ("scale_collapse", 1)]
    assert [group.count for group in group_events([event(1, "annotation"), event(2, "annotation")])] == [1, 1]
    assert [group.count for group in group_events([event(1, "scale_collapse"), event(2, "scale_collapse")])] == [2]
    injected = event(2, data={"evidence": {"injected": "x"}})
    assert [group.count for group in group_events([event(1), injected, injected])] == [1, 2]
    daily = [event(1, "scale_growth"), event(2, "resume"), event(3, "skip", severity="warning")]
    assert worth_reading(daily) == daily[1:]


# -- ranks -------------------------------------------------------------------------------------------------------------


def guilty(ranks: Sequence[int], losses: Sequence[float], how: str = "loss") -> str:
    numbers = list(range(len(losses)))
    return guilty_words({"ranks": {"numbers": numbers, "losses": list(losses), "guilty": list(ranks), "how": how}})


def test_whose_batch_a_skip_came_from_is_said_as_far_as_losses_show_it() -> None:
    assert guilty([1], [2.0, NAN, 2.0]) == "; on rank 1 alone, the losses of the other 2 ranks were finite"
    assert guilty([1], [2.0, NAN]) == "; on rank 1 alone, the loss of the other rank was finite"
    assert guilty([0], [NAN, NAN, 2.0]) == "; on rank 0" and guilty([0, 1], [NAN, NAN]) == "; so it was on every rank"
    assert guilty([1], [2.0, 90.0, 4.0], "outlier") == "; it is the loss of rank 1, against 3 on the others"
    assert guilty([1], [2.0, 2.0], "part") == "; what is not finite lies in the part of rank 1"
    assert guilty([0, 1], [2.0, 2.0], "part") == "" == guilty([], [2.0, 2.0]) == guilty_words({})


def test_how_ranks_disagree_is_said_by_value() -> None:
    differ = {"skipped": [1.0, 0.0, NAN], "loss_scale": [512.0, 1024.0, 512.0]}
    assert disagreement_words({"numbers": [0, 1, 2], "differ": differ}) == (
        "skipped on rank 0 and not on rank 1; loss scale 512 on ranks 0 and 2, 2^10 on rank 1"
    )
    assert disagreement_words({"numbers": [0, 1], "differ": {"a/skipped": [0.0, 1.0]}}) == (
        "a skipped on rank 1 and not on rank 0"
    )


# -- the schema --------------------------------------------------------------------------------------------------------


def test_where_a_nan_was_measured_follows_from_the_columns_beside_it() -> None:
    known = np.array([1.0, 0.0, NAN])
    columns = {"micro_batches": np.array([1.0, 0.5, NAN]), "nonfinite_tensors": known, "a/nonfinite_tensors": known}
    assert measured("loss", columns).tolist() == [True, False, False]  # type: ignore[union-attr]
    assert measured("grad_norm", columns).tolist() == [True, False, False]  # type: ignore[union-attr]
    assert measured("a/grad_norm", columns).tolist() == [True, False, False]  # type: ignore[union-attr]
    skipped = {**columns, "skipped": np.array([False, True, False])}
    assert measured("grad_norm", skipped).tolist() == [True, False, False]  # type: ignore[union-attr]
    assert measured("grad_norm_clipped", skipped).tolist() == [True, False, False]  # type: ignore[union-attr]
    assert measured("lr", columns) is None and measured("b/grad_norm", columns) is None
    assert measured("loss", {}) is None and measured("a/loss", columns) is None
    logged = {**columns, "loss_logged": np.array([0, 1, 1])}
    assert measured("loss", logged).tolist() == [False, True, True]  # type: ignore[union-attr]
    names = ["lr", "lr/1", "a/lr", "a/lr/12", "lrx", "a/b", "lr/1/x", "loss"]
    assert lr_columns(names) == ["lr", "lr/1", "a/lr", "a/lr/12"]


def test_an_event_of_no_step_and_a_damaged_trailer_are_refused() -> None:
    good = {"step": 2**63 - 1, "wall_time": 1, "kind": "skip"}
    assert Event.from_facts(good).step == 2**63 - 1 and Event.from_facts({**good, "step": 0}).step == 0
    for step in (-1, 2**63):
        with pytest.raises(ValueError, match=f"its step is {step}"):
            Event.from_facts({**good, "step": step})
    packed = Trailer(7, 3, 1, 0, 1, 2, 3, 4, 0.5, 1.5, 2.5, 3.5).pack()
    assert len(packed) == 96 and Trailer.unpack(packed + b"more") == (7, 3, 1, 0, 1, 2, 3, 4, 0.5, 1.5, 2.5, 3.5)
    for at in (0, 20, 95):
        damaged = bytearray(packed)
        damaged[at] ^= 1
        with pytest.raises(ValueError, match="not a trailer"):
            Trailer.unpack(bytes(damaged))
    with pytest.raises(ValueError, match="a trailer has 96 bytes, not 95"):
        Trailer.unpack(packed[:95])
    for wrong in (
        {"world_size": 0},
        {"world_size": 2**20 + 1},
        {"start_time": INF},
        {"optimizers": {"a": 3}},
        {"scaler": 1},
    ):
        with pytest.raises(ValueError):
            check_session(wrong)
    check_session({"world_size": 2**20, "start_time": 1, "optimizers": {"a": {}}, "scaler": None, "parameters": None})


def test_an_update_spoiled_parameters_where_all_gradients_since_they_were_finite_were_finite() -> None:
    def found(
        counts: Sequence[float], *events: Event, skipped: Sequence[int] = (), other: Sequence[float] | None = None
    ) -> list[SpoiledUpdate]:
        """Parameters were finite after step 3, and are not after step 7."""
        steps = {"step": np.arange(10), "nonfinite_tensors": np.array([9.0] * 4 + [*counts] + [9.0] * 2)}
        if other is not None:
            steps = {**steps, "a/nonfinite_tensors": np.array([9.0] * 4 + [*other] + [9.0] * 2)}
        steps["skipped"] = np.isin(np.arange(10), list(skipped))
        norms = SimpleNamespace(spoiled=lambda: [SpoiledUpdate(3, 7)])
        return spoiled_updates(FakeRun(steps), norms, [Known.of(event) for event in events])  # type: ignore[arg-type]

    yes, no = [SpoiledUpdate(3, 7)], []
    assert found([0, 0, 0, 0]) == yes and found([0, NAN, NAN, 0]) == yes and found([NAN, NAN, NAN, NAN]) == no
    assert found([0, 0, 1, 0]) == no and found([0, 0, 1, 0], skipped=[6]) == yes and found([1, 0, 0, 0]) == no
    assert found([0, 0, 0, 2]) == no and found([0, NAN, NAN, NAN], skipped=[4]) == no
    assert found([0, 0, 0, 0], other=[0, 3, 0, 0]) == no and found([NAN] * 4, other=[0, 0, 0, 0]) == yes
    for kind in ("nonfinite_step", "resume"):
        for step, expected in ((3, yes), (4, no), (7, no), (8, yes)):
            assert found([0, 0, 0, 0], Event(step, 0.0, kind)) == expected
    assert found([0, 0, 0, 0], Event(5, 0.0, "skip")) == yes


def test_the_event_of_a_spoiled_update_stands_at_the_step_that_showed_it() -> None:
    record = FakeRun({"step": np.array([0, 2, 5]), "wall_time": np.array([1.0, 2.0, 3.0])})
    past = RecordedPast(record.steps)
    event = update_event(record, SpoiledUpdate(1, 5), past)
    assert (event.step, event.wall_time, event.kind) == (5, 3.0, "nonfinite_update")
    assert event.data == {"after_step": 1, "by_step": 5}
    assert math.isnan(update_event(record, SpoiledUpdate(1, 6), past).wall_time)
    assert math.isnan(update_event(FakeRun({"step": np.array([5])}), SpoiledUpdate(1, 5), past).wall_time)
