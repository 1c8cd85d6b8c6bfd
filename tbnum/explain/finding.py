"""What a finding is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """A statement about a run. `rule` names it for programs and stays the same between versions."""

    rule: str
    severity: str
    title: str
    evidence: str
    remedy: str
