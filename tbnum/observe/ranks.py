"""Which of how many processes this is, and a word from one of them to another."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import Any

import torch.distributed

__all__ = ["Notice", "rank_and_world_size"]


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


_notices: Counter[str] = Counter()  # of this process, by what they are about


class Notice:
    """A word that one rank leaves for another in the store by which the process group met.

    No collective: nobody waits for anybody. A request to the store takes some 0.1 ms. Where there is no process group,
    or its store is gone, nothing is left and nothing is read. The n-th notice about something on one rank is the n-th
    on another.
    """

    def __init__(self, about: str) -> None:
        _notices[about] += 1
        self._key = f"tbnum/{about}/{_notices[about]}"
        self._store: Any = None
        with contextlib.suppress(Exception):  # of a torch without it
            self._store = torch.distributed.distributed_c10d._get_default_store()

    def leave(self, word: str) -> None:
        with contextlib.suppress(Exception):
            self._store.set(self._key, word)

    def read(self) -> str | None:
        """None where nothing was left so far."""
        with contextlib.suppress(Exception):
            if self._store.check([self._key]):
                return bytes(self._store.get(self._key)).decode()
        return None
