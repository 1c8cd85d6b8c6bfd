"""The writer: what it puts on disk, what it costs the training thread, and that no fault reaches that thread."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tbnum.log import session_writer
from tbnum.log import writer as writer_module
from tbnum.log.reader import Run
from tbnum.log.record_file import RecordTail, decode
from tbnum.log.schema import (
    FORMAT_VERSION,
    MAX_EVENT_BYTES,
    REPEAT_EVERY_BYTES,
    TAG_DROPPED,
    TAG_EVENT,
    TAG_SCHEMA,
    TAG_SESSION,
    TAG_STEPS,
    Event,
    Trailer,
    step_columns,
)
from tbnum.log.writer import LogWriter

COLUMNS = step_columns({"optimizer": 1})
NEVER = 1e6  # seconds: nothing is written because of the time

RANDOM_KILLS = 200 if os.environ.get("TBNUM_FUZZ") else 5


def row(step: int) -> tuple[Any, ...]:
    values = {"step": step, "wall_time": 1e9 + step, "loss": step / 7, "skipped": step % 5 == 4, "loss_scale": 1024.0}
    return tuple(values.get(name, step + at / 16) for at, name in enumerate(COLUMNS))


def skip(step: int, **data: Any) -> Event:
    return Event(step, 1e9 + step, "skip", data={"loss_scale": 1024.0, **data})


def records(path: Path, *tags: str) -> list[Any]:
    """Payloads of the records with one of `tags`: parsed JSON, or a chunk's bytes."""
    found = [decode(each.data) for each in RecordTail(path).read()]
    return [
        each.payload if each.tag == TAG_STEPS else json.loads(each.payload)
        for each in found
        if each is not None and each.tag in tags
    ]


@contextlib.contextmanager
def open_log(folder: Path, **options: Any) -> Iterator[LogWriter]:
    log = LogWriter(folder, **{"columns": COLUMNS, "meta": {"first_step": 0}, "flush_seconds": NEVER, **options})
    try:
        yield log
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            log.close()


def run_script(script: str, folder: Path, **options: Any) -> subprocess.Popen[str]:
    begin = """
        import os, sys, time
        from pathlib import Path
        from tbnum.log.schema import Event, step_columns
        from tbnum.log.writer import LogWriter
        COLUMNS = step_columns({"optimizer": 1})
        def row(step):
            return tuple(step if name == "step" else step / 7 for name in COLUMNS)
        folder = sys.argv[1]
    """
    code = textwrap.dedent(begin) + textwrap.dedent(script)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err
    return out


# -- the file


def test_the_file_is_there_at_once_and_named_by_time_host_and_process(tmp_path: Path) -> None:
    with open_log(tmp_path / "deep" / "run") as log:
        assert re.fullmatch(rf"\d{{13}}\.[A-Za-z0-9_-]+\.{os.getpid()}\.tbnum", log.path.name)
        (session,) = records(log.path, TAG_SESSION)
        assert session["first_step"] == 0 and session["format_version"] == FORMAT_VERSION and session["session"]
        assert "ended" not in session


def test_a_rank_is_in_the_name(tmp_path: Path) -> None:
    with open_log(tmp_path, rank=3) as log:
        assert log.path.name.endswith(f".{os.getpid()}.rank3.tbnum")


@pytest.mark.parametrize("host", ["tfevents", "a.TFevents.b", "grüße 1/2", "", "x" * 300])
def test_no_host_makes_a_file_that_tensorboard_takes_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    with open_log(tmp_path) as log:
        assert "tfevents" not in log.path.name.lower()
        assert re.fullmatch(r"\d+\.[A-Za-z0-9_-]{1,80}\.\d+\.tbnum", log.path.name)


def test_a_folder_that_cannot_be_made_is_an_os_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=re.escape(str(folder))):
            LogWriter(folder, columns=COLUMNS, meta={})


def test_a_full_disk_at_the_start_is_an_os_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module.os, "write", lambda descriptor, data: 10)
    with pytest.raises(OSError, match="No space"):
        LogWriter(tmp_path, columns=COLUMNS, meta={})
    assert list(tmp_path.iterdir()) == []


def test_a_clock_set_back_still_sorts_a_later_session_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(tmp_path) as first:
        monkeypatch.setattr(writer_module.time, "time_ns", lambda: 10**18)
        with open_log(tmp_path) as second:
            assert int(second.path.name.split(".")[0]) > int(first.path.name.split(".")[0])


def test_a_change_of_the_working_directory_does_not_move_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_log(Path("run")) as log:
        assert log.path.parent == tmp_path / "run"


# -- steps


def test_steps_come_out_as_they_went_in(tmp_path: Path) -> None:
    with open_log(tmp_path, chunk_steps=7) as log:
        for step in range(100):
            log.append_step(row(step))
    chunks = records(log.path, TAG_STEPS)
    stored = np.dtype([(name, kind) for name, kind in zip(*columns_of(log.path), strict=True)])
    rows = np.frombuffer(b"".join(chunks), stored)
    for at, name in enumerate(COLUMNS):
        assert rows[name].tolist() == [np.dtype(stored[name]).type(row(step)[at]) for step in range(100)]


def columns_of(path: Path) -> tuple[list[str], list[str]]:
    schema = records(path, TAG_SCHEMA)[0]
    return schema["columns"], schema["stored"]


def test_a_full_chunk_is_written_before_its_time(tmp_path: Path) -> None:
    with open_log(tmp_path, chunk_steps=10) as log:
        run = Run(tmp_path)
        for step in range(11):
            log.append_step(row(step))
        assert poll(lambda: run.refresh() and len(run.steps["step"]) >= 10)


def test_steps_are_written_when_the_time_is_up(tmp_path: Path) -> None:
    with open_log(tmp_path, flush_seconds=0.05) as log:
        log.append_step(row(0))
        run = Run(tmp_path)
        assert poll(lambda: run.refresh() and len(run.steps["step"]) == 1)


def poll(holds: Callable[[], object], seconds: float = 300.0) -> bool:
    """Whether `holds` came true: for what a thread does by itself, without a word to anybody."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.005)
    return True


def test_values_that_do_not_fit_their_column_are_kept_as_far_as_they_go(tmp_path: Path) -> None:
    at = {name: COLUMNS.index(name) for name in ("loss", "micro_batches", "skipped")}

    def changed(step: int, name: str, value: Any) -> tuple[Any, ...]:
        values = list(row(step))
        values[at[name]] = value
        return tuple(values)

    with open_log(tmp_path) as log:
        log.append_step(changed(0, "loss", None))
        log.append_step(changed(1, "micro_batches", -1e300))
        log.append_step(changed(2, "loss", np.float32(0.5)))
        log.append_step(changed(3, "skipped", None))
        log.append_step(changed(4, "loss", "much"))
        log.append_step(row(5)[:-1])
        log.append_step(row(6))
        with pytest.warns(RuntimeWarning, match="step without"):
            log.flush()
            log.append_step(row(7))
    steps = Run(tmp_path).steps
    assert steps["step"].tolist() == [0, 1, 2, 3, 6, 7]
    assert math.isnan(steps["loss"][0]) and steps["loss"][2] == 0.5
    assert steps["micro_batches"][1] == -math.inf
    assert log.dropped == {"step without the columns' values": 2}


def test_columns_may_change_between_steps(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_step(row(0))
        log.set_columns((*COLUMNS, "lr/1"))
        assert log.columns == (*COLUMNS, "lr/1")
        log.append_step((*row(1), 0.25))
    steps = Run(tmp_path).steps
    assert steps["loss"].tolist() == [0.0, 1 / 7]
    assert math.isnan(steps["lr/1"][0]) and steps["lr/1"][1] == 0.25


def test_each_chunk_carries_the_running_totals(tmp_path: Path) -> None:
    with open_log(tmp_path, chunk_steps=10) as log:
        for step in range(30):
            log.append_step(row(step))
    found = [decode(each.data) for each in RecordTail(log.path).read()]
    totals = [Trailer.unpack(each.trailer) for each in found if each is not None and each.tag == TAG_STEPS]
    assert [(each.rows, each.steps, each.last_step, each.skipped_steps) for each in totals] == [
        (10, 10, 9, 2),
        (10, 20, 19, 4),
        (10, 30, 29, 6),
    ]
    assert {each.best_loss for each in totals} == {0.0}
    assert {each.last_loss_scale for each in totals} == {1024.0}
    assert {each.first_wall_time for each in totals} == {1e9}


def test_a_step_takes_at_most_200_bytes(tmp_path: Path) -> None:
    with open_log(tmp_path, chunk_steps=20) as log:
        for step in range(20_000):
            log.append_step(row(step))
            if step % 1000 == 999:
                log.flush()
    assert log.path.stat().st_size / 20_000 < 130


def test_session_and_schema_are_repeated_every_megabyte(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for step in range(50_000):
            log.append_step(row(step))
            if step % 1000 == 999:
                log.flush()
    megabytes = log.path.stat().st_size // REPEAT_EVERY_BYTES
    assert megabytes >= 4
    assert megabytes <= len(records(log.path, TAG_SESSION)) <= megabytes + 2
    assert len(records(log.path, TAG_SCHEMA)) == len(records(log.path, TAG_SESSION))


def test_a_long_session_record_is_repeated_less_often(tmp_path: Path) -> None:
    names = [f"layer{number}.weight" for number in range(10_000)]
    with open_log(tmp_path, meta={"names": names}) as log:
        for step in range(30_000):
            log.append_step(row(step))
            if step % 1000 == 999:
                log.flush()
    assert len(records(log.path, TAG_SESSION)) == 2


# -- events


def test_an_event_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.write_event(skip(3, loss=math.nan, grad_norm=math.inf))
        (event,) = Run(tmp_path).raw_events
        assert (event.step, event.kind, event.wall_time) == (3, "skip", 1e9 + 3)
        assert math.isnan(event.data["loss"]) and event.data["grad_norm"] == math.inf


def test_an_event_is_one_write_of_at_most_4_kilobytes_on_the_calling_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[tuple[int, int]] = []
    write = os.write

    def watched(descriptor: int, data: bytes) -> int:
        writes.append((threading.get_ident(), len(data)))
        return write(descriptor, data)

    with open_log(tmp_path) as log:
        monkeypatch.setattr(writer_module.os, "write", watched)
        log.write_event(skip(1, nonfinite_names=["x" * 200] * 100))
        monkeypatch.undo()
    assert [thread for thread, _ in writes] == [threading.get_ident()]
    assert 0 < writes[0][1] <= MAX_EVENT_BYTES


def test_an_event_sends_the_pending_steps_after_it(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_step(row(0))
        run = Run(tmp_path)
        log.write_event(skip(1))
        assert poll(lambda: run.refresh() and run.steps["step"].tolist() == [0, 1])  # that of the event from its facts


@pytest.mark.parametrize(
    "data",
    [
        {"text": "x" * 100_000},
        {"text": "ü" * 100_000},
        {"names": ["layer.weight"] * 10_000},
        {str(number): number for number in range(10_000)},
        {"deep": {"deeper": ["x" * 5000] * 50}},
        {"k" * 10_000: 1},
    ],
)
def test_long_data_is_shortened_and_stays_json(tmp_path: Path, data: dict[str, Any]) -> None:
    with open_log(tmp_path) as log:
        log.write_event(skip(1, **data))
        (facts,) = records(log.path, TAG_EVENT)
        assert (facts["step"], facts["kind"], facts["data"]["shortened"]) == (1, "skip", True)
        assert log.dropped == {}


def test_data_of_any_type_becomes_json(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    data = {
        "array": np.arange(3),
        "number": np.float32(0.5),
        "path": Path("a"),
        1: {2},
        "tuple": (1, None),
        "e": endless,
    }
    with open_log(tmp_path) as log:
        log.write_event(Event(np.int64(1), np.float64(2.0), "annotation", data=data))  # type: ignore[arg-type]
        (facts,) = records(log.path, TAG_EVENT)
    assert (facts["step"], facts["wall_time"]) == (1, 2.0)
    assert facts["data"]["array"] == [0, 1, 2] and facts["data"]["number"] == 0.5 and facts["data"]["path"] == "a"
    assert facts["data"]["1"] == [2] and facts["data"]["tuple"] == [1, None]


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_data_that_cannot_be_written_costs_the_event_and_is_counted(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.write_event(skip(1, thing=Unprintable()))
        with pytest.warns(RuntimeWarning, match="event not writable"):
            log.write_event(skip(2))
        assert log.dropped == {"event not writable (RuntimeError)": 1}
        assert [event["step"] for event in records(log.path, TAG_EVENT)] == [2]


# -- the session


def test_close_writes_what_is_pending_and_that_the_session_ended(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_step(row(0))
        log.close()
        assert len(Run(tmp_path).steps["step"]) == 1
        last = records(log.path, TAG_SESSION)[-1]
        assert last["ended"] == "closed" and last["closed"] is True and last["end_time"] > 0


def test_a_crash_event_makes_the_end_a_crash(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.write_event(Event(0, 1.0, "crash", data={"error": "KeyboardInterrupt"}))
    assert records(log.path, TAG_SESSION)[-1]["ended"] == "crash"


def test_after_close_every_call_does_nothing(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.close()
        size = log.path.stat().st_size
        log.close()
        log.append_step(row(0))
        log.write_event(skip(0))
        log.set_columns(COLUMNS)
        log.update_meta(seed=1)
        assert log.submit(print) is False
        assert log.flush()
        assert log.path.stat().st_size == size


def test_changes_of_the_session_stand_after_the_steps_before_them(tmp_path: Path) -> None:
    with open_log(tmp_path, meta={"first_step": 0, "seed": 1}) as log:
        log.append_step(row(0))
        log.update_meta(seed=2)
        tags = [each.tag for each in map(decode, (found.data for found in RecordTail(log.path).read())) if each]
        assert tags == [TAG_SESSION, TAG_SCHEMA, TAG_STEPS, TAG_SESSION, TAG_SCHEMA]
        assert [(each["seed"], each["first_step"]) for each in records(log.path, TAG_SESSION)] == [(1, 0), (2, 0)]


def test_a_run_that_goes_back_goes_on_in_a_file_of_its_own(tmp_path: Path) -> None:
    with open_log(tmp_path, meta={"first_step": 0, "seed": 1}) as log:
        before = log.path
        log.update_meta(first_step=3)
        assert log.path == before, "nothing was recorded so far: the session itself begins there"
        for step in range(3, 10):
            log.append_step(row(step))
        log.write_event(skip(9))
        log.update_meta(first_step=5, seed=2)
        after = log.path
        assert before.name < after.name and log.tensors_path.name.startswith(after.name.removesuffix(".tbnum"))
        log.append_step(row(5))
        log.append_steps([row(6), row(7)])
    assert [each["ended"] for path in (before, after) for each in records(path, TAG_SESSION)[-1:]] == [
        "rewound",
        "closed",
    ]
    first, second = records(before, TAG_SESSION)[-1], records(after, TAG_SESSION)[0]
    assert (second["seed"], second["first_step"], second["session"]) == (2, 5, first["session"])
    assert second["start_time"] > first["start_time"]
    run = Run(tmp_path)
    assert run.steps["step"].tolist() == [3, 4, 5, 6, 7] and run.raw_events == [] and run.problems == []
    assert (run.totals.steps, run.totals.sessions, run.totals.ended) == (5, 2, "closed")
    assert Run(tmp_path, session=0).steps["step"].tolist() == list(range(3, 10))


def test_a_run_that_goes_back_where_no_file_can_be_made_goes_on_in_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path) as log, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log.append_steps([row(step) for step in range(6)])
        log.flush()
        with monkeypatch.context() as patch:
            refuse = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            patch.setattr(session_writer, "RecordAppender", lambda *_, **__: (_ for _ in ()).throw(refuse))
            log.update_meta(first_step=2)
            log.append_steps([row(2), row(3)])
            log.flush()
        assert "Too many open files" in str(caught[0].message)
    assert len(list(tmp_path.glob("*.tbnum"))) == 1
    run = Run(tmp_path)
    assert run.steps["step"].tolist() == [0, 1, 2, 3] and run.totals.steps == 4
    assert run.meta["first_step"] == 2


def test_many_steps_at_once_are_bounded_as_single_ones_are(tmp_path: Path) -> None:
    with open_log(tmp_path, chunk_steps=10) as log, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with log._sink._draining:  # nothing is written
            for at in range(0, 200_000, 1000):
                log.append_steps([row(step) for step in range(at, at + 1000)])
            assert len(log._sink.rows) < 60_000
            assert log.dropped["writing too slow"] == 200_000 - len(log._sink.rows)


def test_a_session_too_long_for_a_record_leaves_out_what_is_longest_and_says_so(tmp_path: Path) -> None:
    with open_log(tmp_path, meta={"seed": 1, "names": "x" * (17 << 20)}) as log:
        (session,) = records(log.path, TAG_SESSION)
    assert session["left_out"] == ["names"] and session["seed"] == 1 and "names" not in session


# -- calls on the background thread


def test_calls_run_in_order_on_the_background_thread(tmp_path: Path) -> None:
    ran: list[tuple[int, str]] = []
    with open_log(tmp_path) as log:
        for number in range(300):
            assert log.submit(lambda number=number: ran.append((number, threading.current_thread().name)))
        assert log.flush()
    assert ran == [(number, "tbnum-log") for number in range(300)]


def test_a_call_that_raises_is_counted_and_the_next_ones_run(tmp_path: Path) -> None:
    ran: list[int] = []
    with open_log(tmp_path) as log:
        log.submit(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
        log.submit(lambda: ran.append(1))
        with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
            log.flush()
        assert log.dropped == {"dashboards failed (ZeroDivisionError)": 1}
    assert ran == [1]


def test_a_full_queue_of_calls_refuses_and_counts(tmp_path: Path) -> None:
    gate, entered = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        gate.wait()

    with open_log(tmp_path) as log:
        log.submit(block)
        log.write_event(skip(0))
        assert entered.wait(1200)
        taken = sum(log.submit(lambda: None) for _ in range(10_000))
        assert taken == 4096
        assert log.dropped == {"dashboards too slow": 10_000 - 4096}
        gate.set()


def test_a_call_is_not_kept_alive_after_it_ran(tmp_path: Path) -> None:
    class Owner:
        def call(self) -> None:
            pass

    owner = Owner()
    died = weakref.ref(owner)
    with open_log(tmp_path) as log:
        log.submit(owner.call)
        del owner
        log.flush()
        assert poll(lambda: died() is None)


# -- cost


def test_appending_a_step_takes_well_under_two_microseconds(tmp_path: Path) -> None:
    with open_log(tmp_path, chunk_steps=100_000) as log:
        values = row(0)
        best = math.inf
        for _ in range(40):
            begin = time.perf_counter()
            for _ in range(1000):
                log.append_step(values)
            best = min(best, (time.perf_counter() - begin) / 1000)
        assert best < 1e-6


def test_unwritten_steps_are_bounded_whatever_hangs(tmp_path: Path) -> None:
    gate, entered = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        gate.wait()

    with open_log(tmp_path) as log:
        log.submit(block)
        log.write_event(skip(0))
        assert entered.wait(1200)
        tracemalloc.start()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for step in range(150_000):
                    log.append_step((step, *[step + at / 16 for at in range(1, len(COLUMNS))]))
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()
            gate.set()
        assert log.flush(600)
        assert len(caught) == 1 and "writing too slow" in str(caught[0].message)
        lost = log.dropped["writing too slow"]
    assert lost + len(Run(tmp_path).steps["step"]) == 150_000


# -- faults


class Disk:
    """Stands in for os.write: `free` bytes are left, then it writes what fits, then it fails."""

    def __init__(self, free: int, error: int = errno.ENOSPC) -> None:
        self.free = free
        self.error = error
        self.write = os.write

    def __call__(self, descriptor: int, data: bytes) -> int:
        if self.free >= len(data):
            self.free -= len(data)
            return self.write(descriptor, data)
        if self.free > 0:
            data, self.free = data[: self.free], 0
            return self.write(descriptor, data)
        raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize(
    ("error", "reason"),
    [(errno.ENOSPC, "disk full"), (errno.EROFS, "read-only file system"), (errno.EIO, os.strerror(errno.EIO))],
)
def test_a_failing_disk_is_warned_of_once_and_what_is_lost_is_counted_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, reason: str
) -> None:
    disk = Disk(0, error)
    with open_log(tmp_path) as log, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log.append_step(row(0))
        log.flush()
        monkeypatch.setattr(writer_module.os, "write", disk)
        for step in range(1, 11):
            log.append_step(row(step))
            log.write_event(skip(step))
            log.flush()
        assert log.dropped == {reason: 20}
        disk.free = 1 << 30
        log.append_step(row(11))
        log.flush()
        assert records(log.path, TAG_DROPPED) == [{reason: 20}]
        assert [warning.category for warning in caught] == [RuntimeWarning]
        assert str(log.path) in str(caught[0].message) and reason in str(caught[0].message)
        assert caught[0].filename == __file__
    run = Run(tmp_path)
    assert run.steps["step"].tolist() == [0, 11]
    assert run.meta["dropped"] == {reason: 20}
    assert run.problems == []


@pytest.mark.filterwarnings("ignore:tbnum cannot write:RuntimeWarning")
def test_a_short_write_is_taken_back_to_the_last_whole_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(tmp_path) as log:
        whole = log.path.stat().st_size
        for free in (1, 50, 150):
            monkeypatch.setattr(writer_module.os, "write", Disk(free))
            log.append_step(row(0))
            log.flush()
            assert log.path.stat().st_size == whole
        monkeypatch.undo()
    assert Run(tmp_path).problems == []


def test_warnings_made_errors_do_not_reach_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(tmp_path) as log:
        monkeypatch.setattr(writer_module.os, "write", Disk(0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(3):
                log.append_step(row(step))
                log.write_event(skip(step))
                log.flush()
        assert log.dropped == {"disk full": 6}


@pytest.mark.skipif(sys.platform == "win32", reason="has no file size limit")
def test_a_file_size_limit_loses_records_and_nothing_else(tmp_path: Path) -> None:
    script = """
        import resource, signal
        log = LogWriter(folder, columns=COLUMNS, meta={}, flush_seconds=1e6)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
        for step in range(2000):
            log.append_step(row(step))
            if step % 100 == 99:
                log.flush()
        lost = sum(log.dropped.values())
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        log.append_step(row(2000))
        log.close()
        print(lost)
    """
    lost = int(finished(run_script(script, tmp_path)))
    run = Run(tmp_path)
    assert 0 < lost < 2000 and len(run.steps["step"]) + lost == 2001
    assert run.steps["step"][-1] == 2000
    assert sum(run.meta["dropped"].values()) == lost
    assert run.problems == []


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be deleted")
def test_a_deleted_folder_is_noticed_and_warned_of_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with open_log(folder) as log:
        log.path.unlink()
        folder.rmdir()
        log.append_step(row(0))
        log.flush(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            log.write_event(skip(1))
            for step in (2, 3):
                log.append_step(row(step))
                log.flush()
            assert len(caught) == 1 and "file deleted" in str(caught[0].message)
        assert log.dropped == {"file deleted": 4}
        assert not folder.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be deleted")
def test_a_deleted_file_is_begun_again_where_its_folder_is_there(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for step in range(10):
            log.append_step(row(step))
        log.flush()
        log.path.unlink()
        log.append_step(row(10))
        log.write_event(skip(10))
        with pytest.warns(RuntimeWarning, match="file deleted"):
            log.flush()
    run = Run(tmp_path)
    assert run.steps["step"].tolist() == [10]
    assert (run.totals.steps, run.totals.first_step) == (1, 10)
    assert [event.step for event in run.raw_events] == [10]
    assert run.meta["dropped"] == {"file deleted": 10}
    assert run.problems == []


def test_two_processes_in_one_folder_keep_out_of_each_others_way(tmp_path: Path) -> None:
    script = """
        log = LogWriter(folder, columns=COLUMNS, meta={"first_step": 0})
        for step in range(500):
            log.append_step(row(step))
            log.write_event(Event(step, 1.0, "skip"))
        log.close()
    """
    for process in [run_script(script, tmp_path) for _ in range(2)]:
        finished(process)
    for session in (0, 1):
        run = Run(tmp_path, session=session)
        assert run.steps["step"].tolist() == list(range(500))
        assert len(run.raw_events) == 500 and run.problems == []


# -- processes and their ends


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_nothing_and_does_not_hang(tmp_path: Path) -> None:
    held, release = threading.Event(), threading.Event()

    with open_log(tmp_path) as log:
        log.append_step(row(0))

        def hold() -> None:  # as the background thread does while it writes
            with log._sink._draining, log._sink._writing, log._sink.lost._counting:
                held.set()
                release.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
            child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(20)
                for step in range(5000):
                    log.append_step(row(step))
                log.write_event(skip(1))
                log.update_meta(seed=2)
                log.set_columns(COLUMNS)
                if log.flush() and not log.submit(print) and len(log._sink.rows) == 0:
                    log.close()
                    status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        release.set()
        holder.join()
        assert os.waitstatus_to_exitcode(status) == 0
        log.append_step(row(1))
        log.flush()
        run = Run(tmp_path)
        assert run.steps["step"].tolist() == [0, 1]
        assert run.raw_events == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_that_exits_like_python_leaves_the_log_alone(tmp_path: Path) -> None:
    script = """
        log = LogWriter(folder, columns=COLUMNS, meta={"first_step": 0}, flush_seconds=1e6)
        log.append_step(row(0))
        child = os.fork()
        if child == 0:
            log.append_step(row(1))
            sys.exit()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        log.append_step(row(1))
    """
    finished(run_script(script, tmp_path))
    run = Run(tmp_path)
    assert run.steps["step"].tolist() == [0, 1]
    assert len(run.meta["sessions"]) == 1


@pytest.mark.parametrize(
    "end", ["", "sys.exit(0)", "global_log = log", "import gc; gc.disable(); cycle = [log]; cycle.append(cycle)"]
)
def test_the_end_of_the_interpreter_writes_what_is_pending(tmp_path: Path, end: str) -> None:
    script = f"""
        log = LogWriter(folder, columns=COLUMNS, meta={{"first_step": 0}}, flush_seconds=1e6)
        for step in range(10):
            log.append_step(row(step))
        {end}
    """
    finished(run_script(script, tmp_path))
    run = Run(tmp_path)
    assert run.steps["step"].tolist() == list(range(10))
    assert run.totals.ended == "closed"


def test_the_end_of_the_interpreter_does_not_wait_for_a_call_that_hangs(tmp_path: Path) -> None:
    script = """
        import threading
        from tbnum.log import writer
        log = LogWriter(folder, columns=COLUMNS, meta={}, flush_seconds=1e6)
        entered = threading.Event()
        log.submit(lambda: (entered.set(), threading.Event().wait()))
        log.write_event(Event(0, 1.0, "skip"))
        entered.wait()
        log.close(timeout=0.1)
    """
    begin = time.monotonic()
    finished(run_script(script, tmp_path))
    assert time.monotonic() - begin < 30


def test_deleting_the_writer_writes_what_is_pending_and_ends_the_thread(tmp_path: Path) -> None:
    log = LogWriter(tmp_path, columns=COLUMNS, meta={}, flush_seconds=NEVER)
    thread = log._sink._thread
    assert thread is not None
    log.append_step(row(0))
    gc.disable()
    try:
        del log
    finally:
        gc.enable()
    assert not thread.is_alive()
    run = Run(tmp_path)
    assert run.steps["step"].tolist() == [0]
    assert run.totals.ended == "closed"


def test_the_thread_keeps_a_busy_writer_no_more_alive_than_an_idle_one(tmp_path: Path) -> None:
    log = LogWriter(tmp_path, columns=COLUMNS, meta={}, chunk_steps=1)
    gone = weakref.ref(log)
    for step in range(100):
        log.append_step(row(step))
    del log
    assert gone() is None
    assert len(Run(tmp_path).steps["step"]) == 100


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_a_process_killed_right_after_an_event_leaves_it_in_the_log(tmp_path: Path) -> None:
    script = """
        log = LogWriter(folder, columns=COLUMNS, meta={"first_step": 0}, flush_seconds=1e6)
        log.append_step(row(0))
        log.write_event(Event(0, 1.0, "skip", data={"loss_scale": 65536.0}))
        os.write(1, b"written\\n")
        time.sleep(60)
    """
    process = run_script(script, tmp_path)
    assert process.stdout is not None and process.stdout.readline() == "written\n"
    process.kill()
    process.communicate()
    run = Run(tmp_path)
    assert [(event.step, event.data["loss_scale"]) for event in run.raw_events] == [(0, 65536.0)]
    assert run.totals.ended is None


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_a_process_killed_at_a_random_moment_loses_no_event_and_only_the_last_steps(tmp_path: Path) -> None:
    script = """
        log = LogWriter(folder, columns=COLUMNS, meta={"first_step": 0}, flush_seconds=0.02, chunk_steps=50)
        for step in range(10**9):
            log.append_step(row(step))
            if step % 13 == 0:
                log.write_event(Event(step, 1.0, "skip"))
                os.write(1, b"%d\\n" % step)
    """
    chance = random.Random(0)
    for attempt in range(RANDOM_KILLS):
        folder = tmp_path / str(attempt)
        process = run_script(script, folder)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 400)):
            reported = int(process.stdout.readline())
        process.kill()
        rest = process.communicate()[0].split("\n")[:-1]
        reported = int(rest[-1]) if rest else reported
        run = Run(folder)
        events = [event.step for event in run.raw_events]
        assert events[-1] >= reported and events == list(range(0, events[-1] + 1, 13))
        steps = run.steps["step"]
        written = int(np.isfinite(run.steps["loss"]).sum())  # then come those that events alone have, be it the next
        assert steps[:written].tolist() == list(range(written))
        assert set(steps[written:].tolist()) <= set(events)
        assert np.array_equal(run.steps["loss"][:written], np.arange(written) / 7)
