"""The README's code does what the README says."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import torch
from torch.nn import functional as F

import tbnum

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = [textwrap.dedent(code) for code in re.findall(r"^ *```python\n(.*?)^ *```", README, re.DOTALL | re.MULTILINE)]


def test_the_example_records_each_of_its_steps_and_the_notebook_reads_them(tmp_path: Path) -> None:
    example, notebook, tensors = BLOCKS
    torch.manual_seed(0)
    names = {
        "torch": torch,
        "F": F,
        "model": torch.nn.Linear(4, 3),
        "batches": [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)],
    }
    exec(example.replace('"cuda"', '"cpu"').replace('"runs/gpt"', repr(str(tmp_path / "gpt"))), names)
    names["monitor"].close()

    reading = {"tbnum": tbnum, **names}
    exec(notebook.replace('"runs"', repr(str(tmp_path))), reading)
    exec(tensors, reading)
    run = tbnum.read(tmp_path)["gpt"]
    assert run.steps["step"].tolist() == [0, 1, 2, 3, 4]
    assert (run.steps["max_norm"] == 1.0).all()


def test_every_column_of_a_run_is_explained(tmp_path: Path) -> None:
    from tbnum.log.schema import step_columns

    table = README.split("## What the columns mean")[1].split("## The log")[0]
    unexplained = [name for name in step_columns({"optimizer": 2}) if f"`{name}`" not in table]
    assert unexplained == []


def test_every_cause_is_explained() -> None:
    from tbnum.explain import CAUSES

    assert [cause for cause in CAUSES if f"`{cause}`" not in README] == []
