"""What matters of a run in a line, as the panel and the report say it."""

from __future__ import annotations

import numpy as np

from tbnum.explain.headline import headline
from tbnum.log.schema import Event


class Plain:
    """Columns as a record."""

    def __init__(self, meta: dict[str, str] | None = None, **columns: list[float]) -> None:
        self.steps = {name: np.array(values) for name, values in columns.items()}
        self.raw_events: list[Event] = []
        self.meta = meta or {}


def skip(step: int, optimizer: str, cause: str) -> Event:
    return Event(step, 0.0, "skip", optimizer=optimizer, cause=cause)


def test_a_step_that_two_optimizers_skipped_is_one_skip():
    record = Plain(step=list(range(100)), loss_scale=[2.0] * 100, skipped=[False] * 100)
    events = [skip(3, "gen", "scale_warmup"), skip(9, "gen", "bad_batch"), skip(9, "dis", "bad_batch")]
    assert headline(record, events) == ["2 skips (2 %): 1 scale warmup, 1 bad batch"]
    assert headline(record, []) == ["no skips"]


def test_without_a_scaler_nothing_is_said_of_skips_until_there_is_one():
    record = Plain(step=list(range(100)), loss_scale=[np.nan] * 100, skipped=[False] * 100)
    assert headline(record, []) == []
    assert headline(record, [skip(3, "optimizer", "dropped_by_loop")]) == ["1 skip (1 %): 1 dropped by loop"]


def test_of_a_scalar_log_without_a_scale_skips_are_unknown():
    assert headline(Plain({"source": "tensorboard"}, step=[0, 1]), []) == ["skips unknown"]


def test_spikes_are_counted_by_their_steps_and_where_they_began():
    record = Plain(step=list(range(10)))
    both = [Event(605, 0.0, "loss_spike"), Event(605, 0.0, "grad_norm_spike")]
    assert headline(record, both) == ["1 spike (step 605)"]
    assert headline(record, [*both, Event(1700, 0.0, "loss_spike")]) == ["2 spikes (first at step 605)"]


def test_the_share_of_clipped_updates_is_of_those_that_are_known_and_of_the_last_tenth_too():
    coefficient = [0.5] * 90 + [1.0] * 10
    record = Plain(step=list(range(100)), clip_coef=coefficient, skipped=[True] * 10 + [False] * 90)
    assert headline(record, []) == ["89 % clipped (0 % of the last 10 steps)"]
    short = Plain(step=list(range(10)), clip_coef=[0.5] * 10, skipped=[False] * 10)
    assert headline(short, []) == ["100 % clipped"]


def test_each_optimizer_has_its_own_clipping():
    columns = {"gen/clip_coef": [0.5, 1.0], "gen/skipped": [0, 0], "dis/clip_coef": [1.0, 1.0], "dis/skipped": [0, 0]}
    assert headline(Plain(step=[0, 1], **columns), []) == ["gen: 50 % clipped", "dis: 0 % clipped"]


def test_losses_that_were_measured_and_are_not_finite_are_counted():
    record = Plain(step=[0, 1, 2], loss=[1.0, np.nan, np.inf], micro_batches=[1.0, 1.0, 1.0])
    assert headline(record, [])[-1] == "2 non-finite losses"
