"""A difference in words: numbers first, then one sentence, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from tbnum.compare.difference import OF_TENSORS, Difference
from tbnum.compare.distance import THRESHOLDS, Distance
from tbnum.compare.noise import Verdict
from tbnum.explain.words import count_text, number_text

__all__ = ["lines", "next_step", "sentence"]

_STAGES = {
    "optimizer": "the gradients were the same bits, the parameters after the update not: the optimizer, or the clip",
    "backward": "the deepest gradients were the same bits, others were not: the backward",
    "forward": "the deepest gradients differed already: the forward, or the backward of the head",
}
_MOST = 12


def lines(difference: Difference) -> Iterator[tuple[str, str]]:
    """Pairs of a heading, "" where the last one goes on, and a text."""
    yield "compared", f"{count_text(difference.steps, 'step')} of {difference.a} and {difference.b}"
    apart = [f"{each.name}: {each.a!r} and {each.b!r}" for each in difference.settings]
    if difference.data_apart_at is not None:
        apart.append(f"data: other samples, or in another order, from step {difference.data_apart_at} on")
    yield from _under("settings", apart or ["the same"])
    yield from _under("bits", list(_bits(difference)))
    yield from _under("distance", [_distance_text(each) for each in difference.columns if each.first_step is not None])
    yield from _under("noise", [_verdict_text(verdict) for verdict in difference.verdicts if verdict.difference])
    yield from _under(
        "events",
        [
            f"{each.kind}: in the first alone at {_steps_text(each.only_a)}, in the second {_steps_text(each.only_b)}"
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
        if difference.same_bits_until is not None and difference.bits_apart_at is None:
            return f"The same, and the same bits at every checksummed step, up to {difference.same_bits_until}."
        return "The same in everything that was compared."
    seen = ", ".join(_plain(name) for name in difference.seen_in if not name.endswith(OF_TENSORS))
    seen = seen or ", ".join(difference.seen_in)
    text = f"Apart from step {difference.first_step} on, seen first in the {seen}"
    if difference.tensors:
        text += f", in {_names(difference.tensors)}"
    if difference.stage is not None:
        where = f", begun in {difference.begun_in}" if difference.begun_in else ""
        unsure = "" if difference.depth_from in (None, "forward") else f" (by the order of the {difference.depth_from})"
        return f"{text}; {_STAGES[difference.stage]}{where}{unsure}."
    return f"{text}; it began there or before."


def next_step(difference: Difference) -> str | None:
    """What to do to know more."""
    if difference.same or difference.stage is not None:
        return None
    assert difference.first_step is not None
    begin = difference.same_bits_until
    if begin is None:
        return f"To see in which stage: run both again up to step {difference.first_step} with tensor_interval=1."
    return f"To see in which stage: run both again from step {begin} to {difference.first_step} with tensor_interval=1."


def _bits(difference: Difference) -> Iterator[str]:
    same, apart = difference.same_bits_until, difference.bits_apart_at
    if same is None and apart is None:
        yield "no checksums of the same steps"
    elif apart is None:
        yield f"the same at every checksummed step, the last of them {same}"
    else:
        yield f"{'apart' if same is None else f'same at {same}, apart'} at {apart}"


def _distance_text(each: Distance) -> str:
    passed = [
        f"{threshold:g} at {each.passes[threshold]}" for threshold in THRESHOLDS if each.passes[threshold] is not None
    ]
    beyond = f", passes {', '.join(passed)}" if passed else ""
    late = "" if each.last_tenth is None else f"; {number_text(each.last_tenth)} over the last tenth"
    return f"{each.column}: from {each.first_step} on{beyond}{late}"


def _verdict_text(verdict: Verdict) -> str:
    of = f"{verdict.column}: {number_text(verdict.difference)} apart over the last tenth"
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


def _steps_text(steps: tuple[int, ...]) -> str:
    if not steps:
        return "none"
    return ", ".join(map(str, steps[:5])) + (f" and {len(steps) - 5:,} more" if len(steps) > 5 else "")


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more tensors" if len(names) > 3 else "")


def _plain(column: str) -> str:
    return {"step_hash": "hash of loss and norms", "checksum": "checksums"}.get(column, column)
