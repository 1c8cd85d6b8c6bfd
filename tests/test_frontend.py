"""The build of the panel: `static/` from `frontend/`, as `setup.py` does it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import panel_files

NEEDED = ("setup.py", "pyproject.toml", "package.json", "package-lock.json", "README.md", "LICENSE")
PLUGIN = Path("plugins/tensorboard_plugin_tbnum")
STAMP = "built-from.sha256"


@pytest.fixture
def checkout(tmp_path: Path, frontend: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the build needs of a checkout, with what npm has put there, and no network."""
    if not (panel_files.ROOT / "node_modules" / "esbuild").is_dir():
        pytest.skip("npm ci --ignore-scripts")
    for name in NEEDED:
        shutil.copy(panel_files.ROOT / name, tmp_path)
    (tmp_path / "tbnum").mkdir()
    shutil.copy(panel_files.ROOT / "tbnum" / "_version.py", tmp_path / "tbnum")
    shutil.copytree(frontend.with_name("frontend"), tmp_path / PLUGIN / "frontend")
    (tmp_path / "node_modules").symlink_to(panel_files.ROOT / "node_modules")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "empty"))
    return tmp_path


def contents(static: Path) -> dict[str, bytes]:
    return {file.relative_to(static).as_posix(): file.read_bytes() for file in static.rglob("*") if file.is_file()}


def test_each_file_is_built_into_one_that_exports_the_same_names(frontend: Path) -> None:
    written = frontend.with_name("frontend")
    modules = sorted(file.name for file in written.glob("*.js"))
    assert modules == sorted(file.name for file in frontend.glob("*.js")) and (frontend / "style.css").is_file()
    if shutil.which("node") is None:
        pytest.skip("Node.js")
    asked = """const [written, built, ...modules] = process.argv.slice(1);
        const names = async (folder, name) => Object.keys(await import(`${folder}/${name}`));
        const both = async (name) => [await names(written, name), await names(built, name)];
        console.log(JSON.stringify(await Promise.all(modules.map(both))));"""
    command = ["node", "--input-type=module", "--eval", asked, "--", written.as_uri(), frontend.as_uri(), *modules]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    exported = json.loads(done.stdout)
    assert all(built == written for written, built in exported)
    assert ["render"] in exported[modules.index("index.js")]


def test_source_maps_hold_the_sources_and_no_path_of_the_machine(frontend: Path) -> None:
    written = frontend.with_name("frontend")
    maps = sorted(frontend.rglob("*.map"))
    assert {file.stem for file in maps} == {file.name for file in written.iterdir() if file.suffix in (".js", ".css")}
    for file in maps:
        found = json.loads(file.read_text(encoding="utf-8"))
        assert found["sources"] == [f"../frontend/{file.stem}"] and not found.get("sourceRoot")
        assert found["sourcesContent"] == [(written / file.stem).read_text(encoding="utf-8")]
        assert f"sourceMappingURL={file.name}" in file.with_suffix("").read_text(encoding="utf-8").splitlines()[-1]


def test_an_edit_is_built_without_a_network_and_what_lost_its_source_vanishes(checkout: Path, frontend: Path) -> None:
    written, static = checkout / PLUGIN / "frontend", panel_files.build(checkout)
    assert contents(static) == contents(frontend), "the same files are built anywhere"

    (written / "style.css").write_text("body { color: red }\n")
    (written / "marks.js").rename(written / "crosses.js")
    (static / "left.js").write_text("// of an older build\n")
    panel_files.build(checkout)
    built = contents(static)
    assert built["style.css"].startswith(b"body{color:red}")
    assert {"crosses.js", "crosses.js.map"} <= built.keys()
    assert not {"marks.js", "marks.js.map", "left.js"} & built.keys()

    (static / "view.js").unlink()
    panel_files.build(checkout)
    assert contents(static) == built, "what is missing is built again"


def test_line_ends_of_a_checkout_make_no_difference(checkout: Path, frontend: Path) -> None:
    for file in [*(checkout / PLUGIN / "frontend").iterdir(), checkout / "package-lock.json"]:
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert contents(panel_files.build(checkout)) == contents(frontend)


@pytest.mark.parametrize(("name", "error"), [("marks.js", "export const broken = ;"), ("style.css", "th { color: red")])
def test_an_error_in_a_source_is_named_with_its_place_and_is_no_build(checkout: Path, name: str, error: str) -> None:
    static = panel_files.build(checkout)
    before = contents(static)
    with (checkout / PLUGIN / "frontend" / name).open("a") as file:
        file.write(error + "\n")
    for _ in range(2):  # it is not taken for current after the first
        with pytest.raises(RuntimeError, match=rf"(?s)make frontend.*frontend/{re.escape(name)}:\d+:\d+") as caught:
            panel_files.build(checkout)
        assert not re.search(r"Traceback|^ +at ", str(caught.value), re.MULTILINE), "nothing but that"
    assert contents(static) == before, "what was built stays as it was"


@pytest.mark.parametrize("cut", [STAMP, "package-lock.json"])
def test_a_build_without_its_stamp_or_of_another_lock_is_not_current(checkout: Path, cut: str) -> None:
    static = panel_files.build(checkout)
    stamp = (static / STAMP).read_text()
    if cut == STAMP:
        (static / STAMP).unlink()
    else:
        lock = (checkout / cut).read_text()
        (checkout / cut).write_text(lock.replace('"name": "tbnum-panel"', '"name": "other"'))
    (static / "index.js").write_text("// half of it")
    panel_files.build(checkout)
    assert ((static / STAMP).read_text() == stamp) == (cut == STAMP)
    assert (static / "index.js").stat().st_size > 1000


def test_without_npm_or_a_network_the_build_says_what_to_do(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "node_modules").unlink()
    if shutil.which("npm") is not None:
        with pytest.raises(RuntimeError, match=r"could not fetch esbuild and uPlot .*npm err.*Check the network"):
            panel_files.build(checkout)
    folders = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(each for each in folders if shutil.which("npm", path=each) is None))
    with pytest.raises(RuntimeError, match="needs npm once, and there is none on PATH"):
        panel_files.build(checkout)
    assert not (checkout / PLUGIN / "static").exists()
