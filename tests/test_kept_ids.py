"""Of small steps all ids are kept, of large ones those around events and of the last steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tbnum
from tbnum.kept_ids import IDS_A_STEP, STEPS_AFTER, STEPS_AROUND, KeptIds
from tests.recorded import append, open_log


def ids_of(step: int, count: int) -> np.ndarray:
    return np.arange(step * 1000, step * 1000 + count, dtype=np.int64)


def kept(folder: Path, sizes: Sequence[int], events: Sequence[int] = (), *, keep_all: bool = False) -> list[int]:
    """The steps whose ids are in the log, exactly as they were given."""
    log = open_log(folder)
    ids = KeptIds(log, keep_all=keep_all)
    for step, size in enumerate(sizes):
        assert ids.step(step, ids_of(step, size)) != 0
        if step in events:
            ids.event()
    append(log, range(len(sizes)))
    ids.keep_recent()
    log.close()
    (run,) = tbnum.read(folder).values()
    found: dict[int, Any] = {step: run.batch(step) for step in range(len(sizes))}
    assert all(np.array_equal(got, ids_of(step, sizes[step])) for step, got in found.items() if got is not None)
    return [step for step, got in found.items() if got is not None]


def test_all_of_small_steps(tmp_path: Path) -> None:
    assert kept(tmp_path, [IDS_A_STEP] * 600) == list(range(600))


def test_of_large_steps_those_around_events_and_the_last(tmp_path: Path) -> None:
    steps = kept(tmp_path, [IDS_A_STEP + 1] * 300, [100])
    around = range(101 - STEPS_AROUND, 101 + STEPS_AFTER)
    assert steps == [*around, *range(300 - STEPS_AROUND, 300)]


def test_all_of_all_steps_where_that_is_asked_for(tmp_path: Path) -> None:
    assert kept(tmp_path, [1000] * 80, keep_all=True) == list(range(80))


def test_of_small_and_large_steps_in_turns_each_by_its_size(tmp_path: Path) -> None:
    sizes = [8 if step % 2 else 500 for step in range(200)]
    assert kept(tmp_path, sizes) == sorted({*range(1, 200, 2), *range(199 - STEPS_AROUND, 200)})


def test_the_hash_is_that_of_the_ids_and_0_where_they_are_unknown(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    ids = KeptIds(log, keep_all=False)
    first, second = ids.step(0, ids_of(1, 4)), ids.step(1, ids_of(2, 4))
    assert first == ids.step(2, ids_of(1, 4)) and first != second and ids.step(3, None) == 0
    log.close()


def test_what_is_superseded_before_it_was_written_is_left_out(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    ids = KeptIds(log, keep_all=False)
    for step in range(10):
        ids.step(step, ids_of(step, 100))
    ids.went_back()
    ids.step(5, ids_of(50, 100))
    append(log, range(6))
    ids.keep_recent()
    log.close()
    (run,) = tbnum.read(tmp_path).values()
    assert [run.batch(step) is not None for step in range(6)] == [False] * 5 + [True]
    assert run.batch(5).tolist() == ids_of(50, 100).tolist()


@pytest.mark.parametrize("size", [0, 1])
def test_a_step_of_no_sample_or_one_is_kept(size: int, tmp_path: Path) -> None:
    assert kept(tmp_path, [size] * 3) == [0, 1, 2]
