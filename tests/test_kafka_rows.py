"""Every row of `replication/kafka_rows.py` names tests that exist, or words of the page of differences."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.replication.kafka_rows import ROWS

ROOT = Path(__file__).parent.parent
DIFFERENCES = "docs/differences.md: "


@cache
def names_in(path: str) -> frozenset[str]:
    """`name` and `Class::name` of every test function in the file."""
    names = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            names.update(f"{node.name}::{method.name}" for method in methods)
    return frozenset(names)


def missing(shown_by: str) -> list[str]:
    """Of one row: the tests that there are not, or the words."""
    if shown_by.startswith(DIFFERENCES):
        words = shown_by.removeprefix(DIFFERENCES)
        return [] if words and words in (ROOT / "docs/differences.md").read_text() else [words]
    found = []
    for test in shown_by.split(","):
        path, _, name = test.partition("::")
        is_test = (ROOT / path).is_file() and name.rpartition("::")[2].startswith("test_")
        if not is_test or name not in names_in(path):
            found.append(test)
    return found


def test_every_row_is_shown_by_what_exists() -> None:
    gaps = {row: lacking for row, shown_by in ROWS.items() if (lacking := missing(shown_by))}
    assert not gaps


def test_what_does_not_exist_is_noticed() -> None:
    assert missing("tests/test_kafka_rows.py::test_of_nothing")
    assert missing("tests/nowhere.py::test_x")
    assert missing("tests/test_kafka_rows.py::missing"), "no test by its name"
    assert missing(DIFFERENCES + "words that stand nowhere")
    assert missing("")


def test_every_section_is_there() -> None:
    assert {row.split(" ")[0] for row in ROWS} >= {f"6.{number}" for number in range(1, 9)}
