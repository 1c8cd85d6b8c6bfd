"""Anything as JSON that fits a record: what a session says about itself, and the facts of an event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tbnum.log.schema import MAX_RECORD_BYTES, Event

__all__ = ["event_text", "plain", "session_text"]

_DEEPEST = 16


def session_text(meta: Mapping[str, Any]) -> str:
    """`meta` as JSON that fits a record; entries that do not fit are left out, and named."""
    entries = plain(meta)
    text = json.dumps(entries)
    while len(text) > MAX_RECORD_BYTES - 4096:
        longest = max(entries, key=lambda key: len(json.dumps(entries[key])))
        del entries[longest]
        entries.setdefault("left_out", []).append(longest)
        text = json.dumps(entries)
    return text


def event_text(event: Event, longest: int | None) -> str:
    """The facts of `event` as JSON; with `longest` shortened, which they say; with 0 their data is left out."""
    facts = plain(event.facts(), longest)
    if longest is not None:
        facts["data"] = {**facts.get("data", {}), "shortened": True} if longest else {"shortened": True}
    return json.dumps(facts)


def plain(value: Any, longest: int | None = None, depth: int = 0) -> Any:
    """`value` in JSON's types. With `longest`, texts have at most so many characters, lists a tenth of that."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if longest is None or len(value) <= longest else value[:longest] + "..."
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            items = list(value.items())
            if longest is not None and depth > 0:
                items = items[: max(longest, 8)]
            return {plain(str(key), longest): plain(entry, longest, depth + 1) for key, entry in items}
        if isinstance(value, (list, tuple, set, frozenset)):
            entries = list(value)
            if longest is not None:
                entries = entries[: longest // 10 + 1]
            return [plain(entry, longest, depth + 1) for entry in entries]
        if hasattr(value, "tolist"):  # numpy's arrays and numbers, and tensors
            return plain(value.tolist(), longest, depth + 1)
    return plain(str(value), longest, depth)
