"""The panel's files as TensorBoard serves them, for the tests and the benchmark: never those of older sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(root: Path = ROOT) -> Path:
    """The folder `static/` of a checkout, built where it is not current; a sixth of a second where it is.

    Raises:
        RuntimeError: It cannot be built; says why, and what to run.
    """
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_frontend"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"The panel is not built from what is written; `make frontend` builds it.\n{done.stdout}")
    return root / "plugins" / "tensorboard_plugin_tbnum" / "static"


def loaded_bytes(static: Path) -> int:
    """All JavaScript and CSS of the tab, uncompressed. Source maps are left out: devtools alone ask for them."""
    return sum(file.stat().st_size for file in static.rglob("*") if file.suffix in (".js", ".css"))
