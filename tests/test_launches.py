"""What a step launches on a device, as the documentation has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launches import LOOPS, Launched, launched

PAGE = Path(__file__).parents[1] / "docs" / "tested.md"


def documented() -> dict[str, tuple[int, int]]:
    """Operations and copies of each loop, from the table in the page."""
    rows = re.findall(r"^\| ([\w ]+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    return {name: (int(operations), int(copies)) for name, operations, copies in rows}


@pytest.mark.parametrize("tensors", [10, 150])
@pytest.mark.parametrize("name", LOOPS)
def test_a_step_launches_what_the_documentation_says_whatever_the_number_of_tensors(name: str, tensors: int) -> None:
    operations, copies = documented()[name]
    assert launched(name, tensors=tensors) == Launched(operations, copies, syncs=0)


def test_the_documentation_has_each_loop() -> None:
    assert documented().keys() == LOOPS.keys()
