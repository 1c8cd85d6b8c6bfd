"""A run as a small record of its own, to be kept in a repository and compared with."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from tbnum.formats import CHECKSUM
from tbnum.log.ranks import ChecksumSeries
from tbnum.log.reader import Run
from tbnum.log.tensors import TensorTable
from tbnum.log.writer import LogWriter

__all__ = ["write_reference"]

_RECORDED = ("seed", "config", "optimizers", "scaler", "parameters", "depth", "depth_from", "versions", "world_size")
_OF_TENSORS = ("grad_norm", "param_norm")


def write_reference(run: Run, folder: str | os.PathLike[str]) -> Path:
    """Writes what `tbnum diff` compares: steps, settings, norms and checksums of tensors, no event and no histogram.

    A third of a kilobyte a step and 10 bytes a checksum. Gives the record's path. FileExistsError where `folder` has a
    file in it: two records in one folder would be read as one run that was resumed. ValueError where there is no step.
    """
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{str(folder)!r} is not empty: give a folder of its own to the reference")
    steps = run.steps
    if not len(steps.get("step", ())):
        raise ValueError(f"the run {run.name!r} has no step to compare with: give one that has.")
    recorded = {key: value for key, value in run.meta.items() if key in _RECORDED}
    log = LogWriter(folder, columns=tuple(steps), meta={**recorded, "first_step": int(steps["step"][0])})
    log.append_steps(list(zip(*(values.tolist() for values in steps.values()), strict=True)))
    for table in _tables(run):
        log.write_tensors(table)
    log.close(timeout=None)
    return log.path


def _tables(run: Run) -> list[TensorTable]:
    """By step and set of tensors: the norms, and the checksums."""
    found: dict[tuple[int, tuple[str, ...]], dict[str, np.ndarray]] = {}
    series: dict[str, ChecksumSeries] = {column: run.tensors[column] for column in _OF_TENSORS if column in run.tensors}
    series |= {CHECKSUM + what: each for what, each in run.checksums.items()}
    for column, (at, names, values) in series.items():
        for row, step in enumerate(at.tolist()):
            found.setdefault((step, names), {})[column] = values[row]
    return [TensorTable(step, names, columns) for (step, names), columns in sorted(found.items())]
