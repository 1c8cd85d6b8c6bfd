"""Forward hooks that are in no copy, no pickle and no script of a module.

torch keeps a module's hooks in dictionaries on the module, and whoever copies, pickles or compiles it takes them along.
While a module is hooked here, a dictionary of ours stands in place of each. What a call of the module asks of it
includes our hooks; all else, and whatever others add or remove meanwhile, is the module's own dictionary.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, KeysView, ValuesView
from typing import Any

from torch import nn

__all__ = ["add_forward_hooks"]

_ATTRIBUTES = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks")

_Before = Callable[[nn.Module, Any, Any], None]
_After = Callable[[nn.Module, Any, Any], None]


def add_forward_hooks(module: nn.Module, before: _Before, after: _After) -> Callable[[], None]:
    """Call `before(module, args, kwargs)` and `after(module, args, output)`, until the returned function is called.

    They run after the module's own hooks, and what they return does not matter.
    """
    key, ref = object(), weakref.ref(module)  # torch's own keys are numbers
    for attribute, value in zip(_ATTRIBUTES, (before, True, after), strict=True):
        hooks = vars(module)[attribute]
        if not isinstance(hooks, _Hooks):
            hooks = vars(module)[attribute] = _Hooks(hooks)
        hooks.added = {**hooks.added, key: value}  # never changed in place: another thread may be calling the module

    def remove() -> None:
        module = ref()
        for attribute in _ATTRIBUTES if module is not None else ():
            hooks = vars(module)[attribute]
            if isinstance(hooks, _Hooks):  # else somebody has put another dictionary there
                hooks.added = {each: value for each, value in hooks.added.items() if each is not key}
                if not hooks.added and not hooks.is_referred_to:
                    vars(module)[attribute] = hooks.own

    return remove


class _Hooks(OrderedDict[Any, Any]):
    """Stands for `own`, the module's dictionary, and shows `added` beside it to a call of the module alone."""

    def __init__(self, own: OrderedDict[Any, Any]) -> None:
        self.own = own
        self.added: dict[object, Any] = {}
        self.is_referred_to = False  # by the handles of hooks that others added meanwhile, which know this dictionary

    # -- what a call of the module asks: whether there are any, which, and which of them take keywords ---------------

    def __bool__(self) -> bool:
        return bool(self.added) or bool(self.own)

    def items(self) -> Any:
        return [*self.own.items(), *self.added.items()] if self.added else self.own.items()

    def __contains__(self, key: object) -> bool:
        return key in self.own or key in self.added

    # -- what copies, pickles and scripts it ------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.own.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.own, memo)

    def __copy__(self) -> Any:
        return copy.copy(self.own)

    def copy(self) -> Any:
        return self.own.copy()

    # -- all else is the module's own -------------------------------------------------------------------------------

    def __setitem__(self, key: Any, value: Any) -> None:
        self.is_referred_to = True
        self.own[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.own[key]

    def __getitem__(self, key: Any) -> Any:
        return self.own[key]

    def __len__(self) -> int:
        return len(self.own)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.own)

    def __reversed__(self) -> Any:
        return reversed(self.own)

    def __eq__(self, other: object) -> bool:
        return self.own == (other.own if isinstance(other, _Hooks) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(self.own)

    def keys(self) -> KeysView[Any]:  # type: ignore[override]
        return self.own.keys()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return self.own.values()

    def get(self, key: Any, default: Any = None) -> Any:
        return self.own.get(key, default)

    def pop(self, *arguments: Any) -> Any:
        return self.own.pop(*arguments)

    def popitem(self, last: bool = True) -> tuple[Any, Any]:
        return self.own.popitem(last)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self.is_referred_to = True
        return self.own.setdefault(key, default)

    def update(self, *arguments: Any, **named: Any) -> None:
        self.is_referred_to = True
        self.own.update(*arguments, **named)

    def clear(self) -> None:
        self.own.clear()

    def move_to_end(self, key: Any, last: bool = True) -> None:
        self.own.move_to_end(key, last)
