"""Buffers of the model that become non-finite, such as BatchNorm's running statistics after a spoiled batch.

A skipped step does not bring them back: the forward pass has written to them before anybody knew.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tbnum.observe.transfer import Transfer, capturing
from tbnum.observe.watcher import Watcher, harmless

__all__ = ["BufferWatch"]

LARGEST = 1 << 20  # elements of a buffer that is looked at: statistics are small, tables are not
NAMED = 8


class BufferWatch(Watcher):
    """Looks at floating buffers at an interval, beside each skip, and at the end; reports once what became non-finite.

    What was not finite when it was first looked at is meant to be so (a mask of -inf). A look costs two small kernels
    for all buffers of a type on a device, and one non-blocking copy; the host reads the answer at a later step.

    `report` is called with how many and which. `skipped` gives the skips that are known so far.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        interval: int,
        skipped: Callable[[], int],
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__("look at the model's buffers")
        self._modules = {name: weakref.ref(module) for name, module in modules.items()}
        self._interval = interval
        self._skipped, self._report = skipped, report
        self._skips = 0
        self._names: list[str] = []  # of the look that is under way
        self._look: Transfer | None = None
        self._step = self._looked_at = -1  # that closes; whose end the look that is under way sees
        self._clean: int | None = None  # the last one at whose end they were seen as they should be
        self._known: frozenset[str] | None = None  # those not finite from the start, or reported
        self.begin()

    @harmless
    def begin(self) -> None:
        self.look()

    @property
    def is_awake(self) -> bool:
        """Whether there is something to look at beside a skip: else an interval is soon enough."""
        return bool(self._names) or self._look is not None

    def reached(self, step: int) -> None:
        """The steps before this one have closed."""
        self._step = step - 1

    def step_begins(self, step: int) -> None:
        self.reached(step)
        if self._look is not None or step % self._interval == 0 or self._skipped() != self._skips:
            self._look_again(step)

    @harmless
    def _look_again(self, step: int) -> None:
        self.take(wait=False)
        skips = self._skipped()
        if step % self._interval == 0 or skips != self._skips:
            self.look()
            self.take(wait=False)
        self._skips = skips

    @harmless
    def finish(self) -> None:
        """Look once more, and wait for the answer."""
        self.take(wait=True)
        self._step += 1  # a step that has begun may have written to them
        self.look()
        self.take(wait=True)

    def look(self) -> None:
        if self._look is not None or capturing():
            return
        groups: dict[tuple[torch.device, torch.dtype], list[tuple[str, Tensor]]] = {}
        for name, buffer in self._buffers():
            groups.setdefault((buffer.device, buffer.dtype), []).append((name, buffer.detach()))
        names: list[str] = []
        sent: list[Tensor] = []
        with torch.no_grad():
            for members in groups.values():
                zeros = torch._foreach_mul([buffer for _, buffer in members], 0.0)  # NaN where it was not finite
                sent.append(torch.stack(list(torch._foreach_norm(zeros))).float())
                names += [name for name, _ in members]
        if names:
            self._names, self._look, self._looked_at = names, Transfer(sent), self._step

    def take(self, wait: bool) -> None:
        """Read the look that is under way, where it has arrived."""
        if self._look is None or not (wait or self._look.ready()):
            return
        values = [value for array in self._look.arrays() for value in array.tolist()]
        self._look = None
        spoiled = frozenset(name for name, value in zip(self._names, values, strict=True) if value != 0)
        known, self._known = self._known, spoiled | (self._known or frozenset())
        new = [] if known is None else sorted(spoiled - known)
        if new:
            since = {} if self._clean is None else {"after_step": self._clean}
            self._report({"buffers": len(new), "names": new[:NAMED], **since, "by_step": self._looked_at})
        elif self._looked_at >= 0:
            self._clean = self._looked_at

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, ref in self._modules.items():
            module = ref()
            for name, buffer in () if module is None else module.named_buffers():
                plain = type(buffer) is Tensor and buffer.layout == torch.strided
                if plain and buffer.is_floating_point() and 0 < buffer.numel() <= LARGEST:
                    yield f"{prefix}.{name}" if prefix else name, buffer
