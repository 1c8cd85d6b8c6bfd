"""Where the command prints: colours and live lines on a terminal, plain text of a fixed width elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tbnum.explain.words import terminal_text

__all__ = ["STYLES", "WIDTH", "console", "opened", "print_line", "print_table", "print_wrapped"]

WIDTH = 100
STYLES = {"error": "red", "warning": "yellow", "info": "", "head": "bold"}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # the command answers that itself; rich would end the program


def console(stderr: bool = False) -> Console:
    """Of the standard streams as they are now. Nothing that is printed is taken as markup."""
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    return _Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def print_line(*parts: str | tuple[str, str]) -> None:
    """One line, never wrapped. A part may be a pair of a text and its style."""
    cleaned = ((terminal_text(part[0]), part[1]) if isinstance(part, tuple) else terminal_text(part) for part in parts)
    console().print(Text.assemble(*cleaned), soft_wrap=True)


def print_wrapped(text: str, first: str) -> None:
    """Prints `text` behind `first`, further lines below its beginning."""
    if not text:
        return
    out = console()
    lines = Text(terminal_text(text)).wrap(out, max(out.width - len(first), 20))
    for number, line in enumerate(lines):
        line.rstrip()
        out.print(Text(first if number == 0 else " " * len(first)) + line, soft_wrap=True)


def print_table(table: Table) -> None:
    out = console()
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


@contextmanager
def opened(name: str, *, binary: bool) -> Iterator[IO[Any]]:
    """The file of that name, or standard output for '-'. Raises OSError where it cannot be written."""
    if name == "-":
        yield sys.stdout.buffer if binary else sys.stdout
        return
    with open(name, "wb") if binary else open(name, "w", encoding="utf-8", newline="") as stream:
        yield stream
