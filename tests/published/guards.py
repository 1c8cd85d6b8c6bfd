"""Loops that look before they step, and give an attempt up by `continue`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tests.loops import Half, batches
from tests.published.tape import UNKNOWN, OrUnknown, Tape, data, float64_norm, mlp, published, scaler_for_cpu

BAD = (9, 17)  # rare, as in a loop that works
GIVEN_UP = "dropped_by_loop"


def poison(model: nn.Module) -> Tensor:
    """Is zero, and makes the gradients NaN: a square root at zero."""
    return sum((0.0 * parameter.sum()).sqrt() for parameter in model.parameters())  # type: ignore[return-value]


def norm_guard(tape: Tape, *, zero: str, set_to_none: bool = True) -> None:
    """`if not isfinite(norm): continue`, with `zero_grad` at the beginning, at the end, or in the branch."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        if zero == "beginning":
            optimizer.zero_grad(set_to_none=set_to_none)
        loss = nn.functional.mse_loss(model(x), y)
        if number in BAD:
            loss = loss + poison(model)
        if zero == "before backward":
            optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        before = float64_norm(model)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        after = float64_norm(model)
        if not torch.isfinite(norm):
            tape.attempt(loss, before, skipped=True)
            if zero == "end":
                optimizer.zero_grad(set_to_none=set_to_none)
            continue
        tape.attempt(loss, before, after)
        optimizer.step()
        if zero == "end":
            optimizer.zero_grad(set_to_none=set_to_none)
    tape.keep(model, optimizer)


@published(cause=GIVEN_UP)
def the_norm_is_not_finite_zero_at_the_beginning(tape: Tape) -> None:
    norm_guard(tape, zero="beginning")


@published(cause=GIVEN_UP)
def the_loss_is_not_finite_right_after_adversarial_inputs(tape: Tape) -> None:
    """Every fourth batch is made adversarial, and the one after is spoiled once."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data(32)):
        if number % 4 == 0:
            x.requires_grad_()
            nn.functional.mse_loss(model(x), y).backward()
            assert x.grad is not None
            x = (x + 0.1 * x.grad.sign()).detach()
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y) * (math.inf if number in (13, 25) else 1)
        loss.backward()
        skipped = not math.isfinite(loss.item())
        tape.attempt(loss, OrUnknown(float64_norm(model)), skipped=skipped)
        if not skipped:
            optimizer.step()
        optimizer.zero_grad()
    tape.keep(model)


@published(cause=GIVEN_UP)
def the_norm_is_not_finite_zero_before_backward(tape: Tape) -> None:
    norm_guard(tape, zero="before backward")


@published(cause=GIVEN_UP)
def the_norm_is_not_finite_zero_at_the_end(tape: Tape) -> None:
    norm_guard(tape, zero="end")


@published(cause=GIVEN_UP)
def the_norm_is_not_finite_gradients_set_to_zeros(tape: Tape) -> None:
    norm_guard(tape, zero="beginning", set_to_none=False)


def loss_guard(tape: Tape, *, where: str, clip: bool = True) -> None:
    """`if not isfinite(loss): continue`, before or after backward."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        x = x * math.inf if number in BAD else x
        loss = nn.functional.mse_loss(model(x), y)
        if where == "before" and not torch.isfinite(loss):
            continue
        loss.backward()
        before = float64_norm(model)
        if where == "after" and not torch.isfinite(loss):
            tape.attempt(loss, before, skipped=True)
            optimizer.zero_grad()
            continue
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def the_loss_is_not_finite_before_backward(tape: Tape) -> None:
    """Nothing reached a gradient: there is no attempt."""
    loss_guard(tape, where="before")


@published(cause=GIVEN_UP)
def the_loss_is_not_finite_after_backward(tape: Tape) -> None:
    loss_guard(tape, where="after")


@published(cause=GIVEN_UP)
def the_loss_is_not_finite_after_backward_without_clipping(tape: Tape) -> None:
    loss_guard(tape, where="after", clip=False)


@published(cause=GIVEN_UP)
def the_loss_is_not_finite_and_nothing_is_zeroed_until_the_next_step(tape: Tape) -> None:
    """`continue` alone; the next iteration begins with zero_grad of the model."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x * math.nan if number in BAD else x), y)
        loss.backward()
        finite = bool(torch.isfinite(loss))
        tape.attempt(loss, float64_norm(model), skipped=not finite)
        if not finite:
            continue
        optimizer.step()
    tape.keep(model, optimizer)


def scaler_guard(tape: Tape, *, given: bool) -> None:
    """The norm after `unscale_` is not finite: `update()` without `step()`."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(2.0**10, growth_interval=1000)
    tape.wrap(optimizer, scaler if given else None, model=model)
    for x in batches(30, bad=[12, 22]):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.unscale_(optimizer)
        before = float64_norm(model)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        after = float64_norm(model)
        if not torch.isfinite(norm):
            tape.attempt(loss, before, skipped=True, loss_scale=scale)
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()
        tape.attempt(loss, before, after, loss_scale=scale)
    tape.keep(model, optimizer, scaler)


@published()
def the_norm_is_not_finite_after_unscale_then_update(tape: Tape) -> None:
    scaler_guard(tape, given=True)


@published(events={"scaler_found": 1})
def the_norm_is_not_finite_after_unscale_then_update_scaler_forgotten(tape: Tape) -> None:
    scaler_guard(tape, given=False)


@published()
def the_loss_is_not_finite_with_a_scaler_before_backward(tape: Tape) -> None:
    """nanoDet's and others': the loss is looked at first; `update()` is left out with everything else."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(2.0**20)
    tape.wrap(optimizer, scaler, model=model)
    for number, x in enumerate(batches(30)):
        loss = model(x * math.nan if number in BAD else x).square().mean()
        if not math.isfinite(loss.item()):
            optimizer.zero_grad()
            continue
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        before = float64_norm(model, scale)
        scaler.step(optimizer)
        scaler.update()
        tape.attempt(loss, before, skipped=scaler.get_scale() < scale, loss_scale=scale)
        optimizer.zero_grad()
    tape.keep(model, optimizer, scaler)


@published(cause=GIVEN_UP)
def the_norm_is_too_large(tape: Tape) -> None:
    """Spikes are left out, finite as they are: a norm above ten times the running mean."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    mean = None
    for number, (x, y) in enumerate(data(32)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y * 1e3 if number in (12, 21) else y)
        loss.backward()
        before = float64_norm(model)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        if mean is not None and norm > 10 * mean:
            tape.attempt(loss, before, skipped=True)
            continue
        mean = norm if mean is None else 0.9 * mean + 0.1 * norm
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published(may_warn="finite")
def a_guard_by_a_norm_taken_by_hand(tape: Tape) -> None:
    """Nobody whom tbnum sees looked at the gradients, and the loss was finite: no row, or a row that says so."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        loss = nn.functional.mse_loss(model(x), y)
        if number in BAD:
            loss = loss + poison(model)
        loss.backward()
        before = float64_norm(model)
        if math.isfinite(before):
            tape.attempt(loss, before)
            optimizer.step()
        else:
            tape.attempt(loss, before, skipped=True, optional=True)
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published(cause=GIVEN_UP)
def accumulation_given_up_at_its_third_micro_batch(tape: Tape) -> None:
    """A NaN loss in the middle of an accumulation: everything gathered so far is thrown away."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    total, count = 0.0, 0
    for number, (x, y) in enumerate(data(32)):
        loss = nn.functional.mse_loss(model(x * math.nan if number == 14 else x), y) / 4
        loss.backward()
        total, count = total + loss.item(), count + 1
        if not torch.isfinite(loss):
            tape.attempt(total, float64_norm(model), skipped=True, micro_batches=count)
            optimizer.zero_grad()
            total, count = 0.0, 0
        elif count == 4:
            tape.attempt(total, float64_norm(model), micro_batches=4)
            optimizer.step()
            optimizer.zero_grad()
            total, count = 0.0, 0
    if count:
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published(cause=GIVEN_UP)
def error_if_nonfinite_is_caught_by_the_loop(tape: Tape) -> None:
    """`clip_grad_norm_(..., error_if_nonfinite=True)` raises; the loop catches it and goes on."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if number in BAD:
            loss = loss + poison(model)
        loss.backward()
        before = float64_norm(model)
        try:
            nn.utils.clip_grad_norm_(model.parameters(), 0.2, error_if_nonfinite=True)
        except RuntimeError:
            tape.attempt(loss, before, UNKNOWN, skipped=True)
            continue
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published(cause=GIVEN_UP)
def get_total_norm_then_continue(tape: Tape) -> None:
    """`torch.nn.utils.get_total_norm` is a look, too."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if number in BAD:
            loss = loss + poison(model)
        loss.backward()
        before = float64_norm(model)
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        if not torch.isfinite(norm):
            tape.attempt(loss, before, skipped=True)
            continue
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.2, norm)
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published(cause=GIVEN_UP)
def most_losses_are_not_finite(tape: Tape) -> None:
    """However many there are: a loss that was not finite is why each was given up."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x if number % 3 == 0 else x * math.nan), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model), skipped=number % 3 != 0)
        if not torch.isfinite(loss):
            continue
        optimizer.step()
    optimizer.zero_grad()
    tape.keep(model, optimizer)


@published(cause=GIVEN_UP)
def gradients_set_to_none_by_hand_in_the_branch(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        loss = nn.functional.mse_loss(model(x), y)
        if number in BAD:
            loss = loss + poison(model)
        loss.backward()
        before = float64_norm(model)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        if norm.isfinite():
            tape.attempt(loss, before, float64_norm(model))
            optimizer.step()
        else:
            tape.attempt(loss, before, skipped=True)
        for parameter in model.parameters():
            parameter.grad = None
    tape.keep(model, optimizer)


def _loss_guard_with_a_scaler(tape: Tape, given: bool) -> None:
    """The scaled backward ran; the loss was NaN, so neither step nor update: the scale stays."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(growth_interval=1000)
    tape.wrap(optimizer, scaler if given else None, model=model)
    for number, (x, y) in enumerate(data()):
        loss = nn.functional.mse_loss(model(x * math.nan if number in BAD else x), y)
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        before = float64_norm(model, scale)
        if torch.isnan(loss):
            tape.attempt(loss, before, skipped=True, loss_scale=OrUnknown(scale))
            optimizer.zero_grad()
            continue
        tape.attempt(loss, before, loss_scale=scale)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    tape.keep(model, optimizer, scaler)


@published(cause=GIVEN_UP)
def the_loss_is_not_finite_with_a_scaler_after_backward(tape: Tape) -> None:
    _loss_guard_with_a_scaler(tape, given=True)


@published(cause=GIVEN_UP, events={"scaler_found": 1})
def the_loss_is_not_finite_with_a_forgotten_scaler_after_backward(tape: Tape) -> None:
    _loss_guard_with_a_scaler(tape, given=False)


@published(cause=GIVEN_UP)
def one_of_two_optimizers_is_guarded(tape: Tape) -> None:
    """A clip and a guard for each of two models in one loop; one of them is given up twice."""
    models = {"a": mlp(), "b": mlp()}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-2) for name, model in models.items()}
    for name, optimizer in optimizers.items():
        tape.wrap(optimizer, model=models[name], run=name)
    for number, (x, y) in enumerate(data()):
        for name, model in models.items():
            loss = nn.functional.mse_loss(model(x), y)
            if name == "b" and number in BAD:
                loss = loss + poison(model)
            optimizers[name].zero_grad()
            loss.backward()
            before = float64_norm(model)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            if norm.isfinite():
                tape.attempt(loss, before, float64_norm(model), run=name)
                optimizers[name].step()
            else:
                tape.attempt(loss, before, skipped=True, run=name)
    tape.keep(*models.values(), *optimizers.values())


@published(cause=GIVEN_UP)
def a_retry_of_the_same_batch(tape: Tape) -> None:
    """After a norm that is not finite the same batch is tried again, without what spoiled it."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        for attempt in range(2):
            loss = nn.functional.mse_loss(model(x), y)
            if number in BAD and attempt == 0:
                loss = loss + poison(model)
            optimizer.zero_grad()
            loss.backward()
            before = float64_norm(model)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            if norm.isfinite():
                tape.attempt(loss, before, float64_norm(model))
                optimizer.step()
                break
            tape.attempt(loss, before, skipped=True)
    tape.keep(model, optimizer)


@published(cause=GIVEN_UP)
def parameters_put_back_from_a_copy(tape: Tape) -> None:
    """A loss that is not finite: gradients dropped, and the weights of the last good step loaded."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    good = {name: value.clone() for name, value in model.state_dict().items()}
    for number, (x, y) in enumerate(data()):
        loss = nn.functional.mse_loss(model(x * math.nan if number in BAD else x), y)
        loss.backward()
        finite = math.isfinite(loss.item())
        tape.attempt(loss, float64_norm(model), skipped=not finite)
        if finite:
            good = {name: value.clone() for name, value in model.state_dict().items()}
            optimizer.step()
        else:
            model.load_state_dict(good)
        optimizer.zero_grad()
    tape.keep(model, optimizer)
