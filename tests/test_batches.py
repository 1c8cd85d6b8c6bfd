"""Sample ids come back from their records as they were, in the fewest bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tbnum
from tbnum.log.batches import batch_hash, decode_batches, encode_batches, steps_of_batches
from tests.recorded import append, open_log


def batch(step: int, *ids: int) -> tuple[int, np.ndarray]:
    return step, np.array(ids, np.int64)


@pytest.mark.parametrize(
    ("largest", "bytes_an_id"),
    [(127, 1), (-128, 1), (128, 2), (32_767, 2), (32_768, 4), (2**31 - 1, 4), (2**31, 8), (-(2**63), 8)],
)
def test_ids_take_the_fewest_bytes_that_hold_them_all(largest: int, bytes_an_id: int) -> None:
    batches = [batch(3, 0, 1), batch(4), batch(9, largest, 2, 2)]
    payload = encode_batches(batches)
    assert len(payload) == 5 + 3 * 12 + 5 * bytes_an_id
    assert [(step, ids.tolist()) for step, ids in decode_batches(payload)] == [
        (step, ids.tolist()) for step, ids in batches
    ]
    assert steps_of_batches(payload).tolist() == [3, 4, 9]


def test_a_record_of_no_batch_is_one() -> None:
    assert decode_batches(encode_batches([])) == []


@pytest.mark.parametrize("cut", [0, 4, 20, 30, -1])
def test_a_payload_that_is_cut_short_is_a_value_error(cut: int) -> None:
    payload = encode_batches([batch(1, 2, 3), batch(2, 4, 5)])
    with pytest.raises(ValueError):
        decode_batches(payload[:cut])


def test_hashes_tell_order_and_length() -> None:
    lists = [[], [0], [0, 0], [1, 2, 3], [3, 2, 1], [1, 2], [2, 1], [-1], [2**62], [1, 2, 3, 0]]
    hashes = {batch_hash(np.array(ids, np.int64)) for ids in lists}
    assert len(hashes) == len(lists) and 0 not in hashes and max(hashes) < 2**64
    assert batch_hash(np.array([1, 2])) == batch_hash(np.array([1, 2]))


def test_a_run_gives_the_ids_of_a_step_and_none_where_they_are_unknown(tmp_path: Path) -> None:
    with_ids = open_log(tmp_path / "run")
    append(with_ids, range(6))
    with_ids.write_batches([batch(0, 5, 6), batch(2, 700, 8)])
    with_ids.write_batches([batch(5, 9)])
    with_ids.close()
    (run,) = tbnum.read(tmp_path).values()
    found = [run.batch(step) for step in range(7)]
    assert [None if ids is None else ids.tolist() for ids in found] == [[5, 6], None, [700, 8], None, None, [9], None]


def test_what_a_later_session_took_again_is_superseded(tmp_path: Path) -> None:
    first = open_log(tmp_path / "run")
    append(first, range(10))
    first.write_batches([batch(step, step) for step in range(10)])
    first.close()
    second = open_log(tmp_path / "run", first_step=6)
    append(second, range(6, 8))
    second.write_batches([batch(6, 60)])
    second.close()
    (run,) = tbnum.read(tmp_path).values()
    found = [run.batch(step) for step in range(10)]
    assert [None if ids is None else ids.tolist() for ids in found] == [
        *([step] for step in range(6)), [60], None, None, None,
    ]  # fmt: skip


def test_a_live_run_gives_them_once_they_are_written(tmp_path: Path) -> None:
    log = open_log(tmp_path / "run")
    append(log, range(3))
    (run,) = tbnum.read(tmp_path).values()
    assert run.batch(2) is None
    log.write_batches([batch(2, 1, 2)])
    assert log.flush(600)
    run.refresh()
    assert run.batch(2).tolist() == [1, 2]
    log.close()


def test_a_damaged_record_costs_its_own_ids_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "run")
    append(log, range(3))
    log.write_batches([batch(0, 11, 12)])
    assert log.flush(600)
    size = log.path.stat().st_size
    log.write_batches([batch(1, 21, 22)])
    log.close()
    with log.path.open("r+b") as file:
        file.seek(size - 20)
        file.write(b"\xff" * 4)
    (run,) = tbnum.read(tmp_path).values()
    assert run.batch(0) is None and run.batch(1).tolist() == [21, 22]
    assert run.problems and len(run.steps["step"]) == 3
