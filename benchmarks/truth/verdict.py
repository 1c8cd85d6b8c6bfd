"""What tbnum says of a run, held against what was planted in it. Torch is not loaded."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tbnum
from tbnum.explain import findings
from tbnum.log.schema import SEVERITIES

__all__ = [
    "HEALTHY_OUTCOMES",
    "OF_THE_LOSS",
    "OUTCOMES",
    "Statement",
    "Truth",
    "had_an_effect",
    "judge",
    "refuted_by",
    "rose",
    "statements",
    "wilson",
]

OUTCOMES = ("right", "right, info", "near", "silent", "wrong")
"""From the best to the worst: a report that sends to another place is worse than none."""

HEALTHY_OUTCOMES = ("quiet", "alarm, loss rose", "false alarm")
OF_THE_LOSS = frozenset({"loss_rose", "loss_spike"})
"""Statements that say no more than that the loss went up."""

UNKNOWN = "unknown"
"""The cause of a skip of which the record does not say why: it blames nothing."""

LASTING = 1 << 30


@dataclass(frozen=True)
class Truth:
    """What somebody who knows the fault would accept as its name."""

    right: tuple[str, ...]
    near: tuple[str, ...] = ()
    """Points to the right place, not to the fault."""
    wrong: tuple[str, ...] = ()
    """Blames something else. Said in the steps of the fault as a warning, it makes the verdict wrong, come what may."""
    least: str = "warning"
    """Severity that a right statement needs. Info where a loop may mean it."""
    words: str = ""
    """Regular expression that the evidence or the remedy of a right statement has to match."""
    early: int = 0
    """Steps before the fault that a right statement may begin at: a window's first, say."""
    late: int = LASTING
    """Steps after the fault within which a right statement has to begin."""
    from_start: bool = False
    """The fault is there from the first step on."""


@dataclass(frozen=True)
class Statement:
    """A finding or an event, as a reader sees it."""

    name: str
    severity: str
    steps: tuple[int, ...]
    text: str

    @property
    def grave(self) -> bool:
        return self.severity != "info"


def statements(logdir: Path) -> list[Statement]:
    """All that is said of the one run in a folder: findings by their rule, events by their kind and their cause."""
    (run,) = tbnum.read(logdir).values()
    events = run.events
    said = [
        Statement(finding.rule, finding.severity, finding.steps, f"{finding.title} {finding.evidence} {finding.remedy}")
        for finding in findings(run, events)
    ]
    for event in events:
        text = f"{event.message} {event.remedy}"
        names = (event.kind if event.kind != "skip" or not event.cause else None, event.cause)  # of a skip, its cause
        said += [Statement(name, event.severity, (event.step,), text) for name in names if name]
    return said


def judge(
    truth: Truth,
    said: Sequence[Statement],
    begin: int,
    usual: Iterable[Statement] = (),
    blameless: Collection[str] = (),
    refuted: Collection[str] = (),
) -> str:
    """One of `OUTCOMES`. `usual`: what is said of the loop without the fault; as gravely, it is not the fault's.

    What is grave and in no list sends to another place: then nothing counts that is near or right, but an information
    alone. Names that are `blameless` send nowhere; what is `refuted` and grave is wrong whatever the lists say.
    """
    begin = 0 if truth.from_start else begin
    known, common = truth.right + truth.near, {(each.name, each.grave) for each in usual}
    own = [each for each in said if each.name in truth.right or not _is_usual(each, common)]
    own = [each for each in own if not each.steps or each.steps[-1] >= begin - truth.early]
    grave = {each.name for each in own if each.grave}
    if any(each.name in truth.wrong and each.grave and _at_fault(each, begin) for each in said):
        return "wrong"
    if not grave.isdisjoint(refuted):
        return "wrong"
    right = [each for each in own if each.name in truth.right and _fits(truth, each, begin)]
    if any(SEVERITIES.index(each.severity) >= SEVERITIES.index(truth.least) for each in right):
        return "right"
    if grave.difference({UNKNOWN, *blameless}) and grave.isdisjoint(known):
        return "wrong"
    if right:
        return "right, info"
    return "near" if any(each.name in known for each in own) else "silent"


def refuted_by(account: Any) -> set[str]:
    """What cannot be true of a run, by the loop's own account of itself."""
    names = set()
    if account.finite:
        names |= {"nonfinite_parameters", "nonfinite_update"}
    if all(map(math.isfinite, account.losses)):
        names |= {"forward_nonfinite", "nonfinite_loss", "mean_over_nothing"}
    if not account.ended:
        names.add("crash")
    return names


def _is_usual(said: Statement, common: set[tuple[str, bool]]) -> bool:
    return (said.name, True) in common or (not said.grave and (said.name, False) in common)


def _at_fault(said: Statement, begin: int) -> bool:
    return not said.steps or any(begin <= step <= begin + 2 for step in said.steps)


def _fits(truth: Truth, said: Statement, begin: int) -> bool:
    if truth.words and not re.search(truth.words, said.text, re.IGNORECASE):
        return False
    if not said.steps:
        return True
    first = next((step for step in said.steps if step >= begin - truth.early), said.steps[0])
    return first - begin <= truth.late


def had_an_effect(account: Any, twin: Any, *, any_difference: bool) -> bool:
    """Whether a fault did harm: something is not finite, skipped, ended, or the loss was clearly higher.

    `any_difference`: other weights at the end are enough.
    """
    if any_difference and account.weights != twin.weights:
        return True
    if account.ended != twin.ended or account.finite != twin.finite:
        return True
    if len(account.skips) > len(twin.skips) + 3:
        return True
    if set(range(account.begin, account.begin + 5)) & (set(account.skips) - set(twin.skips)):
        return True
    loss, usual = np.array(account.losses), np.array(twin.losses)
    shared = min(len(loss), len(usual))
    loss, usual = loss[:shared], usual[:shared]
    if np.isfinite(loss).sum() < np.isfinite(usual).sum():
        return True
    if not math.isfinite(account.validation) or account.validation > 1.05 * twin.validation:
        return True
    noise = np.std(np.diff(usual)) + 1e-9
    return bool(np.nanmax(loss - usual) > 6 * noise or np.median((loss - usual)[-100:]) > noise)


ROSE_WINDOW, ROSE_QUANTILE = 32, 0.95


def rose(losses: Sequence[float]) -> bool:
    """Whether a loop's own losses truly rose: half of a window of 32 lie above 95 % of an earlier one.

    An independent criterion: what the loop counted itself, in float64; nothing of the record, none of tbnum's rules or
    thresholds. It asks for no cause, and for no harm. Of noise that does not rise, whatever its shape, one run of 480
    steps in 400 passes, and one of 2,000 in 50. A run of fewer than 64 losses never does.
    """
    values = np.array([loss for loss in losses if math.isfinite(loss)], float)
    windows = values[len(values) % ROSE_WINDOW :].reshape(-1, ROSE_WINDOW)
    if len(windows) < 2:
        return False
    lowest = np.minimum.accumulate(np.quantile(windows, ROSE_QUANTILE, axis=1))
    return bool((np.median(windows, axis=1)[1:] > lowest[:-1]).any())


def wilson(count: int, total: int) -> tuple[float, float]:
    """95 % bounds of a share (Wilson's score interval)."""
    if not total:
        return 0.0, 1.0
    z = 1.96
    share, spread = count / total, z * math.sqrt(count * (total - count) / total**3 + (z / total / 2) ** 2)
    center, scale = share + z * z / (2 * total), 1 + z * z / total
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)
