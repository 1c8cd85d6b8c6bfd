"""What the routes compute of runs, steps and events. Plain functions: no request, no response.

What they answer stands in `http_api.md`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tbnum.explain.derived import column_of, derived_names
from tbnum.explain.headline import headline
from tbnum.explain.summary import group_events, worth_reading
from tbnum.log.reader import Totals
from tbnum.log.schema import STEP_HASH, Event
from tensorboard_plugin_tbnum import decimate
from tensorboard_plugin_tbnum.event_versions import EventVersions
from tensorboard_plugin_tbnum.pauses import pauses
from tensorboard_plugin_tbnum.rank_columns import is_of_ranks, of_ranks, rank_names
from tensorboard_plugin_tbnum.snapshots import Listing, Row, Snapshot
from tensorboard_plugin_tbnum.tables import Answer, NotFound

__all__ = [
    "events_impl",
    "findings_impl",
    "health_impl",
    "nonfinite_impl",
    "pack",
    "plain",
    "run_impl",
    "runs_impl",
    "series_impl",
    "settings_impl",
    "step_impl",
    "to_json",
]

MAX_GROUPS = 400

NO_SETTINGS = {
    *("session", "file", "start_time", "end_time", "ended", "closed", "first_step", "format_version", "dropped"),
    *("ranks", "rank", "parameters", "names", "depth"),
}
"""What a session records of itself that is no setting, or too long to compare."""


def runs_impl(listing: Listing, frontend: str) -> dict[str, Any]:
    return {
        "state": "ready" if listing.ready else "scanning",
        "logdir": listing.logdir,
        "frontend": frontend,
        "runs": [_table_row(row) for row in listing.rows],
        "errors": [{"run": name, "reason": reason} for name, reason in sorted(listing.errors.items())],
    }


def _table_row(row: Row) -> dict[str, Any]:
    totals = {field.name: getattr(row.totals, field.name, None) for field in dataclasses.fields(Totals)}
    return {
        "run": row.run,
        **{name: _known(value) for name, value in totals.items()},
        "optimizers": None if row.optimizers is None else list(row.optimizers),
        "problems": row.problems,
        "findings": row.findings,
        "seed": plain(row.seed),
        "setting": row.setting,
        "source": row.source,
        "steps_read": row.steps_read,
    }


def run_impl(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "run": snapshot.run,
        "version": snapshot.version,
        "steps": len(snapshot.steps["step"]),
        "columns": [name for name in snapshot.steps if name != STEP_HASH.name],  # a hash has no curve
        "derived": [*derived_names(snapshot.steps), *rank_names(snapshot.steps, snapshot.meta)],
        "unknown": _unknown(snapshot.steps),
        "pauses": _pauses(snapshot.steps),
        "meta": plain(snapshot.meta),
        "problems": list(snapshot.problems),
    }


def _unknown(steps: Mapping[str, np.ndarray]) -> list[str]:
    """Columns without a single known value: a loss scale where there is no scaler."""
    floats = {name: values for name, values in steps.items() if values.dtype.kind == "f"}
    few = {name: values for name, values in floats.items() if not np.isfinite(values[-100:]).any()}  # mostly none
    return [name for name, values in few.items() if np.isnan(values).all()]


def _pauses(steps: Mapping[str, np.ndarray]) -> list[tuple[int, float]]:
    """The step before each pause, and how many seconds it took."""
    before, seconds = pauses(steps["wall_time"])
    return list(zip(steps["step"][before].tolist(), seconds.tolist(), strict=True))


def series_impl(
    snapshot: Snapshot, columns: Sequence[str], first: int | None, last: int | None, buckets: int
) -> Answer:
    """Columns over the steps from `first` to `last`, inclusive (None: open), in at most `buckets` points.

    Costs about 2 ms a column of a million steps, 8 ms where it has non-finite values.
    """
    values = {name: _column(snapshot, name) for name in columns}
    steps = snapshot.steps["step"]
    lo, hi = decimate.interval(steps, first, last)
    cut = decimate.make_buckets(steps, lo, hi, buckets)
    arrays = {
        "step": steps[cut.first].astype(np.float64),
        "step_last": steps[cut.last].astype(np.float64),
        "wall_time": snapshot.steps["wall_time"][cut.first].astype(np.float64),
    }
    wide = decimate.wide_columns(values)
    for name, column in values.items():
        on_wire = (lambda x: x.astype(np.float64)) if name in wide else decimate.as_float32
        if cut.size == 1:
            arrays.setdefault(name, on_wire(column[lo:hi]))
            continue
        reduced = snapshot.coarse.reduce(name, column, snapshot.steps, cut)
        arrays[f"{name}/min"] = on_wire(reduced.min)
        arrays[f"{name}/max"] = on_wire(reduced.max)
        arrays[f"{name}/mean"] = decimate.as_float32(reduced.mean)
        arrays[f"{name}/last"] = on_wire(reduced.last)
        arrays[f"{name}/nan"] = reduced.nan
        arrays[f"{name}/inf"] = reduced.inf
        arrays[f"{name}/known"] = reduced.known
    first, last = _asked(steps, first, last)
    if cut.size > 1:
        assert first is not None and last is not None  # where there are buckets there are steps
        first = min(first, int(steps[lo]) // cut.size * cut.size)
        last = max(last, int(steps[hi - 1]) // cut.size * cut.size + cut.size - 1)
    header = {**_extent(snapshot), "from": first, "to": last, "bucket_steps": cut.size}
    return header, arrays


def nonfinite_impl(snapshot: Snapshot, column: str, first: int | None, last: int | None) -> Answer:
    """Every step from `first` to `last`, inclusive (None: open), at which `column` was measured not to be finite."""
    values = _column(snapshot, column)
    steps = snapshot.steps["step"]
    lo, hi = decimate.interval(steps, first, last)
    at = decimate.nonfinite(values, lo, hi, decimate.measured(column, snapshot.steps))
    first, last = _asked(steps, first, last)
    arrays = {
        "step": steps[at].astype(np.float64),
        "wall_time": snapshot.steps["wall_time"][at].astype(np.float64),
        "value": decimate.as_float32(values[at]),
    }
    return {**_extent(snapshot), "column": column, "from": first, "to": last}, arrays


def events_impl(snapshot: Snapshot, since: str | None, sent: EventVersions) -> bytes:
    """All events, or those from the first one on that `since`, an earlier version, has not or has otherwise.

    Writing out 5,000 events costs some 60 ms.
    """
    rows: list[bytes] = []
    unchanged = len(snapshot.events)
    if since != snapshot.events_version:
        rows = [to_json(row) for row in _event_rows(snapshot, snapshot.events)]
        unchanged = sent.unchanged(since, snapshot.events_version, rows)
    facts = headline(snapshot, snapshot.events)
    head = {"version": snapshot.events_version, "unchanged": unchanged, "headline": facts}
    return b'%b,"events":[%b]}' % (to_json(head)[:-1], b",".join(rows[unchanged:]))


def step_impl(snapshot: Snapshot, step: int) -> dict[str, Any]:
    """The values at `step`, or at the nearest step before it."""
    steps = snapshot.steps["step"]
    at = decimate.interval(steps, None, step)[1] - 1
    if at < 0:
        begins = f"begins at step {steps[0]}" if len(steps) else "has no step yet"
        raise NotFound(f"there is no step {step} or before in run {snapshot.run!r}, which {begins}")
    here = {name: column[at : at + 1] for name, column in snapshot.steps.items()}
    values: dict[str, Any] = {}
    for name, column in here.items():
        value = column[0].item()
        if isinstance(value, float) and math.isnan(value):
            known = decimate.measured(name, here)
            value = value if known is not None and known[0] else None
        values[name] = plain(value)
    found = int(steps[at])
    return {
        "run": snapshot.run,
        "version": snapshot.version,
        "step": found,
        "values": values,
        "events": _event_rows(snapshot, [event for event in snapshot.events if event.step == found]),
    }


def findings_impl(snapshot: Snapshot) -> dict[str, Any]:
    groups = group_events(worth_reading(snapshot.events))
    shown = groups[:MAX_GROUPS]
    rows = _event_rows(snapshot, [group.first for group in shown])
    return {
        "version": snapshot.events_version,
        "findings": [dataclasses.asdict(finding) for finding in snapshot.findings],
        "groups": [
            {**row, "last_step": group.last_step, "count": group.count, "more": group.more}
            for row, group in zip(rows, shown, strict=True)
        ],
        "groups_total": len(groups),
    }


def health_impl(snapshot: Snapshot) -> dict[str, Any]:
    """How a run does, in a few numbers: what a list of runs has room for."""
    steps, events = snapshot.steps, snapshot.events
    findings = Counter(finding.severity for finding in snapshot.findings)
    severities = {*findings, *(event.severity for event in events)} - {"info"}
    losses = steps.get("loss")
    nonfinite = (
        decimate.nonfinite(losses, 0, len(losses), decimate.measured("loss", steps)) if losses is not None else ()
    )
    return {
        "run": snapshot.run,
        "worst": next((severity for severity in ("error", "warning") if severity in severities), None),
        "findings": dict(findings),
        "spikes": len({event.step for event in events if event.kind.endswith("_spike")}),
        "skipped": int(steps["skipped"].sum()) if "skipped" in steps else None,
        "clipped": _clipped_share(snapshot),
        "nonfinite": len(nonfinite),
    }


def _clipped_share(snapshot: Snapshot) -> float | None:
    """Of the updates of all optimizers of which it is known."""
    names = [name for name in derived_names(snapshot.steps) if name.rpartition("/")[2] == "clipped"]
    known = [values[np.isfinite(values)] for values in (_column(snapshot, name) for name in names)]
    clipped = np.concatenate(known) if known else np.empty(0)
    return float(clipped.mean()) if len(clipped) else None


def settings_impl(sessions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the newest of a run's sessions recorded of its settings, for comparing runs."""
    others = {key: value for key, value in sessions[-1].items() if key not in NO_SETTINGS}
    settings = {key: others.pop(key, None) for key in ("scaler", "optimizers", "versions", "seed", "config")}
    found: dict[str, Any] = plain({**settings, **others, "sessions": len(sessions)})
    return found


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """`header` and `arrays` (float64, float32 or uint32) in the binary layout of `http_api.md`."""
    entries: list[dict[str, Any]] = []
    parts: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        data += bytes(-len(data) % 8)
        entries.append({"name": name, "dtype": array.dtype.name, "length": array.size, "offset": offset})
        parts.append(data)
        offset += len(data)
    text = to_json({**header, "arrays": entries})
    text += b" " * (-(4 + len(text)) % 8)
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])


def _column(snapshot: Snapshot, name: str) -> np.ndarray:
    values = column_of(name, snapshot.steps, snapshot.derived)
    if values is None and is_of_ranks(name):
        values = of_ranks(name, snapshot.ranks, snapshot.derived)
        if values is not None:
            snapshot.derived[name] = values
    if values is None:
        known = ", ".join([*snapshot.steps, *derived_names(snapshot.steps)])
        raise NotFound(f"run {snapshot.run!r} has no column {name!r}; it has {known}")
    return values


def _extent(snapshot: Snapshot) -> dict[str, Any]:
    steps = snapshot.steps["step"]
    some = len(steps) > 0
    return {
        "run": snapshot.run,
        "version": snapshot.version,
        "first_step": int(steps[0]) if some else None,
        "last_step": int(steps[-1]) if some else None,
        "steps": len(steps),
    }


def _asked(steps: np.ndarray, first: int | None, last: int | None) -> tuple[int | None, int | None]:
    """The interval with the run's own ends where it was left open."""
    if len(steps):
        first = int(steps[0]) if first is None else first
        last = int(steps[-1]) if last is None else last
    return first, last


def _event_rows(snapshot: Snapshot, events: Sequence[Event]) -> list[dict[str, Any]]:
    walls = snapshot.steps["wall_time"]
    started = float(walls[0]) if len(walls) else min((event.wall_time for event in snapshot.events), default=math.nan)
    return [
        {
            "step": event.step,
            "wall_time": _known(event.wall_time),
            "elapsed": _known(event.wall_time - started),
            "kind": event.kind,
            "severity": event.severity,
            "optimizer": event.optimizer,
            "cause": event.cause,
            "message": event.message,
            "remedy": event.remedy,
            "data": plain(event.data),
        }
        for event in events
    ]


def plain(value: Any) -> Any:
    """`value` as strict JSON has it: non-finite numbers as the texts that http_api.md names."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)


def _known(value: Any) -> Any:
    """`value` in JSON where NaN always means unknown."""
    return None if isinstance(value, float) and math.isnan(value) else plain(value)


def to_json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
