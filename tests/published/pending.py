"""Loops whose record is not yet right, and why. A name that passes must go (xfail is strict); empty is the aim."""

from __future__ import annotations

__all__ = ["PENDING"]

PENDING: dict[str, str] = {
    "accumulation.a_hook_of_the_users_halves_the_gradients_at_the_step": "what hooks after tbnum's change, is not seen",
}
