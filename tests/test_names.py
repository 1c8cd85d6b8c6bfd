"""A model has the names that it has plain, whatever torch has wrapped around it or parts of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import tbnum
from tbnum.observe.names import named_modules

pytestmark = pytest.mark.usefixtures("one_thread", "a_group_of_one")

PARAMETERS = ["body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight"]
MODULES = ["", "body", "body.0", "body.1", "body.2", "head"]
INF_AT = 1e15  # an input of which the body makes more than float32 holds


@pytest.fixture(scope="module")
def a_group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Cube(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3


class Net(nn.Module):
    def __init__(self, body: Callable[[nn.Module], nn.Module] = lambda body: body) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = body(nn.Sequential(nn.Linear(4, 4), Cube(), nn.Linear(4, 4)))
        self.head = nn.Linear(4, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def sharded_flat(model: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "nothing": Net,
    "data_parallel": lambda: nn.DataParallel(Net()),
    "compiled": lambda: compiled(Net()),
    "ddp": lambda: DistributedDataParallel(Net()),
    "compiled_ddp": lambda: compiled(DistributedDataParallel(Net())),
    "ddp_of_compiled": lambda: DistributedDataParallel(compiled(Net())),
    "fsdp2": lambda: fully_shard(Net()),
    "compiled_fsdp2": lambda: compiled(fully_shard(Net())),
    "fsdp1": lambda: sharded_flat(Net()),
    "compiled_fsdp1": lambda: compiled(sharded_flat(Net())),
    "checkpointed": lambda: checkpoint_wrapper(Net()),
    "part_in_ddp": lambda: Net(DistributedDataParallel),
    "part_compiled": lambda: Net(compiled),
    "part_checkpointed_in_compiled_ddp": lambda: compiled(DistributedDataParallel(Net(checkpoint_wrapper))),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_parameters_and_modules_are_called_as_in_the_plain_model(wrapped: str, tmp_path: Path) -> None:
    model = WRAPPED[wrapped]()
    with tbnum.wrap(torch.optim.SGD(model.parameters()), model=model, logdir=tmp_path):
        pass
    assert list(tbnum.read(tmp_path)["."].meta["parameters"]) == PARAMETERS
    assert [name for name, _ in named_modules({"": model}, inside_compiled=True)] == MODULES
    assert [name for name, _ in named_modules({"net": model}, inside_compiled=True)][:2] == ["net", "net.body"]


def test_a_module_that_the_user_calls_module_keeps_its_name(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("module", nn.Linear(2, 1, bias=False))
    with tbnum.wrap(torch.optim.SGD(model.parameters()), model=model, logdir=tmp_path):
        pass
    assert list(tbnum.read(tmp_path)["."].meta["parameters"]) == ["module.weight"]


@pytest.mark.parametrize("wrapped", ["compiled_ddp", "ddp_of_compiled", "compiled_fsdp2", "compiled_fsdp1"])
def test_what_a_compiler_has_wrapped_is_watched_as_a_whole_and_not_compiled_again(wrapped: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = WRAPPED[wrapped]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):  # of DDP's own code other parts run in the second
        step()
    before = dict(torch._dynamo.utils.counters["frames"])
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, activations=True, tensor_interval=1):
        step()
        step()
    assert torch._dynamo.utils.counters["frames"] == before
    run = tbnum.read(tmp_path)["."]
    assert set(run.tensors["activation_absmax"].names) == {"output", "gradient"}
    torch._dynamo.reset()


@pytest.mark.parametrize("wrapped", ["ddp", "compiled_ddp", "ddp_of_compiled", "fsdp2", "compiled_fsdp2"])
def test_a_replay_names_the_module_inside_and_the_training_stays_bitwise_the_same(wrapped: str, tmp_path: Path) -> None:
    def trained(replay: bool) -> list[Tensor]:
        model = WRAPPED[wrapped]()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        with tbnum.wrap(optimizer, model=model, logdir=tmp_path / str(replay)) as monitor:
            for step in range(3):
                optimizer.zero_grad()
                model(torch.ones(3, 4)).square().mean().backward()
                if replay and step == 1:
                    origin = monitor.replay(lambda x: model(x).sum().backward(), torch.full((3, 4), INF_AT))
                    assert (origin.module, origin.phase, origin.operation) == ("body.1", "forward", "pow")
                optimizer.step()
        return [getattr(each, "_local_tensor", each).detach() for each in model.parameters()]

    assert all(map(torch.equal, trained(replay=True), trained(replay=False)))
