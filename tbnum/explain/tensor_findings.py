"""Findings from the tables of tensors: dead and exploding ones, the size of updates, what float16 loses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tbnum.explain.began import module_of
from tbnum.explain.finding import OF_THE_RUN, Finding
from tbnum.explain.precision import underflow
from tbnum.explain.record import optimizer_settings
from tbnum.explain.rows import Rows, scale_of
from tbnum.explain.thresholds import (
    CLIPPED_TO,
    CURED_SHARE,
    EDGE_BINADES,
    EXTREME_SCALE,
    GRADIENT_FADED,
    HALF_LOST,
    HEADROOM_LOST,
    LR_IDLE,
    MOVED_ROUNDING,
    MOVED_TIMES,
    NAMES_SHOWN,
    NOT_FLOAT16_SHARE,
    ROUNDING_GRADIENT,
    TENSOR_EXPLODED,
    TENSOR_ROWS,
    TENSOR_ROWS_LEAST,
    UNDERFLOW_SHARE,
    UPDATE_RATIO_HIGH,
    UPDATE_RATIO_LOW,
    VANISHED,
)
from tbnum.explain.view import RunView
from tbnum.explain.words import as_float, count_text, scale_text
from tbnum.formats import FORMATS, INF, ZERO
from tbnum.log.columns import StepColumn, columns_named
from tbnum.log.schema import Event

__all__ = [
    "dead",
    "exploding",
    "faded",
    "headroom",
    "no_gradient",
    "not_float16",
    "underflowing",
    "updates",
    "updates_lost",
    "vanishing",
]

FLOAT16 = FORMATS["float16"]


def _judged(view: RunView) -> Iterator[tuple[Rows, Rows | None]]:
    """For each optimizer its rows late in the run, and those of the middle: some 50 tables in all, 10 ms at 150."""
    for optimizer, rows in view.late.items():
        if len(rows.steps) >= TENSOR_ROWS_LEAST:
            yield rows, view.middle.get(optimizer)


def dead(view: RunView) -> Iterator[Finding]:
    """Steps at which no gradient was anything but zero (a hinge loss that reached 0) speak of no tensor."""
    for rows, before in _judged(view):
        norms = rows.columns["grad_norm"]
        norms = norms[(np.nan_to_num(norms) > 0).any(1)]
        known = ~np.isnan(norms)
        gone = ((norms == 0) | ~known).all(0) & (known.sum(0) >= TENSOR_ROWS_LEAST) & ~_trained_between(view, rows)
        if not gone.any():
            continue
        names = names_where(gone, rows.names)
        evidence = (
            f"{len(names)} of {count_text(len(rows.names), 'tensor')} ({_listed(names)}) had a gradient of exactly "
            f"zero at all {len(norms)} steps looked at, from {int(rows.steps[0]):,} to {int(rows.steps[-1]):,}"
        )
        alive: list[str] = []
        if before is not None and before.names == rows.names:
            alive = names_where((before.columns["grad_norm"] > 0).any(0) & gone, rows.names)
            evidence += f"; {_listed(alive)} had one before" if alive else "; nor had they one before"
        # A bias alone, whose weight learns: the loss does not depend on it, as of one before a softmax or a difference.
        shapes = view.meta.get("parameters")
        invariant = all(_is_vector(name, shapes) for name in names) and before is not None and not alive
        yield Finding(
            "dead_tensor",
            "info" if invariant else "warning",
            "Some parameters learn nothing",
            evidence + ".",
            "Look for units that are never active (ReLU after a large step), a branch that is cut off, or a gradient "
            "that underflows: freeze or drop what is meant to be unused.",
            OF_THE_RUN,
        )


def _trained_between(view: RunView, rows: Rows) -> np.ndarray:
    """(P,) bool: tensors that move by more than weight decay moves them: they have a gradient at steps in between.

    Weight decay takes the same share of a tensor at each step. So where gradients are zero a norm does not rise, and
    what is lost between two rows is the measured step of one of them, over and over. Looked at in the last rows that
    measured both: momentum carries a tensor on for a while.
    """
    whole = np.isfinite(rows.columns["param_norm"]).any(1) & np.isfinite(rows.columns["update_norm"]).any(1)
    chosen = np.flatnonzero(whole)[-3:]
    if len(chosen) < 2:
        return np.zeros(len(rows.names), bool)
    norms, moved = rows.columns["param_norm"][chosen], rows.columns["update_norm"][chosen]
    with np.errstate(invalid="ignore", divide="ignore"):
        change, rounding = np.diff(norms, axis=0), MOVED_ROUNDING * norms[1:]
        explained = MOVED_TIMES * np.diff(rows.steps[chosen])[:, None] * np.fmax(moved[1:], moved[:-1])
        between = (change > rounding) | (-change > explained + rounding)
        decay = _decoupled_decay(view, rows.optimizer, rows.steps[chosen])
        if decay is not None:  # Adam goes on along the gradients of the steps before
            between |= (moved / norms > MOVED_TIMES * decay[:, None] + MOVED_ROUNDING)[1:]
    return np.asarray(between.any(0))


def _decoupled_decay(view: RunView, optimizer: str | None, steps: np.ndarray) -> np.ndarray | None:
    """(R,) the largest share that weight decay takes in a step; None where it is a part of the gradient, or unknown."""
    groups = optimizer_settings(view.meta, optimizer).get("groups")
    groups = [group for group in groups or () if isinstance(group, Mapping)]
    rates = [lr for column, lr in columns_named(view.steps, "lr") if column.optimizer == optimizer]
    shares = [as_float(group.get("weight_decay")) for group in groups]
    if not shares or not rates:
        return None
    if any(share != 0 and not group.get("decoupled_weight_decay") for group, share in zip(groups, shares, strict=True)):
        return None
    at = _places(view, steps)
    return np.asarray(np.fmax.reduce([lr[at] for lr in rates]) * max(shares))


def _places(view: RunView, steps: np.ndarray) -> np.ndarray:
    """(R,) rows of the record in which these steps are, or the last one."""
    return np.minimum(np.searchsorted(view.number, steps), len(view.number) - 1)


def faded(view: RunView) -> Iterator[Finding]:
    """Tensors whose gradient fell to next to nothing against what it was, while others' did not."""
    for rows, _ in _judged(view):
        parts = [part[rows.optimizer] for part in (view.early, view.middle) if rows.optimizer in part]
        if not parts or any(part.names != rows.names for part in parts):
            continue
        before = np.fmax.reduce([_median(part.columns["grad_norm"]) for part in parts])
        now = _median(rows.columns["grad_norm"])
        ratio = now / _positive(before)
        others = np.nanmax(now, initial=0.0) / max(np.nanmax(before, initial=0.0), 1e-300)
        names = names_where((now > 0) & (ratio <= GRADIENT_FADED * min(1.0, others)), rows.names)
        if names:
            least = min(names, key=lambda name: ratio[rows.names.index(name)])
            yield Finding(
                "dead_tensor",
                "warning",
                "The gradient of some tensors has vanished",
                f"{count_text(len(names), 'tensor')} ({_listed(names)}): the gradient norm of {least} is "
                f"{ratio[rows.names.index(least)]:.2g} times what it was earlier in the run; others' are as they were.",
                "Look for what comes between these tensors and the loss: a saturated activation, a factor that became "
                "tiny, a branch that is nearly cut off.",
                OF_THE_RUN,
            )


def no_gradient(view: RunView) -> Iterator[Finding]:
    """Parameters that no backward reached at any step that was looked at, though their own norm was measured."""
    frozen = view.meta.get("frozen")
    known_frozen = isinstance(frozen, (list, tuple))
    meant = set(frozen) if isinstance(frozen, (list, tuple)) else set()
    for rows, _ in _judged(view):
        parts = [rows, *(part[rows.optimizer] for part in (view.early, view.middle) if rows.optimizer in part)]
        if any(part.names != rows.names for part in parts):
            continue
        yield from _stopped(rows, parts[1:], meant)
        norms = np.concatenate([part.columns["grad_norm"] for part in parts])
        measured = np.concatenate([part.columns["param_norm"] for part in parts])
        some = ~np.isnan(norms).all(1)  # steps at which others had one
        without = np.isnan(norms[some]).all(0) & _stand_still(measured)
        names = [name for name in names_where(without, rows.names) if name not in meant]
        if np.count_nonzero(some) < 2 * TENSOR_ROWS_LEAST or not names:
            continue
        invariant = _are_biases(names, rows.names, np.nan_to_num(norms).any(0), view.meta.get("parameters"))
        yield Finding(
            "no_gradient",
            "warning" if known_frozen and not invariant else "info",
            "Some parameters never get a gradient",
            f"{len(names)} of {count_text(len(rows.names), 'tensor')} ({_listed(names)}) had no gradient at any of "
            f"{np.count_nonzero(some)} steps looked at, up to {int(rows.steps[-1]):,}"
            + (", though they require one." if known_frozen else "."),
            "Look for a detach(), a no_grad block or a branch that the loss does not depend on; with gradient "
            "checkpointing over frozen inputs call model.enable_input_require_grads(), or use_reentrant=False. Leave "
            "out of the optimizer what is not meant to learn.",
            OF_THE_RUN,
        )


def _are_biases(names: Sequence[str], every: Sequence[str], learns: np.ndarray, shapes: Any) -> bool:
    """Whether these are vectors of modules that learn: the loss does not depend on them, as an energy's own slope."""
    modules = {module_of(name) for name, one in zip(every, learns.tolist(), strict=True) if one}
    return all(_is_vector(name, shapes) and module_of(name) in modules for name in names)


def _stand_still(norms: np.ndarray) -> np.ndarray:
    """(P,) bool: tensors whose own norm (R, P) is the same at all rows. Others are trained at steps in between."""
    known = ~np.isnan(norms).all(0)
    still: np.ndarray = known & (np.fmax.reduce(norms, axis=0) == np.fmin.reduce(norms, axis=0))
    return still


def _stopped(rows: Rows, before: Sequence[Rows], frozen: set[str]) -> Iterator[Finding]:
    """Parameters that had a gradient, and have none in the last quarter of the run."""
    had = np.any([(part.columns["grad_norm"] > 0).mean(0) > 0.5 for part in before], axis=0) if before else np.zeros(0)
    norms = rows.columns["grad_norm"]
    some = ~np.isnan(norms).all(1)
    if not len(had) or np.count_nonzero(some) < TENSOR_ROWS_LEAST:
        return
    names = names_where(had & np.isnan(norms[some]).all(0) & _stand_still(rows.columns["param_norm"]), rows.names)
    if names:
        asked = [name for name in names if name not in frozen]
        yield Finding(
            "no_gradient",
            "info" if len(asked) < len(rows.names) / 2 else "warning",
            "Some parameters get no gradient any more",
            f"{len(names)} of {count_text(len(rows.names), 'tensor')} ({_listed(names)}) had a gradient earlier in the "
            f"run, and none from step {int(rows.steps[0]):,} to {int(rows.steps[-1]):,}"
            + ("." if asked else ": they require none any more."),
            "Fine where they were frozen on purpose. Else look for a requires_grad switched off, a detach() or "
            "a branch that the loss no longer depends on.",
            OF_THE_RUN,
        )


def vanishing(view: RunView) -> Iterator[Finding]:
    """Tensors whose norm fell to nothing against what it was early in the run."""
    for rows, _ in _judged(view):
        before = view.early.get(rows.optimizer)
        if before is None or before.names != rows.names:
            continue
        ratio = _median(rows.columns["param_norm"]) / _positive(_median(before.columns["param_norm"]))
        names = names_where(ratio <= VANISHED, rows.names)
        if names:
            least = min(names, key=lambda name: ratio[rows.names.index(name)])
            shapes = view.meta.get("parameters") or {}
            numbers = all(math.prod(shapes.get(name, (0,))) == 1 for name in names)
            yield Finding(
                "tensors_vanish",
                "info" if numbers else "warning",
                "Some parameters shrink to nothing",
                f"{count_text(len(names), 'tensor')} ({_listed(names)}): the norm of {least} is "
                f"{ratio[rows.names.index(least)]:.2g} times that of the run's beginning.",
                "Fine where a gate or a temperature passes 0."
                if numbers
                else "Lower the weight decay of these tensors, or leave them out of it: their gradients do not "
                "outweigh it.",
                OF_THE_RUN,
            )


def exploding(view: RunView) -> Iterator[Finding]:
    for rows, before in _judged(view):
        if before is None or before.names != rows.names or len(before.steps) < TENSOR_ROWS_LEAST:
            continue
        ratio = _median(rows.columns["grad_norm"]) / _positive(_median(before.columns["grad_norm"]))
        high = names_where(ratio >= TENSOR_EXPLODED, rows.names)
        if high:
            at = rows.names.index(high[0]) if len(high) == 1 else int(np.nanargmax(ratio))
            yield Finding(
                "exploding_tensor",
                "warning",
                "The gradient of some tensors runs away",
                f"{count_text(len(high), 'tensor')} ({_listed(high)}): the gradient norm of {rows.names[at]} is "
                f"{ratio[at]:.2g} times that of the run's middle.",
                "Clip the gradients, lower the learning rate of these tensors, or look at what feeds them.",
                OF_THE_RUN,
            )


def updates(view: RunView) -> Iterator[Finding]:
    for rows, _ in _judged(view):
        yield from _update_ratios(view, rows)


def _update_ratios(view: RunView, rows: Rows) -> Iterator[Finding]:
    active = _trained(view, rows)
    if np.count_nonzero(active) < TENSOR_ROWS_LEAST:
        return
    columns = {name: values[active] for name, values in rows.columns.items()}
    # A tensor that got no gradient at a step (an expert that no token chose) did not move there, and was not meant to.
    reached = columns["grad_norm"] > 0
    changes = np.where(reached, columns["update_norm"], np.nan)
    ratio = _median(changes) / _positive(_median(columns["param_norm"]))
    shapes = view.meta.get("parameters")
    # A vector that starts at zero, as biases do, is rewritten as a whole while it is small.
    vector = np.array([_is_vector(name, shapes) for name in rows.names])
    enough = np.isfinite(changes).sum(0) >= TENSOR_ROWS_LEAST
    high = names_where((ratio >= UPDATE_RATIO_HIGH) & ~vector, rows.names)
    norms = _median(columns["grad_norm"])
    # The bias before a normalization has no slope: its gradient is what rounding leaves.
    rounding = vector & (norms <= ROUNDING_GRADIENT * np.nanmax(norms, initial=0.0))
    tiny = (ratio <= UPDATE_RATIO_LOW) & ~_came_to_rest(view, rows) & ~((ratio == 0) & _has_zero_rate(view, rows))
    low = names_where(tiny & enough & ~rounding, rows.names)
    if high:
        worst = max(high, key=lambda name: ratio[rows.names.index(name)])
        yield Finding(
            "update_ratio_high",
            "warning",
            "Steps are large against the parameters",
            f"{count_text(len(high), 'tensor')} ({_listed(high)}): a step changes {worst} by "
            f"{ratio[rows.names.index(worst)]:.2g} of its own norm; about 0.001 is usual.",
            "Lower the learning rate, or lengthen the warm-up.",
            OF_THE_RUN,
        )
    if low:
        least = min(low, key=lambda name: ratio[rows.names.index(name)])
        yield Finding(
            "update_ratio_low",
            # Gains of normalizations are near 1, which a learning rate for fine-tuning changes by no more than itself.
            "info" if all(_is_vector(name, shapes) for name in low) else "warning",
            "Steps are tiny against the parameters",
            f"{count_text(len(low), 'tensor')} ({_listed(low)}): a step changes {least} by "
            f"{ratio[rows.names.index(least)]:.2g} of its own norm; about 0.001 is usual, and float32 rounds at 6e-8.",
            "Raise the learning rate of these tensors, or keep them in float32 if they are not."
            + _clip_text(view, rows),
            OF_THE_RUN,
        )


def _clip_text(view: RunView, rows: Rows) -> str:
    """What clipping has to do with steps that are tiny."""
    coefficient = view.steps.get(StepColumn(rows.optimizer, "clip_coef").full)
    at = _places(view, rows.steps)
    known = np.empty(0) if coefficient is None else coefficient[at][np.isfinite(coefficient[at])]
    if not len(known) or not np.median(known) <= CLIPPED_TO:
        return ""
    return f" Clipping leaves {float(np.median(known)):.2g} of the gradients: raise max_norm first."


def _came_to_rest(view: RunView, rows: Rows) -> np.ndarray:
    """(P,) bool: tensors whose steps were of a usual length before, by more than learning rates that count can differ:
    their gradient shrank, as where the loss has come down to 0."""
    rested = np.zeros(len(rows.names), bool)
    for part in (view.early.get(rows.optimizer), view.middle.get(rows.optimizer)):
        if part is not None and part.names == rows.names:
            before = _median(part.columns["update_norm"]) / _positive(_median(part.columns["param_norm"]))
            rested |= before >= UPDATE_RATIO_LOW / LR_IDLE**2
    return rested


def _has_zero_rate(view: RunView, rows: Rows) -> bool:
    """Whether a group of the optimizer stands still, for which another rule has a word."""
    at = _places(view, rows.steps)
    return any(
        (lr[at] == 0).all() for column, lr in columns_named(view.steps, "lr") if column.optimizer == rows.optimizer
    )


def _trained(view: RunView, rows: Rows) -> np.ndarray:
    """(R,) bool: where the learning rate was not that of a schedule's end."""
    lr = view.steps.get(StepColumn(rows.optimizer, "lr").full)
    if lr is None or not np.isfinite(lr).any():
        return np.ones(len(rows.steps), bool)
    at = _places(view, rows.steps)
    return np.asarray(~(lr[at] < LR_IDLE * np.nanmax(lr)))


def updates_lost(view: RunView) -> Iterator[Finding]:
    """Steps of Adam below half a unit in the last place of 16-bit parameters: they arrive in part, or never."""
    shapes = view.meta.get("parameters")
    if not isinstance(shapes, Mapping):
        return
    for rows, _ in _judged(view):
        optimizer = optimizer_settings(view.meta, rows.optimizer)
        if "Adam" not in str(optimizer.get("class")):
            continue
        dtypes = optimizer.get("dtypes")
        if not isinstance(dtypes, Mapping) or not dtypes or set(dtypes) - set(_ULP):
            continue
        lr = view.steps.get(StepColumn(rows.optimizer, "lr").full)
        if lr is None:
            continue
        ulp = max(_ULP[dtype] for dtype in dtypes)
        rate = float(np.nanmedian(lr[_places(view, rows.steps)]))
        elements = np.array([math.prod(shapes.get(name) or (0,)) for name in rows.names], float)
        with np.errstate(divide="ignore", invalid="ignore"):
            size = _median(rows.columns["param_norm"]) / np.sqrt(elements)
            moved = _median(rows.columns["update_norm"]) / np.sqrt(elements)
        lost = (rate < size * ulp / 2) & (moved < HALF_LOST * rate) & (_median(rows.columns["grad_norm"]) > 0)
        names = names_where(lost, rows.names)
        if names:
            yield Finding(
                "updates_lost",
                "warning",
                "Updates are rounded away",
                f"{count_text(len(names), 'tensor')} ({_listed(names)}) are {', '.join(dtypes)}, in which a number of "
                f"their size moves by {ulp:.2g} of itself or not at all: a learning rate of {rate:.2g} is less.",
                "Keep the parameters in float32 (autocast computes in 16 bits), or use stochastic rounding.",
                OF_THE_RUN,
            )


_ULP = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""The least relative change of a number, by type."""


def headroom(view: RunView) -> Iterator[Finding]:
    for rows, before in _judged(view):
        yield from _headroom(rows, before)


def _headroom(rows: Rows, before: Rows | None) -> Iterator[Finding]:
    if before is None or len(before.steps) < TENSOR_ROWS_LEAST:
        return
    if not all((_largest(each) > 0).any() for each in (rows, before)):
        return
    with np.errstate(invalid="ignore", divide="ignore"):
        late, early = (np.log2(np.nanmedian(_largest(each))) for each in (rows, before))
        scale_late, scale_early = (np.log2(np.median(each.scale)) for each in (rows, before))
    if not np.isfinite([late, early, scale_late, scale_early]).all():
        return
    grew, fell = float(late - early), float(scale_early - scale_late)
    if not (grew >= HEADROOM_LOST and fell >= HEADROOM_LOST / 2):
        return
    steps = float(np.median(rows.steps) - np.median(before.steps))
    left = int(max(scale_late, 0) / fell * steps) if fell > 0 else 0
    yield Finding(
        "headroom_running_out",
        "warning",
        "Gradients grow, and the loss scale comes down for them",
        f"From the run's middle to its last quarter the largest gradient grew {2**grew:.2g}-fold and the scale fell "
        f"from {scale_text(float(2**scale_early))} to {scale_text(float(2**scale_late))}; at this pace it is 1 about "
        f"{count_text(left, 'step')} from now.",
        "Lower the learning rate or clip harder before the scale is used up; bfloat16 has no such limit.",
        OF_THE_RUN,
    )


def _largest(rows: Rows) -> np.ndarray:
    """(R,) over the tensors."""
    largest: np.ndarray = np.fmax.reduce(rows.columns["absmax"], axis=1)
    return largest


def not_float16(view: RunView) -> Iterator[Finding]:
    if any(_is_of_float16(event) for event in view.of("skip")):
        return  # what the tables hold was written to after backward
    for rows, _ in _judged(view):
        yield from _not_float16(rows)


def _is_of_float16(skip: Event) -> bool:
    """Whether a skip was an overflow at a scale that no other type overflows at."""
    overflow = skip.cause == "growth_probe" or (skip.cause == "bad_batch" and skip.severity == "info")
    return overflow and as_float(skip.data.get("loss_scale")) < EXTREME_SCALE


def _not_float16(rows: Rows) -> Iterator[Finding]:
    if not np.isfinite(rows.scale).all() or not (rows.scale > 1).all():
        return
    over = rows.columns["overflow/float16"]
    known = ~np.isnan(over).all(0)
    beyond = (np.nan_to_num(over) > 0).mean(0)[known] >= 0.5
    if len(beyond) and beyond.mean() >= NOT_FLOAT16_SHARE:
        yield Finding(
            "scaler_without_float16",
            "warning",
            "A GradScaler, and gradients that are not float16",
            f"{int(beyond.sum())} of {count_text(len(beyond), 'tensor')} had finite gradients beyond float16 at a "
            f"scale of {scale_text(float(rows.scale[-1]))}: they were computed in bfloat16 or float32.",
            "Drop the GradScaler, or disable it: these types need no loss scale, and the scale grows without end.",
            OF_THE_RUN,
        )


def underflowing(view: RunView) -> Iterator[Finding]:
    record = view.record
    histograms: Any = getattr(record, "histograms", None)
    number = record.steps.get("step")
    if histograms is None or number is None or not len(number) or "gradient" not in histograms:
        return
    series = histograms["gradient"]
    middle = (int(number[0]) + int(number[-1])) / 2
    steps = series.steps[(series.steps >= middle) & (series.steps <= number[-1])]
    scale = scale_of(record, steps)
    rows = np.searchsorted(number, steps)
    known = np.isfinite(scale) & (scale > 0)
    known &= ~record.steps.get("skipped", np.zeros(len(number), bool))[np.minimum(rows, len(number) - 1)]
    steps, scale = steps[known], scale[known]
    if len(steps) < TENSOR_ROWS_LEAST:
        return
    chosen = np.unique(np.linspace(0, len(steps) - 1, TENSOR_ROWS).round().astype(int))
    counts = np.array([_whole(series.at(step)) for step in steps[chosen].tolist()])  # (R, BINS)
    lost = [_lost(each[None], float(factor)) for each, factor in zip(counts, scale[chosen], strict=True)]
    share, now = float(np.median(lost)), float(np.median(scale[chosen]))
    if not share >= UNDERFLOW_SHARE:
        return
    evidence = (
        f"At a scale of {scale_text(now)}, {100 * share:.2g} % of the gradient's elements (zeros not counted) are at "
        "or below the last three bits of float16; what is smaller has been rounded to zero before anybody saw it."
    )
    top = _top_bin(counts)
    powers = range(math.floor(math.log2(now)) + 1, 127)
    cure = next((power for power in powers if _lost(counts, 2.0**power) <= CURED_SHARE), None)
    fits = math.floor(math.log2(FLOAT16.maximum)) - top
    if cure is not None and cure <= fits:
        remedy = (
            f"A scale of {scale_text(2.0**cure)} cures it, and the largest gradient still fits up to "
            f"{scale_text(2.0**fits)}: start there (init_scale), or lower growth_interval so that the scale gets there."
        )
    else:
        remedy = (
            f"No scale holds both ends: the largest gradient fits up to {scale_text(2.0**fits)} only. Use bfloat16, or "
            "bring the parts of the loss to one size."
        )
    yield Finding("gradient_underflow", "warning", "Gradients underflow float16", evidence, remedy, OF_THE_RUN)


def _whole(table: Any) -> np.ndarray:
    """(BINS,) of all tensors: the rows of whole models, one an optimizer, else all rows."""
    whole = [at for at, name in enumerate(table.names) if name.endswith("*")]
    counts: np.ndarray = table.counts[whole or slice(None)].sum(0)
    return counts


def _lost(counts: np.ndarray, scale: float) -> float:
    """Share of what is finite and not zero that float16 flushes or holds with three bits or fewer. (R, BINS) in all."""
    elements = counts.sum(0)
    elements = np.where((np.arange(len(elements)) > ZERO) & (np.arange(len(elements)) < INF), elements, 0)
    if not elements.any():
        return 0.0
    return float(underflow(elements, FLOAT16, scale / 2**EDGE_BINADES).low)


def _top_bin(counts: np.ndarray) -> int:
    """The power of two that the largest finite elements lie at or below."""
    occupied = np.flatnonzero(counts.sum(0)[1:INF])
    return int(occupied[-1]) + 1 - 127 if len(occupied) else 0


def names_where(chosen: np.ndarray, names: Sequence[str]) -> list[str]:
    return [name for name, one in zip(names, chosen.tolist(), strict=True) if one]


def _median(values: np.ndarray) -> np.ndarray:
    """(P,) over the rows; NaN where nothing is known."""
    known = np.isfinite(values).any(0)
    median = np.full(values.shape[1], np.nan)
    if known.any():
        finite = np.where(np.isfinite(values[:, known]), values[:, known], np.nan)
        median[known] = np.nanmedian(finite, axis=0)
    return median


def _positive(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.nan)


def _is_vector(name: str, shapes: Mapping[str, Sequence[int]] | None) -> bool:
    shape = (shapes or {}).get(name)
    return len(shape) < 2 if shape is not None else name.rsplit(".", 1)[-1] == "bias"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
