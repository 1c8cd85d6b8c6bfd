"""Measures an attempt: the norms of its gradients, and at intervals or after a failure all that a second pass shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tbnum.measure.change import changes_of, copies_of
from tbnum.measure.checksums import checksums as checksums_of
from tbnum.measure.chunks import stored
from tbnum.measure.norms import Taken, TensorNorms, combine, norms_of
from tbnum.measure.statistics import statistics_of
from tbnum.observe.assembly import Assembly
from tbnum.observe.attempt import NOTHING, UNKNOWN, Attempt, Change, Histograms, Measurement, Rows
from tbnum.observe.gradients import Gradients, local, parameters_of
from tbnum.observe.shards import Layouts
from tbnum.observe.track import Track
from tbnum.observe.transfer import Number, hold

__all__ = ["Meter", "any_nonfinite", "learning_rates", "measured"]

VANISHING = 1e-16  # a norm of many gradients below it may have lost some of them, whose squares float32 does not hold


class Meter:
    """Decides what is measured and when. Nothing here waits for a device."""

    def __init__(
        self,
        steps: Assembly,
        layouts: Layouts,
        *,
        verify_interval: int,
        tensor_interval: int,
        histogram_interval: int,
        checksums: bool,
    ) -> None:
        self._steps = steps
        self._takes_checksums = checksums
        self._failed: dict[str, int] = {}  # by optimizer, the last step that did
        self.layouts = layouts
        self._verify_interval = verify_interval
        self._tensor_interval = tensor_interval
        self._histogram_interval = histogram_interval

    def _is_due(self, interval: int) -> bool:
        return self._steps.next_step % interval == 0

    @property
    def verify_interval(self) -> int:
        """Steps between two at which what a clip has left is measured."""
        return self._verify_interval

    def next_due(self) -> int:
        """The next step of which more is measured than norms."""
        return -(-self._steps.next_step // self._tensor_interval) * self._tensor_interval

    def measure(
        self,
        track: Track,
        attempt: Attempt,
        optimizer: torch.optim.Optimizer,
        gradients: Gradients,
        divisor: Number,
        taken: Taken | None = None,
    ) -> None:
        """The norms of the gradients as they are now, before clipping; forgets an earlier measurement."""
        interval_is_over = self._steps.next_step % self._tensor_interval == 0
        attempt.parameters, attempt.places, attempt.seen = gradients.parameters, gradients.places, gradients
        attempt.layout = self.layouts.of(track.name, optimizer, gradients, look_again=interval_is_over)
        attempt.before = measured(gradients.tensors, divisor, taken)
        attempt.coefficients, attempt.max_norms = [], set()
        attempt.clipped = attempt.uncertain = attempt.clip_is_derived = attempt.before_is_lost = False
        attempt.after = attempt.waits_for_clip = None
        attempt.is_measured = True
        if attempt.before.known_nonfinite or interval_is_over:
            self.look_closely(attempt, gradients, divisor)

    def lose(self, attempt: Attempt, gradients: Gradients) -> None:
        """Somebody wrote to the gradients before they could be measured."""
        attempt.parameters, attempt.places, attempt.seen = gradients.parameters, gradients.places, gradients
        attempt.before = NOTHING
        attempt.waits_for_clip = None
        attempt.is_measured = attempt.before_is_lost = True

    def look_closely(self, attempt: Attempt, seen: Gradients, divisor: Number) -> None:
        """Statistics of each gradient, and their histogram: one more pass."""
        gradients = local(seen.tensors)
        # What backward made was the gradient times the scale: that is what has to fit into a narrow format.
        known = not (isinstance(attempt.loss_scale, float) and math.isnan(attempt.loss_scale))
        scale = attempt.loss_scale / divisor if known else 1.0
        statistics = statistics_of(gradients, scale, histograms=self._is_due(self._histogram_interval))
        histograms = Histograms.beside(statistics)
        if attempt.layout is not None and attempt.layout.gradients.copies:
            copies = attempt.layout.gradients.copies
            pairs = zip(gradients, seen.places, strict=True)
            histograms = histograms.without([gradient for gradient, place in pairs if place in copies])
        attempt.rows = Rows(statistics, histograms, divisor, checksums_of(gradients) if self._takes_checksums else None)

    def must_look_again(self, track: Track, attempt: Attempt, gradients: Gradients) -> bool:
        """Whether what the optimizer gets takes a pass of its own."""
        if attempt.uncertain or not gradients.same_as(attempt.seen):
            attempt.uncertain = True
            return True
        if not (attempt.clipped or attempt.unscaled_by_loop):
            return False
        samples = () if attempt.clipped else attempt.samples
        if samples and samples != gradients.samples(samples):  # a clip by hand, say
            track.unseen_writes.were_found = attempt.uncertain = True
        return track.unseen_writes.were_found or self._is_due(self._verify_interval)

    def keep_parameters(self, attempt: Attempt, optimizer: torch.optim.Optimizer) -> None:
        """At an interval: a copy of them, before the step."""
        if self._steps.next_step % self._tensor_interval == 0:
            attempt.snapshot = copies_of(local(parameters_of(optimizer)))

    def measure_update(self, attempt: Attempt, optimizer: torch.optim.Optimizer) -> None:
        """What the step did to the parameters of which there is a copy."""
        before, attempt.snapshot = attempt.snapshot or [], None
        after = [parameter.detach() for parameter in local(parameters_of(optimizer))]
        if len(after) != len(before):  # the step itself added a group
            return
        changes = changes_of(before, after)
        norms = {"parameter": norms_of(after), "update": norms_of(changes)}
        due = self._is_due(self._histogram_interval)
        histograms = {"parameter": Histograms.of(after, due), "update": Histograms.of(changes, due)}
        if attempt.layout is not None and attempt.layout.parameters.copies:
            for source, tensors in (("parameter", after), ("update", changes)):
                copies = [tensors[place] for place in attempt.layout.parameters.copies]
                histograms[source] = histograms[source].without(copies)
        attempt.change = Change(norms, histograms)

    def sum_what_is_left(self, track: Track, attempt: Attempt, optimizer: torch.optim.Optimizer) -> None:
        """Checksums of the parameters and moments after the step, at an interval and where it failed.

        Of failures in a row the first alone: they change nothing, or leave NaN. One pass over all of them.
        """
        if not self._takes_checksums or attempt.left:
            return
        step, is_due = self._steps.next_step, self._is_due(self._tensor_interval)
        if is_due or self._failed.get(track.name) != step - 1:
            attempt.left = checksums_left(optimizer)
        if not is_due:
            self._failed[track.name] = step


def measured(gradients: list[Tensor], divisor: Number, taken: Taken | None = None) -> Measurement:
    """One pass over the gradients, where torch has not just taken it, and two small kernels on a device."""
    by_torch = None if taken is None else taken.of(gradients)
    norms = norms_of(local(gradients)) if by_torch is None else [by_torch]
    if len(norms) == 1 and norms[0].norms.is_cpu:
        total = math.hypot(*norms[0].norms.tolist())
        if VANISHING <= total < math.inf:  # nearly always, and then no norm is NaN
            return Measurement(norms, [total], [0.0], divisor, by_torch is not None, is_usual=True)
    return _measured_with_care(local(gradients), norms, divisor, by_torch is not None)


def _measured_with_care(
    gradients: Sequence[Tensor], norms: list[TensorNorms], divisor: Number, by_clip: bool
) -> Measurement:
    """What is on a device, vanishes in float32, or may not be finite."""
    values = [each.norms.tolist() if each.norms.is_cpu else None for each in norms]
    totals: list[Number] = [
        combine(known) if known is not None else hold(each.total()) for each, known in zip(norms, values, strict=True)
    ]
    if totals and all(isinstance(total, float) and total < VANISHING for total in totals):
        norms = norms_of(gradients, torch.float64)  # all of them are so small that their squares vanish in float32
        totals = [hold(each.total()) for each in norms]
        return Measurement(norms, totals, [0.0] * len(norms), divisor)
    nonfinite: list[Number] = []
    for each, known, total in zip(norms, values, totals, strict=True):
        if known is None:
            nonfinite.append(each.nonfinite())
        elif isinstance(total, float) and math.isfinite(total):
            nonfinite.append(0.0)
        else:
            # Finite elements beyond 1e19 have an infinite norm as well: look at the elements themselves.
            suspects = [place for place, norm in zip(each.index, known, strict=True) if not math.isfinite(norm)]
            nonfinite.append(
                float(sum(not bool(torch.isfinite(stored(gradients[at].detach())).all()) for at in suspects))
            )
    return Measurement(norms, totals, nonfinite, divisor, by_clip)


def checksums_left(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """(P,) int64 of each: the parameters and the optimizer's moments as they are now."""
    parameters: list[Tensor | None] = [parameter.detach() for parameter in local(parameters_of(optimizer))]
    kept = {"parameter": parameters} | moments_of(optimizer)
    if not parameters:
        return {}
    sums = checksums_of([tensor for tensors in kept.values() for tensor in tensors])  # small ones are taken together
    return dict(zip(kept, sums.split(len(parameters)), strict=True))


def moments_of(optimizer: torch.optim.Optimizer) -> dict[str, list[Tensor | None]]:
    """What the optimizer keeps of each parameter in its shape, by the name in its state; None where it has none."""
    parameters = parameters_of(optimizer)
    states = [optimizer.state.get(parameter) or {} for parameter in parameters]
    found: dict[str, list[Tensor | None]] = {}
    for at, (parameter, state) in enumerate(zip(parameters, states, strict=True)):
        for name, value in state.items() if isinstance(state, Mapping) else ():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.numel() > 1:
                found.setdefault(str(name), [None] * len(parameters))[at] = value
    return found


def learning_rates(optimizer: torch.optim.Optimizer) -> list[Number]:
    groups = optimizer.param_groups
    return [rate if type(rate := group.get("lr", UNKNOWN)) is float else _as_number(rate) for group in groups]


def _as_number(value: Any) -> Number:
    if isinstance(value, Tensor):
        return hold(value)
    return UNKNOWN if value is None else float(value)  # an optimizer may choose its own, and have None


@torch.no_grad()
def any_nonfinite(tensors: list[Tensor]) -> Number | None:
    """1.0 where any element of any tensor is NaN or inf; one pass over them."""
    if not tensors or len({tensor.device for tensor in tensors}) > 1:
        return None
    (norms,) = norms_of(local(tensors))
    return hold((norms.nonfinite() > 0).to(torch.float32))
