"""The routes for how a run does, what led to a step, where two runs part, and the files of what is in view."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from tbnum.compare import diff
from tbnum.compare.words import sentence
from tbnum.explain import what_led_here
from tbnum.log.reader import Run
from tensorboard_plugin_tbnum import runs
from tests.recorded import record, skip
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


def test_files_of_a_view_hold_its_steps_and_no_others(panel: Panel) -> None:
    text = panel.get("export", run="scaled", what="steps", format="csv", from_=18, to=22).get_data(as_text=True)
    assert [row["step"] for row in csv.DictReader(io.StringIO(text))] == ["18", "19", "20", "21", "22"]
    events = panel.get("export", run="scaled", what="events", format="csv", from_=21).get_data(as_text=True)
    assert "skip" not in events
    assert "is greater" in panel.refused(400, "export", run="scaled", from_=9, to=3)
