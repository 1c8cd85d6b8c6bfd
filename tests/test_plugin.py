from __future__ import annotations

import contextlib
import gzip
import io
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import types
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.plugins import base_plugin
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter

import tbnum
from tbnum import export
from tbnum.explain.repeats import setting
from tbnum.log.schema import Event, step_columns
from tbnum.log.writer import LogWriter
from tensorboard_plugin_tbnum import decimate, http, impl, loader, plugin, runs
from tensorboard_plugin_tbnum.event_versions import EventVersions
from tests.recorded import META, START, append, column, open_log, record, row, skip, tables_of
from tests.routes import BASE, Panel, unpack

INF, NAN = float("inf"), float("nan")

VALUES = {
    20: {"loss": NAN, "grad_norm": INF, "nonfinite_tensors": 2.0, "skipped": True, "loss_scale": 65536.0},
    21: {"loss": INF, "loss_scale": 32768.0},
    30: {"loss": NAN, "micro_batches": NAN},  # unknown, not NaN
    40: {"grad_norm": NAN, "nonfinite_tensors": 1.0, "max_norm": INF},
    41: {"grad_norm": 1e300, "lr": 1e-300},
}


@pytest.fixture(autouse=True)
def no_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """One scan at the start in place of a thread, which would outlive its test."""
    monkeypatch.setattr(runs.RunTable, "start", runs.RunTable.scan)


@pytest.fixture
def panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Panel:
    monkeypatch.setattr(runs, "FRESH_SECONDS", -1.0)
    events = [
        skip(20, loss=NAN, nonfinite_names=["head.weight"]),
        Event(30, START + 3, "annotation", data={"text": "<script>alert(1)</script>"}),
    ]
    tables = tables_of(range(0, 100, 10), ("a.weight", "b.bias"))
    record(tmp_path / "gpt" / "seed1", range(100), VALUES, events=events, tables=tables)
    return Panel(tmp_path)


RUN = "gpt/seed1"


# What TensorBoard sees of the plugin.


def test_the_plugin_is_a_module_tab_called_numerics(panel):
    listing = panel.client.get("/data/plugins_listing").json
    assert listing["tbnum"]["tab_name"] == "Numerics"
    assert listing["tbnum"]["enabled"] is True
    assert listing["tbnum"]["loading_mechanism"] == {
        "type": "IFRAME",
        "module_path": "/data/plugin/tbnum/static/index.js",
    }
    page = panel.client.get("/data/plugin_entry.html?name=tbnum")
    assert "./static/index.js" in page.text and "Content-Security-Policy" in page.headers


def test_the_plugin_is_inactive_without_runs_and_asks_no_disk_for_it(tmp_path, monkeypatch):
    empty = Panel(tmp_path)
    for name in ("scandir", "stat", "listdir", "open"):
        monkeypatch.setattr(os, name, None)
    assert empty.plugin.is_active() is False
    monkeypatch.undo()
    record(tmp_path / "a")
    empty.plugin._runs.scan()
    assert empty.plugin.is_active() is True


def test_a_logdir_spec_is_read_from_the_flags(tmp_path):
    record(tmp_path / "x" / "a")
    flags = types.SimpleNamespace(logdir_spec=f"one:{tmp_path / 'x'}")
    made = plugin.TbnumPlugin(base_plugin.TBContext(logdir="", flags=flags))
    made._runs.scan()
    assert [row.run for row in made._runs.listing().rows] == ["one/a"]


def test_the_loader_is_light():
    code = (
        "import sys, tensorboard_plugin_tbnum.loader as l; l.TbnumLoader();"
        "print([m for m in ('torch', 'tbnum', 'tensorboard_plugin_tbnum.plugin') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_plugin_loads_no_torch():
    code = "import sys, tensorboard_plugin_tbnum.plugin; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_a_plugin_that_cannot_be_imported_is_left_out_with_one_line(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tensorboard_plugin_tbnum.plugin", None)
    with caplog.at_level(logging.ERROR, logger="tensorboard"):
        assert loader.TbnumLoader().load(base_plugin.TBContext(logdir="/nowhere")) is None
    (line,) = caplog.messages
    assert "no Numerics tab" in line and "pip install" in line and "\n" not in line


def test_the_loader_loads_the_plugin(tmp_path):
    assert isinstance(loader.TbnumLoader().load(base_plugin.TBContext(logdir=str(tmp_path))), plugin.TbnumPlugin)


# The routes.


def test_runs_has_a_row_for_each_run(panel, tmp_path):
    answer = panel.json("runs")
    assert answer["state"] == "ready" and answer["logdir"] == str(tmp_path) and answer["errors"] == []
    assert answer["frontend"] == "ok" or answer["frontend"].startswith("missing: ")
    assert answer["runs"] == [
        {
            "run": RUN,
            "steps": 100,
            "first_step": 0,
            "last_step": 99,
            "skipped_steps": 1,
            "last_loss_scale": 65536.0,
            "best_loss": 0.0,
            "first_wall_time": START,
            "last_wall_time": START + 9.9,
            "sessions": 1,
            "ended": "closed",
            "source": "tbnum",
            "steps_read": None,
            "optimizers": ["optimizer"],
            "problems": None,
            "findings": None,
            "seed": None,
            "setting": setting(META),
        }
    ]
    found = panel.json("findings", run=RUN)["findings"]
    (row,) = panel.json("runs")["runs"]
    assert row["problems"] == 0 and sum(row["findings"].values()) == len(found) > 0


def test_runs_has_null_for_what_is_not_known(panel, tmp_path):
    open_log(tmp_path / "begun").close()
    panel.plugin._runs.scan()
    begun = panel.json("runs")["runs"][0]
    assert begun["run"] == "begun" and begun["steps"] == 0
    assert begun["first_step"] is begun["last_loss_scale"] is begun["best_loss"] is begun["first_wall_time"] is None


def test_runs_tells_where_it_looked_when_there_is_nothing(tmp_path):
    answer = Panel(tmp_path / "missing").json("runs")
    assert answer["state"] == "ready" and answer["runs"] == []
    assert answer["logdir"] == str(tmp_path / "missing") and "missing" in answer["errors"][0]["reason"]


def test_run_has_columns_meta_and_problems(panel):
    answer = panel.json("run", run=RUN)
    assert answer["run"] == RUN and answer["steps"] == 100 and answer["problems"] == []
    assert {"step", "wall_time", "loss", "grad_norm", "skipped"} <= set(answer["columns"])
    assert answer["meta"]["scaler"]["growth_interval"] == 2000 and len(answer["meta"]["sessions"]) == 1


def test_series_has_the_values_as_they_are_where_they_fit(panel):
    header, arrays = panel.binary("series", run=RUN, columns="loss,grad_norm,loss_scale,lr,skipped", from_=15, to=45)
    steps = range(15, 46)
    assert list(arrays) == ["step", "step_last", "wall_time", "loss", "grad_norm", "loss_scale", "lr", "skipped"]
    np.testing.assert_array_equal(arrays["step"], steps)
    np.testing.assert_array_equal(arrays["step_last"], steps)
    np.testing.assert_array_equal(arrays["wall_time"], column(steps, "wall_time", VALUES))
    np.testing.assert_array_equal(arrays["loss"], column(steps, "loss", VALUES).astype(np.float32))
    assert arrays["grad_norm"].dtype == arrays["skipped"].dtype == np.float32
    assert arrays["grad_norm"][26] == np.finfo(np.float32).max and arrays["grad_norm"][5] == INF
    assert arrays["lr"][26] == 1e-300 and arrays["loss_scale"].dtype == np.float64
    assert arrays["skipped"].sum() == 1 and arrays["skipped"][5] == 1
    version = header.pop("version")
    assert isinstance(version, str) and header.pop("arrays")
    assert header == {
        "run": RUN,
        "from": 15,
        "to": 45,
        "first_step": 0,
        "last_step": 99,
        "steps": 100,
        "bucket_steps": 1,
    }


def test_series_has_exact_buckets_where_the_values_do_not_fit(panel):
    header, arrays = panel.binary("series", run=RUN, columns="loss,grad_norm,max_norm", from_=17, to=70, buckets=10)
    assert header["bucket_steps"] == 8 and header["from"] == 16 and header["to"] == 71
    edges = range(16, 72, 8)
    np.testing.assert_array_equal(arrays["step"], edges)
    np.testing.assert_array_equal(arrays["step_last"], [edge + 7 for edge in edges])
    np.testing.assert_array_equal(arrays["wall_time"], [START + edge / 10 for edge in edges])
    np.testing.assert_array_equal(arrays["loss/nan"], [1, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(arrays["loss/inf"], [1, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(arrays["loss/known"], [7, 7, 8, 8, 8, 8, 8])
    np.testing.assert_array_equal(arrays["loss/min"], edges)
    np.testing.assert_array_equal(arrays["loss/max"], [edge + 7 for edge in edges])
    of_first_two = [np.mean([16, 17, 18, 19, 22, 23]), np.mean([24, 25, 26, 27, 28, 29, 31])]
    np.testing.assert_allclose(arrays["loss/mean"], [*of_first_two, *(edge + 3.5 for edge in edges[2:])], rtol=1e-6)
    np.testing.assert_array_equal(arrays["loss/last"], [edge + 7 for edge in edges])
    np.testing.assert_array_equal(arrays["grad_norm/nan"], [0, 0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(arrays["max_norm/known"], [0, 0, 0, 1, 0, 0, 0])
    assert np.isnan(arrays["max_norm/min"]).all()
    assert arrays["loss/nan"].dtype == np.uint32 and arrays["loss/min"].dtype == np.float32


def test_series_takes_columns_with_and_without_commas_once_each(panel, tmp_path):
    log = open_log(tmp_path / "gan", groups={"gen,1": 1, "dis": 1})
    append(log, range(3), {1: {"gen,1/grad_norm": 5.0}})
    log.close()
    panel.plugin._runs.scan()
    query = "series?run=gan&columns=loss,loss_scale&column=gen,1/grad_norm&column=loss&columns=dis/skipped,"
    response = panel.client.get(BASE + query)
    _, arrays = unpack(response.data)
    assert list(arrays)[3:] == ["loss", "loss_scale", "dis/skipped", "gen,1/grad_norm"]
    assert arrays["gen,1/grad_norm"][1] == 5.0


def test_series_outside_the_run_and_of_an_empty_run_is_empty(panel, tmp_path):
    header, arrays = panel.binary("series", run=RUN, columns="loss", from_=1000, to=2000)
    assert len(arrays["loss"]) == 0 and header["last_step"] == 99 and header["from"] == 1000
    log = open_log(tmp_path / "begun")
    panel.plugin._runs.scan()
    header, arrays = panel.binary("series", run="begun", columns="step,wall_time")
    assert len(arrays["step"]) == 0 and header["first_step"] is None and header["steps"] == 0
    log.close()


def test_series_shows_new_steps_without_a_reload(panel, tmp_path):
    log = open_log(tmp_path / "live")
    panel.plugin._runs.scan()
    append(log, range(5))
    before, _ = panel.binary("series", run="live", columns="loss")
    append(log, range(5, 12))
    after, arrays = panel.binary("series", run="live", columns="loss")
    assert before["last_step"] == 4 and after["last_step"] == 11 and len(arrays["loss"]) == 12
    assert before["version"] != after["version"]
    log.close()


def test_every_event_of_fifty_thousand_steps_and_every_spike_is_there_zoomed_out(panel, tmp_path):
    at = [5, 6, 1000, 20_001, 33_333, 33_334, 49_999]
    values = {step: {"loss": 1e6 + step, "skipped": True} for step in at}
    record(tmp_path / "long", range(50_000), values, events=[skip(step) for step in at])
    panel.plugin._runs.scan()
    assert [event["step"] for event in panel.json("events", run="long")["events"] if event["kind"] == "skip"] == at
    _, arrays = panel.binary("series", run="long", columns="loss,skipped", buckets=300)
    for step in at:
        (bucket,) = np.flatnonzero((arrays["step"] <= step) & (step <= arrays["step_last"]))
        assert arrays["loss/max"][bucket] >= 1e6 and arrays["skipped/max"][bucket] == 1


def test_series_has_columns_that_follow_from_stored_ones(panel, tmp_path):
    values = {
        step: {"update_norm": step / 8, "param_norm": 2.0, "clip_coef": 0.5 if step % 4 == 0 else 1.0}
        for step in range(64)
    }
    values[32] |= {"skipped": True, "update_norm": NAN}
    record(tmp_path / "clipped", range(64), values)
    panel.plugin._runs.scan()
    assert panel.json("run", run="clipped")["derived"] == ["update_ratio", "clipped", "updates"]
    names = "update_ratio,clipped,updates,skipped"
    _, arrays = panel.binary("series", run="clipped", columns=names)
    np.testing.assert_array_equal(arrays["update_ratio"], [NAN if step == 32 else step / 16 for step in range(64)])
    np.testing.assert_array_equal(arrays["updates"], [step + (step < 32) for step in range(64)])
    assert arrays["updates"].dtype == np.float64
    assert np.isnan(arrays["clipped"][32]) and arrays["clipped"][:5].tolist() == [1, 0, 0, 0, 1]
    _, arrays = panel.binary("series", run="clipped", columns=names, buckets=5)
    np.testing.assert_allclose(arrays["clipped/mean"], [0.25, 0.25, 0.2, 0.25])
    np.testing.assert_allclose(arrays["skipped/mean"], [0, 0, 1 / 16, 0])
    assert arrays["update_ratio/max"].tolist() == [15 / 16, 31 / 16, 47 / 16, 63 / 16]


def test_derived_columns_follow_a_run_that_goes_on(panel, tmp_path):
    log = open_log(tmp_path / "live")
    panel.plugin._runs.scan()
    for stop in (3, 5, 9):
        append(log, range(len(panel.binary("series", run="live", columns="updates")[1]["step"]), stop))
        assert panel.binary("series", run="live", columns="updates")[1]["updates"].tolist() == list(range(1, stop + 1))
    log.close()


def test_each_optimizer_has_its_derived_columns(panel, tmp_path):
    log = open_log(tmp_path / "gan", groups={"gen": 1, "dis": 1})
    append(log, range(4), {2: {"gen/skipped": True, "skipped": True}})
    log.close()
    panel.plugin._runs.scan()
    assert {"gen/updates", "dis/update_ratio", "updates"} <= set(panel.json("run", run="gan")["derived"])
    _, arrays = panel.binary("series", run="gan", columns="gen/updates,dis/updates")
    assert arrays["gen/updates"].tolist() == [1, 2, 2, 3] and arrays["dis/updates"].tolist() == [1, 2, 3, 4]
    assert "updates" in panel.refused(404, "series", run="gan", columns="other/updates")


def test_events_are_written_out_once_and_alike_for_who_takes_no_gzip(panel, monkeypatch):
    plain = panel.get("events", run=RUN)
    monkeypatch.setattr(impl, "events_impl", None)
    assert panel.get("events", run=RUN).data == plain.data and "Content-Encoding" not in plain.headers
    packed = panel.get("events", {"Accept-Encoding": "gzip"}, run=RUN)
    assert gzip.decompress(packed.data) == plain.data


def test_texts_beyond_the_budget_are_forgotten_least_recently_asked_for_first():
    kept, made = http.Kept(100), []
    for tag in ("a", "b", "a", "c", "a", "b"):
        kept.get(tag, lambda tag=tag: made.append(tag) or os.urandom(20))
    assert made == ["a", "b", "c", "b"]


def test_nonfinite_has_every_measured_one_and_no_unknown(panel):
    header, arrays = panel.binary("nonfinite", run=RUN, column="loss")
    np.testing.assert_array_equal(arrays["step"], [20, 21])
    np.testing.assert_array_equal(arrays["value"], np.array([NAN, INF], np.float32))
    np.testing.assert_array_equal(arrays["wall_time"], [START + 2.0, START + 2.1])
    assert header["column"] == "loss" and (header["from"], header["to"]) == (0, 99)
    _, arrays = panel.binary("nonfinite", run=RUN, column="grad_norm", from_=21, to=99)
    np.testing.assert_array_equal(arrays["step"], [40])
    _, arrays = panel.binary("nonfinite", run=RUN, column="max_norm")
    np.testing.assert_array_equal(arrays["step"], [40])


def test_events_are_explained_and_strict_json(panel):
    answer = panel.json("events", run=RUN)
    first, note = answer["events"]
    assert first["step"] == 20 and first["kind"] == "skip" and first["optimizer"] == "optimizer"
    assert first["elapsed"] == pytest.approx(2.0) and first["wall_time"] == START + 2.0
    assert first["cause"] and first["message"] and first["remedy"]
    assert first["data"]["loss"] == "NaN" and first["data"]["grad_norm"] == "Infinity"
    assert first["data"]["nonfinite_names"] == ["head.weight"]
    assert note["data"]["text"] == "<script>alert(1)</script>"


def test_events_that_the_asker_has_are_not_told_again(panel, tmp_path):
    first = panel.json("events", run=RUN)
    assert first["unchanged"] == 0 and len(first["events"]) == 2
    again = panel.json("events", run=RUN, since=first["version"])
    head = {"version": first["version"], "headline": first["headline"]}
    assert again == {**head, "unchanged": 2, "events": []}
    log = open_log(tmp_path / "gpt" / "seed1", session="second", first_step=100)
    append(log, range(100, 140), {130: {"skipped": True}})
    log.write_event(skip(130))
    log.close()
    later = panel.json("events", run=RUN, since=first["version"])
    whole = panel.json("events", run=RUN)
    assert later["version"] == whole["version"] != first["version"]
    assert [event["step"] for event in later["events"]][-1] == 130
    assert first["events"][: later["unchanged"]] + later["events"] == whole["events"]
    assert 0 < later["unchanged"] < len(whole["events"])


def test_an_event_that_reads_otherwise_with_hindsight_is_reported_again_with_all_after_it():
    reported = EventVersions()
    assert reported.unchanged(None, "1", [b"a", b"b", b"c"]) == 0
    assert reported.unchanged("1", "2", [b"a", b"B", b"c", b"d"]) == 1
    assert reported.unchanged("1", "3", [b"a", b"b", b"c", b"d"]) == 3
    assert reported.unchanged("2", "4", [b"a"]) == 1
    assert reported.unchanged("of another process", "5", [b"a"]) == 0


def test_step_has_every_value_and_the_events_at_it(panel):
    answer = panel.json("step", run=RUN, step=20)
    assert answer["step"] == 20 and answer["values"]["loss"] == "NaN" and answer["values"]["grad_norm"] == "Infinity"
    assert answer["values"]["skipped"] is True and answer["values"]["step"] == 20
    assert answer["values"]["max_norm"] is None
    assert [event["kind"] for event in answer["events"]] == ["skip"]
    assert set(answer["values"]) == set(panel.json("run", run=RUN)["columns"])
    assert panel.json("step", run=RUN, step=30)["values"]["loss"] is None


def test_step_is_the_nearest_at_or_before(panel, tmp_path):
    assert panel.json("step", run=RUN, step=5000)["step"] == 99
    record(tmp_path / "late", range(50, 60))
    panel.plugin._runs.scan()
    assert "begins at step 50" in panel.refused(404, "step", run="late", step=49)


def test_findings_say_what_to_act_on_and_where_to_look(panel, tmp_path):
    values = {step: {"loss": NAN, "skipped": True} for step in (50, 60, 99)}
    record(tmp_path / "ill", range(100), values, events=[skip(step, loss=NAN) for step in (50, 60, 99)])
    panel.plugin._runs.scan()
    answer = panel.json("findings", run="ill")
    rules = {finding["rule"]: finding for finding in answer["findings"]}
    assert rules["skip_rate"]["steps"] == [50, 60, 99] == rules["nonfinite_loss"]["steps"]
    for finding in answer["findings"]:
        assert set(finding) == {"rule", "severity", "title", "evidence", "remedy", "steps"}
    order = [("error", "warning", "info").index(finding["severity"]) for finding in answer["findings"]]
    assert order == sorted(order)
    (group,) = answer["groups"]  # as the report has them
    assert (group["step"], group["last_step"], group["count"], answer["groups_total"]) == (50, 99, 3, 1)
    assert group["more"] == "and 2 more like it, to step 99"
    first = panel.json("events", run="ill")["events"][0]
    assert first.items() <= group.items() and first["message"]


def test_findings_are_found_once_until_the_run_changes(panel, tmp_path, monkeypatch):
    calls = []
    find = panel.plugin._runs._explainer.find
    monkeypatch.setattr(panel.plugin._runs._explainer, "find", lambda run, events: calls.append(1) or find(run, events))
    panel.json("findings", run=RUN)
    panel.json("findings", run=RUN)
    assert len(calls) == 1
    log = open_log(tmp_path / RUN, first_step=100)
    append(log, range(100, 110))
    panel.json("findings", run=RUN)
    log.close()
    assert len(calls) == 2


def test_a_rule_of_the_findings_that_fails_is_reported_as_one(panel, monkeypatch, caplog):
    monkeypatch.setattr(panel.plugin._runs._explainer, "find", lambda run, events: 1 / 0)
    (reported,) = panel.json("findings", run=RUN)["findings"]
    assert reported["rule"] == "findings_failed" and "ZeroDivisionError" in reported["evidence"]
    assert panel.json("events", run=RUN)["events"][0]["message"]


def test_settings_are_what_can_be_compared_between_runs(panel, tmp_path):
    parameters = {"a.weight": [4, 4]}
    log = open_log(
        tmp_path / "set", seed=7, config={"lr": INF, "nested": {"a": 1}}, parameters=parameters, world_size=2
    )
    log.close()
    panel.plugin._runs.scan()
    settings = panel.json("settings", run="set")["settings"]
    assert settings["seed"] == 7 and settings["config"] == {"lr": "Infinity", "nested": {"a": 1}}
    assert settings["scaler"]["growth_interval"] == 2000 and settings["optimizers"]["optimizer"]["class"] == "AdamW"
    assert settings["sessions"] == 1 and settings["world_size"] == 2
    assert not {"parameters", "session", "start_time", "ranks", "dropped", "file"} & set(settings)
    assert panel.json("settings", run=RUN)["settings"]["seed"] is None
    assert all(entry.opened is None for entry in panel.plugin._runs._entries.values())  # no step was read for it


@pytest.mark.parametrize("what", ["steps", "events"])
@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_an_export_is_what_the_command_writes(panel, tmp_path, what, form):
    response = panel.get("export", run=RUN, what=what, format=form)
    assert response.status_code == 200 and "ETag" not in response.headers
    assert response.headers["Content-Disposition"] == f'attachment; filename="gpt_seed1.{what}.{form}"'
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    stream = io.StringIO()
    run = tbnum.read(tmp_path)[RUN]
    getattr(export, f"write_{what}_{form}")(stream, run)
    assert response.get_data(as_text=True) == stream.getvalue()


def test_an_export_of_a_million_steps_is_streamed(panel, monkeypatch):
    steps = np.arange(1_000_000)
    columns = {"step": steps, "wall_time": steps / 10, "loss": np.sin(steps)}
    snapshot = runs.Snapshot("a", "1", columns, {}, [], [])
    monkeypatch.setattr(panel.plugin._runs, "snapshot", lambda *_, **__: snapshot)
    pieces = panel.client.get(BASE + "export", query_string={"run": "a"}, buffered=False).response
    first = [next(iter(pieces)) for _ in range(3)]
    assert max(map(len, first)) < 2 << 20


# Names, errors, caching.


@pytest.mark.parametrize(
    "name", ["a b&c=d#e%41+f", "<img src=x onerror=alert(1)>", "ünï/日本", "x,y;z'\"", "...", "%2e%2e"]
)
def test_run_names_are_text(tmp_path, name):
    record(tmp_path / name)
    panel = Panel(tmp_path)
    assert [row["run"] for row in panel.json("runs")["runs"]] == [name]
    assert panel.json("step", run=name, step=3)["values"]["loss"] == 3.0


ROUTES = [
    *("run", "series", "nonfinite", "events", "step"),
    *("tensors", "heatmap", "tensor", "histogram", "ridge", "findings", "health", "led", "settings", "export"),
]


@pytest.mark.parametrize("route", ROUTES)
def test_an_unknown_run_is_404_and_a_missing_one_400(panel, route):
    query = {"columns": "loss", "column": "loss", "step": 1, "name": "a"}
    for name in ("nope", "", "..", "../" + RUN, "/etc/passwd", RUN + "/", RUN.upper(), RUN + "\0", "\udcff"):
        reason = panel.refused(404, route, run=name.encode("utf-8", "surrogateescape"), **query)
        assert "no run" in reason
    assert "run is missing" in panel.refused(400, route, **query)


@pytest.mark.parametrize(
    ("route", "query", "code", "word"),
    [
        ("series", {}, 400, "columns is missing"),
        ("series", {"columns": ","}, 400, "columns is missing"),
        ("series", {"columns": "loss,nope"}, 404, "'nope'"),
        ("series", {"columns": "loss/min"}, 404, "'loss/min'"),
        ("series", {"columns": "loss", "from_": "x"}, 400, "from='x'"),
        ("series", {"columns": "loss", "to": ""}, 400, "to=''"),
        ("series", {"columns": "loss", "to": "1.5"}, 400, "to='1.5'"),
        ("series", {"columns": "loss", "to": "1e3"}, 400, "to='1e3'"),
        ("series", {"columns": "loss", "to": "NaN"}, 400, "to='NaN'"),
        ("series", {"columns": "loss", "to": "1_0"}, 400, "to='1_0'"),
        ("series", {"columns": "loss", "to": " 1"}, 400, "to=' 1'"),
        ("series", {"columns": "loss", "to": "1\n"}, 400, "to='1"),
        ("series", {"columns": "loss", "to": "\u0661"}, 400, "to='\u0661'"),
        ("series", {"columns": "loss", "to": "9" * 30}, 400, "is not a whole number"),
        ("series", {"columns": "loss", "from_": 5, "to": 4}, 400, "from=5 is greater than to=4"),
        ("series", {"columns": "loss", "buckets": 0}, 400, "buckets=0"),
        ("series", {"columns": "loss", "buckets": -3}, 400, "buckets=-3"),
        ("series", {"columns": "loss", "buckets": 10**9}, 400, "buckets=1000000000"),
        ("nonfinite", {}, 400, "column is missing"),
        ("nonfinite", {"column": "nope"}, 404, "'nope'"),
        ("nonfinite", {"column": "loss", "from_": "x"}, 400, "from='x'"),
        ("export", {"format": "xml"}, 400, "format='xml'"),
        ("export", {"what": "tensors"}, 400, "what='tensors'"),
        ("step", {}, 400, "step is missing"),
        ("step", {"step": "last"}, 400, "step='last'"),
        ("step", {"step": -1}, 404, "begins at step 0"),
    ],
)
def test_bad_questions_are_answered_with_the_reason(panel, route, query, code, word):
    assert word in panel.refused(code, route, run=RUN, **query)


def test_a_missing_parameter_is_reported_before_an_unknown_run(panel):
    assert "columns is missing" in panel.refused(400, "series", run="nope")


def test_only_reading_is_possible(panel):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        response = panel.client.open(BASE + "runs", method=method)
        assert response.status_code == 405 and response.headers["Allow"] == "GET, HEAD"
    head = panel.client.head(BASE + "events", query_string={"run": RUN})
    assert head.status_code == 200 and head.data == b""


def test_a_disk_that_refuses_is_503_with_the_reason(panel, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(panel.plugin._runs, "snapshot", fail)
    assert "Input/output error" in panel.refused(503, "events", run=RUN)


def test_a_fault_of_our_own_is_reported_in_json_and_in_the_log(panel, monkeypatch, caplog):
    monkeypatch.setattr(impl, "run_impl", lambda snapshot: 1 / 0)
    assert "ZeroDivisionError" in panel.refused(500, "run", run=RUN)
    assert "Traceback" in caplog.text and panel.get("events", run=RUN).status_code == 200


QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("runs", {}),
    ("run", {"run": RUN}),
    ("series", {"run": RUN, "columns": "loss"}),
    ("series", {"run": RUN, "columns": "loss", "buckets": 10, "from_": 3}),
    ("nonfinite", {"run": RUN, "column": "loss"}),
    ("events", {"run": RUN}),
    ("step", {"run": RUN, "step": 3}),
    ("tensors", {"run": RUN}),
    ("heatmap", {"run": RUN, "column": "grad_norm"}),
    ("heatmap", {"run": RUN, "column": "grad_norm", "depth": 1}),
    ("tensor", {"run": RUN, "name": "a.weight", "columns": "grad_norm"}),
    ("histogram", {"run": RUN}),
    ("ridge", {"run": RUN}),
    ("findings", {"run": RUN}),
    ("health", {"run": RUN}),
    ("led", {"run": RUN, "step": 40}),
    ("settings", {"run": RUN}),
    ("overlay", {"line": json.dumps([RUN]), "columns": "loss"}),
    ("overlay", {"line": json.dumps([RUN]), "columns": "loss", "x": "updates"}),
]


@pytest.mark.parametrize(("route", "query"), QUESTIONS)
def test_an_answer_that_has_not_changed_is_304(panel, tmp_path, route, query, caplog):
    panel.json("run", run=RUN)
    first = panel.get(route, **query)
    assert "no-cache" in first.headers["Cache-Control"] and first.headers["X-Content-Type-Options"] == "nosniff"
    again = panel.get(route, {"If-None-Match": first.headers["ETag"]}, **query)
    assert again.status_code == 304 and again.data == b"" and again.headers["ETag"] == first.headers["ETag"]
    assert panel.get(route, {"If-None-Match": '"other"'}, **query).status_code == 200
    log = open_log(tmp_path / RUN, first_step=100)
    append(log, range(100, 110))
    panel.plugin._runs.scan()
    changed = panel.get(route, {"If-None-Match": first.headers["ETag"]}, **query)
    assert changed.status_code == 200
    log.close()
    assert not caplog.messages  # TensorBoard complains of responses without a content type


def test_no_two_questions_share_an_etag(panel):
    tags = {panel.get(route, **query).headers["ETag"] for route, query in QUESTIONS}
    tags |= {panel.get("series", run=RUN, columns=names).headers["ETag"] for names in ("loss,lr", "lr,loss", "lr")}
    assert len(tags) == len(QUESTIONS) + 3


def test_binary_answers_stay_as_they_are_and_text_is_compressed_for_who_takes_it(panel):
    gzip = {"Accept-Encoding": "gzip"}
    plain = panel.get("series", run=RUN, columns="loss")
    asked = panel.get("series", gzip, run=RUN, columns="loss")
    assert asked.data == plain.data and "Content-Encoding" not in asked.headers
    assert not asked.headers["ETag"].startswith("W/")
    text = panel.get("events", gzip, run=RUN)
    assert text.headers["Content-Encoding"] == "gzip" and text.headers["Vary"] == "Accept-Encoding"
    assert text.headers["ETag"].startswith("W/")  # a strong one would have to differ from that of the plain text


FUZZ = 10_000 if os.environ.get("TBNUM_FUZZ") else 1_000


FAR = (0, 1, 2**31, 2**53, 2**62, 2**63 - 1)


def strange_runs(folder: Path) -> list[str]:
    """Runs of every kind, with what no training writes: their names."""
    log = open_log(folder / "far")
    for step in FAR:
        log.append_step(row(log.columns, step))
    log.write_event(skip(FAR[-1]))
    log.close()
    for rank in range(2):
        log = LogWriter(folder / "ranks", columns=step_columns({"optimizer": 1}), meta={"world_size": 2}, rank=rank)
        append(log, range(40), VALUES)
        log.close()
    for name, steps in (("plain/far", FAR), ("plain/both", (-(2**63), -1, 0, 2**63 - 1))):
        with SummaryWriter(str(folder / name)) as writer:
            for step in steps:
                writer.add_scalar("loss_scale", 4.0, step)
    (folder / "noise").mkdir()
    (folder / "noise" / "1700000000000.h.1.tbnum").write_bytes(b"")
    (folder / "noise" / "1700000000001.h.1.tbnum").write_bytes(random.Random(2).randbytes(999))
    return ["far", "ranks", "plain/far", "plain/both", "noise"]


def test_malformed_requests_get_an_answer_below_500_and_leave_nothing(panel, tmp_path):
    dice = random.Random(0)
    names = [RUN, *strange_runs(tmp_path)]
    panel.plugin._runs.scan()
    pieces = [
        *(
            "run",
            "columns",
            "column",
            "from",
            "to",
            "buckets",
            "step",
            "name",
            "depth",
            "rows",
            "source",
            "what",
            "format",
            "x",
            "since",
            "a.weight",
            "gradient",
            RUN,
            "loss",
            "grad_norm",
            "..",
            "/",
            "%",
            "%zz",
        ),
        *(
            "%00",
            "%ff",
            "%c3%28",
            "&",
            "=",
            ",",
            ";",
            "+",
            "-",
            "0",
            "1",
            "99",
            "-1",
            "1e9",
            "9" * 18,
            "9" * 19,
            "9" * 400,
            "nan",
        ),
        *("inf", "null", "true", "[]", "{}", "<script>", "'", '"', "\\", "é", "日", " ", "#", "?", "a" * 3000),
    ]
    routes = [
        "runs",
        *ROUTES,
        "overlay",
        "static/index.js",
        "static/",
        "static",
        "",
        "nope",
    ]
    seen = set()
    before, threads = len(panel.plugin._runs._entries), threading.active_count()
    for _ in range(FUZZ):
        pairs = []
        for _ in range(dice.randrange(6)):
            name = dice.choice(pieces[:14])
            value = "".join(dice.choice(pieces) for _ in range(dice.randrange(3)))
            pairs.append(f"{name}={value if dice.random() < 0.5 else urllib.parse.quote(value)}")
        if dice.random() < 0.5:
            pairs.append(f"run={dice.choice(names)}")
        if dice.random() < 0.3:
            pairs.append(f"buckets={dice.choice((1, 2, 5))}")
        if dice.random() < 0.3:
            pairs += [
                "column=grad_norm",
                "columns=grad_norm",
                "name=a.weight",
                f"line={urllib.parse.quote(json.dumps(dice.sample(names, 2)))}",
            ]
        route = dice.choice(routes) + (dice.choice(pieces) if dice.random() < 0.1 else "")
        response = panel.client.get(BASE + urllib.parse.quote(route), query_string="&".join(pairs))
        seen.add(response.status_code)
        assert response.status_code < 500
        if response.status_code in (400, 404) and response.mimetype == "application/json":
            assert set(response.json) == {"error"}
    assert {200, 400, 404} <= seen
    for name in names[:-1]:  # whose rules stumble over nothing
        assert "findings_failed" not in {finding["rule"] for finding in panel.json("findings", run=name)["findings"]}
    assert len(panel.plugin._runs._entries) == before and threading.active_count() <= threads


def test_damaged_logs_are_answered_with_what_is_sound(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "FRESH_SECONDS", -1.0)
    dice = random.Random(1)
    tables = tables_of(range(0, 300, 3), ("a.weight", "b.bias"))
    record(tmp_path / "whole" / "run", range(300), VALUES, events=[skip(20), skip(21)], tables=tables)
    sources = list((tmp_path / "whole" / "run").glob("*.tbnum"))
    assert len(sources) == 2
    for index in range(40):
        folder = tmp_path / "damaged" / str(index)
        folder.mkdir(parents=True)
        for source in sources:
            damaged = bytearray(source.read_bytes())
            for _ in range(dice.randrange(1, 30)):
                damaged[dice.randrange(len(damaged))] = dice.randrange(256)
            if index % 3 == 0:
                del damaged[dice.randrange(len(damaged)) :]
            (folder / source.name).write_bytes(damaged)
    panel = Panel(tmp_path / "damaged")
    rows = panel.json("runs")["runs"]
    assert len(rows) == 40
    for name in [each["run"] for each in rows]:
        for route, query in QUESTIONS[1:]:
            assert panel.get(route, **{**query, "run": name}).status_code in (200, 404)
    line = json.dumps([row["run"] for row in rows])
    for x in ("step", "time", "updates"):
        panel.binary("overlay", line=line, columns="loss,skipped,headroom/float16", x=x, buckets=20)


def test_a_log_of_other_columns_is_answered_too(panel, tmp_path):
    log = LogWriter(tmp_path / "other", columns=("step", "loss"), meta={})
    log.write_event(skip(0))
    log.append_step((0, 1.0))
    log.append_step((1, 2.0))
    log.close()
    panel.plugin._runs.scan()
    _, arrays = panel.binary("series", run="other", columns="loss")
    np.testing.assert_array_equal(arrays["loss"], [1.0, 2.0])
    assert np.isnan(arrays["wall_time"]).all()
    for x, expected in (("time", [0]), ("updates", [1, 2])):
        _, arrays = panel.binary("overlay", line=json.dumps(["other"]), columns="loss", x=x)
        assert arrays["0/x"].tolist() == expected
    assert panel.json("events", run="other")["events"][0]["elapsed"] is None
    assert panel.json("step", run="other", step=1)["values"] == {"step": 1, "loss": 2.0, "wall_time": None}


# The panel's files.


@pytest.fixture
def static(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "package" / "static"
    folder.mkdir(parents=True)
    (folder / "index.js").write_text("export function render() {}\n")
    (folder / "panel.css").write_text("body { color: red }\n")
    (folder / "index.js.map").write_text("{}\n")
    (folder / "built-from.sha256").write_text("0\n")
    (folder.parent / "plugin.py").write_text("secret\n")
    monkeypatch.setattr(plugin, "STATIC", folder)
    return folder


def test_the_panels_files_are_served_as_what_they_are(panel, static):
    script = panel.get("static/index.js")
    assert script.status_code == 200 and script.data == (static / "index.js").read_bytes()
    assert script.headers["Content-Type"].startswith("text/javascript")
    assert script.headers["X-Content-Type-Options"] == "nosniff"
    assert panel.get("static/panel.css").mimetype == "text/css"
    assert panel.get("static/index.js.map").mimetype == "application/json"
    assert panel.get("static/index.js", {"If-None-Match": script.headers["ETag"]}).status_code == 304
    (static / "index.js").write_text("export const changed = 1;\n")
    assert panel.get("static/index.js", {"If-None-Match": script.headers["ETag"]}).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        *("../plugin.py", "..%2fplugin.py", "%2e%2e/plugin.py", "static/../index.js", "/etc/passwd", "//etc/passwd"),
        *(
            "built-from.sha256",
            "nope.js",
            "index.js%00",
            "INDEX.JS",
            "./index.js",
            "..\\plugin.py",
            "static/index.js",
        ),
    ],
)
def test_nothing_but_the_panels_files_is_served(panel, static, name):
    response = panel.client.get(BASE + "static/" + name)
    assert response.status_code == 404 and b"secret" not in response.data


def test_a_panel_that_was_not_built_says_so_in_place_of_an_empty_tab(panel, static):
    assert panel.json("runs")["frontend"] == "ok"
    shutil.rmtree(static)
    state = panel.json("runs")["frontend"]
    assert state.startswith("missing: index.js") and "make frontend" in state and "pip install" in state
    script = panel.get("static/index.js")
    assert script.mimetype == "text/javascript" and b"export function render()" in script.data
    assert b"make frontend" in script.data and b"pip install" in script.data
    assert panel.client.get(BASE + "static/style.css").status_code == 404


# Speed.


def test_a_million_steps_are_answered_quickly(panel):
    steps = np.arange(1_000_000)
    noise = np.random.default_rng(0).normal(size=(8, len(steps)))
    names = ["loss", "grad_norm", "grad_norm_clipped", "clip_coef", "max_norm", "loss_scale", "lr", "param_norm"]
    columns = {"step": steps, "wall_time": steps / 10, **dict(zip(names, noise, strict=True))}
    snapshot = runs.Snapshot("a", "1", columns, {}, [], [])

    def once() -> float:
        started = time.thread_time()  # of this thread alone: other people's load is not our business
        plugin.series_impl(snapshot, list(columns), None, None, 2048)
        return time.thread_time() - started

    assert min(once() for _ in range(3)) < 0.1


# The real TensorBoard.


@contextlib.contextmanager
def tensorboard(logdir: Path, *flags: str, python: Sequence[str] = (sys.executable,)) -> Iterator[str]:
    """TensorBoard on a free port of this machine; its address. `python` begins its command."""
    command = [*python, "-m", "tensorboard.main", f"--logdir={logdir}", "--host=127.0.0.1", "--port=0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        said = []
        address = None
        for line in process.stderr:
            said.append(line)
            found = re.search(r"at (http://127\.0\.0\.1:\d+)(/\S*)?/ ", line)
            if found:
                address = found[1] + (found[2] or "")
                break
        assert address, "".join(said)
        drain = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)
        drain.start()
        yield address
        assert "Traceback" not in "".join(said) and "Content-Type is required" not in "".join(said), "".join(said)
    finally:
        process.terminate()
        process.wait(1200)


def fetch(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=1200) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize("flags", [(), ("--load_fast=false",), ("--path_prefix=/a/static/b",)])
def test_tensorboard_serves_the_panel_beside_its_own_scalars(tmp_path, frontend, flags):
    from tensorboard.compat.proto import event_pb2, summary_pb2

    log = open_log(tmp_path / "run")
    log.write_event(skip(3))
    append(log, range(50))
    writer = EventFileWriter(str(tmp_path / "run"))
    for step in range(5):
        value = summary_pb2.Summary.Value(tag="train/loss", simple_value=float(step))
        writer.add_event(event_pb2.Event(step=step, wall_time=START, summary=summary_pb2.Summary(value=[value])))
    writer.close()

    with tensorboard(tmp_path, *flags) as address:
        data = address + "/data"
        deadline = time.monotonic() + 1200
        listing = rows = None
        while time.monotonic() < deadline:
            listing = json.loads(fetch(f"{data}/plugins_listing")[1])
            rows = json.loads(fetch(f"{data}/plugin/tbnum/runs")[1])["runs"]
            if listing["tbnum"]["enabled"] and listing["scalars"]["enabled"] and rows and rows[0]["steps"]:
                break
            time.sleep(0.1)
        assert listing["tbnum"]["enabled"] and listing["tbnum"]["tab_name"] == "Numerics"
        assert listing["tbnum"]["loading_mechanism"]["module_path"].endswith("/data/plugin/tbnum/static/index.js")
        assert rows[0]["run"] == "run" and rows[0]["steps"] == 50

        status, body = fetch(f"{data}/plugin/tbnum/series?run=run&columns=loss,grad_norm")
        header, arrays = unpack(body)
        assert status == 200 and header["last_step"] == 49
        np.testing.assert_array_equal(arrays["loss"], np.arange(50))
        events = json.loads(fetch(f"{data}/plugin/tbnum/events?run=run")[1])["events"]
        assert [event["step"] for event in events] == [3] and events[0]["message"]
        assert fetch(f"{data}/plugin/tbnum/series?run=nope&columns=loss")[0] == 404
        assert frontend.samefile(plugin.STATIC)  # an editable install has it behind a link
        assert {"index.js", "index.js.map", "style.css"} <= plugin.static_files().keys()
        for name in plugin.static_files():
            assert fetch(f"{data}/plugin/tbnum/static/{name}")[0] == 200

        # An unchanged answer, and then a live step within a few seconds.
        with urllib.request.urlopen(f"{data}/plugin/tbnum/events?run=run", timeout=1200) as response:
            tag = response.headers["ETag"]
        assert fetch(f"{data}/plugin/tbnum/events?run=run", {"If-None-Match": tag})[0] == 304
        append(log, range(50, 60))
        deadline = time.monotonic() + 1200
        while unpack(fetch(f"{data}/plugin/tbnum/series?run=run&columns=loss")[1])[0]["last_step"] != 59:
            assert time.monotonic() < deadline
            time.sleep(0.2)

        # TensorBoard's own data is as without us.
        deadline = time.monotonic() + 1200
        tags: dict[str, Any] = {}
        while "run" not in tags and time.monotonic() < deadline:
            tags = json.loads(fetch(f"{data}/plugin/scalars/tags")[1])
            time.sleep(0.1)
        assert list(tags["run"]) == ["train/loss"]
        scalars = json.loads(fetch(f"{data}/plugin/scalars/scalars?run=run&tag=train%2Floss")[1])
        assert [point[2] for point in scalars] == [0, 1, 2, 3, 4]
    log.close()


def test_decimate_and_plugin_agree_on_what_a_measured_nan_is(panel):
    snapshot = panel.plugin._runs.snapshot(RUN)
    _, arrays = panel.binary("series", run=RUN, columns="loss", buckets=1)
    marks = decimate.nonfinite(snapshot.steps["loss"], 0, 100, decimate.measured("loss", snapshot.steps))
    assert arrays["loss/nan"].sum() + arrays["loss/inf"].sum() == len(marks)
