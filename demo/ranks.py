"""The demo on several processes, each of them a rank that trains on its share of every batch.

`--strategy ddp` keeps the whole model on every rank (DistributedDataParallel); `--strategy fsdp` spreads parameters,
gradients and optimizer state over the ranks (`fully_shard`). Started without torchrun the demo is one process, for
which everything in here does nothing.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

STRATEGIES = ("ddp", "fsdp")


@dataclass(frozen=True)
class Ranks:
    rank: int
    size: int
    strategy: str | None
    device: torch.device

    def spread(self, model: nn.Module) -> nn.Module:
        if self.strategy == "ddp":
            return DistributedDataParallel(model)
        if self.strategy == "fsdp":
            from torch.distributed.fsdp import fully_shard  # here since torch 2.6

            mesh = init_device_mesh(self.device.type, (self.size,))
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model

    def share(self, batch: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a batch that every rank draws alike."""
        return batch.tensor_split(self.size)[self.rank]

    def any(self, asked: bool) -> bool:
        """Whether any rank was asked to stop: all have to stop before the same step."""
        if self.strategy is None:
            return asked
        flag = torch.tensor(float(asked), device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)

    def close(self) -> None:
        if self.strategy is not None:
            dist.destroy_process_group()


def join(strategy: str | None, device: str) -> Ranks:
    """Meets the other ranks that torchrun started. All but rank 0 keep silent."""
    if strategy is None:
        return Ranks(0, 1, None, torch.device(device))
    where = torch.device(device, int(os.environ["LOCAL_RANK"])) if device == "cuda" else torch.device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    if dist.get_rank() > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for as long as the program runs)
    return Ranks(dist.get_rank(), dist.get_world_size(), strategy, where)


class Training:
    """Model and optimizer of all ranks as one state, which any number of ranks can go on with."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """On rank 0; every rank has to call it."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=options)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=StateDictOptions(full_state_dict=True),
        )
