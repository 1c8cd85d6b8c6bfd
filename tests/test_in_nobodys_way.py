"""What tbnum cannot read it leaves alone: nothing of its own is raised into the loop, whatever the loop does."""

from __future__ import annotations

import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import tbnum


class Loop:
    def __init__(self, logdir: Path | None = None) -> None:
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        if logdir is not None:
            self.monitor = tbnum.wrap(self.optimizer, self.scaler, model=self.model, logdir=logdir)

    def step(self) -> None:
        self.scaler.scale(self.model(torch.ones(3, 2)).square().mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def test_losses_that_have_no_value_may_be_scaled(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.step()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert loop.scaler.scale(torch.ones(3, requires_grad=True).sum()).shape == ()

    def scaled(x: Tensor) -> Tensor:
        return loop.scaler.scale((x * torch.ones(2, requires_grad=True)).sum())  # type: ignore[return-value]

    assert torch.func.vmap(scaled)(torch.ones(3, 2)).tolist() == [4.0, 4.0, 4.0]
    loop.step()
    loop.monitor.close()
    assert len(tbnum.read(tmp_path)["."].steps["step"]) == 2


def test_a_scaler_of_the_user_s_that_is_made_in_its_own_way_works_as_ever(tmp_path: Path) -> None:
    class Own(torch.amp.GradScaler):
        def __init__(self) -> None:  # never torch's own
            pass

        def scale(self, outputs: Any) -> Any:
            return outputs * 2

    loop = Loop(tmp_path)
    assert Own().scale(torch.ones(1)).item() == 2.0
    loop.monitor.close()


def test_optimizers_of_new_classes_may_be_wrapped_in_many_threads(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def wrap_one(number: int) -> None:
        def zero_grad(self: Any, set_to_none: bool = True) -> None:
            torch.optim.SGD.zero_grad(self, set_to_none)

        kind = type(f"SGD{number}", (torch.optim.SGD,), {"zero_grad": zero_grad})
        try:
            optimizer = kind(nn.Linear(2, 1).parameters(), lr=0.1)
            tbnum.wrap(optimizer, logdir=tmp_path / str(number)).close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=wrap_one, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_trouble_between_two_steps_costs_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(tmp_path)
    loop.step()

    def broken(*arguments: Any) -> Any:
        raise MemoryError("out of memory on the device")

    with monkeypatch.context() as patch:
        patch.setattr("tbnum.watching.Watching.step_closes", broken)
        with pytest.warns(RuntimeWarning, match="out of memory on the device.*Training is not affected"):
            loop.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.step()
    loop.monitor.close()
    assert tbnum.read(tmp_path)["."].steps["step"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("end", ["flush", "close"])
def test_a_step_that_cannot_be_handed_on_is_a_warning_and_costs_itself_alone(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path)
    loop.step()
    loop.monitor.flush()
    loop.step()

    def broken(*arguments: Any) -> Any:
        raise ArithmeticError("a step that nobody foresaw")

    with monkeypatch.context() as patch:
        patch.setattr("tbnum.observe.landing.Pending.land", broken)
        with pytest.warns(RuntimeWarning, match="a step that nobody foresaw.*Training is not affected"):
            getattr(loop.monitor, end)()
    loop.monitor.close()
    run = tbnum.read(tmp_path)["."]
    assert run.steps["step"].tolist() == [0]
    assert run.meta["sessions"][-1]["ended"] == "closed"


def test_what_the_user_s_block_raises_is_his_also_where_the_end_of_the_record_is_interrupted(tmp_path: Path) -> None:
    loop = Loop()

    def interrupt(event: tbnum.Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), tbnum.wrap(loop.optimizer, loop.scaler, logdir=tmp_path) as monitor:
        monitor.on_event(interrupt)
        loop.step()
        raise KeyError("mine")
    assert monitor not in tbnum.lifecycle.open_monitors
    run = tbnum.read(tmp_path)["."]
    assert len(run.steps["step"]) == 1 and run.events[-1].kind == "crash"


def test_what_a_handler_of_a_signal_raises_while_a_hook_runs_reaches_the_loop(tmp_path: Path) -> None:
    """A time limit, say. It comes where it comes, here while tbnum reads the learning rate."""

    class Group(dict):  # type: ignore[type-arg]
        def get(self, *arguments: Any) -> Any:
            if is_due:
                signal.raise_signal(signal.SIGUSR1)
            return super().get(*arguments)

    def out_of_time(number: int, frame: Any) -> None:
        raise TimeoutError("the limit of the loop's own")

    loop, is_due = Loop(tmp_path), False
    loop.optimizer.param_groups[0] = Group(loop.optimizer.param_groups[0])
    before = signal.signal(signal.SIGUSR1, out_of_time)
    try:
        loop.step()
        is_due = True
        with pytest.raises(TimeoutError, match="of the loop's own"):
            loop.step()
        is_due = False
        loop.optimizer.zero_grad()
    finally:
        signal.signal(signal.SIGUSR1, before)
    loop.monitor.close()
