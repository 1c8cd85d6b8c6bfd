"""Warnings point at the user's line, whatever stands between it and tbnum."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tbnum
from tbnum.caller import users_line, users_place, warn
from tbnum.log.record_file import trouble, way_out
from tests import warm


def direct() -> None:
    warn("said")


def through_functools() -> None:
    @functools.wraps(warn)
    def inner() -> None:
        warn("said")

    functools.partial(functools.lru_cache(inner))()


def through_contextlib() -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(warn, "said")


def through_torch() -> None:
    tensor = torch.ones(1, requires_grad=True)
    tensor.register_hook(lambda gradient: warn("said"))
    tensor.sum().backward()


def through_no_grad() -> None:
    torch.no_grad()(functools.partial(warn, "said"))()


@pytest.mark.parametrize(
    "said",
    [direct, through_functools, through_contextlib, through_torch, through_no_grad],
    ids=lambda each: each.__name__,
)
def test_a_warning_points_at_the_user_s_line(said: Callable[[], None]) -> None:
    with pytest.warns(RuntimeWarning, match="said") as caught:
        said()
    code = said.__code__
    assert caught[0].filename == __file__
    assert code.co_firstlineno < caught[0].lineno <= code.co_firstlineno + 8


def test_where_nobody_s_line_led_to_it_no_line_of_ours_is_named() -> None:
    thread = threading.Thread(target=warn, args=("said",))  # threading calls it
    with pytest.warns(RuntimeWarning, match="said") as caught:
        thread.start()
        thread.join()
    assert caught[0].filename == "<tbnum>"


def test_where_warnings_are_errors_none_reaches_the_loop() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("said")


def test_the_line_is_short_for_people_and_whole_for_telling_places_apart() -> None:
    assert (users_line() or "").startswith("test_caller.py:")
    assert (users_place() or "").startswith(f"{__file__}:")


def test_what_is_said_of_the_disk_at_the_end_points_at_the_user_s_line(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=1, max_tensor_bytes=0)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.warns(RuntimeWarning, match="max_tensor_bytes=0") as caught:
        optimizer.step()
        monitor.close()
    assert caught[0].filename == __file__


# -- where a log cannot be begun -------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_descriptor_free() -> Iterator[None]:
    """For the call alone: pytest and what measures coverage open files between a fixture and its test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_free_file_descriptor_that_is_what_is_said(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    with pytest.raises(OSError, match=r"no file descriptor is free.*ulimit -n") as raised, no_descriptor_free():
        tbnum.wrap(optimizer, logdir=tmp_path)
    assert raised.value.errno == errno.EMFILE and "writable" not in str(raised.value)
    assert not optimizer._optimizer_step_pre_hooks


def test_a_name_that_is_too_long_is_what_is_said(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    with pytest.raises(OSError, match="choose a shorter one"):
        tbnum.wrap(optimizer, logdir=tmp_path / ("long" * 100))


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EDQUOT, "quota is used up"),
        (errno.EROFS, "read-only"),
        (errno.ENFILE, "on this machine"),
        (errno.EACCES, "writable"),
    ],
)
def test_each_trouble_of_a_disk_has_its_way_out(number: int, hint: str) -> None:
    error = OSError(number, os.strerror(number))
    assert hint in way_out(error)
    assert trouble(error)


def test_a_full_disk_at_the_start_is_named(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    script = f"""
import os, tbnum, torch
from tbnum.log import record_file
write = os.write
def full(descriptor, data):
    raise OSError({errno.ENOSPC}, os.strerror({errno.ENOSPC}))
os.write = full
try:
    tbnum.wrap(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), logdir={str(tmp_path)!r})
finally:
    os.write = write
"""
    done: Any = subprocess.run([*warm.python(), "-c", script], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 1 and "the disk is full" in done.stderr, done.stderr
