"""Which trainable parameters of the models no optimizer updates."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tbnum.observe.gradients import parameters_of
from tbnum.observe.names import named_parameters

__all__ = ["Coverage", "Uncovered"]


@dataclass(frozen=True)
class Uncovered:
    """Trainable parameters that are in no optimizer of the program."""

    names: tuple[str, ...]
    elements: int
    replaced: tuple[str, ...]  # parameters of the optimizers that were the model's when it was last looked at


class Coverage:
    """Compares the parameters of some models with those of some optimizers. Holds both weakly."""

    def __init__(self, models: Mapping[str, nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._models = {name: weakref.ref(model) for name, model in models.items()}
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._reported: set[int] = set()  # by id, of parameters that are alive
        self._in_model: dict[int, str] = {}  # at the last look

    def look(self) -> Uncovered | None:
        """Those that no optimizer holds, unless an earlier look found them; None where there are none.

        About 2 microseconds a parameter: for now and then. Where one is missing, every object of the program is looked
        through for another optimizer that holds it.
        """
        named = [
            (name, parameter)
            for prefix, ref in self._models.items()
            if (model := ref()) is not None
            for name, parameter in named_parameters(prefix, model)
        ]
        held = [
            each for ref in self._optimizers if (optimizer := ref()) is not None for each in parameters_of(optimizer)
        ]
        trained = set(map(id, held))
        missing = [(name, each) for name, each in named if each.requires_grad and id(each) not in trained]
        before, self._in_model = self._in_model, {id(parameter): name for name, parameter in named}
        known, self._reported = self._reported, {id(parameter) for _, parameter in missing}
        if self._reported <= known:
            return None
        elsewhere = _held_by_any_optimizer()
        new = [(name, each) for name, each in missing if id(each) not in known and id(each) not in elsewhere]
        if not new:
            return None
        replaced = [before[id(each)] for each in held if id(each) in before and id(each) not in self._in_model]
        return Uncovered(
            tuple(name for name, _ in new), sum(each.numel() for _, each in _counted(new)), tuple(replaced)
        )


def _counted(named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Those whose number of elements is known by now."""
    return [(name, each) for name, each in named if not nn.parameter.is_lazy(each)]


def _held_by_any_optimizer() -> set[int]:
    """Ids of the parameters of every optimizer that is alive; 0.1 s for a million objects."""
    optimizers = [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer)]
    groups = [group for optimizer in optimizers for group in vars(optimizer).get("param_groups") or ()]
    return {id(parameter) for group in groups for parameter in group.get("params", ())}
