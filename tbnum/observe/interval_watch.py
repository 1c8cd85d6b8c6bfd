"""Watches of modules that measure at intervals: a row of numbers for each tensor, in one copy a step."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from tbnum.observe.module_watch import ModuleWatch
from tbnum.observe.transfer import Transfer

__all__ = ["IntervalWatch", "IntervalWatches", "ModuleTable"]


@dataclass(frozen=True)
class ModuleTable:
    """What was measured of some tensors of modules in one step: `columns`, each (N,) float64, by the tensors' names."""

    step: int
    names: tuple[str, ...]
    columns: dict[str, np.ndarray]


class IntervalWatch(ModuleWatch):
    """Hooks on the modules that it chose, at every `interval`-th step; costs nothing at the others.

    Raises:
        ValueError: an interval below 1.
    """

    def __init__(self, models: Mapping[str, nn.Module], interval: int) -> None:
        super().__init__(models)
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ValueError(f"interval is {interval!r}; it must be a whole number of steps, at least 1.")
        self._interval = interval
        self._step: int | None = None
        self._seen: list[tuple[int, int]] = []  # place in `names`, number of elements
        self._measured: list[Tensor] = []
        self._landing: deque[tuple[int, list[tuple[int, int]], Transfer]] = deque()

    names: tuple[str, ...]
    """Of the tensors that are measured."""

    def step_begins(self, step: int) -> None:
        """The step before has closed; `step` is watched if it is its turn. To be called between any two steps."""
        if self._step is not None:
            if self._seen:
                self._landing.append((self._step, self._seen, Transfer(self._measured)))
            self.stop()
        if step % self._interval == 0:
            self._step = step
            self._hooks.attach(self._watched())

    def stop(self) -> None:
        """Take every hook off; what was seen of a step that has not closed is dropped."""
        self._detach()
        self._step = None
        self._seen, self._measured = [], []

    def landed(self, wait: bool = False) -> list[ModuleTable]:
        """Of the steps whose values have landed since the last call, in order. With `wait`, of all."""
        found = []
        while self._landing and (wait or self._landing[0][2].ready()):
            step, seen, transfer = self._landing.popleft()
            found.append(ModuleTable(step, self.names, self._columns(seen, transfer.arrays())))
        return found

    def _watched(self) -> list[tuple[str, nn.Module]]:
        """The modules to hook, by name."""
        raise NotImplementedError

    def _columns(self, seen: Sequence[tuple[int, int]], rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Of the measurements of a step, in their order: columns over `names`, NaN where one has none."""
        raise NotImplementedError

    def _keep(self, place: int, elements: int, values: Tensor) -> None:
        self._seen.append((place, elements))
        self._measured.append(values)


class IntervalWatches:
    """Several of them as one."""

    is_awake = True  # each step may be one to look at, or the one after

    def __init__(self, watches: Sequence[IntervalWatch]) -> None:
        self._watches = tuple(watches)

    def step_begins(self, step: int) -> None:
        for watch in self._watches:
            watch.step_begins(step)

    def stop(self) -> None:
        for watch in self._watches:
            watch.stop()

    def landed(self, wait: bool = False) -> list[ModuleTable]:
        return [table for watch in self._watches for table in watch.landed(wait)]

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for watch in self._watches:
                stack.enter_context(watch.muted())
            yield
