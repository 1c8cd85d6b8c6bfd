"""What differs between two runs, in one value: from the settings to the noise."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from tbnum.compare.align import NO_NUMBERS, Aligned, aligned, shared, shared_names
from tbnum.compare.bits import Bits, Depth, compare_bits
from tbnum.compare.distance import Distance, differing, distance
from tbnum.compare.noise import Verdict
from tbnum.compare.seeds import judged_by_seeds
from tbnum.compare.settings import Setting, settings_apart
from tbnum.compare.windows import windows
from tbnum.explain.words import count_text
from tbnum.log.checksums import Checksums
from tbnum.log.schema import Event
from tbnum.markup import card, escaped, shown
from tbnum.measure.step_hash import compared as compared_hashes

__all__ = ["BY", "Compared", "Difference", "EventsApart", "compared", "diff", "rows_of"]

BY = ("step", "updates", "samples")
OF_TENSORS = " of tensors"
"""Behind the name of a statistic in `seen_in`: it is one of single tensors."""
_OF_ONE_SETTING = ("optimizers", "scaler", "parameters")
"""Settings in which runs that are taken for seeds may not differ."""
_TENSOR_COLUMNS = ("grad_norm", "param_norm")
_READ = 'tbnum.read("runs")["gpt"] gives the run in runs/gpt'


class Compared(Protocol):
    """The part of a `tbnum.Run` that is compared."""

    @property
    def name(self) -> str: ...
    @property
    def steps(self) -> Mapping[str, np.ndarray]: ...
    @property
    def events(self) -> Sequence[Event]: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Any: ...
    @property
    def checksums(self) -> Checksums: ...


class EventsApart(NamedTuple):
    """Events of one kind at steps of one run and not of the other."""

    kind: str
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """Two runs, `a` and `b`, and how they differ within what was asked for. `tbnum.diff` makes it."""

    a: str
    b: str
    steps: int  # pairs of steps that were compared
    compared_from: int  # the first of them
    without_partner: tuple[int, int]  # how many steps of `a`, and of `b`, the other does not have
    settings: tuple[Setting, ...]
    data_apart_at: int | None
    """The first step that was made of other samples, or of the same in another order; None: none that is known."""
    first_step: int | None
    """The first step at which anything recorded differs by more than the tolerance; None: nothing does."""
    seen_in: tuple[str, ...]
    """The columns that differ there; "step_hash" and "checksum" among them, where no tolerance was asked for."""
    same_bits_until: int | None
    """The last checksummed step up to which parameters, optimizer and gradients are the same bits; None: unknown."""
    bits_apart_at: int | None  # the first checksummed step at which they are not
    stage: str | None
    """Where within `first_step` it began: "forward", "backward", "optimizer"; None: the record cannot say."""
    tensors: tuple[str, ...]
    """In which `first_step` shows it, the deepest last; () where no table of that very step does."""
    begun_in: str | None  # of the stage "backward": the deepest of them
    depth_from: str | None
    """What a stage "forward" or "backward" goes by: the order of use that the "forward" recorded, else that of the
    "model" or of the "optimizer"."""
    columns: tuple[Distance, ...]
    verdicts: tuple[Verdict, ...]
    events: tuple[EventsApart, ...]
    not_compared: tuple[str, ...]  # in words

    @property
    def same(self) -> bool:
        return self.first_step is None

    def __bool__(self) -> bool:
        """Whether there is a difference."""
        return not self.same

    def _repr_html_(self) -> str:
        from tbnum.compare.words import lines, sentence  # which are about this class

        rows = "".join(
            f"<tr><th>{escaped(heading)}</th><td>{escaped(text)}</td></tr>" for heading, text in lines(self) if text
        )
        head = f"<b>{escaped(self.a)}</b> and <b>{escaped(self.b)}</b>"
        return shown(f"{card('info' if self.same else 'warning', head, sentence(self))}<table>{rows}</table>")

    def as_json(self) -> dict[str, Any]:
        """Without tuples and keys that JSON does not have."""
        values = dataclasses.asdict(self)
        values["settings"] = [setting._asdict() for setting in self.settings]
        values["events"] = [event._asdict() for event in self.events]
        for column in values["columns"]:
            column["passes"] = {f"{threshold:g}": step for threshold, step in column["passes"].items()}
        return {"same": self.same, **values}


def diff(
    a: Compared | Sequence[Compared],
    b: Compared | Sequence[Compared],
    rtol: float = 0.0,
    atol: float = 0.0,
    *,
    columns: Sequence[str] | None = None,
    until: int | None = None,
    by: str = "step",
    noise: Sequence[Compared] = (),
) -> Difference:
    """How two runs differ: values that are more than `atol + rtol * |b|` apart. Needs no torch.

    `a` and `b` are runs, or lists of runs that differ by their seed alone: then the first pair of equal seeds is
    compared step by step, and all of them give the noise. So do the runs `noise`, of one setting. With `columns` these
    alone are compared; without a tolerance hashes and checksums too. `until` is the last step that is compared.
    `by` "updates" compares steps after the same number of updates, "samples" after the same number of samples, where
    the ids of every step are recorded (`wrap(..., data=loader, data_ids="all")`).

    Some 0.2 s for a million steps that were read, and 60 us for each table of 300 tensors that both have. ValueError
    where there is no step in common, one lacks a column or its ids, a tolerance is negative or `by` unknown.
    """
    _check(rtol, atol, columns, until, by)
    groups, noise = [_as_group(a, "a"), _as_group(b, "b")], _as_group(noise, "noise", at_least=0)
    one, other, paired = _pair(*groups)
    rows = rows_of(one, other, columns, until, by)
    exact = rtol == atol == 0.0 and columns is None and by == "step"
    distances = tuple(distance(one.steps, other.steps, rows, name, rtol, atol) for name in rows.columns)
    seen = {each.column: each.first_step for each in distances if each.first_step is not None}
    depth = Depth.of(one.meta)
    bits = compare_bits(one.checksums, other.checksums, until=until, depth=depth) if by == "step" else Bits()
    if exact:
        seen |= _seen_in_bits(one, other, rows, bits)
    named = [(bits.apart_at, bits.tensors)] if exact else []
    if by == "step" and columns is None:
        apart = _tensors_apart(one, other, rtol, atol, min(seen.values(), default=until))  # later ones name no tensor
        seen |= {column + OF_TENSORS: step for column, (step, _) in apart.items()}
        named += apart.values()
    first_step = min(seen.values(), default=None)
    begun = bits if bits.apart_at == first_step else Bits()
    seeds = judged_by_seeds(groups[0], groups[1], noise, rows, (one, other), paired)
    return Difference(
        a=one.name,
        b=other.name,
        steps=len(rows.step),
        compared_from=int(rows.step[0]),
        without_partner=(_rest(one, rows, until), _rest(other, rows, until)),
        settings=tuple(settings_apart(one.meta, other.meta)),
        data_apart_at=_data_apart(one, other, rows),
        first_step=first_step,
        seen_in=tuple(name for name, step in seen.items() if step == first_step),
        same_bits_until=bits.same_until,
        bits_apart_at=bits.apart_at,
        stage=begun.stage,
        tensors=next((names for step, names in named if names and step == first_step), ()),
        begun_in=begun.begun_in,
        depth_from=depth.source if begun.stage in ("forward", "backward") else None,
        columns=distances,
        verdicts=seeds.verdicts,
        events=_events_apart(one, other, rows),
        not_compared=(*_not_compared(one, other, rows, columns, until), *seeds.left_out),
    )


def _check(rtol: Any, atol: Any, columns: Any, until: Any, by: Any) -> None:
    for name, given in (("rtol", rtol), ("atol", atol)):
        if isinstance(given, bool) or not isinstance(given, (int, float, np.number)) or not 0 <= given < np.inf:
            raise ValueError(f"{name} is {given!r}; it has to be a number of 0 or more.")
    if columns is not None and (isinstance(columns, str) or not columns):
        hint = f"[{columns!r}]" if columns else "None, for all of them"
        raise ValueError(f"columns is {columns!r}; give a list of names, as {hint}.")
    for name in columns or ():
        if name in NO_NUMBERS:
            raise ValueError(f"columns has {name!r}, which is no number to compare; give others, as loss or grad_norm.")
    if until is not None and (isinstance(until, bool) or not isinstance(until, (int, np.integer))):
        raise ValueError(f"until is {until!r}; it has to be the number of a step, or None for the last one.")
    if by not in BY:
        raise ValueError(f"by is {by!r}; it has to be one of {', '.join(map(repr, BY))}.")


def compared(a: Compared | Sequence[Compared], b: Compared | Sequence[Compared]) -> tuple[Compared, Compared]:
    """Which two runs of `a` and `b` `diff` compares step by step."""
    one, other, _ = _pair(_as_group(a, "a"), _as_group(b, "b"))
    return one, other


def _as_group(runs: Compared | Sequence[Compared], what: str, at_least: int = 1) -> list[Compared]:
    group: list[Any] = list(runs) if isinstance(runs, (list, tuple)) else [runs]
    if len(group) < at_least:
        raise ValueError(f"{what} is {runs!r}, an empty list: there is no run to compare.")
    for run in group:
        if not hasattr(run, "checksums"):
            way = "give its values, as list(runs.values())" if isinstance(run, Mapping) else _READ
            raise TypeError(f"{what} is {type(run).__name__} ({run!r:.80}), and not a run: {way}.")
    for run in group[1:]:
        apart = [each for each in settings_apart(group[0].meta, run.meta) if each.name.startswith(_OF_ONE_SETTING)]
        if apart:
            raise ValueError(
                f"{what} has runs of several settings: {group[0].name!r} and {run.name!r} differ in {apart[0].name}; "
                "give runs that differ by their seed alone, or one run."
            )
    return group


def _pair(a: list[Compared], b: list[Compared]) -> tuple[Compared, Compared, bool]:
    """The first runs of equal seeds, else the first ones; and whether both groups have the same seeds in order."""
    seeds_a, seeds_b = ([run.meta.get("seed") for run in group] for group in (a, b))
    paired = len(a) > 1 and seeds_a == seeds_b and None not in seeds_a
    for run, seed in zip(a, seeds_a, strict=True):
        if seed is not None and seed in seeds_b:
            return run, b[seeds_b.index(seed)], paired
    return a[0], b[0], paired


def rows_of(a: Compared, b: Compared, columns: Sequence[str] | None, until: int | None, by: str) -> Aligned:
    """The rows of two runs that `diff` compares. ValueError as there."""
    for run in (a, b):
        lacking = [name for name in columns or () if name not in run.steps]
        if lacking:
            raise ValueError(f"run {run.name!r} has no column {lacking[0]!r}; it has {', '.join(run.steps)}.")
    samples = (_samples_seen(a), _samples_seen(b)) if by == "samples" else None
    names = None if columns is None else tuple(columns)
    rows = aligned(a.steps, b.steps, by=by, columns=names, until=until, samples=samples)
    if not len(rows.step):
        spans = " and ".join(f"{run.name!r} {_span(run)}" for run in (a, b))
        raise ValueError(f"the runs have no step in common{'' if until is None else f' up to {until}'}: {spans}.")
    return rows


def _samples_seen(run: Compared) -> np.ndarray:
    """(S,) how many samples the run has used after each step. Some 0.2 ms a step."""
    batch_of = getattr(run, "batch", None)
    steps = run.steps.get("step", np.empty(0, np.int64))
    counts = np.zeros(len(steps), np.int64)
    for row, step in enumerate(steps.tolist()):
        ids = None if batch_of is None else batch_of(step)
        if ids is None:
            raise ValueError(
                f"run {run.name!r} does not have the samples of step {step}, so steps cannot be compared by samples; "
                'record with wrap(..., data=loader, data_ids="all"), or compare by="updates".'
            )
        counts[row] = len(ids)
    return np.cumsum(counts)


def _data_apart(a: Compared, b: Compared, rows: Aligned) -> int | None:
    """From the hash of each step's ids, where both know it."""
    if "batch_hash" not in a.steps or "batch_hash" not in b.steps:
        return None
    first, second = (run.steps["batch_hash"][at] for run, at in zip((a, b), rows.rows, strict=True))
    differ = np.flatnonzero((first != second) & (first != 0) & (second != 0))
    return int(rows.step[differ[0]]) if len(differ) else None


def _span(run: Compared) -> str:
    step = run.steps.get("step", np.empty(0, np.int64))
    return f"has steps {step[0]} to {step[-1]}" if len(step) else "has none"


def _tensors_apart(
    a: Compared, b: Compared, rtol: float, atol: float, until: int | None
) -> dict[str, tuple[int, tuple[str, ...]]]:
    """By statistic of tensors, the first step at which it differs, and of which tensors. One pass over the tables."""
    columns = [column for column in _TENSOR_COLUMNS if column in a.tensors and column in b.tensors]
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    steps_a, steps_b = (run.tensors.steps_with(columns) for run in (a, b))
    for first, last in windows(steps_a, steps_b, until, 2 * len(columns) * len(a.tensors.names_with(columns))):
        steps_a, names_a, of_a = a.tensors.read_together(columns, first, last)
        steps_b, names_b, of_b = b.tensors.read_together(columns, first, last)
        at, at_a, at_b = shared(steps_a, steps_b)
        names, in_a, in_b = shared_names(names_a, names_b)
        for column in columns:
            one, other = of_a[column][at_a][:, in_a], of_b[column][at_b][:, in_b]
            apart = differing(one, other, rtol, atol) & ~np.isnan(one) & ~np.isnan(other)
            rows = np.flatnonzero(apart.any(axis=1))
            if len(rows):
                found[column] = int(at[rows[0]]), tuple(names[where] for where in np.flatnonzero(apart[rows[0]]))
        columns = [column for column in columns if column not in found]
        if not columns:
            break
    return found


def _seen_in_bits(a: Compared, b: Compared, rows: Aligned, bits: Bits) -> dict[str, int]:
    seen: dict[str, int] = {}
    if "step_hash" in a.steps and "step_hash" in b.steps:
        first, second = (run.steps["step_hash"][at] for run, at in zip((a, b), rows.rows, strict=True))
        differ = np.flatnonzero(compared_hashes(first, second)[1])
        if len(differ):
            seen["step_hash"] = int(rows.step[differ[0]])
    if bits.apart_at is not None:
        seen["checksum"] = bits.apart_at
    return seen


def _events_apart(a: Compared, b: Compared, rows: Aligned) -> tuple[EventsApart, ...]:
    """By kind, within the steps that were compared."""
    low, high = int(rows.step[0]), int(rows.step[-1])
    found: list[dict[str, Counter[int]]] = []
    for run in (a, b):
        by_kind: dict[str, Counter[int]] = {}
        for event in run.events:
            if low <= event.step <= high:
                by_kind.setdefault(event.kind, Counter())[event.step] += 1
        found.append(by_kind)
    first, second = found
    apart = []
    for kind in sorted({*first, *second}):
        one, other = first.get(kind, Counter()), second.get(kind, Counter())
        if one != other:
            apart.append(
                EventsApart(kind, tuple(sorted((one - other).elements())), tuple(sorted((other - one).elements())))
            )
    return tuple(apart)


def _rest(run: Compared, rows: Aligned, until: int | None) -> int:
    """How many of the steps that were asked for have no partner."""
    steps = run.steps["step"]
    return len(steps if until is None else steps[steps <= until]) - len(rows.step)


def _not_compared(
    a: Compared, b: Compared, rows: Aligned, columns: Sequence[str] | None, until: int | None
) -> tuple[str, ...]:
    """In words, what could not be compared."""
    found = []
    for run, other in ((a, b), (b, a)):
        alone = [name for name in run.steps if name not in other.steps] if columns is None else []
        if alone:
            found.append(f"only {run.name!r} has the columns {', '.join(alone)}")
        rest = _rest(run, rows, until)
        if rest:
            found.append(f"{count_text(rest, 'step')} of {run.name!r} without a partner")
        found += [f"{run.name!r}: {problem}" for problem in getattr(run, "problems", ())]
        if run.meta.get("ended") is None:
            found.append(f"{run.name!r} goes on, or was killed")
        elif run.meta["ended"] == "crash":
            found.append(f"{run.name!r} ended with an exception after step {run.steps['step'][-1]}")
    return tuple(found)
