"""Tensors of every kind that gradients come in, and what they hold in float64, for tests of statistics."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64]

# Around every threshold of every format, both signs, and what is no number.
EDGES = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1e-45, 2.0**-149, 2.0**-133, 1e-40, 2.0**-126, 1.0, 1e20]
for _edge in (2.0**-134, 2.0**-25, 2.0**-17, 2.0**-10, 2.0**-24, 464.0, 61440.0, 65504.0, 65520.0, 65536.0, 2.0**127):
    _near = np.nextafter(np.float32(_edge), np.float32([0, np.inf])).tolist()
    EDGES += [_edge, -_edge, *_near]
EDGES += [3.4028234663852886e38, (2 - 2.0**-8) * 2.0**127, 3.3961776e38]


def spread(count: int, dtype: torch.dtype, seed: int = 0, low: float = -150, high: float = 127) -> Tensor:
    """Numbers of random sign, uniform over the powers of two from 2**low to 2**high."""
    random = np.random.default_rng(seed)
    values = random.choice([-1.0, 1.0], count) * 2.0 ** random.uniform(low, high, count)
    tensor = torch.from_numpy(values)
    return torch.complex(tensor, tensor.flip(0)).to(dtype) if dtype.is_complex else tensor.to(dtype)


def of_edges(dtype: torch.dtype) -> Tensor:
    tensor = torch.tensor(EDGES, dtype=torch.float64)
    return torch.complex(tensor, tensor.flip(0)).to(dtype) if dtype.is_complex else tensor.to(dtype)


def many_kinds() -> list[Tensor]:
    tensors = []
    for seed, dtype in enumerate(DTYPES):
        tensors += [
            spread(1000, dtype, seed),
            spread(600, dtype, seed, -30, 18).view(20, 5, 6),
            of_edges(dtype),
            torch.zeros(7, dtype=dtype),
            torch.empty(0, dtype=dtype),
            torch.empty(3, 0, dtype=dtype),
            torch.tensor(-3.0, dtype=dtype),  # no dimensions
            torch.tensor([2.0**-24], dtype=dtype),
            torch.full((4,), math.nan, dtype=dtype),
            torch.full((2, 2), -math.inf, dtype=dtype),
            spread(60, dtype, seed, -20, 10).view(6, 10).t(),
            spread(60, dtype, seed, -20, 10)[::3],
            spread(3, dtype, seed, -20, 10).expand(5, 3),
            torch.nn.Parameter(spread(12, dtype, seed, -20, 10)),
        ]
    tensors += [
        torch.full((40,), 1e20),
        # Beyond float32, and next above powers of two, where rounding to float32 would change the bin.
        torch.tensor([1e-320, 5e-324, 1e-46, 1e39, -1e300, 8 + 2.0**-49, 2.0**-126 + 2.0**-176], dtype=torch.float64),
        spread(2 * 3 * 4 * 5, torch.float32, 9).view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        spread(40, torch.complex64, 10, -20, 10).conj(),
        spread(40, torch.complex64, 11, -20, 10).conj().imag,  # negated lazily
        *sparse_kinds(),
    ]
    return tensors


def sparse_kinds() -> list[Tensor]:
    def coo(indices: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)

    rows = torch.tensor([[1, 4, 1, 2]])
    dense = torch.zeros(6, 7)
    dense[2, 3], dense[5, 6], dense[0, 0] = 1e-6, -7e4, math.nan
    return [
        coo(rows, torch.tensor([[1.0, 2.0], [0.0, -5.0], [-1.0, 2e-8], [math.inf, 3.0]]), (9, 2)),
        coo(rows, torch.tensor([1.0, 2.0**-25, 2.0**-24, 7e4]).half(), (9,)),
        coo(torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 3), (4, 3)),  # nothing stored
        coo(torch.tensor([[0]]), torch.tensor([[math.nan]]), (2, 1)),
        coo(torch.tensor([[0, 0]]), torch.tensor([1 + 2j, 1 - 2j]), (3,)),
        dense.to_sparse_csr(),
    ]


def cast(values: NDArray[np.float64], name: str) -> NDArray[np.float32]:
    """Rounded to the format by torch, to nearest; what overflows is not finite."""
    exact = torch.from_numpy(values).float()
    narrow = exact.to(getattr(torch, name)).float()
    if name == "float8_e4m3fn":
        # Newer versions of torch saturate, older ones give NaN. 480 would be the next number after 448.
        narrow[exact.abs() > (448 + 480) / 2] = math.nan
    return narrow.numpy()


def as_float64(tensor: Tensor) -> NDArray[np.float64]:
    """All elements, one after the other; a complex one is two, a sparse tensor's zeros are there."""
    tensor = tensor.detach()
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    if dense.is_complex():
        dense = torch.view_as_real(dense.resolve_conj())
    return dense.to(torch.float64).reshape(-1).numpy()
