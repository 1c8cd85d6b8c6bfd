"""The event file that tbnum opens for TensorBoard's dashboards is the one that TensorBoard itself would write."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.tensorflow_stub.io.gfile import LocalFileSystem
from torch.utils.tensorboard import SummaryWriter

import tbnum
from tbnum.drawings import close_writer, opened_writer


def written(writer: SummaryWriter, events: int) -> None:
    for step in range(events):
        writer.add_scalar("loss", step / 7, step, walltime=float(step))
        if step % 50 == 0:
            writer.add_histogram("gradient", np.arange(float(step + 2)), step, walltime=float(step))


def file_in(folder: Path) -> Path:
    (path,) = folder.glob("*tfevents*")
    return path


def events_in(folder: Path) -> list[bytes]:
    """But for the first, which has the time."""
    return [event.SerializeToString() for event in LegacyEventFileLoader(str(file_in(folder))).Load()][1:]


def test_the_file_is_what_tensorboards_own_writer_makes_of_the_same(tmp_path: Path) -> None:
    theirs, ours = SummaryWriter(str(tmp_path / "theirs")), opened_writer(tmp_path / "ours")
    for writer in (theirs, ours):
        written(writer, 3000)
        writer.close()
    expected = file_in(tmp_path / "theirs").read_bytes()
    found = file_in(tmp_path / "ours").read_bytes()
    assert len(found) == len(expected)
    assert found[-100_000:] == expected[-100_000:]
    assert events_in(tmp_path / "ours") == events_in(tmp_path / "theirs")


def test_what_was_flushed_is_on_disk(tmp_path: Path) -> None:
    writer = opened_writer(tmp_path)
    for events in (1, 100, 1500):
        before = len(events_in(tmp_path))
        for step in range(events):
            writer.add_scalar("loss", 1.0, step)
        writer.flush()
        assert len(events_in(tmp_path)) == before + events
    writer.close()


def test_threads_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    writer = opened_writer(tmp_path)
    threads = [threading.Thread(target=written, args=(writer, 700)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    close_writer(writer, os.getpid())
    assert len(events_in(tmp_path)) == 4 * (700 + 14)


def test_large_records_do_not_pile_up_before_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written_at_once, append = list[int](), LocalFileSystem.append

    def noted(files: LocalFileSystem, name: str, content: bytes, binary_mode: bool = False) -> None:
        written_at_once.append(len(content))
        append(files, name, content, binary_mode)

    monkeypatch.setattr(LocalFileSystem, "append", noted)
    writer = opened_writer(tmp_path)
    for step in range(200):
        writer.add_text("mine", "x" * 100_000, step)
    writer.close()
    assert len(events_in(tmp_path)) == 200
    assert 100_000 < max(written_at_once) < 1_300_000


def test_a_tensorboard_that_is_built_in_another_way_writes_as_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        def __init__(self, writer: SummaryWriter) -> None:
            self.file_writer = object()
            self._writer = writer

        def __getattr__(self, name: str) -> object:
            return getattr(self._writer, name)

    made: list[SummaryWriter] = []

    def other(*args: object, **kwargs: object) -> Other:
        made.append(SummaryWriter(*args, **kwargs))
        return Other(made[-1])

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", other)
    opened_writer(tmp_path).add_scalar("loss", 1.0, 0)
    made[0].close()
    assert len(events_in(tmp_path)) == 1


def test_a_monitors_own_writer_takes_the_users_values_too(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, verbose=False) as monitor:
        assert monitor.writer is not None
        for step in range(20):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.writer.add_scalar("mine", step, step)
    tags = [
        value.tag for event in LegacyEventFileLoader(str(file_in(tmp_path))).Load() for value in event.summary.value
    ]
    assert tags.count("mine") == 20 and "tbnum/loss" in tags
