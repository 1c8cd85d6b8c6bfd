"""Each published loop trains bitwise as without tbnum, and the record is the loop's own truth or says unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.published.check import all_loops, problems
from tests.published.pending import PENDING
from tests.published.tape import Loop

pytestmark = pytest.mark.usefixtures("one_thread")


def cases() -> list[Any]:
    marked = []
    for name, loop in all_loops().items():
        marks: list[Any] = [pytest.mark.slow] if loop.slow else []
        if name in PENDING:
            marks.append(
                pytest.mark.xfail(strict=True, raises=(AssertionError, TypeError, ValueError), reason=PENDING[name])
            )
        marked.append(pytest.param(loop, id=name, marks=marks))
    return marked


@pytest.mark.parametrize("loop", cases())
def test_a_published_loop_trains_as_without_and_its_record_is_its_own_truth(loop: Loop, tmp_path: Path) -> None:
    found = problems(loop, tmp_path)
    assert not found, "\n".join(found[:20])


def test_every_loop_that_is_pending_is_there() -> None:
    assert set(PENDING) <= set(all_loops())
