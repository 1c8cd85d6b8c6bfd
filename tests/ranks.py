"""Small trainings on several processes for `test_ranks.py`; each leaves a run, and what an oracle says of it.

    python -m torch.distributed.run --standalone --nproc-per-node=4 -m tests.ranks FOLDER SCENARIO ...

Every rank takes its share of the same batches, so that the gradients are those of `one_process`, which takes them
whole, in float64, and without tbnum.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import tbnum
from tests.loops import OPTIMIZERS, Half, batches

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


def one_process(model: nn.Module, max_norm: float = MAX_NORM) -> dict[str, Any]:
    """What the columns have to be, in float64: no tbnum, no ranks, no clipping of torch's."""
    model = model.double()
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
        coefficient = min(1.0, max_norm / (norm + 1e-6))
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
    """What a rank takes of a batch; this one, of all."""
    return x.chunk(ranks or dist.get_world_size())[dist.get_rank() if rank is None else rank]


def train(
    model: nn.Module,
    folder: Path,
    *,
    clip: Callable[[], Any] | None = None,
    scaler: torch.amp.GradScaler | None = None,
    record: bool = True,
    takes: tuple[int, int] | None = None,
    **options: Any,
) -> None:
    """`takes`: whose share of the batch this one takes, of how many. `options` are those of `wrap`."""
    optimizer = sgd(model)
    monitor = None
    if record:
        options = {"tensor_interval": 1, "scalar_interval": 3, **options}
        monitor = tbnum.wrap(optimizer, scaler, model=model, logdir=folder, **options)
    for x in data():
        optimizer.zero_grad()
        loss = loss_of(model(share(x, *(takes or ()))))
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            if monitor is not None:
                monitor.log_loss(loss)
            loss.backward()
        if clip is not None:
            clip()
        else:
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    if monitor is not None:
        monitor.close()


def mesh_of(*shape: int) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])


# -- the same training, spread in different ways ---------------------------------------------------------------------


def ddp(folder: Path, record: bool = True) -> None:
    train(DistributedDataParallel(Net()), folder, record=record)


def fsdp2(folder: Path, record: bool = True) -> None:
    model = Net()
    for layer in model.children():
        fully_shard(layer)
    train(fully_shard(model), folder, record=record)


def fsdp2_scaled(folder: Path, record: bool = True) -> None:
    train(fully_shard(Net()), folder, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0), record=record)


def fsdp2_accumulated(folder: Path) -> None:
    """Two micro-batches a step, of which the first is not reduced; and another model's backward between them."""
    model, other = fully_shard(Net()), Net()
    optimizer = sgd(model)
    with tbnum.wrap(optimizer, model=model, logdir=folder, tensor_interval=1):
        for x in data():
            for last, micro in enumerate(share(x).chunk(2)):
                model.set_requires_gradient_sync(bool(last))
                (loss_of(model(micro)) / 2).backward()
                loss_of(other(micro)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()


def hsdp(folder: Path) -> None:
    train(fully_shard(Net(), mesh=mesh_of(2, dist.get_world_size() // 2)), folder)


def fsdp1(folder: Path, **options: Any) -> None:
    model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), **options)
    scaler = ShardedGradScaler("cpu", init_scale=1024.0)
    train(model, folder, clip=lambda: model.clip_grad_norm_(MAX_NORM), scaler=scaler)


def fsdp1_unscaled(folder: Path) -> None:
    model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))
    train(model, folder, clip=lambda: model.clip_grad_norm_(MAX_NORM))


def fsdp1_original(folder: Path) -> None:
    fsdp1(folder, use_orig_params=True)


def fsdp1_unnamed(folder: Path) -> None:
    """Without `model=`, by which tbnum would know how it is sharded."""
    model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))
    optimizer = sgd(model)
    with tbnum.wrap(optimizer, logdir=folder):
        loss_of(model(share(data()[0]))).backward()
        optimizer.step()


def few(folder: Path) -> None:
    """One tensor of three elements: the last of four ranks has nothing of it, and no gradient."""
    model = FullyShardedDataParallel(nn.Linear(3, 1, bias=False), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = sgd(model)
    with tbnum.wrap(optimizer, model=model, logdir=folder, tensor_interval=1):
        for x in data():
            optimizer.zero_grad()
            loss_of(model(x[:, :3])).backward()
            optimizer.step()


def fsdp1_hybrid(folder: Path) -> None:
    mesh = mesh_of(2, dist.get_world_size() // 2)
    fsdp1(folder, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)


def fsdp1_whole(folder: Path) -> None:
    fsdp1(folder, sharding_strategy=ShardingStrategy.NO_SHARD)


class Pair(nn.Sequential):
    """For tensor parallelism, whose layers it names."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 5))


def two_dimensions(folder: Path) -> None:
    """FSDP2 over tensor parallelism: parameters are sharded twice, and the last bias is a copy in one dimension."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(Pair(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(fully_shard(model, mesh=mesh["data"]), folder, takes=(mesh["data"].get_local_rank(), 2))


# -- gradients by hand, which lie as one wants -----------------------------------------------------------------------


SHAPES = {"columns": (5, 6), "rows": (7, 3), "few": (3,), "both": (4, 6), "beside": (2, 2), "some": (5, 2)}
SCALES = {"columns": 1.0, "rows": 3.0, "few": 0.5, "both": 2.0, "beside": 4.0, "some": 1.5}


def full_tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * SCALES[name] for name, shape in SHAPES.items()}


def placed(value: Tensor, name: str) -> Tensor:
    world = dist.get_world_size()
    if name == "beside":
        return value.clone()
    if name == "some":  # on some of the ranks only
        return distribute_tensor(value, DeviceMesh("cpu", [1, 2]), [Shard(0)])
    if name == "both":
        return distribute_tensor(value, mesh_of(2, world // 2), [Replicate(), Shard(1)])
    return distribute_tensor(value, mesh_of(world), [Shard(1 if name == "columns" else 0)])


def by_hand(folder: Path, partial: bool = False) -> None:
    """Three steps of plain SGD with known gradients; tensors on several meshes, one of them on two of the ranks."""
    model = nn.Module()
    for name, value in full_tensors(0).items():
        model.register_parameter(name, nn.Parameter(placed(value, name)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with tbnum.wrap(optimizer, model=model, logdir=folder, tensor_interval=1):
        for step in range(3):
            for name, value in full_tensors(1 + step).items():
                gradient = placed(value, name)
                if partial and name == "rows":
                    gradient = DTensor.from_local(
                        value / dist.get_world_size(), mesh_of(dist.get_world_size()), [Partial()]
                    )
                getattr(model, name).grad = gradient
            optimizer.step()


def partial(folder: Path) -> None:
    by_hand(folder, partial=True)


def stages(folder: Path) -> None:
    """Two pipeline stages, two replicas of each, all of plain tensors."""
    stage = dist.get_rank() // 2
    torch.manual_seed(stage)
    model = nn.ModuleDict({f"stage{stage}": nn.Linear(4, 3)})
    optimizer = sgd(model)
    with tbnum.wrap(optimizer, model=model, logdir=folder, tensor_interval=1):
        for x in batches(3, size=4, width=4, seed=5):
            optimizer.zero_grad()
            loss_of(model[f"stage{stage}"](x)).backward()
            optimizer.step()


def pipeline(folder: Path, **options: Any) -> None:
    """Two stages that hand activations and gradients on; the second alone has the loss."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = nn.Linear(4, 4)
    optimizer = sgd(stage)
    losses = []
    with tbnum.wrap(optimizer, model={f"stage{rank}": stage}, logdir=folder, **options):
        for x in batches(5, size=4, width=4, seed=5):
            optimizer.zero_grad()
            between = stage(x) if rank == 0 else torch.empty(4, 4)
            if rank == 0:
                dist.send(between.detach(), 1)
                gradient = torch.empty(4, 4)
                dist.recv(gradient, 1)
                between.backward(gradient)
            else:
                dist.recv(between, 0)
                loss = loss_of(stage(between.requires_grad_()))
                loss.backward()
                losses.append(loss.item())
                dist.send(between.grad, 0)
            optimizer.step()
    if rank:
        (folder / "losses.json").write_text(json.dumps(losses))


# -- what goes wrong -------------------------------------------------------------------------------------------------


def spoiled(folder: Path, model: nn.Module, **options: Any) -> None:
    """Two micro-batches a step. Rank 1's second at step 3 is far too large, rank 2's first at step 5 is infinite."""
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    rank = dist.get_rank()
    with tbnum.wrap(optimizer, scaler, model=model, logdir=folder, **options):
        for step, x in enumerate(batches(7, seed=rank)):
            for micro in range(2):
                far = rank == 1 and micro == 1 and step == 3
                broken = rank == 2 and micro == 0 and step == 5
                loss = model(x).square().mean() / 2 * (1e6 if far else math.inf if broken else 1)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def spoiled_ddp(folder: Path) -> None:
    torch.manual_seed(0)
    spoiled(folder, DistributedDataParallel(Half()))


def spoiled_fsdp2(folder: Path) -> None:
    torch.manual_seed(0)
    spoiled(folder, fully_shard(Half()))


def unreduced(folder: Path) -> None:
    """DDP was forgotten: the ranks skip each by itself, and train different models."""
    torch.manual_seed(0)
    model = Half()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    bad = [2] if dist.get_rank() == 1 else []
    with tbnum.wrap(optimizer, scaler, model=model, logdir=folder, tensor_interval=1):
        for x in batches(5, seed=dist.get_rank(), bad=bad):
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def uneven(folder: Path) -> None:
    """The last rank has two batches less; `join` lets the others go on."""
    model = DistributedDataParallel(Net())
    optimizer = sgd(model)
    mine = data()[: STEPS - 2] if dist.get_rank() == dist.get_world_size() - 1 else data()
    with tbnum.wrap(optimizer, model=model, logdir=folder), model.join():
        for x in mine:
            optimizer.zero_grad()
            loss_of(model(x)).backward()
            optimizer.step()


def flipped(folder: Path) -> None:
    """A bit of one weight on rank 1 flips before step 70."""
    model = DistributedDataParallel(Net())
    optimizer = sgd(model)
    with tbnum.wrap(optimizer, model=model, logdir=folder, tensor_interval=20):
        for step, x in enumerate(batches(100, size=SIZE, width=WIDTH)):
            if step == 70 and dist.get_rank() == 1:
                model.module.second.weight.data.view(torch.int32)[1, 2] ^= 1 << 20  # of the mantissa
            optimizer.zero_grad()
            loss_of(model(share(x))).backward()
            optimizer.step()


def flipped_hsdp(folder: Path) -> None:
    """A bit of one weight flips before step 7 on the last rank, which holds the same part as rank 1."""
    model = fully_shard(Net(), mesh=mesh_of(2, dist.get_world_size() // 2))
    optimizer = sgd(model)
    with tbnum.wrap(optimizer, model=model, logdir=folder, tensor_interval=2):
        for step, x in enumerate(batches(10, size=SIZE, width=WIDTH)):
            if step == 7 and dist.get_rank() == dist.get_world_size() - 1:
                model.second.weight._local_tensor.view(torch.int32)[0, 2] ^= 1 << 18
            optimizer.zero_grad()
            loss_of(model(share(x))).backward()
            optimizer.step()


def healthy(folder: Path) -> None:
    """Steps in which the replicas stay one model."""
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = batches(50, size=SIZE, width=WIDTH)
    with tbnum.wrap(optimizer, model=model, logdir=folder, scalar_interval=None):
        for step in range(int(os.environ.get("TBNUM_REPLICA_STEPS", 500))):
            optimizer.zero_grad()
            loss_of(model(share(data[step % len(data)]))).backward()
            optimizer.step()


def own_folders(folder: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(DistributedDataParallel(Net()), folder / f"mine{dist.get_rank()}")
    reported = [str(each.message) for each in caught if "logdir" in str(each.message)]
    (folder / f"warnings{dist.get_rank()}.json").write_text(json.dumps(reported))


def killed(folder: Path) -> None:
    """The last rank is killed in the middle of step 5; what it recorded until step 3 is on disk."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which torchrun ends the others: they find out by themselves
    model = DistributedDataParallel(Net())
    optimizer = sgd(model)
    with tbnum.wrap(optimizer, model=model, logdir=folder) as monitor:
        for step, x in enumerate(data()):
            if dist.get_rank() == dist.get_world_size() - 1:
                if step == 4:
                    monitor.flush()
                if step == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss_of(model(share(x))).backward()
            optimizer.step()


def counted(folder: Path) -> None:
    """The collectives that run without tbnum, and with it: by name, and how many the process group took."""
    found: dict[str, dict[str, int]] = {}
    for name, record in (("without", False), ("with", True)):
        group = dist.group.WORLD
        before = group._get_sequence_number_for_group()
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            ddp(folder / name / "ddp", record)
            fsdp2(folder / name / "fsdp2", record)
            fsdp2_scaled(folder / name / "scaled", record)
        counts = Counter(event.name for event in profiled.events() if event.name.startswith(("gloo", "c10d", "_c10d")))
        found[name] = {**counts, "taken": group._get_sequence_number_for_group() - before}
    (folder / f"counts{dist.get_rank()}.json").write_text(json.dumps(found))


ALL = (
    flipped,
    flipped_hsdp,
    healthy,
    pipeline,
    ddp,
    fsdp2,
    fsdp2_scaled,
    fsdp2_accumulated,
    hsdp,
    fsdp1,
    fsdp1_unscaled,
    fsdp1_original,
    fsdp1_hybrid,
    fsdp1_whole,
    fsdp1_unnamed,
    few,
    two_dimensions,
    by_hand,
    partial,
    stages,
)
ALL += (spoiled_ddp, spoiled_fsdp2, unreduced, uneven, own_folders, counted, killed)
SCENARIOS: Mapping[str, Callable[[Path], None]] = {each.__name__: each for each in ALL}


def main() -> None:
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        (Path(folder) / name).mkdir(parents=True, exist_ok=True)
        SCENARIOS[name](Path(folder) / name)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
