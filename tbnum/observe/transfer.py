"""Numbers on their way from a device to the host, without making the host wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["Number", "Transfer", "capturing", "hold", "tensors_in"]

Number = float | Tensor
"""A value as a hook finds it: a float where the host has it, a 0-dim tensor where only the device does."""


def tensors_in(numbers: Iterable[Number]) -> list[Tensor]:
    """Of numbers, those that only a device has."""
    return [number for number in numbers if isinstance(number, Tensor)]


class Arrival(Protocol):
    """Says whether a copy has reached the host. A `torch.cuda.Event` is one."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


def hold(value: Tensor) -> Number:
    """The value of a one-element tensor as it is now, whatever is written into the tensor later.

    On the CPU that is a float. On a device it is a copy there: one small kernel, no sync.
    """
    return float(value.item()) if on_host(value) else value.detach().reshape(()).clone()


class Transfer:
    """Brings tensors to the host together. Nothing waits until a value is asked for.

    Nobody may write to the tensors any more. Costs for each device two small kernels and one non-blocking copy into
    pinned memory (two of each where there are 64-bit counts); nothing for tensors that are on the host.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._sent = list(tensors)
        self._arrivals: list[Arrival] = []
        self._landing: dict[int, Tensor] = {}  # by id of a device tensor: where it lands
        together: dict[tuple[torch.device, bool], list[Tensor]] = {}
        for tensor in self._sent:
            if not on_host(tensor):
                together.setdefault((tensor.device, tensor.dtype == torch.int64), []).append(tensor)
        for members in together.values():
            # torch.cat promotes: int32 beside float32 is exact to 2**24, and float64 is kept where there is one.
            host, arrival = copy_to_host(torch.cat([tensor.detach().reshape(-1) for tensor in members]))
            if arrival is not None:
                self._arrivals.append(arrival)
            start = 0
            for tensor in members:
                self._landing[id(tensor)] = host[start : start + tensor.numel()].view(tensor.shape)
                start += tensor.numel()

    @property
    def is_under_way(self) -> bool:
        """Whether values were sent that may not have landed yet."""
        return bool(self._arrivals)

    def ready(self) -> bool:
        """Whether everything could be had at once. Costs a query of an event a device, no sync."""
        return all(arrival.query() for arrival in self._arrivals)

    def wait(self) -> None:
        """Until everything is on the host."""
        for arrival in self._arrivals:
            arrival.synchronize()
        self._arrivals = []

    def number(self, value: Number) -> float:
        """What a number is on the host. Waits if it has not landed."""
        return float(self.array(value)) if isinstance(value, Tensor) else value

    def numbers(self, values: Iterable[Number]) -> list[float]:
        return [self.number(value) for value in values]

    def array(self, tensor: Tensor) -> np.ndarray:
        """A tensor that was sent, as an array of its shape. Waits if it has not landed."""
        if self._arrivals:
            self.wait()
        return self._landing.get(id(tensor), tensor).detach().numpy()

    def arrays(self) -> list[np.ndarray]:
        """All that were sent, in their order."""
        return [self.array(tensor) for tensor in self._sent]


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


capturing: Callable[[], bool] = _capturing if torch.backends.cuda.is_built() else bool
"""Under CUDA-graph capture nothing may be measured: the kernels would run again at every replay of the graph."""


def on_host(tensor: Tensor) -> bool:
    """Whether reading the tensor makes nobody wait."""
    return tensor.is_cpu


def copy_to_host(packed: Tensor) -> tuple[Tensor, Arrival | None]:
    """A copy of `packed` that is on its way, and what reports its arrival (None: it is there)."""
    if packed.device.type != "cuda":
        return packed.cpu(), None  # other devices have no event that every supported torch can ask: they wait here
    host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
    with torch.cuda.device(packed.device):
        host.copy_(packed, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return host, event
