"""What all tests share."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import panel_files


def pytest_collection_finish() -> None:
    """What is loaded by now stays: no collection of garbage, of which many tests ask for some, has to visit it again.
    That takes a second where torch and frameworks are loaded, and a millisecond without them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder in a folder of the test's own: a run looks at the runs beside it, which must not be another test's."""
    inner = tmp_path / "runs"
    inner.mkdir()
    return inner


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """On a busy machine, too: `flush` and `close` of a log wait until what a test gave is written, and not ten seconds,
    and the panel answers from what the files hold now, and not as a moment ago."""
    from tbnum.log.part_log import PartLog
    from tbnum.log.writer import LogWriter
    from tensorboard_plugin_tbnum import explaining

    explaining.MOMENT_SECONDS = 600.0
    for waiting in (LogWriter.flush, LogWriter.close, PartLog.flush, PartLog.close):
        assert waiting.__defaults__ == (10.0,)
        waiting.__defaults__ = (600.0,)


@pytest.fixture(autouse=True)
def no_accelerator_of_another_test() -> Iterator[None]:
    """Accelerate keeps its state in the process, whoever made an Accelerator there: a Trainer, a page of the docs."""
    yield
    accelerate = sys.modules.get("accelerate.state")  # most tests need none, and it takes seconds to load
    if accelerate is not None:
        for state in (accelerate.AcceleratorState, accelerate.GradientState, accelerate.PartialState):
            state._reset_state()


@pytest.fixture(scope="session")
def frontend() -> Path:
    """The folder of the panel's files as TensorBoard serves them, built from what is written now."""
    try:
        return panel_files.build()
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from a second thread of torch's, which waits in a loop that others' cores pay for."""
    import torch  # here, for most tests of the log need none

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
