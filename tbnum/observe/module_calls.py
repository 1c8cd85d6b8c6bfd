"""The calls of modules, while somebody watches them: what a module was given, and what it returned.

What torch.compile made of a module runs no hooks, and hooks put on it would compile it again: inside of it nothing is
seen.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tbnum.observe.forward_hooks import add_forward_hooks
from tbnum.observe.transfer import capturing

__all__ = ["Call", "ModuleHooks", "tensors_in"]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in what a module was given or returned: itself, or nested in sequences, mappings, dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))


@dataclass(eq=False)
class Call:
    """One call of a module."""

    module: str
    parent: Call | None  # the call that it was made in
    graph_task: int  # of the backward that it was made in, by checkpointing, say; else -1
    trains: bool  # in training mode, or with gradients: no teacher, no validation

    @property
    def counts(self) -> bool:
        """Whether its outputs are those of a training step, and for the first time."""
        return self.trains and self.graph_task == -1


class ModuleHooks:
    """Reports the calls of some modules, from `attach` to `detach`.

    `before(call, given)` with the arguments of the module and `after(call, returned)` with what it returned, once the
    module's own hooks have run; `tensors_in` finds the tensors there. Copies, pickles, scripts and exports of a module
    that are made meanwhile have no hook.
    """

    def __init__(self, before: Callable[[Call, Any], None], after: Callable[[Call, Any], None]) -> None:
        self._before = before
        self._after = after
        self._removals: list[Callable[[], None]] = []
        self._running = threading.local()

    def attach(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        self._running = threading.local()
        for name, module in modules:
            before, after = _Hook(self._called, name), _Hook(self._returned, name)
            self._removals.append(add_forward_hooks(module, before, after))

    def detach(self) -> None:
        for remove in self._removals:
            remove()
        self._removals = []

    def _stack(self) -> list[Call]:
        stack = getattr(self._running, "stack", None)  # a thread each: checkpoints are recomputed in a device's thread
        if stack is None:
            stack = self._running.stack = []
        return stack

    def _called(self, module: nn.Module, name: str, args: Any, kwargs: Any) -> None:
        graph_task = torch._C._current_graph_task_id()
        stack = self._stack()
        while stack and stack[-1].graph_task not in (-1, graph_task):
            stack.pop()  # a recomputation stops in the middle once it has what the backward needs
        call = Call(name, stack[-1] if stack else None, graph_task, module.training or torch.is_grad_enabled())
        stack.append(call)
        self._before(call, (args, kwargs))

    def _returned(self, module: nn.Module, name: str, args: Any, output: Any) -> None:
        stack = self._stack()
        if not any(call.module == name for call in stack):
            return
        call = stack.pop()
        while call.module != name:
            call = stack.pop()  # an exception that the model caught has left it
        self._after(call, output)


class _Hook:
    """A call of `report`, unless the module is only being traced: what we measured would be a part of the graph."""

    def __init__(self, report: Callable[..., None], name: str) -> None:
        self._report = report
        self._name = name

    def __call__(self, module: nn.Module, *call: Any) -> None:
        if not torch.compiler.is_compiling() and not _is_traced() and not capturing():
            self._report(module, self._name, *call)


_MODES = [torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE]  # make_fx, and shapes alone


def _is_traced() -> bool:
    return torch.jit.is_tracing() or any(torch._C._get_dispatch_mode(mode) is not None for mode in _MODES)
