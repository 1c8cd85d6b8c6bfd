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
    for name in ("_version.py", "look.json"):
        shutil.copy(panel_files.ROOT / "tbnum" / name, tmp_path / "tbnum")
    shutil.copytree(frontend.with_name("frontend"), tmp_path / PLUGIN / "frontend")
    (tmp_path / "node_modules").symlink_to(panel_files.ROOT / "node_modules")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "empty"))
    return tmp_path


def contents(static: Path) -> dict[str, bytes]:
    return {file.relative_to(static).as_posix(): file.read_bytes() for file in static.rglob("*") if file.is_file()}


def sources(static: Path) -> dict[str, list[str]]:
    """What each built module is made of, by its source map."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8"))["sources"] for file in static.glob("*.js.map")}


def imported_by(module: Path) -> list[str]:
    """What the browser fetches before the built module runs; what it opens later is no part of that."""
    return sorted(set(re.findall(r'(?:from|import)\s*"\./([^"]+)"', module.read_text(encoding="utf-8"))))


def test_what_is_written_is_built_into_one_file_and_one_for_each_module_that_is_opened_later(frontend: Path) -> None:
    parts = sources(frontend)
    written = {file.name for file in frontend.with_name("frontend").glob("*.ts")} - {"answers.ts"}  # types alone
    modules = [f"../frontend/{name}" for name in written] + ["../../../tbnum/look.json"]
    first = imported_by(frontend / "index.js")
    assert len(first) == 1, "all that the first drawing needs comes at once"
    assert imported_by(frontend / first[0]) == []
    used = sorted(source for each in parts.values() for source in each)
    modules.append("../../../node_modules/uplot/dist/uPlot.esm.js")
    assert used == sorted(modules), "each once, and none is left over"
    shared = {name for name in parts if re.fullmatch(r"chunk-\w+\.js", name)}  # by some of those
    later = {name for name in parts if name not in (*first, *shared, "index.js")}
    opened = {"figure", "findings", "ledhere", "overlay", "runs", "tensorsdock", "values"}
    assert {name.partition("-")[0] for name in later} == opened
    if shutil.which("node") is None:
        pytest.skip("Node.js")
    asked = "console.log(Object.keys(await import(process.argv[1])).join())"
    command = ["node", "--input-type=module", "--eval", asked, "--", (frontend / "index.js").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("render\n", "")


def test_source_maps_hold_the_sources_and_no_path_of_the_machine(frontend: Path) -> None:
    maps = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in frontend.glob("*.map")}
    assert maps.keys() == {file.name for file in frontend.iterdir() if file.suffix in (".js", ".css")}
    for name, found in maps.items():
        assert not found.get("sourceRoot")
        for source, content in zip(found["sources"], found["sourcesContent"], strict=True):
            assert source.startswith(("../frontend/", "../../../tbnum/", "../../../node_modules/uplot/dist/"))
            if source.startswith("../frontend/") and not source.endswith("/colours.css"):  # made by the build
                assert content == (frontend / source).read_text(encoding="utf-8")
        assert f"sourceMappingURL={name}.map" in (frontend / name).read_text(encoding="utf-8").splitlines()[-1]


def test_an_edit_is_built_without_a_network_and_what_it_replaces_vanishes(checkout: Path, frontend: Path) -> None:
    written, static = checkout / PLUGIN / "frontend", panel_files.build(checkout)
    assert contents(static) == contents(frontend), "the same files are built anywhere"

    (written / "style.css").write_text("body { color: red }\n")
    (written / "figure.ts").write_text("export const changed = 1;\n")
    (static / "left").mkdir()
    (static / "left" / "older.js").write_text("// of an older build\n")
    before = sources(static)
    panel_files.build(checkout)
    built = contents(static)
    assert built["style.css"].startswith(b"body{color:red}")
    assert "left/older.js" not in built
    assert {name.partition("-")[0] for name in sources(static)} == {name.partition("-")[0] for name in before}
    (figure,) = static.glob("figure-*.js")
    assert figure.name not in before and b"changed" in figure.read_bytes()

    figure.unlink()
    panel_files.build(checkout)
    assert contents(static) == built, "what is missing is built again"


def test_line_ends_of_a_checkout_make_no_difference(checkout: Path, frontend: Path) -> None:
    for file in [*(checkout / PLUGIN / "frontend").iterdir(), checkout / "package-lock.json"]:
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert contents(panel_files.build(checkout)) == contents(frontend)


@pytest.mark.parametrize(("name", "error"), [("marks.ts", "export const broken = ;"), ("style.css", "th { color: red")])
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
    assert "half of it" not in (static / "index.js").read_text()


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
