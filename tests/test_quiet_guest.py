"""TensorBoard's own tabs stay usable: few tags under `tbnum/`, and a small event file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import tbnum
from tbnum.log.dashboards import MOST_TAGS
from tests.pages import DOCS


def trained(logdir: Path, steps: int, **options: object) -> None:
    """A model of 100 tensors, with a scaler and clipping; each step is as cheap as that many tensors allow."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(50))
    weights, biases = ([getattr(layer, name) for layer in layers] for name in ("weight", "bias"))
    optimizer = torch.optim.AdamW([{"params": weights}, {"params": biases, "lr": 1e-4}], lr=1e-3, foreach=True)
    scaler = torch.amp.GradScaler("cpu")
    with tbnum.wrap(optimizer, scaler, model=layers, logdir=logdir, verbose=False, **options):  # type: ignore[arg-type]
        for _ in range(steps):
            x = torch.randn(50, 8, 4)
            output = torch.baddbmm(torch.stack(biases).unsqueeze(2), torch.stack(weights), x)
            scaler.scale(output.square().mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def tags(logdir: Path) -> set[str]:
    shown = EventAccumulator(str(logdir)).Reload().Tags()
    return {*shown["scalars"], *shown["histograms"]}


def test_a_model_of_a_hundred_tensors_has_few_tags_and_its_event_file_is_the_smallest(tmp_path: Path) -> None:
    trained(tmp_path, 1000)
    found = tags(tmp_path)
    assert all(tag.startswith("tbnum/") for tag in found)
    assert {"tbnum/loss", "tbnum/skipped_total", "tbnum/lr", "tbnum/gradient_log2"} <= found
    assert len(found) <= MOST_TAGS == 16
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert len(sizes) == 3
    assert "tfevents" in min(sizes, key=sizes.__getitem__), sizes


def test_every_tag_is_explained(tmp_path: Path) -> None:
    trained(tmp_path, 2)
    page = (DOCS / "tensorboard.md").read_text(encoding="utf-8")
    assert [tag for tag in sorted(tags(tmp_path)) if f"`{tag}`" not in page] == []


def test_histograms_of_single_tensors_come_where_they_are_asked_for_under_a_prefix_of_their_own(tmp_path: Path) -> None:
    trained(tmp_path, 2, tensorboard_tensors=True)
    found = tags(tmp_path)
    assert len([tag for tag in found if tag.startswith("tbnum/")]) <= MOST_TAGS
    assert "tbnum_tensors/gradient/0.weight_log2" in found
    (run,) = tbnum.read(tmp_path).values()
    assert len([tag for tag in found if tag.startswith("tbnum_tensors/gradient/")]) == len(run.tensor_names) == 100


def test_without_a_scalar_interval_nothing_is_written_for_the_dashboards(tmp_path: Path) -> None:
    trained(tmp_path, 2, scalar_interval=None)
    assert tags(tmp_path) == set()
    (run,) = tbnum.read(tmp_path).values()
    assert len(run.steps["step"]) == 2 and run.histograms["gradient"].steps.tolist() == [0]


def test_an_interval_of_none_measures_nothing_and_records_every_step(tmp_path: Path) -> None:
    trained(tmp_path / "none", 4, tensor_interval=None, histogram_interval=None)
    run = tbnum.read(tmp_path)["none"]
    assert len(run.steps["step"]) == 4 and np.isfinite(run.steps["grad_norm"]).all()
    assert np.isnan(run.steps["param_norm"]).all() and set(run.tensors) <= {"grad_norm"} and list(run.histograms) == []
    assert {"tbnum/param_norm", "tbnum/gradient_log2"}.isdisjoint(tags(tmp_path / "none"))
    trained(tmp_path / "whole", 4, histogram_interval=None)
    run = tbnum.read(tmp_path)["whole"]
    assert run.histograms["gradient"].at(0).names == ("*",)
    with pytest.raises(ValueError, match="activations=True are measured every tensor_interval steps"):
        trained(tmp_path / "not", 1, tensor_interval=None, activations=True)


@pytest.mark.parametrize("interval", [0, -1, 1.5, True, "10"])
def test_an_interval_that_is_none_is_refused(interval: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"scalar_interval is .*; it must be a whole number of steps"):
        trained(tmp_path, 1, scalar_interval=interval)
