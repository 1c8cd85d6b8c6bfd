"""Logs of format 1, as tbnum 0.1.0 wrote them: a session that went back stayed in its file, as its next part.

Frozen: nothing here comes from `tbnum.log` but the framing of records, so that the reader is tried on the old bytes
whatever becomes of the writer.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tbnum.log.record_file import encode, file_version, frame

START = 1_700_000_000.0
COLUMNS = ("step", "wall_time", "loss", "micro_batches", "loss_scale", "growth_tracker")
COLUMNS += ("grad_norm", "grad_norm_clipped", "clip_coef", "max_norm", "skipped", "nonfinite_tensors", "lr")
COLUMNS += ("param_norm", "update_norm")
_STORED = {"step": "<i8", "micro_batches": "<f4", "growth_tracker": "<f4", "skipped": "|b1", "nonfinite_tensors": "<f4"}
STORED = tuple(_STORED.get(name, "<f8") for name in COLUMNS)
_ROW = struct.Struct("<" + "".join({"<f8": "d", "<f4": "f", "<i8": "q", "|b1": "?"}[kind] for kind in STORED))
_SCHEMA_ID = zlib.crc32("\n".join((*COLUMNS, "", *STORED)).encode())
_TRAILER = struct.Struct("<8sIII5q4d")
_REWOUND = 4


class OldLog:
    """A session's two files, written record by record."""

    def __init__(self, folder: Path, *, first_step: int = 0, number: int = 0, rank: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        suffix = "" if rank is None else f".rank{rank}"
        stem = f"{int(START * 1000) + number * 1000}.host.{100 + number}{suffix}"
        self.path = folder / f"{stem}.tbnum"
        self.tensors_path = folder / f"{stem}.tensors.tbnum"
        self._meta: dict[str, Any] = {"format_version": 1, "session": f"session{number}", "start_time": START + number}
        self._meta |= {"first_step": first_step, "part": 0}
        self._totals: dict[str, Any] = {"flags": 0, "start": -1, "first": -1, "last": -1, "steps": 0, "skips": 0}
        self._totals |= {"scale": math.nan, "best": math.nan, "begin": math.nan, "end": math.nan}
        self.path.write_bytes(frame(file_version(START)))
        self.session()

    def session(self, **changes: Any) -> None:
        """The session record; with another `first_step` after rows or tables, the next part."""
        if changes.pop("back", False):
            self._meta["part"] += 1
        self._meta.update(changes)
        layout = {"columns": COLUMNS, "stored": STORED}
        self._append("tbnum/session", json.dumps({**self._meta, **layout}))
        self._append("tbnum/schema", json.dumps({"session": self._meta["session"], **layout}))

    def back_to(self, step: int) -> None:
        self.session(first_step=step, back=True)

    def rows(self, steps: Iterable[int], salt: int = 0, skips: Sequence[int] = ()) -> None:
        """One chunk. A loss is the step, and `salt` behind the point."""
        steps = list(steps)
        values = [row(step, salt, step in skips) for step in steps]
        totals = self._totals
        if steps[0] <= totals["last"]:
            totals["flags"] |= _REWOUND
        self._starts(steps[0])
        totals["first"] = steps[0] if totals["first"] < 0 else totals["first"]
        totals["begin"] = values[0][1] if math.isnan(totals["begin"]) else totals["begin"]
        totals |= {"last": steps[-1], "steps": totals["steps"] + len(steps), "end": values[-1][1], "scale": 65536.0}
        totals["skips"] += sum(step in skips for step in steps)
        totals["best"] = min([*(each[2] for each in values), totals["best"]])
        payload = b"".join(_ROW.pack(*each) for each in values)
        self._append("tbnum/steps", payload, schema_id=_SCHEMA_ID, rows=len(steps))

    def event(self, step: int, kind: str = "skip", **data: Any) -> None:
        if kind not in ("annotation", "crash", "repeat_of_diverged_run", "resume", "scaler_state_lost"):
            self._starts(step)
        facts = {"step": step, "wall_time": START + step, "kind": kind, "data": data}
        self._append("tbnum/event", json.dumps(facts))

    def table(self, step: int, salt: int = 0) -> None:
        """Gradient norms of two tensors: the step, and `salt` behind the point; one more for the second."""
        names, columns = '["a","b"]', '{"columns": ["grad_norm"], "optimizer": null}'
        values = struct.pack("<2d", step + salt / 8, step + 1 + salt / 8)
        planes = bytes(values[8 * at + plane] for plane in range(8) for at in range(2))
        head = struct.pack(
            "<qqIIIIB", step, self._meta["first_step"], self._meta["part"], 2, *map(_id, (names, columns)), 0
        )
        records = [("tbnum/tensors", head + struct.pack("<BI", 5, len(planes)) + planes)]
        if not self.tensors_path.exists():
            self.tensors_path.write_bytes(frame(file_version(START)))
            about = {"format_version": 1, "session": self._meta["session"]}
            records = [
                ("tbnum/session", json.dumps(about)),
                ("tbnum/names", names),
                ("tbnum/table_columns", columns),
                *records,
            ]
        with open(self.tensors_path, "ab") as file:
            for tag, payload in records:
                file.write(frame(encode(tag, payload, trailer=b"", step=step, wall_time=START)))

    def close(self) -> None:
        self._totals["flags"] |= 1
        self.session(ended="closed", closed=True)

    def _starts(self, step: int) -> None:
        before = self._totals["start"]
        self._totals["start"] = min([step, self._meta["first_step"], *([before] if before >= 0 else [])])

    def _append(self, tag: str, payload: bytes | str, schema_id: int = 0, rows: int = 0) -> None:
        t = self._totals
        body = _TRAILER.pack(
            b"tbnum\x00\r\n", schema_id, rows, t["flags"], t["start"], t["first"], t["last"], t["steps"], t["skips"],
            t["scale"], t["best"], t["begin"], t["end"],
        )  # fmt: skip
        trailer = body + struct.pack("<I", zlib.crc32(body))
        with open(self.path, "ab") as file:
            file.write(frame(encode(tag, payload, trailer=trailer, step=max(t["last"], 0), wall_time=START)))


def row(step: int, salt: int = 0, skipped: bool = False) -> tuple[Any, ...]:
    unknown = math.nan
    norm = math.inf if skipped else 1.0
    return (step, START + step, step + salt / 8, 1.0, 65536.0, 3.0, norm, unknown, unknown, unknown, skipped, 0.0, 1e-3,
            unknown, unknown)  # fmt: skip


def _id(text: str) -> int:
    return zlib.crc32(text.encode())
