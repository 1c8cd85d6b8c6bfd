"""A file of records that is read as it grows; what its records mean is its subclasses' business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tbnum.log.files import Place
from tbnum.log.record_file import Frame, Record, RecordTail, decode
from tbnum.log.schema import FORMAT_VERSION

__all__ = ["FollowedFile"]

_NOT_UNDERSTOOD = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What a record raises that is whole by its checksums (or these were not looked at), and yet not what a writer of a
known version writes."""


class FollowedFile:
    """Reads what is appended to `path`. Trouble never raises: it becomes one of `problems`.

    A subclass gives `_understand`, and `_clear`, which begins everything again as the file was.
    """

    def __init__(self, path: Place) -> None:
        self.path = path
        self._tail = RecordTail(path)
        self._clear()

    def _clear(self) -> None:
        self._garbled: list[str] = []
        self._error: str | None = None
        self._newer: str | None = None

    def refresh(self) -> bool:
        """Reads what was appended. True where anything was, or where a problem came or went."""
        before = (self._tail.state, self._error)
        self._error = None
        try:
            self._tail.follow(self._take, self._clear)
        except OSError as error:
            self._error = self._opening_failed(error)
        return before != (self._tail.state, self._error)

    def problems(self) -> list[str]:
        """In words, what of the file could not be read."""
        return [*self._tail.problems(), *self._garbled, *(each for each in (self._error, self._newer) if each)]

    def _understand(self, offset: int, data: bytes, record: Record) -> None:
        """Takes a record, which begins at `offset`; `data` is its frame's. May raise what `_NOT_UNDERSTOOD` lists."""
        raise NotImplementedError

    def _take(self, found: Frame) -> None:
        if self._newer:
            return
        try:
            record = decode(found.data)
            if record is not None:
                self._understand(found.offset, found.data, record)
        except _NOT_UNDERSTOOD as error:
            self._garbled.append(f"the record at {found.offset} in {self.path.name} is not understood: {error}")

    def _is_newer(self, session: Mapping[str, Any]) -> bool:
        """Whether a session record reports a format that this version does not know; then nothing more is read."""
        version = int(session.get("format_version", FORMAT_VERSION))
        if version > FORMAT_VERSION:
            self._newer = (
                f"{self.path.name} has format {version}, and this tbnum reads up to {FORMAT_VERSION}: "
                "install a newer tbnum to read it"
            )
        return self._newer is not None

    def _opening_failed(self, error: OSError) -> str | None:
        """What to say of a file that cannot be opened or read."""
        return f"{self.path.name} cannot be read: {error.strerror or error}"
