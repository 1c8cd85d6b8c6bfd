"""`on_event`: what a callback raises ends neither the training nor the other callbacks; what the user ends, ends."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import tbnum
from tbnum.callbacks import Callbacks
from tbnum.log.schema import Event


def event(step: int) -> Event:
    return Event(step, 0.0, "skip")


def test_each_callback_that_fails_is_reported_once_and_all_are_called_with_every_event() -> None:
    calls: list[tuple[str, int]] = []

    def first(event: Event) -> None:
        calls.append(("first", event.step))
        raise KeyError("mine")

    def second(event: Event) -> None:
        calls.append(("second", event.step))
        raise ValueError("mine as well")

    callbacks = Callbacks()
    callbacks.add(first)
    callbacks.add(second)
    callbacks.add(lambda event: calls.append(("third", event.step)))
    with pytest.warns(RuntimeWarning) as caught:
        callbacks.call(event(0))
        callbacks.call(event(1))
    assert calls == [(name, step) for step in (0, 1) for name in ("first", "second", "third")]
    messages = [str(each.message) for each in caught]
    assert len(messages) == 2
    assert "first, raised KeyError" in messages[0] and "second, raised ValueError: mine as well" in messages[1]
    assert {each.filename for each in caught} == {__file__}


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_training_reaches_the_user_and_silences_no_callback(ends: type[BaseException]) -> None:
    calls: list[tuple[str, int]] = []

    def interrupted(event: Event) -> None:
        if event.step == 0:
            raise ends
        calls.append(("interrupted", event.step))

    callbacks = Callbacks()
    callbacks.add(interrupted)
    callbacks.add(lambda event: calls.append(("other", event.step)))
    with pytest.raises(ends):
        callbacks.call(event(0))
    callbacks.call(event(1))
    assert calls == [("other", 0), ("interrupted", 1), ("other", 1)]


def test_a_callback_that_is_interrupted_in_the_loop_hears_of_later_events_and_the_record_is_whole(
    tmp_path: Path,
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = tbnum.wrap(optimizer, model=model, logdir=tmp_path)
    heard: list[int] = []

    def callback(event: Event) -> None:
        heard.append(event.step)
        if len(heard) == 1:
            raise KeyboardInterrupt

    monitor.on_event(callback)

    def step(factor: float) -> None:
        (model(torch.ones(1, 2)).sum() * factor).backward()
        optimizer.step()
        optimizer.zero_grad()

    step(1.0)
    with pytest.raises(KeyboardInterrupt):
        monitor.annotate("first")
    monitor.annotate("second")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(1.0)
    monitor.close()
    run = tbnum.read(tmp_path)["."]
    assert heard == [1, 1]
    assert [each.data["text"] for each in run.events] == ["first", "second"]
    assert len(run.steps["step"]) == 2
