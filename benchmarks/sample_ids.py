"""What following the sample ids of a DataLoader costs: on the loop's thread, a batch at a time."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.report import Row, median, spread
from tbnum.kept_ids import KeptIds
from tbnum.log.schema import step_columns
from tbnum.log.writer import LogWriter
from tbnum.observe.loader import BatchIds

__all__ = ["sample_ids"]

BATCH = 32


class _Indices(Dataset[int]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index


def sample_ids(batches: int, rounds: int = 5) -> list[Row]:
    """A loop that does nothing but read a loader, with and without tbnum; in turns, so that the machine's noise hits
    both.
    """
    loader = DataLoader(_Indices(BATCH * batches), batch_size=BATCH, collate_fn=torch.tensor)
    followed: list[float] = []
    kept: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        log = LogWriter(Path(folder), columns=step_columns({"optimizer": 1}, batches=True), meta={})
        for _ in range(rounds):
            bare = _seconds(loader, None, None)
            ids = BatchIds(loader)
            following = _seconds(loader, ids, None)
            keeping = _seconds(loader, ids, KeptIds(log, keep_all=False))
            ids.release()
            followed.append((following - bare) / batches * 1e6)
            kept.append((keeping - following) / batches * 1e6)
            log.flush()
        log.close()
    what = f"sample ids, batches of {BATCH}"
    return [
        Row(f"{what}: followed to their backward, a batch", median(followed), "us", spread=spread(followed)),
        Row(f"{what}: hashed and handed to the log, a step", median(kept), "us", spread=spread(kept)),
    ]


def _seconds(loader: DataLoader[int], ids: BatchIds | None, kept: KeptIds | None) -> float:
    start = time.perf_counter()
    for step, _ in enumerate(loader):
        if ids is not None:
            ids.backward()
            found = ids.close()
            if kept is not None:
                kept.step(step, found)
    return time.perf_counter() - start
