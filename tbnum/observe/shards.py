"""Which of an optimizer's tensors this rank answers for, where they are sharded.

A rank sees its part of a sharded tensor alone, and asking for more would take a collective, which costs time and can
hang. So each rank records the norms of its parts, and says which of them count: over all ranks each element counts
once. The parts are put together when the log is read (`tbnum.log.ranks`).
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.distributed
from torch import Tensor, nn

from tbnum.observe.gradients import WHOLE, Gradients, local, parameters_of

__all__ = ["Layout", "Layouts", "are_flattened"]

_Part = tuple[bool, tuple[int, ...], str | None]
"""Of one tensor: whether this rank's part counts, the ranks whose parts make the whole, or why these are not known."""


@dataclass(frozen=True)
class Layout:
    """How the gradients and the parameters of an optimizer lie over the ranks, as this rank sees it."""

    gradients: Parts
    parameters: Parts
    elements: tuple[int, ...]  # (P,) of each parameter on this rank
    of_whole: tuple[int, ...]  # (P,) likewise on all ranks together; 0 where this rank does not know
    placements: list[dict[str, Any]]  # for people: each mesh and how many tensors lie on it in what way
    has_flat_parameters: bool  # of FSDP1: a parameter that has no part here has no gradient here either


@dataclass(frozen=True)
class Parts:
    """Whose parts of some tensors make the whole."""

    owned: tuple[bool, ...]  # (P,) whether this rank's part of a parameter counts
    ranks: tuple[int, ...]  # all ranks that have a part that counts
    unknown: tuple[int, str] | None = None  # the place of a parameter whose parts cannot be added up, and why

    @functools.cached_property
    def copies(self) -> frozenset[int]:
        """Places of what other ranks count, where this one counts the rest."""
        return frozenset(np.flatnonzero(~self.mask).tolist()) if self.mask.any() else frozenset()

    @functools.cached_property
    def mask(self) -> np.ndarray:
        return np.array(self.owned, bool)


class Layouts:
    """The layouts of some optimizers, each worked out once, and again when `look_again` is asked.

    Between these a look costs a comparison of which parameters have a gradient. `on_layout(name, layout)` is called
    when one was found, and when it changed. No communication.
    """

    def __init__(self, modules: Sequence[nn.Module], on_layout: Callable[[str, Layout], None]) -> None:
        self._modules = [weakref.ref(module) for module in modules]
        self._on_layout = on_layout
        self._known: dict[str, tuple[Sequence[int], Layout | None]] = {}
        self._has_flat: dict[str, bool] = {}  # looked for once: a model is flattened before it has an optimizer
        self._unreduced: list[tuple[weakref.ref[Tensor], int]] = []  # and their versions

    def of(self, name: str, optimizer: torch.optim.Optimizer, gradients: Gradients, look_again: bool) -> Layout | None:
        """None where every tensor is whole on this rank."""
        places, layout = self._known.get(name, (None, None))
        if places is None or look_again or places != gradients.places:
            before = layout
            layout = self._found(name, optimizer, gradients)
            self._known[name] = (gradients.places, layout)
            if layout is not None and layout != before:
                self._on_layout(name, layout)
        return layout

    def are_whole(self, name: str) -> bool:
        """Whether all of an optimizer's tensors were found to be whole on this rank, when each had a gradient."""
        places, layout = self._known.get(name, (None, None))
        return layout is None and isinstance(places, range)

    def unreduced_have_changed(self) -> bool:
        """Whether a backward has added to gradients that FSDP2 holds back, since this was asked last.

        In an accumulation with `set_requires_gradient_sync(False)` the parameters' own gradients stay as they are until
        the last backward, which reduces them. Looks at every module: about 1 microsecond each.
        """
        modules = [module for ref in self._modules if (top := ref()) is not None for module in top.modules()]
        gradients = [gradient for module in modules for gradient in _held_back(module)]
        if not gradients:
            return False
        before = self._unreduced
        self._unreduced = [(weakref.ref(gradient), gradient._version) for gradient in gradients]
        return len(gradients) != len(before) or any(
            ref() is not gradient or version != gradient._version
            for gradient, (ref, version) in zip(gradients, before, strict=True)
        )

    def _found(self, name: str, optimizer: torch.optim.Optimizer, gradients: Gradients) -> Layout | None:
        parameters = parameters_of(optimizer)
        if name not in self._has_flat:
            self._has_flat[name] = any(map(_is_flat, parameters))
        if not self._has_flat[name] and WHOLE.issuperset(map(type, itertools.chain(parameters, gradients.tensors))):
            return None  # nearly always; their types show it quicker than a look at each
        if not any(map(_is_sharded, itertools.chain(parameters, gradients.tensors))):
            return None
        flat = self._flat_parameters()
        found: list[Tensor] = list(parameters)
        for place, gradient in zip(gradients.places, gradients.tensors, strict=True):
            found[place] = gradient
        meshes: Counter[tuple[Any, ...]] = Counter()
        for parameter in parameters:
            spec = getattr(parameter, "_spec", None)
            if spec is not None:
                key = (spec.mesh, *map(str, spec.placements))
                meshes[key] += 1
        return Layout(
            gradients=_parts(parameters, found, flat),
            parameters=_parts(parameters, parameters, flat),
            elements=tuple(each.numel() for each in local(parameters)),
            of_whole=tuple(0 if _is_flat(each) else each.numel() for each in parameters),
            placements=[
                {
                    "mesh": mesh.mesh.tolist(),
                    "dims": list(mesh.mesh_dim_names or ()),
                    "coordinate": None if mesh.get_coordinate() is None else list(mesh.get_coordinate()),
                    "placements": placements,
                    "tensors": count,
                }
                for (mesh, *placements), count in meshes.items()
            ],
            has_flat_parameters=any(map(_is_flat, parameters)),
        )

    def _flat_parameters(self) -> dict[int, _Part]:
        """What FSDP1 made of parameters, by their id: one flat parameter a module, or views into it."""
        found: dict[int, _Part] = {}
        for ref in self._modules:
            top = ref()
            for module in () if top is None else top.modules():
                handle = getattr(module, "_handle", None)
                flat = getattr(handle, "flat_param", None)
                if flat is not None:
                    part = _part_of_flat(handle, getattr(module, "_inter_node_pg", None))
                    for parameter in (flat, *(getattr(flat, "_params", None) or ())):
                        found[id(parameter)] = part
        return found


def _held_back(module: nn.Module) -> Iterator[Tensor]:
    """Gradients of whole parameters that a module of FSDP2 has not reduced yet."""
    state_of: Any = getattr(module, "_get_fsdp_state", None)
    state = None if state_of is None else state_of()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch before it had several
        groups = filter(None, [getattr(state, "_fsdp_param_group", None)])
    for parameter in (parameter for group in groups for parameter in group.fsdp_params):
        whole = getattr(parameter, "_unsharded_param", None)  # there from the first forward on
        gradients = (parameter.unsharded_accumulated_grad, None if whole is None else whole.grad)
        yield from (each for each in gradients if each is not None)


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "_local_tensor") or _is_flat(tensor)


def are_flattened(parameters: Iterable[Tensor]) -> bool:
    """By FSDP1, which makes a parameter's gradient again, as another view, whenever it likes."""
    return any(map(_is_flat, parameters))


def _is_flat(parameter: Tensor) -> bool:
    return getattr(parameter, "_is_flat_param", False) or getattr(parameter, "_fsdp_flattened", False)


def _parts(parameters: Sequence[Tensor], tensors: Sequence[Tensor], flat: Mapping[int, _Part]) -> Parts:
    """Of `tensors`, the gradients of `parameters` or these themselves."""
    seen: dict[Any, _Part] = {}
    parts: list[_Part | None] = []
    on_ranks: set[int] = set()
    unknown: tuple[int, str] | None = None
    for place, (parameter, tensor) in enumerate(zip(parameters, tensors, strict=True)):
        spec = getattr(tensor, "_spec", None)
        part: _Part | None = None
        if spec is not None and hasattr(tensor, "_local_tensor"):
            key = (spec.mesh, *spec.placements)
            if key not in seen:
                seen[key] = _part_on_mesh(spec.mesh, spec.placements)
            part = seen[key]
            on_ranks.update(spec.mesh.mesh.flatten().tolist())
        elif _is_flat(parameter):
            part = flat.get(id(parameter), (False, (), _FLAT_AND_UNKNOWN))
            on_ranks.update(part[1])
        parts.append(part)
        if part is not None and part[2] is not None and unknown is None:
            unknown = place, part[2]
    # What is no shard beside shards is taken to be the same on all of their ranks: the lowest counts it.
    counting = min(on_ranks, default=0)
    whole: _Part = (torch.distributed.get_rank() == counting, (counting,), None)
    every = [part or whole for part in parts]
    ranks = sorted({rank for _, ranks, _ in every for rank in ranks})
    return Parts(tuple(owned for owned, _, _ in every), tuple(ranks), unknown)


_FLAT_AND_UNKNOWN = "FSDP flattened it, and only the model knows how it is sharded: pass model= to tbnum.wrap()"


def _part_on_mesh(mesh: Any, placements: Sequence[Any]) -> _Part:
    """Of a DTensor. Along a dimension of the mesh in which it is replicated, the first rank's part counts."""
    ranks = mesh.mesh
    coordinate = mesh.get_coordinate()  # None: this rank is not in the mesh, and its part is empty
    owned = coordinate is not None
    for dim in reversed(range(len(placements))):
        placement = placements[dim]
        kind = type(placement).__name__
        if placement.is_replicate():
            ranks = ranks.select(dim, 0)
            owned = owned and coordinate[dim] == 0
        elif kind not in ("Shard", "_StridedShard"):  # both split the elements, in one order or another
            names = mesh.mesh_dim_names
            along = f"mesh dimension {names[dim]!r}" if names else f"mesh dimension {dim}"
            return False, (), f"it is {placement!r} along {along}, so no rank has it before it is reduced"
    return owned, tuple(ranks.flatten().tolist()), None


def _part_of_flat(handle: Any, across: Any) -> _Part:
    """Of FSDP1's flat parameter. `across`: the group over which a hybrid strategy replicates it."""
    strategy = handle._sharding_strategy.name
    group = torch.distributed.get_process_group_ranks(handle.process_group)
    if strategy in ("FULL_SHARD", "SHARD_GRAD_OP"):
        return True, tuple(group), None
    if strategy == "NO_SHARD":
        return torch.distributed.get_rank() == min(group), (min(group),), None
    if strategy in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2") and across is not None:
        first = torch.distributed.get_rank(across) == 0
        return first, tuple(group) if first else (), None
    return False, (), f"the sharding strategy {strategy} is not known to tbnum"
