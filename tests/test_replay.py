"""A replay names the planted module and sample, and leaves everything as it was."""

from __future__ import annotations

import contextlib
import copy
import io
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tbnum
from tbnum.observe.replay import Origin, replay
from tbnum.observe.rewind import Moment, StepStarts
from tbnum.observe.samples import Samples
from tests.loops import Half, batches, train
from tests.planted import HalfLinear, Log, LogWhere, Louder, Net


class TooLarge(HalfLinear):
    """Both factors fit float16, and their product passes 65504."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.weight.data *= 100

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 3e3)


class Loop:
    """A model with optimizer and scaler, and the closure of a step."""

    def __init__(self, model: nn.Module, scale: float = 2.0**10, compiled: bool = False) -> None:
        self.model = torch.compile(model, backend="eager") if compiled else model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=5)
        self.x = torch.randn(32, 8)

    def backward(self, x: Tensor | None = None) -> None:
        self.scaler.scale(self.model(self.x if x is None else x).square().mean()).backward()

    def replay(self, closure: Callable[..., Any] | None = None, batch: Any = None, **more: Any) -> Origin:
        setting: dict[str, Any] = {"optimizers": [self.optimizer], "scaler": self.scaler}
        return replay(closure or self.backward, batch, models={"": self.model}, **{**setting, **more})


def net(planted: nn.Module | None = None, **more: Any) -> Net:
    torch.manual_seed(0)
    return Net(planted=planted, **more)


# -- which module ------------------------------------------------------------------------------------------------------

FAULTS = [
    ("forward overflow", lambda: TooLarge(8), "forward", "output", "float16", 65504.0),
    ("log of zero", Log, "forward", "output", "float32", None),
    ("backward overflow", lambda: Louder(1e6), "backward", "gradient", "float16", 65504.0),
    ("zero times infinity in the backward", LogWhere, "backward", "gradient", "float32", None),
]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("planted", "phase", "what", "dtype", "limit"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_the_planted_module_is_named(
    planted: Any, phase: str, what: str, dtype: str, limit: float | None, compiled: bool
) -> None:
    loop = Loop(net(planted()), compiled=compiled)
    origin = loop.replay()
    assert (origin.module, origin.phase, origin.what) == ("blocks.2.inner", phase, what), origin
    assert origin.inputs_finite is True
    assert (origin.dtype, origin.shape) == (dtype, (32, 8))
    if limit is not None:
        assert origin.limit == limit and origin.largest is not None and 0 < origin.largest <= limit
    assert "blocks.2.inner" in str(origin) and str(origin).count(". ") == 0  # one sentence
    assert origin.samples is None


@pytest.mark.parametrize("at", [0, 3])
def test_the_first_and_the_last_module_are_named_as_well(at: int) -> None:
    assert Loop(net(TooLarge(8), at=at)).replay().module == f"blocks.{at}.inner"
    assert Loop(net(Louder(1e6), at=at)).replay().module == f"blocks.{at}.inner"


def test_where_all_is_finite_it_says_so() -> None:
    origin = Loop(net()).replay()
    assert origin.phase == "none" and origin.module is None and origin.samples is None
    assert origin.message.startswith("Everything was finite")


def test_a_model_without_modules_of_its_own_is_named_by_the_empty_name() -> None:
    loop = Loop(Half(), scale=2.0**30)
    origin = loop.replay()
    assert (origin.module, origin.phase, origin.dtype) == ("", "backward", "float16")
    assert "the model itself" in origin.message


def test_several_models_are_distinguished() -> None:
    first, second = net(), net(TooLarge(8))
    x = torch.randn(4, 8)
    origin = replay(lambda: (first(x) + second(x)).mean().backward(), models={"g": first, "d": second})
    assert origin.module == "d.blocks.2.inner"


class Attention(nn.Module):
    """q, k and v take the same tensor, whose gradient is the sum of theirs."""

    def __init__(self, loud: str) -> None:
        super().__init__()
        for name in "qkv":
            self.add_module(name, nn.Sequential(nn.Linear(8, 8), Louder(1e9 if name == loud else 1.0)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-1, -2)
        return torch.softmax(scores if mask is None else scores + mask, -1) @ self.v(x)


@pytest.mark.parametrize("loud", list("qkv"))
def test_among_modules_that_share_an_input_the_one_at_fault_is_named(loud: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Attention(loud), nn.Linear(8, 1))
    assert Loop(model).replay().module == f"1.{loud}.1"


def test_a_module_that_is_called_twice_is_named_though_its_first_call_was_fine() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = HalfLinear(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.shared(self.shared(x) * 1e6)

    origin = Loop(Twice()).replay()
    assert (origin.module, origin.phase, origin.dtype) == ("shared", "forward", "float16")


def test_an_operation_between_modules_is_of_the_module_whose_code_it_is_in() -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.exp(self.a(x) * 1e4))

    origin = Loop(nn.Sequential(nn.Linear(8, 8), Between(), nn.Linear(8, 1))).replay()
    assert (origin.module, origin.phase, origin.what) == ("1", "forward", "input")
    assert "before it calls '1.b'" in origin.message


def test_modules_that_return_dataclasses_and_take_keywords_are_followed() -> None:
    @dataclass
    class Output:
        hidden: Tensor
        extra: Any = None

    class Inner(nn.Module):
        def forward(self, *, x: Tensor) -> Output:
            return Output(torch.log(torch.relu(x)))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(8, 8), Inner()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x=self.first(x)).hidden

    origin = Loop(Outer()).replay()
    assert (origin.module, origin.inputs_finite, origin.operation) == ("inner", True, "log")


@pytest.mark.parametrize("reentrant", [False, True], ids=["without reentry", "reentrant"])
@pytest.mark.parametrize("planted", [lambda: TooLarge(8), lambda: Louder(1e6), Log], ids=["forward", "backward", "log"])
def test_the_planted_module_is_named_under_checkpointing(planted: Any, reentrant: bool) -> None:
    model = net(planted())

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            for block in self.inner.blocks:
                x = (
                    checkpoint(block, x, use_reentrant=reentrant)["hidden"][0]
                    if not reentrant
                    else checkpoint(lambda x, block=block: block(x)["hidden"][0], x, use_reentrant=True)
                )
            return self.inner.head(x)

    assert Loop(Checkpointed()).replay().module == "inner.blocks.2.inner"


# -- what is not a module's fault --------------------------------------------------------------------------------------


def test_a_mask_of_minus_infinity_is_not_accused() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask, self.attention = Mask(), Attention("v")

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, mask=self.mask(x.shape[0]))

    class Mask(nn.Module):
        def forward(self, size: int) -> Tensor:
            return torch.full((size, size), -torch.inf).triu(1)

    assert Loop(nn.Sequential(nn.Linear(8, 8), Masked(), nn.Linear(8, 1))).replay().module == "1.attention.v.1"
    large = nn.Sequential(nn.Linear(8, 8), Masked(), TooLarge(8), nn.Linear(8, 1))
    assert Loop(large).replay().module == "2"


def test_an_infinity_that_a_later_module_undoes_is_not_accused() -> None:
    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 0.0

    model = nn.Sequential(nn.Linear(8, 8), Large(), nn.Hardtanh(), nn.Linear(8, 8), TooLarge(8))
    assert Loop(model).replay().module == "4"


def test_a_frozen_module_is_named_though_the_graph_knows_nothing_of_it() -> None:
    frozen = nn.Sequential(nn.Linear(8, 8), TooLarge(8)).requires_grad_(False)
    assert Loop(nn.Sequential(frozen, nn.Linear(8, 1))).replay().module == "0.1"


def test_a_batch_that_is_not_finite_is_reported_from_a_module_that_makes_it_so() -> None:
    loop = Loop(net())
    loop.x[13, 2] = torch.nan
    origin = loop.replay(loop.backward, loop.x)
    assert (origin.module, origin.phase, origin.what, origin.inputs_finite) == (None, "forward", "input", False)
    assert origin.samples == (13,)


def test_parameters_that_are_not_finite_are_reported_as_such() -> None:
    loop = Loop(net())
    loop.model.blocks[1].inner.weight.data[0, 0] = torch.nan
    origin = loop.replay()
    assert origin.module == "blocks.1.inner" and origin.phase == "forward"
    assert "Parameters of 'blocks.1.inner' are not finite (weight)" in origin.message


def test_a_loss_that_is_not_finite_after_finite_modules_is_outside_of_the_model() -> None:
    loop = Loop(net())
    origin = loop.replay(lambda: torch.log(loop.model(loop.x).mean() * 0 - 1).backward())
    assert (origin.module, origin.phase, origin.what) == (None, "forward", "loss")


@pytest.mark.parametrize("scaled", [False, True], ids=["", "under a scaler"])
@pytest.mark.parametrize("operation", ["log", "sqrt", "div", "exp"])
def test_an_operation_outside_of_every_module_is_named(operation: str, scaled: bool) -> None:
    """And not the product with the loss scale, or the last one on the way to the loss."""
    loop = Loop(net())

    def closure() -> None:
        zero = loop.model(loop.x).mean(1) * 0
        made = {
            "log": lambda: zero.log(),
            "sqrt": lambda: (zero - 1).sqrt(),
            "div": lambda: zero / zero.detach(),
            "exp": lambda: (zero + 1e3).exp(),
        }[operation]()
        loss = (made + 1).mean() * 2
        (loop.scaler.scale(loss) if scaled else loss).backward()

    origin = loop.replay(closure)
    assert (origin.module, origin.phase, origin.what, origin.operation) == (None, "forward", "loss", operation)
    assert f"by {operation}" in origin.message


def test_a_gradient_that_overflows_in_the_loss_is_shown_where_it_comes_to_the_model() -> None:
    loop = Loop(net())
    origin = loop.replay(lambda: (loop.model(loop.x).mean().half().float() * 2.0**17).backward())
    assert (origin.module, origin.phase, origin.inputs_finite) == ("head", "backward", False)
    assert (origin.dtype, origin.limit) == ("float16", 65504.0)


def test_finite_gradients_whose_sum_is_not_are_reported_as_a_sum() -> None:
    model = nn.Linear(2, 1, bias=False).half()
    with torch.no_grad():
        model.weight.fill_(0.001)

    def closure() -> None:
        for _ in range(2):
            (model(torch.ones(1, 2).half()).float().sum() * 6e4).backward()

    origin = replay(closure, models={"": model})
    assert (origin.module, origin.phase) == ("", "backward") and "add up" in origin.message


def test_a_gradient_penalty_is_followed() -> None:
    def closure(model: nn.Module) -> None:
        x = torch.randn(32, 8, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (model(x).mean() + gradient.square().sum()).backward()

    fine, bad = net(), net(Louder(1e9))
    assert replay(lambda: closure(fine), models={"": fine}).phase == "none"
    assert replay(lambda: closure(bad), models={"": bad}).phase != "none"


# -- which samples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [0, 13, 31])
def test_the_planted_sample_of_a_batch_is_found(sample: int) -> None:
    class Scaled(HalfLinear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * 100)

    forward = Loop(nn.Sequential(nn.Linear(8, 8), Scaled(8), nn.Linear(8, 1)))
    forward.x[sample] *= 1e4
    origin = forward.replay(forward.backward, forward.x)
    assert (origin.module, origin.phase, origin.samples) == ("1", "forward", (sample,))
    assert f"sample {sample} of the 32 does it" in origin.message

    backward = Loop(nn.Sequential(HalfLinear(8), nn.Linear(8, 1)), scale=2.0**10)
    backward.x[sample] *= 3e2
    origin = backward.replay(backward.backward, backward.x)
    assert (origin.phase, origin.samples) == ("backward", (sample,))


def test_the_planted_sample_is_found_in_nested_batches_of_other_things_as_well() -> None:
    @dataclass
    class Batch:
        inputs: dict[str, Any]
        weights: Tensor

    model = nn.Sequential(TooLarge(8), nn.Linear(8, 1))
    x = torch.randn(32, 8) * 1e-3
    x[5], x[21] = 1.0, 1.0
    batch = Batch({"x": (x, "text", None), "label": torch.zeros(32, 1)}, torch.tensor([0.5]))
    before = copy.deepcopy(batch)

    def closure(batch: Batch) -> None:
        x, text, nothing = batch.inputs["x"]
        assert text == "text" and nothing is None and batch.weights.shape == (1,)
        x.mul_(1.0)  # the batch is the closure's to change
        (model(x) - batch.inputs["label"]).mul(batch.weights).mean().backward()

    assert replay(closure, batch, models={"": model}).samples == (5, 21)
    assert torch.equal(batch.inputs["x"][0], before.inputs["x"][0])


def test_a_batch_normalization_that_spreads_a_sample_to_all_does_not_hide_it() -> None:
    loop = Loop(net(TooLarge(8)))
    x = torch.randn(32, 8) * 1e-6
    model = nn.Sequential(nn.Linear(8, 8), TooLarge(8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    loop = Loop(model)
    x[17] = 1e3
    assert loop.replay(loop.backward, x).samples == (17,)


def test_samples_that_do_it_only_together_are_not_accused() -> None:
    model = nn.Linear(1, 1)

    def closure(x: Tensor) -> None:
        (model(x).sum() * 0 + (torch.inf if x.unique().numel() > 20 else 0.0)).backward()

    origin = replay(closure, torch.arange(32.0).unsqueeze(1), models={"": model})
    assert origin.samples == () and "no sample of the 32 does it alone" in origin.message


@pytest.mark.parametrize(("size", "bad"), [(1, [0]), (2, [1]), (33, [32]), (1000, [7, 500, 501]), (4, [0, 1, 2, 3])])
def test_halving_finds_all_bad_samples_in_few_runs(size: int, bad: list[int]) -> None:
    runs = 0

    def fails(batch: Tensor) -> bool:
        nonlocal runs
        runs += 1
        assert len(batch) == size
        return bool(torch.isin(batch, torch.tensor(bad)).any())

    assert Samples(torch.arange(size)).find(fails) == tuple(bad)
    assert runs <= 2 * len(bad) * max(size - 1, 0).bit_length()


def test_halving_gives_up_where_too_many_do_it() -> None:
    runs = [0]

    def fails(batch: Tensor) -> bool:
        runs[0] += 1
        return True

    Samples(torch.arange(10_000)).find(fails)
    assert runs[0] <= 64 + 4 * 14


# -- everything as it was ----------------------------------------------------------------------------------------------


def bits(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


class World:
    """All that a replay could have changed."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.gradients = [each.grad for each in loop.model.parameters()]
        self.scaler = dict(vars(loop.scaler))
        self.tensors = [each.data_ptr() for each in [*loop.model.parameters(), *loop.model.buffers()]]
        self.attributes = [dict(vars(module)) for module in loop.model.modules()]
        self.bits = self._bits()

    def _bits(self) -> bytes:
        loop = self.loop
        return bits(
            [
                loop.model.state_dict(),
                [module.training for module in loop.model.modules()],
                [each.grad for each in loop.model.parameters()],
                loop.optimizer.state_dict(),
                loop.scaler.state_dict(),
                loop.scaler._per_optimizer_states,
                torch.get_rng_state(),
                random.getstate(),
                np.random.get_state(),
            ]
        )

    def check(self) -> None:
        loop = self.loop
        assert self._bits() == self.bits
        assert all(a is b.grad for a, b in zip(self.gradients, loop.model.parameters(), strict=True))
        assert all(vars(loop.scaler)[name] is value for name, value in self.scaler.items())
        assert [each.data_ptr() for each in [*loop.model.parameters(), *loop.model.buffers()]] == self.tensors
        for module, before in zip(loop.model.modules(), self.attributes, strict=True):
            assert vars(module) == before
            assert not module._forward_hooks and not module._forward_pre_hooks
        assert not any(each._backward_hooks for each in loop.model.parameters())
        assert len(loop.optimizer._optimizer_step_pre_hooks) == 0
        assert torch.autograd._engine_run_backward.__module__ == "torch.autograd.graph"


class Awkward(Net):
    """Changes in its forward what a model should not, and what some models do."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        self.last = x.detach()
        self.head.weight.data = self.head.weight.data * 0.9  # as momentum encoders do
        with torch.no_grad():
            self.blocks[0].inner.bias.add_(0.1)
        self.blocks[1].drop.eval()
        self.scratch.add_(1)
        torch.compiler.disable(random.random)(), torch.compiler.disable(np.random.rand)()
        return super().forward(x)


def in_the_middle_of_a_step(compiled: bool = False) -> Loop:
    torch.manual_seed(1)
    model = Awkward(planted=TooLarge(8))
    model.scratch = torch.zeros(3)
    loop = Loop(model, compiled=compiled)
    loop.model.blocks[2].inner.weight.data.mul_(1e-6)  # fine so far
    train(loop.model, loop.optimizer, loop.scaler, batches(3))
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    return loop


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_everything_is_bitwise_as_it_was(compiled: bool) -> None:
    loop = in_the_middle_of_a_step(compiled)
    loop.x[13] = 1e9
    world = World(loop)
    origin = loop.replay(loop.backward, loop.x)
    assert origin.phase != "none"
    world.check()


def _raises(loop: Loop) -> None:
    loop.backward()
    raise KeyError("the closure's own")


def _raises_inside(loop: Loop) -> None:
    handle = loop.model.blocks[2].inner.register_forward_pre_hook(lambda module, args: 1 / 0)
    try:
        loop.backward()
    finally:
        handle.remove()


def _raises_in_backward(loop: Loop) -> None:
    loss = loop.model(loop.x).mean()
    loss.register_hook(lambda gradient: 1 / 0)
    loss.backward()


def _steps(loop: Loop) -> None:
    loop.backward(torch.zeros(32, 8))
    loop.scaler.step(loop.optimizer)


def _closes_the_step(loop: Loop) -> None:
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    loop.optimizer.param_groups[0]["lr"] = 7.0
    loop.scaler.update(3.0)
    loop.optimizer.zero_grad()


ODD = [
    (_raises, KeyError, "the closure's own"),
    (_raises_inside, ZeroDivisionError, None),
    (_raises_in_backward, ZeroDivisionError, None),
    (lambda loop: loop.model(loop.x), RuntimeError, "ran no backward"),
    (lambda loop: None, RuntimeError, "ran no backward"),
    (_steps, RuntimeError, r"AdamW.step\(\)"),
    (_closes_the_step, None, None),
]


@pytest.mark.parametrize(("closure", "error", "match"), ODD)
def test_everything_is_as_it_was_after_odd_closures_too(closure: Any, error: Any, match: str | None) -> None:
    loop = in_the_middle_of_a_step()
    loop.x[13] = 1e9
    world = World(loop)
    with pytest.raises(error, match=match) if error else contextlib.nullcontext():
        loop.replay(lambda: closure(loop))
    world.check()


def test_training_with_replays_in_between_is_bitwise_the_training_without() -> None:
    def run(with_replays: bool) -> bytes:
        torch.manual_seed(3)
        loop = Loop(Net(), scale=2.0**18)

        def after_step(step: int) -> None:
            if with_replays:
                loop.replay()
                with torch.no_grad():
                    loop.replay(loop.backward, loop.x)

        train(loop.model, loop.optimizer, loop.scaler, batches(8, bad=[3]), after_step=after_step)
        return World(loop).bits

    assert run(True) == run(False)


def test_a_replay_between_forward_and_backward_leaves_their_graph_alone() -> None:
    def run(with_replay: bool) -> list[bytes]:
        torch.manual_seed(3)
        loop = Loop(Net())
        scaled = loop.scaler.scale(loop.model(loop.x).square().mean())
        if with_replay:
            loop.replay(loop.backward, loop.x)
        scaled.backward()
        return [bits(each.grad) for each in loop.model.parameters()]

    assert run(True) == run(False)


def test_gradients_of_tensors_outside_of_the_model_are_kept() -> None:
    model = net()
    x = torch.randn(4, 8, requires_grad=True)
    x.grad = kept = torch.ones(4, 8)
    replay(lambda: model(x).mean().backward(), models={"": model})
    assert x.grad is kept and bool((kept == 1).all())


def test_the_hooks_of_the_user_stay_and_anomaly_detection_does_not_interrupt() -> None:
    loop = Loop(net(LogWhere()))
    seen: list[str] = []
    loop.model.head.register_forward_hook(lambda *call: seen.append("called"))
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        assert loop.replay().module == "blocks.2.inner"
        assert torch.is_anomaly_enabled()
    assert seen and len(loop.model.head._forward_hooks) == 1


# -- the same scale, the same random numbers ---------------------------------------------------------------------------


def test_it_runs_at_the_scale_and_with_the_random_numbers_of_the_step() -> None:
    torch.manual_seed(0)
    masks: list[Tensor] = []
    model = nn.Sequential(nn.Dropout(0.5), Half())
    model[0].register_forward_hook(lambda module, args, output: masks.append(output.detach().clone()))
    loop = Loop(model, scale=2.0**19)
    data = [torch.randn(32, 8)]
    starts = StepStarts(loop.scaler, [torch.device("cpu")])  # the scaler has no tensor yet
    train(loop.model, loop.optimizer, loop.scaler, data)
    starts.step_begins(loop.scaler)
    assert loop.scaler.get_scale() == 2.0**18  # it was skipped, and is smaller now
    assert starts.last is not None and starts.last.loss_scale == 2.0**19

    loop.x = data[0]
    origin = loop.replay(at=starts.last)
    assert all(torch.equal(masks[0], each) for each in masks) and len(masks) > 1
    assert origin.phase == "backward"
    masks.clear()
    loop.replay(at=starts.open)
    now = masks[0]
    loop.backward()
    assert torch.equal(now, masks[-1])


def test_a_replay_without_a_moment_uses_the_random_numbers_to_come() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    drawn: list[Tensor] = []

    def closure() -> None:
        output = model(torch.ones(4, 8))
        drawn.append(output.detach())
        output.mean().backward()

    replay(closure, models={"": model})
    closure()
    assert all(torch.equal(drawn[-1], each) for each in drawn)


def test_a_moment_is_taken_without_a_scaler_and_before_its_first_use() -> None:
    assert Moment.now(None).loss_scale is None
    assert Moment.now(torch.amp.GradScaler("cpu", enabled=False)).loss_scale is None
    assert Moment.now(torch.amp.GradScaler("cpu", init_scale=8.0)).loss_scale == 8.0
    loop = Loop(net(TooLarge(8)))
    assert loop.replay(at=Moment.now(loop.scaler)).module == "blocks.2.inner"
    assert loop.scaler._scale is None  # as before its first use


def test_those_who_watch_the_training_look_away() -> None:
    watching = [True]

    @contextlib.contextmanager
    def muted() -> Iterator[None]:
        watching[0] = False
        yield
        watching[0] = True

    loop = Loop(net())

    def closure() -> None:
        assert not watching[0]
        loop.backward()

    loop.replay(closure, muted=muted)
    assert watching[0]


def test_a_disabled_scaler_and_none_are_fine() -> None:
    for scaler in (None, torch.amp.GradScaler("cpu", enabled=False)):
        model = net(TooLarge(8))
        before = None if scaler is None else dict(vars(scaler))
        origin = replay(
            lambda model=model: model(torch.randn(32, 8)).mean().backward(), models={"": model}, scaler=scaler
        )
        assert origin.module == "blocks.2.inner"
        assert scaler is None or vars(scaler) == before


def test_a_backward_from_an_edge_of_the_graph_is_one() -> None:
    model = net(Louder(1e9))

    def closure() -> None:
        loss = model(torch.randn(32, 8)).square().sum()
        torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss), torch.tensor(1.0))

    assert replay(closure, models={"": model}).module == "blocks.2.inner"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("reentrant", [False, True])
def test_on_a_gpu_the_module_is_named_and_everything_is_as_it_was(reentrant: bool) -> None:
    torch.manual_seed(0)
    model = Net(planted=Louder(1e6)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    x = torch.randn(32, 8, device="cuda", requires_grad=True)
    scaler.scale(model(x).square().mean()).backward()

    def closure() -> None:
        h = x
        for block in model.blocks:
            h = checkpoint(lambda x, block=block: block(x)["hidden"][0], h, use_reentrant=reentrant)
        scaler.scale(model.head(h).square().mean()).backward()

    def state() -> bytes:
        return bits([model.state_dict(), [p.grad for p in model.parameters()], x.grad, torch.cuda.get_rng_state()])

    before = state()
    origin = replay(closure, models={"": model}, optimizers=[optimizer], scaler=scaler)
    assert (origin.module, origin.phase, origin.dtype) == ("blocks.2.inner", "backward", "float16")
    assert state() == before


def emulated(observer: Any) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """What `StepObserver.muted` is to do, for as long as it does not."""
    reported = ["loss_scaled", "backward_ran", "unscaled", "unscale_refused", "scaler_step_begins", "scaler_step_ended"]
    reported += ["update_begins", "update_ended", "step_begins", "step_ended", "clip_begins", "clip_ended"]
    reported += ["backward_under_autocast", "closure_returned", "loss_logged"]

    @contextlib.contextmanager
    def muted() -> Iterator[None]:
        for name in reported:
            setattr(observer, name, lambda *arguments: None)
        try:
            yield
        finally:
            for name in reported:
                delattr(observer, name)

    return muted


def test_a_replay_is_no_step_of_the_record_and_can_be_asked_for_when_a_skip_is_reported(tmp_path: Path) -> None:
    def run(logdir: Path, with_replays: bool) -> tuple[Any, bytes, list[Origin]]:
        torch.manual_seed(3)
        loop = Loop(Net(), scale=2.0**16)
        data = batches(12, size=8, bad=[7])
        current = [0]
        with tbnum.wrap(loop.optimizer, loop.scaler, model=loop.model, logdir=logdir) as monitor:
            observer = monitor._observer
            muted = getattr(observer, "muted", None) or emulated(observer)
            starts = StepStarts(loop.scaler, [])
            origins: list[Origin] = []

            def closure(x: Tensor) -> None:
                loop.backward(x)
                loop.scaler.unscale_(loop.optimizer)
                nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)

            def on_event(event: Any) -> None:
                if with_replays and event.kind == "skip":
                    origins.append(loop.replay(closure, data[current[0]], at=starts.open, muted=muted))

            monitor.on_event(on_event)
            for current[0], x in enumerate(data):
                loop.backward(x)
                if with_replays:
                    loop.replay(closure, x, muted=muted)
                loop.scaler.unscale_(loop.optimizer)
                nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
                loop.scaler.step(loop.optimizer)
                loop.scaler.update()
                starts.step_begins(loop.scaler)
                loop.optimizer.zero_grad()
        (record,) = tbnum.read(logdir).values()
        return record, World(loop).bits, origins

    plain, plain_bits, _ = run(tmp_path / "plain", False)
    replayed, replayed_bits, origins = run(tmp_path / "replayed", True)
    assert replayed_bits == plain_bits
    for name, values in plain.steps.items():
        if name != "wall_time":
            np.testing.assert_array_equal(replayed.steps[name], values, err_msg=name)
    assert [(each.kind, each.step) for each in replayed.events] == [(each.kind, each.step) for each in plain.events]
    assert len(origins) == int(plain.steps["skipped"].sum()) > 0
    assert all(origin.phase == "backward" for origin in origins)


# -- refusals ----------------------------------------------------------------------------------------------------------


def refused(match: str, error: type[Exception], **arguments: Any) -> None:
    ran = []
    setting: dict[str, Any] = {"closure": lambda *batch: ran.append(batch), "models": {"": net()}}
    with pytest.raises(error, match=match):
        replay(**{**setting, **arguments})
    assert not ran


def test_it_refuses_before_anything_runs_where_it_could_not_keep_its_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("takes a function", TypeError, closure=torch.zeros(()))
    refused("model", ValueError, models={})
    refused("holds no tensor", ValueError, batch="text")
    refused("holds no tensor", ValueError, batch={"x": torch.tensor(1.0)})
    refused("holds no tensor", ValueError, batch=torch.zeros(0, 3))
    refused("not initialized", RuntimeError, models={"": nn.LazyLinear(3)})
    steps_in_backward = net()
    steps_in_backward.head.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    refused("head.weight has a hook .* inside of backward", RuntimeError, models={"": steps_in_backward})
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    refused("rank 1 of 4", RuntimeError)
