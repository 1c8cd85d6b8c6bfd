"""Numbers on their way from a device to the host, without making the host wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Number", "Transfer", "capturing", "hold"]

Number = float | Tensor
"""A value as a hook finds it: a float where the host has it, a 0-dim tensor where only the device does."""


class Arrival(Protocol):
    """Tells when a copy has reached the host. A `torch.cuda.Event` is one."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


def hold(value: Tensor) -> Number:
    """The value of a one-element tensor as it is now, whatever is written into the tensor later.

    On the CPU that is a float. On a device it is a copy there: one small kernel, no sync.
    """
    value = value.detach()
    return float(value.item()) if on_host(value) else value.reshape(()).clone()


class Transfer:
    """Brings all device tensors in a tree of lists and dicts to the host together.

    A 0-dim tensor arrives as a float, any other as a numpy array of its shape; everything else is passed on as it
    is. Nothing waits until `tree` is asked for. Nobody may write to the tensors any more.

    Costs for each device two small kernels and one non-blocking copy into pinned memory (two of each where there are
    64-bit counts); nothing where there is no device tensor.
    """

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._arrivals: list[Arrival] = []
        self._landing: dict[int, Tensor] = {}  # by id of a device tensor in the tree: where it lands
        together: dict[tuple[torch.device, bool], list[Tensor]] = {}
        for tensor in _tensors_in(tree):
            if not on_host(tensor):
                together.setdefault((tensor.device, tensor.dtype == torch.int64), []).append(tensor)
        for tensors in together.values():
            # torch.cat promotes: int32 beside float32 is exact to 2**24, and float64 is kept where there is one.
            host, arrival = copy_to_host(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]))
            if arrival is not None:
                self._arrivals.append(arrival)
            start = 0
            for tensor in tensors:
                self._landing[id(tensor)] = host[start : start + tensor.numel()].view(tensor.shape)
                start += tensor.numel()

    def ready(self) -> bool:
        """Whether the tree could be had at once. Costs a query of an event a device, no sync."""
        return all(arrival.query() for arrival in self._arrivals)

    def tree(self) -> Any:
        """The tree, on the host. Waits for the copies that have not landed."""
        for arrival in self._arrivals:
            arrival.synchronize()
        return self._landed(self._tree)

    def _landed(self, node: Any) -> Any:
        if isinstance(node, dict):
            return {key: self._landed(each) for key, each in node.items()}
        if isinstance(node, list):
            return [self._landed(each) for each in node]
        if isinstance(node, Tensor):
            host = self._landing.get(id(node), node)
            return float(host.item()) if host.ndim == 0 else host.detach().numpy()
        return node


def _tensors_in(node: Any) -> Iterator[Tensor]:
    if isinstance(node, Tensor):
        yield node
    elif isinstance(node, (dict, list)):
        for each in node.values() if isinstance(node, dict) else node:
            yield from _tensors_in(each)


def capturing() -> bool:
    """Under CUDA-graph capture nothing may be measured: the kernels would run again at every replay of the graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def on_host(tensor: Tensor) -> bool:
    """Whether reading the tensor makes nobody wait."""
    return tensor.is_cpu


def copy_to_host(packed: Tensor) -> tuple[Tensor, Arrival | None]:
    """A copy of `packed` that is on its way, and what tells of its arrival (None: it is there)."""
    if packed.device.type != "cuda":
        return packed.cpu(), None  # other devices have no event that every supported torch can ask: they wait here
    host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
    with torch.cuda.device(packed.device):
        host.copy_(packed, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return host, event
