from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import tbnum


def model_with_gradients() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    model[0].bias.requires_grad_(False)  # frozen: no gradient
    model(torch.randn(7, 6)).square().sum().backward()
    return model


@pytest.mark.parametrize("max_norm", [1e-2, 1.0, 1e6])
def test_clipping_gives_what_torch_gives(max_norm: float) -> None:
    ours, theirs = model_with_gradients(), model_with_gradients()
    norm = tbnum.clip_grad_norm_(ours.parameters(), max_norm)
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
    assert torch.equal(norm, expected)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        assert a.grad is None or torch.allclose(a.grad, b.grad, atol=1e-6)


def test_the_whole_gradient_is_scaled_by_one_coefficient_and_keeps_its_direction() -> None:
    model = model_with_gradients()
    before = [p.grad.double().clone() for p in model.parameters() if p.grad is not None]
    norm = math.sqrt(sum(each.square().sum().item() for each in before))
    tbnum.clip_grad_norm_(model.parameters(), 0.01)
    after = [p.grad.double() for p in model.parameters() if p.grad is not None]
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new, old * (0.01 / (norm + 1e-6)), rtol=1e-5, atol=1e-9)


def test_a_gradient_below_the_threshold_is_left_as_it_is() -> None:
    model = model_with_gradients()
    before = copy.deepcopy([p.grad for p in model.parameters()])
    tbnum.clip_grad_norm_(model.parameters(), 1e9)
    for old, p in zip(before, model.parameters(), strict=True):
        assert (old is None and p.grad is None) or torch.equal(old, p.grad)


def test_one_tensor_and_a_generator_are_taken_as_torch_takes_them() -> None:
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([3.0, 4.0])
    assert tbnum.clip_grad_norm_(p, 1.0).item() == pytest.approx(5.0)
    assert p.grad.norm().item() == pytest.approx(1.0, abs=1e-5)
    assert tbnum.clip_grad_norm_((each for each in [p]), 0.5, norm_type=math.inf).item() == pytest.approx(0.8, abs=1e-5)


def test_a_threshold_that_would_turn_the_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_norm is -1"):
        tbnum.clip_grad_norm_([], -1)
    with pytest.raises(ValueError, match="nan"):
        tbnum.clip_grad_norm_([], math.nan)


def test_a_nonfinite_norm_raises_where_asked() -> None:
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.tensor([math.inf])
    with pytest.raises(RuntimeError, match="non-finite"):
        tbnum.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
