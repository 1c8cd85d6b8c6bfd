"""Several optimizers and several models: reinforcement learning, meta-learning, parts that take turns."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn

from tests.published.tape import UNKNOWN, OrUnknown, Tape, data, float64_norm, mlp, published

MSE = nn.functional.mse_loss


def adams(**modules: nn.Module) -> dict[str, torch.optim.Adam]:
    return {name: torch.optim.Adam(module.parameters(), lr=1e-3) for name, module in modules.items()}


@published()
def one_model_in_two_optimizers(tape: Tape) -> None:
    """Matrices in one, vectors in another, as with Muon and AdamW: one backward is both's, and counts once."""
    model = mlp()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizers = {"matrices": torch.optim.SGD(matrices, lr=1e-2), "vectors": torch.optim.AdamW(vectors, lr=1e-3)}
    tape.wrap(optimizers, model=model)
    for x, y in data():
        loss = MSE(model(x), y)
        loss.backward()
        tape.step(
            {
                "loss": loss.item(),
                "micro_batches": 1.0,
                "matrices/loss": loss.item(),
                "vectors/loss": loss.item(),
                "matrices/grad_norm": float64_norm(matrices),
                "vectors/grad_norm": float64_norm(vectors),
                "skipped": False,
            }
        )
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
    tape.keep(model, *optimizers.values())


@published()
def one_clip_over_two_optimizers(tape: Tape) -> None:
    model = mlp()
    first, second = list(model[:2].parameters()), list(model[2:].parameters())
    optimizers = {"first": torch.optim.SGD(first, lr=1e-2), "second": torch.optim.SGD(second, lr=1e-3)}
    tape.wrap(optimizers, model=model)
    for x, y in data():
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        loss = MSE(model(x), y)
        loss.backward()
        before = float64_norm(first), float64_norm(second)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        tape.step(
            {
                "loss": loss.item(),
                "first/grad_norm": before[0],
                "second/grad_norm": before[1],
                "first/grad_norm_clipped": float64_norm(first),
                "second/grad_norm_clipped": float64_norm(second),
            }
        )
        for optimizer in optimizers.values():
            optimizer.step()
    tape.keep(model, *optimizers.values())


def _actor_critic(tape: Tape, apart: bool) -> None:
    """The actor's loss passes through the critic, whose gradients are zeroed before its own backward."""
    actor, critic = mlp(8, 4), mlp(12, 1)
    optimizers = {
        "actor": torch.optim.Adam(actor.parameters(), 1e-3),
        "critic": torch.optim.Adam(critic.parameters(), 1e-3),
    }
    if apart:
        for name, optimizer in optimizers.items():
            tape.wrap(optimizer, run=name)
    else:
        tape.wrap(optimizers)
    for state, target in data():
        action = actor(state)
        critic_loss = MSE(critic(torch.cat([state, action.detach()], 1)), target[:, :1])
        optimizers["critic"].zero_grad()
        critic_loss.backward()
        critic_norm = float64_norm(critic)
        optimizers["critic"].step()
        actor_loss = -critic(torch.cat([state, action], 1)).mean()
        optimizers["actor"].zero_grad()
        actor_loss.backward()
        actor_norm = float64_norm(actor)
        optimizers["actor"].step()
        if apart:
            tape.attempt(critic_loss, critic_norm, run="critic")
            tape.attempt(actor_loss, actor_norm, run="actor")
        else:
            tape.step(
                {
                    "loss": critic_loss.item() + actor_loss.item(),
                    "critic/loss": critic_loss.item(),
                    "actor/loss": actor_loss.item(),
                    "critic/grad_norm": critic_norm,
                    "actor/grad_norm": actor_norm,
                }
            )
    tape.keep(actor, critic, *optimizers.values())


@published()
def ddpg_together(tape: Tape) -> None:
    _actor_critic(tape, apart=False)


@published()
def ddpg_apart(tape: Tape) -> None:
    _actor_critic(tape, apart=True)


@published()
def td3_with_a_delayed_actor(tape: Tape) -> None:
    """Twin critics in one optimizer; the actor steps every second time; targets follow by Polyak averaging."""
    actor, critics = mlp(8, 4), nn.ModuleList([mlp(12, 1), mlp(12, 1)])
    targets = copy.deepcopy(critics).requires_grad_(False)
    optimizers = {
        "actor": torch.optim.Adam(actor.parameters(), 1e-3),
        "critic": torch.optim.Adam(critics.parameters(), 1e-3),
    }
    tape.wrap(optimizers)
    for number, (state, reward) in enumerate(data()):
        with torch.no_grad():
            pair = torch.cat([state, actor(state) + 0.1 * torch.randn(16, 4)], 1)
            target = reward[:, :1] + 0.9 * torch.minimum(targets[0](pair), targets[1](pair))
        seen = torch.cat([state, reward], 1)
        critic_loss = MSE(critics[0](seen), target) + MSE(critics[1](seen), target)
        optimizers["critic"].zero_grad()
        critic_loss.backward()
        norm = float64_norm(critics)
        optimizers["critic"].step()
        tape.of("critic", loss=critic_loss, grad_norm=norm, grad_norm_clipped=norm)
        if number % 2:
            actor_loss = -critics[0](torch.cat([state, actor(state)], 1)).mean()
            optimizers["actor"].zero_grad()
            actor_loss.backward()
            norm = float64_norm(actor)
            optimizers["actor"].step()
            tape.of("actor", loss=actor_loss, grad_norm=norm, grad_norm_clipped=norm)
            with torch.no_grad():
                for target_parameter, parameter in zip(targets.parameters(), critics.parameters(), strict=True):
                    target_parameter.lerp_(parameter, 0.05)
    tape.keep(actor, critics, targets, *optimizers.values())


@published()
def sac_with_a_temperature(tape: Tape) -> None:
    """Critic, actor and temperature, each with its optimizer and its own loss."""
    actor, critic = mlp(8, 4), mlp(12, 1)
    log_alpha = nn.Parameter(torch.zeros(()))
    optimizers = {
        "critic": torch.optim.Adam(critic.parameters(), 1e-3),
        "actor": torch.optim.Adam(actor.parameters(), 1e-3),
        "alpha": torch.optim.Adam([log_alpha], 1e-2),
    }
    tape.wrap(optimizers)
    for state, reward in data():
        losses, norms = {}, {}
        losses["critic"] = MSE(critic(torch.cat([state, reward], 1)), reward[:, :1])
        optimizers["critic"].zero_grad()
        losses["critic"].backward()
        norms["critic"] = float64_norm(critic)
        optimizers["critic"].step()
        action = actor(state)
        entropy = action.square().mean()
        losses["actor"] = (log_alpha.exp().detach() * entropy - critic(torch.cat([state, action], 1))).mean()
        optimizers["actor"].zero_grad()
        losses["actor"].backward()
        norms["actor"] = float64_norm(actor)
        optimizers["actor"].step()
        losses["alpha"] = -(log_alpha * (entropy.detach() - 0.5)).mean()
        optimizers["alpha"].zero_grad()
        losses["alpha"].backward()
        norms["alpha"] = float64_norm([log_alpha])
        optimizers["alpha"].step()
        columns: dict[str, float] = {f"{name}/loss": loss.item() for name, loss in losses.items()}
        columns |= {f"{name}/grad_norm": norm for name, norm in norms.items()}
        tape.step({"loss": sum(loss.item() for loss in losses.values()), **columns})
    tape.keep(actor, critic, log_alpha, *optimizers.values())


@published()
def ppo_with_an_early_break(tape: Tape) -> None:
    """Epochs of minibatches over one rollout, broken off by the divergence; norms clipped at 0.5; the rate anneals."""
    policy, value = mlp(8, 4), mlp(8, 1)
    model = nn.ModuleList([policy, value])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, eps=1e-5)
    tape.wrap(optimizer, model=model)
    broken = 0
    for update in range(3):
        optimizer.param_groups[0]["lr"] = 3e-2 * (1 - update / 3)
        states = torch.cat([x for x, _ in data(4)])
        with torch.no_grad():
            distribution = torch.distributions.Categorical(logits=policy(states))
            actions = distribution.sample()
            old = distribution.log_prob(actions)
        advantages, returns = torch.randn(len(states)), torch.randn(len(states))
        for _ in range(4):
            divergence = 0.0
            for chosen in torch.randperm(len(states)).chunk(4):
                distribution = torch.distributions.Categorical(logits=policy(states[chosen]))
                ratio = (distribution.log_prob(actions[chosen]) - old[chosen]).exp()
                divergence = (ratio - 1 - ratio.log()).mean().item()
                surrogate = -torch.minimum(
                    ratio * advantages[chosen], ratio.clamp(0.8, 1.2) * advantages[chosen]
                ).mean()
                loss = surrogate + 0.5 * MSE(value(states[chosen]).squeeze(1), returns[chosen])
                loss = loss - 0.01 * distribution.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                before = float64_norm(model)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                tape.attempt(loss, before, float64_norm(model))
                optimizer.step()
            if divergence > 0.02:
                broken += 1
                break
    tape.keep(model, optimizer, broken)


@published()
def ppo_that_breaks_between_backward_and_step(tape: Tape) -> None:
    """The gradients of a broken-off minibatch are thrown away, clipped as they are: it is rare, and given up."""
    policy = mlp(8, 4)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=policy)
    for rollout in range(3):
        for number, (x, y) in enumerate(data(10)):
            loss = MSE(policy(x), y)
            optimizer.zero_grad()
            loss.backward()
            before = float64_norm(policy)
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            if rollout and number == 8:
                tape.attempt(loss, before, skipped=True, optional=True)
                break
            tape.attempt(loss, before, float64_norm(policy))
            optimizer.step()
    optimizer.zero_grad()
    tape.keep(policy, optimizer)


@published()
def an_actor_and_a_critic_on_one_trunk(tape: Tape) -> None:
    """Both optimizers hold the trunk; each loss has its own backward, over one graph."""
    trunk, actor, critic = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 1)
    of = {"actor": [*trunk.parameters(), *actor.parameters()], "critic": [*critic.parameters()]}
    optimizers = {name: torch.optim.SGD(parameters, lr=1e-2) for name, parameters in of.items()}
    tape.wrap(optimizers)
    for x, y in data():
        hidden = trunk(x).tanh()
        actor_loss, critic_loss = MSE(actor(hidden), y), MSE(critic(hidden.detach()), y[:, :1])
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        actor_loss.backward()
        critic_loss.backward()
        tape.step(
            {
                "loss": actor_loss.item() + critic_loss.item(),
                "actor/loss": actor_loss.item(),
                "critic/loss": critic_loss.item(),
                "actor/grad_norm": float64_norm(of["actor"]),
                "critic/grad_norm": float64_norm(of["critic"]),
            }
        )
        for optimizer in optimizers.values():
            optimizer.step()
    tape.keep(trunk, actor, critic, *optimizers.values())


@published()
def dqn_with_a_target_network(tape: Tape) -> None:
    online = mlp(8, 4)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=online)
    for number, (state, reward) in enumerate(data()):
        with torch.no_grad():
            wanted = reward[:, 0] + 0.9 * target(state.roll(1, 0)).max(dim=1).values
        loss = nn.functional.smooth_l1_loss(online(state)[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        before = float64_norm(online)
        nn.utils.clip_grad_value_(online.parameters(), 0.01)
        after = float64_norm(online)
        tape.attempt(loss, OrUnknown(before), after)
        optimizer.step()
        if number % 6 == 5:
            target.load_state_dict(online.state_dict())
    tape.keep(online, target, optimizer)


@published()
def optimizers_that_take_turns(tape: Tape) -> None:
    """Three steps of the one, three of the other; the loss reaches both halves, and everything is zeroed."""
    model = mlp()
    halves = {"first": list(model[:3].parameters()), "second": list(model[3:].parameters())}
    optimizers = {name: torch.optim.SGD(parameters, lr=1e-2) for name, parameters in halves.items()}
    tape.wrap(optimizers, model=model)
    for number, (x, y) in enumerate(data()):
        model.zero_grad()
        loss = MSE(model(x), y)
        loss.backward()
        turn = "first" if number // 3 % 2 == 0 else "second"
        norm = float64_norm(halves[turn])
        optimizers[turn].step()
        tape.of(turn, loss=loss, grad_norm=norm, grad_norm_clipped=norm)
    tape.keep(model, *optimizers.values())


@published()
def an_encoder_that_waits(tape: Tape) -> None:
    """Two optimizers; the encoder's gradients are zeroed unused for ten steps, then both step."""
    encoder, head = mlp(8, 8), nn.Linear(8, 4)
    optimizers = {
        "encoder": torch.optim.SGD(encoder.parameters(), 1e-2),
        "head": torch.optim.SGD(head.parameters(), 1e-2),
    }
    tape.wrap(optimizers)
    for number, (x, y) in enumerate(data()):
        loss = MSE(head(encoder(x)), y)
        loss.backward()
        for name, module in (("encoder", encoder), ("head", head)):
            if name == "head" or number >= 10:
                norm = float64_norm(module)
                optimizers[name].step()
                tape.of(name, loss=loss, grad_norm=norm, grad_norm_clipped=norm)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
    tape.keep(encoder, head, *optimizers.values())


@published()
def sparse_and_dense_parameters(tape: Tape) -> None:
    table, head = nn.Embedding(20, 8, sparse=True), mlp(8, 4)
    optimizers = {
        "sparse": torch.optim.SparseAdam(list(table.parameters()), lr=1e-2),
        "dense": torch.optim.AdamW(head.parameters(), lr=1e-3),
    }
    tape.wrap(optimizers)
    for _, y in data():
        tokens = torch.randint(20, (16,))
        loss = MSE(head(table(tokens)), y)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        assert table.weight.grad is not None
        sparse = table.weight.grad.coalesce().values().double().norm().item()
        tape.step(
            {
                "loss": loss.item(),
                "sparse/grad_norm": sparse,
                "dense/grad_norm": float64_norm(head),
                "sparse/loss": loss.item(),
            }
        )
        for optimizer in optimizers.values():
            optimizer.step()
    tape.keep(table, head)


@published()
def mutual_learning_apart(tape: Tape) -> None:
    """Two students that teach each other, each wrapped for itself."""
    students = [mlp(), mlp()]
    optimizers = [torch.optim.SGD(student.parameters(), lr=1e-2) for student in students]
    for number, optimizer in enumerate(optimizers):
        tape.wrap(optimizer, model=students[number], run=f"student{number}")
    for x, y in data():
        outs = [student(x) for student in students]
        losses = [MSE(out, y) + MSE(out, other.detach()) for out, other in ((outs[0], outs[1]), (outs[1], outs[0]))]
        for optimizer in optimizers:
            optimizer.zero_grad()
        for loss in losses:
            loss.backward()
        for number, optimizer in enumerate(optimizers):
            tape.attempt(losses[number], float64_norm(students[number]), run=f"student{number}")
            optimizer.step()
    tape.keep(*students, *optimizers)


@published()
def darts(tape: Tape) -> None:
    """First order: the architecture's backward reaches the weights too, and the other way round."""
    branches, alphas = nn.ModuleList([nn.Linear(8, 4), mlp()]), nn.Parameter(torch.zeros(2))
    weights_optimizer = torch.optim.SGD(branches.parameters(), lr=1e-2)
    alphas_optimizer = torch.optim.Adam([alphas], lr=1e-2)
    tape.wrap(weights_optimizer, model=branches, run="weights")
    tape.wrap(alphas_optimizer, run="alphas")

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        shares = alphas.softmax(0)
        return MSE(sum(share * branch(x) for share, branch in zip(shares, branches, strict=True)), y)

    for (x, y), (held_x, held_y) in itertools.pairwise(data()):
        alphas_optimizer.zero_grad()
        outer = loss_of(held_x, held_y)
        outer.backward()
        tape.attempt(outer, float64_norm([alphas]), run="alphas")
        alphas_optimizer.step()
        weights_optimizer.zero_grad()
        inner = loss_of(x, y)
        inner.backward()
        before = float64_norm(branches)
        nn.utils.clip_grad_norm_(branches.parameters(), 0.3)
        tape.attempt(inner, before, float64_norm(branches), run="weights")
        weights_optimizer.step()
    tape.keep(branches, alphas, weights_optimizer, alphas_optimizer)


@published()
def maml(tape: Tape) -> None:
    """Second order: inner steps by `autograd.grad(create_graph=True)`, one outer backward over all tasks."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    tape.wrap(optimizer, model=model)
    names = [name for name, _ in model.named_parameters()]
    for number in range(8):
        optimizer.zero_grad()
        losses = []
        for x, y in data(3 + number % 2):
            fast = dict(model.named_parameters())
            inner = MSE(torch.func.functional_call(model, fast, (x[:8],)), y[:8])
            gradients = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {name: fast[name] - 0.1 * gradient for name, gradient in zip(names, gradients, strict=True)}
            losses.append(MSE(torch.func.functional_call(model, fast, (x[8:],)), y[8:]))
        loss = torch.stack(losses).mean()
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def first_order_maml(tape: Tape) -> None:
    """A copy of the model learns the task; its last gradients are added to the model's by hand."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for _ in range(6):
        optimizer.zero_grad()
        for x, y in data(2):
            learner = copy.deepcopy(model)
            inner = torch.optim.SGD(learner.parameters(), lr=0.1)
            MSE(learner(x[:8]), y[:8]).backward()
            inner.step()
            inner.zero_grad()
            MSE(learner(x[8:]), y[8:]).backward()
            for parameter, learned in zip(model.parameters(), learner.parameters(), strict=True):
                assert learned.grad is not None
                parameter.grad = learned.grad.clone() if parameter.grad is None else parameter.grad + learned.grad
        tape.attempt(UNKNOWN, float64_norm(model), micro_batches=OrUnknown(0))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def reptile(tape: Tape) -> None:
    """The meta-gradient is the way that a copy went."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for _ in range(6):
        learner = copy.deepcopy(model)
        inner = torch.optim.SGD(learner.parameters(), lr=0.1)
        for x, y in data(3):
            inner.zero_grad()
            MSE(learner(x), y).backward()
            inner.step()
        for parameter, learned in zip(model.parameters(), learner.parameters(), strict=True):
            parameter.grad = parameter.data - learned.data
        tape.attempt(UNKNOWN, float64_norm(model), micro_batches=OrUnknown(0))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


@published()
def learned_weights_of_losses(tape: Tape) -> None:
    """Kendall's: log variances in a group of their own."""
    model, log_variances = mlp(), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": [log_variances], "lr": 1e-2}], lr=1e-3)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        out = model(x)
        tasks = torch.stack([MSE(out[:, :2], y[:, :2]), nn.functional.l1_loss(out[:, 2:], y[:, 2:])])
        loss = (tasks * (-log_variances).exp() + log_variances).sum()
        optimizer.zero_grad()
        loss.backward()
        tape.attempt(loss, float64_norm([*model.parameters(), log_variances]))
        optimizer.step()
    tape.keep(model, log_variances, optimizer)


@published()
def a_second_model_trained_beside_unwrapped(tape: Tape) -> None:
    """Another model and optimizer in the same loop, which nobody wrapped: none of its numbers are ours."""
    model, other = mlp(), mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    others = torch.optim.SGD(other.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss, others_loss = MSE(model(x), y), MSE(other(x), y) * 100
        optimizer.zero_grad()
        others.zero_grad()
        others_loss.backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.1)
        others.step()
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, other, optimizer, others)


@published()
def layers_with_losses_of_their_own(tape: Tape) -> None:
    """Forward-forward: each layer has an optimizer, a local loss, and steps before the next layer is run."""
    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
    optimizers = {f"layer{n}": torch.optim.Adam(layer.parameters(), lr=1e-2) for n, layer in enumerate(layers)}
    tape.wrap(optimizers)
    for x, _ in data():
        columns: dict[str, float] = {}
        good, bad = x, x.roll(1, 1)
        for layer, (name, optimizer) in zip(layers, optimizers.items(), strict=True):
            good, bad = layer(good).relu(), layer(bad).relu()
            margin = good.square().mean(1) - bad.square().mean(1)
            loss = nn.functional.softplus(-margin).mean()
            optimizer.zero_grad()
            loss.backward()
            columns |= {f"{name}/loss": loss.item(), f"{name}/grad_norm": float64_norm(layer)}
            optimizer.step()
            good, bad = good.detach(), bad.detach()
        tape.step({"loss": sum(columns[f"{name}/loss"] for name in optimizers), **columns})
    tape.keep(layers, *optimizers.values())


@published()
def closed_in_the_middle_and_wrapped_again(tape: Tape) -> None:
    """The first monitor's record ends where it was closed; the second's begins where it was wrapped."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    monitor = tape.wrap(optimizer, model=model, run="first")
    for number, (x, y) in enumerate(data()):
        if number == 8 and monitor is not None:
            monitor.close()
        if number == 16:
            tape.wrap(optimizer, model=model, run="second")
        optimizer.zero_grad()
        loss = MSE(model(x), y)
        loss.backward()
        if not 8 <= number < 16:
            tape.attempt(loss, float64_norm(model), run="first" if number < 8 else "second")
        optimizer.step()
    tape.keep(model, optimizer)
