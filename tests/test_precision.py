"""Ranges of the narrow formats against torch's own casts, and shares from histograms against casting every element."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from tbnum.explain import precision as read_side
from tbnum.formats import BINS, FORMATS, INF, Format, first_bin_overflowing, last_bin_flushed, upper_edge
from tbnum.measure.histogram import histogram_of
from tests.tensors import as_float64, cast, of_edges, spread

each_format = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS.keys())


def cast_one(value: float, format: Format) -> float:
    return float(cast(np.array([value]), format.name)[0])


def next_float32(value: float, towards: float) -> float:
    return float(np.nextafter(np.float32(value), np.float32(towards)))


def shares_by_casting(tensor: Tensor, format: Format, scale: float) -> tuple[float, float]:
    values = as_float64(tensor)
    narrow = cast(values * scale, format.name)
    finite = np.isfinite(values)
    underflow = finite & (values != 0) & (narrow == 0)
    overflow = finite & ~np.isfinite(narrow)
    return underflow.mean(), overflow.mean()


@each_format
def test_the_range_is_the_one_torch_gives(format: Format) -> None:
    info = torch.finfo(getattr(torch, format.name))
    assert format.maximum == info.max
    assert format.smallest_normal == info.smallest_normal
    assert format.smallest_subnormal == info.smallest_normal * info.eps


@each_format
def test_half_of_the_smallest_number_is_the_last_to_flush(format: Format) -> None:
    assert cast_one(format.flushes_to, format) == 0
    assert cast_one(next_float32(format.flushes_to, 1), format) == format.smallest_subnormal
    assert cast_one(format.smallest_subnormal, format) == format.smallest_subnormal


@each_format
def test_overflow_starts_where_a_cast_is_no_longer_finite(format: Format) -> None:
    assert not math.isfinite(cast_one(format.overflows_from, format))
    assert cast_one(next_float32(format.overflows_from, 0), format) == format.maximum


@each_format
@pytest.mark.parametrize("exponent", [-12, -8, -3, 0, 1, 10, 16, 24])
def test_what_a_power_of_two_as_scale_flushes_is_exact(format: Format, exponent: int) -> None:
    scale = 2.0**exponent
    tensor = torch.cat([spread(4000, torch.float32, 1, -60, 60), of_edges(torch.float32)])
    if format.name == "bfloat16" and scale > 2.0**-8:  # flushes among the float32 subnormals, which are one bin
        tensor[tensor.abs() < 2.0**-126] = 1.0
    underflow, overflow = shares_by_casting(tensor, format, scale)
    counts = histogram_of(tensor)
    found = read_side.underflow(counts.numpy(), format, scale)
    assert found.low == pytest.approx(underflow, rel=1e-12)
    if format.name == "bfloat16":
        assert found.low <= found.high
    else:
        assert found.low == found.high
    found = read_side.overflow(counts.numpy(), format, scale)
    assert found.low <= overflow <= found.high


@each_format
@pytest.mark.parametrize("scale", [1000.3, 3e-5, 0.75, 1e30, 1e-30])
def test_what_any_other_scale_loses_lies_within_the_bounds(format: Format, scale: float) -> None:
    tensor = torch.cat([spread(4000, torch.float32, 2, -140, 100), of_edges(torch.float32)])
    underflow, overflow = shares_by_casting(tensor, format, scale)
    counts = histogram_of(tensor).numpy()
    for share, found in (
        (underflow, read_side.underflow(counts, format, scale)),
        (overflow, read_side.overflow(counts, format, scale)),
    ):
        assert found.low <= share <= found.high
        straddled = counts[1:INF].max() / counts.sum()
        assert found.high - found.low <= straddled


def test_the_bin_that_bounds_differ_by_is_the_one_the_threshold_is_in() -> None:
    float16 = FORMATS["float16"]
    assert last_bin_flushed(float16) == (102, 102)
    assert upper_edge(102) == 2.0**-25
    assert last_bin_flushed(float16, 1.5) == (101, 102)
    surely, possibly = first_bin_overflowing(float16)
    assert upper_edge(surely - 1) == 65536
    assert possibly == surely - 1
    assert last_bin_flushed(FORMATS["bfloat16"]) == (0, 1)
    assert first_bin_overflowing(FORMATS["bfloat16"]) == (INF, 255)


def test_the_share_of_no_elements_is_unknown() -> None:
    counts = histogram_of(torch.empty(0))
    assert np.isnan(read_side.overflow(counts.numpy(), FORMATS["float16"]).high)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_that_is_none_is_reported(scale: float) -> None:
    with pytest.raises(ValueError, match="loss scale is a finite number above 0"):
        read_side.underflow(np.ones(BINS), FORMATS["float16"], scale)


def test_only_bins_of_finite_elements_have_an_edge() -> None:
    assert upper_edge(255) == 2.0**128
    for bin in (0, INF):
        with pytest.raises(ValueError, match=f"bin {bin} is none of 1 to 255"):
            upper_edge(bin)


def test_the_read_side_loads_no_torch() -> None:
    code = "import sys, tbnum.formats, tbnum.explain.precision; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
