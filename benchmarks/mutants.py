"""Plants small faults in the code, one at a time, and says which of them no test notices.

    python -m benchmarks.mutants                              # a sample of 200, on all cores: under an hour
    python -m benchmarks.mutants --sample 20 --under tbnum/measure

Cosmic Ray makes the faults (a comparison reversed, a constant changed, a decorator removed ...); here they are
drawn, the tests for each are chosen, and the score is printed. Every fault is planted in a copy of the last commit. A
survivor becomes a test, or is named in `EQUIVALENT` with the reason why no test can notice it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).parents[1]
UNDER = ("tbnum/observe", "tbnum/measure", "tbnum/log", "tbnum/explain", "plugins/tensorboard_plugin_tbnum")
TIMEOUT = 900.0  # seconds for one fault; a loop without an end counts as noticed

# Annotations are never evaluated: what is changed in `int | None` changes nothing.
NO_FAULT = re.compile(r"core/ReplaceBinaryOperator_BitOr_")
SLOW = ("dist", "install", "docs", "readme", "demo", "benchmarks", "frontend", "integrations", "notebook", "gpu")
END_TO_END = ("test_survivors", "test_monitor", "test_cli")  # run for every fault, after those of its own package

EQUIVALENT: dict[tuple[str, str], str] = {}
"""Survivors that no test can notice: module and definition, and why."""


@dataclass(frozen=True)
class Fault:
    module: str
    line: int
    definition: str
    operator: str
    noticed: bool
    difference: str


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="tbnum-mutants-") as name:
        drawn = draw(Path(name), arguments.under, arguments.sample, arguments.seed)
        copies = [copy_of_the_last_commit(Path(name) / f"copy{number}") for number in range(arguments.jobs)]
        with ProcessPoolExecutor(len(copies), initializer=_enter, initargs=(copies, _places(Path(name)))) as pool:
            faults = []
            for number, fault in enumerate(pool.map(try_one, drawn), 1):
                faults.append(fault)
                verdict = "noticed " if fault.noticed else "SURVIVED"
                print(f"{number:4}/{len(drawn)}  {verdict}  {fault.module}:{fault.line}  {fault.operator}", flush=True)
    report(faults, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200, help="how many faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same faults of the same code")
    parser.add_argument("--under", nargs="+", default=UNDER, help="folders whose code is changed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="faults tried at once")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "mutants.json", metavar="FILE")
    return parser.parse_args()


def draw(folder: Path, under: Sequence[str], sample: int, seed: int) -> list[MutationSpec]:
    modules = [file.relative_to(ROOT) for place in under for file in sorted((ROOT / place).rglob("*.py"))]
    os.chdir(ROOT)
    with use_db(str(folder / "all.sqlite"), WorkDB.Mode.create) as every:
        init(modules, every, {})
        found = [item.mutations[0] for item in every.work_items]
    found = [each for each in found if not NO_FAULT.match(each.operator_name)]
    found.sort(key=lambda each: (str(each.module_path), each.operator_name, each.occurrence))
    return random.Random(seed).sample(found, min(sample, len(found)))


def copy_of_the_last_commit(folder: Path) -> Path:
    folder.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    return folder


def _places(folder: Path) -> str:
    """A file in which each process finds the number of its copy."""
    (folder / "next").write_text("", encoding="utf-8")
    return str(folder / "next")


def _enter(copies: Sequence[Path], places: str) -> None:
    with open(places, "a", encoding="utf-8") as file:  # appending is atomic: the place is the size before
        file.write("x")
        file.flush()
        number = file.tell() - 1
    os.chdir(copies[number % len(copies)])
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.path.join(os.getcwd(), "plugins")])
    os.environ["OMP_NUM_THREADS"] = "1"


def try_one(mutation: MutationSpec) -> Fault:
    tests = tests_of(Path(mutation.module_path))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    result = mutate_and_test([mutation], " ".join(command), TIMEOUT)
    return Fault(
        module=str(mutation.module_path),
        line=mutation.start_pos[0],
        definition=mutation.definition_name or "",
        operator=mutation.operator_name.removeprefix("core/"),
        noticed=result.test_outcome != TestOutcome.SURVIVED,
        difference=result.diff or "",
    )


def tests_of(module: Path) -> list[str]:
    """The tests that can notice a fault in a module, the likeliest first."""
    package = ".".join(module.parts[:2]) if module.parts[0] == "tbnum" else module.parts[1]
    ranked = []
    for file in sorted(Path("tests").glob("test_*.py")):
        if not any(word in file.stem for word in SLOW):
            likeliness = _likeliness(module, package, file)
            if likeliness is not None:
                ranked.append((likeliness, str(file)))
    return [name for _, name in sorted(ranked)]


def _likeliness(module: Path, package: str, file: Path) -> int | None:
    """Smaller is likelier; None: these tests have nothing to do with the module."""
    text = file.read_text(encoding="utf-8")
    if module.stem in file.stem or f"{package}.{module.stem}" in text:
        return 0
    if re.search(rf"\b{re.escape(package)}\b", text):
        return 1
    return 2 if file.stem in END_TO_END else None


def report(faults: Sequence[Fault], file: Path) -> None:
    survivors = [fault for fault in faults if not fault.noticed and (fault.module, fault.definition) not in EQUIVALENT]
    for fault in survivors:
        print(f"\n{fault.module}:{fault.line}  {fault.operator}\n{_changed(fault.difference)}")
    noticed = len(faults) - len(survivors)
    print(f"\n{noticed} of {len(faults)} faults were noticed: {100 * noticed / max(len(faults), 1):.1f} %")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(fault) for fault in faults], indent=1), encoding="utf-8")


def _changed(difference: str) -> str:
    return "\n".join(_lines_changed(difference))


def _lines_changed(difference: str) -> Iterator[str]:
    for line in difference.splitlines():
        if line[:1] in "+-" and line[:3] not in ("+++", "---"):
            yield f"    {line}"


if __name__ == "__main__":
    main()
