"""Each kind of event in words: the table of kinds, a row each. Skips have their causes besides (`causes`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from tbnum.explain.ahead import Later
from tbnum.explain.causes import BACKWARD_LOOK, SET_BELOW_ONE, spoiled_since, update_remedy, update_text
from tbnum.explain.facts import Facts, Known
from tbnum.explain.nonfinite import Since
from tbnum.explain.past import Runaway
from tbnum.explain.phrases import as_inferred, at_place, change, subject, tensors
from tbnum.explain.ranks import disagreement_words, guilty_words
from tbnum.explain.rules import StepVerdict
from tbnum.explain.spikes import SpikeFacts
from tbnum.explain.thresholds import SCALE_FLOOR
from tbnum.explain.words import as_float, count_text, number_text, scale_text
from tbnum.log.schema import Event

__all__ = ["KINDS", "Kind", "Occurrence", "explained_event", "unexplained_event"]


class Occurrence(NamedTuple):
    """An event, and what came later (None while the run goes on, and for kinds without hindsight)."""

    event: Known
    later: Later | None = None

    @property
    def facts(self) -> Facts:
        return self.event.facts


Words = str | Callable[[Occurrence], str]


@dataclass(frozen=True)
class Kind:
    """How an event of a kind is reported. `title`: of the finding that counts them; "" where another rule does."""

    severity: Words
    message: Words
    remedy: Words
    title: str = ""


def explained_event(event: Known, later: Later | None, verdict: StepVerdict | None = None) -> Event:
    """Any event but a skip, in words. A kind of a newer tbnum passes with its name as message.

    `verdict`: of a step that was taken although its gradients were not finite.
    """
    kind = KINDS.get(event.kind, _NEWER)
    seen = Occurrence(event, later)
    message, remedy = (words if isinstance(words, str) else words(seen) for words in (kind.message, kind.remedy))
    if "rank" in event.data and event.kind != "rank_lost":
        message = f"Rank {event.data['rank']}: {message}"
    cause = event.event.cause if verdict is None else verdict.cause
    if verdict is not None and verdict.since is not None:
        why, remedy = spoiled_since(verdict.since)
        message = f"{message.removesuffix('.')}: {why}."
    elif cause == "backward_nonfinite":
        message = f"{message.removesuffix('.')}, although the loss was finite: it arose inside backward."
        remedy = f"{remedy} {BACKWARD_LOOK}, with that checkpoint loaded."
    message = as_inferred(event.facts, message)
    severity = kind.severity if isinstance(kind.severity, str) else kind.severity(seen)
    return replace(event.event, severity=severity, cause=cause, message=message, remedy=remedy)


def unexplained_event(event: Known, error: Exception) -> Event:
    """An event whose record a rule could not digest: as grave as its kind, and it says why it says no more."""
    severity = KINDS[event.kind].severity if event.kind in KINDS else "warning" if event.kind == "skip" else "info"
    cause = "unknown" if event.kind == "skip" else event.event.cause
    message = f"{event.kind}: its record could not be explained ({type(error).__name__}: {error})."
    return replace(
        event.event, severity=severity if isinstance(severity, str) else "info", cause=cause, message=message
    )


NOTHING = "Nothing to do."


def _scale_backoff(seen: Occurrence) -> str:
    later, back = seen.later, ""
    if later and later.recovered_after is not None:
        back = f"; it was back after {count_text(later.recovered_after, 'step')}"
    return f"The loss scale came down after an overflow: {change(seen.event)}{back}."


def _scale_set(seen: Occurrence) -> str:
    if seen.facts.inferred:
        return f"The loss scale changed otherwise than by its scaler: {change(seen.event)}. Set by hand, or lost."
    return f"The loss scale was set by hand: {change(seen.event)}."


def _nonfinite_step(seen: Occurrence) -> str:
    facts = seen.facts
    what = tensors(facts, "held NaN or inf")
    if facts.inferred:
        what = f"the gradient norm was {number_text(facts.grad_norm)}, and nothing that was logged afterwards is finite"
    message = f"{subject(seen.event)} was taken although {what}"
    if facts.loss_nonfinite:
        message += f"; the loss was {number_text(facts.loss)}"
    return message + guilty_words(seen.event.data) + "."


def _norm_overflow(seen: Occurrence) -> str:
    norm = number_text(seen.facts.grad_norm)
    if seen.facts.inferred:
        return (
            f"The gradient norm was {norm}, no loss scaler skips such a step, and finite values follow: "
            "every gradient was finite, and clipping by their norm set them to 0."
        )
    got = as_float(seen.event.data.get("grad_norm_clipped"))
    if math.isinf(got):
        return f"Every gradient that the optimizer got is finite, but their norm overflowed to {number_text(got)}."
    clipped = ": clipping by it set the gradients to 0." if seen.event.data.get("clipped") else "."
    return f"Every gradient is finite, but their norm overflowed to {norm}{clipped}"


def _nonfinite_norm(seen: Occurrence) -> str:
    within, norm = seen.facts.within, number_text(seen.facts.grad_norm)
    where = f" in one of the {within} steps up to {seen.event.step:,}" if within > 1 else ""
    return f"The gradient norm was {norm}{where}; whether the optimizer stepped is unknown."


def _untrained_parameters(seen: Occurrence) -> str:
    data = seen.event.data
    names, count = data.get("names") or [], data.get("parameters", "?")
    shown = ", ".join(map(str, names[:4])) + (", ..." if count != "?" and count > len(names[:4]) else "")
    text = f"{count} trainable parameters of the model ({shown}) are in no optimizer, and stay what they are"
    if data.get("replaced"):
        text += "; a layer was replaced after the optimizer was built, which still has the parameters of the old one"
    return f"{text}."


def _clip_before_unscale(seen: Occurrence) -> str:
    scale, data = seen.facts.loss_scale, seen.event.data
    limit = as_float(data.get("max_norm", data.get("clip_value")))
    message = "Gradients were clipped"
    message += f" to {number_text(limit)}" if not math.isnan(limit) else ""
    message += f"{at_place(seen.event)} while they still carried the loss scale"
    if not math.isnan(scale):
        message += f" {scale_text(scale)}: the clip was {scale_text(scale)} times too tight"
    return message + "."


def _clip_value_invalid(seen: Occurrence) -> str:
    value = as_float(seen.event.data.get("clip_value"))
    what = f"whatever its sign: each element becomes {number_text(value)}" if value < 0 else "to 0"
    return f"clip_grad_value_(){at_place(seen.event)} was given {number_text(value)}, which sets every gradient {what}."


def _resume(seen: Occurrence) -> str:
    message = f"The run was continued from step {seen.event.data.get('from_step', seen.event.step):,}"
    return message + {
        "log": ", by another process or writer.",
        "steps": "; what was logged from there on before is superseded.",
        "framework": ", as the framework counts its steps.",
        "counted": ", by the optimizer's own count of updates.",
        "weights": ", the first that is not in the log: its parameters have been trained, its optimizer is new.",
        "unknown": ", the first that is not in the log: the checkpoint's step is unknown.",
    }.get(seen.facts.how, ".")


def _resume_remedy(seen: Occurrence) -> str:
    if seen.facts.how not in ("unknown", "weights"):
        return NOTHING
    return "Keep monitor.state_dict() in the checkpoint, and give it to monitor.load_state_dict() before going on."


def _optimizer_state_lost(seen: Occurrence) -> str:
    event, data = seen.event.event, seen.event.data
    who = f"The state of {event.optimizer}" if event.optimizer else "The optimizer's state"
    if "new_class" in data:
        return f"{who} begins again, as its class is another: {data.get('old_class', '?')} -> {data['new_class']}."
    return f"{who} counts {data.get('updates', '?')} updates where the log has {data.get('expected_updates', '?')}."


def _schedule_state_lost(seen: Occurrence) -> str:
    old, new = (number_text(as_float(seen.event.data.get(key))) for key in ("old_lr", "new_lr"))
    went_on = " for a step, and went on from there" if seen.event.data.get("went_on") else ""
    return f"The learning rate went back to that of the start{went_on}: {old} -> {new}."


def _repeat_of_diverged_run(seen: Occurrence) -> str:
    data = seen.event.data
    where = f" at step {data['at_step']:,}" if "at_step" in data else ""
    run = "The last training in this folder" if data.get("same_folder") else f"The run {data.get('run', '?')!r}"
    return f"{run} had the same seed and settings and was lost{where}: {data.get('why', 'see its report')}. " + (
        "This one is past that place." if data.get("passed") else "This one may fail alike."
    )


def _ranks_disagree(seen: Occurrence) -> str:
    until = as_float(seen.event.data.get("last_step"))
    upto = f" to {until:.0f}" if until > seen.event.step else ""
    return f"The ranks disagree (step {seen.event.step}{upto}): {disagreement_words(seen.event.data)}."


def _rank_lost(seen: Occurrence) -> str:
    data = seen.event.data
    last, others = as_float(data.get("last_step")), as_float(data.get("last_step_of_others"))
    where = f"ends at step {last:.0f}, without an end" if last >= 0 else "holds no step"
    message = f"Rank {data.get('rank', '?')} was lost: its record {where}"
    return message + (f"; others go on to step {others:.0f}." if others > last else ".")


def _spike(seen: Occurrence, what: str) -> str:
    spike = SpikeFacts.of(seen.event.event)
    whose = f" of {seen.event.optimizer}" if seen.event.optimizer else ""
    where = f" at step {spike.peak_step:,}" if spike.peak_step != spike.step else ""
    text = f"The {what}{whose} rose to {number_text(spike.peak)}{where} from a usual {number_text(spike.usual)}"
    if spike.lasting:
        text += ", and stayed high"
    elif spike.back_after is not None:
        text += f"; it was back after {count_text(spike.back_after, 'step')}"
    text += "; such blocks of batches recur" if spike.recurs else ""
    return text + ("; the learning rate had gone back up." if spike.schedule else ".")


def _update(seen: Occurrence) -> Since:
    data = seen.event.data
    by = as_float(data.get("by_step"))
    by = seen.event.step if math.isnan(by) else int(by)
    after = as_float(data.get("after_step"))
    at, norm = as_float(data.get("runaway_step")), as_float(data.get("runaway_norm"))
    too_long = None if math.isnan(at) else Runaway(int(at), norm)
    return Since(by, -1 if math.isnan(after) else int(after), by_update=True, runaway=too_long)


def _nonfinite_update(seen: Occurrence) -> str:
    since = _update(seen)
    blame = ": no gradient is to blame, nor the forward pass that fails from here on"
    return f"The parameters became non-finite in {update_text(since)}{'' if since.runaway else blame}."


def _buffers(seen: Occurrence) -> int:
    count = as_float(seen.event.data.get("buffers"))
    return int(count) if count >= 1 else 1


def _buffers_since(seen: Occurrence) -> str:
    data = seen.event.data
    failed, after, by = (as_float(data.get(name)) for name in ("failed_step", "after_step", "by_step"))
    if failed >= 0:
        return f" in step {failed:.0f}, whose loss was not finite"
    if after >= 0 and by > after + 1:
        return f" between step {after + 1:.0f} and step {by:.0f}"
    return f" in step {by:.0f}" if by == after + 1 else f" by step {by:.0f}" if by >= 0 else ""


def _buffers_whole(seen: Occurrence) -> str:
    """Of which checkpoint."""
    data = seen.event.data
    failed, after = as_float(data.get("failed_step")), as_float(data.get("after_step"))
    if failed >= 0:
        return f" from before step {failed:.0f}"
    return f" from before step {after + 1:.0f}" if after >= 0 else " in which they are finite"


def _backwards(seen: Occurrence) -> str:
    count = as_float(seen.event.data.get("backwards"))
    return count_text(int(count), "backward") if count >= 1 else "some backwards"


def _named(seen: Occurrence) -> str:
    names = seen.event.data.get("names")
    names = list(map(str, names)) if isinstance(names, (list, tuple)) else []
    return f" ({', '.join(names[:2])}{', ...' if len(names) > 2 else ''})" if names else ""


_NEWER = Kind("info", lambda seen: f"{seen.event.kind} (unknown to this version of tbnum).", "")

_MEANT_FOR_LATER = "with learning rates meant for later."

KINDS: dict[str, Kind] = {
    "scaler_found": Kind(
        "info",
        lambda seen: f"A {seen.event.data.get('scaler', 'GradScaler')} takes part in the loop: it is followed.",
        NOTHING,
    ),
    "own_scale": Kind(
        "warning",
        lambda seen: (
            f"Gradients were divided by a power of two after backward{at_place(seen.event)}: the loop may multiply its "
            "losses by a scale of its own, so losses are unknown."
        ),
        "Give tbnum.wrap() the scale: scaler=lambda: scale, with what the loss is multiplied by now. "
        "Where there is none, report the loss with monitor.log_loss(loss).",
        title="The loop may have a loss scale of its own",
    ),
    "nonfinite_discarded": Kind(
        "warning",
        lambda seen: (
            f"Gradients that held NaN or inf were thrown away{at_place(seen.event)} without a step, in a loop that "
            "often does so: this is no step of the record."
        ),
        "Where the loop scales its losses itself, give tbnum.wrap() the scale: scaler=lambda: scale.",
        title="Gradients that were not finite were thrown away",
    ),
    "never_stepped": Kind(
        "warning",
        lambda seen: (
            f"{seen.event.data.get('backwards', '?')} backwards wrote to gradients of {seen.event.optimizer or 'the'}"
            f"{'' if seen.event.optimizer else ' optimizer'} that were thrown away: it does not step, and nothing is "
            "recorded."
        ),
        lambda seen: str(seen.event.data.get("reason") or "Give tbnum.wrap() the optimizer whose step() runs."),
        title="The optimizer never steps",
    ),
    "scale_growth": Kind("info", lambda seen: f"The loss scale grew: {change(seen.event)}.", NOTHING),
    "scale_backoff": Kind("info", _scale_backoff, NOTHING),
    "scale_set": Kind(
        lambda seen: "warning" if 0 <= seen.facts.new_scale < SCALE_FLOOR else "info",
        _scale_set,
        lambda seen: SET_BELOW_ONE if 0 <= seen.facts.new_scale < SCALE_FLOOR else NOTHING,
    ),
    "scale_collapse": Kind("error", "The loss scale collapsed.", "Read the skips before it."),
    "nonfinite_step": Kind(
        "error",
        _nonfinite_step,
        lambda seen: (
            f"Restore a checkpoint from before step {seen.event.step}, and keep such steps from being taken: "
            "a GradScaler, or clip_grad_norm_(..., error_if_nonfinite=True)."
        ),
    ),
    "norm_overflow": Kind(
        "warning",
        _norm_overflow,
        "Lower the learning rate, or look at the loss around this step: gradients of 1e19 and more are no signal.",
        title="The gradient norm overflowed",
    ),
    "nonfinite_norm": Kind(
        "warning",
        _nonfinite_norm,
        "Use tbnum.wrap(), which records whether a step was taken.",
        title="The gradient norm was not finite",
    ),
    "no_gradients": Kind(
        "warning",
        lambda seen: (
            f"{subject(seen.event)} found no gradient in any of its {seen.event.data.get('parameters', '?')} "
            "parameters."
        ),
        "Call loss.backward() between zero_grad() and step(), and check that the loss depends on these parameters.",
        title="The optimizer stepped without gradients",
    ),
    "untrained_parameters": Kind(
        "warning",
        _untrained_parameters,
        "Build the optimizer once the model is complete, or give the parameters to add_param_group(); of those that "
        "are to stay as they are set requires_grad to False.",
        title="Parameters were in no optimizer",
    ),
    "clip_before_unscale": Kind(
        "warning",
        _clip_before_unscale,
        "Call scaler.unscale_(optimizer) before clipping.",
        title="Gradients were clipped before unscale_",
    ),
    "clip_after_step": Kind(
        "warning",
        lambda seen: (
            f"Gradients were clipped{at_place(seen.event)} after the step that used them, which got them as long "
            "as they were."
        ),
        "Clip between backward() and step(). To ask for the norm alone, give max_norm=inf.",
        title="Gradients were clipped after the step",
    ),
    "clip_value_invalid": Kind(
        "error",
        _clip_value_invalid,
        "Give clip_grad_value_ a positive value; to switch clipping off, leave the call out.",
        title="The value that gradients are clipped by is not above 0",
    ),
    "backward_under_autocast": Kind(
        "warning",
        lambda seen: f"backward() ran inside the autocast region{at_place(seen.event)}.",
        "Move loss.backward() behind the `with torch.autocast(...)` block: backward runs in the types of the forward. "
        "Where a framework holds that block open (Lightning's manual optimization), turn autocast off around it: "
        "`with torch.autocast(..., enabled=False)`.",
        title="Backward ran under autocast",
    ),
    "update_missing": Kind(
        "warning",
        lambda seen: (
            f"scaler.step() was called again{at_place(seen.event)} without scaler.update() since the last one."
        ),
        "Call scaler.update() once at the end of each step, after scaler.step() of every optimizer.",
        title="scaler.update() was missing",
    ),
    "step_bypassed_scaler": Kind(
        "warning",
        lambda seen: (
            f"optimizer.step() was called{at_place(seen.event)} past an enabled GradScaler: gradients may carry the "
            "loss scale, and non-finite ones are not skipped."
        ),
        "Call scaler.step(optimizer) instead of optimizer.step().",
        title="optimizer.step() went past the scaler",
    ),
    "unscale_in_accumulation": Kind(
        "warning",
        lambda seen: (
            f"{subject(seen.event)} stepped{at_place(seen.event)} on a mixture: backward added gradients that carry "
            "the loss scale to gradients that scaler.unscale_() had already divided by it."
        ),
        "Call scaler.unscale_(optimizer) once a step, after the last backward of the accumulation.",
        title="Gradients were unscaled before the last backward",
    ),
    "loss_not_scaled": Kind(
        "warning",
        lambda seen: (
            f"Gradients were divided by the loss scale{at_place(seen.event)} although no loss of this step had been "
            "multiplied by it: they came out too small by that factor."
        ),
        "Call scaler.scale(loss).backward() for every loss of the step.",
        title="The loss was not scaled",
    ),
    "float16_gradients": Kind(
        "error",
        lambda seen: (
            f"{seen.event.data.get('float16', '?')} of {seen.event.data.get('tensors', '?')} gradients are float16, "
            f"as their parameters are, and the scaler refused to unscale them{at_place(seen.event)}."
        ),
        "Keep the parameters in float32 (no model.half()) and run the forward under torch.autocast.",
        title="The parameters are float16",
    ),
    "loss_low_precision": Kind(
        "warning",
        lambda seen: (
            f"The loss was computed in {str(seen.event.data.get('dtype', '16 bits')).removeprefix('torch.')}"
            f"{at_place(seen.event)}."
        ),
        "Compute the loss inside autocast with torch's loss functions, or from logits.float().",
        title="The loss was computed in low precision",
    ),
    "bfloat16_with_scaler": Kind(
        "warning",
        lambda seen: (
            f"A GradScaler is enabled{at_place(seen.event)} although the forward ran in bfloat16, which has the range "
            "of float32."
        ),
        "Leave the scaler out, or disable it (GradScaler(enabled=False)): a loss scale helps float16 alone.",
        title="A GradScaler in a bfloat16 loop",
    ),
    "gradient_underflow": Kind(
        "warning",
        "Much of the gradient flushes to zero at the current loss scale.",
        "Raise init_scale, or lower growth_interval so that the scale finds its height sooner.",
        title="Gradients underflow",
    ),
    "resume": Kind("info", _resume, _resume_remedy),
    "scaler_state_lost": Kind(
        "warning",
        lambda seen: f"The GradScaler started again although the run was continued: {change(seen.event)}.",
        "Save scaler.state_dict() in the checkpoint, and load it before going on.",
        title="The scaler's state was not restored",
    ),
    "optimizer_state_lost": Kind(
        lambda seen: "info" if "new_class" in seen.event.data else "warning",
        _optimizer_state_lost,
        lambda seen: (
            "Fine if meant: warm the learning rate up again."
            if "new_class" in seen.event.data
            else "Save optimizer.state_dict() in the same checkpoint as the model, and load it before going on."
        ),
        title="The optimizer's state was not restored",
    ),
    "model_state_lost": Kind(
        "warning",
        "The parameters are nearer to those of the run's beginning than to those that it had reached.",
        "Save model.state_dict() in the checkpoint, and load it before going on.",
        title="The model's parameters were not restored",
    ),
    "schedule_state_lost": Kind(
        lambda seen: "info" if seen.event.data.get("went_on") else "warning",
        _schedule_state_lost,
        lambda seen: (
            "The schedule was restored. The rate of the first step is in optimizer.state_dict(): load that as well."
            if seen.event.data.get("went_on")
            else "Save scheduler.state_dict() in the checkpoint, and load it before going on."
        ),
        title="The learning rate began again",
    ),
    "repeat_of_diverged_run": Kind(
        lambda seen: "info" if seen.event.data.get("passed") else "warning",
        _repeat_of_diverged_run,
        lambda seen: (
            NOTHING
            if seen.event.data.get("passed")
            else "If nothing was changed in the program, change something before it runs on: first the loss scale "
            "policy, where there is a GradScaler; then the clip threshold, then the learning rate."
        ),
        title="A run like this one diverged before",
    ),
    "ranks_disagree": Kind(
        "error",
        _ranks_disagree,
        "They train different models from here on: go back to a checkpoint before it. Gradients have to be reduced "
        "before they are unscaled (leave no_sync() before the last backward); with FSDP1 use ShardedGradScaler.",
        title="The ranks disagree",
    ),
    "rank_lost": Kind(
        "error",
        _rank_lost,
        "Look at that process: its own output, the kernel's log (out of memory), its host and device.",
    ),
    "nonfinite_update": Kind(
        "error",
        _nonfinite_update,
        lambda seen: update_remedy(_update(seen)),
        title="An update made the parameters non-finite",
    ),
    "nonfinite_buffers": Kind(
        "error",
        lambda seen: (
            f"{count_text(_buffers(seen), 'buffer')} of the model{_named(seen)} became NaN or inf"
            f"{_buffers_since(seen)}: evaluation uses them, and a skipped step does not bring them back."
        ),
        lambda seen: (
            f"Restore the buffers from a checkpoint{_buffers_whole(seen)}, or reset them "
            "(module.reset_running_stats()), and keep such batches from the forward pass."
        ),
        title="Buffers of the model are not finite",
    ),
    "gradients_not_zeroed": Kind(
        "warning",
        lambda seen: (
            f"{subject(seen.event)} began{at_place(seen.event)} with the gradients that the update before had used: "
            "each update adds up all gradients since the last zero_grad()."
        ),
        "Call optimizer.zero_grad() once for each update, after step() or before the first backward.",
        title="Gradients were not set to zero",
    ),
    "gradients_discarded": Kind(
        "info",
        lambda seen: (
            f"The gradients of {_backwards(seen)} were thrown away{at_place(seen.event)} before each step of "
            f"{seen.event.optimizer or 'the optimizer'}: only the last ones reach it."
        ),
        "Fine for adversarial inputs, or where a first backward only probes. In an accumulation call zero_grad() only "
        "where the optimizer steps, not for each micro-batch.",
        title="Gradients are thrown away before each step",
    ),
    "step_without_backward": Kind(
        "warning",
        lambda seen: (
            f"{subject(seen.event)} was taken{at_place(seen.event)} again on the gradients of the last one: "
            "no backward ran in between."
        ),
        "Call optimizer.step() once for each backward (or accumulation of them).",
        title="The optimizer stepped twice on the same gradients",
    ),
    "moments_reset": Kind(
        lambda seen: "info" if seen.event.data.get("lr_lowered") else "warning",
        lambda seen: (
            f"The state of {seen.event.optimizer or 'the optimizer'}{_named(seen)} was emptied, or set to zero, before "
            f"this step{at_place(seen.event)}: it goes on as if it were the first, "
            + ("and its learning rate went down." if seen.event.data.get("lr_lowered") else _MEANT_FOR_LATER)
        ),
        "Look for an optimizer.state that is cleared, a load_state_dict() of an empty state, or moments that are set "
        "to zero. Fine where the method asks for it; else warm the learning rate up again.",
        title="The optimizer's state was lost while training",
    ),
    "losses_not_divided": Kind(
        "info",
        lambda seen: (
            f"Each of the {seen.event.data.get('micro_batches', 'several')} backwards of a step{at_place(seen.event)} "
            "begins with a mean, and nothing divides it: the gradients of one step are the sum."
        ),
        "Fine where they are different losses. In an accumulation divide each loss by the number of micro-batches "
        "before its backward, or have the learning rate and the clipping threshold fit the sum.",
        title="The losses of a step are added up, not averaged",
    ),
    "float16_without_scaler": Kind(
        "warning",
        lambda seen: (
            f"The forward pass ran in float16{at_place(seen.event)}, and no GradScaler takes part: in its backward "
            "what is below 6e-8 becomes 0."
        ),
        "Use torch.amp.GradScaler with float16, or bfloat16 without one. Where the loop has a loss scale of its own, "
        "give it to tbnum.wrap(scaler=lambda: scale).",
        title="float16 without a loss scale",
    ),
    "loss_spike": Kind(
        lambda seen: "warning" if seen.event.data.get("grave") else "info",
        lambda seen: _spike(seen, "loss"),
        lambda seen: (
            f"Ask what led here: tbnum.explain.what_led_here(run, {seen.event.step}). monitor.replay(closure, batch) "
            "ranks the samples of its batch."
        ),
    ),
    "grad_norm_spike": Kind(
        "info",
        lambda seen: _spike(seen, "gradient norm"),
        "Nothing to do where the gradients are clipped and the loss is as usual.",
    ),
    "left_out": Kind(
        "warning",
        lambda seen: (
            f"Of this record {seen.event.data.get('what', 'a part')} could not be worked out "
            f"({seen.event.data.get('reason', 'unknown')})."
        ),
        "The record is damaged or incomplete there; all else stands.",
        title="A part of the record could not be worked out",
    ),
    "annotation": Kind("info", lambda seen: str(seen.event.data.get("text", "")), ""),
    "crash": Kind(
        "error",
        lambda seen: f"The training loop ended with an exception: {seen.event.data.get('error', 'unknown')}",
        lambda seen: (
            "Anomaly mode raises where a GradScaler would skip the step; its traceback names the operation. Turn it "
            "off (torch.autograd.set_detect_anomaly(False)) to train on, or use monitor.replay(closure) for one step."
            if seen.event.data.get("anomaly")
            else "Read the steps before it: a non-finite loss or a collapsed scale there is the likelier cause."
        ),
    ),
}
"""Every kind of event but a skip."""
