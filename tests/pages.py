"""Runs what stands in a page of the documentation: its Python as one program, its commands with what they print.

- A block ```python is run in the names that the blocks before it left; the first has to bring its own. With
  `title="train.py"` it is written to that file instead.
- A block ```console is run as well, from `$` on: `tbnum`, `torchrun`, `python` and `echo $?`. What stands below a
  command has to be in what it printed, line by line in this order; numbers may differ, and `...` stands for anything.
- Others (```sh, ```text ...) are not run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tbnum
from tbnum import cli
from tests import warm

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w^])-?\d[\d,:.e^+-]*\d|(?<![\w^])-?\d")


class Block(NamedTuple):
    language: str
    title: str | None
    text: str
    line: int  # of the page, from 1


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        title = re.search(r'title="([^"]+)"', match[3])
        line = text.count("\n", 0, match.start(4)) + 1
        found.append(Block(match[2], title and title[1], textwrap.dedent(match[4]), line))
    return found


def run_page(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs the blocks of a page in the working directory."""
    names: dict[str, Any] = {}
    status = 0
    try:
        for block in blocks(page):
            if block.language == "python":
                if block.title:
                    Path(block.title).write_text(block.text, encoding="utf-8")
                else:
                    # Blank lines in front, so that a traceback names the line of the page.
                    exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
                    for monitor in _monitors(names):
                        monitor.flush()  # a reader of the page would take two seconds to the next block
            elif block.language == "console":
                for command, shown in _commands(block.text):
                    if command == "echo $?":
                        assert shown.strip() == str(status), f"{page.name}: the exit code is {status}"
                        continue
                    capsys.readouterr()
                    status, printed = _run(command, capsys)
                    problem = difference(shown, printed)
                    assert problem is None, f"{page.name}, $ {command}\n{problem}\n--- printed:\n{printed}"
    finally:
        for monitor in _monitors(names):
            monitor.close()


def _monitors(names: dict[str, Any]) -> list[tbnum.Monitor]:
    return [each for each in names.values() if isinstance(each, tbnum.Monitor)]


def _commands(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.replace("\\\n", " ").partition("\n")
        yield command, shown


def _run(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    program, *arguments = shlex.split(command)
    if program == "tbnum":
        try:
            status = cli.main(arguments)
        except SystemExit as error:
            status = int(error.code or 0)
        return status, "".join(capsys.readouterr())
    if program == "torchrun":
        *options, processes = arguments[:3]
        assert options == ["--standalone", "--nproc-per-node"], command
        interpreter = warm.torchrun(int(processes))
        arguments = arguments[3:]
    else:
        interpreter = {"python": warm.python()}[program]
    done = subprocess.run(
        interpreter + arguments,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout
    return done.returncode, done.stdout


def difference(shown: str, printed: str) -> str | None:
    """The first line that the page shows and that was not printed (after those before it); None where all were."""
    lines = iter([_loosely(line) for line in printed.splitlines()])
    for line in shown.splitlines():
        if line.strip() in ("", "..."):
            continue
        pattern = ".*".join(re.escape(_loosely(part)) for part in line.split("..."))
        if not any(re.fullmatch(pattern, each) for each in lines):
            return f"not printed, or not in this order: {line}"
    return None


def _loosely(line: str) -> str:
    return re.sub(r"\s+", " ", _NUMBER.sub("#", line)).strip()
