"""What the parts of a model are called: the names that they have without the wrappers around modules.

A run on several processes, or of a compiled model, has then the names of the plain one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

__all__ = ["named_modules", "named_parameters"]

_DATA_PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
# By which the others, Fabric's among them, hold their module.
_INSIDE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")


def named_parameters(prefix: str, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a model, by the names that they have without wrappers, below `prefix` where it is not empty."""
    names = _names(model)
    for path, parameter in model.named_parameters():
        module, _, its_own = path.rpartition(".")
        yield _joined(prefix, names.get(module, module), its_own), parameter


def named_modules(models: Mapping[str, nn.Module], *, inside_compiled: bool) -> list[tuple[str, nn.Module]]:
    """Every module that can be called, with its name: a model's own is its key (`""` for the only one).

    Of a module and its wrapper only the module is listed. With `inside_compiled`, what torch.compile has wrapped is
    listed as well; else it is left out, and of a compiled model only the whole is listed.
    """
    found: list[tuple[str, nn.Module]] = []
    for prefix, model in models.items():
        names, hidden = _names(model), set[int]()
        for path, module in model.named_modules():
            compiled = type(module).__module__.startswith("torch._dynamo")  # not imported just to ask
            compiled_in_place = module._compiled_call_impl is not None
            if not inside_compiled and (compiled or compiled_in_place):
                hidden.update(id(each) for each in module.modules() if each is not module or compiled_in_place)
            is_the_whole = compiled and not inside_compiled
            if id(module) in hidden or (_inside(module) and not is_the_whole) or not _has_a_forward(module):
                continue
            found.append((_joined(prefix, names[path]), module))
    return found


def _names(model: nn.Module) -> dict[str, str]:
    """The name of each module by its path; a wrapper has that of the module inside."""
    names = {"": ""}
    for path, module in model.named_modules():  # from the outside in
        inside = _inside(module)
        for child in module._modules:
            names[_joined(path, child)] = names[path] if child == inside else _joined(names[path], child)
    return names


def _inside(module: nn.Module) -> str | None:
    """Where `module` is a wrapper of torch's: the attribute by which it holds what it wraps."""
    if isinstance(module, _DATA_PARALLEL):
        return "module"
    return next((name for name in _INSIDE if name in module._modules), None)


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))


def _has_a_forward(module: nn.Module) -> bool:
    """A ModuleList or ParameterDict holds modules and is never called; hooks on a ScriptModule see nothing."""
    if isinstance(module, torch.jit.ScriptModule):
        return False
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)
