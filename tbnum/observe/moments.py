"""What an optimizer keeps of its parameters, and whether somebody threw it away or set it to zero between two steps."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tbnum.observe.transfer import Number, Transfer, hold, tensors_in

__all__ = ["Moments"]

_version_of = operator.attrgetter("_version")

LOOKS = 16  # at moments that were written to and are as they should be, after which that is the loop's habit


class _Marks(NamedTuple):
    """Of what the optimizer keeps of a parameter: what shows whether it is the same, and unwritten."""

    parameter: int  # its id; 0 where no parameter has a state
    names: list[str]
    ids: list[int]
    versions: list[int]


_made = tuple.__new__  # without a call in Python
_NONE = _Marks(0, [], [], [])


class _Look(NamedTuple):
    names: list[str]
    largest: list[Number]  # magnitudes
    transfer: Transfer


class Moments:
    """Of one optimizer. Looks at the state of one parameter alone: two or three microseconds a step, and no sync.

    Values are looked at only where somebody wrote to them since the last step, or put others in their place.
    """

    def __init__(self) -> None:
        self._begun = _NONE  # as the step that is under way found them
        self._left = _NONE  # as the last step left them
        self._writes: list[int] | None = None  # by how much a step raised each version; None where it put others there
        self._looks: deque[_Look] = deque()
        self._habit = 0

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """What the step has left."""
        begun, self._left = self._begun, _marks_of(optimizer)
        is_same = begun.ids == self._left.ids
        self._writes = list(map(operator.sub, self._left.versions, begun.versions)) if is_same else None

    def stepped_as_before(self) -> None:
        """The step that is under way writes to them as the one before did: if not, the next finds them touched."""
        parameter, names, ids, versions = self._begun
        if self._writes is not None:
            self._left = _made(_Marks, (parameter, names, ids, list(map(operator.add, versions, self._writes))))

    def are_as_left(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether all of `lost` is said with that, and of `stepped` with `stepped_as_before`."""
        if self._writes is None or self._looks:
            return False
        self._begun = self._left if self._is_untouched(optimizer) else _marks_of(optimizer)
        return self._begun == self._left

    def _is_untouched(self, optimizer: torch.optim.Optimizer) -> bool:
        """Where all that is kept of the first parameter are tensors, as nearly always: in a few looks."""
        owner, _, ids, versions = self._left
        try:
            parameter, kept = next(iter(optimizer.state.items()))
            kept = kept.values()
            is_same = id(parameter) == owner and list(map(id, kept)) == ids
            return is_same and list(map(_version_of, kept)) == versions
        except (AttributeError, RuntimeError, StopIteration):
            return False

    def lost(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """Before a step: the names of moments that the step before has left, and that are gone or zero now.

        Where a device has them they are known some steps later.
        """
        self._begun = _marks_of(optimizer)
        if self._left.names and self._begun != self._left:
            gone = self._look(optimizer)
            if gone:
                return gone
        return self._arrived() if self._looks else []

    def _look(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """They were written to, or are others. Names of those that are gone."""
        every = (each for group in optimizer.param_groups for each in group["params"])
        parameter = next((each for each in every if id(each) == self._left.parameter), None)
        if parameter is None:
            return []  # it is gone itself
        kept = optimizer.state.get(parameter)
        now = kept if isinstance(kept, Mapping) else {}
        gone = [name for name in self._left.names if not isinstance(now.get(name), Tensor)]
        if gone or self._habit >= LOOKS:
            return gone
        self._habit += 1
        marks = set(zip(*_marks(parameter, now)[1:], strict=True))
        left = zip(self._left.names, self._left.ids, self._left.versions, strict=True)
        names = [mark[0] for mark in left if mark not in marks and mark[0] != "step"]
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


def _marks_of(optimizer: torch.optim.Optimizer) -> _Marks:
    """Of the first parameter that has a state."""
    state: Any = optimizer.state
    if isinstance(state, Mapping):
        for parameter, kept in state.items():
            if kept and isinstance(kept, Mapping):
                return _marks(parameter, kept)
    return _NONE


def _marks(parameter: Tensor, kept: Mapping[str, Any]) -> _Marks:
    names, ids, versions = list[str](), list[int](), list[int]()
    try:
        for name, value in kept.items():
            if isinstance(value, Tensor):
                versions.append(value._version)
                ids.append(id(value))
                names.append(name)
    except RuntimeError:  # one that was made in inference mode has no version
        return _Marks(id(parameter), [], [], [])
    return _Marks(id(parameter), names, ids, versions)


@torch.no_grad()
def _largest(value: Tensor) -> Tensor:
    """Magnitude: one pass. 1 where there is no element to look at."""
    value = getattr(value, "_local_tensor", value).detach()
    if value.layout is not torch.strided or not value.numel():
        return torch.ones(())
    return value.abs().amax().float()
