"""Under which tags other systems log what tbnum calls loss, loss scale, gradient norm and learning rate.

Taken from the systems' public sources. A system is recognised by its tags alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tbnum.log.schema import OPTIMIZER_COLUMNS, SHARED_COLUMNS

__all__ = ["MAPPABLE", "OTHER", "System", "checked_mapping", "is_candidate", "recognise"]

MAPPABLE = tuple(
    dict.fromkeys(each.name for each in (*SHARED_COLUMNS, *OPTIMIZER_COLUMNS) if each.name not in ("step", "wall_time"))
)
"""Columns that a tag can be mapped to; `lr/1`, `lr/2` and so on besides."""


@dataclass(frozen=True)
class System:
    """How one system logs.

    `tags` gives for each column the tags that it may have, the best first; a pattern is a compiled expression.
    `sign`: tags of which one has to be there, as the others are anybody's.
    """

    name: str
    sign: tuple[str, ...]
    tags: Mapping[str, tuple[str | re.Pattern[str], ...]]
    scale_after: bool | None = True  # the scale is logged after the step's update, or as the step used it; None: either
    in_samples: bool = False  # whether its x axis counts samples
    loss_before: bool = False  # whether the loss may stand at the samples before its step, the others after it
    skip_lacks_norm: bool = False  # whether a skipped step logs no gradient norm
    backoff: float | None = None  # what its scaler multiplies the scale by at a skip; None: the user's choice


_LIGHTNING_LR = re.compile(r"lr-[^/]+(/pg1)?")

SYSTEMS = (
    System(
        "Megatron-LM",
        ("loss-scale", "grad-norm", "lm loss", "learning-rate"),
        {
            "loss": ("lm loss", "loss"),
            "loss_scale": ("loss-scale",),
            "grad_norm": ("grad-norm",),
            "lr": ("learning-rate",),
            "param_norm": ("params-norm",),
        },
        skip_lacks_norm=True,
        backoff=0.5,
    ),
    System(
        "Megatron-DeepSpeed",
        ("loss-scale/loss-scale", "grad-norm/grad-norm", "lm-loss-training/lm loss"),
        {
            "loss": ("lm-loss-training/lm loss",),
            "loss_scale": ("loss-scale/loss-scale",),
            "grad_norm": ("grad-norm/grad-norm",),
            "lr": ("learning-rate/learning-rate",),
            "param_norm": ("params-norm/params-norm",),
        },
        backoff=0.5,
    ),
    System(
        "DeepSpeed",
        ("Train/Samples/train_loss", "Train/Samples/loss_scale", "Train/Samples/lr"),
        {
            "loss": ("Train/Samples/train_loss",),
            "loss_scale": ("Train/Samples/loss_scale",),
            "lr": ("Train/Samples/lr",),
        },
        in_samples=True,
        loss_before=True,
        backoff=0.5,
    ),
    System(
        "NeMo",
        ("reduced_train_loss",),
        {
            "loss": ("reduced_train_loss",),
            "loss_scale": ("loss_scale",),
            "grad_norm": ("grad_norm",),
            "lr": ("lr",),
        },
        scale_after=False,
        backoff=0.5,
    ),
    System(
        "torchtitan",
        ("loss_metrics/global_avg_loss",),
        {"loss": ("loss_metrics/global_avg_loss",), "grad_norm": ("grad_norm",), "lr": ("lr",)},
    ),
    System(
        "fairseq",
        ("gnorm", "nll_loss"),
        {"loss": ("loss",), "loss_scale": ("loss_scale",), "grad_norm": ("gnorm",), "lr": ("lr",)},
        backoff=0.5,
    ),
    System(
        "Transformers",
        ("train/learning_rate", "train/grad_norm"),
        {
            "loss": ("train/loss",),
            "loss_scale": ("train/loss_scale",),
            "grad_norm": ("train/grad_norm",),
            "lr": ("train/learning_rate",),
        },
        scale_after=None,  # the user's own
    ),
    System(
        "tbnum",
        ("tbnum/loss", "tbnum/loss_scale"),
        {
            name: (f"tbnum/{name}",)
            for name in ("loss", "loss_scale", "grad_norm", "grad_norm_clipped", "clip_coef", "max_norm", "lr")
        },
        scale_after=False,
    ),
)

OTHER = System(
    "",
    (),
    {
        "loss": (
            *("train_loss_step", "train/loss_step", "train_loss", "train/loss", "loss/train", "Loss/train"),
            *("Train/loss", "Train/Loss", "training_loss", "training/loss", "Training Loss", "train/total_loss"),
            *("loss_step", "loss", "Loss", "train_loss_epoch", "train/loss_epoch", "loss_epoch"),
        ),
        "loss_scale": ("loss_scale", "train/loss_scale", "train_loss_scale", "grad_scale", "train/grad_scale"),
        "grad_norm": (
            *("grad_norm", "train/grad_norm", "train_grad_norm", "gradient_norm", "train/gradient_norm"),
            *("grad_2.0_norm_total", "grad_2_norm_total", "grad_2.0_norm/total"),
        ),
        "lr": ("lr", "train/lr", "train_lr", "learning_rate", "train/learning_rate", "Train/lr", _LIGHTNING_LR),
    },
    scale_after=None,
)
"""Lightning, whose tags are the user's own names, and plain loops."""


def is_candidate(tag: str) -> bool:
    """Whether any system calls a column so."""
    return tag in _EXACT or any(pattern.fullmatch(tag) for pattern in _PATTERNS)


_EVERY = [tag for system in (*SYSTEMS, OTHER) for tags in system.tags.values() for tag in tags]
_EXACT = frozenset(tag for tag in _EVERY if isinstance(tag, str))
_PATTERNS = tuple(tag for tag in _EVERY if not isinstance(tag, str))


def recognise(tags: Iterable[str], mapping: Mapping[str, str] | None = None) -> tuple[System, dict[str, str]]:
    """Whose tags these are, and the tag of each column that is there. `mapping` (tag by column) goes first."""
    present = set(tags)
    system = next((each for each in SYSTEMS if not present.isdisjoint(each.sign)), OTHER)
    found: dict[str, str] = {}
    for column, names in system.tags.items():
        for name in names:
            fits = [name] if isinstance(name, str) else sorted(tag for tag in present if name.fullmatch(tag))
            if fits and fits[0] in present:
                found[column] = fits[0]
                break
    found.update({column: tag for column, tag in (mapping or {}).items() if tag in present})
    return system, found


def checked_mapping(pairs: Iterable[str] | Mapping[str, str] | None) -> dict[str, str]:
    """The tags by column, from `COLUMN=TAG` texts or a mapping. ValueError that names what is wrong with one."""
    if pairs is None:
        return {}
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
