"""Several backwards a step, and what loops do between them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tests.published.tape import UNKNOWN, OrUnknown, Tape, data, float64_norm, mlp, published

MSE = nn.functional.mse_loss


def windows(batches: list[tuple[Tensor, Tensor]], size: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    for start in range(0, len(batches), size):
        yield batches[start : start + size]


@published()
def the_last_window_is_short(tape: Tape) -> None:
    """`if (i + 1) % k == 0 or i + 1 == len(loader)`."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    total, count = 0.0, 0
    batches = data(22)
    for number, (x, y) in enumerate(batches):
        loss = MSE(model(x), y) / 4
        loss.backward()
        total, count = total + loss.item(), count + 1
        if (number + 1) % 4 == 0 or number + 1 == len(batches):
            before = float64_norm(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            tape.attempt(total, before, float64_norm(model), micro_batches=count)
            optimizer.step()
            optimizer.zero_grad()
            total, count = 0.0, 0
    tape.keep(model, optimizer)


@published()
def the_last_window_is_dropped_each_epoch(tape: Tape) -> None:
    """What is left of an epoch is zeroed at the beginning of the next: it was no attempt."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for _ in range(3):
        optimizer.zero_grad()
        total = 0.0
        for number, (x, y) in enumerate(data(10)):
            loss = MSE(model(x), y) / 4
            loss.backward()
            total += loss.item()
            if number % 4 == 3:
                tape.attempt(total, float64_norm(model), micro_batches=4)
                optimizer.step()
                optimizer.zero_grad()
                total = 0.0
    optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def the_last_window_runs_on_into_the_next_epoch(tape: Tape) -> None:
    """Nobody zeroes at the epoch's beginning: two batches of the old one count in the new one's first step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    total, count = 0.0, 0
    for _ in range(2):
        for number, (x, y) in enumerate(data(10)):
            loss = MSE(model(x), y) / 4
            loss.backward()
            total, count = total + loss.item(), count + 1
            if number % 4 == 3:
                tape.attempt(total, float64_norm(model), micro_batches=count)
                optimizer.step()
                optimizer.zero_grad()
                total, count = 0.0, 0
    tape.keep(model, optimizer)


@published(events={"losses_not_divided": 1})
def losses_that_are_not_divided(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    for window in windows(data(), 3):
        optimizer.zero_grad()
        losses = [MSE(model(x), y) for x, y in window]
        for loss in losses:
            loss.backward()
        tape.attempt(sum(loss.item() for loss in losses), float64_norm(model), micro_batches=3)
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def gradients_divided_at_the_end(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for window in windows(data(), 4):
        optimizer.zero_grad()
        total = 0.0
        for x, y in window:
            loss = MSE(model(x), y)
            loss.backward()
            total += loss.item()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= 4
        tape.attempt(total, float64_norm(model), micro_batches=4)
        optimizer.step()
    tape.keep(model, optimizer)


def _by_tokens(tape: Tape, logs: bool) -> None:
    """torchtune's: each loss times its tokens, the gradients divided by all of them. Recorded is what backward saw."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = tape.wrap(optimizer, model=model)
    for number, window in enumerate(windows(data(), 2)):
        running, tokens = 0.0, 0
        for micro, (x, y) in enumerate(window):
            here = 5 + (number + micro) % 7
            loss = MSE(model(x), y) * here
            loss.backward()
            running, tokens = running + loss.item(), tokens + here
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= 1.0 / tokens
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        if logs and monitor is not None:
            monitor.log_loss(running / tokens)
        value = running / tokens if logs else running
        micro_batches = OrUnknown(1, 2) if logs else 2
        tape.attempt(value, before, float64_norm(model), micro_batches=micro_batches)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    tape.keep(model, optimizer)


@published()
def losses_times_tokens(tape: Tape) -> None:
    _by_tokens(tape, logs=False)


@published()
def losses_times_tokens_and_the_mean_logged(tape: Tape) -> None:
    _by_tokens(tape, logs=True)


@published()
def a_clip_after_each_micro_batch(tape: Tape) -> None:
    """The gathered gradients are clipped again and again; the last clip is the step's."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for window in windows(data(), 3):
        optimizer.zero_grad()
        total = 0.0
        for x, y in window:
            loss = MSE(model(x), y) / 3
            loss.backward()
            total += loss.item()
            before = float64_norm(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        tape.attempt(total, OrUnknown(before), float64_norm(model), micro_batches=3)
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def the_window_grows(tape: Tape) -> None:
    """A schedule of the batch size: 1, 2, 3 ... micro-batches a step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    batches = iter(data(21))
    for size in range(1, 7):
        total = 0.0
        for _ in range(size):
            x, y = next(batches)
            loss = MSE(model(x), y) / size
            loss.backward()
            total += loss.item()
        tape.attempt(total, float64_norm(model), micro_batches=size)
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def gradients_kept_as_zeros(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    tape.wrap(optimizer, model=model)
    for window in windows(data(), 4):
        total = 0.0
        for x, y in window:
            loss = MSE(model(x), y) / 4
            loss.backward()
            total += loss.item()
        tape.attempt(total, float64_norm(model), micro_batches=4)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    tape.keep(model, optimizer)


@published(may=("gradients_not_zeroed",))
def gradients_that_are_never_zeroed(tape: Tape) -> None:
    """A mistake, or a poor man's momentum: each attempt has its own loss, and the gradients of all before."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = MSE(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def tasks_one_after_the_other_with_retained_graph(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        out = model(x)
        tasks = [MSE(out, y), out.abs().mean() * 0.1, out.square().mean() * 0.01]
        optimizer.zero_grad()
        for task in tasks:
            task.backward(retain_graph=True)
        tape.attempt(sum(task.item() for task in tasks), float64_norm(model), micro_batches=3)
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def heads_whose_losses_reach_different_parameters(tape: Tape) -> None:
    """Each loss reaches the trunk and one head; one backward each."""
    trunk, heads = mlp(8, 8), nn.ModuleList([nn.Linear(8, 4) for _ in range(3)])
    model = nn.ModuleList([trunk, heads])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        total = 0.0
        for head in heads:
            loss = MSE(head(trunk(x)), y)
            loss.backward()
            total += loss.item()
        tape.attempt(total, float64_norm(model), micro_batches=3)
        optimizer.step()
    tape.keep(model, optimizer)


@published(events={"losses_not_divided": 1})
def a_loss_without_gradient_among_the_micro_batches(tape: Tape) -> None:
    """An empty micro-batch, whose loss is a constant, is left out by the loop."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, window in enumerate(windows(data(), 3)):
        total, count = 0.0, 0
        for micro, (x, y) in enumerate(window):
            loss = MSE(model(x), y) if (number + micro) % 4 else torch.zeros(())
            if loss.requires_grad:
                loss.backward()
                total, count = total + loss.item(), count + 1
        tape.attempt(total, float64_norm(model), micro_batches=count)
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def sums_kept_in_buffers_of_ones_own(tape: Tape) -> None:
    """After each backward the gradients move to buffers; before the step they come back by hand."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for window in windows(data(), 3):
        buffers = [torch.zeros_like(p) for p in model.parameters()]
        total = 0.0
        for x, y in window:
            loss = MSE(model(x), y) / 3
            loss.backward()
            total += loss.item()
            for buffer, parameter in zip(buffers, model.parameters(), strict=True):
                assert parameter.grad is not None
                buffer += parameter.grad
                parameter.grad = None
        for buffer, parameter in zip(buffers, model.parameters(), strict=True):
            parameter.grad = buffer
        tape.attempt(OrUnknown(total), float64_norm(model), micro_batches=OrUnknown(0, 3))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def a_clip_for_each_sample(tape: Tape) -> None:
    """Differential privacy the slow way: a backward and a clip a sample, sums and noise in buffers, set by hand."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data(12, size=4):
        buffers = [torch.zeros_like(p) for p in model.parameters()]
        total = 0.0
        for sample, target in zip(x, y, strict=True):
            optimizer.zero_grad()
            loss = MSE(model(sample), target)
            loss.backward()
            total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            for buffer, parameter in zip(buffers, model.parameters(), strict=True):
                assert parameter.grad is not None
                buffer += parameter.grad
        for buffer, parameter in zip(buffers, model.parameters(), strict=True):
            parameter.grad = (buffer + 0.01 * torch.randn_like(buffer)) / len(x)
        got = float64_norm(model)
        tape.attempt(OrUnknown(total), OrUnknown(got), got, micro_batches=OrUnknown(0, 4))
        optimizer.step()
    optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def a_single_backward_of_the_sum(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for window in windows(data(), 3):
        optimizer.zero_grad()
        loss = torch.stack([MSE(model(x), y) for x, y in window]).mean()
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def backpropagation_through_time_in_chunks(tape: Tape) -> None:
    """Truncated: a backward a chunk, the hidden state detached between, one step a sequence."""
    cell, head = nn.GRUCell(8, 16), nn.Linear(16, 4)
    model = nn.ModuleList([cell, head])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    for window in windows(data(), 6):
        hidden = torch.zeros(16, 16)
        total = 0.0
        for chunk in windows(window, 2):
            hidden = hidden.detach()
            losses = []
            for x, y in chunk:
                hidden = cell(x, hidden)
                losses.append(MSE(head(hidden), y))
            loss = torch.stack(losses).sum()
            loss.backward()
            total += loss.item()
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        tape.attempt(total, before, float64_norm(model), micro_batches=3)
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def wrapped_in_the_middle_of_a_window(tape: Tape) -> None:
    """Two of the first window's four backwards came before `wrap`: a part of its loss is nobody's loss."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for number, window in enumerate(windows(data(), 4)):
        total = 0.0
        for micro, (x, y) in enumerate(window):
            if (number, micro) == (0, 2):
                tape.wrap(optimizer, model=model)
            loss = MSE(model(x), y) / 4
            loss.backward()
            total += loss.item()
        partial = number == 0
        value, count = (OrUnknown(total), OrUnknown(4)) if partial else (total, 4)
        tape.attempt(value, float64_norm(model), micro_batches=count)
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published(may=("step_without_backward",))
def two_steps_on_one_gradient(tape: Tape) -> None:
    """The second has the gradient of the first, and no backward of its own."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data(12):
        optimizer.zero_grad()
        loss = MSE(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        tape.attempt(UNKNOWN, float64_norm(model), micro_batches=OrUnknown(0))
        optimizer.step()
    tape.keep(model, optimizer)


@published(events={"clip_after_step": 1})
def a_clip_before_backward(tape: Tape) -> None:
    """A mistake: it clips what the last step left behind, and that is zeroed. This step's gradients are whole."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = MSE(model(x), y)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.zero_grad()
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published(events={"clip_after_step": 1})
def a_clip_after_the_step(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        loss = MSE(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    tape.keep(model, optimizer)


@published()
def gradients_that_were_there_before_wrap(tape: Tape) -> None:
    """A sanity check's backward before `wrap`, zeroed by the loop's own beginning."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    MSE(model(torch.ones(2, 8)), torch.ones(2, 4)).backward()
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        loss = MSE(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def a_hook_of_the_users_halves_the_gradients_at_the_step(tape: Tape) -> None:
    """`register_step_pre_hook` after `wrap`: what the optimizer got is half of what was clipped."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model, scalar_interval=1)

    def halve(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)

    optimizer.register_step_pre_hook(halve)
    for x, y in data():
        optimizer.zero_grad()
        loss = MSE(model(x), y)
        loss.backward()
        before = float64_norm(model)
        tape.attempt(loss, before, OrUnknown(before / 2))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def many_micro_batches_divided_by_their_number(tape: Tape) -> None:
    """128 of them, and `p.grad /= 128`: the quotient is a power of two, and no loss scale."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    batches = data(8)
    for _ in range(3):
        total = 0.0
        for number in range(128):
            x, y = batches[number % 8]
            loss = MSE(model(x), y)
            loss.backward()
            total += loss.item()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= 128
        tape.attempt(OrUnknown(total), float64_norm(model), micro_batches=OrUnknown(128))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def experts_of_which_each_batch_reaches_two(tape: Tape) -> None:
    """A mixture of experts: most parameters have no gradient in a micro-batch, and some have none in a step."""
    experts, router = nn.ModuleList([mlp(8, 4) for _ in range(12)]), nn.Linear(8, 12)
    model = nn.ModuleList([experts, router])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    for number, window in enumerate(windows(data(24), 3)):
        total = 0.0
        for micro, (x, y) in enumerate(window):
            chosen = [(number * 3 + micro) % 12, (number * 5 + micro * 7) % 12]
            weights = router(x).softmax(1)
            out = sum(weights[:, place : place + 1] * experts[place](x) for place in chosen)
            loss = MSE(out, y) / 3
            loss.backward()
            total += loss.item()
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        tape.attempt(total, before, float64_norm(model), micro_batches=3)
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def one_loss_twice_over_a_retained_graph(tape: Tape) -> None:
    """The gradients are those of twice the loss, and so is the loss."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data(12):
        optimizer.zero_grad()
        loss = MSE(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        tape.attempt(2 * loss.item(), float64_norm(model), micro_batches=2)
        optimizer.step()
    tape.keep(model, optimizer)


@published(events={"no_gradients": 1})
def zeroed_between_backward_and_step(tape: Tape) -> None:
    """A mistake in the order of lines: every step is empty, and that is said."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data(12):
        MSE(model(x), y).backward()
        optimizer.zero_grad()
        tape.attempt(UNKNOWN, OrUnknown(0.0), micro_batches=OrUnknown(0), optional=True)
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def numbers_that_are_none_are_made_zeros(tape: Tape) -> None:
    """`p.grad.nan_to_num_()` before each step: the step is one, with the gradients that were left."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        loss = MSE(model(x), y)
        if number == 7:
            loss = loss + sum((0.0 * p.sum()).sqrt() for p in model[4].parameters())
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def sparse_gradients_that_accumulate(tape: Tape) -> None:
    table, head = nn.Embedding(20, 8, sparse=True), torch.randn(8, 4)
    optimizer = torch.optim.SGD(table.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=table)
    for window in windows(data(12), 3):
        total = 0.0
        for _, y in window:
            loss = MSE(table(torch.randint(20, (16,))) @ head, y) / 3
            loss.backward()
            total += loss.item()
        assert table.weight.grad is not None
        norm = table.weight.grad.coalesce().values().double().norm().item()
        tape.attempt(total, norm, micro_batches=3)
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(table)
