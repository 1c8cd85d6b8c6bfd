"""The routes of the plugin: they parse and answer, the `*_impl` functions compute.

What they promise stands in `http_api.md`.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import logging
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from tbnum import export
from tbnum.explain import explain_run, findings
from tbnum.explain.summary import group_events, worth_reading
from tbnum.log.reader import Totals
from tbnum.log.schema import PLUGIN_NAME, WHOLE_MODEL, Event
from tbnum.log.tags import checked_mapping
from tensorboard_plugin_tbnum import decimate, tables
from tensorboard_plugin_tbnum.derived import column_of, derived_names, is_of_ranks, of_ranks, rank_names
from tensorboard_plugin_tbnum.overlay import ALIGNMENTS, overlay_impl
from tensorboard_plugin_tbnum.runs import Listing, Row, RunTable, Snapshot, UnknownRun, roots
from tensorboard_plugin_tbnum.tables import NotFound
from tensorboard_plugin_tbnum.told import Told

__all__ = [
    "Malformed",
    "NotFound",
    "TbnumPlugin",
    "events_impl",
    "nonfinite_impl",
    "pack",
    "run_impl",
    "runs_impl",
    "series_impl",
    "step_impl",
]

logger = logging.getLogger("tensorboard")

STATIC = Path(__file__).parent / "static"
ENTRY = "index.js"
# In place of the entry point where there is none: TensorBoard would show an empty tab.
NOT_BUILT = """\
export function render() {
  document.documentElement.lang = "en";
  document.documentElement.style.colorScheme = "light dark";
  document.body.style.cssText = "margin: 24px; font: 15px/1.5 system-ui, sans-serif; white-space: pre-line";
  document.body.setAttribute("role", "alert");
  document.body.textContent = "The panel's front end is not built\\n\\n" + REASON;
}
"""
MIMETYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".woff2": "font/woff2",
}

DEFAULT_BUCKETS = 2048
MAX_BUCKETS = 1 << 20
MAX_OVERLAID = 256
MAX_GROUPS = 400
KEPT_BYTES = 16 << 20

NO_SETTINGS = {
    *("session", "file", "start_time", "end_time", "ended", "closed", "first_step", "format_version", "dropped"),
    *("ranks", "rank", "parameters", "names"),
}
"""What a session tells of itself that is no setting, or too long to compare."""

EXPORT_TYPES = {"csv": "text/csv", "json": "application/json", "jsonl": "application/x-ndjson"}
EXPORTS: Mapping[tuple[str, str], Callable[[Snapshot], Iterator[str]]] = {
    ("steps", "csv"): export.steps_csv,
    ("steps", "json"): export.steps_json,
    ("steps", "jsonl"): export.steps_jsonl,
    ("events", "csv"): export.events_csv,
    ("events", "json"): export.events_json,
    ("events", "jsonl"): export.events_jsonl,
}

Route = Callable[[wrappers.Request], wrappers.Response]


class Malformed(ValueError):
    """A parameter is missing or is not what it should be: 400."""


class TbnumPlugin(base_plugin.TBPlugin):
    """The "Numerics" tab. Reads its runs from the files below the logdir, not through TensorBoard, which samples."""

    plugin_name = PLUGIN_NAME

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._runs = RunTable(
            roots(context.logdir, getattr(context.flags, "logdir_spec", None)),
            explain=explain_run,
            find=findings,
            tags=checked_mapping(getattr(context.flags, "tbnum_map", None)),
        )
        self._kept = _Kept()
        self._told = Told()

    def get_plugin_apps(self) -> dict[str, Any]:
        # TensorBoard asks once, while it starts: early enough for the tab to be there when the first page is loaded.
        self._runs.start()
        routes: dict[str, Route] = {
            "/runs": self._serve_runs,
            "/run": self._serve_run,
            "/series": self._serve_series,
            "/overlay": self._serve_overlay,
            "/nonfinite": self._serve_nonfinite,
            "/events": self._serve_events,
            "/step": self._serve_step,
            "/tensors": self._serve_tensors,
            "/heatmap": self._serve_heatmap,
            "/tensor": self._serve_tensor,
            "/histogram": self._serve_histogram,
            "/ridge": self._serve_ridge,
            "/findings": self._serve_findings,
            "/settings": self._serve_settings,
            "/export": self._serve_export,
            "/static/*": self._serve_static,
        }
        long = ("/events", "/step", "/findings", "/export")
        return {path: _application(route if path in long else self._quick(route)) for path, route in routes.items()}

    def _quick(self, route: Route) -> Route:
        def answered(request: wrappers.Request) -> wrappers.Response:
            with self._runs.quickly():
                return route(request)

        return answered

    def is_active(self) -> bool:
        """Whether there is a run to show, from memory."""
        return self._runs.active

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        return base_plugin.FrontendMetadata(es_module_path=f"/static/{ENTRY}", tab_name="Numerics")

    def _serve_runs(self, request: wrappers.Request) -> wrappers.Response:
        body = _to_json(runs_impl(self._runs.listing(), frontend_state()))
        return _answer(request, "application/json", _etag(body), lambda: body)

    def _serve_run(self, request: wrappers.Request) -> wrappers.Response:
        snapshot = self._snapshot(request)
        return _answer(
            request, "application/json", _etag(snapshot.version, "run"), lambda: _to_json(run_impl(snapshot))
        )

    def _serve_series(self, request: wrappers.Request) -> wrappers.Response:
        columns = _texts(request, many="columns", one="column")
        if not columns:
            raise Malformed("columns is missing; give names with commas between them, as in columns=loss,grad_norm")
        first, last = _interval(request)
        buckets = _count(request, "buckets", DEFAULT_BUCKETS, MAX_BUCKETS)
        snapshot = self._snapshot(request, ranks=any(map(is_of_ranks, columns)))
        return _answer(
            request,
            "application/octet-stream",
            _etag(snapshot.version, "series", columns, first, last, buckets),
            lambda: series_impl(snapshot, columns, first, last, buckets),
        )

    def _serve_overlay(self, request: wrappers.Request) -> wrappers.Response:
        lines = _lines(request)
        columns = _texts(request, many="columns", one="column")
        if not columns:
            raise Malformed("columns is missing; give names with commas between them, as in columns=loss,grad_norm")
        alignment = request.args.get("x", "step")
        if alignment not in ALIGNMENTS:
            raise Malformed(f"x={alignment[:40]!r} is not among {', '.join(ALIGNMENTS)}")
        first, last = _interval(request)
        buckets = _count(request, "buckets", DEFAULT_BUCKETS, MAX_BUCKETS)
        tensors = any(name.startswith("headroom/") for name in columns)

        def snapshot(name: str) -> Snapshot:
            return self._runs.snapshot(name, tensors=tensors)

        def version(name: str) -> str | None:
            try:
                return snapshot(name).version
            except (UnknownRun, OSError):
                return None

        versions = [[version(name) for name in names] for names in lines]
        return _answer(
            request,
            "application/octet-stream",
            _etag(versions, "overlay", lines, columns, alignment, first, last, buckets),
            lambda: pack(*overlay_impl(lines, snapshot, columns, alignment, first, last, buckets)),
        )

    def _serve_nonfinite(self, request: wrappers.Request) -> wrappers.Response:
        column = _text(request, "column")
        first, last = _interval(request)
        snapshot = self._snapshot(request)
        return _answer(
            request,
            "application/octet-stream",
            _etag(snapshot.version, "nonfinite", column, first, last),
            lambda: nonfinite_impl(snapshot, column, first, last),
        )

    def _serve_events(self, request: wrappers.Request) -> wrappers.Response:
        since = request.args.get("since")
        snapshot = self._snapshot(request, events=True)
        return _answer(
            request,
            "application/json",
            _etag(snapshot.events_version, "events", since),
            lambda: events_impl(snapshot, since, self._told),
            self._kept if since is None else None,
        )

    def _serve_step(self, request: wrappers.Request) -> wrappers.Response:
        step = _integer(request, "step")
        if step is None:
            raise Malformed("step is missing; give the number of a step, as in step=1200")
        snapshot = self._snapshot(request, events=True)
        return _answer(
            request,
            "application/json",
            _etag(snapshot.version, snapshot.events_version, "step", step),
            lambda: _to_json(step_impl(snapshot, step)),
        )

    def _serve_tensors(self, request: wrappers.Request) -> wrappers.Response:
        snapshot = self._snapshot(request, tensors=True)
        return _answer(
            request,
            "application/json",
            _etag(snapshot.version, "tensors"),
            lambda: _to_json(tables.tensors_impl(snapshot)),
        )

    def _serve_heatmap(self, request: wrappers.Request) -> wrappers.Response:
        column, depth = _text(request, "column"), _integer(request, "depth", least=1)
        names = _texts(request, many="names", one="name")
        if names and depth is not None:
            raise Malformed("names and depth cannot be combined: modules or tensors, one of both")
        first, last = _interval(request)
        buckets = _count(request, "buckets", tables.DEFAULT_BUCKETS, tables.MAX_BUCKETS)
        rows = _count(request, "rows", tables.DEFAULT_ROWS, tables.MAX_ROWS)
        if buckets * rows > tables.MAX_CELLS:
            raise Malformed(f"buckets={buckets} times rows={rows} is more than {tables.MAX_CELLS} cells")
        snapshot = self._snapshot(request, tensors=True)
        return _answer(
            request,
            "application/octet-stream",
            _etag(snapshot.version, "heatmap", column, names, depth, first, last, buckets, rows),
            lambda: pack(*tables.heatmap_impl(snapshot, column, first, last, buckets, names, depth, rows)),
        )

    def _serve_tensor(self, request: wrappers.Request) -> wrappers.Response:
        name, columns = _text(request, "name"), _texts(request, many="columns", one="column")
        if not columns:
            raise Malformed("columns is missing; give names with commas between them, as in columns=grad_norm,absmax")
        depth = _integer(request, "depth", least=1)
        first, last = _interval(request)
        snapshot = self._snapshot(request, tensors=True)
        return _answer(
            request,
            "application/octet-stream",
            _etag(snapshot.version, "tensor", name, columns, depth, first, last),
            lambda: pack(*tables.tensor_impl(snapshot, name, columns, first, last, depth)),
        )

    def _serve_histogram(self, request: wrappers.Request) -> wrappers.Response:
        source, name = request.args.get("source", "gradient"), request.args.get("name", WHOLE_MODEL)
        step = _integer(request, "step")
        snapshot = self._snapshot(request, tensors=True)
        return _answer(
            request,
            "application/json",
            _etag(snapshot.version, "histogram", source, name, step),
            lambda: _to_json(_plain(tables.histogram_impl(snapshot, source, name, step))),
        )

    def _serve_ridge(self, request: wrappers.Request) -> wrappers.Response:
        source, name = request.args.get("source", "gradient"), request.args.get("name", WHOLE_MODEL)
        first, last = _interval(request)
        rows = _count(request, "rows", tables.DEFAULT_RIDGE_ROWS, tables.MAX_RIDGE_ROWS)
        snapshot = self._snapshot(request, tensors=True)
        return _answer(
            request,
            "application/octet-stream",
            _etag(snapshot.version, "ridge", source, name, first, last, rows),
            lambda: pack(*tables.ridge_impl(snapshot, source, name, first, last, rows)),
        )

    def _serve_findings(self, request: wrappers.Request) -> wrappers.Response:
        snapshot = self._snapshot(request, findings=True)
        return _answer(
            request,
            "application/json",
            _etag(snapshot.events_version, "findings"),
            lambda: _to_json(findings_impl(snapshot)),
        )

    def _serve_settings(self, request: wrappers.Request) -> wrappers.Response:
        name = _text(request, "run")
        settings = settings_impl(self._runs.sessions(name))
        tag = _etag(_to_json(settings))
        body = _to_json({"run": name, "version": tag, "settings": settings})
        return _answer(request, "application/json", _etag("settings", name, tag), lambda: body)

    def _serve_export(self, request: wrappers.Request) -> wrappers.Response:
        what, form = request.args.get("what", "steps"), request.args.get("format", "csv")
        if (what, form) not in EXPORTS:
            known = ", ".join(f"what={what}&format={form}" for what, form in EXPORTS)
            raise Malformed(f"what={what[:40]!r} and format={form[:40]!r} are not among {known}")
        snapshot = self._snapshot(request, events=what == "events")
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", snapshot.run).strip("._") or "run"
        return wrappers.Response(
            (piece.encode("utf-8", "surrogatepass") for piece in EXPORTS[what, form](snapshot)),
            mimetype=EXPORT_TYPES[form],
            headers=[
                ("Content-Disposition", f'attachment; filename="{name}.{what}.{form}"'),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
            ],
        )

    def _serve_static(self, request: wrappers.Request) -> wrappers.Response:
        name = request.path.partition("/static/")[2]
        file = static_files().get(name)
        if file is not None:
            body = file.read_bytes()
        elif name == ENTRY:
            body = NOT_BUILT.replace("REASON", json.dumps(frontend_state())).encode()
        else:
            raise NotFound(f"the panel has no file {name!r}")
        return _answer(request, MIMETYPES[Path(name).suffix], _etag(body), lambda: body)

    def _snapshot(
        self,
        request: wrappers.Request,
        *,
        events: bool = False,
        findings: bool = False,
        tensors: bool = False,
        ranks: bool = False,
    ) -> Snapshot:
        run = _text(request, "run")
        return self._runs.snapshot(run, events=events, findings=findings, tensors=tensors, ranks=ranks)


# What the routes compute.


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
        "seed": _plain(row.seed),
        "setting": row.setting,
        "source": row.source,
        "steps_read": row.steps_read,
    }


def run_impl(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "run": snapshot.run,
        "version": snapshot.version,
        "steps": len(snapshot.steps["step"]),
        "columns": list(snapshot.steps),
        "derived": [*derived_names(snapshot.steps), *rank_names(snapshot.steps, snapshot.meta)],
        "meta": _plain(snapshot.meta),
        "problems": list(snapshot.problems),
    }


def series_impl(snapshot: Snapshot, columns: Sequence[str], first: int | None, last: int | None, buckets: int) -> bytes:
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
        reduced = decimate.reduce(column, cut, decimate.measured(name, snapshot.steps))
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
    return pack(header, arrays)


def nonfinite_impl(snapshot: Snapshot, column: str, first: int | None, last: int | None) -> bytes:
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
    return pack({**_extent(snapshot), "column": column, "from": first, "to": last}, arrays)


def events_impl(snapshot: Snapshot, since: str | None, told: Told) -> bytes:
    """All events, or those from the first one on that `since`, an earlier version, has not or has otherwise.

    Writing out 5,000 events costs some 60 ms.
    """
    rows: list[bytes] = []
    unchanged = len(snapshot.events)
    if since != snapshot.events_version:
        rows = [_to_json(row) for row in _event_rows(snapshot, snapshot.events)]
        unchanged = told.unchanged(since, snapshot.events_version, rows)
    head = {"version": snapshot.events_version, "unchanged": unchanged}
    return b'%b,"events":[%b]}' % (_to_json(head)[:-1], b",".join(rows[unchanged:]))


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
        values[name] = _plain(value)
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


def settings_impl(sessions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the newest of a run's sessions told of its settings, for comparing runs."""
    told = {key: value for key, value in sessions[-1].items() if key not in NO_SETTINGS}
    settings = {key: told.pop(key, None) for key in ("scaler", "optimizers", "versions", "seed", "config")}
    plain: dict[str, Any] = _plain({**settings, **told, "sessions": len(sessions)})
    return plain


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
    text = _to_json({**header, "arrays": entries})
    text += b" " * (-(4 + len(text)) % 8)
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])


def static_files() -> dict[str, Path]:
    """The panel's files by their names in requests. Nothing that is not in here can be asked for."""
    found = (file for file in STATIC.rglob("*") if file.suffix in MIMETYPES and file.is_file())
    return {file.relative_to(STATIC).as_posix(): file for file in found}


def frontend_state() -> str:
    """`ok`, or what is missing of the panel and how to get it."""
    if (STATIC / ENTRY).is_file():
        return "ok"
    return (
        f"missing: {ENTRY}. In a checkout of tbnum run `make frontend` or `pip install .`, which need npm; elsewhere"
        " install a wheel, which has it: `pip install --force-reinstall --no-deps tbnum`."
    )


def _column(snapshot: Snapshot, name: str) -> np.ndarray:
    values = column_of(name, snapshot.steps, snapshot.derived)
    if values is None and is_of_ranks(name):
        values = of_ranks(name, snapshot.ranks)
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
            "data": _plain(event.data),
        }
        for event in events
    ]


def _plain(value: Any) -> Any:
    """`value` as strict JSON has it: non-finite numbers as the texts that http_api.md names."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)


def _known(value: Any) -> Any:
    """`value` in JSON where NaN always means unknown."""
    return None if isinstance(value, float) and math.isnan(value) else _plain(value)


def _to_json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


# How the routes parse and answer.


def _text(request: wrappers.Request, name: str) -> str:
    value = request.args.get(name)
    if value is None:
        raise Malformed(f"{name} is missing")
    return value


def _texts(request: wrappers.Request, *, many: str, one: str) -> list[str]:
    """Names from parameters with commas and from parameters without, each once, in order."""
    names = [name for value in request.args.getlist(many) for name in value.split(",") if name]
    return list(dict.fromkeys(names + request.args.getlist(one)))


def _lines(request: wrappers.Request) -> list[list[str]]:
    """Names of runs, those of one line together, from parameters `line` with a JSON list of texts each."""
    lines = []
    for text in request.args.getlist("line"):
        try:
            names = json.loads(text)
        except (ValueError, RecursionError):
            names = None
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise Malformed(f'line={text[:40]!r} is not a JSON list of runs, as in line=["gpt/seed1","gpt/seed2"]')
        lines.append(list(dict.fromkeys(names)))
    runs = sum(map(len, lines))
    if not 1 <= runs <= MAX_OVERLAID:
        raise Malformed(f"{runs} runs in all parameters line; give 1 to {MAX_OVERLAID}")
    return lines


def _integer(request: wrappers.Request, name: str, *, least: int | None = None) -> int | None:
    value = request.args.get(name)
    if value is None:
        return None
    # Not int() alone, which takes "1_000", " 7" and other scripts' digits. 18 digits fit into an int64.
    if not re.fullmatch(r"-?[0-9]{1,18}", value, re.ASCII):
        raise Malformed(f"{name}={value[:40]!r} is not a whole number")
    if least is not None and int(value) < least:
        raise Malformed(f"{name}={value} is less than {least}")
    return int(value)


def _count(request: wrappers.Request, name: str, default: int, most: int) -> int:
    value = _integer(request, name)
    if value is None:
        return default
    if not 1 <= value <= most:
        raise Malformed(f"{name}={value} is not between 1 and {most}")
    return value


def _interval(request: wrappers.Request) -> tuple[int | None, int | None]:
    first, last = _integer(request, "from"), _integer(request, "to")
    if first is not None and last is not None and first > last:
        raise Malformed(f"from={first} is greater than to={last}")
    return first, last


def _etag(*question: Any) -> str:
    parts = (part if isinstance(part, bytes) else json.dumps(part).encode() for part in question)
    return hashlib.blake2b(b"\0".join(parts), digest_size=12).hexdigest()


class _NotModified(wrappers.Response):
    """A 304 with a content type: TensorBoard wants one on every response, and werkzeug takes it off this one."""

    def get_wsgi_headers(self, environ: Any) -> Any:
        headers = super().get_wsgi_headers(environ)
        headers["Content-Type"] = self.content_type
        return headers


class _Kept:
    """Long texts that are asked for again and again, compressed, within a budget."""

    def __init__(self, budget_bytes: int = KEPT_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._texts: dict[str, bytes] = {}  # by ETag; the one asked for last comes last

    def get(self, tag: str, body: Callable[[], bytes]) -> bytes:
        """`body()` in gzip, made once for each tag."""
        with self._lock:
            text = self._texts.pop(tag, None)
        if text is None:
            text = gzip.compress(body(), compresslevel=3, mtime=0)
        with self._lock:
            self._texts[tag] = text
            while sum(map(len, self._texts.values())) > self._budget_bytes:
                del self._texts[next(iter(self._texts))]
        return text


def _answer(
    request: wrappers.Request, mimetype: str, tag: str, body: Callable[[], bytes], kept: _Kept | None = None
) -> wrappers.Response:
    """Answers with `body()`, which is not computed when the asker, or `kept`, has it already.

    Binary answers get a strong ETag. Text gets a weak one, since TensorBoard compresses it for those who take gzip.
    """
    binary = mimetype == "application/octet-stream"
    headers = [("ETag", f'"{tag}"' if binary else f'W/"{tag}"')]
    if not binary:
        headers.append(("Vary", "Accept-Encoding"))
    if request.if_none_match.contains_weak(tag):
        headers += [("Cache-Control", "no-cache, must-revalidate"), ("X-Content-Type-Options", "nosniff")]
        return _NotModified(status=304, headers=headers, content_type=mimetype)
    if kept is not None:
        return http_util.Respond(request, kept.get(tag, body), mimetype, headers=headers, content_encoding="gzip")
    return http_util.Respond(request, body(), mimetype, headers=headers)


def _refuse(request: wrappers.Request, code: int, reason: str, allow: str | None = None) -> wrappers.Response:
    headers = [("Allow", allow)] if allow else []
    return http_util.Respond(request, _to_json({"error": reason}), "application/json", code=code, headers=headers)


def _application(route: Route) -> Any:
    """`route` as a WSGI application that answers every error, the asker's, the disk's or our own, in JSON."""

    @wrappers.Request.application
    def application(request: wrappers.Request) -> wrappers.Response:
        if request.method not in ("GET", "HEAD"):
            return _refuse(request, 405, f"{request.method} is not possible here; this API only reads", "GET, HEAD")
        try:
            return route(request)
        except Malformed as error:
            return _refuse(request, 400, str(error))
        except (NotFound, UnknownRun) as error:
            return _refuse(request, 404, str(error))
        except OSError as error:
            logger.warning("tbnum: %s: %s", request.path, error)
            return _refuse(request, 503, f"reading failed: {error}")
        except Exception as error:
            # A fault of ours. TensorBoard and the other routes go on; what the log needs for a report is in it.
            logger.exception("tbnum: %s failed", request.path)
            return _refuse(
                request, 500, f"tbnum itself failed ({type(error).__name__}: {error}); TensorBoard's log has more"
            )

    return application
