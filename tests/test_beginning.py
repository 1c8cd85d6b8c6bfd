"""What the first attempts show of a loop, and its look-alikes: losses that are added up, float16 without a scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tbnum


def batch(model: nn.Module) -> Tensor:
    return model(torch.randn(4, 3))


def added_up(model: nn.Module) -> None:
    for _ in range(4):
        batch(model).square().mean().backward()


def with_torchs_loss(model: nn.Module) -> None:
    for _ in range(2):
        F.mse_loss(batch(model), torch.zeros(4, 2)).backward()


def two_terms(model: nn.Module) -> None:
    for _ in range(2):
        output = batch(model)
        (output.square().mean() + F.l1_loss(output, torch.zeros(4, 2))).backward()


def divided(model: nn.Module) -> None:
    for _ in range(4):
        (batch(model).square().mean() / 4).backward()


def weighted(model: nn.Module) -> None:
    for _ in range(4):
        (0.25 * batch(model).square().mean()).backward()


def sums(model: nn.Module) -> None:
    """Which the learning rate, or a division by all tokens, may be meant for."""
    for _ in range(4):
        batch(model).square().sum().backward()


def divided_by_hand(model: nn.Module) -> None:
    added_up(model)
    for parameter in model.parameters():
        parameter.grad.div_(4)


def divided_behind_the_back(model: nn.Module) -> None:
    added_up(model)
    for parameter in model.parameters():
        parameter.grad.data.div_(4)


def of_two_kinds(model: nn.Module) -> None:
    """As a discriminator's: of real images, and of others."""
    batch(model).square().mean().backward()
    (1 - batch(model)).square().mean().backward()


def one_batch(model: nn.Module) -> None:
    batch(model).square().mean().backward()


def kinds(
    folder: Path, backwards: Callable[[nn.Module], None], clip: bool, scaler: torch.amp.GradScaler | None = None
) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with tbnum.wrap(optimizer, scaler, model=model, logdir=folder):
        for _ in range(24):
            optimizer.zero_grad()
            backwards(model)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    (run,) = tbnum.read(folder).values()
    return {event.kind: event for event in run.events}


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize("backwards", [added_up, with_torchs_loss, two_terms])
def test_micro_batches_whose_means_are_added_up_are_named_once(
    backwards: Callable[[nn.Module], None], clip: bool, tmp_path: Path
) -> None:
    event = kinds(tmp_path, backwards, clip)["losses_not_divided"]
    assert event.severity == "info"  # it may be meant
    assert event.data["micro_batches"] == (4 if backwards is added_up else 2)
    assert event.data["where"].startswith("test_beginning.py:")


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize(
    "backwards", [divided, weighted, sums, divided_by_hand, divided_behind_the_back, of_two_kinds, one_batch]
)
def test_losses_that_are_divided_or_may_be_are_not(
    backwards: Callable[[nn.Module], None], clip: bool, tmp_path: Path
) -> None:
    assert "losses_not_divided" not in kinds(tmp_path, backwards, clip)


@pytest.mark.parametrize("divide", [False, "loss", "gradients"])
def test_under_a_scaler_the_loss_before_its_scale_counts(divide: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu", init_scale=8.0)
    with tbnum.wrap(optimizer, scaler, model=model, logdir=tmp_path):
        for _ in range(24):
            optimizer.zero_grad()
            for _ in range(4):
                loss = batch(model).square().mean()
                scaler.scale(loss / 4 if divide == "loss" else loss).backward()
            scaler.unscale_(optimizer)
            for parameter in model.parameters() if divide == "gradients" else ():
                parameter.grad.div_(4)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    (run,) = tbnum.read(tmp_path).values()
    assert ("losses_not_divided" in {event.kind for event in run.events}) == (not divide)


def in_float16(model: nn.Module) -> None:
    with torch.autocast("cpu", torch.float16):
        output = batch(model)
    output.float().square().mean().backward()


def in_bfloat16(model: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        output = batch(model)
    output.float().square().mean().backward()


def with_a_scale_of_its_own(model: nn.Module) -> None:
    with torch.autocast("cpu", torch.float16):
        output = batch(model)
    (1024.0 * output.float().square().mean()).backward()
    for parameter in model.parameters():
        parameter.grad.data.div_(1024.0)


def test_float16_without_a_loss_scale_is_named_once(tmp_path: Path) -> None:
    event = kinds(tmp_path, in_float16, clip=True)["float16_without_scaler"]
    assert event.severity == "warning" and event.data["where"].startswith("test_beginning.py:")


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize("backwards", [in_bfloat16, with_a_scale_of_its_own, one_batch])
def test_other_types_and_scales_of_the_loops_own_are_not_named(
    backwards: Callable[[nn.Module], None], clip: bool, tmp_path: Path
) -> None:
    assert "float16_without_scaler" not in kinds(tmp_path, backwards, clip)


def within_autocast(model: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        batch(model).float().square().mean().backward()


def a_loss_in_bfloat16(model: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = batch(model).square().mean()
    loss.backward()


@pytest.mark.parametrize(
    ("backwards", "found"), [(within_autocast, "backward_under_autocast"), (a_loss_in_bfloat16, "loss_low_precision")]
)
def test_without_a_scaler_too_backward_within_autocast_and_a_loss_in_16_bits_are_named(
    backwards: Callable[[nn.Module], None], found: str, tmp_path: Path
) -> None:
    reported = kinds(tmp_path, backwards, clip=False)
    assert {"backward_under_autocast", "loss_low_precision"} & set(reported) == {found}
    assert reported[found].severity == "warning" and reported[found].data["where"].startswith("test_beginning.py:")
    (run,) = tbnum.read(tmp_path).values()
    assert "scaler_without_float16" not in {finding.rule for finding in run.findings}  # there is none


def test_float16_parameters_are_another_matter(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tbnum.wrap(optimizer, model=model, logdir=tmp_path):
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(4, 3).half()).float().square().mean().backward()
            optimizer.step()
    (run,) = tbnum.read(tmp_path).values()
    assert "float16_without_scaler" not in {event.kind for event in run.events}


def test_a_backward_on_a_device_without_autocast_is_no_trouble(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2, device="meta")
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    with tbnum.wrap(optimizer, scaler, logdir=tmp_path, verbose=False):
        for _ in range(3):
            other(torch.randn(4, 3, device="meta")).sum().backward()
            scaler.scale(batch(model).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert not [each for each in recwarn if "tbnum could not" in str(each.message)]
