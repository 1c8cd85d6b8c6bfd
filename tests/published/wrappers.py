"""Optimizers around optimizers, made again, moved elsewhere: unwrapped, refused with the way out, or warned of."""

from __future__ import annotations

import collections
import copy
import functools
import io
import math
from typing import Any

import torch
from torch import nn

from tests.published.tape import UNKNOWN, OrUnknown, Tape, data, float64_norm, mlp, published, scaler_for_cpu


def train(
    tape: Tape, model: nn.Module, stepped: Any, batches: int = 24, *, max_norm: float | None = None, noted: bool = True
) -> None:
    """A plain loop that steps and zeroes `stepped`, whatever that is."""
    for x, y in data(batches):
        stepped.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        before = float64_norm(model)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if noted:
            tape.attempt(loss, before, float64_norm(model))
        stepped.step()


class FabricLike:
    """Lightning Fabric's: becomes a subclass of the optimizer's class, and delegates what it does not have."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.__class__ = type("Fabric" + type(optimizer).__name__, (FabricLike, type(optimizer)), {})

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._optimizer

    def step(self, closure: Any = None) -> Any:
        return self._optimizer.step(**({} if closure is None else {"closure": closure}))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


@published()
def fabric_around_an_optimizer(tape: Tape) -> None:
    model = mlp()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer = FabricLike(inner)
    tape.wrap(optimizer, model=model)
    train(tape, model, optimizer, max_norm=0.2)
    tape.keep(model, inner)


@published()
def fabric_around_an_optimizer_that_was_wrapped_before(tape: Tape) -> None:
    model = mlp()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(inner, model=model)
    train(tape, model, FabricLike(inner))
    tape.keep(model, inner)


class SharedState(torch.optim.Optimizer):
    """Older Lightning's: a class made on the fly that shares the optimizer's `__dict__`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.__dict__ = optimizer.__dict__
        self.__dict__["_optimizer"] = optimizer

    def step(self, closure: Any = None) -> Any:
        return self.__dict__["_optimizer"].step(closure)


@published()
def an_optimizer_that_shares_its_dict(tape: Tape) -> None:
    model = mlp()
    inner = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    optimizer = SharedState(inner)
    tape.wrap(optimizer, model=model)
    train(tape, model, optimizer)
    tape.keep(model)


@published()
def a_copy_of_the_dict(tape: Tape) -> None:
    """LightningOptimizer's: `__dict__` copied but for `step`, and the class inherits from the optimizer's."""

    class LightningLike:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.__dict__ = {k: v for k, v in optimizer.__dict__.items() if k != "step"}
            self.__class__ = type("Lightning" + type(optimizer).__name__, (LightningLike, type(optimizer)), {})
            self._optimizer = optimizer

        @property
        def optimizer(self) -> torch.optim.Optimizer:
            return self._optimizer

        def step(self, closure: Any = None) -> Any:
            return self._optimizer.step(closure)

    model = mlp()
    inner = torch.optim.SGD(model.parameters(), lr=1e-2)
    optimizer = LightningLike(inner)
    tape.wrap(optimizer, model=model)
    train(tape, model, optimizer, max_norm=0.3)
    tape.keep(model, inner)


class Delegating:
    """Says nowhere that it is a wrapper: every attribute but `step` is the optimizer's."""

    def __init__(self, wrapped: torch.optim.Optimizer) -> None:
        self.__dict__["_wrapped"] = wrapped

    def step(self, closure: Any = None) -> Any:
        return self.__dict__["_wrapped"].step(closure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_wrapped"], name)


@published()
def a_wrapper_that_delegates_everything(tape: Tape) -> None:
    model = mlp()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer = Delegating(inner)
    tape.wrap(optimizer, model=model)
    train(tape, model, optimizer)
    tape.keep(model, inner)


def _wrapper_in_the_scaler(tape: Tape, optimizer: Any, inner: torch.optim.Optimizer, model: nn.Module) -> None:
    """`scaler.step(wrapper)`: the scaler keeps what it knows of the wrapper, and the optimizer inside steps."""
    scaler = scaler_for_cpu()
    tape.wrap(optimizer, scaler, model=model)
    for number, (x, y) in enumerate(data(40)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y) * (math.inf if number in (9, 30) else 1)
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        skipped = not math.isfinite(before)
        tape.attempt(loss, before, UNKNOWN if skipped else float64_norm(model), skipped=skipped, loss_scale=scale)
        scaler.step(optimizer)
        scaler.update()
    tape.keep(model, inner, scaler)


@published()
def a_wrapper_that_delegates_everything_is_given_to_the_scaler(tape: Tape) -> None:
    model = mlp()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _wrapper_in_the_scaler(tape, Delegating(inner), inner, model)


@published()
def a_wrapper_in_a_wrapper(tape: Tape) -> None:
    model = mlp()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer = NoamOpt(FabricLike(Delegating(inner)))  # type: ignore[arg-type]
    tape.wrap(optimizer, model=model)
    train(tape, model, optimizer)
    tape.keep(model, inner)


class NoamOpt:
    """The Annotated Transformer's: no Optimizer at all; it sets the rate and lets `.optimizer` step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * min(self.steps**-0.5, self.steps * 10**-1.5)
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


@published()
def noam_around_an_optimizer(tape: Tape) -> None:
    model = mlp()
    noam = NoamOpt(torch.optim.Adam(model.parameters(), lr=0.0))
    tape.wrap(noam, model=model)
    train(tape, model, noam)
    tape.keep(model, noam.optimizer)


class PostLocalSGD(torch.optim.Optimizer):
    """torch.distributed's shape: an Optimizer by class that holds the real one in `.optim`."""

    def __init__(self, optim: torch.optim.Optimizer, average_every: int) -> None:
        self.optim = optim
        self.param_groups = self.optim.param_groups
        self._every, self._steps = average_every, 0

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optim.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optim.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optim.step()
        self._steps += 1


@published()
def post_local_sgd(tape: Tape) -> None:
    model = mlp()
    optimizer = PostLocalSGD(torch.optim.SGD(model.parameters(), lr=1e-2), 4)
    tape.wrap(optimizer, model=model)
    train(tape, model, optimizer)
    tape.keep(model, optimizer.optim)


@published()
def post_local_sgd_of_torch(tape: Tape) -> None:
    from torch.distributed.optim import PostLocalSGDOptimizer

    class Averager:
        step = 0

        def average_parameters(self, params: Any) -> None:
            self.step += 1

    model = mlp()
    inner = torch.optim.SGD(model.parameters(), lr=1e-2)
    optimizer = PostLocalSGDOptimizer(inner, Averager())  # type: ignore[arg-type]
    tape.wrap(optimizer, model=model)
    train(tape, model, optimizer)
    tape.keep(model, inner)


class Lookahead(torch.optim.Optimizer):
    """Slow weights around a fast optimizer, in `.optimizer`; calls no `super().__init__`."""

    def __init__(self, optimizer: torch.optim.Optimizer, k: int = 5, alpha: float = 0.5) -> None:
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups, self.state, self.defaults = optimizer.param_groups, optimizer.state, optimizer.defaults
        self._steps = 0
        self._slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step()
        self._steps += 1
        if self._steps % self.k == 0:
            with torch.no_grad():
                fast = [p for group in self.param_groups for p in group["params"]]
                for slow, parameter in zip(self._slow, fast, strict=True):
                    slow.lerp_(parameter, self.alpha)
                    parameter.copy_(slow)


@published()
def lookahead(tape: Tape) -> None:
    model = mlp()
    optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=1e-2))
    tape.wrap(optimizer, model=model)
    train(tape, model, optimizer)
    tape.keep(model, optimizer.optimizer)


@published()
def lookahead_is_given_to_the_scaler(tape: Tape) -> None:
    model = mlp()
    inner = torch.optim.Adam(model.parameters(), lr=1e-3)
    _wrapper_in_the_scaler(tape, Lookahead(inner), inner, model)


@published()
def an_optimizer_whose_class_leaves_out_its_init(tape: Tape) -> None:
    """As timm's Lookahead: torch's step hooks are there, and fire once `zero_grad` was called. Here it comes last."""

    class Bare(torch.optim.Optimizer):
        def __init__(self, parameters: Any, lr: float) -> None:
            self.defaults = {"lr": lr}
            self.param_groups = [{"params": list(parameters), "lr": lr}]
            self.state = collections.defaultdict(dict)
            self._optimizer_step_pre_hooks = collections.OrderedDict()
            self._optimizer_step_post_hooks = collections.OrderedDict()

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(parameter.grad, alpha=self.defaults["lr"])

    model = mlp()
    optimizer = Bare(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model)


def _deepspeed_like(name: str, module: str) -> Any:
    """An object whose class is DeepSpeed's by name: its gradients are not in `.grad` when it steps."""

    def __init__(self: Any, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.state = optimizer.state

    members = {"__init__": __init__, "__module__": module, "step": lambda self: self.optimizer.step()}
    return type(name, (), members)


@published(raises=((TypeError, ValueError), "DeepSpeed"))
def deepspeed_stage_2(tape: Tape) -> None:
    engine = _deepspeed_like("DeepSpeedZeroOptimizer", "deepspeed.runtime.zero.stage_1_and_2")
    model = mlp()
    tape.wrap(engine(torch.optim.AdamW(model.parameters())), model=model)


@published(raises=((TypeError, ValueError), "DeepSpeed"))
def deepspeed_stage_3(tape: Tape) -> None:
    engine = _deepspeed_like("DeepSpeedZeroOptimizer_Stage3", "deepspeed.runtime.zero.stage3")
    model = mlp()
    tape.wrap(engine(torch.optim.AdamW(model.parameters())), model=model)


@published(raises=((TypeError, ValueError), "DeepSpeed"))
def deepspeed_bf16(tape: Tape) -> None:
    engine = _deepspeed_like("BF16_Optimizer", "deepspeed.runtime.bf16_optimizer")
    model = mlp()
    tape.wrap(engine(torch.optim.AdamW(model.parameters())), model=model)


@published(warns=("never|again",), may=("never_stepped",))
def made_again_after_wrap(tape: Tape) -> None:
    """A new optimizer of the same parameters takes the wrapped one's place, which goes on living in a scheduler."""
    model = mlp()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    tape.wrap(optimizer, model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    train(tape, model, optimizer, 60, noted=False)
    tape.keep(model, optimizer, scheduler)


@published(warns=("never|again|step",), may=("never_stepped",))
def made_again_in_the_middle(tape: Tape) -> None:
    """Unfreezing, ten steps in: the loop makes its optimizer again, and the record stops there, with a word."""
    model = mlp()
    first = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(first, model=model)
    train(tape, model, first, 10)
    first.zero_grad()
    second = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(tape, model, second, 60, noted=False)
    tape.keep(model, first, second)


def _unfreezing(tape: Tape, frozen: bool) -> None:
    """The same optimizer gets another group, from the top of the model to its bottom."""
    model = mlp()
    for layer in (model[0], model[2]):
        layer.requires_grad_(not frozen)
    optimizer = torch.optim.AdamW(model[4].parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for number, (x, y) in enumerate(data()):
        for start, layer, lr in ((8, model[2], 1e-3), (16, model[0], 1e-4)):
            if number == start:
                layer.requires_grad_(True)
                optimizer.add_param_group({"params": list(layer.parameters()), "lr": lr})
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(p for group in optimizer.param_groups for p in group["params"]))
        optimizer.step()
    tape.keep(model, optimizer)


@published()
def unfrozen_layer_by_layer(tape: Tape) -> None:
    _unfreezing(tape, frozen=True)


@published(warns=("in no optimizer",), events={"untrained_parameters": 1})
def added_layer_by_layer_but_never_frozen(tape: Tape) -> None:
    """Until they are added, layers that could be trained are in no optimizer: that is said, and is true."""
    _unfreezing(tape, frozen=False)


@published(warns=("in no optimizer",), events={"untrained_parameters": 1})
def a_layer_replaced_after_the_optimizer_was_built(tape: Tape) -> None:
    """A new head, whose parameters the optimizer does not have: it trains the old one, which nothing uses."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model[4] = nn.Linear(16, 4)
    tape.wrap(optimizer, model=model)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    for x, y in data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(held))
        optimizer.step()
    tape.keep(model)


@published()
def a_scheduler_and_a_counter_have_patched_step(tape: Tape) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
    calls = []
    tape.wrap(optimizer, model=model)
    step = optimizer.step

    @functools.wraps(step)
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return step(*args, **kwargs)

    optimizer.step = counted  # type: ignore[method-assign]
    for x, y in data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        scheduler.step()
    tape.keep(model, calls, [group["lr"] for group in optimizer.param_groups])


@published()
def a_subclass_whose_step_calls_super(tape: Tape) -> None:
    class Decayed(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            for group in self.param_groups:
                group["lr"] *= 0.99
            return super().step(closure)

    model = mlp()
    optimizer = Decayed(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    train(tape, model, optimizer)
    tape.keep(model, optimizer)


@published()
def saved_loaded_and_copied_in_the_middle(tape: Tape) -> None:
    """A checkpoint through a file, a deep copy of the optimizer that steps no more, and the state loaded back."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    train(tape, model, optimizer, 10)
    optimizer.zero_grad()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    twin, twins_optimizer = copy.deepcopy((model, optimizer))
    file.seek(0)
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(tape, model, optimizer, 10)
    tape.keep(model, optimizer, twin, twins_optimizer)


def _in_backward(tape: Tape, clip: bool = False) -> None:
    """The tutorial's: an optimizer for each parameter, stepped and zeroed by a hook as its gradient comes."""
    model = mlp()
    optimizers = {f"p{n}": torch.optim.SGD([p], lr=1e-2) for n, p in enumerate(model.parameters())}
    of_parameter = dict(zip(model.parameters(), optimizers.items(), strict=True))
    norms: dict[str, float] = {}
    tape.wrap(optimizers)

    def hook(parameter: torch.Tensor) -> None:
        name, optimizer = of_parameter[parameter]
        norms[name] = float64_norm([parameter])
        optimizer.step()
        optimizer.zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        columns: dict[str, Any] = {f"{name}/grad_norm": OrUnknown(norm) for name, norm in norms.items()}
        tape.step({"loss": OrUnknown(loss.item()), "skipped": False, **columns})
    tape.keep(model, *optimizers.values())


@published()
def optimizers_that_step_in_hooks_of_backward(tape: Tape) -> None:
    _in_backward(tape)


@published()
def one_optimizer_that_steps_in_a_hook_of_backward(tape: Tape) -> None:
    """LOMO's shape for the last gradient: the hook of the first layer, which comes last, steps the whole optimizer."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    norms: list[float] = []
    arrived: list[int] = []
    count = sum(1 for _ in model.parameters())

    def hook(parameter: torch.Tensor) -> None:
        arrived.append(1)
        if len(arrived) == count:
            norms.append(float64_norm(model))
            optimizer.step()
            optimizer.zero_grad()
            arrived.clear()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        tape.attempt(OrUnknown(loss.item()), norms[-1], micro_batches=OrUnknown(1))
    tape.keep(model, optimizer)


@published()
def an_optimizer_with_master_weights_inside(tape: Tape) -> None:
    """bfloat16 parameters, float32 copies inside the optimizer: norms are those of the bfloat16 gradients."""

    class Master(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})
            self.masters = [p.detach().float().clone() for group in self.param_groups for p in group["params"]]

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            parameters = [p for group in self.param_groups for p in group["params"]]
            for master, p in zip(self.masters, parameters, strict=True):
                assert p.grad is not None
                master.add_(p.grad.float(), alpha=-self.param_groups[0]["lr"])
                p.copy_(master)

    model = mlp().bfloat16()
    optimizer = Master(model.parameters(), lr=1e-2)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x.bfloat16()).float(), y)
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
    tape.keep(model, *optimizer.masters)
