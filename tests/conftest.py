"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder in a folder of the test's own: a run looks at the runs beside it, which must not be another test's."""
    inner = tmp_path / "runs"
    inner.mkdir()
    return inner
