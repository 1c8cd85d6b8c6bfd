"""Loops whose record is not yet right, and why. A name that passes must go (xfail is strict); empty is the aim."""

from __future__ import annotations

__all__ = ["PENDING", "PENDING_PROPERTIES"]

_BY_REASON: dict[str, list[str]] = {}

PENDING = {name: reason for reason, names in _BY_REASON.items() for name in names}

PENDING_PROPERTIES: set[str] = {
    "the recipe",
    "no unscale_, no clip",
    "unscale_ without a clip",
    "accumulation",
    "AdamW, fused",
    "AdamW, fused, with a clip",
    "a subclass that overrides everything",
    "never a skip",
    "two optimizers",
    "an object around it",
    "a scale set by the user",
}
"""Loops of test_forgotten_scaler.py."""
