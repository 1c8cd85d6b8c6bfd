"""Logs as training would leave them, written with the real writer, without torch and in any length."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tbnum.formats import BINS, FORMATS, INF, NAN, ZERO
from tbnum.log.schema import Event, step_columns
from tbnum.log.tensors import HistogramTable, TensorTable
from tbnum.log.writer import LogWriter

START = 1_750_000_000.0
COLUMNS = step_columns({"optimizer": 1})
MAX_NORM = 1.0


class Recording:
    """A made-up training run with a loss scaler, step by step.

    `first_scale` overflows until it has come down to `held_scale`; it grows every `growth_interval` steps, and
    overflows whenever it is above `held_scale`. Steps in `bad` overflow at any scale, with a loss spike; steps in
    `nan_loss` have a loss and gradients of NaN (and no skip, as without a scaler). The loss falls to `floor`, and is
    unknown with `no_loss`; without a `scaler` no scale is known; after a step of `pauses` nothing happens for so many
    seconds; `meta` is what the run says of itself besides.
    """

    def __init__(
        self,
        folder: Path,
        *,
        first_scale: float = 65536.0,
        held_scale: float = 65536.0,
        growth_interval: int = 10**9,
        bad: Iterable[int] = (),
        nan_loss: Iterable[int] = (),
        no_loss: bool = False,
        scaler: bool = True,
        pauses: Mapping[int, float] = MappingProxyType({}),
        seconds_per_step: float = 0.25,
        start: float = START,
        length: int = 1000,
        floor: float = 1.55,
        seed: int = 0,
        **meta: Any,
    ) -> None:
        self.scale = first_scale
        self.held_scale = held_scale
        self.growth_interval = growth_interval
        self.bad = frozenset(bad)
        self.nan_loss = frozenset(nan_loss)
        self.no_loss = no_loss
        self.scaler = scaler
        self.pauses = dict(pauses)
        self.paused = 0.0
        self.seconds_per_step = seconds_per_step
        self.start = start
        self.length = length
        self.floor = floor
        self.step = 0
        self.since_change = 0
        self.skips = 0
        self._random = random.Random(seed)
        meta = {
            "seed": seed,
            "format_version": 1,
            "session": f"recorded-{seed}",
            "start_time": start,
            "first_step": 0,
            "optimizers": {"optimizer": {"class": "AdamW", "groups": 1, "parameters": 52}},
            "scaler": {"init_scale": first_scale, "growth_factor": 2.0, "backoff_factor": 0.5},
            **meta,
        }
        self.writer = LogWriter(folder, columns=COLUMNS, meta=meta)

    def _loss(self, step: int) -> float:
        decay = 4.1 * math.exp(-4.5 * step / self.length)
        return self.floor + decay + self._random.gauss(0, 0.05 + 0.03 * decay)

    def advance(self, steps: int = 1) -> None:
        """Records the next steps and their events."""
        for _ in range(steps):
            self._advance_one()

    def _advance_one(self) -> None:
        step, at = self.step, self.start + self.step * self.seconds_per_step + self.paused
        self.paused += self.pauses.get(step, 0.0)
        scale, overflow = self.scale, self.scale > self.held_scale or self.step in self.bad
        loss = self._loss(step)
        norm = 0.35 + 2.2 * math.exp(-5 * step / self.length) + abs(self._random.gauss(0, 0.22))
        if step in self.bad:
            loss *= 2.6
        nan = math.nan
        if step in self.nan_loss:
            loss = norm = nan
        clipped = norm if math.isnan(norm) else min(norm, MAX_NORM)
        row: dict[str, Any] = {
            "step": step,
            "wall_time": at,
            "loss": nan if self.no_loss else loss,
            "micro_batches": 0.0 if self.no_loss else 1.0,
            "loss_scale": scale if self.scaler else nan,
            "growth_tracker": float(self.since_change) if self.scaler else nan,
            "grad_norm": math.inf if overflow else norm,
            "grad_norm_clipped": nan if overflow else clipped,
            "clip_coef": nan if overflow else clipped / norm,
            "max_norm": MAX_NORM,
            "skipped": overflow,
            "nonfinite_tensors": 31.0 if overflow or step in self.nan_loss else 0.0,
            "lr": 3e-4 * min(1.0, (step + 1) / 60),
            "param_norm": nan if step % 10 else 61.5,
            "update_norm": nan if step % 10 else 61.5 * 1e-3 * (0.0 if overflow else 1 + norm),
        }
        if overflow:
            facts = {
                "loss": loss, "loss_scale": scale, "new_scale": scale / 2, "grad_norm": math.inf,
                "nonfinite_tensors": 31, "tensors": 52, "micro_batches": 1,
                "nonfinite_names": ["blocks.3.attn.qkv.weight", "blocks.3.mlp.up.weight"],
            }  # fmt: skip
            self.event("skip", facts)
            self.event("scale_backoff", {"old_scale": scale, "new_scale": scale / 2})
            self.scale, self.since_change, self.skips = scale / 2, 0, self.skips + 1
        else:
            self.since_change += 1
            if self.since_change == self.growth_interval:
                self.event("scale_growth", {"old_scale": scale, "new_scale": scale * 2})
                self.scale, self.since_change = scale * 2, 0
        self.writer.append_step(tuple(row[name] for name in COLUMNS))
        self.step += 1

    def tensors(self, names: tuple[str, ...], *, failed: Sequence[str] = ()) -> None:
        """Statistics and histograms of tensors at the present step, the whole model's too. `failed` are not finite.

        Gradients are log-normal, smaller from block to block, so that the first flush to zero and none overflows.
        """
        rng = np.random.default_rng(self.step)
        count, elements = len(names), 4096
        depth = np.linspace(0.0, 1.0, count)
        centre = -9 - 11 * depth + rng.normal(0, 0.4, count)  # log2 of a usual magnitude
        magnitudes = np.exp2(rng.normal(centre[:, None], 3.0, (count, elements)))
        bad = np.isin(np.array(names), list(failed))
        norm = np.sqrt((magnitudes**2).sum(1))
        param = 3.0 + 2.0 * np.cos(9 * depth)
        scaled = magnitudes * self.scale
        columns: dict[str, np.ndarray] = {
            "grad_norm": np.where(bad, math.inf, norm),
            "absmax": magnitudes.max(1),
            "nan": np.where(bad, 12.0, 0.0),
            "inf": np.where(bad, 5.0, 0.0),
            "zero": np.zeros(count),
            "param_norm": param,
            "update_norm": np.where(bad, 0.0, 1e-3 * param * (1 + depth)),
            "loss_scale": np.full(count, self.scale),
        }
        for name, each in FORMATS.items():
            columns[f"underflow/{name}"] = (scaled <= each.flushes_to).mean(1)
            columns[f"overflow/{name}"] = (scaled >= each.overflows_from).mean(1)
        reason = "failure" if failed else "interval"
        self.writer.write_tensors(TensorTable(self.step, names, columns, None, reason))
        counts = np.zeros((count, BINS))
        bins = np.clip(np.ceil(np.log2(magnitudes)) + 127, 1, 255).astype(int)
        for row in range(count):
            counts[row] = np.bincount(bins[row], minlength=BINS)
        counts[:, ZERO], counts[bad, INF], counts[bad, NAN] = 7, 5, 12
        low, high = magnitudes.min(1), magnitudes.max(1)
        self.writer.write_histogram(HistogramTable(self.step, names, "gradient", counts, low, high))
        whole = HistogramTable(self.step, ("*",), "gradient", counts.sum(0, keepdims=True), low[:1], high[-1:])
        self.writer.write_histogram(whole)

    def event(self, kind: str, data: dict[str, Any] | None = None) -> None:
        """An event at the present step."""
        wall_time = self.start + self.step * self.seconds_per_step
        own = None if kind.startswith(("scale_", "annotation")) else "optimizer"
        self.writer.write_event(Event(self.step, wall_time, kind, optimizer=own, data=data or {}))

    def close(self) -> None:
        self.writer.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def demo_like(folder: Path, *, start: float = START) -> None:
    """600 steps: a first scale too high, growth probes, one bad batch, a note and one spoilt loss."""
    with Recording(
        folder, first_scale=2.0**24, held_scale=2.0**17, growth_interval=40, bad=[412], length=600, start=start
    ) as run:
        run.advance(411)
        run.event("annotation", {"text": "bad batch injected at step 412", "injected": True})
        run.advance(189)


def sparse_skips(folder: Path, steps: int = 50_000, bad: Sequence[int] = (), *, start: float = START) -> list[int]:
    """A long run in which seven batches were bad. Returns their steps."""
    chosen = list(bad) or [steps * (2 * k + 1) // 14 + 3 * k for k in range(7)]
    with Recording(folder, bad=chosen, length=steps // 4, start=start) as run:
        run.held_scale = math.inf
        run.advance(steps)
    return chosen


def diverging(folder: Path, *, start: float = START) -> None:
    """A run whose loss is NaN once, and from step 300 on for good."""
    with Recording(folder, nan_loss=[120, *range(300, 400)], length=400, start=start) as run:
        run.advance(400)


BAD_WITH_TENSORS = 250


def tensor_names(blocks: int) -> tuple[str, ...]:
    parts = ("ln_1.weight", "attn.qkv.weight", "attn.proj.weight", "ln_2.weight", "mlp.up.weight", "mlp.down.weight")
    return ("wte.weight", *(f"blocks.{block}.{part}" for block in range(blocks) for part in parts), "ln_f.weight")


def with_tensors(folder: Path, *, steps: int = 400, blocks: int = 4, start: float = START) -> tuple[str, ...]:
    """A run with a table of tensors every ten steps, and one at step 250, where two of them failed. Their names."""
    names = tensor_names(blocks)
    with Recording(folder, bad=[BAD_WITH_TENSORS], length=steps, growth_interval=100, start=start) as run:
        run.held_scale = math.inf
        while run.step < steps:
            if run.step == BAD_WITH_TENSORS:
                run.tensors(names, failed=["blocks.3.attn.qkv.weight", "blocks.3.mlp.up.weight"])
            elif run.step % 10 == 0:
                run.tensors(names)
            run.advance()
    return names


SEEDS = (1, 2, 3)


def sweep(root: Path, *, steps: int = 600) -> list[str]:
    """Two settings with three seeds each, a longer run and one that is slower, all of which TensorBoard knows but
    `elsewhere`. Their names, in the order in which TensorBoard lists them.

    A setting's runs differ in the seed, in length and in when they skip.
    """
    known = []
    for at, (name, floor) in enumerate((("lr1e-3", 1.55), ("lr3e-3", 1.9))):
        for seed in SEEDS:
            run = f"gpt/{name}/seed{seed}"
            more = {
                "config": {"lr": name, "seed": seed},
                "bad": range(100 * seed, 100 * seed + 5 * seed),
                "floor": floor,
            }
            with Recording(root / run, seed=10 * at + seed, length=steps, seconds_per_step=0.25, **more) as recording:
                recording.held_scale = math.inf
                recording.advance(steps - 50 * (seed - 1))
            known.append(run)
    for run, length, pace in (("gpt/long", 2 * steps, 0.25), ("gpt/slow", steps, 1.0)):
        with Recording(root / run, seed=77, length=length, seconds_per_step=pace, config={"lr": run}) as recording:
            recording.advance(length)
        known.append(run)
    for at, run in enumerate(known):
        writer = EventFileWriter(str(root / run))
        writer.add_event(event_pb2.Event(wall_time=START + at, step=0, summary=summary_pb2.Summary(
            value=[summary_pb2.Summary.Value(tag="loss", simple_value=1.0)])))  # fmt: skip
        writer.close()
    with Recording(root / "elsewhere", seed=5, length=steps, config={"lr": "other"}, floor=2.3) as recording:
        recording.advance(steps)
    return known
