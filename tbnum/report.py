"""What a run comes to: its numbers, causes, events and findings, as words and as JSON. Loads no torch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tbnum.explain import Finding, NextOverflow, findings, next_overflow
from tbnum.explain.headline import headline
from tbnum.explain.record import Part, Record, attempts, is_scalar_log
from tbnum.explain.summary import summarize
from tbnum.explain.words import (
    clock_text,
    count_text,
    duration_text,
    number_text,
    scale_text,
    share_text,
)
from tbnum.export import as_records
from tbnum.log.files import RemotePath
from tbnum.log.reader import Run
from tbnum.log.schema import Event

__all__ = ["Report", "scalar_source"]


@dataclass(frozen=True)
class Report:
    """A run, or the part of it from a step on. Causes are judged with all that came before."""

    name: str
    run: Run
    record: Record  # the part in question
    events: Sequence[Event]
    findings: Sequence[Finding]
    summary: Mapping[str, Any]
    expected: NextOverflow | None

    @staticmethod
    def of(name: str, run: Run, since: int | None = None) -> Report:
        """O(steps): half a second for a million."""
        events: Sequence[Event] = run.events
        record: Record = run
        if since is not None:
            record, events = Part(run, since), [event for event in events if event.step >= since]
        found = findings(record, events)
        return Report(name, run, record, events, found, summarize(record, events, found), _expected(run))

    @property
    def title(self) -> str:
        return run_title(self.name, self.run)

    @property
    def ended(self) -> str | None:
        """ "closed", "crash", or None where it runs, or was killed."""
        return self.run.totals.ended

    def state(self) -> str:
        """In a few words: how it ended, when it began, how long it took."""
        parts = [{"closed": "ended", "crash": "crashed"}.get(self.ended or "", "running, or killed")]
        summary = self.summary
        if summary["steps"]:
            began = clock_text(summary["first_wall_time"], "%Y-%m-%d %H:%M:%S")
            parts += [f"began {began}", f"took {duration_text(summary['last_wall_time'] - summary['first_wall_time'])}"]
        if summary["sessions"] > 1:
            parts.append(count_text(summary["sessions"], "session"))
        return ", ".join(parts)

    def headline(self) -> list[str]:
        """What matters, in a line, as the panel says it in its head."""
        return [count_text(self.summary["steps"], "step"), *headline(self.record, self.events)]

    def numbers(self) -> list[tuple[str, str]]:
        """Label and text of each line of the table."""
        summary = self.summary
        if not summary["steps"]:
            return [("steps", "none recorded yet" if self.ended is None else "none recorded")]
        skipped = summary["skipped"]
        rows = [
            ("steps", f"{summary['steps']:,}  ({summary['first_step']} to {summary['last_step']})"),
            ("skipped", self._skipped_text(skipped)),
        ]
        if is_scalar_log(self.record):
            rows.insert(0, ("source", scalar_source(self.run.meta)))
        if loss := summary["loss"]:
            text = f"first {number_text(loss['first'])}   last {number_text(loss['last'])}"
            if loss["best"] is not None:
                text += f"   best {number_text(loss['best'])} at step {loss['best_step']}"
            if loss["nonfinite_steps"]:
                text += f"   non-finite in {count_text(loss['nonfinite_steps'], 'step')}"
            rows.append(("loss", text))
        if scale := summary["loss_scale"]:
            text = f"start {scale_text(scale['first'])}   last {scale_text(scale['last'])}"
            if scale["lowest"] < min(scale["first"], scale["last"]):
                text += f"   lowest {scale_text(scale['lowest'])}"
            if scale["held"] is not None:
                text += f"   longest held {scale_text(scale['held'])} ({count_text(scale['held_steps'], 'step')})"
            rows.append(("loss scale", text))
        elif isinstance(scaler := self.run.meta.get("scaler"), Mapping) and scaler.get("enabled") is False:
            why = "by enabled=False, or for want of its device"
            rows.append(("loss scale", f"none: the GradScaler was disabled ({why})"))
        for clip in summary["clipping"]:
            text = f"max_norm {number_text(clip['max_norm'])}   " if clip["max_norm"] is not None else ""
            text += f"{share_text(clip['clipped'], clip['known'])} of the steps clipped"
            rows.append(("clipping", f"{clip['optimizer']}: {text}" if clip["optimizer"] else text))
        if self.expected is not None and self.ended is None:
            rows.append(("ahead", self.expected.message))
        return rows

    def _skipped_text(self, skipped: Mapping[str, Any]) -> str:
        count = skipped["steps"]
        if count is None:
            seen = sum(row["skips"] for row in skipped["causes"].values())
            at_least = f"; {seen:,} at least, by the gradient norm" if seen else ""
            return f"unknown: no loss scaler shows in the log{at_least}"
        text = f"{count:,}  ({share_text(count, attempts(self.record))})"
        return f"at least {text}, inferred" if skipped["inferred"] else text

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "source": self.run.meta.get("source", "tbnum"),
            "ended": self.ended,
            **self.summary,
            "next_overflow": None if self.expected is None else dataclasses.asdict(self.expected),
            "problems": self.run.problems,
            "events": as_records(self.events),
        }


def run_title(name: str, run: Run) -> str:
    """What a run is called: a run that is the logdir itself by its folder."""
    if name != ".":
        return name
    folder = run.folder
    return folder.name if isinstance(folder, RemotePath) else os.path.basename(os.path.abspath(folder))


def _expected(run: Run) -> NextOverflow | None:
    """A prediction is the first that a damaged record may cost."""
    try:
        return next_overflow(run, run.events)
    except Exception:
        return None


def scalar_source(meta: Mapping[str, Any]) -> str:
    """Where a run that never used tbnum was read from, and how much its log can say."""
    whose = f" of {meta['system']}" if meta["system"] else ""
    unit = {"epochs": "epoch", "environment steps": "rollout"}.get(meta["x"], "step")
    every = f"every {unit}" if meta["every"] == 1 else f"one {unit} of {meta['every']:,}"
    size = meta["numbering"]["unit"]
    axis = f"; x in {meta['x']}, {size:,} a {unit}" if size > 1 else ""
    tags = ", ".join(f"{column} from {tag!r}" for column, tag in meta["tags"].items())
    return f"TensorBoard scalars{whose}, {every}{axis}: {tags}; what is not logged is inferred or unknown"
