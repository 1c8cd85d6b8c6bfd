"""The cases: which loops there are, which are held out, and their records, trained once and kept."""

from __future__ import annotations

import hashlib
import inspect
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import tbnum
from benchmarks.truth import models
from benchmarks.truth.loop import Account, Loop
from benchmarks.truth.verdict import Truth

__all__ = ["CACHE", "FAULTS", "HEALTHY", "SEEDS", "Case", "cases_of", "faulty", "healthy", "is_held_out", "recorded"]

CACHE = Path(__file__).parents[2] / ".cache" / "truth"
SEEDS = (0, 1)

FAULTS: dict[str, type[Loop]] = {}
TRUTHS: dict[str, Truth] = {}
HEALTHY: dict[str, type[Loop]] = {}
ANY_DIFFERENCE: set[str] = set()


def faulty(truth: Truth, *, any_difference: bool = False) -> Callable[[type[Loop]], type[Loop]]:
    """Plants the class: the loop it inherits from is the same without the fault.

    `any_difference`: the fault need not have done harm yet, other weights at the end are an effect.
    """

    def register(loop: type[Loop]) -> type[Loop]:
        kind = _kind(loop)
        FAULTS[kind], TRUTHS[kind] = loop, truth
        if any_difference:
            ANY_DIFFERENCE.add(kind)
        return loop

    return register


def healthy(loop: type[Loop]) -> type[Loop]:
    HEALTHY[_kind(loop)] = loop
    return loop


def _kind(loop: type) -> str:
    """`LearningRateZero` -> `learning_rate_zero`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", loop.__name__).lower()


def is_held_out(kind: str) -> bool:
    """Of a third of the kinds, chosen by the hash of their names. No rule and no threshold is chosen by these."""
    return int(hashlib.sha256(kind.encode()).hexdigest(), 16) % 3 == 0


@dataclass(frozen=True)
class Case:
    loop: type[Loop]
    model: str
    seed: int
    precision: str

    @property
    def kind(self) -> str:
        return _kind(self.loop)

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.model}/{self.precision}/{self.seed}"

    def twin(self) -> Case:
        """The same without the fault."""
        return Case(self.loop.__mro__[1], self.model, self.seed, self.precision)

    def folder(self, cache: Path) -> Path:
        return cache / self.name.replace("/", "-") / f"{self.key()}-{_recorder()}"

    def key(self) -> str:
        """Checksum of all that decides how it trains."""
        text = [_body(each) for each in self.loop.__mro__ if issubclass(each, Loop)]
        text += [inspect.getsource(models), self.name, torch.__version__]
        return hashlib.sha256("\0".join(text).encode()).hexdigest()[:16]


def _body(loop: type[Loop]) -> str:
    """Its source without decorators: what is said of it later does not change how it trains."""
    source = inspect.getsource(loop)
    return source[re.search(r"^class ", source, re.MULTILINE).start() :]  # type: ignore[union-attr]


def cases_of(kinds: dict[str, type[Loop]], seeds: tuple[int, ...] = SEEDS) -> Iterator[Case]:
    """Each kind with each of its models and seeds; its precisions take turns."""
    for loop in kinds.values():
        for at, model in enumerate(loop.models):
            for seed in seeds:
                yield Case(loop, model, seed, loop.precisions[(at + seed) % len(loop.precisions)])


_RECORDING = re.compile(r"observe/|measure/|monitor|recorder")
_recorder_text: list[str] = []


def _recorder() -> str:
    """Checksum of what a record depends on: not of the rules, which are applied when it is read."""
    if not _recorder_text:
        root = Path(tbnum.__file__).parent
        files = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.py"))
        made = hashlib.sha256()
        for file in files:
            if _RECORDING.match(file):
                made.update((root / file).read_bytes())
        _recorder_text.append(made.hexdigest()[:8])
    return _recorder_text[0]


def recorded(case: Case, cache: Path, *, any_recorder: bool = False) -> tuple[Path, Account]:
    """The folder of a case's record, and what the loop saw of itself. Trains it where it is not there yet.

    `any_recorder`: a record of an earlier tbnum will do.
    """
    folder = case.folder(cache)
    if any_recorder and not (folder / "account.json").is_file():
        earlier = sorted(folder.parent.glob(f"{case.key()}-*/account.json"), key=lambda file: file.stat().st_mtime)
        folder = earlier[-1].parent if earlier else folder
    if not (folder / "account.json").is_file():
        _train(case, folder)
    return folder / "run", Account.load(folder / "account.json")


def _train(case: Case, folder: Path) -> None:
    """Into a folder of its own first: another process may train the same case at the same time."""
    making = Path(tempfile.mkdtemp(dir=_made(folder.parent), prefix="making-"))
    case.loop(case.model, case.seed, case.precision).record(making / "run").save(making / "account.json")
    for earlier in folder.parent.glob("*/account.json"):
        if not earlier.parent.name.startswith("making-"):
            shutil.rmtree(earlier.parent, ignore_errors=True)
    try:
        making.rename(folder)
    except OSError:  # the other was faster
        shutil.rmtree(making)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
