"""What a finding is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tbnum.markup import card, escaped, shown

__all__ = ["OF_THE_RUN", "Finding", "steps_of"]

STEPS_TOLD = 100

OF_THE_RUN: tuple[int, ...] = ()
"""The steps of a finding that is about the run as a whole."""


@dataclass(frozen=True)
class Finding:
    """A statement about a run. `rule` names it for programs and stays the same between versions.

    `steps`: where to look for what it says, in order, `STEPS_TOLD` at most. There is no default, so that no rule
    forgets them: one about the run as a whole says so with `OF_THE_RUN`.
    """

    rule: str
    severity: str
    title: str
    evidence: str
    remedy: str
    steps: tuple[int, ...]

    def _repr_html_(self) -> str:
        return shown(card(self.severity, f"<b>{escaped(self.title)}</b>", self.evidence, self.remedy))


def steps_of(steps: Iterable[int] | np.ndarray) -> tuple[int, ...]:
    """Steps, in order, each once, the first `STEPS_TOLD`. For `Finding.steps`."""
    reported = np.unique(np.fromiter(steps, np.int64) if not isinstance(steps, np.ndarray) else steps)
    return tuple(reported[:STEPS_TOLD].tolist())
