"""`tbnum export`: a run's steps, or its events, at full resolution."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import numpy as np

from tbnum import export
from tbnum.command.inputs import UnusableInput, one_by_one, one_run, runs_of, usable
from tbnum.command.output import opened, print_line
from tbnum.compare.reference import write_reference
from tbnum.explain.words import count_text
from tbnum.log.reader import Run

__all__ = ["configure", "run"]

FORMATS = ("csv", "json", "jsonl", "npz", "parquet")
BINARY = ("npz", "parquet")


def configure(command: argparse.ArgumentParser) -> None:
    command.add_argument("--format", choices=FORMATS, default="csv", help="(default: %(default)s)")
    command.add_argument("--events", action="store_true", help="the events with cause and message, not the steps")
    command.add_argument(
        "--reference",
        metavar="DIR",
        help="write a small record of the run into a new folder, for tbnum diff to compare with",
    )
    command.add_argument(
        "--dataset",
        metavar="DIR",
        help="add all runs to a data set of Parquet files, by run and rank, that DuckDB reads as one table",
    )
    command.add_argument("-o", "--output", default="-", metavar="FILE", help="'-' for standard output (default)")


def run(arguments: argparse.Namespace) -> int:
    form, binary = arguments.format, arguments.format in BINARY
    if arguments.dataset is not None:
        return _write_dataset(arguments)
    if binary and arguments.events:
        raise UnusableInput(f"{form} is for columns of numbers: export --events as csv, json or jsonl")
    if binary and arguments.output == "-" and sys.stdout.isatty():
        raise UnusableInput(f"{form} is binary: give a file with -o FILE")
    if form == "parquet":
        _need_pyarrow()
    chosen = usable(one_run(arguments))
    if arguments.reference is not None:
        _write_reference(chosen, arguments.reference)
        return 0
    try:
        _write(chosen, form, arguments.events, arguments.output)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UnusableInput(f"cannot write {arguments.output!r}: {error.strerror or error}") from None
    return 0


def _write_reference(run: Run, folder: str) -> None:
    try:
        write_reference(run, folder)
    except OSError as error:
        raise UnusableInput(error.strerror or str(error)) from None
    except ValueError as error:
        raise UnusableInput(str(error)) from None
    print_line(f"wrote {folder}")


def _write_dataset(arguments: argparse.Namespace) -> int:
    """Every run that is new or has changed since. 0, also where one could not be read: it is named."""
    if arguments.format != "parquet":
        raise UnusableInput(f"--dataset writes parquet, and --format is {arguments.format}: give --format parquet")
    if arguments.output != "-" or arguments.events or arguments.reference is not None:
        raise UnusableInput("--dataset writes every table of every run: leave out -o, --events and --reference")
    _need_pyarrow()
    from tbnum.dataset import add_run, is_new

    runs, added = runs_of(arguments), 0
    count = len(runs)
    for name, run in one_by_one(runs, check=False):
        partition = _partition(arguments, name, run)
        try:
            if is_new(arguments.dataset, partition, run):
                add_run(arguments.dataset, partition, usable(run))
                added += 1
        except OSError as error:
            raise UnusableInput(f"cannot write {arguments.dataset!r}: {error.strerror or error}") from None
        del runs[name]  # of a thousand, one at a time is in memory
    print_line(f"wrote {added} of {count_text(count, 'run')} to {arguments.dataset}; the others had not changed")
    return 0


def _partition(arguments: argparse.Namespace, name: str, run: Run) -> str:
    """A run that is a folder of its own is called by that folder."""
    return Path(arguments.logdir[0]).resolve().name if name == "." else name


def _need_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise UnusableInput("parquet needs pyarrow: pip install pyarrow")


def _write(run: Run, form: str, events: bool, name: str) -> None:
    with opened(name, binary=form in BINARY) as stream:
        if form == "npz":
            np.savez_compressed(stream, **run.steps)  # type: ignore[arg-type]
        elif form == "parquet":
            export.write_steps_parquet(stream, run)
        else:
            of_steps, of_events = {
                "csv": (export.write_steps_csv, export.write_events_csv),
                "json": (export.write_steps_json, export.write_events_json),
                "jsonl": (export.write_steps_jsonl, export.write_events_jsonl),
            }[form]
            (of_events if events else of_steps)(stream, run)
