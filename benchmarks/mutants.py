"""Plants small faults in the code, one at a time, and says which of them no test notices.

    python -m benchmarks.mutants                              # a sample of 200, on all cores: under an hour
    python -m benchmarks.mutants --sample 20 --under tbnum/measure
    python -m benchmarks.mutants --coverage FOLDER --only 7 31   # two of the same sample once more

Cosmic Ray makes the faults (a comparison reversed, a constant changed, a decorator removed ...); here they are
drawn, and the score is printed. All tests run once under coverage, some minutes, which shows which of them execute the
line of a fault: these are run for it, until one fails. Every fault is planted in a copy of the last commit. A survivor
becomes a test, or is named in `EQUIVALENT` with the reason why no test can notice it. A fault whose tests reach the
time limit is printed apart: it may be a loop without an end, or a machine with too much to do.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkResult

from benchmarks.mutant_tests import Coverage, cover
from tests import warm

ROOT = Path(__file__).parents[1]
UNDER = ("tbnum/observe", "tbnum/measure", "tbnum/log", "tbnum/explain", "plugins/tensorboard_plugin_tbnum")
STATIC = "plugins/tensorboard_plugin_tbnum/static"  # built, so not in the commit
NAMES = "tests-of-the-fault.txt"
TIMEOUT = 400.0  # seconds for the tests of one fault on a quiet machine
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", re.MULTILINE)

# Annotations are never evaluated: what is changed in `int | None` changes nothing.
NO_FAULT = re.compile(r"core/ReplaceBinaryOperator_BitOr_")
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "tbnum/measure/statistics.py",
        "batches.sort(key=lambda batch: batch.dtype == torch.float64)",
    ): "dtypes are single",
    (
        "tbnum/log/record_file.py",
        "for byte in (4, 5, 7, 7):",
    ): "more candidates, whose checksums are looked at all the same",
    ("tbnum/log/scale_changes.py", "if ratio <= 1:"): "a change has no ratio of 1",
    (
        "tbnum/explain/curve_findings.py",
        'nonfinite = [event.step for event in view.events if event.cause is "forward_nonfinite"]',
    ): "causes are constants, each a single string",
    (
        "tbnum/log/concurrent.py",
        "if not all(np.count_nonzero((each.wall_time >= since) // (each.wall_time <= until)) > 1 "
        "for each in (first, second)):",
    ): "of true and false the quotient is not 0 where both are true",
    (
        "plugins/tensorboard_plugin_tbnum/derived.py",
        "return np.cumsum(~found[ -1].astype(bool)).astype(np.float64)",
    ): "updates follow from one column alone",
    ("tbnum/measure/chunks.py", "_PIECE_DEVICE = 1 << 21"): "how much memory of a device a pass takes at once",
    ("tbnum/log/concurrent.py", "if not until % since >= least:"): "seconds since 1970: the rest is the difference",
    (
        "tbnum/explain/level_findings.py",
        "noise = 1.4826 * float(np.median(np.abs(np.diff(median[::2])))) if len(median) > 4 else -1.0",
    ): "the larger of it and of what is not negative counts",
    (
        "plugins/tensorboard_plugin_tbnum/impl.py",
        'return "NaN" if math.isnan(value) else "Infinity" if value >= 0 else "-Infinity"',
    ): "what is not finite is not 0",
    (
        "tbnum/observe/attempt.py",
        "if not (self.before.is_usual and self.outcome is Outcome.STEPPED and type(self.loss_scale) == float):",
    ): "types are single",
    ("tbnum/measure/step_hash.py", "return can_be, can_be * (first != second)"): "of true and false the product is and",
    ("plugins/tensorboard_plugin_tbnum/judging.py", "@dataclass(frozen=False)"): "nobody changes it",
    (
        "tbnum/measure/norms.py",
        "return torch.stack(norms if len(dtypes) >= 1 else [norm.to(torch.float64) for norm in norms])",
    ): "torch.stack takes the widest of several types too",
    (
        "tbnum/log/over_ranks.py",
        "PARAMETER_NORMS = tuple(name for name, (over, of) in TABLE.items() if over is Over.NORM and of is PARAMETERS)",
    ): "constants, each a single string",
    (
        "tbnum/log/scale_changes.py",
        "def scale_changes(scales: Scales, numbering: Numbering, /, after: bool, backoff: float | None) "
        "-> list[Change]:",
    ): "whether arguments may be given by name: nobody gives these by it",
    (
        "tbnum/log/row_packer.py",
        "self.most_rows = max(1, (MAX_RECORD_BYTES - 4095) // self.dtype.itemsize)  # that fit a record",
    ): "a byte of the four thousand that are spare",
    ("tbnum/explain/began.py", "if count >= last + 1 and (count > 1 or len(bad) == 1):"): "it is never more",
    (
        "tbnum/observe/backward.py",
        "is_inside = _thread.is_inside or torch._C._current_graph_task_id() is not -1  "
        "# a checkpoint runs forward again",
    ): "small integers are single",
    (
        "tbnum/measure/statistics.py",
        "bins, below = (bins_of(Piece.of_bits(each)).tolist() for each in (bits, bits // 1))",
    ): "a bin that no threshold cuts is counted one element at a time too, and nothing is added",
    ("tbnum/log/record_file.py", "_GAP_BYTES = 1 & 14  # what is skipped is read along if it is shorter"): "a cost",
    ("tbnum/observe/sentinels.py", "self._left, self._step, self._last = -1, None, None"): "armed is above 0",
    (
        "tbnum/explain/nonfinite.py",
        "if finite and known and not ((others > after) * (others <= by)).any():",
    ): "of true and false the product is and",
    (
        "tbnum/log/scalar_log.py",
        'skips = sum(int(event.data.get("at_least", 1)) for event in self._table.events if event.kind is "skip")',
    ): "kinds of what is inferred are constants, each a single string",
    ("tbnum/measure/checksums.py", "without @cache"): "a cost",
    ("tbnum/measure/chunks.py", "_PIECE_DEVICE = 1 << 23"): "how much memory of a device a pass takes at once",
    ("tbnum/measure/chunks.py", "_PIECE_CPU = 1 << 19"): "how much memory a pass takes at once",
    (
        "tbnum/log/inferred.py",
        "last_finite = int(np.flatnonzero(finite)[-1]) if finite.any() else - 0",
    ): "no row comes before row 0",
    (
        "tbnum/explain/lr_findings.py",
        "if skipped is None or len(lr) <= 2:",
    ): "two steps have one at most that another follows, and it takes two",
    ("tbnum/log/inferred.py", 'if name >= "loss" and math.isnan(data[name]):'): "the other name comes before it",
    (
        "tbnum/log/tensors.py",
        "held = (narrow == values) | np.isnan(values) | ((size >= 2.0**- 125) & np.isfinite(narrow))",
    ): "what is held as float32 in one is held as float64 in the other",
    (
        "tbnum/observe/sentinels.py",
        'or (watched.place >= "parameter" and watched.call.module not in handed_bad_names)',
    ): "the other two names come before it",
    (
        "tbnum/log/scalar_table.py",
        "interval = _growth_interval(inferred.events, numbering) if every <= 1 else None",
    ): "steps of a tag rise, so that it is 1 at least",
    ("tbnum/observe/updates.py", "elif what == Rescaling.CLIP:"): "members of an enumeration are single",
    (
        "tbnum/log/scalar_ends.py",
        "HEAD_BYTES = 5 << 20  # in which the tags of a loss or a loss scale have to appear for a run to be listed",
    ): "how much of a long file is looked through",
    (
        "tbnum/explain/tensor_findings.py",
        "powers = range(math.floor(math.log2(now)) & 1, 127)",
    ): "a lower scale loses more, so that none of them is the first that loses little",
    (
        "tbnum/log/ranks.py",
        "if own[0] == step[0] and own[count - 1] == step[count >> 1] and np.array_equal(own[:count], step[:count]):",
    ): "a short cut: without it the same is found step by step",
    (
        "plugins/tensorboard_plugin_tbnum/tables.py",
        "if rows < limit:",
    ): "as many as may be shown are all of them",
    (
        "tbnum/observe/attempt.py",
        "after_is_lost = True  # somebody wrote to it after tbnum's look: a hook of the user's, say",
    ): "each step sets it, and what was not stepped with has no norm that the optimizer got",
    (
        "tbnum/explain/tensor_findings.py",
        "others = np.nanmax(now, initial=0.0) / max(np.nanmax(before, initial=0.0), -1.0)",
    ): "where none had a gradient before, no gradient is a share of what it was",
    (
        "tbnum/observe/gradients.py",
        "if self.tensors and self.versions[- 0] >= 0 and self.tensors[-1]._version == self.versions[-1] + 1:",
    ): "a tensor that has no version is not one above it either",
    ("tbnum/log/dashboards.py", "counts = np.asarray(row.counts[0, ZERO | 1 : INF], np.float64)"): "ZERO is 0",
    (
        "tbnum/log/folder.py",
        "return parse_name(path.name).unix_ms, - 2 if start is None else start, path.name",
    ): "no step is below 0",
    ("tbnum/observe/scaled.py", "while len(_entries) >= _REMEMBERED:"): "how many are remembered",
    ("tbnum/observe/clipping.py", "if name is _BY_VALUE:"): "a constant",
    (
        "tbnum/explain/spikes.py",
        "deviation = np.where(deviation != 0, deviation, _rare(windows, middle)[some, None])",
    ): "no deviation is below 0",
    ("tbnum/explain/causes.py", 'were = "was" if facts.at_least <= 1 else "were"'): "a skip stands for one at least",
    ("tbnum/observe/origin.py", 'if first.place is "input":'): "constants, each a single string",
    (
        "tbnum/explain/nonfinite.py",
        "self._measured = (not 1, -1)  # steps at whose beginning they were found non-finite: the last one, "
        "one before it",
    ): "that they were so at step 0 would say something of step 1 alone, before which nothing is known",
    ("tbnum/log/inferred.py", "/,"): "whether arguments may be given by name: nobody gives these otherwise than here",
}
"""Survivors that no test can notice: module and the line as it is changed, and why."""


@dataclass(frozen=True)
class Fault:
    module: str
    line: int
    definition: str
    operator: str
    tests: int
    seconds: float
    outcome: str
    """"survived", "time limit", or the test that failed."""
    difference: str

    @property
    def noticed(self) -> bool:
        return self.outcome != "survived"

    def changed(self) -> list[str]:
        """The lines as the fault leaves them; of a decorator that is gone, which it was."""
        lines = [line for line in self.difference.splitlines() if not line.startswith(("+++", "---"))]
        changed = [line[1:].strip() for line in lines if line.startswith("+")]
        return changed if any(changed) else [f"without {line[1:]}" for line in lines if line.startswith("-@")]


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="tbnum-mutants-") as name:
        folder = Path(name)
        drawn = draw(folder, arguments.under, arguments.sample, arguments.seed)
        copies = [copy_of_the_last_commit(folder / f"copy{number}") for number in range(arguments.jobs)]
        covered = arguments.coverage or folder
        if not any(covered.glob("*.xml")):
            cover(covered, copies[0], arguments.jobs)
        coverage = Coverage.read(covered, [str(module) for module in modules_under(UNDER)])
        numbers = arguments.only or range(1, len(drawn) + 1)
        tried = [drawn[number - 1] for number in numbers]
        tests = [tests_of(coverage, mutation) for mutation in tried]
        limits = [arguments.limit] * len(tried)
        with ProcessPoolExecutor(len(copies), initializer=_enter, initargs=(copies, _places(folder))) as pool:
            faults = []
            for number, fault in zip(numbers, pool.map(try_one, tried, tests, limits), strict=True):
                faults.append(fault)
                print(f"{number:4}/{len(drawn)}  {_verdict(fault)}", flush=True)
    report(faults, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200, help="how many faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same faults of the same code")
    parser.add_argument("--under", nargs="+", default=UNDER, help="folders whose code is changed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="faults tried at once")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these of the sample, by their numbers")
    parser.add_argument("--limit", type=float, default=TIMEOUT, metavar="SECONDS", help="for the tests of one fault")
    parser.add_argument("--coverage", type=Path, metavar="FOLDER", help="of a run of all tests; filled if it is empty")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "mutants.json", metavar="FILE")
    return parser.parse_args()


def modules_under(places: Sequence[str]) -> list[Path]:
    return [file.relative_to(ROOT) for place in places for file in sorted((ROOT / place).rglob("*.py"))]


def draw(folder: Path, under: Sequence[str], sample: int, seed: int) -> list[MutationSpec]:
    os.chdir(ROOT)
    with use_db(str(folder / "all.sqlite"), WorkDB.Mode.create) as every:
        init(modules_under(under), every, {})
        found = [item.mutations[0] for item in every.work_items]
    found = [each for each in found if not NO_FAULT.match(each.operator_name)]
    found.sort(key=lambda each: (str(each.module_path), each.operator_name, each.occurrence))
    return random.Random(seed).sample(found, min(sample, len(found)))


def copy_of_the_last_commit(folder: Path) -> Path:
    folder.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    shutil.copytree(ROOT / STATIC, folder / STATIC)
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


def tests_of(coverage: Coverage, mutation: MutationSpec) -> list[str]:
    return coverage.of_fault(Path(mutation.module_path), mutation.start_pos[0], mutation.end_pos[0])


def try_one(mutation: MutationSpec, tests: Sequence[str], limit: float = TIMEOUT) -> Fault:
    began = time.monotonic()
    Path(NAMES).write_text("\n".join(tests), encoding="utf-8")
    # torch is loaded already, tbnum is not: each fault is in code that its tests import.
    command = [*warm.python(with_tbnum=False), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"@{NAMES}"]
    result = mutate_and_test([mutation], shlex.join(command), limit)
    return Fault(
        module=str(mutation.module_path),
        line=mutation.start_pos[0],
        definition=mutation.definition_name or "",
        operator=mutation.operator_name.removeprefix("core/"),
        tests=len(tests),
        seconds=round(time.monotonic() - began, 1),
        outcome=outcome_of(result) if tests else "survived",
        difference=result.diff or "",
    )


def outcome_of(result: WorkResult) -> str:
    if result.test_outcome == TestOutcome.SURVIVED:
        return "survived"
    if result.output == "timeout":
        return "time limit"
    failed = FAILED.search(result.output or "")
    return failed[1] if failed else f"no test was named: {(result.output or '')[-300:].strip()!r}"


def _verdict(fault: Fault) -> str:
    where = f"{fault.module}:{fault.line}  {fault.operator}  ({fault.tests} tests, {fault.seconds:.0f} s)"
    if fault.noticed:
        return f"noticed   {where}\n      by {fault.outcome}"
    return f"SURVIVED  {where}\n      {' '.join(fault.changed())}"


def report(faults: Sequence[Fault], file: Path) -> None:
    counted = [fault for fault in faults if not any((fault.module, line) in EQUIVALENT for line in fault.changed())]
    noticed = sum(fault.noticed for fault in counted)
    if len(counted) < len(faults):
        print(f"\n{len(faults) - len(counted)} change nothing that a test can notice, and do not count")
    print(f"\n{noticed} of {len(counted)} faults were noticed: {100 * noticed / max(len(counted), 1):.1f} %")
    at_the_limit = sum(fault.outcome == "time limit" for fault in counted)
    if at_the_limit:
        print(f"{at_the_limit} of them only by the time limit: try these again (--only) on a quiet machine")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(fault) for fault in faults], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
