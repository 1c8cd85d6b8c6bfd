"""Why a step was skipped, in words: the table of causes, a row each.

A cause is judged by `rules`; what it means, how grave it is, and how to say it stand here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from tbnum.explain.ahead import Later
from tbnum.explain.facts import Facts, Known
from tbnum.explain.nonfinite import Since
from tbnum.explain.phrases import as_inferred, subject, tensors
from tbnum.explain.ranks import guilty_words
from tbnum.explain.rules import Collapse, Skip
from tbnum.explain.thresholds import EXTREME_SCALE, OUTLYING_LOSS
from tbnum.explain.words import count_text, number_text, scale_text
from tbnum.log.schema import Event

__all__ = [
    "BACKWARD_LOOK",
    "BACKWARD_REMEDY",
    "CAUSE",
    "CAUSES",
    "EDGE_REMEDY",
    "SET_BELOW_ONE",
    "explained_collapse",
    "explained_skip",
    "forward_remedy",
    "spoiled_since",
    "update_remedy",
    "update_text",
]


class Case(NamedTuple):
    """A skip, its verdict, and what came later (None while the run goes on)."""

    event: Known
    skip: Skip
    later: Later | None

    @property
    def facts(self) -> Facts:
        return self.event.facts

    @property
    def scale(self) -> str:
        return scale_text(self.facts.loss_scale)


@dataclass(frozen=True)
class Cause:
    severity: str
    meaning: str
    words: Callable[[Case], tuple[str, str]]  # why, and what to do


def explained_skip(event: Known, skip: Skip, later: Later | None) -> Event:
    """A skip in words. `later` is None while the run goes on."""
    facts, case = event.facts, Case(event, skip, later)
    cause = CAUSE[skip.cause]
    why, remedy = cause.words(case)
    if skip.cause in ("bad_batch", "forward_nonfinite"):
        why += _which_micro_batch(facts)
    why += guilty_words(event.data)
    parts = [f"{_skipped(event)}: {why}"]
    new_scale = later.new_scale if later else facts.new_scale
    if not math.isnan(facts.loss_scale) and not math.isnan(new_scale) and facts.loss_scale != new_scale:
        text = f"scale {scale_text(facts.loss_scale)} -> {scale_text(new_scale)}"
        if later and later.recovered_after is not None:
            text += f", back after {count_text(later.recovered_after, 'step')}"
        parts.append(text)
    if skip.injected is not None:
        parts.append(f"injected on purpose: {skip.injected}")
        remedy = "Nothing to do: this batch was spoiled on purpose."
    return replace(
        event.event,
        severity=_severity(case),
        cause=skip.cause,
        message=as_inferred(facts, "; ".join(parts) + "."),
        remedy=remedy,
    )


def _severity(case: Case) -> str:
    if case.skip.cause == "scale_warmup" and case.facts.loss_scale >= EXTREME_SCALE:
        return "warning"
    if case.skip.cause == "dropped_by_loop" and (case.facts.loss_nonfinite or case.facts.nonfinite_tensors > 0):
        return "warning"
    harmless = _at_edge(case) or _finds_its_height(case) or _either_once(case) or case.skip.goes_on
    return "info" if harmless else CAUSE[case.skip.cause].severity


def explained_collapse(event: Event, collapse: Collapse, later: Later | None) -> Event:
    """A collapse, as an event right behind the skip `event` that made it clear."""
    skips = later.skips_in_row if later else collapse.skips
    low = later.lowest_scale if later and not math.isnan(later.lowest_scale) else collapse.new_scale
    why, remedy = {
        "forward_nonfinite": (
            "the loss was not finite",
            "Stop the run, find where the forward pass first yields NaN or inf, and restart from a checkpoint "
            "with finite parameters.",
        ),
        "nonfinite_parameters": (
            "the parameters are not finite",
            f"Stop the run and restore a checkpoint from before step {collapse.from_step} whose parameters are finite.",
        ),
        "backward_nonfinite": (
            "the gradients hold NaN at every scale although the loss is finite",
            f"{BACKWARD_REMEDY} {NOT_ZEROED}",
        ),
    }.get(
        collapse.cause,
        (
            "the gradients overflow at every scale although the loss is finite",
            f"{BACKWARD_REMEDY} {NOT_ZEROED}",
        ),
    )
    row = f"{count_text(skips, 'skipped step')} in a row (from step {collapse.from_step})"
    if collapse.old_scale == 0:
        message = f"The loss scale was {scale_text(0)} at {row}: no gradient can be divided by it."
        remedy = ZERO_REMEDY
    else:
        message = f"The loss scale fell from {scale_text(collapse.old_scale)} to {scale_text(low)} over {row}: {why}."
    data = {"from_step": collapse.from_step, "skips": skips, "old_scale": collapse.old_scale, "new_scale": low}
    return Event(
        event.step, event.wall_time, "scale_collapse", "error", event.optimizer, collapse.cause, message, remedy, data
    )


def _skipped(event: Known) -> str:
    """Who was skipped; how many at least, where not every step was logged."""
    facts = event.facts
    if facts.within == 1:
        return f"{subject(event)} was skipped"
    were = "was" if facts.at_least == 1 else "were"
    likely = f" ({facts.halvings} if each skip halved the scale)" if facts.halvings else ""
    if facts.at_least == facts.within:
        return f"All {facts.within} steps up to {event.step:,} were skipped"
    return f"At least {facts.at_least} of the {facts.within} steps up to {event.step:,} {were} skipped{likely}"


def _which_micro_batch(facts: Facts) -> str:
    """Of several in a step the one whose loss is not finite, or stands out."""
    losses = facts.losses
    if len(losses) < 2:
        return ""
    broken = [at for at, loss in enumerate(losses) if not math.isfinite(loss)]
    if not broken:
        at = max(range(len(losses)), key=losses.__getitem__)
        others = sorted(losses[:at] + losses[at + 1 :])
        broken = [at] if losses[at] > OUTLYING_LOSS * max(others[len(others) // 2], 0) else []
    if not broken:
        return ""
    at = broken[0]
    reported = f"; the loss of micro-batch {at + 1} of {facts.micro_batches:.0f} was {number_text(losses[at])}"
    return reported + (f", and {len(broken) - 1} more were not finite" if len(broken) > 1 else "")


def _held(skip: Skip) -> str:
    return f"{'about ' if skip.about else ''}{count_text(skip.held, 'step')}"


def _scale_warmup(case: Case) -> tuple[str, str]:
    skip, later = case.skip, case.later
    height = "to which it had grown while every gradient was 0" if skip.after_zeros else "that no step had passed yet"
    why = f"{tensors(case.facts, 'overflowed')} at a scale of {case.scale} {height}"
    if skip.loss_follows_scale:
        why = (
            f"the loss was {number_text(case.facts.loss)} at a scale of {case.scale}, and finite once the scale had "
            "come down: a part of it follows the scale, as where autograd.grad() of the scaled loss overflows"
        )
    if skip.in_row > 1:
        why += f" (skip {skip.in_row} in a row)"
    if case.facts.loss_scale >= EXTREME_SCALE:
        return why, "Begin with a scale that gradients survive: GradScaler(init_scale=2.0**16)."
    if later is None or later.ongoing or math.isnan(later.lowest_scale):
        return why, "Nothing to do unless it goes on: the scaler halves the scale until the gradients fit."
    settled = scale_text(later.lowest_scale)
    return why, f"Nothing to do: the scale settled at {settled} after {count_text(later.skips_in_row, 'skip')}."


def _growth_probe(case: Case) -> tuple[str, str]:
    skip, overflowed = case.skip, tensors(case.facts, "overflowed")
    why = f"the scaler had just tried the higher scale {case.scale}, at which {overflowed}"
    if skip.held > 0:
        why += f" after {_held(skip)}"
    if skip.held_before_growth > 0:
        why += f"; the scale below had held for {count_text(skip.held_before_growth, 'step')}"
    every = f"every {count_text(skip.growth_interval, 'step')}" if skip.growth_interval > 1 else "every step"
    if skip.loss_follows_scale:
        why += (
            f"; the loss was {number_text(case.facts.loss)}, as a part of it is made of gradients that carry the scale"
        )
    if not math.isnan(skip.fallen):
        return why, _fallen_remedy(case)
    if not skip.growth_interval:
        return why, "Nothing to do: the scaler tries a higher scale from time to time."
    return why, f"Nothing to do: the scaler tries a higher scale {every} without overflow."


def _bad_batch(case: Case) -> tuple[str, str]:
    facts, skip = case.facts, case.skip
    why = f"{tensors(facts, 'overflowed')} at a scale of {case.scale}"
    if skip.held_before_probe > 0:
        probe = f"a probe of {scale_text(skip.failed_probe)} failed"
        why += f" that had held for {count_text(skip.held_before_probe, 'step')}"
        more = f", and for {'about ' if skip.about else ''}{skip.held:,} more since"
        why += f"{more if skip.held else ' before'} {probe}"
    elif skip.held > 0:
        why += f" that had held for {_held(skip)}"
        why += " only, early on" if skip.early else ""
    elif skip.in_row > 1:
        why += f" too (skip {skip.in_row} in a row)"
    if not math.isnan(facts.loss):
        why += f"; loss {number_text(facts.loss)}"
        if not math.isnan(skip.recent_loss):
            why += f" against a recent median of {number_text(skip.recent_loss)}"
    if not math.isnan(skip.fallen):
        return f"{why}; a scale of {scale_text(skip.fallen)} had held before", _fallen_remedy(case)
    if skip.early:
        remedy = "Nothing to do if it stays among the first steps: the scale is still finding its height. "
        return why, remedy + "A lower init_scale spares them."
    if skip.goes_on:
        remedy = (
            f"Look at what changed at step {case.event.step}, or right before it (the data, the loss, the parameters): "
            "this batch is not the only one."
        )
        return f"{why}; the losses that follow are as high", remedy
    if _at_edge(case):
        return f"{why}; nothing points to a bad batch", EDGE_REMEDY
    remedy = (
        f"Look at the batch of step {case.event.step} (labels, lengths, outliers); "
        "if such skips recur, clip the gradients harder or lower the learning rate."
    )
    if facts.nan > 0 and facts.inf == 0:
        remedy += " NaN without an inf may be backward's own: monitor.replay(closure) names the operation."
    return why, remedy


def _fallen_remedy(case: Case) -> str:
    return (
        f"The gradients overflow at a scale far below {scale_text(case.skip.fallen)}, which had held: they have grown, "
        "or a batch in a few is bad. Lower the learning rate or clip harder before the scale is used up; bfloat16 has "
        "no such limit."
    )


EDGE_REMEDY = (
    "Nothing to do: the scale was at its edge, its headroom spent, and nothing is known to be wrong with the batch. "
    "Such skips are the price of a scale this high; only if they recur, clip the gradients harder, or let the scale "
    "grow less often (a longer growth_interval)."
)


def _at_edge(case: Case) -> bool:
    """Whether the scale alone explains a skip: then the next one, lower, held."""
    skip, later = case.skip, case.later
    return skip.at_edge and (later is None or later.skips_in_row <= skip.in_row)


def _finds_its_height(case: Case) -> bool:
    """Whether a first scale is too high, which a few steps had passed: nothing else was wrong with this one."""
    skip = case.skip
    usual = not math.isnan(case.facts.loss) and not skip.loss_is_alone
    return skip.cause == "bad_batch" and skip.early and skip.injected is None and usual


def _either_once(case: Case) -> bool:
    """Whether a single step may have been an overflow of a scale at its edge: then the next one, lower, held."""
    return case.skip.either and (case.later is None or case.later.skips_in_row == 1)


def _forward_nonfinite(case: Case) -> tuple[str, str]:
    why = f"the loss itself was {number_text(case.facts.loss)}, so no loss scale helps"
    if case.facts.loss_follows_scale:
        why = (
            f"the loss was {number_text(case.facts.loss)}; a part of it is made of gradients that carried the scale of "
            f"{case.scale}, which may have overflowed, or the forward pass has"
        )
    if case.skip.in_row > 1:
        why += f" (skip {case.skip.in_row} in a row)"
    return why, forward_remedy(case.event.step)


def forward_remedy(step: int) -> str:
    return (
        f"Check the inputs of step {step} and the forward pass: log(0), a division by 0, "
        "or a float16 value past 65504. monitor.replay(closure) names the module and the operation."
    )


def _nonfinite_parameters(case: Case) -> tuple[str, str]:
    if case.skip.since is not None:
        return spoiled_since(case.skip.since)
    why = "the parameters are not finite, so neither another batch nor another scale helps"
    return why, f"Restore a checkpoint from before step {case.event.step} whose parameters are finite."


def spoiled_since(since: Since) -> tuple[str, str]:
    """Why, and what to do, where the parameters became non-finite before."""
    step = since.step
    if not since.by_update:
        why = f"the parameters have been non-finite since step {step}, where the optimizer took non-finite gradients"
        return why, f"Restore a checkpoint from before step {step}: nothing that follows can be trained."
    return f"the parameters have been non-finite since {update_text(since)}", update_remedy(since)


def update_text(since: Since) -> str:
    """Of an update that made the parameters non-finite: which it was, as far as that was measured."""
    after, by = since.after, since.step
    if since.runaway is not None:
        at, norm = since.runaway
        return (
            f"{_the_update(after, by)}: the gradients had run away, to a norm of {number_text(norm)} at step {at:,}, "
            "more than an optimizer can make finite steps of"
        )
    if after >= by:
        return f"a write to them after the update of step {by}, which left them finite"
    return f"{_the_update(after, by)}, whose gradients were finite"


def _the_update(after: int, by: int) -> str:
    return (
        f"the update of step {by}" if after == by - 1 else f"an update between step {max(after + 1, 0)} and step {by}"
    )


def update_remedy(since: Since) -> str:
    after, by = since.after, since.step
    if since.runaway is not None:
        return (
            "Restore a checkpoint from before the loss or the gradient norm left what was usual, and lower the "
            "learning rate or clip the gradients; look at the batch with which it began."
        )
    if after + 1 > 0:
        restore = f"Restore a checkpoint from before step {after + 1}: later ones hold the spoiled parameters."
    elif by > 0:
        restore = f"Restore the newest checkpoint whose parameters are finite: none since step {by} is such a one."
    else:
        restore = "Begin again: no checkpoint of this run has finite parameters."
    return (
        f"{restore} Look at the optimizer's own arithmetic: an eps of 0, or one that is 0 in float16 (1e-8 is), a "
        "state that overflows, a learning rate that is not finite; and at code that writes to the parameters."
    )


def _backward_nonfinite(case: Case) -> tuple[str, str]:
    facts, skip = case.facts, case.skip
    why = f"{tensors(facts, 'held NaN')} that no overflow made: it arose inside backward"
    if not math.isnan(facts.loss):
        why += f", although the loss was finite ({number_text(facts.loss)})"
    if not math.isnan(facts.loss_scale):
        why += f", at a scale of {case.scale}"
        why += f" that had held for {_held(skip)}" if skip.held > 0 else ""
    if skip.in_row > 1:
        why += f" (skip {skip.in_row} in a row)"
    return why, BACKWARD_REMEDY


def _dropped_by_loop(case: Case) -> tuple[str, str]:
    facts = case.facts
    if facts.loss_nonfinite:
        why = f"the loop gave the attempt up, whose loss was {number_text(facts.loss)}"
        return why, forward_remedy(case.event.step)
    if facts.nonfinite_tensors > 0:
        why = f"the loop gave the attempt up, of which {tensors(facts, 'held NaN or inf')}"
        return why, "Fine if meant. monitor.replay(closure) names the operation that a NaN or inf came from."
    return "the loop looked at the gradients and gave the attempt up", "Fine if meant."


def _unknown(case: Case) -> tuple[str, str]:
    facts, overflowed = case.facts, tensors(case.facts, "overflowed")
    if case.skip.collapsed:
        row = f"skip {case.skip.in_row} in a row"
        return f"the loss was finite, yet {overflowed} even at a scale of {case.scale} ({row})", BACKWARD_REMEDY
    if facts.loss_scale == 0:
        return f"no gradient can be divided by a scale of {case.scale}", ZERO_REMEDY
    if math.isinf(facts.loss_scale) or facts.loss_scale < 0:
        return f"no gradient survives a scale of {case.scale}", EXTREME_REMEDY
    if facts.inferred:
        return _unknown_in_scalars(case)
    if case.skip.either:
        why = f"{tensors(facts, 'held NaN')} at a scale of {case.scale}"
        why += f" that had held for {_held(case.skip)}" if case.skip.held > 0 else ""
        why += ": it overflowed, or backward made NaN, which the gradients do not say"
        why += f"; loss {number_text(facts.loss)}"
        if not math.isnan(case.skip.recent_loss):
            why += f" against a recent median of {number_text(case.skip.recent_loss)}"
        return why, f"Nothing to do if it stays alone: the scale was at its edge. If it recurs: {BACKWARD_REMEDY}"
    why = f"{overflowed} at a scale of {case.scale}, and the record begins too late to say why"
    return why, "Nothing to do if it stays alone; keep the log in the run's folder when it is resumed."


def _unknown_in_scalars(case: Case) -> tuple[str, str]:
    remedy = "Log the loss scale at every step, or use tbnum.wrap(), which records why."
    if math.isnan(case.facts.loss_scale):
        norm = number_text(case.facts.grad_norm)
        return f"the gradient norm was {norm}, and finite values follow; no loss scale is logged to say why", remedy
    if case.facts.how == "grad_norm":
        norm = number_text(case.facts.grad_norm)
        return f"the gradient norm was {norm}, and the scale of {case.scale} did not come down for it", remedy
    return f"gradients overflowed at a scale of {case.scale}, and the log has too few steps to say why", remedy


EXTREME_REMEDY = (
    "Set a scale that gradients survive, scaler.update(2.0**16): an infinite scale never comes down by itself. Look "
    "for where it was set."
)

ZERO_REMEDY = (
    "Stop the run: a scale of 0 never grows again. Restart from a checkpoint with finite parameters, and look for what "
    "the scale fell for."
)

SET_BELOW_ONE = (
    "Look for what set it: a scale below 1 makes gradients smaller, and what float16 does not hold of them is lost. "
    "scaler.update(2.0**16) is a usual one."
)

BACKWARD_LOOK = (
    "Look for an operation whose backward gives NaN or inf at any scale: sqrt or norm at 0, a masked row of -inf, "
    "torch.where over a branch that is not taken, a division by 0. monitor.replay(closure) names it"
)

BACKWARD_REMEDY = f"{BACKWARD_LOOK}."

NOT_ZEROED = "Or look for a zero_grad() that is missing: gradients that are kept hold on to one overflow for good."

CAUSE: dict[str, Cause] = {
    "scale_warmup": Cause("info", "the first scale was too high and came down", _scale_warmup),
    "growth_probe": Cause("info", "the scaler tried a higher scale, which overflowed", _growth_probe),
    "bad_batch": Cause("warning", "a scale that had held overflowed", _bad_batch),
    "forward_nonfinite": Cause("warning", "the loss was not finite: no scale helps", _forward_nonfinite),
    "nonfinite_parameters": Cause("error", "parameters not finite: no scale helps", _nonfinite_parameters),
    "backward_nonfinite": Cause("warning", "NaN arose inside backward: no scale helps", _backward_nonfinite),
    "dropped_by_loop": Cause("info", "the loop gave the attempt up by itself", _dropped_by_loop),
    "unknown": Cause("warning", "the record cannot say", _unknown),
}
"""Every cause of a skip."""

CAUSES: dict[str, str] = {name: cause.meaning for name, cause in CAUSE.items()}
"""Every cause of a skip, and what it means."""
