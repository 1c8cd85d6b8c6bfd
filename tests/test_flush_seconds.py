"""How often steps are written is the caller's to say, within bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tbnum


def wrapped(folder: Path, **options: Any) -> tbnum.Monitor:
    model = torch.nn.Linear(2, 1)
    return tbnum.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model=model, logdir=folder, verbose=False, **options)


@pytest.mark.parametrize(("given", "used"), [({}, 2.0), ({"flush_seconds": 30}, 30.0), ({"flush_seconds": 0.5}, 0.5)])
def test_it_reaches_the_log(given: dict[str, Any], used: float, tmp_path: Path) -> None:
    with wrapped(tmp_path, **given) as monitor:
        assert monitor._recorder._log._sink.flush_seconds == used


@pytest.mark.parametrize("given", [0, -1, float("nan"), float("inf"), 1e9, "2", True, None])
def test_what_it_cannot_be_is_named_before_anything_is_written(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"flush_seconds is .*above 0"):
        wrapped(tmp_path / "run", flush_seconds=given)
    assert not (tmp_path / "run").exists()
