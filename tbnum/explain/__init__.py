"""From facts to reasons: why steps were skipped, what to do, and what stands out in a run. Loads no torch.

Nothing here reads or writes a file. `explain_run` and `findings` take a run (`tbnum.log.reader.Run`, or anything with
its `steps`, `raw_events` and `meta`); `LiveExplainer` applies the same rules while a run goes on, without hindsight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tbnum.explain.ahead import Later, look_ahead
from tbnum.explain.causes import CAUSES, explained_collapse, explained_skip
from tbnum.explain.close_look import CloseLook
from tbnum.explain.evidence import with_evidence
from tbnum.explain.facts import Known
from tbnum.explain.finding import Finding
from tbnum.explain.findings import find
from tbnum.explain.hindsight import skip_in_hindsight, with_failed_steps, with_hindsight, with_rhythm
from tbnum.explain.kinds import explained_event, unexplained_event
from tbnum.explain.led_here import LedHere, Quantity, what_led_here
from tbnum.explain.live import LiveSpikes
from tbnum.explain.nonfinite import spoiled_updates, update_event, with_runaway
from tbnum.explain.parameters import ParameterNorms, SpoiledUpdate
from tbnum.explain.past import LivePast, RecordedPast
from tbnum.explain.predict import NextOverflow, next_overflow
from tbnum.explain.ranks import events_of_all_ranks
from tbnum.explain.record import Record, complete_events, first_step
from tbnum.explain.rules import Rules
from tbnum.explain.samples import with_samples
from tbnum.explain.spikes import SPIKES, spike_events
from tbnum.explain.words import as_float
from tbnum.log.numbering import Numbering
from tbnum.log.schema import Event

__all__ = [
    "CAUSES",
    "SPIKES",
    "Finding",
    "LedHere",
    "LiveExplainer",
    "NextOverflow",
    "Quantity",
    "explain_run",
    "findings",
    "next_overflow",
    "what_led_here",
]


_T = TypeVar("_T")


def explain_run(run: Record) -> list[Event]:
    """The events of a run with severity, cause, message and remedy, in order of step.

    Beyond `run.raw_events` there are those that the columns report: a `scale_collapse` where skips in a row amount to
    one, a `nonfinite_update`, and a skip for each skipped step whose event record was lost. Skips and non-finite steps
    carry what speaks for their cause in `data["evidence"]`, from `run.tensors` too where there are any (see
    `evidence.with_evidence`). An event that cannot be explained says so, and what cannot be worked out at all is named
    by an event `left_out`; neither costs the others.
    Where the record has the samples of a step, events that come from its batch name them.
    O(events), a few passes over the columns, and about 0.2 ms for each of at most 1,000 tables that are read.
    """
    attempt = _Attempts(run)
    events = attempt("skips whose event was lost", lambda: complete_events(run), list(run.raw_events))
    ranks = getattr(run, "ranks", None)
    events = attempt("what other ranks add", lambda: events_of_all_ranks(events, ranks), events)
    known = with_failed_steps([Known.of(event) for event in events])
    steps = run.steps.get("step")
    recorded = int(steps[-1]) if steps is not None and len(steps) else -1
    last_step = max(recorded, known[-1].step if known else -1)
    look = CloseLook(run)
    norms = attempt("norms of the parameters", lambda: ParameterNorms(run), None)
    updates: list[SpoiledUpdate] = []
    if norms is not None:
        updates = attempt("updates", lambda: spoiled_updates(run, norms, known), updates)
    past = RecordedPast(run.steps, look, norms)
    rules = Rules(past, run.meta, first_step(run), updates)
    explained: list[Event] = []
    for event, later in zip(known, look_ahead(known, last_step, Numbering.of(run.meta)), strict=True):
        explained += _explain(with_hindsight(event, last_step, run.steps), rules, later, look)
    explained = attempt("the rhythm of skips", lambda: with_rhythm(explained), explained)
    derived = [update_event(run, update, past) for update in sorted({*updates, *rules.parameters.found})]
    if derived:  # they know since when
        explained = [event for event in explained if event.kind != "nonfinite_update"]
    derived += attempt("spikes", lambda: spike_events(run), [])
    derived += attempt.left_out
    explained += [explained_event(Known.of(event), None) for event in derived]
    explained = sorted(explained, key=lambda event: event.step)
    known_so_far = len(attempt.left_out)
    explained = attempt("samples of steps", lambda: with_samples(explained, getattr(run, "batch", None)), explained)
    return explained + [explained_event(Known.of(event), None) for event in attempt.left_out[known_so_far:]]


def findings(run: Record, events: Sequence[Event] | None = None) -> list[Finding]:
    """What is worth acting on in a run, gravest first. `events`: its explained events, where they are at hand."""
    return find(run, explain_run(run) if events is None else events)


class LiveExplainer:
    """Explains events as they come, from the history so far. A step costs about a microsecond.

    `meta`: the session's (`scaler`, `first_step`), as it is written to the log.
    """

    def __init__(self, meta: Mapping[str, Any] | None = None) -> None:
        self._meta = dict(meta or {})
        self._begin(int(self._meta.get("first_step") or 0))
        self._columns: Sequence[str] = ()
        self._at: tuple[int, int, int] = (-1, -1, -1)
        self._derived: list[Event] = []
        self._spikes = LiveSpikes()

    def steps(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Takes steps that closed, in order; before or after the events of the last of them."""
        if columns is not self._columns:
            self._columns = columns
            at = {name: index for index, name in enumerate(columns)}
            self._at = (at["step"], at.get("loss", -1), at.get("skipped", -1))
        self._spikes.steps(columns, rows)
        step, loss, skipped = self._at
        for row in rows:
            self._past.step(
                int(row[step]),
                as_float(row[loss]) if loss >= 0 else math.nan,
                bool(row[skipped]) if skipped >= 0 else False,
                columns,
                row,
            )

    def event(self, event: Event) -> Event:
        """`event` with severity, cause, message and remedy. O(1)."""
        if event.kind == "resume":  # what was seen before the checkpoint, if anything, is not what leads to it
            self._begin(int(event.data.get("from_step", event.step)))
        explained, *derived = _explain(Known.of(event), self._rules, None, None)
        self._derived += derived
        return explained

    def _begin(self, first_step: int) -> None:
        self._past = LivePast()
        self._rules = Rules(self._past, self._meta, first_step)

    def scaler_found(self, settings: Mapping[str, Any] | None) -> None:
        """Of a scaler that was not known at the start, as `meta` would have had them."""
        self._meta["scaler"] = settings
        self._rules.take_settings(self._meta)

    def derived(self) -> list[Event]:
        """Events that the rules found by themselves since the last call: `scale_collapse`."""
        derived, self._derived = self._derived, []
        return derived

    def drained(self) -> list[Event]:
        """Spikes that began since the last call, explained. For every 64 steps or so; 0.2 ms."""
        return [explained_event(Known.of(event), None) for event in self._spikes.new()]


class _Attempts:
    """Works things out of a record that may be damaged: what fails costs itself, and is named."""

    def __init__(self, run: Record) -> None:
        steps = run.steps.get("step")
        self._step = int(steps[-1]) if steps is not None and len(steps) else 0
        self.left_out: list[Event] = []

    def __call__(self, what: str, work: Callable[[], _T], instead: _T) -> _T:
        try:
            return work()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self.left_out.append(Event(self._step, math.nan, "left_out", data={"what": what, "reason": reason}))
            return instead


def _explain(event: Known, rules: Rules, later: Later | None, look: CloseLook | None) -> list[Event]:
    """The event in words, and after a skip the collapse that it made clear. One that no rule can digest says so."""
    try:
        return _explained(event, rules, later, look)
    except Exception as error:
        return [unexplained_event(event, error)]


def _explained(event: Known, rules: Rules, later: Later | None, look: CloseLook | None) -> list[Event]:
    if event.kind == "nonfinite_step":
        verdict = rules.nonfinite_step(event)
        rules.notice(event)
        return [with_evidence(explained_event(event, later, verdict), event.facts, None, None, look)]
    if event.kind != "skip":
        rules.notice(event)
        if event.kind == "nonfinite_update":
            event = event._replace(event=with_runaway(event.event, rules.past))
        return [explained_event(event, later)]
    skip, collapse = rules.skip(event)
    skip = skip_in_hindsight(skip, event, later)
    reported = [with_evidence(explained_skip(event, skip, later), event.facts, skip, later, look)]
    if collapse is not None:
        reported.append(explained_collapse(event.event, collapse, later))
    return reported
