"""docs/replication.md names files and tests that exist, and leaves no cell empty."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
_CODE = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[str, str, str]]:
    found = []
    for line in (ROOT / "docs/replication.md").read_text().splitlines():
        if line.startswith("|") and not line.startswith(("| mechanism |", "|---")):
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


def test_every_row_names_a_file_and_a_test_that_exist() -> None:
    for mechanism, where, shown_by in rows():
        files, tests = _CODE.findall(where), _CODE.findall(shown_by)
        assert all((mechanism, files, tests)), f"an empty cell: {mechanism!r}"
        for file in files:
            assert (ROOT / file).exists(), f"{mechanism}: no {file}"
        for test in tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).is_file(), f"{mechanism}: no {path}"
            assert not name or name in names_in(ROOT / path), f"{mechanism}: no {name} in {path}"
