"""What is worth acting on in a whole run: the table of rules, a row each.

A rule is a function of a `RunView` that yields findings. One that cannot digest a record costs its own findings, and
the report says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tbnum.explain import (
    clip_findings,
    curve_findings,
    event_findings,
    float8_findings,
    level_findings,
    lr_findings,
    scale_findings,
    tensor_findings,
)
from tbnum.explain.finding import OF_THE_RUN, Finding
from tbnum.explain.ranks import rank_findings
from tbnum.explain.record import Record
from tbnum.explain.view import RunView
from tbnum.log.schema import SEVERITIES, Event

__all__ = ["RULES", "find"]

Rule = Callable[[RunView], Iterable[Finding]]

RULES: tuple[tuple[str, Rule], ...] = (
    ("no_steps", event_findings.no_steps),
    ("rank_lost", event_findings.lost_ranks),
    ("crash", event_findings.crash),
    ("scale_collapse", event_findings.collapse),
    ("nonfinite_step", event_findings.nonfinite_steps),
    ("nonfinite_parameters", event_findings.nonfinite_parameters),
    ("nonfinite_loss", event_findings.nonfinite_loss),
    ("mean_over_nothing", event_findings.mean_over_nothing),
    ("skip_rate", event_findings.skips),
    ("events", event_findings.counted),
    ("max_norm_invalid", clip_findings.wrong_threshold),
    ("gradients_zeroed", clip_findings.zeroed),
    ("clipping", clip_findings.clipping),
    ("no_clipping", clip_findings.no_clipping),
    ("loss_spike", curve_findings.loss_spikes),
    ("loss_rose", level_findings.loss_rose),
    ("loss_below_zero", level_findings.loss_below_zero),
    ("exploding_norm", curve_findings.exploding_norms),
    ("gradients_zero", level_findings.gradients_zero),
    ("norm_level", level_findings.norm_level),
    ("losses_added_up", level_findings.losses_added_up),
    ("weights_vanish", level_findings.weights_vanish),
    ("weights_grow", level_findings.weights_grow),
    ("lr_invalid", lr_findings.invalid),
    ("momentum_invalid", lr_findings.momentum),
    ("lr_outlier", lr_findings.outlier),
    ("lr_jumped", lr_findings.jumped),
    ("lr_cycles", lr_findings.cycles),
    ("lr_zero", lr_findings.zero),
    ("lr_zero_group", lr_findings.group_zero),
    ("weight_decay_strong", lr_findings.weight_decay),
    ("schedule_state_lost", lr_findings.restarted),
    ("schedule_drift", lr_findings.schedule_drift),
    ("scale_extreme", scale_findings.scale_extreme),
    ("scale_falls", scale_findings.scale_falls),
    ("scale_below_one", scale_findings.scale_floor),
    ("eps_vanishes", scale_findings.eps_vanishes),
    ("ranks", lambda view: rank_findings(view.ranks)),
    ("rival_sessions", event_findings.concurrent_writers),
    ("records_dropped", event_findings.dropped),
    ("dead_tensor", tensor_findings.dead),
    ("gradient_faded", tensor_findings.faded),
    ("no_gradient", tensor_findings.no_gradient),
    ("exploding_tensor", tensor_findings.exploding),
    ("tensors_vanish", tensor_findings.vanishing),
    ("update_ratio", tensor_findings.updates),
    ("update_ratio_first", level_findings.first_updates),
    ("updates_lost", tensor_findings.updates_lost),
    ("headroom_running_out", tensor_findings.headroom),
    ("scaler_without_float16", tensor_findings.not_float16),
    ("gradient_underflow", tensor_findings.underflowing),
    ("float8_spike", float8_findings.spikes),
    ("float8_flushed", float8_findings.flushed),
    ("float8_saturated", float8_findings.saturated),
)
"""What each is called where it fails, and the rule. Of two findings of one name the first rule's counts."""


def find(record: Record, events: Sequence[Event]) -> list[Finding]:
    """Findings of a run with its explained events, gravest first.

    O(events), a few passes over the columns, and some 50 of the tables of tensors.
    """
    view = RunView(record, events)
    found: list[Finding] = []
    failed: dict[str, Exception] = {}
    for name, rule in RULES:
        reported = {finding.rule for finding in found}
        try:
            found += [finding for finding in list(rule(view)) if finding.rule not in reported]
        except Exception as error:  # a damaged or partial record
            failed[name] = error
    if failed:
        found.append(_left_out(failed))
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))


def _left_out(failed: dict[str, Exception]) -> Finding:
    reasons = "; ".join(f"{name} ({type(error).__name__}: {error})" for name, error in failed.items())
    return Finding(
        "findings_left_out",
        "warning",
        "Some findings could not be computed from this record",
        f"Left out: {reasons}.",
        "The record is damaged or incomplete there; every other finding stands.",
        OF_THE_RUN,
    )
