"""Runs the cases, in two processes, and prints the table."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.truth import faults, loops, noise
from benchmarks.truth.corpus import (
    ANY_DIFFERENCE,
    CACHE,
    FAULTS,
    HEALTHY,
    SEEDS,
    TRUTHS,
    Case,
    cases_of,
    is_held_out,
    recorded,
)
from benchmarks.truth.verdict import (
    HEALTHY_OUTCOMES,
    OF_THE_LOSS,
    OUTCOMES,
    Statement,
    had_an_effect,
    judge,
    refuted_by,
    rose,
    statements,
    wilson,
)

NO_EFFECT = "no effect"
PARTS = ("faults", "healthy", "noise")

_REGISTERED = (faults, loops)  # by being imported


@dataclass(frozen=True)
class Result:
    name: str
    kind: str
    held_out: bool
    outcome: str
    said: list[str]


def look_at_fault(case: Case, cache: Path, any_recorder: bool) -> Result:
    folder, account = recorded(case, cache, any_recorder=any_recorder)
    twin_folder, twin = recorded(case.twin(), cache, any_recorder=any_recorder)
    said, usual = statements(folder), statements(twin_folder)
    if had_an_effect(account, twin, any_difference=case.kind in ANY_DIFFERENCE):
        blameless = OF_THE_LOSS if rose(account.losses) else ()  # true, as of a healthy loop
        outcome = judge(TRUTHS[case.kind], said, account.begin, usual, blameless, refuted_by(account))
    else:
        outcome = NO_EFFECT
    return Result(case.name, case.kind, is_held_out(case.kind), outcome, [f"begins at {account.begin}", *_lines(said)])


def look_at_healthy(case: Case, cache: Path, any_recorder: bool) -> Result:
    folder, account = recorded(case, cache, any_recorder=any_recorder)
    assert account.finite and not account.ended, f"{case.name} is not healthy: {account.ended}"
    return _of_healthy(case.name, case.kind, statements(folder), rose(account.losses))


def look_at_noise(kind: str, seed: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="tbnum-truth-") as folder:
        noise.write(kind, seed, Path(folder) / "run")
        return _of_healthy(f"{kind}/{seed}", kind, statements(Path(folder) / "run"))


def _of_healthy(name: str, kind: str, said: Sequence[Statement], loss_rose: bool = False) -> Result:
    """An alarm that says no more than that the loss went up is none where it did, by the loop's own count of it."""
    alarms = {each.name for each in said if each.grave}
    quiet, excused, false_alarm = HEALTHY_OUTCOMES
    outcome = quiet if not alarms else excused if loss_rose and alarms <= OF_THE_LOSS else false_alarm
    return Result(name, kind, is_held_out(kind), outcome, _lines(said))


def _lines(said: Sequence[Statement]) -> list[str]:
    """What was said, what is grave first; each name once."""
    lines: dict[str, str] = {}
    for each in sorted(said, key=lambda each: not each.grave):
        where = f"[{each.steps[0]}..{each.steps[-1]}]" if each.steps else ""
        lines.setdefault(each.name, f"{each.severity:<7} {each.name} {where} {each.text[:300]}")
    return list(lines.values())


# -- the table -----------------------------------------------------------------------------------------------------


def table(results: Sequence[Result], outcomes: Sequence[str]) -> list[str]:
    """A line an outcome: how many, of how many, their share and its 95 % bounds; tuned and held out."""
    sides = [[result for result in results if result.held_out == held_out] for held_out in (False, True)]
    counts = [Counter(result.outcome for result in side) for side in sides]
    totals = [sum(count[outcome] for outcome in outcomes) for count in counts]
    lines = []
    for outcome in outcomes:
        cells = []
        for count, total in zip(counts, totals, strict=True):
            low, high = wilson(count[outcome], total)
            share = 100 * count[outcome] / max(1, total)
            cells.append(f"{count[outcome]:>4} of {total:<4} {share:5.1f} % ({100 * low:.0f} to {100 * high:.0f})")
        lines.append(f"{outcome:<18}" + "".join(f"{cell:<34}" for cell in cells).rstrip())
    return lines


def one_a_kind(cases: Sequence[Case]) -> list[Case]:
    """Of each kind another of its cases, so that models and precisions are mixed."""
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        kinds.setdefault(case.kind, []).append(case)
    return [alike[zlib.crc32(kind.encode()) % len(alike)] for kind, alike in kinds.items()]


def by_kind(results: Sequence[Result]) -> list[Result]:
    """A result a kind, its worst: the cases of a kind are much alike, and no independent samples."""
    worst: dict[str, Result] = {}
    for result in results:
        if result.outcome == NO_EFFECT:
            continue
        known = worst.get(result.kind)
        if known is None or OUTCOMES.index(result.outcome) > OUTCOMES.index(known.outcome):
            worst[result.kind] = result
    return list(worst.values())


def report(faults: Sequence[Result], loops: Sequence[Result], noisy: Sequence[Result]) -> str:
    head = f"{'':<18}{'tuned':<34}held out (95 % bounds)"
    idle = sum(result.outcome == NO_EFFECT for result in faults)
    kinds = len({result.kind for result in faults})
    lines = [f"Planted faults: {len(faults)} runs of {kinds} kinds; {idle} without an effect are left out", head]
    lines += table(faults, OUTCOMES)
    lines += ["", "By kind, the worst of its runs", head, *table(by_kind(faults), OUTCOMES)]
    for title, results in (("Healthy loops", loops), ("Loss noise, 10,000 steps a run", noisy)):
        if results:
            kinds = len({result.kind for result in results})
            lines += ["", f"{title}: {len(results)} runs of {kinds} kinds", head]
            lines += table(results, HEALTHY_OUTCOMES)
    return "\n".join(lines)


def failing(results: Iterable[Result]) -> str:
    """The tuned cases that are not as they should be, with what was said. Nothing of those that are held out."""
    lines = []
    for result in results:
        if not result.held_out and result.outcome not in ("right", "quiet"):
            lines.append(f"\n{result.outcome.upper()}  {result.name}")
            lines += [f"    {line}" for line in result.said]
    return "\n".join(lines)


# -- running it ----------------------------------------------------------------------------------------------------


def run_all(calls: Sequence[tuple[Callable[..., Result], tuple[Any, ...]]], processes: int) -> list[Result]:
    """In order. Each process has one thread."""
    if processes == 1:
        return [_run(*call) for call in calls]
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = [pool.submit(_run, *call) for call in calls]
        results = []
        for at, future in enumerate(futures):
            results.append(future.result())
            print(f"\r{at + 1} of {len(calls)}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return results


def _run(call: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    """An exception, in the loop's `close()` or in the report, is the worst that can be said."""
    try:
        return call(*arguments)
    except Exception as error:
        if call is look_at_noise:
            raise
        case: Case = arguments[0]
        outcome = "wrong" if call is look_at_fault else "false alarm"
        said = [f"raised {type(error).__name__}: {error}", traceback.format_exc()]
        return Result(case.name, case.kind, is_held_out(case.kind), outcome, said)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.truth", description="How often tbnum is right.")
    parser.add_argument("kinds", nargs="*", help="parts of the names of the kinds to look at; all of them by default")
    parser.add_argument("--failing", action="store_true", help="list the tuned cases that are not right")
    parser.add_argument("--one-a-kind", action="store_true", help="one run of each kind of loop")
    parser.add_argument("--held-out", action="store_true", help="only the kinds that are held out, of which it counts")
    parser.add_argument("--part", choices=PARTS, help="only this part")
    parser.add_argument("--any-recorder", action="store_true", help="records that an earlier tbnum made will do")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where records are kept")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--noise-runs", type=int, default=noise.RUNS, help="of each kind of noise")
    parser.add_argument("--json", type=Path, help="write the results of all but the held-out cases here")
    arguments = parser.parse_args(argv)

    def chosen(kind: str) -> bool:
        named = not arguments.kinds or any(part in kind for part in arguments.kinds)
        return named and (is_held_out(kind) or not arguments.held_out)

    settings = (arguments.cache, arguments.any_recorder)
    planted = [case for case in cases_of(FAULTS) if chosen(case.kind)]
    sound = [case for case in cases_of(HEALTHY, SEEDS[:1]) if chosen(case.kind)]
    if arguments.one_a_kind:
        planted, sound = one_a_kind(planted), one_a_kind(sound)
    parts: list[list[tuple[Callable[..., Result], tuple[Any, ...]]]] = [
        [(look_at_fault, (case, *settings)) for case in planted],
        [(look_at_healthy, (case, *settings)) for case in sound],
        [(look_at_noise, (kind, seed)) for kind in noise.KINDS if chosen(kind) for seed in range(arguments.noise_runs)],
    ]
    results = [
        run_all(calls, arguments.processes) if arguments.part in (None, part) else []
        for part, calls in zip(PARTS, parts, strict=True)
    ]
    if arguments.failing:
        print(failing(result for part in results for result in part), "\n")
    print(report(*results))
    if arguments.json:
        shown = [asdict(result) for part in results for result in part if not result.held_out]
        arguments.json.write_text(json.dumps(shown, indent=1))
    return 0
