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
from typing import Any

from tbnum.explain.facts import Known
from tbnum.explain.past import Past
from tbnum.explain.record import SCALE_CHANGES
from tbnum.explain.thresholds import SPOILED_NORMS
from tbnum.explain.words import as_float
from tbnum.log.numbering import Numbering

__all__ = ["BENIGN", "COLLAPSE_SKIPS", "PROBE_STEPS", "Collapse", "Rules", "Skip"]

BENIGN = ("scale_warmup", "growth_probe")
"""Causes that belong to the life of a dynamic loss scale."""

PROBE_STEPS = 10
"""A scale that survived this many unskipped steps (or one growth interval, if shorter) after a growth has held."""

COLLAPSE_SKIPS = 10
"""Skipped steps in a row from which on a falling scale can be a collapse. It is one when, besides, the last skip
came from a non-finite loss or from non-finite parameters, or the scale has fallen below 1: an overflow of finite
values would have ended by then. (A first scale of 2^24 and a model that bears 2^10 make 14 skips, and no collapse.)
"""

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
    nonfinite_since: int  # step at which the parameters became non-finite
    growth_interval: int  # 0: unknown
    injected: str | None  # the note that labels the batch as spoiled on purpose
    at_edge: bool  # a scale that had held overflowed in a step that does not stand out otherwise (see `_at_edge`)
    collapsed: bool  # in a row of skips that was a collapse already


@dataclass(frozen=True)
class Collapse:
    """A scale that fell over skips in a row. Told once a row."""

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
    before the one that tells of them: where that decides between two causes, the cause is unknown.
    """

    def __init__(self, past: Past, meta: Mapping[str, Any], first_step: int = 0) -> None:
        self._past = past
        self._count = Numbering.of(meta).count  # all that follows counts steps from the run's first one
        scaler = meta.get("scaler") or {}
        interval = as_float(scaler.get("growth_interval"))
        self._growth_interval = int(interval) if interval >= 1 else DEFAULT_GROWTH_INTERVAL
        self._interval_known = interval >= 1 or "source" not in meta
        begin = self._count(first_step)
        self._start: int | None = begin - 1 if begin == 0 else None  # the scale is new after this step
        self._start_skips = 0  # `_skips` at that time
        self._last_change: str | None = None
        self._change = begin - 1
        self._change_slack = 0  # steps that it may have come before `_change`
        self._change_skips = 0
        self._probe: _Probe | None = None  # the last growth, until the scale is neither the new one nor the old one
        self._skips = 0  # steps skipped so far, whatever the optimizer
        self._last_skip: int | None = None
        self._nonfinite_since: int | None = None
        self._injected: tuple[int, str] | None = None
        self._row = _Row()

    def notice(self, event: Known) -> None:
        """Takes an event that is no skip."""
        kind, at = event.kind, self._count(event.step)
        if kind in SCALE_CHANGES:
            self._probe = self._probe_after(event)
            self._last_change, self._change, self._change_skips = kind, at, self._skips
            self._change_slack = event.facts.slack
            self._row.scale = event.facts.new_scale
            if kind in ("scale_set", "scaler_state_lost"):
                self._start, self._start_skips = at, self._skips
        elif kind == "nonfinite_step":
            if self._parameters_nonfinite_since(event.step) is None:
                self._nonfinite_since = event.step
        elif kind == "resume":
            self._nonfinite_since = None  # the checkpoint's parameters
        elif kind == "annotation" and event.data.get("injected"):
            self._injected = (event.step, str(event.data.get("text", "")))

    def nonfinite_since(self, event: Known) -> int | None:
        """Of a step that was taken with non-finite gradients: where the parameters had become non-finite before."""
        since = self._parameters_nonfinite_since(event.step)
        return since if since is not None and since < event.step else None

    def skip(self, event: Known) -> tuple[Skip, Collapse | None]:
        """Judges a skip; the collapse, when this skip makes it clear."""
        step, at = event.step, self._count(event.step)
        scale = event.facts.loss_scale
        if self._last_skip is None or at - event.facts.also_skipped > self._last_skip + 1:
            self._row = _Row(start=step, first_scale=scale)
        # With several optimizers a step may have several skips; where not every step was logged, one tells of several.
        before = self._skips - (at == self._last_skip) + event.facts.at_least - 1
        held = self._unskipped(at, self._change, self._change_skips, before)
        recent = self._past.recent_losses(step)
        injected = self._injected[1] if self._injected and self._injected[0] == step else None
        nonfinite_since = self._parameters_nonfinite_since(step)
        cause = self._cause(event, held, before, recent, injected is not None, nonfinite_since)
        row, probe = self._row, self._probe
        new_scale = event.facts.new_scale
        row.scale = scale if math.isnan(new_scale) else new_scale
        if at != self._last_skip:
            row.skips += max(event.facts.at_least, event.facts.halvings)
            self._skips += event.facts.at_least
            self._last_skip = at
        row.causes[cause] += 1
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
            recent_loss=statistics.median(recent) if recent else math.nan,
            nonfinite_since=nonfinite_since if nonfinite_since is not None else -1,
            growth_interval=self._growth_interval if self._interval_known else 0,
            injected=injected,
            at_edge=cause == "bad_batch" and injected is None and row.skips == 1 and self._at_edge(event, recent),
            collapsed=row.collapsed,
        )
        return verdict, self._collapse(cause)

    def _cause(
        self, event: Known, held: int, before: int, recent: Sequence[float], injected: bool, nonfinite_since: int | None
    ) -> str:
        if event.facts.params_nonfinite or nonfinite_since is not None:
            return "nonfinite_parameters"  # first: non-finite parameters make the loss non-finite too
        if event.facts.loss_nonfinite:
            return "forward_nonfinite"
        if self._row.collapsed:
            return "unknown"  # a finite loss, and gradients that overflow at every scale: no scale was to blame
        if event.facts.inferred and math.isnan(event.facts.loss_scale):
            return "unknown"  # no scale was logged
        if event.facts.loss_scale == 0:
            return "unknown"  # no batch and no probe: no gradient can be divided by it
        at, slack = self._count(event.step), event.facts.slack
        if self._start is not None:
            unskipped = self._unskipped(at, self._start, self._start_skips, before)
            # The first scale in a scalar log is the one after the first step: whether it fell is not seen.
            if unskipped <= (1 if event.facts.inferred and not slack and self._start < 0 else 0):
                return "scale_warmup"
            if unskipped <= slack:
                return "unknown"
        probe = min(self._growth_interval, PROBE_STEPS)
        if self._last_change == "scale_growth" and held - slack < probe <= held + self._change_slack:
            return "unknown"
        if self._last_change == "scale_growth" and held < probe:
            spoiled = (
                injected
                or loss_stands_out(event.facts.loss, recent)
                or self._past.norm_ratio(event.step, event.optimizer) >= SPOILED_NORMS
            )
            return "bad_batch" if spoiled else "growth_probe"
        if self._last_change is None and self._start is None and held < PROBE_STEPS:
            return "unknown"  # what the scaler did before the record began is not known
        return "bad_batch"

    def _at_edge(self, event: Known, recent: Sequence[float]) -> bool:
        """Whether nothing tells of a spoiled batch: the loss and the gradients that stayed finite are known, and do not
        stand out, and what did not fit became inf. Then the scale had no headroom left.
        """
        return (
            loss_is_usual(event.facts.loss, recent)
            and self._past.norm_ratio(event.step, event.optimizer) < SPOILED_NORMS
            and self._past.overflowed(event.step, event.optimizer)
        )

    def _probe_after(self, event: Known) -> _Probe | None:
        """What is known of the last growth after a change of the scale."""
        old, new = event.facts.old_scale, event.facts.new_scale
        held = self._unskipped(self._count(event.step) + 1, self._change, self._change_skips)
        probe = self._probe
        if event.kind == "scale_growth":
            before = probe.held_in_all if probe is not None and probe.failed else 0
            return _Probe(old, new, held, before + held)
        slack = self._change_slack + event.facts.slack
        if event.kind != "scale_backoff" or probe is None or probe.failed or held + slack >= PROBE_STEPS:
            return None
        return replace(probe, failed=True) if (old, new) == (probe.scale, probe.scale_below) else None

    def _unskipped(self, step: int, since: int, skips_then: int, skips_now: int | None = None) -> int:
        """Unskipped steps after step `since` and before step `step`, both counted from the run's first one."""
        skips = (self._skips if skips_now is None else skips_now) - skips_then
        return max(0, step - 1 - since - skips)

    def _parameters_nonfinite_since(self, step: int) -> int | None:
        if self._nonfinite_since is not None:
            finite = self._past.last_finite_loss(step)
            if finite is not None and finite > self._nonfinite_since:
                self._nonfinite_since = None  # a finite loss came out of them since
        return self._nonfinite_since

    def _collapse(self, cause: str) -> Collapse | None:
        row = self._row
        hopeless = cause in ("forward_nonfinite", "nonfinite_parameters") or row.scale < 1
        fell = row.scale < row.first_scale or row.scale == 0
        if row.collapsed or row.skips < COLLAPSE_SKIPS or not fell or not hopeless:
            return None
        row.collapsed = True
        known = Counter({name: n for name, n in row.causes.items() if name.endswith(("nonfinite", "parameters"))})
        cause = known.most_common(1)[0][0] if known else "unknown"
        return Collapse(cause, row.start, row.skips, row.first_scale, row.scale)


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


def loss_is_usual(loss: float, recent: Sequence[float]) -> bool:
    """Whether a loss is known to be as its recent ones are: at most 3 robust standard deviations over their median.

    Of 700 good batches one has more: whoever is sent to look at it looks at little else that is good.
    """
    if len(recent) < 10 or not math.isfinite(loss):
        return False
    median, deviation = _spread(recent)
    return loss - median <= 3 * deviation


def loss_stands_out(loss: float, recent: Sequence[float]) -> bool:
    """Whether a loss lies far above its recent ones: 8 robust standard deviations over their median, and a tenth.

    Far, because it overrules a rule: a scale that has just grown is a better suspect than a batch that is a bit worse.
    """
    if len(recent) < 10 or not math.isfinite(loss):
        return False
    median, deviation = _spread(recent)
    return loss - median > max(8 * deviation, 0.1 * abs(median))


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """Median and robust standard deviation."""
    median = statistics.median(values)
    return median, 1.4826 * statistics.median(abs(value - median) for value in values)
