"""Loss scales of the loop's own: with `scaler=callable` everything is known; without it, nothing is made up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.loops import Half, batches
from tests.published.tape import UNKNOWN, OrUnknown, Tape, data, float64_norm, mlp, published

UNTOLD = "finite"
"""A word of the one warning where gradients that were not finite were thrown away and no scale was given."""


class DynamicLossScaler:
    """fairseq's: halves the scale at an overflow, doubles it after a window."""

    def __init__(self, init_scale: float, window: int = 16) -> None:
        self.loss_scale, self.window = init_scale, window
        self._since = 0

    def check_overflow(self, grad_norm: float) -> None:
        if math.isinf(grad_norm) or math.isnan(grad_norm):
            self.loss_scale /= 2
            self._since = 0
            raise OverflowError(f"setting loss scale to {self.loss_scale}")

    def update(self) -> None:
        self._since += 1
        if self._since % self.window == 0:
            self.loss_scale *= 2


def _fairseq(tape: Tape, given: bool, clip: bool = True) -> None:
    model = Half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = DynamicLossScaler(2.0**20)
    tape.wrap(optimizer, (lambda: scaler.loss_scale) if given else None, model=model)
    for x in batches(40, bad=[25]):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scale = scaler.loss_scale
        (loss * scale).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.data.mul_(1.0 / scale)
        before = float64_norm(model)
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5).item() if clip else before
        after = float64_norm(model)
        skipped = False
        try:
            scaler.check_overflow(grad_norm)
        except OverflowError:
            optimizer.zero_grad()
            skipped = True
        else:
            optimizer.step()
            scaler.update()
        value: float | OrUnknown = loss.item() if given else OrUnknown(loss.item() * scale, loss.item())
        clipped = UNKNOWN if skipped else after
        known_scale = scale if given else UNKNOWN
        tape.attempt(value, before, clipped, skipped=skipped, loss_scale=known_scale, optional=skipped and not given)
    tape.keep(model, optimizer)


@published()
def fairseq_with_its_scale_given(tape: Tape) -> None:
    _fairseq(tape, given=True)


@published(may_warn=UNTOLD, may=("own_scale",))
def fairseq_without_its_scale(tape: Tape) -> None:
    _fairseq(tape, given=False)


@published()
def fairseq_without_clipping_with_its_scale_given(tape: Tape) -> None:
    _fairseq(tape, given=True, clip=False)


@published(may_warn=UNTOLD, may=("own_scale",))
def fairseq_without_clipping_and_without_its_scale(tape: Tape) -> None:
    _fairseq(tape, given=False, clip=False)


class MixedPrecisionTrainer:
    """guided-diffusion's: the scale is a power of two that grows a little each step; norms by hand."""

    def __init__(self, model: nn.Module, lg_loss_scale: float = 18.0) -> None:
        self.model, self.lg_loss_scale = model, lg_loss_scale
        self.norm = UNKNOWN

    def backward(self, loss: Tensor) -> None:
        (loss * 2**self.lg_loss_scale).backward()

    def optimize(self, optimizer: torch.optim.Optimizer) -> bool:
        self.norm = float64_norm(self.model, 2**self.lg_loss_scale)
        if not math.isfinite(self.norm):
            self.lg_loss_scale -= 1
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.detach_()
                    parameter.grad.zero_()
            return False
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(1.0 / (2**self.lg_loss_scale))
        optimizer.step()
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad.detach_()
            parameter.grad.zero_()
        self.lg_loss_scale += 1e-3
        return True


def _guided_diffusion(tape: Tape, given: bool) -> None:
    model = Half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = MixedPrecisionTrainer(model)
    tape.wrap(optimizer, (lambda: 2**trainer.lg_loss_scale) if given else None, model=model)
    for x in batches(40, bad=[25]):
        loss = model(x).square().mean()
        scale = 2**trainer.lg_loss_scale
        trainer.backward(loss)
        took_step = trainer.optimize(optimizer)
        value: float | OrUnknown = loss.item() if given else OrUnknown(loss.item() * scale, loss.item())
        known_scale = scale if given else UNKNOWN
        optional = not took_step and not given
        tape.attempt(value, trainer.norm, skipped=not took_step, loss_scale=known_scale, optional=optional)
    tape.keep(model, optimizer)


@published()
def guided_diffusion_with_its_scale_given(tape: Tape) -> None:
    _guided_diffusion(tape, given=True)


@published(may_warn=UNTOLD, may=("own_scale",))
def guided_diffusion_without_its_scale(tape: Tape) -> None:
    _guided_diffusion(tape, given=False)


class MegatronOptimizer:
    """Megatron's: float32 master copies step; half-precision gradients are copied to them and unscaled there."""

    def __init__(self, model: nn.Module, make: Callable[[Any], torch.optim.Optimizer], scale: float) -> None:
        self.working = list(model.parameters())
        self.masters = [parameter.detach().clone().float().requires_grad_() for parameter in self.working]
        self.inner = make(self.masters)
        self.scale = scale
        self.before = self.after = UNKNOWN

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    def step(self, max_norm: float) -> bool:
        for master, working in zip(self.masters, self.working, strict=True):
            assert working.grad is not None
            master.grad = working.grad.float() / self.scale
            working.grad = None
        self.before = float64_norm(self.masters)
        if not math.isfinite(self.before):
            self.scale /= 2
            for master in self.masters:
                master.grad = None
            return False
        nn.utils.clip_grad_norm_(self.masters, max_norm)
        self.after = float64_norm(self.masters)
        self.inner.step()
        with torch.no_grad():
            for master, working in zip(self.masters, self.working, strict=True):
                working.copy_(master)
        self.inner.zero_grad()
        return True


def _megatron(tape: Tape, given: bool) -> None:
    model = Half()
    wrapped = MegatronOptimizer(model, lambda masters: torch.optim.Adam(masters, lr=1e-3), 2.0**20)
    tape.wrap(wrapped.inner, (lambda: wrapped.scale) if given else None)
    for x in batches(40):
        loss = model(x).square().mean()
        wrapped.scale_loss(loss).backward()
        scale = wrapped.scale
        took_step = wrapped.step(0.4)
        after = wrapped.after if took_step else UNKNOWN
        # Backward reached the working copies, which are not the optimizer's: the loss is not known to be theirs.
        tape.attempt(
            OrUnknown(),
            wrapped.before,
            after,
            skipped=not took_step,
            micro_batches=OrUnknown(0, 1),
            loss_scale=OrUnknown(scale) if given else UNKNOWN,
            optional=not took_step,
        )
    tape.keep(model, wrapped.inner)


@published(may_warn=UNTOLD, may=("own_scale",))
def megatron_with_master_copies_and_its_scale_given(tape: Tape) -> None:
    _megatron(tape, given=True)


@published(may_warn=UNTOLD, may=("own_scale",))
def megatron_with_master_copies(tape: Tape) -> None:
    _megatron(tape, given=False)


class Apex:
    """apex's `with amp.scale_loss(loss, optimizer) as scaled`: unscales on leaving, drops the step at an overflow."""

    def __init__(self, optimizer: torch.optim.Optimizer, scale: float) -> None:
        self.optimizer, self.scale = optimizer, scale
        self.overflow = False

    def parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def unscale(self) -> None:
        self.overflow = not math.isfinite(float64_norm(self.parameters()))
        if not self.overflow:
            for parameter in self.parameters():
                assert parameter.grad is not None
                parameter.grad.div_(self.scale)
        else:
            self.scale /= 2


def _apex(tape: Tape, given: bool) -> None:
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    amp = Apex(optimizer, 2.0**20)
    scale_then = amp.scale
    tape.wrap(optimizer, (lambda: amp.scale) if given else None, model=model)
    for x in batches(40, bad=[25]):
        loss = model(x).square().mean()
        scale_then = amp.scale
        (loss * amp.scale).backward()
        before = float64_norm(model, amp.scale)
        amp.unscale()
        if not amp.overflow:
            optimizer.step()
        optimizer.zero_grad()
        value: float | OrUnknown = loss.item() if given else OrUnknown(loss.item() * scale_then, loss.item())
        known_scale = scale_then if given else UNKNOWN
        optional = amp.overflow and not given
        tape.attempt(value, before, skipped=amp.overflow, loss_scale=known_scale, optional=optional)
    tape.keep(model, optimizer)


@published()
def apex_with_its_scale_given(tape: Tape) -> None:
    _apex(tape, given=True)


@published(may_warn=UNTOLD, may=("own_scale",))
def apex_without_its_scale(tape: Tape) -> None:
    _apex(tape, given=False)


@published()
def a_fixed_scale_given(tape: Tape) -> None:
    """Static scaling by 128, gradients divided under `no_grad`, the norm after clipping."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, lambda: 128.0, model=model)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        (loss * 128.0).backward()
        with torch.no_grad():
            torch._foreach_div_([parameter.grad for parameter in model.parameters()], 128.0)
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        tape.attempt(loss, before, float64_norm(model), loss_scale=128.0)
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def every_attempt_overflows_until_the_given_scale_fits(tape: Tape) -> None:
    """Ten skips in a row at the start: with a scale given each is a skip, however many there are."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scale = 2.0**28
    tape.wrap(optimizer, lambda: scale, model=model)
    for x in batches(24):
        loss = model(x).square().mean()
        (loss * scale).backward()
        used = scale
        before = float64_norm(model, used)
        if math.isfinite(before):
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= used
            optimizer.step()
        else:
            scale /= 2
        tape.attempt(loss, before, skipped=not math.isfinite(before), loss_scale=used)
        optimizer.zero_grad()
    tape.keep(model, optimizer)
