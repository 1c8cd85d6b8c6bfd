"""The versions of runs' events that were sent, so that who asks again is sent only what has changed since."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

__all__ = ["EventVersions"]

MOST_VERSIONS = 64
"""Of all runs together; one of 5,000 events takes 40 kB."""


class EventVersions:
    """Fingerprints of the events of each version that was sent.

    A count of events would not do: explanations are worked out again for each version, with hindsight, so an old event
    may read otherwise in a new one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[str, np.ndarray] = {}  # (events,) int64; the one sent last comes last

    def unchanged(self, since: str | None, version: str, rows: Sequence[bytes]) -> int:
        """How many of the first `rows` read as in version `since`; 0 where that is not remembered.

        `rows` are the events of `version`, in JSON, which is remembered from now on.
        """
        now = np.fromiter((hash(row) for row in rows), np.int64, len(rows))
        with self._lock:
            before = self._versions.get(since or "")
            self._versions.pop(version, None)
            self._versions[version] = now
            while len(self._versions) > MOST_VERSIONS:
                del self._versions[next(iter(self._versions))]
        if before is None:
            return 0
        both = min(len(before), len(now))
        differing = np.flatnonzero(before[:both] != now[:both])
        return int(differing[0]) if len(differing) else both
