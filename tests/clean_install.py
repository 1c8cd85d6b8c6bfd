"""Installs a wheel, or a source distribution, into a clean environment without npm, and asks for the panel there.

    python -m tests.clean_install dist/tbnum-0.1.0-py3-none-any.whl

torch is not installed: looking at runs needs none. `make dist` runs this for both. A minute each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.recorded import record, skip

ROOT = Path(__file__).parents[1]
# Of setuptools, tensorboard 2.16 imports pkg_resources.
WITHOUT_TORCH = ("tensorboard", "numpy", "google-crc32c", "rich", "setuptools<81")


def main() -> None:
    (archive,) = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="tbnum-install-") as folder:
        python, environment = clean_environment(Path(folder))
        pip = [python, "-m", "pip", "--quiet", "install"]
        run([*pip, "-c", str(ROOT / "constraints.txt"), *WITHOUT_TORCH], environment)
        run([*pip, "--no-deps", str(Path(archive).absolute())], environment)

        logdir = Path(folder, "runs")
        record(logdir / "gpt", range(50), events=[skip(20)])
        report = run([str(Path(python).with_name("tbnum")), "report", str(logdir)], environment)
        assert "50  (0 to 49)" in report, report
        with tensorboard(python, logdir, environment, cwd=folder) as address:
            check_panel(address)
    print(f"{Path(archive).name}: installed without npm, and the panel is there")


def clean_environment(folder: Path) -> tuple[str, dict[str, str]]:
    """A new virtual environment outside of the checkout, and variables in which no npm and no checkout is found."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    binaries = folder / "venv" / "bin"
    empty = folder / "no-npm"
    empty.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PATH"] = os.pathsep.join([str(binaries), str(empty)])
    assert shutil.which("npm", path=environment["PATH"]) is None
    return str(binaries / "python"), environment


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=environment, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}")
    return done.stdout


@contextmanager
def tensorboard(python: str, logdir: Path, environment: dict[str, str], cwd: str) -> Iterator[str]:
    command = [python, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(
        command, env=environment, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if address := re.search(r"http://127\.0\.0\.1:\d+/", line):
                yield address[0]
                return
        raise SystemExit("TensorBoard did not start:\n" + "".join(said))
    finally:
        process.terminate()
        process.wait()


def check_panel(address: str) -> None:
    def get(path: str) -> bytes:
        with urllib.request.urlopen(address + path, timeout=1200) as response:
            content: bytes = response.read()
            return content

    listing = json.loads(get("data/plugins_listing"))["tbnum"]
    assert listing["enabled"] and listing["tab_name"] == "Numerics", listing
    static = "data/plugin/tbnum/static/"
    built = ROOT / "plugins/tensorboard_plugin_tbnum/static"
    names = [file.name for file in built.iterdir() if file.suffix in (".js", ".css", ".map", ".txt")]
    assert "index.js" in names and "uPlot.LICENSE.txt" in names, names
    assert all(get(static + name) == (built / name).read_bytes() for name in names)
    while (runs := json.loads(get("data/plugin/tbnum/runs")))["state"] == "scanning":
        time.sleep(0.1)
    assert runs["frontend"] == "ok" and [each["run"] for each in runs["runs"]] == ["gpt"], runs


if __name__ == "__main__":
    main()
