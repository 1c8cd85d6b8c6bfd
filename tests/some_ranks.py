"""Trainings of which some ranks alone record, for `test_some_ranks.py`; real processes, gloo on the CPU.

python -m torch.distributed.run --standalone --nproc-per-node=3 -m tests.some_ranks FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tbnum
from tests.loops import Half, batches
from tests.ranks import Net, loss_of, sgd, spoiled, train

__all__ = ["SCENARIOS"]


def ddp(folder: Path) -> None:
    train(DistributedDataParallel(Net()), folder, ranks="first")


def ddp_two(folder: Path) -> None:
    train(DistributedDataParallel(Net()), folder, ranks=2)


def ddp_all(folder: Path) -> None:
    train(DistributedDataParallel(Net()), folder, ranks=dist.get_world_size())


def fsdp2(folder: Path) -> None:
    model = Net()
    fully_shard(model)
    train(model, folder, ranks="first")


def spoiled_ddp(folder: Path) -> None:
    torch.manual_seed(0)
    spoiled(folder, DistributedDataParallel(Half()), ranks="first")


def spoiled_fsdp2(folder: Path) -> None:
    torch.manual_seed(0)
    model = Half()
    fully_shard(model)
    spoiled(folder, model, ranks="first")


def pipeline(folder: Path) -> None:
    """Three stages; the last alone has the loss."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(rank)
    stage = nn.Linear(4, 4)
    optimizer = sgd(stage)
    losses = []
    with tbnum.wrap(optimizer, model={f"stage{rank}": stage}, logdir=folder, ranks="first"):
        for x in batches(5, size=4, width=4, seed=5):
            optimizer.zero_grad()
            if rank:
                x = torch.empty(4, 4)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            output = stage(x)
            if rank == last:
                loss = loss_of(output)
                loss.backward()
                losses.append(loss.item())
            else:
                dist.send(output.detach(), rank + 1)
                gradient = torch.empty(4, 4)
                dist.recv(gradient, rank + 1)
                output.backward(gradient)
            if x.grad is not None:
                dist.send(x.grad, rank - 1)
            optimizer.step()
    if losses:
        (folder / "losses.json").write_text(json.dumps(losses))


def listings(folder: Path) -> None:
    """How often each rank lists the run's folder: in a first session, and in one that goes on."""
    counted: Counter[str] = Counter()
    run = folder / "run"

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("os.listdir", "os.scandir") and str(arguments[0]) == str(run):
            counted[event] += 1

    sys.addaudithook(audit)
    train(DistributedDataParallel(Net()), run)
    dist.barrier()
    model = DistributedDataParallel(Net())
    optimizer = sgd(model)
    monitor = tbnum.wrap(optimizer, model=model, logdir=run)
    monitor.load_state_dict({"version": 1, "step": 4, "skipped_steps": 0, "session": None, "loss_scale": None})
    loss_of(model(torch.ones(1, 6))).backward()
    optimizer.step()
    monitor.close()
    (folder / f"listed{dist.get_rank()}.json").write_text(json.dumps(sum(counted.values())))


def crash(folder: Path) -> None:
    model = DistributedDataParallel(Net())
    optimizer = sgd(model)
    try:
        with tbnum.wrap(optimizer, model=model, logdir=folder, ranks="first"):
            loss_of(model(torch.ones(1, 6))).backward()
            optimizer.step()
            if dist.get_rank() == 2:
                raise KeyError("of rank 2")
    except KeyError:
        pass


ALL = (ddp, ddp_two, ddp_all, fsdp2, spoiled_ddp, spoiled_fsdp2, pipeline, listings, crash)
SCENARIOS: Mapping[str, Callable[[Path], None]] = {each.__name__: each for each in ALL}


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, scenario in SCENARIOS.items():
        os.makedirs(folder / name, exist_ok=True)
        scenario(folder / name)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
