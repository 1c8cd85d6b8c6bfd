"""Pretrain a small byte-level GPT in float16, recorded by tbnum.

    python demo/pretrain.py                      # about two minutes on two CPU cores
    tensorboard --logdir runs                    # the "Numerics" tab
    tbnum report runs

    torchrun --nproc-per-node 2 demo/pretrain.py --strategy ddp     # or fsdp: on two ranks

The run shows what a loss scale does. It starts far too high and comes down over a few skipped steps; it is raised again
and again, and probes a height that overflows; and one batch is spoiled on purpose (`--bad-batch-at 0` for none).
Everything else is what happened to happen. What tbnum needs is marked "tbnum".
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from data import even_batches, load_text, random_batch
from model import GPT, GPTConfig
from ranks import STRATEGIES, Training, join
from tqdm import tqdm

import tbnum

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
LEARNING_RATE, WARMUP_STEPS, WEIGHT_DECAY, MAX_NORM = 6e-3, 50, 0.1, 1.0
BATCH_SIZE, BLOCK_SIZE = 8, 64  # sequences a step, bytes a sequence
VALIDATION_BATCHES, VALIDATION_BATCH_SIZE = 8, 32
CHECKPOINT_EVERY = 100


def main() -> None:
    args = parse_args()
    ranks = join(args.strategy, args.device)
    device, dtype = ranks.device, DTYPES[args.dtype]
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # so small a model gains next to nothing from a second core
    checkpoint = args.logdir / "checkpoint.pt"

    # -- text, model, optimizer, scaler --------------------------------------------------------------------------------
    text = load_text(args.data)
    if min(len(text.train), len(text.validation)) <= BLOCK_SIZE:
        raise SystemExit(f"{text.source} holds too little text: {len(text.train) + len(text.validation):,} bytes")
    order = torch.Generator().manual_seed(args.seed)  # which places of the text come next; part of the checkpoint
    model = ranks.spread(GPT(GPTConfig(block_size=BLOCK_SIZE)).to(device))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY, fused=device.type == "cuda"
    )
    scaler = None
    if dtype == torch.float16:
        # torch's own scale starts at 2**16 and doubles every 2,000 steps: too slow a story for a run of 1,000 steps.
        scaler = torch.amp.GradScaler(
            device.type, init_scale=2.0**24, growth_factor=4.0, backoff_factor=0.25, growth_interval=80
        )
    monitor = tbnum.wrap(optimizer, scaler, model=model, logdir=args.logdir, config=run_settings(args))  # tbnum

    # What a checkpoint holds.
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scaler": scaler, "monitor": monitor}
    if ranks.strategy:
        parts = {"training": Training(model, optimizer), "scaler": scaler, "monitor": monitor}
    first_step = resume(checkpoint, parts, order) if args.resume else 0

    entropy = text.byte_entropy()
    print(f"text: {len(text.train):,} bytes to train on, {len(text.validation):,} held out; {text.files} files")
    spread = f", {args.strategy} on {ranks.size} ranks" if ranks.strategy else ""
    print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters; {args.dtype} on {args.device}{spread}")
    print(f"to beat: {in_units(entropy)}, the entropy of the held-out bytes by their frequency alone")
    bar = tqdm(initial=first_step, total=args.steps, unit="step", file=sys.stdout, disable=None)  # None: on a terminal

    def note(text: str) -> None:
        """A line of its own, above the bar."""
        bar.write(text, file=sys.stdout)
        sys.stdout.flush()

    # The skip before a backoff says all that it says.
    monitor.on_event(  # tbnum
        lambda event: note(f"step {event.step}: {event.message}") if event.kind != "scale_backoff" else None
    )
    began = time.monotonic()

    # -- training ------------------------------------------------------------------------------------------------------
    interrupted = stop_after_this_step_on_ctrl_c()
    step, end = first_step, args.steps if args.stop_at is None else min(args.stop_at, args.steps)
    with monitor:  # tbnum: an exception in here is recorded as a crash
        while step < end and not ranks.any(interrupted()):
            lr = learning_rate(step, args.steps)
            for group in optimizer.param_groups:
                group["lr"] = lr

            x, y = map(ranks.share, random_batch(text.train, BATCH_SIZE, BLOCK_SIZE, order))  # both (B, T)
            if args.bad_batch_at and step == args.bad_batch_at:
                # As a hole in the file would: nothing but zero bytes, which no text holds. Loss and gradient are real.
                if ranks.rank == ranks.size - 1:
                    x, y = torch.zeros_like(x), torch.zeros_like(y)
                where = f" on rank {ranks.size - 1}" if ranks.strategy else ""
                monitor.annotate(
                    f"batch of zero bytes in place of text, injected by the demo{where}", injected=True
                )  # tbnum
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)

            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = model(x, y)
            optimizer.zero_grad(set_to_none=True)
            if scaler is not None:
                scaler.scale(loss).backward()  # not under autocast: backward runs in the types of the forward
                scaler.unscale_(optimizer)  # so that the norm is clipped at its true length
                torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
            step += 1

            bar.update()
            if not bar.disable and (step % 10 == 0 or step == end):
                # loss.item() and get_scale() wait for the device, hence not at every step.
                scale = {} if scaler is None else {"scale": f"2^{math.log2(scaler.get_scale()):g}"}
                bar.set_postfix(loss=f"{loss.item():.3f}", **scale, skipped=monitor.skipped_steps, refresh=False)
            if step % (args.steps // 5 or 1) == 0 or step == end:
                validation_loss = evaluate(model, text.validation, device, dtype)
                if monitor.writer is not None:  # rank 0's
                    monitor.writer.add_scalar("validation/loss", validation_loss, step)
                note(f"step {step}: validation loss {in_units(validation_loss)}")
            if step % CHECKPOINT_EVERY == 0:
                save(checkpoint, parts, order, step, args, ranks.rank)
        save(checkpoint, parts, order, step, args, ranks.rank)
        bar.close()
        skipped = monitor.skipped_steps

    # -- summary -------------------------------------------------------------------------------------------------------
    if step < args.steps:
        print(f"stopped before step {step}; to go on: python {sys.argv[0]} --resume --logdir {args.logdir}")
    elif step > first_step:
        print(f"{step - first_step} steps in {time.monotonic() - began:.0f} s; {skipped} of all {step} were skipped")
        print(f"validation loss:           {in_units(validation_loss)}")
        print(f"by byte frequency alone:   {in_units(entropy)}")
    print(f"to see every step:         {command('tensorboard')} --logdir {args.logdir}   (tab Numerics)")
    print(f"to read what happened:     {command('tbnum')} report {args.logdir}")
    ranks.close()


def command(name: str) -> str:
    """As one can type it: by its path where this Python's environment is not activated, as under `make demo`."""
    path = Path(sys.executable).parent / name
    if "VIRTUAL_ENV" in os.environ or sys.prefix == sys.base_prefix:
        return name
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def in_units(nats: float) -> str:
    return f"{nats:.3f} nats or {nats / math.log(2):.3f} bits a byte"


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth. A function of the step: a checkpoint needs no more."""
    if step < WARMUP_STEPS:
        return LEARNING_RATE * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return LEARNING_RATE * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def evaluate(model: GPT, data: torch.Tensor, device: torch.device, dtype: torch.dtype) -> float:
    """Mean loss in nats a byte over places spread evenly over `data`, the same each time."""
    model.eval()
    total = torch.zeros((), device=device)
    for x, y in even_batches(data, VALIDATION_BATCHES, VALIDATION_BATCH_SIZE, BLOCK_SIZE):
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            total += model(x.to(device), y.to(device))
    model.train()
    return total.item() / VALIDATION_BATCHES


# -- checkpoint --------------------------------------------------------------------------------------------------------


def run_settings(args: argparse.Namespace) -> dict[str, object]:
    """What makes the run the run it is: kept in its record, and in its checkpoint for --resume."""
    return {
        "steps": args.steps,
        "seed": args.seed,
        "dtype": args.dtype,
        "data": None if args.data is None else str(args.data.resolve()),
        "bad_batch_at": args.bad_batch_at,
        **({"strategy": args.strategy} if args.strategy else {}),
        "model": asdict(GPTConfig(block_size=BLOCK_SIZE)),
        "batch_size": BATCH_SIZE,
    }


def save(
    path: Path, parts: dict[str, Any], order: torch.Generator, step: int, args: argparse.Namespace, rank: int
) -> None:
    state = {name: part.state_dict() for name, part in parts.items() if part is not None}
    if rank > 0:
        return
    state |= {
        "step": step,  # steps done
        "order": order.get_state(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "settings": run_settings(args),
    }
    # Written beside and moved: whatever ends the program, there is always one whole checkpoint.
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    os.replace(unfinished, path)


def resume(path: Path, parts: dict[str, Any], order: torch.Generator) -> int:
    """Puts everything back as it was and returns the step to go on with."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        if part is not None:
            part.load_state_dict(state[name])
    order.set_state(state["order"])
    torch.set_rng_state(state["rng"])
    if torch.cuda.is_available() and state["cuda_rng"]:
        torch.cuda.set_rng_state_all(state["cuda_rng"])
    return state["step"]


# -- command line and screen -------------------------------------------------------------------------------------------


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logdir", type=Path, help="folder of the run (default: runs/gpt, runs/gpt-2 ...)")
    parser.add_argument("--steps", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1337, help="(default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="float16", help="of autocast (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="text file or folder (default: the Python standard library)")
    parser.add_argument(
        "--bad-batch-at", type=int, default=450, help="the step to spoil, 0: none (default: %(default)s)"
    )
    parser.add_argument(
        "--strategy", choices=STRATEGIES, help="how torchrun's ranks share the work (default: one process)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --logdir, as it was set up")
    parser.add_argument("--stop-at", type=int, help="stop before this step, as Ctrl-C would")
    args = parser.parse_args()

    if args.steps < 1:
        parser.error(f"--steps {args.steps}: at least 1")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {args.device}: this torch sees no CUDA device")
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if args.strategy and "WORLD_SIZE" not in os.environ:
        parser.error(f"--strategy {args.strategy}: start it with torchrun --nproc-per-node 2 {sys.argv[0]} ...")
    if ranks > 1 and not args.strategy:
        parser.error(f"{ranks} ranks, and each would train by itself: choose --strategy {' or '.join(STRATEGIES)}")
    if BATCH_SIZE % ranks:
        parser.error(f"{ranks} ranks cannot share {BATCH_SIZE} sequences evenly: choose 2, 4 or 8")
    if args.logdir is None:
        # A new folder for a new run; the newest for --resume.
        runs = [Path("runs/gpt"), *(Path(f"runs/gpt-{number}") for number in range(2, 1000))]
        taken = [run for run in runs if run.exists()]
        args.logdir = (
            (taken[-1] if taken else runs[0]) if args.resume else next(run for run in runs if run not in taken)
        )
    if args.resume:
        checkpoint = args.logdir / "checkpoint.pt"
        if not checkpoint.is_file():
            parser.error(f"--resume: there is no {checkpoint}; start the run without --resume")
        # A run goes on with the settings that it was started with.
        settings = torch.load(checkpoint, map_location="cpu", weights_only=True)["settings"]
        args.steps, args.seed, args.dtype = settings["steps"], settings["seed"], settings["dtype"]
        args.data = None if settings["data"] is None else Path(settings["data"])
        args.bad_batch_at = settings["bad_batch_at"]
        if settings.get("strategy") != args.strategy:
            how = f"--strategy {settings['strategy']}" if settings.get("strategy") else "one process, no --strategy"
            parser.error(f"--resume: {checkpoint} is of {how}; go on with that")
    return args


def stop_after_this_step_on_ctrl_c() -> Callable[[], bool]:
    """Ctrl-C lets the step end, so that the checkpoint is whole; a second Ctrl-C stops at once."""
    asked = []

    def on_ctrl_c(number: int, frame: object) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, on_ctrl_c)
    return lambda: bool(asked)


if __name__ == "__main__":
    main()
