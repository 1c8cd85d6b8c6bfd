"""Each kind of event in words: how grave it is, what happened, what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tbnum.explain.ranks import disagreement_words, guilty_words
from tbnum.explain.record import Later
from tbnum.explain.rules import Collapse, Skip, loss_is_nonfinite
from tbnum.explain.thresholds import OUTLYING_LOSS
from tbnum.explain.words import as_float, count_text, number_text, scale_text
from tbnum.log.schema import Event

__all__ = ["SEVERITY", "SKIP_SEVERITY", "explained_collapse", "explained_event", "explained_skip"]

SEVERITY: dict[str, str] = {
    "scale_growth": "info",
    "scale_backoff": "info",
    "scale_set": "info",
    "scale_collapse": "error",
    "nonfinite_step": "error",
    "norm_overflow": "warning",
    "no_gradients": "warning",
    "clip_before_unscale": "warning",
    "backward_under_autocast": "warning",
    "update_missing": "warning",
    "step_bypassed_scaler": "warning",
    "unscale_in_accumulation": "warning",
    "loss_not_scaled": "warning",
    "float16_gradients": "error",
    "loss_low_precision": "warning",
    "bfloat16_with_scaler": "warning",
    "gradient_underflow": "warning",
    "resume": "info",
    "scaler_state_lost": "warning",
    "optimizer_state_lost": "warning",
    "schedule_state_lost": "warning",
    "repeat_of_diverged_run": "warning",
    "ranks_disagree": "error",
    "rank_lost": "error",
    "annotation": "info",
    "crash": "error",
}
"""Severity of each kind but a skip."""

SKIP_SEVERITY: dict[str, str] = {
    "scale_warmup": "info",
    "growth_probe": "info",
    "bad_batch": "warning",
    "unknown": "warning",
    "forward_nonfinite": "warning",
    "nonfinite_parameters": "error",
}

NOTHING = "Nothing to do."


def explained_skip(event: Event, skip: Skip, later: Later | None) -> Event:
    """A skip in words. `later` is None while the run goes on."""
    data = event.data
    scale = as_float(data.get("loss_scale"))
    new_scale = later.new_scale if later else as_float(data.get("new_scale"))
    words = {
        "scale_warmup": _scale_warmup,
        "growth_probe": _growth_probe,
        "bad_batch": _bad_batch,
        "forward_nonfinite": _forward_nonfinite,
        "nonfinite_parameters": _nonfinite_parameters,
        "unknown": _unknown,
    }[skip.cause]
    why, remedy = words(event, skip, later)
    if skip.cause in ("bad_batch", "forward_nonfinite"):
        why += _which_micro_batch(data)
    why += guilty_words(data)
    parts = [f"{_skipped(event)}: {why}"]
    if not math.isnan(scale) and not math.isnan(new_scale) and scale != new_scale:
        change = f"scale {scale_text(scale)} -> {scale_text(new_scale)}"
        if later and later.recovered_after is not None:
            change += f", back after {count_text(later.recovered_after, 'step')}"
        parts.append(change)
    if skip.injected is not None:
        parts.append(f"injected on purpose: {skip.injected}")
        remedy = "Nothing to do: this batch was spoiled on purpose."
    return replace(
        event,
        severity="info" if at_edge(skip, later) else SKIP_SEVERITY[skip.cause],
        cause=skip.cause,
        message=_as_inferred(data, "; ".join(parts) + "."),
        remedy=remedy,
    )


def _skipped(event: Event) -> str:
    """Who was skipped; how many at least, where not every step was logged."""
    within, at_least = int(event.data.get("within", 1)), int(event.data.get("at_least", 1))
    if within == 1:
        return f"{_subject(event)} was skipped"
    were = "was" if at_least == 1 else "were"
    halvings = event.data.get("halvings")
    likely = f" ({halvings} if each skip halved the scale)" if halvings else ""
    if at_least == within:
        return f"All {within} steps up to {event.step:,} were skipped"
    return f"At least {at_least} of the {within} steps up to {event.step:,} {were} skipped{likely}"


_HOW = {
    "loss_scale": "Inferred from the loss scale",
    "grad_norm": "Inferred from the gradient norm",
    "no_grad_norm": "Inferred from a gradient norm that was not logged",
    "counter": "By the log's own count of skips",
    "log": "Inferred from a new event file",
    "steps": "Inferred from the steps, which go back",
}


def _as_inferred(data: Mapping[str, Any], message: str) -> str:
    """`message`, and from what it was inferred, where it was."""
    return f"{_HOW.get(data.get('how', ''), 'Inferred')}: {message}" if data.get("inferred") else message


def _held(skip: Skip) -> str:
    return f"{'about ' if skip.about else ''}{count_text(skip.held, 'step')}"


def _which_micro_batch(data: Mapping[str, Any]) -> str:
    """Of several in a step the one whose loss is not finite, or stands out."""
    losses = [as_float(loss) for loss in data.get("losses") or []]
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
    count = as_float(data.get("micro_batches"))
    told = f"; the loss of micro-batch {at + 1} of {count:.0f} was {number_text(losses[at])}"
    return told + (f", and {len(broken) - 1} more were not finite" if len(broken) > 1 else "")


def _scale_warmup(event: Event, skip: Skip, later: Later | None) -> tuple[str, str]:
    scale = as_float(event.data.get("loss_scale"))
    why = f"{_overflowed(event.data)} at a scale of {scale_text(scale)} that no step had passed yet"
    if skip.in_row > 1:
        why += f" (skip {skip.in_row} in a row)"
    if later is None or later.ongoing or math.isnan(later.lowest_scale):
        return why, "Nothing to do unless it goes on: the scaler halves the scale until the gradients fit."
    settled = scale_text(later.lowest_scale)
    return why, f"Nothing to do: the scale settled at {settled} after {count_text(later.skips_in_row, 'skip')}."


def _growth_probe(event: Event, skip: Skip, later: Later | None) -> tuple[str, str]:
    scale = as_float(event.data.get("loss_scale"))
    why = f"the scaler had just tried the higher scale {scale_text(scale)}, at which {_overflowed(event.data)}"
    if skip.held > 0:
        why += f" after {_held(skip)}"
    if skip.held_before_growth > 0:
        why += f"; the scale below had held for {count_text(skip.held_before_growth, 'step')}"
    every = f"every {count_text(skip.growth_interval, 'step')}" if skip.growth_interval > 1 else "every step"
    if not skip.growth_interval:
        return why, "Nothing to do: the scaler tries a higher scale from time to time."
    return why, f"Nothing to do: the scaler tries a higher scale {every} without overflow."


def _bad_batch(event: Event, skip: Skip, later: Later | None) -> tuple[str, str]:
    data = event.data
    scale = as_float(data.get("loss_scale"))
    why = f"{_overflowed(data)} at a scale of {scale_text(scale)}"
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
    loss = as_float(data.get("loss"))
    if not math.isnan(loss):
        why += f"; loss {number_text(loss)}"
        if not math.isnan(skip.recent_loss):
            why += f" against a recent median of {number_text(skip.recent_loss)}"
    if skip.early:
        remedy = "Nothing to do if it stays among the first steps: the scale is still finding its height. "
        return why, remedy + "A lower init_scale spares them."
    if at_edge(skip, later):
        return f"{why}; nothing tells of a spoiled batch", EDGE_REMEDY
    remedy = (
        f"Look at the batch of step {event.step} (labels, lengths, outliers); "
        "if such skips recur, clip the gradients harder or lower the learning rate."
    )
    return why, remedy


EDGE_REMEDY = (
    "Nothing to do: the scale was at its edge, its headroom spent, and nothing is known to be wrong with the batch. "
    "Such skips are the price of a scale this high; only if they recur, clip the gradients harder, or let the scale "
    "grow less often (a longer growth_interval)."
)


def at_edge(skip: Skip, later: Later | None) -> bool:
    """Whether the scale alone explains a skip: then the next one, lower, held."""
    return skip.at_edge and not skip.early and (later is None or later.skips_in_row <= 1)


def _forward_nonfinite(event: Event, skip: Skip, later: Later | None) -> tuple[str, str]:
    loss = number_text(as_float(event.data.get("loss")))
    why = f"the loss itself was {loss}, so no loss scale helps"
    if skip.in_row > 1:
        why += f" (skip {skip.in_row} in a row)"
    return why, forward_remedy(event.step)


def forward_remedy(step: int) -> str:
    return (
        f"Check the inputs of step {step} and the forward pass: log(0), a division by 0, "
        "or a float16 value past 65504. monitor.replay(closure) names the module and the operation."
    )


def _nonfinite_parameters(event: Event, skip: Skip, later: Later | None) -> tuple[str, str]:
    since = skip.nonfinite_since
    if since >= 0:
        return _spoiled_since(since)
    why = "the parameters are not finite, so neither another batch nor another scale helps"
    return why, f"Restore a checkpoint from before step {event.step} whose parameters are finite."


def _spoiled_since(step: int) -> tuple[str, str]:
    why = f"the parameters have been non-finite since step {step}, where the optimizer took non-finite gradients"
    return why, f"Restore a checkpoint from before step {step}: nothing that follows can be trained."


def _unknown(event: Event, skip: Skip, later: Later | None) -> tuple[str, str]:
    scale = scale_text(as_float(event.data.get("loss_scale")))
    if skip.collapsed:
        row = f"skip {skip.in_row} in a row"
        why = f"the loss was finite, yet {_overflowed(event.data)} even at a scale of {scale} ({row})"
        return why, BACKWARD_REMEDY
    if as_float(event.data.get("loss_scale")) == 0:
        return f"no gradient can be divided by a scale of {scale}", ZERO_REMEDY
    if event.data.get("inferred"):
        return _unknown_in_scalar_log(event, scale)
    why = f"{_overflowed(event.data)} at a scale of {scale}, and the record begins too late to tell why"
    return why, "Nothing to do if it stays alone; keep the log in the run's folder when it is resumed."


ZERO_REMEDY = (
    "Stop the run: a scale of 0 never grows again. Restart from a checkpoint with finite parameters, and look for what "
    "the scale fell for."
)


def _unknown_in_scalar_log(event: Event, scale: str) -> tuple[str, str]:
    remedy = "Log the loss scale at every step, or use tbnum.wrap(), which records why."
    if math.isnan(as_float(event.data.get("loss_scale"))):
        norm = number_text(as_float(event.data.get("grad_norm")))
        return f"the gradient norm was {norm}, and finite losses follow; no loss scale is logged to tell why", remedy
    return f"gradients overflowed at a scale of {scale}, and the log has too few steps to tell why", remedy


BACKWARD_REMEDY = (
    "Look for an operation whose backward gives NaN or inf at any scale: "
    "sqrt or norm at 0, a masked row of -inf, a division by 0."
)


def explained_collapse(event: Event, collapse: Collapse, later: Later | None) -> Event:
    """The collapse that the skip `event` made clear."""
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
    }.get(collapse.cause, ("the gradients overflow at every scale although the loss is finite", BACKWARD_REMEDY))
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


def explained_event(event: Event, later: Later | None, nonfinite_since: int | None = None) -> Event:
    """Any event but a skip, in words. A kind of a newer tbnum passes with its name as message.

    `nonfinite_since`: of a non-finite step, where the parameters had become non-finite before.
    """
    data = event.data
    write = _WORDS.get(event.kind)
    message, remedy = write(event, data, later) if write else (f"{event.kind} (unknown to this version of tbnum).", "")
    if "rank" in data and event.kind != "rank_lost":
        message = f"Rank {data['rank']}: {message}"
    cause = event.cause
    if event.kind == "nonfinite_step" and nonfinite_since is not None:
        why, remedy = _spoiled_since(nonfinite_since)
        cause, message = "nonfinite_parameters", f"{message.removesuffix('.')}: {why}."
    elif event.kind == "nonfinite_step" and loss_is_nonfinite(data):
        cause = "forward_nonfinite"
    severity = SEVERITY.get(event.kind, "info")
    return replace(event, severity=severity, cause=cause, message=_as_inferred(data, message), remedy=remedy)


def _scale_growth(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return f"The loss scale grew: {_change(data)}.", NOTHING


def _scale_backoff(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    back = ""
    if later and later.recovered_after is not None:
        back = f"; it was back after {count_text(later.recovered_after, 'step')}"
    return f"The loss scale came down after an overflow: {_change(data)}{back}.", NOTHING


def _scale_set(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    if data.get("inferred"):
        return f"The loss scale changed otherwise than by its scaler: {_change(data)}. Set by hand, or lost.", NOTHING
    return f"The loss scale was set by hand: {_change(data)}.", NOTHING


def _nonfinite_step(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    message = f"{_subject(event)} was taken although {_tensors(data, 'held NaN or inf')}"
    if loss_is_nonfinite(data):
        message += f"; the loss was {number_text(as_float(data.get('loss')))}"
    message += guilty_words(data)
    remedy = (
        f"Restore a checkpoint from before step {event.step}, and keep such steps from being taken: "
        "a GradScaler, or clip_grad_norm_(..., error_if_nonfinite=True)."
    )
    return message + ".", remedy


def _norm_overflow(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"Every gradient is finite, but their norm overflowed to {number_text(as_float(data.get('grad_norm')))}: "
        "clipping by it sets the gradients to 0.",
        "Lower the learning rate, or look at the loss around this step: gradients of 1e19 and more are no signal.",
    )


def _no_gradients(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"{_subject(event)} found no gradient in any of its {data.get('parameters', '?')} parameters.",
        "Call loss.backward() between zero_grad() and step(), and check that the loss depends on these parameters.",
    )


def _clip_before_unscale(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    scale, max_norm = as_float(data.get("loss_scale")), as_float(data.get("max_norm"))
    message = "Gradients were clipped"
    message += f" to {number_text(max_norm)}" if not math.isnan(max_norm) else ""
    message += f"{_where(data)} while they still carried the loss scale"
    if not math.isnan(scale):
        message += f" {scale_text(scale)}: the clip was {scale_text(scale)} times too tight"
    return message + ".", "Call scaler.unscale_(optimizer) before clipping."


def _backward_under_autocast(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"backward() ran inside the autocast region{_where(data)}.",
        "Move loss.backward() behind the `with torch.autocast(...)` block: backward runs in the types of the forward. "
        "Where a framework holds that block open (Lightning's manual optimization), turn autocast off around it: "
        "`with torch.autocast(..., enabled=False)`.",
    )


def _update_missing(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"scaler.step() was called again{_where(data)} without scaler.update() since the last one.",
        "Call scaler.update() once at the end of each step, after scaler.step() of every optimizer.",
    )


def _step_bypassed_scaler(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"optimizer.step() was called{_where(data)} past an enabled GradScaler: gradients may carry the loss scale, "
        "and non-finite ones are not skipped.",
        "Call scaler.step(optimizer) instead of optimizer.step().",
    )


def _unscale_in_accumulation(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"{_subject(event)} stepped{_where(data)} on a mixture: backward added gradients that carry the loss scale to "
        "gradients that scaler.unscale_() had already divided by it.",
        "Call scaler.unscale_(optimizer) once a step, after the last backward of the accumulation.",
    )


def _loss_not_scaled(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"Gradients were divided by the loss scale{_where(data)} although no loss of this step had been multiplied by "
        "it: they came out too small by that factor.",
        "Call scaler.scale(loss).backward() for every loss of the step.",
    )


def _float16_gradients(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"{data.get('float16', '?')} of {data.get('tensors', '?')} gradients are float16, as their parameters are, "
        f"and the scaler refused to unscale them{_where(data)}.",
        "Keep the parameters in float32 (no model.half()) and run the forward under torch.autocast.",
    )


def _loss_low_precision(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"The loss was computed in {str(data.get('dtype', '16 bits')).removeprefix('torch.')}{_where(data)}.",
        "Compute the loss inside autocast with torch's loss functions, or from logits.float().",
    )


def _bfloat16_with_scaler(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"A GradScaler is enabled{_where(data)} although the forward ran in bfloat16, which has the range of float32.",
        "Leave the scaler out, or disable it (GradScaler(enabled=False)): a loss scale helps float16 alone.",
    )


def _gradient_underflow(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        "Much of the gradient flushes to zero at the current loss scale.",
        "Raise init_scale, or lower growth_interval so that the scale finds its height sooner.",
    )


def _resume(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    message = f"The run was continued from step {data.get('from_step', event.step):,}"
    how = data.get("how")
    if how == "log":
        return f"{message}, by another process or writer.", NOTHING
    if how == "steps":
        return f"{message}; what was logged from there on before is superseded.", NOTHING
    if how == "counted":
        return f"{message}, as the optimizer's own count of updates tells.", NOTHING
    if how == "unknown":
        return (
            f"{message}, the first that is not in the log: from which step its checkpoint was, nothing tells.",
            "Keep monitor.state_dict() in the checkpoint, and give it to monitor.load_state_dict() before going on.",
        )
    return f"{message}.", NOTHING


def _scaler_state_lost(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"The GradScaler started anew although the run was continued: {_change(data)}.",
        "Save scaler.state_dict() in the checkpoint, and load it before going on.",
    )


def _optimizer_state_lost(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    who = f"The state of {event.optimizer}" if event.optimizer else "The optimizer's state"
    return (
        f"{who} counts {data.get('updates', '?')} updates where the log has {data.get('expected_updates', '?')}.",
        "Save optimizer.state_dict() in the same checkpoint as the model, and load it before going on.",
    )


def _schedule_state_lost(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    old, new = as_float(data.get("old_lr")), as_float(data.get("new_lr"))
    return (
        f"The learning rate went back to that of the start: {number_text(old)} -> {number_text(new)}.",
        "Save scheduler.state_dict() in the checkpoint, and load it before going on.",
    )


def _repeat_of_diverged_run(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    where = f" at step {data['at_step']:,}" if "at_step" in data else ""
    run = "The last training in this folder" if data.get("same_folder") else f"The run {data.get('run', '?')!r}"
    return (
        f"{run} had the same seed and settings and was lost{where}: "
        f"{data.get('why', 'see its report')}. This one will fail alike.",
        "Change something before it runs on: first the loss scale policy, where there is a GradScaler; then the clip "
        "threshold, then the learning rate.",
    )


def _ranks_disagree(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    until = as_float(data.get("last_step"))
    upto = f" to {until:.0f}" if until > event.step else ""
    return (
        f"The ranks disagree (step {event.step}{upto}): {disagreement_words(data)}.",
        "They train different models from here on: go back to a checkpoint before it. Gradients have to be reduced "
        "before they are unscaled (leave no_sync() before the last backward); with FSDP1 use ShardedGradScaler.",
    )


def _rank_lost(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    last, others = as_float(data.get("last_step")), as_float(data.get("last_step_of_others"))
    where = f"ends at step {last:.0f}, without an end" if last >= 0 else "holds no step"
    message = f"Rank {data.get('rank', '?')} was lost: its record {where}"
    if others > last:
        message += f"; others go on to step {others:.0f}"
    remedy = "Look at that process: its own output, the kernel's log (out of memory), its host and device."
    return message + ".", remedy


def _annotation(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return str(data.get("text", "")), ""


def _crash(event: Event, data: Mapping[str, Any], later: Later | None) -> tuple[str, str]:
    return (
        f"The training loop ended with an exception: {data.get('error', 'unknown')}",
        "Read the steps before it: a non-finite loss or a collapsed scale there is the likelier cause.",
    )


_WORDS = {
    "scale_growth": _scale_growth,
    "scale_backoff": _scale_backoff,
    "scale_set": _scale_set,
    "nonfinite_step": _nonfinite_step,
    "norm_overflow": _norm_overflow,
    "no_gradients": _no_gradients,
    "clip_before_unscale": _clip_before_unscale,
    "backward_under_autocast": _backward_under_autocast,
    "update_missing": _update_missing,
    "step_bypassed_scaler": _step_bypassed_scaler,
    "unscale_in_accumulation": _unscale_in_accumulation,
    "loss_not_scaled": _loss_not_scaled,
    "float16_gradients": _float16_gradients,
    "loss_low_precision": _loss_low_precision,
    "bfloat16_with_scaler": _bfloat16_with_scaler,
    "gradient_underflow": _gradient_underflow,
    "resume": _resume,
    "scaler_state_lost": _scaler_state_lost,
    "optimizer_state_lost": _optimizer_state_lost,
    "schedule_state_lost": _schedule_state_lost,
    "repeat_of_diverged_run": _repeat_of_diverged_run,
    "ranks_disagree": _ranks_disagree,
    "rank_lost": _rank_lost,
    "annotation": _annotation,
    "crash": _crash,
}


def _subject(event: Event) -> str:
    return f"The step of {event.optimizer}" if event.optimizer else "The step"


def _where(data: Mapping[str, Any]) -> str:
    return f" at {data['where']}" if data.get("where") else ""


def _change(data: Mapping[str, Any]) -> str:
    return f"{scale_text(as_float(data.get('old_scale')))} -> {scale_text(as_float(data.get('new_scale')))}"


def _overflowed(data: Mapping[str, Any]) -> str:
    return _tensors(data, "overflowed")


def _tensors(data: Mapping[str, Any], what: str) -> str:
    """`3 of 12 gradients overflowed (head.weight, head.bias, ...)`."""
    bad, total = as_float(data.get("nonfinite_tensors")), as_float(data.get("tensors"))
    if not bad >= 1:  # a count that is unknown
        text = f"gradients {what}"
    elif bad == total:
        text = f"all {int(bad)} gradients {what}" if bad > 1 else f"the only gradient {what}"
    elif total >= bad:
        text = f"{int(bad)} of {int(total)} gradients {what}"
    else:
        text = f"{count_text(int(bad), 'gradient')} {what}"
    names = data.get("nonfinite_names") or []
    if names:
        more = bad > len(names[:2])
        text += f" ({', '.join(map(str, names[:2]))}{', ...' if more else ''})"
    return text
