"""All that a forward and backward may change, kept and put back; and what a step began with."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tbnum.observe.names import named_parameters
from tbnum.observe.transfer import capturing, hold

__all__ = ["Kept", "Moment", "StepStarts", "parameters_of_all"]


class Moment(NamedTuple):
    """Random state and loss scale, as they were when a step began."""

    random_state: Mapping[str, Tensor]  # by device
    loss_scale: Tensor | float | None  # None without an enabled scaler

    @staticmethod
    def now(scaler: torch.amp.GradScaler | None, devices: Iterable[torch.device] = ()) -> Moment:
        """Some microseconds and 5 kB on the CPU; of `devices` seed and offset, and a copy of the scale there.

        No host sync. Leaves out the generators of Python and numpy, which take ten times as long.
        """
        states = {"cpu": torch.default_generator.get_state()}
        for device in devices:
            states[str(device)] = getattr(torch, device.type).get_rng_state(device)
        scale: Tensor | float | None = None
        if scaler is not None and scaler.is_enabled():
            # Until its first use a scaler has no tensor: it will begin with the scale that it was made with.
            scale = float(scaler._init_scale) if scaler._scale is None else hold(scaler._scale)
        return Moment(states, scale)


class StepStarts:
    """The moments in which the last step and the open one began. Holds nothing but those.

    `step_begins()` is to be called when the step before has closed. Random numbers that the loop draws between steps,
    for its data, say, come after that moment: masks of dropout are those of the step where it draws none from the
    same generator.
    """

    def __init__(self, scaler: torch.amp.GradScaler | None, devices: Iterable[torch.device]) -> None:
        self._devices = sorted({device for device in devices if device.type in ("cuda", "xpu")}, key=str)
        self.open = Moment.now(scaler, self._devices)
        self.last: Moment | None = None

    def step_begins(self, scaler: torch.amp.GradScaler | None) -> None:
        if not capturing():
            self.last, self.open = self.open, Moment.now(scaler, self._devices)


class Kept:
    """All that a forward and backward may change, as it is now; `rewind()` makes it so again, any number of times."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        modules = list({id(each): each for model in models.values() for each in model.modules()}.values())
        self._attributes = [(vars(module), dict(vars(module))) for module in modules]
        owned = ("_parameters", "_buffers", "_modules")
        self._attributes += [(vars(module)[name], dict(vars(module)[name])) for module in modules for name in owned]
        parameters = [parameter for _, parameter in parameters_of_all(models, optimizers)]
        tensors = [each for module in modules for each in module.buffers(recurse=False)]
        tensors += [each for module in modules for each in vars(module).values() if isinstance(each, Tensor)]
        self._tensors = [(each, each.detach()) for each in {id(each): each for each in parameters + tensors}.values()]
        self._storages = _Storages([alias for _, alias in self._tensors])
        self._gradients = {id(each): (each, each.grad) for each in parameters}
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._groups = [(group, dict(group)) for group in groups]
        self._scaler = scaler
        self._scaler_state = None if scaler is None else dict(vars(scaler))
        self._random = (random.getstate(), np.random.get_state())
        self._random_torch = _random_states()

    def begin(self, at: Moment | None) -> None:
        """No gradients, a scaler that has not seen the step, and scale and random state of that moment."""
        for each, _ in self._gradients.values():
            each.grad = None
        if at is not None:
            for device, state in at.random_state.items():
                _set_random_state(device, state)
        scaler = self._scaler
        if scaler is None or not scaler.is_enabled():
            return
        if scaler._scale is not None and scaler._growth_tracker is not None:
            # Others may have saved these tensors for a backward to come: they are replaced, not written to.
            scaler._scale, scaler._growth_tracker = scaler._scale.clone(), scaler._growth_tracker.clone()
            if at is not None and isinstance(at.loss_scale, Tensor):
                scaler._scale.copy_(at.loss_scale)
            elif at is not None and at.loss_scale is not None:
                scaler._scale.fill_(at.loss_scale)
        states: Any = scaler._per_optimizer_states
        scaler._per_optimizer_states = defaultdict(states.default_factory)

    def hide_gradient(self, leaf: Tensor) -> None:
        """Backward is about to add to the gradient of a tensor that is no parameter."""
        if id(leaf) not in self._gradients:
            self._gradients[id(leaf)] = (leaf, leaf.grad)
            leaf.grad = None

    @torch.no_grad()
    def rewind(self) -> None:
        for living, before in self._attributes:
            for name in [name for name in living if name not in before]:
                del living[name]
            for name, value in before.items():
                if living.get(name, _ABSENT) is not value:
                    living[name] = value
        for tensor, alias in self._tensors:
            if _is_plain(tensor) and tensor.untyped_storage().data_ptr() != alias.untyped_storage().data_ptr():
                tensor.data = alias
        self._storages.rewind()
        for tensor, gradient in self._gradients.values():
            tensor.grad = gradient
        for group, before in self._groups:
            group.clear()
            group.update(before)
        if self._scaler is not None and self._scaler_state is not None:
            vars(self._scaler).clear()
            vars(self._scaler).update(self._scaler_state)
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])
        for device, state in self._random_torch.items():
            _set_random_state(device, state)


_ABSENT = object()


class _Storages:
    """The bytes under some tensors. Those of a device are kept in the host's memory."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._bytes: dict[int, tuple[Tensor, Tensor]] = {}
        self._values: list[tuple[Tensor, Tensor]] = []  # of what has no bytes of its own
        for tensor in tensors:
            for plain in _plain_parts(tensor):
                if not _is_plain(plain):
                    self._values.append((plain, plain.clone()))
                    continue
                storage = plain.untyped_storage()
                if storage.nbytes() and storage.data_ptr() not in self._bytes:
                    # Bytes have a version of their own: a graph that saved the tensor does not see them written.
                    living = torch.empty(0, dtype=torch.uint8, device=plain.device).set_(storage)
                    self._bytes[storage.data_ptr()] = (living, living.to("cpu", copy=True))

    def rewind(self) -> None:
        for living, before in [*self._bytes.values(), *self._values]:
            living.copy_(before)


def _plain_parts(tensor: Tensor) -> Iterator[Tensor]:
    if hasattr(tensor, "__tensor_flatten__"):  # a wrapper, such as a DTensor
        for part in (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]):
            if isinstance(part, Tensor):  # a DTensor names its mesh as well
                yield from _plain_parts(part)
    else:
        yield tensor


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_nested
        and not hasattr(tensor, "__tensor_flatten__")
    )


def _random_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available() and module.is_initialized():
            states.update({f"{kind}:{at}": state for at, state in enumerate(module.get_rng_state_all())})
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def _set_random_state(device: str, state: Tensor) -> None:
    kind = torch.device(device).type
    if kind == "cpu":
        torch.set_rng_state(state)
    elif kind == "mps":
        torch.mps.set_rng_state(state)
    else:
        getattr(torch, kind).set_rng_state(state, device)


def parameters_of_all(
    models: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> Iterator[tuple[str, Tensor]]:
    """Parameters of models and optimizers, each once, with a name to speak of it."""
    seen: set[int] = set()
    named = [pair for prefix, model in models.items() for pair in named_parameters(prefix, model)]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    named += [(f"a parameter of shape {tuple(each.shape)}", each) for group in groups for each in group["params"]]
    for name, parameter in named:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield name, parameter
