"""A scaler that nobody gave to `wrap` is found: the record is the one that it would have been, but for the time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tbnum
from tests.loops import OPTIMIZERS, Half, batches, train
from tests.published.check import bits
from tests.published.scalers import NativeScalerWithGradNormCount, OwnScaler

pytestmark = pytest.mark.usefixtures("one_thread")

Wrap = Callable[..., Any]


def scaler_for(init_scale: float = 2.0**22, kind: type[torch.amp.GradScaler] = torch.amp.GradScaler) -> Any:
    return kind("cpu", init_scale=init_scale, growth_interval=8)


def plain(wrap: Wrap, *, optimizer: str = "SGD", options: dict[str, Any] | None = None, **how: Any) -> None:
    model, scaler = Half(), how.pop("scaler", None) or scaler_for(how.pop("init_scale", 2.0**22))
    wrapped = OPTIMIZERS[optimizer](model.parameters(), **(options or {}))
    wrap(wrapped, scaler, model=model)
    train(model, wrapped, scaler, batches(60, bad=[20, 41]), **how)


def two_optimizers(wrap: Wrap) -> None:
    """One scaler over two optimizers, of which one overflows alone; one update."""
    models, scaler = [Half(), Half()], scaler_for(2.0**12)
    optimizers = {name: OPTIMIZERS["SGD"](model.parameters()) for name, model in zip("ab", models, strict=True)}
    wrap(optimizers, scaler)
    for number, x in enumerate(batches(40)):
        for model, optimizer in zip(models, optimizers.values(), strict=True):
            optimizer.zero_grad()
            bad = number == 15 and optimizer is optimizers["b"]
            scaler.scale(model(x * 3e4 if bad else x).square().mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
        scaler.update()


def an_object_around_it(wrap: Wrap) -> None:
    model, around = Half(), NativeScalerWithGradNormCount()
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    wrap(optimizer, around, model=model)
    for x in batches(40, bad=[21]):
        around(model(x).square().mean(), optimizer, clip_grad=0.3, parameters=model.parameters())
        optimizer.zero_grad()


def a_scale_set_by_the_user(wrap: Wrap) -> None:
    model, scaler = Half(), scaler_for(2.0**10)
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    wrap(optimizer, scaler, model=model)
    for number, x in enumerate(batches(30)):
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update(2.0**9 if number == 10 else None)
        optimizer.zero_grad()


LOOPS: dict[str, Callable[[Wrap], None]] = {
    "the recipe": lambda wrap: plain(wrap, max_norm=0.5),
    "no unscale_, no clip": plain,
    "unscale_ without a clip": lambda wrap: plain(wrap, unscale=True),
    "accumulation": lambda wrap: plain(wrap, accumulate=4, max_norm=0.5, init_scale=2.0**12),
    "AdamW, fused": lambda wrap: plain(wrap, optimizer="AdamW", options={"fused": True}),
    "AdamW, fused, with a clip": lambda wrap: plain(wrap, optimizer="AdamW", options={"fused": True}, max_norm=0.5),
    "a subclass that overrides everything": lambda wrap: plain(wrap, scaler=scaler_for(kind=OwnScaler), max_norm=0.5),
    "never a skip": lambda wrap: plain(wrap, init_scale=2.0**3, max_norm=0.5),
    "two optimizers": two_optimizers,
    "an object around it": an_object_around_it,
    "a scale set by the user": a_scale_set_by_the_user,
}


def recorded(loop: Callable[[Wrap], None], folder: Path, given: bool) -> Any:
    torch.manual_seed(3)
    monitors = []

    def wrap(optimizer: Any, scaler: Any, **options: Any) -> None:
        monitors.append(tbnum.wrap(optimizer, scaler if given else None, logdir=folder, tensor_interval=5, **options))

    loop(wrap)
    monitors[0].close()
    (run,) = tbnum.read(folder).values()
    return run


def without_times(columns: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: bits(values) for name, values in columns.items() if name != "wall_time"}


def facts_of(run: Any) -> list[tuple[Any, ...]]:
    """Of its events, but when and where in the code each was."""
    return [
        (event.step, event.kind, event.cause, event.severity) for event in run.events if event.kind != "scaler_found"
    ]


@pytest.mark.parametrize("name", LOOPS)
def test_a_forgotten_scaler_gives_every_column_bitwise_as_a_given_one(name: str, tmp_path: Path) -> None:
    given = recorded(LOOPS[name], tmp_path / "given" / "run", given=True)
    forgotten = recorded(LOOPS[name], tmp_path / "forgotten" / "run", given=False)
    assert without_times(forgotten.steps) == without_times(given.steps)
    assert len(given.steps["step"]) > 10 and not np.isnan(given.steps["loss_scale"]).any()
    assert facts_of(forgotten) == facts_of(given)
    assert [event.kind for event in forgotten.events].count("scaler_found") == 1
    assert "scaler_found" not in [event.kind for event in given.events]
    for column in ("grad_norm", "param_norm", "update_norm"):
        here, there = forgotten.tensors[column], given.tensors[column]
        assert [bits(part) for part in here] == [bits(part) for part in there], column
