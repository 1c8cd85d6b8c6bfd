"""What those who watch the modules of a model have in common: hooks that are there while they are needed.

Forward hooks see the outputs, tensor hooks on the outputs their gradients: full backward hooks of modules would raise
where an output is changed in place. Everything that is measured stays on the device, in tensors of three numbers, and
comes to the host in one packed copy a step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import unserializable_hook

from tbnum.observe.module_calls import Call, ModuleHooks
from tbnum.observe.names import named_modules
from tbnum.observe.watcher import Watcher

__all__ = ["ModuleWatch"]


class ModuleWatch(Watcher):
    """Hooks on the modules of models, and on tensors, for the length of a step. Holds the models weakly."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        super().__init__("watch a module")
        self._models = {name: weakref.ref(model) for name, model in models.items()}
        self._hooks = ModuleHooks(self._called, self._returned)
        self._tensor_hooks: list[Any] = []

    def _modules(self) -> list[tuple[str, nn.Module]]:
        alive = {name: model for name, ref in self._models.items() if (model := ref()) is not None}
        return named_modules(alive, inside_compiled=False)

    def _detach(self) -> None:
        self._hooks.detach()
        for handle in self._tensor_hooks:
            handle.remove()  # a module may return a parameter, which outlives the step
        self._tensor_hooks = []

    def _called(self, call: Call, inputs: Any) -> None:
        raise NotImplementedError

    def _returned(self, call: Call, outputs: Any) -> None:
        raise NotImplementedError

    def _on_gradient(self, tensor: Tensor, see: Callable[[Tensor], None]) -> None:
        """`see(gradient)` with respect to `tensor` in the backward, unless that is a part of a loss to come."""
        if not tensor.requires_grad:
            return

        @unserializable_hook  # else torch warns of it where such a tensor is saved
        def backward(gradient: Tensor) -> None:
            if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
                see(gradient)

        self._tensor_hooks.append(tensor.register_hook(backward))
