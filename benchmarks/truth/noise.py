"""Losses of healthy training under noise of many kinds, written by the real writer. No fault is in any of them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tbnum.log.schema import step_columns
from tbnum.log.writer import LogWriter

__all__ = ["KINDS", "RUNS", "write"]

RUNS, STEPS = 20, 10_000
Noise = Callable[[np.random.Generator, np.ndarray], np.ndarray]

KINDS: dict[str, Noise] = {}


def _kind(noise: Noise) -> Noise:
    KINDS[noise.__name__] = noise
    return noise


def _falling(steps: np.ndarray) -> np.ndarray:
    """From 4 to 2, by a power of the step."""
    falling: np.ndarray = 2 + 2 / np.sqrt(1 + steps / 100)
    return falling


@_kind
def normal(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    return _falling(steps) + 0.1 * chance.standard_normal(len(steps))


@_kind
def normal_and_small(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    return _falling(steps) + 0.002 * chance.standard_normal(len(steps))


@_kind
def laplace(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    return _falling(steps) + 0.1 * chance.laplace(size=len(steps))


@_kind
def student_t_3(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    return _falling(steps) + 0.1 * chance.standard_t(3, len(steps))


@_kind
def student_t_2(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    return np.abs(_falling(steps) + 0.1 * chance.standard_t(2, len(steps)))


@_kind
def lognormal(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    return _falling(steps) * chance.lognormal(0, 0.8, len(steps))


@_kind
def gamma_of_a_few_samples(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    return _falling(steps) * chance.gamma(2, 0.5, len(steps))


@_kind
def autocorrelated(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    walk = np.empty(len(steps))
    value = 0.0
    for at, shock in enumerate(chance.standard_normal(len(steps))):
        value = 0.95 * value + shock
        walk[at] = value
    return _falling(steps) + 0.02 * walk


@_kind
def noisier_when_high(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    loss = _falling(steps)
    return loss + 0.2 * (loss - 1.9) * chance.standard_normal(len(steps))


@_kind
def mixture_of_data_sets(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    """One batch in 50 comes from a set whose loss is three times as high."""
    rare = chance.random(len(steps)) < 0.02
    return _falling(steps) * np.where(rare, 3.0, 1.0) + 0.05 * chance.standard_normal(len(steps))


@_kind
def short_last_batch(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    """The last batch of each epoch has two samples, the others 64."""
    last = steps % 391 == 390
    return _falling(steps) + np.where(last, 0.9, 0.1) * np.abs(chance.standard_normal(len(steps)))


@_kind
def warm_restarts(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    """The loss jumps where the learning rate does, and comes down with it."""
    since = steps % 1000
    return _falling(steps) + 0.8 * np.exp(-since / 80) * (steps >= 1000) + 0.03 * chance.standard_normal(len(steps))


@_kind
def towards_zero(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    """A model that learns its data by heart: the loss falls by orders of magnitude, and its noise with it."""
    return np.exp(-steps / 1500) * chance.lognormal(0, 0.6, len(steps))


@_kind
def reward(chance: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    """A policy gradient's surrogate loss: around 0, of either sign, with bursts."""
    loud = np.where(chance.random(len(steps)) < 0.05, 4.0, 1.0)
    return 0.2 * loud * chance.standard_normal(len(steps))


def write(kind: str, seed: int, folder: Path, steps: int = STEPS) -> None:
    """A run of `steps` steps whose loss is of a kind; its norms are noisy in the same way that norms always are."""
    chance = np.random.default_rng([zlib.crc32(kind.encode()), seed])
    numbers = np.arange(steps)
    loss = KINDS[kind](chance, numbers)
    norm = chance.lognormal(0, 0.3, steps)
    lr = 1e-3 * np.minimum(1, (numbers + 1) / 200) * (0.55 + 0.45 * np.cos(math.pi * numbers / steps))
    if kind == "warm_restarts":
        lr = 1e-3 * (0.55 + 0.45 * np.cos(math.pi * (numbers % 1000) / 1000))
    columns = step_columns({"optimizer": 1})
    optimizer = {"class": "AdamW", "groups": [{"lr": 0.001}], "parameters": []}
    log = LogWriter(folder, columns=columns, meta={"first_step": 0, "optimizers": {"optimizer": optimizer}})
    for step in range(steps):
        known = {
            "step": step,
            "wall_time": 1.7e9 + step / 10,
            "loss": loss[step],
            "micro_batches": 1.0,
            "grad_norm": norm[step],
            "grad_norm_clipped": norm[step],
            "nonfinite_tensors": 0.0,
            "lr": lr[step],
        }
        log.append_step(tuple(known.get(name, False if name.endswith("skipped") else math.nan) for name in columns))
        if step % 2000 == 0:
            log.flush()
    log.close()
