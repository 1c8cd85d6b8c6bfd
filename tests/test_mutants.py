"""Which tests `make mutants` runs for a planted fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import mutant_tests
from benchmarks.mutant_tests import Coverage

MODULE = """\
LIMIT = 3


def over(value, most=LIMIT):
    return value > most


def unused():
    return 0
"""
USER = """\
from module import LIMIT

def left(value):
    return LIMIT - value
"""


@pytest.fixture
def coverage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Coverage:
    (tmp_path / "module.py").write_text(MODULE)
    (tmp_path / "user.py").write_text(USER)
    for name, text in (("module", ""), ("more", "from module import LIMIT\n"), ("user", "LIMITS = 3\n")):
        (tmp_path / f"test_{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    seconds = {"test_module.py::test_over": 2.0, "test_more.py::test_over_too": 0.1, "test_user.py::test_left": 1.0}
    seconds["test_more.py::test_limit"] = 0.2
    over = {"test_module.py::test_over", "test_more.py::test_over_too"}
    return Coverage(seconds, {"module.py": {5: over}, "user.py": {4: {"test_user.py::test_left"}}})


def test_for_a_fault_in_a_line_those_that_execute_it_run_and_first_those_named_for_its_module(
    coverage: Coverage,
) -> None:
    assert coverage.of_fault(Path("module.py"), 5, 5) == ["test_module.py::test_over", "test_more.py::test_over_too"]


def test_a_signature_shows_in_the_body(coverage: Coverage) -> None:
    assert coverage.of_fault(Path("module.py"), 4, 4) == coverage.of_fault(Path("module.py"), 5, 5)


def test_a_constant_shows_wherever_it_is_used_and_in_the_tests_that_read_it(coverage: Coverage) -> None:
    chosen = coverage.of_fault(Path("module.py"), 1, 1)
    assert {"test_user.py::test_left", "test_more.py::test_limit"} <= set(chosen)
    assert "test_more.py::test_limit" not in coverage.of_fault(Path("module.py"), 5, 5)


def test_no_more_run_than_there_is_time_for(coverage: Coverage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant_tests, "BUDGET", 2.0)
    assert coverage.of_fault(Path("module.py"), 5, 5) == ["test_module.py::test_over"]


def test_a_fault_is_noticed_by_a_test_that_fails_or_by_the_time_limit_and_the_two_are_told_apart() -> None:
    work_item = pytest.importorskip("cosmic_ray.work_item")
    from benchmarks.mutants import outcome_of

    def outcome(test_outcome: str, output: str) -> str:
        return outcome_of(work_item.WorkResult("normal", output=output, test_outcome=test_outcome))

    failed = "F\n== summary ==\nFAILED tests/test_clip.py::test_it[a b] - assert 1 == 2\n1 failed in 3.1s\n"
    assert outcome("survived", "4 passed in 3.1s") == "survived"
    assert outcome("killed", "timeout") == "time limit"
    assert outcome("killed", failed) == "tests/test_clip.py::test_it[a b]"
    assert outcome("killed", "ERROR tests/test_clip.py\n1 error in 0.2s") == "tests/test_clip.py"
    assert outcome("killed", "no server").startswith("no test was named")
