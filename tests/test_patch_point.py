"""tbnum's functions in torch's places, beside those that others put there: nobody's are lost, in whatever order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as bound_early

import tbnum

pytestmark = pytest.mark.usefixtures("one_thread", "torch_s_own_afterwards")


@pytest.fixture
def torch_s_own_afterwards() -> Iterator[None]:
    before = torch.autograd.backward
    yield
    torch.autograd.backward = before


class Loop:
    def __init__(self, logdir: Path) -> None:
        self.logdir = logdir
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.monitor = tbnum.wrap(self.optimizer, model=self.model, logdir=logdir)
        self.losses: list[float] = []

    def step(self, clip: Callable[..., Any] | None = None) -> None:
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(3, 2)).square().mean()
        loss.backward()
        if clip is not None:
            clip(self.model.parameters(), 0.01)
        self.optimizer.step()
        self.losses.append(loss.item())

    def recorded(self, name: str = "loss") -> np.ndarray:
        self.monitor.close()
        return tbnum.read(self.logdir)["."].steps[name]


class Other:
    """What another library does: a wrapper around what it finds, which it takes off again."""

    def __init__(self) -> None:
        self.calls = 0
        self.before = torch.autograd.backward

        @functools.wraps(self.before)
        def backward(*args: Any, **kwargs: Any) -> None:
            self.calls += 1
            self.before(*args, **kwargs)

        self.wrapper = torch.autograd.backward = backward

    @property
    def is_there(self) -> bool:
        return torch.autograd.backward is self.wrapper

    def leave(self) -> None:
        torch.autograd.backward = self.before


def test_another_s_wrapper_around_ours_outlives_the_monitor(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.step()
    other = Other()
    loop.step()
    assert loop.recorded().tolist() == pytest.approx(loop.losses)
    assert other.is_there
    loop.step()
    assert other.calls == 2


def test_what_stayed_beneath_another_s_goes_with_the_next_monitor(tmp_path: Path) -> None:
    torch_s = torch.autograd.backward
    first = Loop(tmp_path / "first")
    other = Other()
    first.monitor.close()
    second = Loop(tmp_path / "second")
    second.step()
    assert second.recorded().tolist() == second.losses
    assert other.is_there
    other.leave()
    Loop(tmp_path / "third").monitor.close()
    assert torch.autograd.backward is torch_s


@pytest.mark.parametrize("first_closed", [0, 1])
def test_two_monitors_and_another_between_them_may_end_in_any_order(first_closed: int, tmp_path: Path) -> None:
    first = Loop(tmp_path / "0")
    other = Other()
    loops = [first, Loop(tmp_path / "1")]
    for _ in range(2):
        for loop in loops:
            loop.step()
    loops[first_closed].monitor.close()
    last = loops[1 - first_closed]
    last.step()
    for loop in loops:
        assert loop.recorded().tolist() == loop.losses
    assert len(last.recorded("micro_batches")) == 3 and (last.recorded("micro_batches") == 1).all()
    assert other.is_there and other.calls == 5


def test_where_another_has_put_back_what_was_there_before_us_the_next_monitor_sees_all_the_same(tmp_path: Path) -> None:
    torch_s = torch.autograd.backward
    other = Other()
    loop = Loop(tmp_path / "first")
    other.leave()
    second = Loop(tmp_path / "second")
    for each in (loop, second):
        each.step()
        assert each.recorded().tolist() == each.losses
    assert torch.autograd.backward is torch_s


def test_a_clip_is_seen_by_whatever_name_it_was_bound_and_torch_s_own_is_there_afterwards(tmp_path: Path) -> None:
    torch_s = bound_early.__closure__[0].cell_contents  # type: ignore[attr-defined]
    loops = [Loop(tmp_path / name) for name in "ab"]
    from torch.nn.utils import clip_grad_norm_ as bound_late

    def by_name(*args: Any) -> None:
        torch.nn.utils.clip_grad_norm_(*args)

    for clip in (bound_early, bound_late, by_name):
        for loop in loops:
            loop.step(clip)
    loops[0].monitor.close()
    loops[1].step(bound_early)
    assert [len(loop.recorded()) for loop in loops] == [3, 4]
    for loop in loops:
        np.testing.assert_array_equal(loop.recorded("max_norm"), 0.01)
        np.testing.assert_array_equal(loop.recorded("clip_coef") < 1, True)
    assert bound_early.__closure__[0].cell_contents is torch_s  # type: ignore[attr-defined]
    loops[0].step(bound_late)
