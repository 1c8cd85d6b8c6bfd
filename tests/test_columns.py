"""A column's name is taken apart in one place."""

from __future__ import annotations

import numpy as np
import pytest

from tbnum.log.columns import StepColumn, columns_named
from tbnum.log.schema import step_columns


@pytest.mark.parametrize(
    ("full", "column"),
    [
        ("loss", StepColumn(None, "loss")),
        ("lr", StepColumn(None, "lr")),
        ("lr/12", StepColumn(None, "lr", 12)),
        ("loss/kl", StepColumn(None, "loss", term="kl")),
        ("loss/vae/kl", StepColumn(None, "loss", term="vae/kl")),
        ("generator/grad_norm", StepColumn("generator", "grad_norm")),
        ("generator/lr/1", StepColumn("generator", "lr", 1)),
        ("a/b/lr/1", StepColumn("a/b", "lr", 1)),
        ("loss/grad_norm", StepColumn("loss", "grad_norm")),
        ("generator/loss", StepColumn("generator", "loss")),
        ("of a newer version", StepColumn(None, "of a newer version")),
        ("grad_norm_logged", StepColumn(None, "grad_norm_logged")),
    ],
)
def test_a_column_is_whose_it_is_what_it_holds_and_of_which_group(full: str, column: StepColumn):
    assert StepColumn.parse(full) == column
    assert column.full == full


def test_every_column_that_is_written_is_known_and_comes_back_as_it_was():
    for groups in ({"optimizer": 3}, {"generator": 2, "critic": 1}):
        for full in step_columns(groups, groups):
            column = StepColumn.parse(full)
            assert column.full == full and column.optimizer in {None, *groups}


def test_columns_of_one_name_come_with_their_optimizer():
    steps = {name: np.zeros(1) for name in step_columns({"generator": 2, "critic": 1})}
    assert [column.optimizer for column, _ in columns_named(steps, "skipped")] == [None, "generator", "critic"]
    assert [column.group for column, _ in columns_named(steps, "lr")] == [0, 1, 0]
    assert StepColumn("critic", "lr").beside("skipped") == "critic/skipped"
    assert StepColumn(None, "lr").beside("skipped") == "skipped"
