"""Sharpness-aware steps and probes of the curvature: several backwards, of which one is the step's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.published.tape import Tape, data, float64_norm, mlp, published, scaler_for_cpu


class SAM(torch.optim.Optimizer):
    """The optimizer that many repositories carry: climbs by rho, and lets a base optimizer step from there."""

    def __init__(
        self, params: Any, base: type[torch.optim.Optimizer], rho: float = 0.05, adaptive: bool = False, **settings: Any
    ) -> None:
        super().__init__(params, {"rho": rho, "adaptive": adaptive, **settings})
        self.base_optimizer = base(self.param_groups, **settings)  # type: ignore[arg-type]
        self.param_groups = self.base_optimizer.param_groups

    def _weight(self, group: dict[str, Any], p: Tensor) -> Tensor | float:
        return p.abs() if group["adaptive"] else 1.0

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        norms = [
            (self._weight(group, p) * p.grad).norm()
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        scale = self.param_groups[0]["rho"] / (torch.stack(norms).norm() + 1e-12)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(self._weight(group, p) ** 2 * p.grad * scale)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is not None
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()


def sam(tape: Tape, *, adaptive: bool = False, clip: str = "", every: int = 1, wrap: str = "base") -> None:
    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.SGD, adaptive=adaptive, lr=1e-2, momentum=0.9)
    tape.wrap(optimizer.base_optimizer if wrap == "base" else optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        if number % every == 0:
            nn.functional.mse_loss(model(x), y).backward()
            if clip == "both":
                nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.first_step(zero_grad=True)
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            before = float64_norm(model)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            after = float64_norm(model)
            optimizer.second_step(zero_grad=True)
        else:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            before = after = float64_norm(model)
            optimizer.base_optimizer.step()
            optimizer.zero_grad()
        if wrap == "base":
            tape.attempt(loss, before, after)
    tape.keep(model, optimizer, optimizer.base_optimizer)


@published()
def sam_by_its_base_optimizer(tape: Tape) -> None:
    sam(tape)


@published()
def adaptive_sam(tape: Tape) -> None:
    sam(tape, adaptive=True)


@published()
def sam_with_the_second_gradient_clipped(tape: Tape) -> None:
    sam(tape, clip="second")


@published()
def sam_with_both_gradients_clipped(tape: Tape) -> None:
    """The first half was looked at, but then the parameters moved: it was not given up."""
    sam(tape, clip="both")


@published()
def sam_every_third_step(tape: Tape) -> None:
    sam(tape, every=3)


@published(warns=("base_optimizer",), may=("never_stepped",))
def sam_by_its_outer_optimizer(tape: Tape) -> None:
    """Which never steps: `second_step` lets the base optimizer do it."""
    sam(tape, wrap="outer")


@published()
def sam_with_a_closure(tape: Tape) -> None:
    """`optimizer.step(closure)` after a backward of the loop's: the base optimizer steps on the second loss."""
    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=1e-2)
    tape.wrap(optimizer.base_optimizer, model=model)
    for x, y in data():
        losses: list[float] = []
        norms: list[float] = []

        def closure(x: Tensor = x, y: Tensor = y, losses: list[float] = losses, norms: list[float] = norms) -> Tensor:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            losses.append(loss.item())
            norms.append(float64_norm(model))
            return loss

        closure()
        optimizer.step(closure)
        optimizer.zero_grad()
        tape.attempt(losses[1], norms[1])
    tape.keep(model, optimizer)


@published()
def sam_under_accumulation(tape: Tape) -> None:
    """Two micro-batches in each half."""
    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=1e-2)
    tape.wrap(optimizer.base_optimizer, model=model)
    batches = data()
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        for x, y in (first, second):
            (nn.functional.mse_loss(model(x), y) / 2).backward()
        optimizer.first_step(zero_grad=True)
        total = 0.0
        for x, y in (first, second):
            loss = nn.functional.mse_loss(model(x), y) / 2
            loss.backward()
            total += loss.item()
        tape.attempt(total, float64_norm(model), micro_batches=2)
        optimizer.second_step(zero_grad=True)
    tape.keep(model, optimizer)


@published()
def hutchinson_after_the_step(tape: Tape) -> None:
    """PyHessian's: `backward(create_graph=True)`, products of the Hessian, and the gradients are thrown away."""
    model = mlp()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    tape.wrap(optimizer, model=model)
    traces = []
    for number, (x, y) in enumerate(data()):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        if number % 4 == 0:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward(create_graph=True)
            gradients = [p.grad + 0.0 for p in parameters if p.grad is not None]
            signs = [torch.randint_like(p, 2) * 2 - 1 for p in parameters]
            products = torch.autograd.grad(gradients, parameters, grad_outputs=signs)
            traces.append(sum((s * h).sum().item() for s, h in zip(signs, products, strict=True)))
            optimizer.zero_grad()
    tape.keep(model, optimizer, traces)


@published()
def hutchinson_before_the_step(tape: Tape) -> None:
    """The probe's gradients are thrown away by the loop's own `zero_grad` right before its backward."""
    model = mlp()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    tape.wrap(optimizer, model=model)
    traces = []
    for x, y in data():
        nn.functional.mse_loss(model(x), y).backward(create_graph=True)
        gradients = [p.grad + 0.0 for p in parameters if p.grad is not None]
        signs = [torch.randint_like(p, 2) * 2 - 1 for p in parameters]
        products = torch.autograd.grad(gradients, parameters, grad_outputs=signs)
        traces.append(sum((s * h).sum().item() for s, h in zip(signs, products, strict=True)))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer, traces)


class AdaHessian(torch.optim.Optimizer):
    """Needs `backward(create_graph=True)`; its step takes Hutchinson's diagonal by `autograd.grad`."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in parameters]
        signs = [torch.randint_like(p, 2) * 2 - 1 for p in parameters]
        products = torch.autograd.grad(gradients, parameters, grad_outputs=signs)
        with torch.no_grad():
            for p, g, sign, product in zip(parameters, gradients, signs, products, strict=True):
                p.sub_(self.param_groups[0]["lr"] * g / ((sign * product).abs().sqrt() + 1.0))


def _adahessian(tape: Tape, scaler: torch.amp.GradScaler | None, given: bool = True) -> None:
    model = mlp()
    optimizer = AdaHessian(model.parameters())
    tape.wrap(optimizer, scaler if given else None, model=model)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        if scaler is None:
            loss.backward(create_graph=True)
            tape.attempt(loss, float64_norm(model))
            optimizer.step()
        else:
            scaler.scale(loss).backward(create_graph=True)
            scale = scaler.get_scale()
            tape.attempt(loss, float64_norm(model, scale), loss_scale=scale)
            scaler.step(optimizer)
            scaler.update()
        for parameter in model.parameters():
            parameter.grad = None
    tape.keep(model, optimizer)


@published()
def adahessian(tape: Tape) -> None:
    _adahessian(tape, None)


@published()
def adahessian_with_a_scaler(tape: Tape) -> None:
    _adahessian(tape, scaler_for_cpu())


@published(events={"scaler_found": 1})
def adahessian_with_a_forgotten_scaler(tape: Tape) -> None:
    _adahessian(tape, scaler_for_cpu(), given=False)


def _penalty_by_create_graph(tape: Tape, scaler: torch.amp.GradScaler | None) -> None:
    """The recipe's gradient penalty: `autograd.grad(create_graph=True)`, unscaled by hand where there is a scale."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, scaler, model=model)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        scale = 1.0 if scaler is None else scaler.get_scale()
        root = loss if scaler is None else scaler.scale(loss)
        gradients = torch.autograd.grad(root, list(model.parameters()), create_graph=True)
        penalty = sum((g / scale).square().sum() for g in gradients)
        total = loss + 0.1 * penalty
        (total if scaler is None else scaler.scale(total)).backward()
        before = float64_norm(model, scale)
        if scaler is None:
            tape.attempt(total, before)
            optimizer.step()
        else:
            tape.attempt(total, before, loss_scale=scale)
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def a_penalty_of_the_gradients(tape: Tape) -> None:
    _penalty_by_create_graph(tape, None)


@published()
def a_penalty_of_the_gradients_with_a_scaler(tape: Tape) -> None:
    _penalty_by_create_graph(tape, scaler_for_cpu())


@published()
def a_penalty_after_a_backward_with_create_graph(tape: Tape) -> None:
    """The loss's backward with `create_graph`, then that of the penalty on `.grad`: both reach the gradients."""
    model = mlp()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward(create_graph=True)
        penalty = 0.1 * sum(p.grad.square().sum() for p in parameters if p.grad is not None)
        assert isinstance(penalty, Tensor)
        penalty.backward()
        tape.attempt(loss.item() + penalty.item(), float64_norm(model), micro_batches=2)
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None
    tape.keep(model, optimizer)


@published()
def noise_scale_from_two_half_batches(tape: Tape) -> None:
    """McCandlish's: a backward for each half and their norms, zeroed; then the whole batch's."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    norms = []
    for number, (x, y) in enumerate(data()):
        if number % 5 == 0:
            for half in (slice(0, 8), slice(8, 16)):
                nn.functional.mse_loss(model(x[half]), y[half]).backward()
                norms.append(float64_norm(model))
                optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer, norms)


@published()
def influence_of_a_validation_batch(tape: Tape) -> None:
    """A backward on held-out data after the step, its gradient kept as a vector, and everything zeroed."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    kept = []
    for x, y in data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x.flip(0)), y).backward()
        kept.append(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item())
    optimizer.zero_grad()
    tape.keep(model, optimizer, kept)


@published()
def fisher_information_of_elastic_weights(tape: Tape) -> None:
    """EWC: after a task, one backward a sample gathers squared gradients; then training goes on with a penalty."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    fisher = [torch.zeros_like(p) for p in model.parameters()]
    anchor = [p.detach().clone() for p in model.parameters()]
    for task in range(2):
        for x, y in data(10):
            loss = nn.functional.mse_loss(model(x), y)
            weights = zip(fisher, model.parameters(), anchor, strict=True)
            penalty = sum((square * (parameter - old).square()).sum() for square, parameter, old in weights)
            total = loss + 10.0 * penalty
            optimizer.zero_grad()
            total.backward()
            tape.attempt(total, float64_norm(model))
            optimizer.step()
        if task == 0:
            for x, y in data(1, size=6):
                for sample, target in zip(x, y, strict=True):
                    model.zero_grad()
                    nn.functional.mse_loss(model(sample), target).backward()
                    for square, parameter in zip(fisher, model.parameters(), strict=True):
                        assert parameter.grad is not None
                        square.add_(parameter.grad.detach().square() / 6)
            anchor = [p.detach().clone() for p in model.parameters()]
    tape.keep(model, optimizer)


def _sam_with_a_scaler(tape: Tape, given: bool) -> None:
    """Both losses scaled, both gradients unscaled; `update()` after each half, and one step a batch."""
    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=1e-2)
    base = optimizer.base_optimizer
    scaler = scaler_for_cpu(growth_interval=1000)
    tape.wrap(base, scaler if given else None, model=model)
    for x, y in data():
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        scaler.unscale_(base)
        optimizer.first_step(zero_grad=True)
        scaler.update()
        loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.unscale_(base)
        tape.attempt(loss, float64_norm(model), loss_scale=scale)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(optimizer.state[parameter]["old"])
        scaler.step(base)
        scaler.update()
        optimizer.zero_grad()
    tape.keep(model, base, scaler)


@published()
def sam_with_a_scaler(tape: Tape) -> None:
    _sam_with_a_scaler(tape, given=True)


@published(events={"scaler_found": 1})
def sam_with_a_forgotten_scaler(tape: Tape) -> None:
    _sam_with_a_scaler(tape, given=False)
