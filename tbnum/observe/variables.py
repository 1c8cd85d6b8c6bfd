"""By which variable of the running program an object can still be used.

Something is nearly always left that refers to an object nobody uses any more: a scheduler of an optimizer, IPython's
history, the frames of an exception that was caught. A reference count does not distinguish them from use; variables do.
"""

from __future__ import annotations

import builtins
import gc
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tbnum.caller import is_users

__all__ = ["Use", "is_interactive", "use_of"]

_MOST_OBJECTS = 20_000  # that are looked at; about 1 microsecond each
_DEPTH = 4  # of containers and attributes inside each other
_PROMPTS = ("IPython", "ipykernel", "ipywidgets", "traitlets", "tornado", "zmq", "nest_asyncio", "debugpy", "marimo")
_MACHINERY = frozenset([*_PROMPTS, "_pytest", "pluggy"])  # runs the user's code
_HISTORY = re.compile(r"_+|_\d+|_i+|_i\d+|_?oh|_?ih|_dh|Out|In")  # of an interactive session


class Use(NamedTuple):
    """Where an object can be used from."""

    variable: str
    where: str  # the file of the code that has the variable
    is_global: bool
    is_direct: bool  # else it is an attribute of what the variable holds, or a variable of a function that it holds


class _Namespace(NamedTuple):
    where: str
    variables: Mapping[str, Any]
    is_global: bool


def use_of(objects: Iterable[object]) -> Use | None:
    """A variable of running code by which one of the objects can be used; None where there is none.

    A direct one where there is one, else a local one. Of every thread. For rare moments: some milliseconds.
    """
    namespaces = sorted(_namespaces(), key=lambda each: each.is_global)
    # What runs a cell has the cell's variables in a dictionary, as a part of which they are not in use.
    search = _Search({id(each) for each in objects}, {id(each.variables) for each in namespaces})
    indirect: Use | None = None
    for where, variables, is_global in namespaces:
        for name, value in list(variables.items()):
            found = None if name.startswith("__") or _HISTORY.fullmatch(name) else search.finds(value)
            if found == "directly":
                return Use(name, where, is_global, is_direct=True)
            if found == "indirectly" and indirect is None:
                indirect = Use(name, where, is_global, is_direct=False)
    return indirect


def is_interactive() -> bool:
    """Whether code is run piece by piece, in a notebook or at a prompt: a cell that is run again may have changed."""
    return hasattr(builtins, "__IPYTHON__") or hasattr(sys, "ps1")


def _namespaces() -> Iterator[_Namespace]:
    """Local and global variables of the user's running code."""
    seen: set[int] = set()
    for first in _running_frames():
        frame: FrameType | None = first
        while frame is not None:
            path, module = frame.f_code.co_filename, frame.f_globals.get("__name__") or ""
            if is_users(frame) and module.partition(".")[0] not in _MACHINERY:
                if frame.f_locals is not frame.f_globals:
                    yield _Namespace(os.path.basename(path), frame.f_locals, is_global=False)
                if id(frame.f_globals) not in seen:
                    seen.add(id(frame.f_globals))
                    yield _Namespace(os.path.basename(path), frame.f_globals, is_global=True)
            frame = frame.f_back


def _running_frames() -> list[FrameType]:
    """The innermost of each thread.

    Python 3.11 holds a lock meanwhile that a collection may ask for too, and then waits for ever: none begins.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return list(sys._current_frames().values())
    finally:
        if was_enabled:
            gc.enable()


class _Search:
    def __init__(self, wanted: set[int], passed_by: set[int]) -> None:
        self._wanted = wanted
        self._passed_by = passed_by
        self._left = _MOST_OBJECTS

    def finds(self, value: object) -> str | None:
        """ "directly", "indirectly" or None."""
        seen = set(self._passed_by)
        to_visit = [(value, 0, "directly")]
        while to_visit and self._left > 0:
            each, depth, how = to_visit.pop(0)
            if id(each) in self._wanted:
                return how
            if id(each) in seen or depth == _DEPTH or _is_a(each, (str, bytes, int, float, Tensor, type)):
                continue
            seen.add(id(each))
            self._left -= 1
            inside = _members(each)
            if inside is None:
                inside, how = _parts(each), "indirectly"
            to_visit += [(part, depth + 1, how) for part in inside]
        return None


# Objects of others are looked at, and none of their code runs: a proxy, say, may raise where it is asked for its class.


def _is_a(value: object, classes: tuple[type, ...]) -> bool:
    return issubclass(type(value), classes)


def _members(container: Any) -> list[Any] | None:
    """Of a list, tuple, set or dictionary; None of another object."""
    for cls, members in ((list, list.__iter__), (tuple, tuple.__iter__), (dict, dict.values)):
        if _is_a(container, (cls,)):
            return list(members(container))
    return list(set(container)) if type(container) in (set, frozenset) else None


def _parts(owner: Any) -> list[Any]:
    """What code can use by holding `owner`: attributes of its own, and variables of a function or generator."""
    if _is_a(owner, (MethodType,)):
        return [owner.__self__, owner.__func__]
    if _is_a(owner, (FunctionType,)):
        cells = [cell for cell in owner.__closure__ or () if _is_filled(cell)]
        return [cell.cell_contents for cell in cells] + list(owner.__defaults__ or ())
    if _is_a(owner, (GeneratorType,)):
        return [] if owner.gi_frame is None else list(owner.gi_frame.f_locals.values())
    module = type(owner).__module__.partition(".")[0]
    if _is_a(owner, (ModuleType,)) or module in ("tbnum", *_MACHINERY) or _is_scheduler(owner):
        return []
    try:
        return list(object.__getattribute__(owner, "__dict__").values())
    except AttributeError:  # it has slots, or is written in C
        return []


def _is_scheduler(owner: object) -> bool:
    """Sets the learning rate of an optimizer, which it does not step: torch's, or one of a library."""
    named = any("scheduler" in cls.__name__.lower() for cls in type(owner).__mro__)
    return named or _is_a(owner, (torch.optim.lr_scheduler.LRScheduler,))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
