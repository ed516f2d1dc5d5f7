"""The catalogue of behaviours, 251 rows: each is a test that carries its number, or a difference.

In the name of a test function `row_17` is one row, `rows_12_and_13` and `rows_12_and_13_and_15` are those
named, `rows_5_to_9` is that range, ends included; the forms may follow one another in a name. In
docs/differences.md it is "row 17".
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALL = range(1, 252)

_NUMBERS = re.compile(r"(?:^|_)rows?_(\d+(?:_(?:and|to)_\d+)*)(?=_|$)")
_TESTS = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
_TOLD = re.compile(r"\brow (\d+)\b")


def rows_in(name: str) -> set[int]:
    """The rows that a test's name carries."""
    found: set[int] = set()
    for listed in _NUMBERS.findall(name):
        for part in listed.split("_and_"):
            first, *last = (int(number) for number in part.split("_to_"))
            found.update(range(first, (last or [first])[-1] + 1))
    return found


def names_in(source: str) -> list[str]:
    """The names of the test functions in a module, also those in classes."""
    return _TESTS.findall(source)


@cache
def shown() -> dict[int, list[str]]:
    """Row → the tests that carry it."""
    found: dict[int, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in names_in(path.read_text()):
            for row in sorted(rows_in(name)):
                found.setdefault(row, []).append(f"{path.relative_to(ROOT)}::{name}")
    return found


def told() -> set[int]:
    """The rows that docs/differences.md gives a reason for."""
    return {int(number) for number in _TOLD.findall((ROOT / "docs" / "differences.md").read_text())}


def missing(covered: set[int]) -> list[int]:
    """The rows of the catalogue that are not covered."""
    return [row for row in ALL if row not in covered]


def test_every_row_is_shown_or_told() -> None:
    assert missing({*shown(), *told()}) == []


def test_every_number_is_one_of_the_catalogue() -> None:
    beyond = {row: tests for row, tests in shown().items() if row not in ALL}
    assert beyond == {}
    assert told() <= set(ALL)


def test_a_gap_is_noticed() -> None:
    """A checker that never fails is not a checker."""
    covered = {*shown(), *told()}
    for row in sorted(covered):
        assert missing(covered - {row}) == [row]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("test_row_17_a_header_count", {17}),
        ("test_row_17", {17}),
        ("test_rows_12_and_13_and_15_of_many", {12, 13, 15}),
        ("test_rows_5_to_9_at_once", {5, 6, 7, 8, 9}),
        ("test_rows_1_to_3_and_7_x", {1, 2, 3, 7}),
        ("test_row_1_x_row_2_y", {1, 2}),
        ("test_rows_at_once_are_entries_one_by_one", set()),
        ("test_rows_of_10_6_on_time", set()),
        ("test_growing_needs_something", set()),
        ("test_arrow_17", set()),
        ("test_row_17th", set()),
    ],
)
def test_the_grammar_of_names(name: str, rows: set[int]) -> None:
    assert rows_in(name) == rows


def test_only_functions_that_run_count() -> None:
    """A number in a parameter, in a comment or in a helper's name shows nothing."""
    source = "def helper_row_1(): ...\nclass TestX:\n    def test_row_2(self): ...  # row_3\nx = 'row_4'\n"
    assert names_in(source) == ["test_row_2"]
