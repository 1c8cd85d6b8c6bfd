"""Text to train on, as bytes: by default the source files of the Python standard library, which every machine has.

Files are held out whole, so no sentence of the validation text was trained on. Files with the same content count once.
"""

from __future__ import annotations

import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

MAX_BYTES = 32 << 20  # more text than the demo can see; bounds time and memory for a big folder
VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Text:
    train: torch.Tensor  # (bytes,) uint8
    validation: torch.Tensor  # (bytes,) uint8
    files: int
    source: Path

    def byte_entropy(self) -> float:
        """Nats a byte that the best guess by byte frequency alone needs on the validation text."""
        counts = torch.bincount(self.validation, minlength=256).double()
        p = counts[counts > 0] / counts.sum()
        return -(p * p.log()).sum().item()


def load_text(source: Path | None = None, max_bytes: int = MAX_BYTES) -> Text:
    """The text of `source`, a file or a folder of text files; of the running Python's standard library without one.

    Raises FileNotFoundError where `source` is missing and ValueError where it holds no text.
    """
    root = source or Path(sysconfig.get_paths()["stdlib"])
    texts: dict[str, bytes] = {}  # by path relative to root
    size = 0
    for name, text in _text_files(root, "*" if source else "*.py"):
        texts[name] = text
        size += len(text)
        if size >= max_bytes:
            break
    if size == 0:
        raise ValueError(f"no text in {root}: --data takes a text file, or a folder that holds some")

    if len(texts) == 1:
        (text,) = texts.values()
        cut = len(text) - int(len(text) * VALIDATION_SHARE)
        train, validation = [text[:cut]], [text[cut:]]
    else:
        # An order by checksum of the name mixes the folders and is the same on every run.
        names = sorted(texts, key=lambda name: (zlib.crc32(name.encode()), name))
        train, validation, held_out = [], [], 0
        for name in names:
            if not validation or (held_out < size * VALIDATION_SHARE and name != names[-1]):
                validation.append(texts[name])
                held_out += len(texts[name])
            else:
                train.append(texts[name])
    return Text(_as_tensor(train), _as_tensor(validation), len(texts), root)


def random_batch(
    data: torch.Tensor, batch_size: int, block_size: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """`batch_size` windows of the text from random places, and the bytes that follow each: both (B, T) int64."""
    starts = torch.randint(len(data) - block_size, (batch_size,), generator=generator)  # (B,)
    return _windows(data, starts, block_size)


def even_batches(
    data: torch.Tensor, batches: int, batch_size: int, block_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same `batches` x `batch_size` windows, at even distances in the text, each time."""
    starts = torch.linspace(0, len(data) - block_size - 1, batches * batch_size, dtype=torch.float64).long()
    for some in starts.view(batches, batch_size):
        yield _windows(data, some, block_size)


def _windows(data: torch.Tensor, starts: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    windows = data[starts[:, None] + torch.arange(block_size + 1)].long()  # (B, T + 1)
    return windows[:, :-1], windows[:, 1:]


def _text_files(root: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    if root.is_file():
        yield root.name, root.read_bytes()
        return
    if not root.is_dir():
        raise FileNotFoundError(f"--data {root}: no such file or folder")
    seen: set[bytes] = set()
    for path in sorted(root.rglob(pattern)):
        below = path.relative_to(root)
        if "site-packages" in below.parts or any(part.startswith(".") for part in below.parts) or not path.is_file():
            continue
        try:
            content = path.read_bytes()
            content.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue  # unreadable, or no text
        if content and b"\0" not in content and content not in seen:
            seen.add(content)
            yield below.as_posix(), content


def _as_tensor(texts: list[bytes]) -> torch.Tensor:
    return torch.frombuffer(bytearray(b"\n".join(texts)), dtype=torch.uint8)
