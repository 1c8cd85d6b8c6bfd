"""Where an overflow began, from the pattern of non-finite gradients."""

from __future__ import annotations

import pytest

from tbnum.explain.began import Began, began, forward_order

GPT = [
    "wte.weight",
    "wpe.weight",
    *(
        f"blocks.{at}.{name}"
        for at in range(4)
        for name in (
            "ln_1.weight",
            "attn.qkv.weight",
            "attn.qkv.bias",
            "ln_2.weight",
            "mlp.fc1.weight",
            "mlp.fc1.bias",
            "mlp.fc2.weight",
            "mlp.fc2.bias",
        )
    ),
    "ln_f.weight",
    "head.weight",
]


def pattern(*bad: str, names: list[str] = GPT) -> Began:
    found = began(names, [name in bad for name in names])
    assert found is not None
    return found


def up_to(name: str) -> list[str]:
    return GPT[: GPT.index(name) + 1]


def test_all_finite_is_nothing():
    assert began(GPT, [False] * len(GPT)) is None


def test_an_overflow_inside_a_module_whose_bias_is_finite_began_there():
    found = pattern(*up_to("blocks.3.mlp.fc2.weight"))
    assert found.how == "spread"
    assert found.text == (
        "Everything before blocks.3.mlp.fc2 is non-finite, nothing after it: that began in the backward of "
        "blocks.3.mlp.fc2."
    )
    assert found.modules == ("blocks.3.mlp.fc2",) and found.producers == ("blocks.3.mlp.fc2.weight",)
    assert found.propagators == len(up_to("blocks.3.mlp.fc2.weight")) - 1


def test_between_two_whole_modules_both_are_named():
    found = pattern(*up_to("blocks.2.mlp.fc1.bias"))
    assert found.modules == ("blocks.2.mlp.fc2", "blocks.2.mlp.fc1")
    assert "nothing from blocks.2.mlp.fc2 on" in found.text


def test_no_finite_gradient_points_to_the_end():
    found = pattern(*GPT)
    assert (found.how, found.modules) == ("everything", ("head",)) and "up to the loss" in found.text


def test_a_border_inside_a_block_names_the_block():
    found = pattern(*up_to("blocks.1.ln_1.weight"), "blocks.1.attn.qkv.bias", "blocks.1.mlp.fc2.weight")
    assert (found.how, found.modules) == ("within", ("blocks.1",))
    assert "within blocks.1 (blocks.1.ln_1.weight, blocks.1.attn.qkv.bias, blocks.1.mlp.fc2.weight)" in found.text


@pytest.mark.parametrize(
    "bad", [("wte.weight",), ("head.weight",), ("blocks.1.mlp.fc2.bias",), ("wte.weight", "blocks.0.attn.qkv.bias")]
)
def test_what_passed_on_finite_gradients_overflowed_by_itself(bad: tuple[str, ...]):
    found = pattern(*bad)
    assert (found.how, found.producers, found.propagators) == ("alone", bad, 0)
    assert found.text.startswith("It" if len(bad) == 1 else "Each") and "stayed finite" in found.text


def test_without_a_pattern_nothing_is_claimed():
    found = pattern(*up_to("blocks.1.mlp.fc1.weight"), "blocks.3.mlp.fc2.bias")
    assert (found.how, found.modules, found.text) == ("scattered", (), "")
    assert began(["w"], [True]) == Began(
        "everything",
        ("w",),
        ("w",),
        0,
        "No gradient is finite: that began in the backward of w or behind it, up to the loss.",
    )


def test_groups_with_and_without_decay_are_put_together_again():
    matrices = [name for name in GPT if name.endswith("weight") and "ln" not in name]
    vectors = [name for name in GPT if name not in matrices]
    names = matrices + vectors
    ordered = [names[at] for at in forward_order(tuple(names))]
    assert [name[7] for name in ordered if name.startswith("blocks")] == [at for at in "0123" for _ in range(8)]
    assert ordered.index("ln_f.weight") > ordered.index("blocks.3.mlp.fc2.bias")
    bad = {name for name in names if name[:9] in ("wte.weigh", "wpe.weigh", "blocks.0.", "blocks.1.")}
    found = began(names, [name in bad for name in names])
    assert found is not None and found.how == "spread" and found.modules[0].startswith("blocks.2.")


def test_a_models_own_order_is_left_alone():
    assert forward_order(tuple(GPT)) == tuple(range(len(GPT)))
    assert forward_order(tuple(f"group0.param{at}" for at in range(12))) == tuple(range(12))


def test_parameters_without_names_are_named_by_their_place():
    names = [f"group0.param{at}" for at in range(6)]
    found = pattern(*names[:4], names=names)
    assert (found.how, found.modules) == ("spread", ("group0.param4", "group0.param3"))
