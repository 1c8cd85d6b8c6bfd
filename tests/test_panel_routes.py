"""The routes for how a run does, what led to a step, where two runs part, and the files of what is in view."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from tbnum.compare import diff
from tbnum.compare.settings import settings_apart
from tbnum.compare.words import sentence
from tbnum.explain import what_led_here
from tbnum.log.reader import Run
from tbnum.log.schema import step_columns
from tbnum.log.tensors import TensorTable
from tbnum.log.writer import LogWriter
from tensorboard_plugin_tbnum import runs
from tests.recorded import META, append, record, skip
from tests.routes import Panel

NAN = float("nan")
UNSCALED = {step: {"loss_scale": NAN, "growth_tracker": NAN} for step in range(100)}
SPIKE = {step: {"loss": 900.0, "grad_norm": 400.0} for step in (60, 61)}


@pytest.fixture
def panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Panel:
    monkeypatch.setattr(runs.RunTable, "start", runs.RunTable.scan)
    clipping = {step: {"clip_coef": 0.5 if step % 4 == 0 else 1.0} for step in range(100)}
    skipped = {"skipped": True, "loss": NAN, "clip_coef": NAN}
    record(tmp_path / "scaled", range(100), {**clipping, 20: skipped}, events=[skip(20)])
    record(tmp_path / "plain", range(100), {step: {**UNSCALED[step], **SPIKE.get(step, {})} for step in range(100)})
    record(tmp_path / "twin", range(50, 120), {70: {"lr": 0.5}, 80: {"grad_norm": 7.0}})
    record(tmp_path / "later", range(500, 510))
    return Panel(tmp_path)


def test_columns_without_a_value_are_named(panel: Panel) -> None:
    assert {"loss_scale", "growth_tracker"} <= set(panel.json("run", run="plain")["unknown"])
    assert not {"loss_scale", "loss", "step"} & set(panel.json("run", run="scaled")["unknown"])


def test_how_a_run_does_is_what_its_record_and_its_findings_say(panel: Panel, tmp_path: Path) -> None:
    health = panel.json("health", run="scaled")
    run = Run(tmp_path / "scaled")
    clipped = run.steps["clip_coef"][np.isfinite(run.steps["clip_coef"])] < 1
    assert health["skipped"] == 1 and health["clipped"] == pytest.approx(clipped.mean())
    assert sum(health["findings"].values()) == len(panel.json("findings", run="scaled")["findings"])
    events = panel.json("events", run="plain")["events"]
    spikes = {event["step"] for event in events if event["kind"].endswith("_spike")}
    plain = panel.json("health", run="plain")
    assert (plain["spikes"], plain["skipped"], plain["nonfinite"]) == (len(spikes), 0, 0)
    assert plain["worst"] in ("error", "warning", None)


def test_what_led_to_a_step_is_what_the_package_answers(panel: Panel, tmp_path: Path) -> None:
    reported = panel.json("led", run="plain", step=61)
    expected = what_led_here(Run(tmp_path / "plain"), 61)
    assert [one["name"] for one in reported["quantities"]] == [one.name for one in expected.quantities]
    assert reported["first_step"] == expected.first_step and reported["not_recorded"] == list(expected.not_recorded)
    assert "no step before" in panel.refused(404, "led", run="plain", step=0)
    assert "step is missing" in panel.refused(400, "led", run="plain")


def test_two_runs_part_where_the_package_says_so(panel: Panel, tmp_path: Path) -> None:
    apart = panel.json("apart", a="scaled", b="twin")
    expected = diff(Run(tmp_path / "scaled"), Run(tmp_path / "twin"))
    assert (apart["steps"], apart["first_step"]) == (50, expected.first_step)
    assert apart["sentence"] == sentence(expected)
    same = panel.json("apart", a="twin", b="twin")
    assert (same["steps"], same["first_step"]) == (70, None)
    none = panel.json("apart", a="scaled", b="later")
    assert none["steps"] == 0 and "no step in common" in none["sentence"]
    assert "gone" in panel.refused(404, "apart", a="scaled", b="gone")


def test_how_the_settings_of_two_runs_differ_is_told_though_they_have_no_step_in_common(
    panel: Panel, tmp_path: Path
) -> None:
    record(tmp_path / "fast", range(900, 910), config={"lr": 0.1, "nested": {"a": [1, 2]}}, seed=3)
    panel = Panel(tmp_path)
    expected = settings_apart(Run(tmp_path / "scaled").meta, Run(tmp_path / "fast").meta)
    apart = panel.json("apart", a="scaled", b="fast")
    assert [row[0] for row in apart["settings"]] == [setting.name for setting in expected]
    assert ["seed", "\N{EN DASH}", "3"] in apart["settings"] and apart["first_step"] is None


@pytest.fixture
def of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Panel:
    """Three ranks, each with a loss of its own: at step 60 that of rank 2 is large."""
    monkeypatch.setattr(runs.RunTable, "start", runs.RunTable.scan)
    for rank in range(3):
        meta = {**META, "world_size": 3}
        log = LogWriter(tmp_path / "many", columns=step_columns({"optimizer": 1}), meta=meta, rank=rank)
        append(log, range(100), {step: {"loss": loss_of(rank, step)} for step in range(100)})
        if rank == 0:
            log.write_batches([(61, np.arange(100, 300, dtype=np.int64))])
        log.close()
    return Panel(tmp_path)


def loss_of(rank: int, step: int) -> float:
    return 2.0 + rank / 100 + (50.0 if (rank, step) == (2, 60) else 0.0)


def test_each_ranks_loss_is_a_column_and_the_spread_beside_it(of_ranks: Panel) -> None:
    derived = of_ranks.json("run", run="many")["derived"]
    names = [f"loss/rank_{rank}" for rank in range(3)]
    assert set(names) <= set(derived)
    _, arrays = of_ranks.binary("series", run="many", columns=",".join(names), buckets=200)
    for rank, name in enumerate(names):
        np.testing.assert_allclose(arrays[name], [loss_of(rank, step) for step in range(100)], rtol=1e-6)
    assert "has no column" in of_ranks.refused(404, "series", run="many", columns="loss/rank_7")


def test_what_led_to_a_step_names_the_rank_and_the_samples(of_ranks: Panel) -> None:
    led = of_ranks.json("led", run="many", step=61)
    worst = led["quantities"][0]
    assert (worst["name"], worst["rank"], worst["at_step"]) == ("loss", 2, 60)
    assert not [one for one in led["quantities"] if one["name"] == "grad_norm" and one["rank"] is not None]
    assert led["samples"] == list(range(100, 164)) and led["samples_total"] == 200
    assert of_ranks.json("led", run="many", step=62)["samples"] is None


def test_a_run_leaves_the_band_of_seeds_where_its_means_do_and_stay_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.RunTable, "start", runs.RunTable.scan)
    noise = np.random.default_rng(5).normal(size=(6, 640)) * 0.05
    for seed in range(4):
        values = {step: {"loss": 2.0 + noise[seed, step], "grad_norm": 1.0} for step in range(640)}
        record(tmp_path / f"seed{seed}", range(640), values)
    for name, row, shift in (("same", 4, 0.0), ("left", 5, 0.4)):
        values = {
            step: {"loss": 2.0 + noise[row, step] + (shift if step >= 320 else 0.0), "grad_norm": 1.0}
            for step in range(640)
        }
        record(tmp_path / name, range(640), values)
    panel = Panel(tmp_path)
    line = '["seed0","seed1","seed2","seed3"]'
    left = panel.json("band", run="left", line=line, columns="loss,grad_norm,none")
    assert left["columns"] == {"loss": {"leaves": 320}, "grad_norm": {"leaves": None}}
    assert panel.json("band", run="same", line=line, columns="loss")["columns"]["loss"]["leaves"] is None
    own = panel.json("band", run="seed0", line=line, columns="loss")
    assert own["seeds"] == ["seed1", "seed2", "seed3"] and own["columns"]["loss"]["leaves"] is None
    assert panel.json("band", run="left", line='["seed0"]', columns="loss")["columns"] == {}
    assert "JSON list" in panel.refused(400, "band", run="left", line="seed0", columns="loss")
    assert "gone" in panel.refused(404, "band", run="left", line='["gone"]', columns="loss")


def test_files_of_a_view_hold_its_steps_and_no_others(panel: Panel) -> None:
    text = panel.get("export", run="scaled", what="steps", format="csv", from_=18, to=22).get_data(as_text=True)
    assert [row["step"] for row in csv.DictReader(io.StringIO(text))] == ["18", "19", "20", "21", "22"]
    events = panel.get("export", run="scaled", what="events", format="csv", from_=21).get_data(as_text=True)
    assert "skip" not in events
    assert "is greater" in panel.refused(400, "export", run="scaled", from_=9, to=3)


# -- what a difference of two runs is drawn from


def test_the_ratio_of_columns_at_equal_updates_is_that_of_the_records(panel: Panel, tmp_path: Path) -> None:
    """The panel divides two lines of `overlay`; here the records are divided, update by update."""
    chance = np.random.default_rng(2)
    values = {name: 1 + chance.random((2, 60)) for name in ("loss", "grad_norm")}
    skips = ({5, 6, 30}, {0, 17})
    for at, name in enumerate(("one", "other")):
        given = {
            step: {**{column: float(of[at, step]) for column, of in values.items()}, "skipped": step in skips[at]}
            for step in range(60)
        }
        record(tmp_path / name, range(60), given)
    panel = Panel(tmp_path)
    _, arrays = panel.binary("overlay", line=['["one"]', '["other"]'], columns="loss,grad_norm", x="updates")
    updates = [np.cumsum([step not in skipped for step in range(60)]) for skipped in skips]
    for column, of in values.items():
        expected = {
            update: of[0, np.flatnonzero(updates[0] == update)[-1]] / of[1, np.flatnonzero(updates[1] == update)[-1]]
            for update in range(1, 58)
        }
        lines = [
            dict(zip(arrays[f"{at}/x"].tolist(), arrays[f"{at}/{column}/last"].tolist(), strict=True)) for at in (0, 1)
        ]
        ratio = {update: lines[0][update] / lines[1][update] for update in lines[0] if update in lines[1]}
        assert set(expected) <= set(ratio)
        assert [ratio[update] for update in expected] == pytest.approx(list(expected.values()), rel=1e-6)


def test_the_ratio_of_two_heat_maps_is_that_of_the_tables(panel: Panel, tmp_path: Path) -> None:
    chance = np.random.default_rng(4)
    names = ("embed", "block.0", "block.1", "head")
    norms = {name: 1 + chance.random((100, len(names))) for name in ("one", "other")}
    for name, of in norms.items():
        log = LogWriter(tmp_path / name, columns=step_columns({"optimizer": 1}), meta=META)
        append(log, range(100))
        for step in range(0, 100, 5):
            log.write_tensors(TensorTable(step, names, {"grad_norm": of[step]}))
        log.close()
    panel = Panel(tmp_path)
    headers, cells = zip(
        *(panel.binary("heatmap", run=name, column="grad_norm", buckets=64) for name in norms), strict=True
    )
    assert headers[0]["rows"] == headers[1]["rows"] == list(names)
    assert cells[0]["step"].tolist() == cells[1]["step"].tolist() == list(range(0, 100, 5))
    ratio = (cells[0]["max"] / cells[1]["max"]).reshape(len(names), -1)
    np.testing.assert_allclose(ratio.T, (norms["one"] / norms["other"])[::5], rtol=1e-6)


def test_the_first_step_apart_is_the_first_at_which_a_recorded_value_is_another(panel: Panel, tmp_path: Path) -> None:
    chance = np.random.default_rng(6)
    losses = np.round(chance.random(80), 3)
    for name, changed in (("one", {}), ("other", {53: 1e-12, 70: 0.5})):
        record(
            tmp_path / name, range(80), {step: {"loss": losses[step] + changed.get(step, 0.0)} for step in range(80)}
        )
    one, other = (Run(tmp_path / name).steps for name in ("one", "other"))
    columns = [column for column in one if column != "wall_time"]
    same = [
        all(one[column][at] == other[column][at] or (one[column][at] != one[column][at]) for column in columns)
        for at in range(80)
    ]
    assert Panel(tmp_path).json("apart", a="one", b="other")["first_step"] == same.index(False) == 53
