"""Two runs compared from their logs: what differs, from where on, in which stage, and whether it is more than noise."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tbnum
from tbnum.cli import main
from tbnum.compare.noise import judged, two_sided
from tbnum.compare.words import lines, next_step, sentence
from tbnum.log.batches import batch_hash
from tbnum.log.schema import Event, step_columns
from tbnum.log.tensors import TensorTable
from tbnum.log.writer import LogWriter
from tbnum.measure.step_hash import BY_CLIP, BY_PASS, step_hash
from tbnum.run import Run
from tests.recorded import META, append, record, row, skip

NAMES = ("embed", "block.0", "block.1", "head")


def run_at(folder: Path) -> Run:
    return tbnum.read(folder)["."]


def checked(
    folder: Path,
    steps: range,
    apart: Mapping[str, Mapping[int, tuple[str, ...]]],
    *,
    every: int = 1,
    values: Mapping[int, Mapping[str, Any]] | None = None,
    hashed: bool = False,
) -> Run:
    """A run with checksums every so many steps. `apart`: by kind and step, the tensors that differ from then on."""
    columns = step_columns({"optimizer": 1}, hashed=hashed)
    log = LogWriter(folder, columns=columns, meta=META)
    for step in steps:
        reported = dict((values or {}).get(step, {}))
        cells = dict(zip(columns, row(columns, step, **reported), strict=True))
        if hashed:
            cells["step_hash"] = reported.get("step_hash", step_hash([cells["loss"]], [], BY_PASS))
        log.append_step(tuple(cells.values()))
        if step % every == 0:
            sums = {"grad_norm": np.ones(len(NAMES))}
            for what in ("gradient", "parameter", "exp_avg"):
                begun = {name: first for first, names in apart.get(what, {}).items() for name in names}
                sums[f"checksum/{what}"] = np.array(
                    [
                        1000 * step + at + (500 if step >= begun.get(name, math.inf) else 1)
                        for at, name in enumerate(NAMES)
                    ],
                    np.uint64,
                )
            log.write_tensors(TensorTable(step, NAMES, sums))
    log.close()
    return run_at(folder)


def pair(tmp_path: Path, apart: Mapping[str, Mapping[int, tuple[str, ...]]], **options: Any) -> tbnum.Difference:
    steps = options.pop("steps", range(10))
    values = options.pop("values", None)
    a = checked(tmp_path / "a", steps, {}, **options)
    b = checked(tmp_path / "b", steps, apart, values=values, **options)
    return tbnum.diff(a, b)


# -- numbers


def test_a_run_is_the_same_as_itself_and_as_its_twin(tmp_path: Path) -> None:
    for name in "ab":
        record(tmp_path / name, range(50), {7: {"loss": math.nan}, 9: {"skipped": True, "grad_norm": math.inf}})
    found = tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"))
    assert found.same and not found and found.first_step is None and found.steps == 50
    assert (
        found.settings == () and found.events == () and sentence(found) == "The same in everything that was compared."
    )


@pytest.mark.parametrize(
    ("name", "here", "there"),
    [
        ("loss", 1.0, np.nextafter(1.0, 2)),
        ("loss", 1.0, math.nan),
        ("grad_norm", math.inf, 1e300),
        ("skipped", True, False),
        ("loss_scale", 1024.0, 512.0),
        ("lr", 1e-3, 1e-3 + 1e-9),
        ("nonfinite_tensors", 0, 1),
    ],
)
def test_one_number_that_differs_is_found_at_its_step(name: str, here: Any, there: Any, tmp_path: Path) -> None:
    record(tmp_path / "a", range(30), {17: {name: here}})
    record(tmp_path / "b", range(30), {17: {name: there}})
    found = tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"))
    assert found and found.first_step == 17 and found.seen_in == (name,)
    assert tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"), until=16).same


def test_what_one_of_them_does_not_know_is_not_compared(tmp_path: Path) -> None:
    record(
        tmp_path / "a", range(10), {4: {"loss_scale": math.nan, "grad_norm": math.nan, "nonfinite_tensors": math.nan}}
    )
    record(tmp_path / "b", range(10))
    assert tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b")).same


def test_tolerances_are_those_of_numpy(tmp_path: Path) -> None:
    record(tmp_path / "a", range(10), {step: {"loss": 100.0 + step} for step in range(10)})
    record(tmp_path / "b", range(10), {step: {"loss": (100.0 + step) * (1 + 1e-6 * step)} for step in range(10)})
    a, b = run_at(tmp_path / "a"), run_at(tmp_path / "b")
    assert tbnum.diff(a, b).first_step == 1
    assert tbnum.diff(a, b, rtol=4.5e-6).first_step == 5
    assert tbnum.diff(a, b, rtol=1e-5).same and tbnum.diff(a, b, atol=1.0).same
    (loss,) = [each for each in tbnum.diff(a, b).columns if each.column == "loss"]
    assert loss.passes == {1e-6: 2, 1e-3: None, 1e-1: None}
    assert loss.last_tenth == pytest.approx(9e-6, rel=1e-3)
    assert not tbnum.diff(a, b, columns=["loss"]).same and tbnum.diff(a, b, columns=["lr"]).same


def test_steps_are_paired_by_their_number_or_by_the_updates_before_them(tmp_path: Path) -> None:
    record(tmp_path / "a", range(10), {step: {"loss": float(step)} for step in range(10)})
    later = {0: {"skipped": True, "loss": 9.0}} | {step: {"loss": float(step - 1)} for step in range(1, 11)}
    record(tmp_path / "b", range(11), later)
    a, b = run_at(tmp_path / "a"), run_at(tmp_path / "b")
    assert tbnum.diff(a, b).first_step == 0
    found = tbnum.diff(a, b, by="updates")
    assert found.without_partner == (0, 1) and found.compared_from == 0
    assert found.same and found.steps == 10


def test_distances_are_those_of_each_pair_of_values_by_itself(tmp_path: Path) -> None:
    """Loss and norms with every kind of number, against a loop over the pairs."""
    chance = np.random.default_rng(3)
    odd = (math.nan, math.inf, -math.inf, 0.0, 5e-324, 1e300, -1e300)
    steps = 400

    def values() -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for step in range(steps):
            cells = {name: float(1 + 10.0 ** chance.integers(-9, 1)) for name in ("loss", "grad_norm", "loss_scale")}
            if chance.random() < 0.3:
                cells[str(chance.choice(["loss", "grad_norm", "loss_scale"]))] = float(chance.choice(odd))
            counts = {"micro_batches": float(chance.integers(0, 2)), "nonfinite_tensors": float(chance.integers(0, 2))}
            found[step] = cells | counts
        return found

    of_a, of_b = values(), values()
    record(tmp_path / "a", range(steps), of_a)
    record(tmp_path / "b", range(steps), of_b)
    found = tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"), rtol=1e-4, atol=1e-5)
    for name, witness in {"loss": "micro_batches", "grad_norm": "nonfinite_tensors", "loss_scale": None}.items():
        pairs = []
        for step in range(steps):
            cells = of_a[step], of_b[step]
            measured = [witness is not None and each[witness] >= 1 for each in cells]
            if all(not math.isnan(each[name]) or known for each, known in zip(cells, measured, strict=True)):
                pairs.append((step, cells[0][name], cells[1][name]))
        (distance,) = [each for each in found.columns if each.column == name]
        assert distance.compared == len(pairs)
        relative = {step: _relative(a, b) for step, a, b in pairs}
        beyond = [step for step, a, b in pairs if not np.isclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)]
        assert distance.first_step == beyond[0]
        for threshold, step in distance.passes.items():
            assert step == next((step for step, size in relative.items() if size > threshold), None)
        late = pairs[len(pairs) - len(pairs) // 10 :]
        expected = sum(relative[step] for step, *_ in late) / len(late)
        assert distance.last_tenth == pytest.approx(expected, nan_ok=True)
        assert distance.a == pytest.approx(np.mean([a for _, a, _ in late]), nan_ok=True)
        assert distance.b == pytest.approx(np.mean([b for _, _, b in late]), nan_ok=True)


def _relative(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    size = abs(a - b) / max(abs(a), abs(b))
    return size if math.isfinite(size) else math.inf


@pytest.mark.parametrize("starts", [(0, 0), (0, 7), (5, 0)])
@pytest.mark.parametrize("skipped_in_b", [(), (3,), (0, 9)])
def test_pairs_by_updates_are_those_after_as_many_updates(
    starts: tuple[int, int], skipped_in_b: tuple[int, ...], tmp_path: Path
) -> None:
    record(tmp_path / "a", range(starts[0], 20), {step: {"loss": float(step)} for step in range(20)})
    of_b = {step: {"loss": float(step), "skipped": step in skipped_in_b} for step in range(20)}
    record(tmp_path / "b", range(starts[1], 20), of_b)
    found = tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"), by="updates", until=17)
    made_a = list(range(starts[0], 20))
    made_b = [step for step in range(starts[1], 20) if step not in skipped_in_b]
    pairs = [(a, b) for a, b in zip(made_a, made_b, strict=False) if a <= 17]
    assert found.steps == len(pairs)
    assert found.first_step == next((a for a, b in pairs if a != b), None)


def test_what_is_not_compared_is_named(tmp_path: Path) -> None:
    record(tmp_path / "a", range(5, 20))
    log = LogWriter(tmp_path / "b", columns=("step", "loss", "extra"), meta=META)
    log.append_steps([(step, float(step), 1.0) for step in range(10)])
    log.flush()
    found = tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"))
    assert found.same and found.steps == 5
    said = " | ".join(found.not_compared)
    assert "has the columns extra" in said and "10 steps of" in said and "5 steps of" in said and "goes on" in said
    log.close()


def test_events_and_settings_of_one_alone_are_reported(tmp_path: Path) -> None:
    record(tmp_path / "a", range(10), events=[skip(3), skip(5)], seed=1, config={"lr": 0.1, "depth": 2})
    record(tmp_path / "b", range(10), events=[skip(3), skip(6)], seed=1, config={"lr": 0.2, "depth": 2})
    found = tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"))
    assert [tuple(setting) for setting in found.settings] == [("config.lr", 0.1, 0.2)]
    assert [tuple(event) for event in found.events if event.kind == "skip"] == [("skip", (5,), (6,))]


def with_samples(folder: Path, order: list[list[int]]) -> Run:
    """A run of SGD over one weight, of which each step's samples are recorded; the loss is their mean."""
    log = LogWriter(folder, columns=step_columns({"optimizer": 1}, batches=True), meta=META)
    for step, ids in enumerate(order):
        values = {"loss": float(np.mean(ids)), "batch_hash": batch_hash(np.array(ids))}
        log.append_step(row(log.columns, step, **values))
        log.write_batches([(step, np.array(ids, np.int64))])
    log.close()
    return run_at(folder)


def test_the_order_of_the_data_is_compared_where_it_is_recorded(tmp_path: Path) -> None:
    order = [[4, 1], [2, 3], [0, 5]]
    a = with_samples(tmp_path / "a", order)
    assert tbnum.diff(a, with_samples(tmp_path / "same", order)).data_apart_at is None
    found = tbnum.diff(a, with_samples(tmp_path / "swapped", [[4, 1], [3, 2], [0, 5]]))
    assert found.data_apart_at == 1 and found.same, "the samples are a setting, and no number of the training"
    said = dict(lines(found))["settings"]
    assert said == "data: other samples, or in another order, from step 1 on"
    record(tmp_path / "unknown", range(3))
    assert tbnum.diff(a, run_at(tmp_path / "unknown")).data_apart_at is None


def test_steps_are_paired_by_the_samples_before_them(tmp_path: Path) -> None:
    a = with_samples(tmp_path / "a", [[2, 4], [6, 8], [1, 3]])
    b = with_samples(tmp_path / "b", [[3], [3], [7, 7], [2], [2]])
    found = tbnum.diff(a, b, by="samples", columns=["loss"])
    assert found.steps == 3 and found.same
    assert not tbnum.diff(a, b, columns=["loss"]).same
    record(tmp_path / "c", range(3))
    with pytest.raises(ValueError, match=r"samples of step 0.*data_ids"):
        tbnum.diff(a, run_at(tmp_path / "c"), by="samples")


# -- bits


def test_without_a_difference_the_bits_are_the_same_up_to_the_last_checksum(tmp_path: Path) -> None:
    found = pair(tmp_path, {}, every=3)
    assert found.same and found.same_bits_until == 9 and found.bits_apart_at is None
    assert "same bits at every checksummed step, up to 9" in sentence(found)


STAGES = [
    ({"gradient": {6: ("block.0",)}, "parameter": {6: ("block.0",)}}, "backward", "block.0"),
    ({"gradient": {6: ("embed", "block.0")}, "parameter": {6: NAMES}}, "backward", "block.0"),
    ({"gradient": {6: NAMES}, "parameter": {6: NAMES}}, "forward", None),
    ({"parameter": {6: ("head",)}, "exp_avg": {}}, "optimizer", None),
    ({"exp_avg": {6: NAMES}, "parameter": {7: NAMES}}, "optimizer", None),
]


@pytest.mark.parametrize(("apart", "stage", "begun_in"), STAGES)
def test_the_stage_follows_from_the_checksums_of_that_very_step(
    apart: dict[str, Any], stage: str, begun_in: str | None, tmp_path: Path
) -> None:
    found = pair(tmp_path, apart)
    assert (found.first_step, found.same_bits_until, found.bits_apart_at) == (6, 5, 6)
    assert (found.stage, found.begun_in) == (stage, begun_in) and found.seen_in == ("checksum",)
    assert next_step(found) is None


@pytest.mark.parametrize("apart", [apart for apart, _, _ in STAGES])
def test_between_checksummed_steps_the_difference_is_bracketed_and_no_stage_claimed(
    apart: dict[str, Any], tmp_path: Path
) -> None:
    found = pair(tmp_path, apart, every=4, values={7: {"loss": -1.0}})
    assert (found.same_bits_until, found.bits_apart_at, found.stage) == (4, 8, None)
    assert found.first_step == 7 and found.seen_in == ("loss",)
    assert "began there or before" in sentence(found)
    assert next_step(found) == "To see in which stage: run both again from step 4 to 7 with tensor_interval=1."


@pytest.mark.parametrize("values", [1, 40, 1000])
def test_tables_that_are_read_a_few_at_a_time_show_the_same(
    values: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = {"gradient": {23: ("block.0",)}, "parameter": {23: ("block.0", "head")}}
    whole = pair(tmp_path, apart, steps=range(40))
    monkeypatch.setattr("tbnum.compare.windows.VALUES", values)
    again = tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"))
    assert repr(again) == repr(whole) and (whole.same_bits_until, whole.first_step, whole.stage) == (22, 23, "backward")
    assert tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"), until=22).same_bits_until == 22
    assert tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"), until=0).same_bits_until == 0


def test_of_runs_that_are_the_same_within_a_tolerance_no_tensor_is_named(tmp_path: Path) -> None:
    apart = {"parameter": {3: ("head",)}}
    a, b = checked(tmp_path / "a", range(10), {}), checked(tmp_path / "b", range(10), apart)
    assert tbnum.diff(a, b).tensors == ("head",)
    found = tbnum.diff(a, b, rtol=1e-6)
    assert found.same and found.tensors == () and (found.same_bits_until, found.bits_apart_at) == (2, 3)


def test_at_the_first_step_no_stage_is_claimed_and_the_settings_are_named(tmp_path: Path) -> None:
    found = pair(tmp_path, {"gradient": {0: NAMES}, "parameter": {0: NAMES}})
    assert (found.first_step, found.same_bits_until, found.stage, found.compared_from) == (0, None, None, 0)
    assert "the first step that both have, so it began in that step or before it" in sentence(found)
    assert next_step(found).startswith("Look first at what both begin with")
    record(tmp_path / "one", seed=1)
    record(tmp_path / "other", values={step: {"loss": 0.5 + step} for step in range(10)}, seed=2)
    found = tbnum.diff(run_at(tmp_path / "one"), run_at(tmp_path / "other"))
    assert next_step(found) == "Look first at what differs in the settings."


def test_tensors_are_those_of_the_first_step_that_differs_or_none(tmp_path: Path) -> None:
    apart = {"gradient": {7: ("block.0",)}, "parameter": {7: NAMES}}
    assert pair(tmp_path / "at", apart, values={7: {"loss": -1.0}}).tensors == ("block.0",)
    later = pair(tmp_path / "later", apart, every=4, values={7: {"loss": -1.0}})
    assert later.first_step == 7 and later.bits_apart_at == 8 and later.tensors == ()
    assert sentence(later) == "Apart from step 7 on, seen first in the loss; it began there or before."


def test_of_other_tensors_the_bits_are_unknown(tmp_path: Path) -> None:
    a = checked(tmp_path / "a", range(10), {})
    log = LogWriter(tmp_path / "b", columns=step_columns({"optimizer": 1}), meta=META)
    append(log, range(10))
    for step in range(10):
        log.write_tensors(TensorTable(step, ("other",), {"checksum/parameter": np.ones(1, np.uint64)}))
    log.close()
    found = tbnum.diff(a, run_at(tmp_path / "b"))
    assert found.same and (found.same_bits_until, found.bits_apart_at) == (None, None)
    assert dict(lines(found))["bits"] == "no checksums of the same steps and tensors"


def test_a_step_that_differs_in_its_loss_before_any_checksum_has_no_stage(tmp_path: Path) -> None:
    found = pair(tmp_path, {"parameter": {6: ("head",)}}, values={4: {"loss": -1.0}})
    assert found.first_step == 4 and found.stage is None and found.bits_apart_at == 6


def test_hashes_are_compared_where_norms_were_taken_in_one_way(tmp_path: Path) -> None:
    ours, clips = step_hash([5.0], [], BY_PASS), step_hash([5.0], [], BY_CLIP)
    assert pair(tmp_path / "other", {}, hashed=True, values={5: {"step_hash": clips}}).same
    assert pair(tmp_path / "unknown", {}, hashed=True, values={5: {"step_hash": 0}}).same
    found = pair(tmp_path / "apart", {}, hashed=True, values={5: {"step_hash": ours ^ 1 << 40}})
    assert found.first_step == 5 and found.seen_in == ("step_hash",)
    a, b = (run_at(tmp_path / "apart" / name) for name in "ab")
    assert tbnum.diff(a, b, rtol=1e-9).same, "with a tolerance bits are not asked for"


# -- noise


def test_student_t_is_as_in_tables() -> None:
    for t, free, probability in (
        (2.776, 4, 0.05),
        (12.706, 1, 0.05),
        (2.262, 9, 0.05),
        (4.604, 4, 0.01),
        (0.0, 3, 1.0),
    ):
        assert two_sided(t, free) == pytest.approx(probability, rel=2e-3)
    assert two_sided(1.0, 10**6) == pytest.approx(0.31731, rel=1e-3)


def test_a_difference_is_held_against_the_spread_of_seeds() -> None:
    seeds = [1.00, 1.02, 0.98, 1.01, 0.99]
    assert judged("loss", [1.0], [1.01], seeds).beyond is False
    assert judged("loss", [1.0], [1.3], seeds).beyond is True
    assert judged("loss", [1.0], [1.3]).beyond is None, "two runs alone show nothing"
    paired = judged("loss", [1.0, 2.0, 3.0], [1.1, 2.1, 3.1001], paired=True)
    assert paired.beyond is True and paired.how == "pairs"
    assert judged("loss", [1.0, 2.0, 3.0], [1.1, 2.1, 3.1]).beyond is False


def test_groups_of_seeds_are_paired_by_their_seed(tmp_path: Path) -> None:
    for name, shift in (("a", 0.0), ("b", 0.5)):
        for seed in (3, 1, 2):
            values = {step: {"loss": seed * 10 + shift + seed * 1e-3 * shift} for step in range(20)}
            record(tmp_path / name / f"seed{seed}", range(20), values, seed=seed)
    groups = [list(tbnum.read(tmp_path / name).values()) for name in "ab"]
    found = tbnum.diff(*groups)
    (verdict,) = found.verdicts
    assert verdict.beyond is True and verdict.how == "pairs" and verdict.seeds == 3


def test_means_are_of_the_steps_that_were_compared(tmp_path: Path) -> None:
    """Not of each run's own end: a run that stopped early has a higher loss there, and is the same all the same."""
    falling = {step: {"loss": 1 / (1 + step)} for step in range(100)}
    record(tmp_path / "whole", range(100), falling)
    record(tmp_path / "part", range(30), falling)
    higher = {step: {"loss": 1 / (1 + step) + 0.5} for step in range(100)}
    record(tmp_path / "other", range(100), higher)
    whole, part, other = (run_at(tmp_path / name) for name in ("whole", "part", "other"))
    (verdict,) = tbnum.diff(whole, part).verdicts
    assert verdict.difference == 0.0
    (verdict,) = tbnum.diff(part, other).verdicts
    assert verdict.difference == pytest.approx(0.5, rel=1e-12)
    found = tbnum.diff(whole, other, noise=[whole, other, part])
    (verdict,) = found.verdicts
    assert verdict.seeds == 2 and any("ends before the steps 90 to 99" in text for text in found.not_compared)


def test_pairs_of_seeds_are_whole_pairs(tmp_path: Path) -> None:
    """A run whose late losses are all NaN leaves its twin without a partner, and moves no other pair."""
    for name, lost in (("a", 1), ("b", 2)):
        for seed in range(4):
            loss = math.nan if seed == lost else 10.0 * seed + (name == "b") * (0.5 + 0.001 * seed)
            record(tmp_path / name / f"seed{seed}", range(20), {step: {"loss": loss} for step in range(20)}, seed=seed)
    (verdict,) = tbnum.diff(*[list(tbnum.read(tmp_path / name).values()) for name in "ab"]).verdicts
    assert (verdict.how, verdict.seeds) == ("pairs", 2) and verdict.difference == pytest.approx(0.5015)


# -- words


def test_what_is_the_same_is_said_of_the_steps_that_both_have(tmp_path: Path) -> None:
    record(tmp_path / "a", range(20))
    log = LogWriter(tmp_path / "b", columns=step_columns({"optimizer": 1}), meta=META)
    append(log, range(8))
    log.write_event(Event(step=8, wall_time=0.0, kind="crash", severity="error"))
    log.close()
    found = tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"))
    assert sentence(found) == "The same in the 8 steps that both have in everything that was compared."
    assert any("ended with an exception after step 7" in text for text in found.not_compared)
    assert found.without_partner == (12, 0)


def test_within_a_tolerance_the_bits_that_differ_are_said_to(tmp_path: Path) -> None:
    a = checked(tmp_path / "a", range(10), {})
    b = checked(tmp_path / "b", range(10), {"parameter": {3: ("head",)}})
    said = sentence(tbnum.diff(a, b, rtol=1e-6))
    assert said == "The same in everything that was compared; bit for bit they differ from step 3 on."


def test_a_difference_is_said_with_its_direction_and_each_run_with_what_it_has_alone(tmp_path: Path) -> None:
    late = {step: {"loss": math.nan} for step in range(15, 20)}
    scaler = {"class": "GradScaler", "enabled": True}
    record(tmp_path / "a", range(20), events=[skip(5), skip(6)], scaler=scaler)
    record(tmp_path / "b", range(20), {step: {"loss": step - 0.5} for step in range(20)}, scaler=None)
    record(tmp_path / "c", range(20), late, scaler=scaler)
    a, b, c = (run_at(tmp_path / name) for name in "abc")
    said = dict(lines(tbnum.diff(a, b)))
    assert said["noise"].startswith("loss: 0.5 lower in the second over the last tenth; ")
    assert said["distance"] == "loss: from 0 on, passes 0.1 at 0; 0.02705 over the last tenth"
    assert (
        said["events"] == "skip: in the first alone at 5, 6"
        and said["settings"] == "scaler: in the first alone (GradScaler)"
    )
    assert dict(lines(tbnum.diff(b, a)))["noise"].startswith("loss: 0.5 higher")
    assert dict(lines(tbnum.diff(a, c)))["distance"].endswith("; in one alone not finite over the last tenth")


# -- the command


def command(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = main(["diff", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_exits_with_0_1_and_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    record(a, range(10))
    record(b, range(10), {6: {"loss": 6.0 + 1e-9}})
    record(c, range(20, 30))
    code, out, _ = command(capsys, a, a)
    assert code == 0 and "The same in everything" in out
    code, out, _ = command(capsys, a, b)
    assert code == 1 and "Apart from step 6 on" in out and "loss: from 6 on" in out
    assert command(capsys, a, b, "--rtol", "1e-6")[0] == 0
    assert command(capsys, a, b, "--columns", "grad_norm, lr")[0] == 0
    assert command(capsys, a, b, "--until", "5")[0] == 0
    for arguments in ([a, c], [a], [a, tmp_path / "none"], [a, b, "--columns", "nope"], [a, b, c]):
        code, out, err = command(capsys, *arguments)
        assert (code, out) == (2, "") and err.startswith("tbnum: ") and err.count("\n") == 1
    assert "no step in common" in command(capsys, a, c)[2]


def test_the_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "a", range(10))
    record(tmp_path / "b", range(10), {6: {"loss": math.nan}})
    code, out, _ = command(capsys, tmp_path / "a", tmp_path / "b", "--json")
    reported = json.loads(out)
    assert code == 1 and reported["first_step"] == 6 and reported["same"] is False and reported["seen_in"] == ["loss"]
    assert {"same_bits_until", "stage", "tensors", "columns", "sentence", "next", "version"} <= reported.keys()
    assert [each["passes"] for each in reported["columns"] if each["column"] == "loss"] == [
        {"1e-06": 6, "0.001": 6, "0.1": 6}
    ]


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "a", range(10), config={"note": "<script>"})
    record(tmp_path / "b", range(10), {step: {"loss": step + 1e-6} for step in range(4, 10)})
    page = tmp_path / "page.html"
    code, out, _ = command(capsys, tmp_path / "a", tmp_path / "b", "--html", page)
    text = page.read_text(encoding="utf-8")
    assert (code, out) == (1, "") and "Apart from step 4 on" in text and "relative distance of the loss" in text
    assert "&lt;script&gt;" in text and "<script>" not in text and "<svg" in text
    assert command(capsys, tmp_path / "a", tmp_path / "a", "--html", page)[0] == 0
    assert "The same in everything" in page.read_text(encoding="utf-8")
    code, _, err = command(capsys, tmp_path / "a", tmp_path / "b", "--html", tmp_path / "none" / "page.html")
    assert code == 2 and "cannot write" in err


def test_the_command_tells_noise_from_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, loss in enumerate((1.0, 1.02, 0.98, 1.01, 3.0)):
        values = {step: {"loss": loss + step * 1e-4} for step in range(20)}
        record(tmp_path / f"{number}", range(20), values, seed=number)
    runs = [tmp_path / f"{number}" for number in range(5)]

    def said(*arguments: Any) -> str:
        """In one line: where lines end follows from the length of the folders' names."""
        return " ".join(command(capsys, *arguments)[1].split())

    assert "is unknown without" in said(runs[0], runs[4])
    assert "more than the noise of seeds" in said(runs[0], runs[4], "--noise", *runs[:4])
    assert "within the noise of seeds" in said(runs[0], runs[1], "--noise", *runs[:4])


def test_runs_of_several_settings_are_no_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"optimizer": {"class": "SGD", "groups": [{"lr": 0.1}], "parameters": []}}
    for name, optimizers in (("a", META["optimizers"]), ("b", other)):
        record(tmp_path / "many" / name, optimizers=optimizers)
    code, out, err = command(capsys, tmp_path / "many", tmp_path / "many" / "a")
    assert (code, out) == (2, "") and "a has runs of several settings" in err and "optimizers.optimizer.class" in err
    assert command(capsys, tmp_path / "many", tmp_path / "many", "--run", "a")[0] == 0


def test_what_cannot_be_read_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1700000000000.host.1.tbnum").write_bytes(b"no log at all" * 1000)
    code, _, err = command(capsys, tmp_path / "a", tmp_path / "b")
    assert code == 2 and "nothing of the run" in err and err.count("\n") == 1
    LogWriter(tmp_path / "empty", columns=step_columns({"optimizer": 1}), meta=META).close()
    assert main(["export", str(tmp_path / "empty"), "--reference", str(tmp_path / "reference")]) == 2
    assert "has no step to compare with" in capsys.readouterr().err


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="columns has 'step_hash', which is no number"):
        tbnum.diff([], [], columns=["loss", "step_hash"])
    with pytest.raises(ValueError, match="rtol is -1"):
        tbnum.diff([], [], rtol=-1)
    with pytest.raises(ValueError, match="by is 'x'"):
        tbnum.diff([], [], by="x")
    with pytest.raises(ValueError, match="empty list"):
        tbnum.diff([], [])


def test_a_live_run_is_compared_as_far_as_it_is(tmp_path: Path) -> None:
    record(tmp_path / "a", range(10))
    log = LogWriter(tmp_path / "b", columns=step_columns({"optimizer": 1}), meta=META)
    append(log, range(4))
    found = tbnum.diff(run_at(tmp_path / "a"), run_at(tmp_path / "b"))
    assert found.same and found.steps == 4
    log.close()


def test_a_reference_is_a_small_record_that_differs_in_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = checked(tmp_path / "run", range(20), {}, hashed=True)
    assert main(["export", str(tmp_path / "run"), "--reference", str(tmp_path / "reference")]) == 0
    assert command(capsys, tmp_path / "reference", tmp_path / "run")[0] == 0
    found = tbnum.diff(run_at(tmp_path / "reference"), run)
    assert found.same and found.same_bits_until == 19 and found.steps == 20 and found.settings == ()
    assert sum(path.stat().st_size for path in (tmp_path / "reference").iterdir()) < 20_000
    assert main(["export", str(tmp_path / "run"), "--reference", str(tmp_path / "reference")]) == 2
    assert "not empty" in capsys.readouterr().err
