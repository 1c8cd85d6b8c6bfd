"""The rows of the log: the values of a step in the order of its columns."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

from tbnum.log.schema import step_columns
from tbnum.measure.step_hash import step_hash
from tbnum.observe.landing import Note
from tbnum.observe.records import OptimizerRecord, Shares, StepRecord

__all__ = ["Row", "StepRows"]

Row = tuple[float | bool, ...]

_ABSENT, _NO_SHARES = OptimizerRecord(), Shares()


class StepRows:
    """Makes rows, whose columns grow where a step brings something new.

    `groups`: how many parameter groups each optimizer has.
    """

    def __init__(self, groups: Mapping[str, int]) -> None:
        self._groups = dict(groups)
        self._losses: tuple[str, ...] = ()  # names of losses that the loop reports
        self._sharded: set[str] = set()
        self._has_ids = False  # of some step so far: their hash is a column
        self.has_several = len(self._groups) > 1
        self.columns: tuple[str, ...] = self._laid_out()

    def shard(self, optimizer: str) -> None:
        """Rows have the optimizer's shares of norms from now on."""
        self._sharded.add(optimizer)
        self.columns = self._laid_out()

    def row(self, record: StepRecord, batch_hash: int) -> Row:
        """The values of a step in the order of `columns`, which may be others than before. About 8 us."""
        if self._has_new_columns(record):
            self.columns = self._laid_out()
        optimizers, has_several = record.optimizers, self.has_several
        values: list[float | bool] = [
            record.step,
            record.wall_time,
            record.loss,
            record.micro_batches,
            record.loss_scale,
            record.growth_tracker,
        ]
        if has_several:
            values.append(record.skipped)
        for name, count in self._groups.items():
            one = optimizers.get(name, _ABSENT)
            values += (one.grad_norm, one.grad_norm_clipped, one.clip_coef, one.max_norm, one.skipped)
            values.append(one.nonfinite_tensors)
            values += one.lr
            if len(one.lr) < count:
                values += [math.nan] * (count - len(one.lr))
            values += (one.param_norm, one.update_norm)
            if name in self._sharded:
                shares = one.shares or _NO_SHARES
                values += (shares.grad_norm, shares.grad_norm_clipped, shares.param_norm, shares.update_norm)
        if self._losses:
            values += [record.named_losses.get(name, math.nan) for name in self._losses]
        if has_several:
            values += [optimizers.get(name, _ABSENT).loss for name in self._groups]
        if self._has_ids:
            values.append(batch_hash)
        values.append(_hash_of(record))
        return tuple(values)

    def takes(self, note: Note) -> bool:
        """Whether `of_note` makes the row of it: nothing that it lacks has a column."""
        is_alone = not (self.has_several or self._sharded or self._losses or self._has_ids)
        return is_alone and note.sample_ids is None and self._groups[note.optimizer] == len(note.rates)

    def of_note(self, note: Note, norms: array[float]) -> Row:
        """What `row` gives, of a step of which few values can be known; `norms` are its own, packed. About 3 us."""
        loss = sum(note.losses)
        clipped, coefficient, max_norm = note.clipped
        return (
            note.step,
            note.wall_time,
            loss,
            len(note.losses),
            note.loss_scale,
            note.growth_tracker,
            note.grad_norm,
            clipped,
            coefficient,
            max_norm,
            False,
            0.0,
            *note.rates,
            math.nan,
            math.nan,
            step_hash(note.losses, (norms,), note.way),
        )

    def _has_new_columns(self, record: StepRecord) -> bool:
        """Whether a parameter group was added, a loss named, or samples are known for the first time."""
        is_new = False
        for name, one in record.optimizers.items():
            if len(one.lr) > self._groups[name]:
                self._groups[name], is_new = len(one.lr), True
        if record.named_losses:
            losses = tuple(name for name in record.named_losses if name not in self._losses)
            self._losses, is_new = self._losses + losses, is_new or bool(losses)
        if record.sample_ids is not None and not self._has_ids:
            self._has_ids = is_new = True
        return is_new

    def _laid_out(self) -> tuple[str, ...]:
        has: dict[str, Any] = {"own_losses": True, "batches": self._has_ids, "hashed": True}
        return step_columns(self._groups, self._sharded, terms=self._losses, **has)


def _hash_of(record: StepRecord) -> int:
    """0 where the norms are not known, or not all were taken in one way. About 3 us."""
    way, norms = 0, []
    for one in record.optimizers.values():
        if one.norms_taken == 0 or one.norms_taken != (way or one.norms_taken):
            return 0
        way = one.norms_taken
        if one.grad_norms is not None:
            norms.append(one.grad_norms)
    return step_hash(record.losses or [record.loss], norms, way) if way else 0
