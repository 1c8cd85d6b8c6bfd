"""`pip install`, editable or not, works beside a clone of any name, hides nobody's modules, and leaves no trace.

Each environment is new and real; what tbnum depends on is linked into it from the environment of the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pages import ROOT

NOT_SOURCE = (".*", "node_modules", "runs", "site", "build", "dist", "*.egg-info", "__pycache__", "test-results")
SCRIPT = """
import tensorboard_plugin_tbnum.loader
import tbnum
import tests.mine
import benchmarks.mine

print(tests.mine.WHOSE, benchmarks.mine.WHOSE, len(tbnum.read("runs")), tbnum.__version__)
"""


class Environment(NamedTuple):
    python: Path
    packages: Path  # its site-packages
    folder: Path  # of a user's project: a script, modules of its own, and the clone `tbnum`

    def run(self, *command: str | Path) -> str:
        # No variable of Python's: the tests may run from a checkout that is on the path.
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [self.python, *command],
            cwd=self.folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1200,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def installed(self) -> set[str]:
        """Every file of the environment, less what any import leaves."""
        root = self.packages.parents[2]
        files = (file.relative_to(root) for file in root.rglob("*"))
        return {file.as_posix() for file in files if "__pycache__" not in file.parts}


@pytest.fixture
def environment(tmp_path: Path, frontend: Path) -> Environment:
    folder = tmp_path / "project"
    shutil.copytree(ROOT, folder / "tbnum", ignore=shutil.ignore_patterns(*NOT_SOURCE))
    for name in ("tests", "benchmarks"):  # a user's own, without an __init__.py
        (folder / name).mkdir()
        (folder / name / "mine.py").write_text("WHOSE = 'mine'\n", encoding="utf-8")
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "runs").mkdir()

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    linked = tmp_path / "linked"
    linked.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("tbnum", "__editable__", "tensorboard_plugin_tbnum")) and entry.suffix != ".pth":
            (linked / entry.name).symlink_to(entry)
    (packages / "linked.pth").write_text(f"{linked}\n", encoding="utf-8")
    return Environment(tmp_path / "venv" / "bin" / "python", packages, folder)


@pytest.mark.skipif(os.name == "nt", reason="links need a permission there, and an environment looks different")
@pytest.mark.parametrize("how", ["editable", "checkout", "sdist"])
def test_a_script_beside_the_clone_finds_tbnum_and_its_own_modules(how: str, environment: Environment) -> None:
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    if how == "sdist":
        environment.run("-m", "build", "--sdist", "--no-isolation", "./tbnum")
        (source,) = (environment.folder / "tbnum" / "dist").glob("*.tar.gz")
        what = [str(source)]
    else:
        what = ["-e", "./tbnum"] if how == "editable" else ["./tbnum"]
    before = environment.installed()
    environment.run(*pip, "install", "--no-deps", "--no-build-isolation", *what)

    assert environment.run("script.py").split()[:3] == ["mine", "mine", "0"]
    module = environment.run("-c", "import tbnum; print(tbnum.__file__)").strip()
    assert (Path(module).resolve().is_relative_to(environment.folder)) == (how == "editable")

    environment.run(*pip, "uninstall", "--yes", "tbnum")
    assert environment.installed() == before


@pytest.mark.skipif(os.name == "nt", reason="links need a permission there, and an environment looks different")
def test_an_editable_install_follows_the_checkout(environment: Environment) -> None:
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--no-build-isolation")
    for _ in range(2):  # a second time over the first
        environment.run(*pip, "-e", "./tbnum")
    (environment.folder / "tbnum" / "tbnum" / "_version.py").write_text("__version__ = '9.9'\n", encoding="utf-8")
    assert environment.run("script.py").split()[-1] == "9.9"
