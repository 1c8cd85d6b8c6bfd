"""Casts to float8: what they lose, held against torch's own casts; and torchao's modules, emulated on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tbnum
from tbnum.measure.float8 import FLOAT8, amax_of, cast_losses
from tbnum.observe.float8 import Float8Watch, has_float8
from tests.routes import Panel

MAKE: dict[str, Callable[[], Tensor]] = {
    "normal": lambda: torch.randn(5000),
    "with a spike": lambda: torch.cat([torch.randn(5000), torch.tensor([1e4])]),
    "many decades": lambda: torch.randn(5000) * 10.0 ** torch.randint(-12, 3, (5000,)),
    "zeros among them": lambda: torch.randn(5000) * (torch.rand(5000) < 0.5),
    "bfloat16": lambda: torch.randn(5000).bfloat16(),
    "a transposed matrix": lambda: torch.randn(50, 100).t(),
}


@pytest.mark.parametrize("dtype", list(FLOAT8), ids=lambda dtype: FLOAT8[dtype].name)
@pytest.mark.parametrize("shift", [1.0, 8.0, 2.0**-6], ids=["its own scale", "a scale too high", "a scale too low"])
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_shares_are_those_of_torchs_own_cast(make: Callable[[], Tensor], shift: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensor = make()
    maximum = torch.finfo(dtype).max
    scale = (maximum / amax_of(tensor).float()) * shift
    product = tensor.float() * scale
    cast = product.to(dtype).float()
    flushed = ((cast == 0) & (tensor.float() != 0)).double().mean()
    halfway = {torch.float8_e4m3fn: 464.0, torch.float8_e5m2: 61440.0}[dtype]  # to what would come after the maximum
    saturated = (product.abs() > halfway).double().mean()
    got = cast_losses(tensor, scale, FLOAT8[dtype])
    assert got[1].item() == pytest.approx(flushed.item(), abs=1e-6)
    assert got[0].item() == pytest.approx(saturated.item(), abs=1e-3)
    assert (got[0] == 0) == (shift <= 1)


def test_an_infinite_element_makes_a_scale_of_0_that_flushes_all_others() -> None:
    tensor = torch.ones(100)
    tensor[7] = math.inf
    amax = amax_of(tensor)
    saturated, flushed = cast_losses(tensor, 448 / amax, FLOAT8[torch.float8_e4m3fn]).tolist()
    assert math.isinf(amax) and saturated == pytest.approx(0.01) and flushed == pytest.approx(0.99)


def test_of_no_elements_and_of_an_unknown_scale_the_shares_are_unknown() -> None:
    nothing = torch.empty(0)
    assert amax_of(nothing) == 0
    assert cast_losses(nothing, torch.ones(()), FLOAT8[torch.float8_e5m2]).isnan().all()
    assert cast_losses(torch.ones(3), torch.tensor(math.nan), FLOAT8[torch.float8_e5m2]).isnan().all()


# torchao's modules.


def model_of(**settings: Any) -> nn.Sequential:
    torchao = pytest.importorskip("torchao.float8", reason="needs torchao")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 1))
    config = torchao.Float8LinearConfig(emulate=True, **settings)
    torchao.convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name != "3")
    return model


def watched(model: nn.Module, *batches: Tensor) -> Any:
    watch = Float8Watch({"": model}, 1)
    watch.step_begins(0)
    for batch in batches:
        model(batch).square().mean().backward()
    watch.step_begins(1)
    (table,) = watch.landed(wait=True)
    watch.stop()
    return table


def test_scales_are_those_that_torchao_casts_with() -> None:
    model = model_of()
    from torchao.float8.float8_utils import tensor_to_scale

    batch = torch.randn(8, 32)
    gradients: dict[str, Tensor] = {}
    for name in ("0", "2"):
        model.get_submodule(name).register_forward_hook(
            lambda module, given, output, name=name: (
                output.register_hook(lambda gradient: gradients.__setitem__(name, gradient.clone())) and None
            )
        )
    table = watched(model, batch)
    assert table.names == tuple(f"{name}/{role}" for name in "02" for role in ("input", "weight", "grad_output"))
    hidden = model[1](model[0](batch))
    given = [batch, model[0].weight, gradients["0"], hidden, model[2].weight, gradients["2"]]
    formats = [torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float8_e5m2] * 2
    for place, (tensor, dtype) in enumerate(zip(given, formats, strict=True)):
        assert table.columns["float8_amax"][place] == tensor.abs().max().item(), table.names[place]
        assert table.columns["float8_scale"][place] == tensor_to_scale(tensor, dtype).item(), table.names[place]
    assert (table.columns["float8_saturated"] == 0).all() and (table.columns["float8_flushed"] < 0.01).all()


def test_a_spike_in_the_input_shows_in_its_amax_and_in_what_is_flushed() -> None:
    batch = torch.randn(8, 32)
    usual = watched(model_of(), batch)
    batch[0, 0] = 1e4
    spiked = watched(model_of(), batch)
    assert spiked.columns["float8_amax"][0] == 1e4 > 1000 * usual.columns["float8_amax"][0]
    assert spiked.columns["float8_flushed"][0] > 10 * max(usual.columns["float8_flushed"][0], 1e-4)


def test_of_several_calls_in_a_step_the_worst_counts() -> None:
    small, large = torch.randn(8, 32), 100 * torch.randn(8, 32)
    table = watched(model_of(), small, large)
    assert table.columns["float8_amax"][0] == large.abs().max().item()
    assert table.columns["float8_scale"][0] == pytest.approx(448 / large.abs().max().item())


def test_scales_made_row_by_row_are_unknown() -> None:
    torchao = pytest.importorskip("torchao.float8", reason="needs torchao")
    model = model_of()
    from torchao.float8.config import Float8LinearRecipeName

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64))
    config = torchao.Float8LinearConfig.from_recipe_name(Float8LinearRecipeName.ROWWISE)
    torchao.convert_to_float8_training(model, config=config)
    watch = Float8Watch({"": model}, 1)
    assert watch._casts["0"].input is not None and not watch._casts["0"].input.tensorwise


def test_a_watched_training_is_bitwise_the_one_that_is_not() -> None:
    batch = torch.randn(8, 32)
    bare, seen = model_of(), model_of()
    bare(batch).square().mean().backward()
    watched(seen, batch)
    for ours, theirs in zip(seen.parameters(), bare.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None and torch.equal(ours.grad, theirs.grad)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in seen.modules())


def test_models_without_such_modules_are_distinguished() -> None:
    assert not has_float8({"": nn.Linear(3, 3)})
    assert has_float8({"": model_of()})


def test_what_was_not_called_is_unknown() -> None:
    model = model_of()
    table = watched(model[0], torch.randn(8, 32))
    assert table.names == ("input", "weight", "grad_output")
    watch = Float8Watch({"": model}, 1)
    watch.step_begins(0)
    model[0](torch.randn(8, 32))
    watch.step_begins(1)
    (table,) = watch.landed(wait=True)
    assert np.isnan(table.columns["float8_amax"]).tolist() == [False, False, True, True, True, True]


# A whole training.


def train(logdir: Path, *, spike_at: int | None = None, steps: int = 40, scale: float = 1.0) -> Any:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tbnum.wrap(optimizer, model=model, logdir=logdir, tensor_interval=2):
        for step in range(steps):
            batch = scale * torch.randn(16, 32)
            if step == spike_at:
                batch[0, 0] = 1e4
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return tbnum.read(logdir)["."]


def rules(run: Any) -> dict[str, Any]:
    return {finding.rule: finding for finding in run.findings if finding.rule.startswith("float8")}


def test_a_training_in_float8_has_scales_in_its_record_and_a_spike_is_a_finding(tmp_path: Path) -> None:
    run = train(tmp_path, spike_at=20)
    steps, names, amax = run.tensors["float8_amax"]
    assert steps.tolist() == list(range(0, 40, 2)) and {"0/input", "2/weight", "2/grad_output"} <= set(names)
    place = names.index("0/input")
    assert amax[10, place] == 1e4 and (np.delete(amax[:, place], 10) < 100).all()
    scale = run.tensors["float8_scale"][2][10, place]
    assert scale == pytest.approx(448 / 1e4)
    finding = rules(run)["float8_spike"]
    assert "0/input reached 1e+04 at step 20" in finding.evidence and finding.steps[0] == 20


def test_a_healthy_training_in_float8_has_no_finding_of_it(tmp_path: Path) -> None:
    assert rules(train(tmp_path)) == {}


def test_the_heat_map_shows_what_casts_to_float8_lose(tmp_path: Path) -> None:
    train(tmp_path / "run", spike_at=20)
    panel = Panel(tmp_path)
    panel.plugin._runs.scan()
    assert "float8_flushed" in panel.json("tensors", run="run")["columns"]
    header, arrays = panel.binary("heatmap", run="run", column="float8_amax", buckets=20)
    values = arrays["max"].reshape(len(header["rows"]), -1)
    assert np.nanmax(values[header["rows"].index("0/input")]) == pytest.approx(1e4)
