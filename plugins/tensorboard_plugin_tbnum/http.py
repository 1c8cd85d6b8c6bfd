"""How routes parse what they are asked, and how they answer: parameters, ETags, and every error in JSON."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable
from typing import Any

from tensorboard.backend import http_util
from werkzeug import wrappers

from tensorboard_plugin_tbnum.impl import to_json
from tensorboard_plugin_tbnum.runs import UnknownRun
from tensorboard_plugin_tbnum.tables import NotFound

__all__ = [
    "BINARY",
    "JSON",
    "Kept",
    "Malformed",
    "Route",
    "answer",
    "application",
    "columns",
    "count",
    "etag",
    "integer",
    "interval",
    "lines",
    "text",
    "texts",
]

logger = logging.getLogger("tensorboard")

BINARY, JSON = "application/octet-stream", "application/json"
MAX_OVERLAID = 256
KEPT_BYTES = 16 << 20

Route = Callable[[wrappers.Request], wrappers.Response]


class Malformed(ValueError):
    """A parameter is missing or is not what it should be: 400."""


def text(request: wrappers.Request, name: str) -> str:
    value = request.args.get(name)
    if value is None:
        raise Malformed(f"{name} is missing")
    return value


def texts(request: wrappers.Request, *, many: str, one: str) -> list[str]:
    """Names from parameters with commas and from parameters without, each once, in order."""
    names = [name for value in request.args.getlist(many) for name in value.split(",") if name]
    return list(dict.fromkeys(names + request.args.getlist(one)))


def columns(request: wrappers.Request, example: str) -> list[str]:
    """Names of columns; one at least."""
    names = texts(request, many="columns", one="column")
    if not names:
        raise Malformed(f"columns is missing; give names with commas between them, as in columns={example}")
    return names


def lines(request: wrappers.Request) -> list[list[str]]:
    """Names of runs, those of one line together, from parameters `line` with a JSON list of texts each."""
    found = []
    for line in request.args.getlist("line"):
        try:
            names = json.loads(line)
        except (ValueError, RecursionError):
            names = None
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise Malformed(f'line={line[:40]!r} is not a JSON list of runs, as in line=["gpt/seed1","gpt/seed2"]')
        found.append(list(dict.fromkeys(names)))
    runs = sum(map(len, found))
    if not 1 <= runs <= MAX_OVERLAID:
        raise Malformed(f"{runs} runs in all parameters line; give 1 to {MAX_OVERLAID}")
    return found


def integer(request: wrappers.Request, name: str, *, least: int | None = None) -> int | None:
    value = request.args.get(name)
    if value is None:
        return None
    # Not int() alone, which takes "1_000", " 7" and other scripts' digits. 18 digits fit into an int64.
    if not re.fullmatch(r"-?[0-9]{1,18}", value, re.ASCII):
        raise Malformed(f"{name}={value[:40]!r} is not a whole number")
    if least is not None and int(value) < least:
        raise Malformed(f"{name}={value} is less than {least}")
    return int(value)


def count(request: wrappers.Request, name: str, default: int, most: int) -> int:
    value = integer(request, name)
    if value is None:
        return default
    if not 1 <= value <= most:
        raise Malformed(f"{name}={value} is not between 1 and {most}")
    return value


def interval(request: wrappers.Request) -> tuple[int | None, int | None]:
    first, last = integer(request, "from"), integer(request, "to")
    if first is not None and last is not None and first > last:
        raise Malformed(f"from={first} is greater than to={last}")
    return first, last


def etag(*question: Any) -> str:
    parts = (part if isinstance(part, bytes) else json.dumps(part).encode() for part in question)
    return hashlib.blake2b(b"\0".join(parts), digest_size=12).hexdigest()


class _NotModified(wrappers.Response):
    """A 304 with a content type: TensorBoard wants one on every response, and werkzeug takes it off this one."""

    def get_wsgi_headers(self, environ: Any) -> Any:
        headers = super().get_wsgi_headers(environ)
        headers["Content-Type"] = self.content_type
        return headers


class Kept:
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


def answer(
    request: wrappers.Request, mimetype: str, tag: str, body: Callable[[], bytes], kept: Kept | None = None
) -> wrappers.Response:
    """Answers with `body()`, which is not computed when the asker, or `kept`, has it already.

    Binary answers get a strong ETag. Text gets a weak one, since TensorBoard compresses it for those who take gzip.
    """
    binary = mimetype == BINARY
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
    return http_util.Respond(request, to_json({"error": reason}), JSON, code=code, headers=headers)


def application(route: Route) -> Any:
    """`route` as a WSGI application that answers every error, the asker's, the disk's or our own, in JSON."""

    @wrappers.Request.application
    def answered(request: wrappers.Request) -> wrappers.Response:
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

    return answered
