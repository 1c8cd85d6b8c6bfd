"""The hash of a step: what it sees, what it cannot see, and which hashes are compared."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from tbnum.measure.step_hash import BY_CLIP, BY_PASS, compared, step_hash

NORMS = np.linspace(0.1, 5.0, 28, dtype=np.float32)


def test_equal_numbers_have_equal_hashes_in_every_process() -> None:
    code = (
        "import numpy as np; from tbnum.measure.step_hash import *; import sys; assert 'torch' not in sys.modules;"
        "print(step_hash([1.5, 2.0], [np.linspace(0.1, 5.0, 28, dtype=np.float32)], BY_PASS))"
    )
    other = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert step_hash([1.5, 2.0], [NORMS.copy()], BY_PASS) == other


def test_one_unit_in_the_last_place_of_a_norm_or_of_a_loss_is_another_hash() -> None:
    base = step_hash([1.5], [NORMS], BY_PASS)
    seen = {base, step_hash([np.nextafter(1.5, 2.0)], [NORMS], BY_PASS)}
    for at in range(len(NORMS)):
        other = NORMS.copy()
        other[at] = np.nextafter(other[at], np.float32(9))
        seen.add(step_hash([1.5], [other], BY_PASS))
    seen.add(step_hash([1.5], [NORMS[:10], NORMS[11:]], BY_PASS))
    seen.add(step_hash([1.5, 1.5], [NORMS], BY_PASS))
    seen.add(step_hash([math.nan], [NORMS], BY_PASS))
    assert len(seen) == len(NORMS) + 5


def test_what_the_norms_hide_the_hash_cannot_see() -> None:
    gradient = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    negated = gradient.clone()
    negated[12345] = -negated[12345]
    norms = [np.array([torch.linalg.vector_norm(each)], np.float32) for each in (gradient, negated)]
    assert step_hash([1.0], norms[:1], BY_PASS) == step_hash([1.0], norms[1:], BY_PASS)


def test_norms_taken_in_different_ways_are_not_compared() -> None:
    ours, clips = step_hash([1.0], [NORMS], BY_PASS), step_hash([1.0], [NORMS], BY_CLIP)
    other = step_hash([2.0], [NORMS], BY_PASS)
    first = np.array([ours, ours, ours, 0, ours], np.uint64)
    second = np.array([ours, clips, other, ours, 0], np.uint64)
    can_be, differ = compared(first, second)
    assert can_be.tolist() == [True, False, True, False, False]
    assert differ.tolist() == [False, False, True, False, False]


def test_no_hash_is_the_unknown_one_and_an_unknown_way_is_an_error() -> None:
    assert all(step_hash([float(at)], [], BY_PASS) for at in range(1000))
    with pytest.raises(ValueError, match="way is 0"):
        step_hash([1.0], [NORMS], 0)
