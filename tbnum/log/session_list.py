"""The names of the sessions of a run's lowest rank, in one small file: what other ranks need not list the folder for.

A thousand ranks that each list a folder of two thousand files read two million entries before the first step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tbnum.log.names import is_record_file

__all__ = ["SESSION_LIST", "note_session", "noted_sessions"]

SESSION_LIST = "tbnum-sessions.txt"


def note_session(folder: str | os.PathLike[str], name: str, earlier: Sequence[str] = ()) -> None:
    """Appends the name of a record file, by one write. `earlier`: those before it, where there is no list so far."""
    path = Path(folder) / SESSION_LIST
    names = [name] if path.exists() else [*earlier, name]
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(f"{each}\n" for each in names))


def noted_sessions(folder: str | os.PathLike[str]) -> list[str] | None:
    """The names, oldest first; None where there is no list. One file is opened, whatever the folder holds."""
    try:
        text = (Path(folder) / SESSION_LIST).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return [name for name in text.splitlines() if is_record_file(name) and os.sep not in name]
