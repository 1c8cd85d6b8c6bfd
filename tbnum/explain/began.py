"""Where in a backward pass what is not finite began, from which gradients are finite and which are not.

Backward goes through a network from its end. A gradient that becomes non-finite on the way makes all that follow
non-finite too; so the tensors of a network in forward order are non-finite up to some place, and finite from there on.
That place is where it began. It is named only where the record shows this pattern.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Began", "began", "forward_order", "module_of"]


@dataclass(frozen=True)
class Began:
    """What the pattern of non-finite gradients says.

    `how`: "spread" (everything up to some module is non-finite, nothing after it), "everything" (no finite gradient is
    left), "alone" (gradients became non-finite one by one, and what was passed on stayed finite), "within" (the border
    lies somewhere in one block), "scattered" (no pattern: nothing is claimed).
    """

    how: str
    modules: tuple[str, ...]  # in the backward of one of these it began; () where not claimed
    producers: tuple[str, ...]  # non-finite tensors where it began
    propagators: int  # further non-finite tensors, which only handed it on
    text: str  # a sentence; "" where nothing is claimed


def began(names: Sequence[str], nonfinite: Sequence[bool]) -> Began | None:
    """Reads the pattern. `names`: tensors that have a gradient, in the optimizer's order. None where all are finite.

    O(tensors), and free of any assumption on names but that `blocks.3.mlp.fc1.weight` belongs to `blocks.3.mlp.fc1`.
    """
    order = forward_order(tuple(names))
    names = [names[at] for at in order]
    bad = [bool(nonfinite[at]) for at in order]
    count = sum(bad)
    if not count:
        return None
    last = len(bad) - 1 - bad[::-1].index(True)
    if count == last + 1 and (count > 1 or len(bad) == 1):
        return _spread(names, last)
    return _within(names, bad) or _one_by_one(names, bad)


def _spread(names: Sequence[str], last: int) -> Began:
    """All up to `last` are non-finite, and none after it."""
    module = module_of(names[last])
    producers = tuple(name for name in names[: last + 1] if module_of(name) == module)
    further = last + 1 - len(producers)
    if last == len(names) - 1:
        text = f"No gradient is finite: that began in the backward of {module} or behind it, up to the loss."
        return Began("everything", (module,), producers, further, text)
    following = module_of(names[last + 1])
    before = f"Everything before {module}"
    if following == module:  # its other tensors are finite, so what came in was
        text = f"{before} is non-finite, nothing after it: that began in the backward of {module}."
        return Began("spread", (module,), producers, further, text)
    text = (
        f"Everything up to {module} is non-finite, nothing from {following} on: that began in the backward of "
        f"{following}, of {module}, or of what lies between them."
    )
    return Began("spread", (following, module), producers, further, text)


def _within(names: Sequence[str], bad: Sequence[bool]) -> Began | None:
    """One block holds both; all blocks before it, at least two tensors, are non-finite, and all after it finite."""
    depth = max(name.count(".") for name in names)
    for levels in range(depth, 0, -1):
        blocks: dict[str, list[bool]] = {}
        for name, one in zip(names, bad, strict=True):
            blocks.setdefault(".".join(module_of(name).split(".")[:levels]), []).append(one)
        listed = list(blocks)
        mixed = [at for at, each in enumerate(blocks.values()) if any(each) and not all(each)]
        if len(mixed) != 1:
            continue
        before = [one for block in listed[: mixed[0]] for one in blocks[block]]
        after = [one for block in listed[mixed[0] + 1 :] for one in blocks[block]]
        block = listed[mixed[0]]
        if any(_below(name, block) and _block(name).startswith(block + ".") for name in names):
            return None  # a list of blocks, among which there is no border
        if len(before) > 1 and all(before) and after and not any(after):
            inside = tuple(name for name, one in zip(names, bad, strict=True) if one and _below(name, block))
            text = (
                f"Everything before {block} is non-finite, nothing after it: that began within {block} "
                f"({_listed(inside)})."
            )
            return Began("within", (block,), inside, sum(bad) - len(inside), text)
    return None


def _one_by_one(names: Sequence[str], bad: Sequence[bool]) -> Began:
    """No border. Each became non-finite by itself where finite gradients were computed after it.

    Of the first module, none can have been. But the gradient that reached it came past the second.
    """
    found = tuple(name for name, one in zip(names, bad, strict=True) if one)
    first = [one for name, one in zip(names, bad, strict=True) if module_of(name) == module_of(names[0])]
    if all(bad[: len(first) + 1]):
        return Began("scattered", (), found, 0, "")
    modules = tuple(dict.fromkeys(map(module_of, found)))
    text = "It became non-finite by itself" if len(found) == 1 else "Each of them became non-finite by itself"
    text += ": what was passed on stayed finite."
    return Began("alone", modules, found, 0, text)


@lru_cache(maxsize=16)
def forward_order(names: tuple[str, ...]) -> tuple[int, ...]:
    """Places of `names` in forward order as far as they say it.

    An optimizer's order is the model's, unless its groups part the parameters (matrices with weight decay first, then
    vectors without): then a block comes back after others have begun, and is put together again.
    """
    runs: list[list[str]] = [[]]  # blocks in order, again where an earlier one comes back
    seen: set[str] = set()
    blocks = [_block(name) for name in names]
    for block in blocks:
        if runs[-1] and runs[-1][-1] == block:
            continue
        if block in seen:
            runs.append([])
            seen = set()
        seen.add(block)
        runs[-1].append(block)
    order: list[str] = []
    for run in runs:
        place = -1
        for block in run:
            if block in order:
                place = order.index(block)
            else:
                place += 1
                order.insert(place, block)
    rank = {block: at for at, block in enumerate(order)}
    return tuple(sorted(range(len(names)), key=lambda at: rank[blocks[at]]))


_UNNAMED = re.compile(r"(.*\.)?group\d+\.param\d+$")


def module_of(name: str) -> str:
    """`blocks.3.mlp.fc1` of its weight. A tensor that has no module's name stands for itself."""
    if _UNNAMED.match(name) or "." not in name:
        return name
    return name.rsplit(".", 1)[0]


def _block(name: str) -> str:
    """Up to the first number: `blocks.3`. Without one, the first part."""
    if _UNNAMED.match(name):
        return name
    parts = name.split(".")
    for at, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: at + 1])
    return parts[0]


def _below(name: str, block: str) -> bool:
    return name == block or name.startswith(block + ".")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
