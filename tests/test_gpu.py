"""What only a CUDA device can show: the same truth, the same bits, and that nothing waits for it. `make test-gpu`.

Skipped where there is none. At its end it writes what was run to `test-results/gpu.md`, as a row of docs/tested.md.
"""

from __future__ import annotations

import functools
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tbnum
from demo.model import GPT, GPTConfig
from tests.launches import LOOPS, Launched, launched
from tests.loops import Half, batches
from tests.published.check import problems
from tests.published.tape import UNKNOWN, Loop, Tape, data, float64_norm, mlp
from tests.test_launches import documented

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

WRITTEN = Path(__file__).parents[1] / "test-results" / "gpu.md"
MODELS = {
    "5 M": GPTConfig(n_layer=12, n_head=4, n_embd=184),
    "30 M": GPTConfig(n_layer=12, n_head=8, n_embd=456),
}
BLOCKS, BLOCK_STEPS = 6, 50


@pytest.fixture(scope="module")
def seen() -> Iterator[list[str]]:
    """What was run, for the page: filled by the tests, printed and written when the last of them is done."""
    lines: list[str] = []
    yield lines
    versions = [platform.python_version(), *(metadata.version(name) for name in ("torch", "tensorboard", "numpy"))]
    what = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}: {'; '.join(dict.fromkeys(lines))}"
    text = f"| {' | '.join(versions)} | {what} |"
    WRITTEN.parent.mkdir(exist_ok=True)
    WRITTEN.write_text(text + "\n")
    print(f"\n{text}\nwritten to {WRITTEN}")


# -- truth and bits ----------------------------------------------------------------------------------------------------


def in_float32(tape: Tape, make: Callable[[Any], torch.optim.Optimizer], autocast: torch.dtype | None = None) -> None:
    """A loop with a clip and no scaler, in float32 or under autocast."""
    model = mlp().cuda()
    optimizer = make(model.parameters())
    tape.wrap(optimizer, model=model)
    for x, y in data():
        with torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
            out = model(x.cuda())
        loss = nn.functional.mse_loss(out.float(), y.cuda())
        loss.backward()
        before = float64_norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        tape.attempt(loss, before, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


def in_float16(tape: Tape, make: Callable[[Any], torch.optim.Optimizer], clip: bool, given: bool = True) -> None:
    """A loop with a GradScaler that starts too high, and meets a bad batch."""
    model = Half().cuda()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20, growth_interval=8)
    tape.wrap(optimizer, scaler if given else None, model=model)
    for x in batches(40, bad=[25]):
        loss = model(x.cuda()).square().mean()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        if clip:
            scaler.unscale_(optimizer)
        before = float64_norm(model, 1.0 if clip else scale)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        after = float64_norm(model, 1.0 if clip else scale)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipped = scaler.get_scale() < scale
        tape.attempt(loss, before, UNKNOWN if skipped else after, skipped=skipped, loss_scale=scale)
    tape.keep(model, optimizer, scaler)


def in_parameters_of_bfloat16(tape: Tape) -> None:
    model = mlp().cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    tape.wrap(optimizer, model=model)
    for x, y in data():
        loss = nn.functional.mse_loss(model(x.cuda().bfloat16()).float(), y.cuda())
        loss.backward()
        tape.attempt(loss, float64_norm(model))
        optimizer.step()
        optimizer.zero_grad()
    tape.keep(model, optimizer)


def accumulating(tape: Tape) -> None:
    model = mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tape.wrap(optimizer, model=model)
    total = 0.0
    for number, (x, y) in enumerate(data()):
        loss = nn.functional.mse_loss(model(x.cuda()), y.cuda()) / 4
        loss.backward()
        total += loss.item()
        if number % 4 == 3:
            before = float64_norm(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            tape.attempt(total, before, float64_norm(model), micro_batches=4)
            optimizer.step()
            optimizer.zero_grad()
            total = 0.0
    tape.keep(model, optimizer)


def adamw(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, **options)


FOREACH, FUSED = functools.partial(adamw, foreach=True), functools.partial(adamw, fused=True)
ONE_BY_ONE, CAPTURABLE = functools.partial(adamw, foreach=False), functools.partial(adamw, capturable=True)
TRUE_LOOPS: list[Loop] = [
    Loop("float32, foreach", functools.partial(in_float32, make=FOREACH)),
    Loop("float32, fused", functools.partial(in_float32, make=FUSED)),
    Loop("float32, tensor by tensor", functools.partial(in_float32, make=ONE_BY_ONE)),
    Loop("float32, capturable", functools.partial(in_float32, make=CAPTURABLE)),
    Loop("autocast to bfloat16, foreach", functools.partial(in_float32, make=FOREACH, autocast=torch.bfloat16)),
    Loop("autocast to bfloat16, fused", functools.partial(in_float32, make=FUSED, autocast=torch.bfloat16)),
    Loop("parameters in bfloat16", in_parameters_of_bfloat16),
    Loop("float16 with GradScaler, foreach", functools.partial(in_float16, make=FOREACH, clip=False)),
    Loop("float16 with GradScaler and clip, foreach", functools.partial(in_float16, make=FOREACH, clip=True)),
    Loop("float16 with GradScaler, fused", functools.partial(in_float16, make=FUSED, clip=False)),
    Loop("float16 with GradScaler and clip, fused", functools.partial(in_float16, make=FUSED, clip=True)),
    Loop(
        "float16 with a forgotten GradScaler, fused",
        functools.partial(in_float16, make=FUSED, clip=True, given=False),
        events={"scaler_found": 1},
    ),
    Loop("accumulation", accumulating),
]


@pytest.mark.parametrize("loop", TRUE_LOOPS, ids=[loop.name for loop in TRUE_LOOPS])
def test_a_loop_on_the_device_trains_as_without_and_its_record_is_its_own_truth(
    loop: Loop, tmp_path: Path, seen: list[str]
) -> None:
    found = problems(loop, tmp_path)
    assert not found, "\n".join(found[:20])
    seen.append(loop.name)


# -- nothing waits -----------------------------------------------------------------------------------------------------


class DeviceLoop:
    """A step that waits for nothing by itself; unfused with a scaler it waits once, in `scaler.step`."""

    def __init__(self, *, fused: bool, with_scaler: bool, clip: bool) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = Half().cuda() if with_scaler else mlp().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused, foreach=not fused)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10) if with_scaler else None
        self.data = [x.cuda() for x in batches(120, bad=[40])]
        self.clip = clip

    def step(self, x: Tensor) -> None:
        loss = self.model(x).square().mean()
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler.scale(loss).backward()
            if self.clip:
                self.scaler.unscale_(self.optimizer)
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(("fused", "with_scaler"), [(True, False), (False, False), (True, True)])
def test_at_the_defaults_nothing_waits_for_the_device(
    fused: bool, with_scaler: bool, clip: bool, tmp_path: Path, seen: list[str]
) -> None:
    """Also at the steps at which norms of parameters and histograms are due."""
    loop = DeviceLoop(fused=fused, with_scaler=with_scaler, clip=clip)
    with tbnum.wrap(loop.optimizer, loop.scaler, model=loop.model, logdir=tmp_path) as monitor:
        try:
            for step, x in enumerate(loop.data):
                torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")  # the first steps initialize
                loop.step(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        monitor.flush()
        assert not with_scaler or monitor.skipped_steps >= 1
    (run,) = tbnum.read(tmp_path).values()
    assert len(run.steps["step"]) == 120 and run.steps["grad_norm"][0] > 0
    if with_scaler:
        assert run.steps["skipped"][40] and run.steps["loss_scale"][0] == 2.0**10
        seen.append("no host-device sync with a GradScaler, fused")
    else:
        seen.append(f"no host-device sync, {'fused' if fused else 'foreach'}")


def syncs_of(loop: DeviceLoop, steps: int) -> int:
    """How often torch says that something waited, over some steps after the first two."""
    for x in loop.data[:2]:
        loop.step(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for x in loop.data[2 : 2 + steps]:
                loop.step(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("clip", [False, True])
def test_where_the_unfused_scaler_waits_by_itself_tbnum_adds_nothing(clip: bool, tmp_path: Path) -> None:
    bare = syncs_of(DeviceLoop(fused=False, with_scaler=True, clip=clip), 60)
    loop = DeviceLoop(fused=False, with_scaler=True, clip=clip)
    with tbnum.wrap(loop.optimizer, loop.scaler, model=loop.model, logdir=tmp_path):
        watched = syncs_of(loop, 60)
    assert bare and watched == bare


@pytest.mark.parametrize("tensors", [10, 150])
@pytest.mark.parametrize("name", LOOPS)
def test_a_step_launches_what_the_documentation_says(name: str, tensors: int, seen: list[str]) -> None:
    operations, copies = documented()[name]
    found = launched(name, tensors=tensors, device="cuda")
    assert found == Launched(operations, copies, syncs=0)
    seen.append(f"{name}, {tensors} tensors: {found.operations} operations, {found.copies} copies")


# -- CUDA graphs -------------------------------------------------------------------------------------------------------


def whole_step_in_a_graph(logdir: Path | None) -> tuple[list[Tensor], int]:
    """The tutorial's: warm-up on a side stream, capture of the whole step, replays. -> parameters, steps recorded"""
    torch.manual_seed(0)
    model = mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    monitor = None if logdir is None else tbnum.wrap(optimizer, model=model, logdir=logdir)
    static_x, static_y = torch.zeros(16, 8, device="cuda"), torch.zeros(16, 4, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(static_x), static_y).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for x, y in data(20):
        static_x.copy_(x)
        static_y.copy_(y)
        graph.replay()
    torch.cuda.synchronize()
    steps = 0
    if monitor is not None:
        monitor.close()
        (run,) = tbnum.read(monitor.logdir).values()
        steps = len(run.steps["step"])
    return [parameter.detach().cpu() for parameter in model.parameters()], steps


def test_a_captured_step_trains_as_without_and_nothing_of_it_is_recorded(tmp_path: Path, seen: list[str]) -> None:
    """The replays call no Python: what is recorded is the warm-up's three steps."""
    watched, steps = whole_step_in_a_graph(tmp_path)
    bare, _ = whole_step_in_a_graph(None)
    assert all(map(torch.equal, watched, bare))
    assert steps == 3
    seen.append("CUDA graph of the whole step")


def test_a_model_whose_forward_and_backward_are_graphs_is_recorded_right(tmp_path: Path, seen: list[str]) -> None:
    """`make_graphed_callables`: clip and step are Python, and so are loss and norms."""

    def loop(tape: Tape) -> None:
        model = mlp().cuda()
        graphed = torch.cuda.make_graphed_callables(model, (torch.zeros(16, 8, device="cuda"),))
        optimizer = adamw(model.parameters(), fused=True)
        tape.wrap(optimizer, model=model)
        for x, y in data():
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(graphed(x.cuda()), y.cuda())
            loss.backward()
            before = float64_norm(model)
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            tape.attempt(loss, before, float64_norm(model))
            optimizer.step()
        tape.keep(*model.parameters())

    found = problems(Loop("graphed", loop), tmp_path)
    assert not found, "\n".join(found[:20])
    seen.append("CUDA graphs of forward and backward")


# -- what it costs: printed, not asserted ------------------------------------------------------------------------------


def seconds_of(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> float:
    """A step's, of a block that ends when the device is done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(BLOCK_STEPS):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / BLOCK_STEPS


@pytest.mark.parametrize("size", MODELS)
def test_what_it_costs_is_printed(size: str, tmp_path: Path, seen: list[str]) -> None:
    torch.manual_seed(0)
    config = MODELS[size]
    model = GPT(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(config.vocab_size, (16, config.block_size + 1), device="cuda")
    seconds_of(model, optimizer, tokens)
    ratios, bare_ms = [], []
    before = seconds_of(model, optimizer, tokens)
    for block in range(BLOCKS):
        with tbnum.wrap(optimizer, model=model, logdir=tmp_path / str(block) / "run"):
            watched = seconds_of(model, optimizer, tokens)
        after = seconds_of(model, optimizer, tokens)
        ratios.append(watched * 2 / (before + after))
        bare_ms.append(after * 1e3)
        before = after
    ratio, milliseconds = statistics.median(ratios), statistics.median(bare_ms)
    seen.append(f"GPT of {size}, bfloat16, fused, clip: {ratio:.3f} x of {milliseconds:.1f} ms a step")
    print(f"\n{seen[-1]}")
