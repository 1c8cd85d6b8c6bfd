"""Whatever stands in a record's facts, report and check end, and what cannot be worked out is named."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

import tbnum
import tbnum.cli
from tbnum.log.schema import EVENT_KINDS, Event
from tests.recorded import record

JUNK: list[Any] = [math.nan, math.inf, -math.inf, -1, 0, 1e308, 2**63, "text", None, [], [1, "a", None], {}, {"a": 1}]
JUNK += [True, -2.5, 10**30, "\x1b[31m"]
FACTS = [
    "loss",
    "loss_scale",
    "old_scale",
    "new_scale",
    "grad_norm",
    "nonfinite_tensors",
    "tensors",
    "losses",
    "micro_batches",
    "nan",
    "inf",
    "largest_finite",
    "nonfinite_names",
    "params_nonfinite",
    "from_step",
    "how",
    "names",
    "max_norm",
    "at_step",
    "run",
    "why",
    "by_step",
    "after_step",
    "buffers",
    "backwards",
    "samples",
    "at_least",
    "halvings",
    "within",
    "inferred",
    "dropped",
    "text",
    "injected",
    "peak_step",
    "peak",
    "usual",
    "back_after",
    "lasting",
    "where",
    "dtype",
    "parameters",
    "updates",
    "expected_updates",
    "old_lr",
    "new_lr",
    "rank",
    "ranks",
    "evidence",
    "error",
    "anomaly",
    "last_step",
    "failed_step",
    "skips",
    "loss_follows_scale",
    "same_folder",
    "clipped",
    "scaler",
    "reason",
]
COLUMNS = [
    "loss",
    "loss_scale",
    "grad_norm",
    "nonfinite_tensors",
    "lr",
    "growth_tracker",
    "clip_coef",
    "max_norm",
    "param_norm",
    "update_norm",
    "micro_batches",
]
VALUES = [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308, 2.0**127]


def damaged(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    steps = chance.choice([1, 5, 80, 150])
    kinds = list(EVENT_KINDS)
    events = []
    for step in sorted(chance.randrange(steps) for _ in range(chance.randrange(1, 25))):
        data = {fact: chance.choice(JUNK) for fact in chance.sample(FACTS, chance.randrange(25))}
        events.append(Event(step, 1.7e9, chance.choice(kinds), optimizer=chance.choice([None, "x"]), data=data))
    values = {
        step: {column: chance.choice(VALUES) for column in chance.sample(COLUMNS, 3)}
        for step in range(steps)
        if chance.random() < 0.4
    }
    settings = {name: chance.choice(JUNK) for name in ("growth_interval", "growth_factor", "backoff_factor")}
    meta = {"scaler": chance.choice([settings, *JUNK]), "optimizers": chance.choice([{}, "text", {"a": {"groups": 3}}])}
    record(folder, range(steps), values, events=events, **meta)


@pytest.mark.parametrize("seed", range(16))
def test_a_report_ends_whatever_the_facts_are(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    damaged(tmp_path / "run", seed)
    assert tbnum.cli.main(["report", str(tmp_path)]) == 0
    assert tbnum.cli.main(["check", "--fail-on", "warning", str(tmp_path)]) in (0, 1)
    (run,) = tbnum.read(tmp_path).values()
    assert all(event.message is not None for event in run.events)
    left_out = [event for event in run.events if event.kind == "left_out"]
    left_out += [finding for finding in run.findings if finding.rule in ("left_out", "findings_left_out")]
    assert all("(" in (each.message if isinstance(each, Event) else each.evidence) for each in left_out)
