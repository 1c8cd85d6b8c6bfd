"""How record files are called: `<unix-ms>.<host>.<pid>[.rank<r>].tbnum`, one for each process and session.

No name contains `tfevents`: an extra event file makes TensorBoard's Python loader leave the user's own for good.
"""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

from tbnum.log.schema import RECORD_SUFFIX, TENSORS_SUFFIX

__all__ = ["RecordName", "host_name", "is_record_file", "parse_name"]


class RecordName(NamedTuple):
    """What a file's name says. Of a renamed file the name alone is left, to order by."""

    unix_ms: int
    rank: int
    name: str
    host: str = ""
    process: int = 0


_NAME = re.compile(r"(\d+)\.([^.]*)\.(\d+)(?:\.rank(\d+))?" + re.escape(RECORD_SUFFIX))


def parse_name(name: str) -> RecordName:
    match = _NAME.fullmatch(name)
    if match is None:
        return RecordName(0, 0, name)
    return RecordName(int(match[1]), int(match[4] or 0), name, match[2], int(match[3]))


def is_record_file(name: str) -> bool:
    return name.endswith(RECORD_SUFFIX) and not name.endswith(TENSORS_SUFFIX)


def host_name() -> str:
    """This machine's name as a part of a file name: no dots, and never `tfevents`, which TensorBoard looks for."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:64]
    return re.sub("tfevents", "tf-events", name, flags=re.IGNORECASE) or "host"
