"""Why a step was skipped: the rules, as one state machine over the events of a run in order of step.

Only events move the state. How many unskipped steps lie between two steps follows from their numbers and from the
skips between them, because steps are numbered without gaps and each skip leaves an event; so the rules hold for a
run that was killed before its last steps reached the disk. The steps give evidence (see `Past`).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tbnum.explain.batch import Batch
from tbnum.explain.facts import Known
from tbnum.explain.nonfinite import Since, SpoiledParameters, made_in_backward, no_overflow, nothing_is_spared
from tbnum.explain.outliers import loss_is_usual, loss_stands_out
from tbnum.explain.parameters import SpoiledUpdate
from tbnum.explain.past import Past
from tbnum.explain.record import SCALE_CHANGES, scaler_settings
from tbnum.explain.thresholds import (
    EDGE_DEVIATIONS,
    EDGE_PROBED,
    FAR_TIMES,
    HIGHEST_HELD,
    NORM_ROSE,
    SCALE_FALLEN,
    SCALE_HELD,
    SPOILED_NORMS,
)
from tbnum.log.numbering import Numbering

__all__ = ["BENIGN", "COLLAPSE_SKIPS", "HOPELESS", "PROBE_STEPS", "Collapse", "Rules", "Skip", "StepVerdict"]

BENIGN = ("scale_warmup", "growth_probe")
"""Causes that belong to the life of a dynamic loss scale."""

HOPELESS = ("forward_nonfinite", "nonfinite_parameters", "backward_nonfinite")
"""Causes for which no loss scale helps."""

EITHER = "either"
"""NaN that backward made, or an overflow: reported as unknown, with what it may be."""

PROBE_STEPS = 10
"""A scale that survived this many unskipped steps (or one growth interval, if shorter) after a growth has held."""

COLLAPSE_SKIPS = 10
"""Skipped steps in a row from which on a falling scale can be a collapse. It is one when, besides, the last skip
came from a non-finite loss or from non-finite parameters, or the scale has fallen below 1: an overflow of finite
values would have ended by then. (A first scale of 2^24 and a model that bears 2^10 make 14 skips, and no collapse.)
"""

NAN_AGAIN = 2
"""Skips in a row before one, from which on NaN alone is no overflow's: the scale is a quarter of one that had held."""

DEFAULT_GROWTH_INTERVAL = 2000  # torch's


@dataclass(frozen=True)
class Skip:
    """The verdict on a skip, with the evidence that led to it. Scales are absolute, -1 and NaN are unknown."""

    cause: str
    held: int  # unskipped steps at the scale that overflowed
    about: bool  # `held` may be off, for not every step was logged
    held_before_growth: int  # where the scale had just grown: unskipped steps at the one before
    held_before_probe: int  # unskipped steps at this scale before the scaler tried a higher one, in vain
    failed_probe: float  # that higher scale; NaN: the scale was not tried and come back to
    early: bool  # few unskipped steps since the start: the scale may still be finding its height
    in_row: int  # 1 for the first of skips in a row
    recent_loss: float  # median of the recent finite losses
    loss_is_alone: bool  # those around it, before and after, are far lower
    since: Since | None  # when the parameters became non-finite
    growth_interval: int  # 0: unknown
    injected: str | None  # the note that labels the batch as spoiled on purpose
    at_edge: bool  # a scale that had held overflowed in a step that does not stand out otherwise (see `_at_edge`)
    collapsed: bool  # in a row of skips that was a collapse already
    nan_only: bool  # gradients held NaN and no inf, and the finite ones were far from an overflow
    new_scale: bool  # no step had passed since the start, a scale that was set, or lost state
    loss_follows_scale: bool  # it was not finite at scales above some, as hindsight shows
    after_zeros: bool  # the scale grew to this height while every gradient was 0
    either: bool  # NaN is backward's own, or an overflow's: the record cannot say which
    goes_on: bool  # the loss stood out, and those of the steps that follow do, too
    fallen: float  # the highest scale that had held, where this one is `SCALE_FALLEN` or more below it; else NaN


class StepVerdict(NamedTuple):
    """Of a step that was taken although its gradients were not finite."""

    cause: str | None
    since: Since | None  # when the parameters had become non-finite before


@dataclass(frozen=True)
class Collapse:
    """A scale that fell over skips in a row. Reported once a row."""

    cause: str
    from_step: int
    skips: int
    old_scale: float
    new_scale: float


class Rules:
    """Feed each event once, in order; `skip` judges a skip, `notice` takes every other kind. O(1) an event.

    `first_step`: where the record begins. A record that begins after the run's first step does not show the start, so
    its first skips have no known cause until a scale changed or held.

    Events that were inferred from a log of every k-th step (`data["within"]`) may have happened up to k - 1 steps
    before the one that reports them: where that decides between two causes, the cause is unknown.
    """

    def __init__(
        self, past: Past, meta: Mapping[str, Any], first_step: int = 0, updates: Sequence[SpoiledUpdate] = ()
    ) -> None:
        self.past = past
        self._count = Numbering.of(meta).count  # all that follows counts steps from the run's first one
        self.take_settings(meta)
        begin = self._count(first_step)
        self._start: int | None = begin - 1 if begin == 0 else None  # the scale is new after this step
        self._start_skips = 0  # `_skips` at that time
        self._last_change: str | None = None
        self._change = begin - 1
        self._changed_at = first_step - 1  # likewise, as steps are numbered
        self._untried = False  # the scale grew last while every gradient was 0: no overflow could stop it
        self._change_slack = 0  # steps that it may have come before `_change`
        self._change_skips = 0
        self._probe: _Probe | None = None  # the last growth, until the scale is neither the new one nor the old one
        self._skips = 0  # steps skipped so far, whatever the optimizer
        self._last_skip: int | None = None
        self.parameters = SpoiledParameters(past, list(updates), first_step)
        self._held = math.nan  # the highest scale that had held for `PROBE_STEPS`
        self._held_long = math.nan  # likewise for `SCALE_HELD`
        self._edge = math.inf  # the lowest that overflowed without a doubt of the batch
        self._injected: tuple[int, str] | None = None
        self._row = _Row()

    def take_settings(self, meta: Mapping[str, Any]) -> None:
        """The scaler's, which may be known only once it takes part in the loop."""
        interval = scaler_settings(meta).get("growth_interval", math.nan)
        self._growth_interval = int(interval) if interval >= 1 else DEFAULT_GROWTH_INTERVAL
        self._interval_known = interval >= 1 or "source" not in meta

    def notice(self, event: Known) -> None:
        """Takes an event that is no skip."""
        kind, at = event.kind, self._count(event.step)
        if kind in SCALE_CHANGES:
            held = self._held_since_change(at + 1, event.step + 1)
            self._note_held(event.facts.old_scale, held)
            self._probe = self._probe_after(event, held)
            if kind == "scale_growth" and event.facts.old_scale >= self._edge:
                self._edge = math.inf  # it held since
            if kind == "scale_growth":
                self._untried = not held and self.past.without_gradient(self._changed_at, event.step + 1) > 0
            self._last_change, self._change, self._change_skips = kind, at, self._skips
            self._changed_at = event.step
            self._change_slack = event.facts.slack
            self._row.scale = event.facts.new_scale
            if kind in ("scale_set", "scaler_state_lost"):
                self._start, self._start_skips = at, self._skips
                self._untried = False
        elif kind == "nonfinite_step":
            self.parameters.took_nonfinite(event.step)
        elif kind == "nonfinite_update":  # found so at a step that failed in nothing else
            self.parameters.measured(event)
        elif kind == "resume":
            self.parameters.restored()  # the checkpoint's
        elif kind == "annotation" and event.data.get("injected"):
            self._injected = (event.step, str(event.data.get("text", "")))

    def nonfinite_step(self, event: Known) -> StepVerdict:
        """Judges a step that was taken with non-finite gradients, before `notice` takes it."""
        self.parameters.measured(event)
        since = self.parameters.since(event.step)
        if since is not None and since.step < event.step:
            return StepVerdict("nonfinite_parameters", since)
        if event.facts.params_nonfinite:
            return StepVerdict("nonfinite_parameters", None)
        if event.facts.loss_nonfinite:
            return StepVerdict("forward_nonfinite", None)
        scale = event.facts.loss_scale
        unscaled = not scale > 1
        # Without a scale a gradient has the range of its loss: it need not be a usual one.
        batch = Batch(event, self.past)
        usual = unscaled or not loss_stands_out(batch.loss, batch.recent)
        known = math.isfinite(event.facts.loss) and event.facts.loss_measured
        if known and usual and made_in_backward(batch.gradients, 1.0 if unscaled else scale, unscaled):
            return StepVerdict("backward_nonfinite", None)
        return StepVerdict(None, None)

    def skip(self, event: Known) -> tuple[Skip, Collapse | None]:
        """Judges a skip; the collapse, when this skip makes it clear."""
        step, at = event.step, self._count(event.step)
        scale = event.facts.loss_scale
        if self._last_skip is None or at - event.facts.also_skipped > self._last_skip + 1:
            self._row = _Row(start=step, first_scale=scale)
        # With several optimizers a step may have several skips; where not every step was logged, one reports several.
        before = self._skips - (at == self._last_skip) + event.facts.at_least - 1
        held = self._held_since_change(at, step, before)
        batch = Batch(event, self.past)
        injected = self._injected[1] if self._injected and self._injected[0] == step else None
        self.parameters.measured(event)
        since = self.parameters.since(step)
        held_before = self._held_long
        self._note_held(scale, held)
        nan_only = made_in_backward(batch.gradients, scale, inf_counts=False)
        cause = self._cause(event, batch, held, before, injected is not None, since is not None, nan_only)
        either, cause = cause == EITHER, "unknown" if cause == EITHER else cause
        row, probe = self._row, self._probe
        new_scale = event.facts.new_scale
        row.scale = scale if math.isnan(new_scale) else new_scale
        if at != self._last_skip:
            row.skips += max(event.facts.at_least, event.facts.halvings)
            self._skips += event.facts.at_least
            self._last_skip = at
        row.causes[cause] += 1
        fallen = scale * SCALE_FALLEN <= self._held_long
        verdict = Skip(
            cause=cause,
            held=held,
            about=self._change_slack + event.facts.slack > 0,
            held_before_growth=probe.held if probe and not probe.failed else -1,
            held_before_probe=probe.held_in_all if probe and probe.failed else -1,
            failed_probe=probe.scale if probe and probe.failed else math.nan,
            early=self._start is not None
            and self._unskipped(at, self._start, self._start_skips, before) < min(self._growth_interval, PROBE_STEPS),
            in_row=row.skips,
            recent_loss=statistics.median(batch.recent) if batch.recent else math.nan,
            loss_is_alone=batch.loss_is_alone,
            since=since,
            growth_interval=self._growth_interval if self._interval_known else 0,
            injected=injected,
            at_edge=cause == "bad_batch"
            and injected is None
            and row.is_first_but_for_probes
            and self._at_edge(batch, held, held_before),
            collapsed=row.collapsed,
            nan_only=nan_only,
            new_scale=self._start is not None and not self._unskipped(at, self._start, self._start_skips, before),
            loss_follows_scale=event.facts.loss_nonfinite and cause in BENIGN,
            after_zeros=cause == "scale_warmup" and self._untried and not held,
            either=either,
            goes_on=cause == "bad_batch" and injected is None and not fallen and batch.loss_goes_on,
            fallen=self._held_long if fallen else math.nan,
        )
        if (verdict.at_edge or cause == "growth_probe") and scale < self._edge:
            self._edge = scale
        return verdict, row.collapse(cause, nan_only)

    def _cause(
        self,
        event: Known,
        batch: Batch,
        held: int,
        before: int,
        injected: bool,
        spoiled: bool,
        nan_only: bool,
    ) -> str:
        if event.facts.dropped:
            return "dropped_by_loop"
        if event.facts.params_nonfinite or spoiled:
            return "nonfinite_parameters"  # first: non-finite parameters make the loss non-finite too
        if event.facts.loss_nonfinite and not self._is_untried(event, held, before):
            return "forward_nonfinite"
        if self._row.collapsed:
            # A finite loss, and gradients that are not finite at any scale: no scale was to blame.
            return "backward_nonfinite" if nan_only else "unknown"
        if event.facts.inferred and math.isnan(event.facts.loss_scale):
            return "unknown"  # no scale was logged
        if not 0 < event.facts.loss_scale < math.inf and not math.isnan(event.facts.loss_scale):
            return "unknown"  # no batch and no probe: no gradient can be divided by it
        if event.facts.inferred and event.facts.how == "grad_norm" and math.isnan(event.facts.new_scale):
            return "unknown"  # the scale did not come down: no dynamic scaler withheld this step
        at, slack = self._count(event.step), event.facts.slack
        if self._start is not None:
            unskipped = self._unskipped(at, self._start, self._start_skips, before)
            # The first scale in a scalar log is the one after the first step: whether it fell is not seen.
            if unskipped <= (1 if event.facts.inferred and not slack and self._start < 0 else 0):
                return "scale_warmup"
            if unskipped <= slack:
                return "unknown"
        if self._untried and not held:
            return "scale_warmup"
        if self._arose_in_backward(event, batch, held):
            return EITHER if self._may_have_overflowed(event, batch, held) else "backward_nonfinite"
        probe = min(self._growth_interval, PROBE_STEPS)
        if self._last_change == "scale_growth" and held - slack < probe <= held + self._change_slack:
            return "unknown"
        if self._last_change == "scale_growth" and held < probe:
            spoiled = (
                injected
                or (loss_stands_out(batch.loss, batch.recent) and not batch.loss_recurs())
                or batch.norms_stand_out()
            )
            return "bad_batch" if spoiled else "growth_probe"
        if self._last_change is None and self._start is None and held < PROBE_STEPS:
            return "unknown"  # what the scaler did before the record began is not known
        if batch.is_nan_alone:
            return "backward_nonfinite" if self._row.skips >= NAN_AGAIN else EITHER
        return "bad_batch"

    def _is_untried(self, event: Known, held: int, before: int) -> bool:
        """Whether a loss that follows the scale is not finite at one that no step had passed, or that just grew."""
        if not event.facts.loss_follows_scale or self._row.collapsed:
            return False
        if self._start is not None and not self._unskipped(
            self._count(event.step), self._start, self._start_skips, before
        ):
            return True
        return self._last_change == "scale_growth" and held < min(self._growth_interval, PROBE_STEPS)

    def _arose_in_backward(self, event: Known, batch: Batch, held: int) -> bool:
        """Whether NaN is no overflow's, at a scale that a step had passed or that is one growth above such a one."""
        if not batch.loss_is_good:
            return False
        probe = self._probe
        if probe is not None and not probe.failed and held < PROBE_STEPS and probe.scale > 4 * probe.scale_below:
            return False  # so far above the one that had held, all may overflow
        if self._last_change is None and self._start is None and held < PROBE_STEPS:
            return False  # what the scaler did before the record began is not known
        return no_overflow(event.facts, batch.gradients) or nothing_is_spared(event.facts, batch.gradients)

    def _may_have_overflowed(self, event: Known, batch: Batch, held: int) -> bool:
        """Whether NaN that looks like backward's own may be an overflow's all the same.

        What overflows behind a normalization is NaN everywhere before it, and in a recurrence in all that it is made
        of. It does right after a growth, or in the batch whose gradients are the longest, and so is its loss; NaN of
        backward's own is in any. So is an overflow that began inside a model, of a scale without headroom. Not where
        the largest finite gradient was far from an overflow, unless right after a growth every tensor held NaN: where
        the gradient of a gradient overflows, inf meets inf before the first of them.
        """
        elsewhere = made_in_backward(batch.gradients, batch.scale, inf_counts=False)
        everywhere = batch.is_everywhere and event.facts.tensors > 1  # what is finite is no measure of them
        if self._last_change == "scale_growth" and held < min(self._growth_interval, PROBE_STEPS):
            return everywhere or not elsewhere
        inside = self._is_probed(batch.scale) and not batch.is_everywhere
        return not elsewhere and (batch.loss_is_high or inside)

    def _note_held(self, scale: float, steps: int) -> None:
        """The scale held for so many unskipped steps."""
        if steps >= PROBE_STEPS and not scale <= self._held and math.isfinite(scale):
            self._held = scale
        if steps >= SCALE_HELD and not scale <= self._held_long and math.isfinite(scale):
            self._held_long = scale

    def _at_edge(self, batch: Batch, held: int, held_before: float) -> bool:
        """Whether nothing points to a bad batch: the loss and the gradients that stayed finite are known, and do not
        stand out, and what did not fit became inf. Then the scale had no headroom left. A loss that stands out is none
        of that where the gradients are not so much longer than usual that a scale with headroom would bear them.

        A scale far below one that had held is no longer at its edge: the gradients grow.
        """
        gradients, probed = batch.gradients, self._is_probed(batch.scale)
        highest = held < HIGHEST_HELD and not batch.scale <= held_before
        usual = loss_is_usual(batch.loss, batch.recent, EDGE_PROBED if probed else EDGE_DEVIATIONS)
        short = batch.norm_ratio <= (NORM_ROSE if probed else SPOILED_NORMS if highest else 0.0)
        short = short and not batch.times_usual > FAR_TIMES  # what such a loss left need not show in what is finite
        known = not math.isnan(batch.norm_ratio)
        return (
            not batch.scale * SCALE_FALLEN <= self._held_long
            and (usual or short or batch.loss_recurs(after=True))
            and (not batch.norms_stand_out(after=True) if known else probed or highest)
            and gradients is not None
            and (gradients.inf > 0 or batch.nearly_overflowed)
        )

    def _is_probed(self, scale: float) -> bool:
        """Whether the scale is known to have less than a doubling to spare: the scaler tried the next higher one in
        vain, or it has overflowed before for no other reason than its height.
        """
        probed = self._probe is not None and self._probe.failed and scale <= self._probe.scale
        return probed or scale >= self._edge

    def _probe_after(self, event: Known, held: int) -> _Probe | None:
        """What is known of the last growth after a change of the scale that had held for so many steps."""
        old, new = event.facts.old_scale, event.facts.new_scale
        probe = self._probe
        if event.kind == "scale_growth":
            before = probe.held_in_all if probe is not None and probe.failed else 0
            return _Probe(old, new, held, before + held)
        slack = self._change_slack + event.facts.slack
        if event.kind != "scale_backoff" or probe is None or probe.failed or held + slack >= PROBE_STEPS:
            return None
        return replace(probe, failed=True) if (old, new) == (probe.scale, probe.scale_below) else None

    def _held_since_change(self, at: int, step: int, skips_now: int | None = None) -> int:
        """Unskipped steps since the last change of the scale and before `step`, the run's `at`th.

        But for those whose gradients were all 0: they pass at any scale, and show nothing of it.
        """
        unskipped = self._unskipped(at, self._change, self._change_skips, skips_now)
        return max(0, unskipped - self.past.without_gradient(self._changed_at, step)) if unskipped else 0

    def _unskipped(self, step: int, since: int, skips_then: int, skips_now: int | None = None) -> int:
        """Unskipped steps after step `since` and before step `step`, both counted from the run's first one."""
        skips = (self._skips if skips_now is None else skips_now) - skips_then
        return max(0, step - 1 - since - skips)


@dataclass(frozen=True)
class _Probe:
    """A growth of the scale, and once `failed` that it came back to where it was."""

    scale_below: float
    scale: float
    held: int  # unskipped steps at `scale_below` right before
    held_in_all: int  # with those before earlier probes that failed
    failed: bool = False


class _Row:
    """Skipped steps in a row."""

    def __init__(self, start: int = -1, first_scale: float = math.nan) -> None:
        self.start = start
        self.first_scale = first_scale
        self.scale = first_scale
        self.skips = 0
        self.causes: Counter[str] = Counter()
        self.collapsed = False

    def collapse(self, cause: str, nan_only: bool) -> Collapse | None:
        hopeless = cause in ("forward_nonfinite", "nonfinite_parameters") or self.scale < 1
        fell = self.scale < self.first_scale or self.scale == 0
        if self.collapsed or self.skips < COLLAPSE_SKIPS or not fell or not hopeless:
            return None
        self.collapsed = True
        known = Counter({name: self.causes[name] for name in HOPELESS if self.causes[name]})
        cause = known.most_common(1)[0][0] if known else "backward_nonfinite" if nan_only else "unknown"
        return Collapse(cause, self.start, self.skips, self.first_scale, self.scale)

    @property
    def is_first_but_for_probes(self) -> bool:
        """Whether nothing but a higher scale that was tried in vain led to the newest skip."""
        return self.skips - self.causes["growth_probe"] == 1
