"""Counts what tbnum launches on a device in a step: by dispatch, so that it can be counted where there is none.

Without a device the CPU plays one: tbnum is made to take its tensors for a device's, and sends what it measured.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tbnum
from tbnum.observe import transfer

__all__ = ["LOOPS", "Launched", "launched", "the_cpu_as_a_device"]

LOOPS = {
    "plain": (False, False),
    "with a clip": (True, False),
    "with a GradScaler": (False, True),
    "with a GradScaler and a clip": (True, True),
}
"""Whether each clips, and has a scaler."""

ORDINARY = 13
"""A step at which no interval is due: neither a second norm, nor norms of parameters, nor histograms."""


class Launched(NamedTuple):
    """What a step has more with tbnum than without."""

    operations: int  # that start a kernel: neither views nor empty tensors
    copies: int  # from the device to the host
    syncs: int  # values that the host waited for


class _Operations(TorchDispatchMode):
    """Counts the operations dispatched while it is active, by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation.name()
        returns_a_view = any(r.alias_info is not None and not r.alias_info.is_write for r in operation._schema.returns)
        if name == "aten::copy_" and args[0].is_cpu and not args[1].is_cpu:
            self.counted["copies"] += 1
        elif name == "aten::_local_scalar_dense":
            self.counted["syncs"] += 1
        elif not returns_a_view and not name.startswith(("aten::empty", "prim::", "profiler::")):
            self.counted["operations"] += 1
        return operation(*args, **(kwargs or {}))


class _Landed:
    """Of a copy from the CPU to itself."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...


@contextlib.contextmanager
def the_cpu_as_a_device() -> Iterator[Counter[str]]:
    """Counts the copies, which are none where everything is on the host already."""
    counted: Counter[str] = Counter()

    def copy_to_host(packed: torch.Tensor) -> tuple[torch.Tensor, _Landed]:
        counted["copies"] += 1
        return packed, _Landed()

    with (
        mock.patch.object(transfer, "on_host", lambda tensor: False),
        mock.patch.object(transfer, "copy_to_host", copy_to_host),
    ):
        yield counted


def launched(name: str, *, tensors: int, device: str = "cpu") -> Launched:
    """Of an ordinary step of one of `LOOPS`, with so many tensors of 64 elements."""
    with_tbnum, without = (_counted(name, tensors, device, watched) for watched in (True, False))
    return Launched(*(with_tbnum[what] - without[what] for what in Launched._fields))


def _counted(name: str, tensors: int, device: str, watched: bool) -> Counter[str]:
    clip, with_scaler = LOOPS[name]
    torch.manual_seed(0)
    model = nn.ParameterList([nn.Parameter(torch.randn(64, device=device)) for _ in range(tensors)])
    weights = torch.randn(64 * tensors, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0) if with_scaler else None

    def step() -> None:
        loss = torch.cat(list(model)).dot(weights)
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()

    with contextlib.ExitStack() as stack:
        playing: Counter[str] = Counter()
        if device == "cpu":
            playing = stack.enter_context(the_cpu_as_a_device())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if watched:
            stack.enter_context(tbnum.wrap(optimizer, scaler, model=model, logdir=folder / "run"))
        for _ in range(ORDINARY):
            step()
        playing.clear()
        with _Operations() as operations:
            step()
        return operations.counted + playing
