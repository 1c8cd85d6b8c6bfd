"""Generators and discriminators, wrapped together and apart: each backward of the one passes through the other."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from tests.published.tape import UNKNOWN, Tape, data, float64_norm, mlp, published, scaler_for_cpu

BCE = nn.functional.binary_cross_entropy_with_logits


def networks() -> tuple[nn.Module, nn.Module]:
    return mlp(4, 8), mlp(8, 1)


def optimizers_of(generator: nn.Module, discriminator: nn.Module) -> dict[str, torch.optim.Optimizer]:
    return {
        "G": torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999)),
        "D": torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999)),
    }


def says(discriminator: nn.Module, x: Tensor, real: bool) -> Tensor:
    logits = discriminator(x)
    return BCE(logits, torch.full_like(logits, float(real)))


def dcgan(tape: Tape, *, apart: bool, max_norm: float | None = None, freeze: bool = False, end: bool = False) -> None:
    """PyTorch's tutorial: D on real and fake, two backwards; then G through D."""
    generator, discriminator = networks()
    optimizers = optimizers_of(generator, discriminator)
    if apart:
        tape.wrap(optimizers["D"], model=discriminator, run="D")
        tape.wrap(optimizers["G"], model=generator, run="G")
    else:
        tape.wrap(optimizers, model={"G": generator, "D": discriminator})
    for x, noise in data():
        if not end:
            discriminator.zero_grad()
        real = says(discriminator, x, True)
        real.backward()
        made = generator(noise)
        fake = says(discriminator, made.detach(), False)
        fake.backward()
        d_norm = float64_norm(discriminator)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(discriminator.parameters(), max_norm)
        d_clipped = float64_norm(discriminator)
        optimizers["D"].step()

        if freeze:
            discriminator.requires_grad_(False)
        if not end:
            generator.zero_grad()
        fooled = says(discriminator, made, True)
        fooled.backward()
        discriminator.requires_grad_(True)
        g_norm = float64_norm(generator)
        optimizers["G"].step()
        if end:
            optimizers["D"].zero_grad()
            optimizers["G"].zero_grad()
        d_loss, g_loss = real.item() + fake.item(), fooled.item()
        if apart:
            tape.attempt(d_loss, d_norm, d_clipped, micro_batches=2, run="D")
            tape.attempt(g_loss, g_norm, run="G")
        else:
            tape.step(
                {
                    "loss": d_loss + g_loss,
                    "skipped": False,
                    "loss_scale": UNKNOWN,
                    "D/loss": d_loss,
                    "D/grad_norm": d_norm,
                    "D/grad_norm_clipped": d_clipped,
                    "D/skipped": False,
                    "G/loss": g_loss,
                    "G/grad_norm": g_norm,
                    "G/grad_norm_clipped": g_norm,
                    "G/skipped": False,
                }
            )
    tape.keep(generator, discriminator, *optimizers.values())


@published()
def dcgan_together(tape: Tape) -> None:
    dcgan(tape, apart=False)


@published()
def dcgan_apart(tape: Tape) -> None:
    dcgan(tape, apart=True)


@published()
def dcgan_apart_with_clipping(tape: Tape) -> None:
    dcgan(tape, apart=True, max_norm=0.1)


@published()
def dcgan_together_with_clipping(tape: Tape) -> None:
    dcgan(tape, apart=False, max_norm=0.1)


@published()
def dcgan_apart_with_the_discriminator_frozen_meanwhile(tape: Tape) -> None:
    dcgan(tape, apart=True, freeze=True)


@published()
def dcgan_apart_zeroed_at_the_end(tape: Tape) -> None:
    dcgan(tape, apart=True, end=True)


@published()
def dcgan_together_zeroed_at_the_end(tape: Tape) -> None:
    dcgan(tape, apart=False, end=True)


def _generator_first(tape: Tape, apart: bool) -> None:
    """The generator's step first: its gradients lie in D until D zeroes them, right before its own backward."""
    generator, discriminator = networks()
    optimizers = optimizers_of(generator, discriminator)
    if apart:
        tape.wrap(optimizers["D"], model=discriminator, run="D")
        tape.wrap(optimizers["G"], model=generator, run="G")
    else:
        tape.wrap(optimizers, model={"G": generator, "D": discriminator})
    for x, noise in data():
        optimizers["G"].zero_grad()
        made = generator(noise)
        g_loss = says(discriminator, made, True)
        g_loss.backward()
        g_norm = float64_norm(generator)
        optimizers["G"].step()

        optimizers["D"].zero_grad()
        d_loss = (says(discriminator, x, True) + says(discriminator, made.detach(), False)) / 2
        d_loss.backward()
        d_norm = float64_norm(discriminator)
        optimizers["D"].step()
        if apart:
            tape.attempt(g_loss, g_norm, run="G")
            tape.attempt(d_loss, d_norm, run="D")
        else:
            tape.step(
                {
                    "loss": g_loss.item() + d_loss.item(),
                    "D/loss": d_loss.item(),
                    "G/loss": g_loss.item(),
                    "D/grad_norm": d_norm,
                    "G/grad_norm": g_norm,
                    "skipped": False,
                }
            )
    tape.keep(generator, discriminator, *optimizers.values())


@published()
def the_generator_first_together(tape: Tape) -> None:
    _generator_first(tape, apart=False)


@published()
def the_generator_first_apart(tape: Tape) -> None:
    _generator_first(tape, apart=True)


def _wgan_gp(tape: Tape, together: bool) -> None:
    """Three critic steps a generator step; the penalty by `autograd.grad(create_graph=True)`."""
    generator, critic = networks()
    optimizers = optimizers_of(generator, critic)
    if together:
        tape.wrap(optimizers, model={"G": generator, "D": critic})
    else:
        tape.wrap(optimizers["D"], model=critic, run="D")
        tape.wrap(optimizers["G"], model=generator, run="G")
    for number, (x, noise) in enumerate(data(18)):
        optimizers["D"].zero_grad()
        made = generator(noise).detach()
        share = torch.rand(len(x), 1)
        between = (share * x + (1 - share) * made).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = 10 * (slope.norm(dim=1) - 1).square().mean()
        d_loss = critic(made).mean() - critic(x).mean() + penalty
        d_loss.backward()
        d_norm = float64_norm(critic)
        optimizers["D"].step()
        if together:
            tape.of("D", loss=d_loss, grad_norm=d_norm, grad_norm_clipped=d_norm)
        else:
            tape.attempt(d_loss, d_norm, run="D")
        if number % 3 == 2:
            optimizers["G"].zero_grad()
            g_loss = -critic(generator(noise)).mean()
            g_loss.backward()
            g_norm = float64_norm(generator)
            optimizers["G"].step()
            if together:
                tape.of("G", loss=g_loss, grad_norm=g_norm, grad_norm_clipped=g_norm)
            else:
                tape.attempt(g_loss, g_norm, run="G")
    tape.keep(generator, critic, *optimizers.values())


@published()
def wgan_gp_together(tape: Tape) -> None:
    _wgan_gp(tape, together=True)


@published()
def wgan_gp_apart(tape: Tape) -> None:
    _wgan_gp(tape, together=False)


@published()
def wgan_with_weights_clamped_by_hand(tape: Tape) -> None:
    """Arjovsky's: `p.data.clamp_` after each critic step, and backwards with an explicit one and minus one."""
    generator, critic = networks()
    optimizers = optimizers_of(generator, critic)
    tape.wrap(optimizers["D"], model=critic)
    one = torch.tensor(1.0)
    for x, noise in data():
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.05, 0.05)
        critic.zero_grad()
        real, fake = critic(x).mean(), critic(generator(noise).detach()).mean()
        real.backward(one)
        fake.backward(-one)
        tape.attempt(real.item() - fake.item(), float64_norm(critic), micro_batches=2)
        optimizers["D"].step()
        generator.zero_grad()
        critic(generator(noise)).mean().backward(one)
        optimizers["G"].step()
    tape.keep(generator, critic, *optimizers.values())


@published()
def a_discriminator_with_a_scaler_and_a_generator_without(tape: Tape) -> None:
    generator, discriminator = networks()
    optimizers = optimizers_of(generator, discriminator)
    scaler = scaler_for_cpu()
    tape.wrap(optimizers, scaler, model={"G": generator, "D": discriminator})
    for x, noise in data():
        optimizers["D"].zero_grad()
        made = generator(noise)
        d_loss = says(discriminator, x, True) + says(discriminator, made.detach(), False)
        scaler.scale(d_loss).backward()
        d_norm = float64_norm(discriminator, scaler.get_scale())
        scaler.step(optimizers["D"])
        scaler.update()
        optimizers["G"].zero_grad()
        g_loss = says(discriminator, made, True)
        g_loss.backward()
        g_norm = float64_norm(generator)
        optimizers["G"].step()
        tape.of("D", loss=d_loss, grad_norm=d_norm, grad_norm_clipped=d_norm, skipped=False)
        tape.of("G", loss=g_loss, grad_norm=g_norm, grad_norm_clipped=g_norm, skipped=False)
    tape.keep(generator, discriminator, scaler, *optimizers.values())


@published()
def a_generator_with_a_scaler_and_a_discriminator_without(tape: Tape) -> None:
    generator, discriminator = networks()
    optimizers = optimizers_of(generator, discriminator)
    scaler = scaler_for_cpu()
    tape.wrap(optimizers, scaler, model={"G": generator, "D": discriminator})
    for x, noise in data():
        optimizers["G"].zero_grad()
        made = generator(noise)
        g_loss = says(discriminator, made, True)
        scaler.scale(g_loss).backward()
        scaler.unscale_(optimizers["G"])
        g_norm = float64_norm(generator)
        nn.utils.clip_grad_norm_(generator.parameters(), 0.01)
        g_clipped = float64_norm(generator)
        scaler.step(optimizers["G"])
        scaler.update()
        optimizers["D"].zero_grad()
        d_loss = says(discriminator, x, True) + says(discriminator, made.detach(), False)
        d_loss.backward()
        d_norm = float64_norm(discriminator)
        optimizers["D"].step()
        tape.of("G", loss=g_loss, grad_norm=g_norm, grad_norm_clipped=g_clipped, skipped=False)
        tape.of("D", loss=d_loss, grad_norm=d_norm, grad_norm_clipped=d_norm, skipped=False)
    tape.keep(generator, discriminator, scaler, *optimizers.values())


def _one_scaler_for_both(tape: Tape, given: bool) -> None:
    """The documentation's: both scaled, one update."""
    generator, discriminator = networks()
    optimizers = optimizers_of(generator, discriminator)
    scaler = scaler_for_cpu()
    tape.wrap(optimizers, scaler if given else None, model={"G": generator, "D": discriminator})
    for x, noise in data():
        optimizers["D"].zero_grad()
        made = generator(noise)
        d_loss = says(discriminator, x, True) + says(discriminator, made.detach(), False)
        scale = scaler.get_scale()
        scaler.scale(d_loss).backward()
        d_norm = float64_norm(discriminator, scale)
        scaler.step(optimizers["D"])
        optimizers["G"].zero_grad()
        g_loss = says(discriminator, made, True)
        scaler.scale(g_loss).backward()
        g_norm = float64_norm(generator, scale)
        scaler.step(optimizers["G"])
        scaler.update()
        tape.step(
            {
                "loss": d_loss.item() + g_loss.item(),
                "loss_scale": scale,
                "skipped": False,
                "D/loss": d_loss.item(),
                "D/grad_norm": d_norm,
                "G/loss": g_loss.item(),
                "G/grad_norm": g_norm,
            }
        )
    tape.keep(generator, discriminator, scaler, *optimizers.values())


@published()
def one_scaler_for_both(tape: Tape) -> None:
    _one_scaler_for_both(tape, given=True)


@published(events={"scaler_found": 1})
def one_forgotten_scaler_for_both(tape: Tape) -> None:
    _one_scaler_for_both(tape, given=False)


@published()
def cyclegan(tape: Tape) -> None:
    """Two generators in one optimizer, two discriminators in another, one backward for each discriminator."""
    there, back = mlp(8, 8), mlp(8, 8)
    judge_a, judge_b = mlp(8, 1), mlp(8, 1)
    optimizer_g = torch.optim.Adam(itertools.chain(there.parameters(), back.parameters()), lr=2e-3)
    optimizer_d = torch.optim.Adam(itertools.chain(judge_a.parameters(), judge_b.parameters()), lr=2e-3)
    tape.wrap({"G": optimizer_g, "D": optimizer_d})
    generators, judges = nn.ModuleList([there, back]), nn.ModuleList([judge_a, judge_b])
    for x, y in [(x, torch.randn_like(x)) for x, _ in data()]:
        fake_b, fake_a = there(x), back(y)
        judges.requires_grad_(False)
        optimizer_g.zero_grad()
        cycles = nn.functional.l1_loss(back(fake_b), x) + nn.functional.l1_loss(there(fake_a), y)
        g_loss = says(judge_b, fake_b, True) + says(judge_a, fake_a, True) + 10 * cycles
        g_loss.backward()
        g_norm = float64_norm(generators)
        optimizer_g.step()
        judges.requires_grad_(True)
        optimizer_d.zero_grad()
        loss_a = (says(judge_a, y, True) + says(judge_a, fake_a.detach(), False)) * 0.5
        loss_a.backward()
        loss_b = (says(judge_b, x, True) + says(judge_b, fake_b.detach(), False)) * 0.5
        loss_b.backward()
        d_norm = float64_norm(judges)
        optimizer_d.step()
        d_loss = loss_a.item() + loss_b.item()
        tape.step(
            {
                "loss": g_loss.item() + d_loss,
                "G/loss": g_loss.item(),
                "G/grad_norm": g_norm,
                "D/loss": d_loss,
                "D/grad_norm": d_norm,
            }
        )
    tape.keep(generators, judges, optimizer_g, optimizer_d)


@published()
def a_discriminator_that_steps_only_while_it_is_worse(tape: Tape) -> None:
    """Its backward always runs; where its loss is small the gradients are thrown away: no attempt of its."""
    generator, discriminator = networks()
    optimizers = optimizers_of(generator, discriminator)
    tape.wrap(optimizers["D"], model=discriminator)
    stepped = 0
    for number, (x, noise) in enumerate(data()):
        optimizers["D"].zero_grad()
        made = generator(noise)
        d_loss = says(discriminator, x, True) + says(discriminator, made.detach(), False)
        d_loss.backward()
        if number % 2 == 0:
            tape.attempt(d_loss, float64_norm(discriminator))
            optimizers["D"].step()
            stepped += 1
        optimizers["G"].zero_grad()
        says(discriminator, made, True).backward()
        optimizers["G"].step()
    assert stepped
    tape.keep(generator, discriminator, *optimizers.values())


@published()
def domain_adversarial_with_a_reversed_gradient(tape: Tape) -> None:
    """DANN: one optimizer, one backward, the reversal inside the graph."""

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return -gradient

    features, labels, domains = mlp(8, 8), mlp(8, 4), mlp(8, 1)
    model = nn.ModuleList([features, labels, domains])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        hidden = features(x)
        loss = nn.functional.mse_loss(labels(hidden), y) + says(domains, Reverse.apply(hidden), True)
        optimizer.zero_grad()
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def one_graph_for_both_losses(tape: Tape) -> None:
    """`d_loss.backward(retain_graph=True)` before the generator's backward through the same graph; D steps last."""
    generator, discriminator = networks()
    optimizers = optimizers_of(generator, discriminator)
    tape.wrap(optimizers["G"], model=generator)
    for x, noise in data():
        logits = discriminator(generator(noise))
        g_loss = BCE(logits, torch.ones_like(logits))
        optimizers["G"].zero_grad()
        optimizers["D"].zero_grad()
        g_loss.backward(retain_graph=True, inputs=list(generator.parameters()))
        tape.attempt(g_loss, float64_norm(generator))
        d_loss = BCE(logits, torch.zeros_like(logits)) + says(discriminator, x, True)
        d_loss.backward(inputs=list(discriminator.parameters()))
        optimizers["G"].step()
        optimizers["D"].step()
    tape.keep(generator, discriminator, *optimizers.values())


def _one_scaler_apart(tape: Tape, given: bool) -> None:
    """Wrapped apart, one scaler for both and one update; the generator's last layer overflows in one batch."""
    generator, discriminator = networks()
    optimizers = optimizers_of(generator, discriminator)
    scaler = scaler_for_cpu()
    for name, model in (("D", discriminator), ("G", generator)):
        tape.wrap(optimizers[name], scaler if given else None, model=model, run=name)
    for number, (x, noise) in enumerate(data()):
        optimizers["D"].zero_grad()
        made = generator(noise)
        d_loss = says(discriminator, x, True) + says(discriminator, made.detach(), False)
        scale = scaler.get_scale()
        scaler.scale(d_loss).backward()
        d_norm = float64_norm(discriminator, scale)
        scaler.step(optimizers["D"])
        optimizers["G"].zero_grad()
        g_loss = says(discriminator, made, True)
        if number == 11:
            g_loss = g_loss + sum((0.0 * p.sum()).sqrt() for p in generator.parameters())
        scaler.scale(g_loss).backward()
        g_norm = float64_norm(generator, scale)
        scaler.step(optimizers["G"])
        scaler.update()
        tape.attempt(d_loss, d_norm, loss_scale=scale, run="D")
        tape.attempt(g_loss, g_norm, skipped=number == 11, loss_scale=scale, run="G")
    tape.keep(generator, discriminator, scaler, *optimizers.values())


@published(raises=(ValueError, "one call"))
def one_scaler_for_both_apart(tape: Tape) -> None:
    _one_scaler_apart(tape, given=True)


@published(events={"scaler_found": 1})
def one_forgotten_scaler_for_both_apart(tape: Tape) -> None:
    _one_scaler_apart(tape, given=False)


@published()
def each_clipped_for_itself_while_the_other_is_open(tape: Tape) -> None:
    """Both backwards first, then both clips, then both steps."""
    generator, discriminator = networks()
    optimizers = optimizers_of(generator, discriminator)
    tape.wrap(optimizers, model={"G": generator, "D": discriminator})
    for x, noise in data():
        made = generator(noise)
        discriminator.requires_grad_(False)
        g_loss = says(discriminator, made, True)
        optimizers["G"].zero_grad()
        g_loss.backward()
        discriminator.requires_grad_(True)
        d_loss = says(discriminator, x, True) + says(discriminator, made.detach(), False)
        optimizers["D"].zero_grad()
        d_loss.backward()
        before = {"D": float64_norm(discriminator), "G": float64_norm(generator)}
        nn.utils.clip_grad_norm_(discriminator.parameters(), 0.1)
        nn.utils.clip_grad_norm_(generator.parameters(), 0.01)
        tape.step(
            {
                "loss": g_loss.item() + d_loss.item(),
                "D/loss": d_loss.item(),
                "G/loss": g_loss.item(),
                "D/grad_norm": before["D"],
                "G/grad_norm": before["G"],
                "D/grad_norm_clipped": float64_norm(discriminator),
                "G/grad_norm_clipped": float64_norm(generator),
            }
        )
        optimizers["D"].step()
        optimizers["G"].step()
    tape.keep(generator, discriminator, *optimizers.values())
