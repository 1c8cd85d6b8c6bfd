"""Runs that never used tbnum, from event files that real SummaryWriters wrote under the tags of each system."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensorboard import default, program
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.compat.tensorflow_stub import dtypes
from tensorboard.plugins import base_plugin
from tensorboard.util import tensor_util
from torch.utils.tensorboard import SummaryWriter

import tbnum
from tbnum import cli
from tbnum.explain import explain_run, findings
from tbnum.log.event_file import EventFile
from tbnum.log.inferred import Habits, infer
from tbnum.log.inferred import Scaler as Known
from tbnum.log.numbering import Numbering
from tbnum.log.record_file import file_version, frame
from tbnum.log.tags import MAPPABLE
from tensorboard_plugin_tbnum import runs as table
from tensorboard_plugin_tbnum.loader import TbnumLoader
from tensorboard_plugin_tbnum.plugin import TbnumPlugin
from tests.loops import Half, batches, train
from tests.recorded import record
from tests.routes import Panel

OVERFLOWS = (50, 151, 220)


def write(folder: Path, rows: Iterable[tuple[int, Mapping[str, float]]], **writer) -> Path:
    """Logs `rows`: a step and its scalars."""
    with SummaryWriter(str(folder), **writer) as log:
        for step, scalars in rows:
            for tag, value in scalars.items():
                log.add_scalar(tag, value, step)
    return folder


class Scaler:
    """As GradScaler does it, with a growth every 100 steps."""

    def __init__(self, scale: float = 65536.0, interval: int = 100) -> None:
        self.scale, self.held, self.interval = scale, 0, interval

    def update(self, overflow: bool) -> float:
        self.held = 0 if overflow else self.held + 1
        if overflow:
            self.scale /= 2
        elif self.held == self.interval:
            self.scale, self.held = 2 * self.scale, 0
        return self.scale


def megatron(folder: Path, steps: int = 300, every: int = 1, overflows: Iterable[int] = OVERFLOWS) -> Path:
    def rows():
        scaler = Scaler()
        for step in range(1, steps + 1):
            skipped = step in overflows
            scalars = {"learning-rate": 1e-4, "lm loss": loss(step), "loss-scale": scaler.update(skipped)}
            if not skipped:  # Megatron-LM has no norm to log then
                scalars["grad-norm"] = 1.25
            if step % every == 0:
                yield step, scalars
                yield 32 * step, {f"{tag} vs samples": value for tag, value in scalars.items()}

    return write(folder, rows())


def loss(step: int) -> float:
    return 8.0 / step**0.2


def inferred(run, kind: str = "skip") -> list[int]:
    return [event.step for event in run.events if event.kind == kind]


def one(logdir: Path, **options):
    (run,) = tbnum.read(logdir, **options).values()
    return run


# What is logged.


def test_a_megatron_run_has_its_columns_and_three_inferred_skips(tmp_path):
    run = one(megatron(tmp_path))
    assert run.meta["source"] == "tensorboard" and run.meta["system"] == "Megatron-LM"
    assert run.meta["tags"] == {
        "loss": "lm loss",
        "loss_scale": "loss-scale",
        "grad_norm": "grad-norm",
        "lr": "learning-rate",
    }
    assert all(tag.endswith(" vs samples") for tag in run.meta["other_tags"]) and len(run.meta["other_tags"]) == 4
    steps = run.steps
    np.testing.assert_array_equal(steps["step"], np.arange(1, 301))
    np.testing.assert_array_equal(steps["loss"], np.float32([loss(step) for step in range(1, 301)]))
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(steps["grad_norm"])) + 1, OVERFLOWS)
    assert "micro_batches" not in steps and "clip_coef" not in steps  # unknown, not 0
    assert [(event.step, event.cause) for event in run.events if event.kind == "skip"] == [
        (50, "bad_batch"),
        (151, "growth_probe"),
        (220, "bad_batch"),
    ]
    np.testing.assert_array_equal(np.flatnonzero(steps["skipped"]) + 1, OVERFLOWS)
    assert inferred(run, "scale_growth") == [150] and inferred(run, "scale_backoff") == list(OVERFLOWS)
    assert run.totals.skipped_steps == 3 and run.totals.steps == 300


def test_what_is_inferred_says_so(tmp_path):
    for event in one(megatron(tmp_path)).events:
        assert event.data["inferred"] is True
        assert event.message.startswith("Inferred from the loss scale: ")


def test_a_log_of_every_tenth_step_says_at_least_and_names_no_cause_that_it_cannot_know(tmp_path):
    overflows = (43, 44, 151, 225)
    run = one(megatron(tmp_path, every=10, overflows=overflows))
    assert run.meta["every"] == 10
    first, second, third = (event for event in run.events if event.kind == "skip")
    assert (first.step, first.data["at_least"], first.data["within"]) == (50, 2, 10)
    assert "At least 2 of the 10 steps up to 50 were skipped" in first.message
    assert first.cause == "bad_batch"
    # The growth came somewhere in steps 141 to 150, the overflow in 151 to 160: a probe, or not.
    assert (second.step, second.cause) == (160, "unknown") and "too few steps" in second.message
    assert (third.step, third.cause) == (230, "bad_batch") and "held for about" in third.message
    assert "loss" not in first.data  # that of step 50 is not that of 43 or 44
    assert run.totals.skipped_steps == 4
    assert run.steps["updates"][[3, 4, -1]].tolist() == [40, 48, 296]  # steps that were not logged count too


def test_a_megatron_step_that_was_skipped_without_a_lower_scale_is_known_by_its_missing_norm(tmp_path):
    rows = [(step, {"lm loss": 2.0, "loss-scale": 65536.0, "grad-norm": 1.0}) for step in range(1, 40)]
    del rows[19][1]["grad-norm"]  # hysteresis: the first overflow lowers nothing
    del rows[-1][1]["grad-norm"]  # perhaps not yet written
    run = one(write(tmp_path, rows))
    (event,) = run.events
    assert (event.step, event.kind, event.data["how"]) == (20, "skip", "no_grad_norm")


def test_a_deepspeed_log_counts_samples_and_has_a_steps_loss_beside_its_scale(tmp_path):
    batch, scaler = 32, Scaler()
    rows = []
    for step in range(200):
        rows.append((step * batch, {"Train/Samples/train_loss": loss(step + 1)}))
        scale = scaler.update(step in (30, 131))
        rows.append(((step + 1) * batch, {"Train/Samples/lr": 1e-3, "Train/Samples/loss_scale": scale}))
    run = one(write(tmp_path, rows))
    assert run.meta["system"] == "DeepSpeed" and run.meta["x"] == "samples"
    assert run.meta["numbering"] == {"first": batch, "unit": batch}
    np.testing.assert_array_equal(run.steps["step"], batch * np.arange(1, 201))
    np.testing.assert_array_equal(run.steps["loss"], np.float32([loss(step) for step in range(1, 201)]))
    skips = [event for event in run.events if event.kind == "skip"]
    assert [(event.step, event.cause) for event in skips] == [(31 * batch, "bad_batch"), (132 * batch, "growth_probe")]
    assert "held for 30 steps" in skips[0].message  # steps, not samples
    assert skips[0].data["evidence"]["recovered_after"] == 100


def test_deepspeeds_pipeline_engine_logs_the_loss_after_the_step(tmp_path):
    rows = [
        (32 * step, {"Train/Samples/train_loss": float(step), "Train/Samples/loss_scale": 1024.0})
        for step in range(1, 50)
    ]
    run = one(write(tmp_path, rows))
    np.testing.assert_array_equal(run.steps["loss"], np.arange(1.0, 50.0))
    np.testing.assert_array_equal(run.steps["step"], 32 * np.arange(1, 50))


def test_a_first_scale_that_comes_down_is_a_warm_up(tmp_path):
    scaler = Scaler(2.0**24)
    rows = [
        (32 * step, {"Train/Samples/lr": 1e-3, "Train/Samples/loss_scale": scaler.update(step <= 6)})
        for step in range(1, 60)
    ]
    run = one(write(tmp_path, rows))
    assert [event.cause for event in run.events if event.kind == "skip"] == ["scale_warmup"] * 5  # the first: unseen


def test_nemo_logs_the_scale_that_the_step_used(tmp_path):
    scaler, rows = Scaler(), []
    for step in range(120):
        rows.append((step, {"reduced_train_loss": loss(step + 1), "loss_scale": scaler.scale, "lr": 1e-4}))
        scaler.update(step == 40)
    run = one(write(tmp_path, rows))
    assert run.meta["system"] == "NeMo"
    assert inferred(run) == [40]
    (skip,) = (event for event in run.events if event.kind == "skip")
    assert skip.data["loss"] == pytest.approx(loss(41))


def test_nemos_log_of_every_tenth_step_counts_no_skip_twice_and_names_steps_that_hold_it(tmp_path):
    overflows = (40, 71, 72, 80, 90)  # of which steps 40, 80 and 90 are logged, before the scale falls
    scaler, rows = Scaler(), []
    for step in range(120):
        norm = math.inf if step in overflows else 1.0
        scalars = {"reduced_train_loss": loss(step + 1), "loss_scale": scaler.scale, "grad_norm": norm}
        if step % 10 == 0:
            rows.append((step, scalars))
        scaler.update(step in overflows)
    run = one(write(tmp_path, rows))
    skips = [event for event in run.events if event.kind == "skip"]
    assert [(event.step, event.data.get("at_least", 1)) for event in skips] == [(40, 1), (80, 3), (90, 1)]
    assert [event.data.get("within", 1) for event in skips] == [1, 11, 1]  # the scale of step 70 is the one before it
    assert run.totals.skipped_steps == len(overflows)
    fell_to = [event.data["new_scale"] for event in run.events if event.kind == "scale_backoff"]
    assert fell_to == [2.0**15, 2.0**13, 2.0**12, 2.0**11]


@pytest.mark.parametrize("after", [True, False], ids=["after the update", "before the update"])
def test_a_loops_own_scale_is_read_as_its_norms_show(tmp_path, after):
    overflows, scaler, rows = (3, 4, 40), Scaler(), []
    for step in range(60):
        norm = math.inf if step in overflows else 1.0
        scales = scaler.scale, scaler.update(step in overflows)
        rows.append((step, {"loss": loss(step + 1), "grad_norm": norm, "loss_scale": scales[after]}))
    run = one(write(tmp_path, rows))
    assert inferred(run) == list(overflows) and run.totals.skipped_steps == 3
    assert inferred(run, "scale_backoff") == list(overflows)


def test_transformers_has_no_scale_and_a_skip_shows_in_the_gradient_norm(tmp_path):
    norms = {40: math.inf, 77: math.nan}
    rows = [
        (
            step,
            {"train/loss": loss(step), "train/grad_norm": norms.get(step, 0.5), "train/learning_rate": 1e-4}
            | {"train/epoch": step / 100},
        )
        for step in range(1, 101)
    ]
    rows.append((100, {"eval/loss": 1.0, "train/train_runtime": 12.0}))
    run = one(write(tmp_path, rows))
    assert run.meta["system"] == "Transformers"
    assert [(event.step, event.kind, event.cause) for event in run.events] == [
        (40, "skip", "unknown"),
        (77, "skip", "unknown"),
    ]
    assert "no loss scale is logged to say why" in run.events[0].message
    assert "skipped" not in run.steps and run.totals.skipped_steps is None  # how many in all, nobody knows
    known = run.steps["grad_norm_logged"]
    assert known.all() and np.isnan(run.steps["grad_norm"]).sum() == 1


def test_a_norm_that_is_not_finite_and_losses_that_never_are_again_is_a_step_that_was_taken(tmp_path):
    rows = [
        (
            step,
            {
                "train/loss": loss(step) if step <= 40 else math.nan,
                "train/grad_norm": 0.5 if step < 40 else math.nan,
                "train/learning_rate": 1e-4,
            },
        )
        for step in range(1, 60)
    ]
    run = one(write(tmp_path, rows))
    assert run.events[0].kind == "nonfinite_step" and run.events[0].step == 40


# What each system writes at a step of its training, from its source: the columns, and tags that are none.
WRITTEN = [
    ("fairseq", {"loss": "loss", "loss_scale": "loss_scale", "grad_norm": "gnorm", "lr": "lr"}, ["nll_loss", "wps"]),
    (
        "Megatron-DeepSpeed",
        {
            "loss": "lm-loss-training/lm loss",
            "loss_scale": "loss-scale/loss-scale",
            "grad_norm": "grad-norm/grad-norm",
            "lr": "learning-rate/learning-rate",
        },
        ["batch-size/batch-size"],
    ),
    ("Megatron-LM", {"loss": "loss", "lr": "learning-rate"}, ["loss vs samples", "learning-rate vs samples"]),
    (
        "torchtitan",
        {"loss": "loss_metrics/global_avg_loss", "grad_norm": "grad_norm", "lr": "lr"},
        ["loss_metrics/global_max_loss", "throughput(tps)", "mfu(%)"],
    ),
    ("torchtune", {"loss": "loss", "grad_norm": "grad_norm", "lr": "lr"}, ["tokens_per_second_per_gpu"]),
    (
        "GPT-NeoX",
        {"loss": "train/lm_loss", "loss_scale": "train/loss_scale", "lr": "train/learning_rate"},
        ["runtime/samples_per_sec", "runtime/iteration_time"],
    ),
    ("GPT-NeoX", {"loss": "train/lm_loss", "lr": "train/learning_rate"}, ["runtime/iteration_time"]),
    (
        "Stable-Baselines3",
        {"loss": "train/loss", "lr": "train/learning_rate"},
        ["rollout/ep_rew_mean", "time/fps", "train/entropy_loss", "train/value_loss", "train/approx_kl"],
    ),
    ("MMEngine", {"loss": "loss", "grad_norm": "grad_norm", "lr": "lr"}, ["data_time", "time", "iter", "loss_cls"]),
    (
        "MMEngine",
        {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/lr"},
        ["train/data_time", "train/time", "iter", "train/loss_bbox"],
    ),
    (
        "MMCV",
        {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "learning_rate"},
        ["momentum", "train/loss_cls"],
    ),
    ("detectron2", {"loss": "total_loss", "lr": "lr"}, ["data_time", "eta_seconds", "loss_cls", "loss_box_reg"]),
    (
        "OLMo",
        {"loss": "train/CrossEntropyLoss", "grad_norm": "optim/total_grad_norm", "lr": "optim/learning_rate_group0"},
        ["train/Perplexity", "throughput/total_tokens"],
    ),
    (
        "OLMo-core",
        {"loss": "train/CE loss", "grad_norm": "optim/total grad norm", "lr": "optim/LR (group 0)"},
        ["train/PPL", "throughput/device/TPS"],
    ),
    (
        "Composer",
        {"loss": "loss/train/total", "grad_norm": "l2_norm/grad/global", "lr": "lr-DecoupledAdamW/group0"},
        ["trainer/device_train_microbatch_size", "time/train", "metrics/train/MulticlassAccuracy"],
    ),
    ("Keras", {"loss": "batch_loss"}, ["batch_accuracy", "epoch_loss", "epoch_learning_rate"]),
    ("Keras", {"loss": "epoch_loss", "lr": "epoch_learning_rate"}, ["epoch_accuracy"]),
    (
        "Transformers",
        {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/learning_rate"},
        ["train/epoch"],
    ),
    (None, {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/learning_rate"}, ["epoch"]),
    (None, {"loss": "train_loss_step", "grad_norm": "grad_2.0_norm_total", "lr": "lr-AdamW"}, ["epoch"]),  # Lightning
    (None, {"loss": "loss_step", "lr": "lr-AdamW"}, ["epoch"]),  # of self.log("loss", ..., on_step, on_epoch)
    (None, {"loss": "train/loss", "loss_scale": "train/loss_scale", "lr": "lr-SGD/pg1"}, []),
    (None, {"loss": "Loss/train"}, []),  # the tutorial of torch.utils.tensorboard
    (None, {"loss": "total_loss"}, []),
    (None, {"loss": "train/lm_loss", "lr": "train/learning_rate"}, []),
]


@pytest.mark.parametrize(("system", "tags", "others"), WRITTEN, ids=[str(system) for system, *_ in WRITTEN])
def test_a_system_is_recognised_by_what_only_it_writes(tmp_path, system, tags, others):
    value = {column: float(number) for number, column in enumerate(tags, 2)}
    scalars = {tag: value[column] for column, tag in tags.items()} | dict.fromkeys(others, 9.0)
    run = one(write(tmp_path, [(step, scalars) for step in range(5)]))
    assert run.meta["system"] == system and run.meta["tags"] == tags
    assert run.meta["other_tags"] == sorted(others)
    for column in tags:
        np.testing.assert_array_equal(run.steps[column], np.full(5, value[column]))


@pytest.mark.parametrize(
    ("system", "lr", "parts"),
    [
        ("Ultralytics", "lr/pg0", ["train/box_loss", "train/cls_loss", "train/dfl_loss"]),
        ("YOLOv5", "x/lr0", ["train/box_loss", "train/cls_loss", "train/obj_loss"]),
    ],
)
def test_a_loss_that_is_logged_in_parts_is_their_sum_where_all_are_there(tmp_path, reported, system, lr, parts):
    rows = [(epoch, {lr: 0.01, "val/box_loss": 9.0} | {part: float(epoch) for part in parts}) for epoch in range(1, 9)]
    del rows[3][1][parts[1]]
    run = one(write(tmp_path, rows))
    assert run.meta["system"] == system and run.meta["tags"] == {"loss": " + ".join(parts), "lr": lr}
    assert run.meta["other_tags"] == ["val/box_loss"]
    expected = 3.0 * np.arange(1, 9)
    expected[3] = math.nan
    np.testing.assert_array_equal(run.steps["loss"], expected)
    assert f"scalars of {system}, every epoch" in reported("report", tmp_path)[1]
    assert tbnum.read(tmp_path, tags={"loss": "val/box_loss"})["."].steps["loss"][0] == 9.0


def test_the_folder_of_keras_validation_is_no_training(tmp_path):
    train = [(epoch, {"epoch_loss": 1.0, "epoch_learning_rate": 0.01}) for epoch in range(5)]
    validation = [(epoch, {"epoch_loss": 2.0, "evaluation_loss_vs_iterations": 2.0}) for epoch in range(5)]
    write(tmp_path / "train", train)
    write(tmp_path / "validation", validation)
    assert list(tbnum.read(tmp_path)) == ["train"]


def test_stable_baselines_counts_steps_of_the_environment(tmp_path, reported):
    rows = [
        (2048 * rollout, {"train/loss": 1.0, "train/learning_rate": 3e-4, "time/fps": 900}) for rollout in (1, 2, 3)
    ]
    run = one(write(tmp_path, rows))
    assert run.meta["numbering"] == {"first": 2048, "unit": 2048} and run.meta["x"] == "environment steps"
    assert "every rollout; x in environment steps, 2,048 a rollout" in reported("report", tmp_path)[1]


# What a norm that is not finite means.

TORCHTITAN = {"loss": "loss_metrics/global_avg_loss", "grad_norm": "grad_norm", "lr": "lr"}
TRANSFORMERS = {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/learning_rate", "": "train/epoch"}
LOOP = {"loss": "train_loss", "grad_norm": "grad_norm", "lr": "lr"}
MEGATRON = {"loss": "lm loss", "grad_norm": "grad-norm", "lr": "learning-rate"}


def norms_of(folder: Path, tags: Mapping[str, str], norms: Iterable[float], **columns: Iterable[float]) -> list:
    """The events of a run with these norms; a loss of 1 where `columns` has none."""
    norms = list(norms)
    values = {"loss": [1.0] * len(norms), **columns, "grad_norm": norms}
    rows = [
        (step, {tag: values[name][step] if name in values else 0.5 for name, tag in tags.items()})
        for step in range(len(norms))
    ]
    events = one(write(folder, rows)).events
    assert all(event.message.startswith("Inferred from the gradient norm: ") for event in events)
    return [(event.step, event.kind) for event in events]


@pytest.mark.parametrize("tags", [TORCHTITAN, MEGATRON], ids=["torchtitan", "Megatron-LM without a scale"])
def test_a_system_without_a_scaler_skips_no_step(tmp_path, tags):
    assert norms_of(tmp_path / "inf", tags, [1.0, math.inf, 1.0, 1.0]) == [(1, "norm_overflow")]
    assert norms_of(tmp_path / "nan", tags, [1.0, math.nan, 1.0, 1.0]) == [(1, "nonfinite_norm")]
    lost = [1.0, 1.0, math.nan, math.nan]
    events = norms_of(tmp_path / "lost", tags, [1.0, math.inf, math.nan, math.nan], loss=lost)
    assert events == [(1, "nonfinite_step"), (2, "nonfinite_step"), (3, "nonfinite_step")]


def test_a_scale_of_1_throughout_is_that_of_a_scaler_that_is_off(tmp_path):
    tags = {**MEGATRON, "loss_scale": "loss-scale"}
    norms = [1.0, math.inf, 1.0, 1.0]
    assert norms_of(tmp_path / "off", tags, norms, loss_scale=[1.0] * 4) == [(1, "norm_overflow")]
    assert "skipped" not in one(tmp_path / "off").steps
    assert norms_of(tmp_path / "static", tags, norms, loss_scale=[128.0] * 4) == [(1, "skip")]


def test_where_a_scaler_may_be_there_what_follows_says_whether_the_step_was_skipped(tmp_path):
    assert norms_of(tmp_path / "finite", LOOP, [1.0, math.nan, 1.0]) == [(1, "skip")]
    lost = [1.0, 1.0, math.nan]
    assert norms_of(tmp_path / "lost", LOOP, [1.0, math.nan, math.nan], loss=lost) == [
        (1, "nonfinite_step"),
        (2, "nonfinite_step"),
    ]


@pytest.mark.parametrize("tags", [TORCHTITAN, LOOP], ids=["no scaler", "perhaps a scaler"])
def test_of_the_last_step_that_was_logged_nothing_says_what_became_of_it(tmp_path, tags):
    assert norms_of(tmp_path, tags, [1.0, 1.0, math.inf]) == [(2, "nonfinite_norm")]
    (event,) = one(tmp_path).events
    assert "whether the optimizer stepped is unknown" in event.message and event.severity == "warning"


def test_transformers_filters_losses_so_only_norms_say_that_the_parameters_are_finite(tmp_path):
    assert norms_of(tmp_path / "finite", TRANSFORMERS, [1.0, math.nan, 1.0]) == [(1, "skip")]
    assert norms_of(tmp_path / "lost", TRANSFORMERS, [1.0, math.nan, math.nan]) == [
        (1, "nonfinite_step"),
        (2, "nonfinite_step"),
    ]


def test_one_step_that_spoils_the_means_of_ten_is_one_event(tmp_path):
    tags = {"loss": "loss", "grad_norm": "grad_norm", "lr": "lr", "": "data_time", "iter": "iter"}
    norms = [1.0] * 20 + [math.inf] * 10 + [1.0] * 20
    assert norms_of(tmp_path, tags, norms) == [(20, "skip")]
    (event,) = one(tmp_path).events
    assert event.data["within"] == 10 and "At least 1 of the 10 steps up to 20 was skipped" in event.message


def test_olmo_core_says_itself_which_steps_its_optimizer_skipped(tmp_path):
    rows = [
        (step, {"train/CE loss": 1.0, "optim/total grad norm": 9.0, "optim/step skipped": float(step == 7)})
        for step in range(20)
    ]
    run = one(write(tmp_path, rows))
    assert inferred(run) == [7] and run.totals.skipped_steps == 1
    (event,) = run.events
    assert event.message.startswith("By the log's own count of skips: ") and event.cause == "unknown"


def test_tensors_as_tensorflow_2_writes_scalars_are_read_as_well(tmp_path):
    with (tmp_path / "events.out.tfevents.1700000000.host.1.0.v2").open("wb") as file:
        file.write(frame(file_version(1_700_000_000.0)))
        for step in range(10):
            event = event_pb2.Event(step=step, wall_time=1_700_000_000.0 + step)
            metadata = summary_pb2.SummaryMetadata()
            metadata.plugin_data.plugin_name = "scalars"
            tensor = tensor_util.make_tensor_proto(np.float32(step / 2), dtypes.float32)
            event.summary.value.add(tag="train/loss", metadata=metadata, tensor=tensor)
            event.summary.value.add(tag="note", tensor=tensor_util.make_tensor_proto(["text"], dtypes.string))
            file.write(frame(event.SerializeToString()))
    run = one(tmp_path)
    np.testing.assert_array_equal(run.steps["loss"], np.arange(10) / 2)
    assert run.meta["other_tags"] == [] and run.problems == []


def test_a_record_is_read_the_same_at_a_glance_and_by_protobuf():
    """Scalars as SummaryWriter writes them are not parsed as protos, which would take twice the time."""
    quick, slow = (EventFile(Path("unread"), lambda tag: tag != "unwanted") for _ in range(2))
    for step in [0, 1, 2, 127, 128, 300, 16_383, 16_384, 2**31, 2**40, 2**62]:
        for number, tag in enumerate(("loss", "unwanted", "größe", "x" * 127, "y" * 128)):
            event = event_pb2.Event(wall_time=1.7e9 + step, step=step)
            event.summary.value.add(tag=tag, simple_value=math.nan if step == 2 else step / 3 + number)
            if step == 127:  # two in one record
                event.summary.value.add(tag="second", simple_value=1.0)
            data = event.SerializeToString()
            quick.take(data)
            slow._parse(data)
    assert quick.tags == slow.tags and quick.points.keys() == slow.points.keys() and len(quick.points) == 5
    for tag, points in slow.points.items():
        for one, other in zip(points.before(math.inf), quick.points[tag].before(math.inf), strict=True):
            np.testing.assert_array_equal(one, other)


def test_nothing_is_sampled_out(tmp_path):
    rows = [(step, {"train/loss": float(step)}) for step in range(12_000)]
    run = one(write(tmp_path, rows))
    np.testing.assert_array_equal(run.steps["loss"], np.arange(12_000.0))


@pytest.mark.parametrize("convention", ["Megatron-LM", "DeepSpeed", "NeMo"])
def test_a_real_trainings_skips_and_causes_are_those_that_tbnum_recorded(tmp_path, convention):
    """One loop, recorded by tbnum and logged as each system would: a warm-up, probes, and two spoiled batches."""
    torch.manual_seed(0)
    model = Half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=40)
    rows: list[tuple[int, dict[str, float]]] = []
    before = scaler.get_scale()

    def log(step: int, value: float) -> None:
        nonlocal before
        after = scaler.get_scale()
        if convention == "Megatron-LM":
            norm = {} if after < before else {"grad-norm": 1.0}
            rows.append((step + 1, {"lm loss": value, "loss-scale": after, **norm}))
        elif convention == "DeepSpeed":
            rows.append((16 * step, {"Train/Samples/train_loss": value}))
            rows.append((16 * step + 16, {"Train/Samples/loss_scale": after}))
        else:
            rows.append((step, {"reduced_train_loss": value, "loss_scale": before}))
        before = after

    losses: list[float] = []
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path / "tbnum", tensor_interval=1000):
        train(
            model,
            optimizer,
            scaler,
            batches(300, bad=[130, 222]),
            log_loss=lambda value: losses.append(value.item()),
            after_step=lambda step: log(step, losses[-1]),
        )
    recorded = [(each.step, each.cause) for each in one(tmp_path / "tbnum").events if each.kind == "skip"]
    assert {cause for _, cause in recorded} >= {"scale_warmup", "growth_probe", "forward_nonfinite"}
    number = {"Megatron-LM": lambda step: step - 1, "DeepSpeed": lambda step: step // 16 - 1, "NeMo": lambda step: step}
    run = one(write(tmp_path / "scalars", rows))
    reported = [(number[convention](each.step), each.cause) for each in run.events if each.kind == "skip"]
    unseen = 1 if convention == "DeepSpeed" else 0  # the scale before its first step is not logged
    assert reported == recorded[unseen:]


# What changes of the scale mean.


def scales(folder: Path, values: Iterable[float], first: int = 0) -> list[tuple[int, str]]:
    run = one(write(folder, [(step, {"loss_scale": value}) for step, value in enumerate(values, first)]))
    return [(event.step, event.kind) for event in run.events]


def test_a_change_by_no_factor_of_the_scaler_is_no_skip(tmp_path):
    assert scales(tmp_path, [65536.0] * 20 + [1000.0] * 20 + [500.0] * 20) == [
        (20, "scale_set"),
        (40, "skip"),
        (40, "scale_backoff"),
    ]


def test_a_scaler_with_a_factor_of_its_own_is_understood(tmp_path):
    found = scales(tmp_path, [4096.0] * 20 + [1024.0] * 20 + [256.0] * 20 + [512.0] * 5)
    assert found == [(20, "skip"), (20, "scale_backoff"), (40, "skip"), (40, "scale_backoff"), (60, "scale_growth")]


@pytest.mark.parametrize(
    ("every", "backoff", "after"),
    [*itertools.product((1, 3, 10, 50), (0.5, 0.25, 0.8, 0.1, 2.0**-10), (True,)), (1, 0.1, False), (10, 0.25, False)],
)
def test_no_more_skips_are_reported_than_there_were_whatever_the_backoff(tmp_path, backoff, every, after):
    random = np.random.default_rng(int(1 / backoff) + every)
    overflows = set(random.choice(600, 12, replace=False).tolist()) | {301, 302, 303}
    scale, rows = 2.0**100, []
    for step in range(600):
        used, scale = scale, scale * (backoff if step in overflows else 2 if step % 97 == 96 else 1)
        if step % every == 0:
            norm = {} if after else {"grad_norm": math.inf if step in overflows else 1.0}  # says which it is
            rows.append((step, {"loss": 1.0, "loss_scale": scale if after else used, **norm}))
    run = one(write(tmp_path, rows))
    run.refresh()
    last = rows[-1][0]
    assert run.totals.skipped_steps <= sum(step <= last for step in overflows)
    if every == 1:
        assert run.totals.skipped_steps == sum(step <= last - (not after) for step in overflows)
    for event in run.events:
        if event.kind == "skip":
            within = event.data.get("within", 1)
            there = sum(event.step - within < step <= event.step for step in overflows)
            assert event.data.get("at_least", 1) <= there


def test_what_a_sparse_log_does_not_tell_is_said_with_what_is_likely(tmp_path):
    rows = [(step, {"loss": 1.0, "loss_scale": 2.0**16 if step < 100 else 2.0**12}) for step in range(0, 200, 10)]
    (skip,) = (event for event in one(write(tmp_path, rows)).events if event.kind == "skip")
    assert "At least 1 of the 10 steps up to 100 was skipped (4 if each skip halved the scale)" in skip.message


def test_a_system_whose_backoff_is_known_tells_how_many_were_skipped(tmp_path):
    rows = [(step, {"lm loss": 1.0, "loss-scale": 2.0**16 if step < 100 else 2.0**12}) for step in range(0, 200, 10)]
    (skip,) = (event for event in one(write(tmp_path, rows)).events if event.kind == "skip")
    assert "At least 4 of the 10 steps up to 100 were skipped:" in skip.message


@pytest.mark.parametrize("every", [1, 10])
def test_a_scale_that_fell_to_0_is_a_collapse_and_every_step_after_it_a_skip(tmp_path, every):
    scale, rows = np.float32(2.0**16), []
    for step in range(400):
        scale = scale * np.float32(0.5 if step > 20 else 1)
        if step % every == 0:
            rows.append((step, {"loss": math.nan if step > 20 else 1.0, "loss_scale": float(scale)}))
    assert rows[-1][1]["loss_scale"] == 0
    run = one(write(tmp_path, rows))
    (collapse,) = (event for event in run.events if event.kind == "scale_collapse")
    assert "fell from 2^16 to 0 (underflowed) over" in collapse.message and collapse.cause == "forward_nonfinite"
    skipped = run.totals.skipped_steps
    assert skipped == 379 if every == 1 else skipped >= 200  # at a scale of 0 it is known
    assert "scale_below_one" not in {finding.rule for finding in findings(run)}


def test_a_log_that_begins_at_a_scale_of_0_or_is_set_to_it_says_so(tmp_path):
    rows = [(step, {"loss": 1.0, "loss_scale": 4.0 if step < 5 else 0.0}) for step in range(30)]
    for name, some in (("set", rows), ("begun", rows[5:])):
        run = one(write(tmp_path / name, some))
        (collapse,) = (event for event in run.events if event.kind == "scale_collapse")
        assert "The loss scale was 0 (underflowed) at 24 skipped steps in a row" in collapse.message
        assert run.totals.skipped_steps == 24
        assert [event.step for event in run.events if event.kind == "scale_set"] == ([5] if name == "set" else [])


def test_a_scale_of_0_beside_finite_norms_is_none(tmp_path):
    rows = [(step, {"loss": 1.0, "loss_scale": 0.0, "grad_norm": 1.0}) for step in range(30)]
    run = one(write(tmp_path, rows))
    assert run.events == [] and run.totals.skipped_steps is None


def test_no_sequence_of_scalars_is_too_strange():
    rng = np.random.default_rng(0)
    odd = [0.0, -1.0, math.nan, math.inf, 1e-45, 3e38, 1.0, 1.0000001, 2.0, 65536.0]
    for size in (0, 1, 2, 3, 50):
        for _ in range(20):
            step = np.unique(rng.choice([0, 1, 2, 7, 100, 2**40, 2**62], size) + rng.integers(0, 99, size))
            columns = {name: rng.choice(odd, len(step)) for name in ("loss", "loss_scale", "grad_norm", "skipped")}
            logged = {name: rng.random(len(step)) < 0.7 for name in columns}
            columns = {name: np.where(logged[name], values, math.nan) for name, values in columns.items()}
            columns |= {"step": step.astype(np.int64), "wall_time": step / 10}
            for scale_after, lacks, numbering in itertools.product(
                (True, False, None), (True, False), (Numbering(), Numbering(1), Numbering(32, 32))
            ):
                known, window = list(Known)[rng.integers(3)], int(rng.choice([1, 10]))
                habits = Habits(known, scale_after=scale_after, skip_lacks_norm=lacks, window=window)
                found = infer(columns, numbering, habits, logged=logged)
                meta = {"source": "tensorboard", "numbering": numbering._asdict()}
                steps = {name: values for name, values in columns.items() if name != "skipped"}
                steps |= {} if found.skipped is None else {"skipped": found.skipped}
                reported = explain_run(SimpleNamespace(steps=steps, raw_events=found.events, meta=meta))
                assert all(
                    event.message and event.data["inferred"] for event in reported if event.kind != "scale_collapse"
                )


def test_a_scale_that_never_moves_says_that_no_step_was_skipped(tmp_path):
    rows = [(step, {"loss_scale": 1024.0, "loss": 1.0}) for step in range(30)]
    run = one(write(tmp_path, rows))
    assert run.events == [] and not run.steps["skipped"].any() and run.totals.skipped_steps == 0


def test_a_loss_that_was_logged_as_nan_is_measured_and_a_missing_one_is_unknown(tmp_path):
    rows: list[tuple[int, Mapping[str, float]]] = [(step, {"loss": 1.0, "lr": 0.1}) for step in range(30)]
    rows[10] = (10, {"loss": math.nan, "lr": 0.1})
    rows[20] = (20, {"lr": 0.1})
    run = one(write(tmp_path, rows))
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(run.steps["loss"])), [10, 20])
    np.testing.assert_array_equal(np.flatnonzero(~run.steps["loss_logged"]), [20])


def test_a_collapse_is_seen_in_a_log_of_every_tenth_step(tmp_path):
    rows = []
    for step in range(10, 400, 10):
        lost = max(0, step - 300)
        rows.append((step, {"lm loss": math.nan if lost else 2.0, "loss-scale": 2.0 ** (60 - lost)}))
    (collapse,) = (event for event in one(write(tmp_path, rows)).events if event.kind == "scale_collapse")
    assert (collapse.cause, collapse.data["from_step"]) == ("forward_nonfinite", 310)
    assert "over 90 skipped steps in a row" in collapse.message


# Restarts, growth, damage.


def test_a_restart_supersedes_what_it_takes_again(tmp_path):
    write(tmp_path, [(step, {"train/loss": 1.0}) for step in range(100)], filename_suffix=".a")
    write(tmp_path, [(step, {"train/loss": 2.0}) for step in range(80, 130)], purge_step=80, filename_suffix=".b")
    run = one(tmp_path)
    np.testing.assert_array_equal(run.steps["step"], np.arange(130))
    np.testing.assert_array_equal(run.steps["loss"], [1.0] * 80 + [2.0] * 50)
    assert inferred(run, "resume") == [80]
    assert one(tmp_path, session=0).steps["step"][-1] == 99


def test_a_restart_in_one_file_supersedes_as_well(tmp_path):
    write(tmp_path, [(step, {"train/loss": 1.0}) for step in [*range(50), *range(30, 60)]])
    run = one(tmp_path)
    np.testing.assert_array_equal(run.steps["step"], np.arange(60))
    (resume,) = run.events
    assert (resume.step, resume.kind) == (30, "resume") and "steps, which go back" in resume.message


def test_a_restart_before_another_one_supersedes_that_one_as_well(tmp_path):
    scalars = {"train/loss": 1.0, "train/learning_rate": 1e-3}
    steps = [*range(50), *range(30, 60), 59, *range(10, 70)]
    write(tmp_path, [(step, scalars) for step in steps], filename_suffix=".a")
    assert inferred(one(tmp_path), "resume") == [10]  # a step that is logged twice is no restart
    write(tmp_path, [(step, scalars) for step in range(40, 80)], filename_suffix=".b")
    assert inferred(one(tmp_path), "resume") == [10, 40]


def test_two_writers_of_different_tags_in_one_folder_are_one_run(tmp_path):
    write(tmp_path, [(step, {"loss": 1.0}) for step in range(20)], filename_suffix=".a")
    write(tmp_path, [(step, {"lr": 0.5}) for step in range(20)], filename_suffix=".b")
    run = one(tmp_path)
    np.testing.assert_array_equal(run.steps["loss"], np.full(20, 1.0))
    np.testing.assert_array_equal(run.steps["lr"], np.full(20, 0.5))
    assert run.events == []


def test_a_growing_run_is_followed(tmp_path):
    with SummaryWriter(str(tmp_path)) as log:
        log.add_scalar("loss", 1.0, 0)
        log.flush()
        run = one(tmp_path)
        before = run.steps["loss"]
        assert not run.refresh()
        log.add_scalar("loss", 2.0, 1)
        log.flush()
        assert run.refresh()
        np.testing.assert_array_equal(run.steps["loss"], [1.0, 2.0])
        np.testing.assert_array_equal(before, [1.0])


def test_a_damaged_event_file_gives_what_is_sound_and_says_so(tmp_path):
    write(tmp_path, [(step, {"loss": 1.0}) for step in range(100)])
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data[:-3])
    run = one(tmp_path)
    assert len(run.steps["step"]) == 98  # one damaged, one torn
    (problem,) = run.problems
    assert "damaged bytes" in problem


def test_a_folder_with_a_record_file_is_read_from_that_alone(tmp_path):
    record(tmp_path / "ours")
    write(tmp_path / "ours", [(step, {"loss-scale": 1.0, "lm loss": 9.0}) for step in range(500)])
    run = one(tmp_path)
    assert run.meta.get("source") is None and len(run.steps["step"]) == 10


def test_a_folder_without_a_loss_or_a_scale_is_no_run(tmp_path):
    write(tmp_path / "eval", [(step, {"eval/accuracy": 0.5, "lr": 1.0}) for step in range(10)])
    write(tmp_path / "train", [(step, {"train/loss": 0.5}) for step in range(10)])
    assert list(tbnum.read(tmp_path)) == ["train"]


# The mapping.


@pytest.mark.parametrize("tags", [3, True, "loss=a", [1], {1: "a"}])
def test_tags_that_are_no_mapping_are_named(tmp_path, tags):
    with pytest.raises(TypeError, match="give a mapping of columns to tags"):
        tbnum.read(tmp_path, tags=tags)


def test_a_mapping_gives_the_tags_of_a_system_that_nobody_knows(tmp_path):
    scaler = Scaler()
    rows = [(step, {"amp/s": scaler.update(step == 30), "obj": 1.0, "lr0": 0.1, "lr1": 0.2}) for step in range(60)]
    write(tmp_path, rows)
    assert tbnum.read(tmp_path) == {}
    run = one(tmp_path, tags={"loss_scale": "amp/s", "loss": "obj", "lr": "lr0", "lr/1": "lr1"})
    assert inferred(run) == [30]
    np.testing.assert_array_equal(run.steps["lr/1"], np.full(60, np.float32(0.2)))


@pytest.mark.parametrize(
    ("values", "skips"),
    [([0, 0, 1, 0, 1, 0], [2, 4]), ([0, 0, 1, 1, 3, 3], [2, 4])],
    ids=["a flag", "a running total"],
)
def test_a_log_that_counts_skips_itself_is_believed(tmp_path, values, skips):
    write(tmp_path, [(step, {"loss": 1.0, "skips": float(value)}) for step, value in enumerate(values)])
    run = one(tmp_path, tags={"skipped": "skips"})
    assert inferred(run) == skips
    assert run.steps["skipped"].dtype == bool and run.totals.skipped_steps == max(len(skips), max(values))


@pytest.mark.parametrize(
    ("mapping", "complaint"),
    [
        ("los_scale=loss-scale", "there is no column 'los_scale'"),
        ("loss_scale=loss_scale", "no scalar log has a scalar 'loss_scale'"),
        ("loss_scale", "maps nothing: give COLUMN=TAG"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused_and_told_what_there_is(tmp_path, capsys, mapping, complaint):
    megatron(tmp_path, steps=5)
    assert cli.main(["report", str(tmp_path), "--map", mapping]) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1
    if "column" in complaint:
        assert all(column in error for column in MAPPABLE)
    if "scalar" in complaint:
        assert "'loss-scale'" in error and "'lm loss'" in error


# Report and check.


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    megatron(folder / "megatron")
    write(folder / "scalars", [(step, {"train/loss": loss(step + 1)}) for step in range(100)])
    return folder


@pytest.fixture
def reported(capsys) -> Callable[..., tuple[int, str]]:
    def call(*arguments: object) -> tuple[int, str]:
        code = cli.main([str(each) for each in arguments])
        return code, " ".join(capsys.readouterr().out.split())

    return call


def test_the_report_shows_three_inferred_skips_and_where_they_come_from(runs, reported):
    code, out = reported("report", runs, "--run", "megatron")
    assert code == 0
    assert "TensorBoard scalars of Megatron-LM, every step: loss from 'lm loss'" in out
    assert "at least 3 (1.0 %), inferred" in out
    assert "bad_batch 2 50 220" in out and "growth_probe 1 151 151" in out
    assert "Inferred from the loss scale" in out


def test_the_report_says_that_skips_are_unknown_where_no_scale_is_logged(runs, reported):
    _, out = reported("report", runs, "--run", "scalars")
    assert "skipped unknown: no loss scaler shows in the log" in out


def test_check_counts_inferred_skips_and_does_not_pass_what_it_cannot_know(runs, reported):
    code, out = reported("check", runs, "--run", "megatron", "--max-skip-rate", 0.02)
    assert code == 0 and "3 skipped, 1.0 %, inferred from TensorBoard scalars" in out
    assert reported("check", runs, "--run", "megatron", "--max-skip-rate", 0.005)[0] == 1
    code, out = reported("check", runs, "--run", "scalars", "--max-skip-rate", 0.5)
    assert code == 1 and "share of skipped steps is unknown" in out


def test_json_and_exports_keep_what_is_unknown_apart(runs, tmp_path, reported):
    report = json.loads(reported("report", runs, "--json")[1])
    scalars = {run["run"]: run for run in report["runs"]}["scalars"]
    assert scalars["source"] == "tensorboard"
    assert scalars["skipped"]["steps"] is None and scalars["skipped"]["rate"] is None
    for form in ("csv", "json", "jsonl", "npz"):
        assert reported("export", runs, "--run", "megatron", "--format", form, "-o", tmp_path / form)[0] == 0
    lines = (tmp_path / "csv").read_text().splitlines()
    assert lines[50].split(",")[lines[0].split(",").index("grad_norm")] == ""  # step 50: no norm was logged
    assert reported("report", runs, "--html", tmp_path / "page.html")[0] == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wall_time", [math.nan, math.inf, -math.inf, 1e18, "backwards"])
def test_a_time_that_is_none_is_no_time_and_costs_nothing_else(tmp_path, reported, wall_time):
    with SummaryWriter(str(tmp_path / "run")) as log:
        for step in range(10):
            at = 1.7e9 - 60 * step if wall_time == "backwards" else wall_time
            log.add_scalar("loss_scale", 4.0 if step < 5 else 2.0, step, walltime=at)
    assert reported("report", tmp_path, "--html", tmp_path / "page.html")[0] == 0
    code, out = reported("report", tmp_path)
    assert code == 0 and ("took ?" in out or "began ?" in out) and "skipped at least 1" in out
    assert reported("check", tmp_path)[0] == 0 and reported("report", tmp_path, "--json")[0] == 0


def test_steps_as_far_apart_as_can_be_are_reported(tmp_path, reported):
    steps = (0, 1, 2**31, 2**40, 2**62, 2**63 - 1)
    write(tmp_path / "run", [(step, {"loss": 1.0, "loss_scale": 4.0}) for step in steps])
    assert reported("report", tmp_path, "--html", tmp_path / "page.html")[0] == 0
    code, out = reported("report", tmp_path)
    assert code == 0 and "(0 to 9223372036854775807)" in out
    assert reported("check", tmp_path)[0] == 0


# The panel.


@pytest.fixture
def panel_of(monkeypatch) -> Callable[..., Panel]:
    """One scan in place of a thread, which would outlive its test."""
    monkeypatch.setattr(table.RunTable, "start", table.RunTable.scan)
    monkeypatch.setattr(table, "FRESH_SECONDS", -1.0)
    return Panel


def rows(panel: Panel) -> dict[str, dict]:
    panel.plugin._runs.scan()
    return {row["run"]: row for row in panel.json("runs")["runs"]}


def test_the_panel_lists_scalar_logs_and_shows_three_inferred_skips(runs, panel_of):
    panel = panel_of(runs)
    assert {run: row["source"] for run, row in rows(panel).items()} == dict.fromkeys(
        ["megatron", "scalars"], "tensorboard"
    )
    before = rows(panel)["megatron"]
    assert (before["first_step"], before["last_step"], before["steps"], before["skipped_steps"]) == (1, 300, None, None)
    events = panel.json("events", run="megatron")["events"]
    skips = [event for event in events if event["kind"] == "skip"]
    assert [event["step"] for event in skips] == list(OVERFLOWS)
    assert all(event["data"]["inferred"] and event["message"].startswith("Inferred") for event in skips)
    after = rows(panel)["megatron"]
    assert (after["steps"], after["skipped_steps"], after["last_loss_scale"]) == (300, 3, 16384.0)
    about = panel.json("run", run="megatron")
    assert about["meta"]["system"] == "Megatron-LM" and "skipped" in about["columns"]
    assert "skipped" not in panel.json("run", run="scalars")["columns"]
    assert rows(panel)["scalars"]["skipped_steps"] is None
    assert panel.json("settings", run="megatron")["settings"]["tags"]["loss_scale"] == "loss-scale"
    assert panel.json("tensors", run="megatron")["names"] == []
    header, arrays = panel.binary("series", run="megatron", columns="loss,grad_norm,skipped", buckets=64)
    assert header["steps"] == 300 and arrays["skipped/max"].sum() == 3


def test_a_step_of_a_scalar_log_tells_a_logged_nan_from_what_was_not_logged(tmp_path, panel_of):
    write(tmp_path, [(step, {"loss": math.nan if step == 3 else 1.0}) for step in range(6)])
    panel = panel_of(tmp_path)
    assert panel.json("step", run=".", step=3)["values"]["loss"] == "NaN"
    _, arrays = panel.binary("nonfinite", run=".", column="loss")
    assert arrays["step"].tolist() == [3.0]


def test_the_panel_follows_a_scalar_log_until_it_has_a_record_file(tmp_path, panel_of):
    with SummaryWriter(str(tmp_path / "run")) as log:
        log.add_scalar("epoch", 0.0, 0)
        log.flush()
        panel = panel_of(tmp_path)
        assert rows(panel) == {}
        log.add_scalar("train/loss", 1.0, 0)
        log.flush()
        assert rows(panel)["run"]["last_step"] == 0
        assert panel.json("run", run="run")["steps"] == 1
        log.add_scalar("train/loss", 1.0, 1)
        log.flush()
        assert panel.json("run", run="run")["steps"] == 2 and rows(panel)["run"]["last_step"] == 1
    record(tmp_path / "run")
    assert rows(panel)["run"]["source"] == "tbnum" and panel.json("run", run="run")["steps"] == 10


def test_a_scalar_log_whose_folder_goes_is_not_there(tmp_path, panel_of):
    write(tmp_path / "run", [(step, {"loss": 1.0}) for step in range(6)])
    panel = panel_of(tmp_path)
    shutil.rmtree(tmp_path / "run")
    assert "are gone" in panel.refused(404, "run", run="run")
    assert rows(panel) == {}


def test_tensorboards_flag_maps_tags_for_the_panel(tmp_path, monkeypatch, panel_of):
    write(tmp_path, [(step, {"amp/s": 1024.0 if step < 5 else 512.0}) for step in range(10)])
    flags = argparse.Namespace(tbnum_map=["loss_scale=amp/s", "loss=nothing such"])
    plugin = TbnumLoader().load(base_plugin.TBContext(logdir=str(tmp_path), flags=flags))
    assert isinstance(plugin, TbnumPlugin)
    plugin._runs.scan()
    listing = plugin._runs.listing()
    assert [row.run for row in listing.rows] == ["."]
    assert "'nothing such'" in listing.errors["--tbnum_map"] and "'amp/s'" in listing.errors["--tbnum_map"]
    assert [event.kind for event in plugin._runs.snapshot(".", events=True).events] == ["skip", "scale_backoff"]


def test_a_flag_that_cannot_be_meant_ends_tensorboards_start_with_one_line(tmp_path):
    tensorboard = program.TensorBoard(plugins=default.get_plugins())
    with pytest.raises(base_plugin.FlagsError, match="--tbnum_map: there is no column 'scale'"):
        tensorboard.configure(argv=["tensorboard", "--logdir", str(tmp_path), "--tbnum_map", "scale=amp/s"])
    tensorboard.configure(argv=["tensorboard", "--logdir", str(tmp_path), "--tbnum_map", "loss_scale=amp/s"])
    assert tensorboard.flags.tbnum_map == ["loss_scale=amp/s"]
