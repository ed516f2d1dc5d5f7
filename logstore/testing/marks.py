"""List the engine's coverage marks: every `mark("…")` in the source, which is always a literal."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_ROOMS = ("disk", "checkpoint", "format", "segment", "log", "compact", "columnar", "replication")


@cache
def catalogue() -> tuple[str, ...]:
    """Return every mark in the source, in alphabetical order. Raises `ValueError` for a repeated name."""
    counts = Counter(name for room in _ROOMS for name in _marks_below(_PACKAGE / room))
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"a mark names one place, but these occur in several: {repeated}")
    return tuple(sorted(counts))


def _marks_below(directory: Path) -> Iterator[str]:
    for path in sorted(directory.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "mark":
                (argument,) = node.args
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                    raise ValueError(f"{path.name}:{node.lineno}: the name of a mark must be a literal")
                yield argument.value
