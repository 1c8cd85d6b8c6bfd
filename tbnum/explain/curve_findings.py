"""Findings on spikes of the loss and of gradient norms, and on what came before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tbnum.explain.finding import Finding, steps_of
from tbnum.explain.led_here import Quantity, longest_norms, what_led_here
from tbnum.explain.spikes import SpikeFacts
from tbnum.explain.thresholds import (
    BASELINE,
    BEFORE,
    LED_DEVIATIONS,
    LR_ROSE,
    NORM_EXPLODED,
    NORM_ROSE,
    ONE_STEP,
    SLOW_BACK,
    SPIKES_RATE,
    SPIKES_WARNING,
    WINDOW_LEAST,
)
from tbnum.explain.view import RunView
from tbnum.explain.words import count_text, number_text
from tbnum.log.columns import columns_named

__all__ = ["exploding_norms", "loss_spikes"]

REGULAR = 0.1  # by which the distances of periodic spikes may differ
EXAMINED = 100  # places at which something worse happened that are looked at


def loss_spikes(view: RunView) -> Iterator[Finding]:
    spikes = view.spikes
    if not spikes:
        return
    worst = max(spikes, key=lambda spike: (spike.grave, spike.lasting, spike.peak - spike.usual))
    evidence = (
        f"{count_text(len(spikes), 'spike')}, the first at step {spikes[0].step:,}; the worst at step "
        f"{worst.peak_step:,}: loss {number_text(worst.peak)} against a usual {number_text(worst.usual)}"
    )
    if worst.lasting:
        evidence += f", and it stayed high for the next {BASELINE} steps"
    elif worst.back_after is not None:
        evidence += f", back after {count_text(worst.back_after, 'step')}"
    if worst.schedule:
        evidence += "; the learning rate had gone back up there"
    before, remedy = _what_preceded(view, worst)
    evidence += f". Before it: {before}."
    if worst.recurs:
        evidence += " Such blocks recur, and end as they begin: batches of another kind."
        remedy = "Nothing to do where the data comes in that order (sets of data, lengths, epochs). Else shuffle it."
    grave = any(spike.grave for spike in spikes) or _frequent(spikes, len(view.number))
    title = "The loss jumped and did not come back" if worst.lasting else "The loss had spikes"
    steps = steps_of(step for spike in spikes for step in (spike.step, spike.peak_step))
    if len(steps) and worst.peak_step not in steps:
        steps = steps_of([*steps[:-1], worst.peak_step])
    yield Finding("loss_spike", "warning" if grave else "info", title, evidence, remedy, steps)


def _frequent(spikes: Sequence[SpikeFacts], steps: int) -> bool:
    """Whether those that took a while to come back are a habit, by their rate, and not a schedule's own rhythm."""
    spikes = [spike for spike in spikes if not spike.schedule and not spike.recurs]
    longer = [spike for spike in spikes if spike.back_after is None or spike.back_after > ONE_STEP]
    if len(longer) < SPIKES_WARNING or len(longer) < SPIKES_RATE * steps:
        return False
    apart = np.diff([spike.step for spike in longer])
    return bool((np.abs(apart - np.median(apart)) > max(1.0, REGULAR * float(np.median(apart)))).any())


def _what_preceded(view: RunView, spike: SpikeFacts) -> tuple[str, str]:
    """What the record has of the steps before a spike, and what to do about it."""
    step = spike.step
    reported: list[str] = []
    remedies: list[str] = []
    for quantity in what_led_here(view.record, step).quantities if step > int(view.number[0]) else ():
        words = _in_words(quantity)
        if words is not None:
            reported.append(words[0])
            remedies.append(words[1])
    if not remedies:
        slowly = _rate_rose_slowly(view, step)
        reported += [slowly[0]] if slowly else []
        remedies += [slowly[1]] if slowly else []
    near = [event for event in view.events if step - BEFORE <= event.step <= step]
    skips = [event for event in near if event.kind == "skip"]
    if skips:
        causes = ", ".join(sorted({event.cause or "unknown" for event in skips}))
        reported.append(f"{count_text(len(skips), 'skip')} ({causes})")
    reported += [words for kind, words in _EVENTS if any(event.kind == kind for event in near)]
    notes = [str(event.data.get("text", "")) for event in near if event.kind == "annotation"]
    reported += [f"a note, {text!r}" for text in notes[:1]]
    no_batch = spike.lasting or (spike.back_after is not None and spike.back_after > SLOW_BACK)
    if not reported and no_batch:
        remedy = f"If the data or the objective changed at step {step:,} on purpose, note it with monitor.annotate(). "
        return "nothing in the record", remedy + "Else look at the batches from there on (labels, lengths, outliers)."
    if not reported:
        return "nothing in the record", f"Look at the batch of step {step:,} (labels, lengths, outliers)."
    return "; ".join(reported), " ".join(
        dict.fromkeys(remedies)
    ) or f"Look at the batch of step {step:,} in that light."


def _rate_rose_slowly(view: RunView, step: int) -> tuple[str, str] | None:
    """A learning rate that is the highest so far, and grew by half over more steps than `BEFORE`."""
    row = int(np.searchsorted(view.number, step))
    begin = max(0, row - 4 * BEFORE)
    for column, lr in columns_named(view.steps, "lr"):
        if not column.group and row and lr[row] >= np.nanmax(lr[:row]) and lr[row] > LR_ROSE * lr[begin] > 0:
            whose = f" of {column.optimizer}" if column.optimizer else ""
            first, now = (number_text(float(lr[place])) for place in (begin, row))
            text = f"the learning rate{whose} rose from {first} to {now} since step {int(view.number[begin]):,}"
            return text, "Lengthen the warm-up or lower the peak of the learning rate."
    return None


_EVENTS = (
    ("resume", "the run was continued from a checkpoint"),
    ("nonfinite_step", "a step was taken on a non-finite gradient"),
    ("scale_set", "the loss scale was set by hand"),
)


def _in_words(quantity: Quantity) -> tuple[str, str] | None:
    """What a quantity did before a spike, and what to do about it; None for what stayed near its usual, or fell."""
    if quantity.deviations < LED_DEVIATIONS or not quantity.value > quantity.usual:
        return None
    whose = f" of {quantity.optimizer}" if quantity.optimizer else ""
    times = quantity.value / quantity.usual if quantity.usual > 0 else 0.0
    at = f"at step {quantity.at_step:,}"
    if quantity.name == "lr" and times > LR_ROSE:
        text = f"the learning rate{whose} rose from {number_text(quantity.usual)} to {number_text(quantity.value)} {at}"
        return text, "Lengthen the warm-up or lower the peak of the learning rate."
    if quantity.name == "grad_norm" and times > NORM_ROSE:
        text = f"the gradient norm{whose} rose to {times:.2g} times the usual {at}"
        return text, "Clip the gradients at a few times their usual norm."
    if quantity.name == "update_ratio" and times > NORM_ROSE:
        text = f"the updates{whose} rose to {times:.2g} times their usual length {at}"
        return text, "Lower the learning rate, or lengthen the warm-up."
    if quantity.name == "tensor_grad_norm" and times > NORM_EXPLODED:
        return f"the gradient of {quantity.tensor} rose to {times:.2g} times the usual {at}", ""
    return None


def exploding_norms(view: RunView) -> Iterator[Finding]:
    """Norms far beyond the usual on the way to something worse."""
    worse = [(spike.step, "the loss spike") for spike in view.spikes if spike.grave]
    worse += [(event.step, "the scale collapsed") for event in view.of("scale_collapse")]
    nonfinite = [event.step for event in view.events if event.cause == "forward_nonfinite"]
    worse += [(step, "the loss was not finite") for step in nonfinite[:1]]
    worse += [(event.step, "a non-finite gradient reached the parameters") for event in view.of("nonfinite_step")]
    for column, norms in columns_named(view.steps, "grad_norm"):
        skips, norms = column.beside("skipped"), longest_norms(view.steps, column, norms)
        looked_at = [_exploded(view, norms, skips, step, what) for step, what in sorted(worse)[:EXAMINED]]
        found = [each for each in looked_at if each is not None]
        if not found:
            continue
        step, what, before, norm, usual = found[0]
        whose = f" of {column.optimizer}" if column.optimizer else ""
        evidence = (
            f"The gradient norm{whose} was {number_text(norm)} at step {before[0]:,}, "
            f"{norm / usual:.2g} times the usual {number_text(usual)}; "
            f"{count_text(step - before[0], 'step')} later, at step {step:,}: {what}."
        )
        remedy = f"Clip the gradients at a few times {number_text(usual)}, or lower the learning rate there."
        at_steps = steps_of(at for step, _, before, *_ in found for at in (*before, step))
        yield Finding("exploding_norm", "warning", "Gradient norms exploded before it", evidence, remedy, at_steps)


def _exploded(
    view: RunView, norms: np.ndarray, skips: str, step: int, what: str
) -> tuple[int, str, list[int], float, float] | None:
    """The steps of the `BEFORE` before `step` whose norm was far beyond that of those before them."""
    end = int(np.searchsorted(view.number, step))
    begin = int(np.searchsorted(view.number, step - BEFORE))
    skipped = view.steps.get(skips, view.skipped)
    if begin < BASELINE // 2:  # early in a run
        begin = end // 2
    usual = _median(norms[max(0, begin - BASELINE) : begin], skipped[max(0, begin - BASELINE) : begin])
    window = norms[begin:end]
    with np.errstate(invalid="ignore"):
        high = np.flatnonzero(np.isfinite(window) & ~skipped[begin:end] & (window > NORM_EXPLODED * usual))
    if not len(high) or not usual > 0:  # many times nothing is no measure
        return None
    return step, what, view.number[begin + high].tolist(), float(window[high[0]]), usual


def _median(norms: np.ndarray, skipped: np.ndarray) -> float:
    known = norms[np.isfinite(norms) & ~skipped]
    return float(np.median(known)) if len(known) >= WINDOW_LEAST else float("nan")
