"""Dictionaries whose KeyError says what there is."""

from __future__ import annotations

from collections.abc import Sized
from typing import ClassVar, NoReturn, TypeVar

__all__ = ["Columns", "Runs"]

V = TypeVar("V")

LISTED = 20  # names in a message


class _Named(dict[str, V]):
    """A dict in every other respect: equal to one, and pickled like one."""

    what: ClassVar[str]
    why_empty = ""  # a sentence: why there is no more

    def __missing__(self, name: object) -> NoReturn:
        names = ", ".join(map(repr, list(self)[:LISTED])) or "none"
        more = f" and {len(self) - LISTED:,} more" if len(self) > LISTED else ""
        raise KeyError(f"no {self.what} {name!r}; there is {names}{more}{self.why_empty}")


class Columns(_Named[V]):
    what = "column"

    def __repr__(self) -> str:
        """The names: an array is printed when it is asked for."""
        rows = max((len(values) for values in self.values() if isinstance(values, Sized)), default=0)
        return f"<{len(self)} columns of {rows:,} steps: {', '.join(map(str, self))}>"


class Runs(_Named[V]):
    what = "run"
