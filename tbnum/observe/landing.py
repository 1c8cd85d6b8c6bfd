"""Brings the values of a step that has closed to the host, and makes its record of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tbnum.formats import BINS, CHECKSUM
from tbnum.measure.norms import TensorNorms, combine
from tbnum.measure.statistics import STATISTICS
from tbnum.measure.step_hash import BY_CLIP, BY_PASS
from tbnum.observe.attempt import UNKNOWN, Attempt, Change, Histograms, Loss, Named, Outcome, Rows, Update
from tbnum.observe.records import OptimizerRecord, Shares, StepRecord
from tbnum.observe.shards import Parts
from tbnum.observe.transfer import Transfer, tensors_in

__all__ = ["Note", "Pending"]


_NOTHING_SENT = Transfer(())
_CODES = {torch.float32: "f", torch.float64: "d"}


class Pending:
    """A step, or a lone update, that has closed and whose numbers may still be on a device."""

    def __init__(
        self,
        step: int,
        wall_time: float,
        update: Update | None,
        attempts: Mapping[str, Attempt] | None = None,
        named: Named | None = None,
        *,
        sample_ids: np.ndarray | None = None,
        is_undecided: bool = False,
    ) -> None:
        self.step = step
        self.wall_time = wall_time
        self.attempts = attempts or {}
        self.is_undecided = is_undecided  # whether it is a step at all depends on values
        self._named = named or {}
        self._sample_ids = sample_ids
        self._update = update
        self.is_quiet = not (self._named or is_undecided) and (update is None or update.is_quiet)
        for attempt in self.attempts.values():
            attempt.let_go()
            self.is_quiet = self.is_quiet and attempt.is_quiet
        self._transfer = _NOTHING_SENT if self.is_quiet else Transfer(self._tensors())
        self._landed: tuple[StepRecord | None, tuple[float, float] | None] | None = None

    def _tensors(self) -> list[Tensor]:
        tensors = [] if self._update is None else self._update.tensors()
        for attempt in self.attempts.values():
            tensors += attempt.tensors()
        for losses in self._named.values():
            tensors += tensors_in(losses)
        return tensors

    @property
    def scale_was_set(self) -> bool:
        return self._update is not None and self._update.was_set

    @property
    def is_under_way(self) -> bool:
        """Whether values were sent to the host that nobody has read there yet."""
        return self._transfer.is_under_way

    @property
    def is_urgent(self) -> bool:
        """Whether it is to be handed on as soon as its values are there."""
        update = self._update
        if self.is_under_way or (update is not None and bool(update.old_scale != update.new_scale)):
            return True
        return any([attempt.is_worth_a_look for attempt in self.attempts.values()])

    def ready(self) -> bool:
        return self._transfer.ready()

    def is_quietly_there(self) -> bool:
        """Whether its values are known to have landed, and nothing of it is to be reported at once."""
        return not self.is_under_way and not self._makes_events()

    def _makes_events(self) -> bool:
        record, scales = self.land()
        if self.is_undecided or (scales is not None and scales[0] != scales[1]):
            return True
        optimizers = () if record is None else record.optimizers.values()
        return any(
            optimizer.skipped
            or optimizer.nonfinite_rows
            or optimizer.parameters_nonfinite
            or optimizer.columns
            or math.isinf(optimizer.grad_norm)
            or math.isinf(optimizer.grad_norm_clipped)
            for optimizer in optimizers
        )

    def land(self) -> tuple[StepRecord | None, tuple[float, float] | None]:
        """The step (None for a lone update), and the old and the new scale where there was an update."""
        if self._landed is None:
            self._landed = self._land()
        if self._landed[0] is not None:
            self._landed[0].step = self.step
        return self._landed

    def _land(self) -> tuple[StepRecord | None, tuple[float, float] | None]:
        host, update = self._transfer, self._update
        scales = None if update is None else (host.number(update.old_scale), host.number(update.new_scale))
        if not self.attempts:
            return None, scales
        record = StepRecord(self.step, self.wall_time, sample_ids=self._sample_ids, is_quiet=self.is_quiet)
        attempts = list(self.attempts.values())
        losses = _known_losses(attempts)
        if losses:
            record.losses = _values(losses, host)
            record.loss = sum(record.losses)
            record.micro_batches = len(_unique([attempt.backwards for attempt in attempts])) or len(losses)
        for attempt in attempts:
            scale = host.number(attempt.loss_scale)
            if not math.isnan(scale):
                record.loss_scale = scale
                break
        if self._named:
            record.named_losses = {name: sum(host.numbers(losses)) for name, losses in self._named.items()}
        if update is not None and scales is not None:
            record.growth_tracker, record.new_scale = host.number(update.growth_tracker), scales[1]
        for name, attempt in self.attempts.items():
            one = record.optimizers[name] = _landed(attempt, host)
            own = losses if len(attempts) == 1 else _known_losses([attempt])
            one.loss = sum(_values(own, host)) if own else UNKNOWN
        return record, scales


class Note(NamedTuple):
    """A step that has closed, of which the host knew at once that there is nothing to report: as `Pending` is used."""

    optimizer: str
    step: int
    wall_time: float
    losses: list[float]
    norms: list[float]
    norms_type: torch.dtype
    grad_norm: float
    rates: list[float]
    is_lost: bool  # somebody wrote to the gradients in the step
    max_norm: float | None  # of a clip
    coefficient: float | None
    left: float | None  # the norm that the clip has left, where it was measured
    loss_scale: float
    growth_tracker: float  # NaN without a scaler
    new_scale: float | None
    sample_ids: np.ndarray | None

    def ready(self) -> bool:
        return True

    def is_quietly_there(self) -> bool:
        return True

    @property
    def way(self) -> int:
        """In which the norms were taken."""
        return BY_PASS if self.max_norm is None or self.coefficient is None else BY_CLIP

    @property
    def clipped(self) -> tuple[float, float, float]:
        """The norm that the optimizer got, the coefficient, and the threshold; NaN where there was no clip."""
        norm, coefficient, max_norm = self.grad_norm, self.coefficient, self.max_norm
        if max_norm is None or coefficient is None:
            return UNKNOWN if self.is_lost else norm, UNKNOWN, UNKNOWN
        left = norm * coefficient if self.left is None else self.left
        return UNKNOWN if self.is_lost else left, coefficient, max_norm

    def packed(self) -> array[float]:
        """The norms as they were computed."""
        return array(_CODES[self.norms_type], self.norms)

    def land(self) -> tuple[StepRecord, None]:
        one = OptimizerRecord(tensors=len(self.norms), lr=self.rates, grad_norm=self.grad_norm, loss=sum(self.losses))
        one.nonfinite_tensors, one.norms_taken, one.grad_norms = 0.0, self.way, np.array(self.packed())
        one.grad_norm_clipped, one.clip_coef, one.max_norm = self.clipped
        record = StepRecord(self.step, self.wall_time, one.loss, len(self.losses), losses=self.losses, is_quiet=True)
        record.loss_scale, record.growth_tracker = self.loss_scale, self.growth_tracker
        record.new_scale, record.sample_ids = self.new_scale, self.sample_ids
        record.optimizers[self.optimizer] = one
        return record, None


def _known_losses(attempts: Sequence[Attempt]) -> list[Loss]:
    """Those that were reported, or else those that backwards began with; none where one of them is not known."""
    losses = _unique([attempt.logged for attempt in attempts]) or _unique([attempt.backwards for attempt in attempts])
    for attempt in attempts:
        if not (attempt.loss_is_known or attempt.logged):
            return []
    for loss in losses:
        if not loss.is_known:
            return []
    return losses


def _unique(lists: Sequence[list[Loss]]) -> list[Loss]:
    """A loss that reached several optimizers counts once."""
    if len(lists) == 1:
        return lists[0]
    return list({id(loss): loss for losses in lists for loss in losses}.values())


def _values(losses: list[Loss], host: Transfer) -> list[float]:
    return [_ratio(host.number(loss.value), host.number(loss.divisor)) for loss in losses]


def _landed(one: Attempt, host: Transfer) -> OptimizerRecord:
    before, after = one.before, one.after
    record = OptimizerRecord(tensors=len(one.places), lr=host.numbers(one.lr))
    record.dropped, record.loss_follows_scale = one.why_given_up, one.loss_follows_scale
    found_inf = any(host.numbers(one.found_inf))
    record.skipped = found_inf or one.outcome is not Outcome.STEPPED
    if one.parameters_nonfinite is not None:
        record.parameters_nonfinite = bool(host.number(one.parameters_nonfinite))
    if len(one.max_norms) == 1:
        (record.max_norm,) = one.max_norms
    record.nonfinite_tensors = sum(host.numbers(before.nonfinite))
    if one.found_inf and not record.skipped:
        record.nonfinite_tensors = 0.0  # finite elements, whose norm is not
    layout, shares = one.layout, Shares()
    if layout is not None:
        record.shares = shares
    if one.places:
        norms, divisor = _spread(one.parameters, one.places, before.norms, host), host.number(before.divisor)
        if divisor == 1.0:
            record.grad_norms = norms
        else:
            record.grad_norms = norms / divisor if divisor else np.full_like(norms, UNKNOWN)
        if one.before_is_lost:
            record.grad_norms = np.full_like(norms, UNKNOWN)
        else:
            record.norms_taken = BY_CLIP if before.by_clip else BY_PASS
        if layout is None:
            total = _ratio(combine(host.numbers(before.totals)), divisor)
            record.grad_norm = UNKNOWN if one.before_is_lost else total
        else:
            shares.grad_norm = _share(record.grad_norms, layout.gradients, one.places)
        places = one.places
        if after is not None:
            record.nonfinite_after = sum(host.numbers(after.nonfinite))
            places = places if one.places_after is None else one.places_after
            norms = _spread(one.parameters, places, after.norms, host)
            if layout is not None and not record.skipped:
                share = _share(norms, layout.gradients, places)
                shares.grad_norm_clipped = _ratio(share, host.number(after.divisor))
        if record.nonfinite_tensors > 0 or record.nonfinite_after > 0:
            without = np.isnan(norms)
            without[list(places)] = False
            record.nonfinite_rows = np.flatnonzero(~np.isfinite(norms) & ~without).tolist()
        if one.rows is not None:
            _take_rows(record, one, one.rows, host)
        if one.change is not None:
            _take_change(record, one, one.change, host)
    elif layout is not None and layout.has_flat_parameters:
        shares.grad_norm = 0.0  # every parameter that has a gradient lies on other ranks
        if one.change is not None:
            _take_change(record, one, one.change, host)
    for what, sums in one.left.items():
        record.columns[CHECKSUM + what] = host.array(sums).view(np.uint64)
    if not record.skipped:  # else nothing of this batch reached the optimizer
        _take_clipping(record, one, host)
    return record


def _take_clipping(record: OptimizerRecord, one: Attempt, host: Transfer) -> None:
    coefficient = math.prod(host.numbers(one.coefficients))
    if record.shares is not None:
        _take_clipping_of_shares(record, record.shares, one, coefficient)
        return
    if one.after_is_lost:
        record.grad_norm_clipped = UNKNOWN
    elif one.after is not None:
        record.grad_norm_clipped = _ratio(combine(host.numbers(one.after.totals)), host.number(one.after.divisor))
        if one.unseen_writes is not None:
            one.uncertain |= one.unseen_writes.differ(record.grad_norm * coefficient, record.grad_norm_clipped)
    elif coefficient == 0 and record.nonfinite_tensors == 0:
        record.grad_norm_clipped = 0.0  # finite elements whose norm overflowed: clipping left nothing
    else:
        record.grad_norm_clipped = record.grad_norm * coefficient
    if one.uncertain:
        record.clip_coef = _ratio(record.grad_norm_clipped, record.grad_norm)
    elif one.clipped:
        record.clip_coef = coefficient


def _take_clipping_of_shares(record: OptimizerRecord, shares: Shares, one: Attempt, coefficient: float) -> None:
    if one.uncertain:
        record.clip_coef = _ratio(shares.grad_norm_clipped, shares.grad_norm)
    elif not one.clip_is_derived:
        if one.after is None:
            shares.grad_norm_clipped = shares.grad_norm * coefficient
        if one.clipped:
            record.clip_coef = coefficient


def _take_rows(record: OptimizerRecord, one: Attempt, rows: Rows, host: Transfer) -> None:
    values = np.full((one.parameters, len(STATISTICS)), UNKNOWN)
    for each in rows.statistics:
        values[np.asarray(one.places)[each.index]] = host.array(each.values)
    record.columns = dict(zip(STATISTICS, values.T, strict=True))
    record.columns["absmax"] = record.columns["absmax"] / (host.number(rows.divisor) or UNKNOWN)
    if rows.checksums is not None:
        sums = np.zeros(one.parameters, np.uint64)
        sums[list(one.places)] = host.array(rows.checksums).view(np.uint64)
        record.columns[CHECKSUM + "gradient"] = sums
    _take_histograms(record, "gradient", one.parameters, one.places, rows.histograms, host)


def _take_change(record: OptimizerRecord, one: Attempt, change: Change, host: Transfer) -> None:
    all_places = range(one.parameters)
    for source, measured in change.norms.items():
        norms = _spread(one.parameters, all_places, measured, host)
        record.columns[f"{'param' if source == 'parameter' else source}_norm"] = norms
    if one.layout is None or record.shares is None:
        record.param_norm = combine(record.columns["param_norm"].tolist())
        record.update_norm = combine(record.columns["update_norm"].tolist())
    else:
        record.shares.param_norm = _share(record.columns["param_norm"], one.layout.parameters, all_places)
        record.shares.update_norm = _share(record.columns["update_norm"], one.layout.parameters, all_places)
    for source, histograms in change.histograms.items():
        _take_histograms(record, source, one.parameters, all_places, histograms, host)


def _take_histograms(
    record: OptimizerRecord,
    source: str,
    parameters: int,
    places: Sequence[int],
    histograms: Histograms,
    host: Transfer,
) -> None:
    record.histograms[source] = sum(map(host.array, histograms.whole), np.zeros(BINS, np.int64))
    if histograms.each is not None:
        spread = np.zeros((parameters, BINS), np.int64)
        for each in histograms.each:
            spread[np.asarray(places)[each.index]] = host.array(each.counts)
        record.tensor_histograms[source] = spread


def _spread(parameters: int, places: Sequence[int], norms: list[TensorNorms], host: Transfer) -> np.ndarray:
    """(P,) norms, NaN for parameters without a gradient."""
    values = [host.array(each.norms) for each in norms]
    if not values:  # somebody wrote to the gradients before they could be measured
        return np.full(parameters, UNKNOWN, np.float32)
    if len(places) == parameters and len(norms) == 1 and norms[0].in_order:
        return values[0]
    spread = np.full(parameters, UNKNOWN, np.result_type(*values))
    for each, value in zip(norms, values, strict=True):
        spread[np.asarray(places)[each.index]] = value
    return spread


def _share(norms: np.ndarray, parts: Parts, places: Sequence[int]) -> float:
    """Of (P,) norms, of which those at `places` are known: the norm of what this rank answers for."""
    if parts.unknown is not None or len(parts.owned) != len(norms):
        return UNKNOWN
    counted = parts.mask if len(places) == len(norms) else [place for place in places if parts.owned[place]]
    return float(np.linalg.norm(norms[counted].astype(np.float64)))


def _ratio(value: float, by: float) -> float:
    return value / by if by else UNKNOWN
