"""How else models are trained: teachers, queues, moving averages, other types of numbers, threads, interruptions."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.published.tape import UNKNOWN, OrUnknown, Tape, data, float64_norm, mlp, published

MSE = nn.functional.mse_loss


def step(
    tape: Tape, optimizer: torch.optim.Optimizer, model: nn.Module, loss: Tensor, max_norm: float | None = None
) -> None:
    """Backward, norms, clip, step, zero_grad, as all loops here have them."""
    loss.backward()
    before = float64_norm(model)
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    tape.attempt(loss, before, float64_norm(model))
    optimizer.step()
    optimizer.zero_grad()


@published()
def a_moving_average_of_the_weights(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    average = copy.deepcopy(model).requires_grad_(False)
    for x, y in data():
        step(tape, optimizer, model, MSE(model(x), y), 0.3)
        with torch.no_grad():
            for kept, parameter in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(parameter, 0.1)
    tape.keep(model, average, optimizer)


@published()
def stochastic_weight_averaging(tape: Tape) -> None:
    """torch.optim.swa_utils, its scheduler, and the update of the batch norms at the end."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=5e-3, anneal_epochs=4)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        step(tape, optimizer, model, MSE(model(x), y))
        if number >= 12 and number % 4 == 3:
            averaged.update_parameters(model)
            scheduler.step()
    torch.optim.swa_utils.update_bn([x for x, _ in data(4)], averaged)
    tape.keep(model, averaged, optimizer)


@published()
def freezing_and_unfreezing(tape: Tape) -> None:
    """The first layer is frozen after eight steps and set free after sixteen; it keeps no gradient meanwhile."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        if number in (8, 16):
            model[0].requires_grad_(number == 16)
        step(tape, optimizer, model, MSE(model(x), y))
    tape.keep(model, optimizer)


@published()
def layers_that_are_dropped_at_random(tape: Tape) -> None:
    """Stochastic depth: in some steps a block has no gradient."""
    blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
    model = nn.ModuleList([blocks, nn.Linear(8, 4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        for block in blocks:
            if torch.rand(()) > 0.4:
                x = x + block(x).tanh()
        step(tape, optimizer, model, MSE(model[1](x), y))
    tape.keep(model, optimizer)


@published()
def distillation(tape: Tape) -> None:
    teacher, model = mlp().eval(), mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        with torch.no_grad():
            soft = teacher(x).softmax(1)
        out = model(x)
        loss = MSE(out, y) + nn.functional.kl_div(out.log_softmax(1), soft, reduction="batchmean")
        step(tape, optimizer, model, loss)
    tape.keep(model, optimizer)


@published()
def contrast_with_a_queue(tape: Tape) -> None:
    """MoCo: a momentum encoder makes the keys, old keys wait in a queue."""
    model = mlp()
    slow = copy.deepcopy(model).requires_grad_(False)
    queue = nn.functional.normalize(torch.randn(4, 64), dim=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, _) in enumerate(data()):
        query = nn.functional.normalize(model(x), dim=1)
        with torch.no_grad():
            for kept, parameter in zip(slow.parameters(), model.parameters(), strict=True):
                kept.lerp_(parameter, 0.05)
            key = nn.functional.normalize(slow(x + 0.1 * torch.randn_like(x)), dim=1)
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.clone()], 1) / 0.2
        loss = nn.functional.cross_entropy(logits, torch.zeros(16, dtype=torch.long))
        step(tape, optimizer, model, loss)
        place = number % 4 * 16
        queue[:, place : place + 16] = key.T
    tape.keep(model, slow, queue, optimizer)


@published()
def bootstrapped_targets(tape: Tape) -> None:
    """BYOL: a predictor, two views, two losses of one backward."""
    model, predictor = mlp(), mlp(4, 4)
    target = copy.deepcopy(model).requires_grad_(False)
    both = nn.ModuleList([model, predictor])
    optimizer = torch.optim.Adam(both.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=both)
    for x, _ in data():
        first, second = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
        loss = MSE(predictor(model(first)), target(second)) + MSE(predictor(model(second)), target(first))
        step(tape, optimizer, both, loss)
        with torch.no_grad():
            for kept, parameter in zip(target.parameters(), model.parameters(), strict=True):
                kept.lerp_(parameter, 0.02)
    tape.keep(both, target, optimizer)


def _checkpointed(tape: Tape, reentrant: bool) -> None:
    """Blocks run forward again inside of backward, dropout and all."""
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1)) for _ in range(3)])
    model = nn.ModuleList([blocks, nn.Linear(8, 4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        x = x.clone().requires_grad_()
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        step(tape, optimizer, model, MSE(model[1](x), y), 0.5)
    tape.keep(model, optimizer)


@published()
def checkpointing(tape: Tape) -> None:
    _checkpointed(tape, reentrant=False)


@published()
def checkpointing_reentrant(tape: Tape) -> None:
    _checkpointed(tape, reentrant=True)


@published()
def tied_weights(tape: Tape) -> None:
    embedding, head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
    head.weight = embedding.weight
    model = nn.ModuleList([embedding, head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for _ in range(20):
        tokens = torch.randint(12, (32,))
        loss = nn.functional.cross_entropy(head(embedding(tokens)), tokens.roll(1))
        step(tape, optimizer, model, loss, 0.5)
    tape.keep(model, optimizer)


@published()
def parametrized_weights(tape: Tape) -> None:
    """Spectral and weight normalization: the parameters are those behind the weights."""
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)),
        nn.Tanh(),
        nn.utils.parametrizations.weight_norm(nn.Linear(16, 4)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        step(tape, optimizer, model, MSE(model(x), y))
    tape.keep(model, optimizer)


@published()
def adapters_of_low_rank(tape: Tape) -> None:
    """LoRA: the base is frozen; the optimizer has the adapters alone."""
    base = nn.Linear(8, 4).requires_grad_(False)
    down, up = nn.Parameter(torch.randn(2, 8) * 0.1), nn.Parameter(torch.zeros(4, 2))
    optimizer = torch.optim.AdamW([down, up], lr=1e-2)
    tape.wrap(optimizer)
    for x, y in data():
        loss = MSE(base(x) + x @ down.T @ up.T, y)
        loss.backward()
        tape.attempt(loss, float64_norm([down, up]))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(down, up, optimizer)


def _typed(tape: Tape, dtype: torch.dtype) -> None:
    model = mlp().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        step(tape, optimizer, model, MSE(model(x.to(dtype)).float(), y))
    tape.keep(model)


@published()
def parameters_in_bfloat16(tape: Tape) -> None:
    _typed(tape, torch.bfloat16)


@published()
def parameters_in_float64(tape: Tape) -> None:
    _typed(tape, torch.float64)


@published()
def autocast_to_bfloat16(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        with torch.autocast("cpu", torch.bfloat16):
            loss = MSE(model(x), y.bfloat16())
        step(tape, optimizer, model, loss.float(), 0.3)
    tape.keep(model, optimizer)


@published(events={"float16_without_scaler": 1}, may=("loss_low_precision",))
def a_loss_in_float16(tape: Tape) -> None:
    """The loss itself is a float16 number: it is recorded as it is."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = (model(x) - y).square().mean().half()
        step(tape, optimizer, model, loss)
    tape.keep(model, optimizer)


@published(may=("loss_low_precision",))
def a_loss_in_bfloat16(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        step(tape, optimizer, model, (model(x) - y).square().mean().bfloat16())
    tape.keep(model, optimizer)


@published()
def complex_parameters(tape: Tape) -> None:
    weight = nn.Parameter(torch.randn(8, 4, dtype=torch.complex64) * 0.1)
    optimizer = torch.optim.Adam([weight], lr=1e-2)
    tape.wrap(optimizer)
    for x, y in data():
        loss = ((x.to(torch.complex64) @ weight).abs() - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        assert weight.grad is not None
        tape.attempt(loss, torch.view_as_real(weight.grad).double().norm().item())
        optimizer.step()
    tape.keep(weight)


@published()
def a_negative_loss(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, maximize=False)
    tape.wrap(optimizer, model=model)
    for x, _ in data():
        step(tape, optimizer, model, -model(x).tanh().square().mean())
    tape.keep(model, optimizer)


@published()
def clipped_layer_by_layer(tape: Tape) -> None:
    """A clip for each layer: the norm before all of them, and what the optimizer got."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = MSE(model(x), y)
        loss.backward()
        before = float64_norm(model)
        for layer in (model[0], model[2], model[4]):
            nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
        tape.attempt(loss, OrUnknown(before), float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def clipped_by_the_largest_element(tape: Tape) -> None:
    """`norm_type=inf`."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = MSE(model(x), y)
        loss.backward()
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type=float("inf"))
        tape.attempt(loss, OrUnknown(before), float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def clipped_by_hand_unit_by_unit(tape: Tape) -> None:
    """Adaptive gradient clipping: nobody sees it, and the one norm that is known is what the optimizer got."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = MSE(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            largest = parameter.detach().norm().clamp(min=1e-3) * 0.05
            parameter.grad.mul_((largest / parameter.grad.norm().clamp(min=1e-6)).clamp(max=1.0))
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def clipped_over_a_generator(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = MSE(model(x), y)
        loss.backward()
        before = float64_norm(model)
        nn.utils.clip_grad_norm_((p for p in model.parameters() if p.requires_grad), 0.1)
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def clipped_over_a_generator_that_raises(tape: Tape) -> None:
    """The user's own error comes out of the clip, nothing is clipped, and the loop that catches it goes on."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    caught = []

    def some(number: int) -> Iterator[Tensor]:
        for place, parameter in enumerate(model.parameters()):
            if number % 3 == 1 and place == 2:
                raise ZeroDivisionError(f"batch {number}")
            yield parameter

    for number, (x, y) in enumerate(data()):
        loss = MSE(model(x), y)
        loss.backward()
        before = float64_norm(model)
        try:
            nn.utils.clip_grad_norm_(some(number), 0.1)
        except ZeroDivisionError as error:
            caught.append(str(error))
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    assert len(caught) == 8
    tape.keep(model, optimizer, caught)


def _in_a_thread(tape: Tape, number: int, errors: list[BaseException], turn: threading.Barrier) -> None:
    try:
        generator = torch.Generator().manual_seed(number)
        model = mlp()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2 * number)
        tape.wrap(optimizer, model=model, run=f"thread{number}")
        turn.wait()
        for x, y in data(40):
            loss = MSE(model(x * number), y)
            loss.backward()
            before = float64_norm(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            tape.attempt(loss, before, float64_norm(model), run=f"thread{number}")
            optimizer.step()
            optimizer.zero_grad()
        tape.keep_in_order(number, model, optimizer)
    except BaseException as error:
        errors.append(error)


@published()
def loops_in_two_threads(tape: Tape) -> None:
    errors: list[BaseException] = []
    turn = threading.Barrier(2)
    state = torch.get_rng_state()
    threads = [threading.Thread(target=_in_a_thread, args=(tape, number, errors, turn)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_rng_state(state)  # which of the two drew first is a matter of chance
    if errors:
        raise errors[0]


@published(events={"scaler_found": 1})
def loops_in_two_threads_with_forgotten_scalers(tape: Tape) -> None:
    errors: list[BaseException] = []
    turn = threading.Barrier(2)

    def run(number: int) -> None:
        try:
            generator = torch.Generator().manual_seed(number)
            weight = nn.Parameter(torch.randn(8, 4, generator=generator))
            optimizer = torch.optim.SGD([weight], lr=1e-3)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (10 * number), growth_interval=1000)
            tape.wrap(optimizer, run=f"thread{number}")
            turn.wait()
            for x, y in data(30):
                optimizer.zero_grad()
                loss = ((x.half() @ weight.half()).float() - y).square().mean()
                scaler.scale(loss).backward()
                scale = scaler.get_scale()
                before = float64_norm([weight], scale)
                scaler.step(optimizer)
                scaler.update()
                skipped = scaler.get_scale() < scale
                tape.attempt(loss, before, skipped=skipped, loss_scale=scale, run=f"thread{number}")
            tape.keep_in_order(number, weight, scaler)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@published()
def backward_in_a_thread_of_its_own(tape: Tape) -> None:
    """A watchdog runs each backward in a worker; everything else is the main thread's."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data(12):
        loss = MSE(model(x), y)
        worker = threading.Thread(target=loss.backward)
        worker.start()
        worker.join()
        tape.attempt(OrUnknown(loss.item()), float64_norm(model), micro_batches=OrUnknown(1))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def validation_between_the_steps(tape: Tape) -> None:
    """No gradient, inference mode, and a backward on a copy of the model."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    seen = []
    for number, (x, y) in enumerate(data()):
        step(tape, optimizer, model, MSE(model(x), y))
        if number % 5 == 0:
            model.eval()
            with torch.no_grad():
                seen.append(MSE(model(x), y).item())
            with torch.inference_mode():
                seen.append(MSE(model(x), y).item())
            twin = copy.deepcopy(model)
            MSE(twin(x), y).backward()
            seen.append(float64_norm(twin))
            model.train()
    tape.keep(model, optimizer, seen)


@published()
def a_backward_that_raises_is_caught(tape: Tape) -> None:
    """Out of memory, say, half-way through: the loop zeroes and goes on; there was no attempt that one could count."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        hidden = model[:3](x)
        if number in (6, 15):

            def fail(gradient: Tensor) -> Tensor:
                raise MemoryError("no room")

            hidden.register_hook(fail)
        loss = MSE(model[3:](hidden), y)
        try:
            loss.backward()
        except MemoryError:
            tape.attempt(OrUnknown(loss.item()), OrUnknown(), skipped=True, optional=True)
            optimizer.zero_grad()
            continue
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def an_interrupt_between_backward_and_step(tape: Tape) -> None:
    """KeyboardInterrupt is caught in the notebook, and the loop is run again from the next batch."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    batches = iter(enumerate(data()))

    def run() -> None:
        for number, (x, y) in batches:
            optimizer.zero_grad()
            loss = MSE(model(x), y)
            loss.backward()
            if number == 9:
                raise KeyboardInterrupt
            tape.attempt(loss, float64_norm(model))
            optimizer.step()

    with contextlib.suppress(KeyboardInterrupt):
        run()
    run()
    tape.keep(model, optimizer)


@published()
def a_learning_rate_finder(tape: Tape) -> None:
    """Rising rates for some steps, then model and optimizer are put back; each of its steps is a step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    tape.wrap(optimizer, model=model)
    state: Any = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for number, (x, y) in enumerate(data(12)):
        optimizer.param_groups[0]["lr"] = 1e-5 * 2**number
        step(tape, optimizer, model, MSE(model(x), y))
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    for x, y in data(12):
        step(tape, optimizer, model, MSE(model(x), y))
    tape.keep(model, optimizer)


@published()
def terms_of_the_loss_are_named(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = tape.wrap(optimizer, model=model)
    for x, y in data():
        out = model(x)
        fit, size = MSE(out, y), 0.1 * out.square().mean()
        loss = fit + size
        loss.backward()
        if monitor is not None:
            monitor.log_loss(fit, name="fit")
            monitor.log_loss(size, name="size")
        tape.step(
            {
                "loss": loss.item(),
                "loss/fit": fit.item(),
                "loss/size": size.item(),
                "grad_norm": float64_norm(model),
                "micro_batches": 1.0,
            }
        )
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def a_loss_logged_before_its_backward(tape: Tape) -> None:
    """`log_loss` right after the forward: no gradient is there yet, and it counts for the attempt that comes."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    monitor = tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = MSE(model(x), y)
        if monitor is not None:
            monitor.log_loss(loss)
        optimizer.zero_grad()
        (loss + 1e-3 * model[0].weight.square().sum()).backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def a_loss_that_is_logged_in_some_steps_only(tape: Tape) -> None:
    """`log_loss` counts for the attempt that is open, and for no other."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    monitor = tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        loss = MSE(model(x), y)
        penalty = 1e-3 * sum(p.square().sum() for p in model.parameters())
        (loss + penalty).backward()
        if number % 3 == 0 and monitor is not None:
            monitor.log_loss(loss)
        value = loss.item() if number % 3 == 0 else (loss + penalty).item()
        tape.attempt(value, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published(events={"no_gradients": 1})
def a_step_without_any_gradient(tape: Tape) -> None:
    """The batch was empty: the loop steps all the same, on gradients that are None."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data(12)):
        if number == 5:
            tape.attempt(UNKNOWN, OrUnknown(0.0), micro_batches=OrUnknown(0), optional=True)
            optimizer.step()
            continue
        step(tape, optimizer, model, MSE(model(x), y))
    tape.keep(model, optimizer)


@published(events={"nonfinite_step": None})
def it_stepped_although_the_gradients_were_nan(tape: Tape) -> None:
    """No guard at all, and everything after is NaN."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data(12)):
        loss = MSE(model(x * float("nan") if number == 8 else x), y)
        loss.backward()
        before = float64_norm(model)
        tape.attempt(loss, before, before if number < 8 else UNKNOWN)
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model)
