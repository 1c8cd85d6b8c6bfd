"""Steps that go the usual way are recorded as by the long way, bit for bit, wherever they leave it."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import tbnum
from tbnum.measure.norms import Taken
from tbnum.observe.track import OFTEN
from tbnum.observe.usual import Noted, Usual
from tests.published.check import all_loops, run_loop

HOOKS = (
    "backward_begins",
    "backward_ended",
    "gradients_go",
    "clip_begins",
    "clip_ended",
    "unscaled",
    "step_begins",
    "step_ended",
    "scaler_step_begins",
    "scaler_step_ended",
    "update_begins",
)
STEPS = 60


class Loop:
    """A training whose every step can be made to differ."""

    def __init__(
        self,
        folder: Path,
        *,
        scaler: bool = False,
        clip: bool = False,
        backwards: int = 1,
        make: Any = torch.optim.Adam,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = make(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20) if scaler else None
        self.clip, self.backwards = clip, backwards
        self.monitor = tbnum.wrap(
            self.optimizer, self.scaler, model=self.model, logdir=folder, tensor_interval=25, verbose=False
        )

    def backward(self, factor: float = 1.0) -> Tensor:
        loss = self.model(torch.randn(3, 4)).square().mean() * factor
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss.detach()

    def step(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def look(self) -> None:
        if self.scaler is not None and self.clip:
            self.scaler.unscale_(self.optimizer)
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)

    def attempt(self, factor: float = 1.0) -> None:
        for _ in range(self.backwards):
            self.backward(factor / self.backwards)
        self.look()
        self.step()
        self.optimizer.zero_grad()


def twice(loop: Loop) -> None:
    loop.backward()
    loop.optimizer.step()
    loop.attempt()


def side(loop: Loop) -> None:
    loop.backward()
    loop.optimizer.zero_grad()
    loop.attempt()


def by_hand(loop: Loop) -> None:
    loop.backward()
    for parameter in loop.model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)
    loop.look()
    loop.step()
    loop.optimizer.zero_grad()


def by_hand_without_a_mark(loop: Loop) -> None:
    """So often that samples of the gradients are taken in one of the steps."""
    for _ in range(OFTEN):
        loop.backward()
        for parameter in loop.model.parameters():
            assert parameter.grad is not None
            parameter.grad.data.mul_(0.5)
        loop.look()
        loop.step()
        loop.optimizer.zero_grad()


def replaced(loop: Loop) -> None:
    loop.backward()
    for parameter in loop.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    loop.look()
    loop.step()
    loop.optimizer.zero_grad()


def not_zeroed(loop: Loop) -> None:
    loop.backward()
    loop.look()
    loop.step()


def clipped_and_given_up(loop: Loop) -> None:
    loop.backward()
    nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
    loop.optimizer.zero_grad()


def frozen(loop: Loop) -> None:
    loop.model[0].requires_grad_(not next(loop.model[0].parameters()).requires_grad)
    loop.attempt()


def group(loop: Loop) -> None:
    if len(loop.optimizer.param_groups) == 1:
        loop.model.add_module("more", nn.Linear(2, 2))
        loop.optimizer.add_param_group({"params": loop.model.get_submodule("more").parameters(), "lr": 2e-3})
    loop.attempt()


def rate(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["lr"] *= 0.5
    loop.attempt()


def moments(loop: Loop) -> None:
    for state in loop.optimizer.state.values():
        if "exp_avg_sq" in state:
            state["exp_avg_sq"].zero_()
    loop.attempt()


def logged(loop: Loop) -> None:
    loop.monitor.log_loss(1.5)
    loop.monitor.log_batch([1, 2, 3])
    loop.attempt()
    loop.monitor.log_loss(2.5, name="other")


def closed_over(loop: Loop) -> None:
    loop.optimizer.step(lambda: loop.backward())
    loop.optimizer.zero_grad()


def raised(loop: Loop) -> None:
    handle = loop.optimizer.register_step_post_hook(_raise)
    with pytest.raises(KeyError):
        loop.attempt()
    handle.remove()
    loop.optimizer.zero_grad()
    if loop.scaler is not None:
        loop.scaler.update()


def _raise(*_: Any) -> None:
    raise KeyError("a hook of the user's")


def without_update(loop: Loop) -> None:
    assert loop.scaler is not None
    loop.backward()
    loop.scaler.step(loop.optimizer)
    loop.optimizer.zero_grad()
    loop.backward()
    loop.scaler.update()
    loop.optimizer.zero_grad()


def scale_set(loop: Loop) -> None:
    loop.attempt()
    assert loop.scaler is not None
    loop.scaler.update(512.0)


def bypassed(loop: Loop) -> None:
    loop.backward()
    loop.optimizer.step()
    loop.optimizer.zero_grad()


def unscaled_by_another(loop: Loop) -> None:
    assert loop.scaler is not None
    other = torch.amp.GradScaler("cpu", init_scale=512.0)
    other.scale(torch.ones(()))
    loop.backward()
    other.unscale_(loop.optimizer)
    nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
    loop.optimizer.step()
    loop.optimizer.zero_grad()


def noted(loop: Loop) -> None:
    loop.backward()
    loop.monitor.annotate("in the middle of a step")
    loop.monitor.flush()
    loop.look()
    loop.step()
    loop.optimizer.zero_grad()


def noted_on_another_device(loop: Loop) -> None:
    loop.backward()
    loop.look()
    with torch.device("meta"):
        loop.monitor.log_loss(0.5)
    loop.step()
    loop.optimizer.zero_grad()


ODD: dict[str, Callable[[Loop], None]] = {
    "nothing": Loop.attempt,
    "a NaN loss": lambda loop: loop.attempt(float("nan")),
    "an overflow": lambda loop: loop.attempt(1e38),
    "vanishing gradients": lambda loop: loop.attempt(1e-20),
    "two steps": twice,
    "a backward on the side": side,
    "gradients changed by hand": by_hand,
    "gradients changed by hand without a mark": by_hand_without_a_mark,
    "gradients replaced": replaced,
    "gradients not zeroed": not_zeroed,
    "clipped and given up": clipped_and_given_up,
    "parameters frozen": frozen,
    "a parameter group more": group,
    "another learning rate": rate,
    "moments zeroed": moments,
    "losses and samples logged": logged,
    "a closure": closed_over,
    "a hook that raises": raised,
    "no update": without_update,
    "the scale set": scale_set,
    "the scaler bypassed": bypassed,
    "gradients unscaled by another scaler": unscaled_by_another,
    "a note": noted,
    "a loss logged where another device is the default": noted_on_another_device,
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip": {"clip": True},
    "accumulation": {"backwards": 3, "clip": True},
    "scaler": {"scaler": True},
    "scaler and clip": {"scaler": True, "clip": True},
    "momentum": {"make": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)},
}


ORDINARY = {
    "a closure": {"scaler", "scaler and clip"},
    "no update": {"plain", "clip", "accumulation", "momentum"},
    "the scale set": {"plain", "clip", "accumulation", "momentum"},
    "gradients unscaled by another scaler": {"plain", "clip", "accumulation", "momentum"},
    "the scaler bypassed": {"plain", "momentum"},
    "moments zeroed": {"momentum"},
}
"""Where what is odd in other loops is a step as all others, as in the case of nothing odd."""


def cases() -> list[tuple[str, str]]:
    return [(kind, odd) for kind in KINDS for odd in ODD if kind not in ORDINARY.get(odd, ())]


def trained(folder: Path, kind: str, odd: str) -> Loop:
    """Every 9th step is odd, from the 30th on; by then a loop has shown what it does."""
    loop = Loop(folder, **KINDS[kind])
    for step in range(STEPS):
        (ODD[odd] if step >= 30 and step % 9 == 0 else Loop.attempt)(loop)
    loop.monitor.close()
    return loop


def record_of(folder: Path) -> dict[str, Any]:
    """All that is known of the steps but when they were."""
    found: dict[str, Any] = {}
    for name, run in tbnum.read(folder).items():
        columns = {column: values.tobytes() for column, values in run.steps.items() if column != "wall_time"}
        events = [
            (event.kind, event.step, event.optimizer, repr({k: v for k, v in event.data.items() if k != "where"}))
            for event in run.events
        ]
        tables = {}
        for column, (steps, names, values) in run.tensors.items():
            tables[column] = steps.tobytes(), list(names), values.tobytes()
        found[name] = columns, events, tables
    return found


def the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noted, "finished", lambda usual: None)


def leave_at_times(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """At any hook, and at one of fifteen calls."""
    chosen = random.Random(seed)
    for name in HOOKS:
        monkeypatch.setattr(Usual, name, _leaving(getattr(Usual, name), chosen))


def _leaving(method: Callable[..., bool], chosen: random.Random) -> Callable[..., bool]:
    return lambda usual, *args: chosen.random() > 1 / 15 and method(usual, *args)


@pytest.mark.parametrize(("kind", "odd"), cases())
@pytest.mark.filterwarnings("ignore")
def test_a_loop_has_the_same_record_whichever_way_its_steps_go(
    kind: str, odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        the_long_way(patch)
        trained(tmp_path / "long" / "run", kind, odd)
    trained(tmp_path / "usual" / "run", kind, odd)
    with monkeypatch.context() as patch:
        leave_at_times(patch, seed=len(odd))
        trained(tmp_path / "mixed" / "run", kind, odd)
    long = record_of(tmp_path / "long")
    assert record_of(tmp_path / "usual") == long
    assert record_of(tmp_path / "mixed") == long


@pytest.mark.parametrize("kind", KINDS)
def test_the_textbook_loop_goes_the_usual_way(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[float] = []
    closes = Usual._closes

    def counted(usual: Usual, tracker: float, new_scale: float | None) -> None:
        closed.append(tracker)
        closes(usual, tracker, new_scale)

    monkeypatch.setattr(Usual, "_closes", counted)
    trained(tmp_path, kind, "nothing")
    # Beside the first ones: tables every 25 steps, growth every 20.
    assert len(closed) >= (STEPS - 16) * 0.85


def test_no_graph_is_made_of_gradients_that_have_one(tmp_path: Path) -> None:
    loop, saved = Loop(tmp_path), list[Tensor]()
    for step in range(STEPS):
        loss = loop.model(torch.randn(3, 4)).square().mean()
        loss.backward(create_graph=step > 30)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda each: each):
            loop.optimizer.step()
        loop.optimizer.zero_grad()
    loop.monitor.close()
    assert not saved


@pytest.mark.parametrize("kind", ["plain", "clip"])
def test_no_graph_is_made_of_gradients_that_are_asked_for_one(kind: str, tmp_path: Path) -> None:
    loop, saved = Loop(tmp_path, **KINDS[kind]), list[Tensor]()
    for _ in range(STEPS):
        loop.backward()
        loop.look()
        for parameter in loop.model.parameters():
            assert parameter.grad is not None
            parameter.grad.requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda each: each):
            loop.step()
        loop.optimizer.zero_grad()
    loop.monitor.close()
    assert not saved


@pytest.mark.parametrize("parameter", [0, 1])
def test_moments_that_were_given_to_another_parameter_are_looked_at_as_ever(parameter: int, tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    for _ in range(30):
        loop.attempt()
    (group,) = loop.optimizer.param_groups
    before = group["params"][parameter]
    after = group["params"][parameter] = nn.Parameter(before.detach().clone())
    setattr(loop.model[0], ("weight", "bias")[parameter], after)
    kept = [(after if each is before else each, state) for each, state in loop.optimizer.state.items()]
    loop.optimizer.state.clear()
    loop.optimizer.state.update(kept)
    for _ in range(5):
        loop.attempt()
    moments(loop)
    loop.monitor.close()
    (run,) = tbnum.read(tmp_path).values()
    assert [event.step for event in run.events if event.kind == "moments_reset"] == [35]


def test_norms_of_complex_gradients_are_the_same_whichever_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(folder: Path) -> None:
        torch.manual_seed(0)
        model = nn.Linear(5, 7, dtype=torch.complex64)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        monitor = tbnum.wrap(optimizer, model=model, logdir=folder, verbose=False)
        for _ in range(STEPS):
            model(torch.randn(3, 5, dtype=torch.complex64)).abs().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        monitor.close()

    with monkeypatch.context() as patch:
        the_long_way(patch)
        train(tmp_path / "long" / "run")
    train(tmp_path / "usual" / "run")
    assert record_of(tmp_path / "usual") == record_of(tmp_path / "long")


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_that_goes_on_elsewhere_says_so_at_its_next_step(kind: str, tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", **KINDS[kind])
    for _ in range(30):
        loop.attempt()
    loop.backward()
    loop.monitor.load_state_dict({**loop.monitor.state_dict(), "step": 40})  # of step 40, as it turns out
    loop.look()
    loop.step()
    loop.optimizer.zero_grad()
    for _ in range(3):
        loop.attempt()
    loop.monitor.close()
    (run,) = tbnum.read(tmp_path).values()
    assert [event.step for event in run.events if event.kind == "resume"] == [41]


def test_norms_on_a_device_are_left_where_they_are(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    for _ in range(30):
        loop.attempt()
    loop.backward()
    parameters = list(loop.model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    usual = loop.monitor._observer.usual
    assert usual.is_on
    assert not usual.clip_begins(parameters, 1.0, Taken(gradients, torch.empty(len(gradients), device="meta")))
    loop.monitor.close()


class Forbidden(TorchDispatchMode):
    """What finds out where a loop waits for its device, say."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self.operation = operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.operation in str(func):
            raise ValueError(f"{self.operation} is forbidden")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("operation", ["_local_scalar_dense", "_foreach_norm", "vector_norm"])
@pytest.mark.parametrize("make", [torch.optim.SGD, partial(torch.optim.Adam, foreach=True, capturable=False)])
@pytest.mark.filterwarnings("ignore")
def test_what_a_mode_of_the_users_refuses_does_not_reach_the_loop(make: Any, operation: str, tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", make=make)
    for step in range(STEPS):
        if step < 30 or step % 3:
            loop.attempt()
            continue
        with Forbidden(operation) if step % 2 else contextlib.nullcontext():
            loop.backward()
        clipped = nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1) if step % 4 else torch.ones(())
        with Forbidden(operation) if make is torch.optim.SGD else contextlib.nullcontext():
            loop.step()
        assert clipped.isfinite()
        loop.optimizer.zero_grad()
    loop.monitor.close()
    (run,) = tbnum.read(tmp_path).values()
    assert len(run.steps["step"]) == STEPS


@pytest.mark.parametrize("name", ["guards", "accumulation", "scalers", "adversarial"])
@pytest.mark.filterwarnings("ignore")
def test_published_loops_have_the_same_record_whichever_way_their_steps_go(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = {loop: each for loop, each in all_loops().items() if loop.startswith(f"{name}.")}
    assert loops
    for loop, each in list(loops.items())[::4]:
        with monkeypatch.context() as patch:
            the_long_way(patch)
            run_loop(each, tmp_path / loop / "long" / "run")
        with monkeypatch.context() as patch:
            leave_at_times(patch, seed=1)
            run_loop(each, tmp_path / loop / "mixed" / "run")
        assert record_of(tmp_path / loop / "mixed") == record_of(tmp_path / loop / "long"), loop


@pytest.mark.parametrize("kind", ["plain", "scaler and clip"])
def test_what_other_threads_do_touches_no_step(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over, left = threading.Event(), list[int]()
    leave = Noted.leave

    def counted(usual: Usual, **anywhere: bool) -> None:
        was_on = usual.is_on
        leave(usual, **anywhere)
        if was_on and not usual.is_on:
            left.append(threading.get_ident())

    def other() -> None:
        model = nn.ParameterList([torch.ones(3)])  # draws no random number
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        while not over.is_set():
            loss = model[0].square().sum()
            (gradient,) = torch.autograd.grad(loss, [model[0]], create_graph=True)
            (loss + gradient.sum()).backward()
            nn.utils.get_total_norm([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            model.zero_grad()

    trained(tmp_path / "alone" / "run", kind, "nothing")
    monkeypatch.setattr(Noted, "leave", counted)
    thread = threading.Thread(target=other)
    thread.start()
    try:
        trained(tmp_path / "beside" / "run", kind, "nothing")
    finally:
        over.set()
        thread.join(1200)
    assert record_of(tmp_path / "beside") == record_of(tmp_path / "alone")
    assert set(left) == {threading.get_ident()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_goes_on_in_another_thread_has_the_same_record(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        the_long_way(patch)
        trained_in_turns(tmp_path / "long" / "run", kind)
    trained_in_turns(tmp_path / "usual" / "run", kind)
    assert record_of(tmp_path / "usual") == record_of(tmp_path / "long")


def trained_in_turns(folder: Path, kind: str) -> None:
    loop = Loop(folder, **KINDS[kind])

    def several() -> None:
        for _ in range(25):
            loop.attempt()

    several()
    elsewhere(several)
    several()
    for elsewhere_too in ("step", "look", "backward"):  # a part of each step
        for _ in range(3):
            for name in ("backward", "look", "step"):
                part = getattr(loop, name)
                elsewhere(part) if name == elsewhere_too else part()
            loop.optimizer.zero_grad()
        several()
    loop.monitor.close()


def elsewhere(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(1200)
