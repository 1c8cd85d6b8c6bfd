"""Under which tags other systems log what tbnum calls loss, loss scale, gradient norm and learning rate.

One row a system, from its public sources. A system is recognised by tags that only it writes; where there are none of
any system's, by names that everybody uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tbnum.log.inferred import Habits, Scaler
from tbnum.log.schema import OPTIMIZER_COLUMNS, SHARED_COLUMNS

__all__ = ["MAPPABLE", "OTHER", "SYSTEMS", "Sum", "System", "checked_mapping", "is_candidate", "recognise"]

MAPPABLE = tuple(
    dict.fromkeys(
        column.name for column in (*SHARED_COLUMNS, *OPTIMIZER_COLUMNS) if column.name not in ("step", "wall_time")
    )
)
"""Columns that a tag can be mapped to; `lr/1`, `lr/2` and so on besides."""


class Sum(NamedTuple):
    """A column that is the sum of all tags that fit a pattern."""

    pattern: re.Pattern[str]


@dataclass(frozen=True)
class System:
    """How one system logs."""

    name: str
    signs: tuple[tuple[str, ...], ...]
    """Tags that only this system writes together: all of one of these groups have to be there."""
    tags: Mapping[str, tuple[str | re.Pattern[str] | Sum, ...]]
    """For each column the tags that it may have, the best first."""
    habits: Habits
    not_with: tuple[str, ...] = ()
    """Tags that say that these scalars are of no training: of an evaluation's own folder."""
    axis: str = "steps"
    """What its x axis counts: "steps", "samples", "epochs" or "environment steps"."""
    loss_before: bool = False
    """Whether the loss may stand at the samples before its step, the others after it."""

    def wrote(self, tags: frozenset[str]) -> bool:
        """Whether these tags are this system's."""
        return tags.isdisjoint(self.not_with) and any(tags.issuperset(sign) for sign in self.signs)


_LOGGED = Habits(Scaler.LOGGED, scale_after=True, backoff=0.5)
_UNSEEN = Habits(Scaler.UNSEEN)
_NONE = Habits(Scaler.NONE)

SYSTEMS = (
    System(
        "Megatron-LM",
        (("lm loss",), ("loss-scale",), ("loss vs samples",), ("grad-norm", "learning-rate")),
        {
            "loss": ("lm loss", "loss"),
            "loss_scale": ("loss-scale",),
            "grad_norm": ("grad-norm",),
            "lr": ("learning-rate",),
            "param_norm": ("params-norm",),
        },
        Habits(Scaler.LOGGED, scale_after=True, backoff=0.5, skip_lacks_norm=True),
    ),
    System(
        "Megatron-DeepSpeed",
        (("loss-scale/loss-scale",), ("grad-norm/grad-norm",), ("lm-loss-training/lm loss",)),
        {
            "loss": ("lm-loss-training/lm loss",),
            "loss_scale": ("loss-scale/loss-scale",),
            "grad_norm": ("grad-norm/grad-norm",),
            "lr": ("learning-rate/learning-rate",),
            "param_norm": ("params-norm/params-norm",),
        },
        _LOGGED,
    ),
    System(
        "DeepSpeed",
        (("Train/Samples/train_loss",), ("Train/Samples/loss_scale",), ("Train/Samples/lr",)),
        {
            "loss": ("Train/Samples/train_loss",),
            "loss_scale": ("Train/Samples/loss_scale",),
            "lr": ("Train/Samples/lr",),
        },
        _LOGGED,
        axis="samples",
        loss_before=True,
    ),
    System(
        "GPT-NeoX",
        (
            ("train/lm_loss", "runtime/iteration_time"),
            ("train/lm_loss", "train/loss_scale", "train/learning_rate"),
        ),
        {"loss": ("train/lm_loss",), "loss_scale": ("train/loss_scale",), "lr": ("train/learning_rate",)},
        _LOGGED,
    ),
    System(
        "NeMo",
        (("reduced_train_loss",),),
        {
            "loss": ("reduced_train_loss",),
            "loss_scale": ("loss_scale",),
            "grad_norm": ("grad_norm",),
            "lr": ("lr",),
        },
        Habits(Scaler.LOGGED, scale_after=False, backoff=0.5),
    ),
    System(
        "torchtitan",
        (("loss_metrics/global_avg_loss",),),
        {"loss": ("loss_metrics/global_avg_loss",), "grad_norm": ("grad_norm",), "lr": ("lr",)},
        _NONE,
    ),
    System(
        "torchtune",
        (("tokens_per_second_per_gpu", "loss"),),
        {"loss": ("loss",), "grad_norm": ("grad_norm",), "lr": ("lr",)},
        _NONE,
    ),
    System(
        "fairseq",
        (("gnorm",),),
        {"loss": ("loss",), "loss_scale": ("loss_scale",), "grad_norm": ("gnorm",), "lr": ("lr",)},
        _LOGGED,
    ),
    System(
        "OLMo-core",
        (("train/CE loss",),),
        {
            "loss": ("train/CE loss",),
            "grad_norm": ("optim/total grad norm",),
            "lr": ("optim/LR (group 0)",),
            "skipped": ("optim/step skipped",),
        },
        _NONE,
    ),
    System(
        "OLMo",
        (("train/CrossEntropyLoss",),),
        {
            "loss": ("train/CrossEntropyLoss",),
            "grad_norm": ("optim/total_grad_norm",),
            "lr": ("optim/learning_rate_group0",),
        },
        _NONE,
    ),
    System(
        "Composer",
        (("loss/train/total",),),
        {
            "loss": ("loss/train/total",),
            "grad_norm": ("l2_norm/grad/global",),
            "lr": (re.compile(r"lr-[^/]+/group0"),),
        },
        _UNSEEN,
    ),
    System(
        "Stable-Baselines3",
        (("time/fps", "train/learning_rate"), ("time/fps", "train/loss"), ("rollout/ep_rew_mean", "train/loss")),
        {"loss": ("train/loss",), "lr": ("train/learning_rate",)},
        _NONE,
        axis="environment steps",
    ),
    System(
        "MMEngine",
        (("data_time", "iter"), ("train/data_time", "iter")),
        {
            "loss": ("loss", "train/loss"),
            "grad_norm": ("grad_norm", "train/grad_norm"),
            "lr": ("lr", "train/lr", "base_lr", "train/base_lr"),
        },
        Habits(Scaler.UNSEEN, window=10),
    ),
    System(
        "MMCV",
        (("learning_rate", "momentum", "train/loss"),),
        {"loss": ("train/loss",), "grad_norm": ("train/grad_norm",), "lr": ("learning_rate",)},
        Habits(Scaler.UNSEEN, window=10),
    ),
    System(
        "detectron2",
        (("total_loss", "data_time"), ("total_loss", "eta_seconds")),
        {"loss": ("total_loss",), "lr": ("lr",)},
        _UNSEEN,
    ),
    System(
        "Ultralytics",
        (("lr/pg0",),),
        {"loss": ("train/loss", Sum(re.compile(r"train/\w+_loss"))), "lr": ("lr/pg0",)},
        _UNSEEN,
        axis="epochs",
    ),
    System(
        "YOLOv5",
        (("x/lr0", "train/box_loss"),),
        {"loss": (Sum(re.compile(r"train/\w+_loss")),), "lr": ("x/lr0",)},
        _UNSEEN,
        axis="epochs",
    ),
    System(
        "Keras",
        (("batch_loss",),),
        {"loss": ("batch_loss",), "lr": ("batch_learning_rate",)},
        _UNSEEN,
    ),
    System(
        "Keras",
        (("epoch_loss",),),
        {"loss": ("epoch_loss",), "lr": ("epoch_learning_rate", "epoch_lr")},
        _UNSEEN,
        not_with=("evaluation_loss_vs_iterations",),
        axis="epochs",
    ),
    System(
        "Transformers",
        (("train/epoch", "train/learning_rate"), ("train/train_runtime",), ("train/total_flos",)),
        {
            "loss": ("train/loss",),
            "loss_scale": ("train/loss_scale",),  # the user's own
            "grad_norm": ("train/grad_norm",),
            "lr": ("train/learning_rate",),
        },
        Habits(Scaler.UNSEEN, loss_is_filtered=True),
    ),
    System(
        "tbnum",
        (("tbnum/loss",), ("tbnum/loss_scale",)),
        {
            name: (f"tbnum/{name}",)
            for name in ("loss", "loss_scale", "grad_norm", "grad_norm_clipped", "clip_coef", "max_norm", "lr")
        },
        Habits(Scaler.LOGGED, scale_after=False),
    ),
)

OTHER = System(
    "",
    (),
    {
        "loss": (
            *("train_loss_step", "train/loss_step", "train_loss", "train/loss", "loss/train", "Loss/train"),
            *("Train/loss", "Train/Loss", "training_loss", "training/loss", "Training Loss", "train/total_loss"),
            *("loss_step", "loss", "Loss", "total_loss", "train/lm_loss"),
            *("train_loss_epoch", "train/loss_epoch", "loss_epoch"),
        ),
        "loss_scale": ("loss_scale", "train/loss_scale", "train_loss_scale", "grad_scale", "train/grad_scale"),
        "grad_norm": (
            *("grad_norm", "train/grad_norm", "train_grad_norm", "gradient_norm", "train/gradient_norm"),
            *("grad_2.0_norm_total", "grad_2_norm_total", "grad_2.0_norm/total"),
        ),
        "lr": (
            *("lr", "train/lr", "train_lr", "learning_rate", "train/learning_rate", "Train/lr"),
            re.compile(r"lr-[^/]+(/pg1)?"),
        ),
    },
    _UNSEEN,
)
"""Lightning, whose tags are the user's own names, and loops of one's own."""

_EVERY = [tag for system in (*SYSTEMS, OTHER) for tags in system.tags.values() for tag in tags]
_EXACT = frozenset(tag for tag in _EVERY if isinstance(tag, str))
_PATTERNS = tuple(
    dict.fromkeys(tag.pattern if isinstance(tag, Sum) else tag for tag in _EVERY if not isinstance(tag, str))
)


def is_candidate(tag: str) -> bool:
    """Whether any system calls a column so."""
    return tag in _EXACT or any(pattern.fullmatch(tag) for pattern in _PATTERNS)


def recognise(
    tags: Iterable[str], mapping: Mapping[str, str] | None = None
) -> tuple[System, dict[str, tuple[str, ...]]]:
    """Whose tags these are, and those of each column that is there: one, or several whose sum it is.

    `mapping` (tag by column) goes first.
    """
    present = frozenset(tags)
    system = next((system for system in SYSTEMS if system.wrote(present)), OTHER)
    found: dict[str, tuple[str, ...]] = {}
    for column, candidates in system.tags.items():
        for candidate in candidates:
            fitting = _fitting(candidate, present)
            if fitting:
                found[column] = fitting
                break
    found.update({column: (tag,) for column, tag in (mapping or {}).items() if tag in present})
    return system, found


def _fitting(candidate: str | re.Pattern[str] | Sum, present: frozenset[str]) -> tuple[str, ...]:
    if isinstance(candidate, str):
        return (candidate,) if candidate in present else ()
    pattern = candidate.pattern if isinstance(candidate, Sum) else candidate
    fitting = tuple(sorted(tag for tag in present if pattern.fullmatch(tag)))
    return fitting if isinstance(candidate, Sum) else fitting[:1]


def checked_mapping(pairs: Iterable[str] | Mapping[str, str] | None) -> dict[str, str]:
    """The tags by column, from `COLUMN=TAG` texts or a mapping. ValueError that names what is wrong with one.

    TypeError where it is none of the two, or a column is no text.
    """
    if pairs is None:
        return {}
    if isinstance(pairs, str) or not isinstance(pairs, Iterable) or not all(isinstance(pair, str) for pair in pairs):
        raise TypeError(f"tags is {pairs!r}; give a mapping of columns to tags, as {{'loss_scale': 'amp/scale'}}.")
    if isinstance(pairs, Mapping):
        given = [(str(column), str(tag)) for column, tag in pairs.items()]
    else:
        given = []
        for pair in pairs:
            column, equals, tag = pair.partition("=")
            if not equals or not tag:
                raise ValueError(f"{pair!r} maps nothing: give COLUMN=TAG, as in loss_scale=amp/scale")
            given.append((column, tag))
    mapping: dict[str, str] = {}
    for column, tag in given:
        if column not in MAPPABLE and not re.fullmatch(r"lr/\d+", column):
            raise ValueError(f"there is no column {column!r} to map {tag!r} to; there are {', '.join(MAPPABLE)}")
        if mapping.setdefault(column, tag) != tag:
            raise ValueError(f"the column {column!r} is mapped twice, to {mapping[column]!r} and to {tag!r}")
    return mapping
