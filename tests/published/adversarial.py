"""Backwards for the sake of the input: their gradients reach the parameters too, and are thrown away or kept."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.loops import Half, batches
from tests.published.tape import OrUnknown, Tape, data, float64_norm, mlp, published, scaler_for_cpu

EPSILON = 0.05


def fgsm(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Goodfellow's, as in PyTorch's tutorial: `loss.backward()`, and the sign of `x.grad`."""
    x = x.clone().requires_grad_()
    nn.functional.mse_loss(model(x), y).backward()
    assert x.grad is not None
    return (x + EPSILON * x.grad.sign()).detach()


def _train_on_attacks(
    tape: Tape,
    attack: Callable[[nn.Module, Tensor, Tensor], Tensor],
    *,
    zero: str = "before the loss",
    set_to_none: bool = True,
    max_norm: float | None = None,
    every: int = 1,
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        if zero == "at the beginning too":
            optimizer.zero_grad(set_to_none=set_to_none)
        if number % every == 0:
            x = attack(model, x, y)
        if zero == "by the model":
            model.zero_grad(set_to_none=set_to_none)
        elif zero != "after forward":
            optimizer.zero_grad(set_to_none=set_to_none)
        loss = nn.functional.mse_loss(model(x), y)
        if zero == "after forward":
            optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        before = float64_norm(model)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def fgsm_then_zero_grad(tape: Tape) -> None:
    _train_on_attacks(tape, fgsm)


@published()
def fgsm_then_zero_grad_of_the_model(tape: Tape) -> None:
    _train_on_attacks(tape, fgsm, zero="by the model")


@published()
def fgsm_with_zero_grad_after_the_forward(tape: Tape) -> None:
    _train_on_attacks(tape, fgsm, zero="after forward", max_norm=0.2)


@published()
def fgsm_between_two_zero_grads(tape: Tape) -> None:
    _train_on_attacks(tape, fgsm, zero="at the beginning too", max_norm=0.2)


@published()
def fgsm_with_gradients_set_to_zeros(tape: Tape) -> None:
    _train_on_attacks(tape, fgsm, set_to_none=False, max_norm=0.2)


def _zeroed_by_hand(tape: Tape, zero: Callable[[nn.Module], None]) -> None:
    """FGSM, whose gradients are thrown away without `zero_grad`: what tbnum cannot see of it, it must not guess."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        x = fgsm(model, x, y)
        zero(model)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        tape.attempt(OrUnknown(loss.item()), float64_norm(model), micro_batches=OrUnknown(1))
        optimizer.step()
        zero(model)
    tape.keep(model, optimizer)


@published()
def fgsm_then_gradients_set_to_none_by_hand(tape: Tape) -> None:
    def zero(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = None

    _zeroed_by_hand(tape, zero)


@published()
def fgsm_then_gradients_zeroed_by_hand(tape: Tape) -> None:
    def zero(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.detach_()
                parameter.grad.zero_()

    _zeroed_by_hand(tape, zero)


@published()
def fgsm_then_data_of_gradients_zeroed_by_hand(tape: Tape) -> None:
    def zero(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data.zero_()

    _zeroed_by_hand(tape, zero)


@published()
def an_energy_model_with_langevin_samples(tape: Tape) -> None:
    """Each step of the sampler is a backward for the sample; the parameters' gradients are zeroed after it."""
    model = mlp(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    samples = torch.randn(16, 8)
    for x, _ in data():
        samples = samples.clone().requires_grad_()
        for _ in range(4):
            model(samples).sum().backward()
            assert samples.grad is not None
            samples.data.add_(samples.grad, alpha=-0.1).add_(torch.randn_like(samples), alpha=0.01)
            samples.grad = None
        samples = samples.detach()
        optimizer.zero_grad()
        real, made = model(x), model(samples)
        loss = real.mean() - made.mean() + 0.1 * (real.square().mean() + made.square().mean())
        loss.backward()
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def fgsm_every_third_step(tape: Tape) -> None:
    _train_on_attacks(tape, fgsm, every=3)


@published()
def pgd_by_autograd_grad(tape: Tape) -> None:
    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            loss = nn.functional.mse_loss(model(x + delta), y)
            (gradient,) = torch.autograd.grad(loss, [delta])
            delta = (delta + 0.02 * gradient.sign()).clamp(-EPSILON, EPSILON).detach().requires_grad_()
        return (x + delta).detach()

    _train_on_attacks(tape, attack)


def pgd(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Madry's with `backward`, and the model's gradients zeroed in every iteration."""
    delta = torch.empty_like(x).uniform_(-EPSILON, EPSILON).requires_grad_()
    for _ in range(3):
        nn.functional.mse_loss(model(x + delta), y).backward()
        assert delta.grad is not None
        delta.data = (delta + 0.02 * delta.grad.detach().sign()).clamp(-EPSILON, EPSILON)
        delta.grad.zero_()
        model.zero_grad()
    return (x + delta).detach()


@published()
def pgd_by_backward(tape: Tape) -> None:
    _train_on_attacks(tape, pgd)


@published()
def pgd_by_backward_without_zeroing_inside(tape: Tape) -> None:
    """The attack's gradients gather in the parameters until one `zero_grad`."""

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(4):
            nn.functional.mse_loss(model(x + delta), y).backward()
            assert delta.grad is not None
            delta.data.add_(0.02 * delta.grad.sign()).clamp_(-EPSILON, EPSILON)
            delta.grad = None
        return (x + delta).detach()

    _train_on_attacks(tape, attack)


@published()
def robust_accuracy_is_measured_after_the_step(tape: Tape) -> None:
    """The attack's gradients stay in the parameters until the next iteration zeroes them."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        if number % 4 == 0:
            fgsm(model, x, y)
    tape.keep(model, optimizer)


@published()
def fgsm_with_a_scaler(tape: Tape) -> None:
    """The attack's loss is not scaled, the training's is."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu()
    tape.wrap(optimizer, scaler, model=model)
    for x, y in data():
        adversarial = fgsm(model, x, y)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(adversarial), y)
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        tape.attempt(loss, float64_norm(model, scale), loss_scale=scale)
        scaler.step(optimizer)
        scaler.update()
    tape.keep(model, optimizer, scaler)


@published(events={"scaler_found": 1})
def pgd_with_scaled_losses_and_a_forgotten_scaler(tape: Tape) -> None:
    """The attack scales its losses as well; one batch overflows in training."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu()
    tape.wrap(optimizer, model=model)
    for x in batches(24, bad=[15]):
        x = x.clone().requires_grad_()
        scaler.scale(model(x).square().mean()).backward()
        assert x.grad is not None
        x = (x + EPSILON * x.grad.nan_to_num().sign()).detach()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        before = float64_norm(model, scale)
        scaler.step(optimizer)
        scaler.update()
        tape.attempt(loss, before, skipped=scaler.get_scale() < scale, loss_scale=scale)
    tape.keep(model, optimizer, scaler)


@published()
def free_adversarial_training(tape: Tape) -> None:
    """One backward serves the input and the parameters; each batch is replayed, and each replay is a step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    delta = torch.zeros(16, 8)
    for x, y in data(8):
        for _ in range(3):
            noise = delta.clone().requires_grad_()
            loss = nn.functional.mse_loss(model(x + noise), y)
            optimizer.zero_grad()
            loss.backward()
            assert noise.grad is not None
            delta = (delta + EPSILON * noise.grad.sign()).clamp(-EPSILON, EPSILON)
            tape.attempt(loss, float64_norm(model))
            optimizer.step()
    tape.keep(model, optimizer, delta)


@published()
def fast_gradient_method_of_language_models(tape: Tape) -> None:
    """FGM: the first layer is moved and moved back between two backwards, whose gradients add up."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    first = model[0].weight
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        backup = first.data.clone()
        assert isinstance(first.grad, Tensor)
        first.data.add_(EPSILON * first.grad / first.grad.norm())
        attacked = nn.functional.mse_loss(model(x), y)
        attacked.backward()
        first.data = backup
        tape.attempt(loss.item() + attacked.item(), float64_norm(model), micro_batches=2)
        optimizer.step()
        model.zero_grad()
    tape.keep(model, optimizer)


@published()
def projected_gradient_method_of_language_models(tape: Tape) -> None:
    """PGD of the same family: the first gradients are kept, and put back by hand for the last attack to add to."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    first = model[0].weight
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        backup = first.data.clone()
        for attempt in range(3):
            assert isinstance(first.grad, Tensor)
            first.data.add_(0.02 * first.grad / first.grad.norm())
            if attempt < 2:
                model.zero_grad()
            else:
                for name, parameter in model.named_parameters():
                    parameter.grad = gradients[name]
            attacked = nn.functional.mse_loss(model(x), y)
            attacked.backward()
        first.data = backup
        # Which losses the gradients put back by hand came from, nothing says.
        known = OrUnknown(loss.item() + attacked.item())
        tape.attempt(known, float64_norm(model), micro_batches=OrUnknown(1, 2))
        optimizer.step()
        model.zero_grad()
    tape.keep(model, optimizer)


@published()
def trades(tape: Tape) -> None:
    """The inner problem by `autograd.grad`, in eval mode; one loss of two parts."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        model.eval()
        adversarial = x + 0.001 * torch.randn_like(x)
        for _ in range(2):
            adversarial.requires_grad_()
            divergence = nn.functional.mse_loss(model(adversarial), model(x))
            gradient = torch.autograd.grad(divergence, [adversarial])[0]
            adversarial = (adversarial.detach() + 0.02 * gradient.sign()).detach()
        model.train()
        optimizer.zero_grad()
        natural = nn.functional.mse_loss(model(x), y)
        loss = natural + 6.0 * nn.functional.mse_loss(model(adversarial), model(x))
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def r_drop(tape: Tape) -> None:
    """Two forwards through dropout, one backward."""
    model = nn.Sequential(mlp(), nn.Dropout(0.2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        first, second = model(x), model(x)
        loss = nn.functional.mse_loss(first, y) + nn.functional.mse_loss(second, y)
        loss = loss / 2 + 0.5 * nn.functional.mse_loss(first, second)
        optimizer.zero_grad()
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def virtual_adversarial_training(tape: Tape) -> None:
    """Miyato's: the power iteration runs `backward` for the direction, then `model.zero_grad()`."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        with torch.no_grad():
            clean = model(x)
        direction = torch.randn_like(x)
        direction = direction / direction.norm()
        for _ in range(2):
            direction.requires_grad_()
            nn.functional.mse_loss(model(x + 0.1 * direction), clean).backward()
            assert direction.grad is not None
            direction = (direction.grad / direction.grad.norm()).detach()
            model.zero_grad()
        smoothness = nn.functional.mse_loss(model(x + EPSILON * direction), clean)
        loss = nn.functional.mse_loss(model(x), y) + smoothness
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def an_adversarial_patch_is_the_wrapped_parameter(tape: Tape) -> None:
    """The model is the means: its parameters get gradients, the optimizer has the patch alone."""
    model = mlp()
    patch = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.Adam([patch], lr=1e-2)
    tape.wrap(optimizer)
    for x, y in data():
        loss = -nn.functional.mse_loss(model(x + patch), y)
        optimizer.zero_grad()
        loss.backward()
        tape.attempt(loss, float64_norm([patch]))
        optimizer.step()
    tape.keep(patch, optimizer)


@published()
def fgsm_by_a_backward_for_the_input_alone(tape: Tape) -> None:
    """`loss.backward(inputs=[x])`: no parameter's gradient is touched."""

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        nn.functional.mse_loss(model(x), y).backward(inputs=[x])
        assert x.grad is not None
        return (x + EPSILON * x.grad.sign()).detach()

    _train_on_attacks(tape, attack, max_norm=0.2)


@published()
def fgsm_with_the_model_frozen_meanwhile(tape: Tape) -> None:
    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        model.requires_grad_(False)
        adversarial = fgsm(model, x, y)
        model.requires_grad_(True)
        return adversarial

    _train_on_attacks(tape, attack)


@published()
def a_dream_of_the_first_layer_between_the_steps(tape: Tape) -> None:
    """A backward from hidden activations reaches a part of the parameters, and is zeroed with all."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    dream = torch.randn(1, 8)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
        dream = dream.clone().requires_grad_()
        model[:2](dream).square().sum().backward()
        assert dream.grad is not None
        dream = (dream + 0.01 * dream.grad).detach()
        optimizer.zero_grad()
    tape.keep(model, optimizer, dream)
