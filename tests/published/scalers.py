"""Mixed precision with torch's GradScaler, given to `wrap` or forgotten."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tests.loops import Half, batches
from tests.published.tape import UNKNOWN, OrUnknown, Tape, data, float64_norm, mlp, published, scaler_for_cpu

FOUND = {"scaler_found": 1}


def recipe(
    tape: Tape,
    scaler: torch.amp.GradScaler,
    *,
    given: bool,
    unscale: bool = True,
    clip: bool = True,
    wrap_at: int = 0,
    steps: int = 40,
    given_as: Any = None,
) -> None:
    """PyTorch's recipe: scale, backward, unscale_, clip, step, update. The first scale is too high."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for number, x in enumerate(batches(steps, bad=[25])):
        if number == wrap_at:
            tape.wrap(optimizer, (given_as or scaler) if given else None, model=model)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        if unscale:
            scaler.unscale_(optimizer)
        before = float64_norm(model, 1.0 if unscale else scale)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        after = float64_norm(model, 1.0 if unscale else scale)
        scaler.step(optimizer)
        scaler.update()
        skipped = scaler.get_scale() < scale
        if number >= wrap_at:
            tape.attempt(loss, before, UNKNOWN if skipped else after, skipped=skipped, loss_scale=scale)
    tape.keep(model, optimizer, scaler)


@published()
def the_recipe(tape: Tape) -> None:
    recipe(tape, scaler_for_cpu(2.0**20), given=True)


@published()
def the_recipe_without_unscale(tape: Tape) -> None:
    recipe(tape, scaler_for_cpu(2.0**20), given=True, unscale=False, clip=False)


@published(events=FOUND)
def a_forgotten_scaler(tape: Tape) -> None:
    recipe(tape, scaler_for_cpu(2.0**20), given=False)


@published(events=FOUND)
def a_forgotten_scaler_without_unscale(tape: Tape) -> None:
    recipe(tape, scaler_for_cpu(2.0**20), given=False, unscale=False, clip=False)


@published(events=FOUND)
def a_forgotten_scaler_in_a_loop_that_already_runs(tape: Tape) -> None:
    recipe(tape, scaler_for_cpu(2.0**20), given=False, wrap_at=10)


@published()
def a_scaler_given_to_a_loop_that_already_runs(tape: Tape) -> None:
    recipe(tape, scaler_for_cpu(2.0**20), given=True, wrap_at=10)


@published()
def a_disabled_scaler_given(tape: Tape) -> None:
    _disabled(tape, given=True)


@published()
def a_disabled_scaler_forgotten(tape: Tape) -> None:
    _disabled(tape, given=False)


def _disabled(tape: Tape, given: bool) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    tape.wrap(optimizer, scaler if given else None, model=model)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        tape.attempt(loss, before, float64_norm(model))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


class OwnScaler(torch.amp.GradScaler):
    """Overrides all four methods, as ShardedGradScaler and others do, without calling super."""

    def scale(self, outputs: Any) -> Any:
        if self._scale is None:
            self._lazy_init_scale_growth_tracker(outputs.device)
        assert self._scale is not None
        return outputs * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        state = self._per_optimizer_states[id(optimizer)]
        assert self._scale is not None
        found_inf = torch.zeros(1)
        inverse = self._scale.double().reciprocal().float()
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse)
        state["found_inf_per_device"] = {torch.device("cpu"): found_inf}
        state["stage"] = torch.amp.grad_scaler.OptState.UNSCALED

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is not torch.amp.grad_scaler.OptState.UNSCALED:
            self.unscale_(optimizer)
        state["stage"] = torch.amp.grad_scaler.OptState.STEPPED
        if not any(value.item() for value in state["found_inf_per_device"].values()):
            return optimizer.step(*args, **kwargs)
        return None

    def update(self, new_scale: Any = None) -> None:
        assert self._scale is not None and self._growth_tracker is not None
        found = [
            value for state in self._per_optimizer_states.values() for value in state["found_inf_per_device"].values()
        ]
        torch._amp_update_scale_(
            self._scale, self._growth_tracker, sum(found[1:], found[0]), self._growth_factor, self._backoff_factor, 8
        )
        self._per_optimizer_states.clear()


@published()
def a_subclass_that_overrides_every_method(tape: Tape) -> None:
    recipe(tape, OwnScaler("cpu", init_scale=2.0**20), given=True)


@published(events=FOUND)
def a_forgotten_subclass_that_overrides_every_method(tape: Tape) -> None:
    recipe(tape, OwnScaler("cpu", init_scale=2.0**20), given=False)


class NativeScalerWithGradNormCount:
    """MAE's and Swin's: an object around a GradScaler that does the whole step when called."""

    def __init__(self) -> None:
        self._scaler = scaler_for_cpu(2.0**20)
        self.before = self.after = 0.0

    def __call__(
        self, loss: Tensor, optimizer: torch.optim.Optimizer, clip_grad: float, parameters: Iterable[Tensor]
    ) -> None:
        parameters = list(parameters)
        self._scaler.scale(loss).backward()
        self._scaler.unscale_(optimizer)
        self.before = float64_norm(parameters)
        nn.utils.clip_grad_norm_(parameters, clip_grad)
        self.after = float64_norm(parameters)
        self._scaler.step(optimizer)
        self._scaler.update()


def _mae(tape: Tape, given: bool) -> None:
    model = Half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_scaler = NativeScalerWithGradNormCount()
    tape.wrap(optimizer, loss_scaler if given else None, model=model)
    for x in batches(30, bad=[20]):
        loss = model(x).square().mean()
        scale = loss_scaler._scaler.get_scale()
        loss_scaler(loss, optimizer, clip_grad=0.3, parameters=model.parameters())
        skipped = loss_scaler._scaler.get_scale() < scale
        after = UNKNOWN if skipped else loss_scaler.after
        tape.attempt(loss, loss_scaler.before, after, skipped=skipped, loss_scale=scale)
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def mae_gives_its_object_around_the_scaler(tape: Tape) -> None:
    _mae(tape, given=True)


@published(events=FOUND)
def mae_forgets_its_object_around_the_scaler(tape: Tape) -> None:
    _mae(tape, given=False)


@published()
def clip_by_the_scaled_threshold_before_unscale(tape: Tape) -> None:
    """`clip_grad_norm_(params, c * scaler.get_scale())` before unscale is a clip by c, and right."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(2.0**16)
    tape.wrap(optimizer, scaler, model=model)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        before = float64_norm(model, scale)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2 * scale)
        after = float64_norm(model, scale)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        tape.attempt(loss, before, after, loss_scale=scale)
    tape.keep(model, optimizer, scaler)


@published()
def accumulation_with_a_scaler(tape: Tape) -> None:
    _accumulate(tape, given=True)


@published(events=FOUND)
def accumulation_with_a_forgotten_scaler(tape: Tape) -> None:
    _accumulate(tape, given=False)


def _accumulate(tape: Tape, given: bool) -> None:
    """Four micro-batches a step, one of them bad in some."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(2.0**10)
    tape.wrap(optimizer, scaler if given else None, model=model)
    total = 0.0
    for number, x in enumerate(batches(48, bad=[21])):
        loss = model(x).square().mean() / 4
        scaler.scale(loss).backward()
        total += loss.item()
        if number % 4 == 3:
            scale = scaler.get_scale()
            scaler.unscale_(optimizer)
            before = float64_norm(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            after = float64_norm(model)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            skipped = scaler.get_scale() < scale
            clipped = UNKNOWN if skipped else after
            tape.attempt(total, before, clipped, skipped=skipped, loss_scale=scale, micro_batches=4)
            total = 0.0
    tape.keep(model, optimizer, scaler)


@published(events={**FOUND, "float16_without_scaler": 1})
def a_scaler_made_in_the_middle_of_the_run(tape: Tape) -> None:
    """The first epoch in float16 without a scaler, then one is made."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = None
    tape.wrap(optimizer, model=model)
    for number, x in enumerate(batches(30, bad=[20])):
        if number == 10:
            scaler = scaler_for_cpu(2.0**20)
        loss = model(x).square().mean()
        if scaler is None:
            loss.backward()
            tape.attempt(loss, float64_norm(model))
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            before = float64_norm(model, scale)
            scaler.step(optimizer)
            scaler.update()
            tape.attempt(loss, before, skipped=scaler.get_scale() < scale, loss_scale=scale)
        optimizer.zero_grad()
    tape.keep(model, optimizer, scaler)


@published(events=FOUND)
def two_scalers_for_two_optimizers(tape: Tape) -> None:
    """Each with its own; the wrapped one is followed, whatever the other does."""
    model, other = Half(), Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    others = torch.optim.SGD(other.parameters(), lr=1e-2)
    scaler, others_scaler = scaler_for_cpu(2.0**20), scaler_for_cpu(2.0**24)
    tape.wrap(optimizer, model=model)
    for x in batches(24):
        loss, others_loss = model(x).square().mean(), other(x).square().mean()
        scaler.scale(loss).backward()
        others_scaler.scale(others_loss).backward()
        scale = scaler.get_scale()
        before = float64_norm(model, scale)
        scaler.step(optimizer)
        others_scaler.step(others)
        scaler.update()
        others_scaler.update()
        tape.attempt(loss, before, skipped=scaler.get_scale() < scale, loss_scale=scale)
        optimizer.zero_grad()
        others.zero_grad()
    tape.keep(model, optimizer, other)


@published(events={"scale_set": None})
def a_scale_set_by_the_user_every_four_steps(tape: Tape) -> None:
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(2.0**8, growth_interval=1000)
    tape.wrap(optimizer, scaler, model=model)
    for number, x in enumerate(batches(16)):
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        tape.attempt(loss, float64_norm(model, scale), loss_scale=scale)
        scaler.step(optimizer)
        scaler.update(2.0 ** (9 + number // 4) if number % 4 == 3 else None)
        optimizer.zero_grad()
    tape.keep(model, optimizer, scaler)


@published()
def a_scale_that_is_to_stay_is_set_at_each_update(tape: Tape) -> None:
    """MMEngine's static scale: `update` gets the same number each time, and skips are skips."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(512.0)
    tape.wrap(optimizer, scaler, model=model)
    for number, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y) * (math.inf if number == 9 else 1)
        scaler.scale(loss).backward()
        tape.attempt(loss, float64_norm(model, 512.0), skipped=number == 9, loss_scale=512.0)
        scaler.step(optimizer)
        scaler.update(512.0)
    tape.keep(model, scaler)


@published(events=FOUND)
def one_scaler_over_two_losses_of_one_model(tape: Tape) -> None:
    """The documentation's example of several losses: both scaled, one backward with retain_graph."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(2.0**20)
    tape.wrap(optimizer, model=model)
    for x in batches(24):
        out = model(x)
        first, second = out.square().mean(), out.abs().mean()
        scaler.scale(first).backward(retain_graph=True)
        scaler.scale(second).backward()
        scale = scaler.get_scale()
        before = float64_norm(model, scale)
        scaler.step(optimizer)
        scaler.update()
        total = first.item() + second.item()
        tape.attempt(total, before, skipped=scaler.get_scale() < scale, loss_scale=scale, micro_batches=2)
        optimizer.zero_grad()
    tape.keep(model, optimizer, scaler)


@published(events={"float16_without_scaler": 1})
def mixed_precision_switched_on_later_with_the_scaler_given(tape: Tape) -> None:
    """Ten steps in float16 past a scaler that is enabled and not used yet; then the recipe."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(2.0**20)
    tape.wrap(optimizer, scaler, model=model)
    for number, x in enumerate(batches(30, bad=[20])):
        loss = model(x).square().mean()
        if number < 10:
            loss.backward()
            tape.attempt(loss, float64_norm(model))
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            before = float64_norm(model, scale)
            scaler.step(optimizer)
            scaler.update()
            tape.attempt(loss, before, skipped=scaler.get_scale() < scale, loss_scale=scale)
        optimizer.zero_grad()
    tape.keep(model, optimizer, scaler)


@published(events={"scaler_found": None}, may=("scale_set",))
def a_new_scaler_every_epoch(tape: Tape) -> None:
    """Each epoch makes its own, none is given; the optimizer stays. Its scale is another each time, by the loop."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for _ in range(3):
        scaler = scaler_for_cpu(2.0**20)
        for x in batches(8):
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            before = float64_norm(model, scale)
            scaler.step(optimizer)
            scaler.update()
            tape.attempt(loss, before, skipped=scaler.get_scale() < scale, loss_scale=scale)
            optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def accelerate_steps_through_a_patched_step(tape: Tape) -> None:
    """AcceleratedOptimizer's way to learn of a skip: `optimizer.step` is replaced by one that notes the call."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(2.0**20)
    tape.wrap(optimizer, scaler, model=model)
    called: list[bool] = []
    original = optimizer.step

    def patched(*args: Any, **kwargs: Any) -> Any:
        called.append(True)
        return original(*args, **kwargs)

    for x in batches(24, bad=[15]):
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        before = float64_norm(model, scale)
        optimizer.step = patched  # type: ignore[method-assign]
        called.clear()
        scaler.step(optimizer)
        scaler.update()
        optimizer.step = original  # type: ignore[method-assign]
        tape.attempt(loss, before, skipped=not called, loss_scale=scale)
        optimizer.zero_grad()
    tape.keep(model, scaler)


@published(events={"scale_set": 1})
def the_scale_is_read_from_a_checkpoint(tape: Tape) -> None:
    """`scaler.load_state_dict` in the middle: the scale is another from then on, and by the user's hand."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(2.0**6, growth_interval=1000)
    tape.wrap(optimizer, scaler, model=model)
    saved = scaler_for_cpu(2.0**9, growth_interval=1000).state_dict()
    for number, x in enumerate(batches(16)):
        if number == 8:
            scaler.load_state_dict(saved)
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        tape.attempt(loss, float64_norm(model, scale), loss_scale=scale)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    tape.keep(model, optimizer, scaler)


def _conflicting_gradients(tape: Tape, given: bool) -> None:
    """A scaled backward for each task, their gradients averaged by hand under the scale, then unscaled and clipped."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(2.0**10)
    tape.wrap(optimizer, scaler if given else None, model=model)
    for x in batches(24):
        gathered: list[list[Tensor]] = []
        total = 0.0
        for weight in (1.0, 0.5):
            optimizer.zero_grad()
            loss = weight * model(x).square().mean()
            scaler.scale(loss).backward()
            total += loss.item()
            gathered.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for parameter, first, second in zip(model.parameters(), *gathered, strict=True):
            parameter.grad = (first + second) / 2
        scale = scaler.get_scale()
        scaler.unscale_(optimizer)
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        known, count = OrUnknown(total), OrUnknown(0, 1, 2)
        tape.attempt(known, before, float64_norm(model), loss_scale=OrUnknown(scale), micro_batches=count)
        scaler.step(optimizer)
        scaler.update()
    tape.keep(model, optimizer, scaler)


@published()
def conflicting_gradients_with_a_scaler(tape: Tape) -> None:
    _conflicting_gradients(tape, given=True)


@published(events=FOUND)
def conflicting_gradients_with_a_forgotten_scaler(tape: Tape) -> None:
    _conflicting_gradients(tape, given=False)


@published(events=FOUND)
def a_forgotten_scaler_of_which_every_attempt_overflows_at_first(tape: Tape) -> None:
    """Twelve skips before the first update: all of them are rows."""
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = scaler_for_cpu(2.0**30)
    tape.wrap(optimizer, model=model)
    for x in batches(24):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        before = float64_norm(model, scale)
        scaler.step(optimizer)
        scaler.update()
        tape.attempt(loss, before, skipped=scaler.get_scale() < scale, loss_scale=scale)
    tape.keep(model, optimizer, scaler)
