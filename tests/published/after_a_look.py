"""Loops that change the gradients after they were clipped or unscaled, and optimizers that withhold an update."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.published.guards import BAD, GIVEN_UP, poison
from tests.published.tape import UNKNOWN, OrUnknown, Tape, data, float64_norm, mlp, published, scaler_for_cpu

MSE = nn.functional.mse_loss


def changed_after_the_clip(tape: Tape, change: Callable[[nn.Module, int], None], is_seen: bool = True) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        loss = MSE(model(x), y)
        loss.backward()
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        change(model, number)
        after = float64_norm(model)
        tape.attempt(loss, before, after if is_seen else OrUnknown(after))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def the_last_layer_keeps_its_weights_at_first(tape: Tape) -> None:
    """DINO's: in the first epochs the gradients of the last layer go, after the clip."""

    def cancel(model: Any, number: int) -> None:
        if number < 8:
            for parameter in model[4].parameters():
                parameter.grad = None

    changed_after_the_clip(tape, cancel)


@published()
def the_first_layer_learns_slower(tape: Tape) -> None:
    def slow(model: Any, number: int) -> None:
        for parameter in model[0].parameters():
            parameter.grad.mul_(0.1)

    changed_after_the_clip(tape, slow)


@published()
def others_are_made_of_what_was_clipped(tape: Tape) -> None:
    """Out of place: none of the tensors that were clipped is left."""

    def halve(model: Any, number: int) -> None:
        for parameter in model.parameters():
            parameter.grad = parameter.grad * 0.5

    changed_after_the_clip(tape, halve)


@published()
def noise_between_two_clips(tape: Tape) -> None:
    def noise_and_clip(model: Any, number: int) -> None:
        for parameter in model.parameters():
            parameter.grad.add_(torch.randn_like(parameter.grad), alpha=0.05)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)

    changed_after_the_clip(tape, noise_and_clip)


@published()
def the_norm_is_asked_for_once_noise_was_added_to_what_was_clipped(tape: Tape) -> None:
    def noise_and_ask(model: Any, number: int) -> None:
        for parameter in model.parameters():
            parameter.grad.add_(torch.randn_like(parameter.grad), alpha=0.05)
        nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])

    changed_after_the_clip(tape, noise_and_ask)


@published()
def rows_are_masked_by_data(tape: Tape) -> None:
    """Textual inversion's: all rows but one keep their weights. A write by `.data` leaves no mark."""

    def mask(model: Any, number: int) -> None:
        model[0].weight.grad.data[1:] = 0.0

    changed_after_the_clip(tape, mask, is_seen=False)


def _dino(tape: Tape, given: bool) -> None:
    """unscale_, each tensor clipped for itself by `.data.mul_`, the last layer's gradients dropped at first."""
    model: Any = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu()
    tape.wrap(optimizer, scaler if given else None, model=model)
    for number, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        loss = MSE(model(x), y)
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        before = float64_norm(model)
        for parameter in model.parameters():
            coefficient = 0.05 / (parameter.grad.data.norm(2) + 1e-6)
            if coefficient < 1:
                parameter.grad.data.mul_(coefficient)
        if number < 6:
            for parameter in model[4].parameters():
                parameter.grad = None
        tape.attempt(loss, before, float64_norm(model), loss_scale=scale)
        scaler.step(optimizer)
        scaler.update()
    tape.keep(model, optimizer, scaler)


@published()
def dino_with_its_scaler(tape: Tape) -> None:
    _dino(tape, given=True)


@published(events={"scaler_found": 1})
def dino_with_a_forgotten_scaler(tape: Tape) -> None:
    _dino(tape, given=False)


def _spikes(tape: Tape, clip: Callable[[Tensor, Tensor], Any], scaler: torch.amp.GradScaler | None = None) -> None:
    """A clip by hand that binds at spikes alone, the first of them long after the beginning."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, scaler, model=model)
    for number, (x, y) in enumerate(data(44)):
        loss = MSE(model(x), y * 30 if number in (21, 37, 41) else y)
        scale = UNKNOWN if scaler is None else scaler.get_scale()
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        before = float64_norm(model)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        if norm > 2.0:
            for gradient in gradients:
                clip(gradient, 2.0 / norm)
        after = float64_norm(model)
        tape.attempt(loss, OrUnknown(before) if before > 2.0 else before, OrUnknown(after), loss_scale=scale)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def spikes_clipped_by_hand(tape: Tape) -> None:
    _spikes(tape, lambda gradient, coefficient: gradient.mul_(coefficient))


@published()
def spikes_clipped_by_hand_after_unscale(tape: Tape) -> None:
    _spikes(tape, lambda gradient, coefficient: gradient.data.mul_(coefficient), scaler_for_cpu())


def _unscaled_by_hand(tape: Tape, clip: bool) -> None:
    """Past the scaler: the loop divides by the scale itself, and steps with the optimizer's own `step`."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu()
    tape.wrap(optimizer, scaler, model=model)
    for x, y in data():
        loss = MSE(model(x), y)
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(scale)
        before = float64_norm(model)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        after = float64_norm(model)
        tape.attempt(loss, OrUnknown(before), OrUnknown(after), loss_scale=OrUnknown(scale))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published(events={"step_bypassed_scaler": 1})
def unscaled_by_hand_past_the_scaler(tape: Tape) -> None:
    _unscaled_by_hand(tape, clip=False)


@published(events={"step_bypassed_scaler": 1})
def unscaled_by_hand_where_the_smallest_gradients_are_zero(tape: Tape) -> None:
    """The parameters with the fewest elements do not matter to the loss."""
    model = mlp()
    model.register_parameter("unused", nn.Parameter(torch.ones(())))
    model.register_parameter("idle", nn.Parameter(torch.ones(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(growth_interval=1000)
    tape.wrap(optimizer, scaler, model=model)
    for x, y in data():
        optimizer.zero_grad()
        loss = MSE(model(x), y) + 0 * model.unused + 0 * model.idle.sum()
        scaler.scale(loss).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(scaler.get_scale())
        tape.attempt(loss, float64_norm(model), loss_scale=OrUnknown(scaler.get_scale()))
        optimizer.step()
    tape.keep(model, optimizer)


@published(events={"step_bypassed_scaler": 1})
def unscaled_and_clipped_past_the_scaler(tape: Tape) -> None:
    _unscaled_by_hand(tape, clip=True)


@published(cause=GIVEN_UP)
def a_finite_norm_decides_by_get_total_norm(tape: Tape) -> None:
    """`get_total_norm` before every step; spikes are left out, finite as they are."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data(32)):
        loss = MSE(model(x), y * 1e3 if number in (12, 21) else y)
        loss.backward()
        before = float64_norm(model)
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        if norm > 100:
            tape.attempt(loss, before, skipped=True)
            optimizer.zero_grad()
            continue
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.3, norm)
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def a_probe_asks_for_its_norm_by_get_total_norm(tape: Tape) -> None:
    """The norm of another batch's gradients every fifth step, which torch clips: none of the probes is a step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    norms = []
    for number, (x, y) in enumerate(data(32)):
        loss = MSE(model(x), y)
        loss.backward()
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
        if number % 5 == 0:
            MSE(model(x + 1), y).backward()
            norms.append(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
            optimizer.zero_grad()
    tape.keep(model, optimizer, norms)


@published()
def a_probe_asks_for_its_norm_by_a_clip_to_infinity(tape: Tape) -> None:
    """As before torch had a function for it: none of the probes is a step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    norms = []
    for number, (x, y) in enumerate(data(32)):
        loss = MSE(model(x), y)
        loss.backward()
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
        if number % 10 == 9:
            MSE(model(x + 1), y).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), math.inf))
            optimizer.zero_grad()
    tape.keep(model, optimizer, norms)


@published(cause=GIVEN_UP)
def a_clip_to_infinity_decides(tape: Tape) -> None:
    """The norm before each step; spikes are left out, finite as they are, with their norm."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data(32)):
        optimizer.zero_grad()
        loss = MSE(model(x), y * 1e3 if number in (12, 21) else y)
        loss.backward()
        before = float64_norm(model)
        skipped = bool(nn.utils.clip_grad_norm_(model.parameters(), math.inf) > 100)
        tape.attempt(loss, before, skipped=skipped)
        if not skipped:
            optimizer.step()
    tape.keep(model, optimizer)


def _asked_between_the_backwards(tape: Tape, ask: Callable[[nn.Module], Any]) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    batches = data()
    for (x, y), (x2, y2) in zip(batches[::2], batches[1::2], strict=True):
        first, second = MSE(model(x), y), MSE(model(x2), y2)
        first.backward()
        ask(model)
        second.backward()
        tape.attempt(first.item() + second.item(), float64_norm(model), micro_batches=2)
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def the_norm_is_asked_for_between_two_backwards(tape: Tape) -> None:
    _asked_between_the_backwards(tape, lambda model: nn.utils.get_total_norm([p.grad for p in model.parameters()]))


@published()
def the_norm_is_asked_for_between_two_backwards_by_a_clip_to_infinity(tape: Tape) -> None:
    _asked_between_the_backwards(tape, lambda model: nn.utils.clip_grad_norm_(model.parameters(), math.inf))


@published()
def each_gradient_is_clipped_as_it_arrives(tape: Tape) -> None:
    """In hooks of the backward: the norm before these clips is nobody's, but for what they left."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)

    def clip(parameter: Tensor) -> None:
        nn.utils.clip_grad_norm_([parameter], 0.05)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(clip)
    for x, y in data():
        optimizer.zero_grad()
        loss = MSE(model(x), y)
        loss.backward()
        after = float64_norm(model)
        tape.attempt(loss, OrUnknown(after), after)
        optimizer.step()
    tape.keep(model, optimizer)


class Withholding(torch.optim.SGD):
    """Does nothing where a gradient is not finite."""

    def step(self, closure: Any = None) -> Any:
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        return super().step(closure) if all(torch.isfinite(gradient).all() for gradient in gradients) else None


class WithholdingByData(torch.optim.Optimizer):
    """The same in the style of old: its writes leave no mark on the parameters."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        if all(torch.isfinite(parameter.grad).all() for parameter in parameters):
            for parameter in parameters:
                parameter.data.add_(parameter.grad.data, alpha=-self.defaults["lr"])


def _withholding(tape: Tape, kind: Callable[..., torch.optim.Optimizer]) -> None:
    model = mlp()
    optimizer = kind(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        loss = MSE(model(x), y)
        if number in BAD:
            loss = loss + poison(model)
        loss.backward()
        before = float64_norm(model)
        tape.attempt(loss, before, skipped=not math.isfinite(before))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published(cause=GIVEN_UP)
def an_optimizer_that_withholds_by_itself(tape: Tape) -> None:
    _withholding(tape, Withholding)


@published(cause=GIVEN_UP)
def an_optimizer_that_withholds_and_writes_by_data(tape: Tape) -> None:
    _withholding(tape, WithholdingByData)
