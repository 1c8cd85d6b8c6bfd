"""Two trainings of a small GPT compared by `tbnum diff`: which are the same, and from where on the others differ.

python -m benchmarks.same_or_apart             # some three minutes
python -m benchmarks.same_or_apart --steps 60 --seeds 3
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import tbnum
from benchmarks.report import Report, Row, parser
from demo.model import GPT, GPTConfig

ROOT = Path(__file__).parents[1]
BATCH, TOKENS = 8, 64
FAULTY = "blocks.1.mlp.fc.weight"
Change = Callable[[GPT, torch.optim.Optimizer], None]


def batches(steps: int, seed: int) -> list[torch.Tensor]:
    """(BATCH, TOKENS + 1) each, of a text that can be learned."""
    text = torch.frombuffer(bytearray((ROOT / "LICENSE").read_bytes()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - TOKENS - 1, (steps, BATCH), generator=generator)
    return [torch.stack([text[start : start + TOKENS + 1] for start in row.tolist()]) for row in starts]


def train(
    folder: Path,
    *,
    steps: int,
    seed: int = 0,
    lr: float = 1e-3,
    at: int = -1,
    before_forward: Change | None = None,
    before_step: Change | None = None,
    accumulate: int = 1,
    bfloat16: bool = False,
    dropout: float = 0.0,
    spread: Callable[[GPT], torch.nn.Module] | None = None,
    **options: object,
) -> tbnum.Run:
    torch.manual_seed(seed)
    model = GPT(GPTConfig(block_size=TOKENS))
    if dropout:
        for block in model.blocks:
            block.register_forward_hook(lambda module, args, output: F.dropout(output, dropout))
    module = model if spread is None else spread(model)
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr)
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    with tbnum.wrap(optimizer, model=module, logdir=folder, verbose=False, **options):  # type: ignore[arg-type]
        for step, batch in enumerate(batches(steps, seed)):
            if step == at and before_forward is not None:
                before_forward(model, optimizer)
            for part in batch.chunk(ranks)[rank].chunk(accumulate):
                with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                    loss = module(part[:, :-1], part[:, 1:])
                (loss / accumulate).backward()
            if step == at and before_step is not None:
                before_step(model, optimizer)
            optimizer.step()
            optimizer.zero_grad()
    return tbnum.read(folder)["."]


# -- what is done to one of two trainings


def one_gradient_element(model: GPT, optimizer: torch.optim.Optimizer) -> None:
    gradient = dict(model.named_parameters())[FAULTY].grad
    assert gradient is not None
    element = gradient.view(-1)[7]
    element.copy_(torch.nextafter(element, torch.tensor(9.0)))


def dropouts_seed(model: GPT, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(99)


def eps(model: GPT, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["eps"] = 1e-7


def learning_rate(model: GPT, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] += 1e-9


FAULTS: tuple[tuple[str, str, Change, float], ...] = (  # what, where, how, and at which part of the steps
    ("a gradient element off by one ulp", "before_step", one_gradient_element, 0.6),
    ("dropout's seed", "before_forward", dropouts_seed, 0.4),
    ("Adam's eps", "before_step", eps, 0.3),
    ("learning rate +1e-9", "before_step", learning_rate, 0.3),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--worker", choices=("ddp", "fsdp2"), help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args(arguments)
    torch.set_num_threads(1)
    if given.worker is not None:
        _worker(given.worker, given.folder, given.steps)
        return
    report = Report("same_or_apart", {"steps": given.steps, "seeds": given.seeds})
    report.begin()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for interval, label in ((1, "tensor_interval=1"), (50, "the defaults")):
            report.add(label, faults(folder / label, given.steps, interval))
        report.add("other ways to the same sum", _layouts(folder / "layouts", given.steps))
        report.add("more than seeds make", _noise(folder / "noise", given.steps, given.seeds))
    report.finish(given.json)


def faults(folder: Path, steps: int, interval: int) -> list[Row]:
    run = partial(train, steps=steps, dropout=0.1, tensor_interval=interval)
    clean = run(folder / "clean")
    rows = [_told("the same training", tbnum.diff(clean, run(folder / "again")))]
    for what, where, change, part in FAULTS:
        at = int(steps * part)
        faulty = run(folder / what, at=at, **{where: change})  # type: ignore[arg-type]
        rows.append(_told(f"{what} at {at}", tbnum.diff(clean, faulty)))
    return rows


def _told(what: str, found: tbnum.Difference) -> Row:
    bits = f"bits same until {found.same_bits_until}, apart at {found.bits_apart_at}"
    loss = next((each.first_step for each in found.columns if each.column == "loss"), None)
    where = f"stage {found.stage}, in {', '.join(found.tensors[:2])}{'...' if len(found.tensors) > 2 else ''}"
    note = bits if found.same else f"{bits}; {where}; in the loss from {loss}"
    return Row(what, None if found.first_step is None else float(found.first_step), note=note)


def _layouts(folder: Path, steps: int) -> list[Row]:
    one = train(folder / "one", steps=steps)
    torch.set_num_threads(2)
    runs = {"two threads": train(folder / "two", steps=steps)}
    torch.set_num_threads(1)
    runs["accumulation 4"] = train(folder / "accumulated", steps=steps, accumulate=4)
    for name in ("ddp", "fsdp2"):
        arguments = ["-m", "benchmarks.same_or_apart", "--worker", name, "--folder", str(folder / name)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*torchrun, *arguments, "--steps", str(steps)], check=True, env=environment)
        runs[f"{name} on two ranks"] = tbnum.read(folder / name)["."]
    rows = []
    for name, run in runs.items():
        found = tbnum.diff(one, run, columns=["grad_norm"])
        size = max(abs(run.steps["grad_norm"] / one.steps["grad_norm"] - 1).tolist())
        note = f"the gradient norm is up to {size:.1e} apart"
        if "ranks" in name:
            assert run.ranks is not None
            losses = run.ranks.column("loss")[1].mean(axis=0)
        else:
            losses = run.steps["loss"]
        note += f", the loss up to {max(abs(losses / one.steps['loss'] - 1).tolist()):.1e}"
        rows.append(Row(name, None if found.first_step is None else float(found.first_step), note=note, target=20))
    return rows


def _worker(name: str, folder: Path, steps: int) -> None:
    dist.init_process_group("gloo")

    def spread(model: GPT) -> torch.nn.Module:
        if name == "ddp":
            return DistributedDataParallel(model)
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        return model

    with contextlib.suppress(KeyboardInterrupt):
        train(folder, steps=steps, spread=spread)
    dist.destroy_process_group()


def _noise(folder: Path, steps: int, seeds: int) -> list[Row]:
    groups = {
        name: [train(folder / name / str(seed), steps=steps, seed=seed, **options) for seed in range(seeds)]  # type: ignore[arg-type]
        for name, options in {"float32": {}, "bfloat16": {"bfloat16": True}, "lr x 0.8": {"lr": 0.8e-3}}.items()
    }
    rows = []
    for name in ("bfloat16", "lr x 0.8"):
        (verdict,) = tbnum.diff(groups["float32"], groups[name]).verdicts
        says = {True: "beyond", False: "within", None: "unknown"}[verdict.beyond]
        note = f"{says} the noise ({verdict.how}, p {verdict.probability:.2g})"
        rows.append(Row(f"{name} against float32", verdict.difference, note=note))
    return rows


if __name__ == "__main__":
    main()
