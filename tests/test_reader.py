"""Reading: equal to what was written, live and closed, across sessions, and past any damage."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tbnum.log import followed, record_file
from tbnum.log.logdir import find_runs, read
from tbnum.log.reader import Run, Totals
from tbnum.log.record_file import RecordTail, decode, encode, frame
from tbnum.log.schema import (
    FORMAT_VERSION,
    TAG_EVENT,
    TAG_SCHEMA,
    TAG_SESSION,
    TAG_STEPS,
    Event,
    Trailer,
    column,
    step_columns,
)
from tbnum.log.writer import LogWriter

COLUMNS = step_columns({"optimizer": 1})

FUZZ = 10_000 if os.environ.get("TBNUM_FUZZ") else 400


def row(step: int, columns: tuple[str, ...] = COLUMNS, salt: int = 0) -> tuple[Any, ...]:
    """Values of all kinds, the same for the same step and salt; what float32 holds is exact in it."""
    chance = random.Random(step * 1000 + salt)
    values: dict[str, Any] = {
        "step": step,
        "wall_time": 1e9 + step + salt / 10,
        "loss": chance.choice([chance.random(), chance.random(), math.nan, math.inf]),
        "loss_scale": 2.0 ** chance.randrange(20),
        "skipped": chance.random() < 0.2,
    }
    exact_in_float32 = chance.choice([math.nan, float(chance.randrange(100))])
    return tuple(values.get(name, exact_in_float32 if at % 2 else chance.gauss(0, 1e-3)) for at, name in named(columns))


def named(columns: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    narrow = 0
    for name in columns:
        narrow = 1 if column(name).stored == "<f4" else 0
        yield narrow, name


def write(
    folder: Path,
    steps: range,
    *,
    salt: int = 0,
    events: tuple[int, ...] = (),
    close: bool = True,
    columns: tuple[str, ...] = COLUMNS,
    **options: Any,
) -> LogWriter:
    meta = {"first_step": steps.start, "salt": salt, **options.pop("meta", {})}
    log = LogWriter(folder, columns=columns, meta=meta, flush_seconds=1e6, **options)
    for step in steps:
        if step in events:
            log.write_event(event(step, salt))
        log.append_step(row(step, columns, salt))
    assert log.flush()
    if close:
        log.close()
    return log


def event(step: int, salt: int = 0, kind: str = "skip") -> Event:
    return Event(step, 1e9 + step, kind, data={"salt": salt})


def assert_steps(run: Run, expected: list[tuple[int, int]], columns: tuple[str, ...] = COLUMNS) -> None:
    """The run's steps are exactly `expected`, pairs of step and salt, in every column and bit."""
    steps = run.steps
    rows = [row(step, columns, salt) for step, salt in expected]
    for at, name in enumerate(columns):
        assert len(steps[name]) == len(expected)
        wanted = np.array([values[at] for values in rows], column(name).presented)
        np.testing.assert_array_equal(steps[name], wanted, name)
        assert steps[name].dtype == np.dtype(column(name).presented)


def totals_of(run: Run) -> Totals:
    """The totals as the steps give them."""
    steps = run.steps
    losses = steps["loss"][np.isfinite(steps["loss"])]
    return Totals(
        steps=len(steps["step"]),
        skipped_steps=int(steps["skipped"].sum()),
        first_step=int(steps["step"][0]),
        last_step=int(steps["step"][-1]),
        last_loss_scale=float(steps["loss_scale"][-1]),
        best_loss=float(losses.min()) if len(losses) else math.nan,
        first_wall_time=float(steps["wall_time"][0]),
        last_wall_time=float(steps["wall_time"][-1]),
        sessions=len(run.meta["sessions"]),
        ended=run.meta.get("ended"),
    )


# -- one session


@pytest.mark.parametrize("chunk_steps", [1, 3, 10, 1000])
def test_steps_and_events_are_read_as_they_were_written(tmp_path: Path, chunk_steps: int) -> None:
    write(tmp_path, range(500), events=(3, 77, 499), chunk_steps=chunk_steps)
    run = read(tmp_path)["."]
    assert_steps(run, [(step, 0) for step in range(500)])
    assert run.raw_events == [event(3), event(77), event(499)]
    assert run.events == run.raw_events
    assert run.problems == []
    assert str(run.totals) == str(totals_of(run))
    assert run.meta["salt"] == 0 and run.meta["ended"] == "closed" and run.meta["dropped"] == {}


def test_a_run_is_followed_while_it_is_written(tmp_path: Path) -> None:
    chance = random.Random(1)
    log = write(tmp_path, range(0), close=False, chunk_steps=50)
    run = read(tmp_path)["."]
    assert_steps(run, [])
    done, events, version = 0, [], run.version
    while done < 3000:
        for _ in range(chance.randrange(1, 200)):
            log.append_step(row(done))
            if chance.random() < 0.02:
                log.write_event(event(done))
                events.append(event(done))
            done += 1
        assert log.flush()
        assert run.refresh() is True
        assert_steps(run, [(step, 0) for step in range(done)])
        assert run.raw_events == events
        assert run.problems == []
        assert run.version > version
        version = run.version
        assert run.refresh() is False
    log.close()
    assert run.refresh() is True
    assert run.meta["ended"] == "closed"
    assert str(run.totals) == str(totals_of(run))


def test_arrays_given_out_stay_as_they_are_and_cannot_be_written(tmp_path: Path) -> None:
    log = write(tmp_path, range(10), close=False)
    run = Run(tmp_path)
    before = run.steps
    copies = {name: values.copy() for name, values in before.items()}
    for step in range(10, 5000):
        log.append_step(row(step))
    log.update_meta(first_step=5)
    log.append_step(row(5, salt=1))
    log.close()
    run.refresh()
    assert len(run.steps["step"]) == 6
    for name, values in before.items():
        np.testing.assert_array_equal(values, copies[name])
    with pytest.raises(ValueError, match="read-only"):
        run.steps["loss"][0] = 1.0


def test_polling_a_long_run_decodes_what_is_new_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write(tmp_path, range(1), close=False, chunk_steps=10)
    values = row(1)[1:]
    for step in range(1, 50_000):
        log.append_step((step, *values))
        if step % 5000 == 0:
            log.flush()
    log.flush()
    run = Run(tmp_path)
    run.refresh()
    decoded: list[bytes] = []
    monkeypatch.setattr(followed, "decode", lambda data: (decoded.append(data), decode(data))[1])
    for step in range(50_000, 50_020):
        log.append_step((step, *values))
        log.flush()
        decoded.clear()
        assert run.refresh()
        assert 1 <= len(decoded) <= 3  # the chunk, and now and then a repeated session and schema
    log.close()
    assert len(run.steps["step"]) == 50_020


def test_a_run_or_a_column_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"run{number}", range(5))
    runs = read(tmp_path)
    with pytest.raises(KeyError, match=r"no run 'nope'; there is 'run0', 'run1', 'run2'"):
        runs["nope"]
    steps = runs["run0"].steps
    with pytest.raises(KeyError, match=r"no column 'los'; there is 'step', 'wall_time', 'loss', "):
        steps["los"]
    assert isinstance(steps, dict) and steps.get("los") is None and "los" not in steps and "los" not in dict(steps)
    assert runs == dict(runs) and (pickle.loads(pickle.dumps(steps))["step"] == steps["step"]).all()


def test_a_column_that_came_later_is_unknown_before(tmp_path: Path) -> None:
    more = (*COLUMNS, "lr/1", "extra/skipped", "extra/nonfinite_tensors")
    log = write(tmp_path, range(5), close=False)
    log.set_columns(more)
    log.append_step(row(5, more))
    log.set_columns(COLUMNS)
    log.append_step(row(6))
    log.close()
    steps = Run(tmp_path).steps
    assert np.isnan(steps["lr/1"]).tolist() == [True] * 5 + [False, True]
    assert steps["extra/skipped"].tolist() == [False] * 5 + [row(5, more)[-2] != 0] + [False]
    assert {len(values) for values in steps.values()} == {7}
    assert steps["extra/nonfinite_tensors"].dtype == np.float64


def test_a_run_without_steps_has_its_columns_empty(tmp_path: Path) -> None:
    write(tmp_path, range(0))
    run = Run(tmp_path)
    assert set(run.steps) == set(COLUMNS)
    assert all(len(values) == 0 for values in run.steps.values())
    assert str(run.totals) == str(Totals(sessions=1, ended="closed"))  # unknowns are NaN, which equals nothing


# -- sessions


def test_a_later_session_supersedes_steps_and_events_from_its_first_on(tmp_path: Path) -> None:
    write(tmp_path, range(100), events=(10, 60, 99))
    write(tmp_path, range(50, 80), salt=1, events=(60, 70))
    run = read(tmp_path)["."]
    assert_steps(run, [(step, 0) for step in range(50)] + [(step, 1) for step in range(50, 80)])
    assert run.raw_events == [event(10), event(60, 1), event(70, 1)]
    assert [session["salt"] for session in run.meta["sessions"]] == [0, 1]
    assert run.meta["salt"] == 1
    assert str(run.totals) == str(totals_of(run))


def test_a_session_can_be_read_by_its_number(tmp_path: Path) -> None:
    write(tmp_path, range(100), events=(60,))
    write(tmp_path, range(50, 80), salt=1)
    first = read(tmp_path, session=0)["."]
    assert_steps(first, [(step, 0) for step in range(100)])
    assert first.raw_events == [event(60)] and first.meta["salt"] == 0
    assert (first.totals.steps, first.totals.sessions) == (100, 1)
    assert_steps(read(tmp_path, session=-1)["."], [(step, 1) for step in range(50, 80)])
    with pytest.raises(ValueError, match="no run has a session 2"):
        read(tmp_path, session=2)


def test_a_session_that_took_no_step_supersedes_nothing(tmp_path: Path) -> None:
    write(tmp_path, range(100), events=(60,))
    log = write(tmp_path, range(0), salt=1, close=False)
    log.update_meta(first_step=50)
    log.write_event(event(50, 1, kind="resume"))
    run = read(tmp_path)["."]
    assert_steps(run, [(step, 0) for step in range(100)])
    assert [each.kind for each in run.raw_events] == ["resume", "skip"]
    assert run.totals.steps == 100
    log.append_step(row(50, salt=1))
    log.flush()
    assert run.refresh()
    assert_steps(run, [(step, 0) for step in range(50)] + [(50, 1)])
    assert [each.kind for each in run.raw_events] == ["resume"]
    assert run.totals.steps == 51
    log.close()


def test_an_event_whose_step_never_reached_the_disk_stays_and_supersedes(tmp_path: Path) -> None:
    write(tmp_path, range(10))
    log = write(tmp_path, range(5, 5), salt=1, close=False)
    log.write_event(event(5, 1, kind="clip_before_unscale"))
    run = Run(tmp_path)
    assert_steps(run, [(step, 0) for step in range(5)])
    assert run.raw_events == [event(5, 1, kind="clip_before_unscale")]
    assert run.totals.steps == 5
    log.close()


def test_a_skip_whose_row_never_reached_the_disk_is_a_step_as_far_as_its_event_says(tmp_path: Path) -> None:
    log = write(tmp_path, range(3), close=False)
    run = Run(tmp_path)
    assert len(run.steps["step"]) == 3
    facts = {"loss": math.nan, "loss_scale": 256.0, "grad_norm": math.inf, "nonfinite_tensors": 2, "micro_batches": 4}
    log.write_event(Event(7, 50.0, "skip", data=facts))
    log.write_event(Event(9, 60.0, "norm_overflow", data={"loss": -5.0, "grad_norm": "no number"}))
    assert run.refresh()
    for each in (run, Run(tmp_path)):
        steps = each.steps
        assert steps["step"].tolist() == [0, 1, 2, 7, 9]
        assert steps["skipped"].tolist()[3:] == [True, False]
        assert steps["wall_time"].tolist()[3:] == [50.0, 60.0]
        reported = {"loss": [math.nan, -5.0], "loss_scale": [256.0, math.nan], "grad_norm": [math.inf, math.nan]}
        reported |= {"nonfinite_tensors": [2, math.nan], "micro_batches": [4, math.nan], "lr": [math.nan] * 2}
        for name, values in reported.items():
            np.testing.assert_array_equal(steps[name][3:], values, name)
        assert (each.totals.steps, each.totals.last_step) == (5, 9)
        assert each.totals.skipped_steps == steps["skipped"].sum()
        assert each.totals.best_loss == -5.0 and each.totals.last_loss_scale == 256.0
    before = run.steps
    for step in range(3, 10):
        log.append_step(row(step))
    log.flush()
    assert run.refresh()
    assert_steps(run, [(step, 0) for step in range(10)])  # the rows count, once they are there
    assert str(run.totals) == str(totals_of(run))
    assert before["step"].tolist() == [0, 1, 2, 7, 9]
    log.close()


def test_a_skip_of_one_of_several_optimizers_is_its_own(tmp_path: Path) -> None:
    columns = step_columns({"a": 1, "b": 1})
    log = LogWriter(tmp_path, columns=columns, meta={}, flush_seconds=1e6)
    log.write_event(Event(0, 1.0, "skip", optimizer="b", data={"grad_norm": math.inf}))
    log.write_event(Event(0, 2.0, "nonfinite_step", optimizer="a", data={"grad_norm": math.nan}))
    steps = Run(tmp_path).steps
    assert [steps[name].tolist() for name in ("step", "skipped", "a/skipped", "b/skipped")] == [
        [0],
        [True],
        [False],
        [True],
    ]
    assert steps["b/grad_norm"].tolist() == [math.inf] and np.isnan(steps["a/grad_norm"]).all()
    log.close()


def test_a_session_that_goes_back_supersedes_its_own_steps_and_events(tmp_path: Path) -> None:
    log = write(tmp_path, range(100), events=(10, 60, 99), close=False)
    run = Run(tmp_path)
    assert len(run.steps["step"]) == 100
    log.update_meta(first_step=50)
    assert run.refresh()
    assert len(run.steps["step"]) == 100  # gone back, but no step taken yet
    log.write_event(event(50, 1, kind="resume"))
    log.write_event(event(50, 1))
    for step in range(50, 70):
        log.append_step(row(step, salt=1))
    log.flush()
    for each in (run, Run(tmp_path)):
        each.refresh()
        assert_steps(each, [(step, 0) for step in range(50)] + [(step, 1) for step in range(50, 70)])
        assert each.raw_events == [event(10), event(50, 1, kind="resume"), event(50, 1)]
        assert str(each.totals) == str(totals_of(each))
    log.close()


def test_steps_that_go_back_without_a_word_are_still_strictly_increasing(tmp_path: Path) -> None:
    log = write(tmp_path, range(20), close=False)
    for step in (*range(10, 15), *range(5, 8)):
        log.append_step(row(step, salt=1))
    log.close()
    run = Run(tmp_path)
    assert_steps(run, [(step, 0) for step in range(5)] + [(step, 1) for step in range(5, 8)])
    assert str(run.totals) == str(totals_of(run))


def test_sessions_put_together_in_any_manner_agree_with_their_definition(tmp_path: Path) -> None:
    chance = random.Random(7)
    for attempt in range(25):
        folder = tmp_path / str(attempt)
        kept: list[tuple[int, int]] = []
        events: list[Event] = []
        run: Run | None = None
        for salt in range(chance.randrange(1, 5)):
            first = chance.choice([0, chance.randrange(0, 60)])
            steps = range(first, first + chance.randrange(0, 60))
            skips = tuple(sorted(chance.sample(steps, min(3, len(steps)))))
            write(folder, steps, salt=salt, events=skips, chunk_steps=chance.choice([1, 7, 1000]))
            if len(steps):
                kept = [pair for pair in kept if pair[0] < first] + [(step, salt) for step in steps]
                events = [each for each in events if each.step < first] + [event(step, salt) for step in skips]
            run = run or Run(folder)
            run.refresh()
            for each in (run, Run(folder)):
                assert_steps(each, kept)
                assert each.raw_events == events
                if kept:
                    assert str(each.totals) == str(totals_of(each))
                assert each.problems == []


def test_other_ranks_are_listed_and_not_mixed_in(tmp_path: Path) -> None:
    write(tmp_path, range(10), salt=1, rank=1)
    write(tmp_path, range(20), salt=0, rank=0)
    run = Run(tmp_path)
    assert_steps(run, [(step, 0) for step in range(20)])
    assert list(run.meta["ranks"]) == [1]
    assert run.totals.sessions == 1


def test_two_files_that_grow_at_once_are_still_one_run(tmp_path: Path) -> None:
    first = write(tmp_path, range(10), close=False)
    second = write(tmp_path, range(10, 20), salt=1, close=False)
    run = Run(tmp_path)
    assert len(run.steps["step"]) == 20
    first.append_step(row(10))
    second.append_step(row(20, salt=1))
    first.close()
    second.close()
    assert run.refresh()
    assert_steps(run, [(step, 0) for step in range(10)] + [(step, 1) for step in range(10, 21)])


# -- finding runs


def test_runs_are_named_by_their_folder_below_the_logdir(tmp_path: Path) -> None:
    for name in (".", "a", "b/c", "b/c/d"):
        write(tmp_path / name, range(3))
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.tensors.tbnum").write_bytes(b"")
    runs = read(tmp_path)
    assert list(runs) == [".", "a", "b/c", "b/c/d"]
    assert runs["b/c"].folder == tmp_path / "b" / "c" and runs["b/c"].name == "b/c"


def test_read_opens_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", range(3))

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("opened a file")

    monkeypatch.setattr("builtins.open", refuse)
    runs = read(tmp_path)
    monkeypatch.undo()
    assert len(runs["a"].steps["step"]) == 3


def test_a_missing_folder_is_an_error_and_one_without_runs_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path) == {}
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file"):
        read(tmp_path / "file")


def test_links_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "run", range(3))
    logdir = tmp_path / "logs"
    (logdir / "a" / "b").mkdir(parents=True)
    (logdir / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (logdir / "a" / "b" / "up").symlink_to(logdir, target_is_directory=True)
    (logdir / "self").symlink_to(logdir / "self")
    (logdir / "gone").symlink_to(tmp_path / "gone")
    runs, unreadable, *_ = find_runs(logdir)
    assert list(runs) == ["linked/run"]
    assert [path.name for path, _ in unreadable] in ([], ["self"])


def test_a_folder_that_cannot_be_searched_is_left_out_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "good", range(3))
    (tmp_path / "secret").mkdir()
    scandir = os.scandir

    def guarded(folder: Any) -> Any:
        if str(folder).endswith("secret"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr("tbnum.log.logdir.os.scandir", guarded)
    assert find_runs(tmp_path)[1] == [(tmp_path / "secret", "Permission denied")]
    with pytest.warns(RuntimeWarning, match="secret"):
        assert list(read(tmp_path)) == ["good"]


def test_a_run_that_is_deleted_becomes_empty_and_says_why(tmp_path: Path) -> None:
    log = write(tmp_path / "run", range(3))
    run = Run(tmp_path / "run")
    assert len(run.steps["step"]) == 3
    log.path.unlink()
    log.path.parent.rmdir()
    assert run.refresh()
    assert len(run.steps["step"]) == 0
    assert "cannot be searched" in run.problems[0]
    assert run.totals.steps == 0


def test_the_explainer_is_asked_once_for_each_change(tmp_path: Path) -> None:
    asked: list[int] = []

    def explain(run: Run) -> list[Event]:
        asked.append(len(run.steps["step"]))
        return [Event(each.step, each.wall_time, each.kind, cause="known") for each in run.raw_events]

    log = write(tmp_path, range(3), events=(1,), close=False)
    run = read(tmp_path, explain=explain)["."]
    assert [each.cause for each in run.events] == ["known"] and run.events
    log.append_step(row(3))
    log.close()
    run.refresh()
    assert run.events
    assert asked == [3, 4]


# -- what cannot be read


def test_a_newer_format_is_refused_in_words(tmp_path: Path) -> None:
    write(tmp_path, range(3), meta={"format_version": FORMAT_VERSION + 1})
    run = Run(tmp_path)
    assert_steps_empty(run)
    assert len(run.problems) == 1 and "install a newer tbnum" in run.problems[0]


def assert_steps_empty(run: Run) -> None:
    assert all(len(values) == 0 for values in run.steps.values())


@pytest.mark.parametrize(
    ("tag", "payload"),
    [
        (TAG_EVENT, "no json"),
        (TAG_EVENT, "[]"),
        (TAG_EVENT, "{}"),
        (TAG_EVENT, '{"step": NaN, "wall_time": 1, "kind": "skip"}'),
        (TAG_EVENT, '{"step": 1e30, "wall_time": 1, "kind": "skip"}'),
        (TAG_EVENT, '{"step": -1, "wall_time": 1, "kind": "skip"}'),
        (TAG_EVENT, "[" * 100_000),
        (TAG_SESSION, '{"format_version": "x"}'),
        (TAG_SESSION, '{"optimizers": 5}'),
        (TAG_SESSION, '{"optimizers": {"a": 5}}'),
        (TAG_SESSION, '{"scaler": 5}'),
        (TAG_SESSION, '{"parameters": 5}'),
        (TAG_SESSION, '{"layouts": {"a": 5}}'),
        (TAG_SESSION, '{"world_size": 1000000000}'),
        (TAG_SESSION, '{"world_size": "4"}'),
        (TAG_SESSION, '{"start_time": NaN}'),
        (TAG_SCHEMA, '{"columns": ["step", "step"], "stored": ["<i8", "<i8"]}'),
        (TAG_SCHEMA, '{"columns": ["loss"], "stored": ["<f8"]}'),
        (TAG_SCHEMA, '{"columns": ["step"], "stored": ["O"]}'),
        (TAG_SCHEMA, '{"columns": ["step"]}'),
        (TAG_STEPS, b"abc"),
        ("tbnum/dropped", "[1]"),
    ],
)
def test_a_record_with_senseless_content_is_a_problem_and_no_crash(
    tmp_path: Path, tag: str, payload: str | bytes
) -> None:
    log = write(tmp_path, range(3), close=False)
    schema_id = log._sink.packer.schema_id
    with log.path.open("ab") as file:
        trailer = Trailer(schema_id=schema_id).pack()
        file.write(frame(encode(tag, payload, trailer=trailer, step=0, wall_time=0.0)))
    log.append_step(row(3))
    log.close()
    run = Run(tmp_path)
    assert_steps(run, [(step, 0) for step in range(4)])
    assert len(run.problems) == 1 and "is not understood" in run.problems[0]


def test_records_of_unknown_tags_are_passed_over(tmp_path: Path) -> None:
    log = write(tmp_path, range(3), close=False)
    with log.path.open("ab") as file:
        for tag in ("tbnum/later", "loss"):
            file.write(frame(encode(tag, "{}", trailer=b"", step=0, wall_time=0.0)))
    log.close()
    assert Run(tmp_path).problems == []


def test_a_torn_last_record_leaves_everything_before_it(tmp_path: Path) -> None:
    log = write(tmp_path, range(30), chunk_steps=10, close=False)
    whole = log.path.read_bytes()
    log.close()
    log.path.write_bytes(whole[:-1])
    run = Run(tmp_path)
    assert_steps(run, [(step, 0) for step in range(20)])
    assert "is not whole" in run.problems[0]
    assert run.totals.steps == 20
    log.path.write_bytes(whole)
    assert run.refresh()
    assert_steps(run, [(step, 0) for step in range(30)])
    assert run.problems == []


def test_without_the_session_record_the_schema_record_suffices_and_the_other_way_round(tmp_path: Path) -> None:
    for tag in (TAG_SESSION, TAG_SCHEMA):
        folder = tmp_path / tag
        log = write(folder, range(10))
        spoil(log.path, [part for part in parts_of(log.path) if part.tag == tag])
        run = Run(folder)
        assert_steps(run, [(step, 0) for step in range(10)])
        assert len(run.meta["sessions"]) == 1 and run.meta["start_time"] > 0


def test_chunks_that_lost_what_their_columns_are_are_named(tmp_path: Path) -> None:
    log = write(tmp_path, range(10))
    spoil(log.path, [part for part in parts_of(log.path) if part.tag in (TAG_SESSION, TAG_SCHEMA)])
    run = Run(tmp_path)
    assert len(run.steps["step"]) == 0
    assert any("1 chunks" in problem and "columns" in problem for problem in run.problems)


# -- fuzz


class Part(NamedTuple):
    """One record of a file: where it lies, and what it brings."""

    begin: int
    end: int
    tag: str
    steps: tuple[int, ...] = ()
    event: int = -1


def parts_of(path: Path) -> list[Part]:
    parts = []
    size = np.dtype([(name, column(name).stored) for name in COLUMNS])
    for found in RecordTail(path).read():
        end = found.offset + len(found.data) + 16
        record = decode(found.data)
        if record is None:
            parts.append(Part(found.offset, end, "version"))
        elif record.tag == TAG_STEPS:
            steps = np.frombuffer(record.payload, size)["step"].tolist()
            parts.append(Part(found.offset, end, record.tag, steps=tuple(steps)))
        elif record.tag == TAG_EVENT:
            parts.append(Part(found.offset, end, record.tag, event=json.loads(record.payload)["step"]))
        else:
            parts.append(Part(found.offset, end, record.tag))
    return parts


def spoil(path: Path, parts: list[Part]) -> None:
    data = bytearray(path.read_bytes())
    for part in parts:
        data[(part.begin + part.end) // 2] ^= 255
    path.write_bytes(data)


def damaged(chance: random.Random, whole: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """A variant of `whole`, and which of its bytes are no longer there as they were."""
    data = bytearray(whole)
    at = chance.randrange(len(data))
    length = min(chance.choice([1, 2, 16, 300, 5000]), len(data) - at)
    kind = chance.randrange(7)
    if kind == 0:
        return bytes(data[:at]), [(at, len(data))]
    if kind == 1:
        data[at] ^= 1 << chance.randrange(8)
        return bytes(data), [(at, at + 1)]
    if kind == 2:
        data[at : at + length] = bytes(length)
    elif kind == 3:
        data[at : at + length] = chance.randbytes(length)
    elif kind == 4:
        del data[at : at + length]
    elif kind == 5:  # something between the bytes: it hurts the record around it, none where two meet
        data[at:at] = chance.choice([bytes(length), chance.randbytes(length)])
        return bytes(data), [(at - 1, at + 1)] if at else []
    else:
        changes = [chance.randrange(len(data)) for _ in range(4)]
        for each in changes:
            data[each] ^= 1 << chance.randrange(8)
        return bytes(data), [(each, each + 1) for each in changes]
    return bytes(data), [(at, at + length)]


@pytest.mark.parametrize("checks_data", [True, False])
def test_damage_anywhere_loses_the_damaged_records_only_and_never_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checks_data: bool
) -> None:
    whole_folder = tmp_path / "whole"
    skips = set(range(0, 120, 9))
    log = write(whole_folder, range(120), chunk_steps=5, events=tuple(skips))
    whole = log.path.read_bytes()
    parts = parts_of(log.path)
    undamaged = Run(whole_folder).steps
    (tmp_path / "damaged").mkdir()
    path = tmp_path / "damaged" / log.path.name
    monkeypatch.setattr(record_file, "CHECKS_DATA", checks_data)
    for seed in range(FUZZ):
        data, changed = damaged(random.Random(seed), whole)
        path.write_bytes(data)
        run = Run(path.parent)
        steps, events, _, _, _ = run.steps, run.events, run.meta, run.problems, run.totals
        assert len({len(values) for values in steps.values()}) == 1
        assert (np.diff(steps["step"]) > 0).all()
        if not checks_data:
            continue
        # An insertion between two records touches neither.
        hit = {
            part
            for part in parts
            for begin, end in changed
            if (part.begin < end and begin < part.end)
            and not (len(data) > len(whole) and (part.end == begin + 1 or part.begin == begin + 1))
        }
        kept = [part for part in parts if part not in hit]
        if not {part.tag for part in kept} & {TAG_SESSION, TAG_SCHEMA}:
            continue  # the columns are lost; in a longer file they come again each megabyte
        # More than that may be there: zeros written over zeros hurt nothing.
        assert {step for part in kept for step in part.steps} <= set(steps["step"].tolist()) <= set(range(120)), seed
        assert {part.event for part in kept if part.event >= 0} <= {each.step for each in events} <= skips, seed
        by_row = ~np.isnan(steps["lr"])  # the others are known by their event alone
        assert set(steps["step"][~by_row].tolist()) <= {each.step for each in events}, seed
        for name in ("loss", "growth_tracker"):
            np.testing.assert_array_equal(steps[name][by_row], undamaged[name][steps["step"][by_row]])


def test_nothing_but_noise_is_no_crash(tmp_path: Path) -> None:
    chance = random.Random(3)
    for number, size in enumerate((0, 1, 11, 12, 100, 100_000)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "1.host.2.tbnum").write_bytes(chance.randbytes(size))
        run = Run(folder)
        assert run.raw_events == [] and str(run.totals) == str(Totals(sessions=1))
        assert len(run.steps["step"]) == 0


# -- cost


def test_totals_of_five_hundred_runs_load_none_of_them(tmp_path: Path) -> None:
    log = write(tmp_path / "0", range(2000), events=(5,))
    for number in range(1, 500):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / log.path.name).write_bytes(log.path.read_bytes())
    runs = read(tmp_path)
    assert len(runs) == 500 and {run.totals.steps for run in runs.values()} == {2000}
    assert not any(run._loaded for run in runs.values())
