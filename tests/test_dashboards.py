"""Scalars and histograms for TensorBoard's dashboards: which, when, and never through a writer that was closed."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tbnum.formats import BINS, INF, NAN, ZERO
from tbnum.log.dashboards import Dashboards
from tbnum.log.schema import step_columns
from tbnum.log.tensors import HistogramTable
from tests import warm
from tests.test_plugin import fetch, tensorboard

ONE = step_columns({"optimizer": 2})
TWO = step_columns({"generator": 1, "critic": 1})


class Written:
    """A SummaryWriter that remembers."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int, float]] = []
        self.histograms: list[dict[str, Any]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, walltime: float) -> None:
        self.scalars.append((tag, scalar_value, global_step, walltime))

    def add_histogram_raw(self, tag: str, **values: Any) -> None:
        self.histograms.append({"tag": tag, **values})

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
        "tbnum/lr": 0.1,  # the first group's; the record has them all
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


def test_the_scalars_of_a_step_are_one_event_of_a_writer_that_is_ours_and_separate_ones_of_a_users(
    tmp_path: Path,
) -> None:
    SummaryWriter = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    sizes = []
    for own in (False, True):
        folder = tmp_path / str(own)
        with SummaryWriter(str(folder)) as writer:
            Dashboards(writer, 1, own=own).step(ONE, row(ONE, 3, grad_norm=1.0, nonfinite_tensors=0), skipped_total=0)
        shown = EventAccumulator(str(folder)).Reload()
        values = {tag: [(each.step, each.value) for each in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}
        assert values["tbnum/loss"] == [(3, 2.0)] and len(values) == 5
        (file,) = folder.iterdir()
        sizes.append(file.stat().st_size)
    assert sizes[1] < sizes[0]


# -- histograms


def histogram_of(values: np.ndarray, *, edges: bool = True) -> HistogramTable:
    """As measured: by the float32 exponents of `values`."""
    size = np.abs(values.astype(np.float64))
    finite = size[np.isfinite(size) & (size > 0)]
    counts = np.zeros((1, BINS), np.int64)
    counts[0, ZERO] = np.count_nonzero(size == 0)
    counts[0, INF] = np.count_nonzero(np.isinf(size))
    counts[0, NAN] = np.count_nonzero(np.isnan(size))
    np.add.at(counts[0], np.clip(np.ceil(np.log2(finite)).astype(int) + 127, 1, 255), 1)
    low, high = (finite.min(), finite.max()) if edges and len(finite) else (math.nan, math.nan)
    return HistogramTable(7, ("w",), "gradient", counts, np.array([low]), np.array([high]))


def buckets_of(writer: Written, tag: str) -> np.ndarray:
    """(k, 3): lower edge, upper edge, count; as TensorBoard's loaders make them of the proto."""
    (written,) = [each for each in writer.histograms if each["tag"] == tag]
    edges = [written["min"], *written["bucket_limits"]]
    assert edges[-1] == written["max"] and written["num"] == sum(written["bucket_counts"])
    return np.array([edges[:-1], edges[1:], written["bucket_counts"]]).T


def assert_drawable(buckets: np.ndarray) -> None:
    assert np.isfinite(buckets).all() and np.isfinite(buckets.astype(np.float32)).all()
    assert (buckets[:, 0] <= buckets[:, 1]).all(), "no bucket is backwards"
    assert (buckets[1:, 0] == buckets[:-1, 1]).all(), "there are no gaps"
    assert buckets[0, 2] > 0 and buckets[-1, 2] > 0, "outer buckets are not empty"


NORMAL = np.random.default_rng(0).normal(0, 1e-4, 10_000).astype(np.float32)


@pytest.mark.parametrize(
    "values",
    [
        NORMAL,
        np.concatenate([NORMAL, [math.nan, math.inf, -math.inf], np.zeros(50)]),
        np.array([1e-45, 1e-40, 3.4e38, 0, math.nan], np.float32),
        np.array([0.75]),
        np.array([0.5, 0.5, 0.5]),
        np.array([-1.0, 1.0, 1e-30]),
    ],
)
@pytest.mark.parametrize("edges", [True, False])
def test_a_histogram_has_contiguous_buckets_from_the_smallest_to_the_largest(
    writer: Written, values: np.ndarray, edges: bool
) -> None:
    row = histogram_of(values, edges=edges)
    Dashboards(writer, 10).histogram("grad", row, 7, 1e9)
    size = np.abs(values)
    finite = np.log2(size[np.isfinite(size) & (size > 0)].astype(np.float64))
    buckets = buckets_of(writer, "grad_log2")
    assert_drawable(buckets)
    assert buckets[:, 2].sum() == len(finite)
    if edges:
        assert (buckets[0, 0], buckets[-1, 1]) == (finite.min(), finite.max())
    for low, high, count in buckets:
        inside = (finite > low) & (finite <= high)
        assert count == np.count_nonzero(inside | (finite == low) if low == buckets[0, 0] else inside)
    assert [(each["tag"], each["global_step"], each["walltime"]) for each in writer.histograms] == [
        ("grad_log2", 7, 1e9)
    ]


@pytest.mark.parametrize("values", [np.array([math.nan, math.inf]), np.empty(0), np.zeros(5)])
def test_a_histogram_without_any_logarithm_is_not_written(writer: Written, values: np.ndarray) -> None:
    Dashboards(writer, 10).histogram("grad", histogram_of(values), 7, 1e9)
    assert writer.histograms == []


@pytest.mark.parametrize(("low", "high"), [(math.nan, 1e300), (-5.0, math.inf), (1e-200, 0.0), (9.0, 1e-9)])
def test_edges_that_cannot_be_are_those_of_the_bins(writer: Written, low: float, high: float) -> None:
    row = dataclasses.replace(histogram_of(np.array([0.3, 2.5])), low=np.array([low]), high=np.array([high]))
    Dashboards(writer, 10).histogram("grad", row, 7, 1e9)
    buckets = buckets_of(writer, "grad_log2")
    assert_drawable(buckets)
    assert (buckets[0, 0], buckets[-1, 1]) == (-2.0, 2.0)


def test_a_table_of_several_tensors_is_a_value_error(writer: Written) -> None:
    row = histogram_of(NORMAL)
    two = HistogramTable(
        7, ("a", "b"), "gradient", *(np.repeat(each, 2, 0) for each in (row.counts, row.low, row.high))
    )
    with pytest.raises(ValueError, match=r"table\.row"):
        Dashboards(writer, 10).histogram("grad", two, 7, 1e9)
    Dashboards(writer, 10).histogram("grad", two.row("b"), 7, 1e9)
    assert len(writer.histograms) == 1


def test_a_closed_writer_is_not_opened_again_for_a_histogram(tmp_path: Path) -> None:
    SummaryWriter = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    writer = SummaryWriter(str(tmp_path))
    writer.close()
    files = sorted(tmp_path.iterdir())
    dashboards = Dashboards(writer, 1)
    dashboards.histogram("grad", histogram_of(NORMAL), 7, 1e9)
    assert dashboards.lost == 1 and sorted(tmp_path.iterdir()) == files


SHOWN = {
    "normal": np.concatenate([NORMAL, [math.nan, math.inf]]),
    "with_zeros": np.concatenate([NORMAL, np.zeros(1000)]),
    "one_value": np.full(3, 0.5),
    "extremes": np.array([1e-45, 3.4028234663852886e38], np.float32),
}


@pytest.mark.parametrize("flags", [(), ("--load_fast=false",)])
def test_both_of_tensorboards_loaders_show_what_was_written(tmp_path: Path, flags: tuple[str, ...]) -> None:
    SummaryWriter = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    remembered = Written()
    with SummaryWriter(str(tmp_path / "run")) as writer:
        for name, values in SHOWN.items():
            for step in range(3):
                Dashboards(writer, 1).histogram(f"tbnum/{name}", histogram_of(values), step, 1e9 + step)
            Dashboards(remembered, 1).histogram(f"tbnum/{name}", histogram_of(values), 0, 1e9)
    tags = sorted(each["tag"] for each in remembered.histograms)
    assert len(tags) == len(SHOWN)
    with tensorboard(tmp_path, *flags, python=warm.python()) as address:

        def ask(route: str, **query: str) -> Any:
            status, body = fetch(f"{address}/data/plugin/{route}?{urllib.parse.urlencode(query)}")
            assert status == 200, body
            return json.loads(body)

        deadline = time.monotonic() + 1200
        while sorted(ask("histograms/tags").get("run", {})) != tags:
            assert time.monotonic() < deadline, "the run was not loaded"
            threading.Event().wait(0.05)
        for tag in tags:
            shown = ask("histograms/histograms", run="run", tag=tag)
            assert [(wall_time, step) for wall_time, step, _ in shown] == [(1e9 + step, step) for step in range(3)]
            for _, _, buckets in shown:
                np.testing.assert_allclose(buckets, buckets_of(remembered, tag), rtol=1e-6, atol=0)
            distribution = ask("distributions/distributions", run="run", tag=tag)
            low, high = (buckets_of(remembered, tag)[at] for at in ((0, 0), (-1, 1)))
            for _, _, points in distribution:
                values = [value for _, value in points]
                assert values == sorted(values)
                np.testing.assert_allclose((values[0], values[-1]), (low, high), rtol=1e-6)
