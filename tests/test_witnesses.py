"""Step hashes and checksums of real trainings: the same for the same training, others from where it differs on."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tbnum
from tbnum.measure.checksums import checksums

STEPS = 40

Change = Callable[[int, nn.Module, torch.optim.Optimizer], None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.block = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(torch.tanh(self.block(torch.tanh(self.embed(x))))))


def nothing(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    pass


def train(
    folder: Path,
    *,
    before_forward: Change = nothing,
    before_step: Change = nothing,
    clip: bool = True,
    steps: int = STEPS,
    **options: object,
) -> tbnum.Run:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randn(steps, 32, 8)
    with tbnum.wrap(optimizer, model=model, logdir=folder, verbose=False, **options):  # type: ignore[arg-type]
        for step in range(steps):
            before_forward(step, model, optimizer)
            model(data[step]).square().mean().backward()
            before_step(step, model, optimizer)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    return tbnum.read(folder)["."]


def one_gradient_element(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == 20:
        gradient = model.block.weight.grad  # type: ignore[union-attr]
        gradient.view(-1)[7].copy_(torch.nextafter(gradient.view(-1)[7], torch.tensor(9.0)))


def dropouts_seed(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == 20:
        torch.manual_seed(99)


def eps(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == 20:
        optimizer.param_groups[0]["eps"] = 1e-7


def learning_rate(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == 20:
        optimizer.param_groups[0]["lr"] += 1e-9


def test_the_same_training_is_the_same_bits_at_every_checksummed_step(tmp_path: Path) -> None:
    runs = [train(tmp_path / name, tensor_interval=10) for name in "ab"]
    found = tbnum.diff(*runs)
    assert found.same and found.same_bits_until == STEPS - 1, "as far as the end, whose checksums close() takes"
    hashes = runs[0].steps["step_hash"]
    assert (hashes != 0).all() and len(set(hashes.tolist())) == STEPS
    assert list(runs[0].checksums) == ["exp_avg", "exp_avg_sq", "gradient", "parameter"]


def _name(value: object) -> str | None:
    return getattr(value, "__name__", None)


FAULTS = [
    ("before_step", one_gradient_element, "backward", ("block.weight",)),
    ("before_forward", dropouts_seed, "forward", None),
    ("before_step", eps, "optimizer", None),
    ("before_step", learning_rate, "optimizer", None),
]


@pytest.mark.parametrize(("where", "fault", "stage", "tensors"), FAULTS, ids=_name)
def test_with_checksums_at_every_step_the_step_and_its_stage_are_named(
    where: str, fault: Change, stage: str, tensors: tuple[str, ...] | None, tmp_path: Path
) -> None:
    clean = train(tmp_path / "clean", tensor_interval=1)
    faulty = train(tmp_path / "faulty", tensor_interval=1, **{where: fault})  # type: ignore[arg-type]
    found = tbnum.diff(clean, faulty)
    assert (found.first_step, found.same_bits_until, found.bits_apart_at, found.stage) == (20, 19, 20, stage), found
    assert tensors is None or found.tensors == tensors
    assert found.begun_in == (tensors[0] if tensors else None)


def one_larger_gradient(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == 20:
        model.block.weight.grad.view(-1)[7].mul_(1.5)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("where", "fault"), [("before_step", one_larger_gradient), *(each[:2] for each in FAULTS[1:])], ids=_name
)
def test_with_checksums_now_and_then_it_is_bracketed_and_no_stage_claimed(
    where: str, fault: Change, tmp_path: Path
) -> None:
    clean = train(tmp_path / "clean", tensor_interval=15)
    faulty = train(tmp_path / "faulty", tensor_interval=15, **{where: fault})  # type: ignore[arg-type]
    found = tbnum.diff(clean, faulty)
    assert (found.same_bits_until, found.bits_apart_at, found.stage) == (15, 30, None), found
    assert found.first_step is not None and 20 <= found.first_step <= 30


def test_checksums_are_of_the_gradients_before_clipping_and_of_what_the_step_left(tmp_path: Path) -> None:
    seen: dict[str, list[int]] = {"gradient": [], "before": []}

    def look(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        seen["gradient"].append(int(checksums([model.block.weight.grad])[0]))  # type: ignore[union-attr, list-item]

    def look_before(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        seen["before"].append(int(checksums([model.block.weight])[0]))  # type: ignore[union-attr, list-item]

    run = train(tmp_path, tensor_interval=1, before_step=look, before_forward=look_before, steps=6)
    for what, shift in (("gradient", 0), ("parameter", 1)):
        steps, names, values = run.checksums[what]
        at = names.index("block.weight")
        reported = np.array(seen["gradient" if what == "gradient" else "before"], np.int64).view(np.uint64)[shift:]
        assert values[: len(reported), at].tolist() == reported.tolist() and steps.tolist() == list(range(6))


def test_a_column_differs_from_the_step_on_at_which_the_loops_own_numbers_do(tmp_path: Path) -> None:
    """Adam's eps at step 5: parameters differ from there on, the loss from where its float32 shows it."""

    def run(folder: Path, changes: bool) -> tuple[tbnum.Run, list[float]]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        losses = []
        with tbnum.wrap(optimizer, model=model, logdir=folder, tensor_interval=1, verbose=False):
            for step in range(STEPS):
                loss = model(torch.randn(32, 8)).square().mean()
                losses.append(loss.item())
                loss.backward()
                if step == 5 and changes:
                    optimizer.param_groups[0]["eps"] = 1e-7
                optimizer.step()
                optimizer.zero_grad()
        return tbnum.read(folder)["."], losses

    (a, losses), (b, others) = (run(tmp_path / str(changes), changes) for changes in (False, True))
    found = tbnum.diff(a, b)
    (loss,) = [each for each in found.columns if each.column == "loss"]
    assert loss.first_step == next(step for step in range(STEPS) if losses[step] != others[step])
    assert (found.first_step, found.stage) == (5, "optimizer")


@pytest.mark.parametrize("scaled", [True, False])
def test_where_a_gradient_is_not_finite_there_are_checksums_of_what_the_step_left(scaled: bool, tmp_path: Path) -> None:
    """Of failures in a row the first has them; with the default interval no step but 0 and the last would."""
    left: dict[int, list[int]] = {}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
    with tbnum.wrap(optimizer, scaler if scaled else None, model=model, logdir=tmp_path, verbose=False):
        for step in range(20):
            scaler.scale(model(torch.randn(4, 4)).square().mean()).backward()
            if step in (7, 8, 15):
                model[0].weight.grad[0, 0] = math.inf
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            left[step] = checksums(list(model.parameters())).numpy().view(np.uint64).tolist()
    run = tbnum.read(tmp_path)["."]
    failed = [0, 7, 15, 19] if scaled else [0, 7, 19]  # without a scaler step 7 leaves NaN, and each after it fails
    for what in ("parameter", "exp_avg", "exp_avg_sq"):
        steps, names, values = run.checksums[what]
        known = (values != 0).all(axis=1)
        assert steps[known].tolist() == failed and names == tuple(name for name, _ in model.named_parameters())
    steps, _, values = run.checksums["parameter"]
    assert [values[steps.tolist().index(step)].tolist() for step in failed] == [left[step] for step in failed]


def test_checksums_can_be_switched_off(tmp_path: Path) -> None:
    run = train(tmp_path, tensor_interval=10, checksums=False)
    assert run.checksums == {} and "param_norm" in run.tensors and (run.steps["step_hash"] != 0).all()


def test_hashes_of_norms_that_the_clip_took_are_not_compared_with_others(tmp_path: Path) -> None:
    clipped, plain = train(tmp_path / "a", steps=3), train(tmp_path / "b", steps=3, clip=False)
    ways = [set((run.steps["step_hash"] & np.uint64(3)).tolist()) for run in (clipped, plain)]
    assert ways == [{2}, {1}]


class Tied(nn.Module):
    """A small language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(self.embed(tokens))))))


def train_tied(folder: Path, wrong: bool) -> tbnum.Run:
    """The optimizer has the biases last, as recipes group them by decay. `wrong`: a backward through `first` at 3."""
    torch.manual_seed(0)
    model = Tied()
    groups = [[each for each in model.parameters() if (each.ndim > 1) == decays] for decays in (True, False)]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=1e-3)
    with tbnum.wrap(optimizer, model=model, logdir=folder, verbose=False, tensor_interval=1):
        for step in range(6):
            optimizer.zero_grad()
            hook = model.first.register_full_backward_pre_hook(lambda module, gradient: (gradient[0] * 1.01,))
            if step != 3 or not wrong:
                hook.remove()
            nn.functional.cross_entropy(model(torch.arange(8)), torch.arange(8)).backward()
            hook.remove()
            optimizer.step()
    return tbnum.read(folder)["."]


def test_depth_is_that_of_the_model_without_tied_weights_whatever_the_groups_of_the_optimizer(tmp_path: Path) -> None:
    clean, wrong = (train_tied(tmp_path / name, name == "wrong") for name in ("clean", "wrong"))
    assert list(clean.meta["parameters"]) == [
        "embed.weight",
        "first.weight",
        "second.weight",
        "first.bias",
        "second.bias",
    ]
    assert clean.meta["depth"] == ["first.weight", "first.bias", "second.weight", "second.bias"]
    found = tbnum.diff(clean, wrong)
    assert (found.first_step, found.stage, found.begun_in) == (3, "backward", "first.bias")
    assert found.tensors == ("embed.weight", "first.weight", "first.bias")
