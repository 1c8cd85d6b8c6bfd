from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tbnum.log.reader import Run
from tbnum.log.schema import Event, step_columns
from tbnum.log.session_file import SessionFile
from tbnum.log.writer import LogWriter
from tensorboard_plugin_tbnum import explaining, runs
from tensorboard_plugin_tbnum.runs import Root, RunTable, UnknownRun, roots
from tests.recorded import META, START, append, open_log, record, skip


def table(*folders: Path | Root, **settings) -> RunTable:
    """A table that was scanned once, without a thread."""
    made = RunTable([root if isinstance(root, Root) else Root(str(root)) for root in folders], **settings)
    made.scan()
    return made


def names(of: RunTable) -> list[str]:
    return [row.run for row in of.listing().rows]


def wait_until(holds: Callable[[], object], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


@pytest.fixture
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request looks at the files."""
    monkeypatch.setattr(runs, "FRESH_SECONDS", -1.0)


def test_a_logdir_is_one_root_with_its_home_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert roots("~/runs") == [Root("/home/ada/runs")]
    assert roots("/a:b,c") == [Root("/a:b,c")]  # colons and commas mean nothing in --logdir
    assert roots("runs") == [Root(os.path.abspath("runs"))]
    assert roots("", "") == roots(None, None) == []


def test_a_logdir_spec_names_its_roots_as_tensorboard_does(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert roots("", "a:/x,/y:z,b:~/r:s,gs://bucket/p,c:gs://bucket/p") == [
        Root("/x", "a"),
        Root("/y:z"),
        Root("/home/ada/r:s", "b"),
        Root("gs://bucket/p"),
        Root("gs://bucket/p", "c"),
    ]


def test_runs_are_named_relative_to_the_logdir_and_sorted(tmp_path):
    for name in ("b", "a/deep/er", ".", "a"):
        record(tmp_path / name)
    (tmp_path / "empty").mkdir()
    assert names(table(tmp_path)) == [".", "a", "a/deep/er", "b"]


def test_runs_under_a_named_root_begin_with_its_name(tmp_path):
    record(tmp_path / "x")
    record(tmp_path / "y" / "seed1")
    assert names(table(Root(str(tmp_path / "x"), "one"), Root(str(tmp_path / "y"), "two"))) == ["one/.", "two/seed1"]


def test_the_table_shows_the_totals_of_each_run_without_reading_it(tmp_path, monkeypatch):
    record(tmp_path / "a", range(100), {7: {"skipped": True}, 8: {"loss": -3.0}, 99: {"loss_scale": 1024.0}})
    monkeypatch.setattr(Run, "refresh", None)
    (row,) = table(tmp_path).listing().rows
    assert row.totals.steps == 100 and row.totals.last_step == 99 and row.totals.skipped_steps == 1
    assert row.totals.best_loss == -3.0 and row.totals.last_loss_scale == 1024.0 and row.totals.ended == "closed"


def test_the_table_is_scanning_until_the_first_scan_is_through(tmp_path):
    record(tmp_path / "a")
    of = RunTable([Root(str(tmp_path))])
    assert not of.listing().ready and not of.active and names(of) == []
    of.scan()
    assert of.listing().ready and of.active


def test_a_missing_logdir_is_reported_and_found_when_it_comes(tmp_path):
    of = table(tmp_path / "later")
    listing = of.listing()
    assert listing.ready and not listing.rows and not of.active
    (reason,) = listing.errors.values()
    assert "later" in reason
    record(tmp_path / "later" / "run")
    of.scan()
    assert names(of) == ["run"] and not of.listing().errors


def test_a_url_that_cannot_be_reached_hides_no_other_run_and_says_what_to_install(tmp_path):
    record(tmp_path / "a")
    of = table(Root("nothing-such://bucket/runs"), tmp_path)
    assert names(of) == ["a"]
    assert "fsspec has no file system" in of.listing().errors["nothing-such://bucket/runs"]


def test_a_snapshot_shows_steps_as_they_come_and_stays_as_it_was(tmp_path, always_fresh):
    log = open_log(tmp_path / "a")
    append(log, range(10))
    of = table(tmp_path)
    before = of.snapshot("a")
    assert of.snapshot("a").version == before.version
    append(log, range(10, 25))
    after = of.snapshot("a")
    assert after.version != before.version
    np.testing.assert_array_equal(after.steps["step"], np.arange(25))
    np.testing.assert_array_equal(before.steps["step"], np.arange(10))
    assert {len(values) for values in before.steps.values()} == {10}
    log.close()


def test_a_snapshot_is_as_of_one_moment_when_a_resumed_session_takes_steps_back(tmp_path, always_fresh):
    record(tmp_path / "a", range(100))
    of = table(tmp_path)
    before = of.snapshot("a")
    log = open_log(tmp_path / "a", first_step=50)
    append(log, range(50, 60), {50: {"loss": -1.0}})
    after = of.snapshot("a")
    assert len(after.steps["step"]) == 60 and after.steps["loss"][50] == -1.0
    assert len(before.steps["step"]) == 100 and before.steps["loss"][50] == 50.0
    assert len(after.meta["sessions"]) == 2
    log.close()


def test_a_run_without_a_step_has_empty_steps_and_its_events(tmp_path):
    log = open_log(tmp_path / "a")
    log.write_event(Event(0, START, "annotation", data={"text": "about to begin"}))  # a skip would be a step
    snapshot = table(tmp_path).snapshot("a", events=True)
    assert len(snapshot.steps["step"]) == len(snapshot.steps["wall_time"]) == 0
    assert [event.kind for event in snapshot.events] == ["annotation"]
    log.close()


def test_files_are_not_looked_at_again_within_a_second(tmp_path, monkeypatch):
    record(tmp_path / "a")
    of = table(tmp_path)
    version = of.snapshot("a").version
    monkeypatch.setattr(Run, "refresh", None)
    assert of.snapshot("a").version == version


def test_a_deleted_run_is_gone_at_the_next_question(tmp_path, always_fresh):
    for name in ("a", "b"):
        record(tmp_path / name)
    of = table(tmp_path)
    of.snapshot("a")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(UnknownRun, match="'a'"):
        of.snapshot("a")
    assert names(of) == ["b"]
    shutil.rmtree(tmp_path / "b")
    of.scan()
    assert names(of) == [] and not of.active
    with pytest.raises(UnknownRun):
        of.snapshot("b")


@pytest.mark.parametrize("name", ["../outside", "/etc", "", "..", "a/../a", "a\0", "%61", "A"])
def test_only_names_of_the_table_lead_to_a_run(tmp_path, name):
    record(tmp_path / "logs" / "a")
    record(tmp_path / "outside")
    with pytest.raises(UnknownRun):
        table(tmp_path / "logs").snapshot(name)


def test_broken_files_and_runs_never_hide_the_others(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        record(tmp_path / name)
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "1.host.1.tbnum").write_bytes(os.urandom(5000))
    (tmp_path / "folder.tbnum").mkdir()
    totals = Run.totals

    def failing(run: Run):
        if run.name == "b":
            raise RuntimeError("no totals today")
        return totals.fget(run)

    monkeypatch.setattr(Run, "totals", property(failing))
    of = table(tmp_path)
    assert names(of) == ["a", "b", "c", "garbage"]
    assert of.listing().errors == {"b": "could not be read (RuntimeError: no totals today)"}
    assert len(of.snapshot("a").steps["step"]) == 10
    assert of.snapshot("garbage").problems


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_reported(tmp_path):
    record(tmp_path / "a")
    shut = record(tmp_path / "shut")
    shut.chmod(0)
    try:
        of = table(tmp_path)
        assert names(of) == ["a"] and "shut" in of.listing().errors
    finally:
        shut.chmod(0o700)


def test_links_are_followed_and_loops_end(tmp_path):
    record(tmp_path / "elsewhere" / "run")
    logs = tmp_path / "logs"
    record(logs / "a")
    (logs / "link").symlink_to(tmp_path / "elsewhere")
    (logs / "a" / "up").symlink_to(logs)
    (logs / "nowhere").symlink_to(tmp_path / "missing")
    assert names(table(logs)) == ["a", "link/run"]


def test_two_folders_of_one_name_are_reported_and_the_first_stays(tmp_path):
    for folder in ("x", "y"):
        record(tmp_path / folder / "run")
    of = table(tmp_path / "x", tmp_path / "y")
    assert names(of) == ["run"]
    assert str(tmp_path / "y" / "run") in of.listing().errors["run"]


@pytest.mark.skipif(os.name == "nt", reason="names are Unicode there")
def test_a_name_that_is_no_unicode_can_still_be_asked_for(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system has only Unicode names")
    record(Path(folder))
    of = table(tmp_path)
    assert names(of) == ["caf\ufffd"]
    assert len(of.snapshot("caf\ufffd").steps["step"]) == 10


def test_runs_beyond_the_budget_are_let_go_least_recently_asked_for_first(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        record(tmp_path / name, range(1000))
    size = sum(values.nbytes for values in Run(tmp_path / "a").steps.values())
    of = table(tmp_path, budget_bytes=int(2.5 * size))
    versions = {name: of.snapshot(name).version for name in ("a", "b", "a", "c")}
    monkeypatch.setattr(runs, "FRESH_SECONDS", 1000.0)
    assert of.snapshot("a").version == versions["a"]
    assert of.snapshot("c").version == versions["c"]
    assert of.snapshot("b").version != versions["b"]  # it had to be read again
    assert sum(entry.opened is not None for entry in of._entries.values()) == 2


def test_what_other_ranks_take_counts_against_the_budget(tmp_path):
    for rank in range(3):
        log = LogWriter(tmp_path, columns=step_columns({"optimizer": 1}), meta=META, rank=rank)
        append(log, range(1000))
        log.close()
    of = table(tmp_path)
    of.scan()
    of.snapshot(".")
    alone = of._entries["."].bytes
    of.snapshot(".", ranks=True)
    assert of._entries["."].bytes >= alone + 2 * 1000 * 8 * 4


def test_a_run_larger_than_the_budget_is_kept_while_it_is_the_one_asked_for(tmp_path):
    record(tmp_path / "a", range(1000))
    of = table(tmp_path, budget_bytes=1)
    assert of.snapshot("a").version == of.snapshot("a").version


def test_a_run_that_takes_long_holds_up_no_other(tmp_path):
    for name in ("slow", "quick"):
        record(tmp_path / name, events=[skip(3)])
    begun, go_on = threading.Event(), threading.Event()

    def explain(run: Run):
        if run.name == "slow":
            begun.set()
            assert go_on.wait(1200)
        return run.raw_events

    of = table(tmp_path, explain=explain)
    slow = threading.Thread(target=of.snapshot, args=("slow",), kwargs={"events": True})
    slow.start()
    assert begun.wait(1200)
    assert len(of.snapshot("quick", events=True).events) == 1
    of.scan()
    assert names(of) == ["quick", "slow"]
    go_on.set()
    slow.join(1200)
    assert not slow.is_alive()


def test_an_explainer_that_fails_leaves_the_facts(tmp_path):
    def explain(run: Run):
        raise RuntimeError("a rule went wrong")

    record(tmp_path / "a", events=[skip(3)])
    snapshot = table(tmp_path, explain=explain).snapshot("a", events=True)
    assert [event.kind for event in snapshot.events] == ["skip"]
    assert "a rule went wrong" in snapshot.problems[-1]


def test_who_asks_for_steps_does_not_wait_for_the_events_of_the_same_run(tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def explain(run):
        begun.set()
        assert go_on.wait(1200)
        return run.raw_events

    record(tmp_path / "a", events=[skip(3)])
    of = table(tmp_path, explain=explain)
    events: list[object] = []
    asking = threading.Thread(target=lambda: events.extend(of.snapshot("a", events=True).events))
    asking.start()
    assert begun.wait(1200)
    assert len(of.snapshot("a").steps["step"]) == 10 and not events
    go_on.set()
    asking.join(1200)
    assert len(events) == 1


def test_explaining_begins_when_the_quick_questions_in_progress_are_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(explaining, "PATIENCE_SECONDS", 30)
    record(tmp_path / "a", events=[skip(3)])
    begun = threading.Event()
    of = table(tmp_path, explain=lambda run: begun.set() or run.raw_events)
    asking = threading.Thread(target=of.snapshot, args=("a",), kwargs={"events": True})
    with of.quickly():
        asking.start()
        assert len(of.snapshot("a").steps["step"]) == 10
        assert not begun.wait(0.05)
    assert begun.wait(1200)
    asking.join(1200)
    monkeypatch.setattr(explaining, "PATIENCE_SECONDS", 0.01)
    of = table(tmp_path, explain=lambda run: run.raw_events)
    with of.quickly():  # one that hangs holds nothing up
        assert of.snapshot("a", events=True).events


def test_a_run_that_takes_long_to_explain_is_not_explained_anew_with_every_step(tmp_path, always_fresh, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(explaining, "MOMENT_SECONDS", 0.2)
    monkeypatch.setattr(runs.time, "monotonic", lambda: now[0])
    asked: list[int] = []

    def explain(run):
        asked.append(len(run.steps["step"]))
        now[0] += 2.0
        return run.raw_events

    log = open_log(tmp_path / "a")
    append(log, range(10))
    of = table(tmp_path, explain=explain)
    first = of.snapshot("a", events=True)
    append(log, range(10, 20))
    second = of.snapshot("a", events=True)
    assert asked == [10] and len(second.steps["step"]) == 20 and second.version != first.version
    assert second.events_version == first.events_version  # a browser learns that these events are those it has
    now[0] += 8.1
    third = of.snapshot("a", events=True)
    assert asked == [10, 20] and third.events_version == third.version
    assert of.snapshot("a", events=True).events_version == third.version and asked == [10, 20]
    log.close()


def test_the_table_has_the_optimizers_of_runs_that_nobody_asked_for(tmp_path):
    record(tmp_path / "a")
    record(tmp_path / "gan", optimizers={"gen": {}, "dis": {}})
    assert [row.optimizers for row in table(tmp_path).listing().rows] == [("optimizer",), ("gen", "dis")]


def test_many_threads_read_a_growing_run_without_a_torn_view(tmp_path, always_fresh):
    log = open_log(tmp_path / "a")
    append(log, range(10))
    of = table(tmp_path)
    failures: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                steps = of.snapshot("a", events=True).steps
                count = len(steps["step"])
                np.testing.assert_array_equal(steps["step"], np.arange(count))
                np.testing.assert_array_equal(steps["loss"], np.arange(count, dtype=float))
            except BaseException as error:
                failures.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for start in range(10, 2010, 100):
        append(log, range(start, start + 100))
        of.scan()
    done.set()
    for reader in readers:
        reader.join(1200)
    assert not failures
    assert len(of.snapshot("a").steps["step"]) == 2010
    log.close()


def test_the_background_finds_new_runs_and_new_steps_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "FRESH_SECONDS", 0.01)
    of = RunTable([Root(str(tmp_path))])
    of.start()
    wait_until(lambda: of.listing().ready)
    log = open_log(tmp_path / "a")
    append(log, range(5))
    wait_until(lambda: [row.totals and row.totals.steps for row in of.listing().rows] == [5])
    append(log, range(5, 9))
    wait_until(lambda: of.listing().rows[0].totals.steps == 9)
    log.close()


def test_the_background_survives_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "FRESH_SECONDS", 0.01)
    record(tmp_path / "a")
    of = RunTable([Root(str(tmp_path))])
    scan = of.scan
    attempts: list[int] = []

    def failing_once() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("not now")
        scan()

    monkeypatch.setattr(of, "scan", failing_once)
    of.start()
    wait_until(lambda: names(of) == ["a"])


def test_a_question_before_the_first_scan_waits_for_it(tmp_path):
    record(tmp_path / "a")
    of = RunTable([Root(str(tmp_path))])
    of.start()
    assert len(of.snapshot("a").steps["step"]) == 10


def test_five_hundred_runs_are_scanned_in_a_moment(tmp_path):
    source = record(tmp_path / "logs" / "run000")
    for index in range(1, 500):
        shutil.copytree(source, tmp_path / "logs" / f"run{index:03}")
    of = table(tmp_path / "logs")
    started = time.thread_time()
    of.scan()
    took = time.thread_time() - started
    assert len(names(of)) == 500 and took < 2.0


def test_a_table_of_runs_tells_how_far_a_long_record_is_read(tmp_path, monkeypatch):
    record(tmp_path / "long", range(5000))
    shown = table(tmp_path)
    reported: list[int | None] = []
    take = SessionFile._take

    def note(file, *arguments):
        take(file, *arguments)
        reported.append(shown.listing().rows[0].steps_read)

    monkeypatch.setattr(SessionFile, "_take", note)
    assert shown.listing().rows[0].steps_read is None, "nobody asked for it"
    shown.snapshot("long")
    assert reported[0] == 0 < reported[-1] <= 5000 and reported == sorted(reported)
    assert shown.listing().rows[0].steps_read is None, "it is read"
