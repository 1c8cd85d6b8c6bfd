"""Numbers on their way from a device to the host, without making the host wait."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Number", "Transfer", "hold"]

Number = float | Tensor
"""A value as a hook finds it: a float where the host has it, a 0-dim tensor where only the device does."""


def hold(value: Tensor) -> Number:
    """The value of a one-element tensor as it is now, whatever is written into the tensor later.

    On the CPU that is a float. On a device it is a copy there: one small kernel, no sync.
    """
    value = value.detach()
    return float(value.item()) if value.device.type == "cpu" else value.reshape(()).clone()


class Transfer:
    """Brings one-element device tensors to the host together.

    One packed tensor for each device and one non-blocking copy into pinned memory; nothing waits until
    `values` is asked for. Costs two small kernels and a copy of 4 or 8 bytes a value for each device; nothing where
    there is no device tensor.
    """

    def __init__(self, numbers: list[Number]) -> None:
        self._values: list[Number] = list(numbers)
        self._landing: list[tuple[list[int], Tensor]] = []
        self._events: list[torch.cuda.Event] = []
        by_device: dict[torch.device, list[int]] = {}
        for at, number in enumerate(numbers):
            if isinstance(number, Tensor):
                by_device.setdefault(number.device, []).append(at)
        for device, places in by_device.items():
            self._send(device, places)

    def _send(self, device: torch.device, places: list[int]) -> None:
        # torch.cat promotes: float32 beside int32 or float64 loses nothing that a float64 holds.
        packed = torch.cat([self._values[at].reshape(1) for at in places])  # type: ignore[union-attr]
        if device.type != "cuda":
            self._landing.append((places, packed.cpu()))  # no portable event to ask; these devices wait here
            return
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        self._landing.append((places, host))
        self._events.append(event)

    def ready(self) -> bool:
        """Whether `values` would return at once. Costs a query of an event, no sync."""
        return all(event.query() for event in self._events)

    def values(self) -> list[float]:
        """The numbers, in the order given. Waits for the copies that have not landed."""
        for event in self._events:
            event.synchronize()
        for places, host in self._landing:
            for at, value in zip(places, host.tolist(), strict=True):
                self._values[at] = float(value)
        self._landing = []
        return self._values  # type: ignore[return-value]
