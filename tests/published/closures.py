"""Optimizers that evaluate a closure: once, many times, with arguments, with attributes of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.published.tape import OrUnknown, Tape, data, float64_norm, mlp, published, scaler_for_cpu


class Evaluation:
    """A closure that notes its own losses and the norms of each evaluation."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], max_norm: float | None
    ) -> None:
        self.model, self.optimizer, self.batch, self.max_norm = model, optimizer, batch, max_norm
        self.losses: list[float] = []
        self.before: list[float] = []
        self.after: list[float] = []

    def __call__(self) -> Tensor:
        x, y = self.batch
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.losses.append(loss.item())
        self.before.append(float64_norm(self.model))
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.after.append(float64_norm(self.model))
        return loss


def with_closure(
    tape: Tape,
    make: Callable[[Any], torch.optim.Optimizer],
    max_norm: float | None = None,
    seen_as: Callable[[Evaluation], Any] = lambda closure: closure,
) -> None:
    """The first evaluation is the attempt's: its loss, its norms."""
    model = mlp()
    optimizer = make(model.parameters())
    tape.wrap(optimizer, model=model)
    for batch in data(16):
        closure = Evaluation(model, optimizer, batch, max_norm)
        optimizer.step(seen_as(closure))
        many = len(closure.losses)
        tape.attempt(closure.losses[0], closure.before[0], closure.after[0], micro_batches=OrUnknown(1, many))
    tape.keep(model, optimizer)


@published()
def sgd_with_a_closure(tape: Tape) -> None:
    with_closure(tape, lambda p: torch.optim.SGD(p, lr=1e-2))


@published()
def adam_with_a_closure_that_clips(tape: Tape) -> None:
    with_closure(tape, lambda p: torch.optim.Adam(p, lr=1e-2), max_norm=0.2)


@published()
def lbfgs(tape: Tape) -> None:
    with_closure(tape, lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4))


@published()
def lbfgs_with_a_line_search(tape: Tape) -> None:
    with_closure(tape, lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"))


@published()
def lbfgs_with_a_closure_that_clips(tape: Tape) -> None:
    with_closure(tape, lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3), max_norm=0.2)


class CallsWithArguments(torch.optim.SGD):
    """Levenberg-Marquardt's and others': the optimizer asks the closure for more than a loss."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure(backward=True, scale=1.0)
        super().step()
        return loss


@published()
def a_closure_called_with_arguments(tape: Tape) -> None:
    model = mlp()
    optimizer = CallsWithArguments(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for batch in data(16):
        evaluation = Evaluation(model, optimizer, batch, None)

        def closure(*, backward: bool, scale: float, evaluation: Evaluation = evaluation) -> Tensor:
            assert backward and scale == 1.0
            return evaluation()

        optimizer.step(closure)
        tape.attempt(evaluation.losses[0], evaluation.before[0])
    tape.keep(model, optimizer)


class UsesAttributes(torch.optim.SGD):
    """Keeps score on the closure object itself, and asks whether it is the object it was given."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        assert closure.__class__ is Evaluation and closure.batch is not None
        with torch.enable_grad():
            loss = closure()
        closure.tries = getattr(closure, "tries", 0) + 1
        super().step()
        return loss


@published()
def a_closure_with_attributes(tape: Tape) -> None:
    with_closure(tape, lambda p: UsesAttributes(p, lr=1e-2))


class LineSearch(torch.optim.Optimizer):
    """Armijo's: evaluates with gradient once, then without, under `no_grad`, until the loss has fallen enough."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> float:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        gradients = [p.grad.clone() for p in parameters]
        start = [p.detach().clone() for p in parameters]
        slope = sum(g.square().sum().item() for g in gradients)
        rate = 1.0
        for _ in range(6):
            with torch.no_grad():
                for p, old, g in zip(parameters, start, gradients, strict=True):
                    p.copy_(old - rate * g)
                if closure(backward=False) <= loss - 1e-4 * rate * slope:
                    break
            rate /= 2
        return loss.item()


@published()
def an_optimizer_with_a_line_search_without_gradients(tape: Tape) -> None:
    model = mlp()
    optimizer = LineSearch(model.parameters())
    tape.wrap(optimizer, model=model)
    for x, y in data(16):
        seen: list[tuple[float, float]] = []

        def closure(
            backward: bool = True, x: Tensor = x, y: Tensor = y, seen: list[tuple[float, float]] = seen
        ) -> Tensor:
            loss = nn.functional.mse_loss(model(x), y)
            if backward:
                optimizer.zero_grad()
                loss.backward()
                seen.append((loss.item(), float64_norm(model)))
            return loss

        optimizer.step(closure)
        tape.attempt(*seen[0])
    tape.keep(model, optimizer)


@published()
def a_closure_that_accumulates(tape: Tape) -> None:
    """Three micro-batches in one evaluation."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    batches = data()
    for number in range(0, 24, 3):
        total: list[float] = []

        def closure(number: int = number, total: list[float] = total) -> float:
            optimizer.zero_grad()
            for x, y in batches[number : number + 3]:
                loss = nn.functional.mse_loss(model(x), y) / 3
                loss.backward()
                total.append(loss.item())
            total.append(float64_norm(model))
            return sum(total[:3])

        optimizer.step(closure)
        tape.attempt(sum(total[:3]), total[3], micro_batches=3)
    tape.keep(model, optimizer)


@published()
def a_closure_that_gives_no_loss(tape: Tape) -> None:
    """Returns None, as some of Lightning's do after a batch was left out."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for batch in data(16):
        evaluation = Evaluation(model, optimizer, batch, None)

        def closure(evaluation: Evaluation = evaluation) -> None:
            evaluation()

        optimizer.step(closure)  # type: ignore[arg-type]
        tape.attempt(evaluation.losses[0], evaluation.before[0])
    tape.keep(model, optimizer)


@published()
def lightning_steps_a_scaler_after_its_closure(tape: Tape) -> None:
    """MixedPrecision's order: the closure first, then `unscale_`, clip, `scaler.step`, `update`."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu()
    tape.wrap(optimizer, scaler, model=model)
    for x, y in data():

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            return loss

        loss = closure()
        scale = scaler.get_scale()
        scaler.unscale_(optimizer)
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        tape.attempt(loss, before, float64_norm(model), loss_scale=scale)
        scaler.step(optimizer)
        scaler.update()
    tape.keep(model, optimizer, scaler)


@published()
def a_closure_that_raises_once(tape: Tape) -> None:
    """The loop catches its own error and goes on: what was half done is nobody's step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, batch in enumerate(data(16)):
        evaluation = Evaluation(model, optimizer, batch, None)

        def closure(evaluation: Evaluation = evaluation, number: int = number) -> Tensor:
            loss = evaluation()
            if number == 7:
                raise KeyError("the loader broke")
            return loss

        try:
            optimizer.step(closure)
        except KeyError:
            continue
        tape.attempt(evaluation.losses[0], evaluation.before[0])
    tape.keep(model, optimizer)
