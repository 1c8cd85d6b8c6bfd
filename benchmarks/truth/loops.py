"""Healthy loops: whatever is said of them as a warning is a false alarm."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

import tbnum
from benchmarks.truth.corpus import healthy
from benchmarks.truth.faults.gradients import Accumulating, Unclipped
from benchmarks.truth.faults.learning_rate import PlainMomentum
from benchmarks.truth.faults.nonfinite import LargeEps, LossGuard, LossThatHidesNan
from benchmarks.truth.faults.state import Resumed, SmallSteps
from benchmarks.truth.loop import Loop
from benchmarks.truth.models import cross_entropy, make_task

for known in (
    Loop,
    Accumulating,
    Unclipped,
    PlainMomentum,
    LargeEps,
    LossGuard,
    LossThatHidesNan,
    Resumed,
    SmallSteps,
):
    healthy(known)

# -- optimizers


class Optimizer(Loop):
    made: Any = None
    settings: ClassVar[dict[str, Any]] = {}

    def make_optimizer(self) -> torch.optim.Optimizer:
        return self.made(self.parameters(), **self.settings)


@healthy
class FusedAdamW(Optimizer):
    made, settings = torch.optim.AdamW, {"lr": 3e-3, "fused": True}


@healthy
class SgdWithoutMomentum(Optimizer):
    made, settings = torch.optim.SGD, {"lr": 0.2}
    models = ("cnn",)


@healthy
class Adagrad(Optimizer):
    made, settings = torch.optim.Adagrad, {"lr": 2e-2}
    models = ("gpt",)


@healthy
class RmsProp(Optimizer):
    made, settings = torch.optim.RMSprop, {"lr": 1e-3}
    models = ("lstm",)


@healthy
class NesterovAdam(Optimizer):
    made, settings = torch.optim.NAdam, {"lr": 2e-3}
    models = ("gpt",)


@healthy
class Adamax(Optimizer):
    made, settings = torch.optim.Adamax, {"lr": 4e-3}
    models = ("cnn",)


@healthy
class Adafactor(Optimizer):
    made, settings = torch.optim.Adafactor, {"lr": 1e-2}
    models = ("lstm",)


@healthy
class TwoOptimizers(Loop):
    """One for the body, one for the head."""

    models = ("gpt", "cnn")

    def set_up(self) -> None:
        super().set_up()
        head = list(self.model.head.parameters())
        chosen = {id(parameter) for parameter in head}
        (group,) = self.optimizer.param_groups
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in chosen]
        self.second = torch.optim.AdamW(head, lr=3e-3)

    def wrap(self, logdir: Path) -> tbnum.Monitor:
        optimizers = {"body": self.optimizer, "head": self.second}
        return tbnum.wrap(optimizers, self.scaler, model=self.model, logdir=logdir, tensor_interval=10)

    def zero_grad(self) -> None:
        self.model.zero_grad()

    def unscale(self) -> None:
        super().unscale()
        if self.scaler is not None:
            self.scaler.unscale_(self.second)

    def update(self) -> None:
        (self.second.step if self.scaler is None else lambda: self.scaler.step(self.second))()
        super().update()


@healthy
class GroupsOfTheirOwn(Loop):
    """No weight decay for vectors, and half the rate for the head."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        head = {id(parameter) for parameter in self.model.head.parameters()}
        body = [parameter for parameter in self.parameters() if id(parameter) not in head]
        groups = [
            {"params": [parameter for parameter in body if parameter.ndim > 1]},
            {"params": [parameter for parameter in body if parameter.ndim < 2], "weight_decay": 0.0},
            {"params": list(self.model.head.parameters()), "lr": self.lr / 2},
        ]
        return torch.optim.AdamW(groups, lr=self.lr)


# -- schedules


@healthy
class WarmRestarts(Loop):
    models = ("gpt", "cnn")
    steps = 800

    def learning_rate(self) -> float:
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (self.now % 200) / 200))


@healthy
class OneCycle(Loop):
    models = ("cnn", "lstm")

    def learning_rate(self) -> float:
        share = self.now / self.steps
        return 0.04 + 1.5 * (share / 0.3 if share < 0.3 else (1 - share) / 0.7)


@healthy
class ConstantRate(Loop):
    def learning_rate(self) -> float:
        return 0.5


@healthy
class StepDecay(Loop):
    models = ("cnn",)

    def learning_rate(self) -> float:
        return 0.1 ** (3 * self.now // self.steps)


@healthy
class DecayToZero(Loop):
    def learning_rate(self) -> float:
        return min((self.now + 1) / 20, 1.0) * (1 - self.now / self.steps)


@healthy
class FineTuning(Loop):
    """A model that is trained already, at a small rate."""

    models = ("gpt", "lstm")

    def prepare(self) -> None:
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        for index in range(200):
            inputs, targets = self.task.batch(10_000 + index)
            optimizer.zero_grad()
            cross_entropy(self.model(inputs), targets).mean().backward()
            optimizer.step()
        self.model.zero_grad()

    def learning_rate(self) -> float:
        return 0.02


# -- data and losses


@healthy
class MixtureOfDataSets(Loop):
    """One batch in 30 comes from somewhere else, where the loss is much higher."""

    steps = 900

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(micro)
        if self.now % 30 == self.seed * 7 % 30 and self.now:
            targets = targets[torch.randperm(len(targets), generator=self.task.generator(self.now))]
        return inputs, targets


@healthy
class ShortLastBatch(Loop):
    steps = 800

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(micro)
        return (inputs[:2], targets[:2]) if self.now % 40 == 39 else (inputs, targets)


@healthy
class SmallBatches(Loop):
    steps = 800

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(micro)
        return inputs[:2], targets[:2]


@healthy
class LearnedByHeart(Loop):
    """The same four batches, until the loss is next to nothing."""

    models = ("cnn", "lstm")
    steps = 800

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        return self.task.batch(self.now % 4)


@healthy
class HingeLoss(Loop):
    """Reaches 0 in most batches: no gradient is left, and none is missing."""

    models = ("cnn",)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            outputs = self.outputs(inputs)
        return F.multi_margin_loss(outputs.float(), targets)

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        return self.task.batch(self.now % 4)


@healthy
class LabelSmoothing(Loop):
    models = ("cnn",)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            outputs = self.outputs(inputs)
        return F.cross_entropy(outputs.float(), targets, label_smoothing=0.1)


@healthy
class HeavyTailedRegression(Loop):
    models = ("cnn",)
    steps = 800

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            outputs = self.outputs(inputs)
        generator = self.task.generator(self.now)
        tails = torch.randn(len(inputs), generator=generator) / torch.rand(len(inputs), generator=generator).sqrt()
        return F.mse_loss(outputs[:, 0].float(), targets / 4 + 0.5 * tails)


@healthy
class PolicyGradient(Loop):
    """A surrogate loss around 0, whose value says nothing."""

    models = ("cnn",)
    steps = 800

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            outputs = self.outputs(inputs).float()
        choice = torch.distributions.Categorical(logits=outputs)
        action = choice.sample()
        reward = (action == targets).float()
        return -((reward - reward.mean()) * choice.log_prob(action)).mean()


@healthy
class Contrastive(Loop):
    models = ("cnn",)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            views = [
                F.normalize(self.model.features(inputs + 0.3 * torch.randn_like(inputs)).float(), dim=-1)
                for _ in range(2)
            ]
        return F.cross_entropy(views[0] @ views[1].T / 0.2, torch.arange(len(inputs))) + 0 * self.outputs(inputs).mean()

    def prepare(self) -> None:
        """What takes gradients, and no optimizer has it, is a fault (`LayerLeftOutOfTheOptimizer`)."""
        self.model.head.requires_grad_(False)


@healthy
class TwoLosses(Loop):
    """Each with its own backward."""

    def backward(self, loss: Tensor) -> None:
        penalty = 1e-3 * sum(parameter.square().sum() for parameter in self.model.head.parameters())
        super().backward(penalty)
        super().backward(loss)


@healthy
class GradientPenalty(Loop):
    models = ("gpt", "lstm")

    def reduce(self, losses: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(losses.mean(), [self.model.head.weight], create_graph=True)
        return losses.mean() + 0.1 * (gradient.norm() - 1).square()


# -- the model


class Rebuilt(Loop):
    def rebuild(self) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        self.rebuild()


@healthy
class Dropout(Loop):
    def outputs(self, inputs: Tensor) -> Tensor:
        return self.model.head(F.dropout(self.model.features(inputs), 0.3, self.model.training))


@healthy
class TiedWeights(Rebuilt):
    models = ("gpt", "lstm")

    def rebuild(self) -> None:
        self.model.head.weight = self.model.token.weight


@healthy
class WeightNorm(Rebuilt):
    def rebuild(self) -> None:
        weight_norm(self.model.head)


@healthy
class Checkpointing(Loop):
    models = ("gpt", "cnn")

    def outputs(self, inputs: Tensor) -> Tensor:
        return self.model.head(checkpoint(self.model.features, inputs, use_reentrant=False))


@healthy
class MixtureOfExperts(Rebuilt):
    """Top 1: an expert that no sample went to has no gradient in that step."""

    models = ("cnn", "lstm")
    steps = 800

    def rebuild(self) -> None:
        width = self.model.head.in_features
        self.model.gate = nn.Linear(width, 6)
        self.model.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def outputs(self, inputs: Tensor) -> Tensor:
        features = self.model.features(inputs)
        flat = features.reshape(-1, features.shape[-1])[:: 8 if features.ndim > 2 else 1][:8]
        weights = (self.model.gate(flat) + torch.randn(len(flat), 6)).softmax(-1)  # noise, so that none starves
        chosen = weights.argmax(-1)
        mixed = torch.zeros_like(flat)
        for number, expert in enumerate(self.model.experts):
            rows = (chosen == number).nonzero().flatten()
            if len(rows):
                mixed = mixed.index_add(0, rows, (weights[rows, number, None] * expert(flat[rows])).to(mixed.dtype))
        return self.model.head(features) + 0.1 * mixed.mean()


@healthy
class FrozenBody(Rebuilt):
    """Only the head is trained, and only the head is given to the optimizer."""

    def rebuild(self) -> None:
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        for parameter in self.model.head.parameters():
            parameter.requires_grad_(True)


@healthy
class FrozenBodyInTheOptimizer(FrozenBody):
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())


@healthy
class UnfrozenLater(FrozenBody):
    """The body joins at a third of the way, in a group of its own."""

    models = ("gpt", "cnn")

    def before_step(self) -> None:
        if self.now == self.steps // 3:
            body = [parameter for parameter in self.model.parameters() if not parameter.requires_grad]
            for parameter in body:
                parameter.requires_grad_(True)
            lr = self.optimizer.param_groups[0]["initial_lr"] / 10
            self.optimizer.add_param_group({"params": body, "lr": lr, "initial_lr": lr})


# -- the loop


@healthy
class ValidatesInBetween(Loop):
    def after_step(self) -> None:
        if self.now % 40 == 39:
            self.model.eval()
            with torch.no_grad(), self.autocast():
                self.model(self.task.batch(2_000_000)[0])
            self.model.train()


@healthy
class AveragedWeights(Loop):
    """An exponential average, put in the model's place for each validation."""

    def set_up(self) -> None:
        super().set_up()
        self.average = copy.deepcopy(self.model.state_dict())

    def after_step(self) -> None:
        current = self.model.state_dict()
        for name, value in self.average.items():
            if value.is_floating_point():
                value.lerp_(current[name], 0.05)
        if self.now % 60 == 59:
            own = copy.deepcopy(current)
            self.model.load_state_dict(self.average)
            with torch.no_grad():
                self.model(self.task.batch(2_000_000)[0])
            self.model.load_state_dict(own)


@healthy
class SharpnessAware(Loop):
    """SAM: the gradient at a point nearby, found by a first backward."""

    models = ("gpt", "cnn")
    precisions = ("float32", "bfloat16")

    def micro_batch(self, micro: int) -> None:
        inputs, targets = self.batch(micro)
        self.forward(inputs, targets).backward()
        with torch.no_grad():
            norm = torch.stack([parameter.grad.norm() for parameter in self.parameters()]).norm() + 1e-12
            moves = [0.02 * parameter.grad / norm for parameter in self.parameters()]
            for parameter, move in zip(self.parameters(), moves, strict=True):
                parameter.add_(move)
        self.zero_grad()
        loss = self.forward(inputs, targets)
        self.losses.append(loss.item())
        loss.backward()
        with torch.no_grad():
            for parameter, move in zip(self.parameters(), moves, strict=True):
                parameter.sub_(move)


@healthy
class GradientNoise(Loop):
    def gradients_are_there(self) -> None:
        for parameter in self.parameters():
            parameter.grad.add_(torch.randn_like(parameter), alpha=1e-2)


@healthy
class ClipsEachTensor(Loop):
    def clip(self) -> None:
        for parameter in self.parameters():
            nn.utils.clip_grad_norm_(parameter, 0.3)


@healthy
class ClipsByValue(Loop):
    def clip(self) -> None:
        nn.utils.clip_grad_value_(self.parameters(), 0.1)


@healthy
class GradientsKeptAsZeros(Loop):
    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)


@healthy
class GrowingBatches(Loop):
    """The accumulation doubles twice, and the loss is divided by what it is."""

    steps = 400

    def before_step(self) -> None:
        self.__dict__["accumulate"] = 1 if self.now < 150 else 2 if self.now < 300 else 4


@healthy
class SeveralStepsABatch(Loop):
    """As PPO: four updates on the same batch before the next one."""

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        return self.task.batch(self.now // 4)


@healthy
class LbfgsWithAClosure(Loop):
    models = ("cnn",)
    precisions = ("float32",)
    steps = 120

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.parameters(), lr=0.5, max_iter=3, line_search_fn="strong_wolfe")

    def learning_rate(self) -> float:
        return 1.0

    def step(self) -> None:
        self.set_learning_rate()
        inputs, targets = self.task.batch(0, size=128)

        def closure() -> Tensor:
            self.zero_grad()
            loss = self.forward(inputs, targets)
            loss.backward()
            return loss

        self.account.losses.append(float(self.optimizer.step(closure)))


class _Game(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


@healthy
class Gan(Loop):
    """Two networks that play against each other: neither loss falls, and both move about."""

    models = ("cnn",)
    precisions = ("float32",)
    steps = 800

    def set_up(self) -> None:
        self.game = _Game()
        self.optimizer = torch.optim.Adam(self.game.generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
        self.second = torch.optim.Adam(self.game.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.99))
        self.scaler = None

    def wrap(self, logdir: Path) -> tbnum.Monitor:
        optimizers = {"generator": self.optimizer, "discriminator": self.second}
        return tbnum.wrap(optimizers, model=self.game, logdir=logdir, tensor_interval=10)

    def step(self) -> None:
        angle = torch.rand(64) * 2 * math.pi
        real = torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(64, 2)
        made = self.game.generator(torch.randn(64, 4))
        self.second.zero_grad()
        judged = self.game.discriminator
        loss = F.softplus(-judged(real)).mean() + F.softplus(judged(made.detach())).mean()
        loss.backward()
        self.second.step()
        self.optimizer.zero_grad()
        F.softplus(-judged(made)).mean().backward()
        self.optimizer.step()
        self.account.losses.append(loss.item())


@healthy
class HeadOfAnotherTask(Rebuilt):
    """That every other step trains."""

    def rebuild(self) -> None:
        self.model.other = nn.Linear(self.model.head.in_features, 3)

    def outputs(self, inputs: Tensor) -> Tensor:
        features = self.model.features(inputs)
        outputs: Tensor = self.model.head(features)
        return outputs + 0.1 * self.model.other(features).square().mean() if self.now % 2 else outputs


@healthy
class ShortRuns(Loop):
    steps = 160
    options: ClassVar[dict[str, Any]] = {"tensor_interval": 10}


# -- loss scales


class Half(Loop):
    precisions = ("float16",)


@healthy
class TorchsOwnScale(Half):
    init_scale, growth_interval = 2.0**16, 2000


@healthy
class FirstScaleFarTooHigh(Half):
    init_scale, growth_interval = 2.0**30, 2000


@healthy
class FrequentProbes(Half):
    growth_interval = 25


@healthy
class LongFloat16Run(Half):
    models = ("gpt",)
    steps = 2000
    growth_interval = 200


@healthy
class LongRun(Loop):
    models = ("lstm",)
    precisions = ("float32",)
    steps = 2000


@healthy
class FreshModelEachTime(Loop):
    """Two trainings one after the other in one process, each in its own folder; the second is looked at."""

    models = ("cnn",)

    def record(self, logdir: Path) -> Any:
        first = Loop(self.kind, self.seed + 1, self.precision)
        first.record(logdir.parent / "first" / "run")
        self.model, self.task = make_task(self.kind, self.seed)
        return super().record(logdir)
