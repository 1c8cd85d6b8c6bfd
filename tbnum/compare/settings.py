"""Do two runs belong together: what differs in what they said about themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["Setting", "settings_apart"]

_COMPARED = ("seed", "config", "optimizers", "scaler", "parameters", "versions", "world_size")
_NOT_SETTINGS = frozenset({"logdir", "writer"})
_MOST = 50  # that are reported


class Setting(NamedTuple):
    """`optimizers.optimizer.groups[0].lr`: 0.001 in one, 0.002 in the other. None where a run does not have it."""

    name: str
    a: Any
    b: Any


def settings_apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Setting]:
    """In the order seed, config, optimizers, scaler, parameters, versions, world size; at most fifty."""
    found: list[Setting] = []
    for key in _COMPARED:
        if key not in a and key not in b:
            continue
        for setting in _apart(key, a.get(key), b.get(key)):
            if setting.name.rpartition(".")[2] not in _NOT_SETTINGS:
                found.append(setting)
            if len(found) == _MOST:
                return found
    return found


def _apart(name: str, a: Any, b: Any) -> Iterator[Setting]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from _apart(f"{name}.{key}", a.get(key), b.get(key))
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        for at, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _apart(f"{name}[{at}]", one, other)
    elif a != b and not (a != a and b != b):
        yield Setting(name, a, b)
