"""A table of what was measured beside what was aimed at, as text and as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Report", "Row", "median", "parser", "quantile", "reset_peak", "resident_mb", "spread", "table"]


@dataclass(frozen=True)
class Row:
    """One measured figure. `target` is the most that it should be; None where it stands for orientation."""

    what: str
    value: float | None  # None: not measured, and `note` says why
    unit: str = ""
    target: float | None = None
    at_least: bool = False  # the target is the least it should be
    spread: float | None = None  # half the distance of its quartiles, in the same unit
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None or self.value is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


@dataclass
class Report:
    """What one benchmark found. `print` shows each section as it is done; `write` keeps all of them."""

    benchmark: str
    settings: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, list[Row]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=lambda: _machine())
    started: float = field(default_factory=time.time)

    def begin(self) -> None:
        found = self.machine
        load = "" if found["load"] is None else f", load {found['load']:.1f}"
        print(f"== {self.benchmark}: {found['cpu']}, {found['cores']} cores{load}, {found['versions']}", flush=True)

    def add(self, section: str, rows: Sequence[Row]) -> None:
        """Adds rows to a section and prints them."""
        self.sections.setdefault(section, []).extend(rows)
        print(f"\n{section}\n{table(rows)}", flush=True)

    def finish(self, path: Path | None) -> None:
        """Says which targets were missed, and writes the file."""
        rows = [row for rows in self.sections.values() for row in rows]
        aimed = [row for row in rows if row.met is not None]
        missed = [row for row in aimed if not row.met]
        took = time.time() - self.started
        print(f"\n{len(aimed) - len(missed)} of {len(aimed)} targets met, in {took:.0f} s")
        for row in missed:
            print(f"  missed: {row.what}: {_number(row.value, row.unit)}, target {_target(row)}")
        if path is not None:
            sections = {
                name: [{**asdict(row), "met": row.met} for row in members] for name, members in self.sections.items()
            }
            found = {
                "benchmark": self.benchmark,
                "started": self.started,
                "seconds": took,
                "machine": self.machine,
                "settings": self.settings,
                "sections": sections,
            }
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(_plain(found), indent=1) + "\n")
            print(f"written to {path}")
        print(flush=True)


def table(rows: Sequence[Row]) -> str:
    """Aligned text, one line a row."""
    cells = [("", "measured", "±", "target", "")]
    for row in rows:
        spread = "" if row.spread is None else _number(row.spread, row.unit)
        verdict = {None: "", True: "met", False: "MISSED"}[row.met]
        cells.append((row.what, _number(row.value, row.unit), spread, _target(row), verdict))
    widths = [max(len(line[at]) for line in cells) for at in range(5)]
    notes = ["", *(row.note for row in rows)]
    lines = []
    for (what, *rest), note in zip(cells, notes, strict=True):
        columns = [what.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append(("  " + "  ".join(columns) + ("   " + note if note else "")).rstrip())
    return "\n".join(lines)


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def spread(values: Sequence[float]) -> float | None:
    """Half the distance of the quartiles; None of fewer than three values."""
    return (quantile(values, 0.75) - quantile(values, 0.25)) / 2 if len(values) > 2 else None


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="fewer rounds and smaller logs: a look, not a measurement")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    return made


def resident_mb(pid: int | str = "self", peak: bool = False) -> float:
    """Memory of a process in MB, as Linux reports it; NaN elsewhere."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith(wanted):
                return int(line.split()[1]) / 1024
    return math.nan


def reset_peak() -> None:
    """`resident_mb(peak=True)` starts again, where the system allows it."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


def _number(value: float | None, unit: str) -> str:
    if value is None or math.isnan(value):
        return "-"
    if unit in ("x", "s"):
        text = f"{value:.3f}"
    elif value == round(value) and abs(value) < 1e6:
        text = f"{value:.0f}"
    elif abs(value) >= 100:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}".strip()


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    return f"{'>=' if row.at_least else '<='} {_number(row.target, row.unit)}"


def _machine() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu(),
        "cores": cores,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "versions": ", ".join(f"{name} {version}" for name, version in _versions().items()),
        "commit": _commit(),
    }


def _versions() -> dict[str, str]:
    from importlib import metadata

    found = {"Python": platform.python_version()}
    for name in ("torch", "tensorboard", "numpy", "wandb"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _cpu() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        asked = ["git", "describe", "--always", "--dirty"]
        here = Path(__file__).parent
        return subprocess.run(asked, capture_output=True, check=True, text=True, cwd=here).stdout.strip()
    return None


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
