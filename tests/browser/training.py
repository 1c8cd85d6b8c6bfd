"""Logs as training would leave them, written with the real writer, without torch and in any length."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tbnum.log.schema import Event, step_columns
from tbnum.log.writer import LogWriter

START = 1_750_000_000.0
COLUMNS = step_columns({"optimizer": 1})
MAX_NORM = 1.0


class Recording:
    """A made-up training run with a loss scaler, step by step.

    `first_scale` overflows until it has come down to `held_scale`; it grows every `growth_interval` steps, and
    overflows whenever it is above `held_scale`. Steps in `bad` overflow at any scale, with a loss spike; steps in
    `nan_loss` have a loss of NaN (and no skip, as without a scaler).
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
        seconds_per_step: float = 0.25,
        start: float = START,
        length: int = 1000,
        seed: int = 0,
    ) -> None:
        self.scale = first_scale
        self.held_scale = held_scale
        self.growth_interval = growth_interval
        self.bad = frozenset(bad)
        self.nan_loss = frozenset(nan_loss)
        self.seconds_per_step = seconds_per_step
        self.start = start
        self.length = length
        self.step = 0
        self.since_change = 0
        self.skips = 0
        self._random = random.Random(seed)
        meta = {
            "format_version": 1,
            "session": f"recorded-{seed}",
            "start_time": start,
            "first_step": 0,
            "optimizers": {"optimizer": {"class": "AdamW", "groups": 1, "parameters": 52}},
            "scaler": {"init_scale": first_scale, "growth_factor": 2.0, "backoff_factor": 0.5},
        }
        self.writer = LogWriter(folder, columns=COLUMNS, meta=meta)

    def _loss(self, step: int) -> float:
        decay = 4.1 * math.exp(-4.5 * step / self.length)
        return 1.55 + decay + self._random.gauss(0, 0.05 + 0.03 * decay)

    def advance(self, steps: int = 1) -> None:
        """Records the next steps and their events."""
        for _ in range(steps):
            self._advance_one()

    def _advance_one(self) -> None:
        step, at = self.step, self.start + self.step * self.seconds_per_step
        scale, overflow = self.scale, self.scale > self.held_scale or self.step in self.bad
        loss = self._loss(step)
        norm = 0.35 + 2.2 * math.exp(-5 * step / self.length) + abs(self._random.gauss(0, 0.22))
        if step in self.bad:
            loss *= 2.6
        if step in self.nan_loss:
            loss = math.nan
        nan = math.nan
        clipped = min(norm, MAX_NORM)
        row: dict[str, Any] = {
            "step": step,
            "wall_time": at,
            "loss": loss,
            "micro_batches": 1.0,
            "loss_scale": scale,
            "growth_tracker": float(self.since_change),
            "grad_norm": math.inf if overflow else norm,
            "grad_norm_clipped": nan if overflow else clipped,
            "clip_coef": nan if overflow else clipped / norm,
            "max_norm": MAX_NORM,
            "skipped": overflow,
            "nonfinite_tensors": 31.0 if overflow else 0.0,
            "lr": 3e-4 * min(1.0, (step + 1) / 60),
            "param_norm": nan,
            "update_norm": nan,
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
