"""2-norms of many tensors in one pass over their elements.

The result stays on the device. The 2-norm of the whole is the 2-norm of the per-tensor norms, so one
pass gives both.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from tbnum.measure.chunks import kind_of, stored

__all__ = ["Taken", "TensorNorms", "combine", "host_norms_of", "needs_care", "norms_of"]

# torch reduces a large CPU tensor in float32 with too few partial sums: the 2-norm is off by 6e-5 at 3 M
# elements and by 3e-3 at 38 M. Rows of 65,536 elements first, then the norm of their norms, give 2e-7.
_ROW = 65_536
_CHUNK_ABOVE = 1_000_000


@dataclass(slots=True)
class TensorNorms:
    """2-norms of some tensors on one device.

    `norms` is (P,) float32 (float64 where a tensor was), `index` (P,) their places in the list that was measured.
    """

    index: Sequence[int]
    norms: Tensor
    in_order: bool = False  # whether `index` is 0, 1, 2, ...

    def total(self) -> Tensor:
        """The 2-norm of all of them together, 0-dim, on the device."""
        return torch.linalg.vector_norm(self.norms)

    def nonfinite(self) -> Tensor:
        """How many of the norms are NaN or inf, 0-dim, on the device."""
        return (~torch.isfinite(self.norms)).sum()


@dataclass(frozen=True)
class Taken:
    """2-norms that torch took for its own ends: `norms` (P,) by `torch._foreach_norm`, of `tensors` in their order.

    They are strided: of others torch takes none.
    """

    tensors: list[Tensor]
    norms: Tensor

    def of(self, tensors: Sequence[Tensor]) -> TensorNorms | None:
        """Where they are of these tensors, and what `norms_of` would give of them. No pass, no kernel."""
        if len(tensors) != len(self.tensors) or not all(map(operator.is_, tensors, self.tensors)):
            return None
        first = self.tensors[0]
        if type(self.norms) is not Tensor or self.norms.shape != (len(tensors),):
            return None
        if first.dtype not in (torch.float32, torch.float64):  # torch gives the norm of a narrower type in that type
            return None
        if first.is_cpu and any(map(needs_care, self.tensors)):
            return None
        return TensorNorms(range(len(self.tensors)), self.norms, in_order=True)


def norms_of(tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[TensorNorms]:
    """2-norm of each tensor; one entry per device.

    Any mix of shapes, devices, layouts and floating or complex types. 16-bit types are summed in float32, or all of
    them in `dtype`; a sparse tensor is coalesced first (entries at the same index add up), which is the one case that
    may sync.

    Costs one pass over the elements, two small kernels a device, no host sync. Finite elements whose squares
    overflow float32 (beyond about 1e19) give inf, and those whose squares vanish in it (below about 1e-22) count as
    zero; in float64 neither happens.
    """
    plain = _plain_norms_of(tensors) if dtype is None else None
    if plain is not None:
        return [TensorNorms(range(len(tensors)), plain, in_order=True)]
    return _norms_of_any(tensors, dtype) if tensors else []


@torch.no_grad()
def _norms_of_any(tensors: Sequence[Tensor], dtype: torch.dtype | None) -> list[TensorNorms]:
    if not all(tensor.layout is torch.strided for tensor in tensors):
        tensors = [stored(tensor) for tensor in tensors]
    by_device: dict[torch.device, tuple[list[int], list[Tensor]]] = {}
    # torch's own grouping, as its optimizers and its clipping use it: in C++, it costs a tenth of a loop here.
    groups = _group_tensors_by_device_and_dtype([list(tensors)], True)
    for (device, of_tensors), ([members], index) in groups.items():
        all_index, all_norms = by_device.setdefault(device, ([], []))
        all_index.extend(index)
        all_norms.extend(_norms_of_one_type(cast(list[Tensor], members), device, of_tensors, dtype))
    if len(groups) == 1:  # of one type, in the order given
        return [TensorNorms(index, torch.stack(norms), in_order=True) for index, norms in by_device.values()]
    return [TensorNorms(index, _stack(norms)) for index, norms in by_device.values()]


def _plain_norms_of(tensors: Sequence[Tensor]) -> Tensor | None:
    """(P,) 2-norms where torch measures the tensors well as they are: the common case, found in 0.2 us a tensor."""
    kinds = set(map(kind_of, tensors))
    if len(kinds) != 1 or not kinds <= _PLAIN or max(map(Tensor.numel, tensors)) > _CHUNK_ABOVE:
        return None
    return torch.stack(torch._foreach_norm(list(tensors), 2))


def host_norms_of(tensors: list[Tensor]) -> tuple[list[float], torch.dtype] | None:
    """2-norms as `norms_of` gives them, and their type, of tensors that the host has and of which none `needs_care`.

    None where they may be others than plain ones: the norms show it. To ask the tensors takes as long as the pass. Of
    sparse ones torch raises an error.
    """
    if any(map(_has_graph, tensors)):
        return None
    norms = torch._foreach_norm(tensors, 2) if tensors[0].is_cpu else ()
    if set(map(_sort_of, norms)) not in _PLAIN_SORTS:
        return None
    return list(map(Tensor.item, norms)), norms[0].dtype


def needs_care(tensor: Tensor) -> bool:
    """Whether torch's own norm of it, on the host, is not what `norms_of` gives: it is large, or complex."""
    return tensor.numel() > _CHUNK_ABOVE or tensor.is_complex()


_has_graph = operator.attrgetter("requires_grad")
_sort_of = operator.attrgetter("dtype", "is_cpu")
_PLAIN_SORTS = ({(torch.float32, True)}, {(torch.float64, True)})
_PLAIN = {(torch.float32, torch.strided, True, False), (torch.float64, torch.strided, True, False)}


def combine(totals: Iterable[float]) -> float:
    """The 2-norm of the whole from the 2-norms of its disjoint parts; NaN without a part, or with a NaN part."""
    parts = list(totals)
    whole = math.hypot(*parts)
    if whole == math.inf and any(math.isnan(part) for part in parts):
        return math.nan  # math.hypot(inf, nan) is inf, as IEEE has it; a norm with a NaN in it is NaN
    return whole if parts else math.nan


def _norms_of_one_type(
    members: list[Tensor], device: torch.device, dtype: torch.dtype, sum_in: torch.dtype | None
) -> list[Tensor]:
    if dtype.is_complex:
        members = [torch.view_as_real(tensor.resolve_conj()) for tensor in members]
    wider = torch.float32 if sum_in is None and dtype.itemsize < 4 else sum_in
    if device.type != "cpu":
        return list(torch._foreach_norm(members, 2, dtype=wider))
    if max(map(torch.numel, members)) <= _CHUNK_ABOVE:  # the common case
        return list(torch._foreach_norm(members, 2, dtype=wider))
    small = [tensor for tensor in members if tensor.numel() <= _CHUNK_ABOVE]
    norms = iter(torch._foreach_norm(small, 2, dtype=wider)) if small else iter(())
    return [next(norms) if tensor.numel() <= _CHUNK_ABOVE else _norm_by_rows(tensor, wider) for tensor in members]


def _norm_by_rows(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    flat = tensor.reshape(-1)
    whole = flat.numel() // _ROW * _ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1, dtype=dtype)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=dtype)
    return torch.linalg.vector_norm(torch.cat([rows, rest.reshape(1)]))


def _stack(norms: list[Tensor]) -> Tensor:
    dtypes = {norm.dtype for norm in norms}
    return torch.stack(norms if len(dtypes) == 1 else [norm.to(torch.float64) for norm in norms])
