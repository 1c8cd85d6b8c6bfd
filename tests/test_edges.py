"""Loops at the edge of what is usual, each of which once went wrong."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import subprocess
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tbnum
from tests import warm
from tests.loops import OPTIMIZERS, Half, batches, train


def scaler_for(scale: float = 1024.0) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def run_of(logdir: Path) -> Any:
    (run,) = tbnum.read(logdir).values()
    return run


def test_loops_in_threads_of_their_own_do_not_touch_each_other(tmp_path: Path) -> None:
    def loop(number: int) -> None:
        model = Half()
        optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for()
        with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path / str(number)):
            train(model, optimizer, scaler, batches(60, seed=number), max_norm=0.5)

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(1200)
    assert [len(run.steps["step"]) for run in tbnum.read(tmp_path).values()] == [60] * 3


def test_a_forked_child_ends_by_itself(tmp_path: Path) -> None:
    script = f"""
import os, sys, tbnum
from tests.loops import OPTIMIZERS, Half, batches, train
model = Half()
optimizer = OPTIMIZERS["SGD"](model.parameters())
monitor = tbnum.wrap(optimizer, logdir={str(tmp_path)!r})
train(model, optimizer, None, batches(5))
child = os.fork()
if child == 0:
    monitor.flush()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([*warm.python(), "-c", script], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert len(run_of(tmp_path).steps["step"]) == 5


def test_a_scaler_may_outlive_its_optimizer_and_be_wrapped_again(tmp_path: Path) -> None:
    scaler = scaler_for()
    for fold in range(3):
        model = Half()
        optimizer = OPTIMIZERS["SGD"](model.parameters())
        tbnum.wrap(optimizer, scaler, logdir=tmp_path / str(fold))
        train(model, optimizer, scaler, batches(3))
        del model, optimizer
        gc.collect()
        assert type(scaler) is torch.amp.GradScaler
    assert [
        run.meta["closed"] if "closed" in run.meta else len(run.steps["step"]) for run in tbnum.read(tmp_path).values()
    ]
    assert all(len(run.steps["step"]) == 3 for run in tbnum.read(tmp_path).values())


def test_a_relative_folder_stays_where_it_was_when_the_program_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = Half()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    with tbnum.wrap(optimizer, logdir="run"):
        (tmp_path / "elsewhere").mkdir()
        os.chdir(tmp_path / "elsewhere")
        train(model, optimizer, None, batches(3))
    assert len(run_of(tmp_path / "run").steps["step"]) == 3


@pytest.mark.parametrize("unscales", [True, False])
def test_an_interrupt_right_after_the_update_leaves_the_next_step_its_own_numbers(
    unscales: bool, tmp_path: Path
) -> None:
    class Interrupted(torch.amp.GradScaler):
        now = False

        def update(self, new_scale: Any = None) -> None:
            super().update(new_scale)
            if self.now:
                raise KeyboardInterrupt

    model = nn.Linear(4, 1)
    optimizer, scaler, losses, norms = torch.optim.SGD(model.parameters(), lr=0.1), Interrupted("cpu"), [], []
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        for at in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            scaler.scale(loss).backward()
            losses.append(loss.item())
            norms.append(nn.utils.get_total_norm([each.grad for each in model.parameters()]).item() / 65536)
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.now = at == 1
            scaler.step(optimizer)
            with contextlib.suppress(KeyboardInterrupt):
                scaler.update()
    run = run_of(tmp_path)
    assert run.steps["loss"].tolist() == losses
    np.testing.assert_allclose(run.steps["grad_norm"], norms, rtol=1e-5)
    assert [event.kind for event in run.events] == []


def test_an_optimizer_that_wraps_one_and_is_one_by_class_is_unwrapped(tmp_path: Path) -> None:
    class Accelerated(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer  # as Accelerate does it: without the Optimizer's own __init__

    model = Half()
    inner = OPTIMIZERS["SGD"](model.parameters())
    with tbnum.wrap(Accelerated(inner), logdir=tmp_path):
        train(model, inner, None, batches(2))
    assert len(run_of(tmp_path).steps["step"]) == 2


class OwnArguments(torch.amp.GradScaler):
    def scale(self, outputs: Any, factor: float = 1.0) -> Any:  # type: ignore[override]
        return super().scale(outputs) * factor

    def update(self) -> None:  # type: ignore[override]
        super().update()


class UpdatesByItself(torch.amp.GradScaler):
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = super().step(optimizer, *args, **kwargs)
        self.update()
        return result


class AsksOfSubclasses(torch.amp.GradScaler):
    def __init_subclass__(cls, *, needed: int) -> None: ...


@pytest.mark.parametrize("kind", [OwnArguments, UpdatesByItself, AsksOfSubclasses])
def test_subclasses_of_the_scaler_work_as_they_do_without_tbnum(kind: type, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), kind("cpu", init_scale=2.0**10)
    plain = pickle.dumps(scaler)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        assert pickle.dumps(scaler) == plain
        for x in batches(6, bad=[3]):
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            if kind is not UpdatesByItself:
                scaler.update()
            optimizer.zero_grad()
    run = run_of(tmp_path)
    assert run.steps["skipped"].tolist() == [False] * 3 + [True] + [False] * 2
    assert [event.kind for event in run.events] == ["skip", "scale_backoff"]


def test_a_method_of_the_scaler_that_another_has_wrapped_works_on_when_the_monitor_is_closed(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler, calls = OPTIMIZERS["SGD"](model.parameters()), scaler_for(), []
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        kept = scaler.step
        scaler.step = lambda *args: calls.append(0) or kept(*args)  # type: ignore[method-assign, func-returns-value]
        train(model, optimizer, scaler, batches(3))
    train(model, optimizer, scaler, batches(2))
    assert len(calls) == 5 and len(run_of(tmp_path).steps["step"]) == 3


def test_a_class_that_another_gives_the_scaler_is_followed_and_stays(tmp_path: Path) -> None:
    class Counts(torch.amp.GradScaler):
        updates = 0

        def update(self, *args: Any) -> None:
            self.updates += 1
            super().update(*args)

    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for()
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        scaler.__class__ = Counts  # type: ignore[assignment]
        assert scaler.__class__ is Counts and isinstance(scaler, Counts)
        train(model, optimizer, scaler, batches(3))
    assert type(scaler) is Counts
    train(model, optimizer, scaler, batches(2))
    assert scaler.updates == 5 and len(run_of(tmp_path).steps["step"]) == 3


def test_losses_of_an_optimizer_that_is_not_ours_are_not_ours(tmp_path: Path) -> None:
    ours, others = Half(), Half()
    optimizer, other = OPTIMIZERS["SGD"](ours.parameters()), OPTIMIZERS["SGD"](others.parameters())
    scaler, expected = scaler_for(), []
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        for x in batches(4):
            for model, each in ((others, other), (ours, optimizer)):
                loss = model(x).square().mean()
                scaler.scale(loss).backward()
                scaler.step(each)
                scaler.update()
                each.zero_grad()
            expected.append(loss.item())
    run = run_of(tmp_path)
    assert run.steps["loss"] == pytest.approx(expected) and (run.steps["micro_batches"] == 1).all()


def test_with_uneven_optimizers_a_loss_belongs_to_the_step_that_follows_it(tmp_path: Path) -> None:
    a, b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizers = {"critic": torch.optim.SGD([a], lr=0.1), "generator": torch.optim.SGD([b], lr=0.1)}
    with tbnum.wrap(optimizers, logdir=tmp_path) as monitor:
        for step in range(6):
            for name, loss in (("critic", 1.0), ("generator", 10.0)):
                if name == "critic" or step % 3 == 2:
                    monitor.log_loss(loss)
                    (a if name == "critic" else b).grad = torch.ones(1)
                    optimizers[name].step()
    assert run_of(tmp_path).steps["loss"].tolist() == [1.0, 1.0, 11.0] * 2


def test_an_optimizer_without_a_learning_rate_and_a_loss_of_numpy_are_taken(tmp_path: Path) -> None:
    class ItsOwnRate(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.1)
            self.param_groups[0]["lr"] = None

        def step(self, closure: Any = None) -> None: ...

    model = Half()
    optimizer = ItsOwnRate(model.parameters())
    with tbnum.wrap(optimizer, logdir=tmp_path) as monitor:
        for loss in (np.float32(1.5), np.array(2.5), np.int64(3)):
            monitor.log_loss(loss)  # type: ignore[arg-type]
            optimizer.step()
    steps = run_of(tmp_path).steps
    assert steps["loss"].tolist() == [1.5, 2.5, 3.0] and np.isnan(steps["lr"]).all()


def test_the_loss_of_a_disabled_scaler_is_saved_without_a_word(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), torch.amp.GradScaler("cpu", enabled=False)
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path), warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = model(batches(1)[0]).mean()
        scaler.scale(loss).backward()
        torch.save({"loss": loss}, tmp_path / "loss.pt")
        scaler.step(optimizer)
    assert run_of(tmp_path).steps["loss"][0] == pytest.approx(loss.item())


def test_a_second_monitor_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    first, second = (OPTIMIZERS["SGD"](Half().parameters()) for _ in range(2))
    with tbnum.wrap(first, logdir=tmp_path), pytest.raises(ValueError, match="its own folder"):
        tbnum.wrap(second, logdir=tmp_path)
    with tbnum.wrap(second, logdir=tmp_path):  # after the first was closed it is free
        pass


def test_gradients_made_in_inference_mode_are_measured(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with tbnum.wrap(optimizer, logdir=tmp_path):
        with torch.inference_mode():
            gradient = torch.tensor([3.0, 4.0])
        parameter.grad = gradient
        optimizer.step()
    assert run_of(tmp_path).steps["grad_norm"].tolist() == [5.0]


def test_where_warnings_are_errors_a_callback_that_fails_still_ends_no_training(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for(2.0**24)
    monitor = tbnum.wrap(optimizer, scaler, logdir=tmp_path)
    monitor.on_event(lambda event: 1 / 0)  # type: ignore[arg-type,return-value]
    monitor.on_event(lambda event: monitor.annotate("again"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, scaler, batches(3))
    monitor.close()
    assert len(run_of(tmp_path).steps["step"]) == 3


def test_asking_for_the_norm_with_an_infinite_threshold_is_no_clip_under_a_scaler(tmp_path: Path) -> None:
    model = Half()
    optimizer, scaler = OPTIMIZERS["SGD"](model.parameters()), scaler_for()
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path):
        train(model, optimizer, scaler, batches(2), max_norm=float("inf"))
    steps = run_of(tmp_path).steps
    assert np.isnan(steps["clip_coef"]).all() and np.isnan(steps["max_norm"]).all()
    np.testing.assert_allclose(steps["grad_norm_clipped"], steps["grad_norm"])


def test_of_a_closure_that_is_called_several_times_the_first_loss_counts_also_where_it_is_logged(
    tmp_path: Path,
) -> None:
    """Integrations report losses from inside the closure."""
    model, losses = nn.Linear(8, 1), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path) as monitor:
        for x in batches(3):

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = (model(x) - 1).square().mean()
                monitor.log_loss(loss)
                losses[-1].append(loss.item())
                loss.backward()
                return loss

            losses.append([])
            optimizer.step(closure)
    run = run_of(tmp_path)
    assert all(len(calls) > 1 for calls in losses)
    assert run.steps["loss"].tolist() == pytest.approx([calls[0] for calls in losses])
    assert run.steps["micro_batches"].tolist() == [1, 1, 1]


def test_a_scaler_at_the_address_of_one_that_is_gone_has_set_no_scale(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    addresses = list[int]()
    gc.collect()
    gc.freeze()  # else each collection below visits all that other tests have loaded
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path, verbose=False):
        for number in range(40):
            scaler = scaler_for(2.0 ** (number % 8 + 1))
            addresses.append(id(scaler))
            for _ in range(2):
                scaler.scale(model(torch.ones(1, 3)).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            del scaler
            gc.collect()
    assert len(set(addresses)) < len(addresses), "no address came twice: the test shows nothing"
    assert not [event for event in run_of(tmp_path).events if event.kind == "scale_set"]
