"""Gradients that come another way than `loss.backward()`: by hand, with a gradient of their own, for several roots."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import backward as early_bound_backward

from tests.published.tape import UNKNOWN, OrUnknown, Tape, data, float64_norm, mlp, published

NONE = OrUnknown(0)
"""Of backward calls where there was none that tbnum could count."""


@published()
def set_from_autograd_grad(tape: Tape) -> None:
    model = mlp()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        tape.attempt(UNKNOWN, float64_norm(model), micro_batches=NONE)
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def set_from_autograd_grad_and_the_loss_logged(tape: Tape) -> None:
    model = mlp()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    monitor = tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(parameters, 0.2)
        if monitor is not None:
            monitor.log_loss(loss)
        tape.attempt(loss, before, float64_norm(model), micro_batches=OrUnknown(0, 1))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def copied_into_gradients_that_are_zeros(tape: Tape) -> None:
    """`zero_grad(set_to_none=False)` and `p.grad.copy_(...)`, as in code that shares its buffers."""
    model = mlp()
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.mse_loss(model(x), y)
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient)
        tape.attempt(UNKNOWN, float64_norm(model), micro_batches=NONE)
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def projected_conflicting_gradients(tape: Tape) -> None:
    """PCGrad: a gradient for each task by `autograd.grad`, projected, summed and set."""
    model = mlp()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        out = model(x)
        tasks = [nn.functional.mse_loss(out[:, :2], y[:, :2]), nn.functional.l1_loss(out[:, 2:], y[:, 2:])]
        vectors = [
            nn.utils.parameters_to_vector(torch.autograd.grad(task, parameters, retain_graph=True)) for task in tasks
        ]
        first, second = vectors
        if first @ second < 0:
            towards_second, towards_first = (
                first @ second / second.square().sum(),
                second @ first / first.square().sum(),
            )
            first, second = first - towards_second * second, second - towards_first * first
        offset = 0
        for parameter in parameters:
            count = parameter.numel()
            parameter.grad = (first + second)[offset : offset + count].view_as(parameter).clone()
            offset += count
        tape.attempt(UNKNOWN, float64_norm(model), micro_batches=NONE)
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def projected_conflicting_gradients_by_backward(tape: Tape) -> None:
    """The same with one `backward` a task, zeroed between, and the sum set by hand: whose losses, nothing says."""
    model = mlp()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        out = model(x)
        tasks = [nn.functional.mse_loss(out[:, :2], y[:, :2]), nn.functional.l1_loss(out[:, 2:], y[:, 2:])]
        gathered: list[list[Tensor]] = []
        for task in tasks:
            optimizer.zero_grad()
            task.backward(retain_graph=True)
            gathered.append([p.grad.clone() for p in parameters if p.grad is not None])
        optimizer.zero_grad()
        for parameter, first, second in zip(parameters, *gathered, strict=True):
            parameter.grad = first + second
        tape.attempt(OrUnknown(tasks[0].item() + tasks[1].item()), float64_norm(model), micro_batches=OrUnknown(0, 2))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def averaged_over_workers_by_hand(tape: Tape) -> None:
    """DDP by hand: after backward each gradient is replaced by the mean over workers; the loss is this worker's."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = (parameter.grad + parameter.grad * 0.5) / 2
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def grad_cache(tape: Tape) -> None:
    """GradCache: the loss reaches representations alone; a surrogate of each chunk reaches the parameters."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        chunks = x.chunk(4)
        with torch.no_grad():
            representations = torch.cat([model(chunk) for chunk in chunks])
        representations.requires_grad_()
        similarity = representations @ y.T
        nn.functional.cross_entropy(similarity, torch.arange(len(x))).backward()
        assert representations.grad is not None
        optimizer.zero_grad()
        for chunk, gradient in zip(chunks, representations.grad.chunk(4), strict=True):
            surrogate = torch.dot(model(chunk).flatten(), gradient.flatten())
            surrogate.backward()
        tape.attempt(UNKNOWN, float64_norm(model), micro_batches=OrUnknown(4))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def grad_cache_with_the_loss_logged(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = tape.wrap(optimizer, model=model)
    for x, y in data():
        chunks = x.chunk(4)
        with torch.no_grad():
            representations = torch.cat([model(chunk) for chunk in chunks])
        representations.requires_grad_()
        loss = nn.functional.cross_entropy(representations @ y.T, torch.arange(len(x)))
        loss.backward()
        assert representations.grad is not None
        optimizer.zero_grad()
        for chunk, gradient in zip(chunks, representations.grad.chunk(4), strict=True):
            torch.dot(model(chunk).flatten(), gradient.flatten()).backward()
        if monitor is not None:
            monitor.log_loss(loss)
        tape.attempt(loss, float64_norm(model), micro_batches=OrUnknown(4))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def a_vector_root_with_its_gradient(tape: Tape) -> None:
    """`out.backward(gradient)`: the loss was taken elsewhere, on another machine say."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        out = model(x)
        out.backward((out.detach() - y) * 2 / out.numel())
        tape.attempt(UNKNOWN, float64_norm(model), micro_batches=OrUnknown(1))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def a_pipeline_of_two_stages(tape: Tape) -> None:
    """The second stage's loss is a loss; the first stage gets the gradient of its output."""
    first, second = mlp(8, 8), mlp(8, 4)
    optimizers = {
        "first": torch.optim.SGD(first.parameters(), lr=1e-2),
        "second": torch.optim.SGD(second.parameters(), lr=1e-2),
    }
    tape.wrap(optimizers["first"], model=first, run="first")
    tape.wrap(optimizers["second"], model=second, run="second")
    for x, y in data():
        sent = first(x)
        received = sent.detach().requires_grad_()
        loss = nn.functional.mse_loss(second(received), y)
        loss.backward()
        sent.backward(received.grad)
        tape.attempt(UNKNOWN, float64_norm(first), micro_batches=OrUnknown(1), run="first")
        tape.attempt(loss, float64_norm(second), run="second")
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
    tape.keep(first, second, *optimizers.values())


@published()
def a_scalar_root_with_its_gradient(tape: Tape) -> None:
    """`loss.backward(torch.tensor(0.5))` is the backward of half the loss."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward(torch.tensor(0.5))
        tape.attempt(loss.item() * 0.5, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def losses_of_samples_with_a_gradient_of_ones(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        losses = nn.functional.mse_loss(model(x), y, reduction="none").mean(dim=1)
        losses.backward(torch.ones_like(losses))
        tape.attempt(OrUnknown(losses.sum().item()), float64_norm(model), micro_batches=OrUnknown(1))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def losses_of_samples_with_weights_of_theirs(tape: Tape) -> None:
    """Importance sampling: the weighted sum is what was minimized, and the plain sum is nobody's."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        losses = nn.functional.mse_loss(model(x), y, reduction="none").mean(dim=1)
        weights = torch.linspace(0.1, 1.0, len(losses))
        losses.backward(weights)
        tape.attempt(OrUnknown((losses * weights).sum().item()), float64_norm(model), micro_batches=OrUnknown(1))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def several_roots_of_one_backward(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        out = model(x)
        first, second = nn.functional.mse_loss(out, y), out.abs().mean()
        optimizer.zero_grad()
        torch.autograd.backward([first, second])
        tape.attempt(first.item() + second.item(), float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def several_roots_with_a_gradient_each(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        out = model(x)
        first, second = nn.functional.mse_loss(out, y), out.abs().mean()
        optimizer.zero_grad()
        torch.autograd.backward([first, second], [torch.tensor(1.0), torch.tensor(0.25)])
        tape.attempt(first.item() + 0.25 * second.item(), float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def a_loss_and_a_vector_in_one_backward(tape: Tape) -> None:
    """A part of the graph whose loss is elsewhere, beside a loss: together they are no loss that one knows."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        out = model(x)
        optimizer.zero_grad()
        torch.autograd.backward([nn.functional.mse_loss(out, y), out], [None, torch.full_like(out, 1e-3)])
        tape.attempt(UNKNOWN, float64_norm(model), micro_batches=OrUnknown(1))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def a_root_of_one_element_in_a_vector(tape: Tape) -> None:
    """A loss of shape (1,): losses of `nn.DataParallel` and of older code."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y).reshape(1)
        optimizer.zero_grad()
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def a_backward_for_named_inputs_alone(tape: Tape) -> None:
    """`loss.backward(inputs=head)` trains the head; a second backward is for the input, and reaches nothing here."""
    model = mlp()
    head = list(model[-1].parameters())
    optimizer = torch.optim.SGD(head, lr=1e-2)
    tape.wrap(optimizer)
    for x, y in data():
        x = x.clone().requires_grad_()
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward(inputs=head, retain_graph=True)
        loss.backward(inputs=[x])
        tape.attempt(loss, float64_norm(head))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def functional_gradients(tape: Tape) -> None:
    """`torch.func.grad_and_value` over a dict of parameters, set by hand."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)

    def loss_of(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

    for x, y in data():
        parameters = dict(model.named_parameters())
        gradients, _ = torch.func.grad_and_value(loss_of)({k: p.detach() for k, p in parameters.items()}, x, y)
        for name, gradient in gradients.items():
            parameters[name].grad = gradient
        tape.attempt(UNKNOWN, float64_norm(model), micro_batches=NONE)
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def evolution_strategies(tape: Tape) -> None:
    """No backward at all: the gradient is estimated from losses at random points."""
    model = mlp()
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    tape.wrap(optimizer, model=model)
    with torch.no_grad():
        for x, y in data(12):
            estimates = [torch.zeros_like(p) for p in parameters]
            for _ in range(4):
                noise = [torch.randn_like(p) for p in parameters]
                torch._foreach_add_(parameters, noise, alpha=0.05)
                loss = nn.functional.mse_loss(model(x), y)
                torch._foreach_sub_(parameters, noise, alpha=0.05)
                torch._foreach_add_(estimates, torch._foreach_mul(noise, loss.item() / 4))
            for parameter, estimate in zip(parameters, estimates, strict=True):
                parameter.grad = estimate
            tape.attempt(UNKNOWN, float64_norm(model), micro_batches=NONE)
            optimizer.step()
    tape.keep(model, optimizer)


@published()
def noise_added_to_the_gradients(tape: Tape) -> None:
    """Differential privacy's shape: clip, then noise; what the optimizer got is neither norm of the clip's."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model, scalar_interval=1)
    for x, y in data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.add_(torch.randn_like(parameter), alpha=0.01)
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def a_gradient_hook_scales_the_first_layer(tape: Tape) -> None:
    model = mlp()
    model[0].weight.register_hook(lambda gradient: gradient * 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published(warns=("never|step",), may=("never_stepped",))
def parameters_moved_by_hand(tape: Tape) -> None:
    """`p.data.add_(p.grad, alpha=-lr)`: the optimizer that was wrapped never steps, and that is said."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data(60):
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-1e-2)
    tape.keep(model, optimizer)


@published()
def a_backward_by_a_name_bound_early(tape: Tape) -> None:
    """`from torch.autograd import backward`, before anything was wrapped."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        early_bound_backward(loss)
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def anomalies_are_detected_and_caught(tape: Tape) -> None:
    """`detect_anomaly` raises out of backward; the loop leaves the batch out."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    with torch.autograd.set_detect_anomaly(True):
        for number, (x, y) in enumerate(data(12)):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            if number == 5:
                loss = loss + sum((0.0 * p.sum()).sqrt() for p in model.parameters())
            try:
                loss.backward()
            except RuntimeError:
                tape.attempt(OrUnknown(loss.item()), OrUnknown(), skipped=True, optional=True)
                continue
            tape.attempt(loss, float64_norm(model))
            optimizer.step()
    tape.keep(model, optimizer)
