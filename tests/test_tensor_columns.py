"""Columns that follow from stored ones, and columns of modules."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import tbnum
from tbnum.log.schema import step_columns
from tbnum.log.tensor_columns import combine, derive, group_by_module
from tbnum.log.tensors import TensorTable
from tbnum.log.writer import LogWriter

NAMES = [
    "embedding.weight",
    "encoder.0.attention.weight",
    "encoder.0.attention.bias",
    "encoder.1.attention.weight",
    "encoder.10.attention.weight",
    "temperature",
]


def test_groups_by_depth_are_modules_in_order_of_appearance() -> None:
    assert group_by_module(NAMES, depth=1) == {"embedding": [0], "encoder": [1, 2, 3, 4], "": [5]}
    assert list(group_by_module(NAMES, depth=2)) == ["embedding", "encoder.0", "encoder.1", "encoder.10", ""]
    assert group_by_module(["group0.param3"], depth=1) == {"group0": [0]}


def test_groups_by_prefix_end_at_a_dot_and_the_longest_counts() -> None:
    groups = group_by_module(NAMES, prefixes=["encoder.1", "encoder"])
    assert groups == {"encoder": [1, 2, 4], "encoder.1": [3]}


def test_a_parameter_may_be_its_own_group() -> None:
    assert group_by_module(NAMES, prefixes=["temperature"]) == {"temperature": [5]}


def test_a_group_that_no_parameter_is_in_is_reported() -> None:
    with pytest.raises(ValueError, match=r"no parameter lies below 'encodr'. The names begin with: embedding, encoder"):
        group_by_module(NAMES, prefixes=["encodr"])
    with pytest.raises(ValueError, match="either depth= or prefixes="):
        group_by_module(NAMES)
    with pytest.raises(ValueError, match="depth is 0"):
        group_by_module(NAMES, depth=0)


def test_groups_combine_as_if_their_tensors_were_one() -> None:
    values = np.array([[3.0, 4.0, 12.0, math.nan]])
    groups, elements = [[0, 1], [2, 3], [3]], np.array([1, 3, 10, 10])
    assert combine("grad_norm", values, groups, elements)[0] == pytest.approx([5.0, 12.0, math.nan], nan_ok=True)
    assert combine("absmax", values, groups, elements)[0] == pytest.approx([4.0, 12.0, math.nan], nan_ok=True)
    assert combine("nan", values, groups, elements)[0] == pytest.approx([7.0, 12.0, math.nan], nan_ok=True)
    assert combine("headroom/float16", values, groups, elements)[0][:2] == pytest.approx([3.0, 12.0])
    assert combine("underflow/float16", values, groups, elements)[0][:2] == pytest.approx([(3 + 4 * 3) / 4, 12.0])


def test_headroom_is_how_often_the_scaled_gradient_can_double() -> None:
    assert derive("headroom/float16", np.array([65504 / 8]), np.array([2.0]))[0] == pytest.approx(2.0)
    assert derive("headroom/float16", np.array([0.0]), np.array([2.0]))[0] == math.inf
    assert math.isnan(derive("headroom/float16", np.array([math.nan]), np.array([2.0]))[0])


def test_derived_columns_and_groups_are_read_like_stored_ones(tmp_path: Path) -> None:
    names = ("blocks.0.weight", "blocks.0.bias", "head.weight")
    shapes = {"blocks.0.weight": [2, 2], "blocks.0.bias": [4], "head.weight": [8]}
    log = LogWriter(tmp_path, columns=step_columns({"optimizer": 1}), meta={"first_step": 0, "parameters": shapes})
    table = {
        "update_norm": np.array([0.3, 0.4, 1.0]),
        "param_norm": np.array([3.0, 4.0, 0.0]),
        "absmax": np.array([1.0, 2.0, 4.0]),
        "loss_scale": np.full(3, 1024.0),
        "underflow/float16": np.array([0.0, 0.5, 1.0]),
    }
    log.write_tensors(TensorTable(0, names, table))
    log.close()
    tensors = tbnum.read(tmp_path)["."].tensors
    assert {"update_ratio", "headroom/float16", "headroom/float8_e4m3fn"} <= set(tensors)
    assert tensors["update_ratio"].values[0] == pytest.approx([0.1, 0.1, math.inf])
    assert tensors["headroom/float16"].values[0] == pytest.approx(np.log2(65504 / 1024 / table["absmax"]))
    ratio = tensors.grouped("update_ratio", depth=1)
    assert ratio.names == ("blocks", "head") and ratio.values[0] == pytest.approx([0.1, math.inf])
    assert tensors.grouped("underflow/float16", depth=2).values[0] == pytest.approx([0.25, 1.0], abs=0.01)
    assert tensors.grouped("absmax", prefixes=["blocks"]).values[0] == pytest.approx([2.0])
    with pytest.raises(ValueError, match="either depth= or prefixes="):
        tensors.grouped("absmax")
    with pytest.raises(KeyError):
        tensors.grouped("nothing", depth=1)
