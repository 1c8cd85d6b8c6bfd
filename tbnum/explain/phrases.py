"""Parts of sentences that events have in common."""

from __future__ import annotations

import math

from tbnum.explain.facts import Facts, Known
from tbnum.explain.words import count_text, scale_text

__all__ = ["as_inferred", "at_place", "change", "subject", "tensors"]


def subject(event: Known) -> str:
    return f"The step of {event.optimizer}" if event.optimizer else "The step"


def at_place(event: Known) -> str:
    return f" at {event.facts.where}" if event.facts.where else ""


def change(event: Known) -> str:
    return f"{scale_text(event.facts.old_scale)} -> {scale_text(event.facts.new_scale)}"


def tensors(facts: Facts, what: str) -> str:
    """`3 of 12 gradients overflowed (head.weight, head.bias, ...)`."""
    bad, total = facts.nonfinite_tensors, facts.tensors
    if not 1 <= bad < math.inf:  # a count that is unknown
        text = f"gradients {what}"
    elif bad == total:
        text = f"all {int(bad)} gradients {what}" if bad > 1 else f"the only gradient {what}"
    elif bad <= total < math.inf:
        text = f"{int(bad)} of {int(total)} gradients {what}"
    else:
        text = f"{count_text(int(bad), 'gradient')} {what}"
    names = facts.nonfinite_names
    if names:
        more = bad > len(names[:2])
        text += f" ({', '.join(names[:2])}{', ...' if more else ''})"
    return text


_HOW = {
    "loss_scale": "Inferred from the loss scale",
    "grad_norm": "Inferred from the gradient norm",
    "no_grad_norm": "Inferred from a gradient norm that was not logged",
    "counter": "By the log's own count of skips",
    "log": "Inferred from a new event file",
    "steps": "Inferred from the steps, which go back",
}


def as_inferred(facts: Facts, message: str) -> str:
    """`message`, and from what it was inferred, where it was."""
    return f"{_HOW.get(facts.how, 'Inferred')}: {message}" if facts.inferred else message
