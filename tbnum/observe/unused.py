"""Why an optimizer may never step although gradients of its parameters are written."""

from __future__ import annotations

import gc

import torch

from tbnum.observe.gradients import parameters_of

__all__ = ["likely_reason"]


def likely_reason(optimizer: torch.optim.Optimizer) -> str:
    """A sentence with the way out. Looks through all objects of the program: for a warning that comes once."""
    inner = getattr(optimizer, "base_optimizer", None)
    if isinstance(inner, torch.optim.Optimizer):
        return "Its base_optimizer takes the steps: give tbnum.wrap() optimizer.base_optimizer."
    parameters = set(map(id, parameters_of(optimizer)))
    for other in gc.get_objects():
        is_another = issubclass(type(other), torch.optim.Optimizer) and other is not optimizer
        if is_another and not parameters.isdisjoint(map(id, parameters_of(other))):
            name = type(other).__name__
            return f"A later {name} holds its parameters: where it was made again, give tbnum.wrap() that one."
    return (
        "Its step() is never called: the parameters may be updated by hand, or by a wrapper with a step of its own. "
        "Give tbnum.wrap() the optimizer whose step() runs."
    )
