"""Compares what tbnum recorded of a published loop with the loop's own truth."""

from __future__ import annotations

import collections
import importlib
import math
import pkgutil
import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import tbnum
from tests import published
from tests.published.tape import LOOPS, Loop, OrUnknown, Tape, Value

__all__ = ["all_loops", "problems"]

RELATIVE = 1e-5
INCIDENTAL = {
    "gradients_discarded",
    "scale_growth",
    "scale_backoff",
    "gradient_underflow",
    "loss_spike",
    "grad_norm_spike",
}
"""Kinds that no loop declares: they follow from its numbers, and have tests of their own."""


CHECKOUT = Path(__file__).parents[2]


def run_loop(loop: Loop, logdir: Path | None) -> tuple[Tape, list[str], Any]:
    """The tape, tbnum's warnings, and the state of the random generators at the end."""
    torch.manual_seed(0)  # of every device
    random.seed(0)
    np.random.seed(0)
    tape = Tape(logdir)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loop.run(tape)
        finally:
            tape.close()
    said = [str(warning.message) for warning in caught if _is_ours(warning)]
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return tape, said, (torch.get_rng_state(), *devices, random.getstate(), np.random.get_state())


def _is_ours(warning: warnings.WarningMessage) -> bool:
    """tbnum warns with RuntimeWarning at the loop's own line; torch warns at torch's, and with UserWarning."""
    if "tbnum" in str(warning.message).replace(str(CHECKOUT), ""):  # torch's may show the stack, with paths
        return True
    return issubclass(warning.category, RuntimeWarning) and "torch" not in Path(warning.filename).parts


def bits(value: Any) -> Any:
    """Something that is equal where every bit is."""
    if isinstance(value, nn.Module):
        return bits(value.state_dict())
    if hasattr(value, "state_dict"):
        return bits(value.state_dict())
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        return str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: bits(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(member) for member in value]
    return repr(value.values) if isinstance(value, OrUnknown) else repr(value)


def fits(column: str, recorded: float, truth: Value) -> bool:
    if isinstance(truth, OrUnknown):
        return math.isnan(recorded) or any(fits(column, recorded, value) for value in truth.values)
    if column.rpartition("/")[2] == "skipped":
        return bool(recorded) is truth
    if math.isnan(truth):
        return math.isnan(recorded)
    if math.isinf(truth):
        return recorded == truth or ("norm" in column and not math.isfinite(recorded))
    return math.isclose(recorded, truth, rel_tol=RELATIVE, abs_tol=1e-12)


def aligned(steps: dict[str, np.ndarray], rows: list[dict[str, Value]]) -> list[dict[str, Value]]:
    """The rows that the record is to have: without the optional ones that it does not have."""
    there: list[dict[str, Value]] = []
    for row in rows:
        optional = row.get("optional", False)
        row = {column: truth for column, truth in row.items() if column != "optional"}
        if optional and (len(there) >= len(steps["step"]) or misfits(steps, len(there), row)):
            continue
        there.append(row)
    return there


def misfits(steps: dict[str, np.ndarray], number: int, row: dict[str, Value]) -> list[str]:
    found = []
    for column, truth in row.items():
        if column not in steps:
            found.append(f"step {number}: no column {column}")
        elif not fits(column, steps[column][number].item(), truth):
            found.append(f"step {number}: {column} is {steps[column][number]}, in truth {truth}")
    return found


def differences(steps: dict[str, np.ndarray], rows: list[dict[str, Value]]) -> list[str]:
    """Of the record from the tape, in words."""
    found = []
    if len(steps["step"]) != len(rows):
        found.append(f"{len(steps['step'])} steps recorded, {len(rows)} attempts made")
    for number, row in enumerate(rows[: len(steps["step"])]):
        found += misfits(steps, number, row)
    return found


def out_of_order(steps: dict[str, np.ndarray], sequences: dict[str, list[float]]) -> list[str]:
    """Of columns whose rows the loop does not know, but their values."""
    found = []
    for column, truth in sequences.items():
        if column not in steps:
            found.append(f"no column {column}")
            continue
        recorded = [value for value in steps[column].astype(float).tolist() if math.isfinite(value)]
        if column.endswith("/skipped"):
            recorded, truth = [sum(recorded)], [sum(truth)]
        if len(recorded) != len(truth):
            found.append(f"{column} has {len(recorded)} values, in truth {len(truth)}")
        pairs = zip(recorded, truth, strict=False)
        wrong = [
            number
            for number, (value, true) in enumerate(pairs)
            if not fits(column.replace("/skipped", ""), value, true)
        ]
        if wrong:
            found.append(f"{column}: value {wrong[0]} is {recorded[wrong[0]]}, in truth {truth[wrong[0]]}")
    return found


def unlike(loop: Loop, run: tbnum.Run, rows: list[dict[str, Value]]) -> list[str]:
    """What the events say otherwise than the tape and the loop's declaration."""
    skipped = [number for number, row in enumerate(rows) if any(row[c] is True for c in row if c.endswith("skipped"))]
    skips = [event for event in run.events if event.kind == "skip"]
    found = []
    if sorted({event.step for event in skips}) != skipped:
        found.append(f"skips at {[event.step for event in skips]}, in truth at {skipped}")
    causes = {event.cause for event in skips}
    if loop.cause is not None and causes - {loop.cause}:
        found.append(f"causes {causes}, in truth {loop.cause}")
    quiet = INCIDENTAL | {"skip"} | set(loop.may)
    kinds = collections.Counter(event.kind for event in run.events if event.kind not in quiet)
    for kind, count in loop.events.items():
        seen = kinds.pop(kind, 0)
        if not seen or count not in (None, seen):
            found.append(f"{seen} events {kind}, declared {count}")
    for kind in kinds:
        messages = [event.message for event in run.events if event.kind == kind]
        found.append(f"{kinds[kind]} false events {kind}: {messages[0]}")
    return found


def unheard(loop: Loop, said: list[str]) -> list[str]:
    """Warnings that were declared and are not there, and the other way round."""
    left = list(said)
    found = []
    for pattern in loop.warns:
        heard = next((message for message in left if re.search(pattern, message, re.IGNORECASE)), None)
        if heard is None:
            found.append(f"no warning {pattern!r} in {said}")
        else:
            left.remove(heard)
    if loop.may_warn is not None:
        left = [message for message in left if not re.search(loop.may_warn, message, re.IGNORECASE)]
    return found + [f"false warning: {message}" for message in left]


def problems(loop: Loop, folder: Path) -> list[str]:
    """Everything that tbnum changes in the loop, or records otherwise than it was, in words. Runs the loop twice."""
    if loop.raises is not None:
        kind, pattern = loop.raises
        try:
            run_loop(loop, folder)
        except kind as error:
            return [] if re.search(pattern, str(error)) else [f"refused, but without the way out {pattern!r}: {error}"]
        return [f"not refused with {kind.__name__} {pattern!r}"]
    bare, _, random_without = run_loop(loop, None)
    assert bare.kept, "a loop keeps what it trained"
    tape, said, random_with = run_loop(loop, folder)
    found = []
    if bits(tape.kept) != bits(bare.kept):
        found.append("training differs")
    if bits([tape.rows, tape.sequences]) != bits([bare.rows, bare.sequences]):
        found.append("the loop's own numbers differ")
    if bits(random_with) != bits(random_without):
        found.append("the random state differs")
    found += unheard(loop, said)
    runs = tbnum.read(folder)
    for name, rows in tape.rows.items():
        if name not in runs:
            found.append(f"no run {name}")
            continue
        place = "" if name == "." else f"run {name}: "
        steps = runs[name].steps
        found += [place + problem for problem in out_of_order(steps, tape.sequences.get(name, {}))]
        if not rows and name in tape.sequences:
            rows = [{"skipped": bool(skipped)} for skipped in steps["skipped"]]
        rows = aligned(steps, rows)
        found += [place + problem for problem in differences(steps, rows) + unlike(loop, runs[name], rows)]
    return found


def all_loops() -> dict[str, Loop]:
    """Of every module beside this one."""
    for module in pkgutil.iter_modules(published.__path__):
        if not module.name.startswith(("test_", "__")):
            importlib.import_module(f"{published.__name__}.{module.name}")
    return LOOPS
