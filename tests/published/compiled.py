"""Parts of the loop, and the whole of it, under torch.compile: right, or unknown."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tests.published.tape import OrUnknown, Tape, data, float64_norm, mlp, published

MSE = nn.functional.mse_loss
BACKEND: dict[str, Any] = {"backend": "eager"}  # what is compiled is the same Python; no compiler is needed


def compiled(tape: Tape, what: str, *, clip: bool = False) -> None:
    """`what` is compiled: the model, the optimizer's step, or the whole step of the loop."""
    torch._dynamo.reset()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    forward = torch.compile(model, **BACKEND) if what == "model" else model
    update = torch.compile(optimizer.step, **BACKEND) if what == "step" else optimizer.step

    def backward(model: nn.Module, loss: Tensor) -> None:
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)

    def whole(x: Tensor, y: Tensor) -> Tensor:
        loss = MSE(model(x), y)
        backward(model, loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    compiled_whole = torch.compile(whole, **BACKEND)
    for x, y in data(8):
        # What it is to be, from a copy of the model that nobody compiled: inside of a graph no norm is taken by hand.
        twin = copy.deepcopy(model)
        loss = MSE(twin(x), y)
        for parameter in twin.parameters():
            parameter.grad = None
        loss.backward()
        before = float64_norm(twin)
        if clip:
            nn.utils.clip_grad_norm_(twin.parameters(), 0.2)
        after = float64_norm(twin)
        if what == "whole":
            compiled_whole(x, y)
            tape.attempt(OrUnknown(loss.item()), OrUnknown(before), OrUnknown(after), micro_batches=OrUnknown(1))
        else:
            backward(model, MSE(forward(x), y))
            tape.attempt(loss, before, after)
            update()
            optimizer.zero_grad()
    tape.keep(model, optimizer)
    torch._dynamo.reset()


@published(slow=True)
def a_compiled_model(tape: Tape) -> None:
    compiled(tape, "model", clip=True)


@published(slow=True)
def a_compiled_step_of_the_optimizer(tape: Tape) -> None:
    compiled(tape, "step")


@published(slow=True)
def a_whole_step_compiled(tape: Tape) -> None:
    compiled(tape, "whole")


@published(slow=True)
def a_whole_step_compiled_with_a_clip(tape: Tape) -> None:
    compiled(tape, "whole", clip=True)
