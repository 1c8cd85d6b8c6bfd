"""A monitor ends with what it records: a notebook's cell may run again; two trainings in one folder are refused."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import tbnum

BEGIN = """
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = tbnum.wrap(optimizer, model=model, logdir=logdir)
"""
TRAIN = """
for _ in range(steps):
    model(torch.ones(3, 2)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SCHEDULED = f"""{BEGIN}
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.StepLR(optimizer, 2)],
    milestones=[2],
)
{TRAIN}
scheduler.step()
"""
A_SCHEDULER_OF_A_LIBRARY = f"""
class WarmupScheduler:
    def __init__(self, optimizer):
        self.optimizer = optimizer

{BEGIN}
scheduler = WarmupScheduler(optimizer)
{TRAIN}
"""
CLOSURE = """
def make_step(model, optimizer):
    tbnum.wrap(optimizer, model=model, logdir=logdir)

    def step():
        model(torch.ones(3, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step

model = nn.Linear(2, 1)
step = make_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(steps):
    step()
"""
TRAINER = """
class Trainer:
    def __init__(self):
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.monitor = tbnum.wrap(self.optimizer, model=self.model, logdir=logdir)

    def train(self):
        model, optimizer = self.model, self.optimizer
        for _ in range(steps):
            model(torch.ones(3, 2)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

trainer = Trainer()
trainer.train()
"""
RAISES = f"""{BEGIN}{TRAIN}
def show(optimizer):
    raise KeyError("shown, and kept by the interpreter")

try:
    show(optimizer)
except KeyError as error:
    sys.last_value = error
    sys.last_traceback = error.__traceback__
"""
HISTORY = f"""{BEGIN}{TRAIN}
Out = {{3: optimizer}}
_ = _3 = optimizer
"""
GENERATOR = """
def training():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tbnum.wrap(optimizer, model=model, logdir=logdir)
    for _ in range(steps):
        model(torch.ones(3, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield

loop = training()
for _ in range(steps):
    next(loop)
"""
CELLS = {
    "variables": BEGIN + TRAIN,
    "scheduler": SCHEDULED,
    "a library's scheduler": A_SCHEDULER_OF_A_LIBRARY,
    "closure": CLOSURE,
    "trainer": TRAINER,
    "an exception that was shown": RAISES,
    "history": HISTORY,
    "generator": GENERATOR,
}


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs a notebook's cell, each time in the same namespace."""
    names: dict[str, Any] = {"__name__": "__main__", "nn": nn, "torch": torch, "tbnum": tbnum, "sys": sys}
    names |= {"logdir": tmp_path / "run", "steps": 3}

    def run(code: str, **values: Any) -> dict[str, Any]:
        names.update(values)
        exec(compile(code, "/notebook/cell.py", "exec"), names)
        return names

    yield run
    names.clear()
    for name in ("last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)


@pytest.mark.parametrize("code", CELLS.values(), ids=CELLS)
def test_a_cell_that_is_run_again_goes_on_in_the_folder_as_a_new_session(
    code: str, cell: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cell(code)
        cell(code, steps=5)
        cell(code, steps=2)
    for monitor in tbnum.lifecycle.open_monitors:
        monitor.flush()
    (run,) = tbnum.read(tmp_path).values()
    assert [len(tbnum.read(tmp_path, session=number)["run"].steps["step"]) for number in range(3)] == [3, 5, 2]
    assert len(run.meta["sessions"]) == 3


@pytest.mark.parametrize("code", [CLOSURE, TRAINER], ids=["closure", "trainer"])
def test_at_a_prompt_a_cell_that_was_changed_may_be_run_again(
    code: str, cell: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell(code)
    with pytest.raises(ValueError, match=r"variable .(step|trainer)"):
        cell("\n" + code)  # a program's other line
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    cell("\n" + code, steps=2)
    for monitor in tbnum.lifecycle.open_monitors:
        monitor.flush()
    assert len(tbnum.read(tmp_path)["run"].steps["step"]) == 2


def test_a_cell_that_only_makes_things_may_be_run_again_before_it_trained(
    cell: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    schedule = "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)"
    cell(BEGIN + schedule)
    names = cell(BEGIN + schedule)
    cell(TRAIN)
    names["monitor"].close()
    assert len(tbnum.read(tmp_path)["run"].steps["step"]) == 3


def test_in_a_cell_that_makes_the_optimizer_again_and_not_the_scaler_it_is_recorded_with_the_scaler(
    cell: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    code = BEGIN.replace("wrap(optimizer", "wrap(optimizer, scaler") + TRAIN.replace(
        "optimizer.step()", "scaler.step(optimizer)\n    scaler.update()"
    ).replace("model(torch.ones(3, 2)).square().mean()", "scaler.scale(model(torch.ones(3, 2)).square().mean())")
    cell(code, scaler=torch.amp.GradScaler("cpu"))
    names = cell(code, steps=2)
    names["monitor"].close()
    assert len(tbnum.read(tmp_path)["run"].steps["step"]) == 2


def test_what_is_wrapped_again_is_one_monitor_and_one_record_also_with_another_function_for_the_scale(
    tmp_path: Path,
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wraps = [tbnum.wrap(optimizer, lambda: 2.0, logdir=tmp_path) for _ in range(3)]
    assert wraps[0] is wraps[1] is wraps[2]
    wraps[0].close()


# -- two trainings at once -------------------------------------------------------------------------------------------


class Loop:
    def __init__(self, logdir: Path | None = None) -> None:
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if logdir is not None:
            tbnum.wrap(self.optimizer, model=self.model, logdir=logdir)

    def step(self) -> None:
        self.model(torch.ones(3, 2)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def test_another_optimizer_in_a_variable_is_in_use_and_named(tmp_path: Path) -> None:
    generator, discriminator = Loop().optimizer, Loop().optimizer
    with tbnum.wrap(generator, logdir=tmp_path):
        message = (
            r"records optimizer \(SGD\) in .*made at .*test_lifecycle.py:\d+.*"
            r"variable 'generator' of test_lifecycle.py.*its own folder"
        )
        with pytest.raises(ValueError, match=message):
            tbnum.wrap(discriminator, logdir=tmp_path)
        assert not discriminator._optimizer_step_pre_hooks


def test_optimizers_in_a_list_or_of_one_object_are_in_use(tmp_path: Path) -> None:
    class Gan:
        def __init__(self) -> None:
            self.generator, self.discriminator = Loop(), Loop()

        def wrap(self) -> None:
            tbnum.wrap(self.generator.optimizer, logdir=tmp_path / "gan")
            tbnum.wrap(self.discriminator.optimizer, logdir=tmp_path / "gan")

    with pytest.raises(ValueError, match="'self'"):
        Gan().wrap()
    loops = [Loop() for _ in range(2)]
    with pytest.raises(ValueError, match="its own folder"):
        for loop in loops:
            tbnum.wrap(loop.optimizer, logdir=tmp_path / "list")


def test_a_training_in_another_thread_is_in_use(tmp_path: Path) -> None:
    begun, ended = threading.Event(), threading.Event()

    def train() -> None:
        loop = Loop(tmp_path)
        loop.step()
        begun.set()
        ended.wait()

    thread = threading.Thread(target=train)
    thread.start()
    begun.wait()
    try:
        with pytest.raises(ValueError, match="'loop'"):
            Loop(tmp_path)
    finally:
        ended.set()
        thread.join()
    Loop(tmp_path)


def test_an_optimizer_that_was_taken_for_over_and_steps_all_the_same_is_warned_of_once(tmp_path: Path) -> None:
    def trained(loop: Loop) -> Loop:
        loop.step()
        return loop

    loops = [trained(Loop(tmp_path)) for _ in range(2)]
    with pytest.warns(RuntimeWarning, match=r"SGD steps, and is not recorded any more.*test_lifecycle.py") as caught:
        loops[0].step()
        loops[0].step()
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loops[1].step()


def test_some_objects_of_a_monitor_that_is_in_use_can_t_be_wrapped_apart(tmp_path: Path) -> None:
    first, second = Loop(), Loop()
    message = r"first \(SGD\), second \(SGD\); scaler none.*Wrap all of them in one call"
    with (
        tbnum.wrap({"first": first.optimizer, "second": second.optimizer}, logdir=tmp_path / "both"),
        pytest.raises(ValueError, match=message),
    ):
        tbnum.wrap(first.optimizer, logdir=tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_what_only_a_partial_or_a_bound_method_holds_is_reported_from_what_nobody_does(tmp_path: Path) -> None:
    from tbnum.observe.variables import use_of

    loop = Loop()
    optimizer, target = loop.optimizer, id(loop.optimizer)
    del loop
    step = optimizer.step
    assert use_of([optimizer]).variable == "optimizer"  # type: ignore[union-attr]
    wanted = [step.__self__]
    del optimizer
    found = use_of(wanted)
    assert found is not None and found.variable in ("step", "wanted") and target == id(wanted[0])
    assert functools.partial(step) is not None


def test_objects_of_others_are_looked_at_without_running_their_code(tmp_path: Path) -> None:
    from tbnum.observe.variables import use_of

    class Proxy:
        """Raises wherever it is asked for something, as one does outside of its context."""

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("outside of its context")

    class Endless(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise RuntimeError("not to be walked")

    optimizer = Loop().optimizer
    held, proxy = Endless([optimizer]), Proxy()
    wanted = {"object": optimizer}
    del optimizer
    assert use_of(list(wanted.values())).variable in ("held", "wanted")  # type: ignore[union-attr]
    assert len(held) == 1 and type(proxy) is Proxy


def test_a_model_that_holds_its_monitor_is_copied_and_pickled_as_ever(tmp_path: Path) -> None:
    loop = Loop()
    loop.model.monitor = tbnum.wrap(loop.optimizer, model=loop.model, logdir=tmp_path)
    twin = copy.deepcopy(loop.model)
    assert twin.monitor is loop.model.monitor and twin.weight is not loop.model.weight
    dumped = pickle.dumps(loop.model)
    assert pickle.loads(dumped).monitor is None and b"tbnum" not in dumped
    loop.step()
    loop.model.monitor.close()
    assert len(tbnum.read(tmp_path)["."].steps["step"]) == 1


@pytest.mark.parametrize("was_enabled", [True, False])
def test_nothing_is_collected_while_python_lists_its_frames(was_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 would wait for itself for ever."""
    from tbnum.observe.variables import use_of

    enabled, frames = list[bool](), sys._current_frames

    def noted() -> dict[int, FrameType]:
        enabled.append(gc.isenabled())
        return frames()

    monkeypatch.setattr(sys, "_current_frames", noted)
    mine = object()
    try:
        (gc.enable if was_enabled else gc.disable)()
        found = use_of([mine])
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
    assert enabled == [False] and found is not None and found.variable == "mine"
