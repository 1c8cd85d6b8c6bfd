"""What a user gets: the source distribution, and the wheel that is built from it on a machine without npm.

`make dist` goes further: it installs both into clean environments and asks a TensorBoard there for the panel.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Set
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest

import tbnum
from tests.pages import ROOT

PLUGIN = Path("plugins/tensorboard_plugin_tbnum")
NOT_SOURCE = (".*", "node_modules", "runs", "site", "build", "dist", "*.egg-info", "__pycache__", "test-results")


class Dist(NamedTuple):
    sdist: Set[str]  # names in it, less its first folder
    wheel: Set[str]
    metadata: Message
    entry_points: str


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory, frontend: Path) -> Dist:
    """Both, built from a copy of the checkout: the wheel from what the source distribution holds."""
    pytest.importorskip("build", reason="pip install tbnum[test]")
    folder = tmp_path_factory.mktemp("dist")
    checkout = folder / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    path = os.pathsep.join(
        part for part in os.environ["PATH"].split(os.pathsep) if shutil.which("npm", path=part) is None
    )
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(checkout)],
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.split("/")[0] for name in archive.namelist() if name.split("/")[0].endswith(".dist-info")}
        return Dist(
            sdist=names,
            wheel=set(archive.namelist()),
            metadata=email.message_from_bytes(archive.read(f"{info}/METADATA")),
            entry_points=archive.read(f"{info}/entry_points.txt").decode(),
        )


def written() -> set[str]:
    """The front end's files as they are written."""
    return {file.name for file in (ROOT / PLUGIN / "frontend").iterdir() if file.is_file()}


def built(frontend: Path) -> set[str]:
    """What is built from them, licences of what is bundled among it."""
    names = {file.name for file in frontend.iterdir()}
    assert {"index.js", "index.js.map", "style.css", "uPlot.LICENSE.txt", "built-from.sha256"} <= names
    return names


def test_the_wheel_carries_the_front_end_as_it_is_built(dist: Dist, frontend: Path) -> None:
    static = "tensorboard_plugin_tbnum/static/"
    assert {name.removeprefix(static) for name in dist.wheel if name.startswith(static)} == built(frontend)
    assert not [name for name in dist.wheel if "/frontend/" in name]
    assert "tensorboard_plugin_tbnum/http_api.md" in dist.wheel


def test_the_wheel_holds_the_packages_and_nothing_else(dist: Dist) -> None:
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "tbnum").rglob("*.py")}
    assert {name for name in dist.wheel if name.startswith("tbnum/")} == {*modules, "tbnum/py.typed", "tbnum/look.json"}
    tops = {name.split("/")[0] for name in dist.wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tbnum", "tensorboard_plugin_tbnum"}


def test_the_source_distribution_builds_tests_and_documents_itself(dist: Dist, frontend: Path) -> None:
    needed = {"setup.py", "pyproject.toml", "package-lock.json", "Makefile", "constraints.txt", "mkdocs.yml", "LICENSE"}
    needed |= {"demo/pretrain.py", "docs/primer.md", "docs/figures/clipping.svg", "tests/pages.py"}
    needed |= {(PLUGIN / "frontend" / name).as_posix() for name in written()}
    needed |= {(PLUGIN / "static" / name).as_posix() for name in built(frontend)}
    assert needed <= dist.sdist
    assert not [name for name in dist.sdist if "__pycache__" in name or name.startswith(("runs/", "site/"))]


def test_the_metadata_is_whole(dist: Dist) -> None:
    metadata = dist.metadata
    assert metadata["Version"] == tbnum.__version__
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.10" and metadata["Summary"]
    extras = set(metadata.get_all("Provides-Extra", []))
    assert {"test", "dev", "docs", "parquet"} <= extras
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    names = {re.split("[<>=!~ ]", each)[0] for each in needed}
    assert names == {"torch", "tensorboard", "numpy", "google-crc32c", "rich"}
    assert "tbnum = tensorboard_plugin_tbnum.loader:TbnumLoader" in dist.entry_points
    assert "tbnum = tbnum.cli:main" in dist.entry_points


def test_the_version_stands_in_one_place(dist: Dist) -> None:
    version = tbnum.__version__
    text = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "setup.py", "README.md")}
    assert [name for name, content in text.items() if version in content] == []
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), "the changelog speaks of it"
