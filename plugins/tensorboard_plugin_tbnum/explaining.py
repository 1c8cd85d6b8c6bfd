"""Events and findings of runs, worked out beside what somebody waits for."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tbnum.explain.finding import OF_THE_RUN, Finding
from tbnum.log.schema import Event
from tensorboard_plugin_tbnum.entries import Entry
from tensorboard_plugin_tbnum.snapshots import Explained, Recorded

__all__ = ["Explain", "Explainer", "Find"]

logger = logging.getLogger("tensorboard")

MOMENT_SECONDS = 0.2
"""What takes longer to work out is not done again for each new step of a run."""
PATIENCE_SECONDS = 0.5
"""So long at most it waits for questions that are answered in a moment."""

Explain = Callable[["Recorded"], Sequence[Event]]
"""The events of a run with their causes."""
Find = Callable[["Recorded", Sequence[Event]], Sequence[Finding]]
"""The findings of a run with its explained events."""


class Explainer:
    """Asks the rules about runs: one thread at a time about each, and not while a quick question is answered."""

    def __init__(self, explain: Explain | None, find: Find | None) -> None:
        self.explain = explain
        self.find = find
        self._quick = 0  # questions in progress that somebody waits for a curve with
        self._none_quick = threading.Condition()

    @contextlib.contextmanager
    def quickly(self) -> Iterator[None]:
        """Marks a question that is answered in a moment: what takes long to work out does not begin meanwhile.

        Both would be slower for it, as Python runs one of them at a time.
        """
        with self._none_quick:
            self._quick += 1
        try:
            yield
        finally:
            with self._none_quick:
                self._quick -= 1
                self._none_quick.notify_all()

    def _let_quick_ones_pass(self) -> None:
        with self._none_quick:
            self._none_quick.wait_for(lambda: not self._quick, PATIENCE_SECONDS)

    def explained(self, entry: Entry, record: Recorded, version: str, findings: bool) -> Explained:
        """Events and, if asked for, findings of `record`; one thread at a time works on a run.

        For a slow live run, returns the previous result, so that explaining takes a fifth of the time at most.
        """
        with entry.explaining:
            explained = entry.explained
            if explained is None or explained.version != version:
                recent = explained is not None and time.monotonic() < explained.until
                same = explained is not None and explained.version.partition(".")[0] == version.partition(".")[0]
                if not (recent and same):
                    self._let_quick_ones_pass()
                    explained = self._explain_now(record, version)
            assert explained is not None
            if findings and explained.findings is None:
                self._let_quick_ones_pass()
                explained = self._find_now(explained)
                entry.findings = Counter(finding.severity for finding in explained.findings or ())
            entry.explained = explained
            return explained

    def _explain_now(self, record: Recorded, version: str) -> Explained:
        started = time.monotonic()
        found: Sequence[Event] = record.raw_events
        problems = []
        try:
            if self.explain is not None:
                found = tuple(self.explain(record))
        except Exception as error:
            # A rule that fails must not hide the facts.
            logger.exception("tbnum: the events of run %r could not be explained", record.name)
            problems.append(f"the events could not be explained ({type(error).__name__}: {error})")
        return Explained(version, record, found, problems, _stands_until(started))

    def _find_now(self, explained: Explained) -> Explained:
        started = time.monotonic()
        found: Sequence[Finding] = ()
        try:
            if self.find is not None:
                found = tuple(self.find(explained.record, explained.events))
        except Exception as error:
            # As with the events: what a rule stumbles over is reported, and hides nothing else.
            logger.exception("tbnum: the findings of run %r failed", explained.record.name)
            reason = f"{type(error).__name__}: {error}"
            found = (Finding("findings_failed", "warning", "The findings of this run failed", reason, "", OF_THE_RUN),)
        return replace(explained, findings=found, until=max(explained.until, _stands_until(started)))


def _stands_until(started: float) -> float:
    """How long what took from `started` until now may stand: not at all if that was a moment."""
    took = time.monotonic() - started
    return started if took < MOMENT_SECONDS else started + 5 * took
