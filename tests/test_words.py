"""Code, documentation and messages are in the field's own words: those on the left are not to come back."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pages import ROOT

INSTEAD = {
    r"sighted|sightings?": "observation, event",
    r"told|tells?|telling": "reported, recorded, says",
    r"glances?": "peek",
    r"rivals?": "concurrent writers",
    r"(?<!of )courses?": "trajectory",
    r"spread over": "sharded",
    r"flights?(?! recorder)": "recent history",
    r"seams?": "patch point",
    r"plain logs?": "scalar log",
    r"anew": "again",
    r"of late": "recently",
    r"from when on": "threshold",
    r"how-manyth": "call index",
    r"what is no parameter's": "statistics of other tensors",
    r"nothing tells": "is unknown",
    r"goes on and takes long to explain": "slow live run",
    r"worth a word": "threshold",
    r"machine's own unrest": "noise",
    r"stronger that of the single runs": "darker",
}
WORDS = re.compile("|".join(rf"(?<![\w-])(?:{word})(?![\w-])" for word in INSTEAD), re.IGNORECASE)

FOLDERS = ("tbnum", "plugins", "demo", "docs", "benchmarks", "tests", ".github")
SUFFIXES = (".py", ".md", ".ts", ".js", ".css", ".yml", ".toml", ".cff")

# What stands in a file on disk, in an interface of another's, or is a word of its own there.
NAMES = re.compile(
    r"\"flight\"|'flight'|`flight`|in[- ]flight|course loops|test_course_loops|CS336's? course|course's assignment"
    r"|file\.tell\(\)"
)


def files() -> list[Path]:
    found = [
        ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "setup.py")
    ]
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in SUFFIXES and not {"static", "node_modules", "results", "__pycache__"} & set(file.parts):
                found.append(file)
    return [file for file in found if file != Path(__file__)]


def found_in(text: str) -> list[str]:
    return [match[0] for match in WORDS.finditer(NAMES.sub("", text))]


def test_no_file_has_a_word_that_has_a_plainer_one() -> None:
    found = {file.relative_to(ROOT).as_posix(): found_in(file.read_text(encoding="utf-8")) for file in files()}
    assert {name: words for name, words in found.items() if words} == {}


def test_the_words_are_found_where_they_are_and_names_are_not() -> None:
    assert found_in("It is told anew; what is seen of late.") == ["told", "anew", "of late"]
    assert found_in('A flight recorder, of course: the reason "flight", a retold story, hotels.') == []
