"""Names of an optimizer's parameters, as the record has them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from tbnum.observe.gradients import parameters_of
from tbnum.observe.names import named_parameters

__all__ = ["MAX_NAMES_IN_META", "ParameterNames"]

MAX_NAMES_IN_META = 1000


class ParameterNames:
    """Names of parameters: the model's where there is one, else their place in the optimizer."""

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer], modules: Mapping[str, nn.Module]) -> None:
        self._modules = {name: weakref.ref(module) for name, module in modules.items()}
        # A module that was made for the call of `wrap` alone is gone after it, and its parameters are not.
        self._first = [
            (weakref.ref(parameter), name)
            for prefix, module in modules.items()
            for name, parameter in named_parameters(prefix, module)
        ]
        self._optimizers = {name: weakref.ref(optimizer) for name, optimizer in optimizers.items()}

    def with_shapes(self) -> dict[str, list[int]] | None:
        """Names and shapes; None where there are too many for the head of the log. The tensors' file has the names."""
        shapes: dict[str, list[int]] = {}
        for name, ref in self._optimizers.items():
            optimizer = ref()
            parameters = [] if optimizer is None else parameters_of(optimizer)
            if len(parameters) > MAX_NAMES_IN_META:
                return None
            shapes |= dict(zip(self.names_of(name), (list(each.shape) for each in parameters), strict=True))
        return shapes

    def in_depth(self) -> list[str]:
        """Names in the order of the model's modules, mostly that of its forward, whatever the order of the optimizer.

        Without those of tied weights, which are used at several depths. Empty without a model, and of very many.
        """
        found: list[str] = []
        for prefix, ref in self._modules.items():
            module = ref()
            if module is None:
                continue
            uses = Counter(id(each) for _, each in module.named_parameters(remove_duplicate=False))
            found += [name for name, each in named_parameters(prefix, module) if uses[id(each)] == 1]
        return found if len(found) <= MAX_NAMES_IN_META else []

    def used(self, order: Sequence[tuple[str, int]]) -> list[str]:
        """Of parameters, by their optimizer and their place there, the names; empty of very many."""
        if len(order) > MAX_NAMES_IN_META:
            return []
        names = {name: self.names_of(name) for name, _ in order}
        return [names[name][place] for name, place in order]

    def frozen(self) -> list[str]:
        """Names of the parameters that require no gradient now; of many the first."""
        found: list[str] = []
        for name, ref in self._optimizers.items():
            optimizer = ref()
            parameters = [] if optimizer is None else parameters_of(optimizer)
            still = [place for place, parameter in enumerate(parameters) if not parameter.requires_grad]
            found += self.names_of(name, still) if still else ()
        return found[:MAX_NAMES_IN_META]

    def names_of(self, optimizer: str, rows: Iterable[int] | None = None) -> tuple[str, ...]:
        """The names of an optimizer's parameters, in its order; with `rows` only of those.

        Looked up each time, for parameters may be added or replaced: for events and intervals, not every step.
        """
        alive = self._optimizers[optimizer]()
        if alive is None:
            return ()
        known: dict[int, str] = {}
        for prefix, ref in self._modules.items():
            module = ref()
            for name, parameter in () if module is None else named_parameters(prefix, module):
                known.setdefault(id(parameter), name)
        for first, name in self._first:
            if (there := first()) is not None:
                known.setdefault(id(there), name)
        label = f"{optimizer}." if len(self._optimizers) > 1 else ""
        names = [
            known.get(id(parameter)) or f"{label}group{number}.param{place}"
            for number, group in enumerate(alive.param_groups)
            for place, parameter in enumerate(group["params"])
        ]
        return tuple(names if rows is None else [names[row] for row in rows])
