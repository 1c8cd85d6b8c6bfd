"""What is alive may be walked by one thread while others wrap, close and forget."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import tbnum
from tbnum.alive import Alive


class Member:
    """Has an equal in every other: members are the same by identity alone."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def busy_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_together(*works: Callable[[], None]) -> None:
    """Each in a thread of its own; raises the first exception of any."""
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_members_are_walked_in_their_order_and_gone_with_their_last_reference() -> None:
    alive: Alive[Member] = Alive()
    first, second = Member(), Member()
    alive.add(first)
    alive.add(second)
    alive.add(first)
    assert [id(each) for each in alive] == [id(first), id(second)]
    assert first in alive and Member() not in alive
    walk = iter(alive)
    alive.discard(second)
    alive.discard(second)
    assert next(walk) is first and next(walk) is second  # as it was when the walk began
    del walk, first
    gc.collect()
    assert list(alive) == []


def test_a_walk_never_meets_a_change_of_another_thread(busy_switching: None) -> None:
    alive: Alive[Member] = Alive()
    kept = [Member() for _ in range(50)]
    for member in kept:
        alive.add(member)

    def come_and_go() -> None:
        for _ in range(5000):
            member = Member()
            alive.add(member)
            if id(member) % 3:
                alive.discard(member)

    def walk() -> None:
        for _ in range(3000):
            assert len(list(alive)) >= len(kept)

    run_together(come_and_go, come_and_go, walk, walk)
    assert [id(each) for each in alive] == [id(each) for each in kept]


class Loop:
    def __init__(self) -> None:
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        self.model(torch.ones(3, 2)).square().mean().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        self.optimizer.step()
        self.optimizer.zero_grad()


def test_a_loop_trains_on_while_other_threads_wrap_and_close(tmp_path: Path, busy_switching: None) -> None:
    loop = Loop()
    monitor = tbnum.wrap(loop.optimizer, model=loop.model, logdir=tmp_path / "loop")

    def train() -> None:
        for _ in range(150):
            loop.step()

    def wrap_and_close(name: str) -> Callable[[], None]:
        def work() -> None:
            for number in range(8):
                other = Loop()
                tbnum.wrap(other.optimizer, model=other.model, logdir=tmp_path / name / str(number)).close()

        return work

    run_together(train, wrap_and_close("a"), wrap_and_close("b"))
    monitor.close()
    assert len(tbnum.read(tmp_path / "loop")["."].steps["step"]) == 150
