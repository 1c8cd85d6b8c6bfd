"""Where the first NaN or inf of a replay came from, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tbnum.measure.extremes import limit_of
from tbnum.observe.origin import Cause, WatchedRun
from tbnum.observe.shares import SampleShare

__all__ = ["dtype_name", "message"]


def message(
    cause: Cause,
    run: WatchedRun,
    bad_parameters: Sequence[str],
    batch_size: int | None,
    culprits: Sequence[int] | None,
    shares: Sequence[SampleShare] = (),
) -> str:
    """`bad_parameters` of the module at fault are not finite; `culprits` are its samples in a batch of that size.

    `shares`: of a batch that was finite.
    """
    sentence = _nothing_found(run) if cause.tensor is None else _sentence(cause, bad_parameters)
    if batch_size is not None and culprits is not None:
        sentence += f"; {_samples_in_words(culprits, batch_size)}"
    if batch_size is not None and shares:
        sentence += f"; {_shares_in_words(shares, batch_size)}"
    return f"{sentence}."


def _nothing_found(run: WatchedRun) -> str:
    at = f", at {_module(run.largest_gradient_at)}" if run.largest_gradient_at is not None else ""
    return (
        "Everything was finite in this replay, loss and gradients; the largest gradient on its way was "
        f"{run.largest_gradient:.3g}{at}. The step may have run with another scale, batch or random state"
    )


def _sentence(cause: Cause, bad_parameters: Sequence[str]) -> str:
    tensor = cause.tensor
    assert tensor is not None
    module = _module(cause.module)
    by = f", by {_CALLED.get(cause.operation, cause.operation)}" if cause.operation else ""
    what = f"{dtype_name(tensor.dtype)} of shape {tensor.shape}{by}"
    range_ = f"{dtype_name(tensor.dtype)} ends at {limit_of(tensor.dtype):.6g}"
    there = (
        "no value there is finite" if tensor.largest is None else f"the largest finite value is {tensor.largest:.6g}"
    )
    ends = f"{there}, and {range_}"
    if bad_parameters and cause.phase == "forward":
        return (
            f"Parameters of {module} are not finite ({', '.join(bad_parameters[:4])}), and so no batch can pass it: "
            "load a checkpoint in which they are, and replay from there"
        )
    if cause.phase == "backward":
        if cause.sum_of_finite:
            return f"Gradients that are finite each add up to {tensor.kind} at {module}: {what}; {ends}"
        if cause.module is None:
            return f"The backward of the loss, after the model, makes {tensor.kind}: {what}; {ends}"
        if not cause.inputs_finite:
            return (
                f"The forward is finite; the gradient of the output of {module} holds {tensor.kind} already when it "
                f"comes from the loss, after the model: {what}; {ends}"
            )
        return (
            f"The forward is finite; gradients come finite into {module}, and its backward makes {tensor.kind}: "
            f"{what}; {ends}"
        )
    if cause.what == "loss":
        return f"Every module's output is finite; what follows, up to the loss, makes {tensor.kind}: {what}; {ends}"
    if cause.module is None:
        return f"What the model is given is not finite already: {tensor.kind} in the input of {_module(cause.consumer)}"
    inputs = "not finite" if not cause.inputs_finite else f"finite (up to {cause.largest_input or 0:.4g})"
    where = "" if cause.consumer is None else f", in its own code before it calls {_module(cause.consumer)}"
    return f"The forward of {module} makes {tensor.kind}{where}: its input is {inputs}, its result {what}; {ends}"


_CALLED = {"_to_copy": "a cast"}


def _samples_in_words(culprits: Sequence[int], size: int) -> str:
    if not culprits:
        return f"no sample of the {size} does it alone"
    if len(culprits) == 1:
        return f"sample {culprits[0]} of the {size} does it"
    shown = ", ".join(map(str, culprits[:8])) + (f" and {len(culprits) - 8} more" if len(culprits) > 8 else "")
    return f"samples {shown} of the {size} do it, each alone"


STANDS_OUT = 3  # times an equal share


def _shares_in_words(shares: Sequence[SampleShare], size: int) -> str:
    high = [share for share in shares if share.largest > STANDS_OUT / size][:4]
    equal = f"an equal share would be {_percent(1 / size)}"
    if not high:
        first = shares[0]
        return f"no sample of the {size} stands out: sample {first.sample} makes most, {_share(first)}; {equal}"
    first, *others = high
    text = f"sample {first.sample} of the {size} makes {_share(first)}"
    text += "".join(
        f", sample {share.sample} {_percent(share.loss)} and {_percent(share.grad_norm)}" for share in others
    )
    return f"{text}; {equal}"


def _share(share: SampleShare) -> str:
    return f"{_percent(share.loss)} of the loss and {_percent(share.grad_norm)} of the gradient norm"


def _percent(share: float) -> str:
    return (
        "an unknown part"
        if share != share
        else f"{100 * share:.2g} %"
        if abs(share) < 0.995
        else f"{100 * share:.0f} %"
    )


def _module(name: str | None) -> str:
    return repr(name) if name else "the model itself"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
