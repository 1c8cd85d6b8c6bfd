"""Sentinels and activation statistics: what they see, what they leave alone, what they leave behind (nothing)."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tbnum.measure.extremes import extremes, readable
from tbnum.observe import transfer
from tbnum.observe.activations import ActivationWatch
from tbnum.observe.module_calls import tensors_in
from tbnum.observe.names import named_modules
from tbnum.observe.sentinels import Sentinels
from tests.loops import Half, batches, train
from tests.planted import HalfLinear, Log, LogWhere, Louder, Net
from tests.test_transfer import SlowDevice


@pytest.fixture(autouse=True)
def _trouble_is_a_failure() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*tbnum.*")
        yield


class TooLarge(HalfLinear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 3e5)


def net(planted: nn.Module | None = None, **more: Any) -> Net:
    torch.manual_seed(0)
    return Net(planted=planted, **more)


def one_step(model: nn.Module, scale: float = 2.0**10, x: Tensor | None = None) -> float:
    loss = model(torch.randn(32, 8) if x is None else x).square().mean()
    (loss * scale).backward()
    return loss.item()


def report_of(model: nn.Module, step: Callable[[nn.Module], float] = one_step) -> tuple[Any, dict[str, Any] | None]:
    sentinels = Sentinels({"": model})
    sentinels.arm(7, steps=1)
    loss = step(model)
    sentinels.step_begins(8)
    assert not sentinels.armed
    (report,) = sentinels.reports()
    assert report.step == 7
    return report, report.finding(loss)


def nothing_is_left_on(model: nn.Module) -> bool:
    modules_bare = all(not each._forward_hooks and not each._forward_pre_hooks for each in model.modules())
    return modules_bare and not any(each._backward_hooks for each in model.parameters())


# -- sentinels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("planted", "phase", "what", "dtype", "limit"),
    [
        (TooLarge, "forward", "output", "float32", 3.4028e38),
        (lambda width: nn.Linear(width, width).half(), "forward", "output", "float16", 65504.0),
        (lambda width: Log(), "forward", "output", "float32", 3.4028e38),
        (lambda width: Louder(1e6), "backward", "gradient", "float32", 3.4028e38),
        (lambda width: LogWhere(), "backward", "gradient", "float32", 3.4028e38),
    ],
    ids=["forward", "forward in float16", "log", "backward", "backward of log"],
)
def test_the_planted_module_is_found(planted: Any, phase: str, what: str, dtype: str, limit: float) -> None:
    model = net()
    if dtype == "float16":

        class Cast(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.product = planted(8)
                self.product.weight.data *= 3e4

            def forward(self, x: Tensor) -> Tensor:
                return self.product(x.half()).float()

        model.blocks[2].inner, name = Cast(), "blocks.2.inner.product"
    else:
        model.blocks[2].inner, name = planted(8), "blocks.2.inner"
    _, finding = report_of(model)
    assert finding is not None
    assert (finding["module"], finding["phase"], finding["what"]) == (name, phase, what)
    assert finding["dtype"] == dtype and finding["limit"] == pytest.approx(limit, rel=1e-4)
    assert finding["largest"] is None or 0 <= finding["largest"] <= limit
    assert finding["shape"] == [32, 8]
    assert nothing_is_left_on(model)


def test_a_step_without_fault_has_no_finding() -> None:
    report, finding = report_of(net())
    assert report.forward is None and report.backward is None and finding is None


def test_the_first_layer_whose_own_gradient_overflows_is_found_though_its_input_takes_none() -> None:
    model = nn.Sequential(HalfLinear(8), nn.Linear(8, 1))
    x = torch.zeros(32, 8)
    x[:, 0] = 3e2
    _, finding = report_of(model, lambda model: one_step(model, 2.0**7, x))
    assert finding is not None
    assert (finding["module"], finding["phase"], finding["shape"]) == ("0", "backward", [8, 8])


def test_a_gradient_that_comes_non_finite_from_the_loss_is_reported_at_the_first_module() -> None:
    _, finding = report_of(net(), lambda model: one_step(model, math.inf) * 0)
    assert finding is not None and finding["phase"] == "backward" and finding["module"] == "head"


def test_an_infinity_that_did_no_harm_is_not_the_finding_of_a_finite_loss() -> None:
    class Undone(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 0.0

    model = nn.Sequential(nn.Linear(8, 8), Undone(), nn.Hardtanh(), nn.Linear(8, 8), Louder(1e9), nn.Linear(8, 1))
    report, finding = report_of(model)
    assert report.forward["module"] == "1"
    assert finding == report.backward and finding is not None and finding["module"] == "4"


def test_code_between_modules_is_of_the_module_that_it_stands_in() -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.exp(self.a(x) * 1e4))

    _, finding = report_of(nn.Sequential(Between(), nn.Linear(8, 1)))
    assert finding is not None and (finding["module"], finding["what"]) == ("0", "input")


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("planted", "phase"), [(TooLarge(8), "forward"), (Louder(1e6), "backward")])
def test_under_checkpointing_each_call_is_seen_once(planted: nn.Module, phase: str, reentrant: bool) -> None:
    model = net(planted)

    def step(model: nn.Module) -> float:
        x = torch.randn(32, 8, requires_grad=True)
        for block in model.blocks:
            x = checkpoint(lambda x, block=block: block(x)["hidden"][0], x, use_reentrant=reentrant)
        loss = model.head(x).square().mean()
        (loss * 2.0**10).backward()
        return loss.item()

    _, finding = report_of(model, step)
    assert finding is not None and (finding["module"], finding["phase"]) == ("blocks.2.inner", phase)


def test_several_steps_are_watched_and_then_no_more() -> None:
    model = net(Louder(1e6))
    sentinels = Sentinels({"": model})
    for step in range(8):
        if step == 2:
            sentinels.arm(step)
        assert sentinels.armed == (2 <= step < 5)
        one_step(model)
        one_step(model)
        sentinels.step_begins(step + 1)
    assert [report.step for report in sentinels.reports()] == [2, 3, 4]
    assert sentinels.reports() == [] and nothing_is_left_on(model)


def test_armed_again_while_armed_they_watch_that_many_steps_from_now() -> None:
    model = net()
    sentinels = Sentinels({"": model})
    sentinels.arm(0, 2)
    one_step(model)
    sentinels.step_begins(1)
    sentinels.arm(1, 2)
    for step in (1, 2, 3):
        one_step(model)
        sentinels.step_begins(step + 1)
    assert [report.step for report in sentinels.reports()] == [0, 1, 2]
    with pytest.raises(ValueError, match="at least 1"):
        sentinels.arm(4, 0)


def test_a_run_that_only_skips_is_watched_in_three_of_a_hundred_steps() -> None:
    sentinels = Sentinels({"": nn.Linear(8, 1)})
    armed = []
    for step in range(250):
        sentinels.step_begins(step)
        sentinels.arm_after_skip(step)
        armed += [step] * sentinels.armed
    assert armed == [0, 1, 2, 100, 101, 102, 200, 201, 202]


def test_teachers_and_validation_are_not_watched() -> None:
    def step(model: nn.Module) -> float:
        loss = one_step(model)
        model.eval()
        with torch.no_grad():
            model(torch.full((32, 8), torch.nan))
        model.train()
        return loss

    report, _ = report_of(net(), step)
    assert report.forward is None


def test_in_place_changes_of_outputs_and_returned_parameters_are_no_trouble() -> None:
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(8))

        def forward(self) -> Tensor:
            return self.table

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.relu, self.table = nn.Linear(8, 8), nn.ReLU(inplace=True), Returns()

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.a(x).add_(self.table()).mul_(2))

    model = Model()
    report, _ = report_of(model)
    assert report.backward is None and nothing_is_left_on(model)


def test_an_exception_in_the_forward_leaves_nothing_behind() -> None:
    model = net()
    sentinels = Sentinels({"": model})
    sentinels.arm(0)
    with pytest.raises(RuntimeError):
        model(torch.randn(4, 3))
    one_step(model)
    sentinels.disarm()
    assert nothing_is_left_on(model) and sentinels.reports(wait=True) == []


def test_on_a_slow_device_nothing_waits_and_one_copy_a_step_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SlowDevice()
    monkeypatch.setattr(transfer, "on_host", lambda tensor: False)
    monkeypatch.setattr(transfer, "copy_to_host", device.copy_to_host)
    model = net(Louder(1e6))
    sentinels, watch = Sentinels({"": model}), ActivationWatch({"": model}, True, 1)
    sentinels.arm(0, 2)
    watch.step_begins(0)
    for step in range(2):
        one_step(model)
        sentinels.step_begins(step + 1)
        watch.step_begins(step + 1)
    assert sentinels.reports() == [] and watch.landed() == []
    assert len(device.under_way) == 4
    device.land()
    assert [report.backward["module"] for report in sentinels.reports()] == ["blocks.2.inner"] * 2  # type: ignore[index]
    assert [each.step for each in watch.landed()] == [0, 1] and device.waited == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_nothing_waits() -> None:
    model = net(Louder(1e6)).cuda()
    sentinels, watch = Sentinels({"": model}), ActivationWatch({"": model}, True, 1)
    x = torch.randn(32, 8, device="cuda")
    model(x).square().mean().mul(2.0**10).backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(3):
            sentinels.step_begins(step)
            sentinels.arm(step)
            watch.step_begins(step)
            model(x).square().mean().mul(2.0**10).backward()
        sentinels.step_begins(3)
        watch.step_begins(3)
        found = sentinels.reports()
        watch.landed()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found += sentinels.reports(wait=True)
    assert [each.backward["module"] for each in found] == ["blocks.2.inner"] * 3  # type: ignore[index]


# -- what both leave alone ---------------------------------------------------------------------------------------------


def watched(model: nn.Module, every: bool) -> tuple[Callable[[int], None], Sentinels, ActivationWatch]:
    sentinels, watch = Sentinels({"": model}), ActivationWatch({"": model}, True, 1)

    def after_step(step: int) -> None:
        if every:
            sentinels.step_begins(step + 1)
            sentinels.arm(step + 1)
            watch.step_begins(step + 1)

    return after_step, sentinels, watch


@pytest.mark.parametrize("make", [Net, Half])
def test_training_that_is_watched_is_bitwise_the_training_that_is_not(make: Callable[[], nn.Module]) -> None:
    def run(every: bool) -> bytes:
        torch.manual_seed(3)
        model = make()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
        after_step, _, _ = watched(model, every)
        after_step(-1)
        train(model, optimizer, scaler, batches(12, bad=[5]), after_step=after_step)
        buffer = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict(), scaler.state_dict(), torch.get_rng_state()], buffer)
        return buffer.getvalue()

    assert run(True) == run(False)


def test_copies_and_pickles_of_a_watched_model_are_not_watched() -> None:
    model = net()
    after_step, sentinels, _ = watched(model, True)
    after_step(-1)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        one_step(twin)
        sentinels.step_begins(1)
        assert sentinels.reports() == []
        sentinels.arm(0)


def test_a_compiled_model_is_not_compiled_again_and_its_inside_is_left_out() -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    outside = torch.compile(model, backend=backend)
    inside = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    inside.compile(backend=backend)
    user_compiles = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    compiled_by_user = torch.compile(user_compiles, backend=backend)
    for called, given in ((outside, outside), (inside, inside), (compiled_by_user, user_compiles)):
        one_step(called)
        compilations = len(graphs)
        after_step, sentinels, watch = watched(given, True)
        after_step(-1)
        one_step(called)
        after_step(0)
        sentinels.disarm()
        watch.stop()
        one_step(called)
        assert len(graphs) == compilations
    assert [name for name, _ in named_modules({"": outside}, inside_compiled=False)] == [""]
    assert [name for name, _ in named_modules({"": inside}, inside_compiled=False)] == []
    assert [name for name, _ in named_modules({"": outside}, inside_compiled=True)] == ["", "0", "1", "2"]
    torch._dynamo.reset()


def test_muted_they_see_nothing() -> None:
    model = net()
    sentinels, watch = Sentinels({"": model}), ActivationWatch({"": model}, True, 1)
    sentinels.arm(0)
    watch.step_begins(0)
    with sentinels.muted(), watch.muted():
        one_step(model)
    sentinels.step_begins(1)
    watch.step_begins(1)
    assert sentinels.reports() == [] and watch.landed() == []


def test_trouble_of_their_own_is_reported_once_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise KeyError("broken")

    monkeypatch.setattr("tbnum.observe.sentinels.readable", broken)
    model = net()
    sentinels = Sentinels({"": model})
    sentinels.arm(0)
    with pytest.warns(RuntimeWarning, match="Training is not affected") as caught:
        one_step(model)
        one_step(model)
    assert len(caught) == 1 and sentinels.troubles > 1


def test_they_keep_no_model_alive() -> None:
    import gc
    import weakref

    model = net()
    watch = ActivationWatch({"": model}, True, 1)
    watch.step_begins(0)
    one_step(model)
    watch.step_begins(1)
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert ref() is None
    watch.step_begins(2)


# -- activations -------------------------------------------------------------------------------------------------------


def float64_statistics(tensors: list[Tensor]) -> dict[str, float]:
    flat = torch.cat([each.double().flatten() for each in tensors])
    return {
        "absmax": float(flat.abs().max()),
        "norm": float(flat.square().sum().sqrt()),
        "zero_share": float((flat == 0).double().mean()),
    }


def test_statistics_are_those_of_float64_over_all_calls_of_the_step() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), HalfLinear(16), nn.Linear(16, 1))
    seen: dict[str, list[Tensor]] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            seen.setdefault(f"{name}/output", []).append(output.detach().clone())
            output.register_hook(lambda gradient: seen.setdefault(f"{name}/gradient", []).append(gradient.clone()))

        return hook

    for name, module in model.named_children():
        module.register_forward_hook(note(name))
    watch = ActivationWatch({"": model}, ["[0-9]"], 3)
    assert watch.names == tuple(f"{name}/{what}" for name in "0123" for what in ("output", "gradient"))
    for step in range(7):
        watch.step_begins(step)
        seen.clear()
        one_step(model)
        one_step(model)  # accumulation
        if step % 3 == 0:
            expected = {name: float64_statistics(tensors) for name, tensors in seen.items()}
            watch.step_begins(step)
            (measured,) = watch.landed()
            assert measured.step == step and measured.names == watch.names
            for at, name in enumerate(measured.names):
                got = {key.removeprefix("activation_"): values[at] for key, values in measured.columns.items()}
                assert got == pytest.approx(expected[name], rel=1e-5), name
            watch.stop()
        else:
            assert nothing_is_left_on_but_one_hook(model)
    assert nothing_is_left_on_but_one_hook(model)


def nothing_is_left_on_but_one_hook(model: nn.Sequential) -> bool:
    return all(len(each._forward_hooks) == 1 and not each._forward_pre_hooks for each in model)


def test_what_is_not_finite_stays_so_and_what_was_not_seen_is_unknown() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Log(), nn.ModuleList([nn.Linear(8, 1)]))
    model.forward = lambda x: model[1](model[0](x)).detach() * 1.0  # type: ignore[method-assign]
    watch = ActivationWatch({"": model}, ["0", "1", "2.0"], 1)
    watch.step_begins(0)
    model(torch.randn(32, 8))
    watch.step_begins(1)
    (measured,) = watch.landed()
    of = dict(zip(measured.names, measured.columns["activation_absmax"], strict=True))
    assert math.isinf(of["1/output"]) and math.isfinite(of["0/output"])
    assert math.isnan(of["0/gradient"]) and math.isnan(of["2.0/output"])
    assert all(math.isnan(values[-1]) for values in measured.columns.values())


def test_all_modules_that_can_be_called_are_watched_by_true_and_patterns_choose() -> None:
    model = net()
    names = ActivationWatch({"": model}, True, 1).names
    assert names[:2] == ("output", "gradient")  # of the model itself
    assert "blocks.0.norm/output" in names and not any(name.startswith("blocks/") for name in names)
    assert ActivationWatch({"": model}, ["blocks.*.out", "head"], 1).names[-2:] == ("head/output", "head/gradient")
    assert len(ActivationWatch({"a": model, "b": Half()}, ["b", "a.head"], 1).names) == 4
    for bad, match in (
        (["nothing.*"], "no module's name fits 'nothing"),
        ("head", "takes True"),
        (False, "takes True"),
        (5, "activations is 5; it takes True"),
    ):
        with pytest.raises(ValueError, match=match):
            ActivationWatch({"": model}, bad, 1)
    with pytest.raises(ValueError, match="interval"):
        ActivationWatch({"": model}, True, 0)


def test_checkpointed_modules_count_once() -> None:
    for reentrant in (False, True):
        model = nn.Linear(8, 8, bias=False)
        model.weight.data = torch.eye(8)
        watch = ActivationWatch({"": model}, True, 1)
        watch.step_begins(0)
        x = torch.ones(1, 8, requires_grad=True)
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        watch.step_begins(1)
        (measured,) = watch.landed()
        assert measured.columns["activation_norm"] == pytest.approx([math.sqrt(8)] * 2)


def test_gradients_of_a_gradient_penalty_on_their_way_to_the_loss_are_not_counted() -> None:
    model = nn.Linear(8, 1)
    watch = ActivationWatch({"": model}, True, 1)
    watch.step_begins(0)
    x = torch.ones(4, 8, requires_grad=True)
    output = model(x)
    (gradient,) = torch.autograd.grad(output.sum() * 1e6, x, create_graph=True)
    (output.sum() + 0 * gradient.sum()).backward()
    watch.step_begins(1)
    (measured,) = watch.landed()
    assert measured.columns["activation_absmax"][1] == 1.0


# -- tensors -----------------------------------------------------------------------------------------------------------


def test_tensors_are_found_in_whatever_holds_them() -> None:
    @dataclass
    class Output:
        a: Tensor
        b: Any

    one = [torch.full((1,), float(at)) for at in range(5)]
    value = Output(one[0], {"x": (one[1], [one[2], None, "text"]), "y": Output(one[3], 3)})
    assert [float(each) for each in tensors_in((value, one[4]))] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert list(tensors_in(object())) == [] and list(tensors_in(Output)) == []


def test_the_ends_of_tensors_of_every_kind() -> None:
    def ends(tensor: Tensor) -> list[float]:
        values = readable(tensor)
        assert values is not None
        return extremes(values).tolist()

    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert ends(torch.tensor([1.0, -3.0, 2.0], dtype=dtype)) == [-3.0, 2.0, 3.0]
        assert ends(torch.tensor([1.0, -torch.inf, 2.0], dtype=dtype)) == [-math.inf, 2.0, 2.0]
        nan = ends(torch.tensor([[1.0, torch.nan], [-5.0, torch.inf]], dtype=dtype).t())
        assert np.isnan(nan[:2]).all() and nan[2] == 5.0
        assert math.isnan(ends(torch.tensor(torch.nan, dtype=dtype))[2])
    assert ends(torch.tensor(1e300, dtype=torch.float64)) == [1e300] * 3
    assert ends(torch.tensor([3 - 4j])) == [-4.0, 3.0, 4.0]
    assert ends(torch.tensor([1.0, 0.0, -2.0]).to_sparse()) == [-2.0, 1.0, 2.0]
    assert ends(torch.tensor([448.0]).to(torch.float8_e4m3fn)) == [448.0] * 3
    nothing = [torch.arange(3), torch.zeros(0), torch.empty(2, device="meta"), torch.tensor([True])]
    assert all(readable(tensor) is None for tensor in nothing)
    inside: list[Tensor | None] = []
    torch.vmap(lambda x: (inside.append(readable(x)), x)[1])(torch.ones(3))
    assert inside == [None]
