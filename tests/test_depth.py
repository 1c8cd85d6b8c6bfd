"""In which order a forward used the parameters: as the graph of the first backward shows, or said to be unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tbnum
from tbnum.observe.depth import order_of_use


class Reversed(nn.Module):
    """Its modules stand in the other order than its forward uses them in; `shared` is used twice, `tied` two ways."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.head = nn.Linear(6, 5)
        self.norm = nn.LayerNorm(6)
        self.second = nn.Linear(6, 6)
        self.shared = nn.Linear(6, 6, bias=False)
        self.first = nn.Linear(5, 6)
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.reentrant = reentrant

    def _inside(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(self.frozen(self.shared(x)))).relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        inside = self._inside
        x = inside(x) if self.reentrant is None else checkpoint(inside, x, use_reentrant=self.reentrant)
        return self.head(self.shared(x)).square().mean()


ORDER = [
    "first.weight",
    "first.bias",
    "second.weight",
    "second.bias",
    "norm.weight",
    "norm.bias",
    "head.weight",
    "head.bias",
]


def order(model: nn.Module, loss: Callable[[], torch.Tensor], backward: bool = True) -> list[str] | None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    root = loss()
    if backward:
        root.backward()
    names = [name for name, _ in model.named_parameters()]
    found = order_of_use([root], {"optimizer": optimizer})
    return None if found is None else [names[place] for _, place in found]


@pytest.mark.parametrize("reentrant", [None, False])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_order_is_that_of_the_forward_not_of_the_modules(reentrant: bool | None, dtype: torch.dtype | None) -> None:
    model = Reversed(reentrant)

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
            return model(torch.randn(3, 4, 5))

    assert order(model, loss) == ORDER


def test_a_tied_weight_is_left_out() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.block = nn.Linear(4, 4)
            self.head = nn.Linear(4, 7, bias=True)
            self.head.weight = self.embed.weight

        def forward(self) -> torch.Tensor:
            return F.cross_entropy(self.head(self.block(self.embed(torch.arange(7)))), torch.arange(7))

    model = Tied()
    assert order(model, model) == ["block.weight", "block.bias", "head.bias"]


@pytest.mark.parametrize("kind", ["reentrant", "compiled", "one use", "too long"])
def test_where_the_graph_does_not_show_it_there_is_no_order(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model: nn.Module = Reversed(True if kind == "reentrant" else None)
    if kind == "one use":
        model = nn.Linear(5, 5)
        assert order(model, lambda: model(torch.randn(3, 5)).sum()) is None
        return
    if kind == "too long":
        monkeypatch.setattr("tbnum.observe.depth.MOST", 5)
    called = torch.compile(model, backend="aot_eager") if kind == "compiled" else model
    assert order(model, lambda: called(torch.randn(3, 4, 5).requires_grad_())) is None


def train(folder: Path, model: nn.Module, wrong_at: int | None = None, *, named: bool = True) -> tbnum.Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tbnum.wrap(optimizer, model=model if named else None, logdir=folder, tensor_interval=1, verbose=False):
        generator = torch.Generator().manual_seed(1)
        for step in range(6):
            x = torch.randn(3, 4, 5, generator=generator)
            model(x).backward()
            if step == wrong_at:
                for name in ("first.weight", "second.weight"):
                    gradient = model.get_parameter(name).grad
                    assert gradient is not None
                    gradient[0, 0] *= 1.01
            optimizer.step()
            optimizer.zero_grad()
    return tbnum.read(folder)["."]


def twins(tmp_path: Path, reentrant: bool | None) -> tbnum.Difference:
    runs = []
    for name in ("clean", "wrong"):
        torch.manual_seed(0)
        model = Reversed(reentrant)
        runs.append(train(tmp_path / name, model, 3 if name == "wrong" else None))
    return tbnum.diff(*runs)


def test_a_backward_is_said_to_begin_in_the_deepest_tensor_of_the_forward(tmp_path: Path) -> None:
    found = twins(tmp_path, None)
    assert (found.first_step, found.stage, found.begun_in) == (3, "backward", "second.weight")
    assert found.depth_from == "forward" and tbnum.read(tmp_path / "clean")["."].meta["depth"] == ORDER


def test_where_the_order_is_not_known_the_models_is_taken_and_said(tmp_path: Path) -> None:
    from tbnum.compare.words import sentence

    found = twins(tmp_path, True)
    assert (found.first_step, found.stage, found.depth_from) == (3, "backward", "model")
    assert sentence(found).endswith("(by the order of the model).")


def test_without_a_model_the_forwards_order_is_known_all_the_same(tmp_path: Path) -> None:
    run = train(tmp_path, Reversed(), named=False)
    places = [f"group0.param{at}" for at in (7, 8, 4, 5, 2, 3, 0, 1)]
    assert (run.meta["depth"], run.meta["depth_from"]) == (places, "forward")


def test_of_losses_that_each_reach_another_optimizer_no_order_holds(tmp_path: Path) -> None:
    def train_two(folder: Path, wrong: bool) -> tbnum.Run:
        torch.manual_seed(0)
        models = {name: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)) for name in ("generator", "critic")}
        optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
        with tbnum.wrap(optimizers, model=models, logdir=folder, tensor_interval=1, verbose=False):
            for step in range(6):
                for name, model in models.items():
                    x = torch.randn(3, 4)
                    model(x * (1.01 if wrong and step == 3 and name == "generator" else 1)).square().mean().backward()
                for optimizer in optimizers.values():
                    optimizer.step()
                    optimizer.zero_grad()
        return tbnum.read(folder)["."]

    a, b = train_two(tmp_path / "a", False), train_two(tmp_path / "b", True)
    assert a.meta["depth_from"] == "several losses"
    found = tbnum.diff(a, b)
    assert found.first_step == 3 and found.stage is None


def test_training_is_bitwise_the_same_and_nothing_is_kept(tmp_path: Path) -> None:
    def run(recorded: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Reversed()
        if recorded:
            train(tmp_path, model)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            generator = torch.Generator().manual_seed(1)
            for _ in range(6):
                model(torch.randn(3, 4, 5, generator=generator)).backward()
                optimizer.step()
                optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    assert all(map(torch.equal, run(True), run(False)))
