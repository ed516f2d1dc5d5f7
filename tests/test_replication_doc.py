"""docs/replication.md names files and tests that exist, and leaves no cell empty."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
_CODE = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[str, str, str]]:
    """The cells of every table on the page, headings left out."""
    lines = (ROOT / "docs/replication.md").read_text().splitlines()
    found = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("|---") and not following.startswith("|---"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 3, f"not three cells: {line}"
            found.append((cells[0], cells[1], cells[2]))
    return found


@cache
def names_in(path: Path) -> frozenset[str]:
    """`name` and `Class::name` of every test function in the file, classes themselves included."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            names.update(f"{node.name}::{method.name}" for method in methods)
    return frozenset(names)


def exists(named: str) -> bool:
    """A file, or a function, class or method in it: `path`, `path::name`, `path::Class::name`."""
    path, _, name = named.partition("::")
    return (ROOT / path).is_file() and (not name or name in names_in(ROOT / path))


def test_every_row_names_a_file_and_a_test_that_exist() -> None:
    for mechanism, where, shown_by in rows():
        files, tests = _CODE.findall(where), _CODE.findall(shown_by)
        assert all((mechanism, files, tests)), f"an empty cell: {mechanism!r}"
        missing = [each for each in (*files, *tests) if not exists(each)]
        assert not missing, f"{mechanism}: no {missing}"
        assert all(test.startswith("tests/") for test in tests), f"{mechanism}: {tests}"


def test_no_section_is_empty() -> None:
    page = (ROOT / "docs/replication.md").read_text()
    sections = page.split("\n## ")[1:]
    assert len(sections) >= 23
    assert [section.splitlines()[0] for section in sections if section.count("\n| ") < 2] == []


def test_every_invariant_has_its_row() -> None:
    named = {word for invariant, _, _ in rows() for word in re.findall(r"^I\d+", invariant)}
    assert named == {f"I{number}" for number in range(1, 23)}
