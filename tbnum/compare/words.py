"""A difference in words: numbers first, then one sentence, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tbnum.compare.difference import OF_TENSORS, Difference
from tbnum.compare.distance import THRESHOLDS, Distance
from tbnum.compare.noise import Verdict
from tbnum.compare.settings import Setting
from tbnum.explain.words import count_text, number_text

__all__ = ["lines", "next_step", "sentence"]

_STAGES = {
    "optimizer": "the gradients were the same bits, the parameters after the update not: the optimizer, or the clip",
    "backward": "the deepest gradients were the same bits, others were not: the backward",
    "forward": "the deepest gradients differed already: the forward, or the backward of the head",
}
_MOST = 12
_MOST_SEEN = 4  # of the columns that show a difference first


def lines(difference: Difference) -> Iterator[tuple[str, str]]:
    """Pairs of a heading, "" where the last one goes on, and a text."""
    yield "compared", f"{count_text(difference.steps, 'step')} of {difference.a} and {difference.b}"
    apart = [_setting_text(each) for each in difference.settings]
    if difference.data_apart_at is not None:
        apart.append(f"data: other samples, or in another order, from step {difference.data_apart_at} on")
    yield from _under("settings", apart or ["the same"])
    yield from _under("bits", list(_bits(difference)))
    yield from _under("distance", [_distance_text(each) for each in difference.columns if each.first_step is not None])
    yield from _under("noise", [_verdict_text(verdict) for verdict in difference.verdicts if verdict.difference])
    yield from _under(
        "events",
        [
            f"{each.kind}: {'; '.join(_alone(each.only_a, 'first') + _alone(each.only_b, 'second'))}"
            for each in difference.events
        ],
    )
    yield from _under("not compared", list(difference.not_compared))
    yield "", ""
    yield "", sentence(difference)
    todo = next_step(difference)
    if todo:
        yield "", todo


def sentence(difference: Difference) -> str:
    if difference.same:
        return _same(difference)
    seen = [_plain(name) for name in difference.seen_in if not name.endswith(OF_TENSORS)] or list(difference.seen_in)
    text = f"Apart from step {difference.first_step} on, seen first in the {_listed(seen, _MOST_SEEN, 'more')}"
    if difference.tensors:
        text += f", in {_listed(difference.tensors, 3, 'more tensors')}"
    if difference.stage is not None:
        where = f", begun in {difference.begun_in}" if difference.begun_in else ""
        unsure = "" if difference.depth_from in (None, "forward") else f" (by the order of the {difference.depth_from})"
        return f"{text}; {_STAGES[difference.stage]}{where}{unsure}."
    if _from_the_start(difference):
        return f"{text}. It is the first step that both have, so it began in that step or before it."
    return f"{text}; it began there or before."


def _same(difference: Difference) -> str:
    in_part = any(rest for rest in difference.without_partner)
    what = f"The same in the {count_text(difference.steps, 'step')} that both have" if in_part else "The same"
    if difference.bits_apart_at is not None:
        return (
            f"{what} in everything that was compared; bit for bit they differ from step {difference.bits_apart_at} on."
        )
    if difference.same_bits_until is not None:
        return f"{what}, and the same bits at every checksummed step, up to {difference.same_bits_until}."
    return f"{what} in everything that was compared."


def next_step(difference: Difference) -> str | None:
    """What to do to know more."""
    if difference.same or difference.stage is not None:
        return None
    assert difference.first_step is not None
    if _from_the_start(difference):
        if difference.settings or difference.data_apart_at == difference.first_step:
            return "Look first at what differs in the settings."
        return (
            "Look first at what both begin with, the parameters and the samples (wrap(..., data=loader) records "
            "which), then at that step itself."
        )
    begin = difference.same_bits_until
    if begin is None:
        return f"To see in which stage: run both again up to step {difference.first_step} with tensor_interval=1."
    return f"To see in which stage: run both again from step {begin} to {difference.first_step} with tensor_interval=1."


def _from_the_start(difference: Difference) -> bool:
    return difference.first_step == difference.compared_from


def _bits(difference: Difference) -> Iterator[str]:
    same, apart = difference.same_bits_until, difference.bits_apart_at
    if same is None and apart is None:
        yield "no checksums of the same steps and tensors"
    elif apart is None:
        yield f"the same at every checksummed step, the last of them {same}"
    else:
        yield f"{'apart' if same is None else f'same at {same}, apart'} at {apart}"


def _distance_text(each: Distance) -> str:
    passed = {each.passes[threshold]: threshold for threshold in THRESHOLDS}  # of those passed in one step, the last
    beyond = [f"{threshold:g} at {step}" for step, threshold in passed.items() if step is not None]
    late = ""
    if each.last_tenth is not None:
        how = number_text(each.last_tenth) if math.isfinite(each.last_tenth) else "in one alone not finite"
        late = f"; {how} over the last tenth"
    return f"{each.column}: from {each.first_step} on{', passes ' if beyond else ''}{', '.join(beyond)}{late}"


def _verdict_text(verdict: Verdict) -> str:
    way = "higher" if verdict.difference > 0 else "lower"
    of = f"{verdict.column}: {number_text(abs(verdict.difference))} {way} in the second over the last tenth"
    if verdict.beyond is None:
        return f"{of}; whether that is more than noise is unknown without runs of other seeds (--noise)"
    assert verdict.noise is not None and verdict.probability is not None
    says = "more than" if verdict.beyond else "within"
    return (
        f"{of}, {says} the noise of seeds: {number_text(verdict.noise)} by {count_text(verdict.seeds, 'run')}, "
        f"p {verdict.probability:.2g}"
    )


def _under(heading: str, texts: list[str]) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(texts[:_MOST]):
        yield heading if number == 0 else "", text
    if len(texts) > _MOST:
        yield "", f"and {len(texts) - _MOST:,} more"


def _setting_text(setting: Setting) -> str:
    for one, other, which in ((setting.a, setting.b, "first"), (setting.b, setting.a, "second")):
        if isinstance(one, Mapping) and "class" in one and other is None:
            return f"{setting.name}: in the {which} alone ({one['class']})"
    return f"{setting.name}: {setting.a!r} and {setting.b!r}"


def _alone(steps: tuple[int, ...], which: str) -> list[str]:
    return [f"in the {which} alone at {_listed([str(step) for step in steps], 5, 'more')}"] if steps else []


def _listed(names: Sequence[str], most: int, more: str) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} {more}" if len(names) > most else "")


def _plain(column: str) -> str:
    return {"step_hash": "hash of loss and norms", "checksum": "checksums"}.get(column, column)
