"""Every failure schedule has a test that carries its name: S0a to S67, and R1 to R15 of reassignment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).parent
SCHEDULES = ("s0a", "s0b", *(f"s{number}" for number in range(1, 68)), "s13b")
OF_REASSIGNMENT = tuple(f"r{number}" for number in range(1, 16))
"""docs/durability.md has rules R1 to R7 too; these numbers count in the tests of reassignment alone."""


def test_names(path: Path) -> Iterator[str]:
    """The names of the file's test functions, those of its test classes among them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name


test_names.__test__ = False  # type: ignore[attr-defined]


def schedules_in(name: str) -> set[str]:
    """`test_s14_s15_what_…` is of s14 and s15; `test_s9b_…` of s9b and s9; `test_s13b_…` not of s13."""
    found = set(re.findall(r"(?<=_)([sr]\d+[ab]?)(?=_|$)", name))
    return found | {each[:-1] for each in found - {"s0a", "s0b", "s13b"} if each[-1] in "ab"}


def untold(schedules: Iterable[str], names: Iterable[str]) -> list[str]:
    told = {each for name in names for each in schedules_in(name)}
    return [each for each in schedules if each not in told]


def test_every_schedule_has_a_test() -> None:
    files = [*TESTS.glob("replication/**/test_*.py"), *TESTS.glob("logstore/broker/**/test_*.py")]
    assert len(SCHEDULES) == 70
    assert untold(SCHEDULES, (name for path in files for name in test_names(path))) == []


def test_every_row_of_reassignment_has_a_test() -> None:
    files = TESTS.glob("replication/test_reassignment*.py")
    assert untold(OF_REASSIGNMENT, (name for path in files for name in test_names(path))) == []


def test_a_missing_one_is_noticed() -> None:
    assert untold(("s1", "s13"), ("test_s13b_cut", "test_rows1_1_x", "test_s10_y")) == ["s1", "s13"]
    assert untold(("s9", "s14", "s15"), ("test_s9b_x", "test_s14_s15_y")) == []
