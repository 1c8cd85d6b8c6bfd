"""The format of the log, in one place: columns, event kinds, record tags, versions.

The writer, the reader and the TensorBoard plugin import this module and agree through it. It loads
no torch and no TensorBoard.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tbnum.markup import event_card, shown

__all__ = [
    "BATCH_HASH",
    "EVENT_KINDS",
    "FORMAT_VERSION",
    "HISTOGRAM_SOURCES",
    "OPTIMIZER_COLUMNS",
    "PLUGIN_NAME",
    "RECORD_SUFFIX",
    "SEVERITIES",
    "SHARD_COLUMNS",
    "SHARED_COLUMNS",
    "STEP_HASH",
    "TABLE_REASONS",
    "TENSORS_SUFFIX",
    "TENSOR_COLUMNS",
    "Column",
    "Event",
    "RowLayout",
    "Trailer",
    "column",
    "measured",
    "step_columns",
]

FORMAT_VERSION = 2
"""Raised when an older reader could misread a new file. A reader refuses what is newer than itself.

2: a run that goes back to an earlier step begins a new file; in 1 it went on in its file, as the session's next `part`.
"""

PLUGIN_NAME = "tbnum"
RECORD_SUFFIX = ".tbnum"
TENSORS_SUFFIX = ".tensors.tbnum"

# Tags of the one summary value that each record (a TensorFlow `Event` proto) carries.
TAG_SESSION = "tbnum/session"  # JSON: what a session is and where it starts (`Run.meta`)
TAG_SCHEMA = "tbnum/schema"  # JSON: names and stored types of the columns of the chunks that follow
TAG_STEPS = "tbnum/steps"  # a chunk of steps: step after step, each a packed row of the columns, little-endian
TAG_EVENT = "tbnum/event"  # JSON: one event
TAG_BATCHES = "tbnum/batches"  # which samples some steps were made of; `tbnum.log.batches` has the payload
TAG_DROPPED = "tbnum/dropped"  # JSON: how many records could not be written, and why

# Tags in the second file of a session, `*.tensors.tbnum`. `tbnum.log.tensors` has the payloads.
TAG_NAMES = "tbnum/names"  # JSON: the names of a table's tensors; tables refer to it by its checksum
TAG_TABLE_COLUMNS = "tbnum/table_columns"  # JSON: the columns of a table, and its optimizer; referred to likewise
TAG_TENSORS = "tbnum/tensors"  # a value a tensor for each of some columns, at one step
TAG_HISTOGRAMS = "tbnum/histograms"  # an exponent histogram a tensor, at one step

MAX_RECORD_BYTES = 16 << 20
MAX_EVENT_BYTES = 4096
REPEAT_EVERY_BYTES = 1 << 20  # session and schema are written again, so that one lost record costs nothing else


@dataclass(frozen=True)
class Column:
    """One value a step.

    `stored` is the numpy type on disk. A reader presents float32 as float64: counts and the growth
    tracker are exact in float32 (to 2**24) and cost half the bytes.
    """

    name: str
    meaning: str
    stored: str = "<f8"

    @property
    def presented(self) -> str:
        return "<f8" if self.stored == "<f4" else self.stored

    @property
    def unknown(self) -> float | bool | int:
        """What a reader has where the value is not known."""
        return {"f": math.nan, "b": False}.get(np.dtype(self.stored).kind, 0)


SHARED_COLUMNS: tuple[Column, ...] = (
    Column("step", "number of the step, from 0; a skipped step counts", "<i8"),
    Column("wall_time", "seconds since the epoch when the step closed"),
    Column("loss", "sum of the losses whose backward reached the gradients"),
    Column("micro_batches", "backward calls in the step; unknown where a loss of them is", "<f4"),
    Column("loss_scale", "what the gradients were divided by at unscale"),
    Column("growth_tracker", "unskipped steps since the last scale change, as the scaler had it", "<f4"),
    Column("skipped", "whether an attempt ended without an update: found_inf, or given up by the loop", "|b1"),
)
"""Columns that a step has once, however many optimizers there are."""

BATCH_HASH = Column("batch_hash", "hash of the ids of the step's samples, in their order; 0: unknown", "<u8")
"""Of a step of a loop whose sample ids are followed or logged."""

STEP_HASH = Column("step_hash", "hash of the bits of the loss and of each tensor's gradient norm; 0: unknown", "<u8")
"""The one column without NaN. Equal hashes mean no difference in these numbers, not that all bits are the same."""

OPTIMIZER_COLUMNS: tuple[Column, ...] = (
    Column("grad_norm", "global 2-norm of the gradients, unscaled, before clipping"),
    Column("grad_norm_clipped", "global 2-norm of what the optimizer got"),
    Column("clip_coef", "what clipping multiplied the gradients by"),
    Column("max_norm", "the clipping threshold, when seen"),
    Column("skipped", "whether the attempt ended without an update: found_inf, or given up by the loop", "|b1"),
    Column("nonfinite_tensors", "gradients that hold NaN or inf", "<f4"),
    Column("lr", "learning rate of parameter group 0; further groups are lr/1, lr/2, ..."),
    Column("param_norm", "global 2-norm of the parameters after the step"),
    Column("update_norm", "global 2-norm of the change of the parameters in the step"),
)
"""Columns of each optimizer. One optimizer has them plain, several as `<optimizer>/<column>`."""

SHARD_COLUMNS: tuple[Column, ...] = (
    Column("grad_norm_shard", "this rank's part of grad_norm"),
    Column("grad_norm_clipped_shard", "this rank's part of grad_norm_clipped, where no other column gives it"),
    Column("param_norm_shard", "this rank's part of param_norm"),
    Column("update_norm_shard", "this rank's part of update_norm"),
)
"""Besides, of an optimizer whose tensors are sharded. The columns without `_shard` are unknown in each rank's
record: squared, the parts of all ranks add up to them. `tbnum.log.ranks` puts them together."""

LOGGED = "_logged"
"""Behind a column's name: the column (bool) that says where a scalar log has a value, a NaN among them."""

# NaN is "unknown". Where a NaN may also be the measured value, another column says that it was measured:
# a loss where `micro_batches >= 1`, a norm where `nonfinite_tensors` is known (see `measured`).

TENSOR_COLUMNS: dict[str, str] = {
    "grad_norm": "2-norm of the tensor's gradient, unscaled, before clipping",
    "absmax": "largest finite magnitude in the gradient, unscaled",
    "param_norm": "2-norm of the parameter after the step",
    "update_norm": "2-norm of the parameter's change in the step",
    "nan": "elements of the gradient that are NaN",
    "inf": "elements of the gradient that are infinite",
    "zero": "elements of the gradient that are zero",
    "underflow": "underflow/<format>: share of the gradient's elements that the format would flush to zero",
    "overflow": "overflow/<format>: share of the gradient's elements that are finite, but not so in the format",
    "loss_scale": "what the gradient was multiplied by when it was held against the formats",
    "checksum": "checksum/<what>: of the bits of a gradient, a parameter or a moment; whole, and 0 where unknown",
    "activation_absmax": "largest magnitude in a module's output, or in the gradient with respect to it",
    "activation_norm": "2-norm of a module's output, or of the gradient with respect to it",
    "float8_amax": "largest magnitude of what torchao casts to float8: a module's input, weight or output gradient",
    "float8_scale": "what it is multiplied by before the cast",
    "float8_saturated": "share of its elements that are then beyond the format's maximum",
    "float8_flushed": "share of its elements that were not zero and become zero",
    "activation_zero_share": "share of zeros in a module's output, or in the gradient with respect to it",
}
"""Columns of the tables of tensors, one value a tensor. Others may be there too. Unknown is NaN."""

TABLE_REASONS = ("interval", "flight", "failure")
"""Why a table was written: each `tensor_interval` steps, as one of the steps before a warning or error, or as the
full pass over the gradients of a step that failed. Files hold the position: append only."""

HISTOGRAM_SOURCES = ("gradient", "parameter", "update", "activation", "activation_gradient")
"""What a histogram is of. Files hold the position: append only."""

WHOLE_MODEL = "*"
"""In place of a tensor's name: all of them together."""

_BY_NAME = {known.name: known for known in (*SHARD_COLUMNS, *OPTIMIZER_COLUMNS, *SHARED_COLUMNS, STEP_HASH, BATCH_HASH)}


def column(name: str) -> Column:
    """The `Column` behind a full name: `lr/1`, `generator/grad_norm`, `generator/lr/1`.

    A name that no version of tbnum gave (a newer one's, say) is a float64 column without a meaning.
    """
    if name.endswith(LOGGED):
        return Column(name, "whether the scalar log has a value here, a NaN among them", "|b1")
    parts = name.split("/")
    for start in range(len(parts)):
        known = _BY_NAME.get(parts[start])
        rest = parts[start + 1 :]
        if known is not None and (not rest or (known.name == "lr" and rest[0].isdigit())):
            return Column(name, known.meaning, known.stored)
    return Column(name, "")


def step_columns(
    groups: Mapping[str, int],
    sharded: Collection[str] = (),
    *,
    terms: Sequence[str] = (),
    own_losses: bool = False,
    hashed: bool = False,
    batches: bool = False,
) -> tuple[str, ...]:
    """Names of the columns of a step, in their order on disk.

    `groups` gives for each optimizer, by name, how many parameter groups it has. With one optimizer its
    columns stand plain; with several each is prefixed by the optimizer's name, and the shared
    `skipped` is true when any optimizer was skipped. Those in `sharded` have `SHARD_COLUMNS` too.

    Behind them: `loss/<term>` of each of the named `terms` of the loss, with `own_losses` `<optimizer>/loss` of each of
    several optimizers, with `batches` the `batch_hash`, and with `hashed` the `step_hash`.
    """
    names = [column.name for column in SHARED_COLUMNS]
    if len(groups) == 1:
        ((optimizer, count),) = groups.items()
        names.remove("skipped")
        names += _optimizer_columns("", count, optimizer in sharded)
    else:
        for optimizer, count in groups.items():
            names += _optimizer_columns(f"{optimizer}/", count, optimizer in sharded)
    names += [f"loss/{term}" for term in terms]
    names += [f"{optimizer}/loss" for optimizer in groups if own_losses and len(groups) > 1]
    names += [BATCH_HASH.name] * batches + [STEP_HASH.name] * hashed
    return tuple(names)


def _optimizer_columns(prefix: str, groups: int, sharded: bool) -> list[str]:
    names = [prefix + column.name for column in OPTIMIZER_COLUMNS + (SHARD_COLUMNS if sharded else ())]
    at = names.index(prefix + "lr") + 1
    names[at:at] = [f"{prefix}lr/{group}" for group in range(1, groups)]
    return names


@dataclass(frozen=True)
class RowLayout:
    """How the rows of a chunk lie on disk: `names` and numpy types `stored`, packed without gaps, little-endian."""

    names: tuple[str, ...]
    stored: tuple[str, ...]

    @staticmethod
    def of(names: Sequence[str]) -> RowLayout:
        return RowLayout(tuple(names), tuple(column(name).stored for name in names))

    def dtype(self) -> np.dtype[Any]:
        """Of a row, for reading. ValueError where a type is none of the stored ones, or a name comes twice."""
        unknown = set(self.stored) - set(_STRUCT_CODES)
        if unknown or len(self.names) != len(self.stored):
            raise ValueError(f"columns of unknown types: {sorted(unknown)}")
        return np.dtype(list(zip(self.names, self.stored, strict=True)))

    def struct_format(self) -> str:
        """Of a row, for writing: the same bytes as `dtype`, by the module `struct`."""
        return "<" + "".join(_STRUCT_CODES[kind] for kind in self.stored)

    def schema_id(self) -> int:
        """What a chunk calls its layout by: from the names and types alone, so equal layouts share it."""
        return zlib.crc32("\n".join((*self.names, "", *self.stored)).encode())


_STRUCT_CODES = {"<f8": "d", "<f4": "f", "<i8": "q", "<u8": "Q", "|b1": "?"}


class Trailer(NamedTuple):
    """Running totals of one file, at the very end of each of its records: 96 bytes.

    So the last bytes of a file hold what a table of runs shows of it. They carry a check of their own, for they are
    read without their record. `schema_id` and `rows` speak of the record itself, where it is a chunk.
    """

    schema_id: int = 0
    rows: int = 0
    flags: int = 0
    start: int = -1  # the step from which this session supersedes earlier ones; -1: nothing happened in it yet
    first_step: int = -1
    last_step: int = -1
    steps: int = 0
    skipped_steps: int = 0
    last_loss_scale: float = math.nan
    best_loss: float = math.nan  # the lowest finite one
    first_wall_time: float = math.nan
    last_wall_time: float = math.nan

    def pack(self) -> bytes:
        body = _TRAILER.pack(TRAILER_MAGIC, *self)
        return body + _CHECK.pack(zlib.crc32(body))

    @staticmethod
    def unpack(data: bytes) -> Trailer:
        """ValueError where `data` is no whole trailer."""
        if len(data) < TRAILER_BYTES:
            raise ValueError(f"a trailer has {TRAILER_BYTES} bytes, not {len(data)}")
        body = data[: _TRAILER.size]
        magic, *fields = _TRAILER.unpack(body)
        if magic != TRAILER_MAGIC or _CHECK.unpack_from(data, _TRAILER.size)[0] != zlib.crc32(body):
            raise ValueError("not a trailer, or a damaged one")
        return Trailer(*fields)


MOST_RANKS = 1 << 20

_OF_SESSION: Mapping[str, tuple[type, ...]] = {
    "optimizers": (Mapping,),
    "parameters": (Mapping, type(None)),  # None: in format 1, of more than a thousand tensors
    "layouts": (Mapping,),
    "scaler": (Mapping, type(None)),
    "numbering": (Mapping,),
    "start_time": (int, float),
    "world_size": (int,),
}


def check_session(meta: Mapping[str, Any]) -> None:
    """ValueError where a session's meta has something else where readers rely on what it is."""
    for key, types in _OF_SESSION.items():
        if key in meta and not isinstance(meta[key], types):
            raise ValueError(f"its {key} is {str(meta[key])[:40]!r}")
    if not 1 <= meta.get("world_size", 1) <= MOST_RANKS:
        raise ValueError(f"its world_size is {meta['world_size']}")
    if not math.isfinite(meta.get("start_time", 0.0)):
        raise ValueError(f"its start_time is {meta['start_time']}")
    if not all(isinstance(entry, Mapping) for key in ("optimizers", "layouts") for entry in meta.get(key, {}).values()):
        raise ValueError("its optimizers or layouts are no mappings")


def trailer_schema_id(data: bytes) -> int:
    """The `schema_id` of a packed trailer whose record is known to be whole; a quarter of the time of `unpack`."""
    magic, schema_id = _TRAILER_HEAD.unpack_from(data)
    if magic != TRAILER_MAGIC:
        raise ValueError("not a trailer")
    return int(schema_id)


_TRAILER_HEAD = struct.Struct("<8sI")
_TRAILER = struct.Struct("<8sIII5q4d")
_CHECK = struct.Struct("<I")
TRAILER_MAGIC = b"tbnum\x00\r\n"
TRAILER_BYTES = _TRAILER.size + _CHECK.size

ENDED_CLOSED = 1  # the writer was closed
ENDED_CRASH = 2  # a crash event was written
REWOUND = 4  # steps went back within the file, so its totals count superseded steps too


SEVERITIES = ("info", "warning", "error")

EVENT_KINDS: dict[str, str] = {
    "skip": "an attempt to update ended without one: its scaler, or the loop, held it back",
    "scale_growth": "the scaler raised the loss scale",
    "scale_backoff": "the scaler lowered the loss scale after an overflow",
    "scale_set": "the loss scale was set by the user",
    "scale_collapse": "the loss scale fell over many skips in a row",
    "nonfinite_step": "the optimizer stepped although a gradient was not finite",
    "norm_overflow": "every gradient element is finite, their norm is not",
    "nonfinite_norm": "a scalar log has a norm that is not finite, and does not say what became of the step",
    "no_gradients": "the optimizer stepped without any gradient",
    "untrained_parameters": "trainable parameters of the model are in no optimizer",
    "clip_before_unscale": "gradients were clipped while they still carried the loss scale",
    "clip_after_step": "gradients were clipped once the optimizer had used them",
    "clip_value_invalid": "gradients were clipped by a value that is not above 0",
    "backward_under_autocast": "backward ran inside an autocast region",
    "update_missing": "scaler.step() was called again without scaler.update()",
    "step_bypassed_scaler": "optimizer.step() was called past an enabled scaler",
    "unscale_in_accumulation": "backward added scaled gradients to gradients that were unscaled already",
    "loss_not_scaled": "backward ran on a loss that had not been given to scaler.scale()",
    "float16_gradients": "the parameters themselves are float16, whose gradients the scaler refuses",
    "loss_low_precision": "the loss was computed in a 16-bit type",
    "bfloat16_with_scaler": "the forward ran in bfloat16, which needs no loss scale",
    "gradient_underflow": "much of the gradient flushes to zero at the current scale",
    "scaler_found": "a GradScaler that was not given to tbnum takes part in the loop",
    "own_scale": "gradients were divided by a power of two that tbnum was not given",
    "nonfinite_discarded": "gradients that were not finite were thrown away, as the loop often does with gradients",
    "never_stepped": "gradients of the optimizer are written and thrown away, and it never steps",
    "resume": "the run was continued from a checkpoint",
    "scaler_state_lost": "the scaler started afresh although the log says otherwise",
    "optimizer_state_lost": "the optimizer's own state does not fit the steps that the log has",
    "model_state_lost": "the parameters are those of the beginning although the run was continued",
    "schedule_state_lost": "the learning rate is that of the start although the run was continued",
    "repeat_of_diverged_run": "a run with the same settings diverged before",
    "ranks_disagree": "ranks skipped a step that others took, or have other loss scales",
    "rank_lost": "the record of a rank stops while others go on",
    "nonfinite_update": "an update whose gradients were finite made the parameters non-finite",
    "nonfinite_buffers": "buffers of the model, such as BatchNorm's running statistics, hold NaN or inf",
    "gradients_not_zeroed": "an attempt began with the gradients that the last update had used",
    "gradients_discarded": "gradients were thrown away before each of some steps",
    "step_without_backward": "the optimizer stepped again on the gradients of its last step",
    "moments_reset": "the optimizer's state was emptied, or set to zero, between two steps",
    "float16_without_scaler": "the forward pass ran in float16, and no loss scale takes part",
    "losses_not_divided": "each of the backwards of a step begins with a mean that nothing divides",
    "loss_spike": "the loss left what was usual",
    "grad_norm_spike": "the gradient norm left what was usual",
    "left_out": "a part of a damaged or partial record could not be worked out when it was read",
    "annotation": "a note of the user's",
    "crash": "the training loop ended with an exception",
}
"""Every kind of event, and what it states."""

UNBOUND_KINDS = frozenset({"annotation", "crash", "repeat_of_diverged_run", "resume", "scaler_state_lost"})
"""Kinds that do not show that their step was taken: they may come before a session's first step."""


@dataclass(frozen=True)
class Event:
    """Something that happened at a step.

    On disk stand the facts: `step`, `wall_time`, `kind`, `optimizer` and `data`. The opinions
    (`severity`, `cause`, `message`, `remedy`) are computed by `tbnum.explain` each time a log is read,
    so that a better rule improves old logs.

    Attributes:
        step: the step it happened at, or before which it was noticed.
        wall_time: seconds since the epoch.
        kind: what happened, one of `EVENT_KINDS`.
        severity: "info", "warning" or "error".
        optimizer: its name where there are several, else None.
        cause: of a skip, a collapse or a non-finite step; else None.
        message: what happened, in a sentence.
        remedy: what to do about it, in a sentence.
        data: evidence: numbers (NaN and inf among them), texts, booleans, None, and lists and mappings of these.
    """

    step: int
    wall_time: float
    kind: str
    severity: str = "info"
    optimizer: str | None = None
    cause: str | None = None
    message: str = ""
    remedy: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return shown(event_card(self))

    def facts(self) -> dict[str, Any]:
        """What goes to disk."""
        facts: dict[str, Any] = {"step": self.step, "wall_time": self.wall_time, "kind": self.kind}
        if self.optimizer is not None:
            facts["optimizer"] = self.optimizer
        if self.data:
            facts["data"] = dict(self.data)
        return facts

    @staticmethod
    def from_facts(facts: Mapping[str, Any]) -> Event:
        """The event of `facts`, not yet explained. ValueError where its step is none."""
        step = int(facts["step"])
        if not 0 <= step < 1 << 63:
            raise ValueError(f"its step is {step}")
        return Event(
            step=step,
            wall_time=float(facts["wall_time"]),
            kind=str(facts["kind"]),
            optimizer=facts.get("optimizer"),
            data=dict(facts.get("data") or {}),
        )


def measured(name: str, columns: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """(S,) bool: where a NaN in column `name` was measured. None: nowhere, each NaN of it is an unknown value.

    A loss was measured where `micro_batches >= 1`, a gradient norm where the `nonfinite_tensors` of the same optimizer
    is above 0 (finite gradients have a norm: where it is NaN it is unknown), what the optimizer got where that is known
    and no skip, and a column of a scalar log where it was logged.
    """
    if name + LOGGED in columns:
        return columns[name + LOGGED].astype(bool)
    prefix, slash, base = name.rpartition("/")
    if name == "loss" and "micro_batches" in columns:
        with np.errstate(invalid="ignore"):
            there: np.ndarray = columns["micro_batches"] >= 1
            return there
    witness = prefix + slash + "nonfinite_tensors"
    if base == "grad_norm" and witness in columns:
        with np.errstate(invalid="ignore"):
            some: np.ndarray = columns[witness] > 0
            return some
    if base == "grad_norm_clipped" and witness in columns:  # clipping alone may have made it NaN
        known = ~np.isnan(columns[witness])
        skipped = columns.get(prefix + slash + "skipped")
        return known if skipped is None else known & ~skipped.astype(bool)
    return None


def lr_columns(names: Iterable[str]) -> list[str]:
    """The learning-rate columns among `names`."""
    return [name for name in names if name.split("/")[-1] == "lr" or name.split("/")[-2:-1] == ["lr"]]
