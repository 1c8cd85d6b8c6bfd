"""Hooks on modules, while they are there: no copy, pickle, script or export of the model knows of them."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import tbnum
from tbnum.observe.activations import ActivationWatch
from tbnum.observe.module_calls import Call, ModuleHooks
from tbnum.observe.names import named_modules
from tbnum.observe.sentinels import Sentinels

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")


def doubled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """A hook of the user's, which is in every copy."""
    return output * 2


def net() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model[0].register_forward_hook(doubled)
    return model


@contextlib.contextmanager
def watching(model: nn.Module) -> Iterator[None]:
    """Sentinels and activations at once, on every module."""
    sentinels, activations = Sentinels({"": model}), ActivationWatch({"": model}, True, 1)
    sentinels.arm(0)
    activations.step_begins(0)
    yield
    sentinels.disarm()
    activations.stop()
    for module in model.modules():
        for attribute in HOOKS:
            assert type(vars(module)[attribute]) is OrderedDict


def saved(model: nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    return buffer.getvalue()


def dumped(protocol: int) -> Callable[[nn.Module], bytes]:
    return lambda model: pickle.dumps(model, protocol)


@pytest.mark.parametrize("dump", [saved, *map(dumped, range(2, pickle.HIGHEST_PROTOCOL + 1))])
def test_a_pickle_made_while_the_model_is_watched_is_byte_for_byte_that_without(
    dump: Callable[[nn.Module], bytes],
) -> None:
    model = net()
    without = dump(model)
    with watching(model):
        assert dump(model) == without
    assert dump(model) == without and b"tbnum" not in without


def test_a_model_saved_while_it_is_watched_loads_where_tbnum_is_not_installed(tmp_path: Path) -> None:
    model = net()
    with watching(model):
        torch.save(model, tmp_path / "model.pt")
    script = """
import sys, torch
sys.modules["tbnum"] = None
sys.modules["tests"] = sys.modules["tests.test_forward_hooks"] = sys.modules["__main__"]
def doubled(module, args, output): return output * 2
model = torch.load(sys.argv[1], weights_only=False).eval()
print(model(torch.ones(2, 4)).tolist())
"""
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [sys.executable, "-c", script, "model.pt"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(model.eval()(torch.ones(2, 4)).tolist())


def copied(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


def unpickled(model: nn.Module) -> nn.Module:
    loaded: nn.Module = pickle.loads(pickle.dumps(model))
    return loaded


def averaged(model: nn.Module) -> nn.Module:
    return torch.optim.swa_utils.AveragedModel(model).module


@pytest.mark.parametrize("duplicate", [copied, unpickled, averaged])
def test_a_copy_of_a_watched_model_has_the_user_s_hooks_and_no_other(
    duplicate: Callable[[nn.Module], nn.Module],
) -> None:
    model = net()
    with watching(model):
        twin = duplicate(model)
    for module, its_like in zip(twin.modules(), model.modules(), strict=True):
        for attribute in HOOKS:
            assert type(vars(module)[attribute]) is OrderedDict
            assert vars(module)[attribute] == vars(its_like)[attribute]


def test_a_shallow_copy_shares_the_user_s_hooks_as_ever_and_loses_ours() -> None:
    model, calls = nn.Linear(4, 4), list[str]()
    hooks = ModuleHooks(lambda call, tensors: calls.append(call.module), lambda call, tensors: None)
    hooks.attach([("layer", model)])
    twin = copy.copy(model)
    hooks.detach()
    twin(torch.ones(1, 4))
    assert calls == []
    model.register_forward_hook(doubled)
    assert list(twin._forward_hooks.values()) == [doubled]


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def scripted(model: nn.Module) -> str:
    return re.sub(r"\.___torch_mangle_\d+", "", str(torch.jit.script(model).inlined_graph))


def traced(model: nn.Module) -> str:
    return re.sub(r"\.___torch_mangle_\d+", "", str(torch.jit.trace(model, torch.ones(2, 4)).inlined_graph))


def exported(model: nn.Module) -> str:
    return str(torch.export.export(model, (torch.ones(2, 4),)).graph)


def exported_strictly(model: nn.Module) -> str:
    return str(torch.export.export(model, (torch.ones(2, 4),), strict=True).graph)


def fx(model: nn.Module) -> str:
    return torch.fx.symbolic_trace(model).code


def made_fx(model: nn.Module) -> str:
    return str(make_fx(model)(torch.ones(2, 4)).code)


@pytest.mark.parametrize("graph_of", [scripted, traced, exported, exported_strictly, fx, made_fx])
def test_the_graph_of_a_watched_model_is_that_of_the_model_alone(graph_of: Callable[[nn.Module], str]) -> None:
    torch.manual_seed(0)
    model = Wide()
    alone = graph_of(model)
    with watching(model):
        assert graph_of(model) == alone


def test_hooks_that_others_add_and_remove_meanwhile_are_there_and_gone() -> None:
    model = nn.Linear(4, 4)
    calls: list[str] = []

    def hook(name: str) -> Callable[..., None]:
        return lambda *call: calls.append(name)

    before = model.register_forward_hook(hook("before"))
    hooks = ModuleHooks(lambda call, tensors: None, lambda call, tensors: calls.append("ours"))
    hooks.attach([("", model)])
    meanwhile = model.register_forward_hook(hook("meanwhile"), prepend=True)
    model(torch.ones(1, 4))
    assert calls == ["meanwhile", "before", "ours"]  # ours sees what the module returns in the end
    before.remove()
    assert list(model._forward_hooks.values()) == [model._forward_hooks[meanwhile.id]]
    hooks.detach()
    calls.clear()
    model(torch.ones(1, 4))
    assert calls == ["meanwhile"]
    meanwhile.remove()  # its handle knows the dictionary that stood there
    model(torch.ones(1, 4))
    assert calls == ["meanwhile"] and not model._forward_hooks
    assert b"tbnum" not in pickle.dumps(model)


def test_two_who_watch_one_model_may_end_in_any_order() -> None:
    for first in (0, 1):
        model = nn.Linear(4, 4)
        calls: list[list[str]] = [[], []]

        def note(at: int, calls: list[list[str]] = calls) -> Callable[[Call, list[Tensor]], None]:
            return lambda call, tensors: calls[at].append(call.module)

        both = [ModuleHooks(lambda call, tensors: None, note(at)) for at in (0, 1)]
        for each in both:
            each.attach([("layer", model)])
        model(torch.ones(1, 4))
        both[first].detach()
        model(torch.ones(1, 4))
        both[1 - first].detach()
        model(torch.ones(1, 4))
        assert [len(calls[first]), len(calls[1 - first])] == [1, 2]
        assert all(type(vars(model)[attribute]) is OrderedDict for attribute in HOOKS)


def test_who_puts_another_dictionary_in_the_place_of_the_hooks_keeps_it() -> None:
    model = nn.Linear(4, 4)
    hooks = ModuleHooks(lambda call, tensors: None, lambda call, tensors: None)
    hooks.attach([("", model)])
    theirs = model._forward_hooks = OrderedDict()
    model._forward_pre_hooks.clear()
    hooks.detach()
    assert model._forward_hooks is theirs
    assert all(type(vars(model)[attribute]) is OrderedDict for attribute in HOOKS)


def test_a_step_that_was_compiled_is_not_compiled_again_where_its_uncompiled_neighbours_are_watched() -> None:
    compilations = 0

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal compilations
        compilations += 1
        return graph.forward

    torch._dynamo.reset()
    model = nn.ModuleDict({"compiled": torch.compile(net(), backend=backend), "eager": nn.Linear(1, 1)})
    x = torch.ones(2, 4)
    model["eager"](model["compiled"](x))
    before = compilations
    sentinels = Sentinels({"": model})
    sentinels.arm(0)
    assert any(name == "eager" for name, _ in named_modules({"": model}, inside_compiled=False))
    model["eager"](model["compiled"](x)).sum().backward()
    sentinels.disarm()
    assert compilations == before
    torch._dynamo.reset()


def test_an_average_made_right_after_a_skip_and_a_checkpoint_are_as_without_tbnum(tmp_path: Path) -> None:
    """The sentinels are armed then."""
    checkpoints = []
    for logdir in (None, tmp_path):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        if logdir is not None:
            monitor = tbnum.wrap(optimizer, scaler, model=model, logdir=logdir, activations=True, tensor_interval=1)
        for factor in (1.0, float("inf"), 1.0):
            scaler.scale(model(torch.ones(2, 4)).mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            checkpoints.append((saved(model), saved(copy.deepcopy(model))))
    monitor.close()
    assert checkpoints[:3] == checkpoints[3:]


class Lazy(Mapping[str, Any]):
    """What a module is given may be somebody's own mapping, which is not to be looked into yet."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("not loaded")

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


class Ignores(nn.Module):
    def forward(self, x: Tensor, given: Lazy) -> Tensor:
        return x


@pytest.mark.filterwarnings("ignore:tbnum could not watch a module")
def test_what_raises_when_it_is_looked_into_passes_a_watched_module_as_any_other() -> None:
    model = Ignores()
    with watching(model):
        model(torch.ones(1), Lazy())


@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_is_compiled_while_the_model_is_watched_is_compiled_once_and_without_the_hooks(fullgraph: bool) -> None:
    graphs: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    def compiled() -> list[str]:
        torch._dynamo.reset()
        graphs.clear()
        return graphs

    torch.manual_seed(0)
    model = Wide()
    step = torch.compile(lambda x: model(x).sum(), backend=backend, fullgraph=fullgraph)
    compiled()
    step(torch.ones(2, 4)).backward()
    alone = list(graphs)
    compiled()
    with watching(model):
        step(torch.ones(2, 4)).backward()
    step(torch.ones(2, 4)).backward()
    assert graphs == alone and len(alone) == 1
    torch._dynamo.reset()
