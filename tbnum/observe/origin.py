"""Watches one run of forward and backward for the first NaN or inf, and finds what it came from.

Forward hooks see what goes into every module and comes out; a hook on every node of the autograd graph sees what its
backward puts out. The graph shows the rest: which call of a module made a node, and which non-finite outputs a
non-finite loss comes from. So a mask of -inf, or an overflow that a later module undid, is not mistaken for the cause,
and where a tensor goes to several modules the one whose gradient is at fault is distinguished from the others.

Every tensor is waited for. This is for a replay, not for training.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tbnum.observe.module_calls import Call, ModuleHooks, tensors_in
from tbnum.observe.names import named_modules
from tbnum.observe.nonfinite import Nonfinite, Operations, look_at

__all__ = ["Cause", "WatchedRun", "as_written"]


@dataclass(frozen=True)
class Cause:
    """Where it began. `module` is None outside of every module."""

    phase: Literal["forward", "backward", "none"]
    module: str | None = None
    what: Literal["output", "input", "loss", "gradient"] | None = None
    tensor: Nonfinite | None = None
    inputs_finite: bool | None = None
    largest_input: float | None = None
    operation: str | None = None
    consumer: str | None = None  # the module that was handed it first, where no module put it out
    call: tuple[str, int] | None = None  # the module's name, and the call index
    sum_of_finite: bool = False  # gradients that are finite each add up to one that is not


@dataclass(frozen=True)
class _Passed:
    """A non-finite tensor on its way into a module or out of it."""

    number: int  # in order of time
    call: Call
    place: Literal["input", "output"]
    tensor: Nonfinite
    marked: bool  # its autograd node refers to it


@dataclass(frozen=True)
class _Gradient:
    """The first non-finite gradient that a node of the autograd graph put out."""

    call: Call | None  # that made the node; None outside of every module
    node: str
    tensor: Nonfinite
    incoming_finite: bool


@dataclass
class _Inputs:
    """Of one call."""

    first_node: int  # autograd nodes that are made in the call have this number or a higher one
    place: tuple[str, int]
    finite: bool = True
    largest: float = 0.0


_OWNER, _PASSED = "tbnum_owner", "tbnum_passed"  # in the metadata of autograd nodes


class WatchedRun:
    """What is seen of one run, inside of `watching()`; `cause()` after it, while its gradients are still there.

    Args:
        models: whose modules are watched.
        on_leaf: is called with every tensor whose gradient a backward is about to add to.
        look_into: a cause found before: the operations inside of the forward call, or the backward node, that it names
            are watched as well, and the first that makes something non-finite is `operation`, with its output.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        on_leaf: Callable[[Tensor], None] = lambda leaf: None,
        look_into: Cause | None = None,
    ) -> None:
        self._models = models
        self._on_leaf = on_leaf
        self._look_into = look_into
        self._hooks = ModuleHooks(self._called, self._returned)
        self._running = False
        self._thread = threading.get_ident()
        self._first_node = 0
        self._calls: dict[str, int] = {}
        self._inputs: dict[Call, _Inputs] = {}
        self._passed: list[_Passed] = []
        self._behind_loss: list[_Passed] = []
        self._behind_checkpoint: list[_Passed] = []  # seen when it was computed again, with a graph
        self._loss: tuple[Nonfinite, str | None] | None = None  # the first that is not finite, and its node
        self._gradient: _Gradient | None = None
        self._arrived: Call | None = None  # whose output's gradient was not finite when it came from outside
        self._leaves: dict[int, Tensor] = {}
        self._operations: tuple[Call, Operations] | None = None  # that are watched, and in which call
        self.operation: tuple[str, Nonfinite] | None = None
        self._inside: Call | None = None  # the call of a module that is running
        self.backwards = 0
        self.largest_gradient = 0.0
        self.largest_gradient_at: str | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        engine = torch.autograd._engine_run_backward

        def run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            self._backward_begins(outputs)
            if self._look_into is None or self._look_into.phase != "backward" or self.operation is not None:
                return engine(outputs, *args, **kwargs)
            with Operations(in_node=self._look_into.operation) as operations:
                result = engine(outputs, *args, **kwargs)
            self.operation = operations.found
            return result

        self._hooks.attach(named_modules(self._models, inside_compiled=True))
        self._first_node = torch._C._autograd._get_sequence_nr()
        self._running = True
        # Every backward() and grad() comes through here, under whatever name the user calls it.
        torch.autograd._engine_run_backward = run_backward  # type: ignore[assignment]
        try:
            with as_written(), self._outside_of_modules():
                yield
        finally:
            torch.autograd._engine_run_backward = engine
            self._running = False
            self._hooks.detach()
            self._leave_operations()

    @contextlib.contextmanager
    def _outside_of_modules(self) -> Iterator[None]:
        """Where the loss itself is at fault: operations before a backward that no module has called."""
        if self._look_into is None or self._look_into.what != "loss":
            yield
            return
        with Operations(counts=lambda: self._inside is None and not self.backwards) as operations:
            yield
        self.operation = operations.found

    # -- forward ---------------------------------------------------------------------------------------------------

    def _called(self, call: Call, given: Any) -> None:
        self._inside = call
        number = self._calls[call.module] = self._calls.get(call.module, 0) + (call.graph_task == -1)
        inputs = self._inputs[call] = _Inputs(torch._C._autograd._get_sequence_nr(), (call.module, number))
        for tensor in tensors_in(given):
            seen = self._pass(call, "input", tensor)
            inputs.finite &= not isinstance(seen, Nonfinite)
            if isinstance(seen, float):
                inputs.largest = max(inputs.largest, seen)
        if self._look_into is not None and self._look_into.call == inputs.place and call.graph_task == -1:
            self._operations = (call, Operations())
            self._operations[1].__enter__()

    def _returned(self, call: Call, returned: Any) -> None:
        self._inside = call.parent
        if self._operations is not None and self._operations[0] is call:
            self._leave_operations()
        tensors = list(tensors_in(returned))
        for tensor in tensors:
            self._pass(call, "output", tensor)
        self._own(call, tensors)

    def _leave_operations(self) -> None:
        if self._operations is not None:
            operations, self._operations = self._operations[1], None
            operations.__exit__(None, None, None)
            self.operation = operations.found

    def _pass(self, call: Call, place: Literal["input", "output"], tensor: Tensor) -> float | Nonfinite | None:
        seen = look_at(tensor)
        if isinstance(seen, Nonfinite) and seen.kind == "-inf" and not tensor.requires_grad:
            return None  # a mask: it is meant to be so
        node: Any = tensor.grad_fn
        marked = node is not None and not self._is_older(node)
        passed = None
        if isinstance(seen, Nonfinite):
            passed = _Passed(len(self._passed), call, place, seen, marked)
            self._passed.append(passed)
        if node is not None and marked:
            marks = node.metadata.setdefault(_PASSED, {}).setdefault(tensor.output_nr, [])
            if passed is not None:
                marks.append(passed)
        return seen

    def _is_older(self, node: Any) -> bool:
        """Whether a node was there before the run: another graph's, to be left alone. Each thread has its numbers."""
        return threading.get_ident() == self._thread and node._sequence_nr() < self._first_node

    def _own(self, call: Call, outputs: Iterable[Tensor]) -> None:
        """The nodes that were made in the call are its own, but for those of the calls inside of it."""
        first = self._inputs[call].first_node
        stack: list[Any] = [tensor.grad_fn for tensor in outputs]
        while stack:
            node = stack.pop()
            if node is None or _is_leaf(node) or node._sequence_nr() < first or _OWNER in node.metadata:
                continue
            node.metadata[_OWNER] = call
            node.register_hook(functools.partial(self._node_ran, call, node.name(), ()))
            stack += [each for each, _ in node.next_functions]

    # -- backward --------------------------------------------------------------------------------------------------

    def _backward_begins(self, outputs: Sequence[Any]) -> None:
        roots = [(each.grad_fn, each.output_nr) if isinstance(each, Tensor) else tuple(each)[:2] for each in outputs]
        outermost = torch._C._current_graph_task_id() == -1
        self.backwards += outermost
        for root, output in zip(roots, outputs, strict=True):
            seen = look_at(output) if isinstance(output, Tensor) else None
            if isinstance(seen, Nonfinite) and outermost:
                self._loss = self._loss or (seen, None if root[0] is None else root[0].name())
                self._behind_loss += self._behind(root)
            elif isinstance(seen, Nonfinite):
                self._behind_checkpoint += self._behind(root)
        leaves = [each for each in outputs if isinstance(each, Tensor) and each.grad_fn is None]
        self._watch_graph([node for node, _ in roots if node is not None], leaves)

    def _behind(self, root: tuple[Any, int]) -> list[_Passed]:
        """The non-finite tensors that a non-finite one was made of: back through the graph, up to finite ones."""
        found: list[_Passed] = []
        seen = set()
        stack = [root]
        while stack:
            edge = stack.pop()
            node, output = edge
            if node is None or edge in seen or _is_leaf(node) or self._is_older(node):
                continue
            seen.add(edge)
            marks = node.metadata.get(_PASSED, {}).get(output)
            if marks is not None:
                if not marks:
                    continue  # finite
                found += marks
            stack += node.next_functions
        return found

    def _watch_graph(self, roots: list[Any], leaves: list[Tensor]) -> None:
        """Hook what no module has made: the loss. Report the leaves, whose gradients are about to change."""
        seen = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in seen or self._is_older(node):
                continue
            seen.add(node)
            if _is_leaf(node):
                leaves.append(node.variable)
                continue
            following = [each for each, _ in node.next_functions]
            if _OWNER not in node.metadata:
                node.metadata[_OWNER] = None
                owners = tuple(None if each is None else each.metadata.get(_OWNER) for each in following)
                node.register_hook(functools.partial(self._node_ran, None, node.name(), owners))
            stack += [each for each in following if each is not None]
        for leaf in leaves:
            if id(leaf) not in self._leaves:
                self._leaves[id(leaf)] = leaf
                self._on_leaf(leaf)

    def _node_ran(
        self,
        call: Call | None,
        node: str,
        owners: tuple[Call | None, ...],  # of the nodes that the gradients go to, where this one has no owner
        put_out: Sequence[Tensor | None],
        received: Sequence[Tensor | None],
    ) -> None:
        if not self._running:
            return
        for at, gradient in enumerate(put_out):
            seen = None if gradient is None else look_at(gradient)
            if isinstance(seen, float) and seen > self.largest_gradient:
                self.largest_gradient, self.largest_gradient_at = seen, None if call is None else call.module
            if not isinstance(seen, Nonfinite):
                continue
            if self._gradient is None:
                finite = not any(isinstance(look_at(each), Nonfinite) for each in received if each is not None)
                self._gradient = _Gradient(call, node, seen, finite)
            if call is None and self._arrived is None and at < len(owners):
                self._arrived = owners[at]
            return

    # -- the answer ------------------------------------------------------------------------------------------------

    def cause(self) -> Cause:
        """Where it began, by what was seen. Looks at the gradients of the run: to be asked before they are gone."""
        if self._loss is not None:
            return self._forward_cause(*self._loss)
        gradients = [(leaf, leaf.grad) for leaf in self._leaves.values() if leaf.grad is not None]
        bad = [(leaf, seen) for leaf, each in gradients if isinstance(seen := look_at(each), Nonfinite)]
        if not bad and (gradients or self._gradient is None):
            return Cause("none")
        found = self._gradient
        if found is None:
            leaf, seen = bad[0]
            return Cause("backward", self._module_of(leaf), "gradient", seen, True, sum_of_finite=True)
        call = found.call or self._arrived
        return Cause(
            "backward",
            None if call is None else call.module,
            "gradient",
            found.tensor,
            inputs_finite=found.incoming_finite and found.call is not None,
            operation=found.node,
            sum_of_finite=not found.incoming_finite,
        )

    def _forward_cause(self, loss: Nonfinite, node: str | None) -> Cause:
        in_time = operator.attrgetter("number")
        behind = sorted(self._behind_loss, key=in_time)
        first = behind[0] if behind else None
        if first is None or not self._made_by_its_module(first):
            # It may come from what takes no gradient (the batch, a frozen module), which the graph knows nothing of;
            # or from inside of a checkpoint, whose graph is there when it is computed again.
            unmarked = [
                each
                for each in self._passed
                if not each.marked and each.call.graph_task == -1 and (not first or each.number < first.number)
            ]
            made = [each for each in sorted(self._behind_checkpoint, key=in_time) if self._made_by_its_module(each)]
            first = made[0] if made else unmarked[0] if unmarked else first
        if first is None:
            return Cause("forward", None, "loss", loss, inputs_finite=True, operation=node)
        consumer = None
        call: Call | None = first.call
        if first.place == "input":  # and no module's output: made by the code of the module that makes this call
            consumer, call = first.call.module, first.call.parent
        if call is None:
            return Cause("forward", None, "input", first.tensor, inputs_finite=False, consumer=consumer)
        inputs = self._inputs[call]
        return Cause(
            "forward",
            call.module,
            "output" if consumer is None else "input",
            first.tensor,
            inputs_finite=inputs.finite,
            largest_input=inputs.largest,
            consumer=consumer,
            call=inputs.place,
        )

    def _made_by_its_module(self, passed: _Passed) -> bool:
        return passed.place == "output" and self._inputs[passed.call].finite

    def _module_of(self, leaf: Tensor) -> str | None:
        for name, module in named_modules(self._models, inside_compiled=True):
            if any(parameter is leaf for parameter in module.parameters(recurse=False)):
                return name
        return None


def _is_leaf(node: Any) -> bool:
    return hasattr(node, "variable")


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """With gradients, whatever the caller's context; uncompiled, for compiled code runs no hooks."""
    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):  # else nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        # The user may have asked for an exception at the first NaN: here it is to be found.
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        torch.clear_autocast_cache()  # weights cast before are a part of another graph
        try:
            yield
        finally:
            torch.clear_autocast_cache()
