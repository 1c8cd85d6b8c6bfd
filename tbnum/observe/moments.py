"""What an optimizer keeps of its parameters, and whether somebody threw it away or set it to zero between two steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tbnum.observe.transfer import Number, Transfer, hold, tensors_in

__all__ = ["Moments"]

LOOKS = 16  # at moments that were written to and are as they should be, after which that is the loop's habit

_Mark = tuple[str, int, int]  # name in the state, id, version


class _Look(NamedTuple):
    names: list[str]
    largest: list[Number]  # magnitudes
    transfer: Transfer


class Moments:
    """Of one optimizer. Looks at the state of one parameter alone: two or three microseconds a step, and no sync.

    Values are looked at only where somebody wrote to them since the last step, or put others in their place.
    """

    def __init__(self) -> None:
        self._parameter = 0  # id of the one that is looked at
        self._marks: list[_Mark] = []  # of what the last step left
        self._looks: deque[_Look] = deque()
        self._habit = 0

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """What the step has left."""
        self._parameter, self._marks = _first(optimizer.state)

    def lost(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """Before a step: the names of moments that the step before has left, and that are gone or zero now.

        Where a device has them they are known some steps later.
        """
        if self._marks and _first(optimizer.state) != (self._parameter, self._marks):
            gone = self._look(optimizer)
            if gone:
                return gone
        return self._arrived() if self._looks else []

    def _look(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """They were written to, or are others. Names of those that are gone."""
        every = (each for group in optimizer.param_groups for each in group["params"])
        parameter = next((each for each in every if id(each) == self._parameter), None)
        if parameter is None:
            return []  # it is gone itself
        kept = optimizer.state.get(parameter)
        now = kept if isinstance(kept, Mapping) else {}
        gone = [name for name, _, _ in self._marks if not isinstance(now.get(name), Tensor)]
        if gone or self._habit >= LOOKS:
            return gone
        self._habit += 1
        marks = set(_marks(now))
        names = [name for name, *mark in self._marks if (name, *mark) not in marks and name != "step"]
        names = [name for name in names if now[name].shape == parameter.shape]
        largest = [hold(_largest(now[name])) for name in names]
        self._looks.append(_Look(names, largest, Transfer(tensors_in(largest))))
        return []

    def _arrived(self) -> list[str]:
        """Of moments whose values have arrived: those that are zero."""
        found: list[str] = []
        while self._looks and self._looks[0].transfer.ready():
            look = self._looks.popleft()
            values = look.transfer.numbers(look.largest)
            found += [name for name, value in zip(look.names, values, strict=True) if value == 0]
        return found


def _first(state: Any) -> tuple[int, list[_Mark]]:
    """The id of the first parameter that has a state, and the marks of that."""
    if isinstance(state, Mapping):
        for parameter, kept in state.items():
            if kept and isinstance(kept, Mapping):
                return id(parameter), _marks(kept)
    return 0, []


def _marks(kept: Mapping[str, Any]) -> list[_Mark]:
    try:
        return [(name, id(value), value._version) for name, value in kept.items() if isinstance(value, Tensor)]
    except RuntimeError:  # one that was made in inference mode has no version
        return []


@torch.no_grad()
def _largest(value: Tensor) -> Tensor:
    """Magnitude: one pass. 1 where there is no element to look at."""
    value = getattr(value, "_local_tensor", value).detach()
    if value.layout is not torch.strided or not value.numel():
        return torch.ones(())
    return value.abs().amax().float()
