"""How `wrap` is to record: its options, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from tbnum.arguments import (
    NEVER,
    check_flush_seconds,
    check_intervals,
    check_max_tensor_bytes,
    checked_config,
    checked_ranks,
)
from tbnum.observe.loader import checked_loader

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["Options", "checked_options"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """As the arguments of `wrap`, which say what they mean. An interval is NEVER where it was None."""

    tensor_interval: int
    histogram_interval: int
    scalar_interval: int | None
    checksums: bool
    activations: bool | Sequence[str]
    tensorboard_tensors: bool
    max_tensor_bytes: int
    flush_seconds: float
    ranks: int | None  # how many record, the lowest ones; None: all
    loader: DataLoader[Any] | None  # whose indices are followed
    keep_all_ids: bool
    config: Mapping[str, Any]

    def on(self, rank: int | None) -> Options:
        """Those of a rank: one that does not record measures nothing of single tensors."""
        if self.records_on(rank):
            return self
        off = {"tensor_interval": NEVER, "histogram_interval": NEVER, "scalar_interval": None}
        return replace(self, **off, checksums=False, activations=False, loader=None)  # type: ignore[arg-type]

    def where_not(self, other: Options) -> list[str]:
        """Names of the arguments that differ."""
        names = {"loader": "data", "keep_all_ids": "data_ids"}
        found = []
        for name in (each.name for each in fields(self)):
            # Values in `config` may be arrays, of which == is one too.
            if repr(getattr(self, name)) != repr(getattr(other, name)):
                found.append(names.get(name, name))
        return found

    def records_on(self, rank: int | None) -> bool:
        return self.ranks is None or (rank or 0) < self.ranks


def checked_options(
    *,
    has_model: bool,
    tensor_interval: int | None,
    histogram_interval: int | None,
    scalar_interval: int | None,
    checksums: bool,
    activations: bool | Sequence[str],
    tensorboard_tensors: bool,
    max_tensor_bytes: int,
    flush_seconds: float,
    ranks: str | int,
    data: Any,
    data_ids: str,
    config: Mapping[str, Any] | None,
) -> Options:
    """Raises TypeError and ValueError, with the value and the way out."""
    check_intervals(
        tensor_interval=tensor_interval, histogram_interval=histogram_interval, scalar_interval=scalar_interval
    )
    check_max_tensor_bytes(max_tensor_bytes)
    check_flush_seconds(flush_seconds)
    recording = checked_ranks(ranks)
    for name, switch in (("checksums", checksums), ("tensorboard_tensors", tensorboard_tensors)):
        if not isinstance(switch, bool):
            raise TypeError(f"{name} is {switch!r}; it has to be True or False.")
    loader = None if data is None else checked_loader(data)
    if data_ids not in ("events", "all"):
        raise ValueError(f'data_ids={data_ids!r}; it has to be "events" or "all".')
    settings = checked_config(config)
    if activations and tensor_interval is None:
        raise ValueError(
            f"activations={activations!r} are measured every tensor_interval steps, and tensor_interval is None."
        )
    if activations and not has_model:
        raise ValueError(f"activations={activations!r} needs model=, whose modules are to be watched.")
    return Options(
        tensor_interval=NEVER if tensor_interval is None else tensor_interval,
        histogram_interval=NEVER if histogram_interval is None else histogram_interval,
        scalar_interval=scalar_interval,
        checksums=checksums,
        activations=activations,
        tensorboard_tensors=tensorboard_tensors,
        max_tensor_bytes=max_tensor_bytes,
        flush_seconds=float(flush_seconds),
        ranks=recording,
        loader=loader,
        keep_all_ids=data_ids == "all",
        config=settings,
    )
