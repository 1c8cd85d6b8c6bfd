"""Scalars for TensorBoard's dashboards: which, when, and never through a writer that was closed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tbnum.log.dashboards import Dashboards
from tbnum.log.schema import step_columns

ONE = step_columns({"optimizer": 2})
TWO = step_columns({"generator": 1, "critic": 1})


class Written:
    """A SummaryWriter that remembers."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int, float]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, walltime: float) -> None:
        self.scalars.append((tag, scalar_value, global_step, walltime))

    def steps(self, tag: str) -> list[int]:
        return [step for name, _, step, _ in self.scalars if name == tag]

    def at(self, step: int) -> dict[str, float]:
        return {tag: value for tag, value, at, _ in self.scalars if at == step}


def row(columns: tuple[str, ...], step: int, **values: Any) -> tuple[Any, ...]:
    known = {"step": step, "wall_time": 1e9 + step, "loss": 2.0, "micro_batches": 1, "loss_scale": 1024.0, **values}
    known = {name.replace("__", "/"): value for name, value in known.items()}
    return tuple(known.get(name, False if name.endswith("skipped") else math.nan) for name in columns)


@pytest.fixture
def writer() -> Written:
    return Written()


def test_known_values_are_written_each_interval_under_their_column_names(writer: Written) -> None:
    dashboards = Dashboards(writer, 10)
    values = {"grad_norm": 3.0, "grad_norm_clipped": 1.0, "clip_coef": 1 / 3, "lr": 0.1, "lr__1": 0.2}
    for step in range(21):
        dashboards.step(ONE, row(ONE, step, nonfinite_tensors=0, **values), skipped_total=0)
    assert writer.steps("tbnum/loss") == [0, 10, 20]
    assert writer.at(10) == {
        "tbnum/loss": 2.0,
        "tbnum/loss_scale": 1024.0,
        "tbnum/grad_norm": 3.0,
        "tbnum/grad_norm_clipped": 1.0,
        "tbnum/clip_coef": 1 / 3,
        "tbnum/nonfinite_tensors": 0.0,
        "tbnum/lr": 0.1,
        "tbnum/lr/1": 0.2,
        "tbnum/skipped_total": 0.0,
    }
    assert {walltime - step for _, _, step, walltime in writer.scalars} == {1e9}


def test_skipped_steps_and_changes_of_the_scale_are_always_written(writer: Written) -> None:
    dashboards = Dashboards(writer, 100)
    for step in range(50):
        skipped = step == 17
        scale = 1024.0 if step < 18 else 512.0
        dashboards.step(ONE, row(ONE, step, skipped=skipped, loss_scale=scale), skipped_total=int(step >= 17))
    assert writer.steps("tbnum/loss_scale") == [0, 17, 18]
    assert writer.at(17)["tbnum/skipped_total"] == 1.0
    assert writer.at(18)["tbnum/loss_scale"] == 512.0


def test_the_first_step_is_written_wherever_a_run_is_taken_up(writer: Written) -> None:
    dashboards = Dashboards(writer, 100)
    dashboards.step(ONE, row(ONE, 57), skipped_total=3)
    assert writer.steps("tbnum/loss") == [57]


def test_an_unknown_scale_is_no_change(writer: Written) -> None:
    dashboards = Dashboards(writer, 100)
    for step in range(1, 5):
        dashboards.step(ONE, row(ONE, step, loss_scale=math.nan), skipped_total=0)
    assert writer.steps("tbnum/loss") == [1]


def test_a_measured_nan_is_written_and_an_unknown_one_is_not(writer: Written) -> None:
    dashboards = Dashboards(writer, 1)
    measured = row(ONE, 0, loss=math.nan, grad_norm=math.nan, nonfinite_tensors=2)
    unknown = row(ONE, 1, loss=math.nan, micro_batches=0, grad_norm=math.nan)
    no_evidence = row(ONE, 2, loss=math.nan, micro_batches=math.nan, grad_norm=math.nan, nonfinite_tensors=0)
    for each in (measured, unknown, no_evidence):
        dashboards.step(ONE, each, skipped_total=0)
    assert math.isnan(writer.at(0)["tbnum/loss"]) and math.isnan(writer.at(0)["tbnum/grad_norm"])
    for step in (1, 2):
        assert not {"tbnum/loss", "tbnum/grad_norm"} & writer.at(step).keys()


def test_infinity_is_always_a_measurement(writer: Written) -> None:
    Dashboards(writer, 1).step(ONE, row(ONE, 0, grad_norm=math.inf, micro_batches=0, loss=-math.inf), skipped_total=0)
    assert writer.at(0)["tbnum/grad_norm"] == math.inf and writer.at(0)["tbnum/loss"] == -math.inf


def test_several_optimizers_have_their_names_in_the_tags(writer: Written) -> None:
    dashboards = Dashboards(writer, 100)
    values = {"generator__grad_norm": 1.0, "critic__grad_norm": math.nan, "critic__nonfinite_tensors": 1}
    dashboards.step(TWO, row(TWO, 0, **values), skipped_total=0)
    dashboards.step(TWO, row(TWO, 1, critic__skipped=True, **values), skipped_total=1)
    assert writer.at(1)["tbnum/generator/grad_norm"] == 1.0
    assert math.isnan(writer.at(1)["tbnum/critic/grad_norm"])
    assert writer.at(1)["tbnum/loss"] == 2.0


def test_columns_may_change_on_the_way(writer: Written) -> None:
    dashboards = Dashboards(writer, 1)
    dashboards.step(TWO, row(TWO, 0, generator__lr=0.5), skipped_total=0)
    dashboards.step(ONE, row(ONE, 1, lr=0.25), skipped_total=0)
    assert writer.at(0)["tbnum/generator/lr"] == 0.5 and writer.at(1)["tbnum/lr"] == 0.25


def test_a_closed_writer_is_not_opened_again_and_what_it_misses_is_counted(tmp_path: Path) -> None:
    SummaryWriter = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    writer = SummaryWriter(str(tmp_path))
    dashboards = Dashboards(writer, 1)
    dashboards.step(ONE, row(ONE, 0), skipped_total=0)
    writer.close()
    files = {path: path.stat().st_size for path in tmp_path.iterdir()}
    dashboards.step(ONE, row(ONE, 1), skipped_total=0)
    assert dashboards.lost == 3  # loss, loss_scale, skipped_total
    assert {path: path.stat().st_size for path in tmp_path.iterdir()} == files


def test_an_interval_below_one_is_a_value_error(writer: Written) -> None:
    with pytest.raises(ValueError, match="scalar_interval"):
        Dashboards(writer, 0)
