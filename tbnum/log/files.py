"""Where a log lies: in a local folder, or behind a URL that fsspec takes. Reading only; writing is local.

A local place is a `Path` and costs what it costs without this module. A remote one is a `RemotePath`, which has the
part of a path's face that reading a log needs. Everything that goes wrong out there is an OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, TypeAlias

__all__ = [
    "Place",
    "RawFile",
    "RemotePath",
    "is_regular",
    "is_url",
    "list_names",
    "open_raw",
    "open_regular",
    "place",
    "size_of",
]

_URL = re.compile(r"[a-zA-Z][0-9a-zA-Z.+-]*://")


def is_url(text: str | os.PathLike[str]) -> bool:
    return isinstance(text, str) and _URL.match(text) is not None


class RawFile(Protocol):
    """A file that is open for reading. Closed by leaving its `with`."""

    def seek(self, at: int, /) -> int: ...
    def read(self, length: int, /) -> bytes | None: ...


class RemotePath:
    """A file or folder behind a URL. `str()` of it is the URL."""

    def __init__(self, url: str) -> None:
        # In fsspec's zip://runs::s3://bucket/runs.zip the path is in the first part, the archive in what follows.
        place, chained, archive = url.partition("::")
        self._place = place if place.endswith("://") else place.rstrip("/")
        self._archive = chained + archive
        self.url = self._place + self._archive

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemotePath({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.url == other.url

    def __lt__(self, other: RemotePath) -> bool:
        return self.url < other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __truediv__(self, name: str) -> RemotePath:
        between = "" if self._place.endswith("/") else "/"
        return RemotePath(f"{self._place}{between}{name}{self._archive}")

    @property
    def name(self) -> str:
        return self._place.rpartition("/")[2]

    def with_name(self, name: str) -> RemotePath:
        return RemotePath(f"{self._place.rpartition('/')[0]}/{name}{self._archive}")

    def filesystem(self) -> tuple[Any, str]:
        """fsspec's file system, and what this place is called in it. OSError that says what to install."""
        try:
            import fsspec
        except ImportError:
            raise OSError(f"to read {self.url!r} install fsspec: pip install 'tbnum[remote]'") from None
        try:
            filesystem, path = fsspec.core.url_to_fs(self.url)
        except ImportError as error:  # the file system's own package; fsspec says which
            raise OSError(f"cannot read {self.url!r}: {error}") from None
        except ValueError as error:
            raise OSError(f"cannot read {self.url!r}: {error}; fsspec has no file system for such URLs") from None
        except OSError:
            raise
        except Exception as error:  # of the file system's own, as of arguments that the URL lacks
            raise OSError(f"cannot read {self.url!r} ({type(error).__name__}: {error})") from error
        return filesystem, path

    def files_below(self) -> dict[str, list[tuple[str, int]]]:
        """Names and sizes of all files below, by their folder relative to here ('' for here). One listing."""
        filesystem, path = self.filesystem()
        with _as_os_errors(self.url):
            filesystem.invalidate_cache()
            found = filesystem.find(path, detail=True)
            if not filesystem.isdir(path) and not found.keys() - {path}:  # of a file `find` gives that file
                missing = not filesystem.exists(path)
                why = "there is no folder" if missing else "this is a file, and no folder:"
                raise (FileNotFoundError if missing else NotADirectoryError)(f"{why} {self.url!r} to read runs from")
        folders: dict[str, list[tuple[str, int]]] = {}
        top = path.rstrip("/")
        for each, about in found.items():
            below = each[len(top) :].lstrip("/") if each.startswith(top) else each
            folder, _, name = below.rpartition("/")
            folders.setdefault(folder, []).append((name, int(about.get("size") or 0)))
        return folders

    def names(self) -> list[str]:
        """Names of the files in this folder."""
        filesystem, path = self.filesystem()
        with _as_os_errors(self.url):
            filesystem.invalidate_cache(path)
            return [str(each["name"]).rstrip("/").rpartition("/")[2] for each in filesystem.ls(path, detail=True)]


Place: TypeAlias = "Path | RemotePath"


class _RemoteFile:
    """Reads ranges of a remote file. `size` is asked once, when it is opened."""

    def __init__(self, path: RemotePath) -> None:
        self._filesystem, self._path = path.filesystem()
        self._url = path.url
        self._at = 0
        with _as_os_errors(path.url):
            self._filesystem.invalidate_cache(self._path.rpartition("/")[0])
            self.size = int(self._filesystem.info(self._path)["size"] or 0)

    def seek(self, at: int, /) -> int:
        self._at = at
        return at

    def read(self, length: int, /) -> bytes:
        end = min(self.size, self._at + length)
        if end <= self._at:
            return b""
        with _as_os_errors(self._url):
            data: bytes = self._filesystem.cat_file(self._path, start=self._at, end=end)
        if len(data) > end - self._at:  # a web server that knows no ranges sends the whole file
            data = data[self._at : end] if len(data) >= self.size else data[: end - self._at]
        self._at += len(data)
        return data


@contextlib.contextmanager
def open_raw(path: Place) -> Iterator[RawFile]:
    """Opens a regular file for reading at any offset, unbuffered. OSError where it is none, or cannot be read."""
    if isinstance(path, RemotePath):
        yield _RemoteFile(path)
        return
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        yield file


def open_regular(path: str | os.PathLike[str], flags: int) -> int:
    """A descriptor of a regular file; OSError where it is none. Never waits, as opening a pipe of that name would."""
    descriptor = os.open(path, flags | _NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


_NONBLOCK = getattr(os, "O_NONBLOCK", 0)


def size_of(file: RawFile) -> int:
    """Bytes in an open file: of a local one now, of a remote one as it was opened."""
    return file.size if isinstance(file, _RemoteFile) else os.fstat(_descriptor(file)).st_size


def _descriptor(file: RawFile) -> int:
    assert isinstance(file, FileIO)
    return file.fileno()


def list_names(folder: Place) -> list[str]:
    """Names of the regular files in a folder. OSError where it cannot be searched."""
    if isinstance(folder, RemotePath):
        return folder.names()
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if is_regular(entry)]


def is_regular(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link to one: no folder, pipe, socket or device. From the listing, without a stat."""
    try:
        return entry.is_file()
    except OSError:  # a link that leads in a circle
        return False


def place(where: str | os.PathLike[str] | RemotePath) -> Place:
    """A folder or file by its path or URL."""
    if isinstance(where, RemotePath):
        return where
    return RemotePath(str(where)) if is_url(where) else Path(where)


@contextlib.contextmanager
def _as_os_errors(url: str) -> Iterator[None]:
    """File systems raise what their libraries raise: here it is an OSError that names the URL."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"cannot read {url!r} ({type(error).__name__}: {error})") from error
