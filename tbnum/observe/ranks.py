"""Which of how many processes this is."""

from __future__ import annotations

import os

import torch.distributed

__all__ = ["rank_and_world_size"]


def rank_and_world_size() -> tuple[int | None, int]:
    """The rank of this process and how many there are; (None, 1) where it trains alone.

    Of the process group where one is up, else of what torchrun put into the environment. No communication.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    else:
        try:
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        except (KeyError, ValueError):
            return None, 1
    return (rank, size) if size > 1 else (None, 1)
