"""Writes by `.data` to gradients that had been clipped or unscaled: they leave no mark, and change what was measured.

A mask on the rows of an embedding is one, a clip by hand after `scaler.unscale_` another. What the optimizer gets is
measured again at intervals; once it was something else, at every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tbnum.measure.norms import combine
from tbnum.observe.transfer import Number

if TYPE_CHECKING:
    from tbnum.observe.attempt import Attempt

__all__ = ["UnseenWrites"]

_EXACT, _NARROW = 1e-4, 1e-2  # what rounding makes of a norm that was multiplied: in float32, in 16 bits


class UnseenWrites:
    """In the loop of one optimizer."""

    def __init__(self) -> None:
        self.were_found = False
        self._tolerance = _EXACT

    def verify(self, attempt: Attempt) -> None:
        """Hold what the optimizer gets against what was clipped or unscaled; later, where a device has a number."""
        if attempt.uncertain or attempt.after is None or attempt.seen is None:
            return
        if any(gradient.dtype.itemsize < 4 for gradient in attempt.seen.tensors):
            self._tolerance = _NARROW
        before, coefficients = _known(attempt.before.totals), _known(attempt.coefficients)
        after = _known(attempt.after.totals)
        if before is None or coefficients is None or after is None:
            attempt.unseen_writes = self
        elif self.differ(combine(before) * math.prod(coefficients), combine(after)):
            attempt.uncertain = True

    def differ(self, expected: float, found: float) -> bool:
        """Whether two norms are not of the same gradients."""
        if not (math.isfinite(expected) and math.isfinite(found)):
            return False
        differ = not self.are_alike(expected, found)
        self.were_found |= differ
        return differ

    def are_alike(self, expected: float, found: float) -> bool:
        """Whether two finite norms may be of the same gradients."""
        return math.isclose(expected, found, rel_tol=self._tolerance)


def _known(numbers: Sequence[Number]) -> list[float] | None:
    """None where a device has one of them."""
    known = [number for number in numbers if isinstance(number, float)]
    return known if len(known) == len(numbers) else None
