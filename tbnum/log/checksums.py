"""The checksums of tensors' bits that a run has, read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tbnum.formats import CHECKSUM
from tbnum.log.ranks import ChecksumSeries
from tbnum.log.tensors_reader import Tensors

__all__ = ["Checksums"]


class Checksums(Mapping[str, ChecksumSeries]):
    """By what they are of: "gradient" (before clipping), "parameter" (after the update), and the optimizer's moments as
    its state calls them: `steps, names, values = checksums["parameter"]`, values (S, P) uint64, 0 where unknown.
    """

    def __init__(self, tables: Tensors | None = None) -> None:
        self._tables = Tensors((), {}) if tables is None else tables

    def __repr__(self) -> str:
        return f"Checksums({list(self)})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables.checksums)

    def __len__(self) -> int:
        return len(self._tables.checksums)

    def __contains__(self, what: object) -> bool:
        return what in self._tables.checksums

    def __getitem__(self, what: str) -> ChecksumSeries:
        if what not in self:
            raise KeyError(f"no checksums of {what!r}; there are those of {', '.join(self) or 'nothing'}")
        return self._tables.read(CHECKSUM + what)

    @property
    def steps(self) -> np.ndarray:
        """(S,) all steps with checksums. Reads nothing."""
        return self._tables.steps_with([CHECKSUM + what for what in self])

    @property
    def tensors(self) -> int:
        """How many have one. Reads nothing."""
        return len(self._tables.names_with([CHECKSUM + what for what in self]))

    def between(self, first_step: int, last_step: int) -> dict[str, ChecksumSeries]:
        """Those from one step to another, of all kinds in one pass over the tables: the steps and names of all."""
        columns = [CHECKSUM + what for what in self]
        if not columns:
            return {}
        steps, names, values = self._tables.read_together(columns, first_step, last_step)
        return {what: (steps, names, values[CHECKSUM + what]) for what in self}
