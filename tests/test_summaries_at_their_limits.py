"""What is counted, listed and put together of a run, at the limits of each of its numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tbnum.explain import float8_findings as float8_rules
from tbnum.explain.facts import Known
from tbnum.explain.headline import headline
from tbnum.explain.hindsight import skip_in_hindsight, with_failed_steps, with_hindsight
from tbnum.explain.precision import overflow, underflow
from tbnum.explain.record import attempts, complete_events, first_step
from tbnum.explain.repeats import divergence, fingerprint, seed_of, setting
from tbnum.explain.samples import with_samples
from tbnum.explain.summary import summarize
from tbnum.formats import (
    BINS,
    FORMATS,
    INF,
    NAN,
    ZERO,
    first_bin_overflowing,
    last_bin_flushed,
    upper_edge,
)
from tbnum.log import tensors_ranks as tensors_of_ranks
from tbnum.log.folder import last_trailer, list_files, pick, sum_totals
from tbnum.log.json_text import event_text, plain, session_text
from tbnum.log.named import Columns
from tbnum.log.names import host_name, is_record_file, parse_name
from tbnum.log.schema import ENDED_CLOSED, ENDED_CRASH, REWOUND, Event, Trailer
from tbnum.log.tags import checked_mapping, is_candidate, recognise
from tbnum.observe.loader import checked_ids, checked_loader
from tests.test_explain import FakeRun
from tests.test_rules_at_their_limits import View, only
from tests.test_verdicts_at_their_limits import later, verdict

UNKNOWN = math.nan


# -- in a line, and in one mapping -------------------------------------------------------------------------------------


def run(count: int = 100, meta: Any = None, **columns: Any) -> FakeRun:
    steps: dict[str, Any] = {"step": np.arange(count), "wall_time": np.arange(count) / 2.0}
    return FakeRun({**steps, **{name: np.asarray(values) for name, values in columns.items()}}, meta=meta or {})


def skip(step: int, cause: str = "bad_batch", **data: Any) -> Event:
    return Event(step, 0.0, "skip", cause=cause, data=data)


def test_the_headline_says_what_share_was_skipped_and_clipped_and_how_late_in_the_run() -> None:
    clip = np.where(np.arange(100) < 60, 0.5, 1.0)
    assert headline(run(clip_coef=clip), []) == ["60 % clipped (0 % of the last 10 steps)"]
    assert headline(run(clip_coef=clip[::-1]), []) == ["60 % clipped (100 % of the last 10 steps)"]
    assert headline(run(39, clip_coef=clip[:39]), []) == ["100 % clipped"]
    assert headline(run(40, clip_coef=clip[:40]), []) == ["100 % clipped (100 % of the last 4 steps)"]
    late = np.where(np.arange(100) >= 90, UNKNOWN, clip)
    assert headline(run(clip_coef=late), []) == ["67 % clipped"]
    skipped = np.arange(100) < 30
    assert headline(run(clip_coef=clip, skipped=skipped), [])[0].startswith("43 % clipped")
    assert headline(run(**{"a/clip_coef": clip}), []) == ["a: 60 % clipped (0 % of the last 10 steps)"]
    assert headline(run(clip_coef=np.full(100, UNKNOWN)), []) == []
    spikes = [Event(1605, 0.0, "loss_spike"), Event(1605, 0.0, "grad_norm_spike"), Event(20, 0.0, "crash")]
    assert headline(run(), spikes) == ["1 spike (step 1,605)"]
    assert headline(run(), [*spikes, Event(7, 0.0, "loss_spike")]) == ["2 spikes (first at step 7)"]
    loss = np.where(np.arange(100) < 2, math.inf, 1.0)
    assert headline(run(loss=loss), []) == ["2 non-finite losses"]
    assert headline(run(loss=np.append(loss[1:], 1.0)), []) == ["1 non-finite loss"]
    assert headline(run(), [skip(3)]) == ["1 skip (1 %): 1 bad batch"]
    assert headline(run(10_000), [skip(3)]) == ["1 skip (0.01 %): 1 bad batch"]
    assert headline(run(10_001), [skip(3)]) == ["1 skip (< 0.01 %): 1 bad batch"]
    nearly = [skip(at) for at in range(999)]
    assert headline(run(1000), nearly)[0].startswith("999 skips (> 99 %)")
    assert headline(run(1000), nearly[:990])[0].startswith("990 skips (99 %)")
    log = {"source": "tensorboard"}
    assert headline(run(meta=log), [skip(3, at_least=3)]) == ["at least 3 skips: 3 bad batch"]
    assert headline(run(loss_scale=np.ones(100), skipped=np.zeros(100, bool)), []) == ["no skips"]
    assert headline(run(loss_scale=np.ones(100)), []) == ["skips unknown"]


def test_a_summary_has_first_last_and_best_of_what_is_known() -> None:
    loss = np.array([UNKNOWN, 3.0, 1.5, math.inf, 2.0, UNKNOWN])
    scale = np.array([4.0, 4.0, 8.0, 8.0, 8.0, 2.0])
    skipped = np.array([0, 0, 0, 1, 1, 0], bool)
    found = summarize(run(6, loss=loss, loss_scale=scale, skipped=skipped), [skip(3), skip(4, "x", at_least=2)], [])
    assert (found["steps"], found["first_step"], found["last_step"], found["sessions"]) == (6, 0, 5, 1)
    assert (found["first_wall_time"], found["last_wall_time"]) == (0.0, 2.5)
    assert found["loss"] == {"first": 3.0, "last": 2.0, "best": 1.5, "best_step": 2, "nonfinite_steps": 1}
    assert found["loss_scale"] == {
        **{"first": 4.0, "last": 2.0, "lowest": 2.0, "highest": 8.0},
        **{"held": 4.0, "held_steps": 2},
    }
    assert found["skipped"] == {
        **{"steps": 2, "rate": 2 / 6, "inferred": False},
        "causes": {
            "bad_batch": {"skips": 1, "first_step": 3, "last_step": 3},
            "x": {"skips": 2, "first_step": 4, "last_step": 4},
        },
    }
    every = summarize(run(6, meta={"every": 10, "source": "x"}, loss_scale=scale, skipped=skipped), [], [])
    assert every["loss_scale"]["held_steps"] == 20
    clips = summarize(run(6, clip_coef=np.array([0.5, 1, 0.9, UNKNOWN, 0.1, 1]), max_norm=np.full(6, 2.0)), [], [])
    assert clips["clipping"] == [{"optimizer": None, "max_norm": 2.0, "clipped": 3, "known": 5}]
    none = summarize(FakeRun({}), [], [])
    assert (none["steps"], none["first_step"], none["loss"], none["loss_scale"], none["clipping"]) == (
        0,
        None,
        None,
        None,
        [],
    )
    assert none["skipped"]["rate"] == 0.0 and summarize(run(3, loss=np.full(3, UNKNOWN)), [], [])["loss"] is None


def test_attempts_of_a_scalar_log_are_those_between_its_rows_too() -> None:
    steps = np.array([10, 20, 30])
    assert attempts(run(3, step=steps)) == 3 and attempts(run(3, meta={"source": "x"}, step=steps)) == 21
    assert attempts(FakeRun({}, meta={"source": "x"})) == 0
    assert first_step(run(3, step=steps)) == 10 and first_step(FakeRun({})) == 0
    assert first_step(run(3, meta={"sessions": [{"first_step": 7}, {"first_step": 3}, {}]}, step=steps)) == 3


def test_a_skipped_step_whose_event_was_lost_has_one_from_the_columns() -> None:
    skipped = np.array([0, 1, 0, 1], bool)
    record = run(4, skipped=skipped, loss=np.array([1.0, 2, 3, 4]), grad_norm=np.array([5.0, 6, 7, 8]))
    record.raw_events = [Event(1, 0.5, "skip"), Event(3, 1.5, "scale_backoff")]
    events = complete_events(record)
    assert [(event.step, event.kind) for event in events] == [(1, "skip"), (3, "skip"), (3, "scale_backoff")]
    assert events[1].data == {"loss": 4.0, "grad_norm": 8.0} and events[1].wall_time == 1.5
    several = run(4, **{"skipped": skipped, "a/skipped": skipped, "b/skipped": ~skipped, "a/grad_norm": np.arange(4.0)})
    several.raw_events = [Event(1, 0.5, "skip", optimizer="a")]
    found = [(event.step, event.optimizer, event.data.get("grad_norm")) for event in complete_events(several)]
    assert found == [(0, "b", None), (1, "a", None), (2, "b", None), (3, "a", 3.0)]


def test_samples_of_a_step_are_named_up_to_eight_and_kept_up_to_sixty_four() -> None:
    def named(count: int, **data: Any) -> Event:
        (event,) = with_samples([Event(7, 0.0, "skip", message="It failed.", data=data)], lambda step: np.arange(count))
        return event

    assert named(1).message == "It failed. The sample of the step was 0." and named(0).message == "It failed."
    assert named(8).message.endswith("were 0, 1, 2, 3, 4, 5, 6, 7.") and named(9).message.endswith("6, 7 and 1 more.")
    assert named(63).message.endswith("and 55 more.") and named(64).message.endswith("and at least 56 more.")
    assert len(named(100).data["samples"]) == 64 and named(3, samples=[9]).data["samples"] == [9]
    assert named(1, peak_step=1234).message.endswith("The sample of step 1,234 was 0.")
    asked: list[int] = []
    events = [Event(at, 0.0, "loss_spike", data={"peak_step": 100 + at}) for at in range(60)]
    events += [skip(70, "growth_probe"), Event(71, 0.0, "resume")]
    found = with_samples(events, lambda step: asked.append(step) or np.arange(2))  # type: ignore[func-returns-value]
    assert asked == list(range(100, 150)) and sum("samples" in event.data for event in found) == 50


# -- hindsight ---------------------------------------------------------------------------------------------------------


def test_what_came_later_changes_a_verdict_where_it_says_more() -> None:
    event = Known.of(Event(7, 0.0, "skip", data={"loss": UNKNOWN, "micro_batches": 1, "loss_scale": 1024.0}))

    def cause(of: Any, **after: Any) -> str:
        return skip_in_hindsight(of, event, later(**after)).cause

    warm = verdict("scale_warmup", nan_only=True)
    assert cause(warm, skips_in_row=10, lowest_scale=0.5) == "backward_nonfinite"
    assert (
        cause(warm, skips_in_row=9, lowest_scale=0.5)
        == cause(warm, skips_in_row=10, lowest_scale=1.0)
        == "scale_warmup"
    )
    assert cause(verdict("scale_warmup"), skips_in_row=10, lowest_scale=0.5) == "scale_warmup"
    first = verdict("forward_nonfinite", new_scale=True)
    assert cause(first, losses_nonfinite=2, skips_in_row=2) == "scale_warmup"
    assert cause(first, losses_nonfinite=1, skips_in_row=2) == "scale_warmup"
    assert cause(first, losses_nonfinite=1, skips_in_row=1) == "forward_nonfinite"
    assert cause(first, losses_nonfinite=2, skips_in_row=2, ongoing=True) == "forward_nonfinite"
    assert cause(first, losses_nonfinite=2, skips_in_row=2, lowest_scale=1024.0) == "forward_nonfinite"
    assert cause(first, losses_nonfinite=2, skips_in_row=2, lowest_scale=UNKNOWN) == "forward_nonfinite"
    assert cause(verdict("forward_nonfinite"), losses_nonfinite=2, skips_in_row=2) == "forward_nonfinite"
    beyond = verdict("forward_nonfinite", new_scale=True, in_row=3)
    assert cause(beyond, losses_nonfinite=2, skips_in_row=3) == "forward_nonfinite"
    follows = verdict("growth_probe", loss_follows_scale=True)
    assert cause(follows, losses_nonfinite=10, skips_in_row=10) == "forward_nonfinite"
    assert cause(follows, losses_nonfinite=9, skips_in_row=9) == cause(follows, losses_nonfinite=10, skips_in_row=11)
    assert skip_in_hindsight(first, event, None) is first
    for at_step, passed in ((6, True), (7, False)):
        repeat = Known.of(Event(0, 0.0, "repeat_of_diverged_run", data={"at_step": at_step}))
        assert with_hindsight(repeat, 7, {}).data.get("passed", False) == passed
    assert with_hindsight(event, 7, {}) is event


def test_buffers_were_spoiled_in_the_first_step_that_failed_since_they_were_finite() -> None:
    failed = [Event(at, 0.0, "skip", data={"loss": UNKNOWN, "micro_batches": 1}) for at in (3, 5)]
    for after, step in ((2, 3), (3, 5), (4, 5), (5, 9)):
        events = [*failed, Event(9, 0.0, "nonfinite_buffers", data={"after_step": after})]
        found = with_failed_steps([Known.of(event) for event in events])[-1]
        assert (found.step, found.data.get("failed_step", 9)) == (step, step)


def test_a_run_was_lost_where_its_scale_collapsed_or_parameters_failed_or_it_crashed_on_a_loss() -> None:
    loss = np.full(3, 1.0)
    crash = Event(2, 0.0, "crash", data={"error": "E"})

    def lost(last: float, seen: float = 1.0, *, events: Sequence[Event] = (crash,)) -> tuple[int, str] | None:
        record = run(3, loss=np.append(loss[:2], last), micro_batches=np.array([1.0, 1.0, seen]))
        record.raw_events = list(events)
        return divergence(record)

    assert lost(math.inf) == (2, "it ended in an exception while its loss was not finite (E)")
    assert lost(1.0) is None and lost(math.inf, 0.0) is None and lost(math.inf, events=[]) is None
    step = Event(1, 0.0, "nonfinite_step", data={"loss": 1.0, "micro_batches": 1})
    assert lost(1.0, events=[step]) == (1, "it stepped on a gradient that was not finite")


def test_two_runs_are_the_same_by_seed_settings_and_config_and_of_one_setting_without_the_seed() -> None:
    meta = {"seed": 1, "optimizers": {"a": 1}, "scaler": None, "config": {"lr": 1, "seed": 1, "data_seed": 5}}
    assert fingerprint(meta) == fingerprint({**meta, "start_time": 9}) != fingerprint({**meta, "seed": 2})
    assert len(fingerprint(meta)) == 16 and setting(meta) == setting({**meta, "seed": 2})
    assert setting(meta) == setting({**meta, "config": {"lr": 1, "seed": 7}}) != setting({**meta, "config": {"lr": 2}})
    assert [seed_of(each) for each in ({"seed": 0}, {"config": {"seed": 3}}, {"config": 3}, {})] == [0, 3, None, None]


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_bins_below_and_above_a_format_are_those_whose_ends_are_beyond_it(name: str) -> None:
    form = FORMATS[name]
    for scale in (2.0**-30, 2.0**-8, 0.5, 1.0, 3.0, 65536.0, 100_000.0, 2.0**60):
        flushed, partly = last_bin_flushed(form, scale)
        above, cut = first_bin_overflowing(form, scale)
        for bin in range(1, 256):
            lower, upper = (0.0 if bin == 1 else 2.0 ** (bin - 128)), upper_edge(bin)
            if bin < 255:
                assert (bin <= flushed) == (upper * scale <= form.flushes_to), (scale, bin)
                assert (bin >= above) == (lower * scale >= form.overflows_from), (scale, bin)
            if bin > 1 and flushed < bin <= partly:
                assert lower * scale < form.flushes_to < upper * scale
        assert partly in (flushed, flushed + 1) and above - cut in (0, 1)
    for wrong in (0.0, -1.0, math.inf, UNKNOWN):
        with pytest.raises(ValueError, match="a loss scale is a finite number above 0"):
            last_bin_flushed(form, wrong)
    for bin in (0, 256):
        with pytest.raises(ValueError, match=f"bin {bin} is none"):
            upper_edge(bin)


def test_shares_of_what_a_format_loses_lie_between_bounds_that_meet_at_a_power_of_two() -> None:
    counts = np.zeros(BINS, np.int64)
    counts[[ZERO, 102, 103, 142, 143, INF, NAN]] = 10, 20, 30, 5, 5, 15, 15
    form = FORMATS["float16"]  # flushes to 2^-25, the upper edge of bin 102; overflows from 65520, in bin 143
    assert underflow(counts, form) == (0.2, 0.2) and underflow(counts, form, 0.5) == (0.5, 0.5)
    assert underflow(counts, form, 0.75) == (0.2, 0.5)
    assert overflow(counts, form) == (0.0, 0.05) and overflow(counts, form, 2.0) == (0.05, 0.1)
    assert np.isnan(underflow(np.zeros(BINS), form).low)


# -- sample ids --------------------------------------------------------------------------------------------------------


def test_ids_are_whole_numbers_of_64_bits_one_a_sample() -> None:
    given: list[Any] = [
        [3, 4],
        (3, 4),
        np.array([3, 4]),
        np.array([3, 4], np.uint8),
        torch.tensor([3, 4]),
        iter([3, 4]),
    ]
    for ids in [*given, range(3, 5), {3: 0, 4: 0}.keys()]:
        found = checked_ids(ids)
        assert found.tolist() == [3, 4] and found.dtype == np.int64
    assert checked_ids(7).tolist() == [7] and checked_ids(torch.tensor(7)).tolist() == [7]
    assert checked_ids([]).tolist() == [] == checked_ids(np.empty((0,))).tolist()
    assert checked_ids([2**63 - 1, -(2**63)]).tolist() == [2**63 - 1, -(2**63)]
    assert checked_ids(np.array([2**63 - 1], np.uint64)).tolist() == [2**63 - 1]
    wrong: list[Any] = [[1.5], "ab", b"ab", {"a": 1}, [[1, 2]], np.ones((2, 2), int), [2**63], [True], None, ["a"]]
    wrong += [np.array([2**63], np.uint64), np.empty((0, 2)), [1, [2]]]
    for ids in wrong:
        with pytest.raises(TypeError, match="whole numbers"):
            checked_ids(ids)
    long = ["x" * 100]
    with pytest.raises(TypeError) as refused:
        checked_ids(long)
    assert "'" + "x" * 20 in str(refused.value) and "..." in str(refused.value) and "x" * 80 not in str(refused.value)
    with pytest.raises(TypeError, match=r"data=\[1\] is no torch DataLoader"):
        checked_loader([1])


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_name_of_a_file_says_when_where_and_by_whom_it_was_written() -> None:
    assert parse_name("12.host.34.tbnum") == (12, 0, "12.host.34.tbnum", "host", 34)
    assert parse_name("12.host.34.rank5.tbnum") == (12, 5, "12.host.34.rank5.tbnum", "host", 34)
    assert parse_name("renamed.tbnum") == (0, 0, "renamed.tbnum", "", 0)
    assert is_record_file("a.tbnum") and not is_record_file("a.tensors.tbnum") and not is_record_file("a.tbnum.gz")
    assert "." not in host_name() and 0 < len(host_name()) <= 64


def test_the_last_trailer_is_found_before_what_is_torn_however_long_and_only_where_its_record_may_be_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "1.h.1.tbnum"
    first, second = Trailer(steps=3, first_step=0).pack(), Trailer(steps=5, first_step=0).pack()

    def steps(content: bytes) -> int:
        path.write_bytes(content)
        return last_trailer(path).steps

    room = b"\x00" * 64
    assert steps(room + first + b"\x01" * 4 + room + second + b"\x02" * 4) == 5
    assert steps(room + first + b"\x01" * 4 + room + second + b"\x02" * 3) == 3  # its checksum is not there yet
    for torn in (100, 400, 600, 1 << 17, (1 << 18) + 9):
        assert steps(room + first + b"\x01" * 4 + b"\x07" * torn) == 3
    assert steps(first[:-1]) == 0 == steps(b"") and steps(Trailer(steps=101).pack() + b"\x01" * 4) == 0  # of 100 bytes
    assert steps(Trailer(steps=100).pack() + b"\x01" * 4) == 100
    damaged = bytearray(second)
    damaged[30] ^= 1
    assert steps(room + first + b"\x01" * 4 + bytes(damaged) + b"\x01" * 4) == 3
    assert last_trailer(tmp_path / "none").steps == 0


def test_the_totals_of_a_run_are_those_of_its_files_but_for_what_is_superseded() -> None:
    def trailer(start: int, last: int, flags: int = 0, **more: Any) -> Trailer:
        given = {"steps": last - start + 1, "first_step": start, "last_step": last, "skipped_steps": 1}
        given |= {"first_wall_time": 10.0 + start, "last_wall_time": 10.0 + last}
        return Trailer(start=start, flags=flags, **{**given, **more})

    asked: list[tuple[str, int | None]] = []

    def exact(path: Any, cut: int | None) -> Trailer:
        asked.append((path.name, cut))
        return trailer(0, (9 if cut is None else cut) - 1, best_loss=7.0)

    def totals(*trailers: Trailer) -> Any:
        asked.clear()
        return sum_totals({Path(f"{at}"): each for at, each in enumerate(trailers)}, exact)

    plain_totals = totals(
        trailer(0, 9, best_loss=2.0, last_loss_scale=8.0), trailer(10, 19, ENDED_CLOSED, best_loss=3.0)
    )
    assert (plain_totals.steps, plain_totals.skipped_steps, plain_totals.first_step, plain_totals.last_step) == (
        20,
        2,
        0,
        19,
    )
    assert (plain_totals.best_loss, plain_totals.last_loss_scale, plain_totals.sessions) == (
        2.0,
        8.0,
        2,
    ) and asked == []
    assert (plain_totals.first_wall_time, plain_totals.last_wall_time, plain_totals.ended) == (10.0, 29.0, "closed")
    again = totals(trailer(0, 9), trailer(9, 12))
    assert asked == [("0", 9)] and (again.steps, again.best_loss) == (9 + 4, 7.0)
    assert totals(trailer(0, 9, REWOUND)).steps == 9 and asked == [("0", None)]
    assert totals(trailer(0, 9, ENDED_CRASH | ENDED_CLOSED)).ended == "crash" and totals(trailer(0, 9)).ended is None
    empty = totals(trailer(0, 9, ENDED_CLOSED), Trailer())
    assert (empty.steps, empty.ended, empty.sessions) == (10, None, 2)
    none = totals(Trailer(flags=ENDED_CLOSED))
    assert (none.steps, none.first_step, none.sessions, none.ended) == (0, None, 1, "closed")


def test_the_lowest_rank_of_a_folder_is_the_run_and_one_session_may_be_picked(tmp_path: Path) -> None:
    for name in (
        "3.h.1.rank1.tbnum",
        "2.h.1.rank2.tbnum",
        "9.h.1.rank1.tbnum",
        "10.h.1.rank1.tbnum",
        "1.tensors.tbnum",
    ):
        (tmp_path / name).write_bytes(b"")
    found = list_files(tmp_path)
    assert [path.name for path in found.lowest] == ["3.h.1.rank1.tbnum", "9.h.1.rank1.tbnum", "10.h.1.rank1.tbnum"]
    assert found.others == {2: ["2.h.1.rank2.tbnum"]} and found.trouble == []
    assert [path.name for path in list_files(tmp_path, ["5.h.1.tbnum", "x"]).lowest] == ["5.h.1.tbnum"]
    assert list_files(tmp_path / "none").trouble != []
    assert [pick([1, 2, 3], at) for at in (None, 0, 2, 3, -1, -3, -4)] == [[1, 2, 3], [1], [3], [], [3], [1], []]


def test_anything_has_a_text_in_json_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain({"a": (1, 2.5, None, True), 3: {4}, "n": np.float32(2)}) == {
        "a": [1, 2.5, None, True],
        "3": [4],
        "n": 2.0,
    }
    assert plain(np.arange(3)) == [0, 1, 2] and plain(Path("x")) == "x"
    deep: Any = 1
    for _ in range(20):
        deep = [deep]
    assert isinstance(plain(deep), list) and "[[[[" in json.dumps(plain(deep))
    assert plain("x" * 10, 10) == "x" * 10 and plain("x" * 11, 10) == "x" * 10 + "..."
    assert plain(list(range(50)), 30) == [0, 1, 2, 3] and len(plain({"a": {at: at for at in range(50)}}, 9)["a"]) == 9
    assert (
        len(plain({"a": {at: at for at in range(50)}}, 3)["a"]) == 8
        and len(plain({at: at for at in range(50)}, 3)) == 50
    )
    event = Event(3, 1.0, "annotation", data={"text": "x" * 100})
    assert json.loads(event_text(event, None))["data"] == {"text": "x" * 100}
    assert json.loads(event_text(event, 10))["data"] == {"text": "x" * 10 + "...", "shortened": True}
    assert json.loads(event_text(event, 0))["data"] == {"shortened": True}
    monkeypatch.setattr("tbnum.log.json_text.MAX_RECORD_BYTES", 4096 + 60)
    text = session_text({"a": 1, "long": "x" * 100, "longer": "y" * 200})
    assert json.loads(text) == {"a": 1, "left_out": ["longer", "long"]} and len(text) <= 60


def test_a_column_that_is_not_there_is_answered_with_twenty_of_those_that_are() -> None:
    few, many = Columns({f"c{at}": at for at in range(20)}), Columns({f"c{at}": at for at in range(21)})
    with pytest.raises(KeyError) as refused:
        few["x"]
    assert str(refused.value.args[0]).startswith("no column 'x'; there is 'c0', 'c1'")
    assert str(refused.value.args[0]).endswith("'c18', 'c19'")
    with pytest.raises(KeyError) as refused:
        many["x"]
    assert str(refused.value.args[0]).endswith("'c18', 'c19' and 1 more")
    with pytest.raises(KeyError, match="there is none"):
        Columns()["x"]
    assert repr(Columns({"step": np.arange(1234), "x": np.arange(3)})) == "<2 columns of 1,234 steps: step, x>"


# -- tags --------------------------------------------------------------------------------------------------------------


def test_each_system_is_recognised_by_its_own_tags_and_no_other() -> None:
    def system(*tags: str) -> str:
        return recognise(tags)[0].name

    assert system("lm loss", "x") == "Megatron-LM" and system("grad-norm", "learning-rate") == "Megatron-LM"
    assert system("grad-norm") == system("loss") == system() == "" and system("gnorm") == "fairseq"
    assert system("epoch_loss") == "Keras" and system("epoch_loss", "evaluation_loss_vs_iterations") == ""
    assert recognise(["tbnum/loss"])[1] == {"loss": ("tbnum/loss",)}
    assert recognise(["x/lr0", "train/box_loss", "train/cls_loss"])[1]["loss"] == ("train/box_loss", "train/cls_loss")
    assert recognise(["train/total_loss", "loss"])[1]["loss"] == ("train/total_loss",)
    assert recognise(["lr-Adam/pg1", "lr-Adam"])[1]["lr"] == ("lr-Adam",)
    assert recognise(["loss", "mine"], {"loss": "mine", "lr": "gone"})[1] == {"loss": ("mine",)}
    assert is_candidate("loss") and is_candidate("lr-SGD") and not is_candidate("lr-a/b") and not is_candidate("other")


def test_a_mapping_of_columns_to_tags_is_checked() -> None:
    assert checked_mapping(None) == {} and checked_mapping(["loss=a=b", "lr/1=c"]) == {"loss": "a=b", "lr/1": "c"}
    assert checked_mapping({"loss": "x"}) == {"loss": "x"} == checked_mapping(["loss=x", "loss=x"])
    for wrong, words in (
        (["loss"], "maps nothing"),
        (["loss="], "maps nothing"),
        (["losss=x"], "no column 'losss'"),
        (["lr/x=c"], "no column 'lr/x'"),
        (["loss=x", "loss=y"], "mapped twice"),
    ):
        with pytest.raises(ValueError, match=words):
            checked_mapping(wrong)
    for bad in ("loss=x", [3]):
        with pytest.raises(TypeError, match="give a mapping"):
            checked_mapping(bad)  # type: ignore[arg-type]


# -- tensors over ranks ------------------------------------------------------------------------------------------------


def combined(column: str, *parts: tuple[Sequence[float], Sequence[int], Sequence[int]]) -> list[float]:
    """Of three tensors; of each rank its values, which count, and how many elements it has."""
    made = [
        tensors_of_ranks._Part(np.array([values]), np.array(counts, bool), np.array(elements))
        for values, counts, elements in parts
    ]
    return tensors_of_ranks._combined(column, made, 1, 3)[0].tolist()  # type: ignore[no-any-return]


def test_statistics_of_a_tensor_are_put_together_from_the_parts_that_count() -> None:
    one = ([3.0, 1.0, 5.0], [1, 1, 0], [10, 10, 10])
    other = ([4.0, 2.0, 7.0], [1, 0, 1], [30, 30, 30])
    assert combined("grad_norm", one, other) == [5.0, 1.0, 7.0]
    assert combined("absmax", one, other) == [4.0, 1.0, 7.0] and combined("zero", one, other) == [7.0, 1.0, 7.0]
    assert combined("underflow/float16", one, other) == [(3 * 10 + 4 * 30) / 40, 1.0, 7.0]
    lost = ([UNKNOWN, 2.0, 7.0], [1, 0, 1], [30, 30, 30])
    for column in ("grad_norm", "absmax", "zero", "underflow/float16"):
        assert math.isnan(combined(column, one, lost)[0]) and not math.isnan(combined(column, one, lost)[1])
    empty = ([UNKNOWN, 2.0, 7.0], [1, 0, 1], [0, 30, 30])
    assert combined("absmax", one, empty)[0] == 3.0 and combined("underflow/float16", one, empty)[0] == 3.0
    assert combined("nan", one, lost)[0] == 3.0  # at least so many
    none = ([0.0, 1.0, 5.0], [1, 1, 0], [10, 10, 10])
    assert math.isnan(combined("nan", none, lost)[0])
    nobody = ([3.0, 1.0, 5.0], [1, 1, 0], [10, 10, 10])
    assert math.isnan(combined("grad_norm", nobody)[2])
    assert combined("activation_norm", ([UNKNOWN, 1.0, 2.0], [0, 0, 0], [1, 1, 1]), other) == [4.0, 1.0, 2.0]


# -- float8 ------------------------------------------------------------------------------------------------------------


class Tables:
    """One table a step of what casts to float8 lost, of tensor `a`."""

    def __init__(self, **columns: Sequence[float]) -> None:
        self.columns = {f"float8_{name}": values for name, values in columns.items()}

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def steps_of(self, *reasons: str) -> np.ndarray:
        return np.arange(len(next(iter(self.columns.values()))))

    def at(self, step: int, columns: Sequence[str]) -> list[Any]:
        here = {name: np.array([values[step]]) for name, values in self.columns.items()}
        return [SimpleNamespace(optimizer=None, reason="interval", names=("a",), columns=here)]


def lossy(rule: Any, **columns: Sequence[float]) -> Any:
    count = len(next(iter(columns.values())))
    view = View(count)
    given = {"amax": [1.0] * count, "flushed": [0.0] * count, "saturated": [0.0] * count, **columns}
    view.tensors = Tables(**given)  # type: ignore[attr-defined]
    return only(rule, view)


def test_a_spike_makes_a_float8_scale_small_at_a_hundred_times_the_usual_where_elements_are_lost() -> None:
    usual, few = [1.0] * 5, [0.0] * 5
    found = lossy(float8_rules.spikes, amax=[*usual, 100.0], flushed=[*few, 0.002])
    assert found is not None and found.steps == (5,) and "a reached 100 at step 5, usually 1" in found.evidence
    assert "0.2 % of its elements" in found.evidence
    assert lossy(float8_rules.spikes, amax=[*usual, 99.9], flushed=[*few, 0.002]) is None
    assert lossy(float8_rules.spikes, amax=[*usual, 100.0], flushed=[*few, 0.0019]) is None
    assert lossy(float8_rules.spikes, amax=[*usual, 100.0], flushed=[0.001] * 5 + [0.0099]) is None
    assert lossy(float8_rules.spikes, amax=[*usual, 100.0], flushed=[0.001] * 5 + [0.01]) is not None
    assert lossy(float8_rules.spikes, amax=[*usual, math.inf], flushed=[*few, 0.002]) is not None
    assert lossy(float8_rules.spikes, amax=[1.0, 1.0, 100.0], flushed=[0.0, 0.0, 0.5]) is None  # too few tables


def test_what_half_of_the_steps_lose_in_float8_is_lost_always() -> None:
    assert lossy(float8_rules.flushed, flushed=[0.0, 0.0, 0.05, 0.05, 0.05]) is not None
    assert lossy(float8_rules.flushed, flushed=[0.0, 0.0, 0.0, 0.05, 0.05]) is None
    assert (
        lossy(float8_rules.flushed, flushed=[0.049] * 5) is None
        and lossy(float8_rules.flushed, flushed=[0.9] * 3) is None
    )
    found = lossy(float8_rules.saturated, saturated=[0.001] * 4)
    assert found is not None and "of a 0.1 % of the elements" in found.evidence and found.steps == (0, 1, 2, 3)
    assert lossy(float8_rules.saturated, saturated=[0.00099] * 4) is None
