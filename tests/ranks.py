"""Small trainings on several processes for `test_ranks.py`; each leaves a run, and what an oracle says of it.

    python -m torch.distributed.run --standalone --nproc-per-node=4 -m tests.ranks FOLDER SCENARIO ...

Every rank takes its share of the same batches, so that the gradients are those of `one_process`, which takes them
whole, in float64, and without tbnum.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import tbnum
from tests.loops import batches

STEPS, SIZE, WIDTH = 6, 8, 6
MAX_NORM = 0.3


class Net(nn.Module):
    """Of sizes that no number of ranks divides; the bias has fewer elements than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, 7)
        self.second = nn.Linear(7, 3)
        self.third = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


def data() -> list[Tensor]:
    return batches(STEPS, size=SIZE, width=WIDTH)


def loss_of(output: Tensor) -> Tensor:
    return (output - 3).square().mean()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def one_process(max_norm: float | None = MAX_NORM) -> dict[str, Any]:
    """What the columns have to be, in float64: no tbnum, no ranks, no clipping of torch's."""
    model = Net().double()
    optimizer = sgd(model)
    found: dict[str, list[float]] = {name: [] for name in ("grad_norm", "grad_norm_clipped", "param_norm")}
    found |= {"clip_coef": [], "update_norm": []}
    tensors: dict[str, list[float]] = {name: [] for name, _ in model.named_parameters()}
    for x in data():
        optimizer.zero_grad()
        loss_of(model(x.double())).backward()
        parameters = [parameter for _, parameter in model.named_parameters()]
        for name, parameter in model.named_parameters():
            tensors[name].append(parameter.grad.norm().item())
        norm = math.sqrt(sum(parameter.grad.square().sum().item() for parameter in parameters))
        coefficient = 1.0 if max_norm is None else min(1.0, max_norm / (norm + 1e-6))
        for parameter in parameters:
            parameter.grad.mul_(coefficient)
        before = [parameter.detach().clone() for parameter in parameters]
        optimizer.step()
        pairs = list(zip(parameters, before, strict=True))
        found["grad_norm"].append(norm)
        found["grad_norm_clipped"].append(norm * coefficient)
        found["clip_coef"].append(coefficient)
        found["param_norm"].append(math.sqrt(sum(now.square().sum().item() for now, _ in pairs)))
        found["update_norm"].append(math.sqrt(sum((now - then).square().sum().item() for now, then in pairs)))
    return {"columns": found, "tensors": tensors}


def share(x: Tensor, rank: int | None = None, ranks: int | None = None) -> Tensor:
    """What this rank takes of a batch."""
    return x.chunk(dist.get_world_size() if ranks is None else ranks)[dist.get_rank() if rank is None else rank]


def train(model: nn.Module, folder: Path, clip: Callable[[nn.Module], Any] | None = None, **options: Any) -> None:
    optimizer = sgd(model)
    with tbnum.wrap(optimizer, model=model, logdir=folder, tensor_interval=1, scalar_interval=3, **options) as monitor:
        for x in data():
            optimizer.zero_grad()
            loss = loss_of(model(share(x)))
            monitor.log_loss(loss)
            loss.backward()
            (clip or _clip)(model)
            optimizer.step()


def _clip(model: nn.Module) -> Tensor:
    return nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)


# -- scenarios -------------------------------------------------------------------------------------------------------


def ddp(folder: Path) -> None:
    train(DistributedDataParallel(Net()), folder)


def fsdp2(folder: Path) -> None:
    model = Net()
    for layer in model.children():
        fully_shard(layer)
    train(fully_shard(model), folder)


def hsdp(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    train(fully_shard(Net(), mesh=mesh), folder)


def fsdp1(folder: Path, **options: Any) -> None:
    model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), **options)
    train(model, folder, clip=lambda _: model.clip_grad_norm_(MAX_NORM))


def fsdp1_original(folder: Path) -> None:
    fsdp1(folder, use_orig_params=True)


SCENARIOS: Mapping[str, Callable[[Path], None]] = {
    each.__name__: each for each in (ddp, fsdp2, hsdp, fsdp1, fsdp1_original)
}


def main() -> None:
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        SCENARIOS[name](Path(folder) / name)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
