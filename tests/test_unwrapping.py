"""What `wrap` is given: recorded as the optimizer that really steps, or refused with the way out before it begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tbnum
from tbnum.arguments import check_loss_name, check_optimizer_name, checked_optimizers, checked_scaler


def sgd(model: nn.Module | None = None) -> torch.optim.SGD:
    return torch.optim.SGD((model or nn.Linear(2, 1)).parameters(), lr=0.1)


# -- wrappers around an optimizer ------------------------------------------------------------------------------------


class Delegates:
    """A wrapper that looks like what it holds."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.wrapped = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def step(self) -> None:
        self.wrapped.step()


class SharesItsDict(torch.optim.Optimizer):
    """As Lightning Fabric's did: by class an optimizer, whose attributes are those of another."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.__dict__ = {**optimizer.__dict__, "inner": optimizer}

    def step(self, closure: Any = None) -> Any:
        return self.__dict__["inner"].step(closure)


class IsOneWithItsDict(torch.optim.Optimizer):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.__dict__ = optimizer.__dict__
        self.__dict__["_optimizer"] = optimizer

    def step(self, closure: Any = None) -> Any:
        return self.__dict__["_optimizer"].step(closure)


class Fp32(torch.optim.Optimizer):
    """Has hooks of its own, which nobody calls, as its step is not torch's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optim = optimizer
        self.param_groups = optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optim.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optim.zero_grad(set_to_none)


class Lookahead(torch.optim.Optimizer):
    """Steps by another's step, inside of a step that torch hooks as well."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


def fabric(optimizer: torch.optim.Optimizer) -> Any:
    pytest.importorskip("lightning")
    from lightning.fabric.strategies import SingleDeviceStrategy
    from lightning.fabric.wrappers import _FabricOptimizer

    return _FabricOptimizer(optimizer, SingleDeviceStrategy())


def lightning(optimizer: torch.optim.Optimizer) -> Any:
    pytest.importorskip("lightning")
    from lightning.pytorch.core.optimizer import LightningOptimizer

    wrapper = LightningOptimizer(optimizer)
    wrapper.step = optimizer.step  # type: ignore[method-assign]  # it has no trainer here
    return wrapper


def accelerated(optimizer: torch.optim.Optimizer) -> Any:
    pytest.importorskip("accelerate")
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(optimizer)


def post_local_sgd(optimizer: torch.optim.Optimizer) -> Any:
    from torch.distributed.algorithms.model_averaging.averagers import ModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    class Nothing(ModelAverager):  # what averages over ranks
        def __init__(self) -> None:
            pass

        def average_parameters(self, params: Any) -> None:
            pass

    return PostLocalSGDOptimizer(optimizer, Nothing())


def twice(optimizer: torch.optim.Optimizer) -> Any:
    return Delegates(Fp32(optimizer))


WRAPPERS: list[Callable[[torch.optim.Optimizer], Any]] = [
    Delegates,
    SharesItsDict,
    IsOneWithItsDict,
    Fp32,
    Lookahead,
    fabric,
    lightning,
    accelerated,
    post_local_sgd,
    twice,
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_step_of_a_wrapped_optimizer_is_recorded(
    wrapper: Callable[[torch.optim.Optimizer], Any], tmp_path: Path
) -> None:
    model = nn.Linear(2, 1)
    optimizer = wrapper(sgd(model))
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path):
        for _ in range(10):
            model(torch.ones(3, 2)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    run = tbnum.read(tmp_path)["."]
    assert len(run.steps["step"]) == 10
    assert (run.steps["grad_norm"] > 0).all()


# -- what is refused -------------------------------------------------------------------------------------------------


def made_in(name: str, *bases: type) -> type:
    """A class of that module, around an optimizer."""

    def __init__(self: Any, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner
        self.param_groups = inner.param_groups

    return type("Zero", bases, {"__module__": name, "__init__": __init__})


@pytest.mark.parametrize(
    "name",
    ["deepspeed", "deepspeed.runtime.zero.stage3", "deepspeed.runtime.bf16_optimizer", "megatron.core.optimizer"],
)
@pytest.mark.parametrize("bases", [(), (torch.optim.Optimizer,)], ids=["no optimizer", "an optimizer"])
@pytest.mark.parametrize("around", [lambda each: each, Delegates, lambda each: {"a": each}])
def test_an_engine_s_optimizer_is_refused_whatever_is_around_it(
    name: str, bases: tuple[type, ...], around: Callable[[Any], Any], tmp_path: Path
) -> None:
    inner = sgd()
    given = around(made_in(name, *bases)(inner))
    with pytest.raises(ValueError, match=r"engine scales, clips and steps by itself.*can be read"):
        tbnum.wrap(given, logdir=tmp_path / "run")
    assert not inner._optimizer_step_pre_hooks and not (tmp_path / "run").exists()


def test_an_engine_s_optimizer_is_known_by_a_subclass_of_the_user_s_too() -> None:
    mine = type("Mine", (made_in("deepspeed.runtime.zero.stage_1_and_2"),), {"__module__": "__main__"})
    with pytest.raises(ValueError, match="DeepSpeed"):
        checked_optimizers(mine(sgd()))


def test_a_plain_optimizer_that_comes_with_an_engine_is_recorded() -> None:
    fused = type("FusedAdam", (torch.optim.SGD,), {"__module__": "deepspeed.ops.adam.fused_adam"})
    optimizer = fused(nn.Linear(2, 1).parameters())
    assert checked_optimizers(optimizer) == {"optimizer": optimizer}


def test_what_holds_several_optimizers_is_refused_with_the_mapping_as_the_way_out() -> None:
    class Both:
        def __init__(self) -> None:
            self.first, self.second = sgd(), sgd()

    with pytest.raises(TypeError, match="wraps several; several optimizers go into a mapping"):
        checked_optimizers(Both())


def test_a_wrapper_that_holds_itself_is_refused() -> None:
    class Circle:
        def __init__(self) -> None:
            self.optimizer = self

    with pytest.raises(TypeError, match="wraps none"):
        checked_optimizers(Circle())


@pytest.mark.parametrize("name", ["loss", "step", "lr", "grad_norm", "skipped", "step_hash", "wall_time"])
def test_the_name_of_a_column_is_no_name_for_an_optimizer_or_a_term_of_the_loss(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"'{name}', as that is the name of a column; call it '{name}_optimizer'"):
        tbnum.wrap({name: sgd()}, logdir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=f"'{name}', as that is the name of a column; call it '{name}_term'"):
        check_loss_name(name)


@pytest.mark.parametrize("check", [check_optimizer_name, check_loss_name])
@pytest.mark.parametrize(
    ("name", "hint"),
    [("a/b", "'a_b' would do"), ("", "without '/'"), (" ", "without '/'"), ("a\nb", "'a_b'"), (3, "int")],
)
def test_a_name_that_no_column_can_have_is_refused_with_one_that_it_can(
    check: Callable[[Any], None], name: Any, hint: str
) -> None:
    with pytest.raises(ValueError, match=hint):
        check(name)
    check("kl divergence")
    check("generator")


# -- scalers ---------------------------------------------------------------------------------------------------------


class NativeScaler:
    """As timm's and MAE's: called with a loss and an optimizer."""

    def __init__(self) -> None:
        self._scaler = torch.amp.GradScaler("cpu")

    def __call__(self, loss: Any, optimizer: Any, clip_grad: Any = None) -> None: ...


class Precision:
    """As Lightning's plugin, or an Accelerator."""

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler


def test_the_scaler_inside_of_an_object_is_found() -> None:
    native = NativeScaler()
    assert checked_scaler(native) is native._scaler
    assert checked_scaler(Precision(native)) is native._scaler
    assert checked_scaler(native._scaler) is native._scaler
    assert checked_scaler(None) is None


def test_a_function_that_gives_a_scale_is_taken_as_it_is() -> None:
    class Loop:
        def scale(self) -> float:
            return 2.0

    scale = Loop().scale
    assert checked_scaler(scale) is scale
    assert callable(checked_scaler(lambda: 3.0))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (torch.amp.GradScaler, "pass the GradScaler that the loop uses, not its class"),
        (1024.0, "lambda: scale"),
        (torch.tensor(2.0), "lambda: scale"),
        (lambda loss: loss * 2, "a function is to take no arguments"),
        (nn.Linear(2, 1), "The model goes to model="),
        ("runs/gpt", "folders to logdir="),
        (sgd(), "several optimizers go into a mapping"),
        (Precision(None), "pass the scaler of the loop"),
    ],
)
def test_what_is_no_scaler_is_refused_with_the_way_out(given: Any, error: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=error):
        tbnum.wrap(sgd(), given, logdir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", [-1, 1.5, True, "1 GB"])
def test_max_tensor_bytes_is_a_number_of_bytes(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_tensor_bytes is"):
        tbnum.wrap(sgd(), logdir=tmp_path / "run", max_tensor_bytes=given)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:.*max_tensor_bytes=0")
def test_max_tensor_bytes_bounds_what_tensors_take_on_disk(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    sizes = {}
    for limit in (0, 256_000_000):
        optimizer = sgd(model)
        logdir = tmp_path / str(limit)
        with tbnum.wrap(optimizer, model=model, logdir=logdir, tensor_interval=1, max_tensor_bytes=limit):
            for _ in range(20):
                model(torch.ones(3, 2)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        sizes[limit] = sum(path.stat().st_size for path in logdir.glob("*.tensors.tbnum"))
    assert sizes[0] < sizes[256_000_000] / 3
