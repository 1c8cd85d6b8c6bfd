"""The means that seeds are judged by: of each run, over the last tenth of the steps that were compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tbnum.compare.align import Aligned
from tbnum.compare.noise import Verdict, judged

__all__ = ["Judged", "judged_by_seeds"]

_JUDGED = ("loss",)


class _Seed(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def steps(self) -> Any: ...


class Judged(NamedTuple):
    verdicts: tuple[Verdict, ...]
    left_out: tuple[str, ...]  # in words, the runs that end before what the means are of


class _Span(NamedTuple):
    """Steps of a run, both inclusive."""

    first: int
    last: int


def judged_by_seeds(
    a: Sequence[_Seed],
    b: Sequence[_Seed],
    noise: Sequence[_Seed],
    rows: Aligned,
    pair: tuple[_Seed, _Seed],
    paired: bool,
) -> Judged:
    """`rows` are those of `pair`, which is compared step by step; `paired`: `a` and `b` have the same seeds."""
    spans = [_late(run, of) for run, of in zip(pair, rows.rows, strict=True)]
    groups = list(zip((a, b, noise), (*spans, spans[0]), strict=True))
    found = []
    for column in _JUDGED:
        means = [[_mean(run, column, span) for run in group] for group, span in groups]
        together = paired and len(a) == len(b)
        if together:  # of a pair both, or none
            both = [None not in each for each in zip(*means[:2], strict=True)]
            means[:2] = [[mean if whole else None for mean, whole in zip(of, both, strict=True)] for of in means[:2]]
        first, second, seeds = ([mean for mean in of if mean is not None] for of in means)
        if first and second:
            found.append(judged(column, first, second, seeds, paired=together))
    left_out = [
        f"{run.name!r} ends before the steps {span.first} to {span.last}, whose means are compared"
        for group, span in groups
        for run in group
        if _ends_before(run, span)
    ]
    return Judged(tuple(found), tuple(left_out))


def _late(run: _Seed, rows: Any) -> _Span:
    """The last tenth of some rows."""
    step = run.steps["step"][rows]
    return _Span(int(step[len(step) - max(1, len(step) // 10)]), int(step[-1]))


def _ends_before(run: _Seed, span: _Span) -> bool:
    """Whether it has less than half of it."""
    step = run.steps.get("step", np.empty(0, np.int64))
    return not len(step) or 2 * int(step[-1]) < span.first + span.last


def _mean(run: _Seed, column: str, span: _Span) -> float | None:
    """Of the finite values. None: there is none, or the run ends before."""
    if column not in run.steps or _ends_before(run, span):
        return None
    step, values = run.steps["step"], run.steps[column]
    late = values[int(np.searchsorted(step, span.first)) : int(np.searchsorted(step, span.last, side="right"))]
    late = late[np.isfinite(late)]
    return float(late.mean()) if len(late) else None
