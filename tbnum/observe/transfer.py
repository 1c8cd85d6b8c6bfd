"""Numbers on their way from a device to the host, without making the host wait."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["Number", "Transfer", "hold"]

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
    """Brings one-element device tensors, and short vectors, to the host together.

    One packed tensor for each device and one non-blocking copy into pinned memory; nothing waits until `numbers` or
    `vectors` is asked for. Costs two small kernels and a copy of 4 or 8 bytes a value for each device; nothing where
    there is no device tensor.

    Args:
        numbers: each a float, or a one-element tensor.
        vectors: 1-D tensors that nobody writes to any more.
    """

    def __init__(self, numbers: list[Number], vectors: list[Tensor] | None = None) -> None:
        self._values: list[Number | np.ndarray] = [*numbers, *(vectors or [])]
        self._numbers = len(numbers)
        self._landing: list[tuple[list[int], list[int], Tensor]] = []
        self._arrivals: list[Arrival] = []
        by_device: dict[torch.device, list[int]] = {}
        for at, value in enumerate(self._values):
            if not isinstance(value, Tensor):
                continue
            if on_host(value):
                self._values[at] = value.detach().numpy() if at >= self._numbers else float(value.item())
            else:
                by_device.setdefault(value.device, []).append(at)
        for places in by_device.values():
            self._send(places)

    def _send(self, places: list[int]) -> None:
        tensors = [self._values[at].reshape(-1) for at in places]  # type: ignore[union-attr]
        # torch.cat promotes: int32 beside float32 is exact to 2**24, and float64 is kept where there is one.
        host, arrival = copy_to_host(torch.cat(tensors))  # type: ignore[arg-type]
        self._landing.append((places, [tensor.numel() for tensor in tensors], host))  # type: ignore[union-attr]
        if arrival is not None:
            self._arrivals.append(arrival)

    def ready(self) -> bool:
        """Whether the values could be had at once. Costs a query of an event a device, no sync."""
        return all(arrival.query() for arrival in self._arrivals)

    def numbers(self) -> list[float]:
        """The numbers, in the order given. Waits for the copies that have not landed."""
        self._land()
        return self._values[: self._numbers]  # type: ignore[return-value]

    def vectors(self) -> list[np.ndarray]:
        """The vectors, in the order given. Waits for the copies that have not landed."""
        self._land()
        return self._values[self._numbers :]  # type: ignore[return-value]

    def _land(self) -> None:
        for arrival in self._arrivals:
            arrival.synchronize()
        for places, lengths, host in self._landing:
            start = 0
            packed = host.numpy()
            for at, length in zip(places, lengths, strict=True):
                part = packed[start : start + length]
                self._values[at] = part if at >= self._numbers else float(part[0])
                start += length
        self._arrivals, self._landing = [], []


def on_host(tensor: Tensor) -> bool:
    """Whether reading the tensor makes nobody wait."""
    return tensor.device.type == "cpu"


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
