"""Which tests can notice a fault in a line: those that execute it, as a run of all tests under coverage has shown."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

__all__ = ["Coverage", "cover"]

# They install, build, train for minutes or start other programs: too slow to be run for each fault.
SLOW = re.compile(r"dist|install|docs|readme|demo|benchmarks|frontend|integrations|notebook|gpu|truth|warm|words")
BUDGET = 90.0  # seconds of tests for one fault, as long as they took under coverage


@dataclass
class Coverage:
    seconds: dict[str, float]
    """Of each test that passed, by its name for pytest."""
    tests: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    """Module -> line -> names of the tests that executed it. A fixture that tests share counts for all of a file."""

    @classmethod
    def read(cls, folder: Path, modules: Sequence[str]) -> Coverage:
        """What `cover` left in `folder`, of these modules."""
        from coverage import CoverageData  # of the extra for this alone; the choice of tests needs none

        seconds = dict(entry for file in sorted(folder.glob("*.xml")) for entry in _passed(file))
        found = cls(seconds)
        of_file = defaultdict(set)
        for name in seconds:
            of_file[name.partition("::")[0]].add(name)
        for file in sorted(folder.glob("*.coverage")):
            data = CoverageData(str(file))
            data.read()
            for path in data.measured_files():
                module = next((module for module in modules if path.endswith(f"/{module}")), None)
                if module is None:
                    continue
                lines = found.tests.setdefault(module, defaultdict(set))
                for line, contexts in data.contexts_by_lineno(path).items():
                    for context in contexts:
                        name, _, phase = context.rpartition("|")
                        if phase == "setup":
                            lines[line] |= of_file[name.partition("::")[0]]
                        elif name in seconds:
                            lines[line].add(name)
        return found

    def of_fault(self, module: Path, start: int, end: int) -> list[str]:
        """Names of the tests to run for a fault in lines `start` to `end`, the likeliest first, `BUDGET` at most."""
        executed = self.tests.get(str(module), {})
        body = _lines_that_show_it(module, start, end)
        names = set().union(*(executed.get(line, ()) for line in body)) if body else set()
        if not names:  # what runs when the module is imported shows in whatever uses its names
            names = set().union(*executed.values(), *(self._of_name(name) for name in _assigned(module, start)))
        by_file = defaultdict(list)
        for name in names:
            by_file[name.partition("::")[0]].append(name)
        return list(self._within_budget(sorted(by_file.items(), key=lambda entry: self._unlikely(module, *entry))))

    def _of_name(self, name: str) -> set[str]:
        """Those that execute a line in which `name` stands, of any module, or stand in a file that has it."""
        files = {test.partition("::")[0] for test in self.seconds}
        named = {file for file in files if re.search(rf"\b{re.escape(name)}\b", Path(file).read_text("utf-8"))}
        found = {test for test in self.seconds if test.partition("::")[0] in named}
        for module, executed in self.tests.items():
            for number, line in enumerate(Path(module).read_text("utf-8").splitlines(), 1):
                if re.search(rf"\b{re.escape(name)}\b", line):
                    found |= executed.get(number, set())
        return found

    def _unlikely(self, module: Path, file: str, names: Sequence[str]) -> tuple[bool, float]:
        return module.stem.strip("_") not in file, sum(self.seconds[name] for name in names)

    def _within_budget(self, files: Iterable[tuple[str, list[str]]]) -> Iterator[str]:
        spent = 0.0
        for _, names in files:
            for name in sorted(names, key=lambda name: (self.seconds[name], name)):
                if spent == 0 or spent + self.seconds[name] <= BUDGET:
                    spent += self.seconds[name]
                    yield name


def cover(folder: Path, copy: Path, jobs: int) -> None:
    """Run the tests in `copy` once, and leave in `folder` what each of them executed and how long it took."""
    tests = copy / "tests"
    every = [*tests.glob("test_*.py"), *(tests / "published").glob("test_*.py")]  # a browser is for the panel's files
    files = sorted(file.relative_to(copy) for file in every if not SLOW.search(file.stem))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--cov=tbnum", "--cov-context=test"]
    command += ["--cov=tensorboard_plugin_tbnum", "--cov-report=", f"--junitxml={folder / 'tests.xml'}"]
    command += [f"--numprocesses={jobs}", "--dist=loadfile"] if jobs > 1 else []
    paths = {"PYTHONPATH": os.pathsep.join([str(copy), str(copy / "plugins")]), "OMP_NUM_THREADS": "1"}
    environment = os.environ | paths | {"COVERAGE_FILE": str(folder / "tests.coverage")}
    subprocess.run([*command, *map(str, files)], cwd=copy, env=environment, check=False)  # those that fail are left out


def _passed(file: Path) -> Iterator[tuple[str, float]]:
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        if not len(case):  # else it failed or was skipped
            module = case.attrib["classname"].replace(".", "/")
            yield f"{module}.py::{case.attrib['name']}", float(case.attrib["time"])


def _lines_that_show_it(module: Path, start: int, end: int) -> range | None:
    """Lines whose execution shows a fault in `start` to `end`: of a signature, the function's body; None: any."""
    for function in _functions(module):
        first, last = function.body[0].lineno, function.body[-1].end_lineno or start
        if first <= start <= last:
            return range(start, end + 1)
        if function.lineno - len(function.decorator_list) <= start < first:
            return range(first, last + 1)
    return None


def _assigned(module: Path, line: int) -> list[str]:
    """The names that the statement at `line` gives a value to."""
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.lineno <= line <= (node.end_lineno or line):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return []


@cache
def _functions(module: Path) -> list[ast.FunctionDef]:
    """Those inside others come first."""
    found = [node for node in ast.walk(ast.parse(module.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
    return found[::-1]
