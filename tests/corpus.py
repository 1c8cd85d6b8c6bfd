"""Small training runs that really overflow, each with the known cause of every skipped step.

    python -m tests.corpus        # trains them all and prints the confusion table

The truth does not come from tbnum: a loop sees by itself that a step was skipped (the scale fell), and knows why from
what was planted. Where nothing was, a scale that no step had survived since the start is warming up, and one that is
higher than any that survived is a probe.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tbnum
from tbnum.explain import CAUSES
from tests.loops import OPTIMIZERS, Half, batches

Skip = tuple[int, str | None, str]  # step, optimizer, cause


class Known(nn.Module):
    """Parameters whose gradient is known: it is the input, rounded to float16 while it carries the loss scale.

    They start at zero and hardly move, so the loss stays near zero whatever the gradient.
    """

    def __init__(self, tensors: int = 3, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ParameterList([nn.Parameter(torch.zeros(width)) for _ in range(tensors)])

    def forward(self, gradients: Sequence[float]) -> Tensor:
        """`gradients`: of every element, by tensor."""
        parts = [
            (layer.half().float() * gradient).sum() for layer, gradient in zip(self.layers, gradients, strict=True)
        ]
        return torch.stack(parts).sum()


@dataclass
class Loop:
    """A loop with a scaler, recorded, that keeps its own account of skips."""

    logdir: Path
    model: nn.Module
    optimizer: str = "SGD"
    init_scale: float = 2.0**10
    growth_interval: int = 2000
    fused: bool = False
    max_norm: float | None = None
    lr: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of wrap
    truth: list[Skip] = field(default_factory=list)

    def __post_init__(self) -> None:
        more = {"fused": True} if self.fused else {}
        self.opt = OPTIMIZERS[self.optimizer](self.model.parameters(), **more)
        for group in self.opt.param_groups:
            group["lr"] = group["lr"] if self.lr is None else self.lr
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.init_scale, growth_interval=self.growth_interval)
        self.monitor = tbnum.wrap(self.opt, self.scaler, model=self.model, logdir=self.logdir, **self.options)
        self.survived = 0.0  # the highest scale of a step that was taken
        self.started = False  # a step was taken since the start, or since the scale was set

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self.monitor.close()

    def set_scale(self, scale: float) -> None:
        self.scaler.update(scale)
        self.started = False

    def step(self, *losses: Callable[[], Tensor], planted: str | None = None) -> bool:
        """One update from the backward of each loss; whether it was taken. `planted`: the cause if it is not."""
        step, scale = self.monitor.step, self.scaler.get_scale()
        for loss in losses:
            self.scaler.scale(loss()).backward()
        if self.max_norm is not None:
            self.scaler.unscale_(self.opt)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad()
        taken = self.scaler.get_scale() >= scale
        if taken:
            self.started, self.survived = True, max(self.survived, scale)
        else:
            self.truth.append((step, None, planted or self.cause_at(scale)))
        return taken

    def cause_at(self, scale: float) -> str:
        if not self.started:
            return "scale_warmup"
        assert scale > self.survived, f"a skip at scale {scale} that was not planned, though {self.survived} survived"
        return "growth_probe"


def _square(model: nn.Module, x: Tensor, target: float = 0.0) -> Callable[[], Tensor]:
    return lambda: (model(x) - target).square().mean()


def _known(model: Known, *gradients: float) -> Callable[[], Tensor]:
    return lambda: model(gradients)


CASES: dict[str, Callable[[Path], list[Skip]]] = {}


def case(train: Callable[[Path], list[Skip]]) -> Callable[[Path], list[Skip]]:
    CASES[train.__name__] = train
    return train


# -- the life of a loss scale ------------------------------------------------------------------------------------------


@case
def healthy(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half(), max_norm=0.1) as loop:  # near the usual norm: some steps are clipped, some are not
        for x in batches(120):
            loop.step(_square(loop.model, x))
    return loop.truth


@case
def first_scale_far_too_high(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half(), init_scale=2.0**30, lr=1e-4) as loop:
        for x in batches(1) * 60:
            loop.step(_square(loop.model, x))
    assert len(loop.truth) > 5
    return loop.truth


@case
def first_scale_far_too_high_fused(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half(), "AdamW", init_scale=2.0**30, fused=True, lr=1e-4) as loop:
        for x in batches(1) * 60:
            loop.step(_square(loop.model, x))
    assert len(loop.truth) > 5
    return loop.truth


@case
def overflows_again_after_one_good_step(logdir: Path) -> list[Skip]:
    """The contract's word: once a step was taken, the scale has held, however short."""
    with Loop(logdir, Known(), init_scale=2.0**18) as loop:
        for gradients in [(0.7, 0.1, 0.1)] * 3 + [(1.4, 0.1, 0.1)] + [(0.7, 0.1, 0.1)] * 20:
            loop.step(_known(loop.model, *gradients), planted="bad_batch" if gradients[0] > 1 else None)
    assert [cause for *_, cause in loop.truth] == ["scale_warmup"] * 2 + ["bad_batch"]
    return loop.truth


@case
def growth_interval_of_5_as_apex_users_have_it(logdir: Path) -> list[Skip]:
    """The gradient overflows at the doubled scale alone."""
    with Loop(logdir, Known(), init_scale=2.0**16, growth_interval=5) as loop:
        for _ in range(120):
            loop.step(_known(loop.model, 0.6, 0.1, 0.1))
    assert len(loop.truth) == 20
    return loop.truth


@case
def growth_at_every_step(logdir: Path) -> list[Skip]:
    with Loop(logdir, Known(), init_scale=2.0**16, growth_interval=1) as loop:
        for _ in range(60):
            loop.step(_known(loop.model, 0.6, 0.1, 0.1))
    assert len(loop.truth) == 30
    return loop.truth


@case
def probes_of_a_network_that_learns(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half(), init_scale=2.0**22, growth_interval=20, lr=1e-4) as loop:
        for x in batches(1) * 150:
            loop.step(_square(loop.model, x))
    assert {cause for *_, cause in loop.truth} == {"scale_warmup", "growth_probe"}
    return loop.truth


@case
def probe_that_overflows_some_steps_after_the_growth(logdir: Path) -> list[Skip]:
    with Loop(logdir, Known(), init_scale=2.0**15, growth_interval=30) as loop:
        for step in range(60):
            loop.step(_known(loop.model, 1.05 if step % 35 == 34 else 0.9, 0.1, 0.1), planted="growth_probe")
    assert len(loop.truth) == 1
    return loop.truth


@case
def growth_fused_with_clipping(logdir: Path) -> list[Skip]:
    with Loop(logdir, Known(), "AdamW", 2.0**15, growth_interval=12, fused=True, max_norm=1.0, lr=1e-9) as loop:
        for _ in range(80):
            loop.step(_known(loop.model, 0.6, 0.1, 0.1))
    assert len(loop.truth) >= 3
    return loop.truth


@case
def scale_set_by_hand(logdir: Path) -> list[Skip]:
    with Loop(logdir, Known(), init_scale=2.0**12) as loop:
        for step in range(60):
            if step == 30:
                loop.set_scale(2.0**20)
            loop.step(_known(loop.model, 0.6, 0.1, 0.1))
    assert [(step, cause) for step, _, cause in loop.truth] == [(at, "scale_warmup") for at in range(30, 34)]
    return loop.truth


@case
def scaler_state_not_loaded(logdir: Path) -> list[Skip]:
    """The run goes on from a checkpoint that holds the monitor's state, with a scaler that starts again."""
    with Loop(logdir, Known(), init_scale=2.0**18) as before:
        for _ in range(40):
            before.step(_known(before.model, 0.6, 0.1, 0.1))
        state = before.monitor.state_dict()
    with Loop(logdir, Known(), init_scale=2.0**18) as after:
        after.monitor.load_state_dict(state)
        for _ in range(40):
            after.step(_known(after.model, 0.6, 0.1, 0.1))
    assert [step for step, *_ in before.truth + after.truth] == [0, 1, 40, 41]
    return before.truth + after.truth


@case
def record_that_begins_in_the_middle(logdir: Path) -> list[Skip]:
    """What the scaler did before step 500 is in another place: nothing says whether the scale had held."""
    with Loop(logdir, Known(), init_scale=2.0**16) as loop:
        loop.monitor.load_state_dict({**loop.monitor.state_dict(), "step": 500})
        loop.step(_known(loop.model, 1.4, 0.1, 0.1), planted="unknown")
        for step in range(40):
            loop.step(_known(loop.model, 2.8 if step == 30 else 0.6, 0.1, 0.1), planted="bad_batch")
    assert [cause for *_, cause in loop.truth] == ["unknown", "bad_batch"]
    return loop.truth


# -- bad batches -------------------------------------------------------------------------------------------------------


def _one_bad(logdir: Path, **settings: Any) -> list[Skip]:
    with Loop(logdir, Half(), **settings) as loop:
        for step, x in enumerate(batches(80, bad=[50])):
            loop.step(_square(loop.model, x), planted="bad_batch" if step == 50 else None)
    assert [step for step, *_ in loop.truth] == [50]
    return loop.truth


@case
def bad_batch_at_a_scale_that_had_held(logdir: Path) -> list[Skip]:
    return _one_bad(logdir)


@case
def bad_batch_clipped(logdir: Path) -> list[Skip]:
    return _one_bad(logdir, max_norm=1.0)


@case
def bad_batch_fused(logdir: Path) -> list[Skip]:
    return _one_bad(logdir, optimizer="AdamW", fused=True)


@case
def bad_batch_fifteen_steps_after_a_growth(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half(), growth_interval=30) as loop:
        for step, x in enumerate(batches(70, bad=[45])):
            loop.step(_square(loop.model, x), planted="bad_batch" if step == 45 else None)
    assert [step for step, *_ in loop.truth] == [45]
    return loop.truth


@case
def bad_batch_right_after_a_growth_told_by_its_loss(logdir: Path) -> list[Skip]:
    """Wrong labels: the loss is far beyond the usual."""
    with Loop(logdir, Half(), growth_interval=30) as loop:
        for step, x in enumerate(batches(50)):
            bad = step == 31
            loop.step(_square(loop.model, x, 5e3 if bad else 0.0), planted="bad_batch" if bad else None)
    assert [step for step, *_ in loop.truth] == [31]
    return loop.truth


@case
def bad_batch_right_after_a_growth_told_by_its_finite_gradients(logdir: Path) -> list[Skip]:
    """The loss says nothing, but the gradients that stayed finite are fifty times as long as usual."""
    with Loop(logdir, Known(), growth_interval=30, options={"tensor_interval": 5}) as loop:
        for step in range(60):
            bad = step == 31
            gradients = (100.0, 5.0, 5.0) if bad else (0.1, 0.1, 0.1)
            loop.step(_known(loop.model, *gradients), planted="bad_batch" if bad else None)
    assert [step for step, *_ in loop.truth] == [31]
    return loop.truth


@case
def bad_batches_in_a_row(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half()) as loop:
        for step, x in enumerate(batches(80)):
            bad = 50 <= step <= 52
            loop.step(_square(loop.model, x, 5e3 if bad else 0.0), planted="bad_batch" if bad else None)
    assert [step for step, *_ in loop.truth] == [50, 51, 52]
    return loop.truth


@case
def bad_micro_batch_among_four(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half(), max_norm=1.0) as loop:
        data = batches(160, bad=[4 * 25 + 2])
        for step in range(40):
            losses = [_square(loop.model, x) for x in data[4 * step : 4 * step + 4]]
            loop.step(*losses, planted="bad_batch" if step == 25 else None)
    assert [step for step, *_ in loop.truth] == [25]
    return loop.truth


@case
def batch_spoiled_on_purpose(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half(), growth_interval=20) as loop:
        for step, x in enumerate(batches(40)):
            bad = step == 21
            if bad:
                loop.monitor.annotate("labels of 5,000", injected=True)
            loop.step(_square(loop.model, x, 5e3 if bad else 0.0), planted="bad_batch" if bad else None)
    assert [step for step, *_ in loop.truth] == [21]
    return loop.truth


@case
def two_optimizers_one_of_which_overflows(logdir: Path) -> list[Skip]:
    models = {"generator": Half(), "critic": Half()}
    optimizers = {name: OPTIMIZERS["SGD"](model.parameters()) for name, model in models.items()}
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with tbnum.wrap(optimizers, scaler, model=models, logdir=logdir):
        data = {"generator": batches(60), "critic": batches(60, seed=2, bad=[40])}
        for step in range(60):
            for name, model in models.items():
                scaler.scale(_square(model, data[name][step])()).backward()
            for optimizer in optimizers.values():
                scaler.step(optimizer)
            scaler.update()
            for optimizer in optimizers.values():
                optimizer.zero_grad()
    assert scaler.get_scale() == 2.0**9
    return [(40, "critic", "bad_batch")]


@case
def backward_that_gives_nan_at_any_scale(logdir: Path) -> list[Skip]:
    """sqrt at 0: the loss is finite, its gradient is not, and no scale is to blame."""
    with Loop(logdir, Half(), init_scale=2.0**4) as loop:
        for step, x in enumerate(batches(60)):
            bad = step >= 40
            zero = 0.0 if bad else 1.0

            def loss(x: Tensor = x, zero: float = zero) -> Tensor:
                return (loop.model(x) * zero).square().sum().sqrt()

            loop.step(loss, planted="backward_nonfinite" if bad else None)
    assert len(loop.truth) == 20
    return loop.truth


# -- no scale helps ----------------------------------------------------------------------------------------------------


def _log(model: nn.Module, x: Tensor, factor: float = 1.0) -> Callable[[], Tensor]:
    """-log p; at a factor of 0 an inf."""
    return lambda: -torch.log(torch.sigmoid(model(x)) * factor).mean()


def _root(model: nn.Module, x: Tensor, factor: float = 1.0) -> Callable[[], Tensor]:
    """The root of a probability; at a factor of -1 a NaN."""
    return lambda: torch.sqrt(torch.sigmoid(model(x)) * factor).mean()


def _nonfinite_loss(logdir: Path, loss: Callable[..., Callable[[], Tensor]], factor: float) -> list[Skip]:
    with Loop(logdir, Half(), growth_interval=30) as loop:
        for step, x in enumerate(batches(60)):
            bad = step in (30, 45)  # right after a growth, and later
            loop.step(loss(loop.model, x, factor if bad else 1.0), planted="forward_nonfinite" if bad else None)
    assert [step for step, *_ in loop.truth] == [30, 45]
    return loop.truth


@case
def inf_loss(logdir: Path) -> list[Skip]:
    return _nonfinite_loss(logdir, _log, 0.0)


@case
def nan_loss(logdir: Path) -> list[Skip]:
    return _nonfinite_loss(logdir, _root, -1.0)


@case
def nan_loss_from_the_start_for_200_steps(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half(), init_scale=2.0**16) as loop:
        for x in batches(200):
            loop.step(_root(loop.model, x, -1.0), planted="forward_nonfinite")
            if loop.scaler.get_scale() == 0:  # float32 ends at 2**-149: the scale cannot fall any more
                break
        begun = loop.monitor.step
        for x in batches(200 - begun):
            loop.scaler.scale(_root(loop.model, x, -1.0)()).backward()
            loop.scaler.step(loop.opt)
            loop.scaler.update()
            loop.opt.zero_grad()
            loop.truth.append((loop.monitor.step - 1, None, "forward_nonfinite"))
    assert len(loop.truth) == 200
    return loop.truth


@case
def nan_loss_of_one_micro_batch(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half()) as loop:
        data = batches(90)
        for step in range(30):
            losses = [
                _root(loop.model, x, -1.0 if (step, at) == (20, 1) else 1.0)
                for at, x in enumerate(data[3 * step : 3 * step + 3])
            ]
            loop.step(*losses, planted="forward_nonfinite" if step == 20 else None)
    assert [step for step, *_ in loop.truth] == [20]
    return loop.truth


@case
def parameters_become_nan(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half()) as loop:
        for step, x in enumerate(batches(45)):
            if step == 30:
                with torch.no_grad():
                    loop.model.second[0] = math.nan  # a broken checkpoint, a broken all-reduce
            loop.step(_square(loop.model, x), planted="nonfinite_parameters")
    assert len(loop.truth) == 15
    return loop.truth


@case
def step_past_the_scaler_spoils_the_parameters(logdir: Path) -> list[Skip]:
    with Loop(logdir, Half()) as loop:
        for step, x in enumerate(batches(40, bad=[20])):
            if step == 20:
                loop.scaler.scale(_square(loop.model, x)()).backward()
                loop.opt.step()  # takes the inf gradients as they are
                loop.opt.zero_grad()
                continue
            loop.step(_square(loop.model, x), planted="nonfinite_parameters")
    assert len(loop.truth) == 19
    return loop.truth


@case
def without_a_scaler_a_bad_batch_is_no_skip(logdir: Path) -> list[Skip]:
    model = Half()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    with tbnum.wrap(optimizer, model=model, logdir=logdir) as monitor:
        for x in [each * 1e3 for each in batches(1)] * 3 + [torch.full((16, 8), math.inf)] + batches(2):
            loss = _square(model, x)()
            monitor.log_loss(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return []


# -- all of them -------------------------------------------------------------------------------------------------------


def reported(logdir: Path) -> list[Skip]:
    """What tbnum says of the run in a folder."""
    (run,) = tbnum.read(logdir).values()
    return [(event.step, event.optimizer, event.cause or "") for event in run.events if event.kind == "skip"]


def train(name: str, logdir: Path) -> list[Skip]:
    torch.manual_seed(0)
    return CASES[name](logdir)


def confusion(pairs: Iterator[tuple[str, str]]) -> str:
    """A table: what it was down the side, what was reported along the top."""
    count = Counter(pairs)
    names = [*CAUSES, *sorted({name for pair in count for name in pair} - set(CAUSES))]
    head = f"{'was, reported as':<22}" + "".join(f"{name:>22}" for name in names)
    lines = [f"{was:<22}" + "".join(f"{count[was, each] or '.':>22}" for each in names) for was in names]
    return "\n".join([head, *lines])


def _pairs(truth: Sequence[Skip], found: Sequence[Skip]) -> Iterator[tuple[str, str]]:
    were, are = ({(step, who): cause for step, who, cause in skips} for skips in (truth, found))
    for key in {**were, **are}:
        yield were.get(key, "no skip"), are.get(key, "no skip")


def main() -> int:
    pairs: list[tuple[str, str]] = []
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            truth = train(name, Path(folder))
            own = list(_pairs(truth, reported(Path(folder))))
        wrong = sum(was != is_ for was, is_ in own)
        print(f"{'ok   ' if not wrong else 'WRONG'}  {name:<62} {len(own):>4} skips")
        pairs += own
    print(f"\n{len(CASES)} runs\n\n{confusion(iter(pairs))}")
    return int(any(was != is_ for was, is_ in pairs))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
