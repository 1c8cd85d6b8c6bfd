"""Whether a framework is there, and new enough."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from types import ModuleType

__all__ = ["OLDEST", "framework"]

OLDEST = {"lightning": "2.4", "transformers": "4.51", "accelerate": "1.0"}  # as in pyproject.toml


def framework(extra: str, *modules: str) -> ModuleType:
    """Import the first of `modules` that is installed.

    Raises:
        ImportError: none is installed, or it is older than tbnum supports.
    """
    for module in modules:
        package = module.partition(".")[0]
        try:
            found = importlib.metadata.version(package.replace("_", "-"))
        except importlib.metadata.PackageNotFoundError:
            continue
        if _numbers(found) < _numbers(OLDEST[extra]):
            raise ImportError(
                f"tbnum.integrations.{extra} needs {package} {OLDEST[extra]} or newer, and {found} is installed: "
                f"pip install --upgrade 'tbnum[{extra}]'"
            )
        return importlib.import_module(module)
    names = " or ".join(module.partition(".")[0] for module in modules)
    raise ImportError(f"tbnum.integrations.{extra} needs {names}: pip install 'tbnum[{extra}]'", name=modules[0])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
