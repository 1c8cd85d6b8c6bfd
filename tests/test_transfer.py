"""Values of a device come to the host later, in order, and nothing waits for them.

There is no device on most machines: here the CPU plays one, whose copies land when the test says so.
"""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tbnum
from tbnum.observe import transfer
from tests.loops import OPTIMIZERS, Half, batches, train


class SlowDevice:
    """Copies land when `land` is called, or when somebody waits for them."""

    def __init__(self) -> None:
        self.under_way: list[SlowDevice.Copy] = []
        self.waited = 0
        self.asked_by: set[int] = set()  # threads

    class Copy:
        def __init__(self, device: SlowDevice) -> None:
            self.device = device
            self.landed = False

        def query(self) -> bool:
            self.device.asked_by.add(threading.get_ident())
            return self.landed

        def synchronize(self) -> None:
            self.device.waited += not self.landed
            self.landed = True

    def copy_to_host(self, packed: torch.Tensor) -> tuple[torch.Tensor, Copy]:
        self.under_way.append(SlowDevice.Copy(self))
        return packed.clone(), self.under_way[-1]

    def land(self, count: int | None = None) -> None:
        for each in [each for each in self.under_way if not each.landed][:count]:
            each.landed = True


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SlowDevice:
    slow = SlowDevice()
    monkeypatch.setattr(transfer, "on_host", lambda tensor: False)
    monkeypatch.setattr(transfer, "copy_to_host", slow.copy_to_host)
    return slow


def test_what_is_held_does_not_change_with_the_tensor(device: SlowDevice) -> None:
    tensor = torch.tensor(3.0)
    held = transfer.hold(tensor)
    tensor.fill_(7.0)
    assert isinstance(held, torch.Tensor)
    assert transfer.Transfer([held]).number(held) == 3.0


def test_what_is_sent_keeps_its_shape_and_precision(device: SlowDevice) -> None:
    numbers: list[transfer.Number] = [1.5, torch.tensor(2.0), torch.tensor(3, dtype=torch.int32)]
    exact, vectors = torch.tensor(1 / 3, dtype=torch.float64), [torch.arange(3.0), torch.tensor([])]
    counts = torch.tensor([[2**40 + 1, 1]])
    sent = transfer.Transfer([*transfer.tensors_in(numbers), exact, *vectors, counts])
    assert not sent.ready() and len(device.under_way) == 2  # one packed copy, and one of 64-bit counts
    device.land()
    assert sent.ready()
    assert sent.numbers(numbers) == [1.5, 2.0, 3.0]
    assert sent.number(exact) == 1 / 3
    assert [sent.array(each).tolist() for each in vectors] == [[0.0, 1.0, 2.0], []]
    assert sent.array(counts).tolist() == [[2**40 + 1, 1]]
    assert [each.shape for each in sent.arrays()] == [(), (), (), (3,), (0,), (1, 2)]
    assert device.waited == 0


def test_whoever_asks_early_waits(device: SlowDevice) -> None:
    tensor = torch.tensor(2.0)
    assert transfer.Transfer([tensor]).number(tensor) == 2.0
    assert device.waited == 1


def test_on_the_host_everything_is_there_at_once() -> None:
    number, vector = torch.tensor(2.0), torch.ones(2)
    sent = transfer.Transfer([number, vector])
    assert sent.ready()
    assert sent.numbers([1.0, number]) == [1.0, 2.0] and sent.array(vector).tolist() == [1.0, 1.0]


def test_no_other_thread_asks_the_device(device: SlowDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a CUDA graph is captured, a question from any other thread would end the capture."""
    monkeypatch.setattr("tbnum.observe.assembly.SECONDS_AT_MOST", -1.0)  # the other thread comes at once
    model = Half()
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path) as monitor, ThreadPoolExecutor(1) as other:

        def after_step(step: int) -> None:
            if step % 2:
                device.land()
            other.submit(monitor._observer.drain_quiet, monitor._recorder.on_quiet_step).result()

        train(model, optimizer, None, batches(12), max_norm=0.5, after_step=after_step)
        assert device.waited == 0
        device.land()
        monitor.flush()
    assert device.asked_by == {threading.get_ident()}
    (run,) = tbnum.read(tmp_path).values()
    assert len(run.steps["step"]) == 12


@pytest.mark.parametrize("fused", [False, True])
def test_a_loop_on_a_slow_device_has_the_record_of_the_fast_one(
    fused: bool, device: SlowDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(logdir: Path, after_step: Any) -> Any:
        torch.manual_seed(0)
        model = Half()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=6)
        optimizer = OPTIMIZERS["AdamW"](model.parameters(), fused=fused)
        with tbnum.wrap(optimizer, scaler, model=model, logdir=logdir) as monitor:
            train(model, optimizer, scaler, batches(40, bad=[20]), max_norm=0.5, after_step=after_step(monitor))
            waited = device.waited
        (read,) = tbnum.read(logdir).values()
        return read, waited

    known: list[int] = []

    def land_later(monitor: tbnum.Monitor) -> Any:
        def after_step(step: int) -> None:
            known.append(monitor.skipped_steps)
            if step % 3 == 2:
                device.land()

        return after_step

    slow, waited = run(tmp_path / "slow", land_later)
    monkeypatch.undo()
    fast, _ = run(tmp_path / "fast", lambda monitor: lambda step: None)
    assert waited == 0
    assert known[0] == known[1] == 0 and known[4] > 0  # a skip is known when its copy has landed, not before
    for name, values in fast.steps.items():
        if name != "wall_time":
            np.testing.assert_allclose(slow.steps[name], values, rtol=1e-6, err_msg=name)
    assert [(e.kind, e.step, e.cause) for e in slow.events] == [(e.kind, e.step, e.cause) for e in fast.events]
    names = [copy.copy(event.data.get("nonfinite_names")) for event in slow.events]
    assert names == [event.data.get("nonfinite_names") for event in fast.events]
