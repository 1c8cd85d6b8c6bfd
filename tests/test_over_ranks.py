"""One table says how columns are put together over ranks: for steps and for tensors."""

from __future__ import annotations

from tbnum.log.over_ranks import NORMS, PARAMETER_NORMS, PARAMETERS, TABLE, Over, how
from tbnum.log.schema import OPTIMIZER_COLUMNS, SHARD_COLUMNS, TENSOR_COLUMNS


def test_every_norm_that_a_rank_has_a_share_of_is_put_together_from_the_squares() -> None:
    assert {f"{name}_shard" for name in NORMS} == {column.name for column in SHARD_COLUMNS}
    assert {name for name in NORMS if how(name).of == PARAMETERS} == set(PARAMETER_NORMS)


def test_every_column_of_an_optimizer_that_has_no_share_of_its_own_and_every_statistic_is_in_the_table() -> None:
    shared = {"skipped", "lr"}  # the same on all ranks
    assert {column.name for column in OPTIMIZER_COLUMNS} - shared <= TABLE.keys()
    elsewhere = {name for name in TENSOR_COLUMNS if name.startswith(("float8", "checksum"))}
    assert TENSOR_COLUMNS.keys() - elsewhere <= TABLE.keys()


def test_a_format_behind_the_name_changes_nothing() -> None:
    assert how("underflow/float16") == how("underflow") and how("underflow").over is Over.SHARE
    assert how("activation_anything").over is Over.FIRST and how("unheard_of").over is Over.COUNT
