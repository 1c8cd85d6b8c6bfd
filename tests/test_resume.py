"""Runs that are continued from a checkpoint, and runs that repeat one that was lost."""

from __future__ import annotations

import copy
import json
import math
import urllib.parse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tbnum
from tests import warm
from tests.loops import OPTIMIZERS, Half, batches, train
from tests.test_plugin import fetch, tensorboard

STEPS, SAVED_AT = 150, 100
BAD = [30, 120, 140]


class Session:
    """A process that trains: its objects, and what of a checkpoint it loads."""

    def __init__(
        self, logdir: Path | None, checkpoint: Any = None, lost: tuple[str, ...] = (), optimizer: str = "AdamW"
    ) -> None:
        torch.manual_seed(0)
        self.model = Half()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, STEPS)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=40)
        self.monitor = tbnum.wrap(self.optimizer, self.scaler, model=self.model, logdir=logdir) if logdir else None
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}
        self.parts = {**parts, "monitor": self.monitor} if self.monitor else parts
        for name, part in self.parts.items():
            if checkpoint is not None and name not in lost:
                part.load_state_dict(checkpoint[name])

    def train(self, first: int, last: int) -> Session:
        data = batches(STEPS + 1, bad=BAD)
        train(
            self.model,
            self.optimizer,
            self.scaler,
            data[first:last],
            max_norm=0.5,
            after_step=lambda step: self.scheduler.step(),
        )
        return self

    def checkpoint(self) -> dict[str, Any]:
        return copy.deepcopy({name: part.state_dict() for name, part in self.parts.items()})

    def close(self) -> None:
        if self.monitor is not None:
            self.monitor.close()


def first_session(logdir: Path, optimizer: str = "AdamW") -> dict[str, Any]:
    """Trains to `STEPS`, and gives the checkpoint of `SAVED_AT`."""
    session = Session(logdir, optimizer=optimizer).train(0, SAVED_AT)
    saved = session.checkpoint()
    session.train(SAVED_AT, STEPS).close()
    return saved


def run_of(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run


def kinds_from(run: Any, step: int) -> list[str]:
    return [event.kind for event in run.events if event.step >= step]


def test_a_correct_resume_is_one_record_without_a_finding_and_bitwise_the_uninterrupted_run(tmp_path: Path) -> None:
    saved = first_session(tmp_path / "resumed")
    resumed = Session(tmp_path / "resumed", saved).train(SAVED_AT, STEPS)
    resumed.close()
    whole = Session(tmp_path / "whole").train(0, STEPS)
    whole.close()
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    ours, theirs = run_of(tmp_path / "resumed"), run_of(tmp_path / "whole")
    for name, values in theirs.steps.items():
        if name not in ("wall_time", "param_norm", "update_norm"):
            np.testing.assert_array_equal(ours.steps[name], values, err_msg=name)
    assert [event.kind for event in ours.events if event.kind != "resume"] == [event.kind for event in theirs.events]
    (resume,) = [event for event in ours.events if event.kind == "resume"]
    assert resume.step == SAVED_AT and resume.severity == "info" and resume.data["how"] == "monitor state"
    assert ours.steps["skipped"].sum() == resumed.monitor.skipped_steps  # type: ignore[union-attr]


def test_while_the_resumed_run_is_behind_the_first_one_the_curve_has_no_step_of_the_old_future(tmp_path: Path) -> None:
    saved = first_session(tmp_path)
    resumed = Session(tmp_path, saved).train(SAVED_AT, SAVED_AT + 7)
    assert resumed.monitor is not None
    resumed.monitor.flush()
    assert run_of(tmp_path).steps["step"].tolist() == list(range(SAVED_AT + 7))
    resumed.close()
    assert tbnum.read(tmp_path, session=0)["."].steps["step"].tolist() == list(range(STEPS))


def test_tbnums_scalars_have_no_zig_zag_in_either_loader_of_tensorboard(tmp_path: Path) -> None:
    saved = first_session(tmp_path / "run")
    Session(tmp_path / "run", saved).train(SAVED_AT, SAVED_AT + 25).close()
    scalars = EventAccumulator(str(tmp_path / "run")).Reload().Scalars("tbnum/loss")
    steps = [each.step for each in scalars]
    assert steps == sorted(set(steps)) and steps[-1] < SAVED_AT + 25
    loss = run_of(tmp_path / "run").steps["loss"]
    assert [each.value for each in scalars] == pytest.approx([loss[step] for step in steps], rel=1e-6, nan_ok=True)
    query = urllib.parse.urlencode({"run": "run", "tag": "tbnum/loss"})
    for options in ((), ("--load_fast=false",)):
        with tensorboard(tmp_path, *options, python=warm.python()) as base:
            _, body = fetch(f"{base}/data/plugin/scalars/scalars?{query}")
            served = [point[1] for point in json.loads(body)]
            assert served == steps, options


@pytest.mark.parametrize(
    ("lost", "kind"),
    [("scaler", "scaler_state_lost"), ("optimizer", "optimizer_state_lost"), ("scheduler", "schedule_state_lost")],
)
@pytest.mark.parametrize("monitor", ["kept", "lost"])
def test_state_that_did_not_come_back_is_named(lost: str, kind: str, monitor: str, tmp_path: Path) -> None:
    if (lost, monitor) == ("optimizer", "lost"):
        pytest.skip("an optimizer that has not stepped and no monitor state: that is a new run")
    saved = first_session(tmp_path)
    missing = (lost, "monitor") if monitor == "lost" else (lost,)
    session = Session(tmp_path, saved, missing)
    if lost == "scheduler":  # the optimizer's state holds the learning rate as well: a loop that makes its own groups
        for group in session.optimizer.param_groups:
            group["lr"] = group["initial_lr"]
    session.train(SAVED_AT, SAVED_AT + 3).close()
    run = run_of(tmp_path)
    found = [event for event in run.events if event.kind == kind]
    assert len(found) == 1 and found[0].step == SAVED_AT and found[0].severity == "warning"
    assert found[0].message and found[0].remedy
    assert run.steps["step"].tolist() == list(range(SAVED_AT + 3))


def test_without_monitor_state_adams_own_counter_tells_the_step(tmp_path: Path) -> None:
    saved = first_session(tmp_path)
    Session(tmp_path, saved, ("monitor",)).train(SAVED_AT, SAVED_AT + 5).close()
    run = run_of(tmp_path)
    assert run.steps["step"].tolist() == list(range(SAVED_AT + 5))
    assert [event.kind for event in run.events if event.kind in ("resume", "scaler_state_lost")] == ["resume"]
    (resume,) = [event for event in run.events if event.kind == "resume"]
    assert resume.data["how"] == "counted"


def test_where_the_step_of_the_checkpoint_is_unknown_it_says_so_and_goes_on_after_the_last(tmp_path: Path) -> None:
    saved = first_session(tmp_path, "SGD")
    Session(tmp_path, saved, ("monitor",), "SGD").train(SAVED_AT, SAVED_AT + 5).close()
    run = run_of(tmp_path)
    (resume,) = [event for event in run.events if event.kind == "resume"]
    assert resume.data["how"] == "unknown" and "step is unknown" in resume.message
    assert run.steps["step"].tolist() == list(range(STEPS + 5))


def test_a_new_run_in_the_same_folder_begins_at_step_0_and_resumes_nothing(tmp_path: Path) -> None:
    first_session(tmp_path)
    Session(tmp_path).train(0, 10).close()
    run = run_of(tmp_path)
    assert run.steps["step"].tolist() == list(range(10))
    assert "resume" not in [event.kind for event in run.events]


def test_a_state_that_is_none_is_refused(tmp_path: Path) -> None:
    session = Session(tmp_path)
    assert session.monitor is not None
    for state in ({"step": 3}, None, {"version": 99, "step": 3}):
        with pytest.raises(ValueError, match="no state of a tbnum monitor"):
            session.monitor.load_state_dict(state)  # type: ignore[arg-type]
    session.close()


# -- repeats ---------------------------------------------------------------------------------------------------------


def diverging(logdir: Path, config: Any = None, lr: float = 0.1, max_norm: float | None = None) -> list[str]:
    torch.manual_seed(7)
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tbnum.wrap(optimizer, scaler, model=model, logdir=logdir, config=config):
            for x in batches(40):
                scaler.scale(model(x).mean() * math.nan).backward()
                if max_norm is not None:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    return [str(each.message) for each in caught if "tbnum" in str(each.filename) or "same seed" in str(each.message)]


def test_the_second_start_of_a_run_that_diverged_warns_and_names_it(tmp_path: Path) -> None:
    assert diverging(tmp_path / "a" / "first") == []
    (warning,) = diverging(tmp_path / "a" / "second")
    assert "'first'" in warning and "collapsed" in warning
    run = run_of(tmp_path / "a" / "second")
    assert run.events[0].kind == "repeat_of_diverged_run" and run.events[0].remedy


def test_the_same_run_again_in_the_same_folder_is_reported_when_it_begins_again(tmp_path: Path) -> None:
    assert diverging(tmp_path / "run") == []
    (warning,) = diverging(tmp_path / "run")
    assert "in this folder" in warning and "collapsed" in warning
    assert run_of(tmp_path / "run").events[0].kind == "repeat_of_diverged_run"
    assert diverging(tmp_path / "run", lr=0.2) == []
    assert diverging(tmp_path / "run") == []  # what the folder holds now is the run with another learning rate


def test_another_clip_threshold_is_another_run(tmp_path: Path) -> None:
    diverging(tmp_path / "first", max_norm=1.0)
    assert diverging(tmp_path / "tighter", max_norm=0.5) == []
    assert diverging(tmp_path / "none") == []
    assert len(diverging(tmp_path / "the same", max_norm=1.0)) == 1


def test_other_settings_or_a_healthy_run_beside_it_do_not_warn(tmp_path: Path) -> None:
    diverging(tmp_path / "first", {"max_norm": 1.0})
    assert diverging(tmp_path / "other clip", {"max_norm": 0.5}) == []
    assert diverging(tmp_path / "other lr", {"max_norm": 1.0}, lr=0.2) == []
    Session(tmp_path / "healthy").train(0, 20).close()
    session = Session(tmp_path / "healthy again")
    session.train(0, 2).close()
    assert "repeat_of_diverged_run" not in [event.kind for event in run_of(tmp_path / "healthy again").events]
