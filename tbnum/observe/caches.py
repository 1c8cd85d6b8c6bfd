"""Surrogate losses: gradients of representations that one backward left, and another begins with.

GradCache, and whoever cuts a graph in two, takes the loss of representations alone, and then sends the gradient of each
chunk through the model by a product with it. Such a product is a number, but it is no loss.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from tbnum.observe.gradients import operations_behind

__all__ = ["Caches"]

_LOOKED_AT = 64  # operations behind a loss, to find the leaves that its backward wrote to
_NEAR = 4  # operations between a surrogate and the gradient in it


class Caches:
    """Leaves that are nobody's parameters, and whose gradients a backward wrote: those of the last such backward."""

    def __init__(self) -> None:
        self.has_leaves = False
        self._leaves: list[weakref.ref[Tensor]] = []

    def note(self, roots: Sequence[Any]) -> None:
        """A backward of these reached no parameter that is watched. About a microsecond for each operation."""
        leaves = (getattr(node, "variable", None) for node in operations_behind(roots, _LOOKED_AT))
        others = (leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter))
        self._leaves = [weakref.ref(leaf) for leaf in others if leaf.grad is not None]
        self.has_leaves = bool(self._leaves)

    def are_behind(self, roots: Sequence[Any]) -> bool:
        """Whether a root is made of the gradient of such a leaf."""
        alive = [leaf for ref in self._leaves if (leaf := ref()) is not None]
        storages = {leaf.grad.untyped_storage().data_ptr() for leaf in alive if leaf.grad is not None}
        return bool(storages) and any(
            tensor.untyped_storage().data_ptr() in storages
            for node in operations_behind(roots, _NEAR)
            for tensor in _saved(node)
        )


def _saved(node: Any) -> Iterator[Tensor]:
    """What an operation keeps for its backward."""
    for name in ("_saved_self", "_saved_other", "_saved_tensor", "_saved_mat1", "_saved_mat2"):
        tensor = getattr(node, name, None)
        if isinstance(tensor, Tensor):
            yield tensor
