"""The routes of the plugin: they parse and answer, the `*_impl` functions compute.

What they promise stands in `http_api.md`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from tbnum import export
from tbnum.explain import explain_run, findings
from tbnum.log.schema import PLUGIN_NAME, WHOLE_MODEL
from tbnum.log.tags import checked_mapping
from tensorboard_plugin_tbnum import decimate, impl, judging, tables
from tensorboard_plugin_tbnum.event_versions import EventVersions
from tensorboard_plugin_tbnum.http import (
    BINARY,
    JSON,
    Kept,
    Malformed,
    Route,
    answer,
    application,
    columns,
    count,
    etag,
    integer,
    interval,
    lines,
    text,
    texts,
)
from tensorboard_plugin_tbnum.impl import pack, plain, series_impl, to_json
from tensorboard_plugin_tbnum.overlay import ALIGNMENTS, overlay_impl
from tensorboard_plugin_tbnum.rank_columns import is_of_ranks
from tensorboard_plugin_tbnum.runs import RunTable, UnknownRun, roots
from tensorboard_plugin_tbnum.snapshots import Snapshot
from tensorboard_plugin_tbnum.tables import NotFound

__all__ = ["TbnumPlugin", "frontend_state", "pack", "series_impl", "static_files"]

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

EXPORT_TYPES = {"csv": "text/csv", "json": "application/json", "jsonl": "application/x-ndjson"}
EXPORTS: Mapping[tuple[str, str], Callable[[Snapshot], Iterator[str]]] = {
    ("steps", "csv"): export.steps_csv,
    ("steps", "json"): export.steps_json,
    ("steps", "jsonl"): export.steps_jsonl,
    ("events", "csv"): export.events_csv,
    ("events", "json"): export.events_json,
    ("events", "jsonl"): export.events_jsonl,
}


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
        self._kept = Kept()
        self._event_versions = EventVersions()

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
            "/apart": self._serve_apart,
            "/band": self._serve_band,
            "/health": self._serve_health,
            "/led": self._serve_led,
            "/settings": self._serve_settings,
            "/export": self._serve_export,
            "/static/*": self._serve_static,
        }
        long = ("/events", "/step", "/findings", "/health", "/led", "/apart", "/band", "/export")
        return {path: application(route if path in long else self._quick(route)) for path, route in routes.items()}

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
        body = to_json(impl.runs_impl(self._runs.listing(), frontend_state()))
        return answer(request, JSON, etag(body), lambda: body)

    def _serve_run(self, request: wrappers.Request) -> wrappers.Response:
        return self._json(request, self._snapshot(request), impl.run_impl)

    def _serve_series(self, request: wrappers.Request) -> wrappers.Response:
        wanted = columns(request, "loss,grad_norm")
        first, last = interval(request)
        buckets = count(request, "buckets", DEFAULT_BUCKETS, MAX_BUCKETS)
        snapshot = self._snapshot(request, ranks=any(map(is_of_ranks, wanted)))
        return self._binary(request, snapshot, series_impl, wanted, first, last, buckets)

    def _serve_overlay(self, request: wrappers.Request) -> wrappers.Response:
        named = lines(request)
        wanted = columns(request, "loss,grad_norm")
        alignment = request.args.get("x", "step")
        if alignment not in ALIGNMENTS:
            raise Malformed(f"x={alignment[:40]!r} is not among {', '.join(ALIGNMENTS)}")
        question = (wanted, alignment, *interval(request), count(request, "buckets", DEFAULT_BUCKETS, MAX_BUCKETS))
        tensors = any(name.startswith("headroom/") for name in wanted)

        def snapshot(name: str) -> Snapshot:
            return self._runs.snapshot(name, tensors=tensors)

        def version(name: str) -> str | None:
            try:
                return snapshot(name).version
            except (UnknownRun, OSError):
                return None

        versions = [[version(name) for name in names] for names in named]
        tag = etag(versions, "overlay", named, question)
        return answer(request, BINARY, tag, lambda: pack(*overlay_impl(named, snapshot, *question)))

    def _serve_nonfinite(self, request: wrappers.Request) -> wrappers.Response:
        column = text(request, "column")
        return self._binary(request, self._snapshot(request), impl.nonfinite_impl, column, *interval(request))

    def _serve_events(self, request: wrappers.Request) -> wrappers.Response:
        since = request.args.get("since")
        snapshot = self._snapshot(request, events=True)
        return answer(
            request,
            JSON,
            etag(snapshot.events_version, "events", since),
            lambda: impl.events_impl(snapshot, since, self._event_versions),
            self._kept if since is None else None,
        )

    def _serve_step(self, request: wrappers.Request) -> wrappers.Response:
        step = integer(request, "step")
        if step is None:
            raise Malformed("step is missing; give the number of a step, as in step=1200")
        return self._json(request, self._snapshot(request, events=True), impl.step_impl, step)

    def _serve_tensors(self, request: wrappers.Request) -> wrappers.Response:
        return self._json(request, self._snapshot(request, tensors=True), tables.tensors_impl)

    def _serve_heatmap(self, request: wrappers.Request) -> wrappers.Response:
        column, depth = text(request, "column"), integer(request, "depth", least=1)
        names = texts(request, many="names", one="name")
        if names and depth is not None:
            raise Malformed("names and depth cannot be combined: modules or tensors, one of both")
        first, last = interval(request)
        buckets = count(request, "buckets", tables.DEFAULT_BUCKETS, tables.MAX_BUCKETS)
        rows = count(request, "rows", tables.DEFAULT_ROWS, tables.MAX_ROWS)
        if buckets * rows > tables.MAX_CELLS:
            raise Malformed(f"buckets={buckets} times rows={rows} is more than {tables.MAX_CELLS} cells")
        question = (column, first, last, buckets, names, depth, rows)
        return self._binary(request, self._snapshot(request, tensors=True), tables.heatmap_impl, *question)

    def _serve_tensor(self, request: wrappers.Request) -> wrappers.Response:
        question = (text(request, "name"), columns(request, "grad_norm,absmax"), *interval(request))
        depth = integer(request, "depth", least=1)
        return self._binary(request, self._snapshot(request, tensors=True), tables.tensor_impl, *question, depth)

    def _serve_histogram(self, request: wrappers.Request) -> wrappers.Response:
        question = (*_histogram(request), integer(request, "step"))
        return self._json(request, self._snapshot(request, tensors=True), tables.histogram_impl, *question)

    def _serve_ridge(self, request: wrappers.Request) -> wrappers.Response:
        question = (*_histogram(request), *interval(request))
        rows = count(request, "rows", tables.DEFAULT_RIDGE_ROWS, tables.MAX_RIDGE_ROWS)
        return self._binary(request, self._snapshot(request, tensors=True), tables.ridge_impl, *question, rows)

    def _serve_findings(self, request: wrappers.Request) -> wrappers.Response:
        return self._json(request, self._snapshot(request, findings=True), impl.findings_impl)

    def _serve_apart(self, request: wrappers.Request) -> wrappers.Response:
        one, other = (
            self._runs.snapshot(text(request, name), events=True, tensors=True, checksums=True) for name in ("a", "b")
        )
        tag = etag("apart", one.version, one.events_version, other.version, other.events_version)
        return answer(request, JSON, tag, lambda: to_json(judging.apart_impl(one, other)))

    def _serve_band(self, request: wrappers.Request) -> wrappers.Response:
        run, seeds = self._snapshot(request), [self._runs.snapshot(name) for name in lines(request)[0]]
        wanted = columns(request, "loss,grad_norm")
        tag = etag("band", run.version, [seed.version for seed in seeds], wanted)
        return answer(request, JSON, tag, lambda: to_json(judging.band_impl(run, seeds, wanted)))

    def _serve_health(self, request: wrappers.Request) -> wrappers.Response:
        return self._json(request, self._snapshot(request, findings=True), impl.health_impl)

    def _serve_led(self, request: wrappers.Request) -> wrappers.Response:
        step = integer(request, "step")
        if step is None:
            raise Malformed("step is missing; give the number of a step, as in step=1200")
        snapshot = self._snapshot(request, tensors=True, ranks=True)
        return self._json(request, snapshot, judging.led_impl, step, self._runs.batch(snapshot.run, step))

    def _serve_settings(self, request: wrappers.Request) -> wrappers.Response:
        name = text(request, "run")
        settings = impl.settings_impl(self._runs.sessions(name))
        tag = etag(to_json(settings))
        body = to_json({"run": name, "version": tag, "settings": settings})
        return answer(request, JSON, etag("settings", name, tag), lambda: body)

    def _serve_export(self, request: wrappers.Request) -> wrappers.Response:
        what, form = request.args.get("what", "steps"), request.args.get("format", "csv")
        if (what, form) not in EXPORTS:
            known = ", ".join(f"what={what}&format={form}" for what, form in EXPORTS)
            raise Malformed(f"what={what[:40]!r} and format={form[:40]!r} are not among {known}")
        snapshot = _within(self._snapshot(request, events=what == "events"), *interval(request))
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
        return answer(request, MIMETYPES[Path(name).suffix], etag(body), lambda: body)

    def _snapshot(
        self,
        request: wrappers.Request,
        *,
        events: bool = False,
        findings: bool = False,
        tensors: bool = False,
        ranks: bool = False,
    ) -> Snapshot:
        run = text(request, "run")
        return self._runs.snapshot(run, events=events, findings=findings, tensors=tensors, ranks=ranks)

    def _json(
        self, request: wrappers.Request, snapshot: Snapshot, compute: Callable[..., Any], *question: Any
    ) -> wrappers.Response:
        """What `compute` makes of a snapshot, as JSON: another where the run, its events or the question differ."""
        tag = etag(snapshot.version, snapshot.events_version, compute.__name__, question)
        return answer(request, JSON, tag, lambda: to_json(plain(compute(snapshot, *question))))

    def _binary(
        self, request: wrappers.Request, snapshot: Snapshot, compute: Callable[..., tables.Answer], *question: Any
    ) -> wrappers.Response:
        """As `_json`, in the binary layout."""
        tag = etag(snapshot.version, compute.__name__, question)
        return answer(request, BINARY, tag, lambda: pack(*compute(snapshot, *question)))


def _within(snapshot: Snapshot, first: int | None, last: int | None) -> Snapshot:
    """Steps and events from `first` to `last`, inclusive (None: open)."""
    if first is None and last is None:
        return snapshot
    lo, hi = decimate.interval(snapshot.steps["step"], first, last)
    kept = slice(lo, hi)
    low, high = (-math.inf if first is None else first), (math.inf if last is None else last)
    return dataclasses.replace(
        snapshot,
        steps={name: values[kept] for name, values in snapshot.steps.items()},
        events=[event for event in snapshot.events if low <= event.step <= high],
    )


def _histogram(request: wrappers.Request) -> tuple[str, str]:
    """Of what, and of which tensor."""
    return request.args.get("source", "gradient"), request.args.get("name", WHOLE_MODEL)


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
