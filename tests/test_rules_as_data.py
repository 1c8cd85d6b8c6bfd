"""Texts are never data: no rule reads a message, and names of columns are parsed in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tbnum.explain
from tbnum.explain.causes import CAUSE
from tbnum.explain.findings import RULES
from tbnum.explain.kinds import KINDS
from tbnum.log.schema import EVENT_KINDS

FILES = sorted(Path(tbnum.explain.__file__).parent.glob("*.py"))
TEXTS = {"message", "remedy", "evidence", "title"}
LOOKS = {"startswith", "endswith", "split", "rsplit", "partition", "rpartition", "find", "index", "count", "match"}
LOOKS |= {"search", "fullmatch", "findall"}


def _is_text(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr in TEXTS for part in ast.walk(node))


def _reads_of_texts(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(_is_text, (node.left, *node.comparators))):
            yield node.lineno
        is_look = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS
        if is_look and any(_is_text(part) for part in (node.func.value, *node.args)):
            yield node.lineno


def _splits_of_columns(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        is_look = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS
        if is_look and any(isinstance(each, ast.Constant) and each.value == "/" for each in node.args):
            yield node.lineno
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and node.left.value == "/":
            yield node.lineno


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_rule_reads_a_text_or_splits_the_name_of_a_column(file: Path):
    tree = ast.parse(file.read_text())
    assert not list(_reads_of_texts(tree)) and not list(_splits_of_columns(tree))


@pytest.mark.parametrize(
    "text",
    ['"x" in event.message', "event.remedy.startswith('x')", "finding.title == 'x'", "re.search('x', e.message)"],
)
def test_such_a_reading_is_seen(text: str):
    assert list(_reads_of_texts(ast.parse(text)))


def test_and_so_is_a_split():
    assert list(_splits_of_columns(ast.parse("name.split('/')"))) and list(_splits_of_columns(ast.parse("'/' in name")))


def test_rules_kinds_and_causes_are_rows_of_tables():
    names = [name for name, _ in RULES]
    assert len(set(names)) == len(names) and all(callable(rule) for _, rule in RULES)
    assert set(EVENT_KINDS) - {"skip"} <= set(KINDS)
    assert all(cause.severity in ("info", "warning", "error") and cause.meaning for cause in CAUSE.values())
