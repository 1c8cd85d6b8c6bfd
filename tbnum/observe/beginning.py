"""What a loop's first attempts show of it: whether it computes in float16 without a loss scale, a loss in 16 bits, or
backward within autocast, and whether it divides the losses that it accumulates. Later attempts cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tbnum.observe.attempt import Attempt
from tbnum.observe.caller import users_line
from tbnum.observe.gradients import dtypes_behind

__all__ = ["Beginning", "is_plain_mean"]

ATTEMPTS = 16  # that are looked at
SURE = 3  # attempts that show the same

_MEAN = 1  # of torch's own losses, what `reduction="mean"` is in the graph
_PASSED = ("AddBackward", "NegBackward", "ToCopyBackward", "ViewBackward", "SqueezeBackward", "CloneBackward")


class Beginning:
    """Of one optimizer."""

    def __init__(self) -> None:
        self.is_over = False
        self._attempts = 0
        self._attempt: Attempt | None = None
        self._means: list[str] = []  # where the backwards of the attempt were called that began with a plain mean
        self._in_float16: bool | None = None
        self._under_autocast: str | None = None  # where a backward was called within autocast
        self._low_precision: tuple[torch.dtype, str] | None = None  # of a loss, and where its backward was called
        self._adds_up = self._without_scale = 0  # attempts in a row
        self._rescales = False

    def arrives(self, attempt: Attempt, roots: Sequence[Any], *, is_scaled: bool, reached_all: bool) -> None:
        """A backward has reached the gradients: some 10 microseconds, and a walk over the graph at the first one."""
        if attempt is not self._attempt:
            self._attempt, self._means = attempt, []
        root = roots[0] if len(roots) == 1 and isinstance(roots[0], Tensor) else None
        # Losses of tasks or heads, each of parameters of its own too, are no micro-batches.
        if root is not None and reached_all and is_plain_mean(root.grad_fn, is_scaled):
            self._means.append(users_line() or "")
        if root is not None and self._under_autocast is None and torch.is_autocast_enabled(root.device.type):
            self._under_autocast = users_line() or ""
        if root is not None and self._low_precision is None and root.dtype in (torch.float16, torch.bfloat16):
            self._low_precision = root.dtype, users_line() or ""
        if self._in_float16 is None and root is not None:
            self._in_float16 = torch.float16 in dtypes_behind(root)

    def rescaled(self) -> None:
        """The loop multiplies its gradients by hand."""
        self._rescales = True

    def stepped(self, attempt: Attempt, parameters: Sequence[Tensor]) -> list[tuple[str, dict[str, Any]]]:
        """What is sure now: kinds of events, and their data."""
        self._attempts += 1
        self.is_over = self._attempts >= ATTEMPTS
        has_scale = attempt.scaler is not None or attempt.has_own_scale or self._rescales
        is_autocast = bool(self._in_float16) and all(each.dtype != torch.float16 for each in parameters)
        self._without_scale = self._without_scale + 1 if is_autocast and not has_scale else 0
        count = len(attempt.backwards)
        is_followed = attempt is self._attempt and attempt.loss_is_known
        one_line = is_followed and len(self._means) == count and len(set(self._means)) == 1
        self._adds_up = self._adds_up + 1 if count > 1 and one_line and not self._rescales else 0
        found: list[tuple[str, dict[str, Any]]] = []
        if self._under_autocast is not None:
            found.append(("backward_under_autocast", {"where": self._under_autocast}))
        if self._low_precision is not None and all(each.dtype == torch.float32 for each in parameters):
            dtype, where = self._low_precision
            is_scaled = attempt.scaler is not None
            found.append(("loss_low_precision", {"dtype": str(dtype)[6:], "where": where, "scaled": is_scaled}))
        if self._without_scale == SURE:
            found.append(("float16_without_scaler", {"where": users_line()}))
        if self._adds_up == SURE:
            found.append(("losses_not_divided", {"micro_batches": count, "where": self._means[0]}))
        self._attempt = None
        return found


def is_plain_mean(node: Any, is_scaled: bool, most: int = 32) -> bool:
    """Whether a loss is a mean, or a sum of means, that nothing has divided or weighted, as the graph shows.

    `is_scaled`: by a GradScaler, whose product is the last operation. False where the graph does not say.
    """
    if is_scaled:
        before = [each for each, _ in node.next_functions if each is not None] if _is(node, "MulBackward") else []
        node = before[0] if len(before) == 1 else None
    to_visit, visited = [node], 0
    while to_visit and visited < most:
        node = to_visit.pop()
        visited += 1
        if _is(node, "MeanBackward") or getattr(node, "_saved_reduction", None) == _MEAN:
            continue
        if not any(_is(node, name) for name in _PASSED):
            return False
        before = [each for each, _ in node.next_functions if each is not None]
        if not before:
            return False
        to_visit += before
    return not to_visit


def _is(node: Any, name: str) -> bool:
    return type(node).__name__.startswith(name)
