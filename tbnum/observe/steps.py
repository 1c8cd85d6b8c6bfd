"""Follows the loop of some optimizers, from what the hooks see, and hands on its steps.

`StepObserver` joins the parts: `losses` sees backwards, `clips` clipping, `scalers` the GradScaler, `updates` the
optimizer's step. They share a `Loop`, in which each optimizer has a `Track` of attempts to update; an attempt has one
outcome, and `Assembly` makes steps of those that count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from tbnum.observe.assembly import Assembly
from tbnum.observe.clips import Clips
from tbnum.observe.depth import Used
from tbnum.observe.landing import Note
from tbnum.observe.loader import BatchIds
from tbnum.observe.loop import Loop
from tbnum.observe.losses import Losses
from tbnum.observe.meter import Meter
from tbnum.observe.records import Observation, StepRecord
from tbnum.observe.scalers import Scalers
from tbnum.observe.shards import Layouts
from tbnum.observe.transfer import Number
from tbnum.observe.updates import Updates
from tbnum.observe.usual import Usual

__all__ = ["StepObserver"]


class StepObserver:
    """Holds optimizers and scaler weakly. What hooks call is cheap where there is nothing to do, never raises into the
    loop for trouble of its own, and adds no host sync (CPU tensors are read as they are).
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
        own_scale: Callable[[], Any] | None,
        *,
        on_steps: Callable[[Sequence[StepRecord | Note]], None],
        on_drained: Callable[[], None],
        on_observation: Callable[[Observation], None],
        on_first_step: Callable[[], None],
        on_close: Callable[[int], None],
        on_unused: Callable[[str, int], None],
        on_found: Callable[[torch.amp.GradScaler], None],
        on_depth: Callable[[list[Used] | None, bool], None],
        verify_interval: int,
        tensor_interval: int,
        histogram_interval: int,
        checksums: bool,
        layouts: Layouts,
        batch_ids: BatchIds,
    ) -> None:
        assembly = Assembly(on_steps, on_drained, on_observation, on_close)
        self._assembly = assembly
        assembly.batch_ids = batch_ids
        meter = Meter(
            assembly,
            layouts,
            verify_interval=verify_interval,
            tensor_interval=tensor_interval,
            histogram_interval=histogram_interval,
            checksums=checksums,
        )
        self._loop = Loop(optimizers, scaler, own_scale, assembly, meter)
        self._loop.on_observation, self._loop.on_first_step = on_observation, on_first_step
        self._loop.on_unused, self._loop.on_found, self._loop.on_depth = on_unused, on_found, on_depth
        self._losses, self._clips, self._scalers = Losses(self._loop), Clips(self._loop), Scalers(self._loop)
        self.usual = Usual(self._loop, self._losses, self._scalers)
        self._updates = Updates(self._loop, self._losses)

    # -- the parts of the long way, whose methods the hooks call where `usual` does not do

    @property
    def losses(self) -> Losses:
        self.usual.leave()
        return self._losses

    @property
    def clips(self) -> Clips:
        self.usual.leave()
        return self._clips

    @property
    def scalers(self) -> Scalers:
        self.usual.leave()
        return self._scalers

    @property
    def updates(self) -> Updates:
        """Of the loop's own optimizers, in whatever thread they step."""
        self.usual.leave(anywhere=True)
        return self._updates

    def gradients_went(self, parameters: set[int]) -> None:
        """Those of a module were thrown away, in whatever thread."""
        self.usual.leave()
        self._updates.gradients_went(parameters)

    # ---

    @property
    def next_step(self) -> int:
        return self._assembly.next_step

    @next_step.setter
    def next_step(self, step: int) -> None:
        self.usual.leave(anywhere=True)
        self._assembly.drain()
        self._assembly.next_step = step

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The one that was given or found, while it lives and is enabled."""
        return self._loop.scaler

    @property
    def has_gradients(self) -> bool:
        """Whether an attempt is open: the loop has got as far as its gradients."""
        return self.usual.has_gradients or any(track.open is not None for track in self._loop.tracks.values())

    @property
    def has_several(self) -> bool:
        return len(self._loop.tracks) > 1

    def follows(self, optimizer: torch.optim.Optimizer) -> bool:
        return self._loop.track_of(optimizer) is not None

    def known_to_scaler(self, name: str) -> Any:
        """What its scaler was last given for an optimizer: the optimizer, or an object around it; None before."""
        known_as = self._loop.tracks[name].known_as
        return None if known_as is None else known_as()

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Those that are still alive."""
        return self._loop.optimizers()

    def muted(self) -> AbstractContextManager[None]:
        """What runs in this context is not the training."""
        self.usual.leave(anywhere=True)
        return self._loop.muted()

    def trouble(self, error: Exception) -> None:
        """Warn of trouble beside the steps, once for all of it."""
        self._loop.trouble(error)

    def loss_logged(self, loss: Number, name: str | None = None) -> None:
        self.usual.leave(anywhere=True)
        self._losses.loss_logged(loss, name)

    def observe(self, kind: str, data: Mapping[str, Any], optimizer: str | None = None) -> None:
        """Report something at the step that is open."""
        self._loop.report(kind, data, optimizer)

    def expect_first_step(self, on_first_step: Callable[[], None]) -> None:
        """Call once more before the next step begins: a checkpoint was loaded."""
        self.usual.leave(anywhere=True)
        self._loop.on_first_step = on_first_step

    def drain(self, wait: bool = False) -> None:
        """Hand on the steps whose values have reached the host, in order. With `wait`, all."""
        self._assembly.drain(wait)

    def drain_quiet(self, on_step: Callable[[StepRecord], None]) -> None:
        """From another thread: hand on steps that have landed and make no event, where the loop is busy elsewhere."""
        self._assembly.drain_quiet(on_step)

    def finish(self) -> None:
        """Close a step that only some optimizers have taken, and hand on everything."""
        self.usual.leave(anywhere=True)
        self._loop.finish()
