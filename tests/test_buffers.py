"""Buffers that become non-finite are reported, once, and those that were meant to be so are not."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tbnum.observe.buffers import BufferWatch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
        self.register_buffer("table", torch.arange(4))


def watched(model: nn.Module, interval: int = 5) -> tuple[BufferWatch, list[dict[str, Any]], list[int]]:
    reported: list[dict[str, Any]] = []
    skips = [0]
    return BufferWatch({"": model}, interval, lambda: skips[0], reported.append), reported, skips


def test_running_statistics_that_become_nan_are_reported_once_at_the_next_interval():
    model = Model()
    watch, reported, _ = watched(model)
    for step in range(1, 30):
        if step == 12:
            model.norm(torch.full((2, 4), float("nan")))
        watch.step_begins(step)
    names = ["norm.running_mean", "norm.running_var"]
    assert reported == [{"buffers": 2, "names": names, "after_step": 9, "by_step": 14}]


def test_beside_a_skip_they_are_looked_at_at_once():
    model = Model()
    watch, reported, skips = watched(model, interval=1000)
    watch.step_begins(1)
    model.norm(torch.full((2, 4), float("inf")))
    skips[0] = 1
    watch.step_begins(2)
    watch.step_begins(3)
    assert [each["by_step"] for each in reported] == [1]


def test_the_end_is_looked_at():
    model = Model()
    watch, reported, _ = watched(model, interval=1000)
    model.norm.running_mean[0] = float("nan")
    watch.finish()
    assert [(each["buffers"], each["names"]) for each in reported] == [(1, ["norm.running_mean"])]


def test_a_mask_of_inf_and_whole_numbers_are_meant():
    model = Model()
    watch, reported, _ = watched(model)
    for step in range(1, 20):
        watch.step_begins(step)
    watch.finish()
    assert reported == []


def test_a_look_changes_nothing_and_a_model_that_is_gone_is_none():
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    versions = [buffer._version for buffer in model.buffers()]
    watch, reported, _ = watched(model)
    watch.finish()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert versions == [buffer._version for buffer in model.buffers()]
    del model
    watch.finish()
    assert reported == []
