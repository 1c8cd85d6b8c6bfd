"""Whether a framework is there, and new enough."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import re
from types import ModuleType

__all__ = ["OLDEST", "framework"]

OLDEST = {
    "lightning": "2.4",
    "transformers": "4.51",
    "accelerate": "1.0",
    "wandb": "0.19",
    "mlflow": "2.16",
    "trackio": "0.10",
}  # as in pyproject.toml

DISTRIBUTIONS = {"mlflow": ("mlflow", "mlflow-skinny")}  # where a module's has another name than it, or several


def framework(extra: str, *modules: str) -> ModuleType:
    """Import the first of `modules` that is installed.

    Raises:
        ImportError: none is installed, or it is older than tbnum supports.
    """
    for module in modules:
        package = module.partition(".")[0]
        found = _version(package)
        if found is None:
            continue
        if _numbers(found) < _numbers(OLDEST[extra]):
            raise ImportError(
                f"tbnum.integrations.{extra} needs {package} {OLDEST[extra]} or newer, and {found} is installed: "
                f"pip install --upgrade 'tbnum[{extra}]'"
            )
        return importlib.import_module(module)
    names = " or ".join(module.partition(".")[0] for module in modules)
    raise ImportError(f"tbnum.integrations.{extra} needs {names}: pip install 'tbnum[{extra}]'", name=modules[0])


def _version(package: str) -> str | None:
    for name in DISTRIBUTIONS.get(package, (package.replace("_", "-"),)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
