"""Parameters that train nowhere are named: at the start, and when a layer was replaced or added since."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import tbnum
from tbnum.observe.coverage import Coverage


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


def sgd(*modules: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([each for module in modules for each in module.parameters()], lr=0.1)


def test_where_the_optimizers_hold_every_trainable_parameter_there_is_nothing_to_say() -> None:
    model = Net()
    model.head.bias.requires_grad_(False)
    both = [sgd(model.body), torch.optim.SGD([model.head.weight], lr=0.1)]
    assert Coverage({"": model}, both).look() is None


def test_parameters_that_are_in_no_optimizer_are_named_once() -> None:
    model = Net()
    optimizer = sgd(model.body)
    coverage = Coverage({"gpt": model}, [optimizer])
    found = coverage.look()
    assert found is not None and found.names == ("gpt.head.weight", "gpt.head.bias")
    assert found.elements == 3 and found.replaced == ()
    assert coverage.look() is None


def test_what_another_optimizer_of_the_program_holds_is_not_named() -> None:
    model = Net()
    optimizer, other = sgd(model.body), sgd(model.head)
    coverage = Coverage({"": model}, [optimizer])
    assert coverage.look() is None
    del other


def test_a_layer_that_was_replaced_is_named_with_what_stays_in_the_optimizer() -> None:
    model = Net()
    optimizer = sgd(model)
    coverage = Coverage({"": model}, [optimizer])
    assert coverage.look() is None
    model.head = nn.Linear(2, 3)
    found = coverage.look()
    assert found is not None
    assert found.names == found.replaced == ("head.weight", "head.bias")
    assert coverage.look() is None
    optimizer.add_param_group({"params": list(model.head.parameters())})
    model.neck = nn.Linear(2, 2)
    found = coverage.look()
    assert found is not None and found.names == ("neck.weight", "neck.bias") and found.replaced == ()


def test_a_parameter_that_is_unfrozen_and_in_no_optimizer_is_named() -> None:
    model = Net()
    model.head.requires_grad_(False)
    optimizer = sgd(model.body)
    coverage = Coverage({"": model}, [optimizer])
    assert coverage.look() is None and coverage.look() is None
    model.head.weight.requires_grad_(True)
    found = coverage.look()
    assert found is not None and found.names == ("head.weight",)


def test_a_parameter_without_a_shape_yet_is_named() -> None:
    model = nn.ModuleDict({"known": nn.Linear(2, 2), "lazy": nn.LazyLinear(2)})
    optimizer = sgd(model["known"])
    found = Coverage({"": model}, [optimizer]).look()
    assert found is not None and set(found.names) == {"lazy.weight", "lazy.bias"} and found.elements == 0


def test_neither_models_nor_optimizers_are_kept_alive() -> None:
    import gc
    import weakref

    model = Net()
    optimizer = sgd(model)
    coverage = Coverage({"": model}, [optimizer])
    refs = [weakref.ref(model), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
    assert coverage.look() is None


# -- in a record -----------------------------------------------------------------------------------------------------


def train(model: Net, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(3, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_wrap_that_leaves_parameters_out_says_so_once_and_the_record_has_it(tmp_path: Path) -> None:
    model = Net()
    optimizer = sgd(model.body)
    with pytest.warns(RuntimeWarning, match=r"2 trainable parameters.*head.weight, head.bias.*requires_grad") as caught:
        monitor = tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=2)
        train(model, optimizer, 6)
        monitor.close()
    assert len(caught) == 1 and caught[0].filename == __file__
    (event,) = tbnum.read(tmp_path)["."].events
    assert (event.kind, event.step, event.severity) == ("untrained_parameters", 0, "warning")
    assert event.data["names"] == ["head.weight", "head.bias"] and event.data["parameters"] == 2


def test_a_layer_that_is_replaced_in_the_run_is_noticed_at_the_interval(tmp_path: Path) -> None:
    model = Net()
    optimizer = sgd(model)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, tensor_interval=2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(model, optimizer, 3)
        model.head = nn.Linear(2, 3)
        with pytest.warns(RuntimeWarning, match=r"head.weight, head.bias.*replaced"):
            train(model, optimizer, 3)
    (event,) = tbnum.read(tmp_path)["."].events
    assert event.kind == "untrained_parameters" and 3 <= event.step <= 5
    assert event.data["replaced"] == ["head.weight", "head.bias"]


def test_without_a_model_there_is_nothing_to_compare(tmp_path: Path) -> None:
    model = Net()
    optimizer = sgd(model.body)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        train(model, optimizer, 2)
    assert tbnum.read(tmp_path)["."].events == []
