"""What is checked before a framework is imported. The integrations themselves have a file of tests each."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from pathlib import Path

import pytest

from tbnum.integrations.framework import OLDEST, framework
from tbnum.integrations.recording import OPTIONS
from tbnum.monitor import wrap


def test_what_is_not_installed_is_an_error_that_says_how_to_install_it() -> None:
    with pytest.raises(ImportError, match=r"needs no_such or nor_this: pip install 'tbnum\[lightning\]'"):
        framework("lightning", "no_such.pytorch", "nor_this")


def test_of_several_packages_the_first_that_is_there_is_taken() -> None:
    assert framework("lightning", "no_such_package", "torch.optim").__name__ == "torch.optim"


@pytest.mark.parametrize(("found", "fits"), [("2.3.9", False), ("2.4.0rc1", True), ("2.10", True), ("10.0", True)])
def test_a_version_that_is_too_old_is_an_error_that_says_how_to_upgrade(
    found: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    if fits:
        framework("lightning", "json")
        return
    with pytest.raises(ImportError, match=rf"json 2\.4 or newer, and {found} is installed: pip install --upgrade"):
        framework("lightning", "json")


def test_the_oldest_versions_are_those_that_the_extras_ask_for() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for extra, oldest in OLDEST.items():
        asked = re.search(rf"^{extra} = (\[.*\])$", project, re.MULTILINE)
        assert asked is not None and f'"{extra}>={oldest}"' in asked[1], extra


def test_the_callbacks_take_every_option_of_wrap_that_a_framework_does_not_give() -> None:
    assert {"tensor_interval", "histogram_interval", "scalar_interval", "activations", "config"} <= set(OPTIONS)
    assert not {"optimizer", "scaler", "logdir", "writer", "model"} & set(OPTIONS)


@pytest.mark.parametrize("framework_name", ["lightning", "transformers"])
def test_a_callback_has_the_options_of_wrap_with_its_defaults_as_arguments_of_its_own(framework_name: str) -> None:
    """Tools that read signatures (LightningCLI) offer no others."""
    module = pytest.importorskip(f"tbnum.integrations.{framework_name}")
    parameters = inspect.signature(module.NumericsCallback).parameters
    theirs = inspect.signature(wrap).parameters
    shared = [name for name in OPTIONS if name != "data_ids"]  # whose default, None, leaves the Trainer's loader alone
    assert {name: (parameters[name].default, parameters[name].annotation) for name in shared} == {
        name: (theirs[name].default, theirs[name].annotation) for name in shared
    }
    assert parameters["data_ids"].default is None
