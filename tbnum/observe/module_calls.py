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
    """Tells of the calls of some modules, from `attach` to `detach`.

    `before(call, tensors)` with what the module is given and `after(call, tensors)` with what it returned, once the
    hooks that were there first have run. Copies and pickles of a module that are made meanwhile hold hooks that do
    nothing.
    """

    def __init__(
        self, before: Callable[[Call, list[Tensor]], None], after: Callable[[Call, list[Tensor]], None]
    ) -> None:
        self._before = before
        self._after = after
        self._handles: list[Any] = []
        self._running = threading.local()

    def attach(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        self._running = threading.local()
        for name, module in modules:
            before, after = _Hook(self._called, name), _Hook(self._returned, name)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

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
        self._before(call, list(tensors_in((args, kwargs))))

    def _returned(self, module: nn.Module, name: str, args: Any, output: Any) -> None:
        stack = self._stack()
        if not any(call.module == name for call in stack):
            return
        call = stack.pop()
        while call.module != name:
            call = stack.pop()  # an exception that the model caught has left it
        self._after(call, list(tensors_in(output)))


class _Hook:
    """A hook of tbnum's. What is copied or pickled with its module is not it, but a function that does nothing."""

    def __init__(self, tell: Callable[..., None], name: str) -> None:
        self._tell = tell
        self._name = name

    def __call__(self, module: nn.Module, *call: Any) -> None:
        if not torch.compiler.is_compiling() and not capturing():
            self._tell(module, self._name, *call)

    def __reduce__(self) -> Any:
        return _inert, ()

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return _nothing


def _nothing(*call: Any) -> None:
    return None


def _inert() -> Callable[..., None]:
    return _nothing
