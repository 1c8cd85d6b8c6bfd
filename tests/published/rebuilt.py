"""Loops that put other parameters, gradients or optimizers in the place of what was wrapped, and nested backwards."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tests.published.tape import UNKNOWN, OrUnknown, Tape, data, float64_norm, mlp, published

MSE = nn.functional.mse_loss


def resized(optimizer: torch.optim.Optimizer, group: int, value: Tensor) -> nn.Parameter:
    """Another parameter in place of a group's only one, with as much of its moments as fits."""
    (old,) = optimizer.param_groups[group]["params"]
    new = nn.Parameter(value.clone())
    state = optimizer.state.pop(old, None)
    if state:
        for name in ("exp_avg", "exp_avg_sq"):
            moment = torch.zeros_like(new)
            length = min(len(old), len(new))
            moment[:length] = state[name][:length]
            state[name] = moment
        optimizer.state[new] = state
    optimizer.param_groups[group]["params"][0] = new
    return new


@published()
def points_that_are_split_and_pruned(tape: Tape) -> None:
    """Gaussian splatting: every few steps the parameters become longer, or shorter."""
    points, colours = nn.Parameter(torch.randn(10, 3)), nn.Parameter(torch.randn(10, 3))
    groups = [{"params": [points], "lr": 1e-2}, {"params": [colours], "lr": 1e-3}]
    optimizer = torch.optim.Adam(groups, eps=1e-15)
    tape.wrap(optimizer, tensor_interval=3)
    for number in range(30):
        loss = (points.mean(0) - 1).square().sum() + 0.01 * (colours.mean(0) + points.sum(0)).square().sum()
        loss.backward()
        tape.attempt(loss, float64_norm([points, colours]))
        optimizer.step()
        optimizer.zero_grad()
        if number % 5 == 3:
            length = len(points) + (4 if number % 10 == 3 else -3)
            points = resized(optimizer, 0, torch.cat([points.detach(), points.detach()])[:length])
            colours = resized(optimizer, 1, torch.cat([colours.detach(), colours.detach()])[:length])
    tape.keep(points, colours, optimizer)


@published()
def asynchronous_actors_share_their_gradients(tape: Tape) -> None:
    """A3C: the local model's gradients are clipped, and handed to the shared model, whose optimizer steps."""
    shared, own = mlp(), mlp()
    optimizer = torch.optim.Adam(shared.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=shared)
    for x, y in data():
        own.load_state_dict(shared.state_dict())
        own.zero_grad()
        optimizer.zero_grad()
        loss = MSE(own(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(own.parameters(), 0.3)
        for parameter, local in zip(shared.parameters(), own.parameters(), strict=True):
            parameter._grad = local.grad  # type: ignore[assignment]
        got = float64_norm(shared)
        tape.attempt(OrUnknown(loss.item()), OrUnknown(got), got, micro_batches=OrUnknown(1))
        optimizer.step()
    tape.keep(shared, optimizer)


class PrivateSGD(torch.optim.Optimizer):
    """Opacus' way: all state is that of the optimizer inside, which gets gradients that it makes."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.original_optimizer = optimizer

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.original_optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.original_optimizer.state

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = parameter.summed + 1e-3
        return self.original_optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.original_optimizer.zero_grad(set_to_none)


@published()
def private_gradients_made_in_the_step(tape: Tape) -> None:
    model: Any = mlp()
    optimizer = PrivateSGD(torch.optim.SGD(model.parameters(), lr=1e-2))
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        loss = MSE(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            parameter.summed = parameter.grad * 0.5
        got = sum((parameter.summed + 1e-3).double().square().sum().item() for parameter in model.parameters())
        tape.attempt(OrUnknown(loss.item()), math.sqrt(got))
        optimizer.step()
    tape.keep(model)


@published()
def the_server_steps_with_the_clients_change(tape: Tape) -> None:
    """Federated: clients train copies; the mean of their changes is the gradient of the server's optimizer."""
    server = mlp()
    optimizer = torch.optim.Adam(server.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=server)
    for _ in range(5):
        changes = []
        for _ in range(2):
            client = copy.deepcopy(server)
            local = torch.optim.SGD(client.parameters(), lr=1e-2)
            for x, y in data(3):
                local.zero_grad()
                MSE(client(x), y).backward()
                local.step()
            pairs = zip(server.parameters(), client.parameters(), strict=True)
            changes.append([old.detach() - new.detach() for old, new in pairs])
        optimizer.zero_grad()
        for parameter, *change in zip(server.parameters(), *changes, strict=True):
            parameter.grad = torch.stack(change).mean(0)
        tape.attempt(UNKNOWN, float64_norm(server), micro_batches=UNKNOWN)
        optimizer.step()
    tape.keep(server, optimizer)


class Reversible(torch.autograd.Function):
    """Keeps no activation: its backward runs the block again, and a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: nn.Module, *parameters: Tensor) -> Tensor:  # type: ignore[override]
        ctx.block, ctx.parameters = block, len(parameters)
        ctx.save_for_backward(x)
        return x + block(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            torch.autograd.backward(x + ctx.block(x), gradient)
        return (x.grad, None, *[None] * ctx.parameters)


@published()
def a_backward_inside_a_backward(tape: Tape) -> None:
    block, head = nn.Linear(8, 8), nn.Linear(8, 4)
    model = nn.ModuleList([block, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        loss = MSE(head(Reversible.apply(x.requires_grad_(), block, *block.parameters())), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def weights_perturbed_between_two_backwards(tape: Tape) -> None:
    """Adversarial weights, as in competitions: the second backward adds to the first, weights are put back."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        losses = [MSE(model(x), y)]
        losses[0].backward()
        if number > 8:
            saved = [parameter.data.clone() for parameter in model.parameters()]
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data.add_(parameter.grad, alpha=1e-2)
            losses.append(MSE(model(x), y))
            losses[1].backward()
            for parameter, value in zip(model.parameters(), saved, strict=True):
                parameter.data = value
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        total = sum(loss.item() for loss in losses)
        tape.attempt(total, before, float64_norm(model), micro_batches=len(losses))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def a_hessian_estimated_every_fourth_step(tape: Tape) -> None:
    """Sophia: a backward with labels that the model draws, after the step; its gradients are squared and go."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    hessian = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for number, (x, y) in enumerate(data()):
        loss = MSE(model(x), y)
        loss.backward()
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
        if number % 4 == 3:
            out = model(x)
            nn.functional.cross_entropy(out, torch.distributions.Categorical(logits=out).sample()).backward()
            for moment, parameter in zip(hessian, model.parameters(), strict=True):
                assert parameter.grad is not None
                moment.mul_(0.9).addcmul_(parameter.grad, parameter.grad)
            optimizer.zero_grad()
    tape.keep(model, optimizer, hessian)


@published()
def an_actor_in_a_frozen_world(tape: Tape) -> None:
    """Dreamer: three optimizers; world and value are frozen while the actor's loss passes through them."""
    models = {"world": mlp(8, 8), "actor": mlp(8, 8), "value": mlp(8, 1)}
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=1e-3) for name, model in models.items()}
    tape.wrap(optimizers, model=models)

    @contextlib.contextmanager
    def frozen() -> Iterator[None]:
        for name in ("world", "value"):
            models[name].requires_grad_(False)
        yield
        for name in ("world", "value"):
            models[name].requires_grad_(True)

    for x, y in data():
        losses = {"world": MSE(models["world"](x), x.roll(1, 0))}
        with frozen():
            dreamt = models["world"](x + models["actor"](x))
            losses["actor"] = -models["value"](dreamt).mean()
        losses["value"] = MSE(models["value"](dreamt.detach()), y[:, :1])
        row: dict[str, Any] = {"loss": sum(loss.item() for loss in losses.values())}
        for name, loss in losses.items():
            optimizers[name].zero_grad()
            loss.backward()
            row |= {f"{name}/loss": loss.item(), f"{name}/grad_norm": float64_norm(models[name])}
            nn.utils.clip_grad_norm_(models[name].parameters(), 0.1)
            row[f"{name}/grad_norm_clipped"] = float64_norm(models[name])
        for optimizer in optimizers.values():
            optimizer.step()
        tape.step(row)
    tape.keep(*models.values(), *optimizers.values())


@published()
def information_has_an_optimizer_of_its_own(tape: Tape) -> None:
    """InfoGAN: the third optimizer holds the generator's parameters too."""
    models = {"g": mlp(8, 8), "d": mlp(8, 1), "q": mlp(8, 2)}
    owned = {"g": ("g",), "d": ("d",), "info": ("g", "q")}
    parameters = {name: [p for part in parts for p in models[part].parameters()] for name, parts in owned.items()}
    optimizers = {name: torch.optim.Adam(parameters[name], lr=1e-3) for name in owned}
    tape.wrap(optimizers, model=models)

    def train(name: str, loss: Tensor) -> None:
        optimizers[name].zero_grad()
        loss.backward()
        tape.of(name, grad_norm=float64_norm(parameters[name]), loss=loss)
        optimizers[name].step()

    for x, y in data():
        train("g", MSE(models["d"](models["g"](x)), torch.ones(16, 1)))
        real, fake = models["d"](y.repeat(1, 2)), models["d"](models["g"](x).detach())
        train("d", MSE(real, torch.ones(16, 1)) + MSE(fake, torch.zeros(16, 1)))
        train("info", MSE(models["q"](models["g"](x)), x[:, :2]))
    tape.keep(*models.values(), *optimizers.values())
