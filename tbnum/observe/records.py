"""What a step is while it is open, while its numbers are on their way, and when the host has them."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from tbnum.formats import BINS
from tbnum.measure.histogram import TensorHistograms, histograms_of, total_histograms_of
from tbnum.measure.norms import TensorNorms, combine
from tbnum.measure.statistics import STATISTICS, TensorStatistics
from tbnum.observe.gradients import Gradients
from tbnum.observe.shards import Layout, Parts
from tbnum.observe.transfer import Number, Transfer, tensors_in

__all__ = ["OptimizerRecord", "Sighting", "StepRecord"]

UNKNOWN = math.nan


# -- what is handed on -----------------------------------------------------------------------------------------------


@dataclass
class Shares:
    """This rank's shares of an optimizer's norms: their squares add up over the ranks."""

    grad_norm: float = UNKNOWN
    grad_norm_clipped: float = UNKNOWN  # where it was measured
    param_norm: float = UNKNOWN
    update_norm: float = UNKNOWN


@dataclass
class OptimizerRecord:
    """What one optimizer did in one step. Unknown is NaN.

    Arrays have a row for each of the optimizer's parameters, in its order, those without a gradient included.
    """

    grad_norm: float = UNKNOWN
    grad_norm_clipped: float = UNKNOWN
    clip_coef: float = UNKNOWN
    max_norm: float = UNKNOWN
    skipped: bool = False
    nonfinite_tensors: float = UNKNOWN
    nonfinite_after: float = 0.0  # gradients that were not finite when the optimizer got them, where that was looked at
    nonfinite_rows: list[int] = field(default_factory=list)  # of the parameters whose gradient was not finite
    tensors: int = 0  # gradients that there were
    parameters_nonfinite: bool | None = None  # looked at on a skip that the host knows of, else None
    lr: list[float] = field(default_factory=list)  # of each parameter group
    param_norm: float = UNKNOWN
    update_norm: float = UNKNOWN
    shares: Shares | None = None  # in place of the norms of the whole, where tensors are spread over ranks
    grad_norms: np.ndarray | None = None  # (P,) float32, unscaled, before clipping
    columns: dict[str, np.ndarray] = field(default_factory=dict)  # (P,) each; at an interval, or of a step that failed
    histograms: dict[str, np.ndarray] = field(
        default_factory=dict
    )  # (BINS,) int64, of all gradients, parameters, updates
    tensor_histograms: dict[str, np.ndarray] = field(default_factory=dict)  # (P, BINS) int64, likewise


@dataclass
class StepRecord:
    """One step, all of its values on the host. `optimizers` holds those that took part."""

    step: int
    wall_time: float
    loss: float = UNKNOWN
    micro_batches: float = UNKNOWN
    loss_scale: float = UNKNOWN
    growth_tracker: float = UNKNOWN
    new_scale: float | None = None
    losses: list[float] = field(default_factory=list)  # of each micro-batch, whose sum `loss` is
    optimizers: dict[str, OptimizerRecord] = field(default_factory=dict)

    @property
    def skipped(self) -> bool:
        return any(record.skipped for record in self.optimizers.values())


@dataclass(frozen=True)
class Sighting:
    """A thing seen in the loop that is no step: the kind of event that it makes, and its facts."""

    kind: str
    step: int
    wall_time: float
    data: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str | None = None


# -- a step that is open ---------------------------------------------------------------------------------------------


class Stage(enum.Enum):
    """Where the gradients of an optimizer are on their way through a step."""

    COLLECTING = enum.auto()  # backward adds to them
    MEASURED = enum.auto()  # their norm before clipping is known
    STEPPING = enum.auto()  # inside optimizer.step()
    STEPPED = enum.auto()


@dataclass(frozen=True)
class Measurement:
    """One pass over some gradients; lists have one entry a device."""

    norms: list[TensorNorms]
    totals: list[Number]  # still multiplied by `divisor`, as all of it
    nonfinite: list[Number]  # gradients that hold NaN or inf
    divisor: Number = 1.0

    def tensors(self) -> list[Tensor]:
        norms = [each.norms for each in self.norms]
        return norms + tensors_in([*self.totals, *self.nonfinite, self.divisor])


@dataclass(frozen=True)
class Histograms:
    """Of some tensors together, one entry a device, and where that was due of each."""

    whole: list[Tensor]  # (BINS,) int64
    each: list[TensorHistograms] | None

    @staticmethod
    def beside(statistics: list[TensorStatistics]) -> Histograms:
        """What was counted in the same pass as statistics."""
        each = [one.histograms for one in statistics if one.histograms is not None]
        return Histograms([one.histogram for one in statistics], each or None)

    @staticmethod
    def of(tensors: Sequence[Tensor], each_of_them: bool) -> Histograms:
        """One pass over the elements."""
        if not each_of_them:
            return Histograms(list(total_histograms_of(tensors).values()), None)
        each = histograms_of(tensors)
        return Histograms([histograms.counts.sum(0) for histograms in each], each)

    def without(self, tensors: Sequence[Tensor]) -> Histograms:
        """Of all but some of the tensors together; of each as before. One pass over those."""
        left_out = total_histograms_of(tensors)
        whole = [counts - left_out[counts.device] if counts.device in left_out else counts for counts in self.whole]
        return replace(self, whole=whole)

    def tensors(self) -> list[Tensor]:
        return self.whole + [histograms.counts for histograms in self.each or ()]


@dataclass(frozen=True)
class Rows:
    """Statistics of each of some tensors; `divisor` is what the tensors still carried."""

    statistics: list[TensorStatistics]
    histograms: Histograms
    divisor: Number

    def tensors(self) -> list[Tensor]:
        values = [each.values for each in self.statistics]
        return values + self.histograms.tensors() + tensors_in([self.divisor])


@dataclass(frozen=True)
class Change:
    """Norms and histograms of the parameters and of their change in a step."""

    norms: dict[str, list[TensorNorms]]
    histograms: dict[str, Histograms]

    def tensors(self) -> list[Tensor]:
        norms = [each.norms for norms in self.norms.values() for each in norms]
        return norms + [tensor for histograms in self.histograms.values() for tensor in histograms.tensors()]


NOTHING = Measurement([], [], [])


class OpenOptimizer:
    """One optimizer in the step that is open. Values are `Number`s until the step has closed."""

    def __init__(self) -> None:
        self.stage = Stage.COLLECTING
        self.places: Sequence[int] = ()  # of the parameters that have a gradient, among all of the optimizer's
        self.parameters = 0  # how many the optimizer has
        self.before = NOTHING  # of the gradients as they were found
        self.rows: Rows | None = None  # likewise, tensor by tensor
        self.after: Measurement | None = None  # of what the optimizer got, where it was measured
        self.change: Change | None = None
        self.coefficients: list[Number] = []  # of clips that covered every gradient
        self.clipped = False  # a clip was seen
        self.uncertain = False  # gradients changed in a way that `coefficients` does not tell
        self.max_norms: set[float] = set()
        self.backwards_unscaled: int | None = None  # how many there were in the step when gradients were unscaled
        self.backwards_clipped = 0  # likewise when they were clipped
        self.seen: Gradients | None = None  # the gradients when they were last looked at
        self.found_inf: list[Number] = []
        self.layout: Layout | None = None  # where tensors are spread over ranks: norms are of this rank's part alone
        self.clip_is_derived = False  # a clip went by the norm of all ranks' parts, which no rank has
        self.parameters_nonfinite: Number | None = None
        self.lr: list[Number] = []
        self.snapshot: list[Tensor] = []  # the parameters as they were

    def tensors(self) -> list[Tensor]:
        """All that may be on a device, for a `Transfer`."""
        parts = [part for part in (self.before, self.after, self.rows, self.change) if part is not None]
        found = [tensor for part in parts for tensor in part.tensors()]
        nonfinite = () if self.parameters_nonfinite is None else (self.parameters_nonfinite,)
        return found + tensors_in([*self.coefficients, *self.found_inf, *self.lr, *nonfinite])


@dataclass
class Update:
    """One call of `scaler.update()`."""

    old_scale: Number
    growth_tracker: Number
    was_set: bool
    new_scale: Number = UNKNOWN

    def tensors(self) -> list[Tensor]:
        return tensors_in([self.old_scale, self.growth_tracker, self.new_scale])


# -- a step that has closed --------------------------------------------------------------------------------------------


class Pending:
    """A step, or a lone update, that has closed and whose numbers may still be on a device."""

    def __init__(
        self,
        step: int,
        wall_time: float,
        update: Update | None,
        *,
        micro_batches: float = UNKNOWN,
        losses: list[Number] | None = None,
        loss_scale: Number = UNKNOWN,
        optimizers: Mapping[str, OpenOptimizer] | None = None,
    ) -> None:
        self.step = step
        self.wall_time = wall_time
        self.scale_was_set = update is not None and update.was_set
        self._micro_batches = micro_batches
        self._losses = losses or []
        self._loss_scale = loss_scale
        self._update = update
        self._optimizers = dict(optimizers or {})
        tensors = tensors_in([*self._losses, loss_scale])
        if update is not None:
            tensors += update.tensors()
        for one in self._optimizers.values():
            tensors += one.tensors()
        self._transfer = Transfer(tensors)

    def ready(self) -> bool:
        return self._transfer.ready()

    def land(self) -> tuple[StepRecord | None, tuple[float, float] | None]:
        """The step (None for a lone update), and the old and the new scale where there was an update."""
        host, update = self._transfer, self._update
        scales = None if update is None else (host.number(update.old_scale), host.number(update.new_scale))
        if not self._optimizers:
            return None, scales
        record = StepRecord(self.step, self.wall_time, micro_batches=self._micro_batches)
        record.losses = host.numbers(self._losses)
        record.loss = sum(record.losses) if record.losses else UNKNOWN
        record.loss_scale = host.number(self._loss_scale)
        if update is not None and scales is not None:
            record.growth_tracker, record.new_scale = host.number(update.growth_tracker), scales[1]
        for name, one in self._optimizers.items():
            record.optimizers[name] = _landed(one, host)
        return record, scales


def _landed(one: OpenOptimizer, host: Transfer) -> OptimizerRecord:
    before, after = one.before, one.after
    record = OptimizerRecord(tensors=len(one.places), lr=host.numbers(one.lr))
    record.skipped = any(host.numbers(one.found_inf))
    if one.parameters_nonfinite is not None:
        record.parameters_nonfinite = bool(host.number(one.parameters_nonfinite))
    record.max_norm = next(iter(one.max_norms)) if len(one.max_norms) == 1 else UNKNOWN
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
        if layout is None:
            record.grad_norm = _ratio(combine(host.numbers(before.totals)), divisor)
        else:
            shares.grad_norm = _share(record.grad_norms, layout.gradients, one.places)
        if after is not None:
            record.nonfinite_after = sum(host.numbers(after.nonfinite))
            norms = _spread(one.parameters, one.places, after.norms, host)
            if layout is not None and not record.skipped:
                share = _share(norms, layout.gradients, one.places)
                shares.grad_norm_clipped = _ratio(share, host.number(after.divisor))
        if record.nonfinite_tensors > 0 or record.nonfinite_after > 0:
            without = np.isnan(norms)
            without[list(one.places)] = False
            record.nonfinite_rows = np.flatnonzero(~np.isfinite(norms) & ~without).tolist()
        if one.rows is not None:
            _take_rows(record, one, one.rows, host)
        if one.change is not None:
            _take_change(record, one, one.change, host)
    elif layout is not None and layout.has_flat_parameters:
        shares.grad_norm = 0.0  # every parameter that has a gradient lies on other ranks
        if one.change is not None:
            _take_change(record, one, one.change, host)
    if not record.skipped:  # else nothing of this batch reached the optimizer
        _take_clipping(record, one, host)
    return record


def _take_clipping(record: OptimizerRecord, one: OpenOptimizer, host: Transfer) -> None:
    coefficient = math.prod(host.numbers(one.coefficients))
    if record.shares is not None:
        _take_clipping_of_shares(record, record.shares, one, coefficient)
        return
    if one.after is not None:
        record.grad_norm_clipped = _ratio(combine(host.numbers(one.after.totals)), host.number(one.after.divisor))
    elif coefficient == 0 and record.nonfinite_tensors == 0:
        record.grad_norm_clipped = 0.0  # finite elements whose norm overflowed: clipping left nothing
    else:
        record.grad_norm_clipped = record.grad_norm * coefficient
    if one.uncertain:
        record.clip_coef = _ratio(record.grad_norm_clipped, record.grad_norm)
    elif one.clipped:
        record.clip_coef = coefficient


def _take_clipping_of_shares(record: OptimizerRecord, shares: Shares, one: OpenOptimizer, coefficient: float) -> None:
    if one.uncertain:
        record.clip_coef = _ratio(shares.grad_norm_clipped, shares.grad_norm)
    elif not one.clip_is_derived:
        if one.after is None:
            shares.grad_norm_clipped = shares.grad_norm * coefficient
        if one.clipped:
            record.clip_coef = coefficient


def _take_rows(record: OptimizerRecord, one: OpenOptimizer, rows: Rows, host: Transfer) -> None:
    values = np.full((one.parameters, len(STATISTICS)), UNKNOWN)
    for each in rows.statistics:
        values[np.asarray(one.places)[each.index]] = host.array(each.values)
    record.columns = dict(zip(STATISTICS, values.T, strict=True))
    record.columns["absmax"] = record.columns["absmax"] / (host.number(rows.divisor) or UNKNOWN)
    _take_histograms(record, "gradient", one.parameters, one.places, rows.histograms, host)


def _take_change(record: OptimizerRecord, one: OpenOptimizer, change: Change, host: Transfer) -> None:
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
